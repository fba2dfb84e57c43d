/* Every pass on 1, 2, 3, 8 and 16 threads: random whole calls with all options combined, large
 * enough that threads share tiles, chunks, sequences and heads. All results must be bit-identical
 * to those of one thread. The other checks compare the results of one thread with the
 * definition. */
#include "check_call.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define WORK 3e7
#define MOST_OUTPUTS 16

typedef struct output {
    const char *name;
    check_tensor tensor;
    double *first; /* the results of one thread */
} output;

typedef struct product {
    check_call call;
    check_tensor dout, dlse, tq, tk, tv;
    attn_sdpa_grads grads;
    attn_sdpa_tangents tangents;
    attn_cache *cache;
    attn_tensor cached_out; /* out of the call that reads the cache */
    output outputs[MOST_OUTPUTS];
    int count;
    double dalibi[CHECK_MAX_HEADS], dsink[CHECK_MAX_HEADS];
} product;

static const attn_tensor *add_output(check_case *c, product *p, const char *name, attn_dtype dtype,
                                     const int64_t *shape)
{
    output *o = &p->outputs[p->count++];
    o->name = name;
    o->tensor = check_tensor_new(c, dtype, shape, check_chance(c, 50) ? CHECK_DENSE : CHECK_LOOSE);
    return &o->tensor.view;
}

static void add_input(check_case *c, check_tensor *t, attn_dtype dtype, const int64_t *shape)
{
    *t = check_tensor_new(c, dtype, shape, CHECK_DENSE);
    check_call_fill(c, t, 1);
}

static attn_dtype derivative_dtype(check_case *c, const product *p)
{
    return check_chance(c, 70) ? p->call.args.q.dtype : check_chance(c, 50) ? ATTN_F32 : ATTN_F64;
}

/* Replaces the outputs of the forward call, so that all results are in one list. */
static void choose_forward(check_case *c, product *p)
{
    attn_sdpa_args *a = &p->call.args;
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    a->out = *add_output(c, p, "out", a->out.dtype, a->out.shape);
    a->lse = add_output(c, p, "lse", check_chance(c, 50) ? ATTN_F32 : ATTN_F64, rows);
    if (a->scores)
        a->scores = add_output(c, p, "scores", a->scores->dtype, a->scores->shape);
}

static void choose_backward(check_case *c, product *p)
{
    const attn_sdpa_args *a = &p->call.args;
    attn_sdpa_grads *g = &p->grads;
    attn_sdpa_grads_init(g);
    add_input(c, &p->dout, a->q.dtype, a->out.shape);
    g->dout = p->dout.view;
    if (check_chance(c, 30)) {
        add_input(c, &p->dlse, ATTN_F32, a->lse->shape);
        g->dlse = &p->dlse.view;
    }
    if (check_chance(c, 90))
        g->dq = *add_output(c, p, "dq", derivative_dtype(c, p), a->q.shape);
    if (check_chance(c, 90))
        g->dk = *add_output(c, p, "dk", derivative_dtype(c, p), a->k.shape);
    if (check_chance(c, 90))
        g->dv = *add_output(c, p, "dv", derivative_dtype(c, p), a->v.shape);
    if (a->mask && a->mask->dtype != ATTN_BOOL && check_chance(c, 80))
        g->dmask = add_output(c, p, "dmask", ATTN_F32, a->mask->shape);
    g->dalibi_slopes = a->alibi_slopes ? p->dalibi : NULL;
    g->dsink_logits = a->sink_logits ? p->dsink : NULL;
}

static void choose_jvp(check_case *c, product *p)
{
    const attn_sdpa_args *a = &p->call.args;
    attn_sdpa_tangents *t = &p->tangents;
    attn_sdpa_tangents_init(t);
    add_input(c, &p->tq, derivative_dtype(c, p), a->q.shape);
    add_input(c, &p->tk, derivative_dtype(c, p), a->k.shape);
    add_input(c, &p->tv, derivative_dtype(c, p), a->v.shape);
    t->tq = p->tq.view, t->tk = p->tk.view, t->tv = p->tv.view;
    t->tout = *add_output(c, p, "tout", derivative_dtype(c, p), a->out.shape);
    t->tlse = add_output(c, p, "tlse", ATTN_F64, a->lse->shape);
}

static attn_tensor sequence_of(const attn_tensor *t, int64_t b)
{
    attn_tensor one = *t;
    one.data = (char *)t->data + b * t->stride[0] * (int64_t)attn_dtype_size(t->dtype);
    one.shape[0] = 1;
    return one;
}

