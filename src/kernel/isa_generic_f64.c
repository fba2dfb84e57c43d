/* Portable code: what every machine can run; double. */
#define ATTNI_BITS 64
#define ATTNI_ISA_NAME generic
#define ATTNI_BLOCK 64

#include "vec/vec_generic.h"

#include "tile.inc.h"
