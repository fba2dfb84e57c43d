/* Fuzz target: a model's folder. The first byte says which of its files the rest of the input is;
 * the other files are valid. Two files are separated by the byte 0x1E:
 *
 *   0  vocab.txt, tokenizer_config.json   1  vocab.json, merges.txt
 *   2  config.json of a GPT-2              3  of a Llama              4  of a BERT
 *   5  the index of two files              6  model.safetensors
 *
 * Any bytes give an error, or a model that can tokenise a text and compute the next token. Built
 * and run as described in fuzz_npy.c. The files are created in a folder of TMPDIR, which should be
 * in memory. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../kit/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORDS = 8, WIDTH = 4, INNER = 8, PLACES = 12, KINDS = 7 };

static char place[256];

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* ------------------------------------------------------------------------------ Valid files */

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", place, name);
    return path;
}

static void put_file(const char *name, const void *data, size_t size)
{
    const int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
}

static void put_string(const char *name, const char *text) { put_file(name, text, strlen(text)); }

typedef struct tensor_shape {
    const char *name;
    int64_t rows, columns; /* rows 0: a vector */
} tensor_shape;

static const tensor_shape gpt2[] = {
    {"wte.weight", WORDS, WIDTH},
    {"wpe.weight", PLACES, WIDTH},
    {"ln_f.weight", 0, WIDTH},
    {"ln_f.bias", 0, WIDTH},
    {"h.0.ln_1.weight", 0, WIDTH},
    {"h.0.ln_1.bias", 0, WIDTH},
    {"h.0.attn.c_attn.weight", WIDTH, 3 * WIDTH},
    {"h.0.attn.c_attn.bias", 0, 3 * WIDTH},
    {"h.0.attn.c_proj.weight", WIDTH, WIDTH},
    {"h.0.attn.c_proj.bias", 0, WIDTH},
    {"h.0.ln_2.weight", 0, WIDTH},
    {"h.0.ln_2.bias", 0, WIDTH},
    {"h.0.mlp.c_fc.weight", WIDTH, INNER},
    {"h.0.mlp.c_fc.bias", 0, INNER},
    {"h.0.mlp.c_proj.weight", INNER, WIDTH},
    {"h.0.mlp.c_proj.bias", 0, WIDTH},
    {NULL, 0, 0},
};

static const tensor_shape llama[] = {
    {"model.embed_tokens.weight", WORDS, WIDTH},
    {"model.norm.weight", 0, WIDTH},
    {"lm_head.weight", WORDS, WIDTH},
    {"model.layers.0.input_layernorm.weight", 0, WIDTH},
    {"model.layers.0.post_attention_layernorm.weight", 0, WIDTH},
    {"model.layers.0.self_attn.q_proj.weight", WIDTH, WIDTH},
    {"model.layers.0.self_attn.k_proj.weight", WIDTH / 2, WIDTH},
    {"model.layers.0.self_attn.v_proj.weight", WIDTH / 2, WIDTH},
    {"model.layers.0.self_attn.o_proj.weight", WIDTH, WIDTH},
    {"model.layers.0.mlp.gate_proj.weight", INNER, WIDTH},
    {"model.layers.0.mlp.up_proj.weight", INNER, WIDTH},
    {"model.layers.0.mlp.down_proj.weight", WIDTH, INNER},
    {NULL, 0, 0},
};

#define BERT_LAYER "encoder.layer.0."
#define BOTH(stem, rows, columns)                                                                  \
    {stem ".weight", rows, columns}, { stem ".bias", 0, (rows) ? (rows) : (columns) }
