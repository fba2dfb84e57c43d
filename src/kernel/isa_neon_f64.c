/* AArch64 NEON, part of every AArch64 processor: double. */
#define ATTNI_BITS 64
#include "isa_neon.c"
