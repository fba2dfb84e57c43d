/* The tasks of the bf16 engine: whole, in parts along the keys, and with keys that come in pieces.
 * sdpa.c and feed.c (sdpa/) call these functions through the plan's engine. bf16_task.c sweeps the
 * keys.
 *
 * As in tile_task.c, a tile whose result is not finite is swept again. SWEEP_SKIP_MASKED replaces
 * values that are NaN or infinite by 0 and then adds their contribution to the queries that see
 * them. In SWEEP_RESCALED, the weights of the rows that are still not finite are also scaled by
 * 2^-40 (value_scale) before values are added, so that the sums cannot overflow. The final division
 * undoes this factor. Rows that were already finite get the same bits again.
 */
#include "bf16_task.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ the task */

static void sweep(bf16_worker *w, bf16_tile *tiles, int count, sweep_mode mode)
{
    attni_bf16_begin_sweep(w, tiles, count, mode);
    for (int t = 0; t < count; t++)
        attni_bf16_clear_total(w, &tiles[t]);
    attni_bf16_sweep_keys(w, tiles, count);
}

static void end_tile(bf16_worker *w, bf16_tile *t)
{
    if (attni_bf16_write(w, t)) {
        attni_bf16_clear(w->plan, t);
        sweep(w, t, 1, SWEEP_SKIP_MASKED);
        if (attni_bf16_write(w, t)) {
            attni_bf16_rescale_tile(w, t);
            sweep(w, t, 1, SWEEP_RESCALED);
            attni_bf16_write(w, t);
        }
    }
    if (w->plan->args.scores)
        attni_bf16_write_scores(w, t);
}

static void bf16_task(const attni_plan *plan, const attni_task *task, const attni_task *next,
                      char *scratch)
{
    bf16_worker w;
    attni_bf16_begin_worker(&w, plan, &task->sequence, scratch);
    w.next = next;
    int count = 0;
    for (int64_t done = 0; done < task->rows; count++) {
        attni_bf16_begin_tile(&w, &w.tiles[count], task->i0 + done, task->rows - done);
        attni_bf16_clear(plan, &w.tiles[count]);
        done += w.tiles[count].per_head;
    }
    sweep(&w, w.tiles, count, SWEEP_FAST);
    for (int i = 0; i < count; i++)
        end_tile(&w, &w.tiles[i]);
    w.unit->end();
}

/* ------------------------------------------------------------- a task in parts over the keys */

static bf16_partial carve_partial(const attni_plan *p, attni_layout *layout)
{
    return (bf16_partial){attni_layout_take(layout, 1, sizeof(attni_bf16_columns)),
                          attni_layout_take(layout, (size_t)attni_bf16_padded(p->Dv),
                                            (size_t)p->nv * 16 * 4)};
}

static size_t bf16_partial_bytes(const attni_plan *plan)
{
    attni_layout layout = {0};
    carve_partial(plan, &layout);
    return layout.overflow ? SIZE_MAX : layout.used;
}

static bf16_partial partial_of(const attni_plan *p, char *partials, int64_t chunk)
{
    attni_layout layout = {.base = partials + (size_t)chunk * p->partial_bytes};
    return carve_partial(p, &layout);
}

static void bf16_part(const attni_plan *plan, const attni_sequence *sequence, int64_t i0,
                      int64_t rows, int64_t chunk0, int64_t chunk1, char *partials, char *scratch)
{
    bf16_worker w;
    attni_bf16_begin_worker(&w, plan, sequence, scratch);
    bf16_tile *t = &w.tiles[0];
    attni_bf16_begin_tile(&w, t, i0, rows);
    attni_bf16_clear(plan, t);
    attni_bf16_begin_sweep(&w, t, 1, SWEEP_FAST);
    for (int64_t chunk = chunk0; chunk < chunk1; chunk++) {
        const bf16_partial x = partial_of(plan, partials, chunk);
        const int64_t j0 = chunk * ATTNI_CHUNK, left = sequence->S - j0;
        const int n = left < ATTNI_CHUNK ? (int)left : ATTNI_CHUNK;
        x.columns->l[0] = -1;
        attni_bf16_new_chunk(&w);
        if (n > 0 && t->span.any0 < j0 + n && t->span.any1 > j0)
            attni_bf16_sweep_chunk(&w, t, j0, n, &x);
    }
    attni_bf16_row_end(&w, t);
    w.unit->end();
}

static void bf16_fold(const attni_plan *plan, const attni_sequence *sequence, int64_t i0,
                      int64_t rows, int64_t chunks, char *partials, char *scratch)
{
    bf16_worker w;
    attni_bf16_begin_worker(&w, plan, sequence, scratch);
    bf16_tile *t = &w.tiles[0];
    attni_bf16_begin_tile(&w, t, i0, rows);
    attni_bf16_clear(plan, t);
    attni_bf16_clear_total(&w, t);
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const bf16_partial x = partial_of(plan, partials, chunk);
        if (x.columns->l[0] < 0)
            continue;
        attni_bf16_join(t->total, t->M, t->L, x.acc, x.columns, plan->Dv, t->nv);
        for (int i = 0; i < t->W; i++)
            t->top[i] = fmaxf(t->top[i], x.columns->top[i]);
    }
    end_tile(&w, t);
    w.unit->end();
}

/* ------------------------------------------------------------ a task whose keys come in pieces
 *
 * The sums of each tile lie in memory that stays, instead of in scratch: `total` (or w->row_total)
 * and the five arrays that follow it in carve() of bf16_task.c. */

