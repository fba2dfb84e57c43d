/* The interface between the files of the backward: backward_check.c (checks), backward.c (plan,
 * tasks), backward_rows.c (values per query before the tasks, sums over tasks after them) and
 * backward_task.c (one task). backward_pieces.c and jvp.c use it, too. A *chunk* of the backward is
 * `keys` keys, which may be fewer than ATTNI_CHUNK. */
#ifndef ATTNI_SDPA_BACKWARD_H
#define ATTNI_SDPA_BACKWARD_H

#include <stdatomic.h>
#include <string.h>

#include "../sdpa/tile.h"

/* How the gradient of the mask is computed. ATTNI_DENSE: element by element, added as the blocks
 * are computed. ATTNI_OVER_QUERIES, ATTNI_OVER_KEYS: the mask repeats along queries or keys, so its
 * gradient is a sum over them; the sums are collected per head and added up at the end. */
typedef enum attni_dmask {
    ATTNI_NO_DMASK,
    ATTNI_DENSE,
    ATTNI_OVER_QUERIES,
    ATTNI_OVER_KEYS
} attni_dmask;

/* Rows of a tensor, cut into panels [panel][rows][W] side by side, as linear() reads them. W is at
 * most the widest tile; the last panel has 1, 2 or 4 vectors, as few as hold its columns. */
typedef struct attni_panels {
    int64_t columns, padded; /* padded: the columns of all panels together */
    int widest;              /* columns of all panels but the last */
} attni_panels;

typedef struct attni_backward {
    attni_plan plan; /* what the forward decides from args alone; each tile has one head */
    attn_sdpa_grads grads;
    /* grads.dlse and grads.dmask point here; repeated dimensions have stride 0 */
    attn_tensor dlse, dmask_view;
    attni_dmask dmask;
    bool want_q, want_k, want_v;
    bool nothing;     /* no query-key pair or no result: every gradient is 0, except dsink */
    bool want_scores; /* the gradient of the scores is needed: for every result except dv */
    double scale;
    const struct attni_bf16_unit *unit; /* multiplies bf16; NULL: all products are in R */
    int W;                              /* queries in a tile */
    int keys;                           /* keys in a chunk; a function of the sizes alone */
    int64_t group, kv_heads;   /* query heads per key/value head; key/value heads of all batches */
    int64_t tasks_per_kv_head; /* chunks of all sequences, for one key/value head */
    int64_t tasks;
    /* The first private_pairs key/value heads (counted over all batches) are private: one thread
     * computes all chunks of such a head. For the other heads, each chunk is a work item of its
     * own. */
    int64_t private_pairs;
    /* Keys come in pieces (backward_pieces.c). No head is private then. `without_keys`: the tasks
     * compute only the rows that see no key. */
    bool in_pieces, without_keys;
    /* sums_in: dk and dv already hold sums, to which the call adds. sums_out: they stay sums at the
     * end; dk is not multiplied by the scale (attn_pieces_options). */
    bool sums_in, sums_out;
    int64_t first_task, past_task; /* of each key/value head: the tasks of the piece */
    /* The call has some of the rows of a whole: their runs, in rising order of positions. NULL: it
     * has all rows, and each sequence is one run. */
    const attni_run *row_runs;
    int64_t run_count;
    /* Tiles of queries in sequences of several chunks, which need a total of dq: most_tiles is the
     * largest number in one sequence, all_tiles the sum over the sequences of one head. */
    int64_t most_tiles, all_tiles;
    /* blocks of ATTNI_BLOCK queries, over all heads: tasks of the first step */
    int64_t query_blocks;
    int64_t query_blocks_per_head;
    attni_panels q_panels, v_panels;
    int workers;
    size_t worker_bytes, tile_bytes, scratch_bytes;

    /* Shared scratch. Arrays are of R unless stated otherwise. */
    char *lse;                /* [B,H,T] lse in units of the scores, rounded to R */
    char *factor;             /* [B,H,T] e^(rounded lse - lse): nearly 1 */
    char *delta;              /* [B,H,T] dout . out - dlse */
    unsigned char *nonfinite; /* [B,H,T] bits ATTNI_NONFINITE_Q and ATTNI_NONFINITE_DOUT */
    bool want_rows;           /* dq or row_sums: each task adds its part to the totals */
    /* Totals of private heads, [workers][group][most_tiles][tile_bytes]. One total is the dq of the
     * chunks so far, [D][W], and then W sums of ds (double). */
    char *private_dq;
    /* The same for the other heads, [kv_heads - private_pairs][group][all_tiles][tile_bytes]. */
    char *shared_dq;
    double *row_sums, *key_sums; /* [B,H,T], [B,H,S]: sums of ds */
    double *alibi_sums;          /* [tasks][group] */
    double *sink_sums;           /* [query_blocks] */
    atomic_llong *progress;      /* [tasks]: tiles completed; ATTNI_TASK_DONE at the end */
    char *workers_scratch;
} attni_backward;

