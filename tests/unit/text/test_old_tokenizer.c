/* Tokenisers of older files give the ids of transformers 5.23.
 *
 * The expected ids, of a few tokens, are written out by hand. tests/peers compares larger
 * tokenisers with transformers. */
#include "support/io_testing.h"

#include "text/tokenizer_inner.h"
#include "support/tokenizer_samples.h"

static void write_or_not(const char *path, const char *text)
{
    bytes b = {0};
    unlink(path);
    if (!text)
        return;
    put_text(&b, text);
    write_file(path, b);
    bytes_free(&b);
}

/* In a folder of its own; NULL: not there. */
typedef struct files {
    const char *pieces, *vocabulary, *merges, *config, *model, *map, *added;
} files;

static int open_files(kit_tokenizer **t, const files *f, kit_error *e)
{
    write_or_not("vocab.txt", f->pieces);
    write_or_not("vocab.json", f->vocabulary);
    write_or_not("merges.txt", f->merges);
    write_or_not("tokenizer_config.json", f->config);
    write_or_not("config.json", f->model);
    write_or_not("special_tokens_map.json", f->map);
    write_or_not("added_tokens.json", f->added);
    return kit_tokenizer_open(t, ".", e);
}

static void expect_ids(const files *f, const char *text, const char *pair, const char *want)
{
    kit_tokenizer *t;
    kit_tokens k;
    kit_error e = {0};
    char got[512] = "";
    if (open_files(&t, f, &e) || kit_tokenizer_encode(&k, t, text, pair, &e))
        fail_msg("%s: %s", text, e.message);
    for (size_t i = 0; i < k.count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "",
                 (int)k.token[i].id);
    assert_string_equal(got, want);
    kit_tokens_free(&k);
    kit_tokenizer_free(t);
}

static void expect_error(const files *f, const char *says)
{
    kit_tokenizer *t;
    kit_error e = {0};
    assert_int_equal(open_files(&t, f, &e), KIT_BAD_FILE);
    assert_null(t);
    if (!strstr(e.message, says) || strchr(e.message, '\n'))
        fail_msg("the message is \"%s\", want \"...%s...\"", e.message, says);
}

#define JSONS                                                                                      \
    .vocabulary = "{\"<|endoftext|>\":0,\"<s>\":1,\"</s>\":2,\"a\":3,\"b\":4,\"ab\":5,\"1\":6,"    \
                  "\"11\":7,\"<\":8,\"|\":9,\">\":10,\"x\":11,\"\xC4\xA0\":12,\"A\":13,\"s\":14}", \
    .merges = "#version: 0.2\na b\n1 1\n"
#define LINES .pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##b\n<\n>\nx\nab\n.\n"
#define TYPE(type) .model = "{\"model_type\":\"" type "\"}"
#define CLASS(name) "\"tokenizer_class\":\"" name "\""

static void test_class_decides_how_a_text_is_cut(void **state)
{
    (void)state;
    expect_ids(&(files){JSONS, TYPE("gpt2")}, "11ab", NULL, "7 5");
    expect_ids(&(files){JSONS, TYPE("qwen2")}, "11ab", NULL, "6 6 5"); /* digit by digit */
    expect_ids(&(files){JSONS, TYPE("roberta")}, "11ab", NULL, "1 7 5 2");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = "{" CLASS("Qwen2TokenizerFast") "}"}, "11ab",
               NULL, "6 6 5");
    expect_ids(&(files){JSONS, TYPE("qwen2"), .config = "{" CLASS("GPT2Tokenizer") "}"}, "11ab",
               NULL, "6 6 5"); /* a qwen2 has no other */
    expect_ids(&(files){JSONS, .model = "{\"model_type\":\"llama\"," CLASS("GPT2Tokenizer") "}"},
               "11ab", NULL, "7 5");
    expect_ids(&(files){JSONS, .config = "{" CLASS("RobertaTokenizer") "}"}, "11ab", NULL,
               "1 7 5 2");
}

