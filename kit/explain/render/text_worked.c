/* Writes the computation of the chosen query with its operands, so that a reader can repeat it: the
 * products of a score, the terms of a softmax, the sum of a context vector. All numbers come from
 * the steps that the operands name. If the shapes of a step's operands do not match, nothing is
 * written for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

#define TERMS 3 /* terms of a long sum that are shown */

/* A step with its operands, and the head and row whose computation is written. */
typedef struct worked {
    const trace_step *step;
    grid out, a, b;
    bool has_a, has_b;
    int64_t row, a_row; /* row of the query, in this step and in a */
    char who[LABEL_BYTES];
} worked;

static bool find_operands(const text_layout *p, const trace_step *s, worked *w)
{
    char label[LABEL_BYTES];
    const trace_step *a = trace_find(p->trace, s->a), *b = trace_find(p->trace, s->b);
    memset(w, 0, sizeof *w);
    w->step = s;
    w->out = grid_of(p->trace, s);
    w->row = grid_query(&w->out, p->trace);
    w->has_a = a != NULL;
    w->has_b = b != NULL;
    if (a != NULL) {
        w->a = grid_of(p->trace, a);
    }
    if (b != NULL) {
        w->b = grid_of(p->trace, b);
    }
    if (w->row < 0 || w->out.columns == 0 || !w->has_a) {
        return false;
    }
    /* "q_2" has only one row. It is the projection of row 2, so row 2 of the inputs is read. */
    w->a_row = w->a.rows == w->out.rows ? w->row : grid_query(&w->a, p->trace);
    label_clip(w->who, grid_row_label(&w->out, w->row, label), 24, p->unicode ? "…" : ".");
    return w->a_row >= 0;
}

static void put_term(sink *s, double x, double y, bool first)
{
    char left[NUMBER_BYTES], right[NUMBER_BYTES];
    sink_printf(s, "%s%s×%s", first ? "" : " + ", number_text(left, x), number_text(right, y));
}

/* "0.4307×0.4434 + 1.4551×1.1418 = 1.8524", or its first terms. */
static void put_sum(sink *s, const grid *a, int64_t a_row, const grid *b, int64_t b_row,
                    bool b_column, int64_t count, double result)
{
    char total[NUMBER_BYTES];
    int64_t shown = count <= TERMS + 1 ? count : TERMS;
    for (int64_t t = 0; t < shown; t++) {
        double y = b_column ? grid_at(b, 0, t, b_row) : grid_at(b, 0, b_row, t);
        put_term(s, grid_at(a, 0, a_row, t), y, t == 0);
    }
    if (shown < count) {
        sink_printf(s, " + … (%lld products)", (long long)count);
    }
    sink_printf(s, " = %s", number_text(total, result));
}

/* "[0.3116 0.9549]", or its first numbers. */
static void put_vector(sink *s, const grid *g, int64_t row)
{
    char number[NUMBER_BYTES];
    int64_t shown = g->columns <= 6 ? g->columns : 4;
    sink_puts(s, "[");
    for (int64_t j = 0; j < shown; j++) {
        sink_printf(s, "%s%s", j > 0 ? " " : "", number_text(number, grid_at(g, 0, row, j)));
    }
    if (shown < g->columns) {
        sink_printf(s, " … %s]", number_text(number, grid_at(g, 0, row, g->columns - 1)));
    } else {
        sink_puts(s, "]");
    }
}

/* Writes the row key by key: "Life -57.1016 is -85.4889 ...". */
static void put_keys(sink *s, const grid *g, int64_t row)
{
    char label[LABEL_BYTES], clipped[LABEL_BYTES], number[NUMBER_BYTES];
    for (int64_t j = 0; j < g->columns && j < 12; j++) {
        label_clip(clipped, grid_column_label(g, j, label), 16, "…");
        double x = grid_at(g, 0, row, j);
        sink_printf(s, "%s%s\xc2\xa0%s", j > 0 ? "  " : "", clipped, number_text(number, x));
    }
    if (g->columns > 12) {
        sink_printf(s, "  … %lld keys", (long long)g->columns);
    }
}

/* Returns the visible key with the largest number in the row. */
static int64_t largest_key(const grid *g, int64_t row)
{
    int64_t best = 0;
    for (int64_t j = 1; j < g->columns; j++) {
        if (grid_at(g, 0, row, j) > grid_at(g, 0, row, best)) {
            best = j;
        }
    }
    return best;
}

