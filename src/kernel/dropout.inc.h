/* drop(): keeps or drops weights by Philox4x32-10, a counter-based generator, so that a decision
 * depends only on its position (Salmon et al. 2011). Included by tile.inc.h; the contract is in
 * kernel.h.
 *
 * A counter (key / 8, query, b*H + h, 0) gives eight draws of 16 bits, for eight consecutive keys.
 * The first two rounds multiply no word that depends on both query and key: three of their four
 * products are the same for all queries, and the fourth is the same for all keys. A tile computes
 * these once; only the other eight rounds run for each counter. The draws are compared in the
 * registers in which they were computed. */

/* Each 64-bit lane holds one 32-bit word, so the words for one vector of R fill DRAW_PARTS
 * vectors. */
#define DRAW_PARTS (V_LANES / V_U64_LANES)
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_K0(seed, round) ((uint32_t)(seed) + (uint32_t)(round)*0x9E3779B9u)
#define PHILOX_K1(seed, round) ((uint32_t)((seed) >> 32) + (uint32_t)(round)*0xBB67AE85u)

/* The only product of the first two rounds that depends on the query, for W queries from i0 on. The
 * queries of one vector of R are distributed over its parts in turn. */
V_INLINE void query_products(v_u64 *products, uint64_t seed, uint64_t bh, uint64_t i0, int nv)
{
    const v_u64 zero = {0}, m0 = zero + PHILOX_M0;
    const uint32_t key = (uint32_t)((uint32_t)bh * (uint64_t)PHILOX_M1 >> 32) ^ PHILOX_K0(seed, 0);
    for (int i = 0; i < nv * DRAW_PARTS; i++) {
        v_u64 query = {0};
        for (int u = 0; u < V_U64_LANES; u++)
            query[u] = i0 + (uint64_t)(i / DRAW_PARTS * V_LANES + u * DRAW_PARTS + i % DRAW_PARTS);
        products[i] = v_mul_u32(query ^ key, m0);
    }
}

/* The other words after two rounds, which are the same for all queries; x[2] lacks the part of the
 * query. */
V_INLINE void key_words(uint32_t x[3], uint64_t seed, uint64_t bh, uint64_t key8)
{
    const uint64_t a = (uint32_t)key8 * (uint64_t)PHILOX_M0;
    const uint64_t b = (uint32_t)bh * (uint64_t)PHILOX_M1;
    const uint64_t c = ((uint32_t)(a >> 32) ^ PHILOX_K1(seed, 0)) * (uint64_t)PHILOX_M1;
    x[0] = (uint32_t)(c >> 32) ^ (uint32_t)b ^ PHILOX_K0(seed, 1);
    x[1] = (uint32_t)c;
    x[2] = (uint32_t)a ^ PHILOX_K1(seed, 1);
}

/* Rounds 3 to 10 of several counters in parallel, which hides the latency of the multiplications.
 * High halves may hold leftovers of products: the next multiplication reads only the low halves. */
V_INLINE void philox_rounds(v_u64 x[DRAW_PARTS][4], uint64_t seed)
{
    const v_u64 zero = {0}, m0 = zero + PHILOX_M0, m1 = zero + PHILOX_M1;
    UNROLL for (int round = 2; round < 10; round++)
    {
        UNROLL for (int i = 0; i < DRAW_PARTS; i++)
        {
            const v_u64 a = v_mul_u32(x[i][0], m0), b = v_mul_u32(x[i][2], m1);
            x[i][0] = (b >> 32) ^ x[i][1] ^ PHILOX_K0(seed, round);
            x[i][1] = b;
            x[i][2] = (a >> 32) ^ x[i][3] ^ PHILOX_K1(seed, round);
            x[i][3] = a;
        }
    }
}

/* The eight draws of V_LANES queries, as numbers DRAW_BASE + draw of type R: the draw is written
 * into the last bits of DRAW_BASE. */
#if ATTNI_BITS == 32
#define DRAW_BASE 0x1p23F
#define DRAW_BITS 0x4b0000004b000000u
#define DRAW_FIELD 0x0000ffff0000ffffu
#else
#define DRAW_BASE 0x1p52
#define DRAW_BITS 0x4330000000000000u
#define DRAW_FIELD 0xffffu
#endif
V_INLINE void draw_eight(vec draw[8], const v_u64 *products, const uint32_t shared[3],
                         uint64_t seed)
{
    const v_u64 zero = {0};
    v_u64 x[DRAW_PARTS][4];
    UNROLL for (int i = 0; i < DRAW_PARTS; i++)
    {
        x[i][0] = zero + shared[0];
        x[i][1] = zero + shared[1];
        x[i][2] = (products[i] >> 32) ^ shared[2];
        x[i][3] = products[i];
    }
    philox_rounds(x, seed);
    UNROLL for (int w = 0; w < 4; w++)
    {
        v_u64 words = x[0][w];
        if (DRAW_PARTS == 2) /* the first part goes to the lower address of the two floats */
            words = ATTNI_BIG_ENDIAN ? words << 32 | (x[DRAW_PARTS - 1][w] & 0xffffffff)
                                     : (words & 0xffffffff) | x[DRAW_PARTS - 1][w] << 32;
        const v_u64 low = (words & DRAW_FIELD) | DRAW_BITS;
        const v_u64 high = (words >> 16 & DRAW_FIELD) | DRAW_BITS;
        __builtin_memcpy(&draw[2 * w], &low, sizeof low);
        __builtin_memcpy(&draw[2 * w + 1], &high, sizeof high);
    }
}

V_INLINE void drop_one(R *to, const R *p, vec draw, vec lowest, vec factor)
{
    const vec w = v_load(p), zero = v_set1(0);
    const vec result = v_select(v_lt(draw, lowest), zero, v_mul(w, factor));
    v_store(to, v_select(v_lt(w, zero), w, result)); /* marks are copied */
}

static void op_drop(void *to_, const void *p_, int n, uint64_t seed, uint32_t threshold,
                    uint64_t bh, uint64_t i0, uint64_t j0, double kept, int nv)
{
    R *to = to_;
    const R *p = p_;
    const vec lowest = v_set1(DRAW_BASE + (R)threshold), factor = v_set1((R)kept);
    v_u64 products[V_VECTORS * DRAW_PARTS];
    query_products(products, seed, bh, i0, nv);
    for (int j = 0, next; j < n; j = next) {
        const int first = (int)((j0 + (uint64_t)j) % 8);
        next = j + 8 - first < n ? j + 8 - first : n;
        uint32_t shared[3];
        key_words(shared, seed, bh, (j0 + (uint64_t)j) / 8);
        for (int v = 0; v < nv; v++) {
            vec draw[8];
            draw_eight(draw, products + v * DRAW_PARTS, shared, seed);
            const ptrdiff_t row = nv * V_LANES, at = j * row + v * V_LANES;
            if (next - j == 8) {
                UNROLL for (int u = 0; u < 8; u++)
                    drop_one(to + at + u * row, p + at + u * row, draw[u], lowest, factor);
                continue;
            }
            vec all[8]; /* in memory, since the index is not a constant */
            __builtin_memcpy(all, draw, sizeof all);
            NO_UNROLL for (int u = 0; u < next - j; u++)
                drop_one(to + at + u * row, p + at + u * row, all[first + u], lowest, factor);
        }
    }
}
#undef DRAW_PARTS
#undef DRAW_BASE
#undef DRAW_BITS
#undef DRAW_FIELD
#undef PHILOX_M0
#undef PHILOX_M1
#undef PHILOX_K0
#undef PHILOX_K1
