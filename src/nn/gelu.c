/* GELU in its exact form, x * P(Z <= x). In f32 the kernels compute it. In f64 it uses erfc, so
 * that a negative x keeps its digits; 1 + erf would cancel them. */
#include <math.h>

#include "module.h"

/* M_SQRT1_2 and M_2_SQRTPI are not in standard C */
static const double root_half = 0.70710678118654752440, two_by_root_pi = 1.12837916709551257390;

typedef struct gelu {
    const attn_tensor *x, *dout, *out; /* dout == NULL: forward */
    const attni_kernels *kernels;      /* f32; NULL: compute in double */
    int64_t piece;
} gelu;

/* n elements of row r, from element c on */
static void gelu_floats(const gelu *p, int64_t r, int64_t c, int64_t n)
{
    float copy[3][ATTNI_PIECE];
    char *row = attni_module_row(p->out, r);
    float *out = attni_module_floats_to(copy[0], p->out, row, c);
    const float *x = attni_module_floats(copy[1], p->x, attni_module_row(p->x, r), c, n);
    if (p->dout) {
        char *dout = attni_module_row(p->dout, r);
        p->kernels->gelu_grad(out, attni_module_floats(copy[2], p->dout, dout, c, n), x, n);
    } else {
        p->kernels->gelu(out, x, n);
    }
    attni_module_store_floats(p->out, row, c, out, n);
}

/* the same in double */
static void gelu_doubles(const gelu *p, int64_t r, int64_t c, int64_t n)
{
    const attn_tensor *x = p->x, *out = p->out;
    double value[ATTNI_PIECE], dout[ATTNI_PIECE];
    attni_load_row_f64(value, attni_module_place(x, attni_module_row(x, r), c), x->dtype,
                       x->stride[3], n);
    if (p->dout)
        attni_load_row_f64(dout, attni_module_place(p->dout, attni_module_row(p->dout, r), c),
                           x->dtype, p->dout->stride[3], n);
    for (int64_t j = 0; j < n; j++) {
        const double at = value[j], below = 0.5 * erfc(-root_half * at);
        const double density = 0.5 * two_by_root_pi * root_half * exp(-0.5 * at * at);
        /* for large |x| the product would be 0 * infinity = NaN; the limit is 0 */
        const double rise = density == 0 ? 0 : at * density;
        value[j] = p->dout ? dout[j] * (below + rise) : below == 0 ? 0 : at * below;
    }
    attni_store_row_f64(attni_module_place(out, attni_module_row(out, r), c), out->dtype,
                        out->stride[3], value, n);
}

static void gelu_rows(void *arg, int64_t first, int64_t end)
{
    const gelu *p = arg;
    const int64_t E = p->x->shape[3], pieces = attni_div_up(E, p->piece);
    for (int64_t item = first; item < end; item++) {
        const int64_t r = item / pieces, c = item % pieces * p->piece;
        const int64_t n = E - c < p->piece ? E - c : p->piece;
        if (p->kernels)
            gelu_floats(p, r, c, n);
        else
            gelu_doubles(p, r, c, n);
    }
}

static attn_status run(attn_context *ctx, gelu *p, attn_error *err)
{
    attni_call call;
    const attn_status s = attni_call_begin(&call, ctx, 0, NULL, 0, err);
    if (s != ATTN_OK)
        return s;
    attn_tensor t[3] = {*p->x, *p->out, p->dout ? *p->dout : *p->x};
    p->piece = ATTNI_PIECE;
    if (p->x->dtype == ATTN_F32) {
        p->kernels = attni_kernels_of(call.isa, 32);
        p->piece = attni_module_join_rows(t, 3);
        p->x = &t[0];
        p->out = &t[1];
        p->dout = p->dout ? &t[2] : NULL;
    }
    attni_module_share(&call, attni_module_rows(p->x) * attni_div_up(p->x->shape[3], p->piece),
                       (p->kernels ? 2 : 16) * p->piece, gelu_rows, p);
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
