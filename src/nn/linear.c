/* The linear layer: out = x weight^T + bias.
 *
 * Outputs are in SIMD lanes. A panel is W outputs (64 with AVX-512 and float). The kernel operation
 * pack() transposes the panel's weights to [In][W], unless they were packed once for all calls
 * (attni_packed). Rows of x are not packed: an element of x is broadcast from where it is stored,
 * so few rows leave no lane idle. Rows of x are copied first only if their elements are not
 * contiguous, or if the rows would map to only a few sets of the caches (wants_copy()).
 *
 *   task         up to TASK_ROWS rows of x (PACKED_ROWS if weights are packed) times some panels
 *     block      BLOCK_BYTES of each row of x, or all of In (block_of())
 *       panel    W outputs
 *         run    64 components of the block: the panel's weights for them (16 KB with AVX-512) are
 *                packed, and stay in L1 while they are multiplied by all rows of the task
 *
 * With few rows, packing would be most of the work. Then the weight is transposed in registers
 * while it is multiplied, and the transposed weight is not stored (linear_few_rows).
 *
 * An output is the sum over In in the order that kernel.h fixes, then its bias. It does not depend
 * on the panel, the task, the thread or the code path that computes it.
 */
#include "../core/hand_over.h"
#include "module.h"

#include <stdatomic.h>
#include <string.h>

/* Rows in a task: a multiple of 12 and of 6. With AVX2 and with AVX-512, a micro-kernel has 6 rows
 * for the widest panel and 12 for a panel of one vector (ROWS_OF() in kernel/tile.inc.h). */
#define TASK_ROWS 516
#define PACKED_ROWS 132  /* rows in a task if weights are already packed: x stays in L2 */
#define BLOCK_BYTES 4096 /* of each row of x: all panels use them before the next bytes are read */
#define WORKER_FLOP 2e6  /* about 20 microseconds; for less work, waking a thread does not pay */
/* If rows of x are copied, and there are more panels than this, tasks are not cut to fewer panels.
 * (The last task of a group of rows can have fewer.) */
#define COPY_PANELS 4

/* ------------------------------------------------------------------------------------- Checking */

attn_status attni_linear_check_operand(const attn_tensor *t, const char *name,
                                       const attn_tensor *out, int64_t rows, int64_t columns,
                                       attn_error *err)
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
    if ((s = attni_linear_check_operand(x, "x", out, T, In, err)) ||
        (s = attni_linear_check_operand(weight, "weight", out, Out, In, err)) ||
        (bias && (s = attni_linear_check_operand(bias, "bias", out, 1, Out, err))))
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

/* If batches follow each other in memory and share weight and bias, they become one batch with more
 * rows. Then rows are left over for smaller micro-kernels only once, not in each batch. */
static void join_batches(attni_linear *p)
{
    const int64_t B = p->out.shape[0], T = p->out.shape[2];
    if (B == 1 || p->weight.stride[0] != 0 || (p->has_bias && p->bias.stride[0] != 0) ||
        p->x.stride[0] != T * p->x.stride[2] || p->out.stride[0] != T * p->out.stride[2])
        return;
    p->x.shape[0] = p->out.shape[0] = 1;
    p->x.shape[2] = p->out.shape[2] = B * T;
}

/* The vectors of a panel with this many outputs: 1, 2, 4, ... */
static int vectors_of(const attni_kernels *kernels, int64_t outputs)
{
    int nv = 1;
    while (nv < kernels->vectors && nv * kernels->lanes < outputs)
        nv *= 2;
    return nv;
}

/* Cuts the work into tasks. Tasks are as large as the caches allow, unless threads would be idle.
 * Tasks with fewer panels cost nothing, except that rows of x which must be copied are copied more
 * often. Tasks with fewer rows pack weights more often. */
