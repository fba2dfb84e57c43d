/* Decides how a checked call is computed. attni_make_plan() is called by attni_sdpa_prepare()
 * (sdpa.c), by pieces.c for a call whose keys come in pieces, and by feed.c for each piece of the
 * keys. Before it, attni_sdpa_check() has set the members of the plan that follow from the
 * arguments: B, H, Hk, T, S, D, Dv, the scale, the kinds of masks. attni_make_plan() sets:
 *
 *   kernels, q_in_place, ...          kernel table; which tensors need no conversion
 *   engine                            bf16 if that engine accepts the call, else the tile engine
 *   group, nv                         heads that share a tile; vectors in a full tile of this call
 *   tiles, tasks, parts, workers      how the work is divided          (count_tasks)
 *   route                             which functions, in which order  (route.c)
 *   scratch_bytes, worker_bytes, ...  memory that the engine needs     (size_scratch)
 *
 * The results have the same bits for any width of tiles, any number of tasks and workers, and any
 * order of them.
 */
#include "../bf16/bf16_engine.h"
#include "../bf16/unit.h"
#include "sdpa.h"
#include "tile.h"

#include <math.h>
#include <stdatomic.h>

/* Tiles of one task share a chunk of keys while it is in cache. More tiles are better until there
 * are too few tasks for the threads, until the tiles themselves do not fit in cache, or until half
 * of them would have no queries. If heads share tiles (heads_per_tile), a task has one tile. */
static int tiles_per_task(const attni_plan *p, int threads)
{
    if (p->group > 1 || p->T <= p->nv * p->kernels->lanes)
        return 1;
    const double W = p->nv * p->kernels->lanes;
    /* the queries, in the type in which they are multiplied; the sums; and the kept scores */
    const double tile_bytes = W * ((double)p->D * (p->unit ? 2 : (double)p->real) +
                                   ((double)p->Dv + (double)p->kept_keys) * (double)p->real);
    const double most = p->unit ? (double)p->unit->tile_bytes : 512 * 1024;
    const double heads = (double)p->B * (double)p->H;
    int tiles = p->engine->tiles;
    while (tiles > 1 && ((double)p->T <= W * (tiles / 2) || tiles * tile_bytes > most ||
                         (threads > 1 && heads * ceil((double)p->T / (W * tiles)) < 4.0 * threads)))
        tiles /= 2;
    return tiles;
}

/* Vectors in the engine's widest tile. */
static int most_vectors(const attni_plan *p)
{
    return p->engine->vectors ? p->engine->vectors : p->kernels->vectors;
}

/* The approximate cost of a tile with `lanes` of its lanes in use, for any instruction set. A tile
 * that is decoded costs 5; other tiles cost 9 with one vector and 13 with two. These are near the
 * times with AVX2: a tile of two vectors takes 1.5 times as long as a tile of one, and 2.5 times as
 * long as decoding 2 to 4 rows. */
static int tile_cost(const attni_plan *p, int lanes)
{
    if (lanes <= p->kernels->max_decode_rows)
        return lanes > 0 ? 5 : 0;
    return 5 + 4 * attni_vectors_for(p, lanes, most_vectors(p));
}

/* The number of vectors of a full tile. The narrowest tile is chosen that holds all rows of the
 * heads that share it; if no tile holds them all, the widest is chosen. But if the next narrower
 * tile would hold all rows but one, that tile is used, and the last row is decoded after it
 * (docs/decisions/0044). The tile engine does so for heads that do not share a tile, unless
 *   - the smaller tile has so few rows that it would be decoded, too: a task has scratch to decode
 *     one tile only;
 *   - the keys are one block, which has a shorter path for a single tile;
 *   - sequences are packed: p->T is the number of rows of all of them, not of one;
 *   - there are few heads for the threads: then tiles_per_task() gives each task one tile, and the
 *     last row would be a task of its own, which reads all keys once more;
 *   - the keys come in pieces: a state can be saved between two pieces and continued with another
 *     number of threads, so its tiles must not depend on that number. */
static int vectors_of_tile(const attni_plan *p, int threads)
{
    const int nv = attni_vectors_for(p, p->T * p->group, most_vectors(p));
    const int narrow = nv == 4 && !p->kernels->three_vectors ? 2 : nv - 1;
    const int lanes = narrow * p->kernels->lanes;
    if (p->group > 1 || p->T != lanes + 1 || lanes <= p->kernels->max_decode_rows || p->unit ||
        p->S <= ATTNI_BLOCK || p->in_pieces || p->args.cu_seqlens_q ||
        (threads > 1 && p->B * p->H < 4 * threads))
        return nv;
    return narrow;
}

