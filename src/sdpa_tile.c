/* One task of the forward: up to ATTNI_TILES tiles of queries against all keys that they see.
 *
 *   for each chunk of 256 keys (converted to R if stored otherwise)
 *     for each tile of W queries, for each block of the chunk that some query of the tile sees
 *       S^T = K Q^T;  scale, cap, biases, masks;  raise the running maximum;  P = 2^(S - m)
 *       acc += V^T P;  at the chunk's end: O += acc
 *   out = O / l
 *
 * The fast sweep multiplies a hidden key's value by a weight of 0, which is harmless unless the
 * value is NaN or infinite, and keeps sums that overflow only for huge values. So a tile whose
 * result is not finite is swept again: CAREFUL passes over what is hidden, and gives every other
 * row the same bits; EXTREME also moves the exponents of the rows that are still not finite out of
 * danger. What is then not finite is so by its own data.
 */
#include "sdpa.h"

#include <math.h>
#include <string.h>

/* State of one tile: arrays of R, [rows][W]. */
typedef struct tile {
    int64_t i0; /* first query */
    int rows;   /* queries that are there; the other lanes compute on zeros */
    int nv, W;
    char *qt;    /* [D][W]  queries, times power */
    char *total; /* [Dv][W] sum of weighted values */
    char *l;     /* [W]     sum of weights */
    char *m;     /* [W]     running maximum, integers, log2 units */
    char *top;   /* [W]     largest score */
    char *c;     /* [W]     score -> log2 units */
    attni_span span;
} tile;

typedef struct worker {
    const attni_plan *plan;
    const attni_view *view;
    tile tiles[ATTNI_TILES];
    char *acc;                 /* [Dv][W] of the running chunk */
    char *st;                  /* [block][W] */
    char *mx, *a, *l;          /* [W] each; l: of the running chunk */
    char *k, *v;               /* [CHUNK][D], [CHUNK][Dv]: converted keys and values */
    char *rows;                /* [W][max(D, Dv)]: converted queries, outputs */
    char *biases;              /* [W][block] of a dense mask */
    char *lines;               /* [W][block] scores, a row per query */
    const char *k_now, *v_now; /* the chunk's first rows, as R */
    ptrdiff_t ldk, ldv;
} worker;

typedef enum sweep_mode { FAST, CAREFUL, EXTREME } sweep_mode;

/* ------------------------------------------------------------------------- lanes, either type */

static double lane(const attni_plan *p, const char *array, int i)
{
    return p->real == sizeof(float) ? (double)((const float *)array)[i]
                                    : ((const double *)array)[i];
}

static void set_lane(const attni_plan *p, char *array, int i, double x)
{
    if (p->real == sizeof(float))
        ((float *)array)[i] = (float)x;
    else
        ((double *)array)[i] = x;
}

static void load_row(const attni_plan *p, char *to, const char *from, attn_dtype dtype,
                     int64_t stride, int64_t n)
{
    if (p->real == sizeof(float))
        attni_load_row_f32((float *)to, from, dtype, stride, n);
    else
        attni_load_row_f64((double *)to, from, dtype, stride, n);
}

static void store_row(const attni_plan *p, char *to, const attn_tensor *t, const char *from,
                      int64_t n)
{
    if (p->real == sizeof(float))
        attni_store_row_f32(to, t->dtype, t->stride[3], (const float *)from, n);
    else
        attni_store_row_f64(to, t->dtype, t->stride[3], (const double *)from, n);
}

/* ------------------------------------------------------------------------------------ scratch */

