/* Multi-head attention refuses bad arguments and then writes nothing. */
#include "mha_case.h"

static void test_packed_errors(void **state)
{
    float weight[48], bias[12];
    attn_mha_args a, before;
    attn_error err;
    (void)state;
    attn_mha_args_init(&a);
    before = a;
#define REFUSE_PACKED(w, dtype, E, heads, status, argument, part)                                  \
    do {                                                                                           \
        const attn_status got = attn_mha_packed(&a, w, bias, dtype, E, heads, &err);               \
        expect_error(got, &err, status, argument, part);                                           \
        assert_memory_equal(&a, &before, sizeof a);                                                \
    } while (0)
    REFUSE_PACKED(weight, ATTN_F32, 4, 3, ATTN_ERR_SHAPE, "E",
                  "4 and heads is 3; E must be a multiple");
    REFUSE_PACKED(weight, ATTN_F32, -4, 2, ATTN_ERR_SHAPE, "E", "-4");
    REFUSE_PACKED(weight, ATTN_F32, 4, 0, ATTN_ERR_ARGUMENT, "heads", "at least 1");
    REFUSE_PACKED(weight, ATTN_F32, 4, -2, ATTN_ERR_ARGUMENT, "heads", "-2");
    REFUSE_PACKED(weight, ATTN_F16, 4, 2, ATTN_ERR_DTYPE, "dtype", "f16");
    REFUSE_PACKED(NULL, ATTN_F32, 4, 2, ATTN_ERR_ARGUMENT, "in_proj_weight", "[12, 4]");
    REFUSE_PACKED(weight, ATTN_F64, INT64_C(1) << 31, 2, ATTN_ERR_LIMIT, "E", "2147483648");
    REFUSE_PACKED(weight, ATTN_F32, INT64_C(1) << 40, 2, ATTN_ERR_LIMIT, "E", "address");
    assert_int_equal(attn_mha_packed(&a, weight, NULL, ATTN_F32, 4, 2, NULL), ATTN_OK);
    assert_null(a.b_q.data);
    assert_ptr_equal(a.w_k.data, weight + 16);
    assert_ptr_equal(a.w_v.data, weight + 32);
    assert_int_equal(attn_mha_packed(&a, NULL, NULL, ATTN_F32, 0, 2, NULL), ATTN_OK);
}

/* --------------------------------------------------------------------------------------- errors */

static void expect_refusal(const mha_case *c, const attn_mha_args *a, attn_status status,
                           const char *argument, const char *part)
{
    attn_error err = {0};
    expect_error(attn_mha_forward(NULL, a, &err), &err, status, argument, part);
    assert_int_equal(attn_mha_forward(NULL, a, NULL), status);
    expect_untouched(&c->out);
    expect_untouched(&c->scores);
    expect_untouched(&c->lse);
}

static void expect_null_refused(void)
{
    attn_error err = {0};
    expect_error(attn_mha_forward(NULL, NULL, &err), &err, ATTN_ERR_ARGUMENT, "args", "NULL");
}

