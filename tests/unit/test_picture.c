/* The heat-maps: SVG is well-formed XML and says the trace's weights; PNG and PDF are the same
 * picture.
 */
#include "explain_samples.h"

#include <ctype.h>

/* fontconfig, behind cairo, keeps its tables until the process ends; the leak sanitizer asks
 * here. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libfontconfig\n"; }

/* A reader of just enough XML to be strict: elements closed in order, attributes quoted and
 * unique in their quotes, known entities, no control characters, valid UTF-8 (by
 * kit_words_split). */
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

static void test_not_finite(void **state)
{
    (void)state;
    for (size_t i = 5; i < COUNT(samples); i++) {
        size_t size;
        trace t;
        build(&t, &samples[i]);
        spoil(&t);
        char *svg = rendered(render_svg, &t, &size);
        expect_xml(svg);
        free(svg);
        free(rendered(render_png, &t, &size));
        trace_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_svg_well_formed), cmocka_unit_test(test_svg_numbers),
        cmocka_unit_test(test_svg_map),         cmocka_unit_test(test_png_and_pdf),
        cmocka_unit_test(test_nothing_to_draw), cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests_name("picture", tests, NULL, NULL);
}
