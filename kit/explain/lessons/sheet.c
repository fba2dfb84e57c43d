/* Draws the numbers of a sheet, asks its questions, and computes the answers with libattn. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "../recipe.h"
#include "quiz.h"
#include "sheet.h"

#define NEAR_ZERO 1e-9

typedef struct maker {
    sheet *s;
    uint64_t state;
    recipe r; /* without a trace: for its calls of libattn */
    sheet_question *question;
    /* Q, K and V of the whole sheet, computed: */
    double score[SHEET_WORDS][SHEET_WORDS];  /* Q·Kᵀ */
    double scaled[SHEET_WORDS][SHEET_WORDS]; /* divided by √d_k */
} maker;

/* ------------------------------------------------------------------------------------ Drawing */

static int draw(maker *m, int n) { return (int)(quiz_mix(m->state++) % (uint64_t)n); }

/* A number with one decimal between -most/10 and most/10. */
static double draw_number(maker *m, int most) { return (draw(m, 2 * most + 1) - most) / 10.0; }

/* Draws `count` different numbers below n. */
static void draw_different(maker *m, int *out, int count, int n)
{
    int from[SHEET_WORDS + 1];
    for (int i = 0; i < n; i++) {
        from[i] = i;
    }
    for (int i = 0; i < count; i++) {
        int at = i + draw(m, n - i), kept = from[i];
        out[i] = from[i] = from[at];
        from[at] = kept;
    }
}

static void draw_table(maker *m, sheet_table *t, const char *name, int columns)
{
    *t = (sheet_table){.name = name, .rows = SHEET_WORDS, .columns = columns};
    for (int i = 0; i < t->rows; i++) {
        t->row[i] = m->s->word[i];
        for (int j = 0; j < columns; j++) {
            t->at[i][j] = draw_number(m, 15);
        }
    }
}

/* A table of one row, whose columns are the words. */
static void draw_row(maker *m, sheet_table *t, const char *name, int most)
{
    *t = (sheet_table){.name = name, .rows = 1, .columns = SHEET_WORDS};
    for (int j = 0; j < t->columns; j++) {
        t->column[j] = m->s->word[j];
        t->at[0][j] = draw_number(m, most);
    }
}

/* --------------------------------------------------------------------------------- The engine */

static attn_tensor view(sheet_table *t)
{
    attn_tensor x = attn_matrix(t->at, ATTN_F64, t->rows, t->columns);
    x.stride[2] = SHEET_COLUMNS;
    return x;
}

/* Weights from a row of scores: queries and keys of one component, 1 and the score, have this
 * score. */
static void compute_weights(maker *m, double *weights, const double *scores,
                            const attn_tensor *mask, int64_t count)
{
    double one = 1;
    attn_tensor q = attn_matrix(&one, ATTN_F64, 1, 1);
    attn_tensor k = attn_matrix((double *)scores, ATTN_F64, count, 1);
    recipe_attention a = {q, k, k, 1, false, mask};
    recipe_scores(&m->r, &a, ATTN_STAGE_WEIGHTS, attn_matrix(weights, ATTN_F64, 1, count));
}

static void compute_scores(maker *m)
{
    sheet *s = m->s;
    recipe_attention a = {view(&s->q), view(&s->k), view(&s->v), 1, false, NULL};
    recipe_scores(&m->r, &a, ATTN_STAGE_RAW,
                  attn_matrix(m->score, ATTN_F64, SHEET_WORDS, SHEET_WORDS));
    a.scale = 0; /* 1/sqrt(d_k) */
    recipe_scores(&m->r, &a, ATTN_STAGE_RAW,
                  attn_matrix(m->scaled, ATTN_F64, SHEET_WORDS, SHEET_WORDS));
}

/* ----------------------------------------------------------------------------------- Writing */

static void ask(maker *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void ask(maker *m, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->question->text, sizeof m->question->text, format, arguments);
    va_end(arguments);
}

static void explain(maker *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void explain(maker *m, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->question->why, sizeof m->question->why, format, arguments);
    va_end(arguments);
}

