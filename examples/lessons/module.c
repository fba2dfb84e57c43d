/* The notebook "module": attention as a look-up, and multi-head attention as a module.
 *
 * First in plain loops: read from top to bottom, each part uses only the arrays above it. It prints
 * what the notebook printed. Then the same through libattn, and the largest difference.
 *
 *   cc examples/lessons/module.c -lattn -lm && ./a.out        (or: make lessons)
 */
#include <attn.h>
#include <math.h>
#include <stdio.h>

enum { KEYS = 4, SIZE = 3, ASKED = 3 };             /* the look-ups */
enum { WORDS = 3, MODEL = 4, HEADS = 2, HEAD = 2 }; /* the module: HEAD = MODEL / HEADS */

static void print_row(const char *name, const float *row, int size, const char *format)
{
    printf("%s", name);
    for (int j = 0; j < size; j++)
        printf(format, row[j]);
    printf("\n");
}

/* ------------------------------------------------------------------------------ The look-ups */

/* [keys] */
static const float keys[KEYS][SIZE] = {
    {10, 0, 0}, /* k0 */
    {0, 10, 0}, /* k1 */
    {0, 0, 10}, /* k2 */
    {0, 0, 10}, /* k3, the same as k2 */
};

/* [values] */
static const float values[KEYS][SIZE] = {
    {1, 0, 1},    /* handed over when k0 fits */
    {10, 0, 2},   /* k1 */
    {100, 5, 0},  /* k2 */
    {1000, 6, 0}, /* k3 */
};

/* [one_queries] */
static const float one_queries[SIZE] = {0, 10, 0}; /* q0 is k1 */
static float one_scores[KEYS], one_scaled_scores[KEYS];
static float one_weights[KEYS], one_context[SIZE];

/* [] */
static void one_look_up(void)
{
    /* [one_scores] */
    for (int j = 0; j < KEYS; j++) { /* key j answers */
        one_scores[j] = 0;
        for (int d = 0; d < SIZE; d++)
            one_scores[j] += one_queries[d] * keys[j][d];
    }

    /* [one_scaled_scores] */
    for (int j = 0; j < KEYS; j++)
        one_scaled_scores[j] = one_scores[j] / sqrtf(4); /* SIZE is right */

    /* [one_weights] */
    float largest = one_scaled_scores[0], total = 0;
    for (int j = 1; j < KEYS; j++)
        largest = fmaxf(largest, one_scaled_scores[j]);
    for (int j = 0; j < KEYS; j++) {
        one_weights[j] = expf(one_scaled_scores[j] - largest);
        total += one_weights[j];
    }
    for (int j = 0; j < KEYS; j++)
        one_weights[j] /= total; /* shares of 1 */

    /* [one_context] */
    for (int c = 0; c < SIZE; c++) { /* number c of the result */
        one_context[c] = 0;
        for (int j = 0; j < KEYS; j++)
            one_context[c] += one_weights[j] * values[j][c];
    }
    /* [] */
    for (int j = 0; j < KEYS; j++) {
        print_row("key     ", keys[j], SIZE, " %.0f");
        print_row("  value ", values[j], SIZE, " %.0f");
    }
    printf("\nOne query\n");
    print_row("output  ", one_context, SIZE, " %.4e");
    print_row("weights ", one_weights, KEYS, " %.4e");
}

/* [three_queries] */
static const float three_queries[ASKED][SIZE] = {
    {0, 10, 0},  /* q0 is k1 */
    {0, 0, 10},  /* q1 is k2 and k3 */
    {10, 10, 0}, /* q2 is k0 + k1 */
};
static float three_scores[ASKED][KEYS], three_scaled_scores[ASKED][KEYS];
static float three_weights[ASKED][KEYS], three_context[ASKED][SIZE];

