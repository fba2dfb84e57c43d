/* Numbers at the ends of their type give finite output that agrees with the definition. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
#define DTYPES 4

static double largest(attn_dtype t)
{
    return t == ATTN_F64   ? DBL_MAX
           : t == ATTN_F32 ? (double)FLT_MAX
           : t == ATTN_F16 ? 65504
                           : 0x1.fep127;
}

/* ----------------------------------------------------------------------------- one small call */

/* B = 1, H = Hk = 1, T queries, S keys, D = Dv = 2. */
typedef struct call {
    attn_sdpa_args args;
    check_tensor q, k, v, out, lse;
} call;

static check_tensor filled(check_case *c, attn_dtype dtype, int64_t rows, int64_t width, double x)
{
    const int64_t shape[4] = {1, 1, rows, width};
    check_tensor t = check_tensor_new(c, dtype, shape, CHECK_DENSE);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++)
            check_store(&t.view, 0, 0, i, j, x);
    return t;
}

static void make(check_case *c, call *x, attn_dtype dtype, int64_t T, int64_t S)
{
    *x = (call){.args = ATTN_SDPA_ARGS_INIT};
    x->q = filled(c, dtype, T, 2, 0), x->k = filled(c, dtype, S, 2, 0);
    x->v = filled(c, dtype, S, 2, 0), x->out = filled(c, dtype, T, 2, 7);
    x->lse = filled(c, ATTN_F64, T, 1, 7);
    x->args.q = x->q.view, x->args.k = x->k.view, x->args.v = x->v.view;
    x->args.out = x->out.view, x->args.lse = &x->lse.view;
    x->args.scale = 1;
}

static double *forward(check_case *c, const call *x)
{
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, 1), &x->args, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    return check_tensor_copy(c, &x->out.view);
}

/* The values that differ from `want` by more than a share of it. */
static void expect(check_case *c, const char *name, const double *got, int64_t n, double want,
                   double share)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want) <= share * fabs(want)))
            check_fail(c, "%s[%d] is %.9g, want %.9g (tolerance %g)", name, (int)i, got[i], want,
                       share * fabs(want));
}

/* --------------------------------------------------------------------------------- the faults */

/* Keys with one score, however large, and values at the end of the type: their mean. Other keys,
 * farther off than the score's own last place, weigh nothing. */
static void equal_huge_scores(check_case *c)
{
    static const double scores[] = {1, 1e6, 1e9, 1e18, 1e30, 2e38, 1e300};
    static const int64_t rows[] = {1, 3, 40};
    for (int n = 0; n < DTYPES * 7 * 3 * 2 * 2; n++) {
        const attn_dtype dtype = dtypes[n % DTYPES];
        const double score = scores[n / 4 % 7], sign = n / 84 % 2 ? -1 : 1;
        const int64_t T = rows[n / 28 % 3];
        const int equal = n / 168 ? 200 : 2;
        const double limit = dtype == ATTN_F64 ? 1e301 : dtype == ATTN_F16 ? 4e4 : 2e38;
        if (score > limit)
            continue;
        call x;
        make(c, &x, dtype, T, 300);
        check_describe(c, "%s, %d of %g", attn_dtype_name(dtype), equal, sign * score);
        for (int64_t j = 0; j < 300; j++) {
            const double lower = sign > 0 ? 0.5 * score : 1.5 * score;
            check_store(&x.k.view, 0, 0, j, 0, j % 3 || j / 3 >= equal ? lower : score);
            check_store(&x.v.view, 0, 0, j, 0, largest(dtype));
            check_store(&x.v.view, 0, 0, j, 1, -largest(dtype) / 2);
        }
        for (int64_t i = 0; i < T; i++)
            check_store(&x.q.view, 0, 0, i, 0, sign);
        const double *got = forward(c, &x);
        const double *lse = check_tensor_copy(c, &x.lse.view);
        for (int64_t i = 0; i < T; i++) {
            expect(c, "out", got + 2 * i, 1, largest(dtype), 1e-5);
            expect(c, "out", got + 2 * i + 1, 1, -largest(dtype) / 2, 1e-5);
            if (!isfinite(lse[i]))
                check_fail(c, "lse[%d] is %g, want a finite number", (int)i, lse[i]);
        }
        check_buffers_reset(c->run->buffers);
    }
}

