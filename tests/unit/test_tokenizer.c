/* Tokenisers of a few tokens, whose answers are written out by hand. tests/peers compares larger
 * ones with Hugging Face's. */
#include "io_testing.h"

#include "text/tokenizer.h"
#include "tokenizer_samples.h"

static kit_tokenizer *make(const char *json)
{
    kit_tokenizer *t;
    kit_error e = {0};
    if (kit_tokenizer_parse(&t, "t.json", json, strlen(json), &e))
        fail_msg("%s", e.message);
    return t;
}

/* want: "id@begin-end ..." of what comes from a text, "id" of the template's own. */
static void expect(const kit_tokenizer *t, const char *text, const char *pair, const char *want)
{
    kit_tokens k;
    kit_error e = {0};
    char got[1024] = "";
    if (kit_tokenizer_encode(&k, t, text, pair, &e))
        fail_msg("%s: %s", text, e.message);
    for (size_t i = 0; i < k.count; i++) {
        const size_t used = strlen(got);
        const kit_token *one = &k.token[i];
        const char *gap = i ? " " : "";
        if (one->which < 0)
            snprintf(got + used, sizeof got - used, "%s%d", gap, (int)one->id);
        else
            snprintf(got + used, sizeof got - used, "%s%d@%zu-%zu", gap, (int)one->id, one->begin,
                     one->end);
    }
    assert_string_equal(got, want);
    kit_tokens_free(&k);
}

static void test_wordpiece(void **state)
{
    (void)state;
    kit_tokenizer *t = make(WORDPIECE);
    expect(t, "", NULL, "1 2");
    expect(t, "unaffable", NULL, "1 3@0-2 4@2-5 5@5-9 2");
    expect(t, "UNAFFABLE,a", NULL, "1 3@0-2 4@2-5 5@5-9 8@9-10 6@10-11 2");
    expect(t, "unaffabl", NULL, "1 0@0-8 2"); /* all or nothing */
    expect(t,
           "a\xE4\xB8\xAD"
           "a",
           NULL, "1 6@0-1 9@1-4 6@4-5 2"); /* an ideograph is a word */
    expect(t, "caf\xC3\xA9 caf\x65\xCC\x81", NULL, "1 11@0-3 12@3-5 11@6-9 12@9-10 2");
    expect(t,
           "a\x01\xE2\x80\x8B"
           "b",
           NULL, "1 6@0-1 7@5-6 2"); /* control and format characters go */
    expect(t, "a [SEP]a", NULL, "1 6@0-1 2@2-7 6@7-8 2");
    expect(t, "a", "ab", "6@0-1 2 6@0-1 7@1-2");
    kit_tokenizer_free(t);
}

static void test_bpe(void **state)
{
    (void)state;
    kit_tokenizer *t = make(BPE);
    expect(t, "", NULL, "");
    expect(t, "abc", NULL, "5@0-3"); /* a b first, though b c could be merged too */
    expect(t, "abc abc", NULL, "5@0-3 6@3-7");
    expect(t, "bc  bc", NULL, "7@0-2 3@2-3 3@3-4 7@4-6");
    expect(t, "aab", NULL, "0@0-1 4@1-3");
    expect(t, "\xC3\xA9", NULL, "8@0-1 9@1-2"); /* one character, two tokens */
    expect(t, "ab's", NULL, "4@0-2 11@2-3 12@3-4");
    expect(t, "ab  <end>c", NULL, "4@0-2 20@2-9 2@9-10"); /* takes the space before it */
    kit_tokenizer_free(t);
}

