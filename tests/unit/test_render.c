/* The renderers: JSON reads back to the same bits; SVG is well-formed and says the trace's weights; text
 * keeps to its width in every mode; pictures are pictures; a quiz asks for what can be known. */
#include "explain_testing.h"

#include <ctype.h>

/* Traces of many kinds; the lessons, and sentences of 1 to 300 words. */
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
    {.words = 300, .heads = 3, .causal = true, .scale = 0.02},
};

static void build(trace *t, const sample *s)
{
    char text[8192];
    explain_options o = EXPLAIN_OPTIONS_INIT;
    if (s->lesson != NULL) {
        build_lesson(t, s->lesson);
        return;
    }
    draw_state = 7;
    if (s->text == NULL)
        random_sentence(text, sizeof text, s->words);
    o.text = s->text != NULL ? s->text : text;
    o.heads = s->heads;
    o.causal = s->causal;
    o.scale = s->scale;
    build_explain(t, &o);
}

static char *rendered(render_function render, const trace *t, size_t *size)
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

/* ------------------------------------------------------------------------------------- JSON */

static void expect_same_bits(const trace_step *s, json_t *tensor)
{
    const kit_array *a = &s->tensor;
    json_t *data = json_object_get(tensor, "data");
    expect_shape(a, json_object_get(tensor, "shape"), s->name);
    assert_string_equal(json_string_value(json_object_get(tensor, "dtype")),
                        attn_dtype_name(a->dtype));
    assert_int_equal(json_array_size(data), kit_array_count(a));
    for (size_t i = 0; i < json_array_size(data); i++) {
        double x = json_number(json_array_get(data, i)), want = kit_array_get(a, (int64_t)i);
        bool same = a->dtype == ATTN_F32 ? (float)x == (float)want : x == want;
        if (!same && !(isnan(x) && isnan(want)))
            fail_msg("%s[%zu] reads back as %.17g, was %.17g", s->name, i, x, want);
    }
}

static void expect_json(const trace *t)
{
    size_t size, step = 0;
    json_error_t e;
    char *text = rendered(render_json, t, &size);
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    if (root == NULL)
        fail_msg("%s at %d", e.text, e.position);
    const char *schema = json_string_value(json_object_get(root, "schema"));
    assert_string_equal(schema, t->lesson != NULL ? "attn.lesson/1" : "attn.explain/1");
    json_t *tokens = json_object_get(root, "tokens"), *steps = json_object_get(root, "steps");
    assert_int_equal(json_array_size(tokens), t->words.count);
    for (size_t i = 0; i < t->words.count; i++) {
        const char *word = json_string_value(json_array_get(tokens, i));
        assert_string_equal(word, t->words.word[i]);
        json_t *id = json_object_get(json_object_get(root, "vocabulary"), word);
        assert_int_equal(json_integer_value(id), t->words.id[i]);
    }
    for (size_t i = 0; i < t->count; i++) {
        if (t->step[i].aside)
            continue;
        json_t *s = json_array_get(steps, step++);
        assert_string_equal(json_string_value(json_object_get(s, "name")), t->step[i].name);
        assert_non_null(json_string_value(json_object_get(s, "title")));
        assert_non_null(json_string_value(json_object_get(s, "formula")));
        expect_same_bits(&t->step[i], json_object_get(s, "tensor"));
    }
    assert_int_equal(json_array_size(steps), step);
    json_decref(root);
    free(text);
}

static void test_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(samples); i++) {
        trace t;
        build(&t, &samples[i]);
        expect_json(&t);
        trace_free(&t);
    }
}

