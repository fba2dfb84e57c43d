/* Keys in pieces: random calls with all rules, contents and layouts. The results of
 * attn_sdpa_begin, _feed and _finish have the bits of one call of attn_sdpa_forward, for pieces of
 * several sizes on several numbers of threads, and for parts of the rows and heads. Each piece lies
 * in guarded memory of its own, so a key outside of it cannot be read. Between some pieces the
 * state is saved, ended and loaded. */
#include "check_call.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORK 6e6
#define MOST_PIECES 8 /* pieces of 256 keys of the longest call */

typedef struct pieces {
    int64_t size; /* of each piece but the last one */
    int count;
    check_tensor k[MOST_PIECES], v[MOST_PIECES];
} pieces;

typedef struct results {
    double *out, *lse; /* lse may be NULL */
} results;

static void cut_all(check_case *c, const attn_sdpa_args *a, int64_t size, pieces *p)
{
    const int64_t S = a->k.shape[2];
    *p = (pieces){.size = size};
    for (int64_t j = 0; j < S; j += size) {
        const int64_t n = S - j < size ? S - j : size;
        p->k[p->count] = check_cut_keys(c, &a->k, j, n);
        p->v[p->count++] = check_cut_keys(c, &a->v, j, n);
    }
}

/* A call in pieces. */
typedef struct run_state {
    attn_sdpa_args args; /* without keys */
    const attn_pieces_options *part;
    attn_sdpa_state *state;
    int threads, loads;
    attn_error err;
} run_state;

typedef struct saved_bytes {
    unsigned char *data;
    size_t size, room;
} saved_bytes;

static int keep_bytes(void *user, const void *bytes, size_t n)
{
    saved_bytes *to = user;
    if (to->size + n > to->room) {
        to->room = 2 * (to->size + n);
        to->data = realloc(to->data, to->room);
    }
    if (!to->data)
        return 1;
    memcpy(to->data + to->size, bytes, n);
    to->size += n;
    return 0;
}

/* Saves the state and ends it, overwrites the results, and loads the state, as another process
 * would. The saved bytes are at an odd address. */
static attn_status save_and_load(check_case *c, run_state *r)
{
    saved_bytes saved = {0};
    const int threads = check_chance(c, 50) ? r->threads : 3 - r->threads % 2;
    keep_bytes(&saved, "", 1);
    attn_status status = attn_sdpa_save(r->state, keep_bytes, &saved, &r->err);
    if (status == ATTN_OK) {
        attn_sdpa_end(r->state);
        check_forget(&r->args.out);
        if (r->args.lse)
            check_forget(r->args.lse);
        status = attn_sdpa_load(check_context(c, threads), &r->args, r->part, saved.data + 1,
                                saved.size - 1, &r->state, &r->err);
        r->loads++;
    }
    free(saved.data);
    return status;
}

static attn_status feed(check_case *c, run_state *r, int64_t first, const attn_tensor *k,
                        const attn_tensor *v)
{
    attn_status status = ATTN_OK;
    if (r->loads < 3 && check_chance(c, 10))
        status = save_and_load(c, r);
    return status ? status : attn_sdpa_feed(r->state, first, k, v, &r->err);
}

/* Feeds every piece, or only those of which some key is needed. */
static attn_status feed_all(check_case *c, const pieces *p, run_state *r, bool skips)
{
    attn_status status = ATTN_OK;
    for (int n = 0; n < p->count && status == ATTN_OK; n++) {
        const int64_t first = n * p->size, end = first + p->k[n].view.shape[2];
        if (skips && attn_sdpa_next(r->state, NULL) >= end)
            continue;
        status = feed(c, r, first, &p->k[n].view, &p->v[n].view);
    }
    return status;
}

/* Feeds exactly the keys that are needed, at most `size` at a time, from `a`. */
static attn_status feed_needed(check_case *c, const attn_sdpa_args *a, int64_t size, run_state *r)
{
    attn_status status = ATTN_OK;
    int64_t first, past;
    while (status == ATTN_OK && (first = attn_sdpa_next(r->state, &past)) < a->k.shape[2]) {
        const int64_t n = past - first < size ? past - first : size;
        const check_tensor k = check_cut_keys(c, &a->k, first, n),
                           v = check_cut_keys(c, &a->v, first, n);
        status = feed(c, r, first, &k.view, &v.view);
    }
    return status;
}

