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

static void op_narrow(void *to_, attn_dtype dtype, const void *from_, int64_t n)
{
    char *to = to_;
    const R_any *from = from_;
    int64_t i = 0;
#ifdef V_HALVES
    if (dtype == ATTN_BF16)
        for (; i + V_LANES <= n; i += V_LANES)
            v_to_bf16(to + 2 * i, v_loadu(from + i));
    else if (dtype == ATTN_F16)
        for (; i + V_LANES <= n; i += V_LANES)
            v_to_f16(to + 2 * i, v_loadu(from + i));
#endif
    if (i == n)
        return;
    to += (size_t)i * attn_dtype_size(dtype);
#if ATTNI_BITS == 32
    attni_store_row_f32(to, dtype, 1, (const float *)from + i, n - i);
#else
    attni_store_row_f64(to, dtype, 1, (const double *)from + i, n - i);
#endif
}

/* ------------------------------------------------------------------------------- scores_few
 *
 * Strides of k and v are in bytes from here on. */

#ifndef V_COLUMNS
#define V_COLUMNS V_LANES
V_INLINE void v_load_transposed(vec r[V_LANES], const char *p, ptrdiff_t bytes)
{
    UNROLL for (int j = 0; j < V_LANES; j++) r[j] = v_loadu((const R_any *)(p + j * bytes));
    v_transpose(r);
}
#endif

/* Rows that will be read next, asked for in the order of memory and spread over the arithmetic: the
 * lines of a column of rows, which is what the transposes read, would come in an order that no
 * prefetcher likes (25 GB/s of 38 on a Zen 5), and all lines at once would leave memory idle
 * meanwhile. */
typedef struct ahead {
    const char *row;
    ptrdiff_t bytes; /* from row to row */
    int64_t at, n;   /* bytes of a row: asked for, in all */
} ahead;

/* 16 lines: as many as a line of each of 16 rows. */
V_INLINE void ask_lines(ahead *a)
{
    UNROLL for (int i = 0; i < 4; i++)
    {
        const char *p = a->row + a->at;
        __asm__("" : "+r"(p)); /* one pointer, not one for each line */
        UNROLL for (int line = 0; line < 4; line++) __builtin_prefetch(p + 64 * line);
        a->at += 256;
        a->row += a->at >= a->n ? a->bytes : 0;
        a->at = a->at >= a->n ? 0 : a->at;
    }
}

/* s[r] += sum over the components of k[j][d] * qt[d][r] in a line of 64 bytes of each of V_LANES
 * keys, which are the lanes. Halves are turned in pairs, as one element each. */
V_INLINE void scores_few_line(vec *s, const R *qt, const char *k, ptrdiff_t bytes, ahead *next,
                              const attn_dtype dtype, const int nr)
{
    ask_lines(next);
    UNROLL for (int c = 0; c < LINE_OF_R; c += V_COLUMNS)
    {
        vec kt[V_COLUMNS];
        v_load_transposed(kt, k + c * (int)sizeof(R), bytes);
        UNROLL for (int u = 0; u < V_COLUMNS; u++)
        {
            const R *q = qt + (dtype == OWN ? c + u : 2 * (c + u)) * V_LANES;
            if (dtype == OWN) {
                FOR_R s[r] = v_fma(kt[u], v_bcast(q + r), s[r]);
            } else {
#ifdef V_HALVES
                const vec first = dtype == ATTN_BF16 ? v_low_bf16(kt[u]) : v_low_f16(kt[u]);
                const vec second = dtype == ATTN_BF16 ? v_high_bf16(kt[u]) : v_high_f16(kt[u]);
                FOR_R s[r] = v_fma(first, v_bcast(q + r), s[r]);
                FOR_R s[r] = v_fma(second, v_bcast(q + V_LANES + r), s[r]);
#endif
            }
        }
    }
}

/* The same where less than a line is there: `keys` rows of D components. */
V_INLINE void scores_few_rest(vec *s, const R *qt, const char *k, ptrdiff_t bytes,
                              const attn_dtype dtype, int keys, int D, const int nr)
{
    for (int d = 0; d < D; d += V_LANES) {
        const int n = D - d < V_LANES ? D - d : V_LANES;
        vec kt[V_LANES];
        for (int j = 0; j < V_LANES; j++)
            kt[j] = j < keys ? load_as(k + j * bytes + d * SIZE_OF(dtype), dtype, n) : v_set1(0);
        v_transpose(kt);
        for (int u = 0; u < n; u++)
            FOR_R s[r] = v_fma(kt[u], v_bcast(qt + (d + u) * V_LANES + r), s[r]);
    }
}

