/* Every bad argument of attn_sdpa_forward and attn_sdpa_plan gives an error and writes nothing.
 *
 * The error has the status, the argument's name and one line of text. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "support/argument_errors.h"
#include "plan/plan.h"
#include "attn.h"

enum { B = 2, H = 4, HK = 2, T = 5, S = 7, D = 8, DV = 6 };

static float q[B * H * T * D], k[B * HK * S * D], v[B * HK * S * DV];
static float out[B * H * T * DV], lse[B * H * T], scores[B * H * T * S], mask[B * H * T * S];
static char room[1 << 16];
static int64_t lengths[B], cu_q[3], cu_k[3];
static attn_tensor t_mask, t_lse, t_scores;

static attn_sdpa_args good(void)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, B, H, T, D), a.k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
    a.v = attn_bhtd(v, ATTN_F32, B, HK, S, DV), a.out = attn_bhtd(out, ATTN_F32, B, H, T, DV);
    t_mask = attn_bhtd(mask, ATTN_F32, B, H, T, S);
    t_lse = attn_bhtd(lse, ATTN_F32, B, H, T, 1);
    t_scores = attn_bhtd(scores, ATTN_F32, B, H, T, S);
    lengths[0] = lengths[1] = S;
    cu_q[0] = cu_k[0] = 0, cu_q[1] = 2, cu_k[1] = 3, cu_q[2] = T, cu_k[2] = S;
    return a;
}

/* Each spoils one thing. */
#define SPOIL(name, what)                                                                          \
    static void name(attn_sdpa_args *a) { what; }

