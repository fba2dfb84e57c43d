/* Arrays in memory: checked sizes, and conversion between element types.
 *
 * The two 16-bit floats differ only in the widths of their fields, so one pair of functions
 * converts both. It uses integer arithmetic alone, and is exact or rounds to nearest even. To add a
 * dtype: add a case to kit_array_get and one to store().
 */
#include "io.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

bool io_shape_size(int rank, const int64_t *shape, size_t element, size_t *count, size_t *bytes)
{
    size_t elements = 1, span = element;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || (uint64_t)shape[i] > SIZE_MAX)
            return false;
        const size_t n = (size_t)shape[i];
        if (!io_size_mul(span, n ? n : 1, &span))
            return false;
        elements *= n; /* cannot overflow: elements <= span, or 0 */
    }
    if (span > PTRDIFF_MAX - ALIGNMENT) /* leaves room for padding */
        return false;
    *count = elements;
    *bytes = elements * element;
    return true;
}

const char *io_shape_text(char buffer[IO_SHAPE_TEXT], int rank, const int64_t *shape)
{
    size_t used = 0;
    buffer[used++] = '(';
    for (int i = 0; i < rank; i++)
        used += (size_t)snprintf(buffer + used, IO_SHAPE_TEXT - used, i ? ", %lld" : "%lld",
                                 (long long)shape[i]);
    snprintf(buffer + used, IO_SHAPE_TEXT - used, rank == 1 ? ",)" : ")");
    return buffer;
}

int io_array_reserve(kit_array *a, attn_dtype dtype, int rank, const int64_t *shape,
                     const char *name, kit_error *err)
{
    memset(a, 0, sizeof *a);
    const size_t element = attn_dtype_size(dtype);
    if (!element || rank < 0 || rank > KIT_MAX_RANK)
        return kit_fail(err, KIT_USAGE, "%s: an array has a known dtype and 0 to %d dimensions",
                        name, KIT_MAX_RANK);
    char text[IO_SHAPE_TEXT];
    size_t count, bytes;
    if (!io_shape_size(rank, shape, element, &count, &bytes))
        return kit_fail(err, KIT_LIMIT, "%s: shape %s is more than this machine can address", name,
                        io_shape_text(text, rank, shape));

    const size_t padded = (bytes / ALIGNMENT + 1) * ALIGNMENT; /* never 0 */
    void *data = aligned_alloc(ALIGNMENT, padded);
    if (!data)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory for shape %s of %s: %zu bytes", name,
                        io_shape_text(text, rank, shape), attn_dtype_name(dtype), bytes);
    *a = (kit_array){.dtype = dtype, .rank = rank, .data = data, .bytes = bytes};
    for (int i = 0; i < rank; i++)
        a->shape[i] = shape[i];
    return KIT_OK;
}

int kit_array_new(kit_array *a, attn_dtype dtype, int rank, const int64_t *shape, kit_error *err)
{
    const int code = io_array_reserve(a, dtype, rank, shape, "array", err);
    if (!code)
        memset(a->data, 0, a->bytes);
    return code;
}

void kit_array_free(kit_array *a)
{
    free(a->data);
    memset(a, 0, sizeof *a);
}

int64_t kit_array_count(const kit_array *a)
{
    int64_t n = 1;
    for (int i = 0; i < a->rank; i++)
        n *= a->shape[i];
    return n;
}

/* --------------------------------------------------------------------------- 16-bit floats */

typedef struct layout {
    int exponent, mantissa; /* bits of each field */
} layout;
static const layout f16 = {5, 10}, bf16 = {8, 7};

static double from_small(uint16_t x, layout l)
{
    const int bias = (1 << (l.exponent - 1)) - 1;
    const int exponent = (x >> l.mantissa) & ((1 << l.exponent) - 1);
    const int mantissa = x & ((1 << l.mantissa) - 1);
    double y;
    if (exponent == 2 * bias + 1)
        y = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        y = ldexp(mantissa, 1 - bias - l.mantissa);
    else
        y = ldexp(mantissa | 1 << l.mantissa, exponent - bias - l.mantissa);
    return x >> 15 ? -y : y;
}

