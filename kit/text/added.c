/* Added tokens: they are searched for before the text is split, and are never split. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "tokenizer_inner.h"

/* ------------------------------------------------------------------------------------- Ids */

/* In a BPE vocabulary a token is stored as the bytes that its string stands for. A string that
 * stands for no bytes, such as one with a space, is stored as it is. */
int text_token_id(int64_t *id, const kit_tokenizer *t, const char *content, const char *name,
                  kit_error *err)
{
    const size_t length = strlen(content);
    const int byte = t->characters ? text_byte_token(content, length) : -1;
    size_t size = length;
    char *bytes = NULL;
    *id = byte >= 0 ? t->byte_id[byte] : -1;
    if (*id >= 0)
        return KIT_OK;
    if (t->kind == TEXT_BPE && !(bytes = malloc(length + 1)))
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    if (!bytes || text_piece_of(bytes, &size, t, content, length))
        *id = text_vocabulary_find(&t->vocabulary, bytes ? bytes : content, size);
    free(bytes);
    if (*id < 0)
        *id = text_vocabulary_find_name(&t->vocabulary, content, length);
    return KIT_OK;
}

/* ---------------------------------------------------------------------------------- Adding */

/* Refuses an added token that is empty, that has another id in the vocabulary, or whose id belongs
 * to another token. */
static int check_added(const kit_tokenizer *t, const char *content, int64_t id, const char *name,
                       kit_error *err)
{
    const text_entry *there = id >= 0 && id < t->vocabulary.size ? &t->vocabulary.entry[id] : NULL;
    int64_t known;
    if (!*content)
        return kit_fail(err, KIT_BAD_FILE, "%s: an added token is empty", name);
    const int code = text_token_id(&known, t, content, name, err);
    if (code)
        return code;
    if (known >= 0 && known != id)
        return kit_fail(err, KIT_BAD_FILE, "%s: token '%.80s' has two ids, %lld and %lld", name,
                        content, (long long)known, (long long)id);
    if (known < 0 && there && there->bytes)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: added token '%.80s' has the id %lld, which belongs to '%.80s'", name,
                        content, (long long)id, there->bytes);
    return KIT_OK;
}

/* Finds or makes the place of the added token `id`; NULL: no memory. */
static text_added *place_for(kit_tokenizer *t, int64_t id)
{
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].id == id)
            return &t->added[i];
    text_added *grown = realloc(t->added, (t->added_count + 1) * sizeof *t->added);
    if (!grown)
        return NULL;
    t->added = grown;
    t->added[t->added_count] = (text_added){.id = id};
    return &t->added[t->added_count++];
}

int text_added_add(kit_tokenizer *t, const char *content, int64_t id, text_manner manner,
                   const char *name, kit_error *err)
{
    int code = check_added(t, content, id, name, err);
    if (code)
        return code;
    if (id >= t->vocabulary.size || !t->vocabulary.entry[id].bytes)
        code = text_vocabulary_add(&t->vocabulary, content, strlen(content), id, TEXT_BY_NAME, name,
                                   err);
    text_added *a = code ? NULL : place_for(t, id);
    if (!a)
        return code ? code : kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    text_chars plain = {0};
    free(a->chars.at);
    a->chars = plain;
    a->manner = manner;
    code = text_chars_decode(&plain, content, err);
    if (!code && manner.normalized && t->normalizer.count) {
        code = text_normalize(&a->chars, &t->normalizer, plain.at, plain.count, err);
        free(plain.at);
    } else {
        a->chars = plain;
    }
    return code;
}

/* --------------------------------------------------------------------------------- Finding */

/* Characters that \w matches in a Unicode regular expression: letters, marks, digits, connectors,
 * joiners, and circled and squared letters. */
static bool is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default:
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
               (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
               (c >= 0x1F170 && c <= 0x1F189);
    }
}

const text_added *text_added_at(const kit_tokenizer *t, bool normalized, const text_char *c,
                                size_t count)
{
    const text_added *best = NULL;
    for (size_t i = 0; i < t->added_count; i++) {
        const text_added *a = &t->added[i];
        size_t n = 0;
        if (a->manner.normalized != normalized || !a->chars.count || a->chars.count > count)
            continue;
        while (n < a->chars.count && a->chars.at[n].code == c[n].code)
            n++;
        if (n == a->chars.count && (!best || n > best->chars.count))
            best = a;
    }
    return best;
}

bool text_added_fits(const text_added *a, const text_char *c, size_t at, size_t count)
{
    const size_t stop = at + a->chars.count;
    return !a->manner.single ||
           !((at > 0 && is_word(c[at - 1].code)) || (stop < count && is_word(c[stop].code)));
}
