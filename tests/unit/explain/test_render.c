/* JSON reads back to the trace's bits, and text fits its width and shows the trace's numbers.
 *
 * labels: slow */
#include "explain_samples.h"

#include "explain/recipe.h"

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
            fail_msg("%s[%zu] is %.17g when read back, want %.17g", s->name, i, x, want);
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
        if (t->step[i].check_only)
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
        describe_case("row %d", (int)r);
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
        assert_near(got, fabs(bits), <, 1e-12);
        assert_number(json_number(json_object_get(row, "max_weight")), ==, largest);
    }
    json_decref(root);
    free(text);
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
            assert_int_equal(*p, 'm');
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
    static const int widths[] = {20, 33, 40, 60, 80, 120};
    for (size_t i = 0; i < COUNT(samples); i++) {
        trace t;
        build(&t, &samples[i]);
        bool large = samples[i].words > 100;
        for (size_t w = 0; w < COUNT(widths); w++)
            for (int mode = 0; mode < 8; mode++) { /* 3 colours x 2 alphabets; 6, 7: full, plain */
                bool full = mode >= 6;
                render_colour colour = full ? RENDER_NO_COLOUR : (render_colour)(mode % 3);
                render_text_options o = {.width = widths[w],
                                         .colour = colour,
                                         .unicode = full ? mode == 6 : mode < 3,
                                         .full = full,
                                         .code = (render_code)(mode % 5),
                                         .steps = mode % 2 == 1};
                if (!large || (widths[w] % 60 == 20 && !full))
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
    expect_in(text, "\n               Life      is   short     eat dessert    last  entropy/max\n");
    expect_in(text, "    is     ›  0.000   0.000  █1.000   0.000   0.000   0.000  0.000/2.585\n");
    expect_in(text, "z(is) = 1.0000·v(short) + 1.07e-09·v(dessert)");
    assert_null(strstr(text, "…; first number")); /* three words have all of the weight */
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
    free(text);
    trace_free(&t);

    build(&t, &samples[6]);
    text = text_of(&t, 80, false);
    expect_in(text, "    head 3\n");
    free(text);
    trace_free(&t);

    build(&t, &samples[12]); /* 40 words share the weight */
    text = text_of(&t, 120, false);
    expect_in(text, " + …; first number = ");
    free(text);
    trace_free(&t);
}

/* Eight lines are as high as the largest value, 4. So 1 fills two lines, and 2.25 four and a half.
 */
static void test_curve(void **state)
{
    (void)state;
    static const double points[] = {1, 1, 2, 4, 3, 2.25};
    static const char *const columns[] = {"step", "loss"};
    trace t = {0};
    recipe r = recipe_begin(&t, NULL, NULL, NULL, "A curve", NULL);
    recipe_add_copy(&r, "loss", TRACE_CURVE, ATTN_F64, SHAPE(3, 2), points);
    recipe_describe(&r, "Loss", "", "%s", "");
    recipe_columns(&r, columns, 2);
    assert_int_equal(r.status, KIT_OK);
    char *text = text_of(&t, 80, false);
    expect_in(text, "           4     ████    \n"
                    "                 ████    \n"
                    "                 ████    \n"
                    "                 ████▄▄▄▄\n"
                    "                 ████████\n"
                    "                 ████████\n"
                    "             ████████████\n"
                    "           0 ████████████\n"
                    "             1          3 step\n");
    free(text);
    trace_free(&t);
}

/* What never happens in a sound run must still be shown as it is. */
static void test_not_finite(void **state)
{
    (void)state;
    for (size_t i = 5; i < COUNT(samples); i++) {
        trace t;
        build(&t, &samples[i]);
        spoil(&t);
        expect_json(&t);
        for (int width = 20; width <= 120; width += 50)
            for (int colour = 0; colour < 3; colour++) {
                render_text_options o = {.width = width,
                                         .colour = (render_colour)colour,
                                         .unicode = colour != 1,
                                         .full = i < 9,
                                         .code = RENDER_ALL_CODE};
                expect_text(&t, &o, "not finite");
            }
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
    assert_ptr_equal(render_by_suffix("page.html", &e), render_html);
    assert_non_null(render_by_suffix("t.txt", &e));
    assert_null(render_by_suffix("map.gif", &e));
    assert_int_equal(e.code, KIT_USAGE);
    expect_in(e.message, ".svg .png .pdf .json");
    assert_null(render_by_suffix(".svg", &e));
    assert_null(render_by_suffix("svg", &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),       cmocka_unit_test(test_json_rows),
        cmocka_unit_test(test_text_width), cmocka_unit_test(test_text_content),
        cmocka_unit_test(test_curve),      cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_suffixes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
