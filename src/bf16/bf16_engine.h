/* The bf16 engine (bf16_task.c), for instruction sets that multiply bf16. */
#ifndef ATTNI_BF16_ENGINE_H
#define ATTNI_BF16_ENGINE_H

#include "../plan/engine.h"

extern const attni_engine attni_engine_bf16;

/* The unit that this engine uses for this call, or NULL if the call is not for it: other types,
 * options or sizes, or the instruction set of plan->kernels does not multiply bf16. */
const struct attni_bf16_unit *attni_bf16_unit_for(const attni_plan *plan);

/* The route of a tile of `rows` queries of a call that this engine computes. keys: the number
 * of keys of the sequence. */
attni_route attni_bf16_route_of(const attni_plan *plan, int rows, int64_t keys);

#endif
