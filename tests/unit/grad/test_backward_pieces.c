/* The backward with keys in pieces: the bits of one call, needed keys, memory, bad arguments.
 *
 * labels: threads slow */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "support/argument_errors.h"
#include "support/counted_memory.h"
#include "support/harness_sample.h"
#include "support/test.h"

/* ------------------------------------------------------------------------------------ a call */

enum { B = 2, HK = 2, H = 4, T = 70, S = 1100, D = 20, DV = 12 };

typedef struct arrays {
    float dq[B * H * T * D], dk[B * HK * S * D], dv[B * HK * S * DV];
} arrays;

static float q[B * H * T * D], k[B * HK * S * D], v[B * HK * S * DV], out[B * H * T * DV];
static float dout[B * H * T * DV], lse[B * H * T];
static attn_tensor lse_tensor;
static arrays got, want;

static attn_sdpa_args make_args(bool pieces)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, B, H, T, D);
    a.k = attn_bhtd(pieces ? NULL : k, ATTN_F32, B, HK, S, D);
    a.v = attn_bhtd(pieces ? NULL : v, ATTN_F32, B, HK, S, DV);
    a.out = attn_bhtd(out, ATTN_F32, B, H, T, DV);
    lse_tensor = attn_bhtd(lse, ATTN_F32, B, H, T, 1);
    a.lse = &lse_tensor;
    a.softcap = 3;
    return a;
}

static attn_sdpa_grads make_grads(bool pieces)
{
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_bhtd(dout, ATTN_F32, B, H, T, DV);
    g.dq = attn_bhtd(pieces ? got.dq : want.dq, ATTN_F32, B, H, T, D);
    g.dk = attn_bhtd(pieces ? NULL : want.dk, ATTN_F32, B, HK, S, D);
    g.dv = attn_bhtd(pieces ? NULL : want.dv, ATTN_F32, B, HK, S, DV);
    return g;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
        x[i] = (float)(random_state >> 40) / (1 << 23) - 1;
    }
}

static int prepare(void **state)
{
    (void)state;
    random_state = 5;
    fill(q, sizeof q / sizeof *q);
    fill(k, sizeof k / sizeof *k);
    fill(v, sizeof v / sizeof *v);
    fill(dout, sizeof dout / sizeof *dout);
    return 0;
}

/* Keys first .. first+n-1 of an array of rows of `width` elements. */
static attn_tensor rows_of(float *x, int64_t first, int64_t n, int64_t width)
{
    attn_tensor t = attn_bhtd(x, ATTN_F32, B, HK, S, width);
    t.data = x + first * width;
    t.shape[2] = n;
    return t;
}

static attn_status feed(attn_sdpa_backward_state *state, int64_t first, int64_t n, attn_error *err)
{
    const attn_tensor piece_k = rows_of(k, first, n, D), piece_v = rows_of(v, first, n, DV);
    const attn_tensor dk = rows_of(got.dk, first, n, D), dv = rows_of(got.dv, first, n, DV);
    return attn_sdpa_backward_feed(state, first, &piece_k, &piece_v, &dk, &dv, err);
}

static void expect_one_call(const attn_sdpa_args *given)
{
    attn_sdpa_args a = *given;
    const attn_sdpa_grads g = make_grads(false);
    a.k.data = k, a.v.data = v;
    assert_int_equal(attn_sdpa_backward(NULL, &a, &g, NULL), ATTN_OK);
    assert_same_array(got.dq, want.dq, sizeof got.dq);
    assert_same_array(got.dk, want.dk, sizeof got.dk);
    assert_same_array(got.dv, want.dv, sizeof got.dv);
}

static void run_forward(const attn_sdpa_args *given)
{
    attn_sdpa_args a = *given;
    a.k.data = k, a.v.data = v;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
}

/* ---------------------------------------------------------------------------------- the bits */