static void carve(worker *w, attni_layout *layout)
{
    const attni_plan *p = w->plan;
    const size_t W = (size_t)(p->nv * p->kernels->lanes);
    const size_t line = W * p->real, D = (size_t)p->D, Dv = (size_t)p->Dv;
    for (int t = 0; t < p->tiles; t++) {
        tile *x = &w->tiles[t];
        x->qt = attni_layout_take(layout, D, line);
        x->total = attni_layout_take(layout, Dv, line);
        x->l = attni_layout_take(layout, 4, line);
        if (x->l)
            x->m = x->l + line, x->top = x->m + line, x->c = x->top + line;
    }
    w->acc = attni_layout_take(layout, Dv, line);
    w->st = attni_layout_take(layout, ATTNI_BLOCK, line);
    w->mx = attni_layout_take(layout, 3, line);
    if (w->mx)
        w->a = w->mx + line, w->l = w->a + line;
    if (!p->k_in_place)
        w->k = attni_layout_take(layout, ATTNI_CHUNK * p->real, D);
    if (!p->v_in_place)
        w->v = attni_layout_take(layout, ATTNI_CHUNK * p->real, Dv);
    if (!p->q_in_place || !p->out_in_place)
        w->rows = attni_layout_take(layout, D > Dv ? D : Dv, line);
    if (p->args.mask)
        w->biases = attni_layout_take(layout, ATTNI_BLOCK, line);
    if (p->args.scores)
        w->lines = attni_layout_take(layout, ATTNI_BLOCK, line);
}

size_t attni_tile_scratch(const attni_plan *plan)
{
    worker w = {.plan = plan};
    attni_layout layout = {0};
    carve(&w, &layout);
    return layout.overflow ? SIZE_MAX : layout.used;
}

/* ---------------------------------------------------------------------------------- one tile */

static void clear_state(const attni_plan *p, tile *t)
{
    memset(t->total, 0, (size_t)p->Dv * (size_t)t->W * p->real);
    for (int i = 0; i < t->W; i++) {
        set_lane(p, t->l, i, 0);
        set_lane(p, t->m, i, -(double)INFINITY);
        set_lane(p, t->top, i, -(double)INFINITY);
        set_lane(p, t->c, i, p->c);
    }
}

static void load_queries(worker *w, tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *q = &p->args.q;
    const int64_t row0 = w->view->i_base + t->i0;
    const char *from = attni_at(q, w->view->b, w->view->h, row0, 0);
    ptrdiff_t ldq = (ptrdiff_t)q->stride[2];
    if (!p->q_in_place) {
        for (int i = 0; i < t->rows; i++)
            load_row(p, w->rows + (size_t)i * (size_t)p->D * p->real,
                     attni_at(q, w->view->b, w->view->h, row0 + i, 0), q->dtype, q->stride[3],
                     p->D);
        from = w->rows;
        ldq = (ptrdiff_t)p->D;
    }
    p->kernels->pack(t->qt, from, ldq, t->rows, p->D, p->power, t->nv);
}

/* Makes keys j0 .. j0+n-1 and, if wanted, their values readable as R. j counts from the
 * sequence. */
static void load_chunk(worker *w, int64_t j0, int n, bool values)
{
    const attni_plan *p = w->plan;
    const attn_tensor *k = &p->args.k, *v = &p->args.v;
    const int64_t b = w->view->b, hk = w->view->hk, row0 = w->view->j_base + j0;
    w->k_now = p->k_in_place ? attni_at(k, b, hk, row0, 0) : w->k;
    w->ldk = (ptrdiff_t)(p->k_in_place ? k->stride[2] : p->D);
    if (!p->k_in_place)
        for (int r = 0; r < n; r++)
            load_row(p, w->k + (size_t)r * (size_t)p->D * p->real, attni_at(k, b, hk, row0 + r, 0),
                     k->dtype, k->stride[3], p->D);
    if (p->D == 0) /* k may be NULL, to which nothing may be added */
        w->k_now = w->st, w->ldk = 0;
    if (!values)
        return;
    w->v_now = p->v_in_place ? attni_at(v, b, hk, row0, 0) : w->v;
    w->ldv = (ptrdiff_t)(p->v_in_place ? v->stride[2] : p->Dv);
    if (!p->v_in_place)
        for (int r = 0; r < n; r++)
            load_row(p, w->v + (size_t)r * (size_t)p->Dv * p->real, attni_at(v, b, hk, row0 + r, 0),
                     v->dtype, v->stride[3], p->Dv);
    if (p->Dv == 0)
        w->v_now = w->st, w->ldv = 0;
}

