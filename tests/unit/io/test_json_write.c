/* The JSON writer writes the expected text, and numbers that read back exactly.
 *
 * The expected text was written by hand; strtod reads the numbers. */
#include "support/io_testing.h"

#include "io/json_write.h"

static void collect(void *to, const char *data, size_t size) { put(to, data, size); }

/* Ends the text with a NUL and compares it; frees b. */
static void expect_text(bytes *b, const char *want)
{
    put(b, "", 1);
    assert_string_equal((const char *)b->data, want);
    bytes_free(b);
}

static void put_everything(json_writer *j)
{
    json_put_object(j, NULL);
    json_put_text(j, "te\"xt", "a<b\n\xFF\u00e9");
    json_put_array(j, "empty");
    json_end_array(j);
    json_put_sizes(j, "sizes", (const int64_t[]){2, -3}, 2);
    json_new_line(j, 1);
    json_put_array(j, "list");
    for (int i = 0; i < 2; i++) {
        json_new_line(j, 2);
        json_put_object(j, NULL);
        json_put_flag(j, "flag", i);
        json_put_null(j, "none");
        json_end_object(j);
    }
    json_end_array(j);
    json_put_integer(j, "most", INT64_MAX);
    json_end_object(j);
}

static void test_items(void **state)
{
    (void)state;
    bytes b = {0};
    json_writer j = json_writer_to(collect, &b);
    put_everything(&j);
    expect_text(&b,
                "{\"te\\\"xt\":\"a\\u003cb\\u000a\\ufffd\u00e9\",\"empty\":[],\"sizes\":[2,-3],\n"
                " \"list\":[\n"
                "  {\"flag\":false,\"none\":null},\n"
                "  {\"flag\":true,\"none\":null}],\"most\":9223372036854775807}");
    j = json_writer_to(collect, &b);
    j.spaced = true;
    put_everything(&j);
    expect_text(&b, "{\"te\\\"xt\": \"a\\u003cb\\u000a\\ufffd\u00e9\", \"empty\": [], "
                    "\"sizes\": [2, -3],\n"
                    " \"list\": [\n"
                    "  {\"flag\": false, \"none\": null},\n"
                    "  {\"flag\": true, \"none\": null}], \"most\": 9223372036854775807}");
}

/* A NUL inside a text does not end it; a character that the size cuts off is not read further. */
static void test_text_with_nul(void **state)
{
    (void)state;
    bytes b = {0};
    json_writer j = json_writer_to(collect, &b);
    json_put_text_of(&j, NULL, "a\0b\u00e9\0\xC3", 7);
    expect_text(&b, "\"a\\u0000b\u00e9\\u0000\\ufffd\"");
}

static void test_numbers(void **state)
{
    (void)state;
    bytes b = {0};
    json_writer j = json_writer_to(collect, &b);
    json_put_array(&j, NULL);
    json_put_real(&j, NULL, 0.1);
    json_put_float(&j, NULL, 0.1F);
    json_put_real(&j, NULL, 1e6);
    json_put_real(&j, NULL, 1.0 / 3);
    json_put_float(&j, NULL, (double)(1.0F / 3));
    json_put_real(&j, NULL, -0.0);
    json_put_real(&j, NULL, -HUGE_VAL);
    json_put_float(&j, NULL, (double)NAN);
    j.spaced = true;
    json_put_real(&j, NULL, 1e6);
    json_put_float(&j, NULL, 65536);
    json_end_array(&j);
    expect_text(&b, "[0.1,0.1,1e+06,0.3333333333333333,0.33333334,-0,\"-inf\",\"nan\", 1000000, "
                    "65536]");
}

/* Any bits of a float and of a double are read back. */
static void test_numbers_come_back(void **state)
{
    (void)state;
    uint64_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        bytes b = {0};
        json_writer j = json_writer_to(collect, &b);
        double x;
        float y;
        bits = bits * 6364136223846793005U + 1442695040888963407U;
        const uint32_t half = (uint32_t)(bits >> 32);
        memcpy(&x, &bits, sizeof x);
        memcpy(&y, &half, sizeof y);
        if (!isfinite(x) || !isfinite(y))
            continue;
        j.spaced = i % 2;
        json_put_real(&j, NULL, x);
        put(&b, "", 1);
        const double back = strtod((const char *)b.data, NULL);
        assert_memory_equal(&back, &x, sizeof x);
        b.size = 0;
        j.comma = false;
        json_put_float(&j, NULL, (double)y);
        put(&b, "", 1);
        const float single = strtof((const char *)b.data, NULL);
        assert_memory_equal(&single, &y, sizeof y);
        bytes_free(&b);
    }
}

/* The examples of RFC 4648, and more bytes than the writer holds at once. */
static void test_base64(void **state)
{
    (void)state;
    bytes b = {0};
    json_writer j = json_writer_to(collect, &b);
    json_put_array(&j, NULL);
    for (size_t n = 0; n <= 6; n++)
        json_put_base64(&j, NULL, "foobar", n);
    json_end_array(&j);
    expect_text(&b, "[\"\",\"Zg==\",\"Zm8=\",\"Zm9v\",\"Zm9vYg==\",\"Zm9vYmE=\",\"Zm9vYmFy\"]");
    char zeros[9000] = "";
    j = json_writer_to(collect, &b);
    json_put_base64(&j, NULL, zeros, sizeof zeros);
    assert_int_equal(b.size, sizeof zeros / 3 * 4 + 2);
    for (size_t i = 1; i + 1 < b.size; i++)
        assert_int_equal(b.data[i], 'A');
    bytes_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),   cmocka_unit_test(test_text_with_nul),
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_numbers_come_back),
        cmocka_unit_test(test_base64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
