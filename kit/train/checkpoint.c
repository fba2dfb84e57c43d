/* Checkpoints: a run as one .safetensors file, complete or absent.
 *
 *   NAME                 a parameter, f32, with PyTorch's name
 *   optimizer.m.NAME     its first and second moment
 *   optimizer.v.NAME
 *   random.state         the generator's words, i64 [624], and its position in them, i64 [1]
 *   random.position
 *   history.loss         f64 [steps]
 *   history.checks       f64 [n, 4]: step, loss, accuracy, places
 *   history.maps         f32 [n, L, H, P, P] and i64 [n]
 *   history.map_slopes   f32, same shape: the gradient of the scores (may be missing)
 *   history.map_steps
 *   text.characters      code points of the vocabulary, i64 [vocabulary], for a text
 *   __metadata__         the options and the step, as text
 *
 * Files are untrusted input: every tensor must be there, with the type and shape that the options
 * imply.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "train_inner.h"

#define FORMAT "attn.train/1"
#define STEPS_LIMIT 1000000000

/* ---------------------------------------------------------------------------------- Options */

/* An integer option, with its name in the file. */
typedef struct field {
    const char *key;
    int64_t *value;
    int64_t low, high;
} field;
enum { FIELDS = 9, TEXTS = FIELDS + 7, TEXT = 40 };

static void fields_of(train_config *c, int64_t *mlp, field f[FIELDS])
{
    const field all[FIELDS] = {
        {"vocabulary", &c->vocabulary, 1, 1 << 24}, {"length", &c->length, 2, 1 << 20},
        {"embed", &c->embed, 1, 1 << 16},           {"heads", &c->heads, 1, 1 << 16},
        {"layers", &c->layers, 1, 1 << 10},         {"mlp", mlp, 0, 1},
        {"batch", &c->batch, 1, 1 << 20},           {"warmup", &c->warmup, 0, STEPS_LIMIT},
        {"unseen", &c->unseen, 1, 1 << 20},
    };
    memcpy(f, all, sizeof all);
}

static int bad(const char *path, const char *key, const char *value, kit_error *err)
{
    return kit_fail(err, KIT_BAD_FILE, "%s: metadata '%s' is %.40s; not a checkpoint of attn train",
                    path, key, value ? value : "missing");
}

static int read_integer(int64_t *to, const kit_safetensors *f, const char *path,
                        const field *wanted, kit_error *err)
{
    const char *text = kit_safetensors_metadata(f, wanted->key);
    char *end = NULL;
    const long long x = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || x < wanted->low || x > wanted->high)
        return bad(path, wanted->key, text, err);
    *to = x;
    return KIT_OK;
}

static int read_real(double *to, const kit_safetensors *f, const char *path, const char *key,
                     kit_error *err)
{
    const char *text = kit_safetensors_metadata(f, key);
    char *end = NULL;
    const double x = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(x >= 0 && isfinite(x)))
        return bad(path, key, text, err);
    *to = x;
    return KIT_OK;
}

static int read_config(train_config *c, const kit_safetensors *f, const char *path, kit_error *err)
{
    const char *format = kit_safetensors_metadata(f, "format");
    const char *task = kit_safetensors_metadata(f, "task");
    const char *seed = kit_safetensors_metadata(f, "seed");
    char *end = NULL;
    int64_t mlp = 0;
    field fields[FIELDS];
    *c = (train_config){0};
    fields_of(c, &mlp, fields);
    if (!format || strcmp(format, FORMAT) != 0)
        return bad(path, "format", format, err);
    c->task = task ? train_task_find(task) : TRAIN_TASKS;
    if (c->task == TRAIN_TASKS)
        return bad(path, "task", task, err);
    c->seed = seed ? strtoull(seed, &end, 10) : 0;
    if (!seed || end == seed || *end)
        return bad(path, "seed", seed, err);
    int code = KIT_OK;
    for (int i = 0; i < FIELDS && !code; i++)
        code = read_integer(fields[i].value, f, path, &fields[i], err);
    c->mlp = mlp;
    if (!code)
        code = read_real(&c->lr, f, path, "lr", err);
    return code ? code : read_real(&c->weight_decay, f, path, "weight_decay", err);
}

int train_load_config(train_config *config, const char *path, kit_error *err)
{
    kit_safetensors *f;
    int code = kit_safetensors_open(&f, path, err);
    if (code)
        return code;
    code = read_config(config, f, path, err);
    kit_safetensors_close(f);
    return code;
}

