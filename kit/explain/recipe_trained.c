/* The end of `attn explain`: the same sentence through trained heads, so that a reader also sees
 * attention that does something. The heads are those of train/heads.h. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "../train/heads.h"
#include "explain.h"
#include "recipe.h"

enum { FOUND_AT_MOST = 4, ADVICE_BYTES = 400 };

/* The trace of the heads, the heads, and for each word its last appearance before, or -1. */
typedef struct trained {
    recipe r;
    heads *heads;
    int64_t count;
    const int64_t *id;
    int64_t *last;
    int64_t repeated; /* words that appeared before */
} trained;

static void find_last(trained *a)
{
    a->last = malloc((size_t)a->count * sizeof *a->last);
    if (a->last == NULL) {
        recipe_fail(&a->r, KIT_LIMIT, "no memory");
        return;
    }
    for (int64_t i = 0; i < a->count; i++) {
        a->last[i] = -1;
        for (int64_t j = 0; j < i; j++) {
            a->last[i] = a->id[j] == a->id[i] ? j : a->last[i];
        }
        a->repeated += a->last[i] >= 0;
    }
}

/* Adds the weights of the head of a layer, and before them its scores, which show what is hidden.
 * The caller describes them. */
static void add_head(trained *a, heads *h, int layer, const char *name)
{
    recipe *r = &a->r;
    const int64_t T = a->count;
    char scores_name[64];
    kit_array scores = {0}, weights = {0};
    snprintf(scores_name, sizeof scores_name, "%s_scores", name);
    if (r->status == KIT_OK) {
        r->status = heads_maps(h, layer, ATTN_STAGE_BIASED, &scores, r->err);
    }
    if (r->status == KIT_OK) {
        r->status = heads_maps(h, layer, ATTN_STAGE_WEIGHTS, &weights, r->err);
    }
    if (r->status == KIT_OK) {
        recipe_add_copy(r, scores_name, TRACE_SCORES, ATTN_F32, SHAPE(T, T), scores.data);
        recipe_check_only(r, NULL, NULL);
        recipe_add_copy(r, name, TRACE_WEIGHTS, ATTN_F32, SHAPE(T, T), weights.data);
        recipe_set_provenance(r, TRACE_GIVEN, scores_name, NULL, 0);
        recipe_word_rows(r);
        recipe_word_columns(r);
    }
    kit_array_free(&scores);
    kit_array_free(&weights);
}

/* The word before; what followed the last appearance of this word. */
static void add_followed(trained *a)
{
    const heads_facts *f = heads_facts_of(a->heads);
    recipe *r = &a->r;
    add_head(a, a->heads, 1, "previous");
    recipe_describe(r, "Layer 1: the word before", "",
                    "Learned: look at the word before. On %lld unseen random sentences its "
                    "largest weight is on that word for %.1f %% of the words.",
                    (long long)f->sentences, 100 * f->score[0]);
    add_head(a, a->heads, 2, "followed");
    recipe_describe(r, "Layer 2: what followed this word", "",
                    "Learned: find the last appearance of this word and look at what "
                    "followed it. On %lld unseen random sentences its largest weight is "
                    "there for %.1f %% of the words that had appeared before. The row of "
                    "a word that had not means nothing.",
                    (long long)f->sentences, 100 * f->score[1]);
}

/* The last appearance of this word, by a model of its own. */
static void add_same(trained *a, uint64_t seed)
{
    recipe *r = &a->r;
    heads *h = NULL;
    if (r->status == KIT_OK) {
        r->status = heads_open(&h, HEADS_SAME, r->ctx, r->err);
    }
    if (r->status == KIT_OK) {
        r->status = heads_run(h, a->id, a->count, seed, r->err);
    }
    add_head(a, h, 1, "same");
    if (r->status == KIT_OK) {
        const heads_facts *f = heads_facts_of(h);
        recipe_describe(r, "Another model, of one layer: the same word", "",
                        "Learned, by `%s`: look at the last appearance of this word. It sees only "
                        "the words before this one. On %lld unseen random sentences its largest "
                        "weight is there for %.1f %% of the words that had appeared before; the "
                        "other rows mean nothing.",
                        f->command, (long long)f->sentences, 100 * f->score[0]);
    }
    heads_close(h);
}

