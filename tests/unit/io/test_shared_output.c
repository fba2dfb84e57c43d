/* One file that several processes write: its bytes, and that it is whole or absent.
 *
 * "Processes" are several open outputs here: they share nothing but the file. */
#include "support/io_testing.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MOST = 4 };

typedef struct shared {
    kit_output *out[MOST];
    int count;
} shared;

static shared open_all(const char *path, const kit_array *whole, int count)
{
    shared s = {.count = count};
    kit_error err = {0};
    for (int i = 0; i < count; i++) {
        const int code =
            i == 0 ? kit_npy_share(&s.out[0], path, whole, &err)
                   : kit_output_join(&s.out[i], path, kit_output_temporary(s.out[0]), &err);
        if (code)
            fail_msg("process %d: %s", i, err.message);
    }
    return s;
}

static void commit_all(shared *s)
{
    for (int i = s->count - 1; i >= 0; i--)
        assert_int_equal(kit_output_sync(s->out[i], NULL), KIT_OK);
    assert_int_equal(kit_output_commit(s->out[0], NULL), KIT_OK);
    for (int i = 1; i < s->count; i++)
        kit_output_leave(s->out[i]);
}

static void expect_file(const char *path, const bytes *want)
{
    bytes got = read_file(path);
    assert_int_equal(got.size, want->size);
    assert_memory_equal(got.data, want->data, got.size);
    bytes_free(&got);
}

/* -------------------------------------------------------------------------------------- bytes */

/* Element x of the whole array is x, as the file and as memory have it. */
static void put_element(bytes *file, bytes *memory, attn_dtype dtype, int x)
{
    const float f = (float)x;
    const double d = x;
    const uint16_t half = (uint16_t)(257 * x); /* any bits: they are copied */
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t bf16 = (uint16_t)(bits >> 16); /* exact for x <= 256 */
    switch (dtype) {
    case ATTN_F64: put(file, &d, sizeof d), put(memory, &d, sizeof d); break;
    case ATTN_F32: put(file, &f, sizeof f), put(memory, &f, sizeof f); break;
    case ATTN_F16: put(file, &half, sizeof half), put(memory, &half, sizeof half); break;
    default: put(file, &f, sizeof f), put(memory, &bf16, sizeof bf16); break;
    }
}

/* Writes rows of `memory` from an array that has other rows around them. */
static void write_part(kit_output *out, const kit_array *whole, const bytes *memory, int64_t first,
                       int64_t n)
{
    const size_t size = attn_dtype_size(whole->dtype);
    const int64_t *last = whole->shape + whole->rank - 2;
    int64_t matrices = 1;
    kit_array part, shape = *whole;
    for (int i = 0; i < whole->rank - 2; i++)
        matrices *= whole->shape[i];
    shape.shape[shape.rank - 2] = n + 3; /* rows 2 to n + 1 are those to write */
    assert_int_equal(kit_array_new(&part, shape.dtype, shape.rank, shape.shape, NULL), KIT_OK);
    memset(part.data, 0x55, part.bytes);
    for (int64_t m = 0; m < matrices && n * last[1] > 0; m++)
        memcpy((char *)part.data + (size_t)((m * (n + 3) + 2) * last[1]) * size,
               memory->data + (size_t)((m * last[0] + first) * last[1]) * size,
               (size_t)(n * last[1]) * size);
    kit_error err = {0};
    if (kit_npy_write_rows(out, whole, first, &part, 2, n, &err))
        fail_msg("%s", err.message);
    kit_array_free(&part);
}

