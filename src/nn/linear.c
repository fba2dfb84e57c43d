/* The linear layer: out = x weight^T + bias.
 *
 * It is attention's first half without the softmax, so it runs on attention's micro-kernels: rows
 * of x stand in SIMD lanes as queries do, rows of the weight are broadcast as keys are, and
 * `finish` turns a finished tile back into rows. An output is the sum over In in the order that
 * kernel.h fixes for a score, then its bias: nothing of it depends on the tile, the task or the
 * thread that it falls to. (finish gives no -0; so out has none either.)
 *
 * A task is a few tiles of rows times a few hundred columns of out. Tiles are packed once in a
 * task, and a block of weights is read, or gathered, once for all of them.
 */
#include "module.h"

#include <stdatomic.h>

#define TASK_TILES 4     /* tiles that share one reading of the weights */
#define TASK_OUTPUTS 256 /* columns over which the packing of a tile is spread */
#define WORKER_FLOP 2e6  /* some 20 microseconds: below it a thread is not worth waking */

/* ------------------------------------------------------------------------------------- Checking */

/* t must be [B|1, H|1, rows, columns], B and H being out's. */
static attn_status check_operand(const attn_tensor *t, const char *name, const attn_tensor *out,
                                 int64_t rows, int64_t columns, attn_error *err)
{
    const int64_t *n = t->shape, B = out->shape[0], H = out->shape[1];
    if ((n[0] == B || n[0] == 1) && (n[1] == H || n[1] == 1) && n[2] == rows && n[3] == columns)
        return ATTN_OK;
    return attni_fail(
        err, ATTN_ERR_SHAPE, name,
        "%s is [%lld, %lld, %lld, %lld]; it must be [%lld or 1, %lld or 1, %lld, %lld]", name,
        (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3], (long long)B,
        (long long)H, (long long)rows, (long long)columns);
}

