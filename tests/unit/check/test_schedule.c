/* The simulated schedule of bench/scaling.c gives the times of cases worked out by hand. */

#include "bench/schedule.h"
#include "support/test.h"

static const double now[4] = {0, 0, 0, 0};

static void the_next_item_goes_to_whoever_is_free(void **state)
{
    (void)state;
    const double item[] = {5, 2, 2, 4, 1};
    const schedule s = {.items = 5, .parts = 1, .item = item, .workers = 2, .start = now};
    double end[2];
    int by[5];
    schedule_play(&s, end, by); /* 0: 5 1 to 6; 1: 2 2 4 to 8 */
    const int want[] = {0, 1, 1, 1, 0};
    for (int i = 0; i < 5; i++)
        assert_int_equal(by[i], want[i]);
    assert_number(end[0], ==, 6);
    assert_number(end[1], ==, 8);
}

static void late_workers_and_the_taking_count(void **state)
{
    (void)state;
    const double item[] = {3, 3, 3}, start[] = {1, 6, 100};
    const schedule s = {
        .items = 3, .parts = 1, .item = item, .workers = 3, .start = start, .take = 0.5};
    double end[3];
    int by[3];
    schedule_play(&s, end, by); /* 0: 1 to 4.5 to 8; 1: 6 to 9.5; 2 finds nothing */
    assert_int_equal(by[0], 0);
    assert_int_equal(by[1], 0);
    assert_int_equal(by[2], 1);
    assert_number(end[0], ==, 8);
    assert_number(end[1], ==, 9.5);
    assert_number(end[2], ==, 100);
}

static void whoever_is_last_folds(void **state)
{
    (void)state;
    /* two tasks of two parts; the first one's part 0 takes so long that part 1 is done before */
    const double item[] = {6, 1, 2, 2}, fold[] = {10, 20};
    const schedule s = {
        .items = 4, .parts = 2, .item = item, .fold = fold, .workers = 2, .start = now};
    double end[2];
    int by[4];
    schedule_play(&s, end, by); /* 1: 1 2 2 20 to 25; 0: 6 10 to 16 */
    assert_int_equal(by[0], 0);
    assert_int_equal(by[1], 1);
    assert_int_equal(by[2], 1);
    assert_int_equal(by[3], 1);
    assert_number(end[0], ==, 16);
    assert_number(end[1], ==, 25);
}

static void one_fold_for_parts_that_end_together(void **state)
{
    (void)state;
    const double item[] = {4, 4, 4}, fold[] = {1};
    const schedule s = {
        .items = 3, .parts = 3, .item = item, .fold = fold, .workers = 4, .start = now};
    double end[4];
    int by[3];
    schedule_play(&s, end, by);
    assert_number(end[0], ==, 4);
    assert_number(end[1], ==, 4);
    assert_number(end[2], ==, 5);
    assert_number(end[3], ==, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_item_goes_to_whoever_is_free),
        cmocka_unit_test(late_workers_and_the_taking_count),
        cmocka_unit_test(whoever_is_last_folds),
        cmocka_unit_test(one_fold_for_parts_that_end_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
