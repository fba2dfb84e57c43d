/* Small tokenisers of every kind give ids that are written out by hand.
 *
 * tests/peers compares larger ones with Hugging Face's.
 *
 * labels: slow */
#include "support/tokenizer_testing.h"

#include <sys/resource.h>

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
    expect(t, "ab  <end>c", NULL, "4@0-2 13@2-9 2@9-10"); /* takes the space before it */
    kit_tokenizer_free(t);
}

static void test_split_patterns(void **state)
{
    (void)state;
    kit_tokenizer *t = make(BPE_OF(BPE_VOCABULARY, BPE_MERGES, SPLIT_OF_LLAMA3));
    expect(t, "'abc", NULL, "11@0-1 5@1-4");
    expect(t, "abc 1111", NULL, "5@0-3 3@3-4 10@4-5 10@5-6 10@6-7 10@7-8");
    kit_tokenizer_free(t);
}

/* ------------------------------------------------------------------------------ Normalizers */

/* Code points, closed by 0. */
enum { LONGEST_FORM = 20 };
static const struct form {
    bool compose, compatible;
    int32_t in[LONGEST_FORM], out[LONGEST_FORM];
} forms[] = {
    {true, false, {'e', 0x301}, {0xE9}},
    {true, false, {'a', 0x301, 0x323}, {0x1EA1, 0x301}}, /* the dot below comes first, and joins */
    {true, false, {'a', 0x328, 0x328, 0x301}, {0x105, 0x328, 0x301}},
    {true, false, {0x301, 'a'}, {0x301, 'a'}},
    {true, false, {0x212B, 0x2126, 0x212A}, {0xC5, 0x3A9, 'K'}}, /* signs that are letters */
    {true, false, {0x958}, {0x915, 0x93C}},                      /* is never composed again */
    {true, false, {0x9C7, 0x9BE}, {0x9CB}},                      /* of class 0, both */
    {true, false, {0x9C7, 0x301, 0x9BE}, {0x9C7, 0x301, 0x9BE}},
    {true, false, {0x344}, {0x308, 0x301}},
    {true, false, {0xF900}, {0x8C48}},
    {true, false, {0xFB01, 0x2460}, {0xFB01, 0x2460}},
    {true, false, {0x1100, 0x1161, 0x11A8}, {0xAC01}},
    {true, false, {0xAC00, 0x11A8}, {0xAC01}},
    {true, false, {0xAC00, 0x11A7}, {0xAC00, 0x11A7}}, /* is no final consonant */
    {true, false, {0xAC01, 0x11A8}, {0xAC01, 0x11A8}},
    {true, false, {0x1F600, 0xFE0F, 0x200D, '\n', 1}, {0x1F600, 0xFE0F, 0x200D, '\n', 1}},
    {false, false, {0xE9}, {'e', 0x301}},
    {false, false, {0x1E69}, {'s', 0x323, 0x307}},
    {false, false, {0xAC01}, {0x1100, 0x1161, 0x11A8}},
    {true, true, {0xFB01, 0x2460, 0xFF21}, {'f', 'i', '1', 'A'}},
    {false, true, {0xC5, 0x3000}, {'A', 0x30A, ' '}},
    {true,
     true,
     {0xFDFA},
     {0x635, 0x644, 0x649, ' ', 0x627, 0x644, 0x644, 0x647, ' ', 0x639, 0x644, 0x64A, 0x647, ' ',
      0x648, 0x633, 0x644, 0x645}},
};

