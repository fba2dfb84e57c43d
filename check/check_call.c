/* Random whole calls and their comparison with the definition; see check_call.h. */
#include "check_call.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Appends to the description of the case. */
static void say(check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(check_case *c, const char *format, ...)
{
    size_t used = strlen(c->what);
    va_list list;
    va_start(list, format);
    vsnprintf(c->what + used, sizeof c->what - used, format, list);
    va_end(list);
}

/* ---------------------------------------------------------------------------------------- sizes */

/* Lengths around every vector, tile, block and chunk, and primes. */
static const int64_t lengths[] = {0,   1,   2,   3,   4,   5,   7,   8,   9,   13,
                                  15,  16,  17,  23,  31,  32,  33,  47,  63,  64,
                                  65,  67,  96,  97,  127, 128, 129, 131, 191, 192,
                                  193, 254, 255, 256, 257, 300, 383, 511, 512, 513};
static const int64_t widths[] = {1,  2,  3,  4,  5,  7,  8,  9,   15,  16,  17,  31, 32,
                                 33, 40, 59, 64, 72, 80, 96, 111, 112, 128, 160, 256};

static const int64_t long_lengths[] = {31,  64,  65,  97,  128, 129, 193, 256, 257,  300,  383,
                                       511, 512, 513, 520, 600, 700, 769, 800, 1024, 1025, 1100};

static int64_t choose_length(check_case *c, bool is_long, int shortest)
{
    const int last = (int)(sizeof long_lengths / sizeof *long_lengths) - 1;
    return is_long ? long_lengths[check_between(c, shortest, last)] : CHECK_PICK(c, lengths);
}

/* Chooses random sizes of q, k, v and out whose product is at most `work`. */
static void choose_sizes(check_case *c, check_call *call, double work, bool is_long, int64_t *Hk)
{
    static const int64_t groups[] = {1, 1, 1, 2, 3, 4};
    int64_t B = check_between(c, 1, 3), G = CHECK_PICK(c, groups), D, Dv, T, S;
    *Hk = check_between(c, 1, 3);
    T = choose_length(c, is_long, 0);
    S = choose_length(c, is_long, 3);
    D = check_chance(c, 2) ? 0 : CHECK_PICK(c, widths);
    Dv = check_chance(c, 60) ? D : check_chance(c, 5) ? 0 : CHECK_PICK(c, widths);
    if (check_chance(c, 2))
        B = 0;
    /* Sizes that small calls test as well (batch, heads, D) are reduced first. */
    while ((double)(B * *Hk * G * T * S) * (double)(D + Dv) > work) {
        if (B > 1)
            B--;
        else if (*Hk > 1)
            --*Hk;
        else if (G > 1)
            G--;
        else if (D > 8 || Dv > 8)
            D = (D + 1) / 2, Dv = (Dv + 1) / 2;
        else if (T > S)
            T = choose_length(c, is_long, 0);
        else
            S = choose_length(c, is_long, 3);
    }
    const int64_t H = *Hk * G;
    memcpy(call->args.q.shape, (int64_t[]){B, H, T, D}, sizeof call->args.q.shape);
    memcpy(call->args.k.shape, (int64_t[]){B, *Hk, S, D}, sizeof call->args.k.shape);
    memcpy(call->args.v.shape, (int64_t[]){B, *Hk, S, Dv}, sizeof call->args.v.shape);
    memcpy(call->args.out.shape, (int64_t[]){B, H, T, Dv}, sizeof call->args.out.shape);
    say(c,
        "B=%" PRId64 " H=%" PRId64 " Hk=%" PRId64 " T=%" PRId64 " S=%" PRId64 " D=%" PRId64
        " Dv=%" PRId64,
        B, H, *Hk, T, S, D, Dv);
}

/* ------------------------------------------------------------------------------------- contents */

static void fill(check_case *c, check_tensor *t, double scale, check_content content)
{
    const int64_t *n = t->view.shape;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t j = 0; j < n[3]; j++)
                    check_store(&t->view, b, h, i, j, scale * check_value(c, content));
}

static void store_anywhere(check_case *c, check_tensor *t, double x)
{
    int64_t at[4];
    for (int d = 0; d < 4; d++) {
        if (t->view.shape[d] == 0)
            return;
        at[d] = check_between(c, 0, t->view.shape[d] - 1);
    }
    check_store(&t->view, at[0], at[1], at[2], at[3], x);
}

