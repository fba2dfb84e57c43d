/* The structures and functions of one task of the forward, shared by tile_task.c (the sweep over
 * the keys), chunk.c, decode.c, tile_load.c, prefetch.c, result.c and route.c. The gradients
 * (grad/) use some of them too.
 *
 * The elements of all arrays have type R, unless a comment says that rows are as stored. Letters of
 * the shapes: W lanes of a tile; block = ATTNI_BLOCK keys; chunk = ATTNI_CHUNK keys; rows =
 * max_decode_rows of the kernel table, the most queries of the decode path.
 */
#ifndef ATTNI_TILE_H
#define ATTNI_TILE_H

#include "../plan/engine.h"

#include <string.h>

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
    attni_route route; /* which functions compute a block, and in which order (plan/plan.h). It
                          applies to blocks whose keys are all visible, in the fast (first) sweep
                          (tile_task.c) */
    bool decodes;      /* is it a route of decode.c? */
    bool in_totals;    /* the sums are in `totals` of the worker, a row per query, not in `total` */
    char *qt;          /* [D][W]  queries times scale_pow2, a power of two (plan/plan.h) */
    char *total;       /* [Dv][W] sum of weighted values */
    char *l;           /* [W]     sum of weights */
    char *m;           /* [W]     an integer in log2 units, near the running maximum: the weights
                                  are powers relative to it (update_max in kernel.h) */
    char *m_first;     /* [W]     m at the start of a chunk: -inf. In the rescaled sweep, rows whose
                                  results were not finite, or whose scores are huge, begin with
                                  their maximum instead */
    char *top;         /* [W]     largest score so far */
    char *c;           /* [W]     factor: score -> log2 units */
    char *value_scale; /* [W]     if `rescaled`: weights are multiplied by it before values are
                          added */
    bool rescaled;     /* in the rescaled sweep (see the head of tile_task.c) */
    attni_span span;
} attni_tile;

/* The contribution of one chunk of keys, before it is merged into the total. */
typedef struct attni_partial {
    char *acc;         /* [Dv][W] */
    char *m, *l, *top; /* [W] each */
} attni_partial;

/* A block of keys of which a tile sees some key: everything that its computation needs. */
typedef struct attni_chunk_block {
    int64_t j; /* first key */
    int n;
    attni_class visible;
    attni_route route;
    int flags;       /* for values() and weights() */
    bool max_raised; /* the maximum was updated, so the sums of earlier blocks of the chunk must be
                        multiplied by `a` */
    const char *k;   /* rows of keys: as stored, or converted to R */
    const char *v;   /* rows of values, likewise */
    ptrdiff_t ldk;   /* elements */
    ptrdiff_t ldv;
    attn_dtype dtype; /* of these rows */
    bool interleaved; /* the keys are in the interleaved layout */
    char *st;         /* scores, then weights: a tile; in the decode path, except for the route
                         ATTNI_ROUTE_DECODE_TILES, one row per query */
    char *mx, *a;
} attni_chunk_block;

typedef struct attni_worker {
    const attni_plan *plan;
    const attni_sequence *sequence;
    attni_partial chunk; /* the current chunk */
    char *sums;          /* [rows][sums_width] decode path: weighted values of the current chunk */
    char *totals;        /* [rows][sums_width] decode path: those of all chunks before it */
    char *st;            /* [block][W]; in the decode path up to [ATTNI_BLOCKS][rows][block] */
    char *q_row;         /* [D] decode path, one query: the query times scale_pow2, instead of qt */
    char *mx, *a;        /* [ATTNI_BLOCKS][W]: maxima of a block's scores; factors of update_max().
                            Usually only the first row is used */
    char *factors;       /* [2][W] from join(): factors of the total and of the chunk */
    char *k, *v;         /* [n][D], [n][Dv] converted keys and values; n is a chunk if a task has
                            several tiles, else a block */
    char *interleaved;   /* [block][D] keys of a cache that stores them interleaved, as rows of the
                            cache's type, before they are converted to R */
    char *score_rows;    /* [2][rows][block] decode path: scores in rows, before they are transposed
                            into st (decode.c: score_decode_tile) */
    int64_t loaded;      /* the key in the first row of k and v */
    char *rows;          /* [W][max(D, Dv)], if copies_rows: queries, then results */
    char *biases;        /* [W][block] for a dense mask */
    char *lines;         /* [W][block] requested scores, a row per query */
    attni_prefetch mask_prefetch;      /* of a dense mask */
    const attni_task *next;            /* the task to prefetch for, or NULL */
    int prefetch_count, prefetch_next; /* regions in `prefetch`; the current one */
    int pending_count;                 /* blocks in `pending`, whose values are deferred */
    attni_tile tiles[ATTNI_TILES];
    attni_chunk_block pending[ATTNI_BLOCKS];
    attni_prefetch prefetch[2 + 2 * ATTNI_BLOCKS];
} attni_worker;

