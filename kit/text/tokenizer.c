/* Encodes a text into tokens: added tokens are found first, the text between them is normalised and
 * passed to the model, and the template adds its own tokens. See tokenizer.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "tokenizer_inner.h"

/* ------------------------------------------------------------------------- Making and freeing */

int text_tokenizer_new(kit_tokenizer **out, text_kind kind, const char *name, kit_error *err)
{
    kit_tokenizer *t = *out = calloc(1, sizeof *t);
    if (!t)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    t->kind = kind;
    t->unknown = -1;
    t->longest = 100;
    text_template_surround(t, -1, -1, false);
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    return KIT_OK;
}

void kit_tokenizer_free(kit_tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->added_count; i++)
        free(t->added[i].chars.at);
    free(t->added);
    text_vocabulary_free(&t->vocabulary);
    text_normalizer_free(&t->normalizer);
    free(t->prefix);
    free(t->merges.slot);
    free(t);
}

static void put_item(text_template *t, int64_t id, int which, int64_t type)
{
    t->item[t->count++] = (text_item){id, type, which};
}

void text_template_surround(kit_tokenizer *t, int64_t first, int64_t last, bool doubled)
{
    t->single.count = t->pair.count = 0;
    for (int pair = 0; pair < 2; pair++) {
        text_template *to = pair ? &t->pair : &t->single;
        if (first >= 0)
            put_item(to, first, -1, 0);
        put_item(to, 0, 0, 0);
        if (last >= 0)
            put_item(to, last, -1, 0);
        if (!pair)
            continue;
        if (doubled)
            put_item(to, last, -1, 0);
        put_item(to, 0, 1, !doubled);
        if (last >= 0)
            put_item(to, last, -1, !doubled);
    }
}

void text_template_each(kit_tokenizer *t, int64_t first, int64_t last)
{
    static const struct {
        bool pair;
        int text;
    } part[] = {{false, 0}, {true, 0}, {true, 1}};
    t->single.count = t->pair.count = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        text_template *to = part[i].pair ? &t->pair : &t->single;
        if (first >= 0)
            put_item(to, first, -1, part[i].text);
        put_item(to, 0, part[i].text, part[i].text);
        if (last >= 0)
            put_item(to, last, -1, part[i].text);
    }
}

int64_t kit_tokenizer_size(const kit_tokenizer *t) { return t->vocabulary.size; }

int kit_tokenizer_limit(kit_tokenizer *t, int64_t ids, const char *name, kit_error *err)
{
    t->limit = ids;
    return t->own_end <= ids
               ? KIT_OK
               : kit_fail(
                     err, KIT_BAD_FILE,
                     "%s: the tokeniser has ids up to %lld, but the model has only %lld tokens",
                     name, (long long)t->own_end - 1, (long long)ids);
}

const char *kit_tokenizer_bytes(const kit_tokenizer *t, int64_t id, size_t *length)
{
    if (id < 0 || id >= t->vocabulary.size || !t->vocabulary.entry[id].bytes)
        return NULL;
    *length = t->vocabulary.entry[id].length;
    return t->vocabulary.entry[id].bytes;
}

/* ------------------------------------------------------------------------ Words and letters */

int kit_tokenizer_of_words(kit_tokenizer **out, const char *const *word, size_t count, bool letters,
                           kit_error *err)
{
    int code = text_tokenizer_new(out, letters ? TEXT_LETTERS : TEXT_WORDS, "words", err);
    for (size_t i = 0; i < count && !code; i++)
        code = text_vocabulary_add(&(*out)->vocabulary, word[i], strlen(word[i]), (int64_t)i,
                                   TEXT_BY_BYTES, "words", err);
    if (!code)
        (*out)->own_end = (*out)->vocabulary.size;
    if (code) {
        kit_tokenizer_free(*out);
        *out = NULL;
    }
    return code;
}

static int encode_words(kit_tokens *out, const kit_tokenizer *t, const char *text,
                        const text_char *c, size_t count, kit_error *err)
{
    const bool letters = t->kind == TEXT_LETTERS;
    int code = KIT_OK;
    for (size_t i = 0, end = 0; i < count && !code; i = end) {
        end = i + 1;
        if (!letters && text_is_space(c[i].code))
            continue;
        while (!letters && end < count && !text_is_space(c[end].code))
            end++;
        const char *word = text + c[i].begin;
        const size_t size = c[end - 1].end - c[i].begin;
        const int64_t id = text_vocabulary_find(&t->vocabulary, word, size);
        code = id < 0 ? kit_fail(err, KIT_USAGE, "the model has no token for '%.*s'",
                                 size < 80 ? (int)size : 80, word)
                      : text_tokens_add(out, id, c[i].begin, c[end - 1].end, err);
    }
    return code;
}

