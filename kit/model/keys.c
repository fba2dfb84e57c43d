/* The known keys of config.json and generation_config.json, as tables, and the check of a file:
 * each key is used, or known to change no number of this model, or refused by name.
 *
 * To add a key: add a row here. If it is USED, read it in config.c, rotation.c or generation.c, and
 * report values that are not supported there. `attn info --model-keys` prints the tables.
 * tests/peers/test_checkpoints.py compares every row with transformers, and so finds wrong rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

#define USED(name, values, meaning)                                                                \
    {                                                                                              \
        name, KEY_USED, values, meaning                                                            \
    }
#define IDLE(name, values, meaning)                                                                \
    {                                                                                              \
        name, KEY_IDLE, values, meaning                                                            \
    }
#define FIXED(name, values, meaning)                                                               \
    {                                                                                              \
        name, KEY_FIXED, values, meaning                                                           \
    }
#define DRAWN(name, values, meaning)                                                               \
    {                                                                                              \
        name, KEY_DRAWN, values, meaning                                                           \
    }
#define LAST                                                                                       \
    {                                                                                              \
        NULL, KEY_IDLE, NULL, NULL                                                                 \
    }

/* ------------------------------------------------------------------------------ Every model */

const config_key model_common_keys[] = {
    USED("model_type", "text", "the family"),
    USED("vocab_size", "int", "tokens"),
    FIXED("is_decoder", "false", "a model that reads texts made to write them"),
    FIXED("is_encoder_decoder", "false", "two models, one that reads and one that writes"),
    FIXED("add_cross_attention", "false", "attention to another model's output"),
    FIXED("position_embedding_type", "absolute|null", "where places are added"),
    FIXED("per_layer_config", "null|{}", "layers that differ from each other"),
    FIXED("pruned_heads", "null|{}", "heads that were taken out"),
    FIXED("quantization_config", "null", "how weights were made smaller"),
    FIXED("compression_config", "null", "how weights were made smaller"),
    FIXED("configuration_files", "absent", "other files to read in place of this one"),
    FIXED("transformers_weights", "null", "another file of weights"),
    FIXED("fusion_config", "null", "modules to be joined"),
    IDLE("architectures", "list|null", "the class that was saved"),
    IDLE("auto_map", "object", "code that came with the model"),
    IDLE("transformers_version", "text|null", "what saved it"),
    IDLE("_name_or_path", "text|null", "where it came from"),
    IDLE("name_or_path", "text|null", "where it came from"),
    IDLE("_commit_hash", "text|null", "where it came from"),
    IDLE("unsloth_version", "text|null", "what saved it"),
    IDLE("unsloth_fixed", "bool|null", "what saved it"),
    IDLE("dtype", "float32|float16|null", "type of the weights, which the file itself has"),
    IDLE("torch_dtype", "float32|bfloat16|null", "the older name of dtype"),
    IDLE("attn_implementation", "eager|sdpa|null", "how attention is computed"),
    IDLE("_attn_implementation", "eager|null", "how attention is computed"),
    IDLE("_attn_implementation_autoset", "bool", "how attention is computed"),
    IDLE("chunk_size_feed_forward", "0|1", "rows that the MLP is given at a time"),
    IDLE("gradient_checkpointing", "bool|null", "of training"),
    IDLE("initializer_range", "0.02|0.5", "of weights before training"),
    IDLE("initializer_factor", "real|null", "of weights before training"),
    IDLE("use_cache", "bool", "whether keys are kept"),
    IDLE("output_attentions", "bool|null", "what a call returns"),
    IDLE("output_hidden_states", "bool|null", "what a call returns"),
    IDLE("output_past", "bool|null", "what a call returns"),
    IDLE("return_dict", "true|null", "what a call returns"),
    IDLE("torchscript", "bool|null", "what a call returns"),
    IDLE("use_bfloat16", "bool|null", "of another library"),
    IDLE("tf_legacy_loss", "bool|null", "of another library"),
    IDLE("tie_encoder_decoder", "bool|null", "of pairs of models"),
    IDLE("cross_attention_hidden_size", "int|null", "of pairs of models"),
    IDLE("decoder_start_token_id", "int|null", "of pairs of models"),
    IDLE("id2label", "{}|null", "names of classes"),
    IDLE("label2id", "object|null", "names of classes"),
    IDLE("num_labels", "int", "of classes"),
    IDLE("_num_labels", "int|null", "of classes"),
    IDLE("problem_type", "null|regression", "of classes"),
    IDLE("classifier_dropout", "0.1|null", "of classes"),
    IDLE("finetuning_task", "text|null", "what it was trained for"),
    IDLE("task_specific_params", "object|null", "of pipelines"),
    IDLE("prefix", "text|null", "of pipelines"),
    IDLE("tokenizer_class", "text|null", "of the tokeniser, which has files of its own"),
    IDLE("bos_token_id", "int|null", "of the tokeniser, which has files of its own"),
    IDLE("sep_token_id", "int|null", "of the tokeniser, which has files of its own"),
    IDLE("cls_token_id", "int|null", "of the tokeniser, which has files of its own"),
    IDLE("mask_token_id", "int|null", "of the tokeniser, which has files of its own"),
    IDLE("unk_token_id", "int|null", "of the tokeniser, which has files of its own"),
    LAST};

