/* Opens what a spec names: "file.npy", "file.npz:name", "file.safetensors:name", "-". The first
 * bytes of a file decide its format, not its name. */
#if __SIZEOF_LONG__ == 4
#define _FILE_OFFSET_BITS 64
#endif
#include "io.h"
#include "map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum format { NPY, NPZ, SAFETENSORS } format;

typedef struct input {
    io_source source;
    char *path;         /* owned */
    const char *member; /* points into the spec; NULL: not named */
    bool opened;
    format format;
} input;

struct kit_safetensors {
    input in;
    io_safetensors file;
};

static void input_close(input *in)
{
    if (in->opened)
        close(in->source.fd);
    free(in->path);
}

/* Suffixes before the ":" of formats that hold several arrays. */
static const struct {
    const char *suffix;
    format format;
} kinds[] = {{".npz", NPZ}, {".safetensors", SAFETENSORS}};

static bool names(const char *spec, size_t length, const char *suffix)
{
    const size_t n = strlen(suffix);
    return length >= n && memcmp(spec + length - n, suffix, n) == 0;
}

const char *kit_spec_archive(const char *spec)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (names(spec, kit_spec_path_length(spec), kinds[i].suffix))
            return kinds[i].suffix;
    return NULL;
}

size_t kit_spec_path_length(const char *spec)
{
    for (const char *colon = strchr(spec, ':'); colon; colon = strchr(colon + 1, ':'))
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (names(spec, (size_t)(colon - spec), kinds[i].suffix))
                return (size_t)(colon - spec);
    return strlen(spec);
}

/* What a text names. */
typedef enum wanted {
    ARRAY,         /* "file.npy", "file.npz:name": a .npy may be a pipe */
    ARRAY_OF_FILE, /* the same, but always in a regular file */
    WHOLE_FILE     /* a path of a regular file; a ":" is part of its name */
} wanted;

static int split_spec(input *in, const char *spec, wanted what, kit_error *err)
{
    const size_t length = what == WHOLE_FILE ? strlen(spec) : kit_spec_path_length(spec);
    in->path = malloc(length + 1);
    if (!in->path)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", spec);
    memcpy(in->path, spec, length);
    in->path[length] = 0;
    in->member = spec[length] ? spec + length + 1 : NULL;
    return KIT_OK;
}

static int not_a_file(const input *in, kit_error *err)
{
    return kit_fail(
        err, KIT_BAD_FILE,
        "%s: is a pipe, a device or a socket; an array can be named in a regular file only",
        in->path ? in->path : in->source.name);
}

/* Opens in->path. Opening a pipe blocks until its other end is open, which is wanted for a .npy
 * only. */
static int open_descriptor(input *in, bool must_be_file, kit_error *err)
{
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | (must_be_file ? O_NONBLOCK : 0);
    int fd;
    do
        fd = open(in->path, flags);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && errno == ENXIO && must_be_file) /* a socket */
        return not_a_file(in, err);
    if (fd < 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot open: %s", in->path, strerror(errno));
    in->source.fd = fd;
    in->opened = true;
    return KIT_OK;
}

/* Opens in->path and recognises its format. must_be_file: only a regular file is accepted. Formats
 * with several arrays always need one, because they are not read in order. */
