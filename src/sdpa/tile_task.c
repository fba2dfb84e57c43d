/* The tile engine: one task of the forward, up to ATTNI_TILES tiles of queries against all keys
 * that they see. sdpa.c calls tile_task() through the plan's engine.
 *
 *   for each chunk of 256 keys (keys and values are converted to rows of R if necessary)
 *     for each tile of W queries
 *       for each block of the chunk that some query of the tile sees            (chunk.c, decode.c)
 *         S^T = K Q^T;  scale, soft cap, biases, masks;  update the chunk's maximum m
 *         P = 2^(S - m);  acc += V^T P
 *       merge m, l (sum of weights) and acc of the chunk into m, l and O (`total`) of the tile
 *   out = O / l                                                                 (result.c)
 *
 * A chunk is independent of the others until it is merged: it begins with its own maximum and its
 * own sums. Merging multiplies sums by 2^(old maximum - new maximum), then adds them. The maxima
 * are integers in log2 units, so this factor is a power of two. Chunks are always merged in the
 * order of the keys. So they may also be computed separately, on any thread, kept as partials and
 * folded later (tile_part, tile_fold): the operations, and the bits, are the same.
 *
 * A sweep is one pass of a tile over its keys. If a result of the first sweep is not finite, or a
 * score in log2 units is near the largest number of R or above it, up to two more follow:
 *
 *   fast           The first sweep. Masked keys take part with a weight of 0. Their values are
 *                  multiplied by it, which is harmless unless a value is NaN or infinite.
 *   skip masked    The second sweep. Masked keys are skipped. Rows that were already finite get the
 *                  same bits again.
 *   rescaled       The third sweep. Masked keys are skipped, and huge values cannot overflow the
 *                  sums: in rows that are not finite yet or have huge scores, the weights are
 *                  multiplied by 2^-40 (value_scale) before values are added. The final division
 *                  removes the factor. attni_tile_move_exponents() prepares this sweep.
 *
 * If a row is not finite after the third sweep, the cause is its query, a visible key or value, a
 * bias or its sink logit, never a masked key.
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "../cache/cache.h"
#include "tile.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ scratch */

/* The size of st, divided by ATTNI_BLOCK: carve() takes ATTNI_BLOCK such lines. As a tile array, st
 * has a number per lane for each key of a block. In the decode path it has max_decode_rows numbers
 * for each key of a chunk, or of a block if all keys are one block. The larger size is taken. */
static size_t st_line(const attni_plan *p)
{
    const size_t line = (size_t)(p->nv * p->kernels->lanes) * p->real;
    const size_t few = ATTNI_BLOCKS * (size_t)p->kernels->max_decode_rows * p->real;
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
        /* one row more for interleaved keys: if D is odd and components have 2 bytes,
         * scores_interleaved() reads a row of zeros after the last one */
        x->qt = attni_layout_take(layout, D + p->k_interleaved, line);
        x->total = attni_layout_take(layout, Dv, line);
        x->l = attni_layout_take(layout, 6, line);
        if (x->l)
            x->m = x->l + line, x->m_first = x->m + line, x->top = x->m_first + line,
            x->c = x->top + line, x->value_scale = x->c + line;
    }
    carve_partial(p, &w->chunk, layout, line);
    w->sums =
        attni_layout_take(layout, (size_t)p->kernels->max_decode_rows * p->real, p->sums_width);
    w->totals =
        attni_layout_take(layout, (size_t)p->kernels->max_decode_rows * p->real, p->sums_width);
    w->st = attni_layout_take(layout, ATTNI_BLOCK, st_line(p));
    w->q_row = attni_layout_take(layout, D * p->real + line, 1); /* written in whole vectors */
    w->mx = attni_layout_take(layout, 2 * ATTNI_BLOCKS + 2, line);
    if (w->mx)
        w->a = w->mx + ATTNI_BLOCKS * line, w->factors = w->a + ATTNI_BLOCKS * line;
    const size_t keys = p->tiles > 1 ? ATTNI_CHUNK : ATTNI_BLOCK;
    w->k = p->k_in_place ? NULL : attni_layout_take(layout, keys * p->real, D);
    w->v = p->v_in_place ? NULL : attni_layout_take(layout, keys * p->real, Dv);
    const bool converts = p->k_interleaved && p->args.k.dtype != p->real_dtype;
    w->interleaved =
        !converts ? NULL
                  : attni_layout_take(layout, ATTNI_BLOCK, p->args.cache->row_bytes[ATTNI_KEYS]);
    w->score_rows = attni_layout_take(layout, p->S > 0 ? 2 * ATTNI_BLOCK : 0,
                                      (size_t)p->kernels->max_decode_rows * p->real);
    w->rows = p->copies_rows ? attni_layout_take(layout, D > Dv ? D : Dv, line) : NULL;
    w->biases = p->args.mask ? attni_layout_take(layout, ATTNI_BLOCK, line) : NULL;
    w->lines = p->args.scores ? attni_layout_take(layout, ATTNI_BLOCK, line) : NULL;
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

