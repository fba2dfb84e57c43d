/* A property of whole calls, one function of a random case, on every instruction set. */
#ifndef PROPERTY_H
#define PROPERTY_H

#include <stdio.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/test.h"

/* Seeds 1 .. rounds, spread out. `name` is what a failure is reported under. */
static inline void run_property(void (*property)(check_case *), const char *name, uint64_t rounds)
{
    check_run_state r = {.out = stderr, .buffers = check_buffers_create()};
    assert_non_null(r.buffers);
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (uint64_t seed = 1; seed <= rounds && attn_isa(isa).usable; seed++)
            check_one(&r, name, property, isa, 64, 0, seed * 0x9E3779B97F4A7C15, NULL);
    check_contexts_destroy(&r);
    check_buffers_destroy(r.buffers);
    if (r.failed > 0)
        fail_msg("%" PRIu64 " of %" PRIu64 " cases of %s failed; the lines FAIL say which",
                 r.failed, r.failed + r.passed, name);
    assert_number(r.passed, >=, rounds);
}

/* A copy of a tensor with other strides. */
static inline attn_tensor copied(check_case *c, const attn_tensor *from)
{
    check_tensor copy = check_tensor_new(c, from->dtype, from->shape, CHECK_LOOSE);
    const int64_t *z = from->shape;
    for (int64_t b = 0; b < z[0]; b++)
        for (int64_t h = 0; h < z[1]; h++)
            for (int64_t i = 0; i < z[2]; i++)
                for (int64_t j = 0; j < z[3]; j++)
                    check_store(&copy.view, b, h, i, j, ref_get(from, b, h, i, j));
    return copy.view;
}

/* A dense tensor of normal numbers. */
static inline check_tensor normal_tensor(check_case *c, attn_dtype dtype, const int64_t shape[4])
{
    const check_tensor t = check_tensor_new(c, dtype, shape, CHECK_DENSE);
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++)
                for (int64_t d = 0; d < shape[3]; d++)
                    check_store(&t.view, b, h, i, d, check_normal(c));
    return t;
}

#endif
