/* The decode path. It computes the products of a few queries; each query is a row. unit_dot.c and
 * unit_amx.c include this file; bf16_decode.c and grad/backward_bf16.c call the functions.
 *
 *   row_scores                   st = Q K^T. A SIMD lane holds a key. In memory, keys are rows, or
 *                                interleaved (kernel.h)
 *   row_values                   sums += P V. A SIMD lane holds a component of a value
 *   row_values_and_next_scores   one query: values of a chunk and scores of the next, in one loop
 *   row_products                 what few queries add to dk and dv
 *
 * The terms of a sum are added in the same order as in the tiles of the same unit (dot products or
 * matrix unit). So a query has the same bits alone as among many. The including file defines this
 * order by a type and six functions:
 *
 *   chain                      16 sums
 *   chain_from(x)              a chain that starts at the sums x
 *   chain_dot(c, a, b)         sum i += a[2i] b[2i] + a[2i+1] b[2i+1]
 *   chain_end_run(c)           ends a run of RUN pairs: 32 components of a key, or 32 keys. The
 *                              matrix unit adds one run at a time
 *   chain_sums(c)              the sums, after the last pair
 *   chain_mode()               sets the mode of float arithmetic that the chains need
 *   chain_mode_end(mode)       restores the mode that chain_mode() returned
 *
 * and two constants: MAX_DECODE_ROWS, the most queries, 4 or 16; and CHAINS_HAVE_A_MODE, 0 if
 * chain_mode() does nothing.
 */
#ifndef ATTNI_BF16_ROWS_H
#define ATTNI_BF16_ROWS_H

#define RUN 16 /* pairs that one product of the matrix unit adds */
#define FOR_R UNROLL for (int r = 0; r < nr; r++)

/* Rows that are prefetched in address order, a few lines at a time between arithmetic
 * (kernel/prefetch.inc.h says why). After the last rows of a chunk, the first of the next chunk
 * usually follow. */
typedef struct prefetcher {
    uintptr_t row;   /* an address, not a pointer: it may lie outside any object */
    ptrdiff_t bytes; /* from row to row */
    ptrdiff_t at;    /* bytes of the current row that were prefetched */
    ptrdiff_t n;     /* bytes of a row */
} prefetcher;

/* Starts a stream `rows` rows after `from`; each row has n bytes. Rows without gaps are one long
 * row. */
INLINE prefetcher prefetch_stream(const void *from, int rows, ptrdiff_t bytes, ptrdiff_t n)
{
    return (prefetcher){(uintptr_t)from + (uintptr_t)(rows * bytes), bytes, 0,
                        bytes == n ? PTRDIFF_MAX / 2 : n};
}

/* Prefetches `lines` lines from address p on: into L2 if `l2`, else into L1. If l2 is a variable,
 * the first assembler statement keeps the compiler from making two copies of the loop around this
 * function, one for each level. For a single query whose keys and values are rows, l2 is a
 * constant, and no test is compiled: with a test in each step, calls whose data come from memory
 * took 7 to 10 % longer on a Zen 5. The second statement makes the compiler compute all
 * addresses from one register. */
INLINE void prefetch_at(uintptr_t p, const int lines, bool l2)
{
    if (!__builtin_constant_p(l2))
        __asm__ volatile("" : "+r"(l2));
    __asm__ volatile("" : "+r"(p));
    if (l2)
        UNROLL for (int i = 0; i < lines; i++)
            __builtin_prefetch((const void *)(p + 64 * (uintptr_t)i), 0, 2);
    else
        UNROLL for (int i = 0; i < lines; i++)
            __builtin_prefetch((const void *)(p + 64 * (uintptr_t)i));
}

INLINE void prefetch_lines(prefetcher *a, const int lines, bool l2)
{
    prefetch_at(a->row + (uintptr_t)a->at, lines, l2);
    a->at += 64 * lines;
    a->row += a->at >= a->n ? (uintptr_t)a->bytes : 0;
    a->at = a->at >= a->n ? 0 : a->at;
}

#define INTERLEAVED_PREFETCH 8192 /* bytes by which the prefetch of interleaved keys is ahead */

/* Transposes the last n < 8 components of 16 keys: kt[i] is components 2i and 2i+1. Not inlined,
 * so its code exists once. */
