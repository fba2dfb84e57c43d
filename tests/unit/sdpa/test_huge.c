/* Offsets beyond 2^31 and 2^32 elements give the bits of dense tensors.
 *
 * Tests each dimension of each tensor, with positive and negative strides, on mappings that are
 * huge and almost empty. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "attn.h"
#include "check/check_tensor.h"
#include "ref/attn_ref.h"
#include "support/same_elements.h"

enum { B = 2, H = 2, T = 3, S = 3, D = 2 };
enum { Q, K, V, OUT, MASK, LSE, SCORES, TENSORS };
static const char *const names[] = {"q", "k", "v", "out", "mask", "lse", "scores"};
static const int64_t last_size[] = {D, D, D, D, S, 1, S};

/* Copies between two views of the same shape. */
static void copy(const attn_tensor *to, const attn_tensor *from)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < T; i++)
                for (int64_t j = 0; j < to->shape[3]; j++)
                    check_store(to, b, h, i, j, ref_get(from, b, h, i, j));
}

static void run(attn_tensor *t)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_error err = {.message = ""};
    a.q = t[Q], a.k = t[K], a.v = t[V], a.out = t[OUT];
    a.mask = &t[MASK], a.lse = &t[LSE], a.scores = &t[SCORES];
    a.scores_stage = ATTN_STAGE_WEIGHTS;
    if (attn_sdpa_forward(NULL, &a, &err) != ATTN_OK)
        fail_msg("%s", err.message);
}

/* A view whose dimension d takes `step` elements, in fresh memory; *map is what to unmap. */
static attn_tensor spread(const attn_tensor *dense, int d, int64_t step, void **map, size_t *bytes)
{
    attn_tensor t = *dense;
    t.stride[d] = step;
    int64_t reach = (t.shape[d] - 1) * (step < 0 ? -step : step);
    size_t size = attn_dtype_size(t.dtype);
    *bytes = ((size_t)reach + 64) * size;
    *map = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    t.data = step < 0 && *map != MAP_FAILED ? (char *)*map + (size_t)reach * size : *map;
    return t;
}

static void test_huge_strides(void **state)
{
    (void)state;
    static const int64_t steps[] = {(INT64_C(1) << 31) - 1, (INT64_C(1) << 31) + 1,
                                    (INT64_C(1) << 32) + 1, -(INT64_C(1) << 31) - 1,
                                    -(INT64_C(1) << 32) - 1};
    static unsigned char memory[TENSORS][B * H * T * 4 * 4], before[sizeof memory[0]];
    attn_tensor dense[TENSORS];
    for (int n = 0; n < TENSORS; n++) {
        attn_dtype dtype = n == MASK ? ATTN_BOOL : n <= V ? ATTN_F16 : ATTN_F32;
        dense[n] = attn_bhtd(memory[n], dtype, B, H, T, last_size[n]);
        for (int64_t i = 0; n != LSE && i < B * H * T * last_size[n]; i++)
            check_store(&dense[n], 0, 0, 0, i, n == MASK ? i % 5 != 0 : sin((double)(i * (n + 1))));
    }
    run(dense);
    int done = 0;
    for (int n = 0; n < TENSORS; n++)
        for (int d = 0; d < 4; d++)
            for (size_t s = 0; s < sizeof steps / sizeof *steps && dense[n].shape[d] > 1; s++) {
                attn_tensor t[TENSORS];
                void *map;
                size_t bytes;
                memcpy(t, dense, sizeof t);
                t[n] = spread(&dense[n], d, steps[s], &map, &bytes);
                if (map == MAP_FAILED) {
                    print_message("%s, dimension %d: not run, no %zu GiB of address space\n",
                                  names[n], d, bytes >> 30);
                    continue;
                }
                const int64_t count = check_count(&dense[n]);
                memcpy(before, memory[n], (size_t)count * attn_dtype_size(dense[n].dtype));
                if (n <= V || n == MASK)
                    copy(&t[n], &dense[n]);
                memset(memory[OUT], 0xFF, sizeof memory[OUT]);
                run(t);
                copy(&dense[n], &t[n]); /* back, or what was computed there */
                munmap(map, bytes);
                describe_case("%s, dimension %d, stride %lld", names[n], d, (long long)steps[s]);
                expect_same_elements(names[n], dense[n].dtype, memory[n], before, count);
                run(dense);
                expect_same_elements("dense again", dense[n].dtype, memory[n], before, count);
                done++;
            }
    print_message("%d huge strides\n", done);
}

/* The result of inputs that lie far apart, against the same inputs side by side: K05 in one
 * call. */
static void test_all_at_once(void **state)
{
    (void)state;
    static unsigned char memory[TENSORS][B * H * T * 4 * 4], want[sizeof memory[0]];
    attn_tensor dense[TENSORS], t[TENSORS];
    void *maps[TENSORS];
    size_t bytes[TENSORS];
    for (int n = 0; n < TENSORS; n++) {
        attn_dtype dtype = n == MASK ? ATTN_BOOL : ATTN_BF16;
        dense[n] = attn_bhtd(memory[n], n == LSE ? ATTN_F32 : dtype, B, H, T, last_size[n]);
        for (int64_t i = 0; n != LSE && i < B * H * T * last_size[n]; i++)
            check_store(&dense[n], 0, 0, 0, i, n == MASK ? i % 7 != 2 : cos((double)(i * (n + 2))));
    }
    for (int n = 0; n < TENSORS; n++) {
        t[n] = spread(&dense[n], n % 3, (INT64_C(1) << 32) + 2 * n + 1, &maps[n], &bytes[n]);
        assert_true(maps[n] != MAP_FAILED);
        copy(&t[n], &dense[n]);
    }
    run(dense);
    const int64_t count = check_count(&dense[OUT]);
    memcpy(want, memory[OUT], (size_t)count * attn_dtype_size(dense[OUT].dtype));
    run(t);
    memset(memory[OUT], 0, sizeof memory[OUT]);
    copy(&dense[OUT], &t[OUT]);
    expect_same_elements("out", dense[OUT].dtype, memory[OUT], want, count);
    for (int n = 0; n < TENSORS; n++)
        munmap(maps[n], bytes[n]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_huge_strides),
        cmocka_unit_test(test_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
