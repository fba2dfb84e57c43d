/* attn run --pieces: keys and values from files that are larger than memory, with checkpoints.
 *
 * A checkpoint is a hash of some rows of k and v, 8 bytes, then the bytes of attn_sdpa_save. The
 * library compares the rest of the call; a hash of all keys would take as long as the call.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "run.h"
#include "signals.h"
#include "terminal.h"

enum { CHUNK = 256, SAMPLES = 64, HASH = 8 };

/* Bytes of keys and values that are fed at once. While they are fed, a thread maps or copies the
 * next ones.
 *
 * Maps should be few: 64 queries of 8 heads and 4 GiB in the page cache take 2.0 to 2.5 s with
 * 4 MiB at once, 1.4 to 1.7 s with 32 MiB, and no less with 64 MiB (Zen 3, two threads). Copies
 * should still be in a cache when they are fed: with 4 MiB, 16 queries of 4 heads take 1.2 s of CPU
 * time, with 8 MiB 1.6 s. */
enum { MAPPED_BYTES = 32 << 20, COPIED_BYTES = 4 << 20 };

/* ------------------------------------------------------------------------------------ options */

/* No result may be the file of --resume, and --checkpoint neither a result nor an input. But it may
 * overwrite the file of --resume, because it continues the same call. */
static int check_files(const files *f, const options *o, kit_error *err)
{
    const char *checkpoint = option_text(o, OPT_run_checkpoint);
    const char *resume = option_text(o, OPT_run_resume);
    files with_resume = {0}, with_checkpoint = {0};
    int code = resume ? files_add_input(&with_resume, resume, err) : KIT_OK;
    if (!code)
        code = run_name_inputs(&with_checkpoint, o, err);
    for (size_t i = 0; i < f->output_count && !code; i++)
        if (!(code = files_add_output(&with_resume, f->output[i].path, err)))
            code = files_add_output(&with_checkpoint, f->output[i].path, err);
    if (!code && checkpoint && !(code = files_add_output(&with_checkpoint, checkpoint, err)))
        code = files_probe(&with_checkpoint, err);
    files_free(&with_resume);
    files_free(&with_checkpoint);
    return code;
}

int run_pieces_check(const files *f, const options *o, kit_error *err)
{
    static const option_id need[] = {OPT_run_checkpoint, OPT_run_every, OPT_run_resume};
    static const option_id excluded[] = {OPT_run_weights, OPT_run_scores, OPT_run_grad_out,
                                         OPT_run_plan};
    const char *checkpoint = option_text(o, OPT_run_checkpoint);
    const bool pieces = option_given(o, OPT_run_pieces);
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        if (!pieces && option_given(o, need[i]))
            return kit_fail(err, KIT_USAGE, "--%s needs --pieces N or --mpi",
                            option_of(need[i])->name);
    if (!pieces)
        return KIT_OK;
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded; i++)
        if (option_given(o, excluded[i]))
            return kit_fail(err, KIT_USAGE,
                            "--%s does not go with --pieces, which computes --out and --lse only",
                            option_of(excluded[i])->name);
    if (option_integer(o, OPT_run_pieces) % CHUNK != 0)
        return kit_fail(err, KIT_USAGE, "--pieces %s: must be a multiple of %d",
                        option_text(o, OPT_run_pieces), CHUNK);
    if (!checkpoint && option_given(o, OPT_run_every))
        return kit_fail(err, KIT_USAGE, "--every has no effect without --checkpoint FILE");
    if (checkpoint && files_is_stdout(checkpoint))
        return kit_fail(err, KIT_USAGE,
                        "--checkpoint %s: must be the name of a file, not standard output",
                        checkpoint);
    return check_files(f, o, err);
}

/* --------------------------------------------------------------------------------------- files */

/* Keys and values that are fed at once: a part of a piece, keys first .. past-1. */
typedef struct part {
    kit_view k, v;
    int64_t first, past;
    int code; /* of kit_view_read, with its err */
    kit_error err;
} part;

