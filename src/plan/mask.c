/* Masks: a table with one row for each kind of rule (`kinds`, at the end). The glossary in
 * kernel/kernel.h explains block, lane and tile. A call is computed by one of two engines, that of
 * tiles or that of bf16 (plan/engine.h).
 *
 *   active  does this call use the rule?
 *   check   are the caller's arguments valid? (NULL: nothing to check)
 *   span    two ranges of keys: those that at least one of the queries i0 .. i1-1 sees, and those
 *           that all of them see (NULL: both are all keys)
 *   scan    what the rule does to queries i0 .. i1-1 and keys j0 .. j1-1: nothing (ATTNI_FULL), it
 *           hides all of these keys from all of these queries (ATTNI_EMPTY), or anything else
 *           (ATTNI_PARTIAL). NULL: span has the answer
 *   add     adds a bias to a block of scores (NULL: the rule adds nothing)
 *   show    visible[r] has a bit for each lane: does its query see key j0 + r? Clears the bits of
 *           the queries from which the rule hides the key (NULL: no key is hidden, or only by a
 *           bias of -inf)
 *
 * sdpa_check.c calls attni_mask_kinds(), which calls active, and attni_mask_check(), which calls
 * check. The engines call attni_mask_span() for the queries of a tile, and attni_mask_classify(),
 * which compares the span with a block of keys and calls scan. If the class is ATTNI_PARTIAL, they
 * call attni_mask_apply(), which calls add and show.
 *
 * A query sees a key if no rule hides it. A float mask hides a key by the bias -inf. The biases of
 * all rules are added to the score. So no rule depends on another. After the biases, the scores of
 * hidden keys are overwritten by -inf, so a NaN bias at a hidden key is harmless. docs/ADDING.md
 * says how to add a kind.
 */
#include "plan.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#define UNBOUNDED (INT64_MAX / 4)

typedef struct mask_kind {
    const char *name;
    bool (*active)(const attn_sdpa_args *args);
    attn_status (*check)(const attni_plan *plan, attn_error *err);
    void (*span)(const attni_sequence *sequence, int64_t i0, int64_t i1, attni_span *span);
    attni_class (*scan)(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                        int64_t j1);
    void (*add)(const attni_sequence *sequence, const attni_block *block);
    void (*show)(const attni_sequence *sequence, const attni_block *block, uint64_t *visible);
} mask_kind;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Returns a bit for each lane: 1 for the queries `from` to `to` - 1 of each head of the block.
 * Queries are numbered from the block's first query; numbers outside the block are ignored. */
static uint64_t lanes(const attni_block *block, int64_t from, int64_t to)
{
    from = max64(from, 0);
    to = min64(to, block->rows);
    if (from >= to)
        return 0;
    const uint64_t one = UINT64_MAX >> (64 - (to - from)) << from;
    uint64_t all = one;
    for (int h = 1; h < block->heads; h++)
        all |= one << h * block->rows;
    return all;
}

/* Hides all keys but `from` to `to` - 1, for all lanes. */
static void show_keys(const attni_block *block, uint64_t *visible, int64_t from, int64_t to)
{
    for (int r = 0; r < block->n; r++)
        if (block->j0 + r < from || block->j0 + r >= to)
            visible[r] = 0;
}

/* ----------------------------------------------------------------------------------- sequence */

static bool sequence_active(const attn_sdpa_args *args)
{
    (void)args;
    return true;
}

static void sequence_span(const attni_sequence *sequence, int64_t i0, int64_t i1, attni_span *span)
{
    (void)i0, (void)i1;
    *span = (attni_span){0, sequence->S, 0, sequence->S};
}

/* A block has keys outside the sequence only when the output `scores` is written. */
static void sequence_show(const attni_sequence *sequence, const attni_block *block,
                          uint64_t *visible)
{
    show_keys(block, visible, 0, sequence->S);
}

static attn_status check_offsets(const char *name, const int64_t *at, int64_t n, int64_t limit,
                                 const char *letter, attn_error *err)
{
    if (at[0] != 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, name, "%s starts at %lld; it must start at 0",
                          name, (long long)at[0]);
    for (int64_t i = 0; i < n; i++)
        if (at[i + 1] < at[i])
            return attni_fail(err, ATTN_ERR_ARGUMENT, name,
                              "%s falls from %lld to %lld at element %lld; it must never fall",
                              name, (long long)at[i], (long long)at[i + 1], (long long)(i + 1));
    if (at[n] > limit)
        return attni_fail(err, ATTN_ERR_ARGUMENT, name, "%s ends at %lld, past %s = %lld", name,
                          (long long)at[n], letter, (long long)limit);
    return ATTN_OK;
}

