/* The forward, between sdpa.c, make_plan.c and modules that compute attention in a call of their
 * own. */
#ifndef ATTNI_SDPA_H
#define ATTNI_SDPA_H

#include "../plan/engine.h"

/* attn_sdpa_forward in two pieces, for modules that attend inside a call of their own. prepare
 * checks and plans, and touches no data: until run, the tensors of plan->args may be given other
 * `data`. */
attn_status attni_sdpa_prepare(attni_plan *plan, attn_context *ctx, const attn_sdpa_args *args,
                               attn_error *err);
void attni_sdpa_run(const attni_plan *plan, attni_call *call, char *scratch);

/* make_plan.c. Fills the rest of a plan that attni_sdpa_check has filled. */
attn_status attni_make_plan(attni_plan *p, int isa, int threads, attn_error *err);

#endif
