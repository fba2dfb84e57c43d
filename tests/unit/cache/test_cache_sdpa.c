/* Attention from a cache has the bits of attention from plain tensors of the stored rows.
 *
 * labels: threads slow
 *
 * This holds for every layout and history of the cache, on every instruction set. Slots that are
 * not in a sequence never influence a result, and invalid combinations of arguments are refused. */
#include <math.h>
#include <pthread.h>

#include "cache_testing.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(EMULATED)
enum { ROUNDS = 20 };
#else
enum { ROUNDS = 150 };
#endif

/* --------------------------------------------------------------------- a cache with a history */

/* Fills sequence b with the first `length` rows of k and v, in random cuts, with detours: rows of
 * NaN that are cut off again, and stay behind in its pages or in those of others. */
static void fill(attn_cache *cache, const attn_tensor *k, const attn_tensor *v,
                 const attn_tensor *nan_k, const attn_tensor *nan_v, int64_t b, int64_t length)
{
    for (int64_t done = 0; done < length;) {
        const int64_t n = draw(0, 3) ? draw(1, length - done) : 1;
        const int64_t junk = draw(0, 90);
        if (draw(0, 2) == 0 &&
            append_rows(cache, nan_k, nan_v, b, 0, junk < 80 ? junk : 0, NULL) == ATTN_OK)
            assert_int_equal(attn_cache_truncate(cache, b, done, NULL), ATTN_OK);
        attn_error err = {0};
        if (append_rows(cache, k, v, b, done, n, &err) != ATTN_OK)
            fail_msg("%s", err.message);
        done += n;
    }
    if (append_rows(cache, nan_k, nan_v, b, 0, draw(0, 80), NULL) == ATTN_OK)
        assert_int_equal(attn_cache_truncate(cache, b, length, NULL), ATTN_OK);
}

typedef struct setup {
    int64_t B, H, Hk, T, S, D, Dv;
    attn_dtype dtype, stored;
    int64_t lengths[4], shorter[4];
    attn_tensor q, k, v, out, lse, scores; /* k, v: plain, NaN past the lengths */
    attn_tensor mask;
    attn_cache *cache;
    float slopes[8], sinks[8];
    attn_sdpa_args plain, cached;
} setup;

static void fill_nan(const attn_tensor *t)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t i = 0; i < t->shape[2]; i++)
                for (int64_t j = 0; j < t->shape[3]; j++)
                    check_store(t, b, h, i, j, (double)NAN);
}

