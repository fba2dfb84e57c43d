/* labels: threads
 *
 * The bitwise contract: on one instruction set a row's bits depend on its own data alone. Random
 * calls are made again with other threads, in another batch, alone, elsewhere in memory, with and
 * without more outputs, packed with others; and every bit must be the same. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "attn.h"
#include "check/check_call.h"
#include "property.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 6
#else
#define ROUNDS 40
#endif
#define WORK 4e5

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
static const int thread_counts[] = {1, 2, 3, 7};
static attn_context *contexts[CHECK_MAX_ISAS][4];

/* Memory of NaN: what a call reads of its scratch before it writes it shows, as all contexts but
 * those of one thread have such memory. */
static void *soiled(void *user, size_t size, size_t alignment)
{
    (void)user;
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    return memory ? memset(memory, 0xFF, size) : NULL;
}

static void clean(void *user, void *memory, size_t size)
{
    (void)user, (void)size;
    free(memory);
}

static int create_contexts(void **state)
{
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int t = 0; t < 4 && attn_isa(isa).usable; t++) {
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            options.isa = attn_isa(isa).name;
            options.threads = thread_counts[t];
            if (options.threads > 1)
                options.allocate = soiled, options.release = clean;
            if (attn_context_create(&options, &contexts[isa][t], NULL) != ATTN_OK)
                return -1;
        }
    return 0;
}

static int destroy_contexts(void **state)
{
    (void)state;
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int t = 0; t < 4; t++)
            attn_context_destroy(contexts[isa][t]);
    return 0;
}

/* The results of a call, element by element. */
typedef struct results {
    double *out, *lse;
    int64_t outs, rows;
    int64_t H, T, Dv;
} results;

static int64_t rows_of(const attn_sdpa_args *a)
{
    return a->q.shape[0] * a->q.shape[1] * a->q.shape[2];
}

