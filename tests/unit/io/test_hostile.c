/* Known bugs of other readers do not exist here; each is tested under its name, F01 to F18.
 *
 * Elsewhere: F08 and F13 of archives in test_npz.c; F17 and F18 in test_output.c; in test_faults.c
 * the part of F12 that writes more than 4 GiB, and F16 cut at every single read. */
#include "support/io_testing.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "io/io.h"

/* A file that holds `follow` bytes behind a header with that shape. */
static void expect_shape_refused(const char *shape, const char *descr, size_t follow,
                                 const char *part)
{
    for (int fortran = 0; fortran < 2; fortran++) {
        bytes b = npy(descr, fortran, shape, NULL, follow);
        expect_bytes_refused(b, part);
        bytes_free(&b);
    }
}

/* Every boundary value, in every place of shapes of every rank. */
static void test_F01_count_times_size_wraps(void **state)
{
    (void)state;
    static const char *const big[] = {
        "2147483647",           "2147483648",           "2147483649",
        "4294967295",           "4294967296",           "4294967297",
        "9223372036854775806",  "9223372036854775807",  "9223372036854775808",
        "9223372036854775809",  "18446744073709551614", "18446744073709551615",
        "18446744073709551616", "18446744073709551617", "340282366920938463463374607431768211457",
    };
    for (size_t v = 0; v < COUNT(big); v++)
        for (int rank = 1; rank <= KIT_MAX_RANK; rank++)
            for (int place = 0; place < rank; place++)
                for (int other = 0; other < 3; other++) { /* the other sizes are 0, 1 or 3 */
                    char shape[400] = "(";
                    bool zero = false;
                    for (int i = 0; i < rank; i++) {
                        zero |= i != place && other == 0;
                        sprintf(shape + strlen(shape), "%s, ",
                                i == place   ? big[v]
                                : other == 0 ? "0"
                                : other == 1 ? "1"
                                             : "3");
                    }
                    strcat(shape, ")");
                    bytes b = npy("'<f8'", 0, shape, NULL, 8);
                    kit_array a;
                    assert_int_equal(kit_npy_parse(&a, b.data, b.size, "k.npy", NULL),
                                     KIT_BAD_FILE);
                    assert_null(a.data);
                    /* An empty array of such a shape is fine where its strides fit. */
                    const bool fits = strlen(big[v]) < 12 && zero;
                    assert_int_equal(kit_npy_parse(&a, b.data, b.size - 8, "k.npy", NULL),
                                     fits ? KIT_OK : KIT_BAD_FILE);
                    kit_array_free(&a);
                    bytes_free(&b);
                }
}

/* Sizes that are computed agree with 128-bit arithmetic, or are refused: product, element, and the
 * padding to a line of cache that the allocation adds. */
static void test_F02_every_step_of_a_size(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252;
    int accepted = 0, refused = 0;
    for (int i = 0; i < 200000; i++) {
        describe_case("round %d", i);
        int64_t shape[KIT_MAX_RANK];
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        const int rank = (int)(x % (KIT_MAX_RANK + 1));
        const size_t element = (size_t)1 << (x >> 8) % 4;
        unsigned __int128 bytes_in_all = element, span = element;
        for (int d = 0; d < rank; d++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            shape[d] = (int64_t)(x >> 1 >> (x & 63 ? x % 63 : 0));
            if ((x >> 32) % 3 == 0)
                shape[d] %= 5;
            const bool full = span > UINT64_MAX; /* no need to go on, and no wrap in 128 bits */
            bytes_in_all = full ? bytes_in_all : bytes_in_all * (uint64_t)shape[d];
            span = full ? span : span * (uint64_t)(shape[d] ? shape[d] : 1);
        }
        size_t count, size;
        if (io_shape_size(rank, shape, element, &count, &size)) {
            assert_int_equal(size, bytes_in_all);
            assert_int_equal(count * element, size);
            assert_number(span, <=, PTRDIFF_MAX - 64);
            accepted++;
        } else {
            assert_number(span, >, PTRDIFF_MAX - 64);
            refused++;
        }
    }
    assert_in_range(accepted, 10000, 190000);
    assert_in_range(refused, 10000, 190000);

    size_t count, size;
    for (int64_t k = 0; k < 64; k++) { /* the padding is the last step that could wrap */
        const int64_t shape[] = {PTRDIFF_MAX - k};
        kit_array a;
        assert_false(io_shape_size(1, shape, 1, &count, &size));
        assert_int_equal(kit_array_new(&a, ATTN_BOOL, 1, shape, NULL), KIT_LIMIT);
        assert_null(a.data);
    }
    assert_true(io_shape_size(1, (int64_t[]){PTRDIFF_MAX - 64}, 1, &count, &size));
}

