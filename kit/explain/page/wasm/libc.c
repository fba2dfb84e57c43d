/* The few functions of the C library that attention calls; the module has no C library. Each
 * follows the C standard. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Each is one instruction (-mbulk-memory). */
void *memcpy(void *to, const void *from, size_t n) { return __builtin_memcpy(to, from, n); }
void *memset(void *to, int byte, size_t n) { return __builtin_memset(to, byte, n); }

typedef union number {
    double x;
    uint64_t bits;
} number;

#define EXPONENT(n) ((int)((n).bits >> 52 & 2047))

double fmin(double a, double b) { return isnan(a) || b < a ? b : a; }
double fmax(double a, double b) { return isnan(a) || b > a ? b : a; }

/* 2^n, normal */
static double power_of_two(int n)
{
    const number p = {.bits = (uint64_t)(n + 1023) << 52};
    return p.x;
}

/* Scales in steps. Only the last step may round; if an earlier one rounds, the result is 0. */
double ldexp(double x, int n)
{
    n = n > 2100 ? 2100 : n < -2200 ? -2200 : n;
    for (; n > 1023; n -= 1023)
        x *= power_of_two(1023);
    for (; n < -1022; n += 969)
        x *= power_of_two(-969);
    return x * power_of_two(n);
}

double frexp(double x, int *exponent)
{
    number n = {.x = x};
    *exponent = 0;
    if (x == 0 || !isfinite(x))
        return x;
    if (EXPONENT(n) == 0) { /* no leading 1 */
        n.x *= power_of_two(54);
        *exponent = -54;
    }
    *exponent += EXPONENT(n) - 1022;
    n.bits = (n.bits & ~((uint64_t)2047 << 52)) | (uint64_t)1022 << 52;
    return n.x;
}

/* A function of the compiler's library: a product of 128 bits. No instruction multiplies more than
 * 64 bits, so the halves of a and b give four products. */
__extension__ typedef __int128 int128;

int128 __multi3(int128 a, int128 b);
int128 __multi3(int128 a, int128 b)
{
    const uint64_t low = UINT32_MAX, x = (uint64_t)a, y = (uint64_t)b;
    const uint64_t x0 = x & low, x1 = x >> 32, y0 = y & low, y1 = y >> 32;
    const uint64_t middle = x1 * y0 + (x0 * y0 >> 32), other = x0 * y1 + (middle & low);
    uint64_t high = x1 * y1 + (middle >> 32) + (other >> 32);
    high += x * (uint64_t)(b >> 64) + y * (uint64_t)(a >> 64);
    return (int128)((unsigned __int128)high << 64 | (x * y));
}
