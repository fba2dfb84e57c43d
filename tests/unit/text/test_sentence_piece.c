/* BPE of characters with a fallback to bytes gives ids that are written out by hand.
 *
 * tests/peers compares a larger tokeniser with Hugging Face's. */
#include "support/io_testing.h"

#include "text/tokenizer.h"
#include "support/tokenizer_samples.h"

static int open_piece(kit_tokenizer **t, const char *normalizer, int last, const char *more,
                      kit_error *e)
{
    char json[SENTENCE_PIECE_ROOM];
    sentence_piece(json, sizeof json, normalizer, last, more);
    return kit_tokenizer_parse(t, "t.json", json, strlen(json), e);
}

/* "id@begin-end ..." and the bytes that they stand for. */
static void expect(const kit_tokenizer *t, const char *text, const char *want, const char *decoded)
{
    kit_tokens k;
    kit_error e = {0};
    char got[512] = "";
    bytes all = {0};
    if (kit_tokenizer_encode(&k, t, text, NULL, &e))
        fail_msg("%s: %s", text, e.message);
    for (size_t i = 0; i < k.count; i++) {
        const size_t used = strlen(got);
        size_t length;
        snprintf(got + used, sizeof got - used, "%s%d@%zu-%zu", i ? " " : "", (int)k.token[i].id,
                 k.token[i].begin, k.token[i].end);
        const char *piece = kit_tokenizer_bytes(t, k.token[i].id, &length);
        assert_non_null(piece);
        put(&all, piece, length);
    }
    put(&all, "", 1);
    assert_string_equal(got, want);
    assert_string_equal(all.data, decoded);
    kit_tokens_free(&k);
    bytes_free(&all);
}

static void test_pieces_and_bytes(void **state)
{
    (void)state;
    kit_tokenizer *t;
    assert_int_equal(open_piece(&t, MARK_SPACES, 255, "", NULL), KIT_OK);
    expect(t, "", "", "");
    expect(t, "ab", "260@0-2", " ab");
    expect(t, "ab ab", "260@0-2 260@2-5", " ab ab");
    expect(t, "a  b", "256@0-0 257@0-1 262@1-3 258@3-4", " a  b");
    expect(t, "b\n", "256@0-0 258@0-1 10@1-2", " b\n");
    expect(t, "\xC3\xA9", "256@0-0 261@0-2", " \xC3\xA9");
    expect(t, "\xC3\xA8", "256@0-0 195@0-1 168@1-2", " \xC3\xA8"); /* no character of it */
    expect(t, "\xF0\x9F\x98\x80", "256@0-0 240@0-1 159@1-2 152@2-3 128@3-4", " \xF0\x9F\x98\x80");
    expect(t, "<0x41>", "256@0-0 60@0-1 48@1-2 120@2-3 52@3-4 49@4-5 62@5-6", " <0x41>");
    expect(t, "\xE2\x96\x81\x61", "262@0-3 257@3-4", "  a"); /* a mark is as good as a space */
    kit_tokenizer_free(t);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *normalizer, *more, *says;
        int last;
    } refused[] = {
        {MARK_SPACES, "", "byte_fallback needs the token <0xFF>", 254},
        {"null", "", "byte_fallback with pre_tokenizer '(none)' is not supported", 255},
        {PREPEND_MARK, "", "byte_fallback with pre_tokenizer '(none)'", 255},
        {"{\"type\":\"Sequence\",\"normalizers\":[" MARKED "," PREPEND_MARK "]}", "",
         "whose last step replaces", 255},
        {MARK_SPACES, ",\"pre_tokenizer\":" BYTE_LEVEL, "with pre_tokenizer 'ByteLevel'", 255},
        {MARK_SPACES, ",\"pre_tokenizer\":{\"type\":\"Metaspace\"}", "'Metaspace'", 255},
    };
    for (size_t i = 0; i < COUNT(refused); i++) {
        kit_tokenizer *t;
        kit_error e = {0};
        const int code =
            open_piece(&t, refused[i].normalizer, refused[i].last, refused[i].more, &e);
        if (code != KIT_BAD_FILE || !strstr(e.message, refused[i].says))
            fail_msg("%zu: %d %s", i, code, e.message);
        assert_null(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_and_bytes),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
