/* Calls keep what attn.h promises beside their result.
 *
 * Tests which arguments a call does not look at; that an error leaves the outputs and a success
 * leaves err alone; memory that fails at any point; and gradients computed at the same time on one
 * context, or during a fork. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn.h"
#include "support/test.h"

enum { B = 2, H = 4, HK = 2, T = 150, S = 300, D = 16, DV = 24, E = H * D };
enum { ROWS = B * H * T, KEYS = B * HK * S };

static float q[ROWS * D], k[KEYS * D], v[KEYS * DV], dout[ROWS * DV], weights[4 * E * E];

/* What calls write to; whole, so that two of them can be compared. */
typedef struct results {
    float out[ROWS * DV], tout[ROWS * DV], dq[ROWS * D], dk[KEYS * D], dv[KEYS * DV];
    float mha[B * T * E], dx[B * T * E], dw[E * E];
    double lse[ROWS], tlse[ROWS];
} results;

typedef struct call {
    attn_sdpa_args a;
    attn_sdpa_grads g;
    attn_sdpa_tangents t;
    attn_tensor lse, tlse;
    attn_mha_args m;
    attn_mha_grads mg;
} call;

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(seed >> 32) * 0x1p-31f;
    }
}

static void make(call *c, results *r)
{
    memset(r, 0x5a, sizeof *r);
    *c = (call){.a = ATTN_SDPA_ARGS_INIT,
                .g = ATTN_SDPA_GRADS_INIT,
                .t = ATTN_SDPA_TANGENTS_INIT,
                .mg = ATTN_MHA_GRADS_INIT};
    c->a.q = attn_bhtd(q, ATTN_F32, B, H, T, D);
    c->a.k = attn_bhtd(k, ATTN_F32, B, HK, S, D);
    c->a.v = attn_bhtd(v, ATTN_F32, B, HK, S, DV);
    c->a.out = attn_bhtd(r->out, ATTN_F32, B, H, T, DV);
    c->lse = attn_bhtd(r->lse, ATTN_F64, B, H, T, 1);
    c->tlse = attn_bhtd(r->tlse, ATTN_F64, B, H, T, 1);
    c->a.lse = &c->lse;
    c->a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    c->g.dout = attn_bhtd(dout, ATTN_F32, B, H, T, DV);
    c->g.dq = attn_bhtd(r->dq, ATTN_F32, B, H, T, D);
    c->g.dk = attn_bhtd(r->dk, ATTN_F32, B, HK, S, D);
    c->g.dv = attn_bhtd(r->dv, ATTN_F32, B, HK, S, DV);
    c->t.tq = c->a.q;
    c->t.tk = c->a.k;
    c->t.tv = c->a.v;
    c->t.tout = attn_bhtd(r->tout, ATTN_F32, B, H, T, DV);
    c->t.tlse = &c->tlse;
    attn_mha_args_init(&c->m);
    c->m.x = attn_bhtd(q, ATTN_F32, B, 1, T, E);
    assert_int_equal(attn_mha_packed(&c->m, weights, NULL, ATTN_F32, E, H, NULL), ATTN_OK);
    c->m.out = attn_bhtd(r->mha, ATTN_F32, B, 1, T, E);
    c->mg.dout = attn_bhtd(dout, ATTN_F32, B, 1, T, E);
    c->mg.dx = attn_bhtd(r->dx, ATTN_F32, B, 1, T, E);
    c->mg.dw_q = attn_bhtd(r->dw, ATTN_F32, 1, H, D, E);
}

static attn_status forward(attn_context *ctx, call *c, attn_error *err)
{
    return attn_sdpa_forward(ctx, &c->a, err);
}
static attn_status backward(attn_context *ctx, call *c, attn_error *err)
{
    return attn_sdpa_backward(ctx, &c->a, &c->g, err);
}
static attn_status jvp(attn_context *ctx, call *c, attn_error *err)
{
    return attn_sdpa_jvp(ctx, &c->a, &c->t, err);
}
static attn_status mha(attn_context *ctx, call *c, attn_error *err)
{
    return attn_mha_forward(ctx, &c->m, err);
}
static attn_status mha_backward(attn_context *ctx, call *c, attn_error *err)
{
    return attn_mha_backward(ctx, &c->m, &c->mg, err);
}

