/* A curve in the terminal: bars as high as its values, in eighths of a line, from 0 or from the
 * smallest value if it is negative. If there are more points than columns, each bar is the mean of
 * several points. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

enum { LINES = 8, LABEL_WIDTH = 8, WIDEST = 100 };

typedef struct chart {
    double height[WIDEST]; /* mean y of the points of each bar */
    int bars, width;       /* columns of a bar */
    double low, high;
} chart;

static void fill(chart *c, const grid *g)
{
    c->low = 0;
    c->high = 0;
    for (int k = 0; k < c->bars; k++) {
        int64_t from = g->rows * k / c->bars, to = g->rows * (k + 1) / c->bars;
        double sum = 0;
        for (int64_t i = from; i < to; i++) {
            sum += grid_at(g, 0, i, 1);
        }
        c->height[k] = sum / (double)(to - from);
        c->low = fmin(c->low, c->height[k]);
        c->high = fmax(c->high, c->height[k]);
    }
    c->high = c->high > c->low ? c->high : c->low + 1;
}

/* The character of a bar in line `line`, counted from the bottom. */
static const char *cell(const text_layout *p, double part, int line)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {" ", ".", ".", ":", ":", "|", "|", "#", "#"};
    double eighths = part * LINES * 8 - line * 8;
    int level = isnan(eighths) || eighths < 0 ? 0 : eighths > 8 ? 8 : (int)(eighths + 0.5);
    return (p->unicode ? blocks : ascii)[level];
}

static void put_axis(text_layout *p, const grid *g, const chart *c)
{
    char first[NUMBER_BYTES], last[NUMBER_BYTES], label[LABEL_BYTES];
    snprintf(first, sizeof first, "%.6g", grid_at(g, 0, 0, 0));
    snprintf(last, sizeof last, "%.6g", grid_at(g, 0, g->rows - 1, 0));
    text_spaces(p, p->indent + LABEL_WIDTH + 1);
    sink_puts(&p->out, first);
    int used = (int)(strlen(first) + strlen(last));
    const char *name = text_clean(p, grid_column_label(g, 0, label));
    text_spaces(p, c->bars * c->width > used ? c->bars * c->width - used : 1);
    sink_printf(&p->out, "%s %s\n", last, name);
}

void text_curve(text_layout *p, const trace_step *s)
{
    grid g = grid_of(p->trace, s);
    int room = p->width - p->indent - LABEL_WIDTH - 8;
    if (g.columns != 2 || g.rows < 1 || room < 8) {
        return;
    }
    room = room > WIDEST ? WIDEST : room;
    chart c = {.bars = g.rows < room ? (int)g.rows : room};
    c.width = room / c.bars < 4 ? room / c.bars : 4;
    fill(&c, &g);
    for (int line = LINES - 1; line >= 0; line--) {
        char number[NUMBER_BYTES] = "";
        if (line == LINES - 1 || line == 0) {
            snprintf(number, sizeof number, "%.4g", line > 0 ? c.high : c.low);
        }
        text_spaces(p, p->indent);
        text_label(p, number, LABEL_WIDTH, true);
        sink_puts(&p->out, " ");
        for (int k = 0; k < c.bars * c.width; k++) {
            double part = (c.height[k / c.width] - c.low) / (c.high - c.low);
            sink_puts(&p->out, cell(p, part, line));
        }
        sink_puts(&p->out, "\n");
    }
    put_axis(p, &g, &c);
}
