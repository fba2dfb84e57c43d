/* The sums and the result of a tile; called by tile_task.c.
 *
 *   attni_tile_finish           add the sink, out = total / l, write out and lse
 *   attni_tile_move_exponents   prepare the rescaled sweep of rows that are not finite
 *   attni_tile_scores_out       write the requested scores
 *
 * tile.h defines the structures.
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define COLD __attribute__((cold, noinline)) /* kept small, and away from the hot code */

static double sink_of(const attni_worker *w, const attni_tile *t, int i)
{
    return (double)w->plan->args.sink_logits[w->sequence->h + (i < t->rows ? i / t->per_head : 0)];
}

/* Adds the sink: one more key, in a last chunk of its own, whose logit is in natural-log units and
 * whose value is 0. */
static void add_sink(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    for (int i = 0; i < t->W; i++) {
        const double sink = sink_of(w, t, i);
        attni_set_lane(p, w->mx, i, sink);
        attni_set_lane(p, w->st, i, sink);
        /* log2(e); if the row's own c has been divided by 2^8, log2(e) / 2^8 */
        attni_set_lane(p, w->a, i, attni_lane(p, t->c, i) / p->log2_scale * ATTNI_LOG2E);
        attni_set_lane(p, w->chunk.m, i, attni_lane(p, t->m_first, i));
        attni_set_lane(p, w->chunk.l, i, 0);
    }
    /* mx is also passed as top, because t->top must not include the sink */
    kernels->update_max(w->chunk.m, w->factors, w->mx, w->mx, w->a, t->nv);
    kernels->weights(w->st, w->chunk.l, w->st, w->a, w->chunk.m, 1, t->nv, ATTNI_MASKED);
    kernels->join(t->m, t->l, w->factors, w->chunk.m, w->chunk.l, t->nv);
    if (t->in_totals)
        attni_transpose_sums(w, t, t->total, w->totals);
    t->in_totals = false;
    kernels->rescale(t->total, p->Dv, w->factors, t->nv);
}

/* Are the tile's results written to out directly? If several heads have several rows each, the rows
 * are not one stride apart and go through w->rows. So do results that are converted. */
static bool writes_directly(const attni_worker *w, const attni_tile *t)
{
    return w->plan->out_in_place && (t->heads == 1 || t->per_head == 1);
}

/* Where total / l is written, as rows of R; *ldo becomes their stride. */
static char *result_rows(const attni_worker *w, const attni_tile *t, ptrdiff_t *ldo)
{
    const attn_tensor *out = &w->plan->args.out;
    const attni_sequence *q = w->sequence;
    *ldo = (ptrdiff_t)w->plan->Dv;
    if (!writes_directly(w, t))
        return w->rows;
    *ldo = (ptrdiff_t)out->stride[t->per_head == 1 && t->heads > 1 ? 1 : 2];
    return attni_at(out, q->b, q->h, q->i_base + t->i0, 0);
}

/* Writes out = total / l. */
static bool write_out(attni_worker *w, const attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *out = &p->args.out;
    ptrdiff_t ldo;
    char *to = result_rows(w, t, &ldo);
    const int bad = t->in_totals
                        ? p->kernels->finish_decode(to, ldo, w->totals, w->a, t->rows, p->Dv)
                        : p->kernels->finish(to, ldo, t->total, w->a, t->rows, p->Dv, t->nv);
    for (int i = 0; i < t->rows && !writes_directly(w, t); i++)
        attni_store_row(p, attni_lane_row(w, t, out, i, 0), out,
                        w->rows + (size_t)i * (size_t)p->Dv * p->real, p->Dv);
    return bad != 0;
}

/* Sets the divisors: l, or infinity for a row that has seen no key. Returns true if some score was
 * too large for log2 units. */
#define SET_DIVISORS(R, abs, limit)                                                                \
    do {                                                                                           \
        const R *l = (const R *)t->l, *top = (const R *)t->top, *c = (const R *)t->c;              \
        int large = 0;                                                                             \
        for (int i = 0; i < t->W; i++) {                                                           \
            ((R *)a)[i] = l[i] == 0 ? (R)INFINITY : l[i];                                          \
            const R x = abs(top[i]);                                                               \
            large |= (i < t->rows) & (x < (R)INFINITY) & !(x * c[i] < (R)(limit));                 \
        }                                                                                          \
        return large != 0;                                                                         \
    } while (0)

static bool set_divisors(const attni_plan *p, const attni_tile *t, char *a)
{
    if (p->real == sizeof(float))
        SET_DIVISORS(float, fabsf, 1.6e38f);
    SET_DIVISORS(double, fabs, 8e307);
}

