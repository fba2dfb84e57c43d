/* Tasks: sequences of tokens, and the target to predict at each place.
 *
 *   induction       c a e c a e c a e   the next token, from the second block on
 *   copy            a b c | a b c       the next token, after the mark
 *   reverse         a b c | c b a       the same
 *   previous-token  a b c d e           the previous token
 *   any-words       a b c a d b         what followed the last appearance of this token
 *   same-word       a b c a d b         the place of the last appearance of this token; a place
 *                                       sees only those before it
 *   text            characters          the next character
 *
 * Induction's blocks have a random length. So no position tells where to look; only the tokens
 * there do (Olsson et al. 2022). In any-words and same-word every sequence draws the embeddings of
 * its tokens too (run.c). So no token can be learned, only the rule. Random numbers are words of
 * PyTorch's generator, drawn in the order of this file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "train_inner.h"

enum { PROBE = 24 /* most tokens in a heat-map */ };

static const char *const names[TRAIN_TASKS] = {"induction", "copy",
                                               "reverse",   "previous-token",
                                               "any-words", "same-word",
                                               "text"};

const char *train_task_name(train_task task) { return names[task]; }

train_task train_task_find(const char *name)
{
    int i = 0;
    while (i < TRAIN_TASKS && strcmp(names[i], name) != 0)
        i++;
    return (train_task)i;
}

bool train_task_draws_words(train_task task)
{
    return task == TRAIN_ANY_WORDS || task == TRAIN_SAME_WORD;
}

/* Maps a random word to 0..n-1 as n * word / 2^32. Each probability is 1 / n with a relative
 * error below n / 2^32. */
int64_t train_below(attn_rng *rng, int64_t n)
{
    return (int64_t)((uint64_t)attn_rng_u32(rng) * (uint64_t)n >> 32);
}

/* --------------------------------------------------------------------------------- Drawing */

static void draw_tokens(const train_config *c, attn_rng *rng, int64_t *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = train_below(rng, c->vocabulary);
}

/* Repeats a block of distinct tokens; a token that is already in the block is drawn again. */
static void draw_induction(const train_config *c, attn_rng *rng, int64_t period, int64_t length,
                           int64_t *tokens, int64_t *targets)
{
    for (int64_t i = 0; i < period; i++) {
        int64_t same = 0;
        do {
            tokens[i] = train_below(rng, c->vocabulary);
            for (same = 0; tokens[same] != tokens[i]; same++) {}
        } while (same < i);
        targets[i] = TRAIN_IGNORE;
    }
    for (int64_t i = period; i < length; i++) {
        tokens[i] = tokens[i - period];
        targets[i] = tokens[(i + 1) % period];
    }
}

/* Writes n tokens, the mark, and the first n - 1 of the n expected tokens; the last one is only a
 * target. */
static void draw_marked(const train_config *c, attn_rng *rng, int64_t length, int64_t *tokens,
                        int64_t *targets)
{
    const int64_t n = length / 2;
    draw_tokens(c, rng, tokens, n);
    tokens[n] = c->vocabulary;
    for (int64_t i = 0; i < n; i++) {
        targets[i] = TRAIN_IGNORE;
        targets[n + i] = tokens[c->task == TRAIN_COPY ? i : n - 1 - i];
        if (i + 1 < n)
            tokens[n + 1 + i] = targets[n + i];
    }
}

static void draw_previous(const train_config *c, attn_rng *rng, int64_t length, int64_t *tokens,
                          int64_t *targets)
{
    draw_tokens(c, rng, tokens, length);
    for (int64_t i = 0; i < length; i++)
        targets[i] = i ? tokens[i - 1] : TRAIN_IGNORE;
}

/* Draws from the first `kinds` tokens, never the same one twice in a row. A token that was there
 * before has the target that its last appearance was followed by. */
static void draw_any_words(attn_rng *rng, int64_t kinds, int64_t length, int64_t *tokens,
                           int64_t *targets)
{
    for (int64_t i = 0; i < length; i++) {
        do
            tokens[i] = train_below(rng, kinds);
        while (i && tokens[i] == tokens[i - 1]);
        targets[i] = TRAIN_IGNORE;
        for (int64_t j = 0; j < i; j++)
            if (tokens[j] == tokens[i])
                targets[i] = tokens[j + 1];
    }
}

/* Draws from the first `kinds` tokens. A token that was there before has the place of its last
 * appearance as its target. */
