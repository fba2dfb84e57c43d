/* Lesson `journey`: "Your journey starts with one step", from plain dot products to a trainable
 * module, and on to the causal mask. The notebook ends at the heading of the causal mask.
 *
 * Weights: torch.rand, seed 123, as [in, out] matrices, twice (loose and in v1); nn.Linear, seed
 * 789 (v2). Steps beyond the notebook are compared with what PyTorch 2.13 prints for them.
 */
#include <math.h>
#include <stdlib.h>

#include "../recipe.h"
#include "lessons.h"

enum { WORDS = 6, IN = 3, OUT = 2, ASKS = 1 /* "journey" */ };

static const char *const asking[] = {"journey"};
static const float typed[WORDS * IN] = {0.43f, 0.15f, 0.89f, 0.55f, 0.87f, 0.66f,
                                        0.57f, 0.85f, 0.64f, 0.22f, 0.58f, 0.33f,
                                        0.77f, 0.25f, 0.10f, 0.05f, 0.80f, 0.55f};

/* One row for "journey": [WORDS] or [size] numbers. */
static kit_array row_step(recipe *r, const char *name, trace_kind kind, int64_t size)
{
    kit_array a = recipe_step(r, name, kind, ATTN_F32, SHAPE(size));
    recipe_rows(r, asking, 1);
    if (kind != TRACE_VALUES) {
        recipe_word_columns(r);
    }
    return a;
}

static kit_array words_step(recipe *r, const char *name, trace_kind kind, int64_t size)
{
    kit_array a = recipe_step(r, name, kind, ATTN_F32, SHAPE(WORDS, size));
    recipe_word_rows(r);
    if (kind != TRACE_VALUES) {
        recipe_word_columns(r);
    }
    return a;
}

static float *numbers(kit_array a) { return a.data; }

/* -------------------------------------------------------- 3.3 Attention without weights */