/* The largest score of a row, its sink included, in log2 units; at most the largest double. A score
 * that is finite, but not in log2 units, must not look like a hidden one. */
static COLD double highest(const attni_worker *w, const attni_tile *t, int i)
{
    const attni_plan *p = w->plan;
    const double score = attni_lane(p, t->top, i);
    double top = score * p->log2_scale;
    if (isinf(top) && isfinite(score))
        top = copysign(DBL_MAX, top);
    return p->args.sink_logits ? fmax(top, sink_of(w, t, i) * ATTNI_LOG2E) : top;
}

/* Limit for a sum of weighted values, as a multiple of the sum of weights. A mean of finite values
 * is never infinite, but roundings may carry it past the largest number. Below this limit they do
 * not. */
static COLD double largest(const attni_plan *p)
{
    return p->real == sizeof(float) ? (double)FLT_MAX * (1 - 0x1p-22) : DBL_MAX * (1 - 0x1p-51);
}

/* Sets the divisors of rescaled rows to l times value_scale, because their sums were multiplied by
 * value_scale. */
static COLD void scale_divisors(const attni_worker *w, const attni_tile *t)
{
    const attni_plan *p = w->plan;
    for (int i = 0; i < t->rows; i++) {
        const double scale = attni_lane(p, t->value_scale, i), l = attni_lane(p, w->a, i) * scale;
        const double most = largest(p) * l;
        attni_set_lane(p, w->a, i, l);
        for (int64_t c = 0; c < p->Dv && scale != 1 && p->args.dropout == 0; c++) {
            const int64_t at = c * t->W + i;
            const double x = attni_lane(p, t->total, at);
            if (isfinite(x) && fabs(x) > most)
                attni_set_lane(p, t->total, at, copysign(most, x));
        }
    }
}

bool attni_tile_finish(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    if (p->args.sink_logits)
        add_sink(w, t);
    bool again = set_divisors(p, t, w->a);
    for (int i = 0; i < t->rows && p->args.sink_logits; i++)
        again |= attni_log2_too_large(p->real, highest(w, t, i));
    if (t->rescaled)
        scale_divisors(w, t);
    again |= write_out(w, t);
    if (p->args.lse) {
        const attn_tensor *lse = p->args.lse;
        for (int i = 0; i < t->rows; i++) {
            const double x = attni_log_sum(attni_lane(p, t->l, i), attni_lane(p, t->m, i),
                                           p->log2_scale / attni_lane(p, t->c, i));
            attni_store_row_f64(attni_lane_row(w, t, lse, i, 0), lse->dtype, 1, &x, 1);
        }
    }
    return again;
}

/* The score times c, rounded as update_max() rounds it. The weights are computed relative to this
 * rounded product. For a score beyond 2^24 the exact product may differ from it by thousands. */
static double log2_units(const attni_plan *p, double score, double c)
{
    return p->real == sizeof(float) ? (double)((float)score * (float)c) : score * c;
}

/* Are the row's sum of weights and its result finite? Reads only this row of what write_out()
 * wrote, so the answer does not depend on other rows. */
static COLD bool row_is_finite(const attni_worker *w, const attni_tile *t, int i)
{
    const attni_plan *p = w->plan;
    if (i >= t->rows)
        return true;
    ptrdiff_t ldo;
    const char *row = result_rows(w, t, &ldo);
    row += (ptrdiff_t)p->real * ldo * i;
    bool finite = isfinite(attni_lane(p, t->l, i)) != 0;
    for (int64_t c = 0; c < p->Dv && finite; c++)
        finite = isfinite(attni_lane(p, row, (int)c)) != 0;
    return finite;
}

/* Prepares the rescaled sweep: rows that are not finite yet are computed again such that nothing
 * overflows. The maximum of such a row is known and becomes m_first, so no weight exceeds 1.
 * Weights are multiplied by 2^-40 (value_scale) before values are added. So even 2^31 values of the
 * largest size can be added without overflow. scale_divisors() multiplies l by the same factor.
 * (Weights relative to the maximum plus 40 would not do instead: near 10^9, rounding changes the
 * sum of the maximum and 40.) If a score is too large for log2 units, c is divided by 2^8. In such
 * a row every weight but the maximum's is 0, also with the smaller c. */
COLD void attni_tile_move_exponents(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    attni_fill_lanes(p, t->value_scale, 1, t->W);
    t->rescaled = true;
    for (int i = 0; i < t->W; i++) {
        const double high = highest(w, t, i);
        const bool huge = attni_log2_too_large(p->real, high);
        if (!isfinite(high) || (row_is_finite(w, t, i) && !huge))
            continue;
        if (huge)
            attni_set_lane(p, t->c, i, p->log2_scale / 256);
        const double top = attni_lane(p, t->top, i), c = attni_lane(p, t->c, i);
        attni_set_lane(p, t->m_first, i, ceil(log2_units(p, top, c)));
        attni_set_lane(p, t->value_scale, i, 0x1p-40);
    }
}