/* Chooses the tile's width and how many queries it takes. The width is the narrowest that has lanes
 * for `rows` queries of each of `heads` heads; the tile then takes them all. If even a full tile of
 * this call (p->nv vectors) has too few lanes, it takes as many queries as fit. The bits of a query
 * do not depend on the width. */
static void size_tile(const attni_plan *p, attni_tile *t, int heads, int64_t rows)
{
    t->heads = heads;
    t->nv = attni_vectors_for(p, rows * t->heads, p->nv);
    t->W = t->nv * p->kernels->lanes;
    t->per_head = rows * t->heads < t->W ? (int)rows : t->W / t->heads;
    t->rows = t->per_head * t->heads;
}

/* Sets the tile's shape and its route. */
static void shape_tile(const attni_worker *w, attni_tile *t, int64_t i0, int64_t rows)
{
    const attni_plan *p = w->plan;
    t->i0 = i0;
    t->rescaled = false;
    size_tile(p, t, w->sequence->heads, rows);
    t->span = attni_mask_span(w->sequence, i0, i0 + t->per_head);
    t->route = attni_route_of(p, t->nv, t->rows, t->span.any1 - t->span.any0);
    t->decodes = t->route >= ATTNI_ROUTE_DECODE_TILES && t->route <= ATTNI_ROUTE_DECODE_DEFERRED;
}

/* Loads the tile's queries, times scale_pow2: into qt or, if it decodes a single query, q_row. */
static void load_queries(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *q = &p->args.q;
    /* Are the tile's rows one constant stride apart? They are if they all belong to one head, or if
     * there is one row per head. */
    const bool even = t->heads == 1 || t->per_head == 1;
    const attni_sequence *s = w->sequence;
    const char *from = attni_at(q, s->b, s->h, s->i_base + t->i0, 0);
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
    if (t->rows > 1 || !t->decodes) {
        p->kernels->pack(t->qt, from, ldq, t->rows, p->D, p->scale_pow2, t->nv);
        if (p->k_interleaved)
            memset(t->qt + (size_t)(p->D * t->W) * p->real, 0, (size_t)t->W * p->real);
        return;
    }
    const size_t line = (size_t)t->W * p->real, bytes = (size_t)p->D * p->real;
    const size_t lines = (bytes + line - 1) / line;
    memset(w->q_row + bytes, 0, lines * line - bytes);
    if (bytes > 0) /* else `from` may be NULL */
        memcpy(w->q_row, from, bytes);
    attni_fill_lanes(p, w->mx, p->scale_pow2, t->W);
    p->kernels->rescale(w->q_row, (int64_t)lines, w->mx, 1);
}

/* Prepares a tile for a sweep. t->total need not be cleared if nothing will be added to it. */
static void clear_tile(const attni_plan *p, attni_tile *t, bool clear_total)
{
    t->in_totals = false;
    if (clear_total)
        memset(t->total, 0, (size_t)p->Dv * (size_t)t->W * p->real);
    memset(t->l, 0, (size_t)t->W * p->real);
    attni_fill_lanes(p, t->m, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->top, -(double)INFINITY, t->W);
    if (t->rescaled)
        return; /* attni_tile_move_exponents() has set m_first and c */
    attni_fill_lanes(p, t->m_first, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->c, p->log2_scale, t->W);
}

