/* Gives a trace the words of its script: finds the step of each part and fills in the quoted
 * numbers; see script_read.h. */
#include <stdlib.h>
#include <string.h>

#include "script_read.h"

/* Replaces a text by the same with its quotations filled in. */
static int fill(const script *s, int line, char **text, const trace *t, kit_error *err)
{
    kit_error why = {0};
    if (*text == NULL) {
        return KIT_OK;
    }
    char *quoted = script_quote(t, *text, &why);
    if (quoted == NULL) {
        return kit_fail(err, why.code, "%s.lesson, %s %d: %s", s->name,
                        line > 0 ? "step of line" : "question", line > 0 ? line : -line,
                        why.message);
    }
    free(*text);
    *text = quoted;
    return KIT_OK;
}

static int find_steps(script *s, const trace *t, kit_error *err)
{
    size_t next = 0;
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

/* Removes the parts of optional sections whose steps this trace does not have. */
static void drop_optional(script *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        bool there = false; /* some step of this section */
        for (size_t j = 0; j < s->count; j++) {
            bool same = s->part[i].section != NULL && s->part[j].section != NULL &&
                        strcmp(s->part[i].section, s->part[j].section) == 0;
            there = there || (same && s->part[j].step >= 0);
        }
        if (s->part[i].optional && !there) {
            continue;
        }
        script_part part = s->part[i];
        s->part[i] = s->part[kept];
        s->part[kept++] = part;
    }
    for (size_t i = kept; i < s->count; i++) {
        script_free_part(&s->part[i]);
    }
    s->count = kept;
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

int script_apply(script *s, trace *t, kit_error *err)
{
    t->script = malloc(sizeof *s);
    if (t->script == NULL) {
        script_free(s);
        return kit_fail(err, KIT_LIMIT, "no memory");
    }
    *t->script = *s;
    s = t->script;
    int code = find_steps(s, t, err);
    if (code == KIT_OK) {
        drop_optional(s);
    }
    for (size_t i = 0; i < s->count && code == KIT_OK; i++) {
        script_part *part = &s->part[i];
        for (int text = 0; text < SCRIPT_NOTEBOOK && code == KIT_OK; text++) {
            code = fill(s, part->line, &part->text[text], t, err);
        }
        if (code == KIT_OK && part->step >= 0) {
            code = name_step(part, &t->step[part->step], err);
        }
    }
    for (size_t i = 0; i < s->question.count && code == KIT_OK; i++) {
        code = fill(s, -(int)(i + 1), &s->question.line[i], t, err);
        code = code == KIT_OK ? fill(s, -(int)(i + 1), &s->answer.line[i], t, err) : code;
    }
    return code;
}
