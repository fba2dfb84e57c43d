/* A trace as one JSON object: schema attn.explain/1, attn.lesson/1 or attn.train/1.
 *
 * Every float is written with the fewest digits that read back as the same float. Values that JSON
 * numbers cannot express are the strings "inf", "-inf" and "nan".
 */
#include <stdlib.h>
#include <string.h>

#include "../explain.h"
#include "render_json.h"

static void put_bytes(void *to, const char *bytes, size_t size) { sink_write(to, bytes, size); }

json_writer json_writer_sink(sink *s)
{
    json_writer j = json_writer_to(put_bytes, s);
    j.spaced = true;
    return j;
}

static void put_numbers(json_writer *j, const kit_array *a)
{
    const int64_t count = kit_array_count(a);
    json_put_array(j, "data");
    for (int64_t i = 0; i < count; i++) {
        if (a->dtype == ATTN_I64) {
            json_put_integer(j, NULL, ((const int64_t *)a->data)[i]);
        } else if (a->dtype == ATTN_F64) {
            json_put_real(j, NULL, kit_array_get(a, i));
        } else {
            json_put_float(j, NULL, kit_array_get(a, i));
        }
    }
    json_end_array(j);
}

/* Writes the elements' bytes, little-endian, as base64. */
static bool put_elements(json_writer *j, const kit_array *a, attn_dtype dtype)
{
    kit_array to = {0};
    if (kit_array_convert(&to, a, dtype, NULL) != KIT_OK) {
        return false;
    }
    json_put_base64(j, dtype == ATTN_F16 ? "f16" : "f32", to.data, to.bytes);
    kit_array_free(&to);
    return true;
}

/* This function and those that use it return false if there is not enough memory. */
static bool put_tensor(json_writer *j, const trace_step *step, const json_style *style)
{
    const kit_array *a = &step->tensor;
    const json_form form = style->form != NULL ? style->form(step, style->self) : JSON_NUMBERS;
    bool ok = true;
    json_put_object(j, "tensor");
    json_put_sizes(j, "shape", a->shape, a->rank);
    json_put_text(j, "dtype", attn_dtype_name(a->dtype));
    if (form == JSON_NUMBERS) {
        put_numbers(j, a);
    } else if (form != JSON_DERIVED) {
        ok = put_elements(j, a, form == JSON_F16 ? ATTN_F16 : ATTN_F32);
    }
    json_end_object(j);
    return ok;
}

static void put_texts(json_writer *j, const char *key, char *const *text, size_t count)
{
    json_put_array(j, key);
    for (size_t i = 0; i < count; i++) {
        json_put_text(j, NULL, text[i]);
    }
    json_end_array(j);
}

static void put_labels(json_writer *j, const char *key, char **labels, size_t count)
{
    if (labels != NULL) {
        put_texts(j, key, labels, count);
    }
}

static const char *const kind_names[] = {"ids",    "values", "scores",       "weights",
                                         "scalar", "curve",  "probabilities"};

static const char *const op_names[] = {"given", "lookup",  "project",  "dot",     "scale",
                                       "mask",  "softmax", "mix",      "attend",  "norm",
                                       "slope", "maker",   "computed", "products"};

/* Writes how the numbers were computed: {"op": "scale", "a": "scores", "factor": 0.2041...}. */
static void put_made(json_writer *j, const trace_step *step)
{
    json_put_object(j, "made");
    json_put_text(j, "op", op_names[step->op]);
    if (step->a != NULL) {
        json_put_text(j, "a", step->a);
    }
    if (step->b != NULL) {
        json_put_text(j, "b", step->b);
    }
    if (step->factor != 0) {
        json_put_real(j, "factor", step->factor);
    }
    if (step->window > 0) {
        json_put_integer(j, "window", step->window);
    }
    if (step->causal) {
        json_put_flag(j, "causal", true);
    }
    json_end_object(j);
}

/* Writes the members that only some steps have. */
static void put_rare(json_writer *j, const trace_step *step)
{
    if (step->small) {
        json_put_flag(j, "minor", true);
    }
    if (step->check_only) {
        json_put_flag(j, "aside", true);
    }
    if (step->layer > 0) {
        json_put_integer(j, "layer", step->layer);
    }
    if (step->moment > 0) {
        json_put_integer(j, "moment", step->moment - 1);
    }
    if (step->printed != NULL && !step->check_only) {
        json_put_text(j, "printed", step->printed);
    }
}

static const char *or_empty(const char *text) { return text != NULL ? text : ""; }

static bool put_step(json_writer *j, const trace_step *step, const json_style *style)
{
    json_put_object(j, NULL);
    json_put_text(j, "name", step->name);
    json_put_text(j, "title", or_empty(step->title));
    json_put_text(j, "formula", or_empty(step->formula));
    json_put_text(j, "sentence", or_empty(step->sentence));
    json_put_text(j, "section", or_empty(step->section));
    json_put_text(j, "kind", kind_names[step->kind]);
    json_put_flag(j, "beyond", step->after_notebook);
    put_labels(j, "rows", step->row_labels, step->row_label_count);
    put_labels(j, "columns", step->column_labels, step->column_label_count);
    put_made(j, step);
    put_rare(j, step);
    json_new_line(j, 3);
    const bool ok = put_tensor(j, step, style);
    json_end_object(j);
    return ok;
}