/* [] */
static void three_look_ups(void)
{
    /* [three_scores] */
    for (int i = 0; i < ASKED; i++) /* row i: query i asks */
        for (int j = 0; j < KEYS; j++) {
            three_scores[i][j] = 0;
            for (int d = 0; d < SIZE; d++)
                three_scores[i][j] += three_queries[i][d] * keys[j][d];
        }

    /* [three_scaled_scores] */
    for (int i = 0; i < ASKED; i++)
        for (int j = 0; j < KEYS; j++)
            three_scaled_scores[i][j] = three_scores[i][j] / sqrtf(4);

    /* [three_weights] */
    for (int i = 0; i < ASKED; i++) { /* each row on its own */
        float *row = three_weights[i], total = 0;
        for (int j = 0; j < KEYS; j++) {
            row[j] = expf(three_scaled_scores[i][j] - 50); /* the largest */
            total += row[j];
        }
        for (int j = 0; j < KEYS; j++)
            row[j] /= total;
    }

    /* [three_context] */
    for (int i = 0; i < ASKED; i++)
        for (int c = 0; c < SIZE; c++) {
            three_context[i][c] = 0;
            for (int j = 0; j < KEYS; j++)
                three_context[i][c] += three_weights[i][j] * values[j][c];
        }
    /* [] */
    printf("\nThree queries\n");
    for (int i = 0; i < ASKED; i++)
        print_row("query   ", three_queries[i], SIZE, " %.0f");
    for (int i = 0; i < ASKED; i++)
        print_row("weights ", three_weights[i], KEYS, " %.4f");
    for (int i = 0; i < ASKED; i++)
        print_row("output  ", three_context[i], SIZE, " %.4f");
}

/* ------------------------------------------------------------------------------- The module */

/* [mha_inputs] */
static const float x[WORDS][MODEL] = {
    {0.0f, 0.1f, 0.2f, 0.3f}, /* word x0 */
    {1.0f, 1.1f, 1.2f, 1.3f}, /* word x1 */
    {2.0f, 2.1f, 2.2f, 2.3f}, /* word x2 */
};

/* [] */
/* What torch.manual_seed(123) and the notebook's class draw, in this order. */

/* [mha_w_q] */
static const float w_q[HEADS][HEAD][MODEL] = {
    {{-0.203888059f, 0.016562283f, -0.248329282f, 0.18855679f},
     {-0.426027536f, 0.366521955f, -0.363420129f, -0.397520959f}},
    {{-0.184746087f, 0.187106669f, -0.424364686f, -0.303361833f},
     {-0.183588028f, -0.0982598662f, -0.381431699f, 0.32739538f}}};
/* [mha_b_q] */
static const float b_q[HEADS][HEAD] = {
    {-0.315943539f, 0.226446748f},
    {-0.117915571f, 0.160493851f},
};
/* [mha_w_k] */
static const float w_k[HEADS][HEAD][MODEL] = {
    {{0.353571773f, 0.0931529999f, 0.136725366f, 0.482629359f},
     {-0.225504696f, 0.158375621f, -0.222458065f, 0.357324839f}},
    {{0.426822901f, 0.238757193f, 0.217883527f, 0.205837429f},
     {0.415649533f, -0.0660197735f, -0.422849238f, -0.14347446f}}};
/* [mha_b_k] */
static const float b_k[HEADS][HEAD] = {
    {0.399328232f, -0.460986137f},
    {-0.352137327f, 0.0330533385f},
};
/* [mha_w_v] */
static const float w_v[HEADS][HEAD][MODEL] = {
    {{-0.0933537483f, -0.26819247f, -0.045460701f, 0.473701894f},
     {-0.0394377112f, 0.0158750415f, -0.0779802799f, 0.0786035061f}},
    {{0.177480757f, 0.108655274f, 0.117896438f, 0.193166614f},
     {-0.064611733f, -0.464704394f, -0.309205949f, 0.42679286f}}};
/* [mha_b_v] */
static const float b_v[HEADS][HEAD] = {
    {0.445506334f, 0.305746436f},
    {0.0298867226f, -0.405036747f},
};
/* [mha_out_weight] */
static const float w_o[MODEL][MODEL] = {
    /* a row for each number of the output */
    {0.07886374f, 0.413135827f, -0.472499847f, -0.336619675f},
    {-0.1991328f, 0.0200687647f, -0.116614699f, -0.0549455881f},
    {-0.487445056f, 0.234139562f, 0.438871622f, 0.30561918f},
    {-0.354066193f, -0.403051674f, 0.207626164f, 0.0112292767f}};
