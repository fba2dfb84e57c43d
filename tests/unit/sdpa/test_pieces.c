/* Keys in pieces: the bits of one call, which keys are asked for, memory, and bad arguments. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "ref/attn_ref.h"
#include "support/argument_errors.h"
#include "support/counted_memory.h"
#include "support/harness_sample.h"
#include "support/test.h"

/* ------------------------------------------------------------------------------------ a call */

enum { B = 2, HK = 2, H = 4, T = 70, S = 1100, D = 20, DV = 12 };
static float q[B * H * T * D], k[B * HK * S * D], v[B * HK * S * DV], out[B * H * T * DV];
static float want[B * H * T * DV], lse[B * H * T], want_lse[B * H * T];
static attn_tensor lse_tensor;

static double normal(void) /* roughly: the sum of twelve uniform numbers */
{
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
        sum += (double)(random_state >> 40) / (1 << 24);
    }
    return sum;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)normal();
}

static attn_sdpa_args make_args(bool pieces)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, B, H, T, D);
    a.k = attn_bhtd(pieces ? NULL : k, ATTN_F32, B, HK, S, D);
    a.v = attn_bhtd(pieces ? NULL : v, ATTN_F32, B, HK, S, DV);
    a.out = attn_bhtd(pieces ? out : want, ATTN_F32, B, H, T, DV);
    lse_tensor = attn_bhtd(pieces ? lse : want_lse, ATTN_F32, B, H, T, 1);
    a.lse = &lse_tensor;
    return a;
}

static int prepare(void **state)
{
    (void)state;
    random_state = 3;
    fill(q, sizeof q / sizeof *q);
    fill(k, sizeof k / sizeof *k);
    fill(v, sizeof v / sizeof *v);
    return 0;
}

/* Keys first .. first+n-1 of the arrays. */
static attn_status feed(attn_sdpa_state *state, int64_t first, int64_t n, attn_error *err)
{
    attn_tensor piece_k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
    attn_tensor piece_v = attn_bhtd(v, ATTN_F32, B, HK, S, DV);
    piece_k.data = k + first * D, piece_k.shape[2] = n;
    piece_v.data = v + first * DV, piece_v.shape[2] = n;
    return attn_sdpa_feed(state, first, &piece_k, &piece_v, err);
}

static void feed_all(attn_sdpa_state *state, int64_t from)
{
    for (int64_t j = from; j < S; j += 256)
        assert_int_equal(feed(state, j, S - j < 256 ? S - j : 256, NULL), ATTN_OK);
}

static void expect_one_call(attn_context *ctx, attn_sdpa_args a)
{
    a.k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
    a.v = attn_bhtd(v, ATTN_F32, B, HK, S, DV);
    a.out.data = want;
    attn_tensor to = attn_bhtd(want_lse, ATTN_F32, B, H, T, 1);
    a.lse = &to;
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    assert_same_array(out, want, sizeof out);
    assert_same_array(lse, want_lse, sizeof lse);
}

/* ---------------------------------------------------------------------------------- the bits */

/* A fixed sample of the harness's `pieces`: random calls with all rules, types, layouts and special
 * values, in pieces of 256, 512 and 4096 on 1, 2 and 8 threads, on every instruction set. */
static void test_product(void **state)
{
    (void)state;
    expect_sample_passes("pieces", 24, 60); /* each compares at least ten pairs of results */
}

