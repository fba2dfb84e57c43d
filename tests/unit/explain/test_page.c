/* The page's file contains the whole trace, which cannot leave its <script>.
 *
 * It is written in the form that its size requires. tests/page tests in a browser what the page
 * does. */
#include "explain_samples.h"

#include "explain/page/page.h"

/* The trace that is in a page; *text, to be freed, is the page. */
static json_t *trace_in(const trace *t, char **text)
{
    size_t size;
    *text = rendered(render_html, t, &size);
    assert_number(size, >, page_before_size + page_after_size);
    assert_memory_equal(*text, page_before, page_before_size);
    assert_memory_equal(*text + size - page_after_size, page_after, page_after_size);
    char *data = *text + page_before_size;
    size_t length = size - page_before_size - page_after_size;
    assert_null(memchr(data, '<', length));
    assert_int_equal(strlen(*text), size); /* no zero byte */
    json_error_t e;
    json_t *all = json_loadb(data, length, JSON_REJECT_DUPLICATES, &e);
    if (all == NULL)
        fail_msg("%s at %d", e.text, e.position);
    assert_string_equal(json_string_value(json_object_get(all, "version")), ATTN_VERSION_STRING);
    assert_int_equal(json_array_size(json_object_get(all, "palette")), 33);
    json_t *inner = json_incref(json_object_get(all, "trace"));
    json_decref(all);
    return inner;
}

static int digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Byte number i of a base64 text (RFC 4648). */
static unsigned byte_at(const char *text, size_t i)
{
    const char *p = text + i / 3 * 4;
    unsigned bits = 0;
    for (int k = 0; k < 4; k++)
        bits = bits << 6 | (p[k] == '=' ? 0 : (unsigned)digit(p[k]));
    return bits >> (16 - 8 * (i % 3)) & 255;
}

static void expect_base64(const json_t *tensor, const char *key, const kit_array *a,
                          attn_dtype dtype)
{
    kit_array want = {0};
    const char *text = json_string_value(json_object_get(tensor, key));
    assert_non_null(text);
    assert_int_equal(kit_array_convert(&want, a, dtype, NULL), KIT_OK);
    assert_int_equal(strlen(text), (want.bytes + 2) / 3 * 4);
    for (size_t i = 0; i < want.bytes; i++)
        if (byte_at(text, i) != ((const unsigned char *)want.data)[i])
            fail_msg("byte %zu of %zu", i, want.bytes);
    kit_array_free(&want);
}

/* Small steps: floats as base64, others as numbers. */
static void expect_numbers(const json_t *tensor, const kit_array *a)
{
    if (a->dtype == ATTN_F32)
        expect_base64(tensor, "f32", a, ATTN_F32);
    else
        assert_int_equal(json_array_size(json_object_get(tensor, "data")), kit_array_count(a));
}

static const json_t *tensor_in(const json_t *steps, const char *name)
{
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step)
    {
        if (strcmp(json_string_value(json_object_get(step, "name")), name) == 0)
            return json_object_get(step, "tensor");
    }
    fail_msg("no step %s", name);
    return NULL;
}

static void test_every_sample(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(samples); i++)
        for (int odd = 0; odd < 2; odd++) {
            describe_case("sample %zu, odd %d", i, odd);
            trace t;
            char *text;
            build(&t, &samples[i]);
            if (odd)
                spoil(&t);
            json_t *in = trace_in(&t, &text);
            size_t shown = 0;
            for (size_t n = 0; n < t.count; n++)
                shown += !t.step[n].check_only;
            const json_t *steps = json_object_get(in, "steps");
            assert_int_equal(json_array_size(steps), shown);
            for (size_t n = 0; n < t.count; n++)
                if (!t.step[n].check_only && kit_array_count(&t.step[n].tensor) <= 4096)
                    expect_numbers(tensor_in(steps, t.step[n].name), &t.step[n].tensor);
            json_decref(in);
            free(text);
            trace_free(&t);
        }
}

static void test_markup_in_a_sentence(void **state)
{
    (void)state;
    trace t;
    char *text;
    explain_options o = EXPLAIN_OPTIONS_INIT;
    o.text = "x</script><img/src=x/onerror=alert(1)> <!--<script> ]]>";
    build_explain(&t, &o);
    json_t *in = trace_in(&t, &text); /* which looks for < */
    assert_string_equal(json_string_value(json_object_get(in, "text")), o.text);
    json_decref(in);
    free(text);
    trace_free(&t);
}

/* Large steps: derived where the page can compute them, else floats; f16 if they are many. */
static void test_forms(void **state)
{
    (void)state;
    static const char *const derived[] = {"scores", "scaled_scores", "masked_scores", "weights",
                                          "context"};
    for (int many = 0; many < 3; many++) { /* 1: many are derived, few are written */
        char words[8192], *text;
        trace t;
        random_sentence(words, sizeof words, 300);
        explain_options o = EXPLAIN_OPTIONS_INIT;
        o.text = words;
        o.causal = true;
        if (many)
            o.heads = 8;
        if (many == 2)
            o.qk = 256;
        build_explain(&t, &o);
        const kit_array *q = tensor_of(&t, "queries");
        if (many)
            ((float *)q->data)[7] = 70000; /* which f16 has not */
        json_t *in = trace_in(&t, &text);
        const json_t *steps = json_object_get(in, "steps");
        for (size_t i = 0; i < COUNT(derived); i++) {
            const json_t *tensor = tensor_in(steps, derived[i]);
            assert_int_equal(json_object_size(tensor), 2); /* shape, dtype */
        }
        expect_base64(tensor_in(steps, "queries"), "f32", q, ATTN_F32);
        expect_base64(tensor_in(steps, "keys"), many == 2 ? "f16" : "f32", tensor_of(&t, "keys"),
                      many == 2 ? ATTN_F16 : ATTN_F32);
        json_decref(in);
        free(text);
        trace_free(&t);
    }
}

/* One style sheet, one script, and nothing may run but they. */
static void test_the_pages_own_parts(void **state)
{
    (void)state;
    const char *policy = strstr(page_before, "default-src 'none'; script-src 'sha256-");
    assert_non_null(policy);
    assert_null(strstr(page_before, "unsafe-inline"));
    assert_null(strstr(page_after, "innerHTML"));
    assert_null(strstr(page_after, "insertAdjacentHTML"));
    assert_null(strstr(page_after, "document.write"));
    assert_null(strstr(page_before, "_HASH@"));
    assert_null(strstr(page_before, "@CSS@"));
    assert_null(strstr(page_after, "@JS@"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sample),
        cmocka_unit_test(test_markup_in_a_sentence),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_the_pages_own_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
