/* Every key of a tokeniser's files: those used, those without effect on ids, and those refused. */
#include <string.h>

#include "tokenizer_inner.h"

enum {
    BERT = TEXT_CLASS_BERT,
    ROBERTA = TEXT_CLASS_ROBERTA,
    GPT2 = TEXT_CLASS_GPT2,
    QWEN2 = TEXT_CLASS_QWEN2,
    BYTES = ROBERTA | GPT2 | QWEN2,
    ALL = BERT | BYTES
};

typedef enum rule {
    USED, /* tokenizer_old.c, tokenizer_special.c or tokenizer_json.c reads it */
    IDLE, /* without effect on ids, whatever its value */
    OFF,  /* null, false, 0, "", [] or {}: without effect; anything else is refused */
    ON,   /* true or null: without effect; false is refused */
    FLAG  /* true, false or null: without effect; a string would be a token */
} rule;

typedef struct key_row {
    const char *key;
    int classes;
    rule rule;
} key_row;

/* The keys that name tokens; these tokens are never split. */
#define TOKEN_NAMES                                                                                \
    {"bos_token", ALL, USED}, {"eos_token", ALL, USED}, {"unk_token", ALL, USED},                  \
        {"sep_token", ALL, USED}, {"pad_token", ALL, USED}, {"cls_token", ALL, USED},              \
        {"mask_token", ALL, USED}, {"additional_special_tokens", ALL, USED},                       \
    {                                                                                              \
        "extra_special_tokens", ALL, USED                                                          \
    }

/* The keys of tokenizer_config.json. A key that transformers ignores is IDLE for the classes whose
 * files often have it; for other classes it is unknown. */
static const key_row config_keys[] = {
    {"tokenizer_class", ALL, USED}, /* selects splitting, normalizer and defaults */
    TOKEN_NAMES,
    {"added_tokens_decoder", ALL, USED},
    {"do_lower_case", BERT, USED},
    {"strip_accents", BERT, USED},
    {"tokenize_chinese_chars", BERT, USED},
    {"add_prefix_space", ROBERTA | GPT2, USED}, /* adds a space before a text that begins without */
    {"add_bos_token", GPT2 | QWEN2, USED},      /* puts bos_token before each text */
    {"add_eos_token", GPT2 | QWEN2, USED},

    {"add_prefix_space", BERT | QWEN2, OFF}, /* Qwen 2: before each word */
    {"do_lower_case", BYTES, OFF},
    {"strip_accents", BYTES, OFF},
    {"split_special_tokens", ALL, OFF}, /* special tokens in a text are not found */
    {"auto_map", ALL, OFF},             /* code of the model's own, outside transformers */
    {"init_inputs", ALL, OFF},
    {"never_split", BERT, OFF}, /* kept whole by older versions */
    {"do_basic_tokenize", BERT, ON},

    {"add_bos_token", BERT | ROBERTA, FLAG}, /* their templates use cls_token and sep_token */
    {"add_eos_token", BERT | ROBERTA, FLAG},
    {"backend", ALL, IDLE}, /* the library that reads it */
    {"use_fast", ALL, IDLE},
    {"is_local", ALL, IDLE}, /* origin of the files, and their names */
    {"local_files_only", ALL, IDLE},
    {"name_or_path", ALL, IDLE},
    {"vocab_file", ALL, IDLE},
    {"merges_file", ALL, IDLE},
    {"tokenizer_file", ALL, IDLE},
    {"special_tokens_map_file", ALL, IDLE},
    {"chat_template", ALL, IDLE}, /* used only on request */
    {"response_schema", ALL, IDLE},
    {"max_len", ALL, IDLE}, /* truncation and padding: only on request */
    {"max_length", ALL, IDLE},
    {"model_max_length", ALL, IDLE},
    {"stride", ALL, IDLE},
    {"truncation_side", ALL, IDLE},
    {"truncation_strategy", ALL, IDLE},
    {"padding_side", ALL, IDLE},
    {"pad_to_multiple_of", ALL, IDLE},
    {"pad_token_type_id", ALL, IDLE},
    {"model_input_names", ALL, IDLE}, /* inputs of a model apart from ids */
    {"processor_class", ALL, IDLE},
    {"clean_up_tokenization_spaces", ALL, IDLE}, /* only from ids to text */
    {"errors", ALL, IDLE},
    {"trim_offsets", ALL, IDLE}, /* offsets of tokens */
};

/* special_tokens_map.json. */
static const key_row map_keys[] = {TOKEN_NAMES};

