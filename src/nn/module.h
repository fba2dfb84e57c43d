/* What the modules share: checks of their tensors; the linear layer in steps, for modules that run
 * several linear layers inside one call; multi-head attention with or without packed weights. */
#ifndef ATTNI_NN_MODULE_H
#define ATTNI_NN_MODULE_H

#include <math.h>

#include "../core/internal.h"
#include "../kernel/kernel.h"

/* -------------------------------------------------------------------------------------- module.c
 *
 * Checks an input or an output of a module: f32 or f64, and the same dtype as `first`, which
 * messages call first_name. */
attn_status attni_module_check(const attn_tensor *t, const char *name, const attn_tensor *first,
                               const char *first_name, attn_error *err);
attn_status attni_module_check_output(const attn_tensor *t, const char *name,
                                      const attn_tensor *first, const char *first_name,
                                      attn_error *err);
attn_status attni_module_check_shape(const attn_tensor *t, const char *name, int64_t n0, int64_t n1,
                                     int64_t n2, int64_t n3, attn_error *err);
/* Row r of t, counted over [B,H,T]. */
static inline char *attni_module_row(const attn_tensor *t, int64_t r)
{
    const int64_t T = t->shape[2], H = t->shape[1];
    if (r < T) /* without divisions */
        return attni_at(t, 0, 0, r, 0);
    return attni_at(t, r / T / H, r / T % H, r % T, 0);
}
/* The number of rows of t; 0 if they have no elements. */
static inline int64_t attni_module_rows(const attn_tensor *t)
{
    return attni_empty(t) ? 0 : t->shape[0] * t->shape[1] * t->shape[2];
}
void attni_module_copy_row(char *dst, int64_t dst_stride, const char *src, int64_t src_stride,
                           int64_t n, size_t element);

/* Calls body(arg, first, end) for shares of 0..items-1, one share per thread, with as many threads
 * as are worth waking; `cost` is the cost of one item, in elements. What body computes for an item
 * must depend on that item alone. */
void attni_module_share(attni_call *call, int64_t items, int64_t cost,
                        void (*body)(void *arg, int64_t first, int64_t end), void *arg);
#define ATTNI_PIECE 1024      /* elements of a row computed at a time, with copies on the stack */
#define ATTNI_LONG_PIECE 4096 /* the same without copies */
#define ATTNI_COLUMNS 128     /* columns that a thread sums over all rows at a time */

/* The address of element c of a row of t. */
static inline char *attni_module_place(const attn_tensor *t, char *row, int64_t c)
{
    return row + c * t->stride[3] * (int64_t)attn_dtype_size(t->dtype);
}
/* n elements of an f32 row, from element c on, for the kernels: where they are or, if their stride
 * is not 1, copied to `copy`. n <= ATTNI_PIECE. attni_module_floats_to only chooses the place,
 * where a kernel will write them; attni_module_store_floats then moves them. */
static inline float *attni_module_floats_to(float *copy, const attn_tensor *t, char *row, int64_t c)
{
    return t->stride[3] == 1 ? (float *)(void *)attni_module_place(t, row, c) : copy;
}
static inline float *attni_module_floats(float *copy, const attn_tensor *t, char *row, int64_t c,
                                         int64_t n)
{
    float *at = attni_module_floats_to(copy, t, row, c);
    if (at == copy)
        attni_load_row_f32(copy, attni_module_place(t, row, c), ATTN_F32, t->stride[3], n);
    return at;
}
static inline void attni_module_store_floats(const attn_tensor *t, char *row, int64_t c,
                                             const float *from, int64_t n)
{
    char *to = attni_module_place(t, row, c);
    if ((const void *)from != (const void *)to)
        attni_store_row_f32(to, ATTN_F32, t->stride[3], from, n);
}
/* For operations on elements: if each of the n tensors, all of one shape, is dense, makes each of
 * them one row, and returns ATTNI_LONG_PIECE; else returns ATTNI_PIECE. */
int64_t attni_module_join_rows(attn_tensor *t, int n);

/* Can x be rounded to float, and multiplied, far from the limits of float? */
static inline bool attni_module_fits_float(double x)
{
    return x == 0 || (fabs(x) >= 1e-30 && fabs(x) <= 1e30);
}

/* attni_layout_take of n0 x n1 x n2 x n3 elements. */
void *attni_module_take(attni_layout *layout, size_t element, int64_t n0, int64_t n1, int64_t n2,
                        int64_t n3);

/* -------------------------------------------------------------------------------------- linear.c
 *
 * A weight [1,H,Out,In] in the order in which the kernels read it: for each head, panels of W
 * outputs, [panel][In][W]. The last panel has only as many vectors as its outputs fill (1, 2, 4,
 * ...). A packed weight is made for one instruction set and one dtype. */
typedef struct attni_packed {
    int64_t H, Out, In;
    const attni_kernels *kernels;
    size_t head_bytes, bytes; /* bytes of one head, and of all heads */
    char *data;               /* aligned to ATTNI_ALIGN */
} attni_packed;

/* Fills all members except data. Returns false if the size cannot be addressed. */
bool attni_packed_size(attni_packed *packed, const attn_tensor *weight,
                       const attni_kernels *kernels);
void attni_packed_fill(const attni_packed *packed, const attn_tensor *weight);

