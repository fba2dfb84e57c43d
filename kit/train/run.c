/* A run: its state, which changes from step to step, and its history. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train_inner.h"

int train_grow(void **array, size_t count, size_t element, kit_error *err)
{
    if (count & (count - 1)) /* the array grows at 0, 1, 2, 4, 8, ... */
        return KIT_OK;
    void *grown = realloc(*array, (count ? 2 * count : 1) * element);
    if (!grown)
        return kit_fail(err, KIT_LIMIT, "not enough memory for the history");
    *array = grown;
    return KIT_OK;
}

int train_begin(train_run **out, const train_config *config, const train_text *text,
                attn_context *ctx, kit_error *err)
{
    train_run *run = *out = calloc(1, sizeof *run);
    if (!run)
        return kit_fail(err, KIT_LIMIT, "not enough memory");
    run->config = *config;
    run->text = text;
    const int code = train_model_make(&run->model, config, ctx, err);
    if (code) {
        train_end(run);
        *out = NULL;
        return code;
    }
    train_model_init(&run->model);
    attn_rng_seed(&run->data, config->seed + 1);
    return KIT_OK;
}

void train_end(train_run *run)
{
    if (!run)
        return;
    train_model_free(&run->model);
    for (size_t i = 0; i < run->map_count; i++)
        kit_array_free(&run->map[i].weights), kit_array_free(&run->map[i].slopes);
    free(run->map);
    free(run->check);
    free(run->loss);
    free(run);
}

const train_config *train_config_of(const train_run *run) { return &run->config; }

int64_t train_steps_done(const train_run *run) { return run->step; }

bool train_is_measured(const train_run *run)
{
    return run->check_count && run->check[run->check_count - 1].step == run->step &&
           run->map_count && run->map[run->map_count - 1].step == run->step;
}

double train_last_loss(const train_run *run) { return run->step ? run->loss[run->step - 1] : NAN; }

int64_t train_parameters(const train_run *run)
{
    int64_t n = 0;
    for (int i = 0; i < run->model.count; i++)
        n += kit_array_count(&run->model.parameter[i].value);
    return n;
}

/* -------------------------------------------------------------------------------- One step */

static void draw_batch(train_run *run, attn_rng *rng, bool unseen, int64_t sequences)
{
    const int64_t T = run->config.length;
    for (int64_t b = 0; b < sequences; b++) {
        train_draw(&run->config, run->text, rng, unseen, run->model.tokens + b * T,
                   run->model.targets + b * T);
        train_model_draw_words(&run->model, b, 1, rng);
    }
}

static attn_tensor flat(const kit_array *a)
{
    return attn_matrix(a->data, a->dtype, 1, kit_array_count(a));
}

static int optimise(train_run *run, kit_error *err)
{
    const train_config *c = &run->config;
    attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
    const double warm = (double)(run->step + 1) / (double)c->warmup;
    o.lr = run->step < c->warmup ? c->lr * warm : c->lr;
    o.weight_decay = c->weight_decay;
    for (int i = 0; i < run->model.count; i++) {
        const train_parameter *p = &run->model.parameter[i];
        const attn_tensor value = flat(&p->value), grad = flat(&p->grad);
        const attn_tensor m = flat(&p->m), v = flat(&p->v);
        attn_error e;
        const attn_status s =
            attn_adamw_step(run->model.ctx, &o, run->step + 1, &value, &grad, &m, &v, &e);
        if (s != ATTN_OK)
            return kit_engine(s, &e, err);
    }
    return KIT_OK;
}

int train_step(train_run *run, double *loss, kit_error *err)
{
    const train_config *c = &run->config;
    int code = train_grow((void **)&run->loss, (size_t)run->step, sizeof *run->loss, err);
    if (code)
        return code;
    draw_batch(run, &run->data, false, c->batch);
    if ((code = train_model_forward(&run->model, c->batch, c->length, err)) ||
        (code = train_model_loss(&run->model, loss, true, err)))
        return code;
    if (!isfinite(*loss))
        return kit_fail(err, KIT_NOT_FINITE,
                        "the loss is %g in step %lld; try a smaller --lr or a longer --warmup",
                        *loss, (long long)run->step + 1);
    if ((code = optimise(run, err)))
        return code;
    run->loss[run->step++] = *loss;
    return KIT_OK;
}

