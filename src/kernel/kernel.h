/* The kernel table: the operations that every instruction set implements, and their contracts.
 *
 * Glossary:
 *
 *   B H Hk T S   batch, query heads, key/value heads, queries, keys (as in attn.h)
 *   D Dv         size of a query and of a key; size of a value
 *   R            the compute type: float or double (`bits`)
 *   lane         one element of a SIMD vector; a vector has `lanes` of them
 *   tile, W      up to W queries, one per lane of nv vectors: W = nv * lanes. A tile array is
 *                [rows][W]: scores S^T have a row per key, outputs O^T a row per value component.
 *   block        ATTNI_BLOCK keys, which are scored and weighted together
 *   chunk        ATTNI_CHUNK keys, whose weighted values are summed before they join the total
 *   sweep        one pass of a tile over all keys that it sees
 *   decode       the path for few query rows (at most max_decode_rows); lanes hold keys, and then
 *                components of values
 *   group        ATTNI_GROUP keys that the key-value cache stores interleaved
 *   interleaved  the layout of a group: keys are cut into units of ATTNI_UNIT bytes, and line u
 *                (ATTNI_LINE bytes) holds unit u of each key of the group; drawing below
 *   pack         to transpose W rows into a tile array
 *   panel        the weights of W outputs of a linear layer, packed: [inputs][W]
 *   log2 units   a score is in log2 units when it has been multiplied by c[i], the factor of its
 *                query (lane i). c[i] includes log2(e); so a weight is 2^(score - m), where m is
 *                near the running maximum (update_max)
 *   mark         the weight -1, which stands for a masked key (score -inf) where the exact weight 0
 *                is not enough: 0 * NaN is NaN. No weight is negative, so w < 0 identifies a mark.
 *                values() with ATTNI_SKIP_MASKED skips marked keys; other operations keep marks or,
 *                in gradients, replace them by 0.
 *
 *    A tile of scores, [keys][W]:                A group of interleaved keys, [units][ATTNI_GROUP]:
 *
 *            lane 0   lane 1        lane W-1             byte 0    byte 4          byte 60
 *    key 0   q0 k0    q1 k0   ...   qW-1 k0     line 0   key 0     key 1     ...   key 15   unit 0
 *    key 1   q0 k1    q1 k1   ...   qW-1 k1     line 1   key 0     key 1     ...   key 15   unit 1
 *    ...                                        ...
 *
 * Because lanes hold queries, k and v are broadcast from where they are stored, maxima and sums run
 * down the rows, and a query's arithmetic never depends on the other queries of its tile.
 *
 * Tile arrays are aligned to ATTNI_ALIGN; k, v, q and out may have any alignment. Strides ld* are
 * in elements, unless their comment says bytes; the last stride is 1.
 *
 * The order of every sum of the forward in the tile engine is fixed here for all instruction sets
 * and does not depend on tile widths. (The bf16 engine has its own order: bf16/unit.h and
 * bf16/unit_dot.c.) A chain adds its terms one after the other. A score has one chain for each run
 * of ATTNI_D_CHAIN components of D; the sums of the runs are added in order. Keys are added in
 * index order: each block is one chain, the blocks of a chunk are added in order, and the chunks
 * are added in order. Blocks and chunks are counted from the first key of the row's sequence.
 * Therefore the result of a query has the same bits if it is computed alone, if it shares a tile
 * with other queries, and if the call is split along the keys. Errors grow with the length of a
 * chain, plus the number of blocks in a chunk, plus the number of chunks, instead of with the
 * number of keys.
 */
#ifndef ATTNI_KERNEL_H
#define ATTNI_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

