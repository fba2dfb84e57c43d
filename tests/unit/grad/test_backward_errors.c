/* Every bad argument of attn_sdpa_backward and its plan gives an error and writes nothing.
 *
 * link: -Wl,--wrap=aligned_alloc
 *
 * The error has the status, the argument's name and one line of text. The same holds if memory
 * fails. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/argument_errors.h"
#include "attn.h"

enum { B = 2, H = 4, HK = 2, T = 5, S = 7, D = 8, DV = 6 };

static float q[B * H * T * D], k[B * HK * S * D], v[B * HK * S * DV], out[B * H * T * DV];
static float lse[B * H * T], mask[B * H * T * S], dout[B * H * T * DV], dlse[B * H * T];
static float dq[B * H * T * D], dk[B * HK * S * D], dv[B * HK * S * DV], dmask[B * H * T * S];
static float slopes[H], sinks[H];
static double dslopes[H], dsinks[H];
static char room[1 << 17];
static attn_tensor t_mask, t_lse, t_dlse, t_dmask;
static attn_cache *cache;

typedef struct both {
    attn_sdpa_args a;
    attn_sdpa_grads g;
} both;

static both good(void)
{
    both x = {ATTN_SDPA_ARGS_INIT, ATTN_SDPA_GRADS_INIT};
    x.a.q = attn_bhtd(q, ATTN_F32, B, H, T, D), x.a.k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
    x.a.v = attn_bhtd(v, ATTN_F32, B, HK, S, DV), x.a.out = attn_bhtd(out, ATTN_F32, B, H, T, DV);
    x.g.dout = attn_bhtd(dout, ATTN_F32, B, H, T, DV);
    x.g.dq = attn_bhtd(dq, ATTN_F32, B, H, T, D), x.g.dk = attn_bhtd(dk, ATTN_F32, B, HK, S, D);
    x.g.dv = attn_bhtd(dv, ATTN_F32, B, HK, S, DV);
    t_mask = attn_bhtd(mask, ATTN_F32, B, 1, T, S);
    t_dmask = attn_bhtd(dmask, ATTN_F32, B, 1, T, S);
    t_lse = attn_bhtd(lse, ATTN_F32, B, H, T, 1);
    t_dlse = attn_bhtd(dlse, ATTN_F32, B, H, T, 1);
    x.a.mask = &t_mask, x.a.lse = &t_lse, x.a.alibi_slopes = slopes, x.a.sink_logits = sinks;
    x.g.dlse = &t_dlse, x.g.dmask = &t_dmask;
    x.g.dalibi_slopes = dslopes, x.g.dsink_logits = dsinks;
    return x;
}

/* Each spoils one thing. */
#define SPOIL(name, what)                                                                          \
    static void name(both *x)                                                                      \
    {                                                                                              \
        (void)x;                                                                                   \
        what;                                                                                      \
    }

