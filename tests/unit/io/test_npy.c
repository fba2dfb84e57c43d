/* The .npy reader and writer handle every type, order, version and kind of file.
 *
 * Tests every element type, order and version that is accepted, every branch that refuses, and
 * every kind of file that bytes can come from. */
#include "support/io_testing.h"

#include <math.h>
#include <sys/wait.h>

/* ---------------------------------------------------------------------- What is accepted */

/* Element types, with the bytes of some values written out by hand, lowest byte first. */
static const struct type {
    char kind;
    int size;
    attn_dtype dtype;
    struct {
        uint64_t bits;
        double value;
    } sample[3];
} types[] = {
    {'f', 8, ATTN_F64, {{0x3FF8000000000000, 1.5}, {0x8000000000000000, -0.0}, {0x1, 0x1p-1074}}},
    {'f', 4, ATTN_F32, {{0x3FC00000, 1.5}, {0xFF800000, -INFINITY}, {0x1, 0x1p-149}}},
    {'f', 2, ATTN_F16, {{0x3E00, 1.5}, {0xFBFF, -65504}, {0x1, 0x1p-24}}},
    {'b', 1, ATTN_BOOL, {{0, 0}, {1, 1}, {1, 1}}},
    {'i', 1, ATTN_I64, {{0x7F, 127}, {0x80, -128}, {0xFF, -1}}},
    {'i', 2, ATTN_I64, {{0x1234, 4660}, {0x8000, -32768}, {0xFFFE, -2}}},
    {'i', 4, ATTN_I64, {{0x12345678, 305419896}, {0x80000000, -2147483648.0}, {1, 1}}},
    {'i', 8, ATTN_I64, {{0x20000000000000, 0x1p53}, {0x8000000000000000, -0x1p63}, {7, 7}}},
    {'u', 1, ATTN_I64, {{0x80, 128}, {0xFF, 255}, {0, 0}}},
    {'u', 2, ATTN_I64, {{0x8001, 32769}, {0xFFFF, 65535}, {3, 3}}},
    {'u', 4, ATTN_I64, {{0x80000000, 2147483648.0}, {0xFFFFFFFF, 4294967295.0}, {4, 4}}},
    {'u', 8, ATTN_I64, {{0x4000000000000000, 0x1p62}, {0, 0}, {0x0102030405, 4328719365}}},
};

static void put_big(bytes *b, uint64_t x, int size)
{
    while (size-- > 0)
        put_number(b, x >> (8 * size), 1);
}

static void test_every_type_order_and_version(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++)
        for (int big = 0; big < 2; big++)
            for (int major = 1; major <= 3; major++) {
                char header[128];
                snprintf(header, sizeof header,
                         "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (3,), }\n",
                         types[t].size == 1 && big ? '|' : "<>"[big], types[t].kind, types[t].size);
                bytes payload = {0};
                for (int i = 0; i < 3; i++)
                    if (big)
                        put_big(&payload, types[t].sample[i].bits, types[t].size);
                    else
                        put_number(&payload, types[t].sample[i].bits, (size_t)types[t].size);
                bytes b = npy_text(major, header, payload.data, payload.size);
                kit_array a;
                kit_error err = {0};
                if (kit_npy_parse(&a, b.data, b.size, "k.npy", &err))
                    fail_msg("%s: %s", header, err.message);
                assert_int_equal(a.dtype, types[t].dtype);
                assert_int_equal(a.rank, 1);
                assert_int_equal(a.shape[0], 3);
                assert_int_equal((uintptr_t)a.data % 64, 0);
                assert_int_equal(a.bytes, 3 * attn_dtype_size(a.dtype));
                for (int i = 0; i < 3; i++) {
                    const double want = types[t].sample[i].value, got = kit_array_get(&a, i);
                    if (memcmp(&want, &got, sizeof want) != 0)
                        fail_msg("%s: element %d is %g, want %g", header, i, got, want);
                }
                kit_array_free(&a);
                assert_null(a.data);
                bytes_free(&payload);
                bytes_free(&b);
            }
}

/* Value of element [i, j, k] is 100 i + 10 j + k, wherever it lies in the file. More elements than
 * are read at once. */
