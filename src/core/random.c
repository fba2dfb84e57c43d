/* Random numbers: PyTorch's CPU generator for initialisation, and Philox for dropout.
 *
 * The two uses need opposite properties. Initialisation must reproduce PyTorch's stream: MT19937
 * and torch's own transforms, in torch's order, with torch's roundings. Dropout must depend only on
 * the position: a counter-based generator has no state, so any tile, thread or machine can compute
 * the decision for any (b, h, i, j).
 *
 * To add a distribution: name the torch kernel that draws it, draw in the same order, and add its
 * values to tests/data/torch_rng.json.
 */
#include <math.h>

#include "internal.h"

/* ------------------------------------------------------------------------ MT19937 and its words */

#define MT_N 624
#define MT_M 397
#define TWO_PI 6.283185307179586476925

void attn_rng_seed(attn_rng *rng, uint64_t seed)
{
    /* torch seeds its engine with the low word only */
    uint32_t *s = rng->state;
    s[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < MT_N; i++)
        s[i] = 1812433253u * (s[i - 1] ^ (s[i - 1] >> 30)) + i;
    rng->position = MT_N;
    rng->has_normal = 0;
    rng->normal = 0;
}

static uint32_t mt_twist(uint32_t high, uint32_t low, uint32_t far)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return far ^ (y >> 1) ^ ((y & 1) ? 0x9908b0dfu : 0);
}

static void mt_refill(attn_rng *rng)
{
    uint32_t *s = rng->state;
    for (int i = 0; i < MT_N; i++)
        s[i] = mt_twist(s[i], s[(i + 1) % MT_N], s[(i + MT_M) % MT_N]);
    rng->position = 0;
}

uint32_t attn_rng_u32(attn_rng *rng)
{
    if (rng->position >= MT_N)
        mt_refill(rng);
    uint32_t y = rng->state[rng->position++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* in [0, 1), with 24 bits: the precision of float */
static float uniform_f32(attn_rng *rng)
{
    return (float)(attn_rng_u32(rng) & 0xffffffu) * 0x1p-24f;
}

/* in [0, 1), with 53 bits; the first word is the high half */
static double uniform_f64(attn_rng *rng)
{
    uint64_t high = attn_rng_u32(rng);
    uint64_t word = high << 32 | attn_rng_u32(rng);
    return (double)(word & 0x1fffffffffffffu) * 0x1p-53;
}

/* ------------------------------------------------------------------------ torch's distributions */

void attn_rng_rand(attn_rng *rng, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = uniform_f32(rng);
}

void attn_rng_uniform(attn_rng *rng, float *x, size_t n, double a, double b)
{
    ATTNI_DEFAULT_MODE;
    /* fused, rounded once: as in torch's own build on every CPU with fused multiply-add */
    const float from = (float)a, width = (float)b - (float)a;
    for (size_t i = 0; i < n; i++)
        x[i] = fmaf(uniform_f32(rng), width, from);
}

/* Turns sixteen uniforms into sixteen normals (Box and Muller 1958). Every step rounds to float, as
 * in torch; keeping the angle in double would change results by 1e-6. The functions are computed in
 * double, so that the result does not depend on the libm. */
static void box_muller_16(float *x)
{
    for (int j = 0; j < 8; j++) {
        const float u1 = 1 - x[j], u2 = x[j + 8];
        const float radius = sqrtf(-2 * (float)log((double)u1));
        const float angle = (float)TWO_PI * u2;
        x[j] = radius * (float)cos((double)angle);
        x[j + 8] = radius * (float)sin((double)angle);
    }
}

/* torch's path for fewer than 16 numbers: in double, in pairs. The second of a pair is kept in the
 * generator for the next draw of this kind, in this or a later call. */
static float normal_one(attn_rng *rng)
{
    if (rng->has_normal) {
        rng->has_normal = 0;
        return (float)rng->normal;
    }
    const double u1 = uniform_f64(rng), u2 = uniform_f64(rng);
    const double radius = sqrt(-2 * log1p(-u2)), angle = TWO_PI * u1;
    rng->normal = radius * sin(angle);
    rng->has_normal = 1;
    return (float)(radius * cos(angle));
}

void attn_rng_randn(attn_rng *rng, float *x, size_t n)
{
    ATTNI_DEFAULT_MODE;
    if (n < 16) {
        for (size_t i = 0; i < n; i++)
            x[i] = normal_one(rng);
        return;
    }
    attn_rng_rand(rng, x, n);
    for (size_t i = 0; i + 16 <= n; i += 16)
        box_muller_16(x + i);
    if (n % 16 != 0) { /* remainder: the last sixteen are drawn again */
        attn_rng_rand(rng, x + n - 16, 16);
        box_muller_16(x + n - 16);
    }
}

void attn_rng_linear(attn_rng *rng, float *weight, float *bias, int64_t in, int64_t out)
{
    ATTNI_DEFAULT_MODE;
    if (in < 0 || out <= 0)
        return;
    /* torch computes the weight's bound as sqrt(3) * (sqrt(2 / (1 + 5)) / sqrt(in)); rounded to
     * float, this bound is the same for every `in` below 2^24 */
    const double bound = in > 0 ? 1 / sqrt((double)in) : 0;
    attn_rng_uniform(rng, weight, (size_t)in * (size_t)out, -bound, bound);
    if (bias)
        attn_rng_uniform(rng, bias, (size_t)out, -bound, bound);
}

/* ----------------------------------------------------------------------- Philox: dropout
 * decisions */

void attni_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c0 * 0xd2511f53u, p1 = (uint64_t)c2 * 0xcd9e8d57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u; /* the golden ratio */
        k1 += 0xbb67ae85u; /* sqrt(3) - 1 */
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint32_t attni_dropout_threshold(double p) { return (uint32_t)round(p * 65536); }

unsigned attni_dropout_keep8(uint64_t seed, uint32_t threshold, uint64_t bh, uint64_t i,
                             uint64_t j8)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)j8, (uint32_t)i, (uint32_t)bh, 0};
    uint32_t words[4];
    attni_philox4x32(counter, key, words);
    unsigned bits = 0;
    for (unsigned u = 0; u < 8; u++) {
        const uint32_t draw = words[u / 2] >> (u % 2 * 16) & 0xffffu;
        bits |= (unsigned)(draw >= threshold) << u;
    }
    return bits;
}