SPOIL(args_size, x->a.struct_size = 8)
SPOIL(grads_size, x->g.struct_size = 0)
SPOIL(grads_small, x->g.struct_size = offsetof(attn_sdpa_grads, dv))
SPOIL(k_size, x->a.k.shape[3] = D - 1)
SPOIL(scale_nan, x->a.scale = NAN)
SPOIL(no_lse, x->a.lse = NULL)
SPOIL(lse_shape, t_lse.shape[2] = T - 1)
SPOIL(lse_dtype, t_lse.dtype = ATTN_BF16)
SPOIL(lse_null, t_lse.data = NULL)
SPOIL(out_null, x->a.out.data = NULL)
SPOIL(with_cache, x->a.cache = cache; x->a.k.data = x->a.v.data = NULL)
SPOIL(no_dout, memset(&x->g.dout, 0, sizeof x->g.dout))
SPOIL(dout_null, x->g.dout.data = NULL)
SPOIL(dout_dtype, x->g.dout.dtype = ATTN_F16)
SPOIL(dout_shape, x->g.dout.shape[3] = DV - 1)
SPOIL(dout_heads, x->g.dout.shape[1] = HK)
SPOIL(dlse_dtype, t_dlse.dtype = ATTN_F16)
SPOIL(dlse_shape, t_dlse.shape[3] = 2)
SPOIL(dlse_null, t_dlse.data = NULL)
SPOIL(dq_null, x->g.dq.data = NULL)
SPOIL(dq_dtype, x->g.dq.dtype = ATTN_I64)
SPOIL(dq_shape, x->g.dq.shape[3] = DV)
SPOIL(dq_repeats, x->g.dq.stride[1] = 0)
SPOIL(dk_dtype, x->g.dk.dtype = ATTN_BF16)
SPOIL(dk_heads, x->g.dk.shape[1] = 1)
SPOIL(dk_overlaps, x->g.dk.stride[2] = D - 1)
SPOIL(dv_shape, x->g.dv.shape[2] = S - 1)
SPOIL(dv_stands, x->g.dv.stride[3] = 0)
SPOIL(dmask_bool, t_mask.dtype = ATTN_BOOL)
SPOIL(dmask_none, x->a.mask = NULL)
SPOIL(dmask_shape, t_dmask.shape[0] = 1)
SPOIL(dmask_rows, t_dmask.shape[2] = 1)
SPOIL(dmask_dtype, t_dmask.dtype = ATTN_F16)
SPOIL(dmask_repeats, t_dmask.stride[3] = 0)
SPOIL(dalibi, x->a.alibi_slopes = NULL)
SPOIL(dsink, x->a.sink_logits = NULL)

static const struct {
    const char *name;
    void (*spoil)(both *);
    attn_status status;
    const char *argument;
} rows[] = {
    {"args size", args_size, ATTN_ERR_ARGUMENT, "struct_size"},
    {"grads size", grads_size, ATTN_ERR_ARGUMENT, "struct_size"},
    {"grads small", grads_small, ATTN_ERR_ARGUMENT, "struct_size"},
    {"k size", k_size, ATTN_ERR_SHAPE, "k"},
    {"scale NaN", scale_nan, ATTN_ERR_ARGUMENT, "scale"},
    {"no lse", no_lse, ATTN_ERR_ARGUMENT, "lse"},
    {"lse shape", lse_shape, ATTN_ERR_SHAPE, "lse"},
    {"lse dtype", lse_dtype, ATTN_ERR_DTYPE, "lse"},
    {"lse null", lse_null, ATTN_ERR_ARGUMENT, "lse"},
    {"out null", out_null, ATTN_ERR_ARGUMENT, "out"},
    {"cache", with_cache, ATTN_ERR_ARGUMENT, "cache"},
    {"no dout", no_dout, ATTN_ERR_DTYPE, "dout"},
    {"dout null", dout_null, ATTN_ERR_ARGUMENT, "dout"},
    {"dout dtype", dout_dtype, ATTN_ERR_DTYPE, "dout"},
    {"dout shape", dout_shape, ATTN_ERR_SHAPE, "dout"},
    {"dout heads", dout_heads, ATTN_ERR_SHAPE, "dout"},
    {"dlse dtype", dlse_dtype, ATTN_ERR_DTYPE, "dlse"},
    {"dlse shape", dlse_shape, ATTN_ERR_SHAPE, "dlse"},
    {"dlse null", dlse_null, ATTN_ERR_ARGUMENT, "dlse"},
    {"dq null", dq_null, ATTN_ERR_ARGUMENT, "dq"},
    {"dq dtype", dq_dtype, ATTN_ERR_DTYPE, "dq"},
    {"dq shape", dq_shape, ATTN_ERR_SHAPE, "dq"},
    {"dq repeats", dq_repeats, ATTN_ERR_STRIDE, "dq"},
    {"dk dtype", dk_dtype, ATTN_ERR_DTYPE, "dk"},
    {"dk heads", dk_heads, ATTN_ERR_SHAPE, "dk"},
    {"dk overlaps", dk_overlaps, ATTN_ERR_STRIDE, "dk"},
    {"dv shape", dv_shape, ATTN_ERR_SHAPE, "dv"},
    {"dv stands", dv_stands, ATTN_ERR_STRIDE, "dv"},
    {"dmask of bool", dmask_bool, ATTN_ERR_ARGUMENT, "dmask"},
    {"dmask of none", dmask_none, ATTN_ERR_ARGUMENT, "dmask"},
    {"dmask shape", dmask_shape, ATTN_ERR_SHAPE, "dmask"},
    {"dmask rows", dmask_rows, ATTN_ERR_SHAPE, "dmask"},
    {"dmask dtype", dmask_dtype, ATTN_ERR_DTYPE, "dmask"},
    {"dmask repeats", dmask_repeats, ATTN_ERR_STRIDE, "dmask"},
    {"dalibi", dalibi, ATTN_ERR_ARGUMENT, "dalibi_slopes"},
    {"dsink", dsink, ATTN_ERR_ARGUMENT, "dsink_logits"},
};

