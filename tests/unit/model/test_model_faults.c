/* Reading tokenisers and models and writing pages survive a system that fails.
 *
 * labels: slow
 * link: -Wl,--wrap=open,--wrap=openat,--wrap=read,--wrap=pread,--wrap=fstat,--wrap=fstatat
 * link: -Wl,--wrap=write,--wrap=fsync,--wrap=close,--wrap=renameat,--wrap=malloc,--wrap=calloc
 * link: -Wl,--wrap=realloc,--wrap=aligned_alloc,--wrap=free,--wrap=zip_source_function_create
 * link: -Wl,--wrap=zip_get_name,--wrap=zip_stat_index,--wrap=zip_fopen_index
 * link: -Wl,--wrap=strdup,--wrap=strndup
 *
 * Every system call and every allocation fails in turn; see fault_operation.h. */
#include "support/fault_operation.h"

#include <math.h>

#include "explain/explain.h"
#include "explain/explain_model.h"
#include "explain/find.h"
#include "explain/lessons/lessons.h"
#include "explain/render/render.h"
#include "text/tokenizer.h"
#include "support/tokenizer_samples.h"
#include "train/train.h"

/* ------------------------------------------------------------------------------------ Files */

enum { V = 21, E = 8, I = 16, PLACES = 40, LAYERS = 2, TENSORS = 64 };

typedef struct tensors {
    kit_tensor tensor[TENSORS];
    kit_array array[TENSORS];
    char name[TENSORS][80];
    size_t count;
} tensors;

/* rows 0: a vector. */
static void add_tensor(tensors *all, attn_dtype dtype, int64_t rows, int64_t columns,
                       const char *name)
{
    kit_array a;
    const int64_t shape[2] = {rows ? rows : columns, columns};
    assert_number(all->count, <, TENSORS);
    assert_int_equal(kit_array_new(&a, ATTN_F32, rows ? 2 : 1, shape, NULL), KIT_OK);
    for (int64_t i = 0; i < kit_array_count(&a); i++)
        ((float *)a.data)[i] = (float)sin((double)i + (double)all->count);
    const size_t n = all->count++;
    snprintf(all->name[n], sizeof all->name[n], "%s", name);
    assert_int_equal(kit_array_convert(&all->array[n], &a, dtype, NULL), KIT_OK);
    all->tensor[n] = (kit_tensor){all->name[n], &all->array[n]};
    kit_array_free(&a);
}

/* Weight and bias; {columns, rows} of the weight. */
static void add_both(tensors *all, const char *stem, int64_t rows, int64_t columns, int64_t bias)
{
    char name[96];
    snprintf(name, sizeof name, "%s.weight", stem);
    add_tensor(all, ATTN_F32, rows, columns, name);
    snprintf(name, sizeof name, "%s.bias", stem);
    add_tensor(all, ATTN_F32, 0, bias, name);
}

/* All of them, or every second one from `first` on, into a file. */
static void write_tensors(const tensors *all, size_t first, size_t step, const char *path)
{
    kit_tensor some[TENSORS];
    kit_output *out;
    size_t n = 0;
    for (size_t i = first; i < all->count; i += step)
        some[n++] = all->tensor[i];
    assert_int_equal(kit_output_open(&out, path, NULL), KIT_OK);
    assert_int_equal(kit_safetensors_write(out, some, n, NULL, 0, NULL), KIT_OK);
    assert_int_equal(kit_output_commit(out, NULL), KIT_OK);
}

static void free_tensors(tensors *all)
{
    for (size_t i = 0; i < all->count; i++)
        kit_array_free(&all->array[i]);
    *all = (tensors){0};
}

static void write_text(const char *path, const char *text)
{
    bytes b = {0};
    put_text(&b, text);
    write_file(path, b);
    bytes_free(&b);
}

#define BERT_CONFIG                                                                                \
    "{\"model_type\":\"bert\",\"vocab_size\":21,\"hidden_size\":8,\"num_hidden_layers\":2,"        \
    "\"num_attention_heads\":2,\"intermediate_size\":16,\"max_position_embeddings\":40,"           \
    "\"type_vocab_size\":2}"
