/* Problems of the record of bits that are calls of attention; see check_bits_case.h. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "check_bits_case.h"

#define HEADS 12
#define SEQUENCES 6

typedef struct bits_call {
    attn_sdpa_args args; /* points into the members below */
    attn_tensor mask, lse, scores;
    int64_t lengths[4], cu_q[SEQUENCES + 1], cu_k[SEQUENCES + 1];
    float slopes[HEADS], sinks[HEADS];
    bool large;
    bits_layout inputs, outputs;
} bits_call;

/* ---------------------------------------------------------------------------------------- sizes */

static void set_shapes(bits_case *c, bits_call *call, int64_t B, int64_t Hk, int64_t G, int64_t T,
                       int64_t S, int64_t D, int64_t Dv)
{
    attn_sdpa_args *a = &call->args;
    memcpy(a->q.shape, (int64_t[]){B, Hk * G, T, D}, sizeof a->q.shape);
    memcpy(a->k.shape, (int64_t[]){B, Hk, S, D}, sizeof a->k.shape);
    memcpy(a->v.shape, (int64_t[]){B, Hk, S, Dv}, sizeof a->v.shape);
    memcpy(a->out.shape, (int64_t[]){B, Hk * G, T, Dv}, sizeof a->out.shape);
    bits_say(c,
             " B=%" PRId64 " H=%" PRId64 " Hk=%" PRId64 " T=%" PRId64 " S=%" PRId64 " D=%" PRId64
             " Dv=%" PRId64,
             B, Hk * G, Hk, T, S, D, Dv);
}

/* Reduces by one the first of batch, key/value heads and group size that is more than 1. Returns
 * false if all are 1. */
static bool lower_one(int64_t *B, int64_t *Hk, int64_t *G)
{
    int64_t *n = *B > 1 ? B : *Hk > 1 ? Hk : *G > 1 ? G : NULL;
    if (n)
        --*n;
    return n != NULL;
}

static void choose_sizes(bits_case *c, bits_call *call)
{
    static const int64_t lengths[] = {0,   1,   1,   2,   3,   5,   8,   13,  16,  17,
                                      31,  33,  63,  64,  65,  67,  100, 127, 128, 129,
                                      191, 200, 255, 256, 257, 300, 383, 512, 513, 600};
    static const int64_t widths[] = {1,  2,  3,  5,  7,  8,  9,  15, 16, 17,  24,
                                     31, 32, 33, 40, 64, 64, 72, 80, 96, 128, 160};
    static const int64_t groups[] = {1, 1, 1, 2, 3, 4};
    int64_t B = bits_between(c, 1, 3), Hk = bits_between(c, 1, 3), G = BITS_PICK(c, groups);
    int64_t T = BITS_PICK(c, lengths), S = BITS_PICK(c, lengths);
    int64_t D = BITS_PICK(c, widths), Dv = bits_chance(c, 60) ? D : BITS_PICK(c, widths);
    while ((double)(B * Hk * G * T * S) * (double)(D + Dv) > 2e6) {
        if (lower_one(&B, &Hk, &G))
            continue;
        if (D > 40 || Dv > 40)
            D = (D + 1) / 2, Dv = (Dv + 1) / 2;
        else if (T > S)
            T = BITS_PICK(c, lengths);
        else
            S = BITS_PICK(c, lengths);
    }
    set_shapes(c, call, B, Hk, G, T, S, D, Dv);
}

static void choose_large_sizes(bits_case *c, bits_call *call)
{
    static const int64_t queries[] = {1, 2, 4, 17, 32, 65, 130, 257, 300, 520, 700};
    static const int64_t keys[] = {257, 300, 511, 512, 513, 640, 700, 1100};
    static const int64_t widths[] = {32, 64, 64, 80, 96, 128, 128};
    static const int64_t groups[] = {1, 1, 2, 4};
    int64_t B = bits_between(c, 1, 2), Hk = bits_between(c, 1, 3), G = BITS_PICK(c, groups);
    int64_t T = BITS_PICK(c, queries), S = BITS_PICK(c, keys);
    int64_t D = BITS_PICK(c, widths), Dv = bits_chance(c, 75) ? D : BITS_PICK(c, widths);
    while ((double)(B * Hk * G * T * S) * (double)(D + Dv) > 2.5e7) {
        if (!lower_one(&B, &Hk, &G))
            T = BITS_PICK(c, queries);
    }
    set_shapes(c, call, B, Hk, G, T, S, D, Dv);
}

