/* What the files of libattn-mpi share. A file calls only files before it in this order: messages.c,
 * layout.c, needs.c, agree.c, call.c, segments.c, heads.c, saved.c, then forward.c and backward.c.
 * scatter.c calls messages.c, layout.c and agree.c; threads.c calls only messages.c. */
#ifndef ATTNI_MPI_RANKS_H
#define ATTNI_MPI_RANKS_H

#include "attn_mpi.h"

#include <stdbool.h>

#define KEYS_OF_CHUNK 256 /* pieces of attn_sdpa_feed begin at multiples of this */
#define ATTNI_MPI_MOST_BYTES ((size_t)1 << 30) /* of a message: MPI counts with an int */

static inline int64_t attni_mpi_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t attni_mpi_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Is this gradient wanted? If not, all is 0. */
static inline bool attni_mpi_wanted(const attn_tensor *t)
{
    return t->data || t->shape[0] || t->shape[1] || t->shape[2] || t->shape[3];
}

/* FNV-1a. libattn has the same function (src/core/saved.h), but does not export it. */
static inline uint64_t attni_mpi_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ from[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* ------------------------------------------------------------------------------- messages.c */

/* Does what attni_fail() of libattn does. That function is not exported, so libattn-mpi has its
 * own. */
attn_status attni_mpi_fail(attn_error *err, attn_status status, const char *argument,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));
attn_status attni_mpi_check_comm(const attn_comm *comm, attn_error *err);
double attni_mpi_now(void); /* seconds, of a clock that is never set back */

/* An error in the form in which ranks send it to each other. */
typedef struct attni_mpi_notice {
    int32_t status;
    char argument[sizeof((attn_error *)0)->argument];
    char message[sizeof((attn_error *)0)->message];
} attni_mpi_notice;

/* Messages under way with every rank. */
typedef struct attni_mpi_flight {
    void **receives, **sends; /* [size] requests; NULL: none */
} attni_mpi_flight;

/* One collective call: its deadline, its memory, and its notices. A rank that gives up sends a
 * notice with the reason to all others. */
typedef struct attni_mpi_run {
    const attn_comm *comm;
    double seconds;
    attn_error *err, own_err;  /* err is never NULL */
    attni_mpi_notice *notices; /* [size], from the others */
    attni_mpi_flight notified;
    attni_mpi_flight gathered;       /* of attni_mpi_all_gather */
    void *opinions;                  /* of agree.c */
    struct attni_mpi_memory *memory; /* a list, released at the end unless `kept` */
    bool kept;                       /* a message that cannot be stopped may still use it */
} attni_mpi_run;

attn_status attni_mpi_begin(attni_mpi_run *run, const attn_comm *comm, double seconds,
                            attn_error *err);
void attni_mpi_end(attni_mpi_run *run);
/* count * size bytes that live until attni_mpi_end; NULL if there is no memory. */
void *attni_mpi_allocate(attni_mpi_run *run, uint64_t count, uint64_t size);
attn_status attni_mpi_no_memory(attni_mpi_run *run);

attn_status attni_mpi_flight_new(attni_mpi_run *run, attni_mpi_flight *flight);
/* Start a message; nothing is sent if n is 0. */
attn_status attni_mpi_send(attni_mpi_run *run, attni_mpi_flight *flight, int to, const void *bytes,
                           size_t n);
attn_status attni_mpi_receive(attni_mpi_run *run, attni_mpi_flight *flight, int from, void *bytes,
                              size_t n);
/* Lets messages advance. *left becomes the number of those under way. */
attn_status attni_mpi_poll(attni_mpi_run *run, attni_mpi_flight *flight, int *left);
/* Returns when all messages have arrived, or with an error. After an error the caller must cancel
 * the flight. */
attn_status attni_mpi_wait(attni_mpi_run *run, attni_mpi_flight *flight);
/* Tells the other ranks of the error in run->err, which only this rank has. */
attn_status attni_mpi_give_up(attni_mpi_run *run, attn_status status);
/* Cancels the messages of a flight. */
void attni_mpi_cancel(attni_mpi_run *run, attni_mpi_flight *flight);
/* Each rank gets the n bytes of every rank: all[size][n]. */
attn_status attni_mpi_all_gather(attni_mpi_run *run, const void *mine, size_t n, void *all);

