/* Scaled dot-product attention, by definition.
 *
 * B batch   H query heads   Hk key/value heads   T queries   S keys   D, Dv sizes of keys, of
 * values
 *
 * For one batch b, query head h with its key/value head g = h / (H/Hk), query i and key j:
 *
 *   r_j = scale * sum_t q[b,h,i,t] k[b,g,j,t]                  RAW
 *   c_j = softcap > 0 ? softcap * tanh(r_j / softcap) : r_j    SOFTCAP
 *   b_j = c_j + mask_ij + slope_h * (j - i - off)              BIASED: -inf where i may not see j
 *   m   = max(max_j b_j, sink_h)
 *   l   = sum_j e^(b_j - m) + e^(sink_h - m)
 *   w_j = e^(b_j - m) / l                                      WEIGHTS      lse = m + ln l
 *   o   = sum_j w_j * (kept_j ? 1 / (1-p) : 0) * v[b,g,j,:]
 *
 * Read attend_row() first: it is those lines. This file is compiled three times, with `real` as
 * double here, as float by attn_ref_f32.c and as long double by attn_ref_wide.c.
 */
#include <math.h>
#include <stdlib.h>
#include <tgmath.h>

#include "attn_ref.h"

#ifndef REF_REAL
#define REF_REAL double
#define REF_FORWARD ref_sdpa_forward
#define REF_BACKWARD ref_sdpa_backward
#endif
typedef REF_REAL real;

/* The current query head: its operands as dense arrays, and what is computed for each key. */
typedef struct head {
    int64_t b, h, g;
    real *q, *dout; /* [T][D], [T][Dv] */
    real *k, *v;    /* [S][D], [S][Dv] of key/value head g */
    real *score;    /* [S] of the current query; -inf where a key is not visible */
    real *w;        /* [S] weights before dropout */
    real *factor;   /* [S] of dropout */
} head;

/* [n][width]: the rows of head h of batch b. */
static void read_rows(real *to, const attn_tensor *t, int64_t b, int64_t h, int64_t n)
{
    const int64_t width = t->shape[3];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            to[i * width + j] = (real)ref_get(t, b, h, i, j);
}

/* Reads the operands of head (b, h) into `memory`, which has head_size() numbers. dout may be
 * NULL. */
static head read_head(const attn_sdpa_args *a, const attn_tensor *dout, int64_t b, int64_t h,
                      real *memory)
{
    const int64_t T = a->q.shape[2], S = a->k.shape[2], D = a->q.shape[3], Dv = a->v.shape[3];
    head x = {.b = b, .h = h, .g = h / (a->q.shape[1] / a->k.shape[1])};
    x.q = memory;
    x.dout = x.q + T * D;
    x.k = x.dout + T * Dv;
    x.v = x.k + S * D;
    x.score = x.v + S * Dv;
    x.w = x.score + S;
    x.factor = x.w + S;
    read_rows(x.q, &a->q, b, h, T);
    read_rows(x.k, &a->k, b, x.g, S);
    read_rows(x.v, &a->v, b, x.g, S);
    if (dout)
        read_rows(x.dout, dout, b, h, T);
    return x;
}

static size_t head_size(const attn_sdpa_args *a)
{
    const int64_t T = a->q.shape[2], S = a->k.shape[2], D = a->q.shape[3], Dv = a->v.shape[3];
    return (size_t)((T + S) * (D + Dv) + 3 * S + 1);
}

/* The sequence that query i of batch b belongs to: its first query and key, and its sizes. Without
 * packed sequences it is the whole tensor, or its first key_lengths[b] keys. */
typedef struct sequence {
    int64_t q0, k0, T, S;
} sequence;

