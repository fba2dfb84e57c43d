/* AArch64 NEON, part of every AArch64 processor: float; isa_neon_f64.c includes this file for
 * double. */
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME neon

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a plain cc must not fuse separate operations */
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <math.h>
#include "vec/vec_neon.h"

#include "tile.inc.h"
#endif
