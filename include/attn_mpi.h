/* libattn-mpi: attention over many ranks, with the bits of one call. It is a separate library,
 * which needs libattn. attn.h does not include this header.
 *
 * A rank is a process of an MPI job, or a thread (attn_ranks_create). Each rank has some rows of q,
 * k and v and gets the same rows of out, and of the gradients of q, k and v.
 *
 * Layout: P is the number of ranks. Tokens are dealt to the ranks in blocks of 64, in order: block
 * n is on rank n % P. Queries and keys are dealt in the same way, so token i has its q, k, v and
 * out on the same rank. Any number of tokens and any P is fine; a rank may have no rows.
 *
 *   tokens         0..63   64..127  128..191  192..255  256..319  320..383  384..400
 *   rank, P = 3      0        1        2         0         1         2         0
 *   its rows       0..63    0..63    0..63    64..127   64..127   64..127   128..144
 *
 * A program of an MPI job looks like this. attn_comm_open is in the header attn_mpi_comm.h, so the
 * program's own mpicc compiles it.
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
 * called it, and from no other. The functions must deliver messages from one rank to another with
 * the same tag in the order in which they were sent. Tags are 0 and 1.
 *
 * send and receive start a message of n >= 1 bytes and return at once: 0, or another number if that
 * failed. The message uses its memory until `test` or `cancel` reports that it no longer does.
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
 * calls attn_ranks_comm to fill its own table, and passes this table to the functions below.
 * delay_us > 0: each message arrives late, by a random time of at most delay_us microseconds.
 * `seed` is the seed of these random times.
 * Threads: any thread may call these functions at any time, with one exception: destroy may be
 * called only when no rank uses its table any more. Errors: ATTN_ERR_MEMORY; ATTN_ERR_ARGUMENT if
 * size < 1 or delay_us < 0. */
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
/* How many of tokens 0 .. tokens-1 lie on `rank`. attn_mpi_rows(i, attn_mpi_owner(i, P), P) counts
 * the tokens before token i on its own rank. So it is also the row that token i has there. */
ATTN_API int64_t attn_mpi_rows(int64_t tokens, int rank, int P);
/* Writes the number of each row's token to `positions`, which has room for attn_mpi_rows(tokens,
 * rank, P) numbers. Rotary embeddings, for example, need these numbers. */
ATTN_API void attn_mpi_positions(int64_t tokens, int rank, int P, int64_t *positions);

/* take copies the rows of a rank from `whole` to `local`; put copies them from `local` to `whole`.
 * whole is [B,H,tokens,D], local is [B,H,rows of the rank,D]; both have one dtype and any strides.
 * Only rows of this rank are accessed, so `whole` may be a mapped file. Errors: ATTN_ERR_SHAPE;
 * ATTN_ERR_DTYPE; ATTN_ERR_ARGUMENT if a tensor is NULL or rank is not within 0..P-1. */
ATTN_API attn_status attn_mpi_take(const attn_tensor *whole, int rank, int P,
                                   const attn_tensor *local, attn_error *err);
ATTN_API attn_status attn_mpi_put(const attn_tensor *local, int rank, int P,
                                  const attn_tensor *whole, attn_error *err);

/* scatter and gather copy the rows of a rank as take and put do, but between ranks: rank 0 has
 * `whole`, other ranks pass NULL. scatter writes `local` on all ranks, gather writes `whole` on
 * rank 0. All ranks must call them. Memory: rank 0 needs a copy of the rows of all other ranks;
 * every other rank needs a copy of its own rows. deadline: seconds, as in attn_mpi_options. Errors:
 * those of take and put; ATTN_ERR_SHAPE if `local` of a rank has another type or size than `whole`
 * asks for; ATTN_ERR_LIMIT if the rows of a rank have more than 2^30 bytes; ATTN_ERR_MEMORY;
 * ATTN_ERR_COMM. All ranks return the same error, and no row has moved, except after
 * ATTN_ERR_COMM. */
ATTN_API attn_status attn_mpi_scatter(const attn_comm *comm, const attn_tensor *whole,
                                      const attn_tensor *local, double deadline, attn_error *err);
