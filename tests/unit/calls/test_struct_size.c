/* Structs of an older or newer header are accepted as docs/ABI.md says.
 *
 * labels: quick
 *
 * Each struct begins with its size. An older struct ends before one of its members, at the end of
 * readable memory; the call must do what it does with the remaining members at their defaults,
 * which are written down here once more. A newer struct is longer by bytes that are 0, or by one
 * that is not. */
#include <sys/mman.h>

#include "struct_subjects.h"

enum { LONGER = 16, LARGEST = 4096, PLACE = 8192 };

/* A struct of `size` bytes that ends where memory does. */
static char *place_end;

static void *place(const void *s, size_t size)
{
    void *at = memcpy(place_end - size, s, size);
    memcpy(at, &size, sizeof size);
    return at;
}

/* A struct of which the members from `end` on are at their defaults. */
static void cut(const subject *t, char *s, const char *full, size_t end)
{
    t->defaults(s);
    memcpy(s + sizeof(size_t), full + sizeof(size_t), end - sizeof(size_t));
}

static void each_older_struct_has_defaults(void **state)
{
    static results older, want, before;
    _Alignas(max_align_t) char full[1024], s[1024]; /* any struct */
    (void)state;
    for (size_t i = 0; i < COUNT(subjects); i++) {
        const subject *t = &subjects[i];
        bool matters[32] = {false};
        for (int variant = 0; variant < t->variants; variant++) {
            t->set(full, variant);
            for (size_t m = 0; m <= t->count; m++) {
                const size_t end = m < t->count ? t->members[m] : t->size;
                if (end < t->least)
                    continue;
                cut(t, s, full, end);
                run(t, s, &want);
                run(t, place(full, end), &older);
                if (memcmp(&older, &want, sizeof want) != 0)
                    fail_msg("%s, %zu bytes, variant %d: %d %s; want %d %s", t->name, end, variant,
                             older.status, older.err.message, want.status, want.err.message);
                if (end > t->least && memcmp(&want, &before, sizeof want) != 0)
                    matters[m - 1] = true;
                before = want;
            }
            if (want.status != ATTN_OK) /* complete, nothing may be wrong with it */
                fail_msg("%s, variant %d: %s", t->name, variant, want.err.message);
        }
        for (size_t m = 0; m < t->count && t->each_matters; m++)
            if (t->members[m] >= t->least && !matters[m])
                fail_msg("%s: the member at %zu changes nothing", t->name, t->members[m]);
    }
}

static void expect_refused(const subject *t, const void *s, size_t size)
{
    static results refused, blank;
    run(t, s, &refused);
    memset(&blank, 0xA5, sizeof blank);
    blank.status = ATTN_ERR_ARGUMENT;
    blank.err = refused.err;
    if (refused.status != ATTN_ERR_ARGUMENT || refused.err.status != ATTN_ERR_ARGUMENT ||
        strcmp(refused.err.argument, "struct_size") != 0)
        fail_msg("%s of %zu bytes: %d %s", t->name, size, refused.status, refused.err.message);
    char number[32], type[64];
    snprintf(number, sizeof number, " is %zu", size);
    snprintf(type, sizeof type, "%.*s", (int)strcspn(t->name, ","), t->name);
    if (!strstr(refused.err.message, number) ||
        (size < t->size && !strstr(refused.err.message, type)))
        fail_msg("%s of %zu bytes: \"%s\"", t->name, size, refused.err.message);
    if (memcmp(&refused, &blank, sizeof blank) != 0)
        fail_msg("%s of %zu bytes: something was written", t->name, size);
}

static void newer_structs_must_be_zero_beyond(void **state)
{
    static results want, newer;
    _Alignas(max_align_t) char full[LARGEST] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(subjects); i++) {
        const subject *t = &subjects[i];
        for (int variant = 0; variant < t->variants; variant++) {
            memset(full, 0, sizeof full);
            t->set(full, variant);
            run(t, full, &want);
            const size_t sizes[] = {t->size + sizeof(size_t), t->size + LONGER, LARGEST};
            for (size_t k = 0; k < COUNT(sizes); k++) {
                run(t, place(full, sizes[k]), &newer);
                assert_memory_equal(&newer, &want, sizeof want);
                for (size_t at = t->size; at < sizes[k]; at += k < 2 ? 1 : 509) {
                    full[at] = at % 2 ? 1 : -128;
                    expect_refused(t, place(full, sizes[k]), sizes[k]);
                    full[at] = 0;
                }
            }
        }
    }
}

static void sizes_that_no_struct_has_are_refused(void **state)
{
    _Alignas(max_align_t) char full[PLACE] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(subjects); i++) {
        const subject *t = &subjects[i];
        memset(full, 0, sizeof full);
        t->set(full, 0);
        const size_t odd[] = {t->least + 1, t->least + 4,    t->size - 1, t->size + 1,
                              LARGEST + 8,  (size_t)1 << 40, SIZE_MAX,    SIZE_MAX - 7};
        for (size_t size = 0; size < t->least; size++) {
            memcpy(full, &size, sizeof size);
            expect_refused(t, full, size);
        }
        for (size_t k = 0; k < COUNT(odd); k++) {
            if (odd[k] % sizeof(size_t) == 0 && odd[k] <= LARGEST)
                continue; /* where size_t has 4 bytes */
            memcpy(full, &odd[k], sizeof odd[k]);
            expect_refused(t, full, odd[k]);
        }
    }
}

