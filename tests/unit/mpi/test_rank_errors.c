/* Attention over ranks: all of them end with one error, and soon. */
/* labels: threads */
#include "support/counted_memory.h"
#include "support/rank_call.h"

static bool untouched(const rank_of_call *x) { return is_blank(x->out, sizeof x->out); }

/* All ranks return one error, which says `says`, and nothing was written. */
static void expect_error(int P, attn_status want, const char *says)
{
    for (int r = 0; r < P; r++) {
        if (all[r].absent)
            continue;
        if (all[r].status != want || !strstr(all[r].err.message, says) ||
            strchr(all[r].err.message, '\n'))
            fail_msg("rank %d: %s: \"%s\", want %s and \"%s\"", r, attn_status_name(all[r].status),
                     all[r].err.message, attn_status_name(want), says);
        if (!untouched(&all[r]))
            fail_msg("rank %d wrote results", r);
    }
}

/* One rank has another call. */
static void test_mismatches(void **state)
{
    (void)state;
    static const float slopes[] = {1, 2};
    for (int n = 0; n < 7; n++) {
        describe_case("mismatch %d", n);
        prepare(3, 0);
        attn_sdpa_args *a = &all[2].args;
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.isa = "generic", options.threads = 1;
        if (n == 0)
            a->causal = ATTN_CAUSAL_NONE;
        else if (n == 1)
            a->window_left = 3;
        else if (n == 2)
            a->alibi_slopes = slopes;
        else if (n == 3)
            all[2].options.segment_keys = 512;
        else if (n == 4)
            a->dropout_seed = 9;
        else if (n == 5)
            a->alibi_form = ATTN_ALIBI_SYMMETRIC; /* one of the members behind rules.def */
        else if (strcmp(attn_context_isa(NULL), "generic") == 0)
            break;
        else
            assert_int_equal(attn_context_create(&options, &all[2].ctx, NULL), ATTN_OK);
        run(3);
        expect_error(3, ATTN_ERR_ARGUMENT, "rank 2 has another call than rank 0; they differ in ");
        expect_error(3, ATTN_ERR_ARGUMENT,
                     n == 2   ? "slopes"
                     : n == 3 ? "shapes"
                     : n == 6 ? "instruction set"
                              : "rules");
        end(3);
    }
}

/* One rank has an error of its own; all ranks say which. */
static void test_error_of_one_rank(void **state)
{
    (void)state;
    static float scores[1];
    const attn_tensor wanted = attn_bhtd(scores, ATTN_F32, 1, 1, 1, 1);
    for (int n = 0; n < 5; n++) {
        describe_case("error %d", n);
        prepare(3, 0);
        rank_of_call *x = &all[1];
        if (n == 0)
            x->args.scores = &wanted;
        else if (n == 1)
            x->args.softcap = -1;
        else if (n == 2)
            x->args.k.shape[2]--;
        else if (n == 3)
            x->args.v.data = NULL;
        else
            x->options.S = -1;
        run(3);
        expect_error(3, n == 2 ? ATTN_ERR_SHAPE : ATTN_ERR_ARGUMENT, "rank 1: ");
        expect_error(3, n == 2 ? ATTN_ERR_SHAPE : ATTN_ERR_ARGUMENT,
                     n == 0   ? "scores"
                     : n == 1 ? "softcap"
                     : n == 2 ? "k has 383 rows; rank 1 of 3 has 384 of S = 1100"
                     : n == 3 ? "v has no data"
                              : "S is -1");
        end(3);
    }
}

/* A rank without memory, at each of its allocations: all ranks end, and say so. */
static void test_out_of_memory(void **state)
{
    (void)state;
    int failures = 0;
    for (int n = 0; n < 6; n++) {
        describe_case("%d allocations succeed, the next one fails", n);
        prepare(3, 0);
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
            expect_one_call(3, all[0].args);
        }
        end(3);
    }
    assert_number(failures, >=, 2); /* the state, then scratch for a segment */
    assert_number(failures, <, 6);
}

