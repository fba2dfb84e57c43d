/* Operations for tiles of a few queries (decoding) and for narrow storage types; included after
 * tile.inc.h, whose helpers it uses. The contracts stand in kernel.h.
 *
 * With one query in a tile of V_LANES, all but one lane of scores() and values() would idle. Here
 * the lanes hold keys (scores) or components of a value, and rows are turned by transposes in
 * registers: every sum keeps the order it has in a full tile, and so every bit. Reading k and v
 * from memory then takes longer than the arithmetic, and is asked for ahead.
 */

#define FOR_R UNROLL for (int r = 0; r < nr; r++)
#define FOR_G UNROLL for (int g = 0; g < groups; g++)
#define LINE_OF_R (64 / (int)sizeof(R))

/* The type that R is; half types only where the vector header has them. */
#define OWN (ATTNI_BITS == 32 ? ATTN_F32 : ATTN_F64)
#define SIZE_OF(dtype) ((dtype) == OWN ? (int)sizeof(R) : 2)

/* n <= V_LANES elements of `dtype` as R, then zeros. Nothing past them is touched. */
V_INLINE vec load_as(const char *p, const attn_dtype dtype, int n)
{
    if (n == V_LANES) {
        if (dtype == OWN)
            return v_loadu((const R_any *)p);
#ifdef V_HALVES
        return dtype == ATTN_BF16 ? v_from_bf16(p) : v_from_f16(p);
#endif
    }
    R lane[V_LANES] = {0};
#if ATTNI_BITS == 32
    attni_load_row_f32(lane, p, dtype, 1, n);
#else
    attni_load_row_f64(lane, p, dtype, 1, n);
#endif
    return v_loadu(lane);
}

/* ------------------------------------------------------------------------------------ widen */

static void op_widen(void *to_, const void *from, ptrdiff_t ld, attn_dtype dtype, int rows,
                     int64_t D)
{
    R *to = to_;
    const char *row = from;
    const ptrdiff_t bytes = ld * (ptrdiff_t)attn_dtype_size(dtype);
    for (int r = 0; r < rows; r++, row += bytes, to += D) {
        int64_t d = 0;
#ifdef V_HALVES
        if (dtype == ATTN_BF16)
            for (; d + V_LANES <= D; d += V_LANES)
                v_storeu(to + d, v_from_bf16(row + 2 * d));
        else if (dtype == ATTN_F16)
            for (; d + V_LANES <= D; d += V_LANES)
                v_storeu(to + d, v_from_f16(row + 2 * d));
#endif
        if (d == D)
            continue;
        const char *rest = row + (size_t)d * attn_dtype_size(dtype);
#if ATTNI_BITS == 32
        attni_load_row_f32(to + d, rest, dtype, 1, D - d);
#else
        attni_load_row_f64(to + d, rest, dtype, 1, D - d);
#endif
    }
}

static void op_widen_i8(void *to_, const int8_t *from, ptrdiff_t ld, const float *scales, int rows,
                        int64_t D)
{
    R_any *to = to_;
    for (int r = 0; r < rows; r++, to += D) {
        int64_t d = 0;
        const int8_t *row = from + r * ld;
#ifdef V_HALVES
        const vec scale = v_set1(scales[r]);
        /* A block ahead; an address, not a pointer, as it may be anywhere. One query, 32 heads,
         * 4096 keys took 5.9 ms without, 3.8 so, 3.4 where kernels ask for the block as well. */
        const uintptr_t next = (uintptr_t)row + (uintptr_t)(ATTNI_BLOCK * ld);
        for (; d + V_LANES <= D; d += V_LANES) {
            if (d % 64 == 0)
                __builtin_prefetch((const void *)(next + (uintptr_t)d));
            v_storeu(to + d, v_mul(v_from_i8(row + d), scale));
        }
#endif
        for (; d < D; d++)
            to[d] = (float)row[d] * scales[r];
    }
}

