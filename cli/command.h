/* One function per command: the exit code, and one line in err where there is something to say.
 * Results go to stdout only when they are whole. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "options.h"

int command_explain(const options *o, kit_error *err);
int command_lesson(const options *o, kit_error *err);
int command_run(const options *o, kit_error *err);
int command_bench(const options *o, kit_error *err);
int command_train(const options *o, kit_error *err);
int command_generate(const options *o, kit_error *err);
int command_check(const options *o, kit_error *err);
int command_info(const options *o, kit_error *err);
int command_help(const options *o, kit_error *err);

/* explain.c: the operands, as a shell splits an unquoted text, joined again; NULL: no memory. */
char *command_join_operands(const options *o, kit_error *err);

/* help.c, manual.c: made from the table, on stdout. */
void help_overview(void);
void help_command(command_id command);
void manual_man(void);
void manual_bash_completion(void);

/* engine.c: what several commands ask of the engine. Messages of the engine become messages of the
 * program: KIT_LIMIT for memory and limits, KIT_BAD_FILE for what arrays are, KIT_USAGE for the
 * rest. */
int engine_context(attn_context **out, const char *isa, int threads, kit_error *err);
int engine_failed(const attn_error *engine, kit_error *err);
void engine_ignored(const char *file, const char *what); /* keeps a line of --ignore-unknown */
void engine_tell_ignored(void);                          /* prints those lines on stderr */
int engine_check_isa(const char *isa, kit_error *err);   /* known and usable here; NULL is fine */
/* "none", "top-left", "bottom-right" or an integer */
int engine_parse_causal(attn_sdpa_args *args, const char *text, bool none, kit_error *err);
int engine_parse_diagonal(attn_sdpa_args *args, const char *text, kit_error *err); /* not "none" */

#endif
