/* Reads scripts (docs/LESSONS.md describes their format) and gives traces their words. */
#ifndef KIT_EXPLAIN_SCRIPT_READ_H
#define KIT_EXPLAIN_SCRIPT_READ_H

#include "../script.h"

/* Parses a script. `c_code` is the source of the program in examples/lessons/, or NULL.
 * KIT_BAD_FILE: the message names the line. */
int script_parse(script *s, const char *name, const char *text, const char *c_code, kit_error *err);

/* Parses the script NAME.lesson that is part of the program, with its C program, if it has one. */
int script_load(script *s, const char *name, kit_error *err);

/* Gives the trace its words: replaces the quoted numbers of `s`, fills the titles, formulas,
 * sentences and sections of the steps, and hands `s` over to trace->script, also on failure.
 * KIT_BAD_FILE: the script names a step that the trace does not have, lacks one that it has, or
 * quotes a number that does not exist. */
int script_apply(script *s, trace *t, kit_error *err);

/* Returns `text` with its quotations replaced, to be freed by the caller; or NULL, with the reason
 * in err. */
char *script_quote(const trace *t, const char *text, kit_error *err);
/* The same for code, where only facts are quoted, and other braces are the code's own. */
char *script_quote_code(const trace *t, const char *text, kit_error *err);
/* Whether a condition holds: "causal" if the trace has this fact, "not causal" if not. */
bool script_holds(const trace *t, const char *condition, size_t length);

/* Files that are part of the program: "sky.lesson", "sky.c". NULL: there is none. */
const char *script_file(const char *name);

#endif