static __attribute__((noinline)) void transpose_rest(__m512 kt[16], const char *k, ptrdiff_t ld,
                                                     int n)
{
    __m512 r[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] =
        as_float(_mm512_maskz_loadu_epi16(first32(n), k + i * ld));
    v_transpose(r);
    UNROLL for (int i = 0; i < 16; i++) kt[i] = r[i];
}

/* Scores of groups x 16 keys from key j on; the keys are rows. */
INLINE void score_row_keys(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int j, int D,
                           const int nr, const int groups, const bool l2)
{
    const int distance = l2 ? k->l2_ahead : ROWS / 2;
    const bool inside = j + distance < k->n;
    const char *from = (const char *)k->at + j * k->ld;
    prefetcher next = prefetch_stream(inside ? from : k->next, inside ? distance : j % distance,
                                      k->ld, 2 * (ptrdiff_t)D);
    chain s[2][MAX_DECODE_ROWS];
    UNROLL for (int g = 0; g < groups; g++) FOR_R s[g][r] = chain_from(_mm512_setzero_ps());
    int d = 0;
    NO_UNROLL for (; d + 2 * V_COLUMNS <= D; d += 2 * V_COLUMNS)
    {
        UNROLL for (int g = 0; g < groups; g++)
        {
            const v_rows rows = v_rows_at(from + g * 16 * k->ld, k->ld);
            __m512 kt[V_COLUMNS];
            v_load_transposed(kt, &rows, 0);
            UNROLL for (int i = 0; i < V_COLUMNS; i++) FOR_R s[g][r] =
                chain_dot(s[g][r], as_bits(kt[i]), pair_at(q + 2 * (i * nr + r)));
            prefetch_lines(&next, V_COLUMNS, l2);
        }
        if (d % (2 * RUN) == 2 * (RUN - V_COLUMNS))
            UNROLL for (int g = 0; g < groups; g++) FOR_R s[g][r] = chain_end_run(s[g][r]);
        from += 4 * V_COLUMNS;
        q += 2 * V_COLUMNS * nr;
    }
    UNROLL for (int g = 0; g < groups && d < D; g++)
    {
        __m512 kt[16];
        transpose_rest(kt, from + g * 16 * k->ld, k->ld, D - d);
        for (int i = 0; i < (D - d + 1) / 2; i++)
            FOR_R s[g][r] = chain_dot(s[g][r], as_bits(kt[i]), pair_at(q + 2 * (i * nr + r)));
    }
    UNROLL for (int g = 0; g < groups; g++)
        FOR_R _mm512_store_ps(st + r * ATTNI_CHUNK + j + g * 16, chain_sums(s[g][r]));
}

/* Scores of one or two groups of interleaved keys. The lines of a group are read in address order.
 */
INLINE void score_row_group(float *st, const attni_bf16 *q, const char *line, uintptr_t prefetch,
                            bool l2, int pairs, const int nr, const int groups)
{
    const ptrdiff_t bytes = (ptrdiff_t)pairs * 64;
    chain s[2][MAX_DECODE_ROWS];
    UNROLL for (int g = 0; g < groups; g++) FOR_R s[g][r] = chain_from(_mm512_setzero_ps());
    for (int d = 0; d < pairs; d++, line += 64, q += 2 * nr) {
        prefetch_at(prefetch, groups, l2);
        prefetch += 64 * (uintptr_t)groups;
        FOR_R
        {
            const __m512i x = pair_at(q + 2 * r);
            UNROLL for (int g = 0; g < groups; g++) s[g][r] =
                chain_dot(s[g][r], _mm512_load_si512(line + g * bytes), x);
        }
        if (d % RUN == RUN - 1)
            UNROLL for (int g = 0; g < groups; g++) FOR_R s[g][r] = chain_end_run(s[g][r]);
    }
    UNROLL for (int g = 0; g < groups; g++)
        FOR_R _mm512_store_ps(st + r * ATTNI_CHUNK + g * 16, chain_sums(s[g][r]));
}