static void one_simple_query(recipe *r, kit_array x)
{
    r->section = "3.3 A simple self-attention, without weights";
    recipe_attention a = {recipe_row(x, ASKS), recipe_view(x), recipe_view(x), 1, false, NULL};
    kit_array scores = row_step(r, "simple_scores_2", TRACE_SCORES, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(scores));
    recipe_describe(r, "\"journey\" asks with its own vector", "ω_2 = x_2·Xᵀ",
                    "A word is its own query, key and value here.");
    recipe_set_provenance(r, TRACE_COMPUTED, "inputs", NULL, 0);
    recipe_printed(r, "tensor([0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])");

    kit_array parts = row_step(r, "simple_normalized_2", TRACE_VALUES, WORDS);
    recipe_word_columns(r);
    recipe_describe(r, "Divided by their sum", "ω_2/Σω_2",
                    "Shares of 1, but only because no score is negative.");
    recipe_set_provenance(r, TRACE_COMPUTED, "simple_scores_2", NULL, 0);
    recipe_printed(r, "tensor([0.1455, 0.2278, 0.2249, 0.1285, 0.1077, 0.1656])");
    kit_array naive = row_step(r, "simple_softmax_naive_2", TRACE_WEIGHTS, WORDS);
    recipe_describe(r, "Softmax, written out", "e^ω/Σe^ω", "Always positive, always sums to 1.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "simple_scores_2", NULL, 0);
    recipe_printed(r, "tensor([0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581])");
    float sum = 0, sum_exp = 0;
    for (int j = 0; r->status == KIT_OK && j < WORDS; j++) {
        sum += numbers(scores)[j];
        sum_exp += expf(numbers(scores)[j]);
    }
    for (int j = 0; r->status == KIT_OK && j < WORDS; j++) {
        numbers(parts)[j] = numbers(scores)[j] / sum;
        numbers(naive)[j] = expf(numbers(scores)[j]) / sum_exp;
    }

    kit_array weights = row_step(r, "simple_weights_2", TRACE_WEIGHTS, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "Softmax, the library's", "α_2 = softmax(ω_2)",
                    "The same; it subtracts the largest score first, so that nothing overflows.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "simple_scores_2", NULL, 0);
    recipe_printed(r, "tensor([0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581])");
    kit_array context = row_step(r, "simple_context_2", TRACE_VALUES, IN);
    recipe_context(r, &a, recipe_view(context));
    recipe_describe(r, "Mix the vectors by the weights", "z_2 = α_2·X", "%s", "");
    recipe_set_provenance(r, TRACE_MIX, "simple_weights_2", "inputs", 0);
    recipe_printed(r, "tensor([0.4419, 0.6515, 0.5683])\n"
                      "tensor([0.4419, 0.6515, 0.5683])");
}

static void all_simple_queries(recipe *r, kit_array x)
{
    r->section = "3.3.2 Generalizing to all input sequence tokens";
    recipe_attention a = {recipe_view(x), recipe_view(x), recipe_view(x), 1, false, NULL};
    kit_array scores = words_step(r, "simple_scores", TRACE_SCORES, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(scores));
    recipe_describe(r, "Every word asks, every word answers", "ω = X·Xᵀ",
                    "Symmetric, since a word is query and key at once.");
    recipe_set_provenance(r, TRACE_DOT, "inputs", "inputs", 0);
    recipe_printed(r, "tensor([[0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310],\n"
                      "[0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865],\n"
                      "[0.9422, 1.4754, 1.4570, 0.8296, 0.7154, 1.0605],\n"
                      "[0.4753, 0.8434, 0.8296, 0.4937, 0.3474, 0.6565],\n"
                      "[0.4576, 0.7070, 0.7154, 0.3474, 0.6654, 0.2935],\n"
                      "[0.6310, 1.0865, 1.0605, 0.6565, 0.2935, 0.9450]])\n"
                      "tensor([[0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310],\n"
                      "[0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865],\n"
                      "[0.9422, 1.4754, 1.4570, 0.8296, 0.7154, 1.0605],\n"
                      "[0.4753, 0.8434, 0.8296, 0.4937, 0.3474, 0.6565],\n"
                      "[0.4576, 0.7070, 0.7154, 0.3474, 0.6654, 0.2935],\n"
                      "[0.6310, 1.0865, 1.0605, 0.6565, 0.2935, 0.9450]])");
    kit_array weights = words_step(r, "simple_weights", TRACE_WEIGHTS, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "Softmax: each row becomes shares of 1", "α = softmax(ω)",
                    "Row asks, column answers; no longer symmetric.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "simple_scores", NULL, 0);
    recipe_printed(r, "tensor([[0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452],\n"
                      "[0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581],\n"
                      "[0.1390, 0.2369, 0.2326, 0.1242, 0.1108, 0.1565],\n"
                      "[0.1435, 0.2074, 0.2046, 0.1462, 0.1263, 0.1720],\n"
                      "[0.1526, 0.1958, 0.1975, 0.1367, 0.1879, 0.1295],\n"
                      "[0.1385, 0.2184, 0.2128, 0.1420, 0.0988, 0.1896]])");
    kit_array sums = recipe_step(r, "simple_row_sums", TRACE_VALUES, ATTN_F32, SHAPE(WORDS));
    recipe_describe(r, "The rows sum to 1", "Σ_j α_ij", "%s", "");
    recipe_set_provenance(r, TRACE_COMPUTED, "simple_weights", NULL, 0);
    recipe_word_columns(r);
    recipe_printed(r, "tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000])");
    for (int i = 0; r->status == KIT_OK && i < WORDS * WORDS; i++) {
        numbers(sums)[i / WORDS] += numbers(weights)[i];
    }
    kit_array context = words_step(r, "simple_context", TRACE_VALUES, IN);
    recipe_context(r, &a, recipe_view(context));
    recipe_describe(r, "Mix the vectors by the weights", "Z = α·X",
                    "Row 2 is simple_context_2 again.");
    recipe_set_provenance(r, TRACE_MIX, "simple_weights", "inputs", 0);
    recipe_printed(r, "tensor([[0.4421, 0.5931, 0.5790],\n"
                      "[0.4419, 0.6515, 0.5683],\n"
                      "[0.4431, 0.6496, 0.5671],\n"
                      "[0.4304, 0.6298, 0.5510],\n"
                      "[0.4671, 0.5910, 0.5266],\n"
                      "[0.4177, 0.6503, 0.5645]])");
    recipe_add_copy(r, "context_row", TRACE_VALUES, ATTN_F32, SHAPE(IN),
                    r->status == KIT_OK ? numbers(context) + ASKS * IN : NULL);
    recipe_check_only(r, "simple_context, row 2", "tensor([0.4419, 0.6515, 0.5683])");
}

/* ------------------------------------------------------------------ 3.4 Trainable weights */

static kit_array weight(recipe *r, attn_rng *rng, const char *name, const char *title,
                        const char *sentence)
{
    kit_array w = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(IN, OUT));
    if (r->status == KIT_OK) {
        attn_rng_rand(rng, w.data, IN * OUT);
    }
    recipe_describe(r, title, "U(0,1)", "%s", sentence);
    return w;
}

/* x @ W with W [in, out]. */
static kit_array project(recipe *r, kit_array x, kit_array w, const char *name, const char *weights,
                         const char *title, const char *formula)
{
    kit_array out = words_step(r, name, TRACE_VALUES, OUT);
    recipe_linear(r, recipe_view(x), recipe_swapped(recipe_view(w)), NULL, recipe_view(out));
    recipe_describe(r, title, formula, "%s", "");
    recipe_set_provenance(r, TRACE_PROJECT, "inputs", weights, 0);
    return out;
}

static kit_array project_row(recipe *r, kit_array x, kit_array w, const char *name,
                             const char *weights, const char *title, const char *formula)
{
    kit_array out = row_step(r, name, TRACE_VALUES, OUT);
    recipe_linear(r, recipe_row(x, ASKS), recipe_swapped(recipe_view(w)), NULL, recipe_view(out));
    recipe_describe(r, title, formula, "%s", "");
    recipe_set_provenance(r, TRACE_PROJECT, "inputs", weights, 0);
    return out;
}

/* Draws the three matrices from the seed 123. */
typedef struct matrices {
    kit_array q, k, v;
} matrices;

static matrices draw(recipe *r, attn_rng *rng, const char *const names[3], const char *sentence)
{
    attn_rng_seed(rng, 123);
    matrices w;
    w.q = weight(r, rng, names[0], "What a word asks for: its matrix", sentence);
    w.k = weight(r, rng, names[1], "What a word offers: its matrix", sentence);
    w.v = weight(r, rng, names[2], "What a word hands over: its matrix", sentence);
    return w;
}

typedef struct projections {
    kit_array queries, keys, values;
} projections;

static void one_trained_query(recipe *r, kit_array q, kit_array k, kit_array keys, kit_array values)
{
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(k), 1, false, NULL};
    kit_array one = recipe_step(r, "score_22", TRACE_SCALAR, ATTN_F32, 0, NULL);
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(one));
    recipe_describe(r, "\"journey\" asks, \"journey\" answers", "ω_22 = q_2·k_2", "%s", "");
    recipe_set_provenance(r, TRACE_COMPUTED, "query_2", "key_2", 0);
    recipe_printed(r, "tensor(1.8524)");
    a.k = recipe_view(keys);
    a.v = recipe_view(values);
    kit_array scores = row_step(r, "scores_2", TRACE_SCORES, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(scores));
    recipe_describe(r, "\"journey\" asks, every word answers", "ω_2 = q_2·Kᵀ", "%s", "");
    recipe_set_provenance(r, TRACE_DOT, "query_2", "keys", 0);
    recipe_printed(r, "tensor([1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440])");
    a.scale = 0;
    kit_array weights = row_step(r, "weights_2", TRACE_WEIGHTS, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "Softmax of the scores divided by √2", "α_2 = softmax(ω_2/√2)", "%s", "");
    recipe_set_provenance(r, TRACE_SOFTMAX, "scores_2", NULL, 1 / sqrt(OUT));
    recipe_printed(r, "tensor([0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820])");
    kit_array context = row_step(r, "context_2", TRACE_VALUES, OUT);
    recipe_context(r, &a, recipe_view(context));
    recipe_describe(r, "Mix the values by the weights", "z_2 = α_2·V", "%s", "");
    recipe_set_provenance(r, TRACE_MIX, "weights_2", "values", 0);
    recipe_printed(r, "tensor([0.3061, 0.8210])");
}

