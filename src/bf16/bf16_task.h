/* The structures of one bf16 task, shared by bf16_engine.c (the tasks), bf16_task.c (the order of
 * the work), bf16_operands.c (the caller's tensors) and bf16_decode.c (the decode path). */
#ifndef ATTNI_SDPA_BF16_H
#define ATTNI_SDPA_BF16_H

#include "bf16_engine.h"
#include "unit.h"

/* The most tiles that share a chunk's packed values. Packing 64 values costs about half as much as
 * one tile's work on them on the matrix unit at D = 64, so more tiles share them than share a chunk
 * in tile_task.c. On AMX, 4 tiles have 0.92 of the speed of 16, 8 have 0.97, and 32 have 1.01. */
#define TILES 16
#define BLOCKS ATTNI_BF16_BLOCKS
_Static_assert(BLOCKS == ATTNI_CHUNK / ATTNI_BLOCK, "the blocks of a chunk");

typedef enum sweep_mode { SWEEP_FAST, SWEEP_SKIP_MASKED, SWEEP_RESCALED } sweep_mode;

typedef struct bf16_tile {
    int64_t i0;   /* first query */
    int per_head; /* queries per head; the columns hold the heads one after the other */
    int heads;
    int rows; /* per_head * heads; the other columns compute on zeros */
    int nv, W;
    attni_route route; /* in SWEEP_FAST */
    attni_bf16 *q;     /* loaded when columns are first needed */
    bool loaded;
    int exponent; /* biased exponent of q's largest element */
    /* total is [Dv][W], the others are [W]. c: score -> log2 units; value_scale: factor on the
     * weights in SWEEP_RESCALED; M, L: the total's maximum and sum; top: the largest score so
     * far. */
    float *total;
    float *c, *value_scale, *M, *L, *top; /* [W] */
    float *scores;                        /* [kept_keys][W], if the plan keeps scores; else NULL */
    uint64_t kept; /* bit b: the final scores of block b of the sequence are in `scores` */
    attni_span span;
} bf16_tile;

/* One block of keys for one tile. */
typedef struct bf16_block {
    int64_t j0; /* first key, counted from the start of the sequence */
    int n;      /* keys */
    attni_class visible;
    const void *k;
    ptrdiff_t ldk; /* bytes */
    const attni_bf16 *vt;
    bool nonfinite; /* some value is NaN or infinite, and 0 in vt; false in SWEEP_FAST */
    bool clean;     /* no score is NaN or +inf */
    bool counted;   /* its scores are in columns->top */
} bf16_block;

/* A tile chunk: the blocks of one chunk of which one tile sees some key. */
typedef struct bf16_tile_chunk {
    bf16_tile *t;
    attni_bf16_columns *columns;
    int count;
    bf16_block blocks[BLOCKS];
    float *acc; /* [Dv][W] */
    bool apart; /* process() does not merge the sums into t->total */
} bf16_tile_chunk;

/* The contribution of one chunk of keys, kept until those of all chunks are complete. */
typedef struct bf16_partial {
    attni_bf16_columns *columns; /* l[0] < 0: no key is visible */
    float *acc;
} bf16_partial;

/* The blocks of a chunk of which some query sees some key, in order. */
typedef struct bf16_visible_blocks {
    int count, n; /* blocks; keys of all of them */
    int64_t j[BLOCKS];
    int keys[BLOCKS];
    attni_class visible[BLOCKS];
} bf16_visible_blocks;

typedef struct bf16_worker {
    const attni_plan *plan;
    const attni_sequence *sequence;
    const attni_task *next; /* this thread's most likely next task (to prefetch), or NULL */
    const attni_bf16_unit *unit;
    sweep_mode mode;
    float *st;                       /* [CHUNK][W] scores. Decode path: [row][CHUNK], then space
                                        for a block of scores in columns, which masks need */
    attni_bf16 *p;                   /* of the blocks of one call of unit->values */
    attni_bf16_columns *columns;     /* of one tile chunk */
    float *acc;                      /* [Dv][W] */
    int row;                         /* decode path: number of rows, 1, 4, 8, 12 or 16; else 0 */
    float *row_sums, *row_total;     /* [row][Dv] of the chunk; of all chunks */
    attni_bf16 *row_q;               /* [D/2][row][2] */
    attni_bf16 *row_p;               /* [row][CHUNK] */
    bf16_visible_blocks row_pending; /* weights in row_p, values to be added */
    attni_bf16_columns *row_columns; /* columns of row_pending */
    float *row_acc;                  /* where its sums go; NULL: the total */
    attni_bf16 *vt;                  /* of one chunk */
    bool few;                        /* vt is packed by unit->pack_few */
    unsigned packed, nonfinite;      /* bit b: block b of the chunk is in vt; has non-finite
                                        values */
    const void *keys[BLOCKS];        /* where block b is read; NULL: not looked up yet */
    int exponent[BLOCKS];            /* biased exponent of each block's largest component */
    attni_bf16 *k;                   /* [CHUNK][D]: copies of keys that cannot be read in place */
    char *rows;                      /* [block][max(D, Dv)] float: rows during conversion */
    float *biases;                   /* [W][block] */
    float *lines;                    /* [W][block] requested scores, a row per query */
    attni_prefetch mask_prefetch;
    /* begin_worker() does not clear the members from here on. */
    bf16_tile tiles[TILES];
    uint32_t seen[BLOCKS][ATTNI_BLOCK]; /* bit i of seen[b][r]: column i sees key r of block b */
} bf16_worker;

