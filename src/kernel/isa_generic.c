/* Portable code: what every machine can run; float. */
#define ATTNI_BITS 32
#define ATTNI_ISA_NAME generic

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a bare cc must not fuse what is rounded twice */
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include "vec/vec_generic.h"

#include "tile.inc.h"