static void make_sizes(setup *s, size_t round)
{
    static const int64_t sizes[] = {1, 8, 16, 20, 40, 63, 64, 65, 80, 128};
    static const int64_t widths[] = {0, 1, 13, 64, 100};
    static const attn_dtype of_q[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    memset(s, 0, sizeof *s);
    s->stored = cache_dtypes[round % COUNT(cache_dtypes)];
    s->dtype = s->stored == ATTN_I8 ? of_q[draw(0, 2)] : s->stored;
    s->B = draw(1, 4);
    s->Hk = draw(1, 3);
    s->H = s->Hk * (draw(0, 1) ? draw(1, 2) : 8 / s->Hk);
    s->H = s->H > 8 ? s->Hk : s->H;
    s->T = draw(0, 3) ? draw(1, 16) : draw(1, 90);
    s->D = sizes[draw(0, COUNT(sizes) - 1)];
    s->Dv = draw(0, 1) ? s->D : widths[draw(0, COUNT(widths) - 1)];
    for (int64_t b = 0; b < s->B; b++) {
        s->lengths[b] = draw(0, 5) ? draw(1, draw(0, 1) ? 100 : 700) : 64 * draw(0, 5);
        s->S = s->lengths[b] > s->S ? s->lengths[b] : s->S;
    }
}

/* The plain tensors: the rows themselves, or for i8 what the cache makes of them, as float. */
static void make_tensors(setup *s)
{
    static const int64_t pages[] = {0, 64, 128, 192, 320};
    const attn_dtype exact = s->stored == ATTN_I8 ? ATTN_F32 : s->stored;
    attn_tensor k = tensor_new_filled(exact, s->B, s->Hk, s->S, s->D, (int)draw(0, 2));
    attn_tensor v = tensor_new_filled(exact, s->B, s->Hk, s->S, s->Dv, (int)draw(0, 2));
    const bool levels = draw(0, 3) == 0;
    if (levels)
        check_store_key_levels(&k, (uint64_t)draw(0, 1 << 20));
    attn_tensor nan_k = tensor_new(exact, s->B, s->Hk, 80, s->D, 0);
    attn_tensor nan_v = tensor_new(exact, s->B, s->Hk, 80, s->Dv, 0);
    fill_nan(&nan_k), fill_nan(&nan_v);
    const attn_cache_options o =
        cache_options(s->stored, s->B, s->Hk, s->D, s->Dv, s->S + draw(0, 100),
                      pages[draw(0, COUNT(pages) - 1)], 0);
    s->cache = cache_new(&o);
    for (int64_t b = 0; b < s->B; b++)
        fill(s->cache, &k, &v, &nan_k, &nan_v, b, s->lengths[b]);
    s->k = tensor_new(exact, s->B, s->Hk, s->S, s->D, 0);
    s->v = tensor_new(exact, s->B, s->Hk, s->S, s->Dv, 0);
    fill_nan(&s->k), fill_nan(&s->v);
    for (int64_t b = 0; b < s->B; b++) {
        const attn_tensor to_k = rows_of(s->k, b, 0, s->lengths[b]);
        const attn_tensor to_v = rows_of(s->v, b, 0, s->lengths[b]);
        assert_int_equal(attn_cache_read(s->cache, b, 0, &to_k, &to_v, NULL), ATTN_OK);
    }
    tensor_free(&k), tensor_free(&v), tensor_free(&nan_k), tensor_free(&nan_v);
    s->q = tensor_new_filled(s->dtype, s->B, s->H, s->T, s->D, (int)draw(0, 2));
    if (levels)
        check_store_query_levels(&s->q);
    s->out = tensor_new(draw(0, 1) ? s->dtype : ATTN_F32, s->B, s->H, s->T, s->Dv, 0);
    s->lse = tensor_new(ATTN_F64, s->B, s->H, s->T, 1, 0);
    s->scores = tensor_new(ATTN_F32, s->B, s->H, s->T, s->S, 0);
    s->mask = tensor_new(draw(0, 1) ? ATTN_BOOL : ATTN_F32, 1, 1, s->T, s->S, 0);
    const int64_t hidden_blocks = draw(0, 2) == 0 ? draw(0, 255) : -1; /* each a bit; -1: keys */
    for (int64_t i = 0; i < s->T; i++)
        for (int64_t j = 0; j < s->S; j++)
            check_store(&s->mask, 0, 0, i, j,
                        (double)(hidden_blocks < 0 ? draw(0, 1) : hidden_blocks >> j / 64 % 8 & 1));
}

static void make_args(setup *s)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = s->q, a.k = s->k, a.v = s->v, a.out = s->out;
    a.lse = &s->lse;
    a.causal = draw(0, 3) ? ATTN_CAUSAL_BOTTOM_RIGHT : (attn_causal)draw(0, 2);
    if (draw(0, 3) == 0)
        a.window_left = draw(0, 200);
    if (a.causal == ATTN_CAUSAL_NONE)
        a.diagonal = (attn_diagonal)draw(0, 1);
    a.alibi_form = (attn_alibi_form)draw(0, 1);
    for (int h = 0; h < 8; h++)
        s->slopes[h] = (float)draw_normal() / 100, s->sinks[h] = (float)draw_normal();
    a.alibi_slopes = draw(0, 4) ? NULL : s->slopes;
    a.sink_logits = draw(0, 4) ? NULL : s->sinks;
    a.softcap = draw(0, 4) ? 0 : 5;
    a.dropout = draw(0, 4) ? 0 : 0.25;
    a.mask = draw(0, 4) ? NULL : &s->mask;
    a.scores = draw(0, 2) ? NULL : &s->scores;
    a.scores_stage = draw(0, 1) ? ATTN_STAGE_BIASED : ATTN_STAGE_WEIGHTS;
    a.precision = draw(0, 4) ? ATTN_PRECISION_DEFAULT : ATTN_PRECISION_ACCURATE;
    s->plain = s->cached = a;
    s->plain.key_lengths = s->lengths;
    s->cached.cache = s->cache;
    s->cached.k = s->cached.v = (attn_tensor){0};
    if (draw(0, 3) == 0) { /* fewer keys than are there */
        for (int64_t b = 0; b < s->B; b++)
            s->shorter[b] = draw(0, s->lengths[b]);
        s->plain.key_lengths = s->cached.key_lengths = s->shorter;
    }
}

