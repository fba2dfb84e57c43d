/* Windows and ALiBi without causal count from the chosen diagonal.
 *
 * Each call is compared with one whose float mask holds the biases of FlashAttention's formulas:
 * forward, gradients and tangents, in f64, with key lengths, with packed sequences and with
 * neither, on every instruction set. Both forms of ALiBi are tested. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "attn.h"
#include "support/test.h"

enum { B = 2, H = 2, D = 3, MOST = 150, ELEMENTS = B * H * MOST * D };

typedef enum batches { WHOLE, LENGTHS, PACKED, BATCHES } batches;

typedef struct problem {
    int64_t T, S, left, right;
    attn_diagonal diagonal;
    int64_t offset;
    attn_alibi_form form;
    batches batches;
} problem;

static double q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], dout[ELEMENTS];
static double mask[B * H * MOST * MOST], distance[B * H * MOST * MOST];
static const float slopes[H] = {0.25F, -0.0625F};

/* What a problem gives: out, lse; dq, dk, dv; tout, tlse; the gradient of slopes or of the mask. */
typedef struct results {
    double x[7][ELEMENTS], slopes[H], mask[B * H * MOST * MOST];
} results;
static results got, want;

static void fill(double *x, uint32_t seed)
{
    for (int i = 0; i < ELEMENTS; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (double)seed / 2147483648.0 - 1;
    }
}

/* Of packed sequences the second begins at query 3 and key 3; there is nothing behind the third. */
static int64_t starts_q[4], starts_k[4], lengths[B];

static void place(const problem *p)
{
    const int64_t at_q[] = {0, 3, p->T - 2, p->T}, at_k[] = {0, 3, p->S, p->S};
    memcpy(starts_q, at_q, sizeof at_q);
    memcpy(starts_k, at_k, sizeof at_k);
    lengths[0] = p->S, lengths[1] = p->S / 2;
}

/* The sequence of query i: its first query and key, its sizes. */
static void sequence_of(const problem *p, int64_t b, int64_t i, int64_t s[4])
{
    s[0] = 0, s[1] = 0, s[2] = p->T, s[3] = p->batches == LENGTHS ? lengths[b] : p->S;
    for (int n = 0; n < 3 && p->batches == PACKED; n++)
        if (i >= starts_q[n] && i < starts_q[n + 1])
            s[0] = starts_q[n], s[1] = starts_k[n], s[2] = starts_q[n + 1] - s[0],
            s[3] = starts_k[n + 1] - s[1];
}

/* i sees keys from i + off - left to i + off + right, and adds -slope * |i + off - j|: as in
 * FlashAttention, where off is S - T. */
static void write_mask(const problem *p)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < p->T; i++)
                for (int64_t j = 0; j < p->S; j++) {
                    const int64_t at = ((b * H + h) * p->T + i) * p->S + j;
                    int64_t s[4];
                    sequence_of(p, b, i, s);
                    const int64_t off[] = {0, s[3] - s[2], p->offset};
                    const int64_t diagonal = i - s[0] + off[p->diagonal];
                    const int64_t key = j - s[1];
                    const bool seen = key >= 0 && key < s[3] &&
                                      (p->left < 0 || key >= diagonal - p->left) &&
                                      (p->right < 0 || key <= diagonal + p->right);
                    distance[at] = p->form == ATTN_ALIBI_SYMMETRIC ? -fabs((double)(diagonal - key))
                                                                   : (double)(key - diagonal);
                    mask[at] = seen ? (double)slopes[h] * distance[at] : -INFINITY;
                }
}

