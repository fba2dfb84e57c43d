/* One task of the backward: the interface between backward_task.c (what belongs to the task's keys,
 * and the order of additions) and backward_tile.c (the arithmetic of one tile of queries). Arrays
 * are of R unless stated otherwise. */
#ifndef ATTNI_SDPA_BACKWARD_TILE_H
#define ATTNI_SDPA_BACKWARD_TILE_H

#include "../bf16/unit.h"
#include "backward.h"

/* Operands of the bf16 products, in the layouts of bf16/unit.h. D and Dv are padded with zeros to
 * multiples of 32. */
typedef struct attni_grad_operands {
    attni_bf16 *k, *v;    /* [chunk][D], [chunk][Dv] */
    attni_bf16 *kt;       /* blocks of [2][D/16][16][32]: transposed, non-finite keys as zeros */
    attni_bf16 *q, *dout; /* [D/32][nv][16][16][2]: pairs of components */
    attni_bf16 *q_pairs, *dout_pairs; /* [32][D][2]: pairs of queries, non-finite rows as zeros */
    attni_bf16 *rows;                 /* [64][max(D, Dv)]: temporary rows */
    float *largest;                   /* [W] */
    /* Not 0: keys and values are read in place, by the functions of the decode path, for `few`
     * queries: 1, 4, 8, 12 or 16. The arrays that follow are used. 0: products of tiles, with k, v
     * and kt (few_queries() in backward_bf16.c decides). */
    int few;
    attni_bf16 *few_q, *few_dout; /* [D/2][few][2], [Dv/2][few][2] */
    attni_bf16 *few_grads;        /* [few][CHUNK]: gradients of a block, divided by `largest` */
    float *few_scores;            /* [few][CHUNK]: scores or dout . v of a block */
    float *few_sums, *few_dq;     /* [few][D]: of one block; of the chunk's blocks so far */
} attni_grad_operands;

typedef struct attni_grad_worker {
    attni_worker forward; /* its st holds scores, then weights */
    const attni_backward *bw;
    attni_sequence sequence;
    attni_tile tile;
    char *totals;              /* [tiles of the sequence]: totals of the group's first head */
    size_t head_totals;        /* bytes from one head's totals to those of the next head */
    int64_t task, pair, chunk; /* chunk: index among the sequence's chunks */
    int64_t b, head;           /* head: index within the group */
    int64_t j0, n;             /* the chunk's keys: j0 .. j0+n-1 */
    int64_t row0;              /* of the tile's first query, in [B,H,T] */
    bool scaled;               /* some factor of the tile is not 1 */
    uint64_t nonfinite_q, nonfinite_dout; /* lanes whose q or dout is not finite */
    uint64_t nonfinite_k[ATTNI_CHUNK / ATTNI_BLOCK];
    bool summed[ATTNI_CHUNK / ATTNI_BLOCK]; /* blocks of keys whose dk and dv hold sums */
    /* lanes that see each key of the block; set only if something is not finite */
    uint64_t seen[ATTNI_BLOCK];
    char *dot;                          /* [Dv][W]: dout, transposed */
    char *q_rows, *dout_rows;           /* panels of the tile's rows */
    char *q_row, *dout_row;             /* of a tile of one query: row 0 of qt and dot */
    char *score_rows;                   /* [max_decode_rows][block]: scores of few queries */
    char *converted;                    /* [W][max(D, Dv)]: rows converted to R */
    char *lse, *factor, *delta, *scale; /* [W] */
    char *one;                          /* [2][W]: ones, as factors of fold() */
    char *dp, *raw, *kept;              /* [block][W] */
    char *dk, *dv;                      /* [chunk][padded]: sums of the blocks in `summed` */
    char *dq;                           /* [D][W]: dq of this chunk */
    char *dq_rows;                      /* [rows][vectors of D]: the same for few queries */
    char *clean_k;                      /* [block][D]: keys, non-finite ones as zeros */
    double *sums;                       /* [W]: sums of dS of this chunk */
    attni_grad_operands bf16;           /* used if the call has a bf16 unit */
} attni_grad_worker;

/* Processes all keys of the chunk that some query of the tile sees: adds to their dk and dv, and
 * computes the tile's dq and sums. Returns false if there are no such keys; then nothing was
 * changed. */
bool attni_backward_tile(attni_grad_worker *w);

/* ------------------------------------------------------------------------- backward_scores.c
 *
 * The steps that R and bf16 arithmetic share. */

/* attni_grad_begin_sums is called before the chunk's first tile, attni_grad_complete_sums after its
 * last one: it sets dk and dv to 0 for blocks that no query sees. */
void attni_grad_begin_sums(attni_grad_worker *w);
void attni_grad_complete_sums(attni_grad_worker *w);
/* Whether the block that begins with the chunk's key `at` has sums, to which products are added. If
 * not, the caller must write the sums of the block's first n keys next. This function then zeroes
 * those of its other keys and marks the block. */
bool attni_grad_has_sums(attni_grad_worker *w, int64_t at, int n);
/* Turns scores, biased and masked, into weights; a masked weight is the mark -1. Returns the
 * weights after dropout. */
char *attni_grad_weigh(attni_grad_worker *w, int64_t j, int n);
/* Takes those weights and w->dp = dout . v. The marks in the weights become 0, and w->dp becomes
 * the gradient of the scaled scores, before the soft cap. dq and dk are multiplied by the scale
 * when they are stored. */
void attni_grad_scores(attni_grad_worker *w, char *kept, int64_t j, int n);
/* Adds the requested sums of w->dp; attni_grad_scores calls this. */
void attni_grad_sums(attni_grad_worker *w, int64_t j, int n);
/* Contributions of non-finite rows, added element by element. ..._rows: for each non-finite row of
 * t (q or dout), and each key from j0 on that this row sees, adds the row, times its factor in x,
 * to the key's row of `sum`. ..._key: what key j of the block, which is not finite, adds to dq of
 * the queries that see it. */
void attni_grad_nonfinite_rows(const attni_grad_worker *w, char *sum, const attni_panels *panels,
                               const char *x, const attn_tensor *t, uint64_t nonfinite, int64_t j0,
                               int n);
void attni_grad_nonfinite_key(const attni_grad_worker *w, int j, const char *row);
/* Rows i .. i+n-1 of t (q or dout) as R, ld elements apart: in place if possible, otherwise
 * converted into w->converted. */
const char *attni_grad_tile_rows(const attni_grad_worker *w, const attn_tensor *t, int64_t i, int n,
                                 ptrdiff_t *ld);

/* ----------------------------------------------------------------------- backward_bf16.c */
void attni_grad_bf16_carve(attni_grad_worker *w, attni_layout *layout);
void attni_grad_bf16_load_keys(attni_grad_worker *w);
void attni_grad_bf16_load_tile(attni_grad_worker *w);
void attni_grad_bf16_block(attni_grad_worker *w, int64_t j, int n, attni_class visible);
void attni_grad_bf16_end_tile(attni_grad_worker *w);

#endif
