/* Saved states of keys in pieces: they go on with the bits of one call, and loading trusts nothing.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "fuzz/seal.h"
#include "support/argument_errors.h"
#include "support/io_testing.h"
#include "support/counted_memory.h"
#include "support/test.h"

/* ------------------------------------------------------------------------------------ a call
 *
 * Packed sequences whose boundaries are not multiples of 256, a mask, sinks and ALiBi. A value is a
 * NaN with a payload, which the causal rule hides from some rows: they are swept again. */

enum { B = 2, HK = 1, H = 2, T = 70, S = 800, D = 12, DV = 8, PIECES = (S + 255) / 256 };
static float q[B * H * T * D], k[B * HK * S * D], v[B * HK * S * DV], mask[T * S];
static float out[B * H * T * DV], want[B * H * T * DV];
static double lse[B * H * T], want_lse[B * H * T];
static const int64_t starts_q[] = {0, 40, 70}, starts_k[] = {0, 450, 790};
static const float slopes[] = {0.5f, 0.25f}, sinks[] = {1, -1};
static attn_tensor lse_tensor, mask_tensor;

static float uniform(void) /* -1 .. 1 */
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (float)(random_state >> 40) / (1 << 23) - 1;
}

static int prepare(void **state)
{
    (void)state;
    static const struct {
        float *x;
        size_t n;
    } all[] = {{q, B * H * T * D}, {k, B * HK * S * D}, {v, B * HK * S * DV}, {mask, T * S}};
    random_state = 5;
    for (int i = 0; i < 4; i++)
        for (size_t j = 0; j < all[i].n; j++)
            all[i].x[j] = uniform();
    const uint32_t payload = 0x7fc12345;
    memcpy(&v[430 * DV + 3], &payload, sizeof payload);
    return 0;
}

static attn_sdpa_args make_args(void)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, B, H, T, D);
    a.k = attn_bhtd(NULL, ATTN_F32, B, HK, S, D);
    a.v = attn_bhtd(NULL, ATTN_F32, B, HK, S, DV);
    a.out = attn_bhtd(out, ATTN_F32, B, H, T, DV);
    lse_tensor = attn_bhtd(lse, ATTN_F64, B, H, T, 1);
    mask_tensor = attn_bhtd(mask, ATTN_F32, 1, 1, T, S);
    a.lse = &lse_tensor;
    a.mask = &mask_tensor;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    a.cu_seqlens_q = starts_q, a.cu_seqlens_k = starts_k, a.sequences = 2;
    a.alibi_slopes = slopes, a.sink_logits = sinks;
    return a;
}

static void one_call(attn_context *ctx)
{
    attn_sdpa_args a = make_args();
    a.k.data = k, a.v.data = v, a.out.data = want;
    lse_tensor.data = want_lse;
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
}

static attn_status feed(attn_sdpa_state *s, int64_t first, attn_error *err)
{
    const int64_t n = S - first < 256 ? S - first : 256;
    attn_tensor piece_k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
    attn_tensor piece_v = attn_bhtd(v, ATTN_F32, B, HK, S, DV);
    piece_k.data = k + first * D, piece_k.shape[2] = n;
    piece_v.data = v + first * DV, piece_v.shape[2] = n;
    return attn_sdpa_feed(s, first, &piece_k, &piece_v, err);
}

/* Does the next step of the call: feeds a piece or finishes. Returns false at the end. */
static bool step(attn_sdpa_state *s)
{
    const int64_t first = attn_sdpa_next(s, NULL);
    if (first < S) {
        assert_int_equal(feed(s, first, NULL), ATTN_OK);
        return true;
    }
    const attn_status status = attn_sdpa_finish(s, NULL);
    assert_true(status == ATTN_OK || status == ATTN_AGAIN);
    return status == ATTN_AGAIN;
}

static attn_context *context_of(const char *isa, int threads)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx;
    o.isa = isa;
    o.threads = threads;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    return ctx;
}

static int keep_bytes(void *user, const void *data, size_t n)
{
    put(user, data, n);
    return 0;
}

/* The state after `steps` steps. */
static bytes saved_after(attn_context *ctx, const attn_sdpa_args *a, int steps)
{
    attn_sdpa_state *s;
    bytes b = {0};
    assert_int_equal(attn_sdpa_begin(ctx, a, NULL, &s, NULL), ATTN_OK);
    for (int i = 0; i < steps; i++)
        step(s);
    assert_int_equal(attn_sdpa_save(s, keep_bytes, &b, NULL), ATTN_OK);
    attn_sdpa_end(s);
    return b;
}