static void offer(maker *m, bool right, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void offer(maker *m, bool right, const char *format, ...)
{
    sheet_choice *c = &m->question->choice[m->question->choices++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->text, sizeof c->text, format, arguments);
    va_end(arguments);
    c->right = right;
}

static void shuffle(maker *m)
{
    sheet_question *q = m->question;
    for (int i = q->choices; i > 1; i--) {
        int j = draw(m, i);
        sheet_choice kept = q->choice[i - 1];
        q->choice[i - 1] = q->choice[j];
        q->choice[j] = kept;
    }
}

double sheet_round(double x)
{
    double size = floor(fabs(x) * 100 + 0.5 + NEAR_ZERO) / 100;
    return x < 0 && size > 0 ? -size : size;
}

/* Appends a number, in parentheses if it is negative and not the first. */
static size_t write_factor(char *out, size_t size, double x, bool first)
{
    bool guard = x < 0 && !first;
    int length = snprintf(out, size, "%s%.1f%s", guard ? "(" : "", x, guard ? ")" : "");
    return (size_t)length;
}

/* "0.5 × (-1.2) + 0.3 × 0.4" */
#define DOT_BYTES 128
static const char *write_dot(char out[DOT_BYTES], const double *a, const double *b, int64_t stride,
                             int count)
{
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        used += (size_t)snprintf(out + used, DOT_BYTES - used, "%s", i > 0 ? " + " : "");
        used += write_factor(out + used, DOT_BYTES - used, a[i], i == 0);
        used += (size_t)snprintf(out + used, DOT_BYTES - used, " × ");
        used += write_factor(out + used, DOT_BYTES - used, b[i * stride], false);
    }
    return out; /* SHEET_COLUMNS products have at most 92 bytes */
}

/* --------------------------------------------------------------------------------- Questions */

static void ask_length(maker *m)
{
    attn_tensor k = view(&m->s->k);
    m->question->answer = (double)k.shape[3];
    ask(m, "Look at Q and K. How large is d_k?");
    explain(m, "d_k is the number of components of a query and of a key: K has %d columns.",
            m->s->k.columns);
}

static void ask_score(maker *m)
{
    sheet *s = m->s;
    char dot[DOT_BYTES];
    int i = draw(m, SHEET_WORDS), j = draw(m, SHEET_WORDS);
    m->question->answer = m->score[i][j];
    ask(m,
        "The score of a query and a key is their dot product. How large is the score of the "
        "query of \"%s\" and the key of \"%s\"?",
        s->word[i], s->word[j]);
    explain(m, "Multiply component by component and add up: %s = %.2f.",
            write_dot(dot, s->q.at[i], s->k.at[j], 1, s->k.columns), sheet_round(m->score[i][j]));
}

static void ask_scaled(maker *m)
{
    sheet *s = m->s;
    int i = draw(m, SHEET_WORDS), j = draw(m, SHEET_WORDS);
    m->question->answer = m->scaled[i][j];
    ask(m,
        "The score of the query of \"%s\" and the key of \"%s\" is divided by √d_k. How large is "
        "it then?",
        s->word[i], s->word[j]);
    explain(m, "The score is %.2f, and %.2f / √%d = %.2f.", sheet_round(m->score[i][j]),
            sheet_round(m->score[i][j]), s->k.columns, sheet_round(m->scaled[i][j]));
}

static void ask_sign(maker *m)
{
    sheet *s = m->s;
    char dot[DOT_BYTES];
    int i, j;
    double x;
    do { /* sheets also have the rare score 0 */
        i = draw(m, SHEET_WORDS), j = draw(m, SHEET_WORDS);
        x = m->score[i][j];
    } while (fabs(x) < 0.05 && fabs(x) > NEAR_ZERO);
    ask(m, "Which sign has the score of the query of \"%s\" and the key of \"%s\"?", s->word[i],
        s->word[j]);
    offer(m, x > NEAR_ZERO, "positive");
    offer(m, x < -NEAR_ZERO, "negative");
    offer(m, fabs(x) <= NEAR_ZERO, "neither: it is 0");
    explain(m, "The dot product is %.2f: %s.", sheet_round(x),
            write_dot(dot, s->q.at[i], s->k.at[j], 1, s->k.columns));
}

/* draw_matrices ensures that two keys have clearly different scores. */
static void ask_fit(maker *m)
{
    sheet *s = m->s;
    int i = draw(m, SHEET_WORDS), pair[2];
    do {
        draw_different(m, pair, 2, SHEET_WORDS);
    } while (fabs(m->score[i][pair[0]] - m->score[i][pair[1]]) < 0.1);
    double x = m->score[i][pair[0]], y = m->score[i][pair[1]];
    ask(m, "Which of two keys fits the query of \"%s\" better: that of \"%s\" or that of \"%s\"?",
        s->word[i], s->word[pair[0]], s->word[pair[1]]);
    offer(m, x > y, "the key of \"%s\"", s->word[pair[0]]);
    offer(m, y > x, "the key of \"%s\"", s->word[pair[1]]);
    offer(m, fabs(x - y) <= NEAR_ZERO, "both fit equally well");
    explain(m, "The larger dot product is the better fit, and the scores are %.2f and %.2f.",
            sheet_round(x), sheet_round(y));
}

