/* Of <inttypes.h>, what the library uses. */
#ifndef ATTN_WASM_INTTYPES_H
#define ATTN_WASM_INTTYPES_H

#include <stdint.h>

#define PRId64 "lld"

#endif
