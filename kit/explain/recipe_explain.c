/* `attn explain`: any sentence, from words to context vectors, as in the notebooks.
 *
 * The numbers equal PyTorch's: torch.manual_seed(seed); Embedding(V, E); randn for W_q, W_k, W_v.
 * The weights are random, so the trace shows the mechanism, not a language model. It ends with the
 * same sentence through trained heads (recipe_trained.c). The words are in lessons/explain.lesson.
 */
#include <math.h>
#include <stdlib.h>

#include "explain.h"
#include "recipe.h"

#define MAX_WORDS 4096
#define MAX_SIZE 65536
#define MAX_ELEMENTS ((int64_t)1 << 26) /* of one tensor: 256 MiB */

/* The sizes of one run. H = 1: shapes have no head dimension. */
typedef struct sizes {
    int64_t T, V, E, D, Dv, H;
    double scale; /* of the scores; 1 without scaling */
} sizes;

/* Rank and shape: [rows, columns], with the head dimension in front if there are heads. */
#define WITH_HEADS(s, rows, columns)                                                               \
    (s)->H > 1 ? 3 : 2, (s)->H > 1 ? (const int64_t[]){(s)->H, rows, columns} : (const int64_t[])  \
    {                                                                                              \
        rows, columns                                                                              \
    }

static int check_options(recipe *r, const explain_options *o, sizes *s)
{
    const struct {
        const char *name;
        int64_t value;
    } size[] = {{"--embed", o->embed}, {"--qk", o->qk}, {"--v", o->v}, {"--heads", o->heads}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        if (size[i].value < 1 || size[i].value > MAX_SIZE) {
            return recipe_fail(r, KIT_USAGE, "%s %lld: must be 1 to %d", size[i].name,
                               (long long)size[i].value, MAX_SIZE);
        }
    }
    if (o->scale != 0 && (o->no_scale || !isfinite(o->scale))) {
        return recipe_fail(r, KIT_USAGE,
                           o->no_scale ? "--scale and --no-scale exclude each other"
                                       : "--scale: must be a finite number");
    }
    if (r->status == KIT_OK && r->trace->words.count == 0) {
        return recipe_fail(r, KIT_USAGE, "the text has no word; give at least one");
    }
    if (r->trace->words.count > MAX_WORDS) {
        return recipe_fail(r, KIT_LIMIT, "the text has %zu words; explain shows at most %d",
                           r->trace->words.count, MAX_WORDS);
    }
    *s = (sizes){(int64_t)r->trace->words.count,
                 (int64_t)r->trace->words.vocabulary_count,
                 o->embed,
                 o->qk,
                 o->v,
                 o->heads,
                 o->scale};
    s->scale = o->no_scale ? 1.0 : o->scale != 0 ? o->scale : 1.0 / sqrt((double)s->D);
    int64_t widest = s->D > s->Dv ? s->D : s->Dv, rows = s->T > s->E ? s->T : s->E;
    widest = widest > s->T ? widest : s->T;
    if (s->H * rows > MAX_ELEMENTS / widest || s->V > MAX_ELEMENTS / s->E) {
        return recipe_fail(
            r, KIT_LIMIT,
            "these sizes need a tensor of more than %lld numbers; choose smaller ones",
            (long long)MAX_ELEMENTS);
    }
    return r->status;
}

static kit_array embed_words(recipe *r, const sizes *s, attn_rng *rng)
{
    kit_words *w = &r->trace->words;
    kit_array ids = recipe_add_copy(r, "token_ids", TRACE_IDS, ATTN_I64, SHAPE(s->T), w->id);
    recipe_word_columns(r);

    kit_array table = recipe_step(r, "embedding_table", TRACE_VALUES, ATTN_F32, SHAPE(s->V, s->E));
    if (r->status == KIT_OK) {
        attn_rng_randn(rng, table.data, (size_t)(s->V * s->E));
    }
    recipe_rows(r, (const char *const *)w->vocabulary, w->vocabulary_count);

    kit_array x = recipe_step(r, "embeddings", TRACE_VALUES, ATTN_F32, SHAPE(s->T, s->E));
    recipe_lookup(r, ids, table, x);
    recipe_set_provenance(r, TRACE_LOOKUP, "token_ids", "embedding_table", 0);
    recipe_word_rows(r);
    return x;
}

