/* The decode operations (tiles of few queries). tile.inc.h includes this file at its end, since it
 * uses the helpers there. The contracts are in kernel.h.
 *
 * With one query in a tile of V_LANES, all but one lane of scores() and values() would be idle.
 * Here the lanes hold keys (scores) or components of a value, and rows of keys are transposed in
 * registers. Every sum keeps the order that it has in a full tile, so the bits are the same. These
 * operations are memory-bound, so k and v are prefetched.
 */
#define FOR_R UNROLL for (int r = 0; r < nr; r++)
#define FOR_G UNROLL for (int g = 0; g < groups; g++)
#define LINE_OF_R (64 / (int)sizeof(R))

/* The last part of a row is loaded as a whole vector, together with components before it. This is
 * not done in f64, where it has not been measured, and not in the portable code, which has few
 * accumulators, so that it stays small. */
#define WHOLE_LOADS (V_ACCUMULATORS > 8 && ATTNI_BITS == 32)

/* OWN: the storage type equal to R. k and v may also be bf16 or f16 if isa_<isa>.c defines
 * V_HALVES. */
#define OWN (ATTNI_BITS == 32 ? ATTN_F32 : ATTN_F64)
#define SIZE_OF(dtype) ((dtype) == OWN ? (int)sizeof(R) : 2)

/* On a Zen 4, decoding from L3 takes up to 1.15 times as long if the code begins at an odd multiple
 * of 64 bytes (docs/decisions/0027). */
#define DECODE_OP static __attribute__((aligned(128))) void

#include "convert.inc.h"
#include "prefetch.inc.h"

/* ------------------------------------------------------------------------------- scores_decode
 *
 * From here on, `bytes` is the distance between rows of k or v in bytes; ldk and ldv are distances
 * in elements.
 *
 * Keys are transposed in registers, so that lanes hold keys. A column has 4 bytes (8 in f64)
 * of each of V_LANES keys: one component, or two of bf16 or f16. v_load_transposed() loads
 * V_COLUMNS columns. */

#ifndef V_COLUMNS
#define V_COLUMNS V_LANES
typedef struct v_rows {
    const char *p;
    ptrdiff_t bytes;
} v_rows;
V_INLINE v_rows v_rows_at(const char *p, ptrdiff_t bytes) { return (v_rows){p, bytes}; }
V_INLINE void v_load_transposed(vec r[V_LANES], const v_rows *rows, int at)
{
    UNROLL for (int j = 0; j < V_LANES; j++) r[j] =
        v_loadu((const R_any *)(rows->p + j * rows->bytes + at));
    v_transpose(r);
}
#endif

#define COLUMN_BYTES (V_COLUMNS * (int)sizeof(R)) /* what v_load_transposed() loads of each key */

/* Distance between components of a query. A single query is stored as one row [D]; as one lane of a
 * tile it would take V_LANES times as much of L1. */
#define QT_LD(nr) ((nr) > 1 ? V_LANES : 1)

/* Adds to s[r], for each query r, the products of the key components in `column` with those of the
 * queries. q[r] is the component of query r that is multiplied by the first component in the
 * column. If `skip` is positive, the first `skip` components of the column are left out. */
V_INLINE void scores_decode_column(vec *s, const R *q, vec column, int skip, const attn_dtype dtype,
                                   const int nr)
{
    if (dtype == OWN) {
        if (skip <= 0)
            FOR_R s[r] = v_fma(column, v_bcast(q + r), s[r]);
    } else {
#ifdef V_HALVES
        const vec first = dtype == ATTN_BF16 ? v_low_bf16(column) : v_low_f16(column);
        const vec second = dtype == ATTN_BF16 ? v_high_bf16(column) : v_high_f16(column);
        if (skip <= 0)
            FOR_R s[r] = v_fma(first, v_bcast(q + r), s[r]);
        if (skip <= 1)
            FOR_R s[r] = v_fma(second, v_bcast(q + QT_LD(nr) + r), s[r]);
#endif
    }
}