/* --------------------------------------------------------------------------------- layout.c */

/* Do these belong together: all rows, and those of `rank` of P? */
attn_status attni_mpi_check_pair(const attn_tensor *whole, const attn_tensor *local, int rank,
                                 int P, attn_error *err);
/* Copies n rows of every head: rows from .. of `source` to rows to .. of `target`. The tensors have
 * the same dtype, heads and width. */
void attni_mpi_copy_rows(const attn_tensor *target, int64_t to, const attn_tensor *source,
                         int64_t from, int64_t n);

/* ---------------------------------------------------------------------------------- needs.c */

typedef struct attni_mpi_plan {
    const attn_sdpa_args *args;   /* of this rank */
    const attn_sdpa_grads *grads; /* of this rank; NULL: the call is a forward */
    int64_t T, S, B;
    int64_t segment_keys, segments;
    int64_t *starts; /* [segments + 1]: the first key of each segment, and S */
    int rank, size;
    bool saves, resumes; /* checkpoints */
    bool heads;          /* mode ATTN_MPI_HEADS; there are no segments */
} attni_mpi_plan;

/* Sets needs[segments]: must `rank` see a key of the segment? `counts` has room for segments + 1
 * numbers. */
void attni_mpi_needs(const attni_mpi_plan *plan, int rank, int64_t *counts, uint8_t *needs);

/* ---------------------------------------------------------------------------------- agree.c */

/* Compares the calls of all ranks. `status` and run->err are the error that this rank has so far,
 * if any. Returns the same status on every rank. */
attn_status attni_mpi_agree(attni_mpi_run *run, const attni_mpi_plan *plan, const char *isa,
                            attn_status status);
/* Compares what all ranks pass to a function that moves rows or bytes. `form` must be the same on
 * all ranks, and `rows` of each rank must be its share of `tokens` of rank 0, unless `tokens` is
 * -1. As above, the result is the same on every rank, so no message is under way after an error. */
attn_status attni_mpi_agree_sizes(attni_mpi_run *run, const char *name, uint64_t form, int64_t rows,
                                  int64_t tokens, attn_status status);
/* Returns the error of the first rank that has one; `status` and run->err are those of this rank.
 * Without an error, sets again[r] to 1 for each rank r that passes ATTN_AGAIN, and returns
 * ATTN_AGAIN if there is such a rank. */
attn_status attni_mpi_agree_again(attni_mpi_run *run, attn_status status, uint8_t *again);
/* The same for a rank that goes on after an error: *status becomes that of all ranks. The result is
 * an error of the exchange itself, after which no message can follow. */
attn_status attni_mpi_exchange(attni_mpi_run *run, attn_status *status, uint8_t *again);

/* ----------------------------------------------------------------------------------- call.c
 *
 * A call of attn_mpi_sdpa_forward or _backward on this rank. It points into itself and must not be
 * moved. */
typedef struct attni_mpi_call {
    attni_mpi_run run;
    attni_mpi_plan plan;
    attn_mpi_options options;
    attn_sdpa_args args;  /* as attn_sdpa_begin wants them: all keys, no data */
    attn_sdpa_args local; /* with this rank's rows */
    attn_mpi_report report;
    attn_mpi_checkpoint checkpoint; /* struct_size 0: none */
} attni_mpi_call;

/* Copies a caller's struct to `to`, which has the defaults; false if it has no valid size. The rule
 * of docs/ABI.md: the caller's struct may be that of an older version, or of a newer one if the
 * members beyond `known` are 0. `least`: the offset of the first member that it may lack. */
bool attni_mpi_read_struct(const void *from, void *to, size_t least, size_t known);
/* Begins the run. After an error, other ranks cannot be told; only attni_mpi_call_end follows. */
attn_status attni_mpi_call_begin(attni_mpi_call *call, const attn_comm *comm,
                                 const attn_mpi_options *options, attn_error *err);
/* Reads and checks options and args, and fills plan, args and local. */
attn_status attni_mpi_call_read(attni_mpi_call *call, const attn_mpi_options *options,
                                const attn_sdpa_args *args);
/* Cuts the keys into segments, and fills plan.starts. A segment ends where a chunk of 256 keys
 * ends: chunks count from the first key or, if `packed`, from the first key of each packed
 * sequence. args must be valid. */
