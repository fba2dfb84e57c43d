/* The lessons: five notebooks on attention that the program explains, runs and checks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lessons.h"
#include "script_read.h"

const explain_lesson explain_lessons[] = {
#define LESSON(name, notebook) {#name, notebook, lesson_##name, NULL},
#define LESSON_GRADIENTS(name, notebook)                                                           \
    {#name, notebook, lesson_##name, lesson_##name##_gradients},
#include <lessons.def>
    {NULL, NULL, NULL, NULL},
};

const explain_lesson *lesson_find(const char *name)
{
    for (const explain_lesson *l = explain_lessons; l->name != NULL; l++) {
        if (strcmp(l->name, name) == 0) {
            return l;
        }
    }
    return NULL;
}

int script_load(script *s, const char *name, kit_error *err)
{
    char file[64], code[64];
    snprintf(file, sizeof file, "%s.lesson", name);
    snprintf(code, sizeof code, "%s.c", name);
    if (script_file(file) == NULL) {
        return kit_fail(err, KIT_BAD_FILE, "the program was built without %s", file);
    }
    return script_parse(s, name, script_file(file), script_file(code), err);
}

int lesson_script(const explain_lesson *l, script *s, kit_error *err)
{
    return script_load(s, l->name, err);
}

/* "attention: ..." comes before "attention weights: ...", though ':' is behind ' '. */
static int compare_terms(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    size_t m = strcspn(x, ":"), n = strcspn(y, ":");
    int order = strncasecmp(x, y, m < n ? m : n);
    return order != 0 ? order : (m > n) - (m < n);
}

int lesson_glossary(script *s, kit_error *err)
{
    int code = script_parse(s, "glossary", script_file("glossary.lesson"), NULL, err);
    if (code == KIT_OK && s->term.count > 0) {
        qsort(s->term.line, s->term.count, sizeof *s->term.line, compare_terms);
    }
    return code;
}

int lesson_build(const explain_lesson *l, bool gradients, trace *t, attn_context *ctx,
                 kit_error *err)
{
    script s;
    int code = (gradients ? l->gradients : l->build)(t, ctx, err);
    code = code ? code : lesson_script(l, &s, err);
    return code ? code : script_apply(&s, t, err);
}