static attn_status sequence_check(const attni_plan *plan, attn_error *err)
{
    const attn_sdpa_args *args = &plan->args;
    if (!args->cu_seqlens_q && !args->cu_seqlens_k)
        return ATTN_OK;
    if (!args->cu_seqlens_q || !args->cu_seqlens_k) {
        const char *missing = args->cu_seqlens_q ? "cu_seqlens_k" : "cu_seqlens_q";
        return attni_fail(err, ATTN_ERR_ARGUMENT, missing,
                          "%s is NULL; cu_seqlens_q and cu_seqlens_k must be given together",
                          missing);
    }
    if (args->key_lengths)
        return attni_fail(
            err, ATTN_ERR_ARGUMENT, "key_lengths",
            "key_lengths and cu_seqlens exclude each other; leave out key_lengths, and choose "
            "cu_seqlens_k so that sequences have these lengths");
    if (args->sequences < 0 || args->sequences > INT64_MAX / 16)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "sequences",
                          "sequences is %lld; it must be the number of packed sequences",
                          (long long)args->sequences);
    const attn_status status =
        check_offsets("cu_seqlens_q", args->cu_seqlens_q, args->sequences, plan->whole_T, "T", err);
    if (status)
        return status;
    return check_offsets("cu_seqlens_k", args->cu_seqlens_k, args->sequences, plan->S, "S", err);
}

/* ------------------------------------------------------------------------------------- causal */

static bool causal_active(const attn_sdpa_args *args) { return args->causal != ATTN_CAUSAL_NONE; }

/* Visible: j <= i + off. */
static void causal_span(const attni_sequence *sequence, int64_t i0, int64_t i1, attni_span *span)
{
    *span = (attni_span){0, i1 - 1 + sequence->off + 1, 0, i0 + sequence->off + 1};
}

static void causal_show(const attni_sequence *sequence, const attni_block *block, uint64_t *visible)
{
    for (int r = 0; r < block->n; r++)
        visible[r] &= lanes(block, block->j0 + r - sequence->off - block->i0, block->rows);
}

/* ------------------------------------------------------------------------------------- window */

static bool window_active(const attn_sdpa_args *args)
{
    return args->window_left != -1 || args->window_right != -1;
}

static attn_status window_check(const attni_plan *plan, attn_error *err)
{
    const int64_t left = plan->args.window_left, right = plan->args.window_right;
    if (left < -1 || right < -1 || left > UNBOUNDED || right > UNBOUNDED)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "window",
                          "window is %lld,%lld; each side must be -1 (open) or 0..2^61 - 1",
                          (long long)left, (long long)right);
    return ATTN_OK;
}

/* Visible: i + off - left <= j <= i + off + right. */
static void window_span(const attni_sequence *sequence, int64_t i0, int64_t i1, attni_span *span)
{
    const int64_t left = sequence->args->window_left, right = sequence->args->window_right;
    *span = (attni_span){-UNBOUNDED, UNBOUNDED, -UNBOUNDED, UNBOUNDED};
    if (left >= 0) {
        span->any0 = i0 + sequence->off - left;
        span->all0 = i1 - 1 + sequence->off - left;
    }
    if (right >= 0) {
        span->any1 = i1 - 1 + sequence->off + right + 1;
        span->all1 = i0 + sequence->off + right + 1;
    }
}

static void window_show(const attni_sequence *sequence, const attni_block *block, uint64_t *visible)
{
    const int64_t left = sequence->args->window_left, right = sequence->args->window_right;
    for (int r = 0; r < block->n; r++) {
        const int64_t i = block->j0 + r - sequence->off - block->i0; /* the query on the diagonal */
        visible[r] &=
            lanes(block, right >= 0 ? i - right : 0, left >= 0 ? i + left + 1 : block->rows);
    }
}

/* ------------------------------------------------------------------------------------ lengths */

static bool lengths_active(const attn_sdpa_args *args) { return args->key_lengths != NULL; }

static attn_status lengths_check(const attni_plan *plan, attn_error *err)
{
    const int64_t *n = plan->args.key_lengths;
    for (int64_t b = 0; b < plan->B; b++)
        if (n[b] < 0 || n[b] > plan->S)
            return attni_fail(err, ATTN_ERR_ARGUMENT, "key_lengths",
                              "key_lengths[%lld] is %lld; it must be within 0..S = %lld",
                              (long long)b, (long long)n[b], (long long)plan->S);
    return ATTN_OK;
}

