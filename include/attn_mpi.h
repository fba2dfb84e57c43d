/* libattn-mpi: attention over many ranks, with the bits of one call. A library of its own, which
 * needs libattn. attn.h does not include this header.
 *
 * A rank is a process of an MPI job, or a thread (attn_ranks_create). Each rank has some rows of q,
 * k and v and gets the same rows of out. So far there is the forward; gradients will follow.
 *
 * Layout: tokens are dealt in blocks of 64; block n lies on rank n % P, in the order of the tokens.
 * Queries and keys are dealt alike, so token i has its q, k, v and out on the same rank. Any number
 * of tokens and any P is fine; a rank may have no rows.
 *
 *   tokens         0..63   64..127  128..191  192..255  256..319  320..383  384..400
 *   rank, P = 3      0        1        2         0         1         2         0
 *   its rows       0..63    0..63    0..63    64..127   64..127   64..127   128..144
 *
 * A program of an MPI job (attn_mpi_comm.h has attn_comm_open, compiled by the program's own
 * mpicc):
 *
 *   attn_comm_open(MPI_COMM_WORLD, &comm, &err);
 *   attn_mpi_options options = ATTN_MPI_OPTIONS_INIT;
 *   options.T = options.S = N;
 *   const int64_t n = attn_mpi_rows(N, comm.rank, comm.size);
 *   args.q = attn_bhtd(q, ATTN_F32, B, H, n, D);                 this rank's rows, and so on
 *   attn_mpi_sdpa_forward(&comm, ctx, &args, &options, &err);
 *   attn_comm_close(&comm);
 */
#ifndef ATTN_MPI_H
#define ATTN_MPI_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_MPI_BLOCK 64 /* tokens */

/* ------------------------------------------------------------------------------ Communication
 *
 * A table of functions that move bytes between ranks. The library calls them from the thread that
 * called it, and from no other. Messages from one rank to another with the same tag arrive in the
 * order in which they were sent. Tags are 0 and 1.
 *
 * send and receive start a message of n >= 1 bytes and return at once: 0, or another number if that
 * failed. The memory belongs to the message until `test` or `cancel` says that it does not.
 * test: 1 if the message is complete, and *request is then released; 0 if not yet; -1 if it failed.
 * cancel: gives a message up and releases *request. Returns 1 if its memory is not used any more; 0
 * if it may still be used, by a message that cannot be stopped.
 */
typedef struct attn_comm {
    size_t struct_size; /* sizeof(attn_comm) */
    void *user;         /* the first argument of each function */
    int rank, size;     /* 0 <= rank < size */
    int (*send)(void *user, int to, int tag, const void *bytes, size_t n, void **request);
    int (*receive)(void *user, int from, int tag, void *bytes, size_t n, void **request);
    int (*test)(void *user, void **request);
    int (*cancel)(void *user, void **request);
} attn_comm;

/* Ranks that are threads of this process: for tests, and for programs without MPI. Each thread
 * fills a table of its own by attn_ranks_comm and passes it to the functions below.
 * delay_us > 0: each message arrives up to so many microseconds late, at random by `seed`.
 * Threads: any, at any time; destroy only when no rank uses its table. ATTN_ERR_MEMORY,
 * ATTN_ERR_ARGUMENT if size < 1 or delay_us < 0. */
typedef struct attn_ranks attn_ranks;
ATTN_API attn_status attn_ranks_create(int size, int delay_us, uint64_t seed, attn_ranks **out,
                                       attn_error *err);
ATTN_API void attn_ranks_destroy(attn_ranks *ranks); /* NULL is fine */
ATTN_API void attn_ranks_comm(attn_ranks *ranks, int rank, attn_comm *comm);
/* Bytes that `rank` has sent and that have arrived, in all messages. */
ATTN_API int64_t attn_ranks_sent(const attn_ranks *ranks, int rank);

/* ------------------------------------------------------------------------------------- Layout
 *
 * `tokens` is the number of all tokens, P the number of ranks. These functions need no messages.
 */
ATTN_API int attn_mpi_owner(int64_t token, int P);
/* How many of tokens 0 .. tokens-1 lie on `rank`. So attn_mpi_rows(i, attn_mpi_owner(i, P), P) is
 * the row that token i has on its rank. */
ATTN_API int64_t attn_mpi_rows(int64_t tokens, int rank, int P);
/* positions[attn_mpi_rows(tokens, rank, P)]: the token of each row, for rotary embeddings and
 * others that depend on it. */
ATTN_API void attn_mpi_positions(int64_t tokens, int rank, int P, int64_t *positions);

/* Copy the rows of a rank out of a whole tensor and into one: whole [B,H,tokens,D], local
 * [B,H,rows of the rank,D], of one dtype, any strides. Only rows of this rank are accessed, so
 * `whole` may be a mapped file. ATTN_ERR_SHAPE, ATTN_ERR_DTYPE. */
