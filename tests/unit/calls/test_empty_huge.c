/* Problems with nothing to compute but huge sizes return at once.
 *
 * labels: empty
 *
 * Each call returns ATTN_OK or ATTN_ERR_LIMIT, or ATTN_ERR_MEMORY if its sizes need memory. Sizes
 * of 0 meet sizes of 2^31 and more in every combination; a tensor that has elements lies in real
 * memory. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attn.h"
#include "core/internal.h"
#include "plan/plan.h"
#include "support/test.h"

#define LONG 8 /* seconds after which a call is taken to hang */
#define ROOM 4096

/* A call that does not come back ends the program, which says which one it was. */
static char doing[256];
static void on_alarm(int number)
{
    (void)number;
    static const char text[] = " has not come back\n";
    if (write(STDERR_FILENO, doing, strlen(doing)) < 0 ||
        write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

/* CPU time: other programs do not count. */
static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static double slowest;
static int calls, done, limits, memories;

static void begin(const char *what, const int64_t n[6])
{
    snprintf(doing, sizeof doing, "%s of B=%lld H=%lld T=%lld S=%lld D=%lld Dv=%lld", what,
             (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3], (long long)n[4],
             (long long)n[5]);
    alarm(LONG);
}

static void end(attn_status status, double since, const attn_error *err)
{
    alarm(0);
    const double took = cpu_seconds() - since;
    slowest = took > slowest ? took : slowest;
    calls++;
    done += status == ATTN_OK;
    limits += status == ATTN_ERR_LIMIT;
    memories += status == ATTN_ERR_MEMORY;
    if (status != ATTN_OK && status != ATTN_ERR_LIMIT && status != ATTN_ERR_MEMORY)
        fail_msg("%s: %s", doing, err->message);
}

/* What the library may have: a machine that gives out more than it has would only be slow. */
static void *allocate(void *user, size_t size, size_t alignment)
{
    (void)user;
    return size > (size_t)1 << 26 ? NULL : aligned_alloc(alignment, (size + 63) / 64 * 64);
}

static void release(void *user, void *memory, size_t size)
{
    (void)user, (void)size;
    free(memory);
}

static attn_context *new_context(void)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx;
    o.threads = 2;
    o.allocate = allocate;
    o.release = release;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    return ctx;
}

static float memory[16][ROOM];

/* Dense if that fits the room, else, if `repeats`, one element again and again. False: neither. */
static bool view(attn_tensor *t, int at, bool repeats, int64_t n0, int64_t n1, int64_t n2,
                 int64_t n3)
{
    const int64_t n[4] = {n0, n1, n2, n3};
    *t = attn_bhtd(memory[at], ATTN_F32, n0, n1, n2, n3);
    double count = 1;
    for (int d = 0; d < 4; d++)
        count *= (double)n[d];
    if (count <= ROOM)
        return true;
    memset(t->stride, 0, sizeof t->stride);
    return repeats;
}

/* What work is left: pairs that are computed for a result that somebody reads. */
static bool is_work(const int64_t n[6])
{
    return (double)n[0] * (double)n[1] * (double)n[2] * (double)n[3] > 1e6;
}

typedef struct problem {
    attn_sdpa_args a;
    attn_sdpa_grads g;
    attn_sdpa_tangents t;
    attn_tensor lse, tlse;
} problem;

/* False: a result that would need memory which nobody has; or, where there is one, real work. */
static bool build(problem *p, const int64_t n[6], int64_t Hk, unsigned wanted)
{
    const int64_t B = n[0], H = n[1], T = n[2], S = n[3], D = n[4], Dv = n[5];
    *p = (problem){.a = ATTN_SDPA_ARGS_INIT,
                   .g = ATTN_SDPA_GRADS_INIT,
                   .t = ATTN_SDPA_TANGENTS_INIT};
    attn_sdpa_args *a = &p->a;
    bool ok = view(&a->q, 0, true, B, H, T, D) && view(&a->k, 1, true, B, Hk, S, D) &&
              view(&a->v, 2, true, B, Hk, S, Dv) && view(&a->out, 3, false, B, H, T, Dv);
    const bool real = view(&p->lse, 4, false, B, H, T, 1);
    if (wanted & 1)
        a->lse = &p->lse;
    p->lse = attn_bhtd(memory[4], ATTN_F32, B, H, T, 1); /* not looked at for no result */
    ok = ok && (real || !(wanted & 31));
    ok = ok && view(&p->g.dout, 5, true, B, H, T, Dv) && view(&p->t.tout, 9, false, B, H, T, Dv);
    ok = ok && (!(wanted & 2) || view(&p->g.dq, 6, false, B, H, T, D));
    ok = ok && (!(wanted & 4) || view(&p->g.dk, 7, false, B, Hk, S, D));
    ok = ok && (!(wanted & 8) || view(&p->g.dv, 8, false, B, Hk, S, Dv));
    if (wanted & 16) {
        ok = ok && view(&p->tlse, 10, false, B, H, T, 1);
        p->t.tlse = &p->tlse;
    }
    return ok;
}

static void expect_all(const attn_tensor *t, float want)
{
    const double count =
        (double)t->shape[0] * (double)t->shape[1] * (double)t->shape[2] * (double)t->shape[3];
    for (int i = 0; i < (int)count; i++)
        if (((const float *)t->data)[i] != want)
            fail_msg("%s: element %d is %g", doing, i, (double)((const float *)t->data)[i]);
}

/* Where no query meets a key, out is 0 and lse -inf, and so is every gradient. */
static void forward(attn_context *ctx, problem *p, const int64_t n[6])
{
    attn_plan_info info = {.struct_size = sizeof info};
    attn_error err = {.message = ""};
    double since = cpu_seconds();
    begin("attn_sdpa_plan", n);
    end(attn_sdpa_plan(ctx, &p->a, &info, &err), since, &err);
    memset(memory[3], 1, sizeof memory[3]);
    since = cpu_seconds();
    begin("attn_sdpa_forward", n);
    const attn_status status = attn_sdpa_forward(ctx, &p->a, &err);
    end(status, since, &err);
    if (status == ATTN_OK && n[3] == 0) {
        expect_all(&p->a.out, 0);
        if (p->a.lse)
            expect_all(&p->lse, -INFINITY);
    }
}

static void derivatives(attn_context *ctx, problem *p, const int64_t n[6])
{
    attn_plan_info info = {.struct_size = sizeof info};
    attn_error err = {.message = ""};
    p->a.lse = &p->lse;
    for (int i = 6; i < 11; i++)
        memset(memory[i], 1, sizeof memory[i]);
    double since = cpu_seconds();
    begin("attn_sdpa_backward_plan", n);
    end(attn_sdpa_backward_plan(ctx, &p->a, &p->g, &info, &err), since, &err);
    since = cpu_seconds();
    begin("attn_sdpa_backward", n);
    attn_status status = attn_sdpa_backward(ctx, &p->a, &p->g, &err);
    end(status, since, &err);
    if (status == ATTN_OK && (!n[0] || !n[1] || !n[2] || !n[3])) {
        expect_all(&p->g.dq, 0);
        expect_all(&p->g.dk, 0);
        expect_all(&p->g.dv, 0);
    }
    since = cpu_seconds();
    begin("attn_sdpa_jvp", n);
    status = attn_sdpa_jvp(ctx, &p->a, &p->t, &err);
    end(status, since, &err);
    if (status == ATTN_OK && n[3] == 0)
        expect_all(&p->t.tout, 0);
}

static const int64_t big[] = {1, (int64_t)1 << 31, (int64_t)1 << 40, (int64_t)1 << 55,
                              (int64_t)1 << 62};
enum { BIG = sizeof big / sizeof *big };

/* Each of the six sizes is 0, 1 or one of the huge ones, at least one is 0. */
static bool next_sizes(int64_t n[6], int64_t number)
{
    bool zero = false;
    for (int i = 0; i < 6; i++, number /= BIG + 1) {
        const int which = (int)(number % (BIG + 1));
        n[i] = which ? big[which - 1] : 0;
        zero |= which == 0;
    }
    return zero;
}

static void test_attention(void **state)
{
    (void)state;
    attn_context *contexts[] = {NULL, new_context()};
    problem p;
    int64_t n[6];
    for (int64_t number = 0; number < 46656; number++) {
        if (!next_sizes(n, number))
            continue;
        attn_context *ctx = contexts[number % 2];
        for (unsigned wanted = 0; wanted < 2; wanted++)
            if (build(&p, n, n[1], wanted) && !(is_work(n) && (n[5] > 0 || (wanted && n[4] > 0))))
                forward(ctx, &p, n);
        for (unsigned wanted = 0; wanted <= 30; wanted += 30)
            if (build(&p, n, n[1], wanted) && !(is_work(n) && (n[4] > 0 || n[5] > 0)))
                derivatives(ctx, &p, n);
    }
    attn_context_destroy(contexts[1]);
    print_message("%d calls, the slowest of %.1f ms: %d done, %d beyond a limit, %d of memory\n",
                  calls, 1e3 * slowest, done, limits, memories);
    assert_number(calls, >, 10000);
    assert_number(done, >, 1000);
}

/* The plainest cases: queries without elements or results. */
static void test_rows_of_nothing(void **state)
{
    (void)state;
    const int64_t many = (int64_t)1 << 40;
    const int64_t sizes[][6] = {{1, 1, many, 1, 0, 0}, {1, 1, many, 1, 4, 0},
                                {many, 1, 1, 0, 0, 0}, {1, many, 1, 1, 0, 0},
                                {1, 1, 1, many, 0, 0}, {1, 1, 0, many, 4, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        describe_case("row %zu of sizes", i);
        problem p;
        assert_true(build(&p, sizes[i], sizes[i][1], 0));
        begin("attn_sdpa_forward", sizes[i]);
        assert_int_equal(attn_sdpa_forward(NULL, &p.a, NULL), ATTN_OK);
        p.a.lse = &p.lse;
        begin("attn_sdpa_backward", sizes[i]);
        assert_int_equal(attn_sdpa_backward(NULL, &p.a, &p.g, NULL), ATTN_OK);
        if (sizes[i][5] == 0) {
            begin("attn_sdpa_jvp", sizes[i]);
            assert_int_equal(attn_sdpa_jvp(NULL, &p.a, &p.t, NULL), ATTN_OK);
        }
        alarm(0);
    }
}

/* Keys without elements are still counted by lse: more than 2^31 - 1 are an error that says so. */
static void test_keys_of_nothing(void **state)
{
    (void)state;
    const int64_t n[6] = {1, 1, 1, (int64_t)1 << 31, 0, 0};
    problem p;
    attn_error err = {.message = ""};
    assert_true(build(&p, n, 1, 17));
    begin("attn_sdpa_forward", n);
    assert_int_equal(attn_sdpa_forward(NULL, &p.a, &err), ATTN_ERR_LIMIT);
    assert_string_equal(err.argument, "k");
    begin("attn_sdpa_jvp", n);
    assert_int_equal(attn_sdpa_jvp(NULL, &p.a, &p.t, &err), ATTN_ERR_LIMIT);
    alarm(0);
    p.a.k.shape[2] = p.a.v.shape[2] = 1000;
    assert_int_equal(attn_sdpa_forward(NULL, &p.a, &err), ATTN_OK);
    assert_near((double)memory[4][0], log(1000), <, 1e-5);
}

/* The gradient of ALiBi's slopes counts them, too. */
static void test_gradient_of_keys_of_nothing(void **state)
{
    (void)state;
    const int64_t n[6] = {1, 1, 1, (int64_t)1 << 40, 0, 0};
    const float slope = 1;
    double dalibi = 7;
    problem p;
    attn_error err = {.message = ""};
    assert_true(build(&p, n, 1, 1));
    p.a.alibi_slopes = &slope;
    p.g.dalibi_slopes = &dalibi;
    begin("attn_sdpa_backward", n);
    assert_int_equal(attn_sdpa_backward(NULL, &p.a, &p.g, &err), ATTN_ERR_LIMIT);
    assert_string_equal(err.argument, "k");
    assert_number(dalibi, ==, 7);
    alarm(0);
}

/* Gradients of what is repeated over rows or keys that there are none of: 0, but for the sinks'. */
static void test_repeated_gradients(void **state)
{
    (void)state;
    const int64_t many = (int64_t)1 << 40;
    const int64_t sizes[][6] = {{1, 2, many, 0, 1, 0},
                                {many, 2, 1, 0, 0, 0},
                                {1, 2, 0, many, 0, 0}};
    const float slopes[2] = {1, 2}, sinks[2] = {0, 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        describe_case("row %zu of sizes", i);
        float value = 7;
        double dalibi[2] = {7, 7}, dsink[2] = {7, 7};
        attn_error err = {.message = ""};
        problem p;
        assert_true(build(&p, sizes[i], 2, 0));
        const attn_tensor mask = attn_bhtd(memory[11], ATTN_F32, 1, 1, 1, 1);
        const attn_tensor dmask = attn_bhtd(&value, ATTN_F32, 1, 1, 1, 1);
        p.a.lse = &p.lse;
        p.a.mask = &mask;
        p.g.dmask = &dmask;
        p.a.alibi_slopes = slopes;
        p.g.dalibi_slopes = dalibi;
        p.a.sink_logits = sinks;
        if (sizes[i][2] == 0)
            p.g.dsink_logits = dsink;
        begin("attn_sdpa_backward", sizes[i]);
        if (attn_sdpa_backward(NULL, &p.a, &p.g, &err))
            fail_msg("%s: %s", doing, err.message);
        alarm(0);
        assert_number(value, ==, 0);
        assert_number(dalibi[0], ==, 0);
        assert_number(dalibi[1], ==, 0);
        if (sizes[i][2] <= 0) {
            assert_number(dsink[0], ==, 0);
            assert_number(dsink[1], ==, 0);
        }
    }
}

/* The pairs of a plan: those that a count one by one finds. */
static int64_t count_pairs(const attn_sdpa_args *a, int64_t T, int64_t S, int64_t length)
{
    int64_t pairs = 0, off = a->causal == ATTN_CAUSAL_OFFSET ? a->causal_offset : 0;
    if (a->causal == ATTN_CAUSAL_BOTTOM_RIGHT)
        off = length - T;
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < S; j++)
            pairs += (!a->causal || j <= i + off) && j < length &&
                     (a->window_left < 0 || j >= i + off - a->window_left) &&
                     (a->window_right < 0 || j <= i + off + a->window_right);
    return pairs;
}

static int64_t below(int64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

static void test_pairs(void **state)
{
    (void)state;
    for (int i = 0; i < 3000; i++) {
        const int64_t T = below(40), S = below(40), B = 1 + below(3), D = 4, Dv = 2;
        int64_t lengths[3], starts_q[3] = {0, 0, 0}, starts_k[3] = {0, 0, 0}, pairs = 0;
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        attn_plan_info info = {.struct_size = sizeof info};
        a.q = attn_bhtd(memory[0], ATTN_F32, B, 2, T, D);
        a.k = attn_bhtd(memory[1], ATTN_F32, B, 2, S, D);
        a.v = attn_bhtd(memory[2], ATTN_F32, B, 2, S, Dv);
        a.out = attn_bhtd(memory[3], ATTN_F32, B, 2, T, Dv);
        a.causal = (attn_causal)below(4);
        a.causal_offset = below(60) - 30;
        a.window_left = below(2) ? below(30) : -1;
        a.window_right = below(2) ? below(30) : -1;
        const bool packed = below(3) == 0;
        if (!packed && below(2)) {
            for (int64_t b = 0; b < B; b++)
                lengths[b] = below(S + 1);
            a.key_lengths = lengths;
        } else if (packed) {
            starts_q[1] = below(T + 1), starts_q[2] = starts_q[1] + below(T - starts_q[1] + 1);
            starts_k[1] = below(S + 1), starts_k[2] = starts_k[1] + below(S - starts_k[1] + 1);
            a.cu_seqlens_q = starts_q, a.cu_seqlens_k = starts_k, a.sequences = 2;
        }
        for (int64_t b = 0; b < B; b++)
            for (int64_t n = 0; n < (packed ? 2 : 1); n++) {
                const int64_t rows = packed ? starts_q[n + 1] - starts_q[n] : T;
                const int64_t keys = packed ? starts_k[n + 1] - starts_k[n] : S;
                pairs += count_pairs(&a, rows, keys, a.key_lengths ? lengths[b] : keys);
            }
        assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), ATTN_OK);
        if (info.flop != 2.0 * 2 * (double)pairs * (double)(D + Dv))
            fail_msg("problem %d: %.0f FLOP of %lld pairs", i, info.flop, (long long)pairs);
    }
}

