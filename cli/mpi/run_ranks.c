/* attn run --mpi: each rank reads its rows of q, k, v and the mask, computes them with the others
 * by attn_mpi_sdpa_forward, and writes its rows of the results. Whether to go on is decided by all
 * ranks together, so each step here ends with ranks_agree. */
#include "checkpoint.h"
#include "ranks.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "../command.h"
#include "../run.h"

enum { OUT, LSE, RESULTS };
static const option_id ids[RESULTS] = {OPT_run_out, OPT_run_lse};

typedef struct result {
    const char *path; /* NULL: not requested */
    kit_array whole;  /* dtype and shape of the file; no data */
    kit_array rows;   /* of this rank */
    kit_output *file;
} result;

typedef struct run_state {
    files files;
    run_input in;
    int rank, size;
    int64_t T;
    kit_array q, k, v, mask; /* rows of this rank */
    attn_tensor mask_view, lse_view;
    attn_sdpa_args args;
    attn_context *ctx;
    result result[RESULTS];
    checkpoint saved;
    bool share_heads;
} run_state;

/* ------------------------------------------------------------------------------------ options */

static int check_options(const run_state *r, const options *o, kit_error *err)
{
    static const option_id excluded[] = {OPT_run_weights,   OPT_run_scores, OPT_run_scores_stage,
                                         OPT_run_json,      OPT_run_plan,   OPT_run_grad_out,
                                         OPT_run_grad_q,    OPT_run_grad_k, OPT_run_grad_v,
                                         OPT_run_grad_mask, OPT_run_pieces};
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded; i++)
        if (option_given(o, excluded[i]))
            return kit_fail(err, KIT_USAGE,
                            "--%s does not go with --mpi, which computes --out and --lse only",
                            option_of(excluded[i])->name);
    if (!option_given(o, OPT_run_out) && !option_given(o, OPT_run_lse))
        return kit_fail(err, KIT_USAGE,
                        "--mpi needs --out FILE or --lse FILE, which the processes write together");
    const bool saves = option_given(o, OPT_run_checkpoint);
    if (r->share_heads && (saves || option_given(o, OPT_run_resume)))
        return kit_fail(err, KIT_USAGE,
                        "--%s does not go with --share heads, which has no checkpoints",
                        saves ? "checkpoint" : "resume");
    return KIT_OK;
}

/* A file that several processes open must be a regular one. For other kinds of files that cannot be
 * opened, the usual messages follow. */
static int must_be_regular(const char *spec, const char *verb, kit_error *err)
{
    struct stat st;
    char *path = strndup(spec, kit_spec_path_length(spec));
    const bool standard = strcmp(spec, "-") == 0;
    const bool other =
        path && !standard && stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
    free(path);
    if (!standard && !other)
        return KIT_OK;
    return kit_fail(err, KIT_USAGE,
                    "%s: is %s; with --mpi it must be a regular file, which all processes %s", spec,
                    standard ? "a standard stream" : "a pipe or a device", verb);
}

static int name_files(run_state *r, const options *o, kit_error *err)
{
    int code = run_name_inputs(&r->files, o, err);
    for (size_t i = 0; i < r->files.input_count && !code; i++)
        code = must_be_regular(r->files.input[i], "read", err);
    for (int i = 0; i < RESULTS && !code; i++) {
        const char *path = r->result[i].path = option_text(o, ids[i]);
        if (path && !(code = must_be_regular(path, "write", err)))
            code = files_add_output(&r->files, path, err);
    }
    return code;
}

/* Everything before the first byte of the arrays is read. */
static int prepare(run_state *r, const options *o, kit_error *err)
{
    const int threads = (int)option_integer(o, OPT_run_threads);
    int code;
    r->share_heads = option_choice(o, OPT_run_share) == 1;
    if ((code = check_options(r, o, err)) || (code = name_files(r, o, err)) ||
        (code = engine_context(&r->ctx, option_text(o, OPT_run_isa), threads, err)) ||
        (code = run_read(&r->in, o, err)) ||
        (code = checkpoint_prepare(&r->saved, o, &r->files, r->rank, err)))
        return code;
    r->T = r->in.args.q.shape[2];
    const long long heads = r->in.args.k.shape[1];
    if (r->share_heads && r->size > (heads > 1 ? heads : 1))
        return kit_fail(err, KIT_USAGE,
                        "%s: has %lld heads for %d processes; --share heads needs a head of k for "
                        "each process",
                        option_text(o, OPT_run_k), heads, r->size);
    return r->rank == 0 ? files_probe(&r->files, err) : KIT_OK;
}

