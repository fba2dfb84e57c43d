/* Compares builds of libattn, for example the last release with the working tree.
 *
 *     cc -O2 -I OLDEST/include bench/versions.c -o versions -ldl -lm
 *     ./versions old.so new.so old-copy.so
 *     ./versions -s 10 -c "1,32,32,4,4096,128 bottom-right bf16 forward" old.so new.so
 *
 * All libraries are loaded into one process and called in turn, on the same tensors and one thread,
 * so that they see the same machine. The order changes from round to round, so that no library
 * always follows the same one.
 *
 * Prints a line for each cell: the first library's minimum, and for each further library the first
 * one's time divided by its own, as the median over rounds and as the quotient of minima; above 1,
 * it is faster than the first. A copy of the first library (another file: a library is loaded once)
 * shows the noise. The last lines are geometric means.
 *
 * Compile it with the header of the oldest library: newer ones accept shorter structs.
 *
 * -s SECONDS  for each cell (2); at least MIN_ROUNDS rounds are run
 * -c CELL     "B,H,Hk,T,S,D CAUSAL DTYPE PASS", as `attn bench` names them; may be repeated.
 *             Without it: the standard list of `attn bench`, each in f32 and bf16, forward and
 *             backward */
#define _POSIX_C_SOURCE 200809L /* clock_gettime, getopt */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <attn.h>

enum { MAX_LIBS = 8, MAX_CELLS = 64, MIN_ROUNDS = 18, MAX_ROUNDS = 20000 };

/* The functions of one build, and its context of one thread. */
typedef struct library {
    const char *path;
    attn_tensor (*bhtd)(void *, attn_dtype, int64_t, int64_t, int64_t, int64_t);
    attn_status (*create)(const attn_context_options *, attn_context **, attn_error *);
    attn_status (*forward)(attn_context *, const attn_sdpa_args *, attn_error *);
    attn_status (*backward)(attn_context *, const attn_sdpa_args *, const attn_sdpa_grads *,
                            attn_error *);
    attn_context *context;
    double *seconds; /* [MAX_ROUNDS] of the current cell */
    double sums[2];  /* over all cells: logarithms of the two ratios */
} library;

typedef struct cell {
    long B, H, Hk, T, S, D;
    attn_causal causal;
    attn_dtype dtype;
    bool backward;
} cell;

typedef struct problem {
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    attn_tensor lse;
    bool backward; /* the call that is measured */
    void *tensors[9];
    int count; /* of tensors */
} problem;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "versions: %s: %s\n", what, why);
    exit(2);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Stores the address of a function. POSIX allows it, but C has no conversion. */
static void find(void *handle, const char *path, const char *name, void *function)
{
    void *address = dlsym(handle, name);
    if (!address)
        fail(path, dlerror());
    memcpy(function, &address, sizeof address);
}

static void load(library *l, const char *path)
{
    char file[4096];
    snprintf(file, sizeof file, "%s%s", strchr(path, '/') ? "" : "./", path);
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail(path, dlerror());
    l->path = path;
    find(handle, path, "attn_bhtd", &l->bhtd);
    find(handle, path, "attn_context_create", &l->create);
    find(handle, path, "attn_sdpa_forward", &l->forward);
    find(handle, path, "attn_sdpa_backward", &l->backward);
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_error error;
    options.threads = 1;
    if (l->create(&options, &l->context, &error) != ATTN_OK)
        fail(path, error.message);
    l->seconds = malloc(MAX_ROUNDS * sizeof *l->seconds);
    if (!l->seconds)
        fail(path, "out of memory");
}

/* ------------------------------------------------------------------------------------ problem */

