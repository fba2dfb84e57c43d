# Writes the trained heads as C (kit/train/heads.h).
#
#   cmake -DFOLDER=kit/explain/trained -DOUT=heads_file.c -P EmbedHeads.cmake
cmake_policy(VERSION 3.21)
include(${CMAKE_CURRENT_LIST_DIR}/WriteArray.cmake)

file(WRITE ${OUT} "/* Made by EmbedHeads.cmake. */\n#include \"train/heads.h\"\n")
foreach(name IN ITEMS followed same)
    write_file_array("" trained_${name} ${FOLDER}/${name}.safetensors)
endforeach()
