/* A run as a trace: how the loss fell, how accurate the model is on unseen sequences, and how
 * attention learned to look where the answer is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../explain/recipe.h"
#include "train_inner.h"

enum { LABELS = 64, NAME = 64 };

/* The probe, with its tokens as labels of rows and columns. */
typedef struct probe {
    int64_t length;
    char label[LABELS][TRAIN_LABEL];
    const char *labels[LABELS];
} probe;

static double chance(const train_run *run)
{
    return 1 / (double)train_config_answers(&run->config);
}

/* ------------------------------------------------------------------------------------ Curves */

static void report_loss(recipe *r, const train_run *run)
{
    static const char *const columns[] = {"step", "loss"};
    r->section = "Training";
    kit_array a = recipe_step(r, "loss", TRACE_CURVE, ATTN_F64, SHAPE(run->step, 2));
    for (int64_t i = 0; i < run->step && r->status == KIT_OK; i++) {
        ((double *)a.data)[2 * i] = (double)(i + 1);
        ((double *)a.data)[2 * i + 1] = run->loss[i];
    }
    recipe_describe(r, "Loss of each step's batch", "mean of −log p(answer)",
                    "To guess evenly costs ln %lld = %.3g.",
                    (long long)train_config_answers(&run->config), -log(chance(run)));
    recipe_columns(r, columns, 2);
}

static void report_accuracy(recipe *r, const train_run *run)
{
    static const char *const columns[] = {"step", "accuracy"};
    const int64_t n = (int64_t)run->check_count;
    const train_check *last = n ? &run->check[n - 1] : NULL;
    kit_array a = recipe_step(r, "accuracy", TRACE_CURVE, ATTN_F64, SHAPE(n, 2));
    for (int64_t i = 0; i < n && r->status == KIT_OK; i++) {
        ((double *)a.data)[2 * i] = (double)run->check[i].step;
        ((double *)a.data)[2 * i + 1] = run->check[i].score.accuracy;
    }
    recipe_describe(r, "Accuracy on unseen sequences", "",
                    "The likeliest token is the answer, of all places that count; chance is %.2g.",
                    chance(run));
    recipe_columns(r, columns, 2);
    if (!last || r->status != KIT_OK)
        return;
    a = recipe_step(r, "unseen_accuracy", TRACE_SCALAR, ATTN_F64, 0, NULL);
    if (r->status == KIT_OK)
        *(double *)a.data = last->score.accuracy;
    recipe_describe(r, "After the last step", "", "%lld sequences, %lld places.",
                    (long long)run->config.unseen, (long long)last->score.places);
    a = recipe_step(r, "unseen_loss", TRACE_SCALAR, ATTN_F64, 0, NULL);
    if (r->status == KIT_OK)
        *(double *)a.data = last->score.loss;
    recipe_describe(r, "Their loss", "", "%s", "");
}

/* ------------------------------------------------------------------------------------- Heads */

/* Computes a head's average weight: to[0] on the previous place; to[1] on the places that hold the
 * answer, averaged over the queries with a target. */
static void judge_head(const train_run *run, const float *w, int64_t P, double to[2])
{
    const int64_t *tokens = run->model.tokens, *targets = run->model.targets;
    const bool places = run->config.task == TRAIN_SAME_WORD;
    int64_t counted = 0;
    to[0] = to[1] = 0;
    for (int64_t i = 0; i < P; i++) {
        to[0] += i ? (double)w[i * P + i - 1] / (double)(P - 1) : 0;
        if (targets[i] == TRAIN_IGNORE)
            continue;
        counted++;
        for (int64_t j = 0; j <= i; j++)
            to[1] += (places ? j : tokens[j]) == targets[i] ? (double)w[i * P + j] : 0;
    }
    to[1] /= counted ? (double)counted : 1;
}

