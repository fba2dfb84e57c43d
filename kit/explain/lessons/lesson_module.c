/* Lesson `module`: attention as a look-up whose result can be predicted, then multi-head attention
 * as a module.
 *
 * The notebook's cells were not run in order: its class stops with "NameError: name 'nn' is not
 * defined", so mha was never created, but attn_weights.shape below it was printed by an earlier
 * run. Here the module runs, as the notebook wrote it, with torch.manual_seed(123) and dropout off
 * (evaluation mode).
 *
 * The notebook prints neither scores nor the module's intermediates. These steps are compared with
 * PyTorch's numbers for the notebook's code.
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
    const char *queries, *scores, *scaled_scores, *weights, *context; /* step names */
    int64_t rows;
    const float *numbers;
    const char *queries_say, *scores_say, *weights_say, *context_say;
    const char *queries_print, *scores_print, *scaled_print, *weights_print, *context_print;
} lookup_case;

/* The scores and the scaled scores, which the notebook computes and does not print. */
static void score(recipe *r, const lookup_case *c, kit_array q, kit_array k)
{
    r->after_notebook = true;
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(k), 1, false, NULL};
    kit_array raw = recipe_step(r, c->scores, TRACE_SCORES, ATTN_F32, SHAPE(c->rows, KEYS));
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(raw));
    recipe_describe(r, "How well each key fits", "S = Q·Kᵀ", "%s", c->scores_say);
    recipe_set_provenance(r, TRACE_DOT, c->queries, "keys", 0);
    recipe_rows(r, query_labels, (size_t)c->rows);
    recipe_columns(r, key_labels, KEYS);
    recipe_printed(r, c->scores_print);

    /* The notebook uses its default d_k = 4 although the keys have three numbers. So it divides by
     * 2, not by √3. */
    a.scale = 0.5;
    kit_array scaled =
        recipe_step(r, c->scaled_scores, TRACE_SCORES, ATTN_F32, SHAPE(c->rows, KEYS));
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(scaled));
    recipe_describe(r, "Divided by √4", "S/√4", "Each key has 3 numbers: √3 would be right.");
    recipe_set_provenance(r, TRACE_SCALE, c->scores, NULL, a.scale);
    recipe_rows(r, query_labels, (size_t)c->rows);
    recipe_columns(r, key_labels, KEYS);
    recipe_printed(r, c->scaled_print);
    r->after_notebook = false;
}

static void look_up(recipe *r, const lookup_case *c, kit_array k, kit_array v)
{
    kit_array q =
        recipe_add_copy(r, c->queries, TRACE_VALUES, ATTN_F32, SHAPE(c->rows, SIZE), c->numbers);
    recipe_describe(r, "The questions", "Q", "%s", c->queries_say);
    recipe_rows(r, query_labels, (size_t)c->rows);
    recipe_printed(r, c->queries_print);
    score(r, c, q, k);

    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(v), 0.5, false, NULL};
    kit_array weights = recipe_step(r, c->weights, TRACE_WEIGHTS, ATTN_F32, SHAPE(c->rows, KEYS));
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "Shares", "A = softmax(S/√4)", "%s", c->weights_say);
    recipe_set_provenance(r, TRACE_SOFTMAX, c->scaled_scores, NULL, 0);
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
            "one_queries", "one_scores", "one_scaled_scores", "one_weights", "one_context", 1,
            (const float[]){0, 10, 0}, "One query, equal to key 1.",
            "The dot product with key 1 is 100, with every other key 0.",
            "Key 1 takes all. The notebook divides by √4 although keys have 3 numbers; √3 would "
            "give 8.4e-26 instead of 1.9e-22.",
            "The value of key 1.", NULL, "tensor([[  0., 100.,   0.,   0.]])",
            "tensor([[ 0., 50.,  0.,  0.]])",
            "tensor([[1.9287e-22, 1.0000e+00, 1.9287e-22, 1.9287e-22]])",
            "tensor([[1.0000e+01, 2.1216e-21, 2.0000e+00]])"},
        k, v);
    look_up(r,
            &(lookup_case){
                "three_queries", "three_scores", "three_scaled_scores", "three_weights",
                "three_context", 3, (const float[]){0, 10, 0, 0, 0, 10, 10, 10, 0},
                "q0 equals key 1. q1 equals keys 2 and 3. q2 is the sum of keys 0 and 1.",
                "q2 fits key 0 and key 1 as well as q0 fits key 1: the dot product is 100 each "
                "time.",
                "Weights are shares, not similarities: two keys that fit equally get one half "
                "each. (The notebook prints it twice, rounded to 3 decimals.)",
                "Two fitting keys: the mean of their values, e.g. (100 + 1000)/2 = 550.",
                "tensor([[ 0., 10.,  0.],\n[ 0.,  0., 10.],\n[10., 10.,  0.]])",
                "tensor([[  0., 100.,   0.,   0.],\n[  0.,   0., 100., 100.],\n"
                "[100., 100.,   0.,   0.]])",
                "tensor([[ 0., 50.,  0.,  0.],\n[ 0.,  0., 50., 50.],\n[50., 50.,  0.,  0.]])",
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

/* What each head makes of the inputs: x·Wᵀ + b, [1, HEADS, WORDS, HEAD]. */
static kit_array project(recipe *r, const char *name, const char *weight, const char *title,
                         const char *formula, const attn_tensor *x, const attn_tensor *w,
                         const attn_tensor *b, const char *torch)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(1, HEADS, WORDS, HEAD));
    recipe_linear(r, recipe_repeat(*x, HEADS), *w, b, recipe_view(out));
    recipe_describe(r, title, formula, "Two numbers for each word, in each head.");
    recipe_set_provenance(r, TRACE_COMPUTED, "mha_inputs", weight, 0);
    recipe_rows(r, word_labels, WORDS);
    recipe_printed(r, torch);
    return out;
}