static void put_row(json_writer *j, const grid *g, int64_t head, int64_t row)
{
    char label[LABEL_BYTES];
    const row_health h = grid_health(g, head, row);
    json_new_line(j, 2);
    json_put_object(j, NULL);
    json_put_text(j, "step", g->step->name);
    json_put_integer(j, "head", head);
    json_put_integer(j, "row", row);
    json_put_text(j, "query", grid_row_label(g, row, label));
    json_put_real(j, "entropy_bits", h.bits);
    json_put_real(j, "max_weight", h.largest);
    json_end_object(j);
}

/* Writes the entropy and the largest weight of every row of every step of weights. */
static void put_rows(json_writer *j, const trace *t)
{
    json_new_line(j, 1);
    json_put_array(j, "rows");
    for (size_t i = 0; i < t->count; i++) {
        if (t->step[i].kind != TRACE_WEIGHTS || t->step[i].check_only) {
            continue;
        }
        const grid g = grid_of(t, &t->step[i]);
        for (int64_t r = 0; r < g.heads * g.rows; r++) {
            put_row(j, &g, r / g.rows, r % g.rows);
        }
    }
    json_end_array(j);
}

static bool put_notes(json_writer *j, const trace *t)
{
    json_new_line(j, 1);
    json_put_array(j, "notes");
    for (const char *line = t->notes; line != NULL && *line != '\0';) {
        size_t label = strcspn(line, "\t\n"), length = strcspn(line, "\n");
        size_t from = label < length ? label + 1 : length;
        char *copy = strndup(line, length);
        if (copy == NULL) {
            return false;
        }
        copy[label] = '\0';
        json_put_object(j, NULL);
        json_put_text(j, "label", copy);
        json_put_text(j, "text", copy + from);
        json_end_object(j);
        free(copy);
        line += length + (line[length] == '\n');
    }
    json_end_array(j);
    return true;
}

static void put_words(json_writer *j, const kit_words *words)
{
    json_new_line(j, 1);
    put_texts(j, "tokens", words->word, words->count);
    json_new_line(j, 1);
    json_put_object(j, "vocabulary");
    for (size_t i = 0; i < words->vocabulary_count; i++) {
        json_put_integer(j, words->vocabulary[i], (int64_t)i);
    }
    json_end_object(j);
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

/* Writes what a page needs to compute the trace again. The seed has 64 bits, more than a number of
 * JavaScript. */
static void put_options(json_writer *j, const explain_options *o)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    json_new_line(j, 1);
    json_put_object(j, "options");
    json_put_text(j, "seed", seed);
    json_put_integer(j, "embed", o->embed);
    json_put_integer(j, "qk", o->qk);
    json_put_integer(j, "v", o->v);
    json_put_integer(j, "heads", o->heads);
    json_put_flag(j, "causal", o->causal);
    json_put_flag(j, "no_scale", o->no_scale);
    json_put_real(j, "scale", o->scale);
    json_end_object(j);
}

static bool put_steps(json_writer *j, const trace *t, const json_style *style)
{
    const size_t count = t->count + (style->form != NULL ? t->html_only_count : 0);
    bool ok = true;
    json_new_line(j, 1);
    json_put_array(j, "steps");
    for (size_t i = 0; i < count; i++) {
        if (is_shown(t, &t->step[i], style)) {
            json_new_line(j, 2);
            ok = put_step(j, &t->step[i], style) && ok;
        }
    }
    json_end_array(j);
    return ok;
}

bool json_put_trace(json_writer *j, const char *key, const trace *t, const json_style *style)
{
    char schema[64];
    snprintf(schema, sizeof schema, "attn.%s/1", t->command);
    json_put_object(j, key);
    json_put_text(j, "schema", schema);
    if (t->lesson != NULL) {
        json_put_text(j, "lesson", t->lesson);
    }
    json_put_text(j, "title", or_empty(t->title));
    json_put_text(j, "text", or_empty(t->text));
    json_put_text(j, "setting", or_empty(t->setting));
    json_put_integer(j, "heads", t->heads);
    json_put_integer(j, "query", t->query);
    if (t->head > 0) {
        json_put_integer(j, "head", t->head);
    }
    if (t->options != NULL && style->form != NULL) {
        put_options(j, t->options);
    }
    put_words(j, &t->words);
    bool ok = put_steps(j, t, style);
    if (style->form == NULL) {
        put_rows(j, t);
    }
    ok = put_notes(j, t) && ok;
    if (t->script != NULL && style->form != NULL) {
        ok = json_put_script(j, t) && ok;
    }
    if (t->more != NULL) {
        json_new_line(j, 1);
        ok = json_put_trace(j, "trained", t->more, style) && ok;
    }
    json_end_object(j);
    return ok;
}

int render_json(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    sink s = {0};
    json_writer j = json_writer_sink(&s);
    s.failed = !json_put_trace(&j, NULL, t, &(json_style){NULL, NULL}) || s.failed;
    sink_puts(&s, "\n");
    return sink_finish(&s, bytes, size, err);
}
