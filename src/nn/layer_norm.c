/* Layer norm over the last dimension. All arithmetic is in double. Rows are read in pieces; mean
 * and variance take two passes over a row, so that a large mean costs no digits.
 *
 *   y = (x - mean) * r,  r = 1 / sqrt(variance + eps),  out = y * weight + bias
 *   dx = r * (g - mean of g - y * mean of g y),  g = dout * weight
 *   dweight = sum of dout y,  dbias = sum of dout, over all rows in order
 */
#include <math.h>

#include "module.h"

typedef struct norm {
    const attn_tensor *x, *weight, *bias, *out;     /* forward */
    const attn_tensor *dout, *dx, *dweight, *dbias; /* backward */
    double eps;
    double *mean, *r; /* of each row; backward only, for the sums over rows */
} norm;

/* ------------------------------------------------------------------------------------- Checking */

static attn_status check_vector(const attn_tensor *t, const char *name, const attn_tensor *x,
                                attn_error *err)
{
    const attn_status s = attni_module_check(t, name, x, "x", err);
    return s != ATTN_OK ? s : attni_module_check_shape(t, name, 1, 1, 1, x->shape[3], err);
}

static attn_status check_result(const attn_tensor *t, const char *name, const attn_tensor *x,
                                bool vector, attn_error *err)
{
    const int64_t *n = x->shape;
    const attn_status s = attni_module_check_output(t, name, x, "x", err);
    if (s != ATTN_OK)
        return s;
    return vector ? attni_module_check_shape(t, name, 1, 1, 1, n[3], err)
                  : attni_module_check_shape(t, name, n[0], n[1], n[2], n[3], err);
}

static attn_status check_inputs(const norm *p, attn_error *err)
{
    attn_status s;
    if ((s = attni_module_check(p->x, "x", p->x, "x", err)) ||
        (p->weight && (s = check_vector(p->weight, "weight", p->x, err))) ||
        (p->bias && (s = check_vector(p->bias, "bias", p->x, err))))
        return s;
    if (!(p->eps >= 0 && isfinite(p->eps)))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "eps",
                          "eps is %g; it must be finite and not negative", p->eps);
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------------ Rows
 */

/* Loads the elements first .. first+n-1 of a row. Returns n: the rest of the row, at most a
 * piece. */
static int64_t load_piece(double *to, const attn_tensor *t, const char *row, int64_t first)
{
    const int64_t left = t->shape[3] - first, n = left < ATTNI_PIECE ? left : ATTNI_PIECE;
    attni_load_row_f64(to, row + first * t->stride[3] * (int64_t)attn_dtype_size(t->dtype),
                       t->dtype, t->stride[3], n);
    return n;
}

static void store_piece(const attn_tensor *t, char *row, int64_t first, const double *from,
                        int64_t n)
{
    attni_store_row_f64(row + first * t->stride[3] * (int64_t)attn_dtype_size(t->dtype), t->dtype,
                        t->stride[3], from, n);
}

/* Loads a piece of weight or bias; if t is NULL, all elements are `none`. */
static void load_vector(double *to, const attn_tensor *t, int64_t first, int64_t n, double none)
{
    for (int64_t j = 0; j < n && !t; j++)
        to[j] = none;
    if (t)
        load_piece(to, t, t->data, first);
}

static void find_moments(const attn_tensor *x, const char *row, double eps, double *mean, double *r)
{
    const int64_t E = x->shape[3];
    double piece[ATTNI_PIECE], sum = 0, squares = 0;
    for (int64_t c = 0, n; c < E; c += n) {
        n = load_piece(piece, x, row, c);
        for (int64_t j = 0; j < n; j++)
            sum += piece[j];
    }
    *mean = sum / (double)E;
    for (int64_t c = 0, n; c < E; c += n) {
        n = load_piece(piece, x, row, c);
        for (int64_t j = 0; j < n; j++)
            squares += (piece[j] - *mean) * (piece[j] - *mean);
    }
    *r = 1 / sqrt(squares / (double)E + eps);
}

static void norm_rows(void *arg, int64_t first, int64_t end)
{
    const norm *p = arg;
    for (int64_t i = first; i < end; i++) {
        const char *row = attni_module_row(p->x, i);
        char *to = attni_module_row(p->out, i);
        double mean, r, x[ATTNI_PIECE], weight[ATTNI_PIECE], bias[ATTNI_PIECE];
        find_moments(p->x, row, p->eps, &mean, &r);
        for (int64_t c = 0, n; c < p->x->shape[3]; c += n) {
            n = load_piece(x, p->x, row, c);
            load_vector(weight, p->weight, c, n, 1);
            load_vector(bias, p->bias, c, n, 0);
            for (int64_t j = 0; j < n; j++)
                x[j] = (x[j] - mean) * r * weight[j] + bias[j];
            store_piece(p->out, to, c, x, n);
        }
    }
}

/* ------------------------------------------------------------------------------------- Gradients
 */

/* Loads y and g of a piece of row i; returns the piece's length. */
static int64_t load_gradient(const norm *p, int64_t i, int64_t c, double *y, double *g)
{
    double weight[ATTNI_PIECE];
    const int64_t n = load_piece(y, p->x, attni_module_row(p->x, i), c);
    load_piece(g, p->dout, attni_module_row(p->dout, i), c);
    load_vector(weight, p->weight, c, n, 1);
    for (int64_t j = 0; j < n; j++) {
        y[j] = (y[j] - p->mean[i]) * p->r[i];
        g[j] *= weight[j];
    }
    return n;
}