#define ATTNI_D_CHAIN 64 /* components of D in one chain of a score */
#define ATTNI_BLOCK 64   /* keys in a block: one chain of weights and of weighted values */
#define ATTNI_CHUNK 256  /* keys in a chunk: their sums are added to the total together */
#define ATTNI_BLOCKS (ATTNI_CHUNK / ATTNI_BLOCK)
#define ATTNI_MAX_LANES 64 /* the largest W of any tile: the lanes of all its vectors */
#define ATTNI_GROUP 16     /* keys in a group of the interleaved layout */
#define ATTNI_UNIT 4       /* bytes of one key in each line of a group */
#define ATTNI_LINE (ATTNI_GROUP * ATTNI_UNIT)
#define ATTNI_NORM_ROWS 16 /* largest number of rows in norm_columns() */
#define ATTNI_FEW_ROWS 4   /* largest number of rows of x in linear_few_rows() */
/* Data of at most this many bytes (of a call, or of a linear layer's weight) are not prefetched:
 * they mostly stay in a cache. */
#define ATTNI_FAR_BYTES (1024 * 1024)

/* Flags of weights() and values(). */
#define ATTNI_FIRST 1       /* values: first block of a chunk; sums start at 0 */
#define ATTNI_LAST 2        /* values: last block of a chunk; sums are added to the total */
#define ATTNI_MASKED 4      /* weights: scores may be -inf; their weight is exactly 0 */
#define ATTNI_SKIP_MASKED 8 /* weights: -inf gives a mark; values: marks are skipped */

/* Operands of linear(): n rows of x, with D <= ATTNI_D_CHAIN components each, times a panel. */
typedef struct attni_product {
    void *out; /* may equal `sums`, with the same stride */
    ptrdiff_t ldo;
    const void *sums, *bias, *wt, *x;
    ptrdiff_t ld_sums, ldx;
    int n, D;
    /* Rows to prefetch during the product (NULL: none); linear() does not read them. They are
     * given by the first row and the distance between rows.
     *
     *   next_weights   the weights of the next run. Stored as rows: W rows of ATTNI_D_CHAIN
     *                  elements. Stored transposed: ATTNI_D_CHAIN rows of W elements. Packed:
     *                  ATTNI_D_CHAIN * W elements without gaps, given as W rows of ATTNI_D_CHAIN
     *   next_x         n rows, of each as many cache lines as W elements can touch. The rows are
     *                  the next run's part of x. If the next run writes its sums directly to the
     *                  layer's output, they are the rows of the output that it will write.
     *
     * Cache lines past the ends of rows may be prefetched, too. */
    const void *next_weights, *next_x;
    ptrdiff_t ld_next_weights, ld_next_x;
} attni_product;

/* Rows that a decode operation prefetches: usually those that the operation after it reads. It may
 * also prefetch up to three cache lines after the end of a row, but no more: a prefetch of memory
 * that has no page takes some 200 cycles (docs/decisions/0041). */
typedef struct attni_next_rows {
    const void *rows;
    ptrdiff_t bytes; /* from one row to the next */
    int64_t n;       /* bytes in each row */
    int64_t count;   /* of rows; if they have no gaps, they may be one long row */
    int l2_ahead;    /* 0: rows are prefetched into L1 only. Else an operation on rows of R
                        prefetches each row twice: all lines into L2, l2_ahead rows before it is
                        read, and most lines into L1 at half this distance. It does so for the rows
                        that it reads and for the next rows. */
    bool l2_only;    /* without effective prefetches into L1 */
    bool one_vector; /* scores_decode() of one query takes one vector of keys at a time, not two.
                        The results are the same. */
} attni_next_rows;

/* A region that will be needed later, prefetched in parts during other computations. A core has few
 * line-fill buffers, so prefetching all lines at once would be slower. A prefetch cannot
 * fault, so it may continue past the end of a row; where there is no page, it costs time. */
typedef struct attni_prefetch {
    const char *first;
    ptrdiff_t ld;    /* bytes */
    int rows, lines; /* lines: 64-byte cache lines in each row */
    int row, line;   /* the next line to prefetch */
} attni_prefetch;

/* The numbers of a step of AdamW. Each beta is stored as the sum of two floats.
 * rest = 1 - beta, rate = lr / (1 - beta1^step), root = 1 / sqrt(1 - beta2^step),
 * decay = lr * weight_decay. */
typedef struct attni_adamw {
    float beta1[2], beta2[2], rest1, rest2, rate, root, eps, decay;
} attni_adamw;

