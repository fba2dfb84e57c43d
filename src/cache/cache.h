/* The key-value cache: what cache.c, cache_layout.c and cache_file.c share with the attention code.
 *
 * A slot holds one key and its value. Slot (page * Hk + hk) * page_keys + j % page_keys holds key j
 * of head hk, where `page` comes from the sequence's row of the block table. In a contiguous cache
 * one page holds a whole sequence. A page holds a multiple of 64 keys, so a block of 64 keys never
 * spans two pages, and each head of each page begins on a 64-byte line for every D. Rows are not
 * padded to lines: padding costs memory, and it changed the time by -2.6 to +2.8 %, which is noise
 * (D of 40, 72, 80, 100 and 111, f32 and bf16, 1 and 64 queries).
 *
 * Values are stored as rows. f32, f16 and bf16 keys are stored *interleaved*. Decoding is
 * memory-bound, so it is fastest if it reads keys in address order. It also has keys in lanes, and
 * this layout gives it both without a transpose. The keys of a head in a page are groups of 16
 * keys, each [units][16] (drawn in kernel/kernel.h). A unit is 32 bits of a key: one f32 component,
 * or two 2-byte components (if D is odd, the second half of the last unit is 0). So a 64-byte line
 * holds one unit of 16 keys, for every instruction set, and a group takes the same space as 16
 * rows. Lanes of keys that are not stored yet may be read but their results are never used; they
 * hold 0 or an older key.
 */
#ifndef ATTNI_CACHE_H
#define ATTNI_CACHE_H

#include "../core/internal.h"
#include "../kernel/kernel.h"

#define ATTNI_PAGE 64 /* keys: the size of a page is a multiple of it */

typedef enum attni_cache_part { ATTNI_KEYS, ATTNI_VALUES } attni_cache_part;

struct attn_cache {
    attn_cache_options options; /* the caller's, with the computed page_keys and pages */
    int64_t table_pages;        /* largest number of pages of one sequence */
    int64_t *lengths;           /* [B] */
    int64_t *table;             /* [B][table_pages]: the pages of each sequence, in order */
    int64_t *spare;             /* [pages]: pages of no sequence, a stack */
    int64_t spares;
    bool interleaved;    /* keys are stored interleaved */
    int64_t width[2];    /* D, Dv */
    size_t row_bytes[2]; /* of a key (interleaved: in whole units), of a value */
    char *rows[2];       /* [pages][Hk][page_keys][row_bytes] */
    float *scales[2];    /* [pages][Hk][page_keys]; ATTN_I8 only */
    size_t bytes;        /* size of the one allocation that holds the cache and its arrays */
};

/* Address of row j of head hk of sequence b, in the cache's dtype. The rows of the same head in the
 * same page lie before and after it: rows from j rounded down to a multiple of page_keys, up to the
 * next multiple. j must be less than the sequence's length. For an interleaved key it is the
 * address of its first unit: the other units follow 64 bytes apart, and the address modulo 64 is 4
 * times the key's lane. */
char *attni_cache_rows(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                       int64_t j);
/* Address of the scale of that row; NULL unless the dtype is ATTN_I8. An element is
 * (float)i8 * scale, rounded once. */
float *attni_cache_scales(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                          int64_t j);
/* In cache_layout.c. Transposes rows x columns units: unit c of row r becomes unit r of row c,
 * to[c * to_bytes][r] = from[r * from_bytes][c]. */
void attni_transpose_units(char *to, size_t to_bytes, const char *from, size_t from_bytes,
                           int64_t rows, int64_t columns);
/* Copy bytes at .. at+n-1 of the row of an interleaved key; `at` is a multiple of 4, `key` is the
 * key's first unit. */
void attni_cache_get(void *to, const char *key, size_t at, size_t n);
void attni_cache_put(char *key, const void *from, size_t at, size_t n);
/* Copies interleaved keys j .. j+n-1, all of one page, as rows in the cache's dtype to `to`,
 * `bytes` apart; row_bytes bytes of each row are written. */
void attni_cache_keys_as_rows(const attn_cache *cache, int64_t b, int64_t hk, int64_t j, int64_t n,
                              void *to, size_t bytes);

/* For cache_file.c. Makes sequence b longer by n keys and takes the pages for them; the caller
 * fills the slots. On ATTN_ERR_FULL nothing changes. */
attn_status attni_cache_grow(attn_cache *cache, int64_t b, int64_t n, attn_error *err);
/* Checks options as attn_cache_create() does. */
attn_status attni_cache_options(attn_cache_options *to, const attn_cache_options *from,
                                attn_error *err);

#endif
