/* Operations for tiles of a few queries (decoding) and for narrow storage types; included after
 * tile.inc.h, whose helpers it uses. The contracts stand in kernel.h.
 *
 * With one query in a tile of V_LANES, all but one lane of scores() and values() would idle. Here
 * the lanes hold keys (scores) or components of a value, and rows are turned by transposes in
 * registers: every sum keeps the order it has in a full tile, and so every bit. Reading k and v
 * from memory then takes longer than the arithmetic. Rows are asked for one group of keys ahead;
 * hardware does that well only where rows follow each other in memory.
 */

/* n <= V_LANES elements, then zeros. Nothing past them is touched. */
V_INLINE vec load_part(const R_any *p, int n)
{
    if (n == V_LANES)
        return v_loadu(p);
    R lane[V_LANES] = {0};
    for (int i = 0; i < n; i++)
        lane[i] = p[i];
    return v_loadu(lane);
}

/* ------------------------------------------------------------------------------------ widen */

static void op_widen(void *to_, const void *from, ptrdiff_t ld, attn_dtype dtype, int rows,
                     int64_t D)
{
    R *to = to_;
    const char *row = from;
    const ptrdiff_t bytes = ld * (ptrdiff_t)attn_dtype_size(dtype);
    for (int r = 0; r < rows; r++, row += bytes, to += D) {
        int64_t d = 0;
#ifdef V_HALVES
        if (dtype == ATTN_BF16)
            for (; d + V_LANES <= D; d += V_LANES)
                v_storeu(to + d, v_from_bf16(row + 2 * d));
        else if (dtype == ATTN_F16)
            for (; d + V_LANES <= D; d += V_LANES)
                v_storeu(to + d, v_from_f16(row + 2 * d));
#endif
        if (d == D)
            continue;
        const char *rest = row + (size_t)d * attn_dtype_size(dtype);
#if ATTNI_BITS == 32
        attni_load_row_f32(to + d, rest, dtype, 1, D - d);
#else
        attni_load_row_f64(to + d, rest, dtype, 1, D - d);
#endif
    }
}

/* ------------------------------------------------------------------------------- scores_few */

/* s[r] += sum over d < D of k[j][d] * qt[d][r], the lanes being keys j < keys. */
V_INLINE void scores_few_run(vec *s, const R *qt, const R_any *k, ptrdiff_t ldk, int keys, int D,
                             const int nr)
{
    for (int d = 0; d < D; d += V_LANES) {
        const int n = D - d < V_LANES ? D - d : V_LANES;
        vec kt[V_LANES];
        if (keys == V_LANES && n == V_LANES) {
            UNROLL for (int j = 0; j < V_LANES; j++)
            {
                kt[j] = v_loadu(k + j * ldk + d);
                __builtin_prefetch((const char *)(k + (j + V_LANES) * ldk + d));
            }
        } else {
            for (int j = 0; j < V_LANES; j++)
                kt[j] = j < keys ? load_part(k + j * ldk + d, n) : v_set1(0);
        }
        v_transpose(kt);
        if (n == V_LANES) {
            UNROLL for (int u = 0; u < V_LANES; u++) UNROLL for (int r = 0; r < nr; r++) s[r] =
                v_fma(kt[u], v_bcast(qt + (d + u) * V_LANES + r), s[r]);
        } else {
            for (int u = 0; u < n; u++)
                UNROLL for (int r = 0; r < nr; r++) s[r] =
                    v_fma(kt[u], v_bcast(qt + (d + u) * V_LANES + r), s[r]);
        }
    }
}

V_INLINE void scores_few_tile(R *st, R *mx, const R *qt, const R_any *k, ptrdiff_t ldk, int n,
                              int64_t D, const int nr)
{
    vec top = v_set1(-R_INF);
    for (int j = 0; j < n; j += V_LANES) {
        const int keys = n - j < V_LANES ? n - j : V_LANES;
        vec x[V_LANES];
        UNROLL for (int i = 0; i < V_LANES; i++) x[i] = v_set1(0);
        for (int64_t d = 0; d < D; d += ATTNI_RUN) {
            vec s[V_FEW];
            UNROLL for (int r = 0; r < nr; r++) s[r] = v_set1(0);
            scores_few_run(s, qt + d * V_LANES, k + j * ldk + d, ldk, keys,
                           D - d < ATTNI_RUN ? (int)(D - d) : ATTNI_RUN, nr);
            UNROLL for (int r = 0; r < nr; r++) x[r] = d ? v_add(x[r], s[r]) : s[r];
        }
        v_transpose(x);
        for (int u = 0; u < keys; u++) {
            top = v_max(top, x[u]);
            v_store(st + (j + u) * V_LANES, x[u]);
        }
    }
    v_store(mx, top);
}

