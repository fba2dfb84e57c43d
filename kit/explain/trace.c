/* The trace: the ordered list of steps that recipes make and renderers draw. These containers own
 * their memory; see trace.h. */
#include <stdlib.h>
#include <string.h>

#include "script.h"
#include "trace.h"

static void free_labels(char **labels, size_t count)
{
    for (size_t i = 0; labels != NULL && i < count; i++) {
        free(labels[i]);
    }
    free(labels);
}

static void free_step(trace_step *s)
{
    free(s->name);
    free(s->title);
    free(s->formula);
    free(s->sentence);
    free(s->section);
    free(s->printed);
    free(s->a);
    free(s->b);
    free(s->slack_why);
    free_labels(s->row_labels, s->row_label_count);
    free_labels(s->column_labels, s->column_label_count);
    kit_array_free(&s->tensor);
}

void trace_free(trace *t)
{
    for (size_t i = 0; i < t->count + t->html_only_count; i++) {
        free_step(&t->step[i]);
    }
    free(t->step);
    free(t->command);
    free(t->title);
    free(t->lesson);
    free(t->text);
    free(t->setting);
    free(t->notes);
    free(t->facts);
    free(t->options);
    if (t->more != NULL) {
        trace_free(t->more);
        free(t->more);
    }
    if (t->script != NULL) {
        script_free(t->script);
        free(t->script);
    }
    kit_words_free(&t->words);
    memset(t, 0, sizeof *t);
}

static trace_step *append(trace *t, const char *name, trace_kind kind, kit_array *tensor,
                          kit_error *err)
{
    if (t->count + t->html_only_count == t->capacity) {
        size_t capacity = t->capacity > 0 ? 2 * t->capacity : 16;
        trace_step *grown = realloc(t->step, capacity * sizeof *grown);
        if (grown == NULL) {
            kit_fail(err, KIT_LIMIT, "no memory for step %s", name);
            return NULL;
        }
        t->step = grown;
        t->capacity = capacity;
    }
    trace_step *s = &t->step[t->count + t->html_only_count];
    memset(s, 0, sizeof *s);
    s->name = strdup(name);
    if (s->name == NULL) {
        kit_fail(err, KIT_LIMIT, "no memory for step %s", name);
        return NULL;
    }
    s->kind = kind;
    s->tensor = *tensor;
    memset(tensor, 0, sizeof *tensor);
    return s;
}

trace_step *trace_add(trace *t, const char *name, trace_kind kind, kit_array *tensor,
                      kit_error *err)
{
    trace_step *s = append(t, name, kind, tensor, err);
    *(t->html_only_count > 0 ? &t->html_only_count : &t->count) += s != NULL;
    return s;
}

trace_step *trace_add_html_only(trace *t, const char *name, trace_kind kind, kit_array *tensor,
                                kit_error *err)
{
    trace_step *s = append(t, name, kind, tensor, err);
    t->html_only_count += s != NULL;
    return s;
}

const trace_step *trace_find(const trace *t, const char *name)
{
    for (size_t i = 0; name != NULL && i < t->count + t->html_only_count; i++) {
        if (strcmp(t->step[i].name, name) == 0) {
            return &t->step[i];
        }
    }
    return NULL;
}

const char *trace_fact(const trace *t, const char *name, size_t length, size_t *size)
{
    for (const char *line = t->facts; line != NULL && *line != '\0';) {
        size_t tab = strcspn(line, "\t"), end = strcspn(line, "\n");
        if (tab == length && memcmp(line, name, length) == 0) {
            *size = end - tab - 1;
            return line + tab + 1;
        }
        line += end + (line[end] == '\n');
    }
    return NULL;
}

/* ------------------------------------------------------------------ the row written out in full */

/* Returns the number of rows that a query can be chosen from: the words, or the tallest matrix of
 * weights. */
static int64_t query_rows(const trace *t)
{
    int64_t rows = (int64_t)t->words.count;
    for (size_t i = 0; t->words.count == 0 && i < t->count; i++) {
        const kit_array *a = &t->step[i].tensor;
        if (t->step[i].kind == TRACE_WEIGHTS && a->rank >= 2 && a->shape[a->rank - 2] > rows) {
            rows = a->shape[a->rank - 2];
        }
    }
    return rows;
}

static int refuse_query(const trace *t, const char *query, int64_t rows, kit_error *err)
{
    if (t->words.count == 0) {
        return kit_fail(err, KIT_USAGE, "--query %s: must be a row from 1 to %lld", query,
                        (long long)rows);
    }
    char words[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < t->words.count; i++) {
        size_t length = strlen(t->words.word[i]);
        if (used + length + 6 > sizeof words) {
            strcpy(words + used, " ...");
            break;
        }
        used += (size_t)snprintf(words + used, sizeof words - used, " %s", t->words.word[i]);
    }
    return kit_fail(err, KIT_USAGE, "--query %s: not a word of the sentence; words:%s", query,
                    words);
}

int trace_set_query(trace *t, const char *query, kit_error *err)
{
    int64_t rows = query_rows(t);
    if (query == NULL) {
        t->query = rows > 1 ? 1 : rows - 1;
        return KIT_OK;
    }
    const bool numbered = query[0] == '#' && query[1] >= '0' && query[1] <= '9';
    for (size_t i = 0; i < t->words.count && !numbered; i++) {
        if (strcmp(t->words.word[i], query) == 0) {
            t->query = (int64_t)i;
            return KIT_OK;
        }
    }
    char *end = NULL;
    long position = strtol(query + numbered, &end, 10);
    if (*query == '\0' || *end != '\0' || position < 1 || position > rows) {
        return refuse_query(t, query, rows, err);
    }
    t->query = position - 1;
    return KIT_OK;
}
