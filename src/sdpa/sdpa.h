/* The interface of the forward to the modules that compute attention within a call of their own
 * (attni_sdpa_prepare, attni_sdpa_run), and make_plan.c. */
#ifndef ATTNI_SDPA_H
#define ATTNI_SDPA_H

#include "../plan/engine.h"

/* attn_sdpa_forward() in two steps, for modules that compute attention within a call of their own.
 * attni_sdpa_prepare() checks and plans, and touches no data: until attni_sdpa_run(), the tensors
 * of plan->args may be given other `data`. */
attn_status attni_sdpa_prepare(attni_plan *plan, attn_context *ctx, const attn_sdpa_args *args,
                               attn_error *err);
void attni_sdpa_run(const attni_plan *plan, attni_call *call, char *scratch);

/* make_plan.c. Fills the members of the plan that attni_sdpa_check() leaves. */
attn_status attni_make_plan(attni_plan *p, int isa, int threads, attn_error *err);

/* route.c. The route's name, as attn_sdpa_plan shows it; and why the plan has its route. */
const char *attni_route_name(attni_route route);
void attni_route_reason(const attni_plan *p, char *to, size_t bytes);

#endif
