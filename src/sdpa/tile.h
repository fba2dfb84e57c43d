/* The structures and functions of one task of the forward, shared by tile_task.c (the sweep over
 * the keys), chunk.c, tile_load.c, tile_scores.c, one_block.c, prefetch.c and result.c. The
 * gradients (grad/) use some of them too.
 *
 * All arrays are of R. Shapes: W lanes of a tile; block = ATTNI_BLOCK keys; chunk = ATTNI_CHUNK
 * keys; rows = max_decode_rows of the kernel table, the most queries of the decode path.
 */
#ifndef ATTNI_TILE_H
#define ATTNI_TILE_H

#include "../plan/engine.h"

#define ATTNI_TILES 4 /* most query tiles that share each chunk of keys while it is in cache */

extern const attni_engine attni_engine_tile;

/* A tile of queries. Its lanes are queries i0 and following of one head, or of `heads` heads one
 * after the other: heads that share keys read them together. */
typedef struct attni_tile {
    int64_t i0;   /* first query */
    int per_head; /* queries per head */
    int heads;
    int rows; /* per_head * heads; the other lanes compute on zeros */
    int nv, W;
    bool in_totals;    /* `total` is in the worker's `totals`, one row per query */
    char *qt;          /* [D][W]  queries * scale_pow2 */
    char *total;       /* [Dv][W] sum of weighted values */
    char *l;           /* [W]     sum of weights */
    char *m;           /* [W]     running maximum, an integer, in log2 units */
    char *m_first;     /* [W]     m at the start of a chunk: -inf, or high enough not to overflow */
    char *top;         /* [W]     largest score so far */
    char *c;           /* [W]     factor: score -> log2 units */
    char *value_scale; /* [W]     if `rescaled`: factor on the weights before values are added */
    bool rescaled;
    attni_span span;
} attni_tile;

/* The contribution of one chunk of keys, before it is merged into the total. */
typedef struct attni_partial {
    char *acc;         /* [Dv][W] */
    char *m, *l, *top; /* [W] each */
} attni_partial;

/* A block of keys of which a tile sees some key. */
typedef struct attni_chunk_block {
    int64_t j; /* first key */
    int n;
    attni_class visible;
    int flags;   /* for values() and weights() */
    bool raised; /* the maximum was updated: what was summed before is multiplied by a */
    char *st;    /* scores, then weights */
    char *mx, *a;
} attni_chunk_block;

