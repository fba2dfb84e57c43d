/* `attn explain --model`: runs a text through a model, and explains one layer's attention step by
 * step. The model computes everything up to the layer's queries, keys and values. Scores, weights
 * and context are then computed by libattn, one call per step, as in every other recipe. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "explain_model.h"
#include "grid.h"
#include "recipe_answer.h"
#include "recipe_layers.h"

#define MAX_TOKENS 4096
#define OVERFLOWS "the model overflows on this text"
#define MAX_ELEMENTS ((int64_t)1 << 28) /* of all heads' scores: 1 GiB */
enum { TOP = 5 };

typedef struct telling {
    recipe *r;
    const explain_model_options *o;
    const model *m;
    const model_sizes *s;
    kit_tokens tokens;
    model_layer *look; /* [looks]: only the explained layer, or every layer */
    int64_t looks;
    model_layer *told; /* the explained layer, one of look */
    int64_t id[TOP];   /* for a decoder: the likeliest next tokens */
    double probability[TOP];
    int64_t T, heads; /* heads: number of shown heads */
} telling;

/* ---------------------------------------------------------------------------------- Running */

static int check(const telling *t)
{
    const model_sizes *s = t->s;
    if (t->o->layer < 1 || t->o->layer > s->layers)
        return recipe_fail(t->r, KIT_USAGE,
                           "--layer %" PRId64 ": the model has layers 1 to %" PRId64, t->o->layer,
                           s->layers);
    if (t->o->head < 0 || t->o->head > s->heads)
        return recipe_fail(t->r, KIT_USAGE, "--head %" PRId64 ": the model has heads 1 to %" PRId64,
                           t->o->head, s->heads);
    if (t->o->pair && s->causal)
        return recipe_fail(t->r, KIT_USAGE,
                           "--text-pair needs a model that reads two texts, such as BERT");
    return t->r->status;
}

/* Makes the tokens' labels the words of the trace; it has no vocabulary. */
static void label_tokens(const telling *t)
{
    kit_words *w = &t->r->trace->words;
    const size_t n = t->tokens.count;
    char *block = calloc(n + 1, KIT_TOKEN_LABEL);
    kit_words_free(w);
    w->word = calloc(n + 1, sizeof *w->word);
    w->id = calloc(n + 1, sizeof *w->id);
    if (!block || !w->word || !w->id) {
        free(block);
        recipe_fail(t->r, KIT_LIMIT, "no memory for %zu tokens", n);
        return;
    }
    w->word[0] = block; /* owns all words */
    for (size_t i = 0; i < n; i++, block += KIT_TOKEN_LABEL) {
        kit_token_label(block, model_tokenizer(t->m), &t->tokens, i, t->o->text, t->o->pair);
        w->word[i] = block;
        w->id[i] = t->tokens.token[i].id;
    }
    w->count = n;
}

static int predict(telling *t, model_run *run)
{
    const float *logits;
    int code = t->s->predicts ? model_run_logits(run, &logits, t->r->err) : KIT_OK;
    const int n = t->s->vocabulary < TOP ? (int)t->s->vocabulary : TOP;
    if (!code && t->s->predicts)
        code = model_top(t->id, t->probability, n, logits, t->s->vocabulary, t->r->err);
    return code;
}

static int run_model(telling *t)
{
    model_run *run = NULL;
    int64_t *ids = calloc(2 * (size_t)t->T + 1, sizeof *ids), *types = ids ? ids + t->T : NULL;
    int code = ids ? KIT_OK : kit_fail(t->r->err, KIT_LIMIT, "no memory");
    for (int64_t i = 0; i < t->T && !code; i++) {
        ids[i] = t->tokens.token[i].id;
        types[i] = t->tokens.token[i].type;
    }
    if (!code)
        code = model_run_begin(&run, t->m, t->T, 0, t->r->err);
    if (!code)
        code = model_run_tokens(run, ids, types, t->T, t->look, t->looks, t->r->err);
    if (!code)
        code = predict(t, run);
    model_run_end(run);
    free(ids);
    return code;
}