/* i8 beside q of 16 bits: the plain call is of floats. */
static attn_tensor widen_q(setup *s)
{
    attn_tensor wide = tensor_new(ATTN_F32, s->B, s->H, s->T, s->D, 0);
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t h = 0; h < s->H; h++)
            for (int64_t i = 0; i < s->T; i++)
                for (int64_t d = 0; d < s->D; d++)
                    check_store(&wide, b, h, i, d, ref_get(&s->q, b, h, i, d));
    return wide;
}

static void setup_free(setup *s)
{
    attn_tensor *all[] = {&s->q, &s->k, &s->v, &s->out, &s->lse, &s->scores, &s->mask};
    for (size_t i = 0; i < COUNT(all); i++)
        tensor_free(all[i]);
    attn_cache_destroy(s->cache);
}

/* -------------------------------------------------------------------------------- equal bits */

static bytes run(attn_context *ctx, const setup *s, const attn_sdpa_args *args)
{
    const attn_tensor *outputs[] = {&args->out, args->lse, args->scores};
    bytes all = {0};
    for (int pass = 0; pass < 2; pass++) {
        attn_error err = {0};
        if (pass == 1 && attn_sdpa_forward(ctx, args, &err) != ATTN_OK)
            fail_msg("%s", err.message);
        for (size_t i = 0; i < COUNT(outputs); i++) {
            const attn_tensor *t = outputs[i];
            const int64_t n = t ? s->B * s->H * s->T * t->shape[3] : 0;
            if (pass == 0 && n > 0)
                memset(t->data, 0xEE, (size_t)n * attn_dtype_size(t->dtype));
            else if (n > 0)
                put(&all, t->data, (size_t)n * attn_dtype_size(t->dtype));
        }
    }
    return all;
}

static void test_same_bits_as_plain_tensors(void **state)
{
    (void)state;
    int finite = 0;
    for (int isa = 0; attn_isa(isa).name; isa++) {
        if (!attn_isa(isa).usable)
            continue;
        attn_context *one = context(attn_isa(isa).name, 1), *three = context(attn_isa(isa).name, 3);
        for (size_t round = 0; round < ROUNDS; round++) {
            describe_case("%s, round %zu", attn_isa(isa).name, round);
            setup s;
            make_sizes(&s, round);
            make_tensors(&s);
            make_args(&s);
            attn_tensor wide = widen_q(&s);
            if (s.stored == ATTN_I8) {
                s.plain.q = wide;
                if (s.out.dtype != ATTN_F32) { /* rounded to 16 bits a call of floats cannot be */
                    s.plain.out.dtype = s.cached.out.dtype = ATTN_F32;
                    s.plain.out.data = s.cached.out.data =
                        realloc(s.out.data,
                                (size_t)(s.B * s.H * s.T * s.Dv + 2) * 2 * sizeof(float));
                    s.out = s.plain.out;
                }
            }
            bytes want = run(one, &s, &s.plain);
            bytes got = run(one, &s, &s.cached);
            expect_same_bytes(got, want, attn_dtype_name(s.stored));
            bytes_free(&got);
            got = run(three, &s, &s.cached);
            expect_same_bytes(got, want, "three threads");
            for (int64_t i = 0; i < s.B * s.H * s.T; i++) {
                const double x = ((const double *)s.lse.data)[i];
                assert_true(x == x);
                finite += isfinite(x) ? 1 : 0;
            }
            bytes_free(&got), bytes_free(&want);
            tensor_free(&wide);
            setup_free(&s);
        }
        attn_context_destroy(one);
        attn_context_destroy(three);
    }
    assert_number(finite, >, 10 * ROUNDS); /* the rows that saw something */
}