/* For 2 to 12 queries, two groups are scored at once. With one group there are too few independent
 * sums, and each addition would wait for the one before. With keys in L2, four queries take 22 %
 * less time and eight 12 %; from memory, 3 to 7 %. A single query would be 5 to 15 % slower from
 * memory, because two groups are two address streams. The sums of 16 queries and two groups would
 * need all registers. */
INLINE void score_interleaved_rows(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int D,
                                   const int nr)
{
    const int groups = (k->n + 15) / 16, pairs = (D + 1) / 2;
    const ptrdiff_t bytes = (ptrdiff_t)pairs * 64, all = groups * bytes;
    for (int g = 0, two; g < groups; g += 1 + two) {
        const ptrdiff_t at = g * bytes, later = at + INTERLEAVED_PREFETCH;
        const char *line = (const char *)k->at + at;
        const uintptr_t prefetch = later < all ? (uintptr_t)k->at + (uintptr_t)later
                                               : (uintptr_t)k->next + (uintptr_t)(later - all);
        two = nr > 1 && nr <= 12 && g + 1 < groups;
        if (two)
            score_row_group(st + g * 16, q, line, prefetch, k->l2_ahead, pairs, nr, 2);
        else
            score_row_group(st + g * 16, q, line, prefetch, k->l2_ahead, pairs, nr, 1);
    }
}

/* Scores of all keys. If keys are rows, a single query scores two groups at once, because one group
 * has too few independent sums. If k->one_stream is set, it scores one group after the other,
 * because a Zen 4 reads keys from memory faster in this way (docs/decisions/0047). */
INLINE void score_rows_of(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int D,
                          const int nr, const bool l2)
{
    int j = 0;
    if (k->interleaved) {
        score_interleaved_rows(st, q, k, D, nr);
        return;
    }
    if (nr == 1 && !k->one_stream)
        for (; j + 32 <= k->n; j += 32)
            score_row_keys(st, q, k, j, D, nr, 2, l2);
    for (; j < k->n; j += 16)
        score_row_keys(st, q, k, j, D, nr, 1, l2);
}

/* Runs `call` with nr as a constant. If `level` is a constant, so is l2. */
#define WITH(rows, level, call)                                                                    \
    do {                                                                                           \
        enum { nr = rows };                                                                        \
        const bool l2 = level;                                                                     \
        call;                                                                                      \
    } while (0)

/* Runs `call` with nr, the number of queries rounded up to 1, 4 or 8 (8 also for more). A unit that
 * decodes at most 4 queries has no code for 8. */
#define WITH_NR(queries, level, call)                                                              \
    do {                                                                                           \
        if ((queries) > 4 && MAX_DECODE_ROWS > 4)                                                  \
            WITH(8, level, call);                                                                  \
        else if ((queries) > 1)                                                                    \
            WITH(4, level, call);                                                                  \
        else if (level)                                                                            \
            WITH(1, true, call);                                                                   \
        else                                                                                       \
            WITH(1, false, call);                                                                  \
    } while (0)

static void row_scores(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int D, int queries)
{
    const unsigned mode = chain_mode();
#if MAX_DECODE_ROWS > 8
    if (queries > 12)
        score_rows_of(st, q, k, D, 16, k->l2_ahead);
    else if (queries > 8)
        score_rows_of(st, q, k, D, 12, k->l2_ahead);
    else
#endif
        WITH_NR(queries, k->l2_ahead > 0, score_rows_of(st, q, k, D, nr, l2));
    chain_mode_end(mode);
}

/* Restores the order of 32 components after _mm512_unpack*_epi16; disorder_sums() is the
 * inverse. */
INLINE void order_sums(__m512 s[2])
{
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __m512 first = _mm512_permutex2var_ps(s[0], low, s[1]);
    s[1] = _mm512_permutex2var_ps(s[0], high, s[1]);
    s[0] = first;
}

INLINE void disorder_sums(__m512 s[2])
{
    const __m512i even =
        _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(4));
    const __m512 first = _mm512_permutex2var_ps(s[0], even, s[1]);
    s[1] = _mm512_permutex2var_ps(s[0], odd, s[1]);
    s[0] = first;
}

/* Loads groups x 32 components of two rows, as pairs. In the last group, the mask `last` selects
 * the components. */