/* ------------------------------------------------------------------------------------ sweeps */

static bool sweep_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                        attni_sweep mode, bool joins)
{
    if (t->decodes)
        return attni_decode_chunk(w, t, x, j0, n, mode, joins);
    return attni_tile_chunk(w, t, x, j0, n, mode, joins);
}

/* Sweeps the tiles' keys. In the fast sweep of a tile that decodes, the sums are added to
 * w->totals. */
static void sweep_keys(attni_worker *w, attni_tile *tiles, int count, attni_sweep mode)
{
    const attni_plan *p = w->plan;
    const bool loads = p->tiles > 1 && !(p->k_in_place && p->v_in_place);
    int64_t begin = INT64_MAX, end = 0;
    for (int t = 0; t < count; t++) {
        if (tiles[t].span.any0 < begin)
            begin = tiles[t].span.any0;
        if (tiles[t].span.any1 > end)
            end = tiles[t].span.any1;
    }
    begin -= begin % ATTNI_CHUNK;
    attni_tile *last = &tiles[count - 1]; /* only this one may be narrow enough to decode */
    for (int64_t j0 = begin; j0 < end; j0 += ATTNI_CHUNK) {
        const int n = end - j0 < ATTNI_CHUNK ? (int)(end - j0) : ATTNI_CHUNK;
        if (loads)
            attni_tile_load(w, j0, n, true);
        if (p->far && !tiles[0].decodes)
            attni_choose_prefetch(w, count, j0 + ATTNI_CHUNK, end);
        for (int t = 0; t < count; t++) {
            const attni_tile *next = t + 1 < count ? &tiles[t + 1] : &tiles[0];
            const int64_t from = t + 1 < count ? j0 : j0 + ATTNI_CHUNK;
            if (p->args.mask)
                w->mask_prefetch =
                    attni_mask_prefetch(w->sequence, next->i0, next->per_head, from, end - from);
            if (tiles[t].span.any0 < j0 + n && tiles[t].span.any1 > j0)
                sweep_chunk(w, &tiles[t], &w->chunk, j0, n, mode, true);
        }
    }
    if (last->decodes)
        attni_decode_end(w, last);
    last->in_totals = last->decodes && mode == ATTNI_SWEEP_FAST;
}

static void clear_totals(const attni_worker *w)
{
    const attni_plan *p = w->plan;
    memset(w->totals, 0, (size_t)p->kernels->max_decode_rows * p->sums_width * p->real);
}

static void sweep(attni_worker *w, attni_tile *tiles, int count, attni_sweep mode)
{
    if (tiles[count - 1].decodes && mode == ATTNI_SWEEP_FAST)
        clear_totals(w);
    sweep_keys(w, tiles, count, mode);
}

/* -------------------------------------------------------------------------------- the worker */

/* Sets plan, sequence and next task; empties the lists `prefetch` and `pending` (tile.h). */
static void begin_worker(attni_worker *w, const attni_plan *plan, const attni_sequence *sequence,
                         const attni_task *next)
{
    w->plan = plan;
    w->sequence = sequence;
    w->next = next;
    w->mask_prefetch = (attni_prefetch){0};
    w->prefetch_count = w->prefetch_next = w->pending_count = 0;
}

/* Does what begin_worker() does, and places all arrays in scratch. */
static void begin_with_arrays(attni_worker *w, const attni_plan *plan,
                              const attni_sequence *sequence, const attni_task *next, char *scratch)
{
    begin_worker(w, plan, sequence, next);
    attni_layout layout = {.base = scratch};
    carve(w, &layout);
}

static void finish_tile(attni_worker *w, attni_tile *t)
{
    if (attni_tile_finish(w, t)) {
        clear_tile(w->plan, t, true);
        sweep(w, t, 1, ATTNI_SWEEP_SKIP_MASKED);
        if (attni_tile_finish(w, t)) {
            attni_tile_move_exponents(w, t);
            clear_tile(w->plan, t, true);
            sweep(w, t, 1, ATTNI_SWEEP_SKIP_MASKED);
            attni_tile_finish(w, t);
        }
    }
    if (w->plan->args.scores)
        attni_tile_scores_out(w, t);
}

