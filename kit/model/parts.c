/* The arithmetic of models that the engine has no call for: row by row, element by element. Sums in
 * double, as the engine's layer norm has them. */
#include <math.h>
#include <stdlib.h>

#include "inner.h"

/* x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019). */
void model_rms_norm(float *out, const float *x, const float *weight, double eps, int64_t rows,
                    int64_t columns)
{
    for (int64_t r = 0; r < rows; r++, x += columns, out += columns) {
        double sum = 0;
        for (int64_t i = 0; i < columns; i++)
            sum += (double)x[i] * (double)x[i];
        const double factor = 1 / sqrt(sum / (double)columns + eps);
        for (int64_t i = 0; i < columns; i++)
            out[i] = (float)((double)x[i] * factor) * weight[i];
    }
}

static float gelu_tanh(float x)
{
    const float root = 0.7978845608f; /* sqrt(2 / pi) */
    return 0.5f * x * (1 + tanhf(root * (x + 0.044715f * x * x * x)));
}

static float silu(float x, float slope) { return x / (1 + expf(-slope * x)); }

void model_activate(float *x, activation kind, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        switch (kind) {
        case ACT_GELU: break; /* the engine's */
        case ACT_GELU_TANH: x[i] = gelu_tanh(x[i]); break;
        case ACT_QUICK_GELU: x[i] = silu(x[i], 1.702f); break;
        case ACT_RELU: x[i] = x[i] > 0 ? x[i] : x[i] < 0 ? 0 : x[i]; break;
        case ACT_SILU: x[i] = silu(x[i], 1); break;
        }
}

/* --------------------------------------------------------------------------------- Rotation */

/* Llama 3.1's: slow pairs turn `factor` times slower, fast ones as they did, the ones between in
 * between; fast and slow by how often they turn within the original length. */
static double scaled(const rotation *r, double frequency)
{
    if (r->linear)
        return frequency / r->factor;
    if (!(r->original > 0))
        return frequency;
    const double turns = r->original * frequency / (2 * acos(-1));
    if (turns < r->low)
        return frequency / r->factor;
    if (turns > r->high)
        return frequency;
    const double smooth = (turns - r->low) / (r->high - r->low);
    return (1 - smooth) * frequency / r->factor + smooth * frequency;
}

int model_angles(angles *a, const rotation *r, int64_t first, int64_t count, int64_t D,
                 kit_error *err)
{
    const int64_t half = D / 2;
    a->cos = calloc((size_t)(count * half) + 1, sizeof(float));
    a->sin = calloc((size_t)(count * half) + 1, sizeof(float));
    if (!a->cos || !a->sin)
        return kit_fail(err, KIT_LIMIT, "not enough memory for %lld places", (long long)count);
    for (int64_t i = 0; i < half; i++) {
        /* Rounded where the models' own code has floats: far places would differ else. */
        const float frequency =
            (float)scaled(r, (double)(float)pow(r->theta, -2 * (double)i / (double)D));
        for (int64_t t = 0; t < count; t++) {
            const float angle = (float)(first + t) * frequency;
            a->cos[t * half + i] = (float)cos((double)angle);
            a->sin[t * half + i] = (float)sin((double)angle);
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
