/* The backward over ranks: all of them end with one error, and soon. */
/* labels: threads slow */
#include "support/counted_memory.h"
#include "support/rank_backward.h"

/* All ranks return one error, which says `says`, and nothing was written. */
static void expect_error(int P, attn_status want, const char *says)
{
    for (int r = 0; r < P; r++) {
        const rank_of_call *x = &all[r];
        if (x->absent)
            continue;
        if (x->status != want || !strstr(x->err.message, says) || strchr(x->err.message, '\n'))
            fail_msg("rank %d: %s: \"%s\", want %s and \"%s\"", r, attn_status_name(x->status),
                     x->err.message, attn_status_name(want), says);
        if (!is_blank(x->dq, sizeof x->dq) || !is_blank(x->dk, sizeof x->dk) ||
            !is_blank(x->dv, sizeof x->dv))
            fail_msg("rank %d wrote results", r);
    }
}

static void prepare_all(int P)
{
    prepare(P, 0);
    prepare_backward(P);
}

/* One rank has another call. */
static void test_mismatches(void **state)
{
    (void)state;
    static double numbers[H];
    static const char *const says[] = {"function", "shapes or types", "shapes or types", "rules",
                                       "shapes or types"};
    for (int n = 0; n < 5; n++) {
        describe_case("mismatch %d", n);
        prepare_all(3);
        rank_of_call *x = &all[2];
        for (int r = 0; r < 3 && n == 4; r++)
            all[r].args.alibi_slopes = slopes;
        if (n == 0)
            x->backward = false;
        else if (n == 1)
            x->grads.dk = (attn_tensor){0};
        else if (n == 2)
            x->grads.dq = (attn_tensor){0};
        else if (n == 3)
            x->args.window_left = 3;
        else
            x->grads.dalibi_slopes = numbers;
        run(3);
        expect_error(3, ATTN_ERR_ARGUMENT, "rank 2 has another call than rank 0; they differ in ");
        expect_error(3, ATTN_ERR_ARGUMENT, says[n]);
        end(3);
    }
}

/* What rank 1 may get wrong. */
static void give_dmask(rank_of_call *x) { x->grads.dmask = &x->mask; }
static void give_half(rank_of_call *x) { x->grads.dk.dtype = ATTN_F16; }
static void give_bf16(rank_of_call *x) { x->grads.dv.dtype = ATTN_BF16; }
static void give_all_rows(rank_of_call *x) { x->grads.dk.shape[2] = TOKENS; }
static void give_few_rows(rank_of_call *x) { x->grads.dv.shape[2]--; }
static void give_few_queries(rank_of_call *x) { x->grads.dq.shape[2]--; }
static void give_no_data(rank_of_call *x) { x->grads.dk.data = NULL; }
static void give_overlap(rank_of_call *x) { x->grads.dv.stride[2] = 1; }
static void give_no_lse(rank_of_call *x) { x->args.lse = NULL; }
static void give_short_dout(rank_of_call *x) { x->grads.dout.shape[2]--; }
static void give_integers(rank_of_call *x) { x->grads.dout.dtype = ATTN_I64; }
static void give_slopes(rank_of_call *x)
{
    static double numbers[H];
    x->grads.dalibi_slopes = numbers;
}
static void give_no_size(rank_of_call *x) { x->grads.struct_size = 0; }
static void give_softcap(rank_of_call *x) { x->args.softcap = -1; }
static void give_no_rows(rank_of_call *x) { x->args.v.shape[2]--; }
static void give_negative_S(rank_of_call *x) { x->options.S = -1; }
static void give_falling_starts(rank_of_call *x)
{
    static const int64_t starts[] = {0, 700, 300};
    x->args.cu_seqlens_q = x->args.cu_seqlens_k = starts;
    x->args.sequences = 2;
}