typedef struct pieces_run {
    run_input *in;
    const options *o;
    attn_sdpa_state *state;
    run_pieces_info *info;
    part part[2];      /* one is fed while the other one is read */
    int64_t rows;      /* of a part at most */
    int64_t key_bytes; /* of a key and its value in the files, over all heads */
    uint64_t hash;     /* of rows of k and v */
    int64_t S;
    int sweep;
    double start, saved; /* seconds_now() */
    int64_t first;       /* the key at `start`, the beginning of the sweep */
    double bytes;        /* read before it */
} pieces_run;

static int read_piece(kit_array *a, kit_rows *rows, int64_t first, int64_t n, kit_error *err)
{
    a->shape[a->rank - 2] = n;
    return kit_rows_read(rows, first, n, a->data, err);
}

/* Hashes rows at equal distances, the first and the last one among them. */
static int hash_rows(uint64_t *hash, kit_rows *rows, kit_error *err)
{
    const int64_t S = kit_rows_array(rows)->shape[kit_rows_array(rows)->rank - 2];
    const int64_t samples = S < SAMPLES ? S : SAMPLES;
    kit_array row = {0};
    int code = kit_rows_new(&row, rows, 1, err);
    for (int64_t i = 0; i < samples && !code; i++) {
        const int64_t j = samples > 1 ? (S - 1) / (samples - 1) * i : 0;
        code = read_piece(&row, rows, i == samples - 1 ? S - 1 : j, 1, err);
        *hash = kit_hash(*hash, row.data, row.bytes);
    }
    kit_array_free(&row);
    return code;
}

int run_keys_are_finite(run_input *in, bool *finite, kit_error *err)
{
    kit_rows *const both[] = {in->k_rows, in->v_rows};
    int code = KIT_OK;
    *finite = true;
    for (int i = 0; i < 2 && !code; i++) {
        const int64_t S = in->args.k.shape[2];
        kit_array some = {0};
        code = kit_rows_new(&some, both[i], CHUNK, err);
        for (int64_t j = 0; j < S && !code && *finite; j += CHUNK) {
            code = read_piece(&some, both[i], j, S - j < CHUNK ? S - j : CHUNK, err);
            *finite = code || run_is_finite(&some, false);
        }
        kit_array_free(&some);
    }
    return code;
}

/* --------------------------------------------------------------------------------- checkpoints */

typedef struct checkpoint_writer {
    kit_output *to;
    kit_error *err;
    int code;
} checkpoint_writer;

static int write_bytes(void *user, const void *bytes, size_t n)
{
    checkpoint_writer *w = user;
    w->code = kit_output_write(w->to, bytes, n, w->err);
    return w->code;
}

static int save(pieces_run *p, const char *path, kit_error *err)
{
    files f = {0};
    attn_error engine = {0};
    int code = files_add_output(&f, path, err);
    if (!code && !(code = files_open(&f, err))) {
        checkpoint_writer w = {f.output[0].file, err, KIT_OK};
        unsigned char hash[HASH];
        for (int i = 0; i < HASH; i++)
            hash[i] = (unsigned char)(p->hash >> 8 * i);
        if (write_bytes(&w, hash, HASH) == 0)
            attn_sdpa_save(p->state, write_bytes, &w, &engine);
        code = w.code ? w.code : files_commit(&f, err);
    }
    files_free(&f);
    p->saved = seconds_now();
    return code;
}

static int load(pieces_run *p, const char *path, const attn_sdpa_args *args, attn_context *ctx,
                kit_error *err)
{
    void *bytes = NULL;
    size_t size = 0;
    attn_error engine = {0};
    int code = kit_read_bytes(&bytes, &size, path, err);
    if (code)
        return code;
    const unsigned char *hash = bytes, none = 0;
    const size_t head = size < HASH ? size : HASH;
    bool same = true;
    for (size_t i = 0; i < head; i++)
        same &= hash[i] == (unsigned char)(p->hash >> 8 * i);
    const attn_status status = attn_sdpa_load(ctx, args, NULL, size > head ? hash + head : &none,
                                              size - head, &p->state, &engine);
    free(bytes);
    if (status == ATTN_ERR_MEMORY || status == ATTN_ERR_LIMIT)
        return kit_engine(status, &engine, err);
    if (status != ATTN_OK)
        return kit_fail(err, KIT_BAD_FILE, "%s: no checkpoint of this call: %s", path,
                        engine.message);
    if (!same)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: no checkpoint of this call: %s or %s has other numbers", path,
                        option_text(p->o, OPT_run_k), option_text(p->o, OPT_run_v));
    return KIT_OK;
}