#ifdef V_HALVES
/* 0 for what would be rounded to -0: from -least on. A NaN stays. */
V_INLINE vec without_minus_zero(vec x, R least)
{
    return v_select(v_lt(x, v_set1(-least)), x, v_max(v_set1(0), x));
}
#endif

static void op_narrow(void *to_, attn_dtype dtype, const void *from_, int64_t n)
{
    char *to = to_;
    const R_any *from = from_;
    int64_t i = 0;
#ifdef V_HALVES
    if (dtype == ATTN_BF16)
        for (; i + V_LANES <= n; i += V_LANES)
            v_to_bf16(to + 2 * i, without_minus_zero(v_loadu(from + i), 0x1p-134F));
    else if (dtype == ATTN_F16)
        for (; i + V_LANES <= n; i += V_LANES)
            v_to_f16(to + 2 * i, without_minus_zero(v_loadu(from + i), 0x1p-25F));
#endif
    if (i == n)
        return;
    to += (size_t)i * attn_dtype_size(dtype);
#if ATTNI_BITS == 32
    attni_store_row_f32(to, dtype, 1, (const float *)from + i, n - i);
#else
    attni_store_row_f64(to, dtype, 1, (const double *)from + i, n - i);
#endif
    if (dtype != OWN)
        attni_clear_signs(to, dtype, 1, n - i);
}

/* ------------------------------------------------------------------------------- scores_decode
 *
 * Strides of k and v are in bytes from here on. */

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

/* Rows that are read next, asked for in the order of memory and spread over the arithmetic. Asked
 * for line by line down the rows, as the transposes read them, they would come in an order that no
 * prefetcher likes (22 GB/s of 36 on a Zen 5). A core with all its line buffers in use forgets what
 * it is asked for: so one line at a time, between two multiplications (keys alone: 37 GB/s of 40;
 * four at a time 34).
 *
 * One query passes over a block once, and half a block ahead stays in the first cache (f32 and
 * D = 128: 16 KB; 8 KB and 32 KB are 15 % slower). More queries pass over values several times, so
 * that a block should be there before. */
typedef struct prefetcher {
    uintptr_t line, end; /* the next one, and the end of its row: addresses, not pointers, since
                          * they may be anywhere */
    ptrdiff_t bytes;     /* from row to row */
    int64_t n;           /* bytes of a row */
    int64_t left;        /* bytes until it goes on with ... */
    const attni_next_rows *next_rows;
} prefetcher;

V_INLINE prefetcher prefetch_stream(const attni_next_rows *next_rows, const char *rows,
                                    ptrdiff_t bytes, int64_t n, int count, const int nr)
{
    const int most = nr == 1 ? ATTNI_BLOCK / 2 : ATTNI_BLOCK, before = count < most ? count : most;
    const uintptr_t line = (uintptr_t)rows + (uintptr_t)(before * bytes);
    /* rows without gaps are one long row */
    const uintptr_t end = bytes == n ? UINTPTR_MAX : line + (uintptr_t)n;
    return (prefetcher){line, end, bytes, n, (count - before) * n, next_rows};
}

/* Before up to so many lines are asked for. */
V_INLINE void prefetch_begin(prefetcher *a, const int lines)
{
    if (a->left <= 0) {
        *a = prefetch_stream(a->next_rows, a->next_rows->rows, a->next_rows->bytes, a->next_rows->n,
                             0, 0);
        a->left = INT64_MAX;
    }
    a->left -= 64 * lines;
}

V_INLINE void prefetch_line(const prefetcher *a, const int line)
{
    __builtin_prefetch((const void *)(a->line + 64 * (uintptr_t)line));
}

/* After so many. */
V_INLINE void prefetch_end(prefetcher *a, const int lines)
{
    a->line += 64 * (uintptr_t)lines;
    if (a->line >= a->end) {
        a->line = a->end + (uintptr_t)(a->bytes - a->n);
        a->end += (uintptr_t)a->bytes;
    }
}

/* Compilers would bring them together. */
#define PREFETCH_NOW(a) __asm__ volatile("" : "+r"((a)->line))

