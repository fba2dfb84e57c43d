/* A lesson, or the script of attn explain, on a terminal, step by step. */
#ifndef CLI_LESSON_WALK_H
#define CLI_LESSON_WALK_H

#include "../kit/explain/render/render.h"

/* Shows the script screen by screen, as the reader's keys say. The place in a lesson is remembered.
 * The trace must have a script; stdin and stdout must be terminals. */
int lesson_walk(const trace *t, const render_text_options *text, kit_error *err);

/* The step at which the reader stopped, from 1; 0: not begun, or finished. */
size_t lesson_place(const char *lesson);

#endif
