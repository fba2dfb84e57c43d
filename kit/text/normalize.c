/* Steps that change a text before it is split. They work on characters, and each character keeps
 * the part of the source that it came from.
 *
 * Unicode's normal forms (UAX 15): every character is decomposed as far as possible, successive
 * marks are sorted by their combining class, and for NFC and NFKC characters are composed again.
 * BERT's clean-up, as its BasicTokenizer does it (Devlin et al. 2018):
 *
 *   clean   removes control characters; white space becomes a space
 *   cjk     puts a space on both sides of each ideograph
 *   strip   decomposes (NFD) and removes non-spacing marks
 *   lower   converts to lower case
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

/* ----------------------------------------------------------------------------------- Forms */

static int combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Sorts successive marks by their combining class. A counting sort, so that a text of nothing but
 * marks takes no longer than any other. */
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

static int decompose(text_chars *out, const text_char *in, size_t count, bool compatible,
                     kit_error *err)
{
    enum { LONGEST = 32 }; /* the longest decomposition has 18 */
    const utf8proc_option_t how =
        UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0);
    utf8proc_int32_t code[LONGEST];
    int code_of = KIT_OK;
    for (size_t i = 0; i < count && !code_of; i++) {
        int boundary = 0;
        const utf8proc_ssize_t n =
            utf8proc_decompose_char(in[i].code, code, LONGEST, how, &boundary);
        if (n < 1 || n > LONGEST) { /* unknown to utf8proc: kept */
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

/* Returns the character that two others compose to, or -1. */
static int32_t composed(int32_t first, int32_t second)
{
    enum { FIRST_MARK = 0x300, NO_FINAL = 0x11A7 };
    utf8proc_int32_t pair[2] = {first, second};
    /* No character below the first mark composes with the one before it. utf8proc 2.8 takes U+11A7,
     * the character before the first Hangul final consonant, for a final consonant. */
    if (second < FIRST_MARK || second == NO_FINAL)
        return -1;
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1 ? pair[0]
                                                                                      : -1;
}

/* Composes in place. A character composes with the last one of class 0 unless a character between
 * them has the same or a higher class. */
static void compose(text_chars *c)
{
    text_char *starter = NULL;
    size_t used = 0;
    int between = -1; /* class of the last character between them */
    for (size_t i = 0; i < c->count; i++) {
        const text_char now = c->at[i];
        const int class = combining_class(now.code);
        const int32_t made = starter && between < class ? composed(starter->code, now.code) : -1;
        if (made >= 0) {
            starter->code = made;
            starter->begin = now.begin < starter->begin ? now.begin : starter->begin;
            starter->end = now.end > starter->end ? now.end : starter->end;
            continue;
        }
        c->at[used] = now;
        starter = class ? starter : &c->at[used];
        between = class ? class : -1;
        used++;
    }
    c->count = used;
}

/* ------------------------------------------------------------------------------------ BERT's */

static int clean_up(text_chars *out, const text_step *s, const text_char *in, size_t count,
                    kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < count && !code; i++) {
        text_char c = in[i];
        if (s->clean && (c.code == 0 || c.code == 0xFFFD || is_control(c.code)))
            continue;
        if (s->clean && text_is_space(c.code))
            c.code = ' ';
        const bool apart = s->cjk && is_ideograph(c.code);
        if (apart)
            code = text_chars_add(out, (text_char){' ', c.begin, c.begin}, err);
        if (!code)
            code = text_chars_add(out, c, err);
        if (!code && apart)
            code = text_chars_add(out, (text_char){' ', c.end, c.end}, err);
    }
    return code;
}

/* U+0130, I with a dot, is the only character whose lower case is two characters. */
static int add_lower(text_chars *out, text_char c, kit_error *err)
{
    enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307 };
    const text_char lower = {c.code == DOTTED_I ? 'i' : utf8proc_tolower(c.code), c.begin, c.end};
    const int code = text_chars_add(out, lower, err);
    if (code || c.code != DOTTED_I)
        return code;
    return text_chars_add(out, (text_char){DOT_ABOVE, c.begin, c.end}, err);
}

/* Removes marks (non-spacing ones or all), or converts to lower case, or both. */
typedef enum marks { KEEP_MARKS, STRIP_NONSPACING, STRIP_MARKS } marks;

static bool goes(marks which, int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    return (which != KEEP_MARKS && k == UTF8PROC_CATEGORY_MN) ||
           (which == STRIP_MARKS && (k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME));
}

