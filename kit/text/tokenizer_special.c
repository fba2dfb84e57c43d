/* The special and added tokens of old files, with the options and ids that transformers 5 gives
 * them:
 *
 *   tokenizer_config.json    bos_token and so on, extra_special_tokens, added_tokens_decoder;
 *                            if it has the last key, the other two files are ignored
 *   special_tokens_map.json  the same names, preferred to those of tokenizer_config.json
 *   added_tokens.json        {"token": id}
 *
 * Tokens with an id are added first, in the order of their ids; then the named ones in the order of
 * `keys`; then the extra ones. A token that is not in the vocabulary gets the next id.
 */
#include <stdlib.h>
#include <string.h>

#include "../io/json.h"
#include "tokenizer_inner.h"

typedef struct special {
    const char *content; /* memory of the file; NULL: none */
    int64_t id;          /* as in the file */
    text_manner manner;
    bool text;    /* written as a plain string */
    bool special; /* value of "special" in the file */
    bool decided; /* the file says whether normalised text is searched */
    bool there;   /* a file has the key, even with null */
    bool counted; /* makes the same token of added_tokens.json special */
} special;

typedef struct specials {
    special named[TEXT_NAMED];
    special *extra, *stated;
    size_t extra_count, stated_count;
    bool has_extra; /* ignore additional_special_tokens of special_tokens_map.json */
} specials;

static const char *const keys[TEXT_NAMED] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                             "pad_token", "cls_token", "mask_token"};

#define END_OF_TEXT "<|endoftext|>"
static const struct {
    text_class class;
    const char *name[TEXT_NAMED];
} defaults[] = {
    {TEXT_CLASS_BERT, {NULL, NULL, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}},
    {TEXT_CLASS_ROBERTA, {"<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"}},
    {TEXT_CLASS_GPT2, {END_OF_TEXT, END_OF_TEXT, END_OF_TEXT, NULL, NULL, NULL, NULL}},
    {TEXT_CLASS_QWEN2, {NULL, END_OF_TEXT, END_OF_TEXT, NULL, END_OF_TEXT, NULL, NULL}},
};

/* -------------------------------------------------------------------------------- One token */

/* Reads {"content": "<mask>", "lstrip": true, ...}. A special token is searched for in the raw
 * text, unless the object says otherwise. `special_one`: it is special, whatever the object
 * says. */
static int read_object(special *to, const json_t *value, bool special_one, const char *name,
                       kit_error *err)
{
    text_manner *m = &to->manner;
    int code;
    if ((code = text_keys_check(value, "a special token", name, err)) ||
        (code = io_json_flag(&to->special, value, name, "special", err)))
        return code;
    const json_t *normalized = json_object_get(value, "normalized");
    to->decided = normalized && !json_is_null(normalized);
    to->special |= special_one;
    m->normalized = !to->special;
    if ((code = io_json_text(&to->content, value, name, "content", err)) ||
        (code = io_json_flag(&m->normalized, value, name, "normalized", err)) ||
        (code = io_json_flag(&m->left, value, name, "lstrip", err)) ||
        (code = io_json_flag(&m->right, value, name, "rstrip", err)) ||
        (code = io_json_flag(&m->single, value, name, "single_word", err)))
        return code;
    return to->content
               ? KIT_OK
               : kit_fail(err, KIT_BAD_FILE, "%s: a special token must have a content", name);
}

/* A token object of tokenizer_config.json must have "__type": "AddedToken"; one of
 * special_tokens_map.json need not. */
static int read_token(special *to, const json_t *value, bool map, const char *key, const char *name,
                      kit_error *err)
{
    const char *type = json_string_value(json_object_get(value, "__type"));
    *to = (special){.content = json_string_value(value), .there = true};
    to->text = to->content;
    to->counted = to->text || map;
    if (!to->content && !json_is_null(value)) {
        if (!json_is_object(value) || (!map && (!type || strcmp(type, "AddedToken") != 0)))
            return kit_fail(err, KIT_BAD_FILE,
                            "%s: %s must be a string, or an object with \"__type\": \"AddedToken\"",
                            name, key);
        const int code = read_object(to, value, map, name, err);
        if (code)
            return code;
    }
    return !to->content || *to->content
               ? KIT_OK
               : kit_fail(err, KIT_BAD_FILE, "%s: %s is an empty string; write null for no token",
                          name, key);
}

/* --------------------------------------------------------------------------------- Reading */

static special *one_more(special **list, size_t *count)
{
    special *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    *list = grown;
    return &grown[(*count)++];
}

