/* Errors of the kit. A message is always one line of harmless text.
 *
 * Names of files and words of users end up in messages. So characters that would disturb a terminal
 * are replaced, and a message that is too long is cut and ends in "...".
 */
#include "kit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int kit_fail(kit_error *err, int code, const char *format, ...)
{
    if (!err)
        return code;
    err->code = code;
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);

    if (length >= (int)sizeof err->message) {
        char *cut = err->message + sizeof err->message - sizeof "...";
        while (((unsigned char)*cut & 0xC0) == 0x80) /* do not cut a UTF-8 character in two */
            cut--;
        strcpy(cut, "...");
    }
    char *to = err->message;
    for (const char *from = to, *piece; *from;) {
        size_t size;
        const char *next = kit_text_next(from, &piece, &size);
        const bool kept = piece == from;
        memmove(to, kept ? from : "?", kept ? size : 1);
        to += kept ? size : 1;
        from = next;
    }
    *to = 0;
    return code;
}

int kit_engine(attn_status status, const attn_error *engine, kit_error *err)
{
    switch (status) {
    case ATTN_OK: return KIT_OK;
    case ATTN_ERR_MEMORY:
    case ATTN_ERR_COMM:
    case ATTN_ERR_LIMIT: return kit_fail(err, KIT_LIMIT, "%s", engine->message);
    case ATTN_ERR_SHAPE:
    case ATTN_ERR_DTYPE: return kit_fail(err, KIT_BAD_FILE, "%s", engine->message);
    default: return kit_fail(err, KIT_USAGE, "%s", engine->message);
    }
}
