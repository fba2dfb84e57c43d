/* The instruction set is chosen correctly, on this machine and on thousands of simulated ones. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include "core/internal.h"
#include "support/test.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

/* -------------------------------------------------------------------------------- ATTN_ISA
 *
 * The choice is made once per process, so each case is a child, forked before any choice. */
static int best_with(const char *value)
{
    pid_t child = fork();
    assert_number(child, >=, 0);
    if (child == 0) {
        if (value)
            setenv("ATTN_ISA", value, 1);
        else
            unsetenv("ATTN_ISA");
        int best = attni_isa_best();
        unsetenv("ATTN_ISA");
        _exit(best == attni_isa_best() && best == attni_context_isa_index(NULL) ? best : 100);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_environment_names_a_usable_set(void **state)
{
    (void)state;
    int best = best_with(NULL);
    assert_true(attni_isa_usable(best));
    for (int i = 0; attn_isa(i).name; i++) {
        describe_case("%s", attn_isa(i).name);
        assert_int_equal(best_with(attn_isa(i).name), attni_isa_usable(i) ? i : best);
        /* Sets above the best one cannot run here, with one exception: dot products of AVX512-BF16
         * are slow on Intel processors. */
        if (i > best && strcmp(attn_isa(i).name, "avx512bf16") != 0)
            assert_false(attni_isa_usable(i));
    }
    static const char *const wrong[] = {"", "AVX2", "avx", "avx2 ", "native", "avx1024"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_int_equal(best_with(wrong[i]), best);
}

/* --------------------------------------------------------------------------- played machines */

/* What a CPU and its system have, one flag each. */
typedef struct machine {
    bool osxsave, avx, fma, f16c, avx2, avx512f, avx512dq, avx512bw, avx512vl;
    uint64_t xcr0;
    uint32_t max_leaf;
    bool amx_tile, amx_bf16;
    bool avx512_bf16, amd;
} machine;

static attni_cpuid registers(const machine *m)
{
    attni_cpuid r = {.max_leaf = m->max_leaf, .xcr0 = m->xcr0};
    r.leaf1_ecx = (uint32_t)m->fma << 12 | (uint32_t)m->osxsave << 27 | (uint32_t)m->avx << 28 |
                  (uint32_t)m->f16c << 29;
    r.leaf7_ebx = (uint32_t)m->avx2 << 5 | (uint32_t)m->avx512f << 16 |
                  (uint32_t)m->avx512dq << 17 | (uint32_t)m->avx512bw << 30 |
                  (uint32_t)m->avx512vl << 31;
    r.leaf7_edx = (uint32_t)m->amx_tile << 24 | (uint32_t)m->amx_bf16 << 22;
    r.leaf7_1_eax = (uint32_t)m->avx512_bf16 << 5;
    memcpy(&r.vendor, m->amd ? "Auth" : "Genu", 4);
    return r;
}

static const char *expectation(const machine *m)
{
#if defined(__x86_64__)
    bool registers_saved = m->osxsave && (m->xcr0 & 2) && (m->xcr0 & 4);
    if (!registers_saved || m->max_leaf < 7 || !m->avx || !m->fma || !m->f16c || !m->avx2)
        return "generic";
    bool wide_saved = (m->xcr0 & 0x20) && (m->xcr0 & 0x40) && (m->xcr0 & 0x80);
    if (!wide_saved || !m->avx512f || !m->avx512dq || !m->avx512bw || !m->avx512vl)
        return "avx2";
    const bool tiles_saved = (m->xcr0 & 0x20000) && (m->xcr0 & 0x40000);
    if (tiles_saved && m->amx_tile && m->amx_bf16 && m->avx512_bf16)
        return "amx";
    return m->avx512_bf16 && m->amd ? "avx512bf16" : "avx512";
#elif defined(__aarch64__)
    (void)m;
    return "neon";
#else
    (void)m;
    return "generic";
#endif
}

static void expect_choice(const machine *m, const char *want)
{
    attni_cpuid r = registers(m);
    const char *got = attn_isa(attni_isa_from_cpuid(&r)).name;
    if (strcmp(got, want) != 0)
        fail_msg("%s, want %s: ecx %08x ebx %08x xcr0 %llx max_leaf %u", got, want, r.leaf1_ecx,
                 r.leaf7_ebx, (unsigned long long)r.xcr0, r.max_leaf);
}

static void every_combination_of_features(void **state)
{
    (void)state;
    static const uint64_t xcr0[] = {0,       1,    2,       3,       4,      5,    6,
                                    7,       0xe6, 0xe7,    0xc7,    0xa7,   0x67, 0xe3,
                                    0x602e7, 0xe0, 0x600e7, 0x200e7, 0x400e7};
    static const uint32_t leaves[] = {0, 1, 6, 7, 13, 32};
    for (unsigned bits = 0; bits < 8192; bits++)
        for (size_t i = 0; i < COUNT(xcr0); i++)
            for (size_t j = 0; j < COUNT(leaves); j++) {
                machine m = {bits & 1,       bits >> 1 & 1,  bits >> 2 & 1, bits >> 3 & 1,
                             bits >> 4 & 1,  bits >> 5 & 1,  bits >> 6 & 1, bits >> 7 & 1,
                             bits >> 8 & 1,  xcr0[i],        leaves[j],     bits >> 9 & 1,
                             bits >> 10 & 1, bits >> 11 & 1, bits >> 12 & 1};
                expect_choice(&m, expectation(&m));
            }
}

#if defined(__x86_64__)
/* The same by name, so that a mistake shared by both lists above would show. */
static void known_machines(void **state)
{
    (void)state;
    const machine sapphire_rapids = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0x602e7, 32, 1, 1, 1, 0};
    machine m = sapphire_rapids;
    expect_choice(&m, "amx");
    m.xcr0 = 0x2e7; /* a system of before Linux 5.16 */
    expect_choice(&m, "avx512");
    m = sapphire_rapids;
    m.amx_bf16 = false; /* a hypervisor's mask */
    expect_choice(&m, "avx512");
    const machine zen5 = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0xe7, 16, 0, 0, 1, 1};
    expect_choice(&zen5, "avx512bf16");
    m = zen5;
    m.avx512_bf16 = false; /* a hypervisor's mask */
    expect_choice(&m, "avx512");
    const machine cooper_lake = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0xe7, 22, 0, 0, 1, 0};
    expect_choice(&cooper_lake, "avx512"); /* its dot products are slow */
    const machine skylake = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0xe7, 22, 0, 0, 0, 0};
    m = skylake;
    expect_choice(&m, "avx512");
    m.xcr0 = 7; /* a system that does not save zmm */
    expect_choice(&m, "avx2");
    m.xcr0 = 3; /* nor ymm */
    expect_choice(&m, "generic");

    machine haswell = {1, 1, 1, 1, 1, 0, 0, 0, 0, 7, 13, 0, 0, 0, 0};
    expect_choice(&haswell, "avx2");
    m = haswell;
    m.osxsave = false; /* a system of before AVX; XCR0 reads as whatever it was */
    expect_choice(&m, "generic");
    m = haswell;
    m.fma = false; /* a hypervisor's mask */
    expect_choice(&m, "generic");
    m = haswell;
    m.avx = false; /* AVX2 without AVX */
    expect_choice(&m, "generic");
    m = haswell;
    m.max_leaf = 2; /* leaf 7 read past the end */
    expect_choice(&m, "generic");

    const machine sandy_bridge = {1, 1, 0, 0, 0, 0, 0, 0, 0, 7, 13, 0, 0, 0, 0};
    expect_choice(&sandy_bridge, "generic");
    const machine nehalem = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0};
    expect_choice(&nehalem, "generic");
    const machine knights_landing = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0xe7, 13, 0, 0, 0, 0};
    expect_choice(&knights_landing, "avx2");
}