static void test_classes_that_are_refused(void **state)
{
    (void)state;
    static const char japanese[] = "{" CLASS("BertJapaneseTokenizer") "}";
    expect_error(&(files){LINES, TYPE("bert"), .config = japanese},
                 "tokenizer_class 'BertJapaneseTokenizer' without tokenizer.json");
    expect_error(&(files){JSONS, TYPE("mistral")}, "a mistral needs it");
    expect_error(&(files){JSONS, TYPE("llama")}, "neither tokenizer_class nor model_type");
    expect_error(&(files){JSONS}, "neither tokenizer_class nor model_type");
    expect_error(&(files){JSONS, TYPE("bert")},
                 "BertTokenizer without tokenizer.json needs vocab.txt");
}

/* RoBERTa's special tokens are its own, though the vocabulary has another one's. */
static void test_special_tokens_are_those_of_the_class(void **state)
{
    (void)state;
    static const char text[] = "a<|endoftext|>", pieces[] = "a<s>";
    expect_ids(&(files){JSONS, TYPE("gpt2")}, text, NULL, "3 0");
    expect_ids(&(files){JSONS, TYPE("gpt2")}, pieces, NULL, "3 8 14 10");
    expect_ids(&(files){JSONS, TYPE("roberta")}, pieces, NULL, "1 3 1 2");
    expect_ids(&(files){JSONS, TYPE("roberta"), .config = "{\"unk_token\":\"<|endoftext|>\"}"},
               text, NULL, "1 3 0 2");
    kit_tokenizer *t;
    kit_tokens k;
    kit_error e = {0};
    assert_int_equal(open_files(&t, &(files){JSONS, TYPE("roberta")}, &e), KIT_OK);
    assert_int_equal(kit_tokenizer_encode(&k, t, text, NULL, &e), KIT_USAGE); /* e has no token */
    kit_tokenizer_free(t);
}

static void test_added_tokens_file(void **state)
{
    (void)state;
    expect_ids(&(files){JSONS, TYPE("gpt2"), .added = "{\"<x>\":15,\"<xx>\":16}"}, "a<x>b<xx>",
               NULL, "3 15 4 16");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .added = "{\"<y>\":16,\"<x>\":15}"}, "a<y><x>", NULL,
               "3 16 15"); /* in any order */
    expect_ids(&(files){LINES, TYPE("bert"), .added = "{\"<X>\":13}"}, "a<x>", NULL,
               "2 5 13 3"); /* in lower case, as the text is */
    expect_ids(&(files){LINES, TYPE("bert"), .added = "{\"<X>\":13}",
                        .config = "{\"pad_token\":\"<X>\"}"},
               "a<x><X>", NULL, "2 5 8 10 9 13 3");
    expect_error(&(files){JSONS, TYPE("gpt2"), .added = "{\"<x>\":17}"},
                 "added token '<x>' has the id 17; in the vocabulary it is 15");
    expect_error(&(files){JSONS, TYPE("gpt2"), .added = "{\"<x>\":\"15\"}"}, "must be an integer");
}

static void test_added_tokens_decoder(void **state)
{
    (void)state;
#define DECODER(manner) "{\"added_tokens_decoder\":{\"15\":{\"content\":\"<x>\"" manner "}}}"
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = DECODER("")}, "a <x> b", NULL,
               "3 12 15 12 4");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = DECODER(",\"lstrip\":true,\"rstrip\":true")},
               "a <x> b", NULL, "3 15 4");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = DECODER(",\"single_word\":true")},
               "a<x> <x>", NULL, "3 8 11 10 12 15");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = DECODER(""), .added = "{\"b\":4}"}, "ab<x>",
               NULL, "5 15"); /* the other file is not looked at */
    expect_error(&(files){JSONS, TYPE("gpt2"), .config = DECODER(",\"foo\":1")},
                 "'foo' is not a known key of a special token");
}

