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

/* The products compute places in their operands, up to 64 times D or Dv, as int. */
#define MOST_COMPONENTS (1 << 24)

const attni_bf16_unit *attni_bf16_unit_for(const attni_plan *plan)
{
    if (plan->args.q.dtype != ATTN_BF16 ||
        plan->args.k.dtype != ATTN_BF16 || /* k is i8, from a cache */
        plan->args.precision != ATTN_PRECISION_DEFAULT || plan->D > MOST_COMPONENTS ||
        plan->Dv > MOST_COMPONENTS || fabs(plan->scale_pow2) < 0x1p-64 ||
        plan->scale_mantissa > 0x1p64)
        return NULL; /* The unit treats denormal numbers as 0. With a scale within these limits,
                        q * scale_pow2 and q . k are denormal only if q or k is tiny. */
    return attni_bf16_unit_of(plan->kernels->isa);
}

/* Decodes up to 8 queries, and up to 16 if a tile of 16 columns would take longer
 * (docs/decisions/0047). If keys come in pieces, all pieces must take the same route, so neither
 * their number nor their size counts. */
static bool decoding_is_faster(const attni_plan *plan, int rows, int64_t keys)
{
    if (rows <= 8 || plan->in_pieces)
        return true;
    if (rows <= 12)
        return keys >= 32 && plan->D >= 24;
    return keys >= 256 && plan->D >= (plan->from_memory ? 32 : 64);
}

attni_route attni_bf16_route_of(const attni_plan *plan, int rows, int64_t keys)
{
    if (rows <= plan->unit->rows && plan->D > 0 && plan->Dv > 0 && plan->args.dropout == 0 &&
        decoding_is_faster(plan, rows, keys))
        return ATTNI_ROUTE_BF16_DECODE;
    return ATTNI_ROUTE_BF16_TILES;
}