static void test_forms_of_unicode(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(forms); i++) {
        const struct form *f = &forms[i];
        text_normalizer n = {.count = 1};
        n.step[0] =
            (text_step){.kind = TEXT_FORM, .compose = f->compose, .compatible = f->compatible};
        text_char in[LONGEST_FORM];
        text_chars out = {0};
        uint32_t count = 0;
        size_t wanted = 0;
        for (; f->in[count]; count++)
            in[count] = (text_char){f->in[count], count, count + 1};
        assert_int_equal(text_normalize(&out, &n, in, count, NULL), KIT_OK);
        while (f->out[wanted])
            wanted++;
        if (out.count != wanted)
            fail_msg("%zu: %zu characters", i, out.count);
        for (size_t k = 0; k < wanted; k++)
            if (out.at[k].code != f->out[k])
                fail_msg("%zu: character %zu is U+%04X", i, k, (unsigned)out.at[k].code);
        free(out.at);
    }
}

static void expect_normalized(const char *json, const char *text, const char *want)
{
    kit_tokenizer *t = make(json);
    expect(t, text, NULL, want);
    kit_tokenizer_free(t);
}

/* Where the tokens come from is told in places of the text as it was given. */
static void test_normalizers(void **state)
{
    (void)state;
    static const char nfc[] = BPE_NORMALIZED("{\"type\":\"NFC\"}");
    expect_normalized(nfc, "a\xC3\xA9", "0@0-1 8@1-2 9@2-3");
    expect_normalized(nfc, "a\x65\xCC\x81", "0@0-1 8@1-4 9@1-4");
    expect_normalized(BPE_NORMALIZED("{\"type\":\"NFKC\"}"),
                      "\xEF\xBD\x81"
                      "b",
                      "4@0-4");
    expect_normalized(BPE_NORMALIZED("{\"type\":\"Lowercase\"}"), "ABC", "5@0-3");
    expect_normalized(BPE_NORMALIZED("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},"
                                     "{\"type\":\"StripAccents\"}]}"),
                      "\xC3\xA1"
                      "b",
                      "4@0-3");
    expect_normalized(BPE_NORMALIZED("{\"type\":\"Strip\",\"strip_right\":false}"), " \tab ",
                      "4@2-4 3@4-5");
    expect_normalized(BPE_NORMALIZED("{\"type\":\"Prepend\",\"prepend\":\"a\"}"), "bc", "5@0-2");
    expect_normalized(BPE_NORMALIZED("{\"type\":\"Prepend\",\"prepend\":\"a\"}"), "", "");
    expect_normalized(BPE_NORMALIZED("{\"type\":\"Replace\",\"pattern\":{\"String\":\"xx\"},"
                                     "\"content\":\"ab\"}"),
                      "xxcxx", "5@0-3 4@3-5");
}