static const struct bad_call {
    void (*change)(rank_of_call *x);
    attn_status status;
    const char *says; /* all ranks do */
} bad_calls[] = {
    {give_dmask, ATTN_ERR_ARGUMENT, "dmask is given"},
    {give_half, ATTN_ERR_DTYPE, "dk is f16; over ranks it must be f32 or f64"},
    {give_bf16, ATTN_ERR_DTYPE, "dv is bf16; over ranks it must be f32 or f64"},
    {give_all_rows, ATTN_ERR_SHAPE, "dk has 1100 in dimension 2; it must be 384"},
    {give_few_rows, ATTN_ERR_SHAPE, "dv has 383 in dimension 2; it must be 384"},
    {give_few_queries, ATTN_ERR_SHAPE, "dq has 383 in dimension 2; it must be 384"},
    {give_no_data, ATTN_ERR_ARGUMENT, "dk has no data"},
    {give_overlap, ATTN_ERR_STRIDE, "dv has shape"},
    {give_no_lse, ATTN_ERR_ARGUMENT, "lse is NULL"},
    {give_short_dout, ATTN_ERR_SHAPE, "dout has 383"},
    {give_integers, ATTN_ERR_DTYPE, "dout is i64"},
    {give_slopes, ATTN_ERR_ARGUMENT, "dalibi_slopes is given, but alibi_slopes is NULL"},
    {give_no_size, ATTN_ERR_ARGUMENT, "grads is a struct of another version"},
    {give_softcap, ATTN_ERR_ARGUMENT, "softcap"},
    {give_no_rows, ATTN_ERR_SHAPE, "v has 383 rows; rank 1 of 3 has 384 of S = 1100"},
    {give_negative_S, ATTN_ERR_ARGUMENT, "S is -1"},
    {give_falling_starts, ATTN_ERR_ARGUMENT, "cu_seqlens"},
};

static void test_error_of_one_rank(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof bad_calls / sizeof *bad_calls; n++) {
        describe_case("error %zu: %s", n, bad_calls[n].says);
        prepare_all(3);
        bad_calls[n].change(&all[1]);
        run(3);
        expect_error(3, bad_calls[n].status, "rank 1: ");
        expect_error(3, bad_calls[n].status, bad_calls[n].says);
        end(3);
    }
}

/* A rank without memory, at each of its allocations: all ranks end, and say so. */
static void test_out_of_memory(void **state)
{
    (void)state;
    int failures = 0;
    for (int n = 0; n < 10; n++) {
        describe_case("%d allocations succeed, the next one fails", n);
        prepare_all(3);
        counted_memory memory = {0};
        const attn_context_options options = counted_options(&memory, 1);
        assert_int_equal(attn_context_create(&options, &all[1].ctx, NULL), ATTN_OK);
        memory.fail_at = memory.calls + (size_t)n + 1;
        run(3);
        if (all[1].status != ATTN_OK) {
            failures++;
            for (int r = 0; r < 3; r++) {
                assert_int_equal(all[r].status, ATTN_ERR_MEMORY);
                if (strncmp(all[r].err.message, "rank 1: ", 8) != 0)
                    fail_msg("rank %d says \"%s\"", r, all[r].err.message);
            }
        } else {
            expect_gradients(3);
        }
        end(3);
    }
    assert_number(failures, >=, 3); /* the state, its arrays, then scratch for a segment */
    assert_number(failures, <, 10);
}

/* A rank never calls. */
static void test_absent_rank(void **state)
{
    (void)state;
    prepare_all(3);
    for (int r = 0; r < 3; r++)
        all[r].options.deadline = 1.5; /* longer than a busy machine delays a thread */
    all[1].absent = true;
    run(3);
    expect_error(3, ATTN_ERR_COMM, "rank 1 sent nothing within 1.5 s");
    for (int r = 0; r < 3; r += 2)
        assert_number(all[r].seconds, <, 30);
    end(3);
}

/* A rank that stops in the middle: after some tests, its messages neither leave nor arrive. */
static int tests_left;
static attn_comm working;
static char never; /* the request of a message that was not started */

static int test_or_stop(void *user, void **request)
{
    return --tests_left > 0 ? working.test(user, request) : 0;
}

static int send_or_stop(void *user, int to, int tag, const void *bytes, size_t n, void **request)
{
    if (tests_left > 0)
        return working.send(user, to, tag, bytes, n, request);
    *request = &never;
    return 0;
}

static int receive_or_stop(void *user, int from, int tag, void *bytes, size_t n, void **request)
{
    if (tests_left > 0)
        return working.receive(user, from, tag, bytes, n, request);
    *request = &never;
    return 0;
}

static int cancel_or_stop(void *user, void **request)
{
    if (*request != &never)
        return working.cancel(user, request);
    *request = NULL;
    return 1;
}

