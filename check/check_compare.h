/* The comparison of arrays: whether an array is as expected, and how far off it is.
 *
 * It is stricter than usual comparisons: NaN equals NaN only at the same place, an infinity equals
 * only itself, and a bound that is NaN or missing allows nothing. unit/check/test_compare.c plants
 * errors of each kind. Everything is compared as double, which represents every storage type
 * exactly.
 */
#ifndef CHECK_COMPARE_H
#define CHECK_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"

typedef struct check_difference {
    int64_t at; /* index of the worst element; -1: none, or all are equal */
    double got, want;
    double error; /* |got - want|; infinite if NaN, infinity or sign disagree */
    double bound; /* the bound of that element */
} check_difference;

typedef enum check_zero { CHECK_ZERO_ANY, CHECK_ZERO_SIGNED } check_zero; /* whether -0 equals +0 */

/* True if got equals want in every element. Otherwise worst (may be NULL) describes the first
 * element that differs. */
bool check_same(const double *got, const double *want, int64_t n, check_zero zero,
                check_difference *worst);

/* Continues a hash (FNV-1a) with n numbers. All NaN hash alike. Begins with 0. */
uint64_t check_hash(uint64_t hash, const double *x, int64_t n);

/* True if |got - want| <= bound in every element. worst (may be NULL) describes the element with
 * the largest error in units of its bound, whether or not that is allowed. */
bool check_within(const double *got, const double *want, const double *bound, int64_t n,
                  check_difference *worst);

/* ||got - want|| / ||want|| over all elements; 0 if they are equal, NaN if any element is not
 * finite. */
double check_relative_error(const double *got, const double *want, int64_t n);

/* The unit in the last place: the distance between numbers of this type near x. */
double check_ulp(attn_dtype dtype, double x);
/* Half a unit: the most that one rounding of x to this type changes. */
double check_rounding(attn_dtype dtype, double x);
/* The unit roundoff u of docs/NUMERICS.md: 2^-53, 2^-24, 2^-11 or 2^-8. */
double check_unit(attn_dtype dtype);

#endif
