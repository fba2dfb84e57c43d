/* Writes a lesson by its script: an introduction, then for each step the question, the idea, the
 * code, the numbers and their meaning, at the end questions. The whole text is one document; on a
 * terminal it comes screen by screen and stage by stage (render.h). */
#include <stdlib.h>
#include <string.h>

#include "../script.h"
#include "text.h"

/* Writes only what lies in stages `from` to `to`. A writer that is called with p == NULL counts the
 * stages alone. */
typedef struct screen_writer {
    text_layout *p;
    size_t from, to, stage;
    render_stop stop[64]; /* why the reader stops behind each stage */
} screen_writer;

static bool shown(const screen_writer *w)
{
    return w->p != NULL && w->stage >= w->from && w->stage <= w->to;
}

static void stop_here(screen_writer *w, render_stop why)
{
    if (w->stage + 1 < sizeof w->stop / sizeof *w->stop) {
        w->stop[w->stage++] = why;
    }
}

/* ------------------------------------------------------------------------------------- Texts */

/* Separates blocks of text; they are easier to find than in one piece. */
static void put_empty_line(const screen_writer *w)
{
    const sink *out = &w->p->out;
    if (!out->failed && out->size > 1 && memcmp(out->data + out->size - 2, "\n\n", 2) != 0) {
        sink_puts(&w->p->out, "\n");
    }
}

/* Removes the end of the last line, so that the next text continues this line. */
static void continue_line(text_layout *p) { p->out.size -= p->out.size > 0 && !p->out.failed; }

/* Writes `length` bytes, wrapped; text_wrap needs a whole string. */
static void wrap_part(text_layout *p, int at, int hang, const char *text, size_t length)
{
    char *copy = strndup(text, length);
    if (copy == NULL) {
        p->out.failed = true;
        return;
    }
    text_wrap(p, at, hang, text_clean(p, copy));
    free(copy);
}

static void put_line(text_layout *p, const char *label, const char *line, size_t length)
{
    bool item = strncmp(line, "- ", 2) == 0;
    int at = p->indent;
    text_spaces(p, p->indent);
    if (label != NULL) {
        text_bold(p);
        text_wrap(p, at, p->indent, label);
        bool fits = at + kit_text_width(label) + 1 < p->width / 2;
        if (fits) {
            continue_line(p);
        }
        text_plain(p);
        text_spaces(p, fits ? 1 : p->indent);
        at = fits ? at + kit_text_width(label) + 1 : p->indent;
    }
    wrap_part(p, at, p->indent + (item ? 2 : 0), line, length);
}

/* Writes each line of `text` as a paragraph, the first one behind a label in bold. */
static void put_prose(screen_writer *w, const char *label, const char *text)
{
    if (text == NULL || !shown(w)) {
        return;
    }
    if (label != NULL) {
        put_empty_line(w);
    }
    for (const char *line = text; *line != '\0'; label = NULL) {
        size_t length = strcspn(line, "\n");
        if (line != text && strncmp(line, "- ", 2) != 0) {
            put_empty_line(w);
        }
        put_line(w->p, label, line, length);
        line += length + (line[length] == '\n');
    }
}

/* Long lines continue further to the right. */
static void put_code(const screen_writer *w, const char *label, const char *cell, const char *code)
{
    text_layout *p = w->p;
    if (code == NULL || *code == '\0') {
        return;
    }
    put_empty_line(w);
    text_dim(p);
    text_wrapf(p, "%s%s%s:", label, *cell != '\0' ? ", " : "", cell);
    text_plain(p);
    for (const char *line = code; *line != '\0';) {
        size_t length = strcspn(line, "\n"), spaces = strspn(line, " ");
        int deepest = p->width / 2, at = p->indent + 2 + (int)spaces;
        at = at < deepest ? at : deepest;
        text_spaces(p, length > spaces ? at : 0);
        wrap_part(p, at, at + 4, line + spaces, length - spaces);
        line += length + (line[length] == '\n');
    }
}

