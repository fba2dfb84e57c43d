/* What all ranks decide together: whether they have the same call, and how it ended. Each rank
 * sends one short message to each other rank. All ranks then have the same messages, so all come to
 * the same decision. */
#include "ranks.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------- the call's hash
 */

enum { VERSION, ISA, FUNCTION, SHAPES, RULES, ARRAYS, CHECKPOINTS, PARTS };
static const char *const names[PARTS] = {
    [VERSION] = "version of libattn",
    [ISA] = "instruction set (set ATTN_ISA to one that all machines have)",
    [FUNCTION] = "function (forward or backward) or mode",
    [SHAPES] = "shapes or types",
    [RULES] = "rules",
    [ARRAYS] = "lengths, sequences, slopes or sinks",
    [CHECKPOINTS] = "whether they save or resume",
};

typedef struct hash_state {
    uint64_t sum;
} hash_state;

static void hash_bytes(hash_state *h, const void *bytes, size_t n)
{
    h->sum = attni_mpi_fnv(h->sum, bytes, n);
}

static void hash_number(hash_state *h, int64_t x) { hash_bytes(h, &x, sizeof x); }

static void hash_array(hash_state *h, const void *array, int64_t n, size_t element)
{
    hash_number(h, array != NULL);
    if (array)
        hash_bytes(h, array, (size_t)n * element);
}

static void hash_text(hash_state *h, const char *text) { hash_bytes(h, text, strlen(text)); }

static void hash_tensor(hash_state *h, const attn_tensor *t)
{
    hash_number(h, t != NULL);
    if (!t)
        return;
    hash_number(h, (int64_t)t->dtype);
    hash_number(h, t->data || t->shape[0] || t->shape[1] || t->shape[2] || t->shape[3]);
}

/* Which gradients the call computes, and from which types. A rank without rows has none of them in
 * memory, but its shapes say which it wants. */
static void hash_grads(hash_state *h, const attn_sdpa_grads *g)
{
    const attn_tensor *tensors[] = {&g->dout, g->dlse, &g->dq, &g->dk, &g->dv};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        hash_tensor(h, tensors[i]);
    hash_number(h, g->dalibi_slopes != NULL);
    hash_number(h, g->dsink_logits != NULL);
}

static void hash_shapes(hash_state *h, const attni_mpi_plan *p)
{
    const attn_sdpa_args *a = p->args;
    const int64_t numbers[] = {p->size,    p->T,          p->S,          p->segment_keys,
                               p->B,       a->q.shape[1], a->q.shape[3], a->k.shape[1],
                               a->q.dtype, a->v.shape[3], a->out.dtype,  a->mask != NULL,
                               a->k.dtype, a->v.dtype};
    hash_bytes(h, numbers, sizeof numbers);
    hash_number(h, a->lse ? (int64_t)a->lse->dtype : -1);
    if (a->mask) {
        hash_number(h, a->mask->dtype);
        hash_number(h, a->mask->shape[3]);
    }
    if (p->grads)
        hash_grads(h, p->grads);
}

static void hash_rules(hash_state *h, const attn_sdpa_args *a)
{
    const double reals[] = {
        a->scale,
#define RULE_REAL(member) a->member,
#include "../src/plan/rules.def"
    };
    const int64_t numbers[] = {
#define RULE(member) (int64_t) a->member,
#include "../src/plan/rules.def"
    };
    /* The numbers at the end of the struct, which rules.def does not list. */
    const size_t listed = offsetof(attn_sdpa_args, diagonal);
    hash_bytes(h, reals, sizeof reals);
    hash_bytes(h, numbers, sizeof numbers);
    hash_bytes(h, (const char *)a + listed, sizeof *a - listed);
}

static void hash_arrays(hash_state *h, const attni_mpi_plan *p)
{
    const attn_sdpa_args *a = p->args;
    hash_array(h, a->key_lengths, p->B, sizeof *a->key_lengths);
    hash_array(h, a->cu_seqlens_q, a->sequences + 1, sizeof *a->cu_seqlens_q);
    hash_array(h, a->cu_seqlens_k, a->sequences + 1, sizeof *a->cu_seqlens_k);
    hash_array(h, a->alibi_slopes, a->q.shape[1], sizeof *a->alibi_slopes);
    hash_array(h, a->sink_logits, a->q.shape[1], sizeof *a->sink_logits);
}

/* -------------------------------------------------------------------------------- one decision */

typedef struct opinion {
    uint64_t hashes[PARTS];
    attni_mpi_notice error;
    uint32_t padding;
} opinion;

