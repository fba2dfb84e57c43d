/* Writes a sheet as an HTML page and as text, its key, and the grades of answers. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../render/render_json.h"
#include "../render/text.h"
#include "script_read.h"
#include "sheet.h"

#define TITLE "Self-attention: a sheet of questions"

const char *sheet_answer(char out[SHEET_ANSWER_BYTES], const sheet_question *q)
{
    double x = sheet_round(q->answer);
    snprintf(out, SHEET_ANSWER_BYTES, x == floor(x) ? "%.0f" : "%.2f", x);
    for (int i = 0; i < q->choices; i++) {
        if (q->choice[i].right) {
            snprintf(out, SHEET_ANSWER_BYTES, "%c) %s", 'a' + i, q->choice[i].text);
        }
    }
    return out;
}

/* The words in front of the questions, with the sentence of the sheet. */
static void introduce(sink *to, const sheet *s)
{
    sink_printf(to,
                "The three words \"%s %s %s\" have these queries Q, keys K and values V, a row for "
                "each word. Round numbers to two decimals; an answer within %g is right.",
                s->word[0], s->word[1], s->word[2], SHEET_TOLERANCE);
}

/* -------------------------------------------------------------------------------------- HTML */

static void put_table(sink *s, const sheet_table *t)
{
    sink_printf(s, "<table><caption>%s</caption>\n", t->name);
    if (t->column[0] != NULL) {
        sink_puts(s, "<thead><tr>");
        for (int j = 0; j < t->columns; j++) {
            sink_printf(s, "<th scope=\"col\">%s</th>", t->column[j]);
        }
        sink_puts(s, "</tr></thead>\n");
    }
    sink_puts(s, "<tbody>");
    for (int i = 0; i < t->rows; i++) {
        sink_puts(s, "<tr>");
        if (t->row[i] != NULL) {
            sink_printf(s, "<th scope=\"row\">%s</th>", t->row[i]);
        }
        for (int j = 0; j < t->columns; j++) {
            sink_printf(s, "<td>%.1f</td>", t->at[i][j]);
        }
        sink_puts(s, "</tr>\n");
    }
    sink_puts(s, "</tbody></table>\n");
}

static void put_question(sink *s, const sheet_question *q, int number)
{
    sink_printf(s, "<li>\n<p id=\"question-%d\">", number);
    sink_escaped(s, q->text);
    sink_puts(s, "</p>\n");
    if (q->given.rows > 0) {
        put_table(s, &q->given);
    }
    if (q->choices == 0) {
        sink_printf(s,
                    "<input type=\"text\" name=\"%d\" autocomplete=\"off\" maxlength=\"20\" "
                    "aria-labelledby=\"question-%d\">\n</li>\n",
                    number, number);
        return;
    }
    sink_printf(s, "<div role=\"radiogroup\" aria-labelledby=\"question-%d\">\n", number);
    for (int i = 0; i < q->choices; i++) {
        sink_printf(s,
                    "<label class=\"choice\"><input type=\"radio\" name=\"%d\" value=\"%c\"> "
                    "<span>%c) ",
                    number, 'a' + i, 'a' + i);
        sink_escaped(s, q->choice[i].text);
        sink_puts(s, "</span></label>\n");
    }
    sink_puts(s, "</div>\n</li>\n");
}

