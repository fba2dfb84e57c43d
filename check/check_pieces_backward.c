/* The backward with keys in pieces: random calls with all rules, contents and layouts. The
 * gradients of attn_sdpa_backward_begin, _feed and _finish have the bits of one call of
 * attn_sdpa_backward, for pieces of several sizes on several numbers of threads. Each piece and its
 * gradients lie in guarded memory of their own, so a key outside of it cannot be accessed. Some of
 * the heads, as a part of the whole, have the bits of one call too. */
#include "check_gradients.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WORK 4e6

/* Plants elements that are not finite. */
static void plant(check_case *c, const attn_tensor *t)
{
    static const double special[] = {NAN, INFINITY, -INFINITY};
    if (check_count(t) > 0)
        check_store(t, check_between(c, 0, t->shape[0] - 1), check_between(c, 0, t->shape[1] - 1),
                    check_between(c, 0, t->shape[2] - 1), check_between(c, 0, t->shape[3] - 1),
                    CHECK_PICK(c, special));
}

bool check_gradients_want(const check_tensor *t)
{
    const int64_t *n = t->view.shape;
    return n[0] || n[1] || n[2] || n[3];
}

static double *copy_heads(check_case *c, const double *x, int64_t H)
{
    double *copy = check_array(c, H);
    memcpy(copy, x, (size_t)H * sizeof *x);
    return copy;
}

/* Copies of the gradients. If the call is in pieces, dk and dv are empty and are filled piece by
 * piece (keep()). */
check_results check_gradients_results(check_case *c, const check_gradients *g, bool in_pieces)
{
    const attn_sdpa_grads *x = &g->grads;
    const int64_t H = g->call.args.q.shape[1];
    check_results r = {0};
    if (check_gradients_want(&g->dq))
        r.dq = check_tensor_copy(c, &x->dq);
    if (check_gradients_want(&g->dk))
        r.dk = in_pieces ? check_array(c, check_count(&x->dk)) : check_tensor_copy(c, &x->dk);
    if (check_gradients_want(&g->dv))
        r.dv = in_pieces ? check_array(c, check_count(&x->dv)) : check_tensor_copy(c, &x->dv);
    if (x->dmask)
        r.dmask = check_tensor_copy(c, x->dmask);
    if (x->dalibi_slopes)
        r.dalibi = copy_heads(c, x->dalibi_slopes, H);
    if (x->dsink_logits)
        r.dsink = copy_heads(c, x->dsink_logits, H);
    return r;
}

/* An empty gradient for a piece of `like`, or NULL if it is not wanted. */
static const attn_tensor *new_gradient(check_case *c, check_tensor *t, const check_tensor *whole,
                                       const attn_tensor *like)
{
    if (!check_gradients_want(whole))
        return NULL;
    *t = check_tensor_new(c, whole->view.dtype, like->shape,
                          check_chance(c, 60) ? CHECK_DENSE : CHECK_LOOSE);
    return &t->view;
}

/* Copies the gradient of keys first .. to its place in `to`, an array of the shape of `whole`. */
static void keep(double *to, const attn_tensor *whole, const attn_tensor *t, int64_t first)
{
    const int64_t *n = t->shape, S = whole->shape[2];
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t j = 0; j < n[2]; j++)
                for (int64_t d = 0; d < n[3]; d++)
                    to[((b * n[1] + h) * S + first + j) * n[3] + d] = ref_get(t, b, h, j, d);
}

/* The opposite of keep(): t gets the sums that the call continues. */
static void put(const attn_tensor *t, const double *from, const attn_tensor *whole, int64_t first)
{
    const int64_t *n = t->shape, S = whole->shape[2];
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t j = 0; j < n[2]; j++)
                for (int64_t d = 0; d < n[3]; d++)
                    check_store(t, b, h, j, d, from[((b * n[1] + h) * S + first + j) * n[3] + d]);
}

/* Feeds the keys that are needed, in pieces of up to `size`; or every key, if `all`. `sums`: dk and
 * dv of r are sums that the call continues. */