static kit_array draw_weight(recipe *r, const sizes *s, attn_rng *rng, const char *name,
                             int64_t rows)
{
    kit_array w = recipe_step(r, name, TRACE_VALUES, ATTN_F32, WITH_HEADS(s, rows, s->E));
    if (r->status == KIT_OK) {
        attn_rng_randn(rng, w.data, (size_t)(s->H * rows * s->E));
    }
    return w;
}

static kit_array project(recipe *r, const sizes *s, kit_array x, kit_array w, const char *name,
                         const char *weight, int64_t columns)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, WITH_HEADS(s, s->T, columns));
    recipe_linear(r, recipe_repeat(recipe_view(x), s->H), recipe_view(w), NULL, recipe_view(out));
    recipe_set_provenance(r, TRACE_PROJECT, "embeddings", weight, 0);
    recipe_word_rows(r);
    return out;
}

static kit_array add_scores(recipe *r, const sizes *s, const recipe_attention *a, attn_stage stage,
                            const char *name, trace_kind kind)
{
    kit_array out = recipe_step(r, name, kind, ATTN_F32, WITH_HEADS(s, s->T, s->T));
    recipe_scores(r, a, stage, recipe_view(out));
    recipe_word_rows(r);
    recipe_word_columns(r);
    return out;
}

static void score(recipe *r, const sizes *s, recipe_attention a, bool causal)
{
    a.scale = 1;
    add_scores(r, s, &a, ATTN_STAGE_RAW, "scores", TRACE_SCORES);
    recipe_set_provenance(r, TRACE_DOT, "queries", "keys", 0);
    a.scale = s->scale;
    kit_array scaled = add_scores(r, s, &a, ATTN_STAGE_RAW, "scaled_scores", TRACE_SCORES);
    recipe_finite(r, scaled, "a score", "choose a smaller --scale");
    recipe_set_provenance(r, TRACE_SCALE, "scores", NULL, s->scale);
    if (causal) {
        add_scores(r, s, &a, ATTN_STAGE_BIASED, "masked_scores", TRACE_SCORES);
        recipe_set_provenance(r, TRACE_MASK, "scaled_scores", NULL, 0);
        recipe_causal(r, 0);
    }
}

static void attend(recipe *r, const sizes *s, const recipe_attention *a, bool causal)
{
    add_scores(r, s, a, ATTN_STAGE_WEIGHTS, "weights", TRACE_WEIGHTS);
    recipe_set_provenance(r, TRACE_SOFTMAX, causal ? "masked_scores" : "scaled_scores", NULL, 0);

    kit_array z = recipe_step(r, "context", TRACE_VALUES, ATTN_F32, WITH_HEADS(s, s->T, s->Dv));
    recipe_context(r, a, recipe_view(z));
    recipe_set_provenance(r, TRACE_MIX, "weights", "values", 0);
    recipe_word_rows(r);
}

