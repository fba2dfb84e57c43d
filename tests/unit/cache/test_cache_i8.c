/* A cache of i8 stores each row within the error bound of docs/NUMERICS.md.
 *
 * Known rows were computed by hand. Rows with NaN or infinity have no scale and are NaN throughout.
 */
#include <math.h>

#include "core/internal.h"

#include "cache_testing.h"

/* One row of n elements of any type into an i8 cache and back, as double. */
static void row_through_i8(const void *x, attn_dtype dtype, int64_t stride, int64_t n, double *back)
{
    const attn_cache_options o = cache_options(ATTN_I8, 1, 1, n, 1, 1, 0, 0);
    attn_cache *cache = cache_new(&o);
    const double zero = 0;
    attn_tensor k = attn_bhtd(x, dtype, 1, 1, 1, n);
    k.stride[3] = stride;
    const attn_tensor v = attn_bhtd(&zero, ATTN_F64, 1, 1, 1, 1);
    const attn_tensor out = attn_bhtd(back, ATTN_F64, 1, 1, 1, n);
    assert_int_equal(attn_cache_append(cache, 0, &k, &v, NULL), ATTN_OK);
    assert_int_equal(attn_cache_read(cache, 0, 0, &out, NULL, NULL), ATTN_OK);
    attn_cache_destroy(cache);
}

static void through_i8(const double *x, int64_t n, double *back)
{
    row_through_i8(x, ATTN_F64, 1, n, back);
}

static void test_i8_known_rows(void **state)
{
    (void)state;
    static const double rows[][2][8] = {
        /* a scale of 1: ties go to even */
        {{127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 3}, {127, 0, 2, 2, 0, -2, -126, 3}},
        {{-254, 1, 3, 2, 253, -253, 0, 4}, {-254, 0, 4, 2, 252, -252, 0, 4}},
        {{0, -0.0, 0, 0, 0, 0, 0, 0}, {0}},
        {{1e-60, -1e-50, 0, 0, 0, 0, 0, 0}, {0}}, /* no float scale is so small */
        /* nor one between 2^-149 and 2^-148: what is left of it is cut off at 127 */
        {{0xB2p-149, -0xB2p-149, 0x3p-149, 0, 0, 0, 0, 0},
         {0x7Fp-149, -0x7Fp-149, 0x3p-149, 0, 0, 0, 0, 0}},
        {{0x7Fp100, -0x1p100, 0, 0, 0, 0, 0, 0}, {0x7Fp100, -0x1p100, 0, 0, 0, 0, 0, 0}},
    };
    for (size_t r = 0; r < COUNT(rows); r++) {
        double back[8];
        through_i8(rows[r][0], 8, back);
        for (int i = 0; i < 8; i++)
            if (back[i] != rows[r][1][i])
                fail_msg("row %zu: [%d] is %g, want %g", r, i, back[i], rows[r][1][i]);
    }
    /* What is not finite is not hidden: not in its own place, and nowhere else as a number. */
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1e300};
    for (size_t o = 0; o < COUNT(odd); o++)
        for (int at = 0; at < 300; at += 37) {
            double x[300] = {1, 2, 3}, back[300];
            x[at] = odd[o];
            through_i8(x, 300, back);
            for (int i = 0; i < 300; i++)
                assert_nan(back[i]);
        }
}

/* |x - back| <= m / 254, and the float roundings of the scale and of the product. */
static void test_i8_error(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        describe_case("round %d", round);
        double x[40], back[40], m = 0, error = 0;
        const double size = ldexp(1, (int)draw(-120, 120));
        for (int i = 0; i < 40; i++) {
            x[i] = size * draw_normal();
            m = fmax(m, fabs(x[i]));
        }
        through_i8(x, 40, back);
        for (int i = 0; i < 40; i++)
            error = fmax(error, fabs(x[i] - back[i]));
        assert_number(error, <=, m / 254 + m * 0x1p-22);
        assert_number(error, >, m / 2540); /* of 40 numbers, some lie in between */
    }
    /* The largest element survives, down to denormal scales: it is the one nothing may cut off. */
    for (double m = 0x1p127; m > 0x1p-120; m /= 3) {
        describe_case("m = %g", m);
        double x[2] = {m, -m}, back[2];
        through_i8(x, 2, back);
        assert_near(back[0], m, <=, m * 0x1p-22);
        assert_number(back[1], ==, -back[0]);
    }
}

/* Rows of the narrower types, which vectors compute with products, have the bits of the same
 * numbers in f64, which are divided: ties, rows longer than are computed at a time, denormal
 * scales, NaN. */
