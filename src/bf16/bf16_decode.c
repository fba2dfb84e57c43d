/* The bf16 engine's decode path: a tile of a few queries whose scores, weights and sums are stored
 * as rows. bf16_task.c calls attni_bf16_row_chunk() for each chunk of keys. Keys and values are
 * read in place, and the keys of a chunk are scored at once instead of block by block. The order
 * of all sums is the same, and so is every bit.
 *
 *   K  scores   W  masks, maximum, weights   V  sums += weighted values   J  merge into total
 *   K1: step K of chunk 1; [ ] is one loop, if the unit has one for this case
 *
 *   time ->
 *   chunk 0   | chunk 1          | chunk 2          | attni_bf16_row_end
 *   K0 W0     | [K1 V0] J0 W1    | [K2 V1] J1 W2    | V2 J2
 *
 * Decoding is memory-bound, and all other work between keys and values adds to the time. Without
 * this path, a third of a call with data in cache was spent on the steps, on computing 16 columns
 * where one is needed, and on transposing them. Times before and after (Zen 5):
 *
 *   1024 keys, D = 128, one query                   7.8 -> 5.2 us
 *   the same, four queries that share a head        17.8 -> 10.6 us
 *   the same, eight queries                         18.3 -> 16.4 us
 *   12 heads of 33 keys, D = 64                     13.8 -> 4.6 us
 *
 * A chunk's values are deferred until the next chunk's keys are read. Then one loop reads both, as
 * two ascending streams of addresses, at the speed of memory. The loop also does the arithmetic of
 * both. Reading one after the other is 10 % slower from memory and from L2. Keys that are stored as
 * rows are not read in this loop: 32 rows are read side by side, and reading values at the same
 * time would take twice as long.
 *
 * Terms (tile, block, chunk, interleaved): the glossary in kernel/kernel.h. Arrays: unit.h
 * (operands: k, q, st, p, vt, acc) and bf16_task.h (those of a task).
 */
#include "bf16_task.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

static bf16_visible_blocks find_blocks(const attni_class *class, int64_t j0, int n)
{
    bf16_visible_blocks x = {0};
    for (int b = 0; b * ATTNI_BLOCK < n; b++)
        if (class[b] != ATTNI_EMPTY) {
            const int left = n - b * ATTNI_BLOCK, keys = left < ATTNI_BLOCK ? left : ATTNI_BLOCK;
            x.j[x.count] = j0 + b * ATTNI_BLOCK;
            x.keys[x.count] = keys;
            x.visible[x.count++] = class[b];
            x.n += keys;
        }
    return x;
}

static void load_row(bf16_worker *w, const bf16_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *q = &p->args.q;
    const char *from = column_row(w, t, q, 0, 0);
    if (q->stride[3] != 1 && p->D > 1) {
        attni_bf16_copy_row((attni_bf16 *)(void *)w->rows, from, q->stride[3], p->D);
        from = w->rows;
    }
    attni_bf16_scale_row(w->row_q, (const attni_bf16 *)(const void *)from, p->D,
                         (float)p->scale_pow2);
}

void attni_bf16_row_begin(bf16_worker *w, bf16_tile *t)
{
    w->row = attni_bf16_decode_rows(t->rows);
    if (w->row == 1) {
        load_row(w, t);
    } else { /* columns without a query are 0 */
        attni_bf16_load_queries(w, t);
        attni_bf16_first_queries(w->row_q, t->q, attni_bf16_padded(w->plan->D), w->row, t->nv);
    }
    for (int r = t->rows; r < w->row; r++)
        memset(w->row_p + r * ATTNI_CHUNK, 0, ATTNI_CHUNK * sizeof *w->row_p);
    w->row_pending.count = 0;
    w->row_columns = w->columns;
}

/* -------------------------------------------------------------------------- keys and values */

/* Returns the rows of the blocks from *b on that are contiguous in memory. Their `next` is what to
 * prefetch: the rows that this thread will most likely read next. *b becomes the first block that
 * is not among them. */
