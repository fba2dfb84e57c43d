/* Lesson `module`: attention as a lookup whose result can be predicted, then multi-head attention
 * as a module.
 *
 * The notebook's cells were not run in order: its class stops with "NameError: name 'nn' is not
 * defined", so mha was never created, but attn_weights.shape below it was printed by an earlier
 * run. Here the module runs, as the notebook wrote it, with torch.manual_seed(123) and dropout off
 * (evaluation mode).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../recipe.h"
#include "lessons.h"

enum { KEYS = 4, SIZE = 3, WORDS = 3, MODEL = 4, HEADS = 2, HEAD = MODEL / HEADS };

static const char *const key_labels[] = {"k0", "k1", "k2", "k3"};
static const char *const query_labels[] = {"q0", "q1", "q2"};
static const char *const word_labels[] = {"x0", "x1", "x2"};

typedef struct lookup_case {
    const char *queries, *weights, *context; /* step names */
    int64_t rows;
    const float *numbers;
    const char *queries_say, *weights_say, *context_say;
    const char *queries_print, *weights_print, *context_print;
} lookup_case;

static void look_up(recipe *r, const lookup_case *c, kit_array k, kit_array v)
{
    kit_array q =
        recipe_add_copy(r, c->queries, TRACE_VALUES, ATTN_F32, SHAPE(c->rows, SIZE), c->numbers);
    recipe_describe(r, "The questions", "Q", "%s", c->queries_say);
    recipe_rows(r, query_labels, (size_t)c->rows);
    recipe_printed(r, c->queries_print);

    /* The notebook uses its default d_k = 4 although the keys have three numbers. So it divides by
     * 2, not by √3. */
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(v), 0.5, false, NULL};
    kit_array weights = recipe_step(r, c->weights, TRACE_WEIGHTS, ATTN_F32, SHAPE(c->rows, KEYS));
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "Which key fits", "A = softmax(Q·Kᵀ/√4)", "%s", c->weights_say);
    recipe_set_provenance(r, TRACE_ATTEND, c->queries, "keys", a.scale);
    recipe_rows(r, query_labels, (size_t)c->rows);
    recipe_columns(r, key_labels, KEYS);
    recipe_printed(r, c->weights_print);
    recipe_slack(r, 0, 2e-6, "a float score of 50 is known to 2e-06, and so is its weight");

    kit_array out = recipe_step(r, c->context, TRACE_VALUES, ATTN_F32, SHAPE(c->rows, SIZE));
    recipe_context(r, &a, recipe_view(out));
    recipe_describe(r, "What comes back", "A·V", "%s", c->context_say);
    recipe_set_provenance(r, TRACE_MIX, c->weights, "values", 0);
    recipe_rows(r, query_labels, (size_t)c->rows);
    recipe_printed(r, c->context_print);
    recipe_slack(r, 0, 2e-6, "a float score of 50 is known to 2e-06, and so is its weight");
}

static void lookups(recipe *r)
{
    r->section = "scaled_dot_product_attention";
    kit_array k = recipe_add_copy(r, "keys", TRACE_VALUES, ATTN_F32, SHAPE(KEYS, SIZE),
                                  (const float[]){10, 0, 0, 0, 10, 0, 0, 0, 10, 0, 0, 10});
    recipe_describe(r, "Four keys", "K", "Keys 2 and 3 are the same.");
    recipe_rows(r, key_labels, KEYS);
    recipe_printed(r, "tensor([[10.,  0.,  0.],\n[ 0., 10.,  0.],\n[ 0.,  0., 10.],\n"
                      "[ 0.,  0., 10.]])");
    kit_array v = recipe_add_copy(r, "values", TRACE_VALUES, ATTN_F32, SHAPE(KEYS, SIZE),
                                  (const float[]){1, 0, 1, 10, 0, 2, 100, 5, 0, 1000, 6, 0});
    recipe_describe(r, "Their values", "V", "A value is what you get when its key fits.");
    recipe_rows(r, key_labels, KEYS);
    recipe_printed(r, "tensor([[   1.,    0.,    1.],\n[  10.,    0.,    2.],\n"
                      "[ 100.,    5.,    0.],\n[1000.,    6.,    0.]])");
    look_up(
        r,
        &(lookup_case){
            "one_queries", "one_weights", "one_context", 1, (const float[]){0, 10, 0},
            "One query, equal to key 1.",
            "Key 1 takes all. The notebook divides by √4 although keys have 3 numbers; √3 would "
            "give 8.4e-26 instead of 1.9e-22.",
            "The value of key 1.", NULL,
            "tensor([[1.9287e-22, 1.0000e+00, 1.9287e-22, 1.9287e-22]])",
            "tensor([[1.0000e+01, 2.1216e-21, 2.0000e+00]])"},
        k, v);
    look_up(r,
            &(lookup_case){
                "three_queries", "three_weights", "three_context", 3,
                (const float[]){0, 10, 0, 0, 0, 10, 10, 10, 0},
                "Equal to key 1; equal to keys 2 and 3; half way between keys 0 and 1.",
                "A query that fits two keys equally gives each one half. (The notebook prints it "
                "twice, rounded to 3 decimals.)",
                "Two fitting keys: the mean of their values, e.g. (100 + 1000)/2 = 550.",
                "tensor([[ 0., 10.,  0.],\n[ 0.,  0., 10.],\n[10., 10.,  0.]])",
                "tensor([[0.0000, 1.0000, 0.0000, 0.0000],\n[0.0000, 0.0000, 0.5000, 0.5000],\n"
                "[0.5000, 0.5000, 0.0000, 0.0000]])\n"
                "tensor([[0.0000, 1.0000, 0.0000, 0.0000],\n[0.0000, 0.0000, 0.5000, 0.5000],\n"
                "[0.5000, 0.5000, 0.0000, 0.0000]])",
                NULL},
            k, v);
}

