/* Explains attention to people, step by step.
 *
 * A recipe fills a trace (trace.h). A renderer (render/) turns a trace into bytes. A lesson
 * (lessons/) is a recipe whose steps also hold what a notebook printed, so the lesson can check
 * itself.
 */
#ifndef KIT_EXPLAIN_H
#define KIT_EXPLAIN_H

#include "trace.h"

/* ------------------------------------------------------------------------------ attn explain
 *
 * Words -> ids -> embeddings -> queries, keys, values -> scores -> weights -> context, with random
 * weights from PyTorch's generator: torch.manual_seed(seed); Embedding(V, embed); randn(w_q);
 * randn(w_k); randn(w_v). trace->more becomes the trace of explain_trained. KIT_USAGE: an empty
 * sentence, a size out of range, or a query that is not a word of the sentence.
 */
typedef struct explain_options {
    const char *text;
    uint64_t seed;
    int64_t embed, qk, v, heads; /* each 1 or more */
    bool causal, no_scale;
    double scale;      /* 0: 1/sqrt(qk); not together with no_scale */
    const char *query; /* a word, or its position from 1; NULL: the second word */
} explain_options;
#define EXPLAIN_OPTIONS_INIT                                                                       \
    {                                                                                              \
        NULL, 123, 16, 24, 28, 1, false, false, 0.0, NULL                                          \
    }
int explain_build(trace *t, const explain_options *options, attn_context *ctx, kit_error *err);

/* The same sentence through the trained heads of train/heads.h, as a trace of its own. A sentence
 * that is too long for them gives a trace without steps, whose setting says so. */
int explain_trained(trace *t, const char *text, uint64_t seed, attn_context *ctx, kit_error *err);

#endif