/* Chooses the layers whose vectors are kept. */
static void choose_layers(telling *t)
{
    const model_sizes *s = t->s;
    const int64_t vectors = (t->heads + 2 * (t->o->head ? 1 : s->kv_heads)) * s->head_size;
    const bool all = t->T <= t->o->others;
    if (t->r->status == KIT_OK && all && t->T > EXPLAIN_MODEL_MOST / vectors / s->layers)
        recipe_fail(
            t->r, KIT_LIMIT,
            "%" PRId64
            " tokens in all layers are more than a page can hold; choose one layer with --layer N",
            t->T);
    t->looks = all ? s->layers : 1;
    t->look = calloc((size_t)t->looks, sizeof *t->look);
    if (!t->look) {
        recipe_fail(t->r, KIT_LIMIT, "no memory for %" PRId64 " layers", t->looks);
        return;
    }
    for (int64_t l = 0; l < t->looks; l++) {
        t->look[l].layer = all ? l : t->o->layer - 1;
        t->look[l].brief = all && l != t->o->layer - 1;
    }
    t->told = &t->look[all ? t->o->layer - 1 : 0];
}

static void prepare(telling *t)
{
    recipe *r = t->r;
    if (check(t) != KIT_OK)
        return;
    r->status =
        kit_tokenizer_encode(&t->tokens, model_tokenizer(t->m), t->o->text, t->o->pair, r->err);
    t->T = (int64_t)t->tokens.count;
    t->heads = t->o->head ? 1 : t->s->heads;
    if (r->status == KIT_OK && t->T > MAX_TOKENS)
        recipe_fail(r, KIT_LIMIT, "the text has %" PRId64 " tokens; explain shows at most %d", t->T,
                    MAX_TOKENS);
    if (r->status == KIT_OK && t->T > 0 && t->heads * t->T > MAX_ELEMENTS / t->T)
        recipe_fail(
            r, KIT_LIMIT,
            "%" PRId64
            " tokens in all heads are more than explain can show; choose one head with --head N",
            t->T);
    if (r->status == KIT_OK)
        label_tokens(t);
    if (r->status == KIT_OK)
        choose_layers(t);
    if (r->status == KIT_OK)
        r->status = run_model(t);
}

/* ------------------------------------------------------------------------------------ Telling */

/* [T, .] with one head, [H, T, .] with all. */
#define WITH_HEADS(t, rows, columns)                                                               \
    (t)->heads > 1 ? 3 : 2,                                                                        \
        (t)->heads > 1 ? (const int64_t[]){(t)->heads, rows, columns} : (const int64_t[])          \
    {                                                                                              \
        rows, columns                                                                              \
    }

static void tell_tokens(const telling *t)
{
    recipe *r = t->r;
    r->section = "Text to vectors";
    kit_array ids = recipe_step(r, "token_ids", TRACE_IDS, ATTN_I64, SHAPE(t->T));
    for (int64_t i = 0; i < t->T && r->status == KIT_OK; i++)
        ((int64_t *)ids.data)[i] = t->tokens.token[i].id;
    recipe_describe(r, "The text as the model's tokens", "",
                    "%" PRId64
                    " token%s; ␣ is a space, ## goes on inside a word, [..] and <..> are the "
                    "model's own.",
                    t->T, t->T == 1 ? "" : "s");
    recipe_word_columns(r);
    if (t->o->pair) {
        kit_array types = recipe_step(r, "token_types", TRACE_IDS, ATTN_I64, SHAPE(t->T));
        for (int64_t i = 0; i < t->T && r->status == KIT_OK; i++)
            ((int64_t *)types.data)[i] = t->tokens.token[i].type;
        recipe_describe(r, "Which of the two texts", "", "Each has a vector that is added.");
        recipe_word_columns(r);
    }
    r->layer = t->o->layer;
    recipe_add_copy(r, "embeddings", TRACE_VALUES, ATTN_F32, SHAPE(t->T, t->s->embed),
                    t->told->input.data);
    if (t->o->layer == 1)
        recipe_describe(r, "What the first layer is given", "X", "Each token's row of the table%s.",
                        t->s->places_added ? ", and its place's added" : "");
    else
        recipe_describe(r, "What the layer is given", "X",
                        "What the %" PRId64 " layer%s before made of the tokens.", t->o->layer - 1,
                        t->o->layer == 2 ? "" : "s");
    recipe_word_rows(r);
    if (!t->told->normed.data)
        return;
    recipe_add_copy(r, "normed", TRACE_VALUES, ATTN_F32, SHAPE(t->T, t->s->embed),
                    t->told->normed.data);
    recipe_describe(r, "Brought to one size", "norm(X)", "This model does so before attention.");
    recipe_word_rows(r);
}

