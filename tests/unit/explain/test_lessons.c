/* The five lessons reproduce every tensor of the goldens and every number of the notebooks.
 *
 * Their own check must detect every wrong number. */
#include "explain_testing.h"

static const char *const names[] = {"sky", "journey", "numpy", "dessert", "module"};

/* What the notebooks printed, counted in their files by hand: numbers (each time they were
 * printed), and shapes. */
static const struct {
    const char *lesson, *total;
} totals[] = {{"dessert", "dessert: 165 numbers and 21 shapes"},
              {"sky", "sky: 69 numbers"},
              {"module", "module: 64 numbers and 2 shapes that the notebook printed and 104 of"},
              {"numpy", "numpy: 305 numbers"},
              {"journey", "journey: 206 numbers"}};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        describe_case("%s", names[i]);
        assert_string_equal(explain_lessons[i].name, names[i]);
        script s;
        kit_error e = {0};
        assert_int_equal(lesson_script(&explain_lessons[i], &s, &e), KIT_OK);
        assert_number(strlen(s.summary), <=, 69); /* "  %-8s %s" fits 80 columns */
        assert_non_null(s.time);
        assert_number(s.question.count, >=, 5);
        script_free(&s);
        assert_ptr_equal(lesson_find(names[i]), &explain_lessons[i]);
    }
    assert_null(explain_lessons[COUNT(names)].name);
    assert_null(lesson_find("desert"));
}

/* --------------------------------------------------------------------------------- Goldens */

/* The golden of numpy's variance is an object of four numbers. */
static void expect_variance(const trace *t, const json_t *golden)
{
    static const char *const keys[] = {"q", "k", "scores", "scaled_scores"};
    const kit_array *a = tensor_of(t, "variance");
    assert_int_equal(kit_array_count(a), 4);
    for (int i = 0; i < 4; i++) {
        double want = json_number_value(json_object_get(golden, keys[i]));
        assert_near(kit_array_get(a, i), want, <=, 1e-12 * want);
    }
}

static void expect_vocabulary(const trace *t, json_t *golden)
{
    const char *word;
    json_t *id;
    assert_int_equal(json_object_size(golden), t->words.vocabulary_count);
    json_object_foreach(golden, word, id)
        assert_string_equal(t->words.vocabulary[json_integer_value(id)], word);
}

static void expect_golden(const trace *t, const char *key, json_t *golden)
{
    if (strncmp(key, "grad_", 5) == 0) {
        assert_null(trace_find(t, key)); /* gradients: another release */
    } else if (strcmp(key, "vocabulary") == 0) {
        expect_vocabulary(t, golden);
    } else if (strcmp(key, "variance") == 0) {
        expect_variance(t, golden);
    } else {
        const kit_array *a = tensor_of(t, key);
        assert_false(trace_find(t, key)->check_only);
        expect_shape(a, json_object_get(golden, "shape"), key);
        bool exact = a->dtype == ATTN_I64;
        expect_data(a, 0, json_object_get(golden, "data"),
                    exact                  ? 0
                    : a->dtype == ATTN_F64 ? 1e-14
                                           : 5e-6,
                    key);
        assert_int_equal(json_array_size(json_object_get(golden, "data")), kit_array_count(a));
    }
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        trace t;
        build_lesson(&t, names[i]);
        json_t *golden = load_golden(names[i]), *value;
        const char *key;
        json_object_foreach(golden, key, value) expect_golden(&t, key, value);
        for (size_t n = 0; n < t.count; n++) { /* and no step beside them that does not say so */
            const trace_step *s = &t.step[n];
            if (!s->check_only && !s->after_notebook && json_object_get(golden, s->name) == NULL)
                fail_msg("%s: step %s has no golden", names[i], s->name);
        }
        json_decref(golden);
        trace_free(&t);
    }
}

/* ----------------------------------------------------------------------------------- Prints */

static char *report(const trace *t, int *rc)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    *rc = lesson_check(t, out, NULL);
    fclose(out);
    return text;
}

static void test_prints(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(totals); i++) {
        trace t;
        int rc;
        build_lesson(&t, totals[i].lesson);
        char *text = report(&t, &rc);
        if (rc != KIT_OK || strstr(text, "FAIL") != NULL || strstr(text, totals[i].total) == NULL)
            fail_msg("%s: %d\n%s", totals[i].lesson, rc, text);
        free(text);
        assert_int_equal(lesson_check(&t, NULL, NULL), KIT_OK);
        trace_free(&t);
    }
}