/* Two ranks never call. */
static void test_absent_ranks(void **state)
{
    (void)state;
    prepare(4, 0);
    for (int r = 0; r < 4; r++)
        all[r].options.deadline = 1.5; /* longer than a busy machine delays a thread */
    all[1].absent = all[3].absent = true;
    run(4);
    expect_error(4, ATTN_ERR_COMM, "ranks 1, 3 sent nothing within 1.5 s");
    for (int r = 0; r < 4; r += 2)
        assert_number(all[r].seconds, <, 30);
    end(4);
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
    for (int n = 1; n < 60; n += 12) {
        describe_case("stops after %d tests", n);
        prepare(3, 0);
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
                /* another rank that waits for rank 1 may be late, too, and is then also named */
                if (!strstr(all[r].err.message, "rank 1 ") &&
                    !strstr(all[r].err.message, "ranks 0, 1 ") &&
                    !strstr(all[r].err.message, "ranks 1, 2 "))
                    fail_msg("rank %d says \"%s\"", r, all[r].err.message);
            }
        end(3);
    }
    assert_number(ended, >, 2);
}

static void test_bad_tables(void **state)
{
    (void)state;
    prepare(2, 0);
    const attn_comm good = all[0].comm;
    attn_error err;
    const test_output none[] = {{NULL, 0}};
    for (int n = 0; n < 5; n++) {
        attn_comm comm = good;
        comm.rank = n == 0 ? 2 : n == 1 ? -1 : 0;
        comm.size = n == 2 ? 0 : 2;
        comm.test = n == 3 ? NULL : comm.test;
        expect_bad_argument("table",
                            attn_mpi_sdpa_forward(n == 4 ? NULL : &comm, NULL, &all[0].args,
                                                  &all[0].options, &err),
                            ATTN_ERR_ARGUMENT, &err, "comm", none);
    }
    all[0].options.deadline = -1;
    expect_bad_argument("deadline",
                        attn_mpi_sdpa_forward(&good, NULL, &all[0].args, &all[0].options, &err),
                        ATTN_ERR_ARGUMENT, &err, "deadline", none);
    end(2);
    assert_int_equal(attn_ranks_create(0, 0, 0, &ranks, &err), ATTN_ERR_ARGUMENT);
    assert_int_equal(attn_ranks_create(1, -1, 0, &ranks, &err), ATTN_ERR_ARGUMENT);
    attn_ranks_destroy(NULL);
}

/* Structs of older versions are shorter, those of newer ones longer. */
static void test_struct_sizes(void **state)
{
    (void)state;
    struct {
        attn_mpi_options options;
        int64_t more;
    } newer = {.more = 0};
    prepare(1, 0);
    rank_of_call *x = &all[0];
    x->args.struct_size = offsetof(attn_sdpa_args, scale);
    x->options.struct_size = offsetof(attn_mpi_options, deadline);
    x->options.deadline = -1; /* beyond the struct */
    run(1);
    expect_one_call(1, x->args);
    x->options.deadline = 0;
    for (int n = 0; n < 2; n++) {
        newer.options = x->options;
        newer.options.struct_size = sizeof newer;
        newer.more = n;
        x->status = attn_mpi_sdpa_forward(&x->comm, NULL, &x->args, &newer.options, &x->err);
        assert_int_equal(x->status, n ? ATTN_ERR_ARGUMENT : ATTN_OK);
    }
    assert_string_equal(x->err.argument, "options");
    x->args.struct_size = 0;
    run(1);
    assert_int_equal(x->status, ATTN_ERR_ARGUMENT);
    assert_string_equal(x->err.argument, "args");
    end(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mismatches),      cmocka_unit_test(test_error_of_one_rank),
        cmocka_unit_test(test_out_of_memory),   cmocka_unit_test(test_absent_ranks),
        cmocka_unit_test(test_rank_that_stops), cmocka_unit_test(test_bad_tables),
        cmocka_unit_test(test_struct_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
