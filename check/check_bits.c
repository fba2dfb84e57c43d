/* The table of the record of bits: compute, print, read and compare it. See check_bits.h. */
#include "check_bits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "check_bits_case.h"

#define DIGITS 12 /* hexadecimal digits of a hash */
#define SHOWN 10  /* differences that are printed */

/* The kinds of problems: problem n has the kind at n % KINDS. */
static const struct {
    const char *name;
    void (*run)(bits_case *);
} kinds[] = {{"forward", bits_forward},   {"backward", bits_backward},
             {"forward", bits_forward},   {"jvp", bits_jvp},
             {"forward", bits_forward},   {"cache", bits_cache},
             {"large", bits_large},       {"backward", bits_backward},
             {"linear", bits_linear},     {"mha", bits_mha},
             {"forward", bits_forward},   {"layers", bits_layers},
             {"backward", bits_backward}, {"forward", bits_forward},
             {"jvp", bits_jvp},           {"large", bits_large},
             {"cache", bits_cache},       {"forward", bits_forward},
             {"backward", bits_backward}, {"mha", bits_mha}};
#define KINDS ((int)(sizeof kinds / sizeof *kinds))

/* The instruction sets of all architectures: each has a column in the table. */
static const char *const columns[] = {"generic", "avx2", "avx512", "avx512bf16", "amx", "neon"};
static const char head[] = "problem kind generic avx2 avx512 avx512bf16 amx neon\n";
#define COLUMNS ((int)(sizeof columns / sizeof *columns))
#define ABSENT UINT64_MAX /* no hash */

typedef struct bits_run {
    const check_bits_options *options;
    bits_case c;
    attn_context *contexts[COLUMNS]; /* NULL: this column is not computed here */
    uint64_t (*record)[COLUMNS];
    int64_t compared, differ;
    char *message;
    size_t size;
} bits_run;

/* ----------------------------------------------------------------------------------- the record */

static bool damaged(bits_run *r, int line, const char *what)
{
    snprintf(r->message, r->size, "record, line %d: %s", line, what);
    return false;
}

/* Reads a hash of DIGITS digits, or "-" for an absent one, and the space or line end after it. */
static bool read_hash(char **at, bool last, uint64_t *hash)
{
    size_t digits = strspn(*at, "0123456789abcdef");
    *hash = ABSENT;
    if (digits == 0 && **at == '-')
        digits = 1;
    else if (digits == DIGITS)
        *hash = strtoull(*at, NULL, 16);
    else
        return false;
    *at += digits;
    return *(*at)++ == (last ? '\n' : ' ');
}

static bool read_line(bits_run *r, char *text, int line, int problem)
{
    char start[32];
    snprintf(start, sizeof start, "%d %s ", problem, kinds[problem % KINDS].name);
    if (strncmp(text, start, strlen(start)) != 0) {
        char what[64];
        snprintf(what, sizeof what, "should begin with \"%s\"", start);
        return damaged(r, line, what);
    }
    text += strlen(start);
    for (int i = 0; i < COLUMNS; i++)
        if (!read_hash(&text, i == COLUMNS - 1, &r->record[problem][i]))
            return damaged(r, line, "not a hash of 12 digits, or -, for each instruction set");
    return *text == 0 || damaged(r, line, "goes on after its hashes");
}

static bool read_record(bits_run *r)
{
    char text[256];
    int line = 0, problem = -1; /* -1: the head was not read yet */
    while (fgets(text, sizeof text, r->options->record)) {
        line++;
        if (text[0] == '#')
            continue;
        if (problem < 0 && strcmp(text, head) != 0)
            return damaged(r, line, "should be the heads of the columns, as attn check --bits has");
        if (problem == CHECK_BITS_PROBLEMS)
            return damaged(r, line, "more problems than 2000");
        if (problem >= 0 && !read_line(r, text, line, problem))
            return false;
        problem++;
    }
    return problem == CHECK_BITS_PROBLEMS ||
           damaged(r, line + 1, "ends before it has 2000 problems");
}

/* -------------------------------------------------------------------------------------- the run */

static bool selected(const bits_run *r, const char *isa)
{
    return !r->options->isa || strcmp(r->options->isa, isa) == 0;
}

