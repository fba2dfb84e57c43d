/* Chooses the next token from logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

typedef struct choice {
    double logit;
    int64_t id;
} choice;

/* Likeliest first; of equal ones, the one with the smaller id. */
static int by_logit(const void *a, const void *b)
{
    const choice *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int sorted(choice **out, const float *logits, int64_t count, kit_error *err)
{
    *out = malloc((size_t)count * sizeof **out + 1);
    if (!*out)
        return kit_fail(err, KIT_LIMIT, "not enough memory");
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i])) {
            free(*out);
            return kit_fail(err, KIT_NOT_FINITE, "one of the model's logits is NaN");
        }
        (*out)[i] = (choice){(double)logits[i], i};
    }
    qsort(*out, (size_t)count, sizeof **out, by_logit);
    return KIT_OK;
}

static int refuse_infinite(kit_error *err)
{
    return kit_fail(err, KIT_NOT_FINITE, "the model's largest logit is infinite");
}

/* Chooses the likeliest token; of equal ones, the first. If no_repeat_ngram_size leaves no token,
 * this is token 0, as in transformers. */
static int likeliest(int64_t *id, const float *logits, int64_t count, const model_generation *how,
                     kit_error *err)
{
    *id = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i]))
            return kit_fail(err, KIT_NOT_FINITE, "one of the model's logits is NaN");
        if (logits[i] > logits[*id])
            *id = i;
    }
    const bool none_left = logits[*id] < 0 && how->no_repeat_ngram > 0;
    return isinf(logits[*id]) && !none_left ? refuse_infinite(err) : KIT_OK;
}

/* Returns the sum of exp((logit - the largest) / temperature) over the first n. */
static double mass(const choice *c, int64_t n, double temperature)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp((c[i].logit - c[0].logit) / temperature);
    return sum;
}

/* Returns how many of the likeliest tokens may be drawn. Tokens as likely as the last of top_k are
 * included. */
static int64_t drawable(const choice *c, int64_t count, const model_generation *how)
{
    int64_t n = how->top_k > 0 && how->top_k < count ? how->top_k : count;
    while (n < count && c[n].logit == c[n - 1].logit)
        n++;
    if (how->top_p >= 1)
        return n;
    const double enough = how->top_p * mass(c, n, how->temperature);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((c[i].logit - c[0].logit) / how->temperature);
        if (sum >= enough)
            return i + 1;
    }
    return n;
}

int model_sample(int64_t *id, const float *logits, int64_t count, const model_generation *how,
                 attn_rng *rng, kit_error *err)
{
    choice *c;
    float uniform;
    if (how->temperature == 0)
        return likeliest(id, logits, count, how, err);
    const int code = sorted(&c, logits, count, err);
    if (code)
        return code;
    if (isinf(c[0].logit)) {
        free(c);
        return refuse_infinite(err);
    }
    const int64_t n = drawable(c, count, how);
    const double sum = mass(c, n, how->temperature);
    double so_far = 0;
    attn_rng_rand(rng, &uniform, 1);
    *id = c[n - 1].id;
    for (int64_t i = 0; i < n; i++) {
        so_far += exp((c[i].logit - c[0].logit) / how->temperature);
        if ((double)uniform * sum < so_far) {
            *id = c[i].id;
            break;
        }
    }
    free(c);
    return KIT_OK;
}

/* -------------------------------------------------------------------------- Penalties for
 * repeats */

/* Penalises each token that occurred, once. */
static int penalize_repeats(float *logits, int64_t count, const int64_t *token, int64_t length,
                            float penalty, kit_error *err)
{
    bool *seen = calloc((size_t)count + 1, sizeof *seen);
    if (!seen)
        return kit_fail(err, KIT_LIMIT, "not enough memory");
    for (int64_t i = 0; i < length; i++) {
        float *x = &logits[token[i]];
        if (!seen[token[i]])
            *x = *x < 0 ? *x * penalty : *x / penalty;
        seen[token[i]] = true;
    }
    free(seen);
    return KIT_OK;
}

/* Forbids tokens that would end a run of n tokens that occurred before. */
static void forbid_runs(float *logits, const int64_t *token, int64_t length, int64_t n)
{
    const int64_t *last = token + length - (n - 1);
    for (int64_t i = 0; i + n <= length; i++)
        if (memcmp(token + i, last, (size_t)(n - 1) * sizeof *token) == 0)
            logits[token[i + n - 1]] = -INFINITY;
}

int model_penalize(float *logits, int64_t count, const int64_t *token, int64_t length,
                   const model_generation *how, kit_error *err)
{
    int code = KIT_OK;
    if (how->repetition_penalty != 1)
        code = penalize_repeats(logits, count, token, length, (float)how->repetition_penalty, err);
    if (!code && how->no_repeat_ngram > 0 && how->no_repeat_ngram <= length)
        forbid_runs(logits, token, length, how->no_repeat_ngram);
    return code;
}

int model_top(int64_t *id, double *probability, int n, const float *logits, int64_t count,
              kit_error *err)
{
    choice *c;
    const int code = sorted(&c, logits, count, err);
    if (code)
        return code;
    if (isinf(c[0].logit)) {
        free(c);
        return refuse_infinite(err);
    }
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += exp(c[i].logit - c[0].logit);
    for (int i = 0; i < n; i++) {
        id[i] = c[i].id;
        probability[i] = exp(c[i].logit - c[0].logit) / sum;
    }
    free(c);
    return KIT_OK;
}