static void test_F03_negative_sizes(void **state)
{
    (void)state;
    static const char *const shapes[] = {"(9223372036854775807, 2)",
                                         "(4294967296, 4294967296)",
                                         "(-1, 4)",
                                         "(4, -1)",
                                         "(-4,)",
                                         "(-9223372036854775808,)",
                                         "(-0,)",
                                         "(2, -2, -2)"};
    for (size_t i = 0; i < COUNT(shapes); i++)
        expect_shape_refused(shapes[i], "'<f4'", 16, "");
}

/* The product of sizes wraps to something small that the file does hold. */
static void test_F04_products_that_wrap_to_small(void **state)
{
    (void)state;
    expect_shape_refused("(4194305, 4194305, 211106198978564)", "'|i1'", 4,
                         "more bytes than this machine can address");
    expect_shape_refused("(4194305, 4194305, 211106198978564)", "'<f4'", 16,
                         "more bytes than this machine can address");

    /* a odd, b its inverse modulo 2^64: a b c wraps to c. */
    uint64_t x = 88172645463325252;
    for (int made = 0; made < 10000;) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        const uint64_t a = (x | 1) >> 40 | 1, small = x % 16;
        uint64_t b = a; /* Newton: each step doubles the bits that are right */
        for (int i = 0; i < 6; i++)
            b *= 2 - a * b;
        assert_int_equal(a * b, 1);
        if (b > INT64_MAX || a == 1)
            continue;
        char shape[100];
        snprintf(shape, sizeof shape, "(%" PRIu64 ", %" PRIu64 ", %" PRIu64 ")", a, b, small);
        bytes file = npy("'|u1'", (int)(x >> 63), shape, NULL, small);
        kit_array array;
        assert_int_equal(kit_npy_parse(&array, file.data, file.size, "k.npy", NULL), KIT_BAD_FILE);
        bytes_free(&file);
        made++;
    }
}

/* What a header says is compared with what the file holds. */
static void test_F05_header_against_file_size(void **state)
{
    (void)state;
    static const struct {
        const char *shape;
        size_t follow;
    } cases[] = {{"(5,)", 16},         {"(5,)", 24}, {"(2, 2)", 0}, {"(0,)", 1},
                 {"(1000000000,)", 8}, {"()", 0},    {"(), 8", 0},  {"(0, 5)", 20}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        bytes b = npy("'<f4'", 0, cases[i].shape, NULL, cases[i].follow);
        write_file("k.npy", b);
        expect_refused("k.npy", KIT_BAD_FILE, "k.npy: header", "");
        bytes_free(&b);
    }
}

static void test_F06_unknown_dtypes(void **state)
{
    (void)state;
    static const char *const descrs[] = {"''",     "'f4'",   "'<F4'",     "'<f'",   "'<f3'",
                                         "'<f16'", "'<f12'", "'|f4'",     "'|i2'",  "'=f4'",
                                         "'<i16'", "'<b2'",  "'float32'", "'<f4 '", "' <f4'",
                                         "'<f44'", "'<q8'",  "'b1'",      "'<'",    "'<>f4'",
                                         "'?1'",   "'<c8'",  "'<c16'",    "'<e2'",  "'!f4'",
                                         "'|b8'",  "'x?x'"};
    for (size_t i = 0; i < COUNT(descrs); i++) {
        bytes b = npy(descrs[i], 0, "(1,)", NULL, 4);
        expect_bytes_refused(b, "k.npy: unsupported dtype ");
        bytes_free(&b);
    }
    char *text = malloc(66000);
    assert_non_null(text);
    for (int shorter = 0; shorter < 2; shorter++) { /* a dtype of 64 KiB, within and past the cap */
        strcpy(text, "{'descr': '");
        memset(text + 11, 'f', 65536);
        strcpy(text + 11 + (shorter ? 65400 : 65536), "', 'fortran_order': False, 'shape': (1,)}");
        bytes b = npy_text(2, text, NULL, 4);
        expect_bytes_refused(b, shorter ? "unsupported dtype ffffffff" : "a header of 65588 bytes");
        bytes_free(&b);
    }
    free(text);
}

static void test_F08_duplicate_keys(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'shape': (2,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'fortran_order': False}",
        "{'shape': (1,), 'shape': (1,)",
    };
    for (size_t i = 0; i < COUNT(headers); i++) {
        bytes b = npy_text(1, headers[i], NULL, 4);
        expect_bytes_refused(b, "appears twice");
        bytes_free(&b);
    }
}

