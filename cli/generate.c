/* attn generate: a model continues a prompt. The text is printed as it is generated, in whole
 * characters. With --json it is printed at the end, with all that is known about it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kit/io/json_write.h"
#include "../kit/model/model.h"
#include "command.h"
#include "terminal.h"

typedef struct session {
    const options *o;
    attn_context *ctx;
    model *m;
    model_run *run;
    kit_tokens prompt;
    int64_t *id; /* [room]: ids of the prompt, then of the text */
    int64_t count, room;
    char *text; /* the generated text */
    size_t size, shown, capacity;
    attn_rng rng;
    model_generation how;
    float *score;   /* [vocabulary]: logits changed by penalties */
    double seconds; /* for all tokens but the first, whose time includes the prompt */
} session;

/* ------------------------------------------------------------------------------------- Text */

static int keep_text(session *s, int64_t id, kit_error *err)
{
    size_t length = 0;
    const char *bytes = kit_tokenizer_bytes(model_tokenizer(s->m), id, &length);
    if (!bytes) /* the model may have more ids than its tokeniser has tokens */
        return KIT_OK;
    if (s->size + length + 1 > s->capacity) {
        const size_t capacity = 2 * (s->size + length) + 64;
        char *grown = realloc(s->text, capacity);
        if (!grown)
            return kit_fail(err, KIT_LIMIT, "out of memory");
        s->text = grown;
        s->capacity = capacity;
    }
    memcpy(s->text + s->size, bytes, length);
    s->size += length;
    s->text[s->size] = 0;
    return KIT_OK;
}

/* Returns the length of the character that begins with this byte; 1 if none does. */
static size_t length_of(unsigned char first)
{
    return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
}

/* Prints a character of the generated text; line ends and tabs are kept. */
static void show_character(const unsigned char *at, size_t n)
{
    char one[5] = "";
    memcpy(one, at, n);
    if (*at == '\n' || *at == '\t')
        putchar(*at);
    else if (*at)
        kit_text_print(stdout, one);
    else
        fputs("\xEF\xBF\xBD", stdout);
}

static void show_prompt(const char *prompt)
{
    for (const char *piece, *next; *prompt; prompt = next) {
        size_t length;
        next = kit_text_next(prompt, &piece, &length);
        show_character((const unsigned char *)prompt, (size_t)(next - prompt));
    }
}

/* Prints the characters that are complete, or cannot become so. `all`: nothing follows. */
static int show_text(session *s, bool all, kit_error *err)
{
    while (s->shown < s->size) {
        const unsigned char *at = (const unsigned char *)s->text + s->shown;
        const size_t n = length_of(*at), left = s->size - s->shown;
        size_t whole = 1;
        while (whole < n && whole < left && (at[whole] & 0xC0) == 0x80)
            whole++;
        if (whole < n && whole == left && !all)
            break;
        show_character(at, whole);
        s->shown += whole;
    }
    if (fflush(stdout) || ferror(stdout))
        return kit_fail(err, KIT_LIMIT, "standard output: %s", strerror(errno));
    return KIT_OK;
}

/* ------------------------------------------------------------------------------------ Beginning */

static int begin_prompt(session *s, const char *text, kit_error *err)
{
    const model_sizes *z = model_sizes_of(s->m);
    int code = kit_tokenizer_encode(&s->prompt, model_tokenizer(s->m), text, NULL, err);
    if (code)
        return code;
    s->count = (int64_t)s->prompt.count;
    if (!s->count)
        return kit_fail(err, KIT_USAGE, "the prompt has no token; it must not be empty");
    if (s->count > z->positions)
        return kit_fail(err, KIT_USAGE,
                        "the prompt has %" PRId64 " tokens; the model has positions for %" PRId64,
                        s->count, z->positions);
    s->room = s->count + option_integer(s->o, OPT_generate_tokens);
    s->room = s->room < z->positions ? s->room : z->positions;
    s->id = calloc((size_t)s->room + 1, sizeof *s->id);
    if (!s->id)
        return kit_fail(err, KIT_LIMIT, "out of memory");
    for (int64_t i = 0; i < s->count; i++)
        s->id[i] = s->prompt.token[i].id;
    return model_run_begin(&s->run, s->m, s->count, s->room, err);
}

/* Chooses how tokens are generated: as the options say, otherwise as the model's files say. */
static int choose(session *s, kit_error *err)
{
    const options *o = s->o;
    const bool own = option_given(o, OPT_generate_temperature);
    const double temperature = own ? option_real(o, OPT_generate_temperature) : 0;
    const int code = model_generation_of(&s->how, s->m, own, temperature > 0, err);
    if (own)
        s->how.temperature = temperature;
    if (option_given(o, OPT_generate_top_k))
        s->how.top_k = option_integer(o, OPT_generate_top_k);
    if (option_given(o, OPT_generate_top_p))
        s->how.top_p = option_real(o, OPT_generate_top_p);
    if (code || (s->how.repetition_penalty == 1 && !s->how.no_repeat_ngram))
        return code;
    s->score = calloc((size_t)model_sizes_of(s->m)->vocabulary, sizeof *s->score);
    return s->score ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory");
}