static void set_element(kit_array *a, int64_t i, double x)
{
    if (a->dtype == ATTN_I64)
        ((int64_t *)a->data)[i] = (int64_t)x;
    else if (a->dtype == ATTN_F32)
        ((float *)a->data)[i] = (float)x;
    else
        ((double *)a->data)[i] = x;
}

static void expect_failure(const trace *t, const trace_step *s, const char *what)
{
    int rc;
    kit_error e = {0};
    char *text = report(t, &rc);
    if (rc != KIT_CHECK_FAILED || strstr(text, "FAIL") == NULL)
        fail_msg("%s: %s in %s went unseen:\n%s", t->lesson, what, s->name, text);
    free(text);
    assert_int_equal(lesson_check(t, NULL, &e), KIT_CHECK_FAILED);
    assert_non_null(strstr(e.message, s->name));
    assert_null(strchr(e.message, '\n'));
}

static bool prints_numbers(const trace_step *s)
{
    const char *shape = strstr(s->printed, "torch.Size");
    return shape == NULL || shape != s->printed;
}

/* Any printed element 0.1 % off (and a little more than 4 decimals, and than the rounding of the
 * largest element), NaN, or infinite, is seen. */
static void test_planted_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        trace t;
        build_lesson(&t, names[i]);
        for (size_t n = 0; n < t.count; n++) {
            trace_step *s = &t.step[n];
            if (s->printed == NULL || !prints_numbers(s))
                continue;
            int64_t count = kit_array_count(&s->tensor), at = pick(count);
            double right = kit_array_get(&s->tensor, at);
            bool whole = s->tensor.dtype == ATTN_I64;
            double wrong = whole                ? right + 1
                           : right == -INFINITY ? 0
                                                : right * 1.001 + copysign(5e-4, right);
            set_element(&s->tensor, at, wrong);
            expect_failure(&t, s, "a wrong number");
            set_element(&s->tensor, at, whole ? right - 1 : NAN);
            expect_failure(&t, s, "NaN");
            set_element(&s->tensor, at, right);
            assert_int_equal(lesson_check(&t, NULL, NULL), KIT_OK);
        }
        trace_free(&t);
    }
}

/* A weight of 1e-27 is printed with five digits, and all five count. */
static void test_planted_small(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "dessert");
    for (int64_t i = 0; i < 6; i++) {
        trace_step *s = &t.step[0];
        while (strcmp(s->name, "weights_2") != 0)
            s++;
        double right = kit_array_get(&s->tensor, i);
        set_element(&s->tensor, i, right * 1.0002);
        expect_failure(&t, s, "2 of the last digit");
        set_element(&s->tensor, i, right);
    }
    assert_int_equal(lesson_check(&t, NULL, NULL), KIT_OK);
    trace_free(&t);
}

static void test_planted_shapes_and_words(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "dessert");
    for (size_t n = 0; n < t.count; n++) {
        trace_step *s = &t.step[n];
        if (s->printed != NULL && strstr(s->printed, "torch.Size") != NULL) {
            int rc;
            s->tensor.shape[0] = 0; /* no element is read */
            char *text = report(&t, &rc);
            assert_int_equal(rc, KIT_CHECK_FAILED);
            free(text);
            trace_free(&t);
            build_lesson(&t, "dessert");
        }
    }
    trace_step *words = &t.step[0];
    assert_string_equal(words->title, "vocabulary");
    words->column_labels[2][0] = 'E';
    expect_failure(&t, words, "a wrong word");
    trace_free(&t);
}

static void test_nothing_printed(void **state)
{
    (void)state;
    trace t;
    explain_options o = EXPLAIN_OPTIONS_INIT;
    o.text = "no notebook printed this";
    build_explain(&t, &o);
    assert_int_equal(lesson_check(&t, NULL, NULL), KIT_CHECK_FAILED);
    trace_free(&t);
}

/* Beyond half a unit of the last digit, float elements may be off by 2^-22 of the largest of them,
 * and doubles by nothing. 0.25 is printed as 0.2500, so up to 0.25005 it is right. */