static void draw_same_word(attn_rng *rng, int64_t kinds, int64_t length, int64_t *tokens,
                           int64_t *targets)
{
    for (int64_t i = 0; i < length; i++) {
        tokens[i] = train_below(rng, kinds);
        targets[i] = TRAIN_IGNORE;
        for (int64_t j = 0; j < i; j++)
            if (tokens[j] == tokens[i])
                targets[i] = j;
    }
}

/* Start of the part of a text that is kept for measuring. */
static int64_t first_unseen(const train_text *text) { return text->count - text->count / 10; }

static void draw_text(const train_text *text, attn_rng *rng, int64_t length, bool unseen,
                      int64_t *tokens, int64_t *targets)
{
    const int64_t from = unseen ? first_unseen(text) : 0;
    const int64_t to = unseen ? text->count : first_unseen(text);
    const int64_t at = from + train_below(rng, to - from - length);
    for (int64_t i = 0; i < length; i++) {
        tokens[i] = text->token[at + i];
        targets[i] = text->token[at + i + 1];
    }
}

static int64_t shortest_period(int64_t length) { return length / 5 > 2 ? length / 5 : 2; }

static int64_t longest_period(const train_config *c)
{
    return c->length / 2 < c->vocabulary ? c->length / 2 : c->vocabulary;
}

/* How many different tokens a sequence of any-words or same-word has: fewer than places, so one is
 * repeated. */
static int64_t most_kinds(const train_config *c)
{
    return c->vocabulary < c->length ? c->vocabulary : c->length - 1;
}

static int64_t fewest_kinds(const train_config *c)
{
    return most_kinds(c) / 4 > 2 ? most_kinds(c) / 4 : 2;
}

/* period: of induction's block; of any-words and same-word, the number of different tokens. */
static void draw(const train_config *c, const train_text *text, attn_rng *rng, bool unseen,
                 int64_t length, int64_t period, int64_t *tokens, int64_t *targets)
{
    switch (c->task) {
    case TRAIN_INDUCTION: draw_induction(c, rng, period, length, tokens, targets); break;
    case TRAIN_COPY:
    case TRAIN_REVERSE: draw_marked(c, rng, length, tokens, targets); break;
    case TRAIN_PREVIOUS: draw_previous(c, rng, length, tokens, targets); break;
    case TRAIN_ANY_WORDS: draw_any_words(rng, period, length, tokens, targets); break;
    case TRAIN_SAME_WORD: draw_same_word(rng, period, length, tokens, targets); break;
    case TRAIN_TEXT: draw_text(text, rng, length, unseen, tokens, targets); break;
    case TRAIN_TASKS: break;
    }
}

void train_draw(const train_config *c, const train_text *text, attn_rng *rng, bool unseen,
                int64_t *tokens, int64_t *targets)
{
    int64_t period = 0;
    if (c->task == TRAIN_INDUCTION) {
        const int64_t low = shortest_period(c->length);
        period = low + train_below(rng, longest_period(c) - low + 1);
    } else if (train_task_draws_words(c->task)) {
        period = fewest_kinds(c) + train_below(rng, most_kinds(c) - fewest_kinds(c) + 1);
    }
    draw(c, text, rng, unseen, c->length, period, tokens, targets);
}

/* The probe of copy and reverse has full length, because positions matter to these tasks. */
int64_t train_draw_probe(const train_config *c, const train_text *text, int64_t *tokens,
                         int64_t *targets)
{
    attn_rng rng;
    int64_t length = c->length < PROBE ? c->length : PROBE;
    if (c->task == TRAIN_COPY || c->task == TRAIN_REVERSE)
        length = c->length;
    attn_rng_seed(&rng, c->seed + 3);
    const int64_t half = length / 2 < longest_period(c) ? length / 2 : longest_period(c);
    draw(c, text, &rng, true, length, half, tokens, targets);
    return length;
}

/* ---------------------------------------------------------------------------------- Labels */

void train_label(const train_config *c, const train_text *text, int64_t token,
                 char label[TRAIN_LABEL])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    if (text) {
        const int32_t code = text->character[token];
        const utf8proc_int32_t shown = code == ' ' ? 0x2423 : code == '\n' ? 0x21B5 : code;
        label[utf8proc_encode_char(shown, (utf8proc_uint8_t *)label)] = 0;
    } else if (token == c->vocabulary) {
        strcpy(label, "|");
    } else if (c->vocabulary < (int64_t)sizeof letters) {
        snprintf(label, TRAIN_LABEL, "%c", letters[token]);
    } else {
        snprintf(label, TRAIN_LABEL, "%d", (int)token % 1000000);
    }
}

/* ------------------------------------------------------------------------------------ Text */

