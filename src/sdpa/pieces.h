/* The state of a call whose keys arrive in pieces: pieces.c begins and ends it, feed.c feeds it,
 * saved_state.c saves and loads it.
 *
 *   attn_sdpa_begin    check (plan/sdpa_check.c), plan (make_plan.c), memory for the tiles' sums
 *   attn_sdpa_feed     for each task that sees a key of the piece: engine->feed
 *   attn_sdpa_finish   for each task: engine->finish
 *
 * A tile's sums lie in the state from one piece to the next, and engine->feed() sweeps the chunks
 * of the piece as engine->task() sweeps all chunks. So the bits are those of one call
 * (docs/decisions/0029).
 */
#ifndef ATTNI_PIECES_H
#define ATTNI_PIECES_H

#include "sdpa.h"

struct attn_sdpa_state {
    attn_context *ctx;
    size_t bytes; /* of this block: this struct, and after it plan.runs */
    int isa, threads;
    attni_plan plan; /* its k and v have shapes, but no data */
    attn_tensor lse; /* args.lse points here */

    char *memory; /* the block that holds the arrays below */
    size_t memory_bytes;
    int64_t *offsets;      /* [tasks_per_head] of each task's sums within its head, in bytes */
    int64_t head_bytes;    /* of sums */
    char *sums;            /* [heads][head_bytes] */
    uint8_t *sweeps;       /* [heads][tasks_per_head][tiles]: attni_fed_sweep */
    char *open_k, *open_v; /* [B,Hk,CHUNK,D] and [..,Dv]: the open chunk */
    int64_t open;          /* keys in it; 0: none is open */

    int64_t position;     /* the key after the last one fed in this sweep */
    int64_t wanted, past; /* what attn_sdpa_next() says */
    bool again;           /* some tiles are swept again; the others are done */
    bool finished;
};

typedef struct key_range {
    int64_t first, past;
} key_range;

/* pieces.c. Does what attn_sdpa_begin does, but a task has at most `tiles` tiles for any number of
 * threads; 0: no such limit. */
attn_status attni_pieces_begin(attn_context *ctx, const attn_sdpa_args *args,
                               const attn_pieces_options *options, int tiles, attn_sdpa_state **out,
                               attn_error *err);
/* Finds the packed sequence of `starts` (cu_seqlens_q or cu_seqlens_k) that has row or key `at` of
 * the whole. Returns args.sequences if no sequence has it, and 0 if starts is NULL. */
int64_t attni_pieces_sequence_at(const attni_plan *p, const int64_t *starts, int64_t at);
/* Cuts the rows into runs of consecutive positions. A run lies within one packed sequence. Returns
 * the number of runs. positions NULL: row i is at position i. runs NULL: only counts them. */
int64_t attni_pieces_cut_runs(const attni_plan *p, const int64_t *positions, attni_run *runs);
/* The first returns the array of the sweeps of a task's tiles. The second says whether any of these
 * tiles must still be swept. `head` and `earlier` are as in attni_task. */
uint8_t *attni_pieces_sweeps(const attn_sdpa_state *s, int64_t head, int64_t earlier);
bool attni_pieces_swept(const attn_sdpa_state *s, int64_t head, int64_t earlier);
/* For k, v, dk or dv of a call in pieces, of which only the shape counts: sets an address that is
 * never read, and strides of 0. Fails if the tensor has data. */
attn_status attni_pieces_without_data(attn_tensor *t, const char *name, attn_error *err);
/* Release the two blocks of a state; `memory` may be NULL. attni_pieces_release needs a running
 * call; attni_pieces_free begins and ends one itself. */
void attni_pieces_release(attni_call *call, void *state, size_t bytes, void *memory,
                          size_t memory_bytes);
void attni_pieces_free(attn_context *ctx, void *state, size_t bytes, void *memory,
                       size_t memory_bytes);
attn_status attni_pieces_no_memory(size_t bytes, attn_error *err); /* for a state */
/* Sets what attn_sdpa_next() says. In the first sweep it looks at one head of each batch element,
 * because all heads see the same keys. */
void attni_pieces_want(attn_sdpa_state *s);

/* feed.c. How many keys before s->position belong to the open chunk; 0: no chunk is open. */
int64_t attni_pieces_open_keys(const attn_sdpa_state *s);
/* The open chunk as a tensor of ATTNI_CHUNK rows. */
attn_tensor attni_pieces_open_chunk(const attn_sdpa_state *s, bool values);
attn_status attni_pieces_no_state(attn_error *err);
/* Checks a piece of n keys or values, `width` elements each. */
attn_status attni_pieces_check(const attni_plan *p, const attn_tensor *t, const char *name,
                               int64_t n, int64_t width, attn_error *err);
/* t, whose first row is row `first` of the whole, as a tensor of `rows` rows. Only rows that t has
 * may be accessed. */
attn_tensor attni_pieces_as_whole(const attn_tensor *t, int64_t first, int64_t rows);

#endif
