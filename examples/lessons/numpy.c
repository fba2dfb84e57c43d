/* Self-attention in NumPy: the notebook of the lesson numpy, as plain loops in C.
 *
 * Read it from top to bottom. i numbers queries (rows), j numbers keys (columns), t the numbers of
 * a vector; all count from 0. Comments behind arrays give their shapes. It prints what the notebook
 * printed; the last digit may differ by one, because the notebook's inputs are known to eight
 * decimals only. At the end the same results come from libattn, and are compared.
 *
 *   cc numpy.c $(pkg-config --cflags --libs attn) -lm
 */
#include <attn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>

enum { L = 4, D = 8, DV = 8, HEADS = 2, PART = D / HEADS }; /* L words; D is the notebook's d_k */

/* Prints as NumPy does: eight decimals, a row on each line. */
static void print_matrix(const char *name, const char *format, int rows, int columns,
                         const double *x)
{
    printf("%s\n", name);
    for (int i = 0; i < rows; i++) {
        printf(i == 0 ? "[[" : " [");
        for (int j = 0; j < columns; j++) {
            printf(j > 0 ? " " : "");
            printf(format, x[i * columns + j]);
        }
        printf(i + 1 < rows ? "]\n" : "]]\n");
    }
}

/* A random number whose mean is 0 and whose variance is 1: twelve numbers between 0 and 1, each of
 * variance 1/12, added. NumPy's randn draws other numbers, of the same mean and variance. */
static double normal(void)
{
    static uint64_t state = 1;
    double sum = -6;
    for (int n = 0; n < 12; n++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(state >> 33) / 2147483648.0;
    }
    return sum;
}

/* [@final] */
/* q, k, v, out 4×8; mask, weights 4×4; mask NULL: every key is visible */
static void attend(const double q[L][D], const double k[L][D], /* in */
                   const double v[L][DV], double mask[L][L],   /* in */
                   double out[L][DV], double weights[L][L])    /* out */
{
    for (int i = 0; i < L; i++) { /* one query after the other */
        double sum = 0;
        for (int j = 0; j < L; j++) {
            double score = 0;
            for (int t = 0; t < D; t++)
                score += q[i][t] * k[j][t];
            score = score / sqrt(D) + (mask ? mask[i][j] : 0);
            sum += weights[i][j] = exp(score);
        }
        for (int t = 0; t < DV; t++)
            out[i][t] = 0;
        for (int j = 0; j < L; j++) {
            weights[i][j] /= sum;
            for (int t = 0; t < DV; t++)
                out[i][t] += weights[i][j] * v[j][t];
        }
    }
}
/* [] */

/* The largest difference of two arrays; infinite if one of them has NaN. */
static double difference(const double *a, const double *b, int count)
{
    double largest = 0;
    for (int n = 0; n < count; n++) {
        double off = fabs(a[n] - b[n]);
        largest = fmax(largest, isnan(off) ? INFINITY : off);
    }
    return largest;
}

