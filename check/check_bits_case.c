/* The parts that problems of the record of bits are made of; see check_bits_case.h. */
#include "check_bits_case.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_tensor.h"

#define FNV_START UINT64_C(0xCBF29CE484222325)
#define FNV_PRIME UINT64_C(0x100000001B3)

void bits_begin(bits_case *c, uint64_t index)
{
    c->random = (index + 1) * UINT64_C(0xD1342543DE82EF95);
    c->hash = FNV_START;
    c->failed = false;
    c->what[0] = 0;
    c->used = 0;
}

void bits_say(bits_case *c, const char *format, ...)
{
    const size_t used = strlen(c->what);
    va_list list;
    va_start(list, format);
    vsnprintf(c->what + used, sizeof c->what - used, format, list);
    va_end(list);
}

bool bits_ok(bits_case *c, attn_status status)
{
    c->failed = c->failed || status != ATTN_OK;
    return !c->failed;
}

/* ------------------------------------------------------------------------------- random numbers */

/* SplitMix64, Steele, Lea and Flood 2014 */
uint64_t bits_random(bits_case *c)
{
    uint64_t z = c->random += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

int64_t bits_between(bits_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)(bits_random(c) % ((uint64_t)(high - low) + 1));
}

bool bits_chance(bits_case *c, int percent) { return bits_between(c, 0, 99) < percent; }

double bits_value(bits_case *c)
{
    const uint64_t x = bits_random(c);
    const int64_t sum =
        (int64_t)((x & 0xFFFF) + (x >> 16 & 0xFFFF) + (x >> 32 & 0xFFFF) + (x >> 48));
    return (double)(sum - 2 * 0xFFFF) * 0x1p-15;
}

/* -------------------------------------------------------------------------------------- tensors */

void *bits_memory(bits_case *c, size_t bytes)
{
    char *memory = c->memory + c->used;
    const size_t taken = (bytes + 63) / 64 * 64;
    if (taken > BITS_MEMORY - c->used)
        abort(); /* the problems are fixed, so their author sees this, never a user */
    c->used += taken;
    memset(memory, 0xFF, bytes);
    return memory;
}

/* Chooses strides from the innermost dimension outwards. Each stride steps over everything that the
 * dimensions inside it cover. */
static void choose_strides(bits_case *c, attn_tensor *t, bits_layout layout)
{
    static const int orders[][4] = {{3, 2, 1, 0}, {3, 1, 2, 0}, {2, 3, 1, 0}, {3, 0, 1, 2}};
    const bool loose = layout != BITS_DENSE;
    const int *order = orders[loose ? bits_between(c, 0, 3) : bits_chance(c, 30)];
    int64_t step = 1;
    for (int d = 0; d < 4; d++) {
        const int64_t size = t->shape[order[d]];
        if (loose && bits_chance(c, 30))
            step *= bits_between(c, 1, 2), step += bits_between(c, 0, 2);
        const bool repeat = layout == BITS_REPEAT && size > 1 && bits_chance(c, 8);
        t->stride[order[d]] = repeat ? 0 : loose && bits_chance(c, 20) ? -step : step;
        if (!repeat && size > 0)
            step *= size;
    }
}

