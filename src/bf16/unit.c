/* Finds the unit that multiplies bf16 on an instruction set (unit.h). */
#include "unit.h"

#include <string.h>

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
