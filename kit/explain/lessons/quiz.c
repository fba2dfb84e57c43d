/* The quiz hides one weight of a trace and asks for it. The choice depends only on the seed and the
 * question's number, so a quiz can be repeated. No question is asked twice, even if a trace has the
 * same weights in two steps, until all have been asked. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../render/draw.h"
#include "quiz.h"

#define REPEATS 4096 /* so many known cells are passed over, so a long text cannot delay the quiz */

/* splitmix64: good enough to choose cells, and identical on every machine. */
uint64_t quiz_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Whether the cell's weight can be computed by the reader: its scores are known, and the row has
 * another visible key. */
static bool worth_asking(const grid *g, int64_t head, int64_t row, int64_t column)
{
    return !grid_masked(g, head, row, column) && isfinite(grid_at(g, head, row, column)) &&
           grid_health(g, head, row).visible > 1;
}

/* Finds cell number n of all weights of the trace; false if there are not so many. */
static bool find_cell(const trace *t, int64_t n, quiz_question *q, grid *g)
{
    for (size_t i = 0; i < t->count; i++) {
        if (t->step[i].kind != TRACE_WEIGHTS || t->step[i].check_only) {
            continue;
        }
        *g = grid_of(t, &t->step[i]);
        int64_t cells = g->heads * g->rows * g->columns;
        if (g->scores != NULL && n < cells) {
            q->step = i;
            q->head = n / (g->rows * g->columns);
            q->row = n / g->columns % g->rows;
            q->column = n % g->columns;
            return true;
        }
        n -= g->scores != NULL ? cells : 0;
    }
    return false;
}

static int64_t count_cells(const trace *t)
{
    int64_t cells = 0;
    for (size_t i = 0; i < t->count; i++) {
        grid g = grid_of(t, &t->step[i]);
        cells += t->step[i].check_only || g.scores == NULL ? 0 : g.heads * g.rows * g.columns;
    }
    return cells;
}

/* If the text does not fit, it is cut between two characters. */
static void copy(char *out, size_t size, const sink *s)
{
    size_t length = s->failed || s->data == NULL ? 0 : s->size;
    if (length >= size) {
        length = size - 4;
        while (length > 0 && ((unsigned char)s->data[length] & 0xc0) == 0x80) {
            length--;
        }
        memcpy(out, s->data, length);
        memcpy(out + length, "...", 4);
    } else {
        memcpy(out, s->data != NULL ? s->data : "", length);
        out[length] = '\0';
    }
}

static double score(const grid *g, const quiz_question *q, int64_t j)
{
    int64_t at = (q->head * g->rows + q->row) * g->columns + j;
    return kit_array_get(&g->scores->tensor, at);
}

static bool ends_sentence(const char *text)
{
    return text[0] != '\0' && strchr(".?!", text[strlen(text) - 1]) != NULL;
}

static void say_question(const grid *g, quiz_question *q)
{
    char row[LABEL_BYTES], column[LABEL_BYTES], buffer[LABEL_BYTES], number[NUMBER_BYTES];
    char head[40] = "";
    label_clip(row, grid_row_label(g, q->row, buffer), 12, "...");
    label_clip(column, grid_column_label(g, q->column, buffer), 12, "...");
    if (g->heads > 1) {
        snprintf(head, sizeof head, ", head %lld", (long long)q->head + 1);
    }
    snprintf(q->question, sizeof q->question,
             "\"%s\" asks. How much of its attention goes to \"%s\"?", row, column);
    sink s = {0};
    const char *title = g->step->title != NULL ? g->step->title : "";
    sink_printf(&s, "%s%s%s Scores:", title, head,
                *title == '\0' || ends_sentence(title) ? "" : ".");
    for (int64_t j = 0; j < g->columns; j++) {
        double x = score(g, q, j);
        label_clip(column, grid_column_label(g, j, buffer), 12, "...");
        sink_printf(&s, "  %s %s", column, x == -INFINITY ? "hidden" : number_text(number, x));
    }
    copy(q->row_text, sizeof q->row_text, &s);
    free(s.data);
}

