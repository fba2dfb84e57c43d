/* The operations of modules that compute each element from elements at the same place: gelu(),
 * gelu_grad() and adamw(). tile.inc.h includes this file for each instruction set, after
 * decode.inc.h. The contracts are in kernel.h. For float only: in double, the modules compute with
 * the C library.
 *
 * The last elements, fewer than a vector, are copied to vectors of their own. So the result of an
 * element does not depend on its place. */
#if ATTNI_BITS == 32
#include <string.h>

/* Copies n < V_LANES elements; the other lanes become `rest`. Two loops: of one loop that chooses,
 * compilers make masked loads, with which emulators touch the memory after the elements. */
V_INLINE void copy_part(R lane[V_LANES], const R_any *from, int64_t n, R rest)
{
    for (int i = 0; i < V_LANES; i++)
        lane[i] = rest;
    for (int i = 0; i < (int)n; i++)
        lane[i] = from[i];
}

/* |x| */
V_INLINE vec magnitude(vec x)
{
    typedef uint32_t bits __attribute__((vector_size(sizeof(vec))));
    return (vec)((bits)x & 0x7fffffff);
}

/* ------------------------------------------------------------------------------------- gelu */

/* The polynomial with the `count` coefficients c, the highest first. */
V_INLINE vec polynomial(vec x, const R *c, const int count)
{
    vec p = v_set1(c[0]);
    UNROLL for (int i = 1; i < count; i++) p = v_fma(p, x, v_set1(c[i]));
    return p;
}

/* e^(-(z + error)/2) for z >= 0, where error is below a unit of z. It may be 0 where it is
 * denormal. With z = n 2 ln(2) + r, n an integer and |r| <= ln(2), this is 2^-n e^(-r/2): a minimax
 * polynomial, relative error 1.7e-8. */
V_INLINE vec exp_minus_half(vec z, vec error)
{
    static const R c[] = {0x1.6ae72cp-16f, -0x1.126782p-12f, 0x1.555822p-9f,
                          -0x1.55541ap-6f, 0x1.fffffcp-4f,   -0x1p-1f};
    const vec n = v_round(v_mul(z, v_set1(-0x1.715476p-1f)));
    /* 2 ln(2) in 16 bits and the rest: the first product is exact */
    const vec whole_off = v_fma(n, v_set1(0x1.62e4p+0f), z);
    const vec r = v_add(v_fma(n, v_set1(0x1.7f7d1cp-19f), whole_off), error);
    const vec p = polynomial(r, c, sizeof c / sizeof *c);
    return v_scale2(v_fma(p, r, v_set1(1)), n);
}

/* e^(-t^2/2), for 0 <= t <= GELU_END. The square needs more digits than a float has. */
#define GELU_END 15 /* GELU is 0 or x beyond */
V_INLINE vec bell(vec t)
{
    const vec square = v_mul(t, t);
#ifdef V_NO_FMA
    /* t in two halves whose products are exact (Veltkamp, Dekker) */
    const vec s = v_mul(t, v_set1(4097)), t1 = v_sub(s, v_sub(s, t)), t2 = v_sub(t, t1);
    const vec twice = v_mul(v_add(t1, t1), t2);
    const vec error = v_add(v_add(v_sub(v_mul(t1, t1), square), twice), v_mul(t2, t2));
#else
    const vec error = v_fma(t, t, -square); /* compilers make one operation of it */
#endif
    return exp_minus_half(square, error);
}

/* |x|, but at most GELU_END, also for NaN */
V_INLINE vec gelu_distance(vec x) { return v_min(magnitude(x), v_set1(GELU_END)); }

/* x P(Z <= x) = max(x, 0) - t P(Z <= -t), where t = |x|. With v = t / (t + 2.5), the product is
 * v p(v) e^(-t^2/2), and p is smooth: a minimax polynomial of degree 9, relative error 1.5e-8. */
V_INLINE vec gelu_of(vec x)
{
    static const R minus_c[] = {0x1.4a0244p-4f, -0x1.21b9dp-2f, 0x1.46aee6p-2f,  -0x1.25eb3p-3f,
                                0x1.3940bcp-3f, -0x1.d452bp-5f, -0x1.2aa188p-2f, -0x1.5b68dcp-3f,
                                0x1.3e4f0ap+0f, -0x1.4p+0f};
    const vec t = gelu_distance(x), v = v_div(t, v_add(t, v_set1(2.5f)));
    const vec minus_p = v_mul(v, polynomial(v, minus_c, sizeof minus_c / sizeof *minus_c));
    return v_fma(minus_p, bell(t), v_max(v_set1(0), x)); /* NaN if x is NaN */
}

