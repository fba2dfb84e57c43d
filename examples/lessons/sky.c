/* "sky is blue": self-attention of three words, in plain loops and then through libattn.
 *
 * T = 3 words, D = 2 numbers for each word, in its embedding, its query, its key and its value.
 * The program prints what the notebook printed. Build it with `make lessons`, or by hand:
 *
 *     cc examples/lessons/sky.c -lattn -lm && ./a.out
 */
#include <attn.h>
#include <math.h>
#include <stdio.h>

enum { T = 3, D = 2 };

/* Prints a matrix of `rows` rows, row by row. */
static void print(const char *name, int rows, int columns, const float *m)
{
    printf("%s, %d×%d\n", name, rows, columns);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            printf(" %8.4f", (double)m[i * columns + j]);
        }
        printf("\n");
    }
}

/* x: T×D, w: D×D, y: T×D */
/* [@multiply] */
static void multiply(float x[T][D], float w[D][D], float y[T][D])
{
    for (int i = 0; i < T; i++) {     /* each word */
        for (int j = 0; j < D; j++) { /* each number of the result */
            y[i][j] = 0;
            for (int c = 0; c < D; c++) {
                y[i][j] += x[i][c] * w[c][j];
            }
        }
    }
}
/* [] */

/* The same with one call of libattn; returns the largest difference. */
static float compare(float q[T][D], float k[T][D], float v[T][D], float expected[T][D])
{
    float out[T][D], difference = 0;
    attn_error error;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_matrix(q, ATTN_F32, T, D);
    a.k = attn_matrix(k, ATTN_F32, T, D);
    a.v = attn_matrix(v, ATTN_F32, T, D);
    a.out = attn_matrix(out, ATTN_F32, T, D);
    if (attn_sdpa_forward(NULL, &a, &error) != ATTN_OK) { /* divides by sqrt(D) by itself */
        printf("libattn: %s\n", error.message);
        return 1;
    }
    for (int i = 0; i < T; i++) {
        for (int j = 0; j < D; j++) {
            difference = fmaxf(difference, fabsf(out[i][j] - expected[i][j]));
        }
    }
    return difference;
}

int main(void)
{
    float q[T][D], k[T][D], v[T][D];
    float scores[T][T], scaled[T][T], weights[T][T], sums[T], context[T][D];

    /* [token_ids] */
    int ids[T] = {1, 2, 3}; /* sky, is, blue */
    /* [embeddings] */
    float x[T][D] = {
        {-1.0720f, -0.5001f}, /* sky */
        {-0.0120f, -0.4311f}, /* is */
        {-0.0050f, -0.5321f}, /* blue */
    };
    /* [w_q] */
    float w_q[D][D] = {{-0.0271f, -0.3840f}, {-0.3940f, -0.6610f}};
    /* [w_k] */
    float w_k[D][D] = {{-0.4109f, 0.5777f}, {-0.1162f, -0.1661f}};
    /* [w_v] */
    float w_v[D][D] = {{-0.2045f, 0.1210f}, {-0.1712f, -0.4462f}};
    /* [queries] */
    multiply(x, w_q, q); /* T×D times D×D is T×D */
    /* [keys] */
    multiply(x, w_k, k);
    /* [values] */
    multiply(x, w_v, v);
    /* [scores] */
    for (int i = 0; i < T; i++) {     /* word i asks */
        for (int j = 0; j < T; j++) { /* word j answers */
            scores[i][j] = 0;
            for (int c = 0; c < D; c++) {
                scores[i][j] += q[i][c] * k[j][c]; /* row i of Q, row j of K */
            }
        }
    }
    /* [scaled_scores] */
    for (int i = 0; i < T; i++) {
        for (int j = 0; j < T; j++) {
            scaled[i][j] = scores[i][j] / sqrtf(D);
        }
    }
    /* [weights] */
    for (int i = 0; i < T; i++) { /* softmax of each row by itself */
        float sum = 0;
        for (int j = 0; j < T; j++) {
            weights[i][j] = expf(scaled[i][j]); /* always positive */
            sum += weights[i][j];
        }
        for (int j = 0; j < T; j++) {
            weights[i][j] /= sum; /* a share of 1 */
        }
    }
    /* [row_sums] */
    for (int i = 0; i < T; i++) {
        sums[i] = weights[i][0] + weights[i][1] + weights[i][2];
    }
    /* [context] */
    for (int i = 0; i < T; i++) {
        for (int c = 0; c < D; c++) {
            context[i][c] = 0;
            for (int j = 0; j < T; j++) { /* a share of each word's value */
                context[i][c] += weights[i][j] * v[j][c];
            }
        }
    }
    /* [] */

    printf("sequence: %d %d %d\n", ids[0], ids[1], ids[2]);
    print("embedded_tokens", T, D, &x[0][0]);
    print("Q", T, D, &q[0][0]);
    print("K", T, D, &k[0][0]);
    print("V", T, D, &v[0][0]);
    print("attn_logits", T, T, &scores[0][0]);
    print("scaled_attention_logits", T, T, &scaled[0][0]);
    print("attention_weights", T, T, &weights[0][0]);
    print("sums of their rows", 1, T, sums);
    print("O", T, D, &context[0][0]);

    float difference = compare(q, k, v, context);
    printf("largest difference to libattn: %.1e\n", (double)difference);
    return difference > 1e-6F;
}
