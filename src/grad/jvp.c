/* Attention, forward mode: the tangents of out and lse when q, k and v move along given tangents.
 *
 *   for each tile of W queries, for each block of 64 keys that some query of the tile sees
 *     P as in the backward;  tS^T = K tQ^T + tK Q^T, times the derivative of the cap;  A = P tS
 *     acc^T += V^T A^T + tV^T P^T;  mu += the sum of A over the keys
 *   tout = acc - mu out;  tlse = mu
 *
 * A task is one tile and owns its rows, so tasks share no sums. A masked pair has P = A = 0: the
 * code selects this 0. Rows of v that are not finite are treated separately, as in backward_tile.c.
 */
#include "../core/hand_over.h"
#include "backward.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef struct jvp {
    attni_plan plan;
    attn_sdpa_tangents t;
    bool has_q, has_k, has_v;
    bool writes; /* some element of tout or tlse is to be written */
    int W;
    int workers;
    size_t worker_bytes, scratch_bytes;
    char *scratch;
    atomic_llong next;
} jvp;

/* State of one tile. All arrays are of R. */
typedef struct jvp_worker {
    attni_worker forward; /* its st holds scores, then weights */
    const jvp *j;
    attni_sequence sequence;
    attni_tile tile;
    char *tqt;                                        /* [D][W] */
    char *lse, *factor, *zero, *one;                  /* [W]; one: [2][W] */
    char *ts, *part, *raw, *kept, *undropped_weights; /* [block][W] */
    char *acc, *mu;                                   /* [Dv][W], [W] */
    char *ones;                                       /* [block] */
    char *rows;                                       /* [W][max(D, Dv)] */
    char *tk, *tv, *clean;                            /* [block][D], [block][Dv] */
} jvp_worker;

static void carve(jvp_worker *w, attni_layout *layout)
{
    const attni_plan *p = &w->j->plan;
    attni_worker *f = &w->forward;
    const size_t line = (size_t)w->j->W * p->real, block = ATTNI_BLOCK * p->real;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    w->tile.qt = attni_layout_take(layout, D, line);
    w->tqt = attni_layout_take(layout, D, line);
    w->lse = attni_layout_take(layout, 7, line);
    if (w->lse)
        w->factor = w->lse + line, w->zero = w->factor + line, w->one = w->zero + line,
        w->mu = w->one + 2 * line, f->mx = w->mu + line;
    f->st = attni_layout_take(layout, ATTNI_BLOCK, line);
    w->ts = attni_layout_take(layout, ATTNI_BLOCK, line);
    w->part = attni_layout_take(layout, ATTNI_BLOCK, line);
    if (p->args.softcap > 0)
        w->raw = attni_layout_take(layout, ATTNI_BLOCK, line);
    if (p->args.dropout > 0) {
        w->kept = attni_layout_take(layout, ATTNI_BLOCK, line);
        w->undropped_weights = attni_layout_take(layout, ATTNI_BLOCK, line);
    }
    if (p->args.mask)
        f->biases = attni_layout_take(layout, ATTNI_BLOCK, line);
    w->acc = attni_layout_take(layout, Dv, line);
    w->rows = attni_layout_take(layout, D > Dv ? D : Dv, line);
    w->ones = attni_layout_take(layout, 1, block);
    f->k = attni_layout_take(layout, D, block);
    f->v = attni_layout_take(layout, Dv, block);
    w->tk = attni_layout_take(layout, D, block);
    w->tv = attni_layout_take(layout, Dv, block);
    w->clean = attni_layout_take(layout, Dv, block);
}

/* ------------------------------------------------------------------------------- check and plan */

