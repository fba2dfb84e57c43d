/* One forward call whose function calls are written to the file "trace": "> ADDRESS" at each entry,
 * "< ADDRESS" at each exit. For count-walk.sh. */
#include <stdio.h>

#include "attn.h"

#define NOT_TRACED __attribute__((no_instrument_function))
NOT_TRACED void __cyg_profile_func_enter(void *function, void *caller);
NOT_TRACED void __cyg_profile_func_exit(void *function, void *caller);
NOT_TRACED int main(void);

static FILE *trace;

void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller;
    if (trace)
        fprintf(trace, "> %p\n", function);
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)caller;
    if (trace)
        fprintf(trace, "< %p\n", function);
}

int main(void)
{
    enum { T = 64, S = 256, D = 64 };
    static float q[T * D], k[S * D], v[S * D], out[T * D];
    for (int i = 0; i < T * D; i++)
        q[i] = (float)(i % 7 - 3);
    for (int i = 0; i < S * D; i++)
        k[i] = (float)(i % 5 - 2), v[i] = (float)(i % 3);
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.threads = 1;
    options.isa = "generic";
    attn_context *ctx;
    if (attn_context_create(&options, &ctx, NULL))
        return 1;
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_matrix(q, ATTN_F32, T, D);
    args.k = attn_matrix(k, ATTN_F32, S, D);
    args.v = attn_matrix(v, ATTN_F32, S, D);
    args.out = attn_matrix(out, ATTN_F32, T, D);
    args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    trace = fopen("trace", "w");
    if (!trace || attn_sdpa_forward(ctx, &args, NULL) || fclose(trace))
        return 1;
    trace = NULL;
    attn_context_destroy(ctx);
    return 0;
}
