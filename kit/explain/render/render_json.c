/* A trace as one JSON object: schema attn.explain/1, attn.lesson/1 or attn.train/1.
 *
 * Every float is written with the fewest digits that read back as the same float. Values that JSON
 * numbers cannot express are the strings "inf", "-inf" and "nan". The JSON is written directly,
 * without a tree of objects for the numbers of a matrix.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "render_json.h"

static void put_bytes(void *to, const char *bytes, size_t size) { sink_write(to, bytes, size); }

static void put_string(sink *s, const char *text) { kit_text_json(text, put_bytes, s); }

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

static void put_shape(sink *s, const kit_array *a)
{
    sink_puts(s, "{\"shape\": [");
    for (int i = 0; i < a->rank; i++) {
        sink_printf(s, "%s%lld", i > 0 ? ", " : "", (long long)a->shape[i]);
    }
    sink_printf(s, "], \"dtype\": \"%s\"", attn_dtype_name(a->dtype));
}

static void put_numbers(sink *s, const kit_array *a)
{
    sink_puts(s, ", \"data\": [");
    int64_t count = kit_array_count(a);
    for (int64_t i = 0; i < count; i++) {
        sink_puts(s, i > 0 ? ", " : "");
        if (a->dtype == ATTN_I64) {
            sink_printf(s, "%lld", (long long)((const int64_t *)a->data)[i]);
        } else {
            put_real(s, kit_array_get(a, i), a->dtype != ATTN_F64);
        }
    }
    sink_puts(s, "]");
}

/* Writes the elements' bytes, little-endian, as base64. */
static void put_base64(sink *s, const kit_array *a)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *byte = a->data;
    char line[4 * 1024];
    size_t used = 0;
    sink_printf(s, ", \"%s\": \"", a->dtype == ATTN_F16 ? "f16" : "f32");
    for (size_t i = 0; i < a->bytes; i += 3) {
        size_t left = a->bytes - i;
        uint32_t x = (uint32_t)byte[i] << 16 | (left > 1 ? (uint32_t)byte[i + 1] << 8 : 0) |
                     (left > 2 ? byte[i + 2] : 0);
        line[used++] = digits[x >> 18];
        line[used++] = digits[x >> 12 & 63];
        line[used++] = left > 1 ? digits[x >> 6 & 63] : '=';
        line[used++] = left > 2 ? digits[x & 63] : '=';
        if (used == sizeof line) {
            sink_write(s, line, used);
            used = 0;
        }
    }
    sink_write(s, line, used);
    sink_puts(s, "\"");
}