static sequence sequence_of(const attn_sdpa_args *a, int64_t b, int64_t i)
{
    if (!a->cu_seqlens_q) {
        int64_t S = a->k.shape[2];
        return (sequence){0, 0, a->q.shape[2], a->key_lengths ? a->key_lengths[b] : S};
    }
    const int64_t *cq = a->cu_seqlens_q, *ck = a->cu_seqlens_k;
    for (int64_t n = 0; n < a->sequences; n++)
        if (cq[n] <= i && i < cq[n + 1])
            return (sequence){cq[n], ck[n], cq[n + 1] - cq[n], ck[n + 1] - ck[n]};
    return (sequence){i, 0, 1, 0}; /* in no sequence: the query sees no key */
}

/* The signed distance of key j from query i's own position, j - i - off, with both counted from the
 * start of their sequence. It is 0 on the diagonal that `causal` defines, negative for past keys,
 * positive for future keys. */
static int64_t ahead(const attn_sdpa_args *a, sequence s, int64_t i, int64_t j)
{
    bool right = a->causal == ATTN_CAUSAL_BOTTOM_RIGHT, given = a->causal == ATTN_CAUSAL_OFFSET;
    if (a->causal == ATTN_CAUSAL_NONE) {
        right = a->diagonal == ATTN_DIAGONAL_BOTTOM_RIGHT;
        given = a->diagonal == ATTN_DIAGONAL_OFFSET;
    }
    int64_t off = right ? s.S - s.T : given ? a->causal_offset : 0;
    return (j - s.k0) - (i - s.q0) - off;
}

/* True if query (b,h,i) may see key j: the AND of all rules that are given. */
static bool visible(const attn_sdpa_args *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    sequence s = sequence_of(a, b, i);
    if (j < s.k0 || j >= s.k0 + s.S)
        return false; /* key_lengths, packed sequences */
    int64_t d = ahead(a, s, i, j);
    if (a->causal != ATTN_CAUSAL_NONE && d > 0)
        return false;
    if (a->window_left >= 0 && d < -a->window_left)
        return false;
    if (a->window_right >= 0 && d > a->window_right)
        return false;
    if (!a->mask)
        return true;
    double m = ref_get(a->mask, b, h, i, j);
    return a->mask->dtype == ATTN_BOOL ? m != 0 : !(m == -INFINITY);
}

/* The factor of ALiBi's slope. */
static int64_t alibi_distance(const attn_sdpa_args *a, int64_t b, int64_t i, int64_t j)
{
    int64_t d = ahead(a, sequence_of(a, b, i), i, j);
    return a->alibi_form == ATTN_ALIBI_SYMMETRIC && d > 0 ? -d : d;
}

/* The bias that is added to the score of a visible pair. */
static real bias(const attn_sdpa_args *a, int64_t b, int64_t h, int64_t i, int64_t j,
                 real *magnitude)
{
    real mask = 0, alibi = 0;
    if (a->mask && a->mask->dtype != ATTN_BOOL)
        mask = (real)ref_get(a->mask, b, h, i, j);
    if (a->alibi_slopes)
        alibi = (real)a->alibi_slopes[h] * (real)alibi_distance(a, b, i, j);
    *magnitude = fabs(mask) + fabs(alibi);
    return mask + alibi;
}

/* scale * q[b,h,i,:] . k[b,g,j,:], and the same sum of absolute values. */
static real scaled_dot(const attn_sdpa_args *a, const head *x, int64_t i, int64_t j,
                       real *magnitude)
{
    int64_t D = a->q.shape[3];
    const real *q = x->q + i * D, *k = x->k + j * D;
    real sum = 0, sum_abs = 0;
    for (int64_t t = 0; t < D; t++) {
        real product = q[t] * k[t];
        sum += product;
        sum_abs += fabs(product);
    }
    real scale = a->scale != 0 ? (real)a->scale : D > 0 ? 1 / sqrt((real)D) : 1;
    *magnitude = fabs(scale) * sum_abs;
    return scale * sum;
}

static void put(double *array, int64_t at, real x)
{
    if (array)
        array[at] = (double)x;
}

