/* The layout of the heat-maps: a title, curves if there are any, a panel for each matrix of
 * weights, a legend.
 *
 *   title                                   A panel:      key (column answers)
 *   setting                                            |  Your journey starts
 *   [panel] [panel]                            query   Your     [0.40][0.60][    ]  0.97 ===
 *   [panel]                                    (row    journey  [0.25][0.38][0.37]  1.56 =====
 *   legend                                     asks)                              entropy, bits
 *
 * Cells show digits if there is room. With more than 64 words a panel is drawn as one map of colour
 * levels. With more than 1024 words each drawn cell shows the largest weight of a square of cells,
 * and the panel says so. Small steps, of which there are many, are drawn as small maps side by
 * side, with their names above.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "picture.h"

#define MARGIN 24.0
#define LABEL 12.0   /* em of labels */
#define EM_MONO 0.62 /* width of a column, in em */
#define EM_SANS 0.58 /* average width of a character, in em */
#define EM_BOLD 0.69
#define HEALTH 112.0    /* width of the entropy column */
#define ONE_BY_ONE 64   /* rows and columns drawn as single cells */
#define MOST_CELLS 1024 /* most cells along a side */

static const rgb ink = {32, 33, 36}, grey = {110, 113, 118}, pale = {218, 220, 224},
                 empty_bar = {236, 237, 239};

/* ----------------------------------------------------------------------------------- Panels */

/* One matrix and its position. */
typedef struct panel {
    grid g;
    int64_t head;
    int64_t pool;          /* number of the trace's cells along the side of one drawn cell */
    int64_t rows, columns; /* drawn */
    double cell;           /* width; cell_height is smaller if digits are shown */
    double cell_height;
    double left, top; /* position of the cells, from the panel's corner */
    double width, height;
    int row_label, column_label; /* columns of text */
    bool slanted;                /* column labels are wider than a cell */
    bool bare;                   /* small: no labels */
} panel;

