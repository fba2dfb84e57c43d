/* Numbers in JSON are those of printf and strtof, and the entropy of a row is that of log2l. */
#include "explain/grid.h"
#include "io/shortest.h"
#include "explain_testing.h"

/* The definition: the fewest digits, from 6 to 9, that read back. */
static void by_printf(char out[40], float x)
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(out, 40, "%.*g", digits, (double)x);
        if (strtof(out, NULL) == x)
            return;
    }
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Of every kind: any bits, numbers of ordinary size, few digits, and the neighbours of powers of
 * two, below which floats lie twice as close. */
static float some_float(int kind)
{
    const uint32_t bits = (uint32_t)pick((int64_t)1 << 32);
    char text[40];
    switch (kind) {
    case 0: return from_bits(bits);
    case 1: return (float)ldexp((double)pick((int64_t)1 << 40) - 0x1p39, -(int)(bits % 64));
    case 2:
        snprintf(text, sizeof text, "%s%d.%0*de%d", bits % 2 ? "-" : "", (int)(bits >> 1 & 1023),
                 (int)(bits >> 11 & 7) + 1, (int)pick(1000000), (int)(bits >> 14) % 40);
        return strtof(text, NULL);
    default: return from_bits((bits & 0xff800000u) + bits % 7 - 3);
    }
}

static void test_shortest(void **unused)
{
    (void)unused;
    char got[SHORTEST_BYTES], want[40];
    int known = 0, finite = 0;
    for (int i = 0; i < 600000; i++) {
        const float x = some_float(i % 4);
        if (!isfinite(x) || x == 0)
            continue;
        finite++;
        if (!shortest_float(got, x))
            continue;
        known++;
        by_printf(want, x);
        if (strcmp(got, want) != 0)
            fail_msg("%a: %s, printf writes %s", (double)x, got, want);
    }
    assert_number(known, >, 0.8 * finite); /* or the test compares nothing */
}

static void test_what_it_leaves_to_printf(void **unused)
{
    (void)unused;
    char got[SHORTEST_BYTES] = "untouched";
    const float none[] = {0, -0.0F, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_false(shortest_float(got, none[i]));
    assert_string_equal(got, "untouched");
    const struct {
        float x;
        const char *text;
    } known[] = {{0.1F, "0.1"},         {-2.0F / 3, "-0.6666667"}, {1e-4F, "0.0001"},
                 {9.9e-5F, "9.9e-05"},  {123456.7F, "123456.7"},   {16777216.5F, "16777216"},
                 {1.5e-30F, "1.5e-30"}, {3.1e25F, "3.1e+25"}};
    for (size_t i = 0; i < COUNT(known); i++)
        if (shortest_float(got, known[i].x))
            assert_string_equal(got, known[i].text);
}

/* The entropy is that of log2l, within rounding: two keys of weight w and 1 - w. */
static void test_entropy(void **unused)
{
    (void)unused;
    kit_array a = {0};
    const int64_t shape[] = {1, 1};
    if (kit_array_new(&a, ATTN_F32, 2, shape, NULL) != KIT_OK)
        fail();
    trace_step s = {.kind = TRACE_WEIGHTS, .tensor = a};
    trace t = {0};
    for (int i = 0; i < 200000; i++) {
        const float w = i % 2 ? 1 - (float)ldexp((double)pick(1 << 24), -24 - (int)pick(40))
                              : (float)ldexp((double)pick(1 << 24) + 1, -24 - (int)pick(100));
        ((float *)a.data)[0] = w;
        const grid g = grid_of(&t, &s);
        const double got = grid_health(&g, 0, 0).bits;
        const long double x = w, want = w > 0 ? -x * log2l(x) : 0;
        if (fabsl(got - want) > 2.3e-16L * fabsl(want))
            fail_msg("weight %a: %a bits, want %La", (double)w, got, want);
    }
    kit_array_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shortest),
        cmocka_unit_test(test_what_it_leaves_to_printf),
        cmocka_unit_test(test_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