static void test_fortran_order(void **state)
{
    (void)state;
    enum { I = 25, J = 9, K = 31 };
    bytes payload = {0};
    for (int k = 0; k < K; k++)
        for (int j = 0; j < J; j++)
            for (int i = 0; i < I; i++)
                put_big(&payload, (uint64_t)(100 * i + 10 * j + k), 2);
    bytes b = npy("'>i2'", 1, "(25, 9, 31)", payload.data, payload.size);
    kit_array a;
    assert_int_equal(kit_npy_parse(&a, b.data, b.size, "k.npy", NULL), KIT_OK);
    assert_int_equal(kit_array_count(&a), I * J * K);
    for (int i = 0, e = 0; i < I; i++)
        for (int j = 0; j < J; j++)
            for (int k = 0; k < K; k++, e++)
                assert_number(kit_array_get(&a, e), ==, 100 * i + 10 * j + k);
    kit_array_free(&a), bytes_free(&payload), bytes_free(&b);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rank;
        size_t count;
        int64_t shape[KIT_MAX_RANK];
    } cases[] = {
        {"()", 0, 1, {0}},
        {"(0,)", 1, 0, {0}},
        {"( 3 , )", 1, 3, {3}},
        {"(2, 0, 4)", 3, 0, {2, 0, 4}},
        {"(2,3,)", 2, 6, {2, 3}},
        {"(1, 2, 1, 2, 1, 2, 1, 2)", 8, 16, {1, 2, 1, 2, 1, 2, 1, 2}},
        {"(0, 4294967296)", 2, 0, {0, INT64_C(4294967296)}},
    };
    for (size_t c = 0; c < COUNT(cases); c++)
        for (int fortran = 0; fortran < 2; fortran++) {
            bytes b = npy("'<f4'", fortran, cases[c].text, NULL, 4 * cases[c].count);
            kit_array a;
            kit_error err = {0};
            if (kit_npy_parse(&a, b.data, b.size, "k.npy", &err))
                fail_msg("%s: %s", cases[c].text, err.message);
            assert_int_equal(a.rank, cases[c].rank);
            assert_non_null(a.data);
            assert_int_equal(a.bytes, 4 * cases[c].count);
            assert_int_equal(kit_array_count(&a), cases[c].count);
            for (int i = 0; i < a.rank; i++)
                assert_int_equal(a.shape[i], cases[c].shape[i]);
            kit_array_free(&a);
            bytes_free(&b);
        }
}

static void test_headers_accepted(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1)}",
        "{'descr':'<f4','fortran_order':False,'shape':(2,1),}\n",
        "  { \"shape\" : ( 2 , 1 ) , \"fortran_order\" : True , \"descr\" : \"<f4\" , }   \n",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        bytes b = npy_text(1, texts[i], NULL, 8);
        kit_array a;
        kit_error err = {0};
        if (kit_npy_parse(&a, b.data, b.size, "k.npy", &err))
            fail_msg("%s: %s", texts[i], err.message);
        kit_array_free(&a);
        bytes_free(&b);
    }
    bytes b = npy("'?'", 0, "(2,)", "\1\0", 2);
    kit_array a;
    assert_int_equal(kit_npy_parse(&a, b.data, b.size, "k.npy", NULL), KIT_OK);
    assert_int_equal(a.dtype, ATTN_BOOL);
    assert_number(kit_array_get(&a, 0), ==, 1);
    assert_number(kit_array_get(&a, 1), ==, 0);
    kit_array_free(&a), bytes_free(&b);
}

/* ----------------------------------------------------------------------- What is refused */

