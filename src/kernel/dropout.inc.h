/* drop: weights kept or lost by Philox4x32-10, counter-based, so that a decision depends on its
 * place alone (Salmon et al. 2011). Included by tile.inc.h; the contract stands in kernel.h. */

/* Philox4x32-10 of V_U64_LANES counters, a 32-bit word in each 64-bit lane. What the products leave
 * in the high halves does no harm: the next product does not look at it. */
V_INLINE void philox(v_u64 x[4], uint64_t seed)
{
    const v_u64 zero = {0}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const v_u64 a = v_mul_u32(x[0], m0), b = v_mul_u32(x[2], m1);
        x[0] = (b >> 32) ^ x[1] ^ k0;
        x[1] = b;
        x[2] = (a >> 32) ^ x[3] ^ k1;
        x[3] = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* The eight draws of each of W queries, for keys 8 * key8 .. 8 * key8 + 7, as R. */
V_INLINE void draw_tile(R draw[8][ATTNI_MAX_LANES], uint64_t seed, uint64_t bh, uint64_t i0,
                        uint64_t key8, int W)
{
    uint32_t word[4][ATTNI_MAX_LANES + 8];
    for (int i = 0; i < W; i += V_U64_LANES) {
        v_u64 query = {0};
        for (int u = 0; u < V_U64_LANES; u++)
            query[u] = (uint32_t)(i0 + (uint64_t)(i + u));
        const v_u64 zero = {0};
        v_u64 x[4] = {zero + (uint32_t)key8, query, zero + (uint32_t)bh, zero};
        philox(x, seed);
        for (int w = 0; w < 4; w++)
            for (int u = 0; u < V_U64_LANES; u++)
                word[w][i + u] = (uint32_t)x[w][u];
    }
    for (int w = 0; w < 4; w++)
        for (int i = 0; i < W; i++) {
            draw[2 * w][i] = (R)(int32_t)(word[w][i] & 0xffff);
            draw[2 * w + 1][i] = (R)(int32_t)(word[w][i] >> 16);
        }
}

static void op_drop(void *p_, int n, uint64_t seed, uint32_t threshold, uint64_t bh, uint64_t i0,
                    uint64_t j0, double kept, int nv)
{
    R *p = p_;
    R draw[8][ATTNI_MAX_LANES] __attribute__((aligned(ATTNI_ALIGN)));
    const vec lowest = v_set1((R)threshold), factor = v_set1((R)kept), zero = v_set1(0);
    for (int j = 0; j < n; j++) {
        const uint64_t key = j0 + (uint64_t)j;
        if (j == 0 || key % 8 == 0)
            draw_tile(draw, seed, bh, i0, key / 8, nv * V_LANES);
        for (int v = 0; v < nv; v++) {
            R *at = p + (j * nv + v) * V_LANES;
            const vec w = v_load(at);
            const vmask lost = v_lt(v_load(draw[key % 8] + v * V_LANES), lowest);
            const vec result = v_select(lost, zero, v_mul(w, factor));
            v_store(at, v_select(v_lt(w, zero), w, result)); /* a mark stays */
        }
    }
}
