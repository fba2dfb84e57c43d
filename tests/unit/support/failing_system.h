/* A system that fails on request: every call of the kit's files to the kernel, to the allocator and
 * to libzip goes through here, by the linker's --wrap (see the first lines of test_faults.c);
 * jansson allocates through kit/io/json.c. */
#ifndef FAILING_SYSTEM_H
#define FAILING_SYSTEM_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zip.h>

enum { SHORT = -1, CUT = -2, SPARSE = -3, NOTHING = -4, GROWN = -5 }; /* beside errno values */

static struct {
    int kind;  /* an errno or one of the above; 0: only count */
    long at;   /* the call that fails, from 1 */
    int times; /* as many calls as fail from there on */
    long calls;
    int hit, hit_close; /* the call came; it was a close */
    bool memory;        /* count allocations instead of calls to the system */
} fault;
static bool armed;
static char story[64]; /* what a run did: o a safe temporary, w it wrote, s flushed, r renamed */
static long live;      /* blocks allocated and not freed */

static void tell(char what)
{
    const size_t n = strlen(story);
    if (armed && n + 1 < sizeof story && (n == 0 || story[n - 1] != what))
        story[n] = what;
}

/* Whether this call fails. */
static bool strikes(bool memory)
{
    if (!armed || memory != fault.memory)
        return false;
    fault.calls++;
    if (!fault.kind || fault.calls < fault.at || fault.calls >= fault.at + fault.times)
        return false;
    fault.hit++;
    return true;
}

static bool strikes_with_errno(bool interruptible)
{
    if (!strikes(false))
        return false;
    if (fault.kind < 0 || (fault.kind == EINTR && !interruptible)) {
        fault.hit--;
        return false;
    }
    errno = fault.kind;
    return true;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode)
{
    return strikes_with_errno(true) ? -1 : __real_open(path, flags, mode);
}

ssize_t __real_write(int fd, const void *from, size_t size);
int __real_close(int fd);

int __real_openat(int folder, const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, mode_t mode);
int __wrap_openat(int folder, const char *path, int flags, mode_t mode)
{
    if ((flags & O_CREAT) && (flags & O_EXCL) && (flags & O_NOFOLLOW))
        tell('o');
    return strikes_with_errno(true) ? -1 : __real_openat(folder, path, flags, mode);
}

static int append_to(const char *path)
{
    const int fd = __real_open(path, O_WRONLY | O_APPEND);
    return fd < 0 ? -1 : (int)__real_write(fd, "more", 4) + __real_close(fd);
}

/* What read, pread and write do: *size is what they go on with; true: they fail. */
static bool transfer_strikes(size_t *size)
{
    if (!strikes(false))
        return false;
    if ((fault.kind == SHORT || fault.kind == GROWN) && *size > 1)
        *size = 1;
    if (fault.kind == GROWN && append_to("k.npy") != 4)
        abort();
    if (fault.kind == CUT && truncate("k.npy", 100) != 0)
        abort();
    if (fault.kind < 0)
        return false;
    errno = fault.kind;
    return true;
}

ssize_t __real_read(int fd, void *to, size_t size);
ssize_t __wrap_read(int fd, void *to, size_t size);
ssize_t __wrap_read(int fd, void *to, size_t size)
{
    return transfer_strikes(&size) ? -1 : __real_read(fd, to, size);
}

ssize_t __real_pread(int fd, void *to, size_t size, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t at)
{
    return transfer_strikes(&size) ? -1 : __real_pread(fd, to, size, at);
}

ssize_t __wrap_write(int fd, const void *from, size_t size);
ssize_t __wrap_write(int fd, const void *from, size_t size)
{
    if (armed && fault.kind == SPARSE && size >= 1 << 20) /* a hole instead of zeros */
        return lseek(fd, (off_t)size, SEEK_CUR) < 0 ? -1 : (ssize_t)size;
    if (armed && fault.kind == NOTHING && strikes(false))
        return 0;
    tell('w');
    return transfer_strikes(&size) ? -1 : __real_write(fd, from, size);
}

int __real_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st)
{
    return strikes_with_errno(false) ? -1 : __real_fstat(fd, st);
}

int __real_fstatat(int folder, const char *path, struct stat *st, int flags);
int __wrap_fstatat(int folder, const char *path, struct stat *st, int flags);
int __wrap_fstatat(int folder, const char *path, struct stat *st, int flags)
{
    return strikes_with_errno(false) ? -1 : __real_fstatat(folder, path, st, flags);
}

/* No power fails here, so nothing has to wait for a disk. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    tell('s');
    return strikes_with_errno(true) ? -1 : 0;
}

int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    tell('r');
    return strikes_with_errno(false) ? -1 : __real_renameat(from_folder, from, to_folder, to);
}

/* It is closed all the same, as Linux does. */
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    const bool fails = strikes_with_errno(true);
    const int saved = errno, result = __real_close(fd);
    if (!fails)
        return result;
    fault.hit_close++;
    errno = saved;
    return -1;
}

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    void *p = strikes(true) ? NULL : __real_malloc(size);
    live += p != NULL;
    return p;
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    void *p = strikes(true) ? NULL : __real_calloc(count, size);
    live += p != NULL;
    return p;
}

void *__real_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size)
{
    void *p = strikes(true) ? NULL : __real_realloc(old, size);
    live += p && !old;
    return p;
}

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    void *p = strikes(true) ? NULL : __real_aligned_alloc(alignment, size);
    live += p != NULL;
    return p;
}

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}

/* libzip's own allocations are out of reach, so its functions fail as if one of them had. */
zip_source_t *__real_zip_source_function_create(zip_source_callback f, void *user, zip_error_t *e);
zip_source_t *__wrap_zip_source_function_create(zip_source_callback f, void *user, zip_error_t *e);
zip_source_t *__wrap_zip_source_function_create(zip_source_callback f, void *user, zip_error_t *e)
{
    if (!strikes(true))
        return __real_zip_source_function_create(f, user, e);
    zip_error_set(e, ZIP_ER_MEMORY, 0);
    return NULL;
}

const char *__real_zip_get_name(zip_t *z, zip_uint64_t i, zip_flags_t flags);
const char *__wrap_zip_get_name(zip_t *z, zip_uint64_t i, zip_flags_t flags);
const char *__wrap_zip_get_name(zip_t *z, zip_uint64_t i, zip_flags_t flags)
{
    if (!strikes(true))
        return __real_zip_get_name(z, i, flags);
    zip_error_set(zip_get_error(z), ZIP_ER_MEMORY, 0);
    return NULL;
}

int __real_zip_stat_index(zip_t *z, zip_uint64_t i, zip_flags_t flags, zip_stat_t *st);
int __wrap_zip_stat_index(zip_t *z, zip_uint64_t i, zip_flags_t flags, zip_stat_t *st);
int __wrap_zip_stat_index(zip_t *z, zip_uint64_t i, zip_flags_t flags, zip_stat_t *st)
{
    if (!strikes(true))
        return __real_zip_stat_index(z, i, flags, st);
    zip_error_set(zip_get_error(z), ZIP_ER_MEMORY, 0);
    return -1;
}

zip_file_t *__real_zip_fopen_index(zip_t *z, zip_uint64_t i, zip_flags_t flags);
zip_file_t *__wrap_zip_fopen_index(zip_t *z, zip_uint64_t i, zip_flags_t flags);
zip_file_t *__wrap_zip_fopen_index(zip_t *z, zip_uint64_t i, zip_flags_t flags)
{
    if (!strikes(true))
        return __real_zip_fopen_index(z, i, flags);
    zip_error_set(zip_get_error(z), ZIP_ER_MEMORY, 0);
    return NULL;
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    char *p = strikes(true) ? NULL : __real_strdup(text);
    live += p != NULL;
    return p;
}

char *__real_strndup(const char *text, size_t size);
char *__wrap_strndup(const char *text, size_t size);
char *__wrap_strndup(const char *text, size_t size)
{
    char *p = strikes(true) ? NULL : __real_strndup(text, size);
    live += p != NULL;
    return p;
}

#endif
