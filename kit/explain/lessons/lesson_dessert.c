/* Lesson `dessert`: attention of one query of "Life is short, eat dessert last", step by step, then
 * with three heads.
 *
 * The notebook draws from torch.manual_seed(123): Embedding(6, 16), then W_q, W_k, W_v, then W_q,
 * W_k, W_v for three heads. It prints numbers for the first half and only shapes for the second.
 */
#include <math.h>
#include <stdlib.h>

#include "../recipe.h"
#include "lessons.h"

enum { WORDS = 6, EMBED = 16, QK = 24, VALUE = 28, HEADS = 3, ASKS = 1 /* "is" */ };

static const char *const asking[] = {"is"};
static const char *const heads_asking[] = {"head 1: is", "head 2: is", "head 3: is"};

static kit_array draw(recipe *r, attn_rng *rng, const char *name, const char *title,
                      const char *printed, int rank, const int64_t *shape)
{
    kit_array w = recipe_step(r, name, TRACE_VALUES, ATTN_F32, rank, shape);
    if (r->status == KIT_OK) {
        attn_rng_randn(rng, w.data, (size_t)kit_array_count(&w));
    }
    recipe_describe(r, title, "N(0,1)", "Drawn, not trained, and not divided by √%d.", EMBED);
    recipe_printed(r, printed);
    return w;
}

static kit_array embed(recipe *r, attn_rng *rng)
{
    r->section = "Create the embedding";
    kit_words *words = &r->trace->words;
    recipe_add_copy(r, "vocabulary_ids", TRACE_IDS, ATTN_I64, SHAPE(WORDS),
                    (int64_t[]){0, 1, 2, 3, 4, 5});
    recipe_columns(r, (const char *const *)words->vocabulary, words->vocabulary_count);
    recipe_check_only(r, "vocabulary",
                      "{'Life': 0, 'dessert': 1, 'eat': 2, 'is': 3, 'last': 4, 'short': 5}");

    kit_array ids = recipe_add_copy(r, "token_ids", TRACE_IDS, ATTN_I64, SHAPE(WORDS), words->id);
    recipe_describe(r, "Words to numbers", "", "The sorted words are numbered from 0.");
    recipe_word_columns(r);
    recipe_printed(r, "tensor([0, 3, 5, 2, 1, 4])");

    kit_array table = draw(r, rng, "embedding_table", "A random vector for every word", NULL,
                           SHAPE(WORDS, EMBED));
    recipe_describe(r, "A random vector for every word", "N(0,1)", "Embedding(6, 16), seed 123.");
    recipe_rows(r, (const char *const *)words->vocabulary, words->vocabulary_count);

    kit_array x = recipe_step(r, "embeddings", TRACE_VALUES, ATTN_F32, SHAPE(WORDS, EMBED));
    recipe_lookup(r, ids, table, x);
    recipe_describe(r, "Each word takes its row of the table", "X = table[ids]", "%s", "");
    recipe_set_provenance(r, TRACE_LOOKUP, "token_ids", "embedding_table", 0);
    recipe_word_rows(r);
    recipe_printed(
        r, "tensor([[ 0.3374, -0.1778, -0.3035, -0.5880,  0.3486,  0.6603, -0.2196, -0.3792,\n"
           "0.7671, -1.1925,  0.6984, -1.4097,  0.1794,  1.8951,  0.4954,  0.2692],\n"
           "[ 0.8768,  1.6221, -1.4779,  1.1331, -1.2203,  1.3139,  1.0533,  0.1388,\n"
           "2.2473, -0.8036, -0.2808,  0.7697, -0.6596, -0.7979,  0.1838,  0.2293],\n"
           "[ 0.2553, -0.5496,  1.0042,  0.8272, -0.3948,  0.4892, -0.2168, -1.7472,\n"
           "-1.6025, -1.0764,  0.9031, -0.7218, -0.5951, -0.7112,  0.6230, -1.3729],\n"
           "[-1.3250,  0.1784, -2.1338,  1.0524, -0.3885, -0.9343, -0.4991, -1.0867,\n"
           "0.8805,  1.5542,  0.6266, -0.1755,  0.0983, -0.0935,  0.2662, -0.5850],\n"
           "[-0.0770, -1.0205, -0.1690,  0.9178,  1.5810,  1.3010,  1.2753, -0.2010,\n"
           "0.4965, -1.5723,  0.9666, -1.1481, -1.1589,  0.3255, -0.6315, -2.8400],\n"
           "[ 0.5146,  0.9938, -0.2587, -1.0826, -0.0444,  1.6236, -2.3229,  1.0878,\n"
           "0.6716,  0.6933, -0.9487, -0.0765, -0.1526,  0.1167,  0.4403, -1.4465]])\n"
           "torch.Size([6, 16])");
    return x;
}