/* The score of the largest size is negative, so that size and sign must be told apart. */
static void ask_most(maker *m)
{
    sheet_table *given = &m->question->given;
    double *x = given->at[0], weights[SHEET_WORDS] = {0};
    int pick[2], most;
    draw_row(m, given, "scaled scores", 15);
    draw_different(m, pick, 2, SHEET_WORDS);
    x[pick[0]] = -(20 + draw(m, 10)) / 10.0;
    x[pick[1]] = 1 + draw(m, 9) / 10.0;
    for (int j = 0; j < SHEET_WORDS; j++) {
        if (j != pick[0] && j != pick[1]) {
            x[j] = draw_number(m, 5);
        }
    }
    compute_weights(m, weights, x, NULL, SHEET_WORDS);
    most = 0;
    for (int j = 1; j < SHEET_WORDS; j++) {
        most = weights[j] > weights[most] ? j : most;
    }
    ask(m, "A row of scaled scores goes into softmax. Which word gets the largest weight?");
    for (int j = 0; j < SHEET_WORDS; j++) {
        offer(m, j == most, "%s", m->s->word[j]);
    }
    explain(m,
            "Softmax keeps the order of the scores: %.1f is the largest of them, and a negative "
            "score gives a small weight.",
            x[most]);
}

static void ask_softmax(maker *m)
{
    sheet_table *given = &m->question->given;
    double *x = given->at[0], weights[SHEET_WORDS] = {0};
    int j = draw(m, SHEET_WORDS);
    draw_row(m, given, "scaled scores", 12);
    compute_weights(m, weights, x, NULL, SHEET_WORDS);
    m->question->answer = weights[j];
    ask(m, "This row of scaled scores goes into softmax. How large is the weight of \"%s\"?",
        m->s->word[j]);
    explain(m, "e^%.1f / (e^%.1f + e^%.1f + e^%.1f) = %.2f.", x[j], x[0], x[1], x[2],
            sheet_round(weights[j]));
}

static bool all_equal(const double *a, const double *b)
{
    bool equal = true;
    for (int j = 0; j < SHEET_WORDS; j++) {
        equal = equal && fabs(a[j] - b[j]) < NEAR_ZERO;
    }
    return equal;
}

static bool all_larger(const double *a, const double *b)
{
    bool larger = true;
    for (int j = 0; j < SHEET_WORDS; j++) {
        larger = larger && a[j] > b[j] + NEAR_ZERO;
    }
    return larger;
}

static double largest(const double *x) { return fmax(x[0], fmax(x[1], x[2])); }

static double smallest(const double *x) { return fmin(x[0], fmin(x[1], x[2])); }

static void ask_shift(maker *m)
{
    sheet_table *given = &m->question->given;
    double moved[SHEET_WORDS], before[SHEET_WORDS] = {0}, after[SHEET_WORDS] = {0};
    int by = 2 + draw(m, 8);
    draw_row(m, given, "scaled scores", 15);
    while (largest(given->at[0]) - smallest(given->at[0]) < 0.3) {
        draw_row(m, given, "scaled scores", 15);
    }
    for (int j = 0; j < SHEET_WORDS; j++) {
        moved[j] = given->at[0][j] + by;
    }
    compute_weights(m, before, given->at[0], NULL, SHEET_WORDS);
    compute_weights(m, after, moved, NULL, SHEET_WORDS);
    double spread = largest(before) - smallest(before), now = largest(after) - smallest(after);
    ask(m, "%d is added to each of these scaled scores. What happens to the weights of the row?",
        by);
    offer(m, all_equal(before, after), "They stay the same.");
    offer(m, all_larger(after, before), "All of them grow.");
    offer(m, now > spread + NEAR_ZERO, "The largest grows, the others shrink.");
    offer(m, now < spread - NEAR_ZERO, "They become more equal.");
    shuffle(m);
    explain(m,
            "Every e^x is multiplied by the same e^%d, which the division by the sum cancels: "
            "softmax depends only on the differences of the scores.",
            by);
}

