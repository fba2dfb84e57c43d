/* Quotations in scripts: {weights[is][blue]} becomes the number. docs/LESSONS.md lists the forms.
 *
 * A quotation is an expression of sums, products, functions and references, evaluated by recursive
 * descent. A reference with fewer indices than the step has dimensions stands for all numbers that
 * remain: a row, or the whole step. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../render/draw.h"
#include "script_read.h"

/* What a reference stands for: `count` numbers of a step from element `first`, over its dimensions
 * from `dimension` on. */
typedef struct range {
    const trace_step *step;
    int64_t first, count;
    int dimension;
} range;

typedef struct parser {
    const trace *trace;
    const char *at, *begin; /* of the quotation, behind its brace */
    kit_error *err;
    bool failed;
    bool code; /* only facts and choices are quoted */
} parser;

static double sum_of(parser *p);

static void complain(parser *p, const char *what)
{
    if (!p->failed) {
        p->failed = true;
        kit_fail(p->err, KIT_BAD_FILE, "{%.*s}: %s", (int)strcspn(p->begin, "}\n"), p->begin, what);
    }
}

static void skip_spaces(parser *p) { p->at += strspn(p->at, " "); }

static bool take(parser *p, char c)
{
    skip_spaces(p);
    bool found = *p->at == c;
    p->at += found;
    return found;
}

/* ----------------------------------------------------------------------------------- References */

/* The index that a label names in dimension d: rows have labels in the last but one dimension,
 * columns in the last one. -1: no such label. */
static int64_t find_label(const trace_step *s, int d, const char *label, size_t length)
{
    const int rank = s->tensor.rank;
    char **labels = d == rank - 1 ? s->column_labels : d == rank - 2 ? s->row_labels : NULL;
    size_t count = d == rank - 1 ? s->column_label_count : s->row_label_count;
    for (size_t i = 0; labels != NULL && i < count; i++) {
        if (strlen(labels[i]) == length && strncmp(labels[i], label, length) == 0) {
            return (int64_t)i;
        }
    }
    return -1;
}

/* The index in the fact of this name: [@query]. -1: there is no such fact. */
static int64_t fact_index(const trace *t, const char *name, size_t length)
{
    size_t size;
    const char *text = trace_fact(t, name, length, &size);
    return text != NULL ? strtol(text, NULL, 10) : -1;
}

static int64_t find_index(parser *p, const trace_step *s, int d, const char *text, size_t length)
{
    const bool fact = length > 1 && text[0] == '@';
    int64_t size = s->tensor.shape[d];
    int64_t index =
        fact ? fact_index(p->trace, text + 1, length - 1) : find_label(s, d, text, length);
    if (index < 0 && !fact && length > 0 && length < 9 && strspn(text, "0123456789") >= length) {
        index = strtol(text, NULL, 10);
    }
    if (index < 0 || index >= size) {
        complain(p, "no such row or column");
        return 0;
    }
    return index;
}

static range take_reference(parser *p)
{
    char name[80];
    skip_spaces(p);
    size_t length = 0;
    while (isalnum((unsigned char)p->at[length]) || p->at[length] == '_') {
        length++;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, p->at);
    p->at += length;
    range r = {.step = trace_find(p->trace, name)};
    if (r.step == NULL) {
        complain(p, "the lesson has no step of this name");
        return r;
    }
    const kit_array *a = &r.step->tensor;
    r.count = kit_array_count(a);
    while (*p->at == '[' && r.dimension < a->rank && !p->failed) {
        const char *index = ++p->at;
        p->at += strcspn(p->at, "]}");
        if (p->trace->heads == 1 && strncmp(index, "@head]", 6) == 0) {
            p->at++; /* a trace of one head has no dimension for it */
            continue;
        }
        r.count /= a->shape[r.dimension];
        r.first += r.count * find_index(p, r.step, r.dimension, index, (size_t)(p->at - index));
        r.dimension++;
        if (!take(p, ']')) {
            complain(p, "']' is missing");
        }
    }
    if (*p->at == '[') {
        complain(p, "more indices than the step has dimensions");
    }
    return r;
}

static double number_at(const range *r, int64_t i)
{
    return kit_array_get(&r->step->tensor, r->first + i);
}

/* The position of the largest or smallest number of the range. */
static int64_t find_extreme(const range *r, bool largest)
{
    int64_t best = 0;
    for (int64_t i = 1; i < r->count; i++) {
        double x = number_at(r, i), y = number_at(r, best);
        best = (largest ? x > y : x < y) ? i : best;
    }
    return best;
}

/* ---------------------------------------------------------------------------------- Expressions */

static const char *const reductions[] = {"sum", "mean", "var", "min", "max"};

