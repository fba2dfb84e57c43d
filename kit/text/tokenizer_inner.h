/* What the tokeniser's files share; tokenizer.h is the face that others see. */
#ifndef KIT_TOKENIZER_INNER_H
#define KIT_TOKENIZER_INNER_H

#include <jansson.h>

#include "tokenizer.h"

/* ---------------------------------------------------------------------------- vocabulary.c */
#define TEXT_IDS ((int64_t)1 << 24) /* ids are below this */

typedef struct text_entry {
    char *bytes; /* owned; NULL: no such token */
    size_t length;
    bool hidden; /* not to be found by its bytes */
} text_entry;

typedef struct text_vocabulary {
    text_entry *entry; /* [size], by id */
    int64_t size, capacity;
    uint32_t *slot; /* id + 1; 0: free */
    size_t slots, used;
} text_vocabulary;
/* KIT_BAD_FILE: the id or the bytes are taken; name starts the message. */
int text_vocabulary_add(text_vocabulary *v, const char *bytes, size_t length, int64_t id,
                        bool hidden, const char *name, kit_error *err);
int64_t text_vocabulary_find(const text_vocabulary *v, const char *bytes,
                             size_t length); /* or -1 */
void text_vocabulary_free(text_vocabulary *v);

/* A table from pairs of ids to merges. */
typedef struct text_merge {
    uint32_t left, right, rank, made;
} text_merge;
typedef struct text_merges {
    text_merge *slot; /* made 0 and rank UINT32_MAX: free */
    size_t slots;
    uint32_t count;
} text_merges;
int text_merges_reserve(text_merges *m, size_t count, const char *name, kit_error *err);
/* KIT_BAD_FILE: the pair was there before. */
int text_merges_add(text_merges *m, int64_t left, int64_t right, int64_t made, const char *name,
                    kit_error *err);
const text_merge *text_merges_find(const text_merges *m, uint32_t left, uint32_t right);

/* ------------------------------------------------------------------------------ Characters
 *
 * A text as characters, each with the bytes of the source that it came from. */
typedef struct text_char {
    int32_t code;
    uint32_t begin, end;
} text_char;
typedef struct text_chars {
    text_char *at;
    size_t count, capacity;
} text_chars;
int text_chars_add(text_chars *c, text_char one, kit_error *err);
int text_chars_decode(text_chars *c, const char *text, kit_error *err); /* KIT_USAGE: not UTF-8 */
bool text_is_space(int32_t code);                                       /* Unicode's White_Space */

/* Of several characters, which marks that changed places may have left out of order. */
void text_chars_span(size_t *begin, size_t *end, const text_char *c, size_t count);

/* ----------------------------------------------------------------------------- normalize.c
 *
 * Steps, one after the other. */
typedef enum text_step_kind {
    TEXT_BERT,
    TEXT_FORM, /* NFD, NFC, NFKD, NFKC */
    TEXT_LOWER,
    TEXT_STRIP_ACCENTS, /* marks of all kinds */
    TEXT_STRIP,         /* white space at the ends */
    TEXT_PREPEND,       /* `to`, unless the text is empty */
    TEXT_REPLACE        /* each `from`, from the left, by `to` */
} text_step_kind;
typedef struct text_step {
    text_step_kind kind;
    bool clean, cjk, strip, lower; /* TEXT_BERT */
    bool compose, compatible;      /* TEXT_FORM */
    bool left, right;              /* TEXT_STRIP */
    text_chars from, to;           /* owned */
} text_step;
enum { TEXT_STEPS = 16 };
typedef struct text_normalizer {
    text_step step[TEXT_STEPS];
    int count;
} text_normalizer;
int text_normalize(text_chars *out, const text_normalizer *n, const text_char *in, size_t count,
                   kit_error *err);
void text_normalizer_free(text_normalizer *n);

