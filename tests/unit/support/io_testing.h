/* Files for the tests of kit/io, made byte by byte: .npy and .zip files, good ones and such as no
 * program would write. Nothing here comes from the code under test. */
#ifndef IO_TESTING_H
#define IO_TESTING_H

#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit.h"
#include "support/test.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* ----------------------------------------------------------------------------------- Bytes */

typedef struct bytes {
    unsigned char *data;
    size_t size, capacity;
} bytes;

__attribute__((unused)) static void put(bytes *b, const void *data, size_t size)
{
    if (b->size + size >= b->capacity) {
        b->capacity = 2 * (b->size + size) + 64;
        b->data = realloc(b->data, b->capacity);
        assert_non_null(b->data);
    }
    if (size)
        memcpy(b->data + b->size, data, size);
    b->size += size;
}

/* The low `size` bytes of a number, lowest first. */
__attribute__((unused)) static void put_number(bytes *b, uint64_t x, size_t size)
{
    for (size_t i = 0; i < size; i++, x >>= 8)
        put(b, &(unsigned char){(unsigned char)(x & 0xFF)}, 1);
}

__attribute__((unused)) static void put_text(bytes *b, const char *text)
{
    put(b, text, strlen(text));
}

__attribute__((unused)) static void bytes_free(bytes *b)
{
    free(b->data);
    *b = (bytes){0};
}

/* ------------------------------------------------------------------------------------ .npy */

/* A .npy with any header text; payload may be NULL: that many zeros. */
__attribute__((unused)) static bytes npy_text(int major, const char *header, const void *payload,
                                              size_t size)
{
    bytes b = {0};
    put(&b, "\x93NUMPY", 6);
    put_number(&b, (uint64_t)major, 2);
    put_number(&b, strlen(header), major == 1 ? 2 : 4);
    put_text(&b, header);
    for (size_t i = 0; !payload && i < size; i++)
        put_number(&b, 0, 1);
    if (payload)
        put(&b, payload, size);
    return b;
}

__attribute__((unused)) static bytes npy(const char *descr, int fortran, const char *shape,
                                         const void *payload, size_t size)
{
    char header[512];
    const int n =
        snprintf(header, sizeof header, "{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n",
                 descr, fortran ? "True" : "False", shape);
    assert_in_range(n, 1, sizeof header - 1);
    return npy_text(1, header, payload, size);
}

/* A .npy as NumPy writes it, for headers that fit its usual 128 bytes. */
__attribute__((unused)) static bytes numpy_file(const char *descr, const char *shape,
                                                const void *data, size_t size)
{
    char text[119];
    const int n = snprintf(text, sizeof text,
                           "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    assert_in_range(n, 1, 117);
    memset(text + n, ' ', (size_t)(117 - n));
    text[117] = '\n';
    text[118] = 0;
    return npy_text(1, text, data, size);
}

/* ------------------------------------------------------------------------------------ .zip */

__attribute__((unused)) static uint32_t crc32_of(const void *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < size; i++) {
        crc ^= ((const unsigned char *)data)[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xEDB88320 & (0 - (crc & 1)));
    }
    return ~crc;
}

/* One member, and every lie that can be told about it: a field that is not 0 replaces the truth. */
typedef struct member {
    const char *name;
    size_t name_size; /* 0: strlen(name) */
    bytes data;       /* as stored */
    int method, flags;
    int zip64;              /* local header as np.savez writes it */
    uint64_t size, stored;  /* declared in both headers */
    uint32_t crc;           /* in both headers */
    uint32_t local_crc;     /* in the local one */
    const char *local_name; /* in the local one; as long as name */
    int share;              /* the data, and the local header, of the member before */
} member;

__attribute__((unused)) static void put_local(bytes *b, const member *m, size_t name_size,
                                              uint64_t size, uint64_t stored, uint32_t crc)
{
    put_text(b, "PK\3\4");
    put_number(b, m->zip64 ? 45 : 20, 2);
    put_number(b, (uint64_t)m->flags, 2);
    put_number(b, (uint64_t)m->method, 2);
    put_number(b, 0x00210000, 4); /* 1980-01-01 */
    put_number(b, m->local_crc ? m->local_crc : crc, 4);
    put_number(b, m->zip64 ? 0xFFFFFFFF : stored, 4);
    put_number(b, m->zip64 ? 0xFFFFFFFF : size, 4);
    put_number(b, name_size, 2);
    put_number(b, m->zip64 ? 20 : 0, 2);
    put(b, m->local_name ? m->local_name : m->name, name_size);
    if (m->zip64) {
        put_number(b, 1, 2);
        put_number(b, 16, 2);
        put_number(b, size, 8);
        put_number(b, stored, 8);
    }
    put(b, m->data.data, m->data.size);
}

