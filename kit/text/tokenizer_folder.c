/* A model's folder: tokenizer.json if there is one, else the files that came before it.
 *
 *   vocab.txt                  WordPiece: a token a line, its number is its id
 *   vocab.json, merges.txt     byte-level BPE: {"token": id}; "a b" a line, first merged first
 *   tokenizer_config.json      do_lower_case, strip_accents, add_prefix_space, tokenizer_class
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utf8proc.h>

#include "../io/json.h"
#include "tokenizer_inner.h"

enum { PATH_ROOM = 4096 };
#define FILE_LIMIT ((size_t)256 << 20)

static bool find(char path[PATH_ROOM], const char *folder, const char *name)
{
    const int n = snprintf(path, PATH_ROOM, "%s/%s", folder, name);
    return n > 0 && n < PATH_ROOM && access(path, F_OK) == 0;
}

/* ------------------------------------------------------------------------------------ Lines */

/* The next line without its end in *line, *length; returns where to go on, or NULL at the end. */
static const char *next_line(const char *p, const char *end, const char **line, size_t *length)
{
    if (p >= end)
        return NULL;
    const char *stop = memchr(p, '\n', (size_t)(end - p));
    *line = p;
    *length = (size_t)((stop ? stop : end) - p);
    if (*length && p[*length - 1] == '\r')
        --*length;
    return stop ? stop + 1 : end;
}

