/* Calls agree with the definition in rare cases, on every instruction set.
 *
 * Random calls seldom reach these cases: every stage of the scores, soft caps over few queries,
 * numbers that are not finite beside small ones, rows that are NaN, and keys that are infinite in
 * the gradients. */
#include <math.h>
#include <string.h>

#include "check/check_call.h"
#include "support/property.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};

/* A call of these sizes, two heads over one of keys, dense; spread: of q and of k. */
static void new_call(check_case *c, check_call *call, attn_dtype dtype, const int64_t sizes[4],
                     double spread_q, double spread_k)
{
    const int64_t T = sizes[0], S = sizes[1], D = sizes[2], Dv = sizes[3];
    memset(call, 0, sizeof *call);
    attn_sdpa_args_init(&call->args);
    call->q = check_tensor_new(c, dtype, (int64_t[]){1, 2, T, D}, CHECK_DENSE);
    call->k = check_tensor_new(c, dtype, (int64_t[]){1, 1, S, D}, CHECK_DENSE);
    call->v = check_tensor_new(c, dtype, (int64_t[]){1, 1, S, Dv}, CHECK_DENSE);
    call->out = check_tensor_new(c, dtype, (int64_t[]){1, 2, T, Dv}, CHECK_DENSE);
    check_call_fill(c, &call->q, spread_q);
    check_call_fill(c, &call->k, spread_k);
    check_call_fill(c, &call->v, 1);
    call->args.q = call->q.view, call->args.k = call->k.view, call->args.v = call->v.view;
    call->args.out = call->out.view;
    call->compute = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    call->threads = 1;
}

static void with_scores(check_case *c, check_call *call, attn_stage stage)
{
    const int64_t *q = call->args.q.shape;
    const int64_t shape[4] = {q[0], q[1], q[2], call->args.k.shape[2]};
    call->scores = check_tensor_new(c, ATTN_F32, shape, CHECK_DENSE);
    call->args.scores = &call->scores.view;
    call->args.scores_stage = stage;
}

static void with_mask(check_case *c, check_call *call, attn_dtype dtype)
{
    const int64_t T = call->args.q.shape[2], S = call->args.k.shape[2];
    call->mask = check_tensor_new(c, dtype, (int64_t[]){1, 1, T, S}, CHECK_DENSE);
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < S; j++)
            check_store(&call->mask.view, 0, 0, i, j,
                        dtype == ATTN_BOOL ? (i + 2 * j) % 5 != 0
                        : (i + j) % 7 == 0 ? -INFINITY
                                           : 0.25 * (double)((i + 3 * j) % 9));
    call->args.mask = &call->mask.view;
}

/* Runs it and compares out, lse and scores with the definition. */
static void judge(check_case *c, check_call *call)
{
    ref_result want;
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, call->threads), &call->args, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    check_call_reference(c, call, &want);
    check_call_judge(c, call, &want);
    check_expect_intact(c);
}

static void done(check_case *c)
{
    check_arrays_free(c);
    check_buffers_reset(c->run->buffers);
}

/* ---------------------------------------------------------------------------------- the stages */

static void every_stage(check_case *c)
{
    static const double scales[] = {0.125, 0.3, -0.7};
    static const char *const ways[] = {"plain", "causal", "cap", "bool", "float", "cap and float"};
    static const int64_t sizes[][4] = {{3, 70, 24, 8}, {40, 130, 24, 8}, {20, 64, 64, 8}};
    for (size_t type = 0; type < COUNT(dtypes); type++)
        for (size_t n = type; n < COUNT(sizes) * COUNT(scales) * COUNT(ways); n += 4)
            for (int stage = ATTN_STAGE_RAW; stage <= ATTN_STAGE_WEIGHTS; stage++) {
                const size_t way = n / COUNT(scales) % COUNT(ways);
                check_call call;
                new_call(c, &call, dtypes[type], sizes[n / COUNT(scales) / COUNT(ways)], 1, 1);
                call.args.scale = scales[n % COUNT(scales)];
                if (way == 1)
                    call.args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
                if (way == 2 || way == 5)
                    call.args.softcap = 1.5;
                if (way >= 3)
                    with_mask(c, &call, way == 3 ? ATTN_BOOL : ATTN_F32);
                with_scores(c, &call, (attn_stage)stage);
                check_describe(c, "stage %d, %s, %s, scale %g, %d queries", stage, ways[way],
                               attn_dtype_name(dtypes[type]), call.args.scale,
                               (int)call.args.q.shape[2]);
                judge(c, &call);
                done(c);
            }
}

/* ---------------------------------------------------------------------------------- few queries */

