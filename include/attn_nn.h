/* libattn's modules: embedding, linear layer, multi-head attention, layer norm, GELU,
 * cross-entropy, forward and backward; a step of AdamW; PyTorch's random stream. This is a part of
 * attn.h, which includes it and describes the conventions, errors, tensors and contexts.
 *
 * The letters are those of attn.h: B batch, H query heads, Hk key/value heads, T queries, S keys,
 * D size of a query and of a key, Dv size of a value. In addition: E and Es size of a token's
 * vector, In and Out size of a linear layer's input and output, V size of a vocabulary.
 */
#ifndef ATTN_NN_H
#define ATTN_NN_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------ Modules
 *
 * Each module works on f32 or f64 tensors, all of one dtype, with any strides, and returns the same
 * bits for any number of threads. Outputs must not overlap inputs. In f64, layer norm, GELU and
 * cross-entropy are computed in double. In f32 they are computed in float with sums in double, and
 * the result is accurate to a few roundings of float; docs/NUMERICS.md has the bounds. The gradient
 * of a linear layer's bias is summed in double and rounded once. Matrix products, and the bias
 * added to them, are computed in the tensors' dtype. Attention is computed as attn.h says.
 * attn_embedding_backward rounds each addition.
 *
 * NAME_backward: let L be a number that depends on out. dout is the gradient of L with respect to
 * out and has out's shape; dx, dweight, ... are the gradients with respect to x, weight, ... and
 * have their shapes. A gradient is written, not added to the old contents. NULL: not wanted.
 */

/* out[n,:] = table[ids[n],:]. table [1,1,V,E], out [1,1,count,E]. An id outside 0..V-1 is an error;
 * it is found before anything is written. */
ATTN_API attn_status attn_embedding_forward(attn_context *ctx, const attn_tensor *table,
                                            const int64_t *ids, int64_t count,
                                            const attn_tensor *out, attn_error *err);

/* dtable[v,:] = the sum of dout[n,:] over all n with ids[n] = v. The terms are added in the order
 * of n, and each addition rounds to the tensors' type. */
ATTN_API attn_status attn_embedding_backward(attn_context *ctx, const attn_tensor *dout,
                                             const int64_t *ids, int64_t count,
                                             const attn_tensor *dtable, attn_error *err);

/* out = x weight^T + bias, as PyTorch's Linear. x [B,H,T,In], weight [B|1,H|1,Out,In], bias
 * [B|1,H|1,1,Out] or NULL, out [B,H,T,Out]; a 1 broadcasts. For `x @ W` with W [In,Out], pass a
 * view of W with swapped strides. The sums are computed in the tensors' dtype: each run of 64
 * components is a chain of multiply-adds from 0 (fused, except on "generic"), the runs are added in
 * order, and the bias is added last. This order depends on In alone, so a row or a column of out
 * has the same bits alone and among others, with any strides. No element of out is -0.
 *
 * Scratch of each thread: up to 516 x 64 sums, up to 64 x 64 weights, and up to 516 rows of x if
 * they cannot be read in place. It never grows with In x Out. */
ATTN_API attn_status attn_linear_forward(attn_context *ctx, const attn_tensor *x,
                                         const attn_tensor *weight, const attn_tensor *bias,
                                         const attn_tensor *out, attn_error *err);

/* dx = dout weight, dweight = dout^T x, dbias = the column sums of dout. If x, weight or bias was
 * broadcast along b or h, its gradient is the sum over that dimension. The products are computed as
 * in attn_linear_forward. The terms of a sum are added in the order of t, those of dx in the
 * order of Out. If the sum also runs over b or h, the order is b, then h, then t (dx: then Out).
 * dbias is summed in double. Only dweight needs x, and only dx needs weight; either may be NULL
 * otherwise. dbias is [B|1,H|1,1,Out].
 *
 * Scratch: that of attn_linear_forward. In addition, an operand is copied if a sum runs over
 * several of its dimensions and the terms of this sum are not evenly spaced in memory. */
ATTN_API attn_status attn_linear_backward(attn_context *ctx, const attn_tensor *dout,
                                          const attn_tensor *x, const attn_tensor *weight,
                                          const attn_tensor *dx, const attn_tensor *dweight,
                                          const attn_tensor *dbias, attn_error *err);