/* Puts the same keys and values into a cache, contiguous or paged. */
static void choose_cache(check_case *c, product *p)
{
    const attn_sdpa_args *a = &p->call.args;
    if (a->cu_seqlens_q || check_count(&a->k) == 0 || check_count(&a->v) == 0)
        return;
    attn_cache_options options = ATTN_CACHE_OPTIONS_INIT;
    options.B = a->k.shape[0], options.Hk = a->k.shape[1];
    options.D = a->k.shape[3], options.Dv = a->v.shape[3];
    options.dtype = a->q.dtype != ATTN_F64 && check_chance(c, 30) ? ATTN_I8 : a->q.dtype;
    options.max_keys = a->k.shape[2];
    options.page_keys = check_chance(c, 50) ? 64 * check_between(c, 1, 3) : 0;
    attn_error err = {0};
    if (attn_cache_create(&options, &p->cache, &err) != ATTN_OK)
        check_fail(c, "cache: %s", err.message);
    for (int64_t b = 0; b < options.B && p->cache; b++) {
        const attn_tensor k = sequence_of(&a->k, b), v = sequence_of(&a->v, b);
        if (attn_cache_append(p->cache, b, &k, &v, &err) != ATTN_OK)
            check_fail(c, "append: %s", err.message);
    }
    p->cached_out = *add_output(c, p, "out from the cache", a->out.dtype, a->out.shape);
}

static void expect_ok(check_case *c, const char *pass, attn_status status, const attn_error *err)
{
    if (status != ATTN_OK)
        check_fail(c, "%s: %s: %s", pass, attn_status_name(status), err->message);
}

static void run_passes(check_case *c, product *p, int threads)
{
    attn_context *ctx = check_context(c, threads);
    const attn_sdpa_args *a = &p->call.args;
    attn_error err = {0};
    expect_ok(c, "forward", attn_sdpa_forward(ctx, a, &err), &err);
    expect_ok(c, "backward", attn_sdpa_backward(ctx, a, &p->grads, &err), &err);
    expect_ok(c, "jvp", attn_sdpa_jvp(ctx, a, &p->tangents, &err), &err);
    if (!p->cache)
        return;
    attn_sdpa_args cached = *a;
    cached.k = cached.v = (attn_tensor){0};
    cached.cache = p->cache;
    cached.out = p->cached_out;
    cached.lse = cached.scores = NULL;
    expect_ok(c, "forward from the cache", attn_sdpa_forward(ctx, &cached, &err), &err);
}

static void forget(product *p)
{
    for (int n = 0; n < p->count; n++) {
        const attn_tensor *t = &p->outputs[n].tensor.view;
        for (int64_t b = 0; b < t->shape[0]; b++)
            for (int64_t h = 0; h < t->shape[1]; h++)
                for (int64_t i = 0; i < t->shape[2]; i++)
                    for (int64_t j = 0; j < t->shape[3]; j++)
                        check_store(t, b, h, i, j, NAN);
    }
    for (int h = 0; h < CHECK_MAX_HEADS; h++)
        p->dalibi[h] = p->dsink[h] = NAN;
}

static void compare(check_case *c, const char *name, const double *got, const double *want,
                    int64_t n, int threads)
{
    check_difference d;
    if (!check_same(got, want, n, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s[%" PRId64 "] is %.17g on %d threads, %.17g on one", name, d.at, d.got,
                   threads, d.want);
}

void check_threads(check_case *c)
{
    static product drawn; /* static: the call's arguments point into it */
    product *p = &drawn;
    *p = (product){.count = 0};
    check_call_random_long(c, &p->call, WORK);
    choose_forward(c, p);
    choose_backward(c, p);
    choose_jvp(c, p);
    choose_cache(c, p);
    double dalibi[CHECK_MAX_HEADS] = {0}, dsink[CHECK_MAX_HEADS] = {0};
    for (int x = 0; check_thread_counts[x] && !c->failed; x++) {
        const int threads = check_thread_counts[x];
        forget(p);
        run_passes(c, p, threads);
        for (int n = 0; n < p->count; n++) {
            output *o = &p->outputs[n];
            double *got = check_tensor_copy(c, &o->tensor.view);
            if (!o->first)
                o->first = got;
            compare(c, o->name, got, o->first, check_count(&o->tensor.view), threads);
        }
        for (int h = 0; h < CHECK_MAX_HEADS && x == 0; h++)
            dalibi[h] = p->dalibi[h], dsink[h] = p->dsink[h];
        compare(c, "dalibi", p->dalibi, dalibi, CHECK_MAX_HEADS, threads);
        compare(c, "dsink", p->dsink, dsink, CHECK_MAX_HEADS, threads);
    }
    attn_cache_destroy(p->cache);
    check_expect_intact(c);
}
