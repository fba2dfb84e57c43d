/* Contexts: their options, their scratch memory, and the modes that they leave alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fenv.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "context_job.h"
#include "core/internal.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

/* --------------------------------------------------------------------------- options */

static void defaults(void **state)
{
    (void)state;
    unsetenv("ATTN_NUM_THREADS");
    attn_context *ctx;
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    assert_int_equal(attn_context_create(NULL, &ctx, NULL), ATTN_OK);
    assert_int_equal(attn_context_threads(ctx), CPU_COUNT(&mask));
    assert_string_equal(attn_context_isa(ctx), attn_context_isa(NULL));
    assert_true(sums_are_right(ctx, 5));
    attn_context_destroy(ctx);
    attn_context_destroy(NULL);
    assert_int_equal(attn_context_threads(NULL), 1);
    assert_string_equal(attn_context_isa(NULL), attn_isa(attni_isa_best()).name);
    assert_true(sums_are_right(NULL, 5));
}

static void expect_refused(const attn_context_options *o, attn_status want, const char *argument)
{
    attn_error err = {0};
    attn_context *ctx = (attn_context *)&err;
    assert_int_equal(attn_context_create(o, &ctx, NULL), want);
    ctx = (attn_context *)&err;
    assert_int_equal(attn_context_create(o, &ctx, &err), want);
    assert_null(ctx);
    assert_int_equal(err.status, want);
    assert_string_equal(err.argument, argument);
    assert_int_equal(strncmp(err.message, argument, strlen(argument)), 0);
}