/* Token by token from a growing cache, and all at once from plain tensors: the same rows. */
static void test_decoding_is_prefill(void **state)
{
    (void)state;
    enum { B = 2, H = 4, HK = 2, D = 24, S = 150 };
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (size_t t = 0; t < 4; t++) {
            if (!attn_isa(isa).usable)
                continue;
            attn_context *ctx = context(attn_isa(isa).name, 2);
            const attn_dtype dtype = cache_dtypes[t];
            attn_tensor q = tensor_new_filled(dtype, B, H, S, D, 1);
            attn_tensor k = tensor_new_filled(dtype, B, HK, S, D, 1);
            attn_tensor v = tensor_new_filled(dtype, B, HK, S, D, 0);
            attn_tensor all = tensor_new(dtype, B, H, S, D, 0),
                        one = tensor_new(dtype, B, H, 5, D, 0);
            attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
            a.q = q, a.k = k, a.v = v, a.out = all;
            a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
            assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
            const attn_cache_options o = cache_options(dtype, B, HK, D, D, S, 64, 0);
            attn_cache *cache = cache_new(&o);
            a.cache = cache;
            a.k = a.v = (attn_tensor){0};
            for (int64_t i = 0; i < S;) {
                describe_case("%s, %s, from query %d", attn_isa(isa).name, attn_dtype_name(dtype),
                              (int)i);
                const int64_t n = i + 5 <= S ? draw(1, 5) : S - i;
                for (int64_t b = 0; b < B; b++)
                    assert_int_equal(append_rows(cache, &k, &v, b, i, n, NULL), ATTN_OK);
                a.q = rows_of(q, 0, i, n), a.q.shape[0] = B;
                a.out = one, a.out.shape[2] = n;
                assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
                for (int64_t b = 0; b < B; b++)
                    for (int64_t h = 0; h < H; h++)
                        for (int64_t e = 0; e < n * D; e++)
                            assert_number(ref_get(&a.out, b, h, e / D, e % D), ==,
                                          ref_get(&all, b, h, i + e / D, e % D));
                i += n;
            }
            attn_cache_destroy(cache);
            attn_context_destroy(ctx);
            tensor_free(&q), tensor_free(&k), tensor_free(&v), tensor_free(&all), tensor_free(&one);
        }
}

/* A window may begin and a sequence end anywhere in a group of keys that are stored turned, of one
 * page or at the end of one; pads of an odd D and lanes without a key are of other memory: NaN. */
static void *nan_memory(void *user, size_t size, size_t alignment)
{
    (void)user, (void)alignment;
    char *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xFF, size);
    return memory;
}

static void free_memory(void *user, void *memory, size_t size)
{
    (void)user, (void)size;
    free(memory);
}

