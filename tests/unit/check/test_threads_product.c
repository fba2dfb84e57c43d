/* Results do not depend on the number of threads, for random calls with all options.
 *
 * This is a fixed sample of the harness's `threads`, which draws calls of every pass and compares
 * 1, 2, 3, 8 and 16 threads. `attn check --op threads --seconds 600` draws many more. */
#include <stdio.h>

#include "check/check.h"
#include "support/test.h"

static void test_product(void **state)
{
    (void)state;
    assert_int_equal(check_run(&(check_options){.op = "threads", .seed = 18, .out = stdout}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_product)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
