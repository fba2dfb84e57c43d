/* Keys in pieces; attn.h includes this header.
 *
 * Attention for keys and values that do not fit in memory, but are in a file or on other machines.
 * They arrive in pieces. The results are bit-identical to one call of attn_sdpa_forward with all
 * keys, for any pieces.
 *
 *   args.k = attn_bhtd(NULL, ATTN_F32, B, Hk, S, D);   S: the number of all keys; no data
 *   args.v = attn_bhtd(NULL, ATTN_F32, B, Hk, S, Dv);
 *   attn_sdpa_begin(ctx, &args, NULL, &state, &err);
 *   do {
 *       for (int64_t j, past; (j = attn_sdpa_next(state, &past)) < S;) {
 *           n = past - j < 4096 ? past - j : 4096;       a multiple of 256, or up to key S - 1
 *           ... k, v: views of keys j .. j+n-1, [B,Hk,n,D] and [B,Hk,n,Dv] ...
 *           attn_sdpa_feed(state, j, &k, &v, &err);
 *       }
 *   } while ((status = attn_sdpa_finish(state, &err)) == ATTN_AGAIN);
 *   attn_sdpa_end(state);
 *
 * Pieces come in the order of the keys. Each begins at a multiple of 256; its length is a multiple
 * of 256, or it ends with key S - 1. Lengths may differ from piece to piece, and so may strides.
 * Keys that no row sees need not be fed; attn_sdpa_next says which keys are needed.
 *
 * ATTN_AGAIN: a sweep is one pass of a row over its keys. If the result of a row is not finite,
 * attn_sdpa_forward sweeps the row's keys again, at most twice. The cause is a NaN or an infinity
 * in the inputs, hidden or visible, or an overflow. Here attn_sdpa_finish requests these sweeps.
 * attn_sdpa_next then starts again with the keys that such rows see. `out` and `lse` are final when
 * attn_sdpa_finish returns ATTN_OK.
 *
 * All rules of attn_sdpa_args hold; keys count from the first of all keys. `scores` are refused,
 * because they need the final sums and then all keys once more. `cache` is refused. `workspace` is
 * not used.
 *
 * Memory: attn_sdpa_state_bytes(). A state has Dv + 6 numbers for each head and query, of the type
 * that the call computes in; the bf16 engine rounds Dv up to a multiple of 32. Queries are computed
 * in groups of up to 64 (tiles), each padded to whole vectors. With cu_seqlens, a state also has
 * one chunk of 256 keys and values. The number of keys does not matter. Everything that args points
 * to is used until attn_sdpa_end and must stay as it is; a piece is used only during
 * attn_sdpa_feed.
 * Threads: one call on a state at a time. The context must outlive the state.
 */
#ifndef ATTN_PIECES_H
#define ATTN_PIECES_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_sdpa_state attn_sdpa_state;

/* For a call that computes only some rows and heads of a larger call, the "whole". These options
 * say which ones. All parts together are bit-identical to one call with all rows and heads. */
typedef struct attn_pieces_options {
    size_t struct_size; /* sizeof(attn_pieces_options), set by ATTN_PIECES_OPTIONS_INIT */
    /* [T]: the position of each row in the whole, 0 <= position < whole_T, in any order; several
     * rows may have the same one. Causal, window, ALiBi, cu_seqlens and dropout count positions
     * instead of i; `mask` has a row for each row of q. Rows at consecutive positions are computed
     * together, so runs of 64 or more are fast. NULL: row i is at position i. */
    const int64_t *q_positions;
    int64_t whole_T;     /* queries of the whole, for BOTTOM_RIGHT and cu_seqlens_q; 0: T */
    int64_t head_offset; /* head h of q is head head_offset + h of the whole, for dropout */
    int64_t whole_H;     /* query heads of the whole; 0: H */
    /* For the backward only; see "Queries in pieces" below. sums_in: 1 if dk and dv hold the sums
     * of the rows after this part's. sums_out: 1 if they stay sums, for the rows before. */
    int sums_in, sums_out;
} attn_pieces_options;

#define ATTN_PIECES_OPTIONS_INIT                                                                   \
    {                                                                                              \
        .struct_size = sizeof(attn_pieces_options)                                                 \
    }
ATTN_API void attn_pieces_options_init_sized(attn_pieces_options *options, size_t struct_size);
static inline void attn_pieces_options_init(attn_pieces_options *options)
{
    attn_pieces_options_init_sized(options, sizeof *options);
}

