/* Many packed sequences: the bits of each sequence alone, and time in proportion to their number.
 *
 * labels: threads
 *
 * A worker finds the sequence of its next task beside that of its last one
 * (docs/decisions/0028). */
#include "grad/backward.h"
#include "sdpa/sdpa.h"
#include "support/test.h"

enum { B = 2, H = 4, HK = 2, D = 24, SEQUENCES = 200, LONGEST = 150 };

/* The tensors of one call, all [B,H,rows,D] or [B,HK,rows,D], with the lengths of its sequences. */
typedef struct packed {
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    attn_sdpa_tangents tangents;
    attn_tensor lse;
    int64_t cu_q[SEQUENCES + 1], cu_k[SEQUENCES + 1];
    void *memory[16];
    int count;
} packed;

/* Random numbers; as bf16, the upper halves of them. */
static attn_tensor random_tensor(packed *p, attn_dtype dtype, int64_t heads, int64_t rows,
                                 int64_t columns)
{
    const size_t n = (size_t)(B * heads * rows * columns);
    float *x = malloc((n + 1) * sizeof(double));
    assert_non_null(x);
    attn_rng rng;
    attn_rng_seed(&rng, (uint64_t)p->count + 1);
    attn_rng_randn(&rng, x, n);
    for (size_t i = 0; i < n && dtype == ATTN_BF16; i++)
        memcpy((char *)x + 2 * i, (char *)(x + i) + 2, 2);
    p->memory[p->count++] = x;
    return attn_bhtd(x, dtype, B, heads, rows, columns);
}

/* Mostly short sequences, every seventh without queries or without keys, and a few that are longer
 * than a tile of queries and, in the longest, than a chunk of keys. Some rows belong to none. */
static void choose_lengths(packed *p)
{
    p->cu_q[0] = p->cu_k[0] = 0;
    for (int n = 0; n < SEQUENCES; n++) {
        int64_t T = 1 + n % 13, S = 1 + n % 17;
        if (n % 50 == 49)
            T = LONGEST, S = n == 99 ? 300 : LONGEST;
        p->cu_q[n + 1] = p->cu_q[n] + (n % 7 == 3 || n % 20 < 3 ? 0 : T);
        p->cu_k[n + 1] = p->cu_k[n] + (n % 7 == 5 || n % 20 < 2 ? 0 : S);
    }
}

static void make(packed *p, attn_dtype dtype)
{
    memset(p, 0, sizeof *p);
    choose_lengths(p);
    const int64_t T = p->cu_q[SEQUENCES] + 5, S = p->cu_k[SEQUENCES] + 3;
    attn_sdpa_args *a = &p->args;
    attn_sdpa_args_init(a);
    a->q = random_tensor(p, dtype, H, T, D);
    a->k = random_tensor(p, dtype, HK, S, D);
    a->v = random_tensor(p, dtype, HK, S, D);
    a->out = random_tensor(p, dtype, H, T, D);
    p->lse = random_tensor(p, ATTN_F32, H, T, 1);
    a->lse = &p->lse;
    a->causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    a->cu_seqlens_q = p->cu_q, a->cu_seqlens_k = p->cu_k, a->sequences = SEQUENCES;
    attn_sdpa_grads *g = &p->grads;
    attn_sdpa_grads_init(g);
    g->dout = random_tensor(p, dtype, H, T, D);
    g->dq = random_tensor(p, dtype, H, T, D);
    g->dk = random_tensor(p, dtype, HK, S, D);
    g->dv = random_tensor(p, dtype, HK, S, D);
    attn_sdpa_tangents *t = &p->tangents;
    attn_sdpa_tangents_init(t);
    t->tq = random_tensor(p, dtype, H, T, D);
    t->tk = random_tensor(p, dtype, HK, S, D);
    t->tv = random_tensor(p, dtype, HK, S, D);
    t->tout = random_tensor(p, dtype, H, T, D);
}

static void forget(packed *p)
{
    for (int i = 0; i < p->count; i++)
        free(p->memory[i]);
}

static void run(attn_context *ctx, const attn_sdpa_args *args, const attn_sdpa_grads *grads,
                const attn_sdpa_tangents *tangents)
{
    attn_error err = {0};
    if (attn_sdpa_forward(ctx, args, &err) || attn_sdpa_backward(ctx, args, grads, &err) ||
        attn_sdpa_jvp(ctx, args, tangents, &err))
        fail_msg("%s", err.message);
}

/* Rows from .. to-1 of t. */
static attn_tensor rows_of(attn_tensor t, int64_t from, int64_t to)
{
    t.data = (char *)t.data + from * t.stride[2] * (int64_t)attn_dtype_size(t.dtype);
    t.shape[2] = to - from;
    return t;
}

static attn_context *context(const char *isa, int threads)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.isa = isa;
    options.threads = threads;
    attn_context *ctx;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    return ctx;
}