static int begin(session *s, const char *text, kit_error *err)
{
    const char *path = option_text(s->o, OPT_generate_model);
    int code = engine_context(&s->ctx, option_text(s->o, OPT_generate_isa),
                              (int)option_integer(s->o, OPT_generate_threads), err);
    if (!code)
        code = model_open_with(&s->m, path,
                               &(model_options){option_given(s->o, OPT_generate_ignore_unknown),
                                                engine_ignored},
                               s->ctx, err);
    if (!code && !model_sizes_of(s->m)->causal)
        code =
            kit_fail(err, KIT_USAGE,
                     "%s: is an encoder (%s) and cannot generate text; use a decoder: gpt2, llama, "
                     "mistral or qwen2",
                     path, model_sizes_of(s->m)->kind);
    if (!code && !model_sizes_of(s->m)->predicts)
        code = kit_fail(
            err, KIT_BAD_FILE,
            "%s: tensor 'lm_head.weight' is missing and tie_word_embeddings is not true, so the "
            "model cannot predict a token",
            path);
    if (!code)
        code = choose(s, err);
    attn_rng_seed(&s->rng, option_seed(s->o, OPT_generate_seed));
    if (!code && !(code = begin_prompt(s, text, err)))
        engine_tell_ignored();
    return code;
}

/* --------------------------------------------------------------------------------- The loop */

static int next_token(session *s, int64_t *id, kit_error *err)
{
    const int64_t vocabulary = model_sizes_of(s->m)->vocabulary;
    const float *logits;
    int code = model_run_logits(s->run, &logits, err);
    if (!code && s->score) {
        memcpy(s->score, logits, (size_t)vocabulary * sizeof *s->score);
        logits = s->score;
        code = model_penalize(s->score, vocabulary, s->id, s->count, &s->how, err);
    }
    return code ? code : model_sample(id, logits, vocabulary, &s->how, &s->rng, err);
}

static int go_on(session *s, bool quiet, kit_error *err)
{
    double start = 0;
    int64_t id = 0;
    int code = model_run_tokens(s->run, s->id, NULL, s->count, NULL, 0, err);
    while (!code && s->count < s->room && !(code = next_token(s, &id, err))) {
        start = start > 0 ? start : seconds_now();
        s->id[s->count++] = id;
        if (model_ends_with(s->m, id))
            break;
        code = keep_text(s, id, err);
        if (!code && !quiet)
            code = show_text(s, false, err);
        if (!code && s->count < s->room)
            code = model_run_tokens(s->run, &id, NULL, 1, NULL, 0, err);
    }
    s->seconds = start > 0 ? seconds_now() - start : 0;
    return code;
}

static void put_ids(json_writer *j, const char *key, const int64_t *id, int64_t count)
{
    json_put_array(j, key);
    for (int64_t i = 0; i < count; i++)
        json_put_integer(j, NULL, id[i]);
    json_end_array(j);
}

static void put_json(const session *s, const char *prompt, double speed)
{
    const int64_t given = (int64_t)s->prompt.count;
    json_writer j = json_begin_stdout("attn.generate/1");
    json_put_text(&j, "prompt", prompt);
    put_ids(&j, "prompt_ids", s->id, given);
    put_ids(&j, "ids", s->id + given, s->count - given);
    json_put_text_of(&j, "text", s->text ? s->text : "", s->size);
    if (speed > 0)
        json_put_real(&j, "tokens_per_second", speed);
    else
        json_put_null(&j, "tokens_per_second");
    json_end_stdout(&j);
}

static int generate(session *s, const char *prompt, kit_error *err)
{
    const bool json = option_given(s->o, OPT_generate_json);
    int code = begin(s, prompt, err);
    if (code)
        return code;
    if (!json)
        show_prompt(prompt);
    code = go_on(s, json, err);
    const int64_t made = s->count - (int64_t)s->prompt.count;
    /* Without the first token, whose time includes the prompt. So one token alone has no speed. */
    const double speed = made > 1 && s->seconds > 0 ? (double)(made - 1) / s->seconds : 0;
    if (code)
        return code;
    if (json) {
        put_json(s, prompt, speed);
        return KIT_OK;
    }
    code = show_text(s, true, err);
    putchar('\n');
    if (!code && speed > 0)
        fprintf(stderr, "%" PRId64 " tokens, %.1f tokens/s\n", made, speed);
    else if (!code)
        fprintf(stderr, "%" PRId64 " token%s\n", made, made == 1 ? "" : "s");
    return code;
}

int command_generate(const options *o, kit_error *err)
{
    session s = {.o = o};
    if (!o->operand_count)
        return kit_fail(err, KIT_USAGE,
                        "a prompt is missing: attn generate --model DIR \"Life is short,\"");
    if (!option_given(o, OPT_generate_model))
        return kit_fail(err, KIT_USAGE,
                        "--model is missing: attn generate --model DIR \"Life is short,\"");
    char *prompt = command_join_operands(o, err);
    const int code = prompt ? generate(&s, prompt, err) : err->code;
    model_run_end(s.run);
    model_close(s.m);
    attn_context_destroy(s.ctx);
    kit_tokens_free(&s.prompt);
    free(s.id);
    free(s.text);
    free(s.score);
    free(prompt);
    return code;
}