static attn_status check_linear(const attn_tensor *x, const attn_tensor *weight,
                                const attn_tensor *bias, const attn_tensor *out, attn_error *err)
{
    attn_status s;
    if ((s = attni_module_check(x, "x", x, "x", err)) ||
        (s = attni_module_check(weight, "weight", x, "x", err)) ||
        (bias && (s = attni_module_check(bias, "bias", x, "x", err))) ||
        (s = attni_module_check_output(out, "out", x, "x", err)))
        return s;
    const int64_t T = out->shape[2], Out = out->shape[3], In = x->shape[3];
    if ((s = check_operand(x, "x", out, T, In, err)) ||
        (s = check_operand(weight, "weight", out, Out, In, err)) ||
        (bias && (s = check_operand(bias, "bias", out, 1, Out, err))))
        return s;
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------- Planning */

static attn_tensor repeated(const attn_tensor *t)
{
    attn_tensor r = *t;
    for (int i = 0; i < 4; i++)
        if (r.shape[i] == 1)
            r.stride[i] = 0;
    return r;
}

/* Batches that follow each other in memory and share a weight are one batch with more rows: fewer
 * lanes stay empty. */
static void join_batches(attni_linear *p)
{
    const int64_t B = p->out.shape[0], T = p->out.shape[2];
    if (B == 1 || p->weight.stride[0] != 0 || (p->has_bias && p->bias.stride[0] != 0) ||
        p->x.stride[0] != T * p->x.stride[2] || p->out.stride[0] != T * p->out.stride[2])
        return;
    p->x.shape[0] = p->out.shape[0] = 1;
    p->x.shape[2] = p->out.shape[2] = B * T;
}

static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Cuts the work into tasks: large ones, unless threads would stand idle. */
static void cut_tasks(attni_linear *p, int threads)
{
    const int64_t bh = p->out.shape[0] * p->out.shape[1], block = ATTNI_BLOCK;
    const int64_t tiles = divide_up(p->out.shape[2], p->width);
    const double flop = 2.0 * (double)p->out.shape[2] * (double)p->out.shape[3] *
                        (double)p->x.shape[3] * (double)bh;
    p->tiles = tiles < TASK_TILES ? tiles : TASK_TILES;
    p->outputs = TASK_OUTPUTS;
    for (;;) {
        p->groups = divide_up(tiles, p->tiles);
        p->chunks = divide_up(p->out.shape[3], p->outputs);
        p->tasks = (size_t)(bh * p->groups * p->chunks);
        if (threads == 1 || p->tasks >= 4 * (size_t)threads)
            break;
        if (p->outputs > block)
            p->outputs = p->outputs / 2 > block ? p->outputs / 2 : block;
        else if (p->tiles > 1)
            p->tiles /= 2;
        else
            break;
    }
    p->workers = threads;
    if (p->tasks < (size_t)p->workers)
        p->workers = (int)p->tasks;
    if (flop / WORKER_FLOP < p->workers)
        p->workers = 1 + (int)(flop / WORKER_FLOP);
}

/* One worker's arrays; the same code sizes them and carves them. */
typedef struct worker_arrays {
    char *packed;      /* [tiles][In][W] */
    void *products;    /* [block][W] */
    void *maxima;      /* [W], which scores() wants to write */
    void *ones;        /* [W] */
    void *bias;        /* [block] */
    void *x_rows;      /* [W][In]: x, where its rows are not contiguous */
    void *weight_rows; /* [block][In], likewise */
    void *out_rows;    /* [W][block], likewise */
    size_t tile_bytes; /* of one packed tile */
} worker_arrays;

static worker_arrays take_arrays(const attni_linear *p, attni_layout *layout)
{
    const size_t R = (size_t)p->kernels->bits / 8;
    const int64_t In = p->x.shape[3], W = p->width, block = ATTNI_BLOCK;
    worker_arrays a = {0};
    a.packed = attni_module_take(layout, R, 1, p->tiles, In, W);
    a.products = attni_module_take(layout, R, 1, 1, block, W);
    a.maxima = attni_module_take(layout, R, 1, 1, 1, W);
    a.ones = attni_module_take(layout, R, 1, 1, 1, W);
    a.bias = attni_module_take(layout, R, 1, 1, 1, block);
    if (p->gather_x)
        a.x_rows = attni_module_take(layout, R, 1, 1, W, In);
    if (p->gather_weight)
        a.weight_rows = attni_module_take(layout, R, 1, 1, block, In);
    if (p->scatter_out)
        a.out_rows = attni_module_take(layout, R, 1, 1, W, block);
    a.tile_bytes = (size_t)W * (size_t)In * R; /* fits where `packed` does */
    return a;
}

attn_status attni_linear_plan(attni_linear *p, int isa, int threads, const attn_tensor *x,
                              const attn_tensor *weight, const attn_tensor *bias,
                              const attn_tensor *out, attn_error *err)
{
    *p = (attni_linear){.has_bias = bias != NULL};
    p->x = repeated(x);
    p->weight = repeated(weight);
    p->bias = bias ? repeated(bias) : p->bias;
    p->out = repeated(out);
    p->kernels = attni_kernels_of(isa, x->dtype == ATTN_F64 ? 64 : 32);
    p->width = p->kernels->lanes * p->kernels->vectors;
    for (int i = 0; i < 4; i++)
        if (out->shape[i] == 0)
            return ATTN_OK; /* no tasks */
    if (x->shape[3] == 0) { /* nothing of them is read, but NULL cannot be added to */
        p->x = p->weight = p->out;
        p->x.shape[3] = 0;
        for (int i = 0; i < 4; i++)
            p->x.stride[i] = p->weight.stride[i] = 0;
    }
    join_batches(p);
    p->gather_x = x->shape[3] > 1 && x->stride[3] != 1;
    p->gather_weight = x->shape[3] > 1 && weight->stride[3] != 1;
    p->scatter_out = out->shape[3] > 1 && out->stride[3] != 1;
    cut_tasks(p, threads);

    attni_layout layout = {0};
    take_arrays(p, &layout);
    p->worker_bytes = layout.used;
    if (layout.overflow || !attni_size_mul(layout.used, (size_t)p->workers, &p->bytes))
        return attni_fail(err, ATTN_ERR_LIMIT, "x",
                          "has rows of %lld; a tile of them is more than can be addressed",
                          (long long)x->shape[3]);
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------------- Running */

static void load_row(void *dst, const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j,
                     int64_t n)
{
    const char *src = attni_at(t, b, h, i, j);
    if (t->dtype == ATTN_F64)
        attni_load_row_f64(dst, src, t->dtype, t->stride[3], n);
    else
        attni_load_row_f32(dst, src, t->dtype, t->stride[3], n);
}

static void store_row(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j,
                      const void *src, int64_t n)
{
    char *dst = attni_at(t, b, h, i, j);
    if (t->dtype == ATTN_F64)
        attni_store_row_f64(dst, t->dtype, t->stride[3], src, n);
    else
        attni_store_row_f32(dst, t->dtype, t->stride[3], src, n);
}

/* products[j][:] += bias[j] */
static void add_bias_f32(float *products, const float *bias, int n, int W)
{
    for (int j = 0; j < n; j++)
        for (int i = 0; i < W; i++)
            products[j * W + i] += bias[j];
}

static void add_bias_f64(double *products, const double *bias, int n, int W)
{
    for (int j = 0; j < n; j++)
        for (int i = 0; i < W; i++)
            products[j * W + i] += bias[j];
}

/* Where a task's work lies: one (b, h), rows of x and columns of out. */
typedef struct task_place {
    int64_t b, h, row, row_end, column, column_end;
} task_place;

static task_place place_of(const attni_linear *p, size_t task)
{
    const int64_t chunk = (int64_t)task % p->chunks, rest = (int64_t)task / p->chunks;
    const int64_t group = rest % p->groups, bh = rest / p->groups;
    const int64_t T = p->out.shape[2], Out = p->out.shape[3];
    task_place at = {.b = bh / p->out.shape[1], .h = bh % p->out.shape[1]};
    at.row = group * p->tiles * p->width;
    at.row_end = T - at.row < p->tiles * p->width ? T : at.row + p->tiles * p->width;
    at.column = chunk * p->outputs;
    at.column_end = Out - at.column < p->outputs ? Out : at.column + p->outputs;
    return at;
}

/* The rows of one tile, and how many vectors they fill: 1, 2, 4, ... */
typedef struct tile_size {
    int rows, nv;
} tile_size;

static tile_size size_of_tile(const attni_linear *p, const task_place *at, int64_t first)
{
    tile_size s = {.rows = p->width, .nv = 1};
    if (at->row_end - first < s.rows)
        s.rows = (int)(at->row_end - first);
    while (s.nv * p->kernels->lanes < s.rows)
        s.nv *= 2;
    return s;
}

static void pack_tile(const attni_linear *p, const worker_arrays *a, const task_place *at, int tile)
{
    const int64_t In = p->x.shape[3], first = at->row + (int64_t)tile * p->width;
    const tile_size s = size_of_tile(p, at, first);
    const size_t R = (size_t)p->kernels->bits / 8;
    const void *rows = attni_at(&p->x, at->b, at->h, first, 0);
    ptrdiff_t stride = (ptrdiff_t)p->x.stride[2];
    if (p->gather_x) {
        for (int i = 0; i < s.rows; i++)
            load_row((char *)a->x_rows + (size_t)i * (size_t)In * R, &p->x, at->b, at->h, first + i,
                     0, In);
        rows = a->x_rows;
        stride = (ptrdiff_t)In;
    }
    p->kernels->pack(a->packed + (size_t)tile * a->tile_bytes, rows, stride, s.rows, In, 1, s.nv);
}

/* Columns column .. column+n-1 of one tile's rows. */
static void multiply_tile(const attni_linear *p, const worker_arrays *a, const task_place *at,
                          int tile, const void *weight, ptrdiff_t stride, int64_t column, int n)
{
    const attni_kernels *k = p->kernels;
    const int64_t first = at->row + (int64_t)tile * p->width;
    const tile_size s = size_of_tile(p, at, first);
    k->scores(a->products, a->maxima, a->packed + (size_t)tile * a->tile_bytes, weight, stride, n,
              p->x.shape[3], s.nv);
    if (p->has_bias && k->bits == 64)
        add_bias_f64(a->products, a->bias, n, s.nv * k->lanes);
    else if (p->has_bias)
        add_bias_f32(a->products, a->bias, n, s.nv * k->lanes);
    if (!p->scatter_out) {
        k->finish(attni_at(&p->out, at->b, at->h, first, column), (ptrdiff_t)p->out.stride[2],
                  a->products, a->ones, s.rows, n, s.nv);
        return;
    }
    k->finish(a->out_rows, n, a->products, a->ones, s.rows, n, s.nv);
    for (int i = 0; i < s.rows; i++)
        store_row(&p->out, at->b, at->h, first + i, column,
                  (char *)a->out_rows + (size_t)i * (size_t)n * (size_t)k->bits / 8, n);
}

static void run_task(const attni_linear *p, const worker_arrays *a, size_t task)
{
    const task_place at = place_of(p, task);
    const int64_t In = p->x.shape[3];
    const int tiles = (int)divide_up(at.row_end - at.row, p->width), block = ATTNI_BLOCK;
    for (int t = 0; t < tiles; t++)
        pack_tile(p, a, &at, t);
    for (int64_t column = at.column; column < at.column_end; column += block) {
        const int n = at.column_end - column < block ? (int)(at.column_end - column) : block;
        const void *weight = attni_at(&p->weight, at.b, at.h, column, 0);
        ptrdiff_t stride = (ptrdiff_t)p->weight.stride[2];
        if (p->gather_weight) {
            const size_t row_bytes = (size_t)In * (size_t)p->kernels->bits / 8;
            for (int j = 0; j < n; j++)
                load_row((char *)a->weight_rows + (size_t)j * row_bytes, &p->weight, at.b, at.h,
                         column + j, 0, In);
            weight = a->weight_rows;
            stride = (ptrdiff_t)In;
        }
        if (p->has_bias)
            load_row(a->bias, &p->bias, at.b, at.h, 0, column, n);
        for (int t = 0; t < tiles; t++)
            multiply_tile(p, a, &at, t, weight, stride, column, n);
    }
}

typedef struct shared_work {
    const attni_linear *plan;
    char *scratch;
    atomic_size_t next; /* the first task that nobody has taken */
} shared_work;

static void work(void *arg, int worker)
{
    shared_work *shared = arg;
    const attni_linear *p = shared->plan;
    attni_layout layout = {.base = shared->scratch + (size_t)worker * p->worker_bytes};
    const worker_arrays a = take_arrays(p, &layout);
    for (int i = 0; i < p->width; i++) {
        if (p->kernels->bits == 64)
            ((double *)a.ones)[i] = 1;
        else
            ((float *)a.ones)[i] = 1;
    }
    for (;;) {
        const size_t task = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (task >= p->tasks)
            return;
        run_task(p, &a, task);
    }
}

void attni_linear_run(const attni_linear *plan, attni_call *call, char *scratch)
{
    shared_work shared = {.plan = plan, .scratch = scratch};
    if (plan->tasks > 0)
        attni_call_run(call, plan->workers < call->threads ? plan->workers : call->threads, work,
                       &shared);
}

attn_status attn_linear_forward(attn_context *ctx, const attn_tensor *x, const attn_tensor *weight,
                                const attn_tensor *bias, const attn_tensor *out, attn_error *err)
{
    attni_linear plan;
    attni_call call;
    attn_status status = check_linear(x, weight, bias, out, err);
    if (status == ATTN_OK)
        status = attni_linear_plan(&plan, attni_context_isa_index(ctx), attn_context_threads(ctx),
                                   x, weight, bias, out, err);
    if (status == ATTN_OK)
        status = attni_call_begin(&call, ctx, plan.bytes, NULL, 0, err);
    if (status != ATTN_OK)
        return status;
    attni_linear_run(&plan, &call, call.scratch);
    attni_call_end(&call);
    return ATTN_OK;
}