/* Components of a single query stand side by side: its lane of qt would fill the first cache. */
#define QT_LD(nr) ((nr) > 1 ? V_LANES : 1)

/* s[r] += sum over the components of k[j][d] * qt[d][r] in a line of 64 bytes of each of V_LANES
 * keys, which are the lanes. Halves are turned in pairs, as one element each. */
V_INLINE void scores_decode_line(vec *s, const R *qt, const char *k, ptrdiff_t bytes,
                                 prefetcher *next, const attn_dtype dtype, const int nr)
{
    enum { each = LINE_OF_R / V_LANES, step = V_LANES < 4 ? V_LANES : 4 };
    const v_rows rows = v_rows_at(k, bytes);
    prefetch_begin(next, V_LANES);
    UNROLL for (int c = 0; c < LINE_OF_R; c += V_COLUMNS)
    {
        vec kt[V_COLUMNS];
        v_load_transposed(kt, &rows, c * (int)sizeof(R));
        UNROLL for (int u = 0; u < V_COLUMNS; u++)
        {
            const R *q = qt + (dtype == OWN ? c + u : 2 * (c + u)) * QT_LD(nr);
            if (dtype == OWN) {
                FOR_R s[r] = v_fma(kt[u], v_bcast(q + r), s[r]);
            } else {
#ifdef V_HALVES
                const vec first = dtype == ATTN_BF16 ? v_low_bf16(kt[u]) : v_low_f16(kt[u]);
                const vec second = dtype == ATTN_BF16 ? v_high_bf16(kt[u]) : v_high_f16(kt[u]);
                FOR_R s[r] = v_fma(first, v_bcast(q + r), s[r]);
                FOR_R s[r] = v_fma(second, v_bcast(q + QT_LD(nr) + r), s[r]);
#endif
            }
            if ((c + u) % each == 0) {
                PREFETCH_NOW(next);
                prefetch_line(next, (c + u) / each % step);
                if ((c + u) / each % step == step - 1)
                    prefetch_end(next, step);
            }
        }
    }
}

/* kt[u]: component u of V_LANES keys, of which `keys` are there, and n components. */
V_INLINE void turn_rest(vec kt[V_LANES], const char *k, ptrdiff_t bytes, const attn_dtype dtype,
                        int keys, int n)
{
    for (int j = 0; j < V_LANES; j++)
        kt[j] = j < keys ? load_as(k + j * bytes, dtype, n) : v_set1(0);
    v_transpose(kt);
}

/* The same, here once: in each of the kernels it would be 45 KB. The usual case, one query and a
 * few keys past a block, takes 4 % longer so (12 heads of 33 keys). */
static __attribute__((noinline)) void turn_any_rest(vec kt[V_LANES], const char *k, ptrdiff_t bytes,
                                                    attn_dtype dtype, int keys, int n)
{
    vec r[V_LANES];
    turn_rest(r, k, bytes, dtype, keys, n);
    UNROLL for (int j = 0; j < V_LANES; j++) kt[j] = r[j];
}

/* The same where less than a line is there: `keys` rows of D components. */
V_INLINE void scores_decode_rest(vec *s, const R *qt, const char *k, ptrdiff_t bytes,
                                 const attn_dtype dtype, int keys, int D, const int nr,
                                 const int groups)
{
    for (int d = 0; d < D; d += V_LANES) {
        const int n = D - d < V_LANES ? D - d : V_LANES;
        vec kt[V_LANES];
        const char *from = k + d * SIZE_OF(dtype);
        if (nr * groups == 1 && dtype == OWN)
            turn_rest(kt, from, bytes, dtype, keys, n);
        else
            turn_any_rest(kt, from, bytes, dtype, keys, n);
        for (int u = 0; u < n; u++)
            FOR_R s[r] = v_fma(kt[u], v_bcast(qt + (d + u) * QT_LD(nr) + r), s[r]);
    }
}