static void test_windows_begin_anywhere(void **state)
{
    (void)state;
    enum { S = 150, D = 5, T = 2, STEP = 7 };
    static const attn_dtype interleaved[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    for (int isa = 0; attn_isa(isa).name; isa++) {
        if (!attn_isa(isa).usable)
            continue;
        attn_context *ctx = context(attn_isa(isa).name, 1);
        for (size_t t = 0; t < COUNT(interleaved); t++) {
            attn_tensor q = tensor_new_filled(interleaved[t], 1, 1, T, D, 0);
            attn_tensor k = tensor_new_filled(interleaved[t], 1, 1, S, D, 0);
            attn_tensor v = tensor_new_filled(interleaved[t], 1, 1, S, D, 0);
            attn_tensor want = tensor_new(ATTN_F32, 1, 1, T, D, 0);
            attn_tensor got = tensor_new(ATTN_F32, 1, 1, T, D, 0);
            attn_cache_options o = cache_options(interleaved[t], 1, 1, D, D, S, 64, 0);
            o.allocate = nan_memory, o.release = free_memory;
            attn_cache *cache = cache_new(&o);
            for (int64_t length = 0; length < S;) {
                const int64_t n = length + STEP < S ? STEP : S - length;
                assert_int_equal(append_rows(cache, &k, &v, 0, length, n, NULL), ATTN_OK);
                length += n;
                for (int64_t left = 0; left < length && left < 70; left++) {
                    describe_case("%s, %s, %d keys, window of %d", attn_isa(isa).name,
                                  attn_dtype_name(interleaved[t]), (int)length, (int)left);
                    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
                    a.q = rows_of(q, 0, 0, 1 + left % T);
                    a.out = rows_of(want, 0, 0, a.q.shape[2]);
                    a.k = rows_of(k, 0, 0, length), a.v = rows_of(v, 0, 0, length);
                    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
                    a.window_left = left;
                    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
                    a.k = a.v = (attn_tensor){0};
                    a.cache = cache;
                    a.out.data = got.data;
                    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
                    const size_t n_out = (size_t)a.q.shape[2] * D * sizeof(float);
                    assert_same_array((const float *)got.data, (const float *)want.data, n_out);
                    assert_true(isfinite(*(const float *)got.data));
                }
            }
            attn_cache_destroy(cache);
            tensor_free(&q), tensor_free(&k), tensor_free(&v);
            tensor_free(&want), tensor_free(&got);
        }
        attn_context_destroy(ctx);
    }
}

/* ----------------------------------------------------------------------------- many readers */

typedef struct reader {
    const setup *s;
    bytes want;
    int same;
} reader;

static void *read_cache(void *arg)
{
    reader *r = arg;
    setup own = *r->s;
    own.out = tensor_new(own.out.dtype, own.B, own.H, own.T, own.Dv, 0);
    own.lse = tensor_new(ATTN_F64, own.B, own.H, own.T, 1, 0);
    own.cached.out = own.out, own.cached.lse = &own.lse;
    for (int i = 0; i < 20; i++) {
        bytes got = run(NULL, &own, &own.cached);
        r->same += got.size == r->want.size && memcmp(got.data, r->want.data, got.size) == 0;
        bytes_free(&got);
    }
    tensor_free(&own.out), tensor_free(&own.lse);
    return NULL;
}

static void test_many_readers(void **state)
{
    (void)state;
    setup s;
    make_sizes(&s, 4); /* i8 */
    make_tensors(&s);
    make_args(&s);
    s.plain.scores = s.cached.scores = NULL;
    reader readers[4];
    pthread_t threads[4];
    bytes want = run(NULL, &s, &s.cached);
    for (int i = 0; i < 4; i++) {
        readers[i] = (reader){&s, want, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, read_cache, &readers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].same, 20);
    }
    bytes_free(&want);
    setup_free(&s);
}

/* ----------------------------------------------------------------------------------- errors */

enum { B = 2, H = 2, HK = 1, T = 3, D = 8, DV = 4 };

static float q[B * H * T * D], rows[B * HK * 20 * D], out[B * H * T * DV], scores[B * H * T * 12];

/* 12 and 7 keys. */
static attn_cache *small_cache(attn_dtype dtype)
{
    const attn_cache_options o = cache_options(dtype, B, HK, D, DV, 20, 64, 0);
    attn_cache *cache = cache_new(&o);
    const attn_tensor k = attn_bhtd(rows, ATTN_F32, B, HK, 20, D);
    const attn_tensor v = attn_bhtd(rows, ATTN_F32, B, HK, 20, DV);
    assert_int_equal(append_rows(cache, &k, &v, 0, 0, 12, NULL), ATTN_OK);
    assert_int_equal(append_rows(cache, &k, &v, 1, 0, 7, NULL), ATTN_OK);
    return cache;
}

static attn_sdpa_args small_args(const attn_cache *cache)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, B, H, T, D), a.out = attn_bhtd(out, ATTN_F32, B, H, T, DV);
    a.cache = cache;
    return a;
}