static void test_errors(void **state)
{
    const mha_dims n = {2, 3, 5, 6, 7, 4, 2, 3, 8, 9, ATTN_F32, DENSE, true, true, true};
    const attn_tensor none = {0};
    mha_case c;
    attn_mha_args a;
    attn_sdpa_args attention;
    (void)state;
    test_state = 4;
    make_case(&c, &n);
#define REFUSE(change, status, argument, part)                                                     \
    do {                                                                                           \
        a = c.args;                                                                                \
        attention = c.attention;                                                                   \
        a.attention = &attention;                                                                  \
        change;                                                                                    \
        expect_refusal(&c, &a, status, argument, part);                                            \
    } while (0)
    REFUSE(a.struct_size = 0, ATTN_ERR_ARGUMENT, "struct_size", "attn_mha_args_init");
    REFUSE(attention.struct_size = 8, ATTN_ERR_ARGUMENT, "struct_size", "of attention is 8");
    REFUSE(a.x.shape[1] = 2; a.x.stride[1] = 0, ATTN_ERR_SHAPE, "x", "must be [2, 1, 3, 6]");
    REFUSE(a.x.shape[2] = -1, ATTN_ERR_SHAPE, "x", "-1");
    REFUSE(a.x.shape[3] = 5, ATTN_ERR_SHAPE, "w_q", "must be [1, 4, 3, 5]");
    REFUSE(a.source.shape[0] = 1, ATTN_ERR_SHAPE, "source", "must be [2, 1, 5, 7]");
    REFUSE(a.source.shape[3] = 6, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 6]");
    REFUSE(a.source = none, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 6]");
    REFUSE(a.w_q.shape[1] = 3, ATTN_ERR_SHAPE, "w_k", "2 heads and w_q has 3");
    REFUSE(a.w_q.shape[0] = 0, ATTN_ERR_SHAPE, "w_q", "must be [1, 4");
    REFUSE(a.w_k.shape[1] = 0, ATTN_ERR_SHAPE, "w_k", "0 heads");
    REFUSE(a.w_k.shape[2] = 2, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 7]");
    REFUSE(a.w_v.shape[1] = 1, ATTN_ERR_SHAPE, "w_v", "must be [1, 2, 8, 7]");
    REFUSE(a.w_v.shape[2] = 7, ATTN_ERR_SHAPE, "b_v", "must be [1, 2, 1, 7]");
    REFUSE(a.b_q.shape[3] = 2, ATTN_ERR_SHAPE, "b_q", "must be [1, 4, 1, 3]");
    REFUSE(a.b_k.shape[1] = 1, ATTN_ERR_SHAPE, "b_k", "must be [1, 2, 1, 3]");
    REFUSE(a.w_o.shape[3] = 31, ATTN_ERR_SHAPE, "w_o", "must be [1, 1, 9, 32]");
    REFUSE(a.b_o.shape[3] = 8, ATTN_ERR_SHAPE, "b_o", "must be [1, 1, 1, 9]");
    REFUSE(a.w_o = none, ATTN_ERR_ARGUMENT, "b_o", "without w_o");
    REFUSE(a.w_o = none; a.b_o = none, ATTN_ERR_SHAPE, "out", "must be [2, 1, 3, 32]");
    REFUSE(a.out.shape[3] = 8, ATTN_ERR_SHAPE, "out", "must be [2, 1, 3, 9]");
    REFUSE(a.out.shape[0] = 1, ATTN_ERR_SHAPE, "out", "must be [2, 1, 3, 9]");
    REFUSE(a.out.stride[2] = 8, ATTN_ERR_STRIDE, "out", "stride");
    REFUSE(a.w_q.data = NULL, ATTN_ERR_ARGUMENT, "w_q", "NULL");
    REFUSE(a.x.dtype = ATTN_F16, ATTN_ERR_DTYPE, "x", "f32 and f64");
    REFUSE(a.source.dtype = ATTN_F64, ATTN_ERR_DTYPE, "source", "x is f32");
    REFUSE(a.b_v.dtype = ATTN_BOOL, ATTN_ERR_DTYPE, "b_v", "bool");
    REFUSE(a.out.dtype = ATTN_BF16, ATTN_ERR_DTYPE, "out", "bf16");
    REFUSE(a.output_dropout = 1, ATTN_ERR_ARGUMENT, "output_dropout", "less than 1");
    REFUSE(a.output_dropout = (double)NAN, ATTN_ERR_ARGUMENT, "output_dropout", "nan");
    REFUSE(attention.dropout = -1, ATTN_ERR_ARGUMENT, "dropout", "-1");
    REFUSE(attention.scores = &c.lse.t, ATTN_ERR_SHAPE, "scores", "5");
    REFUSE(attention.mask = &c.x.t, ATTN_ERR_SHAPE, "mask", "mask");
    REFUSE(attention.cache = (const attn_cache *)(const void *)&a, ATTN_ERR_ARGUMENT, "cache",
           "leave it NULL");
    char workspace[64];
    REFUSE(attention.workspace = workspace;
           attention.workspace_bytes = sizeof workspace, ATTN_ERR_ARGUMENT, "workspace", "needs");
    expect_null_refused();
    check_case(NULL, &c); /* nothing above was wrong but what was changed */
    release_case(&c);
}

