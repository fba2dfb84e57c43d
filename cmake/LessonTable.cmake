# Writes the table of the lessons from the first lines of their scripts, `lesson N: TITLE` or
# `lesson N with gradients: TITLE`, in the order of N: a row LESSON(name, "TITLE") or
# LESSON_GRADIENTS(name, "TITLE") for each. Scripts without such a line belong to no lesson.
#
#   cmake -DFILES=a.lesson,b.lesson -DOUT=lessons.def -P LessonTable.cmake
cmake_policy(VERSION 3.21)

string(REPLACE "," ";" files "${FILES}")
set(rows "")
foreach(path IN LISTS files)
    get_filename_component(name ${path} NAME_WE)
    file(STRINGS ${path} line REGEX "^lesson " ENCODING UTF-8)
    if(line MATCHES "^lesson ([0-9]+)(|( with gradients)): (.+)$")
        set(macro LESSON)
        if(CMAKE_MATCH_3)
            set(macro LESSON_GRADIENTS)
        endif()
        list(APPEND rows "${CMAKE_MATCH_1} ${macro}(${name}, \"${CMAKE_MATCH_4}\")")
    elseif(line)
        message(FATAL_ERROR "${path}: '${line}' must be 'lesson N: TITLE' or "
                            "'lesson N with gradients: TITLE'")
    endif()
endforeach()
list(SORT rows COMPARE NATURAL)
list(TRANSFORM rows REPLACE "^[0-9]+ " "")
list(JOIN rows "\n" table)
file(WRITE ${OUT} "/* Made by LessonTable.cmake. Define both macros, then include this file. */
${table}
#undef LESSON
#undef LESSON_GRADIENTS
")
