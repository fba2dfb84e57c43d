/* A tile of a few queries, as in decoding: their scores, weights and sums are rows, keys and values
 * are read where they lie, and a chunk is done at once instead of in the steps of sdpa_bf16.c. The
 * order of all sums is the same, and so is every bit.
 *
 * Decoding waits for memory, and whatever else is done between keys and values comes on top. Steps,
 * 16 columns where one is wanted and their transposes were a third of a call from cache: of 1024
 * keys, D = 128, one query took 7.8 us, now 6.0, four that share a head 17.8, now 10.5, eight 18.3,
 * now 16.0; 12 heads of 33 keys, D = 64, 13.8, now 5.6 (Zen 5).
 */
#include "sdpa_bf16.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

/* The blocks of a chunk of which some query sees some key, one after the other. */
typedef struct blocks {
    int count, n; /* blocks; keys of them all */
    int64_t j[BLOCKS];
    int keys[BLOCKS];
    attni_class visible[BLOCKS];
} blocks;

static blocks find_blocks(const attni_class *class, int64_t j0, int n)
{
    blocks x = {0};
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

void attni_bf16_row_begin(worker *w, const tile *t)
{
    const attni_plan *p = w->plan;
    w->row = t->rows == 1 ? 1 : t->rows <= 4 ? 4 : 8;
    const attni_bf16 *q = t->q; /* its columns past the last row are 0 */
    attni_bf16 *to = w->row_q;
    for (int64_t d = 0; d < attni_bf16_padded(p->D); d += 2, q += 32, to += 2 * w->row)
        if (w->row == 1)
            memcpy(to, q, 4);
        else
            for (int r = 0; r < w->row; r += 4)
                memcpy(to + 2 * r, q + 2 * r, 16);
    for (int r = t->rows; r < w->row; r++)
        memset(w->row_p + r * ATTNI_CHUNK, 0, ATTNI_CHUNK * sizeof *w->row_p);
    memset(w->row_total, 0, (size_t)(attni_bf16_padded(p->Dv) * w->row) * sizeof *w->row_total);
}

/* -------------------------------------------------------------------------- keys and values */

/* Block b, where it lies; behind it the next, or what this thread will most likely read then. */
static attni_bf16_rows rows_at(const worker *w, const attn_tensor *t, const blocks *all, int b)
{
    const int64_t j = all->j[b];
    attni_bf16_rows x = {.at = attni_stored_row(w->view, t, j),
                         .ld = (ptrdiff_t)t->stride[2] * 2,
                         .n = all->keys[b]};
    if (j + x.n < w->view->S)
        x.next = attni_stored_row(w->view, t, j + x.n);
    else if (w->next)
        x.next = attni_first_row(w->next, t);
    if (!x.next)
        x.next = x.at;
    return x;
}

/* A copy of rows j .. j+n-1 of `width` components; up to a multiple of 16 of them, of zeros. */
static attni_bf16_rows copy_rows(const worker *w, const attn_tensor *t, int64_t j, int n,
                                 int64_t width, attni_bf16 *to)
{
    const int rows = (n + 15) / 16 * 16;
    for (int r = 0; r < n; r++)
        attni_bf16_copy_row(to + r * width, attni_stored_row(w->view, t, j + r), t->stride[3],
                            width);
    memset(to + n * width, 0, (size_t)((rows - n) * width) * sizeof *to);
    return (attni_bf16_rows){.at = to, .ld = (ptrdiff_t)width * 2, .next = to, .n = rows};
}

static void score(worker *w, float *st, const blocks *all)
{
    const attni_plan *p = w->plan;
    const attn_tensor *keys = &p->args.k;
    const int D = (int)p->D;
    for (int b = 0; b < all->count; b++, st += ATTNI_BLOCK) {
        attni_bf16_rows k = rows_at(w, keys, all, b);
        k.turned = p->k_turned;
        const int rest = k.turned ? 0 : keys->stride[3] == 1 || D == 1 ? k.n % 16 : k.n;
        k.n -= rest;
        if (k.n)
            w->unit->row_scores(st, w->row_q, &k, D, w->row);
        if (rest == 0)
            continue;
        const attni_bf16_rows copy = copy_rows(w, keys, all->j[b] + k.n, rest, D, w->k);
        w->unit->row_scores(st + k.n, w->row_q, &copy, D, w->row);
    }
}

static void add_values(worker *w, float *l, const blocks *all)
{
    const attn_tensor *values = &w->plan->args.v;
    const int64_t Dv = w->plan->Dv;
    for (int b = 0; b < all->count; b++) {
        attni_bf16_rows v = rows_at(w, values, all, b);
        if (values->stride[3] != 1 && Dv > 1)
            v = copy_rows(w, values, all->j[b], v.n, Dv, w->vt[0]);
        w->unit->row_values(w->row_sums, l, w->row_p + b * ATTNI_BLOCK, &v, Dv, b == 0, w->row);
    }
}

/* --------------------------------------------------------------------------- a chunk of keys */

/* n elements of each of the tile's rows, ld apart, as its first columns: the others become 0. */
static void to_columns(const tile *t, float *columns, const float *rows, int64_t ld, int64_t n)
{
    memset(columns, 0, (size_t)(n * t->W) * sizeof *columns);
    for (int r = 0; r < t->rows; r++)
        for (int64_t i = 0; i < n; i++)
            columns[i * t->W + r] = rows[r * ld + i];
}

static void to_rows(const tile *t, float *rows, int64_t ld, const float *columns, int64_t n)
{
    for (int r = 0; r < t->rows; r++)
        for (int64_t i = 0; i < n; i++)
            rows[r * ld + i] = columns[i * t->W + r];
}

/* Masks and biases of a block: they are for columns. */
static void mask(worker *w, const tile *t, float *st, int64_t j, int n)
{
    float *columns = w->st[1];
    to_columns(t, columns, st, ATTNI_CHUNK, n);
    attni_bf16_mask(w, t, columns, j, n);
    to_rows(t, st, ATTNI_CHUNK, columns, n);
}

/* From products to scores and their maxima; false if one of these wants the careful way. */
static bool finish_scores(worker *w, const tile *t, attni_bf16_columns *x, float *st,
                          const blocks *all)
{
    const attni_plan *p = w->plan;
    for (int r = 0; r < t->rows && p->natural; r++)
        p->kernels->natural(st + r * ATTNI_CHUNK, (all->n + 15) / 16, p->rest, p->args.softcap, 1);
    for (int b = 0; b < all->count; b++)
        if (all->visible[b] != ATTNI_FULL)
            mask(w, t, st + b * ATTNI_BLOCK, all->j[b], all->keys[b]);
    bool clean = true;
    for (int r = 0; r < t->rows; r++)
        clean &= attni_bf16_row_maximum(x, st + r * ATTNI_CHUNK, all->n, r);
    attni_bf16_set_maxima(x, t->lift, t->nv);
    return clean && attni_bf16_near(x, t->nv);
}

bool attni_bf16_row_chunk(worker *w, tile *t, const attni_class *class, int64_t j0, int n,
                          const partial *into)
{
    const blocks all = find_blocks(class, j0, n);
    const int64_t Dv = attni_bf16_padded(w->plan->Dv);
    attni_bf16_columns *x = into ? into->columns : w->columns;
    float *st = w->st[0];
    attni_bf16_clear_columns(t, x);
    score(w, st, &all);
    if (!finish_scores(w, t, x, st, &all))
        return false;
    for (int r = 0; r < t->rows; r++) {
        t->top[r] = fmaxf(t->top[r], x->top[r]);
        attni_bf16_row_weights(w->row_p + r * ATTNI_CHUNK, st + r * ATTNI_CHUNK, x, all.n, r);
    }
    add_values(w, x->l, &all);
    if (into) /* partials are made of columns */
        to_columns(t, into->acc, w->row_sums, Dv, Dv);
    else
        attni_bf16_join_rows(w->row_total, t->M, t->L, w->row_sums, x, t->rows, Dv);
    return true;
}

void attni_bf16_row_join(worker *w, tile *t, const partial *chunk)
{
    const int64_t Dv = attni_bf16_padded(w->plan->Dv);
    memset(w->row_sums, 0, (size_t)(Dv * w->row) * sizeof *w->row_sums);
    to_rows(t, w->row_sums, Dv, chunk->acc, w->plan->Dv);
    attni_bf16_join_rows(w->row_total, t->M, t->L, w->row_sums, chunk->columns, t->rows, Dv);
}

#endif
