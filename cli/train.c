/* attn train: the loop around kit/train. Progress is printed to standard output during the run, and
 * the report after it. With --json only the report is printed. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../kit/train/train.h"
#include "command.h"
#include "signals.h"
#include "terminal.h"
#include "view.h"

enum { TEXT_LIMIT = 1 << 30, REPORTS = 10, MAPS = 4 };

typedef struct session {
    const options *o;
    view view;
    attn_context *ctx;
    train_text text;
    bool has_text;
    train_run *run;
    int64_t steps, every, save_every;
    const char *checkpoint;
    bool quiet;    /* --json */
    int64_t saved; /* step of the last checkpoint; -1: none */
    double start;  /* of the period since the last report */
    int64_t start_step;
} session;

/* ------------------------------------------------------------------------------------ Options */

static train_config config_of(const options *o)
{
    train_config c = {.task = (train_task)option_choice(o, OPT_train_task)};
    if (option_given(o, OPT_train_text))
        c.task = TRAIN_TEXT;
    c.vocabulary = option_integer(o, OPT_train_vocab);
    c.length = option_integer(o, OPT_train_length);
    c.embed = option_integer(o, OPT_train_embed);
    c.heads = option_integer(o, OPT_train_heads);
    c.layers = option_integer(o, OPT_train_layers);
    c.mlp = option_given(o, OPT_train_mlp);
    c.batch = option_integer(o, OPT_train_batch);
    c.warmup = option_integer(o, OPT_train_warmup);
    c.seed = option_seed(o, OPT_train_seed);
    c.lr = option_real(o, OPT_train_lr);
    c.weight_decay = option_real(o, OPT_train_weight_decay);
    c.unseen = option_integer(o, OPT_train_unseen);
    return c;
}