/* ------------------------------------------------------------------------------ what is written */

static const test_output outputs[] = {{dq, sizeof dq},           {dk, sizeof dk},
                                      {dv, sizeof dv},           {dmask, sizeof dmask},
                                      {dslopes, sizeof dslopes}, {dsinks, sizeof dsinks},
                                      {room, sizeof room},       {NULL, 0}};

static void blank(void) { blank_all(outputs); }

static void expect(const char *name, attn_status status, attn_status want, const attn_error *err,
                   const char *argument)
{
    expect_bad_argument(name, status, want, err, argument, outputs);
}

static int create_cache(void **state)
{
    (void)state;
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    o.B = B, o.Hk = HK, o.D = D, o.Dv = DV, o.max_keys = S;
    return attn_cache_create(&o, &cache, NULL) == ATTN_OK ? 0 : -1;
}

static int destroy_cache(void **state)
{
    (void)state;
    attn_cache_destroy(cache);
    return 0;
}

static void test_arguments(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        describe_case("%s", rows[i].name);
        both x = good();
        attn_plan_info info = ATTN_PLAN_INFO_INIT;
        attn_error err = {.status = ATTN_OK};
        rows[i].spoil(&x);
        blank();
        attn_status status = attn_sdpa_backward(NULL, &x.a, &x.g, &err);
        expect(rows[i].name, status, rows[i].status, &err, rows[i].argument);
        err = (attn_error){.status = ATTN_OK};
        status = attn_sdpa_backward_plan(NULL, &x.a, &x.g, &info, &err);
        expect(rows[i].name, status, rows[i].status, &err, rows[i].argument);
        assert_int_equal(attn_sdpa_backward(NULL, &x.a, &x.g, NULL), rows[i].status);
    }
}

static double bytes_of(const attn_tensor *t)
{
    double n = (double)attn_dtype_size(t->dtype);
    for (int i = 0; i < 4; i++)
        n *= (double)t->shape[i];
    return n;
}

/* The bytes of all tensors that are read or written once. */
static void test_planned_bytes(void **state)
{
    (void)state;
    const both x = good();
    const attn_tensor *all[] = {&x.a.q,    &x.a.k,  &x.a.v,  &x.a.out, x.a.lse,   x.a.mask,
                                &x.g.dout, &x.g.dq, &x.g.dk, &x.g.dv,  x.g.dmask, NULL};
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    double want = 0;
    for (int i = 0; all[i]; i++)
        want += bytes_of(all[i]);
    assert_int_equal(attn_sdpa_backward_plan(NULL, &x.a, &x.g, &info, NULL), ATTN_OK);
    assert_true(info.bytes == want);
}

