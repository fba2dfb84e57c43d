/* Reads tokenizer.json. Each part is either done as in Hugging Face's `tokenizers`, or refused by
 * name. Nothing that would change an id is skipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../io/json.h"
#include "tokenizer_inner.h"

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "(none)";
}

static bool is_type(const json_t *part, const char *type)
{
    return strcmp(type_of(part), type) == 0;
}

static bool absent(const json_t *value) { return !value || json_is_null(value); }

/* ------------------------------------------------------------------------------- The models */

int text_vocabulary_read(kit_tokenizer *t, json_t *vocab, const char *name, kit_error *err)
{
    const char *key;
    json_t *value;
    int code = KIT_OK;
    if (!json_is_object(vocab))
        return kit_fail(err, KIT_BAD_FILE, "%s: the vocabulary must map tokens to ids", name);
    json_object_foreach(vocab, key, value)
    {
        if (!json_is_integer(value))
            return kit_fail(err, KIT_BAD_FILE, "%s: the id of token '%.80s' must be an integer",
                            name, key);
        const int64_t id = json_integer_value(value);
        code = t->kind == TEXT_BPE ? text_bpe_add(t, key, strlen(key), id, name, err)
                                   : text_vocabulary_add(&t->vocabulary, key, strlen(key), id,
                                                         TEXT_BY_BYTES, name, err);
        if (code)
            return code;
    }
    return KIT_OK;
}

static int read_merge(kit_tokenizer *t, const json_t *merge, const char *name, kit_error *err)
{
    const char *line = json_string_value(merge), *space = line ? strchr(line, ' ') : NULL;
    if (space && space > line && space[1] && !strchr(space + 1, ' '))
        return text_bpe_merge(t, line, (size_t)(space - line), space + 1, strlen(space + 1), name,
                              err);
    const char *a = json_string_value(json_array_get(merge, 0));
    const char *b = json_string_value(json_array_get(merge, 1));
    if (a && b && json_array_size(merge) == 2)
        return text_bpe_merge(t, a, strlen(a), b, strlen(b), name, err);
    return kit_fail(err, KIT_BAD_FILE, "%s: merge %u must be two tokens", name,
                    t->merges.count + 1);
}

static int read_merges(kit_tokenizer *t, const json_t *merges, const char *name, kit_error *err)
{
    const size_t count = json_array_size(merges);
    if (!json_is_array(merges))
        return kit_fail(err, KIT_BAD_FILE, "%s: model.merges must be a list", name);
    int code = text_merges_reserve(&t->merges, count, name, err);
    for (size_t i = 0; i < count && !code; i++)
        code = read_merge(t, json_array_get(merges, i), name, err);
    return code;
}

/* Reads options that would change ids. No supported model's tokeniser uses the unsupported
 * values. */
static int read_bpe_options(kit_tokenizer *t, const json_t *model, const char *name, kit_error *err)
{
    const char *prefix = "", *suffix = "";
    double dropout = 0;
    int code;
    if ((code = text_keys_check(model, "model BPE", name, err)) ||
        (code = io_json_text(&prefix, model, name, "continuing_subword_prefix", err)) ||
        (code = io_json_text(&suffix, model, name, "end_of_word_suffix", err)) ||
        (code = io_json_real(&dropout, model, name, "dropout", 0, 1, err)) ||
        (code = io_json_flag(&t->fuse_unknown, model, name, "fuse_unk", err)) ||
        (code = io_json_flag(&t->characters, model, name, "byte_fallback", err)) ||
        (code = io_json_flag(&t->whole_words, model, name, "ignore_merges", err)))
        return code;
    if (*prefix || *suffix || (t->characters && t->whole_words))
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: BPE with byte_fallback is not supported together with a prefix, a suffix or "
            "ignore_merges",
            name);
    if (dropout > 0)
        return text_refuse(name, "model option", "dropout", "it must be null or 0", err);
    return KIT_OK;
}

static int read_bpe(kit_tokenizer *t, const json_t *model, const char *name, kit_error *err)
{
    const char *unknown = NULL;
    t->kind = TEXT_BPE;
    int code = read_bpe_options(t, model, name, err);
    if (!code)
        code = io_json_text(&unknown, model, name, "unk_token", err);
    if (!code)
        code = text_vocabulary_read(t, json_object_get(model, "vocab"), name, err);
    if (!code)
        code = read_merges(t, json_object_get(model, "merges"), name, err);
    if (!code && unknown)
        code = text_token_id(&t->unknown, t, unknown, name, err);
    return code ? code : text_bpe_finish(t, name, err);
}