static double cell_size(int64_t n)
{
    const struct {
        int64_t most;
        double size;
    } sizes[] = {{8, 62}, {12, 52}, {20, 34}, {32, 22}, {64, 14}, {128, 7}, {256, 4}, {512, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (n <= sizes[i].most) {
            return sizes[i].size;
        }
    }
    return 1;
}

static int widest_label(const grid *g, bool rows, int most)
{
    int widest = 1;
    for (int64_t i = 0; i < (rows ? g->rows : g->columns); i++) {
        char buffer[LABEL_BYTES];
        int w =
            kit_text_width(rows ? grid_row_label(g, i, buffer) : grid_column_label(g, i, buffer));
        widest = w > widest ? w : widest;
    }
    return widest > most ? most : widest;
}

static void size_bare(panel *a, int64_t n)
{
    a->cell = a->cell_height = n <= 32 ? 7 : n <= 64 ? 4 : cell_size(n);
    a->top = 22;
    a->width = fmax(ceil((double)a->columns * a->cell), 190);
    a->height = a->top + (double)a->rows * a->cell + 10;
}

static panel make_panel(const trace *t, const trace_step *s, int64_t head)
{
    panel a = {.g = grid_of(t, s), .head = head, .bare = s->small};
    int64_t n = a.g.columns > a.g.rows ? a.g.columns : a.g.rows;
    a.pool = (n + MOST_CELLS - 1) / MOST_CELLS;
    a.rows = (a.g.rows + a.pool - 1) / a.pool;
    a.columns = (a.g.columns + a.pool - 1) / a.pool;
    if (a.bare) {
        size_bare(&a, n);
        return a;
    }
    a.cell = cell_size(n);
    a.cell_height = n <= 12 ? 40 : a.cell;
    a.row_label = widest_label(&a.g, true, 16);
    a.column_label = widest_label(&a.g, false, 16);
    a.slanted = (a.column_label + 1) * LABEL * EM_MONO > a.cell;
    double label_height = a.slanted ? 0.78 * a.column_label * LABEL * EM_MONO + 16 : 20;
    a.left = ceil(24 + a.row_label * LABEL * EM_MONO + 10); /* an integer: no gaps between cells */
    a.top = ceil(24 + 20 + label_height);
    /* The last slanted label extends over the entropy column or beyond the cells. */
    double right = a.rows <= ONE_BY_ONE ? HEALTH : 12;
    double lean = a.slanted ? 0.78 * a.column_label * LABEL * EM_MONO : 0;
    a.width = a.left + (double)a.columns * a.cell + (right > lean ? right : lean);
    a.width = ceil(a.width < 300 ? 300 : a.width);
    a.height = a.top + (double)a.rows * a.cell_height + (a.pool > 1 ? 36 : 20);
    return a;
}

static void draw_axes(picture *p, const panel *a, double x, double y)
{
    double left = x + a->left, top = y + a->top, middle = (double)a->columns * a->cell / 2;
    picture_item like = {.colour = grey, .size = 11, .anchor = PICTURE_MIDDLE};
    picture_text(p, like, left + (middle < 60 ? 60 : middle), y + 38, "key: column answers");
    like.angle = -90;
    double tall = (double)a->rows * a->cell_height;
    bool low = tall < 130; /* a matrix with few rows has no room for the words at its side */
    picture_text(p, like, x + 12, top + tall / 2, low ? "query" : "query: row asks");
}

static void draw_labels(picture *p, const trace *t, const panel *a, double x, double y)
{
    double left = x + a->left, top = y + a->top;
    int64_t step_row = 1, step_column = 1; /* so that labels do not touch */
    while ((double)step_row * a->cell_height < LABEL) {
        step_row++;
    }
    while ((double)step_column * a->cell < (a->slanted ? 18 : LABEL)) {
        step_column++;
    }
    char buffer[LABEL_BYTES], text[LABEL_BYTES];
    picture_item like = {.colour = ink, .size = LABEL, .mono = true};
    for (int64_t i = 0; i < a->rows; i += step_row) {
        label_clip(text, grid_row_label(&a->g, i * a->pool, buffer), a->row_label, "…");
        like.anchor = PICTURE_END;
        like.bold = a->g.rows > 1 && i * a->pool == grid_query(&a->g, t);
        double base = top + ((double)i + 0.5) * a->cell_height + (a->cell_height < LABEL ? 6 : 4);
        picture_text(p, like, left - 8, base, text);
    }
    like.bold = false;
    for (int64_t j = 0; j < a->columns; j += step_column) {
        label_clip(text, grid_column_label(&a->g, j * a->pool, buffer), a->column_label, "…");
        double middle = left + ((double)j + 0.5) * a->cell;
        like.anchor = a->slanted ? PICTURE_START : PICTURE_MIDDLE;
        like.angle = a->slanted ? -50 : 0;
        picture_text(p, like, middle + (a->slanted ? 4 : 0), top - 8, text);
    }
}

/* "“is” asks, “Life” answers: 0.3986 (score 0.8984)", for a pointer resting on the cell. */
static char *cell_tip(picture *p, const panel *a, int64_t i, int64_t j)
{
    char row[LABEL_BYTES], column[LABEL_BYTES], number[NUMBER_BYTES];
    sink s = {0}, clean = {0};
    sink_printf(&s, "“%s” asks, “%s” answers: ", grid_row_label(&a->g, i, row),
                grid_column_label(&a->g, j, column));
    if (grid_masked(&a->g, a->head, i, j)) {
        sink_puts(&s, "hidden");
    } else {
        sink_printf(&s, "%.9g", grid_at(&a->g, a->head, i, j));
    }
    if (a->g.scores != NULL) {
        int64_t at = (a->head * a->g.rows + i) * a->g.columns + j;
        double x = kit_array_get(&a->g.scores->tensor, at);
        sink_printf(&s, " (score %s)", number_text(number, x));
    }
    if (!s.failed) {
        sink_clean(&clean, s.data);
    }
    free(s.data);
    p->failed = p->failed || s.failed || clean.failed;
    return clean.failed ? NULL : clean.data;
}

static void draw_single_cells(picture *p, const panel *a, double left, double top)
{
    for (int64_t i = 0; i < a->rows; i++) {
        for (int64_t j = 0; j < a->columns; j++) {
            double x = left + (double)j * a->cell, y = top + (double)i * a->cell_height;
            double w = grid_at(&a->g, a->head, i, j);
            bool hidden = grid_masked(&a->g, a->head, i, j);
            rgb colour = hidden ? pale : colour_map(w);
            picture_put(p, (picture_item){.kind = hidden ? PICTURE_HATCH : PICTURE_RECT,
                                          .x = x,
                                          .y = y,
                                          .w = a->cell,
                                          .h = a->cell_height,
                                          .colour = colour,
                                          .text = cell_tip(p, a, i, j)});
            if (!hidden && a->cell >= 34) {
                char digits[NUMBER_BYTES];
                bool wide = a->cell >= 50;
                snprintf(digits, sizeof digits, wide ? "%.3f" : w > 0.995 ? "%.1f" : "%.2f", w);
                bool dark = colour_wants_dark_text(colour);
                picture_item like = {.colour = dark ? (rgb){0, 0, 0} : (rgb){255, 255, 255},
                                     .size = wide ? 13 : 11,
                                     .anchor = PICTURE_MIDDLE,
                                     .mono = true};
                picture_text(p, like, x + a->cell / 2, y + a->cell_height / 2 + 4.5,
                             wide || digits[0] != '0' ? digits : digits + 1);
            }
        }
    }
}

/* Returns the largest visible weight of a square of cells as a colour level. */
static uint8_t pooled_level(const panel *a, int64_t row, int64_t column)
{
    double largest = -1;
    for (int64_t i = row * a->pool; i < (row + 1) * a->pool && i < a->g.rows; i++) {
        for (int64_t j = column * a->pool; j < (column + 1) * a->pool && j < a->g.columns; j++) {
            if (!grid_masked(&a->g, a->head, i, j)) {
                largest = fmax(largest, grid_at(&a->g, a->head, i, j));
            }
        }
    }
    return (uint8_t)(largest < 0 ? PICTURE_HIDDEN : (int)(fmin(largest, 1) * 254 + 0.5));
}

static void draw_map(picture *p, const panel *a, double left, double top)
{
    uint8_t *levels = malloc((size_t)(a->rows * a->columns));
    if (levels == NULL) {
        p->failed = true;
        return;
    }
    for (int64_t i = 0; i < a->rows * a->columns; i++) {
        levels[i] = pooled_level(a, i / a->columns, i % a->columns);
    }
    /* Masked cells are not drawn, so this background shows there. */
    picture_put(p, (picture_item){.kind = PICTURE_HATCH,
                                  .x = left,
                                  .y = top,
                                  .w = (double)a->columns * a->cell,
                                  .h = (double)a->rows * a->cell_height,
                                  .colour = pale});
    picture_put(p, (picture_item){.kind = PICTURE_CELLS,
                                  .x = left,
                                  .y = top,
                                  .w = (double)a->columns * a->cell,
                                  .h = (double)a->rows * a->cell_height,
                                  .levels = levels,
                                  .rows = a->rows,
                                  .columns = a->columns});
}

static void draw_health(picture *p, const panel *a, double left, double top)
{
    double x = left + (double)a->columns * a->cell + 10;
    picture_item like = {.colour = grey, .size = 11};
    picture_text(p, like, x, a->slanted ? top - a->top + 38 : top - 8, "entropy, bits");
    like.mono = true;
    like.colour = ink;
    for (int64_t i = 0; i < a->rows && a->cell_height >= LABEL; i++) {
        row_health h = grid_health(&a->g, a->head, i);
        char bits[NUMBER_BYTES];
        snprintf(bits, sizeof bits, h.possible > 0 ? "%.2f" : "–", h.bits);
        double middle = top + ((double)i + 0.5) * a->cell_height;
        picture_text(p, like, x, middle + 4, bits);
        if (h.possible > 0) {
            picture_rect(p, x + 36, middle - 3, 56, 6, empty_bar, NULL);
            picture_rect(p, x + 36, middle - 3, 56 * fmin(h.bits / h.possible, 1), 6, grey, NULL);
        }
    }
}

static void draw_panel(picture *p, const trace *t, const panel *a, double x, double y)
{
    const trace_step *s = a->g.step;
    char title[512], clipped[LABEL_BYTES], head[40] = "";
    if (a->g.heads > 1) {
        snprintf(head, sizeof head, ", head %lld", (long long)a->head + 1);
    }
    snprintf(title, sizeof title, "%s%s%s", a->bare && s->title != NULL ? s->title : s->name, head,
             s->after_notebook ? " (beyond the notebook)" : "");
    double em = a->bare ? 11 * EM_SANS : 13 * EM_BOLD;
    label_clip(clipped, title, (int)(a->width / em), "…");
    picture_text(p, (picture_item){.colour = ink, .size = a->bare ? 11 : 13, .bold = !a->bare}, x,
                 y + 14, clipped);
    if (!a->bare) {
        draw_axes(p, a, x, y);
        draw_labels(p, t, a, x, y);
    }
    double left = x + a->left, top = y + a->top;
    double wide = (double)a->columns * a->cell, tall = (double)a->rows * a->cell_height;
    if (!a->bare && a->rows <= ONE_BY_ONE && a->columns <= ONE_BY_ONE) {
        draw_single_cells(p, a, left, top);
        draw_health(p, a, left, top);
    } else {
        draw_map(p, a, left, top);
    }
    picture_line(p, left, top, wide, 0, pale);
    picture_line(p, left, top + tall, wide, 0, pale);
    picture_line(p, left, top, 0, tall, pale);
    picture_line(p, left + wide, top, 0, tall, pale);
    if (a->pool > 1) {
        snprintf(title, sizeof title, "each cell is the largest of %lld×%lld weights",
                 (long long)a->pool, (long long)a->pool);
        picture_text(p, (picture_item){.colour = grey, .size = 11}, left, top + tall + 16, title);
    }
}

/* ----------------------------------------------------------------------------------- Picture */

/* Chooses the steps that get a panel: all steps of weights; if there are many, only those with more
 * than one row. */
static size_t count_panels(const trace *t, bool single_rows, panel *out)
{
    size_t n = 0;
    for (size_t i = 0; i < t->count; i++) {
        const trace_step *s = &t->step[i];
        grid g = grid_of(t, s);
        if (s->kind != TRACE_WEIGHTS || s->check_only || g.rows == 0 || g.columns == 0 ||
            (g.rows == 1 && !single_rows)) {
            continue;
        }
        for (int64_t h = 0; h < g.heads; h++, n++) {
            if (out != NULL) {
                out[n] = make_panel(t, s, h);
            }
        }
    }
    return n;
}

static bool any_hidden(const panel *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (grid_masked(&a[i].g, a[i].head, 0, a[i].g.columns - 1)) {
            return true;
        }
    }
    return false;
}

