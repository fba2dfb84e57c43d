/* The parts of the terminal renderer: the layout of lines, matrices, and sums with their
 * operands. */
#ifndef KIT_EXPLAIN_TEXT_H
#define KIT_EXPLAIN_TEXT_H

#include "draw.h"

/* Lines of a fixed width. Text first passes text_clean, which converts it to ASCII if the terminal
 * is not UTF-8, so that its width is known before the layout. */
typedef struct text_layout {
    sink out;
    int width, indent; /* columns; indentation of the text under a step's heading */
    render_colour colour;
    bool unicode, full;
    int top;
    render_code code;
    bool steps;
    const trace *trace;
    char *spare[8]; /* text_clean returns these in rotation */
    int next_spare;
} text_layout;

const char *text_clean(text_layout *p, const char *text);
/* Writes text, broken at spaces, and a newline. The first line starts at the current column, which
 * is `at`; the others are indented by `hang`. */
void text_wrap(text_layout *p, int at, int hang, const char *text);
void text_wrapf(text_layout *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_spaces(text_layout *p, int count);
void text_label(text_layout *p, const char *text, int width, bool right); /* clipped and padded */
/* Set colours; do nothing if colours are off. */
void text_bold(text_layout *p);
void text_dim(text_layout *p);
void text_cell(text_layout *p, double weight); /* background, and black or white text on it */
/* Colours one half of a half-block character: the upper half by its text colour, the lower half by
 * the background. */
void text_half(text_layout *p, double weight, bool upper);
void text_plain(text_layout *p);
int text_label_width(const text_layout *p, const grid *g); /* of the row labels, after clipping */
const char *text_weight(char out[NUMBER_BYTES], double weight, int digits);

/* text_matrix.c: writes a matrix in the largest form that fits the width. */
void text_weights(text_layout *p, const trace_step *s);
void text_weights_alone(text_layout *p, const trace_step *s);     /* without bars and legend */
void text_matrix(text_layout *p, const trace_step *s);            /* wide ones in several blocks */
bool text_matrix_fits(const text_layout *p, const trace_step *s); /* in one block */
/* text_map.c: writes weights without digits, and bars. */
void text_map(text_layout *p, const grid *g, int64_t head);
void text_bars(text_layout *p, const grid *g, int64_t head, int64_t row, int64_t limit);
void text_legend(text_layout *p, bool masked);
const char *text_shade(const text_layout *p, double weight);

/* text_script.c: writes a lesson by its script; screens and stages as render.h says. */
void text_script(text_layout *p);
void text_screen(text_layout *p, size_t screen, size_t from, size_t to);

/* text_parts.c: writes a step's numbers, a heading, and the notes at the end of a trace. */
void text_step(text_layout *p, const trace_step *s);
void text_section(text_layout *p, const char *section);
void text_notes(text_layout *p, const trace *t);
void text_shape(sink *s, const kit_array *a);      /* 3×2 */
void text_more(text_layout *p, const trace *more); /* the steps and notes of trace.more */

/* text_curve.c: writes y over x. */
void text_curve(text_layout *p, const trace_step *s);

/* text_worked.c: writes the computation of the chosen query with its operands, and also its row if
 * `row_too`. */
void text_worked(text_layout *p, const trace_step *s, bool row_too);

#endif
