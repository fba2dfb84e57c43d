/* The bits of a row do not depend on where inputs, outputs and workspace lie in memory.
 *
 * labels: threads
 *
 * Tests inputs, mask and outputs with any strides, negative ones too; the caller's workspace or the
 * context's; results of a wider type, which are rounded once; and one key/value head with its
 * queries, alone or among others. */
#include <stdio.h>

#include "attn.h"
#include "contract.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 6
#else
#define ROUNDS 40
#endif

/* The first call has dense outputs; then inputs, mask and outputs have other strides each time, one
 * in five of them negative. */
static void same_in_any_layout(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call), moved = *a;
    const results want = run(c, a, 1);
    for (int n = 0; n < 4; n++) {
        attn_tensor mask;
        moved.q = copied(c, &a->q), moved.k = copied(c, &a->k), moved.v = copied(c, &a->v);
        if (a->mask) {
            mask = copied(c, a->mask);
            moved.mask = &mask;
        }
        expect_equal(c, "other strides", run_into(c, &moved, n < 2 ? 1 : 3, CHECK_LOOSE), want);
    }
}

/* With scratch of the caller's own, of the size that the plan says, anywhere, full of NaN. */
static void same_in_a_workspace(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    const results want = run(c, a, 1);
    for (int t = 0; t < 4; t++) {
        attn_sdpa_args asks = *a, own = *a;
        attn_plan_info info = {.struct_size = sizeof info};
        attn_error err = {0};
        const int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
        check_tensor lse = check_tensor_new(c, ATTN_F64, shape, CHECK_DENSE), scores;
        asks.lse = &lse.view;
        if (with_scores)
            scores = ask_for_scores(c, &asks, CHECK_DENSE), asks.scores = &scores.view;
        if (attn_sdpa_plan(contexts[c->isa][t], &asks, &info, &err) != ATTN_OK)
            check_fail(c, "%s", err.message);
        own.workspace_bytes = info.scratch_bytes;
        own.workspace = check_buffers_take(c->run->buffers, info.scratch_bytes, 1,
                                           (check_side)check_between(c, CHECK_RIGHT, CHECK_SHIFT),
                                           (size_t)check_between(c, 0, 63));
        expect_equal(c, "own workspace", run(c, &own, thread_counts[t]), want);
    }
}

/* A key/value head and the queries that read it, with their masks, slopes and sinks. */
static void same_head_alone_and_among_others(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    a->dropout = 0; /* counts from the tensor's start */
    const results all = run(c, a, 3);
    const int64_t Hk = a->k.shape[1], G = a->q.shape[1] / Hk;
    for (int64_t g = 0; g < Hk; g++) {
        attn_sdpa_args one = *a;
        attn_tensor mask;
        one.q = slice(a->q, 1, g * G, G, false), one.out.shape[1] = G;
        one.k = slice(a->k, 1, g, 1, false), one.v = slice(a->v, 1, g, 1, false);
        one.alibi_slopes = a->alibi_slopes ? a->alibi_slopes + g * G : NULL;
        one.sink_logits = a->sink_logits ? a->sink_logits + g * G : NULL;
        if (a->mask) {
            mask = slice(*a->mask, 1, g * G, G, true);
            one.mask = &mask;
        }
        const piece its = {.B = a->q.shape[0], .T = a->q.shape[2], .h = g * G, .H = G};
        expect_equal(c, "head alone", run(c, &one, 1), part(c, all, its));
    }
}

/* `wide` rounded once to the type of `narrow`. */
static void expect_rounded(check_case *c, const char *name, const attn_tensor *wide,
                           const attn_tensor *narrow)
{
    const check_tensor rounded = check_tensor_new(c, narrow->dtype, narrow->shape, CHECK_DENSE);
    const int64_t *z = wide->shape;
    for (int64_t b = 0; b < z[0]; b++)
        for (int64_t h = 0; h < z[1]; h++)
            for (int64_t i = 0; i < z[2]; i++)
                for (int64_t j = 0; j < z[3]; j++)
                    check_store(&rounded.view, b, h, i, j, ref_get(wide, b, h, i, j));
    check_difference d;
    if (!check_same(check_tensor_copy(c, narrow), check_tensor_copy(c, &rounded.view),
                    check_count(narrow), CHECK_ZERO_ANY, &d))
        check_fail(c, "%s %" PRId64 " is %.17g, want %.17g, the wider one rounded", name, d.at,
                   d.got, d.want);
}

/* out of q's own type, lse of f32 and scores of f16 are those of f64, rounded once. */
static void wider_results_rounded(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call), wide = *a, narrow = *a;
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    const int64_t pairs[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    check_tensor outs[2] = {check_tensor_new(c, ATTN_F64, a->out.shape, CHECK_LOOSE),
                            check_tensor_new(c, a->q.dtype, a->out.shape, CHECK_LOOSE)};
    check_tensor lses[2] = {check_tensor_new(c, ATTN_F64, rows, CHECK_LOOSE),
                            check_tensor_new(c, ATTN_F32, rows, CHECK_LOOSE)};
    check_tensor scores[2] = {check_tensor_new(c, ATTN_F64, pairs, CHECK_LOOSE),
                              check_tensor_new(c, ATTN_F16, pairs, CHECK_LOOSE)};
    wide.out = outs[0].view, wide.lse = &lses[0].view, wide.scores = &scores[0].view;
    narrow.out = outs[1].view, narrow.lse = &lses[1].view, narrow.scores = &scores[1].view;
    wide.scores_stage = narrow.scores_stage = (attn_stage)(c->seed & 3);
    if (attn_sdpa_forward(contexts[c->isa][0], &wide, NULL) != ATTN_OK ||
        attn_sdpa_forward(contexts[c->isa][1], &narrow, NULL) != ATTN_OK)
        check_fail(c, "refused");
    expect_rounded(c, "out", &wide.out, &narrow.out);
    expect_rounded(c, "lse", wide.lse, narrow.lse);
    expect_rounded(c, "scores", wide.scores, narrow.scores);
}

/* ------------------------------------------------------------------------------------ the tests */

static void with_and_without_scores(void (*property)(check_case *), const char *name)
{
    run_property(property, name, ROUNDS);
    with_scores = true;
    run_property(property, name, ROUNDS / 2);
    with_scores = false;
}

static void test_layouts(void **state)
{
    (void)state;
    with_and_without_scores(same_in_any_layout, "layouts");
}

static void test_workspace(void **state)
{
    (void)state;
    with_and_without_scores(same_in_a_workspace, "workspace");
}

static void test_heads(void **state)
{
    (void)state;
    with_and_without_scores(same_head_alone_and_among_others, "heads");
}

static void test_types(void **state)
{
    (void)state;
    run_property(wider_results_rounded, "types", ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, create_contexts, destroy_contexts);
}