/* The objects of a tokenizer.json, and the tokens of the files above: keys used, idle and off. */
static const struct part {
    const char *what, *used[10], *idle[6], *off[2];
} parts[] = {
    {"tokenizer.json",
     {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model"},
     {"version", "truncation", "padding", "decoder"},
     {0}},
    {"an added token",
     {"id", "content", "single_word", "lstrip", "rstrip", "normalized"},
     {"special"},
     {0}},
    {"a special token",
     {"content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"},
     {0},
     {0}},
    {"model BPE",
     {"type", "vocab", "merges", "dropout", "unk_token", "fuse_unk", "byte_fallback",
      "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"},
     {0},
     {0}},
    {"model WordPiece",
     {"type", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"},
     {0},
     {0}},
    {"Sequence", {"type", "normalizers", "pretokenizers", "processors"}, {0}, {0}},
    {"BertNormalizer",
     {"type", "clean_text", "handle_chinese_chars", "lowercase", "strip_accents"},
     {0},
     {0}},
    {"Strip", {"type", "strip_left", "strip_right"}, {0}, {0}},
    {"Prepend", {"type", "prepend"}, {0}, {0}},
    {"Replace", {"type", "pattern", "content"}, {0}, {0}},
    {"a pattern", {"String", "Regex"}, {0}, {0}},
    {"ByteLevel", {"type", "add_prefix_space", "use_regex"}, {"trim_offsets"}, {0}},
    {"Split", {"type", "pattern", "behavior"}, {0}, {"invert"}},
    {"TemplateProcessing", {"type", "single", "pair", "special_tokens"}, {0}, {0}},
    {"BertProcessing", {"type", "cls", "sep"}, {0}, {0}},
    {"RobertaProcessing",
     {"type", "cls", "sep"},
     {"trim_offsets", "add_prefix_space"}, /* both: only offsets of tokens */
     {0}},
    {"a step without options", {"type"}, {0}, {0}},
};

const char *text_class_name(text_class c)
{
    switch (c) {
    case TEXT_CLASS_BERT: return "BertTokenizer";
    case TEXT_CLASS_ROBERTA: return "RobertaTokenizer";
    case TEXT_CLASS_GPT2: return "GPT2Tokenizer";
    default: return "Qwen2Tokenizer";
    }
}

/* The only place where an unknown key is refused. */
static int refuse_unknown(const char *name, const char *key, const char *of, kit_error *err)
{
    return kit_fail(
        err, KIT_BAD_FILE,
        "%s: '%.80s' is not a known key of %s; remove it if no token's id depends on it", name, key,
        of);
}

static bool is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && !*json_string_value(value)) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

static int check_value(rule r, const json_t *value, const char *key, const char *of,
                       const char *name, kit_error *err)
{
    if (r == OFF && !is_off(value))
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: %s of %s is not supported; it must be false, null or empty", name, key,
                        of);
    if (r == ON && !json_is_true(value) && !json_is_null(value))
        return kit_fail(err, KIT_BAD_FILE, "%s: %s of %s must be true", name, key, of);
    if (r == FLAG && !json_is_boolean(value) && !json_is_null(value))
        return kit_fail(err, KIT_BAD_FILE, "%s: %s must be true or false", name, key);
    return KIT_OK;
}

static int check_rows(const json_t *object, const key_row *rows, size_t count, int class,
                      const char *of, const char *name, kit_error *err)
{
    const char *key;
    json_t *value;
    int code = KIT_OK;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (i < count && (!(rows[i].classes & class) || strcmp(rows[i].key, key) != 0))
            i++;
        code = i < count ? check_value(rows[i].rule, value, key, of, name, err)
                         : refuse_unknown(name, key, of, err);
        if (code)
            break;
    }
    return code;
}

int text_config_keys_check(const json_t *config, text_class c, const char *name, kit_error *err)
{
    return check_rows(config, config_keys, sizeof config_keys / sizeof *config_keys, (int)c,
                      text_class_name(c), name, err);
}

int text_map_keys_check(const json_t *map, const char *name, kit_error *err)
{
    return check_rows(map, map_keys, sizeof map_keys / sizeof *map_keys, ALL, "special tokens",
                      name, err);
}

static bool is_among(const char *const *keys, size_t count, const char *key)
{
    for (size_t i = 0; i < count && keys[i]; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

int text_keys_check(const json_t *object, const char *what, const char *name, kit_error *err)
{
    const struct part *p = parts;
    const char *key;
    json_t *value;
    while (p < parts + sizeof parts / sizeof *parts - 1 && strcmp(p->what, what) != 0)
        p++;
    int code = KIT_OK;
    json_object_foreach((json_t *)object, key, value)
    {
        if (is_among(p->off, sizeof p->off / sizeof *p->off, key))
            code = check_value(OFF, value, key, what, name, err);
        else if (!is_among(p->used, sizeof p->used / sizeof *p->used, key) &&
                 !is_among(p->idle, sizeof p->idle / sizeof *p->idle, key))
            code = refuse_unknown(name, key, what, err);
        if (code)
            break;
    }
    return code;
}