static void work_lookup(const worked *w, sink *s)
{
    long long id = (long long)grid_at(&w->a, 0, 0, w->row);
    if (!w->has_b || w->a.columns != w->out.rows || id < 0 || id >= w->b.rows) {
        return;
    }
    sink_printf(s, "“%s” has number %lld, so it takes row %lld of the table, counted from 0",
                w->who, id, id);
}

static bool sum_matches(const worked *w, bool column)
{
    double sum = 0, size = 0;
    for (int64_t t = 0; t < w->a.columns; t++) {
        double x = grid_at(&w->a, 0, w->a_row, t);
        double y = column ? grid_at(&w->b, 0, t, 0) : grid_at(&w->b, 0, 0, t);
        sum += x * y;
        size += fabs(x * y);
    }
    return fabs(sum - grid_at(&w->out, 0, w->row, 0)) <= 1e-5 * size;
}

static void work_project(const worked *w, sink *s)
{
    /* Whether W is [out, in], as in torch.nn.Linear, or [in, out], as in x @ W. The shape does not
     * tell if W is square, so sum_matches() tries both. */
    int64_t in = w->a.columns, out = w->out.columns;
    bool rows = w->has_b && w->b.columns == in && w->b.rows == out && sum_matches(w, false);
    bool columns = w->has_b && w->b.rows == in && w->b.columns == out && sum_matches(w, true);
    if (rows || columns) {
        sink_printf(s, "“%s”: first number = ", w->who);
        put_sum(s, &w->a, w->a_row, &w->b, 0, !rows, in, grid_at(&w->out, 0, w->row, 0));
    }
}

/* Chooses the pair whose product is written out: the largest score that no later mask hides. */
static int64_t best_pair(const trace *t, const worked *w)
{
    for (const trace_step *s = w->step; s < t->step + t->count; s++) {
        grid g = grid_of(t, s);
        if (s->op == TRACE_MASK && g.rows == w->out.rows && g.columns == w->out.columns) {
            return largest_key(&g, w->row);
        }
    }
    return largest_key(&w->out, w->row);
}

static void work_dot(const trace *t, const worked *w, sink *s)
{
    char label[LABEL_BYTES];
    if (!w->has_b || w->a.columns != w->b.columns || w->b.rows != w->out.columns) {
        return;
    }
    int64_t key = best_pair(t, w);
    sink_printf(s, "“%s” asks, “%s” answers: ", w->who, grid_column_label(&w->out, key, label));
    put_sum(s, &w->a, w->a_row, &w->b, key, false, w->a.columns, grid_at(&w->out, 0, w->row, key));
}

/* Returns a score before softmax, scaled if it is not scaled yet. */
static double logit(const worked *w, int64_t key)
{
    double x = grid_at(&w->a, 0, w->a_row, key);
    return w->step->factor != 0 ? x * w->step->factor : x;
}

/* Whether the weights are the softmax of exactly these scores. */
static bool is_softmax(const worked *w, double largest, double sum)
{
    for (int64_t j = 0; j < w->a.columns; j++) {
        if (!(fabs(exp(logit(w, j) - largest) / sum - grid_at(&w->out, 0, w->row, j)) < 1e-4)) {
            return false;
        }
    }
    return true;
}

/* Writes e^(s - max) / sum for the key with the largest weight. */
static void work_softmax(const worked *w, sink *s)
{
    char label[LABEL_BYTES], clipped[LABEL_BYTES], one[NUMBER_BYTES], two[NUMBER_BYTES];
    if (w->a.columns != w->out.columns) {
        return;
    }
    int64_t key = largest_key(&w->out, w->row), shown = 0;
    double largest = logit(w, key), sum = 0;
    for (int64_t j = 0; j < w->a.columns; j++) {
        sum += exp(logit(w, j) - largest);
    }
    if (!isfinite(largest) || !is_softmax(w, largest, sum)) {
        return;
    }
    label_clip(clipped, grid_column_label(&w->out, key, label), 24, "…");
    sink_printf(s, "“%s” gives “%s” e^0 / (", w->who, clipped);
    for (int64_t j = 0; j < w->a.columns; j++) {
        if (logit(w, j) > -INFINITY && shown++ < 6) {
            number_text(one, logit(w, j) - largest);
            sink_printf(s, "%se^%s", shown > 1 ? " + " : "", one);
        }
    }
    sink_printf(s, "%s) = 1 / %s = %s", shown > 6 ? " + …" : "", number_text(one, sum),
                number_text(two, grid_at(&w->out, 0, w->row, key)));
    sink_printf(s, "  (each score%s minus the largest, %s)",
                w->step->factor != 0 ? " is scaled," : "", number_text(one, largest));
}

