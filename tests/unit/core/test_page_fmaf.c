/* The page's own fmaf (kit/explain/page/wasm/fmaf.c), compared with that of the C library here. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/test.h"

float page_fmaf(float x, float y, float z);
#define fmaf page_fmaf
#include "explain/page/wasm/fmaf.c"
#undef fmaf

static uint32_t random_bits(void) /* splitmix64 */
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int64_t compared, twice_rounded; /* twice_rounded: where rounding the double is wrong */

static void compare(float x, float y, float z)
{
    if (FLT_EVAL_METHOD != 0)
        skip(); /* doubles are not rounded to 53 bits here */
    const float want = fmaf(x, y, z), got = page_fmaf(x, y, z);
    if (isnan(want) ? !isnan(got) : memcmp(&want, &got, sizeof want) != 0)
        fail_msg("fmaf(%a, %a, %a) is %a, not %a", x, y, z, want, got);
    compared++;
    twice_rounded += (float)((double)x * y + z) != want && !isnan(want);
}

static void any_bits(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2000000; i++)
        compare(float_of(random_bits()), float_of(random_bits()), float_of(random_bits()));
}

/* Products of 25 bits, which lie half-way between two floats, and a number that decides; also where
 * the result is subnormal, or the largest float. */
static void half_way(void **unused)
{
    (void)unused;
    twice_rounded = 0;
    for (int i = 0; i < 2000000; i++) {
        const float x = (float)(random_bits() >> 20 | 0x801), y = (float)(random_bits() >> 19 | 1);
        const int scale = (int)(random_bits() % 300) - 172, far = (int)(random_bits() % 90);
        const float sign = random_bits() & 1 ? 1 : -1, part = (float)(random_bits() >> 8);
        compare(ldexpf(x, scale / 2), sign * ldexpf(y, scale - scale / 2),
                ldexpf(random_bits() & 1 ? part : 1, scale - far) * (random_bits() & 2 ? 1 : -1));
    }
    assert_true(twice_rounded > 10000);
}

/* Sums in which nearly everything cancels. */
static void cancels(void **unused)
{
    (void)unused;
    for (int i = 0; i < 1000000; i++) {
        const float x = float_of(random_bits()), y = float_of(random_bits());
        const float product = x * y;
        compare(x, y, -product);
        compare(x, y, -nextafterf(product, 0));
        compare(x, y, -product * (1 + FLT_EPSILON));
    }
}

static void ends(void **unused)
{
    (void)unused;
    static const float ends[] = {
        0,           -0.0F,         1,        -1,        FLT_MIN,  -FLT_MIN,  FLT_TRUE_MIN,
        FLT_MAX,     -FLT_MAX,      INFINITY, -INFINITY, NAN,      0.5F,      3,
        FLT_EPSILON, 0x1.fffffep0F, 0x1p-75F, 0x1p75F,   16777215, -0x1p-149F};
    enum { COUNT = sizeof ends / sizeof *ends };
    for (int i = 0; i < COUNT * COUNT * COUNT; i++)
        compare(ends[i / COUNT / COUNT], ends[i / COUNT % COUNT], ends[i % COUNT]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bits),
        cmocka_unit_test(half_way),
        cmocka_unit_test(cancels),
        cmocka_unit_test(ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