/* The call in pieces: `p`, or what attn_sdpa_next() asks for if p is NULL. */
static void run(check_case *c, const attn_sdpa_args *all, const attn_sdpa_args *a,
                const attn_pieces_options *part, const pieces *p, int threads)
{
    run_state r = {.args = *a, .part = part, .threads = threads};
    const bool skips = check_chance(c, 50);
    int sweeps = 0;
    r.args.k.data = r.args.v.data = NULL;
    attn_status status =
        attn_sdpa_begin(check_context(c, threads), &r.args, part, &r.state, &r.err);
    while (status == ATTN_OK || status == ATTN_AGAIN) {
        status = p ? feed_all(c, p, &r, skips) : feed_needed(c, all, 256, &r);
        if (status == ATTN_OK && check_chance(c, 5))
            status = save_and_load(c, &r);
        if (status == ATTN_OK)
            status = attn_sdpa_finish(r.state, &r.err);
        if (status == ATTN_OK || ++sweeps == 4)
            break;
    }
    if (status == ATTN_OK && check_chance(c, 5))
        status = save_and_load(c, &r);
    if (status != ATTN_OK)
        check_fail(c, "%s: %s", attn_status_name(status), r.err.message);
    attn_sdpa_end(r.state);
}

static results results_of(check_case *c, const attn_sdpa_args *a)
{
    return (results){check_tensor_copy(c, &a->out), a->lse ? check_tensor_copy(c, a->lse) : NULL};
}

static void compare(check_case *c, const char *name, const double *got, const double *want,
                    int64_t n, int64_t size, int threads)
{
    check_difference d;
    if (!check_same(got, want, n, CHECK_ZERO_SIGNED, &d))
        check_fail(c,
                   "%s[%" PRId64 "] is %.17g in pieces of %" PRId64 " on %d threads, %.17g in one "
                   "call",
                   name, d.at, d.got, size, threads, d.want);
}

/* All rows and heads, in pieces of three sizes, on three numbers of threads. */
static void check_whole(check_case *c, const attn_sdpa_args *a, const results *want)
{
    static const int64_t sizes[] = {256, 512, 4096};
    static const int threads[] = {1, 2, 8};
    static pieces p;
    for (int x = 0; x < 3 && !c->failed; x++) {
        cut_all(c, a, sizes[x], &p);
        for (int y = 0; y < 3 && !c->failed; y++) {
            const bool exact = check_chance(c, 25);
            check_forget(&a->out);
            run(c, a, a, NULL, exact ? NULL : &p, threads[y]);
            const results got = results_of(c, a);
            compare(c, "out", got.out, want->out, check_count(&a->out), sizes[x], threads[y]);
            if (a->lse)
                compare(c, "lse", got.lse, want->lse, check_count(a->lse), sizes[x], threads[y]);
        }
    }
}

/* ------------------------------------------------------------------------------------- parts */

#define MOST_ROWS 1200

/* Positions of rows in the whole: one block of every few, as a rank has them; or random positions,
 * of which several may be equal. */
static int64_t choose_positions(check_case *c, int64_t T, int64_t *positions)
{
    int64_t n = 0;
    if (check_chance(c, 60)) {
        static const int64_t blocks[] = {1, 16, 64, 64, 100};
        const int64_t block = CHECK_PICK(c, blocks), ranks = check_between(c, 1, 4);
        const int64_t rank = check_between(c, 0, ranks - 1);
        for (int64_t i = 0; i < T; i++)
            if (i / block % ranks == rank)
                positions[n++] = i;
        return n;
    }
    n = check_between(c, 0, T < 40 ? T : 40);
    for (int64_t i = 0; i < n; i++)
        positions[i] = check_between(c, 0, T - 1);
    return n;
}

static void compare_part(check_case *c, const char *name, const attn_tensor *got,
                         const double *want, int64_t H, int64_t T, int64_t h0,
                         const int64_t *positions)
{
    const int64_t *n = got->shape;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t d = 0; d < n[3] && !c->failed; d++) {
                    const double x = ref_get(got, b, h, i, d);
                    const int64_t at = (((b * H + h0 + h) * T + positions[i]) * n[3]) + d;
                    check_difference difference;
                    if (!check_same(&x, &want[at], 1, CHECK_ZERO_SIGNED, &difference))
                        check_fail(c,
                                   "%s of head %" PRId64 ", position %" PRId64
                                   " is %.17g as part of a whole, %.17g in one call",
                                   name, h0 + h, positions[i], x, want[at]);
                }
}