/* The notebook's own line makes `queries` from W_v. */
static kit_array slip_queries(recipe *r, kit_array x, kit_array w_v)
{
    static const char title[] = "The notebook's queries: by a slip, the values again";
    kit_array q = project(r, x, w_v, "slip_queries", "w_v", title, "X·W_v");
    recipe_describe(r, title, "X·W_v",
                    "Meant was X·W_q, which is v1_queries. No later line uses `queries`.");
    return q;
}

/* Returns what the notebook's cell 14 makes: queries by the slip, keys and values. */
static projections trainable(recipe *r, attn_rng *rng, kit_array x)
{
    r->section = "3.4 Trainable weights";
    static const char *const names[] = {"w_q", "w_k", "w_v"};
    matrices w =
        draw(r, rng, names, "Drawn, not trained; one column for each number that comes out.");
    kit_array q =
        project_row(r, x, w.q, "query_2", "w_q", "The query of \"journey\"", "q_2 = x_2·W_q");
    recipe_printed(r, "tensor([0.4306, 1.4551])");
    kit_array k = project_row(r, x, w.k, "key_2", "w_k", "Its key", "k_2 = x_2·W_k");
    project_row(r, x, w.v, "value_2", "w_v", "Its value", "v_2 = x_2·W_v");
    projections p;
    p.keys = project(r, x, w.k, "keys", "w_k", "The keys of all words", "K = X·W_k");
    p.values = project(r, x, w.v, "values", "w_v", "The values of all words", "V = X·W_v");
    p.queries = slip_queries(r, x, w.v);
    r->section = "Attention of one word, with trainable weights";
    one_trained_query(r, q, k, p.keys, p.values);
    return p;
}

