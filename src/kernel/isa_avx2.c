/* AVX2 with FMA; float, and double by way of isa_avx2_f64.c. */
#if defined(__x86_64__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME avx2

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC optimize("fp-contract=off") /* a bare cc must not fuse what is rounded twice */
#pragma GCC target("avx2,fma,f16c")
#endif
#include <math.h>
#include "vec/vec_avx2.h"

#include "tile.inc.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
