/* Whole calls of attn_sdpa_backward, with random combinations of every option, type and layout,
 * against the definition. */
#include "check_gradients.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WORK 1.5e6

static attn_dtype wide(check_case *c) { return check_chance(c, 60) ? ATTN_F32 : ATTN_F64; }

static void choose_inputs(check_case *c, check_gradients *g)
{
    attn_sdpa_args *a = &g->call.args;
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    a->scores = NULL;
    g->call.lse = check_tensor_new(c, wide(c), rows, CHECK_LOOSE);
    a->lse = &g->call.lse.view;
    attn_sdpa_grads_init(&g->grads);
    attn_dtype dtype = check_chance(c, 70) ? a->q.dtype : wide(c);
    g->dout =
        check_tensor_new(c, dtype, a->out.shape, check_chance(c, 50) ? CHECK_DENSE : CHECK_REPEAT);
    check_call_fill(c, &g->dout, 1);
    g->grads.dout = g->dout.view;
    check_call_say(c, attn_dtype_name(dtype));
    if (check_chance(c, 25)) {
        g->dlse = check_tensor_new(c, wide(c), rows, CHECK_REPEAT);
        check_call_fill(c, &g->dlse, 1);
        g->grads.dlse = &g->dlse.view;
        check_call_say(c, "dlse");
    }
}

static void choose_output(check_case *c, const check_gradients *g, check_tensor *t,
                          const attn_tensor *of, const char *name, ref_grad *want)
{
    if (check_chance(c, 12))
        return;
    attn_dtype dtype = check_chance(c, 60) ? g->call.args.q.dtype : wide(c);
    *t = check_tensor_new(c, dtype, of->shape, check_chance(c, 50) ? CHECK_DENSE : CHECK_LOOSE);
    want->x = check_array(c, check_count(of));
    want->error = check_array(c, check_count(of));
    check_call_say(c, name);
}

static void choose_outputs(check_case *c, check_gradients *g)
{
    const attn_sdpa_args *a = &g->call.args;
    choose_output(c, g, &g->dq, &a->q, "dq", &g->want.dq);
    choose_output(c, g, &g->dk, &a->k, "dk", &g->want.dk);
    choose_output(c, g, &g->dv, &a->v, "dv", &g->want.dv);
    g->grads.dq = g->dq.view, g->grads.dk = g->dk.view, g->grads.dv = g->dv.view;
    if (a->mask && a->mask->dtype != ATTN_BOOL && check_chance(c, 70)) {
        g->dmask = check_tensor_new(c, wide(c), a->mask->shape, CHECK_LOOSE);
        g->grads.dmask = &g->dmask.view;
        g->want.dmask.x = check_array(c, check_count(a->mask));
        g->want.dmask.error = check_array(c, check_count(a->mask));
        check_call_say(c, "dmask");
    }
    if (a->alibi_slopes && check_chance(c, 70)) {
        g->grads.dalibi_slopes = g->dalibi;
        g->want.dalibi = (ref_grad){check_array(c, a->q.shape[1]), check_array(c, a->q.shape[1])};
    }
    if (a->sink_logits && check_chance(c, 70)) {
        g->grads.dsink_logits = g->dsink;
        g->want.dsink = (ref_grad){check_array(c, a->q.shape[1]), check_array(c, a->q.shape[1])};
    }
}

void check_gradients_choose(check_case *c, check_gradients *g)
{
    choose_inputs(c, g);
    choose_outputs(c, g);
}

static bool repeats(const attn_tensor *t)
{
    for (int d = 0; d < 3; d++) /* the same memory may be a row that is seen */
        if (t->stride[d] == 0 && t->shape[d] > 1)
            return true;
    return false;
}

static void poison_row(check_case *c, const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    static const double poison[] = {NAN, INFINITY, -INFINITY, 1e38};
    for (int64_t d = 0; d < t->shape[3] && !repeats(t); d++)
        check_store(t, b, h, i, d, CHECK_PICK(c, poison));
}

