/* One task of the forward: up to ATTNI_TILES tiles of queries against all keys that they see.
 *
 *   for each chunk of 256 keys (converted to R if stored otherwise)
 *     for each tile of W queries, for each block of the chunk that some query of the tile sees
 *       S^T = K Q^T;  scale, cap, biases, masks;  raise the chunk's maximum;  P = 2^(S - m)
 *       acc += V^T P
 *     the chunk joins the tile:  O, l
 *   out = O / l
 *
 * A chunk knows nothing of the others until it joins, in order of keys, and joining changes only
 * exponents before it adds. So chunks may also be computed apart, on any thread, kept as partials
 * and folded later: tile_part and tile_fold. The bits are the same.
 *
 * The fast sweep multiplies a hidden key's value by a weight of 0, which is harmless unless the
 * value is NaN or infinite, and keeps sums that overflow only for huge values. So a tile whose
 * result is not finite is swept again: CAREFUL passes over what is hidden, and gives every other
 * row the same bits; the third sweep also takes the sums of the rows that are still not finite out
 * of danger (attni_tile_move_exponents). What is then not finite is so by its own data.
 */
#include "cache.h"
#include "sdpa_tile.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ scratch */

/* Bytes of R that `few` queries take in a row of st that holds a weight of each: st is a row per
 * query there, and if blocks are scored one after the other, there is one for each block. */
static size_t st_line(const attni_plan *p)
{
    const size_t line = (size_t)(p->nv * p->kernels->lanes) * p->real;
    const size_t few = ATTNI_BLOCKS * (size_t)p->kernels->few * p->real;
    return p->S > ATTNI_BLOCK && few > line ? few : line;
}

static void carve_partial(const attni_plan *p, attni_partial *x, attni_layout *layout, size_t line)
{
    x->acc = attni_layout_take(layout, (size_t)p->Dv, line);
    x->m = attni_layout_take(layout, 3, line);
    if (x->m)
        x->l = x->m + line, x->top = x->l + line;
}

static void carve(attni_worker *w, attni_layout *layout)
{
    const attni_plan *p = w->plan;
    const size_t line = (size_t)(p->nv * p->kernels->lanes) * p->real;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    for (int t = 0; t < p->tiles; t++) {
        attni_tile *x = &w->tiles[t];
        x->qt = attni_layout_take(layout, D + p->k_turned, line); /* one more: scores_turned */
        x->total = attni_layout_take(layout, Dv, line);
        x->l = attni_layout_take(layout, 6, line);
        if (x->l)
            x->m = x->l + line, x->m_first = x->m + line, x->top = x->m_first + line,
            x->c = x->top + line, x->lift = x->c + line;
    }
    carve_partial(p, &w->chunk, layout, line);
    w->sums = attni_layout_take(layout, (size_t)p->kernels->few * p->real, attni_sums_width(p));
    w->totals = attni_layout_take(layout, (size_t)p->kernels->few * p->real, attni_sums_width(p));
    w->st = attni_layout_take(layout, ATTNI_BLOCK, st_line(p));
    w->q_row = attni_layout_take(layout, D * p->real + line, 1); /* whole lines of it are written */
    w->mx = attni_layout_take(layout, 2 * ATTNI_BLOCKS + 2, line);
    if (w->mx)
        w->a = w->mx + ATTNI_BLOCKS * line, w->factors = w->a + ATTNI_BLOCKS * line;
    const size_t keys = p->tiles > 1 ? ATTNI_CHUNK : ATTNI_BLOCK;
    if (!p->k_in_place)
        w->k = attni_layout_take(layout, keys * p->real, D);
    if (!p->v_in_place)
        w->v = attni_layout_take(layout, keys * p->real, Dv);
    if (p->k_turned && p->args.k.dtype != p->real_dtype)
        w->turned = attni_layout_take(layout, ATTNI_BLOCK, p->args.cache->row_bytes[ATTNI_KEYS]);
    if (p->S >= p->kernels->lanes)
        w->few = attni_layout_take(layout, 2 * ATTNI_BLOCK, (size_t)p->kernels->few * p->real);
    if (!p->q_in_place || !p->out_in_place || p->group > 1)
        w->rows = attni_layout_take(layout, D > Dv ? D : Dv, line);
    if (p->args.mask)
        w->biases = attni_layout_take(layout, ATTNI_BLOCK, line);
    if (p->args.scores)
        w->lines = attni_layout_take(layout, ATTNI_BLOCK, line);
}