/* ------------------------------------------------------------------------------- Modules */

static kit_array all_weights(recipe *r, recipe_attention *a, const char *queries, const char *keys,
                             const char *scores_name, const char *weights_name)
{
    a->scale = 1;
    kit_array scores = words_step(r, scores_name, TRACE_SCORES, WORDS);
    recipe_scores(r, a, ATTN_STAGE_RAW, recipe_view(scores));
    recipe_describe(r, "Every word asks, every word answers", "ω = Q·Kᵀ", "%s", "");
    recipe_set_provenance(r, TRACE_DOT, queries, keys, 0);
    a->scale = 0;
    kit_array weights = words_step(r, weights_name, TRACE_WEIGHTS, WORDS);
    recipe_scores(r, a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "Softmax of the scores divided by √2", "α = softmax(ω/√2)",
                    "Row asks, column answers.");
    recipe_set_provenance(r, TRACE_SOFTMAX, scores_name, NULL, 1 / sqrt(OUT));
    return weights;
}

static void context(recipe *r, const recipe_attention *a, const char *name, const char *weights,
                    const char *values, const char *printed)
{
    kit_array out = words_step(r, name, TRACE_VALUES, OUT);
    recipe_context(r, a, recipe_view(out));
    recipe_describe(r, "Mix the values by the weights", "Z = α·V", "%s", "");
    recipe_set_provenance(r, TRACE_MIX, weights, values, 0);
    recipe_printed(r, printed);
}

