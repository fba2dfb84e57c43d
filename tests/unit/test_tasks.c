/* labels: threads
 *
 * How a call is cut into tasks: each query once, the longest first, and the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sdpa/sdpa.h"

enum { B = 2, H = 6, T = 700, D = 16 };

typedef struct call {
    attn_context *ctx;
    attn_sdpa_args args;
    attni_plan plan;
    float *q, *k, *v, *out; /* all [B,H,rows,D]; heads of k and v at most H */
} call;

static float *random_rows(uint64_t seed, int64_t rows)
{
    const size_t n = (size_t)(B * H * rows * D);
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    attn_rng rng;
    attn_rng_seed(&rng, seed);
    attn_rng_randn(&rng, x, n);
    return x;
}

static void begin(call *c, int threads, int64_t heads, int64_t kv_heads, int64_t queries,
                  int64_t keys, attn_causal causal)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    assert_int_equal(attn_context_create(&options, &c->ctx, NULL), ATTN_OK);
    c->q = random_rows(1, queries);
    c->k = random_rows(2, keys);
    c->v = random_rows(3, keys);
    c->out = random_rows(4, queries);
    attn_sdpa_args_init(&c->args);
    c->args.q = attn_bhtd(c->q, ATTN_F32, B, heads, queries, D);
    c->args.k = attn_bhtd(c->k, ATTN_F32, B, kv_heads, keys, D);
    c->args.v = attn_bhtd(c->v, ATTN_F32, B, kv_heads, keys, D);
    c->args.out = attn_bhtd(c->out, ATTN_F32, B, heads, queries, D);
    c->args.causal = causal;
    assert_int_equal(attni_sdpa_prepare(&c->plan, c->ctx, &c->args, NULL), ATTN_OK);
}

static void end(call *c)
{
    attn_context_destroy(c->ctx);
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->out);
}

static void each_query_is_in_one_task(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 16; threads *= 2)
        for (int causal = ATTN_CAUSAL_NONE; causal <= ATTN_CAUSAL_BOTTOM_RIGHT; causal++) {
            call c;
            begin(&c, threads, H, 2, T, T, (attn_causal)causal);
            char seen[B][H][T];
            memset(seen, 0, sizeof seen);
            for (int64_t n = 0; n < c.plan.tasks; n++) {
                attni_task task;
                attni_find_task(&c.plan, n, &task);
                assert_true(task.rows > 0 && task.i0 + task.rows <= T);
                for (int64_t i = 0; i < task.rows; i++)
                    assert_int_equal(seen[task.sequence.b][task.sequence.h][task.i0 + i]++, 0);
            }
            for (size_t i = 0; i < sizeof seen; i++)
                assert_int_equal(((char *)seen)[i], 1);
            end(&c);
        }
}

static void the_longest_of_all_heads_come_first(void **state)
{
    (void)state;
    for (int threads = 3; threads <= 16; threads++) {
        call c;
        begin(&c, threads, H, H, T, T, ATTN_CAUSAL_TOP_LEFT);
        assert_true(c.plan.workers > 2);
        int64_t before = T;
        for (int64_t n = 0; n < c.plan.tasks; n++) {
            attni_task task;
            attni_find_task(&c.plan, n, &task);
            assert_true(task.i0 <= before);
            before = task.i0;
        }
        assert_int_equal(before, 0);
        end(&c);
    }
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    static const int threads[] = {1, 3, 4, 16};
    float *want = NULL;
    for (size_t n = 0; n < sizeof threads / sizeof *threads; n++) {
        call c;
        begin(&c, threads[n], H, 3, T, T, ATTN_CAUSAL_TOP_LEFT);
        assert_int_equal(attn_sdpa_forward(c.ctx, &c.args, NULL), ATTN_OK);
        if (want) {
            assert_memory_equal(c.out, want, (size_t)B * H * T * D * sizeof *want);
        } else {
            want = c.out;
            c.out = NULL;
        }
        end(&c);
    }
    free(want);
}

/* One query of one head each: cut along the keys unless it is one for each thread, and those are
 * alike. */
static void equal_tasks_for_all_threads_are_not_cut(void **state)
{
    (void)state;
    static const int64_t lengths[B] = {9000, 300};
    call c;
    begin(&c, B * H, H, H, 1, 9000, ATTN_CAUSAL_BOTTOM_RIGHT);
    assert_int_equal(c.plan.tasks, B * H);
    assert_int_equal(c.plan.parts, 1);
    c.args.key_lengths = lengths;
    assert_int_equal(attni_sdpa_prepare(&c.plan, c.ctx, &c.args, NULL), ATTN_OK);
    assert_true(c.plan.parts > 1);
    end(&c);
    begin(&c, B * H + 1, H, H, 1, 9000, ATTN_CAUSAL_BOTTOM_RIGHT);
    assert_true(c.plan.parts > 1);
    end(&c);
}

/* The bytes of a plan: each element of every tensor once, repeated ones not. */
static void bytes_count_every_tensor(void **state)
{
    (void)state;
    enum { n = 4 };
    static float q[n * n], k[n * n], v[n * n], out[n * n], mask[n], lse[n], scores[n * n];
    const attn_tensor m = {mask, ATTN_F32, {1, 1, n, n}, {0, 0, 0, 1}};
    const attn_tensor l = attn_bhtd(lse, ATTN_F32, 1, 1, n, 1);
    const attn_tensor s = attn_bhtd(scores, ATTN_F32, 1, 1, n, n);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_matrix(q, ATTN_F32, n, n);
    a.k = attn_matrix(k, ATTN_F32, n, n);
    a.v = attn_matrix(v, ATTN_F32, n, n);
    a.out = attn_matrix(out, ATTN_F32, n, n);
    double want = 4 * n * n * sizeof(float);
    for (int step = 0; step < 4; step++) {
        attn_plan_info info = ATTN_PLAN_INFO_INIT;
        if (step == 1)
            a.mask = &m, want += n * sizeof(float);
        if (step == 2)
            a.lse = &l, want += n * sizeof(float);
        if (step == 3)
            a.scores = &s, want += n * n * sizeof(float);
        assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), ATTN_OK);
        if (info.bytes != want)
            fail_msg("step %d: %g bytes; there are %g", step, info.bytes, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_query_is_in_one_task),
        cmocka_unit_test(the_longest_of_all_heads_come_first),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(equal_tasks_for_all_threads_are_not_cut),
        cmocka_unit_test(bytes_count_every_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
