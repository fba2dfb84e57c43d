/* Inside a task of bf16, between bf16_task.c (the order of the work) and bf16_operands.c (what
 * comes from the caller's tensors and goes into them). */
#ifndef ATTNI_SDPA_BF16_H
#define ATTNI_SDPA_BF16_H

#include "bf16_engine.h"
#include "unit.h"

/* Tiles that share a chunk's transposed values, at most. To transpose 64 values costs about half as
 * much as one tile's work on them on the matrix unit at D = 64, so that they are shared more widely
 * than the chunks of tile_task.c. To be measured on AMX. */
#define TILES 16
#define BLOCKS (ATTNI_CHUNK / ATTNI_BLOCK)

typedef enum sweep_mode { SWEEP_FAST, SWEEP_SKIP_MASKED, SWEEP_RESCALED } sweep_mode;

typedef struct bf16_tile {
    int64_t i0;   /* first query */
    int per_head; /* queries of each of the heads that share the columns, one after the other */
    int heads;
    int rows; /* per_head * heads: the other columns compute on zeros */
    int nv, W;
    attni_bf16 *q; /* loaded when columns are first wanted */
    bool loaded;
    int exponent; /* of the largest element of q */
    float *total; /* [Dv][W] */
    float *c, *value_scale, *M, *L,
        *top; /* [W]: score -> log2 units; what EXTREME multiplies weights by;
                                       the total's maximum and sum; largest score met */
    attni_span span;
} bf16_tile;

/* One block of keys for one tile. */
typedef struct bf16_block {
    int64_t j0; /* first key, counted from the sequence's first */
    int n;      /* keys */
    attni_class visible;
    const void *k;
    ptrdiff_t ldk; /* bytes */
    const attni_bf16 *vt;
    bool nonfinite; /* CAREFUL: some value is NaN or infinite, and 0 in vt */
    bool clean;     /* no score is NaN or +inf */
    bool counted;   /* its scores are in columns->top */
} bf16_block;

/* The blocks of one chunk that one tile sees some key of. */
typedef struct bf16_tile_chunk {
    bf16_tile *t; /* NULL: none */
    attni_bf16_columns *columns;
    int count;
    bf16_block blocks[BLOCKS];
    float *st;  /* [count][64][W] */
    float *acc; /* [Dv][W] */
    bool apart; /* a partial, that does not join the tile's total */
} bf16_tile_chunk;

/* What one chunk of keys adds, kept until all of them are there. */
typedef struct bf16_partial {
    attni_bf16_columns *columns; /* l[0] < 0: nothing was seen */
    float *acc;
} bf16_partial;

/* A block whose weights are in p, to be multiplied by its values. */
typedef struct bf16_weighted_block {
    bf16_tile *t; /* NULL: none */
    bf16_block block;
    attni_bf16_columns *columns;
    float *acc;
    bool first, last; /* of its run */
    bool apart;
    const attni_bf16 *p;
    const uint32_t *seen; /* [64] CAREFUL: the columns that see key r, a bit each */
} bf16_weighted_block;

/* The blocks of a chunk of which some query sees some key, one after the other. */
typedef struct bf16_visible_blocks {
    int count, n; /* blocks; keys of them all */
    int64_t j[BLOCKS];
    int keys[BLOCKS];
    attni_class visible[BLOCKS];
} bf16_visible_blocks;

