/* One task of the forward, between tile_task.c (the sweep over the keys) and result.c (what
 * comes out of it). All arrays are of R, [rows][W]. */
#ifndef ATTNI_TILE_H
#define ATTNI_TILE_H

#include "../plan/engine.h"

#define ATTNI_TILES 4 /* query tiles, at most, that share each chunk of keys while it is in cache */

extern const attni_engine attni_engine_tile;

/* A tile of queries. Its lanes are the queries i0 .. of one head, or of `heads` heads one after the
 * other: heads that share keys share their reading. */
typedef struct attni_tile {
    int64_t i0;   /* first query */
    int per_head; /* queries */
    int heads;
    int rows; /* per_head * heads: the other lanes compute on zeros */
    int nv, W;
    bool in_totals; /* `total` is in the worker's totals, a row of each query */
    char *qt;       /* [D][W]  queries, times power */
    char *total;    /* [Dv][W] sum of weighted values */
    char *l;        /* [W]     sum of weights */
    char *m;        /* [W]     what both count from: an integer, log2 units */
    char
        *m_first; /* [W]     where a chunk's maximum starts: -inf, or high enough not to overflow */
    char *top;    /* [W]     largest score */
    char *c;      /* [W]     score -> log2 units */
    char *value_scale; /* [W]     if `lifted`: what weights are multiplied by before values are */
    bool rescaled;
    attni_span span;
} attni_tile;

/* What one chunk of keys adds, before it joins the total. */
typedef struct attni_partial {
    char *acc;         /* [Dv][W] */
    char *m, *l, *top; /* [W] each */
} attni_partial;

/* A block of keys that a tile sees some of. */
typedef struct attni_chunk_block {
    int64_t j; /* its first key */
    int n;
    attni_class visible;
    int flags;   /* of values() and weights() */
    bool raised; /* what was summed before it is to be rescaled by a */
    char *st;    /* scores, then weights */
    char *mx, *a;
} attni_chunk_block;

typedef struct attni_worker {
    const attni_plan *plan;
    const attni_sequence *sequence;
    attni_partial chunk; /* the running one */
    char *sums;          /* [few][Dv] its weighted values, of a tile of a few queries, ... */
    char *totals;        /* [few][Dv] ... and those of all before it, until all is swept */
    char *st;            /* [block][W]; of few queries up to [ATTNI_BLOCKS][few][block] */
    char *q_row;         /* [D] the query of a tile of one, times power; its qt is not filled */
    char *mx, *a;        /* [ATTNI_BLOCKS][W]; mostly only the first row */
    char *factors;       /* [2][W], of join() */
    char *k, *v;         /* [chunk][D], [chunk][Dv]: converted keys and values */
    char *interleaved;   /* [block] rows of a cache's keys on their way there */
    char *score_rows;    /* [2][few][block] scores in rows, on their way into st */
    int64_t loaded;      /* the key that the first row of both is */
    bool in_rows;        /* st is a row per query, as the *_decode operations like it */
    bool as_stored;      /* the block is read where it lies, as halves, keys turned */
    char *rows;          /* [W][max(D, Dv)]: converted queries, outputs */
    char *biases;        /* [W][block] of a dense mask */
    char *lines;         /* [W][block] scores, a row per query */
    attni_prefetch mask_prefetch;      /* of a dense mask */
    const attni_task *next;            /* or NULL */
    int prefetch_count, prefetch_next; /* regions in `soon`, and which one is asked for */
    int pending_count;                 /* pieces whose values wait for the next chunk */
    attni_tile tiles[ATTNI_TILES];     /* all before it begins as 0 */
    attni_chunk_block pending[ATTNI_BLOCKS];
    attni_prefetch prefetch[2 + 2 * ATTNI_BLOCKS];
} attni_worker;

/* --------------------------------------------------------------------------- lanes, either type */

static inline double attni_lane(const attni_plan *p, const char *array, int i)
{
    return p->real == sizeof(float) ? (double)((const float *)array)[i]
                                    : ((const double *)array)[i];
}

static inline void attni_set_lane(const attni_plan *p, char *array, int i, double x)
{
    if (p->real == sizeof(float))
        ((float *)array)[i] = (float)x;
    else
        ((double *)array)[i] = x;
}

/* Where tensor t, [B,H,T,...], has the row of lane i. */
static inline char *attni_lane_row(const attni_worker *w, const attni_tile *tile,
                                   const attn_tensor *t, int i, int64_t column)
{
    return attni_at(t, w->sequence->b, w->sequence->h + i / tile->per_head,
                    w->sequence->i_base + tile->i0 + i % tile->per_head, column);
}