/* ---------------------------------------------------------------------------------- the bits */

/* Saved after each step, on each instruction set, and loaded with another number of threads and
 * forgotten results: the bits of one call, and the same bytes when it is saved at once. */
static void test_each_place(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args();
    attn_isa_info isa;
    int compared = 0;
    for (int i = 0; (isa = attn_isa(i)).name; i++) {
        if (!isa.usable)
            continue;
        attn_context *one = context_of(isa.name, 1), *three = context_of(isa.name, 3);
        one_call(one);
        assert_true(isnan(want[(38 * DV) + 3])); /* this row sees the NaN, key 430 */
        a = make_args();
        for (int steps = 0; steps < 3 * (PIECES + 1); steps++) {
            describe_case("%s, saved after step %d", isa.name, steps);
            attn_sdpa_state *s;
            bytes b = saved_after(steps % 2 ? one : three, &a, steps), again = {0};
            memset(out, 0xA5, sizeof out);
            memset(lse, 0xA5, sizeof lse);
            assert_int_equal(attn_sdpa_load(steps % 2 ? three : one, &a, NULL, b.data, b.size, &s,
                                            NULL),
                             ATTN_OK);
            assert_int_equal(attn_sdpa_save(s, keep_bytes, &again, NULL), ATTN_OK);
            assert_int_equal(again.size, b.size);
            assert_memory_equal(again.data, b.data, b.size);
            while (step(s))
                continue;
            attn_sdpa_end(s);
            assert_same_array(out, want, sizeof out);
            assert_same_array(lse, want_lse, sizeof lse);
            bytes_free(&b);
            bytes_free(&again);
            compared++;
        }
        attn_context_destroy(one), attn_context_destroy(three);
    }
    assert_number(compared, >=, 15);
}

/* ----------------------------------------------------------------------------- another call */

/* Values without components: a chunk that is open, and the result, have no bytes to save. */
static void test_no_components(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args();
    attn_sdpa_state *s;
    bytes b = {0};
    one_call(NULL); /* lse does not depend on the values */
    lse_tensor.data = lse;
    a.v = attn_bhtd(NULL, ATTN_F32, B, HK, S, 0);
    a.out = attn_bhtd(NULL, ATTN_F32, B, H, T, 0);
    assert_int_equal(attn_sdpa_begin(NULL, &a, NULL, &s, NULL), ATTN_OK);
    for (int64_t first; (first = attn_sdpa_next(s, NULL)) < S;) {
        const int64_t n = S - first < 256 ? S - first : 256;
        attn_tensor piece_k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
        const attn_tensor piece_v = attn_bhtd(NULL, ATTN_F32, B, HK, n, 0);
        piece_k.data = k + first * D, piece_k.shape[2] = n;
        assert_int_equal(attn_sdpa_feed(s, first, &piece_k, &piece_v, NULL), ATTN_OK);
        b.size = 0;
        assert_int_equal(attn_sdpa_save(s, keep_bytes, &b, NULL), ATTN_OK);
        attn_sdpa_end(s);
        assert_int_equal(attn_sdpa_load(NULL, &a, NULL, b.data, b.size, &s, NULL), ATTN_OK);
    }
    assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_OK);
    attn_sdpa_end(s);
    bytes_free(&b);
    assert_same_array(lse, want_lse, sizeof lse);
}

static void expect_no_load(const char *name, attn_context *ctx, const attn_sdpa_args *a,
                           const attn_pieces_options *part, const bytes *b, attn_status status,
                           const char *argument)
{
    const test_output outputs[] = {{out, sizeof out}, {lse, sizeof lse}, {NULL, 0}};
    attn_sdpa_state *s = (attn_sdpa_state *)(void *)out;
    attn_error err;
    blank_all(outputs);
    expect_bad_argument(name, attn_sdpa_load(ctx, a, part, b->data, b->size, &s, &err), status,
                        &err, argument, outputs);
    assert_null(s);
}

