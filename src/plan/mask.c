/* Masks: a table with one row for each kind of rule (`kinds`, below). The glossary in
 * kernel/kernel.h explains block, lane and tile. A call is computed by one of two engines, that of
 * tiles or that of bf16 (plan/engine.h).
 *
 *   active  does this call use the rule?
 *   check   are the caller's arguments valid? (NULL: nothing to check)
 *   span    two ranges of keys: those that at least one of the queries i0 .. i1-1 sees, and those
 *           that all of them see (NULL: both are all keys)
 *   scan    what the rule does to queries i0 .. i1-1 and keys j0 .. j1-1. ATTNI_FULL: nothing.
 *           ATTNI_EMPTY: it hides all of these keys from all of these queries. ATTNI_PARTIAL:
 *           anything else. (NULL: span has the answer)
 *   add     adds a bias to a block of scores (NULL: the rule adds nothing)
 *   show    visible[r] has a bit for each lane: does its query see key j0 + r? Clears the bits of
 *           the queries from which the rule hides the key, and may clear those of lanes without
 *           a query (NULL: no key is hidden, or only by a bias of -inf)
 *
 * sdpa_check.c calls attni_mask_kinds(), which calls active, and attni_mask_check(), which calls
 * check. The engines and the gradients (grad/) call attni_mask_span() for the queries of a tile,
 * and attni_mask_classify(), which compares the span with a block of keys and calls scan. If the
 * class is ATTNI_PARTIAL, they call attni_mask_apply(), which calls add and show.
 *
 * A query sees a key if no rule hides it. A float mask hides a key by the bias -inf. First the
 * biases of all rules are added to the score. Then the scores of hidden keys are overwritten by
 * -inf, so a NaN bias at a hidden key is harmless. If all biases are finite or -inf, the order of
 * the rules changes at most the rounding of the sum of biases. docs/ADDING.md says how to add a
 * kind.
 */
#include "mask_dense.h"

#include <limits.h>
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

/* Returns a bit for each lane of the tile: 1 for queries `from` to `to` - 1 of each of its heads.
 * Queries are numbered from block->i0; numbers outside 0 .. block->rows - 1 are ignored. */
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

/* A block has keys outside the sequence only when the output `scores` is written: with packed
 * sequences, a row of `scores` has an element for every key of the call. */
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
                          "sequences is %lld; it must be 0 or more: the number of packed sequences",
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

/* -------------------------------------------------------------------------------------- dense */

/* mask_dense.c has the other functions of these two kinds. */
static bool bool_active(const attn_sdpa_args *args)
{
    return args->mask && args->mask->dtype == ATTN_BOOL;
}

static bool bias_active(const attn_sdpa_args *args)
{
    return args->mask && args->mask->dtype != ATTN_BOOL;
}

/* -------------------------------------------------------------------------------------- table */

static const mask_kind kinds[] = {
    {"bias", bias_active, attni_dense_check, NULL, attni_bias_scan, attni_bias_add, NULL},
    {"alibi", alibi_active, NULL, NULL, alibi_scan, alibi_add, NULL},
    {"bool", bool_active, attni_dense_check, NULL, attni_bool_scan, NULL, attni_bool_show},
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

/* Checks `causal`, `diagonal` and `alibi_form`, whether or not a rule uses them; that `causal` and
 * `diagonal` agree; and `causal_offset`, if it is the offset of the diagonal. */
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
        return attni_fail(err, ATTN_ERR_ARGUMENT, "diagonal",
                          "diagonal is %d and causal is %d; with this causal, diagonal must be %s",
                          (int)args->diagonal, (int)args->causal,
                          args->causal == ATTN_CAUSAL_TOP_LEFT       ? "0"
                          : args->causal == ATTN_CAUSAL_BOTTOM_RIGHT ? "0 or 1"
                                                                     : "0 or 2");
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
