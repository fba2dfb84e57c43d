/* Output files are whole or absent, whatever exists under their name or happens meanwhile. */
#include "support/io_testing.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

static int write_text(const char *path, const char *text, kit_error *err)
{
    kit_output *out;
    int code = kit_output_open(&out, path, err);
    if (code) {
        assert_null(out);
        return code;
    }
    code = kit_output_write(out, text, strlen(text), err);
    if (code) {
        kit_output_abort(out);
        return code;
    }
    return kit_output_commit(out, err);
}

static void expect_content(const char *path, const char *text)
{
    bytes b = read_file(path);
    assert_int_equal(b.size, strlen(text));
    assert_memory_equal(b.data, text, b.size);
    bytes_free(&b);
}

static void expect_no_output(const char *path, const char *starts, const char *part)
{
    kit_error err = {0};
    const int code = write_text(path, "text", &err);
    if (code != KIT_LIMIT || err.code != code ||
        strncmp(err.message, starts, strlen(starts)) != 0 || !strstr(err.message, part))
        fail_msg("%s: code %d, message «%s», want «%s...%s»", path, code, err.message, starts,
                 part);
}

/* ------------------------------------------------------------------------------- Plain files */

static void test_new_and_replaced(void **state)
{
    (void)state;
    const size_t before = count_descriptors();
    char longest[256];
    memset(longest, 'n', 255);
    longest[255] = 0;
    const char *const names[] = {"out.txt", "./out", "sub/out", "\xFF\xFE", longest};
    assert_int_equal(mkdir("sub", 0777), 0);
    for (size_t i = 0; i < COUNT(names); i++) {
        kit_error err = {0};
        if (write_text(names[i], "first, and longer", &err))
            fail_msg("%s", err.message);
        expect_content(names[i], "first, and longer");
        assert_int_equal(write_text(names[i], "second", NULL), KIT_OK);
        expect_content(names[i], "second");
        assert_int_equal(write_text(names[i], "", NULL), KIT_OK);
        expect_content(names[i], "");
        assert_int_equal(unlink(names[i]), 0);
        assert_int_equal(count_here(), 1);
    }
    char absolute[4096];
    assert_non_null(getcwd(absolute, sizeof absolute - 8));
    strcat(absolute, "/file");
    assert_int_equal(write_text(absolute, "x", NULL), KIT_OK);
    expect_content("file", "x");
    assert_int_equal(count_descriptors(), before);
    remove_all_here();
}

/* Nothing shows before the commit; nothing is left after an abort. */
static void test_abort(void **state)
{
    (void)state;
    kit_output_abort(NULL);
    kit_output *out;
    assert_int_equal(kit_output_open(&out, "new", NULL), KIT_OK);
    assert_int_equal(kit_output_write(out, "some", 4, NULL), KIT_OK);
    assert_int_equal(access("new", F_OK), -1);
    kit_output_abort(out);
    assert_int_equal(count_here(), 0);
    assert_int_equal(write_text("old", "old", NULL), KIT_OK);
    assert_int_equal(kit_output_open(&out, "old", NULL), KIT_OK);
    static char large[200000];
    assert_int_equal(kit_output_write(out, large, sizeof large, NULL), KIT_OK);
    expect_content("old", "old");
    kit_output_abort(out);
    expect_content("old", "old");
    assert_int_equal(count_here(), 1);
    remove_all_here();
}

/* Pieces of all sizes around the size of the buffer come out in order. */
static void test_pieces(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1,     65534, 1, 1, 1,     65535, 65536,  65537,
                                   3, 65536, 65533, 4, 0, 65537, 7,     200000, 1};
    bytes want = {0};
    uint32_t x = 1;
    for (size_t total = 0; total < 800000; total++, x = x * 1664525 + 1013904223)
        put_number(&want, x >> 24, 1);
    kit_output *out;
    assert_int_equal(kit_output_open(&out, "out", NULL), KIT_OK);
    size_t done = 0;
    for (size_t i = 0; i < COUNT(sizes); done += sizes[i++])
        assert_int_equal(kit_output_write(out, want.data + done, sizes[i], NULL), KIT_OK);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);
    bytes got = read_file("out");
    assert_int_equal(got.size, done);
    assert_memory_equal(got.data, want.data, done);
    bytes_free(&got);
    bytes_free(&want);
    remove_all_here();
}