/* A sink of any size: beside scores far below it nothing is left, beside scores far above it is
 * nothing, and a row without keys has it for its lse. */
static void huge_sinks(check_case *c)
{
    static const float sinks[] = {2.3e38F, 2.5e38F, FLT_MAX, -2.5e38F, -FLT_MAX, 0};
    static const float biases[] = {0, 3e38F, -3e38F};
    for (int n = 0; n < DTYPES * 6 * 3 * 2; n++) {
        const attn_dtype dtype = dtypes[n % DTYPES];
        const float sink = sinks[n / 4 % 6], bias = biases[n / 24 % 3];
        enum { T = 5, S = 70 };
        const int64_t none = 0;
        call x;
        make(c, &x, dtype, T, S);
        check_describe(c, "%s sink %g, scores %g, %s", attn_dtype_name(dtype), (double)sink,
                       (double)bias, n / 72 ? "no keys" : "keys");
        check_tensor mask = filled(c, ATTN_F32, 1, S, (double)bias);
        for (int64_t j = 0; j < S; j++)
            check_store(&x.v.view, 0, 0, j, 0, 3), check_store(&x.v.view, 0, 0, j, 1, -2);
        x.args.mask = bias != 0 ? &mask.view : NULL;
        x.args.sink_logits = &sink;
        x.args.key_lengths = n / 72 ? &none : NULL;
        const double *got = forward(c, &x), *lse = check_tensor_copy(c, &x.lse.view);
        const double own = n / 72         ? (double)sink
                           : bias == sink ? log(S + 1)
                           : bias > sink  ? (double)bias + log(S)
                                          : (double)sink;
        const double keys = bias == sink ? S / (S + 1.0) : bias > sink;
        for (int64_t i = 0; i < T; i++) {
            expect(c, "out", got + 2 * i, 1, n / 72 ? 0 : 3 * keys, dtype > ATTN_F32 ? 1e-2 : 1e-6);
            expect(c, "out", got + 2 * i + 1, 1, n / 72 ? 0 : -2 * keys,
                   dtype > ATTN_F32 ? 1e-2 : 1e-6);
            expect(c, "lse", lse + i, 1, own, dtype > ATTN_F32 ? 1e-2 : 1e-6);
        }
        check_buffers_reset(c->run->buffers);
    }
}

/* What the definition gives, in long double, of the numbers as they are stored; error: of a
 * component, over the mean of its |v|. */
static void expect_definition(check_case *c, const call *x, double error)
{
    const int64_t n = check_count(&x->args.out);
    double *want = check_array(c, n), *mass = check_array(c, n);
    ref_sdpa_forward_wide(&x->args, &(ref_result){.out = want, .mass = mass});
    const double *got = forward(c, x);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= error * (1e-30 + mass[i])))
            check_fail(c, "out[%d] is %.9g, want %.9g (tolerance %g)", (int)i, got[i], want[i],
                       error * (1e-30 + mass[i]));
}

