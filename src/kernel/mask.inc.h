/* Masks: applies them to a tile of scores, and reads mask data. Included by tile.inc.h; the
 * contracts are in kernel.h. */

/* Adds slope * d to the scores at s. d - max(0, 2 d) is -|d|, and d - max(0, 0 d) is d. There is no
 * branch, and for d < 0 both cases give the same bits. */
V_INLINE void add_alibi(R *s, vec slope, vec fold, vec d)
{
    const vec distance = v_sub(d, v_max(v_set1(0), v_mul(fold, d)));
    v_store(s, v_fma(slope, distance, v_load(s)));
}

/* Distances that R cannot hold are rounded one by one, from the exact number. The difference of a
 * rounded number and the lane would depend on where the tile begins. */
static __attribute__((cold, noinline)) void alibi_far(R *st, int n, double slope, double first,
                                                      bool symmetric, int nv)
{
    R d[V_LANES] __attribute__((aligned(64)));
    for (int j = 0; j < n; j++)
        for (int v = 0; v < nv; v++) {
            for (int i = 0; i < V_LANES; i++)
                d[i] = (R)(first + j - (v * V_LANES + i));
            add_alibi(st + (j * nv + v) * V_LANES, v_set1((R)slope), v_set1(symmetric ? 2 : 0),
                      v_load(d));
        }
}

static void op_alibi(void *st_, int n, double slope, double first, bool symmetric, int nv)
{
    R *st = st_;
    const vec vslope = v_set1((R)slope), iota = v_iota();
    const vec fold = v_set1(symmetric ? 2 : 0);
    const double room = (sizeof(R) == sizeof(float) ? 0x1p24 : 0x1p53) - 1024; /* > n, lanes */
    if (first > room || first < -room) {
        alibi_far(st, n, slope, first, symmetric, nv);
        return;
    }
    for (int j = 0; j < n; j++)
        for (int v = 0; v < nv; v++)
            add_alibi(st + (j * nv + v) * V_LANES, vslope, fold,
                      v_sub(v_set1((R)(first + j - v * V_LANES)), iota));
}

/* Adds a vector of biases. Where b is -inf the result is -inf even if the score is NaN. */
V_INLINE vec biased(vec st, vec b) { return v_select(v_eq(b, v_set1(-R_INF)), b, v_add(st, b)); }

/* Adds the same row of biases to all lanes. */
V_INLINE void bias_row(R *st, int n, const R_any *b, const int nv)
{
    for (int j = 0; j < n; j++) {
        const vec x = v_bcast(b + j);
        FOR_V
        {
            R *to = st + (j * nv + v) * V_LANES;
            v_store(to, biased(v_load(to), x));
        }
    }
}

V_INLINE void bias_rows(R *st, int n, const R_any *b, ptrdiff_t ldb, int rows, int W)
{
    for (int first = 0; first < rows; first += V_LANES) {
        const int lanes = rows - first < V_LANES ? rows - first : V_LANES;
        int j = 0;
        for (; j + V_LANES <= n; j += V_LANES) {
            vec r[V_LANES];
            UNROLL for (int i = 0; i < V_LANES; i++)
            {
                r[i] = i < lanes ? v_loadu(b + (first + i) * ldb + j) : v_set1(0);
            }
            v_transpose(r);
            UNROLL for (int i = 0; i < V_LANES; i++)
            {
                R *to = st + (j + i) * W + first;
                v_store(to, biased(v_load(to), r[i]));
            }
        }
        for (; j < n; j++)
            for (int i = first; i < first + lanes; i++) {
                const R x = b[i * ldb + j];
                st[j * W + i] = x == -R_INF ? x : st[j * W + i] + x;
            }
    }
}

static void op_bias(void *st, int n, const void *b, ptrdiff_t ldb, int rows, int nv_)
{
    if (ldb == 0 && rows > 0)
        WITH_NV(nv_, bias_row(st, n, b, nv))
    else
        bias_rows(st, n, b, ldb, rows, nv_ * V_LANES);
}