static inline void attni_fill_lanes(const attni_plan *p, char *array, double x, int n)
{
    for (int i = 0; i < n; i++)
        attni_set_lane(p, array, i, x);
}

/* Dv, rounded up to whole vectors. */
static inline size_t attni_sums_width(const attni_plan *p)
{
    const size_t lanes = (size_t)p->kernels->lanes;
    return ((size_t)p->Dv + lanes - 1) / lanes * lanes;
}

/* Are the tile's queries so few, and keys so many, that lanes are better filled with keys and with
 * components? */
static inline bool attni_tile_decodes(const attni_plan *p, const attni_tile *t)
{
    return t->nv == 1 && t->rows <= p->kernels->max_decode_rows &&
           t->span.any1 - t->span.any0 >= p->kernels->lanes;
}

/* ------------------------------------------------------------------------------ tile_load.c */

/* The narrowest tile that holds `rows` queries of each of the plan's heads; a query's bits do not
 * depend on it. */
void attni_tile_shape(const attni_worker *w, attni_tile *t, int64_t i0, int64_t rows);

/* Its queries into qt, or q_row. */
void attni_tile_queries(attni_worker *w, attni_tile *t);

/* Nothing is summed yet; `total` may stay as it is if it will not be added to. */
void attni_tile_clear(const attni_plan *p, attni_tile *t, bool total);

/* Makes keys j0 .. j0+n-1 (at most a chunk) and, if wanted, their values readable as R. j counts
 * from the sequence. */
void attni_tile_load(attni_worker *w, int64_t j0, int n, bool values);

/* Rows of n elements as R; `stride` between elements, `ld` between rows. */
void attni_convert_rows(const attni_plan *p, char *to, const char *from, ptrdiff_t ld,
                        attn_dtype dtype, int64_t stride, int rows, int64_t n);

/* The rows of keys, or of values, from j on, as attni_tile_load made them readable (or, if
 * w->as_stored, as they are: halves, turned keys), and how far apart they lie. */
const char *attni_tile_rows(const attni_worker *w, bool values, int64_t j, ptrdiff_t *ld);

/* Their type. */
attn_dtype attni_tile_dtype(const attni_worker *w);

/* Rows j .. of keys or values, if the tile sees some and they are read where they lie; else any
 * address. */
attni_next_rows attni_tile_next_rows(const attni_worker *w, const attni_tile *t, bool values,
                                     int64_t j);

/* Rows of sums of a few queries into lanes, [Dv][W], exactly. */
void attni_transpose_sums(const attni_worker *w, const attni_tile *t, char *to, const char *rows);

/* ------------------------------------------------------------------------------ tile_scores.c */

/* The same as attni_tile_scores in two steps: q . k; then all that follows up to `stage`. */
void attni_tile_products(attni_worker *w, const attni_tile *t, int64_t j0, int n);
void attni_tile_biases(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage);

/* Scores of one block, up to `stage`, into w->st; w->mx are their maxima at the last stage. */
void attni_tile_scores(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage);

/* ------------------------------------------------------------------------------- one_block.c */

/* The task, if it is one of those that this file is for and its result is finite; else false, and
 * out and lse may be anything. */
bool attni_task_one_block(const attni_plan *plan, const attni_task *task, const attni_task *next,
                          char *scratch);

/* ------------------------------------------------------------------------------- prefetch.c */

/* Chooses what is asked for while the first `count` tiles pass over a chunk of keys; the next one
 * begins at j, unless that is `end`. */
void attni_choose_prefetch(attni_worker *w, int count, int64_t j, int64_t end);

/* What to ask for in the next operation, or NULL. */
attni_prefetch *attni_prefetch_now(attni_worker *w);

/* ------------------------------------------------------------------------------- chunk.c */

typedef enum attni_sweep {
    ATTNI_SWEEP_FAST,
    ATTNI_SWEEP_SKIP_MASKED
} attni_sweep; /* again: CAREFUL */

/* One chunk, keys j0 .. j0+n-1, for one tile, into x; with `joins`, it then joins the tile or, of a
 * few queries in the fast sweep, w->totals. False: nothing was seen, and x is not filled. */
bool attni_tile_sweep_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                            attni_sweep mode, bool joins);

/* After the last chunk. */
void attni_tile_end_chunks(attni_worker *w, attni_tile *t);

/* ------------------------------------------------------------------------------ result.c */

/* Writes out and lse; true if some row is not finite, or could not be computed in this mode. */
bool attni_tile_finish(attni_worker *w, attni_tile *t);

/* Prepares a tile for a sweep in which rows that are not finite yet cannot overflow. */
void attni_tile_move_exponents(attni_worker *w, attni_tile *t);

/* The scores that the caller asked for. */
void attni_tile_scores_out(attni_worker *w, attni_tile *t);

#endif
