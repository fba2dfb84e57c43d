/* Output files that are complete or absent.
 *
 * A named file is written under a temporary name in its final folder. O_EXCL and O_NOFOLLOW ensure
 * that nobody else has that file open. It is flushed to disk and renamed to the final name; then
 * the folder is flushed. If the process is killed, the old or the new file is there, at worst with
 * a stray ".attn-..." beside it. A symbolic link at the final name is replaced, not followed.
 *
 * Outputs that cannot be replaced are written in place: standard output ("-", /dev/stdout,
 * /dev/fd/N), FIFOs and devices. Up to HOLD_DIRECT bytes for them are buffered until the commit, so
 * a command that fails half-way writes nothing.
 *
 * Every error here is KIT_LIMIT, because the input was valid and only the place to write was not.
 */
#if __SIZEOF_LONG__ == 4
#define _FILE_OFFSET_BITS 64
#endif
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOLD_FILE = 1 << 16, HOLD_DIRECT = 1 << 26, WRITE_AT_ONCE = 1 << 30, TRIES = 100 };

struct kit_output {
    char *path;       /* as given; also shown in messages */
    const char *base; /* last part of path */
    int fd, folder;   /* folder: of the final name; -1: written in place */
    char temporary[KIT_TEMPORARY];
    char *held; /* buffered, not written yet */
    size_t used, capacity, limit;
    bool failed;
};

static const char prefix[] = ".attn-"; /* of temporary names */

static int cannot(const kit_output *out, const char *what, kit_error *err)
{
    return kit_fail(err, KIT_LIMIT, "%s: cannot %s: %s", out->path, what, strerror(errno));
}

/* ----------------------------------------------------------------------------------- Opening */

static int open_at(int folder, const char *name, int flags)
{
    int fd;
    do
        fd = openat(folder, name, flags | O_NOCTTY | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR); /* a FIFO blocks until it has a reader */
    return fd;
}

int kit_output_descriptor(const char *path)
{
    static const struct {
        const char *name;
        int fd;
    } known[] = {{"-", 1}, {"/dev/stdout", 1}, {"/dev/stderr", 2}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(path, known[i].name) == 0)
            return known[i].fd;

    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        const size_t n = strlen(folders[i]);
        const char *digits = path + n;
        if (strncmp(path, folders[i], n) == 0 && *digits && strlen(digits) < 9 &&
            strspn(digits, "0123456789") == strlen(digits))
            return (int)strtol(digits, NULL, 10);
    }
    return -1;
}

static int open_folder(kit_output *out, kit_error *err)
{
    char *slash = strrchr(out->path, '/');
    const char *folder = slash == out->path ? "/" : out->path; /* cut at the slash below */
    out->base = slash ? slash + 1 : out->path;
    if (!*out->base)
        out->base = "."; /* "folder/" names a folder */
    if (slash && slash != out->path)
        *slash = 0;
    out->folder = open_at(AT_FDCWD, slash ? folder : ".", O_RDONLY | O_DIRECTORY);
    if (slash)
        *slash = '/';
    return out->folder < 0 ? cannot(out, "open its folder", err) : KIT_OK;
}