/* The plan of one linear layer: attni_linear_plan fills it; it is only read afterwards. */
typedef struct attni_linear {
    attn_tensor x, weight, bias, out; /* repeated dimensions have stride 0 */
    const attni_packed *packed;       /* NULL: weight has data */
    bool has_bias, copy_x, few_rows;
    const attni_kernels *kernels;
    int width;            /* outputs in a panel, at most */
    int64_t rows, groups; /* rows of x in a task; such groups of rows per batch */
    int64_t block; /* components of x in a block, which all panels use before the next block */
    int64_t head_panels;        /* panels of one head */
    int64_t panels, chunks;     /* panels in a task; such groups of panels, over all heads */
    size_t tasks;               /* number of tasks */
    int workers;                /* threads that are worth waking */
    size_t worker_bytes, bytes; /* scratch of one worker, and of all workers */
} attni_linear;

/* Checks that t is [B or 1, H or 1, rows, columns], where B and H are those of out. */
attn_status attni_linear_check_operand(const attn_tensor *t, const char *name,
                                       const attn_tensor *out, int64_t rows, int64_t columns,
                                       attn_error *err);
/* Plans a layer for tensors whose shapes fit together; bias may be NULL. With `packed`, only the
 * shape of weight is used. threads: the most that may be used. Fails only if the scratch would be
 * too large to address. */
attn_status attni_linear_plan(attni_linear *plan, int isa, int threads, const attn_tensor *x,
                              const attn_tensor *weight, const attni_packed *packed,
                              const attn_tensor *bias, const attn_tensor *out, attn_error *err);
/* Runs the plan in an open call, on plan->bytes of scratch aligned to ATTNI_ALIGN. Before the run,
 * the tensors of the plan may be given other `data`. */
void attni_linear_run(const attni_linear *plan, attni_call *call, char *scratch);

/* ----------------------------------------------------------------------------- linear_backward.c
 *
 * One gradient as a product grad = a b^T. The sum runs over the last dimension of a and b and over
 * the dimensions folded into it. */
typedef struct attni_grad_product {
    bool wanted;
    attn_tensor from[2]; /* a and b as [B,H,rows,.] */
    attn_tensor view[2]; /* the same with one dimension to sum over; in scratch if copied */
    bool copied[2], fold_b, fold_h;
    attni_linear plan;
} attni_grad_product;

/* attn_linear_backward in steps: the caller checks the arguments, then plans, and runs the plan in
 * an open call. attni_linear_backward_plan takes its copies from layout; if layout's base is NULL
 * it only counts. The tensors must stay valid until the run is over. */
typedef struct attni_linear_grads {
    const attn_tensor *dout, *x, *weight, *dx, *dweight, *dbias;
    attni_grad_product by_x, by_weight;
    const attni_kernels *kernels; /* sum the columns of dbias; NULL unless f32 */
    size_t work_bytes;            /* of scratch that run needs */
} attni_linear_grads;
attn_status attni_linear_backward_plan(attni_linear_grads *p, attn_context *ctx,
                                       attni_layout *layout, attn_error *err);
void attni_linear_backward_run(attni_linear_grads *p, attni_call *call, char *work);

/* ------------------------------------------------------- mha.c, mha_module.c, mha_backward.c */
typedef struct attni_mha_sizes {
    int64_t B, T, S, E, Es; /* Es: the row size of source */
    int64_t H, Hk, D, Dv, Out;
} attni_mha_sizes;

struct attn_mha {
    attn_context *ctx; /* whose allocator the memory is from */
    size_t bytes;
    int isa;
    attn_mha_args args;      /* only weights and biases; w_q.data etc. point to packed weights */
    attni_packed q, k, v, o; /* o: only if args.w_o.data */
};

/* A caller's arguments, completed to this version's size; args.attention points to `attention`. */
typedef struct attni_mha_call {
    attn_mha_args args;
    attn_sdpa_args attention;
} attni_mha_call;
attn_status attni_mha_read(attni_mha_call *to, const attn_mha_args *from, attn_error *err);
/* Checks everything else in args, including out. In the backward, args->out is dout: an input. */
attn_status attni_mha_check(attni_mha_sizes *n, const attn_mha_args *args, bool backward,
                            attn_error *err);
/* Applies the dropout of the output in place, on t [B,1,T,Out]; does nothing if p = 0. */
void attni_mha_drop(attni_call *call, const attn_tensor *t, double p, uint64_t seed);
/* Checks the arguments and returns the three parts (q, k, v) of a packed weight matrix as [1,
 * heads, rows, columns], and of its biases as [1, heads, 1, rows]. */
attn_status attni_mha_views(attn_tensor w[3], attn_tensor b[3], const void *weight,
                            const void *bias, attn_dtype dtype, int64_t E, int64_t heads,
                            attn_error *err);
/* Checks weights and biases; n->E and n->Es are given. Fills the sizes that the weights
 * determine. */
attn_status attni_mha_check_weights(attni_mha_sizes *n, const attn_mha_args *args, attn_error *err);
/* With a module, args' weights must be those of the module. */
attn_status attni_mha_forward(attn_context *ctx, const attn_mha_args *args, const attn_mha *module,
                              attn_error *err);

#endif