/* A worker's place among the sequences: sequence n, and how many tasks and tiles (as counted in
 * all_tiles) of a head the sequences before it have. A worker's task numbers rise, so it moves
 * forward by a few sequences per task, and back to the first one for each head. */
typedef struct attni_grad_cursor {
    int worker;
    int64_t n, tasks_before, tiles_before;
} attni_grad_cursor;

/* Vectors of the narrowest tile that holds `rows` rows; `most` if none does. The bf16 products need
 * a tile of at least 32 queries. */
static inline int attni_backward_vectors(const attni_backward *bw, int64_t rows, int most)
{
    const int nv = attni_vectors_for(&bw->plan, rows, most);
    return !bw->unit ? nv : nv <= 2 ? 2 : 4;
}

#define ATTNI_NONFINITE_Q 1 /* the row holds a NaN or an infinity, or its square overflows */
#define ATTNI_NONFINITE_DOUT 2
#define ATTNI_TASK_DONE INT64_MAX

/* ---------------------------------------------------------------------------- backward.c
 *
 * attn_sdpa_backward in two steps, for modules: as attni_sdpa_prepare and attni_sdpa_run. *bw must
 * not move between the two calls, since it points into itself; run needs bw->scratch_bytes. */
attn_status attni_backward_prepare(attni_backward *bw, attn_context *ctx,
                                   const attn_sdpa_args *args, const attn_sdpa_grads *grads,
                                   attn_error *err);
void attni_backward_run(attni_backward *bw, attni_call *call, char *scratch);

/* Their parts, for keys in pieces. make_plan follows attni_backward_check. carve places the shared
 * scratch; the workers' scratch is workers x worker_bytes, which attni_backward_size_worker
 * computes. attni_backward_step runs step(bw, 0 .. count-1) on all workers. */
attn_status attni_backward_make_plan(attni_backward *bw, int isa, int threads, attn_error *err);
void attni_backward_size_worker(attni_backward *bw);
void attni_backward_carve(attni_backward *bw, attni_layout *layout);
void attni_backward_step(const attni_backward *bw, attni_call *call, int64_t count,
                         void (*step)(const attni_backward *, int64_t, attni_grad_cursor *));

/* The part of the plan that backward and forward mode share: tiles of one head, as wide as `rows`
 * queries fill. Returns the tile width W. */
int attni_plan_derivative(attni_plan *p, int64_t rows, int isa);
/* Reports that the tasks or the scratch of a call are too many to count. */
attn_status attni_derivative_too_large(const attni_plan *p, attn_error *err);

/* ---------------------------------------------------------------------- backward_check.c */
/* Fills p from the arguments of a forward call; its out and lse are inputs here. `part` as in
 * attni_sdpa_check. */
attn_status attni_check_forward(attni_plan *p, const attn_sdpa_args *args,
                                const attn_pieces_options *part, attn_error *err);
/* Checks a gradient or tangent: its dtype must be q's, f32 or f64, and its shape must be that of
 * `like`, except for the last size, `last`. */
