/* Of <string.h>, what the library uses; libc.c. */
#ifndef ATTN_WASM_STRING_H
#define ATTN_WASM_STRING_H

#include <stddef.h>

void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);

#endif