#define GPT2_FILE                                                                                  \
    "{\"model_type\":\"gpt2\",\"vocab_size\":21,\"n_layer\":2,\"n_embd\":8,"                       \
    "\"n_head\":2,\"n_positions\":40,\"n_inner\":16}"
#define LLAMA_FILE                                                                                 \
    "{\"model_type\":\"llama\",\"vocab_size\":21,\"num_hidden_layers\":2,\"hidden_size\":8,"       \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":16,"                \
    "\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2],"                      \
    "\"long_factor\":[2,3],\"original_max_position_embeddings\":4}}"

static void make_bert(tensors *all)
{
    static const char *const square[] = {"attention.self.query", "attention.self.key",
                                         "attention.self.value", "attention.output.dense"};
    add_tensor(all, ATTN_F32, V, E, "embeddings.word_embeddings.weight");
    add_tensor(all, ATTN_F32, PLACES, E, "embeddings.position_embeddings.weight");
    add_tensor(all, ATTN_F32, 2, E, "embeddings.token_type_embeddings.weight");
    add_both(all, "embeddings.LayerNorm", 0, E, E);
    for (int layer = 0; layer < LAYERS; layer++) {
        char stem[80];
        for (size_t i = 0; i < COUNT(square); i++) {
            snprintf(stem, sizeof stem, "encoder.layer.%d.%s", layer, square[i]);
            add_both(all, stem, E, E, E);
        }
        snprintf(stem, sizeof stem, "encoder.layer.%d.attention.output.LayerNorm", layer);
        add_both(all, stem, 0, E, E);
        snprintf(stem, sizeof stem, "encoder.layer.%d.intermediate.dense", layer);
        add_both(all, stem, I, E, I);
        snprintf(stem, sizeof stem, "encoder.layer.%d.output.dense", layer);
        add_both(all, stem, E, I, E);
        snprintf(stem, sizeof stem, "encoder.layer.%d.output.LayerNorm", layer);
        add_both(all, stem, 0, E, E);
    }
}

static void make_gpt2(tensors *all)
{
    static const struct {
        const char *stem;
        int64_t rows, columns;
    } part[] = {{"ln_1", 0, E}, {"attn.c_attn", E, 3 * E}, {"attn.c_proj", E, E},
                {"ln_2", 0, E}, {"mlp.c_fc", E, I},        {"mlp.c_proj", I, E}};
    add_tensor(all, ATTN_F32, V, E, "wte.weight");
    add_tensor(all, ATTN_F32, PLACES, E, "wpe.weight");
    add_both(all, "ln_f", 0, E, E);
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < COUNT(part); i++) {
            char stem[80];
            snprintf(stem, sizeof stem, "h.%d.%s", layer, part[i].stem);
            add_both(all, stem, part[i].rows, part[i].columns, part[i].columns);
        }
}

/* Of 16 bits, so that it is converted. */
static void make_llama(tensors *all)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } part[] = {{"input_layernorm", 0, E},      {"post_attention_layernorm", 0, E},
                {"self_attn.q_proj", E, E},     {"self_attn.k_proj", E / 2, E},
                {"self_attn.v_proj", E / 2, E}, {"self_attn.o_proj", E, E},
                {"mlp.gate_proj", I, E},        {"mlp.up_proj", I, E},
                {"mlp.down_proj", E, I}};
    add_tensor(all, ATTN_BF16, V, E, "model.embed_tokens.weight");
    add_tensor(all, ATTN_F16, 0, E, "model.norm.weight");
    add_tensor(all, ATTN_F32, V, E, "lm_head.weight");
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < COUNT(part); i++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, part[i].name);
            add_tensor(all, ATTN_BF16, part[i].rows, part[i].columns, name);
        }
}

