/* Random calls on 1 to 8 ranks that are threads: the bits of one call, and the bytes sent. */
/* labels: threads slow */
#include <pthread.h>

#include "check/check_call.h"
#include "support/rank_problem.h"
#include "support/test.h"

enum { MOST_RANKS = 8, DELAY_US = 50 };

static struct worker {
    rank_part part;
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

static attn_context *contexts[CHECK_MAX_ISAS][MOST_RANKS]; /* some of one thread, some of two */

static attn_context *context_of(int isa, int rank)
{
    if (!contexts[isa][rank]) {
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.threads = 1 + (rank == 1);
        options.isa = attn_isa(isa).name;
        assert_int_equal(attn_context_create(&options, &contexts[isa][rank], NULL), ATTN_OK);
    }
    return contexts[isa][rank];
}

/* Bytes of the keys that a rank must receive, by what the state of its rows asks for. */
static int64_t bytes_wanted(check_case *c, const check_call *call, int rank, int P)
{
    const rank_part *p = &workers[rank].part;
    const int64_t S = call->args.k.shape[2], L = p->report.segment_keys, T = p->options.T;
    const int64_t per_key = (int64_t)attn_dtype_size(call->args.k.dtype) * call->args.k.shape[0] *
                            call->args.k.shape[1] * (call->args.k.shape[3] + call->args.v.shape[3]);
    int64_t *positions = calloc((size_t)T + 1, sizeof *positions), n = 0, bytes = 0;
    for (int64_t i = 0; i < T; i++)
        if (i / 64 % P == rank)
            positions[n++] = i;
    attn_sdpa_args a = p->args;
    a.k = call->args.k, a.v = call->args.v;
    a.k.data = a.v.data = NULL;
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    part.q_positions = positions, part.whole_T = T;
    attn_sdpa_state *state;
    assert_int_equal(attn_sdpa_begin(check_context(c, 1), &a, &part, &state, NULL), ATTN_OK);
    for (int64_t first = 0; first < S; first += L) {
        const int64_t past = first + L < S ? first + L : S;
        if (attn_sdpa_next(state, NULL) >= past)
            continue;
        for (int64_t j = first; j < past; j++)
            bytes += j / 64 % P == rank ? 0 : per_key;
        const check_tensor k = check_cut_keys(c, &call->args.k, first, past - first),
                           v = check_cut_keys(c, &call->args.v, first, past - first);
        assert_int_equal(attn_sdpa_feed(state, first, &k.view, &v.view, NULL), ATTN_OK);
    }
    attn_sdpa_end(state);
    free(positions);
    return bytes;
}

static int problems, swept_again, seen_bytes;
static uint64_t all_bits;

/* The call on P ranks. */
static void check_ranks(check_case *c, const check_call *call, int P)
{
    pthread_t threads[MOST_RANKS];
    attn_ranks *ranks;
    assert_int_equal(attn_ranks_create(P, check_chance(c, 30) ? DELAY_US : 0, c->seed, &ranks,
                                       NULL),
                     ATTN_OK);
    for (int r = 0; r < P; r++) {
        rank_part_new(c, call, r, P, &workers[r].part);
        attn_ranks_comm(ranks, r, &workers[r].comm);
        workers[r].ctx = context_of(c->isa, r);
    }
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &workers[r]), 0);
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    int64_t counted = 0, sent = 0, received = 0;
    for (int r = 0; r < P && !c->failed; r++) {
        const struct worker *w = &workers[r];
        if (w->status != ATTN_OK) {
            check_fail(c, "rank %d of %d: %s: %s", r, P, attn_status_name(w->status),
                       w->err.message);
            break;
        }
        rank_part_compare(c, call, &w->part, r, P);
        counted += attn_ranks_sent(ranks, r);
        sent += w->part.report.sent_bytes, received += w->part.report.received_bytes;
        swept_again += w->part.report.sweeps > 1;
        if (w->part.report.sweeps == 1 && c->seed % 4 == 0 && check_count(&call->q.view) > 0 &&
            call->args.out.shape[3] > 0) {
            const int64_t want = bytes_wanted(c, call, r, P);
            seen_bytes++;
            if (w->part.report.received_bytes != want)
                check_fail(c,
                           "rank %d of %d received %" PRId64 " bytes, and its rows want %" PRId64,
                           r, P, w->part.report.received_bytes, want);
        }
    }
    if (sent != received)
        check_fail(c, "%" PRId64 " bytes sent, %" PRId64 " received", sent, received);
    if (counted < sent)
        check_fail(c, "%" PRId64 " bytes counted, %" PRId64 " reported", counted, sent);
    attn_ranks_destroy(ranks);
}

static void check_problem(check_case *c)
{
    static check_call call;
    static const int sizes[] = {1, 2, 3, 4, 7, 8};
    attn_error err;
    rank_problem_draw(c, &call);
    if (attn_sdpa_forward(check_context(c, 1), &call.args, &err) != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    for (int i = 0; i < 6 && !c->failed; i++)
        check_ranks(c, &call, sizes[i]);
    check_expect_intact(c);
    all_bits = rank_hash(c, &call.args.out, all_bits);
    problems++;
}

/* ATTN_RANK_PROBLEMS=500 in the environment: so many, instead of 100. */
static void test_problems(void **state)
{
    (void)state;
    const char *given = getenv("ATTN_RANK_PROBLEMS");
    const int count = given ? atoi(given) : getenv("ATTN_SANITIZED") ? 12 : 100;
    check_run_state run = {.out = stdout, .buffers = check_buffers_create()};
    assert_non_null(run.buffers);
    for (int n = 0; n < count; n++)
        check_one(&run, "ranks", check_problem, rank_isa(n), 64, 0, (uint64_t)(7000 + n), NULL);
    check_contexts_destroy(&run);
    check_buffers_destroy(run.buffers);
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int r = 0; r < MOST_RANKS; r++)
            attn_context_destroy(contexts[isa][r]);
    printf("%d problems on 1, 2, 3, 4, 7 and 8 ranks; hash of out %016" PRIx64
           "; %d ranks had more "
           "than one sweep; bytes of %d ranks compared\n",
           problems, all_bits, swept_again, seen_bytes);
    assert_int_equal(run.failed, 0);
    assert_int_equal(problems, count);
    assert_number(swept_again, >, 0);
    assert_number(seen_bytes, >, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_problems)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
