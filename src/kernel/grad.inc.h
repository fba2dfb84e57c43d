/* The element-wise operations of the backward pass on a block of scores, over the vector operations
 * of vec/vec_<isa>.h. tile.inc.h includes this file for each instruction set. The matrix products
 * of the backward pass use the operations of the forward pass and of the linear layer. The
 * contracts are in kernel.h. */

static void op_dots(void *out_, const void *a_, ptrdiff_t lda, const void *b_, ptrdiff_t ldb,
                    int rows, int64_t D)
{
    R_any *out = out_;
    const R_any *a = a_, *b = b_;
    for (int i = 0; i < rows; i++, a += lda, b += ldb) {
        vec s = v_set1(0);
        int64_t d = 0;
        for (; d + V_LANES <= D; d += V_LANES)
            s = v_fma(v_loadu(a + d), v_loadu(b + d), s);
        R lane[V_LANES], sum = 0;
        v_storeu(lane, s);
        for (; d < D; d++)
            sum += a[d] * b[d];
        for (int half = V_LANES / 2; half > 0; half /= 2)
            for (int u = 0; u < half; u++)
                lane[u] += lane[u + half];
        out[i] = lane[0] + sum;
    }
}

static void op_weights_from_lse(void *p_, const void *st_, const void *lse_, double c, int n,
                                int nv)
{
    R *p = p_;
    const R *st = st_, *lse = lse_;
    const vec factor = v_set1((R)c), never = v_set1(-R_INF);
    for (int v = 0; v < nv; v++) {
        const vec L = v_load(lse + v * V_LANES);
        for (int j = 0; j < n; j++) {
            const int at = (j * nv + v) * V_LANES;
            const vec s = v_load(st + at);
            v_store(p + at, v_select(v_eq(s, never), v_set1(-1), recalled(s, L, factor)));
        }
    }
}

static void op_score_grads(void *dp_, void *p_, void *kept_, const void *delta_, int n, int nv)
{
    R *dp = dp_, *p = p_, *kept = kept_;
    const R *delta = delta_;
    const vec zero = v_set1(0);
    for (int v = 0; v < nv; v++) {
        const vec D = v_load(delta + v * V_LANES);
        for (int j = 0; j < n; j++) {
            const int at = (j * nv + v) * V_LANES;
            const vec w = v_load(p + at), g = v_load(dp + at);
            const vmask hidden = v_lt(w, zero);
            vec ds = v_mul(w, v_sub(g, D));
            if (kept) {
                const vec k = v_load(kept + at);
                ds = v_sub(v_mul(k, g), v_mul(w, D));
                v_store(kept + at, v_select(hidden, zero, k));
            }
            v_store(p + at, v_select(hidden, zero, w));
            v_store(dp + at, v_select(hidden, zero, ds));
        }
    }
}

/* 1 - tanh(y)^2 = 4 e / (1 + e)^2 with e = 2^(-2 log2(e) |y|). There is no cancellation, even where
 * the soft cap is nearly flat. */
static void op_cap_grads(void *ds_, const void *raw_, int n, double r, double cap, int nv)
{
    R *ds = ds_;
    const R *raw = raw_;
    const double C = fabs(2.8853900817779268147 * r / cap);
    const double end = ATTNI_BITS == 32 ? 160 : 1100; /* 2^-end rounds to 0 */
    const vec vC = v_set1((R)C), lowest = v_set1((R) - (end / C));
    const vec zero = v_set1(0), one = v_set1(1);
    for (int i = 0; i < n * nv * V_LANES; i += V_LANES) {
        vec s = v_load(raw + i);
        s = v_max(lowest, v_select(v_lt(zero, s), v_sub(zero, s), s));
        const vec m = v_round(v_mul(s, vC)), f = v_fma(s, vC, v_sub(zero, m));
        const vec e = v_scale2(v_fma(exp2m1_ratio(f), f, one), m), d = v_add(one, e);
        const vec slope = v_div(v_mul(v_set1(4), e), v_mul(d, d)), g = v_load(ds + i);
        v_store(ds + i, v_select(v_eq(g, zero), zero, v_mul(g, slope)));
    }
}