/* All bits that are not asked for may be anything. */
static void other_bits_do_not_matter(void **state)
{
    (void)state;
    attni_cpuid r = {.max_leaf = 32, .leaf1_ecx = 0xffffffff, .leaf7_ebx = 0xffffffff};
    r.xcr0 = UINT64_MAX;
    assert_string_equal(attn_isa(attni_isa_from_cpuid(&r)).name, "avx512");
    r.leaf7_edx = r.leaf7_1_eax = 0xffffffff;
    assert_string_equal(attn_isa(attni_isa_from_cpuid(&r)).name, "amx");
    attni_cpuid bare = {.max_leaf = 32};
    bare.leaf1_edx = bare.leaf7_ecx = bare.leaf7_edx = bare.leaf7_1_eax = 0xffffffff;
    assert_string_equal(attn_isa(attni_isa_from_cpuid(&bare)).name, "generic");
}
#endif

/* ------------------------------------------------------------------------------- this machine */

static void names_and_indices(void **state)
{
    (void)state;
    int count = 0;
    for (; attn_isa(count).name; count++)
        assert_int_equal(attni_isa_find(attn_isa(count).name), count);
    assert_string_equal(attn_isa(0).name, "generic");
    assert_int_equal(attn_isa(0).usable, 1);
    static const int outside[] = {-1, -2, INT32_MIN, INT32_MAX, 64};
    for (size_t i = 0; i < COUNT(outside); i++) {
        assert_null(attn_isa(outside[i]).name);
        assert_int_equal(attn_isa(outside[i]).usable, 0);
        assert_false(attni_isa_usable(outside[i]));
    }
    assert_null(attn_isa(count).name);
    assert_int_equal(attni_isa_find("avx3"), -1);
    assert_int_equal(attni_isa_find(""), -1);
    assert_int_equal(attni_isa_find(NULL), -1);
}

