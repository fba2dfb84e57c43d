/* Traces of many kinds for the tests of the renderers: the lessons, and sentences of 1 to 300
 * words. */
#ifndef EXPLAIN_SAMPLES_H
#define EXPLAIN_SAMPLES_H

#include "explain_testing.h"

typedef struct sample {
    const char *lesson; /* or */
    int64_t words, heads;
    bool causal;
    double scale;
    const char *text;
} sample;

static const sample samples[] = {
    {.lesson = "dessert"},
    {.lesson = "sky"},
    {.lesson = "module"},
    {.lesson = "numpy"},
    {.lesson = "journey"},
    {.text = "Life is short, eat dessert last", .heads = 1},
    {.text = "Life is short, eat dessert last", .heads = 3, .causal = true, .scale = 0.0128},
    {.text = "alone", .heads = 1},
    {.text = "alone", .heads = 2, .causal = true},
    {.text = "今天 天气 很好 don't antidisestablishmentarianism 😀 مرحبا e-mail ünïcödé",
     .heads = 1},
    {.text = "a\x1b[31mb <&\"'> x\x07y \xe2\x80\xaez \xef\xbf\xbe", .heads = 1, .scale = 0.02},
    {.words = 13, .heads = 1, .causal = true, .scale = 0.02},
    {.words = 40, .heads = 2, .scale = 0.02},
    {.words = 41, .heads = 1},
    {.words = 70, .heads = 1, .causal = true},
    {.words = 300, .heads = 1, .causal = true, .scale = 0.02},
};

static inline void build(trace *t, const sample *s)
{
    char text[8192];
    explain_options o = EXPLAIN_OPTIONS_INIT;
    if (s->lesson != NULL) {
        build_lesson(t, s->lesson);
        return;
    }
    random_state = 7;
    if (s->text == NULL)
        random_sentence(text, sizeof text, s->words);
    o.text = s->text != NULL ? s->text : text;
    o.heads = s->heads;
    o.causal = s->causal;
    o.scale = s->scale;
    build_explain(t, &o);
}

static inline char *rendered(render_function render, const trace *t, size_t *size)
{
    struct {
        char *bytes;
    } out = {NULL};
    kit_error e = {0};
    if (render(&out.bytes, size, t, &e) != KIT_OK)
        fail_msg("%s", e.message);
    assert_int_equal(out.bytes[*size], 0);
    return out.bytes;
}

/* NaN, infinities and other oddities in every float step: what never happens in a sound run. */
static inline void spoil(trace *t)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e-42f, -0.0f};
    for (size_t n = 0; n < t->count; n++) {
        kit_array *a = &t->step[n].tensor;
        for (int64_t k = 0; a->dtype == ATTN_F32 && k < kit_array_count(a); k += 1 + pick(5))
            ((float *)a->data)[k] = odd[pick((int64_t)COUNT(odd))];
    }
}

static inline void expect_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in:\n%s", part, text);
}

#endif
