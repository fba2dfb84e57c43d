/* Weights without digits: single cells for up to 40 words, pooled half blocks for more, and bars
 * for one row.
 *
 * The scale is always 0 to 1. Pooling shows the largest weight of a square of cells, and the output
 * says so. A mean would hide a single key with a large weight.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

#define CELLS_AT_MOST 40  /* most rows and columns that are shown without pooling */
#define POOLED_AT_MOST 64 /* cells along a side after pooling */

static int shade_level(double weight)
{
    return weight >= 0.75 ? 4 : weight >= 0.5 ? 3 : weight >= 0.25 ? 2 : weight >= 0.05 ? 1 : 0;
}

const char *text_shade(const text_layout *p, double weight)
{
    static const char *const blocks[] = {" ", "░", "▒", "▓", "█"};
    static const char *const ascii[] = {" ", ".", ":", "*", "#"};
    return isnan(weight) ? "!" : (p->unicode ? blocks : ascii)[shade_level(weight)];
}

void text_legend(text_layout *p, bool masked)
{
    const char *hidden = !masked ? "" : p->unicode ? "  · hidden" : "  - hidden";
    if (p->colour == RENDER_NO_COLOUR) {
        text_wrapf(p, "blank <.05 %s<.25 %s<.5 %s<.75 %s%s", text_shade(p, 0.05),
                   text_shade(p, 0.25), text_shade(p, 0.5), text_shade(p, 1), hidden);
        return;
    }
    int room = p->width - p->indent - (int)strlen("weight 0  1"), cells = room < 20 ? room : 20;
    text_spaces(p, p->indent);
    sink_puts(&p->out, "weight 0 ");
    for (int i = 0; i < cells; i++) {
        text_cell(p, (i + 0.5) / cells);
        sink_puts(&p->out, " ");
    }
    text_plain(p);
    sink_puts(&p->out, " 1");
    if (masked && p->indent + 11 + cells + kit_text_width(hidden) > p->width) {
        sink_puts(&p->out, "\n");
        text_spaces(p, p->indent - 2);
    }
    sink_puts(&p->out, hidden);
    sink_puts(&p->out, "\n");
}

/* ------------------------------------------------------------------------------------ Cells */

/* Writes column numbers above the cells: 1, 5, 10, ... if they fit. */
static void put_ticks(text_layout *p, int64_t columns, int start, int cell)
{
    int at = start;
    text_spaces(p, start);
    for (int64_t j = 0; j < columns; j++) {
        char text[24];
        int length = snprintf(text, sizeof text, "%lld", (long long)j + 1);
        int want = start + (int)j * cell;
        if ((j == 0 || (j + 1) % 5 == 0) && want >= at && want + length <= p->width) {
            text_spaces(p, want - at);
            sink_puts(&p->out, text);
            at = want + length;
        }
    }
    sink_puts(&p->out, "\n");
}

static void put_map_cell(text_layout *p, double w, bool masked, int cell)
{
    if (masked) {
        text_spaces(p, cell - 1);
        sink_puts(&p->out, p->unicode ? "·" : "-");
        return;
    }
    if (p->colour != RENDER_NO_COLOUR) {
        text_cell(p, w);
        text_spaces(p, cell);
        text_plain(p);
        return;
    }
    for (int i = 0; i < cell; i++) {
        sink_puts(&p->out, text_shade(p, w));
    }
}

static bool put_cells(text_layout *p, const grid *g, int64_t head)
{
    int label = text_label_width(p, g) + 3; /* "12 word" */
    int room = p->width - p->indent - label - 1 - 5;
    if (g->rows > CELLS_AT_MOST || g->columns > CELLS_AT_MOST || g->columns > room) {
        return false;
    }
    int cell = 2 * g->columns <= room ? 2 : 1;
    text_wrapf(p, "Columns stand in the order of the rows; at the right: entropy/max.");
    put_ticks(p, g->columns, p->indent + label + 1, cell);
    for (int64_t i = 0; i < g->rows; i++) {
        char text[LABEL_BYTES];
        text_spaces(p, p->indent);
        sink_printf(&p->out, "%2lld ", (long long)i + 1);
        text_label(p, grid_row_label(g, i, text), label - 3, false);
        sink_puts(&p->out, i == grid_query(g, p->trace) ? (p->unicode ? "›" : ">") : " ");
        for (int64_t j = 0; j < g->columns; j++) {
            put_map_cell(p, grid_at(g, head, i, j), grid_masked(g, head, i, j), cell);
        }
        row_health h = grid_health(g, head, i);
        if (h.possible > 0) {
            sink_printf(&p->out, " %.2f", h.bits / h.possible);
        }
        sink_puts(&p->out, "\n");
    }
    return true;
}

/* ----------------------------------------------------------------------------------- Pooled */

typedef struct pool {
    const grid *g;
    int64_t head, size; /* number of cells along the side of a square */
} pool;

/* Returns the largest weight of a square; -1 if all of its cells are masked or outside. */
static double pooled(const pool *q, int64_t row, int64_t column)
{
    double largest = -1;
    for (int64_t i = row * q->size; i < (row + 1) * q->size && i < q->g->rows; i++) {
        for (int64_t j = column * q->size; j < (column + 1) * q->size && j < q->g->columns; j++) {
            double w = grid_at(q->g, q->head, i, j);
            if (!grid_masked(q->g, q->head, i, j) && !(w <= largest)) {
                largest = w;
            }
        }
    }
    return largest;
}

/* One character shows two rows: the upper half by its text colour, the lower half by the
 * background. */
static void put_halves(text_layout *p, double upper, double lower)
{
    if (upper < 0 && lower >= 0) {
        text_half(p, lower, true);
        sink_puts(&p->out, "▄");
    } else {
        text_half(p, upper, true);
        if (!(lower < 0)) {
            text_half(p, lower, false);
        }
        sink_puts(&p->out, "▀");
    }
    text_plain(p);
}