/* Poisons every row that no query-key pair uses: keys and values that no query sees, q and dout of
 * rows that see no key. A result that uses such a row shows it. */
static void poison_hidden(check_case *c, check_gradients *g)
{
    attn_sdpa_args *a = &g->call.args;
    int64_t B = a->q.shape[0], H = a->q.shape[1], T = a->q.shape[2], Hk = a->k.shape[1];
    int64_t S = a->k.shape[2];
    ref_result forward = {0};
    double *biased = forward.stages[ATTN_STAGE_BIASED] = check_array(c, B * H * T * S);
    double *seen = check_array(c, B * Hk * S);
    if (!ref_sdpa_forward(a, &forward))
        check_abandon(c, "out of memory");
    for (int64_t row = 0; row < B * H * T; row++) {
        int64_t b = row / T / H, h = row / T % H, i = row % T;
        bool any = false;
        for (int64_t j = 0; j < S; j++)
            if (biased[row * S + j] != -INFINITY) {
                seen[(b * Hk + h / (H / Hk)) * S + j] = 1;
                any = true;
            }
        if (!any) {
            poison_row(c, &a->q, b, h, i);
            poison_row(c, &g->grads.dout, b, h, i);
        }
    }
    for (int64_t at = 0; at < B * Hk * S; at++)
        if (seen[at] == 0) {
            poison_row(c, &a->k, at / S / Hk, at / S % Hk, at % S);
            poison_row(c, &a->v, at / S / Hk, at / S % Hk, at % S);
        }
}

static void bring_workspace(check_case *c, check_gradients *g, attn_context *ctx)
{
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    attn_error err = {0};
    if (attn_sdpa_backward_plan(ctx, &g->call.args, &g->grads, &info, &err) != ATTN_OK) {
        check_fail(c, "plan: %s", err.message);
        return;
    }
    check_side side = (check_side)check_between(c, CHECK_RIGHT, CHECK_SHIFT);
    g->call.args.workspace = check_buffers_take(c->run->buffers, info.scratch_bytes, 1, side,
                                                (size_t)check_between(c, 0, 63));
    g->call.args.workspace_bytes = info.scratch_bytes;
    if (!g->call.args.workspace)
        check_abandon(c, "out of memory");
}

/* The additional error of a type that is narrower than that of the sums. */
static double narrower(attn_dtype type, attn_dtype compute)
{
    return check_unit(type) > check_unit(compute) ? check_unit(type) : 0;
}

/* check_call_extra_units(), and what gradients add: with repeated rows of q or dout, a sum rounds
 * in the same direction in every step. */
static double extra_units(const check_gradients *g)
{
    const attn_sdpa_args *a = &g->call.args;
    const attn_tensor *dout = &g->grads.dout;
    double T = (double)a->q.shape[2], units = check_call_extra_units(&g->call);
    if (T > 1 && (a->q.stride[2] == 0 || dout->stride[2] == 0))
        units += fmin(T, ATTNI_BLOCK + T / ATTNI_BLOCK);
    if (dout->shape[3] > 1 && dout->stride[3] == 0)
        units += (double)dout->shape[3];
    return units;
}

/* The relative error of weights and of gradients of scores when they are multiplied. If dout is
 * bf16 too, they are rounded to bf16. */
static double factor_error(const check_gradients *g, double weight_error)
{
    return weight_error > 0 && g->grads.dout.dtype == ATTN_BF16 ? 0x1p-8 : 0;
}

