/* Tensors for the tests of modules: random shapes in memory of exactly their extent, in any layout,
 * read and written element by element; and what an output must not touch. */
#ifndef NN_TENSORS_H
#define NN_TENSORS_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "support/test.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

/* xorshift64* */
static uint64_t test_state = 1;
static inline uint64_t draw(void)
{
    test_state ^= test_state >> 12;
    test_state ^= test_state << 25;
    test_state ^= test_state >> 27;
    return test_state * UINT64_C(2685821657736338717);
}
static inline int64_t pick(int64_t n) { return (int64_t)((draw() >> 33) % (uint64_t)n); }
/* A size, or now and then 1, which is repeated. */
static inline int64_t one_or(int64_t n) { return pick(3) == 0 ? 1 : n; }
static inline double uniform(void) { return (double)(draw() >> 11) * 0x1p-52 - 1; }

typedef struct test_tensor {
    attn_tensor t;
    char *memory; /* of `bytes`, not a byte more */
    size_t bytes;
} test_tensor;

typedef enum layout { DENSE, ODD } layout; /* ODD: any order, gaps and directions */

static inline char *at(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t n = b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + j * t->stride[3];
    return (char *)t->data + n * (int64_t)attn_dtype_size(t->dtype);
}

static inline double get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    float f;
    double d;
    if (t->dtype == ATTN_F64)
        return memcpy(&d, at(t, b, h, i, j), sizeof d), d;
    return memcpy(&f, at(t, b, h, i, j), sizeof f), (double)f;
}

static inline void put(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j, double d)
{
    const float f = (float)d;
    if (t->dtype == ATTN_F64)
        memcpy(at(t, b, h, i, j), &d, sizeof d);
    else
        memcpy(at(t, b, h, i, j), &f, sizeof f);
}

#define FOR_ALL(t, b, h, i, j)                                                                     \
    for (int64_t b = 0; b < (t)->shape[0]; b++)                                                    \
        for (int64_t h = 0; h < (t)->shape[1]; h++)                                                \
            for (int64_t i = 0; i < (t)->shape[2]; i++)                                            \
                for (int64_t j = 0; j < (t)->shape[3]; j++)

/* Memory is filled with 0xA5, so that what nobody writes can be told. */
static inline test_tensor make_tensor(attn_dtype dtype, layout form, int64_t n0, int64_t n1,
                                      int64_t n2, int64_t n3)
{
    test_tensor x = {.t = attn_bhtd(NULL, dtype, n0, n1, n2, n3)};
    attn_tensor *t = &x.t;
    int64_t low = 0, high = 0;
    if (n0 * n1 * n2 * n3 == 0)
        return x;
    if (form == ODD) {
        int order[] = {0, 1, 2, 3};
        int64_t stride = 1 + pick(2);
        for (int d = 3; d > 0; d--) {
            const int other = (int)pick(d + 1), swap = order[d];
            order[d] = order[other];
            order[other] = swap;
        }
        for (int d = 3; d >= 0; d--) {
            t->stride[order[d]] = pick(3) ? stride : -stride;
            stride = stride * t->shape[order[d]] + pick(3);
        }
    }
    for (int d = 0; d < 4; d++)
        *(t->stride[d] < 0 ? &low : &high) += (t->shape[d] - 1) * t->stride[d];
    x.bytes = (size_t)(high - low + 1) * attn_dtype_size(dtype);
    x.memory = malloc(x.bytes);
    assert_non_null(x.memory);
    memset(x.memory, 0xA5, x.bytes);
    t->data = x.memory - low * (int64_t)attn_dtype_size(dtype);
    return x;
}

static inline test_tensor random_tensor(attn_dtype dtype, layout form, int64_t n0, int64_t n1,
                                        int64_t n2, int64_t n3)
{
    test_tensor x = make_tensor(dtype, form, n0, n1, n2, n3);
    FOR_ALL(&x.t, b, h, i, j)
    put(&x.t, b, h, i, j, uniform());
    return x;
}

