/* One case of the harness: its place in the run, its random numbers, its memory, and its failure
 * message.
 *
 * A check is one function, void check_<op>(check_case *c). It draws a shape from c, describes it
 * with check_describe, runs the operation and compares the result with its expectation.
 * check_main.c calls it for every instruction set, element type and tile width, with one seed after
 * the other. A case depends only on its seed, so `attn check --op OP --isa ISA --seed N` runs a
 * failed case again, as its first case.
 *
 * To add a check for a new row of ops.def, write check_<row>(); without it the program does not
 * link.
 */
#ifndef CHECK_CASE_H
#define CHECK_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../src/kernel/kernel.h"
#include "attn.h"
#include "check_buffers.h"
#include "check_compare.h"

#define CHECK_MAX_ISAS 16
#define CHECK_CONTEXTS 5

/* One run of the harness. */
typedef struct check_run_state {
    FILE *out;
    uint64_t passed, failed;
    uint64_t hash; /* of the results of all cases of an operation; 0: it has none */
    bool bench;
    check_buffers *buffers;
    attn_context *contexts[CHECK_MAX_ISAS][CHECK_CONTEXTS]; /* by instruction set; see below */
} check_run_state;

typedef struct check_case {
    check_run_state *run;
    const char *op;
    int isa; /* index into isa.def */
    const char *isa_name;
    const attni_kernels *kernels; /* NULL for whole calls, and the next four are 0 */
    int bits, nv, W;
    size_t size; /* of R, in bytes */
    bool fused;  /* the kernels compute a * b + c with one rounding */

    uint64_t seed, random; /* the seed that repeats the case; the state of its generator */
    bool failed;
    char what[512]; /* a description of its shape */
    void *arrays;   /* a list of the arrays of check_array */
    double fastest; /* work per nanosecond: CHECK_BENCH */
} check_case;

/* ---- check_case.c: cases that end early */

/* Runs check(c). Returns NULL, or the reason why the case ended early. */
const char *check_guarded(check_case *c, void (*check)(check_case *));
/* Ends the case at once; it has failed. */
void check_abandon(check_case *c, const char *why) __attribute__((noreturn));
/* The case that runs, or NULL; and whether it runs on this thread. For signal handlers. */
check_case *check_running(bool *own_thread);

/* ---- check_main.c: single cases, for its own tables and for tests */

/* Runs one case of `check`, counts it and reports it. nv is 0 for whole calls. */
void check_one(check_run_state *run, const char *op, void (*check)(check_case *), int isa, int bits,
               int nv, uint64_t seed, double *fastest);

/* ---- check_case.c: contexts */

/* The numbers of threads on which calls are checked: 1, 2, 3, 8, 16, then 0 as the end mark; and
 * the context with that many threads, on the case's instruction set. */
extern const int check_thread_counts[CHECK_CONTEXTS + 1];
attn_context *check_context(check_case *c, int threads);
void check_contexts_destroy(check_run_state *run);

/* ---- check_case.c: random numbers */

uint64_t check_random(check_case *c);
int64_t check_between(check_case *c, int64_t low, int64_t high); /* both included */
bool check_chance(check_case *c, int percent);
double check_normal(check_case *c); /* about N(0, 1) */
#define CHECK_PICK(c, list)                                                                        \
    ((list)[check_between(c, 0, (int64_t)(sizeof(list) / sizeof *(list)) - 1)])

/* The contents of an array. In SPECIAL one element in ten is NaN, an infinity, a zero, one of the
 * largest numbers or a denormal, the others are as in PLAIN; WILD is any bits. */
typedef enum check_content { CHECK_PLAIN, CHECK_OUTLIERS, CHECK_SPECIAL, CHECK_WILD } check_content;
check_content check_any_content(check_case *c);
double check_value(check_case *c, check_content content);

/* ---- check_case.c: arrays of R, in guarded memory, filled with NaN */

