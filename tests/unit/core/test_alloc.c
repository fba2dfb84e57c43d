/* Checked sizes and the scratch layout agree with 128-bit arithmetic.
 *
 * link: -Wl,--wrap=aligned_alloc
 *
 * Also tests what the default allocator requests from the C library. */
#include <stdlib.h>

#include "core/internal.h"
#include "support/test.h"

typedef unsigned __int128 wide;

#define COUNT(x) (sizeof(x) / sizeof *(x))
#define BIT(n) ((size_t)1 << (n))

/* Where sizes have wrapped for others: around 2^31, 2^32, 2^63 and 2^64, and around a line. */
static const size_t edges[] = {
    0,
    1,
    2,
    3,
    63,
    64,
    65,
    BIT(31) - 1,
    BIT(31),
    BIT(31) + 1,
    BIT(32) - 1,
    BIT(32),
    BIT(32) + 1,
    BIT(63) - 1,
    BIT(63),
    BIT(63) + 1,
    SIZE_MAX / 3,
    SIZE_MAX - 127,
    SIZE_MAX - 64,
    SIZE_MAX - 63,
    SIZE_MAX - 1,
    SIZE_MAX,
};

static uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Of any magnitude: all bit lengths are equally likely. */
static size_t random_size(void) { return next_random() >> next_random() % 64; }

static void expect_pair(size_t a, size_t b)
{
    size_t out = 12345;
    wide sum = (wide)a + b, product = (wide)a * b;
    bool fits = attni_size_add(a, b, &out);
    assert_int_equal(fits, sum <= SIZE_MAX);
    assert_int_equal(out, (fits ? (size_t)sum : 12345));

    out = 12345;
    fits = attni_size_mul(a, b, &out);
    assert_int_equal(fits, product <= SIZE_MAX);
    assert_int_equal(out, (fits ? (size_t)product : 12345));
}

static void sums_and_products(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(edges); i++)
        for (size_t j = 0; j < COUNT(edges); j++)
            expect_pair(edges[i], edges[j]);
    for (int i = 0; i < 200000; i++)
        expect_pair(random_size(), random_size());
}

/* What the three steps of a piece come to, in a width in which none of them wraps. */
static wide end_of(wide used, size_t count, size_t size)
{
    return used + ((wide)count * size + ATTNI_ALIGN - 1) / ATTNI_ALIGN * ATTNI_ALIGN;
}

/* True if the end fits; (2^64 - 1) rounded up to lines does not. */
static bool fits(wide used, size_t count, size_t size)
{
    return (wide)count * size + ATTNI_ALIGN - 1 <= SIZE_MAX &&
           end_of(used, count, size) <= SIZE_MAX;
}

static void expect_piece(size_t used, size_t count, size_t size)
{
    attni_layout layout = {.used = used};
    assert_null(attni_layout_take(&layout, count, size));
    assert_int_equal(layout.overflow, !fits(used, count, size));
    assert_int_equal(layout.used, (layout.overflow ? used : (size_t)end_of(used, count, size)));
}

static void pieces_cannot_wrap(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(edges); i++)
        for (size_t j = 0; j < COUNT(edges); j++)
            for (size_t k = 0; k < COUNT(edges); k++)
                expect_piece(edges[i] / ATTNI_ALIGN * ATTNI_ALIGN, edges[j], edges[k]);
    for (int i = 0; i < 100000; i++)
        expect_piece(random_size() / ATTNI_ALIGN * ATTNI_ALIGN, random_size(), random_size());
    for (size_t k = 0; k < 128; k++) /* the rounding up of SIZE_MAX - k */
        expect_piece(0, SIZE_MAX - k, 1);
}

/* Once a piece did not fit, later small ones must not make the layout look good again. */
static void overflow_stays(void **state)
{
    (void)state;
    static _Alignas(ATTNI_ALIGN) char block[4 * ATTNI_ALIGN];
    attni_layout layout = {.base = block};
    assert_ptr_equal(attni_layout_take(&layout, 10, 10), block);
    assert_null(attni_layout_take(&layout, SIZE_MAX / 2, 3));
    assert_true(layout.overflow);
    assert_null(attni_layout_take(&layout, 1, 1));
    assert_true(layout.overflow);
}

/* Sizing and carving agree; pieces are aligned, in order, and share no byte. */
static void carving_is_sizing_with_a_base(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        describe_case("round %d", round);
        size_t count[12], size[12];
        attni_layout sizing = {0};
        for (size_t i = 0; i < COUNT(count); i++) {
            count[i] = next_random() % 200;
            size[i] = next_random() % 17;
            attni_layout_take(&sizing, count[i], size[i]);
        }
        assert_false(sizing.overflow);
        char *block = aligned_alloc(ATTNI_ALIGN, sizing.used + ATTNI_ALIGN);
        assert_non_null(block);
        attni_layout carving = {.base = block};
        char *end = block;
        for (size_t i = 0; i < COUNT(count); i++) {
            char *piece = attni_layout_take(&carving, count[i], size[i]);
            assert_non_null(piece);
            assert_int_equal((uintptr_t)piece % ATTNI_ALIGN, 0);
            assert_true(piece >= end);
            end = piece + count[i] * size[i];
        }
        assert_true(end <= block + sizing.used);
        assert_int_equal(carving.used, sizing.used);
        free(block);
    }
}

/* C wants sizes that are multiples of the alignment: some C libraries refuse others. */
static size_t asked_alignment, asked_size;
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    asked_alignment = alignment;
    asked_size = size;
    return __real_aligned_alloc(alignment, size);
}

static void sizes_are_multiples_of_the_alignment(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 63, 64, 65, 4095, BIT(22), BIT(22) + 1, BIT(23) - 7};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        describe_case("%zu bytes", sizes[i]);
        void *memory = attni_default_allocate(NULL, sizes[i], ATTNI_ALIGN);
        assert_non_null(memory);
        assert_number(asked_alignment, >=, ATTNI_ALIGN);
        assert_int_equal(asked_size % asked_alignment, 0);
        assert_number(asked_size, >=, sizes[i]);
        attni_default_release(NULL, memory, sizes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_products),
        cmocka_unit_test(pieces_cannot_wrap),
        cmocka_unit_test(overflow_stays),
        cmocka_unit_test(carving_is_sizing_with_a_base),
        cmocka_unit_test(sizes_are_multiples_of_the_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
