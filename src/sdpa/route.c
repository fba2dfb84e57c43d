/* Chooses the route of a call and of each of its tiles (attni_route, plan/plan.h).
 *
 *   attni_route_of_call   for the plan: what a full tile takes if every key is visible
 *   attni_route_of        for a tile, by its own number of queries and keys
 *   attni_route_name, attni_route_reason   as text, for attn_sdpa_plan
 *
 * A chunk falls back to a more general route where it must (cut_chunk() in decode.c): if a mask
 * hides part of a block, or in the sweep that skips masked keys.
 */
#include "../bf16/bf16_engine.h"
#include "sdpa.h"
#include "tile.h"

#include <stdio.h>

/* Reading in address order is faster when few rows make the work memory-bound. It is possible if
 * nothing has to be converted first. For one query that reads a cache, the values of a chunk are
 * read in one loop with the keys of the next chunk: two ascending address streams. 32 heads, 4096
 * keys, D = 128, one query, one thread, Zen 5: 3.32 ms per call instead of 3.48; reading alone
 * takes 3.20 (docs/decisions/0014). */
static attni_route reading_order(const attni_plan *p, int rows)
{
    if (!(p->k_in_place && p->v_in_place) && !p->decode_as_stored)
        return ATTNI_ROUTE_DECODE;
    if (rows == 1 && p->decode_as_stored && p->k_interleaved && p->args.k.dtype == p->real_dtype &&
        p->D == p->Dv && attni_has_values_and_next_scores(p->kernels, p->D))
        return ATTNI_ROUTE_DECODE_DEFERRED;
    return ATTNI_ROUTE_DECODE_KEYS_FIRST;
}

attni_route attni_route_of(const attni_plan *p, int nv, int rows, int64_t keys)
{
    if (p->unit)
        return attni_bf16_route_of(p, rows, keys);
    /* With few queries, the lanes are better filled with keys and with value components. If there
     * are fewer keys than lanes, this holds for a single query only. */
    const int fewest = rows == 1 ? 1 : p->kernels->lanes;
    if (nv > 1 || rows > p->kernels->max_decode_rows || keys < fewest)
        return ATTNI_ROUTE_TILES;
    if (p->scaled_scores || p->args.dropout > 0)
        return ATTNI_ROUTE_DECODE_TILES;
    return reading_order(p, rows);
}

/* Queries of a full tile. */
static int full_rows(const attni_plan *p)
{
    const int W = p->nv * p->kernels->lanes;
    return p->T * p->group < W ? (int)p->T * p->group : W / p->group * p->group;
}

attni_route attni_route_of_call(const attni_plan *p)
{
    if (!p->unit && p->no_postprocessing && p->S >= 1 && p->S <= ATTNI_BLOCK &&
        !p->args.cu_seqlens_q)
        return ATTNI_ROUTE_ONE_BLOCK;
    return attni_route_of(p, p->nv, full_rows(p), p->S);
}

/* ---------------------------------------------------------------------------------- for people */

const char *attni_route_name(attni_route route)
{
    switch (route) {
    case ATTNI_ROUTE_ONE_BLOCK: return "one block";
    case ATTNI_ROUTE_TILES: return "tiles";
    case ATTNI_ROUTE_DECODE_TILES: return "decode, scores as tiles";
    case ATTNI_ROUTE_DECODE: return "decode";
    case ATTNI_ROUTE_DECODE_KEYS_FIRST: return "decode, keys first";
    case ATTNI_ROUTE_DECODE_DEFERRED: return "decode, deferred values";
    case ATTNI_ROUTE_BF16_TILES: return "bf16 tiles";
    case ATTNI_ROUTE_BF16_DECODE: return "bf16 decode";
    case ATTNI_ROUTE_NONE: break;
    }
    return "none";
}

static const char *works_on_tiles(const attni_plan *p)
{
    return p->args.dropout > 0 ? "dropout" : p->args.softcap > 0 ? "the soft cap" : "a bias";
}

void attni_route_reason(const attni_plan *p, char *to, size_t bytes)
{
    const int rows = p->route == ATTNI_ROUTE_NONE ? 0 : full_rows(p);
    const char *s = rows == 1 ? "" : "s";
    switch (p->route) {
    case ATTNI_ROUTE_NONE: snprintf(to, bytes, "no result has an element"); break;
    case ATTNI_ROUTE_ONE_BLOCK:
        snprintf(to, bytes, "S is at most %d, and nothing changes the scores", ATTNI_BLOCK);
        break;
    case ATTNI_ROUTE_TILES:
        if (rows > p->kernels->max_decode_rows)
            snprintf(to, bytes, "a tile has %d queries; decoding takes at most %d", rows,
                     p->kernels->max_decode_rows);
        else
            snprintf(to, bytes, "S is less than %d, the lanes of a vector", p->kernels->lanes);
        break;
    case ATTNI_ROUTE_DECODE_TILES:
        snprintf(to, bytes, "a tile has %d row%s, but %s needs the scores as tiles", rows, s,
                 works_on_tiles(p));
        break;
    case ATTNI_ROUTE_DECODE:
        snprintf(to, bytes, "a tile has %d row%s; keys or values are converted block by block",
                 rows, s);
        break;
    case ATTNI_ROUTE_DECODE_KEYS_FIRST:
        snprintf(to, bytes, "a tile has %d row%s; keys and values are read in place", rows, s);
        break;
    case ATTNI_ROUTE_DECODE_DEFERRED:
        snprintf(to, bytes, "one row, and the keys of the cache are interleaved");
        break;
    case ATTNI_ROUTE_BF16_TILES:
    case ATTNI_ROUTE_BF16_DECODE:
        snprintf(to, bytes, "%s multiplies bf16; a tile has %d row%s", p->kernels->isa, rows, s);
        break;
    }
}