static int by_value(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int decode(train_text *text, const char *bytes, size_t size, const char *name,
                  kit_error *err)
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)bytes, *end = at + size;
    text->hash = UINT64_C(14695981039346656037); /* FNV-1a */
    while (at < end) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate(at, end - at, &c);
        if (n <= 0 || c == 0)
            return kit_fail(err, KIT_BAD_FILE, "%s: byte %zu: %s", name,
                            (size_t)(at - (const utf8proc_uint8_t *)bytes),
                            n > 0 ? "a zero byte; a text has none" : "not UTF-8");
        text->token[text->count++] = c;
        for (utf8proc_ssize_t i = 0; i < n; i++)
            text->hash = (text->hash ^ at[i]) * UINT64_C(1099511628211);
        at += n;
    }
    return KIT_OK;
}

int train_text_make(train_text *text, const char *bytes, size_t size, const char *name,
                    kit_error *err)
{
    *text = (train_text){.token = malloc((size + 1) * sizeof(int32_t)),
                         .character = malloc((size + 1) * sizeof(int32_t))};
    int code = text->token && text->character
                   ? decode(text, bytes, size, name, err)
                   : kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    if (code) {
        train_text_free(text);
        return code;
    }
    memcpy(text->character, text->token, (size_t)text->count * sizeof(int32_t));
    qsort(text->character, (size_t)text->count, sizeof(int32_t), by_value);
    for (int64_t i = 0; i < text->count; i++)
        if (i == 0 || text->character[i] != text->character[text->vocabulary - 1])
            text->character[text->vocabulary++] = text->character[i];
    for (int64_t i = 0; i < text->count; i++) {
        const int32_t *found = bsearch(&text->token[i], text->character, (size_t)text->vocabulary,
                                       sizeof(int32_t), by_value);
        text->token[i] = (int32_t)(found - text->character);
    }
    return KIT_OK;
}

void train_text_free(train_text *text)
{
    free(text->token);
    free(text->character);
    *text = (train_text){0};
}

/* ---------------------------------------------------------------------------------- Options */

int64_t train_config_tokens(const train_config *c)
{
    return c->vocabulary + (c->task == TRAIN_COPY || c->task == TRAIN_REVERSE);
}

int64_t train_config_answers(const train_config *c)
{
    return c->task == TRAIN_SAME_WORD ? c->length : train_config_tokens(c);
}

int train_config_check(train_config *c, const train_text *text, kit_error *err)
{
    if (c->task == TRAIN_TEXT) {
        c->vocabulary = text->vocabulary;
        if (text->count / 10 < c->length + 2)
            return kit_fail(
                err, KIT_USAGE,
                "the text has %lld characters; --length %lld needs at least %lld, because a "
                "tenth is kept for measuring",
                (long long)text->count, (long long)c->length, (long long)(10 * (c->length + 2)));
    }
    if (c->task != TRAIN_TEXT && c->vocabulary < 2)
        return kit_fail(err, KIT_USAGE, "--vocab %lld: must be at least 2 for --task %s",
                        (long long)c->vocabulary, train_task_name(c->task));
    if (c->embed % c->heads != 0)
        return kit_fail(err, KIT_USAGE, "--embed %lld is not a multiple of --heads %lld",
                        (long long)c->embed, (long long)c->heads);
    if ((c->task == TRAIN_COPY || c->task == TRAIN_REVERSE) && c->length % 2 != 0)
        return kit_fail(err, KIT_USAGE, "--length %lld: must be even for --task %s",
                        (long long)c->length, train_task_name(c->task));
    if (c->task == TRAIN_INDUCTION && c->length < 6)
        return kit_fail(err, KIT_USAGE, "--length %lld: must be at least 6 for --task induction",
                        (long long)c->length);
    if (c->task == TRAIN_INDUCTION && c->vocabulary < shortest_period(c->length))
        return kit_fail(err, KIT_USAGE,
                        "--vocab %lld: --length %lld needs at least %lld for --task induction",
                        (long long)c->vocabulary, (long long)c->length,
                        (long long)shortest_period(c->length));
    if (train_task_draws_words(c->task) && c->length < 4)
        return kit_fail(err, KIT_USAGE, "--length %lld: must be at least 4 for --task %s",
                        (long long)c->length, train_task_name(c->task));
    if (train_task_draws_words(c->task) && c->embed < 8)
        return kit_fail(err, KIT_USAGE, "--embed %lld: must be at least 8 for --task %s",
                        (long long)c->embed, train_task_name(c->task));
    return KIT_OK;
}