static bool is_utf8(const char *bytes, size_t length)
{
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)bytes + at,
                                                    (utf8proc_ssize_t)(length - at), &c);
        if (n <= 0 || c == 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

typedef int (*line_reader)(kit_tokenizer *t, const char *line, size_t length, int64_t number,
                           const char *name, kit_error *err);

static int read_lines(kit_tokenizer *t, const char *path, line_reader reader, kit_error *err)
{
    char *bytes;
    const char *line = NULL;
    size_t size, length = 0;
    int64_t number = 0;
    int code = io_read_bytes(&bytes, &size, path, FILE_LIMIT, err);
    for (const char *p = bytes; !code && (p = next_line(p, bytes + size, &line, &length)); number++)
        code = is_utf8(line, length) ? reader(t, line, length, number, path, err)
                                     : kit_fail(err, KIT_BAD_FILE, "%s: line %lld is not UTF-8",
                                                path, (long long)number + 1);
    free(bytes);
    return code;
}

/* -------------------------------------------------------------------------------- WordPiece */

static int add_piece(kit_tokenizer *t, const char *line, size_t length, int64_t number,
                     const char *name, kit_error *err)
{
    char *copy = length ? strndup(line, length) : NULL;
    if (!length)
        return KIT_OK; /* a number without a token */
    if (!copy)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    const int code = text_vocabulary_add(&t->vocabulary, copy, length, number, false, name, err);
    free(copy);
    return code;
}

static int64_t id_of(const kit_tokenizer *t, const char *token)
{
    if (t->kind != TEXT_BPE)
        return text_vocabulary_find(&t->vocabulary, token, strlen(token));
    char bytes[64];
    size_t size;
    return strlen(token) < sizeof bytes && text_bytes_of(bytes, &size, token, strlen(token))
               ? text_vocabulary_find(&t->vocabulary, bytes, size)
               : -1;
}

/* Those of the tokens that the vocabulary has are found before anything else. */
static int add_special(kit_tokenizer *t, const char *const *token, size_t count, const char *name,
                       kit_error *err)
{
    int code = KIT_OK;
    for (size_t i = 0; i < count && !code; i++) {
        const int64_t id = id_of(t, token[i]);
        const bool mask = strcmp(token[i], "<mask>") == 0; /* takes the space before it */
        if (id >= 0)
            code = text_added_add(t, token[i], id, false, mask, false, name, err);
    }
    return code;
}

static int read_wordpiece(kit_tokenizer *t, const char *path, const json_t *config,
                          const char *config_name, kit_error *err)
{
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    text_step *n = &t->normalizer.step[0];
    int code = read_lines(t, path, add_piece, err);
    *n = (text_step){.kind = TEXT_BERT, .clean = true, .cjk = true, .lower = true};
    t->normalizer.count = 1;
    t->prefix = strdup("##");
    if (!code && !t->prefix)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    if (code || (code = io_json_flag(&n->lower, config, config_name, "do_lower_case", err)) ||
        (code = io_json_flag(&n->cjk, config, config_name, "tokenize_chinese_chars", err)))
        return code;
    n->strip = n->lower;
    if ((code = io_json_flag(&n->strip, config, config_name, "strip_accents", err)))
        return code;
    const int64_t first = id_of(t, "[CLS]"), last = id_of(t, "[SEP]");
    t->unknown = id_of(t, "[UNK]");
    if (first < 0 || last < 0 || t->unknown < 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: has no [CLS], [SEP] or [UNK]", path);
    text_template_surround(t, first, last, false);
    return add_special(t, special, sizeof special / sizeof *special, path, err);
}

/* -------------------------------------------------------------------------------------- BPE */

static int add_merge(kit_tokenizer *t, const char *line, size_t length, int64_t number,
                     const char *name, kit_error *err)
{
    static const char version[] = "#version";
    if (!length || (number == 0 && length >= sizeof version - 1 &&
                    memcmp(line, version, sizeof version - 1) == 0))
        return KIT_OK;
    const char *space = memchr(line, ' ', length);
    const size_t first = space ? (size_t)(space - line) : 0, second = length - first - 1;
    if (!space || !first || !second || memchr(space + 1, ' ', second))
        return kit_fail(err, KIT_BAD_FILE, "%s: line %lld must be two tokens", name,
                        (long long)number + 1);
    return text_bpe_merge(t, line, first, space + 1, second, name, err);
}

static int count_line(kit_tokenizer *t, const char *line, size_t length, int64_t number,
                      const char *name, kit_error *err)
{
    (void)line, (void)length, (void)number, (void)name, (void)err;
    t->merges.slots++;
    return KIT_OK;
}

static int read_bpe_vocabulary(kit_tokenizer *t, const char *path, kit_error *err)
{
    json_t *top;
    const char *key;
    json_t *value;
    int code = io_json_read(&top, path, FILE_LIMIT, err);
    json_object_foreach(top, key, value)
    {
        if (!json_is_integer(value))
            code = kit_fail(err, KIT_BAD_FILE, "%s: token '%.80s' has no integer as its id", path,
                            key);
        if (!code)
            code = text_bpe_add(t, key, strlen(key), json_integer_value(value), path, err);
        if (code)
            break;
    }
    json_decref(top);
    return code;
}

static int read_bpe(kit_tokenizer *t, const char *vocab, const char *merges, const json_t *config,
                    const char *config_name, kit_error *err)
{
    static const char *const special[] = {"<s>",   "</s>",   "<unk>",
                                          "<pad>", "<mask>", "<|endoftext|>"};
    t->pattern = TEXT_GPT2;
    int code = read_bpe_vocabulary(t, vocab, err);
    if (!code)
        code = read_lines(t, merges, count_line, err);
    const size_t lines = t->merges.slots;
    t->merges.slots = 0;
    if (!code)
        code = text_merges_reserve(&t->merges, lines, merges, err);
    if (!code)
        code = read_lines(t, merges, add_merge, err);
    if (!code)
        code = text_bpe_finish(t, vocab, err);
    if (!code)
        code = io_json_flag(&t->prefix_space, config, config_name, "add_prefix_space", err);
    const int64_t first = id_of(t, "<s>"), last = id_of(t, "</s>");
    if (!code && first >= 0 && last >= 0) /* RoBERTa's */
        text_template_surround(t, first, last, true);
    return code ? code : add_special(t, special, sizeof special / sizeof *special, vocab, err);
}

/* ------------------------------------------------------------------------------- The folder */

static int read_old_files(kit_tokenizer *t, const char *folder, kit_error *err)
{
    char vocab[PATH_ROOM], merges[PATH_ROOM], name[PATH_ROOM];
    json_t *config = NULL;
    int code = find(name, folder, "tokenizer_config.json")
                   ? io_json_read(&config, name, FILE_LIMIT, err)
                   : KIT_OK;
    if (code)
        return code;
    if (find(vocab, folder, "vocab.txt")) {
        t->kind = TEXT_WORDPIECE;
        code = read_wordpiece(t, vocab, config, name, err);
    } else if (find(vocab, folder, "vocab.json") && find(merges, folder, "merges.txt")) {
        t->kind = TEXT_BPE;
        code = read_bpe(t, vocab, merges, config, name, err);
    } else {
        code = kit_fail(err, KIT_BAD_FILE,
                        "%s: has no tokeniser: tokenizer.json, vocab.txt, or vocab.json with "
                        "merges.txt",
                        folder);
    }
    json_decref(config);
    return code;
}

int kit_tokenizer_open(kit_tokenizer **out, const char *folder, kit_error *err)
{
    char path[PATH_ROOM];
    *out = NULL;
    if (find(path, folder, "tokenizer.json")) {
        char *bytes;
        size_t size;
        int code = io_read_bytes(&bytes, &size, path, FILE_LIMIT, err);
        if (!code)
            code = kit_tokenizer_parse(out, path, bytes, size, err);
        free(bytes);
        return code;
    }
    int code = text_tokenizer_new(out, TEXT_WORDPIECE, folder, err);
    if (!code)
        code = read_old_files(*out, folder, err);
    if (code) {
        kit_tokenizer_free(*out);
        *out = NULL;
    }
    return code;
}
