/* The files of attn run --mpi --checkpoint DIR --resume DIR. A checkpoint is the file `checkpoint`
 * in DIR. All ranks write it as `checkpoint.new`, which rank 0 renames when all bytes are on the
 * disk. So the checkpoint is the old or the new one, whenever a process is killed. What then stays
 * of `checkpoint.new` is never read, and the next save replaces it. */
#if __SIZEOF_LONG__ == 4
#define _FILE_OFFSET_BITS 64
#endif
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { AT_ONCE = 1 << 30 };

/* --------------------------------------------------------------------------------------- errors */

static int cannot(const char *path, int code, const char *what, kit_error *err)
{
    return kit_fail(err, code, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* The same in a function that libattn-mpi calls. */
static int failed(checkpoint *c, const char *what)
{
    return c->err.code ? c->err.code : cannot(c->path, KIT_LIMIT, what, &c->err);
}

/* --------------------------------------------------------------------------------------- saving */

static int make_folder(const checkpoint *c)
{
    return mkdir(c->folder, 0777) != 0 && errno != EEXIST;
}

static int create(checkpoint *c)
{
    if (unlink(c->temporary) != 0 && errno != ENOENT)
        return 1;
    c->fd = open(c->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return c->fd < 0;
}

static int close_file(checkpoint *c)
{
    const int fd = c->fd;
    c->fd = -1;
    return fd >= 0 && close(fd) != 0 && errno != EINTR;
}

static int open_new(void *user, uint64_t size)
{
    checkpoint *c = user;
    if (size > INT64_MAX) {
        errno = EFBIG;
        return failed(c, "write");
    }
    if (c->rank == 0 && (make_folder(c) || create(c)))
        return failed(c, "write");
    return KIT_OK;
}

static int write_new(void *user, uint64_t at, const void *bytes, size_t size)
{
    checkpoint *c = user;
    const char *from = bytes;
    if (c->fd < 0) /* rank 0 has created it */
        c->fd = open(c->temporary, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (c->fd < 0)
        return failed(c, "open what rank 0 has created");
    while (size) {
        const ssize_t n = pwrite(c->fd, from, size < AT_ONCE ? size : AT_ONCE, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC; /* nothing written and no reason given */
        if (n <= 0)
            return failed(c, "write");
        from += n;
        at += (uint64_t)n;
        size -= (size_t)n;
    }
    return KIT_OK;
}

static int sync_new(void *user)
{
    checkpoint *c = user;
    if (c->fd >= 0 && (kit_flush_to_disk(c->fd) != 0 || close_file(c)))
        return failed(c, "write");
    return KIT_OK;
}

static int flush_folder(const checkpoint *c)
{
    const int fd = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return 1;
    /* Some file systems cannot flush a folder and return EINVAL. */
    const int wrong = kit_flush_to_disk(fd) != 0 && errno != EINVAL;
    close(fd);
    return wrong;
}

static int close_new(void *user, int complete)
{
    checkpoint *c = user;
    close_file(c);
    if (c->rank > 0)
        return KIT_OK;
    if (!complete)
        return unlink(c->temporary) != 0;
    if (rename(c->temporary, c->path) != 0) {
        const int code = failed(c, "replace it");
        unlink(c->temporary);
        return code;
    }
    return flush_folder(c) ? failed(c, "flush its folder") : KIT_OK;
}

/* ------------------------------------------------------------------------------------- resuming */

static int read_saved(void *user, uint64_t at, void *bytes, size_t size)
{
    checkpoint *c = user;
    char *to = bytes;
    while (size) {
        const ssize_t n = pread(c->from, to, size < AT_ONCE ? size : AT_ONCE, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && !c->err.code)
            cannot(c->saved, KIT_BAD_FILE, "read", &c->err);
        if (n == 0)
            kit_fail(&c->err, KIT_BAD_FILE, "%s: has become shorter", c->saved);
        if (n <= 0)
            return KIT_BAD_FILE;
        to += n;
        at += (uint64_t)n;
        size -= (size_t)n;
    }
    return KIT_OK;
}

static int open_saved(checkpoint *c, kit_error *err)
{
    struct stat st;
    c->from = open(c->saved, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (c->from < 0 || fstat(c->from, &st) != 0)
        return cannot(c->saved, KIT_BAD_FILE, "open", err);
    if (!S_ISREG(st.st_mode))
        return kit_fail(err, KIT_BAD_FILE, "%s: is no regular file, so it is no checkpoint",
                        c->saved);
    c->functions.read = read_saved;
    c->functions.size = (uint64_t)st.st_size;
    return KIT_OK;
}

/* -------------------------------------------------------------------------------- preparations */

/* Can the checkpoint be written? Leaves nothing behind. */
static int probe(checkpoint *c, kit_error *err)
{
    struct stat st;
    if (mkdir(c->folder, 0777) == 0)
        return rmdir(c->folder) == 0 ? KIT_OK : cannot(c->folder, KIT_LIMIT, "write", err);
    if (errno != EEXIST)
        return cannot(c->folder, KIT_LIMIT, "make the directory", err);
    if (stat(c->folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return kit_fail(err, KIT_LIMIT,
                        "%s: is no directory; with --mpi, --checkpoint names a directory",
                        c->folder);
    if (stat(c->path, &st) == 0 && !S_ISREG(st.st_mode))
        return kit_fail(err, KIT_LIMIT, "%s: is no regular file; a checkpoint would replace it",
                        c->path);
    if (create(c))
        return cannot(c->path, KIT_LIMIT, "write", err);
    close_file(c);
    unlink(c->temporary);
    return KIT_OK;
}

static int join(char **path, const char *folder, const char *name, kit_error *err)
{
    const size_t size = strlen(folder) + strlen(name) + 2;
    *path = malloc(size);
    if (!*path)
        return kit_fail(err, KIT_LIMIT, "out of memory");
    snprintf(*path, size, "%s/%s", folder, name);
    return KIT_OK;
}

/* No result may be one of the files, and the checkpoint no input. But it may be the one that is
 * resumed, because it continues the same call. */
static int check_files(const checkpoint *c, const files *f, kit_error *err)
{
    files results = {0}, all = {0};
    int code = c->saved ? files_add_input(&results, c->saved, err) : KIT_OK;
    for (size_t i = 0; i < f->input_count && !code; i++)
        code = files_add_input(&all, f->input[i], err);
    for (size_t i = 0; i < f->output_count && !code; i++)
        if (!(code = files_add_output(&results, f->output[i].path, err)))
            code = files_add_output(&all, f->output[i].path, err);
    if (!code && c->path && !(code = files_add_output(&all, c->path, err)))
        code = files_add_output(&all, c->temporary, err);
    files_free(&results);
    files_free(&all);
    return code;
}

int checkpoint_prepare(checkpoint *c, const options *o, const files *f, int rank, kit_error *err)
{
    int code = KIT_OK;
    *c = (checkpoint){.functions = ATTN_MPI_CHECKPOINT_INIT, .rank = rank, .fd = -1, .from = -1};
    c->functions.user = c;
    c->functions.every = option_real(o, OPT_run_every);
    c->folder = option_text(o, OPT_run_checkpoint);
    c->resume = option_text(o, OPT_run_resume);
    if (!c->folder && option_given(o, OPT_run_every))
        return kit_fail(err, KIT_USAGE, "--every has no effect without --checkpoint DIR");
    if (c->folder && (!*c->folder || strcmp(c->folder, "-") == 0))
        return kit_fail(err, KIT_USAGE, "--checkpoint %s: must be the name of a directory",
                        c->folder);
    if (c->folder && ((code = join(&c->path, c->folder, "checkpoint", err)) ||
                      (code = join(&c->temporary, c->folder, "checkpoint.new", err))))
        return code;
    if ((c->resume && (code = join(&c->saved, c->resume, "checkpoint", err))) ||
        (code = check_files(c, f, err)) || (c->resume && (code = open_saved(c, err))))
        return code;
    if (!c->folder)
        return KIT_OK;
    signal(SIGXFSZ, SIG_IGN); /* writing past the limit of a file's size is an ordinary error */
    c->functions.open = open_new;
    c->functions.write = write_new;
    c->functions.sync = sync_new;
    c->functions.close = close_new;
    return rank == 0 ? probe(c, err) : KIT_OK;
}

const attn_mpi_checkpoint *checkpoint_functions(const checkpoint *c)
{
    return c->folder || c->resume ? &c->functions : NULL;
}

void checkpoint_free(checkpoint *c)
{
    if (c->from >= 0)
        close(c->from);
    close_file(c);
    free(c->path);
    free(c->temporary);
    free(c->saved);
}
