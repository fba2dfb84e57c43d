/* Checks the arguments of attention before an element of a tensor is read or written, and fills the
 * members of the plan that follow from the arguments. attni_sdpa_prepare() (sdpa/sdpa.c),
 * attni_pieces_begin() (sdpa/pieces.c) and the gradients call attni_sdpa_check().
 *
 *   copy_args            accept the struct of any version
 *   use_cache            k, v and key_lengths of a cache
 *   check_storage        types of q, k, v and out
 *   check_shapes         sizes of q, k, v and out
 *   check_part           the place of this call's rows and heads in a larger call, if it is a part
 *   check_extra_output   sizes of lse and scores, type of scores
 *   check_numbers        scale, soft cap, dropout, precision, scores_stage
 *   attni_mask_check     the masks' own arguments (mask.c)
 *   split_scale          scale = a power of two (for q) * a number (for scores; usually 1 to 2)
 *
 * attni_check_keys(), a further check, limits the number of keys if D and Dv are 0. Then q, k and v
 * need no memory, so nothing else limits the number of keys.
 */
#include "../cache/cache.h"
#include "plan.h"

#include <float.h>
#include <math.h>

/* Copies the caller's struct, which may be of another version. A caller compiled with this header
 * passes a struct of this version's size. The size is tested first, so that for such a caller this
 * costs no more than a copy. */
static attn_status copy_args(attn_sdpa_args *to, const attn_sdpa_args *from, attn_error *err)
{
    if (!from || from->struct_size != sizeof *to)
        return attni_struct_read(ATTNI_SDPA_ARGS, to, from, "args", err);
    attni_copy(to, from, sizeof *to);
    return ATTN_OK;
}

/* Describes a cache's keys and values as tensors without data: their rows are looked up block by
 * block. */
static attn_status use_cache(attn_sdpa_args *a, attn_error *err)
{
    const attn_cache *c = a->cache;
    if (!c)
        return ATTN_OK;
    const attn_cache_options *o = &c->options;
    if (a->k.data || a->v.data)
        return attni_fail(err, ATTN_ERR_ARGUMENT, a->k.data ? "k" : "v",
                          "%s.data is given with a cache; it must be NULL", a->k.data ? "k" : "v");
    if (a->cu_seqlens_q || a->cu_seqlens_k)
        return attni_fail(
            err, ATTN_ERR_ARGUMENT, "cache",
            "cache and cu_seqlens exclude each other; a cache has its own sequence for each batch "
            "element");
    if (a->q.shape[0] != o->B)
        return attni_fail(err, ATTN_ERR_SHAPE, "q", "q has B=%lld; the cache has B=%lld",
                          (long long)a->q.shape[0], (long long)o->B);
    int64_t S = 0;
    for (int64_t b = 0; b < o->B; b++) {
        S = c->lengths[b] > S ? c->lengths[b] : S;
        if (a->key_lengths && (a->key_lengths[b] < 0 || a->key_lengths[b] > c->lengths[b]))
            return attni_fail(err, ATTN_ERR_ARGUMENT, "key_lengths",
                              "key_lengths[%lld] is %lld; it must be 0 to %lld, the keys of that "
                              "sequence in the cache",
                              (long long)b, (long long)a->key_lengths[b], (long long)c->lengths[b]);
    }
    /* The stages RAW and SOFTCAP write the score of every pair, visible or not. A shorter sequence
     * has no keys for some of these pairs. */
    for (int64_t b = 0; b < o->B && a->scores && a->scores_stage <= ATTN_STAGE_SOFTCAP; b++)
        if (c->lengths[b] != S)
            return attni_fail(
                err, ATTN_ERR_ARGUMENT, "scores_stage",
                "scores_stage is %d, which needs sequences of equal length, but sequence %lld has "
                "%lld keys and the longest has %lld; use ATTN_STAGE_BIASED",
                (int)a->scores_stage, (long long)b, (long long)c->lengths[b], (long long)S);
    a->k = attn_bhtd(NULL, o->dtype, o->B, o->Hk, S, o->D);
    a->v = attn_bhtd(NULL, o->dtype, o->B, o->Hk, S, o->Dv);
    a->k.stride[2] = (int64_t)(c->row_bytes[ATTNI_KEYS] / attn_dtype_size(o->dtype));
    if (!a->key_lengths)
        a->key_lengths = c->lengths;
    return ATTN_OK;
}

