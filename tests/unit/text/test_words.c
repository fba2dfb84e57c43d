/* Sentences are split into words, and widths of text computed, as Python and a terminal do it.
 *
 * The expected values are written out by hand, or are those of Python's str.split() and of a
 * terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit.h"
#include "support/test.h"

/* words: separated by '|', as none of the cases holds one. */
static void expect_words(const char *text, const char *words)
{
    kit_words w;
    kit_error e = {0};
    char joined[512] = "";
    assert_int_equal(kit_words_split(&w, text, &e), KIT_OK);
    for (size_t i = 0; i < w.count; i++) {
        strcat(joined, i > 0 ? "|" : "");
        strcat(joined, w.word[i]);
        assert_number(w.id[i], >=, 0);
        assert_number((size_t)w.id[i], <, w.vocabulary_count);
        assert_string_equal(w.vocabulary[w.id[i]], w.word[i]);
    }
    assert_string_equal(joined, words);
    for (size_t i = 1; i < w.vocabulary_count; i++)
        assert_true(strcmp(w.vocabulary[i - 1], w.vocabulary[i]) < 0);
    kit_words_free(&w);
    assert_null(w.word);
}

static void test_split(void **state)
{
    (void)state;
    expect_words("Life is short, eat dessert last", "Life|is|short|eat|dessert|last");
    expect_words("", "");
    expect_words(" \t\n", "");
    expect_words("...", "");
    expect_words("a - b", "a|b");
    expect_words("don't e-mail me", "don't|e-mail|me");
    expect_words("«Où est-il?» (là-bas)…", "Où|est-il|là-bas");
    expect_words("“quoted”, ‘twice’", "quoted|twice");
    expect_words("¿Qué? ¡Sí!", "Qué|Sí");
    expect_words("今天。 天气、 很好！", "今天|天气|很好");
    expect_words("$5 +1 a=b ^x^", "$5|+1|a=b|^x^"); /* symbols are not punctuation */
    expect_words("\"'--a.b.c--'\"", "a.b.c");
    expect_words("😀 👨‍👩‍👧!", "😀|👨‍👩‍👧");
}

/* Every character that Python's str.split() takes for white space, and three that it does not. */
static void test_white_space(void **state)
{
    (void)state;
    static const char *const spaces[] = {
        "\t",           "\n",           "\v",           "\f",           "\r",
        "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x8a",
        "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    static const char *const others[] = {"\xe2\x80\x8b", "\xe2\x81\xa0", "\xef\xbb\xbf"};
    char text[32], joined[32];
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        snprintf(text, sizeof text, "a%sb%s", spaces[i], spaces[i]);
        expect_words(text, "a|b");
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(text, sizeof text, "a%sb", others[i]);
        snprintf(joined, sizeof joined, "a%sb", others[i]);
        expect_words(text, joined);
    }
}

static void test_vocabulary(void **state)
{
    (void)state;
    kit_words w;
    assert_int_equal(kit_words_split(&w, "b a b Z ä 😀 \xef\xbf\xbd a", NULL), KIT_OK);
    static const char *const sorted[] = {"Z", "a", "b", "ä", "\xef\xbf\xbd", "😀"}; /* code points */
    static const int64_t ids[] = {2, 1, 2, 0, 3, 5, 4, 1};
    assert_int_equal(w.vocabulary_count, 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(w.vocabulary[i], sorted[i]);
    assert_int_equal(w.count, 8);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(w.id[i], ids[i]);
    kit_words_free(&w);
}

static void test_bad_utf8(void **state)
{
    (void)state;
    static const char *const bad[] = {"a\xff",     "\x80",         "ok \xc3",
                                      "\xc0\xaf",  "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xe2\x82 a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        describe_case("row %zu of bad", i);
        kit_words w;
        kit_error e = {0};
        assert_int_equal(kit_words_split(&w, bad[i], &e), KIT_USAGE);
        assert_non_null(strstr(e.message, "UTF-8"));
        assert_null(strchr(e.message, '\n'));
        kit_words_free(&w);
    }
}

static void test_many(void **state)
{
    (void)state;
    enum { WORDS = 50000 };
    char *text = malloc(WORDS * 8);
    size_t used = 0;
    for (int i = 0; i < WORDS; i++)
        used += (size_t)snprintf(text + used, 8, "w%d ", i % 1000);
    kit_words w;
    assert_int_equal(kit_words_split(&w, text, NULL), KIT_OK);
    assert_int_equal(w.count, WORDS);
    assert_int_equal(w.vocabulary_count, 1000);
    for (int i = 1000; i < WORDS; i++)
        assert_int_equal(w.id[i], w.id[i - 1000]);
    kit_words_free(&w);
    free(text);
}

static void test_width(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int width;
    } cases[] = {{"", 0},
                 {"abc", 3},
                 {"größe", 5},
                 {"e\xcc\x81", 1},
                 {"今天", 4},
                 {"ｱ", 1},
                 {"한글", 4},
                 {"😀", 2},
                 {"👨‍👩‍👧", 2},
                 {"🇩🇪", 2},
                 {"☺\xef\xb8\x8f", 2},
                 {"👍🏽", 2},
                 {"a😀b", 4},
                 {"√24·×", 5},
                 {"\xff", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (kit_text_width(cases[i].text) != cases[i].width)
            fail_msg("\"%s\" is %d wide, want %d", cases[i].text, kit_text_width(cases[i].text),
                     cases[i].width);
}

static void join_bytes(void *to, const char *bytes, size_t size) { strncat(to, bytes, size); }

/* Noncharacters are not drawn, because cairo refuses them; JSON keeps them. */
static void test_noncharacters(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json;
    } cases[] = {
        {"\xef\xb7\x90", "\"\\ufdd0\""},
        {"\xef\xb7\xaf", "\"\\ufdef\""},
        {"\xef\xbf\xbe", "\"\\ufffe\""},
        {"\xef\xbf\xbf", "\"\\uffff\""},
        {"\xf0\x9f\xbf\xbe", "\"\xf0\x9f\xbf\xbe\""},
        {"\xf4\x8f\xbf\xbf", "\"\xf4\x8f\xbf\xbf\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *piece;
        size_t length;
        char json[32] = "";
        assert_ptr_equal(kit_text_next(cases[i].text, &piece, &length),
                         cases[i].text + strlen(cases[i].text));
        assert_int_equal(length, 3);
        assert_memory_equal(piece, "\xef\xbf\xbd", 3);
        kit_text_json(cases[i].text, strlen(cases[i].text), join_bytes, json);
        assert_string_equal(json, cases[i].json);
    }
    const char *piece, *const face = "\xf0\x9f\x98\x80"; /* U+1F600: an ordinary character */
    size_t length;
    char json[32] = "";
    kit_text_next(face, &piece, &length);
    assert_ptr_equal(piece, face);
    kit_text_json(face, 4, join_bytes, json);
    assert_string_equal(json, "\"\xf0\x9f\x98\x80\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),         cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_vocabulary),    cmocka_unit_test(test_bad_utf8),
        cmocka_unit_test(test_many),          cmocka_unit_test(test_width),
        cmocka_unit_test(test_noncharacters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