static void test_printf(void **state)
{
    (void)state;
    kit_output *out;
    char word[600], want[3000] = "";
    assert_int_equal(kit_output_open(&out, "out", NULL), KIT_OK);
    for (int n = 509; n < 514; n++) {
        memset(word, 'a' + n % 26, sizeof word);
        word[n] = 0;
        assert_int_equal(kit_output_printf(out, NULL, "%s|%d", word, n), KIT_OK);
        sprintf(want + strlen(want), "%s|%d", word, n);
    }
    assert_int_equal(kit_output_printf(out, NULL, "%s", ""), KIT_OK);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);
    expect_content("out", want);

    /* A text that cannot be made: the file stays as it was, even if nobody looks. */
    kit_error err = {0};
    assert_int_equal(kit_output_open(&out, "out", NULL), KIT_OK);
    assert_int_equal(kit_output_printf(out, &err, "%ls", (wchar_t[]){0x20AC, 0}), KIT_LIMIT);
    assert_memory_equal(err.message, "out: cannot format", 18);
    assert_int_equal(kit_output_commit(out, &err), KIT_LIMIT);
    assert_string_equal(err.message, "out: was not written in full");
    expect_content("out", want);
    remove_all_here();
}

static void test_places_refused(void **state)
{
    (void)state;
    const size_t before = count_descriptors();
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(write_text("file", "old", NULL), KIT_OK);
    char too_long[300];
    memset(too_long, 'n', 299);
    too_long[299] = 0;
    expect_no_output("folder", "folder: ", "is a directory, not a file");
    expect_no_output("folder/", "folder/: ", "is a directory, not a file");
    expect_no_output("folder/.", "folder/.: ", "is a directory");
    expect_no_output("..", "..: ", "is a directory");
    expect_no_output("/", "/: ", "is a directory");
    expect_no_output("", ": ", "is a directory");
    expect_no_output("none/out", "none/out: ", "cannot open its folder: No such file");
    expect_no_output("file/out", "file/out: ", "cannot open its folder: Not a directory");
    expect_no_output(too_long, "nnnn", "cannot write: File name too long");
    expect_no_output("/dev/fd/200", "/dev/fd/200: ", "cannot write: Bad file descriptor");
    expect_no_output("/dev/fd/", "/dev/fd/: ", "is a directory");
    expect_no_output("/dev/fd/1x", "/dev/fd/1x: ", "cannot write");
    expect_no_output("/dev/fd/1234567890", "/dev/fd/1234567890: ", "cannot write");
    const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    expect_no_output("socket", "socket: ", "is a disk or a socket, not a file");
    assert_int_equal(count_here(), 3);
    assert_int_equal(count_descriptors(), before);
    remove_all_here();
}

/* In a child, so that what it changes ends with it: `body` returns 0 if all was as it should be. */
static int in_child(int (*body)(void))
{
    const pid_t child = fork();
    assert_number(child, >=, 0);
    if (child == 0)
        _exit(body());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status)); /* no signal */
    return WEXITSTATUS(status);
}

/* Root may write anywhere, so the child becomes somebody else where it can. */
static int write_into_closed_folder(void)
{
    if (geteuid() == 0 && seteuid(65534) != 0)
        return 1;
    kit_error err;
    if (write_text("closed/out", "text", &err) != KIT_LIMIT)
        return 2;
    return strcmp(err.message, "closed/out: cannot write: Permission denied") == 0 ? 0 : 3;
}

static void test_read_only_folder(void **state)
{
    (void)state;
    assert_int_equal(chmod(".", 0755), 0); /* that the other one may look in */
    assert_int_equal(mkdir("closed", 0555), 0);
    assert_int_equal(in_child(write_into_closed_folder), 0);
    remove_all_here();
}

static int write_without_descriptors(void)
{
    const struct rlimit none = {3, 3};
    kit_error err;
    kit_array a;
    if (setrlimit(RLIMIT_NOFILE, &none) != 0)
        return 1;
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    if (write_text("out", "text", &err) != KIT_LIMIT || !strstr(err.message, "Too many open files"))
        return 2;
    if (write_text("-", "text", &err) != KIT_LIMIT)
        return 3;
    return kit_read_array(&a, "out", &err) == KIT_BAD_FILE &&
                   strstr(err.message, "Too many open files")
               ? 0
               : 4;
}

static void test_no_descriptors_left(void **state)
{
    (void)state;
    assert_int_equal(in_child(write_without_descriptors), 0);
    assert_int_equal(count_here(), 0);
}

/* -------------------------------------------------------------------------- Limits, full disks */

static int write_past_the_limit(void)
{
    const struct rlimit small = {100000, 100000};
    if (setrlimit(RLIMIT_FSIZE, &small) != 0)
        return 1;
    static char large[1 << 20];
    kit_output *out;
    kit_error err;
    if (kit_output_open(&out, "out", &err) != KIT_OK)
        return 2;
    const int code = kit_output_write(out, large, sizeof large, &err);
    if (code != KIT_LIMIT || strcmp(err.message, "out: cannot write: File too large") != 0)
        return 3;
    /* Whoever goes on all the same gets no file. */
    if (kit_output_commit(out, &err) != KIT_LIMIT ||
        strcmp(err.message, "out: was not written in full") != 0)
        return 4;
    if (kit_output_open(&out, "out", &err) != KIT_OK)
        return 5;
    for (int i = 0; i < 2; i++) /* less than is held back: the commit finds out */
        if (kit_output_write(out, large, 60000, &err) != KIT_OK)
            return 6;
    return kit_output_commit(out, &err) == KIT_LIMIT ? 0 : 7;
}

