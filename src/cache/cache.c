/* The key-value cache: its options, its table of pages, storing and reading rows. The layout is
 * described in cache.h. find_slot() is the only function that looks up where a key is stored.
 *
 * An append first checks everything that could fail, then takes pages, then stores rows, so that an
 * error leaves the cache unchanged. The bytes of a row depend on that row alone, also for ATTN_I8,
 * which has one scale per row; so it does not matter how rows are divided into appends.
 *
 * To add a float type of 2 or 4 bytes whose numbers a float holds exactly, only the error lines
 * that list the types change here. Any other type needs a branch in check_numbers, store_rows and
 * load_part, as ATTN_I8 has, and in carve if it has scales.
 */
#include "cache.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define PIECE 256       /* components of a row converted at a time */
#define I8_ROWS 16      /* rows whose scales are computed together */
#define INTERLEAVED 256 /* bytes of a row transposed at a time */
#define LINE ATTNI_LINE
#define UNIT ATTNI_UNIT

/* ----------------------------------------------------------------------------------- options */

static attn_status check_numbers(const attn_cache_options *o, attn_error *err)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"B", o->B},
                 {"Hk", o->Hk},
                 {"D", o->D},
                 {"Dv", o->Dv},
                 {"max_keys", o->max_keys},
                 {"page_keys", o->page_keys},
                 {"pages", o->pages}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if ((uint64_t)sizes[i].value > PTRDIFF_MAX)
            return attni_fail(err, ATTN_ERR_ARGUMENT, sizes[i].name,
                              "%s is %lld; it must be 0 or more, and fit into ptrdiff_t",
                              sizes[i].name, (long long)sizes[i].value);
    if (!attni_dtype_is_float(o->dtype) && o->dtype != ATTN_I8)
        return attni_fail(err, ATTN_ERR_DTYPE, "dtype",
                          "dtype is %s; it must be f64, f32, f16, bf16 or i8",
                          attn_dtype_name(o->dtype));
    if (o->page_keys % ATTNI_PAGE != 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "page_keys",
                          "page_keys is %lld; it must be a multiple of %d, or 0 for no pages",
                          (long long)o->page_keys, ATTNI_PAGE);
    if (o->page_keys == 0 && o->pages != 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "pages",
                          "pages is %lld and page_keys is 0; give page_keys too, or no pages",
                          (long long)o->pages);
    return ATTN_OK;
}

attn_status attni_cache_options(attn_cache_options *to, const attn_cache_options *from,
                                attn_error *err)
{
    if (!from)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "options",
                          "options is NULL; a cache has no default sizes");
    attn_status status = attni_struct_read(ATTNI_CACHE_OPTIONS, to, from, "options", err);
    if (status)
        return status;
    status = attni_check_allocator(&to->allocate, &to->release, err);
    return status ? status : check_numbers(to, err);
}

/* ---------------------------------------------------------------------------------- creation */

/* Computes sizes from the options; false if one of them overflows. */
static bool plan_pages(attn_cache *c)
{
    attn_cache_options *o = &c->options;
    const int64_t size = (int64_t)attn_dtype_size(o->dtype);
    const bool paged = o->page_keys > 0;
    if (!paged && __builtin_add_overflow(o->max_keys, ATTNI_PAGE - 1, &o->page_keys))
        return false;
    o->page_keys -= o->page_keys % ATTNI_PAGE;
    if (o->page_keys == 0) /* max_keys is 0 */
        o->page_keys = ATTNI_PAGE;
    c->table_pages = o->max_keys / o->page_keys + (o->max_keys % o->page_keys != 0);
    if (o->pages == 0 && __builtin_mul_overflow(o->B, c->table_pages, &o->pages))
        return false;
    c->spares = o->pages;
    c->width[ATTNI_KEYS] = o->D;
    c->width[ATTNI_VALUES] = o->Dv;
    int64_t bytes[2];
    if (__builtin_mul_overflow(o->D, size, &bytes[0]) ||
        __builtin_mul_overflow(o->Dv, size, &bytes[1]))
        return false;
    c->interleaved = attni_dtype_is_float(o->dtype) && size <= UNIT;
    if (c->interleaved && __builtin_add_overflow(bytes[0], bytes[0] % UNIT, &bytes[0]))
        return false;
    return attni_size_add((uint64_t)bytes[0], 0, &c->row_bytes[0]) &&
           attni_size_add((uint64_t)bytes[1], 0, &c->row_bytes[1]);
}

