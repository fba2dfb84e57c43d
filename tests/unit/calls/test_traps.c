/* Every public function that computes keeps the caller's floating-point mode.
 *
 * Each gives the same bits in every rounding mode, with denormals flushed or not, and with every
 * exception trapped, where no trap is raised. It leaves the mode and the exception flags as they
 * were. */
#define _GNU_SOURCE
#include <fenv.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "attn.h"
#include "support/test.h"

enum { B = 2, H = 4, Hk = 2, T = 37, S = 70, D = 24, Dv = 20, E = H * Dv, INPUTS = 65536 };

static float input[INPUTS];
static double wide_input[INPUTS];
static uint16_t narrow_input[INPUTS];

/* Results lie one behind the other: what two runs are compared by. */
typedef struct results {
    char *bytes;
    size_t used, room;
} results;
static results out;

static void *take(size_t bytes)
{
    void *at = out.bytes + out.used;
    out.used += (bytes + 63) / 64 * 64;
    assert_number(out.used, <=, out.room);
    return at;
}

static attn_tensor in(attn_dtype dtype, int at, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    const void *data = dtype == ATTN_F64    ? (void *)(wide_input + at)
                       : dtype == ATTN_BF16 ? (void *)(narrow_input + at)
                                            : (void *)(input + at);
    return attn_bhtd(data, dtype, n0, n1, n2, n3);
}

static attn_tensor to(attn_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    void *data = take((size_t)(n0 * n1 * n2 * n3) * attn_dtype_size(dtype));
    return attn_bhtd(data, dtype, n0, n1, n2, n3);
}

/* The first call that fails; nothing of cmocka, which may compute, inside a strange mode. */
static const char *failed;
#define CALL(what)                                                                                 \
    do {                                                                                           \
        if ((what) != ATTN_OK && !failed)                                                          \
            failed = #what;                                                                        \
    } while (0)

static void attention(attn_context *ctx, attn_dtype dtype, bool options)
{
    static const float slopes[H] = {0.1f, 0.3f, -0.7f, 0.011f}, sinks[H] = {0.3f, 1.1f, -2, 0.7f};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
    attn_plan_info info = {.struct_size = sizeof info};
    a.q = in(dtype, 0, B, H, T, D);
    a.k = in(dtype, 10000, B, Hk, S, D);
    a.v = in(dtype, 20000, B, Hk, S, Dv);
    a.out = to(dtype, B, H, T, Dv);
    const attn_tensor lse = to(ATTN_F64, B, H, T, 1), scores = to(ATTN_F32, B, H, T, S);
    const attn_tensor mask = in(ATTN_F32, 30000, 1, H, T, S);
    a.lse = &lse;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    if (options) {
        a.alibi_slopes = slopes;
        a.sink_logits = sinks;
        a.softcap = 3.3;
        a.dropout = 0.3;
        a.mask = &mask;
        a.scores = &scores;
        a.scores_stage = ATTN_STAGE_WEIGHTS;
    }
    CALL(attn_sdpa_plan(ctx, &a, &info, NULL));
    memcpy(take(2 * sizeof(double)), &info.flop, 2 * sizeof(double));
    CALL(attn_sdpa_forward(ctx, &a, NULL));
    g.dout = in(dtype, 40000, B, H, T, Dv);
    g.dq = to(dtype, B, H, T, D);
    g.dk = to(ATTN_F32, B, Hk, S, D);
    g.dv = to(dtype, B, Hk, S, Dv);
    g.dalibi_slopes = options ? take(H * sizeof(double)) : NULL;
    g.dsink_logits = options ? take(H * sizeof(double)) : NULL;
    CALL(attn_sdpa_backward_plan(ctx, &a, &g, &info, NULL));
    memcpy(take(2 * sizeof(double)), &info.flop, 2 * sizeof(double));
    CALL(attn_sdpa_backward(ctx, &a, &g, NULL));
    t.tq = in(dtype, 30000, B, H, T, D);
    t.tk = in(dtype, 33000, B, Hk, S, D);
    t.tv = in(dtype, 36000, B, Hk, S, Dv);
    t.tout = to(dtype, B, H, T, Dv);
    CALL(attn_sdpa_jvp(ctx, &a, &t, NULL));
}

static void random_numbers(attn_context *ctx)
{
    attn_rng r;
    float *to_x = take(400 * sizeof *to_x);
    const attn_tensor mask = to(ATTN_BOOL, 1, 2, 9, 33);
    (void)ctx;
    CALL(attn_dropout_mask(7, 0.3, &mask, NULL));
    attn_rng_seed(&r, 11);
    attn_rng_rand(&r, to_x, 30);
    attn_rng_uniform(&r, to_x + 30, 70, -0.3, 1.1);
    attn_rng_randn(&r, to_x + 100, 7);
    attn_rng_randn(&r, to_x + 107, 93);
    attn_rng_linear(&r, to_x + 200, to_x + 390, 19, 10);
}

