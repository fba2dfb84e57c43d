/* The gradients of the linear layer. Two of them are linear layers themselves, on other views of
 * the same memory:
 *
 *   dx      [B,H,T,In]    rows t of dout    times  columns of the weight,   over Out
 *   dweight [B,H,Out,In]  columns of dout   times  columns of x,            over T
 *
 * If x or the weight was repeated over b or h, its gradient also sums over that dimension. A sum
 * over several dimensions becomes one sum over a longer dimension if its terms are evenly spaced;
 * otherwise the operand is copied to scratch first. So the order of a sum, and its bits, do not
 * depend on strides.
 */
#include <string.h>

#include "module.h"

#define PIECES 8 /* of ATTNI_COLUMNS columns that are summed together, at most */
#define ROWS 16  /* of them that are added while the sums stay in registers */

typedef attni_grad_product product;
typedef attni_linear_grads backward;

/* ------------------------------------------------------------------------------------- Checking */

static attn_status check_same(const attn_tensor *t, const char *name, const attn_tensor *like,
                              attn_error *err)
{
    const int64_t *n = like->shape;
    return attni_module_check_shape(t, name, n[0], n[1], n[2], n[3], err);
}

/* Checks one gradient and the operand that it is computed with: dx with weight, dweight with x. */
static attn_status check_pair(const attn_tensor *grad, const char *grad_name,
                              const attn_tensor *other, const char *other_name,
                              const attn_tensor *dout, attn_error *err)
{
    attn_status s;
    if ((s = attni_module_check_output(grad, grad_name, dout, "dout", err)))
        return s;
    if (!other)
        return attni_fail(err, ATTN_ERR_ARGUMENT, other_name, "%s is NULL; %s needs it", other_name,
                          grad_name);
    return attni_module_check(other, other_name, dout, "dout", err);
}

