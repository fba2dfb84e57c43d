/* The parts of the terminal renderer: the page that lines are put on, matrices, and written-out
 * sums. */
#ifndef KIT_EXPLAIN_TEXT_H
#define KIT_EXPLAIN_TEXT_H

#include "draw.h"

/* A page of fixed width. Text goes through page_clean first, which makes it plain where the
 * terminal is not UTF-8, so that its width is known before it is laid out. */
typedef struct page {
    sink out;
    int width, indent; /* columns; of the text under a step's heading */
    render_colour colour;
    bool unicode, full;
    int top;
    const trace *trace;
    char *spare[8]; /* page_clean hands these out in turn */
    int next_spare;
} page;

const char *page_clean(page *p, const char *text);
/* Text broken at spaces; lines after the first are indented by `hang`. The first starts at column
 * `at`, where the page already is. Ends with a newline. */
void page_wrap(page *p, int at, int hang, const char *text);
void page_wrapf(page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void page_spaces(page *p, int count);
void page_label(page *p, const char *text, int width, bool right); /* clipped and padded */
/* Colours; nothing without them. */
void page_bold(page *p);
void page_dim(page *p);
void page_cell(page *p, double weight);             /* background, and ink that shows on it */
void page_half(page *p, double weight, bool upper); /* of a half block: its ink, or background */
void page_plain(page *p);

/* text_matrix.c: a matrix as the width allows. */
void text_weights(page *p, const trace_step *s);
void text_matrix(page *p, const trace_step *s); /* numbers; columns in blocks if need be */
bool text_matrix_fits(const page *p, const trace_step *s); /* in one block */
/* text_map.c: weights without digits, and bars. */
void text_map(page *p, const grid *g, int64_t head);
void text_bars(page *p, const grid *g, int64_t head, int64_t row, int64_t limit);
void text_legend(page *p, bool masked);
int text_label_width(const page *p, const grid *g); /* of the row labels, after clipping */
const char *text_shade(const page *p, double weight);
const char *text_weight(char out[NUMBER_BYTES], double weight, int digits);

/* text_curve.c: y over x, as high as it is readable. */
void text_curve(page *p, const trace_step *s);

/* text_worked.c: the chosen query's numbers with their operands; and its row, if `row_too`. */
void text_worked(page *p, const trace_step *s, bool row_too);

#endif
