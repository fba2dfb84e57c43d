/* A cache returns the rows that were appended to it, each rounded once.
 *
 * This holds however the rows were cut into appends and laid out in memory. Errors leave the cache
 * as it was, and memory is one block of the stated size. Rows of i8: test_cache_i8.c; attention
 * from a cache: test_cache_sdpa.c; saved caches: test_cache_file.c. */
#include <fenv.h>
#include <math.h>

#include "cache_testing.h"

enum { B = 3, HK = 2, D = 20, DV = 13, MAX = 260 };

static attn_cache_options usual(attn_dtype dtype, int64_t page_keys)
{
    return cache_options(dtype, B, HK, D, DV, MAX, page_keys, 0);
}

/* ------------------------------------------------------------------------------------- errors */

static void test_create_errors(void **state)
{
    (void)state;
    static const struct {
        size_t at; /* of an int64_t in the options */
        int64_t value;
        attn_status status;
        const char *argument, *part;
    } bad[] = {
#define FIELD(name) offsetof(attn_cache_options, name)
        {FIELD(B), -1, ATTN_ERR_ARGUMENT, "B", "B is -1; it must be 0 or more"},
        {FIELD(Hk), -2, ATTN_ERR_ARGUMENT, "Hk", "-2"},
        {FIELD(D), INT64_MIN, ATTN_ERR_ARGUMENT, "D", "0 or more"},
        {FIELD(Dv), -1, ATTN_ERR_ARGUMENT, "Dv", "-1"},
        {FIELD(max_keys), -1, ATTN_ERR_ARGUMENT, "max_keys", "-1"},
        {FIELD(page_keys), -64, ATTN_ERR_ARGUMENT, "page_keys", "-64"},
        {FIELD(page_keys), 65, ATTN_ERR_ARGUMENT, "page_keys", "multiple of 64"},
        {FIELD(page_keys), 32, ATTN_ERR_ARGUMENT, "page_keys", "multiple of 64"},
        {FIELD(pages), -1, ATTN_ERR_ARGUMENT, "pages", "-1"},
        {FIELD(pages), 4, ATTN_ERR_ARGUMENT, "pages", "page_keys is 0"},
        {FIELD(B), INT64_MAX, ATTN_ERR_LIMIT, "options", "address"},
        {FIELD(Hk), INT64_MAX, ATTN_ERR_LIMIT, "options", "address"},
        {FIELD(D), INT64_MAX / 4, ATTN_ERR_LIMIT, "options", "address"},
        {FIELD(Dv), INT64_MAX / 1000, ATTN_ERR_LIMIT, "options", "address"},
        {FIELD(max_keys), INT64_MAX, ATTN_ERR_LIMIT, "options", "address"},
        {FIELD(max_keys), INT64_MAX - 63, ATTN_ERR_LIMIT, "options", "address"},
        {FIELD(max_keys), INT64_C(1) << 57, ATTN_ERR_LIMIT, "options", "address"},
#undef FIELD
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        describe_case("row %zu of bad: %s", i, bad[i].part);
        attn_cache_options o = usual(ATTN_F32, 0);
        memcpy((char *)&o + bad[i].at, &bad[i].value, sizeof bad[i].value);
        attn_cache *cache = (attn_cache *)&o;
        attn_error err = {0};
        const attn_status got = attn_cache_create(&o, &cache, &err);
        expect_error(got, &err, bad[i].status, bad[i].argument, bad[i].part);
        assert_null(cache);
        assert_int_equal(attn_cache_create(&o, &cache, NULL), bad[i].status);
    }
    /* pages that wrap to few bytes */
    attn_cache_options o = usual(ATTN_F32, 64);
    attn_cache *cache;
    attn_error err = {0};
    for (int shift = 50; shift < 63; shift++) {
        describe_case("size 2^%d", shift);
        o.pages = INT64_C(1) << shift;
        expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_LIMIT, "options", "");
        o.D = o.Dv =
            0; /* the table of free pages, or the count of slots, is too much all the same */
        if (shift >= 58)
            expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_LIMIT, "options", "");
        o.D = D, o.Dv = DV;
        o.Hk = INT64_C(1) << 20;
        expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_LIMIT, "options", "");
        o.Hk = HK;
    }
}

