/* The context: options are checked once, scratch memory is kept between calls, and calls are
 * serialised. Also here: what surrounds every call, attni_call_begin, attni_call_run and
 * attni_call_end.
 *
 * After fork(), the child may find the lock held, or the scratch block half replaced, by a thread
 * that does not exist in the child. Therefore the context records its process, and the first call
 * in another process takes it over (adopt) before it accesses anything else.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../core/internal.h"

#define MOST_THREADS 1024

struct attn_context {
    atomic_int process; /* owner: attni_process(); -p: process p is taking the context over */
    atomic_bool busy;   /* a call is running */
    pthread_mutex_t lock;
    attn_context_options options;
    int isa;
    int threads;
    attni_pool *pool; /* NULL: one thread, or the caller's parallel_for */
    char *arena;
    size_t arena_bytes;
};

/* ----------------------------------------------------------------------------------- options */

attn_status attni_check_allocator(attni_allocate *allocate, attni_release *release, attn_error *err)
{
    if (!*allocate != !*release)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "options",
                          "options has one of allocate and release; give both or neither");
    if (!*allocate) {
        *allocate = attni_default_allocate;
        *release = attni_default_release;
    }
    return ATTN_OK;
}

static attn_status read_options(attn_context_options *to, const attn_context_options *from,
                                attn_error *err)
{
    attn_status status = ATTN_OK;
    if (from)
        status = attni_struct_read(ATTNI_CONTEXT_OPTIONS, to, from, "options", err);
    else
        attni_struct_init(ATTNI_CONTEXT_OPTIONS, to, sizeof *to);
    return status ? status : attni_check_allocator(&to->allocate, &to->release, err);
}

/* The value of an environment variable; NULL if it is not set or empty. */
static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static attn_status choose_threads(int asked, int *threads, attn_error *err)
{
    if (asked < 0 || asked > MOST_THREADS)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "threads", "threads is %d; use 0 to %d", asked,
                          MOST_THREADS);
    const char *variable = asked == 0 ? environment("ATTN_NUM_THREADS") : NULL;
    if (variable) {
        const char *c = variable;
        for (; *c >= '0' && *c <= '9' && asked <= MOST_THREADS; c++)
            asked = 10 * asked + (*c - '0');
        if (*c || asked < 1 || asked > MOST_THREADS)
            return attni_fail(err, ATTN_ERR_ARGUMENT, "ATTN_NUM_THREADS",
                              "ATTN_NUM_THREADS is '%.40s'; set it to 1 to %d, or unset it",
                              variable, MOST_THREADS);
    }
    if (asked == 0) {
        asked = attni_cpu_count();
        asked = asked < MOST_THREADS ? asked : MOST_THREADS;
    }
    *threads = asked;
    return ATTN_OK;
}

static attn_status choose_isa(const char *name, int *isa, attn_error *err)
{
    const char *argument = "isa";
    if (!name) {
        argument = "ATTN_ISA";
        name = environment(argument);
    }
    *isa = name ? attni_isa_find(name) : attni_isa_best();
    if (attni_isa_usable(*isa))
        return ATTN_OK;

    char usable[96] = "";
    for (int i = 0; attn_isa(i).name; i++)
        if (attn_isa(i).usable && strlen(usable) + strlen(attn_isa(i).name) + 2 < sizeof usable)
            strcat(strcat(usable, " "), attn_isa(i).name);
    if (*isa < 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, argument,
                          "%s is '%.40s', which is not known; this machine has:%s", argument, name,
                          usable);
    return attni_fail(err, ATTN_ERR_UNSUPPORTED, argument,
                      "%s is '%.40s', which this machine lacks; it has:%s", argument, name, usable);
}

/* ----------------------------------------------------------------------------------- context */

