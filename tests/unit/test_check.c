/* The harness against the engine, with fixed seeds; and the harness against itself: that it finds
 * what is wrong, says it in one line, and outlives a crash. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "attn.h"
#include "check/check.h"
#include "check/check_call.h"
#include "check/check_case.h"

/* Runs the harness; the report is the caller's to free. */
static int run(const check_options *options, char **report)
{
    size_t size;
    check_options o = *options;
    o.out = open_memstream(report, &size);
    assert_non_null(o.out);
    int failed = check_run(&o);
    fclose(o.out);
    return failed;
}

static void expect_clean(const check_options *options, unsigned long at_least)
{
    char *report;
    int failed = run(options, &report);
    if (failed != 0)
        fail_msg("%d failed:\n%s", failed, report);
    const char *last = strrchr(report, '\n') - 1;
    while (last > report && last[-1] != '\n')
        last--;
    unsigned long passed, said;
    assert_int_equal(sscanf(last, "%lu passed, %lu failed", &passed, &said), 2);
    assert_int_equal(said, 0);
    assert_true(passed > at_least);
    free(report);
}

static void test_engine(void **state)
{
    (void)state;
    expect_clean(&(check_options){.seed = 1}, 1000);
    expect_clean(&(check_options){.seed = 2024, .op = "sdpa"}, 100);
}

static void test_selection(void **state)
{
    (void)state;
    expect_clean(&(check_options){.seed = 3, .op = "scores", .isa = "generic"}, 20);
    expect_clean(&(check_options){.seed = 4, .op = "pack", .isa = "generic", .seconds = 0.01}, 20);
    assert_string_equal(check_op_name(0), "pack");
    assert_null(check_op_name(-1));
    assert_null(check_op_name(1000));
    char *report;
    assert_int_equal(run(&(check_options){.op = "nonsense"}, &report), -1);
    free(report);
    assert_int_equal(run(&(check_options){.isa = "nonsense"}, &report), -1);
    free(report);
}

/* The same seed gives the same cases, another seed others. */
static void test_seed(void **state)
{
    (void)state;
    check_case a = {.random = 5}, b = {.random = 5}, other = {.random = 6};
    bool differs = false;
    for (int i = 0; i < 100; i++) {
        uint64_t x = check_random(&a);
        assert_true(x == check_random(&b));
        differs = differs || x != check_random(&other);
        int64_t y = check_between(&a, -3, 3);
        assert_true(y >= -3 && y <= 3);
        assert_true(y == check_between(&b, -3, 3));
    }
    assert_true(differs);
}

/* ------------------------------------------------------------------- checks with planted errors */

static void wrong_element(check_case *c)
{
    check_describe(c, "n=4");
    double want[] = {1, 2, 3, 4};
    void *x = check_free(c, 4);
    for (int i = 0; i < 4; i++)
        check_set(c, x, i, i == 3 ? nextafter(4, 5) : want[i]);
    check_expect_same(c, "x", x, want, 4, 2, CHECK_ZERO_ANY);
}

static void write_beside(check_case *c)
{
    char *x = check_buffers_take(c->run->buffers, 10, 1, CHECK_SHIFT, 20);
    x[10] = 0;
    check_expect_intact(c);
}

static void read_past_end(check_case *c)
{
    volatile char *x = check_buffers_take(c->run->buffers, 10, 1, CHECK_RIGHT, 0);
    (void)x[10];
}

static void write_before_start(check_case *c)
{
    volatile char *x = check_buffers_take(c->run->buffers, 10, 1, CHECK_LEFT, 0);
    x[-1] = 0;
}

/* A call whose result is changed in one element by a little more than the bound. */
static void wrong_result(check_case *c)
{
    check_call call;
    ref_result want;
    do {
        check_call_random(c, &call, 1e5);
    } while (check_count(&call.args.out) == 0 || call.args.out.dtype != ATTN_F32);
    check_call_reference(c, &call, &want);
    assert_int_equal(attn_sdpa_forward(NULL, &call.args, NULL), ATTN_OK);
    double x = ref_get(&call.args.out, 0, 0, 0, 0);
    double change = 64 * (1 + want.reach[0]) * want.mass[0] * check_unit(ATTN_F32) + 1e-3;
    check_store(&call.args.out, 0, 0, 0, 0, isnan(x) ? 0 : x + change);
    check_call_judge(c, &call, &want);
}

static void wrong_gap(check_case *c)
{
    const int64_t shape[4] = {1, 1, 3, 4};
    check_tensor t = check_tensor_new(c, ATTN_F32, shape, CHECK_DENSE);
    t.view.shape[3] = 3; /* the fourth element of each row is nobody's now */
    if (!check_tensor_gaps(&t))
        check_fail(c, "gap found where none was written");
    check_store(&t.view, 0, 0, 0, 2, 1);
    if (!check_tensor_gaps(&t))
        check_fail(c, "an element was taken for a gap");
    float one = 1;
    memcpy((float *)t.view.data + 7, &one, sizeof one);
    if (!check_tensor_gaps(&t))
        check_fail(c, "as it should");
}

static void test_planted(void **state)
{
    (void)state;
    static const struct {
        void (*check)(check_case *);
        const char *says;
    } rows[] = {
        {wrong_element, "n=4 seed=0x5eed: x row 1 column 1: 4.0000000000000009 want exactly 4\n"},
        {write_beside, "wrote outside its arrays\n"},
        {read_past_end, "segmentation fault: touched memory that is not its own\n"},
        {write_before_start, "segmentation fault: touched memory that is not its own\n"},
        {wrong_result, "out[0,0,0,0]: "},
        {wrong_gap, "as it should\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *report;
        size_t size;
        check_run_state r = {.out = open_memstream(&report, &size),
                             .buffers = check_buffers_create()};
        assert_true(r.out && r.buffers);
        struct check_signals *signals = check_signals_catch();
        check_one(&r, "planted", rows[i].check, 0, 64, 0, 0x5eed, NULL);
        check_signals_restore(signals);
        fclose(r.out);
        assert_int_equal(r.failed, 1);
        assert_int_equal(r.passed, 0);
        if (!strstr(report, rows[i].says) || strncmp(report, "FAIL planted generic", 20) != 0 ||
            !strstr(report, "seed=0x5eed: ") || strchr(report, '\n')[1] != '\0')
            fail_msg("case %zu says: %s", i, report);
        free(report);
        check_buffers_destroy(r.buffers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_planted),
        cmocka_unit_test(test_selection),
        cmocka_unit_test(test_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
