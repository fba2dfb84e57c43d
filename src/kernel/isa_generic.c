/* Portable code: what every machine can run; float. */
#define ATTNI_BITS 32
#define ATTNI_ISA_NAME generic

#include "vec/vec_generic.h"

#include "tile.inc.h"
