/* libattn's modules: embedding, linear layer, multi-head attention, layer norm, GELU,
 * cross-entropy, forward and backward; a step of AdamW; PyTorch's random stream. A part of attn.h,
 * which includes it; conventions, errors, tensors and contexts are described there.
 */
#ifndef ATTN_NN_H
#define ATTN_NN_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------ Modules
 *
 * Each works on f32 or f64 tensors, all of one dtype, any strides, and returns the same bits for
 * any thread count. Outputs must not overlap inputs. What is not a matrix product is computed in
 * double and rounded once, at the end.
 *
 * NAME_backward: with L some number that depends on out, dout is the gradient of L by out, of out's
 * shape, and dx, dweight, ... are those by x, weight, ..., of their shapes. Gradients are written,
 * not added to what is there. One that is not wanted is NULL.
 */

/* out[n,:] = table[ids[n],:]. table [1,1,V,E], out [1,1,count,E]; an id out of 0..V-1 is an error
 * before anything is written. */
ATTN_API attn_status attn_embedding_forward(attn_context *ctx, const attn_tensor *table,
                                            const int64_t *ids, int64_t count,
                                            const attn_tensor *out, attn_error *err);

/* dtable[v,:] = the sum of dout[n,:] over all n with ids[n] = v, in order of n, rounded to the
 * tensors' type each time. */
ATTN_API attn_status attn_embedding_backward(attn_context *ctx, const attn_tensor *dout,
                                             const int64_t *ids, int64_t count,
                                             const attn_tensor *dtable, attn_error *err);

/* out = x weight^T + bias, as PyTorch's Linear. x [B,H,T,In], weight [B|1,H|1,Out,In], bias
 * [B|1,H|1,1,Out] or NULL, out [B,H,T,Out]; a 1 broadcasts. `x @ W` with W [In,Out] is this with W
 * seen through swapped strides. In the tensors' dtype: a chain of multiply-adds from 0 over each
 * run of 64 components (fused, but for "generic"), the runs added in order, then the bias; out is
 * never -0. So a row has the same bits alone and among others, a column likewise, whatever the
 * strides.
 *
 * Scratch: for each thread up to 516 x 64 sums, 64 x 64 weights and, where rows of x cannot be read
 * in place, up to 516 of them: never In x Out. */
ATTN_API attn_status attn_linear_forward(attn_context *ctx, const attn_tensor *x,
                                         const attn_tensor *weight, const attn_tensor *bias,
                                         const attn_tensor *out, attn_error *err);

/* dx = dout weight, dweight = dout^T x, dbias = the column sums of dout; where x, weight or bias
 * was repeated, summed over its repetitions. The products are those of attn_linear_forward, their
 * sums running over b, h and t (dx: over b, h and Out) in this order; dbias adds in double. x is
 * needed for dweight alone, weight for dx alone, and may be NULL otherwise; dbias [B|1,H|1,1,Out].
 *
 * Scratch: that of attn_linear_forward, and a copy of each operand whose terms of a sum are not
 * evenly spaced in memory. */
ATTN_API attn_status attn_linear_backward(attn_context *ctx, const attn_tensor *dout,
                                          const attn_tensor *x, const attn_tensor *weight,
                                          const attn_tensor *dx, const attn_tensor *dweight,
                                          const attn_tensor *dbias, attn_error *err);

/* out = (x - mean) / sqrt(variance + eps) * weight + bias, mean and variance (of N, not N - 1) over
 * the last dimension. x, out [B,H,T,E]; weight, bias [1,1,1,E] or NULL: 1, 0; eps >= 0, PyTorch's
 * default is 1e-5. Backward computes mean and variance again. Ba et al. 2016. */
ATTN_API attn_status attn_layer_norm_forward(attn_context *ctx, const attn_tensor *x,
                                             const attn_tensor *weight, const attn_tensor *bias,
                                             double eps, const attn_tensor *out, attn_error *err);