static void *take(attni_layout *layout, int64_t n0, int64_t n1, int64_t n2, size_t bytes)
{
    size_t count;
    if (!attni_size_mul((uint64_t)n0, (uint64_t)n1, &count) ||
        !attni_size_mul(count, (uint64_t)n2, &count) || count > PTRDIFF_MAX) {
        layout->overflow = true;
        return NULL;
    }
    return attni_layout_take(layout, count, bytes);
}

/* Places the cache and its arrays in one block; the struct itself comes first. */
static void carve(attn_cache *c, attni_layout *layout)
{
    const attn_cache_options *o = &c->options;
    attni_layout_take(layout, 1, sizeof *c);
    c->lengths = take(layout, o->B, 1, 1, sizeof *c->lengths);
    c->table = take(layout, o->B, c->table_pages, 1, sizeof *c->table);
    c->spare = take(layout, o->pages, 1, 1, sizeof *c->spare);
    for (int part = 0; part < 2; part++) {
        c->rows[part] = take(layout, o->pages, o->Hk, o->page_keys, c->row_bytes[part]);
        if (o->dtype == ATTN_I8)
            c->scales[part] = take(layout, o->pages, o->Hk, o->page_keys, sizeof(float));
    }
    c->bytes = layout->used;
}

attn_status attn_cache_create(const attn_cache_options *options, attn_cache **out, attn_error *err)
{
    if (!out)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "out",
                          "out is NULL; it must point to where the cache's address is stored");
    *out = NULL;
    attn_cache c = {.bytes = 0};
    const attn_status status = attni_cache_options(&c.options, options, err);
    if (status)
        return status;
    attni_layout size = {.base = NULL};
    const bool counted = plan_pages(&c);
    if (counted)
        carve(&c, &size);
    if (!counted || size.overflow || size.used > PTRDIFF_MAX)
        return attni_fail(
            err, ATTN_ERR_LIMIT, "options",
            "options ask for more bytes than this machine can address: B=%lld Hk=%lld "
            "D=%lld Dv=%lld max_keys=%lld page_keys=%lld pages=%lld; reduce one",
            (long long)c.options.B, (long long)c.options.Hk, (long long)c.options.D,
            (long long)c.options.Dv, (long long)c.options.max_keys, (long long)c.options.page_keys,
            (long long)c.options.pages);
    attni_layout layout = {.base =
                               c.options.allocate(c.options.memory_user, size.used, ATTNI_ALIGN)};
    if (!layout.base)
        return attni_fail(err, ATTN_ERR_MEMORY, "", "no memory for a cache of %zu bytes",
                          size.used);
    attn_cache *cache = (attn_cache *)(void *)layout.base;
    carve(&c, &layout);
    *cache = c;
    for (int64_t b = 0; b < c.options.B; b++)
        c.lengths[b] = 0;
    for (int64_t i = 0; i < c.spares; i++)
        c.spare[i] = c.spares - 1 - i;
    *out = cache;
    return ATTN_OK;
}

void attn_cache_destroy(attn_cache *cache)
{
    if (!cache)
        return;
    const attn_cache_options o = cache->options;
    o.release(o.memory_user, cache, cache->bytes);
}

/* ------------------------------------------------------------------------------------- pages */

static int64_t pages_of(const attn_cache *c, int64_t keys)
{
    return keys / c->options.page_keys + (keys % c->options.page_keys != 0);
}

static int64_t find_slot(const attn_cache *c, int64_t b, int64_t hk, int64_t j)
{
    const attn_cache_options *o = &c->options;
    const int64_t page = c->table[b * c->table_pages + j / o->page_keys];
    return (page * o->Hk + hk) * o->page_keys + j % o->page_keys;
}

static bool is_interleaved(const attn_cache *c, attni_cache_part part)
{
    return part == ATTNI_KEYS && c->interleaved;
}

static char *row_at(const attn_cache *c, attni_cache_part part, int64_t slot)
{
    const int64_t lane = is_interleaved(c, part) ? slot % ATTNI_GROUP : 0;
    return c->rows[part] + (size_t)(slot - lane) * c->row_bytes[part] + (size_t)lane * UNIT;
}

/* Kernels read whole groups. So this sets the last group of the sequence to 0 if it is new and not
 * full: its missing keys then read as 0. It is new if it begins at key `before` or later. */