attn_status attni_mpi_call_cut(attni_mpi_call *call, bool packed);
/* The places of this rank's rows, for attn_sdpa_begin and attn_sdpa_backward_begin. */
attn_status attni_mpi_call_part(attni_mpi_call *call, attn_pieces_options *part);
/* Checks all arguments of a forward for this rank's rows. */
attn_status attni_mpi_call_check(attni_mpi_call *call, attn_context *ctx,
                                 const attn_pieces_options *part);
/* Writes the report after success, and ends the run. */
void attni_mpi_call_end(attni_mpi_call *call, attn_status status);

/* ------------------------------------------------------------------------------- segments.c
 *
 * Two tensors whose rows travel together: keys and values, or the gradients of both. They are
 * [B,heads,n,width] for any number of rows n, one after the other. */
typedef struct attni_mpi_pair {
    attn_dtype dtype;
    int64_t B, heads, widths[2];
    size_t bytes; /* of a row of all heads in both tensors; SIZE_MAX: too large */
} attni_mpi_pair;
attni_mpi_pair attni_mpi_pair_of(attn_dtype dtype, int64_t B, int64_t heads, int64_t first,
                                 int64_t second);
/* The two tensors of n rows at `rows`. */
void attni_mpi_views(const attni_mpi_pair *pair, char *rows, int64_t n, attn_tensor views[2]);
attn_tensor attni_mpi_some_rows(const attn_tensor *t, int64_t from, int64_t n);
/* Feeds keys first .. past-1, which are k and v, as far as some row needs them. */
attn_status attni_mpi_feed(attn_sdpa_state *state, const attn_tensor *k, const attn_tensor *v,
                           int64_t first, int64_t past, attn_error *err);

/* How many keys of a segment lie on `rank`, and the first one's row there. */
int64_t attni_mpi_share(const attni_mpi_plan *plan, int64_t segment, int rank, int64_t *row);
int64_t attni_mpi_segment_keys(const attni_mpi_plan *plan, int64_t segment);
int64_t attni_mpi_most_keys(const attni_mpi_plan *plan); /* of any segment */
/* Copies the rows of a segment from the order of the ranks (`dealt`: those of rank 0, then those of
 * rank 1, ...) to the order of the keys, or back. */
void attni_mpi_assemble(const attni_mpi_plan *plan, int64_t segment, const attni_mpi_pair *pair,
                        char *dealt, char *ordered);
void attni_mpi_deal(const attni_mpi_plan *plan, int64_t segment, const attni_mpi_pair *pair,
                    char *ordered, char *dealt);

/* A segment of keys whose messages are under way. */
typedef struct attni_mpi_slot {
    char *rows; /* keys of rank 0, its values, keys of rank 1, ... */
    attni_mpi_flight flight;
    int64_t segment; /* -1: none */
} attni_mpi_slot;
#define ATTNI_MPI_SLOTS 2

typedef struct attni_mpi_segments {
    attni_mpi_call *call;
    attni_mpi_pair pair;
    int64_t *counts; /* [segments + 1], for attni_mpi_needs */
    uint8_t *needs;  /* [size][segments] */
    uint8_t *again;  /* [size]: the ranks that take part in this sweep */
    attni_mpi_slot slots[ATTNI_MPI_SLOTS];
    int64_t begins;      /* the next sweep begins with this segment, those after with 0 */
    int64_t next;        /* segment to start */
    char *ordered;       /* a third segment, the one that is computed, in the order of its keys */
    attn_tensor rows[2]; /* keys and values of it */
} attni_mpi_segments;

/* Allocates the segments' memory. */
attn_status attni_mpi_segments_new(attni_mpi_segments *s, attni_mpi_call *call);
/* Finds which rank needs which segment. Call it after all ranks have agreed: then the rules are
 * valid and the same on every rank. */
void attni_mpi_segments_begin(attni_mpi_segments *s);
bool attni_mpi_is_needed(const attni_mpi_segments *s, int rank, int64_t segment);
bool attni_mpi_is_sent(const attni_mpi_segments *s, int64_t segment); /* does any rank need it? */
/* Lets the messages of all segments advance. */
attn_status attni_mpi_segments_poll(attni_mpi_segments *s);
/* Sends and receives all segments once, in their order. Calls step(user, segment, needed) on every
 * rank for each segment that some rank needs; if this rank needs it, s->rows then has its keys and
 * values. */