/* -------------------------------------------------------------------------------- Accuracy */

static int64_t largest_of(const float *x, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

/* Adds one batch to the score; until the end score->loss is a sum. */
static int measure_batch(train_run *run, int64_t sequences, int64_t *right, train_score *score,
                         kit_error *err)
{
    train_model *m = &run->model;
    const int64_t V = train_config_answers(&run->config), N = sequences * run->config.length;
    double loss;
    int64_t places = 0;
    int code = train_model_forward(m, sequences, run->config.length, err);
    if (!code)
        code = train_model_loss(m, &loss, false, err);
    for (int64_t n = 0; n < N && !code; n++)
        if (m->targets[n] != TRAIN_IGNORE) {
            places++;
            *right += largest_of(m->logits + n * V, V) == m->targets[n];
        }
    score->places += places;
    score->loss += code ? 0 : loss * (double)places;
    return code;
}

int train_measure(train_run *run, train_score *score, kit_error *err)
{
    const train_config *c = &run->config;
    attn_rng rng;
    int64_t right = 0;
    int code = train_grow((void **)&run->check, run->check_count, sizeof *run->check, err);
    *score = (train_score){0};
    attn_rng_seed(&rng, c->seed + 2);
    for (int64_t done = 0; done < c->unseen && !code; done += c->batch) {
        const int64_t n = c->unseen - done < c->batch ? c->unseen - done : c->batch;
        draw_batch(run, &rng, true, n);
        code = measure_batch(run, n, &right, score, err);
    }
    if (code)
        return code;
    score->loss /= (double)score->places;
    if (!isfinite(score->loss))
        return kit_fail(
            err, KIT_NOT_FINITE,
            "the loss of unseen sequences is %g after step %lld; try a smaller --lr or a "
            "longer --warmup",
            score->loss, (long long)run->step);
    score->accuracy = (double)right / (double)score->places;
    run->check[run->check_count++] = (train_check){run->step, *score};
    return KIT_OK;
}

/* ------------------------------------------------------------------------------------ Maps */

int train_run_probe(train_run *run, int64_t *length, kit_error *err)
{
    train_model *m = &run->model;
    attn_rng rng;
    *length = train_draw_probe(&run->config, run->text, m->tokens, m->targets);
    attn_rng_seed(&rng, run->config.seed + 4);
    train_model_draw_words(m, 0, 1, &rng);
    return train_model_forward(m, 1, *length, err);
}

int train_keep_maps(train_run *run, kit_error *err)
{
    const int64_t L = run->config.layers, H = run->config.heads;
    train_map map = {.step = run->step};
    int64_t P;
    int code = train_run_probe(run, &P, err);
    if (!code)
        code = train_grow((void **)&run->map, run->map_count, sizeof *run->map, err);
    if (!code)
        code = kit_array_new(&map.weights, ATTN_F32, 4, (const int64_t[]){L, H, P, P}, err);
    if (!code)
        code = kit_array_new(&map.slopes, ATTN_F32, 4, (const int64_t[]){L, H, P, P}, err);
    for (int l = 0; l < (int)L && !code; l++) {
        kit_array one = {0};
        code = train_model_scores(&run->model, l, ATTN_STAGE_WEIGHTS, &one, err);
        if (!code)
            memcpy((char *)map.weights.data + (size_t)l * one.bytes, one.data, one.bytes);
        kit_array_free(&one);
    }
    double loss;
    run->model.slopes = map.slopes.data;
    if (!code)
        code = train_model_loss(&run->model, &loss, true, err);
    run->model.slopes = NULL;
    if (code)
        kit_array_free(&map.weights), kit_array_free(&map.slopes);
    else
        run->map[run->map_count++] = map;
    return code;
}