static void cut_tasks(attni_linear *p, int threads)
{
    const int64_t B = p->out.shape[0], T = p->out.shape[2];
    const int64_t panels = p->head_panels * p->out.shape[1];
    const int64_t least = p->copy_x && panels > COPY_PANELS ? COPY_PANELS : 1;
    /* Fewer than ATTNI_FEW_ROWS rows take hardly less time, because the whole weight is read. */
    const int64_t rows = T < ATTNI_FEW_ROWS ? ATTNI_FEW_ROWS : T;
    const double flop = 2.0 * (double)B * (double)rows * (double)p->out.shape[1] *
                        (double)p->out.shape[3] * (double)p->x.shape[3];
    const size_t wanted = threads > 1 ? 4 * (size_t)threads : 1;
    p->groups = attni_div_up(T, p->packed ? PACKED_ROWS : TASK_ROWS);
    p->panels = panels;
    for (;;) {
        p->rows = attni_div_up(attni_div_up(T, p->groups), 12) * 12;
        p->groups = attni_div_up(T, p->rows);
        p->chunks = attni_div_up(panels, p->panels);
        p->tasks = (size_t)(B * p->groups * p->chunks);
        if (p->tasks >= wanted)
            break;
        if (p->panels > least)
            p->panels = attni_div_up(p->panels, 2) > least ? attni_div_up(p->panels, 2) : least;
        else if (p->rows >= 96)
            p->groups *= 2;
        else
            break;
    }
    p->workers = threads;
    if (p->tasks < (size_t)p->workers)
        p->workers = (int)p->tasks;
    if (flop / WORKER_FLOP < p->workers)
        p->workers = 1 + (int)(flop / WORKER_FLOP);
}

/* One worker's arrays. take_arrays both sizes them and lays them out. */
typedef struct worker_arrays {
    void *panel;  /* [ATTNI_D_CHAIN][W]; absent if weights are already packed, or if few_rows */
    void *sums;   /* [rows][W] */
    void *bias;   /* [W]; zeros if there is no bias */
    void *x_rows; /* [rows][x_stride]; absent if x is read in place */
    ptrdiff_t x_stride;
} worker_arrays;

/* True if the components of each row of the weight are contiguous, so that `pack` can read the
 * weight where it is. */
static bool rows_contiguous(const attn_tensor *weight)
{
    return weight->shape[3] <= 1 || weight->stride[3] == 1;
}

static worker_arrays take_arrays(const attni_linear *p, attni_layout *layout)
{
    const size_t R = (size_t)p->kernels->bits / 8;
    const int64_t W = p->width;
    worker_arrays a = {0};
    if (!p->packed && !p->few_rows)
        a.panel = attni_module_take(layout, R, 1, 1, ATTNI_D_CHAIN, W);
    a.sums = attni_module_take(layout, R, 1, 1, p->rows, W);
    a.bias = attni_module_take(layout, R, 1, 1, 1, W);
    if (p->copy_x) {
        /* 17 to 32 elements more than a block, so that the rows do not all map to one set of the
         * cache. */
        a.x_stride = (ptrdiff_t)(p->block / 16 * 16 + 32);
        a.x_rows = attni_module_take(layout, R, 1, 1, p->rows, a.x_stride);
    }
    return a;
}

/* Rows of x whose distance in bytes is a multiple of this map to only a few sets of the caches. */
#define BAD_STRIDE 2048

static bool wants_copy(const attni_linear *p)
{
    const attn_tensor *x = &p->x;
    if (x->shape[3] > 1 && x->stride[3] != 1)
        return true;
    const uint64_t bytes = (uint64_t)x->stride[2] * (uint64_t)p->kernels->bits / 8;
    return x->shape[2] >= 32 && bytes != 0 && bytes % BAD_STRIDE == 0;
}

/* Components of x in a block. All panels of a task are multiplied with one block before the next
 * one, so a block should stay in a cache: 132 rows of it have 0.5 MB, 516 rows 2 MB. Between
 * blocks the sums are kept in out; if out cannot be written directly, there is only one block. */
static int64_t block_of(const attni_linear *p)
{
    const int64_t Out = p->out.shape[3], In = p->x.shape[3];
    const int64_t tail = Out % p->width, block = BLOCK_BYTES / (p->kernels->bits / 8);
    const bool direct =
        p->out.stride[3] == 1 && tail % (vectors_of(p->kernels, tail) * p->kernels->lanes) == 0;
    return direct && !p->few_rows && In > block ? block : In;
}

