/* Heat-maps are well-formed SVG with the trace's weights, and PNG and PDF are the same picture.
 *
 * labels: slow */
#include "explain_samples.h"

#include <ctype.h>

#include <cairo.h>

#include "explain/render/picture.h"

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
            assert_number(i, <, COUNT(entities));
        }
        assert_true(c != '<');
        assert_true(c >= 0x20 || c == '\n');
        x->p++;
    }
    assert_int_equal(*x->p, end);
}

static size_t xml_name(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == ':' || p[n] == '-')
        n++;
    assert_number(n, >, 0);
    assert_number(n, <, 24);
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
        assert_int_equal(x->p[0], '=');
        assert_int_equal(x->p[1], '"');
        x->p += 2;
        xml_text(x, '"');
        x->p++;
    }
    if (x->p[0] == '/') {
        assert_int_equal(x->p[1], '>');
        x->p += 2;
    } else {
        assert_int_equal(x->p[0], '>');
        x->p++;
        x->depth++;
        assert_number(x->depth, <, 32);
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
            assert_number(x.depth, >, 0);
            x.depth--;
            assert_int_equal(strlen(x.open[x.depth]), n);
            assert_true(strncmp(x.open[x.depth], x.p, n) == 0);
            x.p += n;
            assert_int_equal(*x.p, '>');
            x.p++;
        } else {
            x.p++;
            xml_element(&x);
        }
    }
    assert_int_equal(x.depth, 0);
    assert_number(x.elements, >, 5);
}

static void test_svg_well_formed(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(samples); i++) {
        describe_case("sample %zu", i);
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
        describe_case("sample %zu", i);
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
    assert_number(size, <, 4u << 20);
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
        describe_case("sample %zu", i);
        size_t size, svg_size;
        trace t;
        build(&t, &samples[i]);
        char *svg = rendered(render_svg, &t, &svg_size), *png = rendered(render_png, &t, &size);
        assert_number(size, >, 1000);
        assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
        assert_memory_equal(png + size - 8, "IEND\xae\x42\x60\x82", 8);
        double width = strtod(strstr(svg, "width=\"") + 7, NULL); /* the same picture, at twice */
        assert_near(big_endian(png + 16), 2 * width, <=, 2);
        free(png);
        char *pdf = rendered(render_pdf, &t, &size);
        assert_memory_equal(pdf, "%PDF-", 5);
        free(pdf);
        free(svg);
        trace_free(&t);
    }
}

/* Only the label of the query's row is bold, even if this row is the last. */
static void test_bold_label(void **state)
{
    (void)state;
    static const char *const words[] = {"Life", "is", "short", "eat", "dessert", "last"};
    trace t;
    build(&t, &samples[5]);
    for (size_t q = 0; q < COUNT(words); q++) {
        picture p;
        int bold = 0;
        assert_int_equal(trace_set_query(&t, words[q], NULL), KIT_OK);
        assert_int_equal(picture_make(&p, &t, NULL), KIT_OK);
        for (size_t n = 0; n < p.count; n++)
            if (p.item[n].kind == PICTURE_TEXT && p.item[n].mono && p.item[n].bold) {
                assert_string_equal(p.item[n].text, words[q]);
                bold++;
            }
        assert_int_equal(bold, 1);
        picture_free(&p);
    }
    trace_free(&t);
}

/* Only weights have colours: texts, lines and the bars of the entropy are grey. */
static void test_greys(void **state)
{
    (void)state;
    trace t;
    picture p;
    int bars = 0;
    build(&t, &samples[6]);
    assert_int_equal(picture_make(&p, &t, NULL), KIT_OK);
    for (size_t n = 0; n < p.count; n++) {
        const picture_item *i = &p.item[n];
        const bool bar = i->kind == PICTURE_RECT && i->h == 6;
        if (bar || i->kind == PICTURE_TEXT || i->kind == PICTURE_LINE)
            assert_true(abs(i->colour.r - i->colour.g) + abs(i->colour.g - i->colour.b) <= 12);
        bars += bar;
    }
    assert_int_equal(bars, 2 * (3 * 5 + 1)); /* two in each row but the first, and in the legend */
    picture_free(&p);
    trace_free(&t);
}

/* A PNG as it is read; scale: pixels of a unit. */
typedef struct png {
    const unsigned char *bytes;
    size_t left;
    cairo_surface_t *surface;
    double scale;
} png;