static void test_headers_refused(void **state)
{
    (void)state;
#define DESCR "'descr': '<f4', "
#define ORDER "'fortran_order': False, "
#define SHAPE "'shape': (2,), "
    static const struct {
        const char *header, *part;
    } cases[] = {
        {"", "expected '{'"},
        {"   ", "expected '{'"},
        {"[]", "byte 0: expected '{'"},
        {"{", "expected a key in quotes"},
        {"{}", "'descr' is missing"},
        {"{" DESCR ORDER "}", "'shape' is missing"},
        {"{" ORDER SHAPE "}", "'descr' is missing"},
        {"{" DESCR SHAPE "}", "'fortran_order' is missing"},
        {"{" DESCR ORDER SHAPE, "expected a key in quotes"},
        {"{" DESCR ORDER "'shape': (2,)", "expected ',' or '}'"},
        {"{" DESCR ORDER SHAPE "} x", "expected the end"},
        {"{" DESCR ORDER SHAPE "}\n\n", "expected the end"},
        {"{" DESCR ORDER SHAPE "}}", "expected the end"},
        {"{" DESCR ORDER SHAPE "'more': 1}", "unknown key 'more'"},
        {"{'': 1, " DESCR ORDER SHAPE "}", "unknown key ''"},
        {"{'descrx': '<f4', " ORDER SHAPE "}", "unknown key 'descrx'"},
        {"{descr: '<f4'}", "expected a key in quotes"},
        {"{'descr", "expected a key in quotes"},
        {"{'de\\163cr': '<f4'}", "expected a key in quotes"},
        {"{'de\tscr': '<f4'}", "expected a key in quotes"},
        {"{'de\x80scr': '<f4'}", "expected a key in quotes"},
        {"{'descr\": '<f4'}", "unknown key 'descr\": '"},
        {"{'descr' '<f4'}", "expected ':'"},
        {"{'descr': <f4}", "expected a dtype"},
        {"{'descr':", "expected a dtype"},
        {"{" DESCR "'fortran_order': 0, " SHAPE "}", "expected True or False"},
        {"{" DESCR "'fortran_order': Tru", "expected True or False"},
        {"{" DESCR "'fortran_order': Falsey, " SHAPE "}", "expected ',' or '}'"},
        {"{" DESCR ORDER "'shape': 2}", "expected a shape"},
        {"{" DESCR ORDER "'shape': (2)}", "expected ','"},
        {"{" DESCR ORDER "'shape': (2 3)}", "expected ','"},
        {"{" DESCR ORDER "'shape': (2, 3 4)}", "expected ',' or ')'"},
        {"{" DESCR ORDER "'shape': (,)}", "expected a size"},
        {"{" DESCR ORDER "'shape': (", "expected a size"},
        {"{" DESCR ORDER "'shape': (0x2,)}", "expected ','"},
        {"{" DESCR ORDER "'shape': (02,)}", "expected a size"},
        {"{" DESCR ORDER "'shape': (2L,)}", "expected ','"},
        {"{" DESCR ORDER "'shape': (1_0,)}", "expected ','"},
        {"{" DESCR ORDER "'shape': (+2,)}", "expected a size"},
        {"{" DESCR ORDER "'shape': (2.0,)}", "expected ','"},
        {"{" DESCR ORDER "'shape': (-1,)}", "expected a size of at least 0"},
        {"{" DESCR ORDER "'shape': (9223372036854775808,)}", "expected a size below 2^63"},
        {"{" DESCR ORDER "'shape': (99999999999999999999,)}", "expected a size below 2^63"},
        {"{" DESCR ORDER "'shape': (1,1,1,1,1,1,1,1,1)}", "more than 8 dimensions"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        bytes b = npy_text(1, cases[i].header, NULL, 8);
        expect_bytes_refused(b, cases[i].part);
        bytes_free(&b);
    }
}

static void test_prefix_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *part;
    } cases[] = {
        {"", 0, "not a .npy file: it is empty"},
        {"\x93NUMPY", 6, "not a .npy file"},
        {"\x93NUMPX\1\0\0\0", 10, "not a .npy file"},
        {"GGUF\3\0\0\0\0\0\0\0", 12, "not a .npy file"},
        {"\x93NUMPY\0\0\0\0", 10, ".npy version 0.0"},
        {"\x93NUMPY\4\0\0\0\0\0", 12, ".npy version 4.0"},
        {"\x93NUMPY\1\1\0\0", 10, ".npy version 1.1"},
        {"\x93NUMPY\1\0\0", 9, "ends within its header: 1 bytes where 2 should be"},
        {"\x93NUMPY\2\0\0\0\0", 11, "ends within its header: 3 bytes where 4 should be"},
        {"\x93NUMPY\1\0\5\0{}", 12, "a header of 5 bytes, but only 2 follow"},
        {"\x93NUMPY\3\0\1\0\1\0", 12, "a header of 65537 bytes; at most 65536 are supported"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        bytes b = {0};
        put(&b, cases[i].bytes, cases[i].size);
        expect_bytes_refused(b, cases[i].part);
        bytes_free(&b);
    }
}

