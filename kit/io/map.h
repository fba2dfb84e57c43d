/* Ranges of a file as pages in memory: `count` ranges, whose starts are `distance` bytes apart in
 * the file and `stride` bytes apart in memory. Maps are opened and closed by one thread, while no
 * other thread uses any of them. */
#ifndef KIT_IO_MAP_H
#define KIT_IO_MAP_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct io_map io_map;
struct io_map {
    size_t stride;
    volatile sig_atomic_t lost; /* some page could not be read and was replaced by zeros */
    int fd;
    int64_t distance, count;
    unsigned char *base; /* reserved addresses; NULL: the ranges cannot be mapped */
    size_t room, page;   /* bytes of all of them, and of a page */
    bool failed;         /* once a range could not be mapped */
    io_map *next;
};
/* Reserves addresses for ranges of at most `most` bytes. The map must not be moved while it is
 * open. */
void io_map_open(io_map *m, int fd, int64_t distance, int64_t count, size_t most);
/* Maps `bytes` bytes of each range, the first one from offset `at` of the file, in place of those
 * mapped before. Returns the first range; NULL: not possible, not later either. */
const void *io_map_ranges(io_map *m, int64_t at, size_t bytes);
void io_map_close(io_map *m); /* one with base NULL will do */

#endif
