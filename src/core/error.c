/* Statuses, their names, and the one function that writes an error message. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

/* The suffix warns of a build without -O, whose kernels are about thirty times as slow. */
const char *attn_version(void)
{
#ifdef __OPTIMIZE__
    return ATTN_VERSION_STRING;
#else
    return ATTN_VERSION_STRING " (compiled without optimisation)";
#endif
}

const char *attn_status_name(attn_status status)
{
    switch (status) {
#define NAME(s)                                                                                    \
    case s: return #s;
        NAME(ATTN_OK)
        NAME(ATTN_ERR_ARGUMENT)
        NAME(ATTN_ERR_SHAPE)
        NAME(ATTN_ERR_DTYPE)
        NAME(ATTN_ERR_STRIDE)
        NAME(ATTN_ERR_MEMORY)
        NAME(ATTN_ERR_LIMIT)
        NAME(ATTN_ERR_UNSUPPORTED)
        NAME(ATTN_ERR_FULL)
        NAME(ATTN_ERR_FILE)
        NAME(ATTN_AGAIN)
        NAME(ATTN_ERR_COMM)
#undef NAME
    }
    return "unknown status";
}

/* Does the message start with the argument's name? "k has D=3" starts with k; "key 3 is bad" does
 * not. */
static bool starts_with_name(const char *message, const char *name)
{
    size_t n = strlen(name);
    return strncmp(message, name, n) == 0 && !isalnum((unsigned char)message[n]) &&
           message[n] != '_';
}

attn_status attni_fail(attn_error *err, attn_status status, const char *argument,
                       const char *format, ...)
{
    if (!err)
        return status;
    char text[sizeof err->message];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);

    /* Keep the message on one line, whatever %s inserted. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';

    /* attn.h promises that the message starts with the argument's name: "is -1" becomes "count is
     * -1". */
    err->status = status;
    snprintf(err->argument, sizeof err->argument, "%s", argument);
    size_t used = 0;
    if (*argument && !starts_with_name(text, argument))
        used = (size_t)snprintf(err->message, 64, "%.40s ", argument);
    size_t room = sizeof err->message - used - 1, length = strlen(text);
    memcpy(err->message + used, text, length < room ? length : room);
    err->message[used + (length < room ? length : room)] = '\0';
    return status;
}