/* Plants a few NaN where queries may see them. They must show in the rows that use them, and in no
 * others. */
static void plant_nan(check_case *c, check_call *call)
{
    check_tensor *targets[] = {&call->q, &call->k, &call->v};
    for (int64_t n = check_between(c, 1, 3); n > 0; n--)
        store_anywhere(c, CHECK_PICK(c, targets), NAN);
    say(c, " nan");
}

/* -------------------------------------------------------------------------- options, visibility */

static void choose_causal(check_case *c, attn_sdpa_args *a)
{
    if (check_chance(c, 55)) {
        a->causal = (attn_causal)check_between(c, ATTN_CAUSAL_TOP_LEFT, ATTN_CAUSAL_OFFSET);
        if (check_chance(c, 20)) /* `diagonal` may name the diagonal of `causal` */
            a->diagonal = (attn_diagonal)(a->causal - 1);
    } else if (check_chance(c, 50)) {
        a->diagonal =
            (attn_diagonal)check_between(c, ATTN_DIAGONAL_BOTTOM_RIGHT, ATTN_DIAGONAL_OFFSET);
    }
    a->causal_offset = check_chance(c, 90)
                           ? check_between(c, -70, 140)
                           : check_between(c, -(INT64_C(1) << 40), INT64_C(1) << 40);
    if (a->causal)
        say(c, " causal=%d", a->causal);
    if (a->diagonal)
        say(c, " diagonal=%d", a->diagonal);
    if (a->causal == ATTN_CAUSAL_OFFSET || a->diagonal == ATTN_DIAGONAL_OFFSET)
        say(c, ",%" PRId64, a->causal_offset);
    if (check_chance(c, 30)) {
        a->window_left = check_chance(c, 25) ? -1 : check_between(c, 0, 90);
        a->window_right = check_chance(c, 25) ? -1 : check_between(c, 0, 90);
        say(c, " window=%" PRId64 ",%" PRId64, a->window_left, a->window_right);
    }
}

static void choose_sequences(check_case *c, check_call *call)
{
    attn_sdpa_args *a = &call->args;
    int64_t B = a->q.shape[0], T = a->q.shape[2], S = a->k.shape[2];
    if (check_chance(c, 25)) {
        for (int64_t b = 0; b < B; b++)
            call->key_lengths[b] = check_chance(c, 15) ? 0 : check_between(c, 0, S);
        a->key_lengths = call->key_lengths;
        say(c, " lengths");
    } else if (check_chance(c, 30)) {
        a->sequences = check_between(c, 0, CHECK_MAX_SEQUENCES);
        bool all = check_chance(c, 70);
        for (int64_t n = 1; n <= a->sequences; n++) {
            bool last = all && n == a->sequences;
            call->cu_q[n] = last                  ? T
                            : check_chance(c, 20) ? call->cu_q[n - 1]
                                                  : check_between(c, call->cu_q[n - 1], T);
            call->cu_k[n] = last                  ? S
                            : check_chance(c, 20) ? call->cu_k[n - 1]
                                                  : check_between(c, call->cu_k[n - 1], S);
        }
        a->cu_seqlens_q = call->cu_q;
        a->cu_seqlens_k = call->cu_k;
        say(c, " packed");
        for (int64_t n = 0; n <= a->sequences; n++)
            say(c, "%c%" PRId64 ":%" PRId64, n ? ',' : '=', call->cu_q[n], call->cu_k[n]);
    }
}

/* Hides single keys, the keys at either end, whole blocks of 64 keys, or all keys of a query. */
static void hide(check_case *c, check_tensor *mask, double hidden)
{
    const int64_t *n = mask->view.shape;
    int single = check_chance(c, 50) ? 0 : check_chance(c, 50) ? 20 : 80;
    bool padding = check_chance(c, 50);
    const uint64_t blocks = check_chance(c, 20) ? check_random(c) : 0; /* one bit for each */
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2]; i++) {
                bool row = check_chance(c, 10);
                int64_t first = padding && check_chance(c, 20) ? check_between(c, 0, n[3]) : 0;
                int64_t last = padding ? check_between(c, 0, n[3]) : n[3];
                for (int64_t j = 0; j < n[3]; j++)
                    if (row || j < first || j >= last || blocks >> j / 64 % 64 & 1 ||
                        check_chance(c, single))
                        check_store(&mask->view, b, h, i, j, hidden);
            }
}

