/* hide, pack_bits and scan: the operations that apply masks to a tile of scores, and that read
 * masks. */
#include "check_case.h"

#include <math.h>
#include <string.h>

/* Returns `bytes` bytes that end where the memory ends. */
static char *place_bytes(check_case *c, int64_t bytes)
{
    const int64_t count = (bytes + (int64_t)c->size - 1) / (int64_t)c->size;
    return (char *)check_free(c, count) + count * (int64_t)c->size - bytes;
}

void check_hide(check_case *c)
{
    const int n = (int)check_between(c, 0, ATTNI_BLOCK);
    const check_content content = check_any_content(c);
    check_describe(c, "n=%d", n);
    const int64_t count = (int64_t)n * c->W;
    void *st = check_tile(c, n), *mx = check_tile(c, 1);
    check_fill(c, st, count, content);
    uint64_t visible[ATTNI_BLOCK];
    for (int j = 0; j < n; j++)
        visible[j] = check_chance(c, 20)   ? 0
                     : check_chance(c, 20) ? UINT64_MAX
                                           : check_random(c) | (check_random(c) & check_random(c));

    double *want = check_copy(c, st, count), *top = check_array(c, c->W);
    for (int i = 0; i < c->W; i++)
        top[i] = -INFINITY;
    for (int64_t at = 0; at < count; at++) {
        const int i = (int)(at % c->W);
        if (!(visible[at / c->W] >> i & 1))
            want[at] = -INFINITY;
        if (isnan(want[at]) || isnan(top[i]))
            top[i] = NAN; /* the result for such a column is unspecified */
        else
            top[i] = fmax(top[i], want[at]);
    }
    c->kernels->hide(st, mx, visible, n, c->nv);
    check_expect_same(c, "st", st, want, count, c->W, CHECK_ZERO_SIGNED);
    for (int i = 0; i < c->W; i++)
        if (isnan(top[i]))
            top[i] = check_get(c, mx, i);
    check_expect_same(c, "mx", mx, top, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->hide(st, mx, visible, n, c->nv));
}

void check_pack_bits(check_case *c)
{
    const int rows = (int)check_between(c, 0, 64);
    const int n = check_chance(c, 40) ? 64 : (int)check_between(c, 1, 64);
    const ptrdiff_t ld = check_chance(c, 20) ? 0 : (ptrdiff_t)(n + check_between(c, 0, 70));
    check_describe(c, "rows=%d n=%d ld=%td", rows, n, ld);
    const int64_t bytes = rows > 0 ? (rows - 1) * (int64_t)ld + n : 0;
    char *p = place_bytes(c, bytes);
    for (int64_t at = 0; at < bytes; at++)
        p[at] = check_chance(c, 50) ? 0 : check_chance(c, 70) ? 1 : (char)check_random(c);

    uint64_t to[65];
    memset(to, 0x5a, sizeof to);
    c->kernels->pack_bits(to, p, ld, rows, n);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 64; j++) {
            const bool want = j < n && p[i * ld + j] != 0;
            if ((to[i] >> j & 1) != want)
                check_fail(c, "bit %d of row %d is %d, not %d", j, i, !want, want);
        }
    if (to[rows] != 0x5a5a5a5a5a5a5a5a)
        check_fail(c, "row %d, one past the last, was written", rows);
    check_expect_intact(c);
    CHECK_BENCH(c, rows * n, c->kernels->pack_bits(to, p, ld, rows, n));
}

/* Scans rows of zeros, of hidden elements or of both, with or without one byte that differs. */
void check_scan(check_case *c)
{
    static const struct {
        int size;
        uint64_t value, hidden;
    } types[] = {{8, 0x7fffffffffffffff, 0xfff0000000000000},
                 {4, 0x7fffffff7fffffff, 0xff800000ff800000},
                 {2, 0x7fff7fff7fff7fff, 0xff80ff80ff80ff80}};
    const int type = (int)check_between(c, 0, 2), size = types[type].size;
    const uint64_t value = types[type].value, hidden = types[type].hidden;
    const int rows = (int)check_between(c, 0, 64), n = (int)check_between(c, 1, 64);
    const int64_t width = (int64_t)n * size;
    const ptrdiff_t ld = check_chance(c, 20) ? 0 : (ptrdiff_t)(width + check_between(c, 0, 70));
    const int64_t bytes = rows > 0 ? (rows - 1) * (int64_t)ld + width : 0;
    char *p = place_bytes(c, bytes);
    check_describe(c, "rows=%d elements=%d of %d bytes, ld=%td", rows, n, size, ld);
    memset(p, 0, (size_t)bytes);
    const int zeros = (int)check_between(c, 0, 2); /* rows of every three */
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n && i % 3 >= zeros; j++)
            memcpy(p + i * ld + (int64_t)j * size, &hidden, (size_t)size);
    if (rows > 0 && check_chance(c, 50))
        p[check_between(c, 0, bytes - 1)] = (char)check_random(c);

    int want = 0;
    for (int i = 0; i < rows; i++)
        for (int64_t at = 0; at < width; at++) {
            const unsigned byte = (unsigned char)p[i * ld + at];
            want |= (byte & ((const unsigned char *)&value)[at % 8]) != 0;
            want |= (byte != ((const unsigned char *)&hidden)[at % 8]) << 1;
        }
    const int got = c->kernels->scan(p, ld, rows, (size_t)width, value, hidden);
    if (got != want)
        check_fail(c, "scan found %d, not %d", got, want);
    check_expect_intact(c);
    CHECK_BENCH(c, rows * n, c->kernels->scan(p, ld, rows, (size_t)width, value, hidden));
}
