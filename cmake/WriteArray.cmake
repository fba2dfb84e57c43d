# Appends to OUT the bytes of `text` as a C array, with a 0 behind them that the size does not
# count. linkage: "" or "static".
function(write_array linkage name text)
    file(WRITE ${OUT}.part "${text}")
    write_file_array("${linkage}" ${name} ${OUT}.part)
    file(REMOVE ${OUT}.part)
endfunction()

# The same of the bytes of a file, of any kind.
function(write_file_array linkage name path)
    file(READ ${path} hex HEX)
    file(SIZE ${path} size)
    # CMake's expressions know no {n}.
    set(byte "[0-9a-f][0-9a-f]")
    string(REGEX REPLACE "(${byte}${byte}${byte}${byte}${byte}${byte}${byte}${byte})" "\\1\n"
           hex "${hex}")
    string(REGEX REPLACE "(${byte})" "'\\\\x\\1'," bytes "${hex}")
    file(APPEND ${OUT} "${linkage} const char ${name}[] = {\n${bytes}0};\n")
    if(NOT linkage)
        file(APPEND ${OUT} "const size_t ${name}_size = ${size};\n")
    endif()
endfunction()