/* The rest is compared by attn_mpi_sdpa_forward. */
static int compare_names(const run_state *r, kit_error *err)
{
    uint64_t mine = KIT_HASH_START, *all = malloc((size_t)r->size * sizeof *all);
    const char *const names[] = {r->result[OUT].path, r->result[LSE].path, r->saved.folder,
                                 r->saved.resume};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        mine = names[i] ? kit_hash(mine, names[i], strlen(names[i]) + 1) : kit_hash(mine, "", 1);
    int code = ranks_agree(all ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory"), err);
    if (!code && (code = ranks_exchange(&mine, sizeof mine, all, err)))
        return code; /* `all` may still be written */
    for (int i = 1; i < r->size && !code; i++)
        if (all[i] != all[0])
            code = kit_fail(
                err, KIT_USAGE,
                "--mpi: rank %d has another --out, --lse, --checkpoint or --resume than rank 0", i);
    free(all);
    return code;
}

/* ------------------------------------------------------------------------------------- reading */

/* Row `row` of this rank is this token, and the block that begins there has *n rows. */
static int64_t block_at(const run_state *r, int64_t row, int64_t rows, int64_t *n)
{
    *n = rows - row < ATTN_MPI_BLOCK ? rows - row : ATTN_MPI_BLOCK;
    return (row / ATTN_MPI_BLOCK * r->size + r->rank) * ATTN_MPI_BLOCK;
}

static int read_rows(run_state *r, kit_array *a, kit_rows *from, bool minus_infinity,
                     kit_error *err)
{
    const kit_array *whole = kit_rows_array(from);
    const int64_t rows = attn_mpi_rows(whole->shape[whole->rank - 2], r->rank, r->size);
    int64_t n;
    int code = kit_rows_new(a, from, rows, err);
    for (int64_t row = 0; row < rows && !code; row += n) {
        const int64_t token = block_at(r, row, rows, &n);
        code = kit_rows_read_to(from, token, n, a, row, err);
    }
    if (!code && a->dtype != ATTN_BOOL)
        r->in.finite = r->in.finite && run_is_finite(a, minus_infinity);
    return code;
}

/* `like`: the whole, with the dtype in which it is computed. */
static int read_operand(run_state *r, kit_array *a, kit_rows *from, const kit_array *like,
                        kit_error *err)
{
    kit_array converted = {0};
    int code = read_rows(r, a, from, false, err);
    if (code || a->dtype == like->dtype)
        return code;
    if (!(code = kit_array_convert(&converted, a, like->dtype, err))) {
        kit_array_free(a);
        *a = converted;
    }
    return code;
}

static int make_results(run_state *r, kit_error *err)
{
    const run_input *in = &r->in;
    const attn_dtype own = in->args.q.dtype, wide = own == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int code = KIT_OK;
    for (int i = 0; i < RESULTS && !code; i++) {
        if (i == LSE && !r->result[i].path)
            continue;
        kit_array *whole = &r->result[i].whole, part;
        *whole = in->q;
        whole->data = NULL;
        whole->dtype = i == OUT ? own : wide;
        whole->shape[whole->rank - 1] = i == OUT ? in->args.v.shape[3] : 1;
        part = *whole;
        part.shape[part.rank - 2] = attn_mpi_rows(r->T, r->rank, r->size);
        code = kit_array_new(&r->result[i].rows, part.dtype, part.rank, part.shape, err);
    }
    return code;
}

static int read_all(run_state *r, kit_error *err)
{
    run_input *in = &r->in;
    int code;
    if ((code = read_operand(r, &r->q, in->q_rows, &in->q, err)) ||
        (code = read_operand(r, &r->k, in->k_rows, &in->k, err)) ||
        (code = read_operand(r, &r->v, in->v_rows, &in->v, err)) ||
        (in->mask_rows && (code = read_rows(r, &r->mask, in->mask_rows, true, err))) ||
        (code = make_results(r, err)))
        return code;
    r->args = in->args;
    r->args.q = run_view(&r->q);
    r->args.k = run_view(&r->k);
    r->args.v = run_view(&r->v);
    r->args.out = run_view(&r->result[OUT].rows);
    if (in->mask_rows) {
        r->mask_view = run_view(&r->mask);
        r->args.mask = &r->mask_view;
    }
    if (r->result[LSE].path) {
        r->lse_view = run_view(&r->result[LSE].rows);
        r->args.lse = &r->lse_view;
    }
    return KIT_OK;
}

/* A checkpoint could not be written or read, on some rank; or it does not fit the call. */
static int report_checkpoint(const run_state *r, const attn_error *engine, kit_error *err)
{
    *err = r->saved.err;
    const int code = ranks_agree(err->code, err);
    if (code)
        return code;
    ranks_engine(ATTN_ERR_FILE, engine, err);
    return kit_fail(err, KIT_BAD_FILE, "%s: no checkpoint of this call: %s", r->saved.saved,
                    engine->message);
}

static int compute(run_state *r, kit_error *err)
{
    attn_mpi_options wanted = ATTN_MPI_OPTIONS_INIT;
    attn_error engine = {0};
    wanted.T = r->T;
    wanted.S = r->in.args.k.shape[2];
    wanted.deadline = ranks_deadline();
    wanted.checkpoint = checkpoint_functions(&r->saved);
    wanted.mode = r->share_heads ? ATTN_MPI_HEADS : ATTN_MPI_SEGMENTS;
    const attn_status status =
        attn_mpi_sdpa_forward(ranks_comm(), r->ctx, &r->args, &wanted, &engine);
    return status == ATTN_ERR_FILE ? report_checkpoint(r, &engine, err)
                                   : ranks_engine(status, &engine, err);
}

/* ------------------------------------------------------------------------------------- writing */

/* While an unfinished file is there, signals that would end the program wait until it is removed.
 * They cannot be blocked instead: MPI has threads of its own, which would get them. */
enum { SIGNALS = 3 };
static const int signals[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
static volatile sig_atomic_t caught;

static void catch_one(int signal) { caught = signal; }
static bool signal_came(void) { return caught != 0; }

static void catch_signals(struct sigaction before[SIGNALS])
{
    static const struct sigaction note = {.sa_handler = catch_one, .sa_flags = SA_RESTART};
    for (int i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(signals[i], &note, NULL);
    }
    ranks_stop_if(signal_came);
}

static void release_signals(const struct sigaction before[SIGNALS])
{
    ranks_stop_if(NULL);
    for (int i = 0; i < SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    if (caught)
        raise(caught);
}

typedef struct names {
    char temporary[RESULTS][KIT_TEMPORARY];
} names;

static int create(run_state *r, names *own, kit_error *err)
{
    int code = KIT_OK;
    for (int i = 0; i < RESULTS && !code && r->rank == 0; i++) {
        result *x = &r->result[i];
        if (x->path && !(code = kit_npy_share(&x->file, x->path, &x->whole, err)))
            snprintf(own->temporary[i], KIT_TEMPORARY, "%s", kit_output_temporary(x->file));
    }
    return code;
}

/* Opens the files that rank 0 has created. */
static int join(run_state *r, const names *of_rank_0, kit_error *err)
{
    int code = KIT_OK;
    for (int i = 0; i < RESULTS && !code && r->rank > 0; i++)
        if (r->result[i].path)
            code = kit_output_join(&r->result[i].file, r->result[i].path, of_rank_0->temporary[i],
                                   err);
    return code;
}

static int open_results(run_state *r, kit_error *err)
{
    names own, *all = calloc((size_t)r->size, sizeof *all);
    memset(&own, 0, sizeof own);
    int code = all ? create(r, &own, err) : kit_fail(err, KIT_LIMIT, "out of memory");
    code = ranks_agree(code, err);
    if (!code && (code = ranks_exchange(&own, sizeof own, all, err)))
        return code; /* `all` may still be written */
    if (!code)
        code = join(r, &all[0], err);
    free(all);
    return code;
}

static int write_rows(run_state *r, result *x, kit_error *err)
{
    const int64_t rows = x->rows.shape[x->rows.rank - 2];
    int code = KIT_OK;
    for (int64_t row = 0, n; row < rows && !code; row += n) {
        const int64_t token = block_at(r, row, rows, &n);
        code = kit_npy_write_rows(x->file, &x->whole, token, &x->rows, row, n, err);
        if (!code && signal_came())
            code = kit_fail(err, KIT_LIMIT, "interrupted");
    }
    return code ? code : kit_output_sync(x->file, err);
}

/* Rank 0 renames the files, after all ranks have written their rows. */
static int commit(run_state *r, kit_error *err)
{
    int code = KIT_OK;
    for (int i = 0; i < RESULTS && !code && r->rank == 0; i++) {
        kit_output *file = r->result[i].file;
        r->result[i].file = NULL;
        if (file)
            code = kit_output_commit(file, err);
    }
    return code;
}

static int write_all(run_state *r, kit_error *err)
{
    int code = open_results(r, err);
    for (int i = 0; i < RESULTS && !code; i++)
        if (r->result[i].file)
            code = write_rows(r, &r->result[i], err);
    if (!(code = ranks_agree(code, err)))
        code = ranks_agree(commit(r, err), err);
    for (int i = 0; i < RESULTS; i++) {
        if (code)
            kit_output_abort(r->result[i].file); /* removes it, unless another rank has done so */
        else
            kit_output_leave(r->result[i].file);
        r->result[i].file = NULL;
    }
    return code;
}

/* -------------------------------------------------------------------------------------- command */

typedef struct finding {
    int64_t bad;    /* values that are NaN or infinite */
    int64_t finite; /* the inputs */
} finding;

static int64_t count_not_finite(const result *x, bool minus_infinity)
{
    int64_t bad = 0;
    for (int64_t i = 0; x->rows.data && i < kit_array_count(&x->rows); i++) {
        const double value = kit_array_get(&x->rows, i);
        bad += !isfinite(value) && !(minus_infinity && value == -INFINITY);
    }
    return bad;
}

static int report_not_finite(run_state *r, kit_error *err)
{
    finding mine = {.finite = r->in.finite}, *all = calloc((size_t)r->size, sizeof *all);
    mine.bad = count_not_finite(&r->result[OUT], false) + count_not_finite(&r->result[LSE], true);
    int code = ranks_agree(all ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory"), err);
    if (!code && (code = ranks_exchange(&mine, sizeof mine, all, err)))
        return code; /* `all` may still be written */
    finding sum = {.finite = true};
    for (int i = 0; i < r->size && !code; i++) {
        sum.bad += all[i].bad;
        sum.finite = sum.finite && all[i].finite;
    }
    free(all);
    if (!code && sum.finite && sum.bad)
        code = run_not_finite(sum.bad, err);
    return code;
}

static int work(run_state *r, const options *o, kit_error *err)
{
    int code = ranks_agree(prepare(r, o, err), err);
    if (code || (code = compare_names(r, err)) || (code = ranks_agree(read_all(r, err), err)) ||
        (code = compute(r, err)))
        return code;
    attn_context_destroy(r->ctx); /* ends its threads before signals are held back */
    r->ctx = NULL;
    struct sigaction before[SIGNALS];
    catch_signals(before);
    code = write_all(r, err);
    release_signals(before);
    return code ? code : report_not_finite(r, err);
}

int run_over_ranks(const options *o, kit_error *err)
{
    const attn_comm *comm = ranks_comm();
    run_state r = {.rank = comm->rank, .size = comm->size, .saved = {.fd = -1, .from = -1}};
    if (comm->size == 0) /* an argument that is a file's name looked like --help */
        return kit_fail(err, KIT_USAGE, "--mpi: no file's name may begin with --h");
    ranks_set_deadline(option_real(o, OPT_run_deadline));
    const int code = work(&r, o, err);
    attn_context_destroy(r.ctx);
    checkpoint_free(&r.saved);
    files_free(&r.files);
    kit_array *const arrays[] = {
        &r.q, &r.k, &r.v, &r.mask, &r.result[OUT].rows, &r.result[LSE].rows};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        kit_array_free(arrays[i]);
    run_input_free(&r.in);
    return code;
}
