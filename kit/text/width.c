/* The width of text on a terminal. utf8proc supplies the widths of characters and the bounds of
 * grapheme clusters. */
#include <string.h>

#include <utf8proc.h>

#include "../kit.h"

/* A grapheme cluster is as wide as its widest character. A pair of regional indicators is a flag,
 * and U+FE0F selects the wide picture; both have width 2. */
static int cluster_width(int widest, utf8proc_int32_t c, utf8proc_int32_t before)
{
    bool flag = c >= 0x1f1e6 && c <= 0x1f1ff && before >= 0x1f1e6 && before <= 0x1f1ff;
    int width = flag || c == 0xfe0f ? 2 : utf8proc_charwidth(c);
    return width > widest ? width : widest;
}

int kit_text_width_of(const char *text, size_t length)
{
    int total = 0, widest = 0;
    utf8proc_int32_t before = 0, state = 0;
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                              (utf8proc_ssize_t)(length - at), &c);
        if (n <= 0) { /* not UTF-8: a terminal shows one mark per byte */
            c = 0xfffd;
            n = 1;
        }
        if (at == 0 || utf8proc_grapheme_break_stateful(before, c, &state)) {
            total += widest;
            widest = 0;
        }
        widest = cluster_width(widest, c, before);
        before = c;
        at += (size_t)n;
    }
    return total + widest;
}

int kit_text_width(const char *text) { return kit_text_width_of(text, strlen(text)); }