/* With a soft cap, which every score must get: the last ones of a block and of a chunk too. */
static void few_queries_with_a_cap(check_case *c)
{
    static const int64_t queries[] = {1, 4, 8, 9}, keys[] = {1,  2,   15,  16,  17,  31,  33,  63,
                                                             65, 200, 241, 255, 256, 257, 271, 512};
    for (size_t type = 0; type < COUNT(dtypes); type++)
        for (size_t n = 0; n < COUNT(queries) * COUNT(keys); n++) {
            const int64_t T = queries[n % COUNT(queries)], S = keys[n / COUNT(queries)];
            check_call call;
            new_call(c, &call, dtypes[type], (int64_t[]){T, S, 32, 4}, 3, 3);
            call.args.scale = 0.7;
            call.args.softcap = 2;
            check_describe(c, "cap, %s, T %d, S %d", attn_dtype_name(dtypes[type]), (int)T, (int)S);
            judge(c, &call);
            done(c);
        }
}

/* --------------------------------------------------------------------------- what is not finite */

/* A NaN or an infinity in queries whose keys are tiny, or in keys whose queries are: the product of
 * the largest numbers says nothing of it then. */
static void not_finite_beside_small(check_case *c)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    static const double small[] = {1, 0x1p-6, 0x1p-11};
    for (size_t type = 0; type < COUNT(dtypes); type++)
        for (int n = 0; n < 3 * 3 * 2 * 2; n++) {
            const double x = odd[n % 3], tiny = small[n / 3 % 3];
            const bool in_q = n / 9 % 2;
            const int64_t T = n / 18 ? 40 : 3, S = 128;
            check_call call;
            new_call(c, &call, dtypes[type], (int64_t[]){T, S, 32, 4}, in_q ? 1 : tiny,
                     in_q ? tiny : 1);
            if (in_q)
                check_store(&call.args.q, 0, 1, T - 1, 5, x);
            else
                check_store(&call.args.k, 0, 0, 70, 5, x);
            check_describe(c, "%g in %s, %s, the other %g, T %d", x, in_q ? "q" : "k",
                           attn_dtype_name(dtypes[type]), tiny, (int)T);
            judge(c, &call);
            done(c);
        }
}

/* A query whose only number is infinite: 0 * inf is NaN with one key, and -inf with all others, so
 * that no score shows but the NaN. */
static void one_nan_among_hidden(check_case *c)
{
    static const double small[] = {1, 0x1p-6, 0x1p-11, 0x1p-13};
    enum { S = 128, D = 32, BAD = 70 };
    for (size_t type = 0; type < COUNT(dtypes); type++)
        for (int n = 0; n < 8; n++) {
            const int64_t T = n / 4 ? 40 : 3;
            check_call call;
            new_call(c, &call, dtypes[type], (int64_t[]){T, S, D, 4}, 1, small[n % 4]);
            for (int64_t j = 0; j < S; j++)
                check_store(&call.args.k, 0, 0, j, 5, j == BAD ? 0 : -small[n % 4]);
            for (int64_t d = 0; d < D; d++)
                check_store(&call.args.q, 0, 1, T - 1, d, d == 5 ? INFINITY : 0);
            check_describe(c, "one NaN, %s, keys %g, T %d", attn_dtype_name(dtypes[type]),
                           small[n % 4], (int)T);
            judge(c, &call);
            done(c);
        }
}

/* The weights of a row that is NaN: NaN where the row sees the key and 0 where it does not, in each
 * place of a block. */
static void weights_of_nan_rows(check_case *c)
{
    enum { T = 20, S = 140, HEADS = 2 };
    for (size_t type = 0; type < COUNT(dtypes); type++)
        for (int way = 0; way < 4; way++) {
            const int64_t few = way % 2 ? T : 2;
            check_call call;
            new_call(c, &call, dtypes[type], (int64_t[]){few, S, 24, 24}, 1, 1);
            with_scores(c, &call, ATTN_STAGE_WEIGHTS);
            if (way / 2 == 0) /* the first and the last key of a block are hidden, or one is seen */
                call.args.window_left = 70, call.args.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
            else
                with_mask(c, &call, ATTN_BOOL);
            check_store(&call.args.q, 0, 1, few - 1, 3, NAN);
            check_store(&call.args.q, 0, 0, 0, 0, NAN);
            check_describe(c, "weights of NaN rows, %s, way %d", attn_dtype_name(dtypes[type]),
                           way);
            if (attn_sdpa_forward(check_context(c, 1), &call.args, NULL) != ATTN_OK)
                check_fail(c, "refused");
            for (int h = 0; h < HEADS; h++)
                for (int64_t i = 0; i < few; i++)
                    for (int64_t j = 0; j < S; j++) {
                        const double w = ref_get(call.args.scores, 0, h, i, j);
                        const bool seen = way / 2 == 0 ? j <= i + S - few && j >= i + S - few - 70
                                                       : (i + 2 * j) % 5 != 0;
                        const bool bad = h == 1 ? i == few - 1 : i == 0;
                        if (seen ? (bad ? !isnan(w) : !(w > 0 && w < 1)) : w != 0)
                            check_fail(c, "weight [%d,%d,%d] is %g, want %s", h, (int)i, (int)j, w,
                                       !seen ? "0"
                                       : bad ? "NaN"
                                             : "one between 0 and 1");
                    }
            done(c);
        }
}