static void test_bytes(void **state)
{
    static const struct {
        attn_dtype dtype;
        const char *descr;
        int rank;
        int64_t shape[4];
        const char *text;
    } cases[] = {
        {ATTN_F32, "<f4", 2, {7, 5}, "(7, 5)"},
        {ATTN_F64, "<f8", 3, {2, 9, 3}, "(2, 9, 3)"},
        {ATTN_F16, "<f2", 4, {2, 3, 5, 1}, "(2, 3, 5, 1)"},
        {ATTN_BF16, "<f4", 4, {1, 2, 11, 3}, "(1, 2, 11, 3)"},
        {ATTN_BF16, "<f4", 3, {0, 4, 3}, "(0, 4, 3)"},
        {ATTN_F32, "<f4", 3, {2, 0, 3}, "(2, 0, 3)"},
        {ATTN_F32, "<f4", 2, {3, 0}, "(3, 0)"},
    };
    (void)state;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    skip();
#endif
    const size_t before = count_descriptors();
    for (size_t i = 0; i < COUNT(cases); i++) {
        kit_array whole = {.dtype = cases[i].dtype, .rank = cases[i].rank};
        memcpy(whole.shape, cases[i].shape, sizeof cases[i].shape);
        describe_case("%s %s", cases[i].descr, cases[i].text);
        bytes file = {0}, memory = {0};
        for (int x = 0; x < (int)kit_array_count(&whole); x++)
            put_element(&file, &memory, whole.dtype, x);
        bytes want = numpy_file(cases[i].descr, cases[i].text, file.data, file.size);
        for (int count = 1; count <= MOST; count++) {
            const int64_t T = whole.shape[whole.rank - 2];
            shared s = open_all("x.npy", &whole, count);
            for (int64_t row = T - 1; row >= 0; row--) /* the last row first */
                write_part(s.out[row % count], &whole, &memory, row, 1);
            if (T > 1) /* the same once more: two rows at once */
                write_part(s.out[count - 1], &whole, &memory, T - 2, 2);
            assert_int_equal(access("x.npy", F_OK), -1);
            commit_all(&s);
            expect_file("x.npy", &want);
            assert_int_equal(count_here(), 1);
            assert_int_equal(unlink("x.npy"), 0);
        }
        bytes_free(&file), bytes_free(&memory), bytes_free(&want);
    }
    assert_int_equal(count_descriptors(), before);
}

/* Rows that nobody wrote are zeros; the file has its size from the beginning. */
static void test_size(void **state)
{
    (void)state;
    const kit_array whole = {.dtype = ATTN_F32, .rank = 2, .shape = {1000, 3}};
    shared s = open_all("x.npy", &whole, 2);
    struct stat st;
    assert_int_equal(stat(kit_output_temporary(s.out[1]), &st), 0);
    assert_int_equal(st.st_size, 128 + 1000 * 3 * 4);
    commit_all(&s);
    kit_array a;
    assert_int_equal(kit_read_array(&a, "x.npy", NULL), KIT_OK);
    for (int64_t i = 0; i < kit_array_count(&a); i++)
        assert_number(kit_array_get(&a, i), ==, 0);
    kit_array_free(&a);
    remove_all_here();
}

/* ---------------------------------------------------------------------------- whole or absent */

static const kit_array small = {.dtype = ATTN_F32, .rank = 2, .shape = {4, 2}};

/* Whoever gives up removes the file, and the creator cannot commit then. */
static void test_abort(void **state)
{
    (void)state;
    const size_t before = count_descriptors();
    for (int who = 0; who < 3; who++) {
        shared s = open_all("x.npy", &small, 3);
        assert_int_equal(count_here(), 1);
        kit_output_abort(s.out[who]);
        assert_int_equal(count_here(), 0);
        for (int i = 0; i < 3; i++) {
            kit_error err = {0};
            if (i == who)
                continue;
            if (i > 0) {
                kit_output_abort(s.out[i]);
                continue;
            }
            assert_int_equal(kit_output_commit(s.out[0], &err), KIT_LIMIT);
            assert_string_equal(err.message, "x.npy: cannot replace it: No such file or directory");
        }
        assert_int_equal(count_here(), 0);
    }
    kit_output_leave(NULL);
    assert_int_equal(count_descriptors(), before);
}