attn_status attni_linear_plan(attni_linear *p, int isa, int threads, const attn_tensor *x,
                              const attn_tensor *weight, const attni_packed *packed,
                              const attn_tensor *bias, const attn_tensor *out, attn_error *err)
{
    *p = (attni_linear){.has_bias = bias != NULL, .packed = packed};
    p->x = repeated(x);
    p->weight = repeated(weight);
    p->bias = bias ? repeated(bias) : p->bias;
    p->out = repeated(out);
    p->kernels = attni_kernels_of(isa, x->dtype == ATTN_F64 ? 64 : 32);
    p->width = p->kernels->lanes * p->kernels->vectors;
    for (int i = 0; i < 4; i++)
        if (out->shape[i] == 0)
            return ATTN_OK; /* no tasks */
    if (x->shape[3] == 0) { /* no elements: data may be NULL, and no offset may be added */
        p->x = p->weight = p->out;
        p->x.shape[3] = p->weight.shape[3] = 0;
        for (int i = 0; i < 4; i++)
            p->x.stride[i] = p->weight.stride[i] = 0;
    }
    join_batches(p);
    p->copy_x = wants_copy(p);
    p->few_rows = p->out.shape[2] <= ATTNI_FEW_ROWS && !packed && rows_contiguous(&p->weight);
    p->block = block_of(p);
    p->head_panels = attni_div_up(p->out.shape[3], p->width);
    cut_tasks(p, threads);

    attni_layout layout = {0};
    take_arrays(p, &layout);
    p->worker_bytes = layout.used;
    if (layout.overflow || !attni_size_mul(layout.used, (size_t)p->workers, &p->bytes) ||
        p->bytes > PTRDIFF_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "x",
                          "x has rows of %lld; a tile of them is more than can be addressed",
                          (long long)x->shape[3]);
    return ATTN_OK;
}

/* ----------------------------------------------------------------------------- Loads and stores */

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

/* ------------------------------------------------------------------------------- Packed weights */

/* to[d][o] = weight[b, h, first + o, from + d] for d < n, o < outputs; the other columns of the
 * panel are 0. */
static void pack_panel(const attni_kernels *k, char *to, const attn_tensor *weight, int64_t b,
                       int64_t h, int64_t first, int outputs, int64_t from, int64_t n)
{
    const int nv = vectors_of(k, outputs);
    if (rows_contiguous(weight)) {
        k->pack(to, attni_at(weight, b, h, first, from), (ptrdiff_t)weight->stride[2], outputs, n,
                1, nv);
        return;
    }
    attn_tensor columns = *weight; /* its rows are contiguous if the weight is stored [In][Out] */
    columns.stride[2] = weight->stride[3];
    columns.stride[3] = weight->stride[2];
    const size_t R = (size_t)k->bits / 8, row = (size_t)(nv * k->lanes) * R;
    const size_t used = (size_t)outputs * R;
    for (int64_t d = 0; d < n; d++, to += row) {
        if (columns.stride[3] == 1)
            memcpy(to, attni_at(&columns, b, h, from + d, first), used);
        else
            load_row(to, &columns, b, h, from + d, first, outputs);
        memset(to + used, 0, row - used);
    }
}

bool attni_packed_size(attni_packed *packed, const attn_tensor *weight,
                       const attni_kernels *kernels)
{
    const int64_t *n = weight->shape;
    const int64_t W = kernels->lanes * kernels->vectors;
    const int64_t last = n[2] % W ? vectors_of(kernels, n[2] % W) * kernels->lanes : 0;
    *packed = (attni_packed){.H = n[1], .Out = n[2], .In = n[3], .kernels = kernels};
    return attni_size_mul((uint64_t)(n[2] / W * W + last), (uint64_t)n[3], &packed->head_bytes) &&
           attni_size_mul(packed->head_bytes, (size_t)kernels->bits / 8, &packed->head_bytes) &&
           attni_size_mul(packed->head_bytes, (uint64_t)n[1], &packed->bytes) &&
           packed->bytes <= PTRDIFF_MAX;
}

static char *panel_at(const attni_packed *packed, int64_t h, int64_t first_output)
{
    return packed->data + (size_t)h * packed->head_bytes +
           (size_t)first_output * (size_t)packed->In * (size_t)packed->kernels->bits / 8;
}