static void test_split_patterns(void **state)
{
    (void)state;
    static const char llama3[] =
        BPE_OF(BPE_VOCABULARY, BPE_MERGES,
               SPLIT_OF(
                   "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
                   "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                   "\\\\s+(?!\\\\S)|\\\\s+"));
    kit_tokenizer *t = make(llama3);
    expect(t, "'abc", NULL, "11@0-1 5@1-4");
    expect(t, "abc 1111", NULL, "5@0-3 3@3-4 10@4-5 10@5-6 10@6-7 10@7-8");
    kit_tokenizer_free(t);
}

static void test_labels(void **state)
{
    (void)state;
    static const char *const want[] = {"\xC3\xA9 1/2", "\xC3\xA9 2/2", "\u2423abc"}; /* a space */
    static const char text[] = "\xC3\xA9 abc";
    kit_tokenizer *t = make(BPE);
    kit_tokens k;
    char label[KIT_TOKEN_LABEL];
    assert_int_equal(kit_tokenizer_encode(&k, t, text, NULL, NULL), KIT_OK);
    assert_int_equal(k.count, COUNT(want));
    for (size_t i = 0; i < COUNT(want); i++) {
        kit_token_label(label, t, &k, i, text, NULL);
        assert_string_equal(label, want[i]);
    }
    kit_tokens_free(&k);
    kit_tokenizer_free(t);
    t = make(WORDPIECE);
    assert_int_equal(kit_tokenizer_encode(&k, t, "Unaffable", NULL, NULL), KIT_OK);
    kit_token_label(label, t, &k, 0, "Unaffable", NULL);
    assert_string_equal(label, "[CLS]");
    kit_token_label(label, t, &k, 1, "Unaffable", NULL);
    assert_string_equal(label, "Un"); /* as it was typed */
    kit_token_label(label, t, &k, 2, "Unaffable", NULL);
    assert_string_equal(label, "##aff");
    kit_tokens_free(&k);
    kit_tokenizer_free(t);
}

static void test_words(void **state)
{
    (void)state;
    static const char *const word[] = {"a", "|", "bc"};
    kit_tokenizer *t;
    kit_tokens k;
    kit_error e = {0};
    assert_int_equal(kit_tokenizer_of_words(&t, word, 3, false, &e), KIT_OK);
    expect(t, " bc a\n|", NULL, "2@1-3 0@4-5 1@6-7");
    assert_int_equal(kit_tokenizer_encode(&k, t, "a d", NULL, &e), KIT_USAGE);
    assert_non_null(strstr(e.message, "no token for 'd'"));
    kit_tokenizer_free(t);
    assert_int_equal(kit_tokenizer_of_words(&t, word, 2, true, &e), KIT_OK);
    expect(t, "a|a", NULL, "0@0-1 1@1-2 0@2-3");
    kit_tokenizer_free(t);
}

static void test_texts_that_cannot_be(void **state)
{
    (void)state;
    kit_tokenizer *t = make(BPE);
    kit_tokens k;
    kit_error e = {0};
    assert_int_equal(kit_tokenizer_encode(&k, t, "a\xFF", NULL, &e), KIT_USAGE);
    assert_non_null(strstr(e.message, "byte 0xff at position 2"));
    assert_int_equal(kit_tokenizer_encode(&k, t, "az", NULL, &e), KIT_USAGE);
    assert_non_null(strstr(e.message, "no token for the byte 0x7a"));
    assert_null(k.token);
    kit_tokenizer_free(t);
}

/* --------------------------------------------------------------------------------- Hostile */

static const struct hostile {
    const char *json, *says;
} hostile[] = {
    {"", "line"},
    {"[]", "not a JSON object"},
    {"{\"model\":", "line 1"},
    {"{\"model\":{},\"model\":{}}", "duplicate"},
    {"{\"model\":{\"type\":\"Unigram\"}}", "model 'Unigram' is not supported"},
    {"{\"model\":{\"type\":7}}", "model '(none)'"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":[]}}", "must map tokens"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":1.5}}}", "no integer"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":-1}}}", "must be 0 to"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":16777216}}}", "must be 0 to"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":9223372036854775808}}}", "too big"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0,\"b\":0}}}", "two tokens have the id"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0,\"a\":1}}}", "duplicate"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"\xFF\":0}}}", "unable to decode"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"max_input_chars_per_word\":1e9}}",
     "max_input_chars_per_word"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":99,\"content\":\"[CLS]\",\"normalized\":false}"),
     "has the ids 1 and 99"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":99,\"content\":\"\"}"), "empty"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":99,\"content\":\"x\",\"single_word\":true}"),
     "single_word"},
    {WORDPIECE_OF("{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}", ""), "vocabulary has not"},
    {BPE_OF(BPE_VOCABULARY, "[\"a b\",\"a b\"]", BYTE_LEVEL), "merge 2 is merge 1 again"},
    {BPE_OF(BPE_VOCABULARY, "[[\"a\",\"\"]]", BYTE_LEVEL), "merge 1"}, /* a cycle: a makes a */
    {BPE_OF(BPE_VOCABULARY, "[[\"\",\"\"]]", BYTE_LEVEL), "merge 1"},
    {BPE_OF(BPE_VOCABULARY, "[\"a c\"]", BYTE_LEVEL), "not both and their sum"},
    {BPE_OF(BPE_VOCABULARY, "[\"a\"]", BYTE_LEVEL), "two tokens"},
    {BPE_OF(BPE_VOCABULARY, "[\"a b c\"]", BYTE_LEVEL), "two tokens"},
    {BPE_OF(BPE_VOCABULARY, "[7]", BYTE_LEVEL), "two tokens"},
    {BPE_OF(BPE_VOCABULARY, "{}", BYTE_LEVEL), "must be a list"},
    {BPE_OF(BPE_VOCABULARY, "[]", "{\"type\":\"Metaspace\"}"), "'Metaspace' is not supported"},
    {BPE_OF(BPE_VOCABULARY, "[]", SPLIT_OF("[a-z]+")), "'[a-z]+' is not supported"},
};

static void test_hostile_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(hostile); i++) {
        kit_tokenizer *t;
        kit_error e = {0};
        assert_int_equal(kit_tokenizer_parse(&t, "t.json", hostile[i].json, strlen(hostile[i].json),
                                             &e),
                         KIT_BAD_FILE);
        assert_null(t);
        if (strncmp(e.message, "t.json: ", 8) != 0 || !strstr(e.message, hostile[i].says))
            fail_msg("%zu: %s", i, e.message);
    }
}

/* A piece of a million bytes, all of which merge: no step looks at the whole piece again. */
static void test_long_piece(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    static const char json[] =
        BPE_OF("{\"a\":0,\"aa\":1,\"aaaa\":2}", "[\"a a\",\"aa aa\"]", BYTE_LEVEL);
    kit_tokenizer *t = make(json);
    kit_tokens k;
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'a', LONG);
    text[LONG] = 0;
    assert_int_equal(kit_tokenizer_encode(&k, t, text, NULL, NULL), KIT_OK);
    assert_int_equal(k.count, LONG / 4);
    for (size_t i = 0; i < k.count; i++)
        assert_true(k.token[i].id == 2 && k.token[i].begin == 4 * i);
    kit_tokens_free(&k);
    kit_tokenizer_free(t);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wordpiece),
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_split_patterns),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_texts_that_cannot_be),
        cmocka_unit_test(test_hostile_tokenizers),
        cmocka_unit_test(test_long_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
