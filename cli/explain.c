/* attn explain: explains a sentence step by step. The recipe in kit/explain computes the steps;
 * view.c shows them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../kit/explain/explain.h"
#include "../kit/explain/lessons/lessons.h"
#include "../kit/explain/lessons/model_story.h"
#include "command.h"
#include "explain_find.h"
#include "lesson_walk.h"
#include "value.h"
#include "view.h"

enum { TEXT_LIMIT = 1 << 20 /* bytes of standard input */ };

static char *find_text(const options *o, kit_error *err)
{
    bool standard = o->operand_count == 1 && strcmp(o->operand[0], "-") == 0;
    if (o->operand_count == 0) {
        kit_fail(err, KIT_USAGE,
                 "a sentence is missing: attn explain \"Life is short, eat dessert last\"");
        return NULL;
    }
    if (standard && option_given(o, OPT_explain_quiz)) {
        kit_fail(err, KIT_USAGE,
                 "--quiz reads answers from standard input, so the text cannot be '-'");
        return NULL;
    }
    return standard ? command_read_text(stdin, "standard input", TEXT_LIMIT, err)
                    : command_join_operands(o, err);
}

/* Refuses options of random weights together with a model, and options of a model without one. */
static int check_model_options(const options *o, kit_error *err)
{
    static const option_id random[] = {OPT_explain_seed,     OPT_explain_embed, OPT_explain_qk,
                                       OPT_explain_v,        OPT_explain_heads, OPT_explain_causal,
                                       OPT_explain_no_scale, OPT_explain_scale};
    static const option_id real[] = {OPT_explain_layer, OPT_explain_head, OPT_explain_text_pair,
                                     OPT_explain_find, OPT_explain_ignore_unknown};
    const bool given = option_given(o, OPT_explain_model);
    const option_id *wrong = given ? random : real;
    const size_t count = given ? sizeof random / sizeof *random : sizeof real / sizeof *real;
    for (size_t i = 0; i < count; i++)
        if (option_given(o, wrong[i]))
            return kit_fail(err, KIT_USAGE,
                            given
                                ? "--%s does not go with --model, whose files set it; leave it out"
                                : "--%s needs --model DIR",
                            option_of(wrong[i])->name);
    return KIT_OK;
}

/* --steps prints words on the terminal, and only a sentence with random weights has them. */
static int check_steps(const options *o, kit_error *err)
{
    static const option_id others[] = {OPT_explain_model, OPT_explain_json, OPT_explain_quiz,
                                       OPT_explain_output};
    if (!option_given(o, OPT_explain_steps))
        return option_given(o, OPT_explain_code)
                   ? kit_fail(err, KIT_USAGE, "--code needs --steps, which explains each step")
                   : KIT_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (option_given(o, others[i]))
            return kit_fail(err, KIT_USAGE, "--steps does not go with --%s; leave one out",
                            option_of(others[i])->name);
    return KIT_OK;
}

static int check_options_agree(const options *o, kit_error *err)
{
    if (explain_find_check(o, err) || check_model_options(o, err) || check_steps(o, err))
        return KIT_USAGE;
    if (option_given(o, OPT_explain_scale) && option_given(o, OPT_explain_no_scale))
        return kit_fail(err, KIT_USAGE, "--scale and --no-scale exclude each other");
    if (option_given(o, OPT_explain_scale) && option_real(o, OPT_explain_scale) == 0)
        return kit_fail(err, KIT_USAGE, "--scale %s: must not be 0; leave it out for 1/sqrt(qk)",
                        option_text(o, OPT_explain_scale));
    return KIT_OK;
}

/* Whether one of the output files is a page. */
static bool page_wanted(const options *o)
{
    const char *path;
    for (size_t i = 0; (path = option_at(o, OPT_explain_output, i)) != NULL; i++)
        if (render_by_suffix(path, NULL) == render_html)
            return true;
    return false;
}

