/* Matrices in the terminal: weights with a shade and digits, and plain numbers.
 *
 * Lines never exceed the width. Weights that do not fit are shown in the next smaller form
 * (text_map.c), and the columns of plain numbers are printed in blocks.
 */
#include <string.h>

#include "text.h"

#define DIGITS_AT_MOST 12 /* most columns and rows that are shown with digits */

/* The layout of a matrix of weights. */
typedef struct layout {
    int label;  /* columns of the row labels */
    int cell;   /* columns of a cell, with the space after it */
    int digits; /* digits after the decimal point */
    int health; /* 0: none; 1: entropy as a share of its maximum; 2: both, in bits */
} layout;

static const int health_width[] = {0, 6, 13};

static bool choose_layout(const text_layout *p, const grid *g, layout *l)
{
    int widest = 0;
    for (int64_t j = 0; j < g->columns; j++) {
        char label[LABEL_BYTES];
        int w = kit_text_width(grid_column_label(g, j, label));
        widest = w > widest ? w : widest;
    }
    int wide = widest + 1 < 7 ? 7 : widest + 1 > 10 ? 10 : widest + 1;
    const layout tries[] = {
        {0, wide, 3, 2}, {0, 7, 3, 2}, {0, 7, 3, 1}, {0, 5, 2, 1}, {0, 5, 2, 0}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        *l = tries[i];
        l->label = text_label_width(p, g);
        int64_t needed = p->indent + l->label + 1 + g->columns * l->cell + health_width[l->health];
        if (needed <= p->width) {
            return true;
        }
    }
    return false;
}

static void put_header(text_layout *p, const grid *g, const layout *l)
{
    text_spaces(p, p->indent + l->label + 1);
    for (int64_t j = 0; j < g->columns; j++) {
        char label[LABEL_BYTES];
        text_label(p, grid_column_label(g, j, label), l->cell - 1, true);
        text_spaces(p, 1);
    }
    sink_puts(&p->out, l->health == 2 ? " entropy/max" : l->health == 1 ? " ent." : "");
    sink_puts(&p->out, "\n");
}

static void put_cell(text_layout *p, const grid *g, const layout *l, int64_t head, int64_t i,
                     int64_t j)
{
    char text[NUMBER_BYTES];
    double w = grid_at(g, head, i, j);
    bool masked = grid_masked(g, head, i, j);
    if (masked) {
        text_spaces(p, l->cell - 2);
        sink_puts(&p->out, p->unicode ? "·" : "-");
        text_spaces(p, 1);
        return;
    }
    const char *digits = text_weight(text, w, l->digits);
    if (p->colour != RENDER_NO_COLOUR) {
        text_cell(p, w);
        text_spaces(p, l->cell - 1 - (int)strlen(digits));
        sink_puts(&p->out, digits);
        text_spaces(p, 1);
        text_plain(p);
    } else {
        text_spaces(p, l->cell - 2 - (int)strlen(digits));
        sink_printf(&p->out, "%s%s ", text_shade(p, w), digits);
    }
}

static void put_health(text_layout *p, const grid *g, const layout *l, int64_t head, int64_t row)
{
    row_health h = grid_health(g, head, row);
    if (l->health == 0) {
        return;
    }
    if (h.possible == 0) {
        sink_puts(&p->out, l->health != 2 ? "    -" : h.visible > 0 ? "  one key" : "   no key");
    } else if (l->health == 2) {
        sink_printf(&p->out, " %5.3f/%5.3f", h.bits, h.possible);
    } else {
        sink_printf(&p->out, " %.2f", h.bits / h.possible);
    }
}

static void put_digits(text_layout *p, const grid *g, const layout *l, int64_t head)
{
    put_header(p, g, l);
    int64_t query = grid_query(g, p->trace);
    for (int64_t i = 0; i < g->rows; i++) {
        char label[LABEL_BYTES];
        bool here = i == query && g->rows > 1;
        text_spaces(p, p->indent);
        if (here) {
            text_bold(p);
        }
        text_label(p, grid_row_label(g, i, label), l->label, false);
        text_plain(p);
        sink_puts(&p->out, here ? (p->unicode ? "›" : ">") : " ");
        for (int64_t j = 0; j < g->columns; j++) {
            put_cell(p, g, l, head, i, j);
        }
        put_health(p, g, l, head, i);
        sink_puts(&p->out, "\n");
    }
}

