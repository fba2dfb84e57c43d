/* Saved caches have the documented format, and loading one trusts none of its bytes.
 *
 * link: -Wl,--wrap=aligned_alloc
 *
 * The tests compare the format byte by byte, save and load random caches, and load hostile bytes.
 * F15 is the project's name for a bug that other programs had: a count in the file that was not
 * checked led to writes outside the heap block. */
#include "cache_testing.h"

/* Taken since it was last set to 0. */
static int allocations;
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    allocations++;
    return __real_aligned_alloc(alignment, size);
}

/* ---------------------------------------------------------------------------------- the format */

static uint64_t fnv(const unsigned char *data, size_t size)
{
    uint64_t hash = 0xCBF29CE484222325;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 0x100000001B3;
    return hash;
}

/* Makes the last 8 bytes what they should be. */
static void seal(bytes *b)
{
    uint64_t hash = fnv(b->data, b->size - 8);
    for (size_t i = 0; i < 8; i++, hash >>= 8)
        b->data[b->size - 8 + i] = (unsigned char)hash;
}

static bytes head(uint32_t version, uint32_t dtype, uint64_t B, uint64_t Hk, uint64_t D,
                  uint64_t Dv)
{
    bytes b = {0};
    put(&b,
        "\x93"
        "ATTNKV\n",
        8);
    put_number(&b, version, 4);
    put_number(&b, dtype, 4);
    put_number(&b, B, 8), put_number(&b, Hk, 8), put_number(&b, D, 8), put_number(&b, Dv, 8);
    return b;
}

static void end(bytes *b)
{
    put_number(b, 0, 8);
    seal(b);
}