static int strip_and_lower(text_chars *out, marks which, bool lower, const text_char *in,
                           size_t count, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; !code && i < count; i++) {
        if (goes(which, in[i].code))
            continue;
        code = lower ? add_lower(out, in[i], err) : text_chars_add(out, in[i], err);
    }
    return code;
}

static int do_bert(text_chars *out, const text_step *s, const text_char *in, size_t count,
                   kit_error *err)
{
    text_chars cleaned = {0}, apart = {0};
    int code = clean_up(&cleaned, s, in, count, err);
    const text_chars *now = &cleaned;
    if (!code && s->strip) {
        code = decompose(&apart, cleaned.at, cleaned.count, false, err);
        now = &apart;
    }
    if (!code)
        code = strip_and_lower(out, s->strip ? STRIP_NONSPACING : KEEP_MARKS, s->lower, now->at,
                               now->count, err);
    free(cleaned.at);
    free(apart.at);
    return code;
}

/* ------------------------------------------------------------------------------ Other steps */

static int add_all(text_chars *out, const text_char *c, size_t count, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < count && !code; i++)
        code = text_chars_add(out, c[i], err);
    return code;
}

/* Adds new text that stands for the source bytes from `begin` to `end`. */
static int add_new(text_chars *out, const text_chars *c, uint32_t begin, uint32_t end,
                   kit_error *err)
{
    enum { MOST = 1 << 24 }; /* repeated steps could double a text each time */
    int code = KIT_OK;
    if (out->count + c->count > MOST)
        return kit_fail(err, KIT_LIMIT, "the normalizer makes the text longer than %d characters",
                        (int)MOST);
    for (size_t i = 0; i < c->count && !code; i++)
        code = text_chars_add(out, (text_char){c->at[i].code, begin, end}, err);
    return code;
}

static bool stands_at(const text_chars *what, const text_char *c, size_t count)
{
    bool same = what->count <= count;
    for (size_t i = 0; same && i < what->count; i++)
        same = what->at[i].code == c[i].code;
    return same;
}

static int do_replace(text_chars *out, const text_step *s, const text_char *in, size_t count,
                      kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < count && !code;) {
        if (!stands_at(&s->from, in + i, count - i)) {
            code = text_chars_add(out, in[i++], err);
            continue;
        }
        code = add_new(out, &s->to, in[i].begin, in[i + s->from.count - 1].end, err);
        i += s->from.count;
    }
    return code;
}

static int do_strip(text_chars *out, const text_step *s, const text_char *in, size_t count,
                    kit_error *err)
{
    size_t from = 0;
    while (s->left && from < count && text_is_space(in[from].code))
        from++;
    while (s->right && count > from && text_is_space(in[count - 1].code))
        count--;
    return add_all(out, in + from, count - from, err);
}

static int do_step(text_chars *out, const text_step *s, const text_char *in, size_t count,
                   kit_error *err)
{
    int code = KIT_OK;
    if (!count)
        return KIT_OK; /* an empty text stays empty */
    switch (s->kind) {
    case TEXT_BERT: return do_bert(out, s, in, count, err);
    case TEXT_FORM:
        code = decompose(out, in, count, s->compatible, err);
        if (!code && s->compose)
            compose(out);
        return code;
    case TEXT_LOWER: return strip_and_lower(out, KEEP_MARKS, true, in, count, err);
    case TEXT_STRIP_ACCENTS: return strip_and_lower(out, STRIP_MARKS, false, in, count, err);
    case TEXT_STRIP: return do_strip(out, s, in, count, err);
    case TEXT_PREPEND:
        code = add_new(out, &s->to, in[0].begin, in[0].begin, err);
        return code ? code : add_all(out, in, count, err);
    case TEXT_REPLACE: break;
    }
    return do_replace(out, s, in, count, err);
}

int text_normalize(text_chars *out, const text_normalizer *n, const text_char *in, size_t count,
                   kit_error *err)
{
    text_chars before = {0};
    int code = KIT_OK;
    if (!n->count)
        return add_all(out, in, count, err);
    for (int i = 0; i < n->count && !code; i++) {
        text_chars *to = i == n->count - 1 ? out : &(text_chars){0};
        code = do_step(to, &n->step[i], i ? before.at : in, i ? before.count : count, err);
        free(before.at);
        before = to == out ? (text_chars){0} : *to;
    }
    free(before.at);
    return code;
}

void text_normalizer_free(text_normalizer *n)
{
    for (int i = 0; i < n->count; i++) {
        free(n->step[i].from.at);
        free(n->step[i].to.at);
    }
    n->count = 0;
}
