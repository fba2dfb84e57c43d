/* The pieces of attention on tiles of bf16, between bf16_task.c and the files that know the
 * instructions: unit_amx.c and unit_dot.c (the products), unit_shared.c (everything
 * done once or rarely).
 *
 * Queries stand in columns, as everywhere (kernel.h): a query tile has nv groups of 16 columns,
 * W = 16 nv, nv 1 or 2. In tile operands two elements of the summed dimension are neighbours:
 *
 *   k    [64][stride]           keys as they lie: 16 rows x 32 components are one operand
 *   q    [D/32][nv][16][16][2]  queries, times a power of two: components 2r, 2r+1 of 16 queries
 *   st   [64][W] float          scores, then weights, of a block of 64 keys
 *   p    [2][nv][16][16][2]     weights of a block: keys 2r, 2r+1 of 16 queries
 *   vt   [2][Dv/16][16][32]     values of a block, transposed: 16 components x 32 keys; for
 *        [32][Dv][2]            dot products: keys 2r, 2r+1 of every component
 *   acc  [Dv][W] float          weighted values of a chunk
 *
 * D is rounded up to a multiple of 32 and Dv to one of 32, filled with zeros, which change no bit.
 *
 * The order of all sums on the matrix unit: a score is the sum over runs of 32 components, in
 * order, of what one tile product adds (tile_ops.h); a weighted value likewise over runs of 32
 * keys, within a chunk of 256. unit_dot.c says its own. A chunk has a maximum and a sum of weights
 * of its own and joins the total at its end. Chunks count from key 0 of the sequence. So a column's
 * bits depend on nothing but its own query and the keys that it sees.
 *
 * The maximum is that of all the chunk's scores, and not an integer as elsewhere (kernel.h). The
 * largest weights make most of the error that rounding to bf16 brings, and the largest of all,
 * counted from itself, is 1 and has none. With an integer the relative error of results is 2.28e-3
 * on normal data (S = 1024, D = 64); with the maximum of the chunk's first 64 keys 2.23e-3; with
 * its own 2.14e-3. PyTorch's is 2.20e-3; 1.66e-3 is the rounding of the result.
 */
#ifndef ATTNI_BF16_H
#define ATTNI_BF16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTNI_BF16_W 32 /* columns of a query tile at most */

typedef uint16_t attni_bf16;

/* A query tile's state in one chunk, per column. */
typedef struct attni_bf16_columns {
    float c[ATTNI_BF16_W];   /* > 0: turns a score into log2 units */
    float top[ATTNI_BF16_W]; /* the largest score so far, -inf if none was seen */
    float m[ATTNI_BF16_W];   /* top in log2 units, rounded up a little */
    float l[ATTNI_BF16_W];   /* sum of the rounded weights 2^(s c - m) */
} __attribute__((aligned(64))) attni_bf16_columns;

/* Four independent parts, of four different blocks, any of which may be missing. For a unit that is
 * not `pipelined`, st_seen is st_next, and no step has both st_seen and st. */
typedef struct attni_bf16_step {
    int nv;
    /* How many of the 64 keys are there in the scores, the weights and the values. A unit may leave
     * out the others, by whole groups of its `keys`; what it reads of them anyway are zeros. */
    int to_score, to_weigh, to_add;
    /* scores: st_next = K Q^T of 64 keys; k NULL: not wanted */
    const void *k;
    ptrdiff_t ldk; /* bytes */
    const attni_bf16 *q;
    int runs;  /* D / 32 */
    int pairs; /* of components that are not all zeros: D / 2 before it was rounded up */
    float *st_next;
    /* maxima: highest->top = max(., st_seen); st_seen NULL: not wanted */
    const float *st_seen;
    attni_bf16_columns *highest;
    /* weights: p = 2^(st c - m) rounded, columns->l += their sums; st NULL: not wanted. No score
     * may be NaN or above its maximum, and attni_bf16_near must hold. */
    const float *st;
    attni_bf16 *p;
    attni_bf16_columns *columns;
    /* values: acc (+)= V^T P of 64 keys; p_before NULL: not wanted */
    const attni_bf16 *p_before, *vt;
    float *acc;
    int panels;     /* Dv / 16, even */
    int components; /* Dv before it was rounded up */
    bool first;     /* acc starts at 0 */
} attni_bf16_step;

