/* Reading and writing survive a system call or allocation that fails, whichever it is.
 *
 * labels: slow
 * link: -Wl,--wrap=open,--wrap=openat,--wrap=read,--wrap=pread,--wrap=fstat,--wrap=fstatat
 * link: -Wl,--wrap=write,--wrap=fsync,--wrap=close,--wrap=renameat,--wrap=malloc,--wrap=calloc
 * link: -Wl,--wrap=realloc,--wrap=aligned_alloc,--wrap=free,--wrap=zip_source_function_create
 * link: -Wl,--wrap=zip_get_name,--wrap=zip_stat_index,--wrap=zip_fopen_index
 * link: -Wl,--wrap=strdup,--wrap=strndup
 *
 * The first call fails, then the second, and so on to the last; see fault_operation.h. */
#include "support/fault_operation.h"

#include <sys/mman.h>

#include "io/json.h"
#include "train/train.h"

/* ------------------------------------------------------------------------------ Operations */

enum { N = 9000 }; /* elements: more than are read at once */

static void prepare_files(void)
{
    static float data[N];
    for (int i = 0; i < N; i++)
        data[i] = (float)i;
    bytes b = npy("'<f4'", 0, "(9000,)", data, sizeof data);
    write_file("k.npy", b);
    member m = {.name = "q.npy", .data = b};
    bytes z = zip(&m, 1);
    write_file("k.npz", z);
    bytes_free(&z);
    bytes_free(&b);
}

static int read_and_compare(const char *spec, kit_error *err)
{
    kit_array a;
    const int code = kit_read_array(&a, spec, err);
    for (int i = 0; !code && i < N; i++)
        if (kit_array_get(&a, i) != i)
            return -1;
    if (code && a.data)
        return -2;
    kit_array_free(&a);
    return code;
}

static int read_npy(kit_error *err) { return read_and_compare("k.npy", err); }

static int read_npz(kit_error *err) { return read_and_compare("k.npz:q", err); }

static int pipe_end = -1;

static void prepare_pipe(void)
{
    int ends[2];
    if (pipe_end >= 0)
        __real_close(pipe_end);
    prepare_files();
    bytes b = read_file("k.npy");
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(__real_write(ends[1], b.data, b.size), b.size);
    __real_close(ends[1]);
    pipe_end = ends[0];
    bytes_free(&b);
}

static int read_pipe(kit_error *err)
{
    char spec[32];
    snprintf(spec, sizeof spec, "/dev/fd/%d", pipe_end);
    return read_and_compare(spec, err);
}

/* `count` entries, of which the first is `name`. */
static int list_some(const char *spec, size_t count, const char *name, kit_error *err)
{
    kit_entry *entries;
    size_t n;
    const int code = kit_read_list(&entries, &n, spec, err);
    if (code)
        return entries || n ? -1 : code;
    const bool right = n == count && entries[0].shape[0] == N && !strcmp(entries[0].name, name);
    free(entries);
    return right ? KIT_OK : -2;
}

static int list_npy(kit_error *err) { return list_some("k.npy", 1, "", err); }

static int list_npz(kit_error *err) { return list_some("k.npz", 1, "q", err); }

/* A double array as float and as bfloat16, each longer than what an output holds back, and texts
 * longer than the buffer of kit_output_printf. */
static int write_arrays(kit_output *out, kit_error *err)
{
    kit_array a = {0}, single = {0}, small = {0};
    int code = kit_array_new(&a, ATTN_F64, 2, (int64_t[]){100, 250}, err);
    if (!code)
        code = kit_array_convert(&single, &a, ATTN_F32, err);
    if (!code)
        code = kit_array_convert(&small, &a, ATTN_BF16, err);
    if (!code)
        code = kit_npy_write(out, &single, err);
    if (!code)
        code = kit_npy_write(out, &small, err);
    for (int i = 0; !code && i < 30; i++)
        code = kit_output_printf(out, err, "%01000d", 7);
    kit_array_free(&a);
    kit_array_free(&single);
    kit_array_free(&small);
    return code;
}

static int write_array(const char *path, kit_error *err)
{
    kit_output *out;
    int code = kit_output_open(&out, path, err);
    if (code)
        return code;
    code = write_arrays(out, err);
    if (!code)
        return kit_output_commit(out, err);
    kit_output_abort(out);
    return code;
}

