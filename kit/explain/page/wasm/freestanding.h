/* The library freestanding in a page: no C library, no threads, one instruction set. */
#ifndef ATTN_WASM_FREESTANDING_H
#define ATTN_WASM_FREESTANDING_H

#include <stddef.h>

/* The start of so many bytes, aligned to 64; NULL: none. The block that was lent before is this
 * one, longer or shorter; scratch of calls lies behind it. */
void *freestanding_room(size_t bytes);

#endif
