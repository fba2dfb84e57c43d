/* Chooses the unit that multiplies bf16 on an instruction set (unit.h), and the route of a tile on
 * it. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "bf16_engine.h"

const attni_bf16_unit *attni_bf16_unit_of(const char *isa)
{
#if defined(__x86_64__)
    if (strcmp(isa, "amx") == 0)
        return &attni_bf16_amx;
    if (strcmp(isa, "avx512bf16") == 0)
        return &attni_bf16_dot;
#endif
    (void)isa;
    return NULL;
}

const attni_bf16_unit *attni_bf16_unit_for(const attni_plan *plan)
{
    if (plan->args.q.dtype != ATTN_BF16 ||
        plan->args.k.dtype != ATTN_BF16 || /* k is i8, from a cache */
        plan->args.precision != ATTN_PRECISION_DEFAULT || plan->D > INT32_MAX - 32 ||
        plan->Dv > INT32_MAX - 32 || fabs(plan->scale_pow2) < 0x1p-64 ||
        plan->scale_mantissa > 0x1p64)
        return NULL; /* The unit treats denormal numbers as 0. With a scale within these limits,
                        q * scale_pow2 and q . k are denormal only if q or k is tiny. */
    return attni_bf16_unit_of(plan->kernels->isa);
}

/* The smallest number of keys with which `rows` queries are decoded: with fewer, a tile of 16
 * columns is faster (docs/decisions/0047). If keys come in pieces, there is no minimum, because all
 * pieces must take the same route. */
static int64_t fewest_keys(const attni_plan *plan, int rows)
{
    return plan->in_pieces || rows <= 8 ? 0 : rows <= 12 ? 32 : 256;
}

attni_route attni_bf16_route_of(const attni_plan *plan, int rows, int64_t keys)
{
    if (rows <= plan->unit->rows && plan->D > 0 && plan->Dv > 0 && plan->args.dropout == 0 &&
        keys >= fewest_keys(plan, rows))
        return ATTNI_ROUTE_BF16_DECODE;
    return ATTNI_ROUTE_BF16_TILES;
}
