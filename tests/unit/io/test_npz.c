/* The .npz reader accepts archives as NumPy writes them and refuses inconsistent ones. */
#include "support/io_testing.h"

#include <zip.h>

static bytes array_of(float x)
{
    const bool big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    return npy(big ? "'>f4'" : "'<f4'", 0, "(1,)", &x, sizeof x);
}

static void put_zip(const char *path, const member *members, size_t count)
{
    bytes b = zip(members, count);
    write_file(path, b);
    bytes_free(&b);
}

static void free_members(member *members, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes_free(&members[i].data);
}

static void expect_holds(const char *spec, double value)
{
    kit_array a;
    kit_error err = {0};
    if (kit_read_array(&a, spec, &err))
        fail_msg("%s: %s", spec, err.message);
    assert_int_equal(kit_array_count(&a), 1);
    assert_number(kit_array_get(&a, 0), ==, value);
    kit_array_free(&a);
}

/* Puts one member with a lie in it beside a good one, and reads it. */
static void expect_member_refused(member lie, int code, const char *part)
{
    member members[] = {{.name = "good.npy", .data = array_of(1)}, lie};
    put_zip("f.npz", members, 2);
    char spec[300];
    snprintf(spec, sizeof spec, "f.npz:%s", lie.name);
    expect_refused(spec, code, "f.npz", part);
    free_members(members, 2);
}

/* ------------------------------------------------------------------------------ What works */

static void test_names(void **state)
{
    (void)state;
    for (int zip64 = 0; zip64 < 2; zip64++) {
        describe_case("zip64 = %d", zip64);
        member members[] = {{.name = "q.npy", .data = array_of(1), .zip64 = zip64},
                            {.name = "k", .data = array_of(2), .zip64 = zip64},
                            {.name = "layer/0.npy", .data = array_of(3), .zip64 = zip64}};
        const size_t before = count_descriptors();
        put_zip("f.npz", members, 3);
        expect_holds("f.npz:q", 1);
        expect_holds("f.npz:q.npy", 1);
        expect_holds("f.npz:k", 2);
        expect_holds("f.npz:k.npy", 2);
        expect_holds("f.npz:layer/0", 3);
        expect_refused("f.npz:v", KIT_BAD_FILE,
                       "f.npz:v: ", "has no array 'v'; it has k, layer/0, q");
        expect_refused("f.npz:", KIT_BAD_FILE, "f.npz:: ", "has no array ''");
        expect_refused("f.npz", KIT_BAD_FILE, "f.npz: ",
                       "name one array of it, as in file.npz:name; it has k, layer/0, q");
        put_zip("f.npz", members, 1);
        expect_holds("f.npz", 1);
        assert_int_equal(count_descriptors(), before);
        free_members(members, 3);
    }
    put_zip("f.npz", NULL, 0);
    expect_refused("f.npz", KIT_BAD_FILE, "f.npz: ", "it has nothing");
    kit_entry *entries;
    size_t count;
    assert_int_equal(kit_read_list(&entries, &count, "f.npz", NULL), KIT_OK);
    assert_int_equal(count, 0);
    assert_non_null(entries);
    free(entries);
}

static void test_list(void **state)
{
    (void)state;
    member members[] = {{.name = "q.npy", .data = npy("'<f2'", 0, "(2, 3)", NULL, 12)},
                        {.name = "ids.npy", .data = npy("'|u1'", 1, "()", NULL, 1)}};
    put_zip("f.npz", members, 2);
    kit_entry *entries;
    size_t count;
    kit_error err = {0};
    if (kit_read_list(&entries, &count, "f.npz", &err))
        fail_msg("%s", err.message);
    assert_int_equal(count, 2);
    assert_string_equal(entries[0].name, "ids");
    assert_int_equal(entries[0].dtype, ATTN_I64);
    assert_int_equal(entries[0].rank, 0);
    assert_string_equal(entries[1].name, "q");
    assert_int_equal(entries[1].dtype, ATTN_F16);
    assert_int_equal(entries[1].rank, 2);
    assert_int_equal(entries[1].shape[0], 2);
    assert_int_equal(entries[1].shape[1], 3);
    free(entries);
    assert_int_equal(kit_read_list(&entries, &count, "f.npz:q.npy", &err), KIT_OK);
    assert_int_equal(count, 1);
    assert_string_equal(entries[0].name, "q");
    free(entries);
    assert_int_equal(kit_read_list(&entries, &count, "f.npz:v", &err), KIT_BAD_FILE);
    free_members(members, 2);

    member text = {.name = "readme.txt"};
    put_text(&text.data, "not an array");
    put_zip("f.npz", &text, 1);
    assert_int_equal(kit_read_list(&entries, &count, "f.npz", &err), KIT_BAD_FILE);
    assert_string_equal(err.message, "f.npz:readme.txt: not a .npy file");
    assert_null(entries);
    bytes_free(&text.data);
}

