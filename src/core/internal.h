/* What the engine's own files share. Nothing here is public; externs begin with attni_. */
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

/* Sums are made of floats and doubles, each rounded to its own type, and NaN and infinity are
 * values like others. With a compiler that is told otherwise results would be wrong, silently. */
#if !defined(FLT_EVAL_METHOD) || FLT_EVAL_METHOD != 0
#error "libattn needs arithmetic that rounds to float and to double (FLT_EVAL_METHOD 0): \
on 32-bit x86 add -msse2 -mfpmath=sse; elsewhere add -fexcess-precision=fast or -std=gnu11"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "libattn needs NaN, infinity and the order of sums as it is written: \
leave out -ffast-math, -Ofast and -ffinite-math-only"
#endif

/* Nor may a compiler fuse a product and a sum that are written apart, where the machine has an
 * instruction for both: a bare `cc` does, and its bits would not be those of cmake/AttnCompile. */
#ifdef __FP_FAST_FMA
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif
#endif

/* Which byte of a word has the lowest address: of bytes read as a word, and of a word's halves that
 * are read as two. Nothing else depends on it. */
#define ATTNI_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)

#define ATTNI_ALIGN 64 /* bytes; every scratch array starts on such a line */

/* ----------------------------------------------------------------------------- sizes; alloc.c
 *
 * Nearly every heap overflow in the readers and kernels of others began as a count times a size, or
 * a sum, or a rounding up, that wrapped. So every one goes through these. They return false, and
 * leave *out alone, where the true result does not fit. They take 64 bits, as tensors' sizes have
 * them: cast to a size_t of 32 bits, a number would be cut before anything looked at it.
 * attni_layout hands out aligned pieces of one block: with base NULL it only adds up, so that
 * sizing and carving are the same code run twice.
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

/* a / b of numbers >= 0. Sizes are small as a rule, and a short division takes a quarter of a long
 * one's time. */
static inline int64_t attni_div(int64_t a, int64_t b)
{
    return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}
static inline int64_t attni_div_up(int64_t a, int64_t b)
{
    const int64_t n = attni_div(a, b);
    return n + (n * b != a);
}

typedef struct attni_layout {
    char *base; /* aligned to ATTNI_ALIGN, or NULL while sizing */
    size_t used;
    bool overflow; /* a piece did not fit a size_t: `used` means nothing */
} attni_layout;
/* Each piece is rounded up to whole lines, so that `used` is always where the next one starts, and
 * two workers never write to one line. */
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

/* aligned_alloc(), on Windows too: size is a multiple of alignment; NULL may be freed. */
void *attni_aligned_new(size_t alignment, size_t size);
void attni_aligned_free(void *memory);

/* The allocate and release of options that have none. */
void *attni_default_allocate(void *user, size_t size, size_t alignment);
void attni_default_release(void *user, void *memory, size_t size);

/* memset(to, 0, n) and memcpy, by the C library: GCC makes string instructions of sizes that it
 * knows, and three of them take as long to begin as attention over six words does to compute. */
void attni_zero(void *to, size_t n);
void attni_copy(void *to, const void *from, size_t n);

#ifdef __MINGW32__ /* %zu and %lld, by its own printf and not by msvcrt's */
#define ATTNI_PRINTF gnu_printf
#else
#define ATTNI_PRINTF printf
#endif

/* ------------------------------------------------------------------------- error.c: messages
 *
 * attni_fail fills err (which may be NULL) and returns status, so that `return attni_fail(...)`
 * reads as one step. The message starts with what was wrong and ends with what would be right.
 */
attn_status attni_fail(attn_error *err, attn_status status, const char *argument,
                       const char *format, ...) __attribute__((format(ATTNI_PRINTF, 4, 5)));

/* --------------------------------------------------------------- struct_size.c: callers' structs
 *
 * A caller's struct that begins with its size may be of an older header, hence shorter, or of a
 * newer one, hence longer. `argument` is its name in the call; NULL structs are refused.
 */
