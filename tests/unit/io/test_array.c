/* Arrays in memory, conversion between their types, and the kit's error messages. */
#include "support/io_testing.h"

#include <float.h>
#include <math.h>

/* -------------------------------------------------------------------------------- Arrays */

static void test_array_new(void **state)
{
    (void)state;
    kit_array a;
    kit_error err = {0};
    assert_int_equal(kit_array_new(&a, ATTN_F64, 2, (int64_t[]){3, 5}, &err), KIT_OK);
    assert_int_equal(a.bytes, 120);
    for (int i = 0; i < 15; i++)
        assert_number(kit_array_get(&a, i), ==, 0);
    kit_array_free(&a);
    kit_array_free(&a);
    assert_int_equal(kit_array_new(&a, (attn_dtype)99, 0, NULL, &err), KIT_USAGE);
    assert_int_equal(kit_array_new(&a, ATTN_F32, 9, NULL, &err), KIT_USAGE);
    assert_int_equal(kit_array_new(&a, ATTN_F32, -1, NULL, &err), KIT_USAGE);
    assert_int_equal(kit_array_new(&a, ATTN_F32, 1, (int64_t[]){-1}, &err), KIT_LIMIT);
    assert_string_equal(err.message, "array: shape (-1,) is more than this machine can address");
    assert_null(a.data);
    a.dtype = (attn_dtype)99;
    assert_nan(kit_array_get(&a, 0));
}

/* Every value of a 16-bit float and every midpoint between two neighbours: ties go to the even one,
 * the next double on either side to its own side. `widen` is the format's definition. */
static double widen(int x, int mantissa_bits)
{
    const int m = x & ((1 << mantissa_bits) - 1), e = x >> mantissa_bits;
    const int bias = (1 << (14 - mantissa_bits)) - 1;
    return e ? (1 + m / pow(2, mantissa_bits)) * pow(2, e - bias)
             : m / pow(2, mantissa_bits) * pow(2, 1 - bias);
}

static uint16_t narrowed(double x, attn_dtype dtype)
{
    kit_array in = {.dtype = ATTN_F64, .data = &x, .bytes = sizeof x}, out;
    assert_int_equal(kit_array_convert(&out, &in, dtype, NULL), KIT_OK);
    uint16_t y;
    memcpy(&y, out.data, sizeof y);
    kit_array_free(&out);
    return y;
}

static void test_small_floats(void **state)
{
    (void)state;
    static const struct {
        attn_dtype dtype;
        int mantissa, infinity;
    } formats[] = {{ATTN_F16, 10, 0x7C00}, {ATTN_BF16, 7, 0x7F80}};
    for (size_t f = 0; f < COUNT(formats); f++) {
        const attn_dtype dtype = formats[f].dtype;
        for (int x = 0; x < formats[f].infinity; x++) {
            uint16_t bits = (uint16_t)x;
            const kit_array a = {.dtype = dtype, .data = &bits, .bytes = 2};
            const double here = widen(x, formats[f].mantissa);
            const double middle = (here + widen(x + 1, formats[f].mantissa)) / 2;
            if (kit_array_get(&a, 0) != here || narrowed(here, dtype) != x ||
                narrowed(-here, dtype) != (x | 0x8000) || narrowed(middle, dtype) != x + (x & 1) ||
                narrowed(nextafter(middle, 0), dtype) != x ||
                narrowed(nextafter(middle, INFINITY), dtype) != x + 1)
                fail_msg("%s 0x%04x", attn_dtype_name(dtype), x);
        }
        uint16_t special[] = {(uint16_t)formats[f].infinity,
                              (uint16_t)(formats[f].infinity | 0x8000),
                              (uint16_t)(formats[f].infinity | 1)};
        const kit_array a = {.dtype = dtype, .rank = 1, .shape = {3}, .data = special};
        assert_number(kit_array_get(&a, 0), ==, INFINITY);
        assert_number(kit_array_get(&a, 1), ==, -INFINITY);
        assert_nan(kit_array_get(&a, 2));
        assert_int_equal(narrowed(INFINITY, dtype), formats[f].infinity);
        assert_int_equal(narrowed(-DBL_MAX, dtype), formats[f].infinity | 0x8000);
        assert_int_equal(narrowed((double)NAN, dtype) & 0x7FFF,
                         formats[f].infinity | 1 << (formats[f].mantissa - 1));
        assert_int_equal(narrowed(DBL_MIN / 4, dtype), 0);
        assert_int_equal(narrowed(-DBL_TRUE_MIN, dtype), 0x8000);
    }
}