/* Compressed members, made by libzip: a real one, and one that expands as far as deflate can. */
static void test_deflate(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    bytes zeros = npy("'|i1'", 0, "(1048576,)", NULL, N), mixed = {0};
    unsigned char *noise = malloc(N);
    assert_non_null(noise);
    for (uint32_t i = 0, x = 1; i < N; i++, x = x * 1664525 + 1013904223)
        noise[i] = (unsigned char)(x >> 24 & (i & 1 ? 0x7F : 0x03));
    mixed = npy("'|i1'", 0, "(1048576,)", noise, N);

    int code;
    zip_t *z = zip_open("f.npz", ZIP_CREATE | ZIP_TRUNCATE, &code);
    assert_non_null(z);
    assert_int_equal(zip_file_add(z, "zeros.npy", zip_source_buffer(z, zeros.data, zeros.size, 0),
                                  0),
                     0);
    assert_int_equal(zip_file_add(z, "mixed.npy", zip_source_buffer(z, mixed.data, mixed.size, 0),
                                  0),
                     1);
    for (zip_uint64_t i = 0; i < 2; i++)
        assert_int_equal(zip_set_file_compression(z, i, ZIP_CM_DEFLATE, 9), 0);
    assert_int_equal(zip_close(z), 0);

    kit_array a;
    kit_error err = {0};
    if (kit_read_array(&a, "f.npz:mixed", &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < N; i++)
        assert_number(kit_array_get(&a, i), ==, noise[i]);
    kit_array_free(&a);
    if (kit_read_array(&a, "f.npz:zeros", &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < N; i++)
        assert_number(kit_array_get(&a, i), ==, 0);
    kit_array_free(&a);
    free(noise);
    bytes_free(&zeros);
    bytes_free(&mixed);
}

/* -------------------------------------------------------------------------- What is refused */

static void test_F08_duplicate_members(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"q.npy", "q.npy"}, {"q", "q.npy"}};
    for (size_t i = 0; i < COUNT(pairs); i++) {
        member members[] = {{.name = pairs[i][0], .data = array_of(1)},
                            {.name = "k.npy", .data = array_of(1)},
                            {.name = pairs[i][1], .data = array_of(2)}};
        put_zip("f.npz", members, 3);
        expect_refused("f.npz:q", KIT_BAD_FILE, "f.npz:q: ", "");
        expect_refused("f.npz:k", KIT_BAD_FILE, "f.npz:k: ", ""); /* the whole archive */
        free_members(members, 3);
    }
    member members[] = {{.name = "q.npy", .data = array_of(1)}, {.name = "q", .data = array_of(1)}};
    put_zip("f.npz", members, 2);
    expect_refused("f.npz:q", KIT_BAD_FILE, "f.npz:q: ", "two members are called 'q'");
    free_members(members, 2);
}

static void test_F13_absurd_names(void **state)
{
    (void)state;
    char *longest = malloc(65536), fits[256];
    assert_non_null(longest);
    memset(longest, 'n', 65535);
    longest[65535] = 0;
    memset(fits, 'n', 255);
    fits[255] = 0;
    const char *const names[] = {"../q.npy", "a/../q", "a/..", "..",        "/q.npy",
                                 "a/",       "a\nb",   "a\\b", "a\x7F.npy", longest};
    for (size_t i = 0; i < COUNT(names); i++) {
        member m = {.name = names[i], .data = array_of(1)};
        put_zip("f.npz", &m, 1);
        expect_refused("f.npz", KIT_BAD_FILE, "f.npz: ", "which cannot name an array");
        bytes_free(&m.data);
    }
    static const char *const fine[] = {"a..b", "...", "a/...npy", " ", "\xC3\xA9.npy"};
    for (size_t i = 0; i <= COUNT(fine); i++) {
        member m = {.name = i < COUNT(fine) ? fine[i] : fits, .data = array_of(7), .flags = 0x800};
        put_zip("f.npz", &m, 1);
        expect_holds("f.npz", 7);
        bytes_free(&m.data);
    }
    /* A NUL within: whatever the member is called then, it is not "q". */
    member nul = {.name = "q\0.npy", .name_size = 6, .data = array_of(1)};
    member other = {.name = "k.npy", .data = array_of(2)};
    put_zip("f.npz", (member[]){nul, other}, 2);
    expect_refused("f.npz:q", KIT_BAD_FILE, "f.npz:q: ", "");
    bytes_free(&nul.data);
    bytes_free(&other.data);
    member empty = {.name = "", .data = array_of(1)};
    put_zip("f.npz", &empty, 1);
    expect_refused("f.npz", KIT_BAD_FILE, "f.npz: ", "which cannot name an array");
    bytes_free(&empty.data);
    free(longest);
}