enum { WRITTEN = 128 + 4 * 100 * 250 + 128 + 4 * 100 * 250 + 30 * 1000 };

static void prepare_old(void)
{
    bytes b = {0};
    put_text(&b, "old");
    write_file("w.npy", b);
    bytes_free(&b);
}

static int write_over_old(kit_error *err) { return write_array("w.npy", err); }

static void check_old_or_new(int code)
{
    bytes b = read_file("w.npy");
    if (b.size == WRITTEN)
        assert_memory_equal(b.data, "\x93NUMPY", 6);
    else if (code == KIT_OK || b.size != 3 || memcmp(b.data, "old", 3) != 0)
        fail_msg("code %d and %zu bytes", code, b.size);
    bytes_free(&b);
}

static void prepare_nothing(void) { unlink("w.npy"); }

static void check_absent_or_new(int code)
{
    struct stat st;
    if (stat("w.npy", &st) == 0)
        assert_int_equal(st.st_size, WRITTEN);
    else
        assert_int_not_equal(code, KIT_OK);
}

static int sink = -1;

static void prepare_sink(void)
{
    if (sink >= 0)
        __real_close(sink);
    sink = __real_open("sink", O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_number(sink, >=, 0);
}

static int write_in_place(kit_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "/dev/fd/%d", sink);
    return write_array(name, err);
}

static void check_sink(int code)
{
    struct stat st;
    assert_int_equal(stat("sink", &st), 0);
    if (code == KIT_OK)
        assert_int_equal(st.st_size, WRITTEN);
    else if (fault.memory)
        assert_int_equal(st.st_size, 0); /* what was held back is gone */
}

static int write_device(kit_error *err) { return write_array("/dev/null", err); }

/* Two tensors, wide and narrow. */
static int write_tensors(kit_error *err)
{
    kit_array a = {0}, b = {0};
    kit_output *out = NULL;
    int code = kit_array_new(&a, ATTN_F32, 1, (int64_t[]){N}, err);
    for (int i = 0; !code && i < N; i++)
        ((float *)a.data)[i] = (float)i;
    if (!code)
        code = kit_array_new(&b, ATTN_BOOL, 1, (int64_t[]){3}, err);
    const kit_tensor tensors[] = {{"b", &b}, {"q", &a}};
    if (!code)
        code = kit_output_open(&out, "k.safetensors", err);
    if (!code)
        code = kit_safetensors_write(out, tensors, 2, &(kit_text){"k", "v"}, 1, err);
    if (code)
        kit_output_abort(out);
    else
        code = kit_output_commit(out, err);
    kit_array_free(&a);
    kit_array_free(&b);
    return code;
}

static void prepare_tensors(void) { assert_int_equal(write_tensors(NULL), KIT_OK); }

static void check_tensors(int code)
{
    (void)code; /* the old file or the new one */
    assert_int_equal(read_and_compare("k.safetensors:q", NULL), KIT_OK);
}

static int read_tensor(kit_error *err) { return read_and_compare("k.safetensors:q", err); }

static int list_tensors(kit_error *err) { return list_some("k.safetensors", 2, "q", err); }

/* A run that begins, or goes on from its checkpoint, and is told and saved. */
static int train_a_step(bool resume, kit_error *err)
{
    const train_config c = {.task = TRAIN_COPY,
                            .vocabulary = 3,
                            .length = 4,
                            .embed = 4,
                            .heads = 1,
                            .layers = 1,
                            .batch = 2,
                            .lr = 0.01,
                            .unseen = 1};
    train_run *run = NULL;
    train_score score;
    trace t = {0};
    double loss;
    int code = resume ? train_load(&run, "run.st", NULL, NULL, err)
                      : train_begin(&run, &c, NULL, NULL, err);
    if (!code)
        code = train_keep_maps(run, err);
    if (!code)
        code = train_step(run, &loss, err);
    if (!code)
        code = train_measure(run, &score, err);
    if (!code)
        code = train_to_trace(&t, run, err);
    if (!code)
        code = train_save(run, "run.st", err);
    trace_free(&t);
    train_end(run);
    return code;
}