typedef attn_status one_call(attn_context *, call *, attn_error *);
static one_call *const calls[] = {forward, backward, jvp, mha, mha_backward};
static const char *const names[] = {"forward", "backward", "jvp", "mha", "mha_backward"};
enum { CALLS = sizeof calls / sizeof *calls };

/* All that the forward gives, for the others to start from. */
static results want;
static void make_after_forward(call *c, results *r)
{
    make(c, r);
    memcpy(r->out, want.out, sizeof want.out);
    memcpy(r->lse, want.lse, sizeof want.lse);
}

static int set_up(void **state)
{
    (void)state;
    static call c;
    fill(q, ROWS * D, 1), fill(k, KEYS * D, 2), fill(v, KEYS * DV, 3);
    fill(dout, ROWS * DV, 4), fill(weights, 4 * E * E, 5);
    make(&c, &want);
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(calls[i](NULL, &c, NULL), ATTN_OK);
    return 0;
}

/* ---------------------------------------------------------------------- what is not looked at */

static void test_scores_of_derivatives(void **state)
{
    (void)state;
    static results r;
    static call c;
    attn_tensor nothing = {.dtype = (attn_dtype)99, .shape = {-1, 7, INT64_MAX, 3}};
    attn_plan_info info = {.struct_size = sizeof info};
    for (int stage = -1; stage < 6; stage++) {
        attn_error err = {.message = ""};
        make_after_forward(&c, &r);
        c.a.scores = &nothing;
        c.a.scores_stage = (attn_stage)stage;
        if (backward(NULL, &c, &err) || jvp(NULL, &c, &err) ||
            attn_sdpa_backward_plan(NULL, &c.a, &c.g, &info, &err))
            fail_msg("stage %d: %s", stage, err.message);
        assert_same_array(r.dq, want.dq, sizeof r.dq);
        assert_same_array(r.tout, want.tout, sizeof r.tout);
    }
    assert_int_equal(forward(NULL, &c, NULL), ATTN_ERR_DTYPE); /* which looks at them */
}

/* Plans are asked how large it must be, jvp takes none; the others refuse it. */
static void test_short_workspace(void **state)
{
    (void)state;
    static results r;
    static call c;
    static char room[64];
    attn_plan_info info = {.struct_size = sizeof info};
    make_after_forward(&c, &r);
    c.a.workspace = room;
    c.a.workspace_bytes = sizeof room;
    assert_int_equal(attn_sdpa_plan(NULL, &c.a, &info, NULL), ATTN_OK);
    assert_number(info.scratch_bytes, >, sizeof room);
    assert_int_equal(attn_sdpa_backward_plan(NULL, &c.a, &c.g, &info, NULL), ATTN_OK);
    assert_number(info.scratch_bytes, >, sizeof room);
    assert_int_equal(forward(NULL, &c, NULL), ATTN_ERR_ARGUMENT);
    assert_int_equal(backward(NULL, &c, NULL), ATTN_ERR_ARGUMENT);
    memset(room, 0x33, sizeof room);
    assert_int_equal(jvp(NULL, &c, NULL), ATTN_OK);
    for (size_t i = 0; i < sizeof room; i++)
        assert_int_equal(room[i], 0x33);
    assert_same_array(r.tout, want.tout, sizeof r.tout);
}

/* With a cache, all of k and v but their data may be anything. */
static void test_rest_of_k_and_v(void **state)
{
    (void)state;
    static results r;
    static call c;
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    attn_cache *cache;
    o.B = B, o.Hk = HK, o.D = D, o.Dv = DV, o.max_keys = S;
    assert_int_equal(attn_cache_create(&o, &cache, NULL), ATTN_OK);
    for (int64_t b = 0; b < B; b++) {
        const attn_tensor keys = attn_bhtd(k + b * HK * S * D, ATTN_F32, 1, HK, S, D);
        const attn_tensor values = attn_bhtd(v + b * HK * S * DV, ATTN_F32, 1, HK, S, DV);
        assert_int_equal(attn_cache_append(cache, b, &keys, &values, NULL), ATTN_OK);
    }
    for (int i = 0; i < 3; i++) {
        describe_case("filling %d", i);
        make(&c, &r);
        memset(&c.a.k, 0x11 * i - 1, sizeof c.a.k);
        memset(&c.a.v, 0x77 - i, sizeof c.a.v);
        c.a.k.data = c.a.v.data = NULL;
        c.a.cache = cache;
        assert_int_equal(forward(NULL, &c, NULL), ATTN_OK);
        assert_same_array(r.out, want.out, sizeof r.out);
    }
    attn_cache_destroy(cache);
}