/* ------------------------------------------------------------------------------------ gradients */

static void expect_gradient(check_case *c, int n, const attn_tensor *got, const double *want)
{
    const double *x = check_tensor_copy(c, got);
    for (int64_t e = 0; e < check_count(got); e++)
        if (isnan(want[e]) ? !isnan(x[e]) : !(fabs(x[e] - want[e]) <= 0.05))
            check_fail(c, "gradient %d [%d] is %g, want %g (tolerance 0.05)", n, (int)e, x[e],
                       want[e]);
}

/* A key that is infinite in one component, under a soft cap: its score is the cap, so that the
 * forward is finite; the cap's slope there is 0, and dq is 0 * inf in that component. */
static void gradients_of_infinite_keys(check_case *c)
{
    enum { T = 40, S = 100, D = 32, AT = 7, BAD = 70 };
    for (size_t type = 0; type < COUNT(dtypes); type++)
        for (int wanted = 1; wanted < 8; wanted++) {
            check_call call;
            new_call(c, &call, dtypes[type], (int64_t[]){T, S, D, D}, 1, 1);
            check_tensor dout = check_tensor_new(c, dtypes[type], call.args.out.shape, CHECK_DENSE);
            check_call_fill(c, &dout, 1);
            for (int h = 0; h < 2; h++)
                for (int64_t i = 0; i < T; i++)
                    check_store(&call.args.q, 0, h, i, AT, 1 + (double)i / T);
            check_store(&call.args.k, 0, 0, BAD, AT, wanted % 2 ? INFINITY : -INFINITY);
            call.args.softcap = 3;
            call.args.causal = ATTN_CAUSAL_BOTTOM_RIGHT; /* query i sees keys up to i + S - T */
            check_tensor lse = check_tensor_new(c, ATTN_F32, (int64_t[]){1, 2, T, 1}, CHECK_DENSE);
            call.args.lse = &lse.view;
            check_describe(c, "an infinite key, %s, gradients %d", attn_dtype_name(dtypes[type]),
                           wanted);
            attn_error err = {0};
            if (attn_sdpa_forward(check_context(c, 1), &call.args, &err) != ATTN_OK)
                check_fail(c, "%s", err.message);
            attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
            check_tensor dq = check_tensor_new(c, ATTN_F32, call.args.q.shape, CHECK_DENSE);
            check_tensor dk = check_tensor_new(c, ATTN_F32, call.args.k.shape, CHECK_DENSE);
            check_tensor dv = check_tensor_new(c, ATTN_F32, call.args.v.shape, CHECK_DENSE);
            g.dout = dout.view;
            if (wanted & 1)
                g.dq = dq.view;
            if (wanted & 2)
                g.dk = dk.view;
            if (wanted & 4)
                g.dv = dv.view;
            if (attn_sdpa_backward(check_context(c, 1), &call.args, &g, &err) != ATTN_OK)
                check_fail(c, "%s", err.message);
            double *want[3], *error[3];
            const check_tensor *got[3] = {&dq, &dk, &dv};
            for (int n = 0; n < 3; n++) {
                want[n] = check_array(c, check_count(&got[n]->view));
                error[n] = check_array(c, check_count(&got[n]->view));
            }
            const ref_grads result = {.dq = {want[0], error[0]},
                                      .dk = {want[1], error[1]},
                                      .dv = {want[2], error[2]}};
            ref_sdpa_backward(&call.args, &g, &result);
            for (int h = 0; h < 2; h++) /* what is said above */
                for (int64_t i = 0; i < T; i++)
                    if (isnan(want[0][(h * T + i) * D + AT]) != (i + S - T >= BAD) ||
                        !isfinite(want[0][(h * T + i) * D + AT + 1]))
                        check_fail(c, "the reference's dq of row %d", (int)i);
            for (int n = 0; n < 3; n++)
                if (wanted >> n & 1)
                    expect_gradient(c, n, &got[n]->view, want[n]);
            check_expect_intact(c);
            done(c);
        }
}

static void run_once(void (*property)(check_case *)) { run_property(property, "definition", 1); }

static void test_stages(void **state) { (void)state, run_once(every_stage); }
static void test_caps(void **state) { (void)state, run_once(few_queries_with_a_cap); }
static void test_not_finite(void **state) { (void)state, run_once(not_finite_beside_small); }
static void test_one_nan(void **state) { (void)state, run_once(one_nan_among_hidden); }
static void test_nan_rows(void **state) { (void)state, run_once(weights_of_nan_rows); }
static void test_infinite_keys(void **state) { (void)state, run_once(gradients_of_infinite_keys); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages),        cmocka_unit_test(test_caps),
        cmocka_unit_test(test_not_finite),    cmocka_unit_test(test_nan_rows),
        cmocka_unit_test(test_infinite_keys), cmocka_unit_test(test_one_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