/* -------------------------------------------------------------------------------- Encoders */

#define ENCODER                                                                                    \
    IDLE("is_causal", "bool|null", "of decoders"),                                                 \
        IDLE("tie_word_embeddings", "bool", "its head"),                                           \
        IDLE("eos_token_id", "int|null", "of decoders")
#define BERT                                                                                       \
    ENCODER, USED("hidden_size", "int", "numbers of a token"),                                     \
        USED("num_hidden_layers", "int", "layers"), USED("num_attention_heads", "int", "heads"),   \
        USED("intermediate_size", "int", "width of the MLP"),                                      \
        USED("max_position_embeddings", "int", "places"),                                          \
        USED("type_vocab_size", "int", "segments; 2"), USED("hidden_act", "text", "of the MLP"),   \
        USED("layer_norm_eps", "real", "of the norms; 1e-12"),                                     \
        IDLE("hidden_dropout_prob", "0.1|0", "of training"),                                       \
        IDLE("attention_probs_dropout_prob", "0.1|0", "of training")

static const config_key bert[] = {BERT,
                                  IDLE("pad_token_id", "0|1|null", "of the tokeniser"),
                                  IDLE("directionality", "text|null", "bidi, always"),
                                  IDLE("pooler_fc_size", "int|null", "of another library"),
                                  IDLE("pooler_num_attention_heads", "int|null",
                                       "of another library"),
                                  IDLE("pooler_num_fc_layers", "int|null", "of another library"),
                                  IDLE("pooler_size_per_head", "int|null", "of another library"),
                                  IDLE("pooler_type", "text|null", "of another library"),
                                  LAST};

static const config_key roberta[] = {
    BERT, USED("pad_token_id", "int", "the token whose id places are counted from; 1"), LAST};

static const config_key distilbert[] = {
    ENCODER,
    USED("dim", "int", "numbers of a token"),
    USED("hidden_size", "int", "another name of dim, which comes first"),
    USED("n_layers", "int", "layers"),
    USED("num_hidden_layers", "int", "another name of n_layers, which comes first"),
    USED("n_heads", "int", "heads"),
    USED("num_attention_heads", "int", "another name of n_heads, which comes first"),
    USED("hidden_dim", "int", "width of the MLP"),
    USED("max_position_embeddings", "int", "places"),
    USED("activation", "text", "of the MLP"),
    IDLE("layer_norm_eps", "real", "its norms always have 1e-12"),
    IDLE("sinusoidal_pos_embds", "bool", "places before training"),
    IDLE("dropout", "0.1|0", "of training"),
    IDLE("attention_dropout", "0.1|0", "of training"),
    IDLE("qa_dropout", "0.1|0", "of training"),
    IDLE("seq_classif_dropout", "0.1|0", "of training"),
    IDLE("pad_token_id", "0|1|null", "of the tokeniser"),
    IDLE("tie_weights_", "bool|null", "its head"),
    LAST};

/* -------------------------------------------------------------------------------- Decoders */

#define DECODER                                                                                    \
    FIXED("is_causal", "true", "whether tokens see only themselves and those before"),             \
        FIXED("attention_chunk_size", "null", "keys that a token sees, in chunks"),                \
        USED("tie_word_embeddings", "bool",                                                        \
             "the head is the table of tokens, if the file has "                                   \
             "no head"),                                                                           \
        USED("eos_token_id", "int|list|null", "tokens that end a text"),                           \
        IDLE("pad_token_id", "0|1|null", "of the tokeniser")

