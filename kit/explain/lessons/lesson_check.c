/* Compares a lesson's results with what the notebook printed.
 *
 * A step's `printed` is the notebook's output, verbatim. Its numbers are compared, in order, with
 * the step's elements (numbers that were printed twice are compared twice). Each must agree to half
 * a unit of the last digit printed. Two things may add to this tolerance, and the report then says
 * so: float results differ in the last bits between machines, and inputs that a notebook shows with
 * 8 digits are known only to 8 digits. torch.Size([..]) is compared with the step's shape; 'words'
 * in quotes with its column labels.
 */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lessons.h"

/* The result of comparing one step. */
typedef struct tally {
    int64_t numbers, right, by_slack, shapes, labels;
    double worst;         /* distance of those by slack, in units of the last digit */
    char difference[256]; /* the first; "" if none */
} tally;

typedef struct printed_number {
    double value;
    double unit;  /* of its last digit */
    int decimals; /* -1: written with an exponent, or inf, whose unit is known alone */
    const char *text;
    int length;
} printed_number;

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

/* Reads a number at p. Returns the end of the number, or NULL if there is none at p. */
static const char *parse_number(const char *p, printed_number *n)
{
    const char *q = p + (*p == '-' || *p == '+');
    if (strncmp(q, "inf", 3) == 0 && !is_name(q[3])) {
        *n = (printed_number){*p == '-' ? -INFINITY : INFINITY, 0, -1, p, (int)(q + 3 - p)};
        return q + 3;
    }
    if (!isdigit((unsigned char)*q)) {
        return NULL;
    }
    char *end = NULL;
    n->value = strtod(p, &end);
    const char *point = memchr(p, '.', (size_t)(end - p));
    const char *exponent = memchr(p, 'e', (size_t)(end - p));
    const char *digits_end = exponent != NULL ? exponent : end;
    int decimals = point != NULL ? (int)(digits_end - point) - 1 : 0;
    n->decimals = exponent != NULL ? -1 : decimals;
    n->unit = exponent != NULL ? pow(10, (double)(strtol(exponent + 1, NULL, 10) - decimals)) : 0;
    n->text = p;
    n->length = (int)(end - p);
    return end;
}

/* Moves to the next number, over names and dictionary keys ("3: "). */
static const char *next_number(const char *p, printed_number *n)
{
    while (*p != '\0') {
        const char *end = parse_number(p, n);
        if (end != NULL && *end != ':' && !isalpha((unsigned char)*end)) {
            return end;
        }
        if (strncmp(p, "torch.Size([", 12) == 0) {
            p += strcspn(p, "]");
        } else if (*p == '\'') {
            p += 1 + strcspn(p + 1, "'");
            p += *p == '\'';
        } else if (end != NULL || is_name(*p)) {
            p = end != NULL ? end : p;
            while (is_name(*p)) {
                p++;
            }
        } else {
            p++;
        }
    }
    return NULL;
}

/* All numbers of an array are printed with the same number of decimals, but NumPy drops trailing
 * zeros. */
static int array_decimals(const char *printed, int64_t *count)
{
    int most = 0;
    printed_number n;
    *count = 0;
    for (const char *p = printed; (p = next_number(p, &n)) != NULL;) {
        most = n.decimals > most ? n.decimals : most;
        ++*count;
    }
    return most;
}

