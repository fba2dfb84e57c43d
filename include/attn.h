/* libattn - self-attention as a small, exact, fast C library.
 *
 * This header is the manual. The sizes have the same letters everywhere:
 *
 *   B batch   H query heads   Hk key/value heads (H % Hk == 0)   T queries   S keys
 *   D size of a query and of a key   Dv size of a value
 *
 * A *row* is one query of one head with its scores, weights and output; i numbers queries, j keys.
 * lse is the log-sum-exp of a row's scores.
 *
 * The interface in five levels, from one call to full control:
 *   1. attn_sdpa_forward(NULL, &args, NULL): softmax(q k^T / sqrt(D)) v on the caller's thread.
 *   2. attn_context: threads, instruction set, allocator, the caller's own parallel_for.
 *   3. attn_sdpa_args: every mask, packed sequences, scores and lse as outputs, dropout, workspace.
 *   4. Caches of keys and values for decoding (attn_cache.h); keys in pieces (attn_pieces.h), if
 *      they do not fit in memory. This header includes both.
 *   5. Modules (attn_nn.h, which this header includes): embedding, linear layer, multi-head
 *      attention and whatever else the training of a small model needs; PyTorch's random
 *      generator (uniform numbers to the bit, normal ones to a few ulps).
 *
 * The library needs libc, libm and pthreads. It never prints, exits or aborts, and never changes
 * the locale, the caller's signal mask or a signal handler. Functions are reentrant; the thread
 * rule of each object is stated with it. A pointer argument may be NULL only where this header says
 * so.
 *
 * Floating-point mode: results do not depend on the mode of the caller's thread. A call leaves that
 * mode and the exception flags as it found them. While it runs, C's default mode is set, in which
 * nothing traps; the caller's own allocate, release and parallel_for run in this mode too.
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
 * A function that can fail returns a status, unless its comment names another sign of failure. If
 * `err` is not NULL, it also writes one line that says which argument was wrong and what would be
 * right; `err` is written only on failure. The values below are fixed: they never change their
 * meaning.
 */
typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_ERR_ARGUMENT = 1,    /* a value out of its range, or two that exclude each other */
    ATTN_ERR_SHAPE = 2,       /* shapes that do not fit together */
    ATTN_ERR_DTYPE = 3,       /* a storage type that this argument cannot have */
    ATTN_ERR_STRIDE = 4,      /* an output whose elements overlap */
    ATTN_ERR_MEMORY = 5,      /* the allocator returned NULL */
    ATTN_ERR_LIMIT = 6,       /* a size that this machine cannot address, or above a stated limit */
    ATTN_ERR_UNSUPPORTED = 7, /* an instruction set that this machine lacks. attn_sdpa_load
                                 (attn_pieces.h): the state was saved on another set */
    ATTN_ERR_FULL = 8,        /* a cache has no room for that many keys */
    ATTN_ERR_FILE = 9,        /* loading a saved cache or state: the bytes are damaged, of another
                                 kind, or from another version. Saving: the caller's write
                                 callback failed */
    ATTN_AGAIN = 10,          /* not an error: attn_sdpa_finish (attn_pieces.h) needs some keys of
                                 the call once more */
    ATTN_ERR_COMM = 11        /* attn_mpi.h: another rank sent nothing, or a message failed */
} attn_status;

typedef struct attn_error {
    attn_status status;
    char argument[24]; /* "mask", "k", ... or "" */
    char message[232]; /* one line, no newline, starts with the argument's name if there is one */
} attn_error;

ATTN_API const char *attn_status_name(attn_status status); /* "ATTN_ERR_SHAPE" */

/* The version of the library that the program is linked with: "0.2.0", or "0.2.0 (compiled without
 * optimisation)". */
ATTN_API const char *attn_version(void);

/* -------------------------------------------------------------------------- Structs that grow
 *
 * A struct that begins with struct_size may get more members at its end in a later version. Set it
 * up with its INIT macro or its init function. They set struct_size to the struct's sizeof and
 * every other member to its default. A call accepts a struct of another version, by its
 * struct_size:
 *   older header, shorter struct   the missing members have their defaults
 *   newer header, longer struct    accepted if all members that this library does not know are 0;
 *                                  else ATTN_ERR_ARGUMENT, which names struct_size
 * No other struct ever changes (docs/ABI.md).
 *
 * The init functions call attn_..._init_sized. A binding that does not use this header calls it
 * directly, with the size of its own struct.
 */