/* P(Z <= x) + x density(x): for x < 0 this is e^(-t^2/2) (t - t0) k(v), and 1 minus this for
 * x >= 0. The derivative is 0 at x = -t0, and k is a minimax polynomial in v = t / (t + 3),
 * relative error 1.6e-08. */
V_INLINE vec gelu_slope(vec x)
{
    static const R c[] = {0x1.78188ep-9f,  0x1.ab2b12p-9f, -0x1.b27518p-6f,
                          0x1.e71c1ep-8f,  0x1.a0a848p-5f, 0x1.7c6132p-5f,
                          -0x1.648254p-2f, 0x1.0f5734p-1f, -0x1.54851ap-1f};
    const vec t = gelu_distance(x), v = v_div(t, v_add(t, v_set1(3)));
    const vec from_zero = v_add(v_sub(t, v_set1(0x1.80ead2p-1f)), v_set1(0x1.a03fd4p-27f));
    const vec k = polynomial(v, c, sizeof c / sizeof *c);
    const vec below = v_mul(v_mul(k, from_zero), bell(t));
    const vec slope = v_select(v_lt(x, v_set1(0)), below, v_sub(v_set1(1), below));
    return v_select(v_eq(x, x), slope, x);
}

static void op_gelu(void *out_, const void *x_, int64_t n)
{
    R_any *out = out_;
    const R_any *x = x_;
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        v_storeu(out + i, gelu_of(v_loadu(x + i)));
    if (i < n)
        store_part(out + i, gelu_of(v_load_first(x + i, (int)(n - i))), (int)(n - i));
}

static void op_gelu_grad(void *dx_, const void *dout_, const void *x_, int64_t n)
{
    R_any *dx = dx_;
    const R_any *dout = dout_, *x = x_;
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        v_storeu(dx + i, v_mul(v_loadu(dout + i), gelu_slope(v_loadu(x + i))));
    if (i < n) {
        const vec d = v_load_first(dout + i, (int)(n - i)), at = v_load_first(x + i, (int)(n - i));
        store_part(dx + i, v_mul(d, gelu_slope(at)), (int)(n - i));
    }
}

/* ------------------------------------------------------------------------------------ adamw */

/* A beta is the sum of two floats: the error of a rounded beta would grow from step to step. */
V_INLINE vec decayed(vec x, const float beta[2], vec more)
{
    return v_fma(x, v_set1(beta[0]), v_fma(x, v_set1(beta[1]), more));
}

V_INLINE void adamw_part(R_any *param, const R_any *grad, R_any *m_, R_any *v_,
                         const attni_adamw *o)
{
    const vec g = v_loadu(grad), p = v_loadu(param);
    const vec m = decayed(v_loadu(m_), o->beta1, v_mul(g, v_set1(o->rest1)));
    /* infinity would be NaN, minus infinity times the second part of beta */
    const vec finite = v_min(v_set1(0x1.fffffep127f), v_loadu(v_));
    const vec v = decayed(finite, o->beta2, v_mul(v_mul(g, v_set1(o->rest2)), g));
    const vec size = v_fma(v_sqrt(v), v_set1(o->root), v_set1(o->eps));
    const vec step = v_mul(v_div(m, size), v_set1(o->rate));
    v_storeu(param, v_sub(p, v_fma(p, v_set1(o->decay), step)));
    v_storeu(m_, m);
    v_storeu(v_, v);
}

static void op_adamw(void *param_, const void *grad_, void *m_, void *v_, int64_t n,
                     const attni_adamw *o)
{
    R_any *const at[3] = {param_, m_, v_};
    const R_any *grad = grad_;
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        adamw_part(at[0] + i, grad + i, at[1] + i, at[2] + i, o);
    if (i == n)
        return;
    const size_t bytes = (size_t)(n - i) * sizeof(R);
    R rest[4][V_LANES] = {{0}};
    memcpy(rest[3], grad + i, bytes);
    for (int t = 0; t < 3; t++)
        memcpy(rest[t], at[t] + i, bytes);
    adamw_part(rest[0], rest[3], rest[1], rest[2], o);
    for (int t = 0; t < 3; t++)
        memcpy(at[t] + i, rest[t], bytes);
}
#else
#define op_gelu NULL
#define op_gelu_grad NULL
#define op_adamw NULL
#endif
