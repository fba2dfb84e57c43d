/* The comparer: whether an array is what it should be, and by how much it is not.
 *
 * It is strict where comparisons usually are not: NaN equals NaN only at the same place, an
 * infinity equals only itself, and a NaN or missing bound admits nothing. tests/unit/test_compare.c
 * plants errors of each kind. Everything is compared as double, which holds every storage type
 * exactly.
 */
#ifndef CHECK_COMPARE_H
#define CHECK_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"

typedef struct check_difference {
    int64_t at; /* index of the worst element; -1: the array is empty or all equal */
    double got, want;
    double error; /* |got - want|; infinite where NaN, infinity or sign do not agree */
    double bound; /* that was allowed there */
} check_difference;

typedef enum check_zero { CHECK_ZERO_ANY, CHECK_ZERO_SIGNED } check_zero; /* does -0 equal +0? */

/* True if got equals want in every element. worst (may be NULL) tells of the first that does
 * not. */
bool check_same(const double *got, const double *want, int64_t n, check_zero zero,
                check_difference *worst);

/* True if |got - want| <= bound in every element. worst (may be NULL) tells of the element with the
 * largest error in units of its bound, whether or not it is allowed. */
bool check_within(const double *got, const double *want, const double *bound, int64_t n,
                  check_difference *worst);

/* ||got - want|| / ||want|| over all elements; 0 if they are equal, NaN if anything is not
 * finite. */
double check_relative_error(const double *got, const double *want, int64_t n);

/* The distance between numbers of this type near x: the unit in the last place. */
double check_ulp(attn_dtype dtype, double x);
/* Half of it: the most that one rounding of x to this type changes. */
double check_rounding(attn_dtype dtype, double x);
/* 2^-53 or 2^-24 or 2^-11 or 2^-8: the u of docs/NUMERICS.md. */
double check_unit(attn_dtype dtype);

#endif