attn_status attn_context_create(const attn_context_options *options, attn_context **out,
                                attn_error *err)
{
    if (!out)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "out",
                          "out is NULL; it must point to where the context's address is stored");
    *out = NULL;
    attn_context_options o;
    int threads = 0, isa = 0;
    attn_status status = read_options(&o, options, err);
    if (status == ATTN_OK)
        status = choose_threads(o.threads, &threads, err);
    if (status == ATTN_OK)
        status = choose_isa(o.isa, &isa, err);
    if (status != ATTN_OK)
        return status;

    attn_context *ctx =
        attni_process_watch() ? o.allocate(o.memory_user, sizeof *ctx, ATTNI_ALIGN) : NULL;
    if (ctx) {
        memset(ctx, 0, sizeof *ctx);
        ctx->options = o;
        ctx->options.isa = NULL; /* the caller may free its string after this call */
        ctx->isa = isa;
        ctx->threads = threads;
        atomic_init(&ctx->process, attni_process());
        bool pooled = threads > 1 && !o.parallel_for;
        if (pooled)
            ctx->pool = attni_pool_create(threads);
        if ((!pooled || ctx->pool) && pthread_mutex_init(&ctx->lock, NULL) == 0) {
            *out = ctx;
            return ATTN_OK;
        }
        attni_pool_destroy(ctx->pool);
        o.release(o.memory_user, ctx, sizeof *ctx);
    }
    return attni_fail(err, ATTN_ERR_MEMORY, "", "no memory for a context of %d threads", threads);
}

/* Takes the context over for this process. In a child, the lock may be held by a thread that does
 * not exist, so it is initialised anew, neither unlocked nor destroyed. Scratch that a call was
 * using or replacing is left to that call; the child's copy of it is leaked, once. */
static void adopt(attn_context *ctx)
{
    int self = attni_process();
    int process = atomic_load(&ctx->process);
    while (process != self) {
        if (process == -self) { /* another thread of this process is taking it over */
            sched_yield();
            process = atomic_load(&ctx->process);
        } else if (atomic_compare_exchange_weak(&ctx->process, &process, -self)) {
            pthread_mutex_init(&ctx->lock, NULL);
            if (atomic_load(&ctx->busy)) {
                ctx->arena = NULL;
                ctx->arena_bytes = 0;
            }
            atomic_store(&ctx->busy, false);
            atomic_store(&ctx->process, self);
            return;
        }
    }
}

void attn_context_destroy(attn_context *ctx)
{
    if (!ctx)
        return;
    adopt(ctx);
    attni_pool_destroy(ctx->pool);
    pthread_mutex_destroy(&ctx->lock);
    attn_context_options o = ctx->options;
    if (ctx->arena)
        o.release(o.memory_user, ctx->arena, ctx->arena_bytes);
    o.release(o.memory_user, ctx, sizeof *ctx);
}

int attn_context_threads(const attn_context *ctx)
{
    if (!ctx)
        return 1;
    return ctx->pool ? attni_pool_threads(ctx->pool) : ctx->threads;
}

int attni_context_isa_index(const attn_context *ctx) { return ctx ? ctx->isa : attni_isa_best(); }

const char *attn_context_isa(const attn_context *ctx)
{
    return attn_isa(attni_context_isa_index(ctx)).name;
}

/* -------------------------------------------------------------------------------------- calls */

static attn_status no_scratch(size_t bytes, attn_error *err)
{
    return attni_fail(err, ATTN_ERR_MEMORY, "", "no memory for %zu bytes of scratch", bytes);
}

/* Sets *scratch to the first aligned byte of the caller's block. */
static attn_status carve_workspace(char **scratch, size_t bytes, void *workspace, size_t size,
                                   attn_error *err)
{
    size_t skipped = -(uintptr_t)workspace % ATTNI_ALIGN;
    size_t needed;
    if (!attni_size_add(bytes, skipped, &needed) || needed > size)
        return attni_fail(
            err, ATTN_ERR_ARGUMENT, "workspace",
            "workspace has %zu bytes; this call needs %zu, and up to %d more where it "
            "is not aligned to %d",
            size, bytes, ATTNI_ALIGN - 1, ATTNI_ALIGN);
    *scratch = (char *)workspace + skipped;
    return ATTN_OK;
}