/* Object arrays and their like: refused by the header alone. The payload is still in the pipe. */
static void test_F09_objects_are_never_read(void **state)
{
    (void)state;
    static const char *const descrs[] = {"'|O'",
                                         "'O'",
                                         "[('a', '<f4'), ('b', '|O')]",
                                         "('<f4', (2,))",
                                         "'<M8[ns]'",
                                         "'<m8'",
                                         "'|S5'",
                                         "'<U3'",
                                         "'|V4'",
                                         "[]",
                                         "[",
                                         "('|O', 2)"};
    static const char payload[] = "\x80\x04\x95 a pickle that must not run";
    for (size_t i = 0; i < COUNT(descrs); i++) {
        describe_case("%s", descrs[i]);
        bytes b = npy(descrs[i], 0, "(1,)", payload, sizeof payload);
        int ends[2];
        char spec[32], rest[64];
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(write(ends[1], b.data, b.size), b.size);
        close(ends[1]);
        snprintf(spec, sizeof spec, "/dev/fd/%d", ends[0]);
        expect_refused(spec, KIT_BAD_FILE, spec, ": unsupported dtype ");
        assert_int_equal(read(ends[0], rest, sizeof rest), sizeof payload);
        assert_memory_equal(rest, payload, sizeof payload);
        close(ends[0]);
        bytes_free(&b);
    }
}

static long peak_kib(void)
{
    struct rusage use;
    assert_int_equal(getrusage(RUSAGE_SELF, &use), 0);
    return use.ru_maxrss;
}

/* 12 bytes that announce a header of 4 GiB; then the same in a file that is as large as it says, in
 * a pipe, and elements that are announced and never come. */
static void test_F10_announced_sizes_are_not_allocated(void **state)
{
    (void)state;
    const long before = peak_kib();
    for (int major = 2; major <= 3; major++) {
        bytes b = {0};
        put(&b, "\x93NUMPY", 6);
        put_number(&b, (uint64_t)major, 2);
        put_number(&b, 0xFFFFFFFF, 4);
        expect_bytes_refused(b, "a header of 4294967295 bytes");
        write_file("k.npy", b);
        expect_refused("k.npy", KIT_BAD_FILE, "k.npy: ", "a header of 4294967295 bytes");
        assert_int_equal(truncate("k.npy", INT64_C(5) << 30), 0);
        expect_refused("k.npy", KIT_BAD_FILE, "k.npy: ", "a header of 4294967295 bytes");
        bytes_free(&b);
    }
    bytes b = npy("'<f8'", 0, "(1000000000,)", NULL, 8);
    write_file("k.npy", b);
    expect_refused("k.npy", KIT_BAD_FILE, "k.npy: ", "= 8000000000 bytes, but 8 follow");
    bytes_free(&b);
    int ends[2];
    char spec[32];
    b = npy("'<f8'", 0, "(8000000,)", NULL, 8); /* reserved, but never touched */
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], b.data, b.size), b.size);
    close(ends[1]);
    snprintf(spec, sizeof spec, "/dev/fd/%d", ends[0]);
    expect_refused(spec, KIT_BAD_FILE, spec, "= 64000000 bytes, but 8 follow");
    close(ends[0]);
    bytes_free(&b);
    assert_in_range(peak_kib() - before, 0, 16 * 1024);
    remove_all_here();
}

/* The header's length reaches past the end; a length that is too short cuts it. */
static void test_F11_header_length_against_file(void **state)
{
    (void)state;
    bytes good = npy("'<f4'", 0, "(1,)", NULL, 4);
    const size_t length = good.size - 10 - 4;
    for (size_t said = 0; said <= 0xFFFF; said++) {
        if (said == length)
            continue;
        good.data[8] = (unsigned char)(said & 0xFF);
        good.data[9] = (unsigned char)(said >> 8);
        kit_array a;
        assert_int_equal(kit_npy_parse(&a, good.data, good.size, "k.npy", NULL), KIT_BAD_FILE);
        assert_null(a.data);
    }
    bytes_free(&good);
}

