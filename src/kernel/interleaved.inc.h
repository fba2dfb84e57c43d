/* Scores of few queries from interleaved keys (kernel.h). Included after decode.inc.h, whose
 * helpers it uses.
 *
 * Lines are read in address order, one group at a time: two groups would be two address streams. */
#if ATTNI_BITS == 32

enum {
    INTERLEAVED_VECTORS = ATTNI_GROUP / V_LANES, /* vectors in a line */
    INTERLEAVED_PREFETCH = 8192                  /* distance in bytes */
};
#define FOR_L UNROLL for (int l = 0; l < INTERLEAVED_VECTORS; l++)

/* s += the products of one line: a unit of each of ATTNI_GROUP keys. Components of q are ld
 * apart. */
V_INLINE void interleaved_line(vec (*s)[V_MAX_DECODE_ROWS], const R *q, const int ld,
                               const char *line, const attn_dtype dtype, const int nr)
{
    FOR_L
    {
        const vec kt = v_loadu((const R_any *)(line + l * (int)sizeof(vec)));
        if (dtype == OWN) {
            FOR_R s[l][r] = v_fma(kt, v_bcast(q + r), s[l][r]);
            continue;
        }
        (void)ld;
#ifdef V_HALVES
        const vec first = dtype == ATTN_BF16 ? v_low_bf16(kt) : v_low_f16(kt);
        const vec second = dtype == ATTN_BF16 ? v_high_bf16(kt) : v_high_f16(kt);
        FOR_R s[l][r] = v_fma(first, v_bcast(q + r), s[l][r]);
        FOR_R s[l][r] = v_fma(second, v_bcast(q + ld + r), s[l][r]);
#endif
    }
}

/* interleaved_line() for `lines` lines, while as many lines are prefetched. */
V_INLINE void interleaved_lines(vec (*s)[V_MAX_DECODE_ROWS], const R *q, const char *k,
                                prefetcher *next, const attn_dtype dtype, const int lines,
                                const int nr)
{
    const int each = dtype == OWN ? 1 : 2, ld = QT_LD(nr);
    prefetch_begin(next, lines, OWN);
    UNROLL for (int u = 0; u < lines; u++)
    {
        prefetch_line(next, u, lines, OWN);
        interleaved_line(s, q + u * each * ld, ld, k + u * ATTNI_LINE, dtype, nr);
    }
    prefetch_end(next, lines);
}

/* Scores of n keys, rounded up to whole groups: a row of st per query. */
V_INLINE void interleaved_block(R *st, const R *q, const char *k, prefetcher *next,
                                const attn_dtype dtype, int n, int64_t D, const int nr)
{
    const int each = dtype == OWN ? 1 : 2, at_once = nr == 1 ? 4 : 1;
    for (int j = 0; j < n; j += ATTNI_GROUP) {
        vec x[INTERLEAVED_VECTORS][V_MAX_DECODE_ROWS];
        FOR_L FOR_R x[l][r] = v_set1(-(R)0); /* -0 + x is x, for every x */
        for (int64_t run = 0; run < D; run += ATTNI_D_CHAIN) {
            const int to = D - run < ATTNI_D_CHAIN ? (int)(D - run) : ATTNI_D_CHAIN;
            const R *at = q + run * QT_LD(nr);
            vec s[INTERLEAVED_VECTORS][V_MAX_DECODE_ROWS];
            FOR_L FOR_R s[l][r] = v_set1(0);
            int d = 0;
            for (; d + at_once * each <= to; d += at_once * each, k += at_once * ATTNI_LINE)
                interleaved_lines(s, at + d * QT_LD(nr), k, next, dtype, at_once, nr);
            for (; d < to; d += each, k += ATTNI_LINE)
                interleaved_lines(s, at + d * QT_LD(nr), k, next, dtype, 1, nr);
            FOR_L FOR_R x[l][r] = v_add(x[l][r], s[l][r]);
        }
        FOR_L FOR_R v_store(st + r * ATTNI_BLOCK + j + l * V_LANES, x[l][r]);
    }
}

/* mx[r] = the maximum of the first n scores of row r. */
V_INLINE void interleaved_maxima(R *mx, const R *st, int n, int rows)
{
    v_store(mx, v_set1(-R_INF));
    for (int r = 0; r < rows; r++) {
        vec top = v_set1(-R_INF);
        for (int i = 0; i < n; i += V_LANES) {
            const vec x = v_load(st + r * ATTNI_BLOCK + i);
            top = v_max(top, v_select(v_lt(v_iota(), v_set1((R)(n - i))), x, v_set1(-R_INF)));
        }
        mx[r] = highest(top);
    }
}