/* The scores of both heads, before and after the division by √2. Their weights come from the
 * module itself. */
static void score_heads(recipe *r, kit_array q, kit_array k)
{
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(k), 1, false, NULL};
    kit_array raw =
        recipe_step(r, "mha_scores", TRACE_SCORES, ATTN_F32, SHAPE(1, HEADS, WORDS, WORDS));
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(raw));
    recipe_describe(r, "Every word asks, every word answers", "S = Q·Kᵀ",
                    "Each head has its own scores.");
    recipe_set_provenance(r, TRACE_DOT, "mha_queries", "mha_keys", 0);
    recipe_rows(r, word_labels, WORDS);
    recipe_columns(r, word_labels, WORDS);
    recipe_printed(r, "tensor([[[[-0.2057, -0.5286, -0.8515],\n[-0.0355, -0.6774, -1.3192],\n"
                      "[ 0.1348, -0.8261, -1.7870]],\n\n[[ 0.0439, -0.2932, -0.6302],\n"
                      "[ 0.2396, -0.8149, -1.8693],\n[ 0.4352, -1.3365, -3.1083]]]])");

    a.scale = 1 / sqrt(HEAD);
    kit_array scaled =
        recipe_step(r, "mha_scaled_scores", TRACE_SCORES, ATTN_F32, SHAPE(1, HEADS, WORDS, WORDS));
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(scaled));
    recipe_describe(r, "Divided by √2", "S/√2", "A head's queries and keys have 2 numbers.");
    recipe_set_provenance(r, TRACE_SCALE, "mha_scores", NULL, a.scale);
    recipe_rows(r, word_labels, WORDS);
    recipe_columns(r, word_labels, WORDS);
    recipe_printed(r, "tensor([[[[-0.1455, -0.3738, -0.6021],\n[-0.0251, -0.4790, -0.9328],\n"
                      "[ 0.0953, -0.5841, -1.2636]],\n\n[[ 0.0310, -0.2073, -0.4456],\n"
                      "[ 0.1694, -0.5762, -1.3218],\n[ 0.3078, -0.9451, -2.1979]]]])");
}