/* [mha_out_bias] */
static const float b_o[MODEL] = {
    0.204965472f,
    -0.488575697f,
    -0.0298115015f,
    0.352621853f,
};

/* [] */
static float Q[HEADS][WORDS][HEAD], K[HEADS][WORDS][HEAD], V[HEADS][WORDS][HEAD];
static float scores[HEADS][WORDS][WORDS], scaled_scores[HEADS][WORDS][WORDS];
static float weights[HEADS][WORDS][WORDS], heads[HEADS][WORDS][HEAD];
static float concat[WORDS][MODEL], output[WORDS][MODEL];

static void project(void)
{
    /* [mha_queries] */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < WORDS; i++)
            for (int d = 0; d < HEAD; d++) {
                Q[h][i][d] = b_q[h][d]; /* the bias, then 4 products */
                for (int e = 0; e < MODEL; e++)
                    Q[h][i][d] += x[i][e] * w_q[h][d][e];
            }

    /* [mha_keys] */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < WORDS; i++)
            for (int d = 0; d < HEAD; d++) {
                K[h][i][d] = b_k[h][d];
                for (int e = 0; e < MODEL; e++)
                    K[h][i][d] += x[i][e] * w_k[h][d][e];
            }

    /* [mha_values] */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < WORDS; i++)
            for (int d = 0; d < HEAD; d++) {
                V[h][i][d] = b_v[h][d];
                for (int e = 0; e < MODEL; e++)
                    V[h][i][d] += x[i][e] * w_v[h][d][e];
            }
    /* [] */
}

static void attend(void)
{
    /* [mha_scores] */
    for (int h = 0; h < HEADS; h++) /* each head compares on its own */
        for (int i = 0; i < WORDS; i++)
            for (int j = 0; j < WORDS; j++) {
                scores[h][i][j] = 0;
                for (int d = 0; d < HEAD; d++)
                    scores[h][i][j] += Q[h][i][d] * K[h][j][d];
            }

    /* [mha_scaled_scores] */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < WORDS; i++)
            for (int j = 0; j < WORDS; j++)
                scaled_scores[h][i][j] = scores[h][i][j] / sqrtf(HEAD);

    /* [mha_weights] */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < WORDS; i++) {
            float *row = weights[h][i], total = 0;
            for (int j = 0; j < WORDS; j++) {
                row[j] = expf(scaled_scores[h][i][j]); /* small enough */
                total += row[j];
            }
            for (int j = 0; j < WORDS; j++)
                row[j] /= total;
        }

    /* [mha_heads] */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < WORDS; i++)
            for (int d = 0; d < HEAD; d++) {
                heads[h][i][d] = 0;
                for (int j = 0; j < WORDS; j++)
                    heads[h][i][d] += weights[h][i][j] * V[h][j][d];
            }
    /* [] */
}

static void join(void)
{
    /* [mha_concat] */
    for (int i = 0; i < WORDS; i++)
        for (int h = 0; h < HEADS; h++)
            for (int d = 0; d < HEAD; d++)
                concat[i][h * HEAD + d] = heads[h][i][d]; /* head 2: 2, 3 */

    /* [mha_output] */
    for (int i = 0; i < WORDS; i++)
        for (int c = 0; c < MODEL; c++) {
            output[i][c] = b_o[c];
            for (int e = 0; e < MODEL; e++)
                output[i][c] += concat[i][e] * w_o[c][e];
        }
    /* [] */
    printf("\nThe module: shapes of x [1, %d, %d], of output [1, %d, %d]", WORDS, MODEL, WORDS,
           MODEL);
    printf(", of weights [1, %d, %d, %d]\n", HEADS, WORDS, WORDS);
    for (int i = 0; i < WORDS; i++)
        print_row("output  ", output[i], MODEL, " %.4f");
}

