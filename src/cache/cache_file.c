/* Saved caches: attn_cache_save and attn_cache_load. The format, version 1; all numbers
 * little-endian:
 *
 *    0  magic     93 'A' 'T' 'T' 'N' 'K' 'V' 0A
 *    8  version   u32, 1           12  dtype  u32, an attn_dtype
 *   16  B, Hk, D, Dv               u64 each
 *   48  lengths   u64 [B]
 *       rows, for each b, for each hk:  keys [length][D], values [length][Dv]
 *                                       for i8 before each of the two: its scales, f32 [length]
 *       checksum  u64: FNV-1a of all bytes before it (Fowler, Noll and Vo)
 *
 * Pages and capacity are not saved: the bytes do not depend on the page layout, and only keys that
 * exist are written. The reader treats its input as untrusted: it verifies the checksum, then every
 * number against the options and against the bytes that remain, and allocates memory only after
 * that, of the size that the options request.
 *
 * To change the format: a new VERSION, and a branch on it in read_head.
 */
#include "../core/saved.h"
#include "cache.h"

#include <string.h>

#define VERSION 1
#define HEAD 48
static const unsigned char magic[8] = {0x93, 'A', 'T', 'T', 'N', 'K', 'V', '\n'};

/* Called for each run of bytes that is contiguous in both the file and the cache, and for parts of
 * the row of an interleaved key. false stops the iteration. */
typedef bool visitor(void *arg, void *memory, size_t bytes, size_t element);
static visitor fill;

/* Visits the rows of interleaved keys through a buffer: copied out of the cache before the visit
 * or, if `visit` is fill, into the cache after it. */
static bool each_turned(const attn_cache *c, int64_t b, int64_t hk, visitor *visit, void *arg)
{
    char piece[1024];
    const size_t element = attn_dtype_size(c->options.dtype), row = (size_t)c->width[0] * element;
    for (int64_t j = 0; j < c->lengths[b] && row > 0; j++) {
        char *key = attni_cache_rows(c, ATTNI_KEYS, b, hk, j);
        for (size_t at = 0; at < row; at += sizeof piece) {
            const size_t n = row - at < sizeof piece ? row - at : sizeof piece;
            if (visit != fill)
                attni_cache_get(piece, key, at, n);
            if (!visit(arg, piece, n, element))
                return false;
            if (visit == fill)
                attni_cache_put(key, piece, at, n);
        }
    }
    return true;
}

static bool each_run(const attn_cache *c, int64_t b, int64_t hk, attni_cache_part part, bool scales,
                     visitor *visit, void *arg)
{
    if (part == ATTNI_KEYS && c->interleaved)
        return each_turned(c, b, hk, visit, arg);
    const size_t element = attn_dtype_size(c->options.dtype);
    for (int64_t j = 0, here; j < c->lengths[b]; j += here) {
        here = c->lengths[b] - j; /* the rest of the page: all pages but the last are full */
        here = here < c->options.page_keys ? here : c->options.page_keys;
        const size_t n = (size_t)here;
        if (scales
                ? !visit(arg, attni_cache_scales(c, part, b, hk, j), n * sizeof(float),
                         sizeof(float))
                : !visit(arg, attni_cache_rows(c, part, b, hk, j), n * c->row_bytes[part], element))
            return false;
    }
    return true;
}

/* Visits all rows and scales in the order of the file, until `visit` returns false. */
static bool each(const attn_cache *c, visitor *visit, void *arg)
{
    const bool scaled = c->options.dtype == ATTN_I8;
    for (int64_t b = 0; b < c->options.B; b++) {
        const bool rows = c->lengths[b] > 0 && (scaled || c->options.D || c->options.Dv);
        for (int64_t hk = 0; hk < c->options.Hk && rows; hk++)
            for (attni_cache_part part = ATTNI_KEYS; part <= ATTNI_VALUES; part++)
                if ((scaled && !each_run(c, b, hk, part, true, visit, arg)) ||
                    !each_run(c, b, hk, part, false, visit, arg))
                    return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------ saving */

static bool emit_elements(void *arg, void *memory, size_t bytes, size_t element)
{
    return attni_emit_elements(arg, memory, bytes, element);
}

static bool emit_all(attni_writer *w, const attn_cache *c)
{
    const attn_cache_options *o = &c->options;
    const int64_t sizes[4] = {o->B, o->Hk, o->D, o->Dv};
    if (!attni_emit(w, magic, sizeof magic) || !attni_emit_number(w, VERSION, 4) ||
        !attni_emit_number(w, (uint64_t)o->dtype, 4))
        return false;
    for (int i = 0; i < 4; i++)
        if (!attni_emit_number(w, (uint64_t)sizes[i], 8))
            return false;
    for (int64_t b = 0; b < o->B; b++)
        if (!attni_emit_number(w, (uint64_t)c->lengths[b], 8))
            return false;
    return each(c, emit_elements, w) && attni_emit_number(w, w->hash, ATTNI_CHECKSUM);
}

attn_status attn_cache_save(const attn_cache *cache,
                            int (*write)(void *user, const void *bytes, size_t n), void *user,
                            attn_error *err)
{
    if (!cache)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "cache", "cache is NULL; it must be a cache");
    if (!write)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "write", "write is NULL; it must be a function");
    attni_writer w = {write, user, ATTNI_FNV_START};
    if (!emit_all(&w, cache))
        return attni_fail(err, ATTN_ERR_FILE, "write",
                          "write failed; the bytes it wrote before are not a complete cache");
    return ATTN_OK;
}