static void test_additional_special_tokens(void **state)
{
    (void)state;
#define LIST(key)                                                                                  \
    "{\"" key "\":[\"<x>\",{\"__type\":\"AddedToken\",\"content\":\"ab\",\"lstrip\":true}]}"
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = LIST("additional_special_tokens")},
               "ab <x> ab", NULL, "5 12 15 5");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = LIST("extra_special_tokens")}, "ab <x> ab",
               NULL, "5 12 15 5");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .map = LIST("additional_special_tokens")}, "ab <x> ab",
               NULL, "5 12 15 5");
    expect_error(&(files){JSONS, TYPE("gpt2"),
                          .config = "{\"extra_special_tokens\":{\"a\":\"b\"}}"},
                 "extra_special_tokens must be a list");
    expect_error(&(files){JSONS, TYPE("gpt2"), .map = "{\"foo_token\":\"<x>\"}"}, "'foo_token'");
}

static void test_first_and_last_tokens(void **state)
{
    (void)state;
    static const char both[] =
        "{\"add_bos_token\":true,\"add_eos_token\":true,\"bos_token\":\"<s>\"}";
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = "{\"add_bos_token\":true}"}, "a", "b",
               "0 3 0 4");
    expect_ids(&(files){JSONS, TYPE("gpt2"), .config = both}, "a", "b", "1 3 0 1 4 0");
    expect_ids(&(files){JSONS, TYPE("qwen2"), .config = "{\"add_bos_token\":true}"}, "a", NULL,
               "3");
    expect_ids(&(files){JSONS, TYPE("roberta"), .config = "{\"add_eos_token\":true}"}, "a", NULL,
               "1 3 2");
    expect_error(&(files){JSONS, TYPE("gpt2"),
                          .config = "{\"add_bos_token\":true,\"bos_token\":\"<a:b>\"}"},
                 "bos_token of GPT2Tokenizer is '<a:b>'");
}

/* BERT under other names; who is not in the vocabulary is added behind it, in one fixed order. */
static void test_names_of_special_tokens(void **state)
{
    (void)state;
    expect_ids(&(files){LINES, TYPE("bert"),
                        .config = "{\"cls_token\":\"<c>\",\"sep_token\":\"<s>\"}"},
               "a <c>", "b", "14 5 14 13 6 13");
    expect_ids(&(files){LINES, TYPE("bert"),
                        .map = "{\"unk_token\":\"x\",\"cls_token\":{\"content\":\"[PAD]\"}}"},
               "zz a", NULL, "0 10 5 3");
    expect_ids(&(files){.pieces = "[UNK]\n[CLS]\n[SEP] \n\na\xE3\x80\x80\n", TYPE("bert")},
               "a [MASK]", NULL, "1 4 6 2"); /* five lines are five tokens; then [PAD] and [MASK] */
    expect_error(&(files){LINES, TYPE("bert"), .config = "{\"unk_token\":\"<u>\"}"},
                 "does not have the unk_token '<u>'");
    expect_error(&(files){LINES, TYPE("bert"), .config = "{\"cls_token\":null}"}, "cls_token");
    expect_error(&(files){LINES, TYPE("bert"), .config = "{\"pad_token\":7}"}, "pad_token");
}

