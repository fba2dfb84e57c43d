/* Views of tensors find their elements, and invalid or overlapping tensors are refused. */
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "support/test.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

static char memory[1 << 16];

static attn_tensor view(attn_dtype dtype, const int64_t shape[4], const int64_t stride[4])
{
    attn_tensor t = {.data = memory + sizeof memory / 2, .dtype = dtype};
    memcpy(t.shape, shape, sizeof t.shape);
    memcpy(t.stride, stride, sizeof t.stride);
    return t;
}
#define FOUR(...) ((const int64_t[4]){__VA_ARGS__})

static void dense_views_find_every_element(void **state)
{
    (void)state;
    static float x[2 * 3 * 4 * 5];
    attn_tensor bhtd = attn_bhtd(x, ATTN_F32, 2, 3, 4, 5);
    attn_tensor bthd = attn_bthd(x, ATTN_F32, 2, 4, 3, 5);
    attn_tensor matrix = attn_matrix(x, ATTN_F32, 24, 5);
    assert_int_equal(bthd.shape[1], 3);
    assert_int_equal(bthd.shape[2], 4);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 3; h++)
            for (int64_t t = 0; t < 4; t++)
                for (int64_t d = 0; d < 5; d++) {
                    assert_ptr_equal(attni_at(&bhtd, b, h, t, d),
                                     x + ((b * 3 + h) * 4 + t) * 5 + d);
                    assert_ptr_equal(attni_at(&bthd, b, h, t, d),
                                     x + ((b * 4 + t) * 3 + h) * 5 + d);
                    assert_ptr_equal(attni_at(&matrix, 0, 0, (b * 3 + h) * 4 + t, d),
                                     attni_at(&bhtd, b, h, t, d));
                }
    attn_error err;
    assert_int_equal(attni_check_output(&bhtd, "x", &err), ATTN_OK);
    assert_int_equal(attni_check_output(&bthd, "x", &err), ATTN_OK);
    assert_int_equal(attni_check_output(&matrix, "x", &err), ATTN_OK);
}

static void expect(attn_tensor t, attn_status want)
{
    attn_error err = {0};
    assert_int_equal(attni_check_input(&t, "mask", &err), want);
    assert_int_equal(attni_check_output(&t, "mask", NULL), want);
    if (want == ATTN_OK)
        return;
    assert_int_equal(err.status, want);
    assert_string_equal(err.argument, "mask");
    assert_int_equal(strncmp(err.message, "mask ", 5), 0);
}

static void bad_tensors_are_named(void **state)
{
    (void)state;
    attn_error err;
    assert_int_equal(attni_check_input(NULL, "k", &err), ATTN_ERR_ARGUMENT);
    assert_int_equal(attni_check_output(NULL, "k", &err), ATTN_ERR_ARGUMENT);
    const int64_t dense[4] = {24, 12, 4, 1};
    attn_tensor good = view(ATTN_F32, FOUR(2, 2, 3, 4), dense);
    expect(good, ATTN_OK);

    for (int dtype = -3; dtype < 300; dtype++) {
        attn_tensor t = good;
        t.dtype = (attn_dtype)dtype;
        expect(t, dtype >= 1 && dtype <= 7 ? ATTN_OK : ATTN_ERR_DTYPE);
    }
    for (int d = 0; d < 4; d++) {
        static const int64_t negative[] = {-1, -4, INT32_MIN, INT64_MIN};
        for (size_t i = 0; i < COUNT(negative); i++) {
            attn_tensor t = good;
            t.shape[d] = negative[i];
            expect(t, ATTN_ERR_SHAPE);
            t.shape[(d + 1) % 4] = 0; /* an empty tensor hides nothing */
            expect(t, ATTN_ERR_SHAPE);
        }
    }
    attn_tensor t = good;
    t.data = NULL;
    expect(t, ATTN_ERR_ARGUMENT);
}

static void an_empty_tensor_needs_nothing(void **state)
{
    (void)state;
    for (int d = 0; d < 4; d++) {
        const int64_t most = ATTNI_MAX_SIZE;
        attn_tensor t =
            view(ATTN_F64, FOUR(most, most, most, most), FOUR(INT64_MAX, INT64_MIN, 0, 1));
        t.shape[d] = 0;
        t.data = NULL;
        expect(t, ATTN_OK);
        t.shape[(d + 1) % 4]++; /* a limit for empty tensors too */
        expect(t, ATTN_ERR_LIMIT);
    }
}

