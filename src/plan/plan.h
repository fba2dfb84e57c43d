/* The plan: everything that is decided about a call before it runs.
 *
 *   attni_sdpa_check  (sdpa_check.c)       checks the arguments, fills what follows from them
 *   attni_make_plan   (sdpa/make_plan.c)   chooses engine, tile width, tasks and scratch
 *   attni_find_task   (task_list.c)        task number -> queries, while the call runs
 *
 * The gradients (grad/) and attn_sdpa_plan (sdpa/plan_info.c) use the same plan.
 */
#ifndef ATTNI_PLAN_H
#define ATTNI_PLAN_H

#include "mask.h"

#include <math.h>

#define ATTNI_LOG2E 1.4426950408889634074 /* log2(e) */

typedef struct attni_engine attni_engine;

/* The route: which functions compute the forward, and in which order. A tile, or a block of a
 * chunk, can have another route than the call. sdpa/route.c chooses it; docs/DESIGN.md says what
 * each route is for. The results have the same bits on every route of an engine. */
typedef enum attni_route {
    ATTNI_ROUTE_NONE,      /* no element is written */
    ATTNI_ROUTE_ONE_BLOCK, /* all keys are one block, and all are visible (tile_task.c) */
    ATTNI_ROUTE_TILES,     /* queries in the lanes, one block of keys after the other */
    /* The decode path of the tile engine, for few rows: keys in the lanes. */
    ATTNI_ROUTE_DECODE_TILES,      /* scores are transposed into a tile, for soft cap, biases,
                                      masks and dropout */
    ATTNI_ROUTE_DECODE,            /* one row of scores per query; one block after the other */
    ATTNI_ROUTE_DECODE_KEYS_FIRST, /* all keys of a chunk are read before all of its values */
    ATTNI_ROUTE_DECODE_DEFERRED,   /* a chunk's values are read with the next chunk's keys */
    /* The bf16 engine. */
    ATTNI_ROUTE_BF16_TILES,  /* queries in the lanes, or in the columns of hardware tiles (AMX) */
    ATTNI_ROUTE_BF16_DECODE, /* few rows */
} attni_route;

/* A call can get its keys in pieces, one after the other (sdpa/pieces.c). Such a call may compute
 * some rows of a larger call (attn_pieces_options), which is named the whole. A run is a range of
 * these rows that also follow each other in the whole. It has `rows` rows: row `row` of the tensors
 * is query `position` of the whole, and so on. They belong to packed sequence `n`. A run is planned
 * and computed as a packed sequence is. */
typedef struct attni_run {
    int64_t row, rows, position, n;
} attni_run;

/* The plan of one call. A score in log2 units is
 *
 *   (q * scale_pow2) . k * scale_mantissa * log2(e),   scale = scale_pow2 * scale_mantissa
 *
 * where |scale_pow2| is a power of two and 1 <= scale_mantissa < 2, with three exceptions:
 *
 *   |scale| is 2 or more                     |scale_pow2| is 1, and scale_mantissa is |scale|, or
 *                                            0.693 times the largest number of R if that is less
 *   |scale| is below the least denormal      |scale_pow2| is that denormal number, and
 *   number of R                              scale_mantissa is less than 1
 *   the same, R is float, and                scale_pow2 is 0, and scale_mantissa is 1
 *   scale_mantissa would be below 2^-125
 *
 * The product of q and scale_pow2 is exact, unless it is a denormal number. If q is finite, the
 * product is, since |scale_pow2| is at most 1. If scale_mantissa is at least 1, the dot product
 * with k is no larger than the scaled score, so it does not overflow before the score does. A soft
 * cap and biases are applied before the factor log2(e).
 */