typedef struct attni_worker {
    const attni_plan *plan;
    const attni_sequence *sequence;
    attni_partial chunk; /* the current chunk */
    char *sums;          /* [rows][Dv] decode path: its weighted values */
    char *totals;        /* [rows][Dv] decode path: those of all chunks before it */
    char *st;            /* [block][W]; in the decode path up to [ATTNI_BLOCKS][rows][block] */
    char *q_row;         /* [D] the query of a one-query tile, times scale_pow2; qt is not filled */
    char *mx, *a;        /* [ATTNI_BLOCKS][W]; usually only the first row is used */
    char *factors;       /* [2][W], written by join() */
    char *k, *v;         /* [chunk][D], [chunk][Dv]: converted keys and values */
    char *interleaved;   /* [block] rows: a cache's keys on their way to k */
    char *score_rows;    /* [2][rows][block] scores in rows, on their way to st */
    int64_t loaded;      /* the key in the first row of k and v */
    bool in_rows;        /* st has one row per query, the layout of the *_decode operations */
    bool as_stored;      /* the block is read as stored: f16 or bf16, interleaved keys */
    char *rows;          /* [W][max(D, Dv)]: converted queries, outputs */
    char *biases;        /* [W][block] for a dense mask */
    char *lines;         /* [W][block] requested scores, a row per query */
    attni_prefetch mask_prefetch;      /* of a dense mask */
    const attni_task *next;            /* the task to prefetch for, or NULL */
    int prefetch_count, prefetch_next; /* regions in `prefetch`; the current one */
    int pending_count;                 /* blocks in `pending`, whose values are deferred */
    /* begin_worker() clears the members above this one; the members from here on are not
     * cleared. */
    attni_tile tiles[ATTNI_TILES];
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

/* Address of the row of lane i in tensor t, [B,H,T,...]. */
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

/* Does the tile take the decode path? Its queries are so few, and its keys so many, that the SIMD
 * lanes are better filled with keys and with value components. */
static inline bool attni_tile_decodes(const attni_plan *p, const attni_tile *t)
{
    return t->nv == 1 && t->rows <= p->kernels->max_decode_rows &&
           t->span.any1 - t->span.any0 >= p->kernels->lanes;
}

/* ------------------------------------------------------------------------------ tile_load.c */

/* Sets the tile's shape: the narrowest tile that holds `rows` queries of each of the plan's heads.
 * The bits of a query do not depend on the width. */
void attni_tile_shape(const attni_worker *w, attni_tile *t, int64_t i0, int64_t rows);

/* Loads the tile's queries into qt, or into q_row. */
void attni_tile_queries(attni_worker *w, attni_tile *t);

/* Resets the sums. `total` need not be cleared if nothing will be added to it. */
void attni_tile_clear(const attni_plan *p, attni_tile *t, bool total);

/* Makes keys j0 .. j0+n-1 (at most a chunk) and, if `values`, their values readable as R. j0 counts
 * from the start of the sequence. */
void attni_tile_load(attni_worker *w, int64_t j0, int n, bool values);

/* Converts rows of n elements to R; `stride` is between elements, `ld` between rows. */
void attni_convert_rows(const attni_plan *p, char *to, const char *from, ptrdiff_t ld,
                        attn_dtype dtype, int64_t stride, int rows, int64_t n);

/* The rows of keys, or of values, from j on, and their stride *ld. They are what attni_tile_load()
 * made readable or, if w->as_stored, the stored ones: f16 or bf16, interleaved keys. */
const char *attni_tile_rows(const attni_worker *w, bool values, int64_t j, ptrdiff_t *ld);

/* The type of these rows. */
attn_dtype attni_tile_dtype(const attni_worker *w);

/* What to prefetch: the rows of keys or values from j on, if the tile sees some of them and they
 * are read in place; else any address, and no rows. */
attni_next_rows attni_tile_next_rows(const attni_worker *w, const attni_tile *t, bool values,
                                     int64_t j);

/* Transposes the decode path's rows of sums into lanes, [Dv][W], exactly. */
void attni_transpose_sums(const attni_worker *w, const attni_tile *t, char *to, const char *rows);

/* ------------------------------------------------------------------------------ tile_scores.c */

/* The two steps of attni_tile_scores(): q . k; then everything after it, up to `stage`. */
void attni_tile_products(attni_worker *w, const attni_tile *t, int64_t j0, int n);
void attni_tile_biases(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage);

/* Scores of one block, up to `stage`, into w->st; w->mx gets their maxima at the last stage. */
void attni_tile_scores(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage);

/* ------------------------------------------------------------------------------- one_block.c */

/* Computes the task if this file is for it and its result is finite. Returns false otherwise; out
 * and lse are then undefined. */
bool attni_task_one_block(const attni_plan *plan, const attni_task *task, const attni_task *next,
                          char *scratch);

/* ------------------------------------------------------------------------------- prefetch.c */

/* Chooses what is prefetched while the first `count` tiles pass over a chunk of keys. The next
 * chunk begins at key j, unless j is `end`. */
void attni_choose_prefetch(attni_worker *w, int count, int64_t j, int64_t end);

/* The region that the next operation prefetches from, or NULL. */
attni_prefetch *attni_prefetch_now(attni_worker *w);

/* ------------------------------------------------------------------------------- chunk.c */

typedef enum attni_sweep {
    ATTNI_SWEEP_FAST,
    ATTNI_SWEEP_SKIP_MASKED
} attni_sweep; /* see tile_task.c */

/* Processes one chunk, keys j0 .. j0+n-1, for one tile, into x. If `joins`, the chunk is then
 * merged into the tile or, in the decode path's fast sweep, into w->totals. Returns false if no key
 * is visible; x is then not filled. */
bool attni_tile_sweep_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                            attni_sweep mode, bool joins);

/* Finishes the pending values after the last chunk. */
void attni_tile_end_chunks(attni_worker *w, attni_tile *t);

/* ------------------------------------------------------------------------------ result.c */

/* Writes out and lse. Returns true if some row is not finite or could not be computed in this
 * sweep. */
bool attni_tile_finish(attni_worker *w, attni_tile *t);

/* Prepares a tile for a sweep in which rows that are not finite yet cannot overflow. */
void attni_tile_move_exponents(attni_worker *w, attni_tile *t);

/* Writes the scores that the caller requested. */
void attni_tile_scores_out(attni_worker *w, attni_tile *t);

#endif
