/* The quiz asks for weights that can be worked out from what it shows, and its hint does so. */
#include "explain_samples.h"

/* "e^-1.5 / (e^0 + e^-2)" worked out. */
static double solve(const char *hint)
{
    const char *p = strstr(hint, "e^");
    assert_non_null(p);
    double sum = 0, own = exp(strtod(p + 2, NULL));
    for (p = strstr(p, "("); (p = strstr(p, "e^")) != NULL; p += 2)
        sum += exp(strtod(p + 2, NULL));
    return own / sum;
}

static void expect_question(const trace *t, const quiz_question *q)
{
    const trace_step *s = &t->step[q->step];
    const kit_array *a = &s->tensor;
    int64_t columns = a->shape[a->rank - 1], rows = a->rank > 1 ? a->shape[a->rank - 2] : 1;
    double want = kit_array_get(a, (q->head * rows + q->row) * columns + q->column);
    assert_int_equal(s->kind, TRACE_WEIGHTS);
    assert_true(q->answer == want);
    assert_true(quiz_is_right(q, want) && quiz_is_right(q, want + 0.01));
    assert_false(quiz_is_right(q, want - 0.0101) || quiz_is_right(q, NAN));
    assert_null(strchr(q->question, '\n'));
    expect_in(q->row_text, s->name);
    assert_null(strchr(q->row_text, '\n'));
    assert_null(strchr(q->hint, '\n'));
    if (columns <= 12) {
        assert_true(fabs(solve(q->hint) - want) < 2e-4);
        assert_true(q->row_text[0] != '\0');
    }
}

static void test_quiz(void **state)
{
    (void)state;

    for (size_t i = 0; i < COUNT(samples); i++) {
        trace t;
        build(&t, &samples[i]);
        bool none = strcmp(t.title, "alone") == 0 || (t.lesson && strcmp(t.lesson, "module") == 0);
        for (int n = 0; n < 50; n++) {
            quiz_question q, again;
            kit_error e = {0};
            int rc = quiz_ask(&q, &t, 9, n, &e);
            assert_int_equal(rc, none ? KIT_USAGE : KIT_OK);
            if (rc != KIT_OK)
                break;
            expect_question(&t, &q);
            assert_true(!samples[i].causal || q.column <= q.row);
            assert_int_equal(quiz_ask(&again, &t, 9, n, &e), KIT_OK);
            assert_int_equal(again.column, q.column);
            assert_string_equal(again.question, q.question);
        }
        trace_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quiz)};
    return cmocka_run_group_tests_name("quiz", tests, NULL, NULL);
}
