/* The backward over ranks: sums of contributions, traffic, memory, packed sequences, modes. */
/* labels: threads */
#include <fenv.h>
#include <math.h>

#include "support/rank_backward.h"

/* ---------------------------------------------------------------------------------- the sums */

/* Two ranks, 128 tokens, one head of width 1; q = 0, so every weight is 1/128; v_j = j and dout_i =
 * i + 1. By hand: dv_j = sum_i (i + 1) / 128 = 128 * 129 / 2 / 128 = 64.5. dk = scale sum_i ds_ij
 * q_i = 0. */
static float by_hand[2][7][64];
static attn_comm comms[2];

static void *run_by_hand(void *arg)
{
    const attn_comm *comm = arg;
    float(*x)[64] = by_hand[comm->rank];
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    attn_mpi_options o = ATTN_MPI_OPTIONS_INIT;
    const attn_tensor lse_tensor = attn_bhtd(x[3], ATTN_F32, 1, 1, 64, 1);
    for (int i = 0; i < 64; i++) {
        x[0][i] = (float)(64 * comm->rank + i);     /* v */
        x[2][i] = (float)(64 * comm->rank + i + 1); /* dout */
        x[4][i] = x[5][i] = x[6][i] = 77;
    }
    static float zeros[64];
    a.q = a.k = attn_bhtd(zeros, ATTN_F32, 1, 1, 64, 1);
    a.v = attn_bhtd(x[0], ATTN_F32, 1, 1, 64, 1);
    a.out = attn_bhtd(x[1], ATTN_F32, 1, 1, 64, 1);
    a.lse = &lse_tensor;
    g.dout = attn_bhtd(x[2], ATTN_F32, 1, 1, 64, 1);
    g.dq = attn_bhtd(x[4], ATTN_F32, 1, 1, 64, 1);
    g.dk = attn_bhtd(x[5], ATTN_F32, 1, 1, 64, 1);
    g.dv = attn_bhtd(x[6], ATTN_F32, 1, 1, 64, 1);
    o.T = o.S = 128;
    attn_status status = attn_mpi_sdpa_forward(comm, NULL, &a, &o, NULL);
    if (status == ATTN_OK)
        status = attn_mpi_sdpa_backward(comm, NULL, &a, &g, &o, NULL);
    return status == ATTN_OK ? arg : NULL;
}

