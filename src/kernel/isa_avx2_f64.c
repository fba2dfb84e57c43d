/* AVX2 with FMA: double. */
#define ATTNI_BITS 64
#include "isa_avx2.c"
