/* Cross-entropy of logits and target classes, and its gradient. One thread computes a row; the
 * losses of the rows are added in order. */
#include <math.h>

#include "module.h"

typedef struct entropy {
    const attn_tensor *logits, *dlogits;
    const int64_t *targets;
    int64_t ignore, counted;
    double dloss, *losses;        /* losses: one per row */
    const attni_kernels *kernels; /* f32; NULL: compute in double with the C library */
} entropy;

static attn_status check_entropy(entropy *p, attn_error *err)
{
    const int64_t N = p->logits ? p->logits->shape[2] : 0, V = p->logits ? p->logits->shape[3] : 0;
    attn_status s;
    if ((s = attni_module_check(p->logits, "logits", p->logits, "logits", err)) ||
        (s = attni_module_check_shape(p->logits, "logits", 1, 1, N, V, err)))
        return s;
    if (N > 0 && !p->targets)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "targets",
                          "targets is NULL; it must hold %lld classes", (long long)N);
    for (int64_t n = 0; n < N; n++) {
        const int64_t target = p->targets[n];
        if (target == p->ignore)
            continue;
        if (target < 0 || target >= V)
            return attni_fail(err, ATTN_ERR_ARGUMENT, "targets",
                              "targets[%lld] is %lld; it must be at least 0 and less than %lld, "
                              "the columns of logits, or %lld to be ignored",
                              (long long)n, (long long)target, (long long)V, (long long)p->ignore);
        p->counted++;
    }
    return ATTN_OK;
}

static int64_t load_piece(double *to, const attn_tensor *t, int64_t row, int64_t first)
{
    const int64_t left = t->shape[3] - first, n = left < ATTNI_PIECE ? left : ATTNI_PIECE;
    attni_load_row_f64(to, attni_at(t, 0, 0, row, first), t->dtype, t->stride[3], n);
    return n;
}

static int64_t piece_at(const attn_tensor *t, int64_t c)
{
    return t->shape[3] - c < ATTNI_PIECE ? t->shape[3] - c : ATTNI_PIECE;
}

/* In f32, the largest logit of a row. If a logit is NaN, the result is any of the logits or -inf;
 * sum_floats() then returns NaN. */
static float top_of_floats(const entropy *p, int64_t row)
{
    const attn_tensor *t = p->logits;
    char *from = attni_at(t, 0, 0, row, 0);
    float x[ATTNI_PIECE], top = -INFINITY;
    for (int64_t c = 0, n; c < t->shape[3]; c += n) {
        n = piece_at(t, c);
        const float most = p->kernels->maximum(attni_module_floats(x, t, from, c, n), n);
        top = most > top ? most : top;
    }
    return top;
}

/* In f32, the sum of e^(x - top) of a row, in double; NaN if a logit is. */
static double sum_floats(const entropy *p, int64_t row, double top)
{
    const attn_tensor *t = p->logits;
    char *from = attni_at(t, 0, 0, row, 0);
    float x[ATTNI_PIECE];
    double sum = 0;
    for (int64_t c = 0, n; c < t->shape[3]; c += n) {
        n = piece_at(t, c);
        sum += p->kernels->exp_sum(attni_module_floats(x, t, from, c, n), top, n);
    }
    return sum;
}

/* Sets *top to the maximum of a row and *rest to log(sum of e^(x - *top)). So log(sum of e^x) is
 * *top + *rest. */
static void find_sum(const entropy *p, int64_t row, double *top, double *rest)
{
    const attn_tensor *logits = p->logits;
    if (p->kernels) {
        *top = (double)top_of_floats(p, row);
        *rest = log(sum_floats(p, row, *top));
        return;
    }
    double piece[ATTNI_PIECE], sum = 0;
    *top = -INFINITY;
    for (int64_t c = 0, n; c < logits->shape[3]; c += n) {
        n = load_piece(piece, logits, row, c);
        for (int64_t j = 0; j < n; j++)
            *top = piece[j] > *top || piece[j] != piece[j] ? piece[j] : *top;
    }
    for (int64_t c = 0, n; c < logits->shape[3]; c += n) {
        n = load_piece(piece, logits, row, c);
        for (int64_t j = 0; j < n; j++)
            sum += exp(piece[j] - *top);
    }
    *rest = log(sum);
}

