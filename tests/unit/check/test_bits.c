/* This build's results have the hashes of the record of bits, on every instruction set here.
 *
 * labels: slow
 * timeout: 900
 *
 * A comparison that cannot see a difference, or that compares nothing, fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_bits.h"
#include "support/test.h"

#define RECORD ATTN_TEST_DATA "/bits-0.1.txt"

/* Sanitizers make it 20 times slower: there, some problems of each kind are compared. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EVERY 23
#else
#define EVERY 1
#endif

static char message[200];

/* The record, and a byte more that may be used; the caller's to free. */
static char *read_record(void)
{
    FILE *file = fopen(RECORD, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    const size_t n = fread(text, 1, (1 << 20) - 2, file);
    assert_number(n, >, 0);
    assert_number(n, <, 200000);
    fclose(file);
    return text;
}

/* The beginning of a problem's line. */
static char *line_of(char *text, int problem)
{
    char start[16];
    snprintf(start, sizeof start, "\n%d ", problem);
    char *at = strstr(text, start);
    assert_non_null(at);
    return at + 1;
}

/* Compares with `text`, or prints a table where it is NULL; what is printed is the caller's to
 * free. */
static int run(char *text, const char *isa, int every, char **out)
{
    size_t size;
    check_bits_options options = {.isa = isa, .every = every, .out = open_memstream(out, &size)};
    assert_non_null(options.out);
    if (text) {
        options.record = tmpfile();
        assert_non_null(options.record);
        fputs(text, options.record);
        rewind(options.record);
    }
    message[0] = 0;
    const int differ = check_bits(&options, message, sizeof message);
    fclose(options.out);
    if (options.record)
        fclose(options.record);
    return differ;
}

/* The results are those of the record. */
static void test_record(void **state)
{
    (void)state;
    char *text = read_record(), *out;
    const int differ = run(text, NULL, EVERY, &out);
    if (differ != 0)
        fail_msg("%d differ: %s%s", differ, message, out);
    long compared = 0;
    assert_int_equal(sscanf(out, "%ld hashes compared, 0 differ;", &compared), 1);
    assert_number(compared, >=, CHECK_BITS_PROBLEMS / EVERY); /* at least generic's */
    assert_non_null(strstr(out, " generic compared"));
    free(out);
    free(text);
}

/* The program prints the hashes of the record; that of generic is the third word of a line. */
static void test_table(void **state)
{
    (void)state;
    char *text = read_record(), *out, *line;
    assert_int_equal(run(NULL, "generic", 199, &out), 0);
    assert_non_null(line = strchr(out, '\n'));
    for (int problem = 0; problem < CHECK_BITS_PROBLEMS; problem += 199) {
        describe_case("problem %d", problem);
        const char *want = line_of(text, problem);
        const size_t length = (size_t)(strchr(strchr(want, ' ') + 1, ' ') + 13 - want);
        assert_memory_equal(line + 1, want, length);
        assert_non_null(line = strchr(line + 1, '\n'));
    }
    assert_string_equal(line, "\n");
    free(out);
    free(text);
}

/* One digit: it is seen, and said where. */
static void test_difference(void **state)
{
    (void)state;
    char *text = read_record(), *out;
    char *digit = strchr(strchr(line_of(text, 1000), ' ') + 1, ' ') + 1;
    *digit = *digit == '0' ? '1' : '0';
    assert_int_equal(run(text, "generic", 500, &out), 1);
    assert_non_null(strstr(out, "FAIL problem 1000 forward generic ("));
    assert_non_null(strstr(out, "\n4 hashes compared, 1 differ; generic compared"));
    free(out);
    free(text);
}

/* Where there is nothing to compare, the comparison fails. */
static void test_nothing_compared(void **state)
{
    (void)state;
    char *text = read_record(), *out;
    assert_int_equal(run(text, "no such set", 1, &out), 1);
    assert_non_null(strstr(out, "0 hashes compared, 0 differ; generic not run"));
    free(out);
    for (int problem = 0; problem < CHECK_BITS_PROBLEMS; problem++) {
        char *hash = strchr(strchr(line_of(text, problem), ' ') + 1, ' ') + 1;
        memmove(hash + 1, hash + 12, strlen(hash + 12) + 1);
        *hash = '-';
    }
    assert_int_equal(run(text, "generic", 1, &out), 1);
    assert_non_null(strstr(out, "0 hashes compared, 0 differ; generic not in the record"));
    free(out);
    free(text);
}

static void expect_damaged(char *text, const char *says)
{
    char *out;
    assert_int_equal(run(text, "generic", 1, &out), -1);
    if (!strstr(message, says))
        fail_msg("\"%s\" should say \"%s\"", message, says);
    assert_string_equal(out, "");
    free(out);
}

static void test_damaged(void **state)
{
    (void)state;
    char *text = read_record(), *copy = read_record(), kept;
    expect_damaged("", "ends before it has 2000 problems");
    expect_damaged("problem kind generic avx2\n", "heads of the columns");

    char *line = line_of(text, 1999);
    kept = *line, *line = 0; /* a problem is missing */
    expect_damaged(text, "ends before it has 2000 problems");
    *line = kept;
    for (size_t cut = strlen(line); cut-- > 1; line[cut] = kept) { /* within the line */
        kept = line[cut], line[cut] = 0;
        expect_damaged(text, "line ");
    }
    const size_t length = strlen(line);
    memcpy(line + length, copy + (line - text), length + 1); /* one too many */
    expect_damaged(text, "more problems than 2000");
    text[strlen(text) - strlen(line) / 2] = 0;

    strcpy(text, copy);
    line_of(text, 7)[0] = '8';
    expect_damaged(text, "should begin with \"7 ");
    strcpy(text, copy);
    strchr(strchr(line_of(text, 7), ' ') + 1, ' ')[3] = 'x';
    expect_damaged(text, "not a hash of 12 digits");
    strcpy(text, copy);
    memcpy(strchr(line_of(text, 7), '\n'), " -\n", 3); /* over what follows */
    expect_damaged(text, "not a hash of 12 digits");
    free(text);
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record),     cmocka_unit_test(test_table),
        cmocka_unit_test(test_difference), cmocka_unit_test(test_nothing_compared),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