/* nn.Linear for every head: weights [H, HEAD, MODEL] and biases [H, HEAD], drawn head by head. */
static void draw_heads(recipe *r, attn_rng *rng, const char *weight, const char *bias,
                       const char *title, kit_array *w, kit_array *b)
{
    *w = recipe_step(r, weight, TRACE_VALUES, ATTN_F32, SHAPE(HEADS, HEAD, MODEL));
    recipe_describe(r, title, "U(±1/√4)", "One nn.Linear(4, 2) for each head.");
    *b = recipe_step(r, bias, TRACE_VALUES, ATTN_F32, SHAPE(HEADS, HEAD));
    recipe_describe(r, "and its biases", "U(±1/√4)", "%s", "");
    for (int h = 0; r->status == KIT_OK && h < HEADS; h++) {
        attn_rng_linear(rng, (float *)w->data + h * HEAD * MODEL, (float *)b->data + h * HEAD,
                        MODEL, HEAD);
    }
}

static attn_tensor bias_view(kit_array b) { return attn_bhtd(b.data, b.dtype, 1, HEADS, 1, HEAD); }

static void call_module(recipe *r, const attn_mha_args *args)
{
    if (r->status == KIT_OK) {
        attn_error e;
        recipe_engine(r, attn_mha_forward(r->ctx, args, &e), &e);
    }
}

static void run_module(recipe *r, attn_mha_args *args, kit_array w_o, kit_array b_o)
{
    kit_array weights =
        recipe_step(r, "mha_weights", TRACE_WEIGHTS, ATTN_F32, SHAPE(1, HEADS, WORDS, WORDS));
    recipe_describe(r, "The weights of both heads", "softmax(Q·Kᵀ/√2)",
                    "Row asks, column answers.");
    recipe_rows(r, word_labels, WORDS);
    recipe_columns(r, word_labels, WORDS);
    recipe_printed(r, "torch.Size([1, 2, 3, 3])");
    kit_array heads =
        recipe_step(r, "mha_heads", TRACE_VALUES, ATTN_F32, SHAPE(1, HEADS, WORDS, HEAD));
    recipe_describe(r, "Each head's context", "A·V", "Two numbers for each word.");
    recipe_rows(r, word_labels, WORDS);
    kit_array joined = recipe_step(r, "mha_concat", TRACE_VALUES, ATTN_F32, SHAPE(1, WORDS, MODEL));
    recipe_describe(r, "The heads side by side", "concat", "Head 1 in front, head 2 behind.");
    recipe_rows(r, word_labels, WORDS);
    kit_array out = recipe_step(r, "mha_output", TRACE_VALUES, ATTN_F32, SHAPE(1, WORDS, MODEL));
    recipe_describe(r, "The module's output", "concat·W_oᵀ + b_o",
                    "In training, dropout would also zero 30 %% of these numbers.");
    recipe_rows(r, word_labels, WORDS);

    attn_tensor weights_out = recipe_view(weights);
    args->out = attn_bhtd(joined.data, ATTN_F32, 1, 1, WORDS, MODEL);
    attn_sdpa_args attention = ATTN_SDPA_ARGS_INIT;
    attention.scores = &weights_out;
    attention.scores_stage = ATTN_STAGE_WEIGHTS;
    args->attention = &attention;
    call_module(r, args); /* without w_o: only the joined heads */
    for (int i = 0; r->status == KIT_OK && i < WORDS * MODEL; i++) {
        int word = i / MODEL, head = i % MODEL / HEAD, column = i % HEAD;
        ((float *)heads.data)[(head * WORDS + word) * HEAD + column] = ((float *)joined.data)[i];
    }
    args->attention = NULL;
    args->w_o = recipe_view(w_o);
    args->b_o = recipe_view(b_o);
    args->out = attn_bhtd(out.data, ATTN_F32, 1, 1, WORDS, MODEL);
    call_module(r, args);
}

