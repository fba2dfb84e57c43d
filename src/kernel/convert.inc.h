/* Conversions from and to the storage types: load_as() for one vector, and the operations widen(),
 * widen_i8() and narrow(). Included by decode.inc.h. The contracts are in kernel.h.
 *
 * OWN (decode.inc.h) is the storage type equal to R. V_HALVES is defined for instruction
 * sets that convert vectors of bf16, f16 and i8; they do so for R = float only. */
#include <string.h>

#ifdef V_HALVES
/* The first n elements of 2 bytes, at most 4, as a number whose lowest bits are the first one; 0 if
 * n <= 0. */
V_INLINE uint64_t load_halves(const char *p, int n)
{
    uint64_t four = 0;
    uint32_t two;
    uint16_t last;
    if (n >= 4) {
        memcpy(&four, p, sizeof four);
    } else if (n > 0) {
        memcpy(&last, p + 2 * (n - 1), sizeof last);
        four = (uint64_t)last << 16 * (n - 1);
        if (n > 1) {
            memcpy(&two, p, sizeof two);
            four |= two;
        }
    }
    return four;
}
#endif

/* Loads n <= V_LANES elements of `dtype`, converted to R; the other lanes are 0. Nothing past the n
 * elements is read. */
V_INLINE vec load_as(const char *p, const attn_dtype dtype, int n)
{
    if (dtype == OWN)
        return n == V_LANES ? v_loadu((const R_any *)p) : v_load_first((const R_any *)p, n);
#ifdef V_HALVES
    typedef uint64_t halves __attribute__((vector_size(2 * V_LANES)));
    halves all = {0}; /* in a register: a load would wait for several smaller stores */
    if (n == V_LANES)
        memcpy(&all, p, sizeof all);
    else
        for (int i = 0; i < V_LANES; i += 4)
            all[i / 4] = load_halves(p + 2 * i, n - i);
    return dtype == ATTN_BF16 ? v_from_bf16(&all) : v_from_f16(&all);
#else
    return v_set1(0); /* not reached: without V_HALVES, callers pass OWN only */
#endif
}

/* Runs `statement` for each vector of n >= V_LANES elements, from element `at` on. If n is no
 * multiple of V_LANES, the last vector repeats elements of the one before. */
#define EACH_VECTOR(n, statement)                                                                  \
    do {                                                                                           \
        int64_t at = 0;                                                                            \
        for (; at + V_LANES <= (n); at += V_LANES)                                                 \
            statement;                                                                             \
        if (at < (n)) {                                                                            \
            at = (n)-V_LANES;                                                                      \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* ------------------------------------------------------------------------------------ widen */

static void op_widen(void *to_, const void *from, ptrdiff_t ld, attn_dtype dtype, int rows,
                     int64_t D)
{
    R *to = to_;
    const char *row = from;
    const ptrdiff_t bytes = ld * (ptrdiff_t)attn_dtype_size(dtype);
    for (int r = 0; r < rows; r++, row += bytes, to += D) {
#ifdef V_HALVES
        if (D >= V_LANES && (dtype == ATTN_BF16 || dtype == ATTN_F16)) {
            if (dtype == ATTN_BF16)
                EACH_VECTOR(D, v_storeu(to + at, v_from_bf16(row + 2 * at)));
            else
                EACH_VECTOR(D, v_storeu(to + at, v_from_f16(row + 2 * at)));
            continue;
        }
#endif
#if ATTNI_BITS == 32
        attni_load_row_f32(to, row, dtype, 1, D);
#else
        attni_load_row_f64(to, row, dtype, 1, D);
#endif
    }
}

static void op_widen_i8(void *to_, const int8_t *from, ptrdiff_t ld, const float *scales, int rows,
                        int64_t following, int64_t D)
{
    R_any *to = to_;
    (void)following; /* without V_HALVES, nothing is prefetched */
    for (int r = 0; r < rows; r++, to += D) {
        int64_t d = 0;
        const int8_t *row = from + r * ld;
#ifdef V_HALVES
        const vec scale = v_set1(scales[r]);
        /* Prefetches one block ahead. `next` is an integer, since the address may lie outside any
         * array. One query, 32 heads and 4096 keys take 5.9 ms without this prefetch and 3.8 ms
         * with it. They take 3.4 ms with this prefetch and those of scores and values. */
        const uintptr_t next = (uintptr_t)row + (uintptr_t)(ATTNI_BLOCK * ld);
        for (; d + V_LANES <= D; d += V_LANES) {
            if (d % 64 == 0 && r + ATTNI_BLOCK < rows + following)
                __builtin_prefetch((const void *)(next + (uintptr_t)d));
            v_storeu(to + d, v_mul(v_from_i8(row + d), scale));
        }
#endif
        for (; d < D; d++)
            to[d] = (float)row[d] * scales[r];
    }
}

#ifdef V_HALVES
/* Loads a vector, and replaces each x that would round to -0 (-least <= x <= -0) by 0. NaN stays
 * NaN. */
V_INLINE vec without_minus_zero(const R_any *from, R least)
{
    const vec x = v_add(v_loadu(from), v_set1(0));
    return v_select(v_lt(x, v_set1(-least)), x, v_max(v_set1(0), x));
}
#endif

static void op_narrow(void *to_, attn_dtype dtype, const void *from_, int64_t n)
{
#ifdef V_HALVES
    char *to = to_;
    const R_any *from = from_;
    if (n >= V_LANES && (dtype == ATTN_BF16 || dtype == ATTN_F16 || dtype == OWN)) {
        if (dtype == ATTN_BF16)
            EACH_VECTOR(n, v_to_bf16(to + 2 * at, without_minus_zero(from + at, 0x1p-134F)));
        else if (dtype == ATTN_F16)
            EACH_VECTOR(n, v_to_f16(to + 2 * at, without_minus_zero(from + at, 0x1p-25F)));
        else
            EACH_VECTOR(n, v_storeu((R_any *)to_ + at, v_add(v_loadu(from + at), v_set1(0))));
        return;
    }
#endif
    if (n == 0)
        return;
#if ATTNI_BITS == 32
    attni_store_row_f32(to_, dtype, 1, from_, n);
#else
    attni_store_row_f64(to_, dtype, 1, from_, n);
#endif
    attni_clear_signs(to_, dtype, 1, n);
}
