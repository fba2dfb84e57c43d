/* Every number of a config.json is checked before it is used. */
#include <math.h>

#include "support/io_testing.h"

#include "model/model.h"
#include "support/tokenizer_samples.h"

#define GPT2(key, value)                                                                           \
    "{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":2,\"n_head\":2,"          \
    "\"" key "\":" value "}"

static const struct lie {
    const char *json, *says;
} lies[] = {
    {"", "line"},
    {"{}", "model_type '(none)'"},
    {"{\"model_type\":\"t5\"}", "model_type 't5' is not supported; supported are bert,"},
    {"{\"model_type\":\"attn.train\"}", "not supported"},
    {"{\"model_type\":7}", "(none)"},
    {"{\"model_type\":\"gpt2\"}", "vocab_size is missing"},
    {GPT2("n_positions", "null"), "n_positions is null; it must be an integer"},
    {GPT2("n_positions", "0"), "n_positions must be"},
    {GPT2("n_positions", "1e400"), "line"},
    {GPT2("n_positions\":16,\"n_inner", "-3"), "n_inner must be"},
    {GPT2("n_positions\":16,\"activation_function", "\"gelu_11\""), "'gelu_11' is not supported"},
    {GPT2("n_positions\":16,\"activation_function", "3"), "is 3; it must be a string"},
    {GPT2("n_positions\":16,\"scale_attn_by_inverse_layer_idx", "1"),
     "is 1; it must be true or false"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":1000000000,\"n_head\":2}",
     "n_layer must be an integer from 1 to 1024"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":2,\"n_head\":0}",
     "n_head must be"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":2,\"n_head\":3}",
     "not a multiple"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":9223372036854775807,\"n_embd\":8}",
     "vocab_size must"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":4.5}",
     "n_embd is 4.5; it must be an integer"},
    {LLAMA_CONFIG(",\"head_dim\":7"), "even size"},
    {"{\"model_type\":\"qwen2\",\"vocab_size\":13,\"hidden_size\":8,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":4,\"num_key_value_heads\":3}",
     "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
    {LLAMA_CONFIG(",\"rope_theta\":0"), "rope_theta must"},
    {LLAMA_CONFIG(",\"rope_scaling\":{\"type\":\"su\"}"), "'su' is not supported"},
    {LLAMA_CONFIG(",\"rope_scaling\":{\"type\":\"yarn\"}"), "factor is missing"},
    {LLAMA_CONFIG(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}"), "factor must be"},
    {LLAMA_CONFIG(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}"),
     "needs low_freq_factor"},
    {LLAMA_CONFIG(",\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2]}"),
     "long_factor must be a list of 2 numbers"},
    {LLAMA_CONFIG(",\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1,-2],"
                  "\"long_factor\":[1,2]}"),
     "short_factor must be a list of 2 numbers"},
    {LLAMA_CONFIG(",\"rope_parameters\":{\"twist\":1}"), "rope_parameters: 'twist' is not a known"},
    {LLAMA_CONFIG(",\"rope_parameters\":{\"factor\":\"int\"}"), "factor is \"int\""},
    {LLAMA_CONFIG(",\"sliding_window\":\"null\""), "sliding_window is \"null\""},
    {LLAMA_CONFIG(",\"twist\":null"), "'twist' is not a known key of model_type llama"},
    {LLAMA_CONFIG(",\"is_causal\":false"), "is_causal is false; it is supported only as true"},
    {LLAMA_CONFIG(",\"quantization_config\":{\"a\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}"),
     "is {\"a\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16...; it"},
    {LLAMA_CONFIG(",\"partial_rotary_factor\":0.5"), "partial_rotary_factor"},
    {LLAMA_CONFIG(",\"rms_norm_eps\":-1"), "rms_norm_eps must"},
    {LLAMA_CONFIG(",\"eos_token_id\":\"a\""), "eos_token_id"},
    {LLAMA_CONFIG(",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]"), "eos_token_id"},
    {LLAMA_CONFIG(",\"hidden_act\":\"gelu_11\""), "'gelu_11' is not supported"},
};

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(lies); i++) {
        kit_error e = {0};
        if (model_check_config("c.json", lies[i].json, strlen(lies[i].json), &e) != KIT_BAD_FILE ||
            strncmp(e.message, "c.json: ", 8) != 0 || !strstr(e.message, lies[i].says))
            fail_msg("%zu: %d %s", i, e.code, e.message);
    }
}

