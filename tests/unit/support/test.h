/* Every test in C includes this file: cmocka, with messages that a failure can be understood from.
 *
 * A failure prints the case, as describe_case() has it, the numbers that came and those that were
 * expected, and at the end the command that repeats the test:
 *
 *     ERROR: out[17] is (0.25, bytes 00 00 80 3e), want (0.5, bytes 00 00 00 3f); 2 of 48 differ
 *     case: T=3 S=64 float, avx2, 3 threads
 *     ...
 *     repeat: ATTN_TEST_ONLY=test_rows ctest --test-dir 'build' -R '^unit/test_x$' ...
 *
 * In the environment, ATTN_TEST_ONLY is the only test of the program to run. ctest also sets
 * ATTN_TEST, its name of the program, and ATTN_BUILD, the folder of the build. */
#ifndef TEST_H
#define TEST_H

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ------------------------------------------------------------------------------------- the case */

static char test_case_text[512];

/* Describes the case that follows, in a test that loops over shapes, options, seeds or instruction
 * sets. If the test fails, the description is printed. */
__attribute__((format(printf, 1, 2))) static inline void describe_case(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(test_case_text, sizeof test_case_text, format, list);
    va_end(list);
}

/* ---------------------------------------------------------------------------- one test, and all */

/* The state of random numbers. Each test begins with the same one, so that it draws the same
 * numbers alone and after others. */
#define TEST_SEED UINT64_C(88172645463325252)
static uint64_t random_state = TEST_SEED;

enum { MOST_TESTS = 64 };
static struct test_run {
    const struct CMUnitTest *tests[MOST_TESTS]; /* those that run */
    bool passed[MOST_TESTS];
    size_t count, next, now;
} test_run;

static inline int test_begin(void **state)
{
    const struct CMUnitTest *test = test_run.tests[test_run.now = test_run.next++];
    random_state = TEST_SEED;
    test_case_text[0] = '\0';
    return test->setup_func ? test->setup_func(state) : 0;
}

/* A failed test does not return here. */
static inline void test_body(void **state)
{
    test_run.tests[test_run.now]->test_func(state);
    test_run.passed[test_run.now] = true;
}

static inline int test_end(void **state)
{
    const struct CMUnitTest *test = test_run.tests[test_run.now];
    if (!test_run.passed[test_run.now] && test_case_text[0])
        print_error("case: %s\n", test_case_text);
    return test->teardown_func ? test->teardown_func(state) : 0;
}

#undef skip
#define skip()                                                                                     \
    do {                                                                                           \
        test_run.passed[test_run.now] = true;                                                      \
        _skip(__FILE__, __LINE__);                                                                 \
    } while (0)

static inline void test_print_repeats(void)
{
    const char *name = getenv("ATTN_TEST"), *build = getenv("ATTN_BUILD");
    for (size_t i = 0; i < test_run.count; i++) {
        if (test_run.passed[i])
            continue;
        print_error("repeat: ATTN_TEST_ONLY=%s ", test_run.tests[i]->name);
        if (name && build)
            print_error("ctest --test-dir '%s' -R '^%s$' --output-on-failure\n", build, name);
        else
            print_error("in the environment of this program\n");
    }
}

#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    run_all_tests(tests, sizeof(tests) / sizeof *(tests), setup, teardown)
static inline int run_all_tests(const struct CMUnitTest *tests, size_t count, int (*setup)(void **),
                                int (*teardown)(void **))
{
    const char *only = getenv("ATTN_TEST_ONLY");
    struct CMUnitTest chosen[MOST_TESTS];
    memset(&test_run, 0, sizeof test_run);
    for (size_t i = 0; i < count && test_run.count < MOST_TESTS; i++)
        if (!only || strcmp(only, tests[i].name) == 0) {
            chosen[test_run.count] = (struct CMUnitTest){
                .name = tests[i].name,
                .test_func = test_body,
                .setup_func = test_begin,
                .teardown_func = test_end,
            };
            test_run.tests[test_run.count++] = &tests[i];
        }
    if (test_run.count != (only ? 1 : count)) {
        print_error("ERROR: %zu tests, of which %zu can run\n", count, test_run.count);
        return 1;
    }
    const int failed = _cmocka_run_group_tests("tests", chosen, test_run.count, setup, teardown);
    if (failed)
        test_print_repeats();
    return failed;
}

