/* Declarations that the library's own files share. Nothing here is public; extern names begin with
 * attni_. */
#ifndef ATTNI_INTERNAL_H
#define ATTNI_INTERNAL_H

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__wasm__)
#include <fenv.h>
#endif
#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

/* The arithmetic requires that floats and doubles are rounded to their own type, and that NaN and
 * infinity are ordinary values. Compiler options that change this would silently give wrong
 * results. */
#if !defined(FLT_EVAL_METHOD) || FLT_EVAL_METHOD != 0
#error "libattn needs arithmetic that rounds to float and to double (FLT_EVAL_METHOD 0): \
on 32-bit x86 add -msse2 -mfpmath=sse; elsewhere add -fexcess-precision=fast or -std=gnu11"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "libattn needs NaN, infinity and the order of sums as it is written: \
leave out -ffast-math, -Ofast and -ffinite-math-only"
#endif

/* The compiler must not fuse a separate product and sum where the machine has fused multiply-add. A
 * plain `cc` does so by default, and its bits would differ from those of cmake/AttnCompile. */
#ifdef __FP_FAST_FMA
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif
#endif

/* The byte order. It matters only where bytes are read as a word, or the halves of a word as two
 * elements. */
#define ATTNI_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)

#define ATTNI_ALIGN 64 /* bytes: a cache line, on which every scratch array starts */

/* ----------------------------------------------------------------------------- sizes; alloc.c
 *
 * Nearly every heap overflow in other libraries' file readers and kernels began with a count times
 * a size, a sum or a rounding up that wrapped around. Therefore all of these go through the
 * functions below, which return false and leave *out unchanged if the true result does not fit.
 * Operands have 64 bits, as tensor sizes do: a cast to a 32-bit size_t would truncate them before
 * the check.
 *
 * attni_layout places aligned arrays in one block. With base NULL it only adds up their sizes, so
 * that the same code computes the size and then the addresses.
 */
