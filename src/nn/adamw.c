/* One step of AdamW. Elements are independent; each one is computed in double. */
#include <math.h>

#include "module.h"

typedef struct adamw {
    const attn_adamw_options *o;
    double correction1, correction2; /* 1 - beta^step */
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

static void update_rows(void *arg, int64_t first, int64_t end)
{
    const adamw *p = arg;
    const attn_tensor *const t[4] = {p->param, p->grad, p->m, p->v};
    const int64_t E = p->param->shape[3], pieces = attni_div_up(E, ATTNI_PIECE);
    double piece[4][ATTNI_PIECE];
    for (int64_t item = first; item < end; item++) {
        const int64_t r = item / pieces, c = item % pieces * ATTNI_PIECE;
        const int64_t n = E - c < ATTNI_PIECE ? E - c : ATTNI_PIECE;
        char *at[4];
        for (int i = 0; i < 4; i++) {
            at[i] = attni_module_row(t[i], r) +
                    c * t[i]->stride[3] * (int64_t)attn_dtype_size(t[i]->dtype);
            attni_load_row_f64(piece[i], at[i], t[i]->dtype, t[i]->stride[3], n);
        }
        update_piece(p, piece[0], piece[1], piece[2], piece[3], n);
        for (int i = 0; i < 4; i++)
            if (i != 1)
                attni_store_row_f64(at[i], t[i]->dtype, t[i]->stride[3], piece[i], n);
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
    attni_module_share(&call, attni_module_rows(param) * attni_div_up(param->shape[3], ATTNI_PIECE),
                       4 * ATTNI_PIECE, update_rows, &p);
    attni_call_end(&call);
    return ATTN_OK;
}