/* The sum over the components in one line of 64 bytes of each key. */
V_INLINE void scores_decode_line(vec *s, const R *qt, const char *k, ptrdiff_t bytes,
                                 prefetcher *next, const attn_dtype dtype, const int nr)
{
    enum { each = LINE_OF_R / V_LANES, step = V_LANES < 4 ? V_LANES : 4 };
    const v_rows rows = v_rows_at(k, bytes);
    UNROLL for (int c = 0; c < LINE_OF_R; c += V_COLUMNS)
    {
        vec kt[V_COLUMNS];
        v_load_transposed(kt, &rows, c * (int)sizeof(R));
        UNROLL for (int u = 0; u < V_COLUMNS; u++)
        {
            const R *q = qt + (dtype == OWN ? c + u : 2 * (c + u)) * QT_LD(nr);
            scores_decode_column(s, q, kt[u], 0, dtype, nr);
            if ((c + u) % each == 0) {
                if ((c + u) / each % step == 0)
                    prefetch_begin(next, step, dtype);
                prefetch_line(next, (c + u) / each % step, step, dtype);
                if ((c + u) / each % step == step - 1)
                    prefetch_end(next, step);
            }
        }
    }
}

/* The same for V_COLUMNS columns, which are at most a line: for the end of a row. The first
 * `skip` components are in the sum already. The last columns of a row are loaded together with some
 * before them, because whole vectors load faster than parts. */
V_INLINE void scores_decode_columns(vec *s, const R *qt, const char *k, ptrdiff_t bytes, int skip,
                                    prefetcher *next, const attn_dtype dtype, const int nr)
{
    enum { size = V_LANES * V_COLUMNS * (int)sizeof(R), lines = size < 64 ? 1 : size / 64 };
    const int each = dtype == OWN ? 1 : 2; /* components in a column */
    const v_rows rows = v_rows_at(k, bytes);
    vec kt[V_COLUMNS];
    v_load_transposed(kt, &rows, 0);
    prefetch_begin(next, lines, dtype);
    UNROLL for (int u = 0; u < V_COLUMNS; u++)
    {
        scores_decode_column(s, qt + each * u * QT_LD(nr), kt[u], skip - each * u, dtype, nr);
        if (u < lines)
            prefetch_line(next, u, lines, dtype);
    }
    prefetch_end(next, lines);
}

/* kt[u] = component u of V_LANES keys, of which only `keys` exist, with n components each; the rest
 * is 0. */
V_INLINE void transpose_rest(vec kt[V_LANES], const char *k, ptrdiff_t bytes,
                             const attn_dtype dtype, int keys, int n)
{
    for (int j = 0; j < V_LANES; j++)
        kt[j] = j < keys ? load_as(k + j * bytes, dtype, n) : v_set1(0);
    v_transpose(kt);
}

/* transpose_rest(), compiled once and not inlined: inlined in every kernel it would take 45 KB. The
 * usual case, one query and a few keys after the last whole vector of keys, inlines
 * transpose_rest() instead: the call would make it 4 % slower (12 heads of 33 keys). */
static __attribute__((noinline)) void transpose_any_rest(vec kt[V_LANES], const char *k,
                                                         ptrdiff_t bytes, attn_dtype dtype,
                                                         int keys, int n)
{
    vec r[V_LANES];
    transpose_rest(r, k, bytes, dtype, keys, n);
    UNROLL for (int j = 0; j < V_LANES; j++) kt[j] = r[j];
}

/* Adds what the functions above cannot: `keys` rows of D components, with fewer than V_LANES keys
 * or less than V_COLUMNS columns. */
V_INLINE void scores_decode_rest(vec *s, const R *qt, const char *k, ptrdiff_t bytes,
                                 const attn_dtype dtype, int keys, int D, const int nr,
                                 const int groups)
{
    for (int d = 0; d < D; d += V_LANES) {
        const int n = D - d < V_LANES ? D - d : V_LANES;
        vec kt[V_LANES];
        const char *from = k + d * SIZE_OF(dtype);
        if (nr * groups == 1 && dtype == OWN)
            transpose_rest(kt, from, bytes, dtype, keys, n);
        else
            transpose_any_rest(kt, from, bytes, dtype, keys, n);
        for (int u = 0; u < n; u++)
            FOR_R s[r] = v_fma(kt[u], v_bcast(qt + (d + u) * QT_LD(nr) + r), s[r]);
    }
}