/* scale * q may be infinite, or 0, where scale * q . k is not. */
static void scales(check_case *c)
{
    static const struct {
        double q, k, scale;
    } rows[] = {
        {2.5e38, 1e-38, 2},      {2.5e38, 1e-38, 4},      {-2.5e38, 1.3e-38, 7.5},
        {3e38, 1e-40, 300},      {1e38, 1e38, 3e-76},     {1e30, -3e37, 1e-67},
        {1e-20, 1e-10, 3e30},    {1e-30, 1e-8, 2e38},     {1e-35, 1, -1e35},
        {3e38, 0, 1e300},        {1e-145, 1e-145, 1e300}, {1e38, 1e38, 1e-300},
        {1.5e308, 1e-307, 1.25}, {1e200, 1e-250, 3e50},   {1e300, 1e300, 5e-324},
        {1e160, 1e160, 1e-320},  {1e-100, 1e-90, 1e190},  {1e308, 0, DBL_MAX},
        {40000, 5e-5, 2},        {60000, 6e-8, 1000},     {3e38, 1e38, 1e-77},
    };
    static const int64_t queries[] = {1, 3, 40}, keys[] = {3, 40, 300};
    for (int n = 0; n < DTYPES * 21 * 9 * 2; n++) {
        const attn_dtype dtype = dtypes[n % DTYPES];
        const int row = n / DTYPES % 21, size = n / DTYPES / 21 % 9;
        const double q = rows[row].q, k = rows[row].k;
        const bool units = dtype == ATTN_BF16 && fabs(k) < 1e-37; /* take denormals for 0 */
        if (fabs(q) > largest(dtype) || fabs(k) > largest(dtype) || (units && k != 0))
            continue;
        call x;
        make(c, &x, dtype, queries[size % 3], keys[size / 3]);
        x.args.scale = rows[row].scale;
        x.args.precision = n / DTYPES / 21 / 9 ? ATTN_PRECISION_ACCURATE : ATTN_PRECISION_DEFAULT;
        check_describe(c, "%s q %g k %g scale %g T %d S %d", attn_dtype_name(dtype), q, k,
                       x.args.scale, (int)queries[size % 3], (int)keys[size / 3]);
        for (int64_t i = 0; i < queries[size % 3]; i++)
            check_store(&x.q.view, 0, 0, i, i % 2, q);
        for (int64_t j = 0; j < keys[size / 3]; j++) {
            check_store(&x.k.view, 0, 0, j, 0, k * (double)(j % 3 - 1));
            check_store(&x.k.view, 0, 0, j, 1, k * (double)(j % 2));
            check_store(&x.v.view, 0, 0, j, 0, (double)(j % 7) - 2);
            check_store(&x.v.view, 0, 0, j, 1, 1);
        }
        expect_definition(c, &x, dtype == ATTN_F16 || dtype == ATTN_BF16 ? 2e-2 : 3e-5);
        check_buffers_reset(c->run->buffers);
    }
}

enum { CAP_T = 5, CAP_S = 70 };

/* Fills k with `size` times -1, 0, 1, divided by 1, 2, 3 and so on, and q with ones, the first
 * query with 0. Returns a tensor for x->args.scores, which will be the capped scores. */
static check_tensor prepare_capped(check_case *c, call *x, double size)
{
    const int64_t all[4] = {1, 1, CAP_T, CAP_S};
    check_tensor capped = check_tensor_new(c, ATTN_F64, all, CHECK_DENSE);
    x->args.scores_stage = ATTN_STAGE_SOFTCAP;
    for (int64_t j = 0; j < CAP_S; j++) {
        check_store(&x->k.view, 0, 0, j, 0, size * (double)(j % 3 - 1) / (1 + (double)(j / 3)));
        check_store(&x->v.view, 0, 0, j, 0, (double)(j % 7) - 2);
    }
    for (int64_t i = 0; i < CAP_T; i++)
        check_store(&x->q.view, 0, 0, i, 0, i ? 1 : 0);
    return capped;
}

/* A soft cap of any size: beyond the type it caps nothing, far below it leaves 0. */
static void soft_caps(check_case *c)
{
    static const double caps[] = {5e-324, 1e-300, 1e-39, 1e-38, 1e-30, 1e-3, 50,
                                  1e30,   1e37,   2e38,  1e39,  1e41,  1e49, 1e300};
    static const double sizes[] = {1e-30, 1, 1e9, 1e20, 2.5e38};
    for (int n = 0; n < DTYPES * 14 * 5 * 2; n++) {
        const attn_dtype dtype = dtypes[n % DTYPES];
        const double cap = caps[n / DTYPES % 14], size = sizes[n / DTYPES / 14 % 5];
        call x;
        if (size > largest(dtype))
            continue;
        make(c, &x, dtype, CAP_T, CAP_S);
        x.args.softcap = cap;
        x.args.scale = n / DTYPES / 14 / 5 ? 0.75 : 1;
        check_describe(c, "%s cap %g scores %g", attn_dtype_name(dtype), cap, size);
        check_tensor capped = prepare_capped(c, &x, size);
        x.args.scores = &capped.view;
        double *want = check_array(c, CAP_T * CAP_S);
        ref_sdpa_forward(&x.args, &(ref_result){.stages[ATTN_STAGE_SOFTCAP] = want});
        const double *out = forward(c, &x), *got = check_tensor_copy(c, &capped.view);
        for (int64_t i = 0; i < CAP_T * CAP_S; i++) {
            const double tiny = dtype == ATTN_F64 ? 0x1p-1018 : 0x1p-123; /* and of r / cap: */
            const double lost = fmin(cap, 0x1p128) * (dtype == ATTN_F64 ? 0x1p-1073 : 0x1p-148);
            if (!(fabs(got[i] - want[i]) <= 2e-6 * fabs(want[i]) + tiny + lost))
                check_fail(c, "score %d is %.9g, want %.9g (tolerance %g)", (int)i, got[i], want[i],
                           2e-6 * fabs(want[i]) + tiny + lost);
        }
        for (int64_t i = 0; i < 2 * CAP_T; i++)
            if (!isfinite(out[i]))
                check_fail(c, "out[%d] is %g, want a finite number", (int)i, out[i]);
        if (size <= 1)
            expect_definition(c, &x, dtype == ATTN_F16 || dtype == ATTN_BF16 ? 2e-2 : 1e-5);
        check_buffers_reset(c->run->buffers);
    }
}

