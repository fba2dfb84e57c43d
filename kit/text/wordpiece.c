/* WordPiece, as in BERT: splits into words at white space and around each punctuation mark, then
 * takes from the left of each word the longest piece in the vocabulary (Schuster and Nakajima
 * 2012). */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "tokenizer_inner.h"

static bool is_punctuation(int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    if (c < 0x80)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
               (c >= 123 && c <= 126);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

/* A word as bytes: character i begins at byte at[i]. */
typedef struct word {
    char *bytes; /* room for the prefix of inner pieces, then the word */
    size_t *at;  /* [count + 1] */
    size_t prefix;
} word;

static bool word_make(word *w, const kit_tokenizer *t, const text_char *chars, size_t count)
{
    w->prefix = strlen(t->prefix);
    w->bytes = malloc(w->prefix + 4 * count + 1);
    w->at = malloc((count + 1) * sizeof *w->at);
    if (!w->bytes || !w->at)
        return false;
    size_t used = w->prefix;
    for (size_t i = 0; i < count; i++) {
        w->at[i] = used;
        used += (size_t)utf8proc_encode_char(chars[i].code, (utf8proc_uint8_t *)w->bytes + used);
    }
    w->at[count] = used;
    return true;
}

/* Returns the id of the longest piece that begins at character `from`, and its end in *to; -1:
 * none. The prefix overwrites the characters before the piece, which are no longer needed. */
static int64_t longest_piece(const word *w, const kit_tokenizer *t, size_t from, size_t count,
                             size_t *to)
{
    char *begin = w->bytes + w->at[from] - (from ? w->prefix : 0);
    if (from)
        memcpy(begin, t->prefix, w->prefix);
    for (*to = count; *to > from; --*to) {
        const size_t length = (size_t)(w->bytes + w->at[*to] - begin);
        const int64_t id = text_vocabulary_find(&t->vocabulary, begin, length);
        if (id >= 0)
            return id;
    }
    return -1;
}

static int add_piece(kit_tokens *out, int64_t id, const text_char *chars, size_t count,
                     kit_error *err)
{
    size_t begin, end;
    text_chars_span(&begin, &end, chars, count);
    return text_tokens_add(out, id, begin, end, err);
}

static int add_unknown(kit_tokens *out, const kit_tokenizer *t, const text_char *chars,
                       size_t count, kit_error *err)
{
    if (t->unknown < 0)
        return kit_fail(
            err, KIT_USAGE,
            "the vocabulary has neither a token for a word of the text nor an unknown token");
    return add_piece(out, t->unknown, chars, count, err);
}

static int encode_word(kit_tokens *out, const kit_tokenizer *t, const text_char *chars,
                       size_t count, kit_error *err)
{
    word w = {0};
    const size_t before = out->count;
    int code = KIT_OK;
    if ((int64_t)count > t->longest)
        return add_unknown(out, t, chars, count, err);
    if (!word_make(&w, t, chars, count))
        code = kit_fail(err, KIT_LIMIT, "not enough memory");
    for (size_t from = 0, to = 0; from < count && !code; from = to) {
        const int64_t id = longest_piece(&w, t, from, count, &to);
        if (id < 0) {
            out->count = before;
            code = add_unknown(out, t, chars, count, err);
            break;
        }
        code = add_piece(out, id, chars + from, to - from, err);
    }
    free(w.bytes);
    free(w.at);
    return code;
}

int text_wordpiece_encode(kit_tokens *out, const kit_tokenizer *t, const text_char *chars,
                          size_t count, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0, end = 0; i < count && !code; i = end) {
        end = i + 1;
        if (text_is_space(chars[i].code))
            continue;
        while (!is_punctuation(chars[i].code) && end < count && !text_is_space(chars[end].code) &&
               !is_punctuation(chars[end].code))
            end++;
        code = encode_word(out, t, chars + i, end - i, err);
    }
    return code;
}
