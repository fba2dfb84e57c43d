/* The caller's floating-point mode changes no bit of attention, gradients or modules.
 *
 * Tests the four rounding modes and flushing of denormals, for calls on the caller's thread and on
 * others. The mode is afterwards what it was. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "attn.h"
#include "attn_nn.h"
#include "check/check_call.h"
#include "support/property.h"

enum { B = 2, H = 4, HK = 2, T = 37, S = 300, D = 24, RESULTS = 12 };

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};

typedef struct problem {
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    attn_sdpa_tangents tangents;
    attn_tensor lse, mask, scores, dmask, tlse;
    check_tensor results[RESULTS];
    int count;
    check_tensor x, w, bias; /* of the linear layer, layer norm and GELU */
} problem;

/* Normal numbers, some of them denormal. */
static attn_tensor input(check_case *c, attn_dtype dtype, int64_t heads, int64_t rows, int64_t n)
{
    check_tensor t = check_tensor_new(c, dtype, (const int64_t[]){B, heads, rows, n}, CHECK_DENSE);
    check_call_fill(c, &t, 1);
    const double tiny = dtype == ATTN_F64 ? 0x1p-1060 : dtype == ATTN_F16 ? 0x1p-20 : 0x1p-130;
    for (int64_t i = 0; i < rows; i += 3)
        check_store(&t.view, B - 1, heads - 1, i, i % n, tiny);
    return t.view;
}

static attn_tensor output(check_case *c, problem *p, attn_dtype dtype, int64_t heads, int64_t rows,
                          int64_t n)
{
    check_tensor *t = &p->results[p->count++];
    *t = check_tensor_new(c, dtype, (const int64_t[]){B, heads, rows, n}, CHECK_DENSE);
    return t->view;
}

static void make(check_case *c, problem *p, attn_dtype dtype)
{
    const attn_dtype wide = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    *p = (problem){.args = ATTN_SDPA_ARGS_INIT,
                   .grads = ATTN_SDPA_GRADS_INIT,
                   .tangents = ATTN_SDPA_TANGENTS_INIT};
    attn_sdpa_args *a = &p->args;
    a->q = input(c, dtype, H, T, D), a->k = input(c, dtype, HK, S, D);
    a->v = input(c, dtype, HK, S, D), a->out = output(c, p, dtype, H, T, D);
    p->lse = output(c, p, wide, H, T, 1), p->mask = input(c, ATTN_F32, H, T, S);
    p->scores = output(c, p, wide, H, T, S);
    a->lse = &p->lse, a->mask = &p->mask, a->scores = &p->scores;
    a->scores_stage = ATTN_STAGE_WEIGHTS;
    a->causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    a->softcap = 3, a->dropout = 0.3, a->scale = 0.3;
    p->grads.dout = input(c, dtype, H, T, D);
    p->grads.dq = output(c, p, dtype, H, T, D), p->grads.dk = output(c, p, dtype, HK, S, D);
    p->grads.dv = output(c, p, dtype, HK, S, D), p->dmask = output(c, p, wide, H, T, S);
    p->grads.dmask = &p->dmask;
    p->tangents.tq = input(c, dtype, H, T, D), p->tangents.tk = input(c, dtype, HK, S, D);
    p->tangents.tv = input(c, dtype, HK, S, D);
    p->tangents.tout = output(c, p, dtype, H, T, D), p->tlse = output(c, p, wide, H, T, 1);
    p->tangents.tlse = &p->tlse;
}

static attn_status run(attn_context *ctx, problem *p, attn_error *err)
{
    attn_status status = attn_sdpa_forward(ctx, &p->args, err);
    if (status == ATTN_OK)
        status = attn_sdpa_backward(ctx, &p->args, &p->grads, err);
    if (status == ATTN_OK)
        status = attn_sdpa_jvp(ctx, &p->args, &p->tangents, err);
    return status;
}