static void test_i8_rows_of_every_type(void **state)
{
    enum { MOST = 600 };
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    static char row[2 * MOST * sizeof(float)];
    static double x[MOST], back[MOST], want[MOST];
    (void)state;
    for (int round = 0; round < 3000; round++) {
        const attn_dtype dtype = types[round % 3];
        const int64_t n = draw(1, round % 5 ? 70 : MOST), stride = draw(1, 2);
        /* few bits, so that multiples of unit / 2 are exact */
        const double few = (double)draw(1, dtype == ATTN_F32 ? 4095 : dtype == ATTN_F16 ? 7 : 3);
        const double unit = ldexp(few, (int)(dtype == ATTN_F16 ? draw(-10, 5) : draw(-148, 100)));
        describe_case("round %d: %s, n=%d, stride %d, unit %g", round, attn_dtype_name(dtype),
                      (int)n, (int)stride, unit);
        for (int64_t i = 0; i < n; i++)
            x[i] = unit * (draw(0, 1) ? (double)draw(-254, 254) / 2 : 30 * draw_normal());
        x[draw(0, n - 1)] = 127 * unit; /* if it is the largest, the scale is `unit` */
        if (round % 50 == 0)
            x[draw(0, n - 1)] = round % 100 ? NAN : -INFINITY;
        attni_store_row_f64(row, dtype, stride, x, n);
        attni_load_row_f64(x, row, dtype, stride, n);
        row_through_i8(row, dtype, stride, n, back);
        through_i8(x, n, want);
        assert_same_array(back, want, (size_t)n * sizeof *want);
    }
}

/* Rows that have no scale are saved as zeros, whatever lay in their place before: the bytes by the
 * format. */
static void test_i8_rows_without_a_scale(void **state)
{
    (void)state;
    enum { N = 5 };
    static const double rows[][N] = {{0, -0.0, 0, 0, 0},
                                     {1e-60, 0, 0, 0, 0},
                                     {1, 2, NAN, 4, 5},
                                     {1, 2, 3, 4, -INFINITY},
                                     {1e300, 1, 1, 1, 1}};
    static const double full[N] = {127, -127, 85, -1, 127};
    for (size_t r = 0; r < COUNT(rows); r++) {
        describe_case("row %zu of rows", r);
        const attn_cache_options o = cache_options(ATTN_I8, 1, 1, N, N, 1, 0, 0);
        attn_cache *cache = cache_new(&o);
        attn_tensor x = attn_bhtd(full, ATTN_F64, 1, 1, 1, N);
        assert_int_equal(attn_cache_append(cache, 0, &x, &x, NULL), ATTN_OK);
        bytes b = content(cache);
        /* the head and one length, a scale and a row of keys, the same of values, the checksum */
        assert_int_equal(b.size, 48 + 8 + 2 * (4 + N) + 8);
        for (int part = 0; part < 2; part++)
            for (int i = 0; i < N; i++)
                assert_int_equal((int8_t)b.data[56 + part * (4 + N) + 4 + i], (int8_t)full[i]);
        bytes_free(&b);
        assert_int_equal(attn_cache_truncate(cache, 0, 0, NULL), ATTN_OK);
        x.data = (double *)(uintptr_t)rows[r];
        assert_int_equal(attn_cache_append(cache, 0, &x, &x, NULL), ATTN_OK);
        b = content(cache);
        for (int part = 0; part < 2; part++) {
            const unsigned char *at = b.data + 56 + part * (4 + N);
            const uint32_t bits = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                                  (uint32_t)at[3] << 24;
            if (r < 2)
                assert_int_equal(bits, 0);
            else
                assert_number((bits & 0x7FFFFFFF), >, 0x7F800000); /* a NaN */
            for (int i = 0; i < N; i++)
                assert_int_equal(at[4 + i], 0);
        }
        bytes_free(&b);
        attn_cache_destroy(cache);
    }
}

/* Rows of i8 are less than f64 promises: refused for f64 queries, taken for the others. */
static void test_i8_and_the_type_of_queries(void **state)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    static const double row[4] = {1, 2, 3, 4};
    const attn_cache_options o = cache_options(ATTN_I8, 1, 1, 4, 4, 1, 0, 0);
    attn_cache *cache = cache_new(&o);
    const attn_tensor x = attn_bhtd(row, ATTN_F64, 1, 1, 1, 4);
    (void)state;
    assert_int_equal(attn_cache_append(cache, 0, &x, &x, NULL), ATTN_OK);
    for (size_t i = 0; i < COUNT(types); i++) {
        describe_case("queries of %s", attn_dtype_name(types[i]));
        double q[4] = {0}, out[4] = {7, 7, 7, 7};
        attn_error err = {0};
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = attn_bhtd(q, types[i], 1, 1, 1, 4);
        a.out = attn_bhtd(out, types[i] == ATTN_F64 ? ATTN_F64 : ATTN_F32, 1, 1, 1, 4);
        a.cache = cache;
        const attn_status status = attn_sdpa_forward(NULL, &a, &err);
        assert_int_equal(status, types[i] == ATTN_F64 ? ATTN_ERR_DTYPE : ATTN_OK);
        assert_string_equal(err.argument, types[i] == ATTN_F64 ? "q" : "");
        assert_int_equal(out[0] == 7, types[i] == ATTN_F64);
    }
    attn_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_i8_known_rows),
        cmocka_unit_test(test_i8_error),
        cmocka_unit_test(test_i8_rows_of_every_type),
        cmocka_unit_test(test_i8_rows_without_a_scale),
        cmocka_unit_test(test_i8_and_the_type_of_queries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