/* Entropy and largest weight of each row, computed here from the weights shown. */
static void test_json_rows(void **state)
{
    (void)state;
    size_t size;
    trace t;
    build(&t, &samples[6]);
    char *text = rendered(render_json, &t, &size);
    json_t *root = json_loads(text, 0, NULL), *rows = json_object_get(root, "rows");
    const kit_array *w = tensor_of(&t, "weights");
    assert_int_equal(json_array_size(rows), 18);
    for (int64_t r = 0; r < 18; r++) {
        double bits = 0, largest = 0;
        for (int64_t j = 0; j < 6; j++) {
            double x = kit_array_get(w, r * 6 + j);
            bits -= x > 0 ? x * log2(x) : 0;
            largest = fmax(largest, x);
        }
        json_t *row = json_array_get(rows, (size_t)r);
        assert_int_equal(json_integer_value(json_object_get(row, "head")), r / 6);
        assert_int_equal(json_integer_value(json_object_get(row, "row")), r % 6);
        double got = json_number(json_object_get(row, "entropy_bits"));
        assert_true(fabs(got - fabs(bits)) < 1e-12);
        assert_true(json_number(json_object_get(row, "max_weight")) == largest);
    }
    json_decref(root);
    free(text);
    trace_free(&t);
}

/* ------------------------------------------------------------------------------------- SVG */

/* A reader of just enough XML to be strict: elements closed in order, attributes quoted and unique in
 * their quotes, known entities, no control characters, valid UTF-8 (by kit_words_split). */
typedef struct xml {
    const char *p;
    char open[32][24];
    int depth;
    size_t elements;
} xml;

static void xml_text(xml *x, char end)
{
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"};
    while (*x->p != end && *x->p != '\0') {
        unsigned char c = (unsigned char)*x->p;
        if (c == '&') {
            size_t i = 0;
            while (i < COUNT(entities) && strncmp(x->p, entities[i], strlen(entities[i])) != 0)
                i++;
            assert_true(i < COUNT(entities));
        }
        assert_true(c != '<' && (c >= 0x20 || c == '\n'));
        x->p++;
    }
    assert_true(*x->p == end);
}

static size_t xml_name(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == ':' || p[n] == '-')
        n++;
    assert_true(n > 0 && n < 24);
    return n;
}

static void xml_element(xml *x)
{
    size_t n = xml_name(x->p);
    memcpy(x->open[x->depth], x->p, n);
    x->open[x->depth][n] = '\0';
    x->p += n;
    x->elements++;
    while (*x->p == ' ') {
        x->p += strspn(x->p, " ");
        x->p += xml_name(x->p);
        assert_true(x->p[0] == '=' && x->p[1] == '"');
        x->p += 2;
        xml_text(x, '"');
        x->p++;
    }
    if (x->p[0] == '/') {
        assert_true(x->p[1] == '>');
        x->p += 2;
    } else {
        assert_true(x->p[0] == '>');
        x->p++;
        x->depth++;
        assert_true(x->depth < 32);
    }
}