/* --------------------------------------------------------------------------- lanes, either type */

/* The array may be a row of out, which need not be aligned. */
static inline double attni_lane(const attni_plan *p, const char *array, int64_t i)
{
    float x;
    double y;
    if (p->real == sizeof x) {
        memcpy(&x, array + (size_t)i * sizeof x, sizeof x);
        return (double)x;
    }
    memcpy(&y, array + (size_t)i * sizeof y, sizeof y);
    return y;
}

static inline void attni_set_lane(const attni_plan *p, char *array, int64_t i, double x)
{
    if (p->real == sizeof(float))
        ((float *)array)[i] = (float)x;
    else
        ((double *)array)[i] = x;
}

/* Address of element `column` of the row that lane i has in tensor t, [B,H,T,...]. */
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

/* ------------------------------------------------------------------------------ tile_load.c */

/* Makes keys j0 .. j0+n-1 (at most a chunk) and, if `values`, their values readable as R. j0 counts
 * from the start of the sequence. */
void attni_tile_load(attni_worker *w, int64_t j0, int n, bool values);

/* Converts rows of n elements to R; `stride` is between elements, `ld` between rows. */
void attni_convert_rows(const attni_plan *p, char *to, const char *from, ptrdiff_t ld,
                        attn_dtype dtype, int64_t stride, int rows, int64_t n);

/* The rows of keys, or of values, from j on, as R: in place, or as attni_tile_load() converted
 * them. *ld becomes their stride. */
const char *attni_tile_rows(const attni_worker *w, bool values, int64_t j, ptrdiff_t *ld);

/* Sets the members k, v, ldk, ldv, dtype and interleaved of a block. They describe the rows as they
 * are stored if `as_stored`, else the rows that attni_tile_rows() returns. */
void attni_block_rows(const attni_worker *w, attni_chunk_block *b, bool as_stored);

/* `count` rows of n bytes, `bytes` from one to the next, for a decode operation to prefetch. Rows
 * without gaps become one long row. */
static inline attni_next_rows attni_rows_to_prefetch(const char *rows, ptrdiff_t bytes, int64_t n,
                                                     int64_t count, int l2_ahead, bool l2_only,
                                                     bool one_vector)
{
    const bool one = bytes == n;
    return (attni_next_rows){rows,     bytes,   one ? n * count : n, one ? 1 : count,
                             l2_ahead, l2_only, one_vector};
}

/* What to prefetch while block b is computed: the stored rows of keys or values from j on. If j is
 * past the last key that the tile sees, the first rows of the next task. If there is nothing to
 * prefetch, for example because b reads converted rows, the result has 0 bytes. */
attni_next_rows attni_tile_next_rows(const attni_worker *w, const attni_tile *t, bool values,
                                     const attni_chunk_block *b, int64_t j);

/* ------------------------------------------------------------------------------- route.c */

/* The route of a tile of `rows` queries in nv vectors, with `keys` keys that are all visible. */
attni_route attni_route_of(const attni_plan *p, int nv, int rows, int64_t keys);

/* The route of the call's full tiles. All members of the plan but `route` must be set. */
attni_route attni_route_of_call(const attni_plan *p);

/* ------------------------------------------------------------------------------- prefetch.c */

/* Adds rows of `bytes` bytes, whose starts are ld bytes apart, to what the next scores() and
 * values() prefetch. */
