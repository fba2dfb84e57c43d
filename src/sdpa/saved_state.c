/* Saved states: attn_sdpa_save and attn_sdpa_load. The format, version 1; all numbers
 * little-endian:
 *
 *    0  magic     93 'A' 'T' 'T' 'N' 'S' 'T' 0A
 *    8  version   u32, 1           12  library   u32, its version: major << 16 | minor << 8 | patch
 *   16  isa       char [16], the name of the instruction set, padded with zeros
 *   32  dtype     u32, of q        36  phase     u16: 0 first sweep, 1 swept again, 2 finished
 *   38  tiles     u16, of a task: the layout of sums depends on it
 *   40  B, H, Hk, T, S, D, Dv      u64 each
 *   96  rules, q, mask             u64 each: FNV-1a of all rules, of q and of the mask
 *  120  position  u64, the key after the last one fed in these sweeps
 *  128  sweeps    u8 [heads][tasks of a head][tiles]
 *       sums      the tiles' own arrays, in the type that the call computes in
 *       open      keys [B][Hk][open][D], then values [B][Hk][open][Dv]: the open chunk (feed.c)
 *       out, lse  in phases 1 and 2, which have written results
 *       checksum  u64: FNV-1a of all bytes before it
 *
 * The layout of the sums depends on the instruction set, so any other instruction set is refused.
 * Another version of the library may sum in another order, so any other version is refused. k and v
 * are not in the state: the caller must feed the same ones. The number of threads may change.
 *
 * The reader treats its input as untrusted: it checks all numbers before it uses one, and computes
 * every size from the arguments. To change the format: a new VERSION.
 */
#include "../core/saved.h"
#include "pieces.h"

#include <string.h>

#define VERSION 1
#define HEAD 128
#define ISA_NAME 16
#define LIBRARY (ATTN_VERSION_MAJOR << 16 | ATTN_VERSION_MINOR << 8 | ATTN_VERSION_PATCH)
static const unsigned char magic[8] = {0x93, 'A', 'T', 'T', 'N', 'S', 'T', '\n'};

enum { FIRST_SWEEP, SWEPT_AGAIN, FINISHED };

static uint64_t phase_of(const attn_sdpa_state *s)
{
    return s->finished ? FINISHED : s->again ? SWEPT_AGAIN : FIRST_SWEEP;
}

/* Called for each run of neighbouring elements of a tensor. false stops the iteration. */
typedef bool visitor(void *arg, void *memory, size_t bytes, size_t element);

/* Visits the first `rows` rows of each head in order. A dimension that repeats (of a mask) counts
 * once. */
static bool each(const attn_tensor *t, int64_t rows, visitor *visit, void *arg)
{
    const size_t size = attn_dtype_size(t->dtype);
    int64_t n[4];
    for (int d = 0; d < 4; d++)
        n[d] = t->stride[d] == 0 && t->shape[d] > 1 ? 1 : t->shape[d];
    n[2] = n[2] < rows ? n[2] : rows;
    if (n[0] == 0 || n[1] == 0 || n[2] == 0 || n[3] == 0)
        return true;
    const bool together = t->stride[3] == 1 || n[3] == 1;
    const int64_t run = together ? n[3] : 1;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t c = 0; c < n[3]; c += run)
                    if (!visit(arg, attni_at(t, b, h, i, c), (size_t)run * size, size))
                        return false;
    return true;
}

static bool emit_run(void *arg, void *memory, size_t bytes, size_t element)
{
    return attni_emit_elements(arg, memory, bytes, element);
}

static bool fill_run(void *arg, void *memory, size_t bytes, size_t element)
{
    attni_next_elements(arg, memory, bytes, element);
    return true;
}

/* ------------------------------------------------------------------------------- the call's hash
 */

typedef struct call_hashes {
    uint64_t rules, q, mask;
} call_hashes;

static void hash_real(attni_writer *w, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    attni_emit_number(w, bits, 8);
}

/* NULL differs from any array. */
static void hash_array(attni_writer *w, const void *array, int64_t n, size_t element)
{
    attni_emit_number(w, array != NULL, 1);
    if (array)
        attni_emit_elements(w, array, (size_t)n * element, element);
}

static void hash_tensor(attni_writer *w, const attn_tensor *t)
{
    attni_emit_number(w, t != NULL, 1);
    if (!t)
        return;
    attni_emit_number(w, (uint64_t)t->dtype, 4);
    for (int d = 0; d < 4; d++)
        attni_emit_number(w, t->stride[d] == 0 && t->shape[d] > 1, 1);
    each(t, INT64_MAX, emit_run, w);
}

