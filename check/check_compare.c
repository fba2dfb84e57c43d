/* The comparison of arrays; see check_compare.h. */
#include "check_compare.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* The error of one element: its distance, or infinity if NaN or infinity disagree. */
static double error_of(double got, double want)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (isinf(want) || isinf(got))
        return want == got ? 0 : INFINITY;
    return fabs(got - want);
}

bool check_same(const double *got, const double *want, int64_t n, check_zero zero,
                check_difference *worst)
{
    check_difference d = {-1, 0, 0, 0, 0};
    for (int64_t i = 0; i < n && d.at < 0; i++) {
        double error = error_of(got[i], want[i]);
        if (zero == CHECK_ZERO_SIGNED && got[i] == 0 && want[i] == 0 &&
            signbit(got[i]) != signbit(want[i]))
            error = INFINITY;
        if (error != 0)
            d = (check_difference){i, got[i], want[i], error, 0};
    }
    if (worst)
        *worst = d;
    return d.at < 0;
}

uint64_t check_hash(uint64_t hash, const double *x, int64_t n)
{
    if (hash == 0)
        hash = UINT64_C(0xCBF29CE484222325);
    for (int64_t i = 0; i < n; i++) {
        const double number = isnan(x[i]) ? (double)NAN : x[i];
        unsigned char bytes[sizeof number];
        memcpy(bytes, &number, sizeof number);
        for (size_t b = 0; b < sizeof bytes; b++)
            hash = (hash ^ bytes[b]) * UINT64_C(0x100000001B3);
    }
    return hash;
}

/* The error divided by its bound. If the error is not allowed but the quotient does not exceed 1
 * (it may be NaN), infinity. */
static double ratio_of(double error, double bound)
{
    if (error == 0)
        return 0;
    bool allowed = error <= bound && !isinf(error); /* a NaN bound allows nothing */
    double ratio = error / bound;
    return allowed || ratio > 1 ? ratio : INFINITY;
}

bool check_within(const double *got, const double *want, const double *bound, int64_t n,
                  check_difference *worst)
{
    check_difference d = {-1, 0, 0, 0, 0};
    double largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = error_of(got[i], want[i]), ratio = ratio_of(error, bound[i]);
        if (ratio > largest) {
            largest = ratio;
            d = (check_difference){i, got[i], want[i], error, bound[i]};
        }
    }
    if (worst)
        *worst = d;
    return largest <= 1;
}

double check_relative_error(const double *got, const double *want, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

/* The fraction bits of a type (without the leading 1) and the exponent of its smallest normal
 * number. */
static void format_of(attn_dtype dtype, int *fraction, int *smallest)
{
    switch (dtype) {
    case ATTN_F64: *fraction = 52, *smallest = -1022; break;
    case ATTN_F16: *fraction = 10, *smallest = -14; break;
    case ATTN_BF16: *fraction = 7, *smallest = -126; break;
    default: *fraction = 23, *smallest = -126; break;
    }
}

double check_ulp(attn_dtype dtype, double x)
{
    int fraction, smallest;
    format_of(dtype, &fraction, &smallest);
    if (isnan(x) || isinf(x))
        return NAN;
    int exponent = x == 0 ? smallest : ilogb(x);
    return ldexp(1, (exponent < smallest ? smallest : exponent) - fraction);
}

double check_rounding(attn_dtype dtype, double x) { return check_ulp(dtype, x) / 2; }

double check_unit(attn_dtype dtype) { return check_rounding(dtype, 1); }
