/* "Your journey starts with one step": the notebook of the lesson journey, as plain loops in C.
 *
 * Read it from top to bottom. x[i][a] is number a of word i; both count from 0. Comments after
 * arrays give their shapes. At the end the same results come from libattn, and are compared.
 *   cc journey.c $(pkg-config --cflags --libs attn) -lm
 */
#include <attn.h>
#include <attn_nn.h>
#include <math.h>
#include <stdio.h>

enum { WORDS = 6, IN = 3, OUT = 2, JOURNEY = 1 };

/* Prints as PyTorch does: four decimals, a row on each line. */
static void print_tensor(int rows, int columns, const float *x)
{
    int width = 6;
    for (int i = 0; i < rows * columns; i++)
        width = x[i] < 0 ? 7 : width;
    printf(rows > 1 ? "tensor([[" : "tensor([");
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            const char *before = j > 0 ? ", " : i > 0 ? "],\n        [" : "";
            printf("%s%*.4f", before, width, x[i * columns + j]);
        }
    printf(rows > 1 ? "]])\n" : "])\n");
}

/* One row of scores, times `scale`, becomes shares that add up to 1. */
static void softmax(const float score[WORDS], float scale, float weight[WORDS])
{
    float largest = scale * score[0], sum = 0;
    for (int j = 1; j < WORDS; j++)
        largest = fmaxf(largest, scale * score[j]);
    for (int j = 0; j < WORDS; j++)
        sum += weight[j] = expf(scale * score[j] - largest);
    for (int j = 0; j < WORDS; j++)
        weight[j] /= sum;
}

