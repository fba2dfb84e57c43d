/* What the lessons add to their notebooks has the numbers that its definition gives. */
#include "explain/grid.h"
#include "explain_testing.h"

/* queries = inputs @ W_v: both are there, and they differ as they should. */
static void test_slip(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "journey");
    json_t *golden = load_golden("journey");
    json_t *values = json_object_get(json_object_get(golden, "values"), "data");
    expect_data(tensor_of(&t, "slip_queries"), 0, values, 5e-6, "slip_queries");
    const kit_array *off = tensor_of(&t, "slip_difference"), *slip = tensor_of(&t, "slip_weights");
    json_t *meant = json_object_get(json_object_get(golden, "v1_weights"), "data");
    double largest = 0;
    for (int64_t i = 0; i < 36; i++) {
        describe_case("element %d", (int)i);
        double want = kit_array_get(slip, i) - json_number_value(json_array_get(meant, (size_t)i));
        assert_near(kit_array_get(off, i), want, <, 1e-6);
        largest = fmax(largest, fabs(want));
    }
    assert_number(largest, >, 0.018);
    assert_number(largest, <=, 0.019);
    assert_true(trace_find(&t, "slip_weights")->after_notebook);
    assert_non_null(strstr(t.notes, "inputs @ W_v"));
    json_decref(golden);
    trace_free(&t);
}

/* The causal weights that journey goes on with, from the golden scores in double. */
static void test_journey_causal(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "journey");
    json_t *golden = load_golden("journey");
    json_t *scores = json_object_get(json_object_get(golden, "v1_scores"), "data");
    const kit_array *weights = tensor_of(&t, "causal_weights");
    assert_true(trace_find(&t, "causal_weights")->after_notebook);
    for (size_t i = 0; i < 6; i++) {
        double sum = 0;
        for (size_t j = 0; j <= i; j++)
            sum += exp(json_number_value(json_array_get(scores, i * 6 + j)) / sqrt(2));
        for (size_t j = 0; j < 6; j++) {
            describe_case("weight [%zu,%zu]", i, j);
            double e = exp(json_number_value(json_array_get(scores, i * 6 + j)) / sqrt(2));
            double want = j <= i ? e / sum : 0, got = kit_array_get(weights, (int64_t)(i * 6 + j));
            if (j <= i)
                assert_near(got, want, <, 2e-6);
            else
                assert_number(got, ==, 0);
        }
    }
    json_decref(golden);
    trace_free(&t);
}

/* numpy: zeroing after softmax leaks; dividing by what is left gives the masked weights. Heads hide
 * the same keys, so a row's entropy is judged over what it sees. */
static void test_numpy_beyond(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "numpy");
    const kit_array *again = tensor_of(&t, "beyond_renormalised"), *want = tensor_of(&t, "weights");
    const kit_array *sums = tensor_of(&t, "beyond_zeroed_row_sums");
    for (int64_t i = 0; i < 16; i++)
        assert_near(kit_array_get(again, i), kit_array_get(want, i), <, 1e-14);
    assert_number(kit_array_get(sums, 0), <, 0.05);
    assert_number(kit_array_get(sums, 3), >, 1 - 1e-14);
    grid heads = grid_of(&t, trace_find(&t, "beyond_heads_weights"));
    assert_int_equal(heads.heads, 2);
    for (int64_t r = 0; r < 8; r++) {
        double sum = 0;
        for (int64_t j = 0; j < 4; j++) {
            assert_int_equal(grid_masked(&heads, r / 4, r % 4, j), j > r % 4);
            sum += grid_at(&heads, r / 4, r % 4, j);
        }
        assert_near(sum, 1, <, 1e-14);
        assert_int_equal(grid_health(&heads, r / 4, r % 4).visible, r % 4 + 1);
    }
    trace_free(&t);
}

/* numpy: the variance of dot products is their size, within the error of 1600 of them (four times
 * sqrt(2/1600), and as much again because they share queries and keys); divided by sqrt(d_k), it is
 * 1. The longer the vectors, the more one key takes of undivided scores. */