/* out = (x - mean) / sqrt(variance + eps) * weight + bias, with mean and variance over the last
 * dimension (the variance is divided by E, not E - 1). x, out [B,H,T,E]; weight, bias [1,1,1,E]; a
 * NULL weight is 1, a NULL bias is 0. eps >= 0; PyTorch's default is 1e-5. The backward computes
 * mean and variance again. Ba et al. 2016. */
ATTN_API attn_status attn_layer_norm_forward(attn_context *ctx, const attn_tensor *x,
                                             const attn_tensor *weight, const attn_tensor *bias,
                                             double eps, const attn_tensor *out, attn_error *err);
ATTN_API attn_status attn_layer_norm_backward(attn_context *ctx, const attn_tensor *dout,
                                              const attn_tensor *x, const attn_tensor *weight,
                                              double eps, const attn_tensor *dx,
                                              const attn_tensor *dweight, const attn_tensor *dbias,
                                              attn_error *err);

/* out = x * P(Z <= x) with Z standard normal. This is the exact formula, not the tanh
 * approximation. The result for a negative x is accurate, too. x, out [B,H,T,E]. Hendrycks and
 * Gimpel 2016. */
ATTN_API attn_status attn_gelu_forward(attn_context *ctx, const attn_tensor *x,
                                       const attn_tensor *out, attn_error *err);
ATTN_API attn_status attn_gelu_backward(attn_context *ctx, const attn_tensor *dout,
                                        const attn_tensor *x, const attn_tensor *dx,
                                        attn_error *err);

/* *loss = the mean of log(sum_v e^logits[n,v]) - logits[n,targets[n]] over the rows whose target is
 * not `ignore` (PyTorch's default: -100); 0 if there is no such row. logits [1,1,N,V], targets [N].
 * A target that is neither `ignore` nor in 0..V-1 is an error. The sum is taken relative to each
 * row's maximum, so no logit is too large; a logit of -inf is a probability of 0.
 * Backward: dlogits = dloss * (softmax(logits) - onehot(targets)) / count, where count is the
 * number of rows that are not ignored; 0 in ignored rows. */
ATTN_API attn_status attn_cross_entropy_forward(attn_context *ctx, const attn_tensor *logits,
                                                const int64_t *targets, int64_t ignore,
                                                double *loss, attn_error *err);
ATTN_API attn_status attn_cross_entropy_backward(attn_context *ctx, double dloss,
                                                 const attn_tensor *logits, const int64_t *targets,
                                                 int64_t ignore, const attn_tensor *dlogits,
                                                 attn_error *err);

/* Multi-head attention: project, attend, join (concatenate) the heads, project.
 *   q = x w_q^T + b_q   k = source w_k^T + b_k   v = source w_v^T + b_v   per head
 *   out = dropout(concat_h(sdpa(q_h, k_h, v_h)) w_o^T + b_o)
 * Weights are given per head, which is the general form: w_q [1,H,D,E]. A packed weight [H*D,E] has
 * the same memory; attn_mha_packed() sets the views for PyTorch's in_proj_weight [3E,E] and
 * in_proj_bias [3E]. Scratch: q, k, v and the joined heads, O(B * (T + S) * H * (D + Dv)), and the
 * scratch of attention and of a linear layer. */
typedef struct attn_mha_args {
    size_t struct_size;        /* sizeof(attn_mha_args), set by ATTN_MHA_ARGS_INIT */
    attn_tensor x;             /* [B,1,T,E] */
    attn_tensor source;        /* [B,1,S,Es]: keys and values come from it; data NULL: x */
    attn_tensor w_q, w_k, w_v; /* [1,H,D,E], [1,Hk,D,Es], [1,Hk,Dv,Es]; Es is E without source */
    attn_tensor b_q, b_k, b_v; /* [1,H,1,D], [1,Hk,1,D], [1,Hk,1,Dv]; data NULL: none */
    attn_tensor w_o, b_o;      /* [1,1,Out,H*Dv], [1,1,1,Out]; data NULL: out is the joined heads */
    attn_tensor out;           /* [B,1,T,Out] */
    /* The options of attention: masks, scale, dropout, lse, scores. Its workspace serves all steps.
     * Its q, k, v and out are ignored. NULL: the defaults */
    const attn_sdpa_args *attention;
    /* Dropout of out, 0 <= p < 1. Component j of query i of batch b is kept where
     * attn_dropout_mask keeps key j of query b*T + i in batch 0 and head 0 */
    double output_dropout;
    uint64_t output_dropout_seed;
} attn_mha_args;

