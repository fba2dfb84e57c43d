# Writes the texts of the lessons as C: script_file() finds them by name. For the script and the
# style sheet of a page it also has NAME.hash, by which the page's content security policy names
# them.
#
#   cmake -DFILES=a.lesson,b.c -DOUT=lesson_files.c -P EmbedLessons.cmake
cmake_policy(VERSION 3.21)
include(${CMAKE_CURRENT_LIST_DIR}/HashOf.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/WriteArray.cmake)

string(REPLACE "," ";" files "${FILES}")
file(WRITE ${OUT} "/* Made by EmbedLessons.cmake. */\n#include <string.h>\n"
                  "#include \"explain/lessons/script_read.h\"\n")
set(rows "")
set(number 0)
foreach(path IN LISTS files)
    get_filename_component(name ${path} NAME)
    file(READ ${path} text)
    write_array(static text${number} "${text}")
    string(APPEND rows "    {\"${name}\", text${number}},\n")
    if(name MATCHES "\\.(js|css)$")
        hash_of("${text}" hash)
        string(APPEND rows "    {\"${name}.hash\", \"${hash}\"},\n")
    endif()
    math(EXPR number "${number} + 1")
endforeach()
file(APPEND ${OUT} "static const struct {\n    const char *name, *text;\n} files[] = {\n${rows}};\n
const char *script_file(const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (strcmp(files[i].name, name) == 0) {
            return files[i].text;
        }
    }
    return NULL;
}
")