static void test_size_of_the_payload(void **state)
{
    (void)state;
    for (size_t size = 0; size <= 60; size++) {
        bytes b = npy("'<f4'", 0, "(3, 4)", NULL, size);
        char part[100];
        snprintf(part, sizeof part,
                 "k.npy: header says shape (3, 4) of float32 = 48 bytes, but %zu follow", size);
        kit_array a;
        if (size == 48) {
            assert_int_equal(kit_npy_parse(&a, b.data, b.size, "k.npy", NULL), KIT_OK);
            kit_array_free(&a);
        } else {
            expect_bytes_refused(b, part);
        }
        bytes_free(&b);
    }
}

static void test_values_without_a_place(void **state)
{
    (void)state;
    bytes b = npy("'|b1'", 0, "(4,)", "\1\0\2\1", 4);
    expect_bytes_refused(b, "element 2 is neither 0 nor 1");
    bytes_free(&b);
    b = npy("'>u8'", 0, "(2,)", "\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x80\0\0\0\0\0\0\0", 16);
    expect_bytes_refused(b, "element 1 is more than 2^63 - 1");
    bytes_free(&b);
    b = npy("'|b1'", 1, "(1, 5000)", NULL, 5000);
    b.data[b.size - 1] = 255;
    expect_bytes_refused(b, "element 4999 is neither 0 nor 1");
    bytes_free(&b);
}

/* --------------------------------------------------------------------------------- Files */

static bytes small_npy(void)
{
    return npy("'<f4'", 0, "(2,)", "\0\0\x80\x3F\0\0\0\x40", 8); /* 1, 2 */
}

static void expect_small(const char *spec)
{
    kit_array a;
    kit_error err = {0};
    if (kit_read_array(&a, spec, &err))
        fail_msg("%s: %s", spec, err.message);
    assert_int_equal(a.dtype, ATTN_F32);
    assert_int_equal(a.rank, 1);
    assert_number(kit_array_get(&a, 0), ==, 1);
    assert_number(kit_array_get(&a, 1), ==, 2);
    kit_array_free(&a);
    kit_entry *entries;
    size_t count;
    if (strcmp(spec, "k.npy") == 0) {
        assert_int_equal(kit_read_list(&entries, &count, spec, &err), KIT_OK);
        assert_int_equal(count, 1);
        assert_string_equal(entries[0].name, "");
        assert_int_equal(entries[0].dtype, ATTN_F32);
        assert_int_equal(entries[0].rank, 1);
        assert_int_equal(entries[0].shape[0], 2);
        free(entries);
    }
}

static void test_names_of_files(void **state)
{
    (void)state;
    bytes b = small_npy();
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = 0;
    const char *const names[] = {"k.npy", "k", "\xFF\xFE.npy", "-k.npy", "a:b.npy", longest};
    const size_t before = count_descriptors();
    for (size_t i = 0; i < COUNT(names); i++) {
        write_file(names[i], b);
        expect_small(names[i]);
        assert_int_equal(unlink(names[i]), 0);
    }
    char too_long[300];
    memset(too_long, 'n', 299);
    too_long[299] = 0;
    expect_refused(too_long, KIT_BAD_FILE, "nnnn", "cannot open: File name too long");
    assert_int_equal(count_descriptors(), before);
    bytes_free(&b);
}

