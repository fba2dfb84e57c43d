/* AVX-512 (F, BW, DQ, VL): double. */
#define ATTNI_BITS 64
#include "isa_avx512.c"