/* Reads "all", which becomes 0, or a number from 1. */
static int read_number(int64_t *number, const options *o, option_id id, kit_error *err)
{
    const char *text = option_text(o, id);
    *number = 0;
    if (strcmp(text, "all") != 0 && (!value_integer(text, number) || *number < 1))
        return kit_fail(err, KIT_USAGE, "--%s %s: must be all, or a number from 1",
                        option_of(id)->name, text);
    return KIT_OK;
}

static int read_model_options(explain_model_options *e, const options *o, kit_error *err)
{
    const bool page = page_wanted(o);
    int code = read_number(&e->layer, o, OPT_explain_layer, err);
    if (!code)
        code = read_number(&e->head, o, OPT_explain_head, err);
    if (code)
        return code;
    e->all = e->layer == 0;
    if (e->all && !page)
        return kit_fail(
            err, KIT_USAGE,
            "--layer all is for pages only; add -o FILE.html, or choose one layer with --layer N");
    e->others = e->all ? INT64_MAX : page && e->head == 0 ? EXPLAIN_MODEL_FEW : 0;
    e->layer += e->all;
    return KIT_OK;
}

/* Explains with a model's weights. */
static int explain_real(trace *t, const options *o, const char *text, kit_error *err)
{
    explain_model_options e = {.text = text,
                               .pair = option_text(o, OPT_explain_text_pair),
                               .query = option_text(o, OPT_explain_query)};
    attn_context *ctx = NULL;
    model *m = NULL;
    int code = read_model_options(&e, o, err);
    if (!code)
        code = engine_context(&ctx, NULL, 0, err);
    if (!code)
        code = model_open_with(&m, option_text(o, OPT_explain_model),
                               &(model_options){option_given(o, OPT_explain_ignore_unknown),
                                                engine_ignored},
                               ctx, err);
    if (!code && !(code = lesson_model(t, &e, m, err)))
        engine_tell_ignored();
    model_close(m);
    attn_context_destroy(ctx);
    return code;
}

/* Scores heads, with --find. */
static int find_heads(const options *o, kit_error *err)
{
    const bool file = option_given(o, OPT_explain_sentences);
    char *text = file ? NULL : find_text(o, err);
    const int code = text || file ? explain_find(o, text, err) : err->code;
    free(text);
    return code;
}

/* With random weights. */
static int explain_random(trace *t, const explain_options *e, kit_error *err)
{
    attn_context *ctx = NULL;
    int code = engine_context(&ctx, NULL, 1, err);
    if (!code)
        code = lesson_explain(t, e, ctx, err);
    attn_context_destroy(ctx);
    return code;
}

int command_explain(const options *o, kit_error *err)
{
    static const view_options ids = {OPT_explain_json, OPT_explain_full, OPT_explain_quiz,
                                     OPT_explain_output};
    explain_options e = EXPLAIN_OPTIONS_INIT;
    view v = {0};
    trace t = {0};
    char *text = NULL;
    int code = KIT_OK;
    e.seed = option_seed(o, OPT_explain_seed);
    e.embed = option_integer(o, OPT_explain_embed);
    e.qk = option_integer(o, OPT_explain_qk);
    e.v = option_integer(o, OPT_explain_v);
    e.heads = option_integer(o, OPT_explain_heads);
    e.causal = option_given(o, OPT_explain_causal);
    e.no_scale = option_given(o, OPT_explain_no_scale);
    e.scale = option_real(o, OPT_explain_scale);
    e.query = option_text(o, OPT_explain_query);
    if (!(code = check_options_agree(o, err)) && option_given(o, OPT_explain_find))
        return find_heads(o, err);
    if (!code && !(code = view_begin(&v, o, &ids, err))) {
        v.quiz_seed = e.seed;
        e.text = text = find_text(o, err);
        if (!text)
            code = err->code;
        else
            code = option_given(o, OPT_explain_model) ? explain_real(&t, o, text, err)
                                                      : explain_random(&t, &e, err);
    }
    v.text.steps = option_given(o, OPT_explain_steps);
    v.text.code = (render_code)option_choice(o, OPT_explain_code);
    if (!code && v.text.steps && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
        code = lesson_walk(&t, &v.text, err);
    else if (!code)
        code = view_show(&v, &t, err);
    trace_free(&t);
    view_end(&v);
    free(text);
    return code;
}
