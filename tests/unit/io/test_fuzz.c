/* The fuzz targets of fuzz/ accept their seeds and a fixed run of random inputs.
 *
 * labels: slow
 *
 * This keeps them working where no fuzzer runs. With ATTN_FUZZ_CORPUS=FOLDER in the environment,
 * the seeds are written to FOLDER (npy-0, npz-0, ...) and the random inputs are left out: `make
 * fuzz` starts from these files. */
#define _GNU_SOURCE
#include "support/io_testing.h"
#include "support/tokenizer_samples.h"

#define LLVMFuzzerTestOneInput fuzz_npy
#define must must_npy
#include "fuzz/fuzz_npy.c"
#undef LLVMFuzzerTestOneInput
#undef must

#define LLVMFuzzerTestOneInput fuzz_npz
#define must must_npz
#include "fuzz/fuzz_npz.c"
#undef LLVMFuzzerTestOneInput
#undef must

#define LLVMFuzzerTestOneInput fuzz_safetensors
#define must must_safetensors
#include "fuzz/fuzz_safetensors.c"
#undef LLVMFuzzerTestOneInput
#undef must

#define LLVMFuzzerTestOneInput fuzz_tokenizer
#define must must_tokenizer
#include "fuzz/fuzz_tokenizer.c"
#undef LLVMFuzzerTestOneInput
#undef must

#define LLVMFuzzerTestOneInput fuzz_model
#define must must_model
#include "fuzz/fuzz_model.c"
#undef LLVMFuzzerTestOneInput
#undef must

#define LLVMFuzzerTestOneInput fuzz_cache
#define must must_cache
#define number number_cache
#include "fuzz/fuzz_cache.c"
#undef LLVMFuzzerTestOneInput
#undef must
#undef number

#define LLVMFuzzerTestOneInput fuzz_state
#define must must_state
#include "fuzz/fuzz_state.c"
#undef LLVMFuzzerTestOneInput
#undef must

#define LLVMFuzzerTestOneInput fuzz_sdpa
#include "fuzz/fuzz_sdpa.c"
#undef LLVMFuzzerTestOneInput

enum { SDPA_INPUTS = 1000, SDPA_SEEDS = 20, FILE_INPUTS = 20000, LONGEST = 1024 };

static uint8_t random_byte(void)
{
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (uint8_t)(random_state >> 56);
}

/* Where to write the seeds, or NULL: run the random inputs. */
static const char *seed_folder(void) { return getenv("ATTN_FUZZ_CORPUS"); }

static void keep_seed(const char *kind, int i, bytes b)
{
    const char *folder = seed_folder();
    char path[4200];
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/%s-%d", folder, kind, i);
    write_file(path, b);
}

/* A seed as it is, and with three random bytes in it, over and over. */
static void around_seed(int (*target)(const uint8_t *data, size_t size), bytes b, int times)
{
    target(b.data, b.size);
    if (seed_folder())
        return;
    for (int n = 0; n < times; n++) {
        size_t at[3];
        unsigned char was[3];
        for (int k = 0; k < 3; k++) {
            at[k] = (size_t)(random_byte() << 8 | random_byte()) % b.size;
            was[k] = b.data[at[k]];
            b.data[at[k]] = random_byte();
        }
        target(b.data, b.size);
        for (int k = 3; k-- > 0;)
            b.data[at[k]] = was[k];
    }
}

static void test_fuzz_files(void **state)
{
    (void)state;
    static const char *const descrs[] = {"'<f4'", "'>i2'", "'|b1'", "'<u8'"};
    static const size_t sizes[] = {4, 2, 1, 8};
    for (int i = 0; i < 4; i++) {
        member m[] = {
            {.name = "q.npy", .data = npy(descrs[i], i & 1, "(2, 3)", NULL, 6 * sizes[i])},
            {.name = "k.npy", .data = npy(descrs[i], 0, "()", NULL, sizes[i]), .zip64 = i & 1}};
        bytes z = zip(m, 2);
        keep_seed("npy", i, m[0].data);
        keep_seed("npz", i, z);
        around_seed(fuzz_npy, m[0].data, FILE_INPUTS / 8);
        around_seed(fuzz_npz, z, FILE_INPUTS / 8);
        bytes_free(&z);
        bytes_free(&m[0].data);
        bytes_free(&m[1].data);
    }
}