static void write_index(const tensors *all, const char *path)
{
    bytes b = {0};
    put_text(&b, "{\"weight_map\":{");
    for (size_t i = 0; i < all->count; i++) {
        char entry[160];
        snprintf(entry, sizeof entry, "%s\"%s\":\"part-%d.safetensors\"", i ? "," : "",
                 all->name[i], (int)(i % 2));
        put_text(&b, entry);
    }
    put_text(&b, "}}");
    write_file(path, b);
    bytes_free(&b);
}

#define STEPPED                                                                                    \
    BPE_NORMALIZED("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"         \
                   "\"Prepend\",\"prepend\":\"a\"},{\"type\":\"Replace\",\"pattern\":{\"String\":" \
                   "\"x\"},\"content\":\"bc\"},{\"type\":\"Strip\"},{\"type\":\"Lowercase\"}]}")

static void write_models(void)
{
    tensors all = {0};
    make_bert(&all);
    write_tensors(&all, 0, 1, "bert/model.safetensors");
    write_text("bert/config.json", BERT_CONFIG);
    write_text("bert/tokenizer.json", WORDPIECE);
    free_tensors(&all);
    make_gpt2(&all);
    write_tensors(&all, 0, 1, "gpt2/model.safetensors");
    write_text("gpt2/config.json", GPT2_FILE);
    write_text("gpt2/generation_config.json", "{\"eos_token_id\":[12, 13]}");
    write_text("gpt2/tokenizer.json", BPE);
    free_tensors(&all);
    make_llama(&all);
    write_tensors(&all, 0, 2, "llama/part-0.safetensors");
    write_tensors(&all, 1, 2, "llama/part-1.safetensors");
    write_index(&all, "llama/model.safetensors.index.json");
    write_text("llama/config.json", LLAMA_FILE);
    write_text("llama/tokenizer.json", STEPPED);
    free_tensors(&all);
}

static void write_checkpoint(void)
{
    const train_config c = {.task = TRAIN_COPY,
                            .vocabulary = 3,
                            .length = 4,
                            .embed = 4,
                            .heads = 1,
                            .layers = 1,
                            .batch = 2,
                            .lr = 0.01,
                            .unseen = 1};
    train_run *run;
    assert_int_equal(train_begin(&run, &c, NULL, NULL, NULL), KIT_OK);
    assert_int_equal(train_save(run, "trained.safetensors", NULL), KIT_OK);
    train_end(run);
}

static const char *const folders[] = {"bert", "gpt2", "llama", "pieces", "old-bert", "old-gpt2"};

static int make_all(void **state)
{
    if (scratch_enter(state))
        return -1;
    for (size_t i = 0; i < COUNT(folders); i++)
        assert_int_equal(mkdir(folders[i], 0777), 0);
    write_models();
    write_checkpoint();
    char pieces[SENTENCE_PIECE_ROOM];
    sentence_piece(pieces, sizeof pieces, MARK_SPACES, 255, "");
    write_text("pieces/tokenizer.json", pieces);
    write_text("old-bert/vocab.txt", "[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\na\n##b\n,\n");
    write_text("old-bert/config.json", "{\"model_type\": \"bert\"}");
    write_text("old-bert/tokenizer_config.json", "{\"do_lower_case\": true}");
    write_text("old-bert/special_tokens_map.json",
               "{\"extra_special_tokens\": [\"<x>\", \"<y>\"]}");
    write_text("old-bert/added_tokens.json", "{\"<z>\": 9}");
    write_text("old-gpt2/vocab.json", BPE_VOCABULARY);
    write_text("old-gpt2/merges.txt", "#version: 0.2\na b\nab c\n\xC4\xA0 abc\nb c\n");
    write_text(
        "old-gpt2/tokenizer_config.json",
        "{\"tokenizer_class\": \"GPT2Tokenizer\", \"add_prefix_space\": true, "
        "\"added_tokens_decoder\": {\"13\": {\"content\": \"<x>\", \"single_word\": true}}}");
    return 0;
}

