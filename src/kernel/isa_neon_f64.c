/* AArch64 NEON, which every such processor has; double. */
#define ATTNI_BITS 64
#include "isa_neon.c"
