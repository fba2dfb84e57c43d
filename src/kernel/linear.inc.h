/* The operations of the linear layer, over the vector operations of vec/vec_<isa>.h. tile.inc.h
 * includes this file for each instruction set, after decode.inc.h. The contracts are in kernel.h.
 *
 * Lanes hold *outputs*, and rows of x are broadcast from where they are stored. Therefore the
 * result is stored as rows, no lane is idle even with few rows, and packed weights are read in
 * address order.
 */

#define LINEAR_PREFETCH (512 / (int)sizeof(R)) /* prefetch distance, in components of a row */

/* ----------------------------------------------------------------------------------- linear */

V_INLINE vec biased_sum(vec s, const R *bias) { return v_add(v_add(s, v_load(bias)), v_set1(0)); }

/* What the t-th micro-kernel of a product prefetches, one line of each of ATTNI_D_CHAIN rows: first
 * the next weights, then next_x. */
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

/* ------------------------------------------------------------------------------- linear_few_rows
 */

/* Loads a square of the weight, V_LANES outputs by V_LANES components, and transposes it in
 * registers; elements outside `outputs` x `count` are 0. */
V_INLINE void load_square(vec r[V_LANES], const R_any *w, ptrdiff_t ldw, int outputs, int count)
{
    if (outputs >= V_LANES && count >= V_LANES) {
        const v_rows rows = v_rows_at((const char *)w, ldw * (ptrdiff_t)sizeof(R));
        UNROLL for (int d = 0; d < V_LANES; d += V_COLUMNS)
            v_load_transposed(r + d, &rows, d * (int)sizeof(R));
    } else {
        R part[V_LANES][V_LANES] = {{0}};
        for (int i = 0; i < outputs && i < V_LANES; i++)
            for (int d = 0; d < count && d < V_LANES; d++)
                part[i][d] = w[i * ldw + d];
        for (int i = 0; i < V_LANES; i++)
            r[i] = v_loadu(part[i]);
        v_transpose(r);
    }
}

/* Prefetches the square LINEAR_PREFETCH components ahead; past the end of the rows, that is in the
 * next V_LANES rows. */
V_INLINE void prefetch_square(const R_any *w, ptrdiff_t ldw, int64_t d, int64_t D)
{
    const int64_t next =
        d + LINEAR_PREFETCH < D ? d + LINEAR_PREFETCH : V_LANES * ldw + d + LINEAR_PREFETCH - D;
    UNROLL for (int i = 0; i < V_LANES; i++)
        __builtin_prefetch((const void *)((uintptr_t)w + (uintptr_t)(i * ldw + next) * sizeof *w),
                           0, 2);
}

/* One vector of outputs for mr rows of x. The squares of a run form one chain of additions;
 * different runs are independent, so the processor overlaps several of them while it loads from
 * memory. */
V_INLINE void few_rows(R_any *out, ptrdiff_t ldo, const R *bias, const R_any *w, ptrdiff_t ldw,
                       int outputs, const R_any *x, ptrdiff_t ldx, int64_t D, const int mr)
{
    vec total[ATTNI_FEW_ROWS];
    FOR_U total[u] = v_set1(0);
    for (int64_t run = 0; run < D; run += ATTNI_D_CHAIN) {
        const int64_t end = D - run < ATTNI_D_CHAIN ? D : run + ATTNI_D_CHAIN;
        vec s[ATTNI_FEW_ROWS];
        FOR_U s[u] = v_set1(0);
        for (int64_t d = run; d < end; d += V_LANES) {
            vec r[V_LANES];
            const int count = end - d < V_LANES ? (int)(end - d) : V_LANES;
            prefetch_square(w, ldw, d, D);
            load_square(r, w + d, ldw, outputs, count);
            if (count == V_LANES) {
                UNROLL for (int i = 0; i < V_LANES; i++) FOR_U s[u] =
                    v_fma(v_bcast(x + u * ldx + d + i), r[i], s[u]);
            } else {
                for (int i = 0; i < count; i++)
                    FOR_U s[u] = v_fma(v_bcast(x + u * ldx + d + i), r[i], s[u]);
            }
        }
        FOR_U total[u] = run == 0 ? s[u] : v_add(total[u], s[u]);
    }
    FOR_U v_storeu(out + u * ldo, bias ? biased_sum(total[u], bias) : total[u]);
}

static void op_linear_few_rows(void *out_, ptrdiff_t ldo, const void *bias_, const void *w_,
                               ptrdiff_t ldw, int outputs, const void *x_, ptrdiff_t ldx, int n,
                               int64_t D)
{
    const R_any *w = w_, *x = x_;
    const R *bias = bias_;
    for (int o = 0; o < outputs; o += V_LANES) {
        int i = 0;
#define STEP(mr)                                                                                   \
    for (; i + (mr) <= n; i += (mr))                                                               \
    few_rows((R_any *)out_ + i * ldo + o, ldo, bias ? bias + o : NULL, w + o * ldw, ldw,           \
             outputs - o, x + i * ldx, ldx, D, mr)
        STEP(4);
        STEP(2);
        STEP(1);
#undef STEP
    }
}
