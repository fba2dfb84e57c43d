/* Keys in pieces: attention over a file of keys and values, of which 4096 are in memory at a time.
 *
 * The file has 200,000 rows: a key, then its value. 64 queries look at all of them, then at a
 * window of 1000 keys around the middle, for which only the parts of the file that they see are
 * read. The results are those of one call with all keys, to the bit.
 *
 *   cc pieces.c $(pkg-config --cflags --libs attn)
 */
#include <attn.h>
#include <stdio.h>

enum { QUERIES = 64, KEYS = 200000, SIZE = 64, PIECE = 4096 };

static float q[QUERIES][SIZE], out[QUERIES][SIZE];
static float rows[PIECE][2][SIZE]; /* keys and values of a piece, as they are in the file */

/* Feeds the keys that are needed, from the file. Returns how many rows it read. */
static attn_status feed(attn_sdpa_state *state, FILE *file, long *read, attn_error *error)
{
    attn_status status = ATTN_OK;
    int64_t first, past;
    while (status == ATTN_OK && (first = attn_sdpa_next(state, &past)) < KEYS) {
        const int64_t n = past - first < PIECE ? past - first : PIECE;
        fseek(file, (long)(first * (int64_t)sizeof rows[0]), SEEK_SET);
        if (fread(rows, sizeof rows[0], (size_t)n, file) != (size_t)n)
            return ATTN_ERR_FILE;
        *read += (long)n;
        attn_tensor k = attn_bhtd(rows[0][0], ATTN_F32, 1, 1, n, SIZE);
        attn_tensor v = attn_bhtd(rows[0][1], ATTN_F32, 1, 1, n, SIZE);
        k.stride[2] = v.stride[2] = 2 * SIZE; /* they alternate */
        status = attn_sdpa_feed(state, first, &k, &v, error);
    }
    return status;
}

static attn_status attend(const attn_sdpa_args *args, FILE *file, attn_error *error)
{
    attn_sdpa_state *state = NULL;
    long read = 0;
    attn_status status = attn_sdpa_begin(NULL, args, NULL, &state, error);
    while (status == ATTN_OK && (status = feed(state, file, &read, error)) == ATTN_OK) {
        status = attn_sdpa_finish(state, error);
        if (status != ATTN_AGAIN)
            break;
        status = ATTN_OK; /* some rows were not finite: their keys are needed once more */
    }
    if (status == ATTN_OK)
        printf("out[0][0] = %.6f; %ld rows read; the state has %zu bytes\n", (double)out[0][0],
               read, attn_sdpa_state_bytes(state));
    attn_sdpa_end(state);
    return status;
}

int main(void)
{
    attn_error error = {.message = "the file cannot be written or read"};
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    FILE *file = tmpfile();
    if (!file)
        return 1;
    for (int64_t j = 0; j < KEYS; j += 2000) {
        attn_rng_randn(&rng, &rows[0][0][0], sizeof(float[2000][2][SIZE]) / sizeof(float));
        fwrite(rows, sizeof rows[0], 2000, file);
    }
    attn_rng_randn(&rng, &q[0][0], sizeof q / sizeof(float));

    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_bhtd(q, ATTN_F32, 1, 1, QUERIES, SIZE);
    args.k = args.v = attn_bhtd(NULL, ATTN_F32, 1, 1, KEYS, SIZE); /* the shape; no data */
    args.out = attn_bhtd(out, ATTN_F32, 1, 1, QUERIES, SIZE);
    attn_status status = attend(&args, file, &error);
    args.diagonal = ATTN_DIAGONAL_OFFSET;
    args.causal_offset = KEYS / 2;
    args.window_left = args.window_right = 500;
    if (status == ATTN_OK)
        status = attend(&args, file, &error);
    fclose(file);
    if (status != ATTN_OK)
        fprintf(stderr, "%s\n", error.message);
    return status != ATTN_OK;
}