void attni_add_prefetch(attni_worker *w, const char *first, ptrdiff_t ld, int64_t rows,
                        int64_t bytes);
/* Chooses what is prefetched while the first `count` tiles pass over a chunk of keys: the chunk
 * that begins at key j or, if j >= end, the output and the first rows of the next task. */
void attni_choose_prefetch(attni_worker *w, int count, int64_t j, int64_t end);
/* The rows from which the next scores() or values() prefetches (chunk.c); NULL: none are left. */
attni_prefetch *attni_prefetch_now(attni_worker *w);

/* ------------------------------------------------------------------------------- chunk.c */

typedef enum attni_sweep {
    ATTNI_SWEEP_FAST,
    ATTNI_SWEEP_SKIP_MASKED
} attni_sweep; /* see tile_task.c */

/* q . k of block b, into b->st; b->mx gets their maxima. */
void attni_tile_products(attni_worker *w, const attni_tile *t, const attni_chunk_block *b);
/* Turns the products of a block into scores: applies the scale, the soft cap, biases and masks, up
 * to `stage`. At the last stage b->mx gets the maxima. */
void attni_tile_biases(attni_worker *w, const attni_tile *t, const attni_chunk_block *b,
                       attn_stage stage);
/* Updates the maximum and replaces the block's scores by weights. */
void attni_block_weights(attni_worker *w, attni_tile *t, attni_partial *x, attni_chunk_block *b);
/* Adds the block's weighted values. If the block has the flag ATTNI_LAST, the chunk is also merged
 * into the tile. */
void attni_block_values(attni_worker *w, attni_tile *t, attni_partial *x,
                        const attni_chunk_block *b);

/* Lists the blocks of keys j0 .. j0+n-1 (one chunk) of which the tile sees some key, with the
 * tile's route and the worker's buffers; returns their number. */
int attni_cut_chunk(const attni_worker *w, const attni_tile *t, int64_t j0, int n,
                    attni_chunk_block blocks[ATTNI_BLOCKS], attni_sweep mode);
/* Clears the chunk's sum of weights. Sets its m to the tile's m_first, its top to the tile's. */
void attni_begin_chunk(const attni_worker *w, const attni_tile *t, const attni_partial *x);

/* Processes one chunk, keys j0 .. j0+n-1, for one tile, into x. If `joins`, the chunk is then
 * merged into the tile. Returns false if no key is visible; x is then not filled. */
bool attni_tile_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                      attni_sweep mode, bool joins);

/* ------------------------------------------------------------------------------- decode.c */

/* attni_tile_products() of n keys from block b on, for a tile of few rows. The scores are stored
 * one row per query or, if the route is ATTNI_ROUTE_DECODE_TILES, as a tile. */
void attni_decode_products(attni_worker *w, const attni_tile *t, const attni_chunk_block *b, int n);

/* attni_tile_chunk() for a tile of few rows. In the fast sweep the chunk is merged into w->totals;
 * its values may stay pending until the next chunk. */
bool attni_decode_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                        attni_sweep mode, bool joins);

/* Adds the pending values after the last chunk. */
void attni_decode_end(attni_worker *w, attni_tile *t);

/* Transposes rows of sums into lanes, [Dv][W]. */
void attni_transpose_sums(const attni_worker *w, const attni_tile *t, char *to, const char *rows);

/* ------------------------------------------------------------------------------ result.c */

/* Writes out and lse. Returns true if some result is NaN or infinite, or if a score or a sink is
 * too large for log2 units. The next sweep, if there is one, must then compute the tile again. */
bool attni_tile_finish(attni_worker *w, attni_tile *t);

/* Prepares a tile for the rescaled sweep, which computes two kinds of rows again: rows whose
 * results are not finite, and rows with huge scores. It scales their weights by a smaller power of
 * two, so that no sum overflows. This function sets m_first, c and value_scale from the results of
 * the sweep before. The caller then clears the sums. */
void attni_tile_move_exponents(attni_worker *w, attni_tile *t);

/* Writes the scores that the caller requested. */
void attni_tile_scores_out(attni_worker *w, attni_tile *t);

#endif