/* Stores the scores x[r] of query r for a vector of keys from `first` on, and updates the maxima
 * top[r] by the first `keys` of them. */
V_INLINE void store_decode(R *st, vec *top, const vec *x, int first, int keys, const int nr)
{
    const vmask here = v_lt(v_iota(), v_set1((R)keys));
    FOR_R top[r] = v_max(top[r], v_select(here, x[r], v_set1(-R_INF)));
    FOR_R v_store(st + r * ATTNI_BLOCK + first, x[r]);
}

/* qt + at. If `at` is negative, this is an address before the query, and what lies there is not
 * read. */
V_INLINE const R *components_from(const R *qt, int at)
{
    return (const R *)((uintptr_t)qt + (uintptr_t)(ptrdiff_t)at * sizeof(R));
}

/* Adds the n components of a run that scores_decode_line() has not added: those that do not fill a
 * line or, if fewer than V_LANES keys are left, all. At least `before` components lie before these
 * in memory. */
V_INLINE void scores_decode_end(vec (*s)[V_MAX_DECODE_ROWS], const R *qt, const char *k,
                                ptrdiff_t bytes, prefetcher *next, const attn_dtype dtype, int keys,
                                int n, int64_t before, const int nr, const int groups)
{
    const int ld = QT_LD(nr), size = SIZE_OF(dtype), columns = COLUMN_BYTES / size;
    const int last = WHOLE_LOADS && before + n >= columns ? n : n / columns * columns;
    int d = 0;
    if (keys == groups * V_LANES) {
        /* With two vectors of keys, whole columns are added by this loop. The loop after it could
         * add them, too, but it computes `skip`, and D = 8 took a tenth longer. */
        for (; WHOLE_LOADS && groups > 1 && d + columns <= n; d += columns)
            FOR_G scores_decode_columns(s[g], qt + d * ld, k + g * V_LANES * bytes + d * size,
                                        bytes, 0, next, dtype, nr);
        for (int skip; d < last; d += columns - skip) {
            skip = !WHOLE_LOADS || d + columns <= n ? 0 : d + columns - n;
            FOR_G scores_decode_columns(s[g], components_from(qt, (d - skip) * ld),
                                        k + g * V_LANES * bytes + (d - skip) * size, bytes, skip,
                                        next, dtype, nr);
        }
    }
    /* With WHOLE_LOADS and 2 groups, d is n here: scores_decode_block() takes 2 groups only if the
     * row's last part can be loaded as a whole vector. */
    if (d < n && (groups == 1 || !WHOLE_LOADS))
        FOR_G scores_decode_rest(s[g], qt + d * ld, k + g * V_LANES * bytes + d * size, bytes,
                                 dtype, keys - g * V_LANES, n - d, nr, groups);
}

/* A key or value may have fewer bytes than are loaded of it at once. If there is one query, and
 * rows follow each other without a gap, whole vectors are loaded all the same, together with
 * components of the rows before (scores) or after (values). The first block of scores has no rows
 * before it, and the last blocks of values have few after them. These blocks are copied, and have a
 * vector of zeros on both sides (docs/decisions/0043). */
typedef struct short_rows {
    char bytes[(ATTNI_BLOCK + 2) * sizeof(vec)];
} short_rows;

/* Are these rows of n components without gaps, and each shorter than `whole` bytes? */
V_INLINE bool are_short(ptrdiff_t bytes, int64_t n, int whole, const attn_dtype dtype)
{
    return WHOLE_LOADS && bytes < whole && bytes == n * SIZE_OF(dtype);
}

/* Returns the copy. Not inlined, for the size of the library. */
static __attribute__((noinline)) const char *copy_short(short_rows *to, const char *rows,
                                                        ptrdiff_t bytes)
{
    char *at = to->bytes + sizeof(vec);
    memset(to->bytes, 0, sizeof(vec));
    memset(at + bytes, 0, sizeof(vec));
    return memcpy(at, rows, (size_t)bytes);
}

