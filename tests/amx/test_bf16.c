/* Whole calls of bf16 by the matrix unit and by dot products agree with the definition.
 *
 * Compares with the definition in double and with PyTorch's error; and the fast kernel with the
 * separate steps, to the bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check.h"
#include "check/check_call.h"
#include "check/check_signals.h"
#include "core/internal.h"
#include "bf16/tile_ops.h"
#include "support/test.h"

static int isa; /* index of the instruction set that is tested */

/* Runs a property of one case for `rounds` seeds. */
static void run_property(void (*property)(check_case *), const char *name, int rounds)
{
    check_run_state r = {.out = stderr, .buffers = check_buffers_create()};
    struct check_signals *before = check_signals_catch();
    for (int i = 0; i < rounds && r.failed < 3; i++)
        check_one(&r, name, property, isa, 64, 0, 1000 + (uint64_t)i, NULL);
    check_signals_restore(before);
    check_contexts_destroy(&r);
    check_buffers_destroy(r.buffers);
    assert_int_equal(r.failed, 0);
    assert_number(r.passed, >, 0);
}

/* ------------------------------------------------------------------------------ random options */

static void random_call(check_case *c)
{
    check_call call;
    ref_result want;
    do {
        check_call_random(c, &call, 1e6);
    } while (call.args.q.dtype != ATTN_BF16 || call.args.precision);
    check_call_reference(c, &call, &want);
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    char plan[48];
    /* below 2^-64 the unit's arithmetic would lose the denormals that matter */
    const double scale = fabs(call.args.scale);
    snprintf(plan, sizeof plan, "%s %s ", attn_isa(isa).name,
             scale != 0 && scale < 0x1p-64 ? "f32" : "bf16");
    if (attn_sdpa_plan(check_context(c, call.threads), &call.args, &info, NULL) != ATTN_OK ||
        strncmp(info.kernel, plan, strlen(plan)) != 0)
        check_fail(c, "the plan is %s, want %s", info.kernel, plan);
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, call.threads), &call.args, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    check_call_judge(c, &call, &want);
    check_expect_intact(c);
    if (attni_emulated_configured())
        check_fail(c, "the caller's thread was left with tile state");
}

static void test_random_options(void **state)
{
    (void)state;
    run_property(random_call, "bf16", 500);
}

/* Every other type and ACCURATE go the way of AVX-512. */
static void test_other_types(void **state)
{
    (void)state;
    char *report;
    size_t size;
    check_options o = {.seed = 77, .op = "sdpa", .isa = attn_isa(isa).name};
    o.out = open_memstream(&report, &size);
    const int failed = check_run(&o);
    fclose(o.out);
    if (failed)
        fail_msg("%s", report);
    free(report);
}

/* ------------------------------------------------------------------------------------ accuracy */

typedef struct problem {
    attn_sdpa_args args;
    check_tensor q, k, v, out;
} problem;

static void make_problem(check_case *c, problem *p, int64_t T, int64_t S, int64_t D, int64_t Dv,
                         double spread)
{
    const int64_t q[4] = {1, 1, T, D}, k[4] = {1, 1, S, D}, v[4] = {1, 1, S, Dv};
    const int64_t o[4] = {1, 1, T, Dv};
    attn_sdpa_args_init(&p->args);
    p->q = check_tensor_new(c, ATTN_BF16, q, CHECK_DENSE);
    p->k = check_tensor_new(c, ATTN_BF16, k, CHECK_DENSE);
    p->v = check_tensor_new(c, ATTN_BF16, v, CHECK_DENSE);
    p->out = check_tensor_new(c, ATTN_F32, o, CHECK_DENSE);
    for (int64_t j = 0; j < T; j++)
        for (int64_t d = 0; d < D; d++)
            check_store(&p->q.view, 0, 0, j, d, spread * check_normal(c));
    for (int64_t j = 0; j < S; j++)
        for (int64_t d = 0; d < D; d++)
            check_store(&p->k.view, 0, 0, j, d, check_normal(c));
    for (int64_t j = 0; j < S; j++)
        for (int64_t d = 0; d < Dv; d++)
            check_store(&p->v.view, 0, 0, j, d, check_normal(c));
    p->args.q = p->q.view, p->args.k = p->k.view, p->args.v = p->v.view;
    p->args.out = p->out.view;
}

