/* The span of keys that a tile of queries may see agrees with the masks' rules.
 *
 * Tests every tile and key, for the rules that depend on the shape only, with any former content of
 * the stack. */
#include <string.h>

#include "plan/plan.h"
#include "support/test.h"

enum { T = 9, S = 12 };

/* i + off - left <= j <= i + off + right; -1: open on that side. */
static bool in_window(int64_t i, int64_t j, int64_t off, int64_t left, int64_t right)
{
    return (left < 0 || j >= i + off - left) && (right < 0 || j <= i + off + right);
}

/* Fills the stack that the next call has for its variables. */
static __attribute__((noinline)) int leave_behind(int byte)
{
    volatile unsigned char stack[4096];
    for (size_t i = 0; i < sizeof stack; i++)
        stack[i] = (unsigned char)byte;
    return stack[17];
}

/* any0 .. any1 is exactly the keys that some query of the tile sees, all0 .. all1 those that every
 * one sees, as far as the window says. */
static void expect_span(const attni_sequence *sequence, int64_t i0, int64_t i1)
{
    static const int left_behind[] = {0, 0xFF, 0x7F, 0x80};
    const attn_sdpa_args *a = sequence->args;
    for (int n = 0; n < 4; n++) {
        leave_behind(left_behind[n]);
        const attni_span span = attni_mask_span(sequence, i0, i1);
        for (int64_t j = 0; j < S; j++) {
            bool any = false, all = true;
            for (int64_t i = i0; i < i1; i++) {
                const bool sees = in_window(i, j, sequence->off, a->window_left, a->window_right) &&
                                  (a->causal == ATTN_CAUSAL_NONE || j <= i + sequence->off) &&
                                  (!a->key_lengths || j < a->key_lengths[0]);
                any = any || sees, all = all && sees;
            }
            assert_int_equal(j >= span.any0 && j < span.any1, any);
            assert_int_equal(j >= span.all0 && j < span.all1, all);
        }
    }
}

static void test_spans(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 7, S};
    const attn_sdpa_args plain = ATTN_SDPA_ARGS_INIT;
    const unsigned of_every_call = attni_mask_kinds(&plain);
    for (int64_t left = -1; left < 6; left++)
        for (int64_t right = -1; right < 6; right++)
            for (int64_t off = -3; off <= 5; off += 2)
                for (int more = 0; more < 12; more++) {
                    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
                    a.window_left = left, a.window_right = right;
                    a.causal = more / 2 == 1 ? ATTN_CAUSAL_OFFSET : ATTN_CAUSAL_NONE;
                    a.key_lengths = more / 2 >= 2 ? &lengths[more / 2 - 2] : NULL;
                    attni_sequence sequence = {
                        .args = &a, .kinds = attni_mask_kinds(&a), .T = T, .S = S, .off = off};
                    if (more % 2) /* the rules by themselves, without the one of every sequence */
                        sequence.kinds &= ~of_every_call;
                    for (int64_t i0 = 0; i0 < T; i0++)
                        for (int64_t i1 = i0 + 1; i1 <= i0 + 4 && i1 <= T; i1++)
                            expect_span(&sequence, i0, i1);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