/* -------------------------------------------------------------------------------------- options */

/* Chooses an option with this probability. Large calls have fewer options, so that calls without
 * options occur too. */
static bool option(bits_case *c, const bits_call *call, int percent)
{
    return bits_chance(c, call->large ? percent / 2 : percent);
}

static void choose_visible(bits_case *c, bits_call *call)
{
    attn_sdpa_args *a = &call->args;
    const int64_t B = a->q.shape[0], T = a->q.shape[2], S = a->k.shape[2];
    if (bits_chance(c, 55)) {
        a->causal = (attn_causal)bits_between(c, ATTN_CAUSAL_TOP_LEFT, ATTN_CAUSAL_OFFSET);
        a->causal_offset = bits_between(c, -70, 140);
        bits_say(c, " causal=%d,%" PRId64, a->causal, a->causal_offset);
    }
    if (option(c, call, 30)) {
        a->window_left = bits_chance(c, 25) ? -1 : bits_between(c, 0, 90);
        a->window_right = bits_chance(c, 25) ? -1 : bits_between(c, 0, 90);
        bits_say(c, " window=%" PRId64 ",%" PRId64, a->window_left, a->window_right);
    }
    if (bits_chance(c, 25)) {
        for (int64_t b = 0; b < B; b++)
            call->lengths[b] = bits_between(c, 0, S);
        a->key_lengths = call->lengths;
        bits_say(c, " lengths");
    } else if (bits_chance(c, 30)) {
        a->sequences = bits_between(c, 1, SEQUENCES);
        for (int64_t n = 1; n <= a->sequences; n++) {
            call->cu_q[n] = n == a->sequences ? T : bits_between(c, call->cu_q[n - 1], T);
            call->cu_k[n] = n == a->sequences ? S : bits_between(c, call->cu_k[n - 1], S);
        }
        a->cu_seqlens_q = call->cu_q;
        a->cu_seqlens_k = call->cu_k;
        bits_say(c, " packed=%" PRId64, a->sequences);
    }
}

/* Fills a mask with true or numbers, and in some places with false or -inf. */
static void fill_mask(bits_case *c, attn_tensor *mask)
{
    static const int hidden[] = {0, 15, 70};
    const int64_t *n = mask->shape, count = n[0] * n[1] * n[2] * n[3];
    const int percent = BITS_PICK(c, hidden);
    if (mask->dtype != ATTN_BOOL) /* a bool mask already is true */
        bits_fill(c, mask, bits_chance(c, 40) ? 0 : 2);
    for (int64_t i = 0; i < count * percent / 100; i++)
        bits_plant(c, mask, mask->dtype == ATTN_BOOL ? 0 : (double)-INFINITY);
}

static void choose_mask(bits_case *c, bits_call *call)
{
    static const attn_dtype dtypes[] = {ATTN_BOOL, ATTN_BOOL, ATTN_F32, ATTN_F32,
                                        ATTN_F64,  ATTN_F16,  ATTN_BF16};
    attn_sdpa_args *a = &call->args;
    if (!option(c, call, 40))
        return;
    int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    for (int d = 0; d < 4; d++)
        if (bits_chance(c, d < 2 ? 60 : 20))
            shape[d] = 1;
    const attn_dtype dtype = BITS_PICK(c, dtypes);
    call->mask = bits_tensor(c, dtype, shape, bits_chance(c, 50) ? BITS_DENSE : BITS_REPEAT);
    fill_mask(c, &call->mask);
    a->mask = &call->mask;
    bits_say(c, " mask=%s", attn_dtype_name(call->mask.dtype));
}

static void choose_extras(bits_case *c, bits_call *call)
{
    static const double scales[] = {1, 0.2, -0.3, 0.125, 2};
    static const double rates[] = {0.1, 0.5, 0.9};
    static const double caps[] = {1, 30, 0.1, 5};
    attn_sdpa_args *a = &call->args;
    if (option(c, call, 25))
        a->scale = BITS_PICK(c, scales);
    if (option(c, call, 20))
        a->softcap = BITS_PICK(c, caps);
    if (option(c, call, 20)) {
        for (int64_t h = 0; h < a->q.shape[1]; h++)
            call->slopes[h] = 1 / (float)(INT64_C(2) << h);
        a->alibi_slopes = call->slopes;
    }
    if (option(c, call, 20)) {
        for (int64_t h = 0; h < a->q.shape[1]; h++)
            call->sinks[h] = bits_chance(c, 15) ? -INFINITY : (float)(4 * bits_value(c));
        a->sink_logits = call->sinks;
    }
    if (option(c, call, 20)) {
        a->dropout = BITS_PICK(c, rates);
        a->dropout_seed = bits_random(c);
    }
    if (option(c, call, 20))
        a->precision = ATTN_PRECISION_ACCURATE;
    bits_say(c, "%s%s%s%s%s%s", a->scale != 0 ? " scale" : "", a->softcap > 0 ? " cap" : "",
             a->alibi_slopes ? " alibi" : "", a->sink_logits ? " sinks" : "",
             a->dropout > 0 ? " dropout" : "", a->precision ? " accurate" : "");
}