static size_t tile_scratch(const attni_plan *plan)
{
    attni_worker w;
    w.plan = plan;
    attni_layout layout = {0};
    carve(&w, &layout);
    return layout.overflow ? SIZE_MAX : layout.used;
}

static size_t tile_partial_bytes(const attni_plan *plan)
{
    attni_partial x;
    attni_layout layout = {0};
    carve_partial(plan, &x, &layout, (size_t)(plan->nv * plan->kernels->lanes) * plan->real);
    return layout.overflow ? SIZE_MAX : layout.used;
}

/* --------------------------------------------------------------------------------- one tile */

void attni_tile_clear(const attni_plan *p, attni_tile *t, bool total)
{
    t->in_totals = t->lifted = false;
    if (total)
        memset(t->total, 0, (size_t)p->Dv * (size_t)t->W * p->real);
    memset(t->l, 0, (size_t)t->W * p->real);
    attni_fill_lanes(p, t->m, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->m_first, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->top, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->c, p->c, t->W);
}

void attni_convert_rows(const attni_plan *p, char *to, const char *from, ptrdiff_t ld,
                        attn_dtype dtype, int64_t stride, int rows, int64_t n)
{
    if (n == 0) /* `from` may be NULL, to which nothing may be added */
        return;
    if (stride == 1) {
        p->kernels->widen(to, from, ld, dtype, rows, n);
        return;
    }
    for (int r = 0; r < rows; r++) {
        const char *row = from + r * ld * (ptrdiff_t)attn_dtype_size(dtype);
        if (p->real == sizeof(float))
            attni_load_row_f32((float *)to + r * n, row, dtype, stride, n);
        else
            attni_load_row_f64((double *)to + r * n, row, dtype, stride, n);
    }
}

void attni_tile_queries(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *q = &p->args.q;
    /* rows of one head, or one row of each head, lie at one distance */
    const bool even = t->heads == 1 || t->per_head == 1;
    const char *from = attni_lane_row(w, t, q, 0, 0);
    ptrdiff_t ldq = (ptrdiff_t)q->stride[t->heads > 1 ? 1 : 2];
    if (!p->q_in_place || !even) {
        if (even)
            attni_convert_rows(p, w->rows, from, ldq, q->dtype, q->stride[3], t->rows, p->D);
        for (int i = 0; i < t->rows && !even; i++)
            attni_convert_rows(p, w->rows + (size_t)i * (size_t)p->D * p->real,
                               attni_lane_row(w, t, q, i, 0), 0, q->dtype, q->stride[3], 1, p->D);
        from = w->rows;
        ldq = (ptrdiff_t)p->D;
    }
    if (t->rows > 1 || !attni_tile_few(p, t)) {
        p->kernels->pack(t->qt, from, ldq, t->rows, p->D, p->power, t->nv);
        if (p->k_turned)
            memset(t->qt + (size_t)(p->D * t->W) * p->real, 0, (size_t)t->W * p->real);
        return;
    }
    const size_t line = (size_t)t->W * p->real, bytes = (size_t)p->D * p->real;
    const size_t lines = (bytes + line - 1) / line;
    memset(w->q_row + bytes, 0, lines * line - bytes);
    if (bytes > 0) /* else `from` may be NULL */
        memcpy(w->q_row, from, bytes);
    attni_fill_lanes(p, w->mx, p->power, t->W);
    p->kernels->rescale(w->q_row, (int64_t)lines, w->mx, 1);
}

