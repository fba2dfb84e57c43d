/* Guarded memory: see check_buffers.h.
 *
 * A slot is one mapping with a guard page at both ends. Slots are kept and reused, since mapping
 * two buffers per case costs more than most cases.
 */
#include "check_buffers.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* bytes of pattern on either side of a buffer, where the mapping has room for them */
#define MARGIN 192

typedef struct slot {
    unsigned char *map; /* the usable bytes, between the guard pages */
    size_t capacity;    /* a multiple of the page size */
    unsigned char *data;
    size_t size;
} slot;

struct check_buffers {
    slot *slots;
    size_t used, count;
    size_t page;
};

check_buffers *check_buffers_create(void)
{
    check_buffers *b = calloc(1, sizeof *b);
    if (b)
        b->page = (size_t)sysconf(_SC_PAGESIZE);
    return b;
}

static void unmap(const check_buffers *b, slot *s)
{
    if (s->map)
        munmap(s->map - b->page, s->capacity + 2 * b->page);
    *s = (slot){0};
}

void check_buffers_destroy(check_buffers *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->count; i++)
        unmap(b, &b->slots[i]);
    free(b->slots);
    free(b);
}

void check_buffers_reset(check_buffers *b) { b->used = 0; }

/* Makes room for `size` bytes between two guard pages. */
static bool map_slot(const check_buffers *b, slot *s, size_t size)
{
    if (s->map && s->capacity >= size)
        return true;
    unmap(b, s);
    size_t capacity = (size / b->page + 2) * b->page;
    unsigned char *all = mmap(NULL, capacity + 2 * b->page, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return false;
    s->map = all + b->page;
    s->capacity = capacity;
    return mprotect(s->map, capacity, PROT_READ | PROT_WRITE) == 0;
}

void *check_buffers_take(check_buffers *b, size_t size, size_t alignment, check_side side,
                         size_t shift)
{
    if (b->used == b->count) {
        slot *more = realloc(b->slots, (b->count + 8) * sizeof *more);
        if (!more)
            return NULL;
        memset(more + b->count, 0, 8 * sizeof *more);
        b->slots = more;
        b->count += 8;
    }
    slot *s = &b->slots[b->used];
    if (!map_slot(b, s, size + 64))
        return NULL;
    b->used++;

    if (side == CHECK_LEFT)
        s->data = s->map;
    else if (side == CHECK_SHIFT)
        s->data = s->map + shift % 64;
    else
        s->data = s->map + ((s->capacity - size) & ~(alignment - 1));
    s->size = size;

    size_t before = (size_t)(s->data - s->map), after = s->capacity - before - size;
    before = before < MARGIN ? before : MARGIN;
    after = after < MARGIN ? after : MARGIN;
    memset(s->data - before, CHECK_FILL, before + size + after);
    return s->data;
}

static bool filled(const unsigned char *from, const unsigned char *to)
{
    while (from < to)
        if (*from++ != CHECK_FILL)
            return false;
    return true;
}

bool check_buffers_intact(const check_buffers *b)
{
    for (size_t i = 0; i < b->used; i++) {
        const slot *s = &b->slots[i];
        const unsigned char *end = s->data + s->size, *last = s->map + s->capacity;
        if (!filled(s->data - s->map > MARGIN ? s->data - MARGIN : s->map, s->data) ||
            !filled(end, last - end > MARGIN ? end + MARGIN : last))
            return false;
    }
    return true;
}