static void clear_last_group(attn_cache *c, int64_t b, int64_t before)
{
    const int64_t length = c->lengths[b], first = length - length % ATTNI_GROUP;
    if (!c->interleaved || first < before || first == length || c->row_bytes[ATTNI_KEYS] == 0)
        return;
    for (int64_t hk = 0; hk < c->options.Hk; hk++)
        attni_zero(attni_cache_rows(c, ATTNI_KEYS, b, hk, first),
                   ATTNI_GROUP * c->row_bytes[ATTNI_KEYS]);
}

attn_status attni_cache_grow(attn_cache *c, int64_t b, int64_t n, attn_error *err)
{
    const attn_cache_options *o = &c->options;
    const int64_t length = c->lengths[b];
    if (n > o->max_keys - length)
        return attni_fail(err, ATTN_ERR_FULL, "max_keys",
                          "max_keys is %lld; sequence %lld has %lld keys and cannot take %lld more",
                          (long long)o->max_keys, (long long)b, (long long)length, (long long)n);
    const int64_t have = pages_of(c, length), want = pages_of(c, length + n);
    if (want - have > c->spares)
        return attni_fail(err, ATTN_ERR_FULL, "pages",
                          "pages is %lld: %lld pages are free, but %lld more keys of sequence %lld "
                          "need %lld pages",
                          (long long)o->pages, (long long)c->spares, (long long)n, (long long)b,
                          (long long)(want - have));
    for (int64_t page = have; page < want; page++)
        c->table[b * c->table_pages + page] = c->spare[--c->spares];
    c->lengths[b] = length + n;
    clear_last_group(c, b, length);
    return ATTN_OK;
}

static attn_status check_sequence(const attn_cache *c, int64_t b, attn_error *err)
{
    if (!c)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "cache", "cache is NULL; it must be a cache");
    if (b < 0 || b >= c->options.B)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "b",
                          "b is %lld; it must be at least 0 and below %lld, the cache's B",
                          (long long)b, (long long)c->options.B);
    return ATTN_OK;
}

attn_status attn_cache_truncate(attn_cache *cache, int64_t b, int64_t length, attn_error *err)
{
    const attn_status status = check_sequence(cache, b, err);
    if (status)
        return status;
    if (length < 0 || length > cache->lengths[b])
        return attni_fail(err, ATTN_ERR_ARGUMENT, "length",
                          "length is %lld; sequence %lld has %lld keys", (long long)length,
                          (long long)b, (long long)cache->lengths[b]);
    const int64_t *pages = cache->table + b * cache->table_pages;
    for (int64_t page = pages_of(cache, cache->lengths[b]); page > pages_of(cache, length); page--)
        cache->spare[cache->spares++] = pages[page - 1];
    cache->lengths[b] = length;
    return ATTN_OK;
}

int64_t attn_cache_length(const attn_cache *cache, int64_t b)
{
    return cache && b >= 0 && b < cache->options.B ? cache->lengths[b] : -1;
}

size_t attn_cache_bytes(const attn_cache *cache) { return cache ? cache->bytes : 0; }

/* ------------------------------------------------------------------------------------ storing */

/* Address of element i of a row with any stride. It is computed in unsigned integers, whose
 * overflow is defined, as in attni_at(). */