/* ------------------------------------------------------------------------------ keys and values */

/* Turned keys become rows, and those R: up to a block. */
static void load_turned(const attni_worker *w, char *to, int64_t j, int n)
{
    const attni_plan *p = w->plan;
    const size_t bytes = p->args.cache->row_bytes[ATTNI_KEYS];
    char *rows = w->turned ? w->turned : to;
    attni_cache_turn_back(p->args.cache, w->view->b, w->view->hk, j, n, rows, bytes);
    if (rows != to)
        attni_convert_rows(p, to, rows, (ptrdiff_t)p->args.k.stride[2], p->args.k.dtype, 1, n,
                           p->D);
}

/* Rows of a cache of i8 become R: up to a block. */
static void load_i8(const attni_worker *w, const attn_tensor *t, char *to, int64_t j, int n)
{
    const attni_view *view = w->view;
    const float *scales =
        attni_cache_scales(w->plan->args.cache, attni_part_of(view, t), view->b, view->hk, j);
    w->plan->kernels->widen_i8(to, (const int8_t *)attni_stored_row(view, t, j),
                               (ptrdiff_t)t->stride[2], scales, n, t->shape[3]);
}

static void load_blocks(const attni_worker *w, const attn_tensor *t, char *to, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const int64_t width = t->shape[3];
    for (int r = 0; r < n; r += ATTNI_BLOCK) {
        char *block = to + (size_t)r * (size_t)width * p->real;
        const int rows = n - r < ATTNI_BLOCK ? n - r : ATTNI_BLOCK;
        if (p->k_turned && t == &p->args.k)
            load_turned(w, block, j0 + r, rows);
        else if (t->dtype == ATTN_I8)
            load_i8(w, t, block, j0 + r, rows);
        else
            attni_convert_rows(p, block, attni_stored_row(w->view, t, j0 + r),
                               (ptrdiff_t)t->stride[2], t->dtype, t->stride[3], rows, width);
    }
}

void attni_tile_load(attni_worker *w, int64_t j0, int n, bool values)
{
    const attni_plan *p = w->plan;
    if (!p->k_in_place)
        load_blocks(w, &p->args.k, w->k, j0, n);
    if (!p->v_in_place && values)
        load_blocks(w, &p->args.v, w->v, j0, n);
    w->loaded = j0;
}

const char *attni_tile_rows(const attni_worker *w, bool values, int64_t j, ptrdiff_t *ld)
{
    const attni_plan *p = w->plan;
    const attn_tensor *t = values ? &p->args.v : &p->args.k;
    const char *converted = values ? w->v : w->k;
    const int64_t width = t->shape[3];
    if (width == 0) { /* data may be NULL, to which nothing may be added */
        *ld = 0;
        return w->st;
    }
    if ((values ? p->v_in_place : p->k_in_place) || w->as_stored) {
        *ld = (ptrdiff_t)t->stride[2];
        return attni_stored_row(w->view, t, j);
    }
    *ld = (ptrdiff_t)width;
    return converted + (size_t)(j - w->loaded) * (size_t)width * p->real;
}

/* ------------------------------------------------------------------------------------- blocks */

