/* Portable code: what every machine can run; float, and double by way of isa_generic_f64.c. */
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME generic

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a bare cc must not fuse what is rounded twice */
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include "vec/vec_generic.h"

#include "tile.inc.h"
