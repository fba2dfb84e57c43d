/* Tensors of every layout in guarded memory: dense, transposed, with gaps, with negative or zero
 * strides. */
#ifndef CHECK_TENSOR_H
#define CHECK_TENSOR_H

#include "check_case.h"
#include "check_halves.h"

typedef struct check_tensor {
    attn_tensor view;
    unsigned char *memory; /* address of the lowest element */
    size_t bytes;          /* from there to the end of the highest element */
} check_tensor;

/* The layouts that a tensor may have. */
typedef enum check_layout {
    CHECK_DENSE, /* [B,H,T,D] or [B,T,H,D] in memory, at any address */
    CHECK_LOOSE, /* any order of dimensions, any gaps, strides of either sign */
    CHECK_REPEAT /* CHECK_LOOSE, with some strides of 0 where the size is above 1 */
} check_layout;

/* A new tensor whose elements are all NaN (bool: true). Strides of dimensions of size 1 have no
 * effect and get unusual values. */
check_tensor check_tensor_new(check_case *c, attn_dtype dtype, const int64_t shape[4],
                              check_layout layout);

/* Element [b,h,i,j] = x, rounded to the tensor's type, ties to even. */
void check_store(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j, double x);

/* Gives the scores of each block of 64 keys a level between -400 and 400 (if the scale is
 * 1/sqrt(D)), by the last component of q and of k. So the running maximum rises by far from one
 * block to the next, and a maximum of 0 would be wrong. */
void check_store_query_levels(const attn_tensor *q);
void check_store_key_levels(const attn_tensor *k, uint64_t seed);

/* All elements in order, as doubles; freed after the case. */
double *check_tensor_copy(check_case *c, const attn_tensor *t);
int64_t check_count(const attn_tensor *t);

/* True if no byte outside the elements was written. */
bool check_tensor_gaps(const check_tensor *t);

#endif