/* ------------------------------------------------------------------- a task of one block of keys
 *
 * A shorter path for a task of one tile whose keys are a single block, read in place and all
 * visible, without biases, soft cap, dropout and requested scores: scores = Q K^T, maximum,
 * weights, sums = weights V, out = sums / l. The arithmetic of such a call (for example a sentence
 * of six words, or the next token after a few) takes about 100 ns; chunks, totals and joins would
 * double that (docs/decisions/0020). The bits are the same as those of the general path, which
 * merges a single chunk into empty totals: it multiplies by 1 and adds 0. */

static char *take(char **at, size_t bytes)
{
    char *piece = *at;
    *at += (bytes + ATTNI_ALIGN - 1) / ATTNI_ALIGN * ATTNI_ALIGN;
    return piece;
}

/* Places the arrays in scratch. They fit: it was sized for carve(), which needs more. */
static void carve_one_block(attni_worker *w, attni_tile *t, char *at)
{
    const attni_plan *p = w->plan;
    const size_t line = (size_t)t->W * p->real;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    t->l = take(&at, 5 * line);
    t->m = t->l + line, t->m_first = t->m + line, t->top = t->m_first + line;
    t->c = t->top + line;
    w->chunk.m = take(&at, 2 * line); /* for the sink logit, joined like a chunk (result.c) */
    w->chunk.l = w->chunk.m + line;
    w->mx = take(&at, 4 * line);
    w->a = w->mx + line, w->factors = w->a + line;
    t->qt = take(&at, D * line);
    t->total = take(&at, Dv * line);
    w->totals = take(&at, (size_t)p->kernels->max_decode_rows * p->real * p->sums_width);
    w->st = take(&at, ATTNI_BLOCK * line);
    w->q_row = take(&at, D * p->real + line);
    if (p->copies_rows)
        w->rows = take(&at, (D > Dv ? D : Dv) * line);
}

/* Processes all keys and values, for one tile. */
static void sweep_one_block(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const int n = (int)w->sequence->S;
    attni_chunk_block b = {.n = n, .route = t->route, .st = w->st, .mx = w->mx};
    attni_block_rows(w, &b, false);
    if (p->far_blocks && !t->decodes)
        attni_choose_prefetch(w, 1, n, n);
    if (t->decodes)
        attni_decode_products(w, t, &b, n);
    else
        attni_tile_products(w, t, &b);
    kernels->update_max(t->m, w->a, t->top, w->mx, t->c, t->nv);
    t->in_totals = t->decodes;
    if (t->in_totals) {
        const attni_next_rows next = attni_tile_next_rows(w, t, true, &b, n);
        kernels->weights_decode(w->st, w->st, t->c, t->m, n, t->rows);
        kernels->values_decode(w->totals, t->l, b.v, b.ldv, b.dtype, w->st, 1, n, p->Dv, t->rows,
                               ATTNI_FIRST, &next);
    } else {
        kernels->weights(w->st, t->l, w->st, t->c, t->m, n, t->nv, 0);
        kernels->values(t->total, NULL, NULL, b.v, b.ldv, w->st, n, p->Dv, t->nv, ATTNI_FIRST,
                        attni_prefetch_now(w));
    }
}

/* Computes the task by the shorter path. Returns false if that path is not for this task, or if the
 * result needs another sweep; tile_task() then computes out and lse by the general path. */
static bool one_block_task(const attni_plan *plan, const attni_task *task, const attni_task *next,
                           char *scratch)
{
    const attni_sequence *sequence = &task->sequence;
    if (!plan->no_postprocessing || sequence->S < 1 || sequence->S > ATTNI_BLOCK)
        return false;
    attni_worker w;
    begin_worker(&w, plan, sequence, next);
    attni_tile *t = &w.tiles[0];
    shape_tile(&w, t, task->i0, task->rows);
    if (t->per_head < task->rows ||
        attni_mask_classify(sequence, &t->span, t->i0, t->i0 + t->per_head, 0, sequence->S) !=
            ATTNI_FULL)
        return false;
    carve_one_block(&w, t, scratch);
    load_queries(&w, t);
    clear_tile(plan, t, false);
    sweep_one_block(&w, t);
    return !attni_tile_finish(&w, t);
}