static char *piece_at(const char *row, attn_dtype dtype, int64_t stride, int64_t i)
{
    const uint64_t e = (uint64_t)i * (uint64_t)stride;
    return (char *)((uintptr_t)row + (uintptr_t)(e * attn_dtype_size(dtype)));
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Converts n elements with a single rounding: f64 directly, the other types through float, which
 * holds them exactly. */
static void convert_row(char *to, attn_dtype to_dtype, const char *from, attn_dtype dtype,
                        int64_t stride, int64_t n)
{
    const size_t size = attn_dtype_size(to_dtype);
    if (dtype == to_dtype && stride == 1) {
        memcpy(to, from, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t here = least(PIECE, n - i);
        const char *piece = piece_at(from, dtype, stride, i);
        char *there = to + (size_t)i * size;
        if (dtype == to_dtype) /* copied, so that the bits of a NaN do not change */
            for (int64_t e = 0; e < here; e++)
                memcpy(there + (size_t)e * size, piece_at(piece, dtype, stride, e), size);
        else if (dtype == ATTN_F64) {
            double x[PIECE];
            attni_load_row_f64(x, piece, dtype, stride, here);
            attni_store_row_f64(there, to_dtype, 1, x, here);
        } else {
            float x[PIECE];
            attni_load_row_f32(x, piece, dtype, stride, here);
            attni_store_row_f32(there, to_dtype, 1, x, here);
        }
    }
}

/* Components i .. i+n-1 of a row as floats: in place, or in `copy`, which has room for PIECE. */
static const void *floats(float *copy, const char *from, attn_dtype dtype, int64_t stride,
                          int64_t i, int64_t n)
{
    const char *at = piece_at(from, dtype, stride, i);
    if (dtype == ATTN_F32 && stride == 1)
        return at;
    attni_load_row_f32(copy, at, dtype, stride, n);
    return copy;
}

/* The largest |x| of a row of any type but f64; NaN if an element is not finite. */
static float largest(const attni_kernels *kernels, const char *from, attn_dtype dtype,
                     int64_t stride, int64_t n)
{
    float copy[PIECE], most = 0;
    for (int64_t i = 0; i < n && most == most; i += PIECE) {
        const int64_t here = least(PIECE, n - i);
        const float of_piece = kernels->largest(floats(copy, from, dtype, stride, i, here), here);
        most = of_piece <= most ? most : of_piece;
    }
    return most;
}

/* The same for f64. */
static double largest_double(const char *from, int64_t stride, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n && most == most; i++) {
        double x;
        attni_load_row_f64(&x, piece_at(from, ATTN_F64, stride, i), ATTN_F64, 1, 1);
        x = isfinite(x) ? fabs(x) : (double)NAN;
        most = x <= most ? most : x;
    }
    return most;
}

/* Quantises a row of any type: to[i] = x[i] / scale, limited to -127 .. 127 and then rounded to the
 * nearest integer. */
static void quantise_doubles(int8_t *to, const char *from, attn_dtype dtype, int64_t stride,
                             double scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x;
        attni_load_row_f64(&x, piece_at(from, dtype, stride, i), dtype, 1, 1);
        x /= scale;
        x = x > 127 ? 127 : x < -127 ? -127 : x;
        to[i] = (int8_t)((x + 0x1.8p52) - 0x1.8p52); /* the sum is rounded to an integer */
    }
}

/* The scale of a row that is stored as i8: the largest |x| / 127 rounded to float. Because of this
 * rounding a quotient can be slightly above 127, or far above if the scale is denormal. The scale
 * is not finite if the row holds a NaN or an infinity, or if an f64 row has |x| > 4.3e40, so that
 * the scale is beyond float. It is then stored as NaN, and every element reads as NaN. If the scale
 * rounds to 0, all elements are 0. */
static float scale_of_row(const attni_kernels *kernels, const char *from, attn_dtype dtype,
                          int64_t stride, int64_t n)
{
    const double most = dtype == ATTN_F64 ? largest_double(from, stride, n)
                                          : (double)largest(kernels, from, dtype, stride, n);
    const float scale = (float)(most / 127);
    return isfinite(scale) ? scale : NAN;
}

/* Quantises a row with the given scale, which store_i8_rows() stores. If the scale is 0 or NaN, all
 * elements become 0. */
static void quantise_row(const attni_kernels *kernels, int8_t *to, const char *from,
                         attn_dtype dtype, int64_t stride, float scale, int64_t n)
{
    if (scale == 0 || isnan(scale)) {
        memset(to, 0, (size_t)n);
        return;
    }
    if (dtype == ATTN_F64 || scale < FLT_MIN) {
        quantise_doubles(to, from, dtype, stride, (double)scale, n);
        return;
    }
    float copy[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t here = least(PIECE, n - i);
        kernels->quantise(to + i, floats(copy, from, dtype, stride, i, here), scale, here);
    }
}

/* Stores rows i .. i+n-1 of t as rows first .. first+n-1 of sequence b; n is at most I8_ROWS. All
 * scales are computed before the first row is stored. The steps of one row depend on each other; in
 * this order the CPU overlaps the steps of several rows. */
static void store_i8_rows(attn_cache *c, attni_cache_part part, int64_t b, int64_t first,
                          const attn_tensor *t, int64_t hk, int64_t i, int n)
{
    const attni_kernels *kernels = attni_kernels_of(attni_isa_best(), 32);
    const int64_t width = c->width[part], stride = t->stride[3];
    float scales[I8_ROWS];
    for (int r = 0; r < n; r++)
        scales[r] = scale_of_row(kernels, attni_at(t, 0, hk, i + r, 0), t->dtype, stride, width);
    for (int r = 0; r < n; r++) {
        const int64_t slot = find_slot(c, b, hk, first + r);
        quantise_row(kernels, (int8_t *)row_at(c, part, slot), attni_at(t, 0, hk, i + r, 0),
                     t->dtype, stride, scales[r], width);
        c->scales[part][slot] = scales[r];
    }
}

