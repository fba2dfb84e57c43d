/* Parses the header of a .npy: the text of a Python dictionary, such as
 *
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 *
 * The parser accepts only what NumPy writes: exactly these keys, each once, in any order; no
 * expressions; only spaces and the final newline after the dictionary. NumPy reads every accepted
 * header with the same meaning. To add an element type: add a row to `elements`, and its conversion
 * to npy.c.
 */
#include "io.h"

#include <stdio.h>
#include <string.h>

static const io_element elements[] = {
    {'f', 8, ATTN_F64, "float64"}, {'f', 4, ATTN_F32, "float32"}, {'f', 2, ATTN_F16, "float16"},
    {'b', 1, ATTN_BOOL, "bool"},   {'i', 1, ATTN_I64, "int8"},    {'i', 2, ATTN_I64, "int16"},
    {'i', 4, ATTN_I64, "int32"},   {'i', 8, ATTN_I64, "int64"},   {'u', 1, ATTN_I64, "uint8"},
    {'u', 2, ATTN_I64, "uint16"},  {'u', 4, ATTN_I64, "uint32"},  {'u', 8, ATTN_I64, "uint64"},
};

typedef struct parser {
    const char *text, *at, *end;
    const char *name;
    kit_error *err;
} parser;

typedef struct span {
    const char *at;
    size_t size;
} span;

static int expected(const parser *p, const char *what)
{
    return kit_fail(p->err, KIT_BAD_FILE, "%s: header, byte %zu: expected %s", p->name,
                    (size_t)(p->at - p->text), what);
}

static void skip_spaces(parser *p)
{
    while (p->at < p->end && *p->at == ' ')
        p->at++;
}

static bool take(parser *p, char c)
{
    skip_spaces(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word)
{
    skip_spaces(p);
    const size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* A quoted string without escapes. */
static bool take_string(parser *p, span *s)
{
    skip_spaces(p);
    if (p->at == p->end || (*p->at != '\'' && *p->at != '"'))
        return false;
    const char quote = *p->at;
    const char *c = p->at + 1;
    while (c < p->end && *c != quote && *c != '\\' && *c >= ' ' && *c < 0x7F)
        c++;
    if (c == p->end || *c != quote)
        return false;
    *s = (span){p->at + 1, (size_t)(c - p->at - 1)};
    p->at = c + 1;
    return true;
}

static bool span_is(span s, const char *text)
{
    return s.size == strlen(text) && memcmp(s.at, text, s.size) == 0;
}

/* ------------------------------------------------------------------------------ The values */

static int unsupported(const parser *p, span descr)
{
    const int shown = descr.size < 40 ? (int)descr.size : 40;
    return kit_fail(p->err, KIT_BAD_FILE,
                    "%s: unsupported dtype %.*s%s; supported are bool, int8 to int64, uint8 to "
                    "uint64, float16, float32 and float64",
                    p->name, shown, descr.at, descr.size > 40 ? "..." : "");
}

static int parse_descr(parser *p, io_npy *h)
{
    skip_spaces(p);
    const span rest = {p->at, (size_t)(p->end - p->at)};
    span s;
    if (rest.size && (*rest.at == '[' || *rest.at == '(')) /* structured type or sub-array */
        return unsupported(p, rest);
    if (!take_string(p, &s))
        return expected(p, "a dtype such as '<f4'");
    if (span_is(s, "?"))
        s = (span){"|b1", 3};
    if (s.size == 3 && strchr("<>|", s.at[0])) {
        for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++) {
            const io_element *e = &elements[i];
            if (s.at[1] != e->kind || s.at[2] != '0' + (char)e->size)
                continue;
            if (s.at[0] == '|' && e->size > 1) /* no byte order given */
                break;
            const bool big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
            h->element = e;
            h->swap = e->size > 1 && (s.at[0] == '>') != big;
            return KIT_OK;
        }
    }
    return unsupported(p, s.size ? s : (span){"''", 2});
}

static int parse_order(parser *p, io_npy *h)
{
    h->fortran = take_word(p, "True");
    if (!h->fortran && !take_word(p, "False"))
        return expected(p, "True or False");
    return KIT_OK;
}

static int parse_size(parser *p, int64_t *size)
{
    skip_spaces(p);
    if (p->at < p->end && *p->at == '-')
        return expected(p, "a size of at least 0");
    const char *first = p->at;
    int64_t n = 0;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p->at - '0', &n))
            return expected(p, "a size below 2^63");
    if (p->at == first || (*first == '0' && p->at - first > 1))
        return expected(p, "a size");
    *size = n;
    return KIT_OK;
}

