/* A kind of mask, which is a row of the table in mask.c. The head of mask.c says what the functions
 * do. */
#ifndef ATTNI_MASK_KIND_H
#define ATTNI_MASK_KIND_H

#include "plan.h"

typedef struct mask_kind {
    const char *name;
    bool (*active)(const attn_sdpa_args *args);
    attn_status (*check)(const attni_plan *plan, attn_error *err);
    void (*span)(const attni_sequence *sequence, int64_t i0, int64_t i1, attni_span *span);
    attni_class (*scan)(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                        int64_t j1);
    void (*add)(const attni_sequence *sequence, const attni_block *block);
    void (*show)(const attni_sequence *sequence, const attni_block *block, uint64_t *visible);
} mask_kind;

/* mask_dense.c: both kinds of dense masks, bool and bias (a float mask). */
attn_status attni_dense_check(const attni_plan *plan, attn_error *err);
attni_class attni_bool_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                            int64_t j1);
void attni_bool_show(const attni_sequence *sequence, const attni_block *block, uint64_t *visible);
attni_class attni_bias_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                            int64_t j1);
void attni_bias_add(const attni_sequence *sequence, const attni_block *block);

#endif
