/* Shared by the tokeniser's files; tokenizer.h is the interface for everyone else. */
#ifndef KIT_TOKENIZER_INNER_H
#define KIT_TOKENIZER_INNER_H

#include <jansson.h>

#include "tokenizer.h"

/* ---------------------------------------------------------------------------- vocabulary.c */
#define TEXT_IDS ((int64_t)1 << 24) /* ids are below this */

enum { TEXT_PATH = 4096 };
#define TEXT_FILE_LIMIT ((size_t)256 << 20)

typedef struct text_entry {
    char *bytes; /* owned; NULL: no such token */
    size_t length;
} text_entry;

typedef enum text_sought {
    TEXT_BY_BYTES, /* a piece of a text, found by its bytes in the text */
    TEXT_BY_NAME,  /* found by its string in the file, only as an added token */
    TEXT_BY_ID     /* "<0x0A>" */
} text_sought;

typedef struct text_slots {
    uint32_t *slot; /* id + 1; 0: unused */
    size_t slots, used;
} text_slots;

typedef struct text_vocabulary {
    text_entry *entry;             /* [size], by id */
    int64_t size, capacity, count; /* count: entries that have a token */
    text_slots pieces, names;
} text_vocabulary;
/* KIT_BAD_FILE: the id or the bytes are already used. `name` starts the message. */
int text_vocabulary_add(text_vocabulary *v, const char *bytes, size_t length, int64_t id,
                        text_sought by, const char *name, kit_error *err);
/* Find a token that was added TEXT_BY_BYTES, or TEXT_BY_NAME; -1: none. */
int64_t text_vocabulary_find(const text_vocabulary *v, const char *bytes, size_t length);
int64_t text_vocabulary_find_name(const text_vocabulary *v, const char *bytes, size_t length);
void text_vocabulary_free(text_vocabulary *v);

/* A table from pairs of ids to merges. */
typedef struct text_merge {
    uint32_t left, right, rank, made;
} text_merge;
typedef struct text_merges {
    text_merge *slot; /* made 0 and rank UINT32_MAX: unused */
    size_t slots;
    uint32_t count;
} text_merges;
int text_merges_reserve(text_merges *m, size_t count, const char *name, kit_error *err);
/* KIT_BAD_FILE: the pair was already added. */
int text_merges_add(text_merges *m, int64_t left, int64_t right, int64_t made, const char *name,
                    kit_error *err);
const text_merge *text_merges_find(const text_merges *m, uint32_t left, uint32_t right);

/* ------------------------------------------------------------------------------ Characters
 *
 * A text as characters, each with the source bytes that it came from. */
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

/* The source bytes of several characters. Marks that were sorted may be out of order. */
void text_chars_span(size_t *begin, size_t *end, const text_char *c, size_t count);

/* ----------------------------------------------------------------------------- normalize.c
 *
 * Steps, applied one after the other. */