static void test_files_refused(void **state)
{
    (void)state;
    const size_t before = count_descriptors();
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(symlink("loop", "loop"), 0);
    bytes b = small_npy();
    write_file("k.npy", b);
    b.size--;
    write_file("short.npy", b);
    b.size = 0;
    write_file("empty.npy", b);
    static const struct {
        const char *spec, *starts, *part;
    } cases[] = {
        {"none.npy", "none.npy: ", "cannot open: No such file"},
        {"", ": ", "cannot open: No such file"},
        {"none.npz:q", "none.npz: ", "cannot open: No such file"},
        {"folder", "folder: ", "is a directory"},
        {"folder/", "folder/: ", "is a directory"},
        {"k.npy/q", "k.npy/q: ", "Not a directory"},
        {"loop", "loop: ", "cannot open: Too many levels"},
        {"empty.npy", "empty.npy: ", "it is empty"},
        {"short.npy", "short.npy: ", "= 8 bytes, but 7 follow"},
        {"/dev/null", "/dev/null: ", "it is empty"},
        {"/dev/zero", "/dev/zero: ", "not a .npy file"},
        {"none\n\x1B[31m.npy", "none??[31m.npy: ", "cannot open"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        expect_refused(cases[i].spec, KIT_BAD_FILE, cases[i].starts, cases[i].part);
        kit_entry *entries;
        size_t count;
        assert_int_equal(kit_read_list(&entries, &count, cases[i].spec, NULL), KIT_BAD_FILE);
        assert_null(entries);
        assert_int_equal(count, 0);
    }
    assert_int_equal(rename("k.npy", "k.npz"), 0);
    expect_small("k.npz"); /* the kind is told by the bytes */
    expect_refused("k.npz:q", KIT_BAD_FILE, "k.npz: ", "not a .npz file");
    assert_int_equal(count_descriptors(), before);
    b.size = 1;
    bytes_free(&b);
    remove_all_here();
}

/* ------------------------------------------------------------------------------- Streams */

/* A child writes b into the pipe, in pieces; reading is as with a slow program. */
static pid_t feed(int to, int also_close, bytes b, size_t piece)
{
    const pid_t child = fork();
    assert_number(child, >=, 0);
    if (child == 0) {
        close(also_close);
        for (size_t done = 0; done < b.size;) {
            const size_t left = b.size - done;
            const ssize_t n = write(to, b.data + done, left < piece ? left : piece);
            if (n <= 0)
                _exit(1);
            done += (size_t)n;
        }
        _exit(0);
    }
    return child;
}

static void wait_for(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
}

static int read_through_pipe(kit_array *a, bytes b, size_t piece, int as_stdin, kit_error *err)
{
    int ends[2];
    char spec[32] = "-";
    assert_int_equal(pipe(ends), 0);
    const pid_t child = feed(ends[1], ends[0], b, piece);
    close(ends[1]);
    const int saved = dup(STDIN_FILENO);
    if (as_stdin)
        assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    else
        snprintf(spec, sizeof spec, "/dev/fd/%d", ends[0]);
    const int code = kit_read_array(a, spec, err);
    close(ends[0]);
    dup2(saved, STDIN_FILENO);
    close(saved);
    wait_for(child);
    return code;
}

static void test_pipes(void **state)
{
    (void)state;
    bytes b = npy("'<i4'", 0, "(100, 100)", NULL, 40000);
    for (int as_stdin = 0; as_stdin < 2; as_stdin++)
        for (size_t piece = 7; piece < 10000; piece *= 11) {
            kit_array a;
            kit_error err = {0};
            if (read_through_pipe(&a, b, piece, as_stdin, &err))
                fail_msg("%s", err.message);
            assert_int_equal(kit_array_count(&a), 10000);
            kit_array_free(&a);
        }
    bytes_free(&b);
}

static void test_pipes_refused(void **state)
{
    (void)state;
    static const struct {
        const char *shape;
        size_t size;
        int code;
        const char *part;
    } cases[] = {
        {"(3, 4)", 40, KIT_BAD_FILE,
         "standard input: header says shape (3, 4) of float32 = 48 bytes, but 40 follow"},
        {"(3, 4)", 49, KIT_BAD_FILE, "= 48 bytes, but more follow"},
        {"(4294967296,)", 8, KIT_LIMIT, "at most 2147483648 can be read from a pipe"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        bytes b = npy("'<f4'", 0, cases[i].shape, NULL, cases[i].size);
        kit_array a;
        kit_error err = {0};
        assert_int_equal(read_through_pipe(&a, b, 1000, 1, &err), cases[i].code);
        if (!strstr(err.message, cases[i].part))
            fail_msg("%s", err.message);
        bytes_free(&b);
    }
}

static void test_fifo(void **state)
{
    (void)state;
    bytes b = small_npy();
    assert_int_equal(mkfifo("fifo.npy", 0666), 0);
    const pid_t child = fork();
    assert_number(child, >=, 0);
    if (child == 0) {
        const int fd = open("fifo.npy", O_WRONLY);
        _exit(write(fd, b.data, b.size) == (ssize_t)b.size ? 0 : 1);
    }
    expect_small("fifo.npy");
    wait_for(child);
    assert_int_equal(unlink("fifo.npy"), 0);
    bytes_free(&b);
}

/* A regular file on standard input, which was read in part: the rest is the array. */
static void test_stdin_from_a_file(void **state)
{
    (void)state;
    bytes b = {0}, array = small_npy();
    put_text(&b, "line\n");
    put(&b, array.data, array.size);
    write_file("in", b);
    const int saved = dup(STDIN_FILENO), fd = open("in", O_RDONLY);
    assert_int_equal(lseek(fd, 5, SEEK_SET), 5);
    dup2(fd, STDIN_FILENO);
    expect_small("-");
    dup2(saved, STDIN_FILENO);
    close(fd);
    close(saved);
    assert_int_equal(unlink("in"), 0);
    bytes_free(&b);
    bytes_free(&array);
}

/* ------------------------------------------------------------------------------- Writing */

static bytes written(const kit_array *a)
{
    kit_output *out;
    assert_int_equal(kit_output_open(&out, "w.npy", NULL), KIT_OK);
    assert_int_equal(kit_npy_write(out, a, NULL), KIT_OK);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);
    bytes b = read_file("w.npy");
    assert_int_equal(unlink("w.npy"), 0);
    return b;
}

static void test_written_bytes(void **state)
{
    (void)state;
    float data[] = {1, 2};
    const kit_array a = {ATTN_F32, 2, {2, 1}, data, sizeof data};
    bytes b = written(&a);
    assert_int_equal(b.size, 128 + 8);
    char header[73]; /* in this machine's order of bytes */
    snprintf(header, sizeof header,
             "%s{'descr': '%cf4', 'fortran_order': False, 'shape': (2, 1), }   ",
             "\x93NUMPY\1.\x76.", __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? '>' : '<');
    header[7] = header[9] = 0;
    assert_memory_equal(b.data, header, 72);
    assert_int_equal(b.data[127], '\n');
    assert_memory_equal(b.data + 128, data, 8);
    bytes_free(&b);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_F64,  ATTN_F32,  ATTN_F16,
                                        ATTN_BF16, ATTN_BOOL, ATTN_I64};
    static const struct {
        int rank;
        int64_t shape[KIT_MAX_RANK];
    } shapes[] = {{0, {0}}, {1, {0}}, {1, {70000}}, {3, {2, 0, 3}}, {8, {1, 2, 3, 1, 2, 1, 1, 5}}};
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t s = 0; s < COUNT(shapes); s++) {
            kit_array a, back;
            assert_int_equal(kit_array_new(&a, dtypes[d], shapes[s].rank, shapes[s].shape, NULL),
                             KIT_OK);
            for (size_t i = 0; i < a.bytes; i++)
                ((unsigned char *)a.data)[i] =
                    dtypes[d] == ATTN_BOOL ? i & 1 : (i * 7 + i / 251) & 0x3F;
            bytes b = written(&a);
            assert_int_equal((b.size - a.bytes * (dtypes[d] == ATTN_BF16 ? 2 : 1)) % 64, 0);
            assert_int_equal(kit_npy_parse(&back, b.data, b.size, "w.npy", NULL), KIT_OK);
            assert_int_equal(back.dtype, dtypes[d] == ATTN_BF16 ? ATTN_F32 : dtypes[d]);
            assert_int_equal(back.rank, a.rank);
            assert_memory_equal(back.shape, a.shape, sizeof a.shape);
            for (int64_t i = 0; i < kit_array_count(&a); i++)
                assert_number(kit_array_get(&back, i), ==, kit_array_get(&a, i));
            bytes_free(&b);
            kit_array_free(&a);
            kit_array_free(&back);
        }
    kit_output *out;
    assert_int_equal(kit_output_open(&out, "w.npy", NULL), KIT_OK);
    assert_int_equal(kit_npy_write(out, &(kit_array){.dtype = (attn_dtype)99}, NULL), KIT_USAGE);
    kit_output_abort(out);
    assert_int_equal(count_here(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_order_and_version),
        cmocka_unit_test(test_fortran_order),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_headers_accepted),
        cmocka_unit_test(test_headers_refused),
        cmocka_unit_test(test_prefix_refused),
        cmocka_unit_test(test_size_of_the_payload),
        cmocka_unit_test(test_values_without_a_place),
        cmocka_unit_test(test_names_of_files),
        cmocka_unit_test(test_files_refused),
        cmocka_unit_test(test_pipes),
        cmocka_unit_test(test_pipes_refused),
        cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_stdin_from_a_file),
        cmocka_unit_test(test_written_bytes),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