static projections module_v1(recipe *r, attn_rng *rng, kit_array x, kit_array *weights)
{
    r->section = "Self attention class: SelfAttention_v1";
    static const char *const names[] = {"v1_w_q", "v1_w_k", "v1_w_v"};
    matrices w = draw(r, rng, names, "Drawn again after the same seed: the same numbers.");
    projections p;
    p.queries = project(r, x, w.q, "v1_queries", "v1_w_q", "Queries", "Q = X·W_q");
    p.keys = project(r, x, w.k, "v1_keys", "v1_w_k", "Keys", "K = X·W_k");
    p.values = project(r, x, w.v, "v1_values", "v1_w_v", "Values", "V = X·W_v");
    recipe_attention a = {
        recipe_view(p.queries), recipe_view(p.keys), recipe_view(p.values), 0, false, NULL};
    *weights = all_weights(r, &a, "v1_queries", "v1_keys", "v1_scores", "v1_weights");
    context(r, &a, "v1_context", "v1_weights", "v1_values",
            "tensor([[0.2996, 0.8053],\n"
            "[0.3061, 0.8210],\n"
            "[0.3058, 0.8203],\n"
            "[0.2948, 0.7939],\n"
            "[0.2927, 0.7891],\n"
            "[0.2990, 0.8040]])");
    return p;
}

static kit_array linear(recipe *r, attn_rng *rng, const char *name, const char *title)
{
    kit_array w = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(OUT, IN));
    if (r->status == KIT_OK) {
        attn_rng_linear(rng, w.data, NULL, IN, OUT);
    }
    recipe_describe(
        r, title, "U(±1/√3)",
        "Drawn between −0.58 and 0.58. nn.Linear keeps its matrix transposed: [out, in].");
    return w;
}

static kit_array apply(recipe *r, kit_array x, kit_array w, const char *name, const char *weights,
                       const char *title)
{
    kit_array out = words_step(r, name, TRACE_VALUES, OUT);
    recipe_linear(r, recipe_view(x), recipe_view(w), NULL, recipe_view(out));
    recipe_describe(r, title, "x·Wᵀ", "%s", "");
    recipe_set_provenance(r, TRACE_PROJECT, "inputs", weights, 0);
    return out;
}

static void module_v2(recipe *r, attn_rng *rng, kit_array x)
{
    r->section = "Linear layers for the parameters: SelfAttention_v2";
    attn_rng_seed(rng, 789);
    kit_array w_q = linear(r, rng, "v2_w_q", "What a word asks for: its matrix");
    kit_array w_k = linear(r, rng, "v2_w_k", "What a word offers: its matrix");
    kit_array w_v = linear(r, rng, "v2_w_v", "What a word hands over: its matrix");
    kit_array q = apply(r, x, w_q, "v2_queries", "v2_w_q", "Queries");
    kit_array k = apply(r, x, w_k, "v2_keys", "v2_w_k", "Keys");
    kit_array v = apply(r, x, w_v, "v2_values", "v2_w_v", "Values");
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(v), 0, false, NULL};
    all_weights(r, &a, "v2_queries", "v2_keys", "v2_scores", "v2_weights");
    context(r, &a, "v2_context", "v2_weights", "v2_values",
            "tensor([[-0.0739,  0.0713],\n"
            "[-0.0748,  0.0703],\n"
            "[-0.0749,  0.0702],\n"
            "[-0.0760,  0.0685],\n"
            "[-0.0763,  0.0679],\n"
            "[-0.0754,  0.0693]])");
    recipe_describe(r, "Mix the values by the weights", "Z = α·V",
                    "A context is an average of the values, and most values here begin with a "
                    "negative number.");
}

/* ------------------------------------------------------------------- Beyond the notebook */

