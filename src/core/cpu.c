/* Which instruction sets this machine can run, and how many CPUs this thread may use.
 *
 * A CPU with AVX2 may still fault on AVX2 instructions: the operating system must save the
 * registers, as OSXSAVE and XCR0 report, and a hypervisor may mask one feature without those that
 * build on it. Therefore each set lists every feature that its code needs, and is used only if all
 * are present.
 */
#define _GNU_SOURCE /* sched_getaffinity, syscall */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>
#ifdef _WIN32
#include <windows.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "internal.h"

/* ---------------------------------------------------------------------------- requirements */

/* Bit positions from the manual (Intel SDM volume 2, CPUID; volume 1, 13.3, XCR0). */
#define FMA (1u << 12)
#define OSXSAVE (1u << 27)
#define AVX (1u << 28)
#define F16C (1u << 29)
#define AVX2 (1u << 5)
#define AVX512F (1u << 16)
#define AVX512DQ (1u << 17)
#define AVX512BW (1u << 30)
#define AVX512VL (1u << 31)
#define AVX512_BF16 (1u << 5)
#define AMX_BF16 (1u << 22)
#define AMX_TILE (1u << 24)
#define XCR0_AVX 0x6u     /* xmm and the upper halves of ymm */
#define XCR0_AVX512 0xe6u /* the above, mask registers, upper zmm, zmm16-31 */
#define XCR0_AMX 0x60000u /* tile configuration and data */

/* The features in isa.def's rows. An emulated set needs only the features of the set by whose
 * instructions it is emulated. */
#define NEED_AVX (OSXSAVE | AVX | FMA | F16C)
#ifdef ATTNI_AVX512_EMULATED
#define NEED_AVX512 AVX2
#define NEED_XCR0_AVX512 XCR0_AVX
#else
#define NEED_AVX512 (AVX2 | AVX512F | AVX512DQ | AVX512BW | AVX512VL)
#define NEED_XCR0_AVX512 XCR0_AVX512
#endif
#ifdef ATTNI_AMX_EMULATED
#define NEED_BF16 0
#define NEED_AMX 0
#define NEED_XCR0_AMX NEED_XCR0_AVX512
#else
#define NEED_BF16 AVX512_BF16
#define NEED_AMX (AMX_TILE | AMX_BF16)
#define NEED_XCR0_AMX (XCR0_AVX512 | XCR0_AMX)
#endif

static const struct {
    const char *name;
    struct {
        uint32_t leaf1_ecx, leaf7_ebx, leaf7_edx, leaf7_1_eax;
        uint64_t xcr0;
    } need;
} sets[] = {
#define ATTNI_ISA(name, ...) {#name, {__VA_ARGS__}},
#include "isa.def"
#undef ATTNI_ISA
};
enum { SETS = (int)(sizeof sets / sizeof sets[0]) };

/* Clears the registers of leaves past max_leaf: some CPUs return the values of another leaf for
 * them. */
static attni_cpuid sane(const attni_cpuid *regs)
{
    attni_cpuid r = *regs;
    if (r.max_leaf < 1)
        r.leaf1_eax = r.leaf1_ecx = r.leaf1_edx = 0;
    if (r.max_leaf < 7)
        r.leaf7_ebx = r.leaf7_ecx = r.leaf7_edx = r.leaf7_1_eax = 0;
    return r;
}

#define AMD 0x68747541 /* "Auth", of AuthenticAMD */

static bool runs(int index, const attni_cpuid *r)
{
    return (r->leaf1_ecx & sets[index].need.leaf1_ecx) == sets[index].need.leaf1_ecx &&
           (r->leaf7_ebx & sets[index].need.leaf7_ebx) == sets[index].need.leaf7_ebx &&
           (r->leaf7_edx & sets[index].need.leaf7_edx) == sets[index].need.leaf7_edx &&
           (r->leaf7_1_eax & sets[index].need.leaf7_1_eax) == sets[index].need.leaf7_1_eax &&
           (r->xcr0 & sets[index].need.xcr0) == sets[index].need.xcr0;
}

/* Is a usable set faster than the sets before it? On AMD processors a bf16 dot-product instruction
 * has the throughput of a float multiply-add and does twice the work (docs/decisions/0018: 465
 * GFLOP/s on a Zen 5). On Intel processors, widening to float is faster. */
static bool pays(int index, const attni_cpuid *r)
{
    return strcmp(sets[index].name, "avx512bf16") != 0 || r->vendor == AMD;
}