/* --------------------------------------------------------------------------------- split.c */
typedef enum text_pattern { TEXT_WHOLE, TEXT_GPT2, TEXT_LLAMA3, TEXT_QWEN2 } text_pattern;
/* Which one a regular expression is; false: not known. */
bool text_pattern_find(text_pattern *pattern, const char *regex);
/* Characters of the first piece, at least 1; count > 0. */
size_t text_split(text_pattern pattern, const text_char *c, size_t count);

/* --------------------------------------------------------------------------- The tokeniser */
typedef enum text_kind { TEXT_WORDPIECE, TEXT_BPE, TEXT_WORDS, TEXT_LETTERS } text_kind;

typedef struct text_added {
    int64_t id;
    text_chars chars;             /* as they stand in a text, or in a normalised one */
    bool normalized, left, right; /* left, right: takes the white space there with it */
} text_added;

typedef struct text_item { /* of a template */
    int64_t id, type;
    int which; /* the text that stands here; -1: token `id` */
} text_item;
enum { TEXT_ITEMS = 16 };
typedef struct text_template {
    text_item item[TEXT_ITEMS];
    int count;
} text_template;

struct kit_tokenizer {
    text_kind kind;
    text_vocabulary vocabulary;
    text_added *added;
    size_t added_count;
    text_normalizer normalizer;
    text_template single, pair;
    /* WordPiece */
    char *prefix; /* of a piece inside a word */
    int64_t unknown, longest;
    /* BPE */
    text_pattern pattern;
    bool prefix_space, whole_words;
    bool characters; /* SentencePiece's: pieces are characters, and bytes where there is none */
    text_merges merges;
    int64_t byte_id[256]; /* -1: none */
};

int text_tokens_add(kit_tokens *tokens, int64_t id, size_t begin, size_t end, kit_error *err);
/* A part of a text without added tokens. */
int text_wordpiece_encode(kit_tokens *out, const kit_tokenizer *t, const text_char *chars,
                          size_t count, kit_error *err);
int text_bpe_encode(kit_tokens *out, const kit_tokenizer *t, const text_char *chars, size_t count,
                    kit_error *err);

/* Token strings of a byte-level vocabulary, whose characters stand for bytes: into raw bytes.
 * false: it has other characters; out needs length + 1 bytes. */
bool text_bytes_of(char *out, size_t *out_length, const char *token, size_t length);
/* The same with characters: U+2581 stands for a space, and all others for themselves. */
bool text_piece_of(char *out, size_t *out_length, const kit_tokenizer *t, const char *token,
                   size_t length);
/* One token of a vocabulary for BPE; one line of its merges, "a b" or two texts. */
int text_bpe_add(kit_tokenizer *t, const char *token, size_t length, int64_t id, const char *name,
                 kit_error *err);
int text_bpe_merge(kit_tokenizer *t, const char *a, size_t a_length, const char *b, size_t b_length,
                   const char *name, kit_error *err);
/* After the vocabulary: the tokens of single bytes. With characters all must be there. */
int text_bpe_finish(kit_tokenizer *t, const char *name, kit_error *err);

/* A token that is found before anything else; its id is that of the vocabulary or a new one. */
int text_added_add(kit_tokenizer *t, const char *content, int64_t id, bool normalized, bool left,
                   bool right, const char *name, kit_error *err);
int text_tokenizer_new(kit_tokenizer **out, text_kind kind, const char *name, kit_error *err);
/* "[CLS] A [SEP]" and "... B [SEP]" from the ids; doubled: "</s></s>" between, types all 0. */
void text_template_surround(kit_tokenizer *t, int64_t first, int64_t last, bool doubled);
/* tokenizer_steps.c: "normalizer" of a tokenizer.json. */
int text_normalizer_read(text_normalizer *to, const json_t *n, const char *name, kit_error *err);
int text_refuse(const char *name, const char *what, const char *found, const char *known,
                kit_error *err);
int text_tokenizer_read(kit_tokenizer *t, const json_t *top, const char *name, kit_error *err);

#endif
