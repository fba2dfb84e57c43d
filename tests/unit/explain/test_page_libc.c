/* The C functions in the page's WebAssembly give the bits of this machine's C library.
 *
 * The page has a few functions of the C library of its own; they are compiled here for this
 * machine. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/test.h"

#define fmin own_fmin
#define fmax own_fmax
#define ldexp own_ldexp
#define frexp own_frexp
#define memcpy own_memcpy
#define memset own_memset
#define __multi3 own_multi3
double own_fmin(double a, double b);
double own_fmax(double a, double b);
double own_ldexp(double x, int n);
double own_frexp(double x, int *exponent);
void *own_memcpy(void *to, const void *from, size_t n);
void *own_memset(void *to, int byte, size_t n);
#include "explain/page/wasm/libc.c"
#undef fmin
#undef fmax
#undef ldexp
#undef frexp
#undef memcpy
#undef memset

#define COUNT(x) (sizeof(x) / sizeof *(x))

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void assert_same(double got, double want, double x, int n)
{
    uint64_t a, b;
    memcpy(&a, &got, sizeof a);
    memcpy(&b, &want, sizeof b);
    if (a != b && !(isnan(got) && isnan(want)))
        fail_msg("of %a, %d: %a, want %a", x, n, got, want);
}

/* Any bits, and the edges. */
static uint64_t next(void) /* splitmix64 */
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static double some_number(void)
{
    static const double edges[] = {0.0,
                                   -0.0,
                                   1,
                                   -1,
                                   INFINITY,
                                   -INFINITY,
                                   NAN,
                                   0x1p-1074,
                                   0x1p-1022,
                                   0x1.8p-1073,
                                   0x1.fffffffffffffp1023,
                                   -0x1p1023,
                                   0x1.fffffffffffffp-1023};
    const uint64_t bits = next();
    const double x = bits % 8 == 0 ? edges[next() % COUNT(edges)] : from_bits(next());
    return isnan(x) ? NAN : x; /* a quiet one */
}

static void test_ldexp_frexp(void **unused)
{
    (void)unused;
    static const int edges[] = {0,     1,     -1,   1023, 1024,  -1022,     -1023,
                                -1074, -1075, 2098, 3000, -3000, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 2000000; i++) {
        const double x = some_number();
        const int n = i % 4 ? (int)(next() % 4400) - 2200 : edges[next() % COUNT(edges)];
        assert_same(own_ldexp(x, n), ldexp(x, n), x, n);
        int got = 7, want = 7;
        assert_same(own_frexp(x, &got), frexp(x, &want), x, 0);
        if (isfinite(x)) /* of others C leaves it open */
            assert_int_equal(got, want);
    }
}

static void test_least_and_largest(void **unused)
{
    (void)unused;
    for (int i = 0; i < 200000; i++) {
        const double a = some_number(), b = i % 3 ? some_number() : a;
        if (a == 0 && b == 0) /* of zeros of two signs, C leaves it open which */
            continue;
        assert_same(own_fmin(a, b), fmin(a, b), a, 0);
        assert_same(own_fmax(a, b), fmax(a, b), b, 0);
    }
}

static void test_products_of_128_bits(void **unused)
{
    (void)unused;
    for (int i = 0; i < 200000; i++) {
        const unsigned drop = (unsigned)(next() % 128), other = (unsigned)(next() % 128);
        const unsigned __int128 x = ((unsigned __int128)next() << 64 | next()) >> drop;
        const unsigned __int128 y = ((unsigned __int128)next() << 64 | next()) >> other;
        assert_true(own_multi3((int128)x, (int128)y) == (int128)(x * y));
        assert_true(own_multi3(-(int128)(x >> 1), (int128)y) == (int128)(-(x >> 1) * y));
    }
}

static void test_memory(void **unused)
{
    (void)unused;
    char a[64] = "copied, and no more", b[64] = "";
    assert_ptr_equal(own_memcpy(b, a, 6), b);
    assert_string_equal(b, "copied");
    assert_ptr_equal(own_memset(b, 'x', 3), b);
    assert_string_equal(b, "xxxied");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ldexp_frexp),
        cmocka_unit_test(test_least_and_largest),
        cmocka_unit_test(test_products_of_128_bits),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