int main(void)
{
    /* [queries] */
    /* 4×8: a row is a query; drawn by NumPy, as printed */
    static const double q[L][D] = {
        {-0.53021291, 0.17351938, -2.80372733, 1.36853866, /* q1 */
         -0.62573526, -0.78760894, 0.87646577, -0.29423695},
        {-0.61079107, -0.28797028, 0.19836336, 0.16409689, /* q2 */
         -0.31869415, 1.38278105, 0.25201184, 1.22194168},
        {0.47424825, 1.86374193, -0.18145084, -0.2654385, /* q3 */
         -0.01710023, 1.4925224, 0.04318913, -1.14576111},
        {-0.67504673, 1.13966909, -0.18227342, -0.89253254, /* q4 */
         -1.11796724, -0.47959207, -1.61684476, -0.38093655},
    };

    /* [keys] */
    /* 4×8: a row is a key */
    static const double k[L][D] = {
        {-1.50791136, -1.02548933, 1.32186843, 0.669433702, /* k1 */
         -0.711392191, -0.000609670864, 0.310016980, -0.551820988},
        {-0.625872602, 1.85842578, 0.616654571, -0.136516740, /* k2 */
         -0.868447851, 0.319752629, 0.532315132, -1.88929267},
        {-0.174681454, -0.622473374, -2.06277244, -0.145441534, /* k3 */
         -1.31098537, 0.186493034, -0.330760078, 1.82804623},
        {-0.194555521, -0.624075896, -1.43470780, -0.747771927, /* k4 */
         0.639369278, -2.50337344, 1.21469967, 0.335458618},
    };

    /* [values] */
    /* 4×8: row j is what key j hands over */
    static const double v[L][DV] = {
        {-0.75019022, 0.40213689, 0.87469443, -0.08750707, /* v1 */
         0.30595976, 0.57752085, -0.66289836, -1.41503872},
        {-0.23395663, -0.26539431, -0.6784999, -0.7527228, /* v2 */
         -0.97216284, 1.15868743, 0.31064158, -0.41829304},
        {-0.1504113, 1.23816146, 1.47606625, 1.35739857, /* v3 */
         1.8365123, -1.27824809, 0.47251054, -0.36114874},
        {0.79733874, -1.33763958, -0.66016079, 1.67229083, /* v4 */
         2.64740769, -1.09484413, 0.52757604, -1.46474318},
    };
    /* [] */
    print_matrix("Q", "%11.8f", L, D, &q[0][0]);
    print_matrix("K", "%15.8e", L, D, &k[0][0]);
    print_matrix("V", "%11.8f", L, DV, &v[0][0]);

    /* [scores] */
    double scores[L][L] = {{0}}; /* 4×4: query i asks, key j answers */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            for (int t = 0; t < D; t++)
                scores[i][j] += q[i][t] * k[j][t];
    print_matrix("q k^T", "%11.8f", L, L, &scores[0][0]);

    /* [scaled_scores] */
    double scaled[L][L]; /* 4×4 */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            scaled[i][j] = scores[i][j] / sqrt(D);
    print_matrix("scaled", "%11.8f", L, L, &scaled[0][0]);

    /* [variance] */
    const double *of[] = {&q[0][0], &k[0][0], &scores[0][0], &scaled[0][0]};
    const int count[] = {L * D, L * D, L * L, L * L};
    for (int n = 0; n < 4; n++) {
        double mean = 0, variance = 0;
        for (int m = 0; m < count[n]; m++)
            mean += of[n][m] / count[n];
        for (int m = 0; m < count[n]; m++)
            variance += (of[n][m] - mean) * (of[n][m] - mean) / count[n];
        printf("%.7f%s", variance, n < 3 ? ", " : "\n");
    }

    /* [beyond_dot_variance] */
    static const int sizes[] = {4, 8, 16, 64, 256}; /* normal(): from N(0,1) */
    for (int n = 0; n < 5; n++) {
        double squares = 0; /* the mean is 0: variance is the mean square */
        for (int pair = 0; pair < 1600; pair++) {
            double dot = 0;
            for (int t = 0; t < sizes[n]; t++)
                dot += normal() * normal();
            squares += dot * dot / 1600;
        }
        printf("d_k %3d: variance %5.1f, ", sizes[n], squares);
        printf("divided by √d_k: %.2f\n", squares / sizes[n]);
    }

    /* [beyond_sixteen_scores] */
    double smallest = INFINITY, largest = 0;
    for (int draw = 0; draw < 100; draw++) {
        double x[2 * L * D], square = 0, mean = 0; /* 4 queries, 4 keys */
        for (int n = 0; n < 2 * L * D; n++)
            x[n] = normal();
        for (int pair = 0; pair < L * L; pair++) {
            double dot = 0;
            for (int t = 0; t < D; t++)
                dot += x[pair / L * D + t] * x[(L + pair % L) * D + t];
            square += dot * dot / (L * L), mean += dot / (L * L);
        }
        smallest = fmin(smallest, square - mean * mean);
        largest = fmax(largest, square - mean * mean);
    }
    printf("16 scores: variance from %.1f to %.1f\n", smallest, largest);

    /* [tril] */
    double mask[L][L]; /* 4×4: query i sees itself and what comes before */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            mask[i][j] = j <= i ? 1 : 0;
    print_matrix("mask", "%2.0f.", L, L, &mask[0][0]);

    /* [mask] */
    for (int i = 0; i < L; i++) /* 0 becomes −inf, 1 becomes 0 */
        for (int j = 0; j < L; j++)
            mask[i][j] = mask[i][j] == 0 ? -INFINITY : 0;
    print_matrix("mask", "%4.0f", L, L, &mask[0][0]);

    /* [beyond_mask_twice] */
    double twice[L][L], zero = 0;
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++) { /* both lines again */
            twice[i][j] = mask[i][j] == 0 ? -INFINITY : mask[i][j];
            twice[i][j] = twice[i][j] == 1 ? 0 : twice[i][j];
        }
    for (int j = 0; j < L; j++)
        zero += exp(twice[0][j]); /* e^−inf = 0, four times */
    printf("0/0 is nan: %s\n", isnan(exp(twice[0][0]) / zero) ? "yes" : "no");

    /* [masked_scores] */
    double masked[L][L]; /* 4×4: any number plus −inf is −inf */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            masked[i][j] = scaled[i][j] + mask[i][j];
    print_matrix("scaled + mask", "%11.8f", L, L, &masked[0][0]);

    /* [exponentials] */
    double e[L][L]; /* 4×4: all positive; 0 where a key is hidden */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            e[i][j] = exp(masked[i][j]);

    /* [row_sums] */
    double sum[L]; /* 4 numbers, one for each row */
    for (int i = 0; i < L; i++) {
        sum[i] = 0;
        for (int j = 0; j < L; j++)
            sum[i] += e[i][j];
    }

    /* [weights] */
    double weights[L][L]; /* 4×4: a row adds up to 1 */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            weights[i][j] = e[i][j] / sum[i];
    print_matrix("attention", "%.8f", L, L, &weights[0][0]);

    /* [context] */
    double context[L][DV] = {{0}}; /* 4×8: each row a mix of the values */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            for (int t = 0; t < DV; t++)
                context[i][t] += weights[i][j] * v[j][t];
    print_matrix("new_v", "%11.8f", L, DV, &context[0][0]);
    /* [] */
    double out[L][DV], attention[L][L];
    attend(q, k, v, mask, out, attention);
    print_matrix("Q", "%11.8f", L, D, &q[0][0]);
    print_matrix("K", "%15.8e", L, D, &k[0][0]);
    print_matrix("V", "%11.8f", L, DV, &v[0][0]);
    print_matrix("New V", "%11.8f", L, DV, &out[0][0]);
    print_matrix("Attention", "%.8f", L, L, &attention[0][0]);
    double off = fmax(difference(&out[0][0], &context[0][0], L * DV),
                      difference(&attention[0][0], &weights[0][0], L * L));

    /* [beyond_large_scores] */
    double large[L][L]; /* 4×4: 1000 more in every cell */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            large[i][j] = scaled[i][j] + 1000;
    printf("e^709 = %.1e, e^710 = %.1e, ", exp(709), exp(710));
    printf("e^%.2f = %.1e\n", large[0][0], exp(large[0][0]));

    /* [beyond_large_weights] */
    double safe[L][L]; /* 4×4 */
    for (int i = 0; i < L; i++) {
        double most = large[i][0], total = 0;
        for (int j = 1; j < L; j++)
            most = fmax(most, large[i][j]);
        for (int j = 0; j < L; j++) /* e^0 = 1 is the largest */
            total += safe[i][j] = exp(large[i][j] - most);
        for (int j = 0; j < L; j++)
            safe[i][j] /= total;
    }

    /* [unmasked_weights] */
    double unmasked[L][L]; /* 4×4: every query sees every key */
    for (int i = 0; i < L; i++) {
        double total = 0;
        for (int j = 0; j < L; j++)
            total += unmasked[i][j] = exp(scaled[i][j]);
        for (int j = 0; j < L; j++)
            unmasked[i][j] /= total;
    }

    /* [unmasked_context] */
    double mixed[L][DV] = {{0}}; /* 4×8 */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            for (int t = 0; t < DV; t++)
                mixed[i][t] += unmasked[i][j] * v[j][t];

    /* [beyond_zeroed] */
    double cut[L][L]; /* 4×4: weight 0 where the key comes later */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            cut[i][j] = j <= i ? unmasked[i][j] : 0;

    /* [beyond_zeroed_row_sums] */
    double left[L] = {0}; /* 4 numbers: what each row keeps */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            left[i] += cut[i][j];

    /* [beyond_renormalised] */
    double again[L][L]; /* 4×4 */
    for (int i = 0; i < L; i++)
        for (int j = 0; j < L; j++)
            again[i][j] = cut[i][j] / left[i];
    /* [] */
    off = fmax(off, difference(&again[0][0], &weights[0][0], L * L));
    off = fmax(off, difference(&safe[0][0], &unmasked[0][0], L * L));

    /* [beyond_heads_queries] */
    double head_q[HEADS][L][PART]; /* 2×4×4: first and second half */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < L; i++)
            for (int t = 0; t < PART; t++)
                head_q[h][i][t] = q[i][h * PART + t];

    /* [beyond_heads_keys] */
    double head_k[HEADS][L][PART]; /* 2×4×4 */
    for (int h = 0; h < HEADS; h++)
        for (int j = 0; j < L; j++)
            for (int t = 0; t < PART; t++)
                head_k[h][j][t] = k[j][h * PART + t];

    /* [beyond_heads_scores] */
    double head_scores[HEADS][L][L] = {{{0}}}; /* 2×4×4 */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < L; i++)
            for (int j = 0; j < L; j++)
                for (int t = 0; t < PART; t++)
                    head_scores[h][i][j] += head_q[h][i][t] * head_k[h][j][t];

    /* [beyond_heads_masked_scores] */
    double head_masked[HEADS][L][L]; /* 2×4×4 */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < L; i++)
            for (int j = 0; j < L; j++) {
                double score = head_scores[h][i][j] / sqrt(PART);
                head_masked[h][i][j] = score + mask[i][j];
            }

    /* [beyond_heads_weights] */
    double head_weights[HEADS][L][L]; /* 2×4×4: a row of a head adds up to 1 */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < L; i++) {
            double total = 0;
            for (int j = 0; j < L; j++)
                total += head_weights[h][i][j] = exp(head_masked[h][i][j]);
            for (int j = 0; j < L; j++)
                head_weights[h][i][j] /= total;
        }

    /* [beyond_heads_context] */
    double joined[L][DV] = {{0}}; /* 4×8: each head fills its half */
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < L; i++)
            for (int j = 0; j < L; j++)
                for (int t = h * PART; t < (h + 1) * PART; t++)
                    joined[i][t] += head_weights[h][i][j] * v[j][t];

    /* [@library] */
    double z[L][DV], a[L][L]; /* 4×8 and 4×4, filled by the call */
    attn_tensor stage = attn_matrix(a, ATTN_F64, L, L);
    attn_error error;
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT; /* divides by √8 itself */
    args.q = attn_matrix(q, ATTN_F64, L, D);
    args.k = attn_matrix(k, ATTN_F64, L, D);
    args.v = attn_matrix(v, ATTN_F64, L, DV);
    args.causal = ATTN_CAUSAL_TOP_LEFT; /* hides key j from query i < j */
    args.out = attn_matrix(z, ATTN_F64, L, DV);
    args.scores = &stage, args.scores_stage = ATTN_STAGE_WEIGHTS;
    if (attn_sdpa_forward(NULL, &args, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;
    /* [] */
    off = fmax(off, difference(&z[0][0], &context[0][0], L * DV));
    off = fmax(off, difference(&a[0][0], &weights[0][0], L * L));
    args.q = attn_bthd(q, ATTN_F64, 1, L, HEADS, PART); /* the same memory as two heads */
    args.k = attn_bthd(k, ATTN_F64, 1, L, HEADS, PART);
    args.v = attn_bthd(v, ATTN_F64, 1, L, HEADS, PART);
    args.out = attn_bthd(z, ATTN_F64, 1, L, HEADS, PART);
    args.scores = NULL;
    if (attn_sdpa_forward(NULL, &args, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;
    off = fmax(off, difference(&z[0][0], &joined[0][0], L * DV));
    args.q = attn_matrix(q, ATTN_F64, L, D), args.k = attn_matrix(k, ATTN_F64, L, D);
    args.v = attn_matrix(v, ATTN_F64, L, DV), args.out = attn_matrix(z, ATTN_F64, L, DV);
    args.causal = ATTN_CAUSAL_NONE;
    if (attn_sdpa_forward(NULL, &args, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;
    off = fmax(off, difference(&z[0][0], &mixed[0][0], L * DV));
    printf("largest difference from libattn: %.1e\n", off);
    return off <= 1e-5 ? 0 : 1;
}
