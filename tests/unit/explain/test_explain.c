/* `attn explain` shows the numbers of the definition and refuses invalid input.
 *
 * The numbers are compared with the golden of the notebook's sentence, and with plain loops in
 * double for random sentences and options. (test_random and the golden verify that the drawn
 * weights are PyTorch's.) */
#include "explain_testing.h"

static const char *const order[] = {
    "token_ids",     "embedding_table", "embeddings", "w_q",    "w_k",
    "w_v",           "queries",         "keys",       "values", "scores",
    "scaled_scores", "masked_scores",   "weights",    "context"};

/* The notebook's sentence has the notebook's numbers; what it computes for "is" alone is row 2
 * here. */
static void test_notebook_sentence(void **state)
{
    (void)state;
    trace t;
    explain_options o = EXPLAIN_OPTIONS_INIT;
    o.text = "Life is short, eat dessert last";
    build_explain(&t, &o);
    json_t *golden = load_golden("dessert");
    static const struct {
        const char *step, *golden;
        int64_t from;
        double part;
    } cases[] = {{"token_ids", "token_ids", 0, 0},
                 {"embedding_table", "embedding_table", 0, 5e-7},
                 {"embeddings", "embeddings", 0, 5e-7},
                 {"w_q", "w_q", 0, 5e-7},
                 {"w_k", "w_k", 0, 5e-7},
                 {"w_v", "w_v", 0, 5e-7},
                 {"queries", "query_2", 24, 1e-6},
                 {"keys", "keys", 0, 1e-6},
                 {"values", "values", 0, 1e-6},
                 {"scores", "scores_2", 6, 1e-6},
                 {"weights", "weights_2", 6, 1e-6},
                 {"context", "context_2", 28, 1e-6}};
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_data(tensor_of(&t, cases[i].step), cases[i].from,
                    json_object_get(json_object_get(golden, cases[i].golden), "data"),
                    cases[i].part, cases[i].step);
    assert_int_equal(t.query, 1);
    assert_non_null(strstr(t.notes, "saturated"));
    json_decref(golden);
    trace_free(&t);
}

/* --------------------------------------------------------------------------- In plain loops */

typedef struct plain {
    int64_t T, E, D, Dv, H;
    double scale;
    bool causal;
} plain;

static double at(const trace *t, const char *name, int64_t i)
{
    return kit_array_get(tensor_of(t, name), i);
}

/* sum_e x[i,e] w[h,o,e], and the size of its terms. */
static double project(const trace *t, const plain *p, const char *w, int64_t outs, int64_t h,
                      int64_t i, int64_t o, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t e = 0; e < p->E; e++) {
        double term = at(t, "embeddings", i * p->E + e) * at(t, w, (h * outs + o) * p->E + e);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static void expect_near(double got, double want, double bound, const char *what)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: %.9g, want %.9g (within %.2g)", what, got, want, bound);
}

static void expect_projections(const trace *t, const plain *p)
{
    static const char *const names[][2] = {{"queries", "w_q"}, {"keys", "w_k"}, {"values", "w_v"}};
    for (int n = 0; n < 3; n++) {
        int64_t outs = n == 2 ? p->Dv : p->D;
        for (int64_t k = 0; k < p->H * p->T * outs; k++) {
            double size;
            int64_t h = k / (p->T * outs), i = k / outs % p->T, o = k % outs;
            double want = project(t, p, names[n][1], outs, h, i, o, &size);
            double bound = (double)(p->E + 2) * 0x1p-24 * size;
            expect_near(at(t, names[n][0], k), want, bound, names[n][0]);
        }
    }
}

/* One row: scores from the queries and keys shown, weights from the scores shown. */
static void expect_row(const trace *t, const plain *p, int64_t h, int64_t i)
{
    int64_t row = (h * p->T + i) * p->T;
    double largest = -INFINITY, sum = 0, spread = 0;
    for (int64_t j = 0; j < p->T; j++) {
        double dot = 0, size = 0;
        for (int64_t d = 0; d < p->D; d++) {
            double term = at(t, "queries", (h * p->T + i) * p->D + d) *
                          at(t, "keys", (h * p->T + j) * p->D + d);
            dot += term;
            size += fabs(term);
        }
        double bound = (double)(p->D + 2) * 0x1p-24 * size;
        expect_near(at(t, "scores", row + j), dot, bound, "scores");
        expect_near(at(t, "scaled_scores", row + j), dot * p->scale,
                    (bound + 2 * 0x1p-24 * size) * fabs(p->scale), "scaled_scores");
        spread = fmax(spread, (bound + 4 * 0x1p-24 * size) * fabs(p->scale));
        bool hidden = p->causal && j > i;
        if (p->causal)
            assert_number(at(t, "masked_scores", row + j), ==,
                          (hidden ? -INFINITY : at(t, "scaled_scores", row + j)));
        largest = hidden ? largest : fmax(largest, dot * p->scale);
    }
    for (int64_t j = 0; j < p->T; j++)
        sum += p->causal && j > i ? 0 : exp(at(t, "scaled_scores", row + j) - largest);
    for (int64_t j = 0; j < p->T; j++) {
        bool hidden = p->causal && j > i;
        double want = hidden ? 0 : exp(at(t, "scaled_scores", row + j) - largest) / sum;
        expect_near(at(t, "weights", row + j), want,
                    hidden ? 0 : want * (4 * spread + 1e-6) + 0x1p-126, "weights");
    }
    for (int64_t o = 0; o < p->Dv; o++) {
        double mix = 0, size = 0;
        for (int64_t j = 0; j < p->T; j++) {
            double v = at(t, "values", (h * p->T + j) * p->Dv + o);
            mix += at(t, "weights", row + j) * v;
            size += fabs(at(t, "weights", row + j) * v);
        }
        expect_near(at(t, "context", (h * p->T + i) * p->Dv + o), mix,
                    size * (4 * spread + (double)(p->T + 4) * 0x1p-22), "context");
    }
}

