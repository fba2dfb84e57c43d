/* The trained heads with which `attn explain` ends: two small models, whose weights are part of the
 * program. They are made by `make trained-heads` (docs/explain.md).
 */
#ifndef KIT_TRAIN_HEADS_H
#define KIT_TRAIN_HEADS_H

#include "../kit.h"

typedef enum heads_kind {
    HEADS_FOLLOWED, /* any-words, two layers: the word before; what followed this word */
    HEADS_SAME,     /* same-word, one layer: the last appearance of this word */
    HEADS_KINDS
} heads_kind;
enum { HEADS_LAYERS = 2 }; /* at most; of one head each */

typedef struct heads heads;

/* What the file says of them. */
typedef struct heads_facts {
    int64_t longest;   /* most words of a sentence */
    int64_t sentences; /* unseen random sentences that the scores were counted on */
    int layers;
    double score[HEADS_LAYERS]; /* part of the words whose largest weight is on the right word */
    const char *command;        /* that trained them */
} heads_facts;

/* The embedded files; made from kit/explain/trained/followed.safetensors and same.safetensors by
 * the build. */
extern const char trained_followed[], trained_same[];
extern const size_t trained_followed_size, trained_same_size;

int heads_open(heads **out, heads_kind kind, attn_context *ctx, kit_error *err);
/* The same from any bytes, which must outlive the call. Facts are of this file. */
int heads_open_bytes(heads **out, heads_kind kind, const void *bytes, size_t size,
                     attn_context *ctx, kit_error *err);
void heads_close(heads *h); /* h may be NULL */
const heads_facts *heads_facts_of(const heads *h);

/* Runs a sentence through the model. id: the place of each word in the vocabulary; words with the
 * same id get the same embedding, drawn from the seed. count: 1 to facts.longest. */
int heads_run(heads *h, const int64_t *id, int64_t count, uint64_t seed, kit_error *err);
/* Gives the weights [T,T], or with ATTN_STAGE_BIASED the scores, of the head of a layer, from 1. */
int heads_maps(heads *h, int layer, attn_stage stage, kit_array *out, kit_error *err);

#endif