/* The dropout factor of weight (i, j): 0 if it is dropped, otherwise 1 / (1 - p), which makes up
 * for the dropped weights. */
static real dropout_factor(const attn_sdpa_args *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (!(a->dropout > 0))
        return 1;
    bool kept = ref_dropout_keep(a->dropout_seed, a->dropout, b * a->q.shape[1] + h, i, j);
    return kept ? 1 / (1 - (real)a->dropout) : 0;
}

/* One query i: computes its scores, weights and dropout factors. Returns lse. */
static real weigh_row(const attn_sdpa_args *a, const ref_result *result, const head *x, int64_t i,
                      real *reach_of_row)
{
    int64_t H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2], b = x->b, h = x->h;
    int64_t row = (b * H + h) * T + i;
    real sink = a->sink_logits ? (real)a->sink_logits[h] : (real)-INFINITY;
    real cap = (real)a->softcap, *score = x->score, *w = x->w;

    /* Scores, and their maximum. Keys that are not visible get -inf and are skipped below. */
    real m = sink, reach = a->sink_logits ? fabs(sink) : 0;
    for (int64_t j = 0; j < S; j++) {
        real dot_size = 0, bias_size = 0;
        real r = scaled_dot(a, x, i, j, &dot_size);
        real c = cap > 0 ? cap * tanh(r / cap) : r;
        score[j] = -INFINITY;
        if (visible(a, b, h, i, j)) {
            score[j] = c + bias(a, b, h, i, j, &bias_size);
            reach = fmax(reach, dot_size + bias_size);
        }
        m = fmax(m, score[j]);
        put(result->stages[ATTN_STAGE_RAW], row * S + j, r);
        put(result->stages[ATTN_STAGE_SOFTCAP], row * S + j, c);
        put(result->stages[ATTN_STAGE_BIASED], row * S + j, score[j]);
    }

    /* Softmax. A NaN score makes l NaN, and with it every weight of the row. */
    real l = sink == (real)-INFINITY ? 0 : exp(sink - m);
    for (int64_t j = 0; j < S; j++)
        l += score[j] == (real)-INFINITY ? 0 : exp(score[j] - m);
    for (int64_t j = 0; j < S; j++) {
        w[j] = score[j] == (real)-INFINITY ? 0 : exp(score[j] - m) / l;
        put(result->stages[ATTN_STAGE_WEIGHTS], row * S + j, w[j]);
        x->factor[j] = dropout_factor(a, b, h, i, j);
    }
    *reach_of_row = reach;
    return l == 0 ? (real)-INFINITY : m + log(l);
}

/* Computes one query i. */
static void attend_row(const attn_sdpa_args *a, const ref_result *result, const head *x, int64_t i)
{
    int64_t H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2], Dv = a->v.shape[3];
    int64_t row = (x->b * H + x->h) * T + i;
    const real *score = x->score, *w = x->w;
    real reach;
    put(result->lse, row, weigh_row(a, result, x, i, &reach));
    put(result->reach, row, reach);

    /* The scale of the rounding errors: a sum over all weights, including those that dropout
     * removes, because an error of the row's largest score is in every weight that remains. */
    for (int64_t c = 0; c < Dv; c++) {
        real mass = 0;
        for (int64_t j = 0; j < S; j++)
            if (score[j] != (real)-INFINITY)
                mass += w[j] * fabs(x->v[j * Dv + c]);
        put(result->mass, row * Dv + c, mass / (1 - (real)a->dropout));
    }

    /* Output: the weighted sum of the visible values; an empty sum is 0. */
    for (int64_t c = 0; c < Dv; c++) {
        real o = 0;
        for (int64_t j = 0; j < S; j++)
            if (score[j] != (real)-INFINITY)
                o += w[j] * x->factor[j] * x->v[j * Dv + c];
        put(result->out, row * Dv + c, o);
    }
}