static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

/* Against the compiler's own detection, or the system's. */
static void features_are_what_the_compiler_finds(void **state)
{
    (void)state;
    char list[512];
    assert_number(attn_cpu_features(list, sizeof list), <, (int)sizeof list);
#if defined(__x86_64__)
    __builtin_cpu_init();
#define SAME(ours, theirs) assert_int_equal(listed(list, ours), __builtin_cpu_supports(theirs) != 0)
    SAME("avx", "avx");
    SAME("fma", "fma");
    SAME("avx2", "avx2");
    SAME("avx512f", "avx512f");
    SAME("avx512dq", "avx512dq");
    SAME("avx512bw", "avx512bw");
    SAME("avx512vl", "avx512vl");
    SAME("avx512_vnni", "avx512vnni");
    SAME("avx512_bf16", "avx512bf16");
    bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && listed(list, "f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    assert_int_equal(attni_isa_usable(attni_isa_find("avx2")), avx2);
    assert_int_equal(attni_isa_usable(attni_isa_find("avx512")), avx512);
    attni_cpuid r;
    attni_read_cpuid(&r);
    const bool bf16 = avx512 && listed(list, "avx512_bf16");
    const bool amx = bf16 && listed(list, "amx_tile") && listed(list, "amx_bf16");
    assert_true(amx || !attni_isa_usable(attni_isa_find("amx"))); /* the system may refuse it */
    assert_int_equal(attni_isa_usable(attni_isa_find("avx512bf16")), bf16);
    assert_string_equal(attn_isa(attni_isa_from_cpuid(&r)).name, amx ? "amx"
                                                                 : bf16 && __builtin_cpu_is("amd")
                                                                     ? "avx512bf16"
                                                                 : avx512 ? "avx512"
                                                                 : avx2   ? "avx2"
                                                                          : "generic");
#elif defined(__aarch64__)
    assert_true(listed(list, "asimd"));
#define SAME(ours, in, bit) assert_int_equal(listed(list, ours), (getauxval(in) & (bit)) != 0)
    SAME("asimdhp", AT_HWCAP, HWCAP_ASIMDHP);
    SAME("asimddp", AT_HWCAP, HWCAP_ASIMDDP);
    SAME("sve", AT_HWCAP, HWCAP_SVE);
    SAME("asimdfhm", AT_HWCAP, HWCAP_ASIMDFHM);
    SAME("sve2", AT_HWCAP2, HWCAP2_SVE2);
    SAME("i8mm", AT_HWCAP2, HWCAP2_I8MM);
    SAME("bf16", AT_HWCAP2, HWCAP2_BF16);
    assert_int_equal(attni_isa_usable(attni_isa_find("neon")), 1);
#else
    assert_string_equal(list, "");
#endif
}

static void features_fit_any_buffer(void **state)
{
    (void)state;
    char whole[512], part[520];
    int length = attn_cpu_features(whole, sizeof whole);
    assert_int_equal(length, strlen(whole));
    assert_int_equal(attn_cpu_features(NULL, 0), length);
    for (int size = 1; size <= length + 2; size++) {
        describe_case("%d bytes", size);
        memset(part, '#', sizeof part);
        assert_int_equal(attn_cpu_features(part, (size_t)size), length);
        size_t want = size <= length ? (size_t)size - 1 : (size_t)length;
        assert_int_equal(strlen(part), want);
        assert_memory_equal(part, whole, want);
        for (size_t i = (size_t)size; i < sizeof part; i++)
            assert_int_equal(part[i], '#');
    }
}

static void cpus_are_those_of_the_affinity_mask(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(attni_cpu_count(), CPU_COUNT(&before));
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &before)) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(attni_cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* ------------------------------------------------------------------------------- prefetching */

static void zen_3_and_zen_4_prefetch_into_l2(void **state)
{
    (void)state;
    enum { AMD = 0x68747541, INTEL = 0x756e6547, HYGON = 0x6f677948 };
    static const struct {
        const char *name;
        attni_cpuid r;
        bool l2;
    } machines[] = {
        {"Zen 2", {.max_leaf = 16, .vendor = AMD, .leaf1_eax = 0x00830f10}, false},
        {"Zen 3", {.max_leaf = 16, .vendor = AMD, .leaf1_eax = 0x00a00f11}, true},
        {"Zen 4", {.max_leaf = 16, .vendor = AMD, .leaf1_eax = 0x00a10f11}, true},
        {"Zen 5", {.max_leaf = 16, .vendor = AMD, .leaf1_eax = 0x00b00f21}, false},
        {"Sapphire Rapids", {.max_leaf = 32, .vendor = INTEL, .leaf1_eax = 0x000806f8}, false},
        {"family 0x18", {.max_leaf = 16, .vendor = HYGON, .leaf1_eax = 0x00900f01}, false},
        {"another vendor", {.max_leaf = 16, .vendor = INTEL, .leaf1_eax = 0x00a10f11}, false},
        {"no leaf 1", {.vendor = AMD, .leaf1_eax = 0x00a10f11}, false},
        {"no CPUID", {0}, false},
    };
    for (size_t i = 0; i < COUNT(machines); i++) {
        describe_case("%s", machines[i].name);
        assert_int_equal(attni_family_19h_from_cpuid(&machines[i].r), machines[i].l2);
    }
    attni_cpuid here;
    attni_read_cpuid(&here);
    assert_int_equal(attni_family_19h(), attni_family_19h_from_cpuid(&here));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_names_a_usable_set), /* first: see there */
        cmocka_unit_test(every_combination_of_features),
#if defined(__x86_64__)
        cmocka_unit_test(known_machines),
        cmocka_unit_test(other_bits_do_not_matter),
#endif
        cmocka_unit_test(names_and_indices),
        cmocka_unit_test(features_are_what_the_compiler_finds),
        cmocka_unit_test(features_fit_any_buffer),
        cmocka_unit_test(cpus_are_those_of_the_affinity_mask),
        cmocka_unit_test(zen_3_and_zen_4_prefetch_into_l2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
