/* AVX-512 (F, BW, DQ, VL): float; isa_avx512_f64.c includes this file for double. */
#if defined(__x86_64__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME avx512

#include "vec/target_avx512.h"
#include <math.h>
#include "vec/vec_avx512.h"

#include "tile.inc.h"

/* These two have the table of avx512, and an engine of their own for bf16 (bf16_task.c). */
#undef ATTNI_ISA_NAME
#define ATTNI_ISA_NAME avx512bf16
#include "table.inc.h"
#undef ATTNI_ISA_NAME
#define ATTNI_ISA_NAME amx
#include "table.inc.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
