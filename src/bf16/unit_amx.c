/* bf16 attention on the matrix unit of AMX. compute_step() computes one step of bf16_task.c:
 *
 *   scores of one block of 64 keys; maxima and weights of the blocks before it; weighted values of
 *   another block: interleaved in one instruction stream
 *
 * Why. The matrix unit and the vector unit of a core work at the same time only if their
 * instructions are close together, and the weights cost as much time as the products. Each
 * instruction removed from the weights was worth up to 7 % at D = 64. Here a vector of scores takes
 * 11 instructions for its weights and one for the maximum. Two more instructions pack each pair of
 * vectors. What bounds this code is measured in docs/decisions/0024-matrix-unit-bound.md.
 *
 * How. A pair of products multiplies one operand of keys or values by both groups of 16 columns. It
 * occupies the matrix unit for 32 cycles. After each pair, compute_step() computes some rows of
 * weights, so that all 64 rows are spread evenly. All scores of a chunk are complete before its
 * first weight is computed, so each weight is computed once; the scores wait in L2.
 *
 * Tiles: 0, 1 keys or values; 2, 3 queries or weights; 4, 5 and 6, 7 accumulators, alternately.
 */
#if defined(__x86_64__)

#ifdef ATTNI_AMX_EMULATED
#include "../kernel/vec/target_avx512.h"
#elif defined(__clang__)
#pragma clang attribute                                                                            \
    push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,amx-tile,amx-bf16"))), \
         apply_to = function)
#else
#pragma GCC optimize("fp-contract=off") /* the compiler must not fuse what is rounded twice */
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,amx-tile,amx-bf16")
#endif
#include "../kernel/kernel.h"
#include "tile_ops.h"
#include "weigher.h"

static void begin(void)
{
    attni_tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++)
        config.row_bytes[t] = 64, config.rows[t] = 16;
    tile_config(&config);
}

static void end(void) { tile_release(); }

/* st_next = K Q^T: groups of 16 keys, on two sets of accumulators alternately. Each group is stored
 * during the products of the next one. */
INLINE void score_keys(const attni_bf16_step *x, weigher *w, const int rows, const int nv)
{
    const char *k = x->k;
    const ptrdiff_t down = 16 * x->ldk, row = 64 * nv;
    float *st = x->st_next;
    for (int g = 0; g < 4; g += 2, k += 2 * down, st += 2 * 16 * 16 * nv) {
        const attni_bf16 *q = x->q;
        tile_zero(4);
        if (nv == 2)
            tile_zero(5);
        for (int d = 0; d < x->inner_tiles; d++, q += nv * OPERAND) {
            tile_load(0, k + d * 64, x->ldk);
            tile_load(2, q, 64);
            tile_dp_bf16(4, 0, 2);
            if (d == 0 && g)
                tile_store(6, st - 16 * 16 * nv, row);
            if (nv == 2) {
                tile_load(3, q + OPERAND, 64);
                tile_dp_bf16(5, 0, 3);
                if (d == 0 && g)
                    tile_store(7, st - 16 * 16 * nv + 16, row);
            }
            weigh_rows(w, rows, nv);
        }
        q = x->q;
        tile_zero(6);
        if (nv == 2)
            tile_zero(7);
        for (int d = 0; d < x->inner_tiles; d++, q += nv * OPERAND) {
            tile_load(1, k + down + d * 64, x->ldk);
            tile_load(2, q, 64);
            tile_dp_bf16(6, 1, 2);
            if (d == 0)
                tile_store(4, st, row);
            if (nv == 2) {
                tile_load(3, q + OPERAND, 64);
                tile_dp_bf16(7, 1, 3);
                if (d == 0)
                    tile_store(5, st + 16, row);
            }
            weigh_rows(w, rows, nv);
        }
    }
    tile_store(6, st - 16 * 16 * nv, row);
    if (nv == 2)
        tile_store(7, st - 16 * 16 * nv + 16, row);
}

/* Starts an accumulator of 16 components, from 0 or from the chunk's sums so far. */
#define START(tile, from)                                                                          \
    do {                                                                                           \
        if (x->first)                                                                              \
            tile_zero(tile);                                                                       \
        else                                                                                       \
            tile_load(tile, from, row);                                                            \
    } while (0)