static void test_fuzz_safetensors(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
        "{\"__metadata__\":{\"k\":\"v\"},\"q\":{\"dtype\":\"BOOL\",\"shape\":[3],"
        "\"data_offsets\":[8,11]},\"k\":{\"dtype\":\"U64\",\"shape\":[],"
        "\"data_offsets\":[0,8]}}   ",
        "{\"e\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[0,0]}}"};
    static const size_t sizes[] = {24, 11, 0};
    for (int i = 0; i < 3; i++) {
        bytes b = {0};
        put_number(&b, strlen(headers[i]), 8);
        put_text(&b, headers[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            put_number(&b, k % 2, 1);
        keep_seed("safetensors", i, b);
        around_seed(fuzz_safetensors, b, FILE_INPUTS / 4);
        bytes_free(&b);
    }
}

static void test_fuzz_tokenizer(void **state)
{
    (void)state;
    static char piece[SENTENCE_PIECE_ROOM];
    sentence_piece(piece, sizeof piece, MARK_SPACES, 255, "");
    const char *const seeds[] = {
        piece,
        WORDPIECE,
        BPE,
        GPT2_CONFIG,
        LLAMA_CONFIG(""),
        BPE_NORMALIZED("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":"
                       "\"Strip\"},{\"type\":\"Prepend\",\"prepend\":\"a\"},{\"type\":\"Replace\","
                       "\"pattern\":{\"String\":\"a\"},\"content\":\"bc\"},{\"type\":\"NFD\"},"
                       "{\"type\":\"StripAccents\"}]}")};
    for (int i = 0; i < 6; i++) {
        bytes b = {0};
        put_text(&b, seeds[i]);
        keep_seed("tokenizer", i, b);
        around_seed(fuzz_tokenizer, b, FILE_INPUTS / 4);
        bytes_free(&b);
    }
}

/* The byte that says which file it is, and the file. */
static void around_model(int kind, int i, const void *data, size_t size)
{
    bytes b = {0};
    put_number(&b, (uint64_t)kind, 1);
    put(&b, data, size);
    keep_seed("model", i, b);
    around_seed(fuzz_model, b, FILE_INPUTS / 40);
    bytes_free(&b);
}

static void test_fuzz_model(void **state)
{
    (void)state;
    static const char vocab[] =
        "[UNK]\n[CLS]\n[SEP]\na\n##b\n\xC3\xA9\n\x1E{\"do_lower_case\":true}";
    static const char merges[] = BPE_VOCABULARY "\x1E#version: 0.2\na b\nab c\nb c\n";
    around_model(0, 0, vocab, sizeof vocab - 1);
    around_model(1, 1, merges, sizeof merges - 1);
    for (int i = 0; i < 3; i++)
        around_model(2 + i, 2 + i, configs[i], strlen(configs[i]));
    bytes index = {0};
    put_text(&index, "{\"weight_map\":{");
    for (size_t i = 0; gpt2[i].name; i++) {
        char entry[64];
        snprintf(entry, sizeof entry, "%s\"%s\":\"%d.st\"", i ? "," : "", gpt2[i].name,
                 (int)(1 + i % 2));
        put_text(&index, entry);
    }
    put_text(&index, "}}");
    around_model(5, 5, index.data, index.size);
    bytes_free(&index);
    put_good(6);
    bytes weights = read_file(path_of("model.safetensors"));
    around_model(6, 6, weights.data, weights.size);
    bytes_free(&weights);
}

static int keep_bytes(void *user, const void *data, size_t n)
{
    put(user, data, n);
    return 0;
}

static void test_fuzz_cache(void **state)
{
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8};
    static const double rows[4 * 70 * 7] = {1, -2, 3, 0.25};
    for (int i = 0; i < 5; i++) {
        describe_case("seed %d", i);
        attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
        o.B = 2, o.Hk = 1 + i % 2, o.D = 3, o.Dv = i, o.dtype = dtypes[i], o.max_keys = 70;
        const attn_tensor k = attn_bhtd(rows, ATTN_F64, 1, o.Hk, 1 + 13 * i, o.D);
        const attn_tensor v = attn_bhtd(rows, ATTN_F64, 1, o.Hk, 1 + 13 * i, o.Dv);
        attn_cache *cache;
        bytes b = {0};
        assert_int_equal(attn_cache_create(&o, &cache, NULL), ATTN_OK);
        assert_int_equal(attn_cache_append(cache, i % 2, &k, &v, NULL), ATTN_OK);
        assert_int_equal(attn_cache_save(cache, keep_bytes, &b, NULL), ATTN_OK);
        attn_cache_destroy(cache);
        assert_true(load(b.data, b.size)); /* the target takes the seed itself for good */
        keep_seed("cache", i, b);
        around_seed(fuzz_cache, b, FILE_INPUTS / 5);
        bytes_free(&b);
    }
}

