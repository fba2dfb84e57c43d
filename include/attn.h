/* libattn - self-attention as a small, exact, fast C library.
 *
 * This header is the manual. One letter per dimension, everywhere:
 *
 *   B batch   H query heads   Hk key/value heads (H % Hk == 0)   T queries   S keys
 *   D size of a query and of a key   Dv size of a value
 *
 * The ladder, from one call to full control:
 *   1. attn_sdpa_forward(NULL, &args, NULL): softmax(q k^T / sqrt(D)) v on the caller's thread.
 *   2. attn_context: threads, instruction set, allocator, the caller's own parallel_for.
 *   3. attn_sdpa_args: every mask, packed sequences, scores and lse out, dropout, workspace.
 *   4. Modules (attn_nn.h, which this header includes): embedding, linear layer, multi-head
 *      attention and what else a small model is trained with; PyTorch's random stream.
 *
 * The library never prints, exits, aborts, or changes the locale or any signal. The floating-point
 * mode and the exception flags of the caller's thread are, after a call, what they were before;
 * results do not depend on them. While a call runs, C's default mode holds, in which nothing traps,
 * for the caller's own allocate, release and parallel_for too. It needs libc, libm and pthreads.
 * Functions are reentrant; the thread rule of each object stands beside it. A pointer argument may
 * be NULL only where this header says so.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 2
#define ATTN_VERSION_PATCH 0
#define ATTN_VERSION_STRING "0.2.0"

#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

/* ------------------------------------------------------------------------------------- Errors
 *
 * Every function that can fail returns a status and, where `err` is not NULL, says in one line
 * which argument was wrong and what would be right. `err` is written only on failure. The values
 * are pinned: they never change meaning.
 */
typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_ERR_ARGUMENT = 1,    /* a value out of its range, or two that exclude each other */
    ATTN_ERR_SHAPE = 2,       /* shapes that do not fit together */
    ATTN_ERR_DTYPE = 3,       /* a storage type that does not belong there */
    ATTN_ERR_STRIDE = 4,      /* an output whose elements overlap */
    ATTN_ERR_MEMORY = 5,      /* the allocator returned NULL */
    ATTN_ERR_LIMIT = 6,       /* a size that this machine cannot address */
    ATTN_ERR_UNSUPPORTED = 7, /* an instruction set that this machine lacks */
    ATTN_ERR_FULL = 8,        /* a cache has no room for so many keys */
    ATTN_ERR_FILE = 9         /* a saved cache that is damaged, another's, or was not written */
} attn_status;

typedef struct attn_error {
    attn_status status;
    char argument[24]; /* "mask", "k", ... or "" */
    char message[232]; /* one line, no newline, starts with the argument's name */
} attn_error;

ATTN_API const char *attn_status_name(attn_status status); /* "ATTN_ERR_SHAPE" */

/* The version of the library that the program is linked with: "0.2.0", or "0.2.0 (compiled without
 * optimisation)". */
ATTN_API const char *attn_version(void);

/* -------------------------------------------------------------------------- Structs that grow
 *
 * A struct that begins with struct_size may get more members at its end. Start from its INIT macro
 * or its init function, which set struct_size to its sizeof and all else to the defaults. A call
 * takes the shorter struct of an older header, whose missing members have their defaults, and the
 * longer one of a newer header if what this library does not know of it is 0; else it returns
 * ATTN_ERR_ARGUMENT and names struct_size. All other structs stay as they are: docs/ABI.md.
 *
 * The functions init_sized are for bindings without this header, which say how large their struct
 * is.
 */

/* ------------------------------------------------------------------------------------ Tensors
 *
 * A view: it owns nothing. Up to four dimensions; unused leading ones are 1. Strides are in
 * ELEMENTS and may be anything, negative and 0 included: a stride of 0 repeats an input along that
 * dimension. Outputs must not overlap themselves. No alignment is assumed. A last stride of 1 is
 * the fast case; others are gathered row by row. If a size is 0, data may be NULL.
 * A size is at most 2^56, else ATTN_ERR_LIMIT.
 */