static void expect_names_and_shapes(const trace *t, const plain *p)
{
    size_t n = 0;
    for (size_t i = 0; i < COUNT(order); i++) {
        if (!p->causal && strcmp(order[i], "masked_scores") == 0)
            continue;
        const kit_array *a = &t->step[n].tensor;
        assert_string_equal(t->step[n++].name, order[i]);
        if (i >= 6) {
            int64_t columns = i < 8 ? p->D : i == 8 || i == 13 ? p->Dv : p->T;
            assert_int_equal(a->rank, p->H > 1 ? 3 : 2);
            assert_int_equal(a->shape[a->rank - 1], columns);
            assert_int_equal(a->shape[a->rank - 2], p->T);
            assert_int_equal(a->rank == 3 ? a->shape[0] : p->H, p->H);
        }
    }
    assert_int_equal(t->count, n);
}

static void expect_embeddings(const trace *t, const plain *p)
{
    for (int64_t i = 0; i < p->T; i++) {
        assert_int_equal((int64_t)at(t, "token_ids", i), t->words.id[i]);
        for (int64_t e = 0; e < p->E; e++)
            assert_number(at(t, "embeddings", i * p->E + e), ==,
                          at(t, "embedding_table", t->words.id[i] * p->E + e));
    }
}

static void test_random_sentences(void **state)
{
    (void)state;
    for (int n = 0; n < 60; n++) {
        char text[2048];
        trace t;
        explain_options o = EXPLAIN_OPTIONS_INIT;
        plain p = {1 + pick(20), 1 + pick(20), 1 + pick(30), 1 + pick(30), 1 + pick(3), 0, false};
        random_sentence(text, sizeof text, p.T);
        o.text = text;
        o.seed = (uint64_t)pick(1 << 30);
        o.embed = p.E;
        o.qk = p.D;
        o.v = p.Dv;
        o.heads = p.H;
        o.causal = p.causal = pick(2);
        o.no_scale = pick(3) == 0;
        o.scale = !o.no_scale && pick(3) == 0 ? -0.07 : 0;
        p.scale = o.no_scale ? 1 : o.scale != 0 ? o.scale : 1 / sqrt((double)p.D);
        build_explain(&t, &o);
        expect_names_and_shapes(&t, &p);
        expect_embeddings(&t, &p);
        expect_projections(&t, &p);
        for (int64_t r = 0; r < p.H * p.T; r++)
            expect_row(&t, &p, r / p.T, r % p.T);
        trace_free(&t);
    }
}

/* Heads draw their matrices one after the other: [h, ., embed]. */
static void test_head_order(void **state)
{
    (void)state;
    trace one, two;
    explain_options o = EXPLAIN_OPTIONS_INIT;
    o.text = "a b c";
    o.qk = 16;
    build_explain(&one, &o);
    o.heads = 2;
    o.qk = 8;
    build_explain(&two, &o); /* w_q [2,8,16] has the numbers of [16,16] */
    const kit_array *a = tensor_of(&one, "w_q"), *b = tensor_of(&two, "w_q");
    assert_int_equal(kit_array_count(a), kit_array_count(b));
    assert_memory_equal(a->data, b->data, a->bytes);
    trace_free(&one);
    trace_free(&two);
}

/* ------------------------------------------------------------------------------ Refusals */

static void expect_refusal(const explain_options *o, int code, const char *part)
{
    trace t;
    kit_error e = {0};
    int got = lesson_explain(&t, o, NULL, &e);
    if (got != code || strstr(e.message, part) == NULL || strchr(e.message, '\n') != NULL)
        fail_msg("got %d \"%s\", want %d \"%s\"", got, e.message, code, part);
    trace_free(&t); /* harmless after a failure */
}

