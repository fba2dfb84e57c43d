/* Between backward.c (check, plan, tasks), backward_rows.c (what is known of each query
 * before, and summed after, the tasks) and backward_tile.c (one task). */
#ifndef ATTNI_SDPA_BACKWARD_H
#define ATTNI_SDPA_BACKWARD_H

#include <stdatomic.h>
#include <string.h>

#include "../sdpa/tile.h"

/* How the gradient of the mask comes about: element by element, as its blocks do; or as sums, which
 * are collected for each head and added up at the end: over queries, or over keys. */
typedef enum attni_dmask {
    ATTNI_NO_DMASK,
    ATTNI_DENSE,
    ATTNI_OVER_QUERIES,
    ATTNI_OVER_KEYS
} attni_dmask;

/* Rows of a tensor, side by side in panels [panel][rows][W] of at most the widest tile, as linear()
 * wants them. The last panel has as many vectors as its columns fill. */
typedef struct attni_panels {
    int64_t columns, padded; /* padded: of all panels */
    int widest;              /* columns of all panels but the last */
} attni_panels;

typedef struct attni_backward {
    attni_plan plan; /* what the forward decides from args alone; tiles of one head */
    attn_sdpa_grads grads;
    attn_tensor dlse, dmask_view; /* grads.dlse and grads.dmask point here; repeated: stride 0 */
    attni_dmask dmask;
    bool want_q, want_k, want_v;
    bool nothing; /* no pair of a query and a key, or no result: what there is, is 0, but dsink */
    bool want_scores; /* the gradient of the scores, for any result but dv */
    double scale;
    const struct attni_bf16_unit *unit; /* that multiplies bf16; NULL: products are of R */
    int W;                              /* queries in a tile */
    int keys;                           /* in a chunk, a function of the sizes alone */
    int64_t group, kv_heads;   /* query heads of a key/value head; key/value heads of all batches */
    int64_t tasks_per_kv_head; /* chunks of all sequences */
    int64_t tasks;
    /* Each of the first so many key/value heads is computed by one thread; of the others, each
     * chunk is one work item. */
    int64_t private_pairs;
    /* Tiles of queries in sequences of several chunks, whose dq needs a total: in the one that has
     * most of them, and in all of a head's. */
    int64_t most_tiles, all_tiles;
    int64_t query_blocks; /* of ATTNI_BLOCK queries, over all heads: tasks of the first step */
    int64_t query_blocks_per_head;
    attni_panels q_panels, v_panels;
    int workers;
    size_t worker_bytes, tile_bytes, scratch_bytes;

    /* Shared scratch. R, but where it says otherwise. */
    char *lse;                   /* [B,H,T] in units of the scores, rounded */
    char *factor;                /* [B,H,T] e^(that, rounded, - lse): 1, nearly */
    char *delta;                 /* [B,H,T] dout . out - dlse */
    unsigned char *nonfinite;    /* [B,H,T] bits: ATTNI_NONFINITE_Q, ATTNI_NONFINITE_DOUT */
    bool want_rows;              /* dq or row_sums: a task's part of them joins the totals */
    char *private_dq;            /* [workers][group][most_tiles][tile_bytes]: dq of the chunks so
                                    far, [D][W], and W sums of ds, double; of a thread's own pair */
    char *shared_dq;             /* [pairs - whole][group][all_tiles][tile_bytes]: the same */
    double *row_sums, *key_sums; /* [B,H,T], [B,H,S]: sums of ds */
    double *alibi_sums;          /* [tasks][group] */
    double *sink_sums;           /* [runs] */
    atomic_llong *progress;      /* [tasks]: tiles that are done; at the end ATTNI_TASK_DONE */
    char *workers_scratch;
} attni_backward;

#define ATTNI_NONFINITE_Q                                                                          \
    1 /* the row has a NaN or an infinity, or is so large that its square has */
#define ATTNI_NONFINITE_DOUT 2
#define ATTNI_TASK_DONE INT64_MAX

/* ---------------------------------------------------------------------------- backward.c
 *
 * attn_sdpa_backward in two pieces, for modules, as attni_sdpa_prepare and attni_sdpa_run. bw must
 * stay where it is; run needs bw->scratch_bytes. */
attn_status attni_backward_prepare(attni_backward *bw, attn_context *ctx,
                                   const attn_sdpa_args *args, const attn_sdpa_grads *grads,
                                   attn_error *err);
void attni_backward_run(attni_backward *bw, attni_call *call, char *scratch);

/* What the plans of derivatives, backward and forward mode, have in common: tiles of one head, as
 * wide as the queries fill. Returns their width W. */
int attni_plan_derivative(attni_plan *p, int isa);
/* The error of a call whose tasks or scratch cannot be counted. */
attn_status attni_derivative_too_large(const attni_plan *p, attn_error *err);

/* ---------------------------------------------------------------------- backward_check.c */
/* Fills p from the arguments of a forward call whose out and lse are inputs now. */
attn_status attni_check_forward(attni_plan *p, const attn_sdpa_args *args, attn_error *err);
/* A derivative: q's dtype, f32 or f64; the shape of `like`, but for its last size. */
attn_status attni_check_gradient(const attni_plan *p, const attn_tensor *t, const char *name,
                                 const attn_tensor *like, int64_t last, bool output,
                                 attn_error *err);
attn_status attni_check_wide(const attn_tensor *t, const char *name, attn_error *err);
/* Is there an element of a gradient to write? One that is not wanted is empty. */
bool attni_backward_writes(const attn_sdpa_grads *grads, int64_t H);
attn_status attni_backward_check(attni_backward *bw, const attn_sdpa_args *args,
                                 const attn_sdpa_grads *grads, attn_error *err);

/* ----------------------------------------------------------------------- backward_rows.c
 *
 * Scratch of one worker of the first step; run `run` of it, on any thread: lse, factor, delta, bad
 * and sink_sums. */
size_t attni_backward_rows_scratch(const attni_backward *bw);
void attni_backward_rows(const attni_backward *bw, int64_t run, int worker);
/* Of one row, element i of both: lse rounded to R in units of scores, and the rest as a factor. */
void attni_set_lse(const attni_plan *p, char *lse, char *factor, int64_t i, double x);
/* Zeroes what the tasks add to; afterwards, adds up what they have left. */
void attni_backward_clear(const attni_backward *bw);
void attni_backward_sums(const attni_backward *bw);

/* ----------------------------------------------------------------------- backward_tile.c
 *
 * One task: a chunk of keys of one key/value head against all queries that see it. A unit is a
 * task, or all those of a pair. */
size_t attni_backward_task_scratch(const attni_backward *bw);
void attni_backward_work_item(const attni_backward *bw, int64_t unit, int worker);

attni_panels attni_panels_of(const attni_plan *p, int64_t columns);

/* Is t a result that the caller asked for? */
static inline bool attni_wanted(const attn_tensor *t)
{
    return t->data || t->shape[0] || t->shape[1] || t->shape[2] || t->shape[3];
}

/* Element i of an array of R; of the caller's arrays too, at any address. */
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