static void intermediates(recipe *r, const attn_mha_args *args)
{
    r->after_notebook = true;
    kit_array q = project(r, "mha_queries", "mha_w_q", "What each word asks, in each head",
                          "Q = X·W_qᵀ + b_q", &args->x, &args->w_q, &args->b_q,
                          "tensor([[[[-0.3074,  0.0712],\n[-0.5545, -0.7493],\n"
                          "[-0.8016, -1.5697]],\n\n[[-0.2751,  0.1726],\n[-1.0005, -0.1633],\n"
                          "[-1.7258, -0.4992]]]])");
    kit_array k = project(r, "mha_keys", "mha_w_k", "What each word offers, in each head",
                          "K = X·W_kᵀ + b_k", &args->x, &args->w_k, &args->b_k,
                          "tensor([[[[ 0.5808, -0.3824],\n[ 1.6469, -0.3147],\n"
                          "[ 2.7129, -0.2470]],\n\n[[-0.2229, -0.1012],\n[ 0.8664, -0.3179],\n"
                          "[ 1.9557, -0.5345]]]])");
    project(r, "mha_values", "mha_w_v", "What each word hands over, in each head",
            "V = X·W_vᵀ + b_v", &args->x, &args->w_v, &args->b_v,
            "tensor([[[[ 0.5517,  0.3153],\n[ 0.6184,  0.2924],\n"
            "[ 0.6851,  0.2694]],\n\n[[ 0.1223, -0.3853],\n[ 0.7195, -0.7970],\n"
            "[ 1.3167, -1.2088]]]])");
    score_heads(r, q, k);
    r->after_notebook = false;
}

static void run_module(recipe *r, attn_mha_args *args, kit_array w_o, kit_array b_o)
{
    kit_array weights =
        recipe_step(r, "mha_weights", TRACE_WEIGHTS, ATTN_F32, SHAPE(1, HEADS, WORDS, WORDS));
    recipe_describe(r, "The weights of both heads", "A = softmax(S/√2)",
                    "Row asks, column answers.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "mha_scaled_scores", NULL, 0);
    recipe_rows(r, word_labels, WORDS);
    recipe_columns(r, word_labels, WORDS);
    recipe_printed(r, "torch.Size([1, 2, 3, 3])");
    kit_array heads =
        recipe_step(r, "mha_heads", TRACE_VALUES, ATTN_F32, SHAPE(1, HEADS, WORDS, HEAD));
    recipe_describe(r, "Each head's context", "A·V", "Two numbers for each word.");
    recipe_set_provenance(r, TRACE_MIX, "mha_weights", "mha_values", 0);
    recipe_rows(r, word_labels, WORDS);
    kit_array joined = recipe_step(r, "mha_concat", TRACE_VALUES, ATTN_F32, SHAPE(1, WORDS, MODEL));
    recipe_describe(r, "The heads side by side", "concat", "Head 1 in front, head 2 behind.");
    recipe_set_provenance(r, TRACE_COMPUTED, "mha_heads", NULL, 0);
    recipe_rows(r, word_labels, WORDS);
    kit_array out = recipe_step(r, "mha_output", TRACE_VALUES, ATTN_F32, SHAPE(1, WORDS, MODEL));
    recipe_describe(r, "The module's output", "concat·W_oᵀ + b_o",
                    "In training, dropout would zero each number with probability 0.3 and "
                    "multiply the others by 1/0.7.");
    recipe_set_provenance(r, TRACE_COMPUTED, "mha_concat", "mha_out_weight", 0);
    recipe_rows(r, word_labels, WORDS);

    attn_tensor weights_out = recipe_view(weights);
    args->out = attn_bhtd(joined.data, ATTN_F32, 1, 1, WORDS, MODEL);
    attn_sdpa_args attention = ATTN_SDPA_ARGS_INIT;
    attention.scores = &weights_out;
    attention.scores_stage = ATTN_STAGE_WEIGHTS;
    attention.precision = ATTN_PRECISION_ACCURATE; /* as the other steps (recipe_scores) */
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
    intermediates(r, &args);
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
    recipe_health(
        &r, "three_weights",
        &(recipe_advice){"Here that is the point: keys with a single 10 make a look-up table.",
                         NULL, NULL, NULL});
    recipe_note(&r, "slip",
                "The default d_k = 4 does not fit keys of 3 numbers; write √(K.shape[-1]). The "
                "results above keep the notebook's √4.");
    recipe_note(
        &r, "slip",
        "NameError: name 'nn' is not defined - the cell with `from torch import nn` had not "
        "run. attn_weights.shape, printed after it, is left over from an earlier run and "
        "agrees with the shape here.");
    recipe_note(&r, "next", "--check  --full  --quiz  -o map.svg  --json");
    return recipe_end(&r);
}
