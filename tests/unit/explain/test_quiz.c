/* The quiz asks for weights that its hint suffices to compute. */
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
    assert_number(q->answer, ==, want);
    assert_true(quiz_is_right(q, want) && quiz_is_right(q, want + 0.01));
    assert_false(quiz_is_right(q, want - 0.0101) || quiz_is_right(q, NAN));
    assert_null(strchr(q->question, '\n'));
    if (s->title != NULL) /* as the reader knows it, not by its name in the trace */
        assert_memory_equal(q->row_text, s->title, strlen(s->title));
    assert_null(strchr(q->row_text, '\n'));
    assert_null(strchr(q->hint, '\n'));
    if (columns <= 12) {
        assert_near(solve(q->hint), want, <, 2e-4);
        assert_true(q->row_text[0] != '\0');
    }
}

static void test_quiz(void **state)
{
    (void)state;

    for (size_t i = 0; i < COUNT(samples); i++) {
        trace t;
        build(&t, &samples[i]);
        bool none = strcmp(t.title, "alone") == 0;
        for (int n = 0; n < 50; n++) {
            describe_case("sample %zu, question %d", i, n);
            quiz_question q, again;
            kit_error e = {0};
            int rc = quiz_ask(&q, &t, 9, n, &e);
            assert_int_equal(rc, none ? KIT_USAGE : KIT_OK);
            if (rc != KIT_OK)
                break;
            expect_question(&t, &q);
            if (samples[i].causal)
                assert_number(q.column, <=, q.row);
            assert_int_equal(quiz_ask(&again, &t, 9, n, &e), KIT_OK);
            assert_int_equal(again.column, q.column);
            assert_string_equal(again.question, q.question);
        }
        trace_free(&t);
    }
}

/* The question names the word that asks and the word that answers, and gives every score. */
static void test_words_of_a_question(void **state)
{
    (void)state;
    static const char *const words[] = {"Life", "is", "short", "eat", "dessert", "last"};
    trace t;
    build(&t, &samples[5]);
    for (int n = 0; n < 20; n++) {
        quiz_question q;
        char want[80];
        assert_int_equal(quiz_ask(&q, &t, 4, n, NULL), KIT_OK);
        snprintf(want, sizeof want, "\"%s\" asks. How much of its attention goes to \"%s\"?",
                 words[q.row], words[q.column]);
        assert_string_equal(q.question, want);
        const kit_array *scores = tensor_of(&t, trace_find(&t, "weights")->a);
        const char *p = q.row_text;
        for (int j = 0; j < 6; j++) {
            const double x = kit_array_get(scores, q.row * 6 + j);
            p = strstr(p, words[j]);
            assert_non_null(p);
            p += strlen(words[j]);
            assert_true(fabs(strtod(p, NULL) - x) <= 5.1e-5); /* four decimals */
        }
    }
    trace_free(&t);
}

/* The lesson numpy has the same weights in two steps, and a sentence may repeat a word. */
static void test_no_question_twice(void **state)
{
    (void)state;
    enum { MOST = 12 };
    static const sample few[] = {{.lesson = "numpy"},
                                 {.text = "the cat saw the cat saw the cat", .heads = 1},
                                 {.text = "one two three", .heads = 1, .causal = true}};
    static const int distinct[] = {MOST, 9, 5}; /* 3·3 pairs; 2 keys of "two", 3 of "three" */
    for (size_t i = 0; i < COUNT(few); i++) {
        trace t;
        build(&t, &few[i]);
        for (uint64_t seed = 1; seed < 30; seed++) {
            quiz_question q[MOST];
            for (int n = 0; n < distinct[i]; n++) {
                assert_int_equal(quiz_ask(&q[n], &t, seed, n, NULL), KIT_OK);
                for (int m = 0; m < n; m++)
                    if (strcmp(q[n].question, q[m].question) == 0 &&
                        strcmp(strstr(q[n].row_text, "Scores:"),
                               strstr(q[m].row_text, "Scores:")) == 0)
                        fail_msg("sample %zu, seed %d: %d and %d are one question: %s", i,
                                 (int)seed, m, n, q[n].question);
            }
        }
        trace_free(&t);
    }
    trace t; /* all five have been asked: the quiz begins again */
    quiz_question q;
    build(&t, &few[2]);
    assert_int_equal(quiz_ask(&q, &t, 1, 5, NULL), KIT_OK);
    trace_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quiz),
                                       cmocka_unit_test(test_words_of_a_question),
                                       cmocka_unit_test(test_no_question_twice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
