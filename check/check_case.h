/* What one case of the harness is made of: its place in the run, its random numbers, its memory,
 * and the words in which it fails.
 *
 * A check is one function, void check_<op>(check_case *c), that draws a shape from c, says it with
 * check_describe, runs the operation and expects something of the result. check_main.c calls it for
 * every instruction set, element type and tile width, with one seed after the other; a case depends
 * on its seed alone, so `attn check --op OP --isa ISA --seed N` runs a failed case again, first of
 * all.
 *
 * To add a check for a new row of ops.def: write check_<row>(); the compiler asks for it.
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
    bool bench;
    check_buffers *buffers;
    attn_context *contexts[CHECK_MAX_ISAS][CHECK_CONTEXTS]; /* by instruction set; see below */
} check_run_state;

typedef struct check_case {
    check_run_state *run;
    const char *op;
    int isa; /* index into isa.def */
    const char *isa_name;
    const attni_kernels *kernels; /* NULL for whole calls, as are the next four */
    int bits, nv, W;
    size_t size; /* of R, in bytes */
    bool fused;  /* the kernels' a * b + c rounds once */

    uint64_t seed, random; /* what repeats the case; the state of its generator */
    bool failed;
    char what[512]; /* its shape, in words */
    void *arrays;   /* check_array's, a list */
    double fastest; /* work per nanosecond: check_bench */
} check_case;

/* ---- check_signals.c: cases that end early */

/* From catch to restore, a signal for touching memory or for an illegal instruction fails the case
 * that is running, and no more. NULL (out of memory) is fine: then they do what they did. */
struct check_signals *check_signals_catch(void);
void check_signals_restore(struct check_signals *signals);

/* Runs check(c); why it ended early, or NULL. */
const char *check_guarded(check_case *c, void (*check)(check_case *));
/* Ends the case at once, as failed. */
void check_abandon(check_case *c, const char *why) __attribute__((noreturn));

/* ---- check_main.c: single cases, for its own tables and for tests */

/* Runs one case of `check`; counts and reports it. nv is 0 for whole calls. */
void check_one(check_run_state *run, const char *op, void (*check)(check_case *), int isa, int bits,
               int nv, uint64_t seed, double *fastest);

/* ---- check_case.c: contexts */

/* The numbers of threads that calls are checked on: 1, 2, 3, 8, 16, and 0 at the end; and the
 * context of so many on the case's instruction set. */
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

/* What an array is filled with. SPECIAL adds NaN, infinities, zeros, the largest and denormal
 * numbers to PLAIN, one in ten; WILD takes any bits. */
typedef enum check_content { CHECK_PLAIN, CHECK_OUTLIERS, CHECK_SPECIAL, CHECK_WILD } check_content;
check_content check_any_content(check_case *c);
double check_value(check_case *c, check_content content);

/* ---- check_case.c: arrays of R, in guarded memory, filled with NaN */

void *check_tile(check_case *c, int64_t rows);  /* [rows][W], aligned as tiles are */
void *check_free(check_case *c, int64_t count); /* any alignment */
/* A region where there is no memory, for operations that may ask the cache for one. */
attni_prefetch check_far_away(check_case *c);
void check_fill(check_case *c, void *x, int64_t n, check_content content);
/* What a kernel may be given in place of n elements of R: with `halves`, where the kernels take
 * them, perhaps a copy as bf16 or f16, to which x is then rounded; else x itself. */
const char *check_as_stored(check_case *c, void *x, int64_t n, bool halves, attn_dtype *type);
/* check_scores.c: keys, rows of `type` ld apart, as a cache has them turned; NaN are the lanes that
 * are no key's. */
const char *check_interleave_keys(check_case *c, const char *k, attn_dtype type, ptrdiff_t ld,
                                  int n, int64_t D);
double check_get(const check_case *c, const void *x, int64_t i);
void check_set(const check_case *c, void *x, int64_t i, double value);
double check_round(const check_case *c, double x);                     /* to R */
double check_fma(const check_case *c, double a, double b, double sum); /* as the kernels round */

/* A scratch array of doubles, zeros; and a copy of n elements of R. Freed after the case. */
double *check_array(check_case *c, int64_t n);
double *check_copy(check_case *c, const void *x, int64_t n);
void check_arrays_free(check_case *c);

/* ---- check_case.c: expectations; each is void once the case has failed */

void check_describe(check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_fail(check_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The n elements of R at got; `width` (the row's length) turns an index into row and column. */
void check_expect_same(check_case *c, const char *array, const void *got, const double *want,
                       int64_t n, int64_t width, check_zero zero);
void check_expect_within(check_case *c, const char *array, const void *got, const double *want,
                         const double *bound, int64_t n, int64_t width);
void check_expect_intact(check_case *c); /* nothing was written beside a buffer */

/* Times a call, when the run asks for it: CHECK_BENCH(c, multiplications, k->scores(...)). */
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
void check_exp2(check_case *c);     /* a sample of all binary32 numbers through weights() */
void check_exp2_all(check_case *c); /* all of them; only when it is asked for by name */
void check_dropout(check_case *c);  /* attn_dropout_mask */
void check_sdpa(check_case *c);
void check_backward(check_case *c); /* attn_sdpa_backward */
void check_threads(check_case *c);  /* every pass, on several numbers of threads */

#endif