static void test_F12_long_headers_and_large_sizes(void **state)
{
    (void)state;
    /* The longest header that version 1.0 can say, of spaces, and the longest that is read. */
    for (size_t length = 65535; length <= 65537; length++) {
        char *header = malloc(length + 1);
        assert_non_null(header);
        const char text[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        memset(header, ' ', length);
        memcpy(header, text, sizeof text - 1);
        header[length - 1] = '\n';
        header[length] = 0;
        bytes b = npy_text(length > 65535 ? 2 : 1, header, NULL, 8);
        kit_array a;
        assert_int_equal(kit_npy_parse(&a, b.data, b.size, "k.npy", NULL),
                         length > 65536 ? KIT_BAD_FILE : KIT_OK);
        kit_array_free(&a);
        bytes_free(&b);
        free(header);
    }
    /* Sizes past 2^31 and 2^32, in sparse files that really are that large. */
    static const struct {
        const char *shape;
        int rank;
        int64_t first, bytes;
    } cases[] = {{"(2147483649,)", 1, INT64_C(2147483649), INT64_C(2147483649)},
                 {"(4294967297, 1)", 2, INT64_C(4294967297), INT64_C(4294967297)},
                 {"(6442450944,)", 1, INT64_C(6442450944), INT64_C(6442450944)}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        bytes b = npy("'|i1'", 0, cases[i].shape, NULL, 0);
        write_file("k.npy", b);
        if (truncate("k.npy", (off_t)b.size + cases[i].bytes) == 0) {
            kit_entry *entries;
            size_t count;
            kit_error err = {0};
            if (kit_read_list(&entries, &count, "k.npy", &err))
                fail_msg("%s", err.message);
            assert_int_equal(entries[0].rank, cases[i].rank);
            assert_int_equal(entries[0].shape[0], cases[i].first);
            free(entries);
            assert_int_equal(truncate("k.npy", (off_t)b.size + cases[i].bytes - 1), 0);
            expect_refused("k.npy", KIT_BAD_FILE, "k.npy: header says shape ", " follow");
        } else {
            assert_int_equal(errno, EFBIG); /* a file system that has no such files */
        }
        bytes_free(&b);
    }
    remove_all_here();
}

/* Cuts the file a moment after each byte that arrives, at 1,000 different moments and places. */
static void cut_when_told(int orders, int done, off_t size)
{
    char order;
    for (uint32_t x = 1; read(orders, &order, 1) == 1;) {
        x = x * 1664525 + 1013904223;
        for (volatile uint32_t wait = x >> 17; wait; wait--)
            ;
        if (truncate("k.npy", (off_t)(x % (uint32_t)size)) != 0 || write(done, "x", 1) != 1)
            _exit(1);
    }
    _exit(0);
}

/* Whatever a reader sees of a file that shrinks is the array or an error, never a signal. */
static void test_F16_truncated_while_it_is_read(void **state)
{
    (void)state;
    enum { N = 100000 };
    bytes b = npy("'<u2'", 0, "(100000,)", NULL, 2 * N);
    memset(b.data + b.size - 2 * N, 1, 2 * N);
    write_file("k.npy", b);
    int orders[2], done[2];
    char cut;
    assert_int_equal(pipe(orders), 0);
    assert_int_equal(pipe(done), 0);
    const pid_t child = fork();
    assert_number(child, >=, 0);
    if (child == 0) {
        close(orders[1]);
        cut_when_told(orders[0], done[1], (off_t)b.size);
    }
    close(orders[0]);
    close(done[1]);
    for (int i = 0; i < 1000; i++) {
        describe_case("round %d", i);
        kit_array a;
        kit_error err = {0};
        const int fd = open("k.npy", O_WRONLY); /* whole again */
        assert_int_equal(write(fd, b.data, b.size), b.size);
        assert_int_equal(close(fd), 0);
        assert_int_equal(write(orders[1], "x", 1), 1);
        const int code = kit_read_array(&a, "k.npy", &err);
        if (code == KIT_OK) {
            for (int64_t k = 0; k < N; k++)
                assert_number(kit_array_get(&a, k), ==, 0x0101);
        } else {
            assert_int_equal(code, KIT_BAD_FILE);
            assert_memory_equal(err.message, "k.npy: ", 7);
        }
        kit_array_free(&a);
        assert_int_equal(read(done[0], &cut, 1), 1);
    }
    close(orders[1]);
    close(done[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    bytes_free(&b);
    remove_all_here();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_F01_count_times_size_wraps),
        cmocka_unit_test(test_F02_every_step_of_a_size),
        cmocka_unit_test(test_F03_negative_sizes),
        cmocka_unit_test(test_F04_products_that_wrap_to_small),
        cmocka_unit_test(test_F05_header_against_file_size),
        cmocka_unit_test(test_F06_unknown_dtypes),
        cmocka_unit_test(test_F08_duplicate_keys),
        cmocka_unit_test(test_F09_objects_are_never_read),
        cmocka_unit_test(test_F10_announced_sizes_are_not_allocated),
        cmocka_unit_test(test_F11_header_length_against_file),
        cmocka_unit_test(test_F12_long_headers_and_large_sizes),
        cmocka_unit_test(test_F16_truncated_while_it_is_read),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
