/* The words of the page of `attn explain --model`: facts that model.lesson quotes and asks for.
 *
 *   n layers heads maps                  sizes; maps: layers times heads
 *   query place                          the chosen token and its number from 1
 *   causal predicts                      of the model
 *   next                                 the likeliest next token, if the model predicts
 *   runs                                 the trace has runs without heads of the explained layer
 *   previous first same                  the text has tokens of this kind (--find), and then:
 *   previous_layer previous_head         the head with the highest score
 *   previous_score previous_equal        its score, and that of equal attention in its layer
 */
#include "model_story.h"

#include <string.h>

#include "../find.h"
#include "../recipe.h"
#include "../script.h"
#include "script_read.h"

static void add_number(recipe *r, const char *prefix, const char *name, int64_t x)
{
    char key[48];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    recipe_fact(r, key, "%lld", (long long)x);
}

static void add_share(recipe *r, const char *prefix, const char *name, double x)
{
    char key[48];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    recipe_fact(r, key, "%.1f %%", 100 * x);
}

/* Finds the head that gives most weight to tokens of this kind. A text without such tokens, or
 * weights that are not finite, add nothing. */
static void add_found(recipe *r, const explain_model_options *o, const model *m, const char *name,
                      find_kind kind)
{
    char prefix[32];
    find f = {0};
    kit_error none = {0};
    int code = find_begin(&f, m, kind, &none);
    code = code ? code : find_add(&f, o->text, o->pair, &none);
    code = code ? code : find_run(&f, &none);
    code = code ? code : find_rank(&f, &none);
    if (code == KIT_OK) {
        const find_head *best = &f.head[0];
        snprintf(prefix, sizeof prefix, "%s_", name);
        recipe_fact(r, name, "%s", "");
        add_number(r, prefix, "layer", best->layer);
        add_number(r, prefix, "head", best->head);
        add_share(r, prefix, "score", best->score);
        add_share(r, prefix, "equal", f.equal[best->layer - 1]);
    } else if (code == KIT_LIMIT) {
        recipe_fail(r, code, "%s", none.message);
    }
    find_end(&f);
}

static void add_facts(recipe *r, const explain_model_options *o, const model *m)
{
    const model_sizes *s = model_sizes_of(m);
    const trace *t = r->trace;
    const trace_step *next = trace_find(t, "next_tokens");
    add_number(r, "", "n", (int64_t)t->words.count);
    add_number(r, "", "layers", s->layers);
    add_number(r, "", "heads", s->heads);
    add_number(r, "", "maps", s->layers * s->heads);
    add_number(r, "", "place", t->query + 1);
    recipe_fact(r, "query", "%s", t->words.word[t->query]);
    if (s->causal) {
        recipe_fact(r, "causal", "%s", "");
    }
    if (next != NULL) {
        recipe_fact(r, "predicts", "%s", "");
        recipe_fact(r, "next", "%s", next->row_labels[0]);
    }
    char runs[40];
    snprintf(runs, sizeof runs, "without_heads_%lld", (long long)o->layer);
    if (trace_find(t, runs) != NULL) {
        recipe_fact(r, "runs", "%s", "");
    }
    add_found(r, o, m, "previous", FIND_PREVIOUS);
    add_found(r, o, m, "first", FIND_FIRST);
    add_found(r, o, m, "same", FIND_SAME);
}

int lesson_model(trace *t, const explain_model_options *o, const model *m, kit_error *err)
{
    script s;
    int code = explain_model(t, o, m, err);
    const int64_t n = code == KIT_OK ? (int64_t)t->words.count : 0;
    if (code != KIT_OK || o->head != 0 || n > o->others || n > EXPLAIN_MODEL_FEW) {
        return code;
    }
    recipe r = {.trace = t, .ctx = model_context(m), .err = err};
    add_facts(&r, o, m);
    code = r.status != KIT_OK ? r.status : script_load(&s, "model", err);
    code = code != KIT_OK ? code : script_apply(&s, t, err);
    if (code != KIT_OK) {
        trace_free(t);
    }
    return code;
}