static void choose_mask(check_case *c, check_call *call)
{
    static const attn_dtype dtypes[] = {ATTN_BOOL, ATTN_BOOL, ATTN_F32, ATTN_F32,
                                        ATTN_F64,  ATTN_F16,  ATTN_BF16};
    attn_sdpa_args *a = &call->args;
    if (check_chance(c, 55))
        return;
    attn_dtype dtype = CHECK_PICK(c, dtypes);
    int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    for (int d = 0; d < 4; d++)
        if (check_chance(c, d < 2 ? 60 : 25))
            shape[d] = 1;
    call->mask =
        check_tensor_new(c, dtype, shape, check_chance(c, 50) ? CHECK_DENSE : CHECK_REPEAT);
    if (dtype == ATTN_BOOL) {
        fill(c, &call->mask, 1, CHECK_PLAIN); /* true */
        hide(c, &call->mask, 0);
    } else {
        fill(c, &call->mask, check_chance(c, 40) ? 0 : 2, CHECK_PLAIN);
        hide(c, &call->mask, check_chance(c, 70) ? -INFINITY : dtype == ATTN_F16 ? -65504 : -3e38);
        if (check_chance(c, 5))
            store_anywhere(c, &call->mask, NAN);
    }
    a->mask = &call->mask.view;
    say(c, " mask=%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", attn_dtype_name(dtype),
        shape[0], shape[1], shape[2], shape[3]);
}

static void choose_extras(check_case *c, check_call *call)
{
    static const double scales[] = {1, 0.2, -0.3, 0.125, 1e-40, 3};
    static const double rates[] = {0.1, 0.5, 0.9, 1e-6};
    static const double caps[] = {1, 30, 0.1, 5};
    attn_sdpa_args *a = &call->args;
    if (check_chance(c, 30)) {
        a->scale = CHECK_PICK(c, scales);
        say(c, " scale=%g", a->scale);
    }
    if (check_chance(c, 20)) {
        a->softcap = CHECK_PICK(c, caps);
        say(c, " cap=%g", a->softcap);
    }
    if (check_chance(c, 20)) {
        for (int64_t h = 0; h < a->q.shape[1]; h++)
            call->slopes[h] =
                (float)(check_chance(c, 50) ? exp2(-(double)h - 1) : 0.1 * check_normal(c));
        a->alibi_slopes = call->slopes;
        a->alibi_form = check_chance(c, 50) ? ATTN_ALIBI_SYMMETRIC : ATTN_ALIBI_SIGNED;
        say(c, a->alibi_form == ATTN_ALIBI_SYMMETRIC ? " alibi=symmetric" : " alibi");
    }
    if (check_chance(c, 20)) {
        for (int64_t h = 0; h < a->q.shape[1]; h++)
            call->sinks[h] = (float)(check_chance(c, 15) ? -INFINITY : 4 * check_normal(c));
        a->sink_logits = call->sinks;
        say(c, " sinks");
    }
    if (check_chance(c, 20)) {
        a->dropout = CHECK_PICK(c, rates);
        a->dropout_seed = check_random(c);
        say(c, " p=%g", a->dropout);
    }
}

/* ---------------------------------------------------------------------------- outputs, the call */