/* --------------------------------------------------------------------------------- Encoding */

typedef struct encoding {
    kit_tokens *out;
    const kit_tokenizer *t;
    const char *text;
    kit_error *err;
} encoding;

/* Encodes characters that contain no added token. */
static int encode_plain(const encoding *e, const text_char *c, size_t count)
{
    switch (e->t->kind) {
    case TEXT_WORDPIECE: return text_wordpiece_encode(e->out, e->t, c, count, e->err);
    case TEXT_BPE: return text_bpe_encode(e->out, e->t, c, count, e->err);
    default: return encode_words(e->out, e->t, e->text, c, count, e->err);
    }
}

static int encode_part(const encoding *e, bool normalized, const text_char *c, size_t count);

/* Encodes the text between two added tokens. Tokens of the raw text are found first. The text
 * between those is normalised and then searched for the tokens that match normalised text. */
static int encode_between(const encoding *e, bool normalized, const text_char *c, size_t count)
{
    if (!count)
        return KIT_OK;
    if (normalized)
        return encode_plain(e, c, count);
    if (!e->t->normalizer.count)
        return encode_part(e, true, c, count);
    text_chars now = {0};
    int code = text_normalize(&now, &e->t->normalizer, c, count, e->err);
    if (!code)
        code = encode_part(e, true, now.at, now.count);
    free(now.at);
    return code;
}

/* A match that does not fit is skipped as a whole. After a match, the search continues behind the
 * token itself, not behind the white space that the token took. */
static int encode_part(const encoding *e, bool normalized, const text_char *c, size_t count)
{
    size_t done = 0;
    int code = KIT_OK;
    for (size_t i = 0, stop = 0; i < count && !code; i = stop) {
        const text_added *a = text_added_at(e->t, normalized, c + i, count - i);
        stop = i + (a ? a->chars.count : 1);
        if (!a || !text_added_fits(a, c, i, count))
            continue;
        if (a->manner.left && done >= stop)
            continue; /* the previous token took all of it */
        size_t from = i, to = stop;
        if (a->manner.left && from < done)
            from = done; /* the previous token took the space */
        while (a->manner.left && from > done && text_is_space(c[from - 1].code))
            from--;
        while (a->manner.right && to < count && text_is_space(c[to].code))
            to++;
        if (from > done)
            code = encode_between(e, normalized, c + done, from - done);
        if (!code) {
            size_t begin, end;
            text_chars_span(&begin, &end, c + from, to - from);
            code = text_tokens_add(e->out, a->id, begin, end, e->err);
        }
        done = to;
    }
    return code || done == count ? code : encode_between(e, normalized, c + done, count - done);
}

static int encode_one(kit_tokens *out, const kit_tokenizer *t, const char *text, int which,
                      int64_t type, kit_error *err)
{
    const size_t before = out->count;
    text_chars chars = {0};
    int code = text_chars_decode(&chars, text, err);
    if (!code)
        code = encode_part(&(encoding){out, t, text, err}, false, chars.at, chars.count);
    for (size_t i = before; i < out->count; i++) {
        out->token[i].which = which;
        out->token[i].type = type;
    }
    free(chars.at);
    return code;
}

static int check_limit(const kit_tokens *out, const kit_tokenizer *t, kit_error *err)
{
    for (size_t i = 0; i < out->count && t->limit; i++) {
        const int64_t id = out->token[i].id;
        if (id >= t->limit)
            return kit_fail(err, KIT_USAGE,
                            "the text has the added token '%.80s', id %lld; the model has no row "
                            "for it: its ids end at %lld",
                            t->vocabulary.entry[id].bytes, (long long)id, (long long)t->limit - 1);
    }
    return KIT_OK;
}