/* Creates a context for each requested instruction set that is usable. */
static bool create_contexts(bits_run *r)
{
    for (int i = 0; attn_isa(i).name; i++)
        for (int column = 0; column < COLUMNS; column++) {
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            attn_error err;
            options.isa = attn_isa(i).name;
            options.threads = 1;
            if (!attn_isa(i).usable || strcmp(options.isa, columns[column]) != 0 ||
                !selected(r, options.isa))
                continue;
            if (attn_context_create(&options, &r->contexts[column], &err) != ATTN_OK) {
                snprintf(r->message, r->size, "%s", err.message);
                return false;
            }
        }
    return true;
}

/* Computes one hash. ABSENT: a call failed, and c->err says why. */
static uint64_t compute(bits_run *r, int problem, int column)
{
    bits_case *c = &r->c;
    c->ctx = r->contexts[column];
    bits_begin(c, (uint64_t)problem);
    kinds[problem % KINDS].run(c);
    return c->failed ? ABSENT
                     : (c->hash ^ c->hash >> 4 * DIGITS) & ((UINT64_C(1) << 4 * DIGITS) - 1);
}

static void differs(bits_run *r, int problem, int column, uint64_t hash, uint64_t want)
{
    FILE *out = r->options->out;
    if (++r->differ > SHOWN)
        return;
    fprintf(out, "FAIL problem %d %s %s (%s): ", problem, kinds[problem % KINDS].name,
            columns[column], r->c.what);
    if (hash == ABSENT)
        fprintf(out, "%s: %s\n", attn_status_name(r->c.err.status), r->c.err.message);
    else
        fprintf(out, "%0*" PRIx64 ", the record has %0*" PRIx64 "\n", DIGITS, hash, DIGITS, want);
}

static void compare(bits_run *r, int problem)
{
    for (int i = 0; i < COLUMNS; i++) {
        const uint64_t want = r->record[problem][i];
        if (!r->contexts[i] || want == ABSENT)
            continue;
        const uint64_t hash = compute(r, problem, i);
        r->compared++;
        if (hash != want)
            differs(r, problem, i, hash, want);
    }
}

static void print_line(bits_run *r, int problem)
{
    FILE *out = r->options->out;
    fprintf(out, "%d %s", problem, kinds[problem % KINDS].name);
    for (int i = 0; i < COLUMNS; i++) {
        const uint64_t hash = r->contexts[i] ? compute(r, problem, i) : ABSENT;
        if (hash != ABSENT)
            fprintf(out, " %0*" PRIx64, DIGITS, hash);
        else
            fprintf(out, " -");
        if (r->contexts[i] && hash == ABSENT) {
            snprintf(r->message, r->size, "problem %d %s %s: %s", problem,
                     kinds[problem % KINDS].name, columns[i], r->c.err.message);
            r->differ++;
        }
    }
    fputc('\n', out);
}

/* Prints the last line of a comparison. */
static void summarise(const bits_run *r)
{
    FILE *out = r->options->out;
    fprintf(out, "%" PRId64 " hashes compared, %" PRId64 " differ;", r->compared, r->differ);
    for (int i = 0; i < COLUMNS; i++) {
        int64_t here = 0;
        for (int n = 0; n < CHECK_BITS_PROBLEMS; n++)
            here += r->record[n][i] != ABSENT;
        fprintf(out, " %s %s", columns[i],
                !r->contexts[i] ? "not run"
                : here == 0     ? "not in the record"
                                : "compared");
        fputc(i < COLUMNS - 1 ? ',' : '\n', out);
    }
}

static void run(bits_run *r)
{
    const int every = r->options->every > 0 ? r->options->every : 1;
    if (!r->record)
        fputs(head, r->options->out);
    for (int problem = 0; problem < CHECK_BITS_PROBLEMS; problem += every)
        if (r->record)
            compare(r, problem);
        else
            print_line(r, problem);
    if (r->record)
        summarise(r);
}

int check_bits(const check_bits_options *options, char *message, size_t size)
{
    bits_run r = {.options = options, .message = message, .size = size};
    bool ready = false;
    snprintf(message, size, "out of memory");
    r.c.memory = malloc(BITS_MEMORY);
    if (options->record)
        r.record = calloc(CHECK_BITS_PROBLEMS, sizeof *r.record);
    if (r.c.memory && (r.record || !options->record))
        ready = (!options->record || read_record(&r)) && create_contexts(&r);
    if (ready)
        run(&r);
    for (int i = 0; i < COLUMNS; i++)
        attn_context_destroy(r.contexts[i]);
    free(r.c.memory);
    free(r.record);
    if (!ready)
        return -1;
    return options->record && r.compared == 0 ? 1 : (int)r.differ;
}
