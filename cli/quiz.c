/* attn quiz: a sheet of questions for a student, the key for a teacher, and the grading. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kit/explain/lessons/sheet.h"
#include "command.h"
#include "files.h"
#include "terminal.h"
#include "view.h"

/* Refuses options that exclude each other. */
static int check_agreement(const options *o, kit_error *err)
{
    static const option_id others[] = {OPT_quiz_seed, OPT_quiz_output, OPT_quiz_answers};
    if (o->operand_count)
        return kit_fail(err, KIT_USAGE, "quiz takes no '%s'; the questions come from --seed",
                        o->operand[0]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (option_given(o, OPT_quiz_grade) && option_given(o, others[i]))
            return kit_fail(err, KIT_USAGE,
                            "--%s does not go with --grade; the seed is in the file of answers",
                            option_of(others[i])->name);
    if (option_given(o, OPT_quiz_answers) && option_given(o, OPT_quiz_output))
        return kit_fail(err, KIT_USAGE, "-o does not go with --answers; a sheet has no answers");
    return KIT_OK;
}

/* The bytes are written only when they are complete. */
static int print_bytes(const char *bytes, size_t size, kit_error *err)
{
    bool failed = fwrite(bytes, 1, size, stdout) != size;
    failed = fflush(stdout) || failed;
    return failed ? kit_fail(err, KIT_LIMIT, "standard output: %s", strerror(errno)) : KIT_OK;
}

static int print_sheet(const sheet *s, sheet_part part, kit_error *err)
{
    char *bytes = NULL;
    size_t size = 0;
    int code = sheet_text(&bytes, &size, s, part, terminal_find_width(), terminal_is_utf8(), err);
    if (!code)
        code = print_bytes(bytes, size, err);
    free(bytes);
    return code;
}

static int write_sheet(const sheet *s, const char *path, kit_error *err)
{
    files f = {0};
    char *bytes = NULL;
    size_t size = 0, length = strlen(path);
    if (length < 5 || strcmp(path + length - 5, ".html") != 0)
        return kit_fail(err, KIT_USAGE, "-o %s: a sheet is a page, so the suffix must be .html",
                        path);
    int code = files_add_output(&f, path, err);
    if (!code)
        code = sheet_html(&bytes, &size, s, err);
    if (!code)
        code = files_open(&f, err);
    if (!code)
        code = kit_output_write(f.output[0].file, bytes, size, err);
    if (!code)
        code = files_commit(&f, err);
    if (!code)
        view_put_written(path, size);
    free(bytes);
    files_free(&f);
    return code;
}

static int grade(sheet *s, const char *path, kit_error *err)
{
    sheet_answers a;
    char *bytes = NULL;
    size_t size = 0;
    int right = 0;
    int code = sheet_read_answers(&a, path, err);
    if (!code)
        code = sheet_make(s, a.seed, err);
    if (!code)
        code = sheet_grade(&bytes, &size, &right, s, &a, terminal_find_width(), terminal_is_utf8(),
                           err);
    if (!code)
        code = print_bytes(bytes, size, err);
    free(bytes);
    return code ? code : right < SHEET_QUESTIONS ? KIT_CHECK_FAILED : KIT_OK;
}

int command_quiz(const options *o, kit_error *err)
{
    const char *file = option_text(o, OPT_quiz_grade), *path = option_text(o, OPT_quiz_output);
    int code = check_agreement(o, err);
    sheet *s = code ? NULL : malloc(sizeof *s); /* too large for a small stack */
    if (!code && !s)
        code = kit_fail(err, KIT_LIMIT, "out of memory");
    if (!code && file)
        code = grade(s, file, err);
    else if (!code && !(code = sheet_make(s, option_seed(o, OPT_quiz_seed), err)))
        code = path
                   ? write_sheet(s, path, err)
                   : print_sheet(s, option_given(o, OPT_quiz_answers) ? SHEET_KEY : SHEET_ASK, err);
    free(s);
    return code;
}