/* The weights that the slip's queries would have given, less those that were meant. */
static void slip_consequences(recipe *r, const projections *slip, kit_array meant)
{
    r->section = "What the slip queries = inputs @ W_v would have changed";
    r->after_notebook = true;
    recipe_attention a = {recipe_view(slip->queries),
                          recipe_view(slip->keys),
                          recipe_view(slip->values),
                          0,
                          false,
                          NULL};
    kit_array weights = words_step(r, "slip_weights", TRACE_WEIGHTS, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(r, "The weights that the slip would give", "softmax(X·W_v·Kᵀ/√2)",
                    "To be compared with v1_weights, which are what was meant.");
    recipe_set_provenance(r, TRACE_ATTEND, "slip_queries", "keys", 1 / sqrt(OUT));
    recipe_printed(r, "tensor([[0.1579, 0.2018, 0.1983, 0.1465, 0.1175, 0.1779],\n"
                      "[0.1567, 0.2092, 0.2049, 0.1415, 0.1092, 0.1785],\n"
                      "[0.1569, 0.2083, 0.2041, 0.1420, 0.1102, 0.1784],\n"
                      "[0.1621, 0.1902, 0.1880, 0.1530, 0.1327, 0.1740],\n"
                      "[0.1642, 0.1810, 0.1797, 0.1585, 0.1453, 0.1714],\n"
                      "[0.1594, 0.2001, 0.1969, 0.1470, 0.1200, 0.1766]])");
    kit_array difference = words_step(r, "slip_difference", TRACE_VALUES, WORDS);
    recipe_word_columns(r);
    double largest = 0;
    for (int i = 0; r->status == KIT_OK && i < WORDS * WORDS; i++) {
        numbers(difference)[i] = numbers(weights)[i] - numbers(meant)[i];
        largest = fmax(largest, fabs((double)numbers(difference)[i]));
    }
    recipe_describe(r, "Slip minus meant", "slip_weights − v1_weights",
                    "Unseen, because no later line uses `queries`. Had it been used, a weight "
                    "would change by at most %.4f, since all scores are close together.",
                    largest);
    recipe_set_provenance(r, TRACE_COMPUTED, "slip_weights", "v1_weights", 0);
    recipe_printed(r, "tensor([[ 0.0028, -0.0086, -0.0076,  0.0052,  0.0101, -0.0020],\n"
                      "[ 0.0066, -0.0172, -0.0150,  0.0104,  0.0186, -0.0035],\n"
                      "[ 0.0066, -0.0173, -0.0151,  0.0105,  0.0188, -0.0035],\n"
                      "[ 0.0030, -0.0093, -0.0082,  0.0053,  0.0121, -0.0029],\n"
                      "[ 0.0032, -0.0140, -0.0126,  0.0084,  0.0187, -0.0038],\n"
                      "[ 0.0037, -0.0091, -0.0080,  0.0051,  0.0111, -0.0029]])");
    recipe_note(r, "slip",
                "Cell 14 says queries = inputs @ W_v; meant was W_q. No later line uses `queries`, "
                "so no printed number is wrong. Had it been used, weights would change by at most "
                "%.3f.",
                largest);
    r->after_notebook = false;
}

static void causal(recipe *r, const projections *p)
{
    r->section = "3.5 Causal attention and masking";
    r->after_notebook = true;
    recipe_attention a = {
        recipe_view(p->queries), recipe_view(p->keys), recipe_view(p->values), 0, true, NULL};
    kit_array masked = words_step(r, "causal_scores", TRACE_SCORES, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_BIASED, recipe_view(masked));
    recipe_describe(
        r, "Hide what comes later", "ω/√2, −∞ where key > query",
        "The notebook ends at this heading. A word may see itself and the words before it: a model "
        "that guesses the next word must not see it. A text that is wholly known needs no mask.");
    recipe_set_provenance(r, TRACE_MASK, "v1_scores", NULL, 1 / sqrt(OUT));
    recipe_printed(r, "tensor([[0.6528,   -inf,   -inf,   -inf,   -inf,   -inf],\n"
                      "[0.8984, 1.3098,   -inf,   -inf,   -inf,   -inf],\n"
                      "[0.8870, 1.2929, 1.2641,   -inf,   -inf,   -inf],\n"
                      "[0.4930, 0.7189, 0.7029, 0.4190,   -inf,   -inf],\n"
                      "[0.4323, 0.6236, 0.6099, 0.3621, 0.1914,   -inf],\n"
                      "[0.6361, 0.9309, 0.9101, 0.5432, 0.2784, 0.7776]])");
    kit_array weights = words_step(r, "causal_weights", TRACE_WEIGHTS, WORDS);
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(weights));
    recipe_describe(
        r, "Softmax over what is visible", "softmax",
        "e^−∞ is 0: a hidden key gets nothing and takes no share. The first word sees only "
        "itself.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "causal_scores", NULL, 0);
    recipe_printed(r, "tensor([[1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],\n"
                      "[0.3986, 0.6014, 0.0000, 0.0000, 0.0000, 0.0000],\n"
                      "[0.2526, 0.3791, 0.3683, 0.0000, 0.0000, 0.0000],\n"
                      "[0.2265, 0.2839, 0.2794, 0.2103, 0.0000, 0.0000],\n"
                      "[0.1952, 0.2363, 0.2331, 0.1820, 0.1534, 0.0000],\n"
                      "[0.1557, 0.2092, 0.2048, 0.1419, 0.1089, 0.1794]])");
    context(r, &a, "causal_context", "causal_weights", "v1_values",
            "tensor([[0.1855, 0.8812],\n"
            "[0.3116, 0.9549],\n"
            "[0.3395, 0.9652],\n"
            "[0.3129, 0.8747],\n"
            "[0.2865, 0.7897],\n"
            "[0.2990, 0.8040]])");
}

/* The cause of flat weights, with the scores of "journey". */
static void health(recipe *r)
{
    const trace_step *scores = r->status == KIT_OK ? trace_find(r->trace, "scores_2") : NULL;
    double least = INFINITY, most = -INFINITY;
    for (int j = 0; scores != NULL && j < WORDS; j++) {
        least = fmin(least, kit_array_get(&scores->tensor, j));
        most = fmax(most, kit_array_get(&scores->tensor, j));
    }
    char cause[256];
    snprintf(cause, sizeof cause,
             "All inputs and matrices lie between 0 and 1, so scores are small, and those of a row "
             "lie close together (journey: %.2f to %.2f): e^score differs little.",
             least, most);
    recipe_health(r, "v1_weights", &(recipe_advice){NULL, NULL, cause, NULL});
}

int lesson_journey(trace *t, attn_context *ctx, kit_error *err)
{
    recipe r = recipe_begin(t, ctx, err, "journey", "Chapter 3: Attention Mechanisms",
                            "Your journey starts with one step");
    recipe_setting(&r, "n = 6, d = 3, d_k = d_v = 2, scores ÷ √2, seeds 123 and 789");
    t->query = ASKS;
    attn_rng *rng = malloc(sizeof *rng);
    if (rng == NULL) {
        recipe_fail(&r, KIT_LIMIT, "no memory");
        return recipe_end(&r);
    }
    r.section = "Inputs";
    kit_array x = recipe_add_copy(&r, "inputs", TRACE_VALUES, ATTN_F32, SHAPE(WORDS, IN), typed);
    recipe_describe(&r, "A vector for each word", "X", "Typed in by the notebook.");
    recipe_word_rows(&r);
    one_simple_query(&r, x);
    all_simple_queries(&r, x);
    projections slip = trainable(&r, rng, x);
    kit_array weights = {0};
    projections p = module_v1(&r, rng, x, &weights);
    slip_consequences(&r, &slip, weights);
    module_v2(&r, rng, x);
    free(rng);
    causal(&r, &p);
    health(&r);
    recipe_note(&r, "next", "--check  --full  --quiz  --query step  -o map.svg  --json");
    return recipe_end(&r);
}
