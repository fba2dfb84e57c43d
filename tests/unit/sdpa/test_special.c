/* Hidden numbers change no bit; visible NaN and infinities reach exactly the rows that use them.
 *
 * The floating-point state of the caller is left alone. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"

enum { B = 2, H = 4, HK = 2, T = 37, S = 70, D = 24 };

/* ---------------------------------------------------------------------------------- the values */

typedef enum special {
    ZERO,
    MINUS_ZERO,
    DENORMAL,
    LARGEST,
    PLUS_INF,
    MINUS_INF,
    QUIET,
    SIGNALING
} special;
static const char *const special_names[] = {"0",   "-0",   "denormal", "max",
                                            "inf", "-inf", "qNaN",     "sNaN"};
#define SPECIALS 8

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
#define DTYPES 4

/* The bits of a special value, written as such: no conversion makes a signalling NaN quiet. */
static void put_special(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j, special x)
{
    static const uint64_t table[DTYPES][SPECIALS] = {
        {0, 1ull << 63, 1, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000,
         0x7FF8000000000000, 0x7FF0000000000001},
        {0, 0x80000000, 1, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001},
        {0, 0x8000, 1, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01},
        {0, 0x8000, 1, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81},
    };
    int type = t->dtype == ATTN_F64 ? 0 : t->dtype == ATTN_F32 ? 1 : t->dtype == ATTN_F16 ? 2 : 3;
    int64_t e = b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + j * t->stride[3];
    size_t size = attn_dtype_size(t->dtype);
    memcpy((char *)t->data + e * (int64_t)size, &table[type][x], size); /* little-endian */
}

/* A NaN in, a NaN out; the largest number or an infinity may give either. */
static bool is_nan(special x) { return x == QUIET || x == SIGNALING; }

/* ---------------------------------------------------------------------------------- one problem */

typedef struct problem {
    attn_sdpa_args args;
    check_tensor q, k, v, out, mask;
    int64_t lengths[B];
} problem;

static check_tensor normal(check_case *c, attn_dtype dtype, int64_t heads, int64_t rows)
{
    return normal_tensor(c, dtype, (const int64_t[4]){B, heads, rows, D});
}

static void make_problem(check_case *c, problem *p, attn_dtype dtype)
{
    *p = (problem){.args = ATTN_SDPA_ARGS_INIT};
    p->q = normal(c, dtype, H, T);
    p->k = normal(c, dtype, HK, S);
    p->v = normal(c, dtype, HK, S);
    p->out = normal(c, dtype, H, T);
    p->args.q = p->q.view, p->args.k = p->k.view, p->args.v = p->v.view, p->args.out = p->out.view;
}

static double *forward(check_case *c, problem *p)
{
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, 1), &p->args, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    return check_tensor_copy(c, &p->out.view);
}

/* The ways in which key S-1-n, n = 0..2, is hidden from every query, or from most. */
typedef enum hiding {
    BY_LENGTH,
    BY_BOOL,
    BY_FLOAT,
    BY_CAUSAL,
    BY_WINDOW,
    BY_SEQUENCES,
    HIDINGS
} hiding;
static const char *const hiding_names[] = {"length", "bool mask", "float mask",
                                           "causal", "window",    "sequences"};
enum { HIDDEN = S - 3 };

static void hide(check_case *c, problem *p, hiding how)
{
    static const int64_t q_ends[] = {0, T}, k_ends[] = {0, HIDDEN};
    attn_sdpa_args *a = &p->args;
    const int64_t shape[4] = {1, 1, 1, S};
    switch (how) {
    case BY_LENGTH:
        for (int b = 0; b < B; b++)
            p->lengths[b] = HIDDEN;
        a->key_lengths = p->lengths;
        break;
    case BY_BOOL:
    case BY_FLOAT:
        p->mask = check_tensor_new(c, how == BY_BOOL ? ATTN_BOOL : ATTN_F32, shape, CHECK_DENSE);
        for (int64_t j = 0; j < S; j++)
            check_store(&p->mask.view, 0, 0, 0, j,
                        how == BY_BOOL ? j < HIDDEN
                        : j < HIDDEN   ? 0.5 * (double)(j % 3)
                                       : -INFINITY);
        a->mask = &p->mask.view;
        break;
    case BY_CAUSAL:
        a->causal = ATTN_CAUSAL_OFFSET;
        a->causal_offset = HIDDEN - T; /* the last query sees HIDDEN keys */
        break;
    case BY_WINDOW: a->window_right = HIDDEN - T; break;
    default: a->cu_seqlens_q = q_ends, a->cu_seqlens_k = k_ends; a->sequences = 1;
    }
}

