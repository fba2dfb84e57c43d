/* Random calls that are saved on some ranks and resumed on others: the bits of one call. */
/* labels: threads */
#include "check/check_call.h"
#include "support/rank_problem.h"
#include "support/rank_store.h"
#include "support/test.h"

enum { MOST_RANKS = 8, DELAY_US = 50 };

static struct worker {
    rank_part part;
    rank_access access;
    attn_mpi_checkpoint checkpoint;
    attn_comm comm;
    attn_context *ctx;
    attn_status status;
    attn_error err;
} workers[MOST_RANKS];

static void *run_rank(void *arg)
{
    struct worker *w = arg;
    w->status = attn_mpi_sdpa_forward(&w->comm, w->ctx, &w->part.args, &w->part.options, &w->err);
    return NULL;
}

static attn_context *contexts[CHECK_MAX_ISAS][MOST_RANKS]; /* of one to three threads */

static attn_context *context_of(int isa, int rank)
{
    if (!contexts[isa][rank]) {
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.threads = 1 + rank % 3;
        options.isa = attn_isa(isa).name;
        assert_int_equal(attn_context_create(&options, &contexts[isa][rank], NULL), ATTN_OK);
    }
    return contexts[isa][rank];
}

static int problems, resumed, swept_again, kept_at_end;

/* The call on P ranks; segment_keys as `segments` says. */
static void check_ranks(check_case *c, const check_call *call, int P, int64_t segments,
                        rank_store *store, bool saves, bool resumes)
{
    pthread_t threads[MOST_RANKS];
    attn_ranks *ranks;
    assert_int_equal(attn_ranks_create(P, check_chance(c, 30) ? DELAY_US : 0, c->seed, &ranks,
                                       NULL),
                     ATTN_OK);
    store->ranks = P;
    for (int r = 0; r < P; r++) {
        struct worker *w = &workers[r];
        rank_part_new(c, call, r, P, &w->part);
        w->part.options.segment_keys = segments;
        w->access = (rank_access){.store = store};
        w->checkpoint = rank_store_checkpoint(&w->access, saves, resumes);
        w->part.options.checkpoint = &w->checkpoint;
        attn_ranks_comm(ranks, r, &w->comm);
        w->ctx = context_of(c->isa, (r + P) % MOST_RANKS); /* with other threads than before */
    }
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &workers[r]), 0);
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    for (int r = 0; r < P && !c->failed; r++) {
        const struct worker *w = &workers[r];
        if (w->status != ATTN_OK)
            check_fail(c, "rank %d of %d: %s: %s", r, P, attn_status_name(w->status),
                       w->err.message);
        else
            rank_part_compare(c, call, &w->part, r, P);
        swept_again += resumes && w->part.report.sweeps > 1;
    }
    if (store->wrong || store->aborts)
        check_fail(c, "%d ranks: a byte was not written once, or outside of open and close", P);
    attn_ranks_destroy(ranks);
}

/* Saves after each segment, keeps one of the checkpoints, and resumes from it. The first resumed
 * call saves as well, and the second begins with one of its checkpoints. */
static void check_problem(check_case *c)
{
    static check_call call;
    static const int sizes[] = {1, 2, 3, 4, 7, 8};
    static const int64_t segments[] = {256, 512, 0, 768};
    attn_error err;
    rank_store store;
    rank_problem_draw(c, &call);
    if (attn_sdpa_forward(check_context(c, 1), &call.args, &err) != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    rank_store_init(&store, 0, (int)check_between(c, 0, 5));
    const int64_t T = call.args.q.shape[2], S = call.args.k.shape[2];
    check_ranks(c, &call, CHECK_PICK(c, sizes), S < 4096 ? 256 : 512, &store, true, false);
    kept_at_end += store.commits <= store.keep;
    for (int n = 0; n < 2 && store.kept && !c->failed; n++) {
        store.commits = 0;
        store.keep = (int)check_between(c, 0, 1);
        check_ranks(c, &call, CHECK_PICK(c, sizes), CHECK_PICK(c, segments), &store, n == 0, true);
        resumed += T > 0;
    }
    rank_store_free(&store);
    check_expect_intact(c);
    problems++;
}

/* ATTN_RANK_PROBLEMS=500 in the environment: so many, instead of 100. */
static void test_problems(void **state)
{
    (void)state;
    const char *given = getenv("ATTN_RANK_PROBLEMS");
    const int count = given ? atoi(given) : getenv("ATTN_SANITIZED") ? 40 : 100;
    check_run_state run = {.out = stdout, .buffers = check_buffers_create()};
    assert_non_null(run.buffers);
    for (int n = 0; n < count; n++)
        check_one(&run, "ranks", check_problem, rank_isa(n), 64, 0, (uint64_t)(9000 + n), NULL);
    check_contexts_destroy(&run);
    check_buffers_destroy(run.buffers);
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int r = 0; r < MOST_RANKS; r++)
            attn_context_destroy(contexts[isa][r]);
    printf("%d problems; %d calls resumed, %d of them from the last checkpoint or later; %d ranks "
           "had more than one sweep after that\n",
           problems, resumed, kept_at_end, swept_again);
    assert_int_equal(run.failed, 0);
    assert_int_equal(problems, count);
    assert_number(resumed, >, count / 2);
    assert_number(swept_again, >, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_problems)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