/* BERT takes no mark away that spaces, but puts them in the order of their class. */
static void test_places_of_marks_that_changed_places(void **state)
{
    (void)state;
    kit_tokenizer *t = make(WORDPIECE);
    expect(t, "\xF0\x9D\x85\xAD\xE3\x80\xAE\xF0\x9D\x85\xA5", NULL, "1 0@0-11 2");
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

#define TIMES_17(x)                                                                                \
    x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x    \
      "," x

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
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":1.5}}}", "must be an integer"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":-1}}}", "must be 0 to"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":16777216}}}", "must be 0 to"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":9223372036854775808}}}", "too big"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0,\"b\":0}}}", "two tokens have the id"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0,\"a\":1}}}", "duplicate"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"\xFF\":0}}}", "unable to decode"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"max_input_chars_per_word\":1e9}}",
     "max_input_chars_per_word"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":99,\"content\":\"[CLS]\",\"normalized\":false}"),
     "has two ids, 1 and 99"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":99,\"content\":\"\"}"), "empty"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":99,\"content\":\"x\",\"single_word\":7}"),
     "single_word must be true or false"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":99,\"content\":\"x\",\"foo\":1}"),
     "'foo' is not a known key of an added token"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"foo\":1}}",
     "'foo' is not a known key of model WordPiece"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"foo\":1}}",
     "'foo' is not a known key of model BPE"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"dropout\":0.1}}",
     "dropout' is not supported; it must be null or 0"},
    {"{\"foo\":1}", "'foo' is not a known key of tokenizer.json"},
    {BPE_NORMALIZED("{\"type\":\"NFC\",\"foo\":1}"), "'foo' is not a known key of NFC"},
    {BPE_OF(BPE_VOCABULARY, "[]", "{\"type\":\"ByteLevel\",\"foo\":1}"),
     "'foo' is not a known key of ByteLevel"},
    {WORDPIECE_OF("{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}", ""), "vocabulary does not have"},
    {BPE_OF(BPE_VOCABULARY, "[\"a b\",\"a b\"]", BYTE_LEVEL), "merge 2 repeats merge 1"},
    {BPE_OF(BPE_VOCABULARY, "[[\"a\",\"\"]]", BYTE_LEVEL), "merge 1"}, /* a cycle: a makes a */
    {BPE_OF(BPE_VOCABULARY, "[[\"\",\"\"]]", BYTE_LEVEL), "merge 1"},
    {BPE_OF(BPE_VOCABULARY, "[\"a c\"]", BYTE_LEVEL),
     "must have both tokens and their concatenation"},
    {BPE_OF(BPE_VOCABULARY, "[\"a\"]", BYTE_LEVEL), "two tokens"},
    {BPE_OF(BPE_VOCABULARY, "[\"a b c\"]", BYTE_LEVEL), "two tokens"},
    {BPE_OF(BPE_VOCABULARY, "[7]", BYTE_LEVEL), "two tokens"},
    {BPE_OF(BPE_VOCABULARY, "{}", BYTE_LEVEL), "must be a list"},
    {BPE_OF(BPE_VOCABULARY, "[]", "{\"type\":\"Metaspace\"}"), "'Metaspace' is not supported"},
    {BPE_OF(BPE_VOCABULARY, "[]", SPLIT_OF("[a-z]+")), "'[a-z]+' is not supported"},
    {BPE_OF("{\"\\ud800\":0}", "[]", BYTE_LEVEL), "invalid Unicode"},
    {BPE_OF("{\"\\udc00a\":0}", "[]", BYTE_LEVEL), "invalid Unicode"},
    {BPE_OF("{\"\\u0000\":0}", "[]", BYTE_LEVEL), "NUL byte in object key"},
    {BPE_OF("{\"a\":1e999}", "[]", BYTE_LEVEL), "real number overflow"},
    {BPE_OF("{\"a\":-9223372036854775809}", "[]", BYTE_LEVEL), "too big negative integer"},
    {BPE_OF("{\"a\":2147483648}", "[]", BYTE_LEVEL), "'a' has the id 2147483648; it must be"},
    {BPE_OF("{\"a\":4294967296}", "[]", BYTE_LEVEL), "'a' has the id 4294967296; it must be"},
    {BPE_OF("{\"a\":-1}", "[]", BYTE_LEVEL), "'a' has the id -1; it must be"},
    {BPE_OF("{\"a\":13}", "[]", BYTE_LEVEL),
     "added token '<end>' has the id 13, which belongs to 'a'"},
    {BPE_OF("{\"<end>\":19}", "[]", BYTE_LEVEL), "token '<end>' has two ids, 19 and 13"},
    {BPE_OF("{\"a\":0}", "[]", BYTE_LEVEL),
     "added token '<end>' has the id 13; in the vocabulary it is 1"},
    {BPE_OF("{\"a\":0,\"b\":1}", "[\"a b\"]", BYTE_LEVEL),
     "must have both tokens and their concatenation"},
    {BPE_OF("{\"a\":0,\"ab\":1}", "[\"a b\"]", BYTE_LEVEL),
     "must have both tokens and their concatenation"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":2147483648,\"content\":\"x\"}"), "id must be"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":-1,\"content\":\"x\"}"), "id must be"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":6,\"content\":\"x\"}"),
     "has the id 6, which belongs to 'a'"},
    {WORDPIECE_OF(WORDPIECE_MODEL, "7"), "must have content and id"},
    {BPE_NORMALIZED("{\"type\":\"Nmt\"}"), "normalizer 'Nmt' is not supported"},
    {BPE_NORMALIZED("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AA==\"}"),
     "normalizer 'Precompiled' is not supported"},
    {BPE_NORMALIZED("\"NFC\""), "normalizer '(none)'"},
    {BPE_NORMALIZED("{\"type\":\"Sequence\"}"), "must be a list"},
    {BPE_NORMALIZED("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},[]]}"), "(none)"},
    {BPE_NORMALIZED("{\"type\":\"Sequence\",\"normalizers\":[" TIMES_17("{\"type\":\"NFC\"}") "]}"),
     "more than 16 steps"},
    {BPE_NORMALIZED("{\"type\":\"Prepend\"}"), "prepend is missing"},
    {BPE_NORMALIZED("{\"type\":\"Prepend\",\"prepend\":7}"), "must be a string"},
    {BPE_NORMALIZED("{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"a\"}"),
     "Replace of '(none)'"},
    {BPE_NORMALIZED("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\"\"}"),
     "Replace of ' +'"},
    {BPE_NORMALIZED("{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}"), "Replace of"},
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