static void *some_allocate(void *user, size_t size, size_t alignment)
{
    (void)user;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void some_release(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    attn_error err;
    assert_int_equal(attn_context_create(NULL, NULL, &err), ATTN_ERR_ARGUMENT);
    assert_string_equal(err.argument, "out");

    const attn_context_options good = ATTN_CONTEXT_OPTIONS_INIT;
    static const int threads[] = {-1, 1025, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(threads); i++) {
        describe_case("threads = %d", threads[i]);
        attn_context_options o = good;
        o.threads = threads[i];
        expect_refused(&o, ATTN_ERR_ARGUMENT, "threads");
    }
    attn_context_options o = good;
    o.allocate = some_allocate;
    expect_refused(&o, ATTN_ERR_ARGUMENT, "options");
    o = good;
    o.release = some_release;
    expect_refused(&o, ATTN_ERR_ARGUMENT, "options");
    static const char *const names[] = {"", "AVX2", "sse", "avx2 "};
    for (size_t i = 0; i < COUNT(names); i++) {
        describe_case("isa = %s", names[i]);
        o = good;
        o.isa = names[i];
        expect_refused(&o, ATTN_ERR_ARGUMENT, "isa");
    }
    attn_context *none;
    o.isa = "sse";
    assert_int_equal(attn_context_create(&o, &none, &err), ATTN_ERR_ARGUMENT);
    for (int i = 0; attn_isa(i).name; i++) /* the message lists what would be right */
        if (attn_isa(i).usable)
            assert_non_null(strstr(err.message, attn_isa(i).name));
}

/* A caller built against another version of the header. */
static void sizes_of_older_and_newer_options(void **state)
{
    (void)state;
    struct {
        attn_context_options options;
        char tail[5000];
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.options = (attn_context_options)ATTN_CONTEXT_OPTIONS_INIT;
    newer.options.threads = 3;

    static const size_t bad[] = {0, 1, 7, 9, 5000, SIZE_MAX, SIZE_MAX / 3};
    for (size_t i = 0; i < COUNT(bad); i++) {
        describe_case("struct_size = %zu", bad[i]);
        newer.options.struct_size = bad[i];
        expect_refused(&newer.options, ATTN_ERR_ARGUMENT, "struct_size");
    }

    attn_context *ctx;
    newer.options.struct_size = sizeof newer.options + 16;
    assert_int_equal(attn_context_create(&newer.options, &ctx, NULL), ATTN_OK);
    assert_int_equal(attn_context_threads(ctx), 3);
    attn_context_destroy(ctx);
    newer.tail[15] = 1; /* a field that this library cannot honour */
    expect_refused(&newer.options, ATTN_ERR_ARGUMENT, "struct_size");
    newer.tail[15] = 0;
    newer.tail[16] = 1; /* past the caller's struct */
    assert_int_equal(attn_context_create(&newer.options, &ctx, NULL), ATTN_OK);
    attn_context_destroy(ctx);

    /* Older: what lies behind its end is not ours to read. */
    newer.options.isa = (const char *)8;
    newer.options.allocate = some_allocate;
    newer.options.struct_size = offsetof(attn_context_options, isa);
    assert_int_equal(attn_context_create(&newer.options, &ctx, NULL), ATTN_OK);
    assert_int_equal(attn_context_threads(ctx), 3);
    assert_string_equal(attn_context_isa(ctx), attn_context_isa(NULL));
    attn_context_destroy(ctx);
}

static void threads_of_the_environment(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        int threads; /* 0: refused */
    } cases[] = {{"1", 1},         {"3", 3},   {"1024", 1024},
                 {"007", 7},       {"0", 0},   {"-1", 0},
                 {"+2", 0},        {"2 ", 0},  {" 2", 0},
                 {"x", 0},         {"2x", 0},  {"1025", 0},
                 {"2.0", 0},       {"0x2", 0}, {"99999999999999999999", 0},
                 {"4294967297", 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        describe_case("ATTN_NUM_THREADS = %s", cases[i].value);
        setenv("ATTN_NUM_THREADS", cases[i].value, 1);
        if (cases[i].threads == 0) {
            expect_refused(NULL, ATTN_ERR_ARGUMENT, "ATTN_NUM_THREADS");
        } else {
            attn_context *ctx;
            assert_int_equal(attn_context_create(NULL, &ctx, NULL), ATTN_OK);
            assert_int_equal(attn_context_threads(ctx), cases[i].threads);
            attn_context_destroy(ctx);
        }
        attn_context *ctx = context_of(2); /* asked for: the environment is not looked at */
        assert_int_equal(attn_context_threads(ctx), 2);
        attn_context_destroy(ctx);
    }
    setenv("ATTN_NUM_THREADS", "", 1);
    attn_context *ctx = context_of(0);
    assert_int_equal(attn_context_threads(ctx), attni_cpu_count());
    attn_context_destroy(ctx);
    unsetenv("ATTN_NUM_THREADS");
}

static void instruction_sets_by_name(void **state)
{
    (void)state;
    for (int i = 0; attn_isa(i).name; i++) {
        describe_case("%s", attn_isa(i).name);
        attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
        char name[32];
        snprintf(name, sizeof name, "%s", attn_isa(i).name);
        o.isa = name;
        if (!attn_isa(i).usable) {
            expect_refused(&o, ATTN_ERR_UNSUPPORTED, "isa");
            continue;
        }
        for (int environment = 0; environment < 2; environment++) {
            attn_context *ctx;
            setenv("ATTN_ISA", environment ? name : "generic", 1);
            assert_int_equal(attn_context_create(environment ? NULL : &o, &ctx, NULL), ATTN_OK);
            unsetenv("ATTN_ISA");
            assert_string_equal(attn_context_isa(ctx), attn_isa(i).name);
            assert_int_equal(attni_context_isa_index(ctx), i);
            attni_call call;
            assert_int_equal(attni_call_begin(&call, ctx, 0, NULL, 0, NULL), ATTN_OK);
            assert_int_equal(call.isa, i);
            attni_call_end(&call);
            attn_context_destroy(ctx);
        }
    }
    setenv("ATTN_ISA", "avx3", 1);
    expect_refused(NULL, ATTN_ERR_ARGUMENT, "ATTN_ISA");
    unsetenv("ATTN_ISA");
}

/* ----------------------------------------------------------------------------- scratch */

/* An allocator that counts, checks sizes on release, and can refuse. */
typedef struct ledger {
    int allocations, releases, left;
    size_t bytes, peak;
    bool wrong;
} ledger;

static void *counted_allocate(void *user, size_t size, size_t alignment)
{
    ledger *l = user;
    l->wrong = l->wrong || alignment == 0 || alignment > 64 || (alignment & (alignment - 1));
    if (l->left-- <= 0)
        return NULL;
    l->allocations++;
    l->bytes += size;
    l->peak = l->bytes > l->peak ? l->bytes : l->peak;
    size_t *block = aligned_alloc(64, 64 + (size + 63) / 64 * 64);
    block[0] = size;
    return (char *)block + 64;
}

static void counted_release(void *user, void *memory, size_t size)
{
    ledger *l = user;
    size_t *block = (size_t *)(void *)((char *)memory - 64);
    l->wrong = l->wrong || block[0] != size;
    l->releases++;
    l->bytes -= size;
    free(block);
}

static attn_context_options counted(ledger *l, int threads)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    o.threads = threads;
    o.allocate = counted_allocate;
    o.release = counted_release;
    o.memory_user = l;
    return o;
}

static void scratch_grows_and_is_kept(void **state)
{
    (void)state;
    ledger l = {.left = 1000};
    attn_context_options o = counted(&l, 1);
    attn_context *ctx;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    int before = l.allocations;
    size_t own = l.bytes;
    static const struct {
        size_t bytes;
        int allocations;
    } steps[] = {{0, 0}, {1, 1}, {1, 1}, {100000, 2}, {64, 2}, {100000, 2}, {100001, 3}, {0, 3}};
    for (size_t i = 0; i < COUNT(steps); i++) {
        describe_case("row %zu of steps", i);
        attni_call call;
        assert_int_equal(attni_call_begin(&call, ctx, steps[i].bytes, NULL, 0, NULL), ATTN_OK);
        assert_int_equal((uintptr_t)call.scratch % ATTNI_ALIGN, 0);
        if (steps[i].bytes > 0)
            memset(call.scratch, 0x5a, steps[i].bytes);
        attni_call_end(&call);
        assert_int_equal(l.allocations - before, steps[i].allocations);
    }
    assert_int_equal(l.peak, own + 100001); /* the old block went before the new one came */
    attn_context_destroy(ctx);
    assert_int_equal(l.allocations, l.releases);
    assert_int_equal(l.bytes, 0);
    assert_false(l.wrong);
}

static void refused_memory_is_an_error(void **state)
{
    (void)state;
    ledger l = {.left = 0};
    attn_context_options o = counted(&l, 2);
    expect_refused(&o, ATTN_ERR_MEMORY, "");
    l.left = 1;
    attn_context *ctx;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    for (int round = 0; round < 3; round++) {
        attni_call call;
        attn_error err = {0};
        l.left = 0;
        size_t more = (size_t)(round + 1) << 20;
        assert_int_equal(attni_call_begin(&call, ctx, more, NULL, 0, &err), ATTN_ERR_MEMORY);
        assert_int_equal(err.status, ATTN_ERR_MEMORY);
        l.left = 10;
        assert_true(sums_are_right(ctx, 4)); /* and the context goes on */
    }
    attn_context_destroy(ctx);
    assert_int_equal(l.allocations, l.releases);
    assert_int_equal(l.bytes, 0);
    assert_false(l.wrong);

    attni_call call;
    assert_int_equal(attni_call_begin(&call, NULL, SIZE_MAX, NULL, 0, NULL), ATTN_ERR_MEMORY);
    assert_int_equal(attni_call_begin(&call, NULL, SIZE_MAX / 4, NULL, 0, NULL), ATTN_ERR_MEMORY);
}

/* Any place, any alignment: the scratch is aligned, inside, and as large as asked, or refused. */
static void the_caller_s_workspace(void **state)
{
    (void)state;
    static char block[1024];
    for (int with_context = 0; with_context < 2; with_context++) {
        ledger l = {.left = 1};
        attn_context_options o = counted(&l, 1);
        attn_context *ctx = NULL;
        if (with_context)
            assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
        for (size_t shift = 0; shift < 130; shift++)
            for (size_t size = 0; size < 400; size += 1 + shift % 3) {
                describe_case("%s context, workspace of %zu bytes at %zu",
                              with_context ? "a" : "no", size, shift);
                attni_call call;
                attn_error err = {0};
                const size_t need = 192;
                char *workspace = block + shift;
                char *aligned = workspace;
                while ((uintptr_t)aligned % ATTNI_ALIGN)
                    aligned++;
                bool fits = aligned + need <= workspace + size;
                attn_status status = attni_call_begin(&call, ctx, need, workspace, size, &err);
                assert_int_equal(status, fits ? ATTN_OK : ATTN_ERR_ARGUMENT);
                if (fits) {
                    assert_ptr_equal(call.scratch, aligned);
                    attni_call_end(&call);
                } else {
                    assert_string_equal(err.argument, "workspace");
                }
            }
        attn_context_destroy(ctx);
        assert_int_equal(l.allocations, with_context); /* never the context's scratch */
    }
    attni_call call;
    assert_int_equal(attni_call_begin(&call, NULL, SIZE_MAX, block + 1, SIZE_MAX, NULL),
                     ATTN_ERR_ARGUMENT);
}
/* ------------------------------------------------------------- what a call leaves alone */

static void the_caller_s_modes_are_restored(void **state)
{
    (void)state;
    sigset_t mine, now;
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &mine, NULL);
    fenv_t before;
    fegetenv(&before);
    for (int threads = 0; threads < 4; threads++) {
        describe_case("%d threads", threads);
        static const int rounding[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
        fesetround(rounding[threads]);
        feclearexcept(FE_ALL_EXCEPT);
        feraiseexcept(FE_DIVBYZERO);
#if defined(__SSE__)
        _mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ, DAZ */
        unsigned csr = _mm_getcsr();
#endif
        errno = 1234;
        attn_context *ctx = threads > 0 ? context_of(threads) : NULL;
        attni_call call;
        const attni_mode mode = attni_mode_enter();
        assert_int_equal(attni_call_begin(&call, ctx, 100, NULL, 0, NULL), ATTN_OK);
        bool as_default = rounds_to_nearest();
#if defined(__SSE__)
        as_default = as_default && (_mm_getcsr() & 0x805f) == 0; /* FTZ, DAZ, flags: the sums
                                                                  above were inexact, 0x20 */
#else
        as_default = as_default && !fetestexcept(FE_ALL_EXCEPT & ~FE_INEXACT);
#endif
        volatile double zero = 0, third = 1; /* computing raises what it may */
        zero = zero / zero, third = third / 3;
        attni_call_end(&call);
        bool right = sums_are_right(ctx, 4); /* sees the default mode on every worker */
        attni_mode_leave(mode);
        attn_context_destroy(ctx);

        int kept_errno = errno, kept_rounding = fegetround();
        int kept_flags = fetestexcept(FE_ALL_EXCEPT);
#if defined(__SSE__)
        bool same = _mm_getcsr() == csr;
#else
        bool same = true;
#endif
        fesetenv(&before);
        assert_true(as_default && right && same);
        assert_int_equal(kept_errno, 1234);
        assert_int_equal(kept_rounding, rounding[threads]);
        assert_int_equal(kept_flags, FE_DIVBYZERO);
        pthread_sigmask(SIG_SETMASK, NULL, &now);
        for (int s = 1; s < 32; s++)
            assert_int_equal(sigismember(&now, s), s == SIGUSR1);
    }
    sigemptyset(&mine);
    pthread_sigmask(SIG_SETMASK, &mine, NULL);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(sizes_of_older_and_newer_options),
        cmocka_unit_test(threads_of_the_environment),
        cmocka_unit_test(instruction_sets_by_name),
        cmocka_unit_test(scratch_grows_and_is_kept),
        cmocka_unit_test(refused_memory_is_an_error),
        cmocka_unit_test(the_caller_s_workspace),
        cmocka_unit_test(the_caller_s_modes_are_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
