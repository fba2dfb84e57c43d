/* Steps and calls of libattn that all recipes share; see recipe.h. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "recipe.h"

static void set_string(recipe *r, char **slot, const char *value)
{
    free(*slot);
    *slot = value != NULL ? strdup(value) : NULL;
    if (value != NULL && *slot == NULL) {
        recipe_fail(r, KIT_LIMIT, "no memory");
    }
}

recipe recipe_begin(trace *t, attn_context *ctx, kit_error *err, const char *lesson,
                    const char *title, const char *text)
{
    memset(t, 0, sizeof *t);
    recipe r = {t, ctx, err, KIT_OK, NULL, false, false, 0};
    t->heads = 1;
    t->query = -1;
    set_string(&r, &t->command, lesson != NULL ? "lesson" : text != NULL ? "explain" : "train");
    set_string(&r, &t->lesson, lesson);
    set_string(&r, &t->title, title);
    set_string(&r, &t->text, text);
    if (r.status == KIT_OK && text != NULL) {
        r.status = kit_words_split(&t->words, text, err);
    }
    return r;
}

void recipe_setting(recipe *r, const char *format, ...)
{
    char line[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    set_string(r, &r->trace->setting, line);
}

int recipe_end(recipe *r)
{
    if (r->status != KIT_OK) {
        trace_free(r->trace);
    }
    return r->status;
}

int recipe_fail(recipe *r, int code, const char *format, ...)
{
    if (r->status == KIT_OK) {
        char message[512];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        r->status = kit_fail(r->err, code, "%s", message);
    }
    return r->status;
}

void recipe_engine(recipe *r, attn_status status, const attn_error *e)
{
    if (r->status == KIT_OK) {
        r->status = kit_engine(status, e, r->err);
    }
}

/* ------------------------------------------------------------------------------------- Steps */

kit_array recipe_step(recipe *r, const char *name, trace_kind kind, attn_dtype dtype, int rank,
                      const int64_t *shape)
{
    kit_array a = {0};
    if (r->status != KIT_OK) {
        return a;
    }
    r->status = kit_array_new(&a, dtype, rank, shape, r->err);
    return recipe_add_owned(r, name, kind, &a);
}

kit_array recipe_add_owned(recipe *r, const char *name, trace_kind kind, kit_array *tensor)
{
    trace_step *s = NULL;
    if (r->status == KIT_OK) {
        s = r->html_only ? trace_add_html_only(r->trace, name, kind, tensor, r->err)
                         : trace_add(r->trace, name, kind, tensor, r->err);
        r->status = s != NULL ? KIT_OK : KIT_LIMIT;
    }
    if (s == NULL) {
        kit_array_free(tensor);
        return *tensor;
    }
    set_string(r, &s->section, r->section);
    s->after_notebook = r->after_notebook;
    s->layer = r->layer;
    return s->tensor;
}

kit_array recipe_add_copy(recipe *r, const char *name, trace_kind kind, attn_dtype dtype, int rank,
                          const int64_t *shape, const void *data)
{
    kit_array a = recipe_step(r, name, kind, dtype, rank, shape);
    if (a.bytes > 0) {
        memcpy(a.data, data, a.bytes);
    }
    return a;
}

static trace_step *last(recipe *r)
{
    size_t count = r->trace->count + r->trace->html_only_count;
    return r->status == KIT_OK && count > 0 ? &r->trace->step[count - 1] : NULL;
}

void recipe_describe(recipe *r, const char *title, const char *formula, const char *format, ...)
{
    trace_step *s = last(r);
    if (s == NULL) {
        return;
    }
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    set_string(r, &s->title, title);
    set_string(r, &s->formula, formula);
    set_string(r, &s->sentence, sentence);
}

void recipe_set_provenance(recipe *r, trace_op op, const char *a, const char *b, double factor)
{
    trace_step *s = last(r);
    if (s != NULL) {
        s->op = op;
        s->factor = factor;
        set_string(r, &s->a, a);
        set_string(r, &s->b, b);
    }
}

void recipe_causal(recipe *r, int64_t window)
{
    trace_step *s = last(r);
    if (s != NULL) {
        s->causal = true;
        s->window = window;
    }
}

static void set_labels(recipe *r, char ***slot, size_t *slot_count, const char *const *labels,
                       size_t count)
{
    char **copy = calloc(count > 0 ? count : 1, sizeof *copy);
    if (copy == NULL) {
        recipe_fail(r, KIT_LIMIT, "no memory");
        return;
    }
    *slot = copy;
    *slot_count = count;
    for (size_t i = 0; i < count; i++) {
        set_string(r, &copy[i], labels[i]);
    }
}

void recipe_rows(recipe *r, const char *const *labels, size_t count)
{
    trace_step *s = last(r);
    if (s != NULL && s->row_labels == NULL) {
        set_labels(r, &s->row_labels, &s->row_label_count, labels, count);
    }
}

void recipe_columns(recipe *r, const char *const *labels, size_t count)
{
    trace_step *s = last(r);
    if (s != NULL && s->column_labels == NULL) {
        set_labels(r, &s->column_labels, &s->column_label_count, labels, count);
    }
}

void recipe_word_rows(recipe *r)
{
    recipe_rows(r, (const char *const *)r->trace->words.word, r->trace->words.count);
}

void recipe_word_columns(recipe *r)
{
    recipe_columns(r, (const char *const *)r->trace->words.word, r->trace->words.count);
}

void recipe_small(recipe *r)
{
    trace_step *s = last(r);
    if (s != NULL) {
        s->small = true;
    }
}

