/* attn_sdpa_plan: tells the caller what a call would run, without running it. */
#include "sdpa.h"

#include <stdio.h>

attn_status attn_sdpa_plan(attn_context *ctx, const attn_sdpa_args *args, attn_plan_info *info,
                           attn_error *err)
{
    ATTNI_DEFAULT_MODE;
    attni_plan plan;
    attn_status status = attni_sdpa_prepare(&plan, ctx, args, err);
    if (status)
        return status;
    attn_plan_info made = {0};
    const attn_sdpa_args *a = &plan.args;
    const char *operands = plan.kernels->bits == 32 ? "f32" : "f64";
    snprintf(made.kernel, sizeof made.kernel, "%s %s %dx%d", plan.kernels->isa,
             plan.engine->operands ? plan.engine->operands : operands,
             plan.nv * plan.kernels->lanes, ATTNI_CHUNK);
    /* room to align a workspace that is not aligned */
    made.scratch_bytes = plan.scratch_bytes + ATTNI_ALIGN - 1;
    made.threads = plan.workers > 1 ? plan.workers : 1;
    made.tasks = plan.tasks;
    made.flop = 2 * attni_visible_pairs(&plan) * (double)plan.H * (double)(plan.D + plan.Dv);
    made.bytes = attni_tensor_bytes(&a->q) + attni_tensor_bytes(&a->k) + attni_tensor_bytes(&a->v) +
                 attni_tensor_bytes(&a->out);
    snprintf(made.route, sizeof made.route, "%s", attni_route_name(plan.route));
    attni_route_reason(&plan, made.why, sizeof made.why);
    made.tiles = plan.tiles;
    made.parts = plan.parts;
    made.prefetch = plan.far;
    if (a->mask)
        made.bytes += attni_tensor_bytes(a->mask);
    if (a->lse)
        made.bytes += attni_tensor_bytes(a->lse);
    if (a->scores)
        made.bytes += attni_tensor_bytes(a->scores);
    return attni_struct_write(ATTNI_PLAN_INFO, info, &made, "info", err);
}
