/* The next token from logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

typedef struct choice {
    double logit;
    int64_t id;
} choice;

/* Likeliest first; of equals, the first. */
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
            return kit_fail(err, KIT_NOT_FINITE, "the model's logits are not numbers");
        }
        (*out)[i] = (choice){(double)logits[i], i};
    }
    qsort(*out, (size_t)count, sizeof **out, by_logit);
    return KIT_OK;
}

/* Of the likeliest: they stand at the end or the beginning, and what can be said is the same. */
static int likeliest(int64_t *id, const float *logits, int64_t count, kit_error *err)
{
    *id = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i]))
            return kit_fail(err, KIT_NOT_FINITE, "the model's logits are not numbers");
        if (logits[i] > logits[*id])
            *id = i;
    }
    return KIT_OK;
}

int model_sample(int64_t *id, const float *logits, int64_t count, double temperature, int64_t top_k,
                 attn_rng *rng, kit_error *err)
{
    choice *c;
    float uniform;
    if (temperature == 0)
        return likeliest(id, logits, count, err);
    const int code = sorted(&c, logits, count, err);
    if (code)
        return code;
    const int64_t n = top_k > 0 && top_k < count ? top_k : count;
    double sum = 0, so_far = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp((c[i].logit - c[0].logit) / temperature);
    attn_rng_rand(rng, &uniform, 1);
    *id = c[n - 1].id;
    for (int64_t i = 0; i < n; i++) {
        so_far += exp((c[i].logit - c[0].logit) / temperature);
        if ((double)uniform * sum < so_far) {
            *id = c[i].id;
            break;
        }
    }
    free(c);
    return KIT_OK;
}

int model_top(int64_t *id, double *probability, int n, const float *logits, int64_t count,
              kit_error *err)
{
    choice *c;
    const int code = sorted(&c, logits, count, err);
    if (code)
        return code;
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