/* ---------------------------------------------------------------------------------- the task */

static void tile_task(const attni_plan *plan, const attni_task *task, const attni_task *next,
                      char *scratch)
{
    if (one_block_task(plan, task, next, scratch))
        return;
    attni_worker w;
    begin_with_arrays(&w, plan, &task->sequence, next, scratch);
    int count = 0;
    for (int64_t done = 0; done < task->rows; count++) {
        attni_tile *t = &w.tiles[count];
        shape_tile(&w, t, task->i0 + done, task->rows - done);
        load_queries(&w, t);
        clear_tile(plan, t, !t->decodes);
        done += t->per_head;
    }
    sweep(&w, w.tiles, count, ATTNI_SWEEP_FAST);
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
    shape_tile(w, t, i0, rows);
    load_queries(w, t);
    clear_tile(w->plan, t, true);
    return t;
}

static void tile_part(const attni_plan *plan, const attni_sequence *sequence, int64_t i0,
                      int64_t rows, int64_t chunk0, int64_t chunk1, char *partials, char *scratch)
{
    attni_worker w;
    begin_with_arrays(&w, plan, sequence, NULL, scratch);
    attni_tile *t = part_tile(&w, i0, rows);
    for (int64_t chunk = chunk0; chunk < chunk1; chunk++) {
        attni_partial x = partial_of(plan, partials, chunk);
        const int64_t j0 = chunk * ATTNI_CHUNK, left = t->span.any1 - j0;
        const int n = left < ATTNI_CHUNK ? (int)left : ATTNI_CHUNK;
        if (n <= 0 || t->span.any0 >= j0 + n ||
            !sweep_chunk(&w, t, &x, j0, n, ATTNI_SWEEP_FAST, false))
            attni_set_lane(plan, x.l, 0, -1); /* a negative sum of weights marks a chunk in which
                                                 no key is visible */
    }
}

