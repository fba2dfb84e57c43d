/* Words of a sentence.
 *
 * Splitting generalises the notebooks' `text.replace(",", "").split()`: it splits at the white
 * space of Python's str.split(), then strips Unicode punctuation from both ends of each word.
 * utf8proc supplies the categories. Sub-word tokenisers are in tokenizer.c.
 */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "../kit.h"

static bool is_space(utf8proc_int32_t c)
{
    if ((c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85) {
        return true;
    }
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

static bool is_punctuation(utf8proc_int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

/* Returns the number of bytes of the character at p, and its code in *c. The text was checked
 * before, so the result of utf8proc is positive. */
static size_t next_char(const char *p, utf8proc_int32_t *c)
{
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)p, -1, c);
    return n > 0 ? (size_t)n : 1;
}

static int check_utf8(const char *text, kit_error *err)
{
    const char *p = text;
    while (*p != '\0') {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)p, -1, &c);
        if (n <= 0) {
            return kit_fail(err, KIT_USAGE, "the text is not UTF-8: byte 0x%02x at position %zu",
                            (unsigned)(unsigned char)*p, (size_t)(p - text) + 1);
        }
        p += n;
    }
    return KIT_OK;
}

/* Strips the punctuation from both ends of [*from, *to). */
static void strip(const char **from, const char **to)
{
    const char *keep_from = NULL, *keep_to = NULL;
    for (const char *p = *from; p < *to;) {
        utf8proc_int32_t c;
        size_t n = next_char(p, &c);
        if (!is_punctuation(c)) {
            keep_from = keep_from != NULL ? keep_from : p;
            keep_to = p + n;
        }
        p += n;
    }
    *from = keep_from != NULL ? keep_from : *to;
    *to = keep_from != NULL ? keep_to : *to;
}

/* Gives the next word in *word, *length. Returns where to continue, or NULL at the end. */
static const char *next_word(const char *p, const char **word, size_t *length)
{
    while (*p != '\0') {
        utf8proc_int32_t c;
        size_t n = next_char(p, &c);
        if (is_space(c)) {
            p += n;
            continue;
        }
        const char *from = p, *end = p;
        while (*end != '\0' && (n = next_char(end, &c), !is_space(c))) {
            end += n;
        }
        const char *to = end;
        strip(&from, &to);
        if (from < to) {
            *word = from;
            *length = (size_t)(to - from);
            return end;
        }
        p = end;
    }
    return NULL;
}

static int compare_strings(const void *a, const void *b)
{
    /* The order of UTF-8 bytes equals the order of code points. */
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void make_vocabulary(kit_words *w)
{
    memcpy(w->vocabulary, w->word, w->count * sizeof *w->word);
    qsort(w->vocabulary, w->count, sizeof *w->vocabulary, compare_strings);
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++) {
        if (n == 0 || strcmp(w->vocabulary[n - 1], w->vocabulary[i]) != 0) {
            w->vocabulary[n++] = w->vocabulary[i];
        }
    }
    w->vocabulary_count = n;
    for (size_t i = 0; i < w->count; i++) {
        char **hit = bsearch(&w->word[i], w->vocabulary, n, sizeof *w->vocabulary, compare_strings);
        w->id[i] = (int64_t)(hit - w->vocabulary);
    }
}

int kit_words_split(kit_words *words, const char *text, kit_error *err)
{
    memset(words, 0, sizeof *words);
    int rc = check_utf8(text, err);
    if (rc != KIT_OK) {
        return rc;
    }
    size_t count = 0, bytes = 0, length = 0;
    const char *word = NULL;
    for (const char *p = text; (p = next_word(p, &word, &length)) != NULL;) {
        count++;
        bytes += length + 1; /* at most the size of the text and one byte */
    }
    if (count == 0) {
        return KIT_OK;
    }
    char *block = malloc(bytes); /* all words, one after the other; word[0] owns it */
    words->word = calloc(count, sizeof *words->word);
    words->id = calloc(count, sizeof *words->id);
    words->vocabulary = calloc(count, sizeof *words->vocabulary);
    if (!block || !words->word || !words->id || !words->vocabulary) {
        free(block);
        kit_words_free(words);
        return kit_fail(err, KIT_LIMIT, "no memory for %zu words", count);
    }
    for (const char *p = text; (p = next_word(p, &word, &length)) != NULL;) {
        memcpy(block, word, length);
        block[length] = '\0';
        words->word[words->count++] = block;
        block += length + 1;
    }
    make_vocabulary(words);
    return KIT_OK;
}

void kit_words_free(kit_words *words)
{
    if (words->word != NULL) {
        free(words->word[0]);
    }
    free(words->word);
    free(words->id);
    free(words->vocabulary);
    memset(words, 0, sizeof *words);
}