static inline bool attni_size_add(uint64_t a, uint64_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}
static inline bool attni_size_mul(uint64_t a, uint64_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

/* a / b rounded up, for a >= 0 and b > 0. */
static inline int64_t attni_div_up(int64_t a, int64_t b)
{
    const int64_t n = a / b;
    return n + (n * b != a);
}

typedef struct attni_layout {
    char *base; /* aligned to ATTNI_ALIGN; NULL while computing the size */
    size_t used;
    bool overflow; /* a size did not fit a size_t; `used` is meaningless */
} attni_layout;
/* Takes the next count * element_size bytes. Sizes are rounded up to whole cache lines, so that
 * `used` is always the start of the next array and two workers never write to the same line. */
static inline void *attni_layout_take(attni_layout *into, uint64_t count, uint64_t element_size)
{
    size_t bytes, end;
    if (into->overflow || !attni_size_mul(count, element_size, &bytes) ||
        !attni_size_add(bytes, ATTNI_ALIGN - 1, &bytes) ||
        !attni_size_add(into->used, bytes / ATTNI_ALIGN * ATTNI_ALIGN, &end)) {
        into->overflow = true;
        return NULL;
    }
    void *piece = into->base ? into->base + into->used : NULL;
    into->used = end;
    return piece;
}

/* aligned_alloc() and free() for it, also on Windows; size must be a multiple of alignment. NULL
 * may be freed. */
void *attni_aligned_new(size_t alignment, size_t size);
void attni_aligned_free(void *memory);

/* The allocator used if options have no allocate and release. */
void *attni_default_allocate(void *user, size_t size, size_t alignment);
void attni_default_release(void *user, void *memory, size_t size);

/* memset(to, 0, n) and memcpy, always as calls of the C library. For sizes above 64 bytes (above
 * 256 with the options in CMakeLists.txt) that are known at compile time GCC emits string
 * instructions, and the start-up of three of them takes as long as attention over six words
 * does. */
void attni_zero(void *to, size_t n);
void attni_copy(void *to, const void *from, size_t n);

#ifdef __MINGW32__ /* MinGW's own printf has %zu and %lld; msvcrt's has not */
#define ATTNI_PRINTF gnu_printf
#else
#define ATTNI_PRINTF printf
#endif

/* ------------------------------------------------------------------------- error.c: messages
 *
 * attni_fail fills err (which may be NULL) and returns status, so that callers can write `return
 * attni_fail(...)`. A message says first what is wrong, then what would be right.
 */
attn_status attni_fail(attn_error *err, attn_status status, const char *argument,
                       const char *format, ...)
    __attribute__((format(ATTNI_PRINTF, 4, 5), cold)); /* cold: keeps messages out of hot code */

/* --------------------------------------------------------------- struct_size.c: callers' structs
 *
 * A caller's struct that begins with its size may come from an older header and be shorter, or from
 * a newer one and be longer. `argument` is its name in messages; a NULL struct is an error.
 */
typedef enum attni_struct {
    ATTNI_CONTEXT_OPTIONS,
    ATTNI_SDPA_ARGS,
    ATTNI_PLAN_INFO,
    ATTNI_SDPA_GRADS,
    ATTNI_SDPA_TANGENTS,
    ATTNI_CACHE_OPTIONS,
    ATTNI_PIECES_OPTIONS,
    ATTNI_MHA_ARGS,
    ATTNI_MHA_GRADS,
    ATTNI_ADAMW_OPTIONS
} attni_struct;
/* Writes the defaults into a struct of `size` bytes; members that this library does not know become
 * 0. */
void attni_struct_init(attni_struct which, void *to, size_t size);
/* Reads `from` into this library's version of the struct: members that `from` lacks get their
 * defaults; bytes that this library does not know must be 0. */
attn_status attni_struct_read(attni_struct which, void *to, const void *from, const char *argument,
                              attn_error *err);
/* Copies to the caller's struct `to` as many members of `from` as it has; if `to` is longer, the
 * rest becomes 0. */
attn_status attni_struct_write(attni_struct which, void *to, const void *from, const char *argument,
                               attn_error *err);

/* ---------------------------------------------------------------------------- dtype.c: rows
 *
 * Convert rows of any float storage type to and from the compute types. Strides are in elements.
 * Widening, and loading f32 as f32, is exact; stores round to nearest even. Neither pointer need be
 * aligned.
 */
bool attni_dtype_is_float(attn_dtype dtype);
/* attn_dtype_size() as an inline function. */
static inline size_t attni_dtype_size(attn_dtype dtype)
{
    static const uint8_t sizes[] = {
#define ATTNI_FLOAT(type, name, bytes) [type] = bytes,
#define ATTNI_OTHER(type, name, bytes) [type] = bytes,
#include "dtype.def"
    };
    return (unsigned)dtype < sizeof sizes ? sizes[dtype] : 0;
}
void attni_load_row_f32(float *dst, const void *src, attn_dtype dtype, int64_t stride, int64_t n);
void attni_load_row_f64(double *dst, const void *src, attn_dtype dtype, int64_t stride, int64_t n);
void attni_store_row_f32(void *dst, attn_dtype dtype, int64_t stride, const float *src, int64_t n);
void attni_store_row_f64(void *dst, attn_dtype dtype, int64_t stride, const double *src, int64_t n);
/* Replaces -0, to which small negative results round, by 0 in a stored row. */
void attni_clear_signs(void *row, attn_dtype dtype, int64_t stride, int64_t n);

/* --------------------------------------------------------------------------- tensor.c: views */
static inline char *attni_at(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    /* unsigned, so that overflow is defined: if a size is 0, data may be NULL and a stride any
     * number */
    const uint64_t e = (uint64_t)b * (uint64_t)t->stride[0] + (uint64_t)h * (uint64_t)t->stride[1] +
                       (uint64_t)i * (uint64_t)t->stride[2] + (uint64_t)j * (uint64_t)t->stride[3];
    return (char *)((uintptr_t)t->data + (uintptr_t)(e * attni_dtype_size(t->dtype)));
}
/* Is a size of t 0? */
static inline bool attni_empty(const attn_tensor *t)
{
    return t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0 || t->shape[3] == 0;
}
/* The largest size; a larger one is ATTN_ERR_LIMIT, even in an empty tensor. No address space holds
 * so many bytes, and sums of a few sizes and offsets fit an int64_t. */
#define ATTNI_MAX_SIZE ((int64_t)1 << 56)
/* Check one tensor: sizes are 0 .. ATTNI_MAX_SIZE, every offset is addressable, data is not NULL
 * unless a size is 0; for outputs, no two elements share memory. `name` is the argument's name in
 * messages. */
attn_status attni_check_input(const attn_tensor *t, const char *name, attn_error *err);
attn_status attni_check_output(const attn_tensor *t, const char *name, attn_error *err);

/* ------------------------------------------------------------------- cpu.c: instruction sets
 *
 * Instruction sets are indices into core/isa.def, worst first. attni_isa_from_cpuid decides from
 * the register values alone, so that tests can simulate any machine.
 */
typedef struct attni_cpuid {
    uint32_t max_leaf, vendor; /* vendor: the first four letters of its name, leaf 0 ebx */
    uint32_t leaf1_eax, leaf1_ecx, leaf1_edx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax;
    uint64_t xcr0; /* 0 if OSXSAVE is off */
} attni_cpuid;
void attni_read_cpuid(attni_cpuid *regs);          /* all zero on other architectures */
int attni_isa_from_cpuid(const attni_cpuid *regs); /* the best index */
/* Is the CPU a Zen 3 or a Zen 4? */
bool attni_family_19h_from_cpuid(const attni_cpuid *regs);
bool attni_family_19h(void);          /* for this machine; cached */
int attni_isa_best(void);             /* ATTN_ISA, else this machine's best; cached */
int attni_isa_find(const char *name); /* -1: unknown */
bool attni_isa_usable(int index);
int attni_cpu_count(void); /* CPUs that this thread may use; at least 1 */

/* ------------------------------------------------------------- context.c, pool.c: one call
 *
 * attni_call_begin locks the context and provides scratch memory: `workspace` if it is not NULL (an
 * error if it is too small), else the context's arena; for a NULL context, a new allocation.
 * attni_call_run runs body(arg, i) for i = 0 .. workers-1, on the caller's thread and others, and
 * returns when all are done; with workers <= 1 it wakes no thread. attni_call_end releases what
 * begin took.
 *
 * Between begin and end, and in every body, the floating-point mode is C's default mode, so that
 * bits depend neither on the caller's mode nor on the thread, and no exception traps. The checks
 * and the planning before begin are arithmetic too, so every public function that begins a call has
 * ATTNI_CALL_MODE on its first line. On return it restores the caller's mode and exception flags.
 */
#if defined(__x86_64__)
/* Only MXCSR, the control register of SSE and AVX. fesetenv would also load the state of the x87
 * unit, which is not used here; that takes longer than attention over six words. */
typedef unsigned attni_mode;
static inline attni_mode attni_mode_enter(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80); /* round to nearest, no traps, no flags, denormals kept */
    return before;
}
static inline void attni_mode_leave(attni_mode before) { _mm_setcsr(before); }
static inline void attni_mode_set(void) { _mm_setcsr(0x1f80); }
static inline attni_mode attni_mode_look(void)
{
    const unsigned before = _mm_getcsr();
    if ((before ^ 0x1f80) >> 6)
        attni_mode_set();
    return before;
}
#elif defined(__wasm__) /* which has only one mode */
typedef int attni_mode;
static inline attni_mode attni_mode_enter(void) { return 0; }
static inline void attni_mode_leave(attni_mode before) { (void)before; }
static inline void attni_mode_set(void) {}
static inline attni_mode attni_mode_look(void) { return 0; }
#else
typedef fenv_t attni_mode;
static inline attni_mode attni_mode_enter(void)
{
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}
static inline void attni_mode_leave(attni_mode before) { fesetenv(&before); }
static inline void attni_mode_set(void) {}
static inline attni_mode attni_mode_look(void) { return attni_mode_enter(); }
#endif