static void test_options_errors(void **state)
{
    (void)state;
    attn_cache *cache;
    attn_error err = {0};
    attn_cache_options o = usual(ATTN_F32, 0);
    expect_error(attn_cache_create(NULL, &cache, &err), &err, ATTN_ERR_ARGUMENT, "options", "NULL");
    expect_error(attn_cache_create(&o, NULL, &err), &err, ATTN_ERR_ARGUMENT, "out", "NULL");
    static const attn_dtype dtypes[] = {ATTN_BOOL, ATTN_I64, (attn_dtype)0, (attn_dtype)99};
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        o.dtype = dtypes[i];
        expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_DTYPE, "dtype", "i8");
    }
    o = usual(ATTN_F32, 0);
    o.struct_size = 0;
    expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_ARGUMENT, "struct_size",
                 "attn_cache_options_init");
    o.struct_size = sizeof o - 1;
    expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_ARGUMENT, "struct_size",
                 "attn_cache_options_init");
    struct {
        attn_cache_options o;
        int64_t newer;
    } longer = {usual(ATTN_F32, 0), 0};
    longer.o.struct_size = sizeof longer;
    attn_cache_destroy(cache_new(&longer.o));
    longer.newer = 1;
    expect_error(attn_cache_create(&longer.o, &cache, &err), &err, ATTN_ERR_ARGUMENT, "struct_size",
                 "does not know");
}

/* Refused, and the cache's bytes are what they were. */
static void test_append_errors(void **state)
{
    (void)state;
    const attn_cache_options o = usual(ATTN_F32, 64);
    attn_cache *cache = cache_new(&o);
    attn_tensor k = tensor_new_filled(ATTN_F32, B, HK, MAX, D, 0);
    attn_tensor v = tensor_new_filled(ATTN_F32, B, HK, MAX, DV, 0);
    assert_int_equal(append_rows(cache, &k, &v, 1, 0, 77, NULL), ATTN_OK);
    bytes before = content(cache);
    const attn_tensor good_k = rows_of(k, 0, 0, 3), good_v = rows_of(v, 0, 0, 3);
    attn_tensor a = good_k, b = good_v;
    attn_error err = {0};
#define REFUSED(spoil, status, argument, part)                                                     \
    do {                                                                                           \
        a = good_k, b = good_v;                                                                    \
        spoil;                                                                                     \
        expect_error(attn_cache_append(cache, 1, &a, &b, &err), &err, status, argument, part);     \
        assert_int_equal(attn_cache_append(cache, 1, &a, &b, NULL), status);                       \
    } while (0)
    REFUSED(a.dtype = ATTN_I64, ATTN_ERR_DTYPE, "k", "i64");
    REFUSED(a.dtype = ATTN_I8, ATTN_ERR_DTYPE, "k", "i8");
    REFUSED(b.dtype = ATTN_BOOL, ATTN_ERR_DTYPE, "v", "bool");
    REFUSED(b.dtype = (attn_dtype)55, ATTN_ERR_DTYPE, "v", "55");
    REFUSED(a.data = NULL, ATTN_ERR_ARGUMENT, "k", "no data");
    REFUSED(b.data = NULL, ATTN_ERR_ARGUMENT, "v", "no data");
    REFUSED(a.shape[0] = 2, ATTN_ERR_SHAPE, "k", "[2, 2, 3, 20]");
    REFUSED(a.shape[1] = 1, ATTN_ERR_SHAPE, "k",
            "must be [1, Hk=2, n=3, D=20], with the same n for k and v");
    REFUSED(a.shape[3] = 19, ATTN_ERR_SHAPE, "k", "D");
    REFUSED(b.shape[2] = 2, ATTN_ERR_SHAPE, "v", "must be [1, Hk=2, n=3, Dv=13]");
    REFUSED(b.shape[3] = 20, ATTN_ERR_SHAPE, "v", "Dv");
    REFUSED(a.shape[2] = -1, ATTN_ERR_SHAPE, "k", "-1");
    REFUSED(a.stride[2] = INT64_MAX, ATTN_ERR_LIMIT, "k", "address");
#undef REFUSED
    expect_error(attn_cache_append(NULL, 0, &good_k, &good_v, &err), &err, ATTN_ERR_ARGUMENT,
                 "cache", "NULL");
    expect_error(attn_cache_append(cache, 1, NULL, &good_v, &err), &err, ATTN_ERR_ARGUMENT, "k",
                 "NULL");
    expect_error(attn_cache_append(cache, 1, &good_k, NULL, &err), &err, ATTN_ERR_ARGUMENT, "v",
                 "NULL");
    expect_error(attn_cache_append(cache, B, &good_k, &good_v, &err), &err, ATTN_ERR_ARGUMENT, "b",
                 "below 3");
    expect_error(attn_cache_append(cache, -1, &good_k, &good_v, &err), &err, ATTN_ERR_ARGUMENT, "b",
                 "-1");
    expect_error(append_rows(cache, &k, &v, 1, 0, MAX - 76, &err), &err, ATTN_ERR_FULL, "max_keys",
                 "sequence 1 has 77 keys and cannot take 184 more");
    expect_error(attn_cache_truncate(cache, 1, 78, &err), &err, ATTN_ERR_ARGUMENT, "length",
                 "has 77");
    expect_error(attn_cache_truncate(cache, 1, -1, &err), &err, ATTN_ERR_ARGUMENT, "length", "-1");
    expect_error(attn_cache_truncate(cache, B, 0, &err), &err, ATTN_ERR_ARGUMENT, "b", "below 3");
    expect_error(attn_cache_truncate(NULL, 0, 0, &err), &err, ATTN_ERR_ARGUMENT, "cache", "NULL");
    bytes after = content(cache);
    expect_same_bytes(after, before, "after errors");
    assert_int_equal(append_rows(cache, &k, &v, 1, 77, MAX - 77, NULL), ATTN_OK); /* all fit */
    bytes_free(&before);
    bytes_free(&after);
    tensor_free(&k);
    tensor_free(&v);
    attn_cache_destroy(cache);
}

