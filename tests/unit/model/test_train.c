/* Training: sequences fit their task, gradients fit the loss, damaged checkpoints are refused. */
#include <math.h>

#include "support/io_testing.h"

#include "train/train_inner.h"

static train_config config_of(train_task task, bool mlp)
{
    return (train_config){.task = task,
                          .vocabulary = 9,
                          .length = 12,
                          .embed = 16,
                          .heads = 2,
                          .layers = 2,
                          .mlp = mlp,
                          .batch = 3,
                          .warmup = 5,
                          .seed = 4,
                          .lr = 0.003,
                          .weight_decay = 0.01,
                          .unseen = 7};
}

/* --------------------------------------------------------------------------------------- Tasks */

enum { T = 12 };

static void expect_induction(const int64_t *tokens, const int64_t *targets)
{
    int period = 1;
    while (tokens[period] != tokens[0])
        period++;
    assert_in_range(period, 2, 6);
    for (int i = 0; i < T; i++) {
        assert_int_equal(tokens[i], tokens[i % period]);
        assert_int_equal(targets[i], i < period ? TRAIN_IGNORE : tokens[(i + 1) % period]);
        for (int j = i + 1; j < period && i < period; j++)
            assert_int_not_equal(tokens[i], tokens[j]);
    }
}

static void expect_marked(const int64_t *tokens, const int64_t *targets, bool reversed)
{
    assert_int_equal(tokens[6], 9); /* the mark */
    for (int i = 0; i < 6; i++) {
        const int64_t answer = tokens[reversed ? 5 - i : i];
        assert_int_equal(targets[i], TRAIN_IGNORE);
        assert_int_equal(targets[6 + i], answer);
        if (i < 5)
            assert_int_equal(tokens[7 + i], answer);
    }
}

/* What followed the last appearance of a token; no token comes twice in a row. */
static void expect_any_words(const int64_t *tokens, const int64_t *targets)
{
    int counted = 0;
    for (int i = 0; i < T; i++) {
        int64_t want = TRAIN_IGNORE;
        for (int j = i; j-- > 0 && want == TRAIN_IGNORE;)
            if (tokens[j] == tokens[i])
                want = tokens[j + 1];
        assert_int_equal(targets[i], want);
        counted += want != TRAIN_IGNORE;
        assert_true(i == 0 || tokens[i] != tokens[i - 1]);
    }
    assert_number(counted, >, 0);
}

/* The place of the last appearance of a token. */
static void expect_same_word(const int64_t *tokens, const int64_t *targets)
{
    int counted = 0;
    for (int i = 0; i < T; i++) {
        int64_t want = TRAIN_IGNORE;
        for (int j = i; j-- > 0 && want == TRAIN_IGNORE;)
            if (tokens[j] == tokens[i])
                want = j;
        assert_int_equal(targets[i], want);
        counted += want != TRAIN_IGNORE;
    }
    assert_number(counted, >, 0);
}

static void test_sequences(void **state)
{
    (void)state;
    attn_rng rng;
    int64_t tokens[T], targets[T];
    attn_rng_seed(&rng, 8);
    for (int task = TRAIN_INDUCTION; task < TRAIN_TEXT; task++) {
        const train_config c = config_of((train_task)task, false);
        int64_t seen = 0;
        for (int n = 0; n < 200; n++) {
            describe_case("task %d, sequence %d", task, n);
            train_draw(&c, NULL, &rng, false, tokens, targets);
            for (int i = 0; i < T; i++) {
                assert_in_range(tokens[i], 0, train_config_tokens(&c) - 1);
                seen |= INT64_C(1) << tokens[i];
            }
            if (task == TRAIN_INDUCTION)
                expect_induction(tokens, targets);
            else if (task == TRAIN_ANY_WORDS)
                expect_any_words(tokens, targets);
            else if (task == TRAIN_SAME_WORD)
                expect_same_word(tokens, targets);
            else if (task != TRAIN_PREVIOUS)
                expect_marked(tokens, targets, task == TRAIN_REVERSE);
            for (int i = 0; i < T && task == TRAIN_PREVIOUS; i++)
                assert_int_equal(targets[i], i ? tokens[i - 1] : TRAIN_IGNORE);
        }
        assert_int_equal(seen, (1 << train_config_tokens(&c)) - 1); /* every token is drawn */
    }
}