static void store_row(attn_cache *c, attni_cache_part part, int64_t slot, const attn_tensor *t,
                      int64_t hk, int64_t i)
{
    const int64_t n = c->width[part];
    if (n > 0)
        convert_row(row_at(c, part, slot), c->options.dtype, attni_at(t, 0, hk, i, 0), t->dtype,
                    t->stride[3], n);
}

/* Stores n keys of one group, interleaved. The first goes to lane `slot` % ATTNI_GROUP. */
static void store_interleaved(attn_cache *c, int64_t slot, int64_t n, const attn_tensor *t,
                              int64_t hk, int64_t i)
{
    const attn_dtype dtype = c->options.dtype;
    const size_t size = attn_dtype_size(dtype);
    const int64_t D = c->width[ATTNI_KEYS], most = INTERLEAVED / (int64_t)size;
    char *to = row_at(c, ATTNI_KEYS, slot);
    char row[ATTNI_GROUP][INTERLEAVED] __attribute__((aligned(16)));
    for (int64_t d = 0; d < D; d += most, to += INTERLEAVED / UNIT * LINE) {
        const int64_t here = least(most, D - d), units = (here * (int64_t)size + UNIT - 1) / UNIT;
        for (int64_t r = 0; r < n; r++) {
            /* With 2-byte elements and odd D, convert_row() writes half of the last unit; the other
             * half must be 0. */
            memset(row[r] + (units - 1) * UNIT, 0, UNIT);
            convert_row(row[r], dtype, attni_at(t, 0, hk, i + r, d), t->dtype, t->stride[3], here);
        }
        attni_transpose_units(to, LINE, row[0], sizeof row[0], n, units);
    }
}

static void store_rows(attn_cache *c, attni_cache_part part, int64_t b, int64_t first,
                       const attn_tensor *t, int64_t hk, int64_t n)
{
    for (int64_t i = 0, here; i < n; i += here) {
        if (c->options.dtype == ATTN_I8) {
            here = least(I8_ROWS, n - i);
            store_i8_rows(c, part, b, first + i, t, hk, i, (int)here);
            continue;
        }
        const int64_t slot = find_slot(c, b, hk, first + i);
        here = is_interleaved(c, part) ? least(n - i, ATTNI_GROUP - slot % ATTNI_GROUP) : 1;
        if (is_interleaved(c, part))
            store_interleaved(c, slot, here, t, hk, i);
        else
            store_row(c, part, slot, t, hk, i);
    }
}

/* Checks k or v: its shape must be [1, Hk, n, width] with the same n for both. */
static attn_status check_rows(const attn_cache *c, const attn_tensor *t, attni_cache_part part,
                              int64_t n, attn_error *err)
{
    const char *name = part == ATTNI_KEYS ? "k" : "v";
    if (!attni_dtype_is_float(t->dtype))
        return attni_fail(err, ATTN_ERR_DTYPE, name, "%s is %s; it must be f64, f32, f16 or bf16",
                          name, attn_dtype_name(t->dtype));
    const int64_t want[4] = {1, c->options.Hk, n, c->width[part]};
    if (memcmp(want, t->shape, sizeof want) != 0)
        return attni_fail(
            err, ATTN_ERR_SHAPE, name,
            "%s is [%lld, %lld, %lld, %lld]; it must be [1, Hk=%lld, n=%lld, %s=%lld], "
            "with the same n for k and v",
            name, (long long)t->shape[0], (long long)t->shape[1], (long long)t->shape[2],
            (long long)t->shape[3], (long long)want[1], (long long)n,
            part == ATTNI_KEYS ? "D" : "Dv", (long long)want[3]);
    return ATTN_OK;
}

