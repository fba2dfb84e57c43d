/* Draws the picture as SVG. Texts are <text> elements, so that they can be searched and the viewer
 * chooses the fonts. Every cell has a <title>, so that the viewer shows its number at the pointer.
 * There are no embedded fonts, scripts or links. */
#include <stdlib.h>
#include <string.h>

#include "picture.h"

static void put_colour(sink *s, rgb c) { sink_printf(s, "#%02x%02x%02x", c.r, c.g, c.b); }

static void put_rect(sink *s, const picture_item *i)
{
    sink_printf(s, "<rect x=\"%.6g\" y=\"%.6g\" width=\"%.6g\" height=\"%.6g\" fill=\"", i->x, i->y,
                i->w, i->h);
    if (i->kind == PICTURE_HATCH) {
        sink_puts(s, "url(#hidden)\" stroke=\"");
        put_colour(s, i->colour);
    } else {
        put_colour(s, i->colour);
    }
    if (i->text == NULL) {
        sink_puts(s, "\"/>\n");
        return;
    }
    sink_puts(s, "\"><title>");
    sink_escaped(s, i->text);
    sink_puts(s, "</title></rect>\n");
}

static void put_text(sink *s, const picture_item *i)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    if (i->text == NULL || i->text[0] == '\0') {
        return;
    }
    sink_printf(s, "<text x=\"%.6g\" y=\"%.6g\" font-size=\"%.6g\" fill=\"", i->x, i->y, i->size);
    put_colour(s, i->colour);
    sink_printf(s, "\" text-anchor=\"%s\"%s%s", anchors[i->anchor],
                i->bold ? " font-weight=\"bold\"" : "", i->mono ? " class=\"m\"" : "");
    if (i->angle != 0) {
        sink_printf(s, " transform=\"rotate(%.6g %.6g %.6g)\"", i->angle, i->x, i->y);
    }
    sink_puts(s, ">");
    sink_escaped(s, i->text);
    sink_puts(s, "</text>\n");
}

/* Each colour level is one path of horizontal runs. With one element per cell, 512 words would need
 * 262,144 elements. */
static void put_cells(sink *s, const picture_item *i)
{
    sink_printf(s,
                "<g transform=\"translate(%.6g %.6g) scale(%.6g %.6g)\" "
                "shape-rendering=\"crispEdges\">\n",
                i->x, i->y, i->w / (double)i->columns, i->h / (double)i->rows);
    for (int level = 0; level < PICTURE_HIDDEN; level++) {
        bool open = false;
        for (int64_t r = 0; r < i->rows; r++) {
            const uint8_t *row = i->levels + r * i->columns;
            for (int64_t c = 0, run; c < i->columns; c += run) {
                for (run = 1; c + run < i->columns && row[c + run] == row[c]; run++) {}
                if (row[c] != level) {
                    continue;
                }
                if (!open) {
                    sink_puts(s, "<path fill=\"");
                    put_colour(s, picture_level_colour(level));
                    sink_puts(s, "\" d=\"");
                    open = true;
                }
                sink_printf(s, "M%lld %lldh%lldv1h-%lldz", (long long)c, (long long)r,
                            (long long)run, (long long)run);
            }
        }
        sink_puts(s, open ? "\"/>\n" : "");
    }
    sink_puts(s, "</g>\n");
}

static void put_item(sink *s, const picture_item *i)
{
    switch (i->kind) {
    case PICTURE_RECT:
    case PICTURE_HATCH: put_rect(s, i); break;
    case PICTURE_TEXT: put_text(s, i); break;
    case PICTURE_CELLS: put_cells(s, i); break;
    case PICTURE_LINE:
        sink_printf(s, "<path d=\"M%.6g %.6gl%.6g %.6g\" stroke=\"", i->x, i->y, i->w, i->h);
        put_colour(s, i->colour);
        sink_puts(s, "\"/>\n");
        break;
    }
}

int render_svg(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    picture p;
    int rc = picture_make(&p, t, err);
    if (rc != KIT_OK) {
        return rc;
    }
    sink s = {0};
    sink_printf(
        &s,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.6g\" height=\"%.6g\" "
        "viewBox=\"0 0 %.6g %.6g\" role=\"img\" font-family=\"DejaVu Sans, Verdana, Helvetica, "
        "Arial, sans-serif\">\n<title>",
        p.width, p.height, p.width, p.height);
    sink_escaped(&s, p.title);
    sink_puts(&s, "</title>\n<desc>");
    sink_escaped(&s, p.description);
    sink_puts(
        &s,
        "</desc>\n<style>.m{font-family:\"DejaVu Sans Mono\",Menlo,Consolas,monospace}</style>\n"
        "<defs><pattern id=\"hidden\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
        "<rect width=\"6\" height=\"6\" fill=\"#ffffff\"/>"
        "<path d=\"M-1 7L7 -1M-1 1L1 -1M5 7L7 5\" stroke=\"#dadce0\"/></pattern></defs>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    for (size_t i = 0; i < p.count; i++) {
        put_item(&s, &p.item[i]);
    }
    sink_puts(&s, "</svg>\n");
    picture_free(&p);
    return sink_finish(&s, bytes, size, err);
}