/* Projections of only the second word: [1,E] x [D,E]^T -> [D]. */
static kit_array project_query(recipe *r, kit_array x, kit_array w, const char *name,
                               const char *weight, const char *title, const char *formula,
                               const char *printed, int64_t size)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(size));
    recipe_linear(r, recipe_row(x, ASKS), recipe_view(w), NULL, recipe_view(out));
    recipe_describe(r, title, formula, "%s", "");
    recipe_set_provenance(r, TRACE_PROJECT, "embeddings", weight, 0);
    recipe_rows(r, asking, 1);
    recipe_printed(r, printed);
    return out;
}

static kit_array project_all(recipe *r, kit_array x, kit_array w, const char *name,
                             const char *weight, const char *title, const char *formula,
                             const char *printed, int64_t size)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(WORDS, size));
    recipe_linear(r, recipe_view(x), recipe_view(w), NULL, recipe_view(out));
    recipe_describe(r, title, formula, "%s", "");
    recipe_set_provenance(r, TRACE_PROJECT, "embeddings", weight, 0);
    recipe_word_rows(r);
    recipe_printed(r, printed);
    return out;
}

/* An absolute error of a score becomes an equally large relative error of the weight after
 * softmax. */
static void weights_slack(recipe *r)
{
    recipe_slack(r, 0, 2e-5,
                 "a float score of 160 is known to 1e-05, so a weight to 2e-05 of itself");
}

static void attend_one(recipe *r, kit_array q, kit_array keys, kit_array values)
{
    recipe_attention a = {
        recipe_view(q), recipe_row(keys, 4), recipe_row(values, 4), 1, false, NULL};
    kit_array one = recipe_step(r, "score_24", TRACE_SCALAR, ATTN_F32, 0, NULL);
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(one));
    recipe_describe(r, "\"is\" asks, \"dessert\" answers", "ω_24 = q_2·k_4",
                    "Counted from 0, key 4 is the fifth word.");
    recipe_printed(r, "tensor(58.9875)");

    a.k = recipe_view(keys);
    a.v = recipe_view(values);
    kit_array scores = recipe_step(r, "scores_2", TRACE_SCORES, ATTN_F32, SHAPE(WORDS));
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(scores));
    recipe_describe(r, "\"is\" asks, every word answers", "ω_2 = q_2·Kᵀ", "%s", "");
    recipe_set_provenance(r, TRACE_DOT, "query_2", "keys", 0);
    recipe_rows(r, asking, 1);
    recipe_word_columns(r);
    recipe_printed(r, "tensor([ -57.1016,  -85.4889,  160.1854, -144.2133,   58.9875,  -80.1705])");

    r->section = "Step 2: Normalization";
    a.scale = 0;
    kit_array weights = recipe_step(r, "weights_2", TRACE_WEIGHTS, ATTN_F32, SHAPE(WORDS));
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "Softmax of the scores divided by √24", "α_2 = softmax(ω_2/√24)",
                    "One key takes everything: the scores are far apart even after the division.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "scores_2", NULL, 1 / sqrt(QK));
    recipe_rows(r, asking, 1);
    recipe_word_columns(r);
    recipe_printed(
        r, "tensor([5.4640e-20, 1.6633e-22, 1.0000e+00, 1.0353e-27, 1.0686e-09, 4.9255e-22])");
    weights_slack(r);

    r->section = "Step 3: Compute the Context Vector";
    kit_array context = recipe_step(r, "context_2", TRACE_VALUES, ATTN_F32, SHAPE(VALUE));
    recipe_context(r, &a, recipe_view(context));
    recipe_describe(r, "Mix the values by the weights", "z_2 = α_2·V", "%s", "");
    recipe_set_provenance(r, TRACE_MIX, "weights_2", "values", 0);
    recipe_rows(r, asking, 1);
    recipe_printed(
        r, "tensor([-4.6812,  4.3038, -5.0492, -2.6208, -2.4619, -0.3670, -1.0982,  3.0041,\n"
           "-2.2975,  3.9133, -3.7064, -1.8859,  3.9662, -4.3787, -1.7991,  4.1266,\n"
           "-2.3905,  2.7373,  2.9809,  6.5839,  0.3691, -6.0942,  3.2605, -3.9929,\n"
           "6.6571,  1.6524, -4.1800,  2.8630])\n"
           "torch.Size([28])");
}

