/* Reads the script of a lesson; see script_read.h. */
#include <stdlib.h>
#include <string.h>

#include "../render/draw.h"
#include "script_read.h"

static const struct {
    const char *keyword;
    script_text text;
} texts[] = {
    {"title", SCRIPT_TITLE},     {"formula", SCRIPT_FORMULA},   {"idea", SCRIPT_IDEA},
    {"predict", SCRIPT_PREDICT}, {"answer", SCRIPT_ANSWER},     {"meaning", SCRIPT_MEANING},
    {"slip", SCRIPT_SLIP},       {"exercise", SCRIPT_EXERCISE}, {"solution", SCRIPT_SOLUTION},
    {"choices", SCRIPT_CHOICES}, {"notebook", SCRIPT_NOTEBOOK}, {"numpy", SCRIPT_NUMPY},
    {"torch", SCRIPT_TORCH},
};

typedef struct reader {
    script *to;
    const char *at, *section;
    bool optional, failed; /* failed: no memory */
    int line, begun, code; /* begun: line of the keyword that is read */
    kit_error *err;
} reader;

static void complain(reader *r, const char *what, const char *which)
{
    if (r->code == KIT_OK) {
        r->code = kit_fail(r->err, KIT_BAD_FILE, "%s.lesson, line %d: %s%s", r->to->name, r->begun,
                           what, which);
    }
}

static char *copy_text(reader *r, const char *text, size_t length)
{
    char *copy = strndup(text, length);
    r->failed = r->failed || copy == NULL;
    return copy;
}

/* ---------------------------------------------------------------------------- Texts of the file */

static size_t line_length(const char *at) { return strcspn(at, "\n"); }

static const char *next_line(const char *at)
{
    at += line_length(at);
    return at + (*at == '\n');
}

/* Whether the line belongs to the text above it: it is indented, or empty. */
static bool continues(const char *at) { return *at == ' ' || *at == '\n'; }

static bool is_blank(const char *at)
{
    return at[strspn(at, " ")] == '\n' || at[strspn(at, " ")] == '\0';
}

/* Joins the lines of a paragraph, and puts each paragraph and list item on a line of its own. */
static char *take_prose(reader *r, const char *rest)
{
    sink s = {0};
    bool fresh = true; /* the next word begins a line */
    size_t length = line_length(rest);
    sink_write(&s, rest, length);
    fresh = length == 0;
    for (; *r->at != '\0' && continues(r->at); r->at = next_line(r->at), r->line++) {
        const char *text = r->at + strspn(r->at, " ");
        if (is_blank(r->at)) {
            fresh = true;
            continue;
        }
        bool item = strncmp(text, "- ", 2) == 0;
        sink_puts(&s, s.size == 0 ? "" : fresh || item ? "\n" : " ");
        sink_write(&s, text, line_length(text));
        fresh = false;
    }
    r->failed = r->failed || s.failed;
    sink_puts(&s, "");
    return s.data;
}

/* Copies lines without their common indentation and without empty lines at the end. */
static char *copy_code(reader *r, const char *from, const char *end)
{
    size_t indent = SIZE_MAX, full = 0; /* full: up to the last line that is not empty */
    sink s = {0};
    for (const char *at = from; at < end; at = next_line(at)) {
        size_t spaces = strspn(at, " ");
        indent = !is_blank(at) && spaces < indent ? spaces : indent;
    }
    for (const char *at = from; at < end; at = next_line(at)) {
        size_t length = line_length(at), skip = indent < length ? indent : length;
        sink_write(&s, at + skip, length - skip);
        full = is_blank(at) ? full : s.size;
        sink_puts(&s, "\n");
    }
    sink_puts(&s, "");
    r->failed = r->failed || s.failed;
    if (s.data != NULL) {
        s.data[full] = '\0';
    }
    return s.data;
}

static char *take_code(reader *r)
{
    const char *from = r->at;
    for (; *r->at != '\0' && continues(r->at); r->at = next_line(r->at)) {
        r->line++;
    }
    return copy_code(r, from, r->at);
}

static void add_line(reader *r, script_list *list, char *line)
{
    char **grown = realloc(list->line, (list->count + 1) * sizeof *grown);
    if (grown == NULL) {
        free(line);
        r->failed = true;
        return;
    }
    list->line = grown;
    list->line[list->count++] = line;
}

/* ------------------------------------------------------------------------------------- Keywords */

static void begin_part(reader *r, char *name, bool also)
{
    script *s = r->to;
    script_part *grown = realloc(s->part, (s->count + 1) * sizeof *grown);
    if (grown == NULL) {
        free(name);
        r->failed = true;
        return;
    }
    s->part = grown;
    s->part[s->count++] =
        (script_part){.name = name,
                      .section =
                          r->section != NULL ? copy_text(r, r->section, strlen(r->section)) : NULL,
                      .step = -1,
                      .also = also,
                      .optional = r->optional,
                      .line = r->begun};
}

/* Keywords of the lesson as a whole; false: it is none of them. */
static bool take_heading(reader *r, const char *keyword, const char *rest)
{
    script *s = r->to;
    char **one = strcmp(keyword, "title") == 0     ? &s->title
                 : strcmp(keyword, "summary") == 0 ? &s->summary
                 : strcmp(keyword, "time") == 0    ? &s->time
                 : strcmp(keyword, "need") == 0    ? &s->need
                                                   : NULL;
    if (strcmp(keyword, "lesson") == 0) {
        return true; /* cmake/LessonTable.cmake reads it when the program is built */
    }
    if (strcmp(keyword, "learn") == 0) {
        add_line(r, &s->learn, take_prose(r, rest));
    } else if (one != NULL && *one == NULL) {
        *one = take_prose(r, rest);
    } else {
        return false;
    }
    return true;
}