/* The relative error of PyTorch 2.13's bf16 attention for normal data of this size. */
static void as_good_as_pytorch(check_case *c)
{
    problem p;
    make_problem(c, &p, 1024, 1024, 64, 64, 1);
    check_tensor out = check_tensor_new(c, ATTN_BF16, p.args.out.shape, CHECK_DENSE);
    p.args.out = out.view;
    if (attn_sdpa_forward(check_context(c, 1), &p.args, NULL) != ATTN_OK)
        check_fail(c, "refused");
    double *want = check_array(c, 1024 * 64), *got = check_tensor_copy(c, &out.view);
    ref_sdpa_forward(&p.args, &(ref_result){.out = want});
    const double error = check_relative_error(got, want, 1024 * 64);
    check_describe(c, "relative error %.3g", error);
    if (!(error <= 2.25e-3))
        check_fail(c, "PyTorch's is 2.25e-3");
    print_message("relative error of %s, S=1024, D=64: %.3g\n", attn_isa(isa).name, error);
}

static void test_accuracy(void **state)
{
    (void)state;
    run_property(as_good_as_pytorch, "accuracy", 1);
}

/* --------------------------------------------------------------- one kernel against the other */

/* A row is computed in a tile whose blocks are all visible, and in one whose neighbours see fewer
 * keys, so that masks are applied and weights are computed beside the fast kernel. */
static void two_ways(check_case *c, problem *p, const char *what)
{
    const int64_t T = p->args.q.shape[2], Dv = p->args.v.shape[3];
    p->args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    if (attn_sdpa_forward(check_context(c, 3), &p->args, NULL) != ATTN_OK)
        check_fail(c, "refused");
    double *all = check_tensor_copy(c, &p->out.view);
    for (int64_t i = 0; i < T; i += i + 7 < T || i == T - 1 ? 7 : T - 1 - i) {
        attn_sdpa_args one = p->args;
        one.q.data = attni_at(&p->args.q, 0, 0, i, 0);
        one.out.data = attni_at(&p->args.out, 0, 0, i, 0);
        one.q.shape[2] = one.out.shape[2] = 1;
        one.causal = ATTN_CAUSAL_NONE;
        one.k.shape[2] = one.v.shape[2] = p->args.k.shape[2] - (T - 1 - i);
        if (attn_sdpa_forward(check_context(c, 1), &one, NULL) != ATTN_OK)
            check_fail(c, "refused");
        check_difference d;
        if (!check_same(check_tensor_copy(c, &one.out), all + i * Dv, Dv, CHECK_ZERO_SIGNED, &d))
            check_fail(c, "%s: row %d component %d is %.9g, want %.9g", what, (int)i, (int)d.at,
                       d.got, d.want);
    }
}

static void fast_and_aside(check_case *c)
{
    static const int64_t widths[] = {1, 16, 32, 64, 80, 128, 160};
    static const double spreads[] = {0.5, 3, 30, 1e4, 1e9};
    problem p;
    const int64_t T = check_between(c, 1, 70), S = T + check_between(c, 0, 900);
    const int64_t D = CHECK_PICK(c, widths), Dv = CHECK_PICK(c, widths);
    const double spread = CHECK_PICK(c, spreads);
    check_describe(c, "T=%d S=%d D=%d Dv=%d spread=%g", (int)T, (int)S, (int)D, (int)Dv, spread);
    make_problem(c, &p, T, S, D, Dv, spread);
    two_ways(c, &p, "plain");
}

static void test_two_ways(void **state)
{
    (void)state;
    run_property(fast_and_aside, "two ways", 60);
}

/* Keys that grow along the sequence, so that weights computed with the maximum so far are too
 * large in block after block; some of them NaN or so large that log2 units end. */
static void rising(check_case *c)
{
    problem p;
    const int64_t S = 700;
    make_problem(c, &p, 40, S, 64, 64, 1);
    const double rise = c->seed % 2 ? 1.02 : 1.1;
    for (int64_t j = 0; j < S; j++)
        for (int64_t d = 0; d < 64; d++)
            check_store(&p.k.view, 0, 0, j, d,
                        fmin(pow(rise, (double)j), 1e30) * 1e-2 *
                            (0.5 + ref_get(&p.k.view, 0, 0, j, d) * 0.1));
    check_describe(c, "rise %g", rise);
    two_ways(c, &p, "rising");
    check_call call = {.args = p.args, .out = p.out, .compute = ATTN_F32};
    ref_result want;
    call.args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    check_call_reference(c, &call, &want);
    check_call_judge(c, &call, &want);
}

static void test_rising(void **state)
{
    (void)state;
    run_property(rising, "rising", 4);
}