static attn_status check_storage(const attn_sdpa_args *a, attn_error *err)
{
    const attn_dtype t = a->q.dtype;
    if (!attni_dtype_is_float(t))
        return attni_fail(err, ATTN_ERR_DTYPE, "q", "q is %s; it must be f64, f32, f16 or bf16",
                          attn_dtype_name(t));
    if (a->k.dtype == ATTN_I8 && a->cache) {
        if (t == ATTN_F64)
            return attni_fail(err, ATTN_ERR_DTYPE, "q",
                              "q is f64 and the cache i8; q must be f32, f16 or bf16");
    } else if (a->cache && a->k.dtype != t) {
        const char *stored = attn_dtype_name(a->k.dtype);
        return attni_fail(err, ATTN_ERR_DTYPE, "q", "q is %s and the cache %s; q must be %s",
                          attn_dtype_name(t), stored, stored);
    } else if (a->k.dtype != t || a->v.dtype != t) {
        const bool k = a->k.dtype != t;
        return attni_fail(err, ATTN_ERR_DTYPE, k ? "k" : "v",
                          "%s is %s and q is %s; q, k and v must share one dtype", k ? "k" : "v",
                          attn_dtype_name(k ? a->k.dtype : a->v.dtype), attn_dtype_name(t));
    }
    if (a->out.dtype != t && a->out.dtype != ATTN_F32 && a->out.dtype != ATTN_F64)
        return attni_fail(err, ATTN_ERR_DTYPE, "out",
                          "out is %s and q is %s; out must be f32, f64 or of q's dtype",
                          attn_dtype_name(a->out.dtype), attn_dtype_name(t));
    return ATTN_OK;
}

/* Compares one size of a tensor with the size that the other tensors imply. */
static attn_status expect(const attn_tensor *t, const char *name, int dimension, int64_t want,
                          const char *letter, attn_error *err)
{
    if (t->shape[dimension] == want)
        return ATTN_OK;
    return attni_fail(err, ATTN_ERR_SHAPE, name, "%s has %s=%lld in dimension %d; it must be %lld",
                      name, letter, (long long)t->shape[dimension], dimension, (long long)want);
}

static attn_status check_shapes(attni_plan *p, attn_error *err)
{
    const attn_sdpa_args *a = &p->args;
    attn_status s;
    if ((s = attni_check_input(&a->q, "q", err)) ||
        (!a->cache &&
         ((s = attni_check_input(&a->k, "k", err)) || (s = attni_check_input(&a->v, "v", err)))) ||
        (s = attni_check_output(&a->out, "out", err)))
        return s;
    p->B = a->q.shape[0], p->H = a->q.shape[1], p->T = a->q.shape[2], p->D = a->q.shape[3];
    p->Hk = a->k.shape[1], p->S = a->k.shape[2], p->Dv = a->v.shape[3];
    if ((s = expect(&a->k, "k", 0, p->B, "B", err)) ||
        (s = expect(&a->v, "v", 0, p->B, "B", err)) ||
        (s = expect(&a->out, "out", 0, p->B, "B", err)) ||
        (s = expect(&a->v, "v", 1, p->Hk, "Hk", err)) ||
        (s = expect(&a->v, "v", 2, p->S, "S", err)) ||
        (s = expect(&a->out, "out", 1, p->H, "H", err)) ||
        (s = expect(&a->out, "out", 2, p->T, "T", err)) ||
        (s = expect(&a->out, "out", 3, p->Dv, "Dv", err)))
        return s;
    if (a->k.shape[3] != p->D)
        return attni_fail(err, ATTN_ERR_SHAPE, "k",
                          "k has D=%lld but q has D=%lld; q and k must share D",
                          (long long)a->k.shape[3], (long long)p->D);
    if (p->Hk == 0 ? p->H != 0 : p->H % p->Hk != 0)
        return attni_fail(err, ATTN_ERR_SHAPE, "k",
                          "k has Hk=%lld heads and q has H=%lld; H must be a multiple of Hk",
                          (long long)p->Hk, (long long)p->H);
    return ATTN_OK;
}

/* Checks `part`, which says that this call computes some rows and heads of a larger call, the
 * whole. If `part` is NULL, this call is the whole. */
