/* Byte-level pair encoding, as GPT-2 has it: a piece is its bytes, and the pair that was merged
 * first in training is merged first (Sennrich et al. 2016, Radford et al. 2019).
 *
 * The next pair comes from a heap, by rank and then by place, so that a piece of n bytes takes
 * n log n steps. In files a byte is written as a printable character: itself where it is one, else
 * one from U+0100 on, in order.
 */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "tokenizer_inner.h"

/* ---------------------------------------------------------------------------- Byte alphabet */

static bool prints(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The byte that a character stands for, or -1. */
static int byte_of(int32_t c)
{
    if (c < 0x100)
        return c >= 0 && prints(c) ? c : -1;
    int32_t next = 0x100;
    for (int b = 0; b < 0x100; b++)
        if (!prints(b) && next++ == c)
            return b;
    return -1;
}

bool text_bytes_of(char *out, size_t *out_length, const char *token, size_t length)
{
    *out_length = 0;
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)token + at,
                                                    (utf8proc_ssize_t)(length - at), &c);
        const int byte = n > 0 ? byte_of(c) : -1;
        if (byte < 0)
            return false;
        out[(*out_length)++] = (char)byte;
        at += (size_t)n;
    }
    return true;
}

/* ---------------------------------------------------------------------------------- Reading */

int text_bpe_add(kit_tokenizer *t, const char *token, size_t length, int64_t id, const char *name,
                 kit_error *err)
{
    size_t size;
    char *bytes = malloc(length + 1);
    if (!bytes)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    /* What is not written in the alphabet is no bytes: only an added token can be it. */
    const bool plain = length > 0 && text_bytes_of(bytes, &size, token, length);
    const int code = plain
                         ? text_vocabulary_add(&t->vocabulary, bytes, size, id, false, name, err)
                         : text_vocabulary_add(&t->vocabulary, token, length, id, true, name, err);
    free(bytes);
    return code;
}

static int64_t find_token(const kit_tokenizer *t, const char *token, size_t length, char *bytes,
                          size_t *size)
{
    if (!length || !text_bytes_of(bytes, size, token, length))
        return -1;
    return text_vocabulary_find(&t->vocabulary, bytes, *size);
}

int text_bpe_merge(kit_tokenizer *t, const char *a, size_t a_length, const char *b, size_t b_length,
                   const char *name, kit_error *err)
{
    char *bytes = malloc(a_length + b_length + 2);
    if (!bytes)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    size_t first = 0, second = 0;
    const int64_t left = find_token(t, a, a_length, bytes, &first);
    const int64_t right = left < 0 ? -1 : find_token(t, b, b_length, bytes + first, &second);
    const int64_t made =
        right < 0 ? -1 : text_vocabulary_find(&t->vocabulary, bytes, first + second);
    free(bytes);
    if (made < 0)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: merge %u, '%.40s' '%.40s': the vocabulary has not both and their sum",
                        name, t->merges.count + 1, a, b);
    return text_merges_add(&t->merges, left, right, made, name, err);
}

void text_bpe_finish(kit_tokenizer *t)
{
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = text_vocabulary_find(&t->vocabulary, &(char){(char)b}, 1);
}

/* ---------------------------------------------------------------------------------- Merging */

/* The symbols of a piece, linked: symbol i begins at byte i; length 0: it was merged away. */
typedef struct symbol {
    uint32_t id, length, before, after; /* after: the next one; `count` past the end */
} symbol;

typedef struct candidate { /* a pair that may be merged */
    uint32_t rank, at, made;
} candidate;

typedef struct merging {
    const kit_tokenizer *t;
    symbol *s;
    uint32_t count;
    candidate *heap;
    size_t size; /* at most 2 * count: each merge puts two in and takes one out */
} merging;

