/* A model's folder: tokenizer.json if it exists, else the older files, whose meaning depends on the
 * class of the tokeniser. As in transformers 5, the class is that of tokenizer_config.json, else
 * that of config.json, else the default class of the model type. */
#include <stdlib.h>
#include <string.h>

#include "../io/json.h"
#include "tokenizer_inner.h"

/* ------------------------------------------------------------------------------- The class */

static const struct {
    const char *name;
    text_class class;
} classes[] = {
    {"BertTokenizer", TEXT_CLASS_BERT},       {"DistilBertTokenizer", TEXT_CLASS_BERT},
    {"RobertaTokenizer", TEXT_CLASS_ROBERTA}, {"GPT2Tokenizer", TEXT_CLASS_GPT2},
    {"Qwen2Tokenizer", TEXT_CLASS_QWEN2},
};

/* The class of each model type. `only`: this class is used whatever the files name. name "":
 * transformers has no class for old files of this type, and the class it has needs tokenizer.json.
 * name NULL: the files must name a class. */
static const struct {
    const char *type, *name;
    bool only;
} types[] = {
    {"bert", "BertTokenizer", false},
    {"distilbert", "BertTokenizer", false},
    {"roberta", "RobertaTokenizer", false},
    {"gpt2", "GPT2Tokenizer", false},
    {"qwen2", "Qwen2Tokenizer", true},
    {"mistral", "", true},
    {"llama", NULL, false},
};

static bool is_class(const char *name, const char *class)
{
    const size_t n = strlen(class);
    return strncmp(name, class, n) == 0 && (!name[n] || strcmp(name + n, "Fast") == 0);
}

static int find_class(text_class *class, const char *name, const char *type, const char *folder,
                      kit_error *err)
{
    size_t i = 0;
    while (type && i < sizeof types / sizeof *types && strcmp(types[i].type, type) != 0)
        i++;
    const bool known = type && i < sizeof types / sizeof *types;
    if (known && types[i].name && (!name || types[i].only))
        name = types[i].name;
    for (size_t k = 0; name && k < sizeof classes / sizeof *classes; k++)
        if (is_class(name, classes[k].name)) {
            *class = classes[k].class;
            return KIT_OK;
        }
    if (known && types[i].name && !*types[i].name)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: has no tokenizer.json; a %s needs it, vocab.json is not enough",
                        folder, type);
    if (!name)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: has no tokenizer.json, and neither tokenizer_class nor model_type "
                        "says how vocab.txt or vocab.json are read",
                        folder);
    return kit_fail(
        err, KIT_BAD_FILE,
        "%s: tokenizer_class '%.80s' without tokenizer.json is not supported; supported are "
        "BertTokenizer, DistilBertTokenizer, RobertaTokenizer, GPT2Tokenizer and Qwen2Tokenizer",
        folder, name);
}

/* --------------------------------------------------------------------------------- The files */

static const char config_file[] = "tokenizer_config.json";

/* *out stays NULL if there is no such file. A model_max_length of 10^30 in tokenizer_config.json
 * means that there is none. */
static int read_if_there(json_t **out, char path[TEXT_PATH], const char *folder, const char *name,
                         kit_error *err)
{
    *out = NULL;
    if (!text_find_file(path, folder, name))
        return KIT_OK;
    return name == config_file ? io_json_read_reals(out, path, TEXT_FILE_LIMIT, err)
                               : io_json_read(out, path, TEXT_FILE_LIMIT, err);
}

/* The files beside the vocabulary. */
enum { CONFIG, MAP, ADDED, MODEL, FILES };
typedef struct folder_files {
    char path[FILES][TEXT_PATH];
    json_t *file[FILES];
} folder_files;

/* Reads the first `count` of them. */
static int read_files(folder_files *f, int count, const char *folder, kit_error *err)
{
    static const char *const name[FILES] = {config_file, "special_tokens_map.json",
                                            "added_tokens.json", "config.json"};
    int code = KIT_OK;
    for (int i = 0; i < count && !code; i++)
        code = read_if_there(&f->file[i], f->path[i], folder, name[i], err);
    return code;
}

static text_old old_of(const folder_files *f)
{
    return (text_old){.config = f->file[CONFIG],
                      .map = f->file[MAP],
                      .added = f->file[ADDED],
                      .config_name = f->path[CONFIG],
                      .map_name = f->path[MAP],
                      .added_name = f->path[ADDED]};
}