void *check_tile(check_case *c, int64_t rows);  /* [rows][W], aligned as tiles are */
void *check_free(check_case *c, int64_t count); /* any alignment */
/* check_free() with contents. */
void *check_filled(check_case *c, int64_t count, check_content content);
/* Most lengths of a last vector, also after several whole ones. */
int64_t check_any_length(check_case *c);
/* A region without memory, for operations that may prefetch from it. */
attni_prefetch check_far_away(check_case *c);
/* What a decode operation prefetches: these rows or none, in any of its ways. */
attni_next_rows check_next_rows(check_case *c, const void *rows, ptrdiff_t bytes, int64_t n);
void check_fill(check_case *c, void *x, int64_t n, check_content content);
/* The rows of an operand, which may have gaps, overlap, or follow each other backwards, in memory
 * that ends where they end. */
typedef struct check_rows {
    char *memory, *first; /* the first element in memory; the first of row 0 */
    int64_t count;        /* elements in memory */
} check_rows;
ptrdiff_t check_any_stride(check_case *c, int64_t size); /* from a row of `size` to the next */
check_rows check_rows_new(check_case *c, int n, int64_t size, ptrdiff_t ld);
/* The first row as an argument of a kernel. With `halves`, if the kernels take bf16 and f16, it may
 * be a row of a copy in one of these types, and r is then rounded to that type; otherwise it is
 * r->first. */
const char *check_rows_stored(check_case *c, check_rows *r, bool halves, attn_dtype *type);
/* Interleaves rows of keys of `type`, ld apart, as a cache stores them. Lanes without a key hold
 * NaN. */
const char *check_interleave_keys(check_case *c, const char *k, attn_dtype type, ptrdiff_t ld,
                                  int n, int64_t D);
double check_get(const check_case *c, const void *x, int64_t i);
void check_set(const check_case *c, void *x, int64_t i, double value);
double check_round(const check_case *c, double x); /* to R */
/* with the kernels' rounding */
double check_fma(const check_case *c, double a, double b, double sum);

/* check_array: a scratch array of doubles, all 0. check_copy: a copy of n elements of R as doubles.
 * Both are freed after the case. */
double *check_array(check_case *c, int64_t n);
double *check_copy(check_case *c, const void *x, int64_t n);
void check_arrays_free(check_case *c);

/* ---- check_case.c: expectations; they do nothing once the case has failed */

void check_describe(check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_fail(check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Compares the n elements of R at got. `width`, the length of a row, is used to report an index as
 * row and column. */
void check_expect_same(check_case *c, const char *array, const void *got, const double *want,
                       int64_t n, int64_t width, check_zero zero);
void check_expect_within(check_case *c, const char *array, const void *got, const double *want,
                         const double *bound, int64_t n, int64_t width);
void check_expect_intact(check_case *c); /* no byte around a buffer was written */

/* Times a call, if the run measures: CHECK_BENCH(c, multiplications, k->scores(...)). */
double check_bench_now(void);
#define CHECK_BENCH(c, work, call)                                                                 \
    do {                                                                                           \
        for (int round_ = 0; (c)->run->bench && !(c)->failed && round_ < 8; round_++) {            \
            double start_ = check_bench_now();                                                     \
            for (int repeat_ = 0; repeat_ < 16; repeat_++)                                         \
                call;                                                                              \
            double rate_ = 16 * (double)(work) / (check_bench_now() - start_);                     \
            (c)->fastest = rate_ > (c)->fastest ? rate_ : (c)->fastest;                            \
        }                                                                                          \
    } while (0)

/* ---- one function for each row of ops.def, and for whole calls */

#define ATTNI_OP(name) void check_##name(check_case *c);
#include "../src/kernel/ops.def"
#undef ATTNI_OP
void check_exp2(check_case *c);     /* a sample of all binary32 numbers, through weights() */
void check_exp2_all(check_case *c); /* all of them; runs only if named with --op */
void check_dropout(check_case *c);  /* attn_dropout_mask */
void check_sdpa(check_case *c);
void check_backward(check_case *c);         /* attn_sdpa_backward */
void check_pieces(check_case *c);           /* attn_sdpa_begin, _feed and _finish */
void check_pieces_backward(check_case *c);  /* attn_sdpa_backward_begin, _feed and _finish */
void check_parts_backward(check_case *c);   /* the same, with some of the rows in each call */
void check_queries_backward(check_case *c); /* the same, which pass sums of dk and dv on */
void check_threads(check_case *c);          /* every pass, on several numbers of threads */

#endif