static void hash_arrays(attni_writer *w, const attni_plan *p)
{
    const attn_sdpa_args *a = &p->args;
    hash_array(w, a->key_lengths, p->B, sizeof *a->key_lengths);
    hash_array(w, a->cu_seqlens_q, a->sequences + 1, sizeof *a->cu_seqlens_q);
    hash_array(w, a->cu_seqlens_k, a->sequences + 1, sizeof *a->cu_seqlens_k);
    hash_array(w, a->alibi_slopes, p->H, sizeof *a->alibi_slopes);
    hash_array(w, a->sink_logits, p->H, sizeof *a->sink_logits);
    for (int64_t n = 0; n < p->run_count; n++) {
        const attni_run *run = &p->runs[n];
        const int64_t numbers[] = {run->row, run->rows, run->position};
        for (int i = 0; i < 3; i++)
            attni_emit_number(w, (uint64_t)numbers[i], 8);
    }
}

/* The numbers at the end of attn_sdpa_args, which plan/rules.def does not list. */
static void hash_later_rules(attni_writer *w, const attn_sdpa_args *a)
{
    for (size_t at = offsetof(attn_sdpa_args, diagonal); at < sizeof *a; at += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, (const char *)a + at, sizeof word);
        attni_emit_number(w, word, sizeof word);
    }
}

/* Hashes everything that the results depend on, except k and v. A call without tasks has no
 * results, and may have more rows than anybody could read. */