static inline void attni_mode_back(attni_mode *before) { attni_mode_leave(*before); }
/* Sets C's default mode from here to the end of the block, however control leaves it. */
#define ATTNI_DEFAULT_MODE                                                                         \
    attni_mode before_ __attribute__((cleanup(attni_mode_back), unused)) = attni_mode_enter()
/* ATTNI_DEFAULT_MODE for functions that begin a call; attni_call_begin sets the mode. Setting it
 * here would wait for all earlier arithmetic, 20 ns of a small call. The mode is set here only if
 * the caller's mode could make the checks trap or round differently. */
#define ATTNI_CALL_MODE                                                                            \
    attni_mode before_ __attribute__((cleanup(attni_mode_back), unused)) = attni_mode_look()

/* allocate and release must both be given or both be NULL; if NULL, the default ones replace
 * them. */
typedef void *(*attni_allocate)(void *user, size_t size, size_t alignment);
typedef void (*attni_release)(void *user, void *memory, size_t size);
attn_status attni_check_allocator(attni_allocate *allocate, attni_release *release,
                                  attn_error *err);

typedef struct attni_call {
    attn_context *ctx;
    char *scratch; /* aligned to ATTNI_ALIGN; at least scratch_bytes */
    void *owned;   /* scratch of a call without a context; freed at the end */
    int isa;       /* index into isa.def */
    int threads;   /* largest number of workers */
} attni_call;
int attni_context_isa_index(const attn_context *ctx);
attn_status attni_call_begin(attni_call *call, attn_context *ctx, size_t scratch_bytes,
                             void *workspace, size_t workspace_bytes, attn_error *err);