/* Scores of one block, up to `stage`, into w->st; w->mx are their maxima at the last stage. */
static void score_block(worker *w, const tile *t, int64_t j0, int r, int n, attni_class visible,
                        attn_stage stage)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    kernels->scores(w->st, w->mx, t->qt, w->k_now + r * w->ldk * (ptrdiff_t)p->real, w->ldk, n,
                    p->D, t->nv);
    const bool masked = visible != ATTNI_FULL && stage >= ATTN_STAGE_BIASED;
    if (p->natural || stage <= ATTN_STAGE_SOFTCAP)
        kernels->natural(w->st, n, p->rest, stage >= ATTN_STAGE_SOFTCAP ? p->args.softcap : 0,
                         t->nv);
    if (masked) {
        const attni_block block = {w->st, kernels, t->i0, j0 + r, t->rows, n, t->nv, w->biases};
        attni_mask_apply(w->view, &block);
    }
    if (masked || p->natural)
        kernels->maxima(w->mx, w->st, n, t->nv);
}

/* The weights of w->st, and their values' sums. `flags` are values()'s, and CAREFUL. */
static void weigh_block(worker *w, tile *t, int64_t j0, int r, int n, int flags)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    if (kernels->raise(t->m, w->a, t->top, w->mx, t->c, t->nv)) {
        kernels->rescale(t->total, p->Dv, w->a, t->nv);
        kernels->rescale(t->l, 1, w->a, t->nv);
        kernels->rescale(w->l, 1, w->a, t->nv);
        if (!(flags & ATTNI_FIRST))
            kernels->rescale(w->acc, p->Dv, w->a, t->nv);
    }
    kernels->weights(w->st, w->l, w->st, t->c, t->m, n, t->nv, flags);
    if (p->args.dropout > 0)
        kernels->drop(w->st, n, p->args.dropout_seed, p->drop_threshold,
                      (uint64_t)(w->view->b * p->H + w->view->h),
                      (uint64_t)(w->view->i_base + t->i0), (uint64_t)(w->view->j_base + j0 + r),
                      1 / (1 - p->args.dropout), t->nv);
    kernels->values(w->acc, t->total, w->v_now + r * w->ldv * (ptrdiff_t)p->real, w->ldv, w->st, n,
                    p->Dv, t->nv, flags);
}

static void add_lanes(const attni_plan *p, char *to, const char *x, int W)
{
    if (p->real == sizeof(float))
        for (int i = 0; i < W; i++)
            ((float *)to)[i] += ((const float *)x)[i];
    else
        for (int i = 0; i < W; i++)
            ((double *)to)[i] += ((const double *)x)[i];
}

/* The blocks of keys j0 .. j0+n-1 (one chunk, loaded) for one tile. */
static void sweep_chunk(worker *w, tile *t, int64_t j0, int n, sweep_mode mode)
{
    const attni_plan *p = w->plan;
    const int step = ATTNI_BLOCK;
    attni_class class[ATTNI_CHUNK / ATTNI_BLOCK];
    int last = -1;
    for (int r = 0; r < n; r += step) {
        const int end = r + step < n ? r + step : n;
        class[r / step] =
            attni_mask_classify(w->view, &t->span, t->i0, t->i0 + t->rows, j0 + r, j0 + end);
        if (class[r / step] != ATTNI_EMPTY)
            last = r;
    }
    if (last < 0)
        return;
    memset(w->l, 0, (size_t)t->W * p->real);
    int flags = ATTNI_FIRST | (mode == FAST ? 0 : ATTNI_CAREFUL);
    for (int r = 0; r <= last; r += step) {
        const attni_class visible = class[r / step];
        if (visible == ATTNI_EMPTY)
            continue;
        /* keys past the last visible one of the block are cut off; a hidden key adds exactly 0 */
        const int64_t seen = t->span.any1 - (j0 + r);
        int block = r + step < n ? step : n - r;
        if (seen < block)
            block = (int)seen;
        score_block(w, t, j0, r, block, visible, ATTN_STAGE_BIASED);
        weigh_block(w, t, j0, r, block,
                    flags | (r == last ? ATTNI_LAST : 0) |
                        (visible == ATTNI_FULL ? 0 : ATTNI_MASKED));
        flags &= ~ATTNI_FIRST;
    }
    add_lanes(p, t->l, w->l, t->W);
}

