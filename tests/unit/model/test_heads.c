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

static heads *open_heads(heads_kind kind)
{
    heads *h;
    kit_error err = {0};
    if (heads_open(&h, kind, NULL, &err))
        fail_msg("%s", err.message);
    assert_in_range(heads_facts_of(h)->longest, 16, T_MAX);
    assert_int_equal(heads_facts_of(h)->sentences, 1000);
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

/* The place where the largest weight of word i should be; -1: nowhere. */
static int64_t right_place(heads_kind kind, int layer, const int64_t *id, int64_t i)
{
    int64_t j = i - 1;
    if (kind == HEADS_FOLLOWED && layer == 1)
        return j;
    while (j >= 0 && id[j] != id[i])
        j--;
    return j >= 0 && kind == HEADS_FOLLOWED ? j + 1 : j;
}

/* Sentences of every length, from many words that repeat to hardly any. */
static void test_scores(void **unused)
{
    (void)unused;
    for (heads_kind kind = 0; kind < HEADS_KINDS; kind++) {
        heads *h = open_heads(kind);
        const heads_facts *f = heads_facts_of(h);
        int64_t id[T_MAX], right[2] = {0}, places[2] = {0};
        for (int n = 0; n < SENTENCES; n++) {
            const int64_t T = 4 + below(f->longest - 3);
            draw_sentence(id, T, T / 4 + 2 + below(T - T / 4 - 2));
            assert_int_equal(heads_run(h, id, T, (uint64_t)n, NULL), KIT_OK);
            for (int layer = 1; layer <= f->layers; layer++) {
                kit_array map;
                assert_int_equal(heads_maps(h, layer, ATTN_STAGE_WEIGHTS, &map, NULL), KIT_OK);
                for (int64_t i = 1; i < T; i++) {
                    const int64_t place = right_place(kind, layer, id, i);
                    places[layer - 1] += place >= 0;
                    right[layer - 1] += place >= 0 && largest(&map, i) == place;
                }
                kit_array_free(&map);
            }
        }
        for (int k = 0; k < f->layers; k++) {
            const double score = (double)right[k] / (double)places[k];
            describe_case("kind %d, layer %d", (int)kind, k + 1);
            print_message("kind %d, layer %d: right in %.2f %% of %d places\n", (int)kind, k + 1,
                          100 * score, (int)places[k]);
            assert_number(places[k], >, 3000);
            assert_number(score, >=, 0.95);
            assert_number(f->score[k], >=, 0.95);
            assert_number(fabs(score - f->score[k]), <, 0.025); /* other sentences */
        }
        heads_close(h);
    }
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
    heads *h = open_heads(HEADS_FOLLOWED);
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
    heads *h = open_heads(HEADS_FOLLOWED);
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
static void expect_damage_found(heads_kind kind, const char *whole, size_t whole_size)
{
    unsigned char *changed = malloc(whole_size);
    int refused = 0;
    assert_non_null(changed);
    for (int n = 0; n < 400; n++) {
        heads *h;
        kit_error err = {0};
        describe_case("kind %d, damage %d", (int)kind, n);
        memcpy(changed, whole, whole_size);
        const size_t size = n % 4 ? whole_size : (size_t)below((int64_t)whole_size);
        for (int k = 0; k < 3 && n % 4; k++)
            changed[below(1500)] = (unsigned char)below(256);
        const int code = heads_open_bytes(&h, kind, changed, size, NULL, &err);
        assert_true(code == KIT_OK ? h != NULL : h == NULL && err.message[0] != 0);
        assert_true(n % 4 || code == KIT_BAD_FILE);
        refused += code != KIT_OK;
        heads_close(h);
    }
    free(changed);
    assert_in_range(refused, 150, 400);
}

static void test_damaged(void **unused)
{
    (void)unused;
    heads *h;
    kit_error err = {0};
    expect_damage_found(HEADS_FOLLOWED, trained_followed, trained_followed_size);
    expect_damage_found(HEADS_SAME, trained_same, trained_same_size);
    /* A file of the other kind. */
    assert_int_equal(heads_open_bytes(&h, HEADS_SAME, trained_followed, trained_followed_size, NULL,
                                      &err),
                     KIT_BAD_FILE);
    assert_non_null(strstr(err.message, "score.same"));
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