static void put_codes(screen_writer *w, const script_part *part)
{
    static const struct {
        script_text text;
        const char *label;
        render_code code;
    } codes[] = {{SCRIPT_C, "In C", RENDER_C},
                 {SCRIPT_NUMPY, "With NumPy", RENDER_NUMPY},
                 {SCRIPT_TORCH, "With PyTorch", RENDER_TORCH}};
    if (!shown(w) || w->p->code == RENDER_NO_CODE) {
        return;
    }
    const char *cell = part->label[SCRIPT_NOTEBOOK];
    put_code(w, "The notebook", cell != NULL ? cell : "", part->text[SCRIPT_NOTEBOOK]);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (w->p->code == codes[i].code || w->p->code == RENDER_ALL_CODE) {
            put_code(w, codes[i].label, "", part->text[codes[i].text]);
        }
    }
}

/* ------------------------------------------------------------------------------------- Parts */

/* " 3 Which words should "is" listen to?                                     scores 3×3" */
static void put_heading(text_layout *p, const script_part *part, int number)
{
    const trace_step *s = part->step >= 0 ? &p->trace->step[part->step] : NULL;
    const char *title = part->text[SCRIPT_TITLE];
    sink right = {0}, left = {0};
    if (s != NULL) {
        sink_printf(&right, "%s ", s->name);
        text_shape(&right, &s->tensor);
    }
    sink_puts(&right, "");
    sink_puts(&left, title != NULL ? title : s != NULL ? s->name : "");
    /* Not if the notebook computes the step and only does not print it. */
    bool added = s != NULL && s->after_notebook && part->text[SCRIPT_NOTEBOOK] == NULL;
    sink_puts(&left, added ? " (beyond the notebook)" : "");
    if (right.failed || left.failed) {
        p->out.failed = true;
    } else {
        const char *shape = text_clean(p, right.data), *text = text_clean(p, left.data);
        int wide = kit_text_width(shape);
        sink_puts(&p->out, "\n");
        text_bold(p);
        if (number > 0) {
            sink_printf(&p->out, "%2d ", number);
        } else {
            text_spaces(p, 3);
        }
        int at = 3 + kit_text_width(text);
        text_wrap(p, 3, 3, text);
        if (wide == 0 || at + 2 + wide > p->width) {
            at = 0; /* the shape has a line of its own */
        } else {
            continue_line(p);
        }
        text_plain(p);
        if (wide > 0) {
            text_spaces(p, p->width - at - wide);
            text_wrap(p, 0, 0, shape); /* a name may be wider than a narrow terminal */
        }
    }
    free(left.data);
    free(right.data);
}

static void put_part(screen_writer *w, const script_part *part, int number)
{
    const trace_step *s = w->p != NULL && part->step >= 0 ? &w->p->trace->step[part->step] : NULL;
    if (shown(w)) {
        put_heading(w->p, part, number);
    }
    put_prose(w, NULL, part->text[SCRIPT_FORMULA]);
    put_prose(w, NULL, part->text[SCRIPT_IDEA]);
    put_codes(w, part);
    put_prose(w, "Predict:", part->text[SCRIPT_PREDICT]);
    if (part->text[SCRIPT_PREDICT] != NULL) {
        stop_here(w, RENDER_AT_PREDICTION);
    }
    if (s != NULL && shown(w)) {
        put_empty_line(w);
        text_step(w->p, s);
    }
    if (strcmp(part->name, "@trained") == 0 && shown(w) && w->p->trace->more != NULL) {
        put_empty_line(w);
        text_more(w->p, w->p->trace->more);
    }
    put_prose(w, "Answer:", part->text[SCRIPT_ANSWER]);
    if (part->text[SCRIPT_MEANING] != NULL && shown(w)) {
        put_empty_line(w);
    }
    put_prose(w, NULL, part->text[SCRIPT_MEANING]);
    put_prose(w, "A slip of the notebook:", part->text[SCRIPT_SLIP]);
    put_prose(w, "Try it:", part->text[SCRIPT_EXERCISE]);
    if (part->text[SCRIPT_SOLUTION] != NULL) {
        stop_here(w, RENDER_AT_EXERCISE);
    }
    put_prose(w, "Solution:", part->text[SCRIPT_SOLUTION]);
}