static double reduce(size_t which, const range *r)
{
    double sum = 0, squares = 0, mean;
    if (which >= 3) {
        return number_at(r, find_extreme(r, which == 4));
    }
    for (int64_t i = 0; i < r->count; i++) {
        sum += number_at(r, i);
    }
    mean = sum / (double)r->count;
    for (int64_t i = 0; i < r->count; i++) {
        squares += (number_at(r, i) - mean) * (number_at(r, i) - mean);
    }
    return which == 0 ? sum : which == 1 ? mean : squares / (double)r->count;
}

/* Whether a function of this name begins here; its opening parenthesis is taken. */
static bool take_function(parser *p, const char *name)
{
    size_t length = strlen(name);
    bool found = strncmp(p->at, name, length) == 0 && p->at[length] == '(';
    p->at += found ? length + 1 : 0;
    return found;
}

static double take_number(parser *p)
{
    char *end;
    double x = strtod(p->at, &end);
    p->at = end;
    return x;
}

static double closed(parser *p, double x)
{
    if (!take(p, ')')) {
        complain(p, "')' is missing");
    }
    return x;
}

static double factor_of(parser *p)
{
    if (take(p, '-')) {
        return -factor_of(p);
    }
    if (take(p, '(')) {
        return closed(p, sum_of(p));
    }
    if (isdigit((unsigned char)*p->at)) {
        return take_number(p);
    }
    if (take_function(p, "exp")) {
        return closed(p, exp(sum_of(p)));
    }
    if (take_function(p, "sqrt")) {
        return closed(p, sqrt(sum_of(p)));
    }
    if (take_function(p, "abs")) {
        return closed(p, fabs(sum_of(p)));
    }
    for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++) {
        if (take_function(p, reductions[i])) {
            range r = take_reference(p);
            return closed(p, p->failed ? 0 : reduce(i, &r));
        }
    }
    range r = take_reference(p);
    if (!p->failed && r.count != 1) {
        complain(p, "an index is missing: a row is not a number");
    }
    return p->failed ? 0 : number_at(&r, 0);
}

static double product_of(parser *p)
{
    double x = factor_of(p);
    while (!p->failed) {
        if (take(p, '*')) {
            x *= factor_of(p);
        } else if (take(p, '/')) {
            x /= factor_of(p);
        } else {
            break;
        }
    }
    return x;
}

static double sum_of(parser *p)
{
    double x = product_of(p);
    while (!p->failed) {
        if (take(p, '+')) {
            x += product_of(p);
        } else if (take(p, '-')) {
            x -= product_of(p);
        } else {
            break;
        }
    }
    return x;
}

/* ----------------------------------------------------------------------------------- Quotations */

static void put_shape(sink *out, const kit_array *a)
{
    for (int i = 0; i < a->rank; i++) {
        sink_printf(out, "%s%lld", i > 0 ? "×" : "", (long long)a->shape[i]);
    }
}

static void put_label(sink *out, const range *r, bool largest)
{
    int64_t i = find_extreme(r, largest);
    const trace_step *s = r->step;
    if (s->column_labels != NULL && (size_t)i < s->column_label_count) {
        sink_puts(out, s->column_labels[i]);
    } else {
        sink_printf(out, "%lld", (long long)i);
    }
}

/* How a number is written: with '0' to '9' decimals, as per cent ('%'), or in the shortest form
 * ('g'). */
static char take_form(parser *p)
{
    if (!take(p, ':')) {
        return '4';
    }
    char form = *p->at;
    if (form == '\0' || strchr("0123456789%g", form) == NULL) {
        complain(p, "a digit, % or g must follow ':'");
        return '4';
    }
    p->at++;
    return form;
}

static void put_number(sink *out, double x, char form)
{
    char text[400];
    if (form == 'g') {
        sink_puts(out, number_text(text, x));
        return;
    }
    snprintf(text, sizeof text, "%.*f", form == '%' ? 0 : form - '0', form == '%' ? 100 * x : x);
    bool zero = strspn(text, "-0.") == strlen(text); /* -0.00 is 0.00 */
    sink_printf(out, "%s%s", zero && text[0] == '-' ? text + 1 : text, form == '%' ? " %" : "");
}

static bool take_word(parser *p, const char *word)
{
    size_t length = strlen(word);
    bool found = strncmp(p->at, word, length) == 0 && p->at[length] == ' ';
    p->at += found ? length + 1 : 0;
    return found;
}