static void test_rank_that_stops(void **state)
{
    (void)state;
    int ended = 0;
    for (int n = 1; n < 80; n += 13) {
        describe_case("stops after %d tests", n);
        prepare_all(3);
        for (int r = 0; r < 3; r++)
            all[r].options.deadline = 0.2;
        working = all[1].comm;
        all[1].comm.send = send_or_stop, all[1].comm.receive = receive_or_stop;
        all[1].comm.test = test_or_stop, all[1].comm.cancel = cancel_or_stop;
        tests_left = n;
        run(3);
        for (int r = 0; r < 3; r += 2)
            if (all[r].status != ATTN_OK) { /* else the rank stopped when this one had all */
                ended++;
                assert_int_equal(all[r].status, ATTN_ERR_COMM);
                assert_non_null(strstr(all[r].err.message, "rank"));
                assert_number(all[r].seconds, <, 30);
            }
        end(3);
    }
    assert_number(ended, >, 2);
}

/* A message that fails: send() or test() reports it once, at each point of the call. */
static int failing_left;

static int send_or_fail(void *user, int to, int tag, const void *bytes, size_t n, void **request)
{
    return --failing_left == 0 ? 1 : working.send(user, to, tag, bytes, n, request);
}

static void run_with_failing_send(int n)
{
    prepare_all(3);
    for (int r = 0; r < 3; r++)
        all[r].options.deadline = 20;
    working = all[1].comm;
    all[1].comm.send = send_or_fail;
    failing_left = n;
    run(3);
}

static void test_failing_sends(void **state)
{
    (void)state;
    run_with_failing_send(1000);
    expect_gradients(3);
    end(3);
    const int sends = 1000 - failing_left; /* of rank 1, in the whole call */
    assert_number(sends, >, 15);
    for (int n = sends; n > 0; n -= 3) {
        describe_case("send %d of %d fails", n, sends);
        run_with_failing_send(n);
        for (int r = 0; r < 3; r++) {
            /* In the last exchange, another rank may already have all that it needs. */
            if (r != 1 && n > sends - 2 && all[r].status == ATTN_OK)
                continue;
            assert_int_equal(all[r].status, ATTN_ERR_COMM);
            assert_non_null(strstr(all[r].err.message, "comm failed to start a message to rank"));
            assert_number(all[r].seconds, <, 20); /* a notice, not the deadline */
        }
        end(3);
    }
}

/* Structs of older versions are shorter, those of newer ones longer. */
static void test_struct_sizes(void **state)
{
    (void)state;
    struct {
        attn_sdpa_grads grads;
        int64_t more;
    } newer = {.more = 0};
    prepare_all(1);
    rank_of_call *x = &all[0];
    x->grads.struct_size = offsetof(attn_sdpa_grads, dmask);
    x->grads.dmask = (const attn_tensor *)(const void *)x; /* beyond the struct */
    run(1);
    x->grads.dmask = NULL;
    expect_gradients(1);
    for (int n = 0; n < 2; n++) {
        newer.grads = x->grads;
        newer.grads.struct_size = sizeof newer;
        newer.more = n;
        x->status =
            attn_mpi_sdpa_backward(&x->comm, NULL, &x->args, &newer.grads, &x->options, &x->err);
        assert_int_equal(x->status, n ? ATTN_ERR_ARGUMENT : ATTN_OK);
    }
    assert_string_equal(x->err.argument, "grads");
    x->status = attn_mpi_sdpa_backward(&x->comm, NULL, &x->args, NULL, &x->options, &x->err);
    assert_int_equal(x->status, ATTN_ERR_ARGUMENT);
    assert_non_null(strstr(x->err.message, "grads is NULL"));
    x->status = attn_mpi_sdpa_backward(NULL, NULL, &x->args, &x->grads, &x->options, &x->err);
    assert_int_equal(x->status, ATTN_ERR_ARGUMENT);
    assert_string_equal(x->err.argument, "comm");
    end(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mismatches),      cmocka_unit_test(test_error_of_one_rank),
        cmocka_unit_test(test_out_of_memory),   cmocka_unit_test(test_absent_rank),
        cmocka_unit_test(test_rank_that_stops), cmocka_unit_test(test_failing_sends),
        cmocka_unit_test(test_struct_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