/* ----------------------------------------------------------------------------------- Saving */

/* The arrays made for the file, and the list of everything that goes into it. */
typedef struct saving {
    kit_array state, position, loss, checks, maps, slopes, map_steps, characters;
    kit_tensor *tensor;
    char (*name)[80];
    size_t count;
    kit_text text[TEXTS];
    char value[TEXTS][TEXT];
    int texts;
} saving;

static void add_tensor(saving *s, const char *prefix, const char *name, const kit_array *array)
{
    snprintf(s->name[s->count], sizeof s->name[0], "%s%s", prefix, name);
    s->tensor[s->count] = (kit_tensor){s->name[s->count], array};
    s->count++;
}

static void add_text(saving *s, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add_text(saving *s, const char *key, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(s->value[s->texts], TEXT, format, values);
    va_end(values);
    s->text[s->texts] = (kit_text){key, s->value[s->texts]};
    s->texts++;
}

static void add_options(saving *s, const train_run *run)
{
    train_config c = run->config;
    int64_t mlp = c.mlp;
    field fields[FIELDS];
    fields_of(&c, &mlp, fields);
    add_text(s, "format", "%s", FORMAT);
    add_text(s, "task", "%s", train_task_name(c.task));
    add_text(s, "step", "%" PRId64, run->step); /* for people; loading uses the history of losses */
    add_text(s, "seed", "%" PRIu64, c.seed);
    for (int i = 0; i < FIELDS; i++)
        add_text(s, fields[i].key, "%" PRId64, *fields[i].value);
    add_text(s, "lr", "%.17g", c.lr);
    add_text(s, "weight_decay", "%.17g", c.weight_decay);
    add_text(s, "text", "%016" PRIx64, run->text ? run->text->hash : 0);
}

/* Whether all maps have their gradients; a run resumed from an old checkpoint may lack some. */
static bool keeps_slopes(const train_run *run)
{
    for (size_t i = 0; i < run->map_count; i++)
        if (!run->map[i].slopes.data)
            return false;
    return run->map_count > 0;
}

static int make_history(saving *s, const train_run *run, kit_error *err)
{
    const int64_t n = (int64_t)run->check_count, maps = (int64_t)run->map_count;
    const int64_t *P = maps ? run->map[0].weights.shape : (const int64_t[]){0, 0, 0, 0};
    int code;
    if ((code = kit_array_new(&s->loss, ATTN_F64, 1, &run->step, err)) ||
        (code = kit_array_new(&s->checks, ATTN_F64, 2, (const int64_t[]){n, 4}, err)) ||
        (code = kit_array_new(&s->map_steps, ATTN_I64, 1, &maps, err)) ||
        (code = kit_array_new(&s->maps, ATTN_F32, 5,
                              (const int64_t[]){maps, P[0], P[1], P[2], P[3]}, err)) ||
        (keeps_slopes(run) &&
         (code = kit_array_new(&s->slopes, ATTN_F32, 5,
                               (const int64_t[]){maps, P[0], P[1], P[2], P[3]}, err))))
        return code;
    if (run->step)
        memcpy(s->loss.data, run->loss, s->loss.bytes);
    for (int64_t i = 0; i < n; i++) {
        const train_check *k = &run->check[i];
        const double row[4] = {(double)k->step, k->score.loss, k->score.accuracy,
                               (double)k->score.places};
        memcpy((double *)s->checks.data + 4 * i, row, sizeof row);
    }
    for (int64_t i = 0; i < maps; i++) {
        const kit_array *w = &run->map[i].weights;
        ((int64_t *)s->map_steps.data)[i] = run->map[i].step;
        memcpy((char *)s->maps.data + (size_t)i * w->bytes, w->data, w->bytes);
        if (s->slopes.data)
            memcpy((char *)s->slopes.data + (size_t)i * w->bytes, run->map[i].slopes.data,
                   w->bytes);
    }
    return KIT_OK;
}

static int make_random(saving *s, const train_run *run, kit_error *err)
{
    const int64_t words = 624, one = 1;
    int code = kit_array_new(&s->state, ATTN_I64, 1, &words, err);
    if (!code)
        code = kit_array_new(&s->position, ATTN_I64, 1, &one, err);
    for (int64_t i = 0; i < words && !code; i++)
        ((int64_t *)s->state.data)[i] = run->data.state[i];
    if (!code)
        *(int64_t *)s->position.data = run->data.position;
    return code;
}

static int make_characters(saving *s, const train_text *text, kit_error *err)
{
    const int code = kit_array_new(&s->characters, ATTN_I64, 1, &text->vocabulary, err);
    for (int64_t i = 0; i < text->vocabulary && !code; i++)
        ((int64_t *)s->characters.data)[i] = text->character[i];
    return code;
}

static int collect(saving *s, const train_run *run, kit_error *err)
{
    const train_model *m = &run->model;
    s->tensor = calloc((size_t)m->count * 3 + 8, sizeof *s->tensor);
    s->name = calloc((size_t)m->count * 3 + 8, sizeof *s->name);
    if (!s->tensor || !s->name)
        return kit_fail(err, KIT_LIMIT, "not enough memory for a checkpoint");
    int code = make_random(s, run, err);
    if (!code)
        code = make_history(s, run, err);
    if (!code && run->text)
        code = make_characters(s, run->text, err);
    if (code)
        return code;
    for (int i = 0; i < m->count; i++)
        add_tensor(s, "", m->parameter[i].name, &m->parameter[i].value);
    for (int i = 0; i < m->count; i++) {
        add_tensor(s, "optimizer.m.", m->parameter[i].name, &m->parameter[i].m);
        add_tensor(s, "optimizer.v.", m->parameter[i].name, &m->parameter[i].v);
    }
    add_tensor(s, "", "random.state", &s->state);
    add_tensor(s, "", "random.position", &s->position);
    add_tensor(s, "", "history.loss", &s->loss);
    add_tensor(s, "", "history.checks", &s->checks);
    add_tensor(s, "", "history.maps", &s->maps);
    if (s->slopes.data)
        add_tensor(s, "", "history.map_slopes", &s->slopes);
    add_tensor(s, "", "history.map_steps", &s->map_steps);
    if (run->text)
        add_tensor(s, "", "text.characters", &s->characters);
    add_options(s, run);
    return KIT_OK;
}

int train_save(const train_run *run, const char *path, kit_error *err)
{
    saving s = {0};
    kit_output *out = NULL;
    int code = collect(&s, run, err);
    if (!code)
        code = kit_output_open(&out, path, err);
    if (!code)
        code = kit_safetensors_write(out, s.tensor, s.count, s.text, (size_t)s.texts, err);
    if (code)
        kit_output_abort(out);
    else
        code = kit_output_commit(out, err);
    kit_array *made[] = {&s.state, &s.position, &s.loss,      &s.checks,
                         &s.maps,  &s.slopes,   &s.map_steps, &s.characters};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        kit_array_free(made[i]);
    free(s.tensor);
    free(s.name);
    return code;
}

/* ---------------------------------------------------------------------------------- Loading */

typedef struct loading {
    const kit_safetensors *file;
    const char *path;
    kit_error *err;
} loading;

static int load(const loading *l, kit_array *a, const char *name, attn_dtype dtype, int rank)
{
    const int code = kit_safetensors_load(a, l->file, name, l->err);
    if (code || (a->dtype == dtype && a->rank == rank))
        return code;
    kit_array_free(a);
    return kit_fail(l->err, KIT_BAD_FILE, "%s: tensor '%s' must be %s of %d dimension%s", l->path,
                    name, attn_dtype_name(dtype), rank, rank == 1 ? "" : "s");
}

/* Loads an array in place of `to`, whose type and shape it must have. */
static int load_same(const loading *l, kit_array *to, const char *prefix, const char *name)
{
    char whole[80];
    kit_array a;
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    const int code = load(l, &a, whole, to->dtype, to->rank);
    if (code)
        return code;
    if (memcmp(a.shape, to->shape, sizeof a.shape) != 0) {
        kit_array_free(&a);
        return kit_fail(l->err, KIT_BAD_FILE,
                        "%s: tensor '%s' does not have the shape that the options require", l->path,
                        whole);
    }
    kit_array_free(to);
    *to = a;
    return KIT_OK;
}

static int load_random(const loading *l, attn_rng *rng)
{
    kit_array state = {0}, position = {0};
    int code = load(l, &state, "random.state", ATTN_I64, 1);
    if (!code)
        code = load(l, &position, "random.position", ATTN_I64, 1);
    const int64_t *word = state.data, *at = position.data;
    bool good = !code && state.shape[0] == 624 && position.shape[0] == 1 && *at >= 0 && *at <= 624;
    for (int i = 0; i < 624 && good; i++) {
        good = word[i] >= 0 && word[i] <= UINT32_MAX;
        rng->state[i] = (uint32_t)word[i];
    }
    if (good)
        rng->position = (int32_t)*at;
    kit_array_free(&state);
    kit_array_free(&position);
    return code || good
               ? code
               : kit_fail(l->err, KIT_BAD_FILE, "%s: its random state is not valid", l->path);
}

static int load_losses(const loading *l, train_run *run)
{
    kit_array a;
    int code = load(l, &a, "history.loss", ATTN_F64, 1);
    if (code)
        return code;
    for (int64_t i = 0; i < a.shape[0] && !code; i++) {
        code = train_grow((void **)&run->loss, (size_t)i, sizeof *run->loss, l->err);
        if (!code)
            run->loss[run->step++] = ((const double *)a.data)[i];
    }
    kit_array_free(&a);
    return code;
}

static int load_checks(const loading *l, train_run *run)
{
    kit_array a;
    int code = load(l, &a, "history.checks", ATTN_F64, 2);
    if (code)
        return code;
    const double *row = a.data;
    for (int64_t i = 0; i < a.shape[0] && !code; i++, row += 4) {
        if (a.shape[1] != 4 || !(row[0] >= 0 && row[0] <= (double)run->step) ||
            !(row[3] >= 0 && row[3] < 1e15)) {
            code = kit_fail(l->err, KIT_BAD_FILE, "%s: its history of accuracies is not valid",
                            l->path);
            break;
        }
        code = train_grow((void **)&run->check, run->check_count, sizeof *run->check, l->err);
        if (!code)
            run->check[run->check_count++] =
                (train_check){(int64_t)row[0], {row[1], row[2], (int64_t)row[3]}};
    }
    kit_array_free(&a);
    return code;
}

/* Copies part i of `all`; without data if `all` has none. */
static int take_part(const loading *l, kit_array *one, const kit_array *all, int64_t i,
                     const int64_t shape[4])
{
    if (!all->data)
        return KIT_OK;
    const int code = kit_array_new(one, ATTN_F32, 4, shape, l->err);
    if (!code)
        memcpy(one->data, (char *)all->data + (size_t)i * one->bytes, one->bytes);
    return code;
}

static int load_maps(const loading *l, train_run *run)
{
    kit_array all = {0}, slopes = {0}, steps = {0};
    int64_t P;
    int code = train_run_probe(run, &P, l->err);
    if (!code)
        code = load(l, &all, "history.maps", ATTN_F32, 5);
    if (!code && kit_safetensors_has(l->file, "history.map_slopes"))
        code = load(l, &slopes, "history.map_slopes", ATTN_F32, 5);
    if (!code)
        code = load(l, &steps, "history.map_steps", ATTN_I64, 1);
    const int64_t shape[4] = {run->config.layers, run->config.heads, P, P};
    if (!code &&
        (all.shape[0] != steps.shape[0] || (slopes.data && slopes.shape[0] != steps.shape[0]) ||
         (steps.shape[0] && memcmp(all.shape + 1, shape, sizeof shape) != 0) ||
         (slopes.data && memcmp(slopes.shape + 1, all.shape + 1, sizeof shape) != 0)))
        code = kit_fail(l->err, KIT_BAD_FILE,
                        "%s: its maps do not have the shape that the options require", l->path);
    for (int64_t i = 0; !code && i < steps.shape[0]; i++) {
        train_map map = {.step = ((const int64_t *)steps.data)[i]};
        code = train_grow((void **)&run->map, run->map_count, sizeof *run->map, l->err);
        if (!code)
            code = take_part(l, &map.weights, &all, i, shape);
        if (!code)
            code = take_part(l, &map.slopes, &slopes, i, shape);
        if (code)
            kit_array_free(&map.weights);
        else
            run->map[run->map_count++] = map;
    }
    kit_array_free(&all);
    kit_array_free(&slopes);
    kit_array_free(&steps);
    return code;
}

static int load_all(const loading *l, train_run *run)
{
    int code = KIT_OK;
    for (int i = 0; i < run->model.count && !code; i++) {
        train_parameter *p = &run->model.parameter[i];
        code = load_same(l, &p->value, "", p->name);
        if (!code)
            code = load_same(l, &p->m, "optimizer.m.", p->name);
        if (!code)
            code = load_same(l, &p->v, "optimizer.v.", p->name);
    }
    if (code || (code = load_random(l, &run->data)) || (code = load_losses(l, run)) ||
        (code = load_checks(l, run)))
        return code;
    return load_maps(l, run);
}

static int check_text(const kit_safetensors *f, const char *path, const train_config *c,
                      const train_text *text, kit_error *err)
{
    char hash[TEXT];
    const char *was = kit_safetensors_metadata(f, "text");
    if (c->task != TRAIN_TEXT)
        return KIT_OK;
    snprintf(hash, sizeof hash, "%016" PRIx64, text->hash);
    if (!was || strcmp(was, hash) != 0 || text->vocabulary != c->vocabulary)
        return kit_fail(err, KIT_USAGE, "%s: was trained on another text; give that one as --text",
                        path);
    return KIT_OK;
}

/* Checks that the file is large enough for such a model, so that its size bounds the memory that is
 * allocated. */
static int check_size(const kit_safetensors *f, const char *path, const train_config *c,
                      kit_error *err)
{
    const double E = (double)c->embed, block = E * E * (c->mlp ? 12 : 4);
    const double head = c->task == TRAIN_ANY_WORDS ? E : (double)train_config_answers(c);
    const bool drawn = train_task_draws_words(c->task); /* no table of tokens */
    const double tables = head + (drawn ? 0 : (double)train_config_tokens(c));
    const double least = E * (tables + (double)c->length) + (double)c->layers * block;
    if ((double)kit_safetensors_bytes(f) < 3 * sizeof(float) * least)
        return kit_fail(err, KIT_BAD_FILE, "%s: is too short for a model with its options", path);
    return KIT_OK;
}

int train_load(train_run **out, const char *path, const train_text *text, attn_context *ctx,
               kit_error *err)
{
    kit_safetensors *f;
    train_config c;
    *out = NULL;
    int code = kit_safetensors_open(&f, path, err);
    if (code)
        return code;
    code = read_config(&c, f, path, err);
    if (!code)
        code = check_text(f, path, &c, text, err);
    if (!code)
        code = check_size(f, path, &c, err);
    if (!code && (code = train_config_check(&c, text, err)))
        code = kit_fail(err, KIT_BAD_FILE, "%s: its options contradict each other", path);
    if (!code)
        code = train_begin(out, &c, text, ctx, err);
    if (!code && (code = load_all(&(loading){f, path, err}, *out))) {
        train_end(*out);
        *out = NULL;
    }
    kit_safetensors_close(f);
    return code;
}

/* ----------------------------------------------------------------------------------- Labels */

static int label_characters(char (*label)[TRAIN_LABEL], const kit_array *codes, const char *path,
                            kit_error *err)
{
    for (int64_t i = 0; i < codes->shape[0]; i++) {
        const int64_t code = ((const int64_t *)codes->data)[i];
        if (code < 1 || code > 0x10FFFF || !utf8proc_codepoint_valid((utf8proc_int32_t)code))
            return kit_fail(err, KIT_BAD_FILE,
                            "%s: text.characters has a number that is not a character", path);
        label[i][utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)label[i])] = 0;
    }
    return KIT_OK;
}

int train_load_labels(char (*label)[TRAIN_LABEL], const train_config *config, const char *path,
                      kit_error *err)
{
    const int64_t count = train_config_tokens(config);
    kit_safetensors *f;
    kit_array codes = {0};
    if (config->task != TRAIN_TEXT) {
        for (int64_t i = 0; i < count; i++)
            train_label(config, NULL, i, label[i]);
        return KIT_OK;
    }
    int code = kit_safetensors_open(&f, path, err);
    if (code)
        return code;
    const int64_t wanted[KIT_MAX_RANK] = {count};
    code = load(&(loading){f, path, err}, &codes, "text.characters", ATTN_I64, 1);
    if (!code && memcmp(codes.shape, wanted, sizeof wanted) != 0)
        code =
            kit_fail(err, KIT_BAD_FILE,
                     "%s: text.characters must have one character for each token of the vocabulary",
                     path);
    if (!code)
        code = label_characters(label, &codes, path, err);
    kit_array_free(&codes);
    kit_safetensors_close(f);
    return code;
}