static attn_status check(jvp *j, const attn_sdpa_args *args, const attn_sdpa_tangents *tangents,
                         attn_error *err)
{
    attni_plan *p = &j->plan;
    attn_sdpa_tangents *t = &j->t;
    const attn_sdpa_args *a = &p->args;
    attn_status s;
    if ((s = attni_struct_read(ATTNI_SDPA_TANGENTS, t, tangents, "tangents", err)) ||
        (s = attni_check_forward(p, args, NULL, err)))
        return s;
    j->has_q = attni_wanted(&t->tq);
    j->has_k = attni_wanted(&t->tk);
    j->has_v = attni_wanted(&t->tv);
    if ((j->has_q && (s = attni_check_gradient(p, &t->tq, "tq", &a->q, p->D, false, err))) ||
        (j->has_k && (s = attni_check_gradient(p, &t->tk, "tk", &a->k, p->D, false, err))) ||
        (j->has_v && (s = attni_check_gradient(p, &t->tv, "tv", &a->v, p->Dv, false, err))) ||
        (s = attni_check_gradient(p, &t->tout, "tout", &a->out, p->Dv, true, err)))
        return s;
    if (t->tlse && ((s = attni_check_gradient(p, t->tlse, "tlse", &a->q, 1, true, err)) ||
                    (s = attni_check_wide(t->tlse, "tlse", err))))
        return s;
    j->writes = !attni_empty(&t->tout) || (t->tlse && !attni_empty(t->tlse));
    return attni_check_keys(p, j->writes, err);
}

static bool count_tasks(jvp *j, int threads)
{
    attni_plan *p = &j->plan;
    int64_t heads;
    if (__builtin_mul_overflow(p->B, p->H, &heads))
        return false;
    p->task_rows = j->W;
    p->tasks_per_head = heads ? attni_tasks_of_head(p) : 0;
    if (__builtin_mul_overflow(heads, p->tasks_per_head, &p->tasks))
        return false;
    /* for less than some tens of microseconds of work, waking a thread does not pay */
    const double flop =
        (double)heads * (double)p->T * (double)p->S * (double)(3 * p->D + 2 * p->Dv);
    const double worth = flop / 1e6;
    const int64_t most = p->tasks < threads ? p->tasks : threads;
    j->workers = worth < (double)most ? 1 + (int)worth : (int)most;
    j->workers = j->workers < 1 ? 1 : j->workers;
    return true;
}

