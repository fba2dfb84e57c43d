/* attn lesson: the notebooks, one recipe each, shown or checked. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../kit/explain/lessons/lessons.h"
#include "command.h"
#include "lesson_walk.h"
#include "terminal.h"
#include "value.h"
#include "view.h"

/* One line for each lesson, in the order in which they are taken. */
static int list_lessons(kit_error *err)
{
    int width = terminal_find_width(), code = KIT_OK;
    puts("A path through self-attention, from three words to a trained model:\n");
    for (const explain_lesson *l = explain_lessons; l->name && !code; l++) {
        script s;
        code = lesson_script(l, &s, err);
        if (code)
            return code;
        size_t stopped = lesson_place(l->name);
        printf("  %-8s ", l->name), terminal_wrap(width, s.summary, 11, 11);
        printf("%11s%s%s", "", s.time, stopped ? "" : "\n");
        if (stopped)
            printf("; you stopped at step %zu\n", stopped);
        script_free(&s);
    }
    printf("  %-8s ", "train"),
        terminal_wrap(width, "then watch small models learn: attn train --help", 11, 11);
    puts("");
    terminal_wrap(
        width,
        "Begin with: attn lesson sky. `attn lesson --glossary` explains every term; `attn lesson "
        "--all --check` compares every number with the notebooks.",
        0, 0);
    return KIT_OK;
}

static int show_glossary(kit_error *err)
{
    script s;
    int code = lesson_glossary(&s, err);
    if (code)
        return code;
    for (size_t i = 0; i < s.term.count; i++)
        terminal_wrap(terminal_find_width(), s.term.line[i], 0, 4);
    script_free(&s);
    return KIT_OK;
}

static int unknown_lesson(const char *name, kit_error *err)
{
    enum { LIMIT = 32 };
    const char *names[LIMIT];
    char hint[64], list[256] = "";
    size_t count = 0;
    for (const explain_lesson *l = explain_lessons; l->name && count < LIMIT; l++) {
        names[count++] = l->name;
        if (strlen(list) + strlen(l->name) + 2 < sizeof list)
            strcat(strcat(list, count > 1 ? " " : ""), l->name);
    }
    return kit_fail(err, KIT_USAGE, "no lesson '%s'%s (%s)", name,
                    value_hint(hint, sizeof hint, name, names, count), list);
}

static int check_one(const explain_lesson *l, const trace *t, bool *failed, kit_error *err)
{
    kit_error difference = {0};
    printf("%s (%s)\n", l->name, l->notebook);
    int code = lesson_check(t, stdout, &difference);
    if (code && !*failed)
        *err = difference; /* stderr shows the first difference */
    *failed = *failed || code;
    return code == KIT_CHECK_FAILED ? KIT_OK : code;
}