/* ------------------------------------------------------------------------- The same by libattn */

static float largest_difference(const void *a, const void *b, int count)
{
    float most = 0;
    for (int i = 0; i < count; i++) {
        float d = fabsf(((const float *)a)[i] - ((const float *)b)[i]);
        most = isnan(d) ? INFINITY : fmaxf(most, d);
    }
    return most;
}

/* The difference of weights and results for `rows` queries; -1: the call failed. */
static float compare_look_ups(const void *queries, int rows, const void *w, const void *context)
{
    float out[ASKED * SIZE], shares[ASKED * KEYS] = {0};
    attn_tensor shares_view = attn_matrix(shares, ATTN_F32, rows, KEYS);
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_matrix(queries, ATTN_F32, rows, SIZE);
    args.k = attn_matrix(keys, ATTN_F32, KEYS, SIZE);
    args.v = attn_matrix(values, ATTN_F32, KEYS, SIZE);
    args.out = attn_matrix(out, ATTN_F32, rows, SIZE);
    args.scale = 1 / sqrt(4); /* the default would be 1 / sqrt(3) */
    args.scores = &shares_view;
    args.scores_stage = ATTN_STAGE_WEIGHTS;
    if (attn_sdpa_forward(NULL, &args, NULL) != ATTN_OK)
        return -1;
    return fmaxf(largest_difference(shares, w, rows * KEYS),
                 largest_difference(out, context, rows * SIZE));
}

static float compare_module(void)
{
    float out[WORDS * MODEL], shares[HEADS * WORDS * WORDS] = {0};
    attn_tensor shares_view = attn_bhtd(shares, ATTN_F32, 1, HEADS, WORDS, WORDS);
    attn_sdpa_args attention = ATTN_SDPA_ARGS_INIT;
    attention.scores = &shares_view;
    attention.scores_stage = ATTN_STAGE_WEIGHTS;
    attn_mha_args args = ATTN_MHA_ARGS_INIT;
    args.attention = &attention;
    args.x = attn_bhtd(x, ATTN_F32, 1, 1, WORDS, MODEL);
    args.w_q = attn_bhtd(w_q, ATTN_F32, 1, HEADS, HEAD, MODEL);
    args.w_k = attn_bhtd(w_k, ATTN_F32, 1, HEADS, HEAD, MODEL);
    args.w_v = attn_bhtd(w_v, ATTN_F32, 1, HEADS, HEAD, MODEL);
    args.b_q = attn_bhtd(b_q, ATTN_F32, 1, HEADS, 1, HEAD);
    args.b_k = attn_bhtd(b_k, ATTN_F32, 1, HEADS, 1, HEAD);
    args.b_v = attn_bhtd(b_v, ATTN_F32, 1, HEADS, 1, HEAD);
    args.w_o = attn_matrix(w_o, ATTN_F32, MODEL, MODEL);
    args.b_o = attn_matrix(b_o, ATTN_F32, 1, MODEL);
    args.out = attn_bhtd(out, ATTN_F32, 1, 1, WORDS, MODEL);
    if (attn_mha_forward(NULL, &args, NULL) != ATTN_OK)
        return -1;
    return fmaxf(largest_difference(shares, weights, HEADS * WORDS * WORDS),
                 largest_difference(out, output, WORDS * MODEL));
}

int main(void)
{
    one_look_up();
    three_look_ups();
    project();
    attend();
    join();

    float differences[] = {compare_look_ups(one_queries, 1, one_weights, one_context),
                           compare_look_ups(three_queries, ASKED, three_weights, three_context),
                           compare_module()};
    float most = 0;
    for (int i = 0; i < 3; i++) {
        if (!(differences[i] >= 0))
            return fprintf(stderr, "libattn refused call %d\n", i + 1), 1;
        most = fmaxf(most, differences[i]);
    }
    printf("\nThe same by libattn: the largest difference is %.1e\n", most);
    return most > 1e-5f;
}
