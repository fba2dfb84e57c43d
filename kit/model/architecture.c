/* The supported models: the names of their tensors and what is computed with them. */
#include <string.h>

#include "inner.h"

/* BERT and RoBERTa use the same names. */
#define BERT_NAMES                                                                                 \
    {                                                                                              \
        [TOKENS] = "embeddings.word_embeddings", [PLACES] = "embeddings.position_embeddings",      \
        [TYPES] = "embeddings.token_type_embeddings", [EMBED_NORM] = "embeddings.LayerNorm",       \
        [QUERY] = "encoder.layer.%d.attention.self.query",                                         \
        [KEY] = "encoder.layer.%d.attention.self.key",                                             \
        [VALUE] = "encoder.layer.%d.attention.self.value",                                         \
        [OUT] = "encoder.layer.%d.attention.output.dense",                                         \
        [NORM1] = "encoder.layer.%d.attention.output.LayerNorm",                                   \
        [UP] = "encoder.layer.%d.intermediate.dense", [DOWN] = "encoder.layer.%d.output.dense",    \
        [NORM2] = "encoder.layer.%d.output.LayerNorm"                                              \
    }
#define BERT_KEYS                                                                                  \
    {                                                                                              \
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",            \
            "max_position_embeddings", "hidden_act", "layer_norm_eps"                              \
    }
#define LLAMA_NAMES                                                                                \
    {                                                                                              \
        [TOKENS] = "embed_tokens", [LAST_NORM] = "norm", [HEAD] = "lm_head",                       \
        [NORM1] = "layers.%d.input_layernorm", [QUERY] = "layers.%d.self_attn.q_proj",             \
        [KEY] = "layers.%d.self_attn.k_proj", [VALUE] = "layers.%d.self_attn.v_proj",              \
        [OUT] = "layers.%d.self_attn.o_proj", [NORM2] = "layers.%d.post_attention_layernorm",      \
        [GATE] = "layers.%d.mlp.gate_proj", [UP] = "layers.%d.mlp.up_proj",                        \
        [DOWN] = "layers.%d.mlp.down_proj"                                                         \
    }
#define LLAMA_KEYS                                                                                 \
    {                                                                                              \
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",            \
            "max_position_embeddings", "hidden_act", "rms_norm_eps"                                \
    }
#define LLAMA(type)                                                                                \
    .kind = type, .prefix = "model.", .name = LLAMA_NAMES, .causal = true, .norm_first = true,     \
    .rms = true, .places = PLACES_ROTATED, .key = LLAMA_KEYS, .eps = 1e-6

const architecture model_architectures[] = {
    {.kind = "bert", .prefix = "bert.", .name = BERT_NAMES, .key = BERT_KEYS, .eps = 1e-12},
    {.kind = "roberta",
     .prefix = "roberta.",
     .name = BERT_NAMES,
     .key = BERT_KEYS,
     .places = PLACES_AFTER_PADDING,
     .eps = 1e-12},
    {.kind = "distilbert",
     .prefix = "distilbert.",
     .name = {[TOKENS] = "embeddings.word_embeddings",
              [PLACES] = "embeddings.position_embeddings",
              [EMBED_NORM] = "embeddings.LayerNorm",
              [QUERY] = "transformer.layer.%d.attention.q_lin",
              [KEY] = "transformer.layer.%d.attention.k_lin",
              [VALUE] = "transformer.layer.%d.attention.v_lin",
              [OUT] = "transformer.layer.%d.attention.out_lin",
              [NORM1] = "transformer.layer.%d.sa_layer_norm",
              [UP] = "transformer.layer.%d.ffn.lin1",
              [DOWN] = "transformer.layer.%d.ffn.lin2",
              [NORM2] = "transformer.layer.%d.output_layer_norm"},
     .key = {"dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings", "activation",
             NULL},
     .eps = 1e-12},
    {.kind = "gpt2",
     .prefix = "transformer.",
     .name = {[TOKENS] = "wte",
              [PLACES] = "wpe",
              [LAST_NORM] = "ln_f",
              [HEAD] = "lm_head",
              [NORM1] = "h.%d.ln_1",
              [QKV] = "h.%d.attn.c_attn",
              [OUT] = "h.%d.attn.c_proj",
              [NORM2] = "h.%d.ln_2",
              [UP] = "h.%d.mlp.c_fc",
              [DOWN] = "h.%d.mlp.c_proj"},
     .causal = true,
     .norm_first = true,
     .transposed = true,
     .key = {"n_embd", "n_layer", "n_head", "n_inner", "n_positions", "activation_function",
             "layer_norm_epsilon"},
     .tied = true,
     .eps = 1e-5},
    {LLAMA("llama"), .biases = BIAS_BY_CONFIG, .length = 2048},
    {LLAMA("mistral"), .biases = BIAS_NEVER, .windows = WINDOW_ALL, .kv_heads = 8,
     .length = 131072},
    {LLAMA("qwen2"), .biases = BIAS_OF_QKV, .windows = WINDOW_ON_REQUEST, .kv_heads = 32,
     .length = 32768},
    /* Checkpoints of attn train; their config is in the file itself (trained.c). */
    {.kind = "attn.train",
     .prefix = "",
     .name = {[TOKENS] = "tokens",
              [PLACES] = "places",
              [LAST_NORM] = "norm",
              [HEAD] = "head",
              [NORM1] = "blocks.%d.norm1",
              [QKV] = "blocks.%d.attention.in_proj_",
              [OUT] = "blocks.%d.attention.out",
              [NORM2] = "blocks.%d.norm2",
              [UP] = "blocks.%d.mlp.up",
              [DOWN] = "blocks.%d.mlp.down"},
     .causal = true,
     .norm_first = true,
     .may_lack_mlp = true,
     .head_bias = true,
     .eps = 1e-5},
    {0},
};

const architecture *model_architecture(const char *kind)
{
    for (const architecture *a = model_architectures; a->kind; a++)
        if (strcmp(a->kind, kind) == 0)
            return a;
    return NULL;
}
