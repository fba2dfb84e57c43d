/* The help, made from the table: examples first, then the options, in 80 columns. */
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "terminal.h"
#include "value.h"

enum { WIDTH = 80, COLUMN = 26 /* column where an option's help begins */ };

static void indented(const char *lines)
{
    while (*lines) {
        size_t length = strcspn(lines, "\n");
        printf("  %.*s\n", (int)length, lines);
        lines += length + (lines[length] == '\n');
    }
}

/* Adds the range and the default to an option's help: "(1 to 64, default 3)". */
static void describe(const option_spec *spec, char *text, size_t size)
{
    char words[128] = "";
    bool range =
        spec->kind == OPTION_INTEGER || (spec->kind == OPTION_REAL && spec->range[1] != '-');
    snprintf(text, size, "%s", spec->help);
    size_t used = strlen(text);
    if (spec->kind == OPTION_CHOICE) {
        value_join(words, sizeof words, spec->range);
        snprintf(text + used, size - used,
                 spec->fallback ? " One of %s. Default: %s." : " One of %s.", words,
                 spec->fallback);
    } else if (range || spec->fallback) {
        if (range)
            value_range(words, sizeof words, spec->range, spec->argument);
        snprintf(text + used, size - used, " (%s%s%s%s)", words,
                 range && spec->fallback ? ", " : "", spec->fallback ? "default " : "",
                 spec->fallback ? spec->fallback : "");
    }
}

static void print_option(const option_spec *spec)
{
    char head[64], text[512];
    int width = spec->letter ? snprintf(head, sizeof head, "  -%c, --%s %s", spec->letter,
                                        spec->name, spec->argument)
                             : snprintf(head, sizeof head, "  --%s %s", spec->name, spec->argument);
    describe(spec, text, sizeof text);
    if (width + 2 > COLUMN)
        printf("%s\n%*s", head, COLUMN, "");
    else
        printf("%-*s", COLUMN, head);
    terminal_wrap(WIDTH, text, COLUMN, COLUMN);
}

void help_command(command_id command)
{
    const command_spec *c = command_of(command);
    const char *group = NULL;
    char usage[160];
    puts("Examples");
    indented(c->examples);
    snprintf(usage, sizeof usage, "Usage: attn %s%s%s [options] - %s.", c->name,
             *c->operands ? " " : "", c->operands, c->summary);
    putchar('\n');
    terminal_wrap(WIDTH, usage, 0, 7);
    for (int common = 0; common < 2; common++)
        for (option_id id = 0; id < OPTION_COUNT; id++) {
            const option_spec *spec = option_of(id);
            if (spec->command != (common ? COMMAND_common : command) || !*spec->group)
                continue;
            if (!group || strcmp(group, spec->group) != 0)
                printf("\n%s\n", spec->group);
            group = spec->group;
            print_option(spec);
        }
    if (*c->notes) {
        putchar('\n');
        terminal_wrap(WIDTH, c->notes, 0, 0);
    }
}

void help_overview(void)
{
    puts("Examples");
    for (command_id id = COMMAND_common + 1; id < COMMAND_COUNT; id++) {
        char first[128];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(command_of(id)->examples, "\n"),
                 command_of(id)->examples);
        indented(first);
    }
    puts("\nattn: self-attention computed, explained and measured.\n\nCommands");
    for (command_id id = COMMAND_common + 1; id < COMMAND_COUNT; id++) {
        printf("  %-8s ", command_of(id)->name);
        terminal_wrap(WIDTH, command_of(id)->summary, 11, 11);
    }
    puts("\n`attn help COMMAND` shows a command's options, `attn --version` the version.");
    puts("\nExit codes\n"
         "    0  ok\n"
         "    1  a comparison failed (check, lesson --check), or an answer is wrong or\n"
         "       missing (quiz --grade)\n"
         "    2  usage: an unknown option, or a value that an option does not take\n"
         "    3  a bad input file\n"
         "    4  memory ran out, a limit was exceeded, an output could not be written,\n"
         "       or a process of `attn run --mpi` is missing\n"
         "    5  NaN or Inf from finite input\n"
         "  130  interrupted (Ctrl-C)\n"
         "  141  standard output was closed");
}

int command_help(const options *o, kit_error *err)
{
    const char *names[COMMAND_COUNT];
    char hint[64];
    size_t count = 0;
    if (option_given(o, OPT_help_man) || option_given(o, OPT_help_bash_completion)) {
        if (o->operand_count || o->count > 1)
            return kit_fail(err, KIT_USAGE,
                            "--man and --bash-completion take no command and no other option");
        (option_given(o, OPT_help_man) ? manual_man : manual_bash_completion)();
        return KIT_OK;
    }
    if (o->operand_count > 1)
        return kit_fail(err, KIT_USAGE, "help shows one command at a time; leave out '%s'",
                        o->operand[1]);
    if (o->operand_count == 0) {
        help_overview();
        return KIT_OK;
    }
    command_id command = command_find(o->operand[0]);
    if (command != COMMAND_COUNT) {
        help_command(command);
        return KIT_OK;
    }
    for (command_id id = COMMAND_common + 1; id < COMMAND_COUNT; id++)
        names[count++] = command_of(id)->name;
    return kit_fail(err, KIT_USAGE, "no command '%s'%s", o->operand[0],
                    value_hint(hint, sizeof hint, o->operand[0], names, count));
}