/* The cost of all queries of `heads` heads, in tiles that take `rows` queries of each head. */
static int group_cost(const attni_plan *p, int heads, int rows)
{
    const int T = (int)p->T;
    return T / rows * tile_cost(p, heads * rows) + tile_cost(p, heads * (T % rows));
}

/* How many heads share a tile. Heads that share keys can share a tile if their masks are equal
 * (attni_mask_shared) and if the widest tile has a lane for every query of one head. A tile has
 * the same queries of each of its heads, for example queries 0 to 2 of five heads in 16 lanes; the
 * other queries of these heads get a further tile. All possible numbers of heads are tried; the one
 * whose tiles cost least is taken (docs/decisions/0034).
 * Four options need tiles of one head, because their code assumes that lane r is query i0 + r:
 * dropout, returned scores, packed sequences, and a call that computes some rows of a larger one
 * (attni_run in plan.h). */
static int heads_per_tile(const attni_plan *p)
{
    const attn_sdpa_args *a = &p->args;
    const int W = most_vectors(p) * p->kernels->lanes;
    if (p->H == p->Hk || p->T == 0 || p->T > W || p->Hk == 0 || a->dropout > 0 || a->scores ||
        a->cu_seqlens_q || p->runs || !attni_mask_shared(p))
        return 1;
    const int64_t sharing = p->H / p->Hk;
    int best = 1;
    int64_t least = INT64_MAX;
    for (int heads = 1; heads <= W && heads <= sharing; heads++) {
        const int rows = W / heads < p->T ? W / heads : (int)p->T;
        const int64_t cost = sharing / heads * group_cost(p, heads, rows) +
                             group_cost(p, (int)(sharing % heads), rows);
        if (cost < least)
            least = cost, best = heads;
    }
    return best;
}

/* Estimates the seconds that one thread needs: the longer of arithmetic and reading. A thread is
 * not worth waking for less than 10 microseconds (WORK_SECONDS). */
#define WORK_SECONDS 10e-6
static double guess_seconds(const attni_plan *p)
{
    const double pairs = (double)p->B * (double)p->H * (double)p->T * (double)p->S;
    const double width = (double)p->D + (double)p->Dv;
    const double keys = (double)p->B * (double)p->Hk * (double)p->S;
    const double seconds = pairs * width * 2 / 1e11;
    const double reading = keys * width * (double)attn_dtype_size(p->args.k.dtype) / 2e10;
    return seconds > reading ? seconds : reading;
}

/* Tasks are cut along the keys if there are too few of them for the threads. They are not cut if
 * each thread gets one task of the same length: computing and merging partial results would only
 * make the call slower (measured in docs/decisions/0026). They are also not cut if the call takes
 * too little time, and in three kinds of calls for which this is not implemented: keys in pieces,
 * packed sequences, and tasks of several tiles. */
static int64_t parts_per_task(const attni_plan *p, int threads)
{
    const bool alike = p->tasks_per_head == 1 && (p->B == 1 || !p->args.key_lengths);
    if (p->in_pieces || p->tiles > 1 || (alike && p->tasks == threads) || p->tasks == 0 ||
        p->tasks >= 2 * threads || p->args.cu_seqlens_q || threads == 1 ||
        guess_seconds(p) < 2 * WORK_SECONDS)
        return 1;
    const int64_t wanted = (4 * threads + p->tasks - 1) / p->tasks;
    return wanted < p->chunks ? wanted : p->chunks > 1 ? p->chunks : 1;
}

/* Requested weights are computed when the sums of the weights are final. If there are at most
 * KEPT_KEYS keys, the scores of a tile are kept until then: 256 KiB for 32 queries, which fit in L2
 * (docs/decisions/0054). */
#define KEPT_KEYS 2048
static int64_t kept_keys(const attni_plan *p)
{
    const bool keeps = p->unit && p->args.scores && p->args.scores_stage == ATTN_STAGE_WEIGHTS &&
                       !p->args.cu_seqlens_q && !p->in_pieces && p->S <= KEPT_KEYS;
    return keeps ? attni_div_up(p->S, ATTNI_CHUNK) * ATTNI_CHUNK : 0;
}