/* States of each call: after a piece, and in the second sweep. */
static void test_fuzz_state(void **state)
{
    (void)state;
    static double values[STATE_KEYS * STATE_WIDTH];
    for (int i = 0; i < 2 * STATE_CALLS; i++) {
        describe_case("seed %d", i);
        const attn_sdpa_args a = state_call(i / 2);
        bytes b = {0};
        attn_sdpa_state *s;
        memset(values, i % 2 ? 0xFF : 0, sizeof values); /* NaN, so that rows are swept again */
        const attn_tensor piece = attn_bhtd(values, a.q.dtype, 1, 1, 512, STATE_WIDTH);
        const attn_tensor rest = attn_bhtd(values, a.q.dtype, 1, 1, STATE_KEYS - 512, STATE_WIDTH);
        attn_context *ctx = state_context((const uint8_t *)"0123456789012345generic", 24);
        assert_int_equal(attn_sdpa_begin(i < 4 ? ctx : NULL, &a, NULL, &s, NULL), ATTN_OK);
        assert_int_equal(attn_sdpa_feed(s, 0, &piece, &piece, NULL), ATTN_OK);
        if (i % 2) {
            assert_int_equal(attn_sdpa_feed(s, 512, &rest, &rest, NULL), ATTN_OK);
            assert_int_equal(attn_sdpa_finish(s, NULL), ATTN_AGAIN);
        }
        assert_int_equal(attn_sdpa_save(s, keep_bytes, &b, NULL), ATTN_OK);
        attn_sdpa_end(s);
        assert_true(load_state(b.data, b.size)); /* the target takes the seed itself for good */
        keep_seed("state", i, b);
        around_seed(fuzz_state, b, FILE_INPUTS / 40);
        bytes_free(&b);
    }
}

static void test_fuzz_sdpa(void **state)
{
    (void)state;
    uint8_t data[LONGEST];
    const int inputs = seed_folder() ? SDPA_SEEDS : SDPA_INPUTS;
    for (int n = 0; n < inputs; n++) {
        const size_t size = (size_t)(random_byte() << 8 | random_byte()) % LONGEST;
        for (size_t i = 0; i < size; i++)
            data[i] = random_byte();
        fuzz_sdpa(data, size);
        if (n < SDPA_SEEDS)
            keep_seed("sdpa", n, (bytes){.data = data, .size = size});
    }
}

/* The judge of fuzz_sdpa on what a unit for bf16 makes of q * power below 2^-126: it is 0 there, so
 * that beside a large k a score is off. Elsewhere, and by more, that is wrong. */
static void test_judge_of_denormals(void **state)
{
    (void)state;
    const uint16_t tiny = (127 - 120) << 7, one = 127 << 7, large = 254 << 7; /* 2^-120, 1, 2^127 */
    const uint16_t k[4] = {large, one, 0, one}, v[2] = {one, 0};
    uint16_t q[2] = {tiny, one};
    double out;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_matrix(q, ATTN_BF16, 1, 2);
    a.k = attn_matrix(k, ATTN_BF16, 2, 2);
    a.v = attn_matrix(v, ATTN_BF16, 2, 1);
    a.out = attn_matrix(&out, ATTN_F64, 1, 1);
    a.scale = 0x1p-10;
    ref_result exact = {0}, flushed = {0};
    assert_true(reference(&a, &exact));
    q[0] = 0;
    assert_true(reference(&a, &flushed));
    q[0] = tiny;
    out = flushed.out[0];
    assert_number(fabs(out - exact.out[0]), >, 0.03); /* scores of 1/8 and 0, or of 0 both */
    assert_true(agrees(&a, &exact, true));
    assert_false(agrees(&a, &exact, false));
    out = exact.out[0] + 0.2;
    assert_false(agrees(&a, &exact, true));
    q[0] = (127 - 116) << 7; /* 2^-126: nothing is lost */
    out = flushed.out[0];
    ref_result larger = {0};
    assert_true(reference(&a, &larger));
    assert_false(agrees(&a, &larger, true));
    ref_result *all[] = {&exact, &flushed, &larger};
    for (int i = 0; i < 3; i++) {
        free(all[i]->out);
        free(all[i]->mass);
        free(all[i]->reach);
    }
}

/* A row that sees nothing is 0, though scores of what it does not see may be off without bound. */
static void test_judge_of_empty_rows(void **state)
{
    (void)state;
    const uint16_t q = 254 << 7, k = 1, v = 127 << 7; /* 2^127, 2^-133, 1 */
    const int64_t none = 0;
    double out = 0;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_matrix((void *)&q, ATTN_BF16, 1, 1);
    a.k = attn_matrix((void *)&k, ATTN_BF16, 1, 1);
    a.v = attn_matrix((void *)&v, ATTN_BF16, 1, 1);
    a.out = attn_matrix(&out, ATTN_F64, 1, 1);
    a.scale = 0x1p20;
    a.key_lengths = &none;
    ref_result want = {0};
    assert_true(reference(&a, &want));
    assert_true(agrees(&a, &want, true));
    out = 0.5;
    assert_false(agrees(&a, &want, true));
    free(want.out), free(want.mass), free(want.reach);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fuzz_files),          cmocka_unit_test(test_fuzz_safetensors),
        cmocka_unit_test(test_fuzz_tokenizer),      cmocka_unit_test(test_fuzz_model),
        cmocka_unit_test(test_fuzz_cache),          cmocka_unit_test(test_fuzz_state),
        cmocka_unit_test(test_fuzz_sdpa),           cmocka_unit_test(test_judge_of_denormals),
        cmocka_unit_test(test_judge_of_empty_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
