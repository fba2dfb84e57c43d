/* What a model answers under other conditions: at another temperature, after fewer layers, without
 * a head. The last is a run of the model for each head. */
#include "recipe_answer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPERATURES = 41, LABEL = 16 };
#define MOST_WORK ((double)(1LL << 36)) /* multiply-adds of the runs; about a second a core */

typedef struct answer {
    recipe *r;
    const model *m;
    const model_sizes *s;
    int64_t T, layer, n; /* n: likeliest tokens; 0: the model predicts none */
    int64_t *ids, *types;
    const int64_t *id;        /* [n] */
    const char *const *label; /* [n] */
    model_run *run;
    model_layer *look; /* [layers] of the run with all heads */
} answer;

/* The probabilities of the likeliest tokens, among all tokens. */
static void shares(const answer *a, const float *logits, double temperature, double *to)
{
    double top = logits[0], sum = 0;
    for (int64_t i = 1; i < a->s->vocabulary; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int64_t i = 0; i < a->s->vocabulary; i++)
        sum += exp((logits[i] - top) / temperature);
    for (int64_t i = 0; i < a->n; i++)
        to[i] = exp((logits[a->id[i]] - top) / temperature) / sum;
}

static const float *last_row(const answer *a, const kit_array *output)
{
    return (const float *)output->data + (a->T - 1) * a->s->embed;
}

static const float *lens(const answer *a, const kit_array *output)
{
    const float *logits = NULL;
    if (a->r->status == KIT_OK)
        a->r->status = model_run_lens(a->run, last_row(a, output), &logits, a->r->err);
    return a->r->status == KIT_OK ? logits : NULL;
}

static void tell_temperatures(const answer *a)
{
    recipe *r = a->r;
    char text[TEMPERATURES][LABEL];
    const char *rows[TEMPERATURES];
    const float *logits = lens(a, &a->look[a->s->layers - 1].output);
    kit_array p =
        recipe_step(r, "next_tokens_at", TRACE_PROBABILITIES, ATTN_F64, SHAPE(TEMPERATURES, a->n));
    for (int i = 0; i < TEMPERATURES && r->status == KIT_OK; i++) {
        const double temperature = pow(10, i / 20.0 - 1);
        shares(a, logits, temperature, (double *)p.data + i * a->n);
        snprintf(text[i], LABEL, "T = %.3g", temperature);
        rows[i] = text[i];
    }
    if (r->status != KIT_OK)
        return;
    recipe_describe(r, "The same tokens at other temperatures", "softmax(logits / T)",
                    "Of all %lld tokens.", (long long)a->s->vocabulary);
    recipe_rows(r, rows, TEMPERATURES);
    recipe_columns(r, a->label, (size_t)a->n);
}

static void tell_lens(const answer *a)
{
    recipe *r = a->r;
    const int64_t L = a->s->layers;
    double *first = calloc((size_t)L, sizeof *first);
    char(*text)[KIT_TOKEN_LABEL] = calloc((size_t)L, sizeof *text);
    const char **rows = calloc((size_t)L, sizeof *rows);
    if (!first || !text || !rows)
        recipe_fail(r, KIT_LIMIT, "no memory for %" PRId64 " layers", L);
    kit_array p = recipe_step(r, "logit_lens", TRACE_PROBABILITIES, ATTN_F64, SHAPE(L, a->n));
    for (int64_t l = 0; l < L && r->status == KIT_OK; l++) {
        int64_t id;
        const float *logits = lens(a, &a->look[l].output);
        if (r->status == KIT_OK)
            r->status = model_top(&id, &first[l], 1, logits, a->s->vocabulary, r->err);
        if (r->status != KIT_OK)
            break;
        shares(a, logits, 1, (double *)p.data + l * a->n);
        kit_tokens one = {&(kit_token){.id = id, .which = -1}, 1, 1};
        kit_token_label(text[l], model_tokenizer(a->m), &one, 0, NULL, NULL);
        rows[l] = text[l];
    }
    recipe_describe(r, "The next token if the model ended after each layer", "",
                    "The last norm and the output matrix read the last token's vector.");
    recipe_columns(r, a->label, (size_t)a->n);
    recipe_add_copy(r, "logit_lens_first", TRACE_PROBABILITIES, ATTN_F64, SHAPE(L, 1), first);
    recipe_describe(r, "The likeliest token after each layer", "", "A row is a layer.");
    recipe_rows(r, rows, (size_t)L);
    free(first);
    free(text);
    free((void *)rows);
}