static void layers(attn_context *ctx)
{
    static const int64_t ids[5] = {3, 1, 3, 0, 2};
    const attn_tensor x = in(ATTN_F32, 0, 1, 1, T, D), w = in(ATTN_F32, 5000, 1, 1, Dv, D);
    const attn_tensor bias = in(ATTN_F32, 9000, 1, 1, 1, Dv), dy = in(ATTN_F32, 9100, 1, 1, T, Dv);
    const attn_tensor scale = in(ATTN_F32, 9900, 1, 1, 1, D), g = in(ATTN_F32, 777, 1, 1, T, D);
    const attn_tensor y = to(ATTN_F32, 1, 1, T, Dv), dx = to(ATTN_F32, 1, 1, T, D);
    const attn_tensor dw = to(ATTN_F32, 1, 1, Dv, D), db = to(ATTN_F32, 1, 1, 1, Dv);
    CALL(attn_linear_forward(ctx, &x, &w, &bias, &y, NULL));
    CALL(attn_linear_backward(ctx, &dy, &x, &w, &dx, &dw, &db, NULL));
    const attn_tensor n = to(ATTN_F32, 1, 1, T, D), dn = to(ATTN_F32, 1, 1, T, D);
    const attn_tensor ds = to(ATTN_F32, 1, 1, 1, D), dd = to(ATTN_F32, 1, 1, 1, D);
    CALL(attn_layer_norm_forward(ctx, &x, &scale, &scale, 1e-5, &n, NULL));
    CALL(attn_layer_norm_backward(ctx, &g, &x, &scale, 1e-5, &dn, &ds, &dd, NULL));
    const attn_tensor u = to(ATTN_F32, 1, 1, T, D), du = to(ATTN_F32, 1, 1, T, D);
    CALL(attn_gelu_forward(ctx, &x, &u, NULL));
    CALL(attn_gelu_backward(ctx, &g, &x, &du, NULL));
    const attn_tensor table = in(ATTN_F32, 0, 1, 1, 4, D), rows = to(ATTN_F32, 1, 1, 5, D);
    const attn_tensor drows = in(ATTN_F32, 100, 1, 1, 5, D), dt = to(ATTN_F32, 1, 1, 4, D);
    CALL(attn_embedding_forward(ctx, &table, ids, 5, &rows, NULL));
    CALL(attn_embedding_backward(ctx, &drows, ids, 5, &dt, NULL));
    const attn_tensor logits = in(ATTN_F32, 0, 1, 1, 5, D), dl = to(ATTN_F32, 1, 1, 5, D);
    CALL(attn_cross_entropy_forward(ctx, &logits, ids, -100, take(sizeof(double)), NULL));
    CALL(attn_cross_entropy_backward(ctx, 0.7, &logits, ids, -100, &dl, NULL));
    attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
    const attn_tensor p = to(ATTN_F32, 1, 1, T, D), m = to(ATTN_F32, 1, 1, T, D);
    const attn_tensor v = to(ATTN_F32, 1, 1, T, D);
    memcpy(p.data, input, T * D * sizeof(float));
    memset(m.data, 0, T * D * sizeof(float));
    memset(v.data, 0, T * D * sizeof(float));
    CALL(attn_adamw_step(ctx, &o, 1, &p, &g, &m, &v, NULL));
    CALL(attn_adamw_step(ctx, &o, 2, &p, &x, &m, &v, NULL));
}

static void heads(attn_context *ctx)
{
    attn_mha_args a;
    attn_mha_grads g = ATTN_MHA_GRADS_INIT;
    attn_mha *module = NULL;
    attn_mha_args_init(&a);
    a.x = in(ATTN_F32, 0, B, 1, T, E);
    a.w_q = in(ATTN_F32, 6000, 1, H, Dv, E);
    a.w_k = in(ATTN_F32, 13000, 1, H, Dv, E);
    a.w_v = in(ATTN_F32, 20000, 1, H, Dv, E);
    a.w_o = in(ATTN_F32, 27000, 1, 1, E, E);
    a.output_dropout = 0.1;
    a.out = to(ATTN_F32, B, 1, T, E);
    CALL(attn_mha_forward(ctx, &a, NULL));
    g.dout = in(ATTN_F32, 34000, B, 1, T, E);
    g.dx = to(ATTN_F32, B, 1, T, E);
    g.dw_q = to(ATTN_F32, 1, H, Dv, E);
    g.dw_o = to(ATTN_F32, 1, 1, E, E);
    CALL(attn_mha_backward(ctx, &a, &g, NULL));
    a.out = to(ATTN_F32, B, 1, T, E);
    CALL(attn_mha_create(ctx, &a, &module, NULL));
    CALL(attn_mha_run(ctx, module, &a, NULL));
    attn_mha_destroy(module);
}