static int remove_all(void **state)
{
    for (size_t i = 0; i < COUNT(folders); i++) {
        assert_int_equal(chdir(folders[i]), 0);
        remove_all_here();
        assert_int_equal(chdir(".."), 0);
    }
    return scratch_leave(state);
}

static void prepare_nothing(void) {}

/* --------------------------------------------------------------------------------- Operations */

/* 48 tokens: more than there is room for at first. */
#define LONG_TEXT                                                                                  \
    "abc abc  ab <end>c abc 's bc aab bc abc ab c c c b b b a a a b c ab bc bc aabb cc"

static int encode_with(kit_tokenizer *t, const char *text, const char *pair, kit_error *err)
{
    kit_tokens tokens;
    int code = kit_tokenizer_encode(&tokens, t, text, pair, err);
    if (code)
        return tokens.token ? -1 : code;
    char label[KIT_TOKEN_LABEL];
    for (size_t i = 0; i < tokens.count; i++) {
        size_t length;
        kit_token_label(label, t, &tokens, i, text, pair);
        if (!*label || !kit_tokenizer_bytes(t, tokens.token[i].id, &length))
            code = -2;
    }
    kit_tokens_free(&tokens);
    return code;
}

static int tokenize(const char *folder, const char *text, const char *pair, kit_error *err)
{
    kit_tokenizer *t;
    int code = kit_tokenizer_open(&t, folder, err);
    if (code)
        return t ? -3 : code;
    code = encode_with(t, text, pair, err);
    kit_tokenizer_free(t);
    return code;
}

static int read_wordpiece(kit_error *err)
{
    return tokenize("bert", "Unaffable,caf\xC3\xA9 \xE4\xB8\xAD e\xCC\x81\xCC\xA3 unaffabl",
                    "a [SEP] ab", err);
}
static int read_bpe(kit_error *err) { return tokenize("gpt2", LONG_TEXT, NULL, err); }
static int read_steps(kit_error *err)
{
    return tokenize("llama", "x abc e\xCC\x81 bc \xC3\xA9", NULL, err);
}
static int read_pieces(kit_error *err) { return tokenize("pieces", "ab ab \xC3\xA8", NULL, err); }

static int read_old_wordpiece(kit_error *err)
{
    return tokenize("old-bert", "UNAFFABLE, a", NULL, err);
}
static int read_old_bpe(kit_error *err) { return tokenize("old-gpt2", "abc abc", NULL, err); }

static int read_words(kit_error *err)
{
    static const char *const words[] = {"a", "b", "c"};
    kit_tokenizer *t;
    int code = kit_tokenizer_of_words(&t, words, 3, false, err);
    if (!code)
        code = encode_with(t, "a b c", NULL, err);
    kit_tokenizer_free(t);
    return code;
}

/* A prompt, and two tokens that follow it. */
static int generate(const char *path, const char *text, kit_error *err)
{
    model *m;
    model_run *run = NULL;
    kit_tokens tokens = {0};
    const float *logits;
    int64_t ids[16], next;
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    int code = model_open(&m, path, NULL, err);
    if (code)
        return m ? -1 : code;
    if (!(code = kit_tokenizer_encode(&tokens, model_tokenizer(m), text, NULL, err)))
        code = model_run_begin(&run, m, (int64_t)tokens.count, (int64_t)tokens.count + 2, err);
    for (size_t i = 0; i < tokens.count; i++)
        ids[i] = tokens.token[i].id;
    if (!code)
        code = model_run_tokens(run, ids, NULL, (int64_t)tokens.count, NULL, 0, err);
    for (int step = 0; step < 2 && !code; step++) {
        code = model_run_logits(run, &logits, err);
        if (!code)
            code = model_sample(&next, logits, model_sizes_of(m)->vocabulary,
                                &(model_generation){.temperature = 1, .top_k = 5, .top_p = 1}, &rng,
                                err);
        if (!code)
            code = model_run_tokens(run, &next, NULL, 1, NULL, 0, err);
    }
    model_run_end(run);
    kit_tokens_free(&tokens);
    model_close(m);
    return code;
}