/* All zero but the size: no source, no biases, no w_o, attention's defaults. */
#define ATTN_MHA_ARGS_INIT                                                                         \
    {                                                                                              \
        .struct_size = sizeof(attn_mha_args)                                                       \
    }
ATTN_API void attn_mha_args_init_sized(attn_mha_args *args, size_t struct_size);
static inline void attn_mha_args_init(attn_mha_args *args)
{
    attn_mha_args_init_sized(args, sizeof *args);
}
/* Sets w_q ... b_v to views of the packed weight [3E,E] and bias [3E] (may be NULL). ATTN_ERR_SHAPE
 * if E % heads != 0. */
ATTN_API attn_status attn_mha_packed(attn_mha_args *args, const void *in_proj_weight,
                                     const void *in_proj_bias, attn_dtype dtype, int64_t E,
                                     int64_t heads, attn_error *err);
ATTN_API attn_status attn_mha_forward(attn_context *ctx, const attn_mha_args *args,
                                      attn_error *err);

/* The gradients of attn_mha_forward. args are those of the forward call. Nothing of that call has
 * to be kept: q, k, v and the heads are computed again, and args->out, attention->lse and
 * attention->scores are ignored. A gradient has the shape of its input; data NULL: not wanted.
 * Without source, keys and values come from x: dx then includes their part, and dsource must not be
 * wanted.
 *
 * Scratch: q, k, v, the joined heads and the gradient of each, O(B * (T + S) * H * (D + Dv)); a
 * copy of w_q, w_k and w_v; and the scratch of attention's backward and of a linear layer. */
typedef struct attn_mha_grads {
    size_t struct_size;           /* sizeof(attn_mha_grads), set by ATTN_MHA_GRADS_INIT */
    attn_tensor dout;             /* in: [B,1,T,Out] */
    attn_tensor dx, dsource;      /* [B,1,T,E], [B,1,S,Es] */
    attn_tensor dw_q, dw_k, dw_v; /* as w_q, w_k, w_v; attn_mha_packed_grads sets these */
    attn_tensor db_q, db_k, db_v;
    attn_tensor dw_o, db_o;
    const attn_tensor *dmask;             /* as in attn_sdpa_grads */
    double *dalibi_slopes, *dsink_logits; /* as in attn_sdpa_grads */
} attn_mha_grads;
#define ATTN_MHA_GRADS_INIT                                                                        \
    {                                                                                              \
        .struct_size = sizeof(attn_mha_grads)                                                      \
    }
ATTN_API void attn_mha_grads_init_sized(attn_mha_grads *grads, size_t struct_size);
static inline void attn_mha_grads_init(attn_mha_grads *grads)
{
    attn_mha_grads_init_sized(grads, sizeof *grads);
}
ATTN_API attn_status attn_mha_backward(attn_context *ctx, const attn_mha_args *args,
                                       const attn_mha_grads *grads, attn_error *err);
/* Sets dw_q ... db_v to views of a packed weight [3E,E] and bias [3E] (may be NULL), as
 * attn_mha_packed does. */
ATTN_API attn_status attn_mha_packed_grads(attn_mha_grads *grads, void *in_proj_weight,
                                           void *in_proj_bias, attn_dtype dtype, int64_t E,
                                           int64_t heads, attn_error *err);