static void choose_outputs(check_case *c, check_call *call, check_layout layout)
{
    static const attn_dtype floats[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    attn_sdpa_args *a = &call->args;
    attn_dtype wide = check_chance(c, 70) ? ATTN_F32 : ATTN_F64;
    attn_dtype dtype = check_chance(c, 70) ? a->q.dtype : wide;
    int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    call->out = check_tensor_new(c, dtype, a->out.shape, layout);
    a->out = call->out.view;
    say(c, " out=%s", attn_dtype_name(dtype));
    if (check_chance(c, 40)) {
        call->lse = check_tensor_new(c, wide, shape, layout);
        a->lse = &call->lse.view;
        say(c, " lse=%s", attn_dtype_name(wide));
    }
    if (check_chance(c, 35)) {
        shape[3] = a->k.shape[2];
        call->scores = check_tensor_new(c, CHECK_PICK(c, floats), shape, layout);
        a->scores = &call->scores.view;
        a->scores_stage = (attn_stage)check_between(c, ATTN_STAGE_RAW, ATTN_STAGE_WEIGHTS);
        say(c, " scores=%s,%d", attn_dtype_name(a->scores->dtype), a->scores_stage);
    }
}

void check_call_fill(check_case *c, check_tensor *t, double scale)
{
    fill(c, t, scale, CHECK_PLAIN);
}

void check_call_say(check_case *c, const char *word) { say(c, " %s", word); }

static void random_call(check_case *c, check_call *call, double work, bool is_long)
{
    static const attn_dtype floats[] = {ATTN_F64, ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
    static const double spreads[] = {0.3, 1, 1, 3};
    attn_dtype dtype = CHECK_PICK(c, floats);
    int64_t Hk;
    memset(call, 0, sizeof *call);
    attn_sdpa_args_init(&call->args);
    attn_sdpa_args *a = &call->args;
    check_describe(c, "%s ", attn_dtype_name(dtype));
    choose_sizes(c, call, work, is_long, &Hk);

    check_layout inputs = check_chance(c, 50) ? CHECK_DENSE : CHECK_REPEAT;
    check_content content = check_chance(c, 30) ? CHECK_OUTLIERS : CHECK_PLAIN;
    double spread = CHECK_PICK(c, spreads);
    call->outliers = content == CHECK_OUTLIERS;
    call->q = check_tensor_new(c, dtype, a->q.shape, inputs);
    call->k = check_tensor_new(c, dtype, a->k.shape, inputs);
    call->v = check_tensor_new(c, dtype, a->v.shape, inputs);
    fill(c, &call->q, spread, content);
    fill(c, &call->k, 1, content);
    fill(c, &call->v, 1, content);
    a->q = call->q.view, a->k = call->k.view, a->v = call->v.view;
    if (check_chance(c, 10)) {
        check_store_query_levels(&a->q);
        check_store_key_levels(&a->k, check_random(c));
        say(c, " levels");
    }

    choose_causal(c, a);
    choose_sequences(c, call);
    choose_mask(c, call);
    choose_extras(c, call);
    if (check_chance(c, 15))
        plant_nan(c, call);
    choose_outputs(c, call, inputs == CHECK_DENSE ? CHECK_DENSE : CHECK_LOOSE);
    if (check_chance(c, 20)) {
        a->precision = ATTN_PRECISION_ACCURATE;
        say(c, " accurate");
    }
    call->compute = dtype == ATTN_F64 || (dtype == ATTN_F32 && a->precision) ? ATTN_F64 : ATTN_F32;
    call->threads = check_chance(c, 50) ? 1 : 3;
    say(c, " threads=%d%s", call->threads, inputs == CHECK_DENSE ? "" : " strided");
}

void check_call_random(check_case *c, check_call *call, double work)
{
    random_call(c, call, work, false);
}

void check_call_random_long(check_case *c, check_call *call, double work)
{
    random_call(c, call, work, true);
}

void check_call_reference(check_case *c, const check_call *call, ref_result *want)
{
    int64_t rows = check_count(&call->args.out) * 0 +
                   call->args.q.shape[0] * call->args.q.shape[1] * call->args.q.shape[2];
    int64_t S = call->args.k.shape[2], Dv = call->args.v.shape[3];
    want->out = check_array(c, rows * Dv);
    want->mass = check_array(c, rows * Dv);
    want->lse = check_array(c, rows);
    want->reach = check_array(c, rows);
    for (int stage = 0; stage < 4; stage++)
        want->stages[stage] = check_array(c, rows * S);
    /* Results computed in double are compared with a type wider than double. */
    bool done = call->compute == ATTN_F64 ? ref_sdpa_forward_wide(&call->args, want)
                                          : ref_sdpa_forward(&call->args, want);
    if (!done)
        check_abandon(c, "out of memory");
}

/* ---------------------------------------------------------------------------------- comparison */

/* The number of units that this call's contents add to the 8 of the bound. Roundings go up and
 * down and cancel, as long as terms are alike in size and differ in value. They do not cancel in
 * two cases. If an early product is far larger than the rest, the chain becomes a random walk of
 * roundings that are as large as that product's own. If one number is added repeatedly, as with a
 * stride of 0, it rounds in the same direction each time. */
double check_call_extra_units(const check_call *call)
{
    const attn_sdpa_args *a = &call->args;
    double S = (double)a->k.shape[2], D = (double)a->k.shape[3], units = 0;
    if (call->outliers)
        units += sqrt(fmin(D, ATTNI_D_CHAIN));
    if (S > 1 && (a->k.stride[2] == 0 || a->v.stride[2] == 0))
        units += fmin(S, ATTNI_CHUNK);
    if (D > 1 && a->q.stride[3] == 0 && a->k.stride[3] == 0)
        units += D;
    return units;
}

/* Numbers of at least this size round to infinity. */
static double overflow(attn_dtype dtype)
{
    return dtype == ATTN_F64   ? INFINITY
           : dtype == ATTN_F32 ? 0x1.ffffffp127
           : dtype == ATTN_F16 ? 65520
                               : 0x1.ffp127;
}

/* The relative error of a weight before it is multiplied. The exponential of the bf16 engine is
 * only as exact as bf16 needs, and the engine rounds weights to bf16 (docs/NUMERICS.md). The sum is
 * of the rounded weights, so a row's result is off by at most twice as much. */
double check_call_weight_error(const check_case *c, const check_call *call)
{
    const bool bf16 = call->args.q.dtype == ATTN_BF16 && !call->args.precision;
    const char *isa = attn_isa(c->isa).name;
    const bool narrow = strcmp(isa, "amx") == 0 || strcmp(isa, "avx512bf16") == 0;
    return bf16 && narrow ? 0x1p-8 + 1.1e-4 : 0;
}

void check_call_judge_one(check_case *c, const char *name, const check_call *call,
                          const check_tensor *t, const double *want, double *bound)
{
    const attn_tensor *v = &t->view;
    int64_t n = check_count(v);
    bool narrower = check_unit(v->dtype) > check_unit(call->compute);
    double *got = check_tensor_copy(c, v), *stored = check_array(c, n);
    for (int64_t i = 0; i < n; i++) {
        stored[i] = want[i];
        if (!isfinite(want[i]))
            continue;
        bound[i] += narrower ? check_rounding(v->dtype, want[i]) * (1 + 0x1p-9) : 0;
        if (fabs(want[i]) + bound[i] >= overflow(v->dtype) && isinf(got[i]))
            /* if the bound is infinite (see weights_are_open), either sign is accepted */
            stored[i] = isinf(bound[i]) ? got[i] : copysign(INFINITY, want[i]);
    }
    check_difference d;
    if (!check_within(got, stored, bound, n, &d)) {
        int64_t j = d.at % v->shape[3], row = d.at / v->shape[3];
        int64_t i = row % v->shape[2], bh = row / v->shape[2];
        check_fail(c,
                   "%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                   "]: %.9g want %.9g (off by %.3g, bound %.3g)",
                   name, bh / v->shape[1], bh % v->shape[1], i, j, d.got, d.want, d.error, d.bound);
    }
    if (!check_tensor_gaps(t))
        check_fail(c, "%s: wrote between its rows", name);
}

static double vector_norm(const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    double sum = 0;
    for (int64_t j = 0; j < t->shape[3]; j++) {
        double x = ref_get(t, b, h, i, j);
        sum += x * x;
    }
    return sqrt(sum);
}

/* True if the scores are so large that their own rounding exceeds 1 (biases of 1e11, in float). The
 * weights are then open: any weights that add up to 1 are accepted. */
static bool weights_are_open(const check_call *call, double reach)
{
    return 8 * check_unit(call->compute) * (1 + reach) > 1;
}

/* The bounds of the scores' errors. At the stages BIASED and WEIGHTS they follow from the row's
 * `reach` (ref/attn_ref.h). The earlier stages have scores of all pairs; there they follow from
 * |q| |k|, which is no less than sum |q_t k_t|. */
static double *score_bounds(check_case *c, const check_call *call, const ref_result *want)
{
    const attn_sdpa_args *a = &call->args;
    int64_t H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2], G = H / a->k.shape[1];
    double u = check_unit(call->compute), tiny = call->compute == ATTN_F64 ? 0x1p-1022 : 0x1p-126;
    double scale = a->scale != 0 ? fabs(a->scale) : 1 / sqrt((double)a->q.shape[3]);
    double *bound = check_array(c, check_count(a->scores));
    for (int64_t row = 0; row < a->q.shape[0] * H * T; row++) {
        int64_t i = row % T, h = row / T % H, b = row / T / H;
        bool early = a->scores_stage <= ATTN_STAGE_SOFTCAP;
        double q_norm = early ? vector_norm(&a->q, b, h, i) : 0;
        for (int64_t j = 0; j < S; j++) {
            double size =
                early ? scale * q_norm * vector_norm(&a->k, b, h / G, j) : 1 + want->reach[row];
            if (a->scores_stage == ATTN_STAGE_WEIGHTS)
                size *= want->stages[ATTN_STAGE_WEIGHTS][row * S + j];
            bound[row * S + j] = (8 + 2 * check_call_extra_units(call)) * u * size + 4 * tiny;
            if (a->scores_stage == ATTN_STAGE_WEIGHTS && weights_are_open(call, want->reach[row]))
                bound[row * S + j] = 1;
            else if (a->scores_stage == ATTN_STAGE_WEIGHTS)
                bound[row * S + j] += 2 * check_call_weight_error(c, call) *
                                      want->stages[ATTN_STAGE_WEIGHTS][row * S + j];
        }
    }
    return bound;
}