/* Runs each sequence of p as a call of its own. */
static void run_alone(attn_context *ctx, const packed *p)
{
    for (int n = 0; n < SEQUENCES; n++) {
        const int64_t q0 = p->cu_q[n], q1 = p->cu_q[n + 1], k0 = p->cu_k[n], k1 = p->cu_k[n + 1];
        attn_sdpa_args a = p->args;
        attn_sdpa_grads g = p->grads;
        attn_sdpa_tangents t = p->tangents;
        attn_tensor lse = rows_of(p->lse, q0, q1);
        attn_tensor *of_queries[] = {&a.q, &a.out, &g.dout, &g.dq, &t.tq, &t.tout};
        attn_tensor *of_keys[] = {&a.k, &a.v, &g.dk, &g.dv, &t.tk, &t.tv};
        for (int i = 0; i < 6; i++) {
            *of_queries[i] = rows_of(*of_queries[i], q0, q1);
            *of_keys[i] = rows_of(*of_keys[i], k0, k1);
        }
        a.lse = &lse;
        a.cu_seqlens_q = a.cu_seqlens_k = NULL, a.sequences = 0;
        run(ctx, &a, &g, &t);
    }
}

static void expect_same_rows(const attn_tensor *got, const attn_tensor *want, int64_t rows)
{
    const size_t bytes = (size_t)(rows * got->shape[3]) * attn_dtype_size(got->dtype);
    for (int64_t b = 0; b < got->shape[0]; b++)
        for (int64_t h = 0; h < got->shape[1]; h++) {
            const int64_t at = b * got->stride[0] + h * got->stride[1];
            const int64_t offset = at * (int64_t)attn_dtype_size(got->dtype);
            assert_same_array((char *)got->data + offset, (char *)want->data + offset, bytes);
        }
}

static void expect_same(const packed *got, const packed *want)
{
    const int64_t T = got->cu_q[SEQUENCES], S = got->cu_k[SEQUENCES];
    expect_same_rows(&got->args.out, &want->args.out, T);
    expect_same_rows(&got->lse, &want->lse, T);
    expect_same_rows(&got->grads.dq, &want->grads.dq, T);
    expect_same_rows(&got->grads.dk, &want->grads.dk, S);
    expect_same_rows(&got->grads.dv, &want->grads.dv, S);
    expect_same_rows(&got->tangents.tout, &want->tangents.tout, T);
}

static void each_has_the_bits_that_it_has_alone(void **state)
{
    (void)state;
    for (int i = 0; attn_isa(i).name; i++)
        for (int bf16 = 0; bf16 < 2 && attn_isa(i).usable; bf16++) {
            const attn_dtype dtype = bf16 ? ATTN_BF16 : ATTN_F32;
            packed want;
            make(&want, dtype);
            attn_context *one = context(attn_isa(i).name, 1);
            run_alone(one, &want);
            attn_context_destroy(one);
            for (int threads = 1; threads <= 3; threads++) {
                describe_case("%s, %s, %d threads", attn_isa(i).name, bf16 ? "bf16" : "f32",
                              threads);
                packed got;
                make(&got, dtype);
                attn_context *ctx = context(attn_isa(i).name, threads);
                run(ctx, &got.args, &got.grads, &got.tangents);
                attn_context_destroy(ctx);
                expect_same(&got, &want);
                forget(&got);
            }
            forget(&want);
        }
}

/* Finding a task reads the lengths of a sequence and of its neighbours, and no others: all others
 * are not those of the call while it is found. So the time does not grow with their number. */
enum { POISON = -1000000 };

static void poison_all_but(int64_t *starts, const int64_t *true_starts, int64_t from, int64_t to)
{
    for (int64_t n = 0; n <= SEQUENCES; n++)
        starts[n] = n < from || n > to ? POISON : true_starts[n];
}

static void a_task_is_found_beside_the_last_one(void **state)
{
    (void)state;
    int64_t starts[SEQUENCES + 1], true_starts[SEQUENCES + 1];
    packed p;
    make(&p, ATTN_F32);
    for (int n = 0; n <= SEQUENCES; n++)
        true_starts[n] = n;
    p.args.cu_seqlens_q = p.args.cu_seqlens_k = starts, p.args.sequences = SEQUENCES;
    memcpy(starts, true_starts, sizeof starts);
    attni_plan plan;
    assert_int_equal(attni_sdpa_prepare(&plan, NULL, &p.args, NULL), ATTN_OK);
    attni_cursor cursor = attni_last_sequence(&plan);
    for (int64_t number = 0; number < plan.tasks; number++) {
        const int64_t in_head = number % plan.tasks_per_head;
        if (in_head == 0) /* the last task of one head, the first of the next */
            poison_all_but(starts, true_starts, 0, SEQUENCES);
        else
            poison_all_but(starts, true_starts, cursor.n - 1, cursor.n + 1);
        describe_case("forward, task %" PRId64, number);
        attni_task task;
        attni_find_task(&plan, number, &cursor, &task);
        const int64_t of_rest = plan.tasks_per_head - SEQUENCES;
        if (in_head >= of_rest)
            assert_int_equal(task.sequence.i_base, SEQUENCES - 1 - (in_head - of_rest));
    }
    memcpy(starts, true_starts, sizeof starts);
    attni_backward bw;
    assert_int_equal(attni_backward_prepare(&bw, NULL, &p.args, &p.grads, NULL), ATTN_OK);
    attni_grad_cursor at = {0};
    for (int64_t task = 0; task < 2 * SEQUENCES; task++) {
        const int64_t n = task % SEQUENCES;
        poison_all_but(starts, true_starts, n ? n - 1 : 0, n + 1);
        describe_case("backward, task %" PRId64, task);
        attni_backward_move(&bw, &at, n);
        assert_int_equal(at.n, n);
    }
    forget(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_has_the_bits_that_it_has_alone),
        cmocka_unit_test(a_task_is_found_beside_the_last_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