static attn_status check_backward(const backward *p, attn_error *err)
{
    const attn_tensor *dout = p->dout, *x = p->x, *weight = p->weight;
    const attn_tensor *dx = p->dx, *dweight = p->dweight;
    attn_status s;
    if ((s = attni_module_check(dout, "dout", dout, "dout", err)) ||
        (dx && (s = check_pair(dx, "dx", weight, "weight", dout, err))) ||
        (dweight && (s = check_pair(dweight, "dweight", x, "x", dout, err))) ||
        (p->dbias && (s = attni_module_check_output(p->dbias, "dbias", dout, "dout", err))))
        return s;
    const int64_t T = dout->shape[2], Out = dout->shape[3];
    const int64_t In = dx ? dx->shape[3] : dweight ? dweight->shape[3] : 0;
    if ((dx && ((s = attni_linear_check_operand(dx, "dx", dout, T, In, err)) ||
                (s = attni_linear_check_operand(weight, "weight", dout, Out, In, err)))) ||
        (dweight && ((s = attni_linear_check_operand(dweight, "dweight", dout, Out, In, err)) ||
                     (s = attni_linear_check_operand(x, "x", dout, T, In, err)))) ||
        (p->dbias && (s = attni_linear_check_operand(p->dbias, "dbias", dout, 1, Out, err))))
        return s;
    if (dx && dweight &&
        ((s = check_same(dx, "dx", x, err)) || (s = check_same(dweight, "dweight", weight, err))))
        return s;
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------- Planning */

/* t as [B,H,rows,columns], with stride 0 where it repeats B or H. */
static attn_tensor expanded(const attn_tensor *t, const attn_tensor *dout)
{
    attn_tensor e = *t;
    for (int i = 0; i < 2; i++) {
        if (e.shape[i] == 1)
            e.stride[i] = 0;
        e.shape[i] = dout->shape[i];
    }
    return e;
}

static attn_tensor transposed(attn_tensor t)
{
    const int64_t n = t.shape[2], stride = t.stride[2];
    t.shape[2] = t.shape[3];
    t.stride[2] = t.stride[3];
    t.shape[3] = n;
    t.stride[3] = stride;
    return t;
}

/* Merges dimension d into the last one. Returns false if the terms are then not evenly spaced. */
static bool fold(attn_tensor *t, int d)
{
    const int64_t n = t->shape[d], inner = t->shape[3];
    int64_t step; /* may overflow if the tensor is empty or repeats */
    t->shape[d] = 1;
    if (n == 1)
        return true;
    if (inner == 1)
        t->stride[3] = t->stride[d];
    else if (__builtin_mul_overflow(inner, t->stride[3], &step) || t->stride[d] != step)
        return false;
    return !__builtin_mul_overflow(n, inner, &t->shape[3]);
}

/* Checks that the folded sizes fit. Every operand is known to be addressable, but if it repeats,
 * its expanded size may not be. */
static bool folded_sizes(const product *p, attn_tensor *t)
{
    for (int d = 0; d < 2; d++) {
        if (!(d ? p->fold_h : p->fold_b))
            continue;
        if (__builtin_mul_overflow(t->shape[3], t->shape[d], &t->shape[3]))
            return false;
        t->shape[d] = 1;
    }
    return true;
}

/* Places operand i, copied if necessary. With a layout whose base is NULL it only sizes the
 * copies. */
static bool place_operand(product *p, int i, attni_layout *layout)
{
    const attn_tensor *from = &p->from[i];
    attn_tensor view = *from;
    bool even = true;
    if (p->fold_h)
        even = fold(&view, 1);
    if (p->fold_b)
        even = even && fold(&view, 0);
    p->copied[i] = !even;
    p->view[i] = view;
    if (even)
        return true;
    view = *from;
    if (!folded_sizes(p, &view))
        return false;
    const int64_t *n = view.shape;
    void *data = attni_module_take(layout, attn_dtype_size(view.dtype), n[0], n[1], n[2], n[3]);
    p->view[i] = attn_bhtd(data ? data : (void *)ATTNI_ALIGN, view.dtype, n[0], n[1], n[2], n[3]);
    return !layout->overflow;
}

/* Plans grad = a b^T, summed over the last dimension of a and b and over the dimensions that grad
 * repeats. */
static attn_status plan_product(product *p, attn_context *ctx, const attn_tensor *dout,
                                attn_tensor a, attn_tensor b, const attn_tensor *grad,
                                attni_layout *layout, attn_error *err)
{
    p->wanted = true;
    p->from[0] = a;
    p->from[1] = b;
    p->fold_b = grad->shape[0] == 1 && dout->shape[0] != 1;
    p->fold_h = grad->shape[1] == 1 && dout->shape[1] != 1;
    if (!place_operand(p, 0, layout) || !place_operand(p, 1, layout))
        return attni_fail(err, ATTN_ERR_LIMIT, "dout",
                          "dout is [%lld, %lld, %lld, %lld]; a copy of what it is multiplied with "
                          "is more than can be addressed",
                          (long long)dout->shape[0], (long long)dout->shape[1],
                          (long long)dout->shape[2], (long long)dout->shape[3]);
    return attni_linear_plan(&p->plan, attni_context_isa_index(ctx), attn_context_threads(ctx),
                             &p->view[0], &p->view[1], NULL, NULL, grad, err);
}

/* -------------------------------------------------------------------------------------- Running */

typedef struct copy_work {
    const attn_tensor *from, *to;
    bool fold_b, fold_h;
} copy_work;

/* Copies rows of the operand to their parts of the folded rows. Row r is (b, h, i), with b
 * slowest. */
static void copy_rows(void *arg, int64_t first, int64_t end)
{
    const copy_work *w = arg;
    const attn_tensor *from = w->from, *to = w->to;
    const int64_t H = from->shape[1], rows = from->shape[2], n = from->shape[3];
    for (int64_t r = first; r < end; r++) {
        const int64_t b = r / rows / H, h = r / rows % H, i = r % rows;
        const int64_t part = (w->fold_b ? b : 0) * (w->fold_h ? H : 1) + (w->fold_h ? h : 0);
        attni_module_copy_row(attni_at(to, w->fold_b ? 0 : b, w->fold_h ? 0 : h, i, part * n),
                              to->stride[3], attni_at(from, b, h, i, 0), from->stride[3], n,
                              attn_dtype_size(from->dtype));
    }
}

static void run_product(product *p, attni_call *call, char *scratch)
{
    for (int i = 0; i < 2 && p->wanted; i++)
        if (p->copied[i]) {
            copy_work w = {&p->from[i], &p->view[i], p->fold_b, p->fold_h};
            attni_module_share(call, attni_module_rows(w.from), w.from->shape[3], copy_rows, &w);
        }
    if (!p->wanted)
        return;
    attni_linear_run(&p->plan, call, scratch);
}

/* Adds n columns of rows i..i+rows-1 of dout, from column c on, to their sums, row after row. */
static void add_rows(const backward *p, double *sums, int64_t b, int64_t h, int64_t i, int64_t rows,
                     int64_t c, int64_t n)
{
    const attn_tensor *dout = p->dout;
    if (p->kernels && dout->stride[3] == 1) {
        p->kernels->column_sums(sums, attni_at(dout, b, h, i, c), (ptrdiff_t)dout->stride[2],
                                (int)rows, n);
        return;
    }
    double row[ATTNI_COLUMNS];
    for (const int64_t end = i + rows; i < end; i++)
        for (int64_t done = 0; done < n; done += ATTNI_COLUMNS) {
            const int64_t some = n - done < ATTNI_COLUMNS ? n - done : ATTNI_COLUMNS;
            attni_load_row_f64(row, attni_at(dout, b, h, i, c + done), dout->dtype, dout->stride[3],
                               some);
            for (int64_t j = 0; j < some; j++)
                sums[done + j] += row[j];
        }
}

/* Sums columns of one [b,h] of dbias, in pieces, over all rows of dout to which the bias was added,
 * in order. Adjacent pieces are summed together, so that each row is read in long parts. */
static void sum_columns(void *arg, int64_t first, int64_t end)
{
    const backward *p = arg;
    const attn_tensor *dout = p->dout, *dbias = p->dbias;
    const int64_t T = dout->shape[2], Out = dout->shape[3];
    const int64_t pieces = attni_div_up(Out, ATTNI_COLUMNS);
    const int64_t bs = attni_empty(dout) ? 0 : dout->shape[0] / dbias->shape[0];
    const int64_t hs = dout->shape[1] / dbias->shape[1];
    int64_t some;
    for (int64_t item = first; item < end; item += some) {
        const int64_t group = item / pieces, piece = item % pieces, c = piece * ATTNI_COLUMNS;
        const int64_t b = group / dbias->shape[1], h = group % dbias->shape[1];
        some = pieces - piece < end - item ? pieces - piece : end - item;
        some = some < PIECES ? some : PIECES;
        const int64_t n = Out - c < some * ATTNI_COLUMNS ? Out - c : some * ATTNI_COLUMNS;
        double sums[PIECES * ATTNI_COLUMNS] = {0};
        for (int64_t r = 0; r < bs * hs; r++)
            for (int64_t i = 0; i < T; i += ROWS)
                add_rows(p, sums, b + r / hs, h + r % hs, i, T - i < ROWS ? T - i : ROWS, c, n);
        attni_store_row_f64(attni_at(dbias, b, h, 0, c), dbias->dtype, dbias->stride[3], sums, n);
    }
}

static void run_bias(backward *p, attni_call *call)
{
    const int64_t *n = p->dbias->shape, *all = p->dout->shape;
    const int64_t groups = n[0] * n[1];
    if (groups == 0 || all[3] == 0)
        return;
    p->kernels = p->dout->dtype == ATTN_F32 ? attni_kernels_of(call->isa, 32) : NULL;
    attni_module_share(call, groups * attni_div_up(all[3], ATTNI_COLUMNS),
                       all[0] * all[1] / groups * all[2] * ATTNI_COLUMNS, sum_columns, p);
}

/* ------------------------------------------------------------------------------------- The call */

attn_status attni_linear_backward_plan(attni_linear_grads *p, attn_context *ctx,
                                       attni_layout *layout, attn_error *err)
{
    const attn_tensor *dout = p->dout;
    attn_status s;
    if (p->dx && (s = plan_product(&p->by_x, ctx, dout, *dout,
                                   transposed(expanded(p->weight, dout)), p->dx, layout, err)))
        return s;
    if (p->dweight && (s = plan_product(&p->by_weight, ctx, dout, transposed(*dout),
                                        transposed(expanded(p->x, dout)), p->dweight, layout, err)))
        return s;
    const size_t a = p->by_x.plan.bytes, b = p->by_weight.plan.bytes;
    p->work_bytes = a > b ? a : b;
    return ATTN_OK;
}

void attni_linear_backward_run(attni_linear_grads *p, attni_call *call, char *work)
{
    run_product(&p->by_x, call, work);
    run_product(&p->by_weight, call, work);
    if (p->dbias)
        run_bias(p, call);
}

/* Takes the copies, then scratch for the larger of the two layers. */
static attn_status plan_backward(backward *p, attn_context *ctx, attni_layout *layout, char **work,
                                 attn_error *err)
{
    const attn_status s = attni_linear_backward_plan(p, ctx, layout, err);
    if (s != ATTN_OK)
        return s;
    *work = attni_layout_take(layout, p->work_bytes, 1);
    if (layout->overflow || layout->used > PTRDIFF_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "dout",
                          "dout has rows of %lld; the scratch for its gradients is more than can "
                          "be addressed",
                          (long long)p->dout->shape[3]);
    return ATTN_OK;
}

attn_status attn_linear_backward(attn_context *ctx, const attn_tensor *dout, const attn_tensor *x,
                                 const attn_tensor *weight, const attn_tensor *dx,
                                 const attn_tensor *dweight, const attn_tensor *dbias,
                                 attn_error *err)
{
    ATTNI_CALL_MODE;
    backward p = {.dout = dout, .x = x, .weight = weight};
    p.dx = dx;
    p.dweight = dweight;
    p.dbias = dbias;
    attni_layout layout = {0};
    attni_call call;
    char *work;
    attn_status s;
    if ((s = check_backward(&p, err)) || (s = plan_backward(&p, ctx, &layout, &work, err)) ||
        (s = attni_call_begin(&call, ctx, layout.used, NULL, 0, err)))
        return s;
    layout = (attni_layout){.base = call.scratch};
    (void)plan_backward(&p, ctx, &layout, &work, NULL);
    attni_linear_backward_run(&p, &call, work);
    attni_call_end(&call);
    return ATTN_OK;
}