/* A file written by hand loads, and saves to the same bytes. */
static void test_format(void **state)
{
    (void)state;
    /* FNV-1a of "a" and of "foobar", as its authors publish them */
    assert_int_equal(fnv((const unsigned char *)"a", 1), 0xAF63DC4C8601EC8C);
    assert_int_equal(fnv((const unsigned char *)"foobar", 6), 0x85944171F73967E8);

    bytes b = head(1, ATTN_F32, 2, 1, 2, 1);
    put_number(&b, 0, 8), put_number(&b, 2, 8);                   /* lengths */
    put_number(&b, 0x3F800000, 4), put_number(&b, 0xC0000000, 4); /* key 0: 1, -2 */
    put_number(&b, 0x40400000, 4), put_number(&b, 0x3F000000, 4); /* key 1: 3, 0.5 */
    put_number(&b, 0x41200000, 4), put_number(&b, 0x41A00000, 4); /* values 10, 20 */
    end(&b);
    attn_cache_options o = cache_options(ATTN_F32, 2, 1, 2, 1, 5, 0, 0);
    attn_cache *cache;
    attn_error err = {0};
    if (attn_cache_load(&o, b.data, b.size, &cache, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(attn_cache_length(cache, 0), 0);
    assert_int_equal(attn_cache_length(cache, 1), 2);
    double keys[4], values[2];
    const attn_tensor k = attn_bhtd(keys, ATTN_F64, 1, 1, 2, 2);
    const attn_tensor v = attn_bhtd(values, ATTN_F64, 1, 1, 2, 1);
    assert_int_equal(attn_cache_read(cache, 1, 0, &k, &v, NULL), ATTN_OK);
    assert_number(keys[0], ==, 1);
    assert_number(keys[1], ==, -2);
    assert_number(keys[2], ==, 3);
    assert_number(keys[3], ==, 0.5);
    assert_number(values[0], ==, 10);
    assert_number(values[1], ==, 20);
    bytes again = content(cache);
    expect_same_bytes(again, b, "saved again");
    attn_cache_destroy(cache);
    bytes_free(&again), bytes_free(&b);

    b = head(1, ATTN_I8, 1, 1, 3, 1); /* scales before rows */
    put_number(&b, 1, 8);
    put_number(&b, 0x3F000000, 4), put_number(&b, 0x0081FF, 3); /* 0.5 x (-1, -127, 0) */
    put_number(&b, 0x40000000, 4), put_number(&b, 0x7F, 1);     /* 2 x 127 */
    end(&b);
    o = cache_options(ATTN_I8, 1, 1, 3, 1, 1, 64, 1);
    assert_int_equal(attn_cache_load(&o, b.data, b.size, &cache, NULL), ATTN_OK);
    const attn_tensor k8 = attn_bhtd(keys, ATTN_F64, 1, 1, 1, 3);
    const attn_tensor v8 = attn_bhtd(values, ATTN_F64, 1, 1, 1, 1);
    assert_int_equal(attn_cache_read(cache, 0, 0, &k8, &v8, NULL), ATTN_OK);
    assert_number(keys[0], ==, -0.5);
    assert_number(keys[1], ==, -63.5);
    assert_number(keys[2], ==, 0);
    assert_number(values[0], ==, 254);
    attn_cache_destroy(cache);
    bytes_free(&b);
}

/* --------------------------------------------------------------------------------- round trip */

enum { B = 3, HK = 2, D = 6, DV = 5, MAX = 150 };

static attn_cache_options usual(attn_dtype dtype, int64_t page_keys)
{
    return cache_options(dtype, B, HK, D, DV, MAX, page_keys, 0);
}

/* A cache of random rows, of these lengths. */
static attn_cache *filled(attn_dtype dtype, int64_t page_keys, const int64_t lengths[B])
{
    const attn_cache_options o = usual(dtype, page_keys);
    attn_cache *cache = cache_new(&o);
    attn_tensor k = tensor_new_filled(ATTN_F64, B, HK, MAX, D, 0);
    attn_tensor v = tensor_new_filled(ATTN_F64, B, HK, MAX, DV, 0);
    for (int64_t b = 0; b < B; b++)
        assert_int_equal(append_rows(cache, &k, &v, b, 0, lengths[b], NULL), ATTN_OK);
    tensor_free(&k), tensor_free(&v);
    return cache;
}

static const int64_t some_lengths[B] = {70, 0, 129};

static void test_round_trip(void **state)
{
    (void)state;
    static const int64_t pages[] = {0, 64, 128};
    for (size_t t = 0; t < COUNT(cache_dtypes); t++)
        for (size_t from = 0; from < COUNT(pages); from++)
            for (size_t to = 0; to < COUNT(pages); to++) {
                describe_case("%s, pages of %d keys into pages of %d",
                              attn_dtype_name(cache_dtypes[t]), (int)pages[from], (int)pages[to]);
                attn_cache *cache = filled(cache_dtypes[t], pages[from], some_lengths), *back;
                bytes saved = content(cache);
                attn_cache_options o = usual(cache_dtypes[t], pages[to]);
                o.max_keys = 130; /* another capacity */
                assert_int_equal(attn_cache_load(&o, saved.data, saved.size, &back, NULL), ATTN_OK);
                bytes again = content(back);
                expect_same_bytes(again, saved, "round trip");
                /* and it goes on */
                const attn_tensor k = tensor_new_filled(ATTN_F32, B, HK, 3, D, 0);
                const attn_tensor v = tensor_new_filled(ATTN_F32, B, HK, 3, DV, 0);
                attn_cache *both[] = {cache, back};
                for (int i = 0; i < 2; i++) {
                    assert_int_equal(attn_cache_truncate(both[i], 0, 60, NULL), ATTN_OK);
                    assert_int_equal(append_rows(both[i], &k, &v, 0, 0, 3, NULL), ATTN_OK);
                    assert_int_equal(append_rows(both[i], &k, &v, 2, 0, 1, NULL), ATTN_OK);
                }
                assert_int_equal(append_rows(back, &k, &v, 2, 0, 1, NULL), ATTN_ERR_FULL);
                bytes_free(&again), bytes_free(&saved);
                saved = content(cache), again = content(back);
                expect_same_bytes(again, saved, "appended after loading");
                bytes_free(&again), bytes_free(&saved);
                attn_tensor a = k, b = v;
                tensor_free(&a), tensor_free(&b);
                attn_cache_destroy(cache), attn_cache_destroy(back);
            }
}

typedef struct failing {
    int calls, fail_at;
} failing;

static int write_until(void *user, const void *data, size_t n)
{
    failing *f = user;
    (void)data;
    assert_number(n, >, 0);
    return ++f->calls == f->fail_at ? 5 : 0;
}

static void test_save_errors(void **state)
{
    (void)state;
    attn_cache *cache = filled(ATTN_I8, 64, some_lengths);
    failing f = {0, 0};
    attn_error err = {0};
    assert_int_equal(attn_cache_save(cache, write_until, &f, NULL), ATTN_OK);
    const int calls = f.calls;
    assert_number(calls, >, 10);
    for (int at = 1; at <= calls; at++) {
        describe_case("write %d fails", at);
        f = (failing){0, at};
        expect_error(attn_cache_save(cache, write_until, &f, &err), &err, ATTN_ERR_FILE, "write",
                     "write failed");
        assert_int_equal(f.calls, at); /* not called again */
    }
    expect_error(attn_cache_save(NULL, write_until, &f, &err), &err, ATTN_ERR_ARGUMENT, "cache",
                 "NULL");
    expect_error(attn_cache_save(cache, NULL, &f, &err), &err, ATTN_ERR_ARGUMENT, "write", "NULL");
    attn_cache_destroy(cache);
}

/* ------------------------------------------------------------------------------ hostile bytes */

/* No cache, no memory taken, and a line that says why. */
static void expect_bad(const attn_cache_options *o, bytes b, attn_status status,
                       const char *argument, const char *part)
{
    attn_cache *cache = (attn_cache *)(uintptr_t)o;
    attn_error err = {0};
    allocations = 0;
    expect_error(attn_cache_load(o, b.data, b.size, &cache, &err), &err, status, argument, part);
    assert_null(cache);
    assert_int_equal(allocations, 0);
}

static void test_F15_arguments(void **state)
{
    (void)state;
    attn_cache *cache = filled(ATTN_F16, 0, some_lengths), *out;
    bytes good = content(cache);
    attn_cache_options o = usual(ATTN_F16, 0);
    attn_error err = {0};
    expect_error(attn_cache_load(&o, NULL, 9, &out, &err), &err, ATTN_ERR_ARGUMENT, "bytes",
                 "NULL");
    expect_error(attn_cache_load(&o, good.data, good.size, NULL, &err), &err, ATTN_ERR_ARGUMENT,
                 "out", "NULL");
    expect_error(attn_cache_load(NULL, good.data, good.size, &out, &err), &err, ATTN_ERR_ARGUMENT,
                 "options", "NULL");
    o.page_keys = 63;
    expect_bad(&o, good, ATTN_ERR_ARGUMENT, "page_keys", "63");
    o = usual(ATTN_BF16, 0);
    expect_bad(&o, good, ATTN_ERR_DTYPE, "options",
               "options.dtype is bf16; the saved cache's is f16");
    o = usual(ATTN_F16, 0), o.B = 2;
    expect_bad(&o, good, ATTN_ERR_SHAPE, "options", "options.B is 2; the saved cache's is 3");
    o = usual(ATTN_F16, 0), o.Hk = 1;
    expect_bad(&o, good, ATTN_ERR_SHAPE, "options", "options.Hk is 1; the saved cache's is 2");
    o = usual(ATTN_F16, 0), o.D = 5;
    expect_bad(&o, good, ATTN_ERR_SHAPE, "options", "options.D is 5");
    o = usual(ATTN_F16, 0), o.Dv = 6;
    expect_bad(&o, good, ATTN_ERR_SHAPE, "options", "options.Dv is 6");
    /* no room: what was taken is given back (or a leak is found) */
    o = usual(ATTN_F16, 0), o.max_keys = 128;
    expect_error(attn_cache_load(&o, good.data, good.size, &out, &err), &err, ATTN_ERR_FULL,
                 "max_keys", "sequence 2");
    assert_null(out);
    o = usual(ATTN_F16, 64), o.pages = 4;
    expect_error(attn_cache_load(&o, good.data, good.size, &out, &err), &err, ATTN_ERR_FULL,
                 "pages", "2 pages are free");
    o.pages = 5;
    assert_int_equal(attn_cache_load(&o, good.data, good.size, &out, NULL), ATTN_OK);
    attn_cache_destroy(out);
    attn_cache_destroy(cache);
    bytes_free(&good);
}

/* Counts that are not true, with the right checksum. */
static void test_F15_counts_against_the_bytes(void **state)
{
    (void)state;
    static const uint64_t counts[] = {
        1,
        3,
        1 << 20,
        UINT64_C(1) << 31,
        (UINT64_C(1) << 32) + 2,
        UINT64_C(1) << 58,
        UINT64_C(1) << 59,
        UINT64_C(1) << 60,
        (UINT64_C(1) << 60) + 2,
        UINT64_C(1) << 61,
        UINT64_C(1) << 62,
        (UINT64_C(1) << 63) - 1,
        UINT64_C(1) << 63,
        (UINT64_C(1) << 63) + 2,
        UINT64_MAX - 1,
        UINT64_MAX,
    };
    const attn_cache_options o = cache_options(ATTN_F32, 1, 2, 1, 1, INT64_C(1) << 40, 64, 1);
    for (size_t i = 0; i < COUNT(counts); i++) {
        bytes b = head(1, ATTN_F32, 1, 2, 1, 1);
        put_number(&b, counts[i], 8); /* keys of 16 bytes; there are 2 */
        for (int n = 0; n < 8; n++)
            put_number(&b, 0x3F800000, 4);
        end(&b);
        expect_bad(&o, b, ATTN_ERR_FILE, "bytes",
                   counts[i] == 1 ? "16 more than their lengths" : "a length of");
        bytes_free(&b);
    }
    /* lengths that wrap to the right sum */
    const attn_cache_options four = cache_options(ATTN_F32, 4, 1, 1, 0, INT64_C(1) << 40, 64, 1);
    bytes b = head(1, ATTN_F32, 4, 1, 1, 0);
    for (int n = 0; n < 4; n++)
        put_number(&b, UINT64_C(1) << 62, 8); /* 4 x 2^62 x 4 = 0 */
    end(&b);
    expect_bad(&four, b, ATTN_ERR_FILE, "bytes", "sequence 0 a length of 4611686018427387904 keys");
    bytes_free(&b);
}

/* The length of each sequence, not only of the first, is held against what the ones before it leave
 * of the bytes. */
static void test_F15_each_sequence_against_the_bytes(void **state)
{
    (void)state;
    static const uint64_t lengths[3] = {2, 1, 3}; /* keys of 12 bytes: 72 */
    static const uint64_t left[3] = {72, 48, 36};
    static const uint64_t more[] = {1, 256, UINT64_C(1) << 32, UINT64_C(1) << 62};
    const attn_cache_options o = cache_options(ATTN_F32, 3, 1, 2, 1, 64, 64, 0);
    for (int wrong = -1; wrong < 3; wrong++)
        for (size_t m = 0; m < COUNT(more); m++) {
            describe_case("sequence %d is wrong by %" PRIu64 " keys", wrong, more[m]);
            bytes b = head(1, ATTN_F32, 3, 1, 2, 1);
            const uint64_t long_ = wrong < 0 ? 0 : left[wrong] / 12 + more[m];
            for (int i = 0; i < 3; i++)
                put_number(&b, i == wrong ? long_ : lengths[i], 8);
            for (int i = 0; i < 18; i++)
                put_number(&b, 0x3F800000, 4);
            end(&b);
            char part[100];
            snprintf(part, sizeof part, "sequence %d a length of %llu keys, of 12 bytes each; %d ",
                     wrong, (unsigned long long)long_, wrong < 0 ? 0 : (int)left[wrong]);
            attn_cache *cache;
            if (wrong >= 0) {
                expect_bad(&o, b, ATTN_ERR_FILE, "bytes", part);
            } else {
                assert_int_equal(attn_cache_load(&o, b.data, b.size, &cache, NULL), ATTN_OK);
                for (int i = 0; i < 3; i++)
                    assert_int_equal(attn_cache_length(cache, i), lengths[i]);
                attn_cache_destroy(cache);
            }
            bytes_free(&b);
        }
}

/* Sizes beyond any file, which the options name too. */
static void test_F15_sizes_against_the_bytes(void **state)
{
    (void)state;
    attn_cache_options huge = cache_options(ATTN_F32, INT64_C(1) << 61, 1, 1, 1, 64, 64, 1);
    bytes b = head(1, ATTN_F32, UINT64_C(1) << 61, 1, 1, 1);
    end(&b);
    expect_bad(&huge, b, ATTN_ERR_FILE, "bytes", "end among the lengths");
    bytes_free(&b);
    huge = cache_options(ATTN_F64, 1, INT64_C(1) << 40, INT64_C(1) << 40, 1, 64, 64, 1);
    b = head(1, ATTN_F64, 1, UINT64_C(1) << 40, UINT64_C(1) << 40, 1);
    put_number(&b, 1, 8);
    end(&b);
    expect_bad(&huge, b, ATTN_ERR_FILE, "bytes", "cannot hold a key");
    bytes_free(&b);
    /* keys of no bytes: their number is bounded by the options alone */
    const attn_cache_options none = cache_options(ATTN_F32, 1, 1, 0, 0, 1000, 64, 0);
    b = head(1, ATTN_F32, 1, 1, 0, 0);
    put_number(&b, (UINT64_C(1) << 63) - 1, 8);
    end(&b);
    attn_cache *cache;
    attn_error err = {0};
    expect_error(attn_cache_load(&none, b.data, b.size, &cache, &err), &err, ATTN_ERR_FULL,
                 "max_keys", "1000");
    assert_null(cache);
    bytes_free(&b);
}

static void test_F15_magic_and_version(void **state)
{
    (void)state;
    const attn_cache_options o = cache_options(ATTN_F32, 0, 1, 1, 1, 1, 0, 0);
    bytes b = head(1, ATTN_F32, 0, 1, 1, 1);
    end(&b);
    attn_cache *cache;
    assert_int_equal(attn_cache_load(&o, b.data, b.size, &cache, NULL), ATTN_OK);
    attn_cache_destroy(cache);
    b.data[7] ^= 1;
    seal(&b);
    expect_bad(&o, b, ATTN_ERR_FILE, "bytes", "do not start");
    bytes_free(&b);
    static const uint32_t versions[] = {0, 2, 256, 0x01000000, UINT32_MAX};
    for (size_t i = 0; i < COUNT(versions); i++) {
        b = head(versions[i], ATTN_F32, 0, 1, 1, 1);
        end(&b);
        expect_bad(&o, b, ATTN_ERR_FILE, "bytes", "reads version 1");
        bytes_free(&b);
    }
    static const uint32_t dtypes[] = {0, 5, 6, 8, 200, 1000, UINT32_MAX};
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        b = head(1, dtypes[i], 0, 1, 1, 1);
        end(&b);
        expect_bad(&o, b, ATTN_ERR_DTYPE, "options", "dtype is f32");
        bytes_free(&b);
    }
}

/* A copy of just its size, so that a sanitizer sees a read past its end. */
static attn_status try_bytes(const unsigned char *data, size_t size, const attn_cache_options *o)
{
    unsigned char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    if (size)
        memcpy(copy, data, size);
    attn_cache *cache;
    attn_error err = {0};
    const attn_status status = attn_cache_load(o, copy, size, &cache, &err);
    free(copy);
    if (status == ATTN_OK) {
        bytes again = content(cache);
        expect_same_bytes(again, (bytes){.data = (unsigned char *)(uintptr_t)data, .size = size},
                          "a mutant that loads");
        bytes_free(&again);
    } else {
        assert_int_equal(err.status, status);
        assert_null(strchr(err.message, '\n'));
    }
    attn_cache_destroy(cache);
    return status;
}

/* Every prefix and every flipped bit: refused by the checksum; and, with the checksum set right
 * again, refused by what it says, or a cache that saves to the same bytes. */
static void test_F15_every_prefix_and_bit(void **state)
{
    (void)state;
    static const int64_t lengths[B] = {3, 0, 5};
    for (size_t t = 0; t < COUNT(cache_dtypes); t++) {
        const attn_cache_options o = usual(cache_dtypes[t], 64);
        attn_cache *cache = filled(cache_dtypes[t], 0, lengths);
        bytes good = content(cache), cut = {0};
        attn_cache_destroy(cache);
        for (size_t size = 0; size < good.size; size++) {
            describe_case("%s, the first %zu bytes", attn_dtype_name(cache_dtypes[t]), size);
            assert_int_equal(try_bytes(good.data, size, &o), ATTN_ERR_FILE);
            if (size < 56)
                continue;
            cut.size = 0;
            put(&cut, good.data, size);
            seal(&cut);
            assert_int_equal(try_bytes(cut.data, size, &o), ATTN_ERR_FILE);
        }
        bytes_free(&cut);
        int loaded = 0;
        for (size_t bit = 0; bit < 8 * good.size; bit++) {
            describe_case("%s, bit %zu", attn_dtype_name(cache_dtypes[t]), bit);
            good.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            assert_int_equal(try_bytes(good.data, good.size, &o), ATTN_ERR_FILE);
            if (bit < 8 * (good.size - 8) && (bit < 1000 || bit % 5 == 0)) {
                seal(&good);
                const attn_status status = try_bytes(good.data, good.size, &o);
                assert_int_equal((status == ATTN_OK), (bit >= 8 * (48 + 8 * B)));
                loaded += status == ATTN_OK;
            }
            good.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            seal(&good);
        }
        assert_number(loaded, >, 100);
        assert_int_equal(try_bytes(good.data, good.size, &o), ATTN_OK);
        bytes_free(&good);
    }
}

/* One change: cut off, made longer, or a number overwritten by one that means something. */
static void mutate(bytes *b)
{
    static const uint64_t words[] = {
        0,
        1,
        2,
        63,
        64,
        65,
        150,
        151,
        1 << 16,
        UINT64_C(1) << 31,
        UINT64_C(1) << 32,
        UINT64_C(1) << 60,
        UINT64_C(1) << 63,
        UINT64_MAX,
        UINT64_MAX - 7,
    };
    const size_t most = b->size < 90 || draw(0, 1) ? b->size : 90;
    const size_t at = (size_t)draw(0, (int64_t)most - 1) & ~(size_t)(draw(0, 2) ? 7 : 0);
    const uint64_t word = words[draw(0, COUNT(words) - 1)];
    const int64_t size = (int64_t)b->size;
    switch (draw(0, 4)) {
    case 0: b->size = (size_t)draw(size > 300 ? size - 200 : size / 2 + 1, size); break;
    case 1: put_number(b, word, 8); break;
    case 2:
    case 3:
        for (size_t k = 0; k < 8 && at + k < b->size; k++)
            b->data[at + k] = (unsigned char)(word >> 8 * k);
        break;
    default: b->data[at] = (unsigned char)(b->data[at] + draw(-2, 2)); break;
    }
}

/* Mutants with and without a good checksum. */
static void test_F15_mutants(void **state)
{
    (void)state;
    enum { MUTANTS = 100000 };
    static const int64_t lengths[B] = {2, 65, 1};
    bytes seeds[COUNT(cache_dtypes)];
    for (size_t t = 0; t < COUNT(cache_dtypes); t++) {
        attn_cache *cache = filled(cache_dtypes[t], 0, lengths);
        seeds[t] = content(cache);
        attn_cache_destroy(cache);
    }
    int seen[10] = {0};
    for (int i = 0; i < MUTANTS; i++) {
        describe_case("mutant %d", i);
        const size_t t = (size_t)draw(0, COUNT(cache_dtypes) - 1);
        attn_cache_options o = usual(cache_dtypes[t], 64);
        o.pages = draw(0, 3) ? 0 : 3;
        bytes b = {0};
        put(&b, seeds[t].data, seeds[t].size);
        for (int64_t n = draw(1, 3); n > 0; n--)
            mutate(&b);
        if (b.size >= 8 && draw(0, 7))
            seal(&b);
        seen[try_bytes(b.data, b.size, &o)]++;
        bytes_free(&b);
    }
    print_message("%d mutants: %d loaded, %d refused as files, %d by shape, %d by dtype, %d full\n",
                  MUTANTS, seen[ATTN_OK], seen[ATTN_ERR_FILE], seen[ATTN_ERR_SHAPE],
                  seen[ATTN_ERR_DTYPE], seen[ATTN_ERR_FULL]);
    assert_in_range(seen[ATTN_OK], MUTANTS / 100, MUTANTS / 2);
    assert_number(seen[ATTN_ERR_FILE], >, MUTANTS / 10);
    assert_number(seen[ATTN_ERR_SHAPE], >, MUTANTS / 100);
    assert_number(seen[ATTN_ERR_DTYPE], >, MUTANTS / 1000);
    assert_number(seen[ATTN_ERR_FULL], >, MUTANTS / 1000);
    for (size_t t = 0; t < COUNT(cache_dtypes); t++)
        bytes_free(&seeds[t]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_save_errors),
        cmocka_unit_test(test_F15_arguments),
        cmocka_unit_test(test_F15_counts_against_the_bytes),
        cmocka_unit_test(test_F15_each_sequence_against_the_bytes),
        cmocka_unit_test(test_F15_sizes_against_the_bytes),
        cmocka_unit_test(test_F15_magic_and_version),
        cmocka_unit_test(test_F15_every_prefix_and_bit),
        cmocka_unit_test(test_F15_mutants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
