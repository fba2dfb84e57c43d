/* Parts of tokenisers work alone: the vocabulary, pieces, the keys of tokenizer.json. */
#include "support/io_testing.h"

#include "support/tokenizer_samples.h"
#include "text/tokenizer_inner.h"

/* want: "id@begin-end ...". */
static void expect(const kit_tokenizer *t, const char *text, const char *want)
{
    kit_tokens k;
    char got[256] = "";
    assert_int_equal(kit_tokenizer_encode(&k, t, text, NULL, NULL), KIT_OK);
    for (size_t i = 0; i < k.count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d@%zu-%zu", i ? " " : "",
                 (int)k.token[i].id, k.token[i].begin, k.token[i].end);
    assert_string_equal(got, want);
    kit_tokens_free(&k);
}

/* A text that does not begin with a space is read as if it did; the space has no source. */
static void test_prefix_space(void **state)
{
    (void)state;
    static const char json[] =
        BPE_OF(BPE_VOCABULARY, BPE_MERGES, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}");
    kit_tokenizer *t;
    assert_int_equal(kit_tokenizer_parse(&t, "t.json", json, strlen(json), NULL), KIT_OK);
    expect(t, "abc", "6@0-3"); /* U+0120 abc */
    expect(t, " abc", "6@0-4");
    expect(t, "bc abc", "3@0-0 7@0-2 6@2-6");
    expect(t, "", "");
    kit_tokenizer_free(t);
}

/* As many tokens as the largest models have: each is found by its id, and no other is. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { TOKENS = 262144 };
    text_vocabulary v = {0};
    char token[16];
    for (int id = 0; id < TOKENS; id++) {
        const size_t length = (size_t)snprintf(token, sizeof token, "t%d", id);
        assert_int_equal(text_vocabulary_add(&v, token, length, id, TEXT_BY_BYTES, "v", NULL),
                         KIT_OK);
    }
    for (int id = 0; id < TOKENS; id++) {
        const size_t length = (size_t)snprintf(token, sizeof token, "t%d", id);
        assert_int_equal(text_vocabulary_find(&v, token, length), id);
        token[0] = 'u';
        assert_int_equal(text_vocabulary_find(&v, token, length), -1);
    }
    text_vocabulary_free(&v);
}

/* English endings after an apostrophe are pieces of their own; white space in front of text leaves
 * it the last space, but ends with the last line end where the pattern has lines. */
static void test_first_pieces(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t gpt2, others; /* characters of the first piece */
    } rows[] = {
        {"'s", 2, 2},       {"'sa", 2, 2},    {"'ta", 2, 2},    {"'ma", 2, 2},      {"'da", 2, 2},
        {"'rea", 3, 3},     {"'vea", 3, 3},   {"'lla", 3, 3},   {"'Sa", 1, 2},      {"'VEa", 1, 3},
        {"'ra", 1, 3},      {"'la", 1, 3},    {"'xa", 1, 3},    {"'", 1, 1},        {"'r", 1, 2},
        {"\u2019sa", 1, 3}, {"a's", 1, 1},    {"''s", 2, 2},    {"'\u017Fa", 1, 2}, {"\n a", 1, 1},
        {" \na", 1, 2},     {" \n  a", 3, 2}, {"\n\n a", 2, 2}, {"\n \n a", 3, 3},  {"   a", 2, 2},
        {" \n ", 3, 2},     {" a", 2, 2},     {" 1", 2, 1},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        for (text_pattern p = TEXT_GPT2; p <= TEXT_QWEN2; p++) {
            text_chars c = {0};
            assert_int_equal(text_chars_decode(&c, rows[i].text, NULL), KIT_OK);
            const size_t n = text_split(p, c.at, c.count);
            if (n != (p == TEXT_GPT2 ? rows[i].gpt2 : rows[i].others))
                fail_msg("%s, pattern %d: %zu", rows[i].text, (int)p, n);
            free(c.at);
        }
}

/* In each object of a tokenizer.json a key that is not known is refused by its name. */
static void test_unknown_keys(void **state)
{
    (void)state;
    static const char *const objects[] = {
        "tokenizer.json",
        "an added token",
        "a special token",
        "model BPE",
        "model WordPiece",
        "Sequence",
        "BertNormalizer",
        "Strip",
        "Prepend",
        "Replace",
        "a pattern",
        "ByteLevel",
        "Split",
        "TemplateProcessing",
        "BertProcessing",
        "RobertaProcessing",
        "a step without options",
    };
    json_t *object = json_pack("{s:b}", "foo", 1);
    for (size_t i = 0; i < COUNT(objects); i++) {
        kit_error e = {0};
        char want[80];
        snprintf(want, sizeof want, "'foo' is not a known key of %s", objects[i]);
        assert_int_equal(text_keys_check(object, objects[i], "t.json", &e), KIT_BAD_FILE);
        if (!strstr(e.message, want))
            fail_msg("the message is \"%s\", want \"...%s...\"", e.message, want);
    }
    json_decref(object);
}

