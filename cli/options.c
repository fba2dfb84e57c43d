/* Parses a command's arguments by the table of options.def. getopt_long scans them; the table gives
 * the valid values, and an error message about a value says which ones are valid. */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "value.h"

enum { NAME_MAX_LENGTH = 32, FIRST_CODE = 256 /* of the first long option */ };

static const command_spec commands[COMMAND_COUNT] = {
#define COMMAND(id, operands, summary, examples, notes)                                            \
    [COMMAND_##id] = {#id, operands, summary, examples, notes},
#include "options.def"
};

/* At first each row's name is the option's id, a C identifier. option_of() replaces it once, on
 * first use, by the name that users type, with - for _. */
static option_spec specs[OPTION_COUNT] = {
#define OPTION(command, id, letter, kind, argument, range, fallback, group, help)                  \
    [OPT_##command##_##id] = {COMMAND_##command, #id,   letter, OPTION_##kind, argument, range,    \
                              fallback,          group, help},
#include "options.def"
};

const command_spec *command_of(command_id id) { return &commands[id]; }

const option_spec *option_of(option_id id)
{
    static char names[OPTION_COUNT][NAME_MAX_LENGTH];
    option_spec *spec = &specs[id];
    if (!names[id][0]) {
        for (size_t i = 0; spec->name[i] && i + 1 < NAME_MAX_LENGTH; i++)
            names[id][i] = spec->name[i] == '_' ? '-' : spec->name[i];
        spec->name = names[id];
    }
    return spec;
}

bool option_belongs(option_id id, command_id command)
{
    const option_spec *spec = option_of(id);
    return spec->command == command || spec->command == COMMAND_common;
}

command_id command_find(const char *name)
{
    for (command_id id = COMMAND_common + 1; id < COMMAND_COUNT; id++)
        if (strcmp(commands[id].name, name) == 0)
            return id;
    return COMMAND_COUNT;
}

/* ----------------------------------------------------------------------------------- one value */

static int out_of_range(const option_spec *spec, const char *text, kit_error *err)
{
    char range[64];
    if (spec->kind == OPTION_REAL && spec->range[1] == '-')
        return kit_fail(err, KIT_USAGE, "--%s %s: must be a finite number", spec->name, text);
    value_range(range, sizeof range, spec->range, spec->argument);
    if (spec->kind == OPTION_REAL)
        return kit_fail(err, KIT_USAGE, "--%s %s: must be a number %s with %s", spec->name, text,
                        spec->argument, range);
    return kit_fail(err, KIT_USAGE, "--%s %s: must be an integer from %s", spec->name, text, range);
}

static int refuse_choice(const option_spec *spec, const char *text, kit_error *err)
{
    enum { CHOICES = 16, LENGTH = 24 };
    char list[128], hint[64], word[CHOICES][LENGTH];
    const char *words[CHOICES], *at;
    size_t count = 0;
    for (size_t length; count < CHOICES && (length = value_word(spec->range, (int)count, &at)) > 0;
         count++) {
        snprintf(word[count], LENGTH, "%.*s", (int)length, at);
        words[count] = word[count];
    }
    value_join(list, sizeof list, spec->range);
    return kit_fail(err, KIT_USAGE, "--%s %s: must be %s%s", spec->name, text, list,
                    value_hint(hint, sizeof hint, text, words, count));
}

static int check_value(const option_spec *spec, const char *text, kit_error *err)
{
    int64_t integer;
    uint64_t seed;
    double real;
    switch (spec->kind) {
    case OPTION_INTEGER:
        if (!value_integer(text, &integer) || !value_in_integers(integer, spec->range))
            return out_of_range(spec, text, err);
        break;
    case OPTION_SEED:
        if (!value_unsigned(text, &seed) || seed < strtoull(spec->range, NULL, 10))
            return out_of_range(spec, text, err);
        break;
    case OPTION_REAL:
        if (!value_real(text, &real) || !value_in_reals(real, spec->range))
            return out_of_range(spec, text, err);
        break;
    case OPTION_CHOICE:
        if (value_find(spec->range, text) < 0)
            return refuse_choice(spec, text, err);
        break;
    case OPTION_FILE:
    case OPTION_MANY_FILE:
        if (!*text)
            return kit_fail(err, KIT_USAGE, "--%s: the file name is empty", spec->name);
        break;
    case OPTION_FLAG:
    case OPTION_TEXT:
    case OPTION_MANY_TEXT: break;
    }
    return KIT_OK;
}

static int keep_value(options *o, option_id id, const char *text, kit_error *err)
{
    const option_spec *spec = option_of(id);
    bool many = spec->kind == OPTION_MANY_FILE || spec->kind == OPTION_MANY_TEXT;
    int code = check_value(spec, text ? text : "", err);
    if (code)
        return code;
    if (!many && spec->kind != OPTION_FLAG && option_given(o, id))
        return kit_fail(err, KIT_USAGE, "--%s is given twice", spec->name);
    o->value[o->count].id = id;
    o->value[o->count++].text = text;
    return KIT_OK;
}

/* ------------------------------------------------------------------------------------- scanning */

/* Describes the options of `command` for getopt_long: the table of long names, and the string of
 * letters. */
static void describe(command_id command, struct option *longs, char *letters)
{
    size_t n = 0;
    /* '-': operands are returned in their place, as code 1, even with POSIXLY_CORRECT */
    *letters++ = '-';
    *letters++ = ':'; /* a missing value is reported as ':', an unknown option as '?' */
    for (option_id id = 0; id < OPTION_COUNT; id++) {
        const option_spec *spec = option_of(id);
        if (spec->command != command && spec->command != COMMAND_common)
            continue;
        longs[n].name = spec->name;
        longs[n].has_arg = spec->kind == OPTION_FLAG ? no_argument : required_argument;
        longs[n].flag = NULL;
        longs[n++].val = FIRST_CODE + (int)id;
        if (spec->letter) {
            *letters++ = (char)spec->letter;
            if (spec->kind != OPTION_FLAG)
                *letters++ = ':';
        }
    }
    memset(&longs[n], 0, sizeof longs[n]);
    *letters = 0;
}

static int option_by_letter(command_id command, int letter)
{
    for (option_id id = 0; id < OPTION_COUNT; id++)
        if (option_belongs(id, command) && option_of(id)->letter == letter)
            return (int)id;
    return -1;
}

/* Writes the error message for an argument that getopt refused: an unknown name, an ambiguous
 * prefix, or a flag with "=value". */
static int refuse(const options *o, const char *typed, kit_error *err)
{
    const char *near[OPTION_COUNT];
    char hint[96], name[64], also[128] = "";
    size_t count = 0, length = strcspn(typed + 2, "="), begins = 0;
    if (length >= sizeof name)
        return kit_fail(err, KIT_USAGE, "unknown option '%.40s...'", typed);
    memcpy(name, typed + 2, length);
    name[length] = 0;
    for (option_id id = 0; id < OPTION_COUNT; id++) {
        const option_spec *spec = option_of(id);
        if (!option_belongs(id, o->command))
            continue;
        if (strcmp(spec->name, name) == 0)
            return kit_fail(err, KIT_USAGE, "--%s takes no value", name);
        if (length && strncmp(spec->name, name, length) == 0 && ++begins &&
            strlen(also) + strlen(spec->name) + 4 < sizeof also)
            strcat(strcat(also, " --"), spec->name);
        near[count++] = spec->name;
    }
    if (begins > 1)
        return kit_fail(err, KIT_USAGE, "--%s is ambiguous; write one of%s", name, also);
    const char *nearest = value_nearest(name, near, count);
    if (nearest)
        snprintf(hint, sizeof hint, "; did you mean '--%s'?", nearest);
    else
        snprintf(hint, sizeof hint, "; `attn help %s` lists the options",
                 command_of(o->command)->name);
    return kit_fail(err, KIT_USAGE, "unknown option '--%s'%s", name, hint);
}

static int missing(const options *o, int code, kit_error *err)
{
    int id = code >= FIRST_CODE ? code - FIRST_CODE : option_by_letter(o->command, code);
    const option_spec *spec = option_of((option_id)id);
    char list[128];
    if (spec->kind == OPTION_CHOICE) {
        value_join(list, sizeof list, spec->range);
        return kit_fail(err, KIT_USAGE, "--%s needs a value: %s", spec->name, list);
    }
    return kit_fail(err, KIT_USAGE, "--%s needs a value: --%s %s", spec->name, spec->name,
                    spec->argument);
}

static int scan(options *o, int argc, char **argv, kit_error *err)
{
    struct option longs[OPTION_COUNT + 1];
    char letters[2 * OPTION_COUNT + 3];
    describe(o->command, longs, letters);
    opterr = 0; /* this file writes the error messages */
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        int code = KIT_OK, id = c >= FIRST_CODE ? c - FIRST_CODE : option_by_letter(o->command, c);
        if (c == 1)
            o->operand[o->operand_count++] = optarg;
        else if (c == ':')
            code = missing(o, optopt, err);
        else if (c == '?' && optopt && optopt < FIRST_CODE)
            code =
                kit_fail(err, KIT_USAGE, "unknown option '-%c'; `attn help %s` lists the options",
                         optopt, command_of(o->command)->name);
        else if (c == '?')
            code = refuse(o, argv[optind - 1], err);
        else
            code = keep_value(o, (option_id)id, optarg, err);
        if (code || id == OPT_common_help)
            return code;
    }
    while (optind < argc)
        o->operand[o->operand_count++] = argv[optind++];
    return KIT_OK;
}