/* A soft cap stays what it is if the scale divided by it is beyond the type: scores are the cap. */
static void soft_caps_of_large_scales(check_case *c)
{
    static const double caps[] = {1e-3, 1, 50}, scales[] = {1e30, 3e37, 1e38, -3e38};
    for (int n = 0; n < DTYPES * 3 * 4; n++) {
        const attn_dtype dtype = dtypes[n % DTYPES];
        call x;
        make(c, &x, dtype, CAP_T, CAP_S);
        x.args.softcap = caps[n / DTYPES % 3];
        x.args.scale = scales[n / DTYPES / 3] * (dtype == ATTN_F64 ? 1e269 : 1);
        check_describe(c, "%s cap %g scale %g", attn_dtype_name(dtype), x.args.softcap,
                       x.args.scale);
        check_tensor capped = prepare_capped(c, &x, 1);
        x.args.scores = &capped.view;
        forward(c, &x);
        const double *got = check_tensor_copy(c, &capped.view);
        for (int64_t i = 0; i < CAP_T * CAP_S; i++) {
            const double side = i < CAP_S ? 0 : (double)(i % CAP_S % 3 - 1);
            const double sign = x.args.scale < 0 ? -side : side;
            if (!(fabs(got[i] - sign * x.args.softcap) <= 2e-6 * x.args.softcap))
                check_fail(c, "score %d is %.9g, want %.9g", (int)i, got[i], sign * x.args.softcap);
        }
        expect_definition(c, &x, dtype == ATTN_F16 || dtype == ATTN_BF16 ? 2e-2 : 1e-5);
        check_buffers_reset(c->run->buffers);
    }
}

/* A mask of f64 beside numbers of a narrower type: what that type cannot hold is still a number,
 * and hides no key. */
static void wide_masks(check_case *c)
{
    static const double masks[][3] = {{-4e38, -4e38, -4e38}, {-4e38, -INFINITY, -4e38},
                                      {4e38, 0, -INFINITY},  {-1e300, 0, 1},
                                      {1e300, 1e30, 1},      {-1e300, -1e300, -INFINITY},
                                      {3e38, 4e38, -4e38},   {-INFINITY, -DBL_MAX, -INFINITY}};
    static const int64_t sizes[][2] = {{1, 3}, {1, 90}, {20, 90}, {5, 600}};
    for (int n = 0; n < 3 * 8 * 4 * 2 * 2; n++) {
        const attn_dtype dtype = dtypes[1 + n % 3];
        const double *m = masks[n / 3 % 8];
        const int64_t T = sizes[n / 24 % 4][0], S = sizes[n / 24 % 4][1];
        call x;
        make(c, &x, dtype, T, S);
        check_describe(c, "%s mask %g, %g, %g, T %d S %d", attn_dtype_name(dtype), m[0], m[1], m[2],
                       (int)T, (int)S);
        const int64_t shape[4] = {1, 1, n / 192 ? 1 : T, S};
        check_tensor mask =
            check_tensor_new(c, ATTN_F64, shape, n / 96 % 2 ? CHECK_LOOSE : CHECK_DENSE);
        for (int64_t j = 0; j < S; j++) {
            for (int64_t i = 0; i < shape[2]; i++)
                check_store(&mask.view, 0, 0, i, j, m[j % 3]);
            for (int64_t d = 0; d < 2; d++) {
                check_store(&x.k.view, 0, 0, j, d, 0.3 * check_normal(c));
                check_store(&x.v.view, 0, 0, j, d, check_normal(c));
            }
        }
        for (int64_t i = 0; i < T; i++)
            check_store(&x.q.view, 0, 0, i, i % 2, check_normal(c));
        x.args.mask = &mask.view;
        expect_definition(c, &x, dtype == ATTN_F32 ? 1e-5 : 2e-2);
        const double *lse = check_tensor_copy(c, &x.lse.view);
        for (int64_t i = 0; i < T; i++)
            if (!isfinite(lse[i]))
                check_fail(c, "lse[%d] is %g, want a finite number", (int)i, lse[i]);
        check_buffers_reset(c->run->buffers);
    }
}