typedef enum attn_dtype {
    ATTN_F64 = 1,
    ATTN_F32 = 2,
    ATTN_F16 = 3,  /* IEEE 754 binary16 */
    ATTN_BF16 = 4, /* the high half of a binary32 */
    ATTN_BOOL = 5, /* one byte, 0 or not 0; masks only */
    ATTN_I64 = 6,  /* indices only */
    ATTN_I8 = 7    /* -127..127 times a float of the row; inside a cache only */
} attn_dtype;

ATTN_API size_t attn_dtype_size(attn_dtype dtype);      /* bytes of an element, 0 if unknown */
ATTN_API const char *attn_dtype_name(attn_dtype dtype); /* "f32" */

typedef struct attn_tensor {
    void *data;
    attn_dtype dtype;
    int64_t shape[4];
    int64_t stride[4];
} attn_tensor;

/* Dense views. bhtd: [B,H,T,D]. bthd: memory is [B,T,H,D] (a packed projection), seen as [B,H,T,D].
 * matrix: [rows,columns] seen as [1,1,rows,columns]. */
ATTN_API attn_tensor attn_bhtd(const void *data, attn_dtype dtype, int64_t B, int64_t H, int64_t T,
                               int64_t D);
ATTN_API attn_tensor attn_bthd(const void *data, attn_dtype dtype, int64_t B, int64_t T, int64_t H,
                               int64_t D);
ATTN_API attn_tensor attn_matrix(const void *data, attn_dtype dtype, int64_t rows, int64_t columns);

/* ------------------------------------------------------------------------------------ Context
 *
 * Threads, the instruction set and scratch memory that is kept between calls. Everywhere a context
 * is taken, NULL means: the caller's thread, the best instruction set, scratch from malloc.
 *
 * Threads: calls on different contexts may overlap freely; calls on one context are serialised.
 * After fork() a context works in the child, which starts threads of its own at the next call.
 * Idle threads sleep and cost nothing.
 */
typedef struct attn_context attn_context;

typedef struct attn_context_options {
    size_t struct_size; /* sizeof(attn_context_options), set by ATTN_CONTEXT_OPTIONS_INIT */
    int threads;        /* 0: ATTN_NUM_THREADS if set, else the CPUs of the affinity mask */
    const char *isa;    /* "generic", "avx2", "avx512", "avx512bf16", "amx" or "neon", as
                         * attn_isa() lists them; NULL: ATTN_ISA if set, else the best. "amx"
                         * needs ATTN_AMX=1 as well */

    /* Memory. Both or neither. allocate must return memory aligned to `alignment` (a power of two,
     * at most 64) or NULL; calls come from the thread that calls the library. */
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory, size_t size);
    void *memory_user;

    /* The caller's threads instead of the context's: must run body(arg, 0) ... body(arg, n - 1), in
     * any order and on any threads, and return when all are done. `threads` bounds n. */
    void (*parallel_for)(void *user, int n, void (*body)(void *arg, int index), void *arg);
    void *parallel_user;
} attn_context_options;

#define ATTN_CONTEXT_OPTIONS_INIT                                                                  \
    {                                                                                              \
        sizeof(attn_context_options), 0, 0, 0, 0, 0, 0, 0                                          \
    }
ATTN_API void attn_context_options_init_sized(attn_context_options *options, size_t struct_size);
static inline void attn_context_options_init(attn_context_options *options)
{
    attn_context_options_init_sized(options, sizeof *options);
}

/* options may be NULL: all defaults. ATTN_ERR_UNSUPPORTED if the machine lacks the named set. If
 * the system refuses a thread, the context works with those it got. */
ATTN_API attn_status attn_context_create(const attn_context_options *options, attn_context **out,
                                         attn_error *err);
ATTN_API void attn_context_destroy(attn_context *ctx); /* NULL is fine; no call may be running */
ATTN_API int attn_context_threads(const attn_context *ctx);     /* 1 for NULL */
ATTN_API const char *attn_context_isa(const attn_context *ctx); /* the best one for NULL */

/* A parallel_for for programs that compute with OpenMP, whose idle threads spin on the CPUs that a
 * context's own would need: its tasks run in the runtime's team. parallel_user is the address of
 * GOMP_parallel, which GNU's, LLVM's and Intel's runtimes have. The team may have any size; after
 * fork() the child is as free to use it as it is to use OpenMP. */
ATTN_API void attn_openmp_for(void *gomp_parallel, int n, void (*body)(void *arg, int index),
                              void *arg);