/* Accepts "()", "(3,)", "(3, 4)" and "(3, 4,)". */
static int parse_shape(parser *p, io_npy *h)
{
    if (!take(p, '('))
        return expected(p, "a shape such as (3, 4)");
    h->rank = 0;
    while (!take(p, ')')) {
        if (h->rank == KIT_MAX_RANK)
            return kit_fail(p->err, KIT_BAD_FILE, "%s: more than %d dimensions", p->name,
                            KIT_MAX_RANK);
        const int code = parse_size(p, &h->shape[h->rank]);
        if (code)
            return code;
        h->rank++;
        if (take(p, ','))
            continue;
        if (h->rank == 1)
            return expected(p, "','");
        if (!take(p, ')'))
            return expected(p, "',' or ')'");
        break;
    }
    return KIT_OK;
}

/* -------------------------------------------------------------------------- The dictionary */

typedef struct key {
    const char *name;
    int (*parse)(parser *p, io_npy *h);
} key;
static const key keys[] = {{"descr", parse_descr},
                           {"fortran_order", parse_order},
                           {"shape", parse_shape}};
enum { KEYS = sizeof keys / sizeof keys[0] };

static int parse_entry(parser *p, io_npy *h, bool seen[KEYS])
{
    span s;
    if (!take_string(p, &s))
        return expected(p, "a key in quotes");
    int k = 0;
    while (k < KEYS && !span_is(s, keys[k].name))
        k++;
    if (k == KEYS)
        return kit_fail(p->err, KIT_BAD_FILE,
                        "%s: header: unknown key '%.*s'; the keys are descr, fortran_order, shape",
                        p->name, s.size < 40 ? (int)s.size : 40, s.at);
    if (seen[k])
        return kit_fail(p->err, KIT_BAD_FILE, "%s: header: '%s' appears twice", p->name,
                        keys[k].name);
    seen[k] = true;
    if (!take(p, ':'))
        return expected(p, "':'");
    return keys[k].parse(p, h);
}

int io_npy_parse_header(io_npy *h, const char *text, size_t size, const char *name, kit_error *err)
{
    parser p = {text, text, text + size, name, err};
    bool seen[KEYS] = {false};
    memset(h, 0, sizeof *h);

    if (!take(&p, '{'))
        return expected(&p, "'{'");
    while (!take(&p, '}')) {
        const int code = parse_entry(&p, h, seen);
        if (code)
            return code;
        if (take(&p, ','))
            continue;
        if (!take(&p, '}'))
            return expected(&p, "',' or '}'");
        break;
    }
    skip_spaces(&p);
    if (p.at < p.end && *p.at == '\n')
        p.at++;
    if (p.at < p.end)
        return expected(&p, "the end");
    for (int k = 0; k < KEYS; k++)
        if (!seen[k])
            return kit_fail(err, KIT_BAD_FILE, "%s: header: '%s' is missing", name, keys[k].name);

    char shape[IO_SHAPE_TEXT];
    if (!io_shape_size(h->rank, h->shape, h->element->size, &h->count, &h->bytes))
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: header says shape %s of %s, which is more bytes than this machine can address",
            name, io_shape_text(shape, h->rank, h->shape), h->element->name);
    return KIT_OK;
}