static void draw_legend(picture *p, double x, double y, bool hidden, bool bars)
{
    const int steps = 100;
    picture_item like = {.colour = ink, .size = 11, .anchor = PICTURE_MIDDLE};
    picture_item say = {.colour = ink, .size = 12};
    picture_text(p, say, x, y + 12, "weight");
    for (int i = 0; i < steps; i++) {
        picture_rect(p, x + 56 + 2 * i, y, i + 1 < steps ? 3 : 2, 16, colour_map((i + 0.5) / steps),
                     NULL);
    }
    for (int i = 0; i <= 4; i++) {
        const char *const marks[] = {"0", "0.25", "0.5", "0.75", "1"};
        picture_line(p, x + 56 + 50 * i, y + 16, 0, 4, grey);
        picture_text(p, like, x + 56 + 50 * i, y + 32, marks[i]);
    }
    x += 286;
    if (hidden) {
        picture_put(p,
                    (picture_item){
                        .kind = PICTURE_HATCH, .x = x, .y = y, .w = 26, .h = 16, .colour = pale});
        picture_text(p, say, x + 34, y + 12, "hidden by the mask");
        y += 20;
    }
    if (bars) {
        picture_rect(p, x, y + 5, 26, 6, empty_bar, NULL);
        picture_rect(p, x, y + 5, 16, 6, grey, NULL);
        picture_text(p, say, x + 34, y + 12, "entropy, of the most possible");
    }
}