/* A tensor of random numbers in -1..1, aligned to a huge page. */
static attn_tensor tensor(problem *p, const library *l, attn_dtype dtype, const long shape[4])
{
    static uint32_t seed = 1;
    const size_t n = (size_t)(shape[0] * shape[1] * shape[2] * shape[3]);
    const size_t huge = (size_t)1 << 21, size = n * (dtype == ATTN_BF16 ? 2 : 4);
    char *data = aligned_alloc(huge, (size + huge) / huge * huge);
    if (!data)
        fail("a tensor", "out of memory");
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        const float x = (float)(int32_t)seed * 0x1p-31F;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        const uint16_t high = (uint16_t)(bits >> 16);
        if (dtype == ATTN_BF16)
            memcpy(data + 2 * i, &high, sizeof high);
        else
            memcpy(data + 4 * i, &x, sizeof x);
    }
    p->tensors[p->count++] = data;
    return l->bhtd(data, dtype, shape[0], shape[1], shape[2], shape[3]);
}

/* One call of the cell; ends the program if it fails. */
static void call(const library *l, const problem *p)
{
    attn_error error;
    const attn_status status = p->backward ? l->backward(l->context, &p->args, &p->grads, &error)
                                           : l->forward(l->context, &p->args, &error);
    if (status != ATTN_OK)
        fail(l->path, error.message);
}

/* The index of `word` in `words`; ends the program if it is none of them. */
static int index_of(const char *word, const char *const *words, const char *text)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    fail(text, "a cell is \"B,H,Hk,T,S,D none|top-left|bottom-right f32|bf16 forward|backward\"");
    return -1;
}

static void read_cell(cell *c, const char *text)
{
    static const char *const causal[] = {"none", "top-left", "bottom-right", NULL};
    static const char *const dtypes[] = {"f32", "bf16", NULL};
    static const char *const passes[] = {"forward", "backward", NULL};
    char words[3][16] = {"", "", ""};
    sscanf(text, "%ld,%ld,%ld,%ld,%ld,%ld %15s %15s %15s", &c->B, &c->H, &c->Hk, &c->T, &c->S,
           &c->D, words[0], words[1], words[2]);
    c->causal = (attn_causal[]){ATTN_CAUSAL_NONE, ATTN_CAUSAL_TOP_LEFT,
                                ATTN_CAUSAL_BOTTOM_RIGHT}[index_of(words[0], causal, text)];
    c->dtype = index_of(words[1], dtypes, text) ? ATTN_BF16 : ATTN_F32;
    c->backward = index_of(words[2], passes, text);
    if (c->B < 1 || c->H < 1 || c->Hk < 1 || c->T < 1 || c->S < 1 || c->D < 1)
        fail(text, "each size must be at least 1");
}

static void make_problem(problem *p, const library *l, const cell *c)
{
    const attn_dtype dtype = c->dtype;
    const long queries[4] = {c->B, c->H, c->T, c->D}, keys[4] = {c->B, c->Hk, c->S, c->D};
    const long rows[4] = {c->B, c->H, c->T, 1};
    *p = (problem){.args = ATTN_SDPA_ARGS_INIT, .grads = ATTN_SDPA_GRADS_INIT};
    p->args.q = tensor(p, l, dtype, queries);
    p->args.k = tensor(p, l, dtype, keys);
    p->args.v = tensor(p, l, dtype, keys);
    p->args.out = tensor(p, l, dtype, queries);
    p->args.causal = c->causal;
    if (!c->backward)
        return;
    p->lse = tensor(p, l, ATTN_F32, rows);
    p->args.lse = &p->lse;
    call(l, p); /* backward reads out and lse */
    p->backward = true;
    p->grads.dout = tensor(p, l, dtype, queries);
    p->grads.dq = tensor(p, l, dtype, queries);
    p->grads.dk = tensor(p, l, dtype, keys);
    p->grads.dv = tensor(p, l, dtype, keys);
}

/* ---------------------------------------------------------------------------------- measuring */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs rounds for `seconds`; returns their number. Short calls are measured several at a time. */
static int run_rounds(library *libs, int count, const problem *p, double seconds)
{
    const double start = now();
    for (int l = 0; l < count; l++)
        call(&libs[l], p);
    const double one = (now() - start) / count;
    const int calls = one < 5e-6 ? 200 : one < 50e-6 ? 20 : 1;
    const double end = now() + seconds;
    int n = 0;
    for (; n < MAX_ROUNDS && (n < MIN_ROUNDS || now() < end); n++)
        for (int j = 0; j < count; j++) {
            library *l = &libs[(n + (n & 1 ? count - j : j)) % count];
            const double began = now();
            for (int i = 0; i < calls; i++)
                call(l, p);
            l->seconds[n] = (now() - began) / calls;
        }
    return n;
}