/* ----------------------------------------------------------------------------------- Screens */

/* The screen's first part; the number of parts if there is no such screen. */
static size_t first_part(const script *s, size_t screen)
{
    size_t part = 0;
    for (size_t i = 1; i < screen && part < s->count; i++) {
        part = script_screen_end(s, part);
    }
    return part;
}

size_t render_screens(const trace *t)
{
    size_t screens = 2;
    for (size_t part = 0; part < t->script->count; part = script_screen_end(t->script, part)) {
        screens++;
    }
    return screens;
}

static void put_introduction(screen_writer *w, const trace *t, const script *s)
{
    if (!shown(w)) {
        return;
    }
    text_layout *p = w->p;
    text_bold(p);
    put_line(p, NULL, s->title != NULL ? s->title : "", 1000);
    text_plain(p);
    if (t->text != NULL) {
        text_wrapf(p, "“%s”", t->text);
    }
    if (t->lesson == NULL && t->setting != NULL) {
        put_empty_line(w);
        text_wrapf(p, "%s", t->setting);
    }
    if (s->learn.count > 0) {
        put_empty_line(w);
        text_bold(p);
        sink_puts(&p->out, "You will learn\n");
        text_plain(p);
    }
    for (size_t i = 0; i < s->learn.count; i++) {
        text_spaces(p, 2);
        sink_puts(&p->out, "- ");
        text_wrap(p, 4, 4, text_clean(p, s->learn.line[i]));
    }
    put_prose(w, "Time:", s->time);
    put_prose(w, "You need:", s->need);
    put_prose(w, "Tables:", "in scores and weights a row asks and a column answers.");
}

static void put_questions(screen_writer *w, const script *s)
{
    if (shown(w) && s->question.count > 0) {
        text_section(w->p, "Do you understand it?");
    }
    for (size_t i = 0; i < s->question.count; i++) {
        char label[32];
        snprintf(label, sizeof label, "Question %zu:", i + 1);
        put_prose(w, label, s->question.line[i]);
        stop_here(w, RENDER_AT_QUESTION);
        put_prose(w, "Answer:", s->answer.line[i]);
    }
    if (shown(w)) {
        sink_puts(&w->p->out, "\n");
        text_notes(w->p, w->p->trace);
    }
}

static void put_screen(screen_writer *w, const trace *t, size_t screen)
{
    const script *s = t->script;
    size_t part = first_part(s, screen), end;
    if (w->p != NULL) {
        w->p->indent = 0;
    }
    if (screen == 0) {
        put_introduction(w, t, s);
    } else if (part >= s->count) {
        put_questions(w, s);
    } else {
        const char *section = s->part[part].section;
        bool begins = section != NULL && (part == 0 || s->part[part - 1].section == NULL ||
                                          strcmp(section, s->part[part - 1].section) != 0);
        if (begins && shown(w)) {
            text_section(w->p, section);
        }
        if (w->p != NULL) {
            w->p->indent = w->p->width >= 60 ? 3 : 1;
        }
        end = script_screen_end(s, part);
        for (size_t i = part; i < end; i++) {
            put_part(w, &s->part[i], i == part ? (int)screen : 0);
        }
    }
}

static screen_writer count_stages(const trace *t, size_t screen)
{
    screen_writer w = {0};
    put_screen(&w, t, screen);
    return w;
}

size_t render_stages(const trace *t, size_t screen) { return count_stages(t, screen).stage + 1; }

render_stop render_stop_behind(const trace *t, size_t screen, size_t stage)
{
    return count_stages(t, screen).stop[stage];
}

void text_screen(text_layout *p, size_t screen, size_t from, size_t to)
{
    screen_writer w = {.p = p, .from = from, .to = to};
    put_screen(&w, p->trace, screen);
}

void text_script(text_layout *p)
{
    size_t screens = render_screens(p->trace);
    for (size_t i = 0; i < screens; i++) {
        text_screen(p, i, 0, SIZE_MAX);
    }
}
