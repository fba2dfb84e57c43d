/* The .safetensors reader and writer handle good files and refuse inconsistent ones.
 *
 * Good files are compared byte by byte. The inconsistent ones are those on which other readers
 * failed. */
#define _GNU_SOURCE
#include "support/io_testing.h"

#include "io/io.h"

/* A file of any header text and any number of data bytes, 0, 1, 2, ... */
static bytes file_of(const char *header, size_t data)
{
    bytes b = {0};
    put_number(&b, strlen(header), 8);
    put_text(&b, header);
    for (size_t i = 0; i < data; i++)
        put_number(&b, i & 0xFF, 1);
    return b;
}

static int open_bytes(io_safetensors *f, io_source *s, bytes b, kit_error *err)
{
    *s = io_source_memory("file", b.data, b.size);
    return io_safetensors_open(f, s, err);
}

/* Refused, in words that have `says` among them, and also where nobody asks why. Frees b. */
static void expect_bad_file(bytes b, const char *name, const char *says)
{
    io_safetensors f;
    io_source s;
    kit_error err = {0};
    assert_int_equal(open_bytes(&f, &s, b, NULL), KIT_BAD_FILE);
    io_safetensors_close(&f);
    const int code = open_bytes(&f, &s, b, &err);
    if (code != KIT_BAD_FILE || !strstr(err.message, says))
        fail_msg("%.200s: code %d, \"%s\"; want \"...%s...\"", name, code, err.message, says);
    assert_int_equal(strncmp(err.message, "file: ", 6), 0);
    io_safetensors_close(&f);
    bytes_free(&b);
}

static void expect_bad(const char *header, size_t data, const char *says)
{
    expect_bad_file(file_of(header, data), header, says);
}

static void expect_good(const char *header, size_t data, size_t tensors)
{
    io_safetensors f;
    io_source s;
    kit_error err = {0};
    bytes b = file_of(header, data);
    if (open_bytes(&f, &s, b, &err) != KIT_OK)
        fail_msg("%s: \"%s\"", header, err.message);
    assert_int_equal(f.count, tensors);
    io_safetensors_close(&f);
    bytes_free(&b);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{\"a\":" T(dtype, shape, offsets) "}"

/* ----------------------------------------------------------------------------------- Good files */

static void test_good_files(void **state)
{
    (void)state;
    expect_good("{}", 0, 0);
    expect_good("{}      ", 0, 0);
    expect_good(ONE("F32", "[2,3]", "[0,24]"), 24, 1);
    expect_good(ONE("F64", "[]", "[0,8]") "   ", 8, 1);
    expect_good("{\"__metadata__\":{\"k\":\"v\"},\"b\":" T("I8", "[3]",
                                                           "[4,7]") ",\"a\":" T("F32", "[1]",
                                                                                "[0,4]") "}",
                7, 2);
}

static void test_every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t size;
        attn_dtype dtype;
        double second; /* of the bytes 0, 1, 2, ... */
    } table[] = {{"U8", 1, ATTN_I64, 1},          {"I8", 1, ATTN_I64, 1},
                 {"U16", 2, ATTN_I64, 0x302},     {"I16", 2, ATTN_I64, 0x302},
                 {"U32", 4, ATTN_I64, 0x7060504}, {"I32", 4, ATTN_I64, 0x7060504},
                 {"BOOL", 1, ATTN_BOOL, 1}};
    for (size_t i = 0; i < COUNT(table); i++) {
        describe_case("row %zu of table", i);
        char header[200];
        io_safetensors f;
        io_source s;
        kit_array a;
        snprintf(header, sizeof header, ONE("%s", "[2]", "[0,%zu]"), table[i].name,
                 2 * table[i].size);
        bytes b = file_of(header, 2 * table[i].size);
        assert_int_equal(open_bytes(&f, &s, b, NULL), KIT_OK);
        assert_int_equal(io_safetensors_load(&a, &f, NULL, NULL), KIT_OK);
        assert_int_equal(a.dtype, table[i].dtype);
        assert_number(kit_array_get(&a, 1), ==, table[i].second);
        kit_array_free(&a);
        io_safetensors_close(&f);
        bytes_free(&b);
    }
}

