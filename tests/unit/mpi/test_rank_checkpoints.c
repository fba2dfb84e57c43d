/* Checkpoints over ranks go on with the bits of one call, and resuming trusts nothing. */
/* labels: threads slow */
#include "support/rank_call.h"
#include "support/rank_store.h"

#include <math.h>

static rank_store store;
static rank_access accesses[MOST];
static attn_mpi_checkpoint checkpoints[MOST];

static void use_store(int P, bool saves, bool resumes)
{
    store.ranks = P;
    for (int r = 0; r < P; r++) {
        accesses[r] = (rank_access){.store = &store};
        checkpoints[r] = rank_store_checkpoint(&accesses[r], saves, resumes);
        all[r].options.checkpoint = &checkpoints[r];
    }
}

/* ---------------------------------------------------------------------------------------- bits */

static void set_nothing(int r) { (void)r; }

/* A NaN that the causal rule hides from rows 0 to 699: these are swept again, too. */
static void set_nan(int r)
{
    if (attn_mpi_owner(700, all[r].comm.size) == r)
        all[r].v[attn_mpi_rows(700, r, all[r].comm.size) * D] = NAN;
    v[700 * D] = NAN;
}

/* Sequences that end inside a chunk of 256 keys, and inside a block of 64. */
static void set_packed(int r)
{
    static const int64_t starts[] = {0, 450, 470, 1000, TOKENS};
    all[r].args.cu_seqlens_q = all[r].args.cu_seqlens_k = starts;
    all[r].args.sequences = 4;
}

static void set_packed_nan(int r)
{
    set_packed(r);
    set_nan(r);
}

/* One call on P ranks that saves or resumes. */
static void run_call(int P, void (*set)(int r), int64_t segment_keys, bool saves, bool resumes)
{
    random_state = 3; /* the same numbers in each call */
    prepare(P, 0);
    for (int r = 0; r < P; r++) {
        set(r);
        all[r].options.segment_keys = segment_keys;
    }
    use_store(P, saves, resumes);
    run(P);
    expect_one_call(P, all[0].args);
    assert_false(store.wrong);
    end(P);
}

/* Each checkpoint of a call on P ranks goes on, on other numbers of ranks. */
static void check_all(int P, void (*set)(int r), int least)
{
    static const int others[] = {1, 2, 3, 8};
    int commits = 1;
    for (int n = 0; n < commits; n++) {
        describe_case("checkpoint %d of %d ranks", n, P);
        rank_store_init(&store, P, n);
        run_call(P, set, 256, true, false);
        commits = store.commits;
        assert_number(commits, >=, least);
        for (int i = 0; i < 4; i++)
            run_call(others[i], set, 256 << i, false, true);
        rank_store_free(&store);
    }
}

static void test_bits(void **state)
{
    (void)state;
    check_all(1, set_nothing, 5);
    check_all(3, set_nothing, 5);
}

/* More than 5 checkpoints: some are of a later sweep. */
static void test_rows_swept_again(void **state)
{
    (void)state;
    check_all(1, set_nan, 10);
    check_all(4, set_nan, 10);
}

static void test_packed(void **state)
{
    (void)state;
    check_all(2, set_packed, 5);
    check_all(3, set_packed_nan, 10);
}

/* A resumed call can save, and the next call goes on from that. */
static void test_chain(void **state)
{
    (void)state;
    rank_store_init(&store, 0, 0);
    run_call(3, set_nan, 256, true, false);
    int calls = 0;
    for (int more = 1; more > 0; calls++) {
        store.commits = 0;
        run_call(1 + calls % 5, set_nan, 256, true, true);
        more = store.commits; /* each begins one segment later */
    }
    assert_number(calls, >=, 10);
    rank_store_free(&store);
}