/* What the rows spoil works unspoiled, and with less asked for. */
static void test_good(void **state)
{
    (void)state;
    both x = good();
    attn_error err;
    memset(&err, 0x5A, sizeof err);
    const attn_error before = err;
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    blank();
    assert_int_equal(attn_sdpa_backward_plan(NULL, &x.a, &x.g, &info, &err), ATTN_OK);
    assert_true(all_blank(outputs));
    assert_number(info.scratch_bytes, >, 0);
    assert_int_equal(info.tasks, B * HK);
    assert_int_equal(info.threads, 1);
    assert_number(info.flop, ==, 2.0 * B * H * T * S * (3 * D + 2 * DV));
    assert_true(strstr(info.kernel, attn_context_isa(NULL)) == info.kernel);
    assert_int_equal(attn_sdpa_backward(NULL, &x.a, &x.g, &err), ATTN_OK);
    assert_memory_equal(&err, &before, sizeof err);
    assert_number(dq[0], ==, 0);
    assert_number(dk[0], ==, 0);
    assert_number(dv[0], ==, 0);
    assert_number(dmask[0], ==, 0);
    assert_number(dslopes[0], ==, 0);

    both none = {x.a, ATTN_SDPA_GRADS_INIT};
    none.g.dout = x.g.dout;
    blank();
    assert_int_equal(attn_sdpa_backward(NULL, &none.a, &none.g, &err), ATTN_OK);
    assert_true(all_blank(outputs));
    attn_sdpa_grads init;
    attn_sdpa_grads_init(&init);
    assert_memory_equal(&init, &(attn_sdpa_grads)ATTN_SDPA_GRADS_INIT, sizeof init);
}

static void test_null_and_workspace(void **state)
{
    (void)state;
    both x = good();
    attn_error err = {.status = ATTN_OK};
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    blank();
    expect("args", attn_sdpa_backward(NULL, NULL, &x.g, &err), ATTN_ERR_ARGUMENT, &err, "args");
    expect("grads", attn_sdpa_backward(NULL, &x.a, NULL, &err), ATTN_ERR_ARGUMENT, &err, "grads");
    expect("info", attn_sdpa_backward_plan(NULL, &x.a, &x.g, NULL, &err), ATTN_ERR_ARGUMENT, &err,
           "info");
    x.a.workspace = room;
    x.a.workspace_bytes = 16;
    expect("workspace", attn_sdpa_backward(NULL, &x.a, &x.g, &err), ATTN_ERR_ARGUMENT, &err,
           "workspace");
    assert_int_equal(attn_sdpa_backward_plan(NULL, &x.a, &x.g, &info, NULL), ATTN_OK);
    assert_number(info.scratch_bytes, >, 16);
    assert_number(info.scratch_bytes, <, sizeof room);
    x.a.workspace_bytes = info.scratch_bytes;
    assert_int_equal(attn_sdpa_backward(NULL, &x.a, &x.g, NULL), ATTN_OK);
    for (size_t i = info.scratch_bytes; i < sizeof room; i++)
        assert_int_equal(room[i], (char)0xA5);
}

/* A newer caller's fields are refused unless they are 0. */
static void test_struct_size(void **state)
{
    (void)state;
    struct {
        attn_sdpa_grads grads;
        double later[2];
    } newer = {.grads = good().g};
    both x = good();
    newer.grads.struct_size = sizeof newer;
    assert_int_equal(attn_sdpa_backward(NULL, &x.a, &newer.grads, NULL), ATTN_OK);
    newer.later[1] = 1;
    attn_error err = {.status = ATTN_OK};
    blank();
    expect("newer", attn_sdpa_backward(NULL, &x.a, &newer.grads, &err), ATTN_ERR_ARGUMENT, &err,
           "struct_size");
}

