/* The parts of the definition that are not attention: elements of any storage type, and the weights
 * that dropout keeps. Both follow their specification, one element at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_ref.h"

/* IEEE 754 binary16: sign, 5 bits of exponent, 10 of fraction. */
static double from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double x = exponent == 0   ? ldexp(fraction, -24)
               : exponent < 31 ? ldexp(1024 + fraction, exponent - 25)
               : fraction == 0 ? INFINITY
                               : NAN;
    return bits >> 15 ? -x : x;
}

/* The high half of a binary32. */
static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

double ref_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t index[4] = {b, h, i, j};
    int64_t at = 0;
    for (int d = 0; d < 4; d++)
        at += t->shape[d] == 1 ? 0 : index[d] * t->stride[d];

    const char *data = t->data;
    uint16_t half;
    float single;
    double x;
    switch (t->dtype) {
    case ATTN_F64: memcpy(&x, data + at * 8, 8); return x;
    case ATTN_F32: memcpy(&single, data + at * 4, 4); return single;
    case ATTN_F16: memcpy(&half, data + at * 2, 2); return from_f16(half);
    case ATTN_BF16: memcpy(&half, data + at * 2, 2); return from_bf16(half);
    case ATTN_BOOL: return data[at] != 0;
    default: return NAN;
    }
}

/* Philox4x32-10: ten rounds of two 32 x 32 -> 64 bit products, whose halves are swapped and mixed
 * with the round's key. Salmon et al. 2011, figure 4 and table 2. */
void ref_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x[4] = {counter[0], counter[1], counter[2], counter[3]};
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t left = (uint64_t)x[0] * 0xD2511F53, right = (uint64_t)x[2] * 0xCD9E8D57;
        uint32_t y[4] = {
            (uint32_t)(right >> 32) ^ x[1] ^ (key[0] + round * 0x9E3779B9),
            (uint32_t)right,
            (uint32_t)(left >> 32) ^ x[3] ^ (key[1] + round * 0xBB67AE85),
            (uint32_t)left,
        };
        memcpy(x, y, sizeof x);
    }
    memcpy(out, x, sizeof x);
}

/* One Philox block decides for eight keys: 16 bits each, the low half of a word first. */
bool ref_dropout_keep(uint64_t seed, double p, int64_t bh, int64_t i, int64_t j)
{
    const uint32_t counter[4] = {(uint32_t)(j / 8), (uint32_t)i, (uint32_t)bh, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t block[4];
    ref_philox4x32(counter, key, block);
    uint32_t draw = block[j % 8 / 2] >> 16 * (j % 2) & 0xFFFF;
    return draw >= (uint32_t)lround(p * 65536);
}