/* ------------------------------------------------------------------------------------- modules */

static void test_modules(void **state)
{
    (void)state;
    attn_context *ctx = new_context();
    int64_t ids[4] = {0};
    for (int64_t number = 0; number < 1296; number++) {
        int64_t n[6] = {1, 1, 1, 1, 1, 1}, rest = number;
        bool zero = false;
        for (int i = 0; i < 4; i++, rest /= BIG + 1) {
            n[i] = rest % (BIG + 1) ? big[rest % (BIG + 1) - 1] : 0;
            zero |= n[i] == 0;
        }
        attn_error err = {.message = ""};
        attn_tensor x, y, vector, w, dw, dx, bias;
        if (!zero || !view(&x, 0, true, n[0], n[1], n[2], n[3]) ||
            !view(&y, 1, false, n[0], n[1], n[2], n[3]))
            continue;
        double since = cpu_seconds();
#define CALL(function, ...)                                                                        \
    since = cpu_seconds(), begin(#function, n), end(function(__VA_ARGS__), since, &err)
        CALL(attn_gelu_forward, ctx, &x, &y, &err);
        CALL(attn_gelu_backward, ctx, &x, &x, &y, &err);
        attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
        CALL(attn_adamw_step, ctx, &o, 1, &y, &x, &y, &y, &err);
        CALL(attn_layer_norm_forward, ctx, &x, NULL, NULL, 1e-5, &y, &err);
        if (view(&vector, 2, false, 1, 1, 1, n[3]))
            CALL(attn_layer_norm_backward, ctx, &x, &x, NULL, 1e-5, &y, &vector, &vector, &err);
        attn_tensor mask = x;
        mask.dtype = ATTN_BOOL;
        CALL(attn_dropout_mask, 1, 0.5, &mask, &err);
        for (int64_t Out = 0; Out < 2; Out++) {
            if (!view(&w, 3, true, n[0], n[1], Out, n[3]) ||
                !view(&dw, 4, false, n[0], 1, Out, n[3]) ||
                !view(&y, 1, false, n[0], n[1], n[2], Out) ||
                !view(&bias, 5, false, 1, n[1], 1, Out) ||
                !view(&dx, 6, false, 1, n[1], n[2], n[3]))
                continue;
            CALL(attn_linear_forward, ctx, &x, &w, NULL, &y, &err);
            CALL(attn_linear_backward, ctx, &y, &x, &w, &dx, NULL, &bias, &err);
            CALL(attn_linear_backward, ctx, &y, &x, &w, NULL, &dw, &bias, &err);
        }
        if (n[0] == 1 && n[1] == 1) {
            double loss;
            if (n[2] == 0) {
                CALL(attn_cross_entropy_forward, ctx, &x, ids, -100, &loss, &err);
                CALL(attn_embedding_forward, ctx, &x, ids, 0, &x, &err);
            }
        }
    }
    attn_context_destroy(ctx);
}

static void one_mha(attn_context *ctx, const int64_t n[6])
{
    const int64_t B = n[0], H = n[1], T = n[2], E = n[3], D = n[4], Dv = n[5];
    attn_mha_args a;
    attn_mha_grads g = ATTN_MHA_GRADS_INIT;
    attn_error err = {.message = ""};
    attn_mha_args_init(&a);
    double since;
    if (!view(&a.x, 0, true, B, 1, T, E) || !view(&a.w_q, 1, true, 1, H, D, E) ||
        !view(&a.w_k, 2, true, 1, H, D, E) || !view(&a.w_v, 3, true, 1, H, Dv, E) ||
        (double)H * (double)Dv > 1e18 || !view(&a.out, 4, false, B, 1, T, H * Dv))
        return;
    CALL(attn_mha_forward, ctx, &a, &err);
    g.dout = a.out;
    if (view(&g.dx, 5, false, B, 1, T, E) && view(&g.dw_q, 6, false, 1, H, D, E))
        CALL(attn_mha_backward, ctx, &a, &g, &err);
    attn_mha *module = NULL;
    if (!view(&a.b_q, 7, true, 1, H, 1, D)) /* with D = 0, of any H */
        return;
    CALL(attn_mha_create, ctx, &a, &module, &err);
    if (module)
        CALL(attn_mha_run, ctx, module, &a, &err);
    attn_mha_destroy(module);
}

static void test_mha(void **state)
{
    (void)state;
    attn_context *ctx = new_context();
    int64_t n[6];
    for (int64_t number = 0; number < 46656; number++)
        if (next_sizes(n, number) && number % 3 != 2)
            one_mha(ctx, n);
    attn_context_destroy(ctx);
}

/* --------------------------------------------------------------------------------------- cache */

static size_t saved;
static int count_bytes(void *user, const void *bytes, size_t n)
{
    (void)user, (void)bytes;
    saved += n;
    return saved > 1 << 20;
}

static void one_cache(const int64_t n[6], attn_dtype dtype, int64_t page_keys)
{
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    o.B = n[0], o.Hk = n[1], o.max_keys = n[3], o.D = n[4], o.Dv = n[5];
    o.dtype = dtype;
    o.page_keys = page_keys;
    o.allocate = allocate;
    o.release = release;
    attn_cache *cache = NULL;
    attn_error err = {.message = ""};
    double since;
    CALL(attn_cache_create, &o, &cache, &err);
    if (!cache)
        return;
    attn_tensor k, v, none_k, none_v, q, out;
    if (o.B == 1 && view(&none_k, 0, true, 1, o.Hk, 0, o.D) &&
        view(&none_v, 0, true, 1, o.Hk, 0, o.Dv)) {
        CALL(attn_cache_append, cache, 0, &none_k, &none_v, &err);
        if (view(&k, 0, true, 1, o.Hk, o.max_keys, o.D) &&
            view(&v, 1, true, 1, o.Hk, o.max_keys, o.Dv))
            CALL(attn_cache_append, cache, 0, &k, &v, &err);
        const int64_t length = attn_cache_length(cache, 0);
        if (view(&k, 0, false, 1, o.Hk, length, o.D) && view(&v, 1, false, 1, o.Hk, length, o.Dv))
            CALL(attn_cache_read, cache, 0, 0, &k, &v, &err);
        saved = 0;
        since = cpu_seconds(), begin("attn_cache_save", n);
        (void)attn_cache_save(cache, count_bytes, NULL, NULL);
        end(ATTN_OK, since, &err);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.cache = cache;
        if (view(&q, 2, false, 1, o.Hk, 1, o.D) && view(&out, 3, false, 1, o.Hk, 1, o.Dv)) {
            q.dtype = out.dtype = dtype == ATTN_I8 ? ATTN_F32 : dtype;
            a.q = q, a.out = out;
            CALL(attn_sdpa_forward, NULL, &a, &err);
        }
        CALL(attn_cache_truncate, cache, 0, 0, &err);
    }
    attn_cache_destroy(cache);
}

static void test_cache(void **state)
{
    (void)state;
    int64_t n[6];
    for (int64_t number = 0; number < 46656; number++) {
        if (!next_sizes(n, number) || n[2] != 1)
            continue;
        one_cache(n, ATTN_F32, 0);
        one_cache(n, ATTN_I8, 0);
        one_cache(n, ATTN_BF16, (int64_t)1 << 20);
    }
}

static void test_time(void **state)
{
    (void)state;
    print_message("%d calls, the slowest of %.1f ms\n", calls, 1e3 * slowest);
    if (!getenv("ATTN_SANITIZED") && slowest > 0.1)
        fail_msg("the slowest call took %.0f ms", 1e3 * slowest);
}

int main(void)
{
    signal(SIGALRM, on_alarm);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_nothing),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_keys_of_nothing),
        cmocka_unit_test(test_gradient_of_keys_of_nothing),
        cmocka_unit_test(test_repeated_gradients),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_mha),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
