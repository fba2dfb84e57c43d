/* Conversions between storage types agree with a slow definition.
 *
 * The definition decodes a type's values from their bits by ldexp, and finds the nearest value by a
 * search among all of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "core/internal.h"
#include "support/test.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

static uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ------------------------------------------------------------------------------ the definition */

typedef struct narrow {
    attn_dtype dtype;
    int fraction; /* bits */
    int bias;
    uint16_t infinity;
} narrow;

static const narrow f16 = {ATTN_F16, 10, 15, 0x7c00};
static const narrow bf16 = {ATTN_BF16, 7, 127, 0x7f80};

/* Of a positive finite code; of infinity's, what the next number would be. */
static double decode(const narrow *t, uint16_t code)
{
    int exponent = code >> t->fraction, fraction = code & ((1 << t->fraction) - 1);
    if (exponent == 0)
        return ldexp(fraction, 1 - t->bias - t->fraction);
    return ldexp(fraction + (1 << t->fraction), exponent - t->bias - t->fraction);
}

/* decode() of all codes up to infinity's, for the searches below. */
static double magnitude(const narrow *t, uint16_t code)
{
    static double tables[2][0x8000];
    double *table = tables[t == &bf16];
    if (table[t->infinity] == 0)
        for (uint16_t c = 0; c <= t->infinity; c++)
            table[c] = decode(t, c);
    return table[code];
}

/* x to the nearest, ties to the even code; NaN to any NaN, given as 0xffff. */
static uint16_t nearest(const narrow *t, double x)
{
    if (isnan(x))
        return 0xffff;
    uint16_t sign = signbit(x) ? 0x8000 : 0, low = 0, high = t->infinity;
    x = fabs(x);
    if (x >= magnitude(t, high))
        return sign | high;
    while (high - low > 1) { /* magnitude(low) <= x < magnitude(high) */
        uint16_t middle = (uint16_t)((low + high) / 2);
        *(magnitude(t, middle) <= x ? &low : &high) = middle;
    }
    double half = (magnitude(t, low) + magnitude(t, high)) / 2; /* exact: these have few bits */
    bool up = x > half || (x == half && low % 2 == 1);
    return sign | (up ? high : low);
}

static bool is_quiet_nan(const narrow *t, uint16_t code)
{
    return (code & 0x7fff) > t->infinity && (code >> (t->fraction - 1) & 1);
}

static void expect_code(const narrow *t, double x, uint16_t got)
{
    uint16_t want = nearest(t, x);
    if (want == 0xffff ? is_quiet_nan(t, got) : got == want)
        return;
    fail_msg("%s of %a is %04x, want %04x", attn_dtype_name(t->dtype), x, got, want);
}

static void expect_stored(const narrow *t, double x)
{
    uint16_t got;
    attni_store_row_f64(&got, t->dtype, 1, &x, 1);
    expect_code(t, x, got);
    float f = (float)x;
    attni_store_row_f32(&got, t->dtype, 1, &f, 1);
    expect_code(t, (double)f, got);
}

/* ---------------------------------------------------------------------------------- the tests */

static void sizes_and_names(void **state)
{
    (void)state;
    static const struct {
        attn_dtype dtype;
        const char *name;
        size_t size;
        bool is_float;
    } want[] = {{ATTN_F64, "f64", 8, true},    {ATTN_F32, "f32", 4, true},
                {ATTN_F16, "f16", 2, true},    {ATTN_BF16, "bf16", 2, true},
                {ATTN_BOOL, "bool", 1, false}, {ATTN_I64, "i64", 8, false},
                {ATTN_I8, "i8", 1, false}};
    for (size_t i = 0; i < COUNT(want); i++) {
        describe_case("row %zu of want", i);
        assert_int_equal(want[i].dtype, i + 1); /* the values are pinned */
        assert_string_equal(attn_dtype_name(want[i].dtype), want[i].name);
        assert_int_equal(attn_dtype_size(want[i].dtype), want[i].size);
        assert_int_equal(attni_dtype_is_float(want[i].dtype), want[i].is_float);
    }
    static const int unknown[] = {0, 8, -1, 100000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(unknown); i++) {
        assert_int_equal(attn_dtype_size((attn_dtype)unknown[i]), 0);
        assert_string_equal(attn_dtype_name((attn_dtype)unknown[i]), "unknown dtype");
        assert_false(attni_dtype_is_float((attn_dtype)unknown[i]));
    }
}

