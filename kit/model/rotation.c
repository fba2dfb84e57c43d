/* Rotates queries and keys by their positions (RoPE, Su et al. 2021), with the methods for texts
 * longer than those of training. The options are in config.json's rope_parameters, or in
 * rope_scaling, the older name, which is preferred if both are present. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../io/json.h"
#include "inner.h"

#define PI 3.14159265358979323846

/* ---------------------------------------------------------------------------------- Reading */

typedef struct reader {
    const json_t *from;
    const char *name; /* names the file and the object in it */
    kit_error *err;
} reader;

static int wrong(const reader *r, const char *what)
{
    return kit_fail(r->err, KIT_BAD_FILE, "%s: %s", r->name, what);
}

static int real(double *to, const reader *r, const char *key, double low, double high)
{
    return io_json_real(to, r->from, r->name, key, low, high, r->err);
}

static int read_kind(rotation_kind *kind, const reader *r)
{
    static const char *const known[] = {"default", "linear",   "dynamic",
                                        "yarn",    "longrope", "llama3"};
    const char *type = "default";
    int code = io_json_text(&type, r->from, r->name, "type", r->err);
    if (!code)
        code = io_json_text(&type, r->from, r->name, "rope_type", r->err);
    for (size_t i = 0; i < sizeof known / sizeof *known && !code; i++)
        if (strcmp(known[i], type) == 0) {
            *kind = (rotation_kind)i;
            return KIT_OK;
        }
    return code ? code
                : kit_fail(r->err, KIT_BAD_FILE,
                           "%s: rope_type '%.40s' is not supported; supported are default, linear, "
                           "dynamic, yarn, longrope and llama3",
                           r->name, type);
}

/* Returns the factor by which yarn lengthens rotated vectors; m: mscale of the numerator or the
 * denominator. */
static double growth(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static int read_yarn(rotation *to, const reader *r)
{
    double size = -1, above = 0, below = 0, fast = 0, slow = 0;
    int code;
    to->truncate = !json_is_null(json_object_get(r->from, "truncate"));
    if ((code = real(&size, r, "attention_factor", 0, 1e6)) ||
        (code = real(&above, r, "mscale", 0, 1e6)) ||
        (code = real(&below, r, "mscale_all_dim", 0, 1e6)) ||
        (code = real(&fast, r, "beta_fast", 0, 1e6)) ||
        (code = real(&slow, r, "beta_slow", 0, 1e6)) ||
        (code = io_json_flag(&to->truncate, r->from, r->name, "truncate", r->err)))
        return code;
    if (to->theta <= 1)
        return wrong(r, "rope_type yarn needs a rope_theta above 1");
    to->fast = fast > 0 ? fast : 32; /* 0 stands for the default */
    to->slow = slow > 0 ? slow : 1;
    to->size = size >= 0                ? size
               : above > 0 && below > 0 ? growth(to->factor, above) / growth(to->factor, below)
                                        : growth(to->factor, 1);
    return KIT_OK;
}

static int read_list(double *to, const reader *r, const char *key, int64_t count)
{
    const json_t *list = json_object_get(r->from, key);
    bool good = json_array_size(list) == (size_t)count;
    for (int64_t i = 0; i < count && good; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        to[i] = json_number_value(x);
        good = json_is_number(x) && to[i] > 0;
    }
    return good ? KIT_OK
                : kit_fail(r->err, KIT_BAD_FILE,
                           "%s: %s must be a list of %lld numbers above 0: a head's size / 2",
                           r->name, key, (long long)count);
}

static int read_longrope(rotation *to, const reader *r, int64_t D)
{
    double size = -1;
    to->near = calloc((size_t)D + 1, sizeof *to->near);
    if (!to->near)
        return kit_fail(r->err, KIT_LIMIT, "%s: not enough memory", r->name);
    to->far = to->near + D / 2;
    int code;
    if ((code = read_list(to->near, r, "short_factor", D / 2)) ||
        (code = read_list(to->far, r, "long_factor", D / 2)) ||
        (code = real(&size, r, "attention_factor", 0, 1e6)))
        return code;
    if (to->original < 2)
        return wrong(r, "rope_type longrope needs original_max_position_embeddings of at least 2");
    to->size = size >= 0         ? size
               : to->factor <= 1 ? 1
                                 : sqrt(1 + log(to->factor) / log(to->original));
    return KIT_OK;
}

static int read_llama3(rotation *to, const reader *r)
{
    int code;
    if ((code = real(&to->low, r, "low_freq_factor", 1e-6, 1e6)) ||
        (code = real(&to->high, r, "high_freq_factor", 1e-6, 1e6)))
        return code;
    return to->low > 0 && to->high > to->low
               ? KIT_OK
               : wrong(r, "rope_type llama3 needs low_freq_factor and a higher high_freq_factor");
}

static int read_scaling(rotation *to, const reader *r, int64_t D)
{
    int code;
    if (to->kind == ROTATION_DEFAULT)
        return KIT_OK;
    const bool may_lack = to->kind == ROTATION_YARN || to->kind == ROTATION_LONGROPE;
    to->factor = may_lack ? to->length / to->original : 0;
    if ((code = real(&to->factor, r, "factor", 1, 1e6)))
        return code;
    if (!(to->factor > 0) || (to->kind == ROTATION_YARN && !json_object_get(r->from, "factor")))
        return wrong(r, "factor is missing; this rope_type needs it");
    if (to->kind == ROTATION_DYNAMIC && D < 4)
        return wrong(r, "rope_type dynamic needs heads of at least 4");
    switch (to->kind) {
    case ROTATION_YARN: return read_yarn(to, r);
    case ROTATION_LONGROPE: return read_longrope(to, r, D);
    case ROTATION_LLAMA3: return read_llama3(to, r);
    default: return KIT_OK;
    }
}

int model_rotation_read(rotation *to, const json_t *top, const char *name, int64_t D,
                        int64_t length, const model_options *options, kit_error *err)
{
    static const config_key *const tables[] = {model_rotation_keys, NULL};
    const json_t *old = json_object_get(top, "rope_scaling");
    const bool older = json_object_size(old) > 0;
    char inside[256];
    snprintf(inside, sizeof inside, "%.200s: %s", name, older ? "rope_scaling" : "rope_parameters");
    const reader at_top = {top, name, err},
                 r = {older ? old : json_object_get(top, "rope_parameters"), inside, err};
    const key_check how = {.name = inside, .options = options, .err = err};
    int code;
    *to = (rotation){.theta = 10000, .factor = 1, .size = 1, .length = (double)length};
    to->original = to->length;
    if (D % 2)
        return wrong(&at_top, "a rotated head must have an even size; see head_dim");
    if ((code = real(&to->theta, &at_top, "rope_theta", 1, 1e12)) ||
        (r.from && (code = model_check_keys(r.from, tables, &how))) ||
        (code = read_kind(&to->kind, &r)) || (code = real(&to->theta, &r, "rope_theta", 1, 1e12)) ||
        (code = real(&to->original, &r, "original_max_position_embeddings", 1, 1e9)) ||
        (code = real(&to->original, &at_top, "original_max_position_embeddings", 1, 1e9)))
        return code;
    return read_scaling(to, &r, D);
}

void model_rotation_free(rotation *r)
{
    free(r->near);
    r->near = r->far = NULL;
}

/* -------------------------------------------------------------------------------- Computing */

/* Llama 3.1: the frequency of slow pairs is divided by `factor`, that of fast pairs is kept, and
 * pairs between are interpolated. The number of rotations within the original length decides. */
static double llama3(const rotation *r, double frequency)
{
    const double turns = r->original * frequency / (2 * PI);
    if (turns < r->low)
        return frequency / r->factor;
    if (turns > r->high)
        return frequency;
    const double smooth = (turns - r->low) / (r->high - r->low);
    return (1 - smooth) * frequency / r->factor + smooth * frequency;
}

/* Returns the pair that rotates `turns` times within the original length. */
static double pair_that_turns(const rotation *r, double turns, int64_t D)
{
    return (double)D * log(r->original / (turns * 2 * PI)) / (2 * log(r->theta));
}

/* As llama3, but interpolates by the pair's number (Peng et al. 2023). */
static double yarn(const rotation *r, double frequency, int64_t pair, int64_t D)
{
    double low = pair_that_turns(r, r->fast, D), high = pair_that_turns(r, r->slow, D);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(D - 1));
    if (low == high)
        high += 0.001;
    const double slowed = fmin(fmax(((double)pair - low) / (high - low), 0), 1);
    return frequency / r->factor * slowed + frequency * (1 - slowed);
}

