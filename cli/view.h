/* What explain, lesson and train share: a trace shown as text, JSON or pictures, or asked about. */
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

/* Ids of the options, which have the same names in all commands. quiz: OPTION_COUNT if there is
 * none. */
typedef struct view_options {
    option_id json, full, quiz, output;
} view_options;

int view_begin(view *v, const options *o, const view_options *ids, kit_error *err);
/* The quiz if asked for; files, and their names and sizes on stdout; the trace there if no file is
 * named, or all of it is asked for. */
int view_show(view *v, const trace *t, kit_error *err);
void view_end(view *v);

#endif
