# Writes the trained heads as C (kit/train/heads.h).
#
#   cmake -DFILE=heads.safetensors -DOUT=heads_file.c -P EmbedHeads.cmake
cmake_policy(VERSION 3.21)
include(${CMAKE_CURRENT_LIST_DIR}/WriteArray.cmake)

file(WRITE ${OUT} "/* Made by EmbedHeads.cmake. */\n#include \"train/heads.h\"\n")
write_file_array("" trained_heads ${FILE})
