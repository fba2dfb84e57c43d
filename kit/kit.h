/* The kit: what the program needs that is not attention. Errors here carry the exit code that the
 * command line documents, and one line that says what was wrong and what would be right. */
#ifndef KIT_H
#define KIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "attn.h"

enum {
    KIT_OK = 0,
    KIT_CHECK_FAILED = 1, /* a comparison failed */
    KIT_USAGE = 2,
    KIT_BAD_FILE = 3,
    KIT_LIMIT = 4, /* out of memory, or a size past a limit */
    KIT_NOT_FINITE = 5,
    KIT_PEER = 6
};

typedef struct kit_error {
    int code; /* of the list above */
    char message[1024];
} kit_error;

/* Fills err (may be NULL) and returns code. */
int kit_fail(kit_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ------------------------------------------------------------------------------ io/array.c
 *
 * An array in memory: dense, row-major. dtype is one of attn.h's; integer files arrive as ATTN_I64.
 * kit_array_free is safe on a zeroed array and zeroes it.
 */
#define KIT_MAX_RANK 8
typedef struct kit_array {
    attn_dtype dtype;
    int rank;
    int64_t shape[KIT_MAX_RANK];
    void *data;   /* 64-byte aligned; never NULL after success */
    size_t bytes; /* of the elements */
} kit_array;

/* Checks every product; KIT_LIMIT past `limit` bytes or without memory. Elements are zero. */
int kit_array_new(kit_array *a, attn_dtype dtype, int rank, const int64_t *shape, kit_error *err);
void kit_array_free(kit_array *a);
int64_t kit_array_count(const kit_array *a); /* elements */
/* Element i as double, whatever the dtype. */
double kit_array_get(const kit_array *a, int64_t i);
/* Makes *out a copy of a in another float dtype (round to nearest even). */
int kit_array_convert(kit_array *out, const kit_array *a, attn_dtype dtype, kit_error *err);

/* ------------------------------------------------- io/npy.c, io/npz.c, io/safetensors.c
 *
 * spec: "file.npy", "file.npz:name", "file.safetensors:name", "-" (a .npy on stdin). Strict: see
 * docs/NUMERICS.md, "Files".
 * kit_read_list: every array of the file, for `attn info`; data is not kept.
 */
int kit_read_array(kit_array *a, const char *spec, kit_error *err);
typedef struct kit_entry {
    char name[256]; /* "" in a .npy */
    attn_dtype dtype;
    int rank;
    int64_t shape[KIT_MAX_RANK];
} kit_entry;
int kit_read_list(kit_entry **entries, size_t *count, const char *path, kit_error *err);
/* How much of a spec is the file's path. */
size_t kit_spec_path_length(const char *spec);
/* The bytes of a .npy in memory (the reader's own parser; the fuzz target). */
int kit_npy_parse(kit_array *a, const void *bytes, size_t size, const char *name, kit_error *err);

/* ----------------------------------------------------------------------------- io/output.c
 *
 * A file that is whole or absent: written beside its final name, flushed, renamed over it. "-" is
 * stdout. kit_output_abort removes what was written. Several outputs of one command are committed
 * one after the other, only after all were written. Whatever goes wrong with an output is
 * KIT_LIMIT.
 */
typedef struct kit_output kit_output;
int kit_output_open(kit_output **out, const char *path, kit_error *err);
int kit_output_write(kit_output *out, const void *bytes, size_t size, kit_error *err);
int kit_output_printf(kit_output *out, kit_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int kit_output_commit(kit_output *out, kit_error *err); /* frees out, whatever it returns */
void kit_output_abort(kit_output *out);                 /* NULL is fine */
/* A .npy into an open output. bf16 arrays are written as f32. */
int kit_npy_write(kit_output *out, const kit_array *a, kit_error *err);

/* ------------------------------------------------------------------------ io/safetensors.c
 *
 * A file of named tensors, kept open: its header was checked as a whole, elements are read when
 * they are asked for. metadata: the text of a key of "__metadata__", NULL: none.
 */
typedef struct kit_safetensors kit_safetensors;
int kit_safetensors_open(kit_safetensors **out, const char *path, kit_error *err);
void kit_safetensors_close(kit_safetensors *f); /* NULL is fine */
bool kit_safetensors_has(const kit_safetensors *f, const char *name);
const char *kit_safetensors_name(const kit_safetensors *f, size_t i); /* NULL: there are i */
size_t kit_safetensors_bytes(const kit_safetensors *f);               /* of all tensors */
const char *kit_safetensors_metadata(const kit_safetensors *f, const char *key);
int kit_safetensors_load(kit_array *a, const kit_safetensors *f, const char *name, kit_error *err);

/* Writes a whole file: names and texts are UTF-8, names distinct. Wider elements come first, so
 * that every tensor is aligned to its element. */
typedef struct kit_tensor {
    const char *name;
    const kit_array *array;
} kit_tensor;
typedef struct kit_text {
    const char *key, *value;
} kit_text;
int kit_safetensors_write(kit_output *out, const kit_tensor *tensor, size_t count,
                          const kit_text *metadata, size_t metadata_count, kit_error *err);

/* ------------------------------------------------------------------------------ text/words.c
 *
 * White-space tokens with Unicode punctuation (category P) stripped from both ends; words left
 * empty are dropped. The vocabulary is the distinct words sorted by code point.
 */
typedef struct kit_words {
    size_t count;
    char **word; /* [count], UTF-8 */
    int64_t *id; /* [count], index into vocabulary */
    size_t vocabulary_count;
    char **vocabulary; /* [vocabulary_count] */
} kit_words;
int kit_words_split(kit_words *words, const char *text, kit_error *err); /* bad UTF-8: KIT_USAGE */
void kit_words_free(kit_words *words);
/* Terminal columns that a UTF-8 string takes; of its first `length` bytes. */
int kit_text_width(const char *text);
int kit_text_width_of(const char *text, size_t length);

/* ------------------------------------------------------------------------------ text/shown.c
 *
 * Text of a file or a user, as a terminal, a picture and a message may show it. The next character:
 * its bytes at *piece, where to go on is returned. White space is one space; what would move a
 * cursor or turn the direction of a line, or is not UTF-8, is U+FFFD, and *piece then is not text.
 */
const char *kit_text_next(const char *text, const char **piece, size_t *length);
void kit_text_print(FILE *to, const char *text);
/* The same text as a JSON string: nothing is lost but what is not UTF-8; the rest is escaped. */
typedef void kit_text_sink(void *to, const char *bytes, size_t size);
void kit_text_json(const char *text, kit_text_sink *put, void *to);

#endif
