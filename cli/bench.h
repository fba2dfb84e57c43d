/* What `attn bench` and `attn bench --mpi` share: cases, their arrays, their calls. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "../kit/io/json_write.h"
#include "command.h"

enum { SHAPE_B, SHAPE_H, SHAPE_HK, SHAPE_T, SHAPE_S, SHAPE_D, SHAPE_DV, SHAPE_SIZE };

typedef struct bench_case {
    int64_t shape[SHAPE_SIZE];
    const char *causal;
} bench_case;

/* The timed pass, in the order of --pass's words. */
typedef enum bench_pass { BENCH_FORWARD, BENCH_BACKWARD, BENCH_BOTH } bench_pass;
extern const char *const bench_pass_names[];

typedef struct bench {
    attn_context *ctx;
    attn_dtype dtype;
    bench_pass pass;
    double seconds;
    bool json;
    bool float_grads; /* dk and dv of f16 and bf16 calls are f32, as libattn-mpi needs them */
} bench;

/* A case's arrays; the last five are used only for gradients. */
typedef struct bench_call {
    kit_array q, k, v, out, lse, dout, dq, dk, dv;
    attn_tensor lse_view;
    attn_sdpa_args args;
    attn_sdpa_grads grads;
} bench_call;

/* Gets --shape number i, or case i of the list if no --shape is given. */
int bench_find_case(bench_case *c, const options *o, const bench_case *list, size_t i,
                    kit_error *err);
const char *bench_title(const bench *b); /* the pass */
void bench_shape_text(char text[160], const bench_case *c);

/* Allocates the arrays of a shape, with random numbers as inputs. *c has args and grads that are
 * initialised, and the rules of the call; bench_free_call frees the arrays after an error, too. */
int bench_make_call(bench_call *c, const bench *b, const int64_t *shape, uint64_t seed,
                    kit_error *err);
void bench_free_call(bench_call *c);
/* Plans the call. For both passes together, gives the backward's kernel and the work of both. For
 * the backward alone, also computes the forward, whose results the backward reads. */
int bench_plan_call(attn_plan_info *plan, const bench *b, const bench_call *c, kit_error *err);
/* What multiply-adds in registers reach on all threads of the context: operations per second. */
double bench_peak(const bench *b, double seconds);
int bench_run(const bench *b, const bench_call *c, kit_error *err);

/* attn bench --mpi (mpi/bench_ranks.c, or without_mpi.c) */
int bench_over_ranks(const bench *b, const options *o, kit_error *err);

#endif