static const config_key gpt2[] = {
    DECODER,
    USED("n_embd", "int", "numbers of a token"),
    USED("hidden_size", "int", "another name of n_embd, which comes first"),
    USED("n_layer", "int", "layers"),
    USED("num_hidden_layers", "int", "another name of n_layer, which comes first"),
    USED("n_head", "int", "heads"),
    USED("num_attention_heads", "int", "another name of n_head, which comes first"),
    USED("n_positions", "int", "places"),
    USED("max_position_embeddings", "int", "another name of n_positions, which comes first"),
    USED("n_inner", "int|null", "width of the MLP; 4 n_embd"),
    USED("activation_function", "text", "of the MLP; gelu_new"),
    USED("layer_norm_epsilon", "real", "of the norms; 1e-5"),
    USED("scale_attn_weights", "bool", "scores are divided by the root of a head's size"),
    USED("scale_attn_by_inverse_layer_idx", "bool", "and by the layer's number"),
    FIXED("sliding_window", "null", "keys that a token sees"),
    FIXED("layer_types", "null", "which layers have a window"),
    IDLE("reorder_and_upcast_attn", "bool", "of f16"),
    IDLE("n_ctx", "int|null", "places, once more"),
    IDLE("resid_pdrop", "0.1|0", "of training"),
    IDLE("embd_pdrop", "0.1|0", "of training"),
    IDLE("attn_pdrop", "0.1|0", "of training"),
    IDLE("summary_type", "cls_index|last", "of classes"),
    IDLE("summary_use_proj", "bool", "of classes"),
    IDLE("summary_activation", "tanh|null", "of classes"),
    IDLE("summary_proj_to_labels", "bool", "of classes"),
    IDLE("summary_first_dropout", "0.1|0", "of classes"),
    IDLE("predict_special_tokens", "bool|null", "of training"),
    LAST};

#define ROTATED                                                                                    \
    DECODER, USED("hidden_size", "int", "numbers of a token"),                                     \
        USED("num_hidden_layers", "int", "layers"), USED("num_attention_heads", "int", "heads"),   \
        USED("intermediate_size", "int", "width of the MLP"),                                      \
        USED("hidden_act", "text", "of the MLP; silu"),                                            \
        USED("rms_norm_eps", "real", "of the norms; 1e-6"),                                        \
        USED("max_position_embeddings", "int", "tokens it was made for; longer texts are read"),   \
        USED("original_max_position_embeddings", "int", "of rope_parameters; comes first"),        \
        USED("rope_theta", "real", "of rope_parameters, which comes first; 10000"),                \
        USED("rope_parameters", "object|null", "how places turn queries and keys"),                \
        USED("rope_scaling", "object|null", "the older name of rope_parameters; comes first"),     \
        FIXED("partial_rotary_factor", "1|null", "how much of a head is turned"),                  \
        IDLE("attention_dropout", "0.1|0", "of training")

static const config_key llama[] = {
    ROTATED,
    USED("num_key_value_heads", "int|null", "heads of keys; as many as heads"),
    USED("head_dim", "int|null", "a head's size; hidden_size / heads"),
    USED("attention_bias", "bool", "whether attention has biases; false"),
    USED("mlp_bias", "bool", "whether the MLP has biases; false"),
    FIXED("sliding_window", "null", "keys that a token sees"),
    FIXED("layer_types", "null", "which layers have a window"),
    IDLE("pretraining_tp", "int|null", "of training"),
    LAST};

static const config_key mistral[] = {
    ROTATED,
    USED("num_key_value_heads", "int", "heads of keys; 8"),
    USED("head_dim", "int|null", "a head's size; hidden_size / heads"),
    USED("sliding_window", "int|null", "keys that a token sees; 4096; null: all"),
    USED("layer_types", "list|null", "which layers have the window; all"),
    LAST};

static const config_key qwen2[] = {
    ROTATED,
    USED("num_key_value_heads", "int|null", "heads of keys; 32"),
    USED("head_dim", "int", "a head's size; hidden_size / heads"),
    USED("use_sliding_window", "bool", "whether there is a window; false"),
    USED("sliding_window", "int|null", "keys that a token sees; 4096"),
    USED("max_window_layers", "int", "layers without a window, the first ones; 28"),
    USED("layer_types", "list|null", "which layers have the window, instead"),
    FIXED("use_mrope", "false|null", "places of pictures"),
    LAST};