static void lengths_span(const attni_sequence *sequence, int64_t i0, int64_t i1, attni_span *span)
{
    (void)i0, (void)i1;
    const int64_t n = sequence->args->key_lengths[sequence->b];
    *span = (attni_span){0, n, 0, n};
}

static void lengths_show(const attni_sequence *sequence, const attni_block *block,
                         uint64_t *visible)
{
    show_keys(block, visible, INT64_MIN, sequence->args->key_lengths[sequence->b]);
}

/* -------------------------------------------------------------------------------------- dense */

static bool bool_active(const attn_sdpa_args *args)
{
    return args->mask && args->mask->dtype == ATTN_BOOL;
}

static attn_status dense_check(const attni_plan *plan, attn_error *err)
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
 * the queries (stride 0), else `rows`. Not for blocks of several heads, which have one row of mask:
 * with a mask, heads share a tile only if T is 1 and the mask is the same for all of them. */
static int different_rows(const attn_tensor *mask, int64_t rows)
{
    return mask->stride[2] == 0 && rows > 1 ? 1 : (int)rows;
}

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

static attni_class bool_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
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

static void bool_show(const attni_sequence *sequence, const attni_block *block, uint64_t *visible)
{
    uint64_t bits[64] = {0};
    const int rows = block->heads > 1 ? 1 : different_rows(sequence->args->mask, block->rows);
    bool_bits(sequence, block->i0, rows, block->j0, block->n, bits);
    if (rows > 1)
        transpose_bits(bits);
    for (int r = 0; r < block->n; r++)
        visible[r] &= rows > 1 ? bits[r] : -(bits[0] >> r & 1);
}

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
static void bias_add(const attni_sequence *sequence, const attni_block *block)
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

static bool bias_active(const attn_sdpa_args *args)
{
    return args->mask && args->mask->dtype != ATTN_BOOL;
}

/* ATTNI_EMPTY if every element of this part of the mask is -inf, ATTNI_FULL (nothing to add) if
 * every element is 0 or -0, else ATTNI_PARTIAL. The scan stops as soon as ATTNI_PARTIAL is certain,
 * usually in the first row. Elements are compared as bits, not as numbers. */
static attni_class bias_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
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

/* -------------------------------------------------------------------------------------- alibi */

static bool alibi_active(const attn_sdpa_args *args) { return args->alibi_slopes != NULL; }

/* ALiBi adds to every score, so no block counts as ATTNI_FULL. */
static attni_class alibi_scan(const attni_sequence *sequence, int64_t i0, int64_t i1, int64_t j0,
                              int64_t j1)
{
    (void)sequence, (void)i0, (void)i1, (void)j0, (void)j1;
    return ATTNI_PARTIAL;
}

static void alibi_add(const attni_sequence *sequence, const attni_block *block)
{
    const attn_sdpa_args *args = sequence->args;
    const double first = (double)(block->j0 - block->i0 - sequence->off);
    block->kernels->alibi(block->st, block->n, (double)args->alibi_slopes[sequence->h], first,
                          args->alibi_form == ATTN_ALIBI_SYMMETRIC, block->nv);
}

/* -------------------------------------------------------------------------------------- table */

static const mask_kind kinds[] = {
    {"bias", bias_active, dense_check, NULL, bias_scan, bias_add, NULL},
    {"alibi", alibi_active, NULL, NULL, alibi_scan, alibi_add, NULL},
    {"bool", bool_active, dense_check, NULL, bool_scan, NULL, bool_show},
    {"sequence", sequence_active, sequence_check, sequence_span, NULL, NULL, sequence_show},
    {"causal", causal_active, NULL, causal_span, NULL, NULL, causal_show},
    {"window", window_active, window_check, window_span, NULL, NULL, window_show},
    {"lengths", lengths_active, lengths_check, lengths_span, NULL, NULL, lengths_show},
};
#define KINDS (sizeof kinds / sizeof *kinds)
/* Loops over the rules whose bits are set in `bits` (attni_mask_kinds()). The loop is unrolled so
 * that the compiler sees which function is called: a call through a pointer costs about 4 ns. */
#define FOR_KINDS(kind, bits)                                                                      \
    _Pragma("GCC unroll 16") for (unsigned i_ = 0; i_ < KINDS;                                     \
                                  i_++) for (const mask_kind *kind =                               \
                                                 (bits) >> i_ & 1 ? &kinds[i_] : NULL;             \
                                             kind; kind = NULL)

unsigned attni_mask_kinds(const attn_sdpa_args *args)
{
    unsigned bits = 0;
    FOR_KINDS (kind, UINT_MAX)
        bits |= (unsigned)kind->active(args) << (kind - kinds);
    return bits;
}