struct attni_plan {
    attn_sdpa_args args; /* a copy of the caller's; members that an older header lacks are 0. A mask
                            dimension that is broadcast has stride 0 */
    attn_tensor mask;    /* args.mask points here */
    const attni_kernels *kernels;
    size_t real; /* bytes of R, the type of all computation */
    attn_dtype real_dtype;
    int64_t B, H, Hk, T, S, D, Dv;
    double scale_pow2, scale_mantissa;
    /* scale_mantissa for scores with a soft cap, limited so that its quotient with the cap does not
     * overflow R. */
    double capped_mantissa;
    /* Turns a score into log2 units: scale_mantissa * log2(e), or log2(e) if `scaled_scores`. */
    double log2_scale;
    unsigned kinds;     /* of masks: attni_mask_kinds */
    bool scaled_scores; /* scale_mantissa is applied in a step of its own, before a soft cap or
                           biases, and not together with log2(e) */
    bool k_in_place, v_in_place, q_in_place, out_in_place; /* stored as rows of R */
    bool copies_rows; /* queries or results are copied: they are converted, or heads share a tile */
    /* The keys are a cache's, in the interleaved layout. The decode path reads it with
     * scores_interleaved() and values_and_next_scores(); otherwise keys are converted to rows. */
    bool k_interleaved;
    uint32_t drop_threshold;
    const struct attni_bf16_unit *unit; /* multiplies bf16 (bf16/unit.h); NULL: the tile engine */
    const attni_engine *engine;
    /* Keys and values are read in place, and weights are computed directly from the products: there
     * is no soft cap, bias, mask tensor or dropout, and no scores are written out. */
    bool no_postprocessing;
    attni_route route; /* of a full tile whose queries see every key */
    /* The decode path reads keys and values as they are stored, though they are not rows of R: f16
     * and bf16, which then need no widening, and interleaved keys. */
    bool decode_as_stored;
    size_t sums_width; /* Dv, rounded up to whole vectors */
    bool far;          /* more than ATTNI_FAR_BYTES of data, so that rows are prefetched */
    bool far_blocks;   /* so much that tasks of one block of keys, and tasks of bf16 tiles, prefetch
                          the rows of the next task */
    bool from_memory;  /* so much that a repeated call finds its rows in memory, not in L3 */
    bool prefetch_l2;  /* decode operations prefetch into L2 first; applies to f32, and to bf16 in
                          the bf16 engine */
    bool one_stream;   /* from_memory and prefetch_l2, with AVX-512 on a Zen 4: it reads one stream
                          of addresses faster than two (docs/decisions/0047, 0055) */
    /* How many rows a prefetch into L2 is ahead of the reads (docs/decisions/0051): at least 32, at
     * most a chunk, and between these the least power of two that covers 4096 elements. 0: lines
     * are prefetched into L1. */
    int k_l2_ahead, v_l2_ahead;
    int v_l2_only;     /* not 0: f32 values of one query are prefetched into L2 alone, so many
                          rows ahead (docs/decisions/0055) */
    int nv;            /* vectors of queries in a full tile */
    int tiles;         /* per task */
    int64_t kept_keys; /* bf16 engine: the scores of so many keys are kept for each query of a task,
                          for the requested weights; 0: they are computed once more */
    int group;         /* query heads that share the lanes of a tile, if one head's queries would
                          not fill it; the last group of a key/value head may have fewer */
    /* Queries and heads of the whole, and the first of these heads that is in this call. If the
     * call is not part of a larger one: T, H and 0. */
    int64_t whole_T, whole_H, head_offset;
    const attni_run *runs; /* all runs of the call; NULL: row i is query i of the whole */
    int64_t run_count;
    int most_tiles;    /* most tiles per task; 0: no limit. attn_sdpa_load() sets it to the number
                          of tiles in a task of the saved state, whose tasks must not depend on the
                          number of threads */
    bool in_pieces;    /* keys arrive in pieces (sdpa/pieces.c): tasks are not cut along the keys */
    int64_t sequences; /* with runs: run_count. With packed sequences: args.sequences + 1, since the
                          rows after the last one count as one more. Else 1 */
    int64_t task_rows; /* queries of one head in a full task */
    int64_t tasks_per_head;
    int64_t tasks;
    bool longest_first;   /* all heads' tasks of the last queries come first, then all heads' tasks
                             of the queries before them, and so on; else head after head */
    int64_t parts;        /* per task, each a range of chunks of keys; 1: tasks are not cut */
    int64_t chunks;       /* in S */
    size_t partial_bytes; /* of one chunk's partial result in a task, if parts > 1 (engine.h) */
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
    int64_t head;    /* number of the group of heads, counted over all batch elements */
    int64_t earlier; /* number of tasks of this group with earlier queries */
} attni_task;
/* Where attni_find_task() begins to search: sequence n, and the number of tasks of a head that
 * belong to the sequences before it. Each worker has its own. */