static void tile_fold(const attni_plan *plan, const attni_sequence *sequence, int64_t i0,
                      int64_t rows, int64_t chunks, char *partials, char *scratch)
{
    attni_worker w;
    begin_with_arrays(&w, plan, sequence, NULL, scratch);
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

/* ------------------------------------------------------------ a task whose keys come in pieces
 *
 * The sums of each tile are in the memory of the call's state, not in scratch. They are t->total
 * (or w->totals), l, m, m_first, top, c and value_scale. */

static size_t fed_tile_bytes(const attni_plan *p, const attni_tile *t, attni_layout *layout)
{
    const size_t before = layout->used, line = (size_t)t->W * p->real;
    /* In the fast sweep a tile that decodes stores w->totals in the place of t->total. */
    if (t->nv == 1 && t->rows <= p->kernels->max_decode_rows &&
        (size_t)p->kernels->max_decode_rows * p->sums_width > (size_t)p->Dv * (size_t)t->W)
        attni_layout_take(layout, (size_t)p->kernels->max_decode_rows * p->real, p->sums_width);
    else
        attni_layout_take(layout, (size_t)p->Dv, line);
    attni_layout_take(layout, 6, line);
    return layout->used - before;
}

static size_t tile_fed_bytes(const attni_plan *plan, int heads, int64_t rows)
{
    attni_layout layout = {0};
    attni_tile t;
    for (int64_t done = 0; done < rows; done += t.per_head) {
        size_tile(plan, &t, heads, rows - done);
        fed_tile_bytes(plan, &t, &layout);
    }
    return layout.overflow ? SIZE_MAX : layout.used;
}

/* Places the tile's arrays at `sums`, and returns the address after them. Clears a new tile. */
static char *use_fed_sums(attni_worker *w, attni_tile *t, char *sums, uint8_t *sweep)
{
    const attni_plan *p = w->plan;
    const size_t line = (size_t)t->W * p->real;
    attni_layout layout = {0};
    char *end = sums + fed_tile_bytes(p, t, &layout);
    const bool totals = t->decodes && *sweep <= ATTNI_FED_FAST;
    *(totals ? &w->totals : &t->total) = sums;
    t->l = end - (6 * line + ATTNI_ALIGN - 1) / ATTNI_ALIGN * ATTNI_ALIGN;
    t->m = t->l + line, t->m_first = t->m + line, t->top = t->m_first + line;
    t->c = t->top + line, t->value_scale = t->c + line;
    if (*sweep == ATTNI_FED_NEW) {
        clear_tile(p, t, !totals);
        if (totals)
            clear_totals(w);
        *sweep = ATTNI_FED_FAST;
    }
    t->in_totals = totals;
    t->rescaled = *sweep == ATTNI_FED_RESCALED;
    return end;
}

/* Prepares the tiles of a task; returns their number. */
static int fed_tiles(attni_worker *w, const attni_task *task, const attni_fed *fed)
{
    char *sums = fed->sums;
    int count = 0;
    for (int64_t done = 0; done < task->rows; count++) {
        attni_tile *t = &w->tiles[count];
        shape_tile(w, t, task->i0 + done, task->rows - done);
        sums = use_fed_sums(w, t, sums, &fed->sweeps[count]);
        done += t->per_head;
        if (fed->sweeps[count] != ATTNI_FED_DONE)
            load_queries(w, t);
    }
    return count;
}

/* Either all tiles of the task are in the fast sweep, or none is. */
static void tile_feed(const attni_plan *plan, const attni_task *task, int64_t j0, int64_t j1,
                      const attni_fed *fed, char *scratch)
{
    attni_worker w;
    begin_with_arrays(&w, plan, &task->sequence, NULL, scratch);
    const int count = fed_tiles(&w, task, fed);
    for (int i = 0; i < count; i++) {
        attni_tile *t = &w.tiles[i];
        t->span.any0 = t->span.any0 < j0 ? j0 : t->span.any0;
        t->span.any1 = t->span.any1 > j1 ? j1 : t->span.any1;
    }
    if (fed->sweeps[0] == ATTNI_FED_FAST) {
        sweep_keys(&w, w.tiles, count, ATTNI_SWEEP_FAST);
        return;
    }
    for (int i = 0; i < count; i++)
        if (fed->sweeps[i] != ATTNI_FED_DONE)
            sweep_keys(&w, &w.tiles[i], 1, ATTNI_SWEEP_SKIP_MASKED);
}

/* Writes a swept tile's results. If they need another sweep, clears the tile and returns true. */
static bool finish_fed_tile(attni_worker *w, attni_tile *t, char *sums, uint8_t *sweep)
{
    if (*sweep == ATTNI_FED_DONE)
        return false;
    if (!attni_tile_finish(w, t) || *sweep == ATTNI_FED_RESCALED) {
        *sweep = ATTNI_FED_DONE;
        return false;
    }
    if (*sweep == ATTNI_FED_FAST) {
        *sweep = ATTNI_FED_SKIP_MASKED;
        /* If the tile decodes, t->total now takes the memory of w->totals. */
        use_fed_sums(w, t, sums, sweep);
        clear_tile(w->plan, t, true);
    } else {
        *sweep = ATTNI_FED_RESCALED;
        attni_tile_move_exponents(w, t);
        clear_tile(w->plan, t, true);
    }
    return true;
}

static bool tile_finish(const attni_plan *plan, const attni_task *task, const attni_fed *fed,
                        char *scratch)
{
    attni_worker w;
    begin_with_arrays(&w, plan, &task->sequence, NULL, scratch);
    char *sums = fed->sums;
    bool again = false;
    int64_t done = 0;
    for (int i = 0; done < task->rows; i++) {
        attni_tile *t = &w.tiles[i];
        shape_tile(&w, t, task->i0 + done, task->rows - done);
        char *end = use_fed_sums(&w, t, sums, &fed->sweeps[i]);
        again |= finish_fed_tile(&w, t, sums, &fed->sweeps[i]);
        sums = end;
        done += t->per_head;
    }
    return again;
}

const attni_engine attni_engine_tile = {
    .tiles = ATTNI_TILES,
    .scratch = tile_scratch,
    .task = tile_task,
    .partial_bytes = tile_partial_bytes,
    .part = tile_part,
    .fold = tile_fold,
    .fed_bytes = tile_fed_bytes,
    .feed = tile_feed,
    .finish = tile_finish,
};