/* A reference to several numbers, alone in its quotation. */
static bool put_row(parser *p, sink *out)
{
    parser ahead = *p;
    kit_error ignored = {0};
    ahead.err = &ignored;
    range r = take_reference(&ahead);
    if (ahead.failed || r.count == 1 || (*ahead.at != '}' && *ahead.at != ':')) {
        return false;
    }
    p->at = ahead.at;
    char form = take_form(p);
    for (int64_t i = 0; i < r.count; i++) {
        sink_puts(out, i > 0 ? ", " : "");
        put_number(out, number_at(&r, i), form);
    }
    return true;
}

static void put_quotation(parser *p, sink *out)
{
    bool largest = take_word(p, "largest");
    if (largest || take_word(p, "smallest")) {
        range r = take_reference(p);
        if (!p->failed) {
            put_label(out, &r, largest);
        }
    } else if (take_word(p, "shape")) {
        range r = take_reference(p);
        if (!p->failed) {
            put_shape(out, &r.step->tensor);
        }
    } else if (!put_row(p, out)) {
        double x = sum_of(p);
        put_number(out, x, take_form(p));
    }
    if (!take(p, '}')) {
        complain(p, "'}' is missing");
    }
}

/* -------------------------------------------------------------------------------------- Choices */

bool script_holds(const trace *t, const char *condition, size_t length)
{
    size_t ignored, skip = length > 4 && strncmp(condition, "not ", 4) == 0 ? 4 : 0;
    bool found = trace_fact(t, condition + skip, length - skip, &ignored) != NULL;
    return skip > 0 ? !found : found;
}

static bool begins(const parser *p, const char *mark)
{
    return strncmp(p->at, mark, strlen(mark)) == 0;
}

/* Moves behind a branch that is not taken, to its {else} or {end}. */
static void skip_branch(parser *p)
{
    for (int depth = 0; *p->at != '\0'; p->at++) {
        if (depth == 0 && (begins(p, "{else}") || begins(p, "{end}"))) {
            return;
        }
        depth += begins(p, "{if ") - begins(p, "{end}");
        p->at += !p->code && begins(p, "{{"); /* a brace of the text */
    }
}

static void put_text(parser *p, sink *out, bool inner);

/* {if CONDITION} text {else} text {end}; behind "{if ". */
static void put_choice(parser *p, sink *out)
{
    const char *condition = p->begin = p->at;
    size_t length = strcspn(p->at, "}");
    p->at += length + (p->at[length] == '}');
    bool holds = script_holds(p->trace, condition, length);
    if (holds) {
        put_text(p, out, true);
    } else {
        skip_branch(p);
    }
    if (begins(p, "{else}")) {
        p->at += strlen("{else}");
        if (holds) {
            skip_branch(p);
        } else {
            put_text(p, out, true);
        }
    }
    if (begins(p, "{end}")) {
        p->at += strlen("{end}");
    } else if (!p->failed) {
        p->begin = condition;
        complain(p, "'{end}' is missing");
    }
}

static void put_fact(parser *p, sink *out)
{
    size_t length = strcspn(p->at, "}"), size = 0;
    const char *text = trace_fact(p->trace, p->at, length, &size);
    p->begin = p->at;
    if (text == NULL) {
        complain(p, "the lesson has no fact of this name");
        return;
    }
    sink_write(out, text, size);
    p->at += length + (p->at[length] == '}');
}

/* Writes the text up to its end or, within a choice, up to {else} or {end}. */
static void put_text(parser *p, sink *out, bool inner)
{
    while (*p->at != '\0' && !p->failed) {
        size_t plain = strcspn(p->at, "{");
        sink_write(out, p->at, plain);
        p->at += plain;
        if (inner && (begins(p, "{else}") || begins(p, "{end}"))) {
            return;
        }
        if (begins(p, "{if ")) {
            p->at += strlen("{if ");
            put_choice(p, out);
        } else if (begins(p, "{fact ")) {
            p->at += strlen("{fact ");
            put_fact(p, out);
        } else if (*p->at == '{' && (p->code || p->at[1] == '{')) {
            sink_puts(out, "{");
            p->at += p->code ? 1 : 2;
        } else if (*p->at == '{') {
            p->begin = ++p->at;
            put_quotation(p, out);
        }
    }
}

static char *quote(parser *p)
{
    sink out = {0};
    sink_puts(&out, "");
    put_text(p, &out, false);
    if (p->failed || out.failed) {
        free(out.data);
        if (!p->failed) {
            kit_fail(p->err, KIT_LIMIT, "no memory");
        }
        return NULL;
    }
    return out.data;
}

char *script_quote(const trace *t, const char *text, kit_error *err)
{
    return quote(&(parser){.trace = t, .at = text, .err = err});
}

char *script_quote_code(const trace *t, const char *text, kit_error *err)
{
    return quote(&(parser){.trace = t, .at = text, .err = err, .code = true});
}