static void test_F13_headers_that_disagree(void **state)
{
    (void)state;
    expect_member_refused((member){.name = "q.npy", .data = array_of(1), .local_name = "k.npy"},
                          KIT_BAD_FILE, "onsisten");
    expect_member_refused((member){.name = "q.npy", .data = array_of(1), .local_crc = 5},
                          KIT_BAD_FILE, "onsisten");
    /* Two names for one place in the file. */
    expect_member_refused((member){.name = "q.npy", .data = array_of(1), .share = 1}, KIT_BAD_FILE,
                          "onsisten");
}

static void test_F13_crc(void **state)
{
    (void)state;
    expect_member_refused((member){.name = "q.npy", .data = array_of(1), .crc = 0xBAD},
                          KIT_BAD_FILE, "CRC error");
    /* Of an array without elements too, whose header is all there is. */
    expect_member_refused((member){.name = "q.npy",
                                   .data = npy("'<f4'", 0, "(0,)", NULL, 0),
                                   .crc = 0xBAD},
                          KIT_BAD_FILE, "CRC error");
}

static void test_F13_methods_and_encryption(void **state)
{
    (void)state;
    expect_member_refused((member){.name = "q.npy", .data = array_of(1), .flags = 1}, KIT_BAD_FILE,
                          "is encrypted");
    static const int methods[] = {1, 9, 12, 14, 93, 95, 98, 65535};
    for (size_t i = 0; i < COUNT(methods); i++)
        expect_member_refused((member){.name = "q.npy", .data = array_of(1), .method = methods[i]},
                              KIT_BAD_FILE, "compression method");
    /* deflate that is none */
    expect_member_refused((member){.name = "q.npy", .data = array_of(1), .method = 8}, KIT_BAD_FILE,
                          "f.npz:q.npy: ");
}

static void test_F13_bombs(void **state)
{
    (void)state;
    bytes some = {0};
    for (int i = 0; i < 1000; i++)
        put_number(&some, 0, 1);
    struct {
        uint64_t size;
        int code;
        const char *part;
    } cases[] = {
        {1033000, KIT_BAD_FILE, "1033000 bytes cannot be compressed 1033 times"},
        {UINT64_C(1) << 40, KIT_BAD_FILE, "cannot be"},
        {UINT64_MAX, KIT_BAD_FILE, "f.npz:q.npy: "},
        {UINT64_C(1) << 63, KIT_BAD_FILE, "f.npz:q.npy: "},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        bytes copy = {0};
        put(&copy, some.data, some.size);
        expect_member_refused(
            (member){.name = "q.npy", .data = copy, .method = 8, .size = cases[i].size, .zip64 = 1},
            cases[i].code, cases[i].part);
    }
    expect_member_refused((member){.name = "q.npy", .method = 8, .size = 100}, KIT_BAD_FILE,
                          "f.npz:q.npy: ");
    /* Sizes that deflate could reach, of members that really are that big in the file. */
    static const struct {
        size_t stored;
        uint64_t size;
        int code;
        const char *part;
    } large[] = {{2 << 20, UINT64_C(1100) << 20, KIT_LIMIT, "are above the limit"},
                 {20 << 20, UINT64_C(17) << 30, KIT_LIMIT, "are above the limit"},
                 {20 << 20, UINT64_C(1100) << 20, KIT_BAD_FILE, ": "}};
    for (size_t i = 0; i < COUNT(large); i++) {
        member m = {.name = "q.npy", .method = 8, .size = large[i].size, .zip64 = 1, .crc = 1};
        m.data.data = calloc(1, large[i].stored);
        m.data.size = large[i].stored;
        put_zip("f.npz", &m, 1);
        expect_refused("f.npz", large[i].code, "f.npz: ", large[i].part);
        bytes_free(&m.data);
    }
    bytes_free(&some);
}