int options_parse(options *o, command_id command, int argc, char **argv, kit_error *err)
{
    memset(o, 0, sizeof *o);
    o->command = command;
    /* An argument gives at most one value: the only short flag is -h, which ends the parsing. */
    o->value = calloc((size_t)argc + 1, sizeof *o->value);
    o->operand = calloc((size_t)argc + 1, sizeof *o->operand);
    if (!o->value || !o->operand)
        return kit_fail(err, KIT_LIMIT, "out of memory");
    return scan(o, argc, argv, err);
}

void options_free(options *o)
{
    free(o->value);
    free(o->operand);
    memset(o, 0, sizeof *o);
}

/* ------------------------------------------------------------------------------------ accessors */

size_t option_count(const options *o, option_id id)
{
    size_t n = 0;
    for (size_t i = 0; i < o->count; i++)
        n += o->value[i].id == id;
    return n;
}

bool option_given(const options *o, option_id id) { return option_count(o, id) > 0; }

const char *option_at(const options *o, option_id id, size_t n)
{
    for (size_t i = 0; i < o->count; i++)
        if (o->value[i].id == id && n-- == 0)
            return o->value[i].text;
    return NULL;
}

const char *option_text(const options *o, option_id id)
{
    return option_given(o, id) ? option_at(o, id, 0) : option_of(id)->fallback;
}

int64_t option_integer(const options *o, option_id id)
{
    int64_t x = 0;
    const char *text = option_text(o, id);
    return text && value_integer(text, &x) ? x : 0;
}

uint64_t option_seed(const options *o, option_id id)
{
    uint64_t x = 0;
    const char *text = option_text(o, id);
    return text && value_unsigned(text, &x) ? x : 0;
}

double option_real(const options *o, option_id id)
{
    double x = 0;
    const char *text = option_text(o, id);
    return text && value_real(text, &x) ? x : 0;
}

int option_choice(const options *o, option_id id)
{
    const char *text = option_text(o, id);
    return text ? value_find(option_of(id)->range, text) : -1;
}