static void report_heads(recipe *r, const train_run *run, const probe *p)
{
    static const char *const columns[] = {"before", "answer"};
    const int64_t L = run->config.layers, H = run->config.heads;
    const kit_array *w = run->map_count ? &run->map[run->map_count - 1].weights : NULL;
    char(*name)[NAME] = calloc((size_t)(L * H), sizeof *name);
    const char **rows = calloc((size_t)(L * H), sizeof *rows);
    r->section = "What attention does";
    kit_array a = recipe_step(r, "heads", TRACE_VALUES, ATTN_F64, SHAPE(L * H, 2));
    if (!name || !rows)
        recipe_fail(r, KIT_LIMIT, "no memory");
    for (int64_t i = 0; i < L * H && r->status == KIT_OK && w; i++) {
        judge_head(run, (const float *)w->data + i * p->length * p->length, p->length,
                   (double *)a.data + 2 * i);
        snprintf(name[i], NAME, "L%d head %d", (int)(i / H) + 1, (int)(i % H) + 1);
        rows[i] = name[i];
    }
    recipe_describe(r, "Where each head looks", "",
                    "Mean weight on the place before, and on places that hold the answer, in the "
                    "sequence below.");
    if (r->status == KIT_OK) {
        recipe_rows(r, rows, (size_t)(L * H));
        recipe_columns(r, columns, 2);
    }
    free(name);
    free(rows);
}

/* -------------------------------------------------------------------------------------- Maps */

static void label_map(recipe *r, const probe *p)
{
    const size_t n = (size_t)(p->length < LABELS ? p->length : LABELS); /* others: numbers */
    recipe_rows(r, p->labels, n);
    recipe_columns(r, p->labels, n);
}

/* Reports, with the weights of step `name`, the gradient of their scores at that moment. */
static void report_slope(recipe *r, const probe *p, const char *name, const kit_array *slopes,
                         int64_t layer, int64_t moment, int64_t H)
{
    char own[NAME + 8];
    if (!slopes->data || r->status != KIT_OK)
        return;
    snprintf(own, sizeof own, "%s_slope", name);
    recipe_add_copy(r, own, TRACE_VALUES, ATTN_F32, SHAPE(H, p->length, p->length),
                    (const float *)slopes->data + (layer - 1) * H * p->length * p->length);
    recipe_describe(r, "The loss's gradient by the scores", "∂loss/∂S",
                    "Training goes against it: where it is below 0 a score will rise.");
    recipe_set_provenance(r, TRACE_SLOPE, name, NULL, 0);
    recipe_small(r);
    recipe_set_layer_step(r, layer, moment);
    label_map(r, p);
}

/* Reports all maps but the last one, one step for each layer and moment. */
static void report_earlier(recipe *r, const train_run *run, const probe *p)
{
    const int64_t L = run->config.layers, H = run->config.heads, P = p->length;
    for (size_t k = 0; k + 1 < run->map_count; k++)
        for (int64_t l = 0; l < L; l++) {
            char name[NAME], title[NAME];
            const train_map *map = &run->map[k];
            snprintf(name, sizeof name, "layer_%lld_step_%lld", (long long)l + 1,
                     (long long)map->step);
            snprintf(title, sizeof title, "step %lld, layer %lld", (long long)map->step,
                     (long long)l + 1);
            recipe_add_copy(r, name, TRACE_WEIGHTS, ATTN_F32, SHAPE(H, P, P),
                            (const float *)map->weights.data + l * H * P * P);
            recipe_describe(r, title, "", "%s", "");
            recipe_small(r);
            recipe_set_layer_step(r, l + 1, map->step);
            label_map(r, p);
            report_slope(r, p, name, &map->slopes, l + 1, map->step, H);
        }
}