static void one_query(recipe *r, attn_rng *rng, kit_array x)
{
    r->section = "Step 1: Compute unnormalized attention weights";
    kit_array w_q = draw(r, rng, "w_q", "What a word asks for: its matrix", "torch.Size([24, 16])",
                         SHAPE(QK, EMBED));
    kit_array w_k = draw(r, rng, "w_k", "What a word offers: its matrix", "torch.Size([24, 16])",
                         SHAPE(QK, EMBED));
    kit_array w_v = draw(r, rng, "w_v", "What a word hands over: its matrix",
                         "torch.Size([28, 16])", SHAPE(VALUE, EMBED));

    const float *row = r->status == KIT_OK ? (const float *)x.data + ASKS * EMBED : NULL;
    recipe_add_copy(r, "x_2", TRACE_VALUES, ATTN_F32, SHAPE(EMBED), row);
    recipe_check_only(
        r, "x_2",
        "tensor([ 0.8768,  1.6221, -1.4779,  1.1331, -1.2203,  1.3139,  1.0533,  0.1388,\n"
        "2.2473, -0.8036, -0.2808,  0.7697, -0.6596, -0.7979,  0.1838,  0.2293])");
    kit_array q = project_query(r, x, w_q, "query_2", "w_q", "The query of the second word, \"is\"",
                                "q_2 = W_q·x_2", "torch.Size([24])", QK);
    project_query(r, x, w_k, "key_2", "w_k", "Its key", "k_2 = W_k·x_2", "torch.Size([24])", QK);
    project_query(r, x, w_v, "value_2", "w_v", "Its value", "v_2 = W_v·x_2", "torch.Size([28])",
                  VALUE);
    kit_array keys = project_all(r, x, w_k, "keys", "w_k", "The keys of all words", "K = X·W_kᵀ",
                                 "torch.Size([6, 24])", QK);
    kit_array values = project_all(r, x, w_v, "values", "w_v", "The values of all words",
                                   "V = X·W_vᵀ", "torch.Size([6, 28])", VALUE);
    attend_one(r, q, keys, values);
}

/* The notebook keeps keys and values of the heads transposed: [3, 24, 6]. */
static kit_array project_heads(recipe *r, kit_array x, kit_array w, const char *name,
                               const char *title, const char *formula, const char *printed,
                               int64_t size)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(HEADS, size, WORDS));
    recipe_linear(r, recipe_repeat(recipe_view(x), HEADS), recipe_view(w), NULL,
                  recipe_swapped(recipe_view(out)));
    recipe_describe(r, title, formula, "The notebook keeps them as columns, one word each.");
    recipe_word_columns(r);
    recipe_printed(r, printed);
    return out;
}