/* Saved with these positions, and loaded with others. */
static void other_positions(const attn_sdpa_args *a, const attn_pieces_options *part)
{
    static int64_t other[T];
    attn_pieces_options moved = *part;
    attn_sdpa_state *s;
    bytes b = {0};
    for (int64_t i = 0; i < T; i++)
        other[i] = part->q_positions[i];
    other[3] = part->q_positions[4], other[4] = part->q_positions[3];
    moved.q_positions = other;
    assert_int_equal(attn_sdpa_begin(NULL, a, part, &s, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_save(s, keep_bytes, &b, NULL), ATTN_OK);
    attn_sdpa_end(s);
    expect_no_load("other q_positions", NULL, a, &moved, &b, ATTN_ERR_ARGUMENT, "args");
    bytes_free(&b);
}

/* A change of any rule or input of the call, one at a time. */
static void test_other_calls(void **state)
{
    (void)state;
    static const int64_t other_q[] = {0, 41, 70}, other_k[] = {0, 451, 790};
    static const float other[] = {0.5f, 0.75f};
    static int64_t positions[T];
    static double wide_out[B * H * T * DV];
    const attn_tensor wide = attn_bhtd(wide_out, ATTN_F64, B, H, T, DV);
    const attn_sdpa_args good = make_args();
    attn_tensor lse32 = attn_bhtd(want_lse, ATTN_F32, B, H, T, 1);
    bytes b = saved_after(NULL, &good, 2);
#define ANOTHER(change, argument)                                                                  \
    do {                                                                                           \
        attn_sdpa_args a = good;                                                                   \
        change;                                                                                    \
        expect_no_load(#change, NULL, &a, NULL, &b, ATTN_ERR_ARGUMENT, argument);                  \
    } while (0)
    ANOTHER(a.scale = 0.3, "args");
    ANOTHER(a.causal = ATTN_CAUSAL_TOP_LEFT, "args");
    ANOTHER((a.causal = ATTN_CAUSAL_OFFSET, a.causal_offset = 3), "args");
    ANOTHER(a.window_left = 100, "args");
    ANOTHER((a.causal = ATTN_CAUSAL_NONE, a.window_right = 100), "args");
    ANOTHER((a.causal = ATTN_CAUSAL_NONE, a.diagonal = ATTN_DIAGONAL_BOTTOM_RIGHT), "args");
    ANOTHER(a.mask = NULL, "mask");
    ANOTHER((a.cu_seqlens_q = a.cu_seqlens_k = NULL, a.sequences = 0), "args");
    ANOTHER(a.cu_seqlens_q = other_q, "args");
    ANOTHER(a.cu_seqlens_k = other_k, "args");
    ANOTHER(a.alibi_slopes = NULL, "args");
    ANOTHER(a.alibi_slopes = other, "args");
    ANOTHER(a.alibi_form = ATTN_ALIBI_SYMMETRIC, "args");
    ANOTHER(a.sink_logits = NULL, "args");
    ANOTHER(a.sink_logits = other, "args");
    ANOTHER(a.softcap = 2, "args");
    ANOTHER(a.dropout = 0.5, "args");
    ANOTHER(a.dropout_seed = 1, "args");
    ANOTHER(a.precision = ATTN_PRECISION_ACCURATE, "args");
    ANOTHER(a.out = wide, "args");
    ANOTHER(a.lse = NULL, "args");
    ANOTHER(a.lse = &lse32, "args");
    q[17]++;
    expect_no_load("q", NULL, &good, NULL, &b, ATTN_ERR_ARGUMENT, "q");
    q[17]--;
    mask[17]++;
    expect_no_load("mask", NULL, &good, NULL, &b, ATTN_ERR_ARGUMENT, "mask");
    mask[17]--;
    for (int64_t i = 0; i < T; i++)
        positions[i] = T - 1 - i;
    const attn_pieces_options part = {.struct_size = sizeof part,
                                      .q_positions = positions,
                                      .whole_T = T};
    const attn_pieces_options heads = {.struct_size = sizeof heads, .head_offset = 2, .whole_H = 8};
    expect_no_load("q_positions", NULL, &good, &part, &b, ATTN_ERR_ARGUMENT, "args");
    expect_no_load("head_offset", NULL, &good, &heads, &b, ATTN_ERR_ARGUMENT, "args");
    other_positions(&good, &part);
    attn_sdpa_args shorter = good;
    shorter.k.shape[2]--, shorter.v.shape[2]--, mask_tensor.shape[3]--;
    expect_no_load("S", NULL, &shorter, NULL, &b, ATTN_ERR_SHAPE, "args");
    bytes_free(&b);
}

/* Key lengths, which do not go with packed sequences. */
static void test_other_lengths(void **state)
{
    (void)state;
    static const int64_t lengths[] = {500, 800}, other[] = {501, 800};
    attn_sdpa_args a = make_args();
    a.cu_seqlens_q = a.cu_seqlens_k = NULL, a.sequences = 0;
    a.key_lengths = lengths;
    bytes b = saved_after(NULL, &a, 1);
    a.key_lengths = other;
    expect_no_load("key_lengths", NULL, &a, NULL, &b, ATTN_ERR_ARGUMENT, "args");
    a.key_lengths = NULL;
    expect_no_load("no key_lengths", NULL, &a, NULL, &b, ATTN_ERR_ARGUMENT, "args");
    bytes_free(&b);
}

/* The error of another instruction set names both. */
static void test_other_isa(void **state)
{
    (void)state;
    const char *best = attn_context_isa(NULL);
    if (strcmp(best, "generic") == 0)
        skip();
    const attn_sdpa_args a = make_args();
    attn_context *generic = context_of("generic", 1);
    attn_sdpa_state *s;
    attn_error err;
    bytes b = saved_after(NULL, &a, 1);
    expect_no_load("isa", generic, &a, NULL, &b, ATTN_ERR_UNSUPPORTED, "ctx");
    attn_sdpa_load(generic, &a, NULL, b.data, b.size, &s, &err);
    assert_non_null(strstr(err.message, best));
    assert_non_null(strstr(err.message, "generic"));
    attn_context_destroy(generic);
    bytes_free(&b);
}

/* -------------------------------------------------------------------------------- the bytes */

static void set_checksum(bytes *b) { seal_bytes(b->data, b->size); }

/* Loads bytes in memory that ends with them. If they are accepted, the call can be ended. */
static attn_status try_bytes(const attn_sdpa_args *a, const bytes *b, size_t size)
{
    attn_sdpa_state *s = NULL;
    attn_error err = {0};
    unsigned char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, b->data, size);
    const attn_status status = attn_sdpa_load(NULL, a, NULL, copy, size, &s, &err);
    assert_int_equal(err.status, status);
    free(copy);
    if (status != ATTN_OK)
        assert_null(s);
    for (int i = 0; status == ATTN_OK && i < 3 * (PIECES + 1) + 1 && step(s); i++)
        assert_number(i, <, 3 * (PIECES + 1));
    attn_sdpa_end(s);
    return status;
}

static void test_prefixes(void **state)
{
    (void)state;
    const attn_sdpa_args a = make_args();
    bytes b = saved_after(NULL, &a, PIECES + 2);
    for (size_t n = 0; n < b.size; n += n < 600 || n + 600 > b.size ? 1 : 97)
        assert_int_equal(try_bytes(&a, &b, n), ATTN_ERR_FILE);
    put(&b, "", 1);
    assert_int_equal(try_bytes(&a, &b, b.size), ATTN_ERR_FILE);
    bytes_free(&b);
}

/* Every bit of the head is flipped, and bits elsewhere: refused. With a checksum that fits, the
 * bits of the head are still refused, and other numbers do no harm. */
static void test_flipped_bits(void **state)
{
    (void)state;
    const attn_sdpa_args a = make_args();
    bytes b = saved_after(NULL, &a, PIECES + 2); /* swept again: all parts of the format */
    assert_int_equal(try_bytes(&a, &b, b.size), ATTN_OK);
    const size_t end = 128 + 64;
    for (size_t bit = 0; bit < 8 * b.size; bit += bit < 8 * end ? 1 : 8009) {
        describe_case("bit %zu", bit);
        b.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(try_bytes(&a, &b, b.size), ATTN_ERR_FILE);
        if (bit / 8 < b.size - 8) {
            set_checksum(&b);
            const attn_status status = try_bytes(&a, &b, b.size);
            /* only the position may be another one, if it also has an open chunk of this size */
            if (bit / 8 < 120)
                assert_int_not_equal(status, ATTN_OK);
        }
        b.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        set_checksum(&b);
    }
    bytes_free(&b);
}

/* Bytes that no state has, with a checksum that fits. */
static void test_head(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        int bytes;
        uint64_t x;
        attn_status status;
        const char *argument;
    } cases[] = {
        {0, 1, 0, ATTN_ERR_FILE, "bytes"},           {8, 4, 2, ATTN_ERR_FILE, "bytes"},
        {12, 4, 1 << 16, ATTN_ERR_FILE, "bytes"},    {16, 8, 'x', ATTN_ERR_UNSUPPORTED, "ctx"},
        {32, 4, ATTN_F64, ATTN_ERR_DTYPE, "q"},      {32, 4, 1000, ATTN_ERR_DTYPE, "q"},
        {36, 2, 3, ATTN_ERR_FILE, "bytes"},          {36, 2, 2, ATTN_ERR_FILE, "bytes"},
        {38, 2, 0, ATTN_ERR_FILE, "bytes"},          {38, 2, 3, ATTN_ERR_FILE, "bytes"},
        {40, 8, UINT64_MAX, ATTN_ERR_SHAPE, "args"}, {120, 8, 100, ATTN_ERR_FILE, "bytes"},
        {120, 8, 1024, ATTN_ERR_FILE, "bytes"},      {120, 8, UINT64_MAX, ATTN_ERR_FILE, "bytes"},
        {128, 1, ATTN_F32, ATTN_ERR_FILE, "bytes"},  {128, 1, 5, ATTN_ERR_FILE, "bytes"},
    };
    const attn_sdpa_args a = make_args();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes b = saved_after(NULL, &a, 1);
        describe_case("%" PRIu64 " at %zu", cases[i].x, cases[i].at);
        for (int n = 0; n < cases[i].bytes; n++)
            b.data[cases[i].at + (size_t)n] = (unsigned char)(cases[i].x >> 8 * n);
        set_checksum(&b);
        expect_no_load("head", NULL, &a, NULL, &b, cases[i].status, cases[i].argument);
        bytes_free(&b);
    }
}

