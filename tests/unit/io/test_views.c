/* Rows of a file as its own pages, or as a copy: the same rows. And a file that becomes shorter.
 *
 * link: -Wl,--wrap=mmap
 */
#include "support/io_testing.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Calls of mmap since maps was set to 0; call number `failing` fails. A long of 4 bytes makes the
 * library call mmap64, which is not seen here. */
enum { SEEN = sizeof(long) == 8 };
static int maps, failing;

void *__real_mmap(void *at, size_t size, int access, int flags, int fd, off_t from);
void *__wrap_mmap(void *at, size_t size, int access, int flags, int fd, off_t from)
{
    return ++maps == failing ? MAP_FAILED : __real_mmap(at, size, access, flags, fd, from);
}

static kit_rows *rows;
static kit_view view;

static float element(int64_t i) { return (float)(i % 65521) - 30000; }

/* Writes [matrices, S, columns] and opens the file. */
static void open_file(int64_t matrices, int64_t S, int64_t columns, bool swapped)
{
    char shape[64];
    const size_t count = (size_t)(matrices * S * columns);
    unsigned char *data = malloc(4 * count);
    assert_non_null(data);
    for (size_t i = 0; i < count; i++) {
        const float x = element((int64_t)i);
        unsigned char *at = data + 4 * i;
        memcpy(at, &x, 4);
        const unsigned char reverse[4] = {at[3], at[2], at[1], at[0]};
        if (swapped)
            memcpy(at, reverse, 4);
    }
    const bool big_endian = (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) != swapped;
    snprintf(shape, sizeof shape, "(%" PRId64 ", %" PRId64 ", %" PRId64 ")", matrices, S, columns);
    bytes b = numpy_file(big_endian ? ">f4" : "<f4", shape, data, 4 * count);
    write_file("k.npy", b);
    bytes_free(&b);
    free(data);
    assert_int_equal(kit_rows_open(&rows, "k.npy", NULL), KIT_OK);
}

static void open_view(attn_dtype dtype, int64_t most)
{
    assert_int_equal(kit_view_open(&view, rows, dtype, most, NULL), KIT_OK);
}

static void close_all(void)
{
    kit_view_close(&view);
    kit_view_close(&view); /* a zeroed one */
    kit_rows_close(rows);
    assert_int_equal(remove("k.npy"), 0);
}

static void expect_rows(int64_t first, int64_t n)
{
    const kit_array *a = kit_rows_array(rows);
    const int64_t S = a->shape[1], columns = a->shape[2];
    assert_int_equal(kit_view_read(&view, first, n, NULL), KIT_OK);
    for (int64_t m = 0; m < a->shape[0]; m++)
        for (int64_t i = 0; i < n * columns; i++) {
            const int64_t at = m * view.stride + i, in_file = (m * S + first) * columns + i;
            const float got = ((const float *)view.data)[at];
            if (got != element(in_file))
                fail_msg("matrix %d, element %d is %g, want %g", (int)m, (int)i, (double)got,
                         (double)element(in_file));
        }
    assert_int_equal(kit_view_check(&view, NULL), KIT_OK);
}

/* Sizes of matrices that are and are not multiples of a page, parts of any place and length. */
static void test_pages(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},    {3, 1000, 7},  {5, 1024, 16},
                                        {4, 777, 33}, {2, 70000, 3}, {300, 5, 1}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const int64_t S = shapes[i][1], most = S < 600 ? S : 600;
        open_file(shapes[i][0], S, shapes[i][2], false);
        assert_true(kit_rows_mappable(rows, ATTN_F32));
        maps = 0;
        open_view(ATTN_F32, most);
        for (int64_t first = 0; first < S; first += 1 + S / 9) {
            describe_case("[%d,%d,%d], from row %d", (int)shapes[i][0], (int)S, (int)shapes[i][2],
                          (int)first);
            expect_rows(first, S - first < most ? S - first : most);
            expect_rows(first, 1);
        }
        assert_true(!SEEN || maps > shapes[i][0]);
        close_all();
    }
}

static void test_copies(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        describe_case("%s", (const char *[]){"byte order", "dtype", "many matrices"}[kind]);
        open_file(kind == 2 ? 5000 : 3, 50, 3, kind == 0);
        assert_int_equal(kit_rows_mappable(rows, ATTN_F32), kind != 0);
        assert_false(kit_rows_mappable(rows, ATTN_BF16));
        maps = 0;
        open_view(kind == 1 ? ATTN_BF16 : ATTN_F32, 40);
        if (kind == 1) {
            assert_int_equal(kit_view_read(&view, 10, 20, NULL), KIT_OK);
            assert_int_equal(view.stride, 60);
            for (int i = 0; i < 60; i++) {
                const uint32_t bits = (uint32_t)((const uint16_t *)view.data)[60 + i] << 16;
                float x;
                memcpy(&x, &bits, 4);
                const float want = element(50 * 3 + 30 + i);
                assert_true(fabsf(x - want) <= fabsf(want) / 256);
            }
        } else {
            expect_rows(0, 40);
            expect_rows(40, 10);
            expect_rows(3, 5);
        }
        assert_int_equal(maps, 0);
        close_all();
    }
}

/* Whichever mapping the system refuses, the rows are copied from then on. */
static void test_failed_maps(void **state)
{
    (void)state;
    for (failing = 1; failing <= 9 && SEEN; failing++) {
        describe_case("call %d of mmap fails", failing);
        open_file(4, 3000, 5, false);
        maps = 0;
        open_view(ATTN_F32, 900);
        expect_rows(0, 900);
        expect_rows(900, 900);
        expect_rows(2500, 500);
        assert_true(maps >= failing);
        close_all();
    }
    failing = 0;
}

/* The whole program would end at the first access if the signal were not handled. */
static void test_shorter_files(void **state)
{
    (void)state;
    const off_t whole = 128 + 4L * 2 * 9000 * 4;
    const off_t sizes[] = {0, 128, 100000, 4096 * 40, 128 + 4L * 9000 * 4, whole - 5000, whole - 1};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        describe_case("%ld bytes of %ld", (long)sizes[i], (long)whole);
        kit_error err = {0};
        double sum = 0;
        open_file(2, 9000, 4, false);
        open_view(ATTN_F32, 9000);
        expect_rows(0, 9000);
        assert_int_equal(truncate("k.npy", sizes[i]), 0);
        for (int64_t m = 0; m < 2; m++)
            for (int64_t j = 0; j < 9000 * 4; j++)
                sum += ((const float *)view.data)[m * view.stride + j];
        assert_true(isfinite(sum));
        assert_int_equal(kit_view_check(&view, &err), KIT_BAD_FILE);
        assert_string_equal(err.message, "k.npy: has become shorter while it was read");
        close_all();
    }
}

/* Reads a page of its own map beyond the end of the file, while a view is open or after it. */
static void read_beyond_the_end(bool with_view)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGBUS, SIG_DFL);
    open_view(ATTN_F32, 10);
    expect_rows(0, 10);
    if (!with_view)
        kit_view_close(&view);
    const int fd = open("k.npy", O_RDONLY);
    const volatile unsigned char *at = mmap(NULL, 4 * page, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        (void)at[3 * page];
    _exit(0);
}

static void test_other_maps(void **state)
{
    (void)state;
    for (int with_view = 0; with_view < 2; with_view++) {
        int status;
        open_file(2, 10, 4, false);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            read_beyond_the_end(with_view);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
        close_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),       cmocka_unit_test(test_copies),
        cmocka_unit_test(test_failed_maps), cmocka_unit_test(test_shorter_files),
        cmocka_unit_test(test_other_maps),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