/* The instruction sets that were compiled in, best last. name is NULL past the end; usable is 1 if
 * this machine can run it. */
typedef struct attn_isa_info {
    const char *name;
    int usable;
} attn_isa_info;
ATTN_API attn_isa_info attn_isa(int index);

/* Space-separated names of the CPU features that matter here, as found now. Returns the length
 * that is needed, as snprintf does. */
ATTN_API int attn_cpu_features(char *buffer, size_t size);

/* ---------------------------------------------------------------------------------- Attention
 *
 * attn_sdpa_forward() - out = softmax(scale * q k^T + bias, over visible keys) v
 *
 * Shapes: q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv], out [B,H,T,Dv]; query head h reads key/value
 * head h / (H/Hk). q, k, v share one dtype; out has that dtype, or f32 or f64. Any size may be 0;
 * where that leaves nothing to write, a call returns at once, however large the others are. Keys
 * without elements (D = Dv = 0) are at most 2^31 - 1 where lse, scores or a gradient is wanted,
 * else ATTN_ERR_LIMIT.
 *
 * Visible(i, j), query i and key j: the AND of causal, window, mask, key_lengths and sequences.
 * With off the causal offset (0 for TOP_LEFT, S - T for BOTTOM_RIGHT, with the batch's own key
 * length for S, as given for OFFSET; for NONE, as `diagonal` says):
 *   causal  j <= i + off          window  i + off - window_left <= j <= i + off + window_right
 *   lengths j < key_lengths[b]    mask    true, or a float that is not -inf
 *
 *   TOP_LEFT T=2,S=4   BOTTOM_RIGHT T=2,S=4   TOP_LEFT T=4,S=2   BOTTOM_RIGHT T=4,S=2
 *   x . . .            x x x .                x .                . .
 *   x x . .            x x x x                x x                . .
 *                                             x x                x .
 *                                             x x                x x
 *
 * A row with no visible key gives 0 (and lse = -inf, or the sink). What is not visible is never
 * multiplied: NaN or Inf there changes no bit. NaN in a visible place reaches exactly the rows that
 * use it.
 *
 * Memory: O(T + S) scratch, never T x S, whatever the options. `scores` is the caller's own.
 * Bits: equal for any thread count, batch, number of queries in the call, and alignment, on one
 * instruction set. Not promised: equal bits on two instruction sets, or between releases.
 * Outputs must not overlap inputs.
 *
 * Returns ATTN_OK, or an error before anything is written; after ATTN_ERR_MEMORY too, outputs are
 * untouched. Sources: Vaswani et al. 2017; online softmax, Milakov and Gimelshein 2018; tiling, Dao
 * et al. 2022; sinks, Xiao et al. 2023; ALiBi, Press et al. 2021.
 */
typedef enum attn_causal {
    ATTN_CAUSAL_NONE = 0,
    ATTN_CAUSAL_TOP_LEFT = 1,     /* off = 0: PyTorch's is_causal */
    ATTN_CAUSAL_BOTTOM_RIGHT = 2, /* off = S - T: FlashAttention, decoding with a cache */
    ATTN_CAUSAL_OFFSET = 3        /* off = causal_offset */
} attn_causal;

/* off where causal is ATTN_CAUSAL_NONE: the diagonal j = i + off that the window and ALiBi count
 * from. Beside another causal it must be TOP_LEFT, which then says nothing, or the same choice. */
typedef enum attn_diagonal {
    ATTN_DIAGONAL_TOP_LEFT = 0,     /* off = 0 */
    ATTN_DIAGONAL_BOTTOM_RIGHT = 1, /* off = S - T: FlashAttention */
    ATTN_DIAGONAL_OFFSET = 2        /* off = causal_offset */
} attn_diagonal;

typedef enum attn_alibi_form {
    ATTN_ALIBI_SIGNED = 0,   /* slope * (j - i - off): later keys gain what earlier ones lose */
    ATTN_ALIBI_SYMMETRIC = 1 /* -slope * |j - i - off|: FlashAttention; SIGNED for j <= i + off */
} attn_alibi_form;