/* Weights on request, of a row alone and among others of which one is NaN: the same bits, however
 * small they are. */
static void weights_beside_nan(check_case *c)
{
    enum { T = 12, S = 80 };
    int small = 0;
    for (int n = 0; n < DTYPES * 2 * 20; n++) {
        const attn_dtype dtype = dtypes[n % DTYPES];
        const double odd = n / DTYPES % 2 ? INFINITY : (double)NAN;
        call x;
        make(c, &x, dtype, T, S);
        check_describe(c, "%s beside %g", attn_dtype_name(dtype), odd);
        const int64_t all[4] = {1, 1, T, S};
        check_tensor weights =
            check_tensor_new(c, dtype == ATTN_F64 ? dtype : ATTN_F32, all, CHECK_DENSE);
        const double reach = dtype == ATTN_F64 ? 708 : 87;
        for (int64_t j = 0; j < S; j++) {
            check_store(&x.k.view, 0, 0, j, 0, j ? -(double)check_between(c, 0, 1000) / 1000 : 0);
            check_store(&x.v.view, 0, 0, j, 0, check_normal(c));
        }
        for (int64_t i = 0; i < T; i++)
            check_store(&x.q.view, 0, 0, i, 0, reach);
        check_store(&x.v.view, 0, 0, S - 1, 1, odd); /* of the last query alone */
        x.args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        x.args.scores = &weights.view, x.args.scores_stage = ATTN_STAGE_WEIGHTS;
        forward(c, &x);
        const double *among = check_tensor_copy(c, &weights.view);
        check_store(&x.q.view, 0, 0, T - 1, 1, odd);
        forward(c, &x);
        const double *beside = check_tensor_copy(c, &weights.view);
        for (int64_t i = 0; i < (T - 1) * S; i++) {
            if (among[i] != beside[i])
                check_fail(c, "weight %d is %a, beside a NaN %a", (int)i, among[i], beside[i]);
            small += among[i] > 0 && among[i] < (dtype == ATTN_F64 ? 0x1p-1010 : 0x1p-116);
        }
        check_buffers_reset(c->run->buffers);
    }
    if (small < 1000)
        check_fail(c, "only %d weights are small", small);
}

/* A mean of the largest numbers, or of numbers a few units below them: the row has the same bits
 * beside a row that is NaN, which makes the tile's sums be computed again. */
static void largest_beside_nan(check_case *c)
{
    enum { T = 3 };
    for (int n = 0; n < DTYPES * 4 * 8; n++) {
        const attn_dtype dtype = dtypes[n % DTYPES];
        const int64_t S = n / DTYPES % 4 + 1;
        double value = largest(dtype);
        for (int below = n / DTYPES / 4; below > 0; below--)
            value = dtype == ATTN_F32   ? (double)nextafterf((float)value, 0)
                    : dtype == ATTN_F64 ? nextafter(value, 0)
                                        : value;
        call x;
        make(c, &x, dtype, T, S);
        check_describe(c, "%s, %d values of %a", attn_dtype_name(dtype), (int)S, value);
        for (int64_t j = 0; j < S; j++)
            for (int64_t d = 0; d < 2; d++)
                check_store(&x.v.view, 0, 0, j, d, d ? -value : value);
        const double *among = forward(c, &x);
        check_store(&x.q.view, 0, 0, T - 1, 1, (double)NAN);
        const double *beside = forward(c, &x);
        for (int64_t i = 0; i < (T - 1) * 2; i++)
            if (among[i] != beside[i])
                check_fail(c, "out[%d] is %a, beside a NaN %a", (int)i, among[i], beside[i]);
        check_buffers_reset(c->run->buffers);
    }
}

