/* The bf16 engine (bf16_task.c), for instruction sets that multiply bf16. */
#ifndef ATTNI_BF16_ENGINE_H
#define ATTNI_BF16_ENGINE_H

#include "../plan/engine.h"

/* The engine for this call, or NULL if the call is not for it: other types, options or sizes, or
 * the instruction set of plan->kernels does not multiply bf16. Called by attni_make_plan(). */
const attni_engine *attni_engine_bf16(const attni_plan *plan);

#endif
