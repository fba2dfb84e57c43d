/* The bits of a row depend only on its own data, on one instruction set.
 *
 * labels: threads
 *
 * Random calls are repeated with other threads, in another batch, alone, elsewhere in memory, with
 * more or fewer outputs, and packed with others. Every bit must be the same. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "contract.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(EMULATED)
#define ROUNDS 6
#else
#define ROUNDS 40
#endif

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};

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
    results want = part(c, all, (piece){.b = b, .B = 1, .T = a->q.shape[2]});
    expect_equal(c, "alone", run(c, &one, 1), want);

    /* Some times itself, or so often that more is read than caches hold: at every position of a
     * batch. */
    const int64_t times = with_scores || check_chance(c, 70) ? 5 : times_to_exceed(2 << 20, &one);
    attn_sdpa_args more = one;
    more.q.shape[0] = more.k.shape[0] = more.v.shape[0] = more.out.shape[0] = times;
    more.q.stride[0] = more.k.stride[0] = more.v.stride[0] = 0;
    for (int64_t i = 0; i < times; i++)
        lengths[i] = length;
    if (a->key_lengths)
        more.key_lengths = lengths;
    results many = run(c, &more, 7);
    for (int64_t i = 0; i<times; i += times> 5 ? check_between(c, 1, times / 3) : 1)
        expect_equal(c, "position", part(c, many, (piece){.b = i, .B = 1, .T = a->q.shape[2]}),
                     want);
}

static bool at_bottom_right(const attn_sdpa_args *a)
{
    return a->causal == ATTN_CAUSAL_BOTTOM_RIGHT || a->diagonal == ATTN_DIAGONAL_BOTTOM_RIGHT;
}

/* Which queries can be alone and still be told where they stand: any, by an offset; with lengths
 * and a diagonal at the bottom right the last ones. */
static void choose_queries(check_case *c, const attn_sdpa_args *a, bool one, int64_t *i, int64_t *n)
{
    const int64_t T = a->q.shape[2];
    *i = check_between(c, 0, T - 1);
    *n = one ? 1 : check_between(c, 1, T - *i);
    if (at_bottom_right(a) && a->key_lengths)
        *n = T - *i;
}

static int64_t given_offset(const attn_sdpa_args *a)
{
    return a->causal == ATTN_CAUSAL_OFFSET || a->diagonal == ATTN_DIAGONAL_OFFSET ? a->causal_offset
                                                                                  : 0;
}

/* Some queries alone: the causal diagonal has to be told where they stand. */
static void same_alone_and_among_queries(check_case *c)
{
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    a->dropout = 0;
    a->cu_seqlens_q = a->cu_seqlens_k = NULL;
    a->sequences = 0;
    results all = run(c, a, 1);
    int64_t T = a->q.shape[2], S = a->k.shape[2];
    for (int n = 0; n < 4; n++) {
        int64_t i, rows;
        choose_queries(c, a, n < 2, &i, &rows);
        attn_sdpa_args few = *a;
        attn_tensor mask;
        few.q = slice(a->q, 2, i, rows, false);
        few.out.shape[2] = rows;
        if (a->mask) {
            mask = slice(*a->mask, 2, i, rows, true);
            few.mask = &mask;
        }
        if (!at_bottom_right(a) || !a->key_lengths) {
            few.causal = a->causal ? ATTN_CAUSAL_OFFSET : ATTN_CAUSAL_NONE;
            few.diagonal = a->causal ? ATTN_DIAGONAL_TOP_LEFT : ATTN_DIAGONAL_OFFSET;
            few.causal_offset = i + (at_bottom_right(a) ? S - T : given_offset(a));
        }
        char what[64];
        snprintf(what, sizeof what, "queries %" PRId64 "..%" PRId64 " alone", i, i + rows - 1);
        expect_equal(c, what, run(c, &few, 1),
                     part(c, all, (piece){.B = a->q.shape[0], .i = i, .T = rows}));
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
                     part(c, all,
                          (piece){.B = a->q.shape[0],
                                  .i = q0,
                                  .T = q1 - q0,
                                  .keys = true,
                                  .j = k0,
                                  .S = k1 - k0}));
    }
}

/* Does the rule of `a`, causal, window or lengths, show key j to query i? */
static bool shows(const attn_sdpa_args *a, int64_t b, int64_t i, int64_t j)
{
    const int64_t off = given_offset(a);
    return (a->causal == ATTN_CAUSAL_NONE || j <= i + off) &&
           (a->window_left < 0 || j >= i + off - a->window_left) &&
           (a->window_right < 0 || j <= i + off + a->window_right) &&
           (!a->key_lengths || j < a->key_lengths[b]);
}