static void expect_all_codes(const narrow *t)
{
    static uint16_t codes[65536], back[65536];
    static float f[65536];
    static double d[65536];
    for (size_t i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    attni_load_row_f32(f, codes, t->dtype, 1, 65536);
    attni_load_row_f64(d, codes, t->dtype, 1, 65536);
    for (size_t i = 0; i < 65536; i++) {
        uint16_t plain = codes[i] & 0x7fff;
        assert_int_equal(signbit(f[i]) != 0, i >> 15);
        if (plain > t->infinity) {
            assert_nan(f[i]);
            assert_nan(d[i]);
            continue;
        }
        double want = plain == t->infinity ? INFINITY : magnitude(t, plain);
        assert_number(fabs(d[i]), ==, want);
        assert_number((double)f[i], ==, d[i]);
        assert_int_equal(signbit(d[i]) != 0, i >> 15);
    }
    attni_store_row_f32(back, t->dtype, 1, f, 65536);
    for (size_t i = 0; i < 65536; i++)
        if (!isnan(f[i]) || !is_quiet_nan(t, back[i]))
            assert_int_equal(back[i], i);
    attni_store_row_f64(back, t->dtype, 1, d, 65536);
    for (size_t i = 0; i < 65536; i++)
        if (!isnan(f[i]) || !is_quiet_nan(t, back[i]))
            assert_int_equal(back[i], i);
}

static void every_f16_survives(void **state)
{
    (void)state;
    expect_all_codes(&f16);
}

static void every_bf16_survives(void **state)
{
    (void)state;
    expect_all_codes(&bf16);
}

/* Each value, each point half way to the next, and the floats and doubles just beside them: where
 * rounding twice, rounding down, or rounding ties away would show. */
static void expect_halfway_points(const narrow *t)
{
    for (uint16_t code = 0; code < t->infinity; code++) {
        double low = magnitude(t, code), high = magnitude(t, code + 1);
        double points[] = {low, (low + high) / 2};
        for (size_t i = 0; i < COUNT(points); i++)
            for (int negative = 0; negative < 2; negative++) {
                double x = negative ? -points[i] : points[i];
                expect_stored(t, x);
                expect_stored(t, nextafter(x, INFINITY));
                expect_stored(t, nextafter(x, -INFINITY));
                expect_stored(t, (double)nextafterf((float)x, INFINITY));
                expect_stored(t, (double)nextafterf((float)x, -INFINITY));
            }
    }
}

static void f16_halfway_points(void **state)
{
    (void)state;
    expect_halfway_points(&f16);
}

static void bf16_halfway_points(void **state)
{
    (void)state;
    expect_halfway_points(&bf16);
}

static void random_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 300000; i++) {
        const narrow *t = i % 2 ? &f16 : &bf16;
        expect_stored(t, (double)float_of((uint32_t)next_random()));
        expect_stored(t, double_of(next_random()));
        /* In the range of the type, with the low bits mostly 0 or mostly 1: near ties. */
        uint64_t bits = (uint64_t)(1023 - 30 + (int)(next_random() % 50)) << 52;
        bits |= (next_random() & 0xfffff) << 32;
        bits += next_random() % 3 - 1;
        expect_stored(t, double_of(bits | next_random() << 63));
    }
}

static void limits(void **state)
{
    (void)state;
    static const double x[] = {0.0,       -0.0,          INFINITY, -INFINITY,      65504,
                               65519.996, 65520,         -65520,   0x1.fffffep127, 0x1.0p128,
                               -1e300,    1e-300,        0x1p-24,  0x1p-25,        0x1.000002p-25,
                               0x1.8p-25, 0x1p-26,       0x1p-133, 0x1p-134,       0x1p-149,
                               0x1p-150,  0x1.feffffp127};
    for (size_t i = 0; i < COUNT(x); i++) {
        expect_stored(&f16, x[i]);
        expect_stored(&bf16, x[i]);
    }
}