void recipe_set_layer_step(recipe *r, int64_t layer, int64_t moment)
{
    trace_step *s = last(r);
    if (s != NULL) {
        s->layer = layer;
        s->moment = moment + 1;
    }
}

void recipe_printed(recipe *r, const char *verbatim)
{
    trace_step *s = last(r);
    if (s != NULL) {
        set_string(r, &s->printed, verbatim);
    }
}

void recipe_slack(recipe *r, double slack, double part, const char *why)
{
    trace_step *s = last(r);
    if (s != NULL) {
        s->slack = slack;
        s->slack_part = part;
        set_string(r, &s->slack_why, why);
    }
}

void recipe_check_only(recipe *r, const char *title, const char *verbatim)
{
    trace_step *s = last(r);
    if (s != NULL) {
        s->check_only = true;
        set_string(r, &s->title, title);
        set_string(r, &s->printed, verbatim);
    }
}

/* Appends "label<TAB>text" to the lines at *slot. */
static void add_labelled(recipe *r, char **slot, const char *label, const char *format,
                         va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    const char *before = *slot != NULL ? *slot : "";
    size_t used = strlen(before), size = used + strlen(label) + (size_t)length + 3;
    char *joined = r->status == KIT_OK ? malloc(size) : NULL;
    if (joined == NULL) {
        recipe_fail(r, KIT_LIMIT, "no memory");
        return;
    }
    used = (size_t)sprintf(joined, "%s%s\t", before, label);
    used += (size_t)vsnprintf(joined + used, size - used, format, arguments);
    strcpy(joined + used, "\n");
    free(*slot);
    *slot = joined;
}

void recipe_note(recipe *r, const char *label, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_labelled(r, &r->trace->notes, label, format, arguments);
    va_end(arguments);
}

void recipe_fact(recipe *r, const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_labelled(r, &r->trace->facts, name, format, arguments);
    va_end(arguments);
}

/* ------------------------------------------------------------------------------------- Views */

attn_tensor recipe_view(kit_array a)
{
    int64_t size[4] = {1, 1, 1, 1};
    for (int i = 0; i < a.rank && i < 4; i++) {
        size[4 - a.rank + i] = a.shape[i];
    }
    return attn_bhtd(a.data, a.dtype, size[0], size[1], size[2], size[3]);
}

attn_tensor recipe_row(kit_array a, int64_t i)
{
    attn_tensor t = recipe_view(a);
    if (t.data != NULL) {
        t.data = (char *)t.data + (size_t)(i * t.stride[2]) * attn_dtype_size(t.dtype);
    }
    t.shape[2] = 1;
    return t;
}

attn_tensor recipe_swapped(attn_tensor t)
{
    int64_t size = t.shape[2], stride = t.stride[2];
    t.shape[2] = t.shape[3];
    t.stride[2] = t.stride[3];
    t.shape[3] = size;
    t.stride[3] = stride;
    return t;
}

attn_tensor recipe_repeat(attn_tensor t, int64_t heads)
{
    t.shape[1] = heads;
    t.stride[1] = 0;
    return t;
}

/* -------------------------------------------------------------------------------- The engine */

void recipe_lookup(recipe *r, kit_array ids, kit_array table, kit_array out)
{
    if (r->status == KIT_OK) {
        attn_error e;
        attn_tensor from = recipe_view(table), to = recipe_view(out);
        recipe_engine(
            r, attn_embedding_forward(r->ctx, &from, ids.data, kit_array_count(&ids), &to, &e), &e);
    }
}

void recipe_linear(recipe *r, attn_tensor x, attn_tensor weight, const attn_tensor *bias,
                   attn_tensor out)
{
    if (r->status == KIT_OK) {
        attn_error e;
        recipe_engine(r, attn_linear_forward(r->ctx, &x, &weight, bias, &out, &e), &e);
    }
}

static attn_sdpa_args attention_args(const recipe_attention *a)
{
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = a->q;
    args.k = a->k;
    args.v = a->v;
    args.scale = a->scale;
    args.causal = a->causal ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    args.mask = a->mask;
    /* Accurate, so that readers and the page can reproduce the digits: in float, scores of 100
     * would leave weights uncertain by 2e-5. */
    args.precision = ATTN_PRECISION_ACCURATE;
    return args;
}

void recipe_scores(recipe *r, const recipe_attention *a, attn_stage stage, attn_tensor scores)
{
    if (r->status != KIT_OK) {
        return;
    }
    /* The call also needs room for the context, which this step does not show. */
    attn_sdpa_args args = attention_args(a);
    kit_array unused = {0};
    int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->v.shape[3]};
    r->status = kit_array_new(&unused, a->q.dtype, 4, shape, r->err);
    if (r->status == KIT_OK) {
        attn_error e;
        args.out = recipe_view(unused);
        args.scores = &scores;
        args.scores_stage = stage;
        recipe_engine(r, attn_sdpa_forward(r->ctx, &args, &e), &e);
    }
    kit_array_free(&unused);
}

void recipe_finite(recipe *r, kit_array a, const char *what, const char *cause)
{
    bool finite = true;
    for (int64_t i = 0; r->status == KIT_OK && i < kit_array_count(&a); i++)
        finite &= isfinite(((const float *)a.data)[i]) != 0;
    if (!finite)
        recipe_fail(r, KIT_NOT_FINITE, "%s is not finite; %s", what, cause);
}

void recipe_context(recipe *r, const recipe_attention *a, attn_tensor out)
{
    if (r->status == KIT_OK) {
        attn_error e;
        attn_sdpa_args args = attention_args(a);
        args.out = out;
        recipe_engine(r, attn_sdpa_forward(r->ctx, &args, &e), &e);
    }
}
