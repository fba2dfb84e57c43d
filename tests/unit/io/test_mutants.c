/* Damaged files are an error or an array, never a crash.
 *
 * Tests every prefix of good files, every flipped bit of their headers, and 200,000 mutants of a
 * fixed seed. Every array that is read from one is written and read back to the same bits. */
#define _GNU_SOURCE
#include "support/io_testing.h"

#include <sys/mman.h>
#include <zip.h>

#include "io/io.h"

enum { NPY_MUTANTS = 150000, NPZ_MUTANTS = 50000 };

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) % below);
}

/* ----------------------------------------------------------------------------------- Seeds */

#define SEEDS 12
static bytes npy_seeds[SEEDS], npz_seeds[SEEDS];
static size_t header_size[SEEDS]; /* of npy_seeds */

static int make_npy_seeds(void)
{
    static const struct {
        int major;
        const char *descr, *order, *shape;
        size_t size;
    } seeds[SEEDS] = {
        {1, "<f4", "False", "(3, 4)", 48},   {1, "<f8", "False", "(5,)", 40},
        {1, ">f2", "True", "(2, 3, 2)", 24}, {1, "|b1", "False", "(7,)", 7},
        {1, "|i1", "True", "(2, 2)", 4},     {1, "<i2", "False", "()", 2},
        {2, ">u4", "False", "(3,)", 12},     {2, "<u8", "True", "(2, 1)", 16},
        {3, "<i8", "False", "(0, 4)", 0},    {3, "|u1", "False", "(1, 1, 1, 1, 1, 1, 1, 3)", 3},
        {1, ">i4", "False", "(4, 1)", 16},   {1, "<f4", "True", "(11, 9)", 396},
    };
    for (int i = 0; i < SEEDS; i++) {
        char header[200];
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }   \n",
                 seeds[i].descr, seeds[i].order, seeds[i].shape);
        npy_seeds[i] = npy_text(seeds[i].major, header, NULL, seeds[i].size);
        header_size[i] = npy_seeds[i].size - seeds[i].size;
        for (size_t k = header_size[i]; k < npy_seeds[i].size; k++)
            npy_seeds[i].data[k] = (unsigned char)(seeds[i].descr[1] == 'b' ? k & 1 : k * 37 % 128);
    }
    return 0;
}

/* Compressed by libzip, into memory. */
static bytes deflated(bytes array)
{
    zip_error_t e;
    zip_error_init(&e);
    zip_source_t *to = zip_source_buffer_create(NULL, 0, 0, &e);
    assert_non_null(to);
    zip_source_keep(to);
    zip_t *z = zip_open_from_source(to, ZIP_TRUNCATE, &e);
    assert_non_null(z);
    zip_source_t *from = zip_source_buffer(z, array.data, array.size, 0);
    assert_int_equal(zip_file_add(z, "q.npy", from, 0), 0);
    assert_int_equal(zip_set_file_compression(z, 0, ZIP_CM_DEFLATE, 9), 0);
    assert_int_equal(zip_close(z), 0);
    bytes b = {0};
    char block[512];
    assert_int_equal(zip_source_open(to), 0);
    for (zip_int64_t n; (n = zip_source_read(to, block, sizeof block)) > 0;)
        put(&b, block, (size_t)n);
    zip_source_close(to);
    zip_source_free(to);
    return b;
}

static int make_seeds(void **state)
{
    (void)state;
    make_npy_seeds();
    for (int i = 0; i < SEEDS; i++) {
        const member one = {.name = "q.npy", .data = npy_seeds[i], .zip64 = i % 2};
        const member two = {.name = "k", .data = npy_seeds[(i + 1) % SEEDS], .zip64 = i % 2};
        npz_seeds[i] =
            i % 3 == 0 ? deflated(npy_seeds[i]) : zip((member[]){one, two}, i % 3 == 2 ? 2 : 1);
    }
    return 0;
}

static int free_seeds(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS; i++) {
        bytes_free(&npy_seeds[i]);
        bytes_free(&npz_seeds[i]);
    }
    return 0;
}

/* -------------------------------------------------------------------------------- Mutation */