static void expect_xml(const char *text)
{
    xml x = {.p = text};
    kit_words utf8;
    assert_int_equal(kit_words_split(&utf8, text, NULL), KIT_OK);
    kit_words_free(&utf8);
    assert_int_equal(strncmp(x.p, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", 39), 0);
    x.p += 39;
    while (*x.p != '\0') {
        if (*x.p != '<') {
            if (x.depth == 0) {
                assert_true(isspace((unsigned char)*x.p));
                x.p++;
            } else {
                xml_text(&x, '<');
            }
        } else if (x.p[1] == '/') {
            x.p += 2;
            size_t n = xml_name(x.p);
            assert_true(x.depth > 0);
            x.depth--;
            assert_true(strlen(x.open[x.depth]) == n && strncmp(x.open[x.depth], x.p, n) == 0);
            x.p += n;
            assert_true(*x.p == '>');
            x.p++;
        } else {
            x.p++;
            xml_element(&x);
        }
    }
    assert_int_equal(x.depth, 0);
    assert_true(x.elements > 5);
}

static void test_svg_well_formed(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(samples); i++) {
        size_t size;
        trace t;
        build(&t, &samples[i]);
        char *text = rendered(render_svg, &t, &size);
        assert_int_equal(strlen(text), size);
        expect_xml(text);
        assert_non_null(strstr(text, "column answers"));
        assert_null(strstr(text, "http://www.w3.org/1999/xlink"));
        free(text);
        trace_free(&t);
    }
}

/* Every cell's title says its weight to all the digits of a float, in the order of the matrix. */
static void test_svg_numbers(void **state)
{
    (void)state;
    for (size_t i = 5; i <= 6; i++) {
        size_t size;
        trace t;
        build(&t, &samples[i]);
        char *text = rendered(render_svg, &t, &size);
        const kit_array *w = tensor_of(&t, "weights");
        const char *p = text;
        for (int64_t n = 0; n < kit_array_count(w); n++) {
            bool hidden = samples[i].causal && n % 6 > n / 6 % 6;
            p = strstr(p, " answers: ");
            assert_non_null(p);
            p += strlen(" answers: ");
            assert_true(hidden ? strncmp(p, "hidden", 6) == 0
                               : strtof(p, NULL) == (float)kit_array_get(w, n));
        }
        assert_null(strstr(p, " answers: "));
        assert_true((strstr(text, "hidden by the mask") != NULL) == samples[i].causal);
        free(text);
        trace_free(&t);
    }
}

/* 512 words: a map, not a quarter of a million elements; every level is drawn. */
static void test_svg_map(void **state)
{
    (void)state;
    size_t size;
    trace t;
    build(&t, &(sample){.words = 512, .heads = 1, .scale = 0.02});
    char *text = rendered(render_svg, &t, &size);
    expect_xml(text);
    assert_true(size < 4u << 20);
    /* The cells of the runs add up to the whole map. */
    int64_t cells = 0;
    for (size_t i = 0; i < size; i++) {
        size_t digits = strspn(text + i + 1, "0123456789");
        if (text[i] == 'h' && digits > 0 && strncmp(text + i + 1 + digits, "v1h-", 4) == 0)
            cells += strtol(text + i + 1, NULL, 10);
    }
    assert_int_equal(cells, 512 * 512);
    free(text);
    trace_free(&t);
}

/* --------------------------------------------------------------------------------- PNG, PDF */

static uint32_t big_endian(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void test_png_and_pdf(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(samples); i++) {
        size_t size, svg_size;
        trace t;
        build(&t, &samples[i]);
        char *svg = rendered(render_svg, &t, &svg_size), *png = rendered(render_png, &t, &size);
        assert_true(size > 1000);
        assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
        assert_memory_equal(png + size - 8, "IEND\xae\x42\x60\x82", 8);
        double width = strtod(strstr(svg, "width=\"") + 7, NULL); /* the same picture, at twice */
        assert_true(fabs(big_endian(png + 16) - 2 * width) <= 2);
        free(png);
        char *pdf = rendered(render_pdf, &t, &size);
        assert_memory_equal(pdf, "%PDF-", 5);
        free(pdf);
        free(svg);
        trace_free(&t);
    }
}

static void test_nothing_to_draw(void **state)
{
    (void)state;
    trace t;
    kit_error e = {0};
    char *bytes;
    size_t size;
    build_lesson(&t, "sky");
    for (size_t i = 0; i < t.count; i++)
        t.step[i].kind = TRACE_VALUES;
    assert_int_equal(render_svg(&bytes, &size, &t, &e), KIT_USAGE);
    assert_int_equal(render_png(&bytes, &size, &t, &e), KIT_USAGE);
    trace_free(&t);
}

/* ------------------------------------------------------------------------------------- Text */

/* The line without colours. */
static void strip_escapes(char *line)
{
    char *out = line;
    for (char *p = line; *p != '\0';) {
        if (p[0] == '\x1b' && p[1] == '[') {
            p += 2 + strcspn(p + 2, "m");
            assert_true(*p == 'm');
            p++;
        } else {
            *out++ = *p++;
        }
    }
    *out = '\0';
}

static void expect_text(const trace *t, const render_text_options *o, const char *what)
{
    char *text = NULL, *rest;
    size_t size;
    kit_error e = {0};
    assert_int_equal(render_text(&text, &size, t, o, &e), KIT_OK);
    assert_int_equal(strlen(text), size);
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        bool control = c < 0x20 && c != '\n' && !(c == 0x1b && o->colour != RENDER_NO_COLOUR);
        if (control || (c >= 0x80 && !o->unicode))
            fail_msg("byte 0x%02x in %s", c, what);
    }
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        strip_escapes(line);
        if (kit_text_width(line) > o->width)
            fail_msg("%s, width %d, colour %d, unicode %d: %d columns in\n%s", what, o->width,
                     o->colour, o->unicode, kit_text_width(line), line);
    }
    free(text);
}

