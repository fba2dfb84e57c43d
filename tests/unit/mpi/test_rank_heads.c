/* Attention over ranks that share the heads: the bits of one call, the bytes sent, refusals. */
/* labels: threads slow */
#include <pthread.h>

#include "support/counted_memory.h"
#include "support/rank_gradients.h"
#include "support/rank_call.h"

enum { DELAY_US = 50 };

static struct worker {
    rank_gradients x;
    attn_comm comm;
    attn_context *ctx;
    bool backward;
    attn_status status;
    attn_error err;
} workers[MOST];

static void *run_worker(void *arg)
{
    struct worker *w = arg;
    const rank_part *p = &w->x.part;
    w->status =
        w->backward
            ? attn_mpi_sdpa_backward(&w->comm, w->ctx, &p->args, &w->x.grads, &p->options, &w->err)
            : attn_mpi_sdpa_forward(&w->comm, w->ctx, &p->args, &p->options, &w->err);
    return NULL;
}

static void run_workers(int P)
{
    pthread_t threads[MOST];
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_worker, &workers[r]), 0);
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

/* Bytes that a rank receives for one tensor of the whole call: rows of its heads from other ranks
 * or, for a result, its rows of their heads. */
static int64_t bytes_of(const attn_tensor *whole, int64_t Hk, int rank, int P, bool result)
{
    const int64_t *n = whole->shape;
    int64_t count = 0;
    for (int64_t h = 0; h < n[1]; h++)
        for (int64_t i = 0; i < n[2]; i++) {
            /* the first Hk % P ranks have one head more */
            const int64_t more = Hk % P, each = Hk / P, kv = h / (n[1] / Hk);
            const int64_t owner =
                kv < more * (each + 1) ? kv / (each + 1) : more + (kv - more * (each + 1)) / each;
            const int64_t computes = owner, has = i / 64 % P;
            count += result ? has == rank && computes != rank : computes == rank && has != rank;
        }
    return count * n[0] * n[3] * (int64_t)attn_dtype_size(whole->dtype);
}

static int64_t bytes_of_forward(const attn_sdpa_args *a, int rank, int P)
{
    const int64_t Hk = a->k.shape[1];
    int64_t n = bytes_of(&a->q, Hk, rank, P, false) + bytes_of(&a->k, Hk, rank, P, false) +
                bytes_of(&a->v, Hk, rank, P, false) + bytes_of(&a->out, Hk, rank, P, true);
    return n + (a->lse ? bytes_of(a->lse, Hk, rank, P, true) : 0);
}

static int problems, on_several, with_bytes;
static bool backward;

/* The call on P ranks. */
static void check_ranks(check_case *c, const check_gradients *g, int P)
{
    attn_ranks *own;
    assert_int_equal(attn_ranks_create(P, check_chance(c, 30) ? DELAY_US : 0, c->seed, &own, NULL),
                     ATTN_OK);
    for (int r = 0; r < P; r++) {
        struct worker *w = &workers[r];
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.threads = 1 + (r == 1), options.isa = attn_isa(c->isa).name;
        assert_int_equal(attn_context_create(&options, &w->ctx, NULL), ATTN_OK);
        w->backward = backward;
        if (backward)
            rank_gradients_new(c, g, r, P, &w->x);
        else
            rank_part_new(c, &g->call, r, P, &w->x.part);
        rank_part_by_heads(&w->x.part);
        attn_ranks_comm(own, r, &w->comm);
    }
    run_workers(P);
    for (int r = 0; r < P; r++) {
        struct worker *w = &workers[r];
        const attn_sdpa_args *a = &g->call.args;
        attn_context_destroy(w->ctx);
        if (w->status != ATTN_OK)
            check_fail(c, "rank %d of %d: %s: %s", r, P, attn_status_name(w->status),
                       w->err.message);
        else if (backward)
            rank_gradients_compare_all(c, g, &w->x, r, P);
        else
            rank_part_compare(c, &g->call, &w->x.part, r, P);
        if (w->status == ATTN_OK && !backward && !a->mask && check_count(&a->k) > 0) {
            const int64_t want = bytes_of_forward(a, r, P), got = w->x.part.report.received_bytes;
            with_bytes += P > 1;
            if (got != want)
                check_fail(c, "rank %d of %d received %" PRId64 " bytes, want %" PRId64, r, P, got,
                           want);
        }
    }
    attn_ranks_destroy(own);
}