/* n keys, or values, of a chunk for a few queries, whose scores, weights and sums are rows, too. */
typedef struct attni_bf16_rows {
    const void *at;
    ptrdiff_t ld;     /* bytes from row to row */
    const void *next; /* the row that is read after the last one; it is only asked for */
    int n;
    bool interleaved; /* keys: groups of turned ones (kernel.h) */
} attni_bf16_rows;

/* n turned keys, and as many values of the chunk before, for one query: what row_scores and
 * row_values do, in one loop. */
typedef struct attni_bf16_values_and_next_scores {
    int D; /* of keys and values */
    int n;
    const attni_bf16 *q;
    const char *k;
    float *st;
    const char *v;
    ptrdiff_t ld; /* bytes from value to value */
    const attni_bf16 *p;
    bool first; /* the sums start at 0 */
    float *sums, *l;
} attni_bf16_values_and_next_scores;

/* The backward's products, c (+)= A B: A of m x 32 `runs` elements, in rows of pairs, and B of 32
 * `runs` x n, in pairs of rows, as in tile operands. The strides of A and B are in elements. */
typedef struct attni_bf16_product {
    const attni_bf16 *a;
    ptrdiff_t row, rows16, run; /* of A: from row to row, in 16; to the next 16; to the next 32
                                   elements of each */
    const attni_bf16 *b;        /* aligned */
    ptrdiff_t pair, columns16, pairs16; /* of B: to the next pair of rows, in 16; the next 16
                                           columns; the next 16 pairs of rows */
    float *c;                           /* [m][ldc], aligned */
    ptrdiff_t ldc;
    int m, n, runs;       /* m: a multiple of 16, n of 32 */
    bool add;             /* to what c has, the whole sum at once; else c is written */
    const float *factors; /* if added, [n]: what sums of each column are multiplied by; or NULL */
} attni_bf16_product;

/* What multiplies: the matrix unit (unit_amx.c) or dot products of the vector unit (unit_dot.c). */
typedef struct attni_bf16_unit {
    int rows;            /* queries, at most, that row_* take; 0: none */
    int granule;         /* keys are read in place if D is a multiple of it ... */
    int keys;            /* ... and their number of this */
    bool pipelined;      /* parts of a step run at once, so all four should be there */
    void (*begin)(void); /* this thread takes the unit ... */
    void (*end)(void);   /* ... and gives it back */
    void (*run)(const attni_bf16_step *step);
    /* vt of n <= 64 rows with a last stride of 1 and any alignment. If `zero`, NaN and infinity are
     * replaced by 0; returns true if there was one. */
    bool (*pack_values)(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                        bool zero);
    void (*multiply)(const attni_bf16_product *product);
    /* A few queries as rows, 1, 4 or 8. row_scores: st[r][j], [rows][CHUNK], of keys that lie as
     * rows, n a multiple of 16, or turned; of a turned group all 16 are written. q: [D/2][rows][2],
     * D rounded up. row_values: sums (+)= p V, [rows][Dv rounded up]; l[r] += the sum of p[r],
     * [rows][CHUNK]; p[r][n] is 0 if n is odd. */
    void (*row_scores)(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int D, int rows);
    void (*row_values)(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                       int64_t Dv, bool first, int rows);
    /* False, and nothing is done, if it does not know this D or n. */
    bool (*row_values_and_next_scores)(const attni_bf16_values_and_next_scores *both);
    /* n rounds of independent products in registers, as fma_loop of kernel.h */
    double (*peak)(int64_t n, double *sink);
} attni_bf16_unit;
extern const attni_bf16_unit attni_bf16_amx, attni_bf16_dot;
/* That of an instruction set; NULL: it multiplies bf16 as floats. */
const attni_bf16_unit *attni_bf16_unit_of(const char *isa);

/* The same maxima on the side, of the first n rows; the others become -inf. False if one of the n
 * is NaN or +inf. */
bool attni_bf16_maxima(attni_bf16_columns *columns, float *st, int n, int nv);
/* m from top. */
void attni_bf16_set_maxima(attni_bf16_columns *columns, int nv);
/* Is every m -inf or within +-ATTNI_BF16_NEAR? Beyond, scores need other arithmetic. */
#define ATTNI_BF16_NEAR 2048
bool attni_bf16_near(const attni_bf16_columns *columns, int nv);
/* st = 2^(st c - m), rounded to bf16, of 64 rows, for any score and any m. A -inf gives 0, a NaN
 * NaN. l += the sums, if `add`. seen[j]: the columns whose score was not -inf, a bit each. */
