/* Masks: one row of a table per kind.
 *
 *   active  does this call use the rule?
 *   check   is what the caller gave sensible? (NULL: nothing to check)
 *   span    the keys that any, and that all, of a run of queries see (NULL: all keys)
 *   scan    looks at the data of one tile, for rules that only data can decide (NULL: by span)
 *   apply   adds to a block of scores, and writes -inf where a key is not visible
 *
 * Spans intersect and applies chain, so rules combine without knowing of each other. Rows that add
 * come before rows that hide: what is hidden is overwritten last, so a NaN bias there is harmless.
 * To add a kind: a field in attn.h, a row here, a case in ref/attn_ref.c.
 */
#include "sdpa.h"

#include <math.h>
#include <string.h>

#define UNBOUNDED (INT64_MAX / 4)

typedef struct mask_kind {
    const char *name;
    bool (*active)(const attn_sdpa_args *args);
    attn_status (*check)(const attni_plan *plan, attn_error *err);
    void (*span)(const attni_view *view, int64_t i0, int64_t i1, attni_span *span);
    attni_class (*scan)(const attni_view *view, int64_t i0, int64_t i1, int64_t j0, int64_t j1);
    void (*apply)(const attni_view *view, const attni_block *block);
    bool biases;
} mask_kind;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* st[row][from..to) = -inf; the lanes are clipped to the block's queries. */
static void hide(const attni_block *block, int row, int64_t from, int64_t to)
{
    const int W = block->nv * block->kernels->lanes;
    from = max64(from, 0);
    to = min64(to, block->rows);
    for (int64_t lane = (int64_t)row * W; lane < (int64_t)row * W + block->rows * block->heads;
         lane += block->rows)
        for (int64_t i = from; i < to; i++) {
            if (block->kernels->bits == 32)
                ((float *)block->st)[lane + i] = -INFINITY;
            else
                ((double *)block->st)[lane + i] = -(double)INFINITY;
        }
}

/* ----------------------------------------------------------------------------------- sequence */

static bool sequence_active(const attn_sdpa_args *args)
{
    (void)args;
    return true;
}

/* Keys outside the sequence are met only when scores of every pair are written out. */
static void sequence_span(const attni_view *view, int64_t i0, int64_t i1, attni_span *span)
{
    (void)i0, (void)i1;
    *span = (attni_span){0, view->S, 0, view->S};
}

static void sequence_apply(const attni_view *view, const attni_block *block)
{
    for (int r = 0; r < block->n; r++)
        if (block->j0 + r < 0 || block->j0 + r >= view->S)
            hide(block, r, 0, block->rows);
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
        return attni_fail(err, ATTN_ERR_ARGUMENT, "key_lengths",
                          "key_lengths and cu_seqlens exclude each other; shorten cu_seqlens_k");
    if (args->sequences < 0 || args->sequences > INT64_MAX / 16)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "sequences",
                          "sequences is %lld; it must be the number of packed sequences",
                          (long long)args->sequences);
    const attn_status status =
        check_offsets("cu_seqlens_q", args->cu_seqlens_q, args->sequences, plan->T, "T", err);
    if (status)
        return status;
    return check_offsets("cu_seqlens_k", args->cu_seqlens_k, args->sequences, plan->S, "S", err);
}

/* ------------------------------------------------------------------------------------- causal */

static bool causal_active(const attn_sdpa_args *args) { return args->causal != ATTN_CAUSAL_NONE; }

static attn_status causal_check(const attni_plan *plan, attn_error *err)
{
    const attn_sdpa_args *args = &plan->args;
    if ((int)args->causal < 0 || args->causal > ATTN_CAUSAL_OFFSET)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "causal", "causal is %d; it must be 0..3",
                          (int)args->causal);
    if (args->causal == ATTN_CAUSAL_OFFSET &&
        (args->causal_offset > UNBOUNDED || args->causal_offset < -UNBOUNDED))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "causal_offset",
                          "causal_offset is %lld; it must be within +-2^61",
                          (long long)args->causal_offset);
    return ATTN_OK;
}

