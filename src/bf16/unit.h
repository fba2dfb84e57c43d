/* The functions by which the bf16 engine and the backward use the bf16 instructions. unit_amx.c and
 * unit_dot.c have the products, unit_grads.c has the gradients, and unit_shared.c packing,
 * maxima and merging.
 *
 * Queries are in columns, except in the decode path. A query tile has nv (1 or 2) vectors of 16
 * columns, W = 16 nv. In tile operands two consecutive elements of the summed dimension are
 * adjacent; r is the index of such a pair:
 *
 *   k    [64][stride]           keys as stored: 16 rows x 32 components are one operand
 *   q    [D/32][nv][16][16][2]  queries, times a power of two: components 2r, 2r+1 of 16 queries
 *   st   [64][W] float          scores, then weights, of a block of 64 keys
 *   p    [2][nv][16][16][2]     weights of a block: keys 2r, 2r+1 of 16 queries
 *   vt   [2][Dv/16][16][32]     values of a block on the matrix unit: 16 components x 32 keys
 *        [32][Dv][2]            for dot products: keys 2r, 2r+1 of every component
 *        [32][Dv][2]            by pack_few: the same, in another order of components
 *   acc  [Dv][W] float          weighted values of a chunk
 *
 * D and Dv are rounded up to multiples of 32 and padded with zeros, which change no bit.
 *
 * The order of all sums on the matrix unit: a score is the sum over runs of 32 components, in
 * order, of what one tile product adds (tile_ops.h); a weighted value is the sum over runs of 32
 * keys, in order, within a chunk of 256. unit_dot.c states its own order. Each chunk has its own
 * maximum and sum of weights and is merged into the total at its end. Chunks are counted from key 0
 * of the sequence. So a column's bits depend on nothing but its own query and the keys that it
 * sees.
 *
 * The maximum is the largest score of the chunk in log2 units, rounded up to a multiple of 2^-12.
 * (The tile engine rounds it to an integer; kernel.h.) The
 * largest weights cause most of the error of rounding to bf16, and with this maximum the largest of
 * all rounds to 1. The relative error of results on normal data (S = 1024, D = 64):
 *
 *   maximum rounded to an integer              2.28e-3
 *   maximum of the chunk's first 64 keys       2.23e-3
 *   maximum of the whole chunk                 2.14e-3
 *   PyTorch                                    2.20e-3
 *   rounding of the result alone               1.66e-3
 */
#ifndef ATTNI_BF16_H
#define ATTNI_BF16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTNI_BF16_W 32 /* most columns of a query tile */

typedef uint16_t attni_bf16;

/* A query tile's state in one chunk, per column. */
typedef struct attni_bf16_columns {
    float c[ATTNI_BF16_W];   /* > 0: factor that turns a score into log2 units */
    float top[ATTNI_BF16_W]; /* largest score so far; -inf: no key seen */
    float m[ATTNI_BF16_W];   /* top in log2 units, rounded up a little */
    float l[ATTNI_BF16_W];   /* sum of the rounded weights 2^(s c - m) */
} __attribute__((aligned(64))) attni_bf16_columns;

/* The scores of a block of 64 keys: st = K Q^T. */
typedef struct attni_bf16_scores {
    int nv;
    int n; /* keys that exist. A unit need not score others; keys that it reads anyway are zeros. */
    const void *k;
    ptrdiff_t ldk; /* bytes */
    const attni_bf16 *q;
    bool same_q;     /* the last function of this unit that this thread called was scores() with
                        the same q; the unit may then keep q in registers */
    int inner_tiles; /* D / 32 */
    int pairs; /* pairs of components that are not padding: half of the unpadded D, rounded up */
    float *st;
    attni_bf16_columns *highest; /* highest->top = max(highest->top, st); NULL: no maxima */
} attni_bf16_scores;

/* The weights of a block: p = 2^(st c - m) rounded; columns->l += their sums. No score may be NaN
 * or above the m of its column, and attni_bf16_near() must hold. Scores from n on must be -inf,
 * unless the unit does not read them; attni_bf16_maxima() sets them. */
