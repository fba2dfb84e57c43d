/* Memory that notices: every buffer lies against a page that may not be touched, and what lies
 * around it is filled with a pattern that is looked at afterwards.
 *
 * The pattern is all ones: NaN in every float type, so that a value read from outside shows in the
 * result as well. Buffers come filled with it too.
 */
#ifndef CHECK_BUFFERS_H
#define CHECK_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>

#define CHECK_FILL 0xFF

typedef struct check_buffers check_buffers;

check_buffers *check_buffers_create(void); /* NULL: out of memory */
void check_buffers_destroy(check_buffers *buffers);

/* Forgets all buffers; their memory is used again. */
void check_buffers_reset(check_buffers *buffers);

typedef enum check_side {
    CHECK_RIGHT, /* the last byte lies before a guard page, as near as the alignment lets it */
    CHECK_LEFT,  /* the first byte lies after a guard page */
    CHECK_SHIFT  /* `shift` bytes after a 64-byte line */
} check_side;

/* A new buffer of `size` bytes. alignment is a power of two, at most 64; shift, of 0..63, counts
 * for CHECK_SHIFT alone. NULL: out of memory. */
void *check_buffers_take(check_buffers *buffers, size_t size, size_t alignment, check_side side,
                         size_t shift);

/* True if nothing was written beside any buffer since it was taken. */
bool check_buffers_intact(const check_buffers *buffers);

#endif
