/* The command line as data: the table of options.def, and a parser and accessors made from it.
 *
 * To add an option: add one row to options.def, and use option_given(o, OPT_<command>_<id>) or
 * another accessor in the command's file. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../kit/kit.h"

typedef enum command_id {
    COMMAND_common = 0, /* owns the options that every command takes */
#define COMMAND(id, operands, summary, examples, notes) COMMAND_##id,
#include "options.def"
    COMMAND_COUNT
} command_id;

typedef enum option_id {
#define OPTION(command, id, letter, kind, argument, range, fallback, group, help)                  \
    OPT_##command##_##id,
#include "options.def"
    OPTION_COUNT
} option_id;

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_INTEGER,
    OPTION_SEED, /* 64 bits, unsigned */
    OPTION_REAL,
    OPTION_CHOICE,
    OPTION_TEXT,
    OPTION_MANY_TEXT,
    OPTION_FILE,
    OPTION_MANY_FILE
} option_kind;

typedef struct command_spec {
    const char *name, *operands, *summary, *examples, *notes;
} command_spec;

typedef struct option_spec {
    command_id command;
    const char *name; /* with -, without leading -- */
    int letter;
    option_kind kind;
    const char *argument, *range, *fallback, *group, *help;
} option_spec;

/* The arguments given, in their order; strings point into argv. */
typedef struct options {
    command_id command;
    size_t count;
    struct option_value {
        option_id id;
        const char *text;
    } * value;
    size_t operand_count;
    const char **operand;
} options;

const command_spec *command_of(command_id id);
const option_spec *option_of(option_id id);
bool option_belongs(option_id id, command_id command); /* its own option or a common one */
command_id command_find(const char *name);             /* COMMAND_COUNT: unknown */

/* argv[0] is the command's name. Checks every value against its range. If -h is given, the other
 * arguments are ignored, and option_given(o, OPT_common_help) is true. */
int options_parse(options *o, command_id command, int argc, char **argv, kit_error *err);
void options_free(options *o);

/* Give the value, else the default. Integer, seed, real and choice are valid after parsing. */
bool option_given(const options *o, option_id id);
size_t option_count(const options *o, option_id id);
const char *option_at(const options *o, option_id id,
                      size_t n);                         /* n-th value given; NULL: there is none */
const char *option_text(const options *o, option_id id); /* NULL: neither given nor default */
int64_t option_integer(const options *o, option_id id);
uint64_t option_seed(const options *o, option_id id);
double option_real(const options *o, option_id id);
int option_choice(const options *o, option_id id); /* index into the range's words */

#endif
