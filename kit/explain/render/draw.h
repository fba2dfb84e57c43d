/* What the renderers share: a growing output, labels, numbers, colours. */
#ifndef KIT_EXPLAIN_DRAW_H
#define KIT_EXPLAIN_DRAW_H

#include <stdarg.h>

#include "../grid.h"
#include "render.h"

/* ------------------------------------------------------------------------- sink: growing bytes
 *
 * Nothing is checked on the way: the first allocation that fails is kept, and sink_finish says so.
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
/* Text without what would disturb a terminal or XML: kit_text_next. */
void sink_clean(sink *s, const char *text);
/* Hands the bytes over, with a NUL behind them; or frees them and reports. */
int sink_finish(sink *s, char **bytes, size_t *size, kit_error *err);

/* ------------------------------------------------------------------------------------- labels
 *
 * A step's label, or "3" for the third row. label_clip makes it clean, as sink_clean does,
 * and fit `width` columns, with an ellipsis in place of what is cut.
 */
#define LABEL_BYTES 160
const char *grid_row_label(const grid *g, int64_t row, char buffer[LABEL_BYTES]);
const char *grid_column_label(const grid *g, int64_t column, char buffer[LABEL_BYTES]);
void label_clip(char out[LABEL_BYTES], const char *text, int width, const char *ellipsis);

/* ------------------------------------------------------------------------------------ colours
 *
 * cividis: even in lightness, and the same to colour-blind eyes (Nunez, Anderton, Renslow 2018).
 */
typedef struct rgb {
    uint8_t r, g, b;
} rgb;
rgb colour_map(double weight);      /* 0..1; outside is clamped, NaN is red */
bool colour_wants_dark_text(rgb c); /* black or white on top of it */

/* "0.3986", "-57.1016", "5.46e-20", "0", "-inf": short enough for a sentence. */
#define NUMBER_BYTES 32
const char *number_text(char out[NUMBER_BYTES], double x);

#endif
