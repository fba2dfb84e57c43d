/* A checkpoint of attn train as a model. Its options are the config. Its tokens are the labels by
 * which the program shows them, or the characters of its text. */
#include <math.h>
#include <stdlib.h>

#include "../train/train.h"
#include "inner.h"

int model_trained_config(model_config *c, const char *path, kit_error *err)
{
    train_config of;
    const int code = train_load_config(&of, path, err);
    if (code)
        return code;
    if (train_task_draws_words(of.task))
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: was trained on %s and has no words of its own; `attn explain TEXT` "
                        "without --model shows such heads",
                        path, train_task_name(of.task));
    if (of.embed % of.heads)
        return kit_fail(err, KIT_BAD_FILE, "%s: its embed is not a multiple of its heads", path);
    *c = (model_config){.a = model_architecture("attn.train")};
    c->sizes = (model_sizes){.kind = c->a->kind,
                             .causal = true,
                             .places_added = true,
                             .vocabulary = train_config_tokens(&of),
                             .positions = of.length,
                             .embed = of.embed,
                             .layers = of.layers,
                             .heads = of.heads,
                             .kv_heads = of.heads,
                             .head_size = of.embed / of.heads};
    c->scale = 1 / sqrt((double)c->sizes.head_size);
    c->generation = (model_generation){.top_p = 1, .repetition_penalty = 1};
    c->inner = of.mlp ? 4 * of.embed : 0;
    c->eps = c->a->eps;
    c->activation = ACT_GELU;
    return KIT_OK;
}

int model_trained_tokenizer(kit_tokenizer **t, const char *path, kit_error *err)
{
    train_config of;
    const int found = train_load_config(&of, path, err);
    if (found)
        return found;
    const train_config *c = &of;
    const size_t count = (size_t)train_config_tokens(c);
    const bool letters = c->task == TRAIN_TEXT;
    char(*label)[TRAIN_LABEL] = calloc(count, sizeof *label);
    const char **word = calloc(count, sizeof *word);
    int code = label && word ? KIT_OK : kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    for (size_t i = 0; i < count && !code; i++)
        word[i] = label[i];
    if (!code)
        code = train_load_labels(label, c, path, err);
    if (!code)
        code = kit_tokenizer_of_words(t, word, count, letters, err);
    free(label);
    free(word);
    return code;
}