int kit_tokenizer_encode(kit_tokens *out, const kit_tokenizer *t, const char *text,
                         const char *pair, kit_error *err)
{
    const text_template *all = pair ? &t->pair : &t->single;
    int code = KIT_OK;
    *out = (kit_tokens){0};
    for (int i = 0; i < all->count && !code; i++) {
        const text_item *item = &all->item[i];
        if (item->which >= 0) {
            code = encode_one(out, t, item->which ? pair : text, item->which, item->type, err);
        } else if (!(code = text_tokens_add(out, item->id, 0, 0, err))) {
            out->token[out->count - 1].which = -1;
            out->token[out->count - 1].type = item->type;
        }
    }
    if (!code)
        code = check_limit(out, t, err);
    if (code)
        kit_tokens_free(out);
    return code;
}

/* ----------------------------------------------------------------------------------- Labels */

/* Finds the begin and the end of the character that holds byte `at`. */
static void character_around(const char *text, size_t at, size_t *begin, size_t *end)
{
    *begin = at;
    while (*begin > 0 && ((unsigned char)text[*begin] & 0xC0) == 0x80)
        --*begin;
    *end = at + 1;
    while (((unsigned char)text[*end] & 0xC0) == 0x80)
        ++*end;
}

/* Adds text with visible spaces and line ends, as much as fits. */
static void put_visible(char out[KIT_TOKEN_LABEL], const char *text, size_t begin, size_t end)
{
    size_t used = strlen(out);
    for (size_t i = begin; i < end;) {
        size_t from, to;
        character_around(text, i, &from, &to);
        const char c = text[i];
        const char *shown = c == ' ' ? "␣" : c == '\n' ? "↵" : c == '\t' ? "⇥" : text + i;
        const size_t n = shown == text + i ? to - i : strlen(shown);
        if (used + n + 1 > KIT_TOKEN_LABEL - 8)
            break;
        memcpy(out + used, shown, n);
        used += n;
        i = to;
    }
    out[used] = 0;
}

/* Adds the text of a token; bytes that are not a whole character are shown as numbers. */
static void put_bytes(char out[KIT_TOKEN_LABEL], const char *bytes, size_t length)
{
    for (size_t i = 0; i < length && strlen(out) < KIT_TOKEN_LABEL - 16;) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)bytes + i,
                                                    (utf8proc_ssize_t)(length - i), &c);
        const size_t used = strlen(out);
        if (n > 0)
            put_visible(out, bytes, i, i + (size_t)n);
        else
            snprintf(out + used, KIT_TOKEN_LABEL - used, "<%02X>",
                     (unsigned)(unsigned char)bytes[i]);
        i += n > 0 ? (size_t)n : 1;
    }
}

/* Adds "X 2/4": token `index` is the second of four tokens that share the character X. */
static void put_part(char out[KIT_TOKEN_LABEL], const kit_tokens *tokens, size_t index,
                     const char *text)
{
    const kit_token *t = &tokens->token[index];
    size_t from, to, first = index, last = index;
    character_around(text, t->begin, &from, &to);
    while (first > 0 && tokens->token[first - 1].which == t->which &&
           tokens->token[first - 1].end > from)
        first--;
    while (last + 1 < tokens->count && tokens->token[last + 1].which == t->which &&
           tokens->token[last + 1].begin < to)
        last++;
    put_visible(out, text, from, to);
    const size_t used = strlen(out);
    snprintf(out + used, KIT_TOKEN_LABEL - used, " %zu/%zu", index - first + 1, last - first + 1);
}

void kit_token_label(char out[KIT_TOKEN_LABEL], const kit_tokenizer *t, const kit_tokens *tokens,
                     size_t index, const char *text, const char *pair)
{
    const kit_token *k = &tokens->token[index];
    const char *from = k->which == 1 ? pair : text;
    size_t length = 0, begin = 0, end = 0;
    const char *bytes = kit_tokenizer_bytes(t, k->id, &length);
    out[0] = 0;
    if (k->which < 0 || k->begin == k->end) {
        if (bytes)
            put_bytes(out, bytes, length);
        return;
    }
    if (t->kind == TEXT_WORDPIECE && bytes && strncmp(bytes, t->prefix, strlen(t->prefix)) == 0 &&
        index > 0 && tokens->token[index - 1].which == k->which &&
        tokens->token[index - 1].end == k->begin)
        snprintf(out, KIT_TOKEN_LABEL, "%.16s", t->prefix);
    character_around(from, k->begin, &begin, &end);
    const bool inside = begin < k->begin;
    character_around(from, k->end - 1, &begin, &end);
    if ((inside || end > k->end) && end - begin > 1)
        put_part(out, tokens, index, from);
    else
        put_visible(out, from, k->begin, k->end);
}