static void test_convert(void **state)
{
    (void)state;
    /* 2^62 + 2^54 is a tie of bf16; one more is past it, but not in a double. */
    const int64_t tie = (INT64_C(1) << 62) + (INT64_C(1) << 54);
    int64_t wide[] = {
        0,   -3,      INT64_MAX, INT64_MIN, (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1,
        tie, tie + 1, -tie - 1};
    kit_array a = {.dtype = ATTN_I64, .rank = 1, .shape = {8}, .data = wide, .bytes = sizeof wide};
    kit_array out;
    assert_int_equal(kit_array_convert(&out, &a, ATTN_F32, NULL), KIT_OK);
    static const double single[] = {0,
                                    -3,
                                    0x1p63,
                                    -0x1p63,
                                    0x1p60 + 0x1p37,
                                    0x1p62 + 0x1p54,
                                    0x1p62 + 0x1p54,
                                    -0x1p62 - 0x1p54};
    for (int i = 0; i < 8; i++)
        assert_number(kit_array_get(&out, i), ==, single[i]);
    kit_array_free(&out);
    assert_int_equal(kit_array_convert(&out, &a, ATTN_F64, NULL), KIT_OK);
    for (int i = 0; i < 8; i++)
        assert_number(kit_array_get(&out, i), ==, (double)wide[i]);
    kit_array_free(&out);
    assert_int_equal(kit_array_convert(&out, &a, ATTN_BF16, NULL), KIT_OK);
    assert_number(kit_array_get(&out, 5), ==, 0x1p62);
    assert_number(kit_array_get(&out, 6), ==, 0x1p62 + 0x1p55);
    assert_number(kit_array_get(&out, 7), ==, -0x1p62 - 0x1p55);
    kit_array_free(&out);

    unsigned char flags[] = {0, 1};
    a = (kit_array){.dtype = ATTN_BOOL, .rank = 1, .shape = {2}, .data = flags, .bytes = 2};
    assert_int_equal(kit_array_convert(&out, &a, ATTN_F16, NULL), KIT_OK);
    assert_number(kit_array_get(&out, 0), ==, 0);
    assert_number(kit_array_get(&out, 1), ==, 1);
    kit_array same;
    assert_int_equal(kit_array_convert(&same, &out, ATTN_F16, NULL), KIT_OK);
    assert_memory_equal(same.data, out.data, 4);
    assert_ptr_not_equal(same.data, out.data);
    kit_array_free(&same);
    kit_array_free(&out);
    kit_error err = {0};
    assert_int_equal(kit_array_convert(&out, &a, ATTN_I64, &err), KIT_USAGE);
    assert_int_equal(kit_array_convert(&out, &a, ATTN_BOOL, &err), KIT_USAGE);
    assert_null(out.data);
}

/* ------------------------------------------------------------------------------ Messages */

static void test_messages(void **state)
{
    (void)state;
    kit_error err;
    assert_int_equal(kit_fail(NULL, 3, "x"), 3);
    assert_int_equal(kit_fail(&err, 4, "a\n%s\x7F%d", "\x1B[1m", 5), 4);
    assert_string_equal(err.message, "a??[1m?5");
    assert_int_equal(err.code, 4);
    static char longer[3000];
    for (size_t i = 0; i + 2 < sizeof longer; i += 2)
        memcpy(longer + i, "\xC3\xA9", 2);
    for (int shift = 0; shift < 2; shift++) {
        kit_fail(&err, 1, "%s%s", shift ? "x" : "", longer);
        const size_t n = strlen(err.message);
        assert_in_range(n, sizeof err.message - 3, sizeof err.message - 1);
        assert_string_equal(err.message + n - 3, "...");
        assert_int_equal((unsigned char)err.message[n - 4], 0xA9); /* a whole character before */
    }
}

/* The exit code that docs and --help give for each error of a real call of libattn. */
static void test_engine_errors(void **state)
{
    (void)state;
    float x[16] = {0};
    attn_tensor ok = attn_bhtd(x, ATTN_F32, 1, 1, 4, 4), other = ok;
    attn_error engine;
    kit_error err = {0};
    assert_int_equal(kit_engine(attn_gelu_forward(NULL, &ok, &ok, &engine), &engine, &err), KIT_OK);
    assert_string_equal(err.message, "");
    other.shape[3] = 3;
    assert_int_equal(kit_engine(attn_gelu_forward(NULL, &ok, &other, &engine), &engine, &err),
                     KIT_BAD_FILE);
    assert_string_equal(err.message, engine.message);
    other = ok;
    other.dtype = ATTN_BOOL;
    assert_int_equal(kit_engine(attn_gelu_forward(NULL, &ok, &other, &engine), &engine, &err),
                     KIT_BAD_FILE);
    assert_int_equal(kit_engine(attn_gelu_forward(NULL, NULL, &ok, &engine), &engine, NULL),
                     KIT_USAGE);
    assert_int_equal(kit_engine(ATTN_ERR_MEMORY, &engine, NULL), KIT_LIMIT);
    assert_int_equal(kit_engine(ATTN_ERR_LIMIT, &engine, NULL), KIT_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_array_new),     cmocka_unit_test(test_small_floats),
        cmocka_unit_test(test_convert),       cmocka_unit_test(test_messages),
        cmocka_unit_test(test_engine_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