static const tensor_shape bert[] = {
    {"embeddings.word_embeddings.weight", WORDS, WIDTH},
    {"embeddings.position_embeddings.weight", PLACES, WIDTH},
    {"embeddings.token_type_embeddings.weight", 2, WIDTH},
    BOTH("embeddings.LayerNorm", 0, WIDTH),
    BOTH(BERT_LAYER "attention.self.query", WIDTH, WIDTH),
    BOTH(BERT_LAYER "attention.self.key", WIDTH, WIDTH),
    BOTH(BERT_LAYER "attention.self.value", WIDTH, WIDTH),
    BOTH(BERT_LAYER "attention.output.dense", WIDTH, WIDTH),
    BOTH(BERT_LAYER "attention.output.LayerNorm", 0, WIDTH),
    BOTH(BERT_LAYER "intermediate.dense", INNER, WIDTH),
    BOTH(BERT_LAYER "output.dense", WIDTH, INNER),
    BOTH(BERT_LAYER "output.LayerNorm", 0, WIDTH),
    {NULL, 0, 0},
};

static const char *const configs[3] = {
    "{\"model_type\":\"gpt2\",\"vocab_size\":8,\"n_embd\":4,\"n_layer\":1,\"n_head\":2,"
    "\"n_positions\":12,\"n_inner\":8}",
    "{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":4,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":8}",
    "{\"model_type\":\"bert\",\"vocab_size\":8,\"hidden_size\":4,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"intermediate_size\":8,\"max_position_embeddings\":12,"
    "\"type_vocab_size\":2}"};
static const tensor_shape *const weights_of[3] = {gpt2, llama, bert};

static const char tokenizer[] =
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":"
    "\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\xC4\xA0\":3,\"ab\":4,\"abc\":5},\"merges\":"
    "[\"a b\",\"ab c\"]}}";

/* Writes every `step`-th tensor from `first` on. */
static void put_weights(const char *name, const tensor_shape *s, size_t first, size_t step)
{
    kit_array array[32];
    kit_tensor tensor[32];
    kit_output *out;
    size_t n = 0;
    for (size_t i = 0; s[i].name; i++) {
        const int64_t size[2] = {s[i].rows ? s[i].rows : s[i].columns, s[i].columns};
        if (i % step != first)
            continue;
        must(kit_array_new(&array[n], ATTN_F32, s[i].rows ? 2 : 1, size, NULL) == KIT_OK);
        for (int64_t k = 0; k < kit_array_count(&array[n]); k++)
            ((float *)array[n].data)[k] = (float)((k * 7 + (int64_t)i) % 5) * 0.25f - 0.5f;
        tensor[n] = (kit_tensor){s[i].name, &array[n]};
        n++;
    }
    must(kit_output_open(&out, path_of(name), NULL) == KIT_OK);
    must(kit_safetensors_write(out, tensor, n, NULL, 0, NULL) == KIT_OK);
    must(kit_output_commit(out, NULL) == KIT_OK);
    while (n-- > 0)
        kit_array_free(&array[n]);
}

static const char *const names[] = {
    "config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json",
    "vocab.txt",   "vocab.json",     "merges.txt",        "tokenizer_config.json",
    "1.st",        "2.st",
};

static void remove_files(void)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_of(names[i]));
}

static void remove_folder(void)
{
    remove_files();
    rmdir(place);
}

static void make_folder(void)
{
    const char *where = getenv("TMPDIR");
    snprintf(place, sizeof place, "%.200s/fuzz-model-XXXXXX", where ? where : "/tmp");
    must(mkdtemp(place) != NULL);
    atexit(remove_folder);
}

/* --------------------------------------------------------------------------------- A model */

static void must_be_error(const kit_error *err, const void *made)
{
    must(err->code != KIT_OK && err->message[0] && !made);
    must(!strpbrk(err->message, "\n\r\x1B"));
}

