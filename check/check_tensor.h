/* Tensors of every layout in guarded memory: dense, transposed, with gaps, backwards, repeated. */
#ifndef CHECK_TENSOR_H
#define CHECK_TENSOR_H

#include "check_case.h"

typedef struct check_tensor {
    attn_tensor view;
    unsigned char *memory; /* of the lowest element */
    size_t bytes;          /* up to the end of the highest */
} check_tensor;

/* What layouts a tensor may have. */
typedef enum check_layout {
    CHECK_DENSE, /* [B,H,T,D] or [B,T,H,D] in memory, from any address */
    CHECK_LOOSE, /* any order of dimensions, any gaps, any sign of any stride */
    CHECK_REPEAT /* CHECK_LOOSE, and strides of 0 where the size is above 1 */
} check_layout;

/* All elements are NaN (bool: true). Strides of sizes of 1 mean nothing, and are odd numbers. */
check_tensor check_tensor_new(check_case *c, attn_dtype dtype, const int64_t shape[4],
                              check_layout layout);

/* Element [b,h,i,j] = x, rounded to the tensor's type, ties to even. */
void check_store(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j, double x);

/* All elements, as doubles, in order; freed after the case. */
double *check_tensor_copy(check_case *c, const attn_tensor *t);
int64_t check_count(const attn_tensor *t);

/* True if no byte that belongs to no element was written. */
bool check_tensor_gaps(const check_tensor *t);

/* The bits of a binary16 or a bfloat16 nearest to x. */
uint16_t check_to_f16(double x);
uint16_t check_to_bf16(double x);

#endif
