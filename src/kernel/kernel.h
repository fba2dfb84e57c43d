/* The table of operations that every instruction set fills: what a tile of attention is made of.
 *
 * Queries stand in SIMD lanes. A tile is `nv` vectors of `lanes` queries, W = nv * lanes in all,
 * and every tile array is [rows][W]: S^T (a row per key), O^T (a row per value component). So K and
 * V are broadcast operands that stay in place, maxima and sums run down the rows, and a query's
 * arithmetic never depends on its neighbours in the tile.
 *
 * R is float or double (`bits`). Tile arrays are aligned to ATTNI_ALIGN; k, v, q and out may have
 * any alignment. Strides ld* are in elements; the last stride is 1.
 *
 * The order of every sum is fixed here, for all instruction sets, and none of it depends on tile
 * widths: a score is one chain over each run of ATTNI_D_CHAIN components of D, the runs added in
 * order; keys come in index order, one chain in each block of ATTNI_BLOCK keys, blocks added in
 * order within each chunk of ATTNI_CHUNK keys, chunks added in order, all counted from the row's
 * key 0. That is what makes one query alone, a query among others and a split over keys agree to
 * the bit; and errors grow with the sum of these lengths, not with their product.
 */
#ifndef ATTNI_KERNEL_H
#define ATTNI_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

#define ATTNI_D_CHAIN 64 /* components of D in one chain of a score */
#define ATTNI_BLOCK 64   /* keys in one block of scores: one chain of weights and weighted values */
#define ATTNI_CHUNK 256  /* keys whose weighted values are summed before they join the total */
#define ATTNI_BLOCKS (ATTNI_CHUNK / ATTNI_BLOCK)
#define ATTNI_MAX_LANES 64 /* no tile is wider */
#define ATTNI_GROUP 16     /* turned keys that share lines ... */
#define ATTNI_UNIT 4       /* ... with so many bytes of each */
#define ATTNI_LINE (ATTNI_GROUP * ATTNI_UNIT)
#define ATTNI_FEW_ROWS 4 /* rows of x, at most, of linear_few_rows() */

/* Flags of weights() and values(). */
#define ATTNI_FIRST 1       /* values: the first block of a chunk: sums start at 0 */
#define ATTNI_LAST 2        /* values: the last block of a chunk: sums join the total */
#define ATTNI_MASKED 4      /* weights: scores may be -inf, which gives exactly 0 */
#define ATTNI_SKIP_MASKED 8 /* a weight of a -inf score is the mark -1, and is never multiplied */

/* Of linear(): a run of D <= ATTNI_D_CHAIN components of n rows of x, times a panel of the weight.
 */
typedef struct attni_product {
    void *out; /* may be sums, with the same stride */
    ptrdiff_t ldo;
    const void *sums, *bias, *wt, *x;
    ptrdiff_t ld_sums, ldx;
    int n, D;
    /* Or NULL: W rows of ATTNI_D_CHAIN elements, and n rows of W, that the cache is asked for
     * meanwhile. They are not looked at; what lies beyond may be asked for too. */
    const void *next_weights, *next_x;
    ptrdiff_t ld_next_weights, ld_next_x;
} attni_product;

/* Of the *_decode operations: rows of `n` bytes, `bytes` apart, that are read next, which the cache
 * is asked for meanwhile. They are not looked at; what lies beyond may be asked for too. */
typedef struct attni_next_rows {
    const void *rows;
    ptrdiff_t bytes;
    int64_t n;
} attni_next_rows;

/* Memory that will be read soon, which the cache is asked for in parts while something else is
 * computed: a core waits on few lines at a time, and asked for all at once they would hold
 * everything up. It is not looked at; what lies behind a row's end may be asked for too. */
typedef struct attni_prefetch {
    const char *first;
    ptrdiff_t ld;    /* bytes */
    int rows, lines; /* lines of 64 bytes in each row */
    int row, line;   /* the next one */
} attni_prefetch;