/* An older file stays until the commit, and a symbolic link is replaced. */
static void test_older_file(void **state)
{
    (void)state;
    bytes old = {0};
    put_text(&old, "old");
    write_file("old.npy", old);
    assert_int_equal(symlink("old.npy", "link.npy"), 0);
    shared s = open_all("link.npy", &small, 2);
    kit_output_abort(s.out[1]);
    kit_output_abort(s.out[0]);
    expect_file("link.npy", &old);
    s = open_all("link.npy", &small, 2);
    commit_all(&s);
    expect_file("old.npy", &old);
    struct stat st;
    assert_int_equal(lstat("link.npy", &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(count_here(), 2);
    bytes_free(&old);
    remove_all_here();
}

static void refuse(const char *path, const kit_array *whole, int want, const char *says)
{
    kit_output *out = (kit_output *)&small;
    kit_error err = {0};
    const int code = kit_npy_share(&out, path, whole, &err);
    if (code != want || !strstr(err.message, says) || out)
        fail_msg("%s: code %d, «%s»; want %d, «%s»", path, code, err.message, want, says);
}

static void test_refused(void **state)
{
    (void)state;
    const kit_array vector = {.dtype = ATTN_F32, .rank = 1, .shape = {4}};
    const kit_array huge = {.dtype = ATTN_F32, .rank = 2, .shape = {INT64_MAX / 8, 4}};
    assert_int_equal(mkfifo("pipe", 0666), 0);
    const int reader = open("pipe", O_RDONLY | O_NONBLOCK);
    refuse("pipe", &small, KIT_LIMIT, "pipe: is no regular file");
    assert_int_equal(close(reader), 0);
    refuse("/dev/null", &small, KIT_LIMIT, "/dev/null: is no regular file");
    refuse("no/x.npy", &small, KIT_LIMIT, "no/x.npy: cannot open its folder");
    refuse(".", &small, KIT_LIMIT, ".: is a directory");
    refuse("x.npy", &vector, KIT_USAGE, "x.npy: must be an array");
    refuse("x.npy", &huge, KIT_LIMIT, "x.npy: is more than this machine can address");
    assert_int_equal(count_here(), 1);
    remove_all_here();
}

/* A name that no kit_npy_share gives is not opened. */
static void test_joined_names(void **state)
{
    static const char *const names[] = {
        "",         "x.npy",           "/x.npy",
        "../x.npy", ".attn-/../x.npy", ".attn-0123456789abcdef0123456789abcdef"};
    (void)state;
    bytes old = {0};
    put_text(&old, "old");
    write_file("x.npy", old);
    for (size_t i = 0; i < COUNT(names); i++) {
        kit_output *out;
        kit_error err = {0};
        assert_int_equal(kit_output_join(&out, "y.npy", names[i], &err), KIT_LIMIT);
        assert_null(out);
        assert_non_null(strstr(err.message, "is no temporary name of it"));
    }
    kit_output *out;
    kit_error err = {0};
    assert_int_equal(kit_output_join(&out, "y.npy", ".attn-0123456789abcdef", &err), KIT_LIMIT);
    assert_string_equal(err.message, "y.npy: cannot open its temporary file, which another process "
                                     "has made: No such file or directory");
    expect_file("x.npy", &old);
    bytes_free(&old);
    remove_all_here();
}

/* In a child with a limit on the size of files: an error, not a signal, and nothing stays. */
static void test_limit_of_size(void **state)
{
    (void)state;
    const kit_array large = {.dtype = ATTN_F32, .rank = 2, .shape = {5000, 4}};
    const pid_t child = fork();
    assert_int_not_equal(child, -1);
    if (child == 0) {
        const struct rlimit limit = {4096, 4096};
        kit_output *out;
        kit_error err = {0};
        const int code =
            setrlimit(RLIMIT_FSIZE, &limit) ? 0 : kit_npy_share(&out, "x", &large, &err);
        _exit(code == KIT_LIMIT && strcmp(err.message, "x: cannot write: File too large") == 0 ? 7
                                                                                               : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_int_equal(count_here(), 0);
}

/* In a child whose limit falls after the file has its size: rows cannot be written, and then the
 * file, which is not complete, does not become the result. */
static void test_failed_rows_are_not_committed(void **state)
{
    (void)state;
    const kit_array whole = {.dtype = ATTN_F32, .rank = 2, .shape = {5000, 4}};
    const pid_t child = fork();
    assert_int_not_equal(child, -1);
    if (child == 0) {
        const struct rlimit limit = {4096, 4096};
        kit_array part;
        kit_output *out;
        kit_error err = {0};
        const bool made = kit_array_new(&part, ATTN_F32, 2, whole.shape, NULL) == KIT_OK &&
                          kit_npy_share(&out, "x", &whole, NULL) == KIT_OK &&
                          setrlimit(RLIMIT_FSIZE, &limit) == 0;
        memset(part.data, 0, part.bytes);
        const int written = made ? kit_npy_write_rows(out, &whole, 0, &part, 0, 5000, &err) : 0;
        const int committed = made ? kit_output_commit(out, NULL) : 0;
        _exit(written == KIT_LIMIT && committed != KIT_OK ? 7 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_int_equal(count_here(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),         cmocka_unit_test(test_size),
        cmocka_unit_test(test_abort),         cmocka_unit_test(test_older_file),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_joined_names),
        cmocka_unit_test(test_limit_of_size), cmocka_unit_test(test_failed_rows_are_not_committed),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