static attn_status feed_all(check_case *c, const check_gradients *g,
                            attn_sdpa_backward_state *state, int64_t size, bool all, bool sums,
                            check_results *r, attn_error *err)
{
    const attn_sdpa_args *a = &g->call.args;
    const int64_t S = a->k.shape[2];
    attn_status status = ATTN_OK;
    int64_t first, past, position = 0;
    while (status == ATTN_OK) {
        check_tensor dk, dv;
        first = attn_sdpa_backward_next(state, size, &past);
        if (all) {
            past = first < S ? past : S; /* keys at the end that no row sees */
            first = position;
        }
        if (first >= S)
            break;
        const check_tensor k = check_cut_keys(c, &a->k, first, past - first);
        const check_tensor v = check_cut_keys(c, &a->v, first, past - first);
        const attn_tensor *to_k = new_gradient(c, &dk, &g->dk, &k.view);
        const attn_tensor *to_v = new_gradient(c, &dv, &g->dv, &v.view);
        if (sums && to_k)
            put(to_k, r->dk, &a->k, first);
        if (sums && to_v)
            put(to_v, r->dv, &a->v, first);
        status = attn_sdpa_backward_feed(state, first, &k.view, &v.view, to_k, to_v, err);
        if (status == ATTN_OK && to_k)
            keep(r->dk, &a->k, to_k, first);
        if (status == ATTN_OK && to_v)
            keep(r->dv, &a->v, to_v, first);
        position = past;
    }
    return status;
}

check_results check_gradients_in_pieces(check_case *c, const check_gradients *g,
                                        const attn_pieces_options *part, const check_results *sums,
                                        int64_t size, int threads)
{
    attn_sdpa_args a = g->call.args;
    attn_sdpa_grads grads = g->grads;
    attn_sdpa_backward_state *state = NULL;
    attn_error err = {0};
    a.k.data = a.v.data = grads.dk.data = grads.dv.data = NULL;
    if (check_gradients_want(&g->dq))
        check_forget(&grads.dq);
    if (grads.dmask)
        check_forget(grads.dmask);
    check_results r = check_gradients_results(c, g, true);
    if (sums && r.dk)
        memcpy(r.dk, sums->dk, (size_t)check_count(&a.k) * sizeof(double));
    if (sums && r.dv)
        memcpy(r.dv, sums->dv, (size_t)check_count(&a.v) * sizeof(double));
    attn_status status =
        attn_sdpa_backward_begin(check_context(c, threads), &a, &grads, part, &state, &err);
    if (status == ATTN_OK)
        status = feed_all(c, g, state, size, check_chance(c, 30), part && part->sums_in, &r, &err);
    if (status == ATTN_OK)
        status = attn_sdpa_backward_finish(state, &err);
    if (status != ATTN_OK)
        check_fail(c, "%s: %s", attn_status_name(status), err.message);
    attn_sdpa_backward_end(state);
    const check_results rest = check_gradients_results(c, g, true);
    r.dq = rest.dq, r.dmask = rest.dmask, r.dalibi = rest.dalibi, r.dsink = rest.dsink;
    return r;
}

static void compare(check_case *c, const char *name, const double *got, const double *want,
                    int64_t n, int64_t size, int threads)
{
    check_difference d;
    if (want && !check_same(got, want, n, CHECK_ZERO_SIGNED, &d))
        check_fail(c,
                   "%s[%" PRId64 "] is %.17g in pieces of %" PRId64 " on %d threads, %.17g in one "
                   "call",
                   name, d.at, d.got, size, threads, d.want);
}

/* Replaces a tensor that the call has by its heads h0 .. h0+n-1; a size of 1 repeats in a mask. */
static void take_heads(attn_tensor *t, int64_t h0, int64_t n, bool repeats)
{
    if (t->shape[1] > (repeats ? 1 : 0))
        *t = check_heads_of(t, h0, n);
}

/* Compares heads h0 .. h0+n-1 of [B,H,size]; `got` has only these. */
static void compare_heads(check_case *c, const char *name, const double *got, const double *want,
                          int64_t B, int64_t H, int64_t h0, int64_t n, int64_t size)
{
    for (int64_t b = 0; want && b < B && !c->failed; b++) {
        check_difference d;
        if (!check_same(got + b * n * size, want + (b * H + h0) * size, n * size, CHECK_ZERO_SIGNED,
                        &d))
            check_fail(c, "%s of heads from %" PRId64 " on is %.17g as a part, %.17g in one call",
                       name, h0, d.got, d.want);
    }
}