static void free_files(folder_files *f)
{
    for (int i = 0; i < FILES; i++)
        json_decref(f->file[i]);
}

static int read_old_files(kit_tokenizer *t, const char *folder, kit_error *err)
{
    folder_files f = {0};
    const char *class = NULL, *type = NULL;
    int code = read_files(&f, FILES, folder, err);
    if (!code)
        code = io_json_text(&class, f.file[MODEL], f.path[MODEL], "tokenizer_class", err);
    if (!code)
        code = io_json_text(&class, f.file[CONFIG], f.path[CONFIG], "tokenizer_class", err);
    if (!code)
        code = io_json_text(&type, f.file[MODEL], f.path[MODEL], "model_type", err);
    text_old old = old_of(&f);
    if (!code)
        code = find_class(&old.class, class, type, folder, err);
    if (!code)
        code = text_old_read(t, folder, &old, err);
    free_files(&f);
    return code;
}

static bool has_any(const char *folder)
{
    char path[TEXT_PATH];
    return text_find_file(path, folder, "vocab.txt") || text_find_file(path, folder, "vocab.json");
}

/* ------------------------------------------------------------------------- tokenizer.json */

/* Checks that tokenizer_config.json agrees with tokenizer.json on this option: transformers builds
 * some classes from one file and some from the other. */
static int check_option(const json_t *config, const char *name, const char *key, bool done,
                        kit_error *err)
{
    bool said = done;
    const int code = io_json_flag(&said, config, name, key, err);
    return code || said == done
               ? code
               : kit_fail(err, KIT_BAD_FILE, "%s: %s is %s, but tokenizer.json has %s", name, key,
                          said ? "true" : "false", done ? "true" : "false");
}

static int check_options(const kit_tokenizer *t, const json_t *config, const char *name,
                         kit_error *err)
{
    const text_step *n = &t->normalizer.step[0];
    const bool bert = t->normalizer.count == 1 && n->kind == TEXT_BERT;
    int code = check_option(config, name, "split_special_tokens", false, err);
    if (!code && t->kind == TEXT_BPE && t->pattern == TEXT_GPT2 && !t->characters)
        code = check_option(config, name, "add_prefix_space", t->prefix_space, err);
    if (!code && bert)
        code = check_option(config, name, "do_lower_case", n->lower, err);
    if (!code && bert)
        code = check_option(config, name, "strip_accents", n->strip, err);
    if (!code && bert)
        code = check_option(config, name, "tokenize_chinese_chars", n->cjk, err);
    return code;
}

/* Reads the files beside tokenizer.json, which must agree with it. `path` is its name. */
static int read_beside(kit_tokenizer *t, const char *path, const char *folder, kit_error *err)
{
    folder_files f = {0};
    int code = read_files(&f, MODEL, folder, err);
    const text_old old = old_of(&f);
    if (!code)
        code = check_options(t, f.file[CONFIG], f.path[CONFIG], err);
    if (!code)
        code = text_special_beside(t, &old, path, err);
    free_files(&f);
    return code;
}

static int read_tokenizer_json(kit_tokenizer **out, const char *path, const char *folder,
                               kit_error *err)
{
    char *bytes;
    size_t size;
    int code = io_read_bytes(&bytes, &size, path, TEXT_FILE_LIMIT, err);
    if (!code)
        code = kit_tokenizer_parse(out, path, bytes, size, err);
    free(bytes);
    return code ? code : read_beside(*out, path, folder, err);
}

int kit_tokenizer_open(kit_tokenizer **out, const char *folder, kit_error *err)
{
    char path[TEXT_PATH];
    int code;
    *out = NULL;
    if (text_find_file(path, folder, "tokenizer.json")) {
        code = read_tokenizer_json(out, path, folder, err);
    } else if (!has_any(folder)) {
        code = kit_fail(err, KIT_BAD_FILE,
                        "%s: has no tokeniser: tokenizer.json, vocab.txt, or vocab.json with "
                        "merges.txt",
                        folder);
    } else {
        code = text_tokenizer_new(out, TEXT_WORDPIECE, folder, err);
        if (!code)
            code = read_old_files(*out, folder, err);
    }
    if (code) {
        kit_tokenizer_free(*out);
        *out = NULL;
    }
    return code;
}
