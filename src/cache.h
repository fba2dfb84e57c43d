/* What the cache of keys and values (cache.c, cache_file.c) and attention share.
 *
 * A slot is the place of one key and its value: slot (page * Hk + hk) * page_keys + j % page_keys
 * holds key j of head hk, where the page is found in the sequence's row of the block table. A
 * contiguous cache is one whose page holds a whole sequence. Pages hold a multiple of 64 keys, so a
 * block of 64 keys never straddles two, and each head of each page begins on a line of 64 bytes
 * whatever D is. Rows are not padded to lines: for D of 40, 72, 80, 100 and 111, f32 and bf16, one
 * query and 64, padding changed the time by -2.6 to +2.8 %, which is noise, and costs memory.
 */
#ifndef ATTNI_CACHE_H
#define ATTNI_CACHE_H

#include "internal.h"

#define ATTNI_PAGE 64 /* keys: pages hold a multiple of it */

typedef enum attni_cache_part { ATTNI_KEYS, ATTNI_VALUES } attni_cache_part;

struct attn_cache {
    attn_cache_options options; /* the caller's, with page_keys and pages as they came out */
    int64_t table_pages;        /* of one sequence, at most */
    int64_t *lengths;           /* [B] */
    int64_t *table;             /* [B][table_pages]: the pages of each sequence, first to last */
    int64_t *spare;             /* [pages]: those that belong to no sequence, used from the end */
    int64_t spares;
    int64_t width[2];    /* D, Dv */
    size_t row_bytes[2]; /* of a key, of a value */
    char *rows[2];       /* [pages][Hk][page_keys][width] */
    float *scales[2];    /* [pages][Hk][page_keys]; ATTN_I8 only */
    size_t bytes;        /* of the block that all of this is one of */
};

/* Row j of head hk of sequence b, in the cache's dtype; the others of its page, up to the next
 * multiple of page_keys, lie before and behind it. j must be below the sequence's length. */
char *attni_cache_rows(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                       int64_t j);
/* The same rows' scales; NULL but for ATTN_I8. An element is (float)i8 * scale, rounded once. */
float *attni_cache_scales(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                          int64_t j);
/* Rows j .. j+n-1 as `real` (f32 or f64), densely; whatever the cache's dtype and pages. */
void attni_cache_load(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                      int64_t j, int64_t n, attn_dtype real, void *to);

/* For cache_file.c. Room for n more keys in sequence b: takes the pages and makes it longer; the
 * caller fills the slots. ATTN_ERR_FULL leaves all as it was. */
attn_status attni_cache_grow(attn_cache *cache, int64_t b, int64_t n, attn_error *err);
/* Checks options as attn_cache_create does. */
attn_status attni_cache_options(attn_cache_options *to, const attn_cache_options *from,
                                attn_error *err);

#endif
