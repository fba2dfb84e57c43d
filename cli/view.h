/* Shared by explain, lesson and train: shows a trace as text, JSON or pictures, or as a quiz. */
#ifndef CLI_VIEW_H
#define CLI_VIEW_H

#include "../kit/explain/render/render.h"
#include "files.h"
#include "options.h"

typedef struct view {
    bool json, full, quiz;
    uint64_t quiz_seed;
    render_text_options text;
    files files;
} view;

/* Ids of the options, whose names are the same in all commands. quiz: OPTION_COUNT if there is
 * none. */
typedef struct view_options {
    option_id json, full, quiz, output;
} view_options;

int view_begin(view *v, const options *o, const view_options *ids, kit_error *err);
/* Runs the quiz if requested, and writes the files. On stdout it prints their names and sizes, and
 * the trace if no file was named or all of it is requested. */
int view_show(view *v, const trace *t, kit_error *err);
void view_end(view *v);

void view_put_written(const char *path, size_t size); /* "page.html: 231.4 kB", on stdout */

#endif