INLINE void load_pairs(__m512i pair[8], const char *first, const char *second, __mmask32 last,
                       const int groups)
{
    UNROLL for (int g = 0; g < groups; g++)
    {
        const __mmask32 here = g < groups - 1 ? 0xffffffff : last;
        const __m512i a = _mm512_maskz_loadu_epi16(here, first + g * 64);
        const __m512i b = _mm512_maskz_loadu_epi16(here, second + g * 64);
        pair[2 * g] = _mm512_unpacklo_epi16(a, b);
        pair[2 * g + 1] = _mm512_unpackhi_epi16(a, b);
    }
}

INLINE void begin_sums(chain s[8], const float *sums, const bool first, const int groups)
{
    UNROLL for (int g = 0; g < groups; g++)
    {
        __m512 x[2] = {first ? _mm512_setzero_ps() : _mm512_load_ps(sums + g * 32),
                       first ? _mm512_setzero_ps() : _mm512_load_ps(sums + g * 32 + 16)};
        disorder_sums(x);
        s[2 * g] = chain_from(x[0]);
        s[2 * g + 1] = chain_from(x[1]);
    }
}

INLINE void end_sums(const chain s[8], float *sums, const int groups)
{
    UNROLL for (int g = 0; g < groups; g++)
    {
        __m512 x[2] = {chain_sums(s[2 * g]), chain_sums(s[2 * g + 1])};
        order_sums(x);
        _mm512_store_ps(sums + g * 32, x[0]);
        _mm512_store_ps(sums + g * 32 + 16, x[1]);
    }
}

/* Adds the values of keys j and j + 1, times their weights w. */
INLINE void add_pairs(chain s[8], const __m512i pair[8], __m512i w, int j, const int groups)
{
    UNROLL for (int g = 0; g < 2 * groups; g++) s[g] = chain_dot(s[g], pair[g], w);
    if (j % (2 * RUN) == 2 * RUN - 2)
        UNROLL for (int g = 0; g < 2 * groups; g++) s[g] = chain_end_run(s[g]);
}

/* Adds both weights of a pair, the first one first. */
INLINE __m512 add_weights(__m512 sum, __m512i w)
{
    sum = _mm512_add_ps(sum, as_float(_mm512_slli_epi32(w, 16)));
    return _mm512_add_ps(sum, as_float(_mm512_and_si512(w, high_half())));
}

/* Adds groups x 32 components of the values, from component c on; fewer if Dv ends before. */
INLINE void value_row_part(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                           prefetcher *block, int64_t c, int64_t Dv, const bool first, const int nr,
                           const int groups, const bool l2)
{
    const __mmask32 last_group = first32(Dv - c - 32 * (groups - 1));
    const int64_t apart = attni_bf16_padded(Dv);
    const char *at = (const char *)v->at + 2 * c;
    const uintptr_t ld = (uintptr_t)v->ld, next = (uintptr_t)v->next + 2 * (uintptr_t)c;
    const int distance = l2 ? v->l2_ahead : ROWS / 2;
    uintptr_t prefetch = (uintptr_t)at + (uintptr_t)distance * ld;
    /* from this row on, `next` is prefetched */
    const int last = v->n > distance ? (v->n - distance + 1) / 2 * 2 : 0;
    __m512 sum[8];
    chain s[8][8];
    sums += c;
    FOR_R
    {
        sum[r] = _mm512_set1_ps(l[r]);
        begin_sums(s[r], sums + r * apart, first, groups);
    }
    for (int j = 0; j < v->n; j += 2, at += 2 * v->ld, prefetch += 2 * ld) {
        /* If n is odd, the last row is loaded twice; the weight of the second is 0. */
        const char *second = j + 1 < v->n ? at + v->ld : at;
        __m512i pair[8];
        prefetch = j == last ? next : prefetch;
        if (nr > 1) {
            prefetch_lines(block, 2 * groups, l2);
        } else {
            prefetch_at(prefetch, groups, l2);
            prefetch_at(prefetch + ld, groups, l2);
        }
        load_pairs(pair, at, second, last_group, groups);
        FOR_R
        {
            const __m512i w = pair_at(p + r * ATTNI_CHUNK + j);
            add_pairs(s[r], pair, w, j, groups);
            /* The weights are summed in the pass over the first components (c == 0), in this loop:
             * its other instructions run while an addition waits for the one before. */
            if (c == 0)
                sum[r] = add_weights(sum[r], w);
        }
    }
    FOR_R
    {
        end_sums(s[r], sums + r * apart, groups);
        l[r] = _mm512_cvtss_f32(sum[r]);
    }
}