/* A module computes attn_mha_forward with weights that are packed once and used by many calls.
 * attn_mha_forward packs (reorders) the weights in every call. The fewer rows x has, the larger is
 * the part of the time that packing takes. The bits are those of attn_mha_forward.
 *
 * attn_mha_create copies w_q, w_k, w_v, w_o, b_q, b_k, b_v and b_o of args, which may be freed
 * afterwards, and ignores the rest of args. The module takes as much memory as these tensors, and
 * some for padding: the outputs of each head's weight are stored in panels, and the last panel is
 * padded with zeros (AVX-512 and f32: panels of 64 outputs, and a last one of 16, 32 or 64). The
 * memory comes from ctx's allocator; ctx, unless NULL, must live until the module is destroyed.
 *
 * attn_mha_run uses all of args but the weights and biases. It needs the scratch of
 * attn_mha_forward, but none for packing weights. ctx may be any context, or NULL. Its instruction
 * set must be that of the context which created the module, else ATTN_ERR_ARGUMENT.
 *
 * Threads: a module does not change; any number of threads may run it at once, each with a context
 * of its own. */
typedef struct attn_mha attn_mha;
ATTN_API attn_status attn_mha_create(attn_context *ctx, const attn_mha_args *args, attn_mha **out,
                                     attn_error *err);
ATTN_API attn_status attn_mha_run(attn_context *ctx, const attn_mha *module,
                                  const attn_mha_args *args, attn_error *err);
ATTN_API void attn_mha_destroy(attn_mha *module); /* NULL is fine; no run may be active */

/* ---------------------------------------------------------------------------------- Optimiser
 *
 * One step of AdamW, as PyTorch's torch.optim.AdamW does it (Loshchilov and Hutter 2019). In the
 * first call, `step` is 1.
 *   param *= 1 - lr * weight_decay
 *   m = beta1 * m + (1 - beta1) * grad         v = beta2 * v + (1 - beta2) * grad^2
 *   param -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
 * param, m and v are changed in place; grad is only read. All have one shape, of four dimensions,
 * and one dtype. m and v must be 0 before the first step. The step is computed in the tensors'
 * dtype; docs/NUMERICS.md has the bounds. */
typedef struct attn_adamw_options {
    size_t struct_size;  /* sizeof(attn_adamw_options), set by ATTN_ADAMW_OPTIONS_INIT */
    double lr;           /* 1e-3 */
    double beta1, beta2; /* 0.9, 0.999; each in [0, 1) */
    double eps;          /* 1e-8 */
    double weight_decay; /* 1e-2 */
} attn_adamw_options;

/* PyTorch's defaults. */
#define ATTN_ADAMW_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(attn_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 1e-2                                   \
    }
ATTN_API void attn_adamw_options_init_sized(attn_adamw_options *options, size_t struct_size);
static inline void attn_adamw_options_init(attn_adamw_options *options)
{
    attn_adamw_options_init_sized(options, sizeof *options);
}
ATTN_API attn_status attn_adamw_step(attn_context *ctx, const attn_adamw_options *options,
                                     int64_t step, const attn_tensor *param,
                                     const attn_tensor *grad, const attn_tensor *m,
                                     const attn_tensor *v, attn_error *err);

/* ------------------------------------------------------------------------------------- Random
 *
 * PyTorch's CPU generator: after attn_rng_seed(&r, n), the functions below return what torch
 * returns after torch.manual_seed(n). Integers and uniform numbers agree to the bit, normal numbers
 * to a few units in the last place. Not thread-safe; copy the struct to fork a stream. MT19937,
 * Matsumoto and Nishimura 1998.
 */
typedef struct attn_rng {
    uint32_t state[624];
    int32_t position;
    int32_t has_normal; /* 1: `normal` is the next number for a randn with n < 16 */
    double normal;
} attn_rng;
ATTN_API void attn_rng_seed(attn_rng *rng, uint64_t seed);
ATTN_API uint32_t attn_rng_u32(attn_rng *rng);
ATTN_API void attn_rng_rand(attn_rng *rng, float *x, size_t n); /* torch.rand */
ATTN_API void attn_rng_uniform(attn_rng *rng, float *x, size_t n, double a, double b);
ATTN_API void attn_rng_randn(attn_rng *rng, float *x, size_t n); /* torch.randn */
/* nn.Linear(in, out): weight [out,in], then bias [out] if not NULL, uniform in +-1/sqrt(in). */
ATTN_API void attn_rng_linear(attn_rng *rng, float *weight, float *bias, int64_t in, int64_t out);

#ifdef __cplusplus
}
#endif
#endif /* ATTN_NN_H */