ATTN_API attn_status attn_layer_norm_backward(attn_context *ctx, const attn_tensor *dout,
                                              const attn_tensor *x, const attn_tensor *weight,
                                              double eps, const attn_tensor *dx,
                                              const attn_tensor *dweight, const attn_tensor *dbias,
                                              attn_error *err);

/* out = x * P(Z <= x), Z standard normal: x * erfc(-x / sqrt 2) / 2, not the tanh form. x, out
 * [B,H,T,E]. Hendrycks and Gimpel 2016. */
ATTN_API attn_status attn_gelu_forward(attn_context *ctx, const attn_tensor *x,
                                       const attn_tensor *out, attn_error *err);
ATTN_API attn_status attn_gelu_backward(attn_context *ctx, const attn_tensor *dout,
                                        const attn_tensor *x, const attn_tensor *dx,
                                        attn_error *err);

/* *loss = the mean of log(sum_v e^logits[n,v]) - logits[n,targets[n]] over the rows whose target is
 * not `ignore` (PyTorch's default: -100); 0 if there is none. logits [1,1,N,V], targets [N]; a
 * target that is neither ignored nor in 0..V-1 is an error. The sum is taken relative to each row's
 * maximum, so that no logit is too large; -inf is a probability of 0.
 * Backward: dlogits = dloss * (softmax(logits) - onehot(targets)) / count, 0 in ignored rows. */
ATTN_API attn_status attn_cross_entropy_forward(attn_context *ctx, const attn_tensor *logits,
                                                const int64_t *targets, int64_t ignore,
                                                double *loss, attn_error *err);
ATTN_API attn_status attn_cross_entropy_backward(attn_context *ctx, double dloss,
                                                 const attn_tensor *logits, const int64_t *targets,
                                                 int64_t ignore, const attn_tensor *dlogits,
                                                 attn_error *err);

/* Multi-head attention: project, attend, join the heads, project.
 *   q = x w_q^T + b_q   k = source w_k^T + b_k   v = source w_v^T + b_v   per head
 *   out = dropout(concat_h(sdpa(q_h, k_h, v_h)) w_o^T + b_o)
 * Per-head weights are the general form: w_q [1,H,D,E]. A packed weight [H*D,E] has the same
 * memory; attn_mha_packed() fills the views of PyTorch's in_proj_weight [3E,E] and in_proj_bias
 * [3E]. Scratch: q, k, v and the joined heads, O(B * (T + S) * H * (D + Dv)), and what attention
 * and a linear layer need. */