static void op_scores_interleaved(void *st_, void *mx_, const void *q, const void *k_,
                                  attn_dtype dtype_, int n, int64_t D, int rows,
                                  const attni_next_rows *next_rows)
{
    const int64_t size = dtype_ == OWN ? ATTNI_UNIT : ATTNI_UNIT / 2;
    const int64_t bytes = (D * size + ATTNI_UNIT - 1) / ATTNI_UNIT * ATTNI_LINE;
    const int64_t all = (n + ATTNI_GROUP - 1) / ATTNI_GROUP * bytes;
    const int64_t before = all < INTERLEAVED_PREFETCH ? all : INTERLEAVED_PREFETCH;
    const char *k = k_;
    prefetcher next = prefetch_stream(next_rows, k, 1, 1, all, before);
    R *st = st_, *mx = mx_;
    for (int j = 0; j == 0 || j < n;
         j += ATTNI_BLOCK, st += V_MAX_DECODE_ROWS * ATTNI_BLOCK, mx += V_LANES) {
        const int here = n - j < ATTNI_BLOCK ? n - j : ATTNI_BLOCK;
        WITH_DTYPE(dtype_, WITH_NR(rows, interleaved_block(st, q, k, &next, dtype, here, D, nr)));
        k += ATTNI_BLOCK / ATTNI_GROUP * bytes;
        interleaved_maxima(mx, st, here, rows);
    }
}

/* Scores of one group of keys, and the weighted values of ATTNI_GROUP other keys. Both arrays are
 * read in address order without prefetch instructions: the loop has few loads, the same at each
 * step, so the hardware prefetcher reaches its full speed. */
V_INLINE void both_group(R *st, vec *s, vec *sum, const R *q, const char *k, const char *v,
                         ptrdiff_t bytes, const R *p, const int D)
{
    const int groups = D / V_LANES, lines = D / ATTNI_GROUP; /* lines of keys per row of values */
    const int values = ATTNI_GROUP / (D / ATTNI_D_CHAIN);    /* rows of values per run */
    vec x[INTERLEAVED_VECTORS];
    FOR_L x[l] = v_set1(-(R)0);
    for (int run = 0; run < D; run += ATTNI_D_CHAIN) {
        vec t[INTERLEAVED_VECTORS];
        FOR_L t[l] = v_set1(0);
        NO_UNROLL for (int i = 0; i < values; i++, v += bytes, p++)
        {
            UNROLL for (int u = 0; u < lines; u++, k += ATTNI_LINE, q++) FOR_L t[l] =
                v_fma(v_loadu((const R_any *)(k + l * (int)sizeof(vec))), v_bcast(q), t[l]);
            const vec w = v_bcast(p);
            *sum = v_add(*sum, w);
            FOR_G s[g] = v_fma(v_loadu((const R_any *)v + g * V_LANES), w, s[g]);
        }
        FOR_L x[l] = v_add(x[l], t[l]);
    }
    FOR_L v_store(st + l * V_LANES, x[l]);
}

V_INLINE void both_block(R *st, const R *q, const char *k, R *sums, R *l, const char *v,
                         ptrdiff_t bytes, const R *p, int flags, const int D)
{
    const int groups = D / V_LANES;
    vec s[128 / V_LANES], sum = v_set1(0);
    FOR_G s[g] = v_set1(0);
    for (int j = 0; j < ATTNI_BLOCK; j += ATTNI_GROUP)
        both_group(st + j, s, &sum, q, k + j * D * (int)sizeof(R), v + j * bytes, bytes, p + j, D);
    FOR_G
    {
        R *to = sums + g * V_LANES;
        v_store(to, flags & ATTNI_FIRST ? s[g] : v_add(v_load(to), s[g]));
    }
    *l += v_first(sum);
}

static void op_values_and_next_scores(void *st, void *mx, const void *q, const void *k, void *sums,
                                      void *l, const void *v, ptrdiff_t ldv, const void *p,
                                      int64_t D, int flags)
{
    const ptrdiff_t bytes = ldv * (ptrdiff_t)sizeof(R);
    enum { most = 8 * V_LANES }; /* as in attni_has_values_and_next_scores() */
    if (D == 64 && 64 <= most)
        both_block(st, q, k, sums, l, v, bytes, p, flags, 64);
    else if (D == 128 && 128 <= most)
        both_block(st, q, k, sums, l, v, bytes, p, flags, 128);
    interleaved_maxima(mx, st, ATTNI_BLOCK, 1);
}
#else
#define op_scores_interleaved NULL
#define op_values_and_next_scores NULL
#endif