/* Some rows of some heads. */
static void check_part(check_case *c, const attn_sdpa_args *a, const results *want)
{
    static int64_t positions[MOST_ROWS];
    const int64_t H = a->q.shape[1], T = a->q.shape[2], Hk = a->k.shape[1];
    if (H == 0 || T == 0 || T > MOST_ROWS)
        return;
    const int64_t n = choose_positions(c, T, positions), G = H / Hk;
    const int64_t g0 = check_between(c, 0, Hk - 1), g = check_between(c, 1, Hk - g0), h0 = g0 * G;
    const attn_pieces_options part = {.struct_size = sizeof part,
                                      .q_positions = positions,
                                      .whole_T = T,
                                      .head_offset = h0,
                                      .whole_H = H};
    attn_sdpa_args some = *a, all = *a;
    const check_tensor q = check_take_rows(c, &a->q, h0, g * G, positions, n, false);
    const check_tensor out = check_take_rows(c, &a->out, h0, g * G, positions, n, false);
    check_tensor lse, mask;
    some.q = q.view, some.out = out.view;
    all.k = some.k = check_heads_of(&a->k, g0, g);
    all.v = some.v = check_heads_of(&a->v, g0, g);
    if (a->lse) {
        lse = check_take_rows(c, a->lse, h0, g * G, positions, n, false);
        some.lse = &lse.view;
    }
    if (a->mask) {
        mask = check_take_rows(c, a->mask, h0, g * G, positions, n, true);
        some.mask = &mask.view;
    }
    some.alibi_slopes = a->alibi_slopes ? a->alibi_slopes + h0 : NULL;
    some.sink_logits = a->sink_logits ? a->sink_logits + h0 : NULL;
    check_forget(&some.out);
    run(c, &all, &some, &part, NULL, check_chance(c, 50) ? 1 : 3);
    compare_part(c, "out", &some.out, want->out, H, T, h0, positions);
    if (a->lse)
        compare_part(c, "lse", some.lse, want->lse, H, T, h0, positions);
}

/* ---------------------------------------------------------------------------------- the check */

/* Plants what makes rows be swept again: keys and values that are not finite, and values at the
 * end that are so large that sums overflow only there. */
static void plant(check_case *c, check_call *call)
{
    static const double special[] = {NAN, INFINITY, -INFINITY};
    const attn_tensor *v = &call->v.view, *k = &call->k.view;
    const double largest = v->dtype == ATTN_F64   ? 0x1.8p1023
                           : v->dtype == ATTN_F16 ? 60000
                                                  : 0x1.8p127;
    if (check_count(v) == 0 || check_count(k) == 0)
        return;
    for (int n = 0; n < 3 && check_chance(c, 60); n++) {
        const attn_tensor *t = check_chance(c, 70) ? v : k;
        check_store(t, check_between(c, 0, t->shape[0] - 1), check_between(c, 0, t->shape[1] - 1),
                    check_between(c, 0, t->shape[2] - 1), check_between(c, 0, t->shape[3] - 1),
                    CHECK_PICK(c, special));
    }
    for (int64_t j = v->shape[2] - 5 > 0 ? v->shape[2] - 5 : 0; j < v->shape[2]; j++)
        for (int64_t b = 0; b < v->shape[0]; b++)
            for (int64_t h = 0; h < v->shape[1] && check_chance(c, 70); h++)
                check_store(v, b, h, j, 0, largest);
    check_call_say(c, "special");
}

void check_pieces(check_case *c)
{
    static check_call call; /* static: the call's arguments point into it */
    if (check_chance(c, 80))
        check_call_random_long(c, &call, WORK);
    else
        check_call_random(c, &call, WORK);
    if (check_chance(c, 40))
        plant(c, &call);
    attn_sdpa_args *a = &call.args;
    attn_error err = {0};
    a->scores = NULL;
    if (attn_sdpa_forward(check_context(c, call.threads), a, &err) != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    const results want = results_of(c, a);
    c->run->hash = check_hash(c->run->hash, want.out, check_count(&a->out));
    if (a->lse)
        c->run->hash = check_hash(c->run->hash, want.lse, check_count(a->lse));
    check_whole(c, a, &want);
    if (!c->failed)
        check_part(c, a, &want);
    check_expect_intact(c);
}