static void test_file_size_limit(void **state)
{
    (void)state;
    assert_int_equal(write_text("out", "old", NULL), KIT_OK);
    assert_int_equal(in_child(write_past_the_limit), 0);
    expect_content("out", "old");
    assert_int_equal(count_here(), 1);
    remove_all_here();
}

static void test_devices(void **state)
{
    (void)state;
    kit_error err = {0};
    struct stat before, after;
    assert_int_equal(stat("/dev/null", &before), 0);
    assert_int_equal(write_text("/dev/null", "text", &err), KIT_OK);
    assert_int_equal(stat("/dev/null", &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_true(S_ISCHR(after.st_mode));
    expect_no_output("/dev/full", "/dev/full: ", "cannot write: No space left on device");
}

/* ---------------------------------------------------------------------- Pipes, standard output */

static void test_fifo(void **state)
{
    (void)state;
    assert_int_equal(mkfifo("fifo", 0666), 0);
    const int fd = open("fifo", O_RDONLY | O_NONBLOCK);
    assert_number(fd, >=, 0);
    assert_int_equal(write_text("fifo", "through", NULL), KIT_OK);
    char text[16];
    assert_int_equal(read(fd, text, sizeof text), 7);
    assert_memory_equal(text, "through", 7);
    close(fd);
    struct stat st;
    assert_int_equal(lstat("fifo", &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(count_here(), 1);
    remove_all_here();
}

/* "-" and the other names of standard output go where it goes, behind what is there. */
static void test_standard_output(void **state)
{
    (void)state;
    static const char *const names[] = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"};
    const int file = open("out", O_RDWR | O_CREAT | O_TRUNC, 0666), saved = dup(STDOUT_FILENO);
    assert_number(file, >=, 0);
    assert_number(saved, >=, 0);
    fflush(stdout);
    assert_number(dup2(file, STDOUT_FILENO), >=, 0);
    int failed = write(STDOUT_FILENO, "first ", 6) != 6;
    for (size_t i = 0; i < COUNT(names); i++)
        failed += write_text(names[i], names[i], NULL) != KIT_OK;
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(file);
    assert_int_equal(failed, 0);
    expect_content("out", "first -/dev/stdout/dev/fd/1/proc/self/fd/1");
    assert_int_equal(count_here(), 1);
    remove_all_here();
}

static int write_to_closed_stdout(void)
{
    kit_error err;
    close(STDOUT_FILENO);
    return write_text("-", "text", &err) == KIT_LIMIT &&
                   strcmp(err.message, "standard output: cannot write: Bad file descriptor") == 0
               ? 0
               : 1;
}

static void test_closed_standard_output(void **state)
{
    (void)state;
    fflush(stdout);
    assert_int_equal(in_child(write_to_closed_stdout), 0);
}

/* Nothing reaches a pipe before the commit, nor ever after an abort; past what is held back, it is
 * passed on. */
static void test_held_back(void **state)
{
    (void)state;
    int ends[2];
    char name[32];
    assert_int_equal(pipe(ends), 0);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[1]);
    struct pollfd readable = {.fd = ends[0], .events = POLLIN};
    for (int commit = 0; commit < 2; commit++) {
        kit_output *out;
        assert_int_equal(kit_output_open(&out, name, NULL), KIT_OK);
        for (int i = 0; i < 300; i++)
            assert_int_equal(kit_output_printf(out, NULL, "%0100d", i), KIT_OK);
        assert_int_equal(poll(&readable, 1, 0), 0);
        if (commit)
            assert_int_equal(kit_output_commit(out, NULL), KIT_OK);
        else
            kit_output_abort(out);
        assert_int_equal(poll(&readable, 1, 0), commit);
    }
    close(ends[0]);
    close(ends[1]);

    enum { MUCH = (1 << 26) + 1 };
    char *much = calloc(1, MUCH);
    assert_non_null(much);
    kit_output *out;
    struct stat st;
    const int fd = open("sink", O_RDWR | O_CREAT | O_TRUNC, 0666);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    assert_int_equal(kit_output_open(&out, name, NULL), KIT_OK);
    assert_int_equal(kit_output_write(out, much, 1000, NULL), KIT_OK);
    assert_int_equal(kit_output_write(out, much, MUCH - 1001, NULL), KIT_OK); /* just held */
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(kit_output_write(out, much, MUCH, NULL), KIT_OK);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 2 * (int64_t)MUCH - 1);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);
    close(fd);
    free(much);
    remove_all_here();
}

/* ------------------------------------------------------------- F17: links, F18: kills and modes */

static void test_F17_symbolic_links_are_replaced(void **state)
{
    (void)state;
    assert_int_equal(write_text("victim", "precious", NULL), KIT_OK);
    assert_int_equal(mkdir("folder", 0777), 0);
    static const char *const targets[] = {"victim", "nowhere", "out", "folder", "/dev/null"};
    for (size_t i = 0; i < COUNT(targets); i++) {
        describe_case("%s", targets[i]);
        assert_int_equal(symlink(targets[i], "out"), 0);
        assert_int_equal(write_text("out", "new", NULL), KIT_OK);
        struct stat st;
        assert_int_equal(lstat("out", &st), 0);
        assert_true(S_ISREG(st.st_mode));
        expect_content("out", "new");
        expect_content("victim", "precious");
        assert_int_equal(access("nowhere", F_OK), -1);
        assert_int_equal(unlink("out"), 0);
    }
    remove_all_here();
}

static void test_F17_hard_links_are_parted(void **state)
{
    (void)state;
    assert_int_equal(write_text("victim", "precious", NULL), KIT_OK);
    assert_int_equal(link("victim", "out"), 0);
    assert_int_equal(write_text("out", "new", NULL), KIT_OK);
    expect_content("out", "new");
    expect_content("victim", "precious");
    remove_all_here();
}

static void test_F18_mode(void **state)
{
    (void)state;
    static const mode_t masks[] = {0, 022, 027, 077, 0777};
    for (size_t i = 0; i < COUNT(masks); i++)
        for (int exists = 0; exists < 2; exists++) {
            describe_case("umask %03o, %s file", (unsigned)masks[i], exists ? "an old" : "no");
            if (exists)
                assert_int_equal(write_text("out", "old", NULL), KIT_OK);
            const mode_t saved = umask(masks[i]);
            const int code = write_text("out", "new", NULL);
            umask(saved);
            assert_int_equal(code, KIT_OK);
            struct stat st;
            assert_int_equal(stat("out", &st), 0);
            assert_int_equal(st.st_mode & 07777, 0666 & ~masks[i]);
            assert_int_equal(unlink("out"), 0);
        }
}

/* A child that writes the file over and over, each time all of one letter, is killed at 200
 * instants; the file is always whole. The instants count from the start of the child's first to
 * fourth commit, so that the files differ however long a commit takes. */
static void test_F18_killed_at_any_instant(void **state)
{
    (void)state;
    enum { SIZE = 100000, INSTANTS = 200 };
    static char text[SIZE];
    int seen[26] = {0}, letters = 0;
    memset(text, 'a', SIZE);
    kit_output *out;
    assert_int_equal(kit_output_open(&out, "out", NULL), KIT_OK);
    assert_int_equal(kit_output_write(out, text, SIZE, NULL), KIT_OK);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);
    for (int i = 0; i < INSTANTS; i++) {
        int ends[2];
        char ready;
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        assert_number(child, >=, 0);
        if (child == 0) {
            for (int letter = 1;; letter = (letter + 1) % 26) {
                memset(text, 'a' + letter, SIZE);
                if (kit_output_open(&out, "out", NULL) != KIT_OK ||
                    kit_output_write(out, text, SIZE / 3, NULL) != KIT_OK ||
                    kit_output_write(out, text, SIZE - SIZE / 3, NULL) != KIT_OK)
                    _exit(1);
                if (write(ends[1], "r", 1) != 1)
                    _exit(1);
                if (kit_output_commit(out, NULL) != KIT_OK)
                    _exit(1);
            }
        }
        for (int commits = 0; commits <= i % 4; commits++)
            assert_int_equal(read(ends[0], &ready, 1), 1);
        nanosleep(&(struct timespec){.tv_nsec = 40000 * (i % 50)}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        close(ends[0]);
        close(ends[1]);

        bytes b = read_file("out");
        assert_int_equal(b.size, SIZE);
        for (size_t k = 1; k < SIZE; k++)
            if (b.data[k] != b.data[0])
                fail_msg("instant %d: a file of two parts", i);
        letters += !seen[b.data[0] - 'a']++;
        bytes_free(&b);
    }
    assert_in_range(letters, 2, 26); /* it was caught at different places */
    remove_all_here();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_and_replaced),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_printf),
        cmocka_unit_test(test_places_refused),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_no_descriptors_left),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_standard_output),
        cmocka_unit_test(test_closed_standard_output),
        cmocka_unit_test(test_held_back),
        cmocka_unit_test(test_F17_symbolic_links_are_replaced),
        cmocka_unit_test(test_F17_hard_links_are_parted),
        cmocka_unit_test(test_F18_mode),
        cmocka_unit_test(test_F18_killed_at_any_instant),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
