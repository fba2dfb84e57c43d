/* Bytes to read, and what a spec names: "file.npy", "file.npz:name", "-".
 *
 * A file of known size is read by pread at places that were checked against that size; mapping it
 * would turn a file that shrinks meanwhile into a signal. Everything else (pipes, devices, standard
 * input) is read in order. The kind of a file is told by its first bytes, not by its name.
 */
#if __SIZEOF_LONG__ == 4
#define _FILE_OFFSET_BITS 64
#endif
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_AT_ONCE = 1 << 30 };

/* --------------------------------------------------------------------------------- Sources */

static int64_t read_memory(io_source *s, void *to, size_t size, kit_error *err)
{
    (void)err;
    const size_t left = (size_t)(s->size - s->at);
    if (size > left)
        size = left;
    if (size)
        memcpy(to, (const char *)s->memory + s->at, size);
    return (int64_t)size;
}

io_source io_source_memory(const char *name, const void *bytes, size_t size)
{
    return (io_source){.name = name, .size = (int64_t)size, .memory = bytes, .read = read_memory};
}

static int64_t read_descriptor(io_source *s, void *to, size_t size, kit_error *err)
{
    ssize_t got;
    do
        got = s->size == IO_SIZE_UNKNOWN ? read(s->fd, to, size) : pread(s->fd, to, size, s->at);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", s->name, strerror(errno));
    return got;
}

int io_read(io_source *s, void *to, size_t size, size_t *got, kit_error *err)
{
    *got = 0;
    while (*got < size) {
        const size_t left = size - *got;
        const int64_t n =
            s->read(s, (char *)to + *got, left < READ_AT_ONCE ? left : READ_AT_ONCE, err);
        if (n < 0)
            return KIT_BAD_FILE;
        if (n == 0)
            break;
        *got += (size_t)n;
        s->at += n;
    }
    return KIT_OK;
}

/* ----------------------------------------------------------------------------------- Specs */

typedef struct input {
    io_source source;
    char *path;         /* owned */
    const char *member; /* of a .npz, in the spec; NULL: not named */
    bool opened, zip;
} input;

static void input_close(input *in)
{
    if (in->opened)
        close(in->source.fd);
    free(in->path);
}

static int split_spec(input *in, const char *spec, kit_error *err)
{
    static const char mark[] = ".npz:";
    const char *found = strstr(spec, mark);
    const size_t length = found ? (size_t)(found - spec) + sizeof mark - 2 : strlen(spec);
    in->path = malloc(length + 1);
    if (!in->path)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", spec);
    memcpy(in->path, spec, length);
    in->path[length] = 0;
    in->member = found ? spec + length + 1 : NULL;
    return KIT_OK;
}

/* Opens in->path and finds out what it is. */
static int open_path(input *in, kit_error *err)
{
    io_source *s = &in->source;
    int fd;
    do
        fd = open(in->path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    while (fd < 0 && errno == EINTR); /* a pipe that waits for its other end */
    if (fd < 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot open: %s", in->path, strerror(errno));
    s->fd = fd;
    in->opened = true;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", in->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return kit_fail(err, KIT_BAD_FILE, "%s: is a directory, not a file", in->path);
    if (!S_ISREG(st.st_mode))
        return KIT_OK;

    s->size = (int64_t)st.st_size;
    unsigned char start[4];
    size_t got;
    const int code = io_read(s, start, sizeof start, &got, err);
    in->zip = !code && io_is_zip(start, got);
    s->at = 0;
    return code;
}

static int input_open(input *in, const char *spec, kit_error *err)
{
    *in = (input){.source = {.name = spec, .fd = -1, .size = IO_SIZE_UNKNOWN}};
    in->source.read = read_descriptor;
    if (strcmp(spec, "-") == 0) {
        in->source.name = "standard input";
        in->source.fd = STDIN_FILENO;
        return KIT_OK;
    }
    int code = split_spec(in, spec, err);
    if (!code)
        code = open_path(in, err);
    if (!code && in->member && !in->zip)
        code = kit_fail(err, KIT_BAD_FILE, "%s: not a .npz file", in->path);
    return code;
}

int kit_read_array(kit_array *a, const char *spec, kit_error *err)
{
    memset(a, 0, sizeof *a);
    input in;
    int code = input_open(&in, spec, err);
    if (!code)
        code =
            in.zip ? io_npz_load(a, &in.source, in.member, err) : io_npy_load(a, &in.source, err);
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

int kit_read_list(kit_entry **entries, size_t *count, const char *path, kit_error *err)
{
    *entries = NULL;
    *count = 0;
    input in;
    int code = input_open(&in, path, err);
    if (!code)
        code = in.zip ? io_npz_list(entries, count, &in.source, in.member, err)
                      : list_npy(entries, count, &in.source, err);
    input_close(&in);
    return code;
}
