/* Lesson `numpy`: attention in double precision from given q, k, v; the reason for √d_k, with an
 * experiment; the causal mask; softmax in parts, and with scores too large for e^x.
 *
 * The notebook drew its numbers without a seed, so only the 8 decimals that it printed are known
 * (for v from its last complete output; the first one is cut off in the file). lesson_check allows
 * for the error that this causes; worst_slack() computes it.
 */
#include <math.h>
#include <stdlib.h>

#include "../recipe.h"
#include "lessons.h"

enum { L = 4, D = 8, BEYOND_HEADS = 2, SIZES = 5, DRAWS = 100 };

static const char *const asks[] = {"q1", "q2", "q3", "q4"};
static const char *const answers[] = {"k1", "k2", "k3", "k4"};

static const double typed_q[L * D] = {-0.53021291, 0.17351938,  -2.80372733, 1.36853866,
                                      -0.62573526, -0.78760894, 0.87646577,  -0.29423695,
                                      -0.61079107, -0.28797028, 0.19836336,  0.16409689,
                                      -0.31869415, 1.38278105,  0.25201184,  1.22194168,
                                      0.47424825,  1.86374193,  -0.18145084, -0.2654385,
                                      -0.01710023, 1.4925224,   0.04318913,  -1.14576111,
                                      -0.67504673, 1.13966909,  -0.18227342, -0.89253254,
                                      -1.11796724, -0.47959207, -1.61684476, -0.38093655};
static const double typed_k[L * D] = {
    -1.50791136e+00, -1.02548933e+00, 1.32186843e+00,  6.69433702e-01,  -7.11392191e-01,
    -6.09670864e-04, 3.10016980e-01,  -5.51820988e-01, -6.25872602e-01, 1.85842578e+00,
    6.16654571e-01,  -1.36516740e-01, -8.68447851e-01, 3.19752629e-01,  5.32315132e-01,
    -1.88929267e+00, -1.74681454e-01, -6.22473374e-01, -2.06277244e+00, -1.45441534e-01,
    -1.31098537e+00, 1.86493034e-01,  -3.30760078e-01, 1.82804623e+00,  -1.94555521e-01,
    -6.24075896e-01, -1.43470780e+00, -7.47771927e-01, 6.39369278e-01,  -2.50337344e+00,
    1.21469967e+00,  3.35458618e-01};
static const double typed_v[L * D] = {-0.75019022, 0.40213689,  0.87469443,  -0.08750707,
                                      0.30595976,  0.57752085,  -0.66289836, -1.41503872,
                                      -0.23395663, -0.26539431, -0.6784999,  -0.7527228,
                                      -0.97216284, 1.15868743,  0.31064158,  -0.41829304,
                                      -0.1504113,  1.23816146,  1.47606625,  1.35739857,
                                      1.8365123,   -1.27824809, 0.47251054,  -0.36114874,
                                      0.79733874,  -1.33763958, -0.66016079, 1.67229083,
                                      2.64740769,  -1.09484413, 0.52757604,  -1.46474318};

#define PRINTED_Q                                                                                  \
    "[[-0.53021291  0.17351938 -2.80372733  1.36853866 -0.62573526 -0.78760894\n"                  \
    "0.87646577 -0.29423695]\n"                                                                    \
    "[-0.61079107 -0.28797028  0.19836336  0.16409689 -0.31869415  1.38278105\n"                   \
    "0.25201184  1.22194168]\n"                                                                    \
    "[ 0.47424825  1.86374193 -0.18145084 -0.2654385  -0.01710023  1.4925224\n"                    \
    "0.04318913 -1.14576111]\n"                                                                    \
    "[-0.67504673  1.13966909 -0.18227342 -0.89253254 -1.11796724 -0.47959207\n"                   \
    "-1.61684476 -0.38093655]]"