void check_gradients_reference(check_case *c, check_gradients *g)
{
    const check_call *call = &g->call;
    const double weight = check_call_weight_error(c, call);
    g->want.unit = check_unit(call->compute) * (1 + extra_units(g) / 8);
    g->want.out_unit = narrower(call->args.out.dtype, call->compute) + 2 * weight;
    g->want.out_tiny = g->want.out_unit > 0 ? check_ulp(call->args.out.dtype, 0) : 0;
    g->want.lse_unit = narrower(call->args.lse->dtype, call->compute);
    g->want.weight_error = weight;
    g->want.factor_error = factor_error(g, weight);
    g->want.tiny = 128 * (call->compute == ATTN_F64 ? 0x1p-1022 : 0x1p-126);
    /* heads that share an element of a dense mask add to it one after the other */
    if (g->grads.dmask) {
        const int64_t *n = call->args.mask->shape, *q = call->args.q.shape;
        double sharing = (n[0] == 1 ? (double)q[0] : 1) * (n[1] == 1 ? (double)q[1] : 1);
        g->want.dmask_unit = sharing * narrower(g->grads.dmask->dtype, call->compute);
        for (int64_t i = 0; i < check_count(g->grads.dmask); i++)
            g->want.dmask.error[i] += g->want.dmask_unit > 0 ? sharing * 0x1p-149 : 0;
    }
    bool done = call->compute == ATTN_F64 ? ref_sdpa_backward_wide(&call->args, &g->grads, &g->want)
                                          : ref_sdpa_backward(&call->args, &g->grads, &g->want);
    if (!done)
        check_abandon(c, "out of memory");
}

static void open_bounds(const ref_grad *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        /* The bound was infinity times 0, in a row in which any weights are accepted
         * (weights_are_open() in check_call.c). */
        if (isnan(want->error[i]))
            want->error[i] = INFINITY;
}

void check_gradients_judge(check_case *c, const check_gradients *g, const char *name,
                           const check_tensor *t, const ref_grad *want)
{
    if (!want->x)
        return;
    open_bounds(want, check_count(&t->view));
    check_call_judge_one(c, name, &g->call, t, want->x, want->error);
}

void check_gradients_judge_heads(check_case *c, const char *name, const double *got,
                                 const ref_grad *want, int64_t H)
{
    check_difference d;
    if (!want->x)
        return;
    open_bounds(want, H);
    if (!check_within(got, want->x, want->error, H, &d))
        check_fail(c, "%s[%" PRId64 "]: %.9g want %.9g (off by %.3g, bound %.3g)", name, d.at,
                   d.got, d.want, d.error, d.bound);
}

void check_backward(check_case *c)
{
    check_gradients g = {.want = {0}};
    check_call_random(c, &g.call, WORK);
    attn_sdpa_args *a = &g.call.args;
    check_gradients_choose(c, &g);
    if (check_chance(c, 40))
        poison_hidden(c, &g);
    attn_context *ctx = check_context(c, g.call.threads);
    attn_error err = {0};
    attn_status status = attn_sdpa_forward(ctx, a, &err);
    if (check_chance(c, 20))
        bring_workspace(c, &g, ctx);
    if (status == ATTN_OK)
        status = attn_sdpa_backward(ctx, a, &g.grads, &err);
    if (status != ATTN_OK)
        check_fail(c, "%s: %s", attn_status_name(status), err.message);
    check_gradients_reference(c, &g);
    check_gradients_judge(c, &g, "dq", &g.dq, &g.want.dq);
    check_gradients_judge(c, &g, "dk", &g.dk, &g.want.dk);
    check_gradients_judge(c, &g, "dv", &g.dv, &g.want.dv);
    check_gradients_judge(c, &g, "dmask", &g.dmask, &g.want.dmask);
    check_gradients_judge_heads(c, "dalibi", g.dalibi, &g.want.dalibi, a->q.shape[1]);
    check_gradients_judge_heads(c, "dsink", g.dsink, &g.want.dsink, a->q.shape[1]);
    check_expect_intact(c);
    CHECK_BENCH(c, 5.0 * (double)check_count(&a->q) * (double)a->k.shape[2],
                attn_sdpa_backward(ctx, a, &g.grads, NULL));
}