/* A larger struct of a later version: fine while what it adds is zero. */
static void test_struct_growth(void **state)
{
    struct {
        attn_mha_args args;
        uint64_t later;
    } grown = {.later = 0};
    const mha_dims n = {1, 2, 2, 3, 3, 1, 1, 2, 2, 2, ATTN_F64, DENSE, false, false, false};
    mha_case c;
    attn_error err = {0};
    (void)state;
    make_case(&c, &n);
    grown.args = c.args;
    grown.args.struct_size = sizeof grown;
    assert_int_equal(attn_mha_forward(NULL, &grown.args, NULL), ATTN_OK);
    grown.later = 1;
    expect_error(attn_mha_forward(NULL, &grown.args, &err), &err, ATTN_ERR_ARGUMENT, "struct_size",
                 "does not know");
    release_case(&c);
}

/* Sizes that no memory has, from tensors that repeat one number. */
static void test_limits(void **state)
{
    static float one = 1;
    const int64_t k = 1 << 20;
    attn_mha_args a;
    attn_error err = {0};
    (void)state;
    attn_mha_args_init(&a);
    a.x = attn_bhtd(&one, ATTN_F32, 1, 1, 1, 1);
    a.w_q = (attn_tensor){&one, ATTN_F32, {1, k * k, k, 1}, {0, 0, 0, 0}};
    a.w_k = (attn_tensor){&one, ATTN_F32, {1, k, k, 1}, {0, 0, 0, 0}};
    a.w_v = (attn_tensor){&one, ATTN_F32, {1, k, k * k, 1}, {0, 0, 0, 0}};
    a.out = attn_bhtd(NULL, ATTN_F32, 1, 1, 1, 0);
    expect_error(attn_mha_forward(NULL, &a, &err), &err, ATTN_ERR_LIMIT, "w_v", "addressed");

    /* all projections at once */
    a.x = (attn_tensor){&one, ATTN_F32, {k, 1, k, 1}, {0, 0, 0, 0}};
    a.w_q = a.w_k = (attn_tensor){&one, ATTN_F32, {1, k, k, 1}, {0, 0, 0, 0}};
    a.w_v = attn_bhtd(NULL, ATTN_F32, 1, k, 0, 1);
    a.out = attn_bhtd(NULL, ATTN_F32, k, 1, k, 0);
    expect_error(attn_mha_forward(NULL, &a, &err), &err, ATTN_ERR_LIMIT, "q", "address");

    /* rows that the counter of the output's dropout cannot number */
    a.w_q = a.w_k = a.w_v = attn_bhtd(NULL, ATTN_F32, 1, 0, 0, 1);
    a.output_dropout = 0.5;
    expect_error(attn_mha_forward(NULL, &a, &err), &err, ATTN_ERR_LIMIT, "output_dropout", "2^32");
}

/* Memory that fails, at whichever allocation, leaves all outputs as they were. */
static void test_memory(void **state)
{
    const mha_dims n = {2, 20, 20, 8, 8, 2, 2, 4, 4, 8, ATTN_F32, DENSE, false, true, true};
    failing_memory memory;
    mha_case c;
    (void)state;
    test_state = 6;
    make_case(&c, &n);
    attn_context *ctx = make_failing_context(&memory);
    int failures = 0;
    attn_status status = ATTN_ERR_MEMORY;
    for (int allowed = 0; status != ATTN_OK; allowed++) {
        describe_case("%d allocations are allowed", allowed);
        attn_error err = {0};
        memory.left = allowed;
        status = attn_mha_forward(ctx, &c.args, &err);
        if (status == ATTN_OK)
            break;
        expect_error(status, &err, ATTN_ERR_MEMORY, "", "memory");
        expect_untouched(&c.out);
        expect_untouched(&c.scores);
        expect_untouched(&c.lse);
        failures++;
    }
    assert_number(failures, >, 0);
    memory.left = 0; /* what was kept serves the next call */
    check_case(ctx, &c);
    attn_context_destroy(ctx);
    assert_int_equal(memory.live, 0);

    /* a caller's workspace: no memory at all */
    ctx = make_failing_context(&memory);
    memory.left = 0;
    c.attention.workspace_bytes = 1 << 20;
    c.attention.workspace = malloc(c.attention.workspace_bytes);
    assert_non_null(c.attention.workspace);
    check_case(ctx, &c);
    free(c.attention.workspace);
    attn_context_destroy(ctx);
    release_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_errors), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_struct_growth), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
