/* Problems of the record of bits that attend to a cache; see check_bits_case.h. */
#include <inttypes.h>

#include "check_bits_case.h"

#define BATCH 3
#define HEADS 12

typedef struct bits_decoder {
    attn_cache_options options;
    attn_cache *cache;
    int64_t length[BATCH], longest, G;
    attn_dtype q_type;
} bits_decoder;

static void choose_cache(bits_case *c, bits_decoder *d)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F32, ATTN_BF16, ATTN_BF16,
                                       ATTN_F16, ATTN_I8,  ATTN_I8,   ATTN_F64};
    static const attn_dtype narrow[] = {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16};
    static const int64_t widths[] = {1, 3, 8, 15, 16, 32, 33, 64, 64, 80, 128};
    static const int64_t groups[] = {1, 1, 2, 3, 4};
    static const int64_t lengths[] = {0, 1, 5, 17, 63, 64, 65, 130, 200, 257, 300, 520, 700};
    attn_cache_options *o = &d->options;
    o->struct_size = sizeof *o;
    o->dtype = BITS_PICK(c, types);
    o->B = bits_between(c, 1, BATCH);
    o->Hk = bits_between(c, 1, 3);
    d->G = BITS_PICK(c, groups);
    o->D = BITS_PICK(c, widths);
    o->Dv = bits_chance(c, 70) ? o->D : BITS_PICK(c, widths);
    o->page_keys = bits_chance(c, 50) ? 0 : 64 * bits_between(c, 1, 2);
    d->q_type = o->dtype == ATTN_I8 ? BITS_PICK(c, narrow) : o->dtype;
    for (int64_t b = 0; b < o->B; b++) {
        d->length[b] = BITS_PICK(c, lengths);
        d->longest = d->length[b] > d->longest ? d->length[b] : d->longest;
    }
    o->max_keys = d->longest + 2; /* one more key is appended later */
    bits_say(c, "%s q=%s B=%" PRId64 " Hk=%" PRId64 " G=%" PRId64 " D=%" PRId64 " Dv=%" PRId64,
             attn_dtype_name(o->dtype), attn_dtype_name(d->q_type), o->B, o->Hk, d->G, o->D, o->Dv);
    bits_say(c, " S=%" PRId64 " page=%" PRId64, d->longest, o->page_keys);
}

static bool append(bits_case *c, bits_decoder *d, int64_t b, int64_t n)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    const attn_cache_options *o = &d->options;
    const attn_dtype dtype = BITS_PICK(c, types);
    attn_tensor k = bits_new(c, dtype, 1, o->Hk, n, o->D, BITS_REPEAT);
    attn_tensor v = bits_new(c, dtype, 1, o->Hk, n, o->Dv, BITS_DENSE);
    bits_fill(c, &k, 1);
    bits_fill(c, &v, 1);
    return bits_ok(c, attn_cache_append(d->cache, b, &k, &v, &c->err));
}

/* Appends the keys of sequence b in several appends, and sometimes truncates the sequence in
 * between. */
static bool grow(bits_case *c, bits_decoder *d, int64_t b)
{
    static const int64_t pieces[] = {1, 7, 64, 100, 1000};
    int64_t there;
    while (!c->failed && (there = attn_cache_length(d->cache, b)) < d->length[b]) {
        const int64_t piece = BITS_PICK(c, pieces), left = d->length[b] - there;
        append(c, d, b, piece < left ? piece : left);
        if (!c->failed && bits_chance(c, 10)) {
            there = bits_between(c, there, attn_cache_length(d->cache, b));
            bits_ok(c, attn_cache_truncate(d->cache, b, there, &c->err));
        }
    }
    return !c->failed;
}

static bool attend(bits_case *c, const bits_decoder *d, int64_t T)
{
    const attn_cache_options *o = &d->options;
    const int64_t H = o->Hk * d->G;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    float slopes[HEADS], sinks[HEADS];
    for (int64_t h = 0; h < H; h++) {
        slopes[h] = 1 / (float)(INT64_C(2) << h);
        sinks[h] = (float)(2 * bits_value(c));
    }
    a.cache = d->cache;
    a.q = bits_new(c, d->q_type, o->B, H, T, o->D, BITS_DENSE);
    bits_fill(c, &a.q, 1);
    a.out = bits_new(c, bits_chance(c, 75) ? d->q_type : ATTN_F32, o->B, H, T, o->Dv, BITS_DENSE);
    a.causal = bits_chance(c, 75) ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    a.window_left = bits_chance(c, 20) ? bits_between(c, 0, 200) : -1;
    a.softcap = bits_chance(c, 20) ? 5 : 0;
    a.alibi_slopes = bits_chance(c, 20) ? slopes : NULL;
    a.sink_logits = bits_chance(c, 20) ? sinks : NULL;
    a.dropout = bits_chance(c, 10) ? 0.25 : 0;
    a.precision = bits_chance(c, 15) ? ATTN_PRECISION_ACCURATE : ATTN_PRECISION_DEFAULT;
    attn_tensor lse = bits_new(c, ATTN_F32, o->B, H, T, 1, BITS_DENSE);
    a.lse = bits_chance(c, 40) ? &lse : NULL;
    bits_say(c, " T=%" PRId64 "%s%s%s%s%s%s%s", T, a.causal ? " causal" : "",
             a.window_left >= 0 ? " window" : "", a.softcap > 0 ? " cap" : "",
             a.alibi_slopes ? " alibi" : "", a.sink_logits ? " sinks" : "",
             a.dropout > 0 ? " dropout" : "", a.precision ? " accurate" : "");
    if (!bits_ok(c, attn_sdpa_forward(c->ctx, &a, &c->err)))
        return false;
    bits_hash(c, &a.out);
    if (a.lse)
        bits_hash(c, a.lse);
    return true;
}

static void read_rows(bits_case *c, const bits_decoder *d)
{
    const attn_cache_options *o = &d->options;
    for (int64_t b = 0; b < o->B && !c->failed; b++) {
        const int64_t n = attn_cache_length(d->cache, b);
        attn_tensor k = bits_new(c, ATTN_F32, 1, o->Hk, n, o->D, BITS_DENSE);
        attn_tensor v = bits_new(c, ATTN_F32, 1, o->Hk, n, o->Dv, BITS_LOOSE);
        if (!bits_ok(c, attn_cache_read(d->cache, b, 0, &k, &v, &c->err)))
            return;
        bits_hash(c, &k);
        bits_hash(c, &v);
    }
}

static int hash_saved(void *user, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bits_hash_integer(user, ((const unsigned char *)bytes)[i], 1);
    return 0;
}

void bits_cache(bits_case *c)
{
    static const int64_t queries[] = {1, 2, 4, 9, 20, 64, 130};
    bits_decoder d = {.longest = 0};
    choose_cache(c, &d);
    if (!bits_ok(c, attn_cache_create(&d.options, &d.cache, &c->err)))
        return;
    for (int64_t b = 0; b < d.options.B; b++)
        grow(c, &d, b);
    if (!c->failed && attend(c, &d, BITS_PICK(c, queries))) {
        for (int64_t b = 0; b < d.options.B && !c->failed; b++)
            append(c, &d, b, 1);
        if (!c->failed && attend(c, &d, 1))
            read_rows(c, &d);
    }
    if (!c->failed)
        bits_ok(c, attn_cache_save(d.cache, hash_saved, c, &c->err));
    attn_cache_destroy(d.cache);
}
