/* Fuzz target: tokenizer.json, and config.json of a model. Any bytes give a tokeniser or an error.
 * A tokeniser must give ids that it has, in order, for positions inside the text. Built and run as
 * described in fuzz_npy.c. */
#include <stdlib.h>
#include <string.h>

#include "../kit/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void encode(const kit_tokenizer *t, const char *text, const char *pair)
{
    kit_error err = {0};
    kit_tokens tokens;
    char label[KIT_TOKEN_LABEL];
    size_t length;
    if (kit_tokenizer_encode(&tokens, t, text, pair, &err) != KIT_OK) {
        must(err.code != KIT_OK && err.message[0] && !tokens.token);
        return;
    }
    for (size_t i = 0; i < tokens.count; i++) {
        const kit_token *k = &tokens.token[i];
        const char *from = k->which == 1 ? pair : text;
        must(k->id >= 0 && k->id < kit_tokenizer_size(t));
        must(kit_tokenizer_bytes(t, k->id, &length) != NULL);
        must(k->begin <= k->end && (k->which < 0 || k->end <= strlen(from)));
        kit_token_label(label, t, &tokens, i, text, pair);
        must(strlen(label) < sizeof label);
    }
    kit_tokens_free(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kit_tokenizer *t;
    kit_error err = {0};
    if (kit_tokenizer_parse(&t, "fuzz", data, size, &err) == KIT_OK) {
        encode(t, "", NULL);
        encode(t, "ab abc  \n b\xC3\xA9, 12345's [MASK]\xF0\x9F\x98\x80 aaaaaaaa",
               "e\xCC\x81 \xE4\xB8\xAD");
        kit_tokenizer_free(t);
    } else {
        must(!t && strncmp(err.message, "fuzz: ", 6) == 0 && !strpbrk(err.message, "\n\r\x1B"));
    }
    err = (kit_error){0};
    must(model_check_config("fuzz", data, size, &err) == KIT_OK ||
         (strncmp(err.message, "fuzz: ", 6) == 0 && !strpbrk(err.message, "\n\r\x1B")));
    return 0;
}