static attni_bf16_rows rows_at(const bf16_worker *w, const attn_tensor *t,
                               const bf16_visible_blocks *all, int *b)
{
    const int64_t j = all->j[*b], together = attni_rows_together(w->sequence, j);
    attni_bf16_rows x = {.at = attni_stored_row(w->sequence, t, j),
                         .ld = (ptrdiff_t)t->stride[2] * 2,
                         .l2_ahead =
                             t == &w->plan->args.v ? w->plan->v_l2_ahead : w->plan->k_l2_ahead,
                         .one_stream = w->plan->one_stream};
    do
        x.n += all->keys[(*b)++];
    while (*b < all->count && all->j[*b] == j + x.n && x.n + all->keys[*b] <= together);
    int64_t left = attni_keys_there(w->sequence) - (j + x.n);
    if (x.n < together)
        x.next = (const char *)x.at + x.n * x.ld;
    else if (left > 0)
        x.next = attni_stored_row(w->sequence, t, j + x.n);
    else if (w->next)
        x.next = attni_first_row(w->next, t, &left);
    if (!x.next)
        x.next = x.at;
    /* After the last task there may be no memory, and a prefetch of an address that has no page
     * takes some 200 cycles (docs/decisions/0041). */
    while (!w->next && x.l2_ahead > ATTNI_BLOCK / 2 && x.l2_ahead > left)
        x.l2_ahead /= 2;
    return x;
}

/* Copies rows whose elements are `stride` elements apart. Rows up to the next multiple of 16 are
 * filled with zeros and count in the result's n. */
static attni_bf16_rows copy_rows(attni_bf16 *to, const attni_bf16_rows *rows, int64_t stride,
                                 int64_t width)
{
    const int n = rows->n, all = (n + 15) / 16 * 16;
    for (int r = 0; r < n; r++)
        attni_bf16_copy_row(to + r * width, (const char *)rows->at + r * rows->ld, stride, width);
    memset(to + n * width, 0, (size_t)((all - n) * width) * sizeof *to);
    return (attni_bf16_rows){.at = to, .ld = (ptrdiff_t)width * 2, .next = to, .n = all};
}

void attni_bf16_row_scores(const attni_bf16_unit *unit, float *st, const attni_bf16 *q,
                           const attni_bf16_rows *k, int64_t stride, int D, int rows,
                           attni_bf16 *copies)
{
    const int rest = k->interleaved ? 0 : stride == 1 || D == 1 ? k->n % 16 : k->n;
    attni_bf16_rows part = *k;
    part.n = k->n - rest;
    if (part.n)
        unit->row_scores(st, q, &part, D, rows);
    if (rest == 0)
        return;
    const attni_bf16_rows last = {.at = (const char *)k->at + part.n * k->ld,
                                  .ld = k->ld,
                                  .n = rest};
    const attni_bf16_rows copy = copy_rows(copies, &last, stride, D);
    unit->row_scores(st + part.n, q, &copy, D, rows);
}

static void add_rows(bf16_worker *w, attni_bf16_rows v, int from)
{
    const attn_tensor *values = &w->plan->args.v;
    const int64_t Dv = w->plan->Dv;
    if (values->stride[3] != 1 && Dv > 1)
        v = copy_rows(w->vt, &v, values->stride[3], Dv);
    w->unit->row_values(w->row_sums, w->row_columns->l, w->row_p + from * ATTNI_BLOCK, &v, Dv,
                        from == 0, w->row);
}

/* Computes the scores of a run of keys, and adds a run of values from block `first` on, in one
 * loop, if the unit has one for this case. Returns false if nothing was done. */
static bool add_while_scoring(bf16_worker *w, float *st, const attni_bf16_rows *k,
                              const attni_bf16_rows *v, int first)
{
    const attni_plan *p = w->plan;
    if (w->row != 1 || !k->interleaved || k->n != v->n || p->D != p->Dv)
        return false; /* interleaved keys come from a cache, whose values have no gaps */
    const attni_bf16_values_and_next_scores both = {.D = (int)p->D,
                                                    .n = k->n,
                                                    .q = w->row_q,
                                                    .k = k->at,
                                                    .st = st,
                                                    .v = v->at,
                                                    .ld = v->ld,
                                                    .p = w->row_p + first * ATTNI_BLOCK,
                                                    .first = first == 0,
                                                    .sums = w->row_sums,
                                                    .l = w->row_columns->l};
    if (!w->unit->row_values_and_next_scores(&both))
        return false;
    /* This prefetch makes calls with one query faster: D = 128 by 1 to 3 %, D = 64 by 2 to 8 %. */
    attni_prefetch_lines(k->next);
    attni_prefetch_lines(v->next);
    return true;
}

/* Computes the scores of `all` and adds the pending values of the chunk before. */
static void score_and_add(bf16_worker *w, float *st, const bf16_visible_blocks *all)
{
    const attni_plan *p = w->plan;
    const bf16_visible_blocks *left = &w->row_pending;
    for (int b = 0, c = 0; b < all->count || c < left->count;) {
        float *to = st + b * ATTNI_BLOCK;
        const int first = c;
        attni_bf16_rows k = {.n = 0}, v = {.n = 0};
        if (b < all->count)
            k = rows_at(w, &p->args.k, all, &b);
        if (c < left->count)
            v = rows_at(w, &p->args.v, left, &c);
        k.interleaved = p->k_interleaved;
        if (k.n && v.n && add_while_scoring(w, to, &k, &v, first))
            continue;
        if (v.n)
            add_rows(w, v, first);
        if (k.n)
            attni_bf16_row_scores(w->unit, to, w->row_q, &k, p->args.k.stride[3], (int)p->D, w->row,
                                  w->k);
    }
}