/* -------------------------------------------------------------------------------------- numbers */

/* Integers and enums. */
#undef assert_int_equal
#define assert_int_equal(got, want)                                                                \
    do {                                                                                           \
        const unsigned long long got_ = (unsigned long long)(got),                                 \
                                 want_ = (unsigned long long)(want);                               \
        if (got_ != want_)                                                                         \
            fail_msg("%s is %lld (0x%llx), want %lld (0x%llx)", #got, (long long)got_, got_,       \
                     (long long)want_, want_);                                                     \
    } while (0)

/* One comparison of numbers, as C compares them: assert_number(loss, <, 0.1). */
#define assert_number(got, comparison, want)                                                       \
    do {                                                                                           \
        const long double got_ = (long double)(got), want_ = (long double)(want);                  \
        if (!(got_ comparison want_))                                                              \
            fail_msg("%s is %.17g, want %s %.17g", #got, (double)got_, #comparison,                \
                     (double)want_);                                                               \
    } while (0)

/* |got - want| < tolerance, or <= it: assert_near(sum, 1, <, 1e-14). */
#define assert_near(got, want, comparison, tolerance)                                              \
    do {                                                                                           \
        const long double got_ = (long double)(got), want_ = (long double)(want),                  \
                          tolerance_ = (long double)(tolerance), off_ = fabsl(got_ - want_);       \
        if (!(off_ comparison tolerance_))                                                         \
            fail_msg("%s is %.17g, want %.17g (off by %g, tolerance %g)", #got, (double)got_,      \
                     (double)want_, (double)off_, (double)tolerance_);                             \
    } while (0)

#define assert_nan(got)                                                                            \
    do {                                                                                           \
        const double got_ = (double)(got);                                                         \
        if (!isnan(got_))                                                                          \
            fail_msg("%s is %.17g, want NaN", #got, got_);                                         \
    } while (0)

/* --------------------------------------------------------------------------- arrays, bit by bit */

enum test_element { TEST_FLOAT, TEST_DOUBLE, TEST_OTHER };
#define TEST_ELEMENT(x)                                                                            \
    _Generic((x), float : TEST_FLOAT, double : TEST_DOUBLE, default : TEST_OTHER)

/* One element: its value if it is a number of floating point, and its bytes. */
static inline void print_element(char text[80], enum test_element type, const void *at, size_t size)
{
    float single = 0;
    double wide = 0;
    if (type == TEST_FLOAT)
        memcpy(&single, at, sizeof single), wide = (double)single;
    else if (type == TEST_DOUBLE)
        memcpy(&wide, at, sizeof wide);
    size_t used = 0;
    if (type != TEST_OTHER)
        used = (size_t)snprintf(text, 80, "%.*g, ", type == TEST_FLOAT ? 9 : 17, wide);
    used += (size_t)snprintf(text + used, 80 - used, "bytes");
    for (size_t i = 0; i < size && i < 8; i++)
        used += (size_t)snprintf(text + used, 80 - used, " %02x", ((const unsigned char *)at)[i]);
}

/* NULL, or how two arrays differ. */
static inline const char *array_difference(const char *name, enum test_element type,
                                           const void *got, const void *want, size_t bytes,
                                           size_t size)
{
    static char text[400];
    char one[80], other[80];
    size_t first = 0, differ = 0;
    if (memcmp(got, want, bytes) == 0)
        return NULL;
    for (size_t i = bytes / size; i-- > 0;)
        if (memcmp((const char *)got + i * size, (const char *)want + i * size, size) != 0)
            first = i, differ++;
    print_element(one, type, (const char *)got + first * size, size);
    print_element(other, type, (const char *)want + first * size, size);
    snprintf(text, sizeof text, "%s[%zu] is (%s), want (%s); %zu of %zu differ", name, first, one,
             other, differ, bytes / size);
    return text;
}

/* So many bytes of two arrays are the same. For numbers; other bytes: assert_memory_equal. */
#define assert_same_array(got, want, bytes)                                                        \
    do {                                                                                           \
        const char *difference_ =                                                                  \
            array_difference(#got, TEST_ELEMENT(*(got)), got, want, bytes, sizeof *(got));         \
        if (difference_)                                                                           \
            fail_msg("%s", difference_);                                                           \
    } while (0)

#endif
