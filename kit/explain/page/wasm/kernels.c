/* The operations of the generic instruction set for double that attention of one head uses. The
 * library's own table has each operation for tiles of one vector and of two. Here only tiles of two
 * vectors exist, which saves half of the code; this table lists them as one vector with twice the
 * lanes. The linker drops functions that are no longer used. */
#include "kernel/isa_generic_f64.c"

#define TILE 2 /* vectors */

#define OP(result, name, parameters, ...)                                                          \
    __attribute__((flatten)) static result page_##name parameters                                  \
    {                                                                                              \
        (void)nv; /* 1 */                                                                          \
        return op_##name(__VA_ARGS__);                                                             \
    }
OP(void, pack, (void *qt, const void *q, ptrdiff_t ldq, int rows, int64_t D, double mul, int nv),
   qt, q, ldq, rows, D, mul, TILE)
OP(void, scores,
   (void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk, int n, int64_t D, int nv,
    attni_prefetch *hints),
   st, mx, qt, k, ldk, n, D, TILE, hints)
OP(void, maxima, (void *mx, const void *st, int n, int nv), mx, st, n, TILE)
OP(void, scale_softcap, (void *st, int n, double r, double cap, int nv), st, n, r, cap, TILE)
OP(void, bias, (void *st, int n, const void *b, ptrdiff_t ldb, int rows, int nv), st, n, b, ldb,
   rows, TILE)
OP(void, hide, (void *st, void *mx, const uint64_t *visible, int n, int nv), st, mx, visible, n,
   TILE)
OP(int, update_max, (void *m, void *a, void *top, const void *mx, const void *c, int nv), m, a, top,
   mx, c, TILE)
OP(void, rescale, (void *x, int64_t rows, const void *a, int nv), x, rows, a, TILE)
OP(void, join, (void *M, void *L, void *factors, const void *m, const void *l, int nv), M, L,
   factors, m, l, TILE)
OP(void, fold, (void *total, const void *acc, int64_t rows, const void *factors, int nv), total,
   acc, rows, factors, TILE)
OP(void, weights,
   (void *p, void *l, const void *st, const void *c, const void *m, int n, int nv, int flags), p, l,
   st, c, m, n, TILE, flags)
OP(void, values,
   (void *acc, void *total, const void *factors, const void *v, ptrdiff_t ldv, const void *p, int n,
    int64_t Dv, int nv, int flags, attni_prefetch *hints),
   acc, total, factors, v, ldv, p, n, Dv, TILE, flags, hints)
OP(int, finish,
   (void *out, ptrdiff_t ldo, const void *total, const void *l, int rows, int64_t Dv, int nv), out,
   ldo, total, l, rows, Dv, TILE)

static const attni_kernels page_kernels = {
    .isa = "generic",
    .bits = ATTNI_BITS,
    .lanes = TILE * V_LANES,
    .vectors = 1,
    .max_decode_rows = 0, /* the *_decode operations are not here */
    .pack = page_pack,
    .widen = op_widen,
    .narrow = op_narrow,
    .scores = page_scores,
    .maxima = page_maxima,
    .scale_softcap = page_scale_softcap,
    .bias = page_bias,
    .hide = page_hide,
    .pack_bits = op_pack_bits,
    .scan = op_scan,
    .update_max = page_update_max,
    .rescale = page_rescale,
    .join = page_join,
    .fold = page_fold,
    .weights = page_weights,
    .values = page_values,
    .finish = page_finish,
};

const attni_kernels *attni_kernels_of(int isa, int bits)
{
    (void)isa, (void)bits; /* attend() uses double only */
    return &page_kernels;
}
