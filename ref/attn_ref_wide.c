/* The definition in long double: 64 or more bits of fraction on x86 and in software elsewhere, so
 * that results in double have something wider to be measured against. */
#define REF_REAL long double
#define REF_FORWARD ref_sdpa_forward_wide
#define REF_BACKWARD ref_sdpa_backward_wide
#include "attn_ref.c"
