/* The comparison of arrays accepts what it should and detects planted errors.
 *
 * If it took NaN for equal to anything, every other test would be worthless. */
#include <math.h>
#include <string.h>

#include "attn.h"
#include "check/check_buffers.h"
#include "check/check_compare.h"
#include "support/test.h"

#define N 12

static double want[N], got[N], bound[N];

static int prepare(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        want[i] = got[i] = 1 + i * 0.25;
        bound[i] = 1e-6 * want[i];
    }
    return 0;
}

static void expect_pass(void)
{
    check_difference d;
    assert_true(check_same(got, want, N, CHECK_ZERO_SIGNED, &d));
    assert_int_equal(d.at, -1);
    assert_true(check_within(got, want, bound, N, &d));
    assert_int_equal(d.at, -1);
}

/* Element `at` is wrong, beyond any bound. */
static void expect_fail(int64_t at)
{
    check_difference d;
    assert_false(check_same(got, want, N, CHECK_ZERO_ANY, &d));
    assert_int_equal(d.at, at);
    assert_false(check_within(got, want, bound, N, &d));
    assert_int_equal(d.at, at);
    assert_false(d.error < d.bound);
    assert_false(check_within(got, want, bound, N, NULL));
}

static void test_equal(void **state)
{
    (void)state;
    expect_pass();
    want[3] = got[3] = NAN;
    want[4] = got[4] = INFINITY;
    want[5] = got[5] = -INFINITY;
    expect_pass();
    got[3] = copysign(NAN, -1); /* a NaN's sign and payload mean nothing */
    expect_pass();
    assert_true(check_same(got, want, 0, CHECK_ZERO_SIGNED, NULL));
    assert_true(check_within(got, want, bound, 0, NULL));
}

static void test_nan(void **state)
{
    (void)state;
    got[7] = NAN; /* where a number should be */
    expect_fail(7);
    prepare(NULL);
    want[7] = NAN; /* a number where NaN should be */
    expect_fail(7);
    prepare(NULL);
    want[7] = NAN, got[8] = NAN; /* as many, elsewhere */
    expect_fail(7);
    prepare(NULL);
    got[7] = NAN, want[7] = INFINITY;
    expect_fail(7);
}

static void test_infinity(void **state)
{
    (void)state;
    got[2] = INFINITY;
    expect_fail(2);
    bound[2] = INFINITY; /* not even then */
    expect_fail(2);
    prepare(NULL);
    want[2] = INFINITY;
    bound[2] = INFINITY;
    expect_fail(2);
    prepare(NULL);
    want[2] = INFINITY, got[2] = -INFINITY;
    expect_fail(2);
    prepare(NULL);
    want[2] = INFINITY, got[2] = NAN;
    expect_fail(2);
}

static void test_bound(void **state)
{
    (void)state;
    check_difference d;
    bound[5] = 0x1p-10;
    got[5] = want[5] + 0x1p-10; /* just on it */
    assert_true(check_within(got, want, bound, N, &d));
    assert_int_equal(d.at, 5);
    assert_number(d.error, ==, d.bound);
    got[5] = nextafter(got[5], 10); /* one unit beyond */
    expect_fail(5);
    got[5] = nextafter(want[5] - 0x1p-10, 0);
    expect_fail(5);
    bound[5] = 0; /* exact */
    got[5] = nextafter(want[5], 10);
    expect_fail(5);
    bound[5] = NAN; /* no bound */
    expect_fail(5);
    bound[5] = -1;
    expect_fail(5);
}

static void test_worst(void **state)
{
    (void)state;
    check_difference d;
    got[2] += 2 * bound[2];
    got[9] += 5 * bound[9];
    got[11] += 0.5 * bound[11];
    assert_false(check_within(got, want, bound, N, &d));
    assert_int_equal(d.at, 9);
    assert_near(d.error / d.bound, 5, <, 1e-6);
    assert_number(d.got, ==, got[9]);
    assert_number(d.want, ==, want[9]);
    assert_false(check_same(got, want, N, CHECK_ZERO_ANY, &d));
    assert_int_equal(d.at, 2); /* the first */
}