/* Adds the shown heads of [Hk,T,D] as a step. If heads share keys, each of them shows these
 * keys. */
static kit_array tell_part(const telling *t, const kit_array *from, const char *name,
                           const char *title, const char *formula, const char *sentence)
{
    recipe *r = t->r;
    const int64_t D = t->s->head_size, group = t->s->heads / (from->data ? from->shape[0] : 1);
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, WITH_HEADS(t, t->T, D));
    const size_t bytes = (size_t)(t->T * D) * sizeof(float);
    for (int64_t h = 0; h < t->heads && r->status == KIT_OK; h++) {
        const int64_t head = (t->o->head ? t->o->head - 1 : h) / group;
        memcpy((char *)out.data + (size_t)h * bytes,
               (const char *)from->data + (size_t)head * bytes, bytes);
    }
    recipe_describe(r, title, formula, "%s%s", sentence,
                    group > 1 ? " Several heads share these." : "");
    recipe_word_rows(r);
    return out;
}

static kit_array tell_scores(const telling *t, const recipe_attention *a, attn_stage stage,
                             const char *name, trace_kind kind)
{
    recipe *r = t->r;
    kit_array out = recipe_step(r, name, kind, ATTN_F32, WITH_HEADS(t, t->T, t->T));
    recipe_scores(r, a, stage, recipe_view(out));
    recipe_word_rows(r);
    recipe_word_columns(r);
    return out;
}

static void tell_scaling(const telling *t, recipe_attention *a)
{
    char formula[64];
    recipe *r = t->r;
    const long long D = (long long)t->s->head_size;
    r->section = "Scores";
    a->scale = 1;
    recipe_attention open = *a;
    open.causal = false;
    open.mask = NULL;
    tell_scores(t, &open, ATTN_STAGE_RAW, "scores", TRACE_SCORES);
    recipe_describe(r, "Every token asks, every token answers", "S = Q·Kᵀ",
                    "The more a query and a key point the same way, the higher the score.");
    recipe_set_provenance(r, TRACE_DOT, "queries", "keys", 0);
    const double scale = a->scale = open.scale = model_scale(t->m, t->told->layer);
    kit_array scaled = tell_scores(t, &open, ATTN_STAGE_RAW, "scaled_scores", TRACE_SCORES);
    recipe_finite(r, scaled, "a score", OVERFLOWS);
    if (scale == 1)
        snprintf(formula, sizeof formula, "S");
    else if (scale == 1 / sqrt((double)D))
        snprintf(formula, sizeof formula, "S / √%lld", D);
    else
        snprintf(formula, sizeof formula, "S · %.6g", scale);
    recipe_describe(r, scale == 1 ? "No scaling" : "Scale", formula,
                    "A dot product of %lld numbers grows like √%lld = %.4g.", D, D,
                    sqrt((double)D));
    recipe_set_provenance(r, TRACE_SCALE, "scores", NULL, scale);
    if (!t->s->causal)
        return;
    const int64_t window = model_window(t->m, t->told->layer);
    tell_scores(t, a, ATTN_STAGE_BIASED, "masked_scores", TRACE_SCORES);
    recipe_describe(r, "Hide what comes later", "−∞ where key > query",
                    window ? "A token sees itself and the %lld before it; e^−∞ is 0."
                           : "A token sees itself and those before it; e^−∞ is 0.",
                    (long long)window - 1);
    recipe_set_provenance(r, TRACE_MASK, "scaled_scores", NULL, 0);
    recipe_causal(r, window);
}

static void tell_attention(const telling *t, const recipe_attention *a)
{
    recipe *r = t->r;
    r->section = "Attention";
    tell_scores(t, a, ATTN_STAGE_WEIGHTS, "weights", TRACE_WEIGHTS);
    recipe_describe(r, "Softmax: each row becomes shares of 1", "A = softmax(S)",
                    "Row asks, column answers.");
    recipe_set_provenance(r, TRACE_SOFTMAX, t->s->causal ? "masked_scores" : "scaled_scores", NULL,
                          0);
    kit_array z =
        recipe_step(r, "context", TRACE_VALUES, ATTN_F32, WITH_HEADS(t, t->T, t->s->head_size));
    recipe_context(r, a, recipe_view(z));
    recipe_finite(r, z, "a context vector", OVERFLOWS);
    recipe_describe(r, "Mix the values by the weights", "Z = A·V",
                    "The new vector of a token: the values of all tokens it sees, by weight.");
    recipe_set_provenance(r, TRACE_MIX, "weights", "values", 0);
    recipe_word_rows(r);
}

