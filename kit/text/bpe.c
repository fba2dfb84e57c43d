/* Byte-level pair encoding, as in GPT-2: a piece is its bytes, and pairs are merged in the order in
 * which training merged them (Sennrich et al. 2016, Radford et al. 2019).
 *
 * A heap gives the next pair, by rank and then by place, so a piece of n bytes takes n log n steps.
 * In files each byte is written as a printable character: itself if it is printable, otherwise the
 * next character from U+0100 on, in order.
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

/* Returns the byte that a character stands for, or -1. The bytes that are not printable are 0x00 to
 * 0x20, 0x7F to 0xA0 and 0xAD. */
static int byte_of(int32_t c)
{
    if (c < 0x100)
        return c >= 0 && prints(c) ? c : -1;
    const int32_t nth = c - 0x100;
    return nth < 0x21 ? nth : nth < 0x43 ? 0x7F + nth - 0x21 : nth == 0x43 ? 0xAD : -1;
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

/* ------------------------------------------------------------------------------- Characters */

/* SentencePiece's BPE, as in Llama 2 (Kudo and Richardson 2018): the spaces of a text become
 * U+2581, pieces are characters, and a character that is not in the vocabulary is encoded as its
 * bytes, "<0x0A>". This code turns U+2581 back into a space, in the vocabulary and in the text. */
enum { SPACE_MARK = 0x2581 };

bool text_piece_of(char *out, size_t *out_length, const kit_tokenizer *t, const char *token,
                   size_t length)
{
    static const char mark[] = "\xE2\x96\x81";
    if (!t->characters)
        return text_bytes_of(out, out_length, token, length);
    *out_length = 0;
    if (memchr(token, ' ', length))
        return false;
    for (size_t at = 0; at < length;) {
        const bool space = length - at >= 3 && memcmp(token + at, mark, 3) == 0;
        out[(*out_length)++] = space ? ' ' : token[at];
        at += space ? 3 : 1;
    }
    return true;
}

int text_byte_token(const char *token, size_t length)
{
    static const char digits[] = "0123456789ABCDEF";
    if (length != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    const char *high = memchr(digits, token[3], 16), *low = memchr(digits, token[4], 16);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

/* ---------------------------------------------------------------------------------- Reading */

int text_bpe_add(kit_tokenizer *t, const char *token, size_t length, int64_t id, const char *name,
                 kit_error *err)
{
    size_t size;
    const int byte = t->characters ? text_byte_token(token, length) : -1;
    if (byte >= 0) {
        t->byte_id[byte] = id;
        return text_vocabulary_add(&t->vocabulary, &(char){(char)byte}, 1, id, TEXT_BY_ID, name,
                                   err);
    }
    char *bytes = malloc(length + 1);
    if (!bytes)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    /* A string with characters outside the byte alphabet stands for no bytes; only an added token
     * can have it. */
    const bool plain = length > 0 && text_piece_of(bytes, &size, t, token, length);
    const int code =
        plain ? text_vocabulary_add(&t->vocabulary, bytes, size, id, TEXT_BY_BYTES, name, err)
              : text_vocabulary_add(&t->vocabulary, token, length, id, TEXT_BY_NAME, name, err);
    free(bytes);
    return code;
}

static int64_t find_token(const kit_tokenizer *t, const char *token, size_t length, char *bytes,
                          size_t *size)
{
    if (!length || !text_piece_of(bytes, size, t, token, length))
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
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: merge %u, '%.*s' '%.*s': the vocabulary must have both tokens and their "
            "concatenation",
            name, t->merges.count + 1, a_length < 40 ? (int)a_length : 40, a,
            b_length < 40 ? (int)b_length : 40, b);
    return text_merges_add(&t->merges, left, right, made, name, err);
}

int text_bpe_finish(kit_tokenizer *t, const char *name, kit_error *err)
{
    for (int b = 0; b < 256; b++) {
        if (!t->characters)
            t->byte_id[b] = text_vocabulary_find(&t->vocabulary, &(char){(char)b}, 1);
        else if (t->byte_id[b] < 0)
            return kit_fail(err, KIT_BAD_FILE, "%s: byte_fallback needs the token <0x%02X>", name,
                            (unsigned)b);
    }
    return KIT_OK;
}

/* ---------------------------------------------------------------------------------- Merging */

/* The symbols of a piece, as a linked list. Symbol i begins at byte i; length 0: merged away. */
typedef struct symbol {
    uint32_t id, length, before, after; /* after: index of the next symbol; `count` at the end */
} symbol;

typedef struct candidate { /* a pair that may be merged */
    uint32_t rank, at, made;
} candidate;

typedef struct merging {
    const kit_tokenizer *t;
    symbol *s;
    uint32_t count;
    candidate *heap;
    size_t size; /* at most 2 * count: each merge adds two and removes one */
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

/* Adds the pair of symbol `at` and the one after it to the heap, if it can be merged. */
static void consider(merging *m, uint32_t at)
{
    const symbol *s = &m->s[at];
    if (!s->length || s->after >= m->count)
        return;
    const text_merge *merge = text_merges_find(&m->t->merges, s->id, m->s[s->after].id);
    if (merge)
        heap_push(m, (candidate){merge->rank, at, merge->made});
}

/* Whether the pair at this place still merges into the same token. */
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

/* The bytes of all characters, and the part of the source that each byte came from. If a character
 * is unchanged from the source, each of its bytes came from one source byte. Otherwise each of its
 * bytes came from the whole source range of the character. */
typedef struct flat {
    char *bytes;
    struct place {
        uint32_t begin, end;
    } * place;
    uint32_t size;
} flat;

static void flat_free(flat *f)
{
    free(f->bytes);
    free(f->place);
}

static uint32_t utf8_length(int32_t c)
{
    return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

static uint32_t bytes_of(const kit_tokenizer *t, int32_t c)
{
    return t->characters && c == SPACE_MARK ? 1 : utf8_length(c);
}

static int flat_make(flat *f, const kit_tokenizer *t, const text_char *c, size_t count,
                     kit_error *err)
{
    size_t size = 0;
    *f = (flat){0};
    for (size_t i = 0; i < count; i++)
        size += bytes_of(t, c[i].code);
    if (size >= UINT32_MAX)
        return kit_fail(err, KIT_LIMIT, "the text becomes longer than 4 GiB");
    f->bytes = malloc(size + 1);
    f->place = malloc((size + 1) * sizeof *f->place);
    if (!f->bytes || !f->place) {
        flat_free(f);
        return kit_fail(err, KIT_LIMIT, "not enough memory");
    }
    for (size_t i = 0; i < count; i++) {
        const int32_t code = t->characters && c[i].code == SPACE_MARK ? ' ' : c[i].code;
        const uint32_t n =
            (uint32_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)f->bytes + f->size);
        const bool plain = c[i].end - c[i].begin == n;
        for (uint32_t k = 0; k < n; k++)
            f->place[f->size++] = plain ? (struct place){c[i].begin + k, c[i].begin + k + 1}
                                        : (struct place){c[i].begin, c[i].end};
    }
    return KIT_OK;
}

static int add_token(kit_tokens *out, int64_t id, const struct place *place, uint32_t size,
                     kit_error *err)
{
    uint32_t begin = place[0].begin, end = place[0].end;
    for (uint32_t i = 1; i < size; i++) {
        begin = place[i].begin < begin ? place[i].begin : begin;
        end = place[i].end > end ? place[i].end : end;
    }
    return text_tokens_add(out, id, begin, end, err);
}

/* Returns the number of bytes of the character that begins here. */
static uint32_t character_length(const char *bytes, uint32_t left)
{
    const unsigned char first = (unsigned char)*bytes;
    const uint32_t n = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    return n < left ? n : left;
}

/* Returns the number of successive bytes for which the vocabulary has no token. */
static uint32_t unknown_run(const kit_tokenizer *t, const char *bytes, uint32_t left)
{
    uint32_t n = 0;
    while (n < left && t->byte_id[(unsigned char)bytes[n]] < 0)
        n++;
    return n;
}

/* Makes the symbols with which merging begins. A character in the vocabulary is one symbol.
 * Otherwise its bytes are symbols; bytes without a token become the unknown token, one for each
 * byte or one for a run of them. */
static int put_symbols(merging *m, const char *bytes, kit_error *err)
{
    const kit_tokenizer *t = m->t;
    uint32_t before = 0;
    memset(m->s, 0, m->count * sizeof *m->s);
    for (uint32_t i = 0, rest = 0, n; i < m->count; before = i, i += n) {
        int64_t id = -1;
        n = t->characters && !rest ? character_length(bytes + i, m->count - i) : 1;
        if (t->characters && !rest) /* not inside a character taken byte by byte */
            id = text_vocabulary_find(&t->vocabulary, bytes + i, n);
        if (id < 0) {
            rest = rest ? rest - 1 : n - 1;
            n = 1;
            id = t->byte_id[(unsigned char)bytes[i]];
        }
        if (id < 0 && t->unknown < 0)
            return kit_fail(err, KIT_USAGE, "the vocabulary has no token for the byte 0x%02x",
                            (unsigned)(unsigned char)bytes[i]);
        if (id < 0 && t->fuse_unknown)
            n = unknown_run(t, bytes + i, m->count - i);
        m->s[i] = (symbol){(uint32_t)(id < 0 ? t->unknown : id), n, before, i + n};
    }
    return KIT_OK;
}

static int encode_bytes(kit_tokens *out, const kit_tokenizer *t, const char *bytes,
                        const struct place *place, uint32_t size, kit_error *err)
{
    const int64_t whole = t->whole_words ? text_vocabulary_find(&t->vocabulary, bytes, size) : -1;
    if (whole >= 0)
        return add_token(out, whole, place, size, err);
    merging m = {.t = t, .count = size};
    m.s = malloc(size * sizeof *m.s);
    m.heap = malloc(2 * (size_t)size * sizeof *m.heap);
    int code =
        m.s && m.heap ? put_symbols(&m, bytes, err) : kit_fail(err, KIT_LIMIT, "not enough memory");
    if (!code)
        merge_all(&m);
    for (uint32_t i = 0; i < size && !code; i = m.s[i].after)
        code = add_token(out, m.s[i].id, place + i, m.s[i].length, err);
    free(m.s);
    free(m.heap);
    return code;
}

static int encode_pieces(kit_tokens *out, const kit_tokenizer *t, const text_char *chars,
                         size_t count, kit_error *err)
{
    flat f;
    int code = flat_make(&f, t, chars, count, err);
    if (code)
        return code;
    uint32_t at = 0;
    for (size_t i = 0, n = 0; i < count && !code; i += n) {
        uint32_t size = 0;
        n = text_split(t->pattern, chars + i, count - i);
        for (size_t k = 0; k < n; k++)
            size += bytes_of(t, chars[i + k].code);
        code = encode_bytes(out, t, f.bytes + at, f.place + at, size, err);
        at += size;
    }
    flat_free(&f);
    return code;
}

int text_bpe_encode(kit_tokens *out, const kit_tokenizer *t, const text_char *chars, size_t count,
                    kit_error *err)
{
    if (!count || !t->prefix_space || chars[0].code == ' ')
        return encode_pieces(out, t, chars, count, err);
    text_chars spaced = {0}; /* the text with a space added in front */
    int code = text_chars_add(&spaced, (text_char){' ', chars[0].begin, chars[0].begin}, err);
    for (size_t i = 0; i < count && !code; i++)
        code = text_chars_add(&spaced, chars[i], err);
    if (!code)
        code = encode_pieces(out, t, spaced.at, spaced.count, err);
    free(spaced.at);
    return code;
}
