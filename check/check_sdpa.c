/* Whole calls: attn_sdpa_forward, with random combinations of every option, type and layout, and
 * attn_dropout_mask, against the definition. */
#include "check_call.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The most multiplications in a call: enough for every T and S of check_call.c, if heads are
 * narrow. */
#define WORK 3e6

/* Gives the call a workspace of exactly the size that its plan requires, at any address. */
static void bring_workspace(check_case *c, check_call *call, attn_context *ctx)
{
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    attn_error err = {0};
    if (attn_sdpa_plan(ctx, &call->args, &info, &err) != ATTN_OK) {
        check_fail(c, "plan: %s", err.message);
        return;
    }
    check_side side = (check_side)check_between(c, CHECK_RIGHT, CHECK_SHIFT);
    call->args.workspace = check_buffers_take(c->run->buffers, info.scratch_bytes, 1, side,
                                              (size_t)check_between(c, 0, 63));
    call->args.workspace_bytes = info.scratch_bytes;
    if (!call->args.workspace)
        check_abandon(c, "out of memory");
}

/* Poisons keys and values that no query sees. The expected result stays the same, so a result that
 * uses one of them shows it. */
static void poison_hidden(check_case *c, check_call *call, const ref_result *want)
{
    static const double poison[] = {NAN, INFINITY, -INFINITY, 1e38};
    attn_sdpa_args *a = &call->args;
    int64_t B = a->q.shape[0], H = a->q.shape[1], T = a->q.shape[2], Hk = a->k.shape[1];
    int64_t S = a->k.shape[2];
    for (int d = 0; d < 3; d++) /* the same memory may be a key that is seen */
        if ((a->k.stride[d] == 0 && a->k.shape[d] > 1) ||
            (a->v.stride[d] == 0 && a->v.shape[d] > 1))
            return;
    const double *biased = want->stages[ATTN_STAGE_BIASED];
    for (int64_t b = 0; b < B; b++)
        for (int64_t g = 0; g < Hk; g++)
            for (int64_t j = 0; j < S; j++) {
                bool seen = false;
                for (int64_t h = g * (H / Hk); h < (g + 1) * (H / Hk); h++)
                    for (int64_t i = 0; i < T && !seen; i++)
                        seen = biased[((b * H + h) * T + i) * S + j] != -INFINITY;
                for (int64_t d = 0; d < a->k.shape[3] && !seen; d++)
                    check_store(&a->k, b, g, j, d, CHECK_PICK(c, poison));
                for (int64_t d = 0; d < a->v.shape[3] && !seen; d++)
                    check_store(&a->v, b, g, j, d, CHECK_PICK(c, poison));
            }
}

void check_sdpa(check_case *c)
{
    check_call call;
    ref_result want;
    check_call_random(c, &call, WORK);
    check_call_reference(c, &call, &want);
    attn_sdpa_args *a = &call.args;
    bool all_pairs = a->scores && a->scores_stage <= ATTN_STAGE_SOFTCAP;
    if (!all_pairs && check_chance(c, 40))
        poison_hidden(c, &call, &want);

    attn_context *ctx = check_context(c, call.threads);
    if (check_chance(c, 20))
        bring_workspace(c, &call, ctx);
    attn_error err = {0};
    attn_status status = attn_sdpa_forward(ctx, a, &err);
    if (status != ATTN_OK)
        check_fail(c, "%s: %s", attn_status_name(status), err.message);
    check_call_judge(c, &call, &want);
    check_expect_intact(c);
    CHECK_BENCH(c, 2.0 * (double)check_count(&a->q) * (double)a->k.shape[2],
                attn_sdpa_forward(ctx, a, NULL));
}

void check_dropout(check_case *c)
{
    static const double rates[] = {0, 0.1, 0.5, 0.999, 1e-5, 0.99999};
    int64_t shape[4] = {check_between(c, 0, 3), check_between(c, 1, 3), check_between(c, 0, 20),
                        check_between(c, 0, 70)};
    uint64_t seed = check_random(c);
    double p = CHECK_PICK(c, rates);
    check_describe(c, "[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "] p=%g", shape[0], shape[1],
                   shape[2], shape[3], p);
    check_tensor mask = check_tensor_new(c, ATTN_BOOL, shape, CHECK_LOOSE);
    attn_error err = {0};
    if (attn_dropout_mask(seed, p, &mask.view, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++)
                for (int64_t j = 0; j < shape[3]; j++)
                    if (ref_get(&mask.view, b, h, i, j) !=
                        ref_dropout_keep(seed, p, b * shape[1] + h, i, j))
                        check_fail(c, "element %" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64, b, h,
                                   i, j);
    if (!check_tensor_gaps(&mask))
        check_fail(c, "wrote between rows");
    check_expect_intact(c);
}
