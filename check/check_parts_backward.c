/* The backward of rows that are a part of a whole: random calls with all rules, contents and
 * layouts, whose rows are dealt to several parts. dq and dmask of a part's rows have the bits of
 * one call with all rows. The sums over queries of all parts, added in double, are within the
 * bounds of one call (ref/). A single part with all rows has all bits of one call. Parts that pass
 * sums on, the last rows first (queries in pieces), have the bits of dk and dv, too. */
#include "check_gradients.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORK 2e6
#define MOST_ROWS 1200

/* The parts of one call: row i is in part i / block % count. */
typedef struct deal {
    int64_t block, count;
    int64_t positions[MOST_ROWS], n; /* of one part */
} deal;

static void choose_deal(check_case *c, deal *d)
{
    static const int64_t blocks[] = {1, 7, 64, 64, 100};
    d->block = CHECK_PICK(c, blocks);
    d->count = check_between(c, 1, 4);
}

static void take_part(deal *d, int64_t T, int64_t number)
{
    d->n = 0;
    for (int64_t i = 0; i < T; i++)
        if (i / d->block % d->count == number)
            d->positions[d->n++] = i;
}

static bool repeats_rows(const attn_tensor *mask) { return mask->shape[2] == 1; }

/* Sets g to the part of `whole`. */
static void make_part(check_case *c, const check_gradients *whole, const deal *d,
                      check_gradients *g)
{
    attn_sdpa_args *a = &g->call.args;
    const int64_t H = whole->call.args.q.shape[1];
    *g = *whole;
#define TAKE(t, repeats) check_take_rows(c, t, 0, H, d->positions, d->n, repeats)
    g->call.q = TAKE(&whole->call.args.q, false);
    g->call.out = TAKE(&whole->call.args.out, false);
    g->call.lse = TAKE(whole->call.args.lse, false);
    g->dout = TAKE(&whole->grads.dout, false);
    a->q = g->call.q.view, a->out = g->call.out.view, a->lse = &g->call.lse.view;
    g->grads.dout = g->dout.view;
    if (whole->grads.dlse) {
        g->dlse = TAKE(whole->grads.dlse, false);
        g->grads.dlse = &g->dlse.view;
    }
    if (check_gradients_want(&whole->dq)) {
        g->dq = TAKE(&whole->grads.dq, false);
        g->grads.dq = g->dq.view;
    }
    if (a->mask) {
        const check_tensor mask =
            check_take_rows(c, whole->call.args.mask, 0, whole->call.args.mask->shape[1],
                            d->positions, d->n, true);
        g->call.mask = mask;
        a->mask = &g->call.mask.view;
    }
    if (whole->grads.dmask) {
        g->dmask = check_take_rows(c, whole->grads.dmask, 0, whole->grads.dmask->shape[1],
                                   d->positions, d->n, true);
        g->grads.dmask = &g->dmask.view;
    }
#undef TAKE
    if (d->count == 1)
        return;
    /* Gradients that are added up are double, so that they are not rounded before the sum. */
    if (check_gradients_want(&whole->dk))
        g->dk.view.dtype = g->grads.dk.dtype = ATTN_F64;
    if (check_gradients_want(&whole->dv))
        g->dv.view.dtype = g->grads.dv.dtype = ATTN_F64;
    if (whole->grads.dmask && repeats_rows(whole->grads.dmask)) {
        g->dmask = check_tensor_new(c, ATTN_F64, whole->grads.dmask->shape, CHECK_LOOSE);
        g->grads.dmask = &g->dmask.view;
    }
}

/* Compares rows `positions` of [B,H,T,size], as shaped in `all`, with those of the part. */
static void compare_rows(check_case *c, const char *name, const double *got, const double *want,
                         const attn_tensor *all, const deal *d)
{
    const int64_t *n = all->shape, size = n[3];
    for (int64_t h = 0; want && h < n[0] * n[1]; h++)
        for (int64_t i = 0; i < d->n && !c->failed; i++) {
            check_difference x;
            if (!check_same(got + (h * d->n + i) * size, want + (h * n[2] + d->positions[i]) * size,
                            size, CHECK_ZERO_SIGNED, &x))
                check_fail(c,
                           "%s[%" PRId64 "] at position %" PRId64 " is %.17g with %" PRId64
                           " of the rows, %.17g in one call",
                           name, x.at, d->positions[i], x.got, d->n, x.want);
        }
}

static void add(double *sum, const double *x, int64_t n)
{
    for (int64_t i = 0; sum && i < n; i++)
        sum[i] += x[i];
}

