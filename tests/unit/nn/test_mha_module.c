/* attn_mha with packed weights gives the bits of attn_mha_forward.
 *
 * labels: threads
 *
 * This holds for any shape and number of threads, and if the caller's weights change afterwards.
 * Also tests which arguments create and run refuse. */
#include <pthread.h>

#include "mha_case.h"

/* ----------------------------------------------------------------------------------------- bits */

static attn_mha *create(attn_context *ctx, const mha_case *c)
{
    attn_mha *module = NULL;
    attn_error err = {0};
    if (attn_mha_create(ctx, &c->args, &module, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    assert_non_null(module);
    return module;
}

/* Outputs of a case into tensors of their own, out with no gaps. */
typedef struct outputs {
    test_tensor out, scores, lse;
} outputs;

static outputs run_module(attn_context *ctx, const attn_mha *module, const mha_case *c)
{
    const int64_t *n = c->out.t.shape, *s = c->scores.t.shape;
    outputs o = {.out = make_tensor(c->out.t.dtype, DENSE, n[0], n[1], n[2], n[3])};
    o.scores = make_tensor(c->scores.t.dtype, DENSE, s[0], s[1], s[2], s[3]);
    o.lse = make_tensor(c->lse.t.dtype, DENSE, s[0], s[1], s[2], 1);
    attn_mha_args a = c->args;
    attn_error err = {0};
    /* what run must not look at */
    memset(&a.w_q, 0xA5, sizeof a.w_q);
    memset(&a.w_k, 0xA5, sizeof a.w_k);
    memset(&a.w_v, 0xA5, sizeof a.w_v);
    memset(&a.w_o, 0xA5, sizeof a.w_o);
    memset(&a.b_q, 0xA5, sizeof a.b_q);
    memset(&a.b_k, 0xA5, sizeof a.b_k);
    memset(&a.b_v, 0xA5, sizeof a.b_v);
    memset(&a.b_o, 0xA5, sizeof a.b_o);
    a.out = o.out.t;
    attn_sdpa_args attention = c->attention;
    attention.scores = &o.scores.t;
    attention.lse = &o.lse.t;
    a.attention = &attention;
    if (attn_mha_run(ctx, module, &a, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    return o;
}

static void expect_outputs(outputs *o, const mha_case *c)
{
    expect_same_bits(&o->out.t, &c->out.t, "out, packed");
    expect_same_bits(&o->scores.t, &c->scores.t, "weights, packed");
    expect_same_bits(&o->lse.t, &c->lse.t, "lse, packed");
    release(&o->out);
    release(&o->scores);
    release(&o->lse);
}

/* The caller's weights are the caller's again. */
static void spoil_weights(mha_case *c)
{
    for (int i = 0; i < 4; i++) {
        if (c->w[i].memory)
            memset(c->w[i].memory, 0x7F, c->w[i].bytes);
        if (c->b[i].memory)
            memset(c->b[i].memory, 0x7F, c->b[i].bytes);
    }
}

/* A module gives the bits of the call, twice, and does not look at the caller's weights again. */
static void expect_module(attn_context *ctx, mha_case *c)
{
    attn_mha *module = create(ctx, c);
    spoil_weights(c);
    for (int again = 0; again < 2; again++) {
        outputs o = run_module(ctx, module, c);
        expect_outputs(&o, c);
    }
    attn_mha_destroy(module);
}

static void test_random_modules(void **state)
{
    (void)state;
    check_random_cases(411, expect_module);
}

/* Sizes with every kind of panel: heads of 1, 2 and 4 vectors, runs that are whole and not. */
static const mha_dims large[] = {
    {1, 70, 70, 140, 140, 3, 3, 64, 80, 100, ATTN_F32, DENSE, false, true, true},
    {2, 9, 40, 64, 200, 4, 2, 20, 40, 129, ATTN_F32, ODD, true, true, true},
    {1, 130, 130, 65, 65, 2, 1, 33, 17, 64, ATTN_F64, DENSE, false, false, true},
    {3, 1, 90, 128, 128, 2, 2, 64, 64, 128, ATTN_F32, DENSE, true, true, false},
};

static void test_large_modules(void **state)
{
    static const int threads[] = {1, 2, 3, 7};
    (void)state;
    test_state = 93;
    for (size_t i = 0; i < COUNT(large); i++) {
        mha_case c;
        mha_dims n = large[i];
        if (!n.has_w_o)
            n.Out = n.H * n.Dv;
        make_case(&c, &n);
        c.args.output_dropout = 0.2;
        if (!n.has_w_o)
            c.args.b_o = (attn_tensor){0};
        assert_int_equal(attn_mha_forward(NULL, &c.args, NULL), ATTN_OK);
        attn_mha *module = create(NULL, &c);
        for (size_t k = 0; k < COUNT(threads); k++) {
            describe_case("row %zu of large, %d threads", i, threads[k]);
            attn_context *ctx = make_context(threads[k], NULL, NULL);
            outputs o = run_module(ctx, module, &c);
            expect_outputs(&o, &c);
            attn_context_destroy(ctx);
        }
        attn_mha_destroy(module);
        release_case(&c);
    }
}

/* Threads with contexts of their own, on one module. */
typedef struct runner {
    const attn_mha *module;
    const mha_case *c;
    pthread_t thread;
    outputs o;
} runner;

static void *run_often(void *arg)
{
    runner *r = arg;
    for (int again = 0; again < 5; again++) {
        if (again > 0) {
            release(&r->o.out);
            release(&r->o.scores);
            release(&r->o.lse);
        }
        r->o = run_module(NULL, r->module, r->c);
    }
    return NULL;
}

static void test_at_once(void **state)
{
    runner r[4];
    mha_case c;
    (void)state;
    test_state = 12;
    make_case(&c, &large[0]);
    assert_int_equal(attn_mha_forward(NULL, &c.args, NULL), ATTN_OK);
    attn_mha *module = create(NULL, &c);
    for (size_t i = 0; i < COUNT(r); i++) {
        r[i] = (runner){.module = module, .c = &c};
        assert_int_equal(pthread_create(&r[i].thread, NULL, run_often, &r[i]), 0);
    }
    for (size_t i = 0; i < COUNT(r); i++) {
        assert_int_equal(pthread_join(r[i].thread, NULL), 0);
        expect_outputs(&r[i].o, &c);
    }
    attn_mha_destroy(module);
    release_case(&c);
}

/* --------------------------------------------------------------------------------------- errors */

static void test_create_errors(void **state)
{
    const mha_dims n = {2, 3, 5, 6, 7, 4, 2, 3, 8, 9, ATTN_F32, DENSE, true, true, true};
    const attn_tensor none = {0};
    mha_case c;
    attn_mha_args a;
    attn_error err = {0};
    attn_mha *module = NULL;
    (void)state;
    make_case(&c, &n);
#define REFUSE(change, status, argument, part)                                                     \
    do {                                                                                           \
        a = c.args;                                                                                \
        change;                                                                                    \
        module = (attn_mha *)&c;                                                                   \
        expect_error(attn_mha_create(NULL, &a, &module, &err), &err, status, argument, part);      \
        assert_null(module);                                                                       \
    } while (0)
    REFUSE(a.struct_size = 0, ATTN_ERR_ARGUMENT, "struct_size", "attn_mha_args_init");
    REFUSE(a.w_q.data = NULL, ATTN_ERR_ARGUMENT, "w_q", "NULL");
    REFUSE(a.w_q.dtype = ATTN_F16, ATTN_ERR_DTYPE, "w_q", "f32 and f64");
    REFUSE(a.w_k.dtype = ATTN_F64, ATTN_ERR_DTYPE, "w_k", "w_q is f32");
    REFUSE(a.b_o.dtype = ATTN_F64, ATTN_ERR_DTYPE, "b_o", "w_q is f32");
    REFUSE(a.w_q.shape[1] = 3, ATTN_ERR_SHAPE, "w_k", "2 heads and w_q has 3");
    REFUSE(a.w_k.shape[2] = 2, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 7]");
    REFUSE(a.w_v.shape[3] = 6, ATTN_ERR_SHAPE, "w_v", "must be [1, 2, 8, 7]");
    REFUSE(a.b_v.shape[3] = 7, ATTN_ERR_SHAPE, "b_v", "must be [1, 2, 1, 8]");
    REFUSE(a.w_o.shape[3] = 31, ATTN_ERR_SHAPE, "w_o", "must be [1, 1, 9, 32]");
    REFUSE(a.w_o = none, ATTN_ERR_ARGUMENT, "b_o", "without w_o");
    REFUSE(a.w_q.shape[3] = INT64_C(1) << 56; a.w_q.stride[3] = 0; a.w_q.stride[1] = 0;
           a.w_q.shape[1] = a.b_q.shape[1] = 16; a.w_o.shape[3] = 16 * 8, ATTN_ERR_LIMIT, "w_q",
                                                 "more than can be addressed when packed");
    expect_error(attn_mha_create(NULL, NULL, &module, &err), &err, ATTN_ERR_ARGUMENT, "args",
                 "NULL");
    expect_error(attn_mha_create(NULL, &c.args, NULL, &err), &err, ATTN_ERR_ARGUMENT, "out",
                 "NULL");
    attn_mha_destroy(NULL);

    a = c.args; /* nothing but weights and biases is looked at: attention points nowhere */
    memset(&a.x, 0xA5, sizeof a.x);
    memset(&a.source, 0xA5, sizeof a.source);
    memset(&a.out, 0xA5, sizeof a.out);
    memset(&a.attention, 0xA5, sizeof a.attention);
    memset(&a.output_dropout, 0xA5, sizeof a.output_dropout);
    memset(&a.output_dropout_seed, 0xA5, sizeof a.output_dropout_seed);
    assert_int_equal(attn_mha_create(NULL, &a, &module, NULL), ATTN_OK);
    attn_mha_destroy(module);
    release_case(&c);
}

static void test_run_errors(void **state)
{
    const mha_dims n = {2, 3, 5, 6, 7, 4, 2, 3, 8, 9, ATTN_F32, DENSE, true, true, true};
    mha_case c;
    attn_mha_args a;
    attn_error err = {0};
    (void)state;
    make_case(&c, &n);
    attn_mha *module = create(NULL, &c);
#define REFUSE_RUN(change, status, argument, part)                                                 \
    do {                                                                                           \
        a = c.args;                                                                                \
        change;                                                                                    \
        expect_error(attn_mha_run(NULL, module, &a, &err), &err, status, argument, part);          \
        expect_untouched(&c.out);                                                                  \
    } while (0)
    REFUSE_RUN(a.struct_size = 0, ATTN_ERR_ARGUMENT, "struct_size", "attn_mha_args_init");
    REFUSE_RUN(a.x.shape[3] = 5, ATTN_ERR_SHAPE, "w_q", "must be [1, 4, 3, 5]");
    REFUSE_RUN(a.source.shape[3] = 6, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 6]");
    REFUSE_RUN(a.out.shape[3] = 8, ATTN_ERR_SHAPE, "out", "must be [2, 1, 3, 9]");
    REFUSE_RUN(a.x.data = NULL, ATTN_ERR_ARGUMENT, "x", "NULL");
    REFUSE_RUN(a.x.dtype = ATTN_F64, ATTN_ERR_DTYPE, "source", "x is f64");
    REFUSE_RUN(a.output_dropout = 1, ATTN_ERR_ARGUMENT, "output_dropout", "less than 1");
    expect_error(attn_mha_run(NULL, NULL, &c.args, &err), &err, ATTN_ERR_ARGUMENT, "module",
                 "NULL");
    expect_error(attn_mha_run(NULL, module, NULL, &err), &err, ATTN_ERR_ARGUMENT, "args", "NULL");

    attn_context *ctx = make_context(1, "generic", NULL); /* everybody's other instruction set */
    if (strcmp(attn_context_isa(ctx), attn_context_isa(NULL)) != 0)
        expect_error(attn_mha_run(ctx, module, &c.args, &err), &err, ATTN_ERR_ARGUMENT, "ctx",
                     "ctx uses generic");
    attn_context_destroy(ctx);
    expect_untouched(&c.out);
    attn_mha_destroy(module);
    release_case(&c);
}

/* The context's allocator fails at every call in turn; in the end nothing is left. */
static void test_memory(void **state)
{
    const mha_dims n = {1, 4, 4, 6, 6, 2, 2, 3, 3, 5, ATTN_F32, DENSE, false, true, true};
    failing_memory memory;
    mha_case c;
    attn_error err = {0};
    (void)state;
    test_state = 3;
    make_case(&c, &n);
    attn_context *ctx = make_failing_context(&memory);
    attn_mha *module = (attn_mha *)&c;
    memory.left = 0;
    expect_error(attn_mha_create(ctx, &c.args, &module, &err), &err, ATTN_ERR_MEMORY, "",
                 "packed weights");
    assert_null(module);
    memory.left = 1;
    module = create(ctx, &c);
    assert_int_equal(memory.live, 2); /* the context and the module */
    expect_error(attn_mha_run(ctx, module, &c.args, &err), &err, ATTN_ERR_MEMORY, "", "scratch");
    expect_untouched(&c.out);
    memory.left = 1;
    assert_int_equal(attn_mha_run(ctx, module, &c.args, NULL), ATTN_OK);
    attn_mha_destroy(module);
    assert_int_equal(memory.live, 2); /* the context and its scratch */
    attn_context_destroy(ctx);
    assert_int_equal(memory.live, 0);
    release_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_modules), cmocka_unit_test(test_large_modules),
        cmocka_unit_test(test_at_once),        cmocka_unit_test(test_create_errors),
        cmocka_unit_test(test_run_errors),     cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