static void test_unknown_keys_of_a_split(void **state)
{
    (void)state;
#define SPLIT_WITH(split, pattern)                                                                 \
    BPE_OF(                                                                                        \
        BPE_VOCABULARY, BPE_MERGES,                                                                \
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\"," \
        "\"pattern\":{" pattern "\"Regex\":\"a\"}" split "}," BYTE_LEVEL "]}")
    static const struct {
        const char *json, *says;
    } rows[] = {
        {SPLIT_WITH(",\"foo\":1", ""), "'foo' is not a known key of Split"},
        {SPLIT_WITH("", "\"foo\":1,"), "'foo' is not a known key of a pattern"},
        {SPLIT_WITH("", ""), "the split pattern"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kit_tokenizer *t;
        kit_error e = {0};
        assert_int_equal(kit_tokenizer_parse(&t, "t.json", rows[i].json, strlen(rows[i].json), &e),
                         KIT_BAD_FILE);
        if (!strstr(e.message, rows[i].says))
            fail_msg("the message is \"%s\", want \"...%s...\"", e.message, rows[i].says);
    }
}

/* A list of another type is refused, not read as an empty list; so are two processors that add
 * tokens, a pattern of two kinds and a part of a template that is both of its kinds. */
static void test_lists(void **state)
{
    (void)state;
#define FILE_WITH(keys)                                                                            \
    "{" keys ",\"pre_tokenizer\":" BYTE_LEVEL                                                      \
    ",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0,\"b\":1}}}"
#define PROCESSOR(processor) FILE_WITH("\"post_processor\":" processor)
#define TEMPLATE(keys) PROCESSOR("{\"type\":\"TemplateProcessing\"," keys "}")
#define BERT "{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}"
#define PATTERN "{\"type\":\"Replace\",\"content\":\"b\",\"pattern\":{\"String\":\"a\""
#define REPLACE(more) FILE_WITH("\"normalizer\":" PATTERN more "}}")
    static const struct {
        const char *json, *says;
    } rows[] = {
        {FILE_WITH("\"added_tokens\":{\"0\":{}}"), "'added_tokens' must be a list"},
        {TEMPLATE("\"single\":\"[CLS] $A\",\"pair\":[]"), "'single' must be a list"},
        {TEMPLATE("\"pair\":[]"), "'single' must be a list"},
        {TEMPLATE("\"single\":[]"), "'pair' must be a list"},
        {TEMPLATE("\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0},\"SpecialToken\":{\"id\":"
                  "\"a\",\"type_id\":0}}],\"pair\":[]"),
         "neither a SpecialToken nor one of its sequences"},
        {PROCESSOR("{\"type\":\"Sequence\"}"), "'processors' must be a list"},
        {PROCESSOR("{\"type\":\"Sequence\",\"processors\":[" BERT "," BERT "]}"),
         "one processor of a Sequence may add tokens"},
        {PROCESSOR("{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," BERT "]}"),
         NULL},
        {FILE_WITH("\"added_tokens\":null"), NULL},
        {REPLACE(",\"Regex\":\"a\""), "normalizer Replace"},
        {REPLACE(""), NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kit_tokenizer *t;
        kit_error e = {0};
        const int code = kit_tokenizer_parse(&t, "t.json", rows[i].json, strlen(rows[i].json), &e);
        assert_int_equal(code, rows[i].says ? KIT_BAD_FILE : KIT_OK);
        if (rows[i].says && !strstr(e.message, rows[i].says))
            fail_msg("the message is \"%s\", want \"...%s...\"", e.message, rows[i].says);
        kit_tokenizer_free(t);
    }
}

/* Files without a type are BPE if they have merges; every other type is refused by its name. */
static void test_types_of_models(void **state)
{
    (void)state;
#define MODEL_OF(type, merges)                                                                     \
    "{\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{" type "\"vocab\":{\"a\":0}" merges "}}"
    static const struct {
        const char *json, *says; /* NULL: good */
    } rows[] = {
        {MODEL_OF("\"type\":\"BPE\",", ",\"merges\":[]"), NULL},
        {MODEL_OF("", ",\"merges\":[]"), NULL},
        {MODEL_OF("\"type\":null,", ",\"merges\":[]"), NULL},
        {MODEL_OF("\"type\":\"Unigram\",", ",\"merges\":[]"), "'Unigram'"},
        {MODEL_OF("\"type\":\"Unigram\",", ""), "'Unigram'"},
        {MODEL_OF("", ""), "'(none)'"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        kit_tokenizer *t;
        kit_error e = {0};
        const int code = kit_tokenizer_parse(&t, "t.json", rows[i].json, strlen(rows[i].json), &e);
        if (code != (rows[i].says ? KIT_BAD_FILE : KIT_OK) ||
            (rows[i].says && !strstr(e.message, rows[i].says)))
            fail_msg("%zu: %s", i, e.message);
        kit_tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_space),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_first_pieces),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_unknown_keys_of_a_split),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_types_of_models),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
