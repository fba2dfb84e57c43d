/* A tile of a single query, as in decoding: scores, weights and sums are rows, and a chunk of keys
 * is done at once where all that are visible stand side by side, instead of in the steps of
 * sdpa_bf16.c. The order of all sums is the same, and so is every bit.
 *
 * Decoding waits for memory, and whatever else is done between keys and values comes on top. Steps,
 * 16 columns where one is wanted and their transposes were a third of a call from cache: 1024 keys,
 * D = 128, took 7.8 us, without them 5.9; 12 heads of 33 keys, D = 64, 13.8 and 4.9 (Zen 5).
 */
#include "sdpa_bf16.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

bool attni_bf16_row_begin(worker *w, const tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *k = &p->args.k, *v = &p->args.v;
    const bool keys = p->k_turned || (k->stride[3] == 1 && p->D % 32 == 0);
    const bool values = v->stride[3] == 1 && p->Dv % 32 == 0;
    if (!keys || !values || p->D == 0 || p->Dv == 0 || p->natural || p->args.dropout > 0)
        return false;
    for (int64_t d = 0; d < attni_bf16_padded(p->D); d += 2)
        memcpy(w->row_q + d, t->q + d * 16, 4);
    memset(w->row_total, 0, (size_t)p->Dv * sizeof *w->row_total);
    return true;
}

/* Keys or values, of which j is read first. */
static attni_bf16_rows first_rows(const worker *w, const attn_tensor *t, int64_t j)
{
    return (attni_bf16_rows){.next = attni_stored_row(w->view, t, j),
                             .ld = (ptrdiff_t)t->stride[2] * 2};
}

/* x->next, which is row j, becomes the block that is read, up to `end`; behind it lies the next
 * block, or what this thread will most likely read then. */
static void step_on(const worker *w, const attn_tensor *t, int64_t j, int64_t end,
                    attni_bf16_rows *x)
{
    x->at = x->next;
    x->n = end - j < ATTNI_BLOCK ? (int)(end - j) : ATTNI_BLOCK;
    if (j + x->n < w->view->S)
        x->next = attni_stored_row(w->view, t, j + x->n);
    else if (w->next)
        x->next = attni_stored_row(&w->next->view, t, 0);
}

/* Scores of rest < 16 rows, by way of a copy: 16 are read. */
static void score_rest(worker *w, float *st, const attni_bf16_rows *k, int rest, int pairs)
{
    const size_t bytes = (size_t)w->plan->D * sizeof *w->k;
    memset(w->k, 0, 16 * bytes);
    for (int r = 0; r < rest; r++)
        memcpy((char *)w->k + (size_t)r * bytes, (const char *)k->at + (k->n + r) * k->ld, bytes);
    const attni_bf16_rows copy = {.at = w->k, .ld = (ptrdiff_t)bytes, .next = k->next, .n = 16};
    w->unit->row_scores(st, w->row_q, &copy, pairs);
}

static void score(worker *w, float *st, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const int pairs = (int)((p->D + 1) / 2);
    attni_bf16_rows k = first_rows(w, &p->args.k, j0);
    k.turned = p->k_turned;
    for (int64_t j = j0; j < j0 + n; j += ATTNI_BLOCK, st += ATTNI_BLOCK) {
        step_on(w, &p->args.k, j, j0 + n, &k);
        const int rest = k.turned ? 0 : k.n % 16;
        k.n -= rest;
        w->unit->row_scores(st, w->row_q, &k, pairs);
        if (rest)
            score_rest(w, st + k.n, &k, rest, pairs);
    }
}

static void add_values(worker *w, float *l, int64_t j0, int n)
{
    const attn_tensor *values = &w->plan->args.v;
    attni_bf16_rows v = first_rows(w, values, j0);
    for (int64_t j = j0; j < j0 + n; j += ATTNI_BLOCK) {
        step_on(w, values, j, j0 + n, &v);
        w->unit->row_values(w->sums, l, w->p[0] + (j - j0), &v, w->plan->Dv, j == j0);
    }
}

/* As the first of 16 columns, which is what a partial is made of; the others are 0. */
static void to_column(float *acc, const float *row, int64_t Dv)
{
    memset(acc, 0, (size_t)Dv * 16 * sizeof *acc);
    for (int64_t c = 0; c < Dv; c++)
        acc[c * 16] = row[c];
}

bool attni_bf16_row_chunk(worker *w, tile *t, int64_t j0, int n, const partial *into)
{
    attni_bf16_columns *x = into ? into->columns : w->columns;
    float *st = w->st[0];
    memcpy(x->c, t->c, (size_t)t->W * 4);
    for (int i = 0; i < t->W; i++)
        x->l[i] = 0, x->top[i] = -INFINITY;
    score(w, st, j0, n);
    const bool clean = attni_bf16_row_maximum(x, st, n);
    attni_bf16_set_maxima(x, t->lift, t->nv);
    if (!clean || !attni_bf16_near(x, t->nv))
        return false;
    t->top[0] = fmaxf(t->top[0], x->top[0]);
    attni_bf16_row_weights(w->p[0], st, x, n);
    add_values(w, x->l, j0, n);
    if (into)
        to_column(into->acc, w->sums, w->plan->Dv);
    else
        attni_bf16_join_row(w->row_total, t->M, t->L, w->sums, x, w->plan->Dv);
    return true;
}

void attni_bf16_row_join(worker *w, tile *t, const partial *chunk)
{
    for (int64_t c = 0; c < w->plan->Dv; c++)
        w->sums[c] = chunk->acc[c * 16];
    attni_bf16_join_row(w->row_total, t->M, t->L, w->sums, chunk->columns, w->plan->Dv);
}

#endif