typedef enum attni_struct {
    ATTNI_CONTEXT_OPTIONS,
    ATTNI_SDPA_ARGS,
    ATTNI_PLAN_INFO,
    ATTNI_SDPA_GRADS,
    ATTNI_SDPA_TANGENTS,
    ATTNI_CACHE_OPTIONS,
    ATTNI_MHA_ARGS,
    ATTNI_MHA_GRADS,
    ATTNI_ADAMW_OPTIONS
} attni_struct;
/* The defaults, of a struct of `size` bytes; what this library does not know of it becomes 0. */
void attni_struct_init(attni_struct which, void *to, size_t size);
/* The whole struct, as this library has it: members that `from` lacks have their defaults; bytes
 * that this library does not know must be 0. */
attn_status attni_struct_read(attni_struct which, void *to, const void *from, const char *argument,
                              attn_error *err);
/* Fills as much as the caller's `to` has of `from`; of a longer one, the rest becomes 0. */
attn_status attni_struct_write(attni_struct which, void *to, const void *from, const char *argument,
                               attn_error *err);

/* ---------------------------------------------------------------------------- dtype.c: rows
 *
 * Rows of any storage type to and from the compute types. Strides in elements. Loads of f32 into
 * f32 and all widening are exact; stores round to nearest even. Neither pointer need be aligned.
 */
bool attni_dtype_is_float(attn_dtype dtype);
/* attn_dtype_size, without a call. */
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
/* Results, as they are stored in a float type narrower than f64: -0, to which small negative ones
 * are rounded, becomes 0. */
void attni_clear_signs(void *row, attn_dtype dtype, int64_t stride, int64_t n);

/* --------------------------------------------------------------------------- tensor.c: views */
static inline char *attni_at(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    /* in integers that may wrap: where a size is 0, data may be NULL and a stride anything */
    const uint64_t e = (uint64_t)b * (uint64_t)t->stride[0] + (uint64_t)h * (uint64_t)t->stride[1] +
                       (uint64_t)i * (uint64_t)t->stride[2] + (uint64_t)j * (uint64_t)t->stride[3];
    return (char *)((uintptr_t)t->data + (uintptr_t)(e * attni_dtype_size(t->dtype)));
}
/* Has t no element? */
static inline bool attni_empty(const attn_tensor *t)
{
    return t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0 || t->shape[3] == 0;
}
/* A size beyond this is ATTN_ERR_LIMIT, in an empty tensor too: no address space holds so many
 * bytes, and sums of a few sizes and offsets fit an int64_t. */
#define ATTNI_MAX_SIZE ((int64_t)1 << 56)
/* Checks of one tensor: sizes 0 .. ATTNI_MAX_SIZE, every offset addressable, data not NULL unless a
 * size is 0; for outputs, that no two elements share memory. `name` is the argument's name in
 * messages. */
attn_status attni_check_input(const attn_tensor *t, const char *name, attn_error *err);
attn_status attni_check_output(const attn_tensor *t, const char *name, attn_error *err);

/* ------------------------------------------------------------------- cpu.c: instruction sets
 *
 * Indices into kernel/isa.def, worst first. attni_isa_from_cpuid decides from the raw registers
 * alone, so that a test can play any machine.
 */
typedef struct attni_cpuid {
    uint32_t max_leaf, vendor; /* the first four letters of its name: leaf 0 ebx */
    uint32_t leaf1_ecx, leaf1_edx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax;
    uint64_t xcr0; /* 0 where OSXSAVE is off */
} attni_cpuid;
void attni_read_cpuid(attni_cpuid *regs);          /* all zero on other architectures */
int attni_isa_from_cpuid(const attni_cpuid *regs); /* the best index */
int attni_isa_best(void);                          /* of this machine; ATTN_ISA obeyed; cached */
int attni_isa_find(const char *name);              /* -1: unknown */
bool attni_isa_usable(int index);
int attni_cpu_count(void); /* that this thread may run on; at least 1 */

/* ------------------------------------------------------------- context.c, pool.c: one call
 *
 * attni_call_begin takes the context's lock and finds scratch: `workspace` if it is not NULL (an
 * error if it is too small), else the context's arena, else malloc for a NULL context.
 * attni_call_run runs body(arg, 0..workers-1), the caller being one of the workers, and returns
 * when all are done. attni_call_end gives back what begin took. With workers <= 1 no thread is
 * woken.
 *
 * In between, and in every body, the floating-point mode is C's default one, so that bits depend
 * neither on the caller's mode nor on the thread, and no exception traps. Every public function
 * that begins a call has ATTNI_CALL_MODE in its first line, because what it checks and plans is
 * arithmetic too; it brings the caller's mode back at the end, flags included.
 */
