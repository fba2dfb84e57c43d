/* Renderers: each makes the whole output of a trace in memory; free it with free(). size does not
 * count the final NUL that follows the bytes.
 *
 * To add one: write render_<name>.c and add its row to the table in render.c.
 */
#ifndef KIT_EXPLAIN_RENDER_H
#define KIT_EXPLAIN_RENDER_H

#include "../trace.h"

typedef enum render_colour { RENDER_NO_COLOUR, RENDER_256, RENDER_TRUECOLOUR } render_colour;
typedef struct render_text_options {
    int width; /* columns of the terminal, at least 20 */
    render_colour colour;
    bool unicode; /* false: nothing but ASCII */
    bool full;    /* print every matrix */
    int top;      /* most weighted keys to list where a map was pooled; 0: 5 */
} render_text_options;
#define RENDER_TEXT_OPTIONS_INIT                                                                   \
    {                                                                                              \
        80, RENDER_NO_COLOUR, true, false, 0                                                       \
    }
int render_text(char **bytes, size_t *size, const trace *t, const render_text_options *options,
                kit_error *err);
int render_json(char **bytes, size_t *size, const trace *t, kit_error *err);
int render_svg(char **bytes, size_t *size, const trace *t, kit_error *err);
int render_png(char **bytes, size_t *size, const trace *t, kit_error *err);
int render_pdf(char **bytes, size_t *size, const trace *t, kit_error *err);
/* One file that needs nothing else; large matrices are in it as base64, or computed by it. */
int render_html(char **bytes, size_t *size, const trace *t, kit_error *err);

/* By the suffix of a file's name: .html .svg .png .pdf .json .txt. NULL, and err says which
 * there are. */
typedef int (*render_function)(char **bytes, size_t *size, const trace *t, kit_error *err);
render_function render_by_suffix(const char *path, kit_error *err);

#endif