static const struct {
    const char *text;
    size_t size;
} words[] = {
#define WORD(s)                                                                                    \
    {                                                                                              \
        s, sizeof s - 1                                                                            \
    }
    WORD("'<f8'"),
    WORD("'>i2'"),
    WORD("'|O'"),
    WORD("-1"),
    WORD("0"),
    WORD("4294967297"),
    WORD("9223372036854775807"),
    WORD("True"),
    WORD("(), "),
    WORD(","),
    WORD("'shape': (1,), "),
    WORD("'descr'"),
    WORD("[("),
    WORD("}"),
    WORD("\n"),
    WORD("\0\0"),
    WORD("\xFF\xFF\xFF\xFF"),
    WORD("\x93NUMPY\2\0"),
    WORD("PK\1\2"),
    WORD("PK\3\4"),
    WORD("PK\5\6"),
    WORD("PK\6\6"),
    WORD("\1\0\x10\0"),
};

/* Replaces `old` bytes at `at` by others. */
static void replace(bytes *b, size_t at, size_t old, const void *with, size_t size)
{
    bytes out = {0};
    put(&out, b->data, at);
    put(&out, with, size);
    put(&out, b->data + at + old, b->size - at - old);
    bytes_free(b);
    *b = out;
}

static void mutate(bytes *b, const bytes *other)
{
    const size_t at = draw((uint32_t)b->size + 1), rest = b->size - at;
    const size_t few = rest ? draw(rest < 16 ? (uint32_t)rest + 1 : 17) : 0;
    const uint32_t word = draw(COUNT(words));
    switch (draw(7)) {
    case 0: replace(b, at, few, NULL, 0); break;
    case 1: replace(b, at, 0, b->data + at, few); break;
    case 2: replace(b, at, draw(2) ? few : 0, words[word].text, words[word].size); break;
    case 3: {
        const size_t from = draw((uint32_t)other->size), n = draw((uint32_t)(other->size - from));
        replace(b, at, n < rest ? n : rest, other->data + from, n);
        break;
    }
    case 4:
        if (rest)
            b->data[at] = (unsigned char)draw(256);
        break;
    case 5: /* a number up or down by one, in text or not */
        if (rest)
            b->data[at] = (unsigned char)(b->data[at] + (draw(2) ? 1 : 255));
        break;
    default:
        if (rest)
            b->data[at] ^= (unsigned char)(1 << draw(8));
    }
}

static bytes mutant_of(const bytes *seeds)
{
    const bytes *seed = &seeds[draw(SEEDS)];
    bytes b = {0};
    put(&b, seed->data, seed->size);
    for (uint32_t n = 1 + draw(draw(4) ? 2 : 6); n > 0; n--)
        mutate(&b, &seeds[draw(SEEDS)]);
    return b;
}

/* --------------------------------------------------------------------------------- Checking */

static int memory_file = -1;

/* An array that was accepted makes sense, and survives being written. */
static void expect_sound(kit_array *a)
{
    int64_t count = 1;
    assert_in_range(a->rank, 0, KIT_MAX_RANK);
    for (int i = 0; i < a->rank; i++) {
        assert_number(a->shape[i], >=, 0);
        count *= a->shape[i];
    }
    assert_non_null(a->data);
    assert_int_equal(a->bytes, (size_t)count * attn_dtype_size(a->dtype));
    for (int64_t i = 0; i < count; i++) {
        const double x = kit_array_get(a, i);
        if (a->dtype == ATTN_BOOL && x != 0)
            assert_number(x, ==, 1);
    }
    char name[32];
    snprintf(name, sizeof name, "/dev/fd/%d", memory_file);
    assert_int_equal(ftruncate(memory_file, 0), 0);
    assert_int_equal(lseek(memory_file, 0, SEEK_SET), 0);
    kit_output *out;
    assert_int_equal(kit_output_open(&out, name, NULL), KIT_OK);
    assert_int_equal(kit_npy_write(out, a, NULL), KIT_OK);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);

    static unsigned char text[1 << 20];
    kit_array back;
    const ssize_t size = pread(memory_file, text, sizeof text, 0);
    assert_in_range(size, 128, sizeof text - 1);
    assert_int_equal(kit_npy_parse(&back, text, (size_t)size, "back", NULL), KIT_OK);
    assert_int_equal(back.dtype, a->dtype);
    assert_int_equal(back.rank, a->rank);
    assert_memory_equal(back.shape, a->shape, sizeof a->shape);
    assert_int_equal(back.bytes, a->bytes);
    assert_memory_equal(back.data, a->data, a->bytes);
    kit_array_free(&back);
}

