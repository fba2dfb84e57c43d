/* Lesson `numpy`: attention in double precision from given q, k, v; the reason for √d_k; the causal
 * mask.
 *
 * The notebook drew its numbers without a seed, so only the 8 decimals that it printed are known
 * (for v from its last complete output; the first one is cut off in the file). lesson_check allows
 * for the error that this causes; worst_slack() computes it.
 */
#include <math.h>

#include "../recipe.h"
#include "lessons.h"

enum { L = 4, D = 8, BEYOND_HEADS = 2 };

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
static void variances(recipe *r, kit_array q, kit_array k, kit_array scores, const slacks *s)
{
    double divided[L * L]; /* the lesson's next step; the notebook prints its variance first */
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(k), 0, false, NULL};
    recipe_scores(r, &a, ATTN_STAGE_RAW, attn_matrix(divided, ATTN_F64, L, L));
    kit_array scaled = {ATTN_F64, 2, {L, L}, divided, sizeof divided};
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
    recipe_describe(
        r, "Why √d_k: dot products spread", "var",
        "The scores vary 8 times as much as the scaled ones: %.4g against %.4g. A dot product "
        "of d numbers of variance 1 has variance d.",
        x[2], x[3]);
    recipe_columns(r, labels, 4);
    recipe_printed(r, "0.9364650972271772 1.086444058695338 10.097741326679849 1.262217664703409");
    recipe_slack(r, 0, s->variance_part, why);
    double again[5] = {x[0], x[1], x[0], x[1], x[3]}; /* printed: q, k, q, k, scaled */
    recipe_add_copy(r, "variance_again", TRACE_VALUES, ATTN_F64, SHAPE(5), again);
    recipe_check_only(r, "variance, printed again",
                      "(np.float64(0.9364650972271772), np.float64(1.086444058695338),\n"
                      "(np.float64(0.9364650972271772), np.float64(1.086444058695338), "
                      "np.float64(1.262217664703409))");
    recipe_slack(r, 0, s->variance_part, why);
}

static kit_array causal_mask(recipe *r)
{
    double mask[L * L], ones[L * L];
    for (int i = 0; i < L * L; i++) {
        ones[i] = i % L <= i / L;
        mask[i] = ones[i] > 0 ? 0.0 : -INFINITY;
    }
    recipe_add_copy(r, "tril", TRACE_VALUES, ATTN_F64, SHAPE(L, L), ones);
    recipe_check_only(
        r, "mask as ones",
        "array([[1., 0., 0., 0.],\n[1., 1., 0., 0.],\n[1., 1., 1., 0.],\n[1., 1., 1., 1.]])");
    kit_array out = recipe_add_copy(r, "mask", TRACE_SCORES, ATTN_F64, SHAPE(L, L), mask);
    recipe_describe(r, "A mask to add: 0 where a key may be seen, −∞ where it may not", "tril",
                    "%s", "");
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
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    recipe_add_copy(r, "beyond_zeroed_row_sums", TRACE_VALUES, ATTN_F64, SHAPE(L), sums);
    recipe_describe(r, "The rows no longer sum to 1", "Σ_j", "The first query keeps only %.4g.",
                    sums[0]);
    recipe_columns(r, asks, L);
    recipe_add_copy(r, "beyond_renormalised", TRACE_WEIGHTS, ATTN_F64, SHAPE(L, L), again);
    recipe_describe(
        r, "Divided by their row sums", "(A·tril)/Σ",
        "The same as −∞ before softmax, which is the same division over the visible keys alone, "
        "in one step and with nothing to leak.");
    recipe_set_provenance(r, TRACE_GIVEN, "masked_scores", NULL, 0); /* the same keys are masked */
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
}

/* The same numbers as two heads of four: each head has its own weights. */
static void two_heads(recipe *r, kit_array q, kit_array k, kit_array v)
{
    const int64_t size = D / BEYOND_HEADS;
    recipe_attention a = {attn_bthd(q.data, ATTN_F64, 1, L, BEYOND_HEADS, size),
                          attn_bthd(k.data, ATTN_F64, 1, L, BEYOND_HEADS, size),
                          attn_bthd(v.data, ATTN_F64, 1, L, BEYOND_HEADS, size),
                          0,
                          true,
                          NULL};
    kit_array w =
        recipe_step(r, "beyond_heads_weights", TRACE_WEIGHTS, ATTN_F64, SHAPE(BEYOND_HEADS, L, L));
    recipe_scores(r, &a, ATTN_STAGE_WEIGHTS, recipe_view(w));
    recipe_describe(r, "Two heads: columns 1-4 and 5-8 of Q and K ask separately",
                    "softmax(Q_h·K_hᵀ/√4)", "The same numbers, two patterns of attention.");
    recipe_rows(r, asks, L);
    recipe_columns(r, answers, L);
    kit_array z = recipe_step(r, "beyond_heads_context", TRACE_VALUES, ATTN_F64, SHAPE(L, D));
    recipe_context(r, &a, attn_bthd(z.data, ATTN_F64, 1, L, BEYOND_HEADS, size));
    recipe_describe(r, "Their contexts side by side", "concat(A_1·V_1, A_2·V_2)",
                    "As many numbers as with one head; a matrix W_o would mix them.");
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
    variances(r, q, k, scores, s);
    a->scale = 0;
    matrix(r, a, ATTN_STAGE_RAW, "scaled_scores",
           "array([[-0.45563564,  0.01859444,  1.91437983,  1.95570994],\n"
           "[ 0.43066334, -0.53333985,  0.94716796, -1.08120285],\n"
           "[-0.84393902,  2.04032419, -0.9327095 , -1.72383284],\n"
           "[-0.17135873,  1.14074167,  0.39913369, -0.44439935]])",
           s->scaled);
    recipe_describe(r, "Scale", "S / √8", "Divided by √d_k = %.4g.", sqrt(D));
    recipe_set_provenance(r, TRACE_SCALE, "scores", NULL, 1 / sqrt(D));
}

static void attend(recipe *r, recipe_attention *a, const slacks *s)
{
    r->section = "Masking";
    kit_array mask = causal_mask(r);
    attn_tensor mask_view = recipe_view(mask);
    a->mask = &mask_view;
    matrix(r, a, ATTN_STAGE_BIASED, "masked_scores",
           "array([[-0.45563564,        -inf,        -inf,        -inf],\n"
           "[ 0.43066334, -0.53333985,        -inf,        -inf],\n"
           "[-0.84393902,  2.04032419, -0.9327095 ,        -inf],\n"
           "[-0.17135873,  1.14074167,  0.39913369, -0.44439935]])",
           s->scaled);
    recipe_describe(r, "Hide what comes later", "S/√8 + mask",
                    "e^−∞ is 0, so a hidden key gets nothing.");
    recipe_set_provenance(r, TRACE_MASK, "scaled_scores", NULL, 0);
    matrix(r, a, ATTN_STAGE_WEIGHTS, "weights",
           "array([[1.        , 0.        , 0.        , 0.        ],\n"
           "[0.72392259, 0.27607741, 0.        , 0.        ],\n"
           "[0.05049119, 0.90330657, 0.04620224, 0.        ],\n"
           "[0.13804211, 0.51268376, 0.24421555, 0.10505859]])",
           s->weights);
    recipe_describe(
        r, "Softmax over what is visible", "A = softmax(S)",
        "The notebook's softmax does not subtract the row's maximum first; with large scores "
        "e^x would overflow. The engine's does, and the numbers are the same.");
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
    r->section = "Beyond the notebook: without the mask, and other ways to mask";
    r->after_notebook = true;
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
