/* Splits a text into pieces before its bytes are merged: the patterns of GPT-2, Llama 3 and Qwen 2,
 * written out. Each alternative of a pattern is a function that returns how many characters it
 * takes, 0 if it does not match. As in the regular expression, the first alternative that matches
 * wins. */
#include <string.h>

#include <utf8proc.h>

#include "tokenizer_inner.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *regex;
    text_pattern pattern;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     TEXT_GPT2},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", TEXT_GPT2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" LINES, TEXT_LLAMA3},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" LINES, TEXT_QWEN2},
};

bool text_pattern_find(text_pattern *pattern, const char *regex)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].regex, regex) == 0) {
            *pattern = known[i].pattern;
            return true;
        }
    return false;
}

typedef enum class { SPACE, LETTER, NUMBER, OTHER } class;

static class class_of(int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    if (text_is_space(c))
        return SPACE;
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO)
        return LETTER;
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO ? NUMBER : OTHER;
}

static bool ends_line(int32_t c) { return c == '\r' || c == '\n'; }

/* Returns how many characters from `from` on are of the class `wanted`, at most `most`. */
static size_t run(const text_char *c, size_t from, size_t count, class wanted, size_t most)
{
    size_t n = 0;
    while (from + n < count && n < most && class_of(c[from + n].code) == wanted)
        n++;
    return n;
}

/* U+017F, the long s, equals s if case is ignored. */
static bool is_letter(int32_t c, char letter, bool any_case)
{
    if (any_case && c < 0x80)
        c |= 0x20;
    return c == letter || (any_case && letter == 's' && c == 0x17F);
}

static size_t contraction(const text_char *c, size_t count, bool any_case)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (c[0].code != '\'')
        return 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i]);
        bool same = n < count;
        for (size_t k = 0; k < n && same; k++)
            same = is_letter(c[1 + k].code, ends[i][k], any_case);
        if (same)
            return n + 1;
    }
    return 0;
}

/* " ?X+", where X is a class. */
static size_t spaced_run(const text_char *c, size_t count, class wanted)
{
    const size_t space = c[0].code == ' ';
    const size_t n = run(c, space, count, wanted, count);
    return n ? space + n : 0;
}

/* "\s+(?!\S)|\s+": white space; if there are several characters and text follows, all but the
 * last. */
static size_t spaces(const text_char *c, size_t count)
{
    const size_t n = run(c, 0, count, SPACE, count);
    return n > 1 && n < count ? n - 1 : n;
}

static size_t split_gpt2(const text_char *c, size_t count)
{
    size_t n = contraction(c, count, false);
    for (class k = LETTER; k <= OTHER && !n; k++)
        n = spaced_run(c, count, k);
    return n ? n : spaces(c, count);
}

/* "\s*[\r\n]+": white space up to and with its last line end. */
static size_t lines(const text_char *c, size_t count)
{
    size_t n = run(c, 0, count, SPACE, count);
    while (n && !ends_line(c[n - 1].code))
        n--;
    return n;
}

static size_t split_llama3(const text_char *c, size_t count, size_t digits)
{
    size_t n = contraction(c, count, true);
    if (!n) { /* "[^\r\n\p{L}\p{N}]?\p{L}+" */
        const class first = class_of(c[0].code);
        const size_t before = first != LETTER && first != NUMBER && !ends_line(c[0].code);
        const size_t letters = run(c, before, count, LETTER, count);
        n = letters ? before + letters : 0;
    }
    if (!n)
        n = run(c, 0, count, NUMBER, digits);
    if (!n && (n = spaced_run(c, count, OTHER)) > 0)
        while (n < count && ends_line(c[n].code))
            n++;
    if (!n)
        n = lines(c, count);
    return n ? n : spaces(c, count);
}

size_t text_split(text_pattern pattern, const text_char *c, size_t count)
{
    size_t n = count;
    switch (pattern) {
    case TEXT_WHOLE: break;
    case TEXT_GPT2: n = split_gpt2(c, count); break;
    case TEXT_LLAMA3: n = split_llama3(c, count, 3); break;
    case TEXT_QWEN2: n = split_llama3(c, count, 1); break;
    }
    return n;
}