attn_tensor bits_tensor(bits_case *c, attn_dtype dtype, const int64_t shape[4], bits_layout layout)
{
    attn_tensor t = {.dtype = dtype};
    memcpy(t.shape, shape, sizeof t.shape);
    choose_strides(c, &t, layout);
    int64_t low = 0, high = 0;
    for (int d = 0; d < 4; d++) {
        if (shape[d] == 0)
            return t;
        const int64_t reach = (shape[d] - 1) * t.stride[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    const size_t size = attn_dtype_size(dtype);
    const size_t shift = (size_t)bits_between(c, 0, 15); /* every alignment that the type allows */
    char *memory = bits_memory(c, ((size_t)(high - low) + 1 + shift) * size);
    t.data = memory + ((size_t)-low + shift) * size;
    return t;
}

attn_tensor bits_new(bits_case *c, attn_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3,
                     bits_layout layout)
{
    return bits_tensor(c, dtype, (int64_t[]){n0, n1, n2, n3}, layout);
}

/* Calls visit for every element, in index order. */
static void each(bits_case *c, const attn_tensor *t, double scale,
                 void (*visit)(bits_case *, const attn_tensor *, const int64_t[4], double))
{
    int64_t at[4];
    for (at[0] = 0; at[0] < t->shape[0]; at[0]++)
        for (at[1] = 0; at[1] < t->shape[1]; at[1]++)
            for (at[2] = 0; at[2] < t->shape[2]; at[2]++)
                for (at[3] = 0; at[3] < t->shape[3]; at[3]++)
                    visit(c, t, at, scale);
}

static void fill_plain(bits_case *c, const attn_tensor *t, const int64_t at[4], double scale)
{
    check_store(t, at[0], at[1], at[2], at[3], scale * bits_value(c));
}

static void fill_outliers(bits_case *c, const attn_tensor *t, const int64_t at[4], double scale)
{
    fill_plain(c, t, at, bits_between(c, 0, 63) == 0 ? 64 * scale : scale);
}

void bits_fill(bits_case *c, attn_tensor *t, double scale) { each(c, t, scale, fill_plain); }

void bits_fill_outliers(bits_case *c, attn_tensor *t, double scale)
{
    each(c, t, scale, fill_outliers);
}

void bits_plant(bits_case *c, attn_tensor *t, double x)
{
    int64_t at[4];
    for (int d = 0; d < 4; d++) {
        if (t->shape[d] == 0)
            return;
        at[d] = bits_between(c, 0, t->shape[d] - 1);
    }
    check_store(t, at[0], at[1], at[2], at[3], x);
}

/* ------------------------------------------------------------------------------------- the hash */

void bits_hash_integer(bits_case *c, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        c->hash = (c->hash ^ (x >> 8 * i & 0xFF)) * FNV_PRIME;
}

/* Hashes the bits of a float; `infinity` is the bit pattern of infinity in its type. All NaN hash
 * alike, whatever their signs and payloads. */
static void hash_float(bits_case *c, uint64_t bits, uint64_t infinity, int bytes)
{
    const uint64_t sign = UINT64_C(1) << (8 * bytes - 1);
    bits_hash_integer(c, (bits & ~sign) > infinity ? infinity + 1 : bits, bytes);
}

static void hash_element(bits_case *c, const attn_tensor *t, const int64_t at[4], double unused)
{
    const char *from = t->data;
    uint64_t whole;
    uint32_t word;
    uint16_t half;
    (void)unused;
    for (int d = 0; d < 4; d++)
        from += at[d] * t->stride[d] * (int64_t)attn_dtype_size(t->dtype);
    switch (t->dtype) {
    case ATTN_F64:
        memcpy(&whole, from, sizeof whole);
        hash_float(c, whole, UINT64_C(0x7FF0000000000000), 8);
        break;
    case ATTN_F32:
        memcpy(&word, from, sizeof word);
        hash_float(c, word, 0x7F800000, 4);
        break;
    case ATTN_F16:
    case ATTN_BF16:
        memcpy(&half, from, sizeof half);
        hash_float(c, half, t->dtype == ATTN_F16 ? 0x7C00 : 0x7F80, 2);
        break;
    default: bits_hash_integer(c, *(const unsigned char *)from, 1); break;
    }
}

void bits_hash(bits_case *c, const attn_tensor *t) { each(c, t, 0, hash_element); }

void bits_hash_doubles(bits_case *c, const double *x, int64_t n)
{
    const attn_tensor t = attn_matrix(x, ATTN_F64, 1, n);
    bits_hash(c, &t);
}