void text_weights(text_layout *p, const trace_step *s)
{
    grid g = grid_of(p->trace, s);
    layout l = {0};
    int64_t query = grid_query(&g, p->trace);
    bool small = g.columns <= DIGITS_AT_MOST && g.rows <= DIGITS_AT_MOST;
    bool digits = small && choose_layout(p, &g, &l);
    for (int64_t h = 0; h < g.heads; h++) {
        if (g.heads > 1) {
            text_wrapf(p, "head %lld", (long long)h + 1);
        }
        if (digits) {
            put_digits(p, &g, &l, h);
        } else if (!small) {
            text_map(p, &g, h);
        }
        if (!digits && query >= 0) {
            text_bars(p, &g, h, query, small ? g.columns : p->top);
        }
    }
    if (digits || !small) {
        /* Every mask here is causal, so the first query does not see the last key. */
        text_legend(p, g.rows > 0 && g.columns > 0 && grid_masked(&g, 0, 0, g.columns - 1));
    }
    if (p->full && !digits) {
        text_matrix(p, s);
    }
}

void text_weights_alone(text_layout *p, const trace_step *s)
{
    grid g = grid_of(p->trace, s);
    layout l = {0};
    if (g.columns <= DIGITS_AT_MOST && g.rows <= DIGITS_AT_MOST && choose_layout(p, &g, &l)) {
        put_digits(p, &g, &l, 0);
    } else {
        text_map(p, &g, 0);
    }
}

/* -------------------------------------------------------------------------------- Plain numbers */

static int number_width(const grid *g)
{
    int widest = 1;
    char text[NUMBER_BYTES];
    for (int64_t i = 0; i < g->heads * g->rows; i++) {
        for (int64_t j = 0; j < g->columns; j++) {
            int w = (int)strlen(number_text(text, grid_at(g, i / g->rows, i % g->rows, j)));
            widest = w > widest ? w : widest;
        }
    }
    return widest;
}

static bool has_rows(const grid *g) { return g->rows > 1 || g->step->row_labels != NULL; }

static int64_t columns_that_fit(const text_layout *p, const grid *g, int cell)
{
    int label = has_rows(g) ? text_label_width(p, g) + 1 : 0;
    int64_t fit = (p->width - p->indent - label) / cell;
    return fit < 1 ? 1 : fit;
}

/* Returns the columns of a cell with the space after it: wide enough for the labels, if this does
 * not need more blocks. */
static int cell_width(const text_layout *p, const grid *g)
{
    int numbers = number_width(g) + 1, wide = numbers;
    for (int64_t j = 0; g->step->column_labels != NULL && j < g->columns; j++) {
        char label[LABEL_BYTES];
        int w = kit_text_width(grid_column_label(g, j, label)) + 1;
        wide = w > wide ? (w > 15 ? 15 : w) : wide;
    }
    wide = wide > numbers ? wide : numbers;
    return columns_that_fit(p, g, wide) >= g->columns ? wide : numbers;
}

bool text_matrix_fits(const text_layout *p, const trace_step *s)
{
    grid g = grid_of(p->trace, s);
    return g.rows * g.heads <= DIGITS_AT_MOST && g.columns <= DIGITS_AT_MOST &&
           columns_that_fit(p, &g, number_width(&g) + 1) >= g.columns;
}

static void put_block(text_layout *p, const grid *g, int64_t head, int64_t from, int64_t to,
                      int cell)
{
    int label_width = has_rows(g) ? text_label_width(p, g) : 0;
    char label[LABEL_BYTES], text[NUMBER_BYTES];
    if (g->step->column_labels != NULL) {
        text_spaces(p, p->indent + label_width + (label_width > 0));
        for (int64_t j = from; j < to; j++) {
            text_label(p, grid_column_label(g, j, label), cell - 1, true);
            text_spaces(p, j + 1 < to);
        }
        sink_puts(&p->out, "\n");
    }
    for (int64_t i = 0; i < g->rows; i++) {
        text_spaces(p, p->indent);
        if (label_width > 0) {
            text_label(p, grid_row_label(g, i, label), label_width, false);
            text_spaces(p, 1);
        }
        for (int64_t j = from; j < to; j++) {
            number_text(text, grid_at(g, head, i, j));
            sink_printf(&p->out, "%*s%s", cell - 1, text, j + 1 < to ? " " : "\n");
        }
    }
}

void text_matrix(text_layout *p, const trace_step *s)
{
    grid g = grid_of(p->trace, s);
    int cell = cell_width(p, &g);
    int64_t fit = columns_that_fit(p, &g, cell);
    for (int64_t h = 0; h < g.heads && g.rows > 0; h++) {
        if (g.heads > 1) {
            text_wrapf(p, "head %lld", (long long)h + 1);
        }
        for (int64_t from = 0; from < g.columns; from += fit) {
            int64_t to = from + fit < g.columns ? from + fit : g.columns;
            if (fit < g.columns) {
                text_wrapf(p, "columns %lld-%lld", (long long)from + 1, (long long)to);
            }
            put_block(p, &g, h, from, to, cell);
        }
    }
}
