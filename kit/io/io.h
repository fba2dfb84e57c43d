/* Shared by the files of kit/io; kit.h is the interface for everyone else.
 *
 *   source.c  reads bytes from a file, a pipe or memory
 *   spec.c    opens what a spec names
 *   header.c  the header of a .npy, as text
 *   npy.c     reads a .npy from a source; writes a .npy into an output
 *   npz.c     makes a member of a .npz a source
 *   safetensors.c  reads the header of a .safetensors; makes a tensor a source; writes whole files
 *   map.c     maps ranges of a file
 *   array.c   arrays in memory
 *   output.c  output files that are complete or absent
 *
 * To add a format: write a reader that takes an io_source, and a line in spec.c that recognises
 * the format. To add an element type: add a row to header.c and a case to npy.c.
 */
#ifndef KIT_IO_H
#define KIT_IO_H

#include "../kit.h"

/* --------------------------------------------------------------------------------- Sizes
 *
 * Every product of a count and a size goes through these functions. They return false if the true
 * result does not fit.
 */
static inline bool io_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Elements of a shape, and their bytes. Returns false for a negative size and for a shape that
 * could not be addressed if each size 0 were 1, because its strides would not fit either. */
bool io_shape_size(int rank, const int64_t *shape, size_t element, size_t *count, size_t *bytes);
/* Writes "(3, 4)", "(3,)" or "()", as Python does; returns buffer. */
#define IO_SHAPE_TEXT (KIT_MAX_RANK * 22 + 3)
const char *io_shape_text(char buffer[IO_SHAPE_TEXT], int rank, const int64_t *shape);
/* Like kit_array_new, but does not zero the elements. `name` starts the message. */
int io_array_reserve(kit_array *a, attn_dtype dtype, int rank, const int64_t *shape,
                     const char *name, kit_error *err);

/* --------------------------------------------------------------------------------- Sources
 *
 * A stream of bytes. `read` works like read(2): it may give fewer bytes than requested; 0 is the
 * end; -1 is a failure, described in err. In files and memory, setting `at` selects the place to
 * read.
 */
#define IO_SIZE_UNKNOWN (-1) /* a pipe: the size is known only at its end */
/* Most bytes that are read from a source whose size is not known beforehand. */
#define IO_STREAM_LIMIT ((size_t)16 << 30)

typedef struct io_source io_source;
struct io_source {
    const char *name; /* starts every message */
    int64_t size;     /* total bytes, or IO_SIZE_UNKNOWN */
    int64_t at;       /* bytes read so far */
    int64_t (*read)(io_source *s, void *to, size_t size, kit_error *err);
    int fd;
    const void *memory;
    void *member; /* used by npz.c and safetensors.c */
};
/* A descriptor that is read in order, unless its size is set. */
io_source io_source_descriptor(const char *name, int fd);
io_source io_source_memory(const char *name, const void *bytes, size_t size);
/* Reads until `size` bytes are there or the source ends; *got is the number read. */
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
    bool swap;    /* the byte order is not this machine's */
    bool fortran; /* the first index varies fastest */
    int rank;
    int64_t shape[KIT_MAX_RANK];
    size_t count; /* elements */
    size_t bytes; /* of the elements, in the file */
} io_npy;

#define IO_NPY_PREFIX 12              /* magic, version and the longest length field */
#define IO_NPY_HEADER_LIMIT (1 << 16) /* bytes of header text */

/* Parses the text between the length field and the elements. */
int io_npy_parse_header(io_npy *h, const char *text, size_t size, const char *name, kit_error *err);
/* Reads the header. If the size of the source is known, checks that exactly the declared bytes
 * follow. */
int io_npy_open(io_npy *h, io_source *s, kit_error *err);
int io_npy_load(kit_array *a, io_source *s, kit_error *err);
/* Swaps the bytes of `count` elements of `size` bytes. */
void io_swap_bytes(unsigned char *bytes, size_t count, size_t size);
/* Reads the elements, which must be all that is left of the source. */
int io_npy_load_elements(kit_array *a, const io_npy *h, io_source *s, kit_error *err);

/* ------------------------------------------------------------- An output of several processes
 *
 * share: writes what is buffered, and gives the file its full size; KIT_LIMIT for a pipe or a
 * device. write_at: `size` bytes at offset `at`, which several processes may do at once. */
int io_output_share(kit_output *out, size_t size, kit_error *err);
int io_output_write_at(kit_output *out, size_t at, const void *bytes, size_t size, kit_error *err);

/* ------------------------------------------------------------------------------------ .npz
 *
 * The size of `file` must be known. member: with or without ".npy"; NULL: the only member (load),
 * or all members (list).
 */
bool io_is_zip(const unsigned char *bytes, size_t size);
int io_npz_load(kit_array *a, io_source *file, const char *member, kit_error *err);
int io_npz_list(kit_entry **entries, size_t *count, io_source *file, const char *member,
                kit_error *err);

/* ---------------------------------------------------------------------------- .safetensors
 *
 * The size of `file` must be known, and `file` must outlive `f`. The entries of `f` are in the
 * order of their bytes in the file.
 */
#define IO_SAFETENSORS_HEADER_LIMIT ((uint64_t)100000000) /* bytes, as in the reference */

typedef struct io_tensor {
    const char *name; /* points into the header */
    const io_element *element;
    int rank;
    int64_t shape[KIT_MAX_RANK];
    size_t begin, bytes; /* of the data, from io_safetensors.data */
} io_tensor;

typedef struct io_safetensors {
    io_source *file;
    void *header; /* json_t */
    io_tensor *tensor;
    size_t count;
    int64_t data; /* offset of the data in the file */
} io_safetensors;

bool io_is_safetensors(const unsigned char *bytes, size_t size); /* needs the first 9 bytes */
int io_safetensors_open(io_safetensors *f, io_source *file, kit_error *err);
void io_safetensors_close(io_safetensors *f); /* also after a failed open */
const io_tensor *io_safetensors_find(const io_safetensors *f, const char *name); /* NULL: none */
const char *io_safetensors_metadata(const io_safetensors *f, const char *key);   /* NULL: none */
/* name NULL: the only tensor. */
int io_safetensors_load(kit_array *a, const io_safetensors *f, const char *name, kit_error *err);
int io_safetensors_list(kit_entry **entries, size_t *count, const io_safetensors *f,
                        const char *name, kit_error *err);

/* Collects the names of a file's arrays for an error message. The message says that `member` is not
 * there or (member NULL) that one must be named. */
typedef struct io_names {
    char text[512];
    size_t used;
} io_names;
void io_names_add(io_names *names, const char *name, size_t length);
int io_no_array(const char *file, const char *kind, const char *member, const io_names *names,
                kit_error *err);

#endif