typedef struct bf16_worker {
    const attni_plan *plan;
    const attni_sequence *sequence;
    const attni_task *next; /* what this thread will most likely do then, or NULL */
    const attni_bf16_unit *unit;
    sweep_mode mode;
    bf16_tile_chunk scored;      /* the run whose scores and maxima are there */
    bf16_weighted_block weighed; /* the last block of the run before it */
    float *st[2];                /* of runs, by turns */
    attni_bf16 *p[2];            /* of blocks, by turns */
    attni_bf16_columns *columns; /* of the last three runs */
    int runs, blocks, chunks;    /* counted, to take turns */
    float *acc;                  /* [Dv][W] */
    int row; /* the task's only tile is swept in rows, so many: 1, 4 or 8; else 0 */
    float *row_sums, *row_total; /* [row][Dv] of a chunk, of all */
    attni_bf16 *row_q;           /* [D/2][row][2] */
    attni_bf16 *row_p;           /* [row][CHUNK] */
    bf16_visible_blocks
        row_pending; /* count > 0: whose weights are in row_p, not their values yet */
    attni_bf16_columns *row_columns; /* theirs */
    float *row_acc;                  /* and where they go, NULL: the total */
    attni_bf16 *vt[3];               /* of chunks: one run's, while those of two are still in use */
    unsigned packed, nonfinite;      /* bit b: block b of the chunk is in vt; has odd values */
    const void *keys[BLOCKS];        /* where they are to be read, NULL: not asked for yet */
    int exponent[BLOCKS];            /* of the largest key of each block */
    attni_bf16 *k;                   /* [CHUNK][D]: keys that cannot be read where they lie */
    char *rows;                      /* [block][max(D, Dv)] float: rows on their way */
    float *biases;                   /* [W][block] */
    float *lines;                    /* [W][block] scores, a row per query */
    attni_prefetch mask_prefetch;
    /* not cleared at a task's begin */
    bf16_tile tiles[TILES];
    uint32_t seen[2][ATTNI_BLOCK];
} bf16_worker;

/* Where tensor t, [B,H,T,...], has the row of column i. */
static inline char *column_row(const bf16_worker *w, const bf16_tile *x, const attn_tensor *t,
                               int i, int64_t element)
{
    return attni_at(t, w->sequence->b, w->sequence->h + i / x->per_head,
                    w->sequence->i_base + x->i0 + i % x->per_head, element);
}

/* ------------------------------------------------------------------------- bf16_operands.c */

/* The tile's queries as columns, unless they are there. */
void attni_bf16_load_queries(bf16_worker *w, bf16_tile *t);
/* Forgets the keys and values of the chunk before; those that are still to be multiplied stay. */
void attni_bf16_new_chunk(bf16_worker *w);
/* Biases and masks of scores st of keys j0 .. j0+n-1. */
void attni_bf16_mask(const bf16_worker *w, const bf16_tile *t, float *st, int64_t j0, int n);
/* Keys j0 .. j0+n-1, block `at` of the chunk, as 64 rows of a multiple of 32 components: where they
 * lie if they are so, else a copy filled up with zeros. Returns the first; *ldk in bytes. */
const void *attni_bf16_find_keys(bf16_worker *w, int64_t j0, int n, int at, ptrdiff_t *ldk);
/* The values of the same block, packed. */
const attni_bf16 *attni_bf16_find_values(bf16_worker *w, int64_t j0, int n, int at);

/* A tile before a sweep, but for its total; and its columns before a chunk. */
void attni_bf16_clear(const attni_plan *p, bf16_tile *t);
void attni_bf16_clear_columns(const bf16_tile *t, attni_bf16_columns *columns);
/* Writes out and lse; true if some row is not finite, or could not be computed in this mode. */
bool attni_bf16_write(bf16_worker *w, bf16_tile *t);
/* Clears a tile for the sweep EXTREME. */
void attni_bf16_rescale_tile(const bf16_worker *w, bf16_tile *t);
/* The scores that the caller asked for, computed once more now that M and L are final. */
void attni_bf16_write_scores(bf16_worker *w, bf16_tile *t);

/* -------------------------------------------------------------------------- bf16_decode.c */

/* Before the sweep of a few queries as rows. */
void attni_bf16_row_begin(bf16_worker *w, bf16_tile *t);
/* The visible ones of keys j0 .. j0+n-1 (one chunk) join w->row_total, or `into`: their weights are
 * made at once, their values are added in the next call, or at the end. False if scores or maxima
 * want the careful way, by columns; then nothing of this chunk has been done. */
bool attni_bf16_row_chunk(bf16_worker *w, bf16_tile *t, const attni_class *class, int64_t j0, int n,
                          const bf16_partial *into);
/* What the last chunk has left to do, if anything. */
void attni_bf16_row_end(bf16_worker *w, bf16_tile *t);
/* A chunk whose sums are in columns joins w->row_total. */
void attni_bf16_row_join(bf16_worker *w, bf16_tile *t, const bf16_partial *chunk);

#endif
