/* Dense masks: a tensor with a bool or a float for each pair of query and key. The head of
 * mask.c says what the functions of a rule do. */
#include "mask_dense.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------- both kinds */

attn_status attni_dense_check(const attni_plan *plan, attn_error *err)
{
    const attn_tensor *mask = plan->args.mask;
    const int64_t want[4] = {plan->B, plan->H, plan->T, plan->S};
    static const char letter[] = "BHTS";
    if (mask->dtype != ATTN_BOOL && !attni_dtype_is_float(mask->dtype))
        return attni_fail(err, ATTN_ERR_DTYPE, "mask",
                          "mask is %s; it must be bool or a float type",
                          attn_dtype_name(mask->dtype));
    for (int d = 0; d < 4; d++)
        if (mask->shape[d] != want[d] && mask->shape[d] != 1)
            return attni_fail(
                err, ATTN_ERR_SHAPE, "mask",
                "mask has %lld in dimension %d; it must be %c = %lld, or 1 to broadcast",
                (long long)mask->shape[d], d, letter[d], (long long)want[d]);
    return attni_check_input(mask, "mask", err);
}

static const char *dense_at(const attni_sequence *sequence, int64_t i, int64_t j)
{
    return attni_at(sequence->args->mask, sequence->b, sequence->h, sequence->i_base + i,
                    sequence->j_base + j);
}

/* How many rows of the mask are read for `rows` queries of one head: 1 if the mask repeats along
 * the queries (stride 0), else `rows`. A block of several heads always has a single row of the
 * mask: if there is a mask, heads share a tile only if T is 1 and the mask is the same for all of
 * them. */
static int different_rows(const attn_tensor *mask, int64_t rows)
{
    return mask->stride[2] == 0 && rows > 1 ? 1 : (int)rows;
}

/* --------------------------------------------------------------------------------------- bool */

/* Sets bit r of to[i] if query i0 + i sees key j0 + r, for i < rows and r < n <= 64. */
static void bool_bits(const attni_sequence *sequence, int64_t i0, int rows, int64_t j0, int n,
                      uint64_t *to)
{
    const attn_tensor *mask = sequence->args->mask;
    if (mask->stride[3] == 1) {
        sequence->kernels->pack_bits(to, dense_at(sequence, i0, j0), (ptrdiff_t)mask->stride[2],
                                     rows, n);
        return;
    }
    for (int i = 0; i < rows; i++) {
        const char *from = dense_at(sequence, i0 + i, j0);
        to[i] = 0;
        for (int r = 0; r < n; r++)
            to[i] |= (uint64_t)(from[r * mask->stride[3]] != 0) << r;
    }
}

attni_class attni_bool_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                            int64_t j1)
{
    uint64_t bits[ATTNI_MAX_LANES], some = 0, hidden = 0;
    const int rows = different_rows(sequence->args->mask, i1 - i0), n = (int)(j1 - j0);
    bool_bits(sequence, i0, rows, j0, n, bits);
    for (int i = 0; i < rows; i++)
        some |= bits[i], hidden |= ~bits[i];
    if (some == 0)
        return ATTNI_EMPTY;
    return hidden << (64 - n) ? ATTNI_PARTIAL : ATTNI_FULL;
}

/* Transposes a 64 x 64 bit matrix: bit i of row j and bit j of row i change places. The first step
 * exchanges the upper right and the lower left quarter of the matrix, the next steps do the same
 * within each quarter (Warren, Hacker's Delight, 7-3). */
static void transpose_bits(uint64_t rows[64])
{
    uint64_t low = 0xffffffff;
    for (int half = 32; half; half >>= 1, low ^= low << half)
        for (int pair = 0; pair < 64; pair += 2 * half)
            for (int i = pair; i < pair + half; i++) {
                const uint64_t other = (rows[i] >> half ^ rows[i + half]) & low;
                rows[i] ^= other << half;
                rows[i + half] ^= other;
            }
}

void attni_bool_show(const attni_sequence *sequence, const attni_block *block, uint64_t *visible)
{
    uint64_t bits[64] = {0};
    const int rows = block->heads > 1 ? 1 : different_rows(sequence->args->mask, block->rows);
    bool_bits(sequence, block->i0, rows, block->j0, block->n, bits);
    if (rows > 1)
        transpose_bits(bits);
    for (int r = 0; r < block->n; r++)
        visible[r] &= rows > 1 ? bits[r] : -(bits[0] >> r & 1);
}

/* --------------------------------------------------------------------------------------- bias */

/* A finite element of an f64 mask, such as -4e38, can become an infinity when it is converted to
 * float. It must not hide the key as -inf does, so the largest float of its sign replaces it. */
static __attribute__((cold, noinline)) void keep_finite(float *to, const char *row, int64_t stride,
                                                        int n)
{
    for (int r = 0; r < n; r++) {
        double x;
        memcpy(&x, row + r * stride * (int64_t)sizeof x, sizeof x);
        if (isinf(to[r]) && !isinf(x))
            to[r] = copysignf(FLT_MAX, to[r]);
    }
}

/* Adds the mask. The kernel `bias` reads rows of type R with a last stride of 1. Such rows of the
 * mask are used in place; others are first converted into block->biases. */