int attni_dropout_keep(uint64_t seed, uint32_t threshold, uint64_t bh, uint64_t i, uint64_t j)
{
    return (int)(attni_dropout_keep8(seed, threshold, bh, i, j / 8) >> (j % 8) & 1);
}

static attn_status check_dropout_mask(double p, const attn_tensor *out, attn_error *err)
{
    if (!(p >= 0 && p < 1))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "p",
                          "p is %g; it must be at least 0 and less than 1", p);
    attn_status status = attni_check_output(out, "out", err);
    if (status != ATTN_OK)
        return status;
    if (out->dtype != ATTN_BOOL)
        return attni_fail(err, ATTN_ERR_DTYPE, "out", "out is %s; it must be bool",
                          attn_dtype_name(out->dtype));
    const int64_t *n = out->shape; /* each part of the counter is one 32-bit word */
    if (n[2] > UINT32_MAX || n[3] / 8 > UINT32_MAX || (n[0] > 0 && n[1] > UINT32_MAX / n[0]))
        return attni_fail(err, ATTN_ERR_LIMIT, "out",
                          "out is [%lld, %lld, %lld, %lld]; B*H, T and S/8 must be less than 2^32",
                          (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3]);
    return ATTN_OK;
}

attn_status attn_dropout_mask(uint64_t seed, double p, const attn_tensor *out, attn_error *err)
{
    ATTNI_DEFAULT_MODE;
    const attn_status status = check_dropout_mask(p, out, err);
    if (status != ATTN_OK)
        return status;
    const uint32_t threshold = attni_dropout_threshold(p);
    const int64_t rows = out->shape[2], S = out->shape[3];
    const int64_t bhs = rows > 0 && S > 0 ? out->shape[0] * out->shape[1] : 0;
    for (int64_t bh = 0; bh < bhs; bh++)
        for (int64_t i = 0; i < rows; i++) {
            uint8_t *row = (uint8_t *)attni_at(out, bh / out->shape[1], bh % out->shape[1], i, 0);
            unsigned bits = 0;
            for (int64_t j = 0; j < S; j++) {
                if (j % 8 == 0)
                    bits = attni_dropout_keep8(seed, threshold, (uint64_t)bh, (uint64_t)i,
                                               (uint64_t)j / 8);
                row[j * out->stride[3]] = bits >> (j % 8) & 1;
            }
        }
    return ATTN_OK;
}