/* The sizes that wrapped for others, in each position, with the strides of a dense tensor. */
static void huge_shapes_are_refused(void **state)
{
    (void)state;
    static const int64_t huge[] = {INT64_MAX,        INT64_MAX - 1,
                                   (int64_t)1 << 62, ((int64_t)1 << 62) + 1,
                                   (int64_t)1 << 61, 0x155555555555555b};
    for (size_t i = 0; i < COUNT(huge); i++)
        for (int d = 0; d < 4; d++) {
            int64_t s[4] = {2, 2, 2, 2};
            s[d] = huge[i];
            expect(attn_bhtd(memory, ATTN_F32, s[0], s[1], s[2], s[3]), ATTN_ERR_LIMIT);
            expect(attn_bthd(memory, ATTN_F32, s[0], s[1], s[2], s[3]), ATTN_ERR_LIMIT);
        }
    const int64_t two32 = (int64_t)1 << 32;
    expect(attn_matrix(memory, ATTN_BOOL, two32, two32), ATTN_ERR_LIMIT); /* wraps to 0 */
    expect(attn_bhtd(memory, ATTN_F32, two32, 1, two32, 1), ATTN_ERR_LIMIT);
    expect(attn_bhtd(memory, ATTN_F32, 4194305, 4194305, 211106198978564, 1), ATTN_ERR_LIMIT);
    /* 2^62 elements fit, their bytes do not. */
    expect(attn_matrix(memory, ATTN_F16, two32, two32 / 4), ATTN_ERR_LIMIT);
    /* Repeating one element costs no memory, but a count beyond int64 is no count. */
    attn_tensor t = view(ATTN_F32, FOUR(two32, two32, 1, 1), FOUR(0, 0, 0, 0));
    assert_int_equal(attni_check_input(&t, "q", NULL), ATTN_ERR_LIMIT);
    t.shape[1] = two32 / 4;
    assert_int_equal(attni_check_input(&t, "q", NULL), ATTN_OK);
}

/* Is every offset of t, computed in 128 bits, an address? */
static bool reachable(const attn_tensor *t)
{
    __int128 low = 0, high = 0, count = 1;
    __int128 size = (__int128)attn_dtype_size(t->dtype);
    for (int d = 0; d < 4; d++) {
        __int128 reach = (__int128)(t->shape[d] - 1) * t->stride[d];
        if (reach < INT64_MIN || reach > INT64_MAX)
            return false;
        *(reach < 0 ? &low : &high) += reach;
        count *= t->shape[d];
        if (count > INT64_MAX || t->shape[d] > (int64_t)1 << 56)
            return false;
    }
    __int128 data = (uintptr_t)t->data;
    return data + low * size >= 0 && data + (high + 1) * size <= UINTPTR_MAX &&
           (high + 1 - low) * size <= PTRDIFF_MAX;
}

static uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void offsets_agree_with_128_bits(void **state)
{
    (void)state;
    int accepted = 0, refused = 0;
    for (int i = 0; i < 100000; i++) {
        attn_tensor t =
            view((attn_dtype)(1 + next_random() % 7), FOUR(1, 1, 1, 1), FOUR(0, 0, 0, 0));
        for (int d = 0; d < 4; d++) {
            t.shape[d] = (int64_t)(next_random() >> (1 + next_random() % 63));
            t.shape[d] += t.shape[d] == 0;
            t.stride[d] = (int64_t)next_random() >> next_random() % 64;
            if (next_random() % 2)
                t.shape[d] = 1;
        }
        if (next_random() % 4 == 0)
            t.data = (void *)(uintptr_t)(1 + (next_random() >> next_random() % 63) / 2);
        bool want = reachable(&t);
        assert_int_equal(attni_check_input(&t, "q", NULL), want ? ATTN_OK : ATTN_ERR_LIMIT);
        *(want ? &accepted : &refused) += 1;
    }
    assert_number(accepted, >, 10000);
    assert_number(refused, >, 10000);
}

/* Negative strides reach below data, positive ones above: exactly up to the ends of memory. */
static void the_ends_of_memory(void **state)
{
    (void)state;
    attn_tensor t = view(ATTN_F32, FOUR(1, 1, 1, 5), FOUR(0, 0, 0, -1));
    t.data = (void *)(uintptr_t)16;
    expect(t, ATTN_OK);
    t.data = (void *)(uintptr_t)15;
    expect(t, ATTN_ERR_LIMIT);
    t.stride[3] = 1;
    t.data = (void *)(UINTPTR_MAX - 20);
    expect(t, ATTN_OK);
    t.data = (void *)(UINTPTR_MAX - 19);
    expect(t, ATTN_ERR_LIMIT);
}

