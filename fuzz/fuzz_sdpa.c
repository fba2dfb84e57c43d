/* Fuzz target: attn_sdpa_forward with arguments from random bytes: shapes, strides, dtypes, masks
 * and every option, valid or not; then attn_sdpa_backward.
 *
 * Each tensor is a view of its own memory. A tensor that would reach beyond it gets no data, so
 * that the library has to refuse it. Either every instruction set refuses the call and leaves the
 * outputs unchanged, or all succeed and agree with ref/ where its result is finite. Then all
 * gradients are computed, into memory of exactly their size; they must have the same bits on one
 * thread and on several.
 *
 * Built as described in fuzz_npy.c, with the files of ref/ and without those of kit/ and -lzip.
 */
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../include/attn.h"
#include "../ref/attn_ref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY = 1 << 16, MAX_B = 3, MAX_H = 4, MAX_SEQUENCES = 4 };
#define WORK 20000.0 /* most pairs times sizes, because the reference is slow */

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* ----------------------------------------------------------------------------- From bytes */

typedef struct input {
    const uint8_t *at, *end;
} input;

static unsigned byte(input *in) { return in->at < in->end ? *in->at++ : 0; }

static uint64_t word(input *in)
{
    uint64_t x = 0;
    for (int i = 0; i < 8; i++)
        x = x << 8 | byte(in);
    return x;
}

static bool chance(input *in, unsigned of_256) { return byte(in) < of_256; }

static int64_t odd_number(input *in)
{
    static const int64_t odd[] = {-1, 0, INT64_MAX, INT64_MIN, INT64_C(1) << 32, INT32_MAX, 1, 77};
    return odd[byte(in) % 8];
}

static double real(input *in)
{
    static const double odd[] = {0, 1, -1, 1e-3, 0.5, 30, NAN, INFINITY};
    return chance(in, 40) ? odd[byte(in) % 8] : (int)byte(in) / 128.0;
}

/* ------------------------------------------------------------------------------- Tensors */

typedef struct store { /* bytes of one tensor's memory */
    attn_tensor view;
    unsigned char *memory;
} store;

enum { Q, K, V, OUT, MASK, LSE, SCORES, TENSORS };

typedef struct call {
    attn_sdpa_args args;
    store tensor[TENSORS];
    int64_t key_lengths[MAX_B], cu_q[MAX_SEQUENCES + 1], cu_k[MAX_SEQUENCES + 1];
    float slopes[MAX_H], sinks[MAX_H];
} call;

/* Finds the lowest and highest offset in elements; false if they are far outside the memory. */
static bool extent(const attn_tensor *t, int64_t *low, int64_t *high)
{
    *low = *high = 0;
    for (int d = 0; d < 4; d++) {
        int64_t reach;
        if (t->shape[d] < 0 || t->shape[d] > MEMORY || t->stride[d] > MEMORY ||
            t->stride[d] < -MEMORY)
            return false;
        reach = t->shape[d] ? (t->shape[d] - 1) * t->stride[d] : 0;
        *(reach < 0 ? low : high) += reach;
    }
    return true;
}

/* Fills the memory with finite numbers of moderate size, or with any bits. */
static void fill(store *s, uint64_t seed, bool wild)
{
    for (size_t i = 0; i < MEMORY; i++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        s->memory[i] = (unsigned char)(seed >> 56);
    }
    if (wild)
        return;
    for (size_t i = 0; i < MEMORY / 8; i++) { /* -2 to 2, in every float type */
        const unsigned char x = s->memory[8 * i];
        const double wide = (x - 128) / 64.0;
        const float single = (float)wide;
        if (s->view.dtype == ATTN_F64)
            memcpy(s->memory + 8 * i, &wide, 8);
        else if (s->view.dtype == ATTN_F32)
            memcpy(s->memory + 8 * i, (float[]){single, -single / 2}, 8);
        else
            for (int k = 1; k < 8; k += 2) /* the high byte: a small exponent, any sign */
                s->memory[8 * i + (size_t)k] =
                    (unsigned char)((x & 0x80) | (s->view.dtype == ATTN_F16 ? 0x30 : 0x3E) |
                                    (x & 3));
    }
}

