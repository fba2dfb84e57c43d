/* Loaded before the C library (LD_PRELOAD) by test_attn_run.py: one rank stops, or gets an error,
 * at its first read or write of an array.
 *
 *   FAULT_RANK=1 FAULT=stop-read|stop-call|stop-write|signal|full|rename|memory
 *
 * or at its first write of a checkpoint: stop-save, full-save, rename-save. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int asked(const char *fault)
{
    const char *what = getenv("FAULT"), *who = getenv("FAULT_RANK");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank ? rank : getenv("PMI_RANK");
    return what && who && rank && strcmp(what, fault) == 0 && strcmp(who, rank) == 0;
}

static int is_named(int fd, const char *part)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return strstr(path, part) != NULL;
}

/* MPI reads and writes other files. */
static int is_array(int fd) { return is_named(fd, ".npy") || is_named(fd, ".attn-"); }

static int is_checkpoint(int fd) { return is_named(fd, "/checkpoint.new"); }

static int last_is_read; /* v.npy, after q and k */

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real)
        *(void **)&real = next("pread");
    if (asked("stop-read") && is_array(fd))
        raise(SIGSTOP);
    const ssize_t got = real(fd, to, n, at);
    last_is_read = last_is_read || (n > 100 && is_named(fd, "v.npy"));
    return got;
}

/* The first call after reading is in the wait for a message. The other ranks have the message of
 * this one then, and begin the computation. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        *(void **)&real = next("clock_gettime");
    if (last_is_read && asked("stop-call"))
        raise(SIGSTOP);
    return real(clock, now);
}

/* Memory for a segment of keys, as libattn-mpi allocates it. dlsym itself may call calloc. */
void *calloc(size_t count, size_t size)
{
    extern void *__libc_calloc(size_t, size_t);
    if (last_is_read && size == 1 && count > 20000 && asked("memory"))
        return NULL;
    return __libc_calloc(count, size);
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real)
        *(void **)&real = next("pwrite");
    if (asked("stop-write") && is_array(fd))
        raise(SIGSTOP);
    if (asked("signal") && is_array(fd))
        kill(getpid(), SIGTERM);
    if (asked("full") && is_array(fd)) {
        errno = ENOSPC;
        return -1;
    }
    if (asked("stop-save") && is_checkpoint(fd))
        raise(SIGSTOP);
    if (asked("full-save") && is_checkpoint(fd)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, from, n, at);
}

int rename(const char *old, const char *new)
{
    static int (*real)(const char *, const char *);
    if (!real)
        *(void **)&real = next("rename");
    if (asked("rename-save") && strstr(old, "checkpoint.new")) {
        errno = EACCES;
        return -1;
    }
    return real(old, new);
}

int renameat(int from, const char *old, int to, const char *new)
{
    static int (*real)(int, const char *, int, const char *);
    if (!real)
        *(void **)&real = next("renameat");
    if (asked("rename")) {
        errno = EACCES;
        return -1;
    }
    return real(from, old, to, new);
}