/* Runs `call` with nr, rows rounded up, as a constant. */
#define WITH_NR(rows, call)                                                                        \
    do {                                                                                           \
        if ((rows) <= 1) {                                                                         \
            enum { nr = 1 };                                                                       \
            call;                                                                                  \
        } else if ((rows) <= 2 || V_FEW == 2) {                                                    \
            enum { nr = 2 };                                                                       \
            call;                                                                                  \
        } else if ((rows) <= 4 || V_FEW == 4) {                                                    \
            enum { nr = V_FEW < 4 ? V_FEW : 4 };                                                   \
            call;                                                                                  \
        } else {                                                                                   \
            enum { nr = V_FEW };                                                                   \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

static void op_scores_few(void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk, int n,
                          int64_t D, int rows)
{
    WITH_NR(rows, scores_few_tile(st, mx, qt, k, ldk, n, D, nr));
}

/* ------------------------------------------------------------------------------- values_few */

/* Sums of weighted values for ng vectors of components, of which the last may hold `tail` < V_LANES
 * (ng is 1 then), into rows of acc or total. */
V_INLINE void values_few_group(R *acc, R *total, const R *factors, const R_any *val, ptrdiff_t ldv,
                               const R *p, int n, int tail, int flags, const int nr, const int ng)
{
    vec s[V_FEW][8];
    UNROLL for (int r = 0; r < nr; r++) UNROLL for (int g = 0; g < ng; g++) s[r][g] = v_set1(0);
    for (int j = 0; j < n; j++) {
        vec x[8];
        UNROLL for (int g = 0; g < ng; g++)
        {
            const R_any *from = val + j * ldv + g * V_LANES;
            x[g] = ng == 1 ? load_part(from, tail) : v_loadu(from);
            __builtin_prefetch((const char *)(from + V_LANES * ldv));
        }
        UNROLL for (int r = 0; r < nr; r++)
        {
            const vec w = v_bcast(p + j * V_LANES + r);
            UNROLL for (int g = 0; g < ng; g++) s[r][g] = v_fma(x[g], w, s[r][g]);
        }
    }
    UNROLL for (int g = 0; g < ng; g++)
    {
        vec x[V_LANES];
        UNROLL for (int r = 0; r < V_LANES; r++) x[r] = r < nr ? s[r][g] : v_set1(0);
        v_transpose(x);
        for (int u = 0; u < tail; u++) {
            R *a = acc + (g * V_LANES + u) * V_LANES, *t = total + (g * V_LANES + u) * V_LANES;
            vec sum = x[u];
            if (!(flags & ATTNI_FIRST))
                sum = v_add(v_load(a), sum);
            if (flags & ATTNI_LAST)
                v_store(t, joined(v_load(t), sum, factors, V_LANES));
            else
                v_store(a, sum);
        }
    }
}

V_INLINE void values_few_tile(R *acc, R *total, const R *factors, const R_any *val, ptrdiff_t ldv,
                              const R *p, int n, int64_t Dv, int flags, const int nr)
{
    int64_t c = 0;
#define STEP(groups)                                                                               \
    for (; c + (groups)*V_LANES <= Dv; c += (groups)*V_LANES)                                      \
    values_few_group(acc + c * V_LANES, total + c * V_LANES, factors, val + c, ldv, p, n, V_LANES, \
                     flags, nr, groups)
    if (nr * 8 <= V_ACCUMULATORS)
        STEP(8);
    if (nr * 4 <= V_ACCUMULATORS)
        STEP(4);
    STEP(2);
    STEP(1);
#undef STEP
    if (c < Dv)
        values_few_group(acc + c * V_LANES, total + c * V_LANES, factors, val + c, ldv, p, n,
                         (int)(Dv - c), flags, nr, 1);
}

static void op_values_few(void *acc, void *total, const void *factors, const void *v, ptrdiff_t ldv,
                          const void *p, int n, int64_t Dv, int rows, int flags)
{
    WITH_NR(rows, values_few_tile(acc, total, factors, v, ldv, p, n, Dv, flags, nr));
}