#define PRINTED_K                                                                                  \
    "[[-1.50791136e+00 -1.02548933e+00  1.32186843e+00  6.69433702e-01\n"                          \
    "-7.11392191e-01 -6.09670864e-04  3.10016980e-01 -5.51820988e-01]\n"                           \
    "[-6.25872602e-01  1.85842578e+00  6.16654571e-01 -1.36516740e-01\n"                           \
    "-8.68447851e-01  3.19752629e-01  5.32315132e-01 -1.88929267e+00]\n"                           \
    "[-1.74681454e-01 -6.22473374e-01 -2.06277244e+00 -1.45441534e-01\n"                           \
    "-1.31098537e+00  1.86493034e-01 -3.30760078e-01  1.82804623e+00]\n"                           \
    "[-1.94555521e-01 -6.24075896e-01 -1.43470780e+00 -7.47771927e-01\n"                           \
    "6.39369278e-01 -2.50337344e+00  1.21469967e+00  3.35458618e-01]]"
#define PRINTED_V                                                                                  \
    "array([[-0.75019022,  0.40213689,  0.87469443, -0.08750707,  0.30595976,\n"                   \
    "0.57752085, -0.66289836, -1.41503872],\n"                                                     \
    "[-0.23395663, -0.26539431, -0.6784999 , -0.7527228 , -0.97216284,\n"                          \
    "1.15868743,  0.31064158, -0.41829304],\n"                                                     \
    "[-0.1504113 ,  1.23816146,  1.47606625,  1.35739857,  1.8365123 ,\n"                          \
    "-1.27824809,  0.47251054, -0.36114874],\n"                                                    \
    "[ 0.79733874, -1.33763958, -0.66016079,  1.67229083,  2.64740769,\n"                          \
    "-1.09484413,  0.52757604, -1.46474318]])"

/* The largest error of the results, because the inputs are known only to half a unit of their 8th
 * decimal. */
typedef struct slacks {
    double input, scores, scaled, weights, context, variance_part;
} slacks;

static slacks worst_slack(void)
{
    slacks s = {.input = 0.5e-8};
    double largest_v = 0;
    for (int i = 0; i < L; i++) {
        for (int j = 0; j < L; j++) {
            double sum = 0;
            for (int t = 0; t < D; t++) {
                sum += fabs(typed_q[i * D + t]) + fabs(typed_k[j * D + t]);
            }
            s.scores = fmax(s.scores, s.input * sum); /* d(q·k) = Σ |q| dk + |k| dq */
        }
    }
    for (int i = 0; i < L * D; i++) {
        largest_v = fmax(largest_v, fabs(typed_v[i]));
    }
    s.scaled = s.scores / sqrt(D);
    s.weights = s.scaled / 2; /* dw = w(1-w)·2 ds, and w(1-w) <= 1/4 */
    s.context = 2 * s.scaled * largest_v + s.input;
    s.variance_part = 2 * s.scores / sqrt(10.0); /* dvar/var <= 2 ds/sqrt(var), with var = 10 */
    return s;
}

static const char why[] = "the inputs are known to 8 decimals only";

static kit_array typed(recipe *r, const char *name, const char *title, const double *numbers,
                       const char *const *labels, const char *printed)
{
    kit_array a = recipe_add_copy(r, name, TRACE_VALUES, ATTN_F64, SHAPE(L, D), numbers);
    recipe_describe(r, title, "randn(4, 8)",
                    "Drawn by the notebook without a seed; typed in as printed.");
    recipe_rows(r, labels, L);
    recipe_printed(r, printed);
    return a;
}

static kit_array matrix(recipe *r, const recipe_attention *a, attn_stage stage, const char *name,
                        const char *printed, double slack)
{
    trace_kind kind = stage == ATTN_STAGE_WEIGHTS ? TRACE_WEIGHTS : TRACE_SCORES;
    kit_array out = recipe_step(r, name, kind, ATTN_F64, SHAPE(L, L));
    recipe_scores(r, a, stage, recipe_view(out));
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    recipe_printed(r, printed);
    recipe_slack(r, slack, 0, why);
    return out;
}

static double variance(kit_array a)
{
    int64_t n = kit_array_count(&a);
    double mean = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        mean += kit_array_get(&a, i) / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        double off = kit_array_get(&a, i) - mean;
        sum += off * off / (double)n;
    }
    return sum;
}