static void test_numpy_experiment(void **state)
{
    (void)state;
    static const double sizes[] = {4, 8, 16, 64, 256};
    trace t;
    build_lesson(&t, "numpy");
    const kit_array *table = tensor_of(&t, "beyond_dot_variance");
    for (int64_t i = 0; i < 5; i++) {
        describe_case("d_k %g", sizes[i]);
        double raw = kit_array_get(table, 4 * i), top = kit_array_get(table, 4 * i + 2);
        assert_near(raw / sizes[i], 1, <, 8 * sqrt(2.0 / 1600));
        assert_near(kit_array_get(table, 4 * i + 1), raw / sizes[i], <, 1e-6);
        assert_number(top, >, i > 0 ? kit_array_get(table, 4 * i - 2) : 0.25);
        assert_number(top, <, 1);
        assert_near(kit_array_get(table, 4 * i + 3), 0.51, <, 0.05);
    }
    const kit_array *spread = tensor_of(&t, "beyond_sixteen_scores");
    for (int64_t i = 1; i < 5; i++)
        assert_number(kit_array_get(spread, i), >, kit_array_get(spread, i - 1));
    double notebook = kit_array_get(tensor_of(&t, "variance"), 2); /* nothing unusual */
    assert_number(notebook, >, kit_array_get(spread, 1));
    assert_number(notebook, <, kit_array_get(spread, 3));
    trace_free(&t);
}

/* numpy: after the second run of the mask's two lines nothing is visible; scores that overflow e^x
 * have the same weights as those that do not. */
static void test_numpy_pitfalls(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "numpy");
    const kit_array *twice = tensor_of(&t, "beyond_mask_twice");
    const kit_array *large = tensor_of(&t, "beyond_large_scores");
    const kit_array *small = tensor_of(&t, "scaled_scores");
    const kit_array *got = tensor_of(&t, "beyond_large_weights");
    const kit_array *want = tensor_of(&t, "unmasked_weights");
    for (int64_t i = 0; i < 16; i++) {
        assert_true(kit_array_get(twice, i) == -INFINITY);
        assert_near(kit_array_get(large, i), kit_array_get(small, i) + 1000, <, 1e-12);
        assert_true(isinf(exp(kit_array_get(large, i))));
        assert_near(kit_array_get(got, i), kit_array_get(want, i), <, 1e-12);
    }
    trace_free(&t);
}

/* dessert: the second row of "all words" is the notebook's one word, and dividing W_q and W_k by 4
 * divides the scores by 16. */
static void test_dessert_all_words(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"queries", "query_2"},
                                           {"scores", "scores_2"},
                                           {"scaled_scores", "scaled_scores_2"},
                                           {"weights", "weights_2"},
                                           {"context", "context_2"}};
    trace t;
    build_lesson(&t, "dessert");
    for (size_t i = 0; i < COUNT(pairs); i++) {
        const kit_array *all = tensor_of(&t, pairs[i][0]), *one = tensor_of(&t, pairs[i][1]);
        int64_t columns = kit_array_count(one);
        describe_case("%s", pairs[i][0]);
        assert_true(trace_find(&t, pairs[i][0])->after_notebook);
        assert_int_equal(kit_array_count(all), 6 * columns);
        for (int64_t j = 0; j < columns; j++) {
            double want = kit_array_get(one, j);
            assert_near(kit_array_get(all, columns + j), want, <=, 1e-6 * fabs(want));
        }
    }
    const kit_array *scores = tensor_of(&t, "scores"), *divided = tensor_of(&t, "divided_weights");
    for (int64_t i = 0; i < 36; i++) {
        double sum = 0;
        for (int64_t j = i - i % 6; j < i - i % 6 + 6; j++)
            sum += exp((kit_array_get(scores, j) - kit_array_get(scores, i)) / (16 * sqrt(24)));
        assert_near(kit_array_get(divided, i), 1 / sum, <, 1e-6);
    }
    trace_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slip),
        cmocka_unit_test(test_journey_causal),
        cmocka_unit_test(test_dessert_all_words),
        cmocka_unit_test(test_numpy_beyond),
        cmocka_unit_test(test_numpy_experiment),
        cmocka_unit_test(test_numpy_pitfalls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
