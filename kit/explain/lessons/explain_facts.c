/* The words of `attn explain`: facts that explain.lesson quotes and asks for. A condition of the
 * script must hold for every sentence and option, so each is decided here, from the numbers of the
 * trace.
 *
 *   seed words                              as given; words: a list in Python
 *   n V d d_k d_v heads                     sizes
 *   numbers_d numbers_d_v                   "16 numbers"
 *   scale_formula scale_code                how the scores are scaled, for people and for Python
 *   root one_over_root                      √d_k, 1/√d_k
 *   no_scale own_scale negative_scale       scaled otherwise than by 1/√d_k; negative: and words
 *                                           are reversed in their order
 *   several_words several_heads causal
 *   head                                    index of the head that is looked at, if there are more
 *   repeated                                a word that appears more than once
 *   q query place                           the chosen query: index from 0, word, number from 1
 *   sees several_seen                       keys that it sees
 *   p pair pair_ties                        the key with row q's largest score; further such keys
 *   alike_scores                            all scores of row q that it sees are alike
 *   k key itself key_ties                   the key with row q's largest weight
 *   first_positive                          the first product of the score of q and p is above 0
 *   saturated even                          row q's largest weight is above 0.99; its weights are
 *                                           equal to within a tenth
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../grid.h"
#include "../recipe.h"
#include "../render/draw.h"
#include "lessons.h"
#include "script_read.h"

#define SATURATED 0.99
#define EVEN 1.1 /* largest weight divided by smallest */

/* Two numbers that print alike count as equal, because a reader cannot tell which is larger. */
static bool prints_alike(double a, double b) { return fabs(a - b) < 5e-5; }

/* The row of the query in head 1: its largest key, how many others are alike, its least number. */
typedef struct row_facts {
    int64_t largest, ties, seen;
    double most, least;
} row_facts;

static row_facts look_at(const grid *g, const grid *mask, int64_t row)
{
    row_facts f = {.largest = -1, .least = INFINITY};
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t j = 0; j < g->columns; j++) {
            double x = grid_at(g, 0, row, j);
            if (grid_masked(mask, 0, row, j)) {
                continue;
            }
            if (pass == 0) {
                f.seen++;
                f.least = fmin(f.least, x);
                f.largest = f.largest < 0 || x > f.most ? j : f.largest;
                f.most = grid_at(g, 0, row, f.largest);
            } else {
                f.ties += j != f.largest && prints_alike(x, f.most);
            }
        }
    }
    f.largest = f.largest < 0 ? row : f.largest; /* scores that overflowed hide every key */
    return f;
}

static void flag(recipe *r, const char *name, bool holds)
{
    if (holds) {
        recipe_fact(r, name, "%s", "");
    }
}

static void add_number(recipe *r, const char *name, int64_t x)
{
    recipe_fact(r, name, "%lld", (long long)x);
}

static void put_bytes(void *to, const char *bytes, size_t size) { sink_write(to, bytes, size); }

static void add_words(recipe *r, const explain_options *o)
{
    const kit_words *w = &r->trace->words;
    sink list = {0};
    for (size_t i = 0; i < w->count; i++) {
        sink_puts(&list, i > 0 ? ", " : "[");
        kit_text_json(w->word[i], strlen(w->word[i]), put_bytes, &list);
    }
    sink_puts(&list, "]");
    if (list.failed) {
        recipe_fail(r, KIT_LIMIT, "no memory");
    } else {
        recipe_fact(r, "words", "%s", list.data);
    }
    free(list.data);
    recipe_fact(r, "seed", "%llu", (unsigned long long)o->seed);
    for (size_t i = 1; i < w->count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (w->id[i] == w->id[j]) {
                recipe_fact(r, "repeated", "%s", w->word[i]);
                return;
            }
        }
    }
}