/* ------------------------------------------------------------------------------------
 * properties */

/* Any special value in hidden keys and values: the bits are those of zeros there. */
static void hidden_changes_nothing(check_case *c)
{
    for (int type = 0; type < DTYPES; type++)
        for (hiding how = 0; how < HIDINGS; how++) {
            problem p;
            c->random = c->seed;
            make_problem(c, &p, dtypes[type]);
            hide(c, &p, how);
            double *want = NULL;
            for (special x = ZERO; x < SPECIALS; x++)
                for (int what = 0; what < 3; what++) { /* k, v, both */
                    for (int64_t n = 0; n < (S - HIDDEN) * D * B * HK; n++) {
                        int64_t b = n / D / HK / (S - HIDDEN), h = n / D / (S - HIDDEN) % HK;
                        int64_t j = HIDDEN + n / D % (S - HIDDEN);
                        put_special(&p.k.view, b, h, j, n % D, what != 1 ? x : ZERO);
                        put_special(&p.v.view, b, h, j, n % D, what != 0 ? x : ZERO);
                    }
                    check_describe(c, "%s hidden by %s: %s in %s", attn_dtype_name(dtypes[type]),
                                   hiding_names[how], special_names[x],
                                   what == 0   ? "k"
                                   : what == 1 ? "v"
                                               : "k and v");
                    double *got = forward(c, &p);
                    want = want ? want : got;
                    check_difference d;
                    if (!check_same(got, want, check_count(&p.out.view), CHECK_ZERO_SIGNED, &d))
                        check_fail(c, "out %d: %.17g, with zeros %.17g", (int)d.at, d.got, d.want);
                }
            check_buffers_reset(c->run->buffers);
        }
}

/* Partly hidden: causal rows before a poisoned key keep their bits, NaN or not; rows from it on
 * show the NaN in all (k) or one (v) of their components. */
static void seen_reaches_its_rows(check_case *c)
{
    for (int type = 0; type < DTYPES; type++)
        for (special x = ZERO; x < SPECIALS; x++)
            for (int what = 0; what < 2; what++) {
                problem p;
                c->random = c->seed;
                make_problem(c, &p, dtypes[type]);
                p.args.causal = ATTN_CAUSAL_TOP_LEFT;
                double *clean = forward(c, &p);
                enum { J = 20, AT = 5, BATCH = 1, KEY_HEAD = 1 };
                put_special(what ? &p.v.view : &p.k.view, BATCH, KEY_HEAD, J, AT, x);
                check_describe(c, "%s %s in %s of key %d", attn_dtype_name(dtypes[type]),
                               special_names[x], what ? "v" : "k", J);
                double *got = forward(c, &p);
                for (int64_t n = 0; n < B * H * T * D; n++) {
                    int64_t d = n % D, i = n / D % T, h = n / D / T % H, b = n / D / T / H;
                    bool uses = b == BATCH && h / (H / HK) == KEY_HEAD && i >= J;
                    bool shows = uses && (what == 0 || d == AT);
                    bool finite_in = x <= DENORMAL;
                    if (!uses && memcmp(&got[n], &clean[n], sizeof got[n]) != 0)
                        check_fail(
                            c, "out[%d,%d,%d,%d] is %.17g, want %.17g: it does not use the number",
                            (int)b, (int)h, (int)i, (int)d, got[n], clean[n]);
                    if (uses && !shows && !(fabs(got[n] - clean[n]) <= 1e-6 * (1 + fabs(clean[n]))))
                        check_fail(c, "component %d of row %d is %.17g, want %.17g (tolerance %g)",
                                   (int)d, (int)i, got[n], clean[n], 1e-6 * (1 + fabs(clean[n])));
                    if (shows && is_nan(x) != (isnan(got[n]) != 0) && (is_nan(x) || finite_in))
                        check_fail(c, "out[%d,%d,%d,%d] is %g, want %s", (int)b, (int)h, (int)i,
                                   (int)d, got[n], is_nan(x) ? "NaN" : "a number");
                    if (shows && what == 1 && (x == PLUS_INF || x == MINUS_INF) && !isinf(got[n]))
                        check_fail(c, "element %d of an infinite value is %g, want an infinity",
                                   (int)n, got[n]);
                }
                check_buffers_reset(c->run->buffers);
            }
}