/* --------------------------------------------------------------------------- what is filled in */

typedef attn_status plan_call(attn_plan_info *info, attn_error *err);

static attn_status forward_plan(attn_plan_info *info, attn_error *err)
{
    attn_sdpa_args a;
    sdpa_set(&a, 0);
    return attn_sdpa_plan(NULL, &a, info, err);
}

static attn_status backward_plan(attn_plan_info *info, attn_error *err)
{
    attn_sdpa_args a;
    attn_sdpa_grads g;
    derivative_set(&a, 0);
    grads_set(&g, 0);
    return attn_sdpa_backward_plan(NULL, &a, &g, info, err);
}

/* As much as the caller's struct has, 0 in what the library does not know, nothing behind it. */
static void plans_fill_the_caller_s_struct(void **state)
{
    static plan_call *const calls[] = {forward_plan, backward_plan};
    const size_t known = sizeof(attn_plan_info), first = sizeof(size_t);
    (void)state;
    for (size_t i = 0; i < COUNT(calls); i++) {
        attn_plan_info whole = {.struct_size = known};
        attn_error err = {.status = ATTN_OK};
        assert_int_equal(calls[i](&whole, NULL), ATTN_OK);
        assert_number(whole.scratch_bytes, >, 0);
        assert_number(whole.tasks, >, 0);
        assert_number(whole.flop, >, 0);
        for (size_t size = 0; size <= known + LONGER; size++) {
            union {
                attn_plan_info info;
                char bytes[sizeof(attn_plan_info) + 2 * LONGER];
            } place;
            memset(&place, 0xA5, sizeof place);
            place.info.struct_size = size;
            const bool good = size >= offsetof(attn_plan_info, threads) && size % first == 0;
            assert_int_equal(calls[i](&place.info, &err), good ? ATTN_OK : ATTN_ERR_ARGUMENT);
            if (!good)
                assert_string_equal(err.argument, "struct_size");
            assert_int_equal(place.info.struct_size, size);
            for (size_t at = first; at < sizeof place; at++)
                if (place.bytes[at] != (!good || at >= size ? (char)0xA5
                                        : at < known        ? ((const char *)&whole)[at]
                                                            : 0))
                    fail_msg("plan %zu, %zu bytes: byte %zu", i, size, at);
        }
        assert_int_equal(calls[i](NULL, &err), ATTN_ERR_ARGUMENT);
        assert_string_equal(err.argument, "info");
    }
}

/* ------------------------------------------------------------------------------- init functions */

static void plan_defaults(void *s) { zeros(s, sizeof(attn_plan_info)); }

/* One type's init function, for a struct of any size, and its macro. */
typedef struct init_case {
    size_t size;
    void (*defaults)(void *s);
    void (*init)(void *to);
    void (*init_sized)(void *to, size_t size);
    const void *macro;
} init_case;

#define INIT_CASE(type, MACRO)                                                                     \
    static void init_##type(void *to) { attn_##type##_init(to); }                                  \
    static void sized_##type(void *to, size_t n) { attn_##type##_init_sized(to, n); }              \
    static const attn_##type macro_##type = MACRO