/* Refuses options that a resumed run has from its checkpoint. */
static int check_resumed(const options *o, kit_error *err)
{
    static const option_id fixed[] = {
        OPT_train_task,   OPT_train_length, OPT_train_vocab,        OPT_train_embed,
        OPT_train_heads,  OPT_train_layers, OPT_train_mlp,          OPT_train_batch,
        OPT_train_lr,     OPT_train_warmup, OPT_train_weight_decay, OPT_train_seed,
        OPT_train_unseen,
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (option_given(o, fixed[i]))
            return kit_fail(
                err, KIT_USAGE,
                "--%s does not go with --resume, whose checkpoint sets it; leave it out",
                option_of(fixed[i])->name);
    return KIT_OK;
}

static int check_options(const options *o, kit_error *err)
{
    const bool text = option_given(o, OPT_train_text), task = option_given(o, OPT_train_task);
    if (o->operand_count)
        return kit_fail(err, KIT_USAGE, "unexpected argument '%s'; a task is given as --task %s",
                        o->operand[0], o->operand[0]);
    if (option_given(o, OPT_train_save_every) && !option_given(o, OPT_train_checkpoint))
        return kit_fail(err, KIT_USAGE, "--save-every needs --checkpoint FILE");
    if (option_given(o, OPT_train_resume))
        return check_resumed(o, err);
    if (task && text && option_choice(o, OPT_train_task) != TRAIN_TEXT)
        return kit_fail(err, KIT_USAGE, "--text and --task %s exclude each other; leave one out",
                        option_text(o, OPT_train_task));
    if (text && option_given(o, OPT_train_vocab))
        return kit_fail(err, KIT_USAGE,
                        "--vocab does not go with --text, whose characters are the vocabulary");
    if (task && !text && option_choice(o, OPT_train_task) == TRAIN_TEXT)
        return kit_fail(err, KIT_USAGE, "--task text needs --text FILE");
    return KIT_OK;
}

/* ------------------------------------------------------------------------------------- Begin */

static int read_text(session *s, const char *path, kit_error *err)
{
    FILE *f = fopen(path, "rb");
    char *bytes = NULL;
    size_t size = 0, capacity = 0, got = 1;
    if (!f)
        return kit_fail(err, KIT_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
    while (got && size <= TEXT_LIMIT) {
        if (size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *grown = realloc(bytes, capacity);
            if (!grown)
                break;
            bytes = grown;
        }
        got = fread(bytes + size, 1, capacity - size, f);
        size += got;
    }
    const bool failed = ferror(f);
    fclose(f);
    int code = KIT_OK;
    if (failed)
        code = kit_fail(err, KIT_BAD_FILE, "%s: cannot read: %s", path, strerror(errno));
    else if (got)
        code = kit_fail(err, KIT_LIMIT, "%s: is larger than %d bytes, or than the free memory",
                        path, TEXT_LIMIT);
    else
        code = train_text_make(&s->text, bytes, size, path, err);
    free(bytes);
    s->has_text = !code;
    return code;
}

static int name_files(session *s, kit_error *err)
{
    const char *inputs[] = {option_text(s->o, OPT_train_text), option_text(s->o, OPT_train_resume)};
    s->checkpoint = option_text(s->o, OPT_train_checkpoint);
    if (s->checkpoint && files_is_stdout(s->checkpoint))
        return kit_fail(err, KIT_USAGE,
                        "--checkpoint %s: must be the name of a file, not standard output",
                        s->checkpoint);
    /* Only --checkpoint may overwrite the file of --resume, because it continues the same run. */
    files f = {0};
    int code = inputs[0] ? files_add_input(&f, inputs[0], err) : KIT_OK;
    if (!code && s->checkpoint)
        code = files_add_output(&f, s->checkpoint, err);
    if (!code && inputs[1])
        code = files_add_input(&f, inputs[1], err);
    for (size_t i = 0; i < s->view.files.output_count && !code; i++)
        code = files_add_output(&f, s->view.files.output[i].path, err);
    if (!code)
        code = files_probe(&f, err);
    files_free(&f);
    return code;
}

/* Sets the total number of steps; a resumed run must not be past it. */
static int plan_steps(session *s, kit_error *err)
{
    const int64_t done = train_steps_done(s->run);
    s->steps = option_integer(s->o, OPT_train_steps);
    if (option_given(s->o, OPT_train_resume) && s->steps < done)
        return kit_fail(err, KIT_USAGE,
                        "--steps %" PRId64 ": the checkpoint is at step %" PRId64
                        "; give at least as many",
                        s->steps, done);
    s->every = option_integer(s->o, OPT_train_every);
    if (!s->every)
        s->every = s->steps > REPORTS ? s->steps / REPORTS : 1;
    s->save_every = option_integer(s->o, OPT_train_save_every);
    return KIT_OK;
}

static int begin(session *s, kit_error *err)
{
    const char *text = option_text(s->o, OPT_train_text);
    const char *resume = option_text(s->o, OPT_train_resume);
    train_config c = config_of(s->o);
    int code = resume ? train_load_config(&c, resume, err) : KIT_OK;
    if (!code && resume && (c.task == TRAIN_TEXT) != (text != NULL))
        code = kit_fail(err, KIT_USAGE, "%s: was trained on %s", resume,
                        text ? "no text; leave --text out" : "a text; give it as --text FILE");
    if (!code && text)
        code = read_text(s, text, err);
    const train_text *t = s->has_text ? &s->text : NULL;
    if (!code && !resume)
        code = train_config_check(&c, t, err);
    if (!code)
        code = engine_context(&s->ctx, option_text(s->o, OPT_train_isa),
                              (int)option_integer(s->o, OPT_train_threads), err);
    if (!code)
        code = resume ? train_load(&s->run, resume, t, s->ctx, err)
                      : train_begin(&s->run, &c, t, s->ctx, err);
    return code ? code : plan_steps(s, err);
}

/* ----------------------------------------------------------------------------------- Progress */

static double tokens_per_second(const session *s)
{
    const train_config *c = train_config_of(s->run);
    const double steps = (double)(train_steps_done(s->run) - s->start_step);
    return steps * (double)(c->batch * c->length) / (seconds_now() - s->start + 1e-9);
}

/* Measures accuracy, and prints a line of the table. */
static int report(session *s, double loss, kit_error *err)
{
    const double speed = tokens_per_second(s);
    const int64_t step = train_steps_done(s->run);
    train_score score;
    const int code = train_measure(s->run, &score, err);
    if (code || s->quiet)
        return code;
    terminal_progress(NULL);
    if (step == 0)
        printf("%8" PRId64 " %10s %10.4f %10.1f %%\n", step, "", score.loss, 100 * score.accuracy);
    else
        printf("%8" PRId64 " %10.4f %10.4f %10.1f %% %12.0f\n", step, loss, score.loss,
               100 * score.accuracy, speed);
    fflush(stdout);
    s->start = seconds_now();
    s->start_step = step;
    return KIT_OK;
}

/* Whether maps are kept at this step: at the beginning and after 1/8, 1/4 and 1/2 of the steps. The
 * last maps belong to the report. */
static bool wants_map(const session *s, int64_t step)
{
    for (int i = 1; i < MAPS; i++)
        if (step == s->steps >> i && step > 0)
            return true;
    return step == 0;
}

static int save(session *s, kit_error *err)
{
    const int64_t step = train_steps_done(s->run);
    if (!s->checkpoint || s->saved == step)
        return KIT_OK;
    s->saved = step;
    return train_save(s->run, s->checkpoint, err);
}

/* Does what follows a completed step; step 0 is the beginning. */
static int after_step(session *s, double loss, kit_error *err)
{
    const int64_t step = train_steps_done(s->run);
    int code = KIT_OK;
    if (step % s->every == 0 || step == s->steps)
        code = report(s, loss, err);
    if (!code && (wants_map(s, step) || step == s->steps))
        code = train_keep_maps(s->run, err);
    if (!code && step == s->steps)
        return save(s, err);
    if (!code && s->save_every && step && step % s->save_every == 0)
        code = save(s, err);
    return code;
}

static int train(session *s, kit_error *err)
{
    double loss = NAN;
    int code = KIT_OK;
    s->saved = -1;
    if (!s->quiet)
        printf("%8s %10s %10s %12s %12s\n", "step", "loss", "unseen", "accuracy", "tokens/s");
    s->start = seconds_now();
    s->start_step = train_steps_done(s->run);
    if (s->start_step == 0)
        code = after_step(s, loss, err);
    else if (s->start_step == s->steps) /* a resumed run that has no step left */
        code =
            train_is_measured(s->run) ? save(s, err) : after_step(s, train_last_loss(s->run), err);
    while (!code && !signals_caught && train_steps_done(s->run) < s->steps) {
        code = train_step(s->run, &loss, err);
        if (!code)
            code = after_step(s, loss, err);
        if (!code && !s->quiet)
            terminal_progress("step %" PRId64 " of %" PRId64 ": loss %.4f, %.0f tokens/s",
                              train_steps_done(s->run), s->steps, loss, tokens_per_second(s));
    }
    terminal_progress(NULL);
    return code;
}

/* After a signal: saves, and exits with the code that the signal would have given. */
static int leave(session *s, kit_error *err)
{
    const int64_t step = train_steps_done(s->run);
    const int code = save(s, err);
    if (code)
        return code;
    if (s->checkpoint)
        kit_fail(err, 128 + signals_caught,
                 "stopped after step %" PRId64
                 "; saved in %s; continue with: attn train --resume %s --steps %" PRId64,
                 step, s->checkpoint, s->checkpoint, s->steps);
    else
        kit_fail(err, 128 + signals_caught,
                 "stopped after step %" PRId64
                 "; nothing was saved, because --checkpoint was not given",
                 step);
    return 128 + signals_caught;
}

int command_train(const options *o, kit_error *err)
{
    static const view_options ids = {OPT_train_json, OPT_train_full, OPTION_COUNT,
                                     OPT_train_output};
    session s = {.o = o, .quiet = option_given(o, OPT_train_json)};
    trace t = {0};
    int code;
    if (!(code = check_options(o, err)) && !(code = view_begin(&s.view, o, &ids, err)) &&
        !(code = name_files(&s, err)) && !(code = begin(&s, err))) {
        struct sigaction before[2];
        signals_catch(before);
        code = train(&s, err);
        if (!code && signals_caught && train_steps_done(s.run) < s.steps)
            code = leave(&s, err);
        signals_release(before); /* there are no more steps after which the loop could end */
        if (!code)
            code = train_to_trace(&t, s.run, err);
        if (!code && !s.quiet)
            putchar('\n');
        if (!code)
            code = view_show(&s.view, &t, err);
    }
    trace_free(&t);
    train_end(s.run);
    attn_context_destroy(s.ctx);
    if (s.has_text)
        train_text_free(&s.text);
    view_end(&s.view);
    return code;
}