/* A row whose out consists of its smallest weights, near the end of the range, where they lose bits
 * or are 0: a few keys weigh nearly all and have values of 0, the others have huge values. The row
 * has the same bits alone and among others, of which one is NaN. */
static void small_weights(check_case *c)
{
    enum { T = 12, S = 300 };
    static const attn_dtype wide[] = {ATTN_F64, ATTN_F32, ATTN_BF16};
    int small = 0;
    for (int n = 0; n < 3 * 12; n++) {
        const attn_dtype dtype = wide[n % 3];
        const bool f64 = dtype == ATTN_F64;
        call x, one;
        make(c, &x, dtype, T, S);
        make(c, &one, dtype, 1, S);
        check_describe(c, "%s, problem %d", attn_dtype_name(dtype), n);
        for (int64_t j = 0; j < S; j++) {
            const bool large = check_between(c, 0, 50) == 0;
            const double far = (f64 ? 700 : 82) + (double)check_between(c, 0, 1000) / 40;
            check_store(&x.k.view, 0, 0, j, 0, large ? 0 : -far);
            for (int64_t d = 0; d < 2; d++)
                check_store(&x.v.view, 0, 0, j, d,
                            large ? 0 : (f64 ? 1e300 : 1e30) * check_normal(c));
        }
        for (int64_t i = 0; i < T; i++)
            check_store(&x.q.view, 0, 0, i, 0, 1);
        x.args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        if (n % 2)
            check_store(&x.q.view, 0, 0, T - 1, 1, (double)NAN);
        const double *among = forward(c, &x);
        const double *lse = check_tensor_copy(c, &x.lse.view);
        one.args.k = x.args.k, one.args.v = x.args.v;
        one.args.causal = ATTN_CAUSAL_OFFSET;
        check_store(&one.q.view, 0, 0, 0, 0, 1);
        for (int64_t i = 0; i < T - 1; i++) {
            one.args.causal_offset = S - T + i;
            const double *alone = forward(c, &one),
                         *alone_lse = check_tensor_copy(c, &one.lse.view);
            for (int64_t d = 0; d < 2; d++) {
                if (among[2 * i + d] != alone[d])
                    check_fail(c, "out[%d] is %a among others, %a alone", (int)(2 * i + d),
                               among[2 * i + d], alone[d]);
                small += alone[d] != 0;
            }
            if (lse[i] != alone_lse[0])
                check_fail(c, "lse[%d] is %a among others, %a alone", (int)i, lse[i], alone_lse[0]);
        }
        check_buffers_reset(c->run->buffers);
    }
    if (small < 300)
        check_fail(c, "only %d results have small weights", small);
}

/* Scores from 2^22 to 2^23 may have a half in log2 units: weights of the rounded scores. */
static void scores_with_halves(check_case *c)
{
    static const float scores[][2] = {{2907271.75F, 2907271.5F}, {-2907271.75F, -2907271.5F}};
    call x;
    for (int n = 0; n < 2; n++) {
        check_describe(c, "scores %.2f and %.2f", (double)scores[n][0], (double)scores[n][1]);
        make(c, &x, ATTN_F32, 1, 2);
        check_store(&x.q.view, 0, 0, 0, 0, 1);
        for (int j = 0; j < 2; j++) {
            check_store(&x.k.view, 0, 0, j, 0, (double)scores[n][j]);
            check_store(&x.v.view, 0, 0, j, j, 1);
        }
        const float a = scores[n][0] * 1.44269504F, b = scores[n][1] * 1.44269504F;
        const double *out = forward(c, &x), want = 1 / (1 + exp2((double)b - (double)a));
        expect(c, "weight", out, 1, want, 1e-6);
        expect(c, "weight", out + 1, 1, 1 - want, 1e-6);
    }
}

