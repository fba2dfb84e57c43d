/* The kit: everything that the program needs apart from attention. An error carries the exit code
 * that the command line documents, and a one-line message that says what was wrong and what would
 * be right. */
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
    KIT_LIMIT = 4, /* out of memory, a size past a limit, or a process that is missing */
    KIT_NOT_FINITE = 5,
    KIT_PEER = 6
};

typedef struct kit_error {
    int code; /* one of the codes above */
    char message[1024];
} kit_error;

/* Fills err (may be NULL) and returns code. */
int kit_fail(kit_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* FNV-1a (Fowler, Noll and Vo) of n bytes; `hash` is KIT_HASH_START or that of the bytes before. */
#define KIT_HASH_START UINT64_C(0xCBF29CE484222325)
static inline uint64_t kit_hash(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001B3);
    return hash;
}

/* Turns the result of a call of libattn into the program's: 0 for ATTN_OK, KIT_LIMIT for memory,
 * limits and missing ranks, KIT_BAD_FILE for shapes and types, which come from files, KIT_USAGE
 * otherwise. */
int kit_engine(attn_status status, const attn_error *engine, kit_error *err);

/* ------------------------------------------------------------------------------ io/array.c
 *
 * An array in memory: dense, row-major. dtype is one of attn.h's; integers from files become
 * ATTN_I64. kit_array_free is safe on a zeroed array, and zeroes the array.
 */
#define KIT_MAX_RANK 8
typedef struct kit_array {
    attn_dtype dtype;
    int rank;
    int64_t shape[KIT_MAX_RANK];
    void *data;   /* 64-byte aligned; never NULL after success */
    size_t bytes; /* of the elements */
} kit_array;

/* All sizes are checked for overflow. KIT_LIMIT: the size cannot be addressed, or there is not
 * enough memory. The elements are zero. */
int kit_array_new(kit_array *a, attn_dtype dtype, int rank, const int64_t *shape, kit_error *err);
void kit_array_free(kit_array *a);
int64_t kit_array_count(const kit_array *a); /* elements */
/* Element i converted to double from any dtype. */
double kit_array_get(const kit_array *a, int64_t i);
/* Makes *out a copy of a in another float dtype (round to nearest even). */
int kit_array_convert(kit_array *out, const kit_array *a, attn_dtype dtype, kit_error *err);

/* ------------------------------------------------- io/npy.c, io/npz.c, io/safetensors.c
 *
 * spec: "file.npy", "file.npz:name", "file.safetensors:name", or "-" (a .npy on stdin). The readers
 * are strict: see docs/NUMERICS.md, "Files". kit_read_list gives name, dtype and shape of every
 * array of the file, for `attn info`; it does not keep the elements.
 */
int kit_read_array(kit_array *a, const char *spec, kit_error *err);
typedef struct kit_entry {
    char name[256]; /* "" in a .npy */
    attn_dtype dtype;
    int rank;
    int64_t shape[KIT_MAX_RANK];
} kit_entry;
int kit_read_list(kit_entry **entries, size_t *count, const char *path, kit_error *err);
/* Length of the file's path in a spec. */
size_t kit_spec_path_length(const char *spec);
/* ".npz" or ".safetensors" if the file's path in a spec ends so, else NULL. */
const char *kit_spec_archive(const char *spec);
/* Parses the bytes of a .npy in memory with the reader's own parser (for the fuzz target). */
int kit_npy_parse(kit_array *a, const void *bytes, size_t size, const char *name, kit_error *err);

/* A .npy file that stays open and is read in parts; for arrays that are larger than memory. Row j
 * is element [.., j, :] of each matrix of the array, of rank 2 or more. Only a regular file in C
 * order will do. */
typedef struct kit_rows kit_rows;
int kit_rows_open(kit_rows **out, const char *path, kit_error *err);
void kit_rows_close(kit_rows *rows);                   /* rows may be NULL */
const kit_array *kit_rows_array(const kit_rows *rows); /* its dtype and shape; it has no data */
/* Allocates an array for n rows of each matrix, or for all if it has fewer. */
int kit_rows_new(kit_array *a, const kit_rows *rows, int64_t n, kit_error *err);
/* Reads rows first .. first+n-1 of each matrix into `to`, [.., n, columns]. */
int kit_rows_read(kit_rows *rows, int64_t first, int64_t n, void *to, kit_error *err);
/* The same into rows to .. to+n-1 of each matrix of `part`, which has the file's dtype and shape,
 * except for its number of rows. */
int kit_rows_read_to(kit_rows *rows, int64_t first, int64_t n, kit_array *part, int64_t to,
                     kit_error *err);
/* Rows of such a file in memory, as floats of `dtype`: the file's own pages if it has this dtype
 * and the system can map them, else a copy. The rows of matrix m begin at data's element
 * m * stride. */
typedef struct kit_view {
    const void *data;
    int64_t stride;
    struct kit_view_storage *storage;
} kit_view;
bool kit_rows_mappable(const kit_rows *rows, attn_dtype dtype); /* false: always a copy */
int kit_view_open(kit_view *v, kit_rows *rows, attn_dtype dtype, int64_t most, kit_error *err);
/* Puts rows first .. first+n-1, n <= most, in place of those before. */
int kit_view_read(kit_view *v, int64_t first, int64_t n, kit_error *err);
/* To be called after the use of the rows. KIT_BAD_FILE: the file has become shorter, or could not
 * be read; some of the rows may have been zeros. */
