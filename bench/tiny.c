/* The time of a small call from C: T = S = 6, D = 16, one head, on the caller's thread.
 *
 *     cc -O2 -Iinclude bench/tiny.c build/libattn.so -Wl,-rpath,build && ./a.out
 *
 * Prints nanoseconds: the smallest mean of many short batches, so that neither the clock's
 * resolution nor interruptions matter. bench/peers.py builds and runs it between its peers'
 * turns. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdio.h>
#include <time.h>

#include <attn.h>

enum { T = 6, D = 16, CALLS = 50, BATCHES = 400 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

int main(void)
{
    static float q[T][D], k[T][D], v[T][D], out[T][D];
    attn_rng rng;
    attn_rng_seed(&rng, 123);
    attn_rng_randn(&rng, q[0], T * D);
    attn_rng_randn(&rng, k[0], T * D);
    attn_rng_randn(&rng, v[0], T * D);

    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_matrix(q, ATTN_F32, T, D);
    args.k = attn_matrix(k, ATTN_F32, T, D);
    args.v = attn_matrix(v, ATTN_F32, T, D);
    args.out = attn_matrix(out, ATTN_F32, T, D);

    double best = 1e18;
    for (int batch = 0; batch < BATCHES; batch++) {
        double start = now();
        for (int call = 0; call < CALLS; call++) {
            attn_error error;
            if (attn_sdpa_forward(NULL, &args, &error) != ATTN_OK) {
                fprintf(stderr, "%s\n", error.message);
                return 1;
            }
        }
        double each = (now() - start) / CALLS;
        best = each < best ? each : best;
    }
    printf("%.1f\n", best);
    return 0;
}