__attribute__((unused)) static bytes zip(const member *members, size_t count)
{
    bytes b = {0}, central = {0};
    size_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        const member *m = &members[i];
        const size_t name_size = m->name_size ? m->name_size : strlen(m->name);
        const uint64_t stored = m->stored ? m->stored : m->data.size;
        const uint64_t size = m->size ? m->size : m->data.size;
        const uint32_t crc = m->crc ? m->crc : crc32_of(m->data.data, m->data.size);
        if (!m->share) {
            offset = b.size;
            put_local(&b, m, name_size, size, stored, crc);
        }
        const int wide = size > 0xFFFFFFFE || stored > 0xFFFFFFFE;
        put_text(&central, "PK\1\2");
        put_number(&central, 45, 2);
        put_number(&central, m->zip64 ? 45 : 20, 2);
        put_number(&central, (uint64_t)m->flags, 2);
        put_number(&central, (uint64_t)m->method, 2);
        put_number(&central, 0x00210000, 4);
        put_number(&central, crc, 4);
        put_number(&central, wide ? 0xFFFFFFFF : stored, 4);
        put_number(&central, wide ? 0xFFFFFFFF : size, 4);
        put_number(&central, name_size, 2);
        put_number(&central, wide ? 20 : 0, 2);
        put_number(&central, 0, 10); /* comment, disk, attributes */
        put_number(&central, offset, 4);
        put(&central, m->name, name_size);
        if (wide) {
            put_number(&central, 1, 2);
            put_number(&central, 16, 2);
            put_number(&central, size, 8);
            put_number(&central, stored, 8);
        }
    }
    const size_t start = b.size;
    put(&b, central.data, central.size);
    put_text(&b, "PK\5\6");
    put_number(&b, 0, 4);
    put_number(&b, count, 2);
    put_number(&b, count, 2);
    put_number(&b, central.size, 4);
    put_number(&b, start, 4);
    put_number(&b, 0, 2);
    bytes_free(&central);
    return b;
}

/* ---------------------------------------------------------------------------------- Places */

/* A folder of its own for each test program, made the current one; removed with all its files. */
static char scratch[] = "io-test-XXXXXX"; /* its name, once it is there */

__attribute__((unused)) static int scratch_enter(void **state)
{
    (void)state;
    return mkdtemp(scratch) && chdir(scratch) == 0 ? 0 : -1;
}

__attribute__((unused)) static void remove_all_here(void)
{
    DIR *folder = opendir(".");
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(e->d_name) != 0)
            assert_int_equal(rmdir(e->d_name), 0);
    closedir(folder);
}

__attribute__((unused)) static int scratch_leave(void **state)
{
    (void)state;
    remove_all_here();
    return chdir("..") == 0 && rmdir(scratch) == 0 ? 0 : -1;
}

/* Entries in the current folder. */
__attribute__((unused)) static size_t count_here(void)
{
    DIR *folder = opendir(".");
    assert_non_null(folder);
    size_t n = 0;
    while (readdir(folder))
        n++;
    closedir(folder);
    return n - 2;
}

__attribute__((unused)) static size_t count_descriptors(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

__attribute__((unused)) static void write_file(const char *path, bytes b)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_number(fd, >=, 0);
    for (size_t done = 0; done < b.size;) {
        const ssize_t n = write(fd, b.data + done, b.size - done);
        assert_number(n, >, 0);
        done += (size_t)n;
    }
    assert_int_equal(close(fd), 0);
}

__attribute__((unused)) static bytes read_file(const char *path)
{
    const int fd = open(path, O_RDONLY);
    assert_number(fd, >=, 0);
    bytes b = {0};
    char block[4096];
    for (ssize_t n; (n = read(fd, block, sizeof block)) != 0;) {
        assert_number(n, >, 0);
        put(&b, block, (size_t)n);
    }
    close(fd);
    return b;
}

/* --------------------------------------------------------------------------------- Refusals */

/* The reader says no: this code, a message that starts with `starts` and has `part` in it, and an
 * array that holds nothing. */
__attribute__((unused)) static void expect_refused(const char *spec, int code, const char *starts,
                                                   const char *part)
{
    kit_array a;
    kit_error err = {0};
    const int got = kit_read_array(&a, spec, &err);
    if (got != code || strncmp(err.message, starts, strlen(starts)) != 0 ||
        !strstr(err.message, part))
        fail_msg("%s: code %d, want %d; message «%s», want «%s...%s»", spec, got, code, err.message,
                 starts, part);
    assert_int_equal(err.code, code);
    assert_null(a.data);
    assert_null(strchr(err.message, '\n'));
}

__attribute__((unused)) static void expect_bytes_refused(bytes b, const char *part)
{
    kit_array a;
    kit_error err = {0};
    const int got = kit_npy_parse(&a, b.data, b.size, "k.npy", &err);
    if (got != KIT_BAD_FILE || strncmp(err.message, "k.npy: ", 7) != 0 ||
        !strstr(err.message, part))
        fail_msg("code %d, message «%s», want «%s»", got, err.message, part);
    assert_null(a.data);
}

#endif