/* Whether the lesson goes step by step: a person reads it on a terminal. */
static bool wants_walk(const options *o, const view *v)
{
    return !v->json && !v->quiz && !v->full && !v->files.output_count &&
           !option_given(o, OPT_lesson_all) && !option_given(o, OPT_lesson_all_steps) &&
           o->operand_count == 1 && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

static int one_lesson(const options *o, const explain_lesson *l, view *v, bool *failed,
                      kit_error *err)
{
    trace t = {0};
    attn_context *ctx = NULL;
    const char *query = option_text(o, OPT_lesson_query);
    int code = engine_context(&ctx, NULL, 1, err);
    if (!code)
        code = lesson_build(l, option_given(o, OPT_lesson_gradients), &t, ctx, err);
    attn_context_destroy(ctx);
    if (!code && query)
        code = trace_set_query(&t, query, err);
    if (!code && option_given(o, OPT_lesson_check))
        code = check_one(l, &t, failed, err);
    else if (!code && wants_walk(o, v))
        code = lesson_walk(&t, &v->text, err);
    else if (!code)
        code = view_show(v, &t, err);
    trace_free(&t);
    return code;
}

static int check_gradients(const options *o, size_t lessons, kit_error *err)
{
    for (size_t i = 0; i < o->operand_count; i++)
        if (!lesson_find(o->operand[i])->gradients)
            return kit_fail(err, KIT_USAGE,
                            "--gradients: lesson %s has no gradients; only sky has them",
                            o->operand[i]);
    if (o->operand_count == 0)
        return kit_fail(
            err, KIT_USAGE,
            lessons ? "--gradients does not go with --all; only the lesson sky has gradients"
                    : "--gradients needs a lesson's name: attn lesson sky --gradients");
    return KIT_OK;
}

/* Refuses options that exclude each other. */
static int check_agreement(const options *o, size_t lessons, kit_error *err)
{
    static const option_id alone[] = {OPT_lesson_json, OPT_lesson_output, OPT_lesson_quiz,
                                      OPT_lesson_query};
    bool check = option_given(o, OPT_lesson_check);
    if (option_given(o, OPT_lesson_all) && o->operand_count)
        return kit_fail(err, KIT_USAGE,
                        "--all and the lesson name '%s' exclude each other; leave one out",
                        o->operand[0]);
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        const char *name = option_of(alone[i])->name;
        if (option_given(o, alone[i]) && lessons != 1)
            return kit_fail(err, KIT_USAGE, "--%s needs exactly one lesson's name", name);
        if (option_given(o, alone[i]) && check)
            return kit_fail(err, KIT_USAGE, "--%s does not go with --check", name);
    }
    if (check && option_given(o, OPT_lesson_full))
        return kit_fail(err, KIT_USAGE, "--full does not go with --check");
    if (option_given(o, OPT_lesson_gradients))
        return check_gradients(o, lessons, err);
    if (option_given(o, OPT_lesson_glossary) && lessons)
        return kit_fail(err, KIT_USAGE, "--glossary takes no lesson's name; it has all terms");
    if (check && lessons == 0)
        return kit_fail(err, KIT_USAGE, "--check needs a lesson's name, or --all");
    return KIT_OK;
}

static int each_lesson(const options *o, view *v, size_t lessons, kit_error *err)
{
    bool failed = false, all = option_given(o, OPT_lesson_all);
    int code = KIT_OK;
    for (size_t i = 0; i < lessons && !code; i++) {
        const explain_lesson *l = all ? &explain_lessons[i] : lesson_find(o->operand[i]);
        if (i)
            putchar('\n');
        code = one_lesson(o, l, v, &failed, err);
    }
    return code ? code : failed ? KIT_CHECK_FAILED : KIT_OK;
}

int command_lesson(const options *o, kit_error *err)
{
    static const render_code codes[] = {RENDER_C, RENDER_NUMPY, RENDER_TORCH, RENDER_NO_CODE,
                                        RENDER_ALL_CODE};
    static const view_options ids = {OPT_lesson_json, OPT_lesson_full, OPT_lesson_quiz,
                                     OPT_lesson_output};
    view v = {0};
    size_t lessons = o->operand_count;
    for (size_t i = 0; i < o->operand_count; i++)
        if (!lesson_find(o->operand[i]))
            return unknown_lesson(o->operand[i], err);
    for (const explain_lesson *l = explain_lessons; option_given(o, OPT_lesson_all) && l->name; l++)
        lessons++;
    int code = check_agreement(o, lessons, err);
    if (code)
        return code;
    if (option_given(o, OPT_lesson_glossary))
        return show_glossary(err);
    if (lessons == 0 && option_given(o, OPT_lesson_full))
        return kit_fail(err, KIT_USAGE, "--full needs a lesson's name, or --all");
    if (lessons == 0) {
        return list_lessons(err);
    }
    code = view_begin(&v, o, &ids, err);
    v.quiz_seed = 1;
    v.text.code = codes[option_choice(o, OPT_lesson_code)];
    if (!code)
        code = each_lesson(o, &v, lessons, err);
    view_end(&v);
    return code;
}
