/* Training a small model of attention, step by step: what `attn train` runs.
 *
 *   task.c        sequences of tokens and what is to be predicted at each place
 *   model.c       parameters by name, forward, backward
 *   run.c         a run: model, optimiser, random state, history; one step; accuracy
 *   checkpoint.c  a run as a .safetensors file, and back
 *   report.c      a run as a trace for explain's renderers: curves, heat-maps, what heads do
 *
 * The same seed and options give the same bits, for any number of threads, in one go or in parts
 * with checkpoints between them.
 *
 * To add a task: a row in the table in task.c, its drawing function, and its name in train_task.
 */
#ifndef KIT_TRAIN_H
#define KIT_TRAIN_H

#include "../explain/trace.h"

/* ----------------------------------------------------------------------------------- Tasks */
typedef enum train_task {
    TRAIN_INDUCTION, /* a block of distinct tokens, of random length, over and over: go on */
    TRAIN_COPY,      /* tokens, a mark, the same tokens */
    TRAIN_REVERSE,   /* tokens, a mark, the same tokens backwards */
    TRAIN_PREVIOUS,  /* at each place: the token before it */
    TRAIN_TEXT,      /* the characters of a text: the next one */
    TRAIN_TASKS
} train_task;

const char *train_task_name(train_task task); /* "previous-token" */
train_task train_task_find(const char *name); /* TRAIN_TASKS: none of that name */

/* The characters of a text as tokens, numbered by code point. The last tenth is never trained on:
 * accuracy is measured there. */
typedef struct train_text {
    int64_t count, vocabulary;
    int32_t *token;     /* [count] */
    int32_t *character; /* [vocabulary], code points */
    uint64_t hash;      /* of all characters */
} train_text;
/* bytes are UTF-8, else KIT_BAD_FILE; name starts messages. */
int train_text_make(train_text *text, const char *bytes, size_t size, const char *name,
                    kit_error *err);
void train_text_free(train_text *text);

/* ------------------------------------------------------------------------------- Options */
typedef struct train_config {
    train_task task;
    int64_t vocabulary; /* tokens that are drawn from; the model also knows a mark */
    int64_t length;     /* tokens in a sequence */
    int64_t embed, heads, layers;
    bool mlp;
    int64_t batch, warmup;
    uint64_t seed;
    double lr, weight_decay;
    int64_t unseen; /* sequences that accuracy is measured on */
} train_config;
/* What fits together: KIT_USAGE. text: of TRAIN_TEXT, whose vocabulary it decides; else NULL. */
int train_config_check(train_config *config, const train_text *text, kit_error *err);
int64_t train_config_tokens(const train_config *config); /* that the model knows */

/* ----------------------------------------------------------------------------------- A run */
typedef struct train_score {
    double loss, accuracy; /* on unseen sequences, over the places that count */
    int64_t places;
} train_score;

typedef struct train_run train_run;
/* text must outlive the run; NULL but for TRAIN_TEXT. ctx may be NULL. */
int train_begin(train_run **out, const train_config *config, const train_text *text,
                attn_context *ctx, kit_error *err);
void train_end(train_run *run); /* NULL is fine */
const train_config *train_config_of(const train_run *run);
int64_t train_steps_done(const train_run *run);
int64_t train_parameters(const train_run *run);
/* One step; *loss is that of its batch, before the step. KIT_NOT_FINITE if it is none. */
int train_step(train_run *run, double *loss, kit_error *err);
/* Accuracy now; always on the same unseen sequences. Kept in the history. */
int train_measure(train_run *run, train_score *score, kit_error *err);
/* Keeps the attention of now in the history. */
int train_keep_maps(train_run *run, kit_error *err);

/* ------------------------------------------------------------------------------ Checkpoints
 *
 * Weights by PyTorch's names, the optimiser's moments, the step, the random state, the history.
 */
int train_save(const train_run *run, const char *path, kit_error *err);
/* The options of a checkpoint, so that a text can be read before the rest. */
int train_load_config(train_config *config, const char *path, kit_error *err);
int train_load(train_run **out, const char *path, const train_text *text, attn_context *ctx,
               kit_error *err);

/* Each token of a checkpoint's model as text: as it is shown, and characters of a text as they are.
 * label: [train_config_tokens(config)]. */
#define TRAIN_LABEL 8
int train_load_labels(char (*label)[TRAIN_LABEL], const train_config *config, const char *path,
                      kit_error *err);

/* ------------------------------------------------------------------------------- The report */
int train_to_trace(trace *t, train_run *run, kit_error *err);

#endif
