/* Statuses, enums and error messages keep their values and their form. */
#include <stdio.h>
#include <string.h>

#include "core/internal.h"
#include "support/test.h"

/* The values are pinned: a binding may have them built in. */
static void statuses_keep_values_and_names(void **state)
{
    (void)state;
    static const char *const names[] = {"ATTN_OK",        "ATTN_ERR_ARGUMENT",    "ATTN_ERR_SHAPE",
                                        "ATTN_ERR_DTYPE", "ATTN_ERR_STRIDE",      "ATTN_ERR_MEMORY",
                                        "ATTN_ERR_LIMIT", "ATTN_ERR_UNSUPPORTED", "ATTN_ERR_FULL",
                                        "ATTN_ERR_FILE",  "ATTN_AGAIN",           "ATTN_ERR_COMM"};
    for (int i = 0; i < 12; i++)
        assert_string_equal(attn_status_name((attn_status)i), names[i]);
    assert_string_equal(attn_status_name((attn_status)12), "unknown status");
    assert_string_equal(attn_status_name((attn_status)-1), "unknown status");
}

/* Every value of every enum: older programs and bindings have them built in. */
static void enums_keep_their_values(void **state)
{
    (void)state;
    static const struct {
        int value, pinned;
    } all[] = {
        {ATTN_OK, 0},
        {ATTN_ERR_ARGUMENT, 1},
        {ATTN_ERR_SHAPE, 2},
        {ATTN_ERR_DTYPE, 3},
        {ATTN_ERR_STRIDE, 4},
        {ATTN_ERR_MEMORY, 5},
        {ATTN_ERR_LIMIT, 6},
        {ATTN_ERR_UNSUPPORTED, 7},
        {ATTN_ERR_FULL, 8},
        {ATTN_ERR_FILE, 9},
        {ATTN_AGAIN, 10},
        {ATTN_ERR_COMM, 11},
        {ATTN_F64, 1},
        {ATTN_F32, 2},
        {ATTN_F16, 3},
        {ATTN_BF16, 4},
        {ATTN_BOOL, 5},
        {ATTN_I64, 6},
        {ATTN_I8, 7},
        {ATTN_CAUSAL_NONE, 0},
        {ATTN_CAUSAL_TOP_LEFT, 1},
        {ATTN_CAUSAL_BOTTOM_RIGHT, 2},
        {ATTN_CAUSAL_OFFSET, 3},
        {ATTN_STAGE_RAW, 0},
        {ATTN_STAGE_SOFTCAP, 1},
        {ATTN_STAGE_BIASED, 2},
        {ATTN_STAGE_WEIGHTS, 3},
        {ATTN_PRECISION_DEFAULT, 0},
        {ATTN_PRECISION_ACCURATE, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value != all[i].pinned)
            fail_msg("value %zu of the table is %d; it was released as %d", i, all[i].value,
                     all[i].pinned);
    assert_int_equal(sizeof(attn_status), 4);
    assert_int_equal(sizeof(attn_dtype), 4);
    assert_int_equal(sizeof(attn_causal), 4);
    assert_int_equal(sizeof(attn_stage), 4);
    assert_int_equal(sizeof(attn_precision), 4);
}

static void version_is_the_header_s(void **state)
{
    (void)state;
    char parts[32];
    snprintf(parts, sizeof parts, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR,
             ATTN_VERSION_PATCH);
    assert_memory_equal(attn_version(), parts, strlen(parts));
    const char *rest = attn_version() + strlen(parts);
    assert_true(!*rest || strcmp(rest, " (compiled without optimisation)") == 0);
}

static const char *message(const char *argument, const char *text)
{
    static attn_error err;
    memset(&err, 0x7f, sizeof err);
    assert_int_equal(attni_fail(&err, ATTN_ERR_SHAPE, argument, "%s", text), ATTN_ERR_SHAPE);
    assert_int_equal(err.status, ATTN_ERR_SHAPE);
    assert_string_equal(err.argument, argument);
    return err.message;
}

static void messages_start_with_the_argument(void **state)
{
    (void)state;
    assert_string_equal(message("k", "k has D=3"), "k has D=3");
    assert_string_equal(message("k", "k: wrong"), "k: wrong");
    assert_string_equal(message("k", "keys differ"), "k keys differ");
    assert_string_equal(message("k", "k_2 differs"), "k k_2 differs");
    assert_string_equal(message("count", "is -1"), "count is -1");
    assert_string_equal(message("count", ""), "count ");
    assert_string_equal(message("", "no memory"), "no memory");
}

static void messages_are_one_line(void **state)
{
    (void)state;
    assert_string_equal(message("isa", "isa is 'a\nb\tc\r\x7f\x1b[0m'"), "isa is 'a?b?c???[0m'");
    assert_string_equal(message("isa", "isa is 'caf\xc3\xa9'"), "isa is 'caf\xc3\xa9'");
}

static void long_messages_are_cut_inside_the_struct(void **state)
{
    (void)state;
    char text[1000];
    for (size_t n = 200; n < sizeof text; n++) {
        describe_case("%zu characters", n);
        memset(text, 'x', n);
        text[n] = '\0';
        attn_error around[3];
        memset(around, 0x55, sizeof around);
        attni_fail(&around[1], ATTN_ERR_LIMIT, text, "%s", n % 2 ? text : text + 199);
        assert_int_equal(strlen(around[1].argument), sizeof around[1].argument - 1);
        assert_number(strlen(around[1].message), <, sizeof around[1].message);
        for (size_t i = 0; i < sizeof around[0]; i++) {
            assert_int_equal(((unsigned char *)&around[0])[i], 0x55);
            assert_int_equal(((unsigned char *)&around[2])[i], 0x55);
        }
    }
}

static void no_error_struct_is_fine(void **state)
{
    (void)state;
    assert_int_equal(attni_fail(NULL, ATTN_ERR_DTYPE, "q", "%d", 3), ATTN_ERR_DTYPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_keep_values_and_names),
        cmocka_unit_test(enums_keep_their_values),
        cmocka_unit_test(version_is_the_header_s),
        cmocka_unit_test(messages_start_with_the_argument),
        cmocka_unit_test(messages_are_one_line),
        cmocka_unit_test(long_messages_are_cut_inside_the_struct),
        cmocka_unit_test(no_error_struct_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
