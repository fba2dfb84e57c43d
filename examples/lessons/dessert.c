/* "Life is short, eat dessert last": attention with queries and keys of 24 numbers and values of
 * 28, in plain loops; then three heads; then the same with libattn, compared.
 *
 *   cc dessert.c $(pkg-config --cflags --libs attn) -lm && ./a.out
 *
 * The program prints what the notebook printed. Words count from 0, as in code: word 1 is "is". A
 * mark such as [keys] names the step of `attn lesson dessert` that the lines below it compute.
 */
#include <attn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dessert_heads.h"   /* heads_w_q, heads_w_k, heads_w_v */
#include "dessert_numbers.h" /* table, w_q, w_k, w_v */

#define SIZE(array) ((int)(sizeof(array) / sizeof *(array)))

enum {
    N = 6,   /* words */
    D = 16,  /* numbers of a word */
    DK = 24, /* numbers of a query and of a key */
    DV = 28, /* numbers of a value */
    H = 3,   /* heads */
    IS = 1   /* the word that asks: the second one */
};

static const char *const words[N] = {"Life", "is", "short", "eat", "dessert", "last"};
static const char *const head_names[H] = {"head 1", "head 2", "head 3"};

/* Multiplies number by number and adds. The sum is a double, which rounds less than a float. */
static float dot(const float *a, const float *b, int size)
{
    double sum = 0;
    for (int i = 0; i < size; i++)
        sum += (double)a[i] * b[i];
    return (float)sum;
}

/* Makes shares of `size` scores: all positive, together 1. The largest score is subtracted first,
 * because e^89 is too large for a float. */
static void softmax(const float *scores, float *weights, int size)
{
    float largest = scores[0], sum = 0;
    for (int j = 1; j < size; j++)
        largest = fmaxf(largest, scores[j]);
    for (int j = 0; j < size; j++)
        sum += weights[j] = expf(scores[j] - largest);
    for (int j = 0; j < size; j++)
        weights[j] /= sum;
}

/* Prints numbers as PyTorch does: eight in a line. */
static void print(const char *name, const float *x, int size, const char *format)
{
    printf("%s\n", name);
    for (int i = 0; i < size; i++) {
        printf(format, x[i]);
        putchar(i % 8 == 7 || i == size - 1 ? '\n' : ' ');
    }
}

static float largest_difference;

static void compare(const char *name, const float *mine, const float *libattn, size_t bytes)
{
    float largest = 0;
    for (size_t i = 0; i < bytes / sizeof *mine; i++)
        largest = fmaxf(largest, fabsf(mine[i] - libattn[i]));
    printf("%-15s differs from libattn by at most %.1e\n", name, largest);
    largest_difference = fmaxf(largest_difference, largest);
}

