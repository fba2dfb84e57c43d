/* Helpers for tests of tokenisers. */
#ifndef TOKENIZER_TESTING_H
#define TOKENIZER_TESTING_H

#include "support/io_testing.h"

#include "text/tokenizer_inner.h"
#include "support/tokenizer_samples.h"

static kit_tokenizer *make(const char *json)
{
    kit_tokenizer *t;
    kit_error e = {0};
    if (kit_tokenizer_parse(&t, "t.json", json, strlen(json), &e))
        fail_msg("%s", e.message);
    return t;
}

/* want: "id@begin-end ..." of what comes from a text, "id" of the template's own. */
static void expect(const kit_tokenizer *t, const char *text, const char *pair, const char *want)
{
    kit_tokens k;
    kit_error e = {0};
    char got[1024] = "";
    if (kit_tokenizer_encode(&k, t, text, pair, &e))
        fail_msg("%s: %s", text, e.message);
    for (size_t i = 0; i < k.count; i++) {
        const size_t used = strlen(got);
        const kit_token *one = &k.token[i];
        const char *gap = i ? " " : "";
        if (one->which < 0)
            snprintf(got + used, sizeof got - used, "%s%d", gap, (int)one->id);
        else
            snprintf(got + used, sizeof got - used, "%s%d@%zu-%zu", gap, (int)one->id, one->begin,
                     one->end);
    }
    assert_string_equal(got, want);
    kit_tokens_free(&k);
}

#endif
