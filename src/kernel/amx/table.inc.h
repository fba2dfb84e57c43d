/* The table of "amx": its floats and doubles are those of AVX-512, the operations of the file that
 * includes this after tile.inc.h. What the matrix unit does stands beside the table, in sdpa_amx.c:
 * a task of its own, for bf16. */
const attni_kernels TABLE_NAME(amx, ATTNI_BITS) = {
    .isa = "amx",
    .bits = ATTNI_BITS,
    .lanes = V_LANES,
    .vectors = V_VECTORS,
#define ATTNI_OP(name) .name = op_##name,
#include "../ops.def"
#undef ATTNI_OP
};