static void make_tensor(input *in, store *s, attn_dtype dtype, const int64_t shape[4], bool output)
{
    attn_tensor *t = &s->view;
    memset(t, 0, sizeof *t);
    t->dtype = chance(in, 6) ? (attn_dtype)(byte(in) % 8) : dtype;
    memcpy(t->shape, shape, sizeof t->shape);
    if (chance(in, 8))
        t->shape[byte(in) % 4] = odd_number(in);
    int order[4] = {3, 2, 1, 0}; /* from the innermost dimension on */
    if (chance(in, 60)) {
        const int from = (int)(byte(in) % 4), to = (int)(byte(in) % 4), saved = order[from];
        order[from] = order[to];
        order[to] = saved;
    }
    int64_t stride = chance(in, 40) ? 1 + byte(in) % 3 : 1;
    for (int d = 0; d < 4; d++) {
        const int64_t n = t->shape[order[d]];
        t->stride[order[d]] = stride;
        if (n > 0 && n <= MEMORY && stride <= MEMORY)
            stride *= n;
        stride += chance(in, 30) ? byte(in) % 4 : 0;
    }
    if (chance(in, 60))
        t->stride[byte(in) % 4] *= -1;
    if (chance(in, output ? 6 : 40))
        t->stride[byte(in) % 4] = chance(in, 200) ? 0 : odd_number(in);

    int64_t low, high;
    const int64_t element = (int64_t)attn_dtype_size(t->dtype);
    fill(s, word(in), chance(in, 30));
    if (extent(t, &low, &high) && (high - low + 1) * element <= MEMORY)
        t->data = s->memory - low * element;
}

/* ------------------------------------------------------------------------------- The call */

static void make_options(input *in, call *c, int64_t B, int64_t H, int64_t T, int64_t S)
{
    attn_sdpa_args *a = &c->args;
    a->scale = chance(in, 60) ? real(in) : 0;
    a->causal = (attn_causal)(chance(in, 8) ? byte(in) : byte(in) % 4);
    a->causal_offset = chance(in, 10) ? odd_number(in) : (int64_t)byte(in) % 16 - 8;
    a->window_left = chance(in, 60) ? (chance(in, 20) ? odd_number(in) : byte(in) % 12) : -1;
    a->window_right = chance(in, 60) ? (chance(in, 20) ? odd_number(in) : byte(in) % 12) : -1;
    a->softcap = chance(in, 40) ? real(in) * 10 : 0;
    a->dropout = chance(in, 40) ? real(in) / 2 : 0;
    a->dropout_seed = word(in);
    a->diagonal = (attn_diagonal)(chance(in, 6) ? byte(in) : a->causal ? 0 : byte(in) % 3);
    a->alibi_form = (attn_alibi_form)(chance(in, 6) ? byte(in) : byte(in) % 2);
    a->precision = (attn_precision)(chance(in, 6) ? byte(in) : byte(in) % 2);
    a->scores_stage = (attn_stage)(chance(in, 6) ? byte(in) : byte(in) % 4);
    for (int h = 0; h < MAX_H; h++) {
        c->slopes[h] = (float)real(in);
        c->sinks[h] = (float)real(in);
    }
    a->alibi_slopes = chance(in, 40) && H <= MAX_H ? c->slopes : NULL;
    a->sink_logits = chance(in, 40) && H <= MAX_H ? c->sinks : NULL;
    for (int b = 0; b < MAX_B; b++)
        c->key_lengths[b] = chance(in, 10) ? odd_number(in) : S ? byte(in) % (S + 1) : 0;
    a->key_lengths = chance(in, 50) && B <= MAX_B ? c->key_lengths : NULL;

    a->sequences = (int64_t)byte(in) % (MAX_SEQUENCES + 1);
    for (int64_t n = 1; n <= a->sequences; n++) {
        c->cu_q[n] = n == a->sequences ? T : c->cu_q[n - 1] + byte(in) % 4;
        c->cu_k[n] = n == a->sequences ? S : c->cu_k[n - 1] + byte(in) % 4;
    }
    if (chance(in, 10))
        (chance(in, 128) ? c->cu_q : c->cu_k)[byte(in) % (MAX_SEQUENCES + 1)] = odd_number(in);
    if (chance(in, 40)) {
        a->cu_seqlens_q = c->cu_q;
        a->cu_seqlens_k = chance(in, 250) ? c->cu_k : NULL;
    }
}