static int keep(void *user, const void *bytes, size_t n)
{
    (void)user;
    memcpy(out.bytes + out.used, bytes, n);
    out.used += n;
    return 0;
}

static void cache(attn_context *ctx, attn_dtype dtype)
{
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_cache *c = NULL;
    o.B = 1, o.Hk = Hk, o.D = D, o.Dv = Dv, o.max_keys = S, o.dtype = dtype;
    const attn_tensor k = in(ATTN_F64, 0, 1, Hk, S, D), v = in(ATTN_F64, 7000, 1, Hk, S, Dv);
    const attn_tensor back = to(ATTN_F32, 1, Hk, S, D);
    CALL(attn_cache_create(&o, &c, NULL));
    CALL(attn_cache_append(c, 0, &k, &v, NULL));
    CALL(attn_cache_read(c, 0, 0, &back, NULL, NULL));
    CALL(attn_cache_save(c, keep, NULL, NULL));
    out.used = (out.used + 63) / 64 * 64;
    a.q = in(dtype == ATTN_I8 ? ATTN_F32 : dtype, 30000, 1, H, 1, D);
    a.out = to(ATTN_F32, 1, H, 1, Dv);
    a.cache = c;
    CALL(attn_sdpa_forward(ctx, &a, NULL));
    attn_cache_destroy(c);
}

static void everything(attn_context *ctx)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_BF16};
    for (int i = 0; i < 3; i++) {
        attention(ctx, types[i], false);
        attention(ctx, types[i], true);
    }
    random_numbers(ctx);
    layers(ctx);
    heads(ctx);
    cache(ctx, ATTN_I8);
    cache(ctx, ATTN_BF16);
}

/* In the mode and back; false if anything of it has changed. */
static bool in_mode(attn_context *ctx, int rounding, bool flush, bool trap)
{
    bool same = true;
    fenv_t before;
    fegetenv(&before);
    fesetround(rounding);
#if defined(__SSE__)
    unsigned mode = (_mm_getcsr() & ~0x3fu) | 0x04; /* one flag: a division by 0 */
    mode = flush ? mode | 0x8040 : mode;
    mode = trap ? mode & ~0x1f80u : mode;
    _mm_setcsr(mode);
    everything(ctx);
    same = _mm_getcsr() == mode;
#else
    (void)flush;
#if defined(__GLIBC__)
    if (trap)
        feenableexcept(FE_ALL_EXCEPT);
#endif
    feclearexcept(FE_ALL_EXCEPT);
    everything(ctx);
    same = fetestexcept(FE_ALL_EXCEPT) == 0;
#endif
    same = same && fegetround() == rounding;
    fesetenv(&before);
    return same;
}

static void fill(void)
{
    uint64_t seed = 1;
    for (int i = 0; i < INPUTS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double x = (double)(int64_t)(seed >> 40) / (1 << 23) - 1;
        wide_input[i] = i % 97 == 0 ? x * 1e-310 : x;
        input[i] = (float)(i % 97 == 0 ? x * 1e-39 : x);
        uint32_t bits;
        memcpy(&bits, &input[i], sizeof bits);
        narrow_input[i] = (uint16_t)(bits >> 16);
    }
}

static void run_in_order(void *user, int n, void (*body)(void *arg, int index), void *arg)
{
    (void)user;
    for (int i = n; i-- > 0;)
        body(arg, i);
}

static void test_every_mode(void **state)
{
    (void)state;
    static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const size_t room = (size_t)64 << 20;
    attn_context *contexts[3] = {NULL};
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    fill();
    char *want = calloc(1, room), *got = calloc(1, room);
    assert_true(want && got);
    o.threads = 3;
    assert_int_equal(attn_context_create(&o, &contexts[1], NULL), ATTN_OK);
    o.parallel_for = run_in_order;
    assert_int_equal(attn_context_create(&o, &contexts[2], NULL), ATTN_OK);
    out = (results){want, 0, room};
    everything(NULL);
    assert_null(failed);
    const size_t bytes = out.used;
    for (int mode = 0; mode < 48; mode++) {
        const int rounding = mode % 4, flush = mode / 4 % 2, trap = mode / 8 % 2, at = mode / 16;
        memset(got, 0, room);
        out = (results){got, 0, room};
        const bool kept = in_mode(contexts[at], roundings[rounding], flush, trap);
        if (failed || !kept || out.used != bytes)
            fail_msg("mode %d,%d,%d, context %d: %s", rounding, flush, trap, at,
                     failed ? failed : "the mode was changed");
        for (size_t i = 0; i < bytes; i++)
            if (got[i] != want[i])
                fail_msg("mode %d,%d,%d, context %d: byte %zu of %zu differs", rounding, flush,
                         trap, at, i, bytes);
    }
    for (int i = 1; i < 3; i++)
        attn_context_destroy(contexts[i]);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
