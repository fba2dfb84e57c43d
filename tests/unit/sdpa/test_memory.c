/* The memory of a whole process stays small whatever the options are.
 *
 * labels: memory slow
 *
 * With 4096 queries and keys, one head, D = 64 and float, the arrays are 4 MiB and a matrix of
 * scores would be 64 MiB. The process stays below 20 MiB; with gradients, whose arrays are 4 MiB
 * more, below 28 MiB. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn.h"
#include "support/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZER 1
#else
#define SANITIZER 0
#endif

enum { N = 4096, D = 64, LIMIT_KIB = 20 * 1024, BACKWARD_KIB = 28 * 1024 };

/* The most memory that this process ever held, in KiB. */
static long high_water(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld kB", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib;
}

static float *array(size_t n)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)sin((double)i * 0.01);
    return x;
}

typedef struct problem {
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    attn_tensor mask, dmask, lse;
    float *biases, *dbiases; /* [N] */
    float slope, sink;
    unsigned char *attend; /* [N] */
    int64_t length, ends[4];
} problem;

/* Each sets one option. */
static void plain(problem *p) { (void)p; }
static void causal(problem *p) { p->args.causal = ATTN_CAUSAL_TOP_LEFT; }
static void window(problem *p) { p->args.window_left = 100, p->args.window_right = 50; }
static void dropout(problem *p) { p->args.dropout = 0.1; }
static void softcap(problem *p) { p->args.softcap = 30; }
static void alibi(problem *p) { p->args.alibi_slopes = &p->slope; }
static void sinks(problem *p) { p->args.sink_logits = &p->sink; }
static void lengths(problem *p) { p->args.key_lengths = &p->length; }
static void accurate(problem *p) { p->args.precision = ATTN_PRECISION_ACCURATE; }
static void strided(problem *p) { p->args.k.stride[3] = -1, p->args.k.stride[2] = -D; }
static void wide_values(problem *p) { p->args.v.shape[3] = p->args.out.shape[3] = D + 32; }

static void padding(problem *p)
{
    p->mask = attn_bhtd(p->attend, ATTN_BOOL, 1, 1, 1, N);
    p->args.mask = &p->mask;
}

static void packed(problem *p)
{
    p->args.cu_seqlens_q = p->args.cu_seqlens_k = p->ends;
    p->args.sequences = 3;
}

/* The gradients too. */
static void backward(problem *p)
{
    float *x[5];
    for (int i = 0; i < 5; i++) {
        x[i] = malloc(N * D * sizeof **x);
        if (!x[i])
            _exit(2);
        memset(x[i], 0, N * D * sizeof **x);
        x[i][100 * D + 7] = 1;
    }
    p->lse = attn_bhtd(x[4], ATTN_F32, 1, 1, N, 1);
    p->args.lse = &p->lse;
    p->grads.dout = attn_bhtd(x[0], ATTN_F32, 1, 1, N, D);
    p->grads.dq = attn_bhtd(x[1], ATTN_F32, 1, 1, N, D);
    p->grads.dk = attn_bhtd(x[2], ATTN_F32, 1, 1, N, D);
    p->grads.dv = attn_bhtd(x[3], ATTN_F32, 1, 1, N, D);
}

static void backward_causal(problem *p) { causal(p), backward(p); }
static void backward_dropout(problem *p) { dropout(p), backward(p); }

static void backward_row(problem *p)
{
    backward(p);
    p->mask = attn_bhtd(p->biases, ATTN_F32, 1, 1, 1, N);
    p->dmask = attn_bhtd(p->dbiases, ATTN_F32, 1, 1, 1, N);
    p->args.mask = &p->mask;
    p->grads.dmask = &p->dmask;
}

static void backward_column(problem *p)
{
    backward_row(p);
    p->mask = attn_bhtd(p->biases, ATTN_F32, 1, 1, N, 1);
    p->dmask = attn_bhtd(p->dbiases, ATTN_F32, 1, 1, N, 1);
}