/* Sets all members that say how the work is divided into tasks, parts and workers. Returns false if
 * there are more tasks than can be counted. */
static bool count_tasks(attni_plan *p, int threads)
{
    p->sequences = p->runs ? p->run_count : p->args.cu_seqlens_q ? p->args.sequences + 1 : 1;
    p->kept_keys = kept_keys(p);
    p->tiles = tiles_per_task(p, p->most_tiles ? 1 : threads);
    if (p->most_tiles && p->tiles > p->most_tiles)
        p->tiles = p->most_tiles;
    p->task_rows = p->tiles * (p->nv * p->kernels->lanes / p->group);
    p->tasks_per_head = p->B && p->H ? attni_tasks_of_head(p) : 0;
    int64_t heads;
    if (__builtin_mul_overflow(p->B, attni_groups_of_heads(p), &heads) ||
        __builtin_mul_overflow(p->tasks_per_head, heads, &p->tasks))
        return false;
    p->chunks = attni_div_up(p->S, ATTNI_CHUNK);
    p->parts = parts_per_task(p, threads);
    int64_t workers = p->tasks * p->parts;
    if (workers > threads)
        workers = threads;
    p->workers = (int)workers;
    if (workers > 1) {
        const double worth = guess_seconds(p) / WORK_SECONDS;
        if (worth < (double)(workers - 1))
            p->workers = 1 + (int)worth;
    }
    /* In a causal call with more than two workers, the longest tasks come first, so that none of
     * them begins last. (With a dense mask or packed sequences, the tasks of the last queries need
     * not be the longest.) With two workers the order matters less: only one of them can be idle at
     * the end, for at most one task. So their tasks come head by head, which keeps the keys of a
     * head in cache (docs/decisions/0025). */
    p->longest_first = p->workers > 2 && p->args.causal && !p->args.mask && !p->args.cu_seqlens_q;
    return true;
}

/* Scratch: the workers' arrays; then, if tasks are cut into parts, a partial result for each chunk
 * of each task, and each task's count of finished parts. */
static bool size_scratch(attni_plan *p)
{
    p->worker_bytes = p->engine->scratch(p);
    p->partial_bytes = p->parts > 1 ? p->engine->partial_bytes(p) : 0;
    size_t partials, arrived, workers;
    if (p->worker_bytes == SIZE_MAX || p->partial_bytes == SIZE_MAX ||
        !attni_size_mul(p->worker_bytes, (size_t)(p->workers > 1 ? p->workers : 1), &workers))
        return false;
    p->scratch_bytes = workers;
    if (p->parts == 1)
        return true;
    return attni_size_mul(p->partial_bytes, (uint64_t)p->chunks, &partials) &&
           attni_size_mul(partials, (uint64_t)p->tasks, &partials) &&
           attni_size_mul((uint64_t)p->tasks, sizeof(atomic_llong), &arrived) &&
           attni_size_add(workers, partials, &partials) &&
           attni_size_add(partials, arrived, &p->scratch_bytes);
}

/* k_l2_ahead of plan.h, for rows of so many elements. */
static int rows_ahead(int64_t size)
{
    int rows = ATTNI_BLOCK / 2;
    while (rows < ATTNI_CHUNK && rows * size < 4096)
        rows *= 2;
    return rows;
}

/* Does values_decode() read all components of a value at once, for one query and f32? Then it reads
 * in address order, which the hardware prefetcher follows. */
static bool reads_values_in_order(const attni_plan *p)
{
    const int64_t Dv = p->Dv, lanes = p->kernels->lanes;
    return p->v_in_place && (Dv == 8 * lanes || Dv == 4 * lanes || Dv == 3 * lanes);
}

/* Rows are prefetched if q, k, v and out together, each element counted as an R, have more than
 * ATTNI_FAR_BYTES. For smaller calls prefetch only costs time: 12 heads took 5 % longer with 32
 * tokens, and 2 % longer with 64. In a task of one block of keys, prefetching is a larger
 * share of the work. It pays only above 11 MiB. In the bf16 engine, a task prefetches rows of the
 * next task, which pays only above 15 MiB (7.5 MiB of bf16). Both limits were measured on a Zen 5
 * whose L3 is shared (docs/decisions/0050). Above 36 MiB (18 MiB of bf16), a repeated call finds
 * its rows in memory and not in L3; this limit was measured on a Zen 4 whose L3 is shared
 * (docs/decisions/0047). */