attn_status attni_mpi_sweep(attni_mpi_segments *s,
                            attn_status (*step)(void *user, int64_t segment, bool needed),
                            void *user);
void attni_mpi_segments_cancel(attni_mpi_segments *s);

/* ---------------------------------------------------------------------------------- heads.c
 *
 * A tensor whose rows are dealt to the ranks before and after the computation, and whose heads are
 * dealt to them during the computation. */
typedef struct attni_mpi_dealt {
    attn_tensor local; /* this rank's rows of all heads */
    attn_tensor whole; /* all rows of this rank's heads */
    int64_t group;     /* its heads for each key/value head; 0: one head for all, or none */
    bool result;
} attni_mpi_dealt;

/* A call with options.mode = ATTN_MPI_HEADS. It points into itself and must not be moved. */
typedef struct attni_mpi_heads {
    attni_mpi_call *call;
    attn_sdpa_args args; /* of this rank's heads, with all tokens */
    attn_sdpa_grads grads;
    attn_pieces_options part;
    int64_t first, group; /* the first query head here; query heads for each key/value head */
    attni_mpi_dealt tensors[12];
    int count;
    const attn_tensor *k, *v, *dk, *dv; /* whole ones; NULL: not wanted */
    attn_tensor mask;                   /* if it has one row for all queries */
    struct mask_shape *masks;           /* [size] */
    uint8_t *again;                     /* [size] */
    int64_t message;                    /* bytes of the largest message */
    char *sent, *received;              /* [size] messages each */
    attni_mpi_flight flight;
} attni_mpi_heads;

/* Finds this rank's heads, and allocates their tensors. grads: NULL in the forward. */
attn_status attni_mpi_heads_new(attni_mpi_heads *h, attni_mpi_call *call,
                                const attn_sdpa_grads *grads);
/* The rest of the call, after all ranks have agreed. */
attn_status attni_mpi_heads_forward(attni_mpi_heads *h, attn_context *ctx);
attn_status attni_mpi_heads_backward(attni_mpi_heads *h, attn_context *ctx,
                                     const attn_sdpa_grads *grads);

/* ---------------------------------------------------------------------------------- saved.c
 *
 * Some rows of a call, with a state of their own: all rows of this rank or, with checkpoints, a
 * block of 64. */
typedef struct attni_mpi_part {
    attn_sdpa_args args; /* points into the part */
    attn_tensor mask, lse;
    attn_pieces_options options;
    attn_sdpa_state *state;
} attni_mpi_part;

typedef struct attni_mpi_saved {
    attni_mpi_call *call;
    attni_mpi_part *parts; /* this rank's blocks, in order */
    int64_t count;
    uint64_t *sizes;  /* [count]: saved bytes of each block */
    uint64_t *totals; /* [size]: of each rank */
    uint64_t keys;    /* a hash of k and v of all ranks */
    uint64_t header;  /* the checksum of the header that was loaded */
    int64_t next;     /* all keys before it have been fed; 0 unless resumed */
    double time;      /* of the last save */
    char *buffer;
    uint8_t *votes;
} attni_mpi_saved;

/* Allocates what saving needs. `parts` are this rank's `count` blocks, whose states may still be
 * missing. */
attn_status attni_mpi_saved_new(attni_mpi_saved *s, attni_mpi_call *call, attni_mpi_part *parts,
                                int64_t count);
/* Reads the checkpoint, and begins all parts' states from it. */
attn_status attni_mpi_saved_load(attni_mpi_saved *s, attn_context *ctx);
/* After all ranks have agreed: exchanges hashes of the keys and, if the call is resumed, compares
 * them with the saved ones. Returns the same status on every rank. */
attn_status attni_mpi_saved_begin(attni_mpi_saved *s);
/* After a segment, which ends before key `next`: lets the ranks decide whether to save, and saves.
 * *status is that of this rank's computation, and becomes that of all ranks. The result is that of
 * attni_mpi_exchange. */
attn_status attni_mpi_saved_step(attni_mpi_saved *s, int64_t next, attn_status *status);

#endif