/* What is trained on and what is measured on have no character in common. */
static void test_text(void **state)
{
    (void)state;
    char text[400];
    train_text t;
    attn_rng rng;
    int64_t tokens[T], targets[T];
    train_config c = config_of(TRAIN_TEXT, false);
    for (int i = 0; i < 360; i++)
        text[i] = (char)('a' + i % 3);
    for (int i = 0; i < 20; i++)
        memcpy(text + 360 + 2 * i, "\u00e9", 2); /* 20 characters, the last of 380; 38 unseen */
    assert_int_equal(train_text_make(&t, text, 400, "text", NULL), KIT_OK);
    assert_int_equal(t.count, 380);
    assert_int_equal(t.vocabulary, 4);
    assert_int_equal(t.character[3], 0xE9);
    assert_int_equal(train_config_check(&c, &t, NULL), KIT_OK);
    assert_int_equal(c.vocabulary, 4);
    attn_rng_seed(&rng, 1);
    for (int n = 0; n < 500; n++) {
        describe_case("sequence %d", n);
        train_draw(&c, &t, &rng, n % 2, tokens, targets);
        for (int i = 0; i < T; i++) {
            if (n % 2 == 0) {
                assert_number(tokens[i], <, 3);
                assert_number(targets[i], <, 3);
            }
            if (i + 1 < T)
                assert_int_equal(targets[i], tokens[i + 1]);
        }
    }
    train_text_free(&t);
    assert_int_equal(train_text_make(&t, "a\xC3", 2, "text", NULL), KIT_BAD_FILE);
}

/* ----------------------------------------------------------------------------------- Gradients */

/* Along a parameter's own gradient the loss rises by its length, by central differences. */
static void expect_slope(train_model *m, train_parameter *p, kit_array *grad)
{
    float *w = p->value.data, *g = grad->data;
    const int64_t n = kit_array_count(grad);
    double length = 0, above, below;
    for (int64_t i = 0; i < n; i++)
        length += (double)g[i] * (double)g[i];
    length = sqrt(length);
    if (length < 1e-3) /* lost in the rounding of a float loss */
        return;
    const double step = 0.02 / (1 + length);
    float *was = malloc(p->value.bytes);
    assert_non_null(was);
    memcpy(was, w, p->value.bytes);
    for (int side = 1; side >= -1; side -= 2) {
        for (int64_t i = 0; i < n; i++)
            w[i] = (float)((double)was[i] + side * step * (double)g[i] / length);
        assert_int_equal(train_model_forward(m, 3, T, NULL), KIT_OK);
        assert_int_equal(train_model_loss(m, side > 0 ? &above : &below, false, NULL), KIT_OK);
    }
    memcpy(w, was, p->value.bytes);
    free(was);
    const double slope = (above - below) / (2 * step);
    if (!(fabs(slope - length) < 0.01 * length + 2e-4))
        fail_msg("%s: the loss rises by %g, want %g by its gradient", p->name, slope, length);
}

static void test_gradients(void **state)
{
    (void)state;
    static const train_task tasks[] = {TRAIN_COPY, TRAIN_ANY_WORDS, TRAIN_SAME_WORD};
    for (int n = 0; n < 6; n++) {
        const bool mlp = n % 2;
        const train_config c = config_of(tasks[n / 2], mlp);
        train_model m;
        attn_rng rng;
        double loss;
        attn_rng_seed(&rng, 3);
        assert_int_equal(train_model_make(&m, &c, NULL, NULL), KIT_OK);
        train_model_init(&m);
        for (int b = 0; b < 3; b++)
            train_draw(&c, NULL, &rng, false, m.tokens + b * T, m.targets + b * T);
        train_model_draw_words(&m, 0, 3, &rng);
        assert_int_equal(train_model_forward(&m, 3, T, NULL), KIT_OK);
        assert_int_equal(train_model_loss(&m, &loss, true, NULL), KIT_OK);
        assert_number(loss, >, 1);
        assert_number(loss, <, 6);
        int moving = 0;
        for (int i = 0; i < m.count; i++) {
            describe_case("%s: parameter %d, %s MLP", train_task_name(c.task), i,
                          mlp ? "with" : "without");
            const float *g = m.parameter[i].grad.data;
            for (int64_t k = 0; k < kit_array_count(&m.parameter[i].grad); k++)
                moving += g[k] != 0;
            expect_slope(&m, &m.parameter[i], &m.parameter[i].grad);
        }
        assert_number(moving, >, 1000);
        train_model_free(&m);
    }
}