SPOIL(nothing, (void)a)
SPOIL(size_small, a->struct_size = 8)
SPOIL(size_zero, a->struct_size = 0)
SPOIL(q_dtype, a->q.dtype = a->k.dtype = a->v.dtype = ATTN_I64)
SPOIL(q_bool, a->q.dtype = a->k.dtype = a->v.dtype = ATTN_BOOL)
SPOIL(q_unknown, a->q.dtype = (attn_dtype)99)
SPOIL(k_dtype, a->k.dtype = ATTN_F16)
SPOIL(v_dtype, a->v.dtype = ATTN_F64)
SPOIL(out_dtype, a->out.dtype = ATTN_F16)
SPOIL(out_bool, a->out.dtype = ATTN_BOOL)
SPOIL(q_null, a->q.data = NULL)
SPOIL(k_null, a->k.data = NULL)
SPOIL(v_null, a->v.data = NULL)
SPOIL(out_null, a->out.data = NULL)
SPOIL(q_negative, a->q.shape[2] = -1)
SPOIL(k_batch, a->k.shape[0] = 1)
SPOIL(v_batch, a->v.shape[0] = 1)
SPOIL(k_heads, a->k.shape[1] = a->v.shape[1] = 3)
SPOIL(k_no_heads, a->k.shape[1] = a->v.shape[1] = 0)
SPOIL(v_heads, a->v.shape[1] = 1)
SPOIL(k_size, a->k.shape[3] = D - 1)
SPOIL(v_keys, a->v.shape[2] = S - 1)
SPOIL(out_rows, a->out.shape[2] = T - 1)
SPOIL(out_heads, a->out.shape[1] = H - 1)
SPOIL(out_batch, a->out.shape[0] = 1)
SPOIL(out_width, a->out.shape[3] = DV - 1)
SPOIL(out_overlaps, a->out.stride[2] = DV - 1)
SPOIL(out_repeats, a->out.stride[1] = 0)
SPOIL(out_stands, a->out.stride[3] = 0)
SPOIL(q_far, a->q.stride[0] = INT64_MAX / 2)
SPOIL(k_huge, a->k.shape[2] = a->v.shape[2] = INT64_MAX)
SPOIL(scale_nan, a->scale = NAN)
SPOIL(scale_inf, a->scale = -INFINITY)
SPOIL(cap_negative, a->softcap = -1)
SPOIL(cap_nan, a->softcap = NAN)
SPOIL(cap_inf, a->softcap = INFINITY)
SPOIL(p_one, a->dropout = 1)
SPOIL(p_negative, a->dropout = -0.1)
SPOIL(p_nan, a->dropout = NAN)
SPOIL(precision, a->precision = (attn_precision)7)
SPOIL(causal, a->causal = (attn_causal)4)
SPOIL(causal_negative, a->causal = (attn_causal)-1)
SPOIL(causal_with_diagonal, a->causal = (attn_causal)4; a->diagonal = ATTN_DIAGONAL_BOTTOM_RIGHT)
SPOIL(window_left, a->window_left = -2)
SPOIL(window_right, a->window_right = INT64_MIN)
SPOIL(length_negative, lengths[1] = -1; a->key_lengths = lengths)
SPOIL(length_large, lengths[1] = S + 1; a->key_lengths = lengths)
SPOIL(mask_dtype, t_mask.dtype = ATTN_I64; a->mask = &t_mask)
SPOIL(mask_null, t_mask.data = NULL; a->mask = &t_mask)
SPOIL(mask_batch, t_mask.shape[0] = 3; a->mask = &t_mask)
SPOIL(mask_heads, t_mask.shape[1] = 2; a->mask = &t_mask)
SPOIL(mask_rows, t_mask.shape[2] = 2; a->mask = &t_mask)
SPOIL(mask_keys, t_mask.shape[3] = 0; a->mask = &t_mask)
SPOIL(packed, a->cu_seqlens_q = cu_q; a->cu_seqlens_k = cu_k; a->sequences = 2)
SPOIL(packed_start, packed(a); cu_q[0] = 1)
SPOIL(packed_falls, packed(a); cu_k[1] = S + 1)
SPOIL(packed_end, packed(a); cu_k[2] = S + 1)
SPOIL(packed_end_q, packed(a); cu_q[2] = T + 1)
SPOIL(packed_negative, packed(a); cu_q[1] = -1)
SPOIL(packed_half, packed(a); a->cu_seqlens_k = NULL)
SPOIL(packed_other_half, packed(a); a->cu_seqlens_q = NULL)
SPOIL(packed_count, packed(a); a->sequences = -1)
SPOIL(packed_lengths, packed(a); a->key_lengths = lengths)
SPOIL(lse_dtype, t_lse.dtype = ATTN_F16; a->lse = &t_lse)
SPOIL(lse_shape, t_lse.shape[2] = T - 1; a->lse = &t_lse)
SPOIL(lse_batch, t_lse.shape[0] = B - 1; a->lse = &t_lse)
SPOIL(lse_null, t_lse.data = NULL; a->lse = &t_lse)
SPOIL(lse_repeats, t_lse.stride[2] = 0; a->lse = &t_lse)
SPOIL(scores_dtype, t_scores.dtype = ATTN_BOOL; a->scores = &t_scores)
SPOIL(scores_shape, t_scores.shape[3] = S - 1; a->scores = &t_scores)
SPOIL(scores_repeats, t_scores.stride[0] = 0; a->scores = &t_scores)
SPOIL(scores_stage, a->scores = &t_scores; a->scores_stage = (attn_stage)4)
SPOIL(workspace, a->workspace = room; a->workspace_bytes = 16)