static int open_path(input *in, bool must_be_file, kit_error *err)
{
    io_source *s = &in->source;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        must_be_file = must_be_file || names(in->path, strlen(in->path), kinds[i].suffix);
    int code = open_descriptor(in, must_be_file, err);
    if (code)
        return code;
    struct stat st;
    if (fstat(s->fd, &st) != 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", in->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return kit_fail(err, KIT_BAD_FILE, "%s: is a directory, not a file", in->path);
    if (!S_ISREG(st.st_mode))
        return must_be_file ? not_a_file(in, err) : KIT_OK;

    s->size = (int64_t)st.st_size;
    unsigned char start[9];
    size_t got;
    code = io_read(s, start, sizeof start, &got, err);
    if (io_is_zip(start, got))
        in->format = NPZ;
    else if (io_is_safetensors(start, got) || names(in->path, strlen(in->path), ".safetensors"))
        in->format = SAFETENSORS;
    s->at = 0;
    return code;
}

static int input_open(input *in, const char *spec, wanted what, kit_error *err)
{
    *in = (input){.source = io_source_descriptor(spec, -1)};
    if (strcmp(spec, "-") == 0) {
        in->source = io_source_descriptor("standard input", STDIN_FILENO);
        return KIT_OK;
    }
    int code = split_spec(in, spec, what, err);
    if (!code)
        code = open_path(in, what != ARRAY, err);
    if (!code && in->member && in->format == NPY)
        code = kit_fail(err, KIT_BAD_FILE, "%s: not a .npz file", in->path);
    return code;
}

static int load_tensor(kit_array *a, input *in, kit_error *err)
{
    io_safetensors f;
    int code = io_safetensors_open(&f, &in->source, err);
    if (!code)
        code = io_safetensors_load(a, &f, in->member, err);
    io_safetensors_close(&f);
    return code;
}

int kit_read_array(kit_array *a, const char *spec, kit_error *err)
{
    memset(a, 0, sizeof *a);
    input in;
    int code = input_open(&in, spec, ARRAY, err);
    if (!code)
        switch (in.format) {
        case NPY: code = io_npy_load(a, &in.source, err); break;
        case NPZ: code = io_npz_load(a, &in.source, in.member, err); break;
        case SAFETENSORS: code = load_tensor(a, &in, err); break;
        }
    input_close(&in);
    return code;
}

static int list_npy(kit_entry **entries, size_t *count, io_source *s, kit_error *err)
{
    io_npy h;
    const int code = io_npy_open(&h, s, err);
    if (code)
        return code;
    kit_entry *e = calloc(1, sizeof *e);
    if (!e)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", s->name);
    e->dtype = h.element->dtype;
    e->rank = h.rank;
    memcpy(e->shape, h.shape, sizeof e->shape);
    *entries = e;
    *count = 1;
    return KIT_OK;
}

static int list_tensors(kit_entry **entries, size_t *count, input *in, kit_error *err)
{
    io_safetensors f;
    int code = io_safetensors_open(&f, &in->source, err);
    if (!code)
        code = io_safetensors_list(entries, count, &f, in->member, err);
    io_safetensors_close(&f);
    return code;
}

int kit_read_list(kit_entry **entries, size_t *count, const char *path, kit_error *err)
{
    *entries = NULL;
    *count = 0;
    input in;
    int code = input_open(&in, path, ARRAY, err);
    if (!code)
        switch (in.format) {
        case NPY: code = list_npy(entries, count, &in.source, err); break;
        case NPZ: code = io_npz_list(entries, count, &in.source, in.member, err); break;
        case SAFETENSORS: code = list_tensors(entries, count, &in, err); break;
        }
    input_close(&in);
    return code;
}

/* ------------------------------------------------------------------- A .safetensors, kept open */

int kit_safetensors_open(kit_safetensors **out, const char *path, kit_error *err)
{
    kit_safetensors *f = *out = calloc(1, sizeof *f);
    if (!f)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    int code = input_open(&f->in, path, WHOLE_FILE, err);
    if (!code)
        code = io_safetensors_open(&f->file, &f->in.source, err);
    if (code) {
        kit_safetensors_close(f);
        *out = NULL;
    }
    return code;
}

void kit_safetensors_close(kit_safetensors *f)
{
    if (!f)
        return;
    io_safetensors_close(&f->file);
    input_close(&f->in);
    free(f);
}

bool kit_safetensors_has(const kit_safetensors *f, const char *name)
{
    return io_safetensors_find(&f->file, name) != NULL;
}

const char *kit_safetensors_name(const kit_safetensors *f, size_t i)
{
    return i < f->file.count ? f->file.tensor[i].name : NULL;
}

size_t kit_safetensors_bytes(const kit_safetensors *f)
{
    return (size_t)(f->file.file->size - f->file.data);
}

const char *kit_safetensors_metadata(const kit_safetensors *f, const char *key)
{
    return io_safetensors_metadata(&f->file, key);
}

int kit_safetensors_load(kit_array *a, const kit_safetensors *f, const char *name, kit_error *err)
{
    return io_safetensors_load(a, &f->file, name, err);
}

/* ------------------------------------------------------------------------- A .npy, kept open */

struct kit_rows {
    input in;
    bool swap;
    kit_array array; /* without data */
    int64_t data;    /* offset of the elements in the file */
};

static int open_rows(kit_rows *r, const char *path, kit_error *err)
{
    io_npy h;
    int code = input_open(&r->in, path, ARRAY_OF_FILE, err);
    if (code)
        return code;
    if (strcmp(path, "-") == 0 || r->in.format != NPY)
        return kit_fail(err, KIT_BAD_FILE, "%s: only a .npy file can be read in pieces", path);
    if ((code = io_npy_open(&h, &r->in.source, err)))
        return code;
    if (h.rank < 2)
        return kit_fail(err, KIT_BAD_FILE, "%s: has rank %d; rows need 2 or more", path, h.rank);
    if (h.fortran)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: is in Fortran order; an array in C order can be read in pieces", path);
    r->swap = h.swap;
    r->data = r->in.source.at;
    r->array = (kit_array){.dtype = h.element->dtype, .rank = h.rank};
    memcpy(r->array.shape, h.shape, sizeof r->array.shape);
    if (attn_dtype_size(r->array.dtype) != h.element->size)
        return kit_fail(err, KIT_BAD_FILE, "%s: is an array of %s; floats can be read in pieces",
                        path, h.element->name);
    return KIT_OK;
}

int kit_rows_open(kit_rows **out, const char *path, kit_error *err)
{
    kit_rows *r = *out = calloc(1, sizeof *r);
    if (!r)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    const int code = open_rows(r, path, err);
    if (code) {
        kit_rows_close(r);
        *out = NULL;
    }
    return code;
}

void kit_rows_close(kit_rows *r)
{
    if (!r)
        return;
    input_close(&r->in);
    free(r);
}

const kit_array *kit_rows_array(const kit_rows *r) { return &r->array; }

/* The part of matrix m that has rows first .. first+n-1: *bytes of them at the result. The reader
 * has checked that all offsets fit. */
static int64_t place_of(const kit_rows *r, int64_t m, int64_t first, int64_t n, size_t *bytes)
{
    const int64_t *size = r->array.shape + r->array.rank - 2;
    const int64_t row = size[1] * (int64_t)attn_dtype_size(r->array.dtype);
    *bytes = (size_t)(n * row);
    return r->data + (m * size[0] + first) * row;
}

static int64_t matrices(const kit_rows *r)
{
    int64_t n = 1;
    for (int i = 0; i < r->array.rank - 2; i++)
        n *= r->array.shape[i];
    return n;
}

/* Swaps bytes and checks bools, as npy.c does for an array that is read at once. */
static int decode_rows(const kit_rows *r, unsigned char *at, size_t bytes, kit_error *err)
{
    const size_t element = attn_dtype_size(r->array.dtype);
    if (r->swap)
        io_swap_bytes(at, bytes / element, element);
    for (size_t i = 0; i < bytes && r->array.dtype == ATTN_BOOL; i++)
        if (at[i] > 1)
            return kit_fail(err, KIT_BAD_FILE,
                            "%s: has an element that is neither 0 nor 1, so not "
                            "a bool",
                            r->in.source.name);
    return KIT_OK;
}

int kit_rows_new(kit_array *a, const kit_rows *r, int64_t n, kit_error *err)
{
    kit_array shape = r->array;
    int64_t *S = &shape.shape[shape.rank - 2];
    *S = n < *S ? n : *S;
    return kit_array_new(a, shape.dtype, shape.rank, shape.shape, err);
}

static int became_shorter(const char *name, kit_error *err)
{
    return kit_fail(err, KIT_BAD_FILE, "%s: has become shorter while it was read", name);
}

int kit_rows_read_to(kit_rows *r, int64_t first, int64_t n, kit_array *part, int64_t to,
                     kit_error *err)
{
    io_source *s = &r->in.source;
    const int64_t rows = part->shape[part->rank - 2];
    size_t bytes, skipped, got;
    for (int64_t m = 0; m < matrices(r); m++) {
        s->at = place_of(r, m, first, n, &bytes);
        (void)place_of(r, 0, 0, m * rows + to, &skipped);
        unsigned char *at = (unsigned char *)part->data + skipped;
        int code = io_read(s, at, bytes, &got, err);
        if (!code && got < bytes)
            code = became_shorter(s->name, err);
        if (code || (code = decode_rows(r, at, bytes, err)))
            return code;
    }
    return KIT_OK;
}

int kit_rows_read(kit_rows *r, int64_t first, int64_t n, void *to, kit_error *err)
{
    kit_array part = r->array;
    part.data = to;
    part.shape[part.rank - 2] = n;
    return kit_rows_read_to(r, first, n, &part, 0, err);
}

void kit_rows_ahead(const kit_rows *r, int64_t first, int64_t n)
{
#ifdef POSIX_FADV_WILLNEED
    size_t bytes;
    for (int64_t m = 0; m < matrices(r); m++) {
        const int64_t at = place_of(r, m, first, n, &bytes);
        posix_fadvise(r->in.source.fd, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED);
    }
#else
    (void)r, (void)first, (void)n;
#endif
}

/* --------------------------------------------------------------------------- Views of its rows */

struct kit_view_storage {
    kit_rows *rows;
    attn_dtype dtype;
    int64_t most;              /* rows at once */
    io_map map;                /* of one range for each matrix */
    int64_t end;               /* offset in the file after the last row that is mapped */
    kit_array copy, converted; /* to dtype, if the file has another one */
};

bool kit_rows_mappable(const kit_rows *r, attn_dtype dtype)
{
    return r->array.dtype == dtype && !r->swap && r->data % (int64_t)attn_dtype_size(dtype) == 0;
}

int kit_view_open(kit_view *v, kit_rows *rows, attn_dtype dtype, int64_t most, kit_error *err)
{
    struct kit_view_storage *s = calloc(1, sizeof *s);
    *v = (kit_view){.storage = s};
    if (!s)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", rows->in.source.name);
    s->rows = rows;
    s->dtype = dtype;
    s->most = most;
    if (kit_rows_mappable(rows, dtype)) {
        size_t bytes, matrix;
        (void)place_of(rows, 0, 0, most, &bytes);
        (void)place_of(rows, 0, 0, rows->array.shape[rows->array.rank - 2], &matrix);
        io_map_open(&s->map, rows->in.source.fd, (int64_t)matrix, matrices(rows), bytes);
    }
    return KIT_OK;
}

static bool is_mapped(const struct kit_view_storage *s) { return s->map.base && !s->map.failed; }

static bool show_pages(kit_view *v, int64_t first, int64_t n)
{
    struct kit_view_storage *s = v->storage;
    size_t bytes;
    const int64_t at = place_of(s->rows, 0, first, n, &bytes);
    v->data = io_map_ranges(&s->map, at, bytes);
    v->stride = (int64_t)(s->map.stride / attn_dtype_size(s->dtype));
    s->end = place_of(s->rows, matrices(s->rows) - 1, first, n, &bytes) + (int64_t)bytes;
    return v->data;
}

static int show_copy(kit_view *v, int64_t first, int64_t n, kit_error *err)
{
    struct kit_view_storage *s = v->storage;
    kit_array *shown = &s->copy;
    int code = KIT_OK;
    if (!s->copy.data && (code = kit_rows_new(&s->copy, s->rows, s->most, err)))
        return code;
    s->copy.shape[s->copy.rank - 2] = n;
    if ((code = kit_rows_read(s->rows, first, n, s->copy.data, err)))
        return code;
    if (s->copy.dtype != s->dtype) {
        kit_array_free(&s->converted);
        shown = &s->converted;
        code = kit_array_convert(shown, &s->copy, s->dtype, err);
    }
    v->data = shown->data;
    v->stride = n * s->copy.shape[s->copy.rank - 1];
    return code;
}

int kit_view_read(kit_view *v, int64_t first, int64_t n, kit_error *err)
{
    if (is_mapped(v->storage) && show_pages(v, first, n))
        return KIT_OK;
    return show_copy(v, first, n, err);
}

int kit_view_check(const kit_view *v, kit_error *err)
{
    const struct kit_view_storage *s = v->storage;
    const char *name = s->rows->in.source.name;
    struct stat st;
    if (!is_mapped(s))
        return KIT_OK;
    if (fstat(s->rows->in.source.fd, &st) != 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", name, strerror(errno));
    if (st.st_size < s->end)
        return became_shorter(name, err);
    if (s->map.lost)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", name, strerror(EIO));
    return KIT_OK;
}

void kit_view_close(kit_view *v)
{
    struct kit_view_storage *s = v->storage;
    if (s) {
        io_map_close(&s->map);
        kit_array_free(&s->copy);
        kit_array_free(&s->converted);
    }
    free(s);
    *v = (kit_view){0};
}

int kit_read_bytes(void **bytes, size_t *size, const char *path, kit_error *err)
{
    input in;
    *bytes = NULL;
    int code = input_open(&in, path, WHOLE_FILE, err);
    if (!code && in.source.size == IO_SIZE_UNKNOWN)
        code = not_a_file(&in, err);
    if (!code && !(*bytes = malloc((size_t)in.source.size + 1)))
        code = kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    if (!code)
        code = io_read(&in.source, *bytes, (size_t)in.source.size, size, err);
    if (code) {
        free(*bytes);
        *bytes = NULL;
    }
    input_close(&in);
    return code;
}