/* acc (+)= V^T P, in panels of 16 components. Panels use two sets of accumulators alternately. The
 * sum over 64 keys takes two operands of 32 keys. */
INLINE void add_values(const attni_bf16_step *x, weigher *w, const int rows, const int nv)
{
    const ptrdiff_t row = 64 * nv, panel = 16 * 16 * nv;
    const attni_bf16 *p = x->p_before;
    for (int d = 0; d < x->panels; d += 2) {
        float *a = x->acc + d * panel, *b = a + panel;
        START(4, a);
        if (nv == 2)
            START(5, a + 16);
        for (int half = 0; half < 2; half++) {
            tile_load(0, x->vt + (half * x->panels + d) * OPERAND, 64);
            tile_load(2, p + half * nv * OPERAND, 64);
            tile_dp_bf16(4, 0, 2);
            if (half == 0 && d)
                tile_store(6, a - panel, row);
            if (nv == 2) {
                tile_load(3, p + (half * nv + 1) * OPERAND, 64);
                tile_dp_bf16(5, 0, 3);
                if (half == 0 && d)
                    tile_store(7, a - panel + 16, row);
            }
            weigh_rows(w, rows, nv);
        }
        START(6, b);
        if (nv == 2)
            START(7, b + 16);
        for (int half = 0; half < 2; half++) {
            tile_load(1, x->vt + (half * x->panels + d + 1) * OPERAND, 64);
            tile_load(2, p + half * nv * OPERAND, 64);
            tile_dp_bf16(6, 1, 2);
            if (half == 0)
                tile_store(4, a, row);
            if (nv == 2) {
                tile_load(3, p + (half * nv + 1) * OPERAND, 64);
                tile_dp_bf16(7, 1, 3);
                if (half == 0)
                    tile_store(5, a + 16, row);
            }
            weigh_rows(w, rows, nv);
        }
    }
    if (x->panels == 0)
        return;
    tile_store(6, x->acc + (x->panels - 1) * panel, row);
    if (nv == 2)
        tile_store(7, x->acc + (x->panels - 1) * panel + 16, row);
}

INLINE void step(const attni_bf16_step *x, const int rows, const int nv)
{
    weigher w;
    weigh_begin(&w, x, nv);
    if (x->k)
        score_keys(x, &w, rows, nv);
    if (x->p_before)
        add_values(x, &w, rows, nv);
    weigh_end(&w, x, ROWS, rows, nv);
}

static void compute_step(const attni_bf16_step *x)
{
    /* Pairs of products, between which the 64 rows of weights are spread. */
    const int pairs = (x->k ? 4 * x->inner_tiles : 0) + (x->p_before ? 2 * x->panels : 0);
    if (x->nv == 1)
        step(x, 8, 1);
    else if (pairs < 16)
        step(x, 8, 2);
    else if (pairs < 32)
        step(x, 4, 2);
    else
        step(x, 2, 2);
}

/* ----------------------------------------------------------------------------- the backward */

/* Adds a square of 16 x 16 sums to c. */
static __attribute__((noinline)) void join_square(const attni_bf16_product *x, const float *sums,
                                                  int m, int n)
{
    for (int i = 0; i < 16; i++) {
        float *to = x->c + (m + i) * x->ldc + n;
        const __m512 s = _mm512_load_ps(sums + 16 * i), before = _mm512_load_ps(to);
        _mm512_store_ps(to, x->factors ? _mm512_fmadd_ps(s, _mm512_load_ps(x->factors + n), before)
                                       : _mm512_add_ps(before, s));
    }
}

#define FINISH(tile, m, n)                                                                         \
    do {                                                                                           \
        if (x->add) {                                                                              \
            tile_store(tile, sums, 64);                                                            \
            join_square(x, sums, m, n);                                                            \
        } else {                                                                                   \
            tile_store(tile, x->c + (m)*x->ldc + (n), 4 * x->ldc);                                 \
        }                                                                                          \
    } while (0)

