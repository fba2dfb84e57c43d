/* Emulated, both bf16 units give the bits of the record: a change of them fails on any machine.
 *
 * labels: slow
 * timeout: 900 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_bits.h"
#include "support/test.h"

/* The sanitizers, and AVX-512 in C, make it several times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EVERY 23
#elif defined(ATTNI_AVX512_EMULATED)
#define EVERY 3
#else
#define EVERY 1
#endif

static void compare(const char *isa)
{
    char message[200] = "", compared[40], *out;
    size_t size;
    check_bits_options options = {.isa = isa, .every = EVERY, .out = open_memstream(&out, &size)};
    assert_non_null(options.out);
    assert_non_null(options.record = fopen(ATTN_TEST_DATA "/bits-0.1.txt", "r"));
    const int differ = check_bits(&options, message, sizeof message);
    fclose(options.record);
    fclose(options.out);
    if (differ != 0)
        fail_msg("%d differ: %s%s", differ, message, out);
    snprintf(compared, sizeof compared, " %s compared", isa);
    assert_non_null(strstr(out, compared));
    free(out);
}

static void test_amx(void **state)
{
    (void)state;
    compare("amx");
}

static void test_avx512bf16(void **state)
{
    (void)state;
    compare("avx512bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_amx),
        cmocka_unit_test(test_avx512bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