/* ------------------------------------------------------------------------ F01 to F08, by number */

static void test_f01_header_length(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0,
                                       1,
                                       3,
                                       0x7FFFFFFF,
                                       0x80000000,
                                       0x80000001,
                                       0xFFFFFFFF,
                                       0x100000000,
                                       100000001,
                                       UINT64_C(0x7FFFFFFFFFFFFFFF),
                                       UINT64_C(0x8000000000000000),
                                       UINT64_MAX - 7,
                                       UINT64_MAX};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        bytes b = {0};
        put_number(&b, lengths[i], 8);
        put_text(&b, "{}");
        expect_bad_file(b, "a length", "a header of ");
    }
    for (size_t size = 0; size < 8; size++) { /* not even a length */
        bytes b = file_of("{}", 0);
        b.size = size;
        expect_bad_file(b, "no length", "not a .safetensors file: it has ");
    }
}

/* The true size in 128 bits is the one in the file, or the file is refused. */
static void test_f02_f04_sizes_that_wrap(void **state)
{
    (void)state;
    expect_bad(ONE("F32", "[4194305,4194305,211106198978564]", "[0,16]"), 16, "addressed");
    expect_bad(ONE("F32", "[9223372036854775807,2]", "[0,0]"), 0, "addressed");
    expect_bad(ONE("F32", "[4294967296,4294967296]", "[0,0]"), 0, "addressed");
    expect_bad(ONE("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 4, "addressed");
    expect_bad(ONE("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0, "addressed");
    uint64_t x = 0x5EED;
    for (int n = 0; n < 10000; n++) { /* odd a has an inverse: a * b = small modulo 2^64 */
        x = x * 6364136223846793005 + 1442695040888963407;
        const uint64_t a = (x >> 20) | 1, small = x >> 60;
        uint64_t inverse = a; /* Newton, each round doubles the bits */
        for (int i = 0; i < 6; i++)
            inverse *= 2 - a * inverse;
        const uint64_t b = small * inverse;
        char header[256];
        if (b > INT64_MAX || a > INT64_MAX || (unsigned __int128)a * b == small)
            continue;
        snprintf(header, sizeof header, ONE("U8", "[%llu,%llu]", "[0,%llu]"), (unsigned long long)a,
                 (unsigned long long)b, (unsigned long long)small);
        expect_bad(header, small, "addressed");
    }
}

static void test_f03_negative_sizes(void **state)
{
    (void)state;
    expect_bad(ONE("F32", "[-1]", "[0,4]"), 4, "integers from 0");
    expect_bad(ONE("F32", "[-4]", "[0,0]"), 0, "integers from 0");
    expect_bad(ONE("F32", "[-1,-1]", "[0,4]"), 4, "integers from 0");
    expect_bad(ONE("F32", "[9223372036854775808]", "[0,4]"), 4, "too big");
    expect_bad(ONE("F32", "[1.0]", "[0,4]"), 4, "integers from 0");
    expect_bad(ONE("F32", "[\"1\"]", "[0,4]"), 4, "integers from 0");
    expect_bad(ONE("F32", "[true]", "[0,4]"), 4, "integers from 0");
    expect_bad(ONE("F32", "1", "[0,4]"), 4, "list");
    expect_bad(ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "at most 8");
}

static void test_f05_offsets(void **state)
{
    (void)state;
    expect_bad(ONE("F32", "[2]", "[0,4]"), 4, "8 bytes, its data_offsets span 4");
    expect_bad(ONE("F32", "[1]", "[0,8]"), 8, "4 bytes, its data_offsets span 8");
    expect_bad(ONE("F32", "[1]", "[0,4]"), 3, "not within the 3 bytes");
    expect_bad(ONE("F32", "[1]", "[0,4]"), 0, "not within the 0 bytes");
    expect_bad(ONE("F32", "[1]", "[4,0]"), 4, "not within");
    expect_bad(ONE("F32", "[1]", "[-4,0]"), 4, "two integers");
    expect_bad(ONE("F32", "[1]", "[0,4,8]"), 8, "two integers");
    expect_bad(ONE("F32", "[1]", "[0]"), 4, "two integers");
    expect_bad(ONE("F32", "[1]", "[]"), 4, "two integers");
    expect_bad(ONE("F32", "[1]", "4"), 4, "two integers");
    expect_bad(ONE("F32", "[1]", "[0.0,4.0]"), 4, "two integers");
    expect_bad(ONE("F32", "[1]", "[\"0\",\"4\"]"), 4, "two integers");
    expect_bad(ONE("F32", "[1]", "[0,18446744073709551615]"), 4, "too big");
    expect_bad(ONE("F32", "[1]", "[0,9223372036854775807]"), 4, "not within");
    expect_bad(ONE("F32", "[1]", "[9223372036854775807,9223372036854775807]"), 4, "not within");
}

static void test_f06_dtype(void **state)
{
    (void)state;
    static char header[70000];
    expect_bad(ONE("F33", "[1]", "[0,4]"), 4, "dtype F33");
    expect_bad(ONE("f32", "[1]", "[0,4]"), 4, "dtype f32");
    expect_bad(ONE("", "[1]", "[0,4]"), 4, "dtype ;");
    expect_bad(ONE("F8_E4M3", "[4]", "[0,4]"), 4, "dtype F8_E4M3");
    expect_bad("{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not a string");
    memset(header, 'F', sizeof header);
    memcpy(header, "{\"a\":{\"dtype\":\"", 15);
    strcpy(header + 65551, "\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    expect_bad(header, 4, "dtype FFFF");
}

static void test_f07_holes_and_overlaps(void **state)
{
    (void)state;
#define TWO(a, b) "{\"a\":" a ",\"b\":" b "}"
#define F4 T("F32", "[1]", "[0,4]")
    expect_good(TWO(F4, T("F32", "[1]", "[4,8]")), 8, 2);
    expect_good(TWO(T("F32", "[1]", "[4,8]"), F4), 8, 2);
    expect_bad(TWO(F4, F4), 4, "shares bytes");
    expect_bad(TWO(F4, T("F32", "[1]", "[2,6]")), 6, "shares bytes");
    expect_bad(TWO(T("U8", "[6]", "[0,6]"), T("U8", "[2]", "[2,4]")), 6, "shares bytes");
    expect_bad(TWO(F4, T("F32", "[1]", "[5,9]")), 9, "unused bytes");
    expect_bad(ONE("F32", "[1]", "[1,5]"), 5, "unused bytes");
    expect_bad(ONE("F32", "[1]", "[0,4]"), 5, "4 bytes, but 5 follow");
    expect_bad("{}", 1, "0 bytes, but 1 follow");
    /* empty tensors: at the ends and between others, in either order, but never within one */
    expect_good(TWO(T("F32", "[0]", "[0,0]"), F4), 4, 2);
    expect_good(TWO(F4, T("F32", "[0]", "[0,0]")), 4, 2);
    expect_good(TWO(T("F32", "[0]", "[4,4]"), F4), 4, 2);
    expect_good(TWO(T("F32", "[0]", "[0,0]"), T("U8", "[3,0]", "[0,0]")), 0, 2);
    expect_bad(TWO(F4, T("F32", "[0]", "[2,2]")), 4, "shares bytes");
    expect_bad(TWO(T("F32", "[0]", "[2,2]"), F4), 4, "shares bytes");
    expect_bad(TWO(F4, T("F32", "[0]", "[5,5]")), 5, "unused bytes");
}

static void test_f08_duplicates(void **state)
{
    (void)state;
    expect_bad("{\"a\":" F4 ",\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "duplicate");
    expect_bad("{\"a\":" F4 ",\"\\u0061\":" F4 "}", 4, "duplicate");
    expect_bad("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F64\",\"shape\":[1],"
               "\"data_offsets\":[0,4]}}",
               4, "duplicate");
    expect_bad("{\"__metadata__\":{\"k\":\"a\",\"k\":\"b\"}}", 0, "duplicate");
    expect_bad("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate");
}

static void test_headers_that_are_none(void **state)
{
    (void)state;
    expect_bad("[]", 0, "not JSON");
    expect_bad(" {}", 0, "not JSON");
    expect_bad("{} x", 0, "header, byte");
    expect_bad("{\"a\":1}", 0, "dtype, shape and data_offsets");
    expect_bad("{\"a\":null}", 0, "dtype, shape and data_offsets");
    expect_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0, "dtype, shape and data_offsets");
    expect_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0,
               "nothing else");
    expect_bad("{\"__metadata__\":{\"k\":1}}", 0, "strings");
    expect_bad("{\"__metadata__\":[]}", 0, "strings");
    expect_bad("{\"a\xFF\":" F4 "}", 4, "header, byte");
    char deep[5000];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[sizeof deep - 1] = 0;
    expect_bad(deep, 0, "header, byte");
    char name[400];
    memset(name, 'n', sizeof name);
    memcpy(name, "{\"", 2);
    strcpy(name + 300, "\":" F4 "}");
    expect_bad(name, 4, "255 bytes");
}

/* A bool that is neither, a u64 that is no i64: told when they are read. */
static void test_bad_elements(void **state)
{
    (void)state;
    static const struct {
        const char *header, *says;
        size_t data;
    } table[] = {{ONE("BOOL", "[3]", "[0,3]"), "element 2 is neither 0 nor 1", 3},
                 {ONE("U64", "[17]", "[0,136]"), "more than 2^63", 136}};
    for (size_t i = 0; i < COUNT(table); i++) {
        describe_case("row %zu of table", i);
        io_safetensors f;
        io_source s;
        kit_array a;
        kit_error err = {0};
        bytes b = file_of(table[i].header, table[i].data);
        assert_int_equal(open_bytes(&f, &s, b, NULL), KIT_OK);
        assert_int_equal(io_safetensors_load(&a, &f, "a", &err), KIT_BAD_FILE);
        assert_non_null(strstr(err.message, table[i].says));
        assert_null(a.data);
        io_safetensors_close(&f);
        bytes_free(&b);
    }
}

/* --------------------------------------------------------------------------------- Out and back */

static void test_out_and_back(void **state)
{
    (void)state;
    const int64_t shape[] = {2, 3};
    static const attn_dtype order[] = {ATTN_BF16, ATTN_I64, ATTN_BOOL,
                                       ATTN_F32,  ATTN_F64, ATTN_F16};
    static const char *const names[] = {"bf16", "i64", "bool", "\u00e9 \"f32\"", "f64", "f16"};
    kit_array array[COUNT(order)], none;
    kit_tensor tensor[COUNT(order) + 1];
    const kit_text metadata[] = {{"step", "12"}, {"note", "\"quoted\" and \u00fc"}};
    kit_output *out;
    kit_safetensors *f;
    for (size_t i = 0; i < COUNT(order); i++) {
        assert_int_equal(kit_array_new(&array[i], order[i], 2, shape, NULL), KIT_OK);
        for (size_t k = 0; k < array[i].bytes; k++)
            ((unsigned char *)array[i].data)[k] =
                (unsigned char)(order[i] == ATTN_BOOL ? k % 2 : k * 7 % 64);
        tensor[i] = (kit_tensor){names[i], &array[i]};
    }
    assert_int_equal(kit_array_new(&none, ATTN_F32, 2, (const int64_t[]){0, 5}, NULL), KIT_OK);
    tensor[COUNT(order)] = (kit_tensor){"none", &none};
    assert_int_equal(kit_output_open(&out, "out.safetensors", NULL), KIT_OK);
    assert_int_equal(kit_safetensors_write(out, tensor, COUNT(tensor), metadata, 2, NULL), KIT_OK);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);

    assert_int_equal(kit_safetensors_open(&f, "out.safetensors", NULL), KIT_OK);
    assert_string_equal(kit_safetensors_metadata(f, "step"), "12");
    assert_string_equal(kit_safetensors_metadata(f, "note"), metadata[1].value);
    assert_null(kit_safetensors_metadata(f, "nothing"));
    assert_true(kit_safetensors_has(f, "none") && !kit_safetensors_has(f, "f33"));
    for (size_t i = 0; i < COUNT(order); i++) {
        kit_array back;
        assert_int_equal(kit_safetensors_load(&back, f, names[i], NULL), KIT_OK);
        assert_int_equal(back.dtype, order[i]);
        assert_int_equal(back.bytes, array[i].bytes);
        assert_memory_equal(back.data, array[i].data, back.bytes);
        kit_array_free(&back);
    }
    kit_safetensors_close(f);
    /* every tensor at a multiple of its element */
    io_safetensors g;
    io_source s;
    bytes whole = read_file("out.safetensors");
    assert_int_equal(open_bytes(&g, &s, whole, NULL), KIT_OK);
    for (size_t i = 0; i < g.count; i++)
        assert_int_equal(((size_t)g.data + g.tensor[i].begin) % g.tensor[i].element->size, 0);
    io_safetensors_close(&g);
    bytes_free(&whole);
    for (size_t i = 0; i < COUNT(order); i++)
        kit_array_free(&array[i]);
    kit_array_free(&none);
}

static void test_names_that_cannot_be_written(void **state)
{
    (void)state;
    kit_array a;
    kit_output *out;
    assert_int_equal(kit_array_new(&a, ATTN_F32, 0, NULL, NULL), KIT_OK);
    const kit_tensor twice[] = {{"a", &a}, {"a", &a}}, broken[] = {{"\xFF", &a}};
    const kit_tensor reserved[] = {{"__metadata__", &a}};
    const kit_text texts[] = {{"a", "1"}, {"a", "2"}}, broken_text[] = {{"a", "\xFF"}};
    assert_int_equal(kit_output_open(&out, "no.safetensors", NULL), KIT_OK);
    assert_int_equal(kit_safetensors_write(out, twice, 2, NULL, 0, NULL), KIT_LIMIT);
    assert_int_equal(kit_safetensors_write(out, broken, 1, NULL, 0, NULL), KIT_LIMIT);
    assert_int_equal(kit_safetensors_write(out, reserved, 1, NULL, 0, NULL), KIT_LIMIT);
    assert_int_equal(kit_safetensors_write(out, twice, 1, texts, 2, NULL), KIT_LIMIT);
    assert_int_equal(kit_safetensors_write(out, twice, 1, broken_text, 1, NULL), KIT_LIMIT);
    kit_output_abort(out);
    assert_int_equal(access("no.safetensors", F_OK), -1);
    kit_array_free(&a);
}

static void test_standard_input_is_refused(void **state)
{
    (void)state;
    kit_safetensors *f;
    kit_error err = {0};
    assert_int_equal(kit_safetensors_open(&f, "-", &err), KIT_BAD_FILE);
    assert_null(f);
    assert_string_equal(err.message,
                        "standard input: a .safetensors file cannot be read from a pipe");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_files),
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_f01_header_length),
        cmocka_unit_test(test_f02_f04_sizes_that_wrap),
        cmocka_unit_test(test_f03_negative_sizes),
        cmocka_unit_test(test_f05_offsets),
        cmocka_unit_test(test_f06_dtype),
        cmocka_unit_test(test_f07_holes_and_overlaps),
        cmocka_unit_test(test_f08_duplicates),
        cmocka_unit_test(test_headers_that_are_none),
        cmocka_unit_test(test_bad_elements),
        cmocka_unit_test(test_out_and_back),
        cmocka_unit_test(test_names_that_cannot_be_written),
        cmocka_unit_test(test_standard_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