#if defined(__x86_64__)
/* MXCSR, all that SSE and AVX look at. fesetenv would also load the x87 unit, which nothing here
 * uses, and that takes longer than attention over six words. */
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
#elif defined(__wasm__) /* which has one mode alone */
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
/* C's default mode from here to the end of the block, however that is left. */
#define ATTNI_DEFAULT_MODE                                                                         \
    attni_mode before_ __attribute__((cleanup(attni_mode_back), unused)) = attni_mode_enter()
/* The same, of a function that begins a call, which then sets the mode: to set it here would wait
 * for all arithmetic before, 20 ns of a small call. Only a mode in which the checks could trap, or
 * round otherwise, is left at once. */
#define ATTNI_CALL_MODE                                                                            \
    attni_mode before_ __attribute__((cleanup(attni_mode_back), unused)) = attni_mode_look()

/* An allocator is given whole or not at all; the latter becomes attni_default_allocate. */
typedef void *(*attni_allocate)(void *user, size_t size, size_t alignment);
typedef void (*attni_release)(void *user, void *memory, size_t size);
attn_status attni_check_allocator(attni_allocate *allocate, attni_release *release,
                                  attn_error *err);

typedef struct attni_call {
    attn_context *ctx;
    char *scratch; /* aligned to ATTNI_ALIGN, at least the size asked for */
    void *owned;   /* freed at the end: a NULL context's scratch */
    int isa;       /* index into isa.def */
    int threads;   /* workers at most */
} attni_call;
int attni_context_isa_index(const attn_context *ctx);
attn_status attni_call_begin(attni_call *call, attn_context *ctx, size_t scratch_bytes,
                             void *workspace, size_t workspace_bytes, attn_error *err);
void attni_call_run(attni_call *call, int workers, void (*body)(void *arg, int worker), void *arg);
void attni_call_end(attni_call *call);
/* Memory that outlives the call, from the context's allocator (malloc for NULL), aligned to
 * ATTNI_ALIGN; inside a call, because calls of an allocator are serialised as calls on a context
 * are. */
void *attni_call_allocate(attni_call *call, size_t bytes); /* NULL: none */
void attni_call_release(attni_call *call, void *memory, size_t bytes);

/* The thread pool, one per context (pool.c). threads counts the caller. Fewer threads than asked
 * for is not an error; attni_pool_threads says how many there are. Survives fork: the child starts
 * its own at the next run. */
#define ATTNI_SPIN_SECONDS 30e-6 /* that a thread without work waits awake, where CPUs suffice */
typedef struct attni_pool attni_pool;
attni_pool *attni_pool_create(int threads); /* NULL: out of memory */
int attni_pool_threads(const attni_pool *pool);
void attni_pool_run(attni_pool *pool, int workers, void (*body)(void *arg, int worker), void *arg);
void attni_pool_destroy(attni_pool *pool);

/* Stands wherever the work of one thread becomes another's. It does nothing; tests/delays.c, in a
 * build of the library for tests, waits there for random times, so that rare orders of steps become
 * common. */
#ifdef ATTNI_DELAYS
void attni_hand_over(void);
#else
static inline void attni_hand_over(void) {}
#endif

/* ------------------------------------------------------------------------------- measure.c */
double attni_now(void); /* seconds of a clock that never goes back */

/* ------------------------------------------------------------------------ random.c: Philox */
void attni_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
uint32_t attni_dropout_threshold(double p); /* round(p * 65536): kept if the 16-bit draw is >= it */
/* Bit u: whether key 8 * j8 + u is kept, for the eight that one call of Philox decides */
unsigned attni_dropout_keep8(uint64_t seed, uint32_t threshold, uint64_t bh, uint64_t i,
                             uint64_t j8);
/* 1 if element (row bh, query i, key j) is kept: the definition, one element at a time */
int attni_dropout_keep(uint64_t seed, uint32_t threshold, uint64_t bh, uint64_t i, uint64_t j);

#endif