/* The notebook prints (q, k, scores) once and (q, k, scaled scores) twice. */
static void variances(recipe *r, kit_array q, kit_array k, kit_array scores, kit_array scaled,
                      const slacks *s)
{
    static const char *const labels[] = {"q", "k", "scores", "scaled_scores"};
    kit_array out = recipe_step(r, "variance", TRACE_VALUES, ATTN_F64, SHAPE(4));
    if (r->status != KIT_OK) {
        return;
    }
    double *x = out.data;
    x[0] = variance(q);
    x[1] = variance(k);
    x[2] = variance(scores);
    x[3] = variance(scaled);
    recipe_describe(r, "How far the numbers spread", "var",
                    "A score adds 8 products of variance about 1. Variances add up, so it varies "
                    "by about 8 (%.4g here: only 16 scores). Dividing by √8 divides the variance "
                    "by 8: %.4g.",
                    x[2], x[3]);
    recipe_set_provenance(r, TRACE_COMPUTED, "scores", "scaled_scores", 0);
    recipe_columns(r, labels, 4);
    recipe_printed(r, "0.9364650972271772 1.086444058695338 10.097741326679849 1.262217665834981");
    recipe_slack(r, 0, s->variance_part, why);
    double again[5] = {x[0], x[1], x[0], x[1], x[3]}; /* printed: q, k, q, k, scaled */
    recipe_add_copy(r, "variance_again", TRACE_VALUES, ATTN_F64, SHAPE(5), again);
    recipe_check_only(r, "variance, printed again",
                      "(np.float64(0.9364650972271772), np.float64(1.086444058695338),\n"
                      "(np.float64(0.9364650972271772), np.float64(1.086444058695338), "
                      "np.float64(1.262217665834981))");
    recipe_slack(r, 0, s->variance_part, why);
}

/* DRAWS times L vectors of N(0,1) numbers; freed by the caller, like the next function's. */
static kit_array draw(recipe *r, attn_rng *rng, int64_t size)
{
    kit_array a = {0};
    if (r->status == KIT_OK) {
        r->status = kit_array_new(&a, ATTN_F32, 3, (const int64_t[]){DRAWS, L, size}, r->err);
    }
    if (r->status == KIT_OK) {
        attn_rng_randn(rng, a.data, (size_t)kit_array_count(&a));
    }
    return a;
}

static kit_array draws_at(recipe *r, kit_array q, kit_array k, attn_stage stage, double scale)
{
    kit_array a = {0};
    recipe_attention call = {recipe_view(q), recipe_view(k), recipe_view(k), scale, false, NULL};
    if (r->status == KIT_OK) {
        r->status = kit_array_new(&a, ATTN_F32, 3, (const int64_t[]){DRAWS, L, L}, r->err);
    }
    recipe_scores(r, &call, stage, recipe_view(a));
    return a;
}

/* The mean over all rows of their largest weight. */
static double mean_top(kit_array weights)
{
    double sum = 0;
    for (int64_t row = 0; row < DRAWS * L; row++) {
        double top = 0;
        for (int64_t j = 0; j < L; j++) {
            top = fmax(top, kit_array_get(&weights, row * L + j));
        }
        sum += top / (DRAWS * L);
    }
    return sum;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The variances of the 16 scores of each draw: smallest; ten are smaller; mean; ten are larger;
 * largest. */
static void sixteen_scores(kit_array scores, double out[5])
{
    double each[DRAWS], mean = 0;
    for (int n = 0; n < DRAWS; n++) {
        kit_array one = {
            ATTN_F32, 2, {L, L}, (float *)scores.data + n * L * L, L * L * sizeof(float)};
        each[n] = variance(one);
        mean += each[n] / DRAWS;
    }
    qsort(each, DRAWS, sizeof *each, by_size);
    const double chosen[5] = {each[0], each[10], mean, each[DRAWS - 11], each[DRAWS - 1]};
    for (int i = 0; i < 5; i++) {
        out[i] = chosen[i];
    }
}

/* Draws queries and keys of one size, and fills in a row of the table. */
static void measure_size(recipe *r, attn_rng *rng, int64_t size, double row[4], double sixteen[5])
{
    kit_array q = draw(r, rng, size), k = draw(r, rng, size);
    kit_array raw = draws_at(r, q, k, ATTN_STAGE_RAW, 1);
    kit_array scaled = draws_at(r, q, k, ATTN_STAGE_RAW, 0);
    kit_array sharp = draws_at(r, q, k, ATTN_STAGE_WEIGHTS, 1);
    kit_array soft = draws_at(r, q, k, ATTN_STAGE_WEIGHTS, 0);
    if (r->status == KIT_OK) {
        row[0] = variance(raw);
        row[1] = variance(scaled);
        row[2] = mean_top(sharp);
        row[3] = mean_top(soft);
        if (size == D) {
            sixteen_scores(raw, sixteen);
        }
    }
    kit_array *const all[] = {&q, &k, &raw, &scaled, &sharp, &soft};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kit_array_free(all[i]);
    }
}