/* With all weights N(0,1), a score has the standard deviation embed * sqrt(qk) before scaling. */
static void say_health(recipe *r, const sizes *s, const explain_options *o)
{
    char cause[256], repair[256];
    double fit = 1 / (sqrt((double)s->D) * (double)s->E);
    if (o->scale != 0)
        snprintf(cause, sizeof cause,
                 "--scale %.6g multiplies the scores of these W_q and W_k, "
                 "which are N(0,1), by too much.",
                 o->scale);
    else
        snprintf(cause, sizeof cause,
                 "W_q and W_k are N(0,1), not divided by √%lld, so scores are "
                 "%lld times larger than those that 1/√%lld was made for.",
                 (long long)s->E, (long long)s->E, (long long)s->D);
    snprintf(repair, sizeof repair, "--scale %.3g, which does what W_q/√%lld and W_k/√%lld would.",
             fit, (long long)s->E, (long long)s->E);
    bool small = fabs(s->scale)<fit, large = fabs(s->scale)> fit * 1.001;
    recipe_health(r, "weights",
                  &(recipe_advice){large ? cause : NULL, large ? repair : NULL,
                                   small ? "The scale makes all scores nearly equal." : NULL,
                                   small ? repair : NULL});
    recipe_note(r, "next", "%s%s%s%s--steps  --full  --quiz  -o map.svg  -o map.png  --json",
                o->no_scale || o->scale != 0 ? "" : "--no-scale  ", o->causal ? "" : "--causal  ",
                s->H > 1 ? "" : "--heads 2  ", s->T > 1 ? "--query WORD  " : "");
}

/* Adds the same sentence through trained heads. */
static void add_trained(recipe *r, const explain_options *o)
{
    if (r->status != KIT_OK) {
        return;
    }
    r->trace->more = calloc(1, sizeof *r->trace->more);
    if (r->trace->more == NULL) {
        recipe_fail(r, KIT_LIMIT, "no memory");
        return;
    }
    r->status = explain_trained(r->trace->more, o->text, o->seed, r->ctx, r->err);
}

static void keep_options(recipe *r, const explain_options *o)
{
    r->trace->options = malloc(sizeof *o);
    if (r->trace->options == NULL) {
        recipe_fail(r, KIT_LIMIT, "no memory");
        return;
    }
    *r->trace->options = *o;
    r->trace->options->text = r->trace->options->query = NULL;
}

int explain_build(trace *t, const explain_options *o, attn_context *ctx, kit_error *err)
{
    recipe r = recipe_begin(t, ctx, err, NULL, o->text, o->text != NULL ? o->text : "");
    sizes s = {0};
    if (check_options(&r, o, &s) != KIT_OK) {
        return recipe_end(&r);
    }
    keep_options(&r, o);
    t->heads = s.H;
    char heads[32], scaling[48];
    snprintf(heads, sizeof heads, "%lld heads", (long long)s.H);
    snprintf(scaling, sizeof scaling, o->scale != 0 ? "× %g" : "÷ √%g",
             o->scale != 0 ? o->scale : (double)s.D);
    recipe_setting(
        &r,
        "random weights, not trained: n = %lld, d = %lld, d_k = %lld, d_v = %lld, %s, scores %s, "
        "%s, seed %llu",
        (long long)s.T, (long long)s.E, (long long)s.D, (long long)s.Dv,
        s.H > 1 ? heads : "one head", o->no_scale ? "not scaled" : scaling,
        o->causal ? "causal mask" : "no mask", (unsigned long long)o->seed);
    attn_rng *rng = malloc(sizeof *rng);
    if (rng == NULL) {
        recipe_fail(&r, KIT_LIMIT, "no memory");
        return recipe_end(&r);
    }
    attn_rng_seed(rng, o->seed);
    kit_array x = embed_words(&r, &s, rng);
    kit_array w_q = draw_weight(&r, &s, rng, "w_q", s.D);
    kit_array w_k = draw_weight(&r, &s, rng, "w_k", s.D);
    kit_array w_v = draw_weight(&r, &s, rng, "w_v", s.Dv);
    free(rng);
    kit_array q = project(&r, &s, x, w_q, "queries", "w_q", s.D);
    kit_array k = project(&r, &s, x, w_k, "keys", "w_k", s.D);
    kit_array v = project(&r, &s, x, w_v, "values", "w_v", s.Dv);
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(v), s.scale, o->causal, NULL};
    score(&r, &s, a, o->causal);
    attend(&r, &s, &a, o->causal);
    if (r.status == KIT_OK) {
        r.status = trace_set_query(t, o->query, err);
    }
    say_health(&r, &s, o);
    add_trained(&r, o);
    return recipe_end(&r);
}