typedef struct attni_kernels {
    const char *isa;
    int bits;            /* 32 or 64: R */
    int lanes;           /* of one vector */
    int vectors;         /* of the widest tile: nv is 1, 2, ... doubling up to this */
    int halves;          /* do the *_decode operations take bf16 and f16 as they are? */
    int max_decode_rows; /* queries, at most, for which the *_decode operations are the faster ones
                          */

    /* qt[d*W + i] = q[i*ldq + d] * mul for i < rows, else 0. mul is a power of two. */
    void (*pack)(void *qt, const void *q, ptrdiff_t ldq, int rows, int64_t D, double mul, int nv);

    /* to[r*D + d] = from[r*ld + d] as R, exactly, for r < rows, d < D; dtype is any float
     * type; to a narrower R it rounds to nearest even. */
    void (*widen)(void *to, const void *from, ptrdiff_t ld, attn_dtype dtype, int rows, int64_t D);

    /* The same of a cache's i8: to[r*D + d] = from[r*ld + d] * scales[r] as float, then as R. */
    void (*widen_i8)(void *to, const int8_t *from, ptrdiff_t ld, const float *scales, int rows,
                     int64_t D);

    /* to[i] = from[i] rounded to nearest even, i < n, and 0 where a negative number is rounded to
     * -0; dtype is any float type, `to` at any address. No -0 comes in. */
    void (*narrow)(void *to, attn_dtype dtype, const void *from, int64_t n);

    /* st[j*W + i] = sum over d < D of k[j*ldk + d] * qt[d*W + i], for j < n: a chain from 0 over
     * each run of ATTNI_D_CHAIN components, then run 0 + run 1 + ... in order. mx[i] = the largest
     * of column i, -inf if n is 0. A NaN in a column may or may not show in mx. `ahead`, unless
     * NULL, is asked for on the way, as far as the arithmetic hides it. */
    void (*scores)(void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk, int n,
                   int64_t D, int nv, attni_prefetch *ahead);

    /* The same bits in rows, st[i*ATTNI_BLOCK + j], for i < rows, 1 <= rows <= few: with keys in
     * the lanes, for tiles that are nearly empty, where reading k is the work. k is of R's type
     * or, if `halves`, of bf16 or f16. n <= ATTNI_CHUNK, and each block has `few` such rows in st,
     * of which whole vectors are written, and W maxima in mx; nv is 1. If rows is 1, q is a row,
     * [D]; else a tile, as above. */
    void (*scores_decode)(void *st, void *mx, const void *q, const void *k, ptrdiff_t ldk,
                          attn_dtype dtype, int n, int64_t D, int rows,
                          const attni_next_rows *soon);

    /* The same from turned keys, as a cache has them: groups of ATTNI_GROUP keys one after the
     * other, a group [units][ATTNI_GROUP], a line of ATTNI_LINE bytes each; a unit is one element
     * or two halves of a key. If D is odd, the half after the last one is 0, and so is component D
     * of q. k is the first unit of a group. All lanes of the groups of n keys are read, and as many
     * scores written. NULL for 64 bits. */
    void (*scores_interleaved)(void *st, void *mx, const void *q, const void *k, attn_dtype dtype,
                               int n, int64_t D, int rows, const attni_next_rows *soon);

    /* mx[i] as scores() gives it, of st as it is now. */
    void (*maxima)(void *mx, const void *st, int n, int nv);

    /* st = r * st; then, if cap > 0, st = cap * tanh(st / cap): within a relative 12 * 2^-53, of
     * floats 10 * 2^-24 (check/check_scores.c derives it). */
    void (*scale_softcap)(void *st, int n, double r, double cap, int nv);

    /* st[j*W + i] += slope * d, with d = first + j - i, or its -|d| if symmetric. */
    void (*alibi)(void *st, int n, double slope, double first, bool symmetric, int nv);

    /* st[j*W + i] += b[i*ldb + j] for i < rows, j < n; -inf, whatever st is, where b is -inf. b may
     * have any alignment. With ldb = 0 the other lanes, too, may get what all lanes get. */
    void (*bias)(void *st, int n, const void *b, ptrdiff_t ldb, int rows, int nv);

    /* st[j*W + i] = -inf where bit i of visible[j] is 0, j < n. mx as maxima() gives it then. */
    void (*hide)(void *st, void *mx, const uint64_t *visible, int n, int nv);

    /* Bit j of to[i] = is byte p[i*ld + j] not 0?, for i < rows, j < n <= 64; the others are 0. */
    void (*pack_bits)(uint64_t *to, const void *p, ptrdiff_t ld, int rows, int n);

    /* Looks at rows of so many bytes, ld bytes apart: 1 if in some 8 bytes of a row, counted from
     * its first, a bit of `value` is set; plus 2 if some are not those of `hidden`. With both found
     * it may stop. Of a row's last bytes only those that are in it count. */
    int (*scan)(const void *p, ptrdiff_t ld, int rows, size_t bytes, uint64_t value,
                uint64_t hidden);

    /* The running maximum m[i] is an integer, in log2 units (so that every rescaling is an exact
     * power of two), or -inf while column i has seen nothing. c[i] > 0 turns a score into log2
     * units. top[i] = max(top[i], mx[i]). Where mx[i]*c[i] exceeds m[i] by more than a threshold, m
     * becomes its ceiling. Returns 1 if that happened anywhere, with a[i] = 2^(old - new)
     * everywhere (1 where nothing was seen); else returns 0 and leaves a alone. */
    int (*update_max)(void *m, void *a, void *top, const void *mx, const void *c, int nv);

    /* x[r*W + i] *= a[i], r < rows. */
    void (*rescale)(void *x, int64_t rows, const void *a, int nv);

    /* A chunk of keys, its running maximum m and its sum of weights l, joins those before it. M
     * becomes max(M, m); factors[i] = 2^(old M - new M), factors[W + i] = 2^(m - new M), both 1
     * while nothing was seen; L = L * factors[i] + l * factors[W + i]. */
    void (*join)(void *M, void *L, void *factors, const void *m, const void *l, int nv);

    /* total = total * factors[i] + acc * factors[W + i], over [rows][W]: as values() with LAST. */
    void (*fold)(void *total, const void *acc, int64_t rows, const void *factors, int nv);

    /* p[j*W + i] = 2^(st[j*W + i]*c[i] - m[i]) (m = -inf counts as 0), the product rounded, the
     * power within 1 unit in the last place (1.25 without fused multiply-add); l[i] += the sum of
     * p, a chain from 0 in order of j. p may be st. NaN stays NaN. flags: ATTNI_MASKED,
     * ATTNI_SKIP_MASKED. A mark does not enter l. */
    void (*weights)(void *p, void *l, const void *st, const void *c, const void *m, int n, int nv,
                    int flags);

    /* The same bits of rows: p[i*ATTNI_BLOCK + j] of st[i*ATTNI_BLOCK + j], for i < rows, j < n; p
     * may be st. No score may be -inf. Both have room for `few` rows of ATTNI_BLOCK. The sums are
     * left to values_decode(). */
    void (*weights_decode)(void *p, const void *st, const void *c, const void *m, int n, int rows);

    /* Dropout: to = keep ? p * kept : 0, keep = attni_dropout_keep(seed, threshold, bh, i0 + i,
     * j0 + j); marks stay. `to` may be p. */
    void (*drop)(void *to, const void *p, int n, uint64_t seed, uint32_t threshold, uint64_t bh,
                 uint64_t i0, uint64_t j0, double kept, int nv);

    /* For each c < Dv: s = a chain from 0 of v[j*ldv + c] * p[j*W + i], in order of j < n; if not
     * FIRST, s = acc[c*W + i] + s; then acc[c*W + i] = s, or if LAST, total is folded with s by
     * join()'s factors. CAREFUL: weights < 0 are passed over. `ahead` as in scores(). */
    void (*values)(void *acc, void *total, const void *factors, const void *v, ptrdiff_t ldv,
                   const void *p, int n, int64_t Dv, int nv, int flags, attni_prefetch *ahead);

    /* acc's bits for i < rows, 1 <= rows <= few, with components in the lanes; v as k there. Not
     * CAREFUL; nv is 1. With in_rows p is what weights_decode() makes of what scores_decode()
     * gives, of up to ATTNI_CHUNK keys, and l as weights() gives it; else l is left alone. Sums
     * stand in rows, sums[i*ld + c] with ld = Dv rounded up to whole vectors and room for `few`
     * rows. Of flags only FIRST counts: fold() and pack() do the rest. */
    void (*values_decode)(void *sums, void *l, const void *v, ptrdiff_t ldv, attn_dtype dtype,
                          const void *p, int in_rows, int n, int64_t Dv, int rows, int flags,
                          const attni_next_rows *soon);

    /* For one query and D = Dv (attni_has_values_and_next_scores), in one loop:
     * scores_interleaved() of a whole block k and, in_rows, values_decode() of another's values v;
     * st may be p. NULL for 64 bits. */
    void (*values_and_next_scores)(void *st, void *mx, const void *q, const void *k, void *sums,
                                   void *l, const void *v, ptrdiff_t ldv, const void *p, int64_t D,
                                   int flags);

    /* out[i*ldo + c] = total[c*W + i] / l[i] (never -0; to within 0.51 units in the last place), or
     * 0 where l is infinite and total 0; i < rows, c < Dv. Returns 1 if one of them is NaN or
     * infinite, else 0. */
    int (*finish)(void *out, ptrdiff_t ldo, const void *total, const void *l, int rows, int64_t Dv,
                  int nv);

    /* The same of sums in rows, as values_decode() has them. */
    int (*finish_decode)(void *out, ptrdiff_t ldo, const void *sums, const void *l, int rows,
                         int64_t Dv);

    /* The linear layer has its *outputs* in lanes: wt is what pack() makes of W rows of the weight,
     * bias is [W], aligned; rows of sums, x and out are anywhere. Sums are those
     * of scores(): a chain from 0 over each run of ATTNI_D_CHAIN components, runs in order, and
     * where there is a bias, that, and -0 becomes 0.
     *
     * One run: s = a chain from 0 of x[i*ldx + d] * wt[d*W + o] in order of d, for i < n; sums, if
     * not NULL: s = sums[i*ld_sums + o] + s; bias, if not NULL: s = s + bias[o] + 0; out[i*ldo + o]
     * = s. */
    void (*linear)(const attni_product *product, int nv);

    /* All runs at once, with the weight in place, for a few rows of x, n <= ATTNI_FEW_ROWS: s = the
     * sum over d < D of x[i*ldx + d] * w[o*ldw + d], o < outputs; then as linear(). Whole vectors
     * are written: what stands behind the last output in the last of them may be anything. */
    void (*linear_few_rows)(void *out, ptrdiff_t ldo, const void *bias, const void *w,
                            ptrdiff_t ldw, int outputs, const void *x, ptrdiff_t ldx, int n,
                            int64_t D);

    /* The backward's own. out[i] = sum over d < D of a[i*lda + d] * b[i*ldb + d], i < rows; in no
     * promised order. */
    void (*dots)(void *out, const void *a, ptrdiff_t lda, const void *b, ptrdiff_t ldb, int rows,
                 int64_t D);

    /* p[j*W + i] = 2^((st[j*W + i] - lse[i]) * c), the difference and the product rounded, the
     * power within 1 unit in the last place (1.25 without fused multiply-add) and cut off at 2^16;
     * the mark -1 where st is -inf. p may be st. NaN stays NaN. */
    void (*weights_from_lse)(void *p, const void *st, const void *lse, double c, int n, int nv);

    /* dp[j*W + i] becomes the gradient of a score: p * (dp - delta[i]), or, with weights after
     * dropout in `kept`, kept * dp - p * delta[i]. Where p is a mark, p, dp and kept become 0. */
    void (*score_grads)(void *dp, void *p, void *kept, const void *delta, int n, int nv);

    /* ds *= the derivative 1 - tanh(raw * r / cap)^2 at the raw score; a ds of 0 stays 0. To within
     * 8 units in the last place, and one more for each factor of 2 that it is below 1. */
    void (*cap_grads)(void *ds, const void *raw, int n, double r, double cap, int nv);

    /* n rounds of independent fused multiply-adds in registers; returns the floating-point
     * operations done. *sink keeps the compiler honest. */
    double (*fma_loop)(int64_t n, double *sink);
} attni_kernels;

/* A value's sums are to stay in registers. */
static inline int attni_has_values_and_next_scores(const attni_kernels *kernels, int64_t D)
{
    return kernels->values_and_next_scores && (D == 64 || D == 128) && D <= 8 * kernels->lanes;
}

#define ATTNI_ISA(name) extern const attni_kernels attni_##name##_f32, attni_##name##_f64;
#include "../core/isa.def"
#undef ATTNI_ISA

/* isa: an index into isa.def; bits: 32 or 64. */
const attni_kernels *attni_kernels_of(int isa, int bits);

#endif