static void test_interval(void **state)
{
    (void)state;
    rank_store_init(&store, 0, 99);
    prepare(2, 0);
    use_store(2, true, false);
    checkpoints[0].every = checkpoints[1].every = 1e6;
    run(2);
    expect_one_call(2, all[0].args);
    assert_int_equal(store.commits, 0);
    checkpoints[1].every = 0; /* one rank is enough */
    run(2);
    expect_one_call(2, all[0].args);
    assert_number(store.commits, >=, 5);
    end(2);
    rank_store_free(&store);
}

/* -------------------------------------------------------------------------------------- errors */

static void expect_error(int P, attn_status want, const char *says)
{
    for (int r = 0; r < P; r++)
        if (all[r].status != want || !strstr(all[r].err.message, says) ||
            strchr(all[r].err.message, '\n'))
            fail_msg("rank %d: %s: \"%s\", want %s and \"%s\"", r, attn_status_name(all[r].status),
                     all[r].err.message, attn_status_name(want), says);
}

/* Keeps checkpoint `n` of a call on P ranks in the store, and prepares the same call anew. */
static void save_one(int P, int n)
{
    rank_store_init(&store, P, n);
    run_call(P, set_nothing, 256, true, false);
    random_state = 3;
    prepare(P, 0);
    use_store(P, false, true);
}

static void refuse(int P, const char *says)
{
    for (int r = 0; r < P; r++)
        memset(all[r].out, 0xA5, sizeof all[r].out);
    run(P);
    expect_error(P, ATTN_ERR_FILE, says);
    for (int r = 0; r < P; r++)
        if (!is_blank(all[r].out, sizeof all[r].out))
            fail_msg("rank %d wrote results", r);
}

/* Every byte of the header and of the table, some of the states; and every length of the header
 * and the table, some others. */
static void test_damage(void **state)
{
    (void)state;
    save_one(1, 2);
    run(1);
    expect_one_call(1, all[0].args);
    assert_int_equal(all[0].report.received_segments, 2); /* of 5 */
    const uint64_t size = store.kept_size, table = 64 + 16 * 18;
    for (uint64_t i = 0; i < size; i += i < table + 300 ? 1 : size / 211) {
        describe_case("byte %d", (int)i);
        store.kept[i] ^= (unsigned char)(1 << i % 8);
        refuse(1, "rank 0: checkpoint ");
        store.kept[i] ^= (unsigned char)(1 << i % 8);
    }
    for (uint64_t n = 0; n < size; n += n < table + 3 ? 1 : size / 53) {
        describe_case("%d bytes", (int)n);
        checkpoints[0].size = store.kept_size = n;
        refuse(1, "rank 0: checkpoint is cut off");
    }
    checkpoints[0].size = size + 1;
    store.kept_size = size;
    refuse(1, "bytes after its end");
    end(1);
    rank_store_free(&store);
}

/* The state of one block in the place of another. */
static void test_swapped_blocks(void **state)
{
    (void)state;
    save_one(2, 1);
    unsigned char entry[16], *table = store.kept + 64;
    memcpy(entry, table + 16, 16);
    memcpy(table + 16, table + 32, 16);
    memcpy(table + 32, entry, 16);
    refuse(2, "checkpoint is of another call or damaged: ");
    end(2);
    rank_store_free(&store);
}

