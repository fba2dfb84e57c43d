/* Small tokenisers, written out, for the tests. */
#ifndef TOKENIZER_SAMPLES_H
#define TOKENIZER_SAMPLES_H

#include <stdio.h>

#define WORDPIECE_MODEL                                                                            \
    "{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,"          \
    "\"[SEP]\":2,\"un\":3,\"##aff\":4,\"##able\":5,\"a\":6,\"##b\":7,\",\":8,\"\xE4\xB8\xAD\":9,"  \
    "\"e\":10,\"caf\":11,\"##e\":12}}"
#define WORDPIECE_TEMPLATE                                                                         \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"[CLS]\","            \
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":"       \
    "\"[SEP]\",\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"            \
    "{\"SpecialToken\":{\"id\":\"[SEP]\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\","             \
    "\"type_id\":1}}],\"special_tokens\":{\"[CLS]\":{\"id\":\"[CLS]\",\"ids\":[1],"                \
    "\"tokens\":[\"[CLS]\"]},\"[SEP]\":{\"id\":\"[SEP]\",\"ids\":[2],\"tokens\":[\"[SEP]\"]}}}"
#define WORDPIECE_OF(model, added)                                                                 \
    "{\"added_tokens\":[" added "],\"normalizer\":{\"type\":\"BertNormalizer\"},"                  \
    "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"post_processor\":" WORDPIECE_TEMPLATE     \
    ",\"model\":" model "}"
#define WORDPIECE                                                                                  \
    WORDPIECE_OF(WORDPIECE_MODEL, "{\"id\":2,\"content\":\"[SEP]\",\"normalized\":false}")

/* U+0120 is how a space is written; 0xC3 and 0xA9 stand for themselves. */
#define BPE_VOCABULARY                                                                             \
    "{\"a\":0,\"b\":1,\"c\":2,\"\xC4\xA0\":3,\"ab\":4,\"abc\":5,\"\xC4\xA0"                        \
    "abc\":6,\"bc\":7,\"\xC3\x83\":8,\"\xC2\xA9\":9,\"1\":10,\"'\":11,\"s\":12}"
#define BPE_MERGES "[\"a b\",\"ab c\",\"\xC4\xA0 abc\",\"b c\"]"
#define BPE_ADDED(id, vocabulary, merges, before)                                                  \
    "{\"added_tokens\":[{\"id\":" id                                                               \
    ",\"content\":\"<end>\",\"normalized\":false,\"lstrip\":true}],"                               \
    "\"pre_tokenizer\":" before ",\"model\":{\"type\":\"BPE\",\"vocab\":" vocabulary               \
    ",\"merges\":" merges "}}"
#define BPE_OF(vocabulary, merges, before) BPE_ADDED("13", vocabulary, merges, before)
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SPLIT_OF(regex)                                                                            \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"" regex                                                                                     \
    "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"           \
    "\"use_regex\":false}]}"
/* Llama 3's and Qwen 2's patterns, which differ in how many digits are one piece. */
#define SPLIT_WITH_DIGITS(digits)                                                                  \
    SPLIT_OF(                                                                                      \
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits             \
        "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
#define SPLIT_OF_LLAMA3 SPLIT_WITH_DIGITS("\\\\p{N}{1,3}")
#define SPLIT_OF_QWEN2 SPLIT_WITH_DIGITS("\\\\p{N}")
#define BPE_NORMALIZED(normalizer)                                                                 \
    "{\"normalizer\":" normalizer ",\"pre_tokenizer\":" BYTE_LEVEL                                 \
    ",\"model\":{\"type\":\"BPE\",\"vocab\":" BPE_VOCABULARY ",\"merges\":" BPE_MERGES "}}"
#define BPE BPE_OF(BPE_VOCABULARY, BPE_MERGES, BYTE_LEVEL)

/* SentencePiece's BPE: 256 tokens of bytes, then these from 256 on; U+2581 stands for a space. */
#define MARKED "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}"
#define PREPEND_MARK "{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"}"
#define MARK_SPACES "{\"type\":\"Sequence\",\"normalizers\":[" PREPEND_MARK "," MARKED "]}"
#define PIECES                                                                                     \
    "\"\xE2\x96\x81\":256,\"a\":257,\"b\":258,\"ab\":259,\"\xE2\x96\x81"                           \
    "ab\":260,\"\xC3\xA9\":261,\"\xE2\x96\x81\xE2\x96\x81\":262"
#define PIECE_MERGES "\"a b\",[\"\xE2\x96\x81\",\"ab\"],[\"\xE2\x96\x81\",\"\xE2\x96\x81\"]"
/* Into `json` of `size` bytes; the byte tokens up to `last`. */
__attribute__((unused)) static void sentence_piece(char *json, size_t size, const char *normalizer,
                                                   int last, const char *more)
{
    int used = snprintf(json, size,
                        "{\"normalizer\":%s%s,\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
                        "\"vocab\":{",
                        normalizer, more);
    for (int b = 0; b <= last; b++)
        used += snprintf(json + used, size - (size_t)used, "\"<0x%02X>\":%d,", (unsigned)b, b);
    snprintf(json + used, size - (size_t)used, PIECES "},\"merges\":[" PIECE_MERGES "]}}");
}
enum { SENTENCE_PIECE_ROOM = 8192 };

#define GPT2_CONFIG                                                                                \
    "{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":2,\"n_head\":2,"          \
    "\"n_positions\":16,\"eos_token_id\":5}"
#define LLAMA_CONFIG(more)                                                                         \
    "{\"model_type\":\"llama\",\"vocab_size\":13,\"hidden_size\":8,\"num_hidden_layers\":2,"       \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":16" more "}"

#endif
