/* Portable code: what every machine can run; double. */
#define ATTNI_BITS 64
#define ATTNI_ISA_NAME generic

#include "vec/vec_generic.h"

#include "tile.inc.h"
