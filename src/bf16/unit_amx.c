/* bf16 attention on the matrix unit of AMX: the scores of a block, the weights of a block, the
 * weighted values of a chunk, the products of the backward, and the decode path.
 *
 * If the core runs nothing else, tiles are loaded during products. If another thread runs on the
 * same core, loads, products and stores of tiles follow each other instead: on a Xeon of 2.5 GHz a
 * product then takes 17 ns, a load 12 and a store 11 (docs/decisions/0045). So products
 * share loads:
 *
 *   scores of 32 queries, D up to 64   queries stay in tiles 0 to 3: two loads for four products
 *   other scores; values               2 x 2 tiles of sums, four loads for four products; with 16
 *                                      queries 4 x 1, five loads
 *
 * The sums of weighted values stay in tiles for a whole chunk, and are stored once.
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

/* Starts four tiles of sums. */
INLINE void zero_sums(void)
{
    tile_zero(4);
    tile_zero(5);
    tile_zero(6);
    tile_zero(7);
}

/* ------------------------------------------------------------------------------- scores */

/* Raises the maxima `top` to those of 16 rows of scores. */
INLINE void raise_top(__m512 *top, const float *st, const int nv)
{
    UNROLL for (int r = 0; r < 16; r++)
    {
        UNROLL for (int g = 0; g < nv; g++) top[g] =
            _mm512_max_ps(top[g], _mm512_load_ps(st + (r * nv + g) * 16));
    }
}

/* 32 queries, D = 32 or 64. */
INLINE void score_narrow(const attni_bf16_scores *x, __m512 *top, const int inner_tiles)
{
    const char *k = x->k;
    float *st = x->st;
    if (!x->same_q) {
        tile_load(0, x->q, 64);
        tile_load(1, x->q + OPERAND, 64);
        if (inner_tiles == 2) {
            tile_load(2, x->q + 2 * OPERAND, 64);
            tile_load(3, x->q + 3 * OPERAND, 64);
        }
    }
    for (int j = 0; j < ROWS; j += 16, k += 16 * x->ldk, st += 16 * 32) {
        tile_zero(4);
        tile_zero(5);
        tile_load(6, k, x->ldk);
        tile_dp_bf16(4, 6, 0);
        tile_dp_bf16(5, 6, 1);
        if (inner_tiles == 2) {
            tile_load(7, k + 64, x->ldk);
            tile_dp_bf16(4, 7, 2);
            tile_dp_bf16(5, 7, 3);
        }
        if (j)
            raise_top(top, st - 16 * 32, 2);
        tile_store(4, st, 128);
        tile_store(5, st + 16, 128);
    }
    raise_top(top, st - 16 * 32, 2);
}

/* 32 queries, any D. */
INLINE void score_wide(const attni_bf16_scores *x, __m512 *top)
{
    const char *k = x->k;
    const ptrdiff_t down = 16 * x->ldk;
    float *st = x->st;
    for (int j = 0; j < ROWS; j += 32, k += 2 * down, st += 32 * 32) {
        const attni_bf16 *q = x->q;
        zero_sums();
        for (int d = 0; d < x->inner_tiles; d++, q += 2 * OPERAND) {
            tile_load(0, k + d * 64, x->ldk);
            tile_load(2, q, 64);
            tile_dp_bf16(4, 0, 2);
            tile_load(3, q + OPERAND, 64);
            tile_dp_bf16(5, 0, 3);
            tile_load(1, k + down + d * 64, x->ldk);
            tile_dp_bf16(6, 1, 2);
            tile_dp_bf16(7, 1, 3);
        }
        if (j) {
            raise_top(top, st - 32 * 32, 2);
            raise_top(top, st - 16 * 32, 2);
        }
        tile_store(4, st, 128);
        tile_store(5, st + 16, 128);
        tile_store(6, st + 16 * 32, 128);
        tile_store(7, st + 16 * 32 + 16, 128);
    }
    raise_top(top, st - 32 * 32, 2);
    raise_top(top, st - 16 * 32, 2);
}

/* 16 queries, any D. */
INLINE void score_16(const attni_bf16_scores *x, __m512 *top)
{
    const char *k = x->k;
    const ptrdiff_t down = 16 * x->ldk;
    float *st = x->st;
    zero_sums();
    for (int d = 0; d < x->inner_tiles; d++, k += 64) {
        tile_load(2, x->q + d * OPERAND, 64);
        tile_load(0, k, x->ldk);
        tile_dp_bf16(4, 0, 2);
        tile_load(1, k + down, x->ldk);
        tile_dp_bf16(5, 1, 2);
        tile_load(0, k + 2 * down, x->ldk);
        tile_dp_bf16(6, 0, 2);
        tile_load(1, k + 3 * down, x->ldk);
        tile_dp_bf16(7, 1, 2);
    }
    tile_store(4, st, 64);
    tile_store(5, st + 16 * 16, 64);
    tile_store(6, st + 32 * 16, 64);
    tile_store(7, st + 48 * 16, 64);
    for (int j = 0; j < ROWS; j += 16)
        raise_top(top, st + j * 16, 1);
}