static int train_first(kit_error *err) { return train_a_step(false, err); }
static int train_more(kit_error *err) { return train_a_step(true, err); }

static int read_text(kit_error *err)
{
    static const char text[] = "a text of characters";
    train_text t;
    const int code = train_text_make(&t, text, sizeof text - 1, "text", err);
    if (!code && t.count != sizeof text - 1)
        return -1;
    if (!code)
        train_text_free(&t);
    return code;
}

static void prepare_run(void) { assert_int_equal(train_first(NULL), KIT_OK); }

static void check_run(int code)
{
    train_run *run;
    (void)code; /* a checkpoint is always there, the old one or the new one */
    assert_int_equal(train_load(&run, "run.st", NULL, NULL, NULL), KIT_OK);
    train_end(run);
}

static const operation text = {"a text to train on", prepare_nothing, read_text, NULL, false};

static const operation operations[] = {
    {"read .npy", prepare_files, read_npy, NULL, false},
    {"read .npz", prepare_files, read_npz, NULL, false},
    {"read a pipe", prepare_pipe, read_pipe, NULL, false},
    {"list .npy", prepare_files, list_npy, NULL, false},
    {"list .npz", prepare_files, list_npz, NULL, false},
    {"write over a file", prepare_old, write_over_old, check_old_or_new, false},
    {"write a new file", prepare_nothing, write_over_old, check_absent_or_new, true},
    {"write in place", prepare_sink, write_in_place, check_sink, false},
    {"write to a device", prepare_sink, write_device, NULL, false},
    {"read .safetensors", prepare_tensors, read_tensor, NULL, false},
    {"list .safetensors", prepare_tensors, list_tensors, NULL, false},
    {"write .safetensors", prepare_tensors, write_tensors, check_tensors, false},
    {"train", prepare_run, train_first, check_run, false},
    {"resume", prepare_run, train_more, check_run, false},
};

/* ----------------------------------------------------------------------------------- Tests */

static void test_every_call_fails_once(void **state)
{
    (void)state;
    for_each(operations, COUNT(operations), fail_each_call_once);
}

static void test_every_call_fails_from_there_on(void **state)
{
    (void)state;
    for_each(operations, COUNT(operations), fail_each_call_for_good);
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    for_each(operations, COUNT(operations), fail_each_allocation);
    fail_each_allocation(&text); /* it makes no call to the system */
}

/* The file is on the disk before it gets its name, and then the name is. */
static void test_order_of_a_commit(void **state)
{
    (void)state;
    kit_error err;
    assert_int_equal(run(&operations[5], 0, 0, 0, false, &err), KIT_OK);
    assert_string_equal(story, "owsrs");
    assert_int_equal(run(&operations[8], 0, 0, 0, false, &err), KIT_OK);
    assert_string_equal(story, "w");
}

/* The close of a written file is where some file systems first say that it was not. */
static void test_close_that_fails(void **state)
{
    (void)state;
    kit_error err;
    int failed = 0;
    const long calls = count_calls(&operations[5], false);
    for (long at = 1; at <= calls; at++) {
        describe_case("call %ld fails", at);
        const int code = run(&operations[5], EIO, at, 1, false, &err);
        if (fault.hit_close && code) {
            assert_string_equal(err.message, "w.npy: cannot write: Input/output error");
            bytes b = read_file("w.npy");
            assert_int_equal(b.size, 3);
            bytes_free(&b);
            failed++;
        }
    }
    assert_int_equal(failed, 1);
}

/* A write that says that it wrote nothing, and gives no reason: no endless loop. */
static void test_writes_without_progress(void **state)
{
    (void)state;
    kit_error err;
    int failed = 0;
    const long calls = count_calls(&operations[5], false);
    for (long at = 1; at <= calls; at++)
        if (run(&operations[5], NOTHING, at, 1, false, &err) != KIT_OK) {
            assert_string_equal(err.message, "w.npy: cannot write: No space left on device");
            failed++;
        }
    assert_in_range(failed, 1, calls);
}

/* A folder that cannot be flushed is none of the user's concern. */
static void test_folder_that_cannot_be_flushed(void **state)
{
    (void)state;
    kit_error err;
    int folder = 0;
    const long calls = count_calls(&operations[5], false);
    for (long at = 1; at <= calls; at++)
        folder += run(&operations[5], EINVAL, at, 1, false, &err) == KIT_OK && !fault.hit_close;
    assert_int_equal(folder, 1);
}