/* A special value in one query: its row alone. */
static void query_reaches_its_row(check_case *c)
{
    for (int type = 0; type < DTYPES; type++)
        for (special x = ZERO; x < SPECIALS; x++)
            for (int masked = 0; masked < 2; masked++) {
                problem p;
                c->random = c->seed;
                make_problem(c, &p, dtypes[type]);
                enum { ROW = 6 };
                if (masked) { /* query ROW and all before it see nothing */
                    p.args.causal = ATTN_CAUSAL_OFFSET;
                    p.args.causal_offset = -ROW - 1;
                }
                double *clean = forward(c, &p);
                put_special(&p.q.view, 0, 2, ROW, 3, x);
                check_describe(c, "%s %s in %s query", attn_dtype_name(dtypes[type]),
                               special_names[x], masked ? "a masked" : "one");
                double *got = forward(c, &p);
                for (int64_t n = 0; n < B * H * T * D; n++) {
                    bool own = n / D == 2 * T + ROW;
                    bool same = memcmp(&got[n], &clean[n], sizeof got[n]) == 0;
                    if ((!own || masked) && !same)
                        check_fail(c, "element %d is %.17g, want %.17g", (int)n, got[n], clean[n]);
                    if (masked && n / D % T <= ROW && got[n] != 0)
                        check_fail(c, "element %d of a row that sees nothing is %g, want 0", (int)n,
                                   got[n]);
                    if (own && !masked && is_nan(x) && !isnan(got[n]))
                        check_fail(c, "element %d is %g, want NaN", (int)n, got[n]);
                    if (own && !masked && x <= DENORMAL && !isfinite(got[n]))
                        check_fail(c, "element %d is %g, want a finite number", (int)n, got[n]);
                }
                check_buffers_reset(c->run->buffers);
            }
}

/* Float masks: NaN is added where it is seen and lost where lengths hide it; zeros of both signs
 * and denormals do nothing; infinities make NaN (+) or hide (-). */
static void mask_values(check_case *c)
{
    for (int type = 0; type < DTYPES; type++)
        for (special x = ZERO; x < SPECIALS; x++)
            for (int unused = 0; unused < 2; unused++) {
                problem p;
                c->random = c->seed;
                make_problem(c, &p, ATTN_F32);
                hide(c, &p, BY_LENGTH);
                const int64_t shape[4] = {1, 1, T, S};
                p.mask = check_tensor_new(c, dtypes[type], shape, CHECK_DENSE);
                for (int64_t i = 0; i < T; i++)
                    for (int64_t j = 0; j < S; j++)
                        check_store(&p.mask.view, 0, 0, i, j, 0.25 * check_normal(c));
                p.args.mask = &p.mask.view;
                enum { ROW = 9 };
                int64_t j = unused ? HIDDEN + 1 : 11;
                put_special(&p.mask.view, 0, 0, ROW, j, ZERO);
                double *clean = forward(c, &p);
                put_special(&p.mask.view, 0, 0, ROW, j, x);
                check_describe(c, "%s mask, %s %s", attn_dtype_name(dtypes[type]), special_names[x],
                               unused ? "where lengths hide" : "where seen");
                double *got = forward(c, &p);
                for (int64_t n = 0; n < B * H * T * D; n++) {
                    bool own = n / D % T == ROW && !unused;
                    bool same = memcmp(&got[n], &clean[n], sizeof got[n]) == 0;
                    bool nothing =
                        x <= MINUS_ZERO || (x == DENORMAL && type != 2); /* f16's: 2^-24 */
                    if ((!own || nothing) && !same)
                        check_fail(c, "element %d is %.17g, want %.17g", (int)n, got[n], clean[n]);
                    if (own && (is_nan(x) || x == PLUS_INF) && !isnan(got[n]))
                        check_fail(c, "element %d is %g, want NaN", (int)n, got[n]);
                    if (own && x == MINUS_INF && (same || !isfinite(got[n])))
                        check_fail(c, "element %d is %g, want another finite number: -inf hides",
                                   (int)n, got[n]);
                }
                check_buffers_reset(c->run->buffers);
            }
}