static void run(attn_context *ctx, const attn_sdpa_args *given, results *r)
{
    attn_error err = {0};
    attn_sdpa_args a = *given;
    const int64_t T = a.q.shape[2], S = a.k.shape[2];
    attn_tensor lse = attn_bhtd(r->x[1], ATTN_F64, B, H, T, 1);
    attn_tensor tlse = attn_bhtd(r->x[6], ATTN_F64, B, H, T, 1);
    attn_tensor dmask = attn_bhtd(r->mask, ATTN_F64, B, H, T, S);
    memset(r, 0, sizeof *r);
    a.out = attn_bhtd(r->x[0], ATTN_F64, B, H, T, D);
    a.lse = &lse;
    if (attn_sdpa_forward(ctx, &a, &err) != ATTN_OK)
        fail_msg("forward: %s", err.message);
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_bhtd(dout, ATTN_F64, B, H, T, D);
    g.dq = attn_bhtd(r->x[2], ATTN_F64, B, H, T, D);
    g.dk = attn_bhtd(r->x[3], ATTN_F64, B, H, S, D);
    g.dv = attn_bhtd(r->x[4], ATTN_F64, B, H, S, D);
    g.dalibi_slopes = a.alibi_slopes ? r->slopes : NULL;
    g.dmask = a.mask ? &dmask : NULL;
    if (attn_sdpa_backward(ctx, &a, &g, &err) != ATTN_OK)
        fail_msg("backward: %s", err.message);
    attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
    t.tq = attn_bhtd(dout, ATTN_F64, B, H, T, D);
    t.tk = attn_bhtd(v, ATTN_F64, B, H, S, D);
    t.tout = attn_bhtd(r->x[5], ATTN_F64, B, H, T, D);
    t.tlse = &tlse;
    if (attn_sdpa_jvp(ctx, &a, &t, &err) != ATTN_OK)
        fail_msg("jvp: %s", err.message);
}

static void expect_near(const char *what, int at, double x, double y)
{
    if (x != y && !(fabs(x - y) <= 1e-12 * (1 + fabs(y))))
        fail_msg("%s[%d] is %.17g, want %.17g by a mask (tolerance %g)", what, at, x, y,
                 1e-12 * (1 + fabs(y)));
}

static void compare(attn_context *ctx, const problem *p)
{
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv", "tout", "tlse"};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    place(p);
    write_mask(p);
    a.q = attn_bhtd(q, ATTN_F64, B, H, p->T, D);
    a.k = attn_bhtd(k, ATTN_F64, B, H, p->S, D);
    a.v = attn_bhtd(v, ATTN_F64, B, H, p->S, D);
    attn_sdpa_args masked = a;
    a.window_left = p->left, a.window_right = p->right;
    a.alibi_slopes = slopes, a.alibi_form = p->form, a.diagonal = p->diagonal;
    a.causal_offset = p->offset;
    if (p->batches == LENGTHS)
        a.key_lengths = lengths;
    if (p->batches == PACKED)
        a.cu_seqlens_q = starts_q, a.cu_seqlens_k = starts_k, a.sequences = 3;
    run(ctx, &a, &got);
    const attn_tensor view = attn_bhtd(mask, ATTN_F64, B, H, p->T, p->S);
    masked.mask = &view;
    run(ctx, &masked, &want);
    for (int i = 0; i < 7; i++)
        for (int e = 0; e < ELEMENTS; e++)
            expect_near(names[i], e, got.x[i][e], want.x[i][e]);
    for (int h = 0; h < H; h++) {
        double sum = 0;
        for (int64_t b = 0; b < B; b++)
            for (int64_t e = 0; e < p->T * p->S; e++)
                sum += want.mask[(b * H + h) * p->T * p->S + e] *
                       distance[(b * H + h) * p->T * p->S + e];
        if (!(fabs(got.slopes[h] - sum) <= 1e-9 * (1 + fabs(sum))))
            fail_msg("dalibi_slopes[%d] is %.17g, want %.17g by a mask (tolerance %g)", h,
                     got.slopes[h], sum, 1e-9 * (1 + fabs(sum)));
    }
}

static void as_a_mask(void **state)
{
    static const int64_t sizes[][2] = {{7, 19}, {19, 7}, {70, 150}, {150, 70}, {13, 13}};
    static const int64_t windows[][2] = {{-1, -1}, {2, 3}, {0, -1}, {-1, 20}, {0, 0}};
    (void)state;
    fill(q, 1), fill(k, 2), fill(v, 3), fill(dout, 4);
    for (int isa = 0; attn_isa(isa).name; isa++) {
        attn_context *ctx;
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.isa = attn_isa(isa).name;
        if (!attn_isa(isa).usable)
            continue;
        assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
        for (int n = 0; n < 5 * 5 * 3 * 2 * BATCHES; n++) {
            const problem p = {.T = sizes[n % 5][0],
                               .S = sizes[n % 5][1],
                               .left = windows[n / 5 % 5][0],
                               .right = windows[n / 5 % 5][1],
                               .diagonal = (attn_diagonal)(n / 25 % 3),
                               .offset = n % 37 - 18,
                               .form = (attn_alibi_form)(n / 75 % 2),
                               .batches = (batches)(n / 150)};
            describe_case("%s, T=%d S=%d diagonal=%d form=%d window=%d,%d batches=%d",
                          attn_isa(isa).name, (int)p.T, (int)p.S, (int)p.diagonal, (int)p.form,
                          (int)p.left, (int)p.right, (int)p.batches);
            compare(ctx, &p);
        }
        attn_context_destroy(ctx);
    }
}

