/* Gradients of packed sequences and of unequal key lengths are right on several threads.
 *
 * labels: threads slow
 *
 * In 0.1.0, one sequence or key/value head could add to totals of dq that another one was still
 * using. Each problem has more than one tile of queries and more than one chunk of keys in at least
 * one sequence. The bits of every gradient must be those of one thread, and dq of one thread must
 * be the reference's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "ref/attn_ref.h"
#include "support/test.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(EMULATED)
#define REPEATS 2
#else
#define REPEATS 8
#endif

enum { MOST_SEQUENCES = 6 };

typedef struct problem {
    const char *name;
    int64_t B, H, Hk, T, S, D;
    attn_causal causal;
    int64_t lengths[3];             /* of keys; all 0: T and S are packed */
    int64_t cu[MOST_SEQUENCES + 1]; /* of queries and keys alike */
    int64_t sequences;              /* 0: not packed */
    bool row_mask;                  /* a float mask [B,1,T,1], whose gradient is a sum over keys */
} problem;

static const problem problems[] = {
    {.name = "packed 4 x 300, Hk=2",
     .B = 1,
     .H = 2,
     .Hk = 2,
     .T = 1200,
     .S = 1200,
     .D = 16,
     .cu = {0, 300, 600, 900, 1200},
     .sequences = 4},
    {.name = "packed 4 x 300, Hk=1, H=2",
     .B = 1,
     .H = 2,
     .Hk = 1,
     .T = 1200,
     .S = 1200,
     .D = 16,
     .cu = {0, 300, 600, 900, 1200},
     .sequences = 4},
    {.name = "packed 4 x 512, H=4, causal",
     .B = 1,
     .H = 4,
     .Hk = 4,
     .T = 2048,
     .S = 2048,
     .D = 8,
     .causal = ATTN_CAUSAL_TOP_LEFT,
     .cu = {0, 512, 1024, 1536, 2048},
     .sequences = 4},
    {.name = "packed, long and short in turn, a mask's gradient",
     .B = 2,
     .H = 3,
     .Hk = 3,
     .T = 1500,
     .S = 1500,
     .D = 8,
     .cu = {0, 520, 530, 1100, 1101, 1101, 1400},
     .sequences = 6,
     .row_mask = true},
    {.name = "key lengths 520, 20, 520, Hk=2",
     .B = 3,
     .H = 2,
     .Hk = 2,
     .T = 520,
     .S = 520,
     .D = 16,
     .lengths = {520, 20, 520}},
    {.name = "key lengths 600, 1, 700, Hk=1, bottom right",
     .B = 3,
     .H = 2,
     .Hk = 1,
     .T = 700,
     .S = 700,
     .D = 8,
     .causal = ATTN_CAUSAL_BOTTOM_RIGHT,
     .lengths = {600, 1, 700},
     .row_mask = true},
};
#define PROBLEMS (sizeof problems / sizeof *problems)

/* Inputs, and one set of outputs. */
typedef struct call {
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    attn_tensor lse, mask, dmask;
    float *out, *d[3], *drows;
    int64_t n[3], rows;
} call;

static float *random_floats(int64_t n, uint32_t seed)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    attn_rng rng;
    attn_rng_seed(&rng, seed);
    attn_rng_randn(&rng, x, (size_t)n);
    return x;
}

static void make(call *c, const problem *p)
{
    memset(c, 0, sizeof *c);
    attn_sdpa_args *a = &c->args;
    attn_sdpa_args_init(a);
    c->n[0] = p->B * p->H * p->T * p->D;
    c->n[1] = c->n[2] = p->B * p->Hk * p->S * p->D;
    c->rows = p->B * p->H * p->T;
    a->q = attn_bhtd(random_floats(c->n[0], 1), ATTN_F32, p->B, p->H, p->T, p->D);
    a->k = attn_bhtd(random_floats(c->n[1], 2), ATTN_F32, p->B, p->Hk, p->S, p->D);
    a->v = attn_bhtd(random_floats(c->n[2], 3), ATTN_F32, p->B, p->Hk, p->S, p->D);
    c->out = random_floats(c->n[0], 4);
    a->out = attn_bhtd(c->out, ATTN_F32, p->B, p->H, p->T, p->D);
    c->lse = attn_bhtd(calloc((size_t)c->rows, sizeof(double)), ATTN_F64, p->B, p->H, p->T, 1);
    a->lse = &c->lse;
    a->causal = p->causal;
    a->key_lengths = p->sequences ? NULL : p->lengths;
    a->cu_seqlens_q = a->cu_seqlens_k = p->sequences ? p->cu : NULL;
    a->sequences = p->sequences;
    attn_sdpa_grads *g = &c->grads;
    attn_sdpa_grads_init(g);
    g->dout = attn_bhtd(random_floats(c->n[0], 5), ATTN_F32, p->B, p->H, p->T, p->D);
    for (int i = 0; i < 3; i++)
        c->d[i] = random_floats(c->n[i], 6);
    g->dq = attn_bhtd(c->d[0], ATTN_F32, p->B, p->H, p->T, p->D);
    g->dk = attn_bhtd(c->d[1], ATTN_F32, p->B, p->Hk, p->S, p->D);
    g->dv = attn_bhtd(c->d[2], ATTN_F32, p->B, p->Hk, p->S, p->D);
    c->drows = random_floats(p->B * p->T, 7);
    if (p->row_mask) {
        c->mask = attn_bhtd(random_floats(p->B * p->T, 8), ATTN_F32, p->B, 1, p->T, 1);
        c->dmask = attn_bhtd(c->drows, ATTN_F32, p->B, 1, p->T, 1);
        a->mask = &c->mask;
        g->dmask = &c->dmask;
    }
}