/* Called with the lock held. The old block is released first, so that both are never allocated at
 * the same time. */
static attn_status grow_arena(attn_context *ctx, size_t bytes, attn_error *err)
{
    if (bytes <= ctx->arena_bytes)
        return ATTN_OK;
    const attn_context_options *o = &ctx->options;
    if (ctx->arena)
        o->release(o->memory_user, ctx->arena, ctx->arena_bytes);
    ctx->arena_bytes = 0;
    ctx->arena = o->allocate(o->memory_user, bytes, ATTNI_ALIGN);
    if (!ctx->arena)
        return no_scratch(bytes, err);
    ctx->arena_bytes = bytes;
    return ATTN_OK;
}

static void leave(attn_context *ctx)
{
    atomic_store(&ctx->busy, false);
    pthread_mutex_unlock(&ctx->lock);
}

attn_status attni_call_begin(attni_call *call, attn_context *ctx, size_t scratch_bytes,
                             void *workspace, size_t workspace_bytes, attn_error *err)
{
    *call = (attni_call){.ctx = ctx, .isa = attni_context_isa_index(ctx), .threads = 1};
    attn_status status = ATTN_OK;
    if (workspace) {
        status = carve_workspace(&call->scratch, scratch_bytes, workspace, workspace_bytes, err);
        if (status != ATTN_OK)
            return status;
    }
    if (ctx) {
        adopt(ctx);
        pthread_mutex_lock(&ctx->lock);
        atomic_store(&ctx->busy, true);
        if (!workspace) {
            status = grow_arena(ctx, scratch_bytes, err);
            call->scratch = ctx->arena;
        }
        if (status != ATTN_OK) {
            leave(ctx);
            return status;
        }
        call->threads = attn_context_threads(ctx);
    } else if (!workspace && scratch_bytes > 0) {
        call->owned = attni_default_allocate(NULL, scratch_bytes, ATTNI_ALIGN);
        call->scratch = call->owned;
        if (!call->owned)
            return no_scratch(scratch_bytes, err);
    }
    attni_mode_set();
    return ATTN_OK;
}

/* The caller's parallel_for may run bodies on threads with any floating-point mode; run_guarded()
 * sets C's default mode around them. */
typedef struct guarded {
    void (*body)(void *arg, int worker);
    void *arg;
} guarded;

static void run_guarded(void *arg, int worker)
{
    const guarded *g = arg;
    ATTNI_DEFAULT_MODE;
    g->body(g->arg, worker);
}

void attni_call_run(attni_call *call, int workers, void (*body)(void *arg, int worker), void *arg)
{
    const attn_context *ctx = call->ctx;
    if (workers > 1 && ctx && ctx->options.parallel_for) {
        guarded g = {body, arg};
        ctx->options.parallel_for(ctx->options.parallel_user, workers, run_guarded, &g);
    } else if (workers > 1 && ctx && ctx->pool) {
        attni_pool_run(ctx->pool, workers, body, arg);
    } else {
        for (int i = 0; i < workers; i++)
            body(arg, i);
    }
}

void attni_call_end(attni_call *call)
{
    attni_aligned_free(call->owned);
    if (call->ctx)
        leave(call->ctx);
}

void *attni_call_allocate(attni_call *call, size_t bytes)
{
    if (!call->ctx)
        return attni_default_allocate(NULL, bytes, ATTNI_ALIGN);
    const attn_context_options *o = &call->ctx->options;
    return o->allocate(o->memory_user, bytes, ATTNI_ALIGN);
}

void attni_call_release(attni_call *call, void *memory, size_t bytes)
{
    if (!call->ctx) {
        attni_default_release(NULL, memory, bytes);
        return;
    }
    const attn_context_options *o = &call->ctx->options;
    o->release(o->memory_user, memory, bytes);
}
