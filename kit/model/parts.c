/* Arithmetic of models that libattn does not have: by rows and by elements. Sums are in double, as
 * in libattn's layer norm. */
#include <math.h>
#include <string.h>

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

/* ------------------------------------------------------------------------------ Activations */

bool model_activation(activation *kind, const char *name)
{
    static const struct {
        const char *name;
        activation kind;
    } known[] = {{"gelu", ACT_GELU},
                 {"gelu_python", ACT_GELU},
                 {"gelu_new", ACT_GELU_TANH},
                 {"gelu_fast", ACT_GELU_TANH},
                 {"gelu_accurate", ACT_GELU_TANH},
                 {"gelu_pytorch_tanh", ACT_GELU_TANH},
                 {"gelu_python_tanh", ACT_GELU_TANH},
                 {"gelu_10", ACT_GELU_10},
                 {"quick_gelu", ACT_QUICK_GELU},
                 {"relu", ACT_RELU},
                 {"relu2", ACT_RELU2},
                 {"relu6", ACT_RELU6},
                 {"leaky_relu", ACT_LEAKY_RELU},
                 {"silu", ACT_SILU},
                 {"swish", ACT_SILU},
                 {"hardswish", ACT_HARD_SWISH},
                 {"mish", ACT_MISH},
                 {"tanh", ACT_TANH},
                 {"sigmoid", ACT_SIGMOID},
                 {"linear", ACT_LINEAR}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            *kind = known[i].kind;
            return true;
        }
    return false;
}

static float gelu(float x)
{
    const double root = 0.70710678118654752440; /* sqrt(1 / 2) */
    return (float)(0.5 * (double)x * (1 + erf((double)x * root)));
}

static float gelu_tanh(float x)
{
    const float root = 0.7978845608f; /* sqrt(2 / pi) */
    return 0.5f * x * (1 + tanhf(root * (x + 0.044715f * x * x * x)));
}

static float silu(float x, float slope) { return x / (1 + expf(-slope * x)); }

/* NaN stays NaN, because both comparisons are false. */
static float clip(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* x tanh(log(1 + e^x)). Above 20 the logarithm equals x in a float; for large x e^x would
 * overflow. */
static float mish(float x) { return x * tanhf(x > 20 ? x : log1pf(expf(x))); }

static float activated(float x, activation kind)
{
    switch (kind) {
    case ACT_GELU: return gelu(x);
    case ACT_GELU_TANH: return gelu_tanh(x);
    case ACT_GELU_10: return clip(gelu(x), -10, 10);
    case ACT_QUICK_GELU: return silu(x, 1.702f);
    case ACT_RELU: return clip(x, 0, INFINITY);
    case ACT_RELU2: return clip(x, 0, INFINITY) * clip(x, 0, INFINITY);
    case ACT_RELU6: return clip(x, 0, 6);
    case ACT_LEAKY_RELU: return x < 0 ? 0.01f * x : x;
    case ACT_SILU: return silu(x, 1);
    case ACT_HARD_SWISH: return x * clip(x + 3, 0, 6) / 6;
    case ACT_MISH: return mish(x);
    case ACT_TANH: return tanhf(x);
    case ACT_SIGMOID: return 1 / (1 + expf(-x));
    case ACT_LINEAR: break;
    }
    return x;
}

void model_activate(float *x, activation kind, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = activated(x[i], kind);
}