static void test_text_width(void **state)
{
    (void)state;
    static const int widths[] = {20, 30, 40, 60, 80, 100, 120, 200};
    for (size_t i = 0; i < COUNT(samples); i++) {
        trace t;
        build(&t, &samples[i]);
        bool large = samples[i].words > 100;
        for (size_t w = 0; w < COUNT(widths); w++)
            for (int mode = 0; mode < 12; mode++) {
                render_text_options o = {widths[w], (render_colour)(mode % 3), mode / 3 % 2 == 0,
                                         mode / 6 == 1 && !large, 0};
                if (large && widths[w] != 20 && widths[w] != 80)
                    continue;
                expect_text(&t, &o, samples[i].lesson ? samples[i].lesson : "explain");
            }
        trace_free(&t);
    }
}

static char *text_of(const trace *t, int width, bool full)
{
    render_text_options o = RENDER_TEXT_OPTIONS_INIT;
    char *text;
    size_t size;
    o.width = width;
    o.full = full;
    assert_int_equal(render_text(&text, &size, t, &o, NULL), KIT_OK);
    return text;
}

static void expect_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in:\n%s", part, text);
}

/* The numbers of the notebook, written out, at their place. */
static void test_text_content(void **state)
{
    (void)state;
    trace t;
    build(&t, &samples[5]);
    char *text = text_of(&t, 100, false);
    expect_in(text, "Life·0  is·3  short·5  eat·2  dessert·1  last·4");
    expect_in(text, "row asks and a column answers");
    expect_in(text, "(24 products)\n      = 160.1854");
    expect_in(text, "Life -57.1016  is -85.4889  short 160.1854");
    expect_in(text, "    is     ›  0.000   0.000  █1.000   0.000   0.000   0.000  0.000/2.585\n");
    expect_in(text, "z(is) = 1.0000·v(short) + 1.07e-09·v(dessert)");
    expect_in(text, "saturated");
    free(text);
    text = text_of(&t, 100, true); /* --full has w_q, too */
    expect_in(text, "-2.2150");
    free(text);
    text = text_of(&t, 34, false); /* too narrow for the matrix: bars */
    expect_in(text, "asks, each key answers:");
    expect_in(text, "short  1.0000 █");
    free(text);
    trace_free(&t);

    build_lesson(&t, "dessert");
    text = text_of(&t, 100, false);
    expect_in(text,
              "e^-44.3535 + e^-50.1481 + e^0 + e^-62.1351"); /* the division by √24 is in it */
    free(text);
    trace_free(&t);

    build(&t, &samples[15]);
    text = text_of(&t, 80, false);
    expect_in(text, "max-pooled");
    expect_in(text, "largest weights");
    expect_in(text, "head 3");
    free(text);
    trace_free(&t);
}

/* What never happens in a sound run must still be shown as it is. */
static void test_not_finite(void **state)
{
    (void)state;
    for (size_t i = 5; i < COUNT(samples); i++) {
        trace t;
        size_t size;
        build(&t, &samples[i]);
        for (size_t n = 0; n < t.count; n++) {
            kit_array *a = &t.step[n].tensor;
            static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e-42f, -0.0f};
            for (int64_t k = 0; a->dtype == ATTN_F32 && k < kit_array_count(a); k += 1 + pick(5))
                ((float *)a->data)[k] = odd[pick((int64_t)COUNT(odd))];
        }
        expect_json(&t);
        for (int width = 20; width <= 120; width += 50)
            for (int colour = 0; colour < 3; colour++)
                expect_text(&t,
                            &(render_text_options){width, (render_colour)colour, colour != 1, i < 9,
                                                   0},
                            "not finite");
        char *svg = rendered(render_svg, &t, &size);
        expect_xml(svg);
        free(svg);
        free(rendered(render_png, &t, &size));
        trace_free(&t);
    }
}