typedef struct attni_bf16_weights {
    int nv, n;
    const float *st;
    attni_bf16 *p;
    attni_bf16_columns *columns;
} attni_bf16_weights;

#define ATTNI_BF16_BLOCKS 4 /* blocks in a chunk */

/* The weighted values of `count` blocks: acc (+)= V^T P. */
typedef struct attni_bf16_values {
    int nv, count;
    bool few; /* vt is what pack_few wrote; nv is 1 */
    struct {
        int n; /* keys that exist; a unit may skip the others */
        const attni_bf16 *p, *vt;
    } blocks[ATTNI_BF16_BLOCKS];
    float *acc;
    int panels;     /* of 16 components each: Dv / 16, even */
    int components; /* Dv before it was padded */
    bool first;     /* acc starts at 0; always so for a unit that takes a whole chunk at once */
} attni_bf16_values;

/* n keys or values of a chunk, for the decode path. */
typedef struct attni_bf16_rows {
    const void *at;
    ptrdiff_t ld;     /* bytes from row to row */
    const void *next; /* the row that is read after the last one; only prefetched */
    int n;
    bool interleaved; /* keys are in the interleaved layout (kernel.h) */
    int l2_ahead;     /* rows are prefetched into L2, so many rows ahead; 0: into L1 */
    bool one_stream;  /* a single query scores one group of 16 keys that are rows after the other;
                         else two groups at once */
} attni_bf16_rows;

/* n interleaved keys, and as many values of the chunk before, for one query: row_scores and
 * row_values in one loop. */
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

/* One product of the backward, c (+)= A B. A has m rows, B has n columns, and each sum has 32 *
 * inner_tiles terms. Two consecutive terms are a pair. Their elements of A are adjacent in a row of
 * A. Their elements of B, of two rows and one column, are adjacent, too (as in tile operands). The
 * strides of A and B are in elements. */
typedef struct attni_bf16_product {
    const attni_bf16 *a;
    /* Strides of A: from row to row, within 16 rows; to the next 16 rows; to the next 32 elements
     * of each row. */
    ptrdiff_t row, rows16, inner_stride;
    const attni_bf16 *b; /* aligned */
    /* Strides of B: from pair to pair of rows, within 16 pairs; to the next 16 columns; to the next
     * 16 pairs. */
    ptrdiff_t pair, columns16, pairs16;
    float *c; /* [m][ldc], aligned */
    ptrdiff_t ldc;
    int m, n, inner_tiles; /* m: a multiple of 16, n of 32 */
    bool add;              /* the whole sum is added to c at once; else it replaces c */
    const float *factors;  /* with `add`, [n]: factor on each column's sums; or NULL */
} attni_bf16_product;

/* A unit: the matrix unit (unit_amx.c), or the dot products of the vector unit (unit_dot.c). */
typedef struct attni_bf16_unit {
    int rows;             /* most queries of the row_* functions; 0: no decode path */
    int granule;          /* keys are read in place if D is a multiple of this ... */
    int keys;             /* ... and their number a multiple of this */
    int blocks;           /* most blocks of one call of values: 1, or all of a chunk */
    int tile_bytes;       /* most bytes of the tiles of a task: a part of L2 */
    bool prefetch_values; /* those of the next block, before a block is packed */
    void (*begin)(void);  /* this thread begins to use the unit ... */
    void (*end)(void);    /* ... and releases it */
    void (*scores)(const attni_bf16_scores *scores);
    void (*weights)(const attni_bf16_weights *weights);
    void (*values)(const attni_bf16_values *values);
    /* Packs n <= 64 rows, of last stride 1 and any alignment, into vt. If `zero`, NaN and infinity
     * become 0, and true is returned if there were any. */
    bool (*pack_values)(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                        bool zero);
    /* The same in another layout, which takes less time to pack and more to multiply: for values
     * that are multiplied with the weights of up to 16 queries only. NULL: pack_values. */
    bool (*pack_few)(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                     bool zero);
    void (*multiply)(const attni_bf16_product *product);
    /* The decode path: rows is 1, 4, 8, 12 or 16 queries. row_scores: st[r][j], [rows][CHUNK], of
     * keys that are rows (n a multiple of 16) or interleaved (all 16 scores of a group are
     * written). q: [D/2][rows][2], D padded. row_values: sums (+)= p V, with sums
     * [rows][Dv padded] and p [rows][CHUNK]; l[r] += the sum of p[r]. If n is odd, p[r][n] must be
     * 0. */
    void (*row_scores)(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int D, int rows);
    void (*row_values)(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                       int64_t Dv, bool first, int rows);
    /* A product of the backward with few queries, for n keys j and `width` components c: sums[j][c]
     * becomes the sum over pairs p of x[j][2p] * rows[p][c][0] + x[j][2p+1] * rows[p][c][1]. If
     * `add`, it is added to sums[j][c] instead. x has rows of ldx elements; rows is
     * [pairs][width][2]. */
    void (*row_products)(float *sums, const attni_bf16 *x, ptrdiff_t ldx, const attni_bf16 *rows,
                         int pairs, int n, int64_t width, bool add);
    /* Returns false, and does nothing, if it has no code for this D or n. */
    bool (*row_values_and_next_scores)(const attni_bf16_values_and_next_scores *both);
    /* n rounds of independent products in registers, like fma_loop of kernel.h */
    double (*peak)(int64_t n, double *sink);
} attni_bf16_unit;
extern const attni_bf16_unit attni_bf16_amx, attni_bf16_dot;
/* The unit of an instruction set; NULL if the set multiplies bf16 as floats. */
const attni_bf16_unit *attni_bf16_unit_of(const char *isa);