/* The error that arises because a key's weight may be too small for a normal number. In a row with
 * a component that is not finite, all exponents are 40 lower, to avoid overflow. */
static double lost_weights(const ref_result *want, int64_t row, int64_t Dv, double tiny)
{
    bool finite = true;
    for (int64_t d = 0; d < Dv; d++)
        finite = finite && isfinite(want->out[row * Dv + d]);
    return 128 * tiny * (finite ? 1 : 0x1p41);
}

void check_call_judge(check_case *c, const check_call *call, const ref_result *want)
{
    const attn_sdpa_args *a = &call->args;
    int64_t n = check_count(&a->out), Dv = a->v.shape[3], S = a->k.shape[2];
    int64_t rows = a->q.shape[0] * a->q.shape[1] * a->q.shape[2];
    double u = check_unit(call->compute), tiny = call->compute == ATTN_F64 ? 0x1p-1022 : 0x1p-126;
    double *bound = check_array(c, n);
    for (int64_t i = 0; i < n; i++) {
        bound[i] =
            (8 + check_call_extra_units(call)) * u * (1 + want->reach[i / Dv]) * want->mass[i];
        bound[i] += 2 * check_call_weight_error(c, call) * want->mass[i];
        bound[i] += lost_weights(want, i / Dv, Dv, tiny) * (double)S;
        if (weights_are_open(call, want->reach[i / Dv]))
            bound[i] = INFINITY;
    }
    check_call_judge_one(c, "out", call, &call->out, want->out, bound);
    if (a->lse) {
        bound = check_array(c, rows);
        for (int64_t i = 0; i < rows; i++)
            bound[i] =
                (4 + check_call_extra_units(call)) * u * (1 + want->reach[i] + fabs(want->lse[i])) +
                check_call_weight_error(c, call);
        check_call_judge_one(c, "lse", call, &call->lse, want->lse, bound);
    }
    if (a->scores)
        check_call_judge_one(c, "scores", call, &call->scores, want->stages[a->scores_stage],
                             score_bounds(c, call, want));
}

