/* An engine computes tasks. There are two: for every type (sdpa/tile_task.c) and for bf16 on
 * instructions that multiply bf16 (bf16/bf16_task.c); and what both do to scores and results
 * (engine.c). */
#ifndef ATTNI_ENGINE_H
#define ATTNI_ENGINE_H

#include "plan.h"

/* An engine takes a whole call, since two engines round differently. */
struct attni_engine {
    const struct attni_bf16_unit *unit; /* that multiplies, of bf16_task.c alone */
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
    void (*part)(const attni_plan *plan, const attni_sequence *sequence, int64_t i0, int64_t rows,
                 int64_t chunk0, int64_t chunk1, char *partials, char *scratch);
    void (*fold)(const attni_plan *plan, const attni_sequence *sequence, int64_t i0, int64_t rows,
                 int64_t chunks, char *partials, char *scratch);
};

/* n rows of nv vectors of products become scores in natural units, with the soft cap
 * `cap`, however large; 0: without. */
void attni_scale_softcap(const attni_plan *plan, void *st, int n, double cap, int nv);

/* ln(l * 2^m), the same whatever m is; of a row counted in units that are `lowered`
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

#endif