static void test_float_rounding(void **state)
{
    (void)state;
    static const struct {
        attn_dtype dtype;
        double largest, x;
        const char *printed;
        bool right;
    } rows[] = {
        {ATTN_F32, 0.25, 0.25005 + 3e-8, "[0.2500, 0.2500]", true},
        {ATTN_F32, 0.25, 0.25005 + 1.5e-7, "[0.2500, 0.2500]", false},
        {ATTN_F32, 8, 8.00005 + 8e-7, "[8.0000, 8.0000]", true},
        {ATTN_F32, 8, 8.00005 + 4e-6, "[8.0000, 8.0000]", false},
        {ATTN_F64, 0.25, 0.25005 - 1e-9, "[0.2500, 0.2500]", true},
        {ATTN_F64, 0.25, 0.25005 + 1e-9, "[0.2500, 0.2500]", false},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        trace t = {0};
        kit_array a;
        assert_int_equal(kit_array_new(&a, rows[i].dtype, 1, (const int64_t[]){2}, NULL), KIT_OK);
        set_element(&a, 0, rows[i].largest);
        set_element(&a, 1, rows[i].x);
        trace_step *s = trace_add(&t, "x", TRACE_VALUES, &a, NULL);
        assert_non_null(s);
        s->printed = strdup(rows[i].printed);
        t.lesson = strdup("made");
        if (lesson_check(&t, NULL, NULL) != (rows[i].right ? KIT_OK : KIT_CHECK_FAILED))
            fail_msg("%zu: %.9g", i, kit_array_get(&s->tensor, 1));
        trace_free(&t);
    }
}

/* numpy's inputs are known to half a unit of their 8th decimal; a score of such inputs may be off
 * by that times the sum of all |q| and |k| in it, and its check allows no more and no less. */
static void test_slack_of_typed_numbers(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "numpy");
    const kit_array *q = tensor_of(&t, "queries"), *k = tensor_of(&t, "keys");
    double worst = 0;
    for (int64_t i = 0; i < q->shape[0]; i++)
        for (int64_t j = 0; j < k->shape[0]; j++) {
            double sum = 0;
            for (int64_t d = 0; d < q->shape[1]; d++)
                sum += fabs(kit_array_get(q, i * q->shape[1] + d)) +
                       fabs(kit_array_get(k, j * q->shape[1] + d));
            worst = fmax(worst, sum);
        }
    assert_true(fabs(trace_find(&t, "scores")->slack - 0.5e-8 * worst) < 1e-15);
    trace_free(&t);
}

/* Where a lesson of words has a row or a column for each word, it is labelled so. */
static void test_labels_are_words(void **state)
{
    (void)state;
    trace t;
    build_lesson(&t, "journey"); /* six words; nothing else has a size of six */
    for (size_t n = 0; n < t.count; n++) {
        const trace_step *s = &t.step[n];
        if (s->check_only || s->tensor.rank != 2)
            continue;
        for (size_t i = 0; i < 6; i++) {
            if (s->tensor.shape[0] == 6 &&
                (s->row_label_count != 6 || strcmp(s->row_labels[i], t.words.word[i]) != 0))
                fail_msg("row %zu of %s", i, s->name);
            if (s->tensor.shape[1] == 6 &&
                (s->column_label_count != 6 || strcmp(s->column_labels[i], t.words.word[i]) != 0))
                fail_msg("column %zu of %s", i, s->name);
        }
    }
    trace_free(&t);
}

/* ----------------------------------------------------------------------------- Provenance */

/* Element i, j of what a step says it is computed from; a vector is one row. The rows of all heads
 * are counted one after the other. */
static double element(const kit_array *a, int64_t i, int64_t j)
{
    return kit_array_get(a, i * a->shape[a->rank - 1] + j);
}

static int64_t rows_of_head(const kit_array *a) { return a->rank > 1 ? a->shape[a->rank - 2] : 1; }

/* The first row of `operand` that belongs to the head of row i of step s. */
static int64_t head_start(const trace_step *s, int64_t i, const kit_array *operand)
{
    int64_t head = i / rows_of_head(&s->tensor);
    return operand->rank > 2 ? head * rows_of_head(operand) : 0;
}

static double logit(const trace *t, const trace_step *s, int64_t i, int64_t j)
{
    const kit_array *a = tensor_of(t, s->a), *b = s->b != NULL ? tensor_of(t, s->b) : NULL;
    double x = b == NULL ? element(a, i, j) : 0;
    for (int64_t k = 0; b != NULL && k < a->shape[a->rank - 1]; k++)
        x += element(a, i, k) * element(b, head_start(s, i, b) + j, k);
    return s->factor != 0 ? s->factor * x : x;
}