check_tensor check_cut_keys(check_case *c, const attn_tensor *t, int64_t first, int64_t n)
{
    const int64_t shape[4] = {t->shape[0], t->shape[1], n, t->shape[3]};
    check_tensor piece =
        check_tensor_new(c, t->dtype, shape, check_chance(c, 60) ? CHECK_DENSE : CHECK_LOOSE);
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t d = 0; d < shape[3]; d++)
                    check_store(&piece.view, b, h, j, d, ref_get(t, b, h, first + j, d));
    return piece;
}

check_tensor check_take_rows(check_case *c, const attn_tensor *t, int64_t h0, int64_t H,
                             const int64_t *positions, int64_t n, bool repeats)
{
    const int64_t shape[4] = {t->shape[0], repeats && t->shape[1] == 1 ? 1 : H,
                              repeats && t->shape[2] == 1 ? 1 : n, t->shape[3]};
    check_tensor to = check_tensor_new(c, t->dtype, shape, CHECK_LOOSE);
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++)
                for (int64_t d = 0; d < shape[3]; d++)
                    check_store(&to.view, b, h, i, d,
                                ref_get(t, b, t->shape[1] == 1 && repeats ? 0 : h0 + h,
                                        t->shape[2] == 1 && repeats ? 0 : positions[i], d));
    return to;
}

attn_tensor check_heads_of(const attn_tensor *t, int64_t h0, int64_t n)
{
    attn_tensor some = *t;
    if (check_count(t) > 0)
        some.data = (char *)t->data + h0 * t->stride[1] * (int64_t)attn_dtype_size(t->dtype);
    some.shape[1] = n;
    return some;
}

void check_forget(const attn_tensor *t)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t i = 0; i < t->shape[2]; i++)
                for (int64_t d = 0; d < t->shape[3]; d++)
                    check_store(t, b, h, i, d, 77);
}