static void sweep(worker *w, tile *tiles, int count, sweep_mode mode)
{
    int64_t begin = INT64_MAX, end = 0;
    for (int t = 0; t < count; t++) {
        if (tiles[t].span.any0 < begin)
            begin = tiles[t].span.any0;
        if (tiles[t].span.any1 > end)
            end = tiles[t].span.any1;
    }
    begin -= begin % ATTNI_CHUNK;
    for (int64_t j0 = begin; j0 < end; j0 += ATTNI_CHUNK) {
        const int n = end - j0 < ATTNI_CHUNK ? (int)(end - j0) : ATTNI_CHUNK;
        load_chunk(w, j0, n, true);
        for (int t = 0; t < count; t++)
            if (tiles[t].span.any0 < j0 + n && tiles[t].span.any1 > j0)
                sweep_chunk(w, &tiles[t], j0, n, mode);
    }
}

/* --------------------------------------------------------------------------------- the result */

/* A sink is one more key, last, whose logit is in natural units and whose value is nothing. */
static void add_sink(worker *w, tile *t)
{
    const attni_plan *p = w->plan;
    const double sink = (double)p->args.sink_logits[w->view->h];
    for (int i = 0; i < t->W; i++) {
        set_lane(p, w->mx, i, sink);
        set_lane(p, w->st, i, sink);
        /* log2(e), lowered as the row's own factor may be */
        set_lane(p, w->l, i, lane(p, t->c, i) / p->c * 1.4426950408889634074);
    }
    /* mx twice: `top` is of the keys alone */
    if (p->kernels->raise(t->m, w->a, w->mx, w->mx, w->l, t->nv)) {
        p->kernels->rescale(t->total, p->Dv, w->a, t->nv);
        p->kernels->rescale(t->l, 1, w->a, t->nv);
    }
    p->kernels->weights(w->st, t->l, w->st, w->l, t->m, 1, t->nv, ATTNI_MASKED);
}

/* ln(l * 2^m), the same whatever m is. */
static double log_sum(const attni_plan *p, const tile *t, int i)
{
    const double l = lane(p, t->l, i), m = lane(p, t->m, i);
    if (l == 0)
        return -(double)INFINITY;
    if (!isfinite(l))
        return (double)NAN;
    int exponent;
    const double fraction = frexp(l, &exponent);
    const double lowered = p->c / lane(p, t->c, i);
    return (((isinf(m) ? 0 : m) + exponent) * 0.69314718055994530942 + log(fraction)) * lowered;
}