static cairo_status_t read_png(void *closure, unsigned char *to, unsigned int size)
{
    png *p = closure;
    if (size > p->left)
        return CAIRO_STATUS_READ_ERROR;
    memcpy(to, p->bytes, size);
    p->bytes += size;
    p->left -= size;
    return CAIRO_STATUS_SUCCESS;
}

/* Whether a pixel between x, y and x + w, y + h has nearly this colour. */
static bool has_colour(const png *p, double x, double y, double w, double h, rgb colour)
{
    const int width = cairo_image_surface_get_width(p->surface);
    const int height = cairo_image_surface_get_height(p->surface);
    const int stride = cairo_image_surface_get_stride(p->surface) / 4;
    const uint32_t *pixel = (const void *)cairo_image_surface_get_data(p->surface);
    for (int j = (int)fmax(y * p->scale, 0); j <= (y + h) * p->scale && j < height; j++)
        for (int i = (int)fmax(x * p->scale, 0); i <= (x + w) * p->scale && i < width; i++) {
            const uint32_t at = pixel[j * stride + i];
            if (abs((int)(at >> 16 & 255) - colour.r) + abs((int)(at >> 8 & 255) - colour.g) +
                    abs((int)(at & 255) - colour.b) <
                60)
                return true;
        }
    return false;
}

/* Whether the colour of an item is seen where the item stands. */
static bool is_drawn(const png *p, const picture_item *i)
{
    switch (i->kind) {
    case PICTURE_TEXT: { /* one em of it; slanted texts are left out */
        const double part = 0.5 * (double)(int)i->anchor;
        return i->angle != 0 ||
               has_colour(p, i->x - part * i->size, i->y - i->size, i->size, i->size, i->colour);
    }
    case PICTURE_CELLS:
        for (int64_t n = 0; n < i->rows * i->columns; n++)
            if (i->levels[n] != PICTURE_HIDDEN &&
                !has_colour(p, i->x + i->w * ((double)(n % i->columns) + 0.5) / (double)i->columns,
                            i->y + i->h * ((double)(n / i->columns) + 0.5) / (double)i->rows, 0, 0,
                            picture_level_colour(i->levels[n])))
                return false;
        return true;
    default: return has_colour(p, i->x, i->y, i->w, i->h, i->colour);
    }
}

/* Too narrow for a pixel, or covered by the bar that follows. */
static bool is_hidden(const picture *p, size_t n)
{
    const picture_item *i = &p->item[n], *next = n + 1 < p->count ? i + 1 : i;
    return i->kind == PICTURE_RECT &&
           (i->w < 2 || (next != i && next->kind == PICTURE_RECT && next->x == i->x &&
                         next->y == i->y && next->w > i->w - 2));
}

static void test_everything_is_drawn(void **state)
{
    (void)state;
    static const size_t some[] = {0, 6, 9, 15}; /* curves are lines; 15: cells */
    size_t seen[PICTURE_CELLS + 1] = {0};
    for (size_t i = 0; i < COUNT(some); i++) {
        size_t size;
        trace t;
        picture p;
        build(&t, &samples[some[i]]);
        char *bytes = rendered(render_png, &t, &size);
        png image = {.bytes = (const unsigned char *)bytes, .left = size};
        image.surface = cairo_image_surface_create_from_png_stream(read_png, &image);
        assert_int_equal(picture_make(&p, &t, NULL), KIT_OK);
        image.scale = cairo_image_surface_get_width(image.surface) / p.width;
        for (size_t n = 0; n < p.count; n++) {
            const picture_item *item = &p.item[n];
            seen[item->kind]++;
            if (!is_hidden(&p, n) && !is_drawn(&image, item))
                fail_msg("sample %zu: kind %d at %g %g: %s", some[i], (int)item->kind, item->x,
                         item->y, item->text ? item->text : "");
        }
        picture_free(&p);
        cairo_surface_destroy(image.surface);
        free(bytes);
        trace_free(&t);
    }
    for (size_t kind = 0; kind < COUNT(seen); kind++)
        assert_true(seen[kind] > 0);
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
        cmocka_unit_test(test_svg_well_formed),
        cmocka_unit_test(test_svg_numbers),
        cmocka_unit_test(test_svg_map),
        cmocka_unit_test(test_png_and_pdf),
        cmocka_unit_test(test_nothing_to_draw),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_bold_label),
        cmocka_unit_test(test_greys),
        cmocka_unit_test(test_everything_is_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