static void ask_mask(maker *m)
{
    sheet_table *given = &m->question->given;
    double before[SHEET_WORDS] = {0}, after[SHEET_WORDS] = {0}, sum = 0;
    bool kept = true, grown = true;
    uint8_t visible[SHEET_WORDS] = {1, 1, 1};
    int hidden = draw(m, SHEET_WORDS);
    attn_tensor mask = attn_matrix(visible, ATTN_BOOL, 1, SHEET_WORDS);
    draw_row(m, given, "scaled scores", 15);
    visible[hidden] = 0;
    compute_weights(m, before, given->at[0], NULL, SHEET_WORDS);
    compute_weights(m, after, given->at[0], &mask, SHEET_WORDS);
    for (int j = 0; j < SHEET_WORDS; j++) {
        sum += after[j];
        kept = kept && (j == hidden || fabs(after[j] - before[j]) < NEAR_ZERO);
        grown = grown && (j == hidden || after[j] > before[j] + NEAR_ZERO);
    }
    bool gone = after[hidden] == 0, one = fabs(sum - 1) < NEAR_ZERO;
    ask(m, "A mask hides \"%s\" in this row before softmax. What happens to the weights?",
        m->s->word[hidden]);
    offer(m, gone && grown && one, "\"%s\" gets 0. The others grow, so that the sum is 1 again.",
          m->s->word[hidden]);
    offer(m, gone && kept, "\"%s\" gets 0. The others stay, so that the sum is less than 1.",
          m->s->word[hidden]);
    offer(m, !gone && one, "The score of \"%s\" becomes 0, so it keeps a small weight.",
          m->s->word[hidden]);
    offer(m, sum == 0, "All weights of the row become 0.");
    shuffle(m);
    explain(m,
            "The hidden score becomes -∞, and e^-∞ is 0, so the weight %.2f of \"%s\" goes to the "
            "other words.",
            sheet_round(before[hidden]), m->s->word[hidden]);
}

static void ask_equal(maker *m)
{
    enum { MOST = 20 };
    static const int counts[] = {2, 4, 5, 10, MOST};
    double scores[MOST], weights[MOST] = {0}, x = draw_number(m, 30);
    int count = counts[draw(m, sizeof counts / sizeof *counts)];
    for (int j = 0; j < count; j++) {
        scores[j] = x;
    }
    compute_weights(m, weights, scores, NULL, count);
    m->question->answer = weights[0];
    ask(m,
        "A sentence has %d words. In one row all scaled scores are %.1f. How large is each "
        "weight of this row?",
        count, x);
    explain(m,
            "Equal scores give equal weights, whatever the scores are, and the %d weights add up "
            "to 1: 1/%d = %.2f.",
            count, count, sheet_round(weights[0]));
}

/* The weights are the softmax of their own logarithms. */
static void ask_output(maker *m)
{
    sheet_table *given = &m->question->given, *v = &m->s->v;
    double scores[SHEET_WORDS], one = 1, out[SHEET_COLUMNS] = {0};
    char dot[DOT_BYTES];
    int column = draw(m, v->columns), first = 1 + draw(m, 7), second = 1 + draw(m, 8 - first);
    draw_row(m, given, "weights", 1);
    const int tenths[SHEET_WORDS] = {first, second, 10 - first - second};
    for (int j = 0; j < SHEET_WORDS; j++) {
        given->at[0][j] = tenths[j] / 10.0;
        scores[j] = log(given->at[0][j]);
    }
    recipe_attention a = {attn_matrix(&one, ATTN_F64, 1, 1),
                          attn_matrix(scores, ATTN_F64, SHEET_WORDS, 1),
                          view(v),
                          1,
                          false,
                          NULL};
    recipe_context(&m->r, &a, attn_matrix(out, ATTN_F64, 1, v->columns));
    m->question->answer = out[column];
    ask(m,
        "A word has these weights. How large is component %d of its output, the weighted sum of "
        "the rows of V?",
        column + 1);
    explain(m, "Take column %d of V: %s = %.2f.", column + 1,
            write_dot(dot, given->at[0], &v->at[0][column], SHEET_COLUMNS, SHEET_WORDS),
            sheet_round(out[column]));
}

static bool has_shape(const attn_tensor *t, int rows, int columns)
{
    return t->shape[2] == rows && t->shape[3] == columns;
}