static void add_sizes(recipe *r, const explain_options *o)
{
    const kit_words *w = &r->trace->words;
    add_number(r, "n", (int64_t)w->count);
    add_number(r, "V", (int64_t)w->vocabulary_count);
    add_number(r, "d", o->embed);
    add_number(r, "d_k", o->qk);
    add_number(r, "d_v", o->v);
    add_number(r, "heads", o->heads);
    recipe_fact(r, "numbers_d", "%lld number%s", (long long)o->embed, o->embed == 1 ? "" : "s");
    recipe_fact(r, "numbers_d_v", "%lld number%s", (long long)o->v, o->v == 1 ? "" : "s");
    flag(r, "several_words", w->count > 1);
    if (o->heads > 1) {
        flag(r, "several_heads", true);
        add_number(r, "head", 0);
    }
    flag(r, "causal", o->causal);
}

static void add_scale(recipe *r, const explain_options *o)
{
    char by[NUMBER_BYTES];
    const double root = sqrt((double)o->qk);
    recipe_fact(r, "root", "%.4g", root);
    recipe_fact(r, "one_over_root", "%.4g", 1 / root);
    if (o->no_scale) {
        flag(r, "no_scale", true);
        recipe_fact(r, "scale_formula", "S");
        recipe_fact(r, "scale_code", "%s", "");
    } else if (o->scale != 0) {
        number_text(by, o->scale);
        recipe_fact(r, "own_scale", "%s", by);
        flag(r, "negative_scale", o->scale < 0 && r->trace->words.count > 1);
        recipe_fact(r, "scale_formula", "S × %s", by);
        recipe_fact(r, "scale_code", " * %.17g", o->scale);
    } else {
        recipe_fact(r, "scale_formula", "S / √%lld", (long long)o->qk);
        recipe_fact(r, "scale_code", " / %lld ** 0.5", (long long)o->qk);
    }
}

static void add_cells(recipe *r)
{
    const trace *t = r->trace;
    const grid scores = grid_of(t, trace_find(t, "scores"));
    const grid weights = grid_of(t, trace_find(t, "weights"));
    const grid q = grid_of(t, trace_find(t, "queries")), k = grid_of(t, trace_find(t, "keys"));
    const row_facts pair = look_at(&scores, &weights, t->query);
    const row_facts key = look_at(&weights, &weights, t->query);
    char *const *word = t->words.word;
    add_number(r, "q", t->query);
    recipe_fact(r, "query", "%s", word[t->query]);
    add_number(r, "place", t->query + 1);
    add_number(r, "sees", key.seen);
    flag(r, "several_seen", key.seen > 1);
    add_number(r, "p", pair.largest);
    recipe_fact(r, "pair", "%s", word[pair.largest]);
    flag(r, "pair_ties", pair.ties > 0);
    flag(r, "alike_scores", prints_alike(pair.most, pair.least));
    add_number(r, "k", key.largest);
    recipe_fact(r, "key", "%s", word[key.largest]);
    flag(r, "itself", key.largest == t->query);
    flag(r, "key_ties", key.ties > 0);
    flag(r, "first_positive", grid_at(&q, 0, t->query, 0) * grid_at(&k, 0, pair.largest, 0) > 0);
    flag(r, "saturated", key.seen > 1 && key.most > SATURATED);
    flag(r, "even", key.seen > 1 && key.most <= EVEN * key.least);
}

int lesson_explain(trace *t, const explain_options *o, attn_context *ctx, kit_error *err)
{
    script s;
    int code = explain_build(t, o, ctx, err);
    if (code != KIT_OK) {
        return code;
    }
    recipe r = {.trace = t, .ctx = ctx, .err = err};
    add_words(&r, o);
    add_sizes(&r, o);
    add_scale(&r, o);
    add_cells(&r);
    code = r.status != KIT_OK ? r.status : script_load(&s, "explain", err);
    code = code != KIT_OK ? code : script_apply(&s, t, err);
    if (code != KIT_OK) {
        trace_free(t);
    }
    return code;
}
