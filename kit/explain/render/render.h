/* Renderers: each writes the complete output of a trace into memory that the caller frees with
 * free(). A NUL follows the bytes; size does not count it.
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
    bool unicode; /* false: ASCII only */
    bool full;    /* print every matrix */
    int top;      /* number of keys with the largest weights to list beside a pooled map; 0: 5 */
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
/* One HTML file without dependencies. Large matrices are stored in it as base64, or computed by
 * it. */
int render_html(char **bytes, size_t *size, const trace *t, kit_error *err);

/* Finds the renderer by the suffix of a file's name: .html .svg .png .pdf .json .txt. Returns NULL
 * for any other, and err lists these. */
typedef int (*render_function)(char **bytes, size_t *size, const trace *t, kit_error *err);
render_function render_by_suffix(const char *path, kit_error *err);

#endif