void attni_packed_fill(const attni_packed *packed, const attn_tensor *weight)
{
    const int64_t W = packed->kernels->lanes * packed->kernels->vectors;
    if (packed->In == 0 || packed->Out == 0) /* then H may be huge, too many for the loop below */
        return;
    for (int64_t h = 0; h < packed->H; h++)
        for (int64_t first = 0; first < packed->Out; first += W) {
            const int outputs = (int)(packed->Out - first < W ? packed->Out - first : W);
            pack_panel(packed->kernels, panel_at(packed, h, first), weight, 0, h, first, outputs, 0,
                       packed->In);
        }
}

/* -------------------------------------------------------------------------------------- Running */

/* Rows row .. row+rows-1 of x in batch b, and the address and stride of one block of their
 * components. */
typedef struct task_rows {
    int64_t b, row;
    int rows;
    const char *x;
    ptrdiff_t stride;
} task_rows;

/* Copies rows of x that are stored as columns, as those of dout for the gradient of a weight. Parts
 * of ATTNI_D_CHAIN rows and W components are transposed by vectors into a->panel, and copied from
 * there to x_rows. */
static void copy_columns(const attni_linear *p, const worker_arrays *a, const task_rows *t,
                         int64_t h, int64_t from, int64_t n)
{
    const attni_kernels *k = p->kernels;
    const size_t R = (size_t)k->bits / 8, row_bytes = (size_t)a->x_stride * R;
    for (int i = 0; i < t->rows; i += ATTNI_D_CHAIN)
        for (int64_t c = 0; c < n; c += p->width) {
            const int rows = t->rows - i < ATTNI_D_CHAIN ? t->rows - i : ATTNI_D_CHAIN;
            const int columns = (int)(n - c < p->width ? n - c : p->width);
            const int nv = vectors_of(k, columns);
            const char *part = a->panel;
            char *to = (char *)a->x_rows + (size_t)i * row_bytes + (size_t)c * R;
            k->pack(a->panel, attni_at(&p->x, t->b, h, t->row + i, from + c),
                    (ptrdiff_t)p->x.stride[3], columns, rows, 1, nv);
            for (int r = 0; r < rows; r++, to += row_bytes, part += (size_t)(nv * k->lanes) * R)
                memcpy(to, part, (size_t)columns * R);
        }
}

static void find_rows(const attni_linear *p, const worker_arrays *a, int64_t h, int64_t from,
                      int64_t n, task_rows *t)
{
    const size_t row_bytes = (size_t)a->x_stride * (size_t)p->kernels->bits / 8;
    t->x = attni_at(&p->x, t->b, h, t->row, from);
    t->stride = (ptrdiff_t)p->x.stride[2];
    if (!p->copy_x)
        return;
    if (a->panel && p->x.stride[2] == 1 && p->x.stride[3] != 1)
        copy_columns(p, a, t, h, from, n);
    else
        for (int i = 0; i < t->rows; i++)
            load_row((char *)a->x_rows + (size_t)i * row_bytes, &p->x, t->b, h, t->row + i, from,
                     n);
    t->x = a->x_rows;
    t->stride = a->x_stride;
}

/* One panel of a task, and the destination of its rows: out itself or, if the kernels cannot write
 * the rows there, sums. */
typedef struct task_panel {
    int64_t h, first;
    int outputs, nv;
    bool direct;
    void *to;
    ptrdiff_t stride;
} task_panel;

static task_panel find_panel(const attni_linear *p, const worker_arrays *a, const task_rows *t,
                             int64_t panel)
{
    task_panel q = {.h = panel / p->head_panels, .first = panel % p->head_panels * p->width};
    const int64_t left = p->out.shape[3] - q.first;
    q.outputs = (int)(left < p->width ? left : p->width);
    q.nv = vectors_of(p->kernels, q.outputs);
    q.direct = q.outputs == q.nv * p->kernels->lanes && p->out.stride[3] == 1;
    q.to = q.direct ? attni_at(&p->out, t->b, q.h, t->row, q.first) : a->sums;
    q.stride = q.direct ? (ptrdiff_t)p->out.stride[2] : q.nv * p->kernels->lanes;
    return q;
}