/* Writes out and lse; true if some row is not finite, or could not be computed in this mode. */
static bool finish(worker *w, tile *t)
{
    const attni_plan *p = w->plan;
    const attn_sdpa_args *args = &p->args;
    const int64_t b = w->view->b, h = w->view->h, row0 = w->view->i_base + t->i0;
    if (args->sink_logits)
        add_sink(w, t);
    bool again = false;
    const double limit = p->real == sizeof(float) ? 1.6e38 : 8e307;
    for (int i = 0; i < t->W; i++) {
        const double l = lane(p, t->l, i), top = lane(p, t->top, i);
        set_lane(p, w->a, i, l == 0 ? 0 : 1 / l);
        again |= i < t->rows && isfinite(top) && !(fabs(top) * lane(p, t->c, i) < limit);
    }
    char *to = p->out_in_place ? attni_at(&args->out, b, h, row0, 0) : w->rows;
    const ptrdiff_t ldo = (ptrdiff_t)(p->out_in_place ? args->out.stride[2] : p->Dv);
    again |= p->kernels->finish(to, ldo, t->total, w->a, t->rows, p->Dv, t->nv) != 0;
    for (int i = 0; i < t->rows && !p->out_in_place; i++)
        store_row(p, attni_at(&args->out, b, h, row0 + i, 0), &args->out,
                  w->rows + (size_t)i * (size_t)p->Dv * p->real, p->Dv);
    if (args->lse) {
        attn_tensor lse = *args->lse;
        for (int i = 0; i < t->rows; i++) {
            const double x = log_sum(p, t, i);
            attni_store_row_f64(attni_at(&lse, b, h, row0 + i, 0), lse.dtype, 1, &x, 1);
        }
    }
    return again;
}

/* Rows that are not finite yet start again with exponents that cannot overflow: the maximum is
 * known, so m begins above it by enough for the sum of 2^31 of the largest values. A score too
 * large for log2 units is counted in units of 2^-8, where anything but the maximum still
 * vanishes. */
static void move_exponents(worker *w, tile *t)
{
    const attni_plan *p = w->plan;
    const double limit = p->real == sizeof(float) ? 1.6e38 : 8e307;
    char finite[ATTNI_MAX_LANES];
    double top[ATTNI_MAX_LANES];
    for (int i = 0; i < t->W; i++) {
        top[i] = lane(p, t->top, i);
        finite[i] = isfinite(lane(p, w->a, i)) && isfinite(lane(p, t->l, i));
        for (int64_t c = 0; c < p->Dv && finite[i]; c++)
            finite[i] = isfinite(lane(p, t->total, (int)c * t->W + i) * lane(p, w->a, i)) != 0;
    }
    clear_state(p, t);
    for (int i = 0; i < t->W; i++) {
        if (!isfinite(top[i]))
            continue;
        const bool huge = !(fabs(top[i]) * p->c < limit);
        if (finite[i] && !huge)
            continue;
        const double c = huge ? p->c / 256 : p->c;
        set_lane(p, t->c, i, c);
        set_lane(p, t->m, i, ceil(top[i] * lane(p, t->c, i)) + 40);
    }
}

/* ------------------------------------------------------------------------------- scores out */

static char *line_of(const worker *w, int i)
{
    return w->lines + (size_t)i * ATTNI_BLOCK * w->plan->real;
}

/* A block of scores into w->lines. A mark (see ATTNI_CAREFUL) is a hidden key's. */
static void turn_scores(worker *w, const tile *t, int n, bool marked)
{
    const attni_plan *p = w->plan;
    if (!marked) {
        p->kernels->finish(w->lines, ATTNI_BLOCK, w->st, w->a, t->rows, n, t->nv);
        return;
    }
    for (int i = 0; i < t->rows; i++)
        for (int r = 0; r < n; r++) {
            const double x = lane(p, w->st, r * t->W + i);
            set_lane(p, line_of(w, i), r, x < 0 ? 0 : x * lane(p, w->a, i));
        }
}

/* The factors of the rows: 1 / l for weights, else 1. Weights count from the maximum itself,
 * wherever m has been. True if a row is NaN, where 0 for a hidden key must not be multiplied. */
static bool row_factors(worker *w, tile *t)
{
    const attni_plan *p = w->plan;
    bool marked = false;
    for (int i = 0; i < t->W; i++) {
        set_lane(p, w->a, i, 1);
        if (p->args.scores_stage != ATTN_STAGE_WEIGHTS)
            continue;
        const double l = lane(p, t->l, i), m = lane(p, t->m, i);
        const double up = ceil(lane(p, t->top, i) * lane(p, t->c, i));
        const double shift = isfinite(up) && isfinite(m) ? fmax(fmin(up - m, 3000), -3000) : 0;
        if (isfinite(up) && isfinite(m))
            set_lane(p, t->m, i, up);
        set_lane(p, w->a, i, l == 0 ? 0 : ldexp(1 / l, (int)shift));
        marked |= !isfinite(lane(p, w->a, i));
    }
    return marked;
}