static void test_other_calls(void **state)
{
    (void)state;
    static const char *const says[] = {"k or v has other numbers",
                                       "k or v has other numbers",
                                       "q differs from the saved call's",
                                       "the rules (causal",
                                       "T=1100 and S=1100, this call has T=1037",
                                       "was saved with",
                                       "rank 2: checkpoint cannot be read",
                                       "rank 1 reads another one than rank 0"};
    for (int n = 0; n < 8; n++) {
        describe_case("call %d", n);
        save_one(3, 2);
        rank_store other = {.ranks = 0};
        if (n == 0)
            all[1].k[5] += 1;
        else if (n == 1)
            all[2].v[all[2].args.v.shape[2] * D - 1] += 1;
        else if (n == 2)
            all[1].q[3] += 1;
        for (int r = 0; r < 3; r++) {
            rank_of_call *x = &all[r];
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            options.isa = "generic", options.threads = 1;
            if (n == 3)
                x->args.window_left = 999;
            if (n == 4) { /* the last 63 rows of rank 1 */
                x->options.T = x->options.S = TOKENS - 63;
                x->args.q.shape[2] = x->args.k.shape[2] = x->args.v.shape[2] =
                    x->args.out.shape[2] = attn_mpi_rows(TOKENS - 63, r, 3);
            }
            if (n == 5)
                assert_int_equal(attn_context_create(&options, &x->ctx, NULL), ATTN_OK);
        }
        if (n == 6)
            accesses[2].fails = 'r', accesses[2].at = 2;
        if (n == 7) { /* one segment later, for rank 1 only */
            other = store;
            rank_store_init(&store, 3, 3);
            end(3);
            run_call(3, set_nothing, 256, true, false);
            random_state = 3;
            prepare(3, 0);
            use_store(3, false, true);
            accesses[1].store = &other;
            checkpoints[1].size = other.kept_size;
        }
        if (n != 5 || strcmp(attn_context_isa(NULL), "generic") != 0)
            refuse(3, says[n]);
        end(3);
        if (n == 7)
            rank_store_free(&other);
        rank_store_free(&store);
    }
}

/* A function that fails on one rank: all say so, and the checkpoint before stays. */
static void test_failing_functions(void **state)
{
    (void)state;
    static const char functions[] = "owsc";
    for (int n = 0; n < 12; n++) {
        describe_case("%c of rank %d", functions[n / 3], n % 3);
        rank_store_init(&store, 3, 99);
        prepare(3, 0);
        use_store(3, true, false);
        accesses[n % 3].fails = functions[n / 3];
        accesses[n % 3].at = n / 3 == 1 ? 20 : 1; /* a rank writes 7 to 9 times, so in the third */
        run(3);
        char says[64];
        snprintf(says, sizeof says, "rank %d: checkpoint cannot be written", n % 3);
        expect_error(3, ATTN_ERR_FILE, says);
        assert_int_equal(store.commits, functions[n / 3] == 'o' || functions[n / 3] == 's' ? 1 : 2);
        assert_int_equal(store.aborts, functions[n / 3] == 'c' ? 0 : 1);
        assert_false(store.wrong);
        for (int r = 0; r < 3; r++) /* the table of functions can be used again */
            all[r].options.checkpoint = NULL;
        run(3);
        expect_one_call(3, all[0].args);
        end(3);
        rank_store_free(&store);
    }
}

static void test_arguments(void **state)
{
    (void)state;
    rank_store_init(&store, 0, 0);
    for (int n = 0; n < 8; n++) {
        describe_case("argument %d", n);
        prepare(2, 0);
        use_store(2, true, false);
        attn_mpi_checkpoint *c = &checkpoints[1];
        if (n == 0)
            c->open = NULL;
        else if (n == 1)
            c->write = NULL;
        else if (n == 2)
            c->sync = NULL;
        else if (n == 3)
            c->close = NULL;
        else if (n < 6)
            c->every = n == 4 ? -1 : NAN;
        else if (n == 6)
            c->struct_size = 8;
        else
            all[1].options.checkpoint = NULL;
        run(2);
        expect_error(2, ATTN_ERR_ARGUMENT,
                     n < 4    ? "rank 1: checkpoint has only some of open, write, sync and close"
                     : n < 6  ? "rank 1: checkpoint: every is "
                     : n == 6 ? "rank 1: checkpoint is a struct of another version"
                              : "they differ in whether they save or resume");
        for (int r = 0; r < 2; r++)
            assert_true(is_blank(all[r].out, sizeof all[r].out));
        end(2);
    }
    rank_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_rows_swept_again),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_interval),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_swapped_blocks),
        cmocka_unit_test(test_other_calls),
        cmocka_unit_test(test_failing_functions),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
