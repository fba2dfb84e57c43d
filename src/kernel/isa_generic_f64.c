/* Portable code: what every machine can run; double. */
#define ATTNI_BITS 64
#include "isa_generic.c"