/* An experiment: how the variance of dot products grows with the size of the vectors. */
static void grow(recipe *r)
{
    static const int64_t sizes[SIZES] = {4, 8, 16, 64, 256};
    static const char *const rows[] = {"d_k=4", "d_k=8", "d_k=16", "d_k=64", "d_k=256"};
    static const char *const columns[] = {"var S", "var S/√d_k", "top S", "top S/√d_k"};
    static const char *const spread[] = {"smallest", "low", "mean", "high", "largest"};
    double sixteen[5] = {0};
    r->after_notebook = true;
    kit_array table =
        recipe_step(r, "beyond_dot_variance", TRACE_VALUES, ATTN_F64, SHAPE(SIZES, 4));
    attn_rng *rng = malloc(sizeof *rng);
    if (rng == NULL) {
        recipe_fail(r, KIT_LIMIT, "no memory");
        return;
    }
    attn_rng_seed(rng, 123);
    for (int i = 0; i < SIZES && r->status == KIT_OK; i++) {
        measure_size(r, rng, sizes[i], (double *)table.data + 4 * i, sixteen);
    }
    free(rng);
    recipe_describe(r, "Longer vectors, larger scores", "var(q·k) ≈ d_k",
                    "1600 dot products of N(0,1) vectors for each d_k, seed 123. var: their "
                    "variance. top: the largest of 4 weights, on average.");
    recipe_set_provenance(r, TRACE_COMPUTED, NULL, NULL, 0);
    recipe_rows(r, rows, SIZES);
    recipe_columns(r, columns, 4);
    recipe_add_copy(r, "beyond_sixteen_scores", TRACE_VALUES, ATTN_F64, SHAPE(5), sixteen);
    recipe_describe(r, "The variance of only 16 scores", "var(16 scores)",
                    "The 100 draws of d_k = 8, each alone. Ten are below low, ten above high.");
    recipe_set_provenance(r, TRACE_COMPUTED, NULL, NULL, 0);
    recipe_columns(r, spread, 5);
    r->after_notebook = false;
}

static kit_array causal_mask(recipe *r)
{
    double mask[L * L], ones[L * L];
    for (int i = 0; i < L * L; i++) {
        ones[i] = i % L <= i / L;
        mask[i] = ones[i] > 0 ? 0.0 : -INFINITY;
    }
    recipe_add_copy(r, "tril", TRACE_VALUES, ATTN_F64, SHAPE(L, L), ones);
    recipe_describe(r, "Who may see whom", "tril(1)", "1 where a key may be seen, 0 where not.");
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    recipe_printed(
        r, "array([[1., 0., 0., 0.],\n[1., 1., 0., 0.],\n[1., 1., 1., 0.],\n[1., 1., 1., 1.]])");
    kit_array out = recipe_add_copy(r, "mask", TRACE_SCORES, ATTN_F64, SHAPE(L, L), mask);
    recipe_describe(r, "A mask to add: 0 where a key may be seen, −∞ where it may not",
                    "tril(1): 0 → −∞, 1 → 0", "%s", "");
    recipe_set_provenance(r, TRACE_COMPUTED, "tril", NULL, 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    recipe_printed(r, "array([[  0., -inf, -inf, -inf],\n[  0.,   0., -inf, -inf],\n"
                      "[  0.,   0.,   0., -inf],\n[  0.,   0.,   0.,   0.]])");
    return out;
}

static kit_array context(recipe *r, const recipe_attention *a, const char *name)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F64, SHAPE(L, D));
    recipe_context(r, a, recipe_view(out));
    recipe_rows(r, asks, L);
    return out;
}