INLINE void value_rows_of(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                          int64_t Dv, bool first, const int nr, const bool l2)
{
    /* the most groups of 32 sums for each query that fit in registers */
    const int most = nr == 1 ? 4 : nr <= MAX_DECODE_ROWS / 4 ? 2 : 1;
    int64_t c = 0;
    prefetcher block = prefetch_stream(v->next, 0, v->ld, 2 * (ptrdiff_t)Dv);
#define STEP(groups)                                                                               \
    for (; (groups) <= most && Dv - c > 32 * ((groups)-1); c += 32 * (groups))                     \
    value_row_part(sums, l, p, v, &block, c, Dv, first, nr, groups, l2)
    STEP(4);
    STEP(3);
    STEP(2);
    STEP(1);
#undef STEP
}

static void row_values(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                       int64_t Dv, bool first, int queries)
{
    /* With several queries, the values are read in several passes, because the sums of all
     * components do not fit in registers. So one block of values is taken at a time, which stays in
     * L1, and the next block is prefetched meanwhile in address order. From memory this is 15 to
     * 25 % faster than to prefetch, in each pass, only the components that it reads. */
    const int part = queries > 1 ? ROWS : v->n;
    const unsigned mode = chain_mode();
    for (int j = 0; j < v->n; j += part) {
        attni_bf16_rows x = *v;
        x.at = (const char *)v->at + j * v->ld;
        x.n = v->n - j < part ? v->n - j : part;
        x.next = j + part < v->n ? (const char *)x.at + part * v->ld : v->next;
        for (int r = 0; r < queries; r += 8)
            WITH_NR(queries - r, v->l2_ahead > 0,
                    value_rows_of(sums + r * attni_bf16_padded(Dv), l + r, p + r * ATTNI_CHUNK + j,
                                  &x, Dv, first && j == 0, nr, l2));
    }
    chain_mode_end(mode);
}

/* For each key j < n: row j of `to` = row j of x times the matrix `rows`; += if `add`. Only 16 *
 * vectors components are computed; `to` and `rows` begin at the first of them.
 *   to     rows of ldto floats
 *   x      a row for each key, ldx elements apart: its weights or gradients, one for each query
 *   rows   [pairs][width][2]: pairs of rows of dout, or of q
 * If `pairs` is a constant, the compiler unrolls the loop over it. */
INLINE void row_products_of(float *to, int64_t ldto, const attni_bf16 *x, ptrdiff_t ldx,
                            const attni_bf16 *rows, const int pairs, int n, int64_t width, bool add,
                            const int vectors)
{
    for (int j = 0; j < n; j++, x += ldx, to += ldto) {
        chain s[4];
        UNROLL for (int g = 0; g < vectors; g++) s[g] = chain_from(_mm512_setzero_ps());
        for (int i = 0; i < pairs; i++)
            UNROLL for (int g = 0; g < vectors; g++) s[g] =
                chain_dot(s[g], pair_at(x + 2 * i),
                          _mm512_load_si512(rows + 2 * i * width + 32 * g));
        UNROLL for (int g = 0; g < vectors; g++)
        {
            const __m512 sum = chain_sums(s[g]);
            _mm512_store_ps(to + 16 * g,
                            add ? _mm512_add_ps(_mm512_load_ps(to + 16 * g), sum) : sum);
        }
    }
}

/* Calls row_products_of() between chain_mode() and chain_mode_end(), for the components from c on:
 * 64, or 32 if only these are left. `to` begins at component c, `rows` at component 0. */
INLINE void row_products_at(float *to, int64_t ldto, const attni_bf16 *x, ptrdiff_t ldx,
                            const attni_bf16 *rows, int pairs, int n, int64_t width, bool add,
                            int64_t c)
{
    const unsigned mode = chain_mode();
    rows += 2 * c;
    if (c + 64 > width)
        row_products_of(to, ldto, x, ldx, rows, pairs, n, width, add, 2);
    else if (pairs == 1)
        row_products_of(to, ldto, x, ldx, rows, 1, n, width, add, 4);
    else
        row_products_of(to, ldto, x, ldx, rows, pairs, n, width, add, 4);
    chain_mode_end(mode);
}