/* Raises the maxima to those of the first n rows; the other rows become -inf. Returns
 * false if a score of the n rows is NaN or +inf. */
bool attni_bf16_maxima(attni_bf16_columns *columns, float *st, int n, int nv);
/* Computes m from top. */
void attni_bf16_set_maxima(attni_bf16_columns *columns, int nv);
/* Is every m -inf or within +-ATTNI_BF16_NEAR? Scores beyond need other arithmetic. */
#define ATTNI_BF16_NEAR 2048
bool attni_bf16_near(const attni_bf16_columns *columns, int nv);
/* st = 2^(st c - m), rounded to bf16, of 64 rows, for any score and any m. -inf gives 0, NaN gives
 * NaN. If `add`, l += the sums. Bit i of seen[j] is set if column i's score was not -inf. */
void attni_bf16_weigh(float *st, attni_bf16_columns *columns, bool add, uint32_t *seen, int nv);
/* For column r, from a row of n scores: top, m and p[j] = 2^(st[j] c - m), rounded; p is filled
 * with 0 up to a multiple of 32. Returns false if a score is NaN or +inf, or if m is beyond
 * ATTNI_BF16_NEAR. */
bool attni_bf16_row_weights(attni_bf16 *p, attni_bf16_columns *columns, float *st, int n, int r);
/* rows[i][j] = st[j][i] for j < n, in rows of 64. If l is not NULL, they are divided by l[i], and 0
 * where bit i of seen[j] is 0. Elements from n on are unspecified. No element is -0. */
void attni_bf16_scores_as_rows(float *rows, const float *st, int n, const float *l,
                               const uint32_t *seen, int nv);
/* Packs the weights in st into p. */
void attni_bf16_pack_weights(attni_bf16 *p, const float *st, int nv);

/* MXCSR as in products of the instructions for bf16: no traps, round to nearest even, denormal
 * operands and results are 0. */
#define ATTNI_BF16_MXCSR 0x9fc0u

/* n rounded up to a multiple of 32, at least 32: whole operands, padded with zeros. */
static inline int64_t attni_bf16_padded(int64_t n) { return n <= 0 ? 32 : n + (32 - n % 32) % 32; }

/* The number of queries that the row_* functions take for `queries` of them: 1, 4, 8, 12 or 16. */
static inline int attni_bf16_decode_rows(int queries)
{
    return queries == 1 ? 1 : (queries + 3) / 4 * 4;
}

/* Copies n elements of 2 bytes that are `stride` elements apart. */
void attni_bf16_copy_row(attni_bf16 *to, const char *from, int64_t stride, int64_t n);
/* Packs rows of bf16, of last stride 1 and any alignment, into the shape of q. power: a power of
 * two. */
