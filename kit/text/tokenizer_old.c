/* Tokenisers from before tokenizer.json, as transformers 5 reads them:
 *
 *   vocab.txt                WordPiece: one token per line; the line number is the id
 *   vocab.json, merges.txt   byte-level BPE: {"token": id}; one "a b" per line, in merge order
 *   tokenizer_config.json    options and names of tokens, by the class (tokenizer_keys.c)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utf8proc.h>

#include "../io/json.h"
#include "tokenizer_inner.h"

bool text_find_file(char path[TEXT_PATH], const char *folder, const char *name)
{
    const int n = snprintf(path, TEXT_PATH, "%s/%s", folder, name);
    return n > 0 && n < TEXT_PATH && access(path, F_OK) == 0;
}

/* ------------------------------------------------------------------------------------ Lines */

/* Gives the next line without its end in *line, *length. Returns the start of the following line,
 * or NULL at the end. */
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

/* *trimmed: length without trailing white space. */
static bool is_utf8(const char *bytes, size_t length, size_t *trimmed)
{
    *trimmed = 0;
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)bytes + at,
                                                    (utf8proc_ssize_t)(length - at), &c);
        if (n <= 0 || c == 0)
            return false;
        at += (size_t)n;
        if (!text_is_space(c))
            *trimmed = at;
    }
    return true;
}

typedef int (*line_reader)(kit_tokenizer *t, const char *line, size_t length, int64_t number,
                           const char *name, kit_error *err);

static int read_lines(kit_tokenizer *t, const char *path, bool trim, line_reader reader,
                      kit_error *err)
{
    char *bytes;
    const char *line = NULL;
    size_t size, length = 0, trimmed = 0;
    int64_t number = 0;
    int code = io_read_bytes(&bytes, &size, path, TEXT_FILE_LIMIT, err);
    for (const char *p = bytes; !code && (p = next_line(p, bytes + size, &line, &length)); number++)
        code = is_utf8(line, length, &trimmed)
                   ? reader(t, line, trim ? trimmed : length, number, path, err)
                   : kit_fail(err, KIT_BAD_FILE, "%s: line %lld is not UTF-8", path,
                              (long long)number + 1);
    free(bytes);
    return code;
}

/* -------------------------------------------------------------------------------- WordPiece */

static int add_piece(kit_tokenizer *t, const char *line, size_t length, int64_t number,
                     const char *name, kit_error *err)
{
    if (!length) { /* an empty line is a number without a token; all of them count as one */
        t->unused = 1;
        return KIT_OK;
    }
    return text_vocabulary_add(&t->vocabulary, line, length, number, TEXT_BY_BYTES, name, err);
}

static int read_pieces(kit_tokenizer *t, const char *path, const text_old *old, kit_error *err)
{
    text_step *n = &t->normalizer.step[0];
    int code = read_lines(t, path, true, add_piece, err);
    *n = (text_step){.kind = TEXT_BERT, .clean = true, .cjk = true, .lower = true};
    t->kind = TEXT_WORDPIECE;
    t->normalizer.count = 1;
    t->prefix = strdup("##");
    if (!code && !t->prefix)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    if (code ||
        (code = io_json_flag(&n->lower, old->config, old->config_name, "do_lower_case", err)) ||
        (code =
             io_json_flag(&n->cjk, old->config, old->config_name, "tokenize_chinese_chars", err)))
        return code;
    n->strip = n->lower; /* default if the file has no value */
    return io_json_flag(&n->strip, old->config, old->config_name, "strip_accents", err);
}

/* -------------------------------------------------------------------------------------- BPE */

static bool is_version(const char *line, size_t length)
{
    static const char version[] = "#version";
    return length >= sizeof version - 1 && memcmp(line, version, sizeof version - 1) == 0;
}

static int add_merge(kit_tokenizer *t, const char *line, size_t length, int64_t number,
                     const char *name, kit_error *err)
{
    if (!length || is_version(line, length))
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
    int code = io_json_read(&top, path, TEXT_FILE_LIMIT, err);
    if (!code)
        code = text_vocabulary_read(t, top, path, err);
    json_decref(top);
    return code;
}

static int read_merges(kit_tokenizer *t, const char *path, kit_error *err)
{
    int code = read_lines(t, path, false, count_line, err);
    const size_t lines = t->merges.slots;
    t->merges.slots = 0;
    if (!code)
        code = text_merges_reserve(&t->merges, lines, path, err);
    return code ? code : read_lines(t, path, false, add_merge, err);
}