static void ask_shape(maker *m)
{
    sheet *s = m->s;
    const int d = s->k.columns, dv = s->v.columns;
    double weights[SHEET_WORDS][SHEET_WORDS] = {{0}}, out[SHEET_WORDS][SHEET_COLUMNS] = {{0}};
    attn_tensor w = attn_matrix(weights, ATTN_F64, SHEET_WORDS, SHEET_WORDS);
    attn_tensor o = attn_matrix(out, ATTN_F64, SHEET_WORDS, dv);
    recipe_attention a = {view(&s->q), view(&s->k), view(&s->v), 0, false, NULL};
    recipe_scores(&m->r, &a, ATTN_STAGE_WEIGHTS, w); /* refuses shapes that do not fit */
    recipe_context(&m->r, &a, o);
    const bool want_output = draw(m, 2) == 1;
    const attn_tensor *t = want_output ? &o : &w;
    ask(m, "Which shape (rows × columns) %s?",
        want_output ? "has the output, softmax(Q·Kᵀ/√d_k)·V"
                    : "have the weights, softmax(Q·Kᵀ/√d_k)");
    offer(m, has_shape(t, SHEET_WORDS, SHEET_WORDS), "%d×%d", SHEET_WORDS, SHEET_WORDS);
    offer(m, has_shape(t, SHEET_WORDS, d), "%d×%d", SHEET_WORDS, d);
    offer(m, has_shape(t, SHEET_WORDS, dv), "%d×%d", SHEET_WORDS, dv);
    offer(m, has_shape(t, dv, SHEET_WORDS), "%d×%d", dv, SHEET_WORDS);
    shuffle(m);
    if (want_output) {
        explain(m,
                "The output has a row for each query and a column for each component of a "
                "value: %d×%d times %d×%d is %d×%d.",
                SHEET_WORDS, SHEET_WORDS, SHEET_WORDS, dv, SHEET_WORDS, dv);
    } else {
        explain(m,
                "The weights have a row for each query and a column for each key: %d×%d times "
                "%d×%d is %d×%d.",
                SHEET_WORDS, d, d, SHEET_WORDS, SHEET_WORDS, SHEET_WORDS);
    }
}

static void (*const questions[SHEET_QUESTIONS])(maker *m) = {
    ask_length,  ask_score, ask_sign, ask_fit,   ask_scaled, ask_most,
    ask_softmax, ask_shift, ask_mask, ask_equal, ask_output, ask_shape,
};

/* -------------------------------------------------------------------------------- The sheet */

/* Draws Q, K and V again until each query tells two keys apart. */
static void draw_matrices(maker *m)
{
    static const int value_columns[][2] = {{4, 5}, {2, 5}}; /* none is d_k or the number of words */
    sheet *s = m->s;
    const int d = 2 + 2 * draw(m, 2), dv = value_columns[d == 4][draw(m, 2)];
    bool clear;
    do {
        draw_table(m, &s->q, "Q", d);
        draw_table(m, &s->k, "K", d);
        draw_table(m, &s->v, "V", dv);
        compute_scores(m);
        clear = true;
        for (int i = 0; i < SHEET_WORDS; i++) {
            clear = clear && largest(m->score[i]) - smallest(m->score[i]) > 0.5;
        }
    } while (!clear && m->r.status == KIT_OK);
}

/* Exactly one choice of a question is right. */
static void check_choices(maker *m)
{
    int right = 0;
    for (int c = 0; c < m->question->choices; c++) {
        right += m->question->choice[c].right;
    }
    if (m->question->choices > 0 && right != 1) {
        recipe_fail(&m->r, KIT_CHECK_FAILED, "question %d has %d right choices",
                    (int)(m->question - m->s->question) + 1, right);
    }
}

int sheet_make(sheet *s, uint64_t seed, kit_error *err)
{
    static const char *const sentences[][SHEET_WORDS] = {
        {"sky", "is", "blue"},         {"cats", "chase", "mice"}, {"birds", "sing", "early"},
        {"tea", "tastes", "good"},     {"rain", "falls", "now"},  {"trees", "grow", "slowly"},
        {"dogs", "like", "bones"},     {"snow", "is", "cold"},    {"bees", "make", "honey"},
        {"children", "read", "books"},
    };
    maker m = {.s = s, .state = quiz_mix(seed), .r = {.err = err}};
    memset(s, 0, sizeof *s);
    s->seed = seed;
    memcpy(s->word, sentences[draw(&m, sizeof sentences / sizeof *sentences)], sizeof s->word);
    draw_matrices(&m);
    for (int i = 0; i < SHEET_QUESTIONS && m.r.status == KIT_OK; i++) {
        m.question = &s->question[i];
        questions[i](&m);
        check_choices(&m);
    }
    return m.r.status;
}
