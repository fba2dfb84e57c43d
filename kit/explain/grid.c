/* Steps as grids; see grid.h. */
#include <math.h>
#include <string.h>

#include "grid.h"

static bool same_shape(const kit_array *a, const kit_array *b)
{
    return a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

grid grid_of(const trace *t, const trace_step *s)
{
    const kit_array *a = &s->tensor;
    grid g = {s, 1, 1, 1, NULL};
    if (a->rank > 0) {
        g.columns = a->shape[a->rank - 1];
    }
    if (a->rank > 1) {
        g.rows = a->shape[a->rank - 2];
    }
    for (int i = 0; i + 2 < a->rank; i++) {
        g.heads *= a->shape[i];
    }
    bool behind = s->kind == TRACE_WEIGHTS && s->op != TRACE_ATTEND; /* a names the scores */
    const trace_step *scores = behind ? trace_find(t, s->a) : NULL;
    g.scores = scores != NULL && same_shape(&scores->tensor, a) ? scores : NULL;
    return g;
}

static int64_t index_of(const grid *g, int64_t head, int64_t row, int64_t column)
{
    return (head * g->rows + row) * g->columns + column;
}

double grid_at(const grid *g, int64_t head, int64_t row, int64_t column)
{
    return kit_array_get(&g->step->tensor, index_of(g, head, row, column));
}

int64_t grid_query(const grid *g, const trace *t)
{
    if (g->rows == 1) {
        return 0;
    }
    return t->query >= 0 && t->query < g->rows ? t->query : -1;
}

bool grid_masked(const grid *weights, int64_t head, int64_t row, int64_t column)
{
    int64_t i = index_of(weights, head, row, column);
    return weights->scores != NULL && kit_array_get(&weights->scores->tensor, i) == -INFINITY;
}

/* The product as high + low, exactly (Dekker 1971). */
static double product(double a, double b, double *low)
{
    const double high = a * b, split = 134217729; /* 2^27 + 1 */
    const double a1 = a * split - (a * split - a), a2 = a - a1;
    const double b1 = b * split - (b * split - b), b2 = b - b1;
    *low = ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2;
    return high;
}

/* log2 of a positive float or integer, to 0.51 units in the last place. That of the C library is as
 * good, but its last bit depends on the library and on whether the CPU has fused multiply-add, and
 * JSON shows that bit: the same trace must give the same text in a page and on every machine. */
static double same_log2(double x)
{
    int exponent;
    double m = frexp(x, &exponent);
    if (m < 0.7071067811865476) {
        m *= 2;
        exponent--;
    }
    /* log(m) = 2 artanh(y), y = (m - 1) / (m + 1) = high + low */
    const double top = m - 1, bottom = m + 1, bottom_low = m - (bottom - 1);
    const double high = top / bottom;
    double low;
    const double back = product(high, bottom, &low);
    low = ((top - back) - low - high * bottom_low) / bottom;
    const double z = high * high;
    double series = 0;
    for (int k = 31; k >= 3; k -= 2)
        series = z * (1.0 / k + series);
    low += high * series;
    /* times 2 / log(2) = 2.885... as the sum of two doubles, plus the exponent */
    double rest;
    const double whole = product(high, 2.8853900817779268, &rest);
    rest += low * 2.8853900817779268 + high * 4.0710547481862066e-17;
    const double sum = exponent + whole, lost = whole - (sum - exponent);
    return sum + (lost + rest);
}

row_health grid_health(const grid *weights, int64_t head, int64_t row)
{
    row_health h = {0, 0, 0, 0};
    for (int64_t j = 0; j < weights->columns; j++) {
        double w = grid_at(weights, head, row, j);
        h.visible += !grid_masked(weights, head, row, j);
        h.bits -= w > 0 ? w * same_log2(w) : w * 0; /* NaN stays NaN */
        h.largest = w > h.largest || isnan(w) ? w : h.largest;
    }
    h.bits = h.bits < 0 ? 0 : h.bits + 0.0; /* removes a negative rounding error, and -0 */
    h.possible = h.visible > 1 ? same_log2((double)h.visible) : 0;
    return h;
}