static void draw_title(picture *p, const trace *t)
{
    char text[1024], clipped[LABEL_BYTES];
    int room = (int)((p->width - 2 * MARGIN) / (18 * EM_BOLD));
    if (t->lesson != NULL) {
        snprintf(text, sizeof text, "Lesson %s: %s", t->lesson, t->title);
    } else if (t->text == NULL) {
        snprintf(text, sizeof text, "%.500s", t->title != NULL ? t->title : "");
    } else {
        snprintf(text, sizeof text, "“%.500s”", t->title != NULL ? t->title : "");
    }
    label_clip(clipped, text, room, "…");
    picture_text(p, (picture_item){.colour = ink, .size = 18, .bold = true}, MARGIN, MARGIN + 16,
                 clipped);
    room = (int)((p->width - 2 * MARGIN) / (12 * EM_SANS));
    label_clip(clipped, t->setting != NULL ? t->setting : "", room, "…");
    picture_text(p, (picture_item){.colour = grey, .size = 12}, MARGIN, MARGIN + 36, clipped);
    p->title = picture_copy_clean(p, text);
    p->description =
        picture_copy_clean(p, "Heat-map of attention weights. A row asks, a column answers, and "
                              "each row sums to 1. Entropy of each row stands at its right.");
}

/* Places panels side by side from y on. Returns the y below them. */
static double arrange_panels(picture *p, const trace *t, const panel *a, size_t n, size_t across,
                             double cell_width, double y)
{
    for (size_t from = 0; from < n; from += across) {
        double tallest = 0;
        for (size_t i = from; i < n && i < from + across; i++) {
            draw_panel(p, t, &a[i], MARGIN + (double)(i - from) * (cell_width + MARGIN), y);
            tallest = fmax(tallest, a[i].height);
        }
        y += tallest + 8;
    }
    return y;
}