/* Reports the last maps, and their scores, which show what the mask hides. */
static void report_last(recipe *r, train_run *run, const probe *p)
{
    const int64_t H = run->config.heads, P = p->length;
    for (int l = 0; l < (int)run->config.layers && r->status == KIT_OK; l++) {
        char name[NAME], scores_name[NAME];
        kit_array scores = {0}, weights = {0};
        snprintf(name, sizeof name, "layer_%d", l + 1);
        snprintf(scores_name, sizeof scores_name, "layer_%d_scores", l + 1);
        int code = train_model_scores(&run->model, l, ATTN_STAGE_BIASED, &scores, r->err);
        if (!code)
            code = train_model_scores(&run->model, l, ATTN_STAGE_WEIGHTS, &weights, r->err);
        if (code) {
            r->status = code;
        } else {
            recipe_add_copy(r, scores_name, TRACE_SCORES, ATTN_F32, SHAPE(H, P, P), scores.data);
            recipe_check_only(r, NULL, NULL);
            recipe_add_copy(r, name, TRACE_WEIGHTS, ATTN_F32, SHAPE(H, P, P), weights.data);
            recipe_describe(r, "Attention now", "", "After step %lld, on an unseen sequence.",
                            (long long)run->step);
            recipe_set_provenance(r, TRACE_GIVEN, scores_name, NULL, 0);
            recipe_set_layer_step(r, l + 1, run->step);
            label_map(r, p);
            if (run->map_count && run->map[run->map_count - 1].step == run->step)
                report_slope(r, p, name, &run->map[run->map_count - 1].slopes, l + 1, run->step, H);
        }
        kit_array_free(&scores);
        kit_array_free(&weights);
    }
}

static int find_probe(train_run *run, probe *p, kit_error *err)
{
    const int code = train_run_probe(run, &p->length, err);
    for (int64_t i = 0; i < p->length && i < LABELS && !code; i++) {
        train_label(&run->config, run->text, run->model.tokens[i], p->label[i]);
        p->labels[i] = p->label[i];
    }
    return code;
}

/* ------------------------------------------------------------------------------------- Notes */

static void report_notes(recipe *r, const train_run *run)
{
    const train_config *c = &run->config;
    const int64_t H = c->heads, n = c->layers * H;
    const trace_step *heads = r->status == KIT_OK ? trace_find(r->trace, "heads") : NULL;
    int64_t best[2] = {0, 0};
    for (int64_t i = 1; i < n && heads; i++)
        for (int k = 0; k < 2; k++)
            if (kit_array_get(&heads->tensor, 2 * i + k) >
                kit_array_get(&heads->tensor, 2 * best[k] + k))
                best[k] = i;
    for (int k = 0; k < 2 && heads; k++) {
        const double share = kit_array_get(&heads->tensor, 2 * best[k] + k);
        if (share >= 0.3)
            recipe_note(r, k ? "answer" : "before",
                        "Layer %lld, head %lld gives %.0f %% of its weight to %s.",
                        (long long)(best[k] / H) + 1, (long long)(best[k] % H) + 1, 100 * share,
                        k ? "places that hold the answer" : "the token before");
    }
    recipe_note(r, "next", "-o train.png  --full  --checkpoint FILE  --json");
}

/* Panels in a row: one moment per row if its heads fill a row, one layer per row if there are too
 * many. */
static int64_t panels_across(int64_t all, int64_t heads)
{
    enum { MIN_ACROSS = 4, MAX_ACROSS = 8 };
    return all <= MIN_ACROSS     ? all * (MIN_ACROSS / all)
           : all <= MAX_ACROSS   ? all
           : heads <= MAX_ACROSS ? heads
                                 : MAX_ACROSS;
}

int train_to_trace(trace *t, train_run *run, kit_error *err)
{
    const train_config *c = &run->config;
    char title[96];
    probe p = {0};
    snprintf(title, sizeof title, "Training on %s", train_task_name(c->task));
    recipe r = recipe_begin(t, run->model.ctx, err, NULL, title, NULL);
    recipe_setting(&r,
                   "%lld layer%s, %lld head%s, d = %lld, %s, %lld parameters, batches of %lld×%lld "
                   "tokens, seed %llu",
                   (long long)c->layers, c->layers == 1 ? "" : "s", (long long)c->heads,
                   c->heads == 1 ? "" : "s", (long long)c->embed, c->mlp ? "MLP" : "attention only",
                   (long long)train_parameters(run), (long long)c->batch, (long long)c->length,
                   (unsigned long long)c->seed);
    t->heads = c->heads;
    t->across = panels_across(c->layers * c->heads, c->heads);
    if (r.status == KIT_OK)
        r.status = find_probe(run, &p, err);
    report_loss(&r, run);
    report_accuracy(&r, run);
    report_heads(&r, run, &p);
    report_earlier(&r, run, &p);
    report_last(&r, run, &p);
    report_notes(&r, run);
    return recipe_end(&r);
}
