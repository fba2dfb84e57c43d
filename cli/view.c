/* Shows a trace as text, JSON or pictures, or as a quiz. Everything is rendered before anything is
 * written, and files are complete before stdout begins. */
#include "view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../kit/explain/lessons/quiz.h"
#include "terminal.h"
#include "value.h"

enum { QUESTIONS = 3, TRIES = 2 };

static int name_output(view *v, const char *path, kit_error *err)
{
    if (strcmp(path, "-") == 0)
        return kit_fail(
            err, KIT_USAGE,
            "-o -: must be a file name, whose suffix sets the format; --json prints the trace to "
            "standard output");
    return render_by_suffix(path, err) ? files_add_output(&v->files, path, err) : KIT_USAGE;
}

int view_begin(view *v, const options *o, const view_options *ids, kit_error *err)
{
    const render_colour colours[] = {RENDER_NO_COLOUR, RENDER_256, RENDER_TRUECOLOUR};
    const char *path;
    *v = (view){.json = option_given(o, ids->json),
                .full = option_given(o, ids->full),
                .quiz = option_given(o, ids->quiz),
                .text = RENDER_TEXT_OPTIONS_INIT};
    v->text.width = terminal_find_width();
    v->text.colour = colours[terminal_find_color(option_choice(o, OPT_common_color))];
    v->text.unicode = terminal_is_utf8();
    v->text.full = v->full;
    if (v->json && v->quiz)
        return kit_fail(err, KIT_USAGE,
                        "--json and --quiz cannot both use standard output; leave one out");
    if (v->json && v->full)
        return kit_fail(err, KIT_USAGE,
                        "--full does not go with --json, which always has every matrix");
    for (size_t i = 0; (path = option_at(o, ids->output, i)) != NULL; i++) {
        int code = name_output(v, path, err);
        if (code)
            return code;
    }
    return files_probe(&v->files, err);
}

void view_end(view *v) { files_free(&v->files); }

/* ----------------------------------------------------------------------------------------- quiz */

/* Reads a line without its end; false at the end of the input. */
static bool read_line(char *line, size_t size)
{
    if (!fgets(line, (int)size, stdin))
        return false;
    if (!strchr(line, '\n'))
        for (int c; (c = getchar()) != '\n' && c != EOF;)
            ; /* skip the rest of a line too long to be an answer */
    line[strcspn(line, "\r\n")] = 0;
    return true;
}

/* Returns 1 if right, 0 if wrong, -1 at the end of the input. */
static int ask(const quiz_question *q, int width)
{
    char line[64];
    double answer;
    terminal_wrap(width, q->question, 0, 0);
    fputs("  ", stdout);
    terminal_wrap(width, q->row_text + strspn(q->row_text, " "), 2, 4);
    for (int attempt = 1; attempt <= TRIES;) {
        printf("your answer: ");
        fflush(stdout);
        if (!read_line(line, sizeof line))
            return putchar('\n'), -1;
        if (!isatty(STDIN_FILENO))
            puts(line); /* echo the input, as a terminal would */
        if (!value_real(line, &answer)) {
            puts("A number such as 0.25, please.");
            continue;
        }
        if (quiz_is_right(q, answer)) {
            printf("Right: %.4f\n\n", q->answer);
            return 1;
        }
        if (attempt++ < TRIES) {
            printf("Not within %g of it. Hint: ", QUIZ_TOLERANCE);
            terminal_wrap(width, q->hint, 29, 2);
        }
    }
    printf("No: it is %.4f.\n\n", q->answer);
    return 0;
}

static int hold_quiz(const view *v, const trace *t, kit_error *err)
{
    quiz_question q;
    int right = 0, asked = 0, outcome = 0;
    while (asked < QUESTIONS && outcome >= 0) {
        int code = quiz_ask(&q, t, v->quiz_seed, asked, err);
        if (code)
            return code;
        printf("Question %d of %d\n", asked + 1, QUESTIONS);
        outcome = ask(&q, v->text.width);
        asked += outcome >= 0;
        right += outcome > 0;
    }
    printf("%d of %d right.\n\n", right, asked);
    return KIT_OK;
}

/* -------------------------------------------------------------------------------------- showing */

void view_put_written(const char *path, size_t size)
{
    kit_text_print(stdout, path);
    if (size < 1000)
        printf(": %zu bytes\n", size);
    else if (size < 1000000)
        printf(": %.1f kB\n", (double)size / 1e3);
    else
        printf(": %.1f MB\n", (double)size / 1e6);
}

/* Writes the files; size: [number of outputs], the bytes of each. */
static int write_files(view *v, const trace *t, size_t *size, kit_error *err)
{
    char *bytes = NULL;
    int code = v->files.output_count ? files_open(&v->files, err) : KIT_OK;
    for (size_t i = 0; i < v->files.output_count && !code; i++) {
        render_function render = render_by_suffix(v->files.output[i].path, err);
        code = render(&bytes, &size[i], t, err);
        if (!code)
            code = kit_output_write(v->files.output[i].file, bytes, size[i], err);
        free(bytes);
        bytes = NULL;
    }
    return code ? code : files_commit(&v->files, err);
}

/* Writes to stdout after the files exist: the trace, and the names and sizes of the files. */
static int show_rest(const view *v, const char *bytes, size_t size, const size_t *written,
                     kit_error *err)
{
    bool failed = bytes && fwrite(bytes, 1, size, stdout) != size;
    if (bytes && !v->json && v->files.output_count)
        putchar('\n');
    for (size_t i = 0; i < v->files.output_count && !v->json; i++)
        view_put_written(v->files.output[i].path, written[i]);
    failed = fflush(stdout) || ferror(stdout) || failed;
    return failed ? kit_fail(err, KIT_LIMIT, "standard output: %s", strerror(errno)) : KIT_OK;
}

int view_show(view *v, const trace *t, kit_error *err)
{
    char *bytes = NULL;
    size_t size = 0, *written = calloc(v->files.output_count + 1, sizeof *written);
    int code = written ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory");
    /* Whoever takes the quiz of a lesson has read the lesson, which is long. */
    bool text = v->full || (!v->files.output_count && !(v->quiz && t->lesson));
    if (!code && v->json)
        code = render_json(&bytes, &size, t, err);
    else if (!code && text)
        code = render_text(&bytes, &size, t, &v->text, err);
    if (!code && v->quiz)
        code = hold_quiz(v, t, err);
    if (!code)
        code = write_files(v, t, written, err);
    if (!code)
        code = show_rest(v, bytes, size, written, err);
    free(bytes);
    free(written);
    return code;
}
