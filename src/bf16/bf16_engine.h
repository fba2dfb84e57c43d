/* The engine for bf16, where an instruction set multiplies bf16. */
#ifndef ATTNI_BF16_ENGINE_H
#define ATTNI_BF16_ENGINE_H

#include "../plan/engine.h"

/* NULL: the call is not for it: types, options or sizes are others, or plan->kernels' instruction
 * set does not multiply bf16. */
const attni_engine *attni_engine_bf16(const attni_plan *plan);

#endif