/* Lays out a run of panels of one kind, a[0] .. a[n-1]: the width of each, and how many stand side
 * by side. */
static size_t choose_across(const trace *t, const panel *a, size_t n, double *cell_width)
{
    *cell_width = 0;
    for (size_t i = 0; i < n; i++) {
        *cell_width = fmax(*cell_width, a[i].width);
    }
    if (a[0].bare && t->across > 0) {
        return (size_t)t->across;
    }
    size_t across = (size_t)fmax(1, floor(1500 / (*cell_width + MARGIN)));
    size_t square = (size_t)ceil(sqrt((double)n));
    return across < square ? across : square;
}

static size_t same_kind(const panel *a, size_t n)
{
    size_t run = 1;
    while (run < n && a[run].bare == a[0].bare) {
        run++;
    }
    return run;
}

static double arrange_curves(picture *p, const trace *t, double y)
{
    size_t done = 0, across = (size_t)fmax(1, (p->width - 2 * MARGIN) / PICTURE_CURVE_WIDTH);
    for (size_t i = 0; i < t->count; i++) {
        const trace_step *s = &t->step[i];
        if (s->kind == TRACE_CURVE && s->tensor.rank == 2 && s->tensor.shape[0] > 0 &&
            s->tensor.shape[1] == 2) {
            picture_curve(p, t, s, MARGIN + (double)(done % across) * PICTURE_CURVE_WIDTH,
                          y + floor((double)done / (double)across) * PICTURE_CURVE_HEIGHT);
            done++;
        }
    }
    return y + ceil((double)done / (double)across) * (PICTURE_CURVE_HEIGHT + 8);
}

static void arrange(picture *p, const trace *t, const panel *a, size_t n)
{
    double cell_width = 0, y = MARGIN + 60;
    double setting =
        t->setting != NULL ? kit_text_width(t->setting) * 12 * EM_SANS + 2 * MARGIN : 0;
    bool bars = false;
    p->width = 580;
    for (size_t i = 0, run; i < n; i += run) {
        run = same_kind(a + i, n - i);
        size_t across = choose_across(t, a + i, run, &cell_width);
        p->width = fmax(p->width, 2 * MARGIN + (double)across * (cell_width + MARGIN) - MARGIN);
        bars = bars || (!a[i].bare && a[i].rows <= ONE_BY_ONE);
    }
    p->width = fmax(p->width, fmin(ceil(setting) + 8, 760));
    draw_title(p, t);
    y = arrange_curves(p, t, y);
    for (size_t i = 0, run; i < n; i += run) {
        run = same_kind(a + i, n - i);
        size_t across = choose_across(t, a + i, run, &cell_width);
        y = arrange_panels(p, t, a + i, run, across, cell_width, y);
    }
    draw_legend(p, MARGIN, y + 4, any_hidden(a, n), bars);
    p->height = y + 4 + 36 + MARGIN - 8;
}

int picture_make(picture *p, const trace *t, kit_error *err)
{
    memset(p, 0, sizeof *p);
    size_t n = count_panels(t, true, NULL);
    bool single_rows = n <= 4 || count_panels(t, false, NULL) == 0;
    n = count_panels(t, single_rows, NULL);
    if (n == 0) {
        return kit_fail(err, KIT_USAGE, "there are no weights to draw");
    }
    panel *a = calloc(n, sizeof *a);
    if (a != NULL) {
        count_panels(t, single_rows, a);
        arrange(p, t, a, n);
    }
    free(a);
    if (a == NULL || p->failed) {
        picture_free(p);
        return kit_fail(err, KIT_LIMIT, "no memory for the picture");
    }
    return KIT_OK;
}
