/* Makes text from files and users safe to show. Names of tensors, tokens, words and messages of a
 * file may hold any character, and a terminal acts on some of them: control characters, also those
 * above U+0080, move the cursor or rename the window, and direction marks reverse the rest of the
 * line. All code that shows such text uses kit_text_next. JSON keeps these characters and writes
 * them as \u escapes (kit_text_json). */
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "../kit.h"

/* Noncharacters are among them (U+FDD0 to U+FDEF, and the last two of each plane), because cairo
 * refuses a text that has one. */
static bool disturbs(int32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0x2028 || c == 0x2029 ||
           (c >= 0xfdd0 && c <= 0xfdef) || (c & 0xfffe) == 0xfffe;
}

/* Returns the number of bytes of the character at text, and its code in *c; 0 if it is not
 * valid. */
static size_t code_at(const char *text, int32_t *c)
{
    const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, c);
    return n > 0 ? (size_t)n : 0;
}

const char *kit_text_next(const char *text, const char **piece, size_t *length)
{
    int32_t c = 0;
    const size_t n = code_at(text, &c);
    *piece = text;
    *length = n ? n : 1;
    const char *next = text + *length;
    if (n && (c == '\t' || c == '\n' || c == '\r')) {
        *piece = " ";
    } else if (!n || disturbs(c)) {
        *piece = "\xef\xbf\xbd"; /* U+FFFD */
        *length = 3;
    }
    return next;
}

void kit_text_print(FILE *to, const char *text)
{
    while (*text) {
        const char *piece;
        size_t length;
        text = kit_text_next(text, &piece, &length);
        fwrite(piece, 1, length, to);
    }
}

bool kit_text_is_utf8(const char *text)
{
    int32_t c;
    for (size_t n; *text; text += n)
        if ((n = code_at(text, &c)) == 0)
            return false;
    return true;
}

/* Writes one \u escape for the character; noncharacters above U+FFFF would need two, and stay as
 * they are. "<" is escaped too, so that the string may be part of a page. */
void kit_text_json(const char *text, size_t size, kit_text_sink *put, void *to)
{
    const char *const end = text + size;
    put(to, "\"", 1);
    while (text < end) {
        char escape[8] = "\\ufffd";
        int32_t c = 0xfffd;
        const size_t n = code_at(text, &c);
        if (n && (c == '"' || c == '\\'))
            snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (n && (c == '<' || (c <= 0xffff && disturbs(c))))
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c & 0xffff);
        else if (n)
            escape[0] = 0;
        put(to, *escape ? escape : text, *escape ? strlen(escape) : n);
        text += n ? n : 1;
    }
    put(to, "\"", 1);
}