static int read_list(specials *s, const json_t *list, bool map, const char *key, const char *name,
                     kit_error *err)
{
    int code = KIT_OK;
    if (list && !json_is_array(list))
        return kit_fail(err, KIT_BAD_FILE, "%s: %s must be a list of tokens", name, key);
    for (size_t i = 0; i < json_array_size(list) && !code; i++) {
        special *to = one_more(&s->extra, &s->extra_count);
        code = to ? read_token(to, json_array_get(list, i), map, key, name, err)
                  : kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
        if (!code && !to->content)
            code = kit_fail(err, KIT_BAD_FILE, "%s: %s must not have a null among its tokens", name,
                            key);
    }
    return code;
}

static const char extra_key[] = "extra_special_tokens", older_key[] = "additional_special_tokens";

static bool says_nothing(const json_t *list)
{
    return !list || json_is_null(list) || (json_is_array(list) && !json_array_size(list)) ||
           (json_is_object(list) && !json_object_size(list));
}

/* additional_special_tokens, the older name, is read if extra_special_tokens is absent, null or
 * empty. An object is refused, because it would give names to tokens. */
static int read_config_extras(specials *s, const json_t *config, const char *name, kit_error *err)
{
    const json_t *extra = json_object_get(config, extra_key);
    const json_t *older = json_object_get(config, older_key);
    s->has_extra = (extra && !json_is_object(extra)) || older;
    if (!says_nothing(extra))
        return read_list(s, extra, false, extra_key, name, err);
    return json_is_null(older) ? KIT_OK : read_list(s, older, false, older_key, name, err);
}

static int read_map_extras(specials *s, const json_t *map, const char *name, kit_error *err)
{
    const json_t *extra = json_object_get(map, extra_key);
    const json_t *older = json_object_get(map, older_key);
    int code = read_list(s, extra, true, extra_key, name, err);
    if (code || extra || s->has_extra || json_is_null(older))
        return code;
    const size_t before = s->extra_count;
    code = read_list(s, older, false, older_key, name, err);
    for (size_t i = before; i < s->extra_count; i++)
        s->extra[i].counted = false;
    return code;
}

static int read_names(specials *s, const json_t *from, bool map, const char *name, kit_error *err)
{
    int code = KIT_OK;
    for (int i = 0; i < TEXT_NAMED && !code; i++) {
        const json_t *value = json_object_get(from, keys[i]);
        if (value)
            code = read_token(&s->named[i], value, map, keys[i], name, err);
    }
    return code;
}

/* Reads {"700": {"content": "<x>", ...}}. */
static int read_decoder(specials *s, const json_t *decoder, const char *name, kit_error *err)
{
    const char *key;
    json_t *value;
    int code = KIT_OK;
    if (!json_is_object(decoder))
        return kit_fail(err, KIT_BAD_FILE, "%s: added_tokens_decoder must map ids to tokens", name);
    json_object_foreach((json_t *)decoder, key, value)
    {
        if (!*key || strlen(key) > 9 || key[strspn(key, "0123456789")] || !json_is_object(value))
            return kit_fail(
                err, KIT_BAD_FILE,
                "%s: added_tokens_decoder: '%.80s' must be an id that maps to an object", name,
                key);
        special *to = one_more(&s->stated, &s->stated_count);
        if (!to)
            return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
        *to = (special){.id = strtol(key, NULL, 10)};
        code = read_object(to, value, false, name, err);
        if (code)
            break;
    }
    return code;
}

static bool has_name(const special *list, size_t count, const char *content, bool counted)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].content && strcmp(list[i].content, content) == 0 &&
            (!counted || list[i].counted))
            return true;
    return false;
}

/* Reads {"<x>": 700}. A token that is not special is searched for in the normalised text. */
static int read_added(specials *s, const json_t *added, const char *name, kit_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)added, key, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return kit_fail(err, KIT_BAD_FILE, "%s: the id of token '%.80s' must be an integer",
                            name, key);
        special *to = one_more(&s->stated, &s->stated_count);
        if (!to)
            return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
        *to = (special){.content = key, .id = json_integer_value(value), .decided = true};
        to->manner.normalized = !has_name(s->named, TEXT_NAMED, key, true) &&
                                !has_name(s->extra, s->extra_count, key, true);
    }
    return KIT_OK;
}

static int by_id(const void *a, const void *b)
{
    const int64_t x = ((const special *)a)->id, y = ((const special *)b)->id;
    return (x > y) - (x < y);
}