static const struct {
    const char *name;
    void (*spoil)(attn_sdpa_args *);
    attn_status status;
    const char *argument;
} rows[] = {
    {"size small", size_small, ATTN_ERR_ARGUMENT, "struct_size"},
    {"size zero", size_zero, ATTN_ERR_ARGUMENT, "struct_size"},
    {"q i64", q_dtype, ATTN_ERR_DTYPE, "q"},
    {"q bool", q_bool, ATTN_ERR_DTYPE, "q"},
    {"q unknown", q_unknown, ATTN_ERR_DTYPE, "q"},
    {"k dtype", k_dtype, ATTN_ERR_DTYPE, "k"},
    {"v dtype", v_dtype, ATTN_ERR_DTYPE, "v"},
    {"out dtype", out_dtype, ATTN_ERR_DTYPE, "out"},
    {"out bool", out_bool, ATTN_ERR_DTYPE, "out"},
    {"q null", q_null, ATTN_ERR_ARGUMENT, "q"},
    {"k null", k_null, ATTN_ERR_ARGUMENT, "k"},
    {"v null", v_null, ATTN_ERR_ARGUMENT, "v"},
    {"out null", out_null, ATTN_ERR_ARGUMENT, "out"},
    {"q negative", q_negative, ATTN_ERR_SHAPE, "q"},
    {"k batch", k_batch, ATTN_ERR_SHAPE, "k"},
    {"v batch", v_batch, ATTN_ERR_SHAPE, "v"},
    {"k heads", k_heads, ATTN_ERR_SHAPE, "k"},
    {"k no heads", k_no_heads, ATTN_ERR_SHAPE, "k"},
    {"v heads", v_heads, ATTN_ERR_SHAPE, "v"},
    {"k size", k_size, ATTN_ERR_SHAPE, "k"},
    {"v keys", v_keys, ATTN_ERR_SHAPE, "v"},
    {"out rows", out_rows, ATTN_ERR_SHAPE, "out"},
    {"out heads", out_heads, ATTN_ERR_SHAPE, "out"},
    {"out batch", out_batch, ATTN_ERR_SHAPE, "out"},
    {"out width", out_width, ATTN_ERR_SHAPE, "out"},
    {"out overlaps", out_overlaps, ATTN_ERR_STRIDE, "out"},
    {"out repeats", out_repeats, ATTN_ERR_STRIDE, "out"},
    {"out stands", out_stands, ATTN_ERR_STRIDE, "out"},
    {"q far", q_far, ATTN_ERR_LIMIT, "q"},
    {"k huge", k_huge, ATTN_ERR_LIMIT, "k"},
    {"scale NaN", scale_nan, ATTN_ERR_ARGUMENT, "scale"},
    {"scale inf", scale_inf, ATTN_ERR_ARGUMENT, "scale"},
    {"cap negative", cap_negative, ATTN_ERR_ARGUMENT, "softcap"},
    {"cap NaN", cap_nan, ATTN_ERR_ARGUMENT, "softcap"},
    {"cap inf", cap_inf, ATTN_ERR_ARGUMENT, "softcap"},
    {"p one", p_one, ATTN_ERR_ARGUMENT, "dropout"},
    {"p negative", p_negative, ATTN_ERR_ARGUMENT, "dropout"},
    {"p NaN", p_nan, ATTN_ERR_ARGUMENT, "dropout"},
    {"precision", precision, ATTN_ERR_ARGUMENT, "precision"},
    {"causal", causal, ATTN_ERR_ARGUMENT, "causal"},
    {"causal negative", causal_negative, ATTN_ERR_ARGUMENT, "causal"},
    {"causal with diagonal", causal_with_diagonal, ATTN_ERR_ARGUMENT, "causal"},
    {"window left", window_left, ATTN_ERR_ARGUMENT, "window"},
    {"window right", window_right, ATTN_ERR_ARGUMENT, "window"},
    {"length negative", length_negative, ATTN_ERR_ARGUMENT, "key_lengths"},
    {"length large", length_large, ATTN_ERR_ARGUMENT, "key_lengths"},
    {"mask dtype", mask_dtype, ATTN_ERR_DTYPE, "mask"},
    {"mask null", mask_null, ATTN_ERR_ARGUMENT, "mask"},
    {"mask batch", mask_batch, ATTN_ERR_SHAPE, "mask"},
    {"mask heads", mask_heads, ATTN_ERR_SHAPE, "mask"},
    {"mask rows", mask_rows, ATTN_ERR_SHAPE, "mask"},
    {"mask keys", mask_keys, ATTN_ERR_SHAPE, "mask"},
    {"packed start", packed_start, ATTN_ERR_ARGUMENT, "cu_seqlens_q"},
    {"packed falls", packed_falls, ATTN_ERR_ARGUMENT, "cu_seqlens_k"},
    {"packed end", packed_end, ATTN_ERR_ARGUMENT, "cu_seqlens_k"},
    {"packed end q", packed_end_q, ATTN_ERR_ARGUMENT, "cu_seqlens_q"},
    {"packed negative", packed_negative, ATTN_ERR_ARGUMENT, "cu_seqlens_q"},
    {"packed half", packed_half, ATTN_ERR_ARGUMENT, "cu_seqlens_k"},
    {"packed other half", packed_other_half, ATTN_ERR_ARGUMENT, "cu_seqlens_q"},
    {"packed count", packed_count, ATTN_ERR_ARGUMENT, "sequences"},
    {"packed lengths", packed_lengths, ATTN_ERR_ARGUMENT, "key_lengths"},
    {"lse dtype", lse_dtype, ATTN_ERR_DTYPE, "lse"},
    {"lse shape", lse_shape, ATTN_ERR_SHAPE, "lse"},
    {"lse batch", lse_batch, ATTN_ERR_SHAPE, "lse"},
    {"lse null", lse_null, ATTN_ERR_ARGUMENT, "lse"},
    {"lse repeats", lse_repeats, ATTN_ERR_STRIDE, "lse"},
    {"scores dtype", scores_dtype, ATTN_ERR_DTYPE, "scores"},
    {"scores shape", scores_shape, ATTN_ERR_SHAPE, "scores"},
    {"scores repeats", scores_repeats, ATTN_ERR_STRIDE, "scores"},
    {"scores stage", scores_stage, ATTN_ERR_ARGUMENT, "scores_stage"},
};

