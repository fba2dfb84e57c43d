/* No result is -0, in any type that it may be stored in.
 *
 * One of q, k, v and dout (or the tangents) has the smallest negative numbers of its type, so that
 * most results round to zero. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "attn_nn.h"
#include "check/check_call.h"
#include "support/property.h"

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
static const double smallest[] = {0x1p-1074, 0x1p-149, 0x1p-24, 0x1p-133};
/* for units that take denormals for 0 */
static const double normal[] = {0x1p-1022, 0x1p-126, 0x1p-14, 0x1p-126};

enum { DV = 9, D = 11 };

typedef struct signs {
    attn_sdpa_args args;
    check_tensor q, k, v, out, lse, scores, mask, dout, dq, dk, dv, dmask, tout, tlse;
    int type, zeros; /* of all results */
    double tiny;
} signs;

static check_tensor filled(check_case *c, attn_dtype dtype, int64_t H, int64_t rows, int64_t width,
                           double tiny, check_layout layout)
{
    const int64_t shape[4] = {1, H, rows, width};
    check_tensor t = check_tensor_new(c, dtype, shape, layout);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < width; j++)
                check_store(&t.view, 0, h, i, j,
                            tiny != 0 ? -tiny * (double)check_between(c, 1, 3) : check_normal(c));
    return t;
}

static void expect_signs(check_case *c, signs *s, const char *name, const check_tensor *t)
{
    const double *got = check_tensor_copy(c, &t->view);
    for (int64_t i = 0; i < check_count(&t->view); i++) {
        s->zeros += got[i] == 0;
        if (got[i] == 0 && signbit(got[i]))
            check_fail(c, "%s[%d], %s, is -0", name, (int)i, attn_dtype_name(t->view.dtype));
    }
}

static void done(check_case *c, attn_status status, const attn_error *err)
{
    if (status != ATTN_OK)
        check_fail(c, "%s", err->message);
}

static void forward(check_case *c, signs *s, int threads)
{
    attn_error err = {0};
    done(c, attn_sdpa_forward(check_context(c, threads), &s->args, &err), &err);
    expect_signs(c, s, "out", &s->out);
    expect_signs(c, s, "lse", &s->lse);
    if (s->args.scores)
        expect_signs(c, s, "scores", &s->scores);
}

static void derivatives(check_case *c, signs *s, attn_dtype to, check_layout layout, bool dout)
{
    attn_error err = {0};
    const attn_sdpa_args *a = &s->args;
    const int64_t H = a->q.shape[1], Hk = a->k.shape[1], T = a->q.shape[2], S = a->k.shape[2];
    const attn_dtype own = a->q.dtype, wide = to == ATTN_F64 ? to : ATTN_F32;
    s->dout = filled(c, own, H, T, DV, dout ? s->tiny : 0, layout);
    s->dq = filled(c, to, H, T, D, 0, layout), s->dk = filled(c, to, Hk, S, D, 0, layout);
    s->dv = filled(c, to, Hk, S, DV, 0, layout);
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = s->dout.view, g.dq = s->dq.view, g.dk = s->dk.view, g.dv = s->dv.view;
    if (a->mask) {
        s->dmask = filled(c, wide, a->mask->shape[1], a->mask->shape[2], a->mask->shape[3], 0,
                          CHECK_DENSE);
        g.dmask = &s->dmask.view;
    }
    done(c, attn_sdpa_backward(check_context(c, 1), a, &g, &err), &err);
    expect_signs(c, s, "dq", &s->dq), expect_signs(c, s, "dk", &s->dk);
    expect_signs(c, s, "dv", &s->dv);
    if (g.dmask)
        expect_signs(c, s, "dmask", &s->dmask);
    s->tout = filled(c, to, H, T, DV, 0, layout), s->tlse = filled(c, wide, H, T, 1, 0, layout);
    attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
    t.tq = a->q, t.tk = a->k, t.tv = a->v, t.tout = s->tout.view, t.tlse = &s->tlse.view;
    done(c, attn_sdpa_jvp(check_context(c, 1), a, &t, &err), &err);
    expect_signs(c, s, "tout", &s->tout), expect_signs(c, s, "tlse", &s->tlse);
}