attni_soon attni_tile_soon(const attni_worker *w, const attni_tile *tile, bool values, int64_t j)
{
    const attni_plan *p = w->plan;
    const attn_tensor *t = values ? &p->args.v : &p->args.k;
    attni_soon soon = {w->st, 0, 0};
    const bool in_place = (values ? p->v_in_place : p->k_in_place) || w->as_stored;
    /* i8 become floats a block at a time, what is asked for now is the next one */
    if ((!in_place && t->dtype != ATTN_I8) || t->shape[3] == 0)
        return soon;
    const char *rows = NULL;
    /* Of the next task: 12 heads of 537 keys, one query, from memory took 4 to 6 % less time. With
     * 4096 it took 1 to 2 % more. */
    enum { SHORT_KEYS = 1024 };
    if (j < tile->span.any1)
        rows = attni_stored_row(w->view, t, j);
    else if (w->next && p->S <= SHORT_KEYS)
        rows = attni_first_row(w->next, t);
    if (rows) {
        const ptrdiff_t size = (ptrdiff_t)attn_dtype_size(t->dtype);
        const ptrdiff_t bytes = (ptrdiff_t)t->stride[2] * size;
        const bool turned = p->k_turned && !values; /* all of whose bytes are read */
        soon = (attni_soon){rows, bytes, turned ? bytes : t->shape[3] * size};
    }
    return soon;
}

attn_dtype attni_tile_dtype(const attni_worker *w)
{
    return w->as_stored ? w->plan->args.k.dtype : w->plan->real_dtype;
}

/* Scores of few queries, in rows, of keys j0 .. j0+n-1. */
static void score_few(const attni_worker *w, const attni_tile *t, char *st, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const char *q = t->rows == 1 ? w->q_row : t->qt;
    ptrdiff_t ld;
    const char *k = attni_tile_rows(w, false, j0, &ld);
    const attni_soon soon = attni_tile_soon(w, t, false, j0 + n);
    if (w->as_stored && p->k_turned)
        kernels->scores_turned(st, w->mx, q, k, p->args.k.dtype, n, p->D, t->rows, &soon);
    else
        kernels->scores_few(st, w->mx, q, k, ld, attni_tile_dtype(w), n, p->D, t->rows, &soon);
}

/* The same as a tile. Turned keys are read from the first of a group on. */
static void score_few_lanes(const attni_worker *w, const attni_tile *t, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const int skip = w->as_stored && p->k_turned ? (int)(j0 % ATTNI_GROUP) : 0, all = skip + n;
    score_few(w, t, w->few, j0 - skip, all);
    for (int j = skip, end; j < all; j = end) { /* rows of two blocks, perhaps */
        const int block = j / ATTNI_BLOCK * ATTNI_BLOCK;
        end = all < block + ATTNI_BLOCK ? all : block + ATTNI_BLOCK;
        p->kernels->pack(w->st + (size_t)((j - skip) * t->W) * p->real,
                         w->few + (size_t)(block * p->kernels->few + j - block) * p->real,
                         ATTNI_BLOCK, t->rows, end - j, 1, t->nv);
    }
    p->kernels->maxima(w->mx, w->st, n, t->nv);
}

void attni_tile_products(attni_worker *w, const attni_tile *t, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const bool few = attni_tile_few(p, t) && w->q_row; /* gradients have none */
    if (few && w->in_rows)
        score_few(w, t, w->st, j0, n);
    else if (few)
        score_few_lanes(w, t, j0, n);
    else {
        ptrdiff_t ld;
        const char *k = attni_tile_rows(w, false, j0, &ld);
        p->kernels->scores(w->st, w->mx, t->qt, k, ld, n, p->D, t->nv, attni_ahead_now(w));
    }
}

static __attribute__((cold, noinline)) void cap_in_double(float *x, int64_t n, double r, double cap)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(cap * tanh((double)x[i] * r / cap));
}

void attni_natural(const attni_plan *p, void *st, int n, double cap, int nv)
{
    if (p->real == sizeof(float) && cap > 0x1p126)
        cap_in_double(st, (int64_t)n * nv * p->kernels->lanes, p->rest, cap);
    else
        p->kernels->natural(st, n, p->rest, cap, nv);
}

