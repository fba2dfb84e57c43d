/* The shortest text of a float, without a call of snprintf() and strtod() for each number of
 * digits: a page has tens of thousands of numbers.
 *
 * A float is x = m * 2^e with an integer m < 2^24. y = x * 10^p has nine digits before the point, p
 * chosen so. In units of 2^-bits, y is the integer m * g, where g * 2^(..) is 10^p, rounded to 64
 * bits. Half of the distance between x and its neighbours is g / 2 in the same units. The error of
 * g makes m * g uncertain by less than m units. If a decision depends on less than that, the text
 * is left to the caller.
 */
#include "shortest.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef __SIZEOF_INT128__ /* for a CPU of 32 bits */

bool shortest_float(char out[SHORTEST_BYTES], float x)
{
    (void)out, (void)x;
    return false;
}

#else

__extension__ typedef unsigned __int128 wide;

enum { MOST = 9, LOWEST_POWER = -30, HIGHEST_POWER = 53 };

/* 10^p for p from LOWEST_POWER, as g * 2^power_exponent(p) with 2^63 <= g < 2^64 */
static const uint64_t power_of_ten[] = {
    0xa2425ff75e14fc32, 0xcad2f7f5359a3b3e, 0xfd87b5f28300ca0e, 0x9e74d1b791e07e48,
    0xc612062576589ddb, 0xf79687aed3eec551, 0x9abe14cd44753b53, 0xc16d9a0095928a27,
    0xf1c90080baf72cb1, 0x971da05074da7bef, 0xbce5086492111aeb, 0xec1e4a7db69561a5,
    0x9392ee8e921d5d07, 0xb877aa3236a4b449, 0xe69594bec44de15b, 0x901d7cf73ab0acd9,
    0xb424dc35095cd80f, 0xe12e13424bb40e13, 0x8cbccc096f5088cc, 0xafebff0bcb24aaff,
    0xdbe6fecebdedd5bf, 0x89705f4136b4a597, 0xabcc77118461cefd, 0xd6bf94d5e57a42bc,
    0x8637bd05af6c69b6, 0xa7c5ac471b478423, 0xd1b71758e219652c, 0x83126e978d4fdf3b,
    0xa3d70a3d70a3d70a, 0xcccccccccccccccd, 0x8000000000000000, 0xa000000000000000,
    0xc800000000000000, 0xfa00000000000000, 0x9c40000000000000, 0xc350000000000000,
    0xf424000000000000, 0x9896800000000000, 0xbebc200000000000, 0xee6b280000000000,
    0x9502f90000000000, 0xba43b74000000000, 0xe8d4a51000000000, 0x9184e72a00000000,
    0xb5e620f480000000, 0xe35fa931a0000000, 0x8e1bc9bf04000000, 0xb1a2bc2ec5000000,
    0xde0b6b3a76400000, 0x8ac7230489e80000, 0xad78ebc5ac620000, 0xd8d726b7177a8000,
    0x878678326eac9000, 0xa968163f0a57b400, 0xd3c21bcecceda100, 0x84595161401484a0,
    0xa56fa5b99019a5c8, 0xcecb8f27f4200f3a, 0x813f3978f8940984, 0xa18f07d736b90be5,
    0xc9f2c9cd04674edf, 0xfc6f7c4045812296, 0x9dc5ada82b70b59e, 0xc5371912364ce305,
    0xf684df56c3e01bc7, 0x9a130b963a6c115c, 0xc097ce7bc90715b3, 0xf0bdc21abb48db20,
    0x96769950b50d88f4, 0xbc143fa4e250eb31, 0xeb194f8e1ae525fd, 0x92efd1b8d0cf37be,
    0xb7abc627050305ae, 0xe596b7b0c643c719, 0x8f7e32ce7bea5c70, 0xb35dbf821ae4f38c,
    0xe0352f62a19e306f, 0x8c213d9da502de45, 0xaf298d050e4395d7, 0xdaf3f04651d47b4c,
    0x88d8762bf324cd10, 0xab0e93b6efee0054, 0xd5d238a4abe98068, 0x85a36366eb71f041};