/* --------------------------------------------------------------------------------- failures */

static int writes_left;

static int write_until(void *user, const void *data, size_t n)
{
    return writes_left-- > 0 ? keep_bytes(user, data, n) : 1;
}

/* Each write fails once, and the state can still be saved. */
static void test_write_fails(void **state)
{
    (void)state;
    const attn_sdpa_args a = make_args();
    const test_output none[] = {{NULL, 0}};
    attn_sdpa_state *s;
    attn_error err;
    bytes b = saved_after(NULL, &a, PIECES + 2);
    assert_int_equal(attn_sdpa_begin(NULL, &a, NULL, &s, NULL), ATTN_OK);
    for (int i = 0; i < PIECES + 2; i++)
        step(s);
    int failures = 0;
    for (;; failures++) {
        bytes part = {0};
        writes_left = failures;
        const attn_status status = attn_sdpa_save(s, write_until, &part, &err);
        if (status != ATTN_OK) {
            expect_bad_argument("a write", status, ATTN_ERR_FILE, &err, "write", none);
        } else {
            assert_int_equal(part.size, b.size);
            assert_memory_equal(part.data, b.data, b.size);
        }
        bytes_free(&part);
        if (status == ATTN_OK)
            break;
    }
    assert_number(failures, >, 20);
    expect_bad_argument("no write", attn_sdpa_save(s, NULL, NULL, &err), ATTN_ERR_ARGUMENT, &err,
                        "write", none);
    expect_bad_argument("no state", attn_sdpa_save(NULL, keep_bytes, &b, &err), ATTN_ERR_ARGUMENT,
                        &err, "state", none);
    expect_bad_argument("no out", attn_sdpa_load(NULL, &a, NULL, b.data, b.size, NULL, &err),
                        ATTN_ERR_ARGUMENT, &err, "out", none);
    attn_sdpa_end(s);
    const bytes no_bytes = {0};
    expect_no_load("no bytes", NULL, &a, NULL, &no_bytes, ATTN_ERR_ARGUMENT, "bytes");
    bytes_free(&b);
}

/* Each allocation of attn_sdpa_load fails once: nothing is written, nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    const attn_sdpa_args a = make_args();
    counted_memory memory = {0};
    const attn_context_options o = counted_options(&memory, 1);
    attn_context *ctx;
    attn_sdpa_state *s;
    bytes b = saved_after(NULL, &a, 2);
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    const long before = memory.blocks;
    for (memory.fail_at = 1;; memory.fail_at++) {
        attn_error err;
        memory.calls = 0;
        const attn_status status = attn_sdpa_load(ctx, &a, NULL, b.data, b.size, &s, &err);
        if (status == ATTN_OK)
            break;
        assert_int_equal(status, ATTN_ERR_MEMORY);
        assert_null(s);
        assert_int_equal(memory.blocks, before);
    }
    assert_number(memory.fail_at, >, 2);
    attn_sdpa_end(s);
    attn_context_destroy(ctx);
    assert_int_equal(memory.blocks, 0);
    bytes_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_place),   cmocka_unit_test(test_no_components),
        cmocka_unit_test(test_other_calls),  cmocka_unit_test(test_other_lengths),
        cmocka_unit_test(test_other_isa),    cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_flipped_bits), cmocka_unit_test(test_head),
        cmocka_unit_test(test_write_fails),  cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
