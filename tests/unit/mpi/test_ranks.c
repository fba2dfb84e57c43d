/* Attention over ranks: layout, traffic, balance, scatter, gather and all_gather. */
/* labels: threads */
#include "support/rank_call.h"

/* ------------------------------------------------------------------------------------- layout */

/* The picture in attn_mpi.h. */
static void test_layout_by_hand(void **state)
{
    (void)state;
    static const int owners[] = {0, 1, 2, 0, 1, 2, 0};
    for (int64_t i = 0; i < 401; i++)
        assert_int_equal(attn_mpi_owner(i, 3), owners[i / 64]);
    assert_int_equal(attn_mpi_rows(401, 0, 3), 145);
    assert_int_equal(attn_mpi_rows(401, 1, 3), 128);
    assert_int_equal(attn_mpi_rows(401, 2, 3), 128);
    int64_t positions[145];
    attn_mpi_positions(401, 0, 3, positions);
    assert_int_equal(positions[0], 0);
    assert_int_equal(positions[63], 63);
    assert_int_equal(positions[64], 192);
    assert_int_equal(positions[128], 384);
    assert_int_equal(positions[144], 400);
}

/* Each token has one place: rows, positions and owner agree, for any numbers. */
static void test_layout_agrees(void **state)
{
    (void)state;
    static int64_t positions[1000];
    for (int P = 1; P <= 9; P++)
        for (int64_t tokens = 0; tokens < 1000; tokens += 1 + tokens % 37) {
            describe_case("%d tokens on %d ranks", (int)tokens, P);
            int64_t count = 0;
            for (int r = 0; r < P; r++) {
                const int64_t rows = attn_mpi_rows(tokens, r, P);
                attn_mpi_positions(tokens, r, P, positions);
                for (int64_t i = 0; i < rows; i++) {
                    assert_int_equal(attn_mpi_owner(positions[i], P), r);
                    assert_int_equal(attn_mpi_rows(positions[i], r, P), i);
                    assert_true(positions[i] < tokens &&
                                (i == 0 || positions[i] > positions[i - 1]));
                }
                count += rows;
            }
            assert_int_equal(count, tokens);
        }
}

enum { BLOCKS = 1024, TOKENS_OF_BLOCKS = 64 * BLOCKS };

/* The share of the time in which a rank computes, if all ranks wait for each other after each
 * segment of L keys; by counting visible pairs of a causal call. Query i sees the last `window`
 * keys (0: all) of those from start[i] on; NULL: from 0 on. */
static double balance(int P, int64_t L, int64_t window, const int64_t *start)
{
    const int64_t tokens = TOKENS_OF_BLOCKS;
    double sum = 0, slowest = 0;
    for (int64_t j0 = 0; j0 < tokens; j0 += L) {
        double most = 0;
        for (int r = 0; r < P; r++) {
            double pairs = 0;
            for (int64_t block = r; block < BLOCKS; block += P)
                for (int64_t i = 64 * block; i < 64 * block + 64; i++) {
                    const int64_t past = i + 1 < j0 + L ? i + 1 : j0 + L;
                    int64_t first = start && start[i] > j0 ? start[i] : j0;
                    if (window && i - window > first)
                        first = i - window;
                    pairs += past > first ? (double)(past - first) : 0;
                }
            sum += pairs;
            most = pairs > most ? pairs : most;
        }
        slowest += most;
    }
    return sum / (P * slowest);
}

static void test_balance(void **state)
{
    (void)state;
    const double causal = balance(8, 2048, 0, NULL), window = balance(8, 2048, 4096, NULL);
    printf("balance of 1024 blocks on 8 ranks: causal %.4f, window %.4f\n", causal, window);
    assert_number(causal, >=, 0.99);
    assert_number(window, >=, 0.99);
}

