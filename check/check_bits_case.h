/* One problem of the record of bits: its random numbers, tensors and hash. This file and
 * check_bits_*.c define the problems; read check_bits.h before you change them. */
#ifndef CHECK_BITS_CASE_H
#define CHECK_BITS_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"

#define BITS_MEMORY ((size_t)1 << 26) /* bytes for all tensors of a problem */

typedef struct bits_case {
    uint64_t random, hash;
    attn_context *ctx; /* with one thread */
    attn_error err;
    bool failed;    /* err says why */
    char what[256]; /* a description of the problem */
    char *memory;   /* BITS_MEMORY bytes */
    size_t used;
} bits_case;

/* Begins problem `index`. The caller has set ctx and memory. */
void bits_begin(bits_case *c, uint64_t index);
void bits_say(bits_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* False if status is an error; the problem has then failed. */
bool bits_ok(bits_case *c, attn_status status);

/* ---- random numbers: integers, and floats that are exact functions of integers. C does not fix
 * the order in which arguments and operands are evaluated, so no expression draws twice, except in
 * sequence. */
uint64_t bits_random(bits_case *c);
int64_t bits_between(bits_case *c, int64_t low, int64_t high); /* both included */
bool bits_chance(bits_case *c, int percent);
double bits_value(bits_case *c); /* about N(0, 1.15), a multiple of 2^-15 */
#define BITS_PICK(c, list)                                                                         \
    ((list)[bits_between(c, 0, (int64_t)(sizeof(list) / sizeof *(list)) - 1)])

/* ---- tensors, filled with NaN */
typedef enum bits_layout {
    BITS_DENSE,  /* [B,H,T,D] or [B,T,H,D] in memory */
    BITS_LOOSE,  /* other orders, gaps, negative strides */
    BITS_REPEAT, /* BITS_LOOSE, and strides of 0: inputs only */
} bits_layout;

void *bits_memory(bits_case *c, size_t bytes);
attn_tensor bits_tensor(bits_case *c, attn_dtype dtype, const int64_t shape[4], bits_layout layout);
attn_tensor bits_new(bits_case *c, attn_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3,
                     bits_layout layout);
void bits_fill(bits_case *c, attn_tensor *t, double scale); /* bits_value times scale */
/* As bits_fill, but one in 64 elements is 64 times as large. */
void bits_fill_outliers(bits_case *c, attn_tensor *t, double scale);
/* stores x in one element, if there is one */
void bits_plant(bits_case *c, attn_tensor *t, double x);

/* ---- the hash: FNV-1a (Fowler, Noll and Vo) of the elements in order, each little-endian; all NaN
 * hash alike */
void bits_hash(bits_case *c, const attn_tensor *t);
void bits_hash_doubles(bits_case *c, const double *x, int64_t n);
void bits_hash_integer(bits_case *c, uint64_t x, int bytes);

/* ---- the kinds of problems; each one hashes its results */
void bits_forward(bits_case *c);
void bits_backward(bits_case *c);
void bits_jvp(bits_case *c);
void bits_large(bits_case *c); /* several chunks of keys; mostly bf16 */
void bits_cache(bits_case *c);
void bits_linear(bits_case *c);
void bits_layers(bits_case *c); /* the smaller modules, AdamW, random numbers */
void bits_mha(bits_case *c);

#endif