static int read_wordpiece(kit_tokenizer *t, const json_t *model, const char *name, kit_error *err)
{
    const char *unknown = "[UNK]", *prefix = "##";
    int code;
    t->kind = TEXT_WORDPIECE;
    if ((code = text_keys_check(model, "model WordPiece", name, err)) ||
        (code = io_json_text(&unknown, model, name, "unk_token", err)) ||
        (code = io_json_text(&prefix, model, name, "continuing_subword_prefix", err)) ||
        (code =
             io_json_integer(&t->longest, model, name, "max_input_chars_per_word", 1, 1000, err)))
        return code;
    t->prefix = strdup(prefix);
    if (!t->prefix)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    code = text_vocabulary_read(t, json_object_get(model, "vocab"), name, err);
    t->unknown = text_vocabulary_find(&t->vocabulary, unknown, strlen(unknown));
    return code;
}

static int read_model(kit_tokenizer *t, const json_t *model, const char *name, kit_error *err)
{
    if (is_type(model, "WordPiece"))
        return read_wordpiece(t, model, name, err);
    /* Old files do not give the type. */
    if (is_type(model, "BPE") ||
        (absent(json_object_get(model, "type")) && json_object_get(model, "merges")))
        return read_bpe(t, model, name, err);
    return text_refuse(name, "model", type_of(model), "supported are WordPiece and BPE", err);
}

/* --------------------------------------------------------- Pre-tokenizers and post-processors */

static int read_byte_level(kit_tokenizer *t, const json_t *p, bool after_split, const char *name,
                           kit_error *err)
{
    bool regex = true;
    t->prefix_space = true;
    int code = text_keys_check(p, "ByteLevel", name, err);
    if (!code)
        code = io_json_flag(&t->prefix_space, p, name, "add_prefix_space", err);
    if (!code)
        code = io_json_flag(&regex, p, name, "use_regex", err);
    if (!code && after_split && (regex || t->prefix_space))
        return text_refuse(name, "ByteLevel after Split", "with use_regex or add_prefix_space",
                           "neither may be set", err);
    if (!after_split)
        t->pattern = regex ? TEXT_GPT2 : TEXT_WHOLE;
    return code;
}

