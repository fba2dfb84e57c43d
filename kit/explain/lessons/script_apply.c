/* Gives a trace the words of its script: finds the step of each part and fills in the quoted
 * numbers; see script_read.h. */
#include <stdlib.h>
#include <string.h>

#include "script_read.h"

/* Removes the empty lines and the spaces too many that choices leave behind. Prose has no others.
 */
static void tidy(char *text)
{
    char *to = text;
    for (const char *c = text; *c != '\0'; c++) {
        const bool fresh = to == text || to[-1] == '\n';
        if ((*c == ' ' && (fresh || to[-1] == ' ')) || (*c == '\n' && fresh)) {
            continue;
        }
        to -= *c == '\n' && to[-1] == ' ';
        *to++ = *c;
    }
    while (to > text && (to[-1] == ' ' || to[-1] == '\n')) {
        to--;
    }
    *to = '\0';
}

/* Replaces a text by the same with its quotations filled in; NULL if nothing is left of it. */
static int fill(const script *s, int line, char **text, const trace *t, bool code, kit_error *err)
{
    kit_error why = {0};
    if (*text == NULL) {
        return KIT_OK;
    }
    char *quoted = (code ? script_quote_code : script_quote)(t, *text, &why);
    if (quoted == NULL) {
        return kit_fail(err, why.code, "%s.lesson, %s %d: %s", s->name,
                        line > 0 ? "step of line" : "question", line > 0 ? line : -line,
                        why.message);
    }
    free(*text);
    if (!code) {
        tidy(quoted);
    }
    *text = *quoted != '\0' ? quoted : NULL;
    if (*text == NULL) {
        free(quoted);
    }
    return KIT_OK;
}

/* Whether the script accompanies the trace and names none of its steps. */
static bool names_no_step(const script *s)
{
    size_t own = 0;
    for (size_t i = 0; i < s->count; i++) {
        own += s->part[i].name[0] == '@';
    }
    return own > 0 && own == s->count;
}

static int find_steps(script *s, const trace *t, kit_error *err)
{
    size_t next = 0;
    if (names_no_step(s)) {
        return KIT_OK;
    }
    for (size_t i = 0; i < s->count; i++) {
        script_part *part = &s->part[i];
        while (next < t->count && t->step[next].check_only) {
            next++;
        }
        if (part->name[0] == '@') {
            continue;
        }
        if (next < t->count && strcmp(t->step[next].name, part->name) == 0) {
            part->step = (int64_t)next++;
        } else if (!part->optional) {
            return kit_fail(err, KIT_BAD_FILE,
                            "%s.lesson, line %d: step %s; the next step of the lesson is %s",
                            s->name, part->line, part->name,
                            next < t->count ? t->step[next].name : "none");
        }
    }
    while (next < t->count && t->step[next].check_only) {
        next++;
    }
    return next == t->count ? KIT_OK
                            : kit_fail(err, KIT_BAD_FILE, "%s.lesson: step %s is missing", s->name,
                                       t->step[next].name);
}

/* Whether a step of the part's section is in the trace. */
static bool section_is_there(const script *s, const script_part *part)
{
    for (size_t j = 0; j < s->count; j++) {
        const char *other = s->part[j].section;
        if (s->part[j].step >= 0 && part->section != NULL && other != NULL &&
            strcmp(part->section, other) == 0) {
            return true;
        }
    }
    return false;
}

static void remove_left_out(script *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (s->part[i].left_out) {
            script_free_part(&s->part[i]);
        } else {
            s->part[kept++] = s->part[i];
        }
    }
    s->count = kept;
}

/* Removes the parts whose condition does not hold. */
static void drop_conditional(script *s, const trace *t)
{
    for (size_t i = 0; i < s->count; i++) {
        const char *when = s->part[i].when;
        s->part[i].left_out = when != NULL && !script_holds(t, when, strlen(when));
    }
    remove_left_out(s);
}

/* Removes the parts of optional sections whose steps this trace does not have. */
static void drop_optional(script *s)
{
    for (size_t i = 0; i < s->count; i++) {
        s->part[i].left_out = s->part[i].optional && !section_is_there(s, &s->part[i]);
    }
    remove_left_out(s);
}

/* Replaces *slot by the first line of `text`; an absent text leaves it empty. */
static int set_line(char **slot, const char *text, kit_error *err)
{
    char *line = text != NULL ? strndup(text, strcspn(text, "\n")) : NULL;
    if (text != NULL && line == NULL) {
        return kit_fail(err, KIT_LIMIT, "no memory");
    }
    free(*slot);
    *slot = line;
    return KIT_OK;
}

/* Pages, pictures and JSON show these. */
static int name_step(const script_part *part, trace_step *step, kit_error *err)
{
    const char *meaning = part->text[SCRIPT_MEANING];
    int code = set_line(&step->title, part->text[SCRIPT_TITLE], err);
    code = code ? code : set_line(&step->formula, part->text[SCRIPT_FORMULA], err);
    code = code ? code : set_line(&step->section, part->section, err);
    return code ? code
                : set_line(&step->sentence, meaning != NULL ? meaning : part->text[SCRIPT_IDEA],
                           err);
}

static int fill_part(const script *s, script_part *part, trace *t, kit_error *err)
{
    int code = KIT_OK;
    for (int text = 0; text < SCRIPT_C && code == KIT_OK; text++) {
        code = fill(s, part->line, &part->text[text], t, text >= SCRIPT_NOTEBOOK, err);
    }
    return code != KIT_OK || part->step < 0 ? code : name_step(part, &t->step[part->step], err);
}

/* Moves question `from` to place `to`, which is free or its own. */
static void keep_question(script *s, size_t to, size_t from)
{
    script_list *const lists[] = {&s->question, &s->answer, &s->choices, &s->see};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        lists[i]->line[to] = lists[i]->line[from];
    }
}

/* A question of which nothing is left is removed with its answer. */
static int fill_questions(script *s, const trace *t, kit_error *err)
{
    size_t kept = 0;
    int code = KIT_OK;
    for (size_t i = 0; i < s->question.count; i++) {
        char **question = &s->question.line[i], **answer = &s->answer.line[i];
        const int number = -(int)(i + 1);
        code = code == KIT_OK ? fill(s, number, question, t, false, err) : code;
        code = code == KIT_OK ? fill(s, number, answer, t, false, err) : code;
        code = code == KIT_OK ? fill(s, number, &s->choices.line[i], t, false, err) : code;
        if (*question != NULL && *answer != NULL) {
            keep_question(s, kept++, i);
        } else {
            free(*question);
            free(*answer);
            free(s->choices.line[i]);
            free(s->see.line[i]);
        }
    }
    s->question.count = s->answer.count = s->choices.count = s->see.count = kept;
    return code;
}

int script_apply(script *s, trace *t, kit_error *err)
{
    t->script = malloc(sizeof *s);
    if (t->script == NULL) {
        script_free(s);
        return kit_fail(err, KIT_LIMIT, "no memory");
    }
    *t->script = *s;
    s = t->script;
    drop_conditional(s, t);
    int code = find_steps(s, t, err);
    if (code == KIT_OK) {
        drop_optional(s);
    }
    for (size_t i = 0; i < s->count && code == KIT_OK; i++) {
        code = fill_part(s, &s->part[i], t, err);
    }
    return code == KIT_OK ? fill_questions(s, t, err) : code;
}