/* -------------------------------------------------------------------------------- jvp's errors */

#define REFUSE(spoil, wanted, name)                                                                \
    do {                                                                                           \
        make_after_forward(&c, &r);                                                                \
        before = r;                                                                                \
        (void)(spoil);                                                                             \
        errno = 77;                                                                                \
        const attn_status got = jvp(NULL, &c, &err);                                               \
        if (got != (wanted) || err.status != got || strcmp(err.argument, name) != 0)               \
            fail_msg("%s: %s of %s: %s", #spoil, attn_status_name(got), err.argument,              \
                     err.message);                                                                 \
        assert_int_equal(strncmp(err.message, name, strlen(name)), 0);                             \
        assert_null(strchr(err.message, '\n'));                                                    \
        assert_int_equal(errno, 77);                                                               \
        assert_memory_equal(&r, &before, sizeof r);                                                \
    } while (0)

static void test_jvp_errors(void **state)
{
    (void)state;
    static results r, before;
    static call c;
    attn_error err;
    REFUSE(c.t.struct_size = 8, ATTN_ERR_ARGUMENT, "struct_size");
    REFUSE(c.a.struct_size = 8, ATTN_ERR_ARGUMENT, "struct_size");
    REFUSE(c.a.lse = NULL, ATTN_ERR_ARGUMENT, "lse");
    REFUSE(c.a.scale = INFINITY, ATTN_ERR_ARGUMENT, "scale");
    REFUSE(c.a.out.data = NULL, ATTN_ERR_ARGUMENT, "out");
    REFUSE(c.a.cache = (attn_cache *)(void *)&c, ATTN_ERR_ARGUMENT, "cache");
    REFUSE(c.t.tq.shape[3] = D - 1, ATTN_ERR_SHAPE, "tq");
    REFUSE(c.t.tk.shape[1] = H, ATTN_ERR_SHAPE, "tk");
    REFUSE(c.t.tv.dtype = ATTN_F16, ATTN_ERR_DTYPE, "tv");
    REFUSE(c.t.tv.data = NULL, ATTN_ERR_ARGUMENT, "tv");
    REFUSE(c.t.tq.stride[2] = INT64_MAX / 2, ATTN_ERR_LIMIT, "tq");
    REFUSE(c.t.tq.shape[2] = (int64_t)1 << 57, ATTN_ERR_LIMIT, "tq");
    REFUSE(c.t.tout.data = NULL, ATTN_ERR_ARGUMENT, "tout");
    REFUSE(c.t.tout.shape[2] = T - 1, ATTN_ERR_SHAPE, "tout");
    REFUSE(c.t.tout.dtype = ATTN_BF16, ATTN_ERR_DTYPE, "tout");
    REFUSE(c.t.tout.stride[1] = 0, ATTN_ERR_STRIDE, "tout");
    REFUSE(c.t.tout.stride[2] = DV - 1, ATTN_ERR_STRIDE, "tout");
    REFUSE(c.t.tout.stride[0] = INT64_MAX / 4, ATTN_ERR_LIMIT, "tout");
    REFUSE(c.tlse.shape[2] = T - 1, ATTN_ERR_SHAPE, "tlse");
    REFUSE(c.tlse.dtype = ATTN_F16, ATTN_ERR_DTYPE, "tlse");
    REFUSE(c.tlse.stride[0] = 0, ATTN_ERR_STRIDE, "tlse");
    REFUSE(c.tlse.data = NULL, ATTN_ERR_ARGUMENT, "tlse");
}