/* ------------------------------------------------------------------------------------- content */

/* The same rows, cut and laid out in every way: the same bytes. */
static void test_cuts_and_pages_do_not_matter(void **state)
{
    (void)state;
    static const attn_dtype from[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    static const int64_t pages[] = {0, 64, 128, 320}, lengths[B] = {1, MAX, 130};
    for (size_t t = 0; t < COUNT(cache_dtypes); t++)
        for (size_t f = 0; f < COUNT(from); f++) {
            bytes want = {0};
            attn_tensor k = tensor_new_filled(from[f], B, HK, MAX, D, (int)(f % 3));
            attn_tensor v = tensor_new_filled(from[f], B, HK, MAX, DV, (int)(t % 3));
            for (size_t p = 0; p < COUNT(pages); p++)
                for (int cut = 0; cut < 3; cut++) { /* at once, one by one, anyhow */
                    describe_case("%s from %s, pages of %d keys, cut %d",
                                  attn_dtype_name(cache_dtypes[t]), attn_dtype_name(from[f]),
                                  (int)pages[p], cut);
                    const attn_cache_options o = usual(cache_dtypes[t], pages[p]);
                    attn_cache *cache = cache_new(&o);
                    int64_t done[B] = {0};
                    for (int64_t b = 0, left = B; left > 0; b = (b + 1) % B) {
                        const int64_t rest = lengths[b] - done[b];
                        const int64_t n = cut == 0 ? rest : cut == 1 ? rest > 0 : draw(0, rest);
                        assert_int_equal(append_rows(cache, &k, &v, b, done[b], n, NULL), ATTN_OK);
                        left -= n > 0 && n == rest;
                        done[b] += n;
                        assert_int_equal(attn_cache_length(cache, b), done[b]);
                    }
                    bytes got = content(cache);
                    if (!want.data)
                        want = got;
                    expect_same_bytes(got, want, attn_dtype_name(cache_dtypes[t]));
                    if (got.data != want.data)
                        bytes_free(&got);
                    attn_cache_destroy(cache);
                }
            bytes_free(&want);
            tensor_free(&k);
            tensor_free(&v);
        }
}

/* Just above halfway between neighbours of f16 or bf16: by way of float they would be halfway. */
static void plant_near_ties(const attn_tensor *t)
{
    for (int64_t i = 0; i < t->shape[2]; i++)
        for (int64_t d = 0; d < 12; d += 2) {
            const double tie = ldexp((double)draw(0, 60) * 2 + 1, d % 4 ? -11 : -8);
            check_store(t, 2, i % HK, i, d, (d < 6 ? 1 : -1) * (1 + tie + 0x1p-40));
        }
}

/* Against the harness's own roundings: each element was rounded once, from what it was. */
static void test_rows_are_rounded_once(void **state)
{
    (void)state;
    static const attn_dtype from[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    enum { N = 70 };
    for (size_t t = 0; t < 4; t++)
        for (size_t f = 0; f < COUNT(from); f++) {
            const attn_cache_options o = usual(cache_dtypes[t], 64);
            attn_cache *cache = cache_new(&o);
            attn_tensor k = tensor_new_filled(from[f], B, HK, N, D, 2);
            attn_tensor v = tensor_new_filled(from[f], B, HK, N, DV, 1);
            plant_near_ties(&k), plant_near_ties(&v);
            attn_tensor one = tensor_new(cache_dtypes[t], 1, 1, 1, 1, 0);
            attn_tensor back = tensor_new(ATTN_F64, 1, HK, N - 3, D, 2);
            attn_tensor narrow = tensor_new(cache_dtypes[t], 1, HK, N - 3, DV, 1);
            assert_int_equal(append_rows(cache, &k, &v, 2, 0, N, NULL), ATTN_OK);
            assert_int_equal(attn_cache_read(cache, 2, 3, &back, &narrow, NULL), ATTN_OK);
            for (int64_t h = 0; h < HK; h++)
                for (int64_t i = 0; i < N - 3; i++)
                    for (int64_t d = 0; d < D; d++) {
                        describe_case("%s from %s, head %d, row %d, column %d",
                                      attn_dtype_name(cache_dtypes[t]), attn_dtype_name(from[f]),
                                      (int)h, (int)i, (int)d);
                        check_store(&one, 0, 0, 0, 0, ref_get(&k, 2, h, i + 3, d));
                        assert_number(ref_get(&back, 0, h, i, d), ==, ref_get(&one, 0, 0, 0, 0));
                        if (d >= DV)
                            continue;
                        check_store(&one, 0, 0, 0, 0, ref_get(&v, 2, h, i + 3, d));
                        assert_number(ref_get(&narrow, 0, h, i, d), ==, ref_get(&one, 0, 0, 0, 0));
                    }
            tensor_free(&k), tensor_free(&v), tensor_free(&one);
            tensor_free(&back), tensor_free(&narrow);
            attn_cache_destroy(cache);
        }
}

/* A long row of several pieces. */
static void test_wide_rows(void **state)
{
    (void)state;
    enum { WIDE = 1000 };
    for (size_t t = 0; t < COUNT(cache_dtypes); t++) {
        const attn_cache_options o = cache_options(cache_dtypes[t], 1, 1, WIDE, 1, 5, 0, 0);
        attn_cache *cache = cache_new(&o);
        attn_tensor k = tensor_new_filled(ATTN_F64, 1, 1, 5, WIDE, 2);
        attn_tensor v = tensor_new_filled(ATTN_F64, 1, 1, 5, 1, 0);
        attn_tensor back = tensor_new(ATTN_F32, 1, 1, 5, WIDE, 2);
        assert_int_equal(append_rows(cache, &k, &v, 0, 0, 5, NULL), ATTN_OK);
        assert_int_equal(attn_cache_read(cache, 0, 0, &back, NULL, NULL), ATTN_OK);
        for (int64_t i = 0; i < 5; i++)
            for (int64_t d = 0; d < WIDE; d++) {
                describe_case("%s, row %d, column %d", attn_dtype_name(cache_dtypes[t]), (int)i,
                              (int)d);
                const double want = ref_get(&k, 0, 0, i, d), got = ref_get(&back, 0, 0, i, d);
                assert_near(got, want, <=, cache_dtypes[t] == ATTN_I8 ? 0.025 : 0.016);
            }
        tensor_free(&k), tensor_free(&v), tensor_free(&back);
        attn_cache_destroy(cache);
    }
}

static void test_read_errors(void **state)
{
    (void)state;
    const attn_cache_options o = usual(ATTN_BF16, 0);
    attn_cache *cache = cache_new(&o);
    attn_tensor k = tensor_new_filled(ATTN_F32, 1, HK, 9, D, 0);
    attn_tensor v = tensor_new_filled(ATTN_F32, 1, HK, 9, DV, 0);
    assert_int_equal(append_rows(cache, &k, &v, 0, 0, 9, NULL), ATTN_OK);
    attn_error err = {0};
    attn_tensor bad = k;
    bad.stride[3] = 0;
    expect_error(attn_cache_read(cache, 0, 0, &bad, &v, &err), &err, ATTN_ERR_STRIDE, "k", "share");
    bad = v, bad.dtype = ATTN_I8;
    expect_error(attn_cache_read(cache, 0, 0, &k, &bad, &err), &err, ATTN_ERR_DTYPE, "v", "i8");
    bad = v, bad.shape[2] = 8;
    expect_error(attn_cache_read(cache, 0, 0, &k, &bad, &err), &err, ATTN_ERR_SHAPE, "v", "9");
    expect_error(attn_cache_read(cache, 0, 1, &k, &v, &err), &err, ATTN_ERR_ARGUMENT, "first",
                 "first is 1 and 9 keys are read; sequence 0 has 9");
    expect_error(attn_cache_read(cache, 0, -1, NULL, NULL, &err), &err, ATTN_ERR_ARGUMENT, "first",
                 "-1");
    expect_error(attn_cache_read(cache, 0, INT64_MAX, &k, &v, &err), &err, ATTN_ERR_ARGUMENT,
                 "first", "9 keys");
    expect_error(attn_cache_read(cache, 7, 0, &k, &v, &err), &err, ATTN_ERR_ARGUMENT, "b", "7");
    expect_error(attn_cache_read(NULL, 0, 0, &k, &v, &err), &err, ATTN_ERR_ARGUMENT, "cache", "");
    assert_int_equal(attn_cache_read(cache, 0, 9, NULL, NULL, NULL), ATTN_OK);
    assert_int_equal(attn_cache_length(cache, -1), -1);
    assert_int_equal(attn_cache_length(cache, B), -1);
    assert_int_equal(attn_cache_length(NULL, 0), -1);
    assert_int_equal(attn_cache_bytes(NULL), 0);
    attn_cache_destroy(NULL);
    attn_cache_destroy(cache);
    tensor_free(&k), tensor_free(&v);
}

/* --------------------------------------------------------------------------------------- pages */

static void test_pages_are_shared_and_come_back(void **state)
{
    (void)state;
    attn_cache_options o = cache_options(ATTN_F32, 3, HK, D, DV, 1000, 64, 4);
    attn_cache *cache = cache_new(&o);
    attn_tensor k = tensor_new_filled(ATTN_F32, 3, HK, 256, D, 0);
    attn_tensor v = tensor_new_filled(ATTN_F32, 3, HK, 256, DV, 0);
    attn_error err = {0};
    assert_int_equal(append_rows(cache, &k, &v, 0, 0, 129, NULL), ATTN_OK); /* 3 pages */
    assert_int_equal(append_rows(cache, &k, &v, 1, 0, 1, NULL), ATTN_OK);   /* the last one */
    bytes before = content(cache);
    expect_error(append_rows(cache, &k, &v, 2, 0, 1, &err), &err, ATTN_ERR_FULL, "pages",
                 "pages is 4: 0 pages are free, but 1 more keys of sequence 2 need 1 pages");
    expect_error(append_rows(cache, &k, &v, 0, 129, 64, &err), &err, ATTN_ERR_FULL, "pages", "");
    bytes after = content(cache);
    expect_same_bytes(after, before, "a full pool");
    assert_int_equal(append_rows(cache, &k, &v, 0, 129, 63, NULL), ATTN_OK); /* its own page */
    assert_int_equal(attn_cache_truncate(cache, 0, 65, NULL), ATTN_OK);      /* one comes back */
    assert_int_equal(append_rows(cache, &k, &v, 2, 0, 64, NULL), ATTN_OK);
    assert_int_equal(append_rows(cache, &k, &v, 2, 64, 1, NULL), ATTN_ERR_FULL);
    assert_int_equal(attn_cache_truncate(cache, 0, 64, NULL), ATTN_OK);
    assert_int_equal(append_rows(cache, &k, &v, 2, 64, 1, NULL), ATTN_OK);
    assert_int_equal(attn_cache_truncate(cache, 0, 0, NULL), ATTN_OK);
    assert_int_equal(append_rows(cache, &k, &v, 0, 0, 64, NULL), ATTN_OK);

    /* What is there now is what a fresh cache would hold. */
    o.pages = 0;
    attn_cache *fresh = cache_new(&o);
    static const int64_t lengths[3] = {64, 1, 65};
    for (int64_t b = 0; b < 3; b++) {
        assert_int_equal(attn_cache_length(cache, b), lengths[b]);
        assert_int_equal(append_rows(fresh, &k, &v, b, 0, lengths[b], NULL), ATTN_OK);
    }
    bytes got = content(cache), want = content(fresh);
    expect_same_bytes(got, want, "after truncation");
    bytes_free(&before), bytes_free(&after), bytes_free(&got), bytes_free(&want);
    tensor_free(&k), tensor_free(&v);
    attn_cache_destroy(cache);
    attn_cache_destroy(fresh);
}

/* A random walk of appends and truncations against a plain record of what should be there. */
static void test_random_walk(void **state)
{
    (void)state;
    enum { STEPS = 3000, POOL = 9 };
    const attn_cache_options o = cache_options(ATTN_F16, B, HK, D, DV, MAX, 64, POOL);
    attn_cache *cache = cache_new(&o);
    attn_tensor k = tensor_new_filled(ATTN_F16, B, HK, MAX, D, 0);
    attn_tensor v = tensor_new_filled(ATTN_F16, B, HK, MAX, DV, 0);
    attn_tensor back = tensor_new(ATTN_F16, 1, HK, MAX, D, 0);
    int64_t length[B] = {0};
    int full = 0;
    for (int step = 0; step < STEPS; step++) {
        describe_case("step %d", step);
        const int64_t b = draw(0, B - 1), n = draw(0, draw(0, 3) ? 9 : 200);
        if (draw(0, 5) == 0) {
            length[b] = draw(0, length[b]);
            assert_int_equal(attn_cache_truncate(cache, b, length[b], NULL), ATTN_OK);
        } else {
            int64_t pages = 0;
            for (int64_t i = 0; i < B; i++)
                pages += (length[i] + (i == b ? n : 0) + 63) / 64;
            const bool fits = length[b] + n <= MAX && pages <= POOL;
            const int64_t from = fits ? length[b] : 0;
            assert_int_equal(append_rows(cache, &k, &v, b, from, n, NULL),
                             fits ? ATTN_OK : ATTN_ERR_FULL);
            length[b] += fits ? n : 0;
            full += !fits;
        }
        if (step % 50)
            continue;
        for (int64_t i = 0; i < B; i++) {
            attn_tensor rows = rows_of(back, 0, 0, length[i]);
            assert_int_equal(attn_cache_read(cache, i, 0, &rows, NULL, NULL), ATTN_OK);
            for (int64_t h = 0; h < HK; h++)
                for (int64_t j = 0; j < length[i]; j++)
                    for (int64_t d = 0; d < D; d++)
                        assert_number(ref_get(&rows, 0, h, j, d), ==, ref_get(&k, i, h, j, d));
        }
    }
    assert_in_range(full, STEPS / 20, STEPS / 2);
    tensor_free(&k), tensor_free(&v), tensor_free(&back);
    attn_cache_destroy(cache);
}

/* -------------------------------------------------------------------------------------- memory */

static long live, asked;
static bool refuse;

static void *allocate(void *user, size_t size, size_t alignment)
{
    assert_ptr_equal(user, &live);
    assert_in_range(alignment, 1, 64);
    asked++;
    if (refuse)
        return NULL;
    live += (long)size;
    char *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xFF, size);
    return memory;
}

static void release(void *user, void *memory, size_t size)
{
    assert_ptr_equal(user, &live);
    live -= (long)size;
    free(memory);
}

static void test_memory(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(cache_dtypes); t++)
        for (int64_t page = 0; page <= 128; page += 64) {
            describe_case("%s, pages of %d keys", attn_dtype_name(cache_dtypes[t]), (int)page);
            attn_cache_options o = usual(cache_dtypes[t], page);
            o.allocate = allocate, o.release = release, o.memory_user = &live;
            refuse = true;
            attn_cache *cache = (attn_cache *)&o;
            attn_error err = {0};
            expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_MEMORY, "",
                         "no memory");
            assert_null(cache);
            refuse = false;
            cache = cache_new(&o);
            assert_int_equal(live, attn_cache_bytes(cache));
            /* rows, rounded up to pages, and little else */
            const int64_t keys = (MAX + 127) / 128 * 128 * B * HK;
            const int64_t of_key =
                (int64_t)attn_dtype_size(o.dtype) * (D + DV) + (o.dtype == ATTN_I8 ? 8 : 0);
            assert_number(live, <=, keys * of_key + 2048);
            assert_number(live, >=, MAX * B * HK * of_key);
            attn_tensor k = tensor_new_filled(ATTN_F32, B, HK, MAX, D, 0);
            attn_tensor v = tensor_new_filled(ATTN_F32, B, HK, MAX, DV, 0);
            asked = 0;
            for (int64_t b = 0; b < B; b++)
                assert_int_equal(append_rows(cache, &k, &v, b, 0, MAX, NULL), ATTN_OK);
            assert_int_equal(attn_cache_truncate(cache, 0, 3, NULL), ATTN_OK);
            assert_int_equal(asked, 0);
            attn_cache_destroy(cache);
            assert_int_equal(live, 0);
            o.release = NULL;
            expect_error(attn_cache_create(&o, &cache, &err), &err, ATTN_ERR_ARGUMENT, "options",
                         "both or neither");
            tensor_free(&k), tensor_free(&v);
        }
}

