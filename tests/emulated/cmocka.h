/* As much of cmocka's interface as the engine's unit tests use, in one header: for platforms that
 * tests are compiled for by a bare cross compiler, where no library but the C library is at hand
 * (tests/emulated/platform.sh). Elsewhere the tests use cmocka itself.
 *
 * A test that fails says where and why and is left by longjmp; the program then ends with 1. */
#ifndef EMULATED_CMOCKA_H
#define EMULATED_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*emulated_fixture)(void **state);
typedef struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    emulated_fixture setup_func, teardown_func;
} CMUnitTest;

static jmp_buf emulated_out; /* of the test that runs */
enum { EMULATED_FAILED = 1, EMULATED_SKIPPED };

#define print_message(...) printf(__VA_ARGS__)
#define print_error(...) printf(__VA_ARGS__)
#define _skip(file, line) longjmp(emulated_out, EMULATED_SKIPPED)
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        longjmp(emulated_out, EMULATED_FAILED);                                                    \
    } while (0)
#define fail() fail_msg("failed")

/* Integers and pointers of every type, signed ones by their sign. */
#define EMULATED_NUMBER(x) ((unsigned long long)(x))
#define assert_true(c)                                                                             \
    do {                                                                                           \
        if (!(c))                                                                                  \
            fail_msg("%s", #c);                                                                    \
    } while (0)
#define assert_false(c) assert_true(!(c))
#define assert_null(p) assert_true((p) == NULL)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))
#define assert_int_equal(a, b)                                                                     \
    do {                                                                                           \
        const unsigned long long emulated_a = EMULATED_NUMBER(a), emulated_b = EMULATED_NUMBER(b); \
        if (emulated_a != emulated_b)                                                              \
            fail_msg("%s is %#llx, not %#llx", #a, emulated_a, emulated_b);                        \
    } while (0)
#define assert_int_not_equal(a, b) assert_true(EMULATED_NUMBER(a) != EMULATED_NUMBER(b))
#define assert_in_range(x, low, high)                                                              \
    assert_true(EMULATED_NUMBER(x) >= EMULATED_NUMBER(low) &&                                      \
                EMULATED_NUMBER(x) <= EMULATED_NUMBER(high))
#define assert_float_equal(a, b, e)                                                                \
    do {                                                                                           \
        const float emulated_x = (a), emulated_y = (b);                                            \
        if (!(emulated_x - emulated_y <= (e) && emulated_y - emulated_x <= (e)))                   \
            fail_msg("%s is %.9g, not %.9g", #a, (double)emulated_x, (double)emulated_y);          \
    } while (0)
#define assert_string_equal(a, b)                                                                  \
    do {                                                                                           \
        const char *const emulated_a = (a), *const emulated_b = (b);                               \
        if (strcmp(emulated_a, emulated_b) != 0)                                                   \
            fail_msg("\"%s\" is not \"%s\"", emulated_a, emulated_b);                              \
    } while (0)
#define assert_memory_equal(a, b, n)                                                               \
    do {                                                                                           \
        if (memcmp((a), (b), (n)) != 0)                                                            \
            fail_msg("%s and %s differ", #a, #b);                                                  \
    } while (0)

#define cmocka_unit_test_setup_teardown(f, s, t)                                                   \
    {                                                                                              \
#f, f, s, t                                                                                \
    }
#define cmocka_unit_test_setup(f, s) cmocka_unit_test_setup_teardown(f, s, NULL)
#define cmocka_unit_test(f) cmocka_unit_test_setup_teardown(f, NULL, NULL)

#ifndef EMULATED_SKIP
#define EMULATED_SKIP "" /* names of tests that expect another kind of machine */
#endif
static inline int emulated_skips(const char *name)
{
    static const char list[] = EMULATED_SKIP;
    const size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return 1;
    return 0;
}

static inline int emulated_test(const CMUnitTest *test)
{
    void *state = NULL;
    if (test->setup_func && test->setup_func(&state) != 0)
        return EMULATED_FAILED;
    const int result = setjmp(emulated_out);
    if (result == 0 && emulated_skips(test->name))
        longjmp(emulated_out, EMULATED_SKIPPED);
    if (result == 0)
        test->test_func(&state);
    if (test->teardown_func && test->teardown_func(&state) != 0)
        return EMULATED_FAILED;
    return result;
}

static inline int _cmocka_run_group_tests(const char *name, const CMUnitTest *tests, size_t count,
                                          emulated_fixture setup, emulated_fixture teardown)
{
    (void)name;
    static const char *const results[] = {"ok", "FAILED", "skipped"};
    void *state = NULL;
    int failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (setup && setup(&state) != 0)
        return 1;
    for (size_t i = 0; i < count; i++) {
        const int result = emulated_test(&tests[i]);
        printf("%s %s\n", results[result], tests[i].name);
        failed += result == EMULATED_FAILED;
    }
    if (teardown && teardown(&state) != 0)
        failed++;
    printf("%zu tests, %d failed\n", count, failed);
    return failed;
}

#endif