static inline void copy_into(const attn_tensor *to, const attn_tensor *from)
{
    FOR_ALL(from, b, h, i, j)
    put(to, b, h, i, j, get(from, b, h, i, j));
}

static inline test_tensor copy_of(const attn_tensor *t, layout form)
{
    const int64_t *n = t->shape;
    test_tensor copy = make_tensor(t->dtype, form, n[0], n[1], n[2], n[3]);
    copy_into(&copy.t, t);
    return copy;
}

static inline void release(test_tensor *x)
{
    free(x->memory);
    *x = (test_tensor){0};
}

/* Only elements were written: the rest still holds 0xA5. */
static inline void expect_gaps(const test_tensor *x)
{
    char *copy = malloc(x->bytes + 1);
    assert_non_null(copy);
    memcpy(copy, x->memory ? x->memory : copy, x->bytes);
    const int64_t shift = copy - x->memory;
    FOR_ALL(&x->t, b, h, i, j)
    memset(at(&x->t, b, h, i, j) + shift, 0xA5, attn_dtype_size(x->t.dtype));
    for (size_t i = 0; i < x->bytes; i++)
        if ((unsigned char)copy[i] != 0xA5)
            fail_msg("byte %zu of %zu between the elements was written", i, x->bytes);
    free(copy);
}

static inline void expect_untouched(const test_tensor *x)
{
    for (size_t i = 0; i < x->bytes; i++)
        if ((unsigned char)x->memory[i] != 0xA5)
            fail_msg("byte %zu was written", i);
}

static inline void expect_same_bits(const attn_tensor *got, const attn_tensor *want,
                                    const char *what)
{
    assert_memory_equal(got->shape, want->shape, sizeof got->shape);
    FOR_ALL(want, b, h, i, j)
    if (memcmp(at(got, b, h, i, j), at(want, b, h, i, j), attn_dtype_size(want->dtype)) != 0)
        fail_msg("%s: [%d,%d,%d,%d] is %.17g, want %.17g to the bit", what, (int)b, (int)h, (int)i,
                 (int)j, get(got, b, h, i, j), get(want, b, h, i, j));
}

static inline void expect_error(attn_status got, const attn_error *err, attn_status status,
                                const char *argument, const char *part)
{
    if (got != status || err->status != status || strcmp(err->argument, argument) != 0 ||
        !strstr(err->message, part))
        fail_msg("%s, argument '%s', \"%s\"; want %s, '%s', \"...%s...\"", attn_status_name(got),
                 err->argument, err->message, attn_status_name(status), argument, part);
    if (strncmp(err->message, argument, strlen(argument)) != 0 || strchr(err->message, '\n'))
        fail_msg("\"%s\" is not one line that starts with '%s'", err->message, argument);
}

/* A context of so many threads, of the caller's own parallel_for if `backwards`: bodies from the
 * last to the first, on one thread. */
static inline void run_backwards(void *user, int n, void (*body)(void *arg, int index), void *arg)
{
    ++*(int *)user;
    for (int i = n - 1; i >= 0; i--)
        body(arg, i);
}

static inline attn_context *make_context(int threads, const char *isa, int *backwards)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    options.threads = threads;
    options.isa = isa;
    options.parallel_for = backwards ? run_backwards : NULL;
    options.parallel_user = backwards;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    return ctx;
}

/* An allocator that fails from its n-th call on. */
typedef struct failing_memory {
    int left, live;
} failing_memory;

static inline void *failing_allocate(void *user, size_t size, size_t alignment)
{
    failing_memory *m = user;
    void *memory = NULL;
    if (m->left-- > 0 && posix_memalign(&memory, alignment, size ? size : 1) == 0)
        m->live++;
    return memory;
}

static inline void failing_release(void *user, void *memory, size_t size)
{
    (void)size;
    ((failing_memory *)user)->live--;
    free(memory);
}

static inline attn_context *make_failing_context(failing_memory *memory)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    options.threads = 2;
    options.allocate = failing_allocate;
    options.release = failing_release;
    options.memory_user = memory;
    *memory = (failing_memory){.left = 1}; /* the context itself */
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    return ctx;
}

#endif