static void scores(const attni_bf16_scores *x)
{
    __m512 top[2] = {_mm512_set1_ps(-__builtin_inff()), _mm512_set1_ps(-__builtin_inff())};
    if (x->nv == 1)
        score_16(x, top);
    else if (x->inner_tiles == 1)
        score_narrow(x, top, 1);
    else if (x->inner_tiles == 2)
        score_narrow(x, top, 2);
    else
        score_wide(x, top);
    for (int g = 0; x->highest && g < x->nv; g++) {
        float *highest = x->highest->top + 16 * g;
        _mm512_store_ps(highest, _mm512_max_ps(_mm512_load_ps(highest), top[g]));
    }
}

static void weights(const attni_bf16_weights *x)
{
    if (x->nv == 1)
        weigh_block(x, ROWS, 1);
    else
        weigh_block(x, ROWS, 2);
}

/* ------------------------------------------------------------------------------- values */

/* The sums of components 16 d to 16 d + 31 (panels d and d + 1), for 32 queries. `half` counts the
 * halves of blocks, of 32 keys. */
INLINE void add_panels(const attni_bf16_values *x, int d)
{
    float *acc = x->acc + d * 16 * 32;
    zero_sums();
    for (int half = 0; half < 2 * x->count; half++) {
        const attni_bf16 *vt = x->blocks[half / 2].vt + (half % 2 * x->panels + d) * OPERAND;
        const attni_bf16 *p = x->blocks[half / 2].p + half % 2 * 2 * OPERAND;
        tile_load(0, vt, 64);
        tile_load(2, p, 64);
        tile_dp_bf16(4, 0, 2);
        tile_load(3, p + OPERAND, 64);
        tile_dp_bf16(5, 0, 3);
        tile_load(1, vt + OPERAND, 64);
        tile_dp_bf16(6, 1, 2);
        tile_dp_bf16(7, 1, 3);
    }
    tile_store(4, acc, 128);
    tile_store(5, acc + 16, 128);
    tile_store(6, acc + 16 * 32, 128);
    tile_store(7, acc + 16 * 32 + 16, 128);
}

/* Two or four panels, from d on, for 16 queries. */
INLINE void add_panels_16(const attni_bf16_values *x, int d, const int panels)
{
    float *acc = x->acc + d * 16 * 16;
    zero_sums();
    for (int half = 0; half < 2 * x->count; half++) {
        const attni_bf16 *vt = x->blocks[half / 2].vt + (half % 2 * x->panels + d) * OPERAND;
        tile_load(2, x->blocks[half / 2].p + half % 2 * OPERAND, 64);
        tile_load(0, vt, 64);
        tile_dp_bf16(4, 0, 2);
        tile_load(1, vt + OPERAND, 64);
        tile_dp_bf16(5, 1, 2);
        if (panels == 4) {
            tile_load(0, vt + 2 * OPERAND, 64);
            tile_dp_bf16(6, 0, 2);
            tile_load(1, vt + 3 * OPERAND, 64);
            tile_dp_bf16(7, 1, 2);
        }
    }
    tile_store(4, acc, 64);
    tile_store(5, acc + 16 * 16, 64);
    if (panels == 4) {
        tile_store(6, acc + 32 * 16, 64);
        tile_store(7, acc + 48 * 16, 64);
    }
}

/* Loads and transposes 16 x 16 elements of 32 bits. */
INLINE void load_transposed(__m512 *r, const void *from)
{
    UNROLL for (int i = 0; i < 16; i++) r[i] = _mm512_load_ps((const float *)from + 16 * i);
    v_transpose(r);
}

/* 32 components of one value; if `zero`, NaN and infinity become 0, and *nonfinite becomes true if
 * there was one. */
INLINE __m512i load_32(const attni_bf16 *v, __mmask32 here, const bool zero, bool *nonfinite)
{
    const __m512i x = _mm512_maskz_loadu_epi16(here, v), exponent = _mm512_set1_epi16(0x7f80);
    if (!zero)
        return x;
    const __mmask32 mask = _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
    *nonfinite |= mask != 0;
    return _mm512_maskz_mov_epi16(~mask, x);
}

/* Pairs of values for add_few(): [32][Dv][2], components in the order of component_of(). One
 * instruction gives 16 pairs in this order. */
