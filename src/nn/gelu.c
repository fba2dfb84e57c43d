/* GELU in its exact form, x * P(Z <= x). It uses erfc, so that a negative x keeps its digits; 1 +
 * erf would cancel them. */
#include <math.h>

#include "module.h"

/* M_SQRT1_2 and M_2_SQRTPI are not in standard C */
static const double root_half = 0.70710678118654752440, two_by_root_pi = 1.12837916709551257390;

typedef struct gelu {
    const attn_tensor *x, *dout, *out; /* dout == NULL: forward */
} gelu;

static void gelu_rows(void *arg, int64_t first, int64_t end)
{
    const gelu *p = arg;
    const attn_tensor *x = p->x, *out = p->out;
    const int64_t E = x->shape[3], pieces = attni_div_up(E, ATTNI_PIECE);
    double value[ATTNI_PIECE], dout[ATTNI_PIECE];
    for (int64_t item = first; item < end; item++) {
        const int64_t r = item / pieces, c = item % pieces * ATTNI_PIECE;
        const int64_t n = E - c < ATTNI_PIECE ? E - c : ATTNI_PIECE;
        const int64_t size = (int64_t)attn_dtype_size(x->dtype);
        attni_load_row_f64(value, attni_module_row(x, r) + c * x->stride[3] * size, x->dtype,
                           x->stride[3], n);
        if (p->dout)
            attni_load_row_f64(dout, attni_module_row(p->dout, r) + c * p->dout->stride[3] * size,
                               x->dtype, p->dout->stride[3], n);
        for (int64_t j = 0; j < n; j++) {
            const double at = value[j], below = 0.5 * erfc(-root_half * at);
            const double density = 0.5 * two_by_root_pi * root_half * exp(-0.5 * at * at);
            /* for large |x| the product would be 0 * infinity = NaN; the limit is 0 */
            const double rise = density == 0 ? 0 : at * density;
            value[j] = p->dout ? dout[j] * (below + rise) : below == 0 ? 0 : at * below;
        }
        attni_store_row_f64(attni_module_row(out, r) + c * out->stride[3] * size, out->dtype,
                            out->stride[3], value, n);
    }
}

static attn_status run(attn_context *ctx, gelu *p, attn_error *err)
{
    attni_call call;
    const attn_status s = attni_call_begin(&call, ctx, 0, NULL, 0, err);
    if (s != ATTN_OK)
        return s;
    attni_module_share(&call, attni_module_rows(p->x) * attni_div_up(p->x->shape[3], ATTNI_PIECE),
                       16 * ATTNI_PIECE, gelu_rows, p);
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attn_gelu_forward(attn_context *ctx, const attn_tensor *x, const attn_tensor *out,
                              attn_error *err)
{
    ATTNI_CALL_MODE;
    gelu p = {.x = x, .out = out};
    attn_status s;
    if ((s = attni_module_check(x, "x", x, "x", err)) ||
        (s = attni_module_check_output(out, "out", x, "x", err)) ||
        (s = attni_module_check_shape(out, "out", x->shape[0], x->shape[1], x->shape[2],
                                      x->shape[3], err)))
        return s;
    return run(ctx, &p, err);
}

attn_status attn_gelu_backward(attn_context *ctx, const attn_tensor *dout, const attn_tensor *x,
                               const attn_tensor *dx, attn_error *err)
{
    ATTNI_CALL_MODE;
    gelu p = {.x = x, .dout = dout, .out = dx};
    attn_status s;
    if ((s = attni_module_check(x, "x", x, "x", err)) ||
        (s = attni_module_check(dout, "dout", x, "x", err)) ||
        (s = attni_module_check_output(dx, "dx", x, "x", err)) ||
        (s = attni_module_check_shape(dout, "dout", x->shape[0], x->shape[1], x->shape[2],
                                      x->shape[3], err)) ||
        (s = attni_module_check_shape(dx, "dx", x->shape[0], x->shape[1], x->shape[2], x->shape[3],
                                      err)))
        return s;
    return run(ctx, &p, err);
}
