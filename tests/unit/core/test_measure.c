/* Measured rates of arithmetic and of reading memory are plausible on any machine at any load. */

#include "core/internal.h"
#include "support/test.h"

static void flops_of_every_usable_set(void **state)
{
    (void)state;
    for (int i = 0; attn_isa(i).name; i++)
        for (int dtype = ATTN_F64; dtype <= ATTN_I8; dtype++) {
            describe_case("%s, %s", attn_isa(i).name, attn_dtype_name((attn_dtype)dtype));
            double flops = attn_measure_flops(attn_isa(i).name, (attn_dtype)dtype, 0.002);
            if (attn_isa(i).usable && dtype <= ATTN_BF16) { /* of one thread */
                assert_number(flops, >, 1e6);
                assert_number(flops, <, 1e13);
            } else {
                assert_number(flops, ==, 0);
            }
        }
    assert_number(attn_measure_flops(NULL, ATTN_F32, 0.002), >, 1e6);
    assert_number(attn_measure_flops("avx3", ATTN_F32, 0.002), ==, 0);
    assert_number(attn_measure_flops("", ATTN_F32, 0.002), ==, 0);
    assert_number(attn_measure_flops(NULL, (attn_dtype)0, 0.002), ==, 0);
}

static void bytes_of_any_size(void **state)
{
    (void)state;
    static const size_t sizes[] = {256, 257, 4096, 100001, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        describe_case("%zu bytes", sizes[i]);
        double rate = attn_measure_read(sizes[i], 0.002);
        assert_number(rate, >, 1e6);
        assert_number(rate, <, 1e13);
    }
    assert_number(attn_measure_read(0, 0.002), ==, 0);
    assert_number(attn_measure_read(SIZE_MAX, 0.002), ==, 0); /* no such memory */
}

static void it_takes_about_as_long_as_asked(void **state)
{
    (void)state;
    double start = attni_now();
    attn_measure_read(4096, 0.05);
    assert_number(attni_now() - start, >=, 0.05);
    start = attni_now();
    attn_measure_flops(NULL, ATTN_F32, 0.05);
    assert_number(attni_now() - start, >=, 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_of_every_usable_set),
        cmocka_unit_test(bytes_of_any_size),
        cmocka_unit_test(it_takes_about_as_long_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