static void test_suffixes(void **state)
{
    (void)state;
    kit_error e = {0};
    assert_ptr_equal(render_by_suffix("a/map.svg", &e), render_svg);
    assert_ptr_equal(render_by_suffix("map.x.png", &e), render_png);
    assert_ptr_equal(render_by_suffix("m.pdf", &e), render_pdf);
    assert_ptr_equal(render_by_suffix("t.json", &e), render_json);
    assert_non_null(render_by_suffix("t.txt", &e));
    assert_null(render_by_suffix("map.gif", &e));
    assert_int_equal(e.code, KIT_USAGE);
    expect_in(e.message, ".svg .png .pdf .json");
    assert_null(render_by_suffix(".svg", &e));
    assert_null(render_by_suffix("svg", &e));
}

/* ------------------------------------------------------------------------------------- Quiz */

/* "e^-1.5 / ( e^0 + e^-2 )" worked out. */
static double solve(const char *hint)
{
    const char *p = strstr(hint, "e^");
    assert_non_null(p);
    double sum = 0, own = exp(strtod(p + 2, NULL));
    for (p = strstr(p, "("); (p = strstr(p, "e^")) != NULL; p += 2)
        sum += exp(strtod(p + 2, NULL));
    return own / sum;
}

static void expect_lines(const char *text, int width)
{
    char *copy = strdup(text), *rest;
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (kit_text_width(line) > width)
            fail_msg("%d columns: %s", kit_text_width(line), line);
    free(copy);
}

static void expect_question(const trace *t, const quiz_question *q)
{
    const trace_step *s = &t->step[q->step];
    const kit_array *a = &s->tensor;
    int64_t columns = a->shape[a->rank - 1], rows = a->rank > 1 ? a->shape[a->rank - 2] : 1;
    double want = kit_array_get(a, (q->head * rows + q->row) * columns + q->column);
    assert_int_equal(s->kind, TRACE_WEIGHTS);
    assert_true(q->answer == want);
    assert_true(quiz_is_right(q, want) && quiz_is_right(q, want + 0.01));
    assert_false(quiz_is_right(q, want - 0.0101) || quiz_is_right(q, NAN));
    assert_null(strchr(q->question, '\n'));
    expect_in(q->row_text, s->name);
    expect_lines(q->question, 60);
    expect_lines(q->row_text, 80);
    expect_lines(q->hint, 80);
    if (columns <= 12) {
        assert_true(fabs(solve(q->hint) - want) < 2e-4);
        assert_true(q->row_text[0] != '\0');
    }
}

static void test_quiz(void **state)
{
    (void)state;

    for (size_t i = 0; i < COUNT(samples); i++) {
        trace t;
        build(&t, &samples[i]);
        bool none = strcmp(t.title, "alone") == 0 || (t.lesson && strcmp(t.lesson, "module") == 0);
        for (int n = 0; n < 50; n++) {
            quiz_question q, again;
            kit_error e = {0};
            int rc = quiz_ask(&q, &t, 9, n, &e);
            assert_int_equal(rc, none ? KIT_USAGE : KIT_OK);
            if (rc != KIT_OK)
                break;
            expect_question(&t, &q);
            assert_true(!samples[i].causal || q.column <= q.row);
            assert_int_equal(quiz_ask(&again, &t, 9, n, &e), KIT_OK);
            assert_int_equal(again.column, q.column);
            assert_string_equal(again.question, q.question);
        }
        trace_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_rows),
        cmocka_unit_test(test_svg_well_formed),
        cmocka_unit_test(test_svg_numbers),
        cmocka_unit_test(test_svg_map),
        cmocka_unit_test(test_png_and_pdf),
        cmocka_unit_test(test_nothing_to_draw),
        cmocka_unit_test(test_text_width),
        cmocka_unit_test(test_text_content),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_suffixes),
        cmocka_unit_test(test_quiz),
    };
    return cmocka_run_group_tests_name("render", tests, NULL, NULL);
}
