/* A call is cut into tasks that contain each query once, the longest first.
 *
 * labels: threads
 *
 * The bits are the same for any number of threads. */
#include <stdlib.h>
#include <string.h>

#include "sdpa/sdpa.h"
#include "support/test.h"

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
            describe_case("%d threads, causal %d", threads, causal);
            call c;
            begin(&c, threads, H, 2, T, T, (attn_causal)causal);
            char seen[B][H][T];
            memset(seen, 0, sizeof seen);
            attni_cursor cursor = attni_last_sequence(&c.plan);
            for (int64_t n = 0; n < c.plan.tasks; n++) {
                attni_task task;
                attni_find_task(&c.plan, n, &cursor, &task);
                assert_number(task.rows, >, 0);
                assert_number(task.i0 + task.rows, <=, T);
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
        describe_case("%d threads", threads);
        call c;
        begin(&c, threads, H, H, T, T, ATTN_CAUSAL_TOP_LEFT);
        assert_number(c.plan.workers, >, 2);
        int64_t before = T;
        attni_cursor cursor = attni_last_sequence(&c.plan);
        for (int64_t n = 0; n < c.plan.tasks; n++) {
            attni_task task;
            attni_find_task(&c.plan, n, &cursor, &task);
            assert_number(task.i0, <=, before);
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
            describe_case("%d threads", threads[n]);
            assert_same_array(c.out, want, (size_t)B * H * T * D * sizeof *want);
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
    assert_number(c.plan.parts, >, 1);
    end(&c);
    begin(&c, B * H + 1, H, H, 1, 9000, ATTN_CAUSAL_BOTTOM_RIGHT);
    assert_number(c.plan.parts, >, 1);
    end(&c);
}

/* Computes all parts of all tasks in reverse order, then the results. A part writes its own
 * partials only: none of another task, which may be complete, and nothing behind the last. */
static void run_parts_backwards(const attni_plan *p)
{
    const size_t task_bytes = (size_t)p->chunks * p->partial_bytes;
    const size_t bytes = (size_t)p->tasks * task_bytes;
    char *partials = aligned_alloc(ATTNI_ALIGN, bytes + p->partial_bytes);
    char *scratch = aligned_alloc(ATTNI_ALIGN, p->worker_bytes);
    char *behind = malloc(p->partial_bytes);
    assert_true(partials && scratch && behind);
    memset(partials, 0xA5, bytes + p->partial_bytes);
    memset(behind, 0xA5, p->partial_bytes);
    attni_task task;
    attni_cursor cursor = attni_last_sequence(p);
    for (int64_t n = p->tasks - 1; n >= 0; n--)
        for (int64_t part = p->parts - 1; part >= 0; part--) {
            attni_find_task(p, n, &cursor, &task);
            p->engine->part(p, &task.sequence, task.i0, task.rows, p->chunks * part / p->parts,
                            p->chunks * (part + 1) / p->parts, partials + (size_t)n * task_bytes,
                            scratch);
        }
    assert_memory_equal(partials + bytes, behind, p->partial_bytes);
    for (int64_t n = 0; n < p->tasks; n++) {
        attni_find_task(p, n, &cursor, &task);
        p->engine->fold(p, &task.sequence, task.i0, task.rows, p->chunks,
                        partials + (size_t)n * task_bytes, scratch);
    }
    free(behind);
    free(scratch);
    free(partials);
}

static void parts_in_any_order_give_the_bits_of_one_task(void **state)
{
    enum { KEYS = 3000, HEADS = 3 };
    (void)state;
    for (int i = 0; attn_isa(i).name; i++)
        for (int bf16 = 0; bf16 < 2 && attn_isa(i).usable; bf16++)
            for (int queries = 1; queries <= 3; queries += 2) {
                describe_case("%s, %s, T=%d", attn_isa(i).name, bf16 ? "bf16" : "f32", queries);
                const attn_dtype dtype = bf16 ? ATTN_BF16 : ATTN_F32;
                const size_t n = (size_t)(B * HEADS * queries * D) * (bf16 ? 2 : 4);
                attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
                options.isa = attn_isa(i).name;
                options.threads = 16;
                attn_context *many, *one;
                assert_int_equal(attn_context_create(&options, &many, NULL), ATTN_OK);
                options.threads = 1;
                assert_int_equal(attn_context_create(&options, &one, NULL), ATTN_OK);
                call c;
                begin(&c, 1, HEADS, HEADS, queries, KEYS, ATTN_CAUSAL_BOTTOM_RIGHT);
                float *tensors[] = {c.q, c.k, c.v};
                for (int t = 0; t < 3 && bf16; t++) { /* in place: element e moves to half of e */
                    const int64_t count = (int64_t)B * HEADS * (t ? KEYS : queries) * D;
                    for (int64_t e = 0; e < count; e++)
                        memcpy((char *)tensors[t] + 2 * e, (char *)(tensors[t] + e) + 2, 2);
                }
                c.args.q.dtype = c.args.k.dtype = c.args.v.dtype = c.args.out.dtype = dtype;
                assert_int_equal(attn_sdpa_forward(one, &c.args, NULL), ATTN_OK);
                void *want = malloc(n);
                assert_non_null(want);
                memcpy(want, c.out, n);
                memset(c.out, 0xA5, n);
                assert_int_equal(attni_sdpa_prepare(&c.plan, many, &c.args, NULL), ATTN_OK);
                assert_true(c.plan.parts > 1 && c.plan.tasks > 1);
                run_parts_backwards(&c.plan);
                assert_memory_equal(c.out, want, n);
                free(want);
                end(&c);
                attn_context_destroy(many);
                attn_context_destroy(one);
            }
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
            fail_msg("step %d: bytes is %.17g, want %.17g", step, info.bytes, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_query_is_in_one_task),
        cmocka_unit_test(the_longest_of_all_heads_come_first),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(equal_tasks_for_all_threads_are_not_cut),
        cmocka_unit_test(parts_in_any_order_give_the_bits_of_one_task),
        cmocka_unit_test(bytes_count_every_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
