/* Decoding with a cache: tokens come one at a time, and each looks at all before it.
 *
 * 8 query heads share 2 key/value heads. The keys and values are kept as 8-bit integers, in pages
 * of 64 keys. A prompt of 100 tokens goes in at once, then 30 tokens one by one. In a model, q, k
 * and v are projections of the token; here they are random.
 *
 *   cc decode.c $(pkg-config --cflags --libs attn)
 */
#include <attn.h>
#include <stdio.h>

enum { HEADS = 8, KV_HEADS = 2, SIZE = 64, PROMPT = 100, TOKENS = 30 };

static float q[PROMPT][HEADS][SIZE], out[PROMPT][HEADS][SIZE];
static float k[PROMPT][KV_HEADS][SIZE], v[PROMPT][KV_HEADS][SIZE];

/* Keys and values of n new tokens go in; then their queries look at all that is there. */
static attn_status step(attn_context *context, attn_cache *cache, int64_t n, attn_error *error)
{
    const attn_tensor keys = attn_bthd(k, ATTN_F32, 1, n, KV_HEADS, SIZE);
    const attn_tensor values = attn_bthd(v, ATTN_F32, 1, n, KV_HEADS, SIZE);
    const attn_status status = attn_cache_append(cache, 0, &keys, &values, error);
    if (status != ATTN_OK)
        return status;
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_bthd(q, ATTN_F32, 1, n, HEADS, SIZE);
    args.out = attn_bthd(out, ATTN_F32, 1, n, HEADS, SIZE);
    args.cache = cache;
    args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    return attn_sdpa_forward(context, &args, error);
}

int main(void)
{
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    attn_error error;
    attn_context *context = NULL;
    attn_cache *cache = NULL;
    attn_cache_options options = ATTN_CACHE_OPTIONS_INIT;
    options.B = 1, options.Hk = KV_HEADS, options.D = options.Dv = SIZE;
    options.dtype = ATTN_I8;
    options.max_keys = 4096, options.page_keys = 64, options.pages = 10;
    attn_status status = attn_context_create(NULL, &context, &error);
    if (status == ATTN_OK)
        status = attn_cache_create(&options, &cache, &error);
    for (int64_t token = -1; token < TOKENS && status == ATTN_OK; token++) {
        const int64_t n = token < 0 ? PROMPT : 1;
        attn_rng_randn(&rng, &q[0][0][0], (size_t)n * HEADS * SIZE);
        attn_rng_randn(&rng, &k[0][0][0], (size_t)n * KV_HEADS * SIZE);
        attn_rng_randn(&rng, &v[0][0][0], (size_t)n * KV_HEADS * SIZE);
        status = step(context, cache, n, &error);
        if (status == ATTN_OK && token % 10 == 9)
            printf("token %2d sees %lld keys: out[0] = %.4f\n", (int)token,
                   (long long)attn_cache_length(cache, 0), (double)out[0][0][0]);
    }
    if (status == ATTN_OK)
        printf("%zu bytes of cache\n", attn_cache_bytes(cache));
    else
        fprintf(stderr, "%s\n", error.message);
    attn_cache_destroy(cache);
    attn_context_destroy(context);
    return status != ATTN_OK;
}