/* 1 if it was accepted. A copy of just its size, so that a sanitizer sees a read past its end. */
static int try_file(const unsigned char *data, size_t size, bool npz)
{
    unsigned char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    kit_array a;
    kit_error err = {0};
    memset(&a, 0, sizeof a);
    io_source s = io_source_memory("mutant", copy, size);
    const int code = npz ? io_npz_load(&a, &s, size % 2 ? "q" : NULL, &err)
                         : kit_npy_parse(&a, copy, size, "mutant", &err);
    if (code == KIT_OK) {
        expect_sound(&a);
    } else {
        assert_null(a.data);
        if (code != KIT_LIMIT)
            assert_int_equal(code, KIT_BAD_FILE);
        assert_int_equal(err.code, code);
        assert_memory_equal(err.message, "mutant", 6);
        assert_null(strpbrk(err.message, "\n\r\x1B"));
    }
    kit_array_free(&a);
    if (npz) {
        kit_entry *entries;
        size_t count;
        s.at = 0;
        if (io_npz_list(&entries, &count, &s, NULL, NULL) == KIT_OK)
            free(entries);
    }
    free(copy);
    return code == KIT_OK;
}

static void test_every_prefix(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS; i++)
        for (int npz = 0; npz < 2; npz++) {
            const bytes *seed = npz ? &npz_seeds[i] : &npy_seeds[i];
            for (size_t size = 0; size < seed->size; size++)
                if (try_file(seed->data, size, npz))
                    fail_msg("seed %d, %zu bytes of %zu", i, size, seed->size);
        }
}

/* A flipped bit may give another good file, but most are errors. */
static void test_every_flipped_bit(void **state)
{
    (void)state;
    size_t tried = 0, accepted = 0;
    for (int i = 0; i < SEEDS; i++)
        for (int npz = 0; npz < 2; npz++) {
            const bytes *seed = npz ? &npz_seeds[i] : &npy_seeds[i];
            const size_t size = npz ? seed->size : header_size[i];
            for (size_t bit = 0; bit < 8 * size; bit++, tried++) {
                seed->data[bit / 8] ^= (unsigned char)(1 << bit % 8);
                accepted += (size_t)try_file(seed->data, seed->size, npz);
                seed->data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            }
        }
    print_message("%zu flipped bits, %zu accepted\n", tried, accepted);
    assert_in_range(accepted, 1, tried / 2);
}

static void test_mutants(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS; i++) /* the seeds themselves are good */
        assert_true(try_file(npy_seeds[i].data, npy_seeds[i].size, false));
    int accepted[2] = {0};
    for (int i = 0; i < NPY_MUTANTS + NPZ_MUTANTS; i++) {
        describe_case("mutant %d", i);
        const bool npz = i >= NPY_MUTANTS;
        bytes b = mutant_of(npz ? npz_seeds : npy_seeds);
        accepted[npz] += try_file(b.data, b.size, npz);
        bytes_free(&b);
    }
    print_message("%d mutants of .npy, %d accepted; %d of .npz, %d accepted\n", NPY_MUTANTS,
                  accepted[0], NPZ_MUTANTS, accepted[1]);
    assert_in_range(accepted[0], 1000, NPY_MUTANTS / 2);
    assert_in_range(accepted[1], 100, NPZ_MUTANTS / 2);
}

int main(void)
{
    memory_file = memfd_create("back", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_every_flipped_bit),
        cmocka_unit_test(test_mutants),
    };
    return memory_file < 0 || cmocka_run_group_tests(tests, make_seeds, free_seeds);
}