int main(void)
{
    /* [token_ids] */
    int token_ids[N]; /* the id of a word: how many words sort before it */
    for (int i = 0; i < N; i++) {
        token_ids[i] = 0;
        for (int j = 0; j < N; j++)
            token_ids[i] += strcmp(words[j], words[i]) < 0;
        printf("%s %d\n", words[i], token_ids[i]);
    }

    /* [embedding_table] */
    /* table, 6x16, is in dessert_numbers.h: a row for each id */
    printf("table %dx%d\n", SIZE(table), SIZE(*table));

    /* [embeddings] */
    float embeddings[N][D]; /* 6x16: word i takes the row of its id */
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < D; c++)
            embeddings[i][c] = table[token_ids[i]][c];
        print(words[i], embeddings[i], D, "%7.4f");
    }

    /* [w_q] */
    /* 24x16: row r makes number r of a query */
    printf("W_q %dx%d\n", SIZE(w_q), SIZE(*w_q));

    /* [w_k] */
    /* 24x16: as many rows as W_q; query and key are multiplied in pairs */
    printf("W_k %dx%d\n", SIZE(w_k), SIZE(*w_k));

    /* [w_v] */
    /* 28x16: the number of rows is free; the result is as long */
    printf("W_v %dx%d\n", SIZE(w_v), SIZE(*w_v));

    /* [query_2] */
    const float *x_2 = embeddings[IS]; /* 16 numbers: the word "is" */
    float query_2[DK];                 /* 24 = (24x16) times 16 */
    for (int r = 0; r < DK; r++) {
        query_2[r] = 0;
        for (int c = 0; c < D; c++)
            query_2[r] += w_q[r][c] * x_2[c];
    }
    print("q_2", query_2, DK, "%7.4f");

    /* [key_2] */
    float key_2[DK]; /* 24: dot() is the inner loop shown above */
    for (int r = 0; r < DK; r++)
        key_2[r] = dot(w_k[r], x_2, D);
    print("k_2", key_2, DK, "%7.4f");

    /* [value_2] */
    float value_2[DV]; /* 28 = (28x16) times 16 */
    for (int r = 0; r < DV; r++)
        value_2[r] = dot(w_v[r], x_2, D);
    print("v_2", value_2, DV, "%7.4f");

    /* [keys] */
    float keys[N][DK]; /* 6x24: a row for each word */
    for (int j = 0; j < N; j++)
        for (int r = 0; r < DK; r++)
            keys[j][r] = dot(w_k[r], embeddings[j], D);

    /* [values] */
    float values[N][DV]; /* 6x28: a row for each word */
    for (int j = 0; j < N; j++)
        for (int r = 0; r < DV; r++)
            values[j][r] = dot(w_v[r], embeddings[j], D);

    /* [score_24] */
    float score_24 = 0; /* keys[4] belongs to "dessert" */
    for (int r = 0; r < DK; r++)
        score_24 += query_2[r] * keys[4][r];
    printf("omega_24 %.4f\n", score_24);

    /* [scores_2] */
    float scores_2[N]; /* 6: how well each key fits the query of "is" */
    for (int j = 0; j < N; j++)
        scores_2[j] = dot(query_2, keys[j], DK);
    print("omega_2", scores_2, N, "%9.4f");

    /* [scaled_scores_2] */
    float scaled_scores_2[N]; /* 6 */
    for (int j = 0; j < N; j++)
        scaled_scores_2[j] = scores_2[j] / sqrtf(DK);
    print("omega_2 / sqrt(24)", scaled_scores_2, N, "%8.4f");

    /* [weights_2] */
    float weights_2[N], largest = scaled_scores_2[0], sum = 0; /* 6 shares */
    for (int j = 1; j < N; j++)
        largest = fmaxf(largest, scaled_scores_2[j]);
    for (int j = 0; j < N; j++)
        sum += weights_2[j] = expf(scaled_scores_2[j] - largest);
    for (int j = 0; j < N; j++)
        weights_2[j] /= sum; /* from here on, softmax() does this */
    print("attention_2", weights_2, N, "%.4e");

    /* [context_2] */
    float context_2[DV]; /* 28: the mix of six values */
    for (int c = 0; c < DV; c++) {
        context_2[c] = 0;
        for (int j = 0; j < N; j++)
            context_2[c] += weights_2[j] * values[j][c];
    }
    print("context_vector_2", context_2, DV, "%7.4f");

    /* [queries] */
    float queries[N][DK]; /* 6x24 */
    for (int i = 0; i < N; i++)
        for (int r = 0; r < DK; r++)
            queries[i][r] = dot(w_q[r], embeddings[i], D);

    /* [scores] */
    float scores[N][N]; /* 6x6: row i asks, column j answers */
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            scores[i][j] = dot(queries[i], keys[j], DK);

    /* [scaled_scores] */
    float scaled_scores[N][N]; /* 6x6 */
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            scaled_scores[i][j] = scores[i][j] / sqrtf(DK);

    /* [weights] */
    float weights[N][N]; /* 6x6: each row is a softmax of its own */
    for (int i = 0; i < N; i++) {
        softmax(scaled_scores[i], weights[i], N);
        print(words[i], weights[i], N, "%.4f");
    }

    /* [context] */
    float context[N][DV]; /* 6x28: a new list for each word */
    for (int i = 0; i < N; i++)
        for (int c = 0; c < DV; c++) {
            context[i][c] = 0;
            for (int j = 0; j < N; j++)
                context[i][c] += weights[i][j] * values[j][c];
        }

    /* [divided_weights] */
    float divided_weights[N][N]; /* 6x6: scores / (4 * 4) */
    for (int i = 0; i < N; i++) {
        float divided[N];
        for (int j = 0; j < N; j++)
            divided[j] = scaled_scores[i][j] / (sqrtf(D) * sqrtf(D));
        softmax(divided, divided_weights[i], N);
        print(words[i], divided_weights[i], N, "%.4f");
    }

    /* [heads_w_q] */
    /* 3x24x16: three matrices W_q, one for each head */
    printf("W_q %dx%dx%d\n", H, DK, D);

    /* [heads_w_k] */
    /* 3x24x16 */
    printf("W_k %dx%dx%d\n", H, DK, D);

    /* [heads_w_v] */
    /* 3x28x16 */
    printf("W_v %dx%dx%d\n", H, DV, D);

    /* [heads_query_2] */
    float heads_query_2[H][1][DK]; /* 3x1x24: one row for each head */
    for (int h = 0; h < H; h++)
        for (int r = 0; r < DK; r++)
            heads_query_2[h][0][r] = dot(heads_w_q[h][r], x_2, D);

    /* [heads_keys] */
    float heads_keys[H][DK][N]; /* 3x24x6: a word is a column here */
    for (int h = 0; h < H; h++)
        for (int r = 0; r < DK; r++)
            for (int j = 0; j < N; j++)
                heads_keys[h][r][j] = dot(heads_w_k[h][r], embeddings[j], D);

    /* [heads_values] */
    float heads_values[H][DV][N]; /* 3x28x6 */
    for (int h = 0; h < H; h++)
        for (int r = 0; r < DV; r++)
            for (int j = 0; j < N; j++)
                heads_values[h][r][j] = dot(heads_w_v[h][r], embeddings[j], D);

    /* [heads_scores_2] */
    float heads_scores_2[H][N]; /* 3x6: for each head (1x24) times (24x6) */
    for (int h = 0; h < H; h++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int r = 0; r < DK; r++)
                sum += (double)heads_query_2[h][0][r] * heads_keys[h][r][j];
            heads_scores_2[h][j] = (float)sum;
        }

    /* [heads_weights_2] */
    float heads_weights_2[H][N]; /* 3x6: a row is a head, and adds up to 1 */
    for (int h = 0; h < H; h++) {
        float scaled[N];
        for (int j = 0; j < N; j++)
            scaled[j] = heads_scores_2[h][j] / sqrtf(DK);
        softmax(scaled, heads_weights_2[h], N);
        print(head_names[h], heads_weights_2[h], N, "%.4f");
    }

    /* [heads_context_2] */
    float heads_context_2[H][DV]; /* 3x28: for each head (28x6) times (6x1) */
    for (int h = 0; h < H; h++) {
        const float *a = heads_weights_2[h]; /* 6 */
        for (int c = 0; c < DV; c++)
            heads_context_2[h][c] = dot(heads_values[h][c], a, N);
        print(head_names[h], heads_context_2[h], DV, "%7.4f");
    }

    /* [@libattn] */
    float its_queries[N][DK], its_weights[N][N], its_context[N][DV];
    attn_tensor x = attn_matrix(embeddings, ATTN_F32, N, D);
    attn_tensor w = attn_matrix(w_q, ATTN_F32, DK, D);
    attn_tensor q = attn_matrix(its_queries, ATTN_F32, N, DK);
    attn_tensor shares = attn_matrix(its_weights, ATTN_F32, N, N);
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT; /* divides by sqrt(24) */
    args.q = attn_matrix(queries, ATTN_F32, N, DK);
    args.k = attn_matrix(keys, ATTN_F32, N, DK);
    args.v = attn_matrix(values, ATTN_F32, N, DV);
    args.out = attn_matrix(its_context, ATTN_F32, N, DV);
    args.scores = &shares; /* the weights, too */
    args.scores_stage = ATTN_STAGE_WEIGHTS;
    args.precision = ATTN_PRECISION_ACCURATE; /* scores of 160 need it */
    attn_error error;
    if (attn_linear_forward(NULL, &x, &w, NULL, &q, &error) != ATTN_OK ||
        attn_sdpa_forward(NULL, &args, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;

    /* [@libattn_heads] */
    float its_heads_query_2[H][1][DK], its_heads_context_2[H][DV];
    x = attn_matrix(x_2, ATTN_F32, 1, D);
    x.shape[1] = H;
    x.stride[1] = 0; /* the same word for every head */
    w = attn_bhtd(heads_w_q, ATTN_F32, 1, H, DK, D);
    q = attn_bhtd(its_heads_query_2, ATTN_F32, 1, H, 1, DK);
    attn_sdpa_args heads = ATTN_SDPA_ARGS_INIT;
    heads.q = attn_bhtd(heads_query_2, ATTN_F32, 1, H, 1, DK);
    /* Keys and values are columns, as the strides say: nothing is moved. */
    heads.k = attn_bhtd(heads_keys, ATTN_F32, 1, H, N, DK);
    heads.k.stride[2] = 1; /* to the next word */
    heads.k.stride[3] = N; /* to the next number of a key */
    heads.v = attn_bhtd(heads_values, ATTN_F32, 1, H, N, DV);
    heads.v.stride[2] = 1;
    heads.v.stride[3] = N;
    heads.out = attn_bhtd(its_heads_context_2, ATTN_F32, 1, H, 1, DV);
    heads.precision = ATTN_PRECISION_ACCURATE;
    if (attn_linear_forward(NULL, &x, &w, NULL, &q, &error) != ATTN_OK ||
        attn_sdpa_forward(NULL, &heads, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;

    /* [] */
    compare("queries", queries[0], its_queries[0], sizeof queries);
    compare("weights", weights[0], its_weights[0], sizeof weights);
    compare("weights_2", weights_2, its_weights[IS], sizeof weights_2);
    compare("context", context[0], its_context[0], sizeof context);
    compare("context_2", context_2, its_context[IS], sizeof context_2);
    compare("heads_query_2", heads_query_2[0][0], its_heads_query_2[0][0], sizeof heads_query_2);
    compare("heads_context_2", heads_context_2[0], its_heads_context_2[0], sizeof heads_context_2);

    printf("largest difference %.1e\n", largest_difference);
    return largest_difference <= 1e-5F ? 0 : 1;
}
