/* Layer norm over the last dimension. Rows are read in pieces. In f64 all arithmetic is in double,
 * and mean and variance take two passes over a row, so that a large mean costs no digits. In f32
 * kernels (kernel.h) do the arithmetic. Mean, variance and sums are in double, but the
 * terms of a sum are first added a few at a time in float; other numbers are in float.
 *
 *   y = (x - mean) * r,  r = 1 / sqrt(variance + eps),  out = y * weight + bias
 *   dx = r * (g - mean(g) - y * mean(g * y)),  g = dout * weight
 *   dweight = sum of dout y,  dbias = sum of dout, over all rows
 *
 * If the r of an f32 row does not fit a float, the whole row is computed in double. If only
 * mean(g) or mean(g * y) is not finite in float, only its dx is.
 *
 * The sums over rows have a fixed order: groups of ATTNI_NORM_ROWS rows are added in order, and so
 * are the rows of a group. But in f32, if r of every row of the group fits a float, norm_columns()
 * adds the rows, in the order that kernel.h gives.
 */
#include <math.h>

#include "module.h"

typedef struct norm {
    const attn_tensor *x, *weight, *bias, *out;     /* forward */
    const attn_tensor *dout, *dx, *dweight, *dbias; /* backward */
    double eps;
    double *sums;                 /* of the columns of dweight and of dbias */
    double *mean, *r;             /* of each row; backward only */
    attni_moments *moments;       /* f32 only: the same, rounded, and more (kernel.h) */
    const attni_kernels *kernels; /* f32; NULL: compute in double */
    int64_t columns;              /* number that a thread sums at a time; it changes no bit */
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

static void norm_doubles(const norm *p, int64_t i)
{
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

/* Elements c .. c+n-1 of row i of an f32 tensor, in place or in `copy`. NULL if t (a weight or a
 * bias) is NULL. */
static const float *floats(float *copy, const attn_tensor *t, int64_t i, int64_t c, int64_t n)
{
    return t ? attni_module_floats(copy, t, attni_module_row(t, i), c, n) : NULL;
}

static int64_t piece_at(const norm *p, int64_t c)
{
    const int64_t left = p->x->shape[3] - c;
    return left < ATTNI_PIECE ? left : ATTNI_PIECE;
}

/* Sets the members `mean`, `r` and `rest` of m[] (kernel.h) for the f32 rows i and i + 1, or for
 * row i alone if i + 1 is `end`. mean[] and r[] get mean and r in double. The sums are those of x -
 * first, where `first` is the row's first element. The variance is squares / E - (sum / E)^2. Here
 * sum / E is mean - first, and the first element alone contributes (first - mean)^2 / E to the
 * variance. So (sum / E)^2 is at most E times the variance, and the difference loses at most about
 * log2(E) bits of a double. fits[u] is set for row i + u: false if the row has to be computed in
 * double. */
static void find_float_moments(const norm *p, int64_t i, int64_t end, attni_moments *m,
                               double *mean, double *r, bool fits[2])
{
    const int64_t E = p->x->shape[3];
    const int64_t rows[2] = {i, i + 1 < end ? i + 1 : i};
    double sum[2] = {0}, squares[2] = {0};
    float copy[2][ATTNI_PIECE], first[2];
    for (int u = 0; u < 2; u++)
        attni_load_row_f32(&first[u], attni_module_row(p->x, rows[u]), ATTN_F32, 1, 1);
    for (int64_t c = 0, n; c < E; c += n) {
        double part[2], square[2];
        n = piece_at(p, c);
        const void *x[2] = {floats(copy[0], p->x, rows[0], c, n),
                            floats(copy[1], p->x, rows[1], c, n)};
        p->kernels->moments(part, square, x, first, n);
        for (int u = 0; u < 2; u++) {
            sum[u] += part[u];
            squares[u] += square[u];
        }
    }
    for (int64_t u = 0; u <= rows[1] - i; u++) {
        const double variance = (squares[u] - sum[u] * (sum[u] / (double)E)) / (double)E;
        mean[u] = (double)first[u] + sum[u] / (double)E;
        r[u] = 1 / sqrt((variance < 0 ? 0 : variance) + p->eps);
        m[u].mean = (float)mean[u];
        /* `rest` corrects the rounding of m[u].mean. It is not computed from mean[u], because that
         * is rounded, too. For an element near the mean, x - mean is small, and the rounding error
         * of mean[u] would cost y digits. */
        m[u].rest = (float)(((double)m[u].mean - (double)first[u] - sum[u] / (double)E) * r[u]);
        m[u].r = (float)r[u];
        fits[u] = attni_module_fits_float(r[u]);
    }
}

static void norm_floats(const norm *p, int64_t i, const attni_moments *m)
{
    float x[ATTNI_PIECE], weight[ATTNI_PIECE], bias[ATTNI_PIECE], copy[ATTNI_PIECE];
    char *row = attni_module_row(p->out, i);
    for (int64_t c = 0, n; c < p->x->shape[3]; c += n) {
        n = piece_at(p, c);
        float *out = attni_module_floats_to(copy, p->out, row, c);
        p->kernels->norm(out, floats(x, p->x, i, c, n), m, floats(weight, p->weight, 0, c, n),
                         floats(bias, p->bias, 0, c, n), n);
        attni_module_store_floats(p->out, row, c, out, n);
    }
}

static void norm_rows(void *arg, int64_t first, int64_t end)
{
    const norm *p = arg;
    for (int64_t i = first; i < end; i += 2) {
        attni_moments m[2];
        double mean[2], r[2];
        bool fits[2] = {false, false};
        if (p->kernels)
            find_float_moments(p, i, end, m, mean, r, fits);
        for (int u = 0; u < 2 && i + u < end; u++)
            if (fits[u])
                norm_floats(p, i + u, &m[u]);
            else
                norm_doubles(p, i + u);
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

/* dx of row i in double, from p->mean[i] and p->r[i]. */
static void gradient_doubles(const norm *p, int64_t i)
{
    const int64_t E = p->x->shape[3];
    double y[ATTNI_PIECE], g[ATTNI_PIECE], sum_g = 0, sum_gy = 0;
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

/* Sets mean_g and times_y of m[] (kernel.h) for rows i and i + 1, or for row i alone if i + 1 is
 * `end`. */
static void find_float_sums(const norm *p, int64_t i, int64_t end, attni_moments *m)
{
    const int64_t E = p->x->shape[3];
    const int64_t rows[2] = {i, i + 1 < end ? i + 1 : i};
    const attni_moments both[2] = {m[0], m[rows[1] - i]};
    float copies[2][2][ATTNI_PIECE], weight[ATTNI_PIECE];
    double sum_g[2] = {0}, sum_gy[2] = {0};
    for (int64_t c = 0, n; c < E; c += n) {
        double g[2], gy[2];
        const void *x[2], *dout[2];
        n = piece_at(p, c);
        for (int u = 0; u < 2; u++) {
            x[u] = floats(copies[0][u], p->x, rows[u], c, n);
            dout[u] = floats(copies[1][u], p->dout, rows[u], c, n);
        }
        p->kernels->norm_sums(g, gy, x, dout, both, floats(weight, p->weight, 0, c, n), n);
        for (int u = 0; u < 2; u++) {
            sum_g[u] += g[u];
            sum_gy[u] += gy[u];
        }
    }
    for (int64_t u = 0; u <= rows[1] - i; u++) {
        m[u].mean_g = (float)(sum_g[u] / (double)E);
        m[u].times_y = (float)(-p->r[i + u] * (sum_gy[u] / (double)E));
    }
}

static void gradient_floats(const norm *p, int64_t i, const attni_moments *m)
{
    float x[ATTNI_PIECE], dout[ATTNI_PIECE], weight[ATTNI_PIECE], copy[ATTNI_PIECE];
    char *row = attni_module_row(p->dx, i);
    for (int64_t c = 0, n; c < p->x->shape[3]; c += n) {
        n = piece_at(p, c);
        float *dx = attni_module_floats_to(copy, p->dx, row, c);
        p->kernels->norm_grad(dx, floats(x, p->x, i, c, n), floats(dout, p->dout, i, c, n), m,
                              floats(weight, p->weight, 0, c, n), n);
        attni_module_store_floats(p->dx, row, c, dx, n);
    }
}

/* Computes mean, r and dx of row i in double: for a row that is not f32, or whose r does not fit a
 * float. */
static void gradient_row(const norm *p, int64_t i)
{
    if (p->kernels)
        p->moments[i].r = 0; /* marks a row that is computed in double */
    find_moments(p->x, attni_module_row(p->x, i), p->eps, &p->mean[i], &p->r[i]);
    gradient_doubles(p, i);
}

static void gradient_rows(void *arg, int64_t first, int64_t end)
{
    const norm *p = arg;
    for (int64_t i = first; i < end; i += 2) {
        attni_moments *m = p->kernels ? p->moments + i : NULL;
        bool fits[2] = {false, false};
        if (p->kernels)
            find_float_moments(p, i, end, m, p->mean + i, p->r + i, fits);
        if (p->dx && (fits[0] || fits[1]))
            find_float_sums(p, i, end, m);
        for (int u = 0; u < 2 && i + u < end; u++)
            if (!fits[u])
                gradient_row(p, i + u);
            else if (p->dx && isfinite(m[u].mean_g) && isfinite(m[u].times_y))
                gradient_floats(p, i + u, &m[u]);
            else if (p->dx) /* not finite, or overflow in float */
                gradient_doubles(p, i + u);
    }
}

#define MOST_COLUMNS (2 * ATTNI_COLUMNS)
static int64_t columns_at(const norm *p, int64_t c)
{
    const int64_t left = p->x->shape[3] - c;
    return left < p->columns ? left : p->columns;
}

/* Adds the part of row i to dweight and dbias, for up to p->columns columns from c on. */
static void add_row(const norm *p, int64_t i, int64_t c, double *dweight, double *dbias)
{
    double x[MOST_COLUMNS], dout[MOST_COLUMNS];
    const int64_t n = columns_at(p, c);
    attni_load_row_f64(x, attni_module_place(p->x, attni_module_row(p->x, i), c), p->x->dtype,
                       p->x->stride[3], n);
    attni_load_row_f64(dout, attni_module_place(p->dout, attni_module_row(p->dout, i), c),
                       p->dout->dtype, p->dout->stride[3], n);
    for (int64_t j = 0; j < n; j++) {
        dweight[j] += dout[j] * ((x[j] - p->mean[i]) * p->r[i]);
        dbias[j] += dout[j];
    }
}

/* The same for `rows` rows from i on, by a kernel. Returns false if there is none, or if r of one
 * of the rows does not fit a float. */
static bool add_float_rows(const norm *p, int64_t i, int rows, int64_t c, double *dweight,
                           double *dbias)
{
    float x[ATTNI_NORM_ROWS][MOST_COLUMNS], dout[ATTNI_NORM_ROWS][MOST_COLUMNS];
    const void *at[2][ATTNI_NORM_ROWS];
    const int64_t n = columns_at(p, c);
    for (int r = 0; r < rows; r++) {
        if (!p->kernels || p->moments[i + r].r == 0)
            return false;
        at[0][r] = floats(x[r], p->x, i + r, c, n);
        at[1][r] = floats(dout[r], p->dout, i + r, c, n);
    }
    p->kernels->norm_columns(dweight, dbias, at[0], at[1], p->moments + i, rows, n);
    return true;
}

/* The same for ATTNI_NORM_ROWS rows from i on, or those that are left. */
static void add_rows(const norm *p, int64_t i, int64_t c)
{
    const int64_t left = attni_module_rows(p->x) - i;
    const int rows = left < ATTNI_NORM_ROWS ? (int)left : ATTNI_NORM_ROWS;
    double *dweight = p->sums + c, *dbias = dweight + p->x->shape[3];
    if (!add_float_rows(p, i, rows, c, dweight, dbias))
        for (int r = 0; r < rows; r++)
            add_row(p, i + r, c, dweight, dbias);
}

static void store_columns(const norm *p, int64_t c)
{
    const double *dweight = p->sums + c, *dbias = dweight + p->x->shape[3];
    if (p->dweight)
        store_piece(p->dweight, p->dweight->data, c, dweight, columns_at(p, c));
    if (p->dbias)
        store_piece(p->dbias, p->dbias->data, c, dbias, columns_at(p, c));
}

static void gradient_columns(void *arg, int64_t first, int64_t end)
{
    const norm *p = arg;
    const int64_t rows = attni_module_rows(p->x);
    for (int64_t c = first * p->columns; c < end * p->columns; c += p->columns) {
        for (int64_t i = 0; i < rows; i += ATTNI_NORM_ROWS)
            add_rows(p, i, c);
        store_columns(p, c);
    }
}

/* One thread computes everything, in groups of rows. It adds each group to the sums of the columns
 * while the group is in a cache. The order of the sums is that of gradient_columns. */
static void gradient_groups(void *arg, int64_t first, int64_t end)
{
    const norm *p = arg;
    const int64_t rows = attni_module_rows(p->x), E = p->x->shape[3];
    (void)first, (void)end;
    for (int64_t i = 0; i < rows; i += ATTNI_NORM_ROWS) {
        gradient_rows(arg, i, rows - i < ATTNI_NORM_ROWS ? rows : i + ATTNI_NORM_ROWS);
        for (int64_t c = 0; c < E; c += p->columns)
            add_rows(p, i, c);
    }
    for (int64_t c = 0; c < E; c += p->columns)
        store_columns(p, c);
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
    p.kernels = x->dtype == ATTN_F32 ? attni_kernels_of(call.isa, 32) : NULL;
    attni_module_share(&call, attni_module_rows(x), (p.kernels ? 1 : 4) * x->shape[3], norm_rows,
                       &p);
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
    const bool single = x->dtype == ATTN_F32;
    (void)attni_layout_take(&layout, (uint64_t)E, 2 * sizeof *p.sums);
    (void)attni_layout_take(&layout, (uint64_t)rows,
                            2 * sizeof *p.mean + (single ? sizeof *p.moments : 0));
    if (layout.overflow || layout.used > PTRDIFF_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "x", "x has %lld rows, more than can be addressed",
                          (long long)rows);
    if ((s = attni_call_begin(&call, ctx, layout.used, NULL, 0, err)))
        return s;
    p.sums = (double *)(void *)call.scratch;
    for (int64_t c = 0; c < 2 * E; c++)
        p.sums[c] = 0;
    p.mean = p.sums ? p.sums + 2 * E : NULL;
    p.r = p.mean ? p.mean + rows : NULL;
    p.moments = p.mean ? (attni_moments *)(void *)(p.r + rows) : NULL;
    p.kernels = single ? attni_kernels_of(call.isa, 32) : NULL;
    p.columns = call.threads == 1 ? MOST_COLUMNS : ATTNI_COLUMNS;
    if (call.threads == 1 && (dweight || dbias)) {
        attni_module_share(&call, 1, 1, gradient_groups, &p);
    } else {
        attni_module_share(&call, rows, 6 * E, gradient_rows, &p);
        if (dweight || dbias)
            attni_module_share(&call, attni_div_up(E, p.columns), rows * p.columns,
                               gradient_columns, &p);
    }
    attni_call_end(&call);
    return ATTN_OK;
}
