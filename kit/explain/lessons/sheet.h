/* A sheet of questions about self-attention. The numbers are drawn from a seed, so every seed gives
 * another sheet, and the answers are computed by libattn.
 *
 *   sheet.c          draws the numbers, asks the questions, computes the answers
 *   sheet_show.c     writes the sheet as HTML and as text, and the key
 *   sheet_answers.c  reads a file of answers and grades it
 *
 * To add a question: write a function like ask_score() and add it to the table in sheet.c. A change
 * of the questions also changes SHEET_SCHEMA, because old answers no longer fit.
 */
#ifndef KIT_EXPLAIN_SHEET_H
#define KIT_EXPLAIN_SHEET_H

#include "../../kit.h"

#define SHEET_SCHEMA "attn.quiz/1"
#define SHEET_TOLERANCE 0.01
enum {
    SHEET_QUESTIONS = 12,
    SHEET_WORDS = 3,
    SHEET_COLUMNS = 5, /* most columns of a table */
    SHEET_CHOICES = 4
};

/* A table with up to one row for each word. */
typedef struct sheet_table {
    const char *name;                      /* "Q" */
    int rows, columns;                     /* rows 0: there is no table */
    const char *row[SHEET_WORDS];          /* labels of the rows */
    const char *column[SHEET_COLUMNS];     /* labels of the columns, or NULL */
    double at[SHEET_WORDS][SHEET_COLUMNS]; /* with one decimal */
} sheet_table;

typedef struct sheet_choice {
    char text[128];
    bool right;
} sheet_choice;

typedef struct sheet_question {
    char text[384];
    char why[512];     /* one sentence, for the key */
    sheet_table given; /* numbers for this question alone */
    int choices;       /* 0: the answer is a number */
    sheet_choice choice[SHEET_CHOICES];
    double answer; /* without choices */
} sheet_question;

typedef struct sheet {
    uint64_t seed;
    const char *word[SHEET_WORDS];
    sheet_table q, k, v;
    sheet_question question[SHEET_QUESTIONS];
} sheet;

int sheet_make(sheet *s, uint64_t seed, kit_error *err);

/* Writes the right answer: "0.34", or "b) blue". */
#define SHEET_ANSWER_BYTES 160
const char *sheet_answer(char out[SHEET_ANSWER_BYTES], const sheet_question *q);
double sheet_round(double x); /* to two decimals, halves away from zero; never -0 */

/* Renderers, as in render.h. The page and the questions contain no answers. */
int sheet_html(char **bytes, size_t *size, const sheet *s, kit_error *err);
typedef enum sheet_part { SHEET_ASK, SHEET_KEY } sheet_part;
int sheet_text(char **bytes, size_t *size, const sheet *s, sheet_part part, int width, bool unicode,
               kit_error *err);

/* A student's answers. Texts are as they were typed. */
typedef struct sheet_answers {
    uint64_t seed;
    char name[64];
    char text[SHEET_QUESTIONS][64]; /* "": no answer */
} sheet_answers;
/* KIT_BAD_FILE: the file is not what the sheet's button writes. */
int sheet_read_answers(sheet_answers *a, const char *path, kit_error *err);
bool sheet_is_right(const sheet_question *q, const char *answer);
/* Writes a line for each question and the total; `right` counts the right answers. */
int sheet_grade(char **bytes, size_t *size, int *right, const sheet *s, const sheet_answers *a,
                int width, bool unicode, kit_error *err);

#endif
