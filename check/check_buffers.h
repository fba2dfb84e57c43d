/* Guarded memory, which detects accesses beyond a buffer. Every buffer ends or begins at a page
 * that must not be touched, and the bytes around it hold a pattern that is checked afterwards.
 *
 * The pattern is all ones: NaN in every float type, so that a value read from outside also shows in
 * the result. New buffers are filled with it too.
 */
#ifndef CHECK_BUFFERS_H
#define CHECK_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>

#define CHECK_FILL 0xFF

typedef struct check_buffers check_buffers;

check_buffers *check_buffers_create(void); /* NULL: out of memory */
void check_buffers_destroy(check_buffers *buffers);

/* Releases all buffers; their memory is reused. */
void check_buffers_reset(check_buffers *buffers);

typedef enum check_side {
    CHECK_RIGHT, /* the last byte is as close to the guard page after it as the alignment allows */
    CHECK_LEFT,  /* the first byte follows a guard page */
    CHECK_SHIFT  /* `shift` bytes after a 64-byte line */
} check_side;

/* A new buffer of `size` bytes. alignment is a power of two, at most 64. shift, 0..63, is used with
 * CHECK_SHIFT only. NULL: out of memory. */
void *check_buffers_take(check_buffers *buffers, size_t size, size_t alignment, check_side side,
                         size_t shift);

/* True if no byte around any buffer was written since the buffer was taken. */
bool check_buffers_intact(const check_buffers *buffers);

#endif