/* Scores of up to `groups` x V_LANES keys. groups = 2 gives two independent chains of additions;
 * one chain alone would be limited by the latency of additions. At least `before` components lie
 * directly before each key. */
V_INLINE void scores_decode_keys(R *st, vec *top, const R *qt, const char *k, ptrdiff_t bytes,
                                 prefetcher *next, const attn_dtype dtype, int first, int keys,
                                 int64_t D, int before, const int nr, const int groups)
{
    enum { group = V_LANES };
    const int ld = QT_LD(nr), line = 64 / SIZE_OF(dtype), size = SIZE_OF(dtype);
    vec x[2][V_MAX_DECODE_ROWS];
    FOR_G FOR_R x[g][r] = v_set1(0);
    for (int64_t run = 0; run < D; run += ATTNI_D_CHAIN) {
        const int n = D - run < ATTNI_D_CHAIN ? (int)(D - run) : ATTNI_D_CHAIN;
        const char *from = k + run * size;
        const R *q = qt + run * ld;
        vec s[2][V_MAX_DECODE_ROWS];
        FOR_G FOR_R s[g][r] = v_set1(0);
        int d = 0;
        for (; keys == groups * group && d + line <= n; d += line)
            FOR_G scores_decode_line(s[g], q + d * ld, from + g * group * bytes + d * size, bytes,
                                     next, dtype, nr);
        if (d < n)
            scores_decode_end(s, q + d * ld, from + d * size, bytes, next, dtype, keys, n - d,
                              before + run + d, nr, groups);
        FOR_G FOR_R x[g][r] = run ? v_add(x[g][r], s[g][r]) : s[g][r];
    }
    FOR_G store_decode(st, top, x[g], first + g * group, keys - g * group, nr);
}

V_INLINE R v_first(vec x)
{
    R lane[V_LANES] __attribute__((aligned(ATTNI_ALIGN)));
    v_store(lane, x);
    return lane[0];
}

V_INLINE R highest(vec x)
{
    R lane[V_LANES] __attribute__((aligned(ATTNI_ALIGN)));
    v_store(lane, x);
    UNROLL for (int n = V_LANES / 2; n > 0; n /= 2) for (int i = 0; i < n; i++) lane[i] =
        lane[i] > lane[i + n] ? lane[i] : lane[i + n];
    return lane[0];
}

/* Scores of one block of n keys; `before` as above. */
V_INLINE void scores_decode_block(R *st, R *mx, const R *qt, const char *k, ptrdiff_t bytes,
                                  prefetcher *next, const attn_dtype dtype, int n, int64_t D,
                                  int before, const int nr)
{
    enum { pair = 2 * V_LANES };
    vec top[V_MAX_DECODE_ROWS];
    FOR_R top[r] = v_set1(-R_INF);
    const int paired = next->next_rows->one_vector ? 0 : n;
    int j = 0;
    if (nr == 1 && (!WHOLE_LOADS || (before + D) * SIZE_OF(dtype) >= COLUMN_BYTES))
        for (; j + pair <= paired; j += pair)
            scores_decode_keys(st, top, qt, k + j * bytes, bytes, next, dtype, j, pair, D, before,
                               nr, 2);
    for (; j < n; j += V_LANES)
        scores_decode_keys(st, top, qt, k + j * bytes, bytes, next, dtype, j,
                           n - j < V_LANES ? n - j : V_LANES, D, before, nr, 1);
    v_store(mx, v_set1(-R_INF));
    FOR_R mx[r] = highest(top[r]);
}

V_INLINE void scores_decode_tile(R *st, R *mx, const R *qt, const char *k, ptrdiff_t bytes,
                                 const attn_dtype dtype, int n, int64_t D,
                                 const attni_next_rows *next_rows, const int nr)
{
    prefetcher next = prefetch_plain(next_rows, k, bytes, D * SIZE_OF(dtype), n, nr);
    short_rows copy;
    const int before =
        nr == 1 && are_short(bytes, D, COLUMN_BYTES, dtype) ? COLUMN_BYTES / SIZE_OF(dtype) : 0;
    for (int j = 0; j == 0 || j < n; j += ATTNI_BLOCK) {
        const int b = j / ATTNI_BLOCK, keys = n - j < ATTNI_BLOCK ? n - j : ATTNI_BLOCK;
        const char *from = k + j * bytes;
        if (before && j == 0)
            from = copy_short(&copy, k, keys * bytes);
        scores_decode_block(st + b * V_MAX_DECODE_ROWS * ATTNI_BLOCK, mx + b * V_LANES, qt, from,
                            bytes, &next, dtype, keys, D, before, nr);
    }
}