/* --------------------------------------------------------------------------------- the call */

/* Rows of a file as a tensor; `whole` has its other sizes. */
static attn_tensor rows_of(const kit_view *v, const attn_tensor *whole, int64_t n)
{
    const int64_t *shape = whole->shape;
    attn_tensor t = attn_bhtd((void *)v->data, whole->dtype, shape[0], shape[1], n, shape[3]);
    t.stride[0] = shape[1] * v->stride;
    t.stride[1] = v->stride;
    return t;
}

static int feed(pieces_run *p, const part *from, kit_error *err)
{
    const attn_sdpa_args *a = &p->in->args;
    const attn_tensor k = rows_of(&from->k, &a->k, from->past - from->first);
    const attn_tensor v = rows_of(&from->v, &a->v, from->past - from->first);
    attn_error engine = {0};
    int code = kit_engine(attn_sdpa_feed(p->state, from->first, &k, &v, &engine), &engine, err);
    if (!code && !(code = kit_view_check(&from->k, err)))
        code = kit_view_check(&from->v, err);
    return code;
}

static void show(const pieces_run *p, int64_t done)
{
    const double seconds = seconds_now() - p->start;
    const double left = seconds * (double)(p->S - done) / (double)(done - p->first);
    char sweep[32] = "";
    if (p->sweep > 1)
        snprintf(sweep, sizeof sweep, "sweep %d: ", p->sweep);
    terminal_progress("%skey %" PRId64 " of %" PRId64 ": %.2f GB/s, at most %d:%02d left", sweep,
                      done, p->S, (p->info->bytes - p->bytes) / seconds * 1e-9, (int)(left / 60),
                      (int)left % 60);
}

static void *read_part(void *arg)
{
    part *to = arg;
    const int64_t n = to->past - to->first;
    to->code = kit_view_read(&to->k, to->first, n, &to->err);
    if (!to->code)
        to->code = kit_view_read(&to->v, to->first, n, &to->err);
    return NULL;
}

/* Chooses the next keys to read: those from `first` on, and none from `past` on. */
static void choose_part(part *to, const pieces_run *p, int64_t first, int64_t past)
{
    to->first = first;
    to->past = past - first < p->rows ? past : first + p->rows;
}

/* Reads and feeds a piece, part by part: the next part is read while one is fed. */
static int feed_piece(pieces_run *p, int64_t first, int64_t past, kit_error *err)
{
    choose_part(&p->part[0], p, first, past);
    read_part(&p->part[0]);
    for (int i = 0;; i = !i) {
        part *now = &p->part[i], *next = &p->part[!i];
        if (now->code) {
            *err = now->err;
            return now->code;
        }
        choose_part(next, p, now->past, past);
        const bool more = next->first < past;
        pthread_t thread;
        const bool beside = more && pthread_create(&thread, NULL, read_part, next) == 0;
        const int code = feed(p, now, err);
        if (beside)
            pthread_join(thread, NULL);
        if (code || !more)
            return code;
        if (!beside)
            read_part(next);
    }
}

static int leave(const pieces_run *p, int64_t done, const char *checkpoint, kit_error *err)
{
    return kit_fail(err, 128 + signals_caught,
                    "stopped at key %" PRId64 " of %" PRId64
                    "; saved in %s; continue with the same options and --resume %s",
                    done, p->S, checkpoint, checkpoint);
}