/* Rows that see nothing, first, in the middle, last, all: 0 and -inf, whatever hides the keys. */
static void rows_that_see_nothing(check_case *c)
{
    static const int64_t runs[][2] = {{0, 9}, {14, 20}, {30, T}, {0, T}, {5, 6}};
    for (int type = 0; type < DTYPES; type++)
        for (size_t n = 0; n < sizeof runs / sizeof *runs; n++)
            for (int kind = 0; kind < 3; kind++) {
                problem p;
                make_problem(c, &p, dtypes[type]);
                const int64_t shape[4] = {1, 1, T, kind == 2 ? 1 : S}, rows[4] = {B, H, T, 1};
                p.mask = check_tensor_new(c, kind == 1 ? ATTN_BOOL : ATTN_F32, shape, CHECK_DENSE);
                check_tensor lse = check_tensor_new(c, ATTN_F32, rows, CHECK_DENSE);
                for (int64_t i = 0; i < T; i++)
                    for (int64_t j = 0; j < shape[3]; j++) {
                        bool hidden = i >= runs[n][0] && i < runs[n][1];
                        check_store(&p.mask.view, 0, 0, i, j,
                                    kind == 1 ? !hidden
                                    : hidden  ? -INFINITY
                                              : 0);
                    }
                for (int64_t i = 0; i < B * HK; i++) /* 0 * NaN would show */
                    put_special(&p.v.view, i / HK, i % HK, 3, 3, n == 3 ? QUIET : ZERO);
                p.args.mask = &p.mask.view;
                p.args.lse = &lse.view;
                check_describe(c, "%s rows %d..%d, mask %d", attn_dtype_name(dtypes[type]),
                               (int)runs[n][0], (int)runs[n][1], kind);
                double *got = forward(c, &p), *sums = check_tensor_copy(c, &lse.view);
                for (int64_t row = 0; row < B * H * T; row++) {
                    bool hidden = row % T >= runs[n][0] && row % T < runs[n][1];
                    if (hidden != (sums[row] == -INFINITY))
                        check_fail(c, "lse of row %d is %g, want %s", (int)row, sums[row],
                                   hidden ? "-inf" : "another number");
                    for (int64_t d = 0; d < D; d++)
                        if (hidden && (got[row * D + d] != 0 || signbit(got[row * D + d])))
                            check_fail(c, "out[%d,%d] is %g, want 0", (int)row, (int)d,
                                       got[row * D + d]);
                }
                check_buffers_reset(c->run->buffers);
            }
}

/* Scores beyond 2^24 log2 units, of which a float keeps neither fractions nor small integers: the
 * weights on request still sum to 1 in every row. */
static void weights_of_far_scores(check_case *c)
{
    static const float slopes[] = {0.1f, -3e-4f, 77};
    static const double scales[] = {0.125, 1};
    for (size_t n = 0; n < 6; n++) {
        enum { rows = 5, keys = 40 };
        float q[rows], k[keys], v[keys], out[rows], weights[rows * keys];
        for (int j = 0; j < keys; j++) {
            k[j] = (float)check_normal(c), v[j] = 1;
            q[j % rows] = (float)check_normal(c);
        }
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        const attn_tensor stage = attn_bhtd(weights, ATTN_F32, 1, 1, rows, keys);
        a.q = attn_bhtd(q, ATTN_F32, 1, 1, rows, 1), a.k = attn_bhtd(k, ATTN_F32, 1, 1, keys, 1);
        a.v = attn_bhtd(v, ATTN_F32, 1, 1, keys, 1);
        a.out = attn_bhtd(out, ATTN_F32, 1, 1, rows, 1);
        a.scale = scales[n / 3];
        a.causal = ATTN_CAUSAL_OFFSET, a.causal_offset = 308045004096 + 7 * (int64_t)n;
        a.alibi_slopes = &slopes[n % 3];
        a.scores = &stage, a.scores_stage = ATTN_STAGE_WEIGHTS;
        if (attn_sdpa_forward(check_context(c, 1), &a, NULL) != ATTN_OK)
            check_fail(c, "refused");
        for (int i = 0; i < rows; i++) {
            double sum = 0;
            for (int j = 0; j < keys; j++)
                sum += (double)weights[i * keys + j];
            if (!(fabs(sum - 1) < 1e-5))
                check_fail(c,
                           "slope %g: the weights of row %d sum to %.9g, want 1 (tolerance 1e-5)",
                           slopes[n % 3], i, sum);
        }
    }
}