/* The logits are 4/sqrt(E) times the dot products of the head's output and the sequence's own
 * words, and equal tokens enter with equal embeddings. */
static void test_drawn_words(void **state)
{
    (void)state;
    enum { E = 20, V = 9 };
    train_config c = config_of(TRAIN_ANY_WORDS, false);
    train_model m;
    attn_rng rng;
    c.embed = E;
    attn_rng_seed(&rng, 3);
    assert_int_equal(train_model_make(&m, &c, NULL, NULL), KIT_OK);
    train_model_init(&m);
    for (int i = 0; i < m.count; i++)
        assert_null(strstr(m.parameter[i].name, "tokens"));
    for (int b = 0; b < 3; b++)
        train_draw(&c, NULL, &rng, false, m.tokens + b * T, m.targets + b * T);
    train_model_draw_words(&m, 0, 3, &rng);
    assert_true(memcmp(m.words, m.words + V * E, V * E * sizeof *m.words) != 0);
    assert_int_equal(train_model_forward(&m, 3, T, NULL), KIT_OK);
    const float *places = m.parameter[m.places].value.data;
    for (int n = 0; n < 3 * T; n++) {
        const float *own = m.words + n / T * V * E;
        for (int d = 0; d < E; d++)
            assert_true(m.block[0].input[n * E + d] ==
                        own[m.tokens[n] * E + d] + places[n % T * E + d]);
        for (int v = 0; v < V; v++) {
            double sum = 0;
            for (int d = 0; d < E; d++)
                sum += (double)m.answer[n * E + d] * (double)own[v * E + d];
            assert_number(fabs(4 / sqrt(E) * sum - (double)m.logits[n * V + v]), <, 1e-4);
        }
    }
    train_model_free(&m);
}

/* The scores that are shown are dot products in double, rounded once. */
static void test_scores_are_rounded_once(void **state)
{
    (void)state;
    enum { H = 2, D = 8, ROW = 3 * H * D };
    const train_config c = config_of(TRAIN_COPY, false);
    train_model m;
    attn_rng rng;
    kit_array scores;
    attn_rng_seed(&rng, 3);
    assert_int_equal(train_model_make(&m, &c, NULL, NULL), KIT_OK);
    train_model_init(&m);
    train_draw(&c, NULL, &rng, false, m.tokens, m.targets);
    assert_int_equal(train_model_forward(&m, 1, T, NULL), KIT_OK);
    assert_int_equal(train_model_scores(&m, 1, ATTN_STAGE_RAW, &scores, NULL), KIT_OK);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < T; i++)
            for (int j = 0; j < T; j++) {
                const float *q = m.block[1].qkv + i * ROW + h * D;
                const float *k = m.block[1].qkv + j * ROW + (H + h) * D;
                double sum = 0;
                for (int d = 0; d < D; d++)
                    sum += (double)q[d] * (double)k[d];
                const float want = (float)(sum / sqrt(D));
                assert_true(kit_array_get(&scores, (h * T + i) * T + j) == (double)want);
            }
    kit_array_free(&scores);
    train_model_free(&m);
}

/* A map's rows and columns are the tokens of the sequence: six letters, the mark, and the first
 * five again. */
