/* A rank of an MPI job that tests libattn-mpi; run.sh starts it.
 *
 *   job bits COUNT     random calls: the bits of one call
 *   job backward COUNT random backwards: the bits of dq, the bounds of sums over queries, repeats
 *   job stop           rank 1 stops; the others end with ATTN_ERR_COMM
 *   job layout N       scatter and gather of N tokens */
#include <signal.h>
#include <time.h>

#include "attn_mpi_comm.h"
#include "support/rank_gradients.h"

static attn_comm comm;
static uint64_t all_bits;
static int by_heads; /* calls in mode ATTN_MPI_HEADS */

static void check_problem(check_case *c)
{
    static check_call call;
    static rank_part part;
    attn_error err;
    rank_problem_draw(c, &call);
    if (attn_sdpa_forward(check_context(c, 1), &call.args, &err) != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    rank_part_new(c, &call, comm.rank, comm.size, &part);
    if (attn_mpi_sdpa_forward(&comm, check_context(c, 1), &part.args, &part.options, &err) !=
        ATTN_OK)
        check_fail(c, "rank %d of %d: %s", comm.rank, comm.size, err.message);
    else
        rank_part_compare(c, &call, &part, comm.rank, comm.size);
    if (comm.size <= call.args.k.shape[1]) {
        rank_part_new(c, &call, comm.rank, comm.size, &part);
        rank_part_by_heads(&part);
        by_heads++;
        if (attn_mpi_sdpa_forward(&comm, check_context(c, 1), &part.args, &part.options, &err) !=
            ATTN_OK)
            check_fail(c, "by heads, rank %d of %d: %s", comm.rank, comm.size, err.message);
        else
            rank_part_compare(c, &call, &part, comm.rank, comm.size);
    }
    check_expect_intact(c);
    all_bits = rank_hash(c, &call.args.out, all_bits);
}

/* The same call twice, with other threads and segments. Every rank takes part in both calls, also
 * after a failure. */
static void check_backward_problem(check_case *c)
{
    static check_gradients g;
    static rank_gradients x;
    attn_error err;
    uint64_t hashes[2];
    g = (check_gradients){0};
    const bool finite = rank_gradients_draw(c, &g, true);
    for (int n = 0; n < 2; n++) {
        rank_gradients_new(c, &g, comm.rank, comm.size, &x);
        x.part.options.segment_keys = n ? 256 : 0;
        if (attn_mpi_sdpa_backward(&comm, check_context(c, 1 + n), &x.part.args, &x.grads,
                                   &x.part.options, &err) != ATTN_OK)
            check_fail(c, "rank %d of %d: %s", comm.rank, comm.size, err.message);
        else
            rank_gradients_compare(c, &g, &x, finite, comm.rank, comm.size);
        hashes[n] = rank_gradients_hash(c, &x);
    }
    if (comm.size <= g.call.args.k.shape[1]) {
        rank_gradients_new(c, &g, comm.rank, comm.size, &x);
        rank_part_by_heads(&x.part);
        by_heads++;
        if (attn_mpi_sdpa_backward(&comm, check_context(c, 1), &x.part.args, &x.grads,
                                   &x.part.options, &err) != ATTN_OK)
            check_fail(c, "by heads, rank %d of %d: %s", comm.rank, comm.size, err.message);
        else
            rank_gradients_compare_all(c, &g, &x, comm.rank, comm.size);
    }
    if (hashes[0] != hashes[1])
        check_fail(c, "rank %d of %d: other bits in the second call", comm.rank, comm.size);
    check_expect_intact(c);
    if (check_gradients_want(&g.dq))
        all_bits = rank_hash(c, &g.grads.dq, all_bits);
}

static int bits(int count, void (*check)(check_case *c))
{
    check_run_state run = {.out = stdout, .buffers = check_buffers_create()};
    for (int n = 0; run.buffers && n < count && run.failed == 0; n++)
        check_one(&run, "ranks", check, rank_isa(n), 64, 0, (uint64_t)(7000 + n), NULL);
    if (comm.rank == 0)
        printf("%d ranks: %d problems, %d equal one call, %d also by heads; hash of its results "
               "%016" PRIx64 "\n",
               comm.size, count, (int)run.passed, by_heads, all_bits);
    return run.passed != (uint64_t)count;
}

/* A small call in which rank 1 stops before it takes part. */
static int stop(void)
{
    static float x[64 * 4], out[64 * 4];
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_mpi_options options = ATTN_MPI_OPTIONS_INIT;
    attn_error err;
    options.T = options.S = 64 * comm.size;
    options.deadline = 2;
    a.q = a.k = a.v = attn_bhtd(x, ATTN_F32, 1, 1, 64, 4);
    a.out = attn_bhtd(out, ATTN_F32, 1, 1, 64, 4);
    if (comm.rank == 1)
        raise(SIGSTOP);
    const attn_status status = attn_mpi_sdpa_forward(&comm, NULL, &a, &options, &err);
    if (status != ATTN_OK)
        fprintf(stderr, "rank %d: %s: %s\n", comm.rank, attn_status_name(status), err.message);
    if (status == ATTN_OK)
        return 1;
    if (comm.rank == 0) { /* the others have said theirs by then */
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        MPI_Abort(MPI_COMM_WORLD, 7);
    }
    nanosleep(&(struct timespec){.tv_sec = 30}, NULL);
    return 1;
}

static int layout(int64_t tokens)
{
    enum { WIDTH = 3 };
    const int64_t rows = attn_mpi_rows(tokens, comm.rank, comm.size);
    float *whole = calloc((size_t)tokens * WIDTH + 1, sizeof *whole);
    float *back = calloc((size_t)tokens * WIDTH + 1, sizeof *back);
    float *local = calloc((size_t)rows * WIDTH + 1, sizeof *local);
    int wrong = !whole || !back || !local;
    for (int64_t i = 0; i < tokens * WIDTH; i++)
        whole[i] = (float)i;
    const attn_tensor all = attn_bhtd(whole, ATTN_F32, 1, 1, tokens, WIDTH),
                      to = attn_bhtd(back, ATTN_F32, 1, 1, tokens, WIDTH),
                      own = attn_bhtd(local, ATTN_F32, 1, 1, rows, WIDTH);
    wrong += attn_mpi_scatter(&comm, comm.rank ? NULL : &all, &own, 60, NULL) != ATTN_OK;
    for (int64_t i = 0; i < rows; i++)
        wrong +=
            local[i * WIDTH] != (float)(((i / 64 * comm.size + comm.rank) * 64 + i % 64) * WIDTH);
    wrong += attn_mpi_gather(&comm, &own, comm.rank ? NULL : &to, 60, NULL) != ATTN_OK;
    wrong += comm.rank == 0 && memcmp(whole, back, (size_t)tokens * WIDTH * sizeof *whole) != 0;
    free(whole), free(back), free(local);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    attn_error err;
    int provided, wrong = 2;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (attn_comm_open(MPI_COMM_WORLD, &comm, &err) != ATTN_OK) {
        fprintf(stderr, "%s\n", err.message);
    } else {
        if (argc == 3 && strcmp(argv[1], "bits") == 0)
            wrong = bits(atoi(argv[2]), check_problem);
        else if (argc == 3 && strcmp(argv[1], "backward") == 0)
            wrong = bits(atoi(argv[2]), check_backward_problem);
        else if (argc == 2 && strcmp(argv[1], "stop") == 0)
            wrong = stop();
        else if (argc == 3 && strcmp(argv[1], "layout") == 0)
            wrong = layout(atoi(argv[2]));
        attn_comm_close(&comm);
    }
    MPI_Finalize();
    return wrong;
}
