/* AVX-512: F, BW, DQ, VL; float, and double by way of isa_avx512_f64.c. */
#if defined(__x86_64__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME avx512

#include "vec/target_avx512.h"
#include <math.h>
#include "vec/vec_avx512.h"

#include "tile.inc.h"

/* These are avx512 with a way of their own for bf16: bf16_task.c */
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
