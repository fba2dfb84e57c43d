/* JSON files: see json.h. */
#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_AT_ONCE = 1 << 30 };

/* Reads until `size` bytes are there or the file ends. If the file grows meanwhile, the rest is not
 * read. */
static int read_whole(int fd, char *to, size_t size, size_t *got, const char *path, kit_error *err)
{
    for (*got = 0; *got < size;) {
        const size_t left = size - *got;
        const ssize_t n = read(fd, to + *got, left < READ_AT_ONCE ? left : READ_AT_ONCE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", path, strerror(errno));
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return KIT_OK;
}

static int read_open(int fd, char **bytes, size_t *size, const char *path, size_t limit,
                     kit_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return kit_fail(err, KIT_BAD_FILE, "%s: is not a regular file", path);
    if ((uint64_t)st.st_size > limit)
        return kit_fail(err, KIT_BAD_FILE, "%s: has %" PRId64 " bytes; at most %zu are read", path,
                        (int64_t)st.st_size, limit);
    *bytes = malloc((size_t)st.st_size + 1);
    if (!*bytes)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    const int code = read_whole(fd, *bytes, (size_t)st.st_size, size, path, err);
    if (!code) {
        (*bytes)[*size] = 0;
        return KIT_OK;
    }
    free(*bytes);
    *bytes = NULL;
    return code;
}

int io_read_bytes(char **bytes, size_t *size, const char *path, size_t limit, kit_error *err)
{
    *bytes = NULL;
    *size = 0;
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a FIFO must not block */
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
    const int code = read_open(fd, bytes, size, path, limit, err);
    close(fd);
    return code;
}

/* ------------------------------------------------------------------------------- Documents */

/* After a failed allocation jansson may report a bad token, or continue without a character and
 * then read past the end of a string. So jansson uses this allocator: after one failure every
 * allocation fails until the next document, and the result is discarded. */
static _Thread_local bool lacked;

static void *allocate(size_t size)
{
    void *memory = lacked ? NULL : malloc(size);
    lacked = !memory;
    return memory;
}

static void allocate_here(void) { json_set_alloc_funcs(allocate, free); }

static int load(json_t **out, const void *bytes, size_t size, size_t flags, json_error_t *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, allocate_here);
    lacked = false;
    *out = json_loadb(bytes, size, JSON_REJECT_DUPLICATES | flags, e);
    if (*out && !lacked)
        return KIT_OK;
    json_decref(*out);
    *out = NULL;
    return lacked ? KIT_LIMIT : KIT_BAD_FILE;
}

int io_json_load(json_t **out, const void *bytes, size_t size, json_error_t *e)
{
    return load(out, bytes, size, 0, e);
}

static int parse(json_t **out, const char *name, const void *bytes, size_t size, size_t flags,
                 kit_error *err)
{
    json_error_t e;
    const int code = load(out, bytes, size, flags, &e);
    if (code == KIT_LIMIT)
        return kit_fail(err, code, "%s: not enough memory", name);
    if (code)
        return kit_fail(err, code, "%s: line %d: %s", name, e.line, e.text);
    if (json_is_object(*out))
        return KIT_OK;
    json_decref(*out);
    *out = NULL;
    return kit_fail(err, KIT_BAD_FILE, "%s: is not a JSON object", name);
}

int io_json_parse(json_t **out, const char *name, const void *bytes, size_t size, kit_error *err)
{
    return parse(out, name, bytes, size, 0, err);
}

static int read_document(json_t **out, const char *path, size_t limit, size_t flags, kit_error *err)
{
    char *bytes;
    size_t size;
    *out = NULL;
    int code = io_read_bytes(&bytes, &size, path, limit, err);
    if (!code)
        code = parse(out, path, bytes, size, flags, err);
    free(bytes);
    return code;
}

int io_json_read(json_t **out, const char *path, size_t limit, kit_error *err)
{
    return read_document(out, path, limit, 0, err);
}

int io_json_read_reals(json_t **out, const char *path, size_t limit, kit_error *err)
{
    return read_document(out, path, limit, JSON_DECODE_INT_AS_REAL, err);
}

/* ------------------------------------------------------------------------------- Members */

static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

int io_json_integer(int64_t *to, const json_t *object, const char *name, const char *key,
                    int64_t low, int64_t high, kit_error *err)
{
    const json_t *value = member(object, key);
    if (!value)
        return KIT_OK;
    const int64_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < low || x > high)
        return kit_fail(err, KIT_BAD_FILE, "%s: %s must be an integer from %" PRId64 " to %" PRId64,
                        name, key, low, high);
    *to = x;
    return KIT_OK;
}

int io_json_real(double *to, const json_t *object, const char *name, const char *key, double low,
                 double high, kit_error *err)
{
    const json_t *value = member(object, key);
    if (!value)
        return KIT_OK;
    const double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= low && x <= high))
        return kit_fail(err, KIT_BAD_FILE, "%s: %s must be a number from %g to %g", name, key, low,
                        high);
    *to = x;
    return KIT_OK;
}

int io_json_flag(bool *to, const json_t *object, const char *name, const char *key, kit_error *err)
{
    const json_t *value = member(object, key);
    if (!value)
        return KIT_OK;
    if (!json_is_boolean(value))
        return kit_fail(err, KIT_BAD_FILE, "%s: %s must be true or false", name, key);
    *to = json_is_true(value);
    return KIT_OK;
}

int io_json_text(const char **to, const json_t *object, const char *name, const char *key,
                 kit_error *err)
{
    const json_t *value = member(object, key);
    if (!value)
        return KIT_OK;
    if (!json_is_string(value))
        return kit_fail(err, KIT_BAD_FILE, "%s: %s must be a string", name, key);
    *to = json_string_value(value);
    return KIT_OK;
}