static uint16_t to_small(double x, layout l)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int bias = (1 << (l.exponent - 1)) - 1;
    const int exponent = (int)(bits >> 52 & 0x7FF) - 1023;
    const uint64_t sign = bits >> 63 << 15;
    const uint64_t infinity = (uint64_t)(2 * bias + 1) << l.mantissa;
    const uint64_t significand = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;

    if (isnan(x))
        return (uint16_t)(sign | infinity | UINT64_C(1) << (l.mantissa - 1));
    if (exponent > bias) /* too large, or infinity */
        return (uint16_t)(sign | infinity);
    /* Subnormal result: its exponent field is 0 and its significand has fewer bits. */
    const int below = exponent < 1 - bias ? 1 - bias - exponent : 0;
    const int shift = 52 - l.mantissa + below;
    if (shift > 54) /* less than half of the smallest result, as are double's subnormals */
        return (uint16_t)sign;
    uint64_t kept = significand >> shift;
    const uint64_t rest = significand & ((UINT64_C(1) << shift) - 1);
    const uint64_t half = UINT64_C(1) << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    /* The top bit of the significand adds 1 to the exponent field, and so may a carry from
     * rounding. Both give the correct result. */
    const uint64_t field = below ? 0 : (uint64_t)(exponent + bias - 1) << l.mantissa;
    return (uint16_t)(sign | (field + kept));
}

/* ------------------------------------------------------------------------------ Conversion */

double kit_array_get(const kit_array *a, int64_t i)
{
    switch (a->dtype) {
    case ATTN_F64: return ((const double *)a->data)[i];
    case ATTN_F32: return (double)((const float *)a->data)[i];
    case ATTN_F16: return from_small(((const uint16_t *)a->data)[i], f16);
    case ATTN_BF16: return from_small(((const uint16_t *)a->data)[i], bf16);
    case ATTN_BOOL: return ((const unsigned char *)a->data)[i] != 0;
    case ATTN_I64: return (double)((const int64_t *)a->data)[i];
    default: break; /* no file has other types; an i8 has no value without its scale */
    }
    return (double)NAN;
}

/* Converts to a double that still rounds correctly to every narrower float. A value that does not
 * fit 53 bits is rounded to odd, so the second rounding cannot mistake it for a tie. */
static double sticky_double(int64_t x)
{
    if (x >= -(INT64_C(1) << 53) && x <= INT64_C(1) << 53)
        return (double)x;
    return (double)(x >> 11 | ((x & 0x7FF) != 0)) * 2048.0;
}

static void store(void *data, attn_dtype dtype, int64_t i, double x)
{
    switch (dtype) {
    case ATTN_F64: ((double *)data)[i] = x; break;
    case ATTN_F32: ((float *)data)[i] = (float)x; break;
    case ATTN_F16: ((uint16_t *)data)[i] = to_small(x, f16); break;
    default: ((uint16_t *)data)[i] = to_small(x, bf16); break;
    }
}

int kit_array_convert(kit_array *out, const kit_array *a, attn_dtype dtype, kit_error *err)
{
    if (dtype != ATTN_F64 && dtype != ATTN_F32 && dtype != ATTN_F16 && dtype != ATTN_BF16) {
        memset(out, 0, sizeof *out);
        return kit_fail(err, KIT_USAGE, "array: can be converted to f64, f32, f16 or bf16 only");
    }
    const int code = io_array_reserve(out, dtype, a->rank, a->shape, "array", err);
    if (code)
        return code;
    if (dtype == a->dtype) {
        memcpy(out->data, a->data, a->bytes);
        return KIT_OK;
    }
    const bool narrow_integer = a->dtype == ATTN_I64 && dtype != ATTN_F64;
    const int64_t n = kit_array_count(a);
    for (int64_t i = 0; i < n; i++)
        store(out->data, dtype, i,
              narrow_integer ? sticky_double(((const int64_t *)a->data)[i]) : kit_array_get(a, i));
    return KIT_OK;
}