/* -------------------------------------------------------------------------------- Rotation */

const config_key model_rotation_keys[] = {
    USED("rope_type", "text", "default, linear, dynamic, yarn, longrope or llama3"),
    USED("type", "text", "the older name of rope_type, which comes first"),
    USED("rope_theta", "real", "how slowly the slowest pair turns"),
    USED("factor", "real|null", "how much further than trained"),
    USED("original_max_position_embeddings", "int", "tokens it was trained for"),
    USED("low_freq_factor", "real", "of llama3"),
    USED("high_freq_factor", "real", "of llama3"),
    USED("attention_factor", "real|null", "of yarn and longrope"),
    USED("beta_fast", "real|null", "of yarn"),
    USED("beta_slow", "real|null", "of yarn"),
    USED("mscale", "real|null", "of yarn"),
    USED("mscale_all_dim", "real|null", "of yarn"),
    USED("truncate", "bool|null", "of yarn"),
    USED("short_factor", "list", "of longrope"),
    USED("long_factor", "list", "of longrope"),
    FIXED("partial_rotary_factor", "1", "how much of a head is turned"),
    FIXED("mrope_section", "null", "places of pictures"),
    LAST};

/* ------------------------------------------------------------------------------ Generation */

const config_key model_generation_keys[] = {
    USED("do_sample", "bool|null", "tokens are drawn; else the likeliest is taken"),
    USED("temperature", "real|null", "logits are divided by it; 1"),
    USED("top_k", "int|null", "drawn among so many; 50; 0: all"),
    USED("top_p", "real|null", "drawn among so much probability; 1"),
    USED("repetition_penalty", "real|null", "of tokens that were there; 1"),
    USED("no_repeat_ngram_size", "int|null", "so many never come twice in the same order; 0"),
    USED("eos_token_id", "int|list|null", "tokens that end a text"),
    FIXED("num_beams", "1|null", "texts that are tried at a time"),
    FIXED("num_beam_groups", "1|null", "texts that are tried at a time"),
    FIXED("num_return_sequences", "1|null", "texts that are made"),
    FIXED("constraints", "null", "what the text must have"),
    FIXED("force_words_ids", "null", "what the text must have"),
    FIXED("forced_bos_token_id", "null", "what the text must have"),
    FIXED("forced_eos_token_id", "null", "what the text must have"),
    FIXED("bad_words_ids", "null", "what the text must not have"),
    FIXED("suppress_tokens", "null", "what the text must not have"),
    FIXED("begin_suppress_tokens", "null", "what the text must not begin with"),
    FIXED("sequence_bias", "null", "what the text rather has"),
    FIXED("min_length", "0|null", "how long the text is at least"),
    FIXED("min_new_tokens", "0|null", "how long the text is at least"),
    FIXED("exponential_decay_length_penalty", "null", "how likely the end becomes"),
    FIXED("stop_strings", "null", "words that end a text"),
    FIXED("max_time", "null", "seconds that a text may take"),
    FIXED("encoder_repetition_penalty", "1|null", "of tokens of the prompt"),
    FIXED("encoder_no_repeat_ngram_size", "0|null", "of tokens of the prompt"),
    FIXED("token_healing", "false|null", "the prompt's last token is chosen anew"),
    FIXED("guidance_scale", "1|null", "a second prompt, to keep away from"),
    FIXED("watermarking_config", "null", "a mark that is hidden in the text"),
    FIXED("penalty_alpha", "0|null", "contrastive search"),
    FIXED("dola_layers", "null", "contrast of layers"),
    FIXED("use_mtp", "false|null", "several tokens at a time"),
    FIXED("prompt_lookup_num_tokens", "null", "several tokens at a time"),
    FIXED("assistant_early_exit", "null", "several tokens at a time"),
    FIXED("speculation_type", "null", "several tokens at a time"),
    FIXED("remove_invalid_values", "false|null", "NaN becomes a number"),
    FIXED("cache_implementation", "dynamic|static|offloaded|offloaded_static|hybrid|null",
          "how keys are kept"),
    DRAWN("min_p", "null", "drawn among those not too unlikely"),
    DRAWN("top_h", "null", "drawn among so much entropy"),
    DRAWN("typical_p", "1|null", "drawn among the typical"),
    DRAWN("epsilon_cutoff", "0|null", "drawn among those not too unlikely"),
    DRAWN("eta_cutoff", "0|null", "drawn among those not too unlikely"),
    IDLE("max_length", "int|null", "--tokens says how long the text is"),
    IDLE("max_new_tokens", "int|null", "--tokens says how long the text is"),
    IDLE("renormalize_logits", "bool|null", "softmax does so anyway"),
    IDLE("early_stopping", "bool|null", "of num_beams"),
    IDLE("length_penalty", "1|2|null", "of num_beams"),
    IDLE("diversity_penalty", "0|0.5|null", "of num_beam_groups"),
    IDLE("low_memory", "bool|null", "of penalty_alpha"),
    FIXED("is_assistant", "false|null", "several tokens at a time"),
    IDLE("num_assistant_tokens", "int|null", "of a second model"),
    IDLE("num_assistant_tokens_schedule", "constant|null", "of a second model"),
    IDLE("assistant_confidence_threshold", "0.4|null", "of a second model"),
    IDLE("assistant_lookbehind", "int|null", "of a second model"),
    FIXED("assistant_ensemble_weight", "null", "several tokens at a time"),
    IDLE("target_lookbehind", "int|null", "of a second model"),
    IDLE("max_matching_ngram_size", "int|null", "of prompt_lookup_num_tokens"),
    IDLE("cache_config", "null", "how keys are kept"),
    IDLE("max_cache_len", "null|100", "how keys are kept"),
    IDLE("use_cache", "bool|null", "whether keys are kept"),
    IDLE("prefill_chunk_size", "null", "how a prompt is read"),
    IDLE("compile_config", "null", "how it is computed"),
    IDLE("disable_compile", "bool|null", "how it is computed"),
    IDLE("continuous_batching_config", "null", "how it is computed"),
    IDLE("output_attentions", "bool|null", "what a call returns"),
    IDLE("output_hidden_states", "bool|null", "what a call returns"),
    IDLE("output_scores", "bool|null", "what a call returns"),
    IDLE("output_logits", "bool|null", "what a call returns"),
    IDLE("return_dict_in_generate", "bool|null", "what a call returns"),
    IDLE("bos_token_id", "int|null", "of the tokeniser, which has files of its own"),
    IDLE("pad_token_id", "int|null", "of the tokeniser, which has files of its own"),
    IDLE("decoder_start_token_id", "int|null", "of pairs of models"),
    IDLE("transformers_version", "text|null", "what saved it"),
    IDLE("_from_model_config", "bool|null", "what saved it"),
    IDLE("_commit_hash", "text|null", "where it came from"),
    LAST};

