/* The operations of the linear layer, over the vector operations of isa_<isa>.c. tile.inc.h
 * includes this file for each instruction set, after interleaved.inc.h. The contracts are in
 * kernel.h.
 *
 * Lanes hold *outputs*, and elements of x are broadcast from where they are stored. Therefore the
 * result is stored as rows, no lane is idle even with few rows, and packed weights are read in
 * address order.
 */

#define LINEAR_PREFETCH (512 / (int)sizeof(R)) /* prefetch distance, in components of a row */
/* Runs that linear_few_rows adds at a time; 1 in the portable code, which stays small. */
#define LINEAR_RUNS (V_ACCUMULATORS > 8 ? 2 : 1)

/* ----------------------------------------------------------------------------------- linear */

V_INLINE vec biased_sum(vec s, const R *bias) { return v_add(v_add(s, v_load(bias)), v_set1(0)); }

/* What the t-th call of linear_rows() for a product prefetches: one line of each of ATTNI_D_CHAIN
 * rows. The first calls prefetch the next weights, and those after them next_x. */
V_INLINE prefetch_step linear_prefetch(const attni_product *p, int t, int W)
{
    const int weights = ATTNI_D_CHAIN * (int)sizeof(R) / 64, lines = W * (int)sizeof(R) / 64 + 1;
    if (p->next_weights && t < weights)
        return (prefetch_step){(uintptr_t)p->next_weights + (uintptr_t)t * 64,
                               (uintptr_t)p->ld_next_weights * sizeof(R)};
    const int row = (t - weights) / lines * ATTNI_D_CHAIN, line = (t - weights) % lines;
    if (p->next_x && t >= weights && row < p->n) {
        const uintptr_t ld = (uintptr_t)p->ld_next_x * sizeof(R);
        return (prefetch_step){(uintptr_t)p->next_x + (uintptr_t)row * ld + (uintptr_t)line * 64,
                               ld};
    }
    return (prefetch_step){(uintptr_t)p->wt, 0};
}

/* For rows i .. i+mr-1 of x: out[u][:] = sums[u][:] + sum_d x[u][d] * wt[d][:], plus the bias. */
V_INLINE void linear_rows(const attni_product *p, int i, prefetch_step prefetch, const int mr,
                          const int nv)
{
    const int W = nv * V_LANES;
    const R *wt = p->wt, *bias = p->bias;
    const R_any *x = (const R_any *)p->x + i * p->ldx;
    const ptrdiff_t ldx = p->ldx;
    vec s[MAX_ROWS][V_VECTORS];
    FOR_U FOR_V s[u][v] = v_set1(0);
    for (int d = 0; d < p->D; d++, prefetch.at += prefetch.step) {
        vec w[V_VECTORS];
        __builtin_prefetch((const void *)prefetch.at, 0, 2);
        FOR_V w[v] = v_load(wt + d * W + v * V_LANES);
        FOR_U
        {
            const vec a = v_bcast(x + u * ldx + d);
            FOR_V s[u][v] = v_fma(a, w[v], s[u][v]);
        }
    }
    if (p->sums) {
        const R_any *sums = (const R_any *)p->sums + i * p->ld_sums;
        FOR_U FOR_V s[u][v] = v_add(v_loadu(sums + u * p->ld_sums + v * V_LANES), s[u][v]);
    }
    if (bias)
        FOR_U FOR_V s[u][v] = biased_sum(s[u][v], bias + v * V_LANES);
    R_any *out = (R_any *)p->out + i * p->ldo;
    FOR_U FOR_V v_storeu(out + u * p->ldo + v * V_LANES, s[u][v]);
}

V_INLINE void linear_tile(const attni_product *p, const int nv)
{
    int i = 0, t = 0;
#define STEP(mr)                                                                                   \
    for (; i + (mr) <= p->n; i += (mr), t++)                                                       \
    linear_rows(p, i, linear_prefetch(p, t, nv *V_LANES), mr, nv)
    STEP(ROWS_OF(nv));
    STEP(4);
    STEP(2);
    STEP(1);
#undef STEP
}

static void op_linear(const attni_product *p, int nv_) { WITH_NV(nv_, linear_tile(p, nv)) }

/* ------------------------------------------------------------------------- linear_few_rows */

/* r[d][i] = component d of the weight's row i, for i < outputs and d < count; else 0. Not inlined,
 * to keep its callers small. No load depends on a condition: compilers turn such loads into masked
 * ones, which are slow where the masked part lies in another page. */
static __attribute__((noinline)) void load_part(R r[V_LANES][V_LANES], const R_any *w,
                                                ptrdiff_t ldw, int outputs, int count)
{
    memset(r, 0, V_LANES * sizeof *r);
    for (int i = 0; i < (outputs < V_LANES ? outputs : V_LANES); i++)
        for (int d = 0; d < count; d++)
            r[d][i] = w[i * ldw + d];
}

/* Prefetches component d + LINEAR_PREFETCH of V_LANES rows of the weight into L1. If that is past
 * the end of these rows, prefetches component d + LINEAR_PREFETCH - D of the next V_LANES rows.
 * Rows from number `prefetched` on must not be prefetched. */
