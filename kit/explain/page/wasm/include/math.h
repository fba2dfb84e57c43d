/* Of <math.h>, what the library uses. WebAssembly has instructions for those that are inline. */
#ifndef ATTN_WASM_MATH_H
#define ATTN_WASM_MATH_H

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isfinite(x) __builtin_isfinite(x)
#define isinf(x) __builtin_isinf(x)
#define isnan(x) __builtin_isnan(x)
#define isnormal(x) __builtin_isnormal(x)

static inline float fabsf(float x) { return __builtin_fabsf(x); }
static inline double fabs(double x) { return __builtin_fabs(x); }
static inline double ceil(double x) { return __builtin_ceil(x); }
static inline double sqrt(double x) { return __builtin_sqrt(x); }
static inline float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
static inline double copysign(double x, double y) { return __builtin_copysign(x, y); }

double fmin(double a, double b); /* libc.c */
double fmax(double a, double b);
double ldexp(double x, int n);
double frexp(double x, int *exponent);

/* JavaScript's. For log-sum-exp and soft caps beyond the range of a float, which the page does not
 * ask for. */
__attribute__((import_module("Math"), import_name("log"))) double log(double x);
__attribute__((import_module("Math"), import_name("tanh"))) double tanh(double x);

#endif