/* A random number of 0 .. n - 1. */
static int64_t below(int64_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

/* Packed sequences of random lengths from 64 << from to 64 << to tokens, each doubling as likely:
 * the mean of 20 draws. */
static double packed_balance(int from, int to)
{
    static int64_t start[TOKENS_OF_BLOCKS];
    double sum = 0;
    for (int draw = 0; draw < 20; draw++) {
        for (int64_t i = 0, length; i < TOKENS_OF_BLOCKS; i += length) {
            const int64_t least = INT64_C(64) << (from + below(to - from));
            length = least + below(least);
            for (int64_t n = i; n < i + length && n < TOKENS_OF_BLOCKS; n++)
                start[n] = i;
        }
        sum += balance(8, 2048, 0, start);
    }
    return sum / 20;
}

static void test_packed_balance(void **state)
{
    (void)state;
    const double any = packed_balance(0, 8), middle = packed_balance(2, 6);
    printf("balance of packed sequences on 8 ranks: 64 to 16384 tokens %.4f, 256 to 4096 %.4f, "
           "64 to 512 %.4f\n",
           any, middle, packed_balance(0, 3));
    assert_number(any, >=, 0.94);
    assert_number(middle, >=, 0.85);
}

/* Every rank receives the keys that it lacks, once: (D + Dv) Hk B (S - its own) elements; and three
 * segments are in memory. */
static void test_bytes_of_full_attention(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 8};
    for (int n = 0; n < 4; n++) {
        const int P = sizes[n];
        describe_case("%d ranks", P);
        prepare(P, 20);
        for (int r = 0; r < P; r++)
            all[r].args.causal = ATTN_CAUSAL_NONE;
        run(P);
        expect_one_call(P, all[0].args);
        for (int r = 0; r < P; r++) {
            const int64_t own = attn_mpi_rows(TOKENS, r, P);
            assert_int_equal(all[r].report.received_bytes, 2 * D * HK * 4 * (TOKENS - own));
            assert_int_equal(all[r].report.sent_bytes, 2 * D * HK * 4 * own * (P - 1));
            assert_int_equal(all[r].report.buffer_bytes, 3 * 256 * 2 * D * HK * 4);
            assert_int_equal(all[r].report.sweeps, 1);
            assert_int_equal(all[r].report.received_segments, 5);
            /* the table counts the messages of the comparisons, too: two for each other rank */
            const int64_t more = attn_ranks_sent(ranks, r) - all[r].report.sent_bytes;
            assert_true(P == 1 ? more == 0 : more > 0 && more < (P - 1) * 1000);
        }
        end(P);
    }
}

/* Causal, P = 8, segments of 256 keys: block n is on rank n % 8, so ranks 0, 1 have rows up to
 * block 17 and see 5 segments; ranks 2..7 have rows up to blocks 10..15 (keys 703..1023) and see 3
 * or
 * 4. Nothing else is received. */
static void test_hidden_segments_are_not_sent(void **state)
{
    (void)state;
    static const int64_t want[] = {5, 5, 3, 3, 4, 4, 4, 4};
    prepare(8, 0);
    run(8);
    expect_one_call(8, all[0].args);
    for (int r = 0; r < 8; r++) {
        assert_int_equal(all[r].report.received_segments, want[r]);
        int64_t bytes = 0;
        for (int64_t j = 0; j < TOKENS && j < 256 * want[r]; j++)
            bytes += j / 64 % 8 == r ? 0 : 2 * D * HK * 4;
        assert_int_equal(all[r].report.received_bytes, bytes);
    }
    end(8);
}

/* Chunks count from the start of a packed sequence. Here the second one begins at key 100. Row 576
 * sees keys 566..576, of the chunk that begins at key 356, in the segment before. */
static void test_window_of_a_packed_sequence(void **state)
{
    (void)state;
    static const int64_t starts[] = {0, 100, TOKENS};
    prepare(8, 0);
    for (int r = 0; r < 8; r++) {
        all[r].args.cu_seqlens_q = all[r].args.cu_seqlens_k = starts;
        all[r].args.sequences = 2;
        all[r].args.window_left = 10;
    }
    run(8);
    expect_one_call(8, all[0].args);
    end(8);
}

/* More ranks than blocks: some have no rows. */
static void test_ranks_without_rows(void **state)
{
    (void)state;
    prepare(8, 0);
    static float few[8][3][H * 64 * D];
    for (int r = 0; r < 8; r++) {
        const int64_t n = attn_mpi_rows(130, r, 8);
        rank_of_call *x = &all[r];
        assert_int_equal(n, r < 2 ? 64 : r == 2 ? 2 : 0);
        x->options.T = x->options.S = 130;
        x->args.q.shape[2] = x->args.k.shape[2] = x->args.v.shape[2] = x->args.out.shape[2] = n;
        x->args.q.stride[1] = x->args.out.stride[1] = 64 * D;
        x->args.out.data = few[r][0];
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t d = 0; d < D; d++)
                    few[r][1][(h * 64 + i) * D + d] = q[(h * TOKENS + 64 * r + i) * D + d];
        x->args.q.data = n ? few[r][1] : NULL;
    }
    run(8);
    attn_sdpa_args one = all[0].args;
    one.q = attn_bthd(NULL, ATTN_F32, B, 130, H, D);
    one.q.data = q, one.q.stride[1] = TOKENS * D, one.q.stride[2] = D;
    one.k = attn_bhtd(k, ATTN_F32, B, HK, 130, D);
    one.v = attn_bhtd(v, ATTN_F32, B, HK, 130, D);
    one.out = attn_bhtd(out, ATTN_F32, B, H, 130, D);
    assert_int_equal(attn_sdpa_forward(NULL, &one, NULL), ATTN_OK);
    for (int r = 0; r < 8; r++) {
        if (all[r].status != ATTN_OK)
            fail_msg("rank %d: %s", r, all[r].err.message);
        for (int64_t h = 0; h < H; h++)
            assert_same_array(&few[r][0][h * 64 * D], &out[(h * 130 + 64 * r) * D],
                              (size_t)(all[r].args.q.shape[2] * D) * sizeof(float));
    }
    end(8);
}

