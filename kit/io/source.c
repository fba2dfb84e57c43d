/* Sources of bytes, and the names of arrays in messages.
 *
 * A file of known size is read by pread at offsets that were checked against that size. It is not
 * mapped, because a mapped file that shrinks meanwhile raises a signal; map.c, for files that are
 * larger than memory, handles this signal. Everything else (pipes, devices, standard input) is read
 * in order.
 */
#if __SIZEOF_LONG__ == 4
#define _FILE_OFFSET_BITS 64
#endif
#include "io.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
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

io_source io_source_descriptor(const char *name, int fd)
{
    return (io_source){.name = name, .size = IO_SIZE_UNKNOWN, .read = read_descriptor, .fd = fd};
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

/* -------------------------------------------------------------------- Names for a message */

void io_names_add(io_names *n, const char *name, size_t length)
{
    const size_t room = sizeof n->text - n->used;
    if (n->used < sizeof n->text)
        n->used += (size_t)snprintf(n->text + n->used, room, "%s%.*s", n->used ? ", " : "",
                                    (int)(length < room ? length : room), name);
}

int io_no_array(const char *file, const char *kind, const char *member, const io_names *n,
                kit_error *err)
{
    const char *held = n->used ? n->text : "nothing";
    const char *more = n->used < sizeof n->text ? "" : "...";
    if (member)
        return kit_fail(err, KIT_BAD_FILE, "%s: has no array '%.100s'; it has %s%s", file, member,
                        held, more);
    return kit_fail(err, KIT_BAD_FILE, "%s: name one array of it, as in file.%s:name; it has %s%s",
                    file, kind, held, more);
}
