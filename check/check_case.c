/* Random numbers, memory and expectations of one case; see check_case.h. */
#include "check_case.h"

#include "../ref/attn_ref.h"
#include "check_halves.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ----------------------------------------------------------------------------- random numbers */

/* splitmix64: all states are equally good, so any number may be a seed. */
uint64_t check_random(check_case *c)
{
    uint64_t z = c->random += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

int64_t check_between(check_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)(check_random(c) % ((uint64_t)(high - low) + 1));
}

bool check_chance(check_case *c, int percent) { return check_between(c, 0, 99) < percent; }

double check_normal(check_case *c)
{
    double sum = 0; /* of eight uniform numbers: nearly normal, and fast */
    uint64_t bits[2] = {check_random(c), check_random(c)};
    for (int i = 0; i < 8; i++)
        sum += (double)(bits[i / 4] >> 16 * (i % 4) & 0xFFFF);
    return (sum / 65536 - 4) * 1.2247448713915890;
}

check_content check_any_content(check_case *c)
{
    return (check_content)check_between(c, CHECK_PLAIN, CHECK_WILD);
}

double check_value(check_case *c, check_content content)
{
    static const double special[] = {NAN,      INFINITY, -INFINITY, 0.0,      -0.0,     FLT_MAX,
                                     -FLT_MAX, 0x1p-149, -0x1p-149, 0x1p-126, 0x1p-130, 1};
    double x = check_normal(c);
    if (content == CHECK_OUTLIERS && check_chance(c, 2))
        return 100 * x;
    if (content == CHECK_SPECIAL && check_chance(c, 10))
        return CHECK_PICK(c, special);
    if (content == CHECK_WILD)
        return ldexp(x, (int)check_between(c, -140, 120));
    return x;
}

/* ----------------------------------------------------------------------------- ending early */

/* A case ends early with a jump to this point: after a signal, or if it cannot continue. */
static sigjmp_buf way_out;
static const char *volatile why;

static pthread_t owner;              /* the thread on whose stack way_out is */
static check_case *volatile running; /* NULL: way_out is not set */

void check_abandon(check_case *c, const char *reason)
{
    (void)c;
    why = reason;
    siglongjmp(way_out, 1);
}

const char *check_guarded(check_case *c, void (*check)(check_case *))
{
    owner = pthread_self();
    running = c;
    const char *reason = NULL;
    if (sigsetjmp(way_out, 1) == 0)
        check(c);
    else
        reason = why;
    running = NULL;
    return reason;
}

check_case *check_running(bool *own_thread)
{
    check_case *c = running;
    *own_thread = c && pthread_equal(owner, pthread_self());
    return c;
}

/* ---------------------------------------------------------------------------------- contexts */

const int check_thread_counts[CHECK_CONTEXTS + 1] = {1, 2, 3, 8, 16};

attn_context *check_context(check_case *c, int threads)
{
    int index = 0;
    while (check_thread_counts[index] != threads)
        if (++index == CHECK_CONTEXTS)
            check_abandon(c, "no context of so many threads");
    attn_context **ctx = &c->run->contexts[c->isa][index];
    if (*ctx)
        return *ctx;
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    options.isa = c->isa_name;
    attn_error err;
    if (attn_context_create(&options, ctx, &err) != ATTN_OK) {
        check_fail(c, "context: %s", err.message);
        check_abandon(c, "no context");
    }
    return *ctx;
}

void check_contexts_destroy(check_run_state *run)
{
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int i = 0; i < CHECK_CONTEXTS; i++)
            attn_context_destroy(run->contexts[isa][i]);
}

/* --------------------------------------------------------------------------------- arrays of R */

static void *take(check_case *c, int64_t count, size_t alignment, check_side side, size_t shift)
{
    void *data =
        check_buffers_take(c->run->buffers, (size_t)count * c->size, alignment, side, shift);
    if (!data)
        check_abandon(c, "out of memory");
    return data;
}

void *check_tile(check_case *c, int64_t rows)
{
    return take(c, rows * c->W, 64, check_chance(c, 50) ? CHECK_LEFT : CHECK_RIGHT, 0);
}