typedef enum attn_stage {
    ATTN_STAGE_RAW = 0,     /* scale * q . k, of every pair, visible or not */
    ATTN_STAGE_SOFTCAP = 1, /* after the soft cap, of every pair */
    ATTN_STAGE_BIASED = 2,  /* after mask and ALiBi; -inf where not visible */
    ATTN_STAGE_WEIGHTS = 3  /* after softmax, before dropout; 0 where not visible */
} attn_stage;

typedef enum attn_precision {
    ATTN_PRECISION_DEFAULT = 0, /* f64: double; all others: float products and sums; but bf16 on
                                   "avx512bf16" and "amx" rounds the weights to bf16 too, and, in
                                   the backward, the gradients of scores */
    ATTN_PRECISION_ACCURATE = 1 /* f32 storage computes in double: one rounding, at the end; so does
                                   any q beside a cache of i8, whose rows are f32; bf16 keeps
                                   weights and gradients in float everywhere */
} attn_precision;

typedef struct attn_sdpa_args {
    size_t struct_size; /* sizeof(attn_sdpa_args), set by ATTN_SDPA_ARGS_INIT */
    attn_tensor q, k, v, out;
    double scale; /* 0: 1/sqrt(D) */

    attn_causal causal;
    int64_t causal_offset;             /* for ATTN_CAUSAL_OFFSET and ATTN_DIAGONAL_OFFSET */
    int64_t window_left, window_right; /* -1: open */
    const attn_tensor *mask; /* bool (true = attend) or float (added); [B|1, H|1, T|1, S|1]; NULL */
    const int64_t *key_lengths; /* [B], each in 0..S, or NULL */

    /* Packed sequences: queries cu_seqlens_q[n] .. cu_seqlens_q[n+1]-1 see only keys
     * cu_seqlens_k[n] .. cu_seqlens_k[n+1]-1, n = 0..sequences-1. Both arrays have sequences + 1
     * elements, start at 0 and never fall. Causal, window and ALiBi count i and j from the start of
     * the sequence, so each gives the bits that it gives alone; mask and dropout count from the
     * start of the tensor. Not together with key_lengths. NULL: one sequence. */
    const int64_t *cu_seqlens_q, *cu_seqlens_k;
    int64_t sequences;

    const float *alibi_slopes; /* [H]: adds slope * (j - i - off), or by alibi_form; NULL */
    const float *sink_logits;  /* [H]: one more logit in each row's denominator; NULL */
    double softcap;            /* > 0: softcap * tanh(x / softcap) */
    double dropout;            /* 0 <= p < 1: weights kept with probability 1-p, times 1/(1-p) */
    uint64_t dropout_seed;
    attn_precision precision;

    const attn_tensor *lse;    /* out: [B,H,T,1] f32 or f64, natural logarithm; NULL */
    const attn_tensor *scores; /* out: [B,H,T,S] of any float dtype; NULL */
    attn_stage scores_stage;

    void *workspace; /* of at least attn_plan_info.scratch_bytes, or NULL: the context's */
    size_t workspace_bytes;

    /* Keys and values come from here (see Cache, below); k.data and v.data are then NULL, and the
     * rest of k and v is not looked at. B, Hk, D, Dv are the cache's; S is the longest length, and
     * the lengths are the key_lengths, unless key_lengths says less. q has the cache's dtype, or,
     * with ATTN_I8, is f32, f16 or bf16. Not together with cu_seqlens. */
    const struct attn_cache *cache;

    attn_diagonal diagonal; /* that window and ALiBi count from without causal */
    attn_alibi_form alibi_form;
} attn_sdpa_args;

/* All zero but the size and the open window. */
#define ATTN_SDPA_ARGS_INIT                                                                        \
    {                                                                                              \
        .struct_size = sizeof(attn_sdpa_args), .window_left = -1, .window_right = -1               \
    }
ATTN_API void attn_sdpa_args_init_sized(attn_sdpa_args *args, size_t struct_size);
static inline void attn_sdpa_args_init(attn_sdpa_args *args)
{
    attn_sdpa_args_init_sized(args, sizeof *args);
}

ATTN_API attn_status attn_sdpa_forward(attn_context *ctx, const attn_sdpa_args *args,
                                       attn_error *err);

/* What attn_sdpa_forward would run, without running it. Fails as attn_sdpa_forward would, but does
 * not look at workspace: how large that must be is what it is asked. Of an older, shorter struct as
 * much is filled as it has; of a newer one, what is not known becomes 0. */
