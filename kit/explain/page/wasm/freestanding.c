/* Replacements for files of src/ that are not compiled here. Some of them need an operating system:
 * memory, threads, messages and the choice of an instruction set (context.c, error.c, cpu.c).
 * Others are parts of attention that a page does not use (cache.c, bf16_task.c). */
#include "freestanding.h"

#include "cache/cache.h"
#include "core/internal.h"
#include "plan/engine.h"

/* ------------------------------------------------------------------------------------- memory
 *
 * The page's block follows the stack and the constants, and the scratch of the running call follows
 * the page's block. Memory is never freed; the next user overwrites it.
 */
extern unsigned char __heap_base; /* defined by the linker */
static size_t lent;               /* bytes of the page's block */

#define PAGE ((size_t)65536)

static void *memory(size_t from, size_t bytes)
{
    size_t end;
    const size_t start = ((size_t)&__heap_base + ATTNI_ALIGN - 1) / ATTNI_ALIGN * ATTNI_ALIGN;
    if (!attni_size_add(start, from, &from) || !attni_size_add(from, bytes, &end) ||
        !attni_size_add(end, PAGE - 1, &end))
        return NULL;
    const size_t have = __builtin_wasm_memory_size(0), pages = end / PAGE;
    if (pages > have && __builtin_wasm_memory_grow(0, pages - have) == SIZE_MAX)
        return NULL;
    return (void *)from;
}

void *freestanding_room(size_t bytes)
{
    if (!attni_size_add(bytes, ATTNI_ALIGN - 1, &bytes))
        return NULL;
    lent = bytes / ATTNI_ALIGN * ATTNI_ALIGN;
    return memory(0, lent);
}

/* ------------------------------------------------------------------------------------ one call */

attn_status attni_call_begin(attni_call *call, attn_context *ctx, size_t scratch_bytes,
                             void *workspace, size_t workspace_bytes, attn_error *err)
{
    (void)workspace_bytes, (void)err;
    *call = (attni_call){.ctx = ctx, .threads = 1};
    call->scratch = workspace ? workspace : memory(lent, scratch_bytes);
    return call->scratch ? ATTN_OK : ATTN_ERR_MEMORY;
}

void attni_call_run(attni_call *call, int workers, void (*body)(void *arg, int worker), void *arg)
{
    (void)call, (void)workers;
    body(arg, 0);
}

void attni_call_end(attni_call *call) { (void)call; }

int attni_context_isa_index(const attn_context *ctx)
{
    (void)ctx;
    return 0; /* "generic", the only one */
}

int attn_context_threads(const attn_context *ctx)
{
    (void)ctx;
    return 1;
}

/* The page does not show the library's messages. If a call is refused here, the page computes it in
 * JavaScript. */
attn_status attni_fail(attn_error *err, attn_status status, const char *argument,
                       const char *format, ...)
{
    (void)err, (void)argument, (void)format;
    return status;
}

/* ------------------------------------------------------------------------------- not in a page */

const attni_engine attni_engine_bf16 = {0};

const struct attni_bf16_unit *attni_bf16_unit_for(const attni_plan *plan)
{
    (void)plan;
    return NULL;
}

attni_route attni_bf16_route_of(const attni_plan *plan, int rows)
{
    (void)plan, (void)rows;
    return ATTNI_ROUTE_NONE; /* never called: no plan has the bf16 engine */
}

uint32_t attni_dropout_threshold(double p)
{
    (void)p;
    __builtin_trap();
}

/* Functions of the key/value cache. No call here uses one. */
char *attni_cache_rows(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                       int64_t j)
{
    (void)cache, (void)part, (void)b, (void)hk, (void)j;
    __builtin_trap();
}

void attni_cache_keys_as_rows(const attn_cache *cache, int64_t b, int64_t hk, int64_t j, int64_t n,
                              void *to, size_t bytes)
{
    (void)cache, (void)b, (void)hk, (void)j, (void)n, (void)to, (void)bytes;
    __builtin_trap();
}

float *attni_cache_scales(const attn_cache *cache, attni_cache_part part, int64_t b, int64_t hk,
                          int64_t j)
{
    (void)cache, (void)part, (void)b, (void)hk, (void)j;
    __builtin_trap();
}
