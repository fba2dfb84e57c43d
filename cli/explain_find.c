/* attn explain --find: scores every head of a model over a text or a file of sentences. kit/explain
 * computes the scores; this file reads the sentences and prints the table. */
#include "explain_find.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kit/explain/find.h"
#include "../kit/io/json_write.h"
#include "command.h"
#include "terminal.h"

enum {
    SENTENCES_LIMIT = 1 << 24, /* bytes of --sentences */
    BEST = 10,                 /* heads in the table without --full */
    TABLE = 21,                /* columns before the bars */
    BAR = 40                   /* columns of a score of 1 */
};

int explain_find_check(const options *o, kit_error *err)
{
    static const option_id other[] = {OPT_explain_layer, OPT_explain_head, OPT_explain_query,
                                      OPT_explain_quiz, OPT_explain_output};
    const bool file = option_given(o, OPT_explain_sentences);
    if (!option_given(o, OPT_explain_find))
        return file ? kit_fail(err, KIT_USAGE, "--sentences needs --find KIND") : KIT_OK;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (option_given(o, other[i]))
            return kit_fail(err, KIT_USAGE,
                            "--%s does not go with --find, which prints a table of all layers and "
                            "heads; leave one out",
                            option_of(other[i])->name);
    if (option_given(o, OPT_explain_json) && option_given(o, OPT_explain_full))
        return kit_fail(err, KIT_USAGE,
                        "--full does not go with --json, which always has every head");
    if (file && option_given(o, OPT_explain_text_pair))
        return kit_fail(err, KIT_USAGE, "--text-pair does not go with --sentences");
    if (file && o->operand_count)
        return kit_fail(err, KIT_USAGE, "TEXT and --sentences exclude each other; leave one out");
    return KIT_OK;
}

/* -------------------------------------------------------------------------------- Sentences */