/* total: tokens so far, including those of this call. */
static double frequency_of(const rotation *r, int64_t pair, int64_t D, int64_t total)
{
    const double part = -2 * (double)pair / (double)D;
    /* Rounded to float where the models' own code uses floats; otherwise distant positions would
     * differ. */
    const double plain = (double)(float)pow(r->theta, part), tokens = (double)total;
    switch (r->kind) {
    case ROTATION_LINEAR: return plain / r->factor;
    case ROTATION_LLAMA3: return llama3(r, plain);
    case ROTATION_YARN: return yarn(r, plain, pair, D);
    case ROTATION_LONGROPE: return plain / (tokens > r->original ? r->far : r->near)[pair];
    case ROTATION_DYNAMIC:
        if (tokens > r->length) { /* theta grows with the text */
            const double longer = r->factor * tokens / r->length - (r->factor - 1);
            return pow(r->theta * pow(longer, (double)D / (double)(D - 2)), part);
        }
        return plain;
    default: return plain;
    }
}

int model_angles(angles *a, const rotation *r, int64_t first, int64_t count, int64_t D,
                 kit_error *err)
{
    const int64_t half = D / 2;
    a->cos = calloc((size_t)(count * half) + 1, sizeof(float));
    a->sin = calloc((size_t)(count * half) + 1, sizeof(float));
    if (!a->cos || !a->sin)
        return kit_fail(err, KIT_LIMIT, "not enough memory for %lld positions", (long long)count);
    for (int64_t i = 0; i < half; i++) {
        const float frequency = (float)frequency_of(r, i, D, first + count);
        for (int64_t t = 0; t < count; t++) {
            const float angle = (float)(first + t) * frequency;
            a->cos[t * half + i] = (float)(cos((double)angle) * r->size);
            a->sin[t * half + i] = (float)(sin((double)angle) * r->size);
        }
    }
    return KIT_OK;
}

void model_rotate(float *x, const angles *a, int64_t rows, int64_t stride, int64_t heads, int64_t D)
{
    const int64_t half = D / 2;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t h = 0; h < heads; h++) {
            float *row = x + t * stride + h * D;
            const float *c = a->cos + t * half, *s = a->sin + t * half;
            for (int64_t i = 0; i < half; i++) {
                const float low = row[i], high = row[i + half];
                row[i] = low * c[i] - high * s[i];
                row[i + half] = high * c[i] + low * s[i];
            }
        }
}