/* The address of the weights from component `from` on. *stride becomes the distance between rows
 * or, if the elements of a row are not contiguous, between columns. A run of packed weights has
 * ATTNI_D_CHAIN * W elements without gaps. linear() prefetches it as W pieces of ATTNI_D_CHAIN
 * elements (next_weights in kernel.h), so *stride is then ATTNI_D_CHAIN. */
static const void *weights_at(const attni_linear *p, int64_t b, const task_panel *q, int64_t from,
                              ptrdiff_t *stride)
{
    const attni_kernels *k = p->kernels;
    if (!p->packed) {
        *stride = (ptrdiff_t)p->weight.stride[rows_contiguous(&p->weight) ? 2 : 3];
        return attni_at(&p->weight, b, q->h, q->first, from);
    }
    *stride = ATTNI_D_CHAIN;
    return panel_at(p->packed, p->weight.stride[1] ? q->h : 0, q->first) +
           (size_t)from * (size_t)(q->nv * k->lanes) * (size_t)k->bits / 8;
}

/* Components first .. end-1 of In, which all panels use before the next block. */
typedef struct task_block {
    int64_t first, end;
} task_block;

/* Sets what one run prefetches: the weights of the next run and its part of x. If rows of out are
 * written directly, the last run but one prefetches them instead of x. */
static void prefetch_next_rows(const attni_linear *p, const task_rows *t, const task_panel *q,
                               const task_panel *next, task_block block, int64_t after,
                               attni_product *product)
{
    const bool before_last = after < block.end && after + ATTNI_D_CHAIN >= block.end;
    if (after < block.end)
        product->next_weights = weights_at(p, t->b, q, after, &product->ld_next_weights);
    else if (next)
        product->next_weights = weights_at(p, t->b, next, block.first, &product->ld_next_weights);
    if (q->direct && before_last) {
        product->next_x = q->to;
        product->ld_next_x = q->stride;
    } else if (after < block.end) {
        product->next_x = t->x + (size_t)(after - block.first) * (size_t)p->kernels->bits / 8;
        product->ld_next_x = t->stride;
    }
}

/* The product of one run, components from..from+n-1, for all rows of the task. */
static attni_product product_of_run(const attni_linear *p, const worker_arrays *a,
                                    const task_rows *t, const task_panel *q, task_block block,
                                    int64_t from, int n)
{
    const attni_kernels *k = p->kernels;
    const bool ends = from + n >= block.end, begins = from == block.first;
    const ptrdiff_t W = q->nv * k->lanes;
    attni_product product = {.wt = a->panel, .ldx = t->stride, .n = t->rows, .D = n};
    product.x = t->x + (size_t)(from - block.first) * (size_t)k->bits / 8;
    product.out = ends ? q->to : a->sums;
    product.ldo = ends ? q->stride : W;
    product.sums = from == 0 ? NULL : begins ? q->to : a->sums;
    product.ld_sums = begins ? q->stride : W;
    if (from + n >= p->x.shape[3])
        product.bias = a->bias;
    ptrdiff_t unused;
    if (p->packed)
        product.wt = weights_at(p, t->b, q, from, &unused);
    else if (n > 0)
        pack_panel(k, a->panel, &p->weight, t->b, q->h, q->first, q->outputs, from, n);
    return product;
}

/* How many rows of the weight, from the panel's first row on, may be prefetched: at most MOST. None
 * if the weight has at most 1 MiB: 128 inputs and 64 outputs take 2.0 us instead of 6.6 (Zen 1). */
static int prefetched_rows(const attni_linear *p, const task_panel *q)
{
    enum { MOST = 2 * ATTNI_MAX_LANES };
    const int64_t rows = p->out.shape[3] - q->first;
    const double bytes =
        (double)p->weight.shape[2] * (double)p->weight.shape[3] * (double)(p->kernels->bits / 8);
    return bytes <= ATTNI_FAR_BYTES ? 0 : rows < MOST ? (int)rows : MOST;
}