static void note_difference(tally *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void note_difference(tally *t, const char *format, ...)
{
    if (t->difference[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(t->difference, sizeof t->difference, format, arguments);
        va_end(arguments);
    }
}

/* Float sums of products differ between machines by a few roundings of the largest term. Numbers
 * that are printed with exponents span many magnitudes, so each has its own tolerance. */
static double float_slack(const trace_step *s)
{
    double largest = 0;
    int64_t count = kit_array_count(&s->tensor);
    for (int64_t i = 0; s->tensor.dtype == ATTN_F32 && i < count; i++) {
        double x = fabs(kit_array_get(&s->tensor, i));
        largest = isfinite(x) && x > largest ? x : largest;
    }
    return 0x1p-22 * largest;
}

static void compare_numbers(const trace_step *s, tally *t)
{
    int64_t count = kit_array_count(&s->tensor), printed = 0;
    int decimals = array_decimals(s->printed, &printed);
    if (printed > 0 && (count == 0 || printed % count != 0)) {
        note_difference(t, "the notebook printed %lld numbers, here are %lld", (long long)printed,
                        (long long)count);
        t->numbers = printed;
        return;
    }
    /* Without decimals: PyTorch and NumPy print integers like this, so the number is exact. */
    double unit = decimals > 0 ? pow(10, -decimals) : 0, rounding = float_slack(s);
    printed_number n;
    for (const char *p = s->printed; (p = next_number(p, &n)) != NULL; t->numbers++) {
        double x = kit_array_get(&s->tensor, t->numbers % count);
        double digit = (n.decimals < 0 ? n.unit : unit) / 2 * (1 + 1e-9);
        double slack = s->slack + s->slack_part * fabs(x) + (n.decimals < 0 ? 0 : rounding);
        double off = x == n.value ? 0 : fabs(x - n.value);
        if (off <= digit || off <= digit + slack) {
            t->right++;
            if (off > digit) {
                t->by_slack++;
                t->worst = fmax(t->worst, off);
            }
        } else {
            note_difference(t, "number %lld is %.9g, %s %.*s", (long long)t->numbers + 1, x,
                            s->after_notebook ? "PyTorch gives" : "the notebook printed", n.length,
                            n.text);
        }
    }
}

static void compare_shapes(const trace_step *s, tally *t)
{
    const char *p = s->printed;
    while ((p = strstr(p, "torch.Size([")) != NULL) {
        p += strlen("torch.Size([");
        int rank = 0;
        bool same = true;
        while (*p != ']' && *p != '\0') {
            char *end = NULL;
            long size = strtol(p, &end, 10);
            same = same && rank < s->tensor.rank && s->tensor.shape[rank] == size;
            rank++;
            p = end + (end == p) + strspn(end, ", ");
        }
        t->shapes++;
        if (!same || rank != s->tensor.rank) {
            note_difference(t, "the shape differs from the printed torch.Size");
        }
    }
}

static void compare_labels(const trace_step *s, tally *t)
{
    for (const char *p = s->printed; (p = strchr(p, '\'')) != NULL; t->labels++) {
        size_t length = strcspn(p + 1, "'"), i = (size_t)t->labels;
        const char *label = i < s->column_label_count ? s->column_labels[i] : "";
        if (strlen(label) != length || strncmp(label, p + 1, length) != 0) {
            note_difference(t, "word %zu is '%s', the notebook printed '%.*s'", i + 1, label,
                            (int)length, p + 1);
        }
        p += length + 1 + (p[length + 1] == '\'');
    }
}

static tally compare_step(const trace_step *s)
{
    tally t = {0};
    compare_numbers(s, &t);
    compare_shapes(s, &t);
    compare_labels(s, &t);
    if (t.numbers + t.shapes + t.labels == 0) {
        note_difference(&t, "nothing to compare in what the notebook printed");
    }
    return t;
}

/* "ok   weights_2   6 of 6 numbers and 1 shape as printed" */
static void report(FILE *out, const trace_step *s, const tally *t)
{
    const char *name = s->check_only && s->title != NULL ? s->title : s->name;
    fprintf(out, "%s %-26s", t->difference[0] != '\0' ? "FAIL" : "ok  ", name);
    const char *and = "";
    if (t->numbers > 0) {
        fprintf(out, " %lld of %lld number%s", (long long)t->right, (long long)t->numbers,
                t->numbers == 1 ? "" : "s");
        and = " and";
    }
    if (t->labels > 0) {
        fprintf(out, "%s %lld word%s", and, (long long)t->labels, t->labels == 1 ? "" : "s");
        and = " and";
    }
    if (t->shapes > 0) {
        fprintf(out, "%s %lld shape%s", and, (long long)t->shapes, t->shapes == 1 ? "" : "s");
    }
    fputs(s->after_notebook ? " as PyTorch gives them" : " as printed", out);
    if (t->difference[0] != '\0') {
        fprintf(out, ": %s", t->difference);
    } else if (t->by_slack > 0) {
        fprintf(out, "; %lld of them only to %.1e: %s", (long long)t->by_slack, t->worst,
                s->slack_why != NULL ? s->slack_why : "float rounding");
    }
    fputc('\n', out);
}

int lesson_check(const trace *t, FILE *out, kit_error *err)
{
    int rc = KIT_OK;
    int64_t numbers = 0, later = 0, shapes = 0, compared = 0, off = 0;
    for (size_t i = 0; i < t->count; i++) {
        const trace_step *s = &t->step[i];
        if (s->printed == NULL) {
            continue;
        }
        tally found = compare_step(s);
        *(s->after_notebook ? &later : &numbers) += found.numbers;
        shapes += found.shapes;
        compared++;
        if (out != NULL) {
            report(out, s, &found);
        }
        if (found.difference[0] != '\0') {
            off++;
            if (rc == KIT_OK) {
                rc = kit_fail(err, KIT_CHECK_FAILED, "%s: %s: %s", t->lesson, s->name,
                              found.difference);
            }
        }
    }
    if (compared == 0) {
        return kit_fail(err, KIT_CHECK_FAILED, "%s: the notebook printed no number to compare with",
                        t->lesson);
    }
    if (out != NULL) {
        fprintf(out, "%s: %lld numbers", t->lesson, (long long)numbers);
        if (shapes > 0) {
            fprintf(out, " and %lld shapes", (long long)shapes);
        }
        fputs(" that the notebook printed", out);
        if (later > 0) {
            fprintf(out, " and %lld of PyTorch beyond it", (long long)later);
        }
        if (off == 0) {
            fputs(": all reproduced\n", out);
        } else {
            fprintf(out, "; %lld of %lld prints differ\n", (long long)off, (long long)compared);
        }
    }
    return rc;
}