/* A member says a size in the zip that its .npy header contradicts: both ways. */
static void test_F11_sizes_inside_an_archive(void **state)
{
    (void)state;
    static const char *const headers[] = {"(1000,)", "(4611686018427387904,)", "(0,)"};
    for (size_t i = 0; i < COUNT(headers); i++)
        expect_member_refused((member){.name = "q.npy",
                                       .data = npy("'<f4'", 0, headers[i], NULL, 4)},
                              KIT_BAD_FILE, "header says shape");
    bytes b = {0};
    put(&b, "\x93NUMPY\1\0\xFF\xFF{", 11);
    expect_member_refused((member){.name = "q.npy", .data = b}, KIT_BAD_FILE,
                          "a header of 65535 bytes, but only 1 follow");
    b = (bytes){0};
    put(&b, "\x93NUMPY\2\0\xFF\xFF\xFF\xFF", 12);
    expect_member_refused((member){.name = "q.npy", .data = b}, KIT_BAD_FILE,
                          "a header of 4294967295 bytes; at most 65536 are supported");
    /* The zip's own size is a lie. */
    for (int more = -1; more <= 1; more += 2) {
        member m = {.name = "q.npy", .data = array_of(1)};
        m.size = (uint64_t)((int64_t)m.data.size + more);
        expect_member_refused(m, KIT_BAD_FILE, "f.npz:q.npy: ");
        m.data = array_of(1);
        m.size = 0;
        m.stored = (uint64_t)((int64_t)m.data.size + 1000 * more * more);
        expect_member_refused(m, KIT_BAD_FILE, "f.npz:q.npy: ");
    }
}

static void test_no_archive(void **state)
{
    (void)state;
    bytes b = {0};
    put_text(&b, "PK\3\4 and then nothing that a zip has");
    write_file("f.npz", b);
    expect_refused("f.npz", KIT_BAD_FILE, "f.npz: ", "Not a zip archive");
    expect_refused("f.npz:q", KIT_BAD_FILE, "f.npz:q: ", "Not a zip archive");
    bytes_free(&b);
    member m = {.name = "q.npy", .data = array_of(1)};
    b = zip(&m, 1);
    for (size_t size = 4; size < b.size; size++) { /* every truncation */
        bytes cut = {.data = b.data, .size = size};
        write_file("f.npz", cut);
        expect_refused("f.npz", KIT_BAD_FILE, "f.npz: ", "");
    }
    bytes_free(&b);
    bytes_free(&m.data);
}

static void test_too_many_members(void **state)
{
    (void)state;
    enum { N = 16385 };
    member *members = calloc(N, sizeof *members);
    char(*names)[16] = calloc(N, sizeof *names);
    assert_true(members && names);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        members[i] = (member){.name = names[i]};
    }
    put_zip("f.npz", members, N);
    expect_refused("f.npz:1", KIT_LIMIT, "f.npz:1: ", "16385 members; at most 16384 are supported");
    free(members);
    free(names);
}

/* More names than a message has room for. */
static void test_many_members(void **state)
{
    (void)state;
    enum { N = 300 };
    static member members[N];
    static char names[N][32];
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "array%03d.npy", i);
        members[i] = (member){.name = names[i], .data = array_of((float)i)};
    }
    put_zip("f.npz", members, N);
    expect_holds("f.npz:array217", 217);
    expect_refused("f.npz:x", KIT_BAD_FILE, "f.npz:x: ", "it has array000, array001, ");
    kit_error err;
    kit_array a;
    kit_read_array(&a, "f.npz:x", &err);
    assert_string_equal(err.message + strlen(err.message) - 3, "...");
    free_members(members, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_deflate),
        cmocka_unit_test(test_F08_duplicate_members),
        cmocka_unit_test(test_F11_sizes_inside_an_archive),
        cmocka_unit_test(test_F13_absurd_names),
        cmocka_unit_test(test_F13_headers_that_disagree),
        cmocka_unit_test(test_F13_crc),
        cmocka_unit_test(test_F13_methods_and_encryption),
        cmocka_unit_test(test_F13_bombs),
        cmocka_unit_test(test_no_archive),
        cmocka_unit_test(test_many_members),
        cmocka_unit_test(test_too_many_members),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
