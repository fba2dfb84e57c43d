/* Readers of a cache may overlap: attention, plans, read, save and length in many threads.
 *
 * labels: threads
 *
 * Also tests long caches: attention by up to 16 threads has the bits of plain tensors, scores of
 * each stage included. */
#include <math.h>
#include <pthread.h>

#include "cache_testing.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { REPEATS = 2, LONGEST = 1500 };
#else
enum { REPEATS = 10, LONGEST = 4000 };
#endif

enum { B = 2, H = 4, HK = 2, D = 40, DV = 24, T = 3 };

/* A cache, its rows as plain tensors, and queries. */
typedef struct problem {
    attn_dtype stored, dtype; /* dtype: of q and of the plain rows */
    int64_t lengths[B], S;
    attn_cache *cache;
    attn_tensor q, k, v;
} problem;

static void make(problem *p, attn_dtype stored, int64_t longest, bool equal, int64_t page)
{
    p->stored = stored;
    p->dtype = stored == ATTN_I8 ? ATTN_F32 : stored;
    p->S = longest;
    p->lengths[0] = longest, p->lengths[1] = equal ? longest : longest / 3;
    const attn_cache_options o = cache_options(stored, B, HK, D, DV, longest, page, 0);
    p->cache = cache_new(&o);
    p->q = tensor_new_filled(p->dtype, B, H, T, D, 0);
    p->k = tensor_new_filled(p->dtype, B, HK, longest, D, 0);
    p->v = tensor_new_filled(p->dtype, B, HK, longest, DV, 0);
    for (int64_t b = 0; b < B; b++) {
        const attn_tensor k = rows_of(p->k, b, 0, p->lengths[b]);
        const attn_tensor v = rows_of(p->v, b, 0, p->lengths[b]);
        assert_int_equal(append_rows(p->cache, &p->k, &p->v, b, 0, p->lengths[b], NULL), ATTN_OK);
        assert_int_equal(attn_cache_read(p->cache, b, 0, &k, &v, NULL), ATTN_OK);
    }
}

static void drop(problem *p)
{
    attn_cache_destroy(p->cache);
    tensor_free(&p->q), tensor_free(&p->k), tensor_free(&p->v);
}

/* ---------------------------------------------------------------------------------- long caches */

