/* For "Watch it learn": the small tasks of attn train, step by step. One run at a time. */
#include <stdlib.h>

#include "../../../train/train_inner.h"
#include "module.h"

enum { WARMUP = 50, UNSEEN = 256 }; /* as attn train has them */
#define WEIGHT_DECAY 0.01

static train_run *run;
static kit_error failure;
static double loss;
static train_score score;
static kit_array map;

const char *EXPORT(learn_said)(void) { return failure.message; }

/* Begins a run; task: its name. Returns 0 or an exit code of attn, and learn_said() says why. */
int EXPORT(learn_begin)(const char *task, int length, int vocabulary, int embed, int heads,
                        int layers, int batch, uint64_t seed, double lr)
{
    train_config c = {.task = train_task_find(task),
                      .vocabulary = vocabulary,
                      .length = length,
                      .embed = embed,
                      .heads = heads,
                      .layers = layers,
                      .batch = batch,
                      .warmup = WARMUP,
                      .seed = seed,
                      .lr = lr,
                      .weight_decay = WEIGHT_DECAY,
                      .unseen = UNSEEN};
    train_end(run);
    run = NULL;
    const int code = train_config_check(&c, NULL, &failure);
    return code ? code : train_begin(&run, &c, NULL, NULL, &failure);
}

int EXPORT(learn_step)(void) { return train_step(run, &loss, &failure); }
double EXPORT(learn_loss)(void) { return loss; } /* of the last step's batch, before it */

/* Measures the loss and the accuracy on unseen sequences. */
int EXPORT(learn_measure)(void) { return train_measure(run, &score, &failure); }
double EXPORT(learn_unseen_loss)(void) { return score.loss; }
double EXPORT(learn_accuracy)(void) { return score.accuracy; }

/* Runs the sequence whose attention is shown; returns its length, or 0. */
int EXPORT(learn_look)(void)
{
    int64_t length;
    return train_run_probe(run, &length, &failure) ? 0 : (int)length;
}

/* After learn_look: the weights [H,T,T] of a layer, from 0; NULL if there is no memory. */
const float *EXPORT(learn_map)(int layer)
{
    kit_array_free(&map);
    return train_model_scores(&run->model, layer, ATTN_STAGE_WEIGHTS, &map, &failure) ? NULL
                                                                                      : map.data;
}

/* After learn_look: the label of a token of that sequence. */
const char *EXPORT(learn_label)(int place)
{
    static char label[TRAIN_LABEL];
    train_label(&run->config, NULL, run->model.tokens[place], label);
    return label;
}