/* Zen 3 and Zen 4. What the plan does on them alone is in choose_prefetch() of make_plan.c. */
bool attni_family_19h_from_cpuid(const attni_cpuid *regs)
{
    const attni_cpuid r = sane(regs);
    const uint32_t family = (r.leaf1_eax >> 8 & 0xf) + (r.leaf1_eax >> 20 & 0xff);
    return r.vendor == AMD && family == 0x19;
}

bool attni_family_19h(void)
{
    static atomic_int cached; /* 0: not computed yet; 1: no; 2: yes */
    int answer = atomic_load_explicit(&cached, memory_order_relaxed);
    if (answer == 0) {
        attni_cpuid regs;
        attni_read_cpuid(&regs);
        answer = attni_family_19h_from_cpuid(&regs) ? 2 : 1;
        atomic_store_explicit(&cached, answer, memory_order_relaxed);
    }
    return answer == 2;
}

int attni_isa_from_cpuid(const attni_cpuid *regs)
{
    attni_cpuid r = sane(regs);
    int best = SETS - 1;
    while (best > 0 && !(runs(best, &r) && pays(best, &r)))
        best--;
    return best;
}

/* --------------------------------------------------------------------------- this machine */

#if defined(__x86_64__)
#include <cpuid.h>

void attni_read_cpuid(attni_cpuid *regs)
{
    uint32_t a, b, c, d;
    memset(regs, 0, sizeof *regs);
    __cpuid(0, regs->max_leaf, regs->vendor, c, d);
    if (regs->max_leaf >= 1)
        __cpuid(1, regs->leaf1_eax, b, regs->leaf1_ecx, regs->leaf1_edx);
    if (regs->max_leaf >= 7) {
        uint32_t subleaves;
        __cpuid_count(7, 0, subleaves, regs->leaf7_ebx, regs->leaf7_ecx, regs->leaf7_edx);
        if (subleaves >= 1)
            __cpuid_count(7, 1, regs->leaf7_1_eax, b, c, d);
    }
    if (regs->leaf1_ecx & OSXSAVE) {
        __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        regs->xcr0 = (uint64_t)d << 32 | a;
    }
}
#else
void attni_read_cpuid(attni_cpuid *regs) { memset(regs, 0, sizeof *regs); }
#endif

/* Linux saves the 8 KiB of tile data only for processes that requested permission. It refuses the
 * permission if the alternate signal stack of a thread is too small for this data. The request may
 * be repeated. ATTN_AMX=0 prevents it, for programs whose threads install small signal stacks
 * later. */
static bool tiles_permitted(void)
{
#if defined(__x86_64__) && defined(__linux__) && !defined(ATTNI_AMX_EMULATED)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    const char *asked = getenv("ATTN_AMX");
    if (asked && strcmp(asked, "0") == 0)
        return false;
    const int saved = errno;
    const bool granted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    errno = saved;
    return granted;
#elif defined(ATTNI_AMX_EMULATED)
    return true;
#else
    return false;
#endif
}

/* Bit i: set i can run here; bit 16 + i: it also pays off (pays()). The result is cached, since
 * CPUID traps in a virtual machine and can take tens of microseconds. Threads that race here
 * compute the same value. */
static unsigned usable_sets(void)
{
    static atomic_uint cached; /* 0: not computed yet; otherwise the bit of generic is set */
    unsigned found = atomic_load_explicit(&cached, memory_order_relaxed);
    if (found == 0) {
        attni_cpuid regs;
        attni_read_cpuid(&regs);
        regs = sane(&regs);
        for (int i = 0; i < SETS; i++)
            if (runs(i, &regs) && (strcmp(sets[i].name, "amx") != 0 || tiles_permitted()))
                found |= (pays(i, &regs) ? 0x10001u : 1u) << i;
        atomic_store_explicit(&cached, found, memory_order_relaxed);
    }
    return found;
}

bool attni_isa_usable(int index)
{
    return index >= 0 && index < SETS && (usable_sets() >> index & 1);
}

int attni_isa_find(const char *name)
{
    for (int i = 0; name && i < SETS; i++)
        if (strcmp(name, sets[i].name) == 0)
            return i;
    return -1;
}

/* An ATTN_ISA that names no usable set is ignored here, since this function cannot report an error;
 * attn_context_create() refuses it. */