static int read_bytes(kit_tokenizer *t, const char *vocab, const char *merges, const text_old *old,
                      kit_error *err)
{
    t->kind = TEXT_BPE;
    t->pattern = TEXT_GPT2;
    if (old->class == TEXT_CLASS_QWEN2) {
        t->pattern = TEXT_QWEN2;
        t->normalizer.step[t->normalizer.count++] = (text_step){.kind = TEXT_FORM, .compose = true};
    }
    int code = read_bpe_vocabulary(t, vocab, err);
    if (!code)
        code = read_merges(t, merges, err);
    if (!code)
        code = text_bpe_finish(t, vocab, err);
    return code ? code
                : io_json_flag(&t->prefix_space, old->config, old->config_name, "add_prefix_space",
                               err);
}

/* -------------------------------------------------------------------------------- Templates */

/* Gives the id of a token that the template uses. transformers writes the token's string into a
 * template, where a space, a colon and a dollar sign have special meanings. */
static int template_id(int64_t *id, const kit_tokenizer *t, const char *token, const char *key,
                       const text_old *old, kit_error *err)
{
    if (!token || strpbrk(token, " :") || *token == '$')
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: %s of %s is '%.80s'; it must be a token without ' ', ':' and '$'",
                        old->config_name, key, text_class_name(old->class), token ? token : "null");
    return text_token_id(id, t, token, old->config_name, err);
}

/* Reads "bos A", "bos A eos" and so on; a token that is null is left out. */
static int read_ends(kit_tokenizer *t, const char *const *named, const text_old *old,
                     kit_error *err)
{
    bool begins = false, ends = false;
    int64_t first = -1, last = -1;
    int code;
    if ((code = io_json_flag(&begins, old->config, old->config_name, "add_bos_token", err)) ||
        (code = io_json_flag(&ends, old->config, old->config_name, "add_eos_token", err)))
        return code;
    if (begins && named[TEXT_BOS])
        code = template_id(&first, t, named[TEXT_BOS], "bos_token", old, err);
    if (!code && ends && named[TEXT_EOS])
        code = template_id(&last, t, named[TEXT_EOS], "eos_token", old, err);
    text_template_each(t, first, last);
    return code;
}

static int read_template(kit_tokenizer *t, const char *const *named, const text_old *old,
                         kit_error *err)
{
    int64_t first, last;
    int code;
    if (old->class != TEXT_CLASS_BERT && old->class != TEXT_CLASS_ROBERTA)
        return read_ends(t, named, old, err);
    if ((code = template_id(&first, t, named[TEXT_CLS], "cls_token", old, err)) ||
        (code = template_id(&last, t, named[TEXT_SEP], "sep_token", old, err)))
        return code;
    text_template_surround(t, first, last, old->class == TEXT_CLASS_ROBERTA);
    return KIT_OK;
}

/* ---------------------------------------------------------------------------------- Reading */

static int read_vocabulary(kit_tokenizer *t, const char *folder, const text_old *old,
                           kit_error *err)
{
    char vocab[TEXT_PATH], merges[TEXT_PATH];
    const bool pieces = old->class == TEXT_CLASS_BERT;
    if (pieces && text_find_file(vocab, folder, "vocab.txt"))
        return read_pieces(t, vocab, old, err);
    if (!pieces && text_find_file(vocab, folder, "vocab.json") &&
        text_find_file(merges, folder, "merges.txt"))
        return read_bytes(t, vocab, merges, old, err);
    return kit_fail(err, KIT_BAD_FILE, "%s: %s without tokenizer.json needs %s", folder,
                    text_class_name(old->class),
                    pieces ? "vocab.txt" : "vocab.json and merges.txt");
}

int text_old_read(kit_tokenizer *t, const char *folder, const text_old *old, kit_error *err)
{
    const char *named[TEXT_NAMED];
    int code;
    if ((code = text_config_keys_check(old->config, old->class, old->config_name, err)) ||
        (code = read_vocabulary(t, folder, old, err)))
        return code;
    t->own_end = t->vocabulary.size;
    if ((code = text_special_add(t, named, old, err)))
        return code;
    if (old->class == TEXT_CLASS_BERT) {
        const char *unknown = named[TEXT_UNK] ? named[TEXT_UNK] : "null";
        t->unknown = text_vocabulary_find(&t->vocabulary, unknown, strlen(unknown));
        if (!named[TEXT_UNK] || t->unknown < 0)
            return kit_fail(err, KIT_BAD_FILE, "%s: vocab.txt does not have the unk_token '%.80s'",
                            folder, unknown);
    }
    return read_template(t, named, old, err);
}
