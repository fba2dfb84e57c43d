/* BERT's clean-up, as its BasicTokenizer does it, character by character, so that each one still
 * knows where it came from (Devlin et al. 2018).
 *
 *   clean   control characters go, white space becomes a space
 *   cjk     a space on both sides of each ideograph
 *   strip   decomposed (NFD), and the marks that do not space go
 *   lower   lower case
 */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "tokenizer_inner.h"

bool text_is_space(int32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static bool is_control(int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    return c != '\t' && c != '\n' && c != '\r' &&
           (k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO);
}

static bool is_ideograph(int32_t c)
{
    static const int32_t range[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                       {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                       {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (c >= range[i][0] && c <= range[i][1])
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------- NFD */

static int combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Marks that follow each other stand in the order of their class: counted, so that a text of
 * nothing but marks takes no longer than any other. */
static int order_marks(text_char *mark, size_t count, kit_error *err)
{
    size_t start[257] = {0};
    text_char *sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        return kit_fail(err, KIT_LIMIT, "not enough memory");
    for (size_t i = 0; i < count; i++)
        start[combining_class(mark[i].code) + 1]++;
    for (int i = 1; i < 257; i++)
        start[i] += start[i - 1];
    for (size_t i = 0; i < count; i++)
        sorted[start[combining_class(mark[i].code)]++] = mark[i];
    memcpy(mark, sorted, count * sizeof *sorted);
    free(sorted);
    return KIT_OK;
}

static int decompose(text_chars *out, const text_char *in, size_t count, kit_error *err)
{
    enum { LONGEST = 8 };
    utf8proc_int32_t code[LONGEST];
    int code_of = KIT_OK;
    for (size_t i = 0; i < count && !code_of; i++) {
        int boundary = 0;
        const utf8proc_ssize_t n =
            utf8proc_decompose_char(in[i].code, code, LONGEST, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE,
                                    &boundary);
        if (n < 1 || n > LONGEST) { /* what it does not know stays */
            code_of = text_chars_add(out, in[i], err);
            continue;
        }
        for (utf8proc_ssize_t k = 0; k < n && !code_of; k++)
            code_of = text_chars_add(out, (text_char){code[k], in[i].begin, in[i].end}, err);
    }
    for (size_t i = 0; i < out->count && !code_of;) {
        size_t end = i;
        while (end < out->count && combining_class(out->at[end].code))
            end++;
        if (end > i + 1)
            code_of = order_marks(out->at + i, end - i, err);
        i = end + (end == i);
    }
    return code_of;
}

/* -------------------------------------------------------------------------------- The steps */

static int clean_up(text_chars *out, const text_normalizer *n, const text_char *in, size_t count,
                    kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < count && !code; i++) {
        text_char c = in[i];
        if (n->clean && (c.code == 0 || c.code == 0xFFFD || is_control(c.code)))
            continue;
        if (n->clean && text_is_space(c.code))
            c.code = ' ';
        const bool apart = n->cjk && is_ideograph(c.code);
        if (apart)
            code = text_chars_add(out, (text_char){' ', c.begin, c.begin}, err);
        if (!code)
            code = text_chars_add(out, c, err);
        if (!code && apart)
            code = text_chars_add(out, (text_char){' ', c.end, c.end}, err);
    }
    return code;
}

/* One character's lower case is two: I with a dot. */
static int add_lower(text_chars *out, text_char c, kit_error *err)
{
    enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307 };
    const text_char lower = {c.code == DOTTED_I ? 'i' : utf8proc_tolower(c.code), c.begin, c.end};
    const int code = text_chars_add(out, lower, err);
    if (code || c.code != DOTTED_I)
        return code;
    return text_chars_add(out, (text_char){DOT_ABOVE, c.begin, c.end}, err);
}

int text_normalize(text_chars *out, const text_normalizer *n, const text_char *in, size_t count,
                   kit_error *err)
{
    text_chars cleaned = {0}, apart = {0};
    int code = clean_up(&cleaned, n, in, count, err);
    const text_chars *now = &cleaned;
    if (!code && n->strip) {
        code = decompose(&apart, cleaned.at, cleaned.count, err);
        now = &apart;
    }
    for (size_t i = 0; !code && i < now->count; i++) {
        const text_char c = now->at[i];
        if (n->strip && utf8proc_category(c.code) == UTF8PROC_CATEGORY_MN)
            continue;
        code = n->lower ? add_lower(out, c, err) : text_chars_add(out, c, err);
    }
    free(cleaned.at);
    free(apart.at);
    return code;
}