/* All queries: q [B,H,T,D], k [B,Hk,S,D], v [B,Hk,S,Dv] -> result. */
bool REF_FORWARD(const attn_sdpa_args *a, const ref_result *result)
{
    int64_t B = a->q.shape[0], H = a->q.shape[1], T = a->q.shape[2];
    real *memory = calloc(head_size(a), sizeof *memory);
    if (!memory)
        return false;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++) {
            head x = read_head(a, NULL, b, h, memory);
            for (int64_t i = 0; i < T; i++)
                attend_row(a, result, &x, i);
        }
    free(memory);
    return true;
}

/* ------------------------------------------------------------------------------------ gradients
 *
 * With the weights w, the dropout factors d and the output o of a row:
 *
 *   dw_j = d_j dout . v_j
 *   ds_j = w_j (dw_j - dout . o + dlse)              gradient of the biased score, and of the mask
 *   dr_j = ds_j (1 - tanh(r_j / softcap)^2) scale    of q . k_j
 *   dq += dr_j k_j    dk_j += dr_j q    dv_j += w_j d_j dout
 *   dslope += ds_j (j - i - off)    dsink = e^(sink - lse) (dlse - dout . o)
 */

static void add(ref_grad to, int64_t at, real x, real error)
{
    if (to.x)
        to.x[at] += (double)x;
    if (to.error)
        to.error[at] += (double)error;
}

/* dout . o of one row, with the sum of absolute values. *lost: what dout . o may lose if each
 * weight loses `tiny` to underflow. */
static real dout_dot_out(const attn_sdpa_args *a, const head *x, int64_t i, real tiny, real *size,
                         real *lost)
{
    int64_t S = a->k.shape[2], Dv = a->v.shape[3];
    real sum = 0;
    *size = *lost = 0;
    for (int64_t c = 0; c < Dv; c++) {
        real o = 0, mass = 0, dout = x->dout[i * Dv + c];
        bool any = false;
        for (int64_t j = 0; j < S; j++) {
            if (x->score[j] == (real)-INFINITY)
                continue;
            real v = x->v[j * Dv + c];
            o += x->w[j] * x->factor[j] * v;
            mass += x->w[j] * fabs(v) / (1 - (real)a->dropout);
            *lost += tiny * fabs(dout * v) / (1 - (real)a->dropout);
            any = true;
        }
        sum += any ? dout * o : 0;
        *size += any ? fabs(dout) * mass : 0;
    }
    return sum;
}

/* The derivative of the soft cap at raw score r: 1 - tanh(y)^2 = 1 / cosh(y)^2. */
static real cap_slope(const attn_sdpa_args *a, real r)
{
    real y = r / (real)a->softcap;
    return a->softcap > 0 ? 1 / (cosh(y) * cosh(y)) : 1;
}

/* Adds the contribution of a visible pair (i, j) of head h. ds is the gradient of its score; its
 * error is at most `error`. */
static void add_pair(const attn_sdpa_args *a, const ref_grads *result, const head *x, int64_t i,
                     int64_t j, real ds, real error)
{
    int64_t H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2], D = a->q.shape[3];
    int64_t Hk = a->k.shape[1], b = x->b, h = x->h;
    real distance = (real)alibi_distance(a, b, i, j), dot_size;
    add(result->dalibi, h, ds * distance, error * fabs(distance));
    if (result->dmask.x) {
        const int64_t *n = a->mask->shape, index[4] = {b, h, i, j};
        int64_t at = 0;
        for (int d = 0; d < 4; d++)
            at = at * n[d] + (n[d] == 1 ? 0 : index[d]);
        add(result->dmask, at, ds, error + (real)result->dmask_unit * fabs(ds));
    }
    real r = scaled_dot(a, x, i, j, &dot_size), slope = cap_slope(a, r);
    real scale = a->scale != 0 ? (real)a->scale : D > 0 ? 1 / sqrt((real)D) : 1;
    real dr = ds * slope * scale, unit = (real)result->unit;
    real tiny = (real)result->tiny; /* error of scale, slope or a result that underflows */
    error = fabs(scale) * (slope * error + tiny * fabs(ds)) + tiny * fabs(ds);
    error += fabs(dr) * (real)result->factor_error;
    if (a->softcap > 0)
        error += fabs(dr) * unit * (8 + 4 * (fabs(r) + dot_size) / (real)a->softcap);
    for (int64_t t = 0; t < D; t++) {
        real q = x->q[i * D + t], k = x->k[j * D + t];
        add(result->dq, ((b * H + h) * T + i) * D + t, dr * k, error * fabs(k) + tiny / 1024);
        add(result->dk, ((b * Hk + x->g) * S + j) * D + t, dr * q, error * fabs(q) + tiny / 1024);
    }
}