/* -------------------------------------------------------------------------- scatter and gather */

static attn_tensor whole_in, whole_out;

static void *scatter_and_gather(void *arg)
{
    rank_of_call *x = arg;
    const bool root = x->comm.rank == 0;
    x->status = attn_mpi_scatter(&x->comm, root ? &whole_in : NULL, &x->args.q, 10, &x->err);
    if (x->status == ATTN_OK)
        x->status = attn_mpi_gather(&x->comm, &x->args.q, root ? &whole_out : NULL, 10, &x->err);
    return NULL;
}

static void test_scatter_and_gather(void **state)
{
    (void)state;
    pthread_t threads[MOST];
    for (int P = 1; P <= 5; P += 2) {
        describe_case("%d ranks", P);
        prepare(P, 10);
        memset(out, 0, sizeof out);
        whole_in = attn_bthd(q, ATTN_F32, B, TOKENS, H, D);
        whole_out = attn_bthd(out, ATTN_F32, B, TOKENS, H, D);
        for (int r = 0; r < P; r++) {
            memset(all[r].q, 0, sizeof all[r].q);
            assert_int_equal(pthread_create(&threads[r], NULL, scatter_and_gather, &all[r]), 0);
        }
        for (int r = 0; r < P; r++)
            assert_int_equal(pthread_join(threads[r], NULL), 0);
        for (int r = 0; r < P; r++) {
            if (all[r].status != ATTN_OK)
                fail_msg("rank %d: %s", r, all[r].err.message);
            const int64_t n = attn_mpi_rows(TOKENS, r, P);
            for (int64_t i = 0; i < n; i++) /* row i of rank r is token (i/64 P + r) 64 + i % 64 */
                for (int64_t h = 0; h < H; h++)
                    assert_memory_equal(&all[r].q[(h * n + i) * D],
                                        &q[(((i / 64 * P + r) * 64 + i % 64) * H + h) * D],
                                        D * sizeof(float));
        }
        assert_same_array(out, q, sizeof q);
        end(P);
    }
}

static int rank_without_local; /* in the first of two calls */

static void *fail_then_scatter_and_gather(void *arg)
{
    rank_of_call *x = arg;
    const bool root = x->comm.rank == 0, absent = x->comm.rank == rank_without_local;
    attn_status first[2];
    first[0] = attn_mpi_scatter(&x->comm, root ? &whole_out : NULL, absent ? NULL : &x->args.q, 10,
                                &x->err);
    first[1] = attn_mpi_gather(&x->comm, absent ? NULL : &x->args.q, root ? &whole_out : NULL, 10,
                               &x->err);
    scatter_and_gather(arg);
    if (first[0] != ATTN_ERR_ARGUMENT || first[1] != ATTN_ERR_ARGUMENT)
        x->status = ATTN_ERR_COMM;
    return NULL;
}

/* Rows of a call that failed on one rank are not taken for those of the next call. */
static void test_scatter_after_a_failure(void **state)
{
    enum { P = 3 };
    (void)state;
    pthread_t threads[P];
    for (rank_without_local = 0; rank_without_local < P; rank_without_local++) {
        describe_case("first call without local on rank %d", rank_without_local);
        prepare(P, 10);
        memset(out, 0, sizeof out);
        whole_in = attn_bthd(q, ATTN_F32, B, TOKENS, H, D);
        whole_out = attn_bthd(out, ATTN_F32, B, TOKENS, H, D);
        for (int r = 0; r < P; r++)
            assert_int_equal(pthread_create(&threads[r], NULL, fail_then_scatter_and_gather,
                                            &all[r]),
                             0);
        for (int r = 0; r < P; r++)
            assert_int_equal(pthread_join(threads[r], NULL), 0);
        for (int r = 0; r < P; r++)
            if (all[r].status != ATTN_OK)
                fail_msg("rank %d: %s", r, all[r].err.message);
        assert_same_array(out, q, sizeof q);
        end(P);
    }
}

