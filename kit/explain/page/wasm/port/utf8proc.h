/* What kit/text/ needs of utf8proc to split a sentence into words and to write JSON (unicode.c).
 * The build reads the categories from the installed library, so the module has only these, not the
 * 340 KB of utf8proc's other tables. */
#ifndef ATTN_WASM_UTF8PROC_H
#define ATTN_WASM_UTF8PROC_H

#include "../unicode.h"

typedef uint8_t utf8proc_uint8_t;
typedef int32_t utf8proc_int32_t;
typedef ptrdiff_t utf8proc_ssize_t;

/* utf8proc's numbers of the categories that kit/text/ names; its ABI fixes them. */
typedef enum {
    UTF8PROC_CATEGORY_PC = 12,
    UTF8PROC_CATEGORY_PO = 18,
    UTF8PROC_CATEGORY_ZS = 23,
    UTF8PROC_CATEGORY_ZL = 24,
    UTF8PROC_CATEGORY_ZP = 25
} utf8proc_category_t;

#define utf8proc_iterate unicode_read
#define utf8proc_encode_char unicode_write
#define utf8proc_category (utf8proc_category_t) unicode_category

#endif