/* A rule, and the mask that writes it out: bool, or 0 and -inf beside a scale that is a power of
 * two. */
static void same_as_a_dense_mask(check_case *c)
{
    static const attn_dtype types[] = {ATTN_BOOL, ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    check_call call;
    attn_sdpa_args *a = random_call(c, &call);
    a->mask = NULL, a->alibi_slopes = NULL; /* which counts from the causal diagonal */
    a->cu_seqlens_q = a->cu_seqlens_k = NULL, a->sequences = 0;
    if (a->causal == ATTN_CAUSAL_BOTTOM_RIGHT)
        a->causal = ATTN_CAUSAL_TOP_LEFT;
    if (a->causal || a->diagonal == ATTN_DIAGONAL_BOTTOM_RIGHT)
        a->diagonal = ATTN_DIAGONAL_TOP_LEFT;
    const attn_dtype type = CHECK_PICK(c, types);
    if (type != ATTN_BOOL)
        a->scale = 0.125;
    const results want = run(c, a, 1);
    const int64_t shape[4] = {a->q.shape[0], 1, a->q.shape[2], a->k.shape[2]};
    check_tensor mask = check_tensor_new(c, type, shape, CHECK_LOOSE);
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t i = 0; i < shape[2]; i++)
            for (int64_t j = 0; j < shape[3]; j++)
                check_store(&mask.view, b, 0, i, j,
                            type == ATTN_BOOL   ? shows(a, b, i, j)
                            : shows(a, b, i, j) ? 0.0
                                                : -INFINITY);
    attn_sdpa_args masked = *a;
    masked.causal = ATTN_CAUSAL_NONE, masked.window_left = masked.window_right = -1;
    masked.key_lengths = NULL;
    masked.mask = &mask.view;
    for (int t = 0; t < 4; t += 2)
        expect_equal(c, attn_dtype_name(type), run(c, &masked, thread_counts[t]), want);
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
    assert_same_array(hashes, first, sizeof first);
}

/* One query of 300, by every type and instruction set, with all options that can be told to it. */
static void one_of_three_hundred(check_case *c)
{
    check_describe(c, "H=2 T=300 S=300 D=40");
    for (int t = 0; t < 4; t++) {
        const int64_t shape[4] = {1, 2, 300, 40};
        check_tensor x[3];
        for (int n = 0; n < 3; n++)
            x[n] = normal_tensor(c, dtypes[t], shape);
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
            expect_equal(c, "one of 300", run(c, &one, 1),
                         part(c, all, (piece){.B = 1, .i = i, .T = 1}));
        }
    }
}

static void test_prefill_and_decode(void **state)
{
    (void)state;
    run_property(one_of_three_hundred, "decode", 1);
}

/* Every number of queries up to a few tiles: each has the bits that it has in the call with all. */
static void every_number_of_queries(check_case *c)
{
    enum { MOST = 70, S = 260, D = 16 };
    for (int t = 0; t < 4; t++) {
        const int64_t queries[4] = {1, 2, MOST, D}, keys[4] = {1, 2, S, D};
        check_tensor x[3];
        for (int n = 0; n < 3; n++)
            x[n] = normal_tensor(c, dtypes[t], n ? keys : queries);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = x[0].view, a.k = x[1].view, a.v = x[2].view, a.out = x[0].view;
        const results all = run(c, &a, 1);
        for (int64_t T = 1; T < MOST; T++) {
            attn_sdpa_args first = a;
            first.q.shape[2] = first.out.shape[2] = T;
            check_describe(c, "%s, %d queries", attn_dtype_name(dtypes[t]), (int)T);
            expect_equal(c, "the first queries", run(c, &first, 1),
                         part(c, all, (piece){.B = 1, .T = T}));
        }
        check_buffers_reset(c->run->buffers);
    }
}

static void test_every_number_of_queries(void **state)
{
    (void)state;
    run_property(every_number_of_queries, "numbers of queries", 1);
}

/* Every head size up to a few vectors, of keys and of values: numbers of queries that are decoded
 * have the bits that they have among 20. Memory before and after the keys and values is not
 * theirs. */