/* --------------------------------------------------------------------------- a chunk of keys */

/* Transposes n elements of each of the tile's rows, ld apart, into its first columns; the other
 * columns become 0. */
static void to_columns(const bf16_tile *t, float *columns, const float *rows, int64_t ld, int64_t n)
{
    memset(columns, 0, (size_t)(n * t->W) * sizeof *columns);
    for (int r = 0; r < t->rows; r++)
        for (int64_t i = 0; i < n; i++)
            columns[i * t->W + r] = rows[r * ld + i];
}

static void to_rows(const bf16_tile *t, float *rows, int64_t ld, const float *columns, int64_t n)
{
    for (int r = 0; r < t->rows; r++)
        for (int64_t i = 0; i < n; i++)
            rows[r * ld + i] = columns[i * t->W + r];
}

/* Applies the masks and biases of a block, which work on columns. */
static void mask(bf16_worker *w, const bf16_tile *t, float *st, int64_t j, int n)
{
    float *columns = w->st + ATTNI_CHUNK * w->unit->rows; /* after the rows of scores */
    to_columns(t, columns, st, ATTNI_CHUNK, n);
    attni_bf16_mask(w, t, columns, j, n);
    to_rows(t, st, ATTNI_CHUNK, columns, n);
}

/* Turns products into weights. Returns false if a score is NaN or +inf or a maximum is too large
 * (attni_bf16_row_weights); the chunk then needs the columns of bf16_task.c. */
static bool weigh(bf16_worker *w, bf16_tile *t, attni_bf16_columns *x, float *st,
                  const bf16_visible_blocks *all)
{
    const attni_plan *p = w->plan;
    for (int r = 0; r < t->rows && p->scaled_scores; r++)
        attni_scale_softcap(p, st + r * ATTNI_CHUNK, (all->n + 15) / 16, p->args.softcap, 1);
    for (int b = 0; b < all->count; b++)
        if (all->visible[b] != ATTNI_FULL)
            mask(w, t, st + b * ATTNI_BLOCK, all->j[b], all->keys[b]);
    for (int r = 0; r < t->rows; r++)
        if (!attni_bf16_row_weights(w->row_p + r * ATTNI_CHUNK, x, st + r * ATTNI_CHUNK, all->n, r))
            return false;
    for (int r = 0; r < t->rows; r++)
        t->top[r] = fmaxf(t->top[r], x->top[r]);
    return true;
}

static void join_left(bf16_worker *w, bf16_tile *t)
{
    const int64_t Dv = attni_bf16_padded(w->plan->Dv);
    if (w->row_pending.count == 0)
        return;
    if (w->row_acc) /* the sums of a partial result, which is stored in columns */
        to_columns(t, w->row_acc, w->row_sums, Dv, Dv);
    else
        attni_bf16_join_rows(w->row_total, t->M, t->L, w->row_sums, w->row_columns, t->rows, Dv);
    w->row_pending.count = 0;
}

bool attni_bf16_row_chunk(bf16_worker *w, bf16_tile *t, const attni_class *class, int64_t j0, int n,
                          const bf16_partial *into)
{
    const bf16_visible_blocks all = find_blocks(class, j0, n);
    float *st = w->st;
    score_and_add(w, st, &all);
    join_left(w, t);
    attni_bf16_columns *x = into ? into->columns : w->columns;
    attni_bf16_clear_columns(t, x);
    if (!weigh(w, t, x, st, &all))
        return false;
    w->row_pending = all;
    w->row_columns = x;
    w->row_acc = into ? into->acc : NULL;
    return true;
}

void attni_bf16_row_end(bf16_worker *w, bf16_tile *t)
{
    const bf16_visible_blocks none = {0};
    score_and_add(w, w->st, &none);
    join_left(w, t);
}

void attni_bf16_row_join(bf16_worker *w, bf16_tile *t, const bf16_partial *chunk)
{
    const int64_t Dv = attni_bf16_padded(w->plan->Dv);
    memset(w->row_sums, 0, (size_t)(Dv * w->row) * sizeof *w->row_sums);
    to_rows(t, w->row_sums, Dv, chunk->acc, w->plan->Dv);
    attni_bf16_join_rows(w->row_total, t->M, t->L, w->row_sums, chunk->columns, t->rows, Dv);
}

#endif
