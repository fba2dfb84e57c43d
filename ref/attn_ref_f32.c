/* The definition in float: the result of plain, unfused, untiled single precision. */
#define REF_REAL float
#define REF_FORWARD ref_sdpa_forward_f32
#define REF_BACKWARD ref_sdpa_backward_f32
#include "attn_ref.c"