static double minimum(const double *x, int n)
{
    double least = x[0];
    for (int i = 1; i < n; i++)
        least = x[i] < least ? x[i] : least;
    return least;
}

static void measure(library *libs, int count, const char *text, double seconds)
{
    static double ratios[MAX_ROUNDS];
    cell c;
    read_cell(&c, text);
    problem p;
    make_problem(&p, &libs[0], &c);
    const int n = run_rounds(libs, count, &p, seconds);
    const double first = minimum(libs[0].seconds, n);
    printf("%-47s %10.1f", text, 1e6 * first);
    for (int l = 1; l < count; l++) {
        for (int i = 0; i < n; i++)
            ratios[i] = libs[0].seconds[i] / libs[l].seconds[i];
        qsort(ratios, (size_t)n, sizeof *ratios, compare);
        const double of_minima = first / minimum(libs[l].seconds, n);
        printf("  %9.3f %5.3f", ratios[n / 2], of_minima);
        libs[l].sums[0] += log(ratios[n / 2]);
        libs[l].sums[1] += log(of_minima);
    }
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < p.count; i++)
        free(p.tensors[i]);
}

/* The cells of cli/bench.c, written again: this program needs nothing but a library's header. */
static const char *const standard[] = {
    "1,1,1,6,6,16 none",
    "1,12,12,128,128,64 none",
    "1,12,12,512,512,64 none",
    "1,8,8,2048,2048,64 none",
    "1,8,8,2048,2048,64 top-left",
    "1,8,8,2048,2048,128 none",
    "1,8,8,2048,2048,128 top-left",
    "1,32,32,1,4096,128 none",
    "1,32,32,4,4096,128 bottom-right",
    "8,8,8,1,2048,128 none",
    "1,32,4,1,8192,128 none",
};

/* Measures the standard list; returns the number of cells. */
static int measure_standard(library *libs, int count, double seconds)
{
    static const char *const kinds[] = {"f32 forward", "bf16 forward", "f32 backward",
                                        "bf16 backward"};
    const int shapes = (int)(sizeof standard / sizeof *standard);
    char text[80];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < shapes; i++) {
            snprintf(text, sizeof text, "%s %s", standard[i], kinds[k]);
            measure(libs, count, text, seconds);
        }
    return 4 * shapes;
}

int main(int argc, char **argv)
{
    const char *cells[MAX_CELLS];
    library libs[MAX_LIBS] = {0};
    int n = 0, option;
    double seconds = 2;
    bool wrong = false;
    opterr = 0; /* the line below says more than that of getopt() */
    while ((option = getopt(argc, argv, "s:c:")) != -1) {
        if (option == 's')
            seconds = atof(optarg);
        else if (option == 'c' && n < MAX_CELLS)
            cells[n++] = optarg;
        else
            wrong = true;
    }
    const int count = argc - optind;
    if (wrong || count < 2 || count > MAX_LIBS || !(seconds > 0))
        fail("usage", "versions [-s SECONDS] [-c CELL]... FIRST.so OTHER.so..., with 2 to 8 "
                      "libraries and at most 64 cells");
    for (int l = 0; l < count; l++) {
        load(&libs[l], argv[optind + l]);
        printf("library %d: %s\n", l + 1, libs[l].path);
    }
    printf("%-47s %10s", "cell", "1: us");
    for (int l = 1; l < count; l++)
        printf("  %d: median   min", l + 1);
    printf("\n");
    for (int i = 0; i < n; i++)
        measure(libs, count, cells[i], seconds);
    if (n == 0)
        n = measure_standard(libs, count, seconds);
    for (int l = 1; l < count; l++)
        printf("library %d: geometric means over %d cells: %.4f (medians), %.4f (minima)\n", l + 1,
               n, exp(libs[l].sums[0] / n), exp(libs[l].sums[1] / n));
    return 0;
}
