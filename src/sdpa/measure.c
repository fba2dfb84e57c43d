/* Measures what the machine can do at best: multiply-adds from registers (attn_measure_flops) and
 * bytes read from memory (attn_measure_read).
 *
 * A measured speed is compared with these upper bounds. So each is taken from the fastest of many
 * short runs, because an interruption can only make a run slower.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../core/internal.h"
#include "../bf16/unit.h"
#include "../kernel/kernel.h"

#define SHORT_RUN                                                                                  \
    500e-6             /* seconds: long compared with the clock's step, short compared with a
                            time slice */
#define FEWEST_RUNS 16 /* an interruption may take longer than `seconds` */

/* Results are stored here so that the compiler cannot remove the work. */
static _Atomic uint64_t unread;

/* The best rate of `once(arg, n)`, which does n rounds and returns the amount of work. It is called
 * for `seconds`, and at least FEWEST_RUNS times. n grows until a run is long enough to be timed. */
static double best_rate(double (*once)(void *arg, int64_t n), void *arg, double seconds)
{
    double best = 0, start = attni_now(), end;
    int64_t n = 1;
    int runs = 0;
    do {
        double begin = attni_now();
        double work = once(arg, n);
        end = attni_now();
        double took = end - begin;
        if (took > 0 && work / took > best)
            best = work / took;
        if (took < SHORT_RUN && n < INT64_MAX / 2)
            n *= 2;
    } while (++runs < FEWEST_RUNS || end - start < seconds);
    return best;
}

/* ----------------------------------------------------------------------- multiply-adds */

/* A loop of products in registers: fma_loop of kernel.h or `peak` of bf16/unit.h. */
typedef struct products {
    double (*loop)(int64_t n, double *sink);
} products;

static double multiply(void *arg, int64_t n)
{
    const products *p = arg;
    double sink = 0;
    double flop = p->loop(n, &sink);
    atomic_fetch_add_explicit(&unread, sink > 0, memory_order_relaxed);
    return flop;
}

double attn_measure_flops(const char *isa, attn_dtype dtype, double seconds)
{
    ATTNI_DEFAULT_MODE;
    int index = isa ? attni_isa_find(isa) : attni_isa_best();
    if (!attni_isa_usable(index) || !attni_dtype_is_float(dtype))
        return 0;
    const attni_kernels *kernels = attni_kernels_of(index, dtype == ATTN_F64 ? 64 : 32);
    const attni_bf16_unit *unit = attni_bf16_unit_of(kernels->isa);
    products p = {unit && dtype == ATTN_BF16 ? unit->peak : kernels->fma_loop};
    return best_rate(multiply, &p, seconds);
}

/* ----------------------------------------------------------------------------- reading */

#define LINE 64
/* One cache line. It is wider than most machines' registers; the compiler splits it to their
 * size. */
typedef uint64_t words __attribute__((vector_size(LINE), may_alias));

typedef struct region {
    const words *line;
    size_t quarter; /* lines in each of the four streams */
} region;

/* Four streams, because one stream does not keep all line buffers of a core busy on every machine.
 * They are four independent sums. */
static inline __attribute__((always_inline)) uint64_t sum_lines(const region *r, int64_t n)
{
    words a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t round = 0; round < n; round++) {
        const words *p = r->line, *q = p + r->quarter, *s = q + r->quarter, *t = s + r->quarter;
        for (size_t i = 0; i < r->quarter; i++) {
            a += p[i];
            b += q[i];
            c += s[i];
            d += t[i];
        }
        /* Makes the compiler assume that memory has changed, so that the next round reads it
         * again. */
        atomic_signal_fence(memory_order_seq_cst);
    }
    a += b + c + d;
    uint64_t sum = 0;
    for (size_t i = 0; i < LINE / sizeof(uint64_t); i++)
        sum += a[i];
    return sum;
}

static uint64_t sum_generic(const region *r, int64_t n) { return sum_lines(r, n); }

#if defined(__x86_64__)
/* With data in L1, 16-byte loads would limit the rate; wider loads measure the cache. */
__attribute__((target("avx2"))) static uint64_t sum_avx2(const region *r, int64_t n)
{
    return sum_lines(r, n);
}

__attribute__((target("avx512f"))) static uint64_t sum_avx512(const region *r, int64_t n)
{
    return sum_lines(r, n);
}
#endif

static double read_all(void *arg, int64_t n)
{
    const region *r = arg;
    uint64_t (*sum)(const region *, int64_t) = sum_generic;
#if defined(__x86_64__)
    if (attni_isa_usable(attni_isa_find("avx512")))
        sum = sum_avx512;
    else if (attni_isa_usable(attni_isa_find("avx2")))
        sum = sum_avx2;
#endif
    atomic_fetch_add_explicit(&unread, sum(r, n), memory_order_relaxed);
    return (double)n * (double)(4 * LINE * r->quarter);
}

double attn_measure_read(size_t bytes, double seconds)
{
    ATTNI_DEFAULT_MODE;
    region r = {NULL, bytes / (4 * LINE)}; /* the last few bytes of other sizes are left out */
    if (r.quarter == 0)
        return 0;
    size_t used = r.quarter * 4 * LINE;
    unsigned char *memory = attni_aligned_new(LINE, used);
    if (!memory)
        return 0;
    /* Pages that were never written all map to one page of zeros, which fits in any cache. */
    memset(memory, 1, used);
    r.line = (const words *)memory;
    double best = best_rate(read_all, &r, seconds);
    attni_aligned_free(memory);
    return best;
}