/* A row of layer norm: y = (x - mean) * r + rest, with r = 1 / sqrt(variance + eps), and rest the
 * correction for the rounding of the mean. In the backward g = dout * weight, and
 * dx = (g - mean_g) * r + y * times_y, with mean_g the mean of g and
 * times_y = -r * (mean of g * y). */
typedef struct attni_moments {
    float mean, r, rest, mean_g, times_y;
} attni_moments;

typedef struct attni_kernels {
    const char *isa;
    int bits;            /* of R: 32 or 64 */
    int lanes;           /* in one vector */
    int vectors;         /* in the widest tile; nv is 1, 2 or 4, up to this */
    bool three_vectors;  /* nv may be 3, too */
    int halves;          /* 1: the decode operations read bf16 and f16 as they are stored */
    int fused;           /* 1: a * b + c is rounded once */
    int max_decode_rows; /* largest number of queries for the decode operations */

    /* qt[d*W + i] = q[i*ldq + d] * mul for i < rows, else 0. mul is 0 or a power of two with either
     * sign. */
    void (*pack)(void *qt, const void *q, ptrdiff_t ldq, int rows, int64_t D, double mul, int nv);

    /* to[r*D + d] = from[r*ld + d] converted to R, for r < rows, d < D; dtype is any float type.
     * Widening is exact; conversion to a narrower R rounds to nearest even. */
    void (*widen)(void *to, const void *from, ptrdiff_t ld, attn_dtype dtype, int rows, int64_t D);

    /* widen() for rows of i8 in a cache: to[r*D + d] = from[r*ld + d] * scales[r], computed in
     * float, then converted to R. `following` rows come after them in memory; up to
     * ATTNI_BLOCK of these are prefetched. */
    void (*widen_i8)(void *to, const int8_t *from, ptrdiff_t ld, const float *scales, int rows,
                     int64_t following, int64_t D);

    /* to[i] = from[i] rounded to nearest even, i < n; -0, and a negative number that would round to
     * it, become 0. dtype is any float type, `to` may have any alignment. */
    void (*narrow)(void *to, attn_dtype dtype, const void *from, int64_t n);

    /* st[j*W + i] = sum over d < D of k[j*ldk + d] * qt[d*W + i], for j < n: a chain from 0 over
     * each run of ATTNI_D_CHAIN components, then run 0 + run 1 + ... in order. mx[i] = the maximum
     * of column i, -inf if n is 0; if a column contains a NaN, mx[i] may be NaN or not. `hints`
     * (may be NULL) is prefetched as far as that takes no extra time. */
    void (*scores)(void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk, int n,
                   int64_t D, int nv, attni_prefetch *hints);

    /* The same bits as scores() for 1 <= rows <= max_decode_rows, with keys in the lanes; for
     * nearly empty tiles, whose scores are memory-bound. k has type R or, if `halves`, bf16 or f16.
     * n <= ATTNI_CHUNK; nv is 1. st and mx have a part for each block of keys. A part of st is
     * [max_decode_rows][ATTNI_BLOCK]: key j of the block and query i are at st[i*ATTNI_BLOCK + j].
     * It is written in whole vectors. A part of mx is [W]. q is a tile, as in scores(); if rows is
     * 1, it is one row, [D]. `next_rows` is prefetched. */
    void (*scores_decode)(void *st, void *mx, const void *q, const void *k, ptrdiff_t ldk,
                          attn_dtype dtype, int n, int64_t D, int rows,
                          const attni_next_rows *next_rows);

    /* scores_decode() for interleaved keys, stored as consecutive groups of ATTNI_GROUP keys: each
     * group is [units][ATTNI_GROUP], ATTNI_LINE bytes per line. A unit is one f32 component of a
     * key or two components of 2 bytes. If D is odd and components have 2 bytes, the second half of
     * a key's last unit is 0, and component D of q must be 0 too. k is the first unit of a group.
     * All keys of the groups that hold the n keys are read, and a score is written for each of
     * them. NULL for 64 bits. */
    void (*scores_interleaved)(void *st, void *mx, const void *q, const void *k, attn_dtype dtype,
                               int n, int64_t D, int rows, const attni_next_rows *next_rows);

    /* Sets mx[i] as scores() does, from the present st. */
    void (*maxima)(void *mx, const void *st, int n, int nv);

    /* st = r * st; then, if cap > 0, st = cap * tanh(st / cap). The relative error is at most
     * 12 * 2^-53, for float 10 * 2^-24 (derived in check/check_scores.c). */
    void (*scale_softcap)(void *st, int n, double r, double cap, int nv);

    /* st[j*W + i] += slope * d with d = first + j - i, or -|first + j - i| if symmetric. `first` is
     * the distance of key 0 of the block from the diagonal, seen from query 0 of the tile. */
    void (*alibi)(void *st, int n, double slope, double first, bool symmetric, int nv);

    /* st[j*W + i] += b[i*ldb + j] for i < rows, j < n. Where b is -inf the result is -inf, whatever
     * st is, NaN included. b may have any alignment. With ldb = 0, lanes i >= rows may get the same
     * bias. */
    void (*bias)(void *st, int n, const void *b, ptrdiff_t ldb, int rows, int nv);

    /* st[j*W + i] = -inf where bit i of visible[j] is 0, j < n; then mx as maxima() sets it. */
    void (*hide)(void *st, void *mx, const uint64_t *visible, int n, int nv);

    /* Bit j of to[i] is 1 if byte p[i*ld + j] is not 0, for i < rows, j < n <= 64; the other bits
     * are 0. */
    void (*pack_bits)(uint64_t *to, const void *p, ptrdiff_t ld, int rows, int n);

    /* Reads rows of `bytes` bytes, ld bytes apart, as words of 8 bytes from the start of each row.
     * Returns 1 if a word has a bit of `value` set, plus 2 if a word differs from `hidden`. Only
     * the bytes inside the row count in its last word. May stop when both are found. For a float
     * mask, `value` has all bits of each element but its sign, and `hidden` is -inf in each. Then 1
     * means that all elements are -inf, 3 that the mask adds or hides something, 0 or 2 that all
     * elements are 0 or -0. */
    int (*scan)(const void *p, ptrdiff_t ld, int rows, size_t bytes, uint64_t value,
                uint64_t hidden);

    /* Updates the running maximum m[i] of column i. It is -inf until the column has seen a key;
     * then it is an integer in log2 units, so that every rescaling is by an exact power of two. The
     * factor c[i] > 0 converts a score to log2 units. top[i] becomes max(top[i], mx[i]). Where
     * mx[i]*c[i] exceeds m[i] by more than 16, m[i] becomes ceil(mx[i]*c[i]). Returns 1 if
     * any m[i] changed, with a[i] = 2^(old m - new m) for all i (1 where no key was seen); else
     * returns 0 and does not write a. */
    int (*update_max)(void *m, void *a, void *top, const void *mx, const void *c, int nv);

    /* x[r*W + i] *= a[i], r < rows. */
    void (*rescale)(void *x, int64_t rows, const void *a, int nv);

    /* Merges a chunk's running maximum m and sum of weights l into the totals M and L:
     * M = max(M, m); factors[i] = 2^(old M - new M), factors[W + i] = 2^(m - new M), both 1 while
     * no key was seen; L = L * factors[i] + l * factors[W + i]. */
    void (*join)(void *M, void *L, void *factors, const void *m, const void *l, int nv);

    /* total = total * factors[i] + acc * factors[W + i], over [rows][W]: what values() does with
     * ATTNI_LAST. */
    void (*fold)(void *total, const void *acc, int64_t rows, const void *factors, int nv);

    /* p[j*W + i] = 2^(st[j*W + i]*c[i] - m[i]), where m = -inf counts as 0. The product is rounded;
     * the power is within 1 ulp (1.25 without fused multiply-add). l[i] += the sum of p without
     * marks, a chain from 0 in order of j. p may be st. NaN stays NaN. flags: ATTNI_MASKED,
     * ATTNI_SKIP_MASKED. */
    void (*weights)(void *p, void *l, const void *st, const void *c, const void *m, int n, int nv,
                    int flags);

    /* The same bits as weights(), in the layout of scores_decode(): p[i*ATTNI_BLOCK + j] from
     * st[i*ATTNI_BLOCK + j], for i < rows, j < n. p may be st. No score may be -inf. Both arrays
     * have room for max_decode_rows rows of ATTNI_BLOCK. values_decode() computes the sums l. */
    void (*weights_decode)(void *p, const void *st, const void *c, const void *m, int n, int rows);

    /* Dropout: to = keep ? p * kept : 0 with keep = attni_dropout_keep(seed, threshold, bh, i0 + i,
     * j0 + j). bh is the number of the head in the whole call, b * H + h; i0 and j0 are those of
     * the first query and key. threshold is the rate in units of 2^-16, kept is 1 / (1 - rate).
     * Marks are copied. `to` may be p. */
    void (*drop)(void *to, const void *p, int n, uint64_t seed, uint32_t threshold, uint64_t bh,
                 uint64_t i0, uint64_t j0, double kept, int nv);

    /* For each c < Dv: s = a chain from 0 of v[j*ldv + c] * p[j*W + i], in order of j < n; without
     * ATTNI_FIRST, s = acc[c*W + i] + s. Then acc[c*W + i] = s or, with ATTNI_LAST,
     * total = total * factors[i] + s * factors[W + i] (the factors of join()). With
     * ATTNI_SKIP_MASKED, marks (weights < 0) are skipped. `hints` as in scores(). */
    void (*values)(void *acc, void *total, const void *factors, const void *v, ptrdiff_t ldv,
                   const void *p, int n, int64_t Dv, int nv, int flags, attni_prefetch *hints);

    /* The bits that values() leaves in acc, for i < rows, 1 <= rows <= max_decode_rows, with
     * components of v in the lanes. v has the types of k in scores_decode(). ATTNI_SKIP_MASKED is
     * not supported; nv is 1. If in_rows is 1, p holds consecutive blocks, each as
     * weights_decode() writes it, up to ATTNI_CHUNK keys in all, and l is updated as weights()
     * does. If in_rows is 0, p is a tile of one block, and l is not used. Sums are stored in rows,
     * sums[i * ld + c], ld = Dv rounded up to whole vectors, with room for max_decode_rows rows.
     * ATTNI_FIRST is the only flag with an effect: callers add the chunk to the total by fold()
     * and, if they need a tile, transpose by pack(). `next_rows` is prefetched. */
    void (*values_decode)(void *sums, void *l, const void *v, ptrdiff_t ldv, attn_dtype dtype,
                          const void *p, int in_rows, int n, int64_t Dv, int rows, int flags,
                          const attni_next_rows *next_rows);

    /* Two operations in one loop, for one query and D = Dv, if attni_has_values_and_next_scores():
     * scores_interleaved() for k, a whole block of keys; values_decode() with in_rows = 1 for v,
     * the values of another block. st may be p. NULL for 64 bits. */
    void (*values_and_next_scores)(void *st, void *mx, const void *q, const void *k, void *sums,
                                   void *l, const void *v, ptrdiff_t ldv, const void *p, int64_t D,
                                   int flags);

    /* out[i*ldo + c] = total[c*W + i] / l[i], for i < rows, c < Dv. The error is at most 0.51 ulp,
     * and no result is -0. The caller sets l to infinity for a query that saw no key
     * (set_divisors() in sdpa/result.c); its total is 0, and so is its result. Returns 1 if a
     * result is NaN or infinite, else 0. */
    int (*finish)(void *out, ptrdiff_t ldo, const void *total, const void *l, int rows, int64_t Dv,
                  int nv);

    /* finish() for sums in rows, the layout of values_decode(). */
    int (*finish_decode)(void *out, ptrdiff_t ldo, const void *sums, const void *l, int rows,
                         int64_t Dv);

    /* A linear layer, W of its outputs at a time, one in each lane. wt is a panel: pack() of W rows
     * of the weight. bias is [W], aligned; sums, x and out may have any alignment. As in scores(),
     * the sum over the components is cut into runs of ATTNI_D_CHAIN: a chain from 0 over each run,
     * then run 0 + run 1 + ... in order. A bias is added last, and a sum of -0 then becomes 0.
     *
     * One call computes one run and adds it to the runs before it, which are in `sums`. For i < n
     * and each output o of the panel: s = a chain from 0 of x[i*ldx + d] * wt[d*W + o] in order of
     * d; if sums is not NULL, s = sums[i*ld_sums + o] + s; if bias is not NULL,
     * s = s + bias[o] + 0; out[i*ldo + o] = s. */
    void (*linear)(const attni_product *product, int nv);

    /* The linear layer for n <= ATTNI_FEW_ROWS rows of x: all runs in one call, from a weight w
     * that is not packed: s = the sum over d < D of x[i*ldx + d] * w[o*ldw + d], for o < outputs.
     * The bits are those of linear(). out is written in whole vectors: after a row's last output,
     * up to the end of its vector, the elements are unspecified. The first `prefetched` rows of w
     * may be prefetched. `prefetched` is larger than `outputs` if the weight has further rows. It
     * is 0 if the weight is small enough to be in a cache. */
    void (*linear_few_rows)(void *out, ptrdiff_t ldo, const void *bias, const void *w,
                            ptrdiff_t ldw, int outputs, int prefetched, const void *x,
                            ptrdiff_t ldx, int n, int64_t D);

    /* This operation and the next three serve the backward pass.
     * out[i] = sum over d < D of a[i*lda + d] * b[i*ldb + d], i < rows, in an unspecified order. */
    void (*dots)(void *out, const void *a, ptrdiff_t lda, const void *b, ptrdiff_t ldb, int rows,
                 int64_t D);

    /* p[j*W + i] = 2^((st[j*W + i] - lse[i]) * c). The difference and the product are rounded; the
     * power is within 1 ulp (1.25 without fused multiply-add) and at most 2^16. Where st is -inf, p
     * is a mark. p may be st. NaN stays NaN. */
    void (*weights_from_lse)(void *p, const void *st, const void *lse, double c, int n, int nv);

    /* dp[j*W + i] becomes the gradient of a score: p * (dp - delta[i]) or, with `kept` (the weights
     * after dropout; may be NULL), kept * dp - p * delta[i]. Where p is a mark, p, dp and kept
     * become 0. */
    void (*score_grads)(void *dp, void *p, void *kept, const void *delta, int n, int nv);

    /* ds *= 1 - tanh(raw * r / cap)^2, the derivative of the soft cap at the raw score; a ds of 0
     * stays 0. The error is at most 8 ulp if the derivative is 1, and one ulp more for each halving
     * of the derivative. */
    void (*cap_grads)(void *ds, const void *raw, int n, double r, double cap, int nv);

    /* The operations from gelu() to column_sums() serve the modules (attn_nn.h); largest() and
     * quantise() serve the key-value cache. They work on float only and are NULL for 64 bits. Their
     * arrays may have any alignment.
     *
     * out[i] = x[i] P(Z <= x[i]) with Z standard normal, i < n: within 5 ulp; a result below
     * 2^-122 may be 0. */
    void (*gelu)(void *out, const void *x, int64_t n);

    /* dx[i] = dout[i] times the derivative of gelu() at x[i]. The derivative is within 5 ulp; below
     * 2^-122 it may be 0. */
    void (*gelu_grad)(void *dx, const void *dout, const void *x, int64_t n);

    /* A step of AdamW on n elements, in float, with multiply-adds: m = beta1 m + rest1 grad,
     * v = beta2 v + rest2 grad^2, param -= decay param + rate m / (root sqrt(v) + eps). An infinite
     * v counts as the largest float; an infinite m stays infinite or becomes NaN. */
    void (*adamw)(void *param, const void *grad, void *m, void *v, int64_t n,
                  const attni_adamw *options);

    /* The largest |x[i]|, i < n; 0 if n is 0; NaN if an element is NaN or infinite. */
    float (*largest)(const void *x, int64_t n);

    /* to[i] = x[i] / scale, rounded to the nearest integer, ties to even, i < n. scale is at least
     * FLT_MIN, and |x[i] / scale| < 127.5. */
    void (*quantise)(int8_t *to, const void *x, float scale, int64_t n);

    /* The largest of n elements, -inf if n is 0. If an element is NaN, the result may be -inf or
     * any of the elements. */
    float (*maximum)(const void *x, int64_t n);

    /* Returns the sum of e^(x[i] - top), i < n, where no x[i] exceeds top. It is computed in
     * double. The exponential of the rounded difference has a relative error of at most 3e-14 if
     * the difference is at least -177, and of at most 7e-14 if it is smaller. A term below 2^-1000
     * counts as 2^-1000. */
    double (*exp_sum)(const void *x, double top, int64_t n);

    /* e[i] = e^(x[i] - top), i < n, where no x[i] exceeds top and |top| <= 1e9: within 2 ulp; 1
     * where x[i] is top; a result below 2^-122 may be 0. Returns their sum, added in double. */
    double (*exp_terms)(void *e, const void *x, float top, int64_t n);

    /* x[i] *= factor, i < n. */
    void (*multiply)(void *x, float factor, int64_t n);

    /* Of two rows, which may be the same: sum[r] = the sum of x[r][i] - shift[r], square[r] = the
     * sum of (x[r][i] - shift[r])^2, i < n, in double. */
    void (*moments)(double sum[2], double square[2], const void *const x[2], const float shift[2],
                    int64_t n);

    /* Layer norm of n elements of a row: out[i] = y * weight[i] + bias[i], with y as in
     * attni_moments. y and out are computed in float with multiply-adds, fused if `fused` is 1.
     * weight and bias may be NULL. */
    void (*norm)(void *out, const void *x, const attni_moments *m, const void *weight,
                 const void *bias, int64_t n);

    /* Of two rows, which may be the same: the sums of g and of g * y, with y as in norm() and
     * g = dout[r][i] * weight[i], rounded. Each lane sums at most 17 terms in float; these sums
     * are added in double. */
    void (*norm_sums)(double sum_g[2], double sum_gy[2], const void *const x[2],
                      const void *const dout[2], const attni_moments m[2], const void *weight,
                      int64_t n);

    /* dx[i] = (g - mean_g) * r + y * times_y, in float. */
    void (*norm_grad)(void *dx, const void *x, const void *dout, const attni_moments *m,
                      const void *weight, int64_t n);

    /* dweight[i] += the sum of dout[r][i] * y, dbias[i] += the sum of dout[r][i], over r < rows, at
     * most ATTNI_NORM_ROWS. m has one element per row. The sum over these rows is in float: the
     * sum of rows 0, 2, 4, ... plus the sum of rows 1, 3, 5, ..., each in order. */
    void (*norm_columns)(double *dweight, double *dbias, const void *const *x,
                         const void *const *dout, const attni_moments *m, int rows, int64_t n);

    /* sums[i] = the sum of sums[i] and x[r*ld + i], over r < rows, in order and in double. */
    void (*column_sums)(double *sums, const void *x, ptrdiff_t ld, int rows, int64_t n);

    /* n rounds of independent multiply-adds in registers (fused if `fused` is 1), to measure the
     * peak. Returns the number of floating-point operations. *sink keeps the compiler from removing
     * the loop. */
    double (*fma_loop)(int64_t n, double *sink);
} attni_kernels;

/* The number of vectors of the next wider tile after one of nv vectors. */
static inline int attni_wider_tile(const attni_kernels *kernels, int nv)
{
    return nv == 2 && kernels->three_vectors ? 3 : nv == 3 ? 4 : 2 * nv;
}

/* May values_and_next_scores() be used for this D? The sums of one row of values must fit in
 * registers. */
static inline int attni_has_values_and_next_scores(const attni_kernels *kernels, int64_t D)
{
    return kernels->values_and_next_scores && (D == 64 || D == 128) && D <= 8 * kernels->lanes;
}

#define ATTNI_ISA(name, ...) extern const attni_kernels attni_##name##_f32, attni_##name##_f64;
#include "../core/isa.def"
#undef ATTNI_ISA

/* The table of an instruction set; NULL if `isa` is not an index into core/isa.def. bits: 32 or
 * 64. */
const attni_kernels *attni_kernels_of(int isa, int bits);

#endif