static void test_refusals(void **state)
{
    (void)state;
    explain_options o = EXPLAIN_OPTIONS_INIT;
    static const char *const empty[] = {"", " ", "...", "«»"};
    for (size_t i = 0; i < COUNT(empty); i++) {
        o.text = empty[i];
        expect_refusal(&o, KIT_USAGE, "no word");
    }
    o.text = "ok \xff";
    expect_refusal(&o, KIT_USAGE, "UTF-8");
    o.text = "Life is short eat dessert last";
    o.query = "sunset";
    expect_refusal(&o, KIT_USAGE, "--query sunset: not a word of the sentence; words: Life is");
    o.query = "0";
    expect_refusal(&o, KIT_USAGE, "--query 0");
    o.query = "7";
    expect_refusal(&o, KIT_USAGE, "--query 7");
    o.query = NULL;
    o.heads = 0;
    expect_refusal(&o, KIT_USAGE, "--heads 0");
    o.heads = 1;
    o.embed = INT64_MAX;
    expect_refusal(&o, KIT_USAGE, "--embed");
    o.embed = 65536;
    o.qk = 65536;
    expect_refusal(&o, KIT_LIMIT, "more than");
    o = (explain_options)EXPLAIN_OPTIONS_INIT;
    o.text = "a b";
    o.no_scale = true;
    o.scale = 2;
    expect_refusal(&o, KIT_USAGE, "exclude each other");
    o.no_scale = false;
    o.scale = NAN;
    expect_refusal(&o, KIT_USAGE, "finite");
}

static void test_too_many_words(void **state)
{
    (void)state;
    explain_options o = EXPLAIN_OPTIONS_INIT;
    char *text = malloc(5000 * 2 + 1);
    for (int i = 0; i < 5000; i++)
        memcpy(text + 2 * i, "a ", 3);
    o.text = text;
    expect_refusal(&o, KIT_LIMIT, "5000 words");
    free(text);
}

static void test_query(void **state)
{
    (void)state;
    static const struct {
        const char *text, *query;
        int64_t row;
    } cases[] = {{"a b c", NULL, 1}, {"a", NULL, 0},    {"a b c", "c", 2},
                 {"a b b", "b", 1},  {"a b c", "1", 0}, {"x 1 y", "1", 1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        trace t;
        explain_options o = EXPLAIN_OPTIONS_INIT;
        o.text = cases[i].text;
        o.query = cases[i].query;
        build_explain(&t, &o);
        assert_int_equal(t.query, cases[i].row);
        trace_free(&t);
    }
}

/* Saturated, flat, and neither, each told as what it is; the repair that it names repairs. */
static void test_health(void **state)
{
    (void)state;
    static const struct {
        double scale;
        const char *say, *not_say;
    } cases[] = {{0, "saturated", "flat"},
                 {1e-5, "flat", "saturated"},
                 {0.0128, "fine", "saturated"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        trace t;
        explain_options o = EXPLAIN_OPTIONS_INIT;
        o.text = "Life is short, eat dessert last";
        o.scale = cases[i].scale;
        build_explain(&t, &o);
        assert_non_null(strstr(t.notes, cases[i].say));
        assert_null(strstr(t.notes, cases[i].not_say));
        assert_true((strstr(t.notes, "--scale 0.0128") != NULL) == (i < 2));
        trace_free(&t);
    }
}

/* The weight is stored as 1. The notebook printed 1.9287e-22 for each of the three other keys. */
static void test_health_slope_of_a_weight_of_1(void **state)
{
    (void)state;
    trace t;
    char slope[64];
    build_lesson(&t, "module");
    snprintf(slope, sizeof slope, "by at most %.2g times", 3 * 1.9287e-22);
    assert_non_null(strstr(t.notes, slope));
    trace_free(&t);
}

/* One saturated row of four is no reason for advice, but it is not fine either. */
static void test_health_counts_saturated_rows(void **state)
{
    (void)state;
    trace t;
    char saturated[64];
    int count = 0;
    explain_options o = EXPLAIN_OPTIONS_INIT;
    o.text = "eat dessert eat cake";
    build_explain(&t, &o);
    for (int64_t i = 0; i < 4; i++) {
        double most = 0;
        for (int64_t j = 0; j < 4; j++)
            most = fmax(most, at(&t, "weights", 4 * i + j));
        count += most > 0.99;
    }
    assert_int_equal(count, 1);
    snprintf(saturated, sizeof saturated, "mostly fine. In %d of 4 rows one key takes", count);
    assert_non_null(strstr(t.notes, saturated));
    trace_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notebook_sentence),
        cmocka_unit_test(test_random_sentences),
        cmocka_unit_test(test_head_order),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_too_many_words),
        cmocka_unit_test(test_query),
        cmocka_unit_test(test_health),
        cmocka_unit_test(test_health_slope_of_a_weight_of_1),
        cmocka_unit_test(test_health_counts_saturated_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