void *check_free(check_case *c, int64_t count)
{
    check_side side = (check_side)check_between(c, CHECK_RIGHT, CHECK_SHIFT);
    return take(c, count, 1, side, (size_t)check_between(c, 0, 63));
}

void *check_filled(check_case *c, int64_t count, check_content content)
{
    void *x = check_free(c, count);
    check_fill(c, x, count, content);
    return x;
}

int64_t check_any_length(check_case *c)
{
    return check_chance(c, 90) ? check_between(c, 0, 70) : check_between(c, 71, 1200);
}

attni_prefetch check_far_away(check_case *c)
{
    return (attni_prefetch){.ld = (ptrdiff_t)check_between(c, -9, 9),
                            .rows = (int)check_between(c, 0, 9),
                            .lines = (int)check_between(c, 1, 9)};
}

attni_next_rows check_next_rows(check_case *c, const void *rows, ptrdiff_t bytes, int64_t n)
{
    return (attni_next_rows){.rows = check_chance(c, 50) ? rows : NULL,
                             .bytes = bytes,
                             .n = n,
                             .count = check_chance(c, 50) ? 9 : 0,
                             .l2_ahead = check_chance(c, 50) ? ATTNI_BLOCK : 0,
                             .l2_only = check_chance(c, 50),
                             .one_vector = check_chance(c, 50)};
}

ptrdiff_t check_any_stride(check_case *c, int64_t size)
{
    return check_chance(c, 20)   ? (ptrdiff_t)size
           : check_chance(c, 60) ? (ptrdiff_t)(size + check_between(c, 0, 9))
           : check_chance(c, 50) ? -(ptrdiff_t)(size + check_between(c, 0, 9))
                                 : (ptrdiff_t)check_between(c, 0, 3);
}

check_rows check_rows_new(check_case *c, int n, int64_t size, ptrdiff_t ld)
{
    const int64_t reach = n > 1 ? (n - 1) * (int64_t)ld : 0, far = reach < 0 ? -reach : reach;
    check_rows r = {.count = n > 0 && size > 0 ? far + size : 0};
    r.memory = check_free(c, r.count);
    r.first = r.count > 0 && reach < 0 ? r.memory + (size_t)far * c->size : r.memory;
    return r;
}

/* n elements at x as the kernels may read them; x is rounded to their type. */
static const char *as_stored(check_case *c, void *x, int64_t n, bool halves, attn_dtype *type)
{
    *type = c->bits == 32 ? ATTN_F32 : ATTN_F64;
    if (!halves || !c->kernels->halves || check_chance(c, 34))
        return x;
    *type = check_chance(c, 50) ? ATTN_BF16 : ATTN_F16;
    /* Memory comes in whole elements of R. The copy lies at its end, so every byte after it is out
     * of bounds. */
    const size_t bytes = 2 * (size_t)n, room = (bytes + c->size - 1) / c->size * c->size;
    char *copy = (char *)check_free(c, (int64_t)(room / c->size)) + (room - bytes);
    for (int64_t i = 0; i < n; i++) {
        const double value = check_get(c, x, i);
        const uint16_t half = *type == ATTN_BF16 ? check_to_bf16(value) : check_to_f16(value);
        memcpy(copy + 2 * i, &half, sizeof half);
        const attn_tensor one = attn_bhtd(copy + 2 * i, *type, 1, 1, 1, 1);
        check_set(c, x, i, ref_get(&one, 0, 0, 0, 0));
    }
    return copy;
}

const char *check_rows_stored(check_case *c, check_rows *r, bool halves, attn_dtype *type)
{
    const char *stored = as_stored(c, r->memory, r->count, halves, type);
    return stored + (size_t)(r->first - r->memory) / c->size * attn_dtype_size(*type);
}

