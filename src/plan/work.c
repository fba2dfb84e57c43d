/* The work of a call: visible pairs of a query and a key (attni_visible_pairs), and bytes of
 * tensors (attni_tensor_bytes). attn_sdpa_plan and its like report both. */
#include "plan.h"

double attni_tensor_bytes(const attn_tensor *t)
{
    double bytes = (double)attn_dtype_size(t->dtype);
    for (int d = 0; d < 4; d++)
        bytes *= t->stride[d] ? (double)t->shape[d] : t->shape[d] > 0;
    return bytes;
}

/* The sum of the n numbers max(0, a), max(0, a + step), ..., max(0, b); step is -1, 0 or 1. */
static double sum_run(int64_t a, int64_t b, int64_t n)
{
    if (a < 0 && b < 0)
        return 0;
    if (a < 0 || b < 0) { /* count those from 0 on only */
        n = (a < 0 ? b : a) + 1;
        a = 0, b = n - 1;
    }
    return (double)n * ((double)a + (double)b) / 2;
}

static int64_t visible_keys(const attni_sequence *sequence, int64_t i)
{
    const attni_span span = attni_mask_span(sequence, i, i + 1);
    return span.any1 - span.any0;
}

/* Visible pairs of queries i0 .. i1 (inclusive). Each rule gives a query a first and a last key;
 * from query to query, each of them stays or moves by one. The span begins at the maximum of the
 * first keys and ends at the minimum of the last keys of all rules. So the number of keys, before
 * it is cut off at 0, is concave in i. If the number of keys of the middle query lies on the line
 * between the numbers of the first and the last query, so do the numbers of all queries between
 * them, which are then summed at once. Else the two halves are counted separately. The recursion
 * takes a number of steps in the order of the logarithm of the number of queries. */
static double pairs_of_run(const attni_sequence *sequence, int64_t i0, int64_t i1)
{
    const int64_t first = visible_keys(sequence, i0), last = visible_keys(sequence, i1),
                  n = i1 - i0;
    const int64_t step = n ? (last - first) / n : 0, middle = i0 + n / 2;
    if (first + step * n == last && first + step * (n / 2) == visible_keys(sequence, middle))
        return sum_run(first, last, n + 1);
    return pairs_of_run(sequence, i0, middle) + pairs_of_run(sequence, middle + 1, i1);
}

double attni_visible_pairs(const attni_plan *p)
{
    const attn_sdpa_args *a = &p->args;
    const int64_t sequences = a->cu_seqlens_q ? a->sequences : 1;
    double pairs = 0;
    if (!p->B || !p->H || !p->T || !p->S)
        return 0;
    for (int64_t b = 0; b < (a->key_lengths ? p->B : 1); b++) /* else all batches are the same */
        for (int64_t n = 0; n < sequences; n++) {
            attni_sequence sequence;
            attni_find_sequence(p, b, 0, n, &sequence);
            if (sequence.T > 0 && sequence.S > 0)
                pairs += pairs_of_run(&sequence, 0, sequence.T - 1);
        }
    return a->key_lengths ? pairs : pairs * (double)p->B;
}