static void module(recipe *r, attn_rng *rng)
{
    r->section = "Multi-Head Attention";
    float toy[WORDS * MODEL];
    for (int i = 0; i < WORDS * MODEL; i++) {
        toy[i] = (float)((10 * (i / MODEL) + i % MODEL) / 10.0); /* 0.0 0.1 .. 1.0 1.1 .. 2.3 */
    }
    kit_array x =
        recipe_add_copy(r, "mha_inputs", TRACE_VALUES, ATTN_F32, SHAPE(1, WORDS, MODEL), toy);
    recipe_describe(
        r, "toy_encodings", "X",
        "The notebook's class stopped with NameError: name 'nn' is not defined (its cells ran "
        "out of order), so mha and output never came to be. Here the class runs as written: "
        "d_model 4, 2 heads, seed 123, dropout off.");
    recipe_rows(r, word_labels, WORDS);
    recipe_printed(r, "torch.Size([1, 3, 4])");

    kit_array w_q, b_q, w_k, b_k, w_v, b_v;
    draw_heads(r, rng, "mha_w_q", "mha_b_q", "What each head asks", &w_q, &b_q);
    draw_heads(r, rng, "mha_w_k", "mha_b_k", "What each head offers", &w_k, &b_k);
    draw_heads(r, rng, "mha_w_v", "mha_b_v", "What each head hands over", &w_v, &b_v);
    kit_array w_o = recipe_step(r, "mha_out_weight", TRACE_VALUES, ATTN_F32, SHAPE(MODEL, MODEL));
    recipe_describe(r, "The matrix that joins the heads", "U(±1/√4)", "nn.Linear(4, 4).");
    kit_array b_o = recipe_step(r, "mha_out_bias", TRACE_VALUES, ATTN_F32, SHAPE(MODEL));
    recipe_describe(r, "and its bias", "U(±1/√4)", "%s", "");
    if (r->status == KIT_OK) {
        attn_rng_linear(rng, w_o.data, b_o.data, MODEL, MODEL);
    }

    attn_mha_args args;
    attn_mha_args_init(&args);
    args.x = attn_bhtd(x.data, ATTN_F32, 1, 1, WORDS, MODEL);
    args.w_q = recipe_view(w_q);
    args.w_k = recipe_view(w_k);
    args.w_v = recipe_view(w_v);
    args.b_q = bias_view(b_q);
    args.b_k = bias_view(b_k);
    args.b_v = bias_view(b_v);
    run_module(r, &args, w_o, b_o);
}

int lesson_module(trace *t, attn_context *ctx, kit_error *err)
{
    recipe r = recipe_begin(t, ctx, err, "module", "Multi-head attention as a module", NULL);
    recipe_setting(&r, "4 keys of 3 numbers, scores ÷ √4; then d_model = 4, 2 heads, seed 123");
    t->query = 1;
    attn_rng *rng = malloc(sizeof *rng);
    if (rng == NULL) {
        recipe_fail(&r, KIT_LIMIT, "no memory");
        return recipe_end(&r);
    }
    attn_rng_seed(rng, 123);
    lookups(&r);
    module(&r, rng);
    free(rng);
    recipe_health(&r, "three_weights",
                  &(recipe_advice){"Here that is the point: keys of length 10 make a lookup table.",
                                   NULL, NULL, NULL});
    recipe_note(&r, "slip",
                "The default d_k = 4 does not fit keys of 3 numbers; write √(K.shape[-1]). The "
                "results above keep the notebook's √4.");
    recipe_note(
        &r, "slip",
        "NameError: name 'nn' is not defined - the cell with `from torch import nn` had not "
        "run. attn_weights.shape, printed after it, is left over from an earlier run and "
        "agrees with the shape here.");
    recipe_note(&r, "next", "--check  --full  -o map.svg  --json");
    return recipe_end(&r);
}
