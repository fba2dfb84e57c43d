/* What the cache of keys and values (cache.c, cache_file.c) and attention share.
 *
 * A slot is the place of one key and its value: slot (page * Hk + hk) * page_keys + j % page_keys
 * holds key j of head hk, where the page is found in the sequence's row of the block table. A
 * contiguous cache is one whose page holds a whole sequence. Pages hold a multiple of 64 keys, so a
 * block of 64 keys never straddles two, and each head of each page begins on a line of 64 bytes
 * whatever D is. Rows are not padded to lines: for D of 40, 72, 80, 100 and 111, f32 and bf16, one
 * query and 64, padding changed the time by -2.6 to +2.8 %, which is noise, and costs memory.
 *
 * Values are rows. Keys of f32, f16 and bf16 are *turned*, since decoding waits for memory and
 * reads them fastest in the order of addresses, with keys in lanes: a head's keys in a page are
 * groups of 16, and a group is [units][16], where a unit is 32 bits of a key: a component, or two
 * of 2 bytes (the last one's second half is 0 if D is odd). So a line of 64 bytes is one unit of 16
 * keys, whatever the instruction set, and a group takes the room of its 16 rows. Lanes of a group
 * whose keys are not there yet may be read, and are never used: they are 0, or what an older key
 * left.
 */
#ifndef ATTNI_CACHE_H
#define ATTNI_CACHE_H

#include "../core/internal.h"
#include "../kernel/kernel.h"

#define ATTNI_PAGE 64 /* keys: pages hold a multiple of it */

typedef enum attni_cache_part { ATTNI_KEYS, ATTNI_VALUES } attni_cache_part;

struct attn_cache {
    attn_cache_options options; /* the caller's, with page_keys and pages as they came out */
    int64_t table_pages;        /* of one sequence, at most */
    int64_t *lengths;           /* [B] */
    int64_t *table;             /* [B][table_pages]: the pages of each sequence, first to last */
    int64_t *spare;             /* [pages]: those that belong to no sequence, used from the end */
    int64_t spares;
    bool interleaved;    /* keys are */
    int64_t width[2];    /* D, Dv */
    size_t row_bytes[2]; /* of a key (a turned one's whole units), of a value */
    char *rows[2];       /* [pages][Hk][page_keys][row_bytes] */
    float *scales[2];    /* [pages][Hk][page_keys]; ATTN_I8 only */
    size_t bytes;        /* of the block that all of this is one of */
};

/* Row j of head hk of sequence b, in the cache's dtype; the others of its page, up to the next
 * multiple of page_keys, lie before and behind it. j must be below the sequence's length. Of a
 * turned key, its first unit: the others follow 64 bytes apart, and the address modulo 64 is 4
 * times its lane. */
char *attni_cache_rows(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                       int64_t j);
/* The same rows' scales; NULL but for ATTN_I8. An element is (float)i8 * scale, rounded once. */
float *attni_cache_scales(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                          int64_t j);
/* cache_layout.c. Unit c of row r becomes unit r of row c: to[c * to_bytes][r] = from[r *
 * from_bytes][c], of rows x columns units. */
void attni_transpose_units(char *to, size_t to_bytes, const char *from, size_t from_bytes,
                           int64_t rows, int64_t columns);
/* Bytes at .. at+n-1 of a turned key's row; `at` is a multiple of 4, `key` its first unit. */
void attni_cache_get(void *to, const char *key, size_t at, size_t n);
void attni_cache_put(char *key, const void *from, size_t at, size_t n);
/* Turned keys j .. j+n-1 of one page as rows in the cache's dtype, `bytes` apart: row_bytes of each
 * are written. */
void attni_cache_keys_as_rows(const attn_cache *cache, int64_t b, int64_t hk, int64_t j, int64_t n,
                              void *to, size_t bytes);

/* For cache_file.c. Room for n more keys in sequence b: takes the pages and makes it longer; the
 * caller fills the slots. ATTN_ERR_FULL leaves all as it was. */
attn_status attni_cache_grow(attn_cache *cache, int64_t b, int64_t n, attn_error *err);
/* Checks options as attn_cache_create does. */
attn_status attni_cache_options(attn_cache_options *to, const attn_cache_options *from,
                                attn_error *err);

#endif