static void run_tokens(const model *m, const kit_tokens *tokens)
{
    int64_t ids[64], types[64], next;
    const float *logits;
    model_run *run;
    kit_error err = {0};
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    const int64_t n = (int64_t)tokens->count;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = tokens->token[i].id;
        types[i] = tokens->token[i].type;
    }
    const bool causal = model_sizes_of(m)->causal, predicts = model_sizes_of(m)->predicts;
    must(model_run_begin(&run, m, n, causal ? n + 1 : 0, &err) == KIT_OK);
    int code = model_run_tokens(run, ids, types, n, NULL, 0, &err);
    if (!code && predicts && !(code = model_run_logits(run, &logits, &err)))
        code = model_sample(&next, logits, model_sizes_of(m)->vocabulary,
                            &(model_generation){.temperature = 1, .top_p = 1}, &rng, &err);
    if (!code && predicts) {
        must(next >= 0 && next < model_sizes_of(m)->vocabulary);
        code = model_run_tokens(run, &next, NULL, 1, NULL, 0, &err);
    }
    must(code == KIT_OK || (err.message[0] && !strpbrk(err.message, "\n\r\x1B")));
    model_run_end(run);
}

static void try_text(const kit_tokenizer *t, const model *m, const char *text)
{
    kit_tokens tokens;
    kit_error err = {0};
    size_t length;
    if (kit_tokenizer_encode(&tokens, t, text, NULL, &err) != KIT_OK) {
        must_be_error(&err, tokens.token);
        return;
    }
    for (size_t i = 0; i < tokens.count; i++) {
        const kit_token *k = &tokens.token[i];
        must(kit_tokenizer_bytes(t, k->id, &length) && k->id < kit_tokenizer_size(t));
        must(k->begin <= k->end && (k->which < 0 || k->end <= strlen(text)));
    }
    if (m && tokens.count > 0 && tokens.count <= 64)
        run_tokens(m, &tokens);
    kit_tokens_free(&tokens);
}

static void try_tokenizer(void)
{
    kit_tokenizer *t;
    kit_error err = {0};
    if (kit_tokenizer_open(&t, place, &err) != KIT_OK) {
        must_be_error(&err, t);
        return;
    }
    try_text(t, NULL, "abc a[MASK]b caf\xC3\xA9  \n12 e\xCC\x81\xE4\xB8\xAD <s>'s");
    kit_tokenizer_free(t);
}

static void try_model(void)
{
    model *m;
    kit_error err = {0};
    if (model_open(&m, place, NULL, &err) != KIT_OK) {
        must_be_error(&err, m);
        return;
    }
    try_text(model_tokenizer(m), m, "abc ab c");
    model_close(m);
}

static void put_good(int kind)
{
    const int which = kind >= 2 && kind <= 4 ? kind - 2 : 0;
    put_string("config.json", configs[which]);
    put_string("tokenizer.json", tokenizer);
    if (kind == 5) {
        put_weights("1.st", gpt2, 0, 2);
        put_weights("2.st", gpt2, 1, 2);
    } else {
        put_weights("model.safetensors", weights_of[which], 0, 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const first[KINDS] = {"vocab.txt",        "vocab.json",
                                             "config.json",      "config.json",
                                             "config.json",      "model.safetensors.index.json",
                                             "model.safetensors"};
    static const char *const second[2] = {"tokenizer_config.json", "merges.txt"};
    static int last = -1; /* the model whose valid files exist */
    if (!size || data[0] >= KINDS)
        return 0;
    const int kind = data[0];
    const uint8_t *rest = data + 1, *cut = kind < 2 ? memchr(rest, 0x1E, size - 1) : NULL;
    if (!*place)
        make_folder();
    if (kind != last) {
        remove_files();
        if (kind >= 2)
            put_good(kind);
        else
            put_string("config.json",
                       kind ? "{\"model_type\": \"gpt2\"}" : "{\"model_type\": \"bert\"}");
    }
    last = kind;
    put_file(first[kind], rest, cut ? (size_t)(cut - rest) : size - 1);
    if (kind < 2)
        put_file(second[kind], cut ? cut + 1 : data, cut ? (size_t)(data + size - cut) - 1 : 0);
    if (kind < 2)
        try_tokenizer();
    else
        try_model();
    return 0;
}
