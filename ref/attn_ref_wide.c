/* The definition in long double (64 or more bits of fraction on x86, software arithmetic
 * elsewhere), so that double results can be compared with something wider. */
#define REF_REAL long double
#define REF_FORWARD ref_sdpa_forward_wide
#define REF_BACKWARD ref_sdpa_backward_wide
#include "attn_ref.c"