/* Tensors of one shape and type; `which` is tiny: q, k, v, dout. */
static void make(check_case *c, signs *s, int type, int which, int64_t H, int64_t T, int64_t S,
                 attn_dtype to, check_layout layout)
{
    const attn_dtype own = dtypes[type];
    *s = (signs){.args = ATTN_SDPA_ARGS_INIT, .type = type};
    s->tiny = check_chance(c, 50) ? smallest[type] : normal[type];
    s->q = filled(c, own, H, T, D, which == 0 ? s->tiny : 0, layout);
    s->k = filled(c, own, 1, S, D, which == 1 ? s->tiny : 0, layout);
    s->v = filled(c, own, 1, S, DV, which == 2 ? s->tiny : 0, layout);
    s->out = filled(c, to, H, T, DV, 0, layout);
    s->lse = filled(c, to == ATTN_F64 ? to : ATTN_F32, H, T, 1, 0, layout);
    attn_sdpa_args *a = &s->args;
    a->q = s->q.view, a->k = s->k.view, a->v = s->v.view, a->out = s->out.view;
    a->lse = &s->lse.view;
    if (check_chance(c, 40)) {
        s->scores = filled(c, CHECK_PICK(c, dtypes), H, T, S, 0, layout);
        a->scores = &s->scores.view;
        a->scores_stage = (attn_stage)check_between(c, 0, 3);
    }
    if (check_chance(c, 40)) {
        s->mask = filled(c, ATTN_F32, 1, check_chance(c, 50) ? 1 : T, check_chance(c, 50) ? 1 : S,
                         0, CHECK_DENSE);
        a->mask = &s->mask.view;
    }
    a->precision = check_chance(c, 50) ? ATTN_PRECISION_DEFAULT : ATTN_PRECISION_ACCURATE;
    a->scale = check_chance(c, 50) ? 0 : check_chance(c, 50) ? -0.3 : 5;
}

static void attention(check_case *c)
{
    static const int64_t sizes[][3] = {
        {1, 1, 300}, {1, 3, 40}, {4, 1, 200}, {1, 40, 300}, {2, 20, 9}};
    int zeros = 0;
    for (int n = 0; n < 4 * 4 * 5 * 3 * 2; n++) {
        const int type = n % 4, which = n / 4 % 4, size = n / 16 % 5, out = n / 80 % 3;
        const attn_dtype to = out == 0 ? dtypes[type] : out == 1 ? ATTN_F32 : ATTN_F64;
        const check_layout layout = n / 240 ? CHECK_LOOSE : CHECK_DENSE;
        signs s;
        make(c, &s, type, which, sizes[size][0], sizes[size][1], sizes[size][2], to, layout);
        check_describe(c, "%s to %s, %s tiny, H %d T %d S %d, mask %d precision %d scale %g",
                       attn_dtype_name(dtypes[type]), attn_dtype_name(to),
                       (const char *[]){"q", "k", "v", "dout"}[which], (int)sizes[size][0],
                       (int)sizes[size][1], (int)sizes[size][2], s.args.mask != NULL,
                       s.args.precision, s.args.scale);
        forward(c, &s, 3);
        derivatives(c, &s, to, layout, which == 3);
        zeros += s.zeros;
        check_buffers_reset(c->run->buffers);
    }
    if (zeros < 10000)
        check_fail(c, "only %d results are 0", zeros);
}

static void linear(check_case *c)
{
    static const int64_t rows[] = {1, 3, 20};
    for (int n = 0; n < 2 * 3 * 2; n++) {
        const int type = n % 2; /* f64, f32: modules know no others */
        const int64_t T = rows[n / 2 % 3];
        const check_layout layout = n / 6 ? CHECK_LOOSE : CHECK_DENSE;
        signs s = {.zeros = 0};
        check_describe(c, "linear %s, %d rows", attn_dtype_name(dtypes[type]), (int)T);
        check_tensor x = filled(c, dtypes[type], 1, T, D, smallest[type], layout);
        check_tensor w = filled(c, dtypes[type], 1, 70, D, 0x1p-8, layout);
        check_tensor out = filled(c, dtypes[type], 1, T, 70, 0, layout);
        for (int64_t o = 0; o < 70; o++)
            for (int64_t d = 0; d < D; d++)
                check_store(&w.view, 0, 0, o, d, 0x1p-8);
        attn_error err = {0};
        done(c, attn_linear_forward(check_context(c, 1), &x.view, &w.view, NULL, &out.view, &err),
             &err);
        expect_signs(c, &s, "out", &out);
        if (s.zeros < 50)
            check_fail(c, "only %d results are 0", s.zeros);
        check_buffers_reset(c->run->buffers);
    }
}

static void test_attention(void **state)
{
    (void)state;
    run_property(attention, "signs", 3);
}

static void test_linear(void **state)
{
    (void)state;
    run_property(linear, "signs", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
