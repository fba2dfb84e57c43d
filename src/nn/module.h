/* What the modules share: checks of their tensors, and the linear layer in pieces, for modules that
 * run several of them inside one call. */
#ifndef ATTNI_NN_MODULE_H
#define ATTNI_NN_MODULE_H

#include "../internal.h"
#include "../kernel/kernel.h"

/* -------------------------------------------------------------------------------------- module.c
 *
 * An input or an output of a module: f32 or f64, as `first` is, which goes by first_name. */
attn_status attni_module_check(const attn_tensor *t, const char *name, const attn_tensor *first,
                               const char *first_name, attn_error *err);
attn_status attni_module_check_output(const attn_tensor *t, const char *name,
                                      const attn_tensor *first, const char *first_name,
                                      attn_error *err);
attn_status attni_module_check_shape(const attn_tensor *t, const char *name, int64_t n0, int64_t n1,
                                     int64_t n2, int64_t n3, attn_error *err);
/* attni_layout_take of n0 x n1 x n2 x n3 elements. */
void *attni_module_take(attni_layout *layout, size_t element, int64_t n0, int64_t n1, int64_t n2,
                        int64_t n3);

/* -------------------------------------------------------------------------------------- linear.c
 *
 * What one layer will do: filled by attni_linear_plan, then read only. */
typedef struct attni_linear {
    attn_tensor x, weight, bias, out; /* repeated sizes have stride 0 */
    bool has_bias, gather_x, gather_weight, scatter_out;
    const attni_kernels *kernels;
    int width;                  /* rows of x in a tile, at most */
    int64_t tiles, outputs;     /* of a task: tiles of rows, columns of out */
    int64_t groups, chunks;     /* tasks of one (b, h): groups of tiles x chunks of columns */
    size_t tasks;               /* in all */
    int workers;                /* that are worth waking */
    size_t worker_bytes, bytes; /* scratch of one worker, and of all */
} attni_linear;

/* Plans for tensors that fit together; bias may be NULL. Fails only where scratch would be too
 * large to address. threads: the most there are. */
attn_status attni_linear_plan(attni_linear *plan, int isa, int threads, const attn_tensor *x,
                              const attn_tensor *weight, const attn_tensor *bias,
                              const attn_tensor *out, attn_error *err);
/* Runs it in an open call, on plan->bytes of scratch aligned to ATTNI_ALIGN. Until then the tensors
 * of the plan may be given other `data`. */
void attni_linear_run(const attni_linear *plan, attni_call *call, char *scratch);

#endif
