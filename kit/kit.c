/* Errors of the kit: one line, whatever was put into it.
 *
 * Names of files and words of users end up in messages, so a control character is replaced before a
 * terminal sees it, and a message that would be cut says so.
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
        while (((unsigned char)*cut & 0xC0) == 0x80) /* not inside a UTF-8 character */
            cut--;
        strcpy(cut, "...");
    }
    for (char *c = err->message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
    return code;
}
