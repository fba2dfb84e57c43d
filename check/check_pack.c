/* pack, widen, narrow, bias and finish: rows of the caller's arrays into tiles and back. These
 * operations sum nothing, so every element except a quotient is compared bit for bit. Their other
 * possible error is to access a byte outside their arrays. */
#include "check_case.h"

#include "../src/core/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Row sizes: every remainder of every vector, and the sizes that models use. */
static const int64_t row_sizes[] = {0,  1,  2,  3,  4,  5,   7,   8,   9,   11, 12,
                                    13, 15, 16, 17, 23, 31,  32,  33,  40,  47, 59,
                                    63, 64, 65, 80, 96, 111, 127, 128, 129, 256};

void check_pack(check_case *c)
{
    static const double factors[] = {1, 2, 0.5, 0x1p-30, 0x1p20, -1};
    int rows = (int)check_between(c, 0, c->W);
    int64_t D = CHECK_PICK(c, row_sizes);
    ptrdiff_t ld = check_any_stride(c, D);
    double mul = CHECK_PICK(c, factors);
    check_content content = check_any_content(c);
    check_describe(c, "rows=%d D=%" PRId64 " ld=%td mul=%g", rows, D, ld, mul);

    char *q = check_rows_new(c, rows, D, ld).first;
    for (int i = 0; i < rows; i++)
        check_fill(c, q + i * ld * (ptrdiff_t)c->size, D, content);
    void *qt = check_tile(c, D);

    double *want = check_array(c, D * c->W);
    for (int i = 0; i < rows; i++)
        for (int64_t d = 0; d < D; d++)
            want[d * c->W + i] = check_round(c, check_get(c, q, i * ld + d) * mul);

    c->kernels->pack(qt, q, ld, rows, D, mul, c->nv);
    check_expect_same(c, "qt", qt, want, D * c->W, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, rows * D, c->kernels->pack(qt, q, ld, rows, D, mul, c->nv));
}

/* The error allowed in a quotient: 1.01 units in the last place, 0.51 for the kernel and 0.5 for
 * the expected quotient, which check_round() rounds; and the smallest denormal number. A sum next
 * to infinity may or may not overflow. */
static double quotient_bound(const check_case *c, double n, double by)
{
    attn_dtype type = c->bits == 32 ? ATTN_F32 : ATTN_F64;
    return 1.01 * check_ulp(type, n / by) * (isfinite(n / by) ? 1 : 0) + check_ulp(type, 0);
}

/* The sums `total`, in lanes or, as values_decode() has them, in rows. */
typedef struct finish_case {
    bool in_rows;
    int rows;
    int64_t Dv, count; /* count: elements of total */
    void *total, *l;
} finish_case;

static int64_t sum_at(const check_case *c, const finish_case *f, int i, int64_t d)
{
    const int64_t lanes = c->kernels->lanes;
    return f->in_rows ? i * ((f->Dv + lanes - 1) / lanes * lanes) + d : d * c->W + i;
}

static void fill_sums(check_case *c, const finish_case *f)
{
    const check_content content = check_any_content(c);
    const bool one_bad = check_chance(c, 30); /* a single element is not finite */
    check_fill(c, f->total, f->count, one_bad ? CHECK_PLAIN : content);
    for (int i = 0; i < c->W; i++) {
        const bool empty = check_chance(c, 10); /* a row that sees no key */
        check_set(c, f->l, i,
                  empty ? INFINITY
                        : exp2((double)check_between(c, -1, 40)) + (double)check_between(c, 0, 9));
        for (int64_t d = 0; d < f->Dv && empty && (i < f->rows || !f->in_rows); d++)
            check_set(c, f->total, sum_at(c, f, i, d), 0);
    }
    if (one_bad && f->rows > 0 && f->Dv > 0) {
        const int i = (int)check_between(c, 0, f->rows - 1);
        check_set(c, f->total, sum_at(c, f, i, check_between(c, 0, f->Dv - 1)),
                  check_chance(c, 50)   ? NAN
                  : check_chance(c, 50) ? INFINITY
                                        : -INFINITY);
    }
}

static int call_finish(const check_case *c, const finish_case *f, char *out, ptrdiff_t ld)
{
    return f->in_rows ? c->kernels->finish_decode(out, ld, f->total, f->l, f->rows, f->Dv)
                      : c->kernels->finish(out, ld, f->total, f->l, f->rows, f->Dv, c->nv);
}