static void tell_output(const telling *t)
{
    recipe *r = t->r;
    r->section = "Onwards";
    recipe_finite(r, t->told->output, "the output of a layer", OVERFLOWS);
    recipe_add_copy(r, "output", TRACE_VALUES, ATTN_F32, SHAPE(t->T, t->s->embed),
                    t->told->output.data);
    recipe_describe(r, "What the layer gives", "",
                    "All heads joined and projected, the MLP, and what the layer was given added.");
    recipe_word_rows(r);
    r->layer = 0;
    if (!t->s->predicts || r->status != KIT_OK)
        return;
    static const char *const columns[] = {"probability"};
    const int64_t n = t->s->vocabulary < TOP ? t->s->vocabulary : TOP;
    char label[TOP][KIT_TOKEN_LABEL];
    const char *rows[TOP];
    for (int64_t i = 0; i < n; i++) {
        kit_tokens one = {&(kit_token){.id = t->id[i], .which = -1}, 1, 1};
        kit_token_label(label[i], model_tokenizer(t->m), &one, 0, NULL, NULL);
        rows[i] = label[i];
    }
    recipe_add_copy(r, "next_token_ids", TRACE_IDS, ATTN_I64, SHAPE(n), t->id);
    recipe_describe(r, "The likeliest next tokens", "", "After the last layer, likeliest first.");
    recipe_columns(r, rows, (size_t)n);
    recipe_add_copy(r, "next_tokens", TRACE_PROBABILITIES, ATTN_F64, SHAPE(n, 1), t->probability);
    recipe_describe(r, "Their probabilities", "softmax(logits)", "Of all %lld tokens.",
                    (long long)t->s->vocabulary);
    recipe_rows(r, rows, (size_t)n);
    recipe_columns(r, columns, 1);
}

static int64_t visible_keys(const telling *t, int64_t row)
{
    const int64_t all = t->s->causal ? row + 1 : t->T, window = model_window(t->m, t->told->layer);
    return t->s->causal && window && window < all ? window : all;
}

/* Reports an attention sink: attention that finds no useful key collects on one token (Xiao et al.
 * 2023). Under a causal mask the first tokens get much of any attention, so the weight is compared
 * with that of even attention. */
static void tell_sink(const telling *t)
{
    const trace_step *w = t->r->status == KIT_OK ? trace_find(t->r->trace, "weights") : NULL;
    double most = 0, average = 1;
    int64_t where = 0;
    if (!w || t->T < 4)
        return;
    const grid g = grid_of(t->r->trace, w);
    for (int64_t j = 0; j < g.columns; j++) {
        double sum = 0, even = 0;
        int64_t rows = 0; /* that see it and other keys */
        for (int64_t i = t->s->causal ? j + 1 : 0; i < g.rows; i++) {
            const int64_t seen = visible_keys(t, i);
            if (t->s->causal && j <= i - seen)
                continue; /* outside the window */
            for (int64_t h = 0; h < g.heads; h++, rows++)
                sum += grid_at(&g, h, i, j);
            even += (double)g.heads / (double)seen;
        }
        if (2 * rows >= g.heads * g.rows && sum / (double)rows > most) {
            most = sum / (double)rows;
            average = even / (double)rows;
            where = j;
        }
    }
    if (most > 0.3 && most > 1.5 * average)
        recipe_note(t->r, "sink",
                    "%s takes %.0f %% of the weight of the rows that see it; spread evenly over "
                    "the keys that each of them sees, it would be %.0f %%.",
                    t->r->trace->words.word[where], 100 * most, 100 * average);
}

/* ------------------------------------------------------------------------------------ The whole */