static int read_all(specials *s, const text_old *old, kit_error *err)
{
    const json_t *decoder = json_object_get(old->config, "added_tokens_decoder");
    int code;
    if ((code = read_names(s, old->config, false, old->config_name, err)) ||
        (code = read_config_extras(s, old->config, old->config_name, err)))
        return code;
    if (decoder)
        code = read_decoder(s, decoder, old->config_name, err);
    else if (!(code = text_map_keys_check(old->map, old->map_name, err)) &&
             !(code = read_names(s, old->map, true, old->map_name, err)) &&
             !(code = read_map_extras(s, old->map, old->map_name, err)))
        code = read_added(s, old->added, old->added_name, err);
    if (s->stated_count)
        qsort(s->stated, s->stated_count, sizeof *s->stated, by_id);
    for (size_t k = 0; k < sizeof defaults / sizeof *defaults; k++)
        for (int i = 0; i < TEXT_NAMED && defaults[k].class == old->class; i++)
            if (!s->named[i].there)
                s->named[i] = (special){.content = defaults[k].name[i], .text = true};
    return code;
}

/* ---------------------------------------------------------------------------------- Adding */

/* Adds a token with its id in the vocabulary, or with the next id. `tokenizers` takes the number of
 * existing tokens as the next id, which is not always free if ids have gaps. */
static int add_one(kit_tokenizer *t, const special *one, text_manner manner, int64_t *id,
                   const char *name, kit_error *err)
{
    int code = text_token_id(id, t, one->content, name, err);
    if (*id < 0)
        *id = t->vocabulary.count + t->unused;
    return code ? code : text_added_add(t, one->content, *id, manner, name, err);
}

/* A token that one of the named keys names becomes special. */
static text_manner manner_of(const specials *s, const special *one)
{
    text_manner m = one->manner;
    if (!one->decided && has_name(s->named, TEXT_NAMED, one->content, false))
        m.normalized = false;
    return m;
}

/* Adds the tokens whose id is in the file; it must equal the id that the token gets. */
static int add_stated(kit_tokenizer *t, const specials *s, const char *name, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < s->stated_count && !code; i++) {
        const special *one = &s->stated[i];
        int64_t id = -1;
        code = add_one(t, one, manner_of(s, one), &id, name, err);
        if (!code && id != one->id)
            code = kit_fail(err, KIT_BAD_FILE,
                            "%s: added token '%.80s' has the id %lld; in the vocabulary it is %lld",
                            name, one->content, (long long)one->id, (long long)id);
    }
    return code;
}

static bool have_equal_manner(const text_manner *a, const text_manner *b)
{
    return a->normalized == b->normalized && a->left == b->left && a->right == b->right &&
           a->single == b->single;
}

static bool are_equal(const special *a, const special *b)
{
    return a->content && strcmp(a->content, b->content) == 0 && a->text == b->text &&
           a->special == b->special && have_equal_manner(&a->manner, &b->manner);
}

/* Adds the tokens of `list` that no file gave an id. If two tokens have the same content but
 * different options, the later one counts, unless an equal token came before the other one. */
static int add_list(kit_tokenizer *t, const specials *s, const special *list, size_t count,
                    const char *name, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < count && !code; i++) {
        const size_t before = list == s->named ? i : TEXT_NAMED;
        bool again =
            !list[i].content || has_name(s->stated, s->stated_count, list[i].content, false);
        for (size_t k = 0; k < before && !again; k++)
            again = are_equal(&s->named[k], &list[i]);
        for (size_t k = 0; k < i && list != s->named && !again; k++)
            again = are_equal(&list[k], &list[i]);
        int64_t id;
        if (!again)
            code = add_one(t, &list[i], manner_of(s, &list[i]), &id, name, err);
    }
    return code;
}

/* Qwen2Tokenizer adds its special tokens a second time, with all options off. */
static int add_plain(kit_tokenizer *t, const special *list, size_t count, const char *name,
                     kit_error *err)
{
    int code = KIT_OK;
    int64_t id;
    for (size_t i = 0; i < count && !code; i++)
        if (list[i].content)
            code = add_one(t, &list[i], (text_manner){0}, &id, name, err);
    return code;
}

static int add_all(kit_tokenizer *t, const specials *s, const text_old *old, kit_error *err)
{
    const bool decoder = json_object_get(old->config, "added_tokens_decoder");
    const char *name = old->config_name;
    int code = add_stated(t, s, decoder ? name : old->added_name, err);
    if (!code)
        code = add_list(t, s, s->named, TEXT_NAMED, name, err);
    if (!code)
        code = add_list(t, s, s->extra, s->extra_count, name, err);
    if (!code && old->class == TEXT_CLASS_QWEN2)
        code = add_plain(t, s->named, TEXT_NAMED, name, err);
    if (!code && old->class == TEXT_CLASS_QWEN2)
        code = add_plain(t, s->extra, s->extra_count, name, err);
    return code;
}