/* Multiplies 16 rows, or 32 if `both`, by 32 columns. */
INLINE void multiply_square(const attni_bf16_product *x, int m, int n, const bool both)
{
    float sums[256] __attribute__((aligned(64)));
    const attni_bf16 *a = x->a + m / 16 * x->rows16, *b = x->b + n / 16 * x->columns16;
    tile_zero(4);
    tile_zero(5);
    tile_zero(6);
    tile_zero(7);
    for (int r = 0; r < x->inner_tiles; r++, a += x->inner_stride, b += x->pairs16) {
        tile_load(2, b, 2 * x->pair);
        tile_load(0, a, 2 * x->row);
        tile_dp_bf16(4, 0, 2);
        tile_load(3, b + x->columns16, 2 * x->pair);
        tile_dp_bf16(5, 0, 3);
        if (both) {
            tile_load(1, a + x->rows16, 2 * x->row);
            tile_dp_bf16(6, 1, 2);
            tile_dp_bf16(7, 1, 3);
        }
    }
    FINISH(4, m, n);
    FINISH(5, m, n + 16);
    if (both) {
        FINISH(6, m + 16, n);
        FINISH(7, m + 16, n + 16);
    }
}

static void multiply(const attni_bf16_product *x)
{
    for (int n = 0; n < x->n; n += 32) {
        int m = 0;
        for (; m + 32 <= x->m; m += 32)
            multiply_square(x, m, n, true);
        if (m < x->m)
            multiply_square(x, m, n, false);
    }
}

/* ------------------------------------------------------------------------------ the decode path */

/* For a few queries a tile would be mostly empty, so the decode path uses multiply-adds of floats.
 * They give the bits of a tile product: of 16 pairs, the even elements are one chain and the odd
 * ones another, and the sum of both is then added. */
#define MAX_DECODE_ROWS 4
typedef struct chain {
    __m512 sums, even, odd;
} chain;

INLINE chain chain_from(__m512 sums)
{
    return (chain){sums, _mm512_setzero_ps(), _mm512_setzero_ps()};
}

INLINE chain chain_dot(chain c, __m512i a, __m512i b)
{
    c.even = _mm512_fmadd_ps(as_float(_mm512_slli_epi32(a, 16)), as_float(_mm512_slli_epi32(b, 16)),
                             c.even);
    c.odd = _mm512_fmadd_ps(as_float(_mm512_and_si512(a, high_half())),
                            as_float(_mm512_and_si512(b, high_half())), c.odd);
    return c;
}

INLINE chain chain_end_run(chain c)
{
    return chain_from(_mm512_add_ps(c.sums, _mm512_add_ps(c.even, c.odd)));
}

INLINE __m512 chain_sums(chain c) { return chain_end_run(c).sums; }

/* Like a tile product: denormal numbers count as 0, sums round to nearest, nothing traps. The asm
 * statements keep the compiler from moving arithmetic, which reads and writes memory, past a change
 * of mode. */
INLINE unsigned chain_mode(void)
{
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    __asm__ volatile("" : : : "memory");
    return mode;
}

INLINE void chain_mode_end(unsigned mode)
{
    __asm__ volatile("" : : : "memory");
    _mm_setcsr(mode);
}

#include "rows.h"

static double peak(int64_t n, double *sink)
{
    char zeros[1024] = {0};
    begin();
    tile_load(0, zeros, 64);
    tile_load(1, zeros, 64);
    tile_zero(4);
    tile_zero(5);
    tile_zero(6);
    tile_zero(7);
    for (int64_t r = 0; r < n; r++) {
        tile_dp_bf16(4, 0, 1);
        tile_dp_bf16(5, 0, 1);
        tile_dp_bf16(6, 0, 1);
        tile_dp_bf16(7, 0, 1);
    }
    end();
    *sink = 0;
    return 4 * 2.0 * 16 * 16 * 32 * (double)n;
}

const attni_bf16_unit attni_bf16_amx = {
    .rows = MAX_DECODE_ROWS,
    .granule = 32,
    .keys = ROWS,
    .pipelined = true,
    .begin = begin,
    .end = end,
    .compute_step = compute_step,
    .pack_values = attni_bf16_pack_values,
    .multiply = multiply,
    .row_scores = row_scores,
    .row_values = row_values,
    .row_values_and_next_scores = row_values_and_next_scores,
    .peak = peak,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