void attni_bf16_pack_queries(attni_bf16 *to, const attni_bf16 *q, ptrdiff_t ldq, int rows,
                             int64_t D, float power, int nv);
/* Copies the first `rows` queries, 1 or a multiple of 4, from the shape of q to [D/2][rows][2]. D
 * is padded. */
void attni_bf16_first_queries(attni_bf16 *to, const attni_bf16 *q, int64_t D, int rows, int nv);
/* Copies one row, times `power`, as a row. */
void attni_bf16_scale_row(attni_bf16 *to, const attni_bf16 *q, int64_t D, float power);
/* pack_values of the matrix unit, and of the dot products. */
bool attni_bf16_pack_values(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                            bool zero);
bool attni_bf16_pack_pairs(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                           bool zero);
/* The exponent, biased as it is stored, of the largest of rows x columns elements; ld is in
 * bytes. */
int attni_bf16_exponent(const void *x, ptrdiff_t ld, int64_t rows, int64_t columns);

/* (bf16_decode.c) unit->row_scores for any number of keys and any stride of their elements. Keys
 * that it does not take as they are, are copied to `copies`, which has room for k->n of them,
 * rounded up to 16. */
void attni_bf16_row_scores(const attni_bf16_unit *unit, float *st, const attni_bf16 *q,
                           const attni_bf16_rows *k, int64_t stride, int D, int rows,
                           attni_bf16 *copies);

/* Merges a chunk into the total: m' = max(M, m), total = total 2^(M - m') + acc 2^(m - m'), and L
 * likewise. */
void attni_bf16_join(float *total, float *M, float *L, const float *acc,
                     const attni_bf16_columns *columns, int64_t rows, int nv);
/* The same for total and sums stored as [rows][n], n a multiple of 16. */
void attni_bf16_join_rows(float *total, float *M, float *L, const float *sums,
                          const attni_bf16_columns *columns, int rows, int64_t n);
/* Computes m and l of a chunk of one key, whose scores are in top; its weight is not rounded to
 * bf16. */
void attni_bf16_one_key(attni_bf16_columns *columns, int nv);
/* to[i][c] = total[c][i] / l[i] * factor, never -0, and 0 where l is 0; i < rows, c < Dv; `to` is
 * of float, or if `narrow` of bf16, ldo elements apart. Returns true if one is NaN or infinite. */
bool attni_bf16_finish(void *to, bool narrow, ptrdiff_t ldo, const float *total, const float *l,
                       float factor, int rows, int64_t Dv, int nv);
/* The same for total [rows][Dv padded], with a factor of 1. */
bool attni_bf16_finish_rows(void *to, bool narrow, ptrdiff_t ldo, const float *total,
                            const float *l, int rows, int64_t Dv);

/* Weights and gradients of a block of scores, of n <= 64 keys and the first `rows` of W = 16 nv
 * queries, nv even. They replace the contents of st and dp, as bf16 rounded to nearest even, padded
 * with 0 to 64 keys and W queries:
 *
 *   st   [64][W/32][2][32]        for each 32 queries a row of weights, then a row of gradients
 *   dp   [32][2][W][2]            [r][0]: keys 2r, 2r+1 of gradients / `largest`; [r][1]: unused
 */
typedef struct attni_bf16_grads {
    int n, rows, nv;
    /* st and dp hold weights and gradients; else they hold scores and dout . v, and lse, factor,
     * delta and c are used as well. */
    bool ready;
    float *st, *dp;                    /* [64][W] */
    const float *lse, *factor, *delta; /* [W] */
    /* The weights are those that weights_from_lse() (kernel.h) computes from lse and c, times
     * factor. The gradients are those of score_grads() (kernel.h). */
    float c;
    /* [W] the largest |gradient| of each query, but at least 2^-100 and at most 2^100. */
    float *largest;
} attni_bf16_grads;
void attni_bf16_score_grads(const attni_bf16_grads *x);
/* total[r][c] += sums[r][c] * factor[r], for rows of n, a multiple of 16. */
void attni_bf16_add_scaled_rows(float *total, const float *sums, const float *factor, int rows,
                                int64_t n);

#endif