static void test_errors(void **state)
{
    (void)state;
    attn_cache *cache = small_cache(ATTN_F32), *i8 = small_cache(ATTN_I8);
    const attn_sdpa_args good = small_args(cache);
    const attn_tensor k = attn_bhtd(rows, ATTN_F32, B, HK, 12, D);
    const attn_tensor v = attn_bhtd(rows, ATTN_F32, B, HK, 12, DV);
    attn_sdpa_args a;
    assert_int_equal(attn_sdpa_forward(NULL, &good, NULL), ATTN_OK);
    attn_error err = {0};
    attn_tensor t = attn_bhtd(scores, ATTN_F32, B, H, T, 12);
    int64_t lengths[B] = {12, 7}, cu[2] = {0, T};
    memset(out, 0x77, sizeof out);
#define REFUSED(spoil, status, argument, part)                                                     \
    do {                                                                                           \
        a = good;                                                                                  \
        spoil;                                                                                     \
        expect_error(attn_sdpa_forward(NULL, &a, &err), &err, status, argument, part);             \
        assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), status);                               \
    } while (0)
    REFUSED(a.k = k, ATTN_ERR_ARGUMENT, "k", "k.data is given with a cache; it must be NULL");
    REFUSED(a.v = v, ATTN_ERR_ARGUMENT, "v", "v.data is given with a cache; it must be NULL");
    REFUSED(a.q.shape[0] = 1; a.out.shape[0] = 1, ATTN_ERR_SHAPE, "q", "the cache has B=2");
    REFUSED(a.q.shape[3] = 7, ATTN_ERR_SHAPE, "k", "D=8");
    REFUSED(a.out.shape[3] = 3, ATTN_ERR_SHAPE, "out", "4");
    REFUSED(a.q.dtype = ATTN_F16, ATTN_ERR_DTYPE, "q", "q is f16 and the cache f32; q must be f32");
    REFUSED(a.q.dtype = ATTN_I8, ATTN_ERR_DTYPE, "q", "i8");
    REFUSED(a.cache = i8; a.q.dtype = a.out.dtype = ATTN_F64, ATTN_ERR_DTYPE, "q", "i8");
    REFUSED(a.cache = i8; a.q.dtype = ATTN_I8, ATTN_ERR_DTYPE, "q", "i8");
    REFUSED(a.cache = i8; a.out.dtype = ATTN_I8, ATTN_ERR_DTYPE, "out", "i8");
    REFUSED(a.cu_seqlens_q = a.cu_seqlens_k = cu;
            a.sequences = 1, ATTN_ERR_ARGUMENT, "cache", "cu_seqlens");
    REFUSED(a.key_lengths = lengths; lengths[1] = 8, ATTN_ERR_ARGUMENT, "key_lengths",
                                     "key_lengths[1] is 8; it must be 0 to 7, the keys of that "
                                     "sequence in the cache");
    REFUSED(a.key_lengths = lengths; lengths[1] = -1, ATTN_ERR_ARGUMENT, "key_lengths", "-1");
    REFUSED(a.scores = &t; a.scores_stage = ATTN_STAGE_RAW, ATTN_ERR_ARGUMENT, "scores_stage",
                           "sequence 1 has 7 keys and the longest has 12");
    REFUSED(a.scores = &t; a.scores_stage = ATTN_STAGE_SOFTCAP, ATTN_ERR_ARGUMENT, "scores_stage",
                           "ATTN_STAGE_BIASED");
    /* the first sequence is the shorter one */
    assert_int_equal(attn_cache_truncate(cache, 0, 6, NULL), ATTN_OK);
    REFUSED(t.shape[3] = 7; a.scores = &t; a.scores_stage = ATTN_STAGE_RAW, ATTN_ERR_ARGUMENT,
                                           "scores_stage",
                                           "sequence 0 has 6 keys and the longest has 7");
    REFUSED(t.shape[3] = 11; a.scores = &t;
            a.scores_stage = ATTN_STAGE_BIASED, ATTN_ERR_SHAPE, "scores", "7");
#undef REFUSED
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(((unsigned char *)out)[i], 0x77);
    attn_cache_destroy(cache), attn_cache_destroy(i8);
}