/* sums[j][c + i] += products[j][i], for n rows j and up to 64 components i. Rows of `sums` are
 * `width` apart, those of `products` 64. */
INLINE void add_row_products(float *sums, const float *products, int n, int64_t width, int64_t c)
{
    for (int j = 0; j < n; j++)
        for (int64_t i = c; i < width && i < c + 64; i += 16) {
            float *to = sums + j * width + i;
            _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to),
                                              _mm512_load_ps(products + 64 * j + i - c)));
        }
}

/* sums [n][width] = products; += if `add`. If CHAINS_HAVE_A_MODE, products are stored first, and
 * added to the sums after chain_mode_end(): in the mode of the matrix unit, a denormal sum would
 * become 0. multiply() of unit_amx.c adds in the same way, so that a denormal sum has the same bits
 * with few queries as with many. */
static void row_products(float *sums, const attni_bf16 *x, ptrdiff_t ldx, const attni_bf16 *rows,
                         int pairs, int n, int64_t width, bool add)
{
    enum { KEYS = 32 };
    float products[64 * KEYS] __attribute__((aligned(64)));
    const bool add_after = add && CHAINS_HAVE_A_MODE;
    for (int64_t c = 0; c < width; c += 64) {
        if (!add_after)
            row_products_at(sums + c, width, x, ldx, rows, pairs, n, width, add, c);
        for (int j = 0; add_after && j < n; j += KEYS) {
            const int keys = n - j < KEYS ? n - j : KEYS;
            row_products_at(products, 64, x + j * ldx, ldx, rows, pairs, keys, width, false, c);
            add_row_products(sums + j * width, products, keys, width, c);
        }
    }
}

/* ------------------------------------------------- keys of a chunk and values of the one before */

/* The loop over the values of 16 keys is not unrolled: if its body has more than about 16 loads,
 * the hardware prefetcher no longer recognises the two streams of keys and values, which are read
 * at three quarters of the rate (docs/decisions/0014). There is no software prefetch either: at
 * distances of 1 to 8 KiB it made the loop 5 to 15 % slower. */
INLINE void values_and_next_scores_of(const attni_bf16_values_and_next_scores *x, const int groups)
{
    const char *k = x->k, *v = x->v;
    const attni_bf16 *p = x->p;
    chain s[8];
    __m512 sum = _mm512_set1_ps(*x->l);
    begin_sums(s, x->sums, x->first, groups);
    for (int j = 0; j < x->n; j += 16) {
        const attni_bf16 *q = x->q;
        chain t = chain_from(_mm512_setzero_ps());
        NO_UNROLL for (int i = 0; i < 8; i++, v += 2 * x->ld, p += 2)
        {
            UNROLL for (int g = 0; g < 2 * groups; g++, k += 64, q += 2)
            {
                t = chain_dot(t, _mm512_load_si512(k), pair_at(q));
                if ((i * 2 * groups + g) % RUN == RUN - 1)
                    t = chain_end_run(t);
            }
            const __m512i w = pair_at(p);
            __m512i pair[8];
            load_pairs(pair, v, v + x->ld, 0xffffffff, groups);
            add_pairs(s, pair, w, j + 2 * i, groups);
            sum = add_weights(sum, w);
        }
        _mm512_store_ps(x->st + j, chain_sums(t));
    }
    end_sums(s, x->sums, groups);
    *x->l = _mm512_cvtss_f32(sum);
}

static bool row_values_and_next_scores(const attni_bf16_values_and_next_scores *x)
{
    if (x->n % 16 != 0 || (x->D != 64 && x->D != 96 && x->D != 128))
        return false;
    const unsigned mode = chain_mode();
    if (x->D == 64)
        values_and_next_scores_of(x, 2);
    else if (x->D == 96)
        values_and_next_scores_of(x, 3);
    else
        values_and_next_scores_of(x, 4);
    chain_mode_end(mode);
    return true;
}

#endif