/* The largest difference between `want` and libattn's context; scale 0 is 1/√size. */
static double compare(int size, const float *q, const float *k, const float *v, double scale,
                      attn_causal causal, const float *want)
{
    float out[WORDS * IN] = {0};
    /* [@libattn] */
    attn_error error;
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_matrix(q, ATTN_F32, WORDS, size); /* 6×size */
    args.k = attn_matrix(k, ATTN_F32, WORDS, size);
    args.v = attn_matrix(v, ATTN_F32, WORDS, size);
    args.out = attn_matrix(out, ATTN_F32, WORDS, size);
    args.scale = scale;   /* 0: 1/√size */
    args.causal = causal; /* ATTN_CAUSAL_TOP_LEFT: with the mask */
    if (attn_sdpa_forward(NULL, &args, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), INFINITY;
    /* [] */
    double largest = 0;
    for (int i = 0; i < WORDS * size; i++) {
        double off = fabs((double)out[i] - want[i]);
        largest = isnan(off) ? INFINITY : fmax(largest, off);
    }
    return largest;
}

/* libattn's Linear. `out` stays 0 if it fails, and then the comparison fails. */
static void project(const float *x, const float *w, int turned, float *out)
{
    attn_tensor from = attn_matrix(x, ATTN_F32, WORDS, IN);
    attn_tensor to = attn_matrix(out, ATTN_F32, WORDS, OUT);
    attn_tensor weight = attn_matrix(w, ATTN_F32, OUT, IN);
    if (turned) { /* w is [IN,OUT]: swap the strides */
        weight.stride[2] = 1;
        weight.stride[3] = OUT;
    }
    attn_linear_forward(NULL, &from, &weight, NULL, &to, NULL);
}

int main(void)
{
    /* [inputs] */
    /* 6×3: one row for each word, one column for each number */
    static const float inputs[WORDS][IN] = {
        {0.43f, 0.15f, 0.89f}, /* Your    x^(1) */
        {0.55f, 0.87f, 0.66f}, /* journey x^(2) */
        {0.57f, 0.85f, 0.64f}, /* starts  x^(3) */
        {0.22f, 0.58f, 0.33f}, /* with    x^(4) */
        {0.77f, 0.25f, 0.10f}, /* one     x^(5) */
        {0.05f, 0.80f, 0.55f}, /* step    x^(6) */
    };

    /* [simple_scores_2] */
    const float *query = inputs[JOURNEY]; /* 3 numbers, no matrix */
    float simple_scores_2[WORDS];
    for (int i = 0; i < WORDS; i++) {
        simple_scores_2[i] = 0;
        for (int a = 0; a < IN; a++)
            simple_scores_2[i] += query[a] * inputs[i][a];
    }
    printf("un-normalized scores: ");
    print_tensor(1, WORDS, simple_scores_2);

    /* [simple_normalized_2] */
    float simple_normalized_2[WORDS], sum = 0;
    for (int i = 0; i < WORDS; i++)
        sum += simple_scores_2[i];
    for (int i = 0; i < WORDS; i++)
        simple_normalized_2[i] = simple_scores_2[i] / sum;
    printf("normalized scores: ");
    print_tensor(1, WORDS, simple_normalized_2);

    /* [simple_softmax_naive_2] */
    float naive_2[WORDS], sum_exp = 0;
    for (int i = 0; i < WORDS; i++)
        sum_exp += expf(simple_scores_2[i]);
    for (int i = 0; i < WORDS; i++)
        naive_2[i] = expf(simple_scores_2[i]) / sum_exp;
    print_tensor(1, WORDS, naive_2);

    /* [simple_weights_2] */
    float simple_weights_2[WORDS], largest = simple_scores_2[0], total = 0;
    for (int i = 1; i < WORDS; i++)
        largest = fmaxf(largest, simple_scores_2[i]);
    for (int i = 0; i < WORDS; i++) /* e^(score − largest) is at most 1 */
        total += simple_weights_2[i] = expf(simple_scores_2[i] - largest);
    for (int i = 0; i < WORDS; i++)
        simple_weights_2[i] /= total;
    print_tensor(1, WORDS, simple_weights_2);

    /* [simple_context_2] */
    float simple_context_2[IN] = {0, 0, 0}; /* as long as one input */
    for (int i = 0; i < WORDS; i++)
        for (int a = 0; a < IN; a++)
            simple_context_2[a] += simple_weights_2[i] * inputs[i][a];
    print_tensor(1, IN, simple_context_2);

    /* [simple_scores] */
    float simple_scores[WORDS][WORDS] = {{0}}; /* 6×6: all pairs */
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int a = 0; a < IN; a++)
                simple_scores[i][j] += inputs[i][a] * inputs[j][a];
    print_tensor(WORDS, WORDS, *simple_scores);

    /* [@as_product] */
    float turned[IN][WORDS];
    float product[WORDS][WORDS] = {{0}}; /* 6×6 = (6×3)·(3×6) */
    for (int i = 0; i < WORDS; i++)
        for (int a = 0; a < IN; a++)
            turned[a][i] = inputs[i][a]; /* rows become columns */
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int a = 0; a < IN; a++)
                product[i][j] += inputs[i][a] * turned[a][j];
    print_tensor(WORDS, WORDS, *product);

    /* [simple_weights] */
    float simple_weights[WORDS][WORDS]; /* row after row */
    for (int i = 0; i < WORDS; i++)
        softmax(simple_scores[i], 1, simple_weights[i]);
    print_tensor(WORDS, WORDS, *simple_weights);

    /* [simple_row_sums] */
    float simple_row_sums[WORDS] = {0};
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            simple_row_sums[i] += simple_weights[i][j];
    print_tensor(1, WORDS, simple_row_sums);

    /* [simple_context] */
    float simple_context[WORDS][IN] = {{0}}; /* 6×3 = (6×6)·(6×3) */
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int a = 0; a < IN; a++)
                simple_context[i][a] += simple_weights[i][j] * inputs[j][a];
    print_tensor(WORDS, IN, *simple_context);
    print_tensor(1, IN, simple_context[JOURNEY]); /* row 2, as before */
    print_tensor(1, IN, simple_context_2);

    /* [w_q] */
    /* 3×2, torch.rand after torch.manual_seed(123) */
    static const float w_q[IN][OUT] = {{0.296111941f, 0.516562283f},
                                       {0.251670718f, 0.68855679f},
                                       {0.0739724636f, 0.866521955f}};
    /* [w_k] */
    /* 3×2, the next six numbers of the generator */
    static const float w_k[IN][OUT] = {{0.136579871f, 0.102479041f},
                                       {0.184056461f, 0.726446748f},
                                       {0.315253913f, 0.687106669f}};
    /* [w_v] */
    /* 3×2, and the next six */
    static const float w_v[IN][OUT] = {{0.075635314f, 0.196638167f},
                                       {0.316411972f, 0.401740134f},
                                       {0.118568301f, 0.82739538f}};

    /* [query_2] */
    float query_2[OUT] = {0, 0}; /* 2 = (3)·(3×2) */
    for (int a = 0; a < IN; a++)
        for (int c = 0; c < OUT; c++)
            query_2[c] += inputs[JOURNEY][a] * w_q[a][c];
    print_tensor(1, OUT, query_2);

    /* [key_2] */
    float key_2[OUT] = {0, 0};
    for (int a = 0; a < IN; a++)
        for (int c = 0; c < OUT; c++)
            key_2[c] += inputs[JOURNEY][a] * w_k[a][c];

    /* [value_2] */
    float value_2[OUT] = {0, 0};
    for (int a = 0; a < IN; a++)
        for (int c = 0; c < OUT; c++)
            value_2[c] += inputs[JOURNEY][a] * w_v[a][c];

    /* [keys] */
    float keys[WORDS][OUT] = {{0}}; /* 6×2 = (6×3)·(3×2) */
    for (int i = 0; i < WORDS; i++)
        for (int a = 0; a < IN; a++)
            for (int c = 0; c < OUT; c++)
                keys[i][c] += inputs[i][a] * w_k[a][c];

    /* [values] */
    float values[WORDS][OUT] = {{0}};
    for (int i = 0; i < WORDS; i++)
        for (int a = 0; a < IN; a++)
            for (int c = 0; c < OUT; c++)
                values[i][c] += inputs[i][a] * w_v[a][c];

    /* [slip_queries] */
    float slip_queries[WORDS][OUT] = {{0}}; /* as in cell 14 */
    for (int i = 0; i < WORDS; i++)
        for (int a = 0; a < IN; a++)
            for (int c = 0; c < OUT; c++)
                slip_queries[i][c] += inputs[i][a] * w_v[a][c];

    /* [score_22] */
    float score_22 = 0; /* one number */
    for (int c = 0; c < OUT; c++)
        score_22 += query_2[c] * key_2[c];
    printf("tensor(%.4f)\n", score_22);

    /* [scores_2] */
    float scores_2[WORDS]; /* 6 = (2)·(2×6) */
    for (int j = 0; j < WORDS; j++) {
        scores_2[j] = 0;
        for (int c = 0; c < OUT; c++)
            scores_2[j] += query_2[c] * keys[j][c];
    }
    printf("omega_{2j}:  ");
    print_tensor(1, WORDS, scores_2);

    /* [weights_2] */
    float weights_2[WORDS];
    softmax(scores_2, 1 / sqrtf(OUT), weights_2); /* first / √2 */
    print_tensor(1, WORDS, weights_2);

    /* [context_2] */
    float context_2[OUT] = {0, 0};
    for (int j = 0; j < WORDS; j++)
        for (int c = 0; c < OUT; c++)
            context_2[c] += weights_2[j] * values[j][c];
    print_tensor(1, OUT, context_2);

    /* [v1_queries] */
    float v1_queries[WORDS][OUT] = {{0}}, v1_keys[WORDS][OUT] = {{0}},
          v1_values[WORDS][OUT] = {{0}};
    for (int i = 0; i < WORDS; i++) /* same seed, same matrices */
        for (int a = 0; a < IN; a++)
            for (int c = 0; c < OUT; c++) {
                v1_queries[i][c] += inputs[i][a] * w_q[a][c];
                v1_keys[i][c] += inputs[i][a] * w_k[a][c];
                v1_values[i][c] += inputs[i][a] * w_v[a][c];
            }

    /* [v1_scores] */
    float v1_scores[WORDS][WORDS] = {{0}}; /* 6×6 = (6×2)·(2×6) */
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int c = 0; c < OUT; c++)
                v1_scores[i][j] += v1_queries[i][c] * v1_keys[j][c];

    /* [v1_weights] */
    float v1_weights[WORDS][WORDS];
    for (int i = 0; i < WORDS; i++)
        softmax(v1_scores[i], 1 / sqrtf(OUT), v1_weights[i]);

    /* [v1_context] */
    float v1_context[WORDS][OUT] = {{0}}; /* 6×2 = (6×6)·(6×2) */
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int c = 0; c < OUT; c++)
                v1_context[i][c] += v1_weights[i][j] * v1_values[j][c];
    print_tensor(WORDS, OUT, *v1_context);

    /* [slip_weights] */
    float slip_scores[WORDS][WORDS] = {{0}}, slip_weights[WORDS][WORDS];
    for (int i = 0; i < WORDS; i++) {
        for (int j = 0; j < WORDS; j++)
            for (int c = 0; c < OUT; c++)
                slip_scores[i][j] += slip_queries[i][c] * keys[j][c];
        softmax(slip_scores[i], 1 / sqrtf(OUT), slip_weights[i]);
    }

    /* [slip_difference] */
    float slip_difference[WORDS][WORDS], most = 0;
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++) {
            slip_difference[i][j] = slip_weights[i][j] - v1_weights[i][j];
            most = fmaxf(most, fabsf(slip_difference[i][j]));
        }
    printf("beyond the notebook: a weight changes by at most %.4f\n", most);

    /* [v2_w_q] */
    /* 2×3: nn.Linear keeps a row for each output */
    static const float v2_w_q[OUT][IN] = {
        {0.316059083f, 0.456808567f, 0.51183486f},
        {-0.1682854f, -0.337877035f, -0.0917738676f},
    };
    /* [v2_w_k] */
    static const float v2_w_k[OUT][IN] = {
        {0.405805826f, -0.470420539f, 0.236805201f},
        {0.213360742f, -0.260050654f, -0.510542989f},
    };
    /* [v2_w_v] */
    static const float v2_w_v[OUT][IN] = {
        {0.252569884f, -0.14147827f, -0.196181342f},
        {0.519107401f, -0.0851675794f, -0.204327047f},
    };

    /* [v2_queries] */
    float v2_queries[WORDS][OUT] = {{0}}, v2_keys[WORDS][OUT] = {{0}},
          v2_values[WORDS][OUT] = {{0}};
    for (int i = 0; i < WORDS; i++)
        for (int c = 0; c < OUT; c++)
            for (int a = 0; a < IN; a++) { /* [c][a]: W is turned */
                v2_queries[i][c] += inputs[i][a] * v2_w_q[c][a];
                v2_keys[i][c] += inputs[i][a] * v2_w_k[c][a];
                v2_values[i][c] += inputs[i][a] * v2_w_v[c][a];
            }

    /* [v2_scores] */
    float v2_scores[WORDS][WORDS] = {{0}};
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int c = 0; c < OUT; c++)
                v2_scores[i][j] += v2_queries[i][c] * v2_keys[j][c];

    /* [v2_weights] */
    float v2_weights[WORDS][WORDS];
    for (int i = 0; i < WORDS; i++)
        softmax(v2_scores[i], 1 / sqrtf(OUT), v2_weights[i]);

    /* [v2_context] */
    float v2_context[WORDS][OUT] = {{0}};
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int c = 0; c < OUT; c++)
                v2_context[i][c] += v2_weights[i][j] * v2_values[j][c];
    print_tensor(WORDS, OUT, *v2_context);

    /* [causal_scores] */
    float causal_scores[WORDS][WORDS];
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++) {
            causal_scores[i][j] = v1_scores[i][j] / sqrtf(OUT);
            if (j > i) /* word j comes after word i: hidden */
                causal_scores[i][j] = -INFINITY;
        }

    /* [causal_weights] */
    float causal_weights[WORDS][WORDS];
    for (int i = 0; i < WORDS; i++)
        softmax(causal_scores[i], 1, causal_weights[i]); /* e^−∞ is 0 */

    /* [causal_context] */
    float causal_context[WORDS][OUT] = {{0}};
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int c = 0; c < OUT; c++)
                causal_context[i][c] += causal_weights[i][j] * v1_values[j][c];
    printf("beyond the notebook, with a causal mask:\n");
    print_tensor(WORDS, OUT, *causal_context);

    /* [] */
    const attn_causal none = ATTN_CAUSAL_NONE, causal = ATTN_CAUSAL_TOP_LEFT;
    float q[WORDS * OUT] = {0}, k[WORDS * OUT] = {0}, v[WORDS * OUT] = {0};
    double off = compare(IN, *inputs, *inputs, *inputs, 1, none, *simple_context);
    project(*inputs, *w_q, 1, q);
    project(*inputs, *w_k, 1, k);
    project(*inputs, *w_v, 1, v);
    off = fmax(off, compare(OUT, q, k, v, 0, none, *v1_context));
    off = fmax(off, compare(OUT, q, k, v, 0, causal, *causal_context));
    project(*inputs, *v2_w_q, 0, q);
    project(*inputs, *v2_w_k, 0, k);
    project(*inputs, *v2_w_v, 0, v);
    off = fmax(off, compare(OUT, q, k, v, 0, none, *v2_context));
    printf("largest difference from libattn: %.1e\n", off);
    return off <= 1e-5 ? 0 : 1;
}