/* What opens and opens, and never closes, and what closes. */
static void test_nested_json(void **state)
{
    (void)state;
    static const char list[] = "{\"type\":\"Sequence\",\"normalizers\":[";
    for (int depth = 900; depth <= 300000; depth *= 18) { /* jansson goes 2048 deep */
        describe_case("%d levels", depth);
        bytes b = {0};
        kit_tokenizer *t;
        kit_error e = {0};
        put_text(&b, "{\"normalizer\":");
        for (int i = 0; i < depth; i++)
            put_text(&b, list);
        put_text(&b, "{\"type\":\"NFC\"}");
        for (int i = 0; i < depth; i++)
            put_text(&b, "]}");
        put_text(&b, ",\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\",\"vocab\":"
                     "{\"a\":0},\"merges\":[]}}");
        const int code = kit_tokenizer_parse(&t, "t.json", b.data, b.size, &e);
        assert_int_equal(code, depth == 900 ? KIT_OK : KIT_BAD_FILE);
        assert_true(!code || strstr(e.message, "maximum parsing depth reached"));
        kit_tokenizer_free(t);
        bytes_free(&b);
    }
}

/* Ids without a token are none, and one large id takes no memory for those below it. */
static void test_ids_with_holes(void **state)
{
    (void)state;
    static const char json[] =
        BPE_ADDED("3", "{\"a\":0,\"b\":7,\"ab\":16777215}", "[\"a b\"]", BYTE_LEVEL);
    struct rusage before, after;
    size_t length;
    getrusage(RUSAGE_SELF, &before);
    kit_tokenizer *t = make(json);
    expect(t, "aabb", NULL, "0@0-1 16777215@1-3 7@3-4");
    assert_int_equal(kit_tokenizer_size(t), 16777216);
    assert_null(kit_tokenizer_bytes(t, 4, &length));
    assert_null(kit_tokenizer_bytes(t, 16777216, &length));
    assert_null(kit_tokenizer_bytes(t, -1, &length));
    kit_tokenizer_free(t);
    getrusage(RUSAGE_SELF, &after);
    if (!getenv("ATTN_SANITIZED") || strcmp(getenv("ATTN_SANITIZED"), "1") != 0)
        assert_in_range(after.ru_maxrss - before.ru_maxrss, 0, 64 << 10); /* KiB */
}