static attn_status check_part(attni_plan *p, const attn_pieces_options *part, attn_error *err)
{
    p->whole_T = p->T;
    p->whole_H = p->H;
    if (!part)
        return ATTN_OK;
    const int64_t least = part->q_positions ? 0 : p->T;
    if (part->whole_T < 0 || part->whole_T > ATTNI_MAX_SIZE ||
        (part->whole_T > 0 && part->whole_T < least))
        return attni_fail(
            err, ATTN_ERR_ARGUMENT, "whole_T",
            "whole_T is %lld; it must be 0, or the number of queries of the larger call: "
            "%lld to 2^56",
            (long long)part->whole_T, (long long)least);
    if (part->whole_H < 0 || part->head_offset < 0 || part->whole_H > ATTNI_MAX_SIZE ||
        part->head_offset > ATTNI_MAX_SIZE ||
        (part->whole_H ? part->head_offset + p->H > part->whole_H : part->head_offset > 0))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "head_offset",
                          "head_offset is %lld, H is %lld and whole_H is %lld; whole_H must be "
                          "within H..2^56 and head_offset within 0..whole_H - H; or both must be 0",
                          (long long)part->head_offset, (long long)p->H, (long long)part->whole_H);
    if (part->whole_T)
        p->whole_T = part->whole_T;
    if (part->whole_H)
        p->whole_H = part->whole_H;
    p->head_offset = part->head_offset;
    for (int64_t i = 0; part->q_positions && i < p->T; i++)
        if (part->q_positions[i] < 0 || part->q_positions[i] >= p->whole_T)
            return attni_fail(err, ATTN_ERR_ARGUMENT, "q_positions",
                              "q_positions[%lld] is %lld; it must be within 0..%lld (whole_T - 1)",
                              (long long)i, (long long)part->q_positions[i],
                              (long long)p->whole_T - 1);
    return ATTN_OK;
}

static attn_status check_extra_output(const attni_plan *p, const attn_tensor *t, const char *name,
                                      int64_t last, const char *letter, attn_error *err)
{
    attn_status s;
    if (!t)
        return ATTN_OK;
    if (!attni_dtype_is_float(t->dtype))
        return attni_fail(err, ATTN_ERR_DTYPE, name, "%s is %s; it must be f64, f32, f16 or bf16",
                          name, attn_dtype_name(t->dtype));
    if ((s = attni_check_output(t, name, err)) || (s = expect(t, name, 0, p->B, "B", err)) ||
        (s = expect(t, name, 1, p->H, "H", err)) || (s = expect(t, name, 2, p->T, "T", err)))
        return s;
    return expect(t, name, 3, last, letter, err);
}

static attn_status check_numbers(const attni_plan *p, attn_error *err)
{
    const attn_sdpa_args *a = &p->args;
    if (!isfinite(a->scale))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "scale", "scale is %g; it must be finite",
                          a->scale);
    if (!(a->softcap >= 0) || !isfinite(a->softcap))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "softcap",
                          "softcap is %g; it must be 0 (none) or finite and positive", a->softcap);
    if (!(a->dropout >= 0 && a->dropout < 1))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "dropout",
                          "dropout is %g; it must be at least 0 and below 1", a->dropout);
    if (a->dropout > 0 && (p->whole_T > UINT32_MAX || p->S / 8 > UINT32_MAX ||
                           (p->B > 0 && p->whole_H > UINT32_MAX / p->B)))
        return attni_fail(
            err, ATTN_ERR_LIMIT, "dropout",
            "dropout needs T, S / 8 and B * H less than 2^32; they are T=%lld, S=%lld, "
            "B=%lld and H=%lld",
            (long long)p->whole_T, (long long)p->S, (long long)p->B, (long long)p->whole_H);
    if ((int)a->precision < 0 || a->precision > ATTN_PRECISION_ACCURATE)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "precision", "precision is %d; it must be 0 or 1",
                          (int)a->precision);
    if ((int)a->scores_stage < 0 || a->scores_stage > ATTN_STAGE_WEIGHTS)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "scores_stage",
                          "scores_stage is %d; it must be 0..3", (int)a->scores_stage);
    return ATTN_OK;
}

/* Handles scales outside the usual range. Queries are multiplied by scale_pow2, and their products
 * with keys by scale_mantissa. `rest` is the new scale_mantissa. A scale_pow2 above 1 could make a
 * query infinite. So |scale_pow2| becomes 1, and `rest` becomes |scale|. A |scale_pow2| below the
 * smallest positive number of R becomes that number, and `rest` takes the remaining factor. If R is
 * float and `rest` is then below 2^-125, the scale counts as 0: scale_pow2 becomes 0, and
 * scale_mantissa 1. `rest` is limited: neither it nor its product with log2(e) may overflow R. */
static __attribute__((cold, noinline)) void fit_scale(attni_plan *p)
{
    const bool f32 = p->real == sizeof(float);
    const double size = fabs(p->scale_pow2), least = f32 ? 0x1p-149 : 0x1p-1074;
    const double kept = size > 1 ? 1 : size < least ? least : size;
    const double rest = p->scale_mantissa * (size / kept), smallest = f32 ? 0x1p-125 : 0;
    p->scale_pow2 = rest < smallest ? 0 : copysign(kept, p->scale_pow2);
    p->scale_mantissa = rest < smallest ? 1 : fmin(rest, (f32 ? (double)FLT_MAX : DBL_MAX) * 0.693);
}