/* Scores of up to `groups` x V_LANES keys. Two groups keep two chains of sums going: one alone
 * would wait for its own additions. */
V_INLINE void scores_few_keys(R *st, vec *top, const R *qt, const char *k, ptrdiff_t bytes,
                              ahead next, const attn_dtype dtype, int keys, int64_t D, const int nr,
                              const int groups)
{
    enum { group = V_LANES };
    const int line = 64 / SIZE_OF(dtype), size = SIZE_OF(dtype);
    vec x[2][V_LANES];
    FOR_G { UNROLL for (int i = 0; i < V_LANES; i++) x[g][i] = v_set1(0); }
    for (int64_t run = 0; run < D; run += ATTNI_RUN) {
        const int n = D - run < ATTNI_RUN ? (int)(D - run) : ATTNI_RUN;
        const char *from = k + run * size;
        const R *q = qt + run * V_LANES;
        vec s[2][V_FEW];
        FOR_G FOR_R s[g][r] = v_set1(0);
        int d = 0;
        for (; keys == groups * group && d + line <= n; d += line)
            FOR_G scores_few_line(s[g], q + d * V_LANES, from + g * group * bytes + d * size, bytes,
                                  &next, dtype, nr);
        if (d < n)
            FOR_G scores_few_rest(s[g], q + d * V_LANES, from + g * group * bytes + d * size, bytes,
                                  dtype, keys - g * group, n - d, nr);
        FOR_G FOR_R x[g][r] = run ? v_add(x[g][r], s[g][r]) : s[g][r];
    }
    FOR_G
    {
        v_transpose(x[g]);
        for (int u = 0; u < V_LANES && g * group + u < keys; u++) {
            *top = v_max(*top, x[g][u]);
            v_store(st + (g * group + u) * V_LANES, x[g][u]);
        }
    }
}

V_INLINE void scores_few_tile(R *st, R *mx, const R *qt, const char *k, ptrdiff_t bytes,
                              const attn_dtype dtype, int n, int64_t D, const attni_soon *soon,
                              const int nr)
{
    enum { pair = 2 * V_LANES };
    const ahead beyond = {soon->rows, soon->bytes, 0, soon->n};
    vec top = v_set1(-R_INF);
    int j = 0;
    if (nr <= V_FEW / 2)
        for (; j + pair <= n; j += pair) {
            const ahead more = {k + (j + pair) * bytes, bytes, 0, D * SIZE_OF(dtype)};
            scores_few_keys(st + j * V_LANES, &top, qt, k + j * bytes, bytes,
                            j + pair < n ? more : beyond, dtype, pair, D, nr, 2);
        }
    for (; j < n; j += V_LANES) {
        const ahead more = {k + (j + pair) * bytes, bytes, 0, D * SIZE_OF(dtype)};
        scores_few_keys(st + j * V_LANES, &top, qt, k + j * bytes, bytes,
                        j + pair < n ? more : beyond, dtype, n - j < V_LANES ? n - j : V_LANES, D,
                        nr, 1);
    }
    v_store(mx, top);
}

