/* The man page and the bash completion, made from the table. The build runs `attn help --man` and
 * `attn help --bash-completion` and installs their output. */
#include <stdio.h>
#include <string.h>

#include "../kit/explain/lessons/lessons.h"
#include "command.h"
#include "value.h"

/* Prints text escaped for troff, in which -, \ and a leading . or ' have special meanings. */
static void troff(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text; text++)
        if (*text == '-' || *text == '\\')
            fputs(*text == '-' ? "\\-" : "\\e", stdout);
        else
            putchar(*text);
}

static void troff_lines(const char *lines)
{
    while (*lines) {
        char line[160];
        size_t length = strcspn(lines, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, lines);
        troff(line);
        putchar('\n');
        lines += length + (lines[length] == '\n');
    }
}

static void man_option(const option_spec *spec)
{
    char words[128] = "";
    fputs(".TP\n\\fB", stdout);
    if (spec->letter)
        printf("\\-%c\\fR, \\fB", spec->letter);
    fputs("\\-\\-", stdout);
    troff(spec->name);
    fputs("\\fR", stdout);
    if (*spec->argument) {
        fputs(" \\fI", stdout);
        troff(spec->argument);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    troff(spec->help);
    if (spec->kind == OPTION_CHOICE)
        value_join(words, sizeof words, spec->range);
    else if (*spec->range && spec->kind != OPTION_TEXT && spec->range[1] != '-')
        value_range(words, sizeof words, spec->range, spec->argument);
    if (*words) {
        fputs(spec->kind == OPTION_CHOICE ? " One of " : " Range: ", stdout);
        troff(words);
        putchar('.');
    }
    if (spec->fallback) {
        fputs(" Default: ", stdout);
        troff(spec->fallback);
        putchar('.');
    }
    putchar('\n');
}

static void man_command(command_id command)
{
    const command_spec *c = command_of(command);
    printf(".SS attn %s \\fI", c->name);
    troff(c->operands);
    puts("\\fR");
    putchar((unsigned char)(c->summary[0] & ~0x20)); /* capital letter */
    troff(c->summary + 1);
    puts(".");
    if (*c->notes) {
        puts(".PP");
        troff(c->notes);
        putchar('\n');
    }
    for (option_id id = 0; id < OPTION_COUNT; id++)
        if (option_of(id)->command == command && *option_of(id)->group)
            man_option(option_of(id));
    puts(".PP\n.nf");
    troff_lines(c->examples);
    puts(".fi");
}

void manual_man(void)
{
    printf(".TH ATTN 1 \"\" \"libattn %s\" \"User Commands\"\n", attn_version());
    puts(".SH NAME\nattn \\- self\\-attention computed, explained and measured\n"
         ".SH SYNOPSIS\n.B attn\n.I COMMAND\n[options]\n.SH DESCRIPTION\n"
         "Results go to standard output or to the named files. Each message is one line on "
         "standard error. Options may come in any order. An option's name may be shortened as long "
         "as no other option begins the same way. \"\\-\" means standard input or output. Output "
         "files are written under temporary names and renamed after all of them are complete. An "
         "output never replaces an input file.\n.SH COMMANDS");
    for (command_id id = COMMAND_common + 1; id < COMMAND_COUNT; id++)
        man_command(id);
    puts(".SS Options of every command");
    for (option_id id = 0; id < OPTION_COUNT; id++)
        if (option_of(id)->command == COMMAND_common)
            man_option(option_of(id));
    puts(".TP\n\\fB\\-\\-version\\fR\nWithout a command: print the version.\n"
         ".SH EXIT STATUS\n"
         ".TP\n0\nSuccess.\n"
         ".TP\n1\nA comparison failed (check, lesson \\-\\-check), or an answer is wrong or "
         "missing (quiz \\-\\-grade).\n"
         ".TP\n2\nWrong usage.\n.TP\n3\nA bad input file.\n"
         ".TP\n4\nOut of memory, a limit exceeded, an output that could not be written, or a "
         "process of a job (run \\-\\-mpi) that is missing.\n"
         ".TP\n5\nA result has NaN or Inf although every input is finite. The results were "
         "written.\n"
         ".TP\n130\nInterrupted.\n.TP\n141\nStandard output was closed (SIGPIPE).\n"
         ".SH LIMITS\nattn needs 128 KiB of stack. If the limit (ulimit \\-s) is lower, it ends "
         "with exit code 4.\n"
         ".SH ENVIRONMENT\n"
         ".TP\nATTN_NUM_THREADS\nNumber of threads, unless \\-\\-threads is given.\n"
         ".TP\nATTN_ISA\nInstruction set, unless \\-\\-isa is given.\n"
         ".TP\nATTN_AMX\n0: the matrix unit (instruction set amx) is not used, and Linux is not "
         "asked for permission to use it.\n"
         ".TP\nNO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, COLORTERM, TERM\n"
         "Whether the output is coloured (unless \\-\\-color is always or never), and with how "
         "many colours.\n"
         ".TP\nCOLUMNS\nWidth of the output, if standard output is not a terminal.");
}

/* ------------------------------------------------------------------------------ bash completion */

static const char *owner(const option_spec *spec)
{
    return spec->command == COMMAND_common ? "*" : command_of(spec->command)->name;
}

static void completion_choices(const option_spec *spec)
{
    const char *word;
    size_t length;
    printf("    %s:--%s) words='", owner(spec), spec->name);
    for (int n = 0; (length = value_word(spec->range, n, &word)) > 0; n++)
        printf("%s%.*s", n ? " " : "", (int)length, word);
    puts("' ;;");
}

static void completion_isas(const option_spec *spec)
{
    printf("    %s:--isa) words='", owner(spec));
    for (int i = 0; attn_isa(i).name; i++)
        printf("%s%s", i ? " " : "", attn_isa(i).name);
    puts("' ;;");
}

static bool takes_file(const option_spec *spec)
{
    return spec->kind == OPTION_FILE || spec->kind == OPTION_MANY_FILE;
}

/* Lists what may follow an option that takes a value: its choices, a file, or nothing. */
static void completion_values(void)
{
    puts("    case \"$command:$before\" in");
    for (option_id id = 0; id < OPTION_COUNT; id++) {
        const option_spec *spec = option_of(id);
        if (spec->kind == OPTION_FLAG)
            continue;
        if (strcmp(spec->name, "isa") == 0)
            completion_isas(spec);
        else if (spec->kind == OPTION_CHOICE || (spec->kind == OPTION_TEXT && *spec->range))
            completion_choices(spec);
        else if (takes_file(spec) && spec->letter)
            printf("    %s:--%s|%s:-%c) files=1 ;;\n", owner(spec), spec->name, owner(spec),
                   spec->letter);
        else if (takes_file(spec))
            printf("    %s:--%s) files=1 ;;\n", owner(spec), spec->name);
        else
            printf("    %s:--%s) return ;;\n", owner(spec), spec->name);
    }
    puts("    *) other=1 ;;\n    esac");
}

static void completion_options(void)
{
    puts("    case \"$command\" in");
    for (command_id command = COMMAND_common + 1; command < COMMAND_COUNT; command++) {
        printf("    %s) words='", command_of(command)->name);
        bool first = true;
        for (option_id id = 0; id < OPTION_COUNT; id++)
            if (option_belongs(id, command) && *option_of(id)->group) {
                printf("%s--%s", first ? "" : " ", option_of(id)->name);
                first = false;
            }
        puts("' ;;");
    }
    puts("    esac");
}

static void completion_commands(void)
{
    for (command_id command = COMMAND_common + 1; command < COMMAND_COUNT; command++)
        printf("%s%s", command > 1 ? " " : "", command_of(command)->name);
}

void manual_bash_completion(void)
{
    fputs("# bash completion for attn, made by `attn help --bash-completion`\n"
          "_attn()\n{\n"
          "    local current=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
          "    local command=\"${COMP_WORDS[1]}\" words='' files='' other=''\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W '",
          stdout);
    completion_commands();
    puts(" --help --version' -- \"$current\")\n        return\n    fi");
    completion_values();
    puts("    if [ -n \"$other\" ]; then\n    case \"$current\" in\n    -*)");
    completion_options();
    fputs("    ;;\n    *)\n    case \"$command\" in\n    info) files=1 ;;\n    help) words='",
          stdout);
    completion_commands();
    fputs("' ;;\n    lesson) words='", stdout);
    for (const explain_lesson *l = explain_lessons; l->name; l++)
        printf("%s%s", l == explain_lessons ? "" : " ", l->name);
    fputs("' ;;\n    esac\n    ;;\n"
          "    esac\n    fi\n"
          "    if [ -n \"$files\" ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
          "    else\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
          "    fi\n"
          "}\n"
          "complete -o filenames -F _attn attn\n",
          stdout);
}
