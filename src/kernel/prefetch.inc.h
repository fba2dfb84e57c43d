/* Prefetching in the decode operations. Included by decode.inc.h, which defines OWN.
 *
 * A decode operation prefetches one stream of lines in address order, spread over the arithmetic.
 * scores_decode() transposes keys in registers: it reads one line of each of 16 rows, then the
 * next line of each. If lines were prefetched in the order of these reads, the hardware prefetcher
 * could not follow (Zen 5: a loop that reads so reaches 25 GB/s, a streaming read 36; decision
 * 0007). A core has few line-fill buffers, so lines are prefetched
 * into L1 one at a time, between two multiplications. (With huge pages, where a streaming read
 * reaches 40 GB/s, scores_decode() alone reads 38 GB/s; decision 0009 has what was tried.)
 *
 * With one query, the prefetch is half a block ahead of the reads. Half a block stays in L1 (f32
 * and D = 128: 16 KB). With more queries, values_decode() passes several times over the rows of a
 * block, each time for other components. So the prefetch is a whole block ahead.
 *
 * On some CPUs (decision 0030), lines are prefetched into L2 first, next_rows->l2_ahead rows ahead
 * of the reads. If rows are short, these are more rows than the half block or block above (decision
 * 0051). A prefetch into L1 follows at half this distance. If next_rows->l2_only is set, the
 * prefetch into L1 is 0 rows ahead of the reads: it is executed, but names lines that are being
 * read, and so has no effect (decision 0055). */
typedef struct prefetcher {
    uintptr_t line, end; /* the next line, and the end of its row: integers, since the addresses may
                          * lie outside any array */
    uintptr_t behind;    /* bytes by which the prefetch into L1 follows the one into L2; 0: all
                          * prefetches are into L1 */
    ptrdiff_t bytes;     /* distance between rows */
    int64_t n;           /* bytes in a row */
    int64_t rows;        /* rows left here; then the prefetch continues with next_rows */
    const attni_next_rows *next_rows;
} prefetcher;

/* Continues with `count` rows of n bytes. Rows without gaps are treated as one long row. */
V_INLINE void prefetch_from(prefetcher *a, uintptr_t rows, ptrdiff_t bytes, int64_t n,
                            int64_t count)
{
    const bool one = bytes == n;
    a->line = rows;
    a->end = rows + (uintptr_t)(one ? count * n : n);
    a->bytes = bytes;
    a->n = n;
    a->rows = one ? 1 : count;
}

/* Continues with next_rows. After the last of them the stream starts again at the first: its lines
 * are in a cache by then, whereas the memory after the last row may have no page. */
V_INLINE void prefetch_next_rows(prefetcher *a)
{
    const attni_next_rows *next = a->next_rows;
    a->line = (uintptr_t)next->rows;
    a->end = a->line + (uintptr_t)next->n;
    a->bytes = next->bytes;
    a->n = next->n;
    a->rows = next->count;
}

/* The stream of `count` rows of n bytes each, after the first `before` of them. */
V_INLINE prefetcher prefetch_stream(const attni_next_rows *next_rows, const char *rows,
                                    ptrdiff_t bytes, int64_t n, int64_t count, int64_t before)
{
    const uintptr_t distance = (uintptr_t)(before * bytes);
    prefetcher a = {.behind = next_rows->l2_ahead ? distance >> !next_rows->l2_only : 0,
                    .next_rows = next_rows};
    if (count > before)
        prefetch_from(&a, (uintptr_t)rows + distance, bytes, n, count - before);
    else
        prefetch_next_rows(&a);
    return a;
}

/* If the stream is prefetched into L2 (`behind` is not 0) and `lines` is above 1, prefetches
 * `lines` lines into L2. It is called once before the calls of prefetch_line() for these lines, so
 * the level is tested once for all of them: a test for each line took 12 % of the instructions of
 * scores_decode(). The empty assembly here and below keeps the compiler from making two copies of
 * the loop around it, one for each level, and from moving prefetches together.
 *
 * Rows of bf16 and f16 are always prefetched into L1 here: f16 is slower with L2 (decision 0030).
 * The bf16 engine has its own prefetch, which uses L2. */
V_INLINE void prefetch_begin(prefetcher *a, const int lines, const attn_dtype dtype)
{
    if (!PREFETCHES || dtype != OWN || lines == 1)
        return;
    __asm__ volatile("" : "+r"(a->line));
    if (a->behind)
        UNROLL for (int i = 0; i < lines; i++)
            __builtin_prefetch((const void *)(a->line + 64 * (uintptr_t)i), 0, 2);
}

/* Prefetches line number `line` of `lines`. If `lines` is above 1: into L1, since prefetch_begin()
 * has prefetched it into L2 if that is wanted. If `lines` is 1: into L2, and not into
 * L1, if the stream is prefetched into L2; else into L1. */
V_INLINE void prefetch_line(prefetcher *a, const int line, const int lines, const attn_dtype dtype)
{
    if (!PREFETCHES)
        return;
    __asm__ volatile("" : "+r"(a->line));
    const uintptr_t at = a->line + 64 * (uintptr_t)line;
    if (dtype != OWN) {
        __builtin_prefetch((const void *)at);
    } else if (lines > 1) {
        __builtin_prefetch((const void *)(at - a->behind));
    } else {
        __asm__ volatile("" : "+r"(a->behind));
        if (a->behind)
            __builtin_prefetch((const void *)at, 0, 2);
        else
            __builtin_prefetch((const void *)at);
    }
}

/* Call after `lines` lines were prefetched: advances to the next ones. */
V_INLINE void prefetch_end(prefetcher *a, const int lines)
{
    a->line += 64 * (uintptr_t)lines;
    if (!PREFETCHES || __builtin_expect(a->line < a->end, 1))
        return;
    if (--a->rows > 0) {
        a->line = a->end + (uintptr_t)(a->bytes - a->n);
        a->end += (uintptr_t)a->bytes;
    } else {
        prefetch_next_rows(a);
    }
}

/* The stream of an operation that reads rows of a plain tensor. */
V_INLINE prefetcher prefetch_plain(const attni_next_rows *next_rows, const char *rows,
                                   ptrdiff_t bytes, int64_t n, int count, const int nr)
{
    const int l1_ahead = nr == 1 ? ATTNI_BLOCK / 2 : ATTNI_BLOCK;
    const int most = next_rows->l2_ahead ? next_rows->l2_ahead : l1_ahead;
    return prefetch_stream(next_rows, rows, bytes, n, count, count < most ? count : most);
}