/* How far each token's output moved, as a part of its length. */
static void tell_moves(const answer *a, const float *now, double *to)
{
    const int64_t E = a->s->embed;
    const float *was = a->look[a->s->layers - 1].output.data;
    for (int64_t i = 0; i < a->T; i++) {
        double moved = 0, whole = 0;
        for (int64_t e = i * E; e < (i + 1) * E; e++) {
            moved += ((double)now[e] - was[e]) * ((double)now[e] - was[e]);
            whole += (double)was[e] * was[e];
        }
        to[i] = whole > 0 ? sqrt(moved / whole) : 0;
    }
}

static int run_without(const answer *a, int64_t layer, int64_t head, double *to)
{
    const float *logits = NULL;
    model_run_without(a->run, layer, head);
    int code = model_run_tokens(a->run, a->ids, a->types, a->T, NULL, 0, a->r->err);
    if (!code && a->n == 0) {
        tell_moves(a, model_run_output(a->run), to);
    } else if (!code) {
        code = model_run_logits(a->run, &logits, a->r->err);
        if (!code)
            shares(a, logits, 1, to);
    }
    return code;
}

static void tell_without(const answer *a, int64_t layer)
{
    recipe *r = a->r;
    char name[40];
    const int64_t width = a->n ? a->n : a->T;
    snprintf(name, sizeof name, "without_heads_%" PRId64, layer + 1);
    kit_array p = recipe_step(r, name, a->n ? TRACE_PROBABILITIES : TRACE_VALUES, ATTN_F64,
                              SHAPE(a->s->heads, width));
    for (int64_t h = 0; h < a->s->heads && r->status == KIT_OK; h++)
        r->status = run_without(a, layer, h, (double *)p.data + h * width);
    if (a->n) {
        recipe_describe(r, "The next token without one head", "",
                        "A row is a run of the model without that head of layer %" PRId64 ".",
                        layer + 1);
        recipe_columns(r, a->label, (size_t)a->n);
    } else {
        recipe_describe(r, "How far the output moves without one head", "‖x′ − x‖ / ‖x‖",
                        "A row is a run of the model without that head of layer %" PRId64 ".",
                        layer + 1);
        recipe_word_columns(r);
    }
}

static void tell_runs(const answer *a)
{
    const double E = (double)a->s->embed, layers = (double)a->s->layers;
    /* A block has about 12 E^2 weights: attention 4, MLP 8. */
    const double work = 12 * E * E * layers * (double)a->T * (double)a->s->heads;
    for (int64_t l = 0; l < a->s->layers && a->r->status == KIT_OK; l++)
        if (work * layers <= MOST_WORK || (l == a->layer - 1 && work <= MOST_WORK))
            tell_without(a, l);
}

static int run_whole(answer *a, const kit_tokens *tokens)
{
    kit_error *err = a->r->err;
    a->ids = calloc(2 * (size_t)a->T, sizeof *a->ids);
    a->look = calloc((size_t)a->s->layers, sizeof *a->look);
    if (!a->ids || !a->look)
        return kit_fail(err, KIT_LIMIT, "no memory for %" PRId64 " tokens", a->T);
    a->types = a->ids + a->T;
    for (int64_t i = 0; i < a->T; i++) {
        a->ids[i] = tokens->token[i].id;
        a->types[i] = tokens->token[i].type;
    }
    for (int64_t l = 0; l < a->s->layers; l++)
        a->look[l].layer = l;
    const int code = model_run_begin(&a->run, a->m, a->T, 0, err);
    return code ? code
                : model_run_tokens(a->run, a->ids, a->types, a->T, a->look, a->s->layers, err);
}

void answer_steps(recipe *r, const model *m, const kit_tokens *tokens, int64_t layer)
{
    const trace_step *next = r->status == KIT_OK ? trace_find(r->trace, "next_tokens") : NULL;
    const trace_step *ids = next ? trace_find(r->trace, "next_token_ids") : NULL;
    answer a = {.r = r,
                .m = m,
                .s = model_sizes_of(m),
                .T = (int64_t)tokens->count,
                .layer = layer,
                .n = ids ? ids->tensor.shape[0] : 0,
                .id = ids ? ids->tensor.data : NULL,
                .label = next ? (const char *const *)next->row_labels : NULL};
    if (r->status != KIT_OK)
        return;
    r->html_only = true;
    r->section = "The answer";
    r->layer = 0;
    r->status = run_whole(&a, tokens);
    if (a.n && r->status == KIT_OK) {
        tell_temperatures(&a);
        tell_lens(&a);
    }
    tell_runs(&a);
    model_run_end(a.run);
    for (int64_t l = 0; a.look && l < a.s->layers; l++)
        model_layer_free(&a.look[l]);
    free(a.look);
    free(a.ids);
    r->section = NULL;
}