ATTN_API attn_status attn_mpi_gather(const attn_comm *comm, const attn_tensor *local,
                                     const attn_tensor *whole, double deadline, attn_error *err);

/* Copies the n bytes at `mine` of every rank to `all` of every rank: those of rank 0 first. All
 * ranks must call it, with the same n; `all` has room for P n bytes. With it a program can compare
 * what the functions below do not compare, or tell all ranks of an error before it calls them.
 * Errors, the same on all ranks: ATTN_ERR_COMM; ATTN_ERR_MEMORY; ATTN_ERR_LIMIT if n is above 2^30;
 * ATTN_ERR_ARGUMENT if n is not 0 and an address is NULL; ATTN_ERR_SHAPE if ranks pass different n.
 * */
ATTN_API attn_status attn_mpi_all_gather(const attn_comm *comm, const void *mine, size_t n,
                                         void *all, double deadline, attn_error *err);

/* ------------------------------------------------------------------------------------ Forward
 *
 * attn_mpi_sdpa_forward() computes attn_sdpa_forward on the tokens of all ranks. All ranks call it.
 * What follows describes mode ATTN_MPI_SEGMENTS; attn_mpi_mode says what differs in ATTN_MPI_HEADS.
 *
 * args are those of one call, with these differences. q, out and lse have the rows of this rank
 * only, so their T is the number of these rows. k and v have the keys of this rank only, and have
 * data. `mask` has a row for each row of q, and a column for each of all S keys (or 1 column).
 * key_lengths, cu_seqlens, causal_offset, windows, alibi_slopes, sink_logits and dropout describe
 * the call with all tokens, and are the same on all ranks. `scores` and `cache` are refused;
 * `workspace` is not used.
 *
 * Bits: out and lse are bit-identical to one call with all tokens, for any P and segment_keys, if
 * the instruction set of all ranks is the same. They do not depend on the number of threads.
 *
 * Traffic: a segment is a run of segment_keys keys. Segments are sent in the order of their keys.
 * Every rank sends its rows of a segment to each rank that needs it, while the segments before it
 * are computed. A rank needs a segment if causal, window, lengths or packed sequences let one of
 * its rows see a key of it. Every rank computes the needs of all ranks itself, without messages.
 * The tensor `mask` counts as if it hid nothing. If every rank needs every segment, a rank receives
 * (D + Dv) Hk B S (P-1)/P elements. A rank with rows that are not finite gets its segments again,
 * for the reason that attn_pieces.h gives for ATTN_AGAIN. To agree on that, each rank sends one
 * short message to each other rank.
 *
 * Memory: attn_sdpa_state_bytes() for the rows of q; three segments of keys and values; a byte for
 * each rank and segment; 16 bytes for each segment; 8 bytes for each row of q. All but the state
 * come from malloc. No rank holds the keys of all ranks.
 *
 * Checkpoints: with options.checkpoint the ranks save the state of the call from time to time. A
 * later call goes on from there, on any number of ranks, to the same bits (attn_mpi_checkpoint).
 *
 * Errors: first, the ranks compare their calls. If the shapes, rules, version or instruction
 * set of a rank differ from those of the others, or if a rank has an error, all ranks return the
 * same error before anything is written. The error names that rank. A later error of one rank also
 * becomes the error of all; out and lse are then unspecified. ATTN_ERR_COMM: a rank sent nothing
 * within the deadline, or the table reported a failure. The message names the ranks that are
 * missing. All ranks end within about one deadline. If the last message of a call is lost, a rank
 * that already has all that it needs returns ATTN_OK. `comm` cannot be used again after
 * ATTN_ERR_COMM. Memory of messages that cannot be stopped stays allocated.
 *
 * Threads: only one call at a time may use a table. During a call, ctx must not be used for
 * anything else.
 * Sources: block-cyclic layout, as in ScaLAPACK; keys passed between ranks, Liu et al. 2023.
 */
typedef struct attn_mpi_report {
    int64_t segments, segment_keys;
    int64_t received_segments;          /* that this rank needed, in all sweeps */
    int64_t sent_bytes, received_bytes; /* of keys and values, in all sweeps; and of gradients */
    int64_t buffer_bytes;               /* of the segments in memory */
    int sweeps;                         /* 1 to 3; 1 in the backward */
    /* In ATTN_MPI_HEADS there are no segments. sent_bytes and received_bytes are those of all
     * tensors; buffer_bytes are those of the rank's heads and of the messages. */
} attn_mpi_report;

