/* The script of a trace as JSON, for a page: the words of its story, with the numbers filled in. */
#include <stdlib.h>
#include <string.h>

#include "../script.h"
#include "render_json.h"

static const struct {
    const char *key;
    script_text text;
} proses[] =
    {
        {"title", SCRIPT_TITLE},       {"formula", SCRIPT_FORMULA}, {"idea", SCRIPT_IDEA},
        {"predict", SCRIPT_PREDICT},   {"choices", SCRIPT_CHOICES}, {"answer", SCRIPT_ANSWER},
        {"meaning", SCRIPT_MEANING},   {"slip", SCRIPT_SLIP},       {"exercise", SCRIPT_EXERCISE},
        {"solution", SCRIPT_SOLUTION},
},
  codes[] = {
      {"The notebook", SCRIPT_NOTEBOOK},
      {"C", SCRIPT_C},
      {"NumPy", SCRIPT_NUMPY},
      {"PyTorch", SCRIPT_TORCH},
};

/* Writes a text as an array of its lines; false: no memory. */
static bool put_lines(json_writer *j, const char *key, const char *text)
{
    json_put_array(j, key);
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        char *line = strndup(text, length);
        if (line == NULL) {
            return false;
        }
        json_put_text(j, NULL, line);
        free(line);
        text += length + (text[length] == '\n');
    }
    json_end_array(j);
    return true;
}

static void put_optional(json_writer *j, const char *key, const char *text)
{
    if (text != NULL) {
        json_put_text(j, key, text);
    }
}

static void put_list(json_writer *j, const char *key, const script_list *list)
{
    json_put_array(j, key);
    for (size_t i = 0; i < list->count; i++) {
        json_put_text(j, NULL, list->line[i]);
    }
    json_end_array(j);
}

static bool put_part(json_writer *j, const trace *t, const script_part *part)
{
    bool ok = true;
    json_put_object(j, NULL);
    json_put_text(j, "name", part->name);
    put_optional(j, "step", part->step >= 0 ? t->step[part->step].name : NULL);
    put_optional(j, "section", part->section);
    if (part->also) {
        json_put_flag(j, "also", true);
    }
    for (size_t i = 0; i < sizeof proses / sizeof *proses; i++) {
        const char *text = part->text[proses[i].text];
        ok = (text == NULL || put_lines(j, proses[i].key, text)) && ok;
    }
    json_put_array(j, "code");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const char *text = part->text[codes[i].text], *label = part->label[codes[i].text];
        if (text != NULL) {
            json_put_object(j, NULL);
            json_put_text(j, "language", codes[i].key);
            put_optional(j, "cell", codes[i].text == SCRIPT_NOTEBOOK ? label : NULL);
            json_put_text(j, "text", text);
            json_end_object(j);
        }
    }
    json_end_array(j);
    json_end_object(j);
    return ok;
}

static bool put_questions(json_writer *j, const script *s)
{
    bool ok = true;
    json_put_array(j, "questions");
    for (size_t i = 0; i < s->question.count; i++) {
        json_put_object(j, NULL);
        ok = put_lines(j, "question", s->question.line[i]) && ok;
        if (s->choices.line[i] != NULL) {
            ok = put_lines(j, "choices", s->choices.line[i]) && ok;
        }
        ok = put_lines(j, "answer", s->answer.line[i]) && ok;
        put_optional(j, "see", s->see.line[i]);
        json_end_object(j);
    }
    json_end_array(j);
    return ok;
}

/* What the pictures ask for: which word is followed, and which key has the largest weight of that
 * word's row. */
static bool put_facts(json_writer *j, const trace *t)
{
    json_put_object(j, "facts");
    for (const char *line = t->facts; line != NULL && *line != '\0';) {
        const size_t name = strcspn(line, "\t\n"), length = strcspn(line, "\n");
        char *copy = strndup(line, length);
        if (copy == NULL) {
            return false;
        }
        copy[name] = '\0';
        json_put_text(j, copy, name < length ? copy + name + 1 : "");
        free(copy);
        line += length + (line[length] == '\n');
    }
    json_end_object(j);
    return true;
}

bool json_put_script(json_writer *j, const trace *t)
{
    const script *s = t->script;
    bool ok = true;
    json_new_line(j, 1);
    json_put_object(j, "script");
    put_optional(j, "title", s->title);
    put_optional(j, "time", s->time);
    put_optional(j, "need", s->need);
    put_list(j, "learn", &s->learn);
    json_put_array(j, "parts");
    for (size_t i = 0; i < s->count; i++) {
        json_new_line(j, 2);
        ok = put_part(j, t, &s->part[i]) && ok;
    }
    json_end_array(j);
    json_new_line(j, 2);
    ok = put_questions(j, s) && ok;
    json_new_line(j, 2);
    ok = put_facts(j, t) && ok;
    json_end_object(j);
    return ok;
}
