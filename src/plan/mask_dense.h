/* The functions of dense masks, bool and bias (a float mask), for the table of kinds in mask.c. The
 * head of mask.c says what each of them does. (mask.h declares the prefetching of dense masks.) */
#ifndef ATTNI_MASK_DENSE_H
#define ATTNI_MASK_DENSE_H

#include "plan.h"

attn_status attni_dense_check(const attni_plan *plan, attn_error *err); /* of both kinds */
attni_class attni_bool_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                            int64_t j1);
void attni_bool_show(const attni_sequence *sequence, const attni_block *block, uint64_t *visible);
attni_class attni_bias_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                            int64_t j1);
void attni_bias_add(const attni_sequence *sequence, const attni_block *block);

#endif