static void test_sizes_of_zero(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(cache_dtypes); t++)
        for (int zero = 0; zero < 5; zero++)
            for (int64_t page = 0; page <= 64; page += 64) {
                describe_case("%s, size %d is 0, pages of %d keys",
                              attn_dtype_name(cache_dtypes[t]), zero, (int)page);
                const attn_cache_options o =
                    cache_options(cache_dtypes[t], zero == 0 ? 0 : 2, zero == 1 ? 0 : 2,
                                  zero == 2 ? 0 : 5, zero == 3 ? 0 : 6, zero == 4 ? 0 : 70, page,
                                  0);
                attn_cache *cache = cache_new(&o);
                static const float x[2 * 70 * 6];
                const attn_tensor k = attn_bhtd(x, ATTN_F32, 1, o.Hk, 66, o.D);
                const attn_tensor v = attn_bhtd(x, ATTN_F32, 1, o.Hk, 66, o.Dv);
                assert_int_equal(attn_cache_append(cache, 0, &k, &v, NULL),
                                 zero == 0   ? ATTN_ERR_ARGUMENT
                                 : zero == 4 ? ATTN_ERR_FULL
                                             : ATTN_OK);
                assert_int_equal(attn_cache_length(cache, 0), zero == 0 ? -1 : zero == 4 ? 0 : 66);
                if (zero > 0)
                    assert_int_equal(attn_cache_truncate(cache, 0, 0, NULL), ATTN_OK);
                bytes saved = content(cache);
                bytes_free(&saved);
                attn_cache_destroy(cache);
            }
}