/* Runs `call` with nr = rows rounded up to 1, 4 or the maximum, as a constant. Each variant takes
 * 20 KB of code. Four is a usual number of heads that share keys, and takes 0.65 of the time of
 * eight. */
#define FOUR_TOO (V_MAX_DECODE_ROWS > 4 && ATTNI_BITS == 32)
#define WITH_NR(rows, call)                                                                        \
    do {                                                                                           \
        if ((rows) <= 1) {                                                                         \
            enum { nr = 1 };                                                                       \
            call;                                                                                  \
        } else if (FOUR_TOO && (rows) <= 4) {                                                      \
            enum { nr = FOUR_TOO ? 4 : 1 };                                                        \
            call;                                                                                  \
        } else {                                                                                   \
            enum { nr = V_MAX_DECODE_ROWS };                                                       \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

/* Runs `call` with the storage type as a constant. */
#ifdef V_HALVES
#define WITH_DTYPE(dtype_, call)                                                                   \
    do {                                                                                           \
        if ((dtype_) == ATTN_BF16) {                                                               \
            const attn_dtype dtype = ATTN_BF16;                                                    \
            call;                                                                                  \
        } else if ((dtype_) == ATTN_F16) {                                                         \
            const attn_dtype dtype = ATTN_F16;                                                     \
            call;                                                                                  \
        } else {                                                                                   \
            const attn_dtype dtype = OWN;                                                          \
            call;                                                                                  \
        }                                                                                          \
    } while (0)
#else
#define WITH_DTYPE(dtype_, call)                                                                   \
    do {                                                                                           \
        const attn_dtype dtype = OWN;                                                              \
        (void)(dtype_);                                                                            \
        call;                                                                                      \
    } while (0)
#endif

DECODE_OP op_scores_decode(void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk,
                           attn_dtype dtype_, int n, int64_t D, int rows,
                           const attni_next_rows *next_rows)
{
    WITH_DTYPE(dtype_, WITH_NR(rows, scores_decode_tile(st, mx, qt, k, ldk * SIZE_OF(dtype), dtype,
                                                        n, D, next_rows, nr)));
}

/* ------------------------------------------------------------------------------ weights_decode */

static void op_weights_decode(void *p_, const void *st_, const void *c_, const void *m_, int n,
                              int rows)
{
    R *p = p_;
    const R *st = st_, *c = c_, *m = m_;
    for (int i = 0; i < rows; i++) {
        const vec scale = v_set1(c[i]), max = v_set1(m[i] == -R_INF ? 0 : m[i]);
        for (int j = i * ATTNI_BLOCK; j < i * ATTNI_BLOCK + n; j += V_LANES)
            v_store(p + j, exp2_minus(v_mul(v_load(st + j), scale), max));
    }
}

/* ------------------------------------------------------------------------------- values_decode */

/* l[r] += the sum of weights of row r, one chain per row in order of j; the chains run in
 * parallel. */
V_INLINE void add_weights(R *l, const R *p, int n, int rows, const int nr)
{
    R sum[V_MAX_DECODE_ROWS] = {0};
    for (int j = 0; j < n; j++)
        FOR_R sum[r] += p[r * ATTNI_BLOCK + j];
    for (int r = 0; r < rows; r++)
        l[r] += sum[r];
}

/* x without its first n lanes; lanes of 0 follow. */
V_INLINE vec without_first(vec x, int n)
{
    R lane[2 * V_LANES];
    v_storeu(lane, x);
    v_storeu(lane + V_LANES, v_set1(0));
    return v_loadu(lane + n);
}

/* Sums of weighted values for `groups` vectors of components: a row of sums per query, ld apart.
 * The last vector may have only `tail` components. If `before` is 1, the load of the last vector
 * begins before these components, so that it is whole. With one query and l not NULL, the weights
 * are summed in the same loop: a loop of their own would be limited by the latency of additions.
 *
 * With a 2-byte type, the vectors of one call may be less than a line, so that several calls read
 * the same line. Only the call that begins a line prefetches. Otherwise each line that is read
 * would cause several prefetches, each of the next line. The prefetch would run several blocks
 * ahead, and what it loads would not fit in L1. */
V_INLINE void values_decode_group(R *sums, R *l, ptrdiff_t ld, const char *val, ptrdiff_t bytes,
                                  const attn_dtype dtype, const R *p, int in_rows, int n, int tail,
                                  int before, int flags, prefetcher *next, const int nr,
                                  const int groups, int begins_line)
{
    vec s[V_MAX_DECODE_ROWS][8], sum = v_set1(0);
    FOR_R FOR_G s[r][g] = v_set1(0);
    const ptrdiff_t key = in_rows ? 1 : V_LANES, query = in_rows ? ATTNI_BLOCK : 1;
    const int size = groups * V_LANES * SIZE_OF(dtype), lines = (size + 63) / 64;
    const int part = dtype != OWN && size < 64;
    const int loaded = groups > 1 || before ? V_LANES : tail, skip = loaded - tail;
    const char *last = val + ((groups - 1) * V_LANES - skip) * SIZE_OF(dtype);
    for (int j = 0; j < n; j++) {
        vec x[8];
        prefetch_begin(next, lines, dtype);
        FOR_G
        {
            if (part) /* keeps the compiler from making two copies of the loop */
                __asm__ volatile("" : "+r"(begins_line));
            const int next_line = g == 0 || g * lines / groups != (g - 1) * lines / groups;
            if (next_line && (!part || begins_line))
                prefetch_line(next, g * lines / groups, lines, dtype);
            const char *from = g == groups - 1 ? last : val + g * V_LANES * SIZE_OF(dtype);
            x[g] = load_as(from + j * bytes, dtype, groups == 1 ? loaded : V_LANES);
        }
        FOR_R
        {
            const vec w = v_bcast(p + j * key + r * query);
            if (nr == 1)
                sum = v_add(sum, w);
            FOR_G s[r][g] = v_fma(x[g], w, s[r][g]);
        }
        if (!part || begins_line)
            prefetch_end(next, lines);
    }
    if (skip)
        FOR_R s[r][groups - 1] = without_first(s[r][groups - 1], skip);
    FOR_R FOR_G
    {
        R *to = sums + r * ld + g * V_LANES;
        v_store(to, flags & ATTNI_FIRST ? s[r][g] : v_add(v_load(to), s[r][g]));
    }
    if (nr == 1 && l)
        *l += v_first(sum);
}

/* Weighted sums of one block. If `extended`, each value is shorter than a vector, but a whole
 * vector can be loaded. */
V_INLINE void values_decode_block(R *sums, R *l, const char *val, ptrdiff_t bytes,
                                  const attn_dtype dtype, const R *p, int in_rows, int n,
                                  int64_t Dv, int rows, int flags, prefetcher *next, bool extended,
                                  const int nr)
{
    const int size = SIZE_OF(dtype);
    const ptrdiff_t ld = (ptrdiff_t)((Dv + V_LANES - 1) / V_LANES * V_LANES);
    /* With one query, the part of a vector at the end is computed together with the one or two
     * vectors before it. */
    const int one = WHOLE_LOADS && nr == 1;
    const int64_t rest = Dv % V_LANES, more = Dv > 2 * V_LANES ? 2 : 1;
    const int64_t last = one && rest > 0 && Dv > V_LANES ? more * V_LANES + rest : 0;
    int64_t c = 0;
    if (in_rows && (nr > 1 || Dv == 0))
        add_weights(l, p, n, rows, nr);
    if (!in_rows)
        l = NULL;
#define GROUP(groups, tail, before)                                                                \
    values_decode_group(sums + c, c ? NULL : l, ld, val + c * size, bytes, dtype, p, in_rows, n,   \
                        tail, before, flags, next, nr, groups, dtype == OWN || c * size % 64 == 0)
#define STEP(groups)                                                                               \
    for (; c + (groups)*V_LANES <= Dv - last; c += (groups)*V_LANES)                               \
    GROUP(groups, V_LANES, 0)
    if (nr * 8 <= V_ACCUMULATORS)
        STEP(8);
    if (nr * 4 <= V_ACCUMULATORS)
        STEP(4);
    /* The latency of additions limits small groups: 3 vectors together take half of the time of 2
     * and then 1. */
    if (nr == 1 && V_ACCUMULATORS > 8)
        STEP(3);
    STEP(2);
    for (; c < Dv - last; c += V_LANES)
        GROUP(1, !extended && Dv - c < V_LANES ? (int)(Dv - c) : V_LANES,
              WHOLE_LOADS && nr > 1 && c > 0);
    if (one && last > 2 * V_LANES)
        GROUP(3, (int)rest, 1);
    else if (one && last > 0)
        GROUP(2, (int)rest, 1);
#undef STEP
#undef GROUP
}

V_INLINE void values_decode_tile(R *sums, R *l, const char *val, ptrdiff_t bytes,
                                 const attn_dtype dtype, const R *p, int in_rows, int n, int64_t Dv,
                                 int rows, int flags, const attni_next_rows *next_rows,
                                 const int nr)
{
    prefetcher next = prefetch_plain(next_rows, val, bytes, Dv * SIZE_OF(dtype), n, nr);
    short_rows copy;
    const bool extended =
        nr == 1 && Dv > 0 && are_short(bytes, Dv, V_LANES * SIZE_OF(dtype), dtype);
    for (int j = 0; j == 0 || j < n; j += ATTNI_BLOCK) {
        const int keys = n - j < ATTNI_BLOCK ? n - j : ATTNI_BLOCK;
        const char *from = val + j * bytes;
        if (extended && n - j < ATTNI_BLOCK + V_LANES)
            from = copy_short(&copy, from, keys * bytes);
        values_decode_block(sums, l, from, bytes, dtype, p, in_rows, keys, Dv, rows, flags, &next,
                            extended, nr);
        p += V_MAX_DECODE_ROWS * ATTNI_BLOCK; /* only calls with in_rows have several blocks */
        flags = 0;
    }
}

DECODE_OP op_values_decode(void *sums, void *l, const void *v, ptrdiff_t ldv, attn_dtype dtype_,
                           const void *p, int in_rows, int n, int64_t Dv, int rows, int flags,
                           const attni_next_rows *next_rows)
{
    WITH_DTYPE(dtype_,
               WITH_NR(rows, values_decode_tile(sums, l, v, ldv * SIZE_OF(dtype), dtype, p, in_rows,
                                                n, Dv, rows, flags, next_rows, nr)));
}

/* ------------------------------------------------------------------------------- finish_decode */

static int op_finish_decode(void *out_, ptrdiff_t ldo, const void *sums_, const void *l_, int rows,
                            int64_t Dv)
{
    R_any *out = out_;
    const R *sums = sums_, *l = l_;
    const vec zero = v_set1(0);
    vec bad = zero;
    for (int i = 0; i < rows; i++) {
        const vec minus_l = v_sub(zero, v_bcast(l + i)), inverse = v_div(v_set1(1), v_bcast(l + i));
        for (int64_t c = 0; c < Dv; c += V_LANES, sums += V_LANES) {
            const int columns = Dv - c < V_LANES ? (int)(Dv - c) : V_LANES;
            const vec x = load_as((const char *)sums, OWN, columns);
            const vec y = quotient(x, minus_l, inverse);
            bad = v_add(bad, v_mul(y, zero));
            R_any *to = out + i * ldo + c; /* computed inside the loop: if Dv is 0, `out`
                                            * may be an invalid pointer */
            if (columns == V_LANES)
                v_storeu(to, y);
            else
                store_part(to, y, columns);
        }
    }
    return v_any(v_lt(zero, v_select(v_eq(bad, bad), zero, v_set1(1))));
}
