/* Shared by the files of kit/train; train.h is the interface for everyone else. */
#ifndef KIT_TRAIN_INNER_H
#define KIT_TRAIN_INNER_H

#include "train.h"

#define TRAIN_IGNORE (-100) /* a place without a target */

/* -------------------------------------------------------------------------------- task.c
 *
 * Draws one sequence: tokens [length] and targets [length]. `unseen`: from those kept for
 * measuring. */
void train_draw(const train_config *c, const train_text *text, attn_rng *rng, bool unseen,
                int64_t *tokens, int64_t *targets);
/* Draws the sequence whose attention is shown, of at most `length` tokens; returns its length. */
int64_t train_draw_probe(const train_config *c, const train_text *text, int64_t *tokens,
                         int64_t *targets);
/* Makes a token's label: a letter, a character of the text, or a number. */
void train_label(const train_config *c, const train_text *text, int64_t token,
                 char label[TRAIN_LABEL]);
int64_t train_below(attn_rng *rng, int64_t n); /* 0..n-1 */

/* ------------------------------------------------------------------------------- model.c */
typedef struct train_parameter {
    char name[48]; /* PyTorch's name */
    kit_array value, grad, m, v;
} train_parameter;

/* Activations of one block, each [batch * length, .]. */
typedef struct train_block {
    float *input, *normed, *qkv, *heads, *lse;
    float *middle, *normed2, *wide, *bent; /* with an MLP */
    int first;                             /* index of the first parameter */
} train_block;

typedef struct train_model {
    train_config config;
    attn_context *ctx;
    train_parameter *parameter;
    int count;
    int places; /* index of the embeddings of places; those of tokens, if any, are before it */
    train_block *block;
    float *memory;                   /* holds all activations and gradients */
    float *output, *normed, *logits; /* outputs of the last block, of its norm, of the head */
    float *words;  /* [batch,V,E] embeddings of the sequences' own tokens, drawn; or no room */
    float *answer; /* [.,E] what is compared with them: the head's output */
    float *d[4], *d_wide, *d_logits;   /* gradients: [., E], the widest, [., V] */
    int64_t *tokens, *targets, *place; /* [batch * length] */
    int64_t batch, length;             /* of the current call; at most the config's */
    float *slopes; /* [L,H,T,T] of one sequence: receives the gradient of the scores; or NULL */
} train_model;

int train_model_make(train_model *m, const train_config *c, attn_context *ctx, kit_error *err);
void train_model_free(train_model *m);
/* Draws the weights as PyTorch does: torch.manual_seed(seed), then the modules in order. */
void train_model_init(train_model *m);
/* Draws m->words of `count` sequences, from sequence `first` on, if the task draws them. */
void train_model_draw_words(train_model *m, int64_t first, int64_t count, attn_rng *rng);
/* Computes m->logits from m->tokens [batch, length], and m->words if the task draws them. */
int train_model_forward(train_model *m, int64_t batch, int64_t length, kit_error *err);
/* To call after a forward: computes *loss from m->targets and, with `grads`, all gradients. */
int train_model_loss(train_model *m, double *loss, bool grads, kit_error *err);
/* To call after a forward of one sequence: gives weights or scores [H,T,T] of block `layer`,
 * f32. */
int train_model_scores(train_model *m, int layer, attn_stage stage, kit_array *out, kit_error *err);

/* --------------------------------------------------------------------------------- run.c */
typedef struct train_check {
    int64_t step;
    train_score score;
} train_check;

typedef struct train_map {
    int64_t step;
    kit_array weights; /* [L,H,P,P], f32 */
    kit_array slopes;  /* the same shape: the gradient of the probe's loss by the scores; no data
                          in a run resumed from a checkpoint that did not keep it */
} train_map;

struct train_run {
    train_config config;
    const train_text *text;
    train_model model;
    attn_rng data;
    int64_t step;
    double *loss; /* [step] */
    train_check *check;
    train_map *map;
    size_t check_count, map_count;
};
/* Makes room for one more element; KIT_LIMIT: no memory. */
int train_grow(void **array, size_t count, size_t element, kit_error *err);
/* Runs the probe's forward; *length is its number of tokens. */
int train_run_probe(train_run *run, int64_t *length, kit_error *err);

#endif