/* The sum of a row needs its maximum, and the logarithm needs the sum. In a short row, most of the
 * time is the latency of these steps. So for f32 each step is computed for all rows of a block
 * before the next step, and the CPU overlaps the rows (docs/decisions/0053). A block has at most
 * MOST_ROWS rows and BLOCK_BYTES of logits, so that it stays in L1; a longer row is a block of its
 * own. */
enum { MOST_ROWS = 8, BLOCK_BYTES = 16384 };
static int block_rows(const entropy *p, int64_t left)
{
    const int64_t fit = BLOCK_BYTES / (4 * (p->logits->shape[3] + 1));
    const int64_t rows = fit < 1 ? 1 : fit < MOST_ROWS ? fit : MOST_ROWS;
    return (int)(left < rows ? left : rows);
}

static bool ignored(const entropy *p, int64_t row) { return p->targets[row] == p->ignore; }

static void loss_block(const entropy *p, int64_t row, int rows)
{
    double top[MOST_ROWS] = {0}, rest[MOST_ROWS] = {0};
    for (int i = 0; i < rows && p->kernels; i++)
        if (!ignored(p, row + i))
            top[i] = (double)top_of_floats(p, row + i);
    for (int i = 0; i < rows && p->kernels; i++)
        if (!ignored(p, row + i))
            rest[i] = sum_floats(p, row + i, top[i]);
    for (int i = 0; i < rows; i++) {
        double target;
        p->losses[row + i] = 0;
        if (ignored(p, row + i))
            continue;
        if (p->kernels)
            rest[i] = log(rest[i]);
        else
            find_sum(p, row + i, &top[i], &rest[i]);
        attni_load_row_f64(&target, attni_at(p->logits, 0, 0, row + i, p->targets[row + i]),
                           p->logits->dtype, 1, 1);
        p->losses[row + i] = rest[i] + (top[i] - target);
    }
}

static void loss_rows(void *arg, int64_t first, int64_t end)
{
    const entropy *p = arg;
    for (int64_t i = first, n; i < end; i += n) {
        n = block_rows(p, end - i);
        loss_block(p, i, (int)n);
    }
}

/* A row of the gradient in double. */
static void gradient_doubles(const entropy *p, int64_t i, double factor)
{
    const attn_tensor *d = p->dlogits;
    const bool zero = ignored(p, i);
    double piece[ATTNI_PIECE], top = 0, rest = 0;
    if (!zero)
        find_sum(p, i, &top, &rest);
    for (int64_t c = 0, n; c < d->shape[3]; c += n) {
        n = load_piece(piece, p->logits, i, c);
        for (int64_t j = 0; j < n; j++) {
            const double share = exp(piece[j] - top - rest) - (c + j == p->targets[i]);
            piece[j] = zero ? 0 : factor * share;
        }
        attni_store_row_f64(attni_at(d, 0, 0, i, c), d->dtype, d->stride[3], piece, n);
    }
}

/* In f32, stores the terms e^(x - top) of a row and returns their sum. */
static double store_terms(const entropy *p, int64_t i, float top)
{
    const attn_tensor *d = p->dlogits, *t = p->logits;
    char *row = attni_at(d, 0, 0, i, 0), *from = attni_at(t, 0, 0, i, 0);
    float x[ATTNI_PIECE], copy[ATTNI_PIECE];
    double sum = 0;
    for (int64_t c = 0, n; c < d->shape[3]; c += n) {
        n = piece_at(d, c);
        float *at = attni_module_floats_to(copy, d, row, c);
        sum += p->kernels->exp_terms(at, attni_module_floats(x, t, from, c, n), top, n);
        attni_module_store_floats(d, row, c, at, n);
    }
    return sum;
}

/* Turns the terms of a row into its gradient: multiplies them by factor / sum, rounded to float.
 * `factor` is dloss, divided by the number of rows that are not ignored. The gradient of the target
 * is factor times its probability minus 1, which is computed in double as (term - sum) / sum. */