/* Computes one panel. `next` is the panel after it, or NULL. */
static void multiply_panel(const attni_linear *p, const worker_arrays *a, const task_rows *t,
                           const task_panel *q, const task_panel *next, task_block block)
{
    if (p->few_rows) {
        p->kernels->linear_few_rows(q->to, q->stride, a->bias,
                                    attni_at(&p->weight, t->b, q->h, q->first, 0),
                                    (ptrdiff_t)p->weight.stride[2], q->outputs,
                                    prefetched_rows(p, q), t->x, t->stride, t->rows, p->x.shape[3]);
        return;
    }
    int64_t from = block.first;
    do { /* one pass even if In = 0, which makes every sum 0 */
        const int n = block.end - from < ATTNI_D_CHAIN ? (int)(block.end - from) : ATTNI_D_CHAIN;
        attni_product product = product_of_run(p, a, t, q, block, from, n);
        from += n;
        prefetch_next_rows(p, t, q, next, block, from, &product);
        p->kernels->linear(&product, q->nv);
    } while (from < block.end);
}

static void scatter_panel(const attni_linear *p, const worker_arrays *a, const task_rows *t,
                          const task_panel *q)
{
    const size_t row = (size_t)q->stride * (size_t)p->kernels->bits / 8;
    for (int i = 0; i < t->rows; i++)
        store_row(&p->out, t->b, q->h, t->row + i, q->first, (char *)a->sums + (size_t)i * row,
                  q->outputs);
}

/* All panels of a task times one block of components. */
static void run_block(const attni_linear *p, const worker_arrays *a, task_rows *t, int64_t panel,
                      int64_t end, task_block block)
{
    int64_t head = -1;
    for (; panel < end; panel++) {
        const task_panel q = find_panel(p, a, t, panel);
        const task_panel next = find_panel(p, a, t, panel + 1);
        if (p->has_bias)
            load_row(a->bias, &p->bias, t->b, q.h, 0, q.first, q.outputs);
        if (head < 0 || (q.h != head && p->x.stride[1] != 0))
            find_rows(p, a, q.h, block.first, block.end - block.first, t);
        head = q.h;
        multiply_panel(p, a, t, &q, panel + 1 < end ? &next : NULL, block);
        if (!q.direct)
            scatter_panel(p, a, t, &q);
    }
}

static void run_task(const attni_linear *p, const worker_arrays *a, size_t task)
{
    const int64_t chunk = (int64_t)task % p->chunks, rest = (int64_t)task / p->chunks;
    const int64_t panels = p->head_panels * p->out.shape[1], first = chunk * p->panels;
    const int64_t end = first + p->panels < panels ? first + p->panels : panels;
    const int64_t In = p->x.shape[3];
    task_rows t = {.b = rest / p->groups, .row = rest % p->groups * p->rows};
    t.rows = (int)(p->out.shape[2] - t.row < p->rows ? p->out.shape[2] - t.row : p->rows);
    task_block block = {0, 0};
    do {
        block.first = block.end;
        block.end = In - block.first < p->block ? In : block.first + p->block;
        run_block(p, a, &t, first, end, block);
    } while (block.end < In);
}

typedef struct shared_work {
    const attni_linear *plan;
    char *scratch;
    atomic_size_t next; /* the first task not yet claimed */
} shared_work;

static void work(void *arg, int worker)
{
    shared_work *shared = arg;
    const attni_linear *p = shared->plan;
    attni_layout layout = {.base = shared->scratch + (size_t)worker * p->worker_bytes};
    const worker_arrays a = take_arrays(p, &layout);
    memset(a.bias, 0, (size_t)p->width * (size_t)p->kernels->bits / 8);
    for (;;) {
        const size_t task = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (task >= p->tasks)
            return;
        attni_hand_over();
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
    ATTNI_CALL_MODE;
    attni_linear plan;
    attni_call call;
    attn_status status = check_linear(x, weight, bias, out, err);
    if (status == ATTN_OK)
        status = attni_linear_plan(&plan, attni_context_isa_index(ctx), attn_context_threads(ctx),
                                   x, weight, NULL, bias, out, err);
    if (status == ATTN_OK)
        status = attni_call_begin(&call, ctx, plan.bytes, NULL, 0, err);
    if (status != ATTN_OK)
        return status;
    attni_linear_run(&plan, &call, call.scratch);
    attni_call_end(&call);
    return ATTN_OK;
}
