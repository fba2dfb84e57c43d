/* Declared, for functions that are not called here and left out by the linker. */
#ifndef ATTN_WASM_STDIO_H
#define ATTN_WASM_STDIO_H

#include <stddef.h>

int snprintf(char *to, size_t size, const char *format, ...);

#endif