/* Address of the row of column i in tensor t, [B,H,T,...]. */
static inline char *column_row(const bf16_worker *w, const bf16_tile *x, const attn_tensor *t,
                               int i, int64_t element)
{
    return attni_at(t, w->sequence->b, w->sequence->h + i / x->per_head,
                    w->sequence->i_base + x->i0 + i % x->per_head, element);
}

/* ------------------------------------------------------------------------- bf16_operands.c */

/* Loads the tile's queries as columns, unless they are loaded. */
void attni_bf16_load_queries(bf16_worker *w, bf16_tile *t);
/* Starts a new chunk: drops the keys and packed values of the chunk before. */
void attni_bf16_new_chunk(bf16_worker *w);
/* Applies biases and masks to the scores st of keys j0 .. j0+n-1. */
void attni_bf16_mask(const bf16_worker *w, const bf16_tile *t, float *st, int64_t j0, int n);
/* Finds keys j0 .. j0+n-1, block `at` of the chunk: in place if their layout and unit->keys and
 * unit->granule permit, else as a copy, padded with zeros to 64 rows of a multiple of 32
 * components. Returns the first row; *ldk is in bytes. */
const void *attni_bf16_find_keys(bf16_worker *w, int64_t j0, int n, int at, ptrdiff_t *ldk);
/* Finds the values of the same block, packed. */
const attni_bf16 *attni_bf16_find_values(bf16_worker *w, int64_t j0, int n, int at);

/* Clears a tile before a sweep, except for its total; and its columns before a chunk. */
void attni_bf16_clear(const attni_plan *p, bf16_tile *t);
void attni_bf16_clear_columns(const bf16_tile *t, attni_bf16_columns *columns);
/* Writes out and lse. Returns true if some result is NaN or infinite, or if a score or a sink is
 * too large for log2 units. The tile must then be swept again in the next sweep_mode, if there is
 * one. */
bool attni_bf16_write(bf16_worker *w, bf16_tile *t);
/* Clears a tile for SWEEP_RESCALED. */
void attni_bf16_rescale_tile(const bf16_worker *w, bf16_tile *t);
/* Writes the scores that the caller requested, when M and L are final. Scores that the tile has not
 * kept are computed once more. */
void attni_bf16_write_scores(bf16_worker *w, bf16_tile *t);

/* ----------------------------------------------------------------------------- bf16_task.c */

/* Bytes of a worker's arrays; SIZE_MAX: too many. */
size_t attni_bf16_scratch(const attni_plan *plan);
/* Begins to use the unit, with arrays in `scratch`. */
void attni_bf16_begin_worker(bf16_worker *w, const attni_plan *plan, const attni_sequence *sequence,
                             char *scratch);
/* Sets nv, W, per_head and rows of a tile that has the same number of queries of each of `heads`
 * heads: `rows`, or as many as fit. */
void attni_bf16_size_tile(const attni_plan *p, bf16_tile *t, int heads, int64_t rows);
/* Sets up the next tile of a task: as many of the queries i0 .. i0+rows-1 of each head as fit. Its
 * sums are not cleared. */
void attni_bf16_begin_tile(bf16_worker *w, bf16_tile *t, int64_t i0, int64_t rows);
/* Begins a sweep; chooses between columns and the decode path. */
void attni_bf16_begin_sweep(bf16_worker *w, bf16_tile *tiles, int count, sweep_mode mode);
/* Clears the sums of weighted values that the sweep adds to. */
void attni_bf16_clear_total(const bf16_worker *w, bf16_tile *t);
/* Processes the blocks of keys j0 .. j0+n-1 (one chunk) for one tile. If `into` is not NULL, the
 * sums go into that partial. */
void attni_bf16_sweep_chunk(bf16_worker *w, bf16_tile *t, int64_t j0, int n,
                            const bf16_partial *into);
/* Sweeps the tiles' keys. */
void attni_bf16_sweep_keys(bf16_worker *w, bf16_tile *tiles, int count);

/* -------------------------------------------------------------------------- bf16_decode.c */

/* Begins a sweep of the decode path. */
void attni_bf16_row_begin(bf16_worker *w, bf16_tile *t);
/* Processes the visible keys of j0 .. j0+n-1 (one chunk). Computes their weights now; the next call
 * or attni_bf16_row_end() adds their values. The sums go to `into`, or to w->row_total if it is
 * NULL. Returns false if scores or maxima need the columns of bf16_task.c; then nothing of this
 * chunk has been done. */
bool attni_bf16_row_chunk(bf16_worker *w, bf16_tile *t, const attni_class *class, int64_t j0, int n,
                          const bf16_partial *into);
/* Adds the pending values of the last chunk, if any. */
void attni_bf16_row_end(bf16_worker *w, bf16_tile *t);
/* Merges a chunk whose sums are in columns into w->row_total. */
void attni_bf16_row_join(bf16_worker *w, bf16_tile *t, const bf16_partial *chunk);

#endif