/* Checkpoints of a forward. The library decides when to save and which bytes; these functions write
 * and read them. The bytes of one checkpoint form one file, or something like a file. All ranks
 * write it together. A later call, on any number of ranks, reads it.
 *
 * The functions return 0, or another number if they failed. The call then ends with ATTN_ERR_FILE
 * on all ranks. The library calls them from the thread that called it.
 *
 * Saving: after a segment, if `every` seconds have passed on any rank since the last save, or since
 * the call began, all ranks call `open`. When it has succeeded on all ranks, each calls `write` for
 * its own bytes, some at a time, and then `sync`; of the `size` bytes, each is written once, by one
 * rank. When `sync` has succeeded on all ranks, all call `close` with complete = 1: now this
 * checkpoint replaces the one before. If something has failed on any rank, all call `close` with
 * complete = 0: these bytes must be discarded, and the checkpoint before must stay.
 *
 * Resuming: `read` reads bytes at .. at+n-1 of the `size` bytes of a checkpoint. The call must be
 * the saved one: same T, S, rules, instruction set and version of the library, and the same numbers
 * in q, k, v and mask. All of this is compared. A call that differs, and bytes that are damaged or
 * cut off, end with ATTN_ERR_FILE before any key is computed; out and lse are then unspecified. P,
 * segment_keys and the number of threads may differ. The bytes are treated as untrusted input.
 *
 * With saving or resuming, the rows of q are computed in blocks of 64, each with a state of its own
 * (attn_sdpa_begin). So at most B H threads of a rank work at a time. With cu_seqlens each block
 * has a chunk of 256 keys and values in memory. While saving is requested, the ranks wait for each
 * other after each segment. */
typedef struct attn_mpi_checkpoint {
    size_t struct_size; /* sizeof(attn_mpi_checkpoint), set by ATTN_MPI_CHECKPOINT_INIT */
    void *user;         /* the first argument of each function */
    double every;       /* seconds; 0: save after each segment */
    /* All four, or none; without them nothing is saved. */
    int (*open)(void *user, uint64_t size);
    int (*write)(void *user, uint64_t at, const void *bytes, size_t n);
    int (*sync)(void *user); /* waits until this rank's bytes are on the disk */
    int (*close)(void *user, int complete);
    /* NULL: the call begins with the first key. */
    int (*read)(void *user, uint64_t at, void *bytes, size_t n);
    uint64_t size; /* bytes of the checkpoint that `read` reads */
} attn_mpi_checkpoint;

#define ATTN_MPI_CHECKPOINT_INIT                                                                   \
    {                                                                                              \
        .struct_size = sizeof(attn_mpi_checkpoint)                                                 \
    }

static inline void attn_mpi_checkpoint_init(attn_mpi_checkpoint *checkpoint)
{
    checkpoint->struct_size = sizeof *checkpoint;
    checkpoint->user = NULL;
    checkpoint->every = 0;
    checkpoint->open = NULL;
    checkpoint->write = NULL;
    checkpoint->sync = NULL;
    checkpoint->close = NULL;
    checkpoint->read = NULL;
    checkpoint->size = 0;
}

/* How a call is cut. ATTN_MPI_SEGMENTS: each rank computes its rows; keys travel in segments, as
 * described above.
 *
 * ATTN_MPI_HEADS: each rank computes some key/value heads and their query heads, for all tokens.
 * Rows of q, k and v travel to the ranks that compute their heads, and rows of out and lse travel
 * back. k must have a head for each rank. segment_keys and checkpoint are refused.
 *   Bits: those of one call, all gradients included, for any P. dk and dv may also be f16 or bf16.
 *   Traffic: with P dividing Hk, a rank sends, and receives, (P-1)/P^2 of the elements of q, k, v,
 *   out and lse, and of a mask with a row for each query. If the mask has one head, all of it goes
 *   to every rank. In the backward also of dout, dlse and the gradients.
 *   Memory: the rows of all tokens of these tensors for the rank's heads; attn_sdpa_state_bytes()
 *   or attn_sdpa_backward_state_bytes() for them; 2 P messages of 4 MiB, or of one row if that is
 *   larger.
 *   Errors: while a rank computes, it sends nothing, so the deadline must be longer than the time
 *   in which the slowest rank computes its heads.
 *   Source: all-to-all over heads, Jacobs et al. 2023 (DeepSpeed-Ulysses). */