/* Runs `args` with new dense outputs at a random address in place of its own. */
static results run(check_case *c, const attn_sdpa_args *args, int threads)
{
    attn_sdpa_args a = *args;
    const int64_t shape[4] = {a.q.shape[0], a.q.shape[1], a.q.shape[2], 1};
    check_tensor out = check_tensor_new(c, a.out.dtype, a.out.shape, CHECK_DENSE);
    check_tensor lse = check_tensor_new(c, ATTN_F64, shape, CHECK_DENSE);
    a.out = out.view;
    a.lse = &lse.view;
    attn_error err = {0};
    int t = threads == 1 ? 0 : threads == 2 ? 1 : threads == 3 ? 2 : 3;
    if (attn_sdpa_forward(contexts[c->isa][t], &a, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    return (results){check_tensor_copy(c, &out.view),
                     check_tensor_copy(c, &lse.view),
                     check_count(&out.view),
                     rows_of(&a),
                     a.q.shape[1],
                     a.q.shape[2],
                     a.out.shape[3]};
}

static void expect_equal(check_case *c, const char *what, results got, results want)
{
    check_difference d;
    if (got.outs != want.outs || got.rows != want.rows)
        check_fail(c, "%s: compared with another shape", what);
    else if (!check_same(got.out, want.out, want.outs, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: out %" PRId64 " is %.17g, was %.17g", what, d.at, d.got, d.want);
    else if (!check_same(got.lse, want.lse, want.rows, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: lse %" PRId64 " is %.17g, was %.17g", what, d.at, d.got, d.want);
}

/* Rows i0 .. i0+n-1 of batch b0 .. b0+B-1 of a result, as a result of its own. */
static results part(check_case *c, results all, int64_t b0, int64_t B, int64_t i0, int64_t n)
{
    results r = {check_array(c, B * all.H * n * all.Dv),
                 check_array(c, B * all.H * n),
                 B * all.H * n * all.Dv,
                 B * all.H * n,
                 all.H,
                 n,
                 all.Dv};
    int64_t row = 0;
    for (int64_t bh = b0 * all.H; bh < (b0 + B) * all.H; bh++)
        for (int64_t i = i0; i < i0 + n; i++, row++) {
            r.lse[row] = all.lse[bh * all.T + i];
            memcpy(r.out + row * all.Dv, all.out + (bh * all.T + i) * all.Dv,
                   (size_t)all.Dv * sizeof *r.out);
        }
    return r;
}

/* A view of indices first .. first+n-1 of one dimension. A size of 1 in a mask stays. */
static attn_tensor slice(attn_tensor t, int dimension, int64_t first, int64_t n, bool broadcasts)
{
    if (broadcasts && t.shape[dimension] == 1)
        return t;
    if (t.data)
        t.data = (char *)t.data + first * t.stride[dimension] * (int64_t)attn_dtype_size(t.dtype);
    t.shape[dimension] = n;
    return t;
}

/* A random call with at least one row. NaN are welcome here too. */
static attn_sdpa_args *random_call(check_case *c, check_call *call)
{
    do {
        check_call_random(c, call, WORK);
    } while (rows_of(&call->args) == 0);
    call->args.lse = call->args.scores = NULL;
    return &call->args;
}

/* ----------------------------------------------------------------------------------- properties */

static void same_for_any_thread_count(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    results want = run(c, a, 1);
    for (int t = 1; t < 4; t++)
        expect_equal(c, "threads", run(c, a, thread_counts[t]), want);
    expect_equal(c, "again", run(c, a, 1), want);
}

/* How large a batch must be for its q, k, v and out to have so many bytes. */
#define MOST_TIMES 4000
static int64_t times_to_exceed(int64_t bytes, const attn_sdpa_args *one)
{
    const int64_t once = (check_count(&one->q) + check_count(&one->k) + check_count(&one->v) +
                          check_count(&one->out)) *
                         (int64_t)attn_dtype_size(one->q.dtype);
    return bytes / (once + 1) < MOST_TIMES ? bytes / (once + 1) + 1 : MOST_TIMES;
}

static void same_alone_and_in_a_batch(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    a->dropout = 0; /* counts from the tensor's start */
    results all = run(c, a, 3);
    int64_t B = a->q.shape[0], b = check_between(c, 0, B - 1);
    attn_sdpa_args one = *a;
    attn_tensor mask;
    one.q = slice(a->q, 0, b, 1, false), one.k = slice(a->k, 0, b, 1, false);
    one.v = slice(a->v, 0, b, 1, false), one.out.shape[0] = 1;
    if (a->mask) {
        mask = slice(*a->mask, 0, b, 1, true);
        one.mask = &mask;
    }
    int64_t length = a->key_lengths ? a->key_lengths[b] : 0, lengths[MOST_TIMES];
    if (a->key_lengths)
        one.key_lengths = a->key_lengths + b;
    results want = part(c, all, b, 1, 0, a->q.shape[2]);
    expect_equal(c, "alone", run(c, &one, 1), want);

    /* Some times itself, or so often that more is read than caches hold: at every position of a
     * batch. */
    const int64_t times = check_chance(c, 70) ? 5 : times_to_exceed(2 << 20, &one);
    attn_sdpa_args more = one;
    more.q.shape[0] = more.k.shape[0] = more.v.shape[0] = more.out.shape[0] = times;
    more.q.stride[0] = more.k.stride[0] = more.v.stride[0] = 0;
    for (int64_t i = 0; i < times; i++)
        lengths[i] = length;
    if (a->key_lengths)
        more.key_lengths = lengths;
    results many = run(c, &more, 7);
    for (int64_t i = 0; i<times; i += times> 5 ? check_between(c, 1, times / 3) : 1)
        expect_equal(c, "position", part(c, many, i, 1, 0, a->q.shape[2]), want);
}

/* Some queries alone: the causal diagonal has to be told where they stand. */
static void same_alone_and_among_queries(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    a->dropout = 0;
    if (a->cu_seqlens_q) {
        a->cu_seqlens_q = a->cu_seqlens_k = NULL;
        a->sequences = 0;
    }
    a->key_lengths = NULL;
    if (a->causal == ATTN_CAUSAL_NONE) {
        a->window_left = a->window_right = -1; /* would need an offset, and that is causal */
        a->alibi_slopes = NULL;
    }
    results all = run(c, a, 1);
    int64_t T = a->q.shape[2], S = a->k.shape[2];
    for (int n = 0; n < 4; n++) {
        int64_t i = check_between(c, 0, T - 1);
        int64_t rows = n < 2 ? 1 : check_between(c, 1, T - i);
        attn_sdpa_args few = *a;
        attn_tensor mask;
        few.q = slice(a->q, 2, i, rows, false);
        few.out.shape[2] = rows;
        if (a->mask) {
            mask = slice(*a->mask, 2, i, rows, true);
            few.mask = &mask;
        }
        if (a->causal != ATTN_CAUSAL_NONE) {
            few.causal = ATTN_CAUSAL_OFFSET;
            few.causal_offset = i + (a->causal == ATTN_CAUSAL_OFFSET         ? a->causal_offset
                                     : a->causal == ATTN_CAUSAL_BOTTOM_RIGHT ? S - T
                                                                             : 0);
        }
        char what[64];
        snprintf(what, sizeof what, "queries %" PRId64 "..%" PRId64 " alone", i, i + rows - 1);
        expect_equal(c, what, run(c, &few, 1), part(c, all, 0, a->q.shape[0], i, rows));
    }
}

/* Copies of the inputs, dense, at every misalignment. */
static void same_at_any_address(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call), moved = *a;
    results want = run(c, a, 1);
    const attn_tensor *from[] = {&a->q, &a->k, &a->v};
    attn_tensor *to[] = {&moved.q, &moved.k, &moved.v};
    for (int n = 0; n < 3; n++) {
        for (int t = 0; t < 3; t++) {
            const int64_t *z = from[t]->shape;
            check_tensor copy = check_tensor_new(c, from[t]->dtype, z, CHECK_DENSE);
            *to[t] = copy.view;
            for (int64_t b = 0; b < z[0]; b++)
                for (int64_t h = 0; h < z[1]; h++)
                    for (int64_t i = 0; i < z[2]; i++)
                        for (int64_t j = 0; j < z[3]; j++)
                            check_store(to[t], b, h, i, j, ref_get(from[t], b, h, i, j));
        }
        expect_equal(c, "moved", run(c, &moved, 1), want);
    }
}

static void same_with_more_outputs(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call), more = *a;
    results want = run(c, a, 1);
    const int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    for (int stage = ATTN_STAGE_RAW; stage <= ATTN_STAGE_WEIGHTS; stage++) {
        check_tensor scores = check_tensor_new(c, ATTN_F32, shape, CHECK_DENSE);
        more.scores = &scores.view;
        more.scores_stage = (attn_stage)stage;
        expect_equal(c, "with scores", run(c, &more, 2), want);
    }
    /* run() always asks for lse; this one does not. */
    attn_sdpa_args less = *a;
    check_tensor out = check_tensor_new(c, a->out.dtype, a->out.shape, CHECK_DENSE);
    less.out = out.view;
    less.lse = NULL;
    attn_sdpa_forward(contexts[c->isa][0], &less, NULL);
    results bare = want;
    bare.out = check_tensor_copy(c, &out.view);
    expect_equal(c, "without lse", bare, want);
}

static void same_packed_and_alone(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    a->dropout = 0; /* counts from the tensor's start */
    a->key_lengths = NULL;
    int64_t T = a->q.shape[2], S = a->k.shape[2];
    const int64_t q_ends[] = {0, T / 5, T / 5, T / 2, T}, k_ends[] = {0, S / 7, S / 3, S / 3, S};
    a->cu_seqlens_q = q_ends;
    a->cu_seqlens_k = k_ends;
    a->sequences = 4;
    results all = run(c, a, 3);
    for (int n = 0; n < 4; n++) {
        attn_sdpa_args one = *a;
        attn_tensor mask;
        int64_t q0 = q_ends[n], q1 = q_ends[n + 1], k0 = k_ends[n], k1 = k_ends[n + 1];
        one.cu_seqlens_q = one.cu_seqlens_k = NULL;
        one.sequences = 0;
        one.q = slice(a->q, 2, q0, q1 - q0, false);
        one.k = slice(a->k, 2, k0, k1 - k0, false), one.v = slice(a->v, 2, k0, k1 - k0, false);
        one.out.shape[2] = q1 - q0;
        if (a->mask) {
            mask = slice(slice(*a->mask, 2, q0, q1 - q0, true), 3, k0, k1 - k0, true);
            one.mask = &mask;
        }
        expect_equal(c, "sequence alone", run(c, &one, 1),
                     part(c, all, 0, a->q.shape[0], q0, q1 - q0));
    }
}

/* ------------------------------------------------------------------------------------ the tests */

/* FNV-1a over the bits of every result of a property's calls, by instruction set: printed, so that
 * two runs, machines or builds can be compared by eye. */
static uint64_t hashes[CHECK_MAX_ISAS];

static void hash_results(check_case *c)
{
    check_call call;
    results r = run(c, random_call(c, &call), 1);
    for (int64_t i = 0; i < r.outs + r.rows; i++) {
        double x = i < r.outs ? r.out[i] : r.lse[i - r.outs];
        uint64_t bits = 0x7FF8000000000000; /* one NaN for all */
        if (!isnan(x))
            memcpy(&bits, &x, sizeof bits);
        for (int byte = 0; byte < 8; byte++)
            hashes[c->isa] = (hashes[c->isa] ^ (bits >> 8 * byte & 255)) * 0x100000001B3;
    }
}

static void hash_all(void)
{
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        hashes[isa] = 0xCBF29CE484222325;
    run_property(hash_results, "hash", ROUNDS);
}

static void test_threads(void **state)
{
    (void)state;
    run_property(same_for_any_thread_count, "threads", ROUNDS);
}

static void test_batch(void **state)
{
    (void)state;
    run_property(same_alone_and_in_a_batch, "batch", ROUNDS);
}

static void test_queries(void **state)
{
    (void)state;
    run_property(same_alone_and_among_queries, "queries", ROUNDS);
}

static void test_addresses(void **state)
{
    (void)state;
    run_property(same_at_any_address, "addresses", ROUNDS);
}

static void test_outputs(void **state)
{
    (void)state;
    run_property(same_with_more_outputs, "outputs", ROUNDS);
}

static void test_packed(void **state)
{
    (void)state;
    run_property(same_packed_and_alone, "packed", ROUNDS);
}

static void test_hash(void **state)
{
    (void)state;
    uint64_t first[CHECK_MAX_ISAS];
    hash_all();
    memcpy(first, hashes, sizeof first);
    for (int isa = 0; attn_isa(isa).name; isa++)
        if (attn_isa(isa).usable)
            print_message("%-8s %016" PRIx64 "\n", attn_isa(isa).name, hashes[isa]);
    hash_all();
    assert_memory_equal(hashes, first, sizeof first);
}

/* One query of 300, by every type and instruction set, with all options that can be told to it. */
static void one_of_three_hundred(check_case *c)
{
    check_describe(c, "H=2 T=300 S=300 D=40");
    for (int t = 0; t < 4; t++) {
        const int64_t shape[4] = {1, 2, 300, 40};
        check_tensor x[3];
        for (int n = 0; n < 3; n++) {
            x[n] = check_tensor_new(c, dtypes[t], shape, CHECK_DENSE);
            for (int64_t h = 0; h < 2; h++)
                for (int64_t i = 0; i < 300; i++)
                    for (int64_t d = 0; d < 40; d++)
                        check_store(&x[n].view, 0, h, i, d, check_normal(c));
        }
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        const float slopes[2] = {0.5f, 0.25f}, sinks[2] = {0.3f, -2};
        a.q = x[0].view, a.k = x[1].view, a.v = x[2].view, a.out = x[0].view;
        a.causal = ATTN_CAUSAL_TOP_LEFT;
        a.window_left = 200;
        a.alibi_slopes = slopes, a.sink_logits = sinks;
        a.softcap = 20;
        results all = run(c, &a, 7);
        for (int64_t i = 0; i < 300; i += 23) {
            attn_sdpa_args one = a;
            one.q = slice(a.q, 2, i, 1, false);
            one.out.shape[2] = 1;
            one.causal = ATTN_CAUSAL_OFFSET;
            one.causal_offset = i;
            expect_equal(c, "one of 300", run(c, &one, 1), part(c, all, 0, 1, i, 1));
        }
    }
}

static void test_prefill_and_decode(void **state)
{
    (void)state;
    run_property(one_of_three_hundred, "decode", 1);
}

/* Keys of every number up to two blocks and a bit: those that fill up a block are not seen, and
 * neither is what the scratch holds in their place. */
static void every_length(check_case *c)
{
    enum { T = 33, D = 16, MOST = 130 };
    for (int t = 0; t < 4; t++)
        for (int64_t S = 1; S <= MOST; S++) {
            const int64_t queries[4] = {1, 1, T, D}, keys[4] = {1, 1, S, D};
            check_tensor x[3];
            for (int n = 0; n < 3; n++) {
                x[n] = check_tensor_new(c, dtypes[t], n ? keys : queries, CHECK_DENSE);
                for (int64_t i = 0; i < (n ? S : T); i++)
                    for (int64_t d = 0; d < D; d++)
                        check_store(&x[n].view, 0, 0, i, d, check_normal(c));
            }
            attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
            a.q = x[0].view, a.k = x[1].view, a.v = x[2].view, a.out = x[0].view;
            a.dropout = S % 2 ? 0 : 0.3;
            check_describe(c, "%s, %d keys", attn_dtype_name(dtypes[t]), (int)S);
            expect_equal(c, "in soiled memory", run(c, &a, 2), run(c, &a, 1));
            check_buffers_reset(c->run->buffers);
        }
}

static void test_every_length(void **state)
{
    (void)state;
    run_property(every_length, "lengths", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_batch),
        cmocka_unit_test(test_queries),      cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_outputs),      cmocka_unit_test(test_packed),
        cmocka_unit_test(test_hash),         cmocka_unit_test(test_prefill_and_decode),
        cmocka_unit_test(test_every_length),
    };
    return cmocka_run_group_tests(tests, create_contexts, destroy_contexts);
}
