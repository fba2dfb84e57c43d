/* Characters of UTF-8 text and their categories, as utf8proc has them. */
#ifndef ATTN_WASM_UNICODE_H
#define ATTN_WASM_UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* Reads the first character of `text` into *c. Returns its length in bytes, 0 for an empty text, or
 * a negative number, and *c is -1, if it is not UTF-8. bytes: the length of the text, or -1: it
 * ends with a 0. */
ptrdiff_t unicode_read(const uint8_t *text, ptrdiff_t bytes, int32_t *c);

/* Writes a character as UTF-8, up to 4 bytes; returns their number, 0 if there is no such
 * character. */
ptrdiff_t unicode_write(int32_t c, uint8_t *to);

/* utf8proc's number of the category, if it is one of punctuation or of separators; else 0. */
int unicode_category(int32_t c);

#endif