static void attend_heads(recipe *r, kit_array q, kit_array keys, kit_array values)
{
    recipe_attention a = {recipe_view(q),
                          recipe_swapped(recipe_view(keys)),
                          recipe_swapped(recipe_view(values)),
                          1,
                          false,
                          NULL};
    kit_array scores =
        recipe_step(r, "heads_scores_2", TRACE_SCORES, ATTN_F32, SHAPE(HEADS, WORDS));
    attn_tensor by_head = attn_bhtd(scores.data, ATTN_F32, 1, HEADS, 1, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_RAW, by_head);
    recipe_describe(r, "Each head scores every word", "ω_2 = q_2·K", "A row is a head here.");
    recipe_rows(r, heads_asking, HEADS);
    recipe_word_columns(r);
    recipe_printed(r, "torch.Size([3, 6])");

    a.scale = 0;
    kit_array weights =
        recipe_step(r, "heads_weights_2", TRACE_WEIGHTS, ATTN_F32, SHAPE(HEADS, WORDS));
    by_head = attn_bhtd(weights.data, ATTN_F32, 1, HEADS, 1, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, by_head);
    recipe_describe(r, "Each head's weights", "α_2 = softmax(ω_2/√24)",
                    "The same word, asked through three matrices, looks in three places.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "heads_scores_2", NULL, 1 / sqrt(QK));
    recipe_rows(r, heads_asking, HEADS);
    recipe_word_columns(r);
    recipe_printed(r, "torch.Size([3, 6])");

    kit_array context =
        recipe_step(r, "heads_context_2", TRACE_VALUES, ATTN_F32, SHAPE(HEADS, VALUE));
    recipe_context(r, &a, attn_bhtd(context.data, ATTN_F32, 1, HEADS, 1, VALUE));
    recipe_describe(r, "Each head's context vector", "z_2 = V·α_2",
                    "The notebook stops here: it does not join the heads or project them.");
    recipe_rows(r, heads_asking, HEADS);
    recipe_printed(r, "torch.Size([3, 28])");
}

static void three_heads(recipe *r, attn_rng *rng, kit_array x)
{
    r->section = "Multi Head Attention";
    kit_array w_q = draw(r, rng, "heads_w_q", "Three heads: three query matrices",
                         "torch.Size([3, 24, 16])", SHAPE(HEADS, QK, EMBED));
    kit_array w_k = draw(r, rng, "heads_w_k", "Three key matrices", "torch.Size([3, 24, 16])",
                         SHAPE(HEADS, QK, EMBED));
    kit_array w_v = draw(r, rng, "heads_w_v", "Three value matrices", "torch.Size([3, 28, 16])",
                         SHAPE(HEADS, VALUE, EMBED));

    recipe_step(r, "heads_q_2", TRACE_VALUES, ATTN_F32, SHAPE(HEADS, QK));
    recipe_check_only(r, "q_2 as first printed", "torch.Size([3, 24])");
    recipe_step(r, "input_stack", TRACE_VALUES, ATTN_F32, SHAPE(HEADS, EMBED, WORDS));
    recipe_check_only(r, "input_stack", "torch.Size([3, 16, 6])");

    kit_array q = recipe_step(r, "heads_query_2", TRACE_VALUES, ATTN_F32, SHAPE(HEADS, 1, QK));
    recipe_linear(r, recipe_repeat(recipe_row(x, ASKS), HEADS), recipe_view(w_q), NULL,
                  recipe_view(q));
    recipe_describe(r, "\"is\" asks three different questions", "q_2 = W_q·x_2", "%s", "");
    recipe_set_provenance(r, TRACE_PROJECT, "embeddings", "heads_w_q", 0);
    recipe_rows(r, asking, 1);
    recipe_printed(r, "torch.Size([3, 1, 24])");
    kit_array keys = project_heads(r, x, w_k, "heads_keys", "Every head's keys", "K = W_k·Xᵀ",
                                   "torch.Size([3, 24, 6])", QK);
    kit_array values = project_heads(r, x, w_v, "heads_values", "Every head's values", "V = W_v·Xᵀ",
                                     "torch.Size([3, 28, 6])", VALUE);
    attend_heads(r, q, keys, values);
}

int lesson_dessert(trace *t, attn_context *ctx, kit_error *err)
{
    recipe r = recipe_begin(t, ctx, err, "dessert", "Scaled Dot Product Attention",
                            "Life is short, eat dessert last");
    recipe_setting(&r, "n = 6, d = 16, d_k = 24, d_v = 28, scores ÷ √24, no mask, seed 123");
    t->query = ASKS;
    attn_rng *rng = malloc(sizeof *rng);
    if (rng == NULL) {
        recipe_fail(&r, KIT_LIMIT, "no memory");
        return recipe_end(&r);
    }
    attn_rng_seed(rng, 123);
    kit_array x = embed(&r, rng);
    one_query(&r, rng, x);
    three_heads(&r, rng, x);
    free(rng);
    recipe_health(&r, "weights_2",
                  &(recipe_advice){
                      "W_q and W_k are N(0,1) and not divided by √16, so scores are 16 times too "
                      "large for the division by √24.",
                      "attn explain --scale 0.0128 \"Life is short, eat dessert last\"", NULL,
                      NULL});
    recipe_note(&r, "next", "--check  --full  --quiz  -o map.svg  --json");
    return recipe_end(&r);
}
