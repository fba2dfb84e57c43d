/* The trained heads: their file, and a sentence run through them.
 *
 *   NAME          a parameter of the model, f16, with PyTorch's name
 *   __metadata__  format, the sizes, what the heads score, the command that trained them
 *
 * The model has room for as many words as its longest sentence, and each word of a sentence is one
 * of them. No more is needed: nothing about a word is learned.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../io/io.h"
#include "heads.h"
#include "train_inner.h"

#define FORMAT "attn.heads/1"

static const struct {
    const char *name;
    train_task task;
    int layers;
    const char *score[HEADS_LAYERS];
} kinds[HEADS_KINDS] = {
    {"trained/followed.safetensors", TRAIN_ANY_WORDS, 2, {"score.previous", "score.followed"}},
    {"trained/same.safetensors", TRAIN_SAME_WORD, 1, {"score.same"}},
};

struct heads {
    heads_kind kind;
    train_model model;
    heads_facts facts;
    char command[256];
};

static int bad(heads_kind kind, const char *what, const char *key, kit_error *err)
{
    return kit_fail(err, KIT_BAD_FILE, "%s: '%s' %s", kinds[kind].name, key, what);
}

static int read_number(double *to, heads_kind kind, const io_safetensors *f, const char *key,
                       double low, double high, kit_error *err)
{
    const char *text = io_safetensors_metadata(f, key);
    char *end = NULL;
    *to = text ? strtod(text, &end) : 0;
    return text && end != text && !*end && *to >= low && *to <= high
               ? KIT_OK
               : bad(kind, "is missing or out of range", key, err);
}

static int read_facts(heads *h, train_config *c, const io_safetensors *f, kit_error *err)
{
    const char *format = io_safetensors_metadata(f, "format");
    const char *command = io_safetensors_metadata(f, "command");
    const heads_kind kind = h->kind;
    double length, embed, longest, sentences;
    if (!format || strcmp(format, FORMAT) != 0)
        return bad(kind, "must be " FORMAT, "format", err);
    if (!command || strlen(command) >= sizeof h->command)
        return bad(kind, "is missing or too long", "command", err);
    int code = read_number(&length, kind, f, "length", 4, 1024, err);
    if (!code)
        code = read_number(&embed, kind, f, "embed", 8, 1024, err);
    if (!code)
        code = read_number(&longest, kind, f, "longest", 2, length, err);
    if (!code)
        code = read_number(&sentences, kind, f, "sentences", 1, 1e6, err);
    for (int i = 0; i < kinds[kind].layers && !code; i++)
        code = read_number(&h->facts.score[i], kind, f, kinds[kind].score[i], 0, 1, err);
    if (code)
        return code;
    strcpy(h->command, command);
    h->facts.command = h->command;
    h->facts.longest = (int64_t)longest;
    h->facts.sentences = (int64_t)sentences;
    h->facts.layers = kinds[kind].layers;
    *c = (train_config){.task = kinds[kind].task,
                        .vocabulary = (int64_t)longest,
                        .length = (int64_t)length,
                        .embed = (int64_t)embed,
                        .heads = 1,
                        .layers = kinds[kind].layers,
                        .batch = 1};
    return KIT_OK;
}

static int load_parameter(train_parameter *p, heads_kind kind, const io_safetensors *f,
                          kit_error *err)
{
    kit_array half, *to = &p->value;
    int code = io_safetensors_load(&half, f, p->name, err);
    if (code)
        return code;
    if (half.dtype != ATTN_F16 || half.rank != to->rank ||
        memcmp(half.shape, to->shape, sizeof half.shape) != 0) {
        code = bad(kind, "does not have the type and shape that the sizes require", p->name, err);
    } else {
        kit_array_free(to);
        code = kit_array_convert(to, &half, ATTN_F32, err);
    }
    kit_array_free(&half);
    return code;
}

int heads_open_bytes(heads **out, heads_kind kind, const void *bytes, size_t size,
                     attn_context *ctx, kit_error *err)
{
    io_source source = io_source_memory(kinds[kind].name, bytes, size);
    io_safetensors f;
    train_config c;
    heads *h = *out = calloc(1, sizeof *h);
    if (!h)
        return kit_fail(err, KIT_LIMIT, "not enough memory for the trained heads");
    h->kind = kind;
    int code = io_safetensors_open(&f, &source, err);
    if (!code)
        code = read_facts(h, &c, &f, err);
    if (!code)
        code = train_model_make(&h->model, &c, ctx, err);
    for (int i = 0; i < h->model.count && !code; i++)
        code = load_parameter(&h->model.parameter[i], kind, &f, err);
    io_safetensors_close(&f);
    if (code) {
        heads_close(h);
        *out = NULL;
    }
    return code;
}

int heads_open(heads **out, heads_kind kind, attn_context *ctx, kit_error *err)
{
    return kind == HEADS_SAME
               ? heads_open_bytes(out, kind, trained_same, trained_same_size, ctx, err)
               : heads_open_bytes(out, kind, trained_followed, trained_followed_size, ctx, err);
}

void heads_close(heads *h)
{
    if (h)
        train_model_free(&h->model);
    free(h);
}

const heads_facts *heads_facts_of(const heads *h) { return &h->facts; }

int heads_run(heads *h, const int64_t *id, int64_t count, uint64_t seed, kit_error *err)
{
    attn_rng rng;
    for (int64_t i = 0; i < count; i++)
        h->model.tokens[i] = id[i];
    attn_rng_seed(&rng, seed);
    train_model_draw_words(&h->model, 0, 1, &rng);
    return train_model_forward(&h->model, 1, count, err);
}

int heads_maps(heads *h, int layer, attn_stage stage, kit_array *out, kit_error *err)
{
    const int code = train_model_scores(&h->model, layer - 1, stage, out, err);
    if (code)
        return code;
    out->rank = 2; /* one head */
    out->shape[0] = out->shape[1];
    out->shape[1] = out->shape[2];
    out->shape[2] = 0;
    return KIT_OK;
}
