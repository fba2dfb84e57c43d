/* A head that shares its keys with others has the bits of a call of its own.
 *
 * Such heads are computed in groups, of which the last may have fewer heads: 71 heads on one, for
 * example. Tests one call, and keys in pieces.
 *
 * labels: threads */
#include <string.h>

#include "attn.h"
#include "core/internal.h"
#include "support/test.h"

enum { B = 2, HK = 2, SHARING = 71, T = 12, S = 300, D = 24, DV = 20 };

static double q[B * HK * SHARING * T * D], k[B * HK * S * D], v[B * HK * S * DV];
static double out[B * HK * SHARING * T * DV], alone[T * DV];
static float sinks[HK * SHARING];
static double lse[B * HK * SHARING * T], alone_lse[T];

typedef struct group_case {
    attn_context *ctx;
    attn_dtype dtype;
    int64_t sharing, T, D, Dv;
    bool rules; /* causal and sinks, instead of none */
} group_case;

/* n numbers of the type, multiples of 1/8 from -1 to 7/8. */
static void fill(void *to, attn_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
        const float x = (float)(int)(random_state >> 60) / 8 - 1;
        attni_store_row_f32((char *)to + i * attn_dtype_size(dtype), dtype, 1, &x, 1);
    }
}

static attn_sdpa_args whole(const group_case *c, attn_tensor *lse_tensor)
{
    const int64_t heads = HK * c->sharing;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, c->dtype, B, heads, c->T, c->D);
    a.k = attn_bhtd(k, c->dtype, B, HK, S, c->D);
    a.v = attn_bhtd(v, c->dtype, B, HK, S, c->Dv);
    a.out = attn_bhtd(out, c->dtype, B, heads, c->T, c->Dv);
    *lse_tensor = attn_bhtd(lse, ATTN_F64, B, heads, c->T, 1);
    a.lse = lse_tensor;
    if (c->rules) {
        a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        a.sink_logits = sinks;
    }
    return a;
}

static attn_tensor head(const attn_tensor *t, int64_t b, int64_t h)
{
    attn_tensor one = *t;
    const int64_t at = b * t->stride[0] + h * t->stride[1];
    one.data = (char *)t->data + at * (int64_t)attn_dtype_size(t->dtype);
    one.shape[0] = one.shape[1] = 1;
    return one;
}

/* The rows of one head of `out` and `lse` are those of a call with this head alone. */
static void expect_head(const group_case *c, const attn_sdpa_args *a, int64_t b, int64_t h)
{
    attn_sdpa_args one = *a;
    attn_tensor one_lse = attn_bhtd(alone_lse, ATTN_F64, 1, 1, c->T, 1);
    one.q = head(&a->q, b, h);
    one.k = head(&a->k, b, h / c->sharing);
    one.v = head(&a->v, b, h / c->sharing);
    one.out = attn_bhtd(alone, c->dtype, 1, 1, c->T, c->Dv);
    one.lse = &one_lse;
    one.sink_logits = c->rules ? sinks + h : NULL;
    assert_int_equal(attn_sdpa_forward(c->ctx, &one, NULL), ATTN_OK);
    const attn_tensor rows = head(&a->out, b, h);
    assert_same_array(rows.data, alone, (size_t)(c->T * c->Dv) * attn_dtype_size(c->dtype));
    assert_same_array(lse + (b * HK * c->sharing + h) * c->T, alone_lse,
                      (size_t)c->T * sizeof *lse);
}

static void expect_heads(const group_case *c, const attn_sdpa_args *a)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < HK * c->sharing; h++)
            expect_head(c, a, b, h);
}

static void in_pieces(const group_case *c)
{
    attn_tensor lse_tensor;
    attn_sdpa_args a = whole(c, &lse_tensor);
    const attn_tensor keys = a.k, values = a.v;
    attn_sdpa_state *state;
    a.k.data = a.v.data = NULL;
    memset(out, 0xff, sizeof out);
    assert_int_equal(attn_sdpa_begin(c->ctx, &a, NULL, &state, NULL), ATTN_OK);
    for (int64_t j = 0; j < S; j += 256) {
        attn_tensor piece_k = keys, piece_v = values;
        const int64_t size = (int64_t)attn_dtype_size(c->dtype);
        piece_k.data = (char *)keys.data + j * c->D * size;
        piece_v.data = (char *)values.data + j * c->Dv * size;
        piece_k.shape[2] = piece_v.shape[2] = S - j < 256 ? S - j : 256;
        assert_int_equal(attn_sdpa_feed(state, j, &piece_k, &piece_v, NULL), ATTN_OK);
    }
    assert_int_equal(attn_sdpa_finish(state, NULL), ATTN_OK);
    attn_sdpa_end(state);
    a.k = keys, a.v = values;
    expect_heads(c, &a);
}

static void expect_case(const group_case *c)
{
    attn_tensor lse_tensor;
    const attn_sdpa_args a = whole(c, &lse_tensor);
    memset(out, 0xff, sizeof out);
    assert_int_equal(attn_sdpa_forward(c->ctx, &a, NULL), ATTN_OK);
    expect_heads(c, &a);
    in_pieces(c);
}

/* Numbers of heads that no tile is a multiple of, and those that models have; so few queries that
 * heads share a tile on some instruction set, and so many that they do not. */
static void each_size(group_case c, const char *isa, int threads)
{
    static const int64_t queries[] = {1, 2, 5, 9, 12}, heads[] = {2, 3, 4, 5, 7, 9, 13, 17, 37, 71};
    const size_t step = getenv("ATTN_SANITIZED") ? 3 : 1; /* 2, 5, 13, 71: sanitizers are slow */
    for (size_t n = 0; n < sizeof queries / sizeof *queries; n++)
        for (size_t m = 0; m < sizeof heads / sizeof *heads; m += step) {
            c.sharing = heads[m];
            c.T = queries[n];
            c.rules = (c.sharing + c.T) % 2;
            c.D = c.sharing % 3 ? D : 1;
            c.Dv = c.sharing % 4 > 1 ? DV : 1;
            describe_case("%s, %s, %d threads, %d heads on one, T=%d D=%d Dv=%d", isa,
                          attn_dtype_name(c.dtype), threads, (int)c.sharing, (int)c.T, (int)c.D,
                          (int)c.Dv);
            expect_case(&c);
        }
}

static void test_each_head_alone(void **state)
{
    (void)state;
#ifdef ATTNI_AMX_EMULATED /* is slow */
    enum { types = 2, first = 3 };
#else
    enum { types = 4, first = 1 };
#endif
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16, ATTN_F64};
    fill(sinks, ATTN_F32, sizeof sinks / sizeof *sinks);
    for (int i = 0; attn_isa(i).name; i++)
        for (int threads = first; threads <= 3 && attn_isa(i).usable; threads += 2)
            for (int d = 0; d < types; d++) {
                group_case c = {.dtype = dtypes[d]};
                const attn_context_options o = {.struct_size = sizeof o,
                                                .threads = threads,
                                                .isa = attn_isa(i).name};
                fill(q, c.dtype, sizeof q / sizeof *q);
                fill(k, c.dtype, sizeof k / sizeof *k);
                fill(v, c.dtype, sizeof v / sizeof *v);
                assert_int_equal(attn_context_create(&o, &c.ctx, NULL), ATTN_OK);
                each_size(c, attn_isa(i).name, threads);
                attn_context_destroy(c.ctx);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_head_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
