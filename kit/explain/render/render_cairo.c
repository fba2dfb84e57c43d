/* Draws the picture as PNG (two pixels for each picture unit, for high-resolution screens) or as
 * PDF, with cairo.
 *
 * cairo's simple text functions use one font for a string, so characters of scripts that DejaVu
 * lacks appear as boxes. An SVG does not have this limit, because the viewer chooses its fonts.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cairo-pdf.h>
#include <cairo.h>

#include "picture.h"

#define PIXELS 2.0        /* to a unit */
#define MOST_PIXELS 30000 /* pixels along a side; cairo's limit is 32767 */

static void set_colour(cairo_t *c, rgb colour)
{
    cairo_set_source_rgb(c, colour.r / 255.0, colour.g / 255.0, colour.b / 255.0);
}

static void draw_rect(cairo_t *c, const picture_item *i)
{
    set_colour(c, i->colour);
    cairo_rectangle(c, i->x, i->y, i->w, i->h);
    cairo_fill(c);
}

static void draw_hatch(cairo_t *c, const picture_item *i)
{
    cairo_save(c);
    cairo_rectangle(c, i->x, i->y, i->w, i->h);
    cairo_clip_preserve(c);
    cairo_set_source_rgb(c, 1, 1, 1);
    cairo_fill_preserve(c);
    set_colour(c, i->colour);
    cairo_set_line_width(c, 1);
    cairo_stroke(c);
    /* The lines are x + y = 6k in coordinates of the whole picture, so that they continue in
     * neighbouring cells as in the SVG. */
    for (double k = ceil((i->x + i->y) / 6) * 6; k < i->x + i->w + i->y + i->h; k += 6) {
        cairo_move_to(c, k - i->y, i->y);
        cairo_line_to(c, k - i->y - i->h, i->y + i->h);
    }
    cairo_stroke(c);
    cairo_restore(c);
}

static void draw_text(cairo_t *c, const picture_item *i)
{
    if (i->text == NULL || i->text[0] == '\0') {
        return;
    }
    cairo_text_extents_t box;
    cairo_select_font_face(c, i->mono ? "DejaVu Sans Mono" : "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           i->bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(c, i->size);
    cairo_text_extents(c, i->text, &box);
    double part = i->anchor == PICTURE_START ? 0 : i->anchor == PICTURE_MIDDLE ? 0.5 : 1;
    cairo_save(c);
    set_colour(c, i->colour);
    cairo_translate(c, i->x, i->y);
    cairo_rotate(c, i->angle * 3.14159265358979323846 / 180);
    cairo_move_to(c, -part * box.x_advance, 0);
    cairo_show_text(c, i->text);
    cairo_restore(c);
}

static void draw_cells(cairo_t *c, const picture_item *i)
{
    double w = i->w / (double)i->columns, h = i->h / (double)i->rows;
    cairo_save(c);
    cairo_set_antialias(c, CAIRO_ANTIALIAS_NONE); /* so that no gaps show between cells */
    for (int64_t r = 0; r < i->rows; r++) {
        const uint8_t *row = i->levels + r * i->columns;
        for (int64_t k = 0, run; k < i->columns; k += run) {
            for (run = 1; k + run < i->columns && row[k + run] == row[k]; run++) {}
            if (row[k] == PICTURE_HIDDEN) {
                continue;
            }
            set_colour(c, picture_level_colour(row[k]));
            cairo_rectangle(c, i->x + (double)k * w, i->y + (double)r * h, (double)run * w, h);
            cairo_fill(c);
        }
    }
    cairo_restore(c);
}

static void draw(cairo_t *c, const picture *p)
{
    cairo_set_source_rgb(c, 1, 1, 1);
    cairo_paint(c);
    cairo_set_line_width(c, 1);
    for (size_t n = 0; n < p->count; n++) {
        const picture_item *i = &p->item[n];
        switch (i->kind) {
        case PICTURE_RECT: draw_rect(c, i); break;
        case PICTURE_HATCH: draw_hatch(c, i); break;
        case PICTURE_TEXT: draw_text(c, i); break;
        case PICTURE_CELLS: draw_cells(c, i); break;
        case PICTURE_LINE:
            set_colour(c, i->colour);
            cairo_move_to(c, i->x, i->y);
            cairo_rel_line_to(c, i->w, i->h);
            cairo_stroke(c);
            break;
        }
    }
}

static cairo_status_t collect(void *closure, const unsigned char *bytes, unsigned int length)
{
    sink *s = closure;
    sink_write(s, bytes, length);
    return s->failed ? CAIRO_STATUS_NO_MEMORY : CAIRO_STATUS_SUCCESS;
}

static int finish(sink *s, cairo_status_t status, char **bytes, size_t *size, kit_error *err)
{
    if (status != CAIRO_STATUS_SUCCESS && !s->failed) {
        free(s->data);
        *bytes = NULL;
        *size = 0;
        return kit_fail(err, KIT_LIMIT, "the picture could not be drawn: %s",
                        cairo_status_to_string(status));
    }
    return sink_finish(s, bytes, size, err);
}

int render_png(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    picture p;
    int rc = picture_make(&p, t, err);
    if (rc != KIT_OK) {
        return rc;
    }
    double scale = fmin(PIXELS, MOST_PIXELS / fmax(p.width, p.height));
    cairo_surface_t *surface =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(p.width * scale),
                                   (int)ceil(p.height * scale));
    cairo_t *c = cairo_create(surface);
    cairo_scale(c, scale, scale);
    draw(c, &p);
    sink s = {0};
    cairo_status_t status = cairo_status(c);
    if (status == CAIRO_STATUS_SUCCESS) {
        status = cairo_surface_write_to_png_stream(surface, collect, &s);
    }
    cairo_destroy(c);
    cairo_surface_destroy(surface);
    picture_free(&p);
    return finish(&s, status, bytes, size, err);
}

int render_pdf(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    picture p;
    int rc = picture_make(&p, t, err);
    if (rc != KIT_OK) {
        return rc;
    }
    const double points = 0.75; /* 96 units and 72 points to an inch */
    sink s = {0};
    cairo_surface_t *surface =
        cairo_pdf_surface_create_for_stream(collect, &s, p.width * points, p.height * points);
    cairo_t *c = cairo_create(surface);
    cairo_scale(c, points, points);
    draw(c, &p);
    cairo_status_t status = cairo_status(c);
    cairo_destroy(c);
    cairo_surface_finish(surface);
    status = status == CAIRO_STATUS_SUCCESS ? cairo_surface_status(surface) : status;
    cairo_surface_destroy(surface);
    picture_free(&p);
    return finish(&s, status, bytes, size, err);
}
