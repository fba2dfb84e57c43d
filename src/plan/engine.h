/* The interface of an engine, and what the engines share (engine.c).
 *
 * An engine computes tasks (plan.h). sdpa/make_plan.c chooses one for each call; sdpa/sdpa.c calls
 * it for every task. There are two:
 *
 *   sdpa/tile_task.c     every type, in R (float or double)
 *   bf16/bf16_engine.c   bf16, on instructions that multiply bf16
 */
#ifndef ATTNI_ENGINE_H
#define ATTNI_ENGINE_H

#include "plan.h"

/* If keys arrive in pieces: which sweep over the keys a tile is in. Saved files contain these
 * numbers, so they must not change. */
typedef enum attni_fed_sweep {
    ATTNI_FED_NEW = 0, /* nothing has been fed to it; its sums are not set */
    ATTNI_FED_FAST = 1,
    ATTNI_FED_SKIP_MASKED = 2,
    ATTNI_FED_RESCALED = 3,
    ATTNI_FED_DONE = 4 /* its results are written */
} attni_fed_sweep;

/* What stays of a task between two pieces of its keys. */
typedef struct attni_fed {
    char *sums; /* fed_bytes() of the engine: the tiles' own arrays, one tile after the other */
    uint8_t *sweeps; /* of each tile: attni_fed_sweep */
} attni_fed;

/* One engine computes the whole call, because two engines round differently. */
struct attni_engine {
    const char *operands; /* type of the multiplied elements: "bf16"; NULL: the kernel table's R */
    int vectors;          /* most vectors in a tile; 0: as many as the kernels have */
    /* Most tiles in a task. The tiles of a task share each chunk of keys while it is in cache. */
    int tiles;
    /* Bytes of scratch per worker; SIZE_MAX: they do not fit a size_t. */
    size_t (*scratch)(const attni_plan *plan);
    /* Computes one task. `next` is the task that this thread will most likely compute afterwards,
     * so that its data can be prefetched; NULL: no prefetch. */
    void (*task)(const attni_plan *plan, const attni_task *task, const attni_task *next,
                 char *scratch);
    /* The same in two steps, for a task of one tile. part() computes chunks chunk0 .. chunk1-1 of
     * the keys into partials [chunks of S][partial_bytes], on any thread. fold() computes the
     * result from the partials when all of them are complete. */
    size_t (*partial_bytes)(const attni_plan *plan);
    void (*part)(const attni_plan *plan, const attni_sequence *sequence, int64_t i0, int64_t rows,
                 int64_t chunk0, int64_t chunk1, char *partials, char *scratch);
    void (*fold)(const attni_plan *plan, const attni_sequence *sequence, int64_t i0, int64_t rows,
                 int64_t chunks, char *partials, char *scratch);
    /* The same for keys that arrive in pieces (sdpa/pieces.c). feed() sweeps keys j0 .. j1-1 of the
     * task's sequence: whole chunks, or up to its end. finish() writes the results when all keys
     * that the task sees have been fed; it returns true if some tiles have to be fed them again. */
    /* Returns the bytes of the sums of a task with `heads` heads and `rows` rows; SIZE_MAX if they
     * are too many. */
    size_t (*fed_bytes)(const attni_plan *plan, int heads, int64_t rows);
    void (*feed)(const attni_plan *plan, const attni_task *task, int64_t j0, int64_t j1,
                 const attni_fed *fed, char *scratch);
    bool (*finish)(const attni_plan *plan, const attni_task *task, const attni_fed *fed,
                   char *scratch);
};

/* Turns n rows of nv vectors of products into scaled scores and applies the soft cap `cap`, however
 * large it is; 0: no soft cap. */
void attni_scale_softcap(const attni_plan *plan, void *st, int n, double cap, int nv);

/* ln(l * 2^m) * lowered. The result depends only on the product l * 2^m, not on m. This row's
 * scores were multiplied by a factor; `lowered` is log2_scale divided by this factor. It is 1 up to
 * rounding, and 256 in the rescaled sweep (sdpa/tile_task.c). */
double attni_log_sum(double l, double m, double lowered);
/* Writes n elements of R to the row `to` of tensor t, in t's type and stride. The input contains no
 * -0, and the output contains none either. */
void attni_store_row(const attni_plan *p, char *to, const attn_tensor *t, const char *from,
                     int64_t n);
/* Is x a finite score, in log2 units, that is too large for R, or nearly? `real` is the number of
 * bytes of R. */
static inline bool attni_log2_too_large(size_t real, double x)
{
    return isfinite(x) && !(fabs(x) < (real == sizeof(float) ? 1.6e38 : 8e307));
}

#endif