void attni_tile_biases(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const bool masked = visible != ATTNI_FULL && stage >= ATTN_STAGE_BIASED;
    if (p->natural || stage <= ATTN_STAGE_SOFTCAP)
        attni_natural(p, w->st, n, stage >= ATTN_STAGE_SOFTCAP ? p->args.softcap : 0, t->nv);
    if (masked) {
        const attni_block block = {.st = w->st,
                                   .mx = w->mx,
                                   .kernels = kernels,
                                   .i0 = t->i0,
                                   .j0 = j0,
                                   .rows = t->per_head,
                                   .heads = t->heads,
                                   .n = n,
                                   .nv = t->nv,
                                   .biases = w->biases};
        attni_mask_apply(w->view, &block);
    } else if (p->natural)
        kernels->maxima(w->mx, w->st, n, t->nv);
}

void attni_tile_scores(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage)
{
    attni_tile_products(w, t, j0, n);
    attni_tile_biases(w, t, j0, n, visible, stage);
}

static void sweep(attni_worker *w, attni_tile *tiles, int count, attni_sweep mode)
{
    int64_t begin = INT64_MAX, end = 0;
    for (int t = 0; t < count; t++) {
        if (tiles[t].span.any0 < begin)
            begin = tiles[t].span.any0;
        if (tiles[t].span.any1 > end)
            end = tiles[t].span.any1;
    }
    begin -= begin % ATTNI_CHUNK;
    attni_tile *last = &tiles[count - 1]; /* the others are full */
    const bool totals = attni_tile_few(w->plan, last) && mode == ATTNI_FAST;
    if (totals)
        memset(w->totals, 0,
               (size_t)w->plan->kernels->few * attni_sums_width(w->plan) * w->plan->real);
    for (int64_t j0 = begin; j0 < end; j0 += ATTNI_CHUNK) {
        const int n = end - j0 < ATTNI_CHUNK ? (int)(end - j0) : ATTNI_CHUNK;
        if (w->plan->tiles > 1)
            attni_tile_load(w, j0, n, true);
        if (w->plan->far && !attni_tile_few(w->plan, &tiles[0]))
            attni_look_ahead(w, count, j0 + ATTNI_CHUNK, end);
        for (int t = 0; t < count; t++) {
            const attni_tile *next = t + 1 < count ? &tiles[t + 1] : &tiles[0];
            const int64_t from = t + 1 < count ? j0 : j0 + ATTNI_CHUNK;
            w->ahead = attni_mask_ahead(w->view, next->i0, next->per_head, from, end - from);
            if (tiles[t].span.any0 < j0 + n && tiles[t].span.any1 > j0)
                attni_tile_sweep_chunk(w, &tiles[t], &w->chunk, j0, n, mode, true);
        }
    }
    attni_tile_end_chunks(w, last);
    last->in_totals = totals;
}

/* ---------------------------------------------------------------------------------- the task */

void attni_tile_shape(const attni_worker *w, attni_tile *t, int64_t i0, int64_t rows)
{
    const attni_plan *p = w->plan;
    const int lanes = p->kernels->lanes;
    t->i0 = i0;
    t->heads = p->group;
    t->nv = 1;
    while (t->nv < p->nv && t->nv * lanes < rows * t->heads)
        t->nv *= 2;
    t->W = t->nv * lanes;
    t->per_head = rows * t->heads < t->W ? (int)rows : t->W / t->heads;
    t->rows = t->per_head * t->heads;
    t->span = attni_mask_span(w->view, i0, i0 + t->per_head);
}

static void begin_worker(attni_worker *w, const attni_plan *plan, const attni_view *view,
                         char *scratch)
{
    attni_zero(w, offsetof(attni_worker, tiles));
    w->plan = plan;
    w->view = view;
    attni_layout layout = {.base = scratch};
    carve(w, &layout);
}

static void finish_tile(attni_worker *w, attni_tile *t)
{
    if (attni_tile_finish(w, t)) {
        attni_tile_clear(w->plan, t, true);
        sweep(w, t, 1, ATTNI_AGAIN);
        if (attni_tile_finish(w, t)) {
            attni_tile_move_exponents(w, t);
            sweep(w, t, 1, ATTNI_AGAIN);
            attni_tile_finish(w, t);
        }
    }
    if (w->plan->args.scores)
        attni_tile_scores_out(w, t);
}

