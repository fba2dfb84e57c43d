/* The emulated matrix unit computes plain sums, treats denormals as 0, and faults as documented.
 *
 * A fault ends the program. */
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bf16/tile_ops.h"
#include "support/test.h"

static attni_tile_config shapes(int m, int n, int pairs)
{
    attni_tile_config c = {.palette = 1};
    c.rows[0] = (uint8_t)m, c.row_bytes[0] = (uint16_t)(4 * n);     /* C */
    c.rows[1] = (uint8_t)m, c.row_bytes[1] = (uint16_t)(4 * pairs); /* A */
    c.rows[2] = (uint8_t)pairs, c.row_bytes[2] = (uint16_t)(4 * n); /* B */
    return c;
}

static double value(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

static uint16_t random_bf16(void)
{
    const float f = (float)(rand() % 2001 - 1000) / 512;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

/* C += A B of every shape, with strides wider than the rows; nothing outside the shape changes. */
static void test_products(void **state)
{
    (void)state;
    srand(1);
    for (int round = 0; round < 300; round++) {
        const int m = 1 + rand() % 16, n = 1 + rand() % 16, pairs = 1 + rand() % 16;
        uint16_t a[16][40], b[16][2][40];
        float c[16][24], was[16][24];
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 40; j++)
                a[i][j] = random_bf16(), b[i][0][j] = random_bf16(), b[i][1][j] = random_bf16();
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 24; j++)
                c[i][j] = was[i][j] = (float)(rand() % 100);
        const attni_tile_config config = shapes(m, n, pairs);
        tile_config(&config);
        tile_load(0, c, sizeof c[0]);
        tile_load(1, a, sizeof a[0]);
        tile_load(2, b, sizeof b[0]);
        tile_dp_bf16(0, 1, 2);
        tile_store(0, c, sizeof c[0]);
        tile_release();
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 24; j++) {
                double sum = (double)was[i][j], size = fabs(sum);
                for (int k = 0; k < 2 * pairs && i < m && j < n; k++) {
                    const double x = value(a[i][k]) * value(b[k / 2][0][2 * j + k % 2]);
                    sum += x, size += fabs(x);
                }
                assert_near((double)c[i][j], sum, <=, 20 * 0x1p-24 * size);
                if (i >= m || j >= n)
                    assert_number(c[i][j], ==, was[i][j]);
            }
    }
}

/* The order of the sum: even elements and odd elements in two chains. With 2^24 in an even place a
 * 1 added to it is lost, and one in an odd place is not. */
static void test_order(void **state)
{
    (void)state;
    uint16_t a[32] = {0}, b[16][32] = {{0}};
    float c = 0;
    const uint16_t one = 0x3f80, big = 0x4b80; /* 2^24 */
    for (int k = 0; k < 16; k++)
        b[k][0] = b[k][1] = one;
    const attni_tile_config config = shapes(1, 1, 16);
    tile_config(&config);
    tile_load(2, b, sizeof b[0]);
    const int at[3][2] = {{2, 4}, {2, 5}, {3, 5}};
    const float want[3] = {0x1p24f, 0x1p24f, 0x1p24f};
    for (int i = 0; i < 3; i++) {
        memset(a, 0, sizeof a);
        a[0] = big, a[at[i][0]] = a[at[i][1]] = one;
        tile_zero(0);
        tile_load(1, a, sizeof a);
        tile_dp_bf16(0, 1, 2);
        tile_store(0, &c, 4);
        assert_number(c, ==, i == 2 ? want[i] + 2 : want[i]);
    }
    tile_release();
}

static void test_denormals(void **state)
{
    (void)state;
    uint16_t a[2] = {0x0040, 0}, b[2] = {0x7f00, 0}; /* a denormal times 2^127 */
    float c = 0x1p-130f;
    const attni_tile_config config = shapes(1, 1, 1);
    tile_config(&config);
    tile_load(0, &c, 4);
    tile_load(1, a, 4);
    tile_load(2, b, 4);
    tile_dp_bf16(0, 1, 2);
    tile_store(0, &c, 4);
    assert_number(c, ==, 0);      /* the operand, and c itself */
    a[0] = 0x1f80, b[0] = 0x1f80; /* 2^-64 times 2^-64 is denormal */
    tile_load(1, a, 4);
    tile_load(2, b, 4);
    tile_dp_bf16(0, 1, 2);
    tile_store(0, &c, 4);
    assert_number(c, ==, 0);
    a[0] = 0x2000; /* 2^-63 times 2^-64 is not, but -126 is least */
    b[0] = 0x2000;
    tile_load(1, a, 4);
    tile_load(2, b, 4);
    tile_dp_bf16(0, 1, 2);
    tile_store(0, &c, 4);
    assert_number(c, ==, 0x1p-126f);
    tile_release();
}

/* --------------------------------------------------------------------------------------- faults */

static void no_config(void) { tile_zero(0); }
static void after_release(void)
{
    const attni_tile_config config = shapes(16, 16, 16);
    tile_config(&config);
    tile_release();
    tile_dp_bf16(0, 1, 2);
}
static void wrong_palette(void)
{
    const attni_tile_config config = {.palette = 2};
    tile_config(&config);
}
static void too_many_rows(void)
{
    attni_tile_config config = shapes(16, 16, 16);
    config.rows[3] = 17, config.row_bytes[3] = 64;
    tile_config(&config);
}
static void wide_rows(void)
{
    attni_tile_config config = shapes(16, 16, 16);
    config.rows[3] = 16, config.row_bytes[3] = 65;
    tile_config(&config);
}
static void wrong_shapes(void)
{
    attni_tile_config config = shapes(16, 16, 16);
    config.rows[2] = 15;
    tile_config(&config);
    tile_dp_bf16(0, 1, 2);
}
static void not_configured(void)
{
    const attni_tile_config config = shapes(16, 16, 16);
    tile_config(&config);
    tile_zero(5);
}
static void same_tile(void)
{
    const attni_tile_config config = shapes(16, 16, 16);
    tile_config(&config);
    tile_dp_bf16(0, 1, 1);
}

static void test_faults(void **state)
{
    (void)state;
    void (*const wrong[])(void) = {no_config, after_release, wrong_palette,  too_many_rows,
                                   wide_rows, wrong_shapes,  not_configured, same_tile};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fflush(NULL);
        const pid_t child = fork();
        assert_number(child, >=, 0);
        if (child == 0) {
            signal(SIGABRT, SIG_DFL);
            if (!freopen("/dev/null", "w", stderr))
                _exit(1);
            wrong[i]();
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_denormals),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
