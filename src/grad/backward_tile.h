/* One task of the backward, between backward_task.c (what belongs to its keys, and its turn)
 * and backward_tile.c (the arithmetic of one tile of queries). All arrays are of R, but where
 * it says otherwise. */
#ifndef ATTNI_SDPA_BACKWARD_TILE_H
#define ATTNI_SDPA_BACKWARD_TILE_H

#include "../bf16/unit.h"
#include "backward.h"

/* Operands of the products of bf16, in the shapes of bf16/unit.h; D and Dv are filled up to
 * multiples of 32 with zeros. */
typedef struct attni_grad_operands {
    attni_bf16 *k, *v;    /* [chunk][D], [chunk][Dv] */
    attni_bf16 *kt;       /* blocks of [2][D/16][16][32]: transposed, without bad keys */
    attni_bf16 *q, *dout; /* [D/32][nv][16][16][2]: pairs of components */
    attni_bf16 *q_pairs, *dout_pairs; /* [32][D][2]: pairs of queries, without bad rows */
    attni_bf16 *rows;                 /* [64][max(D, Dv)] on their way */
    float *largest;                   /* [W] */
} attni_grad_operands;

typedef struct attni_grad_worker {
    attni_worker forward; /* its st holds scores, then weights */
    const attni_backward *bw;
    attni_sequence sequence;
    attni_tile tile;
    char *totals;                         /* [tiles of the view]: of the group's first head */
    size_t head_totals;                   /* bytes from there to the next head's */
    int64_t task, pair, chunk;            /* chunk of the view's keys */
    int64_t b, head;                      /* head: of the view, within the group */
    int64_t j0, n;                        /* the chunk's keys */
    int64_t row0;                         /* of the tile, in [B,H,T] */
    bool scaled;                          /* some factor of the tile is not 1 */
    uint64_t nonfinite_q, nonfinite_dout; /* of the tile's lanes */
    uint64_t nonfinite_k[ATTNI_CHUNK / ATTNI_BLOCK];
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
    attni_grad_operands bf16;           /* where the call has a unit for them */
} attni_grad_worker;

/* All keys of the chunk that some query of the tile sees: their dk and dv, and the tile's dq and
 * sums. False: there are none, and nothing was touched. */
bool attni_backward_tile(attni_grad_worker *w);

/* ------------------------------------------------------------------------- backward_scores.c
 *
 * What the arithmetic of R and that of bf16 have in common. From scores, biased and masked, to
 * weights, a mark where hidden; those that dropout leaves are returned. */
char *attni_grad_weigh(attni_grad_worker *w, int64_t j, int n);
/* From those and w->dp, dout . v, to weights without marks and w->dp, the gradients of the products
 * q . k. */
void attni_grad_scores(attni_grad_worker *w, char *kept, int64_t j, int n);
/* The sums of w->dp that the caller asked for; attni_grad_scores does this. */
void attni_grad_sums(attni_grad_worker *w, int64_t j, int n);
/* What the bad rows of t, q or dout, add to `sum` of keys j0 .. that see them, by factors x; and
 * what key j of the block, which is bad, adds to queries that see it. */
void attni_grad_nonfinite_rows(const attni_grad_worker *w, char *sum, const attni_panels *panels,
                               const char *x, const attn_tensor *t, uint64_t nonfinite, int64_t j0,
                               int n);
void attni_grad_nonfinite_key(const attni_grad_worker *w, int j, const char *row);
/* Rows i .. i+n-1 of t, q or dout, as R, ld elements apart: where they lie, or in w->converted. */
const char *attni_grad_tile_rows(const attni_grad_worker *w, const attn_tensor *t, int64_t i, int n,
                                 ptrdiff_t *ld);

/* ----------------------------------------------------------------------- backward_bf16.c */
void attni_grad_bf16_carve(attni_grad_worker *w, attni_layout *layout);
void attni_grad_bf16_load_keys(attni_grad_worker *w);
void attni_grad_bf16_load_tile(attni_grad_worker *w);
void attni_grad_bf16_block(attni_grad_worker *w, int64_t j, int n, attni_class visible);

#endif