/* Reads and feeds the keys that are still needed in this sweep. */
static int feed_all(pieces_run *p, kit_error *err)
{
    const char *checkpoint = option_text(p->o, OPT_run_checkpoint);
    const double every = option_real(p->o, OPT_run_every);
    int64_t first, past;
    int code = KIT_OK;
    p->start = seconds_now();
    p->first = attn_sdpa_next(p->state, &past);
    p->bytes = p->info->bytes;
    while (!code && (first = attn_sdpa_next(p->state, &past)) < p->S) {
        const int64_t n = past - first < p->info->size ? past - first : p->info->size;
        const int64_t end = first + n, next = past - end < n ? past - end : n;
        kit_rows_ahead(p->in->k_rows, end, next);
        kit_rows_ahead(p->in->v_rows, end, next);
        code = feed_piece(p, first, end, err);
        p->info->count++;
        p->info->keys += n;
        p->info->bytes += (double)(n * p->key_bytes);
        show(p, end);
        const bool last = signals_caught && end < p->S;
        if (!code && checkpoint && (last || seconds_now() - p->saved >= every))
            code = save(p, checkpoint, err);
        if (!code && last)
            code = leave(p, end, checkpoint, err);
    }
    terminal_progress(NULL);
    return code;
}

static int begin(pieces_run *p, const attn_sdpa_args *args, attn_context *ctx, kit_error *err)
{
    const char *resume = option_text(p->o, OPT_run_resume);
    attn_error engine = {0};
    int code = KIT_OK;
    if (resume || option_given(p->o, OPT_run_checkpoint)) {
        p->hash = KIT_HASH_START;
        if ((code = hash_rows(&p->hash, p->in->k_rows, err)) ||
            (code = hash_rows(&p->hash, p->in->v_rows, err)))
            return code;
    }
    if (resume)
        return load(p, resume, args, ctx, err);
    return kit_engine(attn_sdpa_begin(ctx, args, NULL, &p->state, &engine), &engine, err);
}

/* Bytes of one row of each matrix. */
static int64_t row_bytes(const kit_rows *rows)
{
    const kit_array *a = kit_rows_array(rows);
    const int64_t S = a->shape[a->rank - 2];
    return S ? kit_array_count(a) / S * (int64_t)attn_dtype_size(a->dtype) : 0;
}

/* Opens two parts. Their rows are a multiple of 256 keys, or a piece if it is smaller. */
static int new_parts(pieces_run *p, kit_error *err)
{
    kit_rows *k = p->in->k_rows, *v = p->in->v_rows;
    const attn_dtype dtype = p->in->args.q.dtype;
    const bool mapped = kit_rows_mappable(k, dtype) && kit_rows_mappable(v, dtype);
    const int64_t bytes = row_bytes(k) + row_bytes(v);
    const int64_t chunks = bytes ? (mapped ? MAPPED_BYTES : COPIED_BYTES) / CHUNK / bytes : 1;
    p->rows = (chunks ? chunks : 1) * CHUNK;
    if (p->rows > p->info->size)
        p->rows = p->info->size;
    p->key_bytes = bytes;
    int code = KIT_OK;
    for (int i = 0; i < 2 && !code; i++)
        if (!(code = kit_view_open(&p->part[i].k, k, dtype, p->rows, err)))
            code = kit_view_open(&p->part[i].v, v, dtype, p->rows, err);
    return code;
}

int run_in_pieces(run_input *in, const attn_sdpa_args *args, attn_context *ctx, const options *o,
                  run_pieces_info *info, kit_error *err)
{
    pieces_run p = {.in = in, .o = o, .info = info, .S = args->k.shape[2], .sweep = 1};
    const int64_t wanted = option_integer(o, OPT_run_pieces);
    attn_error engine = {0};
    attn_status status = ATTN_AGAIN;
    *info = (run_pieces_info){.size = wanted < p.S ? wanted : p.S > 0 ? p.S : 1};
    p.saved = seconds_now();
    int code = begin(&p, args, ctx, err);
    if (!code)
        code = new_parts(&p, err);
    struct sigaction before[2];
    if (option_given(o, OPT_run_checkpoint))
        signals_catch(before);
    for (; !code && status == ATTN_AGAIN; p.sweep++) {
        if ((code = feed_all(&p, err)))
            break;
        status = attn_sdpa_finish(p.state, &engine);
        if (status != ATTN_OK && status != ATTN_AGAIN)
            code = kit_engine(status, &engine, err);
    }
    if (option_given(o, OPT_run_checkpoint))
        signals_release(before);
    info->state_bytes = attn_sdpa_state_bytes(p.state);
    attn_sdpa_end(p.state);
    for (int i = 0; i < 2; i++) {
        kit_view_close(&p.part[i].k);
        kit_view_close(&p.part[i].v);
    }
    return code;
}