/* Checks `causal`, and `diagonal` and `alibi_form` even if no rule uses them, and `causal_offset`
 * if it is the offset of the diagonal. */
static attn_status check_choices(const attn_sdpa_args *args, attn_error *err)
{
    if ((int)args->causal < 0 || args->causal > ATTN_CAUSAL_OFFSET)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "causal", "causal is %d; it must be 0..3",
                          (int)args->causal);
    if ((int)args->diagonal < 0 || args->diagonal > ATTN_DIAGONAL_OFFSET)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "diagonal", "diagonal is %d; it must be 0..2",
                          (int)args->diagonal);
    if ((int)args->alibi_form < 0 || args->alibi_form > ATTN_ALIBI_SYMMETRIC)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "alibi_form",
                          "alibi_form is %d; it must be 0 or 1", (int)args->alibi_form);
    if (args->diagonal && args->causal && (int)args->causal != (int)args->diagonal + 1)
        return attni_fail(
            err, ATTN_ERR_ARGUMENT, "diagonal",
            "diagonal is %d and causal is %d; with this causal, diagonal must be 0 or %d",
            (int)args->diagonal, (int)args->causal, (int)args->causal - 1);
    if ((args->causal == ATTN_CAUSAL_OFFSET || args->diagonal == ATTN_DIAGONAL_OFFSET) &&
        (args->causal_offset > UNBOUNDED || args->causal_offset < -UNBOUNDED))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "causal_offset",
                          "causal_offset is %lld; it must be within +-(2^61 - 1)",
                          (long long)args->causal_offset);
    return ATTN_OK;
}

attn_status attni_mask_check(const attni_plan *plan, attn_error *err)
{
    const attn_status choices = check_choices(&plan->args, err);
    if (choices)
        return choices;
    FOR_KINDS (kind, plan->kinds) {
        const attn_status status = kind->check ? kind->check(plan, err) : ATTN_OK;
        if (status)
            return status;
    }
    return ATTN_OK;
}

bool attni_mask_biases(unsigned bits)
{
    bool biases = false;
    FOR_KINDS (kind, bits)
        biases |= kind->add != NULL;
    return biases;
}

bool attni_mask_shared(const attni_plan *plan)
{
    const attn_sdpa_args *args = &plan->args;
    return !alibi_active(args) && (!args->mask || (args->mask->stride[1] == 0 && plan->T == 1));
}

attni_span attni_mask_span(const attni_sequence *sequence, int64_t i0, int64_t i1)
{
    attni_span all = {-UNBOUNDED, UNBOUNDED, -UNBOUNDED, UNBOUNDED};
    FOR_KINDS (kind, sequence->kinds) {
        if (!kind->span)
            continue;
        attni_span s;
        kind->span(sequence, i0, i1, &s);
        all.any0 = max64(all.any0, s.any0);
        all.any1 = min64(all.any1, s.any1);
        all.all0 = max64(all.all0, s.all0);
        all.all1 = min64(all.all1, s.all1);
    }
    return all;
}

attni_class attni_mask_classify(const attni_sequence *sequence, const attni_span *span, int64_t i0,
                                int64_t i1, int64_t j0, int64_t j1)
{
    if (j1 <= span->any0 || j0 >= span->any1)
        return ATTNI_EMPTY;
    attni_class result = j0 >= span->all0 && j1 <= span->all1 ? ATTNI_FULL : ATTNI_PARTIAL;
    FOR_KINDS (kind, sequence->kinds) {
        const attni_class c = kind->scan ? kind->scan(sequence, i0, i1, j0, j1) : ATTNI_FULL;
        if (c == ATTNI_EMPTY)
            return ATTNI_EMPTY;
        if (c == ATTNI_PARTIAL)
            result = ATTNI_PARTIAL;
    }
    return result;
}

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
                            .lines = (int)attni_div_up(min64(n, ATTNI_CHUNK) * size, 64)};
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

void attni_mask_apply(const attni_sequence *sequence, const attni_block *block)
{
    uint64_t visible[ATTNI_BLOCK];
    memset(visible, 0xff, sizeof visible);
    FOR_KINDS (kind, sequence->kinds) {
        if (kind->add)
            kind->add(sequence, block);
        if (kind->show)
            kind->show(sequence, block, visible);
    }
    uint64_t all = UINT64_MAX;
    for (int r = 0; r < block->n; r++)
        all &= visible[r];
    if (all == UINT64_MAX)
        block->kernels->maxima(block->mx, block->st, block->n, block->nv);
    else
        block->kernels->hide(block->st, block->mx, visible, block->n, block->nv);
}
