/* Writes a trace for the terminal: numbered steps with headings, each with its shape, its formula,
 * the computation of the chosen query's row, and the matrices that fit. text.h describes the
 * parts. */
#include <stdlib.h>
#include <string.h>

#include "text.h"

/* --------------------------------------------------------------------------------- Headings */

static void put_title(text_layout *p)
{
    const trace *t = p->trace;
    char title[LABEL_BYTES];
    p->indent = 0;
    text_bold(p);
    int room = p->width;
    if (t->lesson != NULL) {
        sink_printf(&p->out, "Lesson %s: ", t->lesson);
        room -= 9 + (int)strlen(t->lesson);
    }
    label_clip(title, text_clean(p, t->title != NULL ? t->title : ""), room,
               p->unicode ? "…" : "...");
    sink_puts(&p->out, title);
    text_plain(p);
    sink_puts(&p->out, "\n");
    if (t->lesson != NULL && t->text != NULL) {
        text_wrapf(p, "“%s”", t->text);
    }
    if (t->setting != NULL) {
        text_wrapf(p, "%s", t->setting);
    }
    text_wrapf(p, "In scores and weights a row asks and a column answers.");
}

/* " 3 scores  Every word asks, every word answers  S = Q·Kᵀ            6×6" */
static void put_heading(text_layout *p, const trace_step *s, int number)
{
    sink text = {0}, shape = {0};
    text_shape(&shape, &s->tensor);
    sink_printf(&text, "%s%s%s%s", s->title != NULL ? s->title : "",
                s->formula != NULL && s->formula[0] != '\0' ? "   " : "",
                s->formula != NULL ? s->formula : "",
                s->after_notebook ? "   (beyond the notebook)" : "");
    if (text.failed || shape.failed) {
        p->out.failed = true;
    } else {
        const char *right = text_clean(p, shape.data), *rest = text_clean(p, text.data);
        text_bold(p);
        sink_printf(&p->out, "%2d ", number);
        text_label(p, s->name,
                   p->width - 5 < kit_text_width(s->name) ? p->width - 5 : kit_text_width(s->name),
                   false);
        text_plain(p);
        int at = 3 + kit_text_width(s->name), wide = kit_text_width(right);
        if (at + 2 + kit_text_width(rest) + 2 + wide <= p->width) {
            sink_printf(&p->out, "  %s", rest);
            text_spaces(p, p->width - at - 2 - kit_text_width(rest) - wide);
            sink_printf(&p->out, "%s\n", right);
        } else {
            if (at + 2 + wide <= p->width) {
                text_spaces(p, p->width - at - wide);
                sink_puts(&p->out, right);
            }
            sink_puts(&p->out, "\n");
            text_wrapf(p, "%s", text.data);
        }
    }
    free(text.data);
    free(shape.data);
}

/* ------------------------------------------------------------------------------------ Steps */

static void put_sentence(text_layout *p, const trace_step *s)
{
    if (s->sentence != NULL && s->sentence[0] != '\0') {
        text_wrapf(p, "%s", s->sentence);
    }
}

static bool same_section(const trace_step *a, const trace_step *b)
{
    return a->section == b->section ||
           (a->section != NULL && b->section != NULL && strcmp(a->section, b->section) == 0);
}

/* Steps of weights that are only drawn share one line with their names and shapes. */
static size_t put_drawn(text_layout *p, size_t from, int number)
{
    const trace *t = p->trace;
    size_t to = from;
    sink line = {0};
    while (!p->full && to < t->count && t->step[to].op == TRACE_GIVEN &&
           t->step[to].kind == TRACE_VALUES && t->step[to].row_labels == NULL &&
           t->step[to].column_labels == NULL &&
           t->step[to].check_only == t->step[from].check_only &&
           same_section(&t->step[to], &t->step[from]) &&
           !(t->lesson != NULL && text_matrix_fits(p, &t->step[to]))) {
        to++;
    }
    if (to - from < 2) {
        return from;
    }
    for (size_t i = from; i < to; i++) {
        sink_printf(&line, "%s%s ", i > from ? "   " : "", t->step[i].name);
        text_shape(&line, &t->step[i].tensor);
    }
    if (!line.failed) {
        text_bold(p);
        sink_printf(&p->out, "%2d ", number);
        text_plain(p);
        text_wrap(p, 3, p->indent, text_clean(p, line.data));
        text_wrapf(p, "%s", t->step[from].sentence != NULL ? t->step[from].sentence : "");
    }
    p->out.failed = p->out.failed || line.failed;
    free(line.data);
    return to;
}

static void put_steps(text_layout *p)
{
    const trace *t = p->trace;
    const char *section = NULL;
    int number = 1;
    for (size_t i = 0; i < t->count;) {
        const trace_step *s = &t->step[i];
        if (s->check_only || (s->small && !p->full)) {
            i++;
            continue;
        }
        if (s->section != NULL && (section == NULL || strcmp(section, s->section) != 0)) {
            section = s->section;
            text_section(p, section);
        }
        size_t next = put_drawn(p, i, number);
        if (next == i) {
            put_heading(p, s, number);
            put_sentence(p, s);
            text_step(p, s);
            next++;
        }
        i = next;
        number++;
    }
}

static text_layout begin(const trace *t, const render_text_options *o)
{
    return (text_layout){.width = o->width < 20    ? 20
                                  : o->width > 200 ? 200
                                                   : o->width,
                         .colour = o->colour,
                         .unicode = o->unicode,
                         .full = o->full,
                         .top = o->top > 0 ? o->top : 5,
                         .code = o->code,
                         .steps = o->steps,
                         .trace = t};
}

static int finish(text_layout *p, char **bytes, size_t *size, kit_error *err)
{
    for (size_t i = 0; i < sizeof p->spare / sizeof *p->spare; i++) {
        free(p->spare[i]);
    }
    return sink_finish(&p->out, bytes, size, err);
}

int render_text(char **bytes, size_t *size, const trace *t, const render_text_options *o,
                kit_error *err)
{
    text_layout p = begin(t, o);
    if (t->script != NULL && (t->lesson != NULL || o->steps)) {
        text_script(&p);
        return finish(&p, bytes, size, err);
    }
    put_title(&p);
    p.indent = p.width >= 60 ? 4 : 2;
    put_steps(&p);
    sink_puts(&p.out, "\n");
    p.indent = 0;
    text_notes(&p, t);
    if (t->more != NULL) {
        p.indent = p.width >= 60 ? 4 : 2;
        text_section(&p, t->more->title);
        text_more(&p, t->more);
    }
    return finish(&p, bytes, size, err);
}

int render_text_screen(char **bytes, size_t *size, const trace *t, size_t screen, size_t from,
                       size_t to, const render_text_options *o, kit_error *err)
{
    text_layout p = begin(t, o);
    text_screen(&p, screen, from, to);
    return finish(&p, bytes, size, err);
}