/* ------------------------------------------------------------------------------- scores out */

static char *line_of(const attni_worker *w, int i)
{
    return w->lines + (size_t)i * ATTNI_BLOCK * w->plan->real;
}

/* Transposes a block of scores into w->lines. If `marked`, the block may contain marks (see
 * ATTNI_SKIP_MASKED), and each becomes 0. */
static void transpose_scores(attni_worker *w, const attni_tile *t, int n, bool marked)
{
    const attni_plan *p = w->plan;
    p->kernels->finish(w->lines, ATTNI_BLOCK, w->st, w->a, t->rows, n, t->nv);
    for (int i = 0; i < t->rows && marked; i++)
        for (int r = 0; r < n; r++)
            if (attni_lane(p, w->st, r * t->W + i) < 0)
                attni_set_lane(p, line_of(w, i), r, 0);
}

/* Sets the divisors of the rows: l for weights, else 1. For weights, m becomes the row's maximum,
 * rounded up, and l is scaled accordingly. Returns true if the sum of a row is NaN. The weight 0 of
 * a masked key must not be divided by this sum. */
static bool row_divisors(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    bool marked = false;
    for (int i = 0; i < t->W; i++) {
        attni_set_lane(p, w->a, i, 1);
        if (p->args.scores_stage != ATTN_STAGE_WEIGHTS)
            continue;
        const double l = attni_lane(p, t->l, i), m = attni_lane(p, t->m, i);
        const double up = ceil(log2_units(p, attni_lane(p, t->top, i), attni_lane(p, t->c, i)));
        const bool moves = isfinite(up) && isfinite(m);
        const double shift = moves ? fmax(fmin(m - up, 3000), -3000) : 0;
        if (moves)
            attni_set_lane(p, t->m, i, up);
        attni_set_lane(p, w->a, i, l == 0 ? (double)INFINITY : ldexp(l, (int)shift));
        marked |= isnan(l);
    }
    return marked;
}

/* Writes the scores that the caller requested. They are computed once more, now that m and l are
 * final, so that out is the same with and without them. Every key of the tensor has a place in the
 * output, so keys outside the sequence occur too, with negative or large j. */
void attni_tile_scores_out(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *s = p->args.scores;
    const attn_stage stage = p->args.scores_stage;
    const bool hides = stage >= ATTN_STAGE_BIASED, weights = stage == ATTN_STAGE_WEIGHTS;
    const bool marked = row_divisors(w, t);
    for (int64_t g = 0; g < p->S; g += ATTNI_BLOCK) { /* g counts from the tensor's first key */
        const int64_t j0 = g - w->sequence->j_base;
        const int n = p->S - g < ATTNI_BLOCK ? (int)(p->S - g) : ATTNI_BLOCK;
        attni_class visible = ATTNI_PARTIAL;
        if (hides)
            visible =
                attni_mask_classify(w->sequence, &t->span, t->i0, t->i0 + t->rows, j0, j0 + n);
        if (visible != ATTNI_EMPTY) {
            const attni_route route = t->decodes ? ATTNI_ROUTE_DECODE_TILES : t->route;
            attni_chunk_block b = {j0, n, visible, route, .st = w->st, .mx = w->mx};
            attni_tile_load(w, j0, n, false);
            attni_block_rows(w, &b, false);
            if (t->decodes)
                attni_decode_products(w, t, &b, n);
            else
                attni_tile_products(w, t, &b);
            attni_tile_biases(w, t, &b, hides ? ATTN_STAGE_BIASED : stage);
            if (weights)
                p->kernels->weights(w->st, w->chunk.l, w->st, t->c, t->m, n, t->nv,
                                    marked ? ATTNI_SKIP_MASKED : ATTNI_MASKED);
            else if (hides && !p->scaled_scores)
                p->kernels->scale_softcap(w->st, n, p->scale_mantissa, 0, t->nv);
            transpose_scores(w, t, n, marked);
        } else {
            for (int i = 0; i < t->rows * ATTNI_BLOCK; i++)
                attni_set_lane(p, w->lines, i, weights ? 0 : -(double)INFINITY);
        }
        for (int i = 0; i < t->rows; i++)
            attni_store_row(p,
                            attni_at(s, w->sequence->b, w->sequence->h,
                                     w->sequence->i_base + t->i0 + i, g),
                            s, line_of(w, i), n);
    }
}
