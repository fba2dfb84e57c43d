/* What is decided about a call before it runs: sdpa_check.c checks the arguments, sdpa/make_plan.c
 * decides the rest. */
#ifndef ATTNI_PLAN_H
#define ATTNI_PLAN_H

#include "mask.h"

#include <math.h>

typedef struct attni_engine attni_engine;

/* What does not change within one call. A score in log2 units is (q * power) . k * rest * log2(e),
 * with scale = power * rest, power a power of two and 1 <= rest < 2, but that |power| is 1 at most,
 * rest being larger then: multiplying q by it is exact, or a denormal number, and neither that nor
 * a product overflows before the scaled score does.
 */
struct attni_plan {
    attn_sdpa_args args; /* the caller's, in this version's size; broadcast sizes have stride 0 */
    attn_tensor mask;    /* args.mask points here */
    const attni_kernels *kernels;
    size_t real; /* bytes of R */
    attn_dtype real_dtype;
    int64_t B, H, Hk, T, S, D, Dv;
    double scale_pow2, scale_mantissa;
    double log2_scale;  /* turns a score into log2 units: rest * log2(e), or log2(e) if natural */
    unsigned kinds;     /* of masks */
    bool scaled_scores; /* scores are brought to natural units: soft cap or biases */
    bool k_in_place, v_in_place, q_in_place, out_in_place; /* else rows are converted */
    bool k_interleaved; /* keys are a cache's, whose layout only the *_turned operations read */
    uint32_t drop_threshold;
    const attni_engine *engine;
    bool no_postprocessing; /* scores become weights as they are, for nobody else to see */
    bool far;               /* more data than stays in the second cache: worth asking for ahead */
    int nv;                 /* vectors of queries in a full tile */
    int tiles;              /* in a task */
    int group;         /* query heads that share a tile's lanes, if few queries would fill it */
    int64_t sequences; /* args.sequences + 1 (the rows after the last), or 1 */
    int64_t task_rows; /* queries of a head in a full task */
    int64_t tasks_per_head;
    int64_t tasks;
    bool longest_first;   /* tasks are numbered by queries first, then by heads */
    int64_t parts;        /* of a task, each a run of chunks of keys; 1: not cut */
    int64_t chunks;       /* of S */
    size_t partial_bytes; /* of one chunk of one task, where parts > 1 */
    int workers;
    size_t worker_bytes; /* scratch of one worker */
    size_t scratch_bytes;
};

/* ------------------------------------------------------------------------------- task_list.c
 *
 * One task: queries i0 .. i0+rows-1 of a sequence. */
typedef struct attni_task {
    attni_sequence sequence;
    int64_t i0, rows;
} attni_task;
/* The first row of k or v that it reads; NULL: none, and there may be no memory to look for. */
char *attni_first_row(const attni_task *task, const attn_tensor *t);

/* sdpa_check.c: every argument, before anything is touched. Fills all of plan that args decide. Of
 * a derivative, scores and their stage are not looked at. */
attn_status attni_sdpa_check(attni_plan *plan, const attn_sdpa_args *args, bool derivative,
                             attn_error *err);

/* Is there an element of out, lse or scores to write? */
bool attni_sdpa_writes(const attn_sdpa_args *args);
/* Results have memory, which bounds their number. Where q, k and v have no elements (D = Dv = 0)
 * nothing bounds the number of keys, nor the time of a call that `writes` something: an error for
 * more than anybody has. */
attn_status attni_check_keys(const attni_plan *plan, bool writes, attn_error *err);

/* Sequence n of the call: of packed ones, or the only one. The last packed one holds the rows that
 * are left over; it has no keys. */
attni_sequence attni_sequence_of(const attni_plan *p, int64_t b, int64_t h, int64_t n);
/* Can rows of t be read and written as R where they lie? */
static inline bool attni_in_place(const attni_plan *p, const attn_tensor *t)
{
    return t->dtype == p->real_dtype && (t->stride[3] == 1 || t->shape[3] <= 1);
}

/* Of t's memory, each element once. */
double attni_tensor_bytes(const attn_tensor *t);
/* Pairs that the rules other than a dense mask leave visible, over all batches of one head. */
double attni_visible_pairs(const attni_plan *p);

/* Task number -> head and run of queries. Later queries first: with a causal mask they see more,
 * and the longest work should not start last; with more than two workers, not the last head's
 * either. */
void attni_find_task(const attni_plan *p, int64_t number, attni_task *task);
/* How many tasks T queries of one head and sequence are. */
int64_t attni_tasks_of(const attni_plan *p, int64_t T);

#endif