/* x[r] holds the scores of query r, keys first .. in the lanes, `keys` of them. */
V_INLINE void store_decode(R *st, vec *top, const vec *x, int first, int keys, const int nr)
{
    const vmask here = v_lt(v_iota(), v_set1((R)keys));
    FOR_R top[r] = v_max(top[r], v_select(here, x[r], v_set1(-R_INF)));
    FOR_R v_store(st + r * ATTNI_BLOCK + first, x[r]);
}

/* Scores of up to `groups` x V_LANES keys. Two groups keep two chains of sums going: one alone
 * would wait for its own additions. */
V_INLINE void scores_decode_keys(R *st, vec *top, const R *qt, const char *k, ptrdiff_t bytes,
                                 prefetcher *next, const attn_dtype dtype, int first, int keys,
                                 int64_t D, const int nr, const int groups)
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
            FOR_G scores_decode_rest(s[g], q + d * ld, from + g * group * bytes + d * size, bytes,
                                     dtype, keys - g * group, n - d, nr, groups);
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

/* One block; n keys if they are one. */
V_INLINE void scores_decode_block(R *st, R *mx, const R *qt, const char *k, ptrdiff_t bytes,
                                  prefetcher *next, const attn_dtype dtype, int n, int64_t D,
                                  const int nr)
{
    enum { pair = 2 * V_LANES };
    vec top[V_MAX_DECODE_ROWS];
    FOR_R top[r] = v_set1(-R_INF);
    int j = 0;
    if (nr == 1)
        for (; j + pair <= n; j += pair)
            scores_decode_keys(st, top, qt, k + j * bytes, bytes, next, dtype, j, pair, D, nr, 2);
    for (; j < n; j += V_LANES)
        scores_decode_keys(st, top, qt, k + j * bytes, bytes, next, dtype, j,
                           n - j < V_LANES ? n - j : V_LANES, D, nr, 1);
    v_store(mx, v_set1(-R_INF));
    FOR_R mx[r] = highest(top[r]);
}

V_INLINE void scores_decode_tile(R *st, R *mx, const R *qt, const char *k, ptrdiff_t bytes,
                                 const attn_dtype dtype, int n, int64_t D,
                                 const attni_next_rows *next_rows, const int nr)
{
    prefetcher next = prefetch_stream(next_rows, k, bytes, D * SIZE_OF(dtype), n, nr);
    for (int j = 0; j == 0 || j < n; j += ATTNI_BLOCK) {
        const int b = j / ATTNI_BLOCK;
        scores_decode_block(st + b * V_MAX_DECODE_ROWS * ATTNI_BLOCK, mx + b * V_LANES, qt,
                            k + j * bytes, bytes, &next, dtype,
                            n - j < ATTNI_BLOCK ? n - j : ATTNI_BLOCK, D, nr);
    }
}

/* Runs `call` with nr, rows rounded up to 1, 4 or all, as a constant: each takes 20 KB of code.
 * Four, a usual number of heads that share keys, take 0.65 of the time of eight. */
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

/* And with the storage type as a constant. */
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