/* ------------------------------------------------------------------------------------- the call */

static attn_dtype wide(bits_case *c) { return bits_chance(c, 60) ? ATTN_F32 : ATTN_F64; }

static attn_tensor input(bits_case *c, const bits_call *call, attn_dtype dtype,
                         const int64_t shape[4], double scale, bool outliers)
{
    attn_tensor t = bits_tensor(c, dtype, shape, call->inputs);
    (outliers ? bits_fill_outliers : bits_fill)(c, &t, scale);
    return t;
}

static void choose_inputs(bits_case *c, bits_call *call, attn_dtype dtype)
{
    static const double spreads[] = {0.25, 1, 1, 2};
    static const double odd[] = {NAN, INFINITY, -INFINITY, 3e38};
    attn_sdpa_args *a = &call->args;
    const bool outliers = bits_chance(c, 25);
    attn_tensor *const all[] = {&a->q, &a->k, &a->v};
    a->q = input(c, call, dtype, a->q.shape, BITS_PICK(c, spreads), outliers);
    a->k = input(c, call, dtype, a->k.shape, 1, outliers);
    a->v = input(c, call, dtype, a->v.shape, 1, outliers);
    for (int64_t n = bits_chance(c, 10) ? bits_between(c, 1, 3) : 0; n > 0; n--) {
        attn_tensor *t = BITS_PICK(c, all);
        bits_plant(c, t, BITS_PICK(c, odd));
    }
}

static attn_tensor new_lse(bits_case *c, const bits_call *call)
{
    const int64_t *n = call->args.q.shape;
    return bits_new(c, wide(c), n[0], n[1], n[2], 1, call->outputs);
}