static attn_status make_plan(jvp *j, int isa, int threads, attn_error *err)
{
    attni_plan *p = &j->plan;
    j->W = attni_plan_derivative(p, p->T, isa);
    if (!j->writes)
        return ATTN_OK; /* no task */
    const bool counted = count_tasks(j, threads);
    jvp_worker w = {.j = j};
    attni_layout layout = {0};
    carve(&w, &layout);
    j->worker_bytes = layout.used;
    if (!counted || layout.overflow ||
        !attni_size_mul(j->worker_bytes, (size_t)j->workers, &j->scratch_bytes))
        return attni_derivative_too_large(p, err);
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------------- a tile */

/* Rows of t as R: in place if possible, otherwise converted into `buffer`. */
static const char *rows_of(const attni_plan *p, const attn_tensor *t, const char *from,
                           char *buffer, int n, ptrdiff_t *ld)
{
    const int64_t width = t->shape[3];
    *ld = (ptrdiff_t)(width ? t->stride[2] : 0);
    if (width && attni_in_place(p, t))
        return from;
    if (width)
        attni_convert_rows(p, buffer, from, *ld, t->dtype, t->stride[3], n, width);
    *ld = (ptrdiff_t)width;
    return buffer;
}

static char *query_row(const jvp_worker *w, const attn_tensor *t, int64_t i)
{
    return attni_at(t, w->sequence.b, w->sequence.h, w->sequence.i_base + w->tile.i0 + i, 0);
}

static char *key_row(const jvp_worker *w, const attn_tensor *t, int64_t j)
{
    return attni_at(t, w->sequence.b, w->sequence.hk, w->sequence.j_base + j, 0);
}

static bool load_tile(jvp_worker *w)
{
    const attni_plan *p = &w->j->plan;
    attni_tile *t = &w->tile;
    bool scaled = false;
    ptrdiff_t ld;
    const char *rows = rows_of(p, &p->args.q, query_row(w, &p->args.q, 0), w->rows, t->rows, &ld);
    p->kernels->pack(t->qt, rows, ld, t->rows, p->D, p->scale_pow2, t->nv);
    if (w->j->has_q) {
        const attn_tensor *tq = &w->j->t.tq;
        rows = rows_of(p, tq, query_row(w, tq, 0), w->rows, t->rows, &ld);
        p->kernels->pack(w->tqt, rows, ld, t->rows, p->D, p->scale_pow2, t->nv);
    }
    for (int i = 0; i < t->W; i++) {
        double lse = 0;
        if (i < t->rows)
            attni_load_row_f64(&lse, query_row(w, p->args.lse, i), p->args.lse->dtype, 1, 1);
        attni_set_lse(p, w->lse, w->factor, i, lse);
        scaled |= attni_real(p, w->factor, i) != 1;
        attni_set_real(p, w->zero, i, 0);
        attni_set_real(p, w->one, i, 1);
        attni_set_real(p, w->one, t->W + i, 1);
    }
    for (int r = 0; r < ATTNI_BLOCK; r++)
        attni_set_real(p, w->ones, r, 1);
    return scaled;
}

/* ts = the tangent of the scores of n keys from j0 on. */
static void tangent_scores(jvp_worker *w, int64_t j0, int n)
{
    const attni_plan *p = &w->j->plan;
    const attni_kernels *kernels = p->kernels;
    const attni_tile *t = &w->tile;
    ptrdiff_t ld;
    if (w->j->has_q) {
        const char *k = attni_tile_rows(&w->forward, false, j0, &ld);
        kernels->scores(w->ts, w->forward.mx, w->tqt, k, ld, n, p->D, t->nv, NULL);
    } else {
        memset(w->ts, 0, (size_t)n * (size_t)t->W * p->real);
    }
    if (w->j->has_k) {
        const attn_tensor *tk = &w->j->t.tk;
        const char *k = rows_of(p, tk, key_row(w, tk, j0), w->tk, n, &ld);
        kernels->scores(w->part, w->forward.mx, t->qt, k, ld, n, p->D, t->nv, NULL);
        kernels->fold(w->ts, w->part, n, w->one, t->nv);
    }
    if (p->scale_mantissa != 1)
        kernels->scale_softcap(w->ts, n, p->scale_mantissa, 0, t->nv);
}

/* acc += rows^T x, for n rows. x is 0 where a lane does not see a row; `seen` has these lanes as
 * bits. A row that is not finite is skipped in lanes that do not see it. */
static void add_values(jvp_worker *w, const char *rows, ptrdiff_t ld, const char *x,
                       const uint64_t *seen, int n, bool first)
{
    const attni_plan *p = &w->j->plan;
    const int W = w->tile.W;
    const size_t row = (size_t)p->Dv * p->real;
    uint64_t nonfinite = 0;
    p->kernels->dots(w->part, rows, ld, rows, ld, n, p->Dv);
    for (int r = 0; r < n; r++)
        nonfinite |= (uint64_t)!isfinite(attni_real(p, w->part, r)) << r;
    const char *clean = rows;
    for (int r = 0; r < n && nonfinite; r++) {
        clean = w->clean;
        if (nonfinite >> r & 1)
            memset(w->clean + (size_t)r * row, 0, row);
        else
            memcpy(w->clean + (size_t)r * row, rows + r * ld * (ptrdiff_t)p->real, row);
    }
    p->kernels->values(w->acc, NULL, NULL, clean, nonfinite ? (ptrdiff_t)p->Dv : ld, x, n, p->Dv,
                       w->tile.nv, first ? ATTNI_FIRST : 0, NULL);
    for (; nonfinite; nonfinite &= nonfinite - 1) {
        const int r = __builtin_ctzll(nonfinite);
        for (int i = 0; i < w->tile.rows; i++)
            for (int64_t c = 0; c < p->Dv && seen[r] >> i & 1; c++) {
                const double sum = attni_real(p, w->acc, c * W + i);
                attni_set_real(p, w->acc, c * W + i,
                               sum + attni_real(p, x, (int64_t)r * W + i) *
                                         attni_real(p, rows, r * (int64_t)ld + c));
            }
    }
}

/* On return st holds the weights, before dropout, and ts the weights after dropout times the
 * tangents of the scores; mu has grown by the block's sum. */
static void weigh_block(jvp_worker *w, int64_t j0, int n, attni_class visible, bool scaled,
                        uint64_t *seen, bool first)
{
    const attni_plan *p = &w->j->plan;
    const attni_kernels *kernels = p->kernels;
    attni_worker *f = &w->forward;
    attni_tile *t = &w->tile;
    const size_t bytes = (size_t)n * (size_t)t->W * p->real;
    attni_chunk_block b = {j0, n, visible, ATTNI_ROUTE_TILES, .st = f->st, .mx = f->mx};
    attni_block_rows(f, &b, false);
    attni_tile_products(f, t, &b);
    if (w->raw)
        memcpy(w->raw, f->st, bytes);
    attni_tile_biases(f, t, &b, ATTN_STAGE_BIASED);
    kernels->weights_from_lse(f->st, f->st, w->lse, p->log2_scale, n, t->nv);
    if (scaled)
        kernels->rescale(f->st, n, w->factor, t->nv);
    for (int r = 0; r < n; r++) {
        seen[r] = 0;
        for (int i = 0; i < t->rows; i++)
            seen[r] |= (uint64_t) !(attni_real(p, f->st, (int64_t)r * t->W + i) < 0) << i;
    }
    char *mass = w->ts; /* what mu sums up: weights before dropout, times tangents */
    if (w->kept) {
        memcpy(w->undropped_weights, w->ts, bytes);
        memcpy(w->part, f->st, bytes);
        kernels->drop(w->kept, f->st, n, p->args.dropout_seed, p->drop_threshold,
                      (uint64_t)(w->sequence.b * p->H + w->sequence.h),
                      (uint64_t)(w->sequence.i_base + t->i0), (uint64_t)(w->sequence.j_base + j0),
                      1 / (1 - p->args.dropout), t->nv);
        kernels->score_grads(w->undropped_weights, w->part, NULL, w->zero, n, t->nv);
        mass = w->undropped_weights;
    }
    kernels->score_grads(w->ts, f->st, w->kept, w->zero, n, t->nv);
    if (w->raw) {
        kernels->cap_grads(w->ts, w->raw, n, p->capped_mantissa, p->args.softcap, t->nv);
        if (mass != w->ts)
            kernels->cap_grads(mass, w->raw, n, p->capped_mantissa, p->args.softcap, t->nv);
    }
    kernels->values(w->mu, NULL, NULL, w->ones, 1, mass, n, 1, t->nv, first ? ATTNI_FIRST : 0,
                    NULL);
}

static void do_block(jvp_worker *w, int64_t j0, int n, attni_class visible, bool scaled, bool first)
{
    const attni_plan *p = &w->j->plan;
    uint64_t seen[ATTNI_BLOCK];
    ptrdiff_t ld;
    attni_tile_load(&w->forward, j0, n, true);
    tangent_scores(w, j0, n);
    weigh_block(w, j0, n, visible, scaled, seen, first);
    const char *v = attni_tile_rows(&w->forward, true, j0, &ld);
    add_values(w, v, ld, w->ts, seen, n, first);
    if (w->j->has_v) {
        const attn_tensor *tv = &w->j->t.tv;
        v = rows_of(p, tv, key_row(w, tv, j0), w->tv, n, &ld);
        add_values(w, v, ld, w->kept ? w->kept : w->forward.st, seen, n, false);
    }
}

/* tout = acc - mu out, one row at a time; -0 becomes 0. */
static void store_tile(jvp_worker *w)
{
    const attni_plan *p = &w->j->plan;
    const attn_tensor *out = &p->args.out, *tout = &w->j->t.tout, *tlse = w->j->t.tlse;
    for (int i = 0; i < w->tile.rows; i++) {
        const double mu = attni_real(p, w->mu, i);
        ptrdiff_t ld;
        const char *from = rows_of(p, out, query_row(w, out, i), w->rows, 1, &ld);
        for (int64_t c = 0; c < p->Dv; c++) {
            const double o = attni_real(p, from, c), x = attni_real(p, w->acc, c * w->tile.W + i);
            attni_set_real(p, w->rows, c, o == 0 ? x : x - mu * o);
        }
        attni_store_row(p, query_row(w, tout, i), tout, w->rows, p->Dv);
        if (tlse) {
            attni_store_row_f64(query_row(w, tlse, i), tlse->dtype, 1, &mu, 1);
            attni_clear_signs(query_row(w, tlse, i), tlse->dtype, 1, 1);
        }
    }
}

static void do_task(const jvp *j, int64_t number, attni_cursor *cursor, char *scratch)
{
    const attni_plan *p = &j->plan;
    jvp_worker w = {.j = j};
    attni_layout layout = {.base = scratch};
    carve(&w, &layout);
    attni_task task;
    attni_find_task(p, number, cursor, &task);
    w.sequence = task.sequence;
    attni_tile *t = &w.tile;
    w.forward.plan = p;
    w.forward.sequence = &w.sequence;
    t->heads = 1, t->i0 = task.i0;
    t->rows = t->per_head = (int)task.rows;
    t->nv = attni_vectors_for(p, task.rows, p->nv);
    t->W = t->nv * p->kernels->lanes;
    t->span = attni_mask_span(&w.sequence, t->i0, t->i0 + t->rows);
    const bool scaled = load_tile(&w);
    const int64_t end = t->span.any1 < w.sequence.S ? t->span.any1 : w.sequence.S;
    int64_t j0 = t->span.any0 > 0 ? t->span.any0 - t->span.any0 % ATTNI_BLOCK : 0;
    memset(w.acc, 0, (size_t)p->Dv * (size_t)t->W * p->real);
    memset(w.mu, 0, (size_t)t->W * p->real);
    for (bool first = true; j0 < end; j0 += ATTNI_BLOCK) {
        const int count = end - j0 < ATTNI_BLOCK ? (int)(end - j0) : ATTNI_BLOCK;
        const attni_class visible =
            attni_mask_classify(&w.sequence, &t->span, t->i0, t->i0 + t->rows, j0, j0 + count);
        if (visible == ATTNI_EMPTY)
            continue;
        do_block(&w, j0, count, visible, scaled, first);
        first = false;
    }
    store_tile(&w);
}

/* ------------------------------------------------------------------------------------------ run */

static void run_worker(void *arg, int worker)
{
    jvp *j = arg;
    attni_cursor cursor = attni_last_sequence(&j->plan);
    for (;;) {
        const int64_t next = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (next >= j->plan.tasks)
            return;
        attni_hand_over();
        do_task(j, next, &cursor, j->scratch + (size_t)worker * j->worker_bytes);
    }
}

attn_status attn_sdpa_jvp(attn_context *ctx, const attn_sdpa_args *args,
                          const attn_sdpa_tangents *tangents, attn_error *err)
{
    ATTNI_CALL_MODE;
    jvp j = {.has_q = false};
    attn_status status = check(&j, args, tangents, err);
    if (status == ATTN_OK)
        status = make_plan(&j, attni_context_isa_index(ctx), attn_context_threads(ctx), err);
    if (status)
        return status;
    attni_call call;
    status = attni_call_begin(&call, ctx, j.scratch_bytes, NULL, 0, err);
    if (status)
        return status;
    j.scratch = call.scratch;
    atomic_init(&j.next, 0);
    if (j.plan.tasks)
        attni_call_run(&call, j.workers, run_worker, &j);
    attni_call_end(&call);
    return ATTN_OK;
}