typedef struct attn_plan_info {
    size_t struct_size; /* sizeof(attn_plan_info), set by ATTN_PLAN_INFO_INIT */
    char kernel[48];    /* "avx512 f32 64x256" */
    size_t scratch_bytes;
    int threads; /* that will work on it */
    int64_t tasks;
    double flop;  /* of the visible pairs; a dense mask counts as all visible */
    double bytes; /* of the inputs and outputs, each once */
} attn_plan_info;
#define ATTN_PLAN_INFO_INIT                                                                        \
    {                                                                                              \
        .struct_size = sizeof(attn_plan_info)                                                      \
    }
ATTN_API void attn_plan_info_init_sized(attn_plan_info *info, size_t struct_size);
static inline void attn_plan_info_init(attn_plan_info *info)
{
    attn_plan_info_init_sized(info, sizeof *info);
}
ATTN_API attn_status attn_sdpa_plan(attn_context *ctx, const attn_sdpa_args *args,
                                    attn_plan_info *info, attn_error *err);

/* The gradients of a loss with respect to what attn_sdpa_forward read, given the gradient of the
 * loss with respect to what it wrote. `args` are those of the forward call; `out` and `lse`, which
 * is required, hold what it gave, and both are only read here; `scores` is not looked at. An lse of
 * f32 has an error of 6e-8 |lse|, which every weight gets as a relative error: for gradients in
 * double it must be f64. Not from a cache.
 *
 *   w = weights    dw_ij = d_ij dout_i . v_j    ds_ij = w_ij (dw_ij - dout_i . out_i + dlse_i)
 *   dv_j = sum_i w_ij d_ij dout_i    dq_i = scale sum_j ds'_ij k_j    dk_j = scale sum_i ds'_ij q_i
 *
 * with d dropout's factor and ds' = ds times the soft cap's derivative. Query heads that share a
 * key/value head add to its gradient. What is not visible is never multiplied: NaN or Inf there, or
 * in q and dout of a row that sees nothing, changes no bit; a row that sees nothing and a key that
 * is not seen get exactly 0.
 *
 * Memory: three numbers for each row of q; for each thread a chunk of keys, O(D + Dv); sums for dq,
 * O((T + S) * D) for each query head of at most twice as many key/value heads as there are threads;
 * for the gradient of a mask that repeats, a number for each head's query or key. Never T x S.
 * Bits: equal for any number of threads.
 * Outputs must not overlap inputs nor each other. Returns ATTN_OK, or an error before anything is
 * written. Source: Dao et al. 2022.
 */
typedef struct attn_sdpa_grads {
    size_t struct_size;       /* sizeof(attn_sdpa_grads), set by ATTN_SDPA_GRADS_INIT */
    attn_tensor dout;         /* in:  [B,H,T,Dv], of q's dtype or f32/f64 */
    const attn_tensor *dlse;  /* in:  [B,H,T,1] f32 or f64, gradient of lse; NULL: none */
    attn_tensor dq, dk, dv;   /* out: [B,H,T,D], [B,Hk,S,D], [B,Hk,S,Dv], of q's dtype or f32/f64;
                                 data NULL and shape all 0: not wanted */
    const attn_tensor *dmask; /* out: of the float mask's own (broadcast) shape, f32 or f64; NULL */
    double *dalibi_slopes, *dsink_logits; /* out: [H], or NULL */
} attn_sdpa_grads;

/* All zero but the size. */
#define ATTN_SDPA_GRADS_INIT                                                                       \
    {                                                                                              \
        .struct_size = sizeof(attn_sdpa_grads)                                                     \
    }
ATTN_API void attn_sdpa_grads_init_sized(attn_sdpa_grads *grads, size_t struct_size);
static inline void attn_sdpa_grads_init(attn_sdpa_grads *grads)
{
    attn_sdpa_grads_init_sized(grads, sizeof *grads);
}

ATTN_API attn_status attn_sdpa_backward(attn_context *ctx, const attn_sdpa_args *args,
                                        const attn_sdpa_grads *grads, attn_error *err);

/* What attn_sdpa_backward would run, as attn_sdpa_plan says it of the forward; args->workspace,
 * which is not looked at, needs these scratch_bytes. */
