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
typedef struct model_type {
    const char *type, *name;
    bool only;
} model_type;
static const model_type types[] = {
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

static const model_type *find_type(const char *type)
{
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].type, type) == 0)
            return &types[i];
    return NULL;
}

/* The class of a folder whose files name a class and a model type (NULL: they do not); 0: another
 * one, or none. */
static text_class class_of(const char *name, const char *type)
{
    const model_type *known = find_type(type);
    if (known && known->name && (!name || known->only))
        name = known->name;
    for (size_t k = 0; name && k < sizeof classes / sizeof *classes; k++)
        if (is_class(name, classes[k].name))
            return classes[k].class;
    return 0;
}

static int find_class(text_class *class, const char *name, const char *type, const char *folder,
                      kit_error *err)
{
    const model_type *known = find_type(type);
    *class = class_of(name, type);
    if (*class)
        return KIT_OK;
    if (known && known->name && !*known->name)
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

static int read_files(folder_files *f, const char *folder, kit_error *err)
{
    static const char *const name[FILES] = {config_file, "special_tokens_map.json",
                                            "added_tokens.json", "config.json"};
    int code = KIT_OK;
    for (int i = 0; i < FILES && !code; i++)
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

/* Reads all files, and what they say of the class; NULL: nothing. */
static int read_files_and_class(folder_files *f, const char **class, const char **type,
                                const char *folder, kit_error *err)
{
    *class = *type = NULL;
    int code = read_files(f, folder, err);
    if (!code)
        code = io_json_text(class, f->file[MODEL], f->path[MODEL], "tokenizer_class", err);
    if (!code)
        code = io_json_text(class, f->file[CONFIG], f->path[CONFIG], "tokenizer_class", err);
    if (!code)
        code = io_json_text(type, f->file[MODEL], f->path[MODEL], "model_type", err);
    return code;
}

static int read_old_files(kit_tokenizer *t, const char *folder, kit_error *err)
{
    folder_files f = {0};
    const char *class, *type;
    int code = read_files_and_class(&f, &class, &type, folder, err);
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
 * some classes from one file and some from the other. unsaid: its value if the file has none. */
static int check_option(const json_t *config, const char *name, const char *key, bool unsaid,
                        bool done, kit_error *err)
{
    bool said = unsaid;
    const int code = io_json_flag(&said, config, name, key, err);
    return code || said == done
               ? code
               : kit_fail(err, KIT_BAD_FILE, "%s: %s is %s, but tokenizer.json has %s", name, key,
                          said ? "true" : "false", done ? "true" : "false");
}

/* named: a file names one of the classes, whose default for add_prefix_space is false. */
static int check_options(const kit_tokenizer *t, bool named, const json_t *config, const char *name,
                         kit_error *err)
{
    const text_step *n = &t->normalizer.step[0];
    const bool prefix = t->prefix_space;
    const bool bert = t->normalizer.count == 1 && n->kind == TEXT_BERT;
    int code = check_option(config, name, "split_special_tokens", false, false, err);
    if (!code && t->kind == TEXT_BPE && t->pattern == TEXT_GPT2 && !t->characters)
        code = check_option(config, name, "add_prefix_space", prefix && !named, prefix, err);
    if (!code && bert)
        code = check_option(config, name, "do_lower_case", n->lower, n->lower, err);
    if (!code && bert)
        code = check_option(config, name, "strip_accents", n->strip, n->strip, err);
    if (!code && bert)
        code = check_option(config, name, "tokenize_chinese_chars", n->cjk, n->cjk, err);
    return code;
}

/* Does the tokeniser split texts as this class of transformers does, which takes only the
 * vocabulary and the merges from tokenizer.json? */
static bool fits_class(const kit_tokenizer *t, text_class class)
{
    const text_step *n = &t->normalizer.step[0];
    const bool bytes = t->kind == TEXT_BPE && !t->characters;
    switch (class) {
    case TEXT_CLASS_BERT:
        return t->kind == TEXT_WORDPIECE && t->normalizer.count == 1 && n->kind == TEXT_BERT;
    case TEXT_CLASS_ROBERTA: /* puts a token before and one after a text */
    case TEXT_CLASS_GPT2:
        return bytes && t->pattern == TEXT_GPT2 && !t->normalizer.count &&
               (t->single.count == 3) == (class == TEXT_CLASS_ROBERTA);
    default:
        return bytes && t->pattern == TEXT_QWEN2 && t->normalizer.count == 1 &&
               n->kind == TEXT_FORM && n->compose && !n->compatible;
    }
}

/* If the files name one of the classes, tokenizer.json must be as that class has it. Without a
 * name, or with another one, tokenizer.json is followed. */
static int check_class(const kit_tokenizer *t, const char *named, text_class class,
                       const char *folder, kit_error *err)
{
    if (!class_of(named, NULL) || fits_class(t, class))
        return KIT_OK;
    return kit_fail(err, KIT_BAD_FILE,
                    "%s: tokenizer_class '%.80s' does not fit tokenizer.json, which splits texts "
                    "in another way than %s",
                    folder, named, text_class_name(class));
}

/* Reads the files beside tokenizer.json, which must agree with it. `path` is its name. */
static int read_beside(kit_tokenizer *t, const char *path, const char *folder, kit_error *err)
{
    folder_files f = {0};
    const char *class, *type;
    int code = read_files_and_class(&f, &class, &type, folder, err);
    text_old old = old_of(&f);
    old.class = class_of(class, type);
    if (!code)
        code = check_class(t, class, old.class, folder, err);
    if (!code)
        code = check_options(t, class_of(class, NULL) != 0, f.file[CONFIG], f.path[CONFIG], err);
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
