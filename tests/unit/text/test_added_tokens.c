/* Added tokens are found in a text as Hugging Face's tokenizers find them. */
#include "support/tokenizer_testing.h"

/* The one that begins first is found, and of those the longest. */
static void test_added_tokens_that_overlap(void **state)
{
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<a>\",\"normalized\":false},"
        "{\"id\":4,\"content\":\"<a><a>\",\"normalized\":false},{\"id\":5,\"content\":\"a>\"},"
        "{\"id\":6,\"content\":\"><\",\"normalized\":false}],"
        "\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":"
        "{\"a\":0,\"<\":1,\">\":2}}}";
    kit_tokenizer *t = make(json);
    expect(t, "<a><a><a>", NULL, "4@0-6 3@6-9");
    expect(t, "<<a>a>><a>", NULL, "1@0-1 3@1-4 5@4-6 6@6-8 5@8-10");
    expect(t, "<a", NULL, "1@0-1 0@1-2");
    kit_tokenizer_free(t);
}

/* Of two with one id the later one is meant: it is sought after normalising, when <a> is taken. */
static void test_added_token_that_comes_twice(void **state)
{
    (void)state;
    kit_tokenizer *t = make(
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<a>\",\"normalized\":false},"
        "{\"id\":4,\"content\":\"<a><a>\",\"normalized\":false},{\"id\":4,\"content\":\"<a><a>\"}],"
        "\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":"
        "{\"a\":0,\"<\":1,\">\":2}}}");
    expect(t, "<a><a><a>", NULL, "3@0-3 3@3-6 3@6-9");
    kit_tokenizer_free(t);
}

/* Normalised, two tokens are one text. Tokenizers' own library takes either, differently from one
 * reading to the next; here it is the first, always. */
static void test_added_tokens_that_normalise_alike(void **state)
{
    (void)state;
    kit_tokenizer *t =
        make("{\"added_tokens\":[{\"id\":2,\"content\":\"AB\"},{\"id\":3,\"content\":\"ab\"}],"
             "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":" BYTE_LEVEL
             ",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0,\"b\":1}}}");
    expect(t, "aabAB", NULL, "0@0-1 2@1-3 2@3-5");
    kit_tokenizer_free(t);
}

#define SINGLE(id, content, more)                                                                  \
    "{\"added_tokens\":[{\"id\":" id ",\"content\":\"" content "\",\"single_word\":true" more      \
    "}],"                                                                                          \
    "\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\",\"vocab\":" BPE_VOCABULARY       \
    ",\"merges\":[]}}"

/* An added token that is a single word stands beside no letter, digit, mark or underscore. */
static void test_single_words(void **state)
{
    (void)state;
    kit_tokenizer *t = make(SINGLE("4", "ab", ""));
    expect(t, "ab", NULL, "4@0-2");
    expect(t, "ab ab", NULL, "4@0-2 3@2-3 4@3-5");
    expect(t, "'ab'", NULL, "11@0-1 4@1-3 11@3-4");
    expect(t, "cab", NULL, "2@0-1 0@1-2 1@2-3");
    expect(t, "ab1", NULL, "0@0-1 1@1-2 10@2-3");
    expect(t, "ab\xC3\xA9", NULL, "0@0-1 1@1-2 8@2-3 9@3-4");
    kit_tokenizer_free(t);
    t = make(SINGLE("13", "aa", ",\"lstrip\":true")); /* what does not fit is passed over whole */
    expect(t, "aaa aa", NULL, "0@0-1 0@1-2 0@2-3 13@3-6");
    kit_tokenizer_free(t);
}

/* White space that a token with rstrip took is no token, though it is one elsewhere. */
static void test_added_token_of_taken_space(void **state)
{
    (void)state;
    kit_tokenizer *t =
        make("{\"added_tokens\":[{\"id\":2,\"content\":\"<\",\"rstrip\":true,\"normalized\":false},"
             "{\"id\":3,\"content\":\"  \",\"lstrip\":true,\"rstrip\":true,\"normalized\":false}],"
             "\"pre_tokenizer\":" BYTE_LEVEL
             ",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0,\"\xC4\xA0\":1}}}");
    expect(t, "<  a", NULL, "2@0-3 0@3-4");
    expect(t, "a    a", NULL, "0@0-1 3@1-5 0@5-6");
    expect(t, "a  a", NULL, "0@0-1 3@1-3 0@3-4");
    kit_tokenizer_free(t);
}

/* Added tokens beyond the model's rows are refused when a text has them, and not before. */
static void test_added_tokens_beyond_the_model(void **state)
{
    (void)state;
    kit_tokenizer *t = make(BPE);
    kit_tokens k;
    kit_error e = {0};
    assert_int_equal(kit_tokenizer_limit(t, 13, "m", &e), KIT_OK);
    expect(t, "abc", NULL, "5@0-3");
    assert_int_equal(kit_tokenizer_encode(&k, t, "abc<end>", NULL, &e), KIT_USAGE);
    assert_non_null(strstr(e.message, "added token '<end>', id 13"));
    assert_null(k.token);
    assert_int_equal(kit_tokenizer_limit(t, 12, "m", &e), KIT_BAD_FILE);
    assert_string_equal(e.message,
                        "m: the tokeniser has ids up to 12, but the model has only 12 tokens");
    kit_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_added_tokens_that_overlap),
        cmocka_unit_test(test_added_token_that_comes_twice),
        cmocka_unit_test(test_added_tokens_that_normalise_alike),
        cmocka_unit_test(test_single_words),
        cmocka_unit_test(test_added_token_of_taken_space),
        cmocka_unit_test(test_added_tokens_beyond_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