/* One call of logits[4] as scores, or as a mask over scores of 0: finite, and what the definition
 * gives of what is stored. */
static void huge_logits_of(check_case *c, attn_dtype dtype, const double *logits, bool as_mask)
{
    enum { rows = 3, keys = 4, width = 2 };
    const int64_t q[4] = {1, 1, rows, 1}, k[4] = {1, 1, keys, 1}, v[4] = {1, 1, keys, width};
    const int64_t out[4] = {1, 1, rows, width}, mask[4] = {1, 1, 1, keys};
    check_tensor tensors[] = {check_tensor_new(c, dtype, q, CHECK_DENSE),
                              check_tensor_new(c, dtype, k, CHECK_DENSE),
                              check_tensor_new(c, dtype, v, CHECK_DENSE),
                              check_tensor_new(c, dtype, out, CHECK_DENSE),
                              check_tensor_new(c, dtype, mask, CHECK_DENSE)};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = tensors[0].view, a.k = tensors[1].view, a.v = tensors[2].view, a.out = tensors[3].view;
    a.scale = 1;
    for (int j = 0; j < keys; j++) {
        if (j < rows)
            check_store(&a.q, 0, 0, j, 0, 1);
        check_store(&a.k, 0, 0, j, 0, as_mask ? 0 : logits[j]);
        check_store(&tensors[4].view, 0, 0, 0, j, logits[j]);
        check_store(&a.v, 0, 0, j, 0, j + 1);
        check_store(&a.v, 0, 0, j, 1, check_normal(c));
    }
    a.mask = as_mask ? &tensors[4].view : NULL;
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, 1), &a, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    double want[rows * width], reach[rows], mass[rows * width], bound[rows * width];
    ref_sdpa_forward(&a, &(ref_result){.out = want, .reach = reach, .mass = mass});
    /* the gaps are far larger than their rounding; out and, on some units, weights are bf16 */
    for (int i = 0; i < rows * width; i++)
        bound[i] = (dtype == ATTN_BF16 ? 0x1p-6 : 1e-5) * mass[i];
    check_difference d;
    if (!check_within(check_tensor_copy(c, &a.out), want, bound, rows * width, &d))
        check_fail(c, "out %d: %g want %g", (int)d.at, d.got, d.want);
}

static void huge_logits(check_case *c)
{
    static const double logits[][4] = {
        {3e38, -3e38, 3e38, 0},         {-3e38, -3e38, -3e38, -3e38},
        {3e38, 2e38, 1e38, -1e38},      {-1e38, -1.0001e38, 0, -3e38},
        {1e20, 1e20, 1e20, 1e19},       {2.5e38, 2.5e38, 2.5e38, 2.5e38},
        {-3e38, -2.9e38, -3e38, -3e38}, {1e-40, -1e-40, 0, 1e-38},
        {3.0e38, 3.0e38, 1, 2},         {-3e38, -2e38, -2e38, -3e38},
    };
    static const attn_dtype types[] = {ATTN_F32, ATTN_BF16, ATTN_F64};
    for (size_t n = 0; n < sizeof logits / sizeof *logits * 6; n++) {
        check_describe(c, "%s %zu, %s", n % 2 ? "mask" : "scores", n / 6,
                       attn_dtype_name(types[n / 2 % 3]));
        huge_logits_of(c, types[n / 2 % 3], logits[n / 6], n % 2);
        check_arrays_free(c);
        check_buffers_reset(c->run->buffers);
    }
}

/* scale: what is not finite is refused, everything else gives the definition's result. */
static void scales(check_case *c)
{
    static const double values[] = {NAN,    INFINITY, -INFINITY, 0.0, -0.0,
                                    5e-324, 1e-40,    DBL_MAX,   -1};
    problem p;
    make_problem(c, &p, ATTN_F32);
    for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
        p.args.scale = values[n];
        check_describe(c, "scale %g", values[n]);
        attn_status status = attn_sdpa_forward(check_context(c, 1), &p.args, NULL);
        if (status != (isfinite(values[n]) ? ATTN_OK : ATTN_ERR_ARGUMENT))
            check_fail(c, "%s", attn_status_name(status));
        if (status == ATTN_OK && fabs(values[n]) < 1e30) {
            check_call call = {.args = p.args, .out = p.out, .compute = ATTN_F32};
            ref_result want;
            check_call_reference(c, &call, &want);
            check_call_judge(c, &call, &want);
        }
    }
}