/* On each number of ranks that has a head for each. */
static void check_problem(check_case *c)
{
    static check_gradients g;
    attn_error err;
    g = (check_gradients){0};
    if (backward)
        (void)rank_gradients_draw(c, &g, false);
    else
        rank_problem_draw(c, &g.call);
    if (!backward && attn_sdpa_forward(check_context(c, 1), &g.call.args, &err) != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    const int64_t Hk = g.call.args.k.shape[1];
    for (int P = 1; P <= MOST && P <= (Hk ? Hk : 1) && !c->failed; P++) {
        check_ranks(c, &g, P);
        on_several += P > 1;
    }
    check_expect_intact(c);
    problems++;
}

/* ATTN_RANK_PROBLEMS=500 in the environment: so many, instead of 200 and 100. */
static void run_problems(uint64_t seed, int count)
{
    const char *given = getenv("ATTN_RANK_PROBLEMS");
    count = given ? atoi(given) : getenv("ATTN_SANITIZED") ? count / 4 : count;
    check_run_state all_runs = {.out = stdout, .buffers = check_buffers_create()};
    assert_non_null(all_runs.buffers);
    problems = on_several = with_bytes = 0;
    for (int n = 0; n < count; n++)
        check_one(&all_runs, "by heads", check_problem, rank_isa(n), 64, 0, seed + (uint64_t)n,
                  NULL);
    check_contexts_destroy(&all_runs);
    check_buffers_destroy(all_runs.buffers);
    printf("%d problems, %d calls on two or more ranks; bytes of %d ranks compared\n", problems,
           on_several, with_bytes);
    assert_int_equal(all_runs.failed, 0);
    assert_int_equal(problems, count);
    assert_number(on_several, >, count / 20);
}

static void test_forward(void **state)
{
    (void)state;
    backward = false;
    run_problems(9000, 200);
    assert_number(with_bytes, >, 0);
}

static void test_backward(void **state)
{
    (void)state;
    backward = true;
    run_problems(9500, 100);
}

/* A call with eleven heads of k, twice as many of q, and rules that differ from head to head. */
enum { MANY = 11, LONG = 300, WIDTH = 4, Q = 2 * 2 * MANY * LONG, K = Q / 2 };

typedef struct many_heads {
    float q[Q * WIDTH], k[K * WIDTH], v[K * WIDTH], out[Q * WIDTH], lse[Q], dout[Q * WIDTH];
    float dq[Q * WIDTH], dk[K * WIDTH], dv[K * WIDTH], mask[Q / 2 * LONG];
    double dslopes[2 * MANY], dsinks[2 * MANY];
    attn_tensor lse_tensor, mask_tensor;
} many_heads;

static void set_up(many_heads *m, int64_t n, attn_sdpa_args *a, attn_sdpa_grads *g)
{
    static float slopes[2 * MANY], sinks[2 * MANY];
    for (int h = 0; h < 2 * MANY; h++)
        slopes[h] = (float)h / 64, sinks[h] = (float)(h % 5) - 2;
    a->q = attn_bhtd(m->q, ATTN_F32, 2, 2 * MANY, n, WIDTH);
    a->k = attn_bhtd(m->k, ATTN_F32, 2, MANY, n, WIDTH);
    a->v = attn_bhtd(m->v, ATTN_F32, 2, MANY, n, WIDTH);
    a->out = attn_bhtd(m->out, ATTN_F32, 2, 2 * MANY, n, WIDTH);
    m->lse_tensor = attn_bhtd(m->lse, ATTN_F32, 2, 2 * MANY, n, 1);
    m->mask_tensor = attn_bhtd(m->mask, ATTN_F32, 1, 2 * MANY, n, LONG);
    a->lse = &m->lse_tensor, a->mask = &m->mask_tensor;
    a->causal = ATTN_CAUSAL_TOP_LEFT;
    a->alibi_slopes = slopes, a->sink_logits = sinks;
    a->dropout = 0.2, a->dropout_seed = 7;
    g->dout = attn_bhtd(m->dout, ATTN_F32, 2, 2 * MANY, n, WIDTH);
    g->dq = attn_bhtd(m->dq, ATTN_F32, 2, 2 * MANY, n, WIDTH);
    g->dk = attn_bhtd(m->dk, ATTN_F32, 2, MANY, n, WIDTH);
    g->dv = attn_bhtd(m->dv, ATTN_F32, 2, MANY, n, WIDTH);
    g->dalibi_slopes = m->dslopes, g->dsink_logits = m->dsinks;
}

static void run_many(int P, const many_heads *one, many_heads *part, many_heads *got, bool grads)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    *got = *one;
    set_up(got, LONG, &a, &g);
    const attn_tensor whole[] = {a.q, a.k, a.v, *a.mask, a.out, *a.lse, g.dout, g.dq, g.dk, g.dv};
    for (int r = 0; r < P; r++) {
        struct worker *w = &workers[r];
        w->x.part.args = (attn_sdpa_args)ATTN_SDPA_ARGS_INIT;
        w->x.grads = (attn_sdpa_grads)ATTN_SDPA_GRADS_INIT;
        set_up(&part[r], attn_mpi_rows(LONG, r, P), &w->x.part.args, &w->x.grads);
        memset(part[r].dslopes, 0xA5, sizeof part[r].dslopes);
        memset(part[r].dsinks, 0xA5, sizeof part[r].dsinks);
        attn_sdpa_args *x = &w->x.part.args;
        const attn_tensor *local[] = {&x->q,   &x->k,  &x->v,           x->mask,
                                      &x->out, x->lse, &w->x.grads.dout};
        for (int i = 0; i < (grads ? 7 : 4); i++) /* the backward reads out and lse, too */
            assert_int_equal(attn_mpi_take(&whole[i], r, P, local[i], NULL), ATTN_OK);
        w->x.part.options = (attn_mpi_options)ATTN_MPI_OPTIONS_INIT;
        w->x.part.options.T = w->x.part.options.S = LONG;
        w->x.part.options.mode = ATTN_MPI_HEADS;
        attn_ranks_comm(ranks, r, &w->comm);
        w->ctx = NULL, w->backward = grads;
        assert_int_equal(attn_context_create(NULL, &w->ctx, NULL), ATTN_OK);
    }
    run_workers(P);
    for (int i = grads ? 7 : 4; i < (grads ? 10 : 6); i++)
        memset(whole[i].data, 0xA5, (size_t)(whole[i].shape[1] * whole[i].shape[3]) * 2 * LONG * 4);
    for (int r = 0; r < P; r++) {
        const struct worker *w = &workers[r];
        const attn_tensor *from[] = {&w->x.part.args.out, w->x.part.args.lse, &w->x.grads.dq,
                                     &w->x.grads.dk, &w->x.grads.dv};
        if (w->status != ATTN_OK)
            fail_msg("rank %d: %s", r, w->err.message);
        for (int i = grads ? 2 : 0; i < (grads ? 5 : 2); i++)
            assert_int_equal(attn_mpi_put(from[i], r, P, &whole[i < 2 ? i + 4 : i + 5], NULL),
                             ATTN_OK);
        attn_context_destroy(w->ctx);
    }
}