static void make_call(input *in, call *c)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65};
    static const attn_dtype floats[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    attn_sdpa_args_init(&c->args);
    const int64_t B = byte(in) % (MAX_B + 1), Hk = byte(in) % 3, H = Hk * (1 + byte(in) % 2);
    int64_t T = sizes[byte(in) % 16], S = sizes[byte(in) % 16];
    const int64_t D = sizes[byte(in) % 16], Dv = sizes[byte(in) % 16];
    while ((double)(B * H * (D + Dv + 1)) * (double)(T * S) > WORK) {
        T = T / 2;
        S = (S + 1) / 2;
    }
    const attn_dtype dtype = floats[byte(in) % 4];
    const attn_dtype out = chance(in, 60) ? floats[byte(in) % 2] : dtype;
    make_tensor(in, &c->tensor[Q], dtype, (int64_t[]){B, H, T, D}, false);
    make_tensor(in, &c->tensor[K], dtype, (int64_t[]){B, Hk, S, D}, false);
    make_tensor(in, &c->tensor[V], dtype, (int64_t[]){B, Hk, S, Dv}, false);
    make_tensor(in, &c->tensor[OUT], out, (int64_t[]){B, H, T, Dv}, true);
    c->args.q = c->tensor[Q].view;
    c->args.k = c->tensor[K].view;
    c->args.v = c->tensor[V].view;
    c->args.out = c->tensor[OUT].view;
    if (chance(in, 90)) {
        const unsigned ones = byte(in); /* sizes that broadcast become 1 */
        const int64_t shape[] = {ones & 1 ? 1 : B, ones & 2 ? 1 : H, ones & 4 ? 1 : T,
                                 ones & 8 ? 1 : S};
        make_tensor(in, &c->tensor[MASK], chance(in, 128) ? ATTN_BOOL : floats[byte(in) % 4], shape,
                    false);
        c->args.mask = &c->tensor[MASK].view;
    }
    if (chance(in, 60)) {
        make_tensor(in, &c->tensor[LSE], floats[byte(in) % 2], (int64_t[]){B, H, T, 1}, true);
        c->args.lse = &c->tensor[LSE].view;
    }
    if (chance(in, 60)) {
        make_tensor(in, &c->tensor[SCORES], floats[byte(in) % 4], (int64_t[]){B, H, T, S}, true);
        c->args.scores = &c->tensor[SCORES].view;
    }
    make_options(in, c, B, H, T, S);
}

/* ------------------------------------------------------------------------------ Judgement */

static double largest_of(const attn_tensor *t)
{
    double largest = 1;
    const int64_t *n = t->shape;
    for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++) {
        const double x = fabs(
            ref_get(t, i / n[3] / n[2] / n[1], i / n[3] / n[2] % n[1], i / n[3] % n[2], i % n[3]));
        largest = x > largest && isfinite(x) ? x : largest;
    }
    return largest;
}

static double largest_finite(double a, double b) { return isfinite(b) && b > a ? b : a; }

/* The error that a score of row (b, h, i) may have because a bf16 unit treats denormal elements of
 * q * power and of k as 0 (docs/NUMERICS.md): the lost part of q times the largest component of k,
 * and the other way round. power is the power of two in the scale, limited to 2^-64 .. 1. */
static double lost_scores(const attn_sdpa_args *a, int64_t b, int64_t h, int64_t i)
{
    const int64_t D = a->q.shape[3], S = a->k.shape[2], hk = h / (a->q.shape[1] / a->k.shape[1]);
    const double scale = fabs(a->scale == 0 ? 1 / sqrt((double)D) : a->scale);
    const double power = fmin(1, fmax(0x1p-64, ldexp(1, ilogb(scale))));
    double lost = 0;
    for (int64_t t = 0; t < D; t++) {
        const double q = fabs(ref_get(&a->q, b, h, i, t));
        double largest = 0, denormal = 0;
        for (int64_t j = 0; j < S; j++) {
            const double k = fabs(ref_get(&a->k, b, hk, j, t));
            largest = largest_finite(largest, k);
            denormal = largest_finite(denormal, k < 0x1p-126 ? k : 0);
        }
        lost += scale * q * (q * power < 0x1p-126 ? largest : denormal);
    }
    return lost;
}

