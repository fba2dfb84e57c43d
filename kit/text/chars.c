/* Growing lists of characters and of tokens. See tokenizer_inner.h. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "tokenizer_inner.h"

/* Makes room for one more element after `count` elements. */
static int grow(void **array, size_t *capacity, size_t count, size_t element, kit_error *err)
{
    if (count < *capacity)
        return KIT_OK;
    const size_t wanted = *capacity ? 2 * *capacity : 32;
    void *grown = wanted < SIZE_MAX / element ? realloc(*array, wanted * element) : NULL;
    if (!grown)
        return kit_fail(err, KIT_LIMIT, "not enough memory for the tokens of the text");
    *array = grown;
    *capacity = wanted;
    return KIT_OK;
}

int text_tokens_add(kit_tokens *tokens, int64_t id, size_t begin, size_t end, kit_error *err)
{
    const int code =
        grow((void **)&tokens->token, &tokens->capacity, tokens->count, sizeof *tokens->token, err);
    if (!code)
        tokens->token[tokens->count++] = (kit_token){.id = id, .begin = begin, .end = end};
    return code;
}

void kit_tokens_free(kit_tokens *tokens)
{
    free(tokens->token);
    *tokens = (kit_tokens){0};
}

int text_chars_add(text_chars *c, text_char one, kit_error *err)
{
    const int code = grow((void **)&c->at, &c->capacity, c->count, sizeof *c->at, err);
    if (!code)
        c->at[c->count++] = one;
    return code;
}

int text_chars_decode(text_chars *c, const char *text, kit_error *err)
{
    const size_t size = strlen(text);
    if (size >= UINT32_MAX)
        return kit_fail(err, KIT_LIMIT, "the text is longer than 4 GiB");
    int code = KIT_OK;
    for (size_t at = 0; at < size && !code;) {
        utf8proc_int32_t one;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                    (utf8proc_ssize_t)(size - at), &one);
        if (n <= 0)
            return kit_fail(err, KIT_USAGE, "the text is not UTF-8: byte 0x%02x at position %zu",
                            (unsigned)(unsigned char)text[at], at + 1);
        code = text_chars_add(c, (text_char){one, (uint32_t)at, (uint32_t)at + (uint32_t)n}, err);
        at += (size_t)n;
    }
    return code;
}

void text_chars_span(size_t *begin, size_t *end, const text_char *c, size_t count)
{
    *begin = c[0].begin;
    *end = c[0].end;
    for (size_t i = 1; i < count; i++) {
        *begin = c[i].begin < *begin ? c[i].begin : *begin;
        *end = c[i].end > *end ? c[i].end : *end;
    }
}
