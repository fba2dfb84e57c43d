/* Finds the table of operations of an instruction set: rows of isa.def, in its order. */
#include "kernel.h"

#include "bf16/bf16.h"

#include <stddef.h>
#include <string.h>

const attni_kernels *attni_kernels_of(int isa, int bits)
{
    static const attni_kernels *const table[][2] = {
#define ATTNI_ISA(name) {&attni_##name##_f32, &attni_##name##_f64},
#include "isa.def"
#undef ATTNI_ISA
    };
    if (isa < 0 || isa >= (int)(sizeof table / sizeof *table))
        return NULL;
    return table[isa][bits == 64];
}

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
