/* Sub-word tokens: a text as the ids that a model was trained on, and back.
 *
 *   vocabulary.c        strings and ids, both ways
 *   normalize.c         BERT's clean-up, Unicode's normal forms, and other steps before all else
 *   wordpiece.c         BERT: words, then the longest piece that the vocabulary has
 *   split.c             GPT-2's and Llama 3's patterns, that cut a text before its bytes are merged
 *   bpe.c               GPT-2: bytes, merged pair by pair; Llama 2: characters
 *   added.c             tokens that are found before anything else
 *   tokenizer.c         added tokens, the models above, templates, labels
 *   tokenizer_json.c    tokenizer.json
 *   tokenizer_steps.c   its normalizer
 *   tokenizer_folder.c  which files a model's folder has, and of which class its tokeniser is
 *   tokenizer_old.c     vocab.txt, vocab.json with merges.txt
 *   tokenizer_special.c the special and added tokens that the files beside these name
 *   tokenizer_keys.c    every key of all these files: used, without effect on ids, or refused
 *
 * The ids are those of Hugging Face's `tokenizers`. What is not known here is refused by its name.
 *
 * To add a model beside WordPiece and BPE: its file, a value of text_kind, and a line where
 * tokenizer.c and tokenizer_json.c tell kinds apart.
 */
#ifndef KIT_TOKENIZER_H
#define KIT_TOKENIZER_H

#include "../kit.h"

typedef struct kit_token {
    int64_t id;
    int64_t type;      /* the segment that the template gives it: 0, 1 */
    int which;         /* the text it is from: 0, 1 (the pair); -1: the template's own */
    size_t begin, end; /* its bytes there */
} kit_token;

typedef struct kit_tokens {
    kit_token *token;
    size_t count, capacity;
} kit_tokens;
void kit_tokens_free(kit_tokens *tokens);

typedef struct kit_tokenizer kit_tokenizer;

/* From a model's folder: tokenizer.json, else vocab.txt, else vocab.json and merges.txt. */
int kit_tokenizer_open(kit_tokenizer **out, const char *folder, kit_error *err);
/* From the bytes of a tokenizer.json (the fuzz target). `name` starts messages. */
int kit_tokenizer_parse(kit_tokenizer **out, const char *name, const void *bytes, size_t size,
                        kit_error *err);
/* One token for each of these texts, which are cut at white space or, with `letters`, nowhere. */
int kit_tokenizer_of_words(kit_tokenizer **out, const char *const *word, size_t count, bool letters,
                           kit_error *err);
void kit_tokenizer_free(kit_tokenizer *t);          /* NULL is fine */
int64_t kit_tokenizer_size(const kit_tokenizer *t); /* ids are below it */
/* The model has this many rows. KIT_BAD_FILE: its vocabulary has more. Added tokens may be beyond,
 * as a <pad> that only training uses: a text that has one is refused when it is encoded. */
int kit_tokenizer_limit(kit_tokenizer *t, int64_t ids, const char *name, kit_error *err);

/* The tokens of a text, and of a second one (NULL: none), with the template's tokens around them.
 * KIT_USAGE: not UTF-8, or what the vocabulary has no token for. */
int kit_tokenizer_encode(kit_tokens *out, const kit_tokenizer *t, const char *text,
                         const char *pair, kit_error *err);
/* The bytes that a token stands for, alone not always UTF-8; NULL: there is no such token. */
const char *kit_tokenizer_bytes(const kit_tokenizer *t, int64_t id, size_t *length);

/* A token for people: the text that it stands for, a space as U+2423, a character that several
 * tokens share as "X 1/4", a piece inside a word as "##X", a template's token by its name. */
#define KIT_TOKEN_LABEL 160
void kit_token_label(char out[KIT_TOKEN_LABEL], const kit_tokenizer *t, const kit_tokens *tokens,
                     size_t index, const char *text, const char *pair);

#endif