/* One call, and the definition: 0.5 for two equal keys, whatever the pieces. */
static void test_by_hand(void **state)
{
    (void)state;
    static float zero[512], values[512], result;
    for (int j = 0; j < 512; j++)
        values[j] = j < 256 ? 1 : 3;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(zero, ATTN_F32, 1, 1, 1, 1);
    a.k = a.v = attn_bhtd(NULL, ATTN_F32, 1, 1, 512, 1);
    a.out = attn_bhtd(&result, ATTN_F32, 1, 1, 1, 1);
    attn_sdpa_state *s;
    assert_int_equal(attn_sdpa_begin(NULL, &a, NULL, &s, NULL), ATTN_OK);
    for (int64_t j = 0; j < 512; j += 256) {
        const attn_tensor piece_k = attn_bhtd(zero, ATTN_F32, 1, 1, 256, 1);
        const attn_tensor piece_v = attn_bhtd(values + j, ATTN_F32, 1, 1, 256, 1);
        assert_int_equal(attn_sdpa_feed(s, j, &piece_k, &piece_v, NULL), ATTN_OK);
    }
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    attn_sdpa_end(s);
    assert_near(result, 2, <=, 1e-6); /* the mean of 256 ones and 256 threes */
}

/* Every third row of the second half of the heads, with dropout, a causal rule and ALiBi: the bits
 * that these rows have in one call. */
static void test_part_of_whole(void **state)
{
    (void)state;
    enum { ROWS = (T + 2) / 3, HEADS = H / 2 };
    static const float slopes[H] = {0.5f, 0.25f, 0.125f, 0.0625f};
    static float some_q[B * HEADS * ROWS * D], some[B * HEADS * ROWS * DV];
    int64_t positions[ROWS];
    attn_sdpa_args all = make_args(false), a;
    for (int n = 0; n < B * HEADS * ROWS; n++) {
        const int b = n / (HEADS * ROWS), h = HEADS + n / ROWS % HEADS, i = n % ROWS * 3;
        memcpy(some_q + n * D, q + ((b * H + h) * T + i) * D, D * sizeof *q);
        positions[n % ROWS] = i;
    }
    const attn_pieces_options part = {.struct_size = sizeof part,
                                      .q_positions = positions,
                                      .whole_T = T,
                                      .head_offset = HEADS,
                                      .whole_H = H};
    all.lse = NULL;
    all.dropout = 0.5, all.dropout_seed = 11;
    all.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    all.alibi_slopes = slopes;
    assert_int_equal(attn_sdpa_forward(NULL, &all, NULL), ATTN_OK);
    a = all;
    a.q = attn_bhtd(some_q, ATTN_F32, B, HEADS, ROWS, D);
    a.k = attn_bhtd(NULL, ATTN_F32, B, 1, S, D);
    a.v = attn_bhtd(NULL, ATTN_F32, B, 1, S, DV);
    a.out = attn_bhtd(some, ATTN_F32, B, HEADS, ROWS, DV);
    a.alibi_slopes = slopes + HEADS;
    attn_sdpa_state *s;
    assert_int_equal(attn_sdpa_begin(NULL, &a, &part, &s, NULL), ATTN_OK);
    for (int64_t j = 0; j < S; j += 256) { /* the second head of k and v */
        attn_tensor piece_k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
        attn_tensor piece_v = attn_bhtd(v, ATTN_F32, B, HK, S, DV);
        piece_k.data = k + (S + j) * D, piece_v.data = v + (S + j) * DV;
        piece_k.shape[1] = piece_v.shape[1] = 1;
        piece_k.shape[2] = piece_v.shape[2] = S - j < 256 ? S - j : 256;
        assert_int_equal(attn_sdpa_feed(s, j, &piece_k, &piece_v, NULL), ATTN_OK);
    }
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    attn_sdpa_end(s);
    for (int n = 0; n < B * HEADS * ROWS; n++) {
        const int b = n / (HEADS * ROWS), h = HEADS + n / ROWS % HEADS, i = n % ROWS * 3;
        describe_case("batch %d, head %d, position %d", b, h, i);
        float *row = want + ((b * H + h) * T + i) * DV;
        assert_same_array(some + n * DV, row, DV * sizeof *row);
    }
}

/* ------------------------------------------------------------------------------- swept again */

/* A NaN at a key that the causal rule hides from some rows of a block: these rows are swept a
 * second time, the rows that see it stay NaN, and a third sweep does not change that. */