static void test_unknown_keys(void **state)
{
    (void)state;
    static const struct {
        const char *config, *says;
    } rows[] = {
        {"{\"foo\":1}", "'foo' is not a known key of BertTokenizer"},
        {"{\"image_token\":\"a\"}", "'image_token' is not a known key of BertTokenizer"},
        {"{\"split_special_tokens\":true}", "split_special_tokens of BertTokenizer"},
        {"{\"never_split\":[\"a\"]}", "never_split of BertTokenizer"},
        {"{\"do_basic_tokenize\":false}", "do_basic_tokenize of BertTokenizer must be true"},
        {"{\"auto_map\":{\"AutoTokenizer\":[\"a.B\",null]}}", "auto_map of BertTokenizer"},
        {"{\"add_bos_token\":\"a\"}", "add_bos_token must be true or false"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        expect_error(&(files){LINES, TYPE("bert"), .config = rows[i].config}, rows[i].says);
    expect_ids(&(files){LINES, TYPE("bert"),
                        .config = "{\"model_max_length\":1000000000000000019884624838656,"
                                  "\"split_special_tokens\":false,"
                                  "\"never_split\":null,\"do_basic_tokenize\":true,"
                                  "\"add_bos_token\":true,\"padding_side\":\"left\"}"},
               "ab", NULL, "2 11 3");
}

/* says: of the error; NULL: the folder is read. */
static void open_beside(const char *json, const files *f, const char *says)
{
    kit_tokenizer *t;
    kit_error e = {0};
    write_or_not("tokenizer.json", json);
    const int code = open_files(&t, f, &e);
    write_or_not("tokenizer.json", NULL);
    if (code != (says ? KIT_BAD_FILE : KIT_OK) || (says && !strstr(e.message, says)))
        fail_msg("the message is \"%s\", want \"...%s...\"", e.message, says ? says : "");
    assert_true(code ? !t : t != NULL);
    kit_tokenizer_free(t);
}

/* tokenizer.json says what is done; tokenizer_config.json must not say something else. */
static void test_options_beside_tokenizer_json(void **state)
{
    (void)state;
    static const struct {
        const char *json, *config, *says;
    } rows[] = {
        {WORDPIECE, "{\"do_lower_case\":true,\"strip_accents\":null}", NULL},
        {WORDPIECE, "{\"do_lower_case\":false}",
         "do_lower_case is false, but tokenizer.json has true"},
        {WORDPIECE, "{\"strip_accents\":false}", "strip_accents is false"},
        {WORDPIECE, "{\"tokenize_chinese_chars\":false}", "tokenize_chinese_chars is false"},
        {BPE, "{\"add_prefix_space\":false,\"do_lower_case\":true}", NULL},
        {BPE, "{\"add_prefix_space\":true}",
         "add_prefix_space is true, but tokenizer.json has false"},
        {BPE, "[]", "tokenizer_config.json: is not a JSON object"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        open_beside(rows[i].json, &(files){.config = rows[i].config}, rows[i].says);
}

/* transformers builds a tokeniser of a class that it knows as the class has it: tokenizer.json must
 * fit the class. Without a known class, tokenizer.json is followed. */
static void test_class_beside_tokenizer_json(void **state)
{
    (void)state;
    static const struct {
        const char *json, *class, *says;
    } rows[] = {
        {WORDPIECE, "{" CLASS("BertTokenizer") "}", NULL},
        {WORDPIECE, "{" CLASS("DistilBertTokenizerFast") "}", NULL},
        {WORDPIECE, "{" CLASS("GPT2Tokenizer") "}",
         "tokenizer_class 'GPT2Tokenizer' does not fit tokenizer.json"},
        {WORDPIECE, "{" CLASS("RobertaTokenizerFast") "}", "another way than RobertaTokenizer"},
        {WORDPIECE, "{" CLASS("PreTrainedTokenizerFast") "}", NULL},
        {BPE, "{" CLASS("GPT2TokenizerFast") "}", NULL},
        {BPE, "{" CLASS("BertTokenizer") "}", "tokenizer_class 'BertTokenizer' does not fit"},
        {BPE, "{" CLASS("Qwen2Tokenizer") "}", "tokenizer_class 'Qwen2Tokenizer' does not fit"},
        {BPE, "{" CLASS("FooTokenizer") "}", NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        open_beside(rows[i].json, &(files){.config = rows[i].class}, rows[i].says);
        open_beside(rows[i].json, &(files){.model = rows[i].class}, rows[i].says);
    }
    open_beside(BPE, &(files){.config = "{" CLASS("GPT2Tokenizer") "}", TYPE("qwen2")},
                "another way than Qwen2Tokenizer"); /* a qwen2 is one, whatever is named */
}

/* transformers adds every token that these files name, in the vocabulary or not: tokenizer.json
 * must have them, for its added_tokens are what a text is searched for. */
static void test_tokens_named_beside_tokenizer_json(void **state)
{
    (void)state;
#define ENTRY(content) "{\"content\":\"" content "\",\"normalized\":false,\"lstrip\":true}"
#define LACKS(token) "tokenizer.json: added_tokens must have '" token "', a token that"
    static const struct {
        files f;
        const char *says;
    } rows[] = {
        {{.config = "{\"pad_token\":\"<end>\",\"unk_token\":null}"}, NULL},
        {{.config = "{\"extra_special_tokens\":[\"<end>\"],\"image_token\":\"<end>\"}"}, NULL},
        {{.config = "{\"added_tokens_decoder\":{\"13\":" ENTRY("<end>") "}}"}, NULL},
        {{.map = "{\"pad_token\":" ENTRY("<end>") "}", .added = "{\"<end>\":13}"}, NULL},
        {{.config = "{\"pad_token\":\"<pad>\"}"}, LACKS("<pad>")},
        {{.config = "{\"bos_token\":\"ab\"}"}, LACKS("ab")},
        {{.config = "{\"mask_token\":{\"__type\":\"AddedToken\",\"content\":\"<m>\"}}"},
         LACKS("<m>")},
        {{.config = "{\"image_token\":\"<image>\"}"}, LACKS("<image>")},
        {{.config = "{\"additional_special_tokens\":[\"<end>\",\"<x>\"]}"}, LACKS("<x>")},
        {{.config = "{\"extra_special_tokens\":[\"<end>\",\"<x>\"]}"}, LACKS("<x>")},
        {{.config = "{\"added_tokens_decoder\":{\"14\":" ENTRY("<x>") "}}"}, LACKS("<x>")},
        {{.config = "{\"added_tokens_decoder\":{\"14\":" ENTRY("<end>") "}}"},
         "'<end>' has the id 13, but tokenizer_config.json or added_tokens.json gives it 14"},
        {{.map = "{\"pad_token\":\"<pad>\"}"}, LACKS("<pad>")},
        {{.added = "{\"<x>\":14}"}, LACKS("<x>")},
        {{.added = "{\"<end>\":14}"}, "gives it 14"},
        {{.config = "{\"added_tokens_decoder\":{}}"},
         "added_tokens has the id 13, but added_tokens_decoder of tokenizer_config.json does not"},
        {{.config = "{\"split_special_tokens\":true}"}, "split_special_tokens is true"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        open_beside(BPE, &rows[i].f, rows[i].says);
    write_or_not("tokenizer.json", BPE); /* there: lstrip */
    expect_ids(&(files){TYPE("gpt2")}, "a <end> b", NULL, "0 13 3 1");
    expect_ids(&(files){.config = "{\"added_tokens_decoder\":{\"13\":{\"content\":\"<end>\","
                                  "\"rstrip\":true,\"special\":true}}}"},
               "a <end> b", NULL, "0 3 13 1");
    write_or_not("tokenizer.json", NULL);
    open_beside(BPE_OF(BPE_VOCABULARY, BPE_MERGES, SPLIT_OF_QWEN2),
                &(files){.config = "{\"added_tokens_decoder\":{\"13\":{\"content\":\"<end>\"}}}"},
                "'<end>' has other options in added_tokens_decoder");
}

/* --------------------------------------------------------------------------------- Hostile */

static const struct old_files {
    const char *lines, *vocabulary, *merges, *config, *says;
} old_files[] = {
    {"", NULL, NULL, NULL, "vocab.txt does not have the unk_token '[UNK]'"},
    {"[CLS]\n[SEP]\na\n", NULL, NULL, NULL, "vocab.txt does not have the unk_token '[UNK]'"},
    {"[CLS]\n[SEP]\n[UNK]\na\na\n", NULL, NULL, NULL, "token 'a' appears twice"},
    {"[CLS]\n[SEP]\n[UNK]\n\xC3\n", NULL, NULL, NULL, "vocab.txt: line 4 is not UTF-8"},
    {"[CLS]\n[SEP]\n[UNK]\n", NULL, NULL, "{\"do_lower_case\":7}", "must be true or false"},
    {"[CLS]\n[SEP]\n[UNK]\n", NULL, NULL, "[]", "tokenizer_config.json: is not a JSON object"},
    {NULL, "{}", NULL, NULL, "needs vocab.json and merges.txt"},
    {NULL, NULL, "a b\n", NULL, "has no tokeniser"},
    {NULL, "[]", "", NULL, "vocab.json: is not a JSON object"},
    {NULL, "{\"a\":0,\"a\":1}", "", NULL, "duplicate"},
    {NULL, "{\"a\":0,\"b\":0}", "", NULL, "two tokens have the id 0"},
    {NULL, "{\"a\":-1}", "", NULL, "it must be 0 to"},
    {NULL, "{\"a\":2147483648}", "", NULL, "it must be 0 to"},
    {NULL, "{\"a\":1e3}", "", NULL, "must be an integer"},
    {NULL, "{\"\\ud800\":1}", "", NULL, "invalid Unicode"},
    {NULL, BPE_VOCABULARY, "#version: 0.2\na\n", NULL, "merges.txt: line 2 must be two tokens"},
    {NULL, BPE_VOCABULARY, "a b c\n", NULL, "merges.txt: line 1 must be two tokens"},
    {NULL, BPE_VOCABULARY, "a b\n a\n", NULL, "merges.txt: line 2 must be two tokens"},
    {NULL, BPE_VOCABULARY, "a c\nb c\n", NULL, "merge 1, 'a' 'c': the vocabulary must have"},
    {NULL, BPE_VOCABULARY, "a nothing\n", NULL, "must have both tokens and their concatenation"},
    {NULL, BPE_VOCABULARY, "a b\na b\n", NULL, "merge 2 repeats merge 1"},
    {NULL, BPE_VOCABULARY, "a b\n\xFF b\n", NULL, "merges.txt: line 2 is not UTF-8"},
    {NULL, BPE_VOCABULARY, "", "{\"add_prefix_space\":\"yes\"}", "must be true or false"},
    {NULL, BPE_VOCABULARY, "", "{\"unk_token\":{\"__type\":\"AddedToken\"}}",
     "a special token must have a content"},
    {NULL, BPE_VOCABULARY, "", "{\"unk_token\":{\"__type\":\"AddedToken\",\"content\":\"\"}}",
     "unk_token is an empty string; write null for no token"},
};

static void test_hostile_old_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(old_files); i++) {
        const struct old_files *o = &old_files[i];
        const files f = {.pieces = o->lines,
                         .vocabulary = o->vocabulary,
                         .merges = o->merges,
                         .config = o->config,
                         .model =
                             o->lines ? "{\"model_type\":\"bert\"}" : "{\"model_type\":\"gpt2\"}"};
        expect_error(&f, o->says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_class_decides_how_a_text_is_cut),
        cmocka_unit_test(test_classes_that_are_refused),
        cmocka_unit_test(test_special_tokens_are_those_of_the_class),
        cmocka_unit_test(test_added_tokens_file),
        cmocka_unit_test(test_added_tokens_decoder),
        cmocka_unit_test(test_additional_special_tokens),
        cmocka_unit_test(test_first_and_last_tokens),
        cmocka_unit_test(test_names_of_special_tokens),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_options_beside_tokenizer_json),
        cmocka_unit_test(test_class_beside_tokenizer_json),
        cmocka_unit_test(test_tokens_named_beside_tokenizer_json),
        cmocka_unit_test(test_hostile_old_files),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