/* Compares gradients over all rows, computed as `how` says, with those of one call. */
static void compare_all(check_case *c, const check_gradients *g, const check_results *got,
                        const check_results *want, const char *how)
{
    const attn_sdpa_args *a = &g->call.args;
    const struct {
        const char *name;
        const double *got, *want;
        int64_t n;
    } arrays[] = {{"dk", got->dk, want->dk, check_count(&a->k)},
                  {"dv", got->dv, want->dv, check_count(&a->v)},
                  {"dmask", got->dmask, want->dmask, a->mask ? check_count(a->mask) : 0},
                  {"dalibi_slopes", got->dalibi, want->dalibi, a->q.shape[1]},
                  {"dsink_logits", got->dsink, want->dsink, a->q.shape[1]}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        check_difference d;
        if (arrays[i].want &&
            !check_same(arrays[i].got, arrays[i].want, arrays[i].n, CHECK_ZERO_SIGNED, &d))
            check_fail(c, "%s[%" PRId64 "] is %.17g %s, %.17g in one call", arrays[i].name, d.at,
                       d.got, how, d.want);
    }
}

/* Compares a sum over all parts with the reference. */
static void judge(check_case *c, check_gradients *g, const char *name, const double *sum,
                  const attn_tensor *like, const ref_grad *want)
{
    if (!sum || !want->x || c->failed)
        return;
    check_tensor t = check_tensor_new(c, ATTN_F64, like->shape, CHECK_DENSE);
    const int64_t *n = like->shape;
    for (int64_t x = 0; x < check_count(&t.view); x++)
        check_store(&t.view, x / n[3] / n[2] / n[1], x / n[3] / n[2] % n[1], x / n[3] % n[2],
                    x % n[3], sum[x]);
    check_gradients_judge(c, g, name, &t, want);
}

static void judge_sums(check_case *c, check_gradients *g, const check_results *sums)
{
    const attn_sdpa_args *a = &g->call.args;
    check_gradients_reference(c, g);
    judge(c, g, "dk", sums->dk, &a->k, &g->want.dk);
    judge(c, g, "dv", sums->dv, &a->v, &g->want.dv);
    if (a->mask && repeats_rows(a->mask))
        judge(c, g, "dmask", sums->dmask, a->mask, &g->want.dmask);
    if (sums->dalibi)
        check_gradients_judge_heads(c, "dalibi", sums->dalibi, &g->want.dalibi, a->q.shape[1]);
    if (sums->dsink)
        check_gradients_judge_heads(c, "dsink", sums->dsink, &g->want.dsink, a->q.shape[1]);
}

/* All parts of the call. */
static void check_parts(check_case *c, check_gradients *g, const check_results *want, bool finite)
{
    static const int threads[] = {1, 2, 3};
    static const int64_t sizes[] = {256, 4096};
    static check_gradients part; /* static: its call's arguments point into it */
    static deal d;
    const attn_sdpa_args *a = &g->call.args;
    const int64_t T = a->q.shape[2], H = a->q.shape[1];
    check_results sums = check_gradients_results(c, g, true);
    double *const arrays[] = {sums.dmask, sums.dalibi, sums.dsink};
    const int64_t counts[] = {a->mask ? check_count(a->mask) : 0, H, H};
    for (int i = 0; i < 3; i++)
        if (arrays[i])
            memset(arrays[i], 0, (size_t)counts[i] * sizeof(double));
    choose_deal(c, &d);
    for (int64_t r = 0; r < d.count && !c->failed; r++) {
        take_part(&d, T, r);
        make_part(c, g, &d, &part);
        const attn_pieces_options options = {.struct_size = sizeof options,
                                             .q_positions = d.positions,
                                             .whole_T = T};
        const check_results got =
            check_gradients_in_pieces(c, &part, &options, NULL, CHECK_PICK(c, sizes),
                                      CHECK_PICK(c, threads));
        compare_rows(c, "dq", got.dq, want->dq, &a->q, &d);
        if (a->mask && !repeats_rows(a->mask))
            compare_rows(c, "dmask", got.dmask, want->dmask, a->mask, &d);
        else
            add(sums.dmask, got.dmask, counts[0]);
        add(sums.dk, got.dk, check_count(&a->k));
        add(sums.dv, got.dv, check_count(&a->v));
        add(sums.dalibi, got.dalibi, H);
        add(sums.dsink, got.dsink, H);
        if (d.count == 1)
            compare_all(c, g, &got, want, "with all rows at their positions");
    }
    if (d.count > 1 && finite && !c->failed)
        judge_sums(c, g, &sums);
}

/* -------------------------------------------------------------------------- queries in pieces */

/* Cuts the rows into parts, each of which begins at a multiple of 64 rows of its sequence. Returns
 * their number n; part r has rows starts[r] .. starts[r+1]-1. */