/* A fixed sample of the harness's `pieces_backward`: random calls with all rules, types, layouts
 * and special values, in pieces of up to 256, 512 and 4096 keys on 1, 2 and 8 threads, on every
 * instruction set. */
static void test_product(void **state)
{
    (void)state;
    expect_sample_passes("pieces_backward", 24, 40); /* each compares nine runs with one call */
}

/* The same for rows that are dealt to up to four parts: dq of each part against one call, sums over
 * all parts against the reference in double. */
static void test_parts(void **state)
{
    (void)state;
    expect_sample_passes("parts_backward", 25, 40);
}

/* The same for parts that pass sums of dk and dv on, the last rows first, in pieces of keys: all
 * bits of one call. */
static void test_queries(void **state)
{
    (void)state;
    expect_sample_passes("queries_backward", 26, 60);
}

/* One query, which gives half of its weight to the first key and half to the last one; dout = 1. By
 * hand: out = (2 + 6) / 2; dv = w = 1/2 for both; dk = w (v - out) q; dq = the sum of
 * w (v - out) k = 0. */
static void test_by_hand(void **state)
{
    (void)state;
    enum { KEYS = 512 };
    static float keys[KEYS], values[KEYS], dkeys[KEYS], dvalues[KEYS];
    float query = 1, result = 7, log_sum = 7, one = 1, dquery = 7;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    attn_sdpa_backward_state *s;
    for (int j = 0; j < KEYS; j++)
        keys[j] = j == 0 || j == KEYS - 1 ? 3 : -1e30f, values[j] = j == 0 ? 2 : 6;
    attn_tensor log_sums = attn_bhtd(&log_sum, ATTN_F32, 1, 1, 1, 1);
    a.q = attn_bhtd(&query, ATTN_F32, 1, 1, 1, 1);
    a.k = attn_bhtd(keys, ATTN_F32, 1, 1, KEYS, 1);
    a.v = attn_bhtd(values, ATTN_F32, 1, 1, KEYS, 1);
    a.out = attn_bhtd(&result, ATTN_F32, 1, 1, 1, 1);
    a.lse = &log_sums;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    g.dout = attn_bhtd(&one, ATTN_F32, 1, 1, 1, 1);
    g.dq = attn_bhtd(&dquery, ATTN_F32, 1, 1, 1, 1);
    g.dk = g.dv = attn_bhtd(NULL, ATTN_F32, 1, 1, KEYS, 1);
    a.k.data = a.v.data = NULL;
    assert_int_equal(attn_sdpa_backward_begin(NULL, &a, &g, NULL, &s, NULL), ATTN_OK);
    for (int64_t j = 0; j < KEYS; j += 256) {
        const attn_tensor piece_k = attn_bhtd(keys + j, ATTN_F32, 1, 1, 256, 1);
        const attn_tensor piece_v = attn_bhtd(values + j, ATTN_F32, 1, 1, 256, 1);
        const attn_tensor dk = attn_bhtd(dkeys + j, ATTN_F32, 1, 1, 256, 1);
        const attn_tensor dv = attn_bhtd(dvalues + j, ATTN_F32, 1, 1, 256, 1);
        assert_int_equal(attn_sdpa_backward_feed(s, j, &piece_k, &piece_v, &dk, &dv, NULL),
                         ATTN_OK);
    }
    assert_int_equal(attn_sdpa_backward_finish(s, NULL), ATTN_OK);
    attn_sdpa_backward_end(s);
    assert_float_equal(result, 4, 0);
    assert_float_equal(dvalues[0], 0.5, 0);
    assert_float_equal(dvalues[KEYS - 1], 0.5, 0);
    assert_float_equal(dvalues[1], 0, 0);
    assert_float_equal(dkeys[0], -1, 0);
    assert_float_equal(dkeys[KEYS - 1], 1, 0);
    assert_float_equal(dquery, 0, 0);
}

/* ------------------------------------------------------------------------------ which keys */

