/* Portable code, for every machine: float; isa_generic_f64.c includes this file for double. */
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME generic

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a plain cc must not fuse separate operations */
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include "vec/vec_generic.h"

#include "tile.inc.h"
