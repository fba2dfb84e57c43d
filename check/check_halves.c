/* Rounding to binary16 and bfloat16, by the definition of the formats. See check_halves.h. */
#include "check_halves.h"

#include <math.h>
#include <string.h>

/* |x| rounded to a multiple of the format's last place, with `fraction` bits and exponents from
 * `smallest` on. */
static double rounded(double x, int fraction, int smallest)
{
    int exponent = x == 0 ? smallest : ilogb(x);
    double unit = ldexp(1, (exponent < smallest ? smallest : exponent) - fraction);
    return nearbyint(fabs(x) / unit) * unit;
}

/* sign, 5 bits of exponent, 10 of fraction */
uint16_t check_to_f16(double x)
{
    unsigned sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return (uint16_t)(sign | 0x7E00);
    double r = isinf(x) ? INFINITY : rounded(x, 10, -14);
    if (r > 65504)
        return (uint16_t)(sign | 0x7C00);
    if (r < 0x1p-14)
        return (uint16_t)(sign | (unsigned)(r * 0x1p24));
    int exponent = ilogb(r);
    return (uint16_t)(sign | (unsigned)(exponent + 15) << 10 |
                      ((unsigned)ldexp(r, 10 - exponent) & 1023));
}

/* the high half of a float whose low half is zero */
uint16_t check_to_bf16(double x)
{
    double r = isnan(x) || isinf(x) ? x : copysign(rounded(x, 7, -126), x);
    float single = fabs(r) > 0x1.fep127 ? (float)copysign(INFINITY, r) : (float)r;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    return (uint16_t)(bits >> 16);
}