static void test_order(void **state)
{
    (void)state;
    double row[3]; /* two rows change places: every value is there, at the wrong place */
    memcpy(row, got, sizeof row);
    memcpy(got, got + 3, sizeof row);
    memcpy(got + 3, row, sizeof row);
    assert_false(check_within(got, want, bound, N, NULL));
    assert_false(check_same(got, want, N, CHECK_ZERO_ANY, NULL));
    prepare(NULL);
    got[N - 1] = want[0]; /* the last element counts too */
    expect_fail(N - 1);
    prepare(NULL);
    got[0] = want[1];
    expect_fail(0);
}

static void test_zero(void **state)
{
    (void)state;
    want[1] = 0.0, got[1] = -0.0;
    assert_true(check_same(got, want, N, CHECK_ZERO_ANY, NULL));
    assert_false(check_same(got, want, N, CHECK_ZERO_SIGNED, NULL));
    assert_true(check_within(got, want, bound, N, NULL));
    got[1] = 4.9e-324; /* the smallest there is is not 0 */
    bound[1] = 0;
    expect_fail(1);
}

static void test_relative_error(void **state)
{
    (void)state;
    const double a[] = {3, 4}, b[] = {3, 4.5};
    assert_number(check_relative_error(a, a, 2), ==, 0);
    assert_near(check_relative_error(b, a, 2), 0.1, <, 1e-15);
    const double bad[] = {3, NAN};
    assert_nan(check_relative_error(bad, a, 2));
}

static void test_units(void **state)
{
    (void)state;
    assert_number(check_unit(ATTN_F32), ==, 0x1p-24);
    assert_number(check_unit(ATTN_F64), ==, 0x1p-53);
    assert_number(check_unit(ATTN_F16), ==, 0x1p-11);
    assert_number(check_unit(ATTN_BF16), ==, 0x1p-8);
    const float values[] = {1, 1.5f, 2, 3.9f, 1e-30f, 0x1p-126f, 0x1p-130f, 1e38f};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        assert_number(check_ulp(ATTN_F32, values[i]), ==,
                      nextafterf(values[i], INFINITY) - values[i]);
    assert_number(check_ulp(ATTN_F32, 0), ==, 0x1p-149);
    assert_number(check_ulp(ATTN_F16, 1e-9), ==, 0x1p-24);
    assert_number(check_ulp(ATTN_BF16, -256), ==, 2);
    assert_number(check_ulp(ATTN_F16, 1024), ==, 1);
    assert_nan(check_ulp(ATTN_F32, INFINITY));
    assert_nan(check_ulp(ATTN_F32, NAN));
}

/* The guarded buffers: a byte on either side is noticed, and only then. */
static void test_canaries(void **state)
{
    (void)state;
    static const check_side sides[] = {CHECK_RIGHT, CHECK_LEFT, CHECK_SHIFT};
    check_buffers *buffers = check_buffers_create();
    assert_non_null(buffers);
    for (size_t side = 0; side < 3; side++)
        for (size_t size = 0; size < 70; size += 23) {
            describe_case("side %zu, size %zu", side, size);
            check_buffers_reset(buffers);
            unsigned char *first = check_buffers_take(buffers, 100, 1, sides[side], 7);
            unsigned char *x = check_buffers_take(buffers, size, 1, sides[side], 7);
            assert_non_null(x);
            for (size_t i = 0; i < size; i++)
                assert_int_equal(x[i], CHECK_FILL);
            memset(x, 1, size);
            memset(first, 1, 100);
            assert_true(check_buffers_intact(buffers));
            unsigned char *beside = sides[side] == CHECK_LEFT ? x + size : x - 1;
            *beside = 0;
            assert_false(check_buffers_intact(buffers));
            *beside = CHECK_FILL;
            assert_true(check_buffers_intact(buffers));
        }
    unsigned char *aligned = check_buffers_take(buffers, 100, 64, CHECK_RIGHT, 0);
    assert_int_equal((uintptr_t)aligned % 64, 0);
    unsigned char *shifted = check_buffers_take(buffers, 100000, 1, CHECK_SHIFT, 13);
    assert_int_equal((uintptr_t)shifted % 64, 13);
    check_buffers_destroy(buffers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_equal, prepare),
        cmocka_unit_test_setup(test_nan, prepare),
        cmocka_unit_test_setup(test_infinity, prepare),
        cmocka_unit_test_setup(test_bound, prepare),
        cmocka_unit_test_setup(test_worst, prepare),
        cmocka_unit_test_setup(test_order, prepare),
        cmocka_unit_test_setup(test_zero, prepare),
        cmocka_unit_test(test_relative_error),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_canaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