int attni_isa_best(void)
{
    static atomic_int cached; /* index + 1 */
    int best = atomic_load_explicit(&cached, memory_order_relaxed) - 1;
    if (best < 0) {
        best = attni_isa_find(getenv("ATTN_ISA"));
        if (!attni_isa_usable(best))
            for (best = SETS - 1; !(usable_sets() >> 16 >> best & 1);)
                best--;
        atomic_store_explicit(&cached, best + 1, memory_order_relaxed);
    }
    return best;
}

attn_isa_info attn_isa(int index)
{
    if (index < 0 || index >= SETS)
        return (attn_isa_info){NULL, 0};
    return (attn_isa_info){sets[index].name, attni_isa_usable(index)};
}

/* ------------------------------------------------------------------------- names, for people */

int attn_cpu_features(char *buffer, size_t size)
{
    attni_cpuid r;
    attni_read_cpuid(&r);
    r = sane(&r);
#if defined(__aarch64__) && defined(__linux__)
    const uint64_t cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
#elif defined(__aarch64__)
    const uint64_t cap = 1u << 1, cap2 = 0; /* asimd, which is always present */
#endif
    const struct {
        const char *name;
        uint64_t have, need, xcr0;
    } features[] = {
#if defined(__aarch64__)
        /* Bits and names as in Linux (arm64's uapi/asm/hwcap.h and /proc/cpuinfo). */
        {"asimd", cap, 1u << 1, 0},
        {"asimdhp", cap, 1u << 10, 0},
        {"asimddp", cap, 1u << 20, 0},
        {"sve", cap, 1u << 22, 0},
        {"asimdfhm", cap, 1u << 23, 0},
        {"sve2", cap2, 1u << 1, 0},
        {"i8mm", cap2, 1u << 13, 0},
        {"bf16", cap2, 1u << 14, 0},
        {"sme", cap2, 1u << 23, 0},
#endif
        {"avx", r.leaf1_ecx, AVX, XCR0_AVX},
        {"fma", r.leaf1_ecx, FMA, XCR0_AVX},
        {"f16c", r.leaf1_ecx, F16C, XCR0_AVX},
        {"avx2", r.leaf7_ebx, AVX2, XCR0_AVX},
        {"avx512f", r.leaf7_ebx, AVX512F, XCR0_AVX512},
        {"avx512dq", r.leaf7_ebx, AVX512DQ, XCR0_AVX512},
        {"avx512bw", r.leaf7_ebx, AVX512BW, XCR0_AVX512},
        {"avx512vl", r.leaf7_ebx, AVX512VL, XCR0_AVX512},
        {"avx512_vnni", r.leaf7_ecx, 1u << 11, XCR0_AVX512},
        {"avx512_bf16", r.leaf7_1_eax, 1u << 5, XCR0_AVX512},
        {"avx512_fp16", r.leaf7_edx, 1u << 23, XCR0_AVX512},
        {"amx_tile", r.leaf7_edx, AMX_TILE, XCR0_AMX},
        {"amx_bf16", r.leaf7_edx, AMX_BF16, XCR0_AMX},
        {"amx_int8", r.leaf7_edx, 1u << 25, XCR0_AMX},
    };
    size_t length = 0;
    if (size > 0)
        buffer[0] = '\0';
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++) {
        if (!(features[i].have & features[i].need) ||
            (r.xcr0 & features[i].xcr0) != features[i].xcr0)
            continue;
        size_t at = length < size ? length : size;
        length += (size_t)snprintf(size > 0 ? buffer + at : NULL, size - at, "%s%s",
                                   length > 0 ? " " : "", features[i].name);
    }
    return (int)length;
}

/* The number of CPUs that this thread may use, at least 1. Linux: the CPUs in its affinity mask;
 * Windows: those in the mask of its process; other systems: the CPUs that are online. Does not
 * allocate memory, since a forked child calls it too. */
int attni_cpu_count(void)
{
    int count = 0;
#if defined(__linux__)
    int saved = errno;
    cpu_set_t mask[16]; /* 1024 CPUs each; the total exceeds the limit of every Linux kernel */
    if (sched_getaffinity(0, sizeof mask, mask) == 0)
        count = CPU_COUNT_S(sizeof mask, mask);
    errno = saved;
#elif defined(_WIN32)
    DWORD_PTR mine, all;
    if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all))
        count = __builtin_popcountll(mine);
#else
    count = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return count > 0 ? count : 1;
}
