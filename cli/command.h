/* One function per command. It returns the exit code, and a one-line message in err if there is
 * something to report. Results go to stdout only when they are complete. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "options.h"

int command_explain(const options *o, kit_error *err);
int command_lesson(const options *o, kit_error *err);
int command_quiz(const options *o, kit_error *err);
int command_run(const options *o, kit_error *err);
int command_bench(const options *o, kit_error *err);
int command_train(const options *o, kit_error *err);
int command_generate(const options *o, kit_error *err);
int command_check(const options *o, kit_error *err);
int command_info(const options *o, kit_error *err);
int command_help(const options *o, kit_error *err);

/* text.c: joins the operands again, which a shell made from an unquoted text. The caller frees
 * the text; NULL: no memory. */
char *command_join_operands(const options *o, kit_error *err);
/* text.c: reads all of a text of at most `most` bytes; `name` starts messages. The caller frees
 * the text. */
char *command_read_text(FILE *from, const char *name, size_t most, kit_error *err);

/* help.c, manual.c: print texts made from the table, on stdout. */
void help_overview(void);
void help_command(command_id command);
void manual_man(void);
void manual_bash_completion(void);

/* engine.c: calls of libattn that several commands need. */
int engine_context(attn_context **out, const char *isa, int threads, kit_error *err);
void engine_ignored(const char *file, const char *what); /* stores a line of --ignore-unknown */
void engine_tell_ignored(void);                          /* prints those lines on stderr */
int engine_check_isa(const char *isa, kit_error *err); /* known and usable here; isa may be NULL */
/* Accepts "none" (if `none`), "top-left", "bottom-right" or an integer. */
int engine_parse_causal(attn_sdpa_args *args, const char *text, bool none, kit_error *err);
int engine_parse_diagonal(attn_sdpa_args *args, const char *text, kit_error *err); /* no "none" */

#endif
