/* Finds the kernel table of an instruction set, by its index in isa.def. */
#include "kernel.h"

#include <stddef.h>

const attni_kernels *attni_kernels_of(int isa, int bits)
{
    static const attni_kernels *const table[][2] = {
#define ATTNI_ISA(name, ...) {&attni_##name##_f32, &attni_##name##_f64},
#include "../core/isa.def"
#undef ATTNI_ISA
    };
    if (isa < 0 || isa >= (int)(sizeof table / sizeof *table))
        return NULL;
    return table[isa][bits == 64];
}