/* Adds steps that only a page shows: the effects of this layer's heads, and the other layers. */
static void tell_others(const telling *t)
{
    recipe *r = t->r;
    const layer_heads h = {t->m, t->o->head ? t->o->head - 1 : 0, t->heads};
    char section[32];
    snprintf(section, sizeof section, "Layer %" PRId64, t->o->layer);
    r->html_only = true;
    r->section = section;
    r->layer = t->o->layer;
    if (t->o->head && t->T <= EXPLAIN_MODEL_FEW && t->s->places_added)
        layer_makers(r, &h, t->told->layer, t->told->normed.data ? "normed" : "embeddings");
    layer_effects(r, &h, t->told, "values", "context", "");
    for (int64_t l = 0; l < t->looks; l++)
        if (&t->look[l] != t->told && r->status == KIT_OK) {
            layer_html_only(r, &h, &t->look[l]);
            model_layer_free(&t->look[l]);
        }
    r->section = NULL;
    if (t->o->head == 0 && t->T <= t->o->others && t->T <= EXPLAIN_MODEL_FEW)
        answer_steps(r, t->m, &t->tokens, t->o->layer);
}

/* Makes the model's window a mask: bool [T,T]. */
static void make_window(const telling *t, kit_array *mask, attn_tensor *view, recipe_attention *a)
{
    recipe *r = t->r;
    const int64_t window = r->status == KIT_OK ? model_window(t->m, t->told->layer) : 0;
    if (!window)
        return;
    r->status = kit_array_new(mask, ATTN_BOOL, 2, (const int64_t[]){t->T, t->T}, r->err);
    for (int64_t i = 0; i < t->T && r->status == KIT_OK; i++)
        for (int64_t j = 0; j < t->T; j++)
            ((unsigned char *)mask->data)[i * t->T + j] = j > i - window;
    *view = recipe_view(*mask);
    a->mask = view;
}

static void tell(telling *t)
{
    recipe *r = t->r;
    kit_array mask = {0};
    attn_tensor view;
    tell_tokens(t);
    r->section = "Three views of each token";
    kit_array q =
        tell_part(t, &t->told->q, "queries", "Queries", "Q", "What each token looks for.");
    kit_array k =
        tell_part(t, &t->told->k, "keys", "Keys", "K", "What each token can be found by.");
    kit_array v = tell_part(t, &t->told->v, "values", "Values", "V",
                            "What each token hands over when it is attended to.");
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(v), 0, t->s->causal, NULL};
    make_window(t, &mask, &view, &a);
    tell_scaling(t, &a);
    tell_attention(t, &a);
    tell_output(t);
    kit_array_free(&mask);
    if (r->status == KIT_OK)
        r->status = trace_set_query(r->trace, t->o->query, r->err);
    recipe_health(r, "weights", &(recipe_advice){0});
    tell_sink(t);
    tell_others(t);
    recipe_note(r, "next",
                "--layer N|all  --head N|all  --query TOKEN  --full  -o map.svg  --json");
}

int explain_model(trace *to, const explain_model_options *o, const model *m, kit_error *err)
{
    char title[160], heads[48], layer[48];
    recipe r = recipe_begin(to, model_context(m), err, NULL, "", "");
    telling t = {.r = &r, .o = o, .m = m, .s = model_sizes_of(m)};
    prepare(&t);
    if (r.status == KIT_OK) {
        snprintf(heads, sizeof heads, o->head ? "head %lld" : "all %lld heads",
                 (long long)(o->head ? o->head : t.s->heads));
        snprintf(layer, sizeof layer, o->all ? "all %lld layers" : "layer %lld",
                 (long long)(o->all ? t.s->layers : o->layer));
        snprintf(title, sizeof title, "%s, %s, %s", t.s->kind, layer, heads);
        free(to->title);
        free(to->text);
        to->title = strdup(title);
        to->text = strdup(o->text);
        to->heads = t.heads;
        to->head = o->head;
        recipe_setting(&r, "%s of %lld layers, %lld heads of %lld, d = %lld, %lld tokens, %s",
                       t.s->kind, (long long)t.s->layers, (long long)t.s->heads,
                       (long long)t.s->head_size, (long long)t.s->embed, (long long)t.T,
                       t.s->causal ? "causal mask" : "no mask");
        if (!to->title || !to->text)
            recipe_fail(&r, KIT_LIMIT, "no memory");
        tell(&t);
    }
    kit_tokens_free(&t.tokens);
    for (int64_t l = 0; t.look && l < t.looks; l++)
        model_layer_free(&t.look[l]);
    free(t.look);
    return recipe_end(&r);
}
