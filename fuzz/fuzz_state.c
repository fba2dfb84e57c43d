/* Fuzz target: attn_sdpa_load. Any bytes give a state or an error. A state that was loaded is saved
 * to the same bytes, and its call comes to an end.
 *
 * The call is one of a few, by the T and the name of the instruction set in the bytes. Bytes with a
 * wrong checksum are tried a second time with the correct one, which no fuzzer would find.
 *
 * Built as described in fuzz_npy.c, but without the files of kit/ and -lzip.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../include/attn.h"
#include "seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STATE_CALLS = 4, STATE_KEYS = 700, STATE_ROWS = 9, STATE_WIDTH = 5 };

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* Call n; its T is n + STATE_ROWS - 3. Zeros are numbers of each type. */
static attn_sdpa_args state_call(int n)
{
    static double q[2 * STATE_ROWS * STATE_WIDTH], out[2 * STATE_ROWS * STATE_WIDTH];
    static double lse[2 * STATE_ROWS];
    static const int64_t starts_q[] = {0, 3, 5}, starts_k[] = {0, 300, 650};
    static attn_tensor lse_tensor;
    const attn_dtype dtypes[STATE_CALLS] = {ATTN_F32, ATTN_F64, ATTN_BF16, ATTN_F16};
    const int64_t T = STATE_ROWS - 3 + n, H = n == 1 ? 2 : 1;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, dtypes[n], 1, H, T, STATE_WIDTH);
    a.k = a.v = attn_bhtd(NULL, dtypes[n], 1, 1, STATE_KEYS, STATE_WIDTH);
    a.out = attn_bhtd(out, dtypes[n], 1, H, T, STATE_WIDTH);
    lse_tensor = attn_bhtd(lse, ATTN_F64, 1, H, T, 1);
    a.lse = &lse_tensor;
    if (n % 2 == 0) {
        a.cu_seqlens_q = starts_q, a.cu_seqlens_k = starts_k;
        a.sequences = 2;
    }
    return a;
}

static attn_context *state_context(const uint8_t *data, size_t size)
{
    static attn_context *generic, *best;
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    o.threads = 1;
    must(best || attn_context_create(&o, &best, NULL) == ATTN_OK);
    o.isa = "generic";
    must(generic || attn_context_create(&o, &generic, NULL) == ATTN_OK);
    return size >= 24 && memcmp(data + 16, "generic", 8) == 0 ? generic : best;
}

/* Feeds what is still needed, then finishes; at most three sweeps. */
static void end_call(attn_sdpa_state *state, attn_dtype dtype)
{
    static const double zeros[STATE_KEYS * STATE_WIDTH];
    int64_t first, past;
    attn_status status = ATTN_AGAIN;
    for (int sweep = 0; sweep < 3 && status == ATTN_AGAIN; sweep++) {
        while ((first = attn_sdpa_next(state, &past)) < STATE_KEYS) {
            const int64_t n = past - first < 512 ? past - first : 512;
            const attn_tensor keys = attn_bhtd(zeros, dtype, 1, 1, n, STATE_WIDTH);
            must(attn_sdpa_feed(state, first, &keys, &keys, NULL) == ATTN_OK);
        }
        status = attn_sdpa_finish(state, NULL);
    }
    must(status == ATTN_OK);
}

typedef struct state_text {
    const uint8_t *data;
    size_t size, at;
} state_text;

static int compare_state(void *user, const void *piece, size_t n)
{
    state_text *t = user;
    must(n <= t->size - t->at && memcmp(t->data + t->at, piece, n) == 0);
    t->at += n;
    return 0;
}

static bool load_state(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1); /* so that reading past the end is seen */
    must(copy != NULL);
    if (size)
        memcpy(copy, data, size);
    const unsigned call = size > 64 ? data[64] - (unsigned)(STATE_ROWS - 3) : 0;
    const attn_sdpa_args a = state_call(call < STATE_CALLS ? (int)call : 0);
    attn_sdpa_state *state = NULL;
    attn_error err = {0};
    const attn_status status =
        attn_sdpa_load(state_context(data, size), &a, NULL, copy, size, &state, &err);
    if (status == ATTN_OK) {
        state_text t = {data, size, 0};
        must(attn_sdpa_save(state, compare_state, &t, NULL) == ATTN_OK && t.at == size);
        end_call(state, a.q.dtype);
    } else {
        must(!state && err.status == status && err.message[0]);
    }
    attn_sdpa_end(state);
    free(copy);
    return status == ATTN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    load_state(data, size);
    if (size < 8)
        return 0;
    uint8_t *sealed = malloc(size);
    must(sealed != NULL);
    memcpy(sealed, data, size);
    seal_bytes(sealed, size);
    load_state(sealed, size);
    free(sealed);
    return 0;
}