/* Checks all arguments and allocates the state, from the context's allocator. k and v of args have
 * the shape [B,Hk,S,...] of all keys and no data. options may be NULL: all defaults. */
ATTN_API attn_status attn_sdpa_begin(attn_context *ctx, const attn_sdpa_args *args,
                                     const attn_pieces_options *options, attn_sdpa_state **out,
                                     attn_error *err);

/* The first key that some row still needs, a multiple of 256; S if none does. *past becomes the end
 * of this run of needed keys: a multiple of 256, or S. past may be NULL. */
ATTN_API int64_t attn_sdpa_next(const attn_sdpa_state *state, int64_t *past);

/* Attends to keys first_key .. first_key+n-1: k [B,Hk,n,D], v [B,Hk,n,Dv]. No key that is needed
 * may be left out, and none may be fed twice in a sweep. An error leaves the state unchanged. */
ATTN_API attn_status attn_sdpa_feed(attn_sdpa_state *state, int64_t first_key, const attn_tensor *k,
                                    const attn_tensor *v, attn_error *err);

/* Writes out and lse when no more keys are needed. ATTN_AGAIN: some rows need their keys once more;
 * out and lse are not final for these rows. */
ATTN_API attn_status attn_sdpa_finish(attn_sdpa_state *state, attn_error *err);

/* Saves the state between two pieces, so that attn_sdpa_load can go on later or in another process.
 * `write` is as in attn_cache_save. Keys and values are not saved, with one exception. In a packed
 * batch, chunks of 256 keys count from the start of each sequence, so a piece may end inside a
 * chunk. The keys and values of this chunk that have been fed are saved. */
ATTN_API attn_status attn_sdpa_save(const attn_sdpa_state *state,
                                    int (*write)(void *user, const void *bytes, size_t n),
                                    void *user, attn_error *err);

/* Does what attn_sdpa_begin does, then restores the state from the `size` bytes that attn_sdpa_save
 * wrote. If attn_sdpa_finish was called before the state was saved, attn_sdpa_load also writes out
 * and lse as attn_sdpa_finish left them. The result has the bits of one call.
 * args and options must be those of the saved call; their contents are compared, but out and lse
 * may lie elsewhere. ctx must have the instruction set of the saved call, else
 * ATTN_ERR_UNSUPPORTED; the number of threads may differ. The bytes are treated as untrusted input:
 * ATTN_ERR_FILE says what is wrong with them, also if another version of the library saved them. */
ATTN_API attn_status attn_sdpa_load(attn_context *ctx, const attn_sdpa_args *args,
                                    const attn_pieces_options *options, const void *bytes,
                                    size_t size, attn_sdpa_state **out, attn_error *err);

ATTN_API size_t attn_sdpa_state_bytes(const attn_sdpa_state *state); /* all that it allocated */
ATTN_API void attn_sdpa_end(attn_sdpa_state *state);                 /* NULL is fine */