/* Says what the second head does with words that this sentence repeats. */
static void say_found(trained *a)
{
    recipe *r = &a->r;
    const trace_step *s = r->status == KIT_OK ? trace_find(r->trace, "followed") : NULL;
    char *const *word = r->trace->words.word;
    int said = 0;
    for (int64_t i = 0; i < a->count && s != NULL && said < FOUND_AT_MOST; i++) {
        const int64_t next = a->last[i] + 1;
        if (a->last[i] >= 0 && next < i) {
            recipe_note(r, said++ > 0 ? "" : "here",
                        "“%s” (word %lld) appeared before as word %lld; “%s” followed it and gets "
                        "the weight %.2f.",
                        word[i], (long long)i + 1, (long long)next, word[next],
                        kit_array_get(&s->tensor, i * a->count + next));
        }
    }
}

/* Whether a shell keeps the word as it is between double quotes. */
static bool is_plain(const char *word)
{
    for (const char *c = word; *c != '\0'; c++) {
        if (strchr("\"\\$`!", *c) != NULL || iscntrl((unsigned char)*c)) {
            return false;
        }
    }
    return true;
}

/* Suggests a sentence with a repeated word: this one with its first words once more. */
static void suggest(trained *a, int64_t longest)
{
    const kit_words *w = &a->r.trace->words;
    const int64_t again = a->count > 2 ? 2 : a->count;
    char text[ADVICE_BYTES] = "";
    size_t used = 0;
    bool good = a->count > 1 && a->count + again <= longest;
    for (int64_t i = 0; i < a->count + again && good; i++) {
        const char *word = w->word[i % a->count];
        good = is_plain(word) && used + strlen(word) + 2 < sizeof text;
        if (good) {
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? " " : "", word);
        }
    }
    recipe_note(
        &a->r, "try",
        "No word appears twice here, so the heads that look for earlier words find nothing. "
        "With repeated words: attn explain \"%s\"",
        good ? text : "the cat saw the dog and the cat ran");
}

static void set_out(trained *a, uint64_t seed)
{
    const heads_facts *f = heads_facts_of(a->heads);
    recipe *r = &a->r;
    if (a->count > f->longest) {
        recipe_setting(r,
                       "The trained heads know %lld places, and this sentence has %lld words: "
                       "give a shorter one to see them.",
                       (long long)f->longest, (long long)a->count);
        return;
    }
    recipe_setting(
        r,
        "Trained, not random, by `%s` on random sequences. Words are only tokens: each "
        "gets an embedding drawn from seed %llu, equal words the same one. So the heads "
        "know no English; they have learnt a rule for any words. Options such as --scale, "
        "--causal and --heads do not change these tables.",
        f->command, (unsigned long long)seed);
    find_last(a);
    if (r->status == KIT_OK) {
        r->status = heads_run(a->heads, a->id, a->count, seed, r->err);
    }
    add_followed(a);
    add_same(a, seed);
    say_found(a);
    if (a->repeated == 0) {
        suggest(a, f->longest);
    }
}

int explain_trained(trace *t, const char *text, uint64_t seed, attn_context *ctx, kit_error *err)
{
    trained a = {
        .r = recipe_begin(t, ctx, err, NULL, "The same sentence through trained heads", text)};
    if (a.r.status == KIT_OK) {
        a.r.status = heads_open(&a.heads, HEADS_FOLLOWED, ctx, err);
    }
    a.count = (int64_t)t->words.count;
    a.id = t->words.id;
    if (a.r.status == KIT_OK) {
        set_out(&a, seed);
    }
    heads_close(a.heads);
    free(a.last);
    return recipe_end(&a.r);
}
