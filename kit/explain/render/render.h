/* Renderers: each writes the complete output of a trace into memory that the caller frees with
 * free(). A NUL follows the bytes; size does not count it.
 *
 * To add one: write render_<name>.c and add its row to the table in render.c.
 */
#ifndef KIT_EXPLAIN_RENDER_H
#define KIT_EXPLAIN_RENDER_H

#include "../trace.h"

typedef enum render_colour { RENDER_NO_COLOUR, RENDER_256, RENDER_TRUECOLOUR } render_colour;
/* Beside the notebook's line, a lesson shows a step's code in this language. */
typedef enum render_code {
    RENDER_C,
    RENDER_NUMPY,
    RENDER_TORCH,
    RENDER_NO_CODE,
    RENDER_ALL_CODE
} render_code;
typedef struct render_text_options {
    int width; /* columns of the terminal, at least 20 */
    render_colour colour;
    bool unicode; /* false: ASCII only */
    bool full;    /* print every matrix */
    int top;      /* number of keys with the largest weights to list beside a pooled map; 0: 5 */
    render_code code;
    bool steps; /* of explain: everything that its script says, as for a lesson */
} render_text_options;
#define RENDER_TEXT_OPTIONS_INIT                                                                   \
    {                                                                                              \
        80, RENDER_NO_COLOUR, true, false, 0, RENDER_C, false                                      \
    }
int render_text(char **bytes, size_t *size, const trace *t, const render_text_options *options,
                kit_error *err);

/* A trace with a script is read screen by screen: 0 is the introduction, then come the steps, and
 * the last one asks questions. A screen has stages: behind a prediction, an exercise or a question
 * the reader stops and thinks. Writes stages `from` to `to`. */
typedef enum render_stop {
    RENDER_AT_PREDICTION,
    RENDER_AT_EXERCISE,
    RENDER_AT_QUESTION
} render_stop;
size_t render_screens(const trace *t);
size_t render_stages(const trace *t, size_t screen);
/* Why the reader stops behind the stage, which must not be the last one. */
render_stop render_stop_behind(const trace *t, size_t screen, size_t stage);
int render_text_screen(char **bytes, size_t *size, const trace *t, size_t screen, size_t from,
                       size_t to, const render_text_options *options, kit_error *err);
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
