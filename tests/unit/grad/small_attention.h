/* Small random calls, dense and in double, with every option of attention: for tests that
 * differentiate numerically. */
#ifndef SMALL_ATTENTION_H
#define SMALL_ATTENTION_H

#include <math.h>
#include <string.h>

#include "attn.h"
#include "check/check_case.h"

enum { MOST_B = 2, MOST_H = 4, MOST_T = 6, MOST_S = 7, MOST_D = 4 };
#define ROWS (MOST_B * MOST_H * MOST_T)

/* A call with everything that it reads and writes, dense and in double. */
typedef struct small {
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    attn_tensor mask, lse, dlse, dmask;
    double q[ROWS * MOST_D], k[MOST_B * MOST_H * MOST_S * MOST_D],
        v[MOST_B * MOST_H * MOST_S * MOST_D];
    double out[ROWS * MOST_D], dout[ROWS * MOST_D], lses[ROWS], dlses[ROWS], bias[ROWS * MOST_S];
    double dq[ROWS * MOST_D], dk[MOST_B * MOST_H * MOST_S * MOST_D],
        dv[MOST_B * MOST_H * MOST_S * MOST_D];
    double dbias[ROWS * MOST_S], dslope[MOST_H], dsink[MOST_H];
    float slope[MOST_H], sink[MOST_H];
    int64_t lengths[MOST_B], cu_q[3], cu_k[3];
} small;

static inline void fill(check_case *c, double *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = check_normal(c);
}

static inline void choose_visible(check_case *c, small *s, int64_t B, int64_t T, int64_t S)
{
    attn_sdpa_args *a = &s->args;
    a->causal = (attn_causal)check_between(c, 0, 3);
    a->causal_offset = check_between(c, -3, 4);
    if (check_chance(c, 30)) {
        a->window_left = check_between(c, -1, 3);
        a->window_right = check_between(c, -1, 3);
    }
    if (check_chance(c, 25)) {
        for (int64_t b = 0; b < B; b++)
            s->lengths[b] = check_between(c, 0, S);
        a->key_lengths = s->lengths;
    } else if (check_chance(c, 25)) {
        s->cu_q[1] = check_between(c, 0, T), s->cu_k[1] = check_between(c, 0, S);
        s->cu_q[2] = check_between(c, s->cu_q[1], T), s->cu_k[2] = check_between(c, s->cu_k[1], S);
        a->cu_seqlens_q = s->cu_q, a->cu_seqlens_k = s->cu_k;
        a->sequences = 2;
    }
}

static inline void choose_biases(check_case *c, small *s, const int64_t full[4])
{
    attn_sdpa_args *a = &s->args;
    int64_t n[4];
    for (int d = 0; d < 4; d++)
        n[d] = check_chance(c, 40) ? 1 : full[d];
    if (check_chance(c, 60)) {
        fill(c, s->bias, ROWS * MOST_S);
        for (int i = 0; i < ROWS * MOST_S; i++)
            if (check_chance(c, 20))
                s->bias[i] = -INFINITY;
        s->mask = attn_bhtd(s->bias, ATTN_F64, n[0], n[1], n[2], n[3]);
        s->dmask = attn_bhtd(s->dbias, ATTN_F64, n[0], n[1], n[2], n[3]);
        a->mask = &s->mask;
        s->grads.dmask = &s->dmask;
    }
    for (int h = 0; h < MOST_H; h++)
        s->slope[h] = (float)check_normal(c), s->sink[h] = (float)check_normal(c);
    if (check_chance(c, 40)) {
        a->alibi_slopes = s->slope;
        s->grads.dalibi_slopes = s->dslope;
    }
    if (check_chance(c, 40)) {
        a->sink_logits = s->sink;
        s->grads.dsink_logits = s->dsink;
    }
}

static inline void make(check_case *c, small *s)
{
    memset(s, 0, sizeof *s);
    attn_sdpa_args_init(&s->args);
    attn_sdpa_grads_init(&s->grads);
    attn_sdpa_args *a = &s->args;
    attn_sdpa_grads *g = &s->grads;
    int64_t B = check_between(c, 1, MOST_B), Hk = check_between(c, 1, 2);
    int64_t H = Hk * check_between(c, 1, 2), T = check_between(c, 1, MOST_T);
    int64_t S = check_between(c, 1, 5), D = check_between(c, 1, MOST_D);
    int64_t Dv = check_between(c, 1, MOST_D);
    fill(c, s->q, ROWS * MOST_D), fill(c, s->k, MOST_B * MOST_H * MOST_S * MOST_D);
    fill(c, s->v, sizeof s->v / sizeof *s->v), fill(c, s->dout, ROWS * MOST_D);
    fill(c, s->dlses, ROWS);
    a->q = attn_bhtd(s->q, ATTN_F64, B, H, T, D), g->dq = attn_bhtd(s->dq, ATTN_F64, B, H, T, D);
    a->k = attn_bhtd(s->k, ATTN_F64, B, Hk, S, D), g->dk = attn_bhtd(s->dk, ATTN_F64, B, Hk, S, D);
    a->v = attn_bhtd(s->v, ATTN_F64, B, Hk, S, Dv);
    g->dv = attn_bhtd(s->dv, ATTN_F64, B, Hk, S, Dv);
    a->out = attn_bhtd(s->out, ATTN_F64, B, H, T, Dv);
    g->dout = attn_bhtd(s->dout, ATTN_F64, B, H, T, Dv);
    s->lse = attn_bhtd(s->lses, ATTN_F64, B, H, T, 1);
    s->dlse = attn_bhtd(s->dlses, ATTN_F64, B, H, T, 1);
    a->lse = &s->lse;
    g->dlse = check_chance(c, 50) ? &s->dlse : NULL;
    choose_visible(c, s, B, T, S);
    choose_biases(c, s, (const int64_t[]){B, H, T, S});
    if (check_chance(c, 30))
        a->softcap = 0.5 + fabs(check_normal(c));
    if (check_chance(c, 30))
        a->dropout = 0.3, a->dropout_seed = check_random(c);
    if (check_chance(c, 30))
        a->scale = check_normal(c);
}

#endif