/* Nothing is written before finish, also if there is nothing to compute: no keys, so dq = 0. */
static void test_begin_writes_nothing(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        describe_case("%s", n ? "keys" : "no keys");
        attn_sdpa_args a = make_args(true);
        attn_sdpa_grads g = make_grads(true);
        attn_sdpa_backward_state *s;
        int64_t first, past;
        if (n == 0)
            a.k.shape[2] = a.v.shape[2] = g.dk.shape[2] = g.dv.shape[2] = 0;
        run_forward(&a);
        memset(&got, 0xA5, sizeof got);
        assert_int_equal(attn_sdpa_backward_begin(NULL, &a, &g, NULL, &s, NULL), ATTN_OK);
        assert_true(is_blank(&got, sizeof got));
        while ((first = attn_sdpa_backward_next(s, 4096, &past)) < a.k.shape[2])
            assert_int_equal(feed(s, first, past - first, NULL), ATTN_OK);
        assert_int_equal(attn_sdpa_backward_finish(s, NULL), ATTN_OK);
        attn_sdpa_backward_end(s);
        for (size_t i = 0; i < sizeof got.dq / sizeof *got.dq && n == 0; i++)
            assert_float_equal(got.dq[i], 0, 0);
    }
}

/* Only chunks that the window reaches are asked for; the gradients of the other keys are 0 in one
 * call. */
static void test_window(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args(true);
    const attn_sdpa_grads g = make_grads(true);
    attn_sdpa_backward_state *s;
    int64_t first, past, fed = 0;
    a.causal = ATTN_CAUSAL_OFFSET;
    a.causal_offset = 600; /* rows 0 .. 69 see keys up to 600 .. 669 */
    a.window_left = 10;    /* and from 590 on: in keys 512 .. 767 */
    run_forward(&a);
    memset(&got, 0, sizeof got);
    assert_int_equal(attn_sdpa_backward_begin(NULL, &a, &g, NULL, &s, NULL), ATTN_OK);
    while ((first = attn_sdpa_backward_next(s, 4096, &past)) < S) {
        assert_int_equal(feed(s, first, past - first, NULL), ATTN_OK);
        fed += past - first;
    }
    assert_int_equal(attn_sdpa_backward_finish(s, NULL), ATTN_OK);
    attn_sdpa_backward_end(s);
    assert_int_equal(fed, 256);
    expect_one_call(&a);
}

/* ------------------------------------------------------------------------------------ memory */

static counted_memory memory;

/* One call in pieces, in which at most one allocation fails; each call that fails is made again. */
static int run_failing(attn_context *ctx)
{
    attn_sdpa_args a = make_args(true);
    const attn_sdpa_grads g = make_grads(true);
    attn_sdpa_backward_state *s;
    attn_status status;
    int failures = 0;
    while ((status = attn_sdpa_backward_begin(ctx, &a, &g, NULL, &s, NULL)) == ATTN_ERR_MEMORY) {
        assert_null(s);
        failures++;
    }
    assert_int_equal(status, ATTN_OK);
    for (int64_t j = 0; j < S; j += status == ATTN_OK ? 256 : 0) {
        status = feed(s, j, S - j < 256 ? S - j : 256, NULL);
        assert_true(status == ATTN_OK || status == ATTN_ERR_MEMORY);
        failures += status == ATTN_ERR_MEMORY;
    }
    while ((status = attn_sdpa_backward_finish(s, NULL)) == ATTN_ERR_MEMORY)
        failures++;
    assert_int_equal(status, ATTN_OK);
    attn_sdpa_backward_end(s);
    return failures;
}

