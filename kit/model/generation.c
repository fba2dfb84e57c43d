/* Reads how the next token is chosen: from generation_config.json or, if there is none, from the
 * same keys of config.json, as in older models. An error for an unsupported option is kept until a
 * text is generated, because explain shows logits, which none of these options changes. */
#include <string.h>

#include "../io/json.h"
#include "inner.h"

/* Reads eos_token_id: a token or a list of them. */
static int read_ends(model_config *c, const json_t *top, const char *name, kit_error *err)
{
    const json_t *end = json_object_get(top, "eos_token_id");
    const size_t most = sizeof c->end / sizeof *c->end;
    c->ends = 0;
    if (!end || json_is_null(end))
        return KIT_OK;
    const size_t n = json_is_array(end) ? json_array_size(end) : 1;
    for (size_t i = 0; i < n && n <= most; i++) {
        const json_t *one = json_is_array(end) ? json_array_get(end, i) : end;
        if (!json_is_integer(one))
            break;
        c->end[c->ends++] = json_integer_value(one);
    }
    return c->ends == (int)n ? KIT_OK
                             : kit_fail(err, KIT_BAD_FILE,
                                        "%s: eos_token_id must be an id, or a list of at most "
                                        "%zu",
                                        name, most);
}

static int read_choice(model_generation *g, const json_t *top, const char *name, kit_error *err)
{
    bool drawn = false;
    int code = io_json_flag(&drawn, top, name, "do_sample", err);
    *g = (model_generation){.top_p = 1, .repetition_penalty = 1};
    if (code ||
        (code = io_json_real(&g->repetition_penalty, top, name, "repetition_penalty", 1e-6, 1e6,
                             err)) ||
        (code = io_json_integer(&g->no_repeat_ngram, top, name, "no_repeat_ngram_size", 0,
                                INT32_MAX, err)))
        return code;
    /* Files without sampling often have a temperature of 0, which is not read. top_k and top_p are
     * kept for a temperature that the caller gives. */
    g->temperature = drawn ? 1 : 0;
    g->top_k = drawn ? 50 : 0;
    if (drawn && (code = io_json_real(&g->temperature, top, name, "temperature", 1e-6, 1e6, err)))
        return code;
    code = io_json_integer(&g->top_k, top, name, "top_k", 0, 1 << 24, err);
    return code ? code : io_json_real(&g->top_p, top, name, "top_p", 0, 1, err);
}

int model_generation_read(model_config *c, const json_t *top, const char *name, bool fallback,
                          const model_options *options, kit_error *err)
{
    static const config_key *const tables[] = {model_generation_keys, NULL};
    key_check how = {.name = name, .options = options, .shared = fallback, .err = &c->no_text};
    c->no_text = c->no_drawn = (kit_error){0};
    if (!c->a->causal)
        return KIT_OK;
    if (!model_check_keys(top, tables, &how))
        read_choice(&c->generation, top, name, &c->no_text);
    how.drawn = true;
    how.err = &c->no_drawn;
    model_check_keys(top, tables, &how);
    return read_ends(c, top, name, err);
}

int model_generation_of(model_generation *g, const model *m, bool given, bool drawn, kit_error *err)
{
    const model_config *c = &m->config;
    const bool draws = given ? drawn : c->generation.temperature > 0;
    const kit_error *why = draws && !c->no_text.code ? &c->no_drawn : &c->no_text;
    *g = c->generation;
    return why->code ? kit_fail(err, why->code, "%s", why->message) : KIT_OK;
}
