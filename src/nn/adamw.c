/* One step of AdamW. Elements are independent. In f64, and in f32 with options that do not fit
 * float, each one is computed in double; otherwise in f32 by the kernel adamw(). */
#include <math.h>

#include "module.h"

typedef struct adamw {
    const attn_adamw_options *o;
    double correction1, correction2; /* 1 - beta^step */
    attni_adamw rounded;             /* for the kernel */
    const attni_kernels *kernels;    /* f32; NULL: compute in double */
    int64_t piece;
    const attn_tensor *param, *grad, *m, *v;
} adamw;

static attn_status check_options(const attn_adamw_options *o, int64_t step, attn_error *err)
{
    const struct {
        const char *name;
        double value;
        bool below_1;
    } checks[] = {{"lr", o->lr, false},
                  {"beta1", o->beta1, true},
                  {"beta2", o->beta2, true},
                  {"eps", o->eps, false},
                  {"weight_decay", o->weight_decay, false}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!(checks[i].value >= 0 && isfinite(checks[i].value)) ||
            (checks[i].below_1 && checks[i].value >= 1))
            return attni_fail(err, ATTN_ERR_ARGUMENT, checks[i].name, "%s is %g; it must be %s",
                              checks[i].name, checks[i].value,
                              checks[i].below_1 ? "at least 0 and less than 1"
                                                : "finite and not negative");
    if (step < 1)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "step", "step is %lld; the first is 1",
                          (long long)step);
    return ATTN_OK;
}

static attn_status check_tensors(const adamw *p, attn_error *err)
{
    const attn_tensor *const others[] = {p->grad, p->m, p->v};
    static const char *const names[] = {"grad", "m", "v"};
    attn_status s = attni_module_check_output(p->param, "param", p->param, "param", err);
    for (int i = 0; i < 3 && s == ATTN_OK; i++) {
        const int64_t *n = p->param->shape;
        s = i == 0 ? attni_module_check(others[i], names[i], p->param, "param", err)
                   : attni_module_check_output(others[i], names[i], p->param, "param", err);
        if (s == ATTN_OK)
            s = attni_module_check_shape(others[i], names[i], n[0], n[1], n[2], n[3], err);
    }
    return s;
}

static void update_piece(const adamw *p, double *param, const double *grad, double *m, double *v,
                         int64_t n)
{
    const attn_adamw_options *o = p->o;
    for (int64_t j = 0; j < n; j++) {
        m[j] = o->beta1 * m[j] + (1 - o->beta1) * grad[j];
        v[j] = o->beta2 * v[j] + (1 - o->beta2) * (grad[j] * grad[j]);
        const double size = sqrt(v[j] / p->correction2) + o->eps;
        param[j] -= o->lr * o->weight_decay * param[j];
        param[j] -= o->lr * (m[j] / p->correction1) / size;
    }
}

static void split(float parts[2], double x)
{
    parts[0] = (float)x;
    parts[1] = (float)(x - (double)parts[0]);
}

/* Fills p->rounded. Returns whether the kernel can compute with it. */
static bool round_options(adamw *p)
{
    const attn_adamw_options *o = p->o;
    const double rate = o->lr / p->correction1, root = 1 / sqrt(p->correction2);
    const double decay = o->lr * o->weight_decay;
    /* Gradients so small that eps matters have squares that are 0 in float. */
    if (o->eps < 1e-15 || !attni_module_fits_float(rate) || !attni_module_fits_float(root) ||
        !attni_module_fits_float(o->eps) || !attni_module_fits_float(decay))
        return false;
    p->rounded = (attni_adamw){.rest1 = (float)(1 - o->beta1),
                               .rest2 = (float)(1 - o->beta2),
                               .rate = (float)rate,
                               .root = (float)root,
                               .eps = (float)o->eps,
                               .decay = (float)decay};
    split(p->rounded.beta1, o->beta1);
    split(p->rounded.beta2, o->beta2);
    return true;
}

static void update_floats(const adamw *p, char *const row[4], int64_t c, int64_t n)
{
    const attn_tensor *const t[4] = {p->param, p->grad, p->m, p->v};
    float copy[4][ATTNI_PIECE], *at[4];
    for (int i = 0; i < 4; i++)
        at[i] = attni_module_floats(copy[i], t[i], row[i], c, n);
    p->kernels->adamw(at[0], at[1], at[2], at[3], n, &p->rounded);
    for (int i = 0; i < 4; i++)
        if (i != 1)
            attni_module_store_floats(t[i], row[i], c, at[i], n);
}

static void update_doubles(const adamw *p, char *const row[4], int64_t c, int64_t n)
{
    const attn_tensor *const t[4] = {p->param, p->grad, p->m, p->v};
    double piece[4][ATTNI_PIECE];
    for (int i = 0; i < 4; i++)
        attni_load_row_f64(piece[i], attni_module_place(t[i], row[i], c), t[i]->dtype,
                           t[i]->stride[3], n);
    update_piece(p, piece[0], piece[1], piece[2], piece[3], n);
    for (int i = 0; i < 4; i++)
        if (i != 1)
            attni_store_row_f64(attni_module_place(t[i], row[i], c), t[i]->dtype, t[i]->stride[3],
                                piece[i], n);
}

static void update_rows(void *arg, int64_t first, int64_t end)
{
    const adamw *p = arg;
    const int64_t E = p->param->shape[3], pieces = attni_div_up(E, p->piece);
    for (int64_t item = first; item < end; item++) {
        const int64_t r = item / pieces, c = item % pieces * p->piece;
        const int64_t n = E - c < p->piece ? E - c : p->piece;
        char *const row[4] = {attni_module_row(p->param, r), attni_module_row(p->grad, r),
                              attni_module_row(p->m, r), attni_module_row(p->v, r)};
        if (p->kernels)
            update_floats(p, row, c, n);
        else
            update_doubles(p, row, c, n);
    }
}

attn_status attn_adamw_step(attn_context *ctx, const attn_adamw_options *options, int64_t step,
                            const attn_tensor *param, const attn_tensor *grad, const attn_tensor *m,
                            const attn_tensor *v, attn_error *err)
{
    ATTNI_CALL_MODE;
    attn_adamw_options o;
    adamw p = {.o = &o, .param = param, .grad = grad, .m = m, .v = v};
    attni_call call;
    attn_status s;
    if ((s = attni_struct_read(ATTNI_ADAMW_OPTIONS, &o, options, "options", err)) ||
        (s = check_options(&o, step, err)) || (s = check_tensors(&p, err)) ||
        (s = attni_call_begin(&call, ctx, 0, NULL, 0, err)))
        return s;
    p.correction1 = 1 - pow(o.beta1, (double)step);
    p.correction2 = 1 - pow(o.beta2, (double)step);
    attn_tensor t[4] = {*param, *grad, *m, *v};
    p.piece = ATTNI_PIECE;
    if (param->dtype == ATTN_F32 && round_options(&p)) {
        p.kernels = attni_kernels_of(call.isa, 32);
        p.piece = attni_module_join_rows(t, 4);
        p.param = &t[0], p.grad = &t[1], p.m = &t[2], p.v = &t[3];
    }
    attni_module_share(&call, attni_module_rows(p.param) * attni_div_up(p.param->shape[3], p.piece),
                       4 * p.piece, update_rows, &p);
    attni_call_end(&call);
    return ATTN_OK;
}