/* The notebook's two lines once more on their own result: mask[mask == 0] = -inf, then
 * mask[mask == 1] = 0. */
static void mask_twice(recipe *r, kit_array mask)
{
    double twice[L * L] = {0};
    for (int i = 0; r->status == KIT_OK && i < L * L; i++) {
        double x = kit_array_get(&mask, i);
        x = x == 0 ? -INFINITY : x;
        twice[i] = x == 1 ? 0 : x;
    }
    r->after_notebook = true;
    recipe_add_copy(r, "beyond_mask_twice", TRACE_VALUES, ATTN_F64, SHAPE(L, L), twice);
    recipe_describe(r, "The two lines run twice", "−∞ everywhere",
                    "The zeros of the first run become −∞ in the second, so nothing is visible.");
    recipe_set_provenance(r, TRACE_COMPUTED, "mask", NULL, 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    r->after_notebook = false;
}

/* The two halves of the notebook's softmax: e^x, and the sum of each row. */
static void softmax_parts(recipe *r, kit_array masked)
{
    double e[L * L] = {0}, sums[L] = {0};
    for (int i = 0; r->status == KIT_OK && i < L * L; i++) {
        e[i] = exp(kit_array_get(&masked, i));
        sums[i / L] += e[i];
    }
    recipe_add_copy(r, "exponentials", TRACE_VALUES, ATTN_F64, SHAPE(L, L), e);
    recipe_describe(r, "Every number becomes positive", "e^(S/√8 + mask)", "e^−∞ is 0.");
    recipe_set_provenance(r, TRACE_COMPUTED, "masked_scores", NULL, 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    recipe_add_copy(r, "row_sums", TRACE_VALUES, ATTN_F64, SHAPE(L), sums);
    recipe_describe(r, "The sum of each row", "Σ_j e^(…)", "One number for each query.");
    recipe_set_provenance(r, TRACE_COMPUTED, "exponentials", NULL, 0);
    recipe_columns(r, asks, L);
}

/* 1000 more in every score: e^x overflows, and the weights stay the same. */
static void large_scores(recipe *r, const recipe_attention *given)
{
    double thousand[L * L];
    for (int i = 0; i < L * L; i++) {
        thousand[i] = 1000;
    }
    attn_tensor add = attn_matrix(thousand, ATTN_F64, L, L);
    recipe_attention a = *given;
    a.mask = &add;
    kit_array x = recipe_step(r, "beyond_large_scores", TRACE_VALUES, ATTN_F64, SHAPE(L, L));
    recipe_scores(r, &a, ATTN_STAGE_BIASED, recipe_view(x));
    recipe_describe(r, "Scores too large for e^x", "S/√8 + 1000",
                    "e^x is infinite for x above 709.78 in double precision.");
    recipe_set_provenance(r, TRACE_COMPUTED, "scaled_scores", NULL, 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    kit_array w = recipe_step(r, "beyond_large_weights", TRACE_VALUES, ATTN_F64, SHAPE(L, L));
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(w));
    recipe_describe(r, "Subtract the largest score first", "softmax(S/√8 + 1000)",
                    "Without the subtraction every weight would be inf/inf = nan.");
    recipe_set_provenance(r, TRACE_COMPUTED, "beyond_large_scores", NULL, 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
}

/* Masks keys after softmax instead of before it: weights are set to 0, so rows no longer sum to
 * 1. */
static void zero_after(recipe *r, kit_array unmasked)
{
    double cut[L * L] = {0}, sums[L] = {0}, again[L * L] = {0};
    for (int i = 0; r->status == KIT_OK && i < L; i++) {
        for (int j = 0; j <= i; j++) {
            cut[i * L + j] = kit_array_get(&unmasked, i * L + j);
            sums[i] += cut[i * L + j];
        }
        for (int j = 0; j <= i; j++) {
            again[i * L + j] = cut[i * L + j] / sums[i];
        }
    }
    recipe_add_copy(r, "beyond_zeroed", TRACE_VALUES, ATTN_F64, SHAPE(L, L), cut);
    recipe_describe(
        r, "Zeroing after softmax instead", "A·tril",
        "The keys ahead are gone, but they took their share with them: what comes later still "
        "changes the numbers of what came before.");
    recipe_set_provenance(r, TRACE_COMPUTED, "unmasked_weights", "tril", 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    recipe_add_copy(r, "beyond_zeroed_row_sums", TRACE_VALUES, ATTN_F64, SHAPE(L), sums);
    recipe_describe(r, "The rows no longer sum to 1", "Σ_j", "The first query keeps only %.4g.",
                    sums[0]);
    recipe_set_provenance(r, TRACE_COMPUTED, "beyond_zeroed", NULL, 0);
    recipe_columns(r, asks, L);
    recipe_add_copy(r, "beyond_renormalised", TRACE_WEIGHTS, ATTN_F64, SHAPE(L, L), again);
    recipe_describe(
        r, "Divided by their row sums", "(A·tril)/Σ",
        "The same as −∞ before softmax, which is the same division over the visible keys alone, "
        "in one step and with nothing to leak.");
    /* The scores say which keys are masked. */
    recipe_set_provenance(r, TRACE_COMPUTED, "masked_scores", "beyond_zeroed", 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
}

/* Columns h*size to (h+1)*size - 1 of a, for each head h. */
static kit_array cut_heads(recipe *r, kit_array a, const char *of, const char *name,
                           const char *title, const char *formula, const char *const *labels)
{
    const int64_t size = D / BEYOND_HEADS;
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F64, SHAPE(BEYOND_HEADS, L, size));
    for (int64_t n = 0; r->status == KIT_OK && n < L * D; n++) {
        int64_t head = n % D / size, to = (head * L + n / D) * size + n % size;
        ((double *)out.data)[to] = kit_array_get(&a, n);
    }
    recipe_describe(r, title, formula, "%s", "");
    recipe_set_provenance(r, TRACE_COMPUTED, of, NULL, 0);
    recipe_rows(r, labels, L);
    return out;
}

/* The same numbers as two heads of four: each head has its own weights. */
static void two_heads(recipe *r, kit_array q, kit_array k, kit_array v)
{
    const int64_t size = D / BEYOND_HEADS;
    kit_array q_h = cut_heads(r, q, "queries", "beyond_heads_queries",
                              "Two heads: each query in two halves", "Q_h = Q[:, 4h : 4h+4]", asks);
    kit_array k_h = cut_heads(r, k, "keys", "beyond_heads_keys", "and each key",
                              "K_h = K[:, 4h : 4h+4]", answers);
    recipe_attention a = {recipe_view(q_h),
                          recipe_view(k_h),
                          attn_bthd(v.data, ATTN_F64, 1, L, BEYOND_HEADS, size),
                          1,
                          true,
                          NULL};
    kit_array raw =
        recipe_step(r, "beyond_heads_scores", TRACE_SCORES, ATTN_F64, SHAPE(BEYOND_HEADS, L, L));
    recipe_scores(r, &a, ATTN_STAGE_RAW, recipe_view(raw));
    recipe_describe(r, "Each head's scores", "Q_h·K_hᵀ", "Four products each, not eight.");
    recipe_set_provenance(r, TRACE_DOT, "beyond_heads_queries", "beyond_heads_keys", 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    a.scale = 0;
    kit_array masked = recipe_step(r, "beyond_heads_masked_scores", TRACE_SCORES, ATTN_F64,
                                   SHAPE(BEYOND_HEADS, L, L));
    recipe_scores(r, &a, ATTN_STAGE_BIASED, recipe_view(masked));
    recipe_describe(r, "Scaled and masked", "Q_h·K_hᵀ/√4 + mask", "The same mask for both heads.");
    recipe_set_provenance(r, TRACE_MASK, "beyond_heads_scores", NULL, 1 / sqrt((double)size));
    recipe_causal(r, 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    kit_array w =
        recipe_step(r, "beyond_heads_weights", TRACE_WEIGHTS, ATTN_F64, SHAPE(BEYOND_HEADS, L, L));
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(w));
    recipe_describe(r, "Each head's weights", "softmax(Q_h·K_hᵀ/√4 + mask)",
                    "The same numbers, two patterns of attention.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "beyond_heads_masked_scores", NULL, 0);
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    kit_array z = recipe_step(r, "beyond_heads_context", TRACE_VALUES, ATTN_F64, SHAPE(L, D));
    recipe_context(r, &a, attn_bthd(z.data, ATTN_F64, 1, L, BEYOND_HEADS, size));
    recipe_describe(r, "Their contexts side by side", "concat(A_1·V_1, A_2·V_2)",
                    "As many numbers as with one head; a matrix W_o would mix them.");
    recipe_set_provenance(r, TRACE_COMPUTED, "beyond_heads_weights", "values", 0);
    recipe_rows(r, asks, L);
}

static void score(recipe *r, kit_array q, kit_array k, recipe_attention *a, const slacks *s)
{
    r->section = "Self-attention";
    kit_array scores = matrix(r, a, ATTN_STAGE_RAW, "scores",
                              "array([[-1.2887322 ,  0.05259302,  5.41468384,  5.53158304],\n"
                              "[ 1.21809987, -1.50851289,  2.67899554, -3.05810347],\n"
                              "[-2.38702001,  5.77090827, -2.63810085, -4.87573555],\n"
                              "[-0.48467569,  3.22650468,  1.12892056, -1.25695118]])",
                              s->scores);
    recipe_describe(r, "Every query asks, every key answers", "S = Q·Kᵀ",
                    "Row asks, column answers.");
    recipe_set_provenance(r, TRACE_DOT, "queries", "keys", 0);
    r->section = "Why we need sqrt(d_k) in denominator";
    a->scale = 0;
    kit_array scaled = matrix(r, a, ATTN_STAGE_RAW, "scaled_scores",
                              "array([[-0.45563564,  0.01859444,  1.91437983,  1.95570994],\n"
                              "[ 0.43066334, -0.53333985,  0.94716796, -1.08120285],\n"
                              "[-0.84393902,  2.04032419, -0.9327095 , -1.72383284],\n"
                              "[-0.17135873,  1.14074167,  0.39913369, -0.44439935]])",
                              s->scaled);
    recipe_describe(r, "Scale", "S / √8", "Divided by √d_k = %.4g.", sqrt(D));
    recipe_set_provenance(r, TRACE_SCALE, "scores", NULL, 1 / sqrt(D));
    variances(r, q, k, scores, scaled, s);
    grow(r);
}

static void attend(recipe *r, recipe_attention *a, const slacks *s)
{
    r->section = "Masking";
    kit_array mask = causal_mask(r);
    mask_twice(r, mask);
    attn_tensor mask_view = recipe_view(mask);
    a->mask = &mask_view;
    kit_array masked = matrix(r, a, ATTN_STAGE_BIASED, "masked_scores",
                              "array([[-0.45563564,        -inf,        -inf,        -inf],\n"
                              "[ 0.43066334, -0.53333985,        -inf,        -inf],\n"
                              "[-0.84393902,  2.04032419, -0.9327095 ,        -inf],\n"
                              "[-0.17135873,  1.14074167,  0.39913369, -0.44439935]])",
                              s->scaled);
    recipe_describe(r, "Hide what comes later", "S/√8 + mask",
                    "e^−∞ is 0, so a hidden key gets nothing.");
    recipe_set_provenance(r, TRACE_MASK, "scaled_scores", NULL, 0);
    softmax_parts(r, masked);
    matrix(r, a, ATTN_STAGE_WEIGHTS, "weights",
           "array([[1.        , 0.        , 0.        , 0.        ],\n"
           "[0.72392259, 0.27607741, 0.        , 0.        ],\n"
           "[0.05049119, 0.90330657, 0.04620224, 0.        ],\n"
           "[0.13804211, 0.51268376, 0.24421555, 0.10505859]])",
           s->weights);
    recipe_describe(r, "Softmax over what is visible", "A = softmax(S/√8 + mask)",
                    "Each number is e^x divided by the sum of its row, so a row adds up to 1.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "masked_scores", NULL, 0);
    context(r, a, "context");
    recipe_describe(r, "Mix the values by the weights", "A·V", "The first query sees only itself.");
    recipe_set_provenance(r, TRACE_MIX, "weights", "values", 0);
    recipe_printed(r, "array([[-0.75019022,  0.40213689,  0.87469443, -0.08750707,  0.30595976,\n"
                      "0.57752085, -0.66289836, -1.41503872],\n"
                      "[-0.60766979,  0.21784661,  0.44589257, -0.27115811, -0.04690101,\n"
                      "0.73796781, -0.39412598, -1.13985976],\n"
                      "[-0.25616189, -0.16222222, -0.50053149, -0.62164293, -0.77786182,\n"
                      "1.01675176,  0.2689651 , -0.46597971],\n"
                      "[-0.1764691 ,  0.08129623,  0.06401155,  0.10919793,  0.270461  ,\n"
                      "0.24657159,  0.23857381, -0.65186896]])");
    recipe_slack(r, s->context, 0, why);
    a->mask = NULL;
}

static void go_on(recipe *r, const recipe_attention *a, kit_array q, kit_array k, kit_array v)
{
    r->section = "Beyond the notebook: scores too large for e^x";
    r->after_notebook = true;
    large_scores(r, a);
    r->section = "Beyond the notebook: without the mask, and other ways to mask";
    kit_array unmasked = matrix(r, a, ATTN_STAGE_WEIGHTS, "unmasked_weights", NULL, 0);
    recipe_describe(r, "Without the mask", "softmax(S/√8)", "Every query sees every key.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "scaled_scores", NULL, 0);
    context(r, a, "unmasked_context");
    recipe_describe(r, "and its context", "A·V", "%s", "");
    recipe_set_provenance(r, TRACE_MIX, "unmasked_weights", "values", 0);
    zero_after(r, unmasked);
    r->section = "Beyond the notebook: heads";
    two_heads(r, q, k, v);
}

int lesson_numpy(trace *t, attn_context *ctx, kit_error *err)
{
    recipe r = recipe_begin(t, ctx, err, "numpy", "Self-attention in NumPy", NULL);
    recipe_setting(&r,
                   "4 queries, 4 keys, d_k = d_v = 8, scores ÷ √8, causal mask, double precision");
    t->query = 1;
    slacks s = worst_slack();
    r.section = "Q, K and V";
    kit_array q = typed(&r, "queries", "Queries", typed_q, asks, PRINTED_Q "\n" PRINTED_Q);
    kit_array k = typed(&r, "keys", "Keys", typed_k, answers, PRINTED_K "\n" PRINTED_K);
    recipe_add_copy(&r, "values_cut", TRACE_VALUES, ATTN_F64, SHAPE(4), typed_v);
    recipe_check_only(&r, "values, where the file cuts the print off",
                      "V\n[[-0.75019022  0.40213689  0.87469443 -0.08750707\n"
                      "V\n[[-0.75019022  0.40213689  0.87469443 -0.08750707");
    kit_array v = typed(&r, "values", "Values", typed_v, answers, PRINTED_V);

    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(v), 1, false, NULL};
    score(&r, q, k, &a, &s);
    attend(&r, &a, &s);
    go_on(&r, &a, q, k, v);
    recipe_health(&r, "weights", &(recipe_advice){NULL, NULL, NULL, NULL});
    recipe_note(&r, "next", "--check  --full  --quiz  -o map.svg  --json");
    return recipe_end(&r);
}
