/* Heat-maps as a list of things to draw, in picture units (1/96 inch), from top to bottom.
 * picture.c computes the layout of a trace once. render_svg.c and render_cairo.c only draw the
 * list, so every format shows the same picture. */
#ifndef KIT_EXPLAIN_PICTURE_H
#define KIT_EXPLAIN_PICTURE_H

#include "draw.h"

typedef enum picture_kind {
    PICTURE_RECT,  /* a filled rectangle; its text, if any, is shown when the pointer rests on it */
    PICTURE_HATCH, /* white with slanted lines: a masked key */
    PICTURE_LINE,  /* from x, y to x + w, y + h */
    PICTURE_TEXT,  /* x, y are on its baseline */
    PICTURE_CELLS  /* many small cells: levels, rows x columns; masked ones are not drawn */
} picture_kind;

typedef enum picture_anchor { PICTURE_START, PICTURE_MIDDLE, PICTURE_END } picture_anchor;

#define PICTURE_HIDDEN 255 /* a level; the others are weights, 0 to 254 for 0 to 1 */

typedef struct picture_item {
    picture_kind kind;
    double x, y, w, h;
    rgb colour;
    char *text;         /* owned */
    double size, angle; /* for text: size in em, rotation in degrees clockwise */
    picture_anchor anchor;
    bool bold, mono;
    uint8_t *levels; /* owned */
    int64_t rows, columns;
} picture_item;

typedef struct picture {
    double width, height;
    char *title, *description; /* owned; the description is for screen readers */
    picture_item *item;
    size_t count, capacity;
    bool failed; /* an allocation failed */
} picture;

/* KIT_USAGE if the trace has no weights to draw. */
int picture_make(picture *p, const trace *t, kit_error *err);
void picture_free(picture *p);

rgb picture_level_colour(int level);

/* picture_items.c: for layouts. picture_put takes over the item's text and levels, picture_rect its
 * text. picture_text adds a text, whose other fields are those of `like`; picture_line a line from
 * x, y to x + w, y + h. picture_copy_clean: NULL if an allocation failed. */
void picture_put(picture *p, picture_item item);
void picture_rect(picture *p, double x, double y, double w, double h, rgb colour, char *tip);
char *picture_copy_clean(picture *p, const char *text);
void picture_text(picture *p, picture_item like, double x, double y, const char *text);
void picture_line(picture *p, double x, double y, double w, double h, rgb colour);

/* picture_curve.c: adds a step that is a curve as a panel of this size. */
#define PICTURE_CURVE_WIDTH 460.0
#define PICTURE_CURVE_HEIGHT 200.0
void picture_curve(picture *p, const trace *t, const trace_step *s, double x, double y);

#endif