static void scale_terms(const entropy *p, int64_t i, double sum, double factor)
{
    const attn_tensor *d = p->dlogits;
    char *row = attni_at(d, 0, 0, i, 0);
    float copy[ATTNI_PIECE], target;
    attni_load_row_f32(&target, attni_at(d, 0, 0, i, p->targets[i]), ATTN_F32, 1, 1);
    for (int64_t c = 0, n; c < d->shape[3]; c += n) {
        n = piece_at(d, c);
        float *at = attni_module_floats(copy, d, row, c, n);
        p->kernels->multiply(at, (float)(factor / sum), n);
        attni_module_store_floats(d, row, c, at, n);
    }
    target = (float)(factor / sum * ((double)target - sum));
    attni_store_row_f32(attni_at(d, 0, 0, i, p->targets[i]), ATTN_F32, 1, &target, 1);
}

static void gradient_block(const entropy *p, int64_t row, int rows, double factor)
{
    float top[MOST_ROWS];
    double sum[MOST_ROWS];
    bool floats[MOST_ROWS]; /* the others are computed in double */
    for (int i = 0; i < rows; i++) {
        floats[i] = p->kernels && !ignored(p, row + i);
        if (floats[i])
            top[i] = top_of_floats(p, row + i);
    }
    for (int i = 0; i < rows; i++) {
        floats[i] = floats[i] && attni_module_fits_float((double)top[i]) && fabsf(top[i]) <= 1e9F;
        if (floats[i])
            sum[i] = store_terms(p, row + i, top[i]);
    }
    for (int i = 0; i < rows; i++)
        if (floats[i] && attni_module_fits_float(factor / sum[i]))
            scale_terms(p, row + i, sum[i], factor);
        else
            gradient_doubles(p, row + i, factor);
}

static void gradient_rows(void *arg, int64_t first, int64_t end)
{
    const entropy *p = arg;
    const double factor = p->counted ? p->dloss / (double)p->counted : 0;
    for (int64_t i = first, n; i < end; i += n) {
        n = block_rows(p, end - i);
        gradient_block(p, i, (int)n, factor);
    }
}

attn_status attn_cross_entropy_forward(attn_context *ctx, const attn_tensor *logits,
                                       const int64_t *targets, int64_t ignore, double *loss,
                                       attn_error *err)
{
    ATTNI_CALL_MODE;
    entropy p = {.logits = logits, .targets = targets, .ignore = ignore};
    attni_call call;
    attn_status s = check_entropy(&p, err);
    if (s == ATTN_OK && !loss)
        s = attni_fail(err, ATTN_ERR_ARGUMENT, "loss",
                       "loss is NULL; it must point to where the result is stored");
    if (s != ATTN_OK)
        return s;
    const int64_t N = logits->shape[2];
    size_t bytes;
    if (!attni_size_mul((uint64_t)N, sizeof *p.losses, &bytes) || bytes > PTRDIFF_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "logits",
                          "logits has %lld rows, more than can be addressed", (long long)N);
    if ((s = attni_call_begin(&call, ctx, bytes, NULL, 0, err)))
        return s;
    p.losses = (double *)(void *)call.scratch;
    p.kernels = logits->dtype == ATTN_F32 ? attni_kernels_of(call.isa, 32) : NULL;
    attni_module_share(&call, N, (p.kernels ? 2 : 16) * logits->shape[3], loss_rows, &p);
    *loss = 0;
    for (int64_t i = 0; i < N; i++)
        *loss += p.losses[i];
    *loss /= p.counted ? (double)p.counted : 1;
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attn_cross_entropy_backward(attn_context *ctx, double dloss, const attn_tensor *logits,
                                        const int64_t *targets, int64_t ignore,
                                        const attn_tensor *dlogits, attn_error *err)
{
    ATTNI_CALL_MODE;
    entropy p = {.logits = logits, .dlogits = dlogits, .targets = targets, .ignore = ignore};
    p.dloss = dloss;
    attni_call call;
    attn_status s;
    if ((s = check_entropy(&p, err)) ||
        (s = attni_module_check_output(dlogits, "dlogits", logits, "logits", err)) ||
        (s = attni_module_check_shape(dlogits, "dlogits", 1, 1, logits->shape[2], logits->shape[3],
                                      err)) ||
        (s = attni_call_begin(&call, ctx, 0, NULL, 0, err)))
        return s;
    p.kernels = logits->dtype == ATTN_F32 ? attni_kernels_of(call.isa, 32) : NULL;
    attni_module_share(&call, logits->shape[2], (p.kernels ? 2 : 16) * logits->shape[3],
                       gradient_rows, &p);
    attni_call_end(&call);
    return ATTN_OK;
}