/* A loose bound; the parity harness checks the tight one (docs/NUMERICS.md). This one finds lost
 * terms, but on a bf16 `unit` allows the loss of numbers that are too small for it. */
static bool agrees(const attn_sdpa_args *a, const ref_result *want, bool unit)
{
    const int64_t H = a->q.shape[1], T = a->q.shape[2], Dv = a->v.shape[3];
    const bool wide = a->q.dtype == ATTN_F64, f16 = a->out.dtype == ATTN_F16;
    const double stored = f16                         ? 0x1p-11
                          : a->out.dtype == ATTN_BF16 ? 0x1p-8
                          : a->out.dtype == ATTN_F32  ? 0x1p-24
                                                      : 0x1p-53;
    const double largest = f16 ? 6e4 : wide && a->out.dtype == ATTN_F64 ? 1e300 : 1e37;
    /* Some instruction sets round weights of bf16 (docs/NUMERICS.md). */
    const double narrow = a->q.dtype == ATTN_BF16 ? 2 * (0x1p-8 + 1.1e-4) : 0;
    /* Weights below the normal numbers become 0; in a row with a NaN or an infinity, weights up to
     * 2^40 times as large. */
    double lost =
        (wide ? 0x1p-960 : 0x1p-70) * largest_of(&a->v) + (f16                        ? 0x1p-24
                                                           : a->out.dtype == ATTN_F64 ? 0
                                                                                      : 0x1p-126);
    if (unit) /* denormal values and products of values */
        lost += (double)(a->k.shape[2] + 2) * 0x1p-126 / (1 - a->dropout);
    /* The relative error of each weight, from the errors of its score and of the sum; limited, so
     * that a sum of 0 does not make it infinite. */
    double moved = 0;
    for (int64_t i = 0; i < a->q.shape[0] * H * T * Dv; i++) {
        const int64_t row = i / Dv;
        if (unit && i % Dv == 0)
            moved = fmin(expm1(2 * lost_scores(a, row / T / H, row / T % H, row % T)), 1e100);
        const double x = want->out[i], units = 4096 * (1 + want->reach[row]);
        const double got = ref_get(&a->out, row / T / H, row / T % H, row % T, i % Dv);
        const double slack = units * (wide ? 0x1p-53 : 0x1p-24) + 2 * stored + narrow + moved;
        if (!(want->reach[row] < (wide ? 1e300 : 1e30)) || !(want->mass[i] < largest))
            continue; /* outside the range of the arithmetic */
        if (!isfinite(x) || !isfinite(got) || !(fabs(got - x) <= slack * want->mass[i] + lost))
            return false;
    }
    return true;
}

static bool reference(const attn_sdpa_args *a, ref_result *want)
{
    const size_t rows = (size_t)(a->q.shape[0] * a->q.shape[1] * a->q.shape[2]);
    const size_t n = rows * (size_t)a->v.shape[3];
    want->out = calloc(n + 1, sizeof(double));
    want->mass = calloc(n + 1, sizeof(double));
    want->reach = calloc(rows + 1, sizeof(double));
    return want->out && want->mass && want->reach && ref_sdpa_forward(a, want);
}

/* ------------------------------------------------------------------------------ Gradients */

enum { DQ, DK, DV, DMASK, LSES, ARRAYS };

typedef struct gradients {
    double *x[ARRAYS], slopes[MAX_H], sinks[MAX_H];
    size_t bytes[ARRAYS];
} gradients;

static attn_tensor dense(gradients *g, int i, const attn_tensor *like, int64_t last)
{
    const int64_t *n = like->shape;
    g->bytes[i] = (size_t)(n[0] * n[1] * n[2] * last) * sizeof(double);
    g->x[i] = calloc(1, g->bytes[i] + 1);
    must(g->x[i] != NULL);
    return attn_bhtd(g->x[i], ATTN_F64, n[0], n[1], n[2], last);
}