static void run_finish(check_case *c, bool in_rows)
{
    finish_case f = {.in_rows = in_rows, .Dv = CHECK_PICK(c, row_sizes)};
    f.rows = (int)check_between(c, 0, in_rows ? c->kernels->max_decode_rows : c->W);
    ptrdiff_t ld = (ptrdiff_t)(f.Dv + check_between(c, 0, 9)) * (check_chance(c, 20) ? -1 : 1);
    check_describe(c, "rows=%d Dv=%" PRId64 " ld=%td", f.rows, f.Dv, ld);
    f.count = in_rows ? sum_at(c, &f, c->kernels->max_decode_rows, 0) : f.Dv * c->W;
    f.total = check_tile(c, (f.count + c->W - 1) / c->W), f.l = check_tile(c, 1);
    fill_sums(c, &f);

    /* The rows and the gaps between them; the gaps must keep their contents. */
    char *out = check_rows_new(c, f.rows, f.Dv, ld).first;
    int64_t gap = ld < 0 ? -ld : ld;
    int64_t span = f.rows > 0 && f.Dv > 0 ? (f.rows - 1) * gap + f.Dv : 0;
    char *first = ld < 0 && span > 0 ? out + (f.rows - 1) * ld * (ptrdiff_t)c->size : out;
    double *want = check_copy(c, first, span), *bound = check_array(c, span);
    bool bad = false;
    for (int i = 0; i < f.rows; i++)
        for (int64_t d = 0; d < f.Dv; d++) {
            const double n = check_get(c, f.total, sum_at(c, &f, i, d)), by = check_get(c, f.l, i);
            int64_t row = ld < 0 ? f.rows - 1 - i : i;
            want[row * gap + d] = check_round(c, n / by);
            bound[row * gap + d] = quotient_bound(c, n, by);
            bad = bad || !isfinite(want[row * gap + d]);
        }

    int told = call_finish(c, &f, out, ld);
    check_expect_within(c, "out", first, want, bound, span, gap ? gap : 1);
    for (int64_t at = 0; at < span; at++)
        if (check_get(c, first, at) == 0 && signbit(check_get(c, first, at)) && bound[at] > 0)
            check_fail(c, "out holds -0");
    if (told != bad)
        check_fail(c, "returned %d, but the result is %s", told, bad ? "not all finite" : "finite");
    check_expect_intact(c);
    CHECK_BENCH(c, f.rows * f.Dv, call_finish(c, &f, out, ld));
}

void check_finish(check_case *c) { run_finish(c, false); }

/* The elements that pad a row of sums to whole vectors may hold anything. */
void check_finish_decode(check_case *c) { run_finish(c, true); }

/* Widens rows of every float type to R; the expectation decodes one element at a time. */
void check_widen(check_case *c)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    const attn_dtype type = CHECK_PICK(c, types);
    const int rows = (int)check_between(c, 0, ATTNI_BLOCK);
    const int64_t D = CHECK_PICK(c, row_sizes), ld = D + check_between(c, 0, 9);
    const int64_t span = rows > 0 && D > 0 ? (rows - 1) * ld + D : 0;
    const size_t bytes = attn_dtype_size(type);
    check_describe(c, "rows=%d D=%" PRId64 " ld=%" PRId64 " %s", rows, D, ld,
                   attn_dtype_name(type));
    /* Memory comes in whole elements of R. `from` lies at its end, so every byte after it is out of
     * bounds. */
    char *from = check_free(c, (int64_t)(((size_t)span * bytes + c->size - 1) / c->size));
    from += ((size_t)span * bytes + c->size - 1) / c->size * c->size - (size_t)span * bytes;
    void *to = check_free(c, rows * D);
    double *want = check_array(c, rows * D);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) {
            const double x = check_value(c, check_chance(c, 80) ? CHECK_PLAIN : CHECK_SPECIAL);
            char *at = from + (size_t)(r * ld + d) * bytes;
            attni_store_row_f64(at, type, 1, &x, 1);
            attni_load_row_f64(&want[r * D + d], at, type, 1, 1);
            want[r * D + d] = check_round(c, want[r * D + d]);
        }
    c->kernels->widen(to, from, (ptrdiff_t)ld, type, rows, D);
    check_expect_same(c, "to", to, want, rows * D, D ? D : 1, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
    CHECK_BENCH(c, rows * D, c->kernels->widen(to, from, (ptrdiff_t)ld, type, rows, D));
}