/* Sizes of 0: nothing to do, or zeros; NULL data for what has no element. */
static void test_empty(void **state)
{
    (void)state;
    for (int which = 0; which < 6; which++) {
        int64_t n[6] = {B, H, T, S, D, DV};
        n[which] = 0;
        const int64_t hk = which == 1 ? 0 : HK;
        const bool none = which < 2;
        both x = good();
        x.a.mask = NULL, x.g.dmask = NULL;
        x.a.q = attn_bhtd(none || which == 2 || which == 4 ? NULL : q, ATTN_F32, n[0], n[1], n[2],
                          n[4]);
        x.a.k =
            attn_bhtd(none || which == 3 || which == 4 ? NULL : k, ATTN_F32, n[0], hk, n[3], n[4]);
        x.a.v =
            attn_bhtd(none || which == 3 || which == 5 ? NULL : v, ATTN_F32, n[0], hk, n[3], n[5]);
        x.a.out = attn_bhtd(none || which == 2 || which == 5 ? NULL : out, ATTN_F32, n[0], n[1],
                            n[2], n[5]);
        t_lse = attn_bhtd(none || which == 2 ? NULL : lse, ATTN_F32, n[0], n[1], n[2], 1);
        t_dlse = attn_bhtd(none || which == 2 ? NULL : dlse, ATTN_F32, n[0], n[1], n[2], 1);
        x.g.dout = x.a.out, x.g.dq = x.a.q, x.g.dk = x.a.k, x.g.dv = x.a.v;
        x.g.dout.data = x.a.out.data ? dout : NULL, x.g.dq.data = x.a.q.data ? dq : NULL;
        x.g.dk.data = x.a.k.data ? dk : NULL, x.g.dv.data = x.a.v.data ? dv : NULL;
        blank();
        attn_error err = {.status = ATTN_OK};
        if (attn_sdpa_backward(NULL, &x.a, &x.g, &err) != ATTN_OK)
            fail_msg("size %d of 0: %s", which, err.message);
        for (int i = 0; i < B * H * T * D && x.g.dq.data; i++)
            assert_number(dq[i], ==, 0);
        for (int i = 0; i < B * HK * S * D && x.g.dk.data; i++)
            assert_number(dk[i], ==, 0);
    }
}

/* A batch of any size with neither queries nor keys: nothing to do, in no time and no memory. */
static void test_vast_and_empty(void **state)
{
    (void)state;
    const int64_t many = INT64_C(1) << 40;
    both x = good();
    x.a.mask = NULL, x.g.dmask = NULL, x.g.dlse = NULL;
    x.a.q = x.g.dq = attn_bhtd(NULL, ATTN_F32, many, H, 0, D);
    x.a.out = x.g.dout = attn_bhtd(NULL, ATTN_F32, many, H, 0, DV);
    x.a.k = x.g.dk = attn_bhtd(NULL, ATTN_F32, many, HK, 0, D);
    x.a.v = x.g.dv = attn_bhtd(NULL, ATTN_F32, many, HK, 0, DV);
    t_lse = attn_bhtd(NULL, ATTN_F32, many, H, 0, 1);
    blank();
    assert_int_equal(attn_sdpa_backward(NULL, &x.a, &x.g, NULL), ATTN_OK);
    for (int h = 0; h < H; h++) {
        assert_number(dslopes[h], ==, 0);
        assert_number(dsinks[h], ==, 0);
    }
}

/* ---------------------------------------------------------------------------- memory that fails */

static bool fails;
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails ? NULL : __real_aligned_alloc(alignment, size);
}

/* Without memory nothing is written, and the context works afterwards; with the caller's workspace
 * none is asked for. */
static void test_no_memory(void **state)
{
    (void)state;
    attn_context *contexts[2] = {NULL, NULL};
    assert_int_equal(attn_context_create(NULL, &contexts[1], NULL), ATTN_OK);
    for (int i = 0; i < 2; i++) {
        describe_case("%s context", i ? "a" : "no");
        both x = good();
        attn_error err = {.status = ATTN_OK};
        blank();
        fails = true;
        const attn_status status = attn_sdpa_backward(contexts[i], &x.a, &x.g, &err);
        fails = false;
        assert_int_equal(status, ATTN_ERR_MEMORY);
        assert_true(err.message[0] != '\0');
        assert_true(all_blank(outputs));
        assert_int_equal(attn_sdpa_backward(contexts[i], &x.a, &x.g, NULL), ATTN_OK);
        x.a.workspace = room;
        x.a.workspace_bytes = sizeof room;
        fails = true;
        assert_int_equal(attn_sdpa_backward(contexts[i], &x.a, &x.g, NULL), ATTN_OK);
        fails = false;
    }
    attn_context_destroy(contexts[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),           cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_empty),          cmocka_unit_test(test_null_and_workspace),
        cmocka_unit_test(test_struct_size),    cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_vast_and_empty), cmocka_unit_test(test_planned_bytes),
    };
    return cmocka_run_group_tests(tests, create_cache, destroy_cache);
}
