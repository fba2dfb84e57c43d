/* AVX-512: F, BW, DQ, VL; double. */
#if defined(__x86_64__)
#define ATTNI_BITS 64
#define ATTNI_ISA_NAME avx512

#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC optimize("fp-contract=off") /* a bare cc must not fuse what is rounded twice */
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif
#include <math.h>
#include "vec/vec_avx512.h"

#include "tile.inc.h"

/* These are avx512 with a way of their own for bf16: sdpa_amx.c */
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
