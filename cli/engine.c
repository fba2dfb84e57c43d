/* Calls of libattn that several commands need, with errors worded for the person at the
 * terminal. */
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "value.h"

enum { ISA_LIMIT = 16 };

/* Stored until the command has succeeded: a command that fails prints only one line. */
static kit_error ignored[16];
static size_t ignored_count;

void engine_ignored(const char *file, const char *what)
{
    if (ignored_count++ < sizeof ignored / sizeof *ignored)
        kit_fail(&ignored[ignored_count - 1], KIT_OK,
                 "%.200s: '%.80s' is not known to attn and is ignored", file, what);
}

void engine_tell_ignored(void)
{
    const size_t most = sizeof ignored / sizeof *ignored;
    for (size_t i = 0; i < ignored_count && i < most; i++)
        fprintf(stderr, "attn: %s\n", ignored[i].message);
    if (ignored_count > most)
        fprintf(stderr, "attn: and %zu more\n", ignored_count - most);
}

int engine_check_isa(const char *isa, kit_error *err)
{
    const char *names[ISA_LIMIT];
    char list[160] = "", hint[64];
    size_t count = 0;
    if (!isa)
        return KIT_OK;
    for (attn_isa_info info; count < ISA_LIMIT && (info = attn_isa((int)count)).name; count++) {
        if (strcmp(info.name, isa) == 0)
            return info.usable
                       ? KIT_OK
                       : kit_fail(
                             err, KIT_USAGE,
                             "--isa %s: not usable on this machine; `attn info` lists those that "
                             "are",
                             isa);
        names[count] = info.name;
        if (strlen(list) + strlen(info.name) + 2 < sizeof list)
            strcat(strcat(list, count ? " " : ""), info.name);
    }
    return kit_fail(err, KIT_USAGE, "--isa: no instruction set '%s'%s (%s)", isa,
                    value_hint(hint, sizeof hint, isa, names, count), list);
}

int engine_context(attn_context **out, const char *isa, int threads, kit_error *err)
{
    attn_context_options wanted = ATTN_CONTEXT_OPTIONS_INIT;
    attn_error engine = {0};
    int code = engine_check_isa(isa, err);
    if (code)
        return code;
    wanted.isa = isa;
    wanted.threads = threads;
    return kit_engine(attn_context_create(&wanted, out, &engine), &engine, err);
}

/* Parses a word or an integer. *place is the word's index in words, negative for an integer. */
static int parse_place(int *place, int64_t *offset, const char *option, const char *words,
                       const char *text, kit_error *err)
{
    static const char range[] = "-1000000000000..1000000000000"; /* sums of these cannot overflow */
    *place = value_find(words, text);
    if (*place >= 0 || (value_integer(text, offset) && value_in_integers(*offset, range)))
        return KIT_OK;
    return kit_fail(err, KIT_USAGE,
                    "%s %s: must be %stop-left, bottom-right or an integer from -10^12 to 10^12",
                    option, text, strstr(words, "none") ? "none, " : "");
}

int engine_parse_causal(attn_sdpa_args *args, const char *text, bool none, kit_error *err)
{
    static const attn_causal causal[] = {ATTN_CAUSAL_OFFSET, ATTN_CAUSAL_TOP_LEFT,
                                         ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_CAUSAL_NONE};
    int place;
    if (!text)
        return KIT_OK;
    const int code =
        parse_place(&place, &args->causal_offset, "--causal",
                    none ? "top-left|bottom-right|none" : "top-left|bottom-right", text, err);
    if (!code)
        args->causal = causal[place + 1];
    return code;
}

int engine_parse_diagonal(attn_sdpa_args *args, const char *text, kit_error *err)
{
    static const attn_diagonal diagonal[] = {ATTN_DIAGONAL_OFFSET, ATTN_DIAGONAL_TOP_LEFT,
                                             ATTN_DIAGONAL_BOTTOM_RIGHT};
    int place;
    if (!text)
        return KIT_OK;
    const int code =
        parse_place(&place, &args->causal_offset, "--diagonal", "top-left|bottom-right", text, err);
    if (!code)
        args->diagonal = diagonal[place + 1];
    return code;
}