attn_status attn_cache_append(attn_cache *cache, int64_t b, const attn_tensor *k,
                              const attn_tensor *v, attn_error *err)
{
    ATTNI_DEFAULT_MODE;
    attn_status s;
    if ((s = check_sequence(cache, b, err)) || (s = attni_check_input(k, "k", err)) ||
        (s = attni_check_input(v, "v", err)))
        return s;
    const int64_t n = k->shape[2], first = cache->lengths[b];
    if ((s = check_rows(cache, k, ATTNI_KEYS, n, err)) ||
        (s = check_rows(cache, v, ATTNI_VALUES, n, err)) ||
        (s = attni_cache_grow(cache, b, n, err)))
        return s;
    const attn_tensor *const parts[2] = {k, v};
    for (int part = 0; part < 2; part++) {
        if (n == 0 || (attni_empty(parts[part]) && !cache->scales[part]))
            continue; /* no keys, no heads, or rows of size 0 */
        for (int64_t hk = 0; hk < cache->options.Hk; hk++)
            store_rows(cache, (attni_cache_part)part, b, first, parts[part], hk, n);
    }
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------ reading */

char *attni_cache_rows(const attn_cache *c, attni_cache_part part, int64_t b, int64_t hk, int64_t j)
{
    return row_at(c, part, find_slot(c, b, hk, j));
}

float *attni_cache_scales(const attn_cache *c, attni_cache_part part, int64_t b, int64_t hk,
                          int64_t j)
{
    return c->scales[part] ? c->scales[part] + find_slot(c, b, hk, j) : NULL;
}

void attni_cache_keys_as_rows(const attn_cache *c, int64_t b, int64_t hk, int64_t j, int64_t n,
                              void *to, size_t bytes)
{
    const int64_t units = (int64_t)(c->row_bytes[ATTNI_KEYS] / UNIT);
    for (int64_t here; n > 0; n -= here, j += here, to = (char *)to + (size_t)here * bytes) {
        here = ATTNI_GROUP - j % ATTNI_GROUP;
        here = here < n ? here : n;
        attni_transpose_units(to, bytes, attni_cache_rows(c, ATTNI_KEYS, b, hk, j), LINE, units,
                              here);
    }
}

/* Loads components i .. i+n-1 of a slot's row as double, n <= PIECE. */
static void load_part(const attn_cache *c, attni_cache_part part, int64_t slot, int64_t i,
                      int64_t n, double *to)
{
    const attn_dtype dtype = c->options.dtype;
    const size_t size = attn_dtype_size(dtype);
    const char *from = row_at(c, part, slot);
    char row[PIECE * UNIT];
    if (dtype == ATTN_I8) {
        const int8_t *x = (const int8_t *)from + i;
        for (int64_t e = 0; e < n; e++)
            to[e] = (double)((float)x[e] * c->scales[part][slot]); /* rounded to float */
        return;
    }
    if (is_interleaved(c, part))
        attni_cache_get(row, from, (size_t)i * size, (size_t)n * size);
    attni_load_row_f64(to, is_interleaved(c, part) ? row : from + (size_t)i * size, dtype, 1, n);
}

static void read_row(const attn_cache *c, attni_cache_part part, int64_t slot, const attn_tensor *t,
                     int64_t hk, int64_t i)
{
    double x[PIECE];
    char *to = attni_at(t, 0, hk, i, 0);
    for (int64_t e = 0; e < c->width[part]; e += PIECE) {
        const int64_t n = least(PIECE, c->width[part] - e);
        load_part(c, part, slot, e, n, x);
        attni_store_row_f64(piece_at(to, t->dtype, t->stride[3], e), t->dtype, t->stride[3], x, n);
    }
}

attn_status attn_cache_read(const attn_cache *cache, int64_t b, int64_t first, const attn_tensor *k,
                            const attn_tensor *v, attn_error *err)
{
    ATTNI_DEFAULT_MODE;
    attn_status s;
    if ((s = check_sequence(cache, b, err)) || (k && (s = attni_check_output(k, "k", err))) ||
        (v && (s = attni_check_output(v, "v", err))))
        return s;
    const attn_tensor *parts[2] = {k, v};
    const int64_t n = k ? k->shape[2] : v ? v->shape[2] : 0;
    if ((k && (s = check_rows(cache, k, ATTNI_KEYS, n, err))) ||
        (v && (s = check_rows(cache, v, ATTNI_VALUES, n, err))))
        return s;
    if (first < 0 || first > cache->lengths[b] || n > cache->lengths[b] - first)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "first",
                          "first is %lld and %lld keys are read; sequence %lld has %lld keys",
                          (long long)first, (long long)n, (long long)b,
                          (long long)cache->lengths[b]);
    for (int part = 0; part < 2; part++) {
        if (!parts[part] || attni_empty(parts[part]))
            continue;
        for (int64_t hk = 0; hk < cache->options.Hk; hk++)
            for (int64_t i = 0; i < n; i++)
                read_row(cache, (attni_cache_part)part, find_slot(cache, b, hk, first + i),
                         parts[part], hk, i);
    }
    return ATTN_OK;
}