/* The bytes of `total`; row_total is never larger. */
static size_t total_bytes(const attni_plan *p, const bf16_tile *t)
{
    return (size_t)attni_bf16_padded(p->Dv) * (size_t)t->W * sizeof(float);
}

static size_t bf16_fed_bytes(const attni_plan *plan, int heads, int64_t rows)
{
    attni_layout layout = {0};
    bf16_tile t;
    for (int64_t done = 0; done < rows; done += t.per_head) {
        attni_bf16_size_tile(plan, &t, heads, rows - done);
        attni_layout_take(&layout, total_bytes(plan, &t), 1);
        attni_layout_take(&layout, 5, (size_t)t.W * sizeof(float));
    }
    return layout.overflow ? SIZE_MAX : layout.used;
}

static sweep_mode mode_of(uint8_t sweep)
{
    return sweep == ATTNI_FED_RESCALED      ? SWEEP_RESCALED
           : sweep == ATTNI_FED_SKIP_MASKED ? SWEEP_SKIP_MASKED
                                            : SWEEP_FAST;
}

/* Prepares the tiles of a task; their sums and maxima are in fed->sums instead of in scratch.
 * Returns the number of tiles. */
static int fed_tiles(bf16_worker *w, const attni_task *task, const attni_fed *fed)
{
    attni_layout layout = {.base = fed->sums};
    int count = 0;
    for (int64_t done = 0; done < task->rows; count++) {
        bf16_tile *t = &w->tiles[count];
        attni_bf16_begin_tile(w, t, task->i0 + done, task->rows - done);
        t->total = attni_layout_take(&layout, total_bytes(w->plan, t), 1);
        t->c = attni_layout_take(&layout, 5, (size_t)t->W * sizeof(float));
        t->value_scale = t->c + t->W, t->M = t->value_scale + t->W, t->L = t->M + t->W,
        t->top = t->L + t->W;
        done += t->per_head;
    }
    return count;
}

/* Begins or continues the present sweep of tile `at`, one of the task's `count` tiles. Clears the
 * tile if it is new. */
static void begin_sweep(bf16_worker *w, int at, int count, const attni_fed *fed)
{
    bf16_tile *t = &w->tiles[at];
    const sweep_mode mode = mode_of(fed->sweeps[at]);
    const bool fast = mode == SWEEP_FAST;
    attni_bf16_begin_sweep(w, fast ? w->tiles : t, fast ? count : 1, mode);
    if (w->row)
        w->row_total = t->total;
    if (fed->sweeps[at] != ATTNI_FED_NEW)
        return;
    attni_bf16_clear(w->plan, t);
    attni_bf16_clear_total(w, t);
    fed->sweeps[at] = ATTNI_FED_FAST;
}

static void bf16_feed(const attni_plan *plan, const attni_task *task, int64_t j0, int64_t j1,
                      const attni_fed *fed, char *scratch)
{
    bf16_worker w;
    attni_bf16_begin_worker(&w, plan, &task->sequence, scratch);
    const int count = fed_tiles(&w, task, fed);
    for (int i = 0; i < count; i++) {
        bf16_tile *t = &w.tiles[i];
        t->span.any0 = t->span.any0 < j0 ? j0 : t->span.any0;
        t->span.any1 = t->span.any1 > j1 ? j1 : t->span.any1;
    }
    const bool fast = fed->sweeps[0] <= ATTNI_FED_FAST;
    for (int i = 0; i < count; i++) {
        if (fed->sweeps[i] == ATTNI_FED_DONE)
            continue;
        begin_sweep(&w, i, count, fed);
        if (!fast)
            attni_bf16_sweep_keys(&w, &w.tiles[i], 1);
    }
    if (fast)
        attni_bf16_sweep_keys(&w, w.tiles, count);
    w.unit->end();
}

/* The steps of end_tile() between its sweeps. Returns true if the tile is to be swept again. */
static bool finish_tile(bf16_worker *w, bf16_tile *t, uint8_t *sweep)
{
    if (!attni_bf16_write(w, t) || *sweep == ATTNI_FED_RESCALED) {
        *sweep = ATTNI_FED_DONE;
        return false;
    }
    if (*sweep == ATTNI_FED_FAST) {
        *sweep = ATTNI_FED_SKIP_MASKED;
        attni_bf16_clear(w->plan, t);
    } else {
        *sweep = ATTNI_FED_RESCALED;
        attni_bf16_rescale_tile(w, t);
    }
    w->row = 0; /* from here on the sums are a tile, not one row per query */
    attni_bf16_clear_total(w, t);
    return true;
}

static bool bf16_finish(const attni_plan *plan, const attni_task *task, const attni_fed *fed,
                        char *scratch)
{
    bf16_worker w;
    attni_bf16_begin_worker(&w, plan, &task->sequence, scratch);
    const int count = fed_tiles(&w, task, fed);
    bool again = false;
    for (int i = 0; i < count; i++) {
        if (fed->sweeps[i] == ATTNI_FED_DONE)
            continue;
        begin_sweep(&w, i, count, fed);
        again |= finish_tile(&w, &w.tiles[i], &fed->sweeps[i]);
    }
    w.unit->end();
    return again;
}

const attni_engine attni_engine_bf16 = {
    .operands = "bf16",
    .vectors = ATTNI_BF16_W / 16,
    .tiles = TILES,
    .scratch = attni_bf16_scratch,
    .task = bf16_task,
    .partial_bytes = bf16_partial_bytes,
    .part = bf16_part,
    .fold = bf16_fold,
    .fed_bytes = bf16_fed_bytes,
    .feed = bf16_feed,
    .finish = bf16_finish,
};

#else
const attni_engine attni_engine_bf16 = {0};
#endif