static void test_by_hand(void **state)
{
    (void)state;
    pthread_t threads[2];
    void *ended;
    assert_int_equal(attn_ranks_create(2, 0, 1, &ranks, NULL), ATTN_OK);
    for (int r = 0; r < 2; r++) {
        attn_ranks_comm(ranks, r, &comms[r]);
        assert_int_equal(pthread_create(&threads[r], NULL, run_by_hand, &comms[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(pthread_join(threads[r], &ended), 0);
        assert_non_null(ended);
        for (int i = 0; i < 64; i++) {
            assert_near(by_hand[r][1][i], 63.5, <, 1e-4); /* out: the mean of 0 .. 127 */
            assert_float_equal(by_hand[r][4][i], 0, 0);
            assert_float_equal(by_hand[r][5][i], 0, 0);
            assert_near(by_hand[r][6][i], 64.5, <, 1e-4);
        }
    }
    attn_ranks_destroy(ranks);
}

/* Causal attention of 1100 tokens; the same bits with delays, threads and other segments. */
static void test_any_number_of_ranks(void **state)
{
    (void)state;
    static float first_dk[sizeof dk / sizeof *dk], first_dv[sizeof dv / sizeof *dv];
    for (int P = 1; P <= MOST; P++)
        for (int n = 0; n < 3; n++) {
            describe_case("%d ranks, run %d", P, n);
            random_state = 11; /* the same numbers in each run */
            prepare(P, n == 1 ? 200 : 0);
            prepare_backward(P);
            for (int r = 0; r < P; r++) {
                attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
                options.threads = 1 + (n + r) % 3;
                assert_int_equal(attn_context_create(&options, &all[r].ctx, NULL), ATTN_OK);
                all[r].options.segment_keys = n == 2 ? 0 : 256;
            }
            run(P);
            expect_gradients(P);
            if (n == 0) {
                memcpy(first_dk, got.dk, sizeof dk);
                memcpy(first_dv, got.dv, sizeof dv);
            }
            assert_same_array(got.dk, first_dk, sizeof dk);
            assert_same_array(got.dv, first_dv, sizeof dv);
            end(P);
        }
}

/* What the rows of rank r of P add to dk and dv of all keys: the backward in pieces of these rows,
 * without ranks. */
static void contributions_of(int r, int P, float *part_dk, float *part_dv)
{
    static int64_t positions[TOKENS];
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    attn_sdpa_args a = all[r].args;
    attn_sdpa_grads g = all[r].grads;
    attn_sdpa_backward_state *s;
    int64_t first, past;
    memset(part_dk, 0, sizeof dk);
    memset(part_dv, 0, sizeof dv);
    attn_mpi_positions(TOKENS, r, P, positions);
    part.q_positions = positions, part.whole_T = TOKENS;
    a.k = a.v = g.dk = g.dv = attn_bhtd(NULL, ATTN_F32, B, HK, TOKENS, D);
    assert_int_equal(attn_sdpa_backward_begin(NULL, &a, &g, &part, &s, NULL), ATTN_OK);
    while ((first = attn_sdpa_backward_next(s, 512, &past)) < TOKENS) {
        const int64_t n = past - first;
        const attn_tensor piece_k = attn_bhtd(k + first * D, ATTN_F32, B, HK, n, D),
                          piece_v = attn_bhtd(v + first * D, ATTN_F32, B, HK, n, D),
                          to_k = attn_bhtd(part_dk + first * D, ATTN_F32, B, HK, n, D),
                          to_v = attn_bhtd(part_dv + first * D, ATTN_F32, B, HK, n, D);
        assert_int_equal(attn_sdpa_backward_feed(s, first, &piece_k, &piece_v, &to_k, &to_v, NULL),
                         ATTN_OK);
    }
    assert_int_equal(attn_sdpa_backward_finish(s, NULL), ATTN_OK);
    attn_sdpa_backward_end(s);
}

/* dk and dv are the sums of these contributions in double, rank 0 first. Each rank's dout has
 * another size, so that sums in another order would have other bits. */
static void test_order_of_the_sums(void **state)
{
    (void)state;
    enum { SIZE = sizeof dk / sizeof *dk };
    static const float sizes[MOST] = {1,       0x1p-20F, 0x1p20F, 0x1p-10F,
                                      0x1p15F, 0x1p-5F,  8,       0x1p-15F};
    static float part_dk[SIZE], part_dv[SIZE];
    static double sum_dk[SIZE], sum_dv[SIZE], all_dk[SIZE], all_dv[SIZE], wide[MOST][2][SIZE];
    const attn_tensor whole[] = {attn_bhtd(all_dk, ATTN_F64, B, HK, TOKENS, D),
                                 attn_bhtd(all_dv, ATTN_F64, B, HK, TOKENS, D)};
    for (int P = 3; P <= MOST; P += 5) {
        describe_case("%d ranks", P);
        prepare(P, 20);
        prepare_backward(P);
        for (int r = 0; r < P; r++) {
            const int64_t n = all[r].args.k.shape[2];
            for (size_t i = 0; i < sizeof dout / sizeof *dout; i++)
                all[r].dout[i] *= sizes[r];
            all[r].grads.dk = attn_bhtd(wide[r][0], ATTN_F64, B, HK, n, D);
            all[r].grads.dv = attn_bhtd(wide[r][1], ATTN_F64, B, HK, n, D);
        }
        run(P);
        memset(sum_dk, 0, sizeof sum_dk);
        memset(sum_dv, 0, sizeof sum_dv);
        for (int r = 0; r < P; r++) {
            if (all[r].status != ATTN_OK)
                fail_msg("rank %d: %s", r, all[r].err.message);
            assert_int_equal(attn_mpi_put(&all[r].grads.dk, r, P, &whole[0], NULL), ATTN_OK);
            assert_int_equal(attn_mpi_put(&all[r].grads.dv, r, P, &whole[1], NULL), ATTN_OK);
            contributions_of(r, P, part_dk, part_dv);
            for (int i = 0; i < SIZE; i++)
                sum_dk[i] += (double)part_dk[i], sum_dv[i] += (double)part_dv[i];
        }
        assert_same_array(all_dk, sum_dk, sizeof sum_dk);
        assert_same_array(all_dv, sum_dv, sizeof sum_dv);
        end(P);
    }
}

/* A gradient that is computed in double and too small for a float is 0, not -0. */
static void test_no_negative_zero(void **state)
{
    (void)state;
    for (int P = 1; P <= 2; P++) {
        prepare(P, 0);
        for (size_t i = 0; i < sizeof q / sizeof *q; i++)
            q[i] *= 1e-30F;
        for (size_t i = 0; i < sizeof v / sizeof *v; i++)
            v[i] *= 1e-30F;
        for (int r = 0; r < P; r++) {
            all[r].args.precision = ATTN_PRECISION_ACCURATE;
            for (size_t i = 0; i < sizeof all[r].q / sizeof *all[r].q; i++)
                all[r].q[i] *= 1e-30F;
            for (size_t i = 0; i < sizeof all[r].v / sizeof *all[r].v; i++)
                all[r].v[i] *= 1e-30F;
        }
        prepare_backward(P);
        run(P);
        gather_gradients(P);
        for (size_t i = 0; i < sizeof dk / sizeof *dk; i++)
            assert_true(got.dk[i] == 0 && !signbit(got.dk[i]));
        end(P);
    }
}

/* Every rank gets the gradients of slopes and sinks, with the same bits. */
static void test_slopes_and_sinks(void **state)
{
    (void)state;
    static const float sinks[H] = {0.5F, -1};
    static double per_rank[MOST][2][H];
    double one_slopes[H], one_sinks[H];
    for (int P = 1; P <= 5; P += 2) {
        describe_case("%d ranks", P);
        prepare(P, 0);
        for (int r = 0; r < P; r++)
            all[r].args.alibi_slopes = slopes, all[r].args.sink_logits = sinks;
        prepare_backward(P);
        for (int r = 0; r < P; r++) {
            all[r].grads.dalibi_slopes = per_rank[r][0];
            all[r].grads.dsink_logits = per_rank[r][1];
        }
        run(P);
        expect_gradients(P);
        const attn_sdpa_args one = whole_args(&all[0].args);
        attn_sdpa_grads g = whole_grads();
        g.dalibi_slopes = one_slopes, g.dsink_logits = one_sinks;
        assert_int_equal(attn_sdpa_backward(NULL, &one, &g, NULL), ATTN_OK);
        for (int r = 0; r < P; r++) {
            assert_same_array(&per_rank[r][0][0], &per_rank[0][0][0], sizeof *per_rank);
            for (int h = 0; h < H; h++) {
                const double near = P == 1 ? 0 : 1e-4;
                assert_near(per_rank[r][0][h], one_slopes[h], <=, near * fabs(one_slopes[h]));
                assert_near(per_rank[r][1][h], one_sinks[h], <=, near * fabs(one_sinks[h]));
            }
        }
        end(P);
    }
}

/* ---------------------------------------------------------------------- traffic and memory */

/* If all is seen, each rank sends its keys and values to all others, and to each owner the
 * gradients of the owner's keys: 2 (D + Dv) Hk B S (P-1)/P elements if P divides the blocks. */
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
        prepare_backward(P);
        run(P);
        expect_gradients(P);
        for (int r = 0; r < P; r++) {
            const int64_t own = attn_mpi_rows(TOKENS, r, P), row = 2 * D * HK * 4;
            const int64_t most = attn_mpi_rows(256, r, P); /* of a segment of 256 keys */
            const attn_mpi_report *report = &all[r].report;
            assert_int_equal(report->received_bytes, row * (TOKENS - own + own * (P - 1)));
            assert_int_equal(report->sent_bytes, row * (own * (P - 1) + TOKENS - own));
            assert_int_equal(report->sweeps, 1);
            assert_int_equal(report->received_segments, 5);
            assert_true(report->buffer_bytes >= row * (5 * 256 + (P - 1) * most) &&
                        report->buffer_bytes <= row * (5 * 256 + (P - 1) * 128));
            const int64_t more = attn_ranks_sent(ranks, r) - report->sent_bytes;
            assert_true(P == 1 ? more == 0 : more > 0 && more < (P - 1) * 1000);
        }
        end(P);
    }
}

/* Causal, P = 8, segments of 256 keys, as in test_ranks: ranks need 3 to 5 segments. Contributions
 * to a segment come from the ranks that need it. */
static void test_hidden_segments_are_not_sent(void **state)
{
    (void)state;
    static const int64_t need[] = {5, 5, 3, 3, 4, 4, 4, 4};
    prepare(8, 0);
    prepare_backward(8);
    run(8);
    expect_gradients(8);
    for (int r = 0; r < 8; r++) {
        int64_t keys = 0;
        for (int64_t j = 0; j < TOKENS; j++) {
            if (j / 64 % 8 != r) {
                keys += j < 256 * need[r]; /* received as a key */
                continue;
            }
            for (int other = 0; other < 8; other++) /* received as a gradient */
                keys += other != r && j < 256 * need[other];
        }
        assert_int_equal(all[r].report.received_segments, need[r]);
        assert_int_equal(all[r].report.received_bytes, keys * 2 * D * HK * 4);
    }
    end(8);
}

/* Gradients that nobody wants do not travel. */
static void test_what_is_not_wanted_is_not_sent(void **state)
{
    (void)state;
    prepare(2, 0);
    prepare_backward(2);
    for (int r = 0; r < 2; r++)
        all[r].grads.dk = all[r].grads.dv = (attn_tensor){0};
    run(2);
    const attn_sdpa_args one = whole_args(&all[0].args);
    const attn_sdpa_grads g = whole_grads();
    assert_int_equal(attn_sdpa_backward(NULL, &one, &g, NULL), ATTN_OK);
    for (int r = 0; r < 2; r++) {
        if (all[r].status != ATTN_OK)
            fail_msg("rank %d: %s", r, all[r].err.message);
        const int64_t n = attn_mpi_rows(TOKENS, r, 2);
        assert_true(all[r].report.sent_bytes <= 2 * D * HK * 4 * n);
        assert_true(is_blank(all[r].dk, sizeof all[r].dk));
        for (int64_t i = 0; i < n; i++) /* row i is token (2 (i/64) + r) 64 + i % 64 */
            for (int64_t h = 0; h < H; h++)
                assert_memory_equal(&all[r].dq[(h * n + i) * D],
                                    &dq[(h * TOKENS + (i / 64 * 2 + r) * 64 + i % 64) * D],
                                    D * sizeof(float));
    }
    end(2);
}

/* -------------------------------------------------------------------------------- the rules */

/* Chunks count from the start of a packed sequence, so segments end inside blocks: here at keys
 * 100 + 256 n. The last 50 tokens are in no sequence. */
static void test_packed_sequences(void **state)
{
    (void)state;
    static const int64_t starts[] = {0, 100, 101, 101, 700, TOKENS - 50};
    static const int sizes[] = {1, 2, 3, 8};
    for (int n = 0; n < 8; n++) {
        const int P = sizes[n % 4];
        describe_case("%d ranks%s", P, n < 4 ? "" : ", a window");
        prepare(P, 0);
        for (int r = 0; r < P; r++) {
            all[r].args.cu_seqlens_q = all[r].args.cu_seqlens_k = starts;
            all[r].args.sequences = 5;
            all[r].args.window_left = n < 4 ? -1 : 10;
        }
        prepare_backward(P);
        run(P);
        expect_gradients(P);
        for (int64_t j = (TOKENS - 50) * D; j < TOKENS * D; j++) {
            assert_float_equal(got.dk[j], 0, 0);
            assert_float_equal(got.dv[j], 0, 0);
        }
        end(P);
    }
}

/* Keys beyond a length are seen by no row: their segments are not sent, and their gradients are
 * 0. */
static void test_unseen_keys(void **state)
{
    (void)state;
    static const int64_t length = 300;
    prepare(3, 0);
    for (int r = 0; r < 3; r++)
        all[r].args.key_lengths = &length, all[r].args.causal = ATTN_CAUSAL_NONE;
    prepare_backward(3);
    run(3);
    expect_gradients(3);
    for (int r = 0; r < 3; r++)
        assert_int_equal(all[r].report.received_segments, 2);
    for (int64_t j = length * D; j < TOKENS * D; j++)
        assert_true(got.dk[j] == 0 && !signbit(got.dk[j]) && got.dv[j] == 0);
    end(3);
}

/* The caller's floating-point mode changes no bit, and is kept. */
static void *run_rounding_down(void *arg)
{
    fesetround(FE_DOWNWARD);
    run_rank(arg);
    return fegetround() == FE_DOWNWARD ? arg : NULL;
}

static void test_rounding_mode(void **state)
{
    (void)state;
    static float first_dk[sizeof dk / sizeof *dk];
    pthread_t threads[3];
    void *kept;
    for (int n = 0; n < 2; n++) {
        random_state = 11; /* the same numbers in both runs */
        prepare(3, 0);
        prepare_backward(3);
        for (int r = 0; r < 3; r++)
            assert_int_equal(pthread_create(&threads[r], NULL, n ? run_rounding_down : run_rank,
                                            &all[r]),
                             0);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(pthread_join(threads[r], &kept), 0);
            assert_true(n == 0 || kept);
        }
        gather_gradients(3);
        if (n == 0)
            memcpy(first_dk, got.dk, sizeof dk);
        assert_same_array(got.dk, first_dk, sizeof dk);
        end(3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_any_number_of_ranks),
        cmocka_unit_test(test_order_of_the_sums),
        cmocka_unit_test(test_no_negative_zero),
        cmocka_unit_test(test_slopes_and_sinks),
        cmocka_unit_test(test_bytes_of_full_attention),
        cmocka_unit_test(test_hidden_segments_are_not_sent),
        cmocka_unit_test(test_what_is_not_wanted_is_not_sent),
        cmocka_unit_test(test_packed_sequences),
        cmocka_unit_test(test_unseen_keys),
        cmocka_unit_test(test_rounding_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