INIT_CASE(context_options, ATTN_CONTEXT_OPTIONS_INIT);
INIT_CASE(sdpa_args, ATTN_SDPA_ARGS_INIT);
INIT_CASE(plan_info, ATTN_PLAN_INFO_INIT);
INIT_CASE(sdpa_grads, ATTN_SDPA_GRADS_INIT);
INIT_CASE(sdpa_tangents, ATTN_SDPA_TANGENTS_INIT);
INIT_CASE(cache_options, ATTN_CACHE_OPTIONS_INIT);
INIT_CASE(mha_args, ATTN_MHA_ARGS_INIT);
INIT_CASE(mha_grads, ATTN_MHA_GRADS_INIT);
INIT_CASE(adamw_options, ATTN_ADAMW_OPTIONS_INIT);
#define CASE(type, defaults)                                                                       \
    {                                                                                              \
        sizeof(attn_##type), defaults, init_##type, sized_##type, &macro_##type                    \
    }
static const init_case init_cases[] = {
    CASE(context_options, context_defaults),
    CASE(sdpa_args, sdpa_defaults),
    CASE(plan_info, plan_defaults),
    CASE(sdpa_grads, grads_defaults),
    CASE(sdpa_tangents, tangents_defaults),
    CASE(cache_options, cache_defaults),
    CASE(mha_args, mha_defaults),
    CASE(mha_grads, mha_grads_defaults),
    CASE(adamw_options, adamw_defaults),
};

/* A library that is newer than the caller must not write behind the caller's struct. */
static void init_functions_give_the_defaults(void **state)
{
    _Alignas(max_align_t) char want[1024], made[1024], blank[1024];
    (void)state;
    memset(blank, 0xA5, sizeof blank);
    for (size_t i = 0; i < COUNT(init_cases); i++) {
        const init_case *c = &init_cases[i];
        memset(want, 0, sizeof want);
        c->defaults(want);
        assert_memory_equal(c->macro, want, c->size);
        memset(made, 0xA5, sizeof made);
        c->init(made);
        assert_memory_equal(made, want, c->size);
        assert_memory_equal(made + c->size, blank, sizeof made - c->size);
        for (size_t size = 0; size <= c->size + LONGER; size++) {
            memset(made, 0xA5, sizeof made);
            c->init_sized(made, size);
            const size_t filled = size < sizeof size ? 0 : size;
            memcpy(want, &size, sizeof size);
            assert_memory_equal(made, want, filled);
            assert_memory_equal(made + filled, blank, sizeof made - filled);
        }
    }
}

/* -------------------------------------------------------------------------------------- layouts */

/* Where version 0.2 has each member, with 64-bit pointers: what programs have built in. More may
 * come behind the last; none of these ever moves before 0.3 (docs/ABI.md). */
static void members_stay_where_they_are(void **state)
{
    static const size_t plan_members[] = {
#define M(name) offsetof(attn_plan_info, name)
        M(kernel), M(scratch_bytes), M(threads), M(tasks),
        M(flop),   M(bytes)
#undef M
    };
    static const size_t pinned_sdpa[] = {8,   88,  168, 248, 328, 336, 344, 352, 360,
                                         368, 376, 384, 392, 400, 408, 416, 424, 432,
                                         440, 448, 456, 464, 472, 480, 488, 496};
    static const size_t pinned_grads[] = {8, 88, 96, 176, 256, 336, 344, 352};
    static const size_t pinned_tangents[] = {8, 88, 168, 248, 328};
    static const size_t pinned_context[] = {8, 16, 24, 32, 40, 48, 56};
    static const size_t pinned_cache[] = {8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88};
    static const size_t pinned_mha[] = {8,   88,  168, 248, 328, 408, 488,
                                        568, 648, 728, 808, 888, 896, 904};
    static const size_t pinned_mha_grads[] = {8,   88,  168, 248, 328, 408, 488,
                                              568, 648, 728, 808, 888, 896, 904};
    static const size_t pinned_adamw[] = {8, 16, 24, 32, 40};
    static const size_t pinned_plan[] = {8, 56, 64, 72, 80, 88};
    static const struct {
        const char *name;
        const size_t *members, *pinned;
        size_t count, count_pinned;
    } all[] = {
#define STRUCT(name)                                                                               \
    {#name, name##_members, pinned_##name, COUNT(name##_members), COUNT(pinned_##name)}
        STRUCT(context), STRUCT(sdpa), STRUCT(plan),      STRUCT(grads), STRUCT(tangents),
        STRUCT(cache),   STRUCT(mha),  STRUCT(mha_grads), STRUCT(adamw),
#undef STRUCT
    };
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    for (size_t i = 0; i < COUNT(all); i++) {
        assert_number(all[i].count, >=, all[i].count_pinned);
        for (size_t m = 0; m < all[i].count_pinned; m++)
            if (all[i].members[m] != all[i].pinned[m])
                fail_msg("%s: member %zu is at %zu; it was released at %zu", all[i].name, m,
                         all[i].members[m], all[i].pinned[m]);
    }
    /* frozen */
    assert_int_equal(sizeof(attn_tensor), 80);
    assert_int_equal(sizeof(attn_error), 260);
    assert_int_equal(sizeof(attn_isa_info), 16);
    assert_int_equal(sizeof(attn_rng), 2512);
}

/* ----------------------------------------------------------------------------------------- main */

static int prepare(void **state)
{
    (void)state;
    unsetenv("ATTN_ISA");
    unsetenv("ATTN_NUM_THREADS");
    fill_inputs();
    char *at = mmap(NULL, 2 * PLACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + PLACE, PLACE, PROT_NONE), 0);
    place_end = at + PLACE;
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    o.B = B, o.Hk = HK, o.D = D, o.Dv = DV, o.max_keys = S;
    assert_int_equal(attn_cache_create(&o, &cache, NULL), ATTN_OK);
    for (int64_t b = 0; b < B; b++) {
        const attn_tensor k = attn_bhtd(in[1], ATTN_F32, 1, HK, S, D);
        const attn_tensor v = attn_bhtd(in[2], ATTN_F32, 1, HK, S, DV);
        assert_int_equal(attn_cache_append(cache, b, &k, &v, NULL), ATTN_OK);
    }
    return 0;
}

static int finish(void **state)
{
    (void)state;
    attn_cache_destroy(cache);
    return munmap(place_end - PLACE, 2 * PLACE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_older_struct_has_defaults),
        cmocka_unit_test(newer_structs_must_be_zero_beyond),
        cmocka_unit_test(sizes_that_no_struct_has_are_refused),
        cmocka_unit_test(plans_fill_the_caller_s_struct),
        cmocka_unit_test(init_functions_give_the_defaults),
        cmocka_unit_test(members_stay_where_they_are),
    };
    return cmocka_run_group_tests(tests, prepare, finish);
}