/* Sizes of 0, one at a time: what there is to write is 0. */
static void test_jvp_empty(void **state)
{
    (void)state;
    static results r;
    for (int zero = 0; zero < 6; zero++) {
        int64_t n[6] = {B, H, T, S, D, DV};
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
        attn_error err = {.message = ""};
        n[zero] = 0;
        memset(&r, 0x5a, sizeof r);
        a.q = t.tq = attn_bhtd(q, ATTN_F32, n[0], n[1], n[2], n[4]);
        a.k = t.tk = attn_bhtd(k, ATTN_F32, n[0], n[1] ? HK : 0, n[3], n[4]);
        a.v = t.tv = attn_bhtd(v, ATTN_F32, n[0], n[1] ? HK : 0, n[3], n[5]);
        a.out = attn_bhtd(r.out, ATTN_F32, n[0], n[1], n[2], n[5]);
        t.tout = attn_bhtd(r.tout, ATTN_F32, n[0], n[1], n[2], n[5]);
        const attn_tensor lse = attn_bhtd(r.lse, ATTN_F64, n[0], n[1], n[2], 1);
        const attn_tensor tlse = attn_bhtd(r.tlse, ATTN_F64, n[0], n[1], n[2], 1);
        a.lse = &lse, t.tlse = &tlse;
        if (attn_sdpa_forward(NULL, &a, &err) || attn_sdpa_jvp(NULL, &a, &t, &err))
            fail_msg("size %d: %s", zero, err.message);
        const int64_t rows = n[0] * n[1] * n[2], last = rows ? rows - 1 : 0;
        if (zero == 3) /* no keys */
            for (int64_t i = 0; i < rows * DV; i++)
                assert_number(r.tout[i], ==, 0);
        if (zero == 3 || zero == 4) { /* scores that do not move */
            assert_number(r.tlse[0], ==, 0);
            assert_number(r.tlse[last], ==, 0);
        }
        if (rows * n[5] == 0)
            assert_int_equal(((char *)r.tout)[0], 0x5a);
    }
}

/* ------------------------------------------------------------------------------------- memory */

typedef struct ledger {
    pthread_t owner;
    long left, taken, live;
    bool strange; /* called from another thread */
} ledger;