/* The lanes i for which bit i is set. An instruction set may define its own version. */
#ifndef V_LANES_OF_BITS
V_INLINE vmask v_lanes(unsigned bits)
{
    R lane[V_LANES];
    for (int i = 0; i < V_LANES; i++)
        lane[i] = (R)(bits >> i & 1);
    return v_eq(v_loadu(lane), v_set1(1));
}
#endif

V_INLINE void hide_tile(R *st, R *mx, const uint64_t *visible, int n, const int nv)
{
    const vec never = v_set1(-R_INF);
    vec top[V_VECTORS];
    FOR_V top[v] = never;
    for (int j = 0; j < n; j++)
        FOR_V
        {
            R *to = st + (j * nv + v) * V_LANES;
            const vmask seen = v_lanes((unsigned)(visible[j] >> v * V_LANES));
            const vec x = v_select(seen, v_load(to), never);
            top[v] = v_max(top[v], x);
            v_store(to, x);
        }
    FOR_V v_store(mx + v * V_LANES, top[v]);
}

static void op_hide(void *st, void *mx, const uint64_t *visible, int n, int nv_)
{
    WITH_NV(nv_, hide_tile(st, mx, visible, n, nv))
}

/* Bit u of the result is 1 if byte u of the 64 bytes at p is not 0. An instruction set may define
 * its own version. */
#ifndef V_BITS_OF_BYTES
/* Multiplier that gathers bit 0 of each byte of a word in the top byte: the byte at the lowest
 * address gives bit 56, the next one bit 57, and so on. */
#if ATTNI_BIG_ENDIAN
#define V_GATHER_BYTES UINT64_C(0x8040201008040201)
#else
#define V_GATHER_BYTES UINT64_C(0x0102040810204080)
#endif
V_INLINE uint64_t v_bytes(const uint8_t *p)
{
    uint64_t bits = 0;
    for (int u = 0; u < 8; u++) {
        uint64_t w;
        __builtin_memcpy(&w, p + 8 * u, sizeof w);
        const uint64_t low = 0x7f7f7f7f7f7f7f7f;
        const uint64_t high = (((w & low) + low) | w) & ~low; /* bit 7 of each byte that is not 0 */
        bits |= ((high >> 7) * V_GATHER_BYTES >> 56) << 8 * u;
    }
    return bits;
}
#endif

static void op_pack_bits(uint64_t *to, const void *p, ptrdiff_t ld, int rows, int n)
{
    const uint8_t *row = p;
    if (n == 64) {
        for (int i = 0; i < rows; i++)
            to[i] = v_bytes(row + i * ld);
        return;
    }
    for (int i = 0; i < rows; i++) {
        uint8_t filled[64] = {0};
        __builtin_memcpy(filled, row + i * ld, (size_t)n);
        to[i] = v_bytes(filled);
    }
}

static int op_scan(const void *p, ptrdiff_t ld, int rows, size_t bytes, uint64_t value,
                   uint64_t hidden)
{
    const v_u64 zero = {0};
    int found = 0;
    for (int i = 0; i < rows && found != 3; i++) {
        const char *row = (const char *)p + i * ld;
        v_u64 any = zero, other = zero;
        size_t at = 0;
        for (; at + sizeof any <= bytes; at += sizeof any) {
            v_u64 w;
            __builtin_memcpy(&w, row + at, sizeof w);
            any |= w & value;
            other |= w ^ hidden;
        }
        uint64_t values = 0, seen = 0;
        for (; at < bytes; at += 8) {
            const size_t left = bytes - at < 8 ? bytes - at : 8;
            uint64_t w = 0, h = hidden;
            __builtin_memcpy(&w, row + at, left);
            __builtin_memcpy(&h, row + at, left);
            values |= w & value;
            seen |= h ^ hidden;
        }
        for (int u = 0; u < V_U64_LANES; u++)
            values |= any[u], seen |= other[u];
        found |= (values != 0) | (seen != 0) << 1;
    }
    return found;
}