int kit_view_check(const kit_view *v, kit_error *err);
void kit_view_close(kit_view *v); /* a zeroed view will do */
/* Lets the system read these rows in the background, if it can. */
void kit_rows_ahead(const kit_rows *rows, int64_t first, int64_t n);

/* All bytes of a regular file. The caller frees them. */
int kit_read_bytes(void **bytes, size_t *size, const char *path, kit_error *err);

/* ----------------------------------------------------------------------------- io/output.c
 *
 * An output file is either complete or absent: it is written under a temporary name in the same
 * folder, flushed, and renamed to its final name. "-" is stdout. kit_output_abort removes what was
 * written. If one command has several outputs, they are committed one after the other, and only
 * after all of them were written. Every error of an output is KIT_LIMIT.
 */
typedef struct kit_output kit_output;
int kit_output_open(kit_output **out, const char *path, kit_error *err);
int kit_output_write(kit_output *out, const void *bytes, size_t size, kit_error *err);
int kit_output_printf(kit_output *out, kit_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The descriptor N that "-" (1) or a name such as /dev/stdout or /dev/fd/N stands for; -1: none. */
int kit_output_descriptor(const char *path);
int kit_output_commit(kit_output *out, kit_error *err); /* frees out, also on failure */
void kit_output_abort(kit_output *out);                 /* out may be NULL */
/* Writes a .npy into an open output. bf16 arrays are written as f32. */
int kit_npy_write(kit_output *out, const kit_array *a, kit_error *err);

/* One .npy that several processes write, each some of its rows. One of them creates it with
 * kit_npy_share: under a temporary name, with its header and its full size. The others open it with
 * kit_output_join; kit_output_temporary gives them the name. Each writes its rows, then calls
 * kit_output_sync. When all have done so, the creator calls kit_output_commit, and the others call
 * kit_output_leave. Until then, kit_output_abort of any of them removes the file. Only a regular
 * file will do. `whole` has the dtype and the shape, of rank 2 or more, but needs no data. */
int kit_npy_share(kit_output **out, const char *path, const kit_array *whole, kit_error *err);
const char *kit_output_temporary(const kit_output *out); /* less than KIT_TEMPORARY bytes */
#define KIT_TEMPORARY 32
int kit_output_join(kit_output **out, const char *path, const char *temporary, kit_error *err);
/* Writes rows from .. from+n-1 of each matrix of `part` as rows first .. first+n-1 of the file. */
int kit_npy_write_rows(kit_output *out, const kit_array *whole, int64_t first,
                       const kit_array *part, int64_t from, int64_t n, kit_error *err);
int kit_output_sync(kit_output *out, kit_error *err); /* to the disk */
void kit_output_leave(kit_output *out);               /* frees out; NULL is fine */
int kit_flush_to_disk(int fd); /* fsync(fd), repeated if a signal interrupts it */

/* ------------------------------------------------------------------------ io/safetensors.c
 *
 * A file of named tensors, kept open. Opening checks the whole header; elements are read by
 * kit_safetensors_load. kit_safetensors_metadata gives the text of a key of "__metadata__"; NULL:
 * there is no such key.
 */
typedef struct kit_safetensors kit_safetensors;
int kit_safetensors_open(kit_safetensors **out, const char *path, kit_error *err);
void kit_safetensors_close(kit_safetensors *f); /* f may be NULL */
bool kit_safetensors_has(const kit_safetensors *f, const char *name);
const char *kit_safetensors_name(const kit_safetensors *f, size_t i); /* NULL: no tensor i */
size_t kit_safetensors_bytes(const kit_safetensors *f);               /* of all tensors */
const char *kit_safetensors_metadata(const kit_safetensors *f, const char *key);
int kit_safetensors_load(kit_array *a, const kit_safetensors *f, const char *name, kit_error *err);

/* Writes a whole file. Names and texts are UTF-8, names are distinct. Tensors with wider elements
 * come first, so every tensor is aligned to its element size. */
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
 * Splits text at white space and strips Unicode punctuation (category P) from both ends of each
 * word. Words that become empty are dropped. The vocabulary holds the distinct words, sorted by
 * code point.
 */
typedef struct kit_words {
    size_t count;
    char **word; /* [count], UTF-8 */
    int64_t *id; /* [count], indices into vocabulary */
    size_t vocabulary_count;
    char **vocabulary; /* [vocabulary_count] */
} kit_words;
int kit_words_split(kit_words *words, const char *text, kit_error *err); /* KIT_USAGE: not UTF-8 */
void kit_words_free(kit_words *words);

/* ------------------------------------------------------------------------------ text/width.c
 *
 * Terminal columns that a UTF-8 string takes, and those of its first `length` bytes.
 */
int kit_text_width(const char *text);
int kit_text_width_of(const char *text, size_t length);

/* ------------------------------------------------------------------------------ text/shown.c
 *
 * Makes text from a file or a user safe for a terminal, a picture or a message. kit_text_next sets
 * *piece and *length to the bytes that show the next character, and returns the start of the
 * following character. White space becomes one space. Invalid UTF-8 and characters that would move
 * the cursor or change the direction of a line become U+FFFD; then *piece does not point into text.
 */
const char *kit_text_next(const char *text, const char **piece, size_t *length);
void kit_text_print(FILE *to, const char *text);
bool kit_text_is_utf8(const char *text);
/* Writes `size` bytes, which a NUL follows, as a JSON string, for io/json_write.c. Invalid UTF-8 is
 * replaced; every other character is kept, NUL too, some as escapes. */
typedef void kit_text_sink(void *to, const char *bytes, size_t size);
void kit_text_json(const char *text, size_t size, kit_text_sink *put, void *to);

#endif