/* Half of it spaces, which are two bytes each there. */
static void test_token_of_100_MB(void **state)
{
    (void)state;
    enum { LONG = 100000000 };
    bytes b = {0};
    size_t length;
    char *token = malloc(LONG + 1);
    assert_non_null(token);
    for (size_t i = 0; i < LONG; i++)
        token[i] = i < LONG / 2 ? 'a' : "\xC4\xA0"[i % 2];
    token[LONG] = 0;
    put_text(&b, "{\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\",\"merges\":[],"
                 "\"vocab\":{\"a\":0,\"");
    put(&b, token, LONG);
    put_text(&b, "\":1}}}");
    free(token);
    bytes text = {0};
    put(&text, b.data, b.size + 1);
    bytes_free(&b);
    kit_tokenizer *t = make((char *)text.data);
    const char *found = kit_tokenizer_bytes(t, 1, &length);
    assert_int_equal(length, LONG / 2 + LONG / 4);
    assert_int_equal(found[LONG / 2 - 1], 'a');
    assert_int_equal(found[length - 1], ' ');
    expect(t, "aa", NULL, "0@0-1 0@1-2");
    kit_tokenizer_free(t);
    bytes_free(&text);
}

/* What the vocabulary has no token for is the unknown token: one for each byte, or for a run. */
static void test_unknown_bytes(void **state)
{
    (void)state;
#define UNKNOWN(fuse)                                                                              \
    "{\"pre_tokenizer\":" BYTE_LEVEL                                                               \
    ",\"model\":{\"type\":\"BPE\",\"dropout\":0.0,\"unk_token\":\"?\","                            \
    "\"fuse_unk\":" fuse ",\"vocab\":{\"a\":0,\"?\":1,\"?a\":2},\"merges\":[\"? a\"]}}"
    kit_tokenizer *t = make(UNKNOWN("false"));
    expect(t, "abba", NULL, "0@0-1 1@1-2 2@2-4"); /* it merges as its token does */
    expect(t, "\xC3\xA9", NULL, "1@0-1 1@1-2");
    kit_tokenizer_free(t);
    t = make(UNKNOWN("true"));
    expect(t, "abba", NULL, "0@0-1 2@1-4");
    expect(t, "bb aa", NULL, "1@0-2 2@2-4 0@4-5"); /* a run ends with its piece */
    kit_tokenizer_free(t);
}

/* Steps that make four characters of each, sixteen times: an end is put to it. */
static void test_normalizer_that_explodes(void **state)
{
    (void)state;
#define FOUR "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaa\"}"
#define TIMES_4(x) x "," x "," x "," x
    kit_tokenizer *t = make(
        BPE_NORMALIZED("{\"type\":\"Sequence\",\"normalizers\":[" TIMES_4(TIMES_4(FOUR)) "]}"));
    kit_tokens k;
    kit_error e = {0};
    assert_int_equal(kit_tokenizer_encode(&k, t, "a", NULL, &e), KIT_LIMIT);
    assert_non_null(strstr(e.message, "longer than 16777216 characters"));
    assert_null(k.token);
    kit_tokenizer_free(t);
}

/* A piece of a million bytes, all of which merge: no step looks at the whole piece again. */
static void test_long_piece(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    static const char json[] =
        BPE_ADDED("3", "{\"a\":0,\"aa\":1,\"aaaa\":2}", "[\"a a\",\"aa aa\"]", BYTE_LEVEL);
    kit_tokenizer *t = make(json);
    kit_tokens k;
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'a', LONG);
    text[LONG] = 0;
    assert_int_equal(kit_tokenizer_encode(&k, t, text, NULL, NULL), KIT_OK);
    assert_int_equal(k.count, LONG / 4);
    for (size_t i = 0; i < k.count; i++) {
        assert_int_equal(k.token[i].id, 2);
        assert_int_equal(k.token[i].begin, 4 * i);
    }
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
        cmocka_unit_test(test_forms_of_unicode),
        cmocka_unit_test(test_normalizers),
        cmocka_unit_test(test_places_of_marks_that_changed_places),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_texts_that_cannot_be),
        cmocka_unit_test(test_hostile_tokenizers),
        cmocka_unit_test(test_nested_json),
        cmocka_unit_test(test_ids_with_holes),
        cmocka_unit_test(test_token_of_100_MB),
        cmocka_unit_test(test_unknown_bytes),
        cmocka_unit_test(test_normalizer_that_explodes),
        cmocka_unit_test(test_long_piece),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