static bool is_before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(merging *m, candidate c)
{
    size_t i = m->size++;
    for (; i > 0 && is_before(&c, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = c;
}

static candidate heap_pop(merging *m)
{
    const candidate top = m->heap[0], last = m->heap[--m->size];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < m->size; i = child) {
        child += child + 1 < m->size && is_before(&m->heap[child + 1], &m->heap[child]);
        if (!is_before(&m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return top;
}

/* The pair of symbol `at` and the one after it, if it can be merged. */
static void consider(merging *m, uint32_t at)
{
    const symbol *s = &m->s[at];
    if (s->after >= m->count)
        return;
    const text_merge *merge = text_merges_find(&m->t->merges, s->id, m->s[s->after].id);
    if (merge)
        heap_push(m, (candidate){merge->rank, at, merge->made});
}

/* Is what stands there now still merged into the same token? */
static bool is_current(const merging *m, const candidate *c)
{
    const symbol *a = &m->s[c->at];
    if (!a->length || a->after >= m->count)
        return false;
    const text_merge *merge = text_merges_find(&m->t->merges, a->id, m->s[a->after].id);
    return merge && merge->made == c->made;
}

static void merge_all(merging *m)
{
    for (uint32_t i = 0; i + 1 < m->count; i++)
        consider(m, i);
    while (m->size) {
        const candidate c = heap_pop(m);
        if (!is_current(m, &c))
            continue;
        symbol *a = &m->s[c.at], *b = &m->s[a->after];
        a->id = c.made;
        a->length += b->length;
        a->after = b->after;
        b->length = 0;
        if (a->after < m->count)
            m->s[a->after].before = c.at;
        if (c.at > 0)
            consider(m, a->before);
        consider(m, c.at);
    }
}

/* ---------------------------------------------------------------------------------- A piece */

/* `size` bytes, of which the first `extra` are not in the text; the rest begins at `begin`. */
static int encode_bytes(kit_tokens *out, const kit_tokenizer *t, const char *bytes, uint32_t size,
                        uint32_t extra, size_t begin, kit_error *err)
{
    const int64_t whole = t->whole_words ? text_vocabulary_find(&t->vocabulary, bytes, size) : -1;
    if (whole >= 0)
        return text_tokens_add(out, whole, begin, begin + size - extra, err);
    merging m = {.t = t, .count = size};
    m.s = malloc(size * sizeof *m.s);
    m.heap = malloc(2 * (size_t)size * sizeof *m.heap);
    int code = m.s && m.heap ? KIT_OK : kit_fail(err, KIT_LIMIT, "not enough memory");
    for (uint32_t i = 0; i < size && !code; i++) {
        const int64_t id = t->byte_id[(unsigned char)bytes[i]];
        if (id < 0)
            code = kit_fail(err, KIT_USAGE, "the vocabulary has no token for the byte 0x%02x",
                            (unsigned)(unsigned char)bytes[i]);
        m.s[i] = (symbol){(uint32_t)id, 1, i ? i - 1 : 0, i + 1};
    }
    if (!code)
        merge_all(&m);
    for (uint32_t i = 0; i < size && !code; i = m.s[i].after) {
        const size_t from = i > extra ? i - extra : 0, to = i + m.s[i].length;
        code = text_tokens_add(out, m.s[i].id, begin + from, begin + (to > extra ? to - extra : 0),
                               err);
    }
    free(m.s);
    free(m.heap);
    return code;
}

/* The same with a space in front that the text has not. */
static int encode_spaced(kit_tokens *out, const kit_tokenizer *t, const char *bytes, uint32_t size,
                         size_t begin, kit_error *err)
{
    char *spaced = malloc((size_t)size + 1);
    if (!spaced)
        return kit_fail(err, KIT_LIMIT, "not enough memory");
    spaced[0] = ' ';
    memcpy(spaced + 1, bytes, size);
    const int code = encode_bytes(out, t, spaced, size + 1, 1, begin, err);
    free(spaced);
    return code;
}

static int encode_pieces(kit_tokens *out, const kit_tokenizer *t, const char *text,
                         const text_char *chars, size_t count, bool spaced, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0, n = 0; i < count && !code; i += n, spaced = false) {
        n = text_split(t->pattern, chars + i, count - i);
        const size_t begin = chars[i].begin;
        const uint32_t size = chars[i + n - 1].end - chars[i].begin;
        code = spaced ? encode_spaced(out, t, text + begin, size, begin, err)
                      : encode_bytes(out, t, text + begin, size, 0, begin, err);
    }
    return code;
}

int text_bpe_encode(kit_tokens *out, const kit_tokenizer *t, const char *text,
                    const text_char *chars, size_t count, kit_error *err)
{
    if (!count || !t->prefix_space || chars[0].code == ' ')
        return encode_pieces(out, t, text, chars, count, false, err);
    text_chars spaced = {0};
    int code = text_chars_add(&spaced, (text_char){' ', chars[0].begin, chars[0].begin}, err);
    for (size_t i = 0; i < count && !code; i++)
        code = text_chars_add(&spaced, chars[i], err);
    if (!code)
        code = encode_pieces(out, t, text, spaced.at, spaced.count, true, err);
    free(spaced.at);
    return code;
}