static char *read_file(const char *path, kit_error *err)
{
    if (strcmp(path, "-") == 0)
        return command_read_text(stdin, "standard input", SENTENCES_LIMIT, err);
    FILE *f = fopen(path, "rb");
    if (!f) {
        kit_fail(err, KIT_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
        return NULL;
    }
    char *text = command_read_text(f, path, SENTENCES_LIMIT, err);
    fclose(f);
    return text;
}

/* Adds each line of `text` that is not blank. The line ends become zeros. */
static int add_lines(find *f, char *text, const char *name, kit_error *err)
{
    int64_t number = 1;
    for (char *line = text, *next; *line; line = next, number++) {
        const size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        line[length] = 0;
        if (length && line[length - 1] == '\r')
            line[length - 1] = 0;
        kit_error why = {0};
        if (line[strspn(line, " \t")] && find_add(f, line, NULL, &why))
            return kit_fail(err, why.code, "%s, line %" PRId64 ": %s", name, number, why.message);
    }
    return f->texts ? KIT_OK : kit_fail(err, KIT_BAD_FILE, "%s: has no sentence", name);
}

static int add_file(find *f, const char *path, kit_error *err)
{
    char *text = read_file(path, err);
    const int code = text
                         ? add_lines(f, text, strcmp(path, "-") == 0 ? "standard input" : path, err)
                         : err->code;
    free(text);
    return code;
}

/* --------------------------------------------------------------------------------- Printing */

/* Prints a bar in eighths of a column; without Unicode in whole columns. */
static void put_bar(double share)
{
    static const char *const part[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const int room = terminal_find_width() - TABLE - 2;
    const double columns = share * (room < BAR ? room : BAR);
    const bool unicode = terminal_is_utf8();
    const int eighths = (int)(8 * columns + 0.5);
    if (eighths >= (unicode ? 1 : 4))
        fputs("  ", stdout);
    for (int i = 0; i < (unicode ? eighths : eighths + 4) / 8; i++)
        fputs(unicode ? "█" : "#", stdout);
    puts(unicode ? part[eighths % 8] : "");
}

/* Gives the least and the greatest score of equal attention in a layer. */
static void find_range(const find *f, double *least, double *most)
{
    *least = *most = f->equal[0];
    for (int64_t l = 1; l < f->layers; l++) {
        *least = f->equal[l] < *least ? f->equal[l] : *least;
        *most = f->equal[l] > *most ? f->equal[l] : *most;
    }
}

static void put_meaning(const find *f, find_kind kind)
{
    const find_words *words = find_words_of(kind);
    char equal[64], queries[128] = "", text[512];
    double least, most;
    find_range(f, &least, &most);
    if (least == most)
        snprintf(equal, sizeof equal, "%.4f", most);
    else
        snprintf(equal, sizeof equal, "%.4f to %.4f, depending on the layer", least, most);
    if (kind != FIND_SELF)
        snprintf(queries, sizeof queries, "; %" PRId64 " of them %s", f->queries, words->have);
    snprintf(text, sizeof text, "%" PRId64 " sentence%s, %" PRId64 " token%s%s.", f->texts,
             f->texts == 1 ? "" : "s", f->tokens, f->tokens == 1 ? "" : "s", queries);
    terminal_wrap(terminal_find_width(), text, 0, 0);
    snprintf(text, sizeof text,
             "The score of a head is the weight that a token gives to %s, averaged over %s tokens; "
             "equal attention, which gives 1/n to each of the n tokens that a token sees, would "
             "have the score %s.",
             words->targets, kind == FIND_SELF ? "all" : "these", equal);
    terminal_wrap(terminal_find_width(), text, 0, 0);
}

static void put_table(const find *f, const options *o, const model *m)
{
    const find_kind kind = (find_kind)option_choice(o, OPT_explain_find);
    const int64_t all = f->layers * f->heads;
    const int64_t shown = option_given(o, OPT_explain_full) || all < BEST ? all : BEST;
    char title[160];
    double least, most;
    find_range(f, &least, &most);
    snprintf(title, sizeof title, "%s, --find %s: the weight that a token gives to %s",
             model_sizes_of(m)->kind, option_text(o, OPT_explain_find),
             find_words_of(kind)->targets);
    terminal_wrap(terminal_find_width(), title, 0, 0);
    puts("\nlayer   head    score");
    for (int64_t i = 0; i < shown; i++) {
        const find_head *h = &f->head[i];
        printf("%5" PRId64 "%7" PRId64 "%9.4f", h->layer, h->head, h->score);
        put_bar(h->score);
    }
    printf("equal (1/n) %9.4f", most);
    put_bar(most);
    if (shown < all)
        printf("%" PRId64 " more heads; --full shows all.\n", all - shown);
    putchar('\n');
    put_meaning(f, kind);
}

static void put_json(const find *f, const options *o, const model *m)
{
    json_writer j = json_begin_stdout("attn.find/1");
    json_put_text(&j, "model", model_sizes_of(m)->kind);
    json_put_text(&j, "kind", option_text(o, OPT_explain_find));
    json_put_integer(&j, "sentences", f->texts);
    json_put_integer(&j, "tokens", f->tokens);
    json_put_integer(&j, "queries", f->queries);
    json_put_array(&j, "equal_attention");
    for (int64_t l = 0; l < f->layers; l++)
        json_put_real(&j, NULL, f->equal[l]);
    json_end_array(&j);
    json_put_array(&j, "heads");
    for (int64_t i = 0; i < f->layers * f->heads; i++) {
        const find_head *h = &f->head[i];
        json_put_object(&j, NULL);
        json_put_integer(&j, "layer", h->layer);
        json_put_integer(&j, "head", h->head);
        json_put_real(&j, "score", h->score);
        json_end_object(&j);
    }
    json_end_array(&j);
    json_end_stdout(&j);
}

/* ------------------------------------------------------------------------------- The command */

static int score(find *f, const options *o, const char *text, kit_error *err)
{
    int code = text ? find_add(f, text, option_text(o, OPT_explain_text_pair), err)
                    : add_file(f, option_text(o, OPT_explain_sentences), err);
    while (!code && f->done < f->texts) {
        terminal_progress("sentence %" PRId64 " of %" PRId64, f->done + 1, f->texts);
        code = find_run(f, err);
    }
    terminal_progress(NULL);
    return code ? code : find_rank(f, err);
}

int explain_find(const options *o, const char *text, kit_error *err)
{
    const model_options how = {option_given(o, OPT_explain_ignore_unknown), engine_ignored};
    attn_context *ctx = NULL;
    model *m = NULL;
    find f = {0};
    int code = engine_context(&ctx, NULL, 0, err);
    if (!code)
        code = model_open_with(&m, option_text(o, OPT_explain_model), &how, ctx, err);
    if (!code && option_given(o, OPT_explain_text_pair) && model_sizes_of(m)->causal)
        code = kit_fail(err, KIT_USAGE,
                        "--text-pair needs a model that reads two texts, such as "
                        "BERT");
    if (!code)
        code = find_begin(&f, m, (find_kind)option_choice(o, OPT_explain_find), err);
    if (!code && !(code = score(&f, o, text, err))) {
        engine_tell_ignored();
        (option_given(o, OPT_explain_json) ? put_json : put_table)(&f, o, m);
    }
    find_end(&f);
    model_close(m);
    attn_context_destroy(ctx);
    return code;
}
