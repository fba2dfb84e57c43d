/* Words and numbers as people type them. The C library's parsers accept too much (" 7", "nan",
 * "12abc", "010" as 8); these accept numbers only. */
#include "value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether text is digits, with at most one sign in front. */
static bool is_integer(const char *text, bool sign)
{
    if (sign && (*text == '-' || *text == '+'))
        text++;
    return *text && text[strspn(text, "0123456789")] == 0;
}

bool value_integer(const char *text, int64_t *out)
{
    if (!is_integer(text, true))
        return false;
    errno = 0;
    long long x = strtoll(text, NULL, 10);
    if (errno)
        return false;
    *out = x;
    return true;
}

bool value_unsigned(const char *text, uint64_t *out)
{
    bool hexadecimal = text[0] == '0' && text[1] == 'x' && isxdigit((unsigned char)text[2]);
    if (!hexadecimal && !is_integer(text, false))
        return false;
    char *end;
    errno = 0;
    unsigned long long x = strtoull(text, &end, hexadecimal ? 16 : 10);
    if (errno || *end)
        return false;
    *out = x;
    return true;
}

bool value_real(const char *text, double *out)
{
    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return false;
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return false;
    *out = x;
    return true;
}

bool value_in_integers(int64_t x, const char *range)
{
    int64_t low = 0, high = 0;
    char text[64];
    snprintf(text, sizeof text, "%s", range);
    char *dots = strstr(text, "..");
    if (!dots)
        return false;
    *dots = 0;
    return value_integer(text, &low) && value_integer(dots + 2, &high) && low <= x && x <= high;
}

bool value_in_reals(double x, const char *range)
{
    char *end;
    double low = strtod(range + 1, &end);
    if (*end != ',')
        return false;
    double high = strtod(end + 1, &end);
    return (*range == '[' ? low <= x : low < x) && (*end == ']' ? x <= high : x < high);
}

int value_list(const char *text, int64_t *out, int max)
{
    for (int n = 0;; n++) {
        char piece[32];
        size_t length = strcspn(text, ",");
        if (n == max || length >= sizeof piece)
            return -1;
        memcpy(piece, text, length);
        piece[length] = 0;
        if (!value_integer(piece, &out[n]))
            return -1;
        if (!text[length])
            return n + 1;
        text += length + 1;
    }
}

size_t value_word(const char *words, int n, const char **word)
{
    for (; n > 0; n--) {
        words = strchr(words, '|');
        if (!words)
            return 0;
        words++;
    }
    *word = words;
    return strcspn(words, "|");
}

int value_find(const char *words, const char *text)
{
    const char *word;
    size_t length;
    for (int n = 0; (length = value_word(words, n, &word)) > 0; n++)
        if (strlen(text) == length && memcmp(word, text, length) == 0)
            return n;
    return -1;
}

void value_join(char *buffer, size_t size, const char *words)
{
    const char *word, *after;
    size_t length, used = 0;
    buffer[0] = 0;
    for (int n = 0; (length = value_word(words, n, &word)) > 0 && used < size; n++) {
        const char *between = n == 0 ? "" : value_word(words, n + 1, &after) ? ", " : " or ";
        int more = snprintf(buffer + used, size - used, "%s%.*s", between, (int)length, word);
        used += more > 0 ? (size_t)more : 0;
    }
}

void value_range(char *buffer, size_t size, const char *range, const char *name)
{
    const char *dots = strstr(range, ".."), *low = range + 1;
    const int length = (int)strcspn(low, ","), last = (int)strlen(range) - 1;
    const char *from = *range == '[' ? "<=" : "<", *to = range[last] == ']' ? "<=" : "<";
    const char *high = low + length + 1;
    if (dots)
        snprintf(buffer, size, "%.*s to %s", (int)(dots - range), range, dots + 2);
    else if (strncmp(high, "inf", 3) != 0)
        snprintf(buffer, size, "%.*s %s %s %s %.*s", length, low, from, name, to,
                 (int)(range + last - high), high);
    else
        snprintf(buffer, size, "%s %s %.*s", name, *range == '[' ? ">=" : ">", length, low);
}

/* Optimal string alignment distance: insertions, deletions, replacements and swaps of
 * neighbours. */
enum { LONGEST = 32 };
static int distance(const char *a, const char *b)
{
    int d[LONGEST + 1][LONGEST + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    for (int i = 0; i <= n; i++)
        d[i][0] = i;
    for (int j = 0; j <= m; j++)
        d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            int best = d[i - 1][j - 1] + (x != y);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *value_nearest(const char *text, const char *const *words, size_t count)
{
    const char *nearest = NULL;
    int least = (int)strlen(text) / 3; /* more than a third wrong: another word */
    least = least ? least : 1;
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(text);
        bool begins = length >= 3 && strncmp(text, words[i], length) == 0;
        int d = begins ? 1 : distance(text, words[i]);
        if (d <= least && (!nearest || d < least)) {
            nearest = words[i];
            least = d;
        }
    }
    return nearest;
}

const char *value_hint(char *buffer, size_t size, const char *text, const char *const *words,
                       size_t count)
{
    const char *near = value_nearest(text, words, count);
    buffer[0] = 0;
    if (near)
        snprintf(buffer, size, "; did you mean '%s'?", near);
    return buffer;
}
