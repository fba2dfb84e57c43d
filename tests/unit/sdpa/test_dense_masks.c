/* A dense mask gives the bits of the rule that it writes out.
 *
 * A window, or lengths of keys, is written out as bool in every shape that can hold it, and as 0
 * and -inf in every float type where the scale is a power of two, so that natural and log2 units
 * differ only by a constant. A bias also has the same effect in every type that holds it, repeated
 * or written out, by rows or columns. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "support/test.h"

enum { B = 2, H = 2, T = 150, S = 330, D = 16, OUT = B * H * T * D };

static const int64_t lengths[B] = {193, 64};
static float q[OUT], k[B * H * S * D], v[B * H * S * D];

static attn_sdpa_args plain(float *out)
{
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_bhtd(q, ATTN_F32, B, H, T, D);
    args.k = attn_bhtd(k, ATTN_F32, B, H, S, D);
    args.v = attn_bhtd(v, ATTN_F32, B, H, S, D);
    args.out = attn_bhtd(out, ATTN_F32, B, H, T, D);
    return args;
}

static void forward(attn_context *ctx, const attn_sdpa_args *args)
{
    attn_error error;
    if (attn_sdpa_forward(ctx, args, &error) != ATTN_OK)
        fail_msg("%s", error.message);
}

/* A value of the mask, exact in every type. */
static void put(char *to, attn_dtype dtype, double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const unsigned sign = bits >> 31, exponent = bits >> 23 & 0xff;
    const uint16_t bf16 = (uint16_t)(bits >> 16);
    const uint16_t f16 =
        (uint16_t)(sign << 15 | (exponent == 0xff ? 0x7c00
                                 : exponent == 0  ? 0
                                                  : (exponent - 112) << 10 | (bits >> 13 & 0x3ff)));
    const void *from = dtype == ATTN_F64    ? (const void *)&x
                       : dtype == ATTN_F32  ? (const void *)&f
                       : dtype == ATTN_BF16 ? (const void *)&bf16
                                            : (const void *)&f16;
    memcpy(to, from, attn_dtype_size(dtype));
}

typedef double value_of(int64_t b, int64_t i, int64_t j);

static double window(int64_t b, int64_t i, int64_t j)
{
    (void)b;
    return j >= i - 70 && j <= i + 40 ? 0 : -(double)INFINITY;
}
static double padding(int64_t b, int64_t i, int64_t j)
{
    (void)i;
    return j < lengths[b] ? 0 : -(double)INFINITY;
}
/* Not 0 in some blocks, 0 in others. */
static double bias(int64_t b, int64_t i, int64_t j)
{
    (void)b;
    return j % 200 < 100 ? 0 : (double)((i * 7 + j * 3) % 32) / 8 - 2;
}
static double bias_of_keys(int64_t b, int64_t i, int64_t j)
{
    (void)i;
    return bias(b, 3, j);
}

/* The mask [b,1,t,S]; with `turned`, its keys and not its queries lie t apart. Bools are true where
 * the value is 0, and not always 1. */
static attn_tensor make(char *memory, attn_dtype dtype, value_of *value, int64_t b, int64_t t,
                        bool turned)
{
    attn_tensor m = attn_bhtd(memory, dtype, b, 1, t, S);
    if (turned)
        m.stride[2] = 1, m.stride[3] = t;
    for (int64_t n = 0; n < b; n++)
        for (int64_t i = 0; i < t; i++)
            for (int64_t j = 0; j < S; j++) {
                const int64_t at = n * m.stride[0] + i * m.stride[2] + j * m.stride[3];
                if (dtype == ATTN_BOOL)
                    memory[at] = (char)(value(n, i, j) == 0 ? 1 << (j % 8) : 0);
                else
                    put(memory + at * (int64_t)attn_dtype_size(dtype), dtype, value(n, i, j));
            }
    return m;
}

static void expect_bits(const char *what, const float *got, const float *want)
{
    for (int at = 0; at < OUT; at++)
        if (memcmp(&got[at], &want[at], sizeof *got) != 0)
            fail_msg("%s: element %d is %.9g, want %.9g to the bit", what, at, (double)got[at],
                     (double)want[at]);
}

/* Masks of `value`, in each of the types, against what `want` holds. */
static void expect_masks(attn_context *ctx, const char *name, const attn_dtype *types, int count,
                         value_of *value, int64_t b, int64_t t, const float *want)
{
    static char memory[B * T * S * 8];
    static float out[OUT];
    for (int n = 0; n < count; n++)
        for (int turned = 0; turned < 2; turned++) {
            attn_sdpa_args args = plain(out);
            const attn_tensor m = make(memory, types[n], value, b, t, turned);
            args.mask = &m;
            char what[80];
            snprintf(what, sizeof what, "%s: %s, %s [%d,1,%d,S]%s", attn_context_isa(ctx), name,
                     attn_dtype_name(types[n]), (int)b, (int)t, turned ? ", turned" : "");
            memset(out, 0x7f, sizeof out);
            forward(ctx, &args);
            expect_bits(what, out, want);
        }
}

static const attn_dtype types[] = {ATTN_F32, ATTN_BOOL, ATTN_F16, ATTN_BF16, ATTN_F64};

static void test_of(attn_context *ctx)
{
    static float want[OUT];
    attn_sdpa_args args = plain(want);
    args.window_left = 70;
    args.window_right = 40;
    forward(ctx, &args);
    expect_masks(ctx, "window", types, 5, window, 1, T, want);

    args = plain(want);
    args.key_lengths = lengths;
    forward(ctx, &args);
    expect_masks(ctx, "padding", types, 5, padding, B, T, want);
    expect_masks(ctx, "padding", types, 5, padding, B, 1, want);

    /* no rule says this: f32 in place is the measure */
    static float memory[T * S];
    attn_tensor m = make((char *)memory, ATTN_F32, bias, 1, T, false);
    args = plain(want);
    args.mask = &m;
    forward(ctx, &args);
    static const attn_dtype floats[] = {ATTN_F16, ATTN_BF16, ATTN_F64};
    expect_masks(ctx, "bias", floats, 3, bias, 1, T, want);

    m = make((char *)memory, ATTN_F32, bias_of_keys, 1, T, false);
    forward(ctx, &args);
    expect_masks(ctx, "bias of keys", types, 1, bias_of_keys, 1, 1, want);
    expect_masks(ctx, "bias of keys", floats, 3, bias_of_keys, 1, 1, want);
}

static void test_masks_and_rules(void **state)
{
    (void)state;
    attn_rng rng;
    attn_rng_seed(&rng, 7);
    attn_rng_randn(&rng, q, OUT);
    attn_rng_randn(&rng, k, B * H * S * D);
    attn_rng_randn(&rng, v, B * H * S * D);
    for (int n = 0; attn_isa(n).name; n++) {
        describe_case("%s", attn_isa(n).name);
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.isa = attn_isa(n).name;
        options.threads = 1;
        attn_context *ctx;
        if (!attn_isa(n).usable)
            continue;
        assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
        test_of(ctx);
        attn_context_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_masks_and_rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