static double computed(const trace *t, const trace_step *s, int64_t i, int64_t j)
{
    if (s->op == TRACE_DOT || s->op == TRACE_SCALE)
        return logit(t, s, i, j);
    double sum = 0;
    for (int64_t k = 0; s->op != TRACE_MIX && k < s->tensor.shape[s->tensor.rank - 1]; k++)
        sum += exp(logit(t, s, i, k));
    if (s->op != TRACE_MIX)
        return exp(logit(t, s, i, j)) / sum;
    const kit_array *a = tensor_of(t, s->a), *b = tensor_of(t, s->b);
    for (int64_t k = 0; k < a->shape[a->rank - 1]; k++)
        sum += element(a, i, k) * element(b, head_start(s, i, b) + k, j);
    return sum;
}

/* Scores and weights say from which steps they are computed, and are. */
static void test_provenance(void **state)
{
    (void)state;
    static const char *const without[] = {"heads_scores_2", "mask", "beyond_renormalised",
                                          "simple_scores_2"};
    for (size_t i = 0; i < COUNT(names); i++) {
        trace t;
        build_lesson(&t, names[i]);
        for (size_t n = 0; n < t.count; n++) {
            const trace_step *s = &t.step[n];
            bool given = s->kind != TRACE_SCORES && s->kind != TRACE_WEIGHTS;
            for (size_t k = 0; k < COUNT(without); k++)
                given = given || strcmp(s->name, without[k]) == 0;
            if (s->op == TRACE_GIVEN && !given)
                fail_msg("%s: %s is from nowhere", names[i], s->name);
            if (s->op != TRACE_DOT && s->op != TRACE_SCALE && s->op != TRACE_SOFTMAX &&
                s->op != TRACE_ATTEND && s->op != TRACE_MIX)
                continue;
            const int64_t columns = s->tensor.shape[s->tensor.rank - 1];
            for (int64_t k = 0; k < kit_array_count(&s->tensor); k++) {
                const double want = computed(&t, s, k / columns, k % columns);
                if (!(fabs(kit_array_get(&s->tensor, k) - want) <= 1e-5 * (1 + fabs(want))))
                    fail_msg("%s: %s[%d] is %g, not %g", names[i], s->name, (int)k,
                             kit_array_get(&s->tensor, k), want);
            }
        }
        trace_free(&t);
    }
}

static void test_query(void **state)
{
    (void)state;
    trace t;
    kit_error e = {0};
    build_lesson(&t, "journey");
    assert_int_equal(t.query, 1);
    assert_int_equal(trace_set_query(&t, "step", &e), KIT_OK);
    assert_int_equal(t.query, 5);
    assert_int_equal(trace_set_query(&t, "3", &e), KIT_OK);
    assert_int_equal(t.query, 2);
    assert_int_equal(trace_set_query(&t, "7", &e), KIT_USAGE);
    assert_int_equal(trace_set_query(&t, "sunset", &e), KIT_USAGE);
    assert_string_equal(e.message,
                        "--query sunset: not a word of the sentence; words: Your journey "
                        "starts with one step");
    trace_free(&t);
    build_lesson(&t, "numpy"); /* has no words: rows by number */
    assert_int_equal(trace_set_query(&t, "4", &e), KIT_OK);
    assert_int_equal(trace_set_query(&t, "5", &e), KIT_USAGE);
    trace_free(&t);
}

/* #N is the N-th word, also in a sentence with the word N. */
static void test_query_by_position(void **state)
{
    (void)state;
    static const struct {
        const char *query;
        int64_t row;
    } cases[] = {{"2", 2}, {"#2", 1}, {"3", 5}, {"#3", 2}, {"#7", 6}, {"7", 6}};
    explain_options o = EXPLAIN_OPTIONS_INIT;
    trace t;
    kit_error e = {0};
    o.text = "I have 2 cats and 3 dogs";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.query = cases[i].query;
        assert_int_equal(explain_build(&t, &o, NULL, &e), KIT_OK);
        assert_int_equal(t.query, cases[i].row);
        trace_free(&t);
    }
    for (size_t i = 0; i < 3; i++) {
        o.query = (const char *[]){"#0", "#8", "#"}[i];
        assert_int_equal(explain_build(&t, &o, NULL, &e), KIT_USAGE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_prints),
        cmocka_unit_test(test_planted_numbers),
        cmocka_unit_test(test_planted_small),
        cmocka_unit_test(test_planted_shapes_and_words),
        cmocka_unit_test(test_nothing_printed),
        cmocka_unit_test(test_float_rounding),
        cmocka_unit_test(test_slack_of_typed_numbers),
        cmocka_unit_test(test_labels_are_words),
        cmocka_unit_test(test_provenance),
        cmocka_unit_test(test_query),
        cmocka_unit_test(test_query_by_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