static void test_hidden_nan(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args(true);
    attn_sdpa_state *s;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    const int at = S - 10;
    v[at * DV] = NAN;
    assert_int_equal(attn_sdpa_begin(NULL, &a, NULL, &s, NULL), ATTN_OK);
    feed_all(s, 0);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_AGAIN);
    assert_int_equal(attn_sdpa_next(s, NULL), 0);
    feed_all(s, 0);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_AGAIN); /* rows that see the NaN */
    feed_all(s, 0);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    attn_sdpa_end(s);
    expect_one_call(NULL, a);
    v[at * DV] = 0;
    /* row i of the first head sees the key if at <= i + S - T */
    for (int i = 0; i < T; i++)
        assert_int_equal(!!isnan(out[i * DV]), i >= at - S + T);
}

/* Values that overflow a sum of floats only in the last piece. The mean of equal numbers is that
 * number. */
static void test_late_overflow(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args(true);
    attn_sdpa_state *s;
    for (int n = 0; n < B * HK; n++)
        for (int j = 0; j < S; j++)
            v[(n * S + j) * DV] = 3e38f;
    memset(q, 0, sizeof q);
    assert_int_equal(attn_sdpa_begin(NULL, &a, NULL, &s, NULL), ATTN_OK);
    int sweeps = 0;
    attn_status status;
    do {
        feed_all(s, 0);
        status = attn_sdpa_finish(s, NULL);
        sweeps++;
    } while (status == ATTN_AGAIN);
    assert_int_equal(status, ATTN_OK);
    assert_int_equal(sweeps, 3);
    attn_sdpa_end(s);
    expect_one_call(NULL, a);
    for (int i = 0; i < B * H * T; i++)
        assert_near(out[i * DV] / 3e38f, 1, <=, 1e-5);
    prepare(NULL);
}

/* ------------------------------------------------------------------------------ keys that are
 * needed */

