/* Any sentence: attention from words to their new vectors in plain loops, with random matrices;
 * then the same with libattn, compared.
 *
 *   cc explain.c $(pkg-config --cflags --libs attn) -lm && ./a.out Life is short eat dessert last
 *
 * The numbers are those of `attn explain`, whose random numbers are PyTorch's for seed 123. With
 * --causal as the first word no word sees later ones. A mark such as [keys] names the step of
 * `attn explain` that the lines below it compute.
 */
#include <attn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST = 32, /* words */
    D = 16,    /* numbers of a word */
    DK = 24,   /* numbers of a query and of a key */
    DV = 28    /* numbers of a value */
};

/* n words: rows and columns from n on are not used. */
static int token_ids[MOST];
static float embedding_table[MOST][D], embeddings[MOST][D];
static float w_q[DK][D], w_k[DK][D], w_v[DV][D];
static float queries[MOST][DK], keys[MOST][DK], values[MOST][DV];
static float scores[MOST][MOST], scaled[MOST][MOST], weights[MOST][MOST], context[MOST][DV];
static float its_weights[MOST][MOST], its_context[MOST][DV]; /* libattn's */

/* Multiplies number by number and adds. The sum is a double, which rounds less than a float. */
static float dot(const float *a, const float *b, int size)
{
    double sum = 0;
    for (int i = 0; i < size; i++)
        sum += (double)a[i] * b[i];
    return (float)sum;
}

static void print(const char *word, const float *x, int size)
{
    printf("%-12s", word);
    for (int i = 0; i < size; i++)
        printf(" %.4f", x[i]);
    putchar('\n');
}

/* The largest difference of two tables of n rows. */
static float compare(const char *name, const float *mine, const float *its, int n, int row,
                     int size)
{
    float largest = 0;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < size; c++)
            largest = fmaxf(largest, fabsf(mine[i * row + c] - its[i * row + c]));
    printf("%s differ from libattn's by at most %.1e\n", name, largest);
    return largest;
}

int main(int count, char **argument)
{
    static char *const notebook[] = {"Life", "is", "short", "eat", "dessert", "last"};
    const int causal = count > 1 && strcmp(argument[1], "--causal") == 0;
    const int given = count - 1 - causal, n = given > 0 ? given : 6;
    char *const *words = given > 0 ? argument + 1 + causal : notebook;
    if (n > MOST)
        return fprintf(stderr, "at most %d words\n", MOST), 2;

    /* [token_ids] */
    int V = 0; /* distinct words */
    for (int i = 0; i < n; i++) {
        token_ids[i] = 0; /* how many distinct words sort before it */
        for (int j = 0; j < n; j++) {
            int first = 1; /* word j has not appeared before */
            for (int k = 0; k < j; k++)
                first = first && strcmp(words[k], words[j]) != 0;
            token_ids[i] += first && strcmp(words[j], words[i]) < 0;
            V += first && i == 0;
        }
    }

    /* [embedding_table] */
    static attn_rng rng; /* PyTorch's generator */
    attn_rng_seed(&rng, 123);
    attn_rng_randn(&rng, embedding_table[0], (size_t)(V * D)); /* V×16 */

    /* [embeddings] */
    for (int i = 0; i < n; i++) /* n×16: word i takes the row of its id */
        for (int c = 0; c < D; c++)
            embeddings[i][c] = embedding_table[token_ids[i]][c];

    /* [w_q] */
    attn_rng_randn(&rng, w_q[0], DK * D); /* 24×16: a row for each number */

    /* [w_k] */
    attn_rng_randn(&rng, w_k[0], DK * D); /* 24×16 */

    /* [w_v] */
    attn_rng_randn(&rng, w_v[0], DV * D); /* 28×16 */

    /* [queries] */
    for (int i = 0; i < n; i++) /* n×24 */
        for (int r = 0; r < DK; r++)
            queries[i][r] = dot(w_q[r], embeddings[i], D);

    /* [keys] */
    for (int i = 0; i < n; i++) /* n×24 */
        for (int r = 0; r < DK; r++)
            keys[i][r] = dot(w_k[r], embeddings[i], D);

    /* [values] */
    for (int i = 0; i < n; i++) /* n×28 */
        for (int r = 0; r < DV; r++)
            values[i][r] = dot(w_v[r], embeddings[i], D);

    /* [scores] */
    for (int i = 0; i < n; i++) /* n×n: word i asks, word j answers */
        for (int j = 0; j < n; j++)
            scores[i][j] = dot(queries[i], keys[j], DK);

    /* [scaled_scores] */
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            scaled[i][j] = scores[i][j] / sqrtf(DK);

    /* [masked_scores] */
    for (int i = 0; i < n; i++)
        for (int j = i + 1; causal && j < n; j++)
            scaled[i][j] = -INFINITY; /* word i does not see the later word j */

    /* [weights] */
    for (int i = 0; i < n; i++) { /* softmax of each row */
        float largest = scaled[i][0], sum = 0;
        for (int j = 1; j < n; j++)
            largest = fmaxf(largest, scaled[i][j]);
        for (int j = 0; j < n; j++)
            sum += weights[i][j] = expf(scaled[i][j] - largest);
        for (int j = 0; j < n; j++)
            weights[i][j] /= sum; /* a share of 1 */
        print(words[i], weights[i], n);
    }

    /* [context] */
    for (int i = 0; i < n; i++) { /* n×28: the values of all words, by their shares */
        for (int c = 0; c < DV; c++) {
            context[i][c] = 0;
            for (int j = 0; j < n; j++)
                context[i][c] += weights[i][j] * values[j][c];
        }
        print(words[i], context[i], DV);
    }

    /* [@libattn] */
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT; /* divides by sqrt(24) */
    attn_tensor shares = attn_matrix(its_weights, ATTN_F32, n, n);
    shares.stride[2] = MOST; /* from one row to the next */
    args.q = attn_matrix(queries, ATTN_F32, n, DK);
    args.k = attn_matrix(keys, ATTN_F32, n, DK);
    args.v = attn_matrix(values, ATTN_F32, n, DV);
    args.out = attn_matrix(its_context, ATTN_F32, n, DV);
    args.causal = causal ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    args.scores = &shares; /* the weights, too */
    args.scores_stage = ATTN_STAGE_WEIGHTS;
    args.precision = ATTN_PRECISION_ACCURATE; /* scores of 160 need it */
    attn_error error;
    if (attn_sdpa_forward(NULL, &args, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;

    /* [] */
    float largest = compare("weights", weights[0], its_weights[0], n, MOST, n);
    largest = fmaxf(largest, compare("contexts", context[0], its_context[0], n, DV, DV));
    return largest <= 1e-4F ? 0 : 1;
}
