/* The trained heads: their file, and a sentence run through them.
 *
 *   NAME          a parameter of the model, f16, with PyTorch's name
 *   __metadata__  format, the sizes, what the heads score, the command that trained them
 *
 * The model has room for as many words as its longest sentence, and each word of a sentence is one
 * of them. No more is needed: nothing about a word is learned.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    train_model model;
    heads_facts facts;
    char command[256];
};

/* ------------------------------------------------------------------------------- the file
 *
 * tools/trained-heads.py writes the files, and a header's text is known but for the values of the
 * metadata: the keys have a fixed order, and the tensors that of the model's parameters. So a
 * header is compared with the expected text, from left to right, and needs no JSON library. The
 * module of the page (page/wasm/) reads the heads by the same code. */

enum { LENGTH = 8 }; /* bytes that hold the header's length, little-endian */

typedef struct reader {
    heads_kind kind;
    const char *at, *end; /* the rest of the header */
    const unsigned char *data;
    size_t size, used; /* bytes of the tensors; those of the tensors before this one */
    kit_error *err;
} reader;

static int bad(const reader *r, const char *what, const char *key)
{
    return kit_fail(r->err, KIT_BAD_FILE, "%s: '%s' %s", kinds[r->kind].name, key, what);
}

static bool take(reader *r, const char *text)
{
    const size_t n = strlen(text);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

static int begin(reader *r, const unsigned char *bytes, size_t size)
{
    uint64_t length = 0;
    for (int i = LENGTH; size >= LENGTH && i-- > 0;)
        length = length << 8 | bytes[i];
    if (size < LENGTH || length > size - LENGTH)
        return bad(r, "is cut short", "__metadata__");
    r->at = (const char *)bytes + LENGTH;
    r->end = r->at + length;
    r->data = bytes + LENGTH + length;
    r->size = size - LENGTH - (size_t)length;
    return take(r, "{\"__metadata__\": {") ? KIT_OK : bad(r, "is missing", "__metadata__");
}

/* Reads `"key": "text"` and, unless it is the last, the comma after it. */
static int read_text(reader *r, const char *key, char *to, size_t size)
{
    size_t n = 0;
    if (!take(r, "\"") || !take(r, key) || !take(r, "\": \""))
        return bad(r, "is missing", key);
    for (; r->at < r->end && *r->at != '"' && *r->at != '\\' && n + 1 < size; r->at++)
        to[n++] = *r->at;
    to[n] = 0;
    if (!take(r, "\"") || !(take(r, ", ") || take(r, "}")))
        return bad(r, "is too long", key);
    return KIT_OK;
}

static int read_number(reader *r, const char *key, double low, double high, double *to)
{
    char text[32], *end;
    const int code = read_text(r, key, text, sizeof text);
    if (code)
        return code;
    *to = strtod(text, &end);
    return end != text && !*end && *to >= low && *to <= high ? KIT_OK
                                                             : bad(r, "is out of range", key);
}

static int read_facts(heads *h, train_config *c, reader *r)
{
    const heads_kind kind = r->kind;
    char format[sizeof FORMAT + 1];
    double length, embed, longest, sentences;
    int code = read_text(r, "format", format, sizeof format);
    if (!code && strcmp(format, FORMAT) != 0)
        return bad(r, "must be " FORMAT, "format");
    if (!code)
        code = read_text(r, "command", h->command, sizeof h->command);
    if (!code)
        code = read_number(r, "length", 4, 1024, &length);
    if (!code)
        code = read_number(r, "embed", 8, 1024, &embed);
    if (!code)
        code = read_number(r, "longest", 2, length, &longest);
    if (!code)
        code = read_number(r, "sentences", 1, 1e6, &sentences);
    for (int i = 0; i < kinds[kind].layers && !code; i++)
        code = read_number(r, kinds[kind].score[i], 0, 1, &h->facts.score[i]);
    if (code)
        return code;
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

static int load_parameter(train_parameter *p, reader *r)
{
    kit_array half, *to = &p->value;
    char text[256], columns[32] = "";
    int code = kit_array_new(&half, ATTN_F16, to->rank, to->shape, r->err);
    if (code)
        return code;
    if (to->rank == 2)
        snprintf(columns, sizeof columns, ", %" PRId64, to->shape[1]);
    snprintf(text, sizeof text,
             ", \"%s\": {\"dtype\": \"F16\", \"shape\": [%" PRId64 "%s], "
             "\"data_offsets\": [%zu, %zu]}",
             p->name, to->shape[0], columns, r->used, r->used + half.bytes);
    if (!take(r, text) || half.bytes > r->size - r->used) {
        code = bad(r, "does not have the type, shape and place that the sizes require", p->name);
    } else {
        uint16_t *bits = half.data;
        for (size_t i = 0; i < half.bytes / 2; i++) /* stored little-endian */
            bits[i] = (uint16_t)(r->data[r->used + 2 * i] | r->data[r->used + 2 * i + 1] << 8);
        r->used += half.bytes;
        kit_array_free(to);
        code = kit_array_convert(to, &half, ATTN_F32, r->err);
    }
    kit_array_free(&half);
    return code;
}

int heads_open_bytes(heads **out, heads_kind kind, const void *bytes, size_t size,
                     attn_context *ctx, kit_error *err)
{
    reader r = {.kind = kind, .err = err};
    train_config c;
    heads *h = *out = calloc(1, sizeof *h);
    if (!h)
        return kit_fail(err, KIT_LIMIT, "not enough memory for the trained heads");
    int code = begin(&r, bytes, size);
    if (!code)
        code = read_facts(h, &c, &r);
    if (!code)
        code = train_model_make(&h->model, &c, ctx, err);
    for (int i = 0; i < h->model.count && !code; i++)
        code = load_parameter(&h->model.parameter[i], &r);
    if (!code && (!take(&r, "}") || r.used != r.size))
        code = bad(&r, "is followed by something else", "head.bias");
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
