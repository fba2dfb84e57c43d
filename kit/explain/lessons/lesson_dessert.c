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

enum { WORDS = 6, EMBED = 16, QK = 24, VALUE = 28, HEADS = 3 };
enum { ASKS = 1, DESSERT = 4 }; /* words of the sentence: "is" asks */

static const char *const asking[] = {"is"};
static const char *const heads_asking[] = {"head 1: is", "head 2: is", "head 3: is"};

static kit_array draw(recipe *r, attn_rng *rng, const char *name, const char *title,
                      const char *sentence, const char *printed, int rank, const int64_t *shape)
{
    kit_array w = recipe_step(r, name, TRACE_VALUES, ATTN_F32, rank, shape);
    if (r->status == KIT_OK) {
        attn_rng_randn(rng, w.data, (size_t)kit_array_count(&w));
    }
    recipe_describe(r, title, "N(0,1)", "%s", sentence);
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

    kit_array table = draw(r, rng, "embedding_table", "A random vector for every word",
                           "Embedding(6, 16), seed 123.", NULL, SHAPE(WORDS, EMBED));
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
                    "The 2 counts from 1, the 4 from 0: the second word asks the fifth.");
    recipe_set_provenance(r, TRACE_COMPUTED, "query_2", "keys", 0);
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
    r->after_notebook = true;
    kit_array scaled = recipe_step(r, "scaled_scores_2", TRACE_SCORES, ATTN_F32, SHAPE(WORDS));
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(scaled));
    recipe_describe(
        r, "Divide by √24", "ω_2/√24",
        "The notebook divides in the same line as its softmax and does not print this.");
    recipe_set_provenance(r, TRACE_SCALE, "scores_2", NULL, 1 / sqrt(QK));
    r->after_notebook = false;
    recipe_rows(r, asking, 1);
    recipe_word_columns(r);
    recipe_printed(r, "tensor([-11.6558, -17.4503,  32.6977, -29.4374,  12.0408, -16.3647])");

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

static kit_array square(recipe *r, const recipe_attention *a, attn_stage stage, const char *name,
                        trace_kind kind)
{
    kit_array out = recipe_step(r, name, kind, ATTN_F32, SHAPE(WORDS, WORDS));
    recipe_scores(r, a, stage, recipe_view(out));
    recipe_word_rows(r);
    recipe_word_columns(r);
    return out;
}

static kit_array ask_all(recipe *r, kit_array x, kit_array w_q)
{
    return project_all(
        r, x, w_q, "queries", "w_q", "The queries of all words", "Q = X·W_qᵀ",
        "tensor([[ -1.6717,   1.7326,  -1.4594,  -0.4322,  -4.7169,   3.5941,   1.5346,  -0.0782,\n"
        "-0.5849,   3.5472,  -2.4508,  -2.4372,  -3.2671,   5.5610,  -1.1350,   1.1892,\n"
        "0.6239,  -3.9079,  -2.9189,   2.9161,  -3.9591,  -0.8136,   3.6553,   3.1047],\n"
        "[  4.9581,  -1.2789,  -4.9741,  -0.2454,   9.4157,  -0.1237,  -6.0547,  -6.1946,\n"
        "6.3639,  -0.3888,  -4.2253,   0.8426,  -0.3154,   2.0442,   2.7836,   0.7868,\n"
        "2.7569,  -4.6386,  -0.9016,   2.8368,   7.2000,   2.4577,   2.5860,   5.6345],\n"
        "[ -6.8568,   1.1368,   0.1151,   1.5371,   0.0354,   3.1636,  -0.2921,  -4.0267,\n"
        "-0.6873,   3.5490,   0.0121,   2.2336,   3.9736,  -3.6155,  -1.6070,   4.0439,\n"
        "2.4038,   7.5289,  -1.5975,   2.2474,   1.3399,   2.0860,  -1.3421,  -2.3087],\n"
        "[ 10.9659,  -0.3370,  -1.5284,   2.1753,  -1.5182,  -0.8918,   3.9969,   2.2116,\n"
        "1.9434,  -7.0560,  -1.1156,  -3.8823,  -0.8969,   1.4449,   4.8570,   2.5977,\n"
        "-7.4180,  -2.9657,  -0.0834,  -6.8011,   2.3075,  -1.7444,  -2.9955,   3.1942],\n"
        "[  2.7483,   9.0642,  -2.1850,   3.9030, -12.6242,   8.1090,  -0.4171,  -4.4299,\n"
        "3.9400,   5.7993,   0.6574,  -4.2112,  -0.2574,  -2.8371,  -5.9662,   6.5399,\n"
        "3.6572,   4.4786,  -2.1467,  -2.4594,  -4.9867,   0.6379,  -1.7734,   5.2838],\n"
        "[ -3.8294,   1.6485,  -0.8321,  -1.8455,  -8.6860,  -3.0060,   1.3036,   1.6215,\n"
        "-0.9961,   3.6527,   7.8168,   1.9108,  -1.7307,  -1.4047,   3.3156,  -6.8919,\n"
        "5.1856,  -1.4953,  -4.1101,  -0.9347,  -0.9231,  -0.5597,   3.2507,   2.3086]])",
        QK);
}