static const struct {
    const char *kind;
    const config_key *keys;
} families[] = {{"bert", bert},
                {"roberta", roberta},
                {"distilbert", distilbert},
                {"gpt2", gpt2},
                {"llama", llama},
                {"mistral", mistral},
                {"qwen2", qwen2},
                {"every model", model_common_keys},
                {"rope_parameters", model_rotation_keys},
                {"generation", model_generation_keys}};
enum { FAMILIES = sizeof families / sizeof *families };

const config_key *model_family_keys(const char *kind)
{
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].kind, kind) == 0)
            return families[i].keys;
    return NULL;
}

bool model_key_at(model_key *row, size_t i)
{
    static const char *const uses[] = {"used", "no effect", "fixed", "fixed where drawn"};
    for (int f = 0; f < FAMILIES; f++)
        for (const config_key *k = families[f].keys; k->name; k++)
            if (i-- == 0) {
                *row = (model_key){families[f].kind, k->name, uses[k->use], k->values, k->meaning};
                return true;
            }
    return false;
}

/* --------------------------------------------------------------------------------- Checking */

static bool is(const char *word, size_t length, const char *what)
{
    return strlen(what) == length && memcmp(word, what, length) == 0;
}

/* Whether the word is a string value, not a kind of value and not a number. */
static bool is_text(const char *word, size_t length)
{
    static const char *const kinds[] = {"int",  "real", "bool",  "text", "list",   "object",
                                        "null", "true", "false", "any",  "absent", "{}"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (is(word, length, kinds[i]))
            return false;
    return strchr("0123456789-", *word) == NULL;
}

/* Whether the value matches one alternative of a row's values. */
static bool matches(const json_t *value, const char *word, size_t length)
{
    char *end;
    if (is(word, length, "any"))
        return true;
    if (json_is_null(value))
        return is(word, length, "null");
    if (json_is_boolean(value))
        return is(word, length, "bool") || is(word, length, json_is_true(value) ? "true" : "false");
    if (json_is_string(value))
        return is(word, length, "text") ||
               (is_text(word, length) && is(word, length, json_string_value(value)));
    if (json_is_array(value))
        return is(word, length, "list");
    if (json_is_object(value))
        return is(word, length, "object") ||
               (is(word, length, "{}") && json_object_size(value) == 0);
    if (is(word, length, "real") || (is(word, length, "int") && json_is_integer(value)))
        return true;
    const double number = strtod(word, &end);
    return end == word + length && end != word && fabs(json_number_value(value) - number) == 0;
}

static bool understood(const json_t *value, const char *values)
{
    for (;;) {
        const size_t length = strcspn(values, "|");
        if (matches(value, values, length))
            return true;
        if (!values[length])
            return false;
        values += length + 1;
    }
}

static const config_key *find(const char *name, const config_key *const *tables)
{
    for (; *tables; tables++)
        for (const config_key *k = *tables; k->name; k++)
            if (strcmp(k->name, name) == 0)
                return k;
    return NULL;
}

/* Writes a value as in the file: "3", "true", "\"text\""; long ones are cut. */
static void quote(char *to, size_t size, const json_t *value)
{
    const size_t n =
        json_dumpb(value, to, size - 1, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    to[n < size ? n : size - 1] = 0;
    if (n >= size)
        memcpy(to + size - 4, "...", 4);
}

/* Writes "an integer or null" for "int|null". */
static void list_values(char *to, size_t size, const char *values)
{
    static const char *const plain[][2] = {{"int", "an integer"},     {"real", "a number"},
                                           {"bool", "true or false"}, {"text", "a string"},
                                           {"list", "a list"},        {"object", "an object"}};
    size_t used = 0;
    for (const char *v = values; used < size; v++) {
        const size_t length = strcspn(v, "|");
        const char *word = v;
        size_t n = length;
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            if (is(v, length, plain[i][0])) {
                word = plain[i][1];
                n = strlen(word);
            }
        used += (size_t)snprintf(to + used, size - used, "%s%.*s", v == values ? "" : " or ",
                                 (int)n, word);
        v += length;
        if (!*v)
            break;
    }
}

static int refuse_value(const config_key *k, const json_t *value, const key_check *how)
{
    char text[48], values[128];
    quote(text, sizeof text, value);
    list_values(values, sizeof values, k->values);
    return kit_fail(how->err, KIT_BAD_FILE, "%s: %s is %s; it %s %s", how->name, k->name, text,
                    k->use == KEY_USED ? "must be" : "is supported only as", values);
}

static int refuse_key(const char *name, const key_check *how)
{
    return kit_fail(
        how->err, KIT_BAD_FILE,
        "%s: '%.80s' is not a known key%s%s and may change the results; remove it, or ignore it "
        "with --ignore-unknown",
        how->name, name, how->kind ? " of model_type " : "", how->kind ? how->kind : "");
}

static bool ignored(const char *name, const key_check *how)
{
    const model_options *o = how->options;
    if (!o || !o->ignore_unknown)
        return false;
    if (o->ignored && !how->drawn)
        o->ignored(how->name, name);
    return true;
}

int model_check_keys(const json_t *top, const config_key *const *tables, const key_check *how)
{
    const char *name;
    json_t *value;
    const config_key *const others[] = {how->other, NULL};
    json_object_foreach((json_t *)top, name, value)
    {
        const config_key *k = find(name, tables);
        if (!k && !how->shared && !(how->other && find(name, others)) && !ignored(name, how))
            return refuse_key(name, how);
        if (k &&
            (k->use == KEY_USED || k->use == KEY_FIXED || (k->use == KEY_DRAWN && how->drawn)) &&
            !understood(value, k->values))
            return refuse_value(k, value, how);
    }
    return KIT_OK;
}