attn_status attni_check_gradient(const attni_plan *p, const attn_tensor *t, const char *name,
                                 const attn_tensor *like, int64_t last, bool output,
                                 attn_error *err);
attn_status attni_check_wide(const attn_tensor *t, const char *name, attn_error *err);
/* True if some gradient has an element to write. A gradient that is not wanted is empty. */
bool attni_backward_writes(const attn_sdpa_grads *grads, int64_t H);
attn_status attni_backward_check(attni_backward *bw, const attn_sdpa_args *args,
                                 const attn_sdpa_grads *grads, const attn_pieces_options *part,
                                 attn_error *err);

/* ----------------------------------------------------------------------- backward_rows.c
 *
 * attni_backward_rows computes one block of queries, `query_block`, in the first step, on any
 * thread: its lse, factor, delta, nonfinite and sink_sums. attni_backward_rows_scratch is the
 * scratch of one worker for it. */
size_t attni_backward_rows_scratch(const attni_backward *bw);
void attni_backward_rows(const attni_backward *bw, int64_t query_block, attni_grad_cursor *at);
/* Sets element i of both arrays from x, the lse of one row: lse[i] to x in units of scores, rounded
 * to R, and factor[i] to what corrects the rounding error. */
void attni_set_lse(const attni_plan *p, char *lse, char *factor, int64_t i, double x);
/* attni_backward_clear zeroes the arrays that tasks add to; attni_backward_sums adds up the tasks'
 * partial sums afterwards. */
void attni_backward_clear(const attni_backward *bw);
void attni_backward_zero(const attn_tensor *t); /* all elements */
void attni_backward_sums(const attni_backward *bw);

/* ----------------------------------------------------------------------- backward_task.c
 *
 * A task is one chunk of keys of one key/value head against all queries that see it. A work item is
 * one task or, for a private head, all tasks of that head. */
size_t attni_backward_task_scratch(const attni_backward *bw);
/* attni_backward_tasks_of: the number of tasks of sequence n, for one key/value head.
 * attni_backward_tiles_of: the number of tiles of the sequence that need totals (all_tiles): 0 if
 * the sequence has only one chunk. */
int64_t attni_backward_tasks_of(const attni_backward *bw, int64_t n);
int64_t attni_backward_tiles_of(const attni_backward *bw, int64_t n);
/* Sequence n has the rows of the runs from attni_backward_first_run(n) to the one before
 * attni_backward_first_run(n + 1). A tile never has rows of two runs. */
int64_t attni_backward_first_run(const attni_backward *bw, int64_t n);
attni_run attni_backward_run_at(const attni_backward *bw, int64_t number);
/* Moves the cursor to the sequence of a task, numbered within its key/value head. */
void attni_backward_move(const attni_backward *bw, attni_grad_cursor *at, int64_t task);
void attni_backward_work_item(const attni_backward *bw, int64_t unit, attni_grad_cursor *at);

attni_panels attni_panels_of(const attni_plan *p, int64_t columns);

/* True if the caller requested result t. */
static inline bool attni_wanted(const attn_tensor *t)
{
    return t->data || t->shape[0] || t->shape[1] || t->shape[2] || t->shape[3];
}

/* Element i of an array of R, which need not be aligned: it may be the caller's. */
static inline double attni_real(const attni_plan *p, const char *array, int64_t i)
{
    float single;
    double wide;
    if (p->real == sizeof single) {
        memcpy(&single, array + i * (int64_t)sizeof single, sizeof single);
        return (double)single;
    }
    memcpy(&wide, array + i * (int64_t)sizeof wide, sizeof wide);
    return wide;
}

static inline char *attni_backward_scratch(const attni_backward *bw, int worker)
{
    return bw->workers_scratch + (size_t)worker * bw->worker_bytes;
}

static inline void attni_set_real(const attni_plan *p, char *array, int64_t i, double x)
{
    if (p->real == sizeof(float))
        ((float *)(void *)array)[i] = (float)x;
    else
        ((double *)(void *)array)[i] = x;
}

#endif
