/* linear and linear_few_rows: rows of x times panels of a weight.
 *
 * The order of every sum is fixed. So the results must be bit-identical to the same chain of
 * multiply-adds, computed one element at a time. */
#include "check_case.h"

#include <inttypes.h>
#include <string.h>

/* Numbers of rows in a call: none, one, and every remainder of every micro-kernel. */
static const int row_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 23, 24, 31};

/* Allocates and fills `rows` rows of `size` elements, `ld` apart. Returns the first element of
 * row 0. */
static char *some_rows(check_case *c, int rows, int64_t size, ptrdiff_t ld, check_content content)
{
    const check_rows r = check_rows_new(c, rows, size, ld);
    check_fill(c, r.memory, r.count, content);
    return r.first;
}

/* The destination of a product: n rows of W, with gaps or without, in either direction. */
typedef struct product {
    char *first, *out; /* the first element in memory; the first of row 0 */
    ptrdiff_t ld;
    int64_t span; /* elements from the first to the last in memory */
    void *bias;   /* may be NULL */
} product;

static product some_product(check_case *c, int n)
{
    product p = {.ld = (ptrdiff_t)(c->W + check_between(c, 0, 9))};
    p.span = n > 0 ? (n - 1) * (int64_t)p.ld + c->W : 0;
    p.first = p.out = check_free(c, p.span);
    if (check_chance(c, 20) && n > 0) {
        p.out += (size_t)((n - 1) * p.ld) * c->size;
        p.ld = -p.ld;
    }
    if (check_chance(c, 50)) {
        p.bias = check_tile(c, 1);
        check_fill(c, p.bias, c->W, CHECK_PLAIN);
        if (check_chance(c, 30)) /* -0 + 0 must give +0 */
            memset(p.bias, 0, (size_t)c->W * c->size);
    }
    return p;
}

/* Expects want[n][W], with the bias added, in the rows of the product, and the previous contents
 * everywhere else. */
static void expect_product(check_case *c, const product *p, double *before, const double *want,
                           int n, int outputs)
{
    for (int i = 0; i < n; i++)
        for (int o = 0; o < c->W; o++) {
            const int64_t at = (p->ld < 0 ? (n - 1 - i) * -p->ld : i * p->ld) + o;
            double s = want[i * c->W + o];
            if (p->bias)
                s = check_round(c, s + check_get(c, p->bias, o));
            if (o < outputs)
                before[at] = p->bias && s == 0 ? 0 : s;
            else /* other lanes may hold anything */
                before[at] = check_get(c, p->first, at);
        }
    check_expect_same(c, "out", p->first, before, p->span, p->ld < 0 ? -p->ld : p->ld,
                      p->bias ? CHECK_ZERO_SIGNED : CHECK_ZERO_ANY);
    check_expect_intact(c);
}

void check_linear(check_case *c)
{
    const int n = CHECK_PICK(c, row_counts), D = (int)check_between(c, 0, ATTNI_D_CHAIN);
    const ptrdiff_t ld = check_any_stride(c, D);
    const bool adds = check_chance(c, 50), in_place = adds && check_chance(c, 50);
    const check_content content = check_any_content(c);
    product p = some_product(c, n);
    check_describe(c, "n=%d D=%d ld=%td ldo=%td%s%s%s", n, D, ld, p.ld, adds ? " adds" : "",
                   in_place ? " in place" : "", p.bias ? " bias" : "");

    const int64_t count = (int64_t)n * c->W;
    const char *x = some_rows(c, n, D, ld, content);
    void *wt = check_tile(c, D);
    check_fill(c, wt, (int64_t)D * c->W, content == CHECK_WILD ? CHECK_PLAIN : content);
    const ptrdiff_t ld_sums = in_place ? p.ld : check_any_stride(c, c->W);
    const char *sums = !adds      ? NULL
                       : in_place ? p.out
                                  : some_rows(c, n, c->W, ld_sums, CHECK_PLAIN);
    for (int i = 0; in_place && i < n; i++)
        check_fill(c, p.out + i * p.ld * (ptrdiff_t)c->size, c->W, CHECK_PLAIN);

    const double *w = check_copy(c, wt, (int64_t)D * c->W);
    double *want = check_array(c, count), *before = check_copy(c, p.first, p.span);
    for (int i = 0; i < n; i++)
        for (int o = 0; o < c->W; o++) {
            double s = 0;
            for (int d = 0; d < D; d++)
                s = check_fma(c, check_get(c, x, i * ld + d), w[d * c->W + o], s);
            want[i * c->W + o] = adds ? check_round(c, check_get(c, sums, i * ld_sums + o) + s) : s;
        }

    attni_product call = {.out = p.out, .ldo = p.ld, .sums = sums, .ld_sums = ld_sums, .x = x};
    call.ldx = ld;
    call.wt = wt;
    call.bias = p.bias;
    call.n = n;
    call.D = D;
    if (check_chance(c, 50)) { /* any address works: nothing is read there */
        call.next_weights = call.next_x = c;
        call.ld_next_weights = 1000;
        call.ld_next_x = -1000;
    }
    c->kernels->linear(&call, c->nv);
    expect_product(c, &p, before, want, n, c->W);
    CHECK_BENCH(c, 2.0 * n * D * c->W, c->kernels->linear(&call, c->nv));
}

void check_linear_few_rows(check_case *c)
{
    static const int64_t sizes[] = {0,  1,  2,  3,  5,  7,  8,  15,  16,  17,  31,  32,  33, 40,
                                    59, 63, 64, 65, 72, 80, 96, 111, 112, 128, 160, 200, 257};
    const int n = (int)check_between(c, 0, ATTNI_FEW_ROWS),
              outputs = (int)check_between(c, 0, c->W),
              prefetched = check_chance(c, 50) ? 0 : outputs;
    const int64_t D = CHECK_PICK(c, sizes);
    const ptrdiff_t ldx = check_any_stride(c, D), ldw = check_any_stride(c, D);
    const check_content content = check_any_content(c);
    product p = some_product(c, n);
    check_describe(c, "n=%d outputs=%d D=%" PRId64 " ldx=%td ldw=%td ldo=%td%s", n, outputs, D, ldx,
                   ldw, p.ld, p.bias ? " bias" : "");

    const char *x = some_rows(c, n, D, ldx, content);
    const char *w = some_rows(c, outputs, D, ldw, content == CHECK_WILD ? CHECK_PLAIN : content);
    double *want = check_array(c, (int64_t)n * c->W), *before = check_copy(c, p.first, p.span);
    for (int i = 0; i < n; i++)
        for (int o = 0; o < outputs; o++) {
            double sum = 0, run = 0;
            for (int64_t d = 0; d < D; d++) {
                run = check_fma(c, check_get(c, x, i * ldx + d), check_get(c, w, o * ldw + d), run);
                if ((d + 1) % ATTNI_D_CHAIN == 0 || d + 1 == D) {
                    sum = d < ATTNI_D_CHAIN ? run : check_round(c, sum + run);
                    run = 0;
                }
            }
            want[i * c->W + o] = sum;
        }

    c->kernels->linear_few_rows(p.out, p.ld, p.bias, w, ldw, outputs, prefetched, x, ldx, n, D);
    expect_product(c, &p, before, want, n, outputs);
    CHECK_BENCH(c, 2.0 * n * (double)D * outputs,
                c->kernels->linear_few_rows(p.out, p.ld, p.bias, w, ldw, outputs, prefetched, x,
                                            ldx, n, D));
}