static void test_many_heads(void **state)
{
    (void)state;
    static many_heads one, got, part[MOST];
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    float *const numbers[] = {one.q, one.k, one.v, one.dout};
    for (int x = 0; x < 4; x++)
        for (int i = 0; i < (x == 0 || x == 3 ? Q : K) * WIDTH; i++)
            numbers[x][i] = (float)((i + x) * 7919 % 1009) / 504 - 1;
    for (int i = 0; i < Q / 2 * LONG; i++)
        one.mask[i] = i % 7 == 0 ? -INFINITY : (float)(i % 13) / 8;
    set_up(&one, LONG, &a, &g);
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_backward(NULL, &a, &g, NULL), ATTN_OK);
    for (int P = 1; P <= MOST; P++) {
        describe_case("%d ranks", P);
        assert_int_equal(attn_ranks_create(P, 0, 5, &ranks, NULL), ATTN_OK);
        run_many(P, &one, part, &got, false);
        assert_same_array(got.out, one.out, sizeof one.out);
        assert_same_array(got.lse, one.lse, sizeof one.lse);
        run_many(P, &one, part, &got, true);
        assert_same_array(got.dq, one.dq, sizeof one.dq);
        assert_same_array(got.dk, one.dk, sizeof one.dk);
        assert_same_array(got.dv, one.dv, sizeof one.dv);
        for (int r = 0; r < P; r++) {
            assert_same_array(part[r].dslopes, one.dslopes, sizeof one.dslopes);
            assert_same_array(part[r].dsinks, one.dsinks, sizeof one.dsinks);
        }
        attn_ranks_destroy(ranks);
    }
}

