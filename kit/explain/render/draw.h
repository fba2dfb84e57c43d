/* Shared by the renderers: a growing output buffer, labels, numbers, colours. */
#ifndef KIT_EXPLAIN_DRAW_H
#define KIT_EXPLAIN_DRAW_H

#include <stdarg.h>

#include "../grid.h"
#include "render.h"

/* ------------------------------------------------------------------------- sink: growing bytes
 *
 * The other functions return no errors: sink_finish() reports an allocation that failed before.
 */
typedef struct sink {
    char *data;
    size_t size, capacity;
    bool failed;
} sink;
void sink_write(sink *s, const void *bytes, size_t size);
void sink_puts(sink *s, const char *text);
void sink_printf(sink *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sink_vprintf(sink *s, const char *format, va_list arguments);
/* Appends text without the characters that would disturb a terminal or XML (see kit_text_next). */
void sink_clean(sink *s, const char *text);
/* Appends text with the characters that HTML and XML reserve written as entities. */
void sink_escaped(sink *s, const char *text);
/* Gives the bytes to the caller, followed by a NUL. If an allocation failed, frees them and returns
 * the error. */
int sink_finish(sink *s, char **bytes, size_t *size, kit_error *err);

/* ------------------------------------------------------------------------------------- labels
 *
 * A step's label, or "3" for the third row. label_clip removes the same characters as sink_clean
 * and shortens the label to `width` columns; an ellipsis marks the cut.
 */
#define LABEL_BYTES 160
const char *grid_row_label(const grid *g, int64_t row, char buffer[LABEL_BYTES]);
const char *grid_column_label(const grid *g, int64_t column, char buffer[LABEL_BYTES]);
void label_clip(char out[LABEL_BYTES], const char *text, int width, const char *ellipsis);

/* ------------------------------------------------------------------------------------ colours
 *
 * cividis: its lightness grows evenly, and colour-blind readers see it alike (Nunez, Anderton,
 * Renslow 2018).
 */
typedef struct rgb {
    uint8_t r, g, b;
} rgb;
rgb colour_map(double weight);      /* 0..1; values outside are clamped, NaN is red */
bool colour_wants_dark_text(rgb c); /* black or white, for text on this colour */

/* "0.3986", "-57.1016", "5.46e-20", "0", "-inf": short enough for a sentence. */
#define NUMBER_BYTES 32
const char *number_text(char out[NUMBER_BYTES], double x);

#endif
