/* Caches; attn.h includes this header.
 *
 * A cache holds the keys and values of B sequences: the data that a decoder keeps between tokens.
 * Each sequence grows on its own. Append the rows of new tokens, then attend to all rows:
 *
 *   attn_cache_append(cache, b, &k, &v, &err);                     for each sequence b
 *   args.q = ...;  args.cache = cache;  args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
 *   attn_sdpa_forward(ctx, &args, &err);                           q: the last T tokens of each
 *
 * Bits: attention from a cache gives the same bits as from plain tensors with the same rows. This
 * holds for contiguous caches and pages, and for rows appended one by one or all at once. Slots
 * that were never filled, and rows that were cut off, influence no result.
 *
 * Types: rows are converted to the cache's dtype with one rounding. ATTN_I8 stores each row of a
 * head's keys or values as the integers round(127 x / m) and the float m / 127, where m is the
 * largest |x| of the row. The error is at most m / 254, plus the rounding of a float. Attention
 * from such a cache has the same bits as an f32 call on the rows that attn_cache_read gives. A row
 * with a NaN, an infinity or, in f64, an |x| above 4.3e40 becomes NaN as a whole.
 *
 * Memory: one allocation, made by create. For each key that there is room for, each key/value head
 * takes (D + Dv) x the element's size, and with ATTN_I8 8 bytes more. There are some bytes more for
 * each sequence and page. Contiguous: [B,Hk,max_keys,D], with max_keys rounded up to a multiple of
 * 64; the sequences lie in the order in which each was first appended to. In pages:
 * [pages,Hk,page_keys,D]; a sequence takes a page for itself when it grows; attn_cache_truncate
 * gives pages back. The allocation, and each head of each page, starts at a multiple of 64 bytes.
 * The rows of a head's v in a page follow each other without gaps. Keys of f32, f16 and bf16 are
 * interleaved in groups of 16: each line of 64 bytes holds the next 4 bytes of each of 16 keys.
 * Decoding reads this order fastest. If D is odd, a key of f16 or bf16 takes one element more.
 *
 * Threads: append, truncate and destroy must not overlap any other use of the cache; all other
 * functions only read it and may overlap each other.
 */
#ifndef ATTN_CACHE_H
#define ATTN_CACHE_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_cache attn_cache;

typedef struct attn_cache_options {
    size_t struct_size;       /* sizeof(attn_cache_options), set by ATTN_CACHE_OPTIONS_INIT */
    int64_t B, Hk, D, Dv;     /* 0 or more */
    attn_dtype dtype;         /* f64, f32, f16, bf16 or i8 */
    int64_t max_keys;         /* per sequence, at most */
    int64_t page_keys, pages; /* page_keys: keys per page, a multiple of 64; 0: contiguous.
                                 pages: how many pages all sequences share; 0: enough for each of
                                 the B sequences to reach max_keys */

    /* As in attn_context_options: either allocate and release, or neither. Only create, load and
     * destroy call them. */
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory, size_t size);
    void *memory_user;
} attn_cache_options;

#define ATTN_CACHE_OPTIONS_INIT                                                                    \
    {                                                                                              \
        .struct_size = sizeof(attn_cache_options), .dtype = ATTN_F32                               \
    }
ATTN_API void attn_cache_options_init_sized(attn_cache_options *options, size_t struct_size);
static inline void attn_cache_options_init(attn_cache_options *options)
{
    attn_cache_options_init_sized(options, sizeof *options);
}

ATTN_API attn_status attn_cache_create(const attn_cache_options *options, attn_cache **out,
                                       attn_error *err);
ATTN_API void attn_cache_destroy(attn_cache *cache); /* NULL is fine */

/* Appends n keys and values to sequence b: k [1,Hk,n,D], v [1,Hk,n,Dv], of any float dtype and any
 * strides. ATTN_ERR_FULL: max_keys would be exceeded, or no page is left. An error leaves the cache
 * unchanged. */
ATTN_API attn_status attn_cache_append(attn_cache *cache, int64_t b, const attn_tensor *k,
                                       const attn_tensor *v, attn_error *err);

/* Copies n keys and values of sequence b, from key `first` on, to k [1,Hk,n,D] and v [1,Hk,n,Dv],
 * of any float dtype. Either may be NULL. */
ATTN_API attn_status attn_cache_read(const attn_cache *cache, int64_t b, int64_t first,
                                     const attn_tensor *k, const attn_tensor *v, attn_error *err);

/* Cuts sequence b off after its first `length` keys, 0 <= length <= its length. */
ATTN_API attn_status attn_cache_truncate(attn_cache *cache, int64_t b, int64_t length,
                                         attn_error *err);

ATTN_API int64_t attn_cache_length(const attn_cache *cache, int64_t b); /* -1: no such b */
ATTN_API size_t attn_cache_bytes(const attn_cache *cache);              /* of its allocation */

/* Saves the lengths and rows of all sequences, little-endian. The bytes do not depend on the layout
 * of the cache (docs/NUMERICS.md, "Saved caches"). `write` gets them in consecutive parts and
 * returns 0. If it returns anything else, saving stops with ATTN_ERR_FILE. */
ATTN_API attn_status attn_cache_save(const attn_cache *cache,
                                     int (*write)(void *user, const void *bytes, size_t n),
                                     void *user, attn_error *err);

/* Creates a cache with `options` and fills it from `size` bytes that attn_cache_save wrote. B, Hk,
 * D, Dv and dtype must be those of the saved cache. max_keys, page_keys and pages may differ, but
 * must leave room for all saved keys, else ATTN_ERR_FULL. The bytes are treated as untrusted input:
 * if they are damaged, the result is ATTN_ERR_FILE, and err says what is wrong. Memory is allocated
 * only after all bytes have been checked. Its size depends only on the options. */
ATTN_API attn_status attn_cache_load(const attn_cache_options *options, const void *bytes,
                                     size_t size, attn_cache **out, attn_error *err);

#ifdef __cplusplus
}
#endif

#endif