/* ------------------------------------------------------------------------------------ Tensors
 *
 * A tensor is a view: it owns no memory. It has four dimensions; leading ones that are not used
 * have size 1. Strides are in ELEMENTS and may have any value, negative and 0 included: a stride of
 * 0 repeats an input along that dimension. No two elements of an output may share memory. No
 * alignment is assumed. A last stride of 1 is the fast case. With any other last stride, the
 * elements of the last dimension are first copied one by one. If a size is 0, data may be NULL. A
 * size above 2^56 is ATTN_ERR_LIMIT.
 */
typedef enum attn_dtype {
    ATTN_F64 = 1,
    ATTN_F32 = 2,
    ATTN_F16 = 3,  /* IEEE 754 binary16 */
    ATTN_BF16 = 4, /* the high half of a binary32 */
    ATTN_BOOL = 5, /* one byte, 0 or not 0; masks only */
    ATTN_I64 = 6,  /* indices only */
    ATTN_I8 = 7    /* -127..127, times one float per row; inside a cache only */
} attn_dtype;

ATTN_API size_t attn_dtype_size(attn_dtype dtype);      /* bytes of an element, 0 if unknown */
ATTN_API const char *attn_dtype_name(attn_dtype dtype); /* "f32" */

typedef struct attn_tensor {
    void *data;
    attn_dtype dtype;
    int64_t shape[4];
    int64_t stride[4];
} attn_tensor;

/* Views of dense arrays. bhtd: memory is [B,H,T,D]. bthd: memory is [B,T,H,D], as a linear layer
 * writes all heads, viewed as [B,H,T,D]. matrix: [rows,columns], as [1,1,rows,columns]. */
ATTN_API attn_tensor attn_bhtd(const void *data, attn_dtype dtype, int64_t B, int64_t H, int64_t T,
                               int64_t D);
ATTN_API attn_tensor attn_bthd(const void *data, attn_dtype dtype, int64_t B, int64_t T, int64_t H,
                               int64_t D);
ATTN_API attn_tensor attn_matrix(const void *data, attn_dtype dtype, int64_t rows, int64_t columns);

/* ------------------------------------------------------------------------------------ Context
 *
 * A context holds threads, the instruction set, and scratch memory that is kept between calls.
 * Wherever a function takes a context, NULL means: the caller's thread, the default instruction
 * set, scratch from malloc.
 *
 * Threads: calls on different contexts may overlap freely; calls on one context are serialised.
 * After fork(), a context also works in the child. The child starts its own threads at its next
 * call.
 * Idle threads spin for 30 microseconds, because the next call may follow at once. Then they sleep
 * and cost nothing. If there are fewer CPUs than threads, they sleep at once.
 */
typedef struct attn_context attn_context;

typedef struct attn_context_options {
    size_t struct_size; /* sizeof(attn_context_options), set by ATTN_CONTEXT_OPTIONS_INIT */
    int threads;        /* 0: ATTN_NUM_THREADS if set, else the CPUs of the affinity mask */
    const char *isa;    /* "generic", "avx2", "avx512", "avx512bf16", "amx" or "neon", as
                         * attn_isa() lists them; NULL: ATTN_ISA if set, else the fastest
                         * here. ATTN_AMX=0 removes "amx" */

    /* The caller's allocator, both functions or neither. allocate must return NULL, or memory that
     * is aligned to `alignment` (a power of two, at most 64). The library calls both only from the
     * thread that called the library. */
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory, size_t size);
    void *memory_user;

    /* The caller's threads, used instead of the context's: the function must run body(arg, 0) ...
     * body(arg, n - 1), in any order and on any threads, and return when all are done. n is at most
     * `threads`. */
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

/* options may be NULL: all defaults. ATTN_ERR_UNSUPPORTED if the machine lacks the instruction set
 * that is named. If the system refuses to start a thread, the context works with those it has. */
ATTN_API attn_status attn_context_create(const attn_context_options *options, attn_context **out,
                                         attn_error *err);
ATTN_API void attn_context_destroy(attn_context *ctx); /* NULL is fine; no call may be running */
ATTN_API int attn_context_threads(const attn_context *ctx);     /* 1 for NULL */
ATTN_API const char *attn_context_isa(const attn_context *ctx); /* the default for NULL */