static int open_temporary(kit_output *out, kit_error *err)
{
    for (int i = 0; i < TRIES; i++) {
        uint64_t random = (uint64_t)getpid() + (uint64_t)i; /* fallback if getentropy fails */
        (void)!getentropy(&random, sizeof random);
        snprintf(out->temporary, sizeof out->temporary, "%s%016" PRIx64, prefix, random);
        out->fd = open_at(out->folder, out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
        if (out->fd >= 0)
            return KIT_OK;
        if (errno != EEXIST)
            break;
    }
    out->temporary[0] = 0;
    return cannot(out, "write", err);
}

static int open_in_place(kit_output *out, kit_error *err)
{
    out->fd = open_at(out->folder, out->base, O_WRONLY | O_NOFOLLOW);
    if (out->fd < 0)
        return cannot(out, "write", err);
    close(out->folder);
    out->folder = -1;
    return KIT_OK;
}

static int open_target(kit_output *out, const char *path, kit_error *err)
{
    const int descriptor = kit_output_descriptor(path);
    if (descriptor >= 0) {
        out->fd = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
        return out->fd < 0 ? cannot(out, "write", err) : KIT_OK;
    }
    const int code = open_folder(out, err);
    if (code)
        return code;
    struct stat st;
    if (fstatat(out->folder, out->base, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? open_temporary(out, err) : cannot(out, "write", err);
    if (S_ISREG(st.st_mode) || S_ISLNK(st.st_mode))
        return open_temporary(out, err);
    if (S_ISCHR(st.st_mode) || S_ISFIFO(st.st_mode))
        return open_in_place(out, err);
    return kit_fail(err, KIT_LIMIT, "%s: is a %s, not a file", path,
                    S_ISDIR(st.st_mode) ? "directory" : "disk or a socket");
}

/* Makes writing past RLIMIT_FSIZE an ordinary error; by default SIGXFSZ would kill the program. */
static void ignore_size_signal(void)
{
    struct sigaction now;
    sigaction(SIGXFSZ, NULL, &now);
    if (now.sa_handler == SIG_DFL)
        signal(SIGXFSZ, SIG_IGN);
}

/* An output without a file. */
static int new_output(kit_output **to, const char *path, kit_error *err)
{
    kit_output *out = *to = calloc(1, sizeof *out);
    if (!out)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    out->fd = out->folder = -1;
    out->capacity = HOLD_FILE;
    out->held = malloc(out->capacity);
    out->path = malloc(strlen(path) + sizeof "standard output");
    if (!out->held || !out->path)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    strcpy(out->path, strcmp(path, "-") == 0 ? "standard output" : path);
    ignore_size_signal();
    return KIT_OK;
}

/* Gives the caller the output, or frees it after a failure. */
static int give(kit_output **to, int code)
{
    if (code) {
        kit_output_abort(*to);
        *to = NULL;
    } else
        (*to)->limit = (*to)->folder < 0 ? HOLD_DIRECT : HOLD_FILE;
    return code;
}

int kit_output_open(kit_output **to, const char *path, kit_error *err)
{
    int code = new_output(to, path, err);
    if (!code)
        code = open_target(*to, path, err);
    return give(to, code);
}

/* ----------------------------------------------------------------------------------- Writing */

static int write_through(kit_output *out, const char *bytes, size_t size, kit_error *err)
{
    while (size) {
        const ssize_t n = write(out->fd, bytes, size < WRITE_AT_ONCE ? size : WRITE_AT_ONCE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC; /* nothing written and no reason given */
        if (n <= 0) {
            out->failed = true;
            return cannot(out, "write", err);
        }
        bytes += n;
        size -= (size_t)n;
    }
    return KIT_OK;
}

static int flush(kit_output *out, kit_error *err)
{
    const int code = write_through(out, out->held, out->used, err);
    out->used = 0;
    return code;
}

/* Makes room for `size` more bytes; the caller ensures that all fit within `limit`. */
static int make_room(kit_output *out, size_t size, kit_error *err)
{
    size_t capacity = out->capacity;
    while (capacity - out->used < size)
        capacity *= 2;
    if (capacity == out->capacity)
        return KIT_OK;
    char *held = realloc(out->held, capacity);
    if (!held) {
        out->failed = true;
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", out->path);
    }
    out->held = held;
    out->capacity = capacity;
    return KIT_OK;
}

int kit_output_write(kit_output *out, const void *bytes, size_t size, kit_error *err)
{
    int code = KIT_OK;
    if (size > out->limit - out->used)
        code = flush(out, err);
    if (!code && size > out->limit)
        return write_through(out, bytes, size, err);
    if (!code)
        code = make_room(out, size, err);
    if (!code && size) {
        memcpy(out->held + out->used, bytes, size);
        out->used += size;
    }
    return code;
}

int kit_output_printf(kit_output *out, kit_error *err, const char *format, ...)
{
    char small[512], *text = small;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n < 0) {
        out->failed = true;
        return kit_fail(err, KIT_LIMIT, "%s: cannot format a text: %s", out->path, strerror(errno));
    }
    if (n >= (int)sizeof small) {
        text = malloc((size_t)n + 1);
        if (!text) {
            out->failed = true;
            return kit_fail(err, KIT_LIMIT, "%s: not enough memory", out->path);
        }
        va_start(args, format);
        vsnprintf(text, (size_t)n + 1, format, args);
        va_end(args);
    }
    const int code = kit_output_write(out, text, (size_t)n, err);
    if (text != small)
        free(text);
    return code;
}

/* ------------------------------------------------------------ One file, written by several
 *
 * All have the temporary file open, and know its name: whoever fails removes it, so that it does
 * not stay even if its creator has died. The creator's commit then fails. */

int io_output_share(kit_output *out, size_t size, kit_error *err)
{
    if (out->folder < 0)
        return kit_fail(err, KIT_LIMIT,
                        "%s: is no regular file; only such a file can be written by several "
                        "processes",
                        out->path);
    const int code = flush(out, err);
    if (code)
        return code;
    if (size > INT64_MAX || ftruncate(out->fd, (off_t)size) != 0) {
        out->failed = true;
        return cannot(out, "write", err);
    }
    return KIT_OK;
}

const char *kit_output_temporary(const kit_output *out) { return out->temporary; }

static int join(kit_output *out, const char *temporary, kit_error *err)
{
    const size_t length = strlen(temporary);
    if (strncmp(temporary, prefix, strlen(prefix)) != 0 || strchr(temporary, '/') ||
        length >= sizeof out->temporary)
        return kit_fail(err, KIT_LIMIT, "%s: '%.40s' is no temporary name of it", out->path,
                        temporary);
    const int code = open_folder(out, err);
    if (code)
        return code;
    out->fd = open_at(out->folder, temporary, O_WRONLY | O_NOFOLLOW);
    if (out->fd < 0)
        return cannot(out, "open its temporary file, which another process has made", err);
    memcpy(out->temporary, temporary, length + 1);
    return KIT_OK;
}

int kit_output_join(kit_output **to, const char *path, const char *temporary, kit_error *err)
{
    int code = new_output(to, path, err);
    if (!code)
        code = join(*to, temporary, err);
    return give(to, code);
}

int io_output_write_at(kit_output *out, size_t at, const void *bytes, size_t size, kit_error *err)
{
    const char *from = bytes;
    while (size) {
        const ssize_t n =
            pwrite(out->fd, from, size < WRITE_AT_ONCE ? size : WRITE_AT_ONCE, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0) {
            out->failed = true;
            return cannot(out, "write", err);
        }
        from += n;
        at += (size_t)n;
        size -= (size_t)n;
    }
    return KIT_OK;
}

/* ------------------------------------------------------------------- Committing and aborting */

static int close_file(kit_output *out, kit_error *err)
{
    const int fd = out->fd;
    out->fd = -1;
    if (close(fd) != 0 && errno != EINTR) /* after EINTR the descriptor is closed too */
        return cannot(out, "write", err);
    return KIT_OK;
}

int kit_flush_to_disk(int fd)
{
    int result;
    do
        result = fsync(fd);
    while (result != 0 && errno == EINTR);
    return result;
}

int kit_output_sync(kit_output *out, kit_error *err)
{
    if (out->failed)
        return kit_fail(err, KIT_LIMIT, "%s: was not written in full", out->path);
    return kit_flush_to_disk(out->fd) != 0 ? cannot(out, "write", err) : KIT_OK;
}

void kit_output_leave(kit_output *out)
{
    if (out)
        out->temporary[0] = 0;
    kit_output_abort(out);
}

static int finish(kit_output *out, kit_error *err)
{
    if (out->failed)
        return kit_fail(err, KIT_LIMIT, "%s: was not written in full", out->path);
    int code = flush(out, err);
    if (!code && out->folder >= 0 && kit_flush_to_disk(out->fd) != 0)
        code = cannot(out, "write", err);
    if (!code)
        code = close_file(out, err);
    if (code || out->folder < 0)
        return code;
    if (renameat(out->folder, out->temporary, out->folder, out->base) != 0)
        return cannot(out, "replace it", err);
    out->temporary[0] = 0;
    /* Some file systems cannot flush a folder and return EINVAL. */
    if (kit_flush_to_disk(out->folder) != 0 && errno != EINVAL)
        return cannot(out, "flush its folder", err);
    return KIT_OK;
}

int kit_output_commit(kit_output *out, kit_error *err)
{
    const int code = finish(out, err);
    kit_output_abort(out);
    return code;
}

void kit_output_abort(kit_output *out)
{
    if (!out)
        return;
    if (out->fd >= 0)
        close(out->fd);
    if (out->temporary[0])
        unlinkat(out->folder, out->temporary, 0);
    if (out->folder >= 0)
        close(out->folder);
    free(out->held);
    free(out->path);
    free(out);
}