/* Every i8 value, times scales of any size: one product of floats. */
void check_widen_i8(check_case *c)
{
    const int rows = (int)check_between(c, 0, ATTNI_BLOCK);
    const int64_t D = CHECK_PICK(c, row_sizes), ld = D + check_between(c, 0, 9);
    const int64_t span = rows > 0 && D > 0 ? (rows - 1) * ld + D : 0;
    const int64_t following = check_chance(c, 50) ? 0 : ATTNI_BLOCK; /* never read */
    check_describe(c, "rows=%d D=%" PRId64 " ld=%" PRId64, rows, D, ld);
    const int64_t elements = (span + (int64_t)c->size - 1) / (int64_t)c->size;
    int8_t *from = check_free(c, elements); /* memory after its end is out of bounds */
    from += elements * (int64_t)c->size - span;
    float scales[ATTNI_BLOCK];
    void *to = check_free(c, rows * D);
    double *want = check_array(c, rows * D);
    for (int64_t r = 0; r < rows; r++) {
        scales[r] = ldexpf((float)check_normal(c), (int)check_between(c, -30, 30));
        for (int64_t d = 0; d < D; d++) {
            from[r * ld + d] = (int8_t)check_between(c, -128, 127);
            want[r * D + d] = (double)(float)((double)from[r * ld + d] * (double)scales[r]);
        }
    }
    c->kernels->widen_i8(to, from, (ptrdiff_t)ld, scales, rows, following, D);
    check_expect_same(c, "to", to, want, rows * D, D ? D : 1, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
    CHECK_BENCH(c, rows * D,
                c->kernels->widen_i8(to, from, (ptrdiff_t)ld, scales, rows, following, D));
}

/* Compares with the row functions of dtype.c, which are tested on every number. -0 becomes 0. */
void check_narrow(check_case *c)
{
    static const attn_dtype types[] = {ATTN_F16, ATTN_BF16, ATTN_F32, ATTN_F64};
    const attn_dtype type = CHECK_PICK(c, types);
    const int64_t n = CHECK_PICK(c, row_sizes);
    const size_t bytes = (size_t)n * attn_dtype_size(type);
    const check_content content = check_any_content(c);
    check_describe(c, "n=%" PRId64 " %s", n, attn_dtype_name(type));
    void *from = check_free(c, n);
    check_fill(c, from, n, content);
    /* Memory comes in whole elements of R. `to` lies at its end, so every byte after it is out of
     * bounds. */
    const size_t room = (bytes + c->size - 1) / c->size * c->size;
    char *to = (char *)check_free(c, (int64_t)(room / c->size)) + (room - bytes);
    char *want = (char *)check_array(c, n + 1);
    for (int64_t i = check_between(c, 0, 9); i < n; i += 10)
        check_set(c, from, i, -0.0);
    if (c->bits == 32)
        attni_store_row_f32(want, type, 1, from, n);
    else
        attni_store_row_f64(want, type, 1, from, n);
    c->kernels->narrow(to, type, from, n);
    for (int64_t i = 0; i < n; i++) {
        double a, b;
        attni_load_row_f64(&a, to + (size_t)i * attn_dtype_size(type), type, 1, 1);
        attni_load_row_f64(&b, want + (size_t)i * attn_dtype_size(type), type, 1, 1);
        b += 0.0;
        if (!(a == b || (isnan(a) && isnan(b))) || signbit(a) != signbit(b))
            check_fail(c, "%.9g came out as %.9g, not %.9g", check_get(c, from, i), a, b);
    }
    check_expect_intact(c);
    CHECK_BENCH(c, n, c->kernels->narrow(to, type, from, n));
}

/* Biases are rows and are added to columns. A bias of -inf hides the key, whatever the score
 * was. */
void check_bias(check_case *c)
{
    int rows = (int)check_between(c, 0, c->W), n = (int)check_between(c, 0, ATTNI_BLOCK);
    ptrdiff_t ld = check_chance(c, 60)   ? (ptrdiff_t)(n + check_between(c, 0, 9))
                   : check_chance(c, 50) ? -(ptrdiff_t)(n + check_between(c, 0, 9))
                                         : 0;
    check_content content = check_any_content(c);
    check_describe(c, "rows=%d n=%d ld=%td", rows, n, ld);

    char *b = check_rows_new(c, rows, n, ld).first;
    void *st = check_tile(c, n);
    const int64_t count = (int64_t)n * c->W;
    check_fill(c, st, count, content);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) {
            check_fill(c, b + (i * ld + j) * (ptrdiff_t)c->size, 1, CHECK_PLAIN);
            if (check_chance(c, 20))
                check_set(c, b, i * ld + j, -INFINITY);
        }

    double *want = check_array(c, count);
    for (int64_t at = 0; at < count; at++)
        want[at] = check_get(c, st, at);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) {
            double x = check_get(c, b, i * ld + j), *s = &want[j * c->W + i];
            *s = x == -INFINITY ? x : check_round(c, *s + x);
        }

    c->kernels->bias(st, n, b, ld, rows, c->nv);
    for (int64_t at = 0; at < count && ld == 0; at++)
        if (at % c->W >= rows) /* may hold anything */
            want[at] = check_get(c, st, at);
    check_expect_same(c, "st", st, want, count, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->bias(st, n, b, ld, rows, c->nv));
}