/* A parallel_for for programs that compute with OpenMP: it runs the tasks in the OpenMP runtime's
 * team. (Its idle threads spin, so a context's own threads would have to share CPUs with them.)
 * parallel_user is the address of GOMP_parallel, which GNU's, LLVM's and Intel's runtimes have. The
 * team may have any number of threads. After fork(), the child may use attn_openmp_for wherever it
 * may use OpenMP. */
ATTN_API void attn_openmp_for(void *gomp_parallel, int n, void (*body)(void *arg, int index),
                              void *arg);

/* The instruction sets that were compiled in, the slowest first. This machine may lack some of
 * them; attn_context_isa(NULL) names the set that is chosen by default. Past the end, name is NULL.
 * usable is 1 if this machine can run the set. For "amx", the library asks Linux for permission to
 * use tiles, once in a process; if ATTN_AMX=0 it does not ask, and "amx" is not usable. Once
 * permission is given, Linux refuses alternate signal stacks that are smaller than
 * sysconf(_SC_MINSIGSTKSZ), about 12 KiB. */
typedef struct attn_isa_info {
    const char *name;
    int usable;
} attn_isa_info;
ATTN_API attn_isa_info attn_isa(int index);

/* Writes the names of this machine's CPU features that matter to the library, separated by spaces.
 * Like snprintf, it returns the length of the whole text. */
ATTN_API int attn_cpu_features(char *buffer, size_t size);

/* ---------------------------------------------------------------------------------- Attention
 *
 * attn_sdpa_forward() - out = softmax(scale * q k^T + bias, over visible keys) v
 *
 * Shapes: q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv], out [B,H,T,Dv]; query head h reads key/value
 * head h / (H/Hk). q, k, v share one dtype; out has that dtype, or f32 or f64. Any size may be 0. A
 * call with nothing to write returns at once, however large the other sizes are. If D = Dv = 0,
 * arrays take no memory, so memory does not limit the number of keys. Then there is another limit:
 * with lse, scores or a gradient to write, B * Hk * S must be at most 2^31 - 1, else the call fails
 * with ATTN_ERR_LIMIT.
 *
 * Query i sees key j if both are in the same packed sequence and every rule in use is satisfied:
 *   causal  j <= i + off          window  i + off - window_left <= j <= i + off + window_right
 *   lengths j < key_lengths[b]    mask    true, or a float that is not -inf
 * off is the offset of the diagonal: 0 for TOP_LEFT, S - T for BOTTOM_RIGHT, causal_offset for
 * OFFSET. `causal` chooses one of the three; if it is NONE, `diagonal` chooses. In S - T, S is
 * key_lengths[b] if lengths are given; in a packed sequence, S and T are the sizes of that
 * sequence.
 *
 *   TOP_LEFT T=2,S=4   BOTTOM_RIGHT T=2,S=4   TOP_LEFT T=4,S=2   BOTTOM_RIGHT T=4,S=2
 *   x . . .            x x x .                x .                . .
 *   x x . .            x x x x                x x                . .
 *                                             x x                x .
 *                                             x x                x x
 *
 * A query that sees no key gets zeros, and lse = -inf or, with sink_logits, lse = the head's sink
 * logit. Masked positions never influence the result: NaN or Inf there changes no bit. NaN in a
 * visible position reaches the queries that see it, and no others.
 *
 * Memory: O(T + S) scratch, never T x S, whatever the options. The output `scores`, if requested,
 * is T x S, but the caller allocates it.
 * Bits: the result of a query has the same bits for any number of threads, any batch, any number of
 * queries in the call, and any alignment. This is promised within one release, on one instruction
 * set of one machine. With dropout, the result also depends on the query's place: its b, h and i.
 * Outputs must not overlap inputs.
 *
 * Returns ATTN_OK, or an error before anything is written; ATTN_ERR_MEMORY, too, leaves the outputs
 * untouched. Sources: Vaswani et al. 2017; online softmax, Milakov and Gimelshein 2018; tiling, Dao
 * et al. 2022; sinks, Xiao et al. 2023; ALiBi, Press et al. 2021.
 */
typedef enum attn_causal {
    ATTN_CAUSAL_NONE = 0,
    ATTN_CAUSAL_TOP_LEFT = 1,     /* off = 0: PyTorch's is_causal */
    ATTN_CAUSAL_BOTTOM_RIGHT = 2, /* off = S - T: FlashAttention, decoding with a cache */
    ATTN_CAUSAL_OFFSET = 3        /* off = causal_offset */
} attn_causal;