static void enter(int mode, int flush)
{
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    fesetround(modes[mode]);
#if defined(__x86_64__)
    if (flush)
        _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#else
    (void)flush;
#endif
}

static unsigned state(void)
{
#if defined(__x86_64__)
    return _mm_getcsr() & 0xFFC0; /* all but the exception flags */
#else
    return (unsigned)fegetround();
#endif
}

/* The first call's results are kept in `want`; those of each other call must have their bits. */
static void expect_same_results(check_case *c, const problem *p, double **want)
{
    for (int r = 0; r < p->count; r++) {
        double *got = check_tensor_copy(c, &p->results[r].view);
        want[r] = want[r] ? want[r] : got;
        check_difference d;
        if (!check_same(got, want[r], check_count(&p->results[r].view), CHECK_ZERO_SIGNED, &d))
            check_fail(c, "result %d, element %d is %.17g, want %.17g", r, (int)d.at, d.got,
                       d.want);
    }
}

static void attention(check_case *c)
{
    for (int type = 0; type < 4; type++) {
        problem p;
        double *want[RESULTS] = {NULL};
        make(c, &p, dtypes[type]);
        for (int n = 0; n < 16; n++) {
            const int mode = n % 4, flush = n / 4 % 2, threads = n / 8 ? 3 : 1;
            attn_context *ctx = check_context(c, threads);
            attn_error err = {0};
            enter(mode, flush);
            const unsigned before = state();
            const attn_status status = run(ctx, &p, &err);
            const unsigned after = state();
            fesetenv(FE_DFL_ENV);
            check_describe(c, "%s mode %d flush %d threads %d", attn_dtype_name(dtypes[type]), mode,
                           flush, threads);
            if (status != ATTN_OK || after != before)
                check_fail(c, "%s %s, state %x, want %x", attn_status_name(status), err.message,
                           after, before);
            expect_same_results(c, &p, want);
        }
        check_buffers_reset(c->run->buffers);
    }
}

/* The linear layer and its gradients, the norm and GELU, which compute in double. */
static void modules(check_case *c)
{
    for (int type = 0; type < 2; type++) {
        problem p = {.count = 0};
        const attn_dtype dtype = dtypes[type];
        const attn_tensor x = input(c, dtype, H, T, D), dout = input(c, dtype, H, T, S);
        const attn_tensor w = input(c, dtype, H, S, D), bias = input(c, dtype, H, 1, S);
        const attn_tensor out = output(c, &p, dtype, H, T, S), dx = output(c, &p, dtype, H, T, D);
        const attn_tensor dw = output(c, &p, dtype, H, S, D), db = output(c, &p, dtype, H, 1, S);
        const attn_tensor gelu = output(c, &p, dtype, H, T, D);
        double *want[RESULTS] = {NULL};
        for (int n = 0; n < 16; n++) {
            attn_context *ctx = check_context(c, n / 8 ? 3 : 1);
            attn_error err = {0};
            enter(n % 4, n / 4 % 2);
            const unsigned before = state();
            attn_status status = attn_linear_forward(ctx, &x, &w, &bias, &out, &err);
            if (status == ATTN_OK)
                status = attn_linear_backward(ctx, &dout, &x, &w, &dx, &dw, &db, &err);
            if (status == ATTN_OK)
                status = attn_gelu_forward(ctx, &x, &gelu, &err);
            const unsigned after = state();
            fesetenv(FE_DFL_ENV);
            check_describe(c, "modules %s, case %d", attn_dtype_name(dtype), n);
            if (status != ATTN_OK || after != before)
                check_fail(c, "%s %s, state %x, want %x", attn_status_name(status), err.message,
                           after, before);
            expect_same_results(c, &p, want);
        }
        check_buffers_reset(c->run->buffers);
    }
}

static void test_attention(void **unused)
{
    (void)unused;
    run_property(attention, "modes", 1);
}

static void test_modules(void **unused)
{
    (void)unused;
    run_property(modules, "modes", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
