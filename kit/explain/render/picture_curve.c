/* A curve as a panel of a picture: axes with a few round numbers, and a line. If there are more
 * points than a screen can resolve, neighbouring points are replaced by their mean. */
#include <math.h>
#include <stdio.h>

#include "picture.h"

#define LEFT 56.0 /* room for the numbers at the axis */
#define TOP 30.0
#define BOTTOM 36.0
#define MOST_POINTS 300

static const rgb ink = {32, 33, 36}, grey = {110, 113, 118}, pale = {218, 220, 224},
                 line = {0, 70, 140};

typedef struct axes {
    double x, y, w, h;                      /* position and size of the area, in picture units */
    double first, last, low, high, spacing; /* range of the values */
} axes;

/* Returns the distance of the axis numbers: 1, 2 or 5 times a power of ten, so that about four fit
 * into `range`. */
static double round_step(double range)
{
    double power = pow(10, floor(log10(range / 4))), rest = range / 4 / power;
    return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

static axes find_axes(const grid *g, double x, double y)
{
    axes a = {.x = x + LEFT, .y = y + TOP};
    a.w = PICTURE_CURVE_WIDTH - LEFT - 12;
    a.h = PICTURE_CURVE_HEIGHT - TOP - BOTTOM;
    a.first = grid_at(g, 0, 0, 0);
    a.last = grid_at(g, 0, g->rows - 1, 0);
    for (int64_t i = 0; i < g->rows; i++) {
        a.low = fmin(a.low, grid_at(g, 0, i, 1));
        a.high = fmax(a.high, grid_at(g, 0, i, 1));
    }
    a.high = a.high > a.low ? a.high : a.low + 1;
    a.spacing = round_step(a.high - a.low);
    a.high = a.spacing * ceil(a.high / a.spacing - 1e-9);
    a.low = a.spacing * floor(a.low / a.spacing + 1e-9);
    a.last = a.last > a.first ? a.last : a.first + 1;
    return a;
}

static void put_axes(picture *p, const axes *a)
{
    char number[NUMBER_BYTES];
    picture_item at_left = {.colour = grey, .size = 11, .anchor = PICTURE_END};
    picture_item below = {.colour = grey, .size = 11, .anchor = PICTURE_MIDDLE};
    for (double v = a->low; v < a->high + a->spacing / 2; v += a->spacing) {
        double y = a->y + a->h * (a->high - v) / (a->high - a->low);
        snprintf(number, sizeof number, "%.6g", fabs(v) < a->spacing / 1e6 ? 0 : v);
        picture_line(p, a->x, y, a->w, 0, pale);
        picture_text(p, at_left, a->x - 8, y + 4, number);
    }
    double step = round_step(a->last - a->first);
    for (double v = step * ceil(a->first / step); v <= a->last + step / 1e6; v += step) {
        double x = a->x + a->w * (v - a->first) / (a->last - a->first);
        snprintf(number, sizeof number, "%.6g", v);
        picture_line(p, x, a->y + a->h, 0, 4, grey);
        picture_text(p, below, x, a->y + a->h + 17, number);
    }
}

static void put_points(picture *p, const grid *g, const axes *a)
{
    int64_t points = g->rows < MOST_POINTS ? g->rows : MOST_POINTS;
    double before_x = 0, before_y = 0;
    for (int64_t k = 0; k < points; k++) {
        int64_t from = g->rows * k / points, to = g->rows * (k + 1) / points;
        double sum_x = 0, sum_y = 0;
        for (int64_t i = from; i < to; i++) {
            sum_x += grid_at(g, 0, i, 0);
            sum_y += grid_at(g, 0, i, 1);
        }
        double u = sum_x / (double)(to - from), v = sum_y / (double)(to - from);
        double x = a->x + a->w * (u - a->first) / (a->last - a->first);
        double y = a->y + a->h * (a->high - v) / (a->high - a->low);
        if (k > 0) {
            picture_line(p, before_x, before_y, x - before_x, y - before_y, line);
        }
        before_x = x;
        before_y = y;
    }
}

void picture_curve(picture *p, const trace *t, const trace_step *s, double x, double y)
{
    grid g = grid_of(t, s);
    char label[LABEL_BYTES];
    axes a = find_axes(&g, x, y);
    picture_text(p, (picture_item){.colour = ink, .size = 13, .bold = true}, x, y + 14,
                 s->title != NULL ? s->title : s->name);
    put_axes(p, &a);
    put_points(p, &g, &a);
    picture_item like = {.colour = grey, .size = 11, .anchor = PICTURE_END};
    picture_text(p, like, a.x + a.w, a.y + a.h + 32, grid_column_label(&g, 0, label));
}