typedef enum attn_mpi_mode { ATTN_MPI_SEGMENTS, ATTN_MPI_HEADS } attn_mpi_mode;

typedef struct attn_mpi_options {
    size_t struct_size;      /* sizeof(attn_mpi_options), set by ATTN_MPI_OPTIONS_INIT */
    int64_t T, S;            /* queries and keys of all ranks together */
    int64_t segment_keys;    /* rounded up to a multiple of 256; 0: the library chooses 2048 or more
                             such that each rank has the same number of keys in a segment */
    double deadline;         /* seconds without any progress of a message; 0: 600 */
    attn_mpi_report *report; /* out; or NULL */
    const attn_mpi_checkpoint *checkpoint; /* or NULL; refused by the backward */
    attn_mpi_mode mode;
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
    options->checkpoint = NULL;
    options->mode = ATTN_MPI_SEGMENTS;
}

ATTN_API attn_status attn_mpi_sdpa_forward(const attn_comm *comm, attn_context *ctx,
                                           const attn_sdpa_args *args,
                                           const attn_mpi_options *options, attn_error *err);

/* ----------------------------------------------------------------------------------- Backward
 *
 * attn_mpi_sdpa_backward() computes attn_sdpa_backward on the tokens of all ranks. All ranks call
 * it. What follows describes mode ATTN_MPI_SEGMENTS, too.
 *
 * args and options are those of the forward; out and lse hold its results, and lse is required.
 * grads are those of one call, with these differences: dout, dlse and dq have T = the rows of this
 * rank; dk and dv have S = the rows of this rank. Each rank gets the whole gradient of
 * alibi_slopes and sink_logits. All ranks ask for the same gradients. dk and dv must be f32 or f64:
 * f16 and bf16 are refused. `dmask` and `cache` are refused; `scores` are ignored.
 *
 * Bits: dq is bit-identical to one call with all tokens, for any P and segment_keys. The bits
 * of dk, dv, dalibi_slopes and dsink_logits depend on P, but not on timing, threads or segment_keys
 * (for the same call, on the same instruction set). Their errors are within the bounds of one call.
 * On one rank all gradients have the bits of one call.
 *
 * Traffic: keys are sent once, in segments, as in the forward. A rank computes what its rows add to
 * dk and dv of each segment that it needs, and sends each other rank the part for the keys of that
 * rank: (D + Dv) Hk B S (P-1)/P elements if all is seen, in the type that the call computes in. The
 * owner of a key adds these contributions in double, rank 0 first. If dk or dv is not wanted, no
 * contributions to it are sent. With cu_seqlens a segment ends up to 255 keys earlier, where a
 * chunk of 256 keys of a sequence ends.
 *
 * Memory: attn_sdpa_backward_state_bytes() for the rows of q; three segments of keys and values;
 * two segments of their gradients, and the contributions of P-1 ranks to this rank's keys of a
 * segment, which are as large as a third one; a byte for each rank and segment; 16 bytes for each
 * segment; 8 bytes for each row of q; 2 (P + 1) H numbers for slopes and sinks. All but the state
 * come from malloc.
 *
 * Errors: as in the forward; after a later error all gradients are unspecified. The deadline must
 * be longer than the time in which the slowest rank computes one segment. In the backward this time
 * is about three times as long as in the forward.
 *
 * Threads: as in the forward. */
ATTN_API attn_status attn_mpi_sdpa_backward(const attn_comm *comm, attn_context *ctx,
                                            const attn_sdpa_args *args,
                                            const attn_sdpa_grads *grads,
                                            const attn_mpi_options *options, attn_error *err);

#ifdef __cplusplus
}
#endif

#endif