static void put_pooled_cell(text_layout *p, const pool *q, int64_t row, int64_t column)
{
    double upper = pooled(q, row, column), lower = pooled(q, row + 1, column);
    double w = isnan(upper) || upper > lower ? upper : lower;
    if (w < 0) {
        sink_puts(&p->out, p->unicode ? "·" : "-");
    } else if (p->colour != RENDER_NO_COLOUR && p->unicode) {
        put_halves(p, upper, lower);
    } else if (p->colour != RENDER_NO_COLOUR) {
        text_cell(p, w);
        sink_puts(&p->out, " ");
        text_plain(p);
    } else {
        sink_puts(&p->out, text_shade(p, w));
    }
}

static void put_pooled(text_layout *p, const grid *g, int64_t head)
{
    int label = 5;
    int64_t room = p->width - p->indent - label, side = g->rows > g->columns ? g->rows : g->columns;
    room = room > POOLED_AT_MOST ? POOLED_AT_MOST : room;
    pool q = {g, head, (side + room - 1) / room};
    int64_t rows = (g->rows + q.size - 1) / q.size, columns = (g->columns + q.size - 1) / q.size;
    bool halves = p->colour != RENDER_NO_COLOUR && p->unicode;
    text_wrapf(p,
               "%lld×%lld weights in little room: each %s shows the largest of %lld×%lld weights "
               "(max-pooled).",
               (long long)g->rows, (long long)g->columns, halves ? "half block" : "character",
               (long long)(halves ? q.size : 2 * q.size), (long long)q.size);
    for (int64_t i = 0; i < rows; i += 2) {
        text_spaces(p, p->indent);
        sink_printf(&p->out, "%4lld ", (long long)(i * q.size) + 1);
        for (int64_t j = 0; j < columns; j++) {
            put_pooled_cell(p, &q, i, j);
        }
        text_plain(p);
        sink_puts(&p->out, "\n");
    }
}

void text_map(text_layout *p, const grid *g, int64_t head)
{
    if (!put_cells(p, g, head)) {
        put_pooled(p, g, head);
    }
}

/* ------------------------------------------------------------------------------------- Bars */

typedef struct ranked {
    int64_t column;
    double weight;
} ranked;

static int by_weight(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->weight != y->weight) {
        return x->weight < y->weight ? 1 : -1;
    }
    return x->column > y->column ? 1 : -1; /* equal weights: by position */
}

static void put_bar(text_layout *p, const grid *g, const ranked *r, bool masked, int label_width)
{
    char label[LABEL_BYTES];
    text_spaces(p, p->indent + 2);
    text_label(p, grid_column_label(g, r->column, label), label_width, false);
    if (masked) {
        sink_puts(&p->out, " hidden\n");
        return;
    }
    char number[NUMBER_BYTES];
    sink_printf(&p->out, " %6s", text_weight(number, r->weight, 4));
    double part = r->weight > 0 ? fmin(r->weight, 1) : 0;
    int room = p->width - p->indent - 2 - label_width - 8, bar = (int)(part * room + 0.5);
    sink_puts(&p->out, bar > 0 ? " " : "");
    for (int i = 0; i < bar && i < room; i++) {
        sink_puts(&p->out, p->unicode ? "█" : "#");
    }
    sink_puts(&p->out, "\n");
}

static int bar_label_width(const text_layout *p, const grid *g, const ranked *r, int64_t count)
{
    int widest = 1, most = p->width < 40 ? 6 : 10;
    for (int64_t i = 0; i < count; i++) {
        char label[LABEL_BYTES];
        int w = kit_text_width(grid_column_label(g, r[i].column, label));
        widest = w > widest ? w : widest;
    }
    return widest > most ? most : widest;
}

/* Chooses the keys to show: all of them, or the visible ones, largest weight first. Returns their
 * number. */
static int64_t rank(const grid *g, int64_t head, int64_t row, bool all, ranked *r)
{
    int64_t n = 0;
    for (int64_t j = 0; j < g->columns; j++) {
        if (all || !grid_masked(g, head, row, j)) {
            r[n++] = (ranked){j, grid_at(g, head, row, j)};
        }
    }
    if (!all) {
        qsort(r, (size_t)n, sizeof *r, by_weight);
    }
    return n;
}

void text_bars(text_layout *p, const grid *g, int64_t head, int64_t row, int64_t limit)
{
    char label[LABEL_BYTES], who[LABEL_BYTES];
    ranked *r = malloc((size_t)(g->columns > 0 ? g->columns : 1) * sizeof *r);
    if (r == NULL) {
        p->out.failed = true;
        return;
    }
    bool all = limit >= g->columns;
    int64_t keys = rank(g, head, row, all, r);
    limit = limit < keys ? limit : keys;
    label_clip(who, grid_row_label(g, row, label), 24, "…");
    if (all) {
        text_wrapf(p, "“%s” asks, each key answers:", who);
    } else {
        text_wrapf(p, "“%s” asks; its %lld largest weights:", who, (long long)limit);
    }
    int label_width = bar_label_width(p, g, r, limit);
    double rest = 0;
    for (int64_t i = 0; i < keys; i++) {
        if (i < limit) {
            put_bar(p, g, &r[i], grid_masked(g, head, row, r[i].column), label_width);
        } else {
            rest += r[i].weight;
        }
    }
    if (limit < keys) {
        text_wrapf(p, "the other %lld keys together: %.4f", (long long)(keys - limit), rest);
    }
    row_health h = grid_health(g, head, row);
    text_wrapf(p, "entropy %.3f of %.3f bits", h.bits, h.possible);
    free(r);
}