/* One row at position 5000 of ten million keys, with a window of 300: exactly two chunks. */
static void test_window(void **state)
{
    (void)state;
    const int64_t all = 10000000, position = 5000;
    const attn_pieces_options part = {.struct_size = sizeof part,
                                      .q_positions = &position,
                                      .whole_T = all};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    float result[DV];
    attn_sdpa_state *s;
    int64_t past;
    a.q = attn_bhtd(q, ATTN_F32, 1, 1, 1, D);
    a.k = attn_bhtd(NULL, ATTN_F32, 1, 1, all, D);
    a.v = attn_bhtd(NULL, ATTN_F32, 1, 1, all, DV);
    a.out = attn_bhtd(result, ATTN_F32, 1, 1, 1, DV);
    a.causal = ATTN_CAUSAL_TOP_LEFT;
    a.window_left = 300; /* keys 4700 .. 5000 */
    assert_int_equal(attn_sdpa_begin(NULL, &a, &part, &s, NULL), ATTN_OK);
    assert_number(attn_sdpa_state_bytes(s), <, 16384);
    assert_int_equal(attn_sdpa_next(s, &past), 4608);
    assert_int_equal(past, 5120);
    const attn_tensor piece_k = attn_bhtd(k, ATTN_F32, 1, 1, 512, D);
    const attn_tensor piece_v = attn_bhtd(v, ATTN_F32, 1, 1, 512, DV);
    assert_int_equal(attn_sdpa_feed(s, 4608, &piece_k, &piece_v, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_next(s, &past), all);
    assert_int_equal(past, all);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    attn_sdpa_end(s);
    /* the same keys alone: 92 .. 392 of these 512, in double */
    double weight = 0, sum[DV] = {0};
    for (int j = 92; j <= 392; j++) {
        double x = 0;
        for (int d = 0; d < D; d++)
            x += (double)q[d] * k[j * D + d];
        const double e = exp(x / sqrt(D));
        weight += e;
        for (int c = 0; c < DV; c++)
            sum[c] += e * v[j * DV + c];
    }
    for (int c = 0; c < DV; c++)
        assert_near(result[c], sum[c] / weight, <=, 1e-5);
}

/* A row whose window lies behind the last key needs no key. */
static void test_window_behind_the_keys(void **state)
{
    (void)state;
    const int64_t position = 400;
    const attn_pieces_options part = {.struct_size = sizeof part,
                                      .q_positions = &position,
                                      .whole_T = 401};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    float result[DV] = {1};
    attn_sdpa_state *s;
    a.q = attn_bhtd(q, ATTN_F32, 1, 1, 1, D);
    a.k = attn_bhtd(NULL, ATTN_F32, 1, 1, 260, D);
    a.v = attn_bhtd(NULL, ATTN_F32, 1, 1, 260, DV);
    a.out = attn_bhtd(result, ATTN_F32, 1, 1, 1, DV);
    a.window_left = 100, a.window_right = 0; /* keys 300 .. 400 */
    assert_int_equal(attn_sdpa_begin(NULL, &a, &part, &s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_next(s, NULL), 260);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    attn_sdpa_end(s);
    for (int c = 0; c < DV; c++)
        assert_true(result[c] == 0);
}

/* Two windows with a gap: next tells of one run, then of the other. */
static void test_gap(void **state)
{
    (void)state;
    const int64_t positions[] = {90000, 100}, all = 100000;
    const attn_pieces_options part = {.struct_size = sizeof part,
                                      .q_positions = positions,
                                      .whole_T = all};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    float result[2 * DV];
    attn_sdpa_state *s;
    int64_t past;
    a.q = attn_bhtd(q, ATTN_F32, 1, 1, 2, D);
    a.k = attn_bhtd(NULL, ATTN_F32, 1, 1, all, D);
    a.v = attn_bhtd(NULL, ATTN_F32, 1, 1, all, DV);
    a.out = attn_bhtd(result, ATTN_F32, 1, 1, 2, DV);
    a.window_left = a.window_right = 500; /* keys 0 .. 600 and 89500 .. 90500 */
    assert_int_equal(attn_sdpa_begin(NULL, &a, &part, &s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_next(s, &past), 0);
    assert_int_equal(past, 768);
    const attn_tensor piece_k = attn_bhtd(k, ATTN_F32, 1, 1, 768, D);
    const attn_tensor piece_v = attn_bhtd(v, ATTN_F32, 1, 1, 768, DV);
    assert_int_equal(attn_sdpa_feed(s, 0, &piece_k, &piece_v, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_next(s, &past), 89344);
    assert_int_equal(past, 90624);
    attn_sdpa_end(s);
}

/* ------------------------------------------------------------------------------------ memory */

static counted_memory memory;

/* attn_sdpa_state_bytes() is what was allocated, and does not grow with the number of keys. */
static void test_state_bytes(void **state)
{
    (void)state;
    const attn_context_options o = counted_options(&memory, 2);
    attn_context *ctx;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    const size_t before = memory.bytes;
    size_t first = 0;
    for (int64_t keys = 1; keys <= INT64_C(1) << 40; keys <<= 10) {
        attn_sdpa_args a = make_args(true);
        attn_sdpa_state *s;
        a.k.shape[2] = a.v.shape[2] = keys << 8;
        assert_int_equal(attn_sdpa_begin(ctx, &a, NULL, &s, NULL), ATTN_OK);
        assert_int_equal(attn_sdpa_state_bytes(s), memory.bytes - before);
        first = first ? first : memory.bytes;
        assert_int_equal(memory.bytes, first);
        attn_sdpa_end(s);
        assert_int_equal(memory.bytes, before);
    }
    attn_context_destroy(ctx);
    assert_int_equal(memory.blocks, 0);
}

/* Each allocation fails once. Nothing leaks, nothing changes, and the call goes on. */
static void test_no_memory(void **state)
{
    (void)state;
    for (memory.fail_at = 1;; memory.fail_at++) {
        describe_case("allocation %zu fails", memory.fail_at);
        memory.calls = 0;
        const attn_context_options o = counted_options(&memory, 2);
        attn_context *ctx;
        attn_error err;
        if (attn_context_create(&o, &ctx, NULL) == ATTN_ERR_MEMORY)
            continue;
        attn_sdpa_args a = make_args(true);
        a.softcap = 3;
        attn_sdpa_state *s;
        int failures = 0;
        attn_status status;
        while ((status = attn_sdpa_begin(ctx, &a, NULL, &s, &err)) == ATTN_ERR_MEMORY) {
            assert_null(s);
            failures++;
        }
        assert_int_equal(status, ATTN_OK);
        for (int64_t j = 0; j < S; j += status == ATTN_OK ? 256 : 0) {
            status = feed(s, j, S - j < 256 ? S - j : 256, &err);
            assert_true(status == ATTN_OK || status == ATTN_ERR_MEMORY);
            failures += status == ATTN_ERR_MEMORY;
        }
        while ((status = attn_sdpa_finish(s, &err)) == ATTN_ERR_MEMORY)
            failures++;
        assert_int_equal(status, ATTN_OK);
        attn_sdpa_end(s);
        const size_t made = memory.calls;
        expect_one_call(NULL, a);
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
/* Feeds a piece with one mistake in k or v at a time. */
static void expect_bad_tensors(attn_sdpa_state *s)
{
    attn_error err;
    const test_output none[] = {{NULL, 0}};
    attn_tensor good_k = attn_bhtd(k + 256 * D, ATTN_F32, B, HK, S, D), good_v;
    good_k.shape[2] = 256;
    good_v = attn_bhtd(v + 256 * DV, ATTN_F32, B, HK, S, DV);
    good_v.shape[2] = 256;
    for (int i = 0; i < 7; i++) {
        attn_tensor bad_k = good_k, bad_v = good_v;
        if (i < 4)
            bad_v.shape[i]++;
        else if (i == 4)
            bad_v.dtype = ATTN_F64;
        else if (i == 5)
            bad_k.dtype = ATTN_BF16;
        else
            bad_k.data = NULL;
        const attn_status status = attn_sdpa_feed(s, 256, &bad_k, &bad_v, &err);
        expect_bad_argument("a piece", status,
                            i < 4    ? ATTN_ERR_SHAPE
                            : i == 6 ? ATTN_ERR_ARGUMENT
                                     : ATTN_ERR_DTYPE,
                            &err, i < 5 ? "v" : "k", none);
    }
    expect_bad_argument("no k", attn_sdpa_feed(s, 256, NULL, &good_v, &err), ATTN_ERR_ARGUMENT,
                        &err, "k", none);
}

static void test_bad_pieces(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args(true);
    attn_sdpa_state *s;
    attn_error err;
    a.softcap = 2;
    assert_int_equal(attn_sdpa_begin(NULL, &a, NULL, &s, NULL), ATTN_OK);
    assert_int_equal(feed(s, 0, 256, NULL), ATTN_OK);
    static const struct {
        int64_t first, n;
        attn_status status;
        const char *argument;
    } bad[] = {
        {0, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {-256, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {100, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {300, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {512, 256, ATTN_ERR_ARGUMENT, "first_key"},
        {256, 100, ATTN_ERR_SHAPE, "k"},
        {256, 1024, ATTN_ERR_SHAPE, "k"},
        {256, 845, ATTN_ERR_SHAPE, "k"},
        {2560, 256, ATTN_ERR_ARGUMENT, "first_key"},
    };
    const test_output none[] = {{NULL, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[40];
        snprintf(name, sizeof name, "keys %" PRId64 " + %" PRId64, bad[i].first, bad[i].n);
        expect_bad_argument(name, feed(s, bad[i].first, bad[i].n, &err), bad[i].status, &err,
                            bad[i].argument, none);
    }
    expect_bad_tensors(s);
    expect_bad_argument("too early", attn_sdpa_finish(s, &err), ATTN_ERR_ARGUMENT, &err, "state",
                        none);
    feed_all(s, 256);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    expect_bad_argument("too late", feed(s, 0, 256, &err), ATTN_ERR_ARGUMENT, &err, "state", none);
    attn_sdpa_end(s);
    expect_one_call(NULL, a);
}

static void expect_no_state(const char *name, const attn_sdpa_args *a,
                            const attn_pieces_options *part, const char *argument)
{
    const test_output outputs[] = {{out, sizeof out}, {lse, sizeof lse}, {NULL, 0}};
    attn_sdpa_state *s = (attn_sdpa_state *)(void *)out;
    attn_error err;
    blank_all(outputs);
    expect_bad_argument(name, attn_sdpa_begin(NULL, a, part, &s, &err), ATTN_ERR_ARGUMENT, &err,
                        argument, outputs);
    assert_null(s);
}

/* A call without queries or keys needs no memory, however many batches and heads it has. */
static void test_nothing_to_write(void **state)
{
    (void)state;
    const int64_t many = (int64_t)1 << 27;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_state *s;
    a.q = a.k = a.v = a.out = attn_bhtd(NULL, ATTN_F32, many, many, 0, 64);
    assert_int_equal(attn_sdpa_begin(NULL, &a, NULL, &s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_next(s, NULL), 0);
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    attn_sdpa_end(s);
}

/* What attn_sdpa_begin refuses, by name. */
static void test_bad_calls(void **state)
{
    (void)state;
    static int64_t positions[T];
    attn_sdpa_args a = make_args(true);
    attn_tensor scores = attn_bhtd(want, ATTN_F32, B, H, T, S);
    a.scores = &scores;
    expect_no_state("scores", &a, NULL, "scores");
    a = make_args(true);
    a.cache = (const struct attn_cache *)(const void *)want;
    expect_no_state("cache", &a, NULL, "cache");
    a = make_args(true);
    a.k.data = k;
    expect_no_state("k", &a, NULL, "k");
    a = make_args(true);
    a.v.data = v;
    expect_no_state("v", &a, NULL, "v");
    a = make_args(true);
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    part.whole_T = T - 1;
    expect_no_state("whole_T", &a, &part, "whole_T");
    part = (attn_pieces_options)ATTN_PIECES_OPTIONS_INIT;
    part.head_offset = 1;
    expect_no_state("head_offset", &a, &part, "head_offset");
    part.whole_H = H;
    expect_no_state("head_offset", &a, &part, "head_offset");
    part = (attn_pieces_options)ATTN_PIECES_OPTIONS_INIT;
    part.q_positions = positions;
    positions[3] = T;
    expect_no_state("q_positions", &a, &part, "q_positions");
    part = (attn_pieces_options)ATTN_PIECES_OPTIONS_INIT;
    part.sums_in = 1;
    expect_no_state("sums", &a, &part, "sums_in");
    part.sums_in = 0;
    part.sums_out = 1;
    expect_no_state("sums", &a, &part, "sums_out");
    part.sums_out = 0;
    part.q_positions = positions;
    positions[3] = -1;
    expect_no_state("q_positions", &a, &part, "q_positions");
    attn_error err;
    const test_output none[] = {{NULL, 0}};
    expect_bad_argument("out", attn_sdpa_begin(NULL, &a, NULL, NULL, &err), ATTN_ERR_ARGUMENT, &err,
                        "out", none);
    expect_bad_argument("state", attn_sdpa_feed(NULL, 0, &a.k, &a.v, &err), ATTN_ERR_ARGUMENT, &err,
                        "state", none);
    expect_bad_argument("state", attn_sdpa_finish(NULL, &err), ATTN_ERR_ARGUMENT, &err, "state",
                        none);
    attn_sdpa_end(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_part_of_whole),
        cmocka_unit_test(test_hidden_nan),
        cmocka_unit_test(test_late_overflow),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_window_behind_the_keys),
        cmocka_unit_test(test_gap),
        cmocka_unit_test(test_state_bytes),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_bad_pieces),
        cmocka_unit_test(test_nothing_to_write),
        cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
