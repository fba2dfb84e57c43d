/* The harness. It runs every check for every instruction set, element type and tile width, one seed
 * after the other, and reports what failed and how to repeat it. See check.h and check_case.h. */
#include "check.h"

#include "../src/core/internal.h"
#include "check_case.h"
#include "check_signals.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* An operation that can be checked. cases: the cases in one round, for each instruction set,
 * element type and tile width. */
typedef struct check_entry {
    const char *name;
    void (*check)(check_case *);
    int cases;
    enum { KERNEL, CALL, ON_REQUEST } kind;
} check_entry;

static const check_entry entries[] = {
#define ATTNI_OP(name) {#name, check_##name, 24, KERNEL},
#include "../src/kernel/ops.def"
#undef ATTNI_OP
    {"exp2", check_exp2, 2, KERNEL},
    {"dropout", check_dropout, 16, CALL},
    {"sdpa", check_sdpa, 150, CALL},
    {"backward", check_backward, 150, CALL},
    {"pieces", check_pieces, 60, CALL},
    {"pieces_backward", check_pieces_backward, 40, CALL},
    {"parts_backward", check_parts_backward, 40, CALL},
    {"queries_backward", check_queries_backward, 40, CALL},
    {"threads", check_threads, 12, CALL},
    {"exp2_all", check_exp2_all, 1, ON_REQUEST},
};
#define ENTRIES ((int)(sizeof entries / sizeof *entries))

const char *check_op_name(int index)
{
    return index >= 0 && index < ENTRIES ? entries[index].name : NULL;
}

/* ------------------------------------------------------------------------------------ one case */

void check_one(check_run_state *run, const char *op, void (*check)(check_case *), int isa, int bits,
               int nv, uint64_t seed, double *fastest)
{
    static check_case c; /* static: siglongjmp would lose locals that changed */
    const attni_kernels *kernels = nv ? attni_kernels_of(isa, bits) : NULL;
    const char *isa_name = attn_isa(isa).name;
    c = (check_case){.run = run,
                     .op = op,
                     .isa = isa,
                     .isa_name = isa_name,
                     .kernels = kernels,
                     .bits = bits,
                     .nv = nv,
                     .W = kernels ? nv * kernels->lanes : 1,
                     .size = (size_t)bits / 8,
                     .fused = attni_kernels_of(isa, bits)->fused,
                     .seed = seed,
                     .random = seed};
    check_buffers_reset(run->buffers);
    const char *why = check_guarded(&c, check);
    if (why) {
        check_fail(&c, "%s", why);
        memset(run->contexts, 0, sizeof run->contexts); /* a context may stay locked for ever */
    }
    check_arrays_free(&c);
    if (c.failed)
        run->failed++;
    else
        run->passed++;
    if (fastest && c.fastest > *fastest)
        *fastest = c.fastest;
}

/* -------------------------------------------------------------------------------------- the run */

/* The seed of case `index` of a run. The first is the run's own seed, so that a failed case can be
 * repeated. */
static uint64_t seed_of(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + index * 0x9E3779B97F4A7C15;
    return index == 0 ? seed : z ^ z >> 29;
}

/* Runs all cases of one operation, on one instruction set, in one element type and tile width. */
static void run_variant(check_run_state *run, const check_options *options, const check_entry *e,
                        int isa, int bits, int nv, double until)
{
    uint64_t failed = run->failed;
    double fastest = 0;
    const bool timed = options->seconds > 0 && !options->cases;
    const uint64_t cases = options->cases ? options->cases : (uint64_t)e->cases;
    for (uint64_t i = 0; timed || i < cases; i++) {
        if (timed && i > 0 && check_bench_now() >= until)
            break;
        check_one(run, e->name, e->check, isa, bits, nv, seed_of(options->seed, i), &fastest);
        if (run->failed - failed >= 3) /* further failures would only repeat these */
            break;
        if (e->kind == ON_REQUEST)
            break;
    }
    if (run->bench && fastest > 0)
        fprintf(run->out, "  %-9s %-8s f%d nv=%d %10.2f /ns\n", e->name, attn_isa(isa).name, bits,
                nv, fastest);
}

/* Runs one operation on one instruction set; its variants get equal shares of its time. */
static void run_entry(check_run_state *run, const check_options *options, const check_entry *e,
                      int isa)
{
    uint64_t failed = run->failed, passed = run->passed;
    double now = check_bench_now(), share = options->seconds * 1e9;
    run->hash = 0;
    if (e->kind == CALL) {
        run_variant(run, options, e, isa, 64, 0, now + share);
    } else {
        int variants = 0, done = 0;
        for (int bits = 32; bits <= 64; bits += 32) {
            const attni_kernels *kernels = attni_kernels_of(isa, bits);
            for (int nv = 1; nv <= kernels->vectors; nv = attni_wider_tile(kernels, nv))
                variants++;
        }
        for (int bits = 32; bits <= 64; bits += 32) {
            const attni_kernels *kernels = attni_kernels_of(isa, bits);
            for (int nv = 1; nv <= kernels->vectors; nv = attni_wider_tile(kernels, nv))
                run_variant(run, options, e, isa, bits, nv, now + share * ++done / variants);
        }
    }
    fprintf(run->out, "%-4s %-9s %-8s %" PRIu64, run->failed > failed ? "FAIL" : "ok", e->name,
            attn_isa(isa).name, run->passed - passed);
    if (run->hash)
        fprintf(run->out, "  hash of the results of one call %016" PRIx64, run->hash);
    fprintf(run->out, "\n");
    fflush(run->out);
}

static uint64_t drawn_seed(void) { return (uint64_t)check_bench_now() * 0x9E3779B97F4A7C15 >> 16; }

static bool names_are_known(const check_options *options)
{
    bool op = !options->op, isa = !options->isa;
    for (int i = 0; i < ENTRIES; i++)
        op = op || strcmp(entries[i].name, options->op) == 0;
    for (int i = 0; attn_isa(i).name; i++)
        isa = isa || (attn_isa(i).usable && strcmp(attn_isa(i).name, options->isa) == 0);
    if (!op)
        fprintf(stderr, "attn check: no operation is called %s\n", options->op);
    else if (!isa)
        fprintf(stderr, "attn check: this machine has no instruction set %s\n", options->isa);
    return op && isa;
}

int check_run(const check_options *given)
{
    check_options options = *given;
    if (!names_are_known(&options))
        return -1;
    if (options.seed == 0)
        options.seed = drawn_seed();
    check_run_state run = {.out = options.out,
                           .bench = options.bench != 0,
                           .buffers = check_buffers_create()};
    if (!run.buffers) {
        fprintf(stderr, "attn check: out of memory\n");
        return -1;
    }
    fprintf(run.out, "seed 0x%" PRIx64 "\n", options.seed);
    struct check_signals *signals_before = check_signals_catch();
    for (int i = 0; i < ENTRIES; i++) {
        const check_entry *e = &entries[i];
        if (options.op ? strcmp(options.op, e->name) != 0 : e->kind == ON_REQUEST)
            continue;
        for (int isa = 0; attn_isa(isa).name && isa < CHECK_MAX_ISAS; isa++)
            if (attn_isa(isa).usable &&
                (!options.isa || strcmp(options.isa, attn_isa(isa).name) == 0))
                run_entry(&run, &options, e, isa);
    }
    check_signals_restore(signals_before);
    check_contexts_destroy(&run);
    check_buffers_destroy(run.buffers);
    fprintf(run.out, "%" PRIu64 " passed, %" PRIu64 " failed\n", run.passed, run.failed);
    return run.failed > INT32_MAX ? INT32_MAX : (int)run.failed;
}