static void *allocate(void *user, size_t size, size_t alignment)
{
    ledger *l = user;
    l->strange |= !pthread_equal(l->owner, pthread_self());
    if (l->left-- <= 0)
        return NULL;
    l->taken++;
    l->live++;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void release(void *user, void *memory, size_t size)
{
    ledger *l = user;
    (void)size;
    l->strange |= !pthread_equal(l->owner, pthread_self());
    l->live--;
    free(memory);
}

/* One allocation after the other fails, with one thread and with several: the error, and nothing
 * written; the next call has the right bits. All of them come from the caller's thread. */
static void test_no_memory(void **state)
{
    (void)state;
    static results r, before, all;
    static call c;
    for (int which = 0; which < CALLS; which++)
        for (int threads = 1; threads <= 3; threads += 2) {
            long point = 0;
            attn_status status = ATTN_ERR_MEMORY;
            for (; status == ATTN_ERR_MEMORY && point < 100; point++) {
                ledger l = {.owner = pthread_self(), .left = 1000};
                attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
                attn_context *ctx;
                attn_error err = {.message = ""};
                o.threads = threads;
                o.allocate = allocate, o.release = release, o.memory_user = &l;
                assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
                make_after_forward(&c, &r);
                before = r;
                l.left = point;
                errno = 55;
                status = calls[which](ctx, &c, &err);
                if (status == ATTN_ERR_MEMORY) {
                    assert_int_equal(errno, 55);
                    assert_int_equal(err.status, status);
                    assert_true(strstr(err.message, "memory") != NULL);
                    if (memcmp(&r, &before, sizeof r) != 0)
                        fail_msg("%s, allocation %ld: something was written", names[which], point);
                    l.left = 1000;
                    assert_int_equal(calls[which](ctx, &c, &err), ATTN_OK);
                } else if (status) {
                    fail_msg("%s: %s", names[which], err.message);
                }
                make_after_forward(&c, &all);
                assert_int_equal(calls[which](NULL, &c, NULL), ATTN_OK);
                assert_memory_equal(&r, &all, sizeof r);
                attn_context_destroy(ctx);
                assert_int_equal(l.live, 0);
                assert_false(l.strange);
            }
            assert_int_equal(status, ATTN_OK);
            if (point < 2)
                fail_msg("%s: no allocation failed", names[which]);
        }
}

/* ------------------------------------------------------------------------------ err and errno */

#define QUIET(what)                                                                                \
    do {                                                                                           \
        memset(&err, 0xa5, sizeof err);                                                            \
        errno = 99;                                                                                \
        if ((what) != ATTN_OK)                                                                     \
            fail_msg("%s: %s", #what, err.message);                                                \
        assert_int_equal(errno, 99);                                                               \
        assert_memory_equal(&err, &untouched, sizeof err);                                         \
    } while (0)

static int take_bytes(void *user, const void *bytes, size_t n)
{
    char **to = user;
    memcpy(*to, bytes, n);
    *to += n;
    return 0;
}

static void test_err_is_for_failures(void **state)
{
    (void)state;
    static results r;
    static call c;
    static char saved[1 << 16];
    attn_error err, untouched;
    attn_context *ctx;
    attn_cache *cache, *loaded;
    attn_mha *module;
    attn_plan_info info = {.struct_size = sizeof info};
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    o.B = 1, o.Hk = HK, o.D = D, o.Dv = DV, o.max_keys = 64;
    memset(&untouched, 0xa5, sizeof untouched);
    QUIET(attn_context_create(NULL, &ctx, &err));
    make_after_forward(&c, &r);
    for (int i = 0; i < CALLS; i++)
        QUIET(calls[i](ctx, &c, &err));
    QUIET(attn_sdpa_plan(ctx, &c.a, &info, &err));
    QUIET(attn_sdpa_backward_plan(ctx, &c.a, &c.g, &info, &err));
    QUIET(attn_mha_packed(&c.m, weights, NULL, ATTN_F32, E, H, &err));
    QUIET(attn_mha_packed_grads(&c.mg, r.out, NULL, ATTN_F32, E, H, &err));
    QUIET(attn_mha_create(ctx, &c.m, &module, &err));
    QUIET(attn_mha_run(ctx, module, &c.m, &err));
    attn_mha_destroy(module);
    const attn_tensor keys = attn_bhtd(k, ATTN_F32, 1, HK, 9, D);
    const attn_tensor values = attn_bhtd(v, ATTN_F32, 1, HK, 9, DV);
    const attn_tensor back = attn_bhtd(r.dk, ATTN_F32, 1, HK, 9, D);
    char *end = saved;
    QUIET(attn_cache_create(&o, &cache, &err));
    QUIET(attn_cache_append(cache, 0, &keys, &values, &err));
    QUIET(attn_cache_read(cache, 0, 0, &back, NULL, &err));
    QUIET(attn_cache_save(cache, take_bytes, &end, &err));
    QUIET(attn_cache_load(&o, saved, (size_t)(end - saved), &loaded, &err));
    QUIET(attn_cache_truncate(cache, 0, 3, &err));
    attn_cache_destroy(cache);
    attn_cache_destroy(loaded);
    const attn_tensor mask = attn_bhtd(r.out, ATTN_BOOL, 1, 1, 5, 9);
    QUIET(attn_dropout_mask(1, 0.5, &mask, &err));
    static const int64_t ids[4] = {1, 0, 3, 1};
    const attn_tensor x = attn_matrix(q, ATTN_F32, 4, E), y = attn_matrix(r.out, ATTN_F32, 4, E);
    const attn_tensor w = attn_matrix(weights, ATTN_F32, E, E),
                      dw = attn_matrix(r.dw, ATTN_F32, E, E);
    double loss;
    attn_adamw_options adamw = ATTN_ADAMW_OPTIONS_INIT;
    QUIET(attn_linear_forward(ctx, &x, &w, NULL, &y, &err));
    QUIET(attn_linear_backward(ctx, &x, &x, &w, &y, &dw, NULL, &err));
    QUIET(attn_layer_norm_forward(ctx, &x, NULL, NULL, 1e-5, &y, &err));
    QUIET(attn_layer_norm_backward(ctx, &x, &x, NULL, 1e-5, &y, NULL, NULL, &err));
    QUIET(attn_gelu_forward(ctx, &x, &y, &err));
    QUIET(attn_gelu_backward(ctx, &x, &x, &y, &err));
    QUIET(attn_embedding_forward(ctx, &x, ids, 4, &y, &err));
    QUIET(attn_embedding_backward(ctx, &x, ids, 4, &y, &err));
    QUIET(attn_cross_entropy_forward(ctx, &x, ids, -100, &loss, &err));
    QUIET(attn_cross_entropy_backward(ctx, 1, &x, ids, -100, &y, &err));
    const attn_tensor m = attn_matrix(r.dq, ATTN_F32, 4, E), u = attn_matrix(r.dv, ATTN_F32, 4, E);
    memset(r.dq, 0, sizeof r.dq), memset(r.dv, 0, sizeof r.dv);
    QUIET(attn_adamw_step(ctx, &adamw, 1, &y, &x, &m, &u, &err));
    attn_context_destroy(ctx);
}

/* ---------------------------------------------------------------------------- several at once */

static attn_context *shared;
static atomic_int wrong, running, stop;

static void *differentiate(void *arg)
{
    call *c = malloc(sizeof *c);
    results *r = malloc(sizeof *r);
    (void)arg;
    for (int i = 0; i < 6 && c && r; i++) {
        make_after_forward(c, r);
        atomic_fetch_add(&running, 1);
        const int which = 1 + i % (CALLS - 1);
        if (calls[which](shared, c, NULL) != ATTN_OK)
            atomic_fetch_add(&wrong, 1);
        if ((which == 1 && memcmp(r->dq, want.dq, sizeof r->dq) != 0) ||
            (which == 1 && memcmp(r->dk, want.dk, sizeof r->dk) != 0) ||
            (which == 2 && memcmp(r->tout, want.tout, sizeof r->tout) != 0) ||
            (which == 4 && memcmp(r->dx, want.dx, sizeof r->dx) != 0))
            atomic_fetch_add(&wrong, 1);
    }
    free(c);
    free(r);
    return NULL;
}

/* Calls on one context are serialised: backwards, tangents and modules get their own bits. */
static void test_at_once(void **state)
{
    (void)state;
    pthread_t threads[4];
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    o.threads = 3;
    assert_int_equal(attn_context_create(&o, &shared, NULL), ATTN_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, differentiate, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    attn_context_destroy(shared);
}

static void *keep_busy(void *arg)
{
    static call c;
    static results r;
    (void)arg;
    make_after_forward(&c, &r);
    while (!atomic_load(&stop)) {
        atomic_fetch_add(&running, 1);
        if (backward(shared, &c, NULL) != ATTN_OK)
            atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

/* A fork while a backward runs on the context, at whatever point: the child has a context that
 * works, with the same bits, and so has the parent. */
static void test_fork_in_backward(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it lets no child of a process with threads start threads */
#endif
    static call c;
    static results r;
    pthread_t busy;
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    o.threads = 3;
    assert_int_equal(attn_context_create(&o, &shared, NULL), ATTN_OK);
    atomic_store(&running, 0);
    assert_int_equal(pthread_create(&busy, NULL, keep_busy, NULL), 0);
    for (int i = 0; i < 12; i++) {
        int status;
        const int before = atomic_load(&running);
        while (atomic_load(&running) < before + 1)
            ;
        for (volatile int wait = 0; wait < 20000 * i; wait++)
            ;
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            make_after_forward(&c, &r);
            const bool right = backward(shared, &c, NULL) == ATTN_OK &&
                               memcmp(r.dq, want.dq, sizeof r.dq) == 0 &&
                               memcmp(r.dv, want.dv, sizeof r.dv) == 0;
            _exit(right ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("fork %d: status %x", i, (unsigned)status);
    }
    atomic_store(&stop, 1);
    pthread_join(busy, NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    attn_context_destroy(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores_of_derivatives),
        cmocka_unit_test(test_short_workspace),
        cmocka_unit_test(test_rest_of_k_and_v),
        cmocka_unit_test(test_jvp_errors),
        cmocka_unit_test(test_jvp_empty),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_err_is_for_failures),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_fork_in_backward),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