static int64_t choose_starts(check_case *c, const attn_sdpa_args *a, int64_t *starts)
{
    const int64_t T = a->q.shape[2];
    int64_t n = 0, sequence = 0, begin = 0;
    for (int64_t i = 0; i < T; i++) {
        for (; a->cu_seqlens_q && sequence <= a->sequences && a->cu_seqlens_q[sequence] == i;
             sequence++)
            begin = i;
        if ((i - begin) % 64 == 0 && (i == 0 || check_chance(c, 40)))
            starts[n++] = i;
    }
    starts[n] = T;
    return n;
}

/* dk and dv in the type that the call computes in, as sums need it. */
static void widen_gradients(check_case *c, check_gradients *g)
{
    const attn_sdpa_args *a = &g->call.args;
    const bool wide = a->q.dtype == ATTN_F64 ||
                      (a->q.dtype == ATTN_F32 && a->precision == ATTN_PRECISION_ACCURATE);
    const attn_dtype dtype = wide ? ATTN_F64 : ATTN_F32;
    if (check_gradients_want(&g->dk))
        g->dk = check_tensor_new(c, dtype, a->k.shape, CHECK_LOOSE), g->grads.dk = g->dk.view;
    if (check_gradients_want(&g->dv))
        g->dv = check_tensor_new(c, dtype, a->v.shape, CHECK_LOOSE), g->grads.dv = g->dv.view;
}

/* All parts, the one with the last rows first; each continues the sums of the one before. */
static void check_passing_sums(check_case *c, const check_gradients *g, const check_results *want)
{
    static const int threads[] = {1, 2, 8};
    static const int64_t sizes[] = {256, 512, 4096};
    static check_gradients part; /* static: its call's arguments point into it */
    static deal d;
    int64_t starts[MOST_ROWS + 1];
    check_results sums = {0};
    const int64_t n = choose_starts(c, &g->call.args, starts);
    const check_results keys = {.dk = want->dk, .dv = want->dv};
    d.count = 1;
    for (int64_t r = n - 1; r >= 0 && !c->failed; r--) {
        d.n = 0;
        for (int64_t i = starts[r]; i < starts[r + 1]; i++)
            d.positions[d.n++] = i;
        make_part(c, g, &d, &part);
        const bool first = r == n - 1;
        const attn_pieces_options options = {.struct_size = sizeof options,
                                             .q_positions = d.positions,
                                             .whole_T = g->call.args.q.shape[2],
                                             .sums_in = !first || check_chance(c, 30),
                                             .sums_out = r > 0};
        sums = check_gradients_in_pieces(c, &part, &options, first ? NULL : &sums,
                                         CHECK_PICK(c, sizes), CHECK_PICK(c, threads));
        compare_rows(c, "dq", sums.dq, want->dq, &g->call.args.q, &d);
    }
    if (n > 0 && !c->failed)
        compare_all(c, g, &sums, &keys, "with queries in pieces");
}

/* ----------------------------------------------------------------------------------- the checks */

/* A random call; some contents are not finite unless `finite`. */
static check_results run_whole(check_case *c, check_gradients *g, bool finite, bool sums)
{
    *g = (check_gradients){0};
    if (check_chance(c, 80))
        check_call_random_long(c, &g->call, WORK);
    else
        check_call_random(c, &g->call, WORK);
    check_gradients_choose(c, g);
    if (sums)
        widen_gradients(c, g);
    g->call.args.workspace = NULL;
    const attn_tensor *t = check_chance(c, 50) ? &g->call.args.k : &g->call.args.q;
    if (!finite && check_count(t) > 0)
        check_store(t, check_between(c, 0, t->shape[0] - 1), check_between(c, 0, t->shape[1] - 1),
                    check_between(c, 0, t->shape[2] - 1), 0, check_chance(c, 50) ? NAN : INFINITY);
    attn_error err = {0};
    attn_context *ctx = check_context(c, g->call.threads);
    attn_status status = attn_sdpa_forward(ctx, &g->call.args, &err);
    if (status == ATTN_OK)
        status = attn_sdpa_backward(ctx, &g->call.args, &g->grads, &err);
    if (status != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    return check_gradients_results(c, g, false);
}

void check_parts_backward(check_case *c)
{
    static check_gradients g; /* static: the call's arguments point into it */
    const bool finite = check_chance(c, 80);
    const check_results want = run_whole(c, &g, finite, false);
    if (!c->failed && g.call.args.q.shape[2] <= MOST_ROWS)
        check_parts(c, &g, &want, finite);
    check_expect_intact(c);
}

void check_queries_backward(check_case *c)
{
    static check_gradients g;
    const check_results want = run_whole(c, &g, check_chance(c, 80), true);
    check_gradients_hash(c, &g.call.args, &want);
    if (!c->failed && g.call.args.q.shape[2] <= MOST_ROWS)
        check_passing_sums(c, &g, &want);
    check_expect_intact(c);
}