/* Each allocation fails once. Nothing leaks, nothing changes, and the call goes on. */
static void test_no_memory(void **state)
{
    (void)state;
    const attn_sdpa_args a = make_args(true);
    run_forward(&a);
    for (memory.fail_at = 1;; memory.fail_at++) {
        describe_case("allocation %zu fails", memory.fail_at);
        memory.calls = 0;
        const attn_context_options o = counted_options(&memory, 2);
        attn_context *ctx;
        if (attn_context_create(&o, &ctx, NULL) == ATTN_ERR_MEMORY)
            continue;
        memset(&got, 0, sizeof got);
        const int failures = run_failing(ctx);
        const size_t made = memory.calls;
        expect_one_call(&a);
        attn_context_destroy(ctx);
        assert_int_equal(memory.blocks, 0);
        assert_true(failures <= 1);
        if (memory.fail_at > made)
            break;
    }
    assert_number(memory.fail_at, >, 3);
    memory.fail_at = 0;
}

/* --------------------------------------------------------------------------------- arguments */

/* Each bad piece is refused, names its argument, and leaves the state as it was. */
static void test_bad_pieces(void **state)
{
    (void)state;
    static const struct {
        int64_t first, n;
        attn_status status;
        const char *argument;
    } bad[] = {
        {0, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {-256, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {300, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {512, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {2560, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {256, 100, ATTN_ERR_SHAPE, "k"},
        {256, 1024, ATTN_ERR_SHAPE, "k"},
    };
    const test_output none[] = {{NULL, 0}};
    const attn_sdpa_args a = make_args(true);
    const attn_sdpa_grads g = make_grads(true);
    attn_sdpa_backward_state *s;
    attn_error err;
    run_forward(&a);
    assert_int_equal(attn_sdpa_backward_begin(NULL, &a, &g, NULL, &s, NULL), ATTN_OK);
    assert_int_equal(feed(s, 0, 256, NULL), ATTN_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[40];
        snprintf(name, sizeof name, "piece %zu", i);
        expect_bad_argument(name, feed(s, bad[i].first, bad[i].n, &err), bad[i].status, &err,
                            bad[i].argument, none);
    }
    const attn_tensor piece_k = rows_of(k, 256, 256, D), piece_v = rows_of(v, 256, 256, DV);
    const attn_tensor dk = rows_of(got.dk, 256, 256, D);
    expect_bad_argument("no dv",
                        attn_sdpa_backward_feed(s, 256, &piece_k, &piece_v, &dk, NULL, &err),
                        ATTN_ERR_ARGUMENT, &err, "dv", none);
    expect_bad_argument("too early", attn_sdpa_backward_finish(s, &err), ATTN_ERR_ARGUMENT, &err,
                        "state", none);
    assert_int_equal(feed(s, 256, S - 256, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_backward_finish(s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_backward_finish(s, NULL), ATTN_OK);
    expect_bad_argument("too late", feed(s, 0, 256, &err), ATTN_ERR_ARGUMENT, &err, "state", none);
    attn_sdpa_backward_end(s);
    expect_one_call(&a);
}

/* Sums are f32 or f64, as the call computes, and the part with the first rows needs all keys, also
 * those that only other parts see. */
static void test_bad_sums(void **state)
{
    (void)state;
    const test_output none[] = {{NULL, 0}};
    attn_sdpa_args a = make_args(true);
    const attn_sdpa_grads g = make_grads(true);
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    attn_sdpa_backward_state *s;
    attn_error err;
    int64_t past;
    a.causal = ATTN_CAUSAL_TOP_LEFT; /* rows see keys 0 .. 69 */
    run_forward(&a);
    part.sums_in = 1;
    assert_int_equal(attn_sdpa_backward_begin(NULL, &a, &g, &part, &s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_backward_next(s, S, &past), 0);
    assert_int_equal(past, S);
    const attn_tensor piece_k = rows_of(k, 0, S, D), piece_v = rows_of(v, 0, S, DV);
    attn_tensor dk = rows_of(got.dk, 0, S, D), dv = rows_of(got.dv, 0, S, DV);
    dv.dtype = ATTN_F64;
    expect_bad_argument("f64 sums",
                        attn_sdpa_backward_feed(s, 0, &piece_k, &piece_v, &dk, &dv, &err),
                        ATTN_ERR_DTYPE, &err, "dv", none);
    assert_int_equal(feed(s, 0, 256, NULL), ATTN_OK);
    expect_bad_argument("too early", attn_sdpa_backward_finish(s, &err), ATTN_ERR_ARGUMENT, &err,
                        "state", none);
    attn_sdpa_backward_end(s);
    part.sums_out = 1;
    assert_int_equal(attn_sdpa_backward_begin(NULL, &a, &g, &part, &s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_backward_next(s, S, &past), 0);
    assert_int_equal(past, 256);
    attn_sdpa_backward_end(s);
}

static void expect_no_state(const char *name, const attn_sdpa_args *a, const attn_sdpa_grads *g,
                            const attn_pieces_options *part, const char *argument)
{
    const test_output outputs[] = {{&got, sizeof got}, {NULL, 0}};
    attn_sdpa_backward_state *s = (attn_sdpa_backward_state *)(void *)out;
    attn_error err;
    blank_all(outputs);
    expect_bad_argument(name, attn_sdpa_backward_begin(NULL, a, g, part, &s, &err),
                        ATTN_ERR_ARGUMENT, &err, argument, outputs);
    assert_null(s);
}

static void test_bad_calls(void **state)
{
    (void)state;
    const test_output none[] = {{NULL, 0}};
    int64_t positions[T] = {0};
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    attn_sdpa_args a = make_args(true);
    attn_sdpa_grads g = make_grads(true);
    attn_error err;
    a.k.data = k;
    expect_no_state("keys", &a, &g, NULL, "k");
    a = make_args(true);
    g.dk.data = got.dk;
    expect_no_state("gradient of keys", &a, &g, NULL, "dk");
    g = make_grads(true);
    a.lse = NULL;
    expect_no_state("no lse", &a, &g, NULL, "lse");
    a = make_args(true);
    part.sums_in = 2;
    expect_no_state("a flag of 2", &a, &g, &part, "sums_in");
    part.sums_in = 0;
    part.sums_out = -1;
    expect_no_state("a flag of -1", &a, &g, &part, "sums_out");
    part.sums_out = 1;
    a.q.shape[2] = a.out.shape[2] = lse_tensor.shape[2] = 0;
    g.dout.shape[2] = g.dq.shape[2] = 0;
    expect_no_state("sums of no rows", &a, &g, &part, "sums_out");
    part.sums_out = 0;
    a = make_args(true);
    g = make_grads(true);
    part.q_positions = positions;
    part.whole_T = T;
    expect_no_state("equal positions", &a, &g, &part, "q_positions");
    for (int i = 0; i < T; i++)
        positions[i] = i < T - 1 ? i : 3;
    expect_no_state("a position that falls", &a, &g, &part, "q_positions");
    positions[T - 1] = T;
    expect_no_state("a position beyond the whole", &a, &g, &part, "q_positions");
    part.q_positions = NULL;
    part.whole_T = T - 1;
    expect_no_state("more rows than the whole", &a, &g, &part, "whole_T");
    expect_bad_argument("no place", attn_sdpa_backward_begin(NULL, &a, &g, NULL, NULL, &err),
                        ATTN_ERR_ARGUMENT, &err, "out", none);
    expect_bad_argument("no state", feed(NULL, 0, 256, &err), ATTN_ERR_ARGUMENT, &err, "state",
                        none);
    expect_bad_argument("no state", attn_sdpa_backward_finish(NULL, &err), ATTN_ERR_ARGUMENT, &err,
                        "state", none);
    assert_int_equal(attn_sdpa_backward_state_bytes(NULL), 0);
    attn_sdpa_backward_end(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_queries),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_begin_writes_nothing),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_bad_pieces),
        cmocka_unit_test(test_bad_sums),
        cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