/* Some key/value heads with their query heads. dmask is left out, because heads may share it. */
static void check_some_heads(check_case *c, const check_gradients *whole, const check_results *want)
{
    static check_gradients g; /* static: its call's arguments point into it */
    attn_sdpa_args *a = &g.call.args;
    const int64_t *q = whole->call.args.q.shape, *k = whole->call.args.k.shape;
    const int64_t B = q[0], H = q[1], Hk = k[1], Dv = whole->call.args.v.shape[3];
    if (H == 0 || Hk == 0)
        return;
    const int64_t g0 = check_between(c, 0, Hk - 1), n = check_between(c, 1, Hk - g0);
    const int64_t h0 = g0 * (H / Hk), h = n * (H / Hk);
    const attn_pieces_options part = {.struct_size = sizeof part, .head_offset = h0, .whole_H = H};
    g = *whole;
    a->lse = &g.call.lse.view;
    a->mask = a->mask ? &g.call.mask.view : NULL;
    g.grads.dlse = g.grads.dlse ? &g.dlse.view : NULL;
    g.grads.dmask = NULL;
    attn_tensor *const of_queries[] = {&a->q,         &a->out,     &g.call.lse.view, &g.dlse.view,
                                       &g.grads.dout, &g.grads.dq, &g.dq.view};
    attn_tensor *const of_keys[] = {&a->k, &a->v, &g.grads.dk, &g.grads.dv, &g.dk.view, &g.dv.view};
    for (size_t i = 0; i < sizeof of_queries / sizeof *of_queries; i++)
        take_heads(of_queries[i], h0, h, false);
    for (size_t i = 0; i < sizeof of_keys / sizeof *of_keys; i++)
        take_heads(of_keys[i], g0, n, false);
    take_heads(&g.call.mask.view, h0, h, true);
    a->alibi_slopes = a->alibi_slopes ? a->alibi_slopes + h0 : NULL;
    a->sink_logits = a->sink_logits ? a->sink_logits + h0 : NULL;
    const check_results got =
        check_gradients_in_pieces(c, &g, &part, NULL, 256, check_chance(c, 50) ? 1 : 3);
    compare_heads(c, "dq", got.dq, want->dq, B, H, h0, h, q[2] * q[3]);
    compare_heads(c, "dk", got.dk, want->dk, B, Hk, g0, n, k[2] * k[3]);
    compare_heads(c, "dv", got.dv, want->dv, B, Hk, g0, n, k[2] * Dv);
    compare_heads(c, "dalibi_slopes", got.dalibi, want->dalibi, 1, H, h0, h, 1);
    compare_heads(c, "dsink_logits", got.dsink, want->dsink, 1, H, h0, h, 1);
}

void check_gradients_hash(check_case *c, const attn_sdpa_args *a, const check_results *r)
{
    const double *arrays[] = {r->dq, r->dk, r->dv};
    const int64_t counts[] = {check_count(&a->q), check_count(&a->k), check_count(&a->v)};
    for (int i = 0; i < 3; i++)
        if (arrays[i])
            c->run->hash = check_hash(c->run->hash, arrays[i], counts[i]);
}

void check_pieces_backward(check_case *c)
{
    static const int64_t sizes[] = {256, 512, 4096};
    static const int threads[] = {1, 2, 8};
    static check_gradients g; /* static: the call's arguments point into it */
    g = (check_gradients){0};
    if (check_chance(c, 80))
        check_call_random_long(c, &g.call, WORK);
    else
        check_call_random(c, &g.call, WORK);
    check_gradients_choose(c, &g);
    g.call.args.workspace = NULL;
    const attn_sdpa_args *a = &g.call.args;
    const int64_t H = a->q.shape[1];
    attn_error err = {0};
    if (check_chance(c, 20))
        plant(c, check_chance(c, 50) ? &a->k : &a->v);
    attn_status status = attn_sdpa_forward(check_context(c, g.call.threads), a, &err);
    if (status == ATTN_OK)
        status = attn_sdpa_backward(check_context(c, g.call.threads), a, &g.grads, &err);
    if (status != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    const check_results want = check_gradients_results(c, &g, false);
    check_gradients_hash(c, a, &want);
    for (int x = 0; x < 9 && !c->failed; x++) {
        const int64_t size = sizes[x / 3];
        const int n = threads[x % 3];
        const check_results got = check_gradients_in_pieces(c, &g, NULL, NULL, size, n);
        compare(c, "dq", got.dq, want.dq, check_count(&a->q), size, n);
        compare(c, "dk", got.dk, want.dk, check_count(&a->k), size, n);
        compare(c, "dv", got.dv, want.dv, check_count(&a->v), size, n);
        compare(c, "dmask", got.dmask, want.dmask, a->mask ? check_count(a->mask) : 0, size, n);
        compare(c, "dalibi_slopes", got.dalibi, want.dalibi, H, size, n);
        compare(c, "dsink_logits", got.dsink, want.dsink, H, size, n);
    }
    if (!c->failed)
        check_some_heads(c, &g, &want);
    check_expect_intact(c);
}