typedef enum text_step_kind {
    TEXT_BERT,
    TEXT_FORM, /* NFD, NFC, NFKD, NFKC */
    TEXT_LOWER,
    TEXT_STRIP_ACCENTS, /* marks of all kinds */
    TEXT_STRIP,         /* white space at one end or both */
    TEXT_PREPEND,       /* `to`, unless the text is empty */
    TEXT_REPLACE        /* replaces each `from`, leftmost first, by `to` */
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
/* Finds the pattern that equals this regular expression; false: unknown. */
bool text_pattern_find(text_pattern *pattern, const char *regex);
/* Returns the number of characters of the first piece, at least 1; count > 0. */
size_t text_split(text_pattern pattern, const text_char *c, size_t count);

/* --------------------------------------------------------------------------- The tokeniser */
typedef enum text_kind { TEXT_WORDPIECE, TEXT_BPE, TEXT_WORDS, TEXT_LETTERS } text_kind;

typedef struct text_manner { /* how an added token is found */
    bool normalized;         /* in the normalised text; else in the raw text */
    bool left, right;        /* also takes the white space on that side */
    bool single;             /* not next to a letter, a digit or another word character */
} text_manner;

typedef struct text_added {
    int64_t id;
    text_chars chars; /* as they occur in the text, or in the normalised text */
    text_manner manner;
} text_added;

typedef struct text_item { /* element of a template */
    int64_t id, type;
    int which; /* the text that is put here; -1: token `id` */
} text_item;
enum { TEXT_ITEMS = 16 };
typedef struct text_template {
    text_item item[TEXT_ITEMS];
    int count;
} text_template;

struct kit_tokenizer {
    text_kind kind;
    text_vocabulary vocabulary;
    int64_t own_end; /* above all ids of the model except those of added tokens */
    int64_t unused;  /* tokens that `tokenizers` counts but no text can have */
    int64_t limit;   /* texts may only have ids below this; 0: all ids */
    text_added *added;
    size_t added_count;
    text_normalizer normalizer;
    text_template single, pair;
    /* WordPiece */
    char *prefix; /* prefix of a piece inside a word */
    int64_t unknown, longest;
    /* BPE */
    text_pattern pattern;
    bool prefix_space, whole_words;
    bool fuse_unknown;
    bool characters; /* SentencePiece: pieces are characters, or bytes for unknown characters */
    text_merges merges;
    int64_t byte_id[256]; /* -1: none */
};

int text_tokens_add(kit_tokens *tokens, int64_t id, size_t begin, size_t end, kit_error *err);
/* Encode a part of a text that has no added tokens. */
int text_wordpiece_encode(kit_tokens *out, const kit_tokenizer *t, const text_char *chars,
                          size_t count, kit_error *err);
int text_bpe_encode(kit_tokens *out, const kit_tokenizer *t, const text_char *chars, size_t count,
                    kit_error *err);

/* Converts a token string of a byte-level vocabulary, whose characters stand for bytes, into raw
 * bytes. false: it has other characters. out needs length + 1 bytes. */
bool text_bytes_of(char *out, size_t *out_length, const char *token, size_t length);
/* The same; with t->characters, U+2581 stands for a space and every other character for itself. */
bool text_piece_of(char *out, size_t *out_length, const kit_tokenizer *t, const char *token,
                   size_t length);
/* Returns the byte that a token such as "<0x0A>" stands for, or -1. */
int text_byte_token(const char *token, size_t length);
/* Add one token of a BPE vocabulary, and one merge: a line "a b" or two texts. */
int text_bpe_add(kit_tokenizer *t, const char *token, size_t length, int64_t id, const char *name,
                 kit_error *err);
int text_bpe_merge(kit_tokenizer *t, const char *a, size_t a_length, const char *b, size_t b_length,
                   const char *name, kit_error *err);
/* To call after the vocabulary is read: finds the tokens of single bytes. With t->characters, all
 * must exist. */
int text_bpe_finish(kit_tokenizer *t, const char *name, kit_error *err);

/* Gives the id of a token by its string in the file, or -1. */
int text_token_id(int64_t *id, const kit_tokenizer *t, const char *content, const char *name,
                  kit_error *err);
/* Adds a token that is found before anything else; its id is the vocabulary's or a new one. If
 * several tokens have one id, the last one counts. */
int text_added_add(kit_tokenizer *t, const char *content, int64_t id, text_manner manner,
                   const char *name, kit_error *err);
/* text_added_at returns the longest added token at the start of `c`, or NULL. text_added_fits tells
 * whether it may stand at c[at]. */
const text_added *text_added_at(const kit_tokenizer *t, bool normalized, const text_char *c,
                                size_t count);
bool text_added_fits(const text_added *a, const text_char *c, size_t at, size_t count);
int text_tokenizer_new(kit_tokenizer **out, text_kind kind, const char *name, kit_error *err);
/* Sets the templates "[CLS] A [SEP]" and "... B [SEP]" from the ids. doubled: "</s></s>" between
 * the texts, and all types 0. */
void text_template_surround(kit_tokenizer *t, int64_t first, int64_t last, bool doubled);
/* Puts a first and a last token around each text, which has type 0 or 1; -1: none. */
void text_template_each(kit_tokenizer *t, int64_t first, int64_t last);
/* tokenizer_steps.c: reads the "normalizer" of a tokenizer.json. */
int text_normalizer_read(text_normalizer *to, const json_t *n, const char *name, kit_error *err);
int text_refuse(const char *name, const char *what, const char *found, const char *known,
                kit_error *err);
int text_tokenizer_read(kit_tokenizer *t, const json_t *top, const char *name, kit_error *err);
/* Reads {"token": id, ...} into the vocabulary; t->kind is set. */
int text_vocabulary_read(kit_tokenizer *t, json_t *vocab, const char *name, kit_error *err);

/* ------------------------------------------------------------------------ tokenizer_keys.c
 *
 * Each key is used, has no effect on ids, or is refused by name; so is its value. */
typedef enum text_class { /* tokeniser classes of old files, as bits */
                          TEXT_CLASS_BERT = 1,
                          TEXT_CLASS_ROBERTA = 2,
                          TEXT_CLASS_GPT2 = 4,
                          TEXT_CLASS_QWEN2 = 8
} text_class;
const char *text_class_name(text_class c);
/* Check the keys of tokenizer_config.json, or of special_tokens_map.json. */
int text_config_keys_check(const json_t *config, text_class c, const char *name, kit_error *err);
int text_map_keys_check(const json_t *map, const char *name, kit_error *err);
/* Checks the keys of an object of a tokenizer.json; `what` names it, such as "model BPE". */
int text_keys_check(const json_t *object, const char *what, const char *name, kit_error *err);

/* --------------------------------------------------------------------- tokenizer_special.c */
typedef struct text_old { /* the files beside the vocabulary; NULL: absent */
    text_class class;
    const json_t *config, *map, *added;
    const char *config_name, *map_name, *added_name;
} text_old;
enum { TEXT_BOS, TEXT_EOS, TEXT_UNK, TEXT_SEP, TEXT_PAD, TEXT_CLS, TEXT_MASK, TEXT_NAMED };
/* Adds all tokens that the files name, with the ids that transformers gives them. To call after the
 * vocabulary is read. named: bos_token and so on, by TEXT_BOS...; NULL: none. The strings live as
 * long as the files. */
int text_special_add(kit_tokenizer *t, const char *named[TEXT_NAMED], const text_old *old,
                     kit_error *err);
/* Refuses tokens that these files name and tokenizer.json does not have, because transformers would
 * add them; adds the default tokens of old->class (0: none) that the vocabulary has; takes the
 * options of added_tokens_decoder. name: that of tokenizer.json. */
int text_special_beside(kit_tokenizer *t, const text_old *old, const char *name, kit_error *err);
/* tokenizer_old.c: reads vocab.txt, or vocab.json with merges.txt. */
int text_old_read(kit_tokenizer *t, const char *folder, const text_old *old, kit_error *err);
bool text_find_file(char path[TEXT_PATH], const char *folder, const char *name);

#endif