static void set_error(opinion *to, attn_status status, const attn_error *err)
{
    to->error.status = (int32_t)status;
    if (status == ATTN_OK || status == ATTN_AGAIN)
        return;
    snprintf(to->error.argument, sizeof to->error.argument, "%s", err->argument);
    snprintf(to->error.message, sizeof to->error.message, "%s", err->message);
}

/* The error of the first rank that has one. */
static attn_status first_error(attni_mpi_run *run, const opinion *all)
{
    for (int r = 0; r < run->comm->size; r++) {
        const attni_mpi_notice *e = &all[r].error;
        if (e->status != ATTN_OK && e->status != ATTN_AGAIN)
            return attni_mpi_fail(run->err, (attn_status)e->status, e->argument, "rank %d: %.200s",
                                  r, e->message);
    }
    return ATTN_OK;
}

static attn_status gather(attni_mpi_run *run, const opinion *mine, opinion **all)
{
    if (!run->opinions)
        run->opinions = attni_mpi_allocate(run, (uint64_t)run->comm->size, sizeof **all);
    *all = run->opinions;
    if (!*all)
        return attni_mpi_give_up(run, attni_mpi_no_memory(run));
    return attni_mpi_all_gather(run, mine, sizeof *mine, *all);
}

attn_status attni_mpi_agree(attni_mpi_run *run, const attni_mpi_plan *plan, const char *isa,
                            attn_status status)
{
    opinion mine, *all;
    memset(&mine, 0, sizeof mine);
    set_error(&mine, status, run->err);
    for (int part = 0; part < PARTS && status == ATTN_OK; part++) {
        hash_state h = {UINT64_C(0xcbf29ce484222325)};
        if (part == VERSION)
            hash_text(&h, attn_version());
        else if (part == ISA)
            hash_text(&h, isa);
        else if (part == FUNCTION)
            hash_number(&h, (plan->grads != NULL) + 2 * plan->heads);
        else if (part == SHAPES)
            hash_shapes(&h, plan);
        else if (part == RULES)
            hash_rules(&h, plan->args);
        else if (part == ARRAYS)
            hash_arrays(&h, plan);
        else
            hash_number(&h, plan->saves + 2 * plan->resumes);
        mine.hashes[part] = h.sum;
    }
    status = gather(run, &mine, &all);
    if (status || (status = first_error(run, all)))
        return status;
    for (int part = 0; part < PARTS; part++)
        for (int r = 1; r < run->comm->size; r++)
            if (all[r].hashes[part] != all[0].hashes[part])
                return attni_mpi_fail(run->err, ATTN_ERR_ARGUMENT, "args",
                                      "args: rank %d has another call than rank 0; they differ in "
                                      "%s",
                                      r, names[part]);
    return ATTN_OK;
}

attn_status attni_mpi_agree_sizes(attni_mpi_run *run, const char *name, uint64_t form, int64_t rows,
                                  int64_t tokens, attn_status status)
{
    enum { FORM, ROWS, TOKENS };
    opinion mine, *all;
    const int size = run->comm->size;
    memset(&mine, 0, sizeof mine);
    set_error(&mine, status, run->err);
    mine.hashes[FORM] = form;
    mine.hashes[ROWS] = (uint64_t)rows;
    mine.hashes[TOKENS] = (uint64_t)tokens;
    status = gather(run, &mine, &all);
    if (status || (status = first_error(run, all)))
        return status;
    tokens = (int64_t)all[0].hashes[TOKENS];
    for (int r = 0; r < size; r++)
        if (all[r].hashes[FORM] != all[0].hashes[FORM] ||
            (tokens >= 0 && (int64_t)all[r].hashes[ROWS] != attn_mpi_rows(tokens, r, size)))
            return attni_mpi_fail(run->err, ATTN_ERR_SHAPE, name,
                                  "%s of rank %d has another type or size than rank 0 needs", name,
                                  r);
    return ATTN_OK;
}

attn_status attni_mpi_exchange(attni_mpi_run *run, attn_status *status, uint8_t *again)
{
    opinion mine, *all;
    memset(&mine, 0, sizeof mine);
    set_error(&mine, *status, run->err);
    const attn_status failed = gather(run, &mine, &all);
    if (failed || (*status = first_error(run, all)))
        return failed;
    for (int r = 0; r < run->comm->size; r++) {
        again[r] = all[r].error.status == ATTN_AGAIN;
        *status = again[r] ? ATTN_AGAIN : *status;
    }
    return ATTN_OK;
}

attn_status attni_mpi_agree_again(attni_mpi_run *run, attn_status status, uint8_t *again)
{
    const attn_status failed = attni_mpi_exchange(run, &status, again);
    return failed ? failed : status;
}
