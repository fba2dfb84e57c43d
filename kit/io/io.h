/* What the files of kit/io share; kit.h is the face that others see.
 *
 *   source.c  bytes to read: a file, a pipe, a block of memory; opens what a spec names
 *   header.c  the header of a .npy, as text
 *   npy.c     a .npy from a source; a .npy into an output
 *   npz.c     a member of a .npz as a source
 *   safetensors.c  the header of a .safetensors, a tensor of it as a source; a whole file out
 *   array.c   arrays in memory
 *   output.c  files that are whole or absent
 *
 * A new format: a reader that takes an io_source, and a line in source.c that recognises it. A new
 * element type: a row in header.c and a case in npy.c.
 */
#ifndef KIT_IO_H
#define KIT_IO_H

#include "../kit.h"

/* --------------------------------------------------------------------------------- Sizes
 *
 * Every count x size goes through these; they return false where the true result does not fit.
 */
static inline bool io_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Elements of a shape, and their bytes. A negative size is refused, and so is a shape that could
 * not be addressed if its zeros were ones: its strides would not fit either. */
bool io_shape_size(int rank, const int64_t *shape, size_t element, size_t *count, size_t *bytes);
/* "(3, 4)", "(3,)", "()", as Python writes it; returns buffer. */
#define IO_SHAPE_TEXT (KIT_MAX_RANK * 22 + 3)
const char *io_shape_text(char buffer[IO_SHAPE_TEXT], int rank, const int64_t *shape);
/* kit_array_new without the zeros. `name` starts the message. */
int io_array_reserve(kit_array *a, attn_dtype dtype, int rank, const int64_t *shape,
                     const char *name, kit_error *err);

/* --------------------------------------------------------------------------------- Sources
 *
 * Bytes in order. `read` works as read(2) does: it may give fewer bytes than asked for, 0 is the
 * end, and -1 is a failure that stands in err. Files and memory can be read from any place by
 * setting `at`.
 */
#define IO_SIZE_UNKNOWN (-1) /* a pipe: only its end tells */
/* The most bytes that are taken from where no size can be checked beforehand. */
#define IO_STREAM_LIMIT ((size_t)16 << 30)

typedef struct io_source io_source;
struct io_source {
    const char *name; /* starts every message */
    int64_t size;     /* in all, or IO_SIZE_UNKNOWN */
    int64_t at;       /* read so far */
    int64_t (*read)(io_source *s, void *to, size_t size, kit_error *err);
    int fd;
    const void *memory;
    void *member; /* npz.c's */
};
io_source io_source_memory(const char *name, const void *bytes, size_t size);
/* Reads until `size` bytes are there or the source ends. */
int io_read(io_source *s, void *to, size_t size, size_t *got, kit_error *err);

/* ------------------------------------------------------------------------------------ .npy */
typedef struct io_element {
    char kind;   /* as in a descr: 'f', 'i', 'u', 'b' */
    size_t size; /* bytes in the file */
    attn_dtype dtype;
    const char *name;
} io_element;

typedef struct io_npy {
    const io_element *element;
    bool swap;    /* the bytes of an element lie the other way round than in this machine */
    bool fortran; /* the first index runs fastest */
    int rank;
    int64_t shape[KIT_MAX_RANK];
    size_t count; /* elements */
    size_t bytes; /* of the elements, in the file */
} io_npy;

#define IO_NPY_PREFIX 12              /* magic, version and the longest length field */
#define IO_NPY_HEADER_LIMIT (1 << 16) /* bytes of header text */

/* The text between the length field and the elements. */
int io_npy_parse_header(io_npy *h, const char *text, size_t size, const char *name, kit_error *err);
/* Reads the header, and checks that as many bytes follow as it says, where the source knows. */
int io_npy_open(io_npy *h, io_source *s, kit_error *err);
int io_npy_load(kit_array *a, io_source *s, kit_error *err);
/* What follows the header: all that is left of the source. */
int io_npy_load_elements(kit_array *a, const io_npy *h, io_source *s, kit_error *err);

/* ------------------------------------------------------------------------------------ .npz
 *
 * `file` must know its size. member: with or without ".npy"; NULL: the only one, or all for a list.
 */
bool io_is_zip(const unsigned char *bytes, size_t size);
int io_npz_load(kit_array *a, io_source *file, const char *member, kit_error *err);
int io_npz_list(kit_entry **entries, size_t *count, io_source *file, const char *member,
                kit_error *err);

/* ---------------------------------------------------------------------------- .safetensors
 *
 * `file` must know its size and outlive `f`, whose entries stand in the order of their bytes.
 */
#define IO_SAFETENSORS_HEADER_LIMIT ((uint64_t)100000000) /* bytes, as the reference has it */

typedef struct io_tensor {
    const char *name; /* in the header */
    const io_element *element;
    int rank;
    int64_t shape[KIT_MAX_RANK];
    size_t begin, bytes; /* of the data */
} io_tensor;

typedef struct io_safetensors {
    io_source *file;
    void *header; /* json_t */
    io_tensor *tensor;
    size_t count;
    int64_t data; /* where it begins in the file */
} io_safetensors;

bool io_is_safetensors(const unsigned char *bytes, size_t size); /* the first 9 bytes tell */
int io_safetensors_open(io_safetensors *f, io_source *file, kit_error *err);
void io_safetensors_close(io_safetensors *f); /* also after a failure to open */
const io_tensor *io_safetensors_find(const io_safetensors *f, const char *name); /* or NULL */
const char *io_safetensors_metadata(const io_safetensors *f, const char *key);   /* or NULL */
/* name NULL: the only one. */
int io_safetensors_load(kit_array *a, const io_safetensors *f, const char *name, kit_error *err);
int io_safetensors_list(kit_entry **entries, size_t *count, const io_safetensors *f,
                        const char *name, kit_error *err);

/* Which arrays a file of several holds, for a message: that `member` is not there, or (NULL) that
 * one must be named. */
typedef struct io_names {
    char text[512];
    size_t used;
} io_names;
void io_names_add(io_names *names, const char *name, size_t length);
int io_no_array(const char *file, const char *kind, const char *member, const io_names *names,
                kit_error *err);

#endif