static void score_all(recipe *r, recipe_attention *a)
{
    square(r, a, ATTN_STAGE_RAW, "scores", TRACE_SCORES);
    recipe_describe(r, "Every word asks, every word answers", "S = Q·Kᵀ",
                    "The second row is the ω_2 computed above.");
    recipe_set_provenance(r, TRACE_DOT, "queries", "keys", 0);
    recipe_printed(r,
                   "tensor([[  25.7765,   -6.9029,   21.3752,   35.0973,   28.6264,   64.7223],\n"
                   "[ -57.1016,  -85.4889,  160.1854, -144.2132,   58.9875,  -80.1706],\n"
                   "[  17.8564,   41.9899,   45.2231,   -0.6735,  -41.7342,  -53.9958],\n"
                   "[  -2.9330,   -7.0727,  -45.3250,  -68.8792,   47.5412,  -36.8790],\n"
                   "[  71.5802,  109.4372,   -6.2691,  -17.6301,  -67.1989,   59.2737],\n"
                   "[  60.0227,  -32.5871,  -84.6935,  113.8515,  -42.7268,   62.9520]])");

    a->scale = 0;
    square(r, a, ATTN_STAGE_RAW, "scaled_scores", TRACE_SCORES);
    recipe_describe(r, "Divide by √24", "S/√24", "%s", "");
    recipe_set_provenance(r, TRACE_SCALE, "scores", NULL, 1 / sqrt(QK));
    recipe_printed(r, "tensor([[  5.2616,  -1.4090,   4.3632,   7.1642,   5.8433,  13.2114],\n"
                      "[-11.6558, -17.4503,  32.6977, -29.4374,  12.0408, -16.3647],\n"
                      "[  3.6449,   8.5712,   9.2311,  -0.1375,  -8.5190, -11.0219],\n"
                      "[ -0.5987,  -1.4437,  -9.2519, -14.0599,   9.7043,  -7.5279],\n"
                      "[ 14.6112,  22.3388,  -1.2797,  -3.5987, -13.7169,  12.0992],\n"
                      "[ 12.2521,  -6.6518, -17.2880,  23.2398,  -8.7216,  12.8500]])");
}