/* Payloads in the low bits only must not become an infinity when those are cut. */
static void nan_stays_nan(void **state)
{
    (void)state;
    static const uint32_t f[] = {0x7f800001, 0x7f801fff, 0x7fc00000, 0x7fffffff,
                                 0xff800001, 0xffffffff, 0x7fbfffff, 0x7f800000 | 0xffff};
    static const uint64_t d[] = {0x7ff0000000000001, 0x7ff000000fffffff, 0xfff0000000000001,
                                 0x7ff8000000000000, 0xffffffffffffffff, 0x7ff7ffffffffffff};
    uint16_t got;
    float single;
    for (size_t i = 0; i < COUNT(f); i++) {
        describe_case("float %zu", i);
        float x = float_of(f[i]);
        attni_store_row_f32(&got, ATTN_F16, 1, &x, 1);
        assert_true(is_quiet_nan(&f16, got));
        assert_int_equal(got >> 15, f[i] >> 31);
        attni_store_row_f32(&got, ATTN_BF16, 1, &x, 1);
        assert_true(is_quiet_nan(&bf16, got));
        assert_int_equal(got >> 15, f[i] >> 31);
    }
    for (size_t i = 0; i < COUNT(d); i++) {
        describe_case("double %zu", i);
        double x = double_of(d[i]);
        attni_store_row_f64(&got, ATTN_F16, 1, &x, 1);
        assert_true(is_quiet_nan(&f16, got));
        attni_store_row_f64(&got, ATTN_BF16, 1, &x, 1);
        assert_true(is_quiet_nan(&bf16, got));
        attni_store_row_f64(&single, ATTN_F32, 1, &x, 1);
        assert_nan(single);
    }
}

/* double to f32: nothing representable is nearer, and of two as near, the even one is taken. */
static void doubles_to_f32(void **state)
{
    (void)state;
    for (int i = 0; i < 200000; i++) {
        uint64_t fraction = next_random() >> 12;
        if (i % 2) /* 29 bits are cut: leave the first of them, and half of these are ties */
            fraction &= ~(uint64_t)0x0fffffff;
        double x = double_of((uint64_t)(1023 - 155 + (int)(next_random() % 285)) << 52 | fraction);
        float got;
        attni_store_row_f64(&got, ATTN_F32, 1, &x, 1);
        if (isinf(got)) {
            assert_number(x, >=, 0x1.ffffffp127);
            continue;
        }
        double up = (double)nextafterf(got, INFINITY), down = (double)nextafterf(got, -INFINITY);
        double half_up = isinf(up) ? 0x1.ffffffp127 : ((double)got + up) / 2;
        double half_down = ((double)got + down) / 2;
        uint32_t bits;
        memcpy(&bits, &got, sizeof bits);
        assert_number(x, <=, half_up);
        assert_number(x, >=, half_down);
        if (x == half_up || x == half_down)
            assert_int_equal(bits & 1, 0);
    }
}

/* Element i of a row, fetched byte by byte. */
static double element(const unsigned char *row, attn_dtype dtype, int64_t at)
{
    size_t size = attn_dtype_size(dtype);
    double d;
    float f;
    uint16_t h;
    const unsigned char *p = row + at * (int64_t)size;
    if (dtype == ATTN_F64)
        return memcpy(&d, p, 8), d;
    if (dtype == ATTN_F32)
        return memcpy(&f, p, 4), (double)f;
    memcpy(&h, p, 2);
    double m = magnitude(dtype == ATTN_F16 ? &f16 : &bf16, h & 0x7fff);
    return h >> 15 ? -m : m;
}

enum { ROOM = 8192, MIDDLE = ROOM / 2, MOST = 37 };