ATTN_API attn_status attn_mpi_take(const attn_tensor *whole, int rank, int P,
                                   const attn_tensor *local, attn_error *err);
ATTN_API attn_status attn_mpi_put(const attn_tensor *local, int rank, int P,
                                  const attn_tensor *whole, attn_error *err);

/* The same between ranks: rank 0 has `whole`, other ranks pass NULL. scatter writes `local` on all
 * ranks, gather writes `whole` on rank 0. All ranks must call it. Memory on rank 0: a copy of the
 * rows of the other ranks; on others, of their own rows. deadline: seconds, as in attn_mpi_options.
 */
ATTN_API attn_status attn_mpi_scatter(const attn_comm *comm, const attn_tensor *whole,
                                      const attn_tensor *local, double deadline, attn_error *err);
ATTN_API attn_status attn_mpi_gather(const attn_comm *comm, const attn_tensor *local,
                                     const attn_tensor *whole, double deadline, attn_error *err);

/* ------------------------------------------------------------------------------------ Forward
 *
 * attn_mpi_sdpa_forward() computes attn_sdpa_forward on the tokens of all ranks. All ranks call it.
 *
 * args are those of one call, with these differences: q, out, lse have T = the rows of this rank; k
 * and v have S = the rows of this rank, with data; `mask` has a row for each row of q, and all S
 * keys (or 1) as columns. key_lengths, cu_seqlens, causal_offset, windows, alibi_slopes,
 * sink_logits and dropout are those of the whole, the same on all ranks. `scores` and `cache` are
 * refused; `workspace` is not used.
 *
 * Bits: out and lse are bit-identical to one call with all tokens, for any P and segment_keys, if
 * the instruction set of all ranks is the same. They do not depend on the number of threads.
 *
 * Traffic: keys travel in segments, in their order. Every rank sends its rows of a segment to each
 * rank that needs it, while the segments before it are computed. A rank needs a segment if causal,
 * window, lengths or packed sequences let one of its rows see a key of it. All ranks know that
 * without messages. A mask with data counts as if it hid nothing. If all is seen, a rank receives
 * (D + Dv) Hk B S (P-1)/P elements. ATTN_AGAIN (see attn_pieces.h): ranks with such rows get their
 * segments again, and all ranks agree on that by one short message from each to each.
 *
 * Memory: attn_sdpa_state_bytes() for the rows of q; three segments of keys and values; a byte for
 * each rank and segment; from malloc. Not the keys of all ranks.
 *
 * Errors: first, the ranks compare their calls. If one rank has other shapes, rules, version or
 * instruction set, or an error of its own, all ranks return the same error, which names that rank,
 * before anything is written. A later error of one rank also becomes the error of all; out and lse
 * are then unspecified. ATTN_ERR_COMM: a rank sent nothing within the deadline, or the table
 * reported a failure. The message names the ranks that are missing. All ranks end within about one
 * deadline. `comm` cannot be used again after ATTN_ERR_COMM. Memory of messages that cannot be
 * stopped stays allocated.
 *
 * Threads: one call at a time on a table. ctx must not be used meanwhile.
 * Sources: block-cyclic layout, as in ScaLAPACK; keys passed between ranks, Liu et al. 2023.
 */
typedef struct attn_mpi_report {
    int64_t segments, segment_keys;
    int64_t received_segments;          /* that this rank needed, in all sweeps */
    int64_t sent_bytes, received_bytes; /* of keys and values, in all sweeps */
    int64_t buffer_bytes;               /* of the segments in memory */
    int sweeps;                         /* 1 to 3 */
} attn_mpi_report;

typedef struct attn_mpi_options {
    size_t struct_size;      /* sizeof(attn_mpi_options), set by ATTN_MPI_OPTIONS_INIT */
    int64_t T, S;            /* queries and keys of the whole */
    int64_t segment_keys;    /* rounded up to a multiple of 256; 0: 2048 or more, so that all ranks
                             have equally many keys of a segment */
    double deadline;         /* seconds without any progress of a message; 0: 600 */
    attn_mpi_report *report; /* out; or NULL */
} attn_mpi_options;

#define ATTN_MPI_OPTIONS_INIT                                                                      \
    {                                                                                              \
        .struct_size = sizeof(attn_mpi_options)                                                    \
    }

static inline void attn_mpi_options_init(attn_mpi_options *options)
{
    options->struct_size = sizeof *options;
    options->T = options->S = options->segment_keys = 0;
    options->deadline = 0;
    options->report = NULL;
}

ATTN_API attn_status attn_mpi_sdpa_forward(const attn_comm *comm, attn_context *ctx,
                                           const attn_sdpa_args *args,
                                           const attn_mpi_options *options, attn_error *err);

#ifdef __cplusplus
}
#endif

#endif