/* ------------------------------------------------------------------------ floating-point state */

static unsigned control(void)
{
#if defined(__x86_64__)
    return _mm_getcsr() & 0xFFC0; /* all but the exception flags */
#else
    return 0;
#endif
}

static void state_is_kept(check_case *c)
{
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (int type = 0; type < DTYPES; type++)
        for (int flush = 0; flush < 2; flush++)
            for (int mode = 0; mode < 4; mode++) {
                problem p;
                make_problem(c, &p, dtypes[type]);
                p.args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
                p.args.softcap = 3;
                p.args.dropout = 0.5;
                check_describe(c, "%s mode %d flush %d", attn_dtype_name(dtypes[type]), mode,
                               flush);
                attn_context *ctx = check_context(c, 3);
                fesetround(modes[mode]);
#if defined(__x86_64__)
                if (flush)
                    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#endif
                unsigned before = control();
                attn_status status = attn_sdpa_forward(ctx, &p.args, NULL);
                unsigned after = control();
                int round = fegetround();
                fesetenv(FE_DFL_ENV);
                if (status != ATTN_OK || after != before || round != modes[mode])
                    check_fail(c, "%s, state %x, want %x", attn_status_name(status), after, before);
                double *got = check_tensor_copy(c, &p.out.view);
                for (int64_t n = 0; n < B * H * T * D; n++)
                    if (!isfinite(got[n]) || fabs(got[n]) > 20)
                        check_fail(c, "element %d is %g, want at most 20", (int)n, got[n]);
                check_buffers_reset(c->run->buffers);
            }
}

/* ------------------------------------------------------------------------------------ the tests */

static void run_once(void **state, void (*property)(check_case *))
{
    (void)state;
    run_property(property, "special", 1);
}

static void test_hidden(void **state) { run_once(state, hidden_changes_nothing); }
static void test_seen(void **state) { run_once(state, seen_reaches_its_rows); }
static void test_query(void **state) { run_once(state, query_reaches_its_row); }
static void test_mask(void **state) { run_once(state, mask_values); }
static void test_nothing(void **state) { run_once(state, rows_that_see_nothing); }
static void test_huge_logits(void **state) { run_once(state, huge_logits); }
static void test_far_scores(void **state) { run_once(state, weights_of_far_scores); }
static void test_scale(void **state) { run_once(state, scales); }
static void test_state(void **state) { run_once(state, state_is_kept); }

/* Values without components leave dout nothing to say, but dlse reaches the sink of a row whose lse
 * is NaN: the gradient is NaN, and no number in its place. */
static void test_sink_of_a_nan_row(void **state)
{
    const double q[] = {NAN, 1}, k[] = {1, 1}, dlse[] = {1};
    const float sink = 2;
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++) {
        describe_case("%s", attn_isa(isa).name);
        double lse = 0, dsink = 7;
        attn_context *ctx;
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.isa = attn_isa(isa).name;
        if (!attn_isa(isa).usable)
            continue;
        assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
        const attn_tensor t_lse = attn_bhtd(&lse, ATTN_F64, 1, 1, 1, 1);
        const attn_tensor t_dlse = attn_bhtd((double *)dlse, ATTN_F64, 1, 1, 1, 1);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = attn_bhtd((double *)q, ATTN_F64, 1, 1, 1, 2);
        a.k = attn_bhtd((double *)k, ATTN_F64, 1, 1, 1, 2);
        a.v = a.out = attn_bhtd(NULL, ATTN_F64, 1, 1, 1, 0);
        a.sink_logits = &sink;
        a.lse = &t_lse;
        assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
        assert_nan(lse);
        attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
        g.dout = a.out;
        g.dlse = &t_dlse;
        g.dsink_logits = &dsink;
        assert_int_equal(attn_sdpa_backward(ctx, &a, &g, NULL), ATTN_OK);
        assert_nan(dsink);
        attn_context_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden),     cmocka_unit_test(test_seen),
        cmocka_unit_test(test_query),      cmocka_unit_test(test_mask),
        cmocka_unit_test(test_nothing),    cmocka_unit_test(test_huge_logits),
        cmocka_unit_test(test_scale),      cmocka_unit_test(test_state),
        cmocka_unit_test(test_far_scores), cmocka_unit_test(test_sink_of_a_nan_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
