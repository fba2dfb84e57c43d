/* Between sdpa.c (check, plan, tasks), sdpa_tile.c (one task: tiles of queries) and mask.c. */
#ifndef ATTNI_SDPA_H
#define ATTNI_SDPA_H

#include "cache.h"
#include "internal.h"
#include "kernel/kernel.h"

#include <math.h>

#define ATTNI_TILES 4 /* query tiles, at most, that share each chunk of keys while it is in cache */

/* One sequence's queries and keys, of one batch and head. i and j count from its start; its first
 * query is row i_base of the tensors, its first key row j_base. */
typedef struct attni_view {
    const attn_sdpa_args *args;
    unsigned kinds; /* of masks: attni_mask_kinds */
    const attni_kernels *kernels;
    int64_t b, h, hk;
    int64_t T, S; /* of this sequence */
    int64_t i_base, j_base;
    int64_t off; /* causal offset */
} attni_view;

/* How many of the view's keys exist: a cache has no pages for a sequence's later ones. */
static inline int64_t attni_keys_there(const attni_view *view)
{
    const int64_t *lengths = view->args->key_lengths;
    return lengths ? lengths[view->b] : view->S;
}

/* sdpa.c. Row j of the view's keys or values - `t` is args->k or args->v - as they are stored, in a
 * tensor or in a cache. Up to a block of rows, from a multiple of ATTNI_BLOCK on, lie t->stride[2]
 * apart; but a cache's keys, if the plan says k_turned, are no rows (cache.h), and take as many
 * bytes. */
char *attni_stored_row(const attni_view *view, const attn_tensor *t, int64_t j);
/* How many rows from j on, up to the sequence's end, are surely no further apart. */
int64_t attni_rows_together(const attni_view *view, int64_t j);
/* Asks for the first lines of what is read next, so that they come while scores become weights; 32
 * of them are no better. */
static inline void attni_ask(const void *next)
{
    const uintptr_t at = (uintptr_t)next; /* an address, not a pointer: it may be anywhere */
    for (uintptr_t line = 0; line < 16; line++)
        __builtin_prefetch((const void *)(at + 64 * line));
}
/* Which of the two `t` is, for a cache. */
static inline attni_cache_part attni_part_of(const attni_view *view, const attn_tensor *t)
{
    return t == &view->args->v ? ATTNI_VALUES : ATTNI_KEYS;
}

/* ---------------------------------------------------------------------------- mask.c
 *
 * Which keys a run of queries sees. A rule gives, for queries i0 <= i < i1, the keys that any of
 * them sees and the keys that all of them see, each one interval: tiles outside `any` are skipped,
 * tiles inside `all` are left alone, the others get attni_mask_apply().
 */
typedef struct attni_span {
    int64_t any0, any1, all0, all1;
} attni_span;

typedef enum attni_class { ATTNI_EMPTY, ATTNI_PARTIAL, ATTNI_FULL } attni_class;

/* A block of scores: st[j][i] of keys j0 .. j0+n-1 and queries i0 .. i0+rows-1, W apart; of `heads`
 * heads, a head's lanes after those of the head before. */
typedef struct attni_block {
    void *st;
    void *mx; /* [W] becomes the maxima of st */
    const attni_kernels *kernels;
    int64_t i0, j0;
    int rows, heads, n, nv;
    void *biases; /* [W][ATTNI_BLOCK], R: room for a dense mask's part of this block */
} attni_block;

typedef struct attni_plan attni_plan;
typedef struct attni_way attni_way;
/* The rules that a call uses, a bit each. All that follows looks at no others. */
unsigned attni_mask_kinds(const attn_sdpa_args *args);
attn_status attni_mask_check(const attni_plan *plan, attn_error *err);
/* Does any rule add to the scores, so that they must be in natural units? */
bool attni_mask_biases(unsigned kinds);
attni_span attni_mask_span(const attni_view *view, int64_t i0, int64_t i1);
/* FULL: nothing to apply. `span` is that of the queries i0 <= i < i1. */
attni_class attni_mask_classify(const attni_view *view, const attni_span *span, int64_t i0,
                                int64_t i1, int64_t j0, int64_t j1);
/* May heads that share keys be lanes of one tile: is every rule the same for all of them? */
bool attni_mask_shared(const attni_plan *plan);
/* The part of a dense mask, if there is one, of queries i0 .. i0+rows-1 and of n keys, but no more
 * than a chunk, from j0 on. */
attni_ahead attni_mask_ahead(const attni_view *view, int64_t i0, int rows, int64_t j0, int64_t n);
/* Asks for one part of it in ATTNI_AHEAD_PARTS. */
#define ATTNI_AHEAD_PARTS (3 * ATTNI_CHUNK / ATTNI_BLOCK)
void attni_mask_fetch(attni_ahead *ahead);
/* Adds biases, then writes -inf wherever a key is not visible; then come the maxima. */
void attni_mask_apply(const attni_view *view, const attni_block *block);

