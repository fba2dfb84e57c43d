/* Operations of the backward pass, over the vector operations of isa_<isa>.c: dots(), and
 * element-wise operations on a block of scores. tile.inc.h includes this file for each instruction
 * set. The matrix products of the backward pass use the operations of the forward pass and of the
 * linear layer. The contracts are in kernel.h. */

/* The sum of a[d] * b[d] in order of d, for the elements after the last whole vector. Not inlined:
 * GCC makes 1 KB of each copy of this loop. */
static __attribute__((noinline)) R dot_rest(const R_any *a, const R_any *b, int64_t n)
{
    R sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += a[d] * b[d];
    return sum;
}

/* a . b in two parts. Lane u of the result is the sum of a[d] * b[d] over d = u, u + V_LANES, ...,
 * as far as whole vectors reach; *rest is the sum over the d after them. */
V_INLINE vec dot_parts(const R_any *a, const R_any *b, int64_t D, R *rest)
{
    vec s = v_set1(0);
    int64_t d = 0;
    for (; d + V_LANES <= D; d += V_LANES)
        s = v_fma(v_loadu(a + d), v_loadu(b + d), s);
    *rest = d < D ? dot_rest(a + d, b + d, D - d) : 0;
    return s;
}

/* The sum of the lanes, which are added in pairs u, u + half. */
V_INLINE R lanes_sum(vec s)
{
    R lane[V_LANES];
    v_storeu(lane, s);
    for (int half = V_LANES / 2; half > 0; half /= 2)
        for (int u = 0; u < half; u++)
            lane[u] += lane[u + half];
    return lane[0];
}

/* The sums of the lanes of V_LANES vectors, each added as by lanes_sum(): lane u of the result is
 * the sum of the lanes of s[u]. The vectors s are overwritten. */
V_INLINE vec lanes_sums(vec s[V_LANES])
{
    v_transpose(s);
    UNROLL for (int half = V_LANES / 2; half > 0; half /= 2)
    {
        UNROLL for (int u = 0; u < half; u++) s[u] = v_add(s[u], s[u + half]);
    }
    return s[0];
}

static void op_dots(void *out_, const void *a_, ptrdiff_t lda, const void *b_, ptrdiff_t ldb,
                    int rows, int64_t D)
{
    R_any *out = out_;
    const R_any *a = a_, *b = b_;
    int i = 0;
    for (; i + V_LANES <= rows; i += V_LANES) {
        vec s[V_LANES];
        R rest[V_LANES];
        NO_UNROLL for (int u = 0; u < V_LANES; u++, a += lda, b += ldb) s[u] =
            dot_parts(a, b, D, &rest[u]);
        v_storeu(out + i, v_add(lanes_sums(s), v_loadu(rest)));
    }
    NO_UNROLL for (; i < rows; i++, a += lda, b += ldb)
    {
        R rest;
        const vec s = dot_parts(a, b, D, &rest);
        out[i] = lanes_sum(s) + rest;
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

/* Multiplies ds by the slope of the soft cap, 1 - tanh(y)^2, where y = raw * r / cap. With
 * e = exp(-2 |y|), computed as a power of 2, the slope is 4 e / (1 + e)^2. This form has no
 * cancellation, even where the soft cap is nearly flat. */
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
