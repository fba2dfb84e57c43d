/* What several commands ask of the engine, with errors worded for someone who typed them. */
#include <string.h>

#include "command.h"
#include "value.h"

enum { ISA_LIMIT = 16 };

int engine_failed(const attn_error *engine, kit_error *err)
{
    int code = KIT_USAGE;
    if (engine->status == ATTN_ERR_MEMORY || engine->status == ATTN_ERR_LIMIT)
        code = KIT_LIMIT;
    else if (engine->status == ATTN_ERR_SHAPE || engine->status == ATTN_ERR_DTYPE)
        code = KIT_BAD_FILE;
    return kit_fail(err, code, "%s", engine->message);
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
            return info.usable ? KIT_OK
                               : kit_fail(err, KIT_USAGE, "--isa %s: this machine lacks it", isa);
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
    if (attn_context_create(&wanted, out, &engine))
        return engine_failed(&engine, err);
    return KIT_OK;
}

int engine_parse_causal(attn_sdpa_args *args, const char *text, bool none, kit_error *err)
{
    static const char range[] = "-1000000000000..1000000000000"; /* no sum of these overflows */
    const char *words = none ? "top-left|bottom-right|none" : "top-left|bottom-right";
    const attn_causal causal[] = {ATTN_CAUSAL_TOP_LEFT, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_CAUSAL_NONE};
    int word = text ? value_find(words, text) : 2;
    if (word >= 0) {
        args->causal = causal[word];
        return KIT_OK;
    }
    args->causal = ATTN_CAUSAL_OFFSET;
    if (!value_integer(text, &args->causal_offset) ||
        !value_in_integers(args->causal_offset, range))
        return kit_fail(err, KIT_USAGE,
                        "--causal %s: must be %stop-left, bottom-right or an integer", text,
                        none ? "none, " : "");
    return KIT_OK;
}
