/* Weights of one block of keys and maxima of another, a few rows at a time, so that unit_amx.c can
 * place them between its products. unit_dot.c uses it too. */
#ifndef ATTNI_BF16_WEIGHER_H
#define ATTNI_BF16_WEIGHER_H

#include "lanes.h"

/* Kept in registers through the whole step. */
typedef struct weigher {
    const float *st, *st_seen;
    attni_bf16 *p;
    int row; /* the next row; ROWS: done */
    __m512 c[2], offset[2], l[2], top[2];
} weigher;

INLINE __m512i weigh_vector(weigher *w, const float *s, int g)
{
    const __m512 t = at_least(_mm512_set1_ps(ORIGIN + LOWEST),
                              _mm512_fmadd_ps(_mm512_load_ps(s), w->c[g], w->offset[g]));
    const __m512i e = weight_bits(t);
    w->l[g] = _mm512_add_ps(w->l[g], as_float(_mm512_and_si512(e, high_half())));
    return e;
}

/* Processes `rows` rows, an even number; nothing if all are done. */
INLINE void weigh_rows(weigher *w, const int rows, const int nv)
{
    if (w->row >= ROWS)
        return;
    if (w->st) {
        const float *s = w->st + w->row * nv * 16;
        /* Row 2r of the block is pair r % 16 of operand r / 16. */
        attni_bf16 *p = w->p + w->row / 32 * nv * OPERAND + w->row % 32 * 16;
        UNROLL for (int r = 0; r < rows; r += 2)
        {
            UNROLL for (int g = 0; g < nv; g++)
            {
                const __m512i even = weigh_vector(w, s + (r * nv + g) * 16, g);
                const __m512i odd = weigh_vector(w, s + ((r + 1) * nv + g) * 16, g);
                _mm512_store_si512(p + g * OPERAND + r * 16, pair_rows(even, odd));
            }
        }
    }
    if (w->st_seen) {
        const float *s = w->st_seen + w->row * nv * 16;
        UNROLL for (int r = 0; r < rows; r++)
        {
            UNROLL for (int g = 0; g < nv; g++) w->top[g] =
                _mm512_max_ps(w->top[g], _mm512_load_ps(s + (r * nv + g) * 16));
        }
    }
    w->row += rows;
}

INLINE void weigh_begin(weigher *w, const attni_bf16_step *x, const int nv)
{
    w->row = x->st || x->st_seen ? 0 : ROWS;
    w->st = x->st;
    w->st_seen = x->st_seen;
    w->p = x->p;
    UNROLL for (int g = 0; g < nv; g++)
    {
        w->c[g] = w->offset[g] = w->l[g] = w->top[g] = _mm512_setzero_ps();
        if (x->st) {
            w->c[g] = _mm512_load_ps(x->columns->c + 16 * g);
            w->offset[g] = offset_of(_mm512_load_ps(x->columns->m + 16 * g));
            w->l[g] = _mm512_load_ps(x->columns->l + 16 * g);
        }
        if (x->st_seen)
            w->top[g] = _mm512_load_ps(x->highest->top + 16 * g);
    }
}

/* Processes the remaining rows up to row n, and possibly a few more. */
INLINE void weigh_end(weigher *w, const attni_bf16_step *x, int n, const int rows, const int nv)
{
    while (w->row < n)
        weigh_rows(w, rows, nv);
    UNROLL for (int g = 0; g < nv; g++)
    {
        if (x->st)
            _mm512_store_ps(x->columns->l + 16 * g, w->l[g]);
        if (x->st_seen)
            _mm512_store_ps(x->highest->top + 16 * g, w->top[g]);
    }
}

#endif