/* The gradients of a call that has succeeded, with its output as dout. */
static gradients differentiate(const attn_sdpa_args *forward, const char *isa, int threads)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx;
    attn_sdpa_args a = *forward;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    gradients to = {.slopes = {0}};
    options.isa = isa;
    options.threads = threads;
    must(attn_context_create(&options, &ctx, NULL) == ATTN_OK);
    const attn_tensor lse = dense(&to, LSES, &a.q, 1);
    a.lse = &lse;
    a.workspace = NULL;
    g.dout = a.out;
    g.dq = dense(&to, DQ, &a.q, a.q.shape[3]);
    g.dk = dense(&to, DK, &a.k, a.k.shape[3]);
    g.dv = dense(&to, DV, &a.v, a.v.shape[3]);
    attn_tensor dmask;
    if (a.mask && a.mask->dtype != ATTN_BOOL) {
        dmask = dense(&to, DMASK, a.mask, a.mask->shape[3]);
        g.dmask = &dmask;
    }
    g.dalibi_slopes = a.alibi_slopes ? to.slopes : NULL;
    g.dsink_logits = a.sink_logits ? to.sinks : NULL;
    must(attn_sdpa_forward(ctx, &a, NULL) == ATTN_OK);
    must(attn_sdpa_backward(ctx, &a, &g, NULL) == ATTN_OK);
    attn_context_destroy(ctx);
    return to;
}

static void backward(const attn_sdpa_args *a, const char *isa)
{
    gradients one = differentiate(a, isa, 1), more = differentiate(a, isa, 3);
    for (int i = 0; i < ARRAYS; i++) {
        must(one.bytes[i] == 0 || memcmp(one.x[i], more.x[i], one.bytes[i]) == 0);
        free(one.x[i]);
        free(more.x[i]);
    }
    must(memcmp(one.slopes, more.slopes, sizeof one.slopes) == 0);
    must(memcmp(one.sinks, more.sinks, sizeof one.sinks) == 0);
}

static const int outputs[] = {OUT, LSE, SCORES};

/* Runs the call on one instruction set, and checks that an error leaves the outputs unchanged.
 * Tells whether a bf16 unit computed the products. */
static attn_status run(call *c, const char *isa, int threads, unsigned char *const before[TENSORS],
                       bool *unit)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx;
    attn_error err = {0};
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    options.isa = isa;
    options.threads = threads;
    must(attn_context_create(&options, &ctx, NULL) == ATTN_OK);
    for (int i = 0; i < 3; i++)
        memcpy(c->tensor[outputs[i]].memory, before[outputs[i]], MEMORY);
    const attn_status planned = attn_sdpa_plan(ctx, &c->args, &info, NULL);
    const attn_status status = attn_sdpa_forward(ctx, &c->args, &err);
    must(planned == status);
    *unit = status == ATTN_OK && strstr(info.kernel, " bf16 ");
    if (status != ATTN_OK) {
        must(err.status == status && err.message[0] && !strchr(err.message, '\n'));
        for (int i = 0; i < 3; i++)
            must(memcmp(c->tensor[outputs[i]].memory, before[outputs[i]], MEMORY) == 0);
    }
    attn_context_destroy(ctx);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    static call c; /* large */
    unsigned char *before[TENSORS];
    memset(&c, 0, sizeof c);
    for (int i = 0; i < TENSORS; i++) {
        c.tensor[i].memory = calloc(1, MEMORY);
        before[i] = calloc(1, MEMORY);
        must(c.tensor[i].memory && before[i]);
    }
    make_call(&in, &c);
    for (int i = 0; i < TENSORS; i++)
        memcpy(before[i], c.tensor[i].memory, MEMORY);

    bool unit;
    const attn_status status = run(&c, "generic", 1, before, &unit);
    if (status == ATTN_OK) {
        ref_result want = {0};
        must(reference(&c.args, &want));
        must(!unit && agrees(&c.args, &want, false));
        must(run(&c, NULL, 3, before, &unit) == ATTN_OK);
        must(agrees(&c.args, &want, unit));
        backward(&c.args, "generic");
        backward(&c.args, NULL);
        free(want.out);
        free(want.mass);
        free(want.reach);
    } else {
        must(run(&c, NULL, 3, before, &unit) == status);
    }
    for (int i = 0; i < TENSORS; i++) {
        free(c.tensor[i].memory);
        free(before[i]);
    }
    return 0;
}
