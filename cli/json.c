/* The few pieces of JSON that the program writes itself. */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bytes of the UTF-8 character at s, 0 if it is not one. */
static int character(const unsigned char *s)
{
    static const unsigned long least[] = {0, 0, 0x80, 0x800, 0x10000};
    int n = *s < 0x80 ? 1 : *s >= 0xc2 && *s < 0xe0 ? 2 : *s >= 0xe0 && *s < 0xf0 ? 3 : 4;
    unsigned long code = n == 1 ? *s : *s & (0xffu >> (n + 1));
    if ((*s >= 0x80 && *s < 0xc2) || *s > 0xf4)
        return 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    return code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

void json_text(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    putchar('"');
    for (int n; *s; s += n ? n : 1) {
        n = character(s);
        if (n == 0)
            fputs("\\ufffd", stdout);
        else if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f)
            printf("\\u%04x", *s);
        else
            fwrite(s, 1, (size_t)n, stdout);
    }
    putchar('"');
}

void json_number(double x)
{
    char text[32];
    if (!isfinite(x)) {
        fputs(isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"", stdout);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    fputs(text, stdout);
}

void json_shape(const int64_t *shape, int rank)
{
    for (int i = 0; i < rank; i++)
        printf("%s%lld", i ? "," : "[", (long long)shape[i]);
    fputs(rank ? "]" : "[]", stdout);
}