/* What T = 2, S = 4 sees with one key to each side of a diagonal. */
static void pictures(void **state)
{
    static const char *const want_seen[] = {"xx..xxx.", ".xxx..xx", "xxx..xxx"};
    (void)state;
    for (int diagonal = 0; diagonal < 3; diagonal++) {
        describe_case("diagonal %d", diagonal);
        double scores[8], out[2 * D];
        char seen[9] = "";
        attn_tensor view = attn_bhtd(scores, ATTN_F64, 1, 1, 2, 4);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = attn_bhtd(q, ATTN_F64, 1, 1, 2, D);
        a.k = attn_bhtd(k, ATTN_F64, 1, 1, 4, D);
        a.v = attn_bhtd(v, ATTN_F64, 1, 1, 4, D);
        a.out = attn_bhtd(out, ATTN_F64, 1, 1, 2, D);
        a.window_left = a.window_right = 1;
        a.diagonal = (attn_diagonal)diagonal;
        a.causal_offset = 1;
        a.scores = &view, a.scores_stage = ATTN_STAGE_BIASED;
        assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
        for (int e = 0; e < 8; e++)
            seen[e] = scores[e] == -INFINITY ? '.' : 'x';
        assert_string_equal(seen, want_seen[diagonal]);
    }
}

/* Behind a causal mask both forms of ALiBi are the same numbers. */
static void forms_are_one_when_causal(void **state)
{
    const problem p = {.T = 40, .S = 90};
    (void)state;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F64, B, H, p.T, D);
    a.k = attn_bhtd(k, ATTN_F64, B, H, p.S, D);
    a.v = attn_bhtd(v, ATTN_F64, B, H, p.S, D);
    a.alibi_slopes = slopes;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    run(NULL, &a, &got);
    a.alibi_form = ATTN_ALIBI_SYMMETRIC, a.diagonal = ATTN_DIAGONAL_BOTTOM_RIGHT;
    run(NULL, &a, &want);
    assert_same_array(got.x, want.x, sizeof got.x);
    for (int h = 0; h < H; h++)
        assert_near(got.slopes[h], want.slopes[h], <=, 1e-12 * (1 + fabs(got.slopes[h])));
}

static void refused(void **state)
{
    static const struct {
        int diagonal, form;
        attn_causal causal;
        const char *argument;
    } cases[] = {{3, 0, ATTN_CAUSAL_NONE, "diagonal"},
                 {-1, 0, ATTN_CAUSAL_NONE, "diagonal"},
                 {1, 0, ATTN_CAUSAL_TOP_LEFT, "diagonal"},
                 {1, 0, ATTN_CAUSAL_OFFSET, "diagonal"},
                 {2, 0, ATTN_CAUSAL_BOTTOM_RIGHT, "diagonal"},
                 {0, 2, ATTN_CAUSAL_NONE, "alibi_form"},
                 {0, -1, ATTN_CAUSAL_BOTTOM_RIGHT, "alibi_form"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        describe_case("row %zu of cases", i);
        attn_error err = {0};
        double out[D] = {7};
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = a.k = a.v = attn_bhtd(q, ATTN_F64, 1, 1, 1, D);
        a.out = attn_bhtd(out, ATTN_F64, 1, 1, 1, D);
        a.diagonal = (attn_diagonal)cases[i].diagonal;
        a.alibi_form = (attn_alibi_form)cases[i].form;
        a.causal = cases[i].causal;
        assert_int_equal(attn_sdpa_forward(NULL, &a, &err), ATTN_ERR_ARGUMENT);
        assert_string_equal(err.argument, cases[i].argument);
        assert_number(out[0], ==, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_a_mask),
        cmocka_unit_test(pictures),
        cmocka_unit_test(forms_are_one_when_causal),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
