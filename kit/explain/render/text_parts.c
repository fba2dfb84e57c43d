/* Parts that whole traces and the screens of a lesson have in common: the heading of a section, the
 * numbers of a step, the notes, the trained heads. */
#include <stdlib.h>
#include <string.h>

#include "text.h"

void text_section(text_layout *p, const char *section)
{
    char title[LABEL_BYTES];
    label_clip(title, text_clean(p, section), p->width - 4, p->unicode ? "…" : "...");
    sink_puts(&p->out, "\n");
    text_bold(p);
    sink_printf(&p->out, "%s %s ", p->unicode ? "──" : "--", title);
    for (int i = kit_text_width(title) + 4; i < p->width; i++) {
        sink_puts(&p->out, p->unicode ? "─" : "-");
    }
    text_plain(p);
    sink_puts(&p->out, "\n");
}

void text_shape(sink *s, const kit_array *a)
{
    for (int i = 0; i < a->rank; i++) {
        sink_printf(s, "%s%lld", i > 0 ? "×" : "", (long long)a->shape[i]);
    }
    sink_puts(s, a->rank == 0       ? "one number"
                 : a->rank > 1      ? ""
                 : a->shape[0] == 1 ? " number"
                                    : " numbers");
}

static void put_ids(text_layout *p, const trace_step *s)
{
    sink line = {0};
    grid g = grid_of(p->trace, s);
    for (int64_t j = 0; j < g.columns && j < 64; j++) {
        char label[LABEL_BYTES], clipped[LABEL_BYTES];
        label_clip(clipped, grid_column_label(&g, j, label), 20, "…");
        sink_printf(&line, "%s%s·%lld", j > 0 ? "  " : "", clipped,
                    (long long)grid_at(&g, 0, 0, j));
    }
    if (g.columns > 64) {
        sink_printf(&line, "  … %lld words", (long long)g.columns);
    }
    text_wrapf(p, "%s", line.failed ? "" : line.data);
    p->out.failed = p->out.failed || line.failed;
    free(line.data);
}

void text_step(text_layout *p, const trace_step *s)
{
    if (s->kind == TRACE_IDS) {
        put_ids(p, s);
        return;
    }
    if (s->kind == TRACE_CURVE) {
        text_curve(p, s);
        return;
    }
    if (s->kind == TRACE_WEIGHTS) {
        text_worked(p, s, false);
        text_weights(p, s);
        return;
    }
    /* Lessons show all matrices: they are small and are read beside the notebook. For the user's
     * own sentence only the chosen row is shown, unless --full is given. */
    bool own = p->trace->lesson == NULL && p->trace->text != NULL;
    bool taught = p->steps && s->kind == TRACE_SCORES; /* the square of all scores is the point */
    bool whole =
        p->full || s->kind == TRACE_PROBABILITIES || ((!own || taught) && text_matrix_fits(p, s));
    bool drawn = (s->op == TRACE_GIVEN || s->op == TRACE_COMPUTED) && s->kind == TRACE_VALUES;
    text_worked(p, s, !whole && !drawn);
    if (whole) {
        text_matrix(p, s);
    }
}

/* "health   saturated ..." */
void text_notes(text_layout *p, const trace *t)
{
    const int label = p->width >= 60 ? 9 : 2;
    for (const char *line = t->notes; line != NULL && *line != '\0';) {
        size_t tab = strcspn(line, "\t\n"), length = strcspn(line, "\n");
        char *copy = strndup(line, length);
        if (copy == NULL) {
            p->out.failed = true;
            return;
        }
        copy[tab] = '\0';
        text_bold(p);
        sink_puts(&p->out, copy);
        text_plain(p);
        text_spaces(p, label > (int)tab ? label - (int)tab : 1);
        text_wrap(p, label > (int)tab ? label : (int)tab + 1, label,
                  text_clean(p, tab < length ? copy + tab + 1 : ""));
        free(copy);
        line += length + (line[length] == '\n');
    }
}

void text_more(text_layout *p, const trace *more)
{
    const trace *outer = p->trace;
    p->trace = more;
    text_wrapf(p, "%s", more->setting);
    bool drawn = false;
    for (size_t i = 0; i < more->count; i++) {
        const trace_step *s = &more->step[i];
        if (s->check_only) {
            continue;
        }
        const int at = p->steps ? p->indent : 0; /* among the steps of the script */
        text_bold(p);
        text_spaces(p, at);
        text_wrap(p, at, at + 2, text_clean(p, s->title));
        text_plain(p);
        text_wrapf(p, "%s", s->sentence);
        text_weights_alone(p, s);
        drawn = true;
    }
    if (drawn) {
        text_legend(p, true);
    }
    p->trace = outer;
    text_notes(p, more);
}