static void weigh_all(recipe *r, const recipe_attention *a)
{
    square(r, a, ATTN_STAGE_WEIGHTS, "weights", TRACE_WEIGHTS);
    recipe_describe(r, "Softmax of each row", "A = softmax(S/√24)", "Each row adds up to 1.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "scaled_scores", NULL, 0);
    recipe_printed(
        r, "tensor([[3.5151e-04, 4.4557e-07, 1.4314e-04, 2.3563e-03, 6.2891e-04, 9.9652e-01],\n"
           "[5.4640e-20, 1.6633e-22, 1.0000e+00, 1.0353e-27, 1.0686e-09, 4.9255e-22],\n"
           "[2.4655e-03, 3.3989e-01, 6.5759e-01, 5.6134e-05, 1.2859e-08, 1.0524e-09],\n"
           "[3.3531e-05, 1.4403e-05, 5.8533e-09, 4.7788e-11, 9.9995e-01, 3.2820e-08],\n"
           "[4.4032e-04, 9.9952e-01, 5.5263e-11, 5.4360e-12, 2.1928e-16, 3.5711e-05],\n"
           "[1.6907e-05, 1.0428e-13, 2.5059e-18, 9.9995e-01, 1.3162e-14, 3.0743e-05]])");
    weights_slack(r);
}

static void mix_all(recipe *r, const recipe_attention *a)
{
    kit_array context = recipe_step(r, "context", TRACE_VALUES, ATTN_F32, SHAPE(WORDS, VALUE));
    recipe_context(r, a, recipe_view(context));
    recipe_describe(r, "Mix the values by the weights", "Z = A·V", "A new vector for each word.");
    recipe_set_provenance(r, TRACE_MIX, "weights", "values", 0);
    recipe_word_rows(r);
    recipe_printed(
        r, "tensor([[-3.6976, -6.9140,  1.2247, -5.5068,  0.7373,  0.2302,  0.5200, -0.6831,\n"
           "-2.5114,  1.6342,  0.9951,  0.0943, -4.4946,  5.9022,  0.7002, -0.4917,\n"
           "-3.5709,  0.6865, -6.3404, -7.1859, -2.5373,  0.3005, -8.1237, -0.2483,\n"
           "1.3499,  2.7440,  2.9472, -9.0467],\n"
           "[-4.6812,  4.3038, -5.0492, -2.6208, -2.4619, -0.3670, -1.0982,  3.0041,\n"
           "-2.2975,  3.9133, -3.7064, -1.8859,  3.9662, -4.3787, -1.7991,  4.1266,\n"
           "-2.3905,  2.7373,  2.9809,  6.5839,  0.3691, -6.0942,  3.2605, -3.9929,\n"
           "6.6571,  1.6524, -4.1800,  2.8630],\n"
           "[-1.6263,  3.5346, -0.8207, -2.9201, -2.2282,  1.9072,  3.3062,  3.3336,\n"
           "-3.1251,  2.1758, -1.8205, -1.9688,  0.5849, -2.3337,  0.4656,  3.9399,\n"
           "-1.1177,  1.2463, -0.4517,  2.6789, -1.4176, -5.0643, -0.6615, -2.8823,\n"
           "3.0893,  2.2496, -2.9845,  1.3606],\n"
           "[ 1.6829,  8.5232, -4.8859,  2.9947, -3.4946,  1.3020,  1.5345, 10.8818,\n"
           "2.2449,  0.8978, -6.1038,  3.8956, -0.3599, -0.8926, -2.2440,  1.3043,\n"
           "8.6541, -0.3201,  1.5601,  0.0595, -2.1695, -2.9433,  3.0127, -5.0642,\n"
           "3.9715,  2.2829, -1.5827, -2.1851],\n"
           "[ 4.2623,  2.0647,  7.3614, -3.5290, -1.7833,  6.3558, 11.8600,  3.9779,\n"
           "-4.7278, -1.1586,  1.8410, -2.1381, -5.9375,  1.5763,  4.8886,  3.6524,\n"
           "1.3113, -1.6560, -7.1020, -4.8519, -4.9015, -3.1222, -8.2599, -0.7975,\n"
           "-3.8032,  3.4040, -0.6799, -1.5502],\n"
           "[ 0.3977, -3.0851,  3.3688, -1.0390,  2.8979,  7.4940,  6.4365, -7.8139,\n"
           "9.8090,  0.5240, -5.5113,  8.9928, -2.0911,  3.6275,  1.4384, -0.7686,\n"
           "-0.3094, -1.8151, -3.6838, -1.0708,  2.0284, -3.9039, -0.0771,  1.2475,\n"
           "1.5131, -6.5118, -0.1297, -4.8024]])");
}

/* What dividing the scores by another 16 would change. */
static void weigh_divided(recipe *r, recipe_attention *a)
{
    a->scale = 1 / (sqrt(QK) * EMBED);
    square(r, a, ATTN_STAGE_WEIGHTS, "divided_weights", TRACE_WEIGHTS);
    recipe_describe(r, "The same with W_q and W_k divided by √16", "softmax(S/16/√24)",
                    "Every score is 16 times smaller, so every word keeps a share.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "scores", NULL, 1 / (sqrt(QK) * EMBED));
    recipe_printed(r, "tensor([[0.1560, 0.1028, 0.1475, 0.1757, 0.1617, 0.2564],\n"
                      "[0.0432, 0.0301, 0.6905, 0.0142, 0.1899, 0.0322],\n"
                      "[0.1840, 0.2503, 0.2609, 0.1452, 0.0860, 0.0736],\n"
                      "[0.1813, 0.1720, 0.1056, 0.0782, 0.3453, 0.1176],\n"
                      "[0.2306, 0.3738, 0.0854, 0.0739, 0.0393, 0.1971],\n"
                      "[0.2101, 0.0645, 0.0332, 0.4175, 0.0566, 0.2181]])");
}

/* What the notebook does for one word, for all six at once. */
static void all_queries(recipe *r, kit_array x, kit_array w_q, kit_array keys, kit_array values)
{
    r->section = "All words at once";
    r->after_notebook = true;
    kit_array q = ask_all(r, x, w_q);
    recipe_attention a = {recipe_view(q), recipe_view(keys), recipe_view(values), 1, false, NULL};
    score_all(r, &a);
    weigh_all(r, &a);
    mix_all(r, &a);
    weigh_divided(r, &a);
    r->after_notebook = false;
}

static void one_query(recipe *r, attn_rng *rng, kit_array x)
{
    r->section = "Step 1: Compute unnormalized attention weights";
    static const char roles[] =
        "Three matrices make of each word a question (query), a label (key) and a content (value). "
        "Query and key must be equally long, 24, because they are multiplied number by number; a "
        "value may have any length. Drawn, not trained, and not divided by √16.";
    kit_array w_q = draw(r, rng, "w_q", "What a word asks for: its matrix", roles,
                         "torch.Size([24, 16])", SHAPE(QK, EMBED));
    kit_array w_k = draw(r, rng, "w_k", "What a word offers: its matrix", roles,
                         "torch.Size([24, 16])", SHAPE(QK, EMBED));
    kit_array w_v = draw(r, rng, "w_v", "What a word hands over: its matrix", roles,
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
    all_queries(r, x, w_q, keys, values);
}

/* The notebook keeps keys and values of the heads transposed: [3, 24, 6]. */
static kit_array project_heads(recipe *r, kit_array x, kit_array w, const char *name,
                               const char *weight, const char *title, const char *formula,
                               const char *printed, int64_t size)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(HEADS, size, WORDS));
    recipe_linear(r, recipe_repeat(recipe_view(x), HEADS), recipe_view(w), NULL,
                  recipe_swapped(recipe_view(out)));
    recipe_describe(r, title, formula, "The notebook keeps them as columns, one word each.");
    recipe_set_provenance(r, TRACE_COMPUTED, "embeddings", weight, 0);
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
    recipe_set_provenance(r, TRACE_COMPUTED, "heads_query_2", "heads_keys", 0);
    recipe_rows(r, heads_asking, HEADS);
    recipe_word_columns(r);
    recipe_printed(r, "torch.Size([3, 6])");

    a.scale = 0;
    kit_array weights =
        recipe_step(r, "heads_weights_2", TRACE_WEIGHTS, ATTN_F32, SHAPE(HEADS, WORDS));
    by_head = attn_bhtd(weights.data, ATTN_F32, 1, HEADS, 1, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, by_head);
    recipe_describe(
        r, "Each head's weights", "α_2 = softmax(ω_2/√24)",
        "Head 1 looks at \"eat\" and \"dessert\", heads 2 and 3 both at \"Life\": nothing "
        "makes random heads differ usefully.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "heads_scores_2", NULL, 1 / sqrt(QK));
    recipe_rows(r, heads_asking, HEADS);
    recipe_word_columns(r);
    recipe_printed(r, "torch.Size([3, 6])");

    kit_array context =
        recipe_step(r, "heads_context_2", TRACE_VALUES, ATTN_F32, SHAPE(HEADS, VALUE));
    recipe_context(r, &a, attn_bhtd(context.data, ATTN_F32, 1, HEADS, 1, VALUE));
    recipe_describe(r, "Each head's context vector", "z_2 = V·α_2",
                    "The notebook stops here: it does not join the heads or project them.");
    recipe_set_provenance(r, TRACE_COMPUTED, "heads_weights_2", "heads_values", 0);
    recipe_rows(r, heads_asking, HEADS);
    recipe_printed(r, "torch.Size([3, 28])");
}

static void three_heads(recipe *r, attn_rng *rng, kit_array x)
{
    r->section = "Multi Head Attention";
    static const char own[] = "Each head has three matrices of its own. Drawn, not trained, and "
                              "not divided by √16.";
    kit_array w_q = draw(r, rng, "heads_w_q", "Three heads: three query matrices", own,
                         "torch.Size([3, 24, 16])", SHAPE(HEADS, QK, EMBED));
    kit_array w_k = draw(r, rng, "heads_w_k", "Three key matrices", own, "torch.Size([3, 24, 16])",
                         SHAPE(HEADS, QK, EMBED));
    kit_array w_v = draw(r, rng, "heads_w_v", "Three value matrices", own,
                         "torch.Size([3, 28, 16])", SHAPE(HEADS, VALUE, EMBED));

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
    kit_array keys = project_heads(r, x, w_k, "heads_keys", "heads_w_k", "Every head's keys",
                                   "K = W_k·Xᵀ", "torch.Size([3, 24, 6])", QK);
    kit_array values = project_heads(r, x, w_v, "heads_values", "heads_w_v", "Every head's values",
                                     "V = W_v·Xᵀ", "torch.Size([3, 28, 6])", VALUE);
    attend_heads(r, q, keys, values);
}

/* What saturation means for training, with this lesson's numbers. */
static void say_health(recipe *r)
{
    char cause[512];
    const trace_step *weights = trace_find(r->trace, "weights_2");
    double w = weights != NULL ? kit_array_get(&weights->tensor, DESSERT) : 0;
    double raised = w * exp(1) / (1 + w * (exp(1) - 1));
    snprintf(
        cause, sizeof cause,
        "Each number of a query adds 16 products, so it is about √16 = 4 in size, and a key's "
        "too: the scores are 4·4 = 16 times larger than with W_q and W_k divided by √16. Raise "
        "the scaled score of \"dessert\" by 1, and its weight goes from %.0e to %.0e: training "
        "sees no difference and cannot improve it.",
        w, raised);
    recipe_health(
        r, "weights_2",
        &(recipe_advice){cause, "attn explain --scale 0.0128 \"Life is short, eat dessert last\"",
                         NULL, NULL});
}

int lesson_dessert(trace *t, attn_context *ctx, kit_error *err)
{
    recipe r = recipe_begin(t, ctx, err, "dessert", "Scaled Dot Product Attention",
                            "Life is short, eat dessert last");
    recipe_setting(
        &r,
        "n = 6 words, d = 16 numbers a word, d_k = 24 numbers in a query and in a key, d_v = 28 "
        "in a value; scores ÷ √24, no mask, seed 123");
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
    say_health(&r);
    recipe_note(&r, "next", "--check  --full  --quiz  -o map.svg  --json");
    return recipe_end(&r);
}