/* Do two elements share memory? Counted, element by element. */
static bool overlaps(const attn_tensor *t)
{
    static char hit[8192];
    memset(hit, 0, sizeof hit);
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t i = 0; i < t->shape[2]; i++)
                for (int64_t j = 0; j < t->shape[3]; j++) {
                    ptrdiff_t at = attni_at(t, b, h, i, j) - (char *)t->data;
                    if (hit[4096 + at]++)
                        return true;
                }
    return false;
}

/* Whatever overlaps is refused; and what is refused without overlapping is only an interleaving in
 * which some stride does not step over the smaller ones. */
static void outputs_must_not_overlap(void **state)
{
    (void)state;
    int overlapping = 0, clean = 0, strict = 0;
    for (int i = 0; i < 200000; i++) {
        attn_tensor t = view(ATTN_BOOL, FOUR(1, 1, 1, 1), FOUR(0, 0, 0, 0));
        for (int d = 0; d < 4; d++) {
            t.shape[d] = (int64_t)(next_random() % 5);
            t.stride[d] = (int64_t)(next_random() % 121) - 60;
            if (next_random() % 4 == 0)
                t.stride[d] = (int64_t)(next_random() % 3) - 1;
        }
        bool shared = overlaps(&t);
        attn_status status = attni_check_output(&t, "out", NULL);
        assert_int_equal(attni_check_input(&t, "out", NULL), ATTN_OK);
        if (shared)
            assert_int_equal(status, ATTN_ERR_STRIDE);
        overlapping += shared;
        clean += !shared;
        strict += !shared && status != ATTN_OK;
    }
    assert_number(overlapping, >, 20000);
    assert_number(clean, >, 20000);
    assert_number(strict, <, clean / 2);
}

/* Every order of dimensions, direction and gap that a dense array is seen through is accepted. */
static void sane_outputs_are_accepted(void **state)
{
    (void)state;
    for (int i = 0; i < 50000; i++) {
        int order[4] = {0, 1, 2, 3};
        for (size_t d = 3; d > 0; d--) {
            size_t other = next_random() % (d + 1);
            int swap = order[d];
            order[d] = order[other];
            order[other] = swap;
        }
        attn_tensor t = view(ATTN_BOOL, FOUR(1, 1, 1, 1), FOUR(0, 0, 0, 0));
        int64_t step = 1;
        for (int d = 0; d < 4; d++) {
            int64_t size = (int64_t)(next_random() % 5);
            int64_t gap = (int64_t)(next_random() % 3);
            t.shape[order[d]] = size;
            step += gap;
            t.stride[order[d]] = next_random() % 2 ? step : -step;
            if (size == 1 && next_random() % 2)
                t.stride[order[d]] = (int64_t)(next_random() % 9) - 4; /* must not matter */
            step *= size > 0 ? size : 1;
        }
        assert_int_equal(attni_check_output(&t, "out", NULL), ATTN_OK);
        assert_false(overlaps(&t));
    }
}

static void known_overlaps(void **state)
{
    (void)state;
    attn_error err;
    attn_tensor repeated = view(ATTN_F32, FOUR(1, 1, 3, 4), FOUR(0, 0, 0, 1));
    assert_int_equal(attni_check_input(&repeated, "out", &err), ATTN_OK);
    assert_int_equal(attni_check_output(&repeated, "out", &err), ATTN_ERR_STRIDE);
    assert_string_equal(err.argument, "out");
    attn_tensor windows = view(ATTN_F32, FOUR(1, 1, 3, 4), FOUR(0, 0, 3, 1));
    assert_int_equal(attni_check_output(&windows, "out", &err), ATTN_ERR_STRIDE);
    attn_tensor back = view(ATTN_F32, FOUR(1, 1, 2, 4), FOUR(0, 0, -3, 1));
    assert_int_equal(attni_check_output(&back, "out", &err), ATTN_ERR_STRIDE);
    attn_tensor single = view(ATTN_F32, FOUR(1, 1, 1, 4), FOUR(0, 0, 0, 1));
    assert_int_equal(attni_check_output(&single, "out", &err), ATTN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_views_find_every_element),
        cmocka_unit_test(bad_tensors_are_named),
        cmocka_unit_test(an_empty_tensor_needs_nothing),
        cmocka_unit_test(huge_shapes_are_refused),
        cmocka_unit_test(offsets_agree_with_128_bits),
        cmocka_unit_test(the_ends_of_memory),
        cmocka_unit_test(outputs_must_not_overlap),
        cmocka_unit_test(sane_outputs_are_accepted),
        cmocka_unit_test(known_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