static int generate_gpt2(kit_error *err) { return generate("gpt2", "abc abc bc", err); }
static int generate_llama(kit_error *err) { return generate("llama", "abc abc bc", err); }
static int generate_trained(kit_error *err) { return generate("trained.safetensors", "a", err); }

/* Scores heads over two texts, of which the second is longer. */
static int find_in(const char *path, const char *pair, kit_error *err)
{
    model *m;
    find f = {0};
    int code = model_open(&m, path, NULL, err);
    if (!code)
        code = find_begin(&f, m, FIND_SAME, err);
    if (!code && !(code = find_add(&f, "ab abc", NULL, err)))
        code = find_add(&f, "abc a abc a a b bc ab", pair, err);
    while (!code && f.done < f.texts)
        code = find_run(&f, err);
    if (!code && !(code = find_rank(&f, err)) && (f.queries < 5 || !(f.head[0].score > 0)))
        code = -4;
    find_end(&f);
    model_close(m);
    return code;
}

static int find_in_bert(kit_error *err) { return find_in("bert", "a ab", err); }
static int find_in_llama(kit_error *err) { return find_in("llama", NULL, err); }

/* A trace as a page, which is whole or absent. */
static int write_page(const trace *t, kit_error *err)
{
    char *page = NULL;
    size_t size;
    kit_output *out = NULL;
    int code = render_html(&page, &size, t, err);
    if (!code)
        code = kit_output_open(&out, "page.html", err);
    if (!code && (code = kit_output_write(out, page, size, err)))
        kit_output_abort(out);
    else if (!code)
        code = kit_output_commit(out, err);
    free(page);
    return code;
}

static int explain_and_write(const char *path, const explain_model_options *o, kit_error *err)
{
    model *m;
    trace t = {0};
    int code = model_open(&m, path, NULL, err);
    if (!code)
        code = explain_model(&t, o, m, err);
    if (!code)
        code = write_page(&t, err);
    trace_free(&t);
    model_close(m);
    return code;
}

static int explain_bert(kit_error *err)
{
    return explain_and_write(
        "bert", &(explain_model_options){.text = "unaffable a", .pair = "ab", .layer = 2}, err);
}

static int explain_llama(kit_error *err)
{
    return explain_and_write("llama",
                             &(explain_model_options){.text = "abc abc bc", .layer = 1, .head = 2},
                             err);
}

static int explain_words(kit_error *err)
{
    explain_options o = EXPLAIN_OPTIONS_INIT;
    trace t = {0};
    o.text = "Life is short, eat dessert last";
    int code = lesson_explain(&t, &o, NULL, err);
    if (!code)
        code = write_page(&t, err);
    trace_free(&t);
    return code;
}

static void prepare_page(void) { write_text("page.html", "old"); }

static void check_page(int code)
{
    bytes b = read_file("page.html");
    const bool old = b.size == 3 && memcmp(b.data, "old", 3) == 0;
    if (old ? code == KIT_OK : b.size < 8 || memcmp(b.data + b.size - 8, "</html>\n", 8) != 0)
        fail_msg("code %d and a page of %zu bytes", code, b.size);
    bytes_free(&b);
}

static int build_lesson(const char *name, kit_error *err)
{
    trace t = {0};
    int code = lesson_build(lesson_find(name), false, &t, NULL, err);
    if (code == KIT_OK && strcmp(name, "sky") == 0) { /* the shortest; each takes a while */
        render_text_options o = RENDER_TEXT_OPTIONS_INIT;
        char *text = NULL;
        size_t size;
        code = render_text(&text, &size, &t, &o, err);
        free(text);
    }
    trace_free(&t);
    return code;
}

static int build_dessert(kit_error *err) { return build_lesson("dessert", err); }
static int build_sky(kit_error *err) { return build_lesson("sky", err); }
static int build_module(kit_error *err) { return build_lesson("module", err); }
static int build_numpy(kit_error *err) { return build_lesson("numpy", err); }
static int build_journey(kit_error *err) { return build_lesson("journey", err); }