static void tile_task(const attni_plan *plan, const attni_task *task, const attni_task *next,
                      char *scratch)
{
    if (attni_task_short(plan, task, next, scratch))
        return;
    attni_worker w;
    begin_worker(&w, plan, &task->view, scratch);
    w.next = next;
    int count = 0;
    for (int64_t done = 0; done < task->rows; count++) {
        attni_tile *t = &w.tiles[count];
        attni_tile_shape(&w, t, task->i0 + done, task->rows - done);
        attni_tile_queries(&w, t);
        attni_tile_clear(plan, t, !attni_tile_few(plan, t));
        done += t->per_head;
    }
    sweep(&w, w.tiles, count, ATTNI_FAST);
    for (int i = 0; i < count; i++)
        finish_tile(&w, &w.tiles[i]);
}

/* ---------------------------------------------------------------- a task in parts over the keys */

static attni_partial partial_of(const attni_plan *p, char *partials, int64_t chunk)
{
    attni_partial x;
    attni_layout layout = {.base = partials + (size_t)chunk * p->partial_bytes};
    carve_partial(p, &x, &layout, (size_t)(p->nv * p->kernels->lanes) * p->real);
    return x;
}

/* Prepares the only tile of a task that is cut into parts. */
static attni_tile *part_tile(attni_worker *w, int64_t i0, int64_t rows)
{
    attni_tile *t = &w->tiles[0];
    attni_tile_shape(w, t, i0, rows);
    attni_tile_queries(w, t);
    attni_tile_clear(w->plan, t, true);
    return t;
}

static void tile_part(const attni_plan *plan, const attni_view *view, int64_t i0, int64_t rows,
                      int64_t chunk0, int64_t chunk1, char *partials, char *scratch)
{
    attni_worker w;
    begin_worker(&w, plan, view, scratch);
    attni_tile *t = part_tile(&w, i0, rows);
    for (int64_t chunk = chunk0; chunk < chunk1; chunk++) {
        attni_partial x = partial_of(plan, partials, chunk);
        const int64_t j0 = chunk * ATTNI_CHUNK, left = t->span.any1 - j0;
        const int n = left < ATTNI_CHUNK ? (int)left : ATTNI_CHUNK;
        if (n <= 0 || t->span.any0 >= j0 + n ||
            !attni_tile_sweep_chunk(&w, t, &x, j0, n, ATTNI_FAST, false))
            attni_set_lane(plan, x.l, 0, -1); /* no sum of weights: nothing was seen */
    }
}

static void tile_fold(const attni_plan *plan, const attni_view *view, int64_t i0, int64_t rows,
                      int64_t chunks, char *partials, char *scratch)
{
    attni_worker w;
    begin_worker(&w, plan, view, scratch);
    attni_tile *t = part_tile(&w, i0, rows);
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const attni_partial x = partial_of(plan, partials, chunk);
        if (attni_lane(plan, x.l, 0) < 0)
            continue;
        plan->kernels->join(t->m, t->l, w.factors, x.m, x.l, t->nv);
        plan->kernels->fold(t->total, x.acc, plan->Dv, w.factors, t->nv);
        for (int i = 0; i < t->W; i++)
            if (attni_lane(plan, x.top, i) > attni_lane(plan, t->top, i))
                attni_set_lane(plan, t->top, i, attni_lane(plan, x.top, i));
    }
    finish_tile(&w, t);
}

const attni_way attni_way_tile = {
    .tiles = ATTNI_TILES,
    .scratch = tile_scratch,
    .task = tile_task,
    .partial_bytes = tile_partial_bytes,
    .part = tile_part,
    .fold = tile_fold,
};