static void test_corners(void **state)
{
    (void)state;
    attn_cache *cache = small_cache(ATTN_F32);
    /* tensors of i8 belong to caches alone */
    attn_sdpa_args a = small_args(NULL);
    a.k = attn_bhtd(rows, ATTN_I8, B, HK, 12, D), a.v = attn_bhtd(rows, ATTN_I8, B, HK, 12, DV);
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_ERR_DTYPE);
    /* where every sequence has all keys, the stages of all pairs are there */
    assert_int_equal(attn_cache_truncate(cache, 0, 7, NULL), ATTN_OK);
    const attn_tensor t = attn_bhtd(scores, ATTN_F32, B, H, T, 7);
    a = small_args(cache), a.scores = &t;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    /* an old caller's struct ends before the cache */
    a.struct_size = offsetof(attn_sdpa_args, cache);
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_ERR_DTYPE); /* k has none */
    /* no keys at all: rows that see nothing */
    const attn_cache_options o = cache_options(ATTN_F32, B, HK, D, DV, 0, 0, 0);
    attn_cache *none = cache_new(&o);
    a = small_args(none);
    memset(out, 0x77, sizeof out);
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        assert_number(out[i], ==, 0);
    attn_cache_destroy(cache), attn_cache_destroy(none);
}

static void *take_soiled(void *user, size_t size, size_t alignment)
{
    (void)user;
    void *p = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (p)
        memset(p, 0x7f, size);
    return p;
}

static void give_back(void *user, void *memory, size_t size)
{
    (void)user, (void)size;
    free(memory);
}

/* A sequence without keys has no page, so that nothing of it may be looked for while the one before
 * it is read (a fault that the sanitizers see). */
static void test_empty_sequence_behind(void **state)
{
    (void)state;
    enum { KEYS = 5000, WIDTH = 128 }; /* with less, nothing is looked for */
    static float x[KEYS * WIDTH], result[2 * WIDTH];
    static uint16_t zeros[2 * WIDTH];
    for (int i = 0; i < KEYS * WIDTH; i++)
        x[i] = (float)(i % 7);
    for (int page_keys = 0; page_keys <= 64; page_keys += 64) {
        describe_case("pages of %d keys", page_keys);
        attn_cache_options o = cache_options(ATTN_BF16, 2, 1, WIDTH, WIDTH, KEYS, page_keys, 0);
        o.allocate = take_soiled, o.release = give_back;
        attn_cache *cache = cache_new(&o);
        const attn_tensor k = attn_bhtd(x, ATTN_F32, 1, 1, KEYS, WIDTH);
        assert_int_equal(append_rows(cache, &k, &k, 0, 0, KEYS, NULL), ATTN_OK);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = attn_bhtd(zeros, ATTN_BF16, 2, 1, 1, WIDTH);
        a.out = attn_bhtd(result, ATTN_F32, 2, 1, 1, WIDTH);
        a.cache = cache;
        assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
        for (int d = 0; d < WIDTH; d++) {
            float sum = 0; /* the mean */
            for (int j = 0; j < KEYS; j++)
                sum += x[j * WIDTH + d];
            assert_near(result[d], sum / KEYS, <, 1e-4f);
            assert_number(result[WIDTH + d], ==, 0);
        }
        attn_cache_destroy(cache);
    }
}

/* The plan counts the cache's own bytes, and only the keys that are there. */
static void test_plan(void **state)
{
    (void)state;
    static float many_q[2 * 32 * 16], many_out[2 * 32 * 16], many_rows[100 * 16];
    const attn_cache_options o = cache_options(ATTN_I8, 2, 1, 16, 16, 200, 64, 0);
    attn_cache *cache = cache_new(&o);
    const attn_tensor k = attn_bhtd(many_rows, ATTN_F32, 1, 1, 100, 16);
    assert_int_equal(append_rows(cache, &k, &k, 0, 0, 100, NULL), ATTN_OK);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(many_q, ATTN_F32, 2, 1, 32, 16);
    a.out = attn_bhtd(many_out, ATTN_F32, 2, 1, 32, 16);
    a.cache = cache;
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), ATTN_OK);
    assert_number(info.flop, ==, 2.0 * 32 * 100 * (16 + 16));
    assert_number(info.bytes, ==, 2 * sizeof many_q + 2.0 * 2 * 100 * 16);
    attn_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_plain_tensors),
        cmocka_unit_test(test_decoding_is_prefill),
        cmocka_unit_test(test_windows_begin_anywhere),
        cmocka_unit_test(test_many_readers),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_corners),
        cmocka_unit_test(test_empty_sequence_behind),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