/* e^(s_j - m) / (e^(s_1 - m) + ...), with this row's numbers. */
static void say_hint(const grid *g, quiz_question *q)
{
    sink s = {0};
    char number[NUMBER_BYTES];
    double factor = g->step->factor != 0 ? g->step->factor : 1, largest = -INFINITY;
    for (int64_t j = 0; j < g->columns; j++) {
        largest = fmax(largest, score(g, q, j) * factor);
    }
    sink_puts(&s, "softmax of the scores,");
    if (factor != 1) {
        sink_printf(&s, " each times %s,", number_text(number, factor));
    }
    sink_printf(&s, " minus the largest, %s:", number_text(number, largest));
    number_text(number, score(g, q, q->column) * factor - largest);
    sink_printf(&s, " e^%s / (", number);
    for (int64_t j = 0, shown = 0; j < g->columns; j++) {
        double x = score(g, q, j) * factor;
        if (x > -INFINITY) {
            number_text(number, x - largest);
            sink_printf(&s, "%se^%s", shown++ > 0 ? " + " : "", number);
        }
    }
    sink_puts(&s, ")");
    copy(q->hint, sizeof q->hint, &s);
    free(s.data);
}

/* ------------------------------------------------------------------------------------- Choosing */

/* Two cells are the same question if their labels and the scores of their rows, to the four digits
 * that are shown, are the same. */
static uint64_t identity(const grid *g, const quiz_question *q)
{
    char buffer[LABEL_BYTES];
    const char *row = grid_row_label(g, q->row, buffer);
    uint64_t h = kit_hash(KIT_HASH_START, row, strlen(row) + 1);
    const char *column = grid_column_label(g, q->column, buffer);
    h = kit_hash(h, column, strlen(column) + 1);
    h = kit_hash(h, &g->step->factor, sizeof g->step->factor);
    for (int64_t j = 0; j < g->columns; j++) {
        double x = score(g, q, j);
        x = isfinite(x) ? rint(x * 1e4) + 0.0 : x;
        h = kit_hash(h, &x, sizeof x);
    }
    return h;
}

static bool contains(const uint64_t *asked, int count, uint64_t key)
{
    for (int i = 0; i < count; i++) {
        if (asked[i] == key) {
            return true;
        }
    }
    return false;
}

/* Chooses question `index`, none of the `count` that were asked before; its identity becomes
 * asked[count]. False if there is none. */
static bool choose(quiz_question *q, grid *g, const trace *t, uint64_t seed, int index,
                   uint64_t *asked, int count)
{
    int64_t cells = count_cells(t), repeats = 0;
    uint64_t start = quiz_mix(seed ^ quiz_mix((uint64_t)index));
    for (int64_t tries = 0; tries < cells; tries++) {
        int64_t n = (int64_t)((start + (uint64_t)tries) % (uint64_t)cells);
        if (!find_cell(t, n, q, g) || !worth_asking(g, q->head, q->row, q->column)) {
            continue;
        }
        asked[count] = identity(g, q);
        if (!contains(asked, count, asked[count]) || ++repeats > REPEATS) {
            return true;
        }
    }
    return false;
}

int quiz_ask(quiz_question *q, const trace *t, uint64_t seed, int index, kit_error *err)
{
    grid g;
    bool found = true;
    int count = 0;
    uint64_t *asked = malloc(((size_t)index + 1) * sizeof *asked);
    if (asked == NULL) {
        return kit_fail(err, KIT_LIMIT, "no memory");
    }
    memset(q, 0, sizeof *q);
    for (int i = 0; i <= index && found; i++, count++) {
        found = choose(q, &g, t, seed, i, asked, count);
        if (!found && count > 0) { /* all have been asked: begin again */
            count = 0;
            found = choose(q, &g, t, seed, i, asked, count);
        }
    }
    free(asked);
    if (!found) {
        return kit_fail(
            err, KIT_USAGE,
            "--quiz needs attention weights of at least two keys, and their scores; there are none "
            "here");
    }
    q->answer = grid_at(&g, q->head, q->row, q->column);
    say_question(&g, q);
    say_hint(&g, q);
    return KIT_OK;
}

bool quiz_is_right(const quiz_question *q, double answer)
{
    return fabs(answer - q->answer) <= QUIZ_TOLERANCE + 1e-9;
}