static void forget_call(call *c)
{
    void *memory[] = {c->args.q.data, c->args.k.data, c->args.v.data,    c->out,
                      c->lse.data,    c->d[0],        c->d[1],           c->d[2],
                      c->drows,       c->mask.data,   c->grads.dout.data};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
}

static void run(call *c, attn_context *ctx)
{
    attn_error err;
    if (attn_sdpa_backward(ctx, &c->args, &c->grads, &err) != ATTN_OK)
        fail_msg("%s", err.message);
}

/* |x - want|^2 / |want|^2 */
static double squared_error(const float *x, const double *want, int64_t n)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
        size += want[i] * want[i];
    }
    return error / size;
}

static void expect_reference(const problem *p, const call *c)
{
    double *x[3], *error[3];
    for (int i = 0; i < 3; i++) {
        x[i] = calloc((size_t)c->n[i], sizeof(double));
        error[i] = calloc((size_t)c->n[i], sizeof(double));
    }
    ref_grads want = {.dq = {x[0], error[0]}, .dk = {x[1], error[1]}, .dv = {x[2], error[2]}};
    want.unit = 0x1p-24;
    assert_true(ref_sdpa_backward(&c->args, &c->grads, &want));
    for (int i = 0; i < 3; i++) {
        const double off = squared_error(c->d[i], x[i], c->n[i]);
        if (!(off < 1e-11))
            fail_msg("%s: gradient %d has a relative squared error of %g, limit 1e-11", p->name, i,
                     off);
        free(x[i]);
        free(error[i]);
    }
}

static void expect_same(const problem *p, const call *got, const call *want, int threads)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    for (int i = 0; i < 3; i++) {
        describe_case("%s: %s on %d threads and on one", p->name, names[i], threads);
        assert_same_array(got->d[i], want->d[i], (size_t)want->n[i] * sizeof(float));
    }
    describe_case("%s: dmask on %d threads and on one", p->name, threads);
    assert_same_array(got->drows, want->drows, (size_t)(p->B * p->T) * sizeof(float));
}

static void expect_same_on_threads(const problem *p, const char *isa, int threads, const call *want)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    options.isa = isa;
    attn_context *ctx;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    call c;
    make(&c, p);
    memcpy(c.out, want->out, (size_t)want->n[0] * sizeof(float));
    memcpy(c.lse.data, want->lse.data, (size_t)want->rows * sizeof(double));
    for (int r = 0; r < REPEATS; r++) {
        memset(c.d[0], 0xFF, (size_t)c.n[0] * sizeof(float));
        run(&c, ctx);
        expect_same(p, &c, want, threads);
    }
    forget_call(&c);
    attn_context_destroy(ctx);
}

static void test_any_number_of_threads(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 8, 16};
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (size_t n = 0; n < PROBLEMS && attn_isa(isa).usable; n++) {
            describe_case("%s, %s", attn_isa(isa).name, problems[n].name);
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            options.threads = 1;
            options.isa = attn_isa(isa).name;
            attn_context *one;
            assert_int_equal(attn_context_create(&options, &one, NULL), ATTN_OK);
            call want;
            make(&want, &problems[n]);
            assert_int_equal(attn_sdpa_forward(one, &want.args, NULL), ATTN_OK);
            run(&want, one);
            if (isa == 0)
                expect_reference(&problems[n], &want);
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
                expect_same_on_threads(&problems[n], options.isa, threads[t], &want);
            forget_call(&want);
            attn_context_destroy(one);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_number_of_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