static void put_tensor(sink *s, const trace_step *step, const json_style *style)
{
    const kit_array *a = &step->tensor;
    json_form form = style->form != NULL ? style->form(step, style->self) : JSON_NUMBERS;
    put_shape(s, a);
    if (form == JSON_NUMBERS) {
        put_numbers(s, a);
    } else if (form != JSON_DERIVED) {
        kit_array bytes = {0};
        attn_dtype dtype = form == JSON_F16 ? ATTN_F16 : ATTN_F32;
        s->failed = kit_array_convert(&bytes, a, dtype, NULL) != KIT_OK || s->failed;
        if (!s->failed) {
            put_base64(s, &bytes);
        }
        kit_array_free(&bytes);
    }
    sink_puts(s, "}");
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

static const char *const kind_names[] = {"ids",    "values", "scores",       "weights",
                                         "scalar", "curve",  "probabilities"};

static const char *const op_names[] = {"given", "lookup",  "project", "dot",    "scale",
                                       "mask",  "softmax", "mix",     "attend", "norm",
                                       "slope", "maker",   "products"};

/* Writes how the numbers were computed: {"op": "scale", "a": "scores", "factor": 0.2041...}. */
static void put_made(sink *s, const trace_step *step)
{
    sink_printf(s, ", \"made\": {\"op\": \"%s\"", op_names[step->op]);
    if (step->a != NULL) {
        put_member(s, "a", step->a);
    }
    if (step->b != NULL) {
        put_member(s, "b", step->b);
    }
    if (step->factor != 0) {
        sink_puts(s, ", \"factor\": ");
        put_real(s, step->factor, false);
    }
    if (step->window > 0) {
        sink_printf(s, ", \"window\": %lld", (long long)step->window);
    }
    sink_puts(s, step->causal ? ", \"causal\": true}" : "}");
}

/* Writes the members that only some steps have. */
static void put_rare(sink *s, const trace_step *step)
{
    if (step->small) {
        sink_puts(s, ", \"minor\": true");
    }
    if (step->check_only) {
        sink_puts(s, ", \"aside\": true");
    }
    if (step->layer > 0) {
        sink_printf(s, ", \"layer\": %lld", (long long)step->layer);
    }
    if (step->moment > 0) {
        sink_printf(s, ", \"moment\": %lld", (long long)step->moment - 1);
    }
    if (step->printed != NULL && !step->check_only) {
        put_member(s, "printed", step->printed);
    }
}

static void put_step(sink *s, const trace_step *step, const json_style *style)
{
    sink_puts(s, "{\"name\": ");
    put_string(s, step->name);
    put_member(s, "title", step->title != NULL ? step->title : "");
    put_member(s, "formula", step->formula != NULL ? step->formula : "");
    put_member(s, "sentence", step->sentence != NULL ? step->sentence : "");
    put_member(s, "section", step->section != NULL ? step->section : "");
    put_member(s, "kind", kind_names[step->kind]);
    sink_printf(s, ", \"beyond\": %s", step->after_notebook ? "true" : "false");
    put_labels(s, "rows", step->row_labels, step->row_label_count);
    put_labels(s, "columns", step->column_labels, step->column_label_count);
    put_made(s, step);
    put_rare(s, step);
    sink_puts(s, ",\n   \"tensor\": ");
    put_tensor(s, step, style);
    sink_puts(s, "}");
}

/* Writes the entropy and the largest weight of every row of every step of weights. */
static void put_rows(sink *s, const trace *t)
{
    const char *before = "\n  ";
    sink_puts(s, ",\n \"rows\": [");
    for (size_t i = 0; i < t->count; i++) {
        if (t->step[i].kind != TRACE_WEIGHTS || t->step[i].check_only) {
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

/* Leaves out steps that exist only for comparison, except the scores behind weights, which a page
 * needs. */
static bool is_shown(const trace *t, const trace_step *step, const json_style *style)
{
    if (!step->check_only) {
        return true;
    }
    for (size_t i = 0; style->form != NULL && i < t->count; i++) {
        const trace_step *w = &t->step[i];
        if (w->kind == TRACE_WEIGHTS && w->a != NULL && strcmp(w->a, step->name) == 0) {
            return true;
        }
    }
    return false;
}

void json_put_trace(sink *s, const trace *t, const json_style *style)
{
    sink_printf(s, "{\"schema\": \"attn.%s/1\"", t->command);
    if (t->lesson != NULL) {
        put_member(s, "lesson", t->lesson);
    }
    put_member(s, "title", t->title != NULL ? t->title : "");
    put_member(s, "text", t->text != NULL ? t->text : "");
    put_member(s, "setting", t->setting != NULL ? t->setting : "");
    sink_printf(s, ", \"heads\": %lld, \"query\": %lld", (long long)t->heads, (long long)t->query);
    if (t->head > 0) {
        sink_printf(s, ", \"head\": %lld", (long long)t->head);
    }
    put_words(s, t);
    sink_puts(s, ",\n \"steps\": [");
    const char *before = "\n  ";
    const size_t count = t->count + (style->form != NULL ? t->html_only_count : 0);
    for (size_t i = 0; i < count; i++) {
        if (is_shown(t, &t->step[i], style)) {
            sink_puts(s, before);
            put_step(s, &t->step[i], style);
            before = ",\n  ";
        }
    }
    sink_puts(s, "]");
    if (style->form == NULL) {
        put_rows(s, t);
    }
    put_notes(s, t);
    sink_puts(s, "}\n");
}

int render_json(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    sink s = {0};
    json_put_trace(&s, t, &(json_style){NULL, NULL});
    return sink_finish(&s, bytes, size, err);
}
