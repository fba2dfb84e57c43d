/* For the labs: attention of one head by attn_sdpa_forward, on matrices in this module's memory.
 * Numbers are doubles, like JavaScript's, and matrices are row-major and dense. */
#include <stdlib.h>

#include "attn.h"
#include "module.h"

/* Returns the address of `bytes` bytes for the page's matrices, or 0 if there is no memory. There
 * is one block only: the next call makes it longer or shorter, and may move it; what was in it
 * stays. */
void *EXPORT(room)(size_t bytes)
{
    static void *block;
    void *grown = realloc(block, bytes + 1);
    block = grown ? grown : block;
    return grown;
}

/* q [T,width], k [S,width], of which the first D numbers of a row count; v [S,Dv]. mask: NULL,
 * [T,S] of bytes, 0 where a key is hidden, or, if `added`, of doubles that are added to the scaled
 * scores. Writes the scores at this attn_stage to scores [T,S], and the result to out [T,Dv].
 * scores may be NULL; out may be NULL if Dv is 0. Returns an attn_status. */
int EXPORT(attend)(int T, int S, int D, int width, int Dv, double scale, const double *q,
                   const double *k, const double *v, const void *mask, int added, double *scores,
                   int stage, double *out)
{
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_matrix(q, ATTN_F64, T, D);
    args.k = attn_matrix(k, ATTN_F64, S, D);
    args.q.stride[2] = args.k.stride[2] = width;
    args.v = attn_matrix(v, ATTN_F64, S, Dv);
    args.out = attn_matrix(out, ATTN_F64, T, Dv);
    args.scale = scale;
    const attn_tensor visible = attn_matrix(mask, added ? ATTN_F64 : ATTN_BOOL, T, S);
    const attn_tensor asked = attn_matrix(scores, ATTN_F64, T, S);
    args.mask = mask ? &visible : NULL;
    args.scores = scores ? &asked : NULL;
    args.scores_stage = (attn_stage)stage;
    return (int)attn_sdpa_forward(NULL, &args, NULL);
}