void attni_call_run(attni_call *call, int workers, void (*body)(void *arg, int worker), void *arg);
void attni_call_end(attni_call *call);
/* Memory that outlives the call, from the context's allocator (the default one for a NULL context),
 * aligned to ATTNI_ALIGN. Use inside a call: calls on a context are serialised, and so are those of
 * its allocator. */
void *attni_call_allocate(attni_call *call, size_t bytes); /* NULL: out of memory */
void attni_call_release(attni_call *call, void *memory, size_t bytes);

/* fork.c. Forks are counted after the first call of watch. It returns false if memory is short.
 * attni_process is a positive number, larger in the child of a fork() than in its parent. */
bool attni_process_watch(void);
int attni_process(void);

/* The thread pool, one per context (pool.c). `threads` includes the caller. Getting fewer threads
 * than requested is not an error; attni_pool_threads returns their number. After fork() the child
 * starts threads of its own at its next run. */
#define ATTNI_SPIN_SECONDS                                                                         \
    30e-6 /* an idle thread spins so long before it sleeps, if CPUs suffice */
typedef struct attni_pool attni_pool;
attni_pool *attni_pool_create(int threads); /* NULL: out of memory */
int attni_pool_threads(const attni_pool *pool);
void attni_pool_run(attni_pool *pool, int workers, void (*body)(void *arg, int worker), void *arg);
void attni_pool_destroy(attni_pool *pool);

/* --------------------------------------------------------------------------------- clock.c */
double attni_now(void); /* seconds of a monotonic clock */

/* ------------------------------------------------------------------------ random.c: Philox */
void attni_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
uint32_t attni_dropout_threshold(double p); /* round(p * 65536): kept if the 16-bit draw is >= it */
/* Bit u: key 8 * j8 + u is kept, for the eight keys that one call of Philox decides. */
unsigned attni_dropout_keep8(uint64_t seed, uint32_t threshold, uint64_t bh, uint64_t i,
                             uint64_t j8);
/* 1 if the weight of query i and key j in head bh is kept: the definition, one weight at a time. */
int attni_dropout_keep(uint64_t seed, uint32_t threshold, uint64_t bh, uint64_t i, uint64_t j);

#endif
