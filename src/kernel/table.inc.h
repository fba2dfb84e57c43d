/* The kernel table, named after ATTNI_ISA_NAME, of the operations that tile.inc.h defined. A file
 * may include this again under another name: avx512bf16 and amx have the operations of avx512. */
#ifndef TABLE_NAME
#define TABLE_NAME_(isa, bits) attni_##isa##_f##bits
#define TABLE_NAME(isa, bits) TABLE_NAME_(isa, bits)
#define STRING_(x) #x
#define STRING(x) STRING_(x)
#endif

const attni_kernels TABLE_NAME(ATTNI_ISA_NAME, ATTNI_BITS) = {
    .isa = STRING(ATTNI_ISA_NAME),
    .bits = ATTNI_BITS,
    .lanes = V_LANES,
    .vectors = V_VECTORS,
    .three_vectors = V_THREE,
    .max_decode_rows = V_MAX_DECODE_ROWS,
#ifdef V_HALVES
    .halves = 1,
#endif
#ifndef V_NO_FMA
    .fused = 1,
#endif
#define ATTNI_OP(name) .name = op_##name,
#include "ops.def"
#undef ATTNI_OP
};
