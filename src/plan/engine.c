/* Functions that both engines (sdpa/tile_task.c and bf16/bf16_engine.c) call: the scale and soft
 * cap of scores, the log-sum-exp of a row, and the store of a result row. */
#include "engine.h"

#include <math.h>

static __attribute__((cold, noinline)) void cap_in_double(float *x, int64_t n, double r, double cap)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(cap * tanh((double)x[i] * r / cap));
}

void attni_scale_softcap(const attni_plan *p, void *st, int n, double cap, int nv)
{
    const double r = cap > 0 ? p->capped_mantissa : p->scale_mantissa;
    if (p->real == sizeof(float) && (cap > 0x1p126 || r < p->scale_mantissa))
        cap_in_double(st, (int64_t)n * nv * p->kernels->lanes, p->scale_mantissa, cap);
    else
        p->kernels->scale_softcap(st, n, r, cap, nv);
}

double attni_log_sum(double l, double m, double lowered)
{
    if (l == 0)
        return -(double)INFINITY;
    if (!isfinite(l))
        return (double)NAN;
    int exponent;
    const double fraction = frexp(l, &exponent);
    return (((isinf(m) ? 0 : m) + exponent) * 0.69314718055994530942 + log(fraction)) * lowered;
}

void attni_store_row(const attni_plan *p, char *to, const attn_tensor *t, const char *from,
                     int64_t n)
{
    if (t->stride[3] == 1) {
        p->kernels->narrow(to, t->dtype, from, n);
        return;
    }
    if (p->real == sizeof(float))
        attni_store_row_f32(to, t->dtype, t->stride[3], (const float *)from, n);
    else
        attni_store_row_f64(to, t->dtype, t->stride[3], (const double *)from, n);
    attni_clear_signs(to, t->dtype, t->stride[3], n);
}