static bool pack_few(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                     bool zero)
{
    bool nonfinite = false;
    for (int j = 0; j < ROWS; j += 2)
        for (int64_t c = 0; c == 0 || c < Dv; c += 32, vt += 64) {
            const __mmask32 here = first32(Dv - c);
            __m512i a = _mm512_setzero_si512(), b = a;
            if (j < n)
                a = load_32(v + j * ldv + c, here, zero, &nonfinite);
            if (j + 1 < n)
                b = load_32(v + (j + 1) * ldv + c, here, zero, &nonfinite);
            _mm512_store_si512(vt, _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(vt + 32, _mm512_unpackhi_epi16(a, b));
        }
    return nonfinite;
}

/* The component at place i of panel d: of each 8 components, the first 4 are in an even panel, the
 * others in the next one. */
INLINE int component_of(int d, int i) { return d / 2 * 32 + i / 4 * 8 + d % 2 * 4 + i % 4; }

/* Two or four panels, from d on, with weights as rows of the left operand and pairs of values as
 * the right one. p has bf16 weights, [16 queries][32 keys] for each 32 keys; its type is float
 * because load_transposed() moves two bf16 as one float. The bits are those of add_panels_16(). */
INLINE void add_few(const attni_bf16_values *x, const float *p, int d, const int panels)
{
    float sums[4 * 256] __attribute__((aligned(64)));
    const ptrdiff_t pair = 2 * 16 * x->panels, bytes = 2 * pair;
    zero_sums();
    for (int half = 0; half < 2 * x->count; half++, p += 256) {
        const attni_bf16 *v = x->blocks[half / 2].vt + half % 2 * 16 * pair + 32 * d;
        tile_load(2, p, 64);
        tile_load(0, v, bytes);
        tile_dp_bf16(4, 2, 0);
        tile_load(1, v + 32, bytes);
        tile_dp_bf16(5, 2, 1);
        if (panels == 4) {
            tile_load(0, v + 64, bytes);
            tile_dp_bf16(6, 2, 0);
            tile_load(1, v + 96, bytes);
            tile_dp_bf16(7, 2, 1);
        }
    }
    tile_store(4, sums, 64);
    tile_store(5, sums + 256, 64);
    if (panels == 4) {
        tile_store(6, sums + 512, 64);
        tile_store(7, sums + 768, 64);
    }
    for (int u = 0; u < panels; u++) {
        __m512 r[16];
        load_transposed(r, sums + u * 256);
        UNROLL for (int i = 0; i < 16; i++)
            _mm512_store_ps(x->acc + component_of(d + u, i) * 16, r[i]);
    }
}

static __attribute__((noinline)) void values_of_few(const attni_bf16_values *x)
{
    float p[ATTNI_BF16_BLOCKS * 2 * 256] __attribute__((aligned(64)));
    for (int half = 0; half < 2 * x->count; half++) {
        __m512 r[16];
        load_transposed(r, x->blocks[half / 2].p + half % 2 * OPERAND);
        UNROLL for (int i = 0; i < 16; i++) _mm512_store_ps(p + half * 256 + 16 * i, r[i]);
    }
    int d = 0;
    for (; d + 4 <= x->panels; d += 4)
        add_few(x, p, d, 4);
    if (d < x->panels)
        add_few(x, p, d, 2);
}

static void values(const attni_bf16_values *x)
{
    int d = 0;
    if (x->few) {
        values_of_few(x);
        return;
    }
    for (; x->nv == 2 && d < x->panels; d += 2)
        add_panels(x, d);
    for (; d + 4 <= x->panels; d += 4)
        add_panels_16(x, d, 4);
    if (d < x->panels)
        add_panels_16(x, d, 2);
}

/* ----------------------------------------------------------------------------- the backward */

/* Adds 16 x 16 sums, times `factors` if there are any, to c. */
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
    zero_sums();
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
#define CHAINS_HAVE_A_MODE 1
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
 * statements are barriers for loads and stores. So the arithmetic, whose operands are loaded and
 * whose results are stored, stays between two changes of mode. */
INLINE unsigned chain_mode(void)
{
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(ATTNI_BF16_MXCSR);
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
    zero_sums();
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
    .blocks = ATTNI_BF16_BLOCKS,
    .tile_bytes = 1024 * 1024, /* such CPUs have 2 MiB of L2 or more */
    .begin = begin,
    .end = end,
    .scores = scores,
    .weights = weights,
    .values = values,
    .pack_values = attni_bf16_pack_values,
    .pack_few = pack_few,
    .multiply = multiply,
    .row_scores = row_scores,
    .row_values = row_values,
    .row_products = row_products,
    .row_values_and_next_scores = row_values_and_next_scores,
    .peak = peak,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