/* Several messages for each head, of `message_rows` rows. */
static void many_messages(int64_t rows, int64_t width, int64_t message_rows)
{
    enum { RANKS = 2 };
    const size_t size = (size_t)(RANKS * rows * width);
    static float *own[RANKS][2], *whole, *want;
    assert_int_equal(attn_ranks_create(RANKS, 0, 5, &ranks, NULL), ATTN_OK);
    assert_non_null(whole = malloc(size * sizeof *whole));
    assert_non_null(want = calloc(size, sizeof *want));
    for (size_t i = 0; i < size; i++)
        whole[i] = (float)(i * 7919 % 1009) / 1009;
    const attn_tensor all_rows = attn_bhtd(whole, ATTN_F32, 1, RANKS, rows, width);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = a.k = a.v = all_rows;
    a.out = attn_bhtd(want, ATTN_F32, 1, RANKS, rows, width);
    a.window_left = a.window_right = 3;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    for (int r = 0; r < RANKS; r++) {
        rank_part *p = &workers[r].x.part;
        const int64_t n = attn_mpi_rows(rows, r, RANKS);
        for (int i = 0; i < 2; i++)
            assert_non_null(own[r][i] = calloc((size_t)(RANKS * n * width), sizeof **own[r]));
        attn_ranks_comm(ranks, r, &workers[r].comm);
        workers[r].ctx = NULL, workers[r].backward = false;
        p->args = a;
        p->args.q = p->args.k = p->args.v = attn_bhtd(own[r][0], ATTN_F32, 1, RANKS, n, width);
        p->args.out = attn_bhtd(own[r][1], ATTN_F32, 1, RANKS, n, width);
        p->options = (attn_mpi_options)ATTN_MPI_OPTIONS_INIT;
        p->options.T = p->options.S = rows, p->options.mode = ATTN_MPI_HEADS;
        p->options.report = &p->report;
        assert_int_equal(attn_mpi_take(&all_rows, r, RANKS, &p->args.q, NULL), ATTN_OK);
    }
    run_workers(RANKS);
    for (int r = 0; r < RANKS; r++) {
        const rank_part *p = &workers[r].x.part;
        assert_int_equal(workers[r].status, ATTN_OK);
        assert_int_equal(attn_mpi_put(&p->args.out, r, RANKS, &all_rows, NULL), ATTN_OK);
        assert_int_equal(p->report.buffer_bytes, (4 * rows + 2 * RANKS * message_rows) * width * 4);
        free(own[r][0]), free(own[r][1]);
    }
    assert_same_array(whole, want, size * sizeof *want);
    free(whole), free(want);
    attn_ranks_destroy(ranks);
}

static void test_many_messages(void **state)
{
    (void)state;
    many_messages(400, 8192, 128);
    many_messages(200, 20000, 52); /* less than a block of 64 rows */
}

/* A call without heads, and one without query heads. */
static void test_no_heads(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        describe_case("%d heads of k", n);
        assert_int_equal(attn_ranks_create(1, 0, 5, &ranks, NULL), ATTN_OK);
        rank_part *p = &workers[0].x.part;
        static float one_row[TOKENS * D];
        p->args = (attn_sdpa_args)ATTN_SDPA_ARGS_INIT;
        p->args.q = p->args.out = attn_bhtd(NULL, ATTN_F32, B, 0, TOKENS, D);
        p->args.k = p->args.v = attn_bhtd(n ? one_row : NULL, ATTN_F32, B, n, TOKENS, D);
        p->options = (attn_mpi_options)ATTN_MPI_OPTIONS_INIT;
        p->options.T = p->options.S = TOKENS, p->options.mode = ATTN_MPI_HEADS;
        attn_ranks_comm(ranks, 0, &workers[0].comm);
        workers[0].ctx = NULL, workers[0].backward = false;
        run_workers(1);
        if (workers[0].status != ATTN_OK)
            fail_msg("%s", workers[0].err.message);
        attn_ranks_destroy(ranks);
    }
}

/* ------------------------------------------------------------------------------------- errors */

