/* A context with threads, a causal mask, and the weights out.
 *
 * 4 heads of 6 tokens each; query and key are 8 wide, values 3 wide. The weights of one head are
 * printed as a table: a row asks, a column answers. The bits are the same for any number of
 * threads.
 */
#include <attn.h>
#include <stdio.h>

enum { HEADS = 4, TOKENS = 6, SIZE = 8, VALUE = 3 };

int main(void)
{
    static float q[HEADS][TOKENS][SIZE], k[HEADS][TOKENS][SIZE], v[HEADS][TOKENS][VALUE];
    static float out[HEADS][TOKENS][VALUE], weights[HEADS][TOKENS][TOKENS];
    attn_rng rng;
    attn_rng_seed(&rng, 123);
    attn_rng_randn(&rng, &q[0][0][0], sizeof q / sizeof(float));
    attn_rng_randn(&rng, &k[0][0][0], sizeof k / sizeof(float));
    attn_rng_randn(&rng, &v[0][0][0], sizeof v / sizeof(float));

    attn_error error;
    attn_context *context = NULL;
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.threads = 2;
    if (attn_context_create(&options, &context, &error) != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;

    const attn_tensor scores = attn_bhtd(weights, ATTN_F32, 1, HEADS, TOKENS, TOKENS);
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_bhtd(q, ATTN_F32, 1, HEADS, TOKENS, SIZE);
    args.k = attn_bhtd(k, ATTN_F32, 1, HEADS, TOKENS, SIZE);
    args.v = attn_bhtd(v, ATTN_F32, 1, HEADS, TOKENS, VALUE);
    args.out = attn_bhtd(out, ATTN_F32, 1, HEADS, TOKENS, VALUE);
    args.causal = ATTN_CAUSAL_TOP_LEFT;
    args.scores = &scores;
    args.scores_stage = ATTN_STAGE_WEIGHTS;
    const attn_status status = attn_sdpa_forward(context, &args, &error);
    attn_context_destroy(context);
    if (status != ATTN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;

    for (int i = 0; i < TOKENS; i++)
        for (int j = 0; j < TOKENS; j++)
            printf("%.3f%c", weights[0][i][j], j + 1 < TOKENS ? ' ' : '\n');
    return 0;
}