static void gradient_rows(void *arg, int64_t first, int64_t end)
{
    const norm *p = arg;
    const int64_t E = p->x->shape[3];
    double y[ATTNI_PIECE], g[ATTNI_PIECE];
    for (int64_t i = first; i < end; i++) {
        double sum_g = 0, sum_gy = 0;
        find_moments(p->x, attni_module_row(p->x, i), p->eps, &p->mean[i], &p->r[i]);
        for (int64_t c = 0, n; c < E && p->dx; c += n) {
            n = load_gradient(p, i, c, y, g);
            for (int64_t j = 0; j < n; j++) {
                sum_g += g[j];
                sum_gy += g[j] * y[j];
            }
        }
        for (int64_t c = 0, n; c < E && p->dx; c += n) {
            n = load_gradient(p, i, c, y, g);
            for (int64_t j = 0; j < n; j++)
                g[j] = p->r[i] * (g[j] - sum_g / (double)E - y[j] * (sum_gy / (double)E));
            store_piece(p->dx, attni_module_row(p->dx, i), c, g, n);
        }
    }
}

static void gradient_columns(void *arg, int64_t first, int64_t end)
{
    const norm *p = arg;
    const int64_t rows = attni_module_rows(p->x);
    double x[ATTNI_PIECE], dout[ATTNI_PIECE];
    for (int64_t c = first * ATTNI_PIECE; c < end * ATTNI_PIECE; c += ATTNI_PIECE) {
        double dweight[ATTNI_PIECE] = {0}, dbias[ATTNI_PIECE] = {0};
        int64_t n = p->x->shape[3] - c < ATTNI_PIECE ? p->x->shape[3] - c : ATTNI_PIECE;
        for (int64_t i = 0; i < rows; i++) {
            load_piece(x, p->x, attni_module_row(p->x, i), c);
            load_piece(dout, p->dout, attni_module_row(p->dout, i), c);
            for (int64_t j = 0; j < n; j++) {
                dweight[j] += dout[j] * ((x[j] - p->mean[i]) * p->r[i]);
                dbias[j] += dout[j];
            }
        }
        if (p->dweight)
            store_piece(p->dweight, p->dweight->data, c, dweight, n);
        if (p->dbias)
            store_piece(p->dbias, p->dbias->data, c, dbias, n);
    }
}

/* ------------------------------------------------------------------------------------- The calls
 */

attn_status attn_layer_norm_forward(attn_context *ctx, const attn_tensor *x,
                                    const attn_tensor *weight, const attn_tensor *bias, double eps,
                                    const attn_tensor *out, attn_error *err)
{
    ATTNI_CALL_MODE;
    norm p = {.x = x, .weight = weight, .bias = bias, .out = out, .eps = eps};
    attni_call call;
    attn_status s;
    if ((s = check_inputs(&p, err)) || (s = check_result(out, "out", x, false, err)) ||
        (s = attni_call_begin(&call, ctx, 0, NULL, 0, err)))
        return s;
    attni_module_share(&call, attni_module_rows(x), 4 * x->shape[3], norm_rows, &p);
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attn_layer_norm_backward(attn_context *ctx, const attn_tensor *dout,
                                     const attn_tensor *x, const attn_tensor *weight, double eps,
                                     const attn_tensor *dx, const attn_tensor *dweight,
                                     const attn_tensor *dbias, attn_error *err)
{
    ATTNI_CALL_MODE;
    norm p = {.x = x, .weight = weight, .dout = dout, .dx = dx, .eps = eps};
    p.dweight = dweight;
    p.dbias = dbias;
    attni_call call;
    attn_status s;
    if ((s = check_inputs(&p, err)) || (s = attni_module_check(dout, "dout", x, "x", err)) ||
        (s = attni_module_check_shape(dout, "dout", x->shape[0], x->shape[1], x->shape[2],
                                      x->shape[3], err)) ||
        (dx && (s = check_result(dx, "dx", x, false, err))) ||
        (dweight && (s = check_result(dweight, "dweight", x, true, err))) ||
        (dbias && (s = check_result(dbias, "dbias", x, true, err))))
        return s;
    const int64_t rows = attni_module_rows(x), E = x->shape[3];
    attni_layout layout = {0};
    (void)attni_layout_take(&layout, (uint64_t)rows, 2 * sizeof *p.mean);
    if (layout.overflow || layout.used > PTRDIFF_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "x", "x has %lld rows, more than can be addressed",
                          (long long)rows);
    if ((s = attni_call_begin(&call, ctx, layout.used, NULL, 0, err)))
        return s;
    p.mean = (double *)(void *)call.scratch;
    p.r = p.mean ? p.mean + rows : NULL;
    attni_module_share(&call, rows, 6 * E, gradient_rows, &p);
    if (dweight || dbias)
        attni_module_share(&call, attni_div_up(E, ATTNI_PIECE), rows * ATTNI_PIECE,
                           gradient_columns, &p);
    attni_call_end(&call);
    return ATTN_OK;
}
