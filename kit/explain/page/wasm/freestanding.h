/* The library in a page: freestanding (no C library), no threads, one instruction set. */
#ifndef ATTN_WASM_FREESTANDING_H
#define ATTN_WASM_FREESTANDING_H

#include <stddef.h>

/* Returns a block of `bytes` bytes, aligned to 64; NULL if there is no memory. It is the block of
 * the last call, now longer or shorter; the scratch of calls follows it. */
void *freestanding_room(size_t bytes);

#endif
