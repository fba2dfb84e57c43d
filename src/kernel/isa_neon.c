/* AArch64 NEON, which every such processor has; float, and double by way of isa_neon_f64.c. */
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME neon

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a bare cc must not fuse what is rounded twice */
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <math.h>
#include "vec/vec_neon.h"

#include "tile.inc.h"
#endif