enum tiny { TINY_PLAIN, TINY_SINK, TINY_DROPOUT, TINY_HIDDEN, TINY_WAYS };

/* dq and dk are scale times something, so 0; dv is the sum of the weights. */
static void tiny_gradients(attn_context *ctx, const attn_sdpa_args *args)
{
    attn_sdpa_args a = *args;
    const int64_t S = a.k.shape[2];
    static const uint16_t one = 0x3F80;
    float dq[40], dk[80], dv[40], sum = 0;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_matrix(&one, ATTN_BF16, 20, 1);
    memset(g.dout.stride, 0, sizeof g.dout.stride);
    g.dq = attn_matrix(dq, ATTN_F32, 20, 2);
    g.dk = attn_matrix(dk, ATTN_F32, S, 2);
    g.dv = attn_matrix(dv, ATTN_F32, S, 1);
    assert_int_equal(attn_sdpa_backward(ctx, &a, &g, NULL), ATTN_OK);
    for (int i = 0; i < 40; i++)
        assert_number(fabsf(dq[i]), <, 1e-37F);
    for (int64_t i = 0; i < 2 * S; i++)
        assert_number(fabsf(dk[i]), <, 1e-37F);
    for (int64_t i = 0; i < S; i++)
        sum += dv[i];
    const double weights = a.sink_logits ? 20 * (1 - exp(1.5 - (double)*(float *)a.lse->data)) : 20;
    assert_near((double)sum, weights, <, 0.1);
}

/* 20 queries and S keys that are all 1, values 3 and 1 in turn: weights are equal. */
static void tiny_call(attn_context *ctx, double scale, int64_t S, enum tiny way)
{
    static const uint16_t one = 0x3F80, three_one[] = {0x4040, 0x3F80};
    uint16_t v[40];
    float out[20], lse[20] = {0};
    for (int i = 0; i < 40; i++)
        v[i] = three_one[i % 2];
    const float sink = 1.5f;
    const int64_t seen = way == TINY_HIDDEN && S > 1 ? S - 1 : S;
    const attn_tensor at_lse = attn_matrix(lse, ATTN_F32, 20, 1);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_matrix(&one, ATTN_BF16, 20, 2);
    a.k = attn_matrix(&one, ATTN_BF16, S, 2);
    memset(a.q.stride, 0, sizeof a.q.stride);
    memset(a.k.stride, 0, sizeof a.k.stride);
    a.v = attn_matrix(v, ATTN_BF16, S, 1);
    a.out = attn_matrix(out, ATTN_F32, 20, 1);
    a.lse = &at_lse;
    a.scale = scale;
    a.sink_logits = way == TINY_SINK ? &sink : NULL;
    a.dropout = way == TINY_DROPOUT ? 0x1p-18 : 0; /* drops nothing, but goes that way */
    a.key_lengths = &seen;
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    tiny_gradients(ctx, &a);
    const double total = (double)seen + (way == TINY_SINK ? exp(1.5) : 0);
    const double mean = (double)(2 * seen + seen % 2) / total;
    for (int i = 0; i < 20; i++) {
        assert_near((double)lse[i], log(total), <=, 0.005);
        assert_near((double)out[i], mean, <=, 0.01 * mean);
    }
}

/* A scale so small that its rest is below float's range: all scores are 0, and lse, sinks and
 * gradients are what they are for scores of 0. lse was 0 * infinity, a sink's logit was taken for
 * 0, with dropout hidden keys were 0 * -infinity, and gradients NaN. */
static void test_tiny_scale(void **state)
{
    (void)state;
    static const double scales[] = {1e-56, -1e-60, 0x1p-213, 1e-65, 1e-300, 5e-324};
    attn_context *ctx;
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.isa = attn_isa(isa).name;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    for (size_t n = 0; n < sizeof scales / sizeof *scales; n++)
        for (int64_t S = 1; S <= 40; S += 13)
            for (enum tiny way = 0; way < TINY_WAYS; way++)
                tiny_call(ctx, scales[n], S, way);
    attn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_options), cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_accuracy),       cmocka_unit_test(test_two_ways),
        cmocka_unit_test(test_rising),         cmocka_unit_test(test_tiny_scale),
    };
    static const char *const names[] = {"amx", "avx512bf16"};
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        isa = attni_isa_find(names[i]);
        if (attni_isa_usable(isa))
            failed += cmocka_run_group_tests(tests, NULL, NULL);
        else
            printf("not run: this build has no usable %s\n", names[i]);
    }
    return failed;
}