int text_special_add(kit_tokenizer *t, const char *named[TEXT_NAMED], const text_old *old,
                     kit_error *err)
{
    specials s = {0};
    int code = read_all(&s, old, err);
    if (!code)
        code = add_all(t, &s, old, err);
    for (int i = 0; i < TEXT_NAMED; i++)
        named[i] = s.named[i].content;
    free(s.extra);
    free(s.stated);
    return code;
}

/* ---------------------------------------------------------------------- Beside tokenizer.json */

/* *id: the token's id as an added token; -1: it is none. */
static int added_id(int64_t *id, const kit_tokenizer *t, const char *content, const char *name,
                    kit_error *err)
{
    const int code = text_token_id(id, t, content, name, err);
    for (size_t i = 0; i < t->added_count && *id >= 0; i++)
        if (t->added[i].id == *id)
            return code;
    *id = -1;
    return code;
}

/* stated: the id that a file gives the token; -1: none does. */
static int check_there(const kit_tokenizer *t, const char *content, int64_t stated,
                       const char *name, kit_error *err)
{
    int64_t id;
    const int code = added_id(&id, t, content, name, err);
    if (!code && id < 0)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: added_tokens must have '%.80s', a token that tokenizer_config.json, "
                        "special_tokens_map.json or added_tokens.json names",
                        name, content);
    if (!code && stated >= 0 && stated != id)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: '%.80s' has the id %lld, but tokenizer_config.json or "
                        "added_tokens.json gives it %lld",
                        name, content, (long long)id, (long long)stated);
    return code;
}

/* transformers also adds the tokens of keys that only some models have, such as image_token. */
static int check_other_names(const kit_tokenizer *t, const json_t *config, const char *name,
                             kit_error *err)
{
    static const char suffix[] = "_token";
    const size_t n = sizeof suffix - 1;
    const char *key;
    json_t *value;
    int code = KIT_OK;
    json_object_foreach((json_t *)config, key, value)
    {
        const char *content = json_string_value(value);
        const size_t length = strlen(key);
        if (content && *content && length > n && strcmp(key + length - n, suffix) == 0)
            code = check_there(t, content, -1, name, err);
        if (code)
            break;
    }
    return code;
}

/* The options in added_tokens_decoder take precedence. Two cases are refused because they depend on
 * the class: some classes of transformers lose an added token that the decoder lacks, and
 * Qwen2Tokenizer sets some options back. */
static int take_options(kit_tokenizer *t, const specials *s, const char *name, kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < t->added_count && !code; i++) {
        const long long id = (long long)t->added[i].id;
        size_t k = 0;
        while (k < s->stated_count && s->stated[k].id != id)
            k++;
        if (k == s->stated_count)
            return kit_fail(err, KIT_BAD_FILE,
                            "%s: added_tokens has the id %lld, but added_tokens_decoder of "
                            "tokenizer_config.json does not",
                            name, id);
        const text_manner m = manner_of(s, &s->stated[k]);
        const bool same = have_equal_manner(&m, &t->added[i].manner);
        if (!same && t->pattern == TEXT_QWEN2)
            return kit_fail(err, KIT_BAD_FILE,
                            "%s: '%.80s' has other options in added_tokens_decoder of "
                            "tokenizer_config.json",
                            name, s->stated[k].content);
        if (!same)
            code = text_added_add(t, s->stated[k].content, id, m, name, err);
    }
    return code;
}

/* A special token that no file names, but the class: it becomes special if the vocabulary has it.
 * (transformers also adds a token that the vocabulary lacks. Its id would have no embedding.) */
static int take_default(kit_tokenizer *t, const special *one, const char *name, kit_error *err)
{
    int64_t added, id;
    int code = added_id(&added, t, one->content, name, err);
    if (!code)
        code = text_token_id(&id, t, one->content, name, err);
    return code || added >= 0 || id < 0
               ? code
               : text_added_add(t, one->content, id, one->manner, name, err);
}

int text_special_beside(kit_tokenizer *t, const text_old *old, const char *name, kit_error *err)
{
    specials s = {0};
    int code = read_all(&s, old, err);
    for (int i = 0; i < TEXT_NAMED && !code; i++)
        if (s.named[i].content)
            code = s.named[i].there ? check_there(t, s.named[i].content, -1, name, err)
                                    : take_default(t, &s.named[i], name, err);
    for (size_t i = 0; i < s.extra_count && !code; i++)
        code = check_there(t, s.extra[i].content, -1, name, err);
    for (size_t i = 0; i < s.stated_count && !code; i++)
        code = check_there(t, s.stated[i].content, s.stated[i].id, name, err);
    if (!code)
        code = check_other_names(t, old->config, name, err);
    if (!code && json_object_get(old->config, "added_tokens_decoder"))
        code = take_options(t, &s, name, err);
    free(s.extra);
    free(s.stated);
    return code;
}