ATTN_API attn_status attn_sdpa_backward_plan(attn_context *ctx, const attn_sdpa_args *args,
                                             const attn_sdpa_grads *grads, attn_plan_info *info,
                                             attn_error *err);

/* Forward mode: how out and lse move when q, k and v move along tq, tk and tv. `args` as for the
 * backward; args->workspace is not used. With ts_ij the tangent of score (i, j):
 *
 *   tlse_i = sum_j w_ij ts_ij    tout_i = sum_j w_ij d_ij (ts_ij v_j + tv_j) - tlse_i out_i
 *
 * Memory: some tiles for each thread, O(D + Dv). Bits: equal for any number of threads. What is
 * hidden, errors and outputs: as for the backward.
 */
typedef struct attn_sdpa_tangents {
    size_t struct_size;      /* sizeof(attn_sdpa_tangents), set by ATTN_SDPA_TANGENTS_INIT */
    attn_tensor tq, tk, tv;  /* in:  of q's, k's, v's shape; of q's dtype or f32/f64; data NULL and
                                shape all 0: does not move */
    attn_tensor tout;        /* out: [B,H,T,Dv], of q's dtype or f32/f64 */
    const attn_tensor *tlse; /* out: [B,H,T,1] f32 or f64, 0 for a row that sees nothing; NULL */
} attn_sdpa_tangents;

/* All zero but the size. */
#define ATTN_SDPA_TANGENTS_INIT                                                                    \
    {                                                                                              \
        .struct_size = sizeof(attn_sdpa_tangents)                                                  \
    }
ATTN_API void attn_sdpa_tangents_init_sized(attn_sdpa_tangents *tangents, size_t struct_size);
static inline void attn_sdpa_tangents_init(attn_sdpa_tangents *tangents)
{
    attn_sdpa_tangents_init_sized(tangents, sizeof *tangents);
}

ATTN_API attn_status attn_sdpa_jvp(attn_context *ctx, const attn_sdpa_args *args,
                                   const attn_sdpa_tangents *tangents, attn_error *err);

/* The dropout decisions of a call with this seed and p: out [B,H,T,S], bool, 1 = kept.
 * Philox4x32-10, key = seed, counter = (j / 8, i, b * H + h, 0), one 16-bit draw per key: kept if
 * it is >= round(p * 65536). Depends on nothing else. Salmon et al. 2011. */
ATTN_API attn_status attn_dropout_mask(uint64_t seed, double p, const attn_tensor *out,
                                       attn_error *err);

/* -------------------------------------------------------------------------------------- Cache
 *
 * The keys and values of B sequences that grow, each on its own: what a decoder keeps between
 * tokens. Append the rows of new tokens, then attend to all that are there:
 *
 *   attn_cache_append(cache, b, &k, &v, &err);                     for each sequence b
 *   args.q = ...;  args.cache = cache;  args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
 *   attn_sdpa_forward(ctx, &args, &err);                           q: the last T tokens of each
 *
 * Bits: attention from a cache gives the bits that the same rows give in plain tensors, contiguous
 * or in pages, appended one by one or all at once. What was never appended, or was cut off, shows
 * in no result.
 *
 * Types: rows are converted to the cache's dtype with one rounding. ATTN_I8 keeps, for each key or
 * value row of a head, round(127 x / m) with m the largest |x| of the row, and the float m / 127:
 * an error of at most m / 254 and a float's rounding. Attention from it has the bits of an f32 call
 * on the rows that attn_cache_read gives. A row with a NaN or an infinity becomes NaN, all of it.
 *
 * Memory: one block, taken when it is created: (D + Dv) x the element's size, and 8 bytes for
 * ATTN_I8, for each key of each key/value head. Contiguous: [B,Hk,max_keys,D], max_keys rounded up
 * to 64. In pages: [pages,Hk,page_keys,D], each page being one sequence's, taken as that grows and
 * given back by attn_cache_truncate. Where the block begins, and each head of each page, is aligned
 * to 64 bytes; values follow each other without gaps. Keys of f32, f16 and bf16 are turned, as
 * decoding reads them fastest; of 2 bytes, an odd D takes one element more.
 *
 * Threads: append, truncate and destroy need the cache for themselves; everything else only reads
 * it, and may overlap.
 */
typedef struct attn_cache attn_cache;