static bool take_text(reader *r, const char *keyword, const char *rest)
{
    script_part *part = &r->to->part[r->to->count - 1];
    if (strcmp(keyword, "when") == 0 && part->when == NULL) {
        part->when = take_prose(r, rest);
        return true;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        script_text text = texts[i].text;
        if (strcmp(texts[i].keyword, keyword) == 0) {
            if (part->text[text] != NULL) {
                complain(r, "this step has it already: ", keyword);
            } else if (text >= SCRIPT_NOTEBOOK) {
                part->label[text] = copy_text(r, rest, line_length(rest));
                part->text[text] = take_code(r);
            } else {
                part->text[text] = take_prose(r, rest);
            }
            return true;
        }
    }
    return false;
}

/* Keywords of a question behind its text; false: it is none of them. */
static bool take_question(reader *r, const char *keyword, const char *rest)
{
    script *s = r->to;
    const size_t n = s->question.count;
    if (n == 0) {
        return false;
    }
    char **one = strcmp(keyword, "choices") == 0 ? &s->choices.line[n - 1]
                 : strcmp(keyword, "see") == 0   ? &s->see.line[n - 1]
                                                 : NULL;
    if (strcmp(keyword, "answer") == 0 && s->answer.count < n) {
        add_line(r, &s->answer, take_prose(r, rest));
    } else if (one != NULL && *one == NULL) {
        *one = take_prose(r, rest);
    } else {
        return false;
    }
    return true;
}

/* Keywords that begin a section, a part, a question or a term; false: it is none of them. */
static bool take_beginning(reader *r, const char *keyword, const char *rest)
{
    script *s = r->to;
    if (strcmp(keyword, "section") == 0) {
        free((char *)r->section);
        r->section = take_prose(r, rest);
        r->optional = false;
    } else if (strcmp(keyword, "term") == 0) {
        add_line(r, &s->term, take_prose(r, rest));
    } else if (strcmp(keyword, "optional") == 0) {
        r->optional = true;
    } else if (strcmp(keyword, "step") == 0 || strcmp(keyword, "also") == 0) {
        begin_part(r, copy_text(r, rest, strcspn(rest, " \n")), keyword[0] == 'a');
    } else if (strcmp(keyword, "question") == 0) {
        add_line(r, &s->choices, NULL);
        add_line(r, &s->see, NULL);
        add_line(r, &s->question, take_prose(r, rest));
    } else {
        return take_question(r, keyword, rest);
    }
    return true;
}

static void take_keyword(reader *r)
{
    char keyword[32];
    size_t length = strcspn(r->at, " \n");
    const char *rest = r->at + length + strspn(r->at + length, " ");
    snprintf(keyword, sizeof keyword, "%.*s", (int)length, r->at);
    r->at = next_line(r->at);
    r->line++;
    const bool parts = r->to->count > 0, questions = r->to->question.count > 0;
    if (!take_beginning(r, keyword, rest) && !(!parts       ? take_heading(r, keyword, rest)
                                               : !questions ? take_text(r, keyword, rest)
                                                            : false)) {
        complain(r, "no such keyword here: ", keyword);
    }
}

/* --------------------------------------------------------------------------------------- C code */

/* Cuts the code of step `name` from the source: the lines between its mark and the next mark. */
static char *cut_code(reader *r, const char *source, const char *name)
{
    char mark[80];
    snprintf(mark, sizeof mark, "/* [%s] */\n", name);
    for (const char *at = source; at != NULL && *at != '\0'; at = next_line(at)) {
        if (strncmp(at + strspn(at, " "), mark, strlen(mark)) == 0) {
            const char *from = next_line(at), *end = from;
            while (*end != '\0' && strncmp(end + strspn(end, " "), "/* [", 4) != 0) {
                end = next_line(end);
            }
            return copy_code(r, from, end);
        }
    }
    return NULL;
}

/* A question may name the part that answers it. */
static void check_see(reader *r, const char *name)
{
    bool found = name == NULL;
    for (size_t i = 0; i < r->to->count && !found; i++) {
        found = strcmp(r->to->part[i].name, name) == 0;
    }
    if (!found) {
        complain(r, "a question names a step that the script does not have: ", name);
    }
}

int script_parse(script *s, const char *name, const char *text, const char *c_code, kit_error *err)
{
    memset(s, 0, sizeof *s);
    s->name = name;
    reader r = {.to = s, .at = text, .line = 1, .err = err};
    while (*r.at != '\0' && r.code == KIT_OK && !r.failed) {
        r.begun = r.line;
        if (*r.at == '#' || is_blank(r.at)) {
            r.at = next_line(r.at);
            r.line++;
        } else if (*r.at == ' ') {
            complain(&r, "an indented line must continue a text", "");
        } else {
            take_keyword(&r);
        }
    }
    free((char *)r.section);
    for (size_t i = 0; i < s->count && !r.failed; i++) {
        s->part[i].text[SCRIPT_C] = cut_code(&r, c_code, s->part[i].name);
    }
    if (r.code == KIT_OK && !r.failed && s->question.count != s->answer.count) {
        complain(&r, "each question needs an answer", "");
    }
    for (size_t i = 0; i < s->question.count && r.code == KIT_OK && !r.failed; i++) {
        check_see(&r, s->see.line[i]);
    }
    if (r.failed && r.code == KIT_OK) {
        r.code = kit_fail(err, KIT_LIMIT, "%s.lesson: no memory", name);
    }
    if (r.code != KIT_OK) {
        script_free(s);
    }
    return r.code;
}
