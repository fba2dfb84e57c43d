/* The parts of the terminal renderer: the layout that lines are put in, matrices, and written-out
 * sums. */
#ifndef KIT_EXPLAIN_TEXT_H
#define KIT_EXPLAIN_TEXT_H

#include "draw.h"

/* Lines of a fixed width. Text goes through text_clean first, which makes it plain where the
 * terminal is not UTF-8, so that its width is known before it is laid out. */
typedef struct text_layout {
    sink out;
    int width, indent; /* columns; of the text under a step's heading */
    render_colour colour;
    bool unicode, full;
    int top;
    const trace *trace;
    char *spare[8]; /* text_clean hands these out in turn */
    int next_spare;
} text_layout;

const char *text_clean(text_layout *p, const char *text);
/* Text broken at spaces; lines after the first are indented by `hang`. The first starts at column
 * `at`, where the layout already is. Ends with a newline. */
void text_wrap(text_layout *p, int at, int hang, const char *text);
void text_wrapf(text_layout *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_spaces(text_layout *p, int count);
void text_label(text_layout *p, const char *text, int width, bool right); /* clipped and padded */
/* Colours; nothing without them. */
void text_bold(text_layout *p);
void text_dim(text_layout *p);
void text_cell(text_layout *p, double weight); /* background, and ink that shows on it */
/* Colours one half of a half-block character: `upper` sets its ink, else the background. */
void text_half(text_layout *p, double weight, bool upper);
void text_plain(text_layout *p);

/* text_matrix.c: a matrix as the width allows. */
void text_weights(text_layout *p, const trace_step *s);
void text_matrix(text_layout *p, const trace_step *s); /* numbers; columns in blocks if need be */
bool text_matrix_fits(const text_layout *p, const trace_step *s); /* in one block */
/* text_map.c: weights without digits, and bars. */
void text_map(text_layout *p, const grid *g, int64_t head);
void text_bars(text_layout *p, const grid *g, int64_t head, int64_t row, int64_t limit);
void text_legend(text_layout *p, bool masked);
int text_label_width(const text_layout *p, const grid *g); /* of the row labels, after clipping */
const char *text_shade(const text_layout *p, double weight);
const char *text_weight(char out[NUMBER_BYTES], double weight, int digits);

/* text_curve.c: y over x, as high as it is readable. */
void text_curve(text_layout *p, const trace_step *s);

/* text_worked.c: the chosen query's numbers with their operands; and its row, if `row_too`. */
void text_worked(text_layout *p, const trace_step *s, bool row_too);

#endif