/* Computes the gradients of one query i. */
static void grad_row(const attn_sdpa_args *a, const attn_sdpa_grads *g, const ref_grads *result,
                     const head *x, int64_t i)
{
    int64_t S = a->k.shape[2], Dv = a->v.shape[3], Hk = a->k.shape[1], b = x->b, h = x->h;
    const real *w = x->w, *dout = x->dout + i * Dv;
    const ref_result none = {0};
    real tiny = (real)result->tiny; /* what a weight may lose to underflow */
    real reach, delta_size, lost, lse = weigh_row(a, &none, x, i, &reach);
    real delta = dout_dot_out(a, x, i, tiny, &delta_size, &lost);
    real dlse = g->dlse ? (real)ref_get(g->dlse, b, h, i, 0) : 0;

    /* The relative error of a weight, and the absolute error of dout . out - dlse. */
    real size = 1 + reach + fabs(lse), unit = (real)result->unit;
    real w_error = 12 * unit * size + 2 * (real)result->lse_unit * fabs(lse);
    w_error += (real)result->weight_error;
    real d_error = (real)result->out_unit * delta_size + w_error * (delta_size + fabs(dlse)) + lost;
    for (int64_t c = 0; c < Dv; c++)
        d_error += (real)result->out_tiny * fabs(dout[c]);
    if (!(w_error < 1)) /* scores so large that any weights are accepted */
        w_error = d_error = INFINITY;

    for (int64_t j = 0; j < S; j++) {
        if (x->score[j] == (real)-INFINITY)
            continue;
        real d = x->factor[j], dw = 0, dw_size = 0;
        const real *v = x->v + j * Dv;
        for (int64_t c = 0; c < Dv; c++) {
            dw += d * dout[c] * v[c];
            dw_size += d * fabs(dout[c] * v[c]);
            if (d != 0)
                add(result->dv, ((b * Hk + x->g) * S + j) * Dv + c, w[j] * d * dout[c],
                    (w[j] * (w_error + (real)result->factor_error) + tiny) * d * fabs(dout[c]) +
                        tiny);
        }
        real ds = w[j] * (dw - delta + dlse);
        real error_size = dw_size + delta_size + fabs(dlse);
        real error = w[j] * (w_error * error_size + d_error) + tiny * (1 + error_size);
        add_pair(a, result, x, i, j, ds, error);
    }
    real sink = a->sink_logits ? (real)a->sink_logits[h] : (real)-INFINITY;
    if (sink != (real)-INFINITY) {
        real weight = exp(sink - lse);
        add(result->dsink, h, weight * (dlse - delta),
            weight * (w_error * (delta_size + fabs(dlse)) + d_error));
    }
}

bool REF_BACKWARD(const attn_sdpa_args *a, const attn_sdpa_grads *g, const ref_grads *result)
{
    int64_t B = a->q.shape[0], H = a->q.shape[1], T = a->q.shape[2];
    real *memory = calloc(head_size(a), sizeof *memory);
    if (!memory)
        return false;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++) {
            head x = read_head(a, &g->dout, b, h, memory);
            for (int64_t i = 0; i < T; i++)
                grad_row(a, g, result, &x, i);
        }
    free(memory);
    return true;
}