void attni_bias_add(const attni_sequence *sequence, const attni_block *block)
{
    const attn_tensor *mask = sequence->args->mask;
    const attni_kernels *kernels = block->kernels;
    const char *from = dense_at(sequence, block->i0, block->j0);
    const attn_dtype own = kernels->bits == 32 ? ATTN_F32 : ATTN_F64;
    const int rows = block->heads > 1 ? 1 : different_rows(mask, block->rows);
    ptrdiff_t ld = (ptrdiff_t)mask->stride[2];
    if (mask->stride[3] != 1) {
        for (int i = 0; i < rows; i++) {
            void *to = (char *)block->biases + (size_t)(i * ATTNI_BLOCK * kernels->bits / 8);
            const char *row = dense_at(sequence, block->i0 + i, block->j0);
            if (kernels->bits == 32)
                attni_load_row_f32(to, row, mask->dtype, mask->stride[3], block->n);
            else
                attni_load_row_f64(to, row, mask->dtype, mask->stride[3], block->n);
        }
        from = block->biases, ld = ATTNI_BLOCK;
    } else if (mask->dtype != own) {
        kernels->widen(block->biases, from, ld, mask->dtype, rows, block->n);
        from = block->biases, ld = block->n;
    }
    for (int i = 0; i < rows && mask->dtype == ATTN_F64 && own == ATTN_F32; i++)
        keep_finite((float *)block->biases + i * ld, dense_at(sequence, block->i0 + i, block->j0),
                    mask->stride[3], block->n);
    kernels->bias(block->st, block->n, from, rows == 1 ? 0 : ld, block->rows * block->heads,
                  block->nv);
}

/* ATTNI_EMPTY if every element of this part of the mask is -inf, ATTNI_FULL (nothing to add) if
 * every element is 0 or -0, else ATTNI_PARTIAL. The scan stops as soon as ATTNI_PARTIAL is certain,
 * usually in the first row. Elements are compared as bits, not as numbers. */
attni_class attni_bias_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                            int64_t j1)
{
    static const struct {
        /* value: all bits but the sign; hidden: the bits of -inf; both repeated to fill 8 bytes. */
        uint64_t value, hidden;
    } bits[] = {[ATTN_F64] = {0x7fffffffffffffff, 0xfff0000000000000},
                [ATTN_F32] = {0x7fffffff7fffffff, 0xff800000ff800000},
                [ATTN_F16] = {0x7fff7fff7fff7fff, 0xfc00fc00fc00fc00},
                [ATTN_BF16] = {0x7fff7fff7fff7fff, 0xff80ff80ff80ff80}};
    const attn_tensor *mask = sequence->args->mask;
    if ((size_t)mask->dtype >= sizeof bits / sizeof *bits)
        return ATTNI_PARTIAL; /* a type that is not in `bits` is not scanned */
    const uint64_t value = bits[mask->dtype].value, hidden = bits[mask->dtype].hidden;
    const size_t size = attn_dtype_size(mask->dtype), n = (size_t)(j1 - j0);
    const ptrdiff_t ld = (ptrdiff_t)mask->stride[2] * (ptrdiff_t)size;
    const int rows = different_rows(mask, i1 - i0);
    const attni_kernels *kernels = sequence->kernels;
    int found = 0;
    if (mask->stride[3] == 1)
        found = kernels->scan(dense_at(sequence, i0, j0), ld, rows, n * size, value, hidden);
    for (int i = 0; i < rows && mask->stride[3] != 1 && found != 3; i++)
        for (int64_t j = j0; j < j1 && found != 3; j++)
            found |= kernels->scan(dense_at(sequence, i0 + i, j), 0, 1, size, value, hidden);
    return found == 3 ? ATTNI_PARTIAL : found == 1 ? ATTNI_EMPTY : ATTNI_FULL;
}

/* -------------------------------------------------------------------------------- prefetching */

attni_prefetch attni_mask_prefetch(const attni_sequence *sequence, int64_t i0, int rows, int64_t j0,
                                   int64_t n)
{
    const attn_tensor *mask = sequence->args->mask;
    if (!mask || n <= 0 || mask->stride[2] == 0 || mask->stride[3] != 1)
        return (attni_prefetch){0};
    const ptrdiff_t size = (ptrdiff_t)attn_dtype_size(mask->dtype);
    return (attni_prefetch){.first = dense_at(sequence, i0, j0),
                            .ld = (ptrdiff_t)mask->stride[2] * size,
                            .rows = rows,
                            .lines =
                                (int)attni_div_up((n < ATTNI_CHUNK ? n : ATTNI_CHUNK) * size, 64)};
}

void attni_mask_prefetch_part(attni_prefetch *prefetch)
{
    const int part = (prefetch->rows * prefetch->lines + ATTNI_MASK_PREFETCH_PARTS - 1) /
                     ATTNI_MASK_PREFETCH_PARTS;
    for (int n = 0; n < part && prefetch->row < prefetch->rows; n++) {
        __builtin_prefetch(prefetch->first + prefetch->row * prefetch->ld + prefetch->line * 64, 0,
                           2);
        if (++prefetch->line == prefetch->lines)
            prefetch->line = 0, prefetch->row++;
    }
}