V_INLINE void prefetch_rows(const R_any *w, ptrdiff_t ldw, int64_t d, int64_t D, int prefetched)
{
    const bool same = d + LINEAR_PREFETCH < D;
    const int64_t next = d + LINEAR_PREFETCH + (same ? 0 : V_LANES * ldw - D);
    if (!PREFETCHES || prefetched < (same ? V_LANES : 2 * V_LANES))
        return;
    const uintptr_t at = (uintptr_t)w + (uintptr_t)next * sizeof *w;
    const uintptr_t bytes = (uintptr_t)ldw * sizeof *w;
    UNROLL for (int i = 0; i < V_LANES; i++)
        __builtin_prefetch((const void *)(at + (uintptr_t)i * bytes), 0, 3);
}

/* Adds `runs` runs, which begin at component `from`, to the totals of one vector of outputs and mr
 * rows of x. The weights are transposed in registers. A run is one chain of additions for each row,
 * and the latency of an addition limits a chain. So with one or two rows of x, two interleaved runs
 * are faster. `whole`: there are V_LANES outputs or more. */
V_INLINE void add_runs(vec total[ATTNI_FEW_ROWS], const R_any *w, ptrdiff_t ldw, int outputs,
                       int prefetched, const R_any *x, ptrdiff_t ldx, int64_t from, int64_t D,
                       const int mr, const int runs, const bool whole)
{
    const v_rows rows = v_rows_at((const char *)(w + from), ldw * (ptrdiff_t)sizeof(R));
    const int n = D - from < ATTNI_D_CHAIN ? (int)(D - from) : ATTNI_D_CHAIN;
    vec s[ATTNI_FEW_ROWS][LINEAR_RUNS];
    R part[V_LANES][V_LANES];
    int d = 0;
    UNROLL for (int g = 0; g < runs; g++) FOR_U s[u][g] = v_set1(0);
    x += from;
    for (; whole && d + V_COLUMNS <= n; d += V_COLUMNS) {
        vec r[LINEAR_RUNS][V_COLUMNS];
        UNROLL for (int g = 0; g < runs; g++)
        {
            const int at = d + g * ATTNI_D_CHAIN;
            if (d * (int)sizeof(R) % 64 == 0)
                prefetch_rows(w, ldw, from + at, D, prefetched);
            v_load_transposed(r[g], &rows, at * (int)sizeof(R));
        }
        UNROLL for (int i = 0; i < V_COLUMNS; i++) UNROLL for (int g = 0; g < runs; g++)
            FOR_U s[u][g] =
                v_fma(v_bcast(x + u * ldx + g * ATTNI_D_CHAIN + d + i), r[g][i], s[u][g]);
    }
    for (; d < n; d += V_LANES) { /* the end of the last run, or fewer outputs than lanes */
        const int count = n - d < V_LANES ? n - d : V_LANES;
        load_part(part, w + from + d, ldw, outputs, count);
        for (int i = 0; i < count; i++)
            FOR_U s[u][0] = v_fma(v_bcast(x + u * ldx + d + i), v_loadu(part[i]), s[u][0]);
    }
    UNROLL for (int g = 0; g < runs; g++) FOR_U total[u] =
        from == 0 && g == 0 ? s[u][g] : v_add(total[u], s[u][g]);
}

/* One vector of outputs for mr rows of x. */
V_INLINE void few_rows(R_any *out, ptrdiff_t ldo, const R *bias, const R_any *w, ptrdiff_t ldw,
                       int outputs, int prefetched, const R_any *x, ptrdiff_t ldx, int64_t D,
                       const int mr, const bool whole)
{
    vec total[ATTNI_FEW_ROWS];
    int64_t from = 0;
    FOR_U total[u] = v_set1(0);
    if (LINEAR_RUNS > 1 && mr < 4 && whole)
        for (; from + LINEAR_RUNS * ATTNI_D_CHAIN <= D; from += LINEAR_RUNS * ATTNI_D_CHAIN)
            add_runs(total, w, ldw, outputs, prefetched, x, ldx, from, D, mr, LINEAR_RUNS, whole);
    for (; from < D; from += ATTNI_D_CHAIN)
        add_runs(total, w, ldw, outputs, prefetched, x, ldx, from, D, mr, 1, whole);
    FOR_U v_storeu(out + u * ldo, bias ? biased_sum(total[u], bias) : total[u]);
}

static void op_linear_few_rows(void *out_, ptrdiff_t ldo, const void *bias_, const void *w_,
                               ptrdiff_t ldw, int outputs, int prefetched, const void *x_,
                               ptrdiff_t ldx, int n, int64_t D)
{
    const R_any *w = w_, *x = x_;
    const R *bias = bias_;
    int i, o = 0;
#define STEP(mr, whole)                                                                            \
    for (; i + (mr) <= n; i += (mr))                                                               \
    few_rows((R_any *)out_ + i * ldo + o, ldo, bias ? bias + o : NULL, w + o * ldw, ldw,           \
             outputs - o, prefetched - o, x + i * ldx, ldx, D, mr, whole)
    for (; o + V_LANES <= outputs; o += V_LANES) {
        i = 0;
        STEP(4, true);
        STEP(2, true);
        STEP(1, true);
    }
    i = 0;
    if (o < outputs)
        STEP(1, false);
#undef STEP
}
