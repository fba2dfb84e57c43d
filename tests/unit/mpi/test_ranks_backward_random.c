/* Random backwards on ranks that are threads: the bits of dq, the bounds of sums, repeats. */
/* labels: threads */
#include <pthread.h>

#include "support/rank_gradients.h"
#include "support/test.h"

enum { MOST_RANKS = 8, DELAY_US = 50 };

static struct worker {
    rank_gradients x;
    attn_comm comm;
    attn_context *ctx;
    attn_status status;
    attn_error err;
} workers[MOST_RANKS];

static void *run_rank(void *arg)
{
    struct worker *w = arg;
    w->status = attn_mpi_sdpa_backward(&w->comm, w->ctx, &w->x.part.args, &w->x.grads,
                                       &w->x.part.options, &w->err);
    return NULL;
}

static attn_context *contexts[CHECK_MAX_ISAS][MOST_RANKS][4]; /* by the number of threads */

/* Each rank has contexts of its own; ranks 0 and 1 have several threads. */
static attn_context *context_of(int isa, int rank, int round)
{
    const int threads = rank > 1 ? 1 : round ? 3 - rank : 1 + rank;
    attn_context **ctx = &contexts[isa][rank][threads];
    if (!*ctx) {
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.threads = threads;
        options.isa = attn_isa(isa).name;
        assert_int_equal(attn_context_create(&options, ctx, NULL), ATTN_OK);
    }
    return *ctx;
}

static int problems, repeated, judged;

/* All bytes that ranks send arrive. Ranks send no more than they report, apart from comparisons. */
static void check_traffic(check_case *c, const attn_ranks *ranks, int P)
{
    int64_t counted = 0, sent = 0, received = 0;
    for (int r = 0; r < P; r++) {
        const attn_mpi_report *report = &workers[r].x.part.report;
        counted += attn_ranks_sent(ranks, r);
        sent += report->sent_bytes, received += report->received_bytes;
    }
    if (sent != received)
        check_fail(c, "%" PRId64 " bytes sent, %" PRId64 " received", sent, received);
    if (counted < sent || (P == 1 && counted > 0))
        check_fail(c, "%" PRId64 " bytes counted, %" PRId64 " reported", counted, sent);
}

/* The call on P ranks. `round` chooses the threads, the delays and the segments. Returns a hash of
 * all gradients. */
static uint64_t check_ranks(check_case *c, const check_gradients *g, bool finite, int P, int round)
{
    static const int64_t segments[] = {0, 256, 768};
    pthread_t threads[MOST_RANKS];
    attn_ranks *ranks;
    uint64_t hash = 0;
    assert_int_equal(attn_ranks_create(P, round || check_chance(c, 30) ? DELAY_US : 0, c->seed,
                                       &ranks, NULL),
                     ATTN_OK);
    for (int r = 0; r < P; r++) {
        struct worker *w = &workers[r];
        rank_gradients_new(c, g, r, P, &w->x);
        if (round)
            w->x.part.options.segment_keys = segments[(c->seed + (uint64_t)P) % 3];
        attn_ranks_comm(ranks, r, &w->comm);
        w->ctx = context_of(c->isa, r, round);
    }
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &workers[r]), 0);
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    for (int r = 0; r < P && !c->failed; r++) {
        const struct worker *w = &workers[r];
        if (w->status != ATTN_OK) {
            check_fail(c, "rank %d of %d: %s: %s", r, P, attn_status_name(w->status),
                       w->err.message);
            break;
        }
        rank_gradients_compare(c, g, &w->x, finite, r, P);
        hash = hash * 31 + rank_gradients_hash(c, &w->x);
    }
    if (!c->failed)
        check_traffic(c, ranks, P);
    attn_ranks_destroy(ranks);
    return hash;
}

static void check_problem(check_case *c)
{
    static check_gradients g;
    static const int sizes[] = {1, 2, 3, 4, 7, 8};
    g = (check_gradients){0};
    const bool finite = rank_gradients_draw(c, &g, true);
    for (int i = 0; i < 6 && !c->failed; i++) {
        const uint64_t hash = check_ranks(c, &g, finite, sizes[i], 0);
        if ((c->seed + (uint64_t)i) % 3 || c->failed)
            continue;
        repeated++;
        if (check_ranks(c, &g, finite, sizes[i], 1) != hash && !c->failed)
            check_fail(c, "other bits on %d ranks with other threads, delays or segments",
                       sizes[i]);
    }
    check_expect_intact(c);
    judged += finite;
    problems++;
}

/* ATTN_RANK_PROBLEMS=500 in the environment: so many, instead of 40. */
static void test_problems(void **state)
{
    (void)state;
    const char *given = getenv("ATTN_RANK_PROBLEMS");
    const int count = given ? atoi(given) : getenv("ATTN_SANITIZED") ? 8 : 40;
    check_run_state run = {.out = stdout, .buffers = check_buffers_create()};
    assert_non_null(run.buffers);
    for (int n = 0; n < count; n++)
        check_one(&run, "ranks_backward", check_problem, rank_isa(n), 64, 0, (uint64_t)(8000 + n),
                  NULL);
    check_contexts_destroy(&run);
    check_buffers_destroy(run.buffers);
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int r = 0; r < MOST_RANKS; r++)
            for (int n = 0; n < 4; n++)
                attn_context_destroy(contexts[isa][r][n]);
    printf("%d problems on 1, 2, 3, 4, 7 and 8 ranks; %d compared with the reference; %d runs "
           "repeated\n",
           problems, judged, repeated);
    assert_int_equal(run.failed, 0);
    assert_int_equal(problems, count);
    assert_number(judged, >, count / 2);
    assert_number(repeated, >, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_problems)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