/* The scores that the caller asked for, computed once more now that m and l are final; out is
 * the same with and without. Every key of the tensor has a place, so keys outside the sequence come
 * too, with negative or large j. */
static void scores_out(worker *w, tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *s = p->args.scores;
    const attn_stage stage = p->args.scores_stage;
    const bool hides = stage >= ATTN_STAGE_BIASED, weights = stage == ATTN_STAGE_WEIGHTS;
    const bool marked = row_factors(w, t);
    for (int64_t g = 0; g < p->S; g += ATTNI_BLOCK) { /* g counts from the tensor's first key */
        const int64_t j0 = g - w->view->j_base;
        const int n = p->S - g < ATTNI_BLOCK ? (int)(p->S - g) : ATTNI_BLOCK;
        attni_class visible = ATTNI_PARTIAL;
        if (hides)
            visible = attni_mask_classify(w->view, &t->span, t->i0, t->i0 + t->rows, j0, j0 + n);
        if (visible != ATTNI_EMPTY) {
            load_chunk(w, j0, n, false);
            score_block(w, t, j0, 0, n, visible, hides ? ATTN_STAGE_BIASED : stage);
            if (weights)
                p->kernels->weights(w->st, w->l, w->st, t->c, t->m, n, t->nv,
                                    marked ? ATTNI_CAREFUL : ATTNI_MASKED);
            else if (hides && !p->natural)
                p->kernels->natural(w->st, n, p->rest, 0, t->nv);
            turn_scores(w, t, n, marked);
        } else {
            for (int i = 0; i < t->rows * ATTNI_BLOCK; i++)
                set_lane(p, w->lines, i, weights ? 0 : -(double)INFINITY);
        }
        for (int i = 0; i < t->rows; i++)
            store_row(p, attni_at(s, w->view->b, w->view->h, w->view->i_base + t->i0 + i, g), s,
                      line_of(w, i), n);
    }
}

/* ---------------------------------------------------------------------------------- the task */

/* The narrowest tile that holds `rows` queries; a query's bits do not depend on it. */
static void shape_tile(const attni_plan *p, tile *t, int64_t rows)
{
    t->nv = 1;
    while (t->nv < p->nv && t->nv * p->kernels->lanes < rows)
        t->nv *= 2;
    t->W = t->nv * p->kernels->lanes;
    t->rows = rows < t->W ? (int)rows : t->W;
}

void attni_tile_task(const attni_plan *plan, const attni_view *view, int64_t i0, int64_t rows,
                     char *scratch)
{
    worker w = {.plan = plan, .view = view};
    attni_layout layout = {.base = scratch};
    carve(&w, &layout);
    int count = 0;
    for (int64_t done = 0; done < rows; count++) {
        tile *t = &w.tiles[count];
        t->i0 = i0 + done;
        shape_tile(plan, t, rows - done);
        t->span = attni_mask_span(view, t->i0, t->i0 + t->rows);
        load_queries(&w, t);
        clear_state(plan, t);
        done += t->rows;
    }
    sweep(&w, w.tiles, count, FAST);
    for (int i = 0; i < count; i++) {
        tile *t = &w.tiles[i];
        if (finish(&w, t)) {
            clear_state(plan, t);
            sweep(&w, t, 1, CAREFUL);
            if (finish(&w, t)) {
                move_exponents(&w, t);
                sweep(&w, t, 1, EXTREME);
                finish(&w, t);
            }
        }
        if (plan->args.scores)
            scores_out(&w, t);
    }
}
