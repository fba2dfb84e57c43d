/* x * y + z, rounded once. wasi-libc's fmaf corrects its rounding by switching the rounding mode,
 * which WebAssembly does not have, so it is wrong where the sum in double lies half-way between two
 * floats. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The product of two floats is exact in double. The sum is rounded to odd: where it is not exact,
 * the neighbour with an odd last bit is taken. Its 53 bits are at least two more than a float has,
 * so rounding it again gives the float that is nearest to the exact sum (Boldo, Melquiond 2008). */
float fmaf(float x, float y, float z)
{
    const double product = (double)x * y, sum = product + z;
    if (!isfinite(sum))
        return (float)sum;
    const double part = sum - product; /* what is missing in the sum, exactly (Knuth) */
    const double missing = (product - (sum - part)) + (z - part);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (missing == 0 || bits & 1)
        return (float)sum;
    bits += (missing > 0) == (sum > 0) ? 1 : -1;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