/* Any stride, any alignment: the right elements are read, and nothing else is written. */
static void expect_row(attn_dtype dtype, int64_t stride, int64_t n, size_t shift, bool wide)
{
    static unsigned char row[ROOM], values[ROOM], want[ROOM];
    size_t size = attn_dtype_size(dtype), real = wide ? 8 : 4;
    unsigned char *start = row + MIDDLE + shift, *out = values + 64 + shift % 5;

    memset(values, 0xa5, sizeof values);
    for (size_t i = 0; i < ROOM; i++) /* a finite number of every type, wherever it starts */
        row[i] = (unsigned char)(0x38 + next_random() % 8);
    if (wide)
        attni_load_row_f64((double *)(void *)out, start, dtype, stride, n);
    else
        attni_load_row_f32((float *)(void *)out, start, dtype, stride, n);
    for (int64_t i = 0; i < n; i++) {
        double exact = element(start, dtype, i * stride);
        double got = element(out, wide ? ATTN_F64 : ATTN_F32, i);
        assert_number(got, ==, wide ? exact : (double)(float)exact);
    }
    for (size_t i = 0; i < sizeof values; i++)
        if (values + i < out || values + i >= out + (size_t)n * real)
            assert_int_equal(values[i], 0xa5);
    if (stride == 0) /* one place for many values: no output has it */
        return;

    /* Store what was loaded: the elements that the row had come back, the others stay. */
    memcpy(want, row, sizeof row);
    for (int64_t i = 0; i < n; i++)
        memset(start + i * stride * (int64_t)size, 0, size);
    if (wide)
        attni_store_row_f64(start, dtype, stride, (double *)(void *)out, n);
    else
        attni_store_row_f32(start, dtype, stride, (float *)(void *)out, n);
    for (int64_t i = 0; i < n; i++)
        if (!wide && dtype == ATTN_F64) { /* lost bits on the way; the rest must match */
            double exact = element(want + MIDDLE + shift, dtype, i * stride);
            assert_number(element(start, dtype, i * stride), ==, (double)(float)exact);
            memcpy(want + MIDDLE + shift + i * stride * 8, start + i * stride * 8, 8);
        }
    assert_memory_equal(row, want, sizeof row);
}

static void strides_and_alignments(void **state)
{
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    static const int64_t strides[] = {1, -1, 0, 2, -2, 3, 7, -7, 11};
    for (size_t t = 0; t < COUNT(dtypes); t++)
        for (size_t s = 0; s < COUNT(strides); s++)
            for (int64_t n = 0; n <= MOST; n += n < 20 ? 1 : 17)
                for (size_t shift = 0; shift < 4; shift++)
                    for (int wide = 0; wide < 2; wide++)
                        expect_row(dtypes[t], strides[s], n, shift, wide);
}

/* bool and i64 are no numbers to compute with. */
static void other_types_are_left_alone(void **state)
{
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_BOOL, ATTN_I64, ATTN_I8, (attn_dtype)0,
                                        (attn_dtype)77};
    unsigned char memory[64];
    float f = 1;
    double d = 1;
    memset(memory, 0xa5, sizeof memory);
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        attni_store_row_f32(memory, dtypes[i], 1, &f, 1);
        attni_store_row_f64(memory, dtypes[i], 1, &d, 1);
        attni_load_row_f32(&f, memory, dtypes[i], 1, 1);
        attni_load_row_f64(&d, memory, dtypes[i], 1, 1);
    }
    assert_number(f, ==, 1);
    assert_int_equal(bits_of(d), bits_of(1.0));
    for (size_t i = 0; i < sizeof memory; i++)
        assert_int_equal(memory[i], 0xa5);
}

/* f16's denormals are read right even where the processor flushes its own. */
static void flush_modes_do_not_matter(void **state)
{
    (void)state;
#if defined(__SSE__)
    uint16_t codes[1024];
    float f[1024];
    for (size_t i = 0; i < COUNT(codes); i++)
        codes[i] = (uint16_t)i;
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* FTZ, DAZ */
    attni_load_row_f32(f, codes, ATTN_F16, 1, COUNT(codes));
    memset(codes, 0, sizeof codes);
    attni_store_row_f32(codes, ATTN_F16, 1, f, COUNT(codes));
    _mm_setcsr(before);
    for (size_t i = 0; i < COUNT(codes); i++) {
        assert_number((double)f[i], ==, ldexp((double)i, -24));
        assert_int_equal(codes[i], i);
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_and_names),
        cmocka_unit_test(every_f16_survives),
        cmocka_unit_test(every_bf16_survives),
        cmocka_unit_test(f16_halfway_points),
        cmocka_unit_test(bf16_halfway_points),
        cmocka_unit_test(random_bits),
        cmocka_unit_test(limits),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(doubles_to_f32),
        cmocka_unit_test(strides_and_alignments),
        cmocka_unit_test(other_types_are_left_alone),
        cmocka_unit_test(flush_modes_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