const char *check_interleave_keys(check_case *c, const char *k, attn_dtype type, ptrdiff_t ld,
                                  int n, int64_t D)
{
    const size_t size = attn_dtype_size(type);
    const int64_t units = (D * (int64_t)size + ATTNI_UNIT - 1) / ATTNI_UNIT;
    const int64_t groups = (n + ATTNI_GROUP - 1) / ATTNI_GROUP;
    char *interleaved = check_tile(c, groups * units * ATTNI_GROUP / c->W);
    for (int j = 0; j < n; j++)
        for (int64_t d = 0; d < D; d++) {
            const int64_t at = d * (int64_t)size;
            const int64_t line = j / ATTNI_GROUP * units + at / ATTNI_UNIT;
            char *unit = interleaved + line * ATTNI_LINE + j % ATTNI_GROUP * ATTNI_UNIT;
            if (at % ATTNI_UNIT == 0)
                memset(unit, 0, ATTNI_UNIT);
            memcpy(unit + at % ATTNI_UNIT, k + (j * ld + d) * (ptrdiff_t)size, size);
        }
    return interleaved;
}

double check_get(const check_case *c, const void *x, int64_t i)
{
    float single;
    double wide;
    if (c->bits == 32) {
        memcpy(&single, (const char *)x + 4 * i, 4);
        return single;
    }
    memcpy(&wide, (const char *)x + 8 * i, 8);
    return wide;
}

void check_set(const check_case *c, void *x, int64_t i, double value)
{
    if (c->bits == 32) {
        float single = (float)value;
        memcpy((char *)x + 4 * i, &single, 4);
    } else {
        memcpy((char *)x + 8 * i, &value, 8);
    }
}

void check_fill(check_case *c, void *x, int64_t n, check_content content)
{
    for (int64_t i = 0; i < n; i++)
        check_set(c, x, i, check_value(c, content));
}

double check_round(const check_case *c, double x) { return c->bits == 32 ? (double)(float)x : x; }

double check_fma(const check_case *c, double a, double b, double sum)
{
    if (c->bits == 32) {
        float x = (float)a, y = (float)b, z = (float)sum;
        return c->fused ? fmaf(x, y, z) : x * y + z;
    }
    return c->fused ? fma(a, b, sum) : a * b + sum;
}

double *check_array(check_case *c, int64_t n)
{
    /* The first element of each array links to the array before it. */
    void **x = calloc((size_t)n + 2, sizeof(double));
    if (!x)
        check_abandon(c, "out of memory");
    *x = c->arrays;
    c->arrays = x;
    return (double *)x + 1;
}

void check_arrays_free(check_case *c)
{
    while (c->arrays) {
        void **x = c->arrays;
        c->arrays = *x;
        free(x);
    }
}

double *check_copy(check_case *c, const void *x, int64_t n)
{
    double *copy = check_array(c, n);
    for (int64_t i = 0; i < n; i++)
        copy[i] = check_get(c, x, i);
    return copy;
}

/* -------------------------------------------------------------------------------- expectations */

void check_describe(check_case *c, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(c->what, sizeof c->what, format, list);
    va_end(list);
}

void check_fail(check_case *c, const char *format, ...)
{
    if (c->failed)
        return;
    c->failed = true;
    fprintf(c->run->out, "FAIL %s %s", c->op, c->isa_name);
    if (c->nv)
        fprintf(c->run->out, " f%d nv=%d", c->bits, c->nv);
    fprintf(c->run->out, " %s seed=0x%" PRIx64 ": ", c->what, c->seed);
    va_list list;
    va_start(list, format);
    vfprintf(c->run->out, format, list);
    va_end(list);
    fputc('\n', c->run->out);
    fflush(c->run->out);
}

void check_expect_same(check_case *c, const char *array, const void *got, const double *want,
                       int64_t n, int64_t width, check_zero zero)
{
    check_difference d;
    if (!check_same(check_copy(c, got, n), want, n, zero, &d))
        check_fail(c, "%s row %" PRId64 " column %" PRId64 ": %.17g want exactly %.17g", array,
                   d.at / width, d.at % width, d.got, d.want);
}

void check_expect_within(check_case *c, const char *array, const void *got, const double *want,
                         const double *bound, int64_t n, int64_t width)
{
    check_difference d;
    if (!check_within(check_copy(c, got, n), want, bound, n, &d))
        check_fail(c,
                   "%s row %" PRId64 " column %" PRId64 ": %.17g want %.17g (off by %g, bound %g)",
                   array, d.at / width, d.at % width, d.got, d.want, d.error, d.bound);
}

void check_expect_intact(check_case *c)
{
    if (!check_buffers_intact(c->run->buffers))
        check_fail(c, "wrote outside its arrays");
}

double check_bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