/* j <= i + off */
static void causal_span(const attni_view *view, int64_t i0, int64_t i1, attni_span *span)
{
    *span = (attni_span){0, i1 - 1 + view->off + 1, 0, i0 + view->off + 1};
}

static void causal_apply(const attni_view *view, const attni_block *block)
{
    for (int r = 0; r < block->n; r++)
        hide(block, r, 0, block->j0 + r - view->off - block->i0);
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
                          "window is %lld,%lld; each side must be -1 (open) or 0..2^61",
                          (long long)left, (long long)right);
    return ATTN_OK;
}

/* i + off - left <= j <= i + off + right */
static void window_span(const attni_view *view, int64_t i0, int64_t i1, attni_span *span)
{
    const int64_t left = view->args->window_left, right = view->args->window_right;
    *span = (attni_span){-UNBOUNDED, UNBOUNDED, -UNBOUNDED, UNBOUNDED};
    if (left >= 0) {
        span->any0 = i0 + view->off - left;
        span->all0 = i1 - 1 + view->off - left;
    }
    if (right >= 0) {
        span->any1 = i1 - 1 + view->off + right + 1;
        span->all1 = i0 + view->off + right + 1;
    }
}

static void window_apply(const attni_view *view, const attni_block *block)
{
    const int64_t left = view->args->window_left, right = view->args->window_right;
    for (int r = 0; r < block->n; r++) {
        const int64_t i = block->j0 + r - view->off - block->i0; /* the lane on the diagonal */
        if (left >= 0)
            hide(block, r, i + left + 1, block->rows);
        if (right >= 0)
            hide(block, r, 0, i - right);
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

static void lengths_span(const attni_view *view, int64_t i0, int64_t i1, attni_span *span)
{
    (void)i0, (void)i1;
    const int64_t n = view->args->key_lengths[view->b];
    *span = (attni_span){0, n, 0, n};
}

static void lengths_apply(const attni_view *view, const attni_block *block)
{
    const int64_t n = view->args->key_lengths[view->b];
    for (int r = 0; r < block->n; r++)
        if (block->j0 + r >= n)
            hide(block, r, 0, block->rows);
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

static const char *dense_at(const attni_view *view, int64_t i, int64_t j)
{
    return attni_at(view->args->mask, view->b, view->h, view->i_base + i, view->j_base + j);
}

/* Is some byte of w zero? (Mycroft's test.) */
static bool has_zero_byte(uint64_t w)
{
    return ((w - 0x0101010101010101u) & ~w & 0x8080808080808080u) != 0;
}

/* Keys i..i+n of one row: does it hold a true, does it hold a false? */
static void bool_row(const char *p, int64_t stride, int64_t n, bool *some, bool *all)
{
    int64_t j = 0;
    if (stride == 1) {
        for (; j + 8 <= n && !(*some && !*all); j += 8) {
            uint64_t w;
            memcpy(&w, p + j, sizeof w);
            *some |= w != 0;
            *all &= !has_zero_byte(w);
        }
    }
    for (; j < n && !(*some && !*all); j++) {
        *some |= p[j * stride] != 0;
        *all &= p[j * stride] != 0;
    }
}

static attni_class bool_scan(const attni_view *view, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    const attn_tensor *mask = view->args->mask;
    if (mask->stride[2] == 0)
        i1 = i0 + 1; /* the same row for every query */
    bool some = false, all = true;
    for (int64_t i = i0; i < i1; i++) {
        bool_row(dense_at(view, i, j0), mask->stride[3], j1 - j0, &some, &all);
        if (some && !all)
            return ATTNI_PARTIAL;
    }
    return all ? ATTNI_FULL : ATTNI_EMPTY;
}

/* A false hides as a bias of -inf does; a true adds 0. Built from bits, for which compilers make
 * vectors; a branch would cost ten times as much on a random mask. */
static void bool_load(void *row, const attni_kernels *kernels, const char *p, int64_t stride, int n)
{
    uint32_t *f32 = row;
    uint64_t *f64 = row;
    if (kernels->bits == 64)
        for (int r = 0; r < n; r++)
            f64[r] = (uint64_t) - (p[r * stride] == 0) & 0xfff0000000000000u;
    else if (stride == 1)
        for (int r = 0; r < n; r++)
            f32[r] = (uint32_t) - (p[r] == 0) & 0xff800000u;
    else
        for (int r = 0; r < n; r++)
            f32[r] = (uint32_t) - (p[r * stride] == 0) & 0xff800000u;
}

static void bias_load(void *row, const attni_kernels *kernels, const char *p, int64_t stride, int n,
                      attn_dtype dtype)
{
    if (dtype == ATTN_BOOL)
        bool_load(row, kernels, p, stride, n);
    else if (kernels->bits == 32)
        attni_load_row_f32(row, p, dtype, stride, n);
    else
        attni_load_row_f64(row, p, dtype, stride, n);
}

/* Asks for the next block's part of the mask, whose rows lie too far apart for the hardware to
 * guess: without it a mask that is not in cache made the whole call four times slower. */
static void prefetch_next(const attni_view *view, const attni_block *block)
{
    const int64_t j = block->j0 + ATTNI_BLOCK;
    if (j + ATTNI_BLOCK > view->S)
        return;
    const int bytes = ATTNI_BLOCK * block->kernels->bits / 8;
    for (int i = 0; i < block->rows; i++) {
        const char *p = dense_at(view, block->i0 + i, j);
        for (int at = 0; at < bytes; at += 64)
            __builtin_prefetch(p + at);
    }
}

/* The mask as rows of R: where it lies, if it is such rows, else converted. Rows that repeat are
 * converted once; several heads have one query each, and its row in common. */
static void dense_apply(const attni_view *view, const attni_block *block)
{
    const attn_tensor *mask = view->args->mask;
    const attni_kernels *kernels = block->kernels;
    const char *from = dense_at(view, block->i0, block->j0);
    const attn_dtype own = kernels->bits == 32 ? ATTN_F32 : ATTN_F64;
    if (mask->dtype == own && mask->stride[3] == 1) {
        prefetch_next(view, block);
        kernels->bias(block->st, block->n, from, block->heads > 1 ? 0 : (ptrdiff_t)mask->stride[2],
                      block->rows * block->heads, block->nv);
        return;
    }
    const bool repeats = mask->stride[2] == 0 || block->heads > 1;
    for (int i = 0; i < (repeats ? 1 : block->rows); i++)
        bias_load((char *)block->biases + (size_t)(i * ATTNI_BLOCK * kernels->bits / 8), kernels,
                  dense_at(view, block->i0 + i, block->j0), mask->stride[3], block->n, mask->dtype);
    kernels->bias(block->st, block->n, block->biases, repeats ? 0 : ATTNI_BLOCK,
                  block->rows * block->heads, block->nv);
}

static bool bias_active(const attn_sdpa_args *args)
{
    return args->mask && args->mask->dtype != ATTN_BOOL;
}

/* A tile is empty if every element is -inf. One that is not is found in its first row as a rule. */
static attni_class bias_scan(const attni_view *view, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    const attn_tensor *mask = view->args->mask;
    double row[64];
    if (mask->stride[2] == 0)
        i1 = i0 + 1;
    for (int64_t i = i0; i < i1; i++) {
        for (int64_t j = j0; j < j1; j += 64) {
            const int64_t n = min64(64, j1 - j);
            attni_load_row_f64(row, dense_at(view, i, j), mask->dtype, mask->stride[3], n);
            for (int64_t r = 0; r < n; r++)
                if (row[r] != -(double)INFINITY)
                    return ATTNI_PARTIAL;
        }
    }
    return ATTNI_EMPTY;
}

/* -------------------------------------------------------------------------------------- alibi */

static bool alibi_active(const attn_sdpa_args *args) { return args->alibi_slopes != NULL; }

/* Every tile gets its biases, whatever is visible. */
static attni_class alibi_scan(const attni_view *view, int64_t i0, int64_t i1, int64_t j0,
                              int64_t j1)
{
    (void)view, (void)i0, (void)i1, (void)j0, (void)j1;
    return ATTNI_PARTIAL;
}

static void alibi_apply(const attni_view *view, const attni_block *block)
{
    const double first = (double)(block->j0 - block->i0 - view->off);
    block->kernels->alibi(block->st, block->n, (double)view->args->alibi_slopes[view->h], first,
                          block->nv);
}

/* -------------------------------------------------------------------------------------- table */

static const mask_kind kinds[] = {
    {"bias", bias_active, dense_check, NULL, bias_scan, dense_apply, true},
    {"alibi", alibi_active, NULL, NULL, alibi_scan, alibi_apply, true},
    {"bool", bool_active, dense_check, NULL, bool_scan, dense_apply, false},
    {"sequence", sequence_active, sequence_check, sequence_span, NULL, sequence_apply, false},
    {"causal", causal_active, causal_check, causal_span, NULL, causal_apply, false},
    {"window", window_active, window_check, window_span, NULL, window_apply, false},
    {"lengths", lengths_active, lengths_check, lengths_span, NULL, lengths_apply, false},
};
#define KINDS (sizeof kinds / sizeof *kinds)
/* The rules of a call, by the bits of attni_mask_kinds(). */
#define FOR_KINDS(kind, bits)                                                                      \
    for (unsigned left_ = (bits); left_; left_ &= left_ - 1)                                       \
        for (const mask_kind *kind = &kinds[__builtin_ctz(left_)]; kind; kind = NULL)

unsigned attni_mask_kinds(const attn_sdpa_args *args)
{
    unsigned bits = 0;
    for (unsigned i = 0; i < KINDS; i++)
        bits |= (unsigned)kinds[i].active(args) << i;
    return bits;
}

attn_status attni_mask_check(const attni_plan *plan, attn_error *err)
{
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
        biases |= kind->biases;
    return biases;
}

bool attni_mask_shared(const attni_plan *plan)
{
    const attn_sdpa_args *args = &plan->args;
    return !alibi_active(args) && (!args->mask || (args->mask->stride[1] == 0 && plan->T == 1));
}

attni_span attni_mask_span(const attni_view *view, int64_t i0, int64_t i1)
{
    attni_span all = {-UNBOUNDED, UNBOUNDED, -UNBOUNDED, UNBOUNDED};
    FOR_KINDS (kind, view->kinds) {
        if (!kind->span)
            continue;
        attni_span s;
        kind->span(view, i0, i1, &s);
        all.any0 = max64(all.any0, s.any0);
        all.any1 = min64(all.any1, s.any1);
        all.all0 = max64(all.all0, s.all0);
        all.all1 = min64(all.all1, s.all1);
    }
    return all;
}

attni_class attni_mask_classify(const attni_view *view, const attni_span *span, int64_t i0,
                                int64_t i1, int64_t j0, int64_t j1)
{
    if (j1 <= span->any0 || j0 >= span->any1)
        return ATTNI_EMPTY;
    attni_class result = j0 >= span->all0 && j1 <= span->all1 ? ATTNI_FULL : ATTNI_PARTIAL;
    FOR_KINDS (kind, view->kinds) {
        const attni_class c = kind->scan ? kind->scan(view, i0, i1, j0, j1) : ATTNI_FULL;
        if (c == ATTNI_EMPTY)
            return ATTNI_EMPTY;
        if (c == ATTNI_PARTIAL)
            result = ATTNI_PARTIAL;
    }
    return result;
}

void attni_mask_apply(const attni_view *view, const attni_block *block)
{
    FOR_KINDS (kind, view->kinds)
        kind->apply(view, block);
}