typedef struct attni_cursor {
    int64_t n, tasks_before;
} attni_cursor;
attni_cursor attni_last_sequence(const attni_plan *p);
/* The first row of t (k or v) that the task reads, or NULL if it reads none. *rows becomes the
 * number of rows from there to its last one, unless `rows` is NULL. */
char *attni_first_row(const attni_task *task, const attn_tensor *t, int64_t *rows);

/* sdpa_check.c. Checks every argument before an element of a tensor is read or written, and fills
 * all members of the plan that follow from args and `part`. For a derivative, `scores` and
 * `scores_stage` are ignored. `part` says which rows and heads of a larger call these are; NULL:
 * the call is not part of a larger one. */
attn_status attni_sdpa_check(attni_plan *plan, const attn_sdpa_args *args, bool derivative,
                             const attn_pieces_options *part, attn_error *err);

/* Does the call write any element of out, lse or scores? */
bool attni_sdpa_writes(const attn_sdpa_args *args);
/* Limits the number of keys of a call in which q, k and v have no elements (D and Dv are 0).
 * `writes`: does it write anything? Elsewhere the memory of the tensors bounds their sizes. Here
 * nothing bounds the number of keys, nor the time of the call, so more keys than anybody has are an
 * error. */
attn_status attni_check_keys(const attni_plan *plan, bool writes, attn_error *err);

/* The number of groups of query heads in a batch element, the first head of a group, and the number
 * of heads in the group that begins with head h. */
int64_t attni_groups_of_heads(const attni_plan *p);
int64_t attni_first_head(const attni_plan *p, int64_t group);
int attni_heads_of_group(const attni_plan *p, int64_t h);
/* Sequence n of the call: one of the packed sequences, or the only one. The last packed one (n =
 * args.sequences) holds the rows that are left over; it has no keys. If the plan has runs, n is the
 * number of a run. */
void attni_find_sequence(const attni_plan *p, int64_t b, int64_t h, int64_t n,
                         attni_sequence *sequence);
/* Narrows a sequence to the rows of a run, which are some of its own. */
void attni_narrow_to_run(const attni_run *run, attni_sequence *sequence);
/* The numbers of queries and keys of packed sequence n of the whole, or of its only sequence. */
static inline int64_t attni_queries_of(const attni_plan *p, int64_t n)
{
    const int64_t *starts = p->args.cu_seqlens_q;
    return !starts ? p->whole_T : (n < p->args.sequences ? starts[n + 1] : p->whole_T) - starts[n];
}
static inline int64_t attni_keys_of(const attni_plan *p, int64_t n)
{
    const int64_t *starts = p->args.cu_seqlens_k;
    return !starts ? p->S : n < p->args.sequences ? starts[n + 1] - starts[n] : 0;
}
/* Vectors of the narrowest tile that holds `rows` rows; `most` if none does. */
static inline int attni_vectors_for(const attni_plan *p, int64_t rows, int most)
{
    const int lanes = p->kernels->lanes;
    int nv = 1;
    while (nv < most && nv * lanes < rows)
        nv = attni_wider_tile(p->kernels, nv);
    return nv;
}
/* Can the rows of t be read and written in place, as rows of R? */
static inline bool attni_in_place(const attni_plan *p, const attn_tensor *t)
{
    return t->dtype == p->real_dtype && (t->stride[3] == 1 || t->shape[3] <= 1);
}

/* Bytes of t's memory; an element that is repeated by a stride of 0 is counted once. */
double attni_tensor_bytes(const attn_tensor *t);
/* Number of (query, key) pairs that no mask hides, for one head, over all batch elements. Dense
 * masks are ignored: the pairs that they hide are counted, too. */
double attni_visible_pairs(const attni_plan *p);

/* Task number -> head and range of queries. Later queries come first: with a causal mask they see
 * more keys, and the longest task should not start last. With more than two workers the long tasks
 * of the last head must not start last either (longest_first).
 *
 * The cursor keeps the place of the worker's latest task, and the search begins there. A worker's
 * task numbers rise and, within a head, later tasks belong to earlier sequences. So the next task's
 * sequence is usually a few before the cursor, and the time of all searches grows with the number
 * of packed sequences, not with its square (docs/decisions/0028). Task numbers in any other order
 * give the same tasks, but slowly. */
void attni_find_task(const attni_plan *p, int64_t number, attni_cursor *cursor, attni_task *task);
/* How many tasks the queries of one head make. */
int64_t attni_tasks_of_head(const attni_plan *p);

#endif