static const test_output outputs[] = {
    {out, sizeof out}, {lse, sizeof lse}, {scores, sizeof scores}, {room, sizeof room}, {NULL, 0}};

static void blank(void) { blank_all(outputs); }

static void expect(const char *name, attn_status status, attn_status want, const attn_error *err,
                   const char *argument)
{
    expect_bad_argument(name, status, want, err, argument, outputs);
}

static void test_forward_and_plan(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        describe_case("%s", rows[i].name);
        attn_sdpa_args a = good();
        attn_plan_info info = ATTN_PLAN_INFO_INIT;
        attn_error err = {.status = ATTN_OK};
        rows[i].spoil(&a);
        blank();
        attn_status status = attn_sdpa_forward(NULL, &a, &err);
        expect(rows[i].name, status, rows[i].status, &err, rows[i].argument);
        err = (attn_error){.status = ATTN_OK};
        status = attn_sdpa_plan(NULL, &a, &info, &err);
        expect(rows[i].name, status, rows[i].status, &err, rows[i].argument);
        assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), rows[i].status); /* err may be NULL */
        assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), rows[i].status);
    }
}

/* What the rows spoil works unspoiled: or the table would prove nothing. */
static void test_good(void **state)
{
    (void)state;
    void (*const fine[])(attn_sdpa_args *) = {nothing, packed};
    for (size_t i = 0; i < 2; i++)
        for (int more = 0; more < 2; more++) {
            attn_sdpa_args a = good();
            attn_plan_info info = ATTN_PLAN_INFO_INIT;
            attn_error err;
            memset(&err, 0x5A, sizeof err);
            const attn_error before = err;
            if (more) {
                a.mask = &t_mask, a.lse = &t_lse, a.scores = &t_scores;
                a.key_lengths = i == 0 ? lengths : NULL;
            }
            fine[i](&a);
            blank();
            assert_int_equal(attn_sdpa_plan(NULL, &a, &info, &err), ATTN_OK);
            assert_true(is_blank(out, sizeof out));
            assert_int_equal(attn_sdpa_forward(NULL, &a, &err), ATTN_OK);
            assert_false(is_blank(out, sizeof out));
            assert_int_equal(is_blank(lse, sizeof lse), !more);
            assert_int_equal(is_blank(scores, sizeof scores), !more);
            assert_memory_equal(&err, &before, sizeof err); /* written only on failure */
            assert_number(info.scratch_bytes, >, 0);
            assert_number(info.tasks, >, 0);
            assert_int_equal(info.threads, 1);
            assert_number(info.flop, >, 0);
            assert_number(info.bytes, >=, (double)(sizeof q + sizeof k + sizeof v));
            assert_true(strstr(info.kernel, attn_context_isa(NULL)) == info.kernel);
        }
}

static void test_null_and_workspace(void **state)
{
    (void)state;
    attn_error err = {.status = ATTN_OK};
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    blank();
    expect("NULL", attn_sdpa_forward(NULL, NULL, &err), ATTN_ERR_ARGUMENT, &err, "args");
    attn_sdpa_args a = good();
    workspace(&a); /* refused by the call, not by the plan, which says how large it must be */
    expect("workspace", attn_sdpa_forward(NULL, &a, &err), ATTN_ERR_ARGUMENT, &err, "workspace");
    assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), ATTN_OK);
    assert_number(info.scratch_bytes, >, 16);
    assert_number(info.scratch_bytes, <, sizeof room);
    a.workspace_bytes = info.scratch_bytes;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    assert_true(is_blank(room + info.scratch_bytes, sizeof room - info.scratch_bytes));
}

