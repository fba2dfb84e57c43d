/* Portable code, for every machine: double. */
#define ATTNI_BITS 64
#include "isa_generic.c"