/* Window and ALiBi count from the diagonal j = i + off. If causal is ATTN_CAUSAL_NONE, `diagonal`
 * sets off. Otherwise causal sets off, and `diagonal` must be the same choice or
 * ATTN_DIAGONAL_TOP_LEFT, which is then ignored. */
typedef enum attn_diagonal {
    ATTN_DIAGONAL_TOP_LEFT = 0,     /* off = 0 */
    ATTN_DIAGONAL_BOTTOM_RIGHT = 1, /* off = S - T: FlashAttention */
    ATTN_DIAGONAL_OFFSET = 2        /* off = causal_offset */
} attn_diagonal;

typedef enum attn_alibi_form {
    ATTN_ALIBI_SIGNED = 0,   /* slope * (j - i - off): with slope > 0, it raises scores
                                after the diagonal and lowers those before it */
    ATTN_ALIBI_SYMMETRIC = 1 /* -slope * |j - i - off|: FlashAttention; for j <= i + off
                                the same as SIGNED */
} attn_alibi_form;

typedef enum attn_stage {
    ATTN_STAGE_RAW = 0,     /* scale * q . k, of every pair, visible or not */
    ATTN_STAGE_SOFTCAP = 1, /* after the soft cap, of every pair */
    ATTN_STAGE_BIASED = 2,  /* after mask and ALiBi; -inf where not visible */
    ATTN_STAGE_WEIGHTS = 3  /* after softmax, before dropout; 0 where not visible */
} attn_stage;

typedef enum attn_precision {
    ATTN_PRECISION_DEFAULT = 0, /* f64 is computed in double, every other type in float. One
                                   exception: with bf16 on "avx512bf16" and "amx", the weights and,
                                   in the backward, the gradients of scores are rounded to bf16 */
    ATTN_PRECISION_ACCURATE = 1 /* f32 is computed in double and rounded once, at the end. So is
                                   a call with an i8 cache, whatever the type of q. With bf16,
                                   weights and gradients of scores are kept in float on every
                                   instruction set */
} attn_precision;

typedef struct attn_sdpa_args {
    size_t struct_size; /* sizeof(attn_sdpa_args), set by ATTN_SDPA_ARGS_INIT */
    attn_tensor q, k, v, out;
    double scale; /* 0: 1/sqrt(D) */

    attn_causal causal;
    int64_t causal_offset;             /* for ATTN_CAUSAL_OFFSET and ATTN_DIAGONAL_OFFSET */
    int64_t window_left, window_right; /* -1: no limit on that side */
    /* bool (true = attend) or float (added); [B|1, H|1, T|1, S|1], a 1 broadcasts; NULL: no mask */
    const attn_tensor *mask;
    const int64_t *key_lengths; /* [B], each in 0..S; NULL: S */

    /* Packed sequences: queries cu_seqlens_q[n] .. cu_seqlens_q[n+1]-1 see only keys
     * cu_seqlens_k[n] .. cu_seqlens_k[n+1]-1, n = 0..sequences-1. Both arrays have sequences + 1
     * elements, start at 0 and never decrease. Causal, window and ALiBi count i and j from the
     * start of the sequence. mask and dropout count from the start of the tensor. Without
     * dropout, the result of each sequence has the same bits as in a call with this sequence alone
     * and its part of the mask. Not together with key_lengths. NULL: one sequence. */
    const int64_t *cu_seqlens_q, *cu_seqlens_k;
    int64_t sequences;

    const float *alibi_slopes; /* [H]: slope of each head's bias, see alibi_form; NULL: none */
    const float *sink_logits;  /* [H]: one more logit in each row's denominator; NULL: none */
    double softcap;            /* > 0: a score x becomes softcap * tanh(x / softcap) */
    double dropout;            /* p, 0 <= p < 1: a weight becomes 0 with probability p (rounded to
                                  a multiple of 2^-16), and is multiplied by 1/(1-p) otherwise */
    uint64_t dropout_seed;
    attn_precision precision;

    /* Optional outputs; NULL: not wanted. lse: natural logarithm, [B,H,T,1], f32 or f64. scores:
     * [B,H,T,S] of any float dtype, at the stage scores_stage. */
    const attn_tensor *lse;
    const attn_tensor *scores;
    attn_stage scores_stage;

    void *workspace; /* at least attn_plan_info.scratch_bytes; NULL: the context's scratch */
    size_t workspace_bytes;

    /* If not NULL, keys and values come from this cache (attn_cache.h). k.data and v.data must
     * then be NULL, and the other members of k and v are ignored. B, Hk, D and Dv are those of the
     * cache, S is the length of its longest sequence. key_lengths may give smaller lengths than
     * those of the cache; NULL: the lengths of the cache. q has the cache's dtype; if that is
     * ATTN_I8, q is f32, f16 or bf16. Not together with cu_seqlens. */
    const struct attn_cache *cache;

    attn_diagonal diagonal; /* without causal: the diagonal from which window and ALiBi count */
    attn_alibi_form alibi_form;
} attn_sdpa_args;