static int read_split(kit_tokenizer *t, const json_t *p, const char *name, kit_error *err)
{
    const char *regex = json_string_value(json_object_get(json_object_get(p, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(p, "behavior"));
    int code = text_keys_check(p, "Split", name, err);
    if (!code)
        code = text_keys_check(json_object_get(p, "pattern"), "a pattern", name, err);
    if (code)
        return code;
    if (!regex || !text_pattern_find(&t->pattern, regex))
        return text_refuse(name, "the split pattern", regex,
                           "supported are GPT-2's, Llama 3's and Qwen 2's", err);
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return text_refuse(name, "the split", behavior, "supported is Isolated", err);
    return KIT_OK;
}

/* Whether the last step replaces spaces by U+2581, so that no space is left. */
static bool marks_spaces(const text_normalizer *n)
{
    const text_step *last = n->count ? &n->step[n->count - 1] : NULL;
    return last && last->kind == TEXT_REPLACE && last->from.count == 1 &&
           last->from.at[0].code == ' ' && last->to.count == 1 && last->to.at[0].code == 0x2581;
}

static int read_pre_tokenizer(kit_tokenizer *t, const json_t *p, const char *name, kit_error *err)
{
    static const char known[] =
        "supported are BertPreTokenizer (WordPiece), ByteLevel, and Split then ByteLevel (BPE)";
    const json_t *list = json_object_get(p, "pretokenizers");
    if (t->kind == TEXT_WORDPIECE)
        return is_type(p, "BertPreTokenizer")
                   ? text_keys_check(p, "a step without options", name, err)
                   : text_refuse(name, "pre_tokenizer", type_of(p), known, err);
    if (t->characters)
        return absent(p) && marks_spaces(&t->normalizer)
                   ? KIT_OK
                   : text_refuse(
                         name, "byte_fallback with pre_tokenizer", type_of(p),
                         "it needs no pre_tokenizer, and a normalizer whose last step replaces ' "
                         "' by U+2581",
                         err);
    if (is_type(p, "ByteLevel"))
        return read_byte_level(t, p, false, name, err);
    if (!is_type(p, "Sequence"))
        return text_refuse(name, "pre_tokenizer", type_of(p), known, err);
    const json_t *first = json_array_get(list, 0), *second = json_array_get(list, 1);
    int code = text_keys_check(p, "Sequence", name, err);
    if (code)
        return code;
    if (json_array_size(list) != 2 || !is_type(first, "Split") || !is_type(second, "ByteLevel"))
        return text_refuse(name, "pre_tokenizer Sequence of", type_of(first), known, err);
    code = read_split(t, first, name, err);
    return code ? code : read_byte_level(t, second, true, name, err);
}

/* ------------------------------------------------------------------------------- Templates */

static int read_id(int64_t *id, const kit_tokenizer *t, const json_t *value, const char *name,
                   kit_error *err)
{
    size_t length;
    *id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (!kit_tokenizer_bytes(t, *id, &length))
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: post_processor names a token that the vocabulary does not have", name);
    return KIT_OK;
}

static int add_item(text_template *to, text_item item, const char *name, kit_error *err)
{
    if (to->count == TEXT_ITEMS)
        return kit_fail(err, KIT_BAD_FILE, "%s: post_processor: a template has more than %d tokens",
                        name, (int)TEXT_ITEMS);
    to->item[to->count++] = item;
    return KIT_OK;
}

/* {"Sequence": {"id": "A", "type_id": 0}} or {"SpecialToken": {"id": "[CLS]", "type_id": 0}} */
static int read_item(text_template *to, const kit_tokenizer *t, const json_t *one,
                     const json_t *special, bool pair, const char *name, kit_error *err)
{
    const json_t *sequence = json_object_get(one, "Sequence");
    const json_t *token = json_object_get(one, "SpecialToken");
    const char *id = json_string_value(json_object_get(sequence ? sequence : token, "id"));
    text_item item = {0};
    int code =
        io_json_integer(&item.type, sequence ? sequence : token, name, "type_id", 0, 15, err);
    if (code)
        return code;
    if (!id || (sequence && token) ||
        (sequence && strcmp(id, "A") != 0 && (!pair || strcmp(id, "B") != 0)))
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: post_processor: a part of a template is neither a SpecialToken nor one of its "
            "sequences",
            name);
    if (sequence) {
        item.which = id[0] == 'B';
        return add_item(to, item, name, err);
    }
    const json_t *ids = json_object_get(json_object_get(special, id), "ids");
    item.which = -1;
    for (size_t i = 0; i < json_array_size(ids) && !code; i++) {
        code = read_id(&item.id, t, json_array_get(ids, i), name, err);
        if (!code)
            code = add_item(to, item, name, err);
    }
    return code || json_array_size(ids)
               ? code
               : kit_fail(err, KIT_BAD_FILE, "%s: post_processor: no ids for '%.80s'", name, id);
}

static int read_template(text_template *to, const kit_tokenizer *t, const json_t *list,
                         const json_t *special, bool pair, const char *name, kit_error *err)
{
    int code = KIT_OK;
    to->count = 0;
    if (!json_is_array(list))
        return kit_fail(err, KIT_BAD_FILE, "%s: post_processor: '%s' must be a list", name,
                        pair ? "pair" : "single");
    for (size_t i = 0; i < json_array_size(list) && !code; i++)
        code = read_item(to, t, json_array_get(list, i), special, pair, name, err);
    return code;
}

static int read_post_processor(kit_tokenizer *t, const json_t *p, const char *name, kit_error *err)
{
    const json_t *special = json_object_get(p, "special_tokens");
    int64_t first, last;
    int code;
    if (absent(p))
        return KIT_OK;
    if (is_type(p, "ByteLevel")) /* it only changes offsets */
        return text_keys_check(p, "ByteLevel", name, err);
    if (is_type(p, "TemplateProcessing")) {
        code = text_keys_check(p, "TemplateProcessing", name, err);
        if (code)
            return code;
        code =
            read_template(&t->single, t, json_object_get(p, "single"), special, false, name, err);
        return code ? code
                    : read_template(&t->pair, t, json_object_get(p, "pair"), special, true, name,
                                    err);
    }
    if (!is_type(p, "BertProcessing") && !is_type(p, "RobertaProcessing"))
        return text_refuse(
            name, "post_processor", type_of(p),
            "supported are TemplateProcessing, BertProcessing, RobertaProcessing and ByteLevel",
            err);
    code = text_keys_check(p, type_of(p), name, err);
    if (!code)
        code = read_id(&first, t, json_array_get(json_object_get(p, "cls"), 1), name, err);
    if (!code)
        code = read_id(&last, t, json_array_get(json_object_get(p, "sep"), 1), name, err);
    if (!code)
        text_template_surround(t, first, last, is_type(p, "RobertaProcessing"));
    return code;
}

static int read_post_processors(kit_tokenizer *t, const json_t *p, const char *name, kit_error *err)
{
    const json_t *list = json_object_get(p, "processors");
    int code = KIT_OK, adding = 0;
    if (absent(p) || !is_type(p, "Sequence"))
        return read_post_processor(t, p, name, err);
    code = text_keys_check(p, "Sequence", name, err);
    if (!code && !json_is_array(list))
        code = kit_fail(err, KIT_BAD_FILE, "%s: post_processor: 'processors' must be a list", name);
    for (size_t i = 0; i < json_array_size(list) && !code; i++) {
        const json_t *one = json_array_get(list, i);
        if (!is_type(one, "ByteLevel") && adding++)
            return text_refuse(name, "post_processor", "Sequence",
                               "one processor of a Sequence may add tokens, not several", err);
        code = read_post_processor(t, one, name, err);
    }
    return code;
}

/* --------------------------------------------------------------------------------- The file */

static int read_added(kit_tokenizer *t, const json_t *one, const char *name, kit_error *err)
{
    const char *content = NULL;
    text_manner m = {.normalized = true};
    int64_t id = -1;
    int code;
    if ((code = text_keys_check(one, "an added token", name, err)) ||
        (code = io_json_text(&content, one, name, "content", err)) ||
        (code = io_json_integer(&id, one, name, "id", 0, TEXT_IDS - 1, err)) ||
        (code = io_json_flag(&m.normalized, one, name, "normalized", err)) ||
        (code = io_json_flag(&m.left, one, name, "lstrip", err)) ||
        (code = io_json_flag(&m.right, one, name, "rstrip", err)) ||
        (code = io_json_flag(&m.single, one, name, "single_word", err)))
        return code;
    if (!content || id < 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: an added token must have content and id", name);
    const int64_t next = t->vocabulary.count; /* `tokenizers` counts on, whatever the file says */
    code = text_added_add(t, content, id, m, name, err);
    if (!code && t->vocabulary.count > next && id != next)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: added token '%.80s' has the id %lld; in the vocabulary it is %lld",
                        name, content, (long long)id, (long long)next);
    return code;
}

int text_tokenizer_read(kit_tokenizer *t, const json_t *top, const char *name, kit_error *err)
{
    const json_t *added = json_object_get(top, "added_tokens");
    int code = text_keys_check(top, "tokenizer.json", name, err);
    if (!code && !absent(added) && !json_is_array(added))
        code = kit_fail(err, KIT_BAD_FILE, "%s: 'added_tokens' must be a list", name);
    if (!code)
        code = read_model(t, json_object_get(top, "model"), name, err);
    t->own_end = t->vocabulary.size;
    if (!code)
        code = text_normalizer_read(&t->normalizer, json_object_get(top, "normalizer"), name, err);
    for (size_t i = 0; i < json_array_size(added) && !code; i++)
        code = read_added(t, json_array_get(added, i), name, err);
    if (!code)
        code = read_pre_tokenizer(t, json_object_get(top, "pre_tokenizer"), name, err);
    return code ? code : read_post_processors(t, json_object_get(top, "post_processor"), name, err);
}

int kit_tokenizer_parse(kit_tokenizer **out, const char *name, const void *bytes, size_t size,
                        kit_error *err)
{
    json_t *top;
    *out = NULL;
    int code = io_json_parse(&top, name, bytes, size, err);
    if (!code)
        code = text_tokenizer_new(out, TEXT_WORDPIECE, name, err);
    if (!code)
        code = text_tokenizer_read(*out, top, name, err);
    if (code) {
        kit_tokenizer_free(*out);
        *out = NULL;
    }
    json_decref(top);
    return code;
}