/* Writes the context: the three keys with the largest weights, and the first number of the sum. */
static void work_mix(const worked *w, sink *s)
{
    char label[LABEL_BYTES], number[NUMBER_BYTES];
    if (!w->has_b || w->a.columns != w->b.rows || w->b.columns != w->out.columns) {
        return;
    }
    bool *used = calloc((size_t)w->a.columns + 1, sizeof *used);
    sink first = {0};
    double shown_weight = 0;
    int64_t shown = 0;
    sink_printf(s, "z(%s) = ", w->who);
    for (; used != NULL && shown < TERMS && shown < w->a.columns; shown++) {
        int64_t best = -1;
        for (int64_t j = 0; j < w->a.columns; j++) {
            double x = grid_at(&w->a, 0, w->a_row, j);
            if (!used[j] && x > 0 && (best < 0 || x > grid_at(&w->a, 0, w->a_row, best))) {
                best = j;
            }
        }
        if (best < 0) {
            break;
        }
        used[best] = true;
        double weight = grid_at(&w->a, 0, w->a_row, best);
        char clipped[LABEL_BYTES];
        label_clip(clipped, grid_row_label(&w->b, best, label), 16, "…");
        sink_printf(s, "%s%s·v(%s)", shown > 0 ? " + " : "", number_text(number, weight), clipped);
        put_term(&first, weight, grid_at(&w->b, 0, best, 0), shown == 0);
        shown_weight += weight;
    }
    const char *more = shown_weight < 1 - 1e-5 && shown < w->a.columns ? " + …" : "";
    sink_printf(s, "%s; first number = %s%s = %s", more, first.data != NULL ? first.data : "0",
                more, number_text(number, grid_at(&w->out, 0, w->row, 0)));
    s->failed = s->failed || used == NULL || first.failed;
    free(first.data);
    free(used);
}

/* Writes the row: "q(is) = [..]", or key by key. */
static void work_row(const text_layout *p, const trace_step *s, sink *out)
{
    grid g = grid_of(p->trace, s);
    int64_t row = grid_query(&g, p->trace);
    char label[LABEL_BYTES], clipped[LABEL_BYTES];
    if (row < 0 || g.columns == 0) {
        return;
    }
    if (s->column_labels != NULL) {
        put_keys(out, &g, row);
    } else {
        label_clip(clipped, grid_row_label(&g, row, label), 24, "…");
        if (s->row_labels != NULL) {
            sink_printf(out, "“%s” = ", clipped);
        }
        put_vector(out, &g, row);
    }
}

static void put_line(text_layout *p, const grid *g, sink *s)
{
    if (s->size > 0) {
        text_wrapf(p, "%s%s", g->heads > 1 ? "head 1: " : "", s->data);
    }
    p->out.failed = p->out.failed || s->failed;
    free(s->data);
}

/* Keys and values are computed like queries, so only one of the three is written out. */
static bool follows_alike(const trace *t, const trace_step *s)
{
    return s > t->step && s[-1].op == s->op && strcmp(s[-1].a, s->a) == 0;
}

void text_worked(text_layout *p, const trace_step *s, bool row_too)
{
    worked w;
    sink sum = {0}, row = {0};
    if (find_operands(p, s, &w)) {
        switch (s->op) {
        case TRACE_LOOKUP: work_lookup(&w, &sum); break;
        case TRACE_PROJECT:
            if (!follows_alike(p->trace, s)) {
                work_project(&w, &sum);
            }
            break;
        case TRACE_DOT: work_dot(p->trace, &w, &sum); break;
        case TRACE_SOFTMAX: work_softmax(&w, &sum); break;
        case TRACE_MIX: work_mix(&w, &sum); break;
        case TRACE_GIVEN:
        case TRACE_COMPUTED:
        case TRACE_SCALE: /* the row shows everything */
        case TRACE_MASK:
        case TRACE_ATTEND:
        case TRACE_NORM:
        case TRACE_MAKER:
        case TRACE_PRODUCTS:
        case TRACE_SLOPE: break;
        }
    }
    put_line(p, &w.out, &sum);
    if (row_too) {
        work_row(p, s, &row);
        put_line(p, &w.out, &row);
    }
}