typedef struct attn_cache_options {
    size_t struct_size;       /* sizeof(attn_cache_options), set by ATTN_CACHE_OPTIONS_INIT */
    int64_t B, Hk, D, Dv;     /* 0 or more */
    attn_dtype dtype;         /* f64, f32, f16, bf16 or i8 */
    int64_t max_keys;         /* that a sequence may have */
    int64_t page_keys, pages; /* page_keys 0: contiguous. Else a multiple of 64; pages in the pool
                                 of all sequences, 0: enough for B of max_keys */

    /* As in attn_context_options: both or neither. Called by create, load and destroy alone. */
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory, size_t size);
    void *memory_user;
} attn_cache_options;

#define ATTN_CACHE_OPTIONS_INIT                                                                    \
    {                                                                                              \
        .struct_size = sizeof(attn_cache_options), .dtype = ATTN_F32                               \
    }
ATTN_API void attn_cache_options_init_sized(attn_cache_options *options, size_t struct_size);
static inline void attn_cache_options_init(attn_cache_options *options)
{
    attn_cache_options_init_sized(options, sizeof *options);
}

ATTN_API attn_status attn_cache_create(const attn_cache_options *options, attn_cache **out,
                                       attn_error *err);
ATTN_API void attn_cache_destroy(attn_cache *cache); /* NULL is fine */

/* Adds n keys and values to sequence b: k [1,Hk,n,D], v [1,Hk,n,Dv], of any float dtype and any
 * strides. ATTN_ERR_FULL: max_keys would be exceeded, or no page is left. After an error the cache
 * is as it was. */
ATTN_API attn_status attn_cache_append(attn_cache *cache, int64_t b, const attn_tensor *k,
                                       const attn_tensor *v, attn_error *err);

/* Copies keys first .. first+n-1 of sequence b out: k [1,Hk,n,D], v [1,Hk,n,Dv], of any float
 * dtype; either may be NULL. */
ATTN_API attn_status attn_cache_read(const attn_cache *cache, int64_t b, int64_t first,
                                     const attn_tensor *k, const attn_tensor *v, attn_error *err);

/* Cuts sequence b off after its first `length` keys, 0 <= length <= its length. */
ATTN_API attn_status attn_cache_truncate(attn_cache *cache, int64_t b, int64_t length,
                                         attn_error *err);

ATTN_API int64_t attn_cache_length(const attn_cache *cache, int64_t b); /* -1: there is no such b */
ATTN_API size_t attn_cache_bytes(const attn_cache *cache);              /* that it allocated */

/* Saved: the lengths and rows of all sequences, little-endian, the same bytes however the cache is
 * laid out (docs/NUMERICS.md, "Saved caches"). `write` gets them piece by piece and returns 0, or
 * anything else to give up: then ATTN_ERR_FILE. */
ATTN_API attn_status attn_cache_save(const attn_cache *cache,
                                     int (*write)(void *user, const void *bytes, size_t n),
                                     void *user, attn_error *err);

/* A new cache by `options`, filled from `size` bytes that attn_cache_save wrote. B, Hk, D, Dv and
 * dtype must be those of the saved one; max_keys, page_keys and pages need only have room. The
 * bytes are not trusted: ATTN_ERR_FILE says what is wrong with them, and memory is taken, as much
 * as the options ask for, only when they have been found good; ATTN_ERR_FULL: no room. */
ATTN_API attn_status attn_cache_load(const attn_cache_options *options, const void *bytes,
                                     size_t size, attn_cache **out, attn_error *err);

/* ---------------------------------------------------------------------------------- Measuring
 *
 * What this machine can do, to stand beside a time: for benchmarks. Each runs for about `seconds`
 * on the caller's thread and returns the best it saw.
 */
/* Floating-point operations a second of the instruction set's fused multiply-adds on dtype's
 * compute type, from registers. 0 if isa is unknown or unusable. NULL: the best. */
ATTN_API double attn_measure_flops(const char *isa, attn_dtype dtype, double seconds);
/* Bytes a second of reading `bytes` of memory that was written before, over and over. */
ATTN_API double attn_measure_read(size_t bytes, double seconds);

#ifdef __cplusplus
}
#endif

#include "attn_nn.h"
#endif /* ATTN_H */