static void choose_call(bits_case *c, bits_call *call)
{
    static const attn_dtype types[] = {ATTN_F64, ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
    static const attn_dtype large_types[] = {ATTN_BF16, ATTN_BF16, ATTN_BF16, ATTN_BF16,
                                             ATTN_F32,  ATTN_F32,  ATTN_F16};
    attn_sdpa_args_init(&call->args);
    const attn_dtype dtype = call->large ? BITS_PICK(c, large_types) : BITS_PICK(c, types);
    const bool dense = call->large || bits_chance(c, 50);
    call->inputs = dense ? BITS_DENSE : BITS_REPEAT;
    call->outputs = dense ? BITS_DENSE : BITS_LOOSE;
    bits_say(c, "%s", attn_dtype_name(dtype));
    (call->large ? choose_large_sizes : choose_sizes)(c, call);
    choose_inputs(c, call, dtype);
    choose_visible(c, call);
    choose_mask(c, call);
    choose_extras(c, call);
    attn_sdpa_args *a = &call->args;
    a->out = bits_tensor(c, bits_chance(c, 75) ? dtype : wide(c), a->out.shape, call->outputs);
}

/* Runs the forward with an lse, as derivatives need it. */
static bool forward_with_lse(bits_case *c, bits_call *call)
{
    attn_sdpa_args *a = &call->args;
    call->lse = new_lse(c, call);
    a->lse = &call->lse;
    if (!bits_ok(c, attn_sdpa_forward(c->ctx, a, &c->err)))
        return false;
    bits_hash(c, &a->out);
    bits_hash(c, a->lse);
    return true;
}

void bits_forward(bits_case *c)
{
    static const attn_dtype floats[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    bits_call call = {.large = false};
    attn_sdpa_args *a = &call.args;
    choose_call(c, &call);
    if (bits_chance(c, 60)) {
        call.lse = new_lse(c, &call);
        a->lse = &call.lse;
    }
    if (bits_chance(c, 35)) {
        const int64_t *n = a->q.shape;
        call.scores =
            bits_new(c, BITS_PICK(c, floats), n[0], n[1], n[2], a->k.shape[2], call.outputs);
        a->scores = &call.scores;
        a->scores_stage = (attn_stage)bits_between(c, ATTN_STAGE_RAW, ATTN_STAGE_WEIGHTS);
        bits_say(c, " scores=%d", a->scores_stage);
    }
    if (!bits_ok(c, attn_sdpa_forward(c->ctx, a, &c->err)))
        return;
    bits_hash(c, &a->out);
    if (a->lse)
        bits_hash(c, a->lse);
    if (a->scores)
        bits_hash(c, a->scores);
}

/* ---------------------------------------------------------------------------------- derivatives */

/* The type of a gradient or tangent: mostly q's type. */
static attn_dtype derived_type(bits_case *c, const bits_call *call)
{
    return bits_chance(c, 70) ? call->args.q.dtype : wide(c);
}

static attn_tensor gradient(bits_case *c, const bits_call *call, const attn_tensor *of)
{
    if (bits_chance(c, 10))
        return (attn_tensor){0};
    return bits_tensor(c, derived_type(c, call), of->shape, call->outputs);
}

static void backward(bits_case *c, bits_call *call)
{
    attn_sdpa_args *a = &call->args;
    attn_sdpa_grads grads = ATTN_SDPA_GRADS_INIT;
    attn_tensor dlse, dmask;
    double dalibi[HEADS], dsink[HEADS];
    grads.dout = input(c, call, derived_type(c, call), a->out.shape, 1, false);
    if (bits_chance(c, 25)) {
        const int64_t *n = a->q.shape;
        dlse = input(c, call, wide(c), (int64_t[]){n[0], n[1], n[2], 1}, 1, false);
        grads.dlse = &dlse;
    }
    grads.dq = gradient(c, call, &a->q);
    grads.dk = gradient(c, call, &a->k);
    grads.dv = gradient(c, call, &a->v);
    if (a->mask && a->mask->dtype != ATTN_BOOL && bits_chance(c, 75)) {
        dmask = bits_tensor(c, wide(c), a->mask->shape, call->outputs);
        grads.dmask = &dmask;
    }
    grads.dalibi_slopes = a->alibi_slopes && bits_chance(c, 75) ? dalibi : NULL;
    grads.dsink_logits = a->sink_logits && bits_chance(c, 75) ? dsink : NULL;
    bits_say(c, " dout=%s%s%s", attn_dtype_name(grads.dout.dtype), grads.dlse ? " dlse" : "",
             grads.dmask ? " dmask" : "");
    if (!forward_with_lse(c, call) || !bits_ok(c, attn_sdpa_backward(c->ctx, a, &grads, &c->err)))
        return;
    bits_hash(c, &grads.dq);
    bits_hash(c, &grads.dk);
    bits_hash(c, &grads.dv);
    if (grads.dmask)
        bits_hash(c, grads.dmask);
    if (grads.dalibi_slopes)
        bits_hash_doubles(c, dalibi, a->q.shape[1]);
    if (grads.dsink_logits)
        bits_hash_doubles(c, dsink, a->q.shape[1]);
}

void bits_backward(bits_case *c)
{
    bits_call call = {.large = false};
    choose_call(c, &call);
    backward(c, &call);
}

void bits_large(bits_case *c)
{
    bits_call call = {.large = true};
    choose_call(c, &call);
    if (bits_chance(c, 50))
        backward(c, &call);
    else
        forward_with_lse(c, &call);
}

static attn_tensor tangent(bits_case *c, const bits_call *call, const attn_tensor *of)
{
    if (bits_chance(c, 15))
        return (attn_tensor){0};
    return input(c, call, derived_type(c, call), of->shape, 1, false);
}

void bits_jvp(bits_case *c)
{
    bits_call call = {.large = false};
    attn_sdpa_tangents t;
    attn_sdpa_args *a = &call.args;
    choose_call(c, &call);
    attn_sdpa_tangents_init(&t);
    t.tq = tangent(c, &call, &a->q);
    t.tk = tangent(c, &call, &a->k);
    t.tv = tangent(c, &call, &a->v);
    t.tout = bits_tensor(c, derived_type(c, &call), a->out.shape, call.outputs);
    attn_tensor tlse = new_lse(c, &call);
    if (bits_chance(c, 60))
        t.tlse = &tlse;
    if (!forward_with_lse(c, &call) || !bits_ok(c, attn_sdpa_jvp(c->ctx, a, &t, &c->err)))
        return;
    bits_hash(c, &t.tout);
    if (t.tlse)
        bits_hash(c, t.tlse);
}
