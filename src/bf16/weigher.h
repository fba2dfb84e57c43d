/* The weights of one block of keys, for both units. */
#ifndef ATTNI_BF16_WEIGHER_H
#define ATTNI_BF16_WEIGHER_H

#include "lanes.h"

/* Returns the weights of 16 scores, not yet cut to bf16; adds the cut ones to *l. */
INLINE __m512i weigh_vector(const float *s, __m512 c, __m512 offset, __m512 *l)
{
    const __m512 t =
        at_least(_mm512_set1_ps(ORIGIN + LOWEST), _mm512_fmadd_ps(_mm512_load_ps(s), c, offset));
    const __m512i e = weight_bits(t);
    *l = _mm512_add_ps(*l, as_float(_mm512_and_si512(e, high_half())));
    return e;
}

/* Computes the weights of the first n keys, and of up to 3 more, whose scores are -inf. */
INLINE void weigh_block(const attni_bf16_weights *x, int n, const int nv)
{
    __m512 c[2], offset[2], l[2];
    UNROLL for (int g = 0; g < nv; g++)
    {
        c[g] = _mm512_load_ps(x->columns->c + 16 * g);
        offset[g] = offset_of(_mm512_load_ps(x->columns->m + 16 * g));
        l[g] = _mm512_load_ps(x->columns->l + 16 * g);
    }
    for (int row = 0; row < n; row += 4) {
        const float *s = x->st + row * nv * 16;
        /* Rows 2i and 2i + 1 of the block are pair i % 16 of operands nv (i / 16) + g. */
        attni_bf16 *p = x->p + row / 32 * nv * OPERAND + row % 32 * 16;
        UNROLL for (int r = 0; r < 4; r += 2)
        {
            UNROLL for (int g = 0; g < nv; g++)
            {
                const float *at = s + (r * nv + g) * 16;
                const __m512i even = weigh_vector(at, c[g], offset[g], &l[g]);
                const __m512i odd = weigh_vector(at + nv * 16, c[g], offset[g], &l[g]);
                _mm512_store_si512(p + g * OPERAND + r * 16, pair_rows(even, odd));
            }
        }
    }
    UNROLL for (int g = 0; g < nv; g++) _mm512_store_ps(x->columns->l + 16 * g, l[g]);
}

#endif