static void test_labels_of_maps(void **state)
{
    (void)state;
    const train_config c = config_of(TRAIN_COPY, false);
    train_run *run;
    train_score score;
    double loss;
    trace t = {0};
    assert_int_equal(train_begin(&run, &c, NULL, NULL, NULL), KIT_OK);
    assert_int_equal(train_step(run, &loss, NULL), KIT_OK);
    assert_int_equal(train_measure(run, &score, NULL), KIT_OK);
    assert_int_equal(train_to_trace(&t, run, NULL), KIT_OK);
    for (int layer = 1; layer <= 2; layer++) {
        const trace_step *s = trace_find(&t, layer == 1 ? "layer_1" : "layer_2");
        assert_non_null(s);
        assert_true(s->row_label_count == T && s->column_label_count == T);
        for (int i = 0; i < T; i++) {
            assert_string_equal(s->row_labels[i], s->column_labels[i]);
            if (i < 6)
                assert_in_range(s->row_labels[i][0], 'a', 'a' + 8);
            if (i == 6)
                assert_string_equal(s->row_labels[i], "|");
            if (i > 6)
                assert_string_equal(s->row_labels[i], s->row_labels[i - 7]);
        }
    }
    trace_free(&t);
    train_end(run);
}

static void test_setting(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        train_config c = config_of(TRAIN_COPY, n == 2);
        train_run *run;
        trace t = {0};
        c.heads = c.layers = n;
        assert_int_equal(train_begin(&run, &c, NULL, NULL, NULL), KIT_OK);
        assert_int_equal(train_to_trace(&t, run, NULL), KIT_OK);
        const char *want = n == 1 ? "1 layer, 1 head, d = 16, attention only, "
                                  : "2 layers, 2 heads, d = 16, MLP, ";
        if (strncmp(t.setting, want, strlen(want)) != 0 ||
            !strstr(t.setting, " parameters, batches of 3\u00d712 tokens, seed 4"))
            fail_msg("%s", t.setting);
        trace_free(&t);
        train_end(run);
    }
}

/* --------------------------------------------------------------------------------- Checkpoints */

/* Any three bytes changed: the run, or an error, and nothing else. */
static void test_damaged_checkpoints(void **state)
{
    (void)state;
    const train_config c = config_of(TRAIN_INDUCTION, false);
    train_run *run;
    train_score score;
    double loss;
    assert_int_equal(train_begin(&run, &c, NULL, NULL, NULL), KIT_OK);
    assert_int_equal(train_keep_maps(run, NULL), KIT_OK);
    assert_int_equal(train_step(run, &loss, NULL), KIT_OK);
    assert_int_equal(train_measure(run, &score, NULL), KIT_OK);
    assert_int_equal(train_save(run, "good.st", NULL), KIT_OK);
    train_end(run);
    bytes b = read_file("good.st");
    assert_number(b.size, >, 4000);
    uint64_t x = 7;
    int refused = 0;
    for (int n = 0; n < 400; n++) {
        describe_case("damage %d", n);
        unsigned char was[3];
        size_t at[3];
        kit_error err = {0};
        for (int k = 0; k < 3; k++) {
            x = x * 6364136223846793005 + 1442695040888963407;
            at[k] = (size_t)(x >> 33) % (n % 2 ? b.size : 4000); /* the header, or anywhere */
            was[k] = b.data[at[k]];
            b.data[at[k]] = (unsigned char)(x >> 20);
        }
        write_file("bad.st", b);
        const int code = train_load(&run, "bad.st", NULL, NULL, &err);
        refused += code != KIT_OK;
        assert_true(code == KIT_OK ? run != NULL : run == NULL && err.message[0] != 0);
        train_end(run);
        for (int k = 3; k-- > 0;)
            b.data[at[k]] = was[k];
    }
    bytes_free(&b);
    assert_in_range(refused, 150, 399);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences),   cmocka_unit_test(test_text),
        cmocka_unit_test(test_gradients),   cmocka_unit_test(test_scores_are_rounded_once),
        cmocka_unit_test(test_drawn_words), cmocka_unit_test(test_labels_of_maps),
        cmocka_unit_test(test_setting),     cmocka_unit_test(test_damaged_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