/* Splits scale = scale_pow2 * scale_mantissa (plan.h). */
static void split_scale(attni_plan *p)
{
    double scale = p->args.scale;
    if (scale == 0)
        scale = p->D > 0 ? 1 / sqrt((double)p->D) : 1;
    union {
        double x;
        uint64_t bits;
    } power = {.x = scale}, rest = {.x = scale};
    const uint64_t fraction = UINT64_MAX >> 12, one = (uint64_t)1023 << 52;
    if (isnormal(scale)) { /* sign and exponent -> power; fraction -> rest */
        power.bits &= ~fraction;
        rest.bits = (rest.bits & fraction) | one;
    } else {
        int exponent;
        rest.x = 2 * frexp(fabs(scale), &exponent);
        power.x = copysign(ldexp(1, exponent - 1), scale);
    }
    p->scale_mantissa = rest.x;
    p->scale_pow2 = power.x;
    const double size = fabs(p->scale_pow2);
    if (size > 1 || size < 0x1p-149)
        fit_scale(p);
    const double most = p->args.softcap * (p->real == sizeof(float) ? 0x1p124 : 0x1p1020);
    p->capped_mantissa = fmin(p->scale_mantissa, most);
    p->scaled_scores = p->args.softcap > 0 || attni_mask_biases(p->kinds);
    p->log2_scale = (p->scaled_scores ? 1 : p->scale_mantissa) * ATTNI_LOG2E;
}

static bool written(const attn_tensor *t) { return t && !attni_empty(t); }

bool attni_sdpa_writes(const attn_sdpa_args *a)
{
    return written(&a->out) || written(a->lse) || written(a->scores);
}

attn_status attni_check_keys(const attni_plan *p, bool writes, attn_error *err)
{
    if (!writes || p->D || p->Dv || !p->T ||
        (double)p->B * (double)p->Hk * (double)p->S <= (double)INT32_MAX)
        return ATTN_OK;
    return attni_fail(err, ATTN_ERR_LIMIT, "k",
                      "D and Dv are 0, and k has B=%lld, Hk=%lld, S=%lld; B * Hk * S must be at "
                      "most 2^31 - 1",
                      (long long)p->B, (long long)p->Hk, (long long)p->S);
}

attn_status attni_sdpa_check(attni_plan *p, const attn_sdpa_args *args, bool derivative,
                             const attn_pieces_options *part, attn_error *err)
{
    attn_status s;
    /* Clears all members but args, the first one, which copy_args() sets. */
    attni_zero(&p->mask, sizeof *p - offsetof(attni_plan, mask));
    attn_sdpa_args *a = &p->args;
    if ((s = copy_args(a, args, err)))
        return s;
    if (derivative) {
        a->scores = NULL;
        a->scores_stage = ATTN_STAGE_RAW;
    }
    if ((s = use_cache(a, err)) || (s = check_storage(a, err)) || (s = check_shapes(p, err)) ||
        (s = check_part(p, part, err)))
        return s;
    if (a->lse && a->lse->dtype != ATTN_F32 && a->lse->dtype != ATTN_F64)
        return attni_fail(err, ATTN_ERR_DTYPE, "lse", "lse is %s; it must be f32 or f64",
                          attn_dtype_name(a->lse->dtype));
    if ((s = check_extra_output(p, a->lse, "lse", 1, "size", err)) ||
        (s = check_extra_output(p, a->scores, "scores", p->S, "S", err)) ||
        (s = check_numbers(p, err)))
        return s;
    p->kinds = attni_mask_kinds(a);
    if ((s = attni_mask_check(p, err)))
        return s;
    if (a->mask) {
        p->mask = *a->mask;
        for (int d = 0; d < 4; d++)
            if (p->mask.shape[d] == 1)
                p->mask.stride[d] = 0;
        a->mask = &p->mask;
    }
    if (!a->cu_seqlens_q)
        a->sequences = 0;
    if (a->dropout > 0)
        p->drop_threshold = attni_dropout_threshold(a->dropout);
    /* f32, and i8 caches, are computed in float or, with ATTN_PRECISION_ACCURATE, in double. */
    const bool floats = a->q.dtype == ATTN_F32 || a->k.dtype == ATTN_I8;
    const bool f64 = a->q.dtype == ATTN_F64 || (floats && a->precision == ATTN_PRECISION_ACCURATE);
    p->real = f64 ? sizeof(double) : sizeof(float);
    p->real_dtype = f64 ? ATTN_F64 : ATTN_F32;
    split_scale(p);
    return ATTN_OK;
}