/* The subject is named once: it was "k q has H=5 heads, ...". */
static void test_message_of_heads(void **state)
{
    (void)state;
    attn_error err = {.status = ATTN_OK};
    attn_sdpa_args a = good();
    const int64_t Hk = a.q.shape[1] + 1;
    a.k.shape[1] = a.v.shape[1] = Hk;
    char want[sizeof err.message];
    snprintf(want, sizeof want, "k has Hk=%lld heads and q has H=%lld; H must be a multiple of Hk",
             (long long)Hk, (long long)a.q.shape[1]);
    assert_int_equal(attn_sdpa_forward(NULL, &a, &err), ATTN_ERR_SHAPE);
    assert_string_equal(err.argument, "k");
    assert_string_equal(err.message, want);
}

/* The subject is named once: it was "k q is f16, ...". */
static void test_message_of_diagonal(void **state)
{
    (void)state;
    static const char *const allowed[] = {"0", "0 or 1", "0 or 2"};
    for (int causal = 1; causal <= 3; causal++)
        for (int diagonal = 1; diagonal <= 2; diagonal++) {
            describe_case("causal %d, diagonal %d", causal, diagonal);
            attn_sdpa_args a = good();
            a.causal = (attn_causal)causal, a.diagonal = (attn_diagonal)diagonal;
            attn_error err = {.status = ATTN_OK};
            const attn_status status = attn_sdpa_forward(NULL, &a, &err);
            if (causal == diagonal + 1) {
                assert_int_equal(status, ATTN_OK);
                continue;
            }
            char want[96];
            snprintf(want, sizeof want,
                     "diagonal is %d and causal is %d; with this causal, diagonal must be %s",
                     diagonal, causal, allowed[causal - 1]);
            assert_string_equal(err.message, want);
        }
}

static void test_message_of_mixed_dtypes(void **state)
{
    (void)state;
    attn_error err = {.status = ATTN_OK};
    attn_sdpa_args a = good();
    k_dtype(&a);
    assert_int_equal(attn_sdpa_forward(NULL, &a, &err), ATTN_ERR_DTYPE);
    assert_string_equal(err.message, "k is f16 and q is f32; q, k and v must share one dtype");
    a = good();
    v_dtype(&a);
    assert_int_equal(attn_sdpa_forward(NULL, &a, &err), ATTN_ERR_DTYPE);
    assert_string_equal(err.message, "v is f64 and q is f32; q, k and v must share one dtype");
}

/* A caller with a newer header: its fields are refused unless they are 0. With an older one: what
 * its struct lacks has its default. */
static void test_struct_size(void **state)
{
    (void)state;
    struct {
        attn_sdpa_args args;
        double later[2];
    } newer = {.args = good()};
    newer.args.struct_size = sizeof newer;
    assert_int_equal(attn_sdpa_forward(NULL, &newer.args, NULL), ATTN_OK);
    newer.later[1] = 1;
    attn_error err = {.status = ATTN_OK};
    blank();
    expect("newer", attn_sdpa_forward(NULL, &newer.args, &err), ATTN_ERR_ARGUMENT, &err,
           "struct_size");
    attn_sdpa_args older = good();
    older.struct_size = offsetof(attn_sdpa_args, mask);
    older.mask = (const attn_tensor *)16; /* beyond its end: never looked at */
    assert_int_equal(attn_sdpa_forward(NULL, &older, NULL), ATTN_OK);
}

static attn_tensor view(float *data, int64_t b, int64_t h, int64_t i, int64_t j)
{
    bool empty = b == 0 || h == 0 || i == 0 || j == 0;
    return attn_bhtd(empty ? NULL : data, ATTN_F32, b, h, i, j);
}

/* Sizes of 0 are no error: nothing to do, or rows of zeros. */
static void test_empty(void **state)
{
    (void)state;
    for (int which = 0; which < 6; which++) {
        int64_t n[6] = {B, H, T, S, D, DV};
        n[which] = 0;
        attn_sdpa_args a = good();
        int64_t heads = which == 1 ? 0 : HK;
        a.q = view(q, n[0], n[1], n[2], n[4]), a.k = view(k, n[0], heads, n[3], n[4]);
        a.v = view(v, n[0], heads, n[3], n[5]), a.out = view(out, n[0], n[1], n[2], n[5]);
        blank();
        attn_error err = {.status = ATTN_OK};
        if (attn_sdpa_forward(NULL, &a, &err) != ATTN_OK)
            fail_msg("size %d of 0: %s", which, err.message);
        if (which == 3) { /* no keys */
            for (size_t i = 0; i < sizeof out / sizeof *out; i++) {
                assert_number(out[i], ==, 0);
                assert_true(!signbit(out[i]));
            }
        } else if (which != 4) {
            assert_true(is_blank(out, sizeof out));
        } else { /* D = 0: every score is 0, every weight 1/S */
            assert_near(out[0], 0, <, 1e-6f);
        }
    }
}

