/* For the tests of traces and renderers: goldens from tests/data/lessons, and comparing tensors. */
#ifndef EXPLAIN_TESTING_H
#define EXPLAIN_TESTING_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "explain/explain.h"
#include "explain/lessons/lessons.h"
#include "explain/lessons/quiz.h"
#include "explain/render/render.h"
#include "support/test.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

static inline json_t *load_golden(const char *lesson)
{
    char path[4096];
    json_error_t e;
    snprintf(path, sizeof path, "%s/lessons/%s.json", ATTN_TEST_DATA, lesson);
    json_t *golden = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (golden == NULL)
        fail_msg("%s: %s", path, e.text);
    return golden;
}

/* A number, or the string that stands for one that JSON lacks. */
static inline double json_number(const json_t *x)
{
    const char *s = json_string_value(x);
    if (s == NULL)
        return json_number_value(x);
    return strcmp(s, "inf") == 0 ? INFINITY : strcmp(s, "-inf") == 0 ? -INFINITY : NAN;
}

static inline void expect_shape(const kit_array *a, const json_t *shape, const char *what)
{
    if ((size_t)a->rank != json_array_size(shape))
        fail_msg("%s: rank %d, golden has %zu", what, a->rank, json_array_size(shape));
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != json_integer_value(json_array_get(shape, (size_t)i)))
            fail_msg("%s: size %d is %lld", what, i, (long long)a->shape[i]);
}

/* Elements from..from+count of a against data[0..count), each within `part` of the largest. */
static inline void expect_data(const kit_array *a, int64_t from, const json_t *data, double part,
                               const char *what)
{
    size_t count = json_array_size(data);
    double largest = 0;
    for (size_t i = 0; i < count; i++) {
        double x = fabs(json_number(json_array_get(data, i)));
        largest = isfinite(x) ? fmax(largest, x) : largest;
    }
    if (from + (int64_t)count > kit_array_count(a))
        fail_msg("%s: %zu elements expected", what, count);
    for (size_t i = 0; i < count; i++) {
        double got = kit_array_get(a, from + (int64_t)i),
               want = json_number(json_array_get(data, i));
        if (got != want && !(fabs(got - want) <= part * largest))
            fail_msg("%s[%zu] is %.9g, want the golden's %.9g (tolerance %g)", what, i, got, want,
                     part * largest);
    }
}

static inline const kit_array *tensor_of(const trace *t, const char *name)
{
    const trace_step *s = trace_find(t, name);
    if (s == NULL)
        fail_msg("no step %s", name);
    return &s->tensor;
}

static inline void build_lesson(trace *t, const char *name)
{
    kit_error e = {0};
    const explain_lesson *l = lesson_find(name);
    if (l == NULL)
        fail_msg("no lesson %s", name);
    if (lesson_build(l, false, t, NULL, &e) != KIT_OK)
        fail_msg("%s: %s", name, e.message);
}

static inline void build_explain(trace *t, const explain_options *o)
{
    kit_error e = {0};
    if (lesson_explain(t, o, NULL, &e) != KIT_OK)
        fail_msg("\"%s\": %s", o->text, e.message);
}

/* xorshift64* */
static inline int64_t pick(int64_t n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (int64_t)((random_state * UINT64_C(2685821657736338717) >> 33) % (uint64_t)n);
}

/* n words out of a few, some of them twice, some not ASCII. */
static inline void random_sentence(char *text, size_t size, int64_t n)
{
    static const char *const some[] = {"Life",  "is",    "short,", "eat",    "dessert",
                                       "last!", "don't", "e-mail", "größer", "日本",
                                       "😀",     "a",     "(b)",    "Zoo"};
    text[0] = '\0';
    for (int64_t i = 0; i < n; i++) {
        size_t used = strlen(text);
        if (used + 24 > size)
            fail_msg("the test's text is too small");
        snprintf(text + used, size - used, "%s%s%s", i > 0 ? " " : "",
                 some[pick((int64_t)COUNT(some))], pick(40) == 0 ? "\t\n" : "");
    }
}

#endif