/* All members are zero but struct_size and the window, which has no limit on either side. */
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

/* Describes how attn_sdpa_forward would compute a call, and computes nothing. It fails where
 * attn_sdpa_forward would, except that it ignores workspace: the size of the workspace is one of
 * its results. If info is the shorter struct of an older header, only the members of that struct
 * are filled. If it is the longer struct of a newer header, the members that this library does not
 * know become 0. A tile is a group of queries that are computed together. A chunk is a group of
 * keys whose weighted values are summed before this sum joins the total. */
typedef struct attn_plan_info {
    size_t struct_size; /* sizeof(attn_plan_info), set by ATTN_PLAN_INFO_INIT */
    char kernel[48];    /* "avx512 f32 64x256": instruction set, operand type, queries per tile x
                           keys per chunk */
    size_t scratch_bytes;
    int threads;   /* number of threads that will take part */
    int64_t tasks; /* units of work that threads claim */
    double flop;   /* floating-point operations; forward: 2 (D + Dv) per visible pair. A dense mask
                     is counted as if it hid nothing */
    double bytes;  /* size of the inputs and outputs, each counted once */

    /* The name of the algorithm: "tiles", "one block", "decode" or another (docs/DESIGN.md lists
     * all). It is the route of a full tile that sees every key. A tile with fewer queries may take
     * another route, and so may a block of 64 keys if a mask hides some of them. */
    char route[32];
    char why[120]; /* the reason for this route, as a phrase */
    int tiles;     /* number of tiles of queries in a task; one after the other, they read the same
                      chunk of keys while it is in the CPU's cache */
    int prefetch;  /* 1: rows of q, k, v and out are prefetched, because together these tensors have
                      over 1 MiB, with each element counted as f32 (in a call in f64, as f64) */
    int64_t parts; /* number of parts into which each task is cut along the keys, so that several
                      threads can share it; 1: not cut */
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

/* The backward: given the gradient of a loss with respect to the outputs of attn_sdpa_forward, it
 * computes the gradient with respect to the inputs. `args` are those of the forward call. `out` and
 * `lse` hold its results and are only read here; lse is required, and `scores` is ignored. An lse
 * stored as f32 has an error of 6e-8 |lse|, which becomes a relative error of every weight. It may
 * be f32 for inputs of any type, but gradients are accurate to double only if it is f64. A cache is
 * refused.
 *
 *   w = weights    dw_ij = d_ij dout_i . v_j    ds_ij = w_ij (dw_ij - dout_i . out_i + dlse_i)
 *   dv_j = sum_i w_ij d_ij dout_i    dq_i = scale sum_j ds'_ij k_j    dk_j = scale sum_i ds'_ij q_i
 *
 * d is dropout's factor, and ds' is ds times the soft cap's derivative. Query heads that share a
 * key/value head add to its gradient. Hidden positions never influence a gradient: NaN or Inf
 * there, or in q and dout of a row without visible keys, changes no bit. Rows without visible keys
 * and keys that no query sees get gradients of exactly 0.
 *
 * Memory: three numbers and a byte for each row of q. Each thread needs a chunk of keys with its
 * gradients, O(D + Dv). The sums for dq of one query head take O(T * D). With packed sequences they
 * take O((T + S) * D), because the queries of a sequence are padded to whole tiles. Only sequences
 * with more keys than a chunk need these sums, and a chunk has at least as many keys as a tile has
 * queries. So the padding is fewer rows than the sequence has keys, and fewer than S in all. With N
 * threads, fewer than 2 N key/value heads are computed at a time; only their query heads have such
 * sums. The gradient of a mask takes one number per key and head if the mask repeats along the
 * queries, and one per query and head if it repeats along the keys. Never T x S. Bits: the same for
 * any number of threads. Outputs must not overlap inputs nor each other. Returns ATTN_OK, or an
 * error before anything is written. Source: Dao et al. 2022.
 */
typedef struct attn_sdpa_grads {
    size_t struct_size;       /* sizeof(attn_sdpa_grads), set by ATTN_SDPA_GRADS_INIT */
    attn_tensor dout;         /* in:  [B,H,T,Dv], of q's dtype or f32/f64 */
    const attn_tensor *dlse;  /* in:  [B,H,T,1] f32 or f64, gradient of lse; NULL: 0 */
    attn_tensor dq, dk, dv;   /* out: [B,H,T,D], [B,Hk,S,D], [B,Hk,S,Dv], of q's dtype or f32/f64;
                                 data NULL and shape all 0: not wanted */
    const attn_tensor *dmask; /* out: of the shape in which the float mask was given, f32 or f64;
                                 or NULL */
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

/* Describes what attn_sdpa_backward would run, as attn_sdpa_plan does for the forward. It ignores
 * args->workspace; scratch_bytes is the size that the workspace of attn_sdpa_backward needs. */
ATTN_API attn_status attn_sdpa_backward_plan(attn_context *ctx, const attn_sdpa_args *args,
                                             const attn_sdpa_grads *grads, attn_plan_info *info,
                                             attn_error *err);

/* Forward mode: the change (tangent) of out and lse when q, k and v change along tq, tk and tv.
 * `args` as for the backward; args->workspace is not used. With ts_ij the tangent of score (i, j):
 *
 *   tlse_i = sum_j w_ij ts_ij    tout_i = sum_j w_ij d_ij (ts_ij v_j + tv_j) - tlse_i out_i
 *
 * Memory: arrays for one tile of queries and one block of keys for each thread, O(D + Dv). Bits:
 * the same for any number of threads. As in the backward, hidden positions never influence a
 * result, errors are returned before anything is written, and outputs must not overlap inputs nor
 * each other.
 */
typedef struct attn_sdpa_tangents {
    size_t struct_size;      /* sizeof(attn_sdpa_tangents), set by ATTN_SDPA_TANGENTS_INIT */
    attn_tensor tq, tk, tv;  /* in:  of q's, k's, v's shape; of q's dtype or f32/f64; data NULL and
                                shape all 0: the input does not change */
    attn_tensor tout;        /* out: [B,H,T,Dv], of q's dtype or f32/f64 */
    const attn_tensor *tlse; /* out: [B,H,T,1] f32 or f64, 0 where no key is visible; or NULL */
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

/* The dropout decisions of a call with this seed and p: out [B,H,T,S], bool, 1 = kept. They do not
 * depend on the tensors, the masks or the number of threads. Philox4x32-10, key = seed, counter =
 * (j / 8, i, b * H + h, 0), one 16-bit draw per key: kept if the draw is >= round(p * 65536).
 * Salmon et al. 2011. */
ATTN_API attn_status attn_dropout_mask(uint64_t seed, double p, const attn_tensor *out,
                                       attn_error *err);

/* ---------------------------------------------------------------------------------- Measuring
 *
 * For benchmarks: the peak speed of this machine, to compare a measured time with. Each function
 * runs for about `seconds` on the caller's thread and returns the best rate it measured.
 */
/* Measures floating-point operations per second, with operands in registers. The operations are
 * multiply-adds in float or double, the type that dtype is computed in: fused ones, or a product
 * and a sum on sets without them ("generic"). For bf16 on
 * "avx512bf16" they are dot products of bf16, and on "amx" tile products of bf16. isa NULL: the
 * default set. Returns 0 if isa is unknown or unusable. */
ATTN_API double attn_measure_flops(const char *isa, attn_dtype dtype, double seconds);
/* Measures bytes per second: it writes a buffer of `bytes` bytes once, then reads it again and
 * again. */
ATTN_API double attn_measure_read(size_t bytes, double seconds);

#ifdef __cplusplus
}
#endif

#include "attn_cache.h"
#include "attn_nn.h"
#include "attn_pieces.h"
#endif /* ATTN_H */