static const struct {
    const char *name;
    void (*set)(problem *);
    int threads;
} rows[] = {
    {"plain", plain, 1},
    {"plain, 4 threads", plain, 4},
    {"causal", causal, 1},
    {"padding mask", padding, 1},
    {"Dv != D", wide_values, 1},
    {"dropout", dropout, 1},
    {"window", window, 1},
    {"softcap", softcap, 1},
    {"ALiBi", alibi, 1},
    {"sinks", sinks, 1},
    {"key lengths", lengths, 1},
    {"packed", packed, 1},
    {"accurate", accurate, 1},
    {"strided", strided, 1},
    {"backward", backward, 1},
    {"backward, 4 threads", backward, 4},
    {"backward causal", backward_causal, 1},
    {"backward dropout", backward_dropout, 1},
    {"gradient of a row", backward_row, 1},
    {"gradient of a column", backward_column, 2},
};

/* In a child of its own: runs the case, and writes its high water to the pipe. */
static void measure(size_t row, int pipe)
{
    problem p = {.args = ATTN_SDPA_ARGS_INIT,
                 .grads = ATTN_SDPA_GRADS_INIT,
                 .slope = 0.01f,
                 .sink = 1,
                 .length = 3000};
    size_t widest = N * (D + 32);
    float *q = array(N * D), *k = array(N * D), *v = array(widest),
          *out = malloc(widest * sizeof *out);
    p.attend = malloc(N);
    p.biases = array(N), p.dbiases = array(N);
    if (!q || !k || !v || !out || !p.attend || !p.biases || !p.dbiases)
        _exit(2);
    memset(p.attend, 1, N);
    memset(p.attend + 3000, 0, N - 3000);
    memcpy(p.ends, (int64_t[]){0, 1000, 1001, N}, sizeof p.ends);
    p.args.q = attn_bhtd(q, ATTN_F32, 1, 1, N, D), p.args.k = attn_bhtd(k, ATTN_F32, 1, 1, N, D);
    p.args.v = attn_bhtd(v, ATTN_F32, 1, 1, N, D),
    p.args.out = attn_bhtd(out, ATTN_F32, 1, 1, N, D);
    rows[row].set(&p);
    if (p.args.k.stride[3] < 0)
        p.args.k.data = k + N * D - 1;
    p.args.v.stride[2] = p.args.v.shape[3], p.args.out.stride[2] = p.args.out.shape[3];

    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    options.threads = rows[row].threads;
    if (attn_context_create(&options, &ctx, NULL) != ATTN_OK ||
        attn_sdpa_forward(ctx, &p.args, NULL) != ATTN_OK || !isfinite(out[N * D - 1]))
        _exit(3);
    const float *dk = p.grads.dk.data;
    if (dk && (attn_sdpa_backward(ctx, &p.args, &p.grads, NULL) != ATTN_OK || dk[1] == 0))
        _exit(5);
    attn_context_destroy(ctx);
    long kib = high_water();
    _exit(write(pipe, &kib, sizeof kib) == sizeof kib ? 0 : 4);
}

static void test_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int ends[2], status;
        long kib = -1;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_number(child, >=, 0);
        if (child == 0)
            measure(i, ends[1]);
        close(ends[1]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("%s: status %x", rows[i].name, (unsigned)status);
        assert_int_equal(read(ends[0], &kib, sizeof kib), sizeof kib);
        close(ends[0]);
        print_message("%-20s %6.1f MiB\n", rows[i].name, (double)kib / 1024);
        const bool gradients = strstr(rows[i].name, "backward") || strstr(rows[i].name, "gradient");
        const long limit = gradients ? BACKWARD_KIB : LIMIT_KIB;
        if (kib <= 4 * 1024 || kib >= limit)
            fail_msg("%s: the process held %ld KiB, want between %d and %ld", rows[i].name, kib,
                     4 * 1024, limit);
    }
}

int main(void)
{
    if (SANITIZER) {
        print_message("not run: a sanitizer's own memory is far above the limit\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