static call_hashes hash_call(const attni_plan *p)
{
    const attn_sdpa_args *a = &p->args;
    const double reals[] = {
        p->scale_pow2,
        p->scale_mantissa,
#define RULE_REAL(member) a->member,
#include "../plan/rules.def"
    };
    const int64_t numbers[] = {
#define RULE(member) (int64_t) a->member,
#include "../plan/rules.def"
        a->out.dtype, a->lse ? (int64_t)a->lse->dtype : -1, p->whole_T, p->whole_H, p->head_offset,
        p->run_count,
    };
    attni_writer rules = {.hash = ATTNI_FNV_START}, q = rules, mask = rules;
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        hash_real(&rules, reals[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        attni_emit_number(&rules, (uint64_t)numbers[i], 8);
    hash_later_rules(&rules, a);
    if (p->tasks > 0) {
        hash_arrays(&rules, p);
        hash_tensor(&q, &a->q);
        hash_tensor(&mask, a->mask);
    }
    return (call_hashes){rules.hash, q.hash, mask.hash};
}

/* ------------------------------------------------------------------------------------- saving */

static size_t sweeps_bytes(const attni_plan *p) { return (size_t)p->tasks * (size_t)p->tiles; }

static size_t sums_bytes(const attn_sdpa_state *s)
{
    const attni_plan *p = &s->plan;
    return p->tasks ? (size_t)(p->tasks / p->tasks_per_head) * (size_t)s->head_bytes : 0;
}

/* Visits the rows of the open chunk and, if there are results, those of out and lse. */
static bool each_row(const attn_sdpa_state *s, visitor *visit, void *arg)
{
    const attni_plan *p = &s->plan;
    const attn_tensor open_k = attni_pieces_open_chunk(s, false);
    const attn_tensor open_v = attni_pieces_open_chunk(s, true);
    if (s->open > 0 && (!each(&open_k, s->open, visit, arg) || !each(&open_v, s->open, visit, arg)))
        return false;
    return phase_of(s) == FIRST_SWEEP || p->tasks == 0 ||
           (each(&p->args.out, INT64_MAX, visit, arg) &&
            (!p->args.lse || each(p->args.lse, INT64_MAX, visit, arg)));
}

/* The name of an instruction set, padded. */
static void put_isa(char to[ISA_NAME], int isa)
{
    memset(to, 0, ISA_NAME);
    strncpy(to, attn_isa(isa).name, ISA_NAME - 1);
}

static bool emit_head(attni_writer *w, const attn_sdpa_state *s, const call_hashes *hashes)
{
    const attni_plan *p = &s->plan;
    char isa[ISA_NAME];
    const uint64_t numbers[] = {(uint64_t)p->B,  (uint64_t)p->H,       (uint64_t)p->Hk,
                                (uint64_t)p->T,  (uint64_t)p->S,       (uint64_t)p->D,
                                (uint64_t)p->Dv, hashes->rules,        hashes->q,
                                hashes->mask,    (uint64_t)s->position};
    bool ok = attni_emit(w, magic, sizeof magic) && attni_emit_number(w, VERSION, 4) &&
              attni_emit_number(w, LIBRARY, 4);
    put_isa(isa, s->isa);
    ok = ok && attni_emit(w, isa, sizeof isa) &&
         attni_emit_number(w, (uint64_t)p->args.q.dtype, 4) &&
         attni_emit_number(w, phase_of(s), 2) && attni_emit_number(w, (uint64_t)p->tiles, 2);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && ok; i++)
        ok = attni_emit_number(w, numbers[i], 8);
    return ok;
}

attn_status attn_sdpa_save(const attn_sdpa_state *state,
                           int (*write)(void *user, const void *bytes, size_t n), void *user,
                           attn_error *err)
{
    if (!state)
        return attni_pieces_no_state(err);
    if (!write)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "write", "write is NULL; it must be a function");
    const call_hashes hashes = hash_call(&state->plan);
    attni_writer w = {write, user, ATTNI_FNV_START};
    if (!emit_head(&w, state, &hashes) ||
        !attni_emit(&w, state->sweeps, sweeps_bytes(&state->plan)) ||
        !attni_emit_elements(&w, state->sums, sums_bytes(state), state->plan.real) ||
        !each_row(state, emit_run, &w) || !attni_emit_number(&w, w.hash, ATTNI_CHECKSUM))
        return attni_fail(err, ATTN_ERR_FILE, "write",
                          "write failed; the bytes it wrote before are not a complete state");
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------ loading */

static attn_status bad(attn_error *err, const char *what)
{
    return attni_fail(err, ATTN_ERR_FILE, "bytes", "bytes %s", what);
}

/* Checks what does not depend on the call: the magic, the checksum, versions and the instruction
 * set. On success the reader is at the dtype. */
static attn_status read_head(attni_reader *r, int isa, int *tiles, attn_error *err)
{
    char name[ISA_NAME];
    if (r->left < HEAD + ATTNI_CHECKSUM)
        return bad(err, "are fewer than a saved state has; the smallest has 136");
    if (memcmp(r->at, magic, sizeof magic) != 0)
        return bad(err, "do not start as a saved state does");
    const unsigned char *const end = r->at + r->left - ATTNI_CHECKSUM;
    const uint64_t version = attni_get_number(r->at + 8, 4);
    const uint64_t library = attni_get_number(r->at + 12, 4);
    if (version != VERSION)
        return attni_fail(err, ATTN_ERR_FILE, "bytes",
                          "bytes are of format version %llu; this library reads version %d",
                          (unsigned long long)version, VERSION);
    if (attni_fnv(ATTNI_FNV_START, r->at, (size_t)(end - r->at)) !=
        attni_get_number(end, ATTNI_CHECKSUM))
        return bad(err, "do not have their checksum: they are damaged or cut off");
    if (library != LIBRARY)
        return attni_fail(err, ATTN_ERR_FILE, "bytes",
                          "bytes were saved by version %llu.%llu.%llu of the library; this is "
                          "version " ATTN_VERSION_STRING ", whose bits may differ",
                          (unsigned long long)(library >> 16),
                          (unsigned long long)(library >> 8 & 255),
                          (unsigned long long)(library & 255));
    put_isa(name, isa);
    if (memcmp(name, r->at + 16, ISA_NAME) != 0)
        return attni_fail(
            err, ATTN_ERR_UNSUPPORTED, "ctx",
            "ctx computes with instruction set %s and the state was saved with %.16s; "
            "a state goes on with the same one",
            name, (const char *)r->at + 16);
    *tiles = (int)attni_get_number(r->at + 38, 2);
    if (*tiles == 0)
        return bad(err, "have no tiles");
    r->at += 16 + ISA_NAME;
    r->left -= 16 + ISA_NAME + ATTNI_CHECKSUM;
    return ATTN_OK;
}

static attn_status another(const char *argument, const char *what, attn_error *err)
{
    return attni_fail(err, ATTN_ERR_ARGUMENT, argument,
                      "%s differ%s from the saved call's; a state goes on with the same call", what,
                      strcmp(argument, "args") == 0 ? "" : "s");
}

/* Compares the call with the saved one. On success the reader is at the position. */
static attn_status check_call(attni_reader *r, const attni_plan *p, uint64_t *phase,
                              attn_error *err)
{
    static const char *const names[] = {"B", "H", "Hk", "T", "S", "D", "Dv"};
    const int64_t sizes[] = {p->B, p->H, p->Hk, p->T, p->S, p->D, p->Dv};
    const uint64_t dtype = attni_next_number(r, 4);
    *phase = attni_next_number(r, 2);
    const uint64_t tiles = attni_next_number(r, 2);
    if (dtype != (uint64_t)p->args.q.dtype)
        return attni_fail(err, ATTN_ERR_DTYPE, "q", "q is %s; the saved call's q is %s",
                          attn_dtype_name(p->args.q.dtype),
                          dtype < 256 ? attn_dtype_name((attn_dtype)dtype) : "unknown");
    for (int i = 0; i < 7; i++) {
        const uint64_t size = attni_next_number(r, 8);
        if (size != (uint64_t)sizes[i])
            return attni_fail(err, ATTN_ERR_SHAPE, "args",
                              "args have %s=%lld; the saved call has "
                              "%llu",
                              names[i], (long long)sizes[i], (unsigned long long)size);
    }
    const call_hashes hashes = hash_call(p);
    if (attni_next_number(r, 8) != hashes.rules)
        return another("args", "args: the rules (causal, window, scale, ... or q_positions)", err);
    if (attni_next_number(r, 8) != hashes.q)
        return another("q", "q", err);
    if (attni_next_number(r, 8) != hashes.mask)
        return another("mask", "mask", err);
    return tiles == (uint64_t)p->tiles ? ATTN_OK : bad(err, "divide the rows as this call cannot");
}

static bool count_run(void *arg, void *memory, size_t bytes, size_t element)
{
    (void)memory, (void)element;
    size_t *left = arg;
    if (*left < bytes)
        return false;
    *left -= bytes;
    return true;
}

/* Are there exactly the bytes that the state s has? */
static bool right_size(const attn_sdpa_state *s, size_t left)
{
    const size_t sweeps = sweeps_bytes(&s->plan), sums = sums_bytes(s);
    if (left < sweeps || left - sweeps < sums)
        return false;
    left -= sweeps + sums;
    return each_row(s, count_run, &left) && left == 0;
}

/* Does `sweeps` name, for each tile, a sweep that is possible in this phase? */
static bool right_sweeps(const unsigned char *sweeps, size_t n, uint64_t phase)
{
    bool right = true;
    for (size_t i = 0; i < n && phase == FIRST_SWEEP; i++)
        right &= sweeps[i] <= ATTNI_FED_FAST;
    for (size_t i = 0; i < n && phase != FIRST_SWEEP; i++)
        right &= sweeps[i] == ATTNI_FED_NEW /* a short task has fewer tiles */ ||
                 sweeps[i] == ATTNI_FED_DONE ||
                 (phase == SWEPT_AGAIN &&
                  (sweeps[i] == ATTNI_FED_SKIP_MASKED || sweeps[i] == ATTNI_FED_RESCALED));
    return right;
}

/* Fills a state that has just begun. */
static attn_status fill_state(attn_sdpa_state *s, attni_reader *r, attn_error *err)
{
    const attni_plan *p = &s->plan;
    uint64_t phase;
    const attn_status status = check_call(r, p, &phase, err);
    if (status)
        return status;
    const uint64_t position = attni_next_number(r, 8);
    if (phase > FINISHED || position > (uint64_t)p->S ||
        (position % ATTNI_CHUNK != 0 && position != (uint64_t)p->S) ||
        (phase == FINISHED && position != 0))
        return bad(err, "name a key or a phase that the call does not have");
    s->again = phase == SWEPT_AGAIN;
    s->finished = phase == FINISHED;
    s->position = (int64_t)position;
    s->open = attni_pieces_open_keys(s);
    if (!right_size(s, r->left))
        return bad(err, "are not as many as the state of this call has");
    if (!right_sweeps(r->at, sweeps_bytes(p), phase))
        return bad(err, "name a sweep that the call does not have");
    attni_next_elements(r, s->sweeps, sweeps_bytes(p), 1);
    attni_next_elements(r, s->sums, sums_bytes(s), p->real);
    each_row(s, fill_run, r);
    attni_pieces_want(s);
    return ATTN_OK;
}

attn_status attn_sdpa_load(attn_context *ctx, const attn_sdpa_args *args,
                           const attn_pieces_options *options, const void *bytes, size_t size,
                           attn_sdpa_state **out, attn_error *err)
{
    ATTNI_CALL_MODE;
    attni_reader r = {bytes, size};
    attn_status status;
    int tiles = 0;
    if (out)
        *out = NULL;
    if (out && !bytes)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "bytes", "bytes is NULL");
    if ((out && (status = read_head(&r, attni_context_isa_index(ctx), &tiles, err))) ||
        (status = attni_pieces_begin(ctx, args, options, tiles, out, err)))
        return status;
    if ((status = fill_state(*out, &r, err))) {
        attn_sdpa_end(*out);
        *out = NULL;
    }
    return status;
}