/* ---------------------------------------------------------------------------- sdpa.c
 *
 * What does not change within one call. A score in log2 units is (q * power) . k * rest * log2(e),
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
    double power, rest;
    double c;       /* turns a score into log2 units: rest * log2(e), or log2(e) if natural */
    unsigned kinds; /* of masks */
    bool natural;   /* scores are brought to natural units: soft cap or biases */
    bool k_in_place, v_in_place, q_in_place, out_in_place; /* else rows are converted */
    bool k_turned; /* keys are a cache's, whose layout only the *_turned operations read */
    uint32_t drop_threshold;
    const attni_way *way;
    bool plain;        /* scores become weights as they are, for nobody else to see */
    bool far;          /* more data than stays in the second cache: worth asking for ahead */
    int nv;            /* vectors of queries in a full tile */
    int tiles;         /* in a task */
    int group;         /* query heads that share a tile's lanes, if few queries would fill it */
    int64_t sequences; /* args.sequences + 1 (the rows after the last), or 1 */
    int64_t task_rows; /* queries of a head in a full task */
    int64_t tasks_per_head;
    int64_t tasks;
    bool heads_in_turn;   /* tasks are numbered by queries first, then by heads */
    int64_t parts;        /* of a task, each a run of chunks of keys; 1: not cut */
    int64_t chunks;       /* of S */
    size_t partial_bytes; /* of one chunk of one task, where parts > 1 */
    int workers;
    size_t worker_bytes; /* scratch of one worker */
    size_t scratch_bytes;
};

/* --------------------------------------------------------- sdpa_tile.c, sdpa_bf16.c: one task
 *
 * A way of computing a task, queries i0 .. i0+rows-1 of a view. The first is every type's; another
 * is taken where it applies, as a whole: two ways round differently.
 */
typedef struct attni_task {
    attni_view view;
    int64_t i0, rows;
} attni_task;
/* The first row of k or v that it reads; NULL: none, and there may be no memory to look for. */
char *attni_first_row(const attni_task *task, const attn_tensor *t);

struct attni_way {
    const struct attni_bf16_unit *unit; /* that multiplies, of sdpa_bf16.c alone */
    const char *operands;               /* what is multiplied: "bf16"; NULL: the kernel table's R */
    int vectors;                        /* of a tile at most; 0: as many as the kernels have */
    int tiles; /* in a task at most; they share each chunk of keys while it is in cache */
    size_t (*scratch)(const attni_plan *plan); /* of a worker; SIZE_MAX: does not fit a size_t */
    /* next: what this thread will most likely do then, or NULL: to ask the cache for its data. */
    void (*task)(const attni_plan *plan, const attni_task *task, const attni_task *next,
                 char *scratch);
    /* The same in two steps, for a task of one tile: chunks chunk0 .. chunk1-1 of keys into
     * partials [chunks of S][partial_bytes], on any thread; and when all are there, the result from
     * them. */
    size_t (*partial_bytes)(const attni_plan *plan);
    void (*part)(const attni_plan *plan, const attni_view *view, int64_t i0, int64_t rows,
                 int64_t chunk0, int64_t chunk1, char *partials, char *scratch);
    void (*fold)(const attni_plan *plan, const attni_view *view, int64_t i0, int64_t rows,
                 int64_t chunks, char *partials, char *scratch);
};
extern const attni_way attni_way_tile;
/* bf16, where plan->kernels' instruction set has a unit for it. NULL: not for this call. */
const attni_way *attni_way_bf16(const attni_plan *plan);

/* sdpa_tile.c: n rows of nv vectors of products become scores in natural units, with the soft cap
 * `cap`, however large; 0: without. */
void attni_natural(const attni_plan *plan, void *st, int n, double cap, int nv);

/* sdpa_result.c: ln(l * 2^m), the same whatever m is; of a row counted in units that are `lowered`
 * times larger. */
double attni_log_sum(double l, double m, double lowered);
/* Writes a row of n elements of R, results without -0, to where t has it: none there either. */
void attni_store_row(const attni_plan *p, char *to, const attn_tensor *t, const char *from,
                     int64_t n);
/* Is x, finite, a score in log2 units that a row of R, so many bytes, has no room for? */
static inline bool attni_log2_too_large(size_t real, double x)
{
    return isfinite(x) && !(fabs(x) < (real == sizeof(float) ? 1.6e38 : 8e307));
}

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
attni_view attni_view_of(const attni_plan *p, int64_t b, int64_t h, int64_t n);
/* Can rows of t be read and written as R where they lie? */
bool attni_in_place(const attni_plan *p, const attn_tensor *t);

/* Of t's memory, each element once. */
double attni_tensor_bytes(const attn_tensor *t);
/* Pairs that the rules other than a dense mask leave visible, over all batches of one head. */
double attni_visible_pairs(const attni_plan *p);

/* Task number -> head and run of queries. Later queries first: with a causal mask they see more,
 * and the longest work should not start last; with more than two workers, not the last head's
 * either. */
void attni_find_task(const attni_plan *p, int64_t number, attni_task *task);

/* attn_sdpa_forward in two pieces, for modules that attend inside a call of their own. prepare
 * checks and plans, and touches no data: until run, the tensors of plan->args may be given other
 * `data`. */
attn_status attni_sdpa_prepare(attni_plan *plan, attn_context *ctx, const attn_sdpa_args *args,
                               attn_error *err);
void attni_sdpa_run(const attni_plan *plan, attni_call *call, char *scratch);

#endif
