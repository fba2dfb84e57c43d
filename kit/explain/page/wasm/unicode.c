/* See unicode.h. */
#include "unicode.h"

/* unicode_run: written by unicode_table.c at build. Ascending; each is the first character of a run
 * of one category, times 32, plus the category. */
#include <unicode_table.h>

ptrdiff_t unicode_read(const uint8_t *text, ptrdiff_t bytes, int32_t *c)
{
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* by length */
    const uint8_t first = text[0];
    const ptrdiff_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    *c = -1;
    if (bytes == 0)
        return 0;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || (bytes > 0 && length > bytes))
        return -1;
    int32_t code = length == 1 ? first : first & (0x7f >> length);
    for (ptrdiff_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return -1;
        code = code << 6 | (text[i] & 0x3f);
    }
    if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return -1;
    *c = code;
    return length;
}

ptrdiff_t unicode_write(int32_t c, uint8_t *to)
{
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0}; /* by length */
    const int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (c < 0 || c > 0x10ffff)
        return 0;
    for (int i = length - 1; i > 0; i--, c >>= 6)
        to[i] = (uint8_t)(0x80 | (c & 0x3f));
    to[0] = (uint8_t)(first[length] | c);
    return length;
}

int unicode_category(int32_t c)
{
    size_t low = 0, high = sizeof unicode_run / sizeof *unicode_run; /* the run is in [low, high) */
    if (c < 0 || c > 0x10ffff)
        return 0;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if ((uint32_t)c < unicode_run[middle] >> 5)
            high = middle;
        else
            low = middle;
    }
    return (int)(unicode_run[low] & 31);
}
