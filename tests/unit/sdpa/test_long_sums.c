/* Sums over up to 20,000 keys keep the bound of docs/NUMERICS.md.
 *
 * labels: slow
 *
 * The bound hardly grows with the number of keys: sums are chains of 256 keys, and one chain of the
 * chunks' sums. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MOST = 3000 };
#else
enum { MOST = 20000 };
#endif

static const attn_dtype types[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};

static void fill(check_tensor *t, check_case *c, double mean, double spread)
{
    const int64_t *n = t->view.shape;
    for (int64_t e = 0; e < check_count(&t->view); e++)
        check_store(&t->view, 0, e / n[3] / n[2], e / n[3] % n[2], e % n[3],
                    mean + spread * check_normal(c));
}

/* The bound, and what a chain of 256 + S / 256 roundings that do not cancel costs beyond it. */
static void judge(check_case *c, const check_call *call, const ref_result *want)
{
    const attn_sdpa_args *a = &call->args;
    const int64_t n = check_count(&a->out), rows = check_count(a->lse), Dv = a->v.shape[3];
    const double u = check_unit(call->compute);
    const double more = sqrt(256 + (double)a->k.shape[2] / 256) / 2;
    double *bound = check_array(c, n), *of_lse = check_array(c, rows);
    for (int64_t i = 0; i < n; i++)
        bound[i] =
            ((8 + more) * u * (1 + want->reach[i / Dv]) + 2 * check_call_weight_error(c, call)) *
            want->mass[i];
    for (int64_t i = 0; i < rows; i++)
        of_lse[i] = (4 + more) * u * (1 + want->reach[i] + fabs(want->lse[i])) +
                    check_call_weight_error(c, call);
    check_call_judge_one(c, "out", call, &call->out, want->out, bound);
    check_call_judge_one(c, "lse", call, &call->lse, want->lse, of_lse);
}

/* Weights that differ, or all but equal ones: then each sum is of S numbers alike, with as many
 * roundings as there are numbers in its chain. */
static void long_rows(check_case *c)
{
    check_call call;
    memset(&call, 0, sizeof call);
    attn_sdpa_args_init(&call.args);
    attn_sdpa_args *a = &call.args;
    const attn_dtype type = CHECK_PICK(c, types);
    const int64_t S = check_between(c, MOST / 2, MOST), T = check_chance(c, 50) ? 1 : 9, D = 16;
    const bool alike = check_chance(c, 50);
    const int64_t queries[4] = {1, 2, T, D}, keys[4] = {1, 1, S, D}, rows[4] = {1, 2, T, 1};
    call.q = check_tensor_new(c, type, queries, CHECK_DENSE);
    call.k = check_tensor_new(c, type, keys, CHECK_DENSE);
    call.v = check_tensor_new(c, type, keys, CHECK_DENSE);
    call.out = check_tensor_new(c, type, queries, CHECK_DENSE);
    call.lse = check_tensor_new(c, ATTN_F64, rows, CHECK_DENSE);
    fill(&call.q, c, 0, 1), fill(&call.k, c, 0, alike ? 1e-3 : 1);
    fill(&call.v, c, 1.5, alike ? 0.1 : 1);
    a->q = call.q.view, a->k = call.k.view, a->v = call.v.view, a->out = call.out.view;
    a->lse = &call.lse.view;
    a->precision = check_chance(c, 20) ? ATTN_PRECISION_ACCURATE : ATTN_PRECISION_DEFAULT;
    call.compute = type == ATTN_F64 || (type == ATTN_F32 && a->precision) ? ATTN_F64 : ATTN_F32;
    check_describe(c, "%s T=%d S=%d%s%s", attn_dtype_name(type), (int)T, (int)S,
                   alike ? " weights alike" : "", a->precision ? " accurate" : "");
    ref_result want = {0};
    check_call_reference(c, &call, &want);
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, check_chance(c, 50) ? 1 : 3), a, &err))
        check_fail(c, "%s", err.message);
    judge(c, &call, &want);
}

static void test_long_rows(void **state)
{
    (void)state;
    run_property(long_rows, "long rows", 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