static int power_exponent(int p) { return p * 217706 / 65536 - (p < 0) - 63; } /* log2(10) */

static const int64_t ten[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

typedef struct number {
    uint64_t m, g; /* y = m * g units of 2^-bits */
    int bits;
    int exponent; /* 10^exponent <= x < 10^(exponent + 1) */
} number;

static wide units(const number *n) { return (wide)n->m * n->g; }

/* Scales x > 0 to nine digits before the point. */
static bool scale(number *n, float x)
{
    int two;
    const double f = frexp((double)x, &two);
    int e = two - 24 < -149 ? -149 : two - 24;
    n->m = (uint64_t)ldexp(f, two - e);
    for (n->exponent = (int)floor((two - 1) * 0.30103);; n->exponent++) {
        const int p = MOST - 1 - n->exponent;
        if (p < LOWEST_POWER || p > HIGHEST_POWER)
            return false;
        n->g = power_of_ten[p - LOWEST_POWER];
        n->bits = -(e + power_exponent(p));
        if (n->bits < 32 || n->bits > 96)
            return false;
        if ((units(n) >> n->bits) < 1000000000)
            return true;
    }
}

static bool is_near(wide a, wide b, wide margin) { return (a > b ? a - b : b - a) <= margin; }

/* Rounds y to `digits` digits; *nine is the result with nine digits before the point. Returns false
 * if y is too near the middle of two results. */
static bool round_to(const number *n, int digits, int64_t *nine)
{
    const int64_t step = ten[MOST - digits], whole = (int64_t)(units(n) >> n->bits);
    const int64_t low = whole - whole % step;
    const wide middle = ((wide)(uint64_t)(2 * low + step)) << (n->bits - 1);
    *nine = units(n) > middle ? low + step : low;
    return !is_near(units(n), middle, n->m);
}

/* Whether nine digits read as x: 1 or 0, or -1 if it is too near to say. */
static int reads_back(const number *n, int64_t nine)
{
    const wide y = units(n), z = (wide)(uint64_t)nine << n->bits;
    const wide distance = z > y ? z - y : y - z;
    /* Below a power of two the floats lie twice as close. */
    const wide half = z < y && n->m == UINT64_C(1) << 23 ? n->g / 4 : n->g / 2;
    return is_near(distance, half, n->m + 1) ? -1 : distance < half;
}

/* Writes the digits as "%.*g" would, without zeros at the end. */
static void write(char *out, int64_t nine, int exponent, int digits)
{
    char digit[MOST + 1];
    int last = MOST;
    if (nine == 1000000000) {
        nine /= 10;
        exponent++;
    }
    for (int i = MOST; i-- > 0; nine /= 10)
        digit[i] = (char)('0' + nine % 10);
    while (last > 1 && digit[last - 1] == '0')
        last--;
    const bool scientific = exponent < -4 || exponent >= digits;
    const int point = scientific ? 1 : exponent + 1; /* digits before it */
    if (point <= 0) {
        *out++ = '0';
        *out++ = '.';
        memset(out, '0', (size_t)-point);
        out += -point;
    }
    for (int i = 0; i < last || i < point; i++) {
        if (i == point && point > 0)
            *out++ = '.';
        *out++ = i < last ? digit[i] : '0';
    }
    if (scientific) {
        const int size = abs(exponent);
        *out++ = 'e';
        *out++ = exponent < 0 ? '-' : '+';
        *out++ = (char)('0' + size / 10);
        *out++ = (char)('0' + size % 10);
    }
    *out = '\0';
}

bool shortest_float(char out[SHORTEST_BYTES], float x)
{
    number n;
    if (x == 0 || !isfinite(x) || !scale(&n, fabsf(x)))
        return false;
    for (int digits = SHORTEST_LEAST; digits <= MOST; digits++) {
        int64_t nine;
        if (!round_to(&n, digits, &nine))
            return false;
        const int same = digits == MOST ? 1 : reads_back(&n, nine);
        if (same < 0)
            return false;
        if (same) {
            if (signbit(x))
                *out++ = '-';
            write(out, nine, n.exponent, digits);
            return true;
        }
    }
    return false;
}

#endif
