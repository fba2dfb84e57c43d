/* What the files of kit/train share; train.h is the face that others see. */
#ifndef KIT_TRAIN_INNER_H
#define KIT_TRAIN_INNER_H

#include "train.h"

#define TRAIN_IGNORE (-100) /* a target that does not count */

/* -------------------------------------------------------------------------------- task.c
 *
 * One sequence: tokens [length] and targets [length]. `unseen`: of those kept for measuring. */
void train_draw(const train_config *c, const train_text *text, attn_rng *rng, bool unseen,
                int64_t *tokens, int64_t *targets);
/* The sequence whose attention is shown: at most `length` tokens, returns how many. */
int64_t train_draw_probe(const train_config *c, const train_text *text, int64_t *tokens,
                         int64_t *targets);
/* A token as a label: a letter, a character of the text, a number. */
void train_label(const train_config *c, const train_text *text, int64_t token,
                 char label[TRAIN_LABEL]);
int64_t train_below(attn_rng *rng, int64_t n); /* 0..n-1 */

/* ------------------------------------------------------------------------------- model.c */
typedef struct train_parameter {
    char name[48]; /* as PyTorch would call it */
    kit_array value, grad, m, v;
} train_parameter;

/* Activations of one block, [batch * length, .] each. */
typedef struct train_block {
    float *input, *normed, *qkv, *heads, *lse;
    float *middle, *normed2, *wide, *bent; /* with an MLP */
    int first;                             /* parameter */
} train_block;

typedef struct train_model {
    train_config config;
    attn_context *ctx;
    train_parameter *parameter;
    int count;
    train_block *block;
    float *memory;                     /* of all activations and gradients */
    float *output, *normed, *logits;   /* of the last block, its norm, the head */
    float *d[4], *d_wide, *d_logits;   /* gradients: [., E], the widest, [., V] */
    int64_t *tokens, *targets, *place; /* [batch * length] */
    int64_t batch, length;             /* of the call: at most the config's */
    float *slopes; /* [L,H,T,T] of one sequence: takes the gradient by the scores too; or NULL */
} train_model;

/* What an engine call returned, as a code of the kit. */
int train_engine(attn_status status, const attn_error *e, kit_error *err);
int train_model_make(train_model *m, const train_config *c, attn_context *ctx, kit_error *err);
void train_model_free(train_model *m);
/* Weights as PyTorch draws them: torch.manual_seed(seed), then the modules in order. */
void train_model_init(train_model *m);
/* Of m->tokens [batch, length]: m->logits. */
int train_model_forward(train_model *m, int64_t batch, int64_t length, kit_error *err);
/* Of m->targets, after a forward: *loss, and all gradients if `grads`. */
int train_model_loss(train_model *m, double *loss, bool grads, kit_error *err);
/* After a forward of one sequence: weights or scores [H,T,T] of block `layer`, float. */
int train_model_scores(train_model *m, int layer, attn_stage stage, kit_array *out, kit_error *err);

/* --------------------------------------------------------------------------------- run.c */
typedef struct train_check {
    int64_t step;
    train_score score;
} train_check;

typedef struct train_map {
    int64_t step;
    kit_array weights; /* [L,H,P,P], float */
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
/* Room for one more; KIT_LIMIT. */
int train_grow(void **array, size_t count, size_t element, kit_error *err);
/* The probe's forward; *length its tokens. */
int train_run_probe(train_run *run, int64_t *length, kit_error *err);

#endif