/* Hidden keys beside keys whose scores are so low that they have no weight change no bit. */
static void hidden_keys_beside_lowest_scores(check_case *c)
{
    enum { S = 512, CHUNK = 256 };
    call x;
    check_tensor mask = check_tensor_new(c, ATTN_BOOL, (int64_t[]){1, 1, 1, S}, CHECK_DENSE);
    make(c, &x, ATTN_F32, 1, S);
    check_store(&x.q.view, 0, 0, 0, 0, 1);
    for (int j = 0; j < S; j++) {
        check_store(&x.k.view, 0, 0, j, 0, j < CHUNK ? -1.2e38 : j % 7 * 0.5);
        check_store(&x.v.view, 0, 0, j, 0, 1e-32 * (1 + j % 5));
        check_store(&mask.view, 0, 0, 0, j, j >= 64 || j % 2);
    }
    double want[2], all = forward(c, &x)[0];
    x.args.mask = &mask.view;
    ref_sdpa_forward(&x.args, &(ref_result){.out = want});
    expect(c, "out", &all, 1, want[0], 1e-6);
    expect(c, "out with hidden keys", forward(c, &x), 1, all, 0);
}

static void run_once(void (*property)(check_case *)) { run_property(property, "extremes", 1); }

static void test_equal_huge_scores(void **state)
{
    (void)state;
    run_once(equal_huge_scores);
}

static void test_huge_sinks(void **state)
{
    (void)state;
    run_once(huge_sinks);
}

static void test_scales(void **state)
{
    (void)state;
    run_once(scales);
}

static void test_soft_caps_of_large_scales(void **state)
{
    (void)state;
    run_once(soft_caps_of_large_scales);
}

static void test_soft_caps(void **state)
{
    (void)state;
    run_once(soft_caps);
}

static void test_wide_masks(void **state)
{
    (void)state;
    run_once(wide_masks);
}

static void test_largest_beside_nan(void **state)
{
    (void)state;
    run_once(largest_beside_nan);
}

static void test_small_weights(void **state)
{
    (void)state;
    run_once(small_weights);
}

static void test_scores_far_from_0(void **state)
{
    (void)state;
    run_once(scores_with_halves);
    run_once(hidden_keys_beside_lowest_scores);
}

static void test_weights_beside_nan(void **state)
{
    (void)state;
    run_once(weights_beside_nan);
}

/* Distances that a float cannot hold (2^24 and more): the bias of a row does not depend on which
 * rows are computed together with it. It is slope times the distance, rounded once. */
static void test_far_alibi(void **state)
{
    (void)state;
    enum { ROWS = 40, KEYS = 70 };
    static float zero[KEYS], together[ROWS], alone[ROWS];
    const float slope = 0x1p-24f;
    for (int isa = 0; attn_isa(isa).name; isa++) {
        attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
        attn_context *ctx;
        o.isa = attn_isa(isa).name, o.threads = 1;
        if (!attn_isa(isa).usable)
            continue;
        describe_case("%s", o.isa);
        assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        float none[1];
        a.k = attn_bhtd(zero, ATTN_F32, 1, 1, KEYS, 1);
        a.v = attn_bhtd(NULL, ATTN_F32, 1, 1, KEYS, 0);
        a.diagonal = ATTN_DIAGONAL_OFFSET;
        a.alibi_slopes = &slope;
        for (int i = 0; i <= ROWS; i++) { /* all rows, then each alone */
            const int T1 = i == 0 ? ROWS : 1;
            const attn_tensor to = attn_bhtd(i ? alone + i - 1 : together, ATTN_F32, 1, 1, T1, 1);
            a.q = attn_bhtd(zero, ATTN_F32, 1, 1, T1, 1);
            a.out = attn_bhtd(none, ATTN_F32, 1, 1, T1, 0);
            a.lse = &to;
            a.causal_offset = 100000001 + (i ? i - 1 : 0);
            assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
        }
        assert_same_array(together, alone, sizeof together);
        attn_context_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_huge_scores),
        cmocka_unit_test(test_huge_sinks),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_soft_caps),
        cmocka_unit_test(test_soft_caps_of_large_scales),
        cmocka_unit_test(test_wide_masks),
        cmocka_unit_test(test_weights_beside_nan),
        cmocka_unit_test(test_small_weights),
        cmocka_unit_test(test_largest_beside_nan),
        cmocka_unit_test(test_far_alibi),
        cmocka_unit_test(test_scores_far_from_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