/* ----------------------------------------------------------------------------------- loading */

static attn_status bad(attn_error *err, const char *what)
{
    return attni_fail(err, ATTN_ERR_FILE, "bytes", "bytes %s", what);
}

/* Checks the header and the checksum; on success the reader is at the lengths. */
static attn_status read_head(attni_reader *r, const attn_cache_options *o, attn_error *err)
{
    if (r->left < HEAD + ATTNI_CHECKSUM)
        return bad(err, "are fewer than a saved cache has; the smallest has 56");
    if (memcmp(r->at, magic, sizeof magic) != 0)
        return bad(err, "do not start as a saved cache does");
    r->at += sizeof magic;
    r->left -= sizeof magic + ATTNI_CHECKSUM;
    const unsigned char *const end = r->at + r->left;
    const uint64_t version = attni_next_number(r, 4);
    if (version != VERSION)
        return attni_fail(err, ATTN_ERR_FILE, "bytes",
                          "bytes are of version %llu; this library reads version %d",
                          (unsigned long long)version, VERSION);
    const unsigned char *const start = r->at - 4 - sizeof magic;
    if (attni_fnv(ATTNI_FNV_START, start, (size_t)(end - start)) !=
        attni_get_number(end, ATTNI_CHECKSUM))
        return bad(err, "do not have their checksum: they are damaged or cut off");
    const uint64_t dtype = attni_next_number(r, 4);
    if (dtype != (uint64_t)o->dtype)
        return attni_fail(err, ATTN_ERR_DTYPE, "options",
                          "options.dtype is %s; the saved cache's is %s", attn_dtype_name(o->dtype),
                          dtype < 256 ? attn_dtype_name((attn_dtype)dtype) : "unknown");
    const char *const names[4] = {"B", "Hk", "D", "Dv"};
    const int64_t want[4] = {o->B, o->Hk, o->D, o->Dv};
    for (int i = 0; i < 4; i++) {
        const uint64_t size = attni_next_number(r, 8);
        if (size != (uint64_t)want[i])
            return attni_fail(err, ATTN_ERR_SHAPE, "options",
                              "options.%s is %lld; the saved cache's is %llu", names[i],
                              (long long)want[i], (unsigned long long)size);
    }
    return ATTN_OK;
}

/* Bytes of one key and its value in all heads; false on overflow. */
static bool bytes_of_key(const attn_cache_options *o, size_t *bytes)
{
    const size_t scales = o->dtype == ATTN_I8 ? 2 * sizeof(float) : 0;
    return attni_size_add((uint64_t)o->D, (uint64_t)o->Dv, bytes) &&
           attni_size_mul(*bytes, attn_dtype_size(o->dtype), bytes) &&
           attni_size_add(*bytes, scales, bytes) && attni_size_mul(*bytes, (uint64_t)o->Hk, bytes);
}

/* Checks that the lengths, at r, account for exactly the bytes that follow them. */
static attn_status check_lengths(const attni_reader *r, const attn_cache_options *o,
                                 attn_error *err)
{
    size_t of_key, left = r->left;
    if (left / 8 < (uint64_t)o->B)
        return attni_fail(err, ATTN_ERR_FILE, "bytes",
                          "bytes end among the lengths: B is %lld and %zu bytes are left",
                          (long long)o->B, left);
    if (!bytes_of_key(o, &of_key))
        return bad(err, "cannot hold a key of these sizes");
    left -= 8 * (size_t)o->B;
    for (int64_t b = 0; b < o->B; b++) {
        const uint64_t length = attni_get_number(r->at + 8 * b, 8);
        size_t wanted;
        if (length > INT64_MAX || !attni_size_mul(length, of_key, &wanted) || wanted > left)
            return attni_fail(err, ATTN_ERR_FILE, "bytes",
                              "bytes give sequence %lld a length of %llu keys, of %zu bytes each; "
                              "%zu bytes are left for them",
                              (long long)b, (unsigned long long)length, of_key, left);
        left -= wanted;
    }
    if (left > 0)
        return attni_fail(err, ATTN_ERR_FILE, "bytes",
                          "bytes are %zu more than their lengths account for", left);
    return ATTN_OK;
}

static bool fill(void *arg, void *memory, size_t bytes, size_t element)
{
    attni_reader *r = arg;
    attni_next_elements(r, memory, bytes, element);
    return true;
}

attn_status attn_cache_load(const attn_cache_options *options, const void *bytes, size_t size,
                            attn_cache **out, attn_error *err)
{
    if (!out)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "out",
                          "out is NULL; it must point to where the cache's address is stored");
    *out = NULL;
    if (!bytes)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "bytes", "bytes is NULL");
    attn_cache_options o;
    attn_cache *cache = NULL;
    attni_reader r = {bytes, size};
    attn_status s;
    if ((s = attni_cache_options(&o, options, err)) || (s = read_head(&r, &o, err)) ||
        (s = check_lengths(&r, &o, err)) || (s = attn_cache_create(options, &cache, err)))
        return s;
    for (int64_t b = 0; b < o.B && !s; b++)
        s = attni_cache_grow(cache, b, (int64_t)attni_next_number(&r, 8), err);
    if (s) {
        attn_cache_destroy(cache);
        return s;
    }
    each(cache, fill, &r);
    *out = cache;
    return ATTN_OK;
}