static void put_head(sink *to, const sheet *s)
{
    sink_puts(to, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    sink_printf(
        to,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
        "script-src %s; style-src %s; img-src data:; base-uri 'none'; form-action 'none'\">\n",
        script_file("sheet.js.hash"), script_file("sheet.css.hash"));
    sink_puts(to, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                  "<meta name=\"color-scheme\" content=\"light\">\n"
                  "<link rel=\"icon\" href=\"data:,\">\n");
    sink_printf(to, "<title>%s, %" PRIu64 "</title>\n", TITLE, s->seed);
    sink_printf(to, "<style>%s</style>\n</head>\n<body>\n", script_file("sheet.css"));
}

/* For readers whose browser runs no scripts. */
static void put_by_hand(sink *to, const sheet *s)
{
    sink_puts(to, "<noscript class=\"screen\"><p>This browser runs no scripts. To hand in answers, "
                  "write them into a file answers.json:</p>\n<pre>");
    char text[32];
    json_writer j = json_writer_sink(to);
    json_put_object(&j, NULL);
    json_put_text(&j, "schema", SHEET_SCHEMA);
    snprintf(text, sizeof text, "%" PRIu64, s->seed);
    json_put_text(&j, "seed", text);
    json_put_text(&j, "name", "");
    json_put_object(&j, "answers");
    for (int i = 0; i < SHEET_QUESTIONS; i++) {
        snprintf(text, sizeof text, "%d", i + 1);
        json_put_text(&j, text, "");
    }
    json_end_object(&j);
    json_end_object(&j);
    sink_puts(to, "</pre></noscript>\n");
}

int sheet_html(char **bytes, size_t *size, const sheet *s, kit_error *err)
{
    sink out = {0}, *to = &out, text = {0};
    put_head(to, s);
    sink_printf(to,
                "<form data-schema=\"%s\" data-seed=\"%" PRIu64 "\" data-questions=\"%d\">\n"
                "<h1>%s</h1>\n<div class=\"head\"><label>Name "
                "<input type=\"text\" name=\"student\" autocomplete=\"name\" maxlength=\"60\">"
                "</label><span class=\"seed\">Sheet %" PRIu64 "</span></div>\n<p>",
                SHEET_SCHEMA, s->seed, (int)SHEET_QUESTIONS, TITLE, s->seed);
    introduce(&text, s);
    sink_escaped(to, text.failed ? "" : text.data);
    out.failed = out.failed || text.failed;
    free(text.data);
    sink_puts(to, "</p>\n<div class=\"tables\">\n");
    put_table(to, &s->q);
    put_table(to, &s->k);
    put_table(to, &s->v);
    sink_puts(to, "</div>\n<ol>\n");
    for (int i = 0; i < SHEET_QUESTIONS; i++) {
        put_question(to, &s->question[i], i + 1);
    }
    sink_puts(to, "</ol>\n<div class=\"end screen\"><button id=\"save\" hidden>Save answers.json"
                  "</button><span id=\"said\" role=\"status\"></span></div>\n</form>\n");
    put_by_hand(to, s);
    sink_printf(to, "<script>%s</script>\n</body>\n</html>\n", script_file("sheet.js"));
    return sink_finish(to, bytes, size, err);
}

/* -------------------------------------------------------------------------------------- Text */

/* At least as wide as the tables. */
static text_layout begin(int width, bool unicode)
{
    return (text_layout){.width = width < 50 ? 50 : width > 100 ? 100 : width, .unicode = unicode};
}

static int finish(text_layout *p, char **bytes, size_t *size, kit_error *err)
{
    for (size_t i = 0; i < sizeof p->spare / sizeof *p->spare; i++) {
        free(p->spare[i]);
    }
    return sink_finish(&p->out, bytes, size, err);
}

static void put_paragraph(text_layout *p, int indent, const char *text)
{
    text_spaces(p, indent);
    text_wrap(p, indent, indent, text_clean(p, text));
}

static void put_text_table(text_layout *p, const sheet_table *t, int indent)
{
    enum { NUMBER = 10 };
    int label = 0;
    for (int i = 0; i < t->rows; i++) {
        int width = t->row[i] != NULL ? kit_text_width(t->row[i]) : -2;
        label = width + 2 > label ? width + 2 : label;
    }
    text_spaces(p, indent);
    sink_printf(&p->out, "%s\n", t->name);
    if (t->column[0] != NULL) {
        text_spaces(p, indent + label);
        for (int j = 0; j < t->columns; j++) {
            sink_printf(&p->out, "%*s", NUMBER, t->column[j]);
        }
        sink_puts(&p->out, "\n");
    }
    for (int i = 0; i < t->rows; i++) {
        text_spaces(p, indent);
        text_label(p, t->row[i] != NULL ? t->row[i] : "", label, false);
        for (int j = 0; j < t->columns; j++) {
            sink_printf(&p->out, "%*.1f", t->column[j] != NULL ? NUMBER : 6, t->at[i][j]);
        }
        sink_puts(&p->out, "\n");
    }
}

static void ask_in_text(text_layout *p, const sheet *s)
{
    sink text = {0};
    introduce(&text, s);
    put_paragraph(p, 0, text.failed ? "" : text.data);
    p->out.failed = p->out.failed || text.failed;
    free(text.data);
    const sheet_table *const tables[] = {&s->q, &s->k, &s->v};
    for (int i = 0; i < 3; i++) {
        sink_puts(&p->out, "\n");
        put_text_table(p, tables[i], 4);
    }
    for (int i = 0; i < SHEET_QUESTIONS; i++) {
        const sheet_question *q = &s->question[i];
        sink_printf(&p->out, "\n%2d. ", i + 1);
        text_wrap(p, 4, 4, text_clean(p, q->text));
        if (q->given.rows > 0) {
            put_text_table(p, &q->given, 4);
        }
        for (int c = 0; c < q->choices; c++) {
            sink_printf(&p->out, "    %c) ", 'a' + c);
            text_wrap(p, 7, 7, text_clean(p, q->choice[c].text));
        }
    }
    sink_puts(&p->out, "\n");
}

static void put_key(text_layout *p, const sheet *s)
{
    char answer[SHEET_ANSWER_BYTES];
    for (int i = 0; i < SHEET_QUESTIONS; i++) {
        sink_printf(&p->out, "%s%2d. ", i > 0 ? "\n" : "", i + 1);
        text_wrap(p, 4, 4, text_clean(p, sheet_answer(answer, &s->question[i])));
        put_paragraph(p, 4, s->question[i].why);
    }
}

int sheet_text(char **bytes, size_t *size, const sheet *s, sheet_part part, int width, bool unicode,
               kit_error *err)
{
    text_layout p = begin(width, unicode);
    text_wrapf(&p, "%s, %s %" PRIu64, TITLE, part == SHEET_KEY ? "answers to sheet" : "sheet",
               s->seed);
    sink_puts(&p.out, "\n");
    (part == SHEET_KEY ? put_key : ask_in_text)(&p, s);
    return finish(&p, bytes, size, err);
}

/* ------------------------------------------------------------------------------------ Grades */

/* "wrong    0.34, not "0.4". Multiply ..." */
static void put_grade(text_layout *p, const sheet_question *q, const char *given, bool right)
{
    enum { AT = 13 };
    char answer[SHEET_ANSWER_BYTES], clipped[LABEL_BYTES];
    sink s = {0};
    sheet_answer(answer, q);
    size_t length = strlen(answer);
    if (answer[length - 1] == '.') {
        answer[length - 1] = '\0';
    }
    sink_puts(&s, answer);
    if (!right && given[0] != '\0') {
        label_clip(clipped, given, 24, "...");
        sink_printf(&s, ", not \"%s\"", clipped);
    }
    sink_printf(&s, ". %s", q->why);
    sink_printf(&p->out, "%-9s", right ? "right" : given[0] == '\0' ? "missing" : "wrong");
    text_wrap(p, AT, AT, s.failed ? "" : text_clean(p, s.data));
    p->out.failed = p->out.failed || s.failed;
    free(s.data);
}

int sheet_grade(char **bytes, size_t *size, int *right, const sheet *s, const sheet_answers *a,
                int width, bool unicode, kit_error *err)
{
    text_layout p = begin(width, unicode);
    *right = 0;
    sink_printf(&p.out, "Sheet %" PRIu64 "%s%s\n\n", s->seed, a->name[0] != '\0' ? ", " : "",
                text_clean(&p, a->name));
    for (int i = 0; i < SHEET_QUESTIONS; i++) {
        bool good = sheet_is_right(&s->question[i], a->text[i]);
        sink_printf(&p.out, "%2d  ", i + 1);
        put_grade(&p, &s->question[i], a->text[i], good);
        *right += good;
    }
    sink_printf(&p.out, "\n%d of %d right.\n", *right, (int)SHEET_QUESTIONS);
    return finish(&p, bytes, size, err);
}