static void test_truths(void **state)
{
    (void)state;
    static const char *const good[] = {GPT2_CONFIG,
                                       LLAMA_CONFIG(""),
                                       LLAMA_CONFIG(",\"head_dim\":6,\"eos_token_id\":[1,2]"),
                                       LLAMA_CONFIG(",\"hidden_act\":\"gelu\",\"num_beams\":4"),
                                       LLAMA_CONFIG(",\"rope_scaling\":{\"type\":\"dynamic\","
                                                    "\"factor\":2}"),
                                       LLAMA_CONFIG(
                                           ",\"rope_scaling\":null,\"tie_word_embeddings\":true")};
    for (size_t i = 0; i < COUNT(good); i++) {
        kit_error e = {0};
        if (model_check_config("c.json", good[i], strlen(good[i]), &e))
            fail_msg("%zu: %s", i, e.message);
    }
}

#define DRAW(heat, k, p)                                                                           \
    (model_generation) { .temperature = heat, .top_k = k, .top_p = p }

static void test_top_and_sample(void **state)
{
    (void)state;
    static const float logits[] = {1, 3, -INFINITY, 3, 2};
    int64_t id[3], one;
    double p[3];
    kit_error e = {0};
    assert_int_equal(model_top(id, p, 3, logits, 5, &e), KIT_OK);
    assert_int_equal(id[0], 1);
    assert_int_equal(id[1], 3);
    assert_int_equal(id[2], 4);
    const double sum = exp(1) + 2 * exp(3) + exp(2);
    assert_near(p[0], exp(3) / sum, <, 1e-15);
    assert_near(p[2], exp(2) / sum, <, 1e-15);
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    assert_int_equal(model_sample(&one, logits, 5, &DRAW(0, 0, 1), &rng, &e), KIT_OK);
    assert_int_equal(one, 1); /* of equals, the first */
    for (int i = 0; i < 200; i++) {
        assert_int_equal(model_sample(&one, logits, 5, &DRAW(2, 2, 1), &rng, &e), KIT_OK);
        if (one != 3)
            assert_int_equal(one, 1);
        assert_int_equal(model_sample(&one, logits, 5, &DRAW(100, 0, 1), &rng, &e), KIT_OK);
        assert_int_not_equal(one, 2); /* has no probability */
    }
    static const float none[] = {0, NAN}, infinite[] = {0, INFINITY};
    assert_int_equal(model_sample(&one, none, 2, &DRAW(0, 0, 1), &rng, &e), KIT_NOT_FINITE);
    assert_int_equal(model_sample(&one, none, 2, &DRAW(1, 0, 1), &rng, &e), KIT_NOT_FINITE);
    assert_int_equal(model_top(id, p, 2, none, 2, &e), KIT_NOT_FINITE);
    assert_int_equal(model_top(id, p, 2, infinite, 2, &e), KIT_NOT_FINITE);
}

/* The likeliest that have so much probability together; and equals of the last of top_k. */
static void test_what_may_be_drawn(void **state)
{
    (void)state;
    static const float logits[] = {2, 1, 3, 1, 0}; /* 0.22, 0.08, 0.59, 0.08, 0.03 */
    static const struct {
        model_generation how;
        unsigned may; /* bit i: token i */
    } cases[] = {
        {DRAW(1, 0, 1), 31},   {DRAW(1, 1, 1), 4},    {DRAW(1, 3, 1), 15},
        {DRAW(1, 0, 0.59), 4}, {DRAW(1, 0, 0.7), 5},  {DRAW(1, 0, 0.85), 7},
        {DRAW(1, 2, 0.72), 4}, {DRAW(1, 2, 0.74), 5}, {DRAW(0.1, 0, 0.9), 4},
    };
    attn_rng rng;
    attn_rng_seed(&rng, 3);
    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned seen = 0;
        for (int n = 0; n < 2000; n++) {
            int64_t id;
            assert_int_equal(model_sample(&id, logits, 5, &cases[i].how, &rng, NULL), KIT_OK);
            seen |= 1u << id;
        }
        if (cases[i].may == 31) /* 0.03: seen */
            assert_int_equal(seen, 31);
        else if (seen != cases[i].may)
            fail_msg("%zu: %u", i, seen);
    }
    static const float none[] = {-INFINITY, -INFINITY};
    int64_t id;
    assert_int_equal(model_sample(&id, none, 2, &DRAW(1, 0, 1), &rng, NULL), KIT_NOT_FINITE);
}