static void choose_prefetch(attni_plan *p)
{
    const double rows = (double)p->B * ((double)p->H * (double)p->T + (double)p->Hk * (double)p->S);
    const double bytes = rows * (double)(p->D + p->Dv) * (double)p->real;
    p->far = bytes > ATTNI_FAR_BYTES;
    p->far_blocks = bytes > (p->unit ? 15.0 : 11.0) * ATTNI_FAR_BYTES;
    p->from_memory = bytes > 36.0 * ATTNI_FAR_BYTES;
    /* L1 has places for few outstanding misses. On Zen 3 and Zen 4 a prefetch into L1 occupies one
     * of these places until its line arrives. L2 has more places. If lines are prefetched into L2,
     * decoding from memory reaches 1.06 to 1.4 times the speed on a Zen 4, and 0.96 to 1.1 times on
     * a Zen 3 (docs/decisions/0030). It makes small decoding calls up to 3 % slower. On a Zen 5, a
     * prefetch into L2 instead of L1 made no difference (docs/decisions/0007). */
    p->prefetch_l2 = p->far && attni_family_19h();
    p->one_stream = p->prefetch_l2 && p->from_memory && p->kernels->lanes == 16; /* a Zen 4 */
    p->k_l2_ahead = p->prefetch_l2 ? rows_ahead(p->D) : 0;
    p->v_l2_ahead = p->prefetch_l2 ? rows_ahead(p->Dv) : 0;
    /* The distance is 5 KiB. */
    p->v_l2_only = p->one_stream && reads_values_in_order(p) ? 1279 / (int)p->Dv + 1 : 0;
}

/* Can the decode path read keys and values as they are stored, although they are not rows of R? If
 * several tiles share a chunk, it cannot: the chunk is converted once for all of them. */
static bool decode_as_stored(const attni_plan *p)
{
    const attn_tensor *k = &p->args.k, *v = &p->args.v;
    if (p->tiles > 1)
        return false;
    if (k->dtype == p->real_dtype)
        return p->k_interleaved;
    return p->kernels->halves && (k->dtype == ATTN_BF16 || k->dtype == ATTN_F16) &&
           k->stride[3] == 1 && v->stride[3] == 1;
}

attn_status attni_make_plan(attni_plan *p, int isa, int threads, attn_error *err)
{
    p->kernels = attni_kernels_of(isa, p->real == sizeof(float) ? 32 : 64);
    const int64_t lanes = p->kernels->lanes;
    p->sums_width = (size_t)(attni_div_up(p->Dv, lanes) * lanes);
    p->q_in_place = attni_in_place(p, &p->args.q);
    p->k_interleaved = p->args.cache && p->args.cache->interleaved;
    p->k_in_place = attni_in_place(p, &p->args.k) && !p->k_interleaved;
    p->v_in_place = attni_in_place(p, &p->args.v);
    p->out_in_place = attni_in_place(p, &p->args.out);
    p->unit = attni_bf16_unit_for(p);
    p->engine = p->unit ? &attni_engine_bf16 : &attni_engine_tile;
    if (attni_empty(&p->args.out) && !attni_sdpa_writes(&p->args)) { /* no task and no scratch */
        p->tiles = p->group = p->nv = 1;
        p->sequences = p->parts = 1;
        p->route = ATTNI_ROUTE_NONE;
        return ATTN_OK;
    }
    p->group = heads_per_tile(p);
    p->copies_rows = !p->q_in_place || !p->out_in_place || p->group > 1;
    p->no_postprocessing = p->k_in_place && p->v_in_place && !p->scaled_scores && !p->args.mask &&
                           !p->args.scores && p->args.dropout == 0;
    choose_prefetch(p);
    p->nv = vectors_of_tile(p, threads);
    if (!count_tasks(p, threads) || !size_scratch(p))
        return attni_fail(
            err, ATTN_ERR_LIMIT, "q",
            "q is too large: its B x H x T, or the scratch for D=%lld and Dv=%lld, is "
            "more than this machine can address",
            (long long)p->D, (long long)p->Dv);
    p->decode_as_stored = decode_as_stored(p);
    p->route = attni_route_of_call(p);
    return ATTN_OK;
}