/* The temporary name is taken, again and again: others are tried. */
static void test_names_that_are_taken(void **state)
{
    (void)state;
    kit_error err;
    assert_int_equal(run(&operations[6], EEXIST, 3, 99, false, &err), KIT_OK);
    assert_int_equal(run(&operations[6], EEXIST, 3, 1000, false, &err), KIT_LIMIT);
    assert_string_equal(err.message, "w.npy: cannot write: File exists");
}

/* The file is cut at every single read that its loading makes. */
static void test_F16_cut_at_every_read(void **state)
{
    (void)state;
    kit_error err;
    const long calls = count_calls(&operations[0], false);
    int cut = 0;
    for (long at = 1; at <= calls; at++) {
        const int code = run(&operations[0], CUT, at, 1, false, &err);
        if (code) {
            assert_memory_equal(err.message, "k.npy: ", 7);
            cut++;
        }
    }
    assert_in_range(cut, 3, calls);
}

static bytes whole; /* k.npy */

static void prepare_whole(void)
{
    prepare_files();
    bytes_free(&whole);
    whole = read_file("k.npy");
}

static int read_whole(kit_error *err)
{
    char *got;
    size_t size;
    const int code = io_read_bytes(&got, &size, "k.npy", 1 << 20, err);
    const bool same = !code && size == whole.size && memcmp(got, whole.data, size) == 0;
    free(got);
    return code || same ? code : -1;
}

/* A short read, and the file grows before the next one: only the bytes that were there at first are
 * read. */
static void test_file_that_grows_while_it_is_read(void **state)
{
    (void)state;
    static const operation grown = {"read bytes", prepare_whole, read_whole, NULL, false};
    kit_error err;
    int hits = 0;
    const long calls = count_calls(&grown, false);
    for (long at = 1; at <= calls; at++) {
        assert_int_equal(run(&grown, GROWN, at, 1, false, &err), KIT_OK);
        hits += fault.hit;
    }
    assert_int_equal(hits, 1);
    bytes_free(&whole);
}

/* An array of 4 GiB and a little, which is never touched, into a file with holes for its zeros. */
static void test_F12_more_than_4_GiB_written(void **state)
{
    (void)state;
    const int64_t count = (INT64_C(1) << 30) + 1;
    const size_t size = (size_t)count * 4;
    void *zeros = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(zeros != MAP_FAILED);
    const kit_array a = {ATTN_F32, 1, {count}, zeros, size};
    kit_output *out;
    kit_error err = {0};
    assert_int_equal(kit_output_open(&out, "large.npy", &err), KIT_OK);
    memset(&fault, 0, sizeof fault);
    fault.kind = SPARSE;
    armed = true;
    int code = kit_npy_write(out, &a, &err);
    armed = false;
    if (code) { /* a file system without such files */
        assert_string_equal(err.message, "large.npy: cannot write: File too large");
        kit_output_abort(out);
    } else {
        assert_int_equal(kit_output_commit(out, &err), KIT_OK);
        struct stat st;
        assert_int_equal(stat("large.npy", &st), 0);
        assert_int_equal(st.st_size, 128 + (off_t)size);
        kit_entry *entries;
        size_t n;
        assert_int_equal(kit_read_list(&entries, &n, "large.npy", &err), KIT_OK);
        assert_int_equal(entries[0].rank, 1);
        assert_int_equal(entries[0].shape[0], count);
        free(entries);
        assert_int_equal(unlink("large.npy"), 0);
    }
    munmap(zeros, size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_every_call_fails_from_there_on),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_order_of_a_commit),
        cmocka_unit_test(test_close_that_fails),
        cmocka_unit_test(test_writes_without_progress),
        cmocka_unit_test(test_folder_that_cannot_be_flushed),
        cmocka_unit_test(test_names_that_are_taken),
        cmocka_unit_test(test_F16_cut_at_every_read),
        cmocka_unit_test(test_file_that_grows_while_it_is_read),
        cmocka_unit_test(test_F12_more_than_4_GiB_written),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