static void op_scores_decode(void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk,
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

/* l += sums of weights, chains in order of j, next to each other. */
V_INLINE void add_weights(R *l, const R *p, int n, int rows, const int nr)
{
    R sum[V_MAX_DECODE_ROWS] = {0};
    for (int j = 0; j < n; j++)
        FOR_R sum[r] += p[r * ATTNI_BLOCK + j];
    for (int r = 0; r < rows; r++)
        l[r] += sum[r];
}

/* Sums of weighted values for `groups` vectors of components, a row of them for each query, ld
 * apart; one group may be of `tail` < V_LANES components. A single query's weights are added on the
 * way, if l is not NULL: a chain of their own would hold everything up. */
V_INLINE void values_decode_group(R *sums, R *l, ptrdiff_t ld, const char *val, ptrdiff_t bytes,
                                  const attn_dtype dtype, const R *p, int in_rows, int n, int tail,
                                  int flags, prefetcher *next, const int nr, const int groups)
{
    vec s[V_MAX_DECODE_ROWS][8], sum = v_set1(0);
    FOR_R FOR_G s[r][g] = v_set1(0);
    const ptrdiff_t key = in_rows ? 1 : V_LANES, query = in_rows ? ATTNI_BLOCK : 1;
    const int whole = groups * V_LANES * SIZE_OF(dtype) / 64, lines = whole ? whole : 1;
    for (int j = 0; j < n; j++) {
        prefetch_begin(next, lines);
        vec x[8];
        FOR_G
        {
            if (g % (groups / lines) == 0) {
                PREFETCH_NOW(next);
                prefetch_line(next, g / (groups / lines));
            }
            const char *from = val + j * bytes + g * V_LANES * SIZE_OF(dtype);
            x[g] = load_as(from, dtype, groups == 1 ? tail : V_LANES);
        }
        FOR_R
        {
            const vec w = v_bcast(p + j * key + r * query);
            if (nr == 1)
                sum = v_add(sum, w);
            FOR_G s[r][g] = v_fma(x[g], w, s[r][g]);
        }
        prefetch_end(next, lines);
    }
    FOR_R FOR_G
    {
        R *to = sums + r * ld + g * V_LANES;
        v_store(to, flags & ATTNI_FIRST ? s[r][g] : v_add(v_load(to), s[r][g]));
    }
    if (nr == 1 && l)
        *l += v_first(sum);
}

V_INLINE void values_decode_block(R *sums, R *l, const char *val, ptrdiff_t bytes,
                                  const attn_dtype dtype, const R *p, int in_rows, int n,
                                  int64_t Dv, int rows, int flags, prefetcher *next, const int nr)
{
    const int size = SIZE_OF(dtype);
    const ptrdiff_t ld = (ptrdiff_t)((Dv + V_LANES - 1) / V_LANES * V_LANES);
    int64_t c = 0;
    if (in_rows && (nr > 1 || Dv == 0))
        add_weights(l, p, n, rows, nr);
    if (!in_rows)
        l = NULL;
#define STEP(groups)                                                                               \
    for (; c + (groups)*V_LANES <= Dv; c += (groups)*V_LANES)                                      \
    values_decode_group(sums + c, c ? NULL : l, ld, val + c * size, bytes, dtype, p, in_rows, n,   \
                        V_LANES, flags, next, nr, groups)
    if (nr * 8 <= V_ACCUMULATORS)
        STEP(8);
    if (nr * 4 <= V_ACCUMULATORS)
        STEP(4);
    STEP(2);
#undef STEP
    for (; c < Dv; c += V_LANES)
        values_decode_group(sums + c, c ? NULL : l, ld, val + c * size, bytes, dtype, p, in_rows, n,
                            Dv - c < V_LANES ? (int)(Dv - c) : V_LANES, flags, next, nr, 1);
}

V_INLINE void values_decode_tile(R *sums, R *l, const char *val, ptrdiff_t bytes,
                                 const attn_dtype dtype, const R *p, int in_rows, int n, int64_t Dv,
                                 int rows, int flags, const attni_next_rows *next_rows,
                                 const int nr)
{
    prefetcher next = prefetch_stream(next_rows, val, bytes, Dv * SIZE_OF(dtype), n, nr);
    for (int j = 0; j == 0 || j < n; j += ATTNI_BLOCK) {
        values_decode_block(sums, l, val + j * bytes, bytes, dtype, p, in_rows,
                            n - j < ATTNI_BLOCK ? n - j : ATTNI_BLOCK, Dv, rows, flags, &next, nr);
        p += V_MAX_DECODE_ROWS * ATTNI_BLOCK; /* of more blocks in_rows alone */
        flags = 0;
    }
}

static void op_values_decode(void *sums, void *l, const void *v, ptrdiff_t ldv, attn_dtype dtype_,
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
            R_any *to = out + i * ldo + c; /* here: without columns `out` may be no address */
            if (columns == V_LANES)
                v_storeu(to, y);
            else
                store_part(to, y, columns);
        }
    }
    return v_any(v_lt(zero, v_select(v_eq(bad, bad), zero, v_set1(1))));
}
