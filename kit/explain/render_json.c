/* A trace as one JSON object: schema attn.explain/1, attn.lesson/1 or attn.train/1.
 *
 * Every float is written with the fewest digits that read back as the same float; what JSON has no
 * number for is one of the strings "inf", "-inf", "nan". Written as a stream: a matrix of numbers
 * needs no tree of objects first.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

static void put_string(sink *s, const char *text)
{
    sink_puts(s, "\"");
    const char *from = text;
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\' || c < 0x20 || c == 0x7f) {
            sink_write(s, from, (size_t)(p - from));
            from = p + 1;
            if (c == '"' || c == '\\') {
                sink_printf(s, "\\%c", c);
            } else {
                sink_printf(s, "\\u%04x", c);
            }
        }
    }
    sink_puts(s, from);
    sink_puts(s, "\"");
}

static void put_member(sink *s, const char *name, const char *text)
{
    sink_printf(s, ", \"%s\": ", name);
    put_string(s, text);
}

static void put_real(sink *s, double x, bool is_float)
{
    if (!isfinite(x)) {
        sink_puts(s, isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"");
        return;
    }
    char number[40];
    int most = is_float ? 9 : 17;
    for (int digits = is_float ? 6 : 15; digits <= most; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, x);
        double back = strtod(number, NULL);
        if (is_float ? (float)back == (float)x : back == x) {
            break;
        }
    }
    sink_puts(s, number);
}

static void put_tensor(sink *s, const kit_array *a)
{
    sink_puts(s, "{\"shape\": [");
    for (int i = 0; i < a->rank; i++) {
        sink_printf(s, "%s%lld", i > 0 ? ", " : "", (long long)a->shape[i]);
    }
    sink_printf(s, "], \"dtype\": \"%s\", \"data\": [", attn_dtype_name(a->dtype));
    int64_t count = kit_array_count(a);
    for (int64_t i = 0; i < count; i++) {
        sink_puts(s, i > 0 ? ", " : "");
        if (a->dtype == ATTN_I64) {
            sink_printf(s, "%lld", (long long)((const int64_t *)a->data)[i]);
        } else {
            put_real(s, kit_array_get(a, i), a->dtype != ATTN_F64);
        }
    }
    sink_puts(s, "]}");
}

static void put_labels(sink *s, const char *name, char **labels, size_t count)
{
    if (labels == NULL) {
        return;
    }
    sink_printf(s, ", \"%s\": [", name);
    for (size_t i = 0; i < count; i++) {
        sink_puts(s, i > 0 ? ", " : "");
        put_string(s, labels[i]);
    }
    sink_puts(s, "]");
}

static const char *const kind_names[] = {"ids", "values", "scores", "weights", "scalar", "curve"};

static void put_step(sink *s, const trace_step *step)
{
    sink_puts(s, "{\"name\": ");
    put_string(s, step->name);
    put_member(s, "title", step->title != NULL ? step->title : "");
    put_member(s, "formula", step->formula != NULL ? step->formula : "");
    put_member(s, "sentence", step->sentence != NULL ? step->sentence : "");
    put_member(s, "section", step->section != NULL ? step->section : "");
    put_member(s, "kind", kind_names[step->kind]);
    sink_printf(s, ", \"beyond\": %s", step->beyond ? "true" : "false");
    put_labels(s, "rows", step->row_labels, step->row_label_count);
    put_labels(s, "columns", step->column_labels, step->column_label_count);
    if (step->printed != NULL) {
        put_member(s, "printed", step->printed);
    }
    sink_puts(s, ",\n   \"tensor\": ");
    put_tensor(s, &step->tensor);
    sink_puts(s, "}");
}

/* Entropy and largest weight of every row of every step of weights. */
static void put_rows(sink *s, const trace *t)
{
    const char *before = "\n  ";
    sink_puts(s, ",\n \"rows\": [");
    for (size_t i = 0; i < t->count; i++) {
        if (t->step[i].kind != TRACE_WEIGHTS || t->step[i].aside) {
            continue;
        }
        grid g = grid_of(t, &t->step[i]);
        for (int64_t r = 0; r < g.heads * g.rows; r++) {
            char label[LABEL_BYTES];
            row_health h = grid_health(&g, r / g.rows, r % g.rows);
            sink_printf(s,
                        "%s{\"step\": \"%s\", \"head\": %lld, \"row\": %lld, \"query\": ", before,
                        g.step->name, (long long)(r / g.rows), (long long)(r % g.rows));
            put_string(s, grid_row_label(&g, r % g.rows, label));
            sink_puts(s, ", \"entropy_bits\": ");
            put_real(s, h.bits, false);
            sink_puts(s, ", \"max_weight\": ");
            put_real(s, h.largest, false);
            sink_puts(s, "}");
            before = ",\n  ";
        }
    }
    sink_puts(s, "]");
}

static void put_notes(sink *s, const trace *t)
{
    const char *before = "";
    sink_puts(s, ",\n \"notes\": [");
    for (const char *line = t->notes; line != NULL && *line != '\0';) {
        size_t label = strcspn(line, "\t\n"), length = strcspn(line, "\n");
        size_t from = label < length ? label + 1 : length;
        char *copy = strndup(line, length);
        if (copy == NULL) {
            s->failed = true;
            return;
        }
        copy[label] = '\0';
        sink_printf(s, "%s{\"label\": ", before);
        put_string(s, copy);
        put_member(s, "text", copy + from);
        sink_puts(s, "}");
        free(copy);
        line += length + (line[length] == '\n');
        before = ", ";
    }
    sink_puts(s, "]");
}

static void put_words(sink *s, const trace *t)
{
    sink_puts(s, ",\n \"tokens\": [");
    for (size_t i = 0; i < t->words.count; i++) {
        sink_puts(s, i > 0 ? ", " : "");
        put_string(s, t->words.word[i]);
    }
    sink_puts(s, "],\n \"vocabulary\": {");
    for (size_t i = 0; i < t->words.vocabulary_count; i++) {
        sink_puts(s, i > 0 ? ", " : "");
        put_string(s, t->words.vocabulary[i]);
        sink_printf(s, ": %zu", i);
    }
    sink_puts(s, "}");
}

int render_json(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    sink s = {0};
    sink_printf(&s, "{\"schema\": \"attn.%s/1\"", t->command);
    if (t->lesson != NULL) {
        put_member(&s, "lesson", t->lesson);
    }
    put_member(&s, "title", t->title != NULL ? t->title : "");
    put_member(&s, "text", t->text != NULL ? t->text : "");
    put_member(&s, "setting", t->setting != NULL ? t->setting : "");
    sink_printf(&s, ", \"heads\": %lld, \"query\": %lld", (long long)t->heads, (long long)t->query);
    put_words(&s, t);
    sink_puts(&s, ",\n \"steps\": [");
    const char *before = "\n  ";
    for (size_t i = 0; i < t->count; i++) {
        if (!t->step[i].aside) {
            sink_puts(&s, before);
            put_step(&s, &t->step[i]);
            before = ",\n  ";
        }
    }
    sink_puts(&s, "]");
    put_rows(&s, t);
    put_notes(&s, t);
    sink_puts(&s, "}\n");
    return sink_finish(&s, bytes, size, err);
}