static void prepare_heads(int P)
{
    prepare(P, 0);
    for (int r = 0; r < P; r++)
        all[r].options.mode = ATTN_MPI_HEADS, all[r].options.segment_keys = 0;
}

/* All ranks return this error. */
static void expect_refusal(int P, const char *says)
{
    run(P);
    for (int r = 0; r < P; r++) {
        if (all[r].status != ATTN_ERR_ARGUMENT || !strstr(all[r].err.message, says) ||
            strchr(all[r].err.message, '\n'))
            fail_msg("rank %d: %s: \"%s\", want \"%s\"", r, attn_status_name(all[r].status),
                     all[r].err.message, says);
        assert_true(is_blank(all[r].out, sizeof all[r].out));
    }
    end(P);
}

static void test_refusals(void **state)
{
    (void)state;
    static const attn_mpi_checkpoint none = ATTN_MPI_CHECKPOINT_INIT;
    prepare_heads(2);
    expect_refusal(2, "k has 1 heads for 2 ranks; this mode needs a head of k for each rank");
    prepare_heads(1);
    all[0].options.segment_keys = 256;
    expect_refusal(1, "mode is ATTN_MPI_HEADS, which has no segment_keys; it must be 0");
    prepare_heads(1);
    all[0].options.checkpoint = &none;
    expect_refusal(1, "mode is ATTN_MPI_HEADS, which has no checkpoint; it must be NULL");
    prepare_heads(1);
    all[0].options.mode = (attn_mpi_mode)2;
    expect_refusal(1, "mode is 2; it must be ATTN_MPI_SEGMENTS or ATTN_MPI_HEADS");
}

/* Two heads of k for two ranks. */
static void prepare_two(void)
{
    prepare_heads(2);
    for (int r = 0; r < 2; r++) {
        const int64_t n = attn_mpi_rows(TOKENS, r, 2);
        all[r].args.k = all[r].args.v = all[r].args.q;
        all[r].args.out = attn_bhtd(all[r].out, ATTN_F32, B, H, n, D);
    }
}

static void test_ranks_that_differ(void **state)
{
    (void)state;
    static float numbers[2 * TOKENS * TOKENS];
    prepare_two();
    all[1].options.mode = ATTN_MPI_SEGMENTS;
    expect_refusal(2, "rank 1 has another call than rank 0; they differ in function (forward or "
                      "backward) or mode");
    for (int n = 0; n < 2; n++) { /* heads or rows of the mask */
        prepare_two();
        for (int r = 0; r < 2; r++) {
            const int64_t rows = attn_mpi_rows(TOKENS, r, 2);
            all[r].mask = attn_bhtd(numbers, ATTN_F32, 1, n == 0 && r ? 2 : 1,
                                    n == 1 && r ? 1 : rows, TOKENS);
            all[r].args.mask = &all[r].mask;
        }
        run(2);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(all[r].status, ATTN_ERR_SHAPE);
            assert_non_null(strstr(all[r].err.message, "mask of rank 1 has another shape"));
            assert_true(is_blank(all[r].out, sizeof all[r].out));
        }
        end(2);
    }
}

/* A rank without memory, at each of its allocations, before and after the ranks have agreed. */
static void test_out_of_memory(void **state)
{
    (void)state;
    int failures = 0;
    for (int n = 0; n == failures; n++) {
        describe_case("%d allocations", n);
        prepare_two();
        counted_memory memory = {0};
        const attn_context_options options = counted_options(&memory, 1);
        assert_int_equal(attn_context_create(&options, &all[1].ctx, NULL), ATTN_OK);
        memory.fail_at = memory.calls + 1 + (size_t)n;
        run(2);
        failures += all[1].status != ATTN_OK;
        for (int r = 0; r < 2 && n < failures; r++) {
            assert_int_equal(all[r].status, ATTN_ERR_MEMORY);
            if (strncmp(all[r].err.message, "rank 1: ", 8) != 0)
                fail_msg("rank %d says \"%s\"", r, all[r].err.message);
            assert_true(is_blank(all[r].out, sizeof all[r].out));
        }
        end(2);
        assert_int_equal(memory.blocks, 0);
    }
    assert_number(failures, >=, 3); /* the state that is only checked, the state, its scratch */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),           cmocka_unit_test(test_backward),
        cmocka_unit_test(test_many_heads),        cmocka_unit_test(test_many_messages),
        cmocka_unit_test(test_no_heads),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ranks_that_differ), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
