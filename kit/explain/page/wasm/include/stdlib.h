/* Declared, for functions that are not called here and left out by the linker. */
#ifndef ATTN_WASM_STDLIB_H
#define ATTN_WASM_STDLIB_H

#include <stddef.h>

void *aligned_alloc(size_t alignment, size_t size);
void free(void *memory);

#endif