typedef struct attn_mha_args {
    size_t struct_size;        /* sizeof(attn_mha_args), set by ATTN_MHA_ARGS_INIT */
    attn_tensor x;             /* [B,1,T,E] */
    attn_tensor source;        /* [B,1,S,Es] keys and values come from; data NULL: x */
    attn_tensor w_q, w_k, w_v; /* [1,H,D,E], [1,Hk,D,E], [1,Hk,Dv,E] */
    attn_tensor b_q, b_k, b_v; /* [1,H,1,D], [1,Hk,1,D], [1,Hk,1,Dv]; data NULL: none */
    attn_tensor w_o, b_o; /* [1,1,Out,H*Dv], [1,1,1,Out]; data NULL: the joined heads are out */
    attn_tensor out;      /* [B,1,T,Out] */
    const attn_sdpa_args
        *attention;        /* masks, scale, dropout, lse, scores (the weights), a workspace
                                        for all; q, k, v and out are ours. NULL: the defaults */
    double output_dropout; /* 0 <= p < 1, Philox as above, b*T + i as row and h = 0 */
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
/* Fills w_q..b_v from packed [3E,E] and [3E] (bias may be NULL). ATTN_ERR_SHAPE if E % heads !=
 * 0. */
ATTN_API attn_status attn_mha_packed(attn_mha_args *args, const void *in_proj_weight,
                                     const void *in_proj_bias, attn_dtype dtype, int64_t E,
                                     int64_t heads, attn_error *err);
ATTN_API attn_status attn_mha_forward(attn_context *ctx, const attn_mha_args *args,
                                      attn_error *err);

/* The gradients of attn_mha_forward. args: those of the forward. Nothing has to be kept from it: q,
 * k, v and the heads are computed again. args->out, attention->lse and attention->scores are not
 * looked at. Gradients have the shapes of what they are the gradient of; data NULL: not wanted.
 * Without source, keys and values come from x and dx has their part too; dsource is not wanted
 * then.
 *
 * Scratch: q, k, v, the joined heads and the gradient of each, O(B * (T + S) * H * (D + Dv)), a
 * copy of w_q, w_k and w_v, and what attention's backward and a linear layer need. */
typedef struct attn_mha_grads {
    size_t struct_size;           /* sizeof(attn_mha_grads), set by ATTN_MHA_GRADS_INIT */
    attn_tensor dout;             /* in: [B,1,T,Out] */
    attn_tensor dx, dsource;      /* [B,1,T,E], [B,1,S,Es] */
    attn_tensor dw_q, dw_k, dw_v; /* as w_q, w_k, w_v; attn_mha_packed_grads fills these */
    attn_tensor db_q, db_k, db_v;
    attn_tensor dw_o, db_o;
    const attn_tensor *dmask;             /* as in attn_sdpa_grads */
    double *dalibi_slopes, *dsink_logits; /* the same */
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
/* Fills dw_q..db_v from packed [3E,E] and [3E] (bias may be NULL), as attn_mha_packed. */
ATTN_API attn_status attn_mha_packed_grads(attn_mha_grads *grads, void *in_proj_weight,
                                           void *in_proj_bias, attn_dtype dtype, int64_t E,
                                           int64_t heads, attn_error *err);

/* The same with the weights packed once, for many calls: attn_mha_forward reorders them in every
 * call, which matters the more the fewer rows x has. The bits are those of attn_mha_forward.
 *
 * attn_mha_create copies w_q, w_k, w_v, w_o, b_q, b_k, b_v and b_o of args, which may be freed
 * afterwards, and looks at nothing else there. It takes as much memory as they do, each head's
 * outputs rounded up to a panel of lanes (with AVX-512 and f32 to 16, 32 or a multiple of 64), from
 * ctx's allocator; ctx, unless NULL, must live until the module is destroyed.
 *
 * attn_mha_run looks at all of args but the weights and biases. It needs the scratch of
 * attn_mha_forward, and none for weights. Any ctx will do, or NULL, if it has the instruction set
 * of the one that the module was created with, else ATTN_ERR_ARGUMENT.
 *
 * Threads: a module does not change; any number of threads may run it at once, each with a context
 * of its own. */
typedef struct attn_mha attn_mha;
ATTN_API attn_status attn_mha_create(attn_context *ctx, const attn_mha_args *args, attn_mha **out,
                                     attn_error *err);
ATTN_API attn_status attn_mha_run(attn_context *ctx, const attn_mha *module,
                                  const attn_mha_args *args, attn_error *err);
ATTN_API void attn_mha_destroy(attn_mha *module); /* NULL is fine; it must not be running */

/* ---------------------------------------------------------------------------------- Optimiser
 *
 * One step of AdamW, as PyTorch's torch.optim.AdamW does it (Loshchilov and Hutter 2019), with step
 * counted from 1:
 *   param *= 1 - lr * weight_decay
 *   m = beta1 * m + (1 - beta1) * grad         v = beta2 * v + (1 - beta2) * grad^2
 *   param -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
 * param, m and v are changed in place; grad is read; all [.,.,.,.] of one shape and dtype. m and v
 * are 0 before the first step. Computed in double, each of the three rounded once. */
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
 * PyTorch's CPU generator: after attn_rng_seed(&r, n), the calls below give what torch gives after
 * torch.manual_seed(n): integers and uniforms to the bit, normals to a few units in the last place.
 * Not thread-safe; copy the struct to fork a stream. MT19937, Matsumoto and Nishimura 1998.
 */
typedef struct attn_rng {
    uint32_t state[624];
    int32_t position;
    int32_t has_normal; /* a double normal that randn of fewer than 16 has drawn ahead */
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