/* A rank with another shape, and one that is NULL: no rank waits for ever. */
static void test_scatter_errors(void **state)
{
    (void)state;
    pthread_t threads[2];
    for (int n = 0; n < 2; n++) {
        prepare(2, 0);
        whole_in = attn_bhtd(q, ATTN_F32, B, H, TOKENS, D);
        all[n].args.q.shape[2]--;
        for (int r = 0; r < 2; r++)
            assert_int_equal(pthread_create(&threads[r], NULL, scatter_and_gather, &all[r]), 0);
        for (int r = 0; r < 2; r++)
            assert_int_equal(pthread_join(threads[r], NULL), 0);
        for (int r = 0; r < 2; r++)
            assert_int_not_equal(all[r].status, ATTN_OK);
        if (n == 0) { /* rank 0 tells why it gives up; rank 1 does not wait for its deadline */
            assert_int_equal(all[1].status, ATTN_ERR_SHAPE);
            assert_non_null(strstr(all[1].err.message, "rank 0: local has"));
        }
        end(2);
    }
    attn_error err;
    const attn_tensor whole = attn_bhtd(q, ATTN_F32, B, H, TOKENS, D);
    attn_tensor local = attn_bhtd(out, ATTN_F32, B, H, 64, D);
    assert_int_equal(attn_mpi_take(&whole, 0, 1, &local, &err), ATTN_ERR_SHAPE);
    assert_non_null(strstr(err.message, "local has 64 in dimension 2; rank 0 of 1 must have 1100"));
    local.dtype = ATTN_F64;
    assert_int_equal(attn_mpi_put(&local, 0, 1, &whole, &err), ATTN_ERR_DTYPE);
    assert_int_equal(attn_mpi_take(NULL, 0, 1, &local, &err), ATTN_ERR_ARGUMENT);
    assert_int_equal(attn_mpi_take(&whole, 1, 1, &local, &err), ATTN_ERR_ARGUMENT);
}

/* -------------------------------------------------------------------------------- all_gather */

static unsigned char mine[MOST][33], gathered[MOST][MOST * 33];
static size_t bytes_of_rank;

static void *all_gather(void *arg)
{
    rank_of_call *x = arg;
    const int r = x->comm.rank;
    x->status = attn_mpi_all_gather(&x->comm, x->absent ? NULL : mine[r], bytes_of_rank,
                                    gathered[r], 10, &x->err);
    return NULL;
}

static void all_gather_on(int P)
{
    pthread_t threads[MOST];
    for (int r = 0; r < P; r++) {
        memset(mine[r], 'a' + r, sizeof mine[r]);
        memset(gathered[r], 0xA5, sizeof gathered[r]);
        assert_int_equal(pthread_create(&threads[r], NULL, all_gather, &all[r]), 0);
    }
    for (int r = 0; r < P; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static void test_all_gather(void **state)
{
    (void)state;
    for (int P = 1; P <= 5; P += 2)
        for (bytes_of_rank = 0; bytes_of_rank <= 33; bytes_of_rank += 11) {
            describe_case("%d ranks, %d bytes", P, (int)bytes_of_rank);
            prepare(P, 10);
            all_gather_on(P);
            for (int r = 0; r < P; r++) {
                assert_int_equal(all[r].status, ATTN_OK);
                for (size_t i = 0; i < sizeof gathered[r]; i++)
                    assert_int_equal(gathered[r][i], i < (size_t)P * bytes_of_rank
                                                         ? 'a' + (int)(i / bytes_of_rank)
                                                         : 0xA5);
            }
            end(P);
        }
}

/* One rank has no bytes: all ranks say so before their deadline. */
static void test_all_gather_errors(void **state)
{
    (void)state;
    prepare(3, 0);
    bytes_of_rank = 33;
    all[1].absent = true;
    const double start = now();
    all_gather_on(3);
    assert_true(now() - start < 9);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(all[r].status, ATTN_ERR_ARGUMENT);
        assert_non_null(strstr(all[r].err.message, "mine is NULL; it must be an address"));
        assert_true(r == 1 || strstr(all[r].err.message, "rank 1: "));
    }
    end(3);
    attn_error err;
    assert_int_equal(attn_mpi_all_gather(NULL, mine, 1, gathered, 0, &err), ATTN_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "comm is NULL"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_by_hand),
        cmocka_unit_test(test_layout_agrees),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_packed_balance),
        cmocka_unit_test(test_bytes_of_full_attention),
        cmocka_unit_test(test_hidden_segments_are_not_sent),
        cmocka_unit_test(test_window_of_a_packed_sequence),
        cmocka_unit_test(test_ranks_without_rows),
        cmocka_unit_test(test_scatter_and_gather),
        cmocka_unit_test(test_scatter_after_a_failure),
        cmocka_unit_test(test_scatter_errors),
        cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_all_gather_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
