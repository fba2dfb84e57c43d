/* Sub-word tokens: converts a text into the ids that a model was trained on, and back.
 *
 *   vocabulary.c        strings and ids, both ways
 *   chars.c             lists of characters and of tokens
 *   normalize.c         BERT's clean-up, Unicode's normal forms, and other steps before splitting
 *   wordpiece.c         BERT: words, then the longest piece in the vocabulary
 *   split.c             the patterns that split a text before its bytes are merged
 *   bpe.c               GPT-2: bytes, merged pair by pair; Llama 2: characters
 *   added.c             tokens that are found before anything else
 *   tokenizer.c         added tokens, the models above, templates, labels
 *   tokenizer_json.c    tokenizer.json
 *   tokenizer_steps.c   its normalizer
 *   tokenizer_folder.c  the files of a model's folder, and the class of its tokeniser
 *   tokenizer_old.c     vocab.txt, vocab.json with merges.txt
 *   tokenizer_special.c the special and added tokens that the other old files name
 *   tokenizer_keys.c    every key of all these files: used, without effect on ids, or refused
 *
 * The ids equal those of Hugging Face's `tokenizers`. Everything unknown is refused by name.
 *
 * To add a model beside WordPiece and BPE: write its file, and add a value to text_kind and a line
 * wherever tokenizer.c and tokenizer_json.c distinguish kinds.
 */
#ifndef KIT_TOKENIZER_H
#define KIT_TOKENIZER_H

#include "../kit.h"

typedef struct kit_token {
    int64_t id;
    int64_t type;      /* segment that the template gives it: 0 or 1 */
    int which;         /* text it is from: 0, 1 (the pair); -1: added by the template */
    size_t begin, end; /* its bytes in that text */
} kit_token;

typedef struct kit_tokens {
    kit_token *token;
    size_t count, capacity;
} kit_tokens;
void kit_tokens_free(kit_tokens *tokens);

typedef struct kit_tokenizer kit_tokenizer;

/* Reads a model's folder: tokenizer.json, else vocab.txt, else vocab.json and merges.txt. */
int kit_tokenizer_open(kit_tokenizer **out, const char *folder, kit_error *err);
/* Parses the bytes of a tokenizer.json (for the fuzz target). `name` starts messages. */
int kit_tokenizer_parse(kit_tokenizer **out, const char *name, const void *bytes, size_t size,
                        kit_error *err);
/* Makes a tokeniser with one token for each of these strings. Texts are split at white space or,
 * with `letters`, into single characters. */
int kit_tokenizer_of_words(kit_tokenizer **out, const char *const *word, size_t count, bool letters,
                           kit_error *err);
void kit_tokenizer_free(kit_tokenizer *t);          /* t may be NULL */
int64_t kit_tokenizer_size(const kit_tokenizer *t); /* ids are below this */
/* Tells the tokeniser that the model has `ids` rows. KIT_BAD_FILE: its vocabulary has more tokens.
 * Added tokens may have larger ids, as a <pad> that only training uses; encoding a text that
 * contains one is refused. */
int kit_tokenizer_limit(kit_tokenizer *t, int64_t ids, const char *name, kit_error *err);

/* Gives the tokens of a text, and of a second one (NULL: none), with the template's tokens around
 * them. KIT_USAGE: a text is not UTF-8, or the vocabulary has no token for a part of it. */
int kit_tokenizer_encode(kit_tokens *out, const kit_tokenizer *t, const char *text,
                         const char *pair, kit_error *err);
/* Returns the bytes that a token stands for, which alone may not be UTF-8; NULL: there is no such
 * token. */
const char *kit_tokenizer_bytes(const kit_tokenizer *t, int64_t id, size_t *length);

/* Writes a readable label of a token: its text, with a space as U+2423; a character that several
 * tokens share as "X 1/4"; a piece inside a word as "##X"; a template's token by its name. */
#define KIT_TOKEN_LABEL 160
void kit_token_label(char out[KIT_TOKEN_LABEL], const kit_tokenizer *t, const kit_tokens *tokens,
                     size_t index, const char *text, const char *pair);

#endif