static void test_dropout_mask(void **state)
{
    (void)state;
    attn_error err = {.status = ATTN_OK};
    attn_tensor t = attn_bhtd(out, ATTN_F32, 1, 1, 2, 2);
    blank();
    expect("dtype", attn_dropout_mask(1, 0.5, &t, &err), ATTN_ERR_DTYPE, &err, "out");
    t.dtype = ATTN_BOOL;
    expect("p", attn_dropout_mask(1, 1, &t, &err), ATTN_ERR_ARGUMENT, &err, "p");
    expect("p", attn_dropout_mask(1, NAN, &t, &err), ATTN_ERR_ARGUMENT, &err, "p");
    t.stride[2] = 0;
    expect("stride", attn_dropout_mask(1, 0.5, &t, &err), ATTN_ERR_STRIDE, &err, "out");
    expect("NULL", attn_dropout_mask(1, 0.5, NULL, &err), ATTN_ERR_ARGUMENT, &err, "out");
}

/* Dropout numbers queries, keys / 8 and batch x heads with 32 bits each: the largest numbers that
 * fit pass the check of arguments, the next do not; without dropout they do. */
static void test_dropout_limits(void **state)
{
    (void)state;
    enum { FITS = 1, TOO_LARGE = 0 };
    const int64_t most = UINT32_MAX;
    static float x;
    const struct {
        int64_t sizes[4]; /* B, H, T, S */
        int fits;
    } cases[] = {
        {{1, 1, most, 1}, FITS},         {{1, 1, most + 1, 1}, TOO_LARGE},
        {{1, 1, 1, 8 * most + 7}, FITS}, {{1, 1, 1, 8 * most + 8}, TOO_LARGE},
        {{1, most, 1, 1}, FITS},         {{1, most + 1, 1, 1}, TOO_LARGE},
        {{most, 1, 1, 1}, FITS},         {{most + 1, 1, 1, 1}, TOO_LARGE},
        {{2, most / 2, 1, 1}, FITS},     {{2, most / 2 + 1, 1, 1}, TOO_LARGE},
        {{65536, 65535, 1, 1}, FITS},    {{65536, 65536, 1, 1}, TOO_LARGE},
        {{65537, 65535, 1, 1}, FITS},    {{65537, 65536, 1, 1}, TOO_LARGE},
        {{0, most + 1, 1, 1}, FITS},     {{0, 1, most + 1, 1}, TOO_LARGE},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases * 3; n++) {
        static const double rates[] = {0, 0.5, 1e-6};
        const int64_t *s = cases[n / 3].sizes;
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        /* Dv = 0: no output, and keys whose strides are 0 */
        const attn_tensor none = {&x, ATTN_F32, {s[0], s[1], s[2], 0}, {0}};
        a.q = none, a.k = none, a.v = none, a.out = none;
        a.k.shape[2] = a.v.shape[2] = s[3];
        a.q.shape[3] = a.k.shape[3] = 1;
        a.dropout = rates[n % 3];
        static attni_plan plan;
        attn_error err = {.status = ATTN_OK};
        const attn_status status = attni_sdpa_check(&plan, &a, false, NULL, &err);
        if (cases[n / 3].fits || a.dropout == 0) {
            if (status != ATTN_OK)
                fail_msg("case %zu: %s", n, err.message);
        } else {
            blank();
            expect("dropout", status, ATTN_ERR_LIMIT, &err, "dropout");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_forward_and_plan),
        cmocka_unit_test(test_null_and_workspace),
        cmocka_unit_test(test_message_of_heads),
        cmocka_unit_test(test_message_of_diagonal),
        cmocka_unit_test(test_message_of_mixed_dtypes),
        cmocka_unit_test(test_struct_size),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_dropout_mask),
        cmocka_unit_test(test_dropout_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