/* Runs `call` with nr, rows rounded up to 1 or all, as a constant: each takes 20 KB of code. */
#define WITH_NR(rows, call)                                                                        \
    do {                                                                                           \
        if ((rows) <= 1) {                                                                         \
            enum { nr = 1 };                                                                       \
            call;                                                                                  \
        } else {                                                                                   \
            enum { nr = V_FEW };                                                                   \
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

static void op_scores_few(void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk,
                          attn_dtype dtype_, int n, int64_t D, int rows, const attni_soon *soon)
{
    WITH_DTYPE(dtype_, WITH_NR(rows, scores_few_tile(st, mx, qt, k, ldk * SIZE_OF(dtype), dtype, n,
                                                     D, soon, nr)));
}

/* ------------------------------------------------------------------------------- values_few */

/* Sums of weighted values for `groups` vectors of components, a row of them for each query, ld
 * apart; one group may be of `tail` < V_LANES components. */
V_INLINE void values_few_group(R *sums, ptrdiff_t ld, const char *val, ptrdiff_t bytes,
                               const attn_dtype dtype, const R *p, int n, int tail, int flags,
                               attni_soon soon, const int nr, const int groups)
{
    vec s[V_FEW][8];
    FOR_R FOR_G s[r][g] = v_set1(0);
    const char *ask = val + n / 2 * bytes; /* half a block ahead */
    ptrdiff_t apart = bytes;
    for (int j = 0; j < n; j++, ask += apart) {
        if (j == n - n / 2)
            ask = soon.rows, apart = soon.bytes;
        vec x[8];
        FOR_G
        {
            const char *from = val + j * bytes + g * V_LANES * SIZE_OF(dtype);
            x[g] = load_as(from, dtype, groups == 1 ? tail : V_LANES);
            if (dtype == OWN || g % 2 == 0)
                __builtin_prefetch(ask + g * V_LANES * SIZE_OF(dtype));
        }
        FOR_R
        {
            const vec w = v_bcast(p + j * V_LANES + r);
            FOR_G s[r][g] = v_fma(x[g], w, s[r][g]);
        }
    }
    FOR_R FOR_G
    {
        R *to = sums + r * ld + g * V_LANES;
        v_store(to, flags & ATTNI_FIRST ? s[r][g] : v_add(v_load(to), s[r][g]));
    }
}

/* Rows of sums into lanes: of the total, or of acc. */
V_INLINE void turn_sums(R *acc, R *total, const R *factors, const R *sums, ptrdiff_t ld, int64_t Dv,
                        int flags, const int nr)
{
    for (int64_t c = 0; c < Dv; c += V_LANES) {
        vec x[V_LANES];
        UNROLL for (int i = 0; i < V_LANES; i++) x[i] =
            i < nr ? v_load(sums + (i < nr ? i : 0) * ld + c) : v_set1(0);
        v_transpose(x);
        for (int u = 0; u < V_LANES && c + u < Dv; u++) {
            R *t = total + (c + u) * V_LANES;
            if (flags & ATTNI_LAST)
                v_store(t, joined(v_load(t), x[u], factors, V_LANES));
            else
                v_store(acc + (c + u) * V_LANES, x[u]);
        }
    }
}

V_INLINE void values_few_tile(R *sums, R *acc, R *total, const R *factors, const char *val,
                              ptrdiff_t bytes, const attn_dtype dtype, const R *p, int n,
                              int64_t Dv, int flags, const attni_soon *soon_, const int nr)
{
    const int size = SIZE_OF(dtype);
    const ptrdiff_t ld = (ptrdiff_t)((Dv + V_LANES - 1) / V_LANES * V_LANES);
    attni_soon soon = *soon_;
    int64_t c = 0;
#define STEP(groups)                                                                               \
    for (; c + (groups)*V_LANES <= Dv;                                                             \
         c += (groups)*V_LANES, soon.rows = (const char *)soon.rows + (groups)*V_LANES * size)     \
    values_few_group(sums + c, ld, val + c * size, bytes, dtype, p, n, V_LANES, flags, soon, nr,   \
                     groups)
    if (nr * 8 <= V_ACCUMULATORS)
        STEP(8);
    if (nr * 4 <= V_ACCUMULATORS)
        STEP(4);
    STEP(2);
    STEP(1);
#undef STEP
    if (c < Dv)
        values_few_group(sums + c, ld, val + c * size, bytes, dtype, p, n, (int)(Dv - c), flags,
                         soon, nr, 1);
    if (flags & (ATTNI_LAST | ATTNI_TURN))
        turn_sums(acc, total, factors, sums, ld, Dv, flags, nr);
}

static void op_values_few(void *sums, void *acc, void *total, const void *factors, const void *v,
                          ptrdiff_t ldv, attn_dtype dtype_, const void *p, int n, int64_t Dv,
                          int rows, int flags, const attni_soon *soon)
{
    WITH_DTYPE(dtype_,
               WITH_NR(rows, values_few_tile(sums, acc, total, factors, v, ldv * SIZE_OF(dtype),
                                             dtype, p, n, Dv, flags, soon, nr)));
}