static void every_head_size(check_case *c)
{
    enum { T = 20, MOST = 34 };
    static const int64_t lengths[] = {1, 7, 16, 64, 65, 150, 256, 300}, few[] = {1, 3, 6, 11, 16};
    for (int t = 0; t < 4; t++)
        for (int64_t D = 1; D < MOST; D++) {
            const int64_t S = CHECK_PICK(c, lengths), Dv = D % 2 ? D : MOST - D;
            const int64_t shapes[4][4] = {{1, 2, T, D}, {1, 2, S, D}, {1, 2, S, Dv}, {1, 2, T, Dv}};
            check_tensor x[4];
            for (int n = 0; n < 4; n++)
                x[n] = normal_tensor(c, dtypes[t], shapes[n]);
            attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
            a.q = x[0].view, a.k = x[1].view, a.v = x[2].view, a.out = x[3].view;
            const results all = run(c, &a, 1);
            for (int n = 0; n < 5; n++) {
                attn_sdpa_args first = a;
                first.q.shape[2] = first.out.shape[2] = few[n];
                check_describe(c, "%s, %d of 20 queries, S=%d D=%d Dv=%d",
                               attn_dtype_name(dtypes[t]), (int)few[n], (int)S, (int)D, (int)Dv);
                expect_equal(c, "the first queries", run(c, &first, 1),
                             part(c, all, (piece){.B = 1, .T = few[n]}));
            }
            check_buffers_reset(c->run->buffers);
        }
}

static void test_every_head_size(void **state)
{
    (void)state;
    run_property(every_head_size, "head sizes", 8);
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
            for (int n = 0; n < 3; n++)
                x[n] = normal_tensor(c, dtypes[t], n ? keys : queries);
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

/* Weights of bf16: with up to 2048 keys, the scores of a tile are kept for them. In a packed call
 * they are computed again, even for a single sequence. */
static void weights_computed_once_or_again(check_case *c)
{
    enum { T = 40, D = 16 };
    static const int64_t lengths[] = {1, 64, 300, 1030, 2048, 2049};
    for (int n = 0; n < 12; n++) {
        const int64_t S = lengths[n / 2], queries[4] = {1, 2, T, D}, keys[4] = {1, 2, S, D};
        const int64_t q_ends[] = {0, T}, k_ends[] = {0, S}, shape[4] = {1, 2, T, S};
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = normal_tensor(c, ATTN_BF16, queries).view;
        a.k = normal_tensor(c, ATTN_BF16, keys).view;
        a.v = normal_tensor(c, ATTN_BF16, keys).view;
        a.out = check_tensor_new(c, ATTN_BF16, queries, CHECK_DENSE).view;
        a.causal = n % 2 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        a.scores_stage = ATTN_STAGE_WEIGHTS;
        const double *weights[2];
        for (int packed = 0; packed < 2; packed++) {
            const attn_tensor to = check_tensor_new(c, ATTN_F32, shape, CHECK_DENSE).view;
            attn_error err = {0};
            a.scores = &to;
            if (packed)
                a.cu_seqlens_q = q_ends, a.cu_seqlens_k = k_ends, a.sequences = 1;
            if (attn_sdpa_forward(context_of(c, 1), &a, &err) != ATTN_OK)
                check_fail(c, "%s", err.message);
            weights[packed] = check_tensor_copy(c, &to);
        }
        check_difference d;
        if (!check_same(weights[0], weights[1], 2 * T * S, CHECK_ZERO_SIGNED, &d))
            check_fail(c, "%d keys, weight %" PRId64 " is %.17g, packed %.17g", (int)S, d.at, d.got,
                       d.want);
        check_buffers_reset(c->run->buffers);
    }
}

static void test_weights_of_a_tile(void **state)
{
    (void)state;
    run_property(weights_computed_once_or_again, "weights", 1);
}

static void test_dense_masks(void **state)
{
    (void)state;
    run_property(same_as_a_dense_mask, "dense masks", 3 * ROUNDS);
}

/* The same of `scores`, at every stage. */
static void test_scores(void **state)
{
    (void)state;
    with_scores = true;
    run_property(same_for_any_thread_count, "scores: threads", ROUNDS);
    run_property(same_alone_and_in_a_batch, "scores: batch", ROUNDS);
    run_property(same_alone_and_among_queries, "scores: queries", ROUNDS);
    run_property(same_at_any_address, "scores: addresses", ROUNDS);
    run_property(same_packed_and_alone, "scores: packed", ROUNDS);
    with_scores = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_queries),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_prefill_and_decode),
        cmocka_unit_test(test_every_number_of_queries),
        cmocka_unit_test(test_every_head_size),
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_weights_of_a_tile),
        cmocka_unit_test(test_dense_masks),
    };
    return cmocka_run_group_tests(tests, create_contexts, destroy_contexts);
}
