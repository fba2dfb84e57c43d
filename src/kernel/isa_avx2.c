/* AVX2 with FMA: float; isa_avx2_f64.c includes this file for double. */
#if defined(__x86_64__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME avx2

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC optimize("fp-contract=off") /* a plain cc must not fuse separate operations */
#pragma GCC target("avx2,fma,f16c")
#endif
#include <math.h>
#include "vec/vec_avx2.h"

#include "tile.inc.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