/* Logits of what was there: over the penalty if above 0, times it if below, once each; and -inf
 * where a run of n tokens would come again. */
static void test_what_was_there(void **state)
{
    (void)state;
    static const int64_t token[] = {1, 2, 3, 1, 2};
    static const struct {
        double penalty;
        int64_t ngram;
        float want[5];
    } cases[] = {
        {1, 0, {1, -2, 4, 8, 16}},         {2, 0, {1, -4, 2, 4, 16}},
        {0.5, 0, {1, -1, 8, 16, 16}},      {1, 1, {1, -INFINITY, -INFINITY, -INFINITY, 16}},
        {1, 2, {1, -2, 4, -INFINITY, 16}}, {1, 3, {1, -2, 4, -INFINITY, 16}},
        {1, 4, {1, -2, 4, 8, 16}},         {1, 6, {1, -2, 4, 8, 16}},
        {2, 2, {1, -4, 2, -INFINITY, 16}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        float logits[5] = {1, -2, 4, 8, 16};
        const model_generation how = {.repetition_penalty = cases[i].penalty,
                                      .no_repeat_ngram = cases[i].ngram};
        assert_int_equal(model_penalize(logits, 5, token, COUNT(token), &how, NULL), KIT_OK);
        for (int k = 0; k < 5; k++)
            if (logits[k] != cases[i].want[k])
                fail_msg("%zu: %d: %g", i, k, (double)logits[k]);
    }
}

/* Token 0, as in transformers, where no_repeat_ngram_size leaves no token
 * (peers/test_checkpoints). */
static void test_no_token_is_left(void **state)
{
    (void)state;
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    int64_t id = -1;
    kit_error e = {0};
    const float none[] = {-INFINITY, -INFINITY, -INFINITY};
    const model_generation how = {.top_p = 1, .no_repeat_ngram = 1};
    assert_int_equal(model_sample(&id, none, 3, &how, &rng, &e), KIT_OK);
    assert_int_equal(id, 0);
    assert_int_equal(model_sample(&id, none, 3, &DRAW(1, 0, 1), &rng, &e), KIT_NOT_FINITE);
}

/* At any temperature: no token is likelier than others by a known amount. */
static void test_logits_that_are_no_numbers(void **state)
{
    (void)state;
    static const struct {
        float logits[3];
        const char *says;
    } cases[] = {
        {{NAN, NAN, NAN}, "one of the model's logits is NaN"},
        {{1, 2, NAN}, "one of the model's logits is NaN"},
        {{-INFINITY, -INFINITY, -INFINITY}, "the model's largest logit is infinite"},
        {{1, INFINITY, 2}, "the model's largest logit is infinite"},
        {{-INFINITY, -INFINITY, 1}, NULL},
    };
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int temperature = 0; temperature < 2; temperature++) {
            int64_t id = -1;
            kit_error e = {0};
            const int code =
                model_sample(&id, cases[i].logits, 3, &DRAW(temperature, 0, 1), &rng, &e);
            assert_int_equal(code, cases[i].says ? KIT_NOT_FINITE : KIT_OK);
            assert_string_equal(e.message, cases[i].says ? cases[i].says : "");
            assert_true(code || id == 2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_truths),
        cmocka_unit_test(test_top_and_sample),
        cmocka_unit_test(test_what_may_be_drawn),
        cmocka_unit_test(test_no_token_is_left),
        cmocka_unit_test(test_logits_that_are_no_numbers),
        cmocka_unit_test(test_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
