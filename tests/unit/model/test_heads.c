/* The trained heads do on unseen sentences what `attn explain` says of them.
 *
 * Words are only tokens to them, and a damaged file is refused. */
#include "support/io_testing.h"

#include "train/heads.h"

enum { SENTENCES = 1000, T_MAX = 64 };

static uint64_t state = 11;

static int64_t below(int64_t n)
{
    state = state * 6364136223846793005 + 1442695040888963407;
    return (int64_t)((state >> 33) % (uint64_t)n);
}

static heads *open_heads(void)
{
    heads *h;
    kit_error err = {0};
    if (heads_open(&h, NULL, &err))
        fail_msg("%s", err.message);
    assert_in_range(heads_facts_of(h)->longest, 16, T_MAX);
    return h;
}

/* A sentence of `length` words, never the same one twice in a row. */
static void draw_sentence(int64_t *id, int64_t length, int64_t kinds)
{
    for (int64_t i = 0; i < length; i++)
        do
            id[i] = below(kinds);
        while (i && id[i] == id[i - 1]);
}

static int64_t largest(const kit_array *w, int64_t row)
{
    int64_t best = 0;
    for (int64_t j = 1; j < w->shape[1]; j++)
        if (kit_array_get(w, row * w->shape[1] + j) > kit_array_get(w, row * w->shape[1] + best))
            best = j;
    return best;
}

/* Sentences of every length, from many words that repeat to hardly any. */
static void test_scores(void **unused)
{
    (void)unused;
    heads *h = open_heads();
    const heads_facts *f = heads_facts_of(h);
    int64_t id[T_MAX], right[2] = {0}, places[2] = {0};
    for (int n = 0; n < SENTENCES; n++) {
        const int64_t T = 4 + below(f->longest - 3);
        kit_array first, second;
        draw_sentence(id, T, T / 4 + 2 + below(T - T / 4 - 2));
        assert_int_equal(heads_run(h, id, T, (uint64_t)n, NULL), KIT_OK);
        assert_int_equal(heads_maps(h, 1, ATTN_STAGE_WEIGHTS, &first, NULL), KIT_OK);
        assert_int_equal(heads_maps(h, 2, ATTN_STAGE_WEIGHTS, &second, NULL), KIT_OK);
        for (int64_t i = 1; i < T; i++) {
            int64_t j = i - 1;
            places[0]++;
            right[0] += largest(&first, i) == i - 1;
            while (j >= 0 && id[j] != id[i])
                j--;
            places[1] += j >= 0;
            right[1] += j >= 0 && largest(&second, i) == j + 1;
        }
        kit_array_free(&first);
        kit_array_free(&second);
    }
    assert_number(places[1], >, 3000);
    for (int k = 0; k < 2; k++) {
        const double score = (double)right[k] / (double)places[k];
        print_message("layer %d: right in %.2f %% of %d places\n", k + 1, 100 * score,
                      (int)places[k]);
        assert_number(score, >=, 0.95);
        assert_number(f->score[k], >=, 0.95);
        assert_number(fabs(score - f->score[k]), <, 0.025); /* other sentences */
    }
    heads_close(h);
}

static void read_weights(heads *h, int layer, const int64_t *id, int64_t T, uint64_t seed,
                         kit_array *w)
{
    assert_int_equal(heads_run(h, id, T, seed, NULL), KIT_OK);
    assert_int_equal(heads_maps(h, layer, ATTN_STAGE_WEIGHTS, w, NULL), KIT_OK);
    assert_int_equal(w->rank, 2);
    assert_true(w->shape[0] == T && w->shape[1] == T);
}

/* Words that come later change nothing before them, and rows are weights. */
static void test_a_word_sees_what_is_before_it(void **unused)
{
    (void)unused;
    heads *h = open_heads();
    const int64_t id[] = {4, 1, 3, 4, 0, 1, 2, 4}, other[] = {4, 1, 3, 4, 0, 2, 1, 3};
    for (int layer = 1; layer <= 2; layer++) {
        kit_array a, b;
        read_weights(h, layer, id, 8, 5, &a);
        read_weights(h, layer, other, 8, 5, &b);
        for (int i = 0; i < 8; i++) {
            double sum = 0;
            for (int j = 0; j < 8; j++) {
                const double w = kit_array_get(&a, i * 8 + j);
                sum += w;
                assert_true(j <= i ? w >= 0 : w == 0);
                assert_true(i >= 5 || w == kit_array_get(&b, i * 8 + j));
            }
            assert_number(fabs(sum - 1), <, 1e-6);
        }
        assert_true(memcmp(a.data, b.data, a.bytes) != 0);
        kit_array_free(&a);
        kit_array_free(&b);
    }
    heads_close(h);
}

/* Another seed draws other embeddings; the same one the same. */
static void test_seeds(void **unused)
{
    (void)unused;
    heads *h = open_heads();
    const int64_t id[] = {0, 1, 2, 0, 1};
    kit_array a, b, c;
    read_weights(h, 2, id, 5, 123, &a);
    read_weights(h, 2, id, 5, 124, &b);
    read_weights(h, 2, id, 5, 123, &c);
    assert_memory_equal(a.data, c.data, a.bytes);
    assert_true(memcmp(a.data, b.data, a.bytes) != 0);
    kit_array_free(&a);
    kit_array_free(&b);
    kit_array_free(&c);
    heads_close(h);
}

/* Shortened anywhere, or with three bytes of the header changed: heads, or an error. */
static void test_damaged(void **unused)
{
    (void)unused;
    unsigned char *changed = malloc(trained_heads_size);
    int refused = 0;
    assert_non_null(changed);
    for (int n = 0; n < 400; n++) {
        heads *h;
        kit_error err = {0};
        describe_case("damage %d", n);
        memcpy(changed, trained_heads, trained_heads_size);
        const size_t size = n % 4 ? trained_heads_size : (size_t)below((int64_t)trained_heads_size);
        for (int k = 0; k < 3 && n % 4; k++)
            changed[below(3000)] = (unsigned char)below(256);
        const int code = heads_open_bytes(&h, changed, size, NULL, &err);
        assert_true(code == KIT_OK ? h != NULL : h == NULL && err.message[0] != 0);
        assert_true(n % 4 || code == KIT_BAD_FILE);
        refused += code != KIT_OK;
        heads_close(h);
    }
    free(changed);
    assert_in_range(refused, 150, 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_a_word_sees_what_is_before_it),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