void attni_bf16_weigh(float *st, attni_bf16_columns *columns, bool add, uint32_t *seen, int nv);
/* All of that for column r, from a row of n scores: top, m and p[j] = 2^(st[j] c - m), rounded; up
 * to a multiple of 32 the others of p become 0. False if a score is NaN or +inf, or m not near. */
bool attni_bf16_row_weights(attni_bf16 *p, attni_bf16_columns *columns, float *st, int n, int r);
/* p from the weights in st. */
void attni_bf16_pack_weights(attni_bf16 *p, const float *st, int nv);

/* Sizes are filled up with zeros to whole operands. */
static inline int64_t attni_bf16_padded(int64_t n) { return n <= 0 ? 32 : n + (32 - n % 32) % 32; }

/* n elements that lie `stride` apart, of 2 bytes each. */
void attni_bf16_copy_row(attni_bf16 *to, const char *from, int64_t stride, int64_t n);
/* Rows are of bf16, with a last stride of 1 and any alignment. power: a power of two. */
void attni_bf16_pack_queries(attni_bf16 *to, const attni_bf16 *q, ptrdiff_t ldq, int rows,
                             int64_t D, float power, int nv);
/* One row of them, as a row. */
void attni_bf16_scale_row(attni_bf16 *to, const attni_bf16 *q, int64_t D, float power);
/* pack_values of the matrix unit and of dot products. */
bool attni_bf16_pack_values(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                            bool zero);
bool attni_bf16_pack_pairs(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                           bool zero);
/* The exponent, biased as it is stored, of the largest of rows x columns elements; ld in
 * bytes. */
int attni_bf16_exponent(const void *x, ptrdiff_t ld, int64_t rows, int64_t columns);

/* A chunk joins the total: m' = max(M, m), total = total 2^(M - m') + acc 2^(m - m'), and L. */
void attni_bf16_join(float *total, float *M, float *L, const float *acc,
                     const attni_bf16_columns *columns, int64_t rows, int nv);
/* The same of total and sums [rows][n], n a multiple of 16. */
void attni_bf16_join_rows(float *total, float *M, float *L, const float *sums,
                          const attni_bf16_columns *columns, int rows, int64_t n);
/* m and l of a chunk of one key, whose scores are in top; its weight is not rounded to bf16. */
void attni_bf16_one_key(attni_bf16_columns *columns, int nv);
/* to[i][c] = total[c][i] / l[i] * factor, never -0, and 0 where l is 0; i < rows, c < Dv; `to` is
 * of float, or if `narrow` of bf16, ldo elements apart. Returns true if one is NaN or infinite. */
bool attni_bf16_finish(void *to, bool narrow, ptrdiff_t ldo, const float *total, const float *l,
                       float factor, int rows, int64_t Dv, int nv);
/* The same of total [rows][Dv rounded up], with a factor of 1. */
bool attni_bf16_finish_rows(void *to, bool narrow, ptrdiff_t ldo, const float *total,
                            const float *l, int rows, int64_t Dv);

/* Weights and gradients of a block of scores, of n <= 64 keys and the first `rows` of W = 16 nv
 * queries, nv even. They are left where the scores were, as bf16 rounded to nearest even, and 0 for
 * keys up to 64 and queries up to W:
 *
 *   st   [64][W/32][2][32]        rows of weights, and of gradients, of 32 queries in turn
 *   dp   [32][2][W][2]            keys 2r, 2r+1: gradients divided by `largest`; then nothing */
typedef struct attni_bf16_grads {
    int n, rows, nv;
    bool ready;     /* st and dp are weights and gradients; else scores and dout . v, and: */
    float *st, *dp; /* [64][W] */
    const float *lse, *factor, *delta; /* [W] */
    float c; /* weights are recall()'s by lse and c, times factor; gradients score_grads()'s */
    float *largest; /* [W] the largest |gradient| of each query, but no less than 2^-100 and no more
                       than 2^100 */
} attni_bf16_grads;
void attni_bf16_score_grads(const attni_bf16_grads *x);

#endif