static const operation tokenizers[] = {
    {"WordPiece's tokenizer.json", prepare_nothing, read_wordpiece, NULL, false},
    {"BPE's tokenizer.json", prepare_nothing, read_bpe, NULL, false},
    {"BPE with a normalizer", prepare_nothing, read_steps, NULL, false},
    {"SentencePiece's tokenizer.json", prepare_nothing, read_pieces, NULL, false},
    {"vocab.txt", prepare_nothing, read_old_wordpiece, NULL, false},
    {"vocab.json and merges.txt", prepare_nothing, read_old_bpe, NULL, false},
    {"words", prepare_nothing, read_words, NULL, false},
};

static const operation models[] = {
    {"GPT-2 goes on", prepare_nothing, generate_gpt2, NULL, false},
    {"Llama goes on", prepare_nothing, generate_llama, NULL, false},
    {"what attn train wrote goes on", prepare_nothing, generate_trained, NULL, false},
    {"heads of BERT", prepare_nothing, find_in_bert, NULL, false},
    {"heads of Llama", prepare_nothing, find_in_llama, NULL, false},
};

static const operation pages[] = {
    {"a page of BERT", prepare_page, explain_bert, check_page, false},
    {"a page of Llama", prepare_page, explain_llama, check_page, false},
    {"a page of words", prepare_page, explain_words, check_page, false},
};

static const operation lessons[] = {
    {"dessert", prepare_nothing, build_dessert, NULL, false},
    {"sky", prepare_nothing, build_sky, NULL, false},
    {"module", prepare_nothing, build_module, NULL, false},
    {"numpy", prepare_nothing, build_numpy, NULL, false},
    {"journey", prepare_nothing, build_journey, NULL, false},
};

/* ----------------------------------------------------------------------------------- Tests */

/* Lessons take a while: each allocation fails alone or with all that follow, in turn. Under a
 * sanitizer, which is slow, every third allocation fails. */
static void fail_allocations_of_lesson(const operation *o)
{
    kit_error err;
    const long calls = count_calls(o, true), step = getenv("ATTN_SANITIZED") ? 3 : 1;
    for (long at = 1; at <= calls; at += step)
        expect_no_memory(o, at, at / step % 2 == 1, &err);
}

static void test_allocations_of_tokenizers(void **state)
{
    (void)state;
    for_each(tokenizers, COUNT(tokenizers), fail_each_allocation);
}

static void test_allocations_of_models(void **state)
{
    (void)state;
    for_each(models, COUNT(models), fail_each_allocation);
}

static void test_allocations_of_pages(void **state)
{
    (void)state;
    for_each(pages, COUNT(pages), fail_each_allocation);
}

static void test_allocations_of_lessons(void **state)
{
    (void)state;
    for_each(lessons, COUNT(lessons), fail_allocations_of_lesson);
}

/* But for the words, which are in no file. */
static void test_files_of_tokenizers(void **state)
{
    (void)state;
    for_each(tokenizers, COUNT(tokenizers) - 1, fail_each_call_once);
    for_each(tokenizers, COUNT(tokenizers) - 1, fail_each_call_for_good);
}

static void test_files_of_models(void **state)
{
    (void)state;
    for_each(models, COUNT(models), fail_each_call_once);
    for_each(models, COUNT(models), fail_each_call_for_good);
}

static void test_files_of_pages(void **state)
{
    (void)state;
    for_each(pages, COUNT(pages), fail_each_call_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations_of_tokenizers),
        cmocka_unit_test(test_allocations_of_models),
        cmocka_unit_test(test_allocations_of_pages),
        cmocka_unit_test(test_allocations_of_lessons),
        cmocka_unit_test(test_files_of_tokenizers),
        cmocka_unit_test(test_files_of_models),
        cmocka_unit_test(test_files_of_pages),
    };
    return cmocka_run_group_tests(tests, make_all, remove_all);
}