/* The backward of such a call, also in pieces. Queries, dout, out, lse and dq stay in memory. Keys
 * come in pieces, and their gradients leave in the same pieces. All gradients are bit-identical to
 * those of one call of attn_sdpa_backward with all keys, for any pieces.
 *
 *   args: as for attn_sdpa_begin; out and lse hold the results of the forward
 *   grads.dout, grads.dq: as for attn_sdpa_backward
 *   grads.dk = attn_bhtd(NULL, ATTN_F32, B, Hk, S, D);    no data; all 0 if dk is not wanted
 *   grads.dv = attn_bhtd(NULL, ATTN_F32, B, Hk, S, Dv);
 *   attn_sdpa_backward_begin(ctx, &args, &grads, NULL, &state, &err);
 *   for (int64_t j, past; (j = attn_sdpa_backward_next(state, 4096, &past)) < S;) {
 *       ... k, v: views of keys j .. past-1; dk, dv: where their gradients go ...
 *       attn_sdpa_backward_feed(state, j, &k, &v, &dk, &dv, &err);
 *   }
 *   attn_sdpa_backward_finish(state, &err);
 *   attn_sdpa_backward_end(state);
 *
 * Pieces come in the order of the keys, each key once. A piece begins and ends at a multiple of 256
 * keys or at key S. With cu_seqlens, the multiples of 256 are counted from the first key of each
 * sequence, so a piece may always begin at the first key of a sequence. Lengths, strides and the
 * dtypes of dk and dv may differ from piece to piece. Keys that no row sees need not be fed, and
 * their gradients are 0; attn_sdpa_backward_next says which keys are needed.
 *
 * dk and dv of a piece are final when attn_sdpa_backward_feed returns. dq, dmask, dalibi_slopes and
 * dsink_logits are final when attn_sdpa_backward_finish returns. All rules and gradients of
 * attn_sdpa_backward are supported; `scores` are ignored, `cache` is refused, `workspace` is not
 * used. attn_sdpa_jvp has no form in pieces.
 *
 * The options say where the rows and heads are in the whole, as for attn_sdpa_begin. But
 * q_positions must rise: each is larger than the one before. dq, and dmask if the mask has a row
 * for each row of q, have the bits of one call with all rows. The other gradients are sums over
 * queries: dk, dv, dalibi_slopes, dsink_logits, and dmask if the mask has one row for all queries.
 * Each is the sum over the rows of this part; the caller adds up the sums of all parts. If the part
 * has all rows, the sums have the bits of one call.
 *
 * Queries in pieces: if the queries do not fit in memory, each piece of queries is a part, and the
 * part with the last rows is computed first. dk and dv of all keys stay; each part adds to them:
 *
 *   part          options.sums_in   options.sums_out   dk, dv afterwards
 *   last rows            0                  1          sums
 *   ...                  1                  1          sums
 *   first rows           1                  0          the gradients
 *
 * dk and dv then have the bits of one call if every part has consecutive rows and begins at a
 * multiple of 64 rows, counted from the first row of its packed sequence. Sums are not yet
 * multiplied by `scale` and have the type that the call computes in. So dk and dv must be f64 if q
 * is f64, or if q is f32 and `precision` is ATTN_PRECISION_ACCURATE; else they must be f32. Sums of
 * keys that are not fed do not change, so dk and dv must be 0 before the part with the last rows.
 * The part with the first rows needs all keys, because it turns all sums into gradients. Parts may
 * have their keys in pieces, too.
 *
 * Memory: attn_sdpa_backward_state_bytes(). For each head and query a state has 9 bytes, and D + 3
 * numbers of the type that the call computes in. Queries at consecutive positions are computed in
 * groups of up to 64 (tiles), and each group is padded to whole vectors. A chunk is 256 keys of a
 * sequence, or fewer if D + Dv is large. Each chunk of each head of k takes 8 bytes; with
 * dalibi_slopes, each chunk also takes 8 bytes for each head of q. dmask takes as much as in one
 * call. What args and grads point to must stay as it is until attn_sdpa_backward_end.
 * Threads: one call on a state at a time; the context must outlive the state. A piece has one task
 * for each head of k and each chunk: small pieces do not use many threads. */
typedef struct attn_sdpa_backward_state attn_sdpa_backward_state;

/* Checks all arguments, allocates the state, and reads lse, out and dlse. dq is written later. */
ATTN_API attn_status attn_sdpa_backward_begin(attn_context *ctx, const attn_sdpa_args *args,
                                              const attn_sdpa_grads *grads,
                                              const attn_pieces_options *options,
                                              attn_sdpa_backward_state **out, attn_error *err);

/* The first key that is needed next; S if none is. *past becomes the end of a piece that begins
 * there. If the run of needed keys has at most `most` keys (256 if `most` is less), the piece ends
 * where the run ends. Else it ends at the last place within `most` keys where a piece may end. past
 * may be NULL. */
ATTN_API int64_t attn_sdpa_backward_next(const attn_sdpa_backward_state *state, int64_t most,
                                         int64_t *past);

/* Takes keys first_key .. first_key+n-1, k [B,Hk,n,D] and v [B,Hk,n,Dv], and writes their gradients
 * dk and dv, of the same shapes; NULL if not wanted. An error leaves the state unchanged. */
ATTN_API attn_status attn_sdpa_backward_feed(attn_sdpa_backward_state *state, int64_t first_key,
                                             const attn_tensor *k, const attn_tensor *v,
                                             const attn_tensor *dk, const attn_tensor *dv,
                                             attn_error *err);

/* Writes the remaining gradients when no more keys are needed. */
ATTN_API attn_status attn_sdpa_backward_finish(attn_sdpa_backward_state *state, attn_error *err);

ATTN_API size_t attn_sdpa_backward_state_bytes(const attn_sdpa_backward_state *state);
ATTN_API void attn_sdpa_backward_end(attn_sdpa_backward_state *state); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif
