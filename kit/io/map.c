/* Ranges of a file as pages in memory, without a copy.
 *
 * A page of the file can be mapped to the start of a page of memory only. Therefore stride and
 * distance have the same remainder modulo the size of a page; then one stride serves all ranges.
 *
 * If another process makes the file shorter, an access beyond its new end raises SIGBUS. The
 * handler maps a page of zeros in its place and sets `lost`. The caller reads `lost` after it has
 * used the pages. */
#ifdef __linux__
#define _GNU_SOURCE /* MAP_POPULATE */
#endif
#if __SIZEOF_LONG__ == 4
#define _FILE_OFFSET_BITS 64
#endif
#include "map.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_POPULATE
#define MAP_POPULATE 0 /* the pages are then mapped at their first use */
#endif

/* Linux allows a process 65,530 mappings, and a program has a few maps open. */
enum { MOST_RANGES = 4096 };

static io_map *maps; /* those whose pages the handler replaces */
static struct sigaction before;

static void replace_page(int number, siginfo_t *info, void *context)
{
    (void)context;
    const uintptr_t at = (uintptr_t)info->si_addr;
    for (io_map *m = maps; m; m = m->next)
        if (at - (uintptr_t)m->base < m->room) {
            m->lost = 1;
            void *page = (void *)(at - at % m->page);
            if (mmap(page, m->page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                page)
                return;
        }
    sigaction(number, &before, NULL); /* the instruction runs again, and raises it again */
}

void io_map_open(io_map *m, int fd, int64_t distance, int64_t count, size_t most)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *m = (io_map){.fd = fd, .page = page, .distance = distance, .count = count};
    size_t room;
    if (most == 0 || count > MOST_RANGES || __builtin_add_overflow(most, 3 * page, &m->stride))
        return;
    m->stride += (size_t)distance % page - most % page;
    if (__builtin_mul_overflow(m->stride, (size_t)count, &room) ||
        __builtin_add_overflow(room, 2 * page, &m->room))
        return;
    void *base = mmap(NULL, m->room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return;
    m->base = base;
    if (!maps) {
        struct sigaction action = {.sa_sigaction = replace_page, .sa_flags = SA_SIGINFO};
        sigaction(SIGBUS, &action, &before);
    }
    m->next = maps;
    maps = m;
}

const void *io_map_ranges(io_map *m, int64_t at, size_t bytes)
{
    const size_t page = m->page;
    unsigned char *first = m->base + (size_t)at % page;
    for (int64_t i = 0; i < m->count; i++) {
        const int64_t from = at + i * m->distance;
        const size_t skip = (size_t)from % page; /* of the first page */
        void *to = first + (size_t)i * m->stride - skip;
        if (mmap(to, skip + bytes, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, m->fd,
                 (off_t)from - (off_t)skip) != to) {
            m->failed = true;
            return NULL;
        }
    }
    return first;
}

void io_map_close(io_map *m)
{
    io_map **at = &maps;
    while (*at && *at != m)
        at = &(*at)->next;
    if (!*at)
        return; /* not open */
    *at = m->next;
    if (!maps)
        sigaction(SIGBUS, &before, NULL);
    if (!m->failed) /* else part of the range may be free, and soon another's */
        munmap(m->base, m->room);
}
