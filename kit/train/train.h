/* Trains a small attention model step by step, for `attn train`.
 *
 *   task.c        sequences of tokens, and the target at each place
 *   model.c       parameters by name, forward, backward
 *   run.c         a run: model, optimiser, random state, history; one step; accuracy
 *   checkpoint.c  a run as a .safetensors file, and back
 *   report.c      a run as a trace for explain's renderers: curves, heat-maps, what heads do
 *   heads.c       the trained heads that are part of the program (heads.h)
 *
 * The same seed and options give the same bits, for any number of threads, whether the run is
 * continuous or resumed from checkpoints.
 *
 * To add a task: add a row to the table in task.c, its drawing function, and its name to
 * train_task.
 */
#ifndef KIT_TRAIN_H
#define KIT_TRAIN_H

#include "../explain/trace.h"

/* ----------------------------------------------------------------------------------- Tasks */
typedef enum train_task {
    TRAIN_INDUCTION, /* a block of distinct tokens, of random length, repeated: continue it */
    TRAIN_COPY,      /* tokens, a mark, the same tokens */
    TRAIN_REVERSE,   /* tokens, a mark, the same tokens backwards */
    TRAIN_PREVIOUS,  /* at each place, the token before it */
    TRAIN_ANY_WORDS, /* words with embeddings of this sequence alone: what followed this word? */
    TRAIN_SAME_WORD, /* such words, too: at which place before it was this word last? */
    TRAIN_TEXT,      /* the characters of a text: predict the next one */
    TRAIN_TASKS
} train_task;

const char *train_task_name(train_task task); /* "previous-token" */
train_task train_task_find(const char *name); /* TRAIN_TASKS: unknown name */
/* Whether every sequence draws its own embeddings, so that the model has no table of tokens. In
 * TRAIN_ANY_WORDS it has no table of outputs either: its answer is a vector, which is compared with
 * the embeddings. */
bool train_task_draws_words(train_task task);

/* The characters of a text as tokens, numbered in the order of code points. The last tenth is not
 * used for training; accuracy is measured on it. */
typedef struct train_text {
    int64_t count, vocabulary;
    int32_t *token;     /* [count] */
    int32_t *character; /* [vocabulary], code points */
    uint64_t hash;      /* of all characters */
} train_text;
/* Makes a text from UTF-8 bytes (else KIT_BAD_FILE). name starts messages. */
int train_text_make(train_text *text, const char *bytes, size_t size, const char *name,
                    kit_error *err);
void train_text_free(train_text *text);

/* ------------------------------------------------------------------------------- Options */
typedef struct train_config {
    train_task task;
    int64_t vocabulary; /* tokens to draw from; the model may also have a mark */
    int64_t length;     /* tokens in a sequence */
    int64_t embed, heads, layers;
    bool mlp;
    int64_t batch, warmup;
    uint64_t seed;
    double lr, weight_decay;
    int64_t unseen; /* number of sequences for measuring accuracy */
} train_config;
/* Checks the options together; KIT_USAGE. text: for TRAIN_TEXT, whose vocabulary is set from it;
 * else NULL. */
int train_config_check(train_config *config, const train_text *text, kit_error *err);
int64_t train_config_tokens(const train_config *config);  /* of the model, with the mark */
int64_t train_config_answers(const train_config *config); /* tokens, or places for same-word */

/* ----------------------------------------------------------------------------------- A run */
typedef struct train_score {
    double loss, accuracy; /* on unseen sequences, over the places with a target */
    int64_t places;
} train_score;

typedef struct train_run train_run;
/* Begins a run. text is for TRAIN_TEXT, else NULL, and must outlive the run. ctx may be NULL. */
int train_begin(train_run **out, const train_config *config, const train_text *text,
                attn_context *ctx, kit_error *err);
void train_end(train_run *run); /* run may be NULL */
const train_config *train_config_of(const train_run *run);
int64_t train_steps_done(const train_run *run);
int64_t train_parameters(const train_run *run);
/* Does one step. *loss is the loss of its batch before the step. KIT_NOT_FINITE: the loss is not
 * finite. */
int train_step(train_run *run, double *loss, kit_error *err);
/* Measures the accuracy, always on the same unseen sequences, and adds it to the history.
 * KIT_NOT_FINITE: their loss is not finite. */
int train_measure(train_run *run, train_score *score, kit_error *err);
/* Adds the current attention maps to the history. */
int train_keep_maps(train_run *run, kit_error *err);
/* Does the history have the accuracy and the maps of the latest step? A run that was interrupted
 * may lack them. */
bool train_is_measured(const train_run *run);
double train_last_loss(const train_run *run); /* of the latest step's batch; NaN before step 1 */

/* ------------------------------------------------------------------------------ Checkpoints
 *
 * A checkpoint holds weights with PyTorch's names, the optimiser's moments, the step, the random
 * state and the history.
 */
int train_save(const train_run *run, const char *path, kit_error *err);
/* train_load_config reads only the options of a checkpoint, so that the text can be read before
 * train_load. */
int train_load_config(train_config *config, const char *path, kit_error *err);
int train_load(train_run **out, const char *path, const train_text *text, attn_context *ctx,
               kit_error *err);

/* Gives each token of a checkpoint's model as text: as it is shown or, for a text, the character
 * itself. label: [train_config_tokens(config)]. */
#define TRAIN_LABEL 8
int train_load_labels(char (*label)[TRAIN_LABEL], const train_config *config, const char *path,
                      kit_error *err);

/* ------------------------------------------------------------------------------- The report */
int train_to_trace(trace *t, train_run *run, kit_error *err);

#endif