/* out, lse and the scores of a stage as bytes. */
static bytes attend(attn_context *ctx, const problem *p, bool cached, attn_stage stage)
{
    attn_tensor out = tensor_new(ATTN_F32, B, H, T, DV, 0),
                lse = tensor_new(ATTN_F64, B, H, T, 1, 0);
    attn_tensor scores = tensor_new(ATTN_F32, B, H, T, p->S, 0);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = p->q, a.out = out, a.lse = &lse, a.scores = &scores, a.scores_stage = stage;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    a.softcap = 30;
    if (cached)
        a.cache = p->cache;
    else
        a.k = p->k, a.v = p->v, a.key_lengths = p->lengths;
    attn_error err = {0};
    if (attn_sdpa_forward(ctx, &a, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    bytes all = {0};
    put(&all, out.data, sizeof(float) * B * H * T * DV);
    put(&all, lse.data, sizeof(double) * B * H * T);
    for (int64_t row = 0; row < B * H * T; row++) /* of keys that are there */
        put(&all, (const float *)scores.data + row * p->S,
            sizeof(float) * (size_t)p->lengths[row / (H * T)]);
    tensor_free(&out), tensor_free(&lse), tensor_free(&scores);
    return all;
}

static void expect_plain_bits(const problem *p, const char *isa, int threads, attn_stage first)
{
    attn_context *one = context(isa, 1), *ctx = context(isa, threads);
    for (attn_stage stage = first; stage <= ATTN_STAGE_WEIGHTS; stage++) {
        bytes want = attend(one, p, false, stage), got = attend(ctx, p, true, stage);
        expect_same_bytes(got, want, attn_dtype_name(p->stored));
        bytes_free(&want), bytes_free(&got);
    }
    attn_context_destroy(ctx), attn_context_destroy(one);
}

/* Stages of every pair, RAW and SOFTCAP, need sequences of equal lengths. */
static void test_long_caches(void **state)
{
    (void)state;
    static const int counts[] = {1, 3, 8, 16};
    for (size_t n = 0; n < 2 * COUNT(cache_dtypes); n++) {
        const bool equal = n >= COUNT(cache_dtypes);
        problem p;
        make(&p, cache_dtypes[n % COUNT(cache_dtypes)], LONGEST - 37 * (int64_t)n, equal,
             n % 2 ? 64 : 0);
        for (int isa = 0; attn_isa(isa).name; isa++)
            for (size_t t = 0; attn_isa(isa).usable && t < COUNT(counts); t++)
                expect_plain_bits(&p, attn_isa(isa).name, counts[t],
                                  equal ? ATTN_STAGE_RAW : ATTN_STAGE_BIASED);
        drop(&p);
    }
}

/* ------------------------------------------------------------------------- all readers at once */

/* What a reader of this kind sees of the cache. */
static bytes see(const problem *p, int kind)
{
    bytes all = {0};
    if (kind == 0)
        return attend(NULL, p, true, ATTN_STAGE_WEIGHTS);
    if (kind == 1) {
        assert_int_equal(attn_cache_save(p->cache, put_bytes, &all, NULL), ATTN_OK);
    } else if (kind == 2) {
        attn_tensor k = tensor_new(ATTN_F64, 1, HK, p->lengths[0] - 5, D, 0);
        attn_tensor v = tensor_new(ATTN_F32, 1, HK, p->lengths[0] - 5, DV, 0);
        assert_int_equal(attn_cache_read(p->cache, 0, 5, &k, &v, NULL), ATTN_OK);
        put(&all, k.data, sizeof(double) * (size_t)check_count(&k));
        put(&all, v.data, sizeof(float) * (size_t)check_count(&v));
        tensor_free(&k), tensor_free(&v);
    } else {
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        attn_plan_info info = {.struct_size = sizeof info};
        a.q = a.out = p->q;
        a.out.shape[3] = DV, a.out.stride[2] = DV, a.cache = p->cache;
        assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), ATTN_OK);
        const int64_t seen[] = {attn_cache_length(p->cache, 0), attn_cache_length(p->cache, 1),
                                (int64_t)attn_cache_bytes(p->cache), info.tasks,
                                (int64_t)info.scratch_bytes};
        put(&all, seen, sizeof seen);
    }
    return all;
}

typedef struct reader {
    const problem *p;
    int kind, same;
    const bytes *want;
} reader;

static void *read_often(void *arg)
{
    reader *r = arg;
    for (int i = 0; i < REPEATS; i++) {
        bytes got = see(r->p, r->kind);
        r->same += got.size == r->want->size && memcmp(got.data, r->want->data, got.size) == 0;
        bytes_free(&got);
    }
    return NULL;
}

static void test_all_readers_at_once(void **state)
{
    (void)state;
    enum { KINDS = 4, READERS = 8 };
    for (size_t n = 0; n < COUNT(cache_dtypes); n++) {
        describe_case("%s", attn_dtype_name(cache_dtypes[n]));
        problem p;
        bytes want[KINDS];
        pthread_t threads[READERS];
        reader readers[READERS];
        make(&p, cache_dtypes[n], 300, false, n % 2 ? 0 : 128);
        for (int i = 0; i < KINDS; i++)
            want[i] = see(&p, i);
        for (int i = 0; i < READERS; i++) {
            readers[i] = (reader){&p, i % KINDS, 0, &want[i % KINDS]};
            assert_int_equal(pthread_create(&threads[i], NULL, read_often, &readers[i]), 0);
        }
        for (int i = 0; i < READERS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(readers[i].same, REPEATS);
        }
        for (int i = 0; i < KINDS; i++)
            bytes_free(&want[i]);
        drop(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_caches),
        cmocka_unit_test(test_all_readers_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
