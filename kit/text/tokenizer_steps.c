/* Reads the "normalizer" of a tokenizer.json as steps. A step that cannot be done exactly is
 * refused. */
#include <string.h>

#include "../io/json.h"
#include "tokenizer_inner.h"

int text_refuse(const char *name, const char *what, const char *found, const char *known,
                kit_error *err)
{
    return kit_fail(err, KIT_BAD_FILE, "%s: %s '%.200s' is not supported; %s", name, what,
                    found ? found : "(none)", known);
}

static int read_bert(text_step *s, const json_t *n, const char *name, kit_error *err)
{
    int code;
    s->clean = s->cjk = s->lower = true;
    if ((code = io_json_flag(&s->clean, n, name, "clean_text", err)) ||
        (code = io_json_flag(&s->cjk, n, name, "handle_chinese_chars", err)) ||
        (code = io_json_flag(&s->lower, n, name, "lowercase", err)))
        return code;
    s->strip = s->lower; /* default if the file has no value */
    return io_json_flag(&s->strip, n, name, "strip_accents", err);
}

static int read_form(text_step *s, const json_t *n, const char *name, kit_error *err)
{
    const char *form = json_string_value(json_object_get(n, "type"));
    (void)name, (void)err;
    s->compatible = form[2] == 'K';
    s->compose = form[strlen(form) - 1] == 'C';
    return KIT_OK;
}

static int read_nothing(text_step *s, const json_t *n, const char *name, kit_error *err)
{
    (void)s, (void)n, (void)name, (void)err;
    return KIT_OK;
}

static int read_strip(text_step *s, const json_t *n, const char *name, kit_error *err)
{
    s->left = s->right = true;
    const int code = io_json_flag(&s->left, n, name, "strip_left", err);
    return code ? code : io_json_flag(&s->right, n, name, "strip_right", err);
}

static int read_prepend(text_step *s, const json_t *n, const char *name, kit_error *err)
{
    const char *text = NULL;
    const int code = io_json_text(&text, n, name, "prepend", err);
    if (code || text)
        return code ? code : text_chars_decode(&s->to, text, err);
    return kit_fail(err, KIT_BAD_FILE, "%s: normalizer Prepend: prepend is missing", name);
}

static int read_replace(text_step *s, const json_t *n, const char *name, kit_error *err)
{
    const json_t *pattern = json_object_get(n, "pattern");
    const char *from = NULL, *to = NULL;
    int code;
    if ((code = text_keys_check(pattern, "a pattern", name, err)) ||
        (code = io_json_text(&from, pattern, name, "String", err)) ||
        (code = io_json_text(&to, n, name, "content", err)))
        return code;
    if (!from || !*from || !to || json_object_get(pattern, "Regex"))
        return text_refuse(name, "normalizer Replace of",
                           json_string_value(json_object_get(pattern, "Regex")),
                           "supported is a String that is not empty, with a content", err);
    code = text_chars_decode(&s->from, from, err);
    return code ? code : text_chars_decode(&s->to, to, err);
}

static const struct {
    const char *type;
    text_step_kind kind;
    int (*read)(text_step *s, const json_t *n, const char *name, kit_error *err);
} known[] = {
    {"BertNormalizer", TEXT_BERT, read_bert},
    {"NFC", TEXT_FORM, read_form},
    {"NFD", TEXT_FORM, read_form},
    {"NFKC", TEXT_FORM, read_form},
    {"NFKD", TEXT_FORM, read_form},
    {"Lowercase", TEXT_LOWER, read_nothing},
    {"StripAccents", TEXT_STRIP_ACCENTS, read_nothing},
    {"Strip", TEXT_STRIP, read_strip},
    {"Prepend", TEXT_PREPEND, read_prepend},
    {"Replace", TEXT_REPLACE, read_replace},
};

static int read_step(text_normalizer *to, const json_t *n, const char *name, kit_error *err)
{
    const char *type = json_string_value(json_object_get(n, "type"));
    for (size_t i = 0; type && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].type, type) == 0) {
            if (to->count == TEXT_STEPS)
                return kit_fail(err, KIT_BAD_FILE, "%s: the normalizer has more than %d steps",
                                name, (int)TEXT_STEPS);
            text_step *s = &to->step[to->count++]; /* counted now: freed after an error */
            *s = (text_step){.kind = known[i].kind};
            const int code = text_keys_check(n, type, name, err);
            return code ? code : known[i].read(s, n, name, err);
        }
    return text_refuse(
        name, "normalizer", type,
        "supported are BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
        "Prepend, Replace and a Sequence of these",
        err);
}

int text_normalizer_read(text_normalizer *to, const json_t *n, const char *name, kit_error *err)
{
    const char *type = json_string_value(json_object_get(n, "type"));
    const json_t *list = json_object_get(n, "normalizers");
    int code = KIT_OK;
    if (!n || json_is_null(n))
        return KIT_OK;
    if (!type || strcmp(type, "Sequence") != 0)
        return read_step(to, n, name, err);
    if (!json_is_array(list))
        return kit_fail(err, KIT_BAD_FILE, "%s: normalizer Sequence: normalizers must be a list",
                        name);
    code = text_keys_check(n, type, name, err);
    for (size_t i = 0; i < json_array_size(list) && !code; i++)
        code = text_normalizer_read(to, json_array_get(list, i), name, err);
    return code;
}
