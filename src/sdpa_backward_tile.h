/* One task of the backward, between sdpa_backward_task.c (what belongs to its keys, and its turn)
 * and sdpa_backward_tile.c (the arithmetic of one tile of queries). All arrays are of R, but where
 * it says otherwise. */
#ifndef ATTNI_SDPA_BACKWARD_TILE_H
#define ATTNI_SDPA_BACKWARD_TILE_H

#include "sdpa_backward.h"

typedef struct attni_grad_worker {
    attni_worker forward; /* its st holds scores, then weights */
    const attni_backward *bw;
    attni_view view;
    attni_tile tile;
    int64_t slot;              /* of totals, where the pair's dq adds up */
    int64_t task, pair, chunk; /* chunk of the view's keys */
    int64_t b, head;           /* head: of the view, within the group */
    int64_t j0, n;             /* the chunk's keys */
    int64_t row0;              /* of the tile, in [B,H,T] */
    bool scaled;               /* some factor of the tile is not 1 */
    uint64_t bad_q, bad_dout;  /* of the tile's lanes */
    uint64_t bad_k[ATTNI_CHUNK / ATTNI_BLOCK];
    uint64_t seen[ATTNI_BLOCK]; /* the lanes that see a key of the block; only where rows are bad */
    char *dot;                  /* [Dv][W] dout, transposed */
    char *q_rows, *dout_rows;   /* panels of the tile's rows */
    char *converted;            /* [W][max(D, Dv)] rows as R */
    char *lse, *factor, *delta, *scale; /* [W] */
    char *one;                          /* [2][W], as factors of fold() */
    char *dp, *raw, *kept;              /* [block][W] */
    char *dk, *dv;                      /* [chunk][padded] */
    char *dq;                           /* [D][W] of this chunk */
    char *clean_k;                      /* [block][D] keys without the bad ones */
    double *sums;                       /* [W] of dS, of this chunk */
} attni_grad_worker;

/* All keys of the chunk that some query of the tile sees: their dk and dv, and the tile's dq and
 * sums. False: there are none, and nothing was touched. */
bool attni_backward_tile(attni_grad_worker *w);

#endif
