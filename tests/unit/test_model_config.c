/* config.json that lies: every number is checked before anything is made of it. */
#include <math.h>

#include "io_testing.h"

#include "model/model.h"
#include "tokenizer_samples.h"

#define GPT2(key, value)                                                                           \
    "{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":2,\"n_head\":2,"          \
    "\"" key "\":" value "}"

static const struct lie {
    const char *json, *says;
} lies[] = {
    {"", "line"},
    {"{}", "model_type '(none)'"},
    {"{\"model_type\":\"t5\"}", "model_type 't5' is not supported; there are bert,"},
    {"{\"model_type\":\"attn.train\"}", "not supported"},
    {"{\"model_type\":7}", "(none)"},
    {"{\"model_type\":\"gpt2\"}", "vocab_size is missing"},
    {GPT2("n_positions", "null"), "n_positions is missing"},
    {GPT2("n_positions", "0"), "n_positions must be"},
    {GPT2("n_positions", "1e400"), "line"},
    {GPT2("n_positions\":16,\"n_inner", "-3"), "n_inner must be"},
    {GPT2("n_positions\":16,\"activation_function", "\"gelu_10\""), "'gelu_10' is not supported"},
    {GPT2("n_positions\":16,\"activation_function", "3"), "must be a text"},
    {GPT2("n_positions\":16,\"scale_attn_by_inverse_layer_idx", "true"), "is not supported"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":1000000000,\"n_head\":2}",
     "n_layer must be an integer from 1 to 1024"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":2,\"n_head\":0}",
     "n_head must be"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":8,\"n_layer\":2,\"n_head\":3}",
     "no multiple"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":9223372036854775807,\"n_embd\":8}",
     "vocab_size must"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":13,\"n_embd\":4.5}", "n_embd must be an integer"},
    {LLAMA_CONFIG(",\"head_dim\":7"), "even size"},
    {LLAMA_CONFIG(",\"rope_theta\":0"), "rope_theta must"},
    {LLAMA_CONFIG(",\"rope_scaling\":{\"type\":\"yarn\"}"), "'yarn' is not supported"},
    {LLAMA_CONFIG(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}"), "needs factor"},
    {LLAMA_CONFIG(",\"partial_rotary_factor\":0.5"), "partial_rotary_factor"},
    {LLAMA_CONFIG(",\"rms_norm_eps\":-1"), "rms_norm_eps must"},
    {LLAMA_CONFIG(",\"eos_token_id\":\"a\""), "eos_token_id"},
    {LLAMA_CONFIG(",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]"), "eos_token_id"},
    {LLAMA_CONFIG(",\"hidden_act\":\"gelu\""), "'gelu' is not supported"},
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
    static const char *const good[] = {GPT2_CONFIG, LLAMA_CONFIG(""),
                                       LLAMA_CONFIG(",\"head_dim\":6,\"eos_token_id\":[1,2]"),
                                       LLAMA_CONFIG(
                                           ",\"rope_scaling\":null,\"tie_word_embeddings\":true")};
    for (size_t i = 0; i < COUNT(good); i++) {
        kit_error e = {0};
        if (model_check_config("c.json", good[i], strlen(good[i]), &e))
            fail_msg("%zu: %s", i, e.message);
    }
}

static void test_top_and_sample(void **state)
{
    (void)state;
    static const float logits[] = {1, 3, -INFINITY, 3, 2};
    int64_t id[3], one;
    double p[3];
    kit_error e = {0};
    assert_int_equal(model_top(id, p, 3, logits, 5, &e), KIT_OK);
    assert_true(id[0] == 1 && id[1] == 3 && id[2] == 4);
    const double sum = exp(1) + 2 * exp(3) + exp(2);
    assert_true(fabs(p[0] - exp(3) / sum) < 1e-15 && fabs(p[2] - exp(2) / sum) < 1e-15);
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    assert_int_equal(model_sample(&one, logits, 5, 0, 0, &rng, &e), KIT_OK);
    assert_int_equal(one, 1); /* of equals, the first */
    for (int i = 0; i < 200; i++) {
        assert_int_equal(model_sample(&one, logits, 5, 2.0, 2, &rng, &e), KIT_OK);
        assert_true(one == 1 || one == 3);
        assert_int_equal(model_sample(&one, logits, 5, 100.0, 0, &rng, &e), KIT_OK);
        assert_int_not_equal(one, 2); /* has no probability */
    }
    static const float none[] = {0, NAN};
    assert_int_equal(model_sample(&one, none, 2, 0, 0, &rng, &e), KIT_NOT_FINITE);
    assert_int_equal(model_sample(&one, none, 2, 1, 0, &rng, &e), KIT_NOT_FINITE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_truths),
        cmocka_unit_test(test_top_and_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