/* The caller's rounding mode is not used, and not changed. */
static void test_floating_mode(void **state)
{
    (void)state;
    attn_tensor k = tensor_new_filled(ATTN_F64, B, HK, MAX, D, 0);
    attn_tensor v = tensor_new_filled(ATTN_F64, B, HK, MAX, DV, 0);
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (size_t t = 0; t < COUNT(cache_dtypes); t++) {
        bytes want = {0};
        for (size_t m = 0; m < COUNT(modes); m++) {
            describe_case("%s, rounding mode %d", attn_dtype_name(cache_dtypes[t]), modes[m]);
            const attn_cache_options o = usual(cache_dtypes[t], 0);
            attn_cache *cache = cache_new(&o);
            assert_int_equal(fesetround(modes[m]), 0);
            feclearexcept(FE_ALL_EXCEPT);
            const attn_status status = append_rows(cache, &k, &v, 0, 0, 10, NULL);
            const int mode = fegetround(), raised = fetestexcept(FE_ALL_EXCEPT);
            fesetround(FE_TONEAREST);
            assert_int_equal(status, ATTN_OK);
            assert_int_equal(mode, modes[m]);
            assert_int_equal(raised, 0);
            bytes got = content(cache);
            if (m == 0)
                want = got;
            expect_same_bytes(got, want, "rounding mode");
            if (m > 0)
                bytes_free(&got);
            attn_cache_destroy(cache);
        }
        bytes_free(&want);
    }
    tensor_free(&k), tensor_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_errors),
        cmocka_unit_test(test_options_errors),
        cmocka_unit_test(test_append_errors),
        cmocka_unit_test(test_cuts_and_pages_do_not_matter),
        cmocka_unit_test(test_rows_are_rounded_once),
        cmocka_unit_test(test_wide_rows),
        cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_pages_are_shared_and_come_back),
        cmocka_unit_test(test_random_walk),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_sizes_of_zero),
        cmocka_unit_test(test_floating_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
