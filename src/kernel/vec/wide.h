/* Doubles in the kernels of float, for sums that must not lose digits. A v_wide holds half as many
 * doubles as a vec holds floats; isa_<isa>.c defines it. Included by kernel files. */
#ifndef ATTNI_WIDE_H
#define ATTNI_WIDE_H

#define V_WIDE_LANES (V_LANES / 2)

V_INLINE v_wide v_wide_set1(double x) { return x - (v_wide){0}; }
/* V_WIDE_LANES doubles, with any alignment. */
typedef double v_wide_any __attribute__((vector_size(sizeof(v_wide)), aligned(8), may_alias));
V_INLINE v_wide v_wide_get(const double *p) { return *(const v_wide_any *)p; }
V_INLINE void v_wide_put(double *p, v_wide a) { *(v_wide_any *)p = a; }
V_INLINE void v_wide_add(double *to, vec a) /* to V_LANES doubles */
{
    R lane[V_LANES];
    v_storeu(lane, a);
    for (int i = 0; i < V_LANES; i += V_WIDE_LANES)
        v_wide_put(to + i, v_wide_get(to + i) + v_wide_load(lane + i));
}
/* The sum of n numbers, a power of two, as a tree, whose additions are not one long chain. */
V_INLINE double v_tree_sum(double *x, int n)
{
    UNROLL for (int half = n / 2; half > 0; half /= 2)
    {
        UNROLL for (int i = 0; i < half; i++) x[i] += x[i + half];
    }
    return x[0];
}
V_INLINE double v_wide_sum(v_wide a)
{
    double lane[V_WIDE_LANES];
    __builtin_memcpy(lane, &a, sizeof lane);
    return v_tree_sum(lane, V_WIDE_LANES);
}

#endif
