/* Pages that cannot be touched, for the harness's guards, and their size, by Windows' own calls. */
#ifndef ATTN_TEST_MMAN_H
#define ATTN_TEST_MMAN_H
#include <windows.h>

enum { PROT_NONE = 0, PROT_READ = 1, PROT_WRITE = 2 };
enum { MAP_PRIVATE = 2, MAP_ANONYMOUS = 32, MAP_NORESERVE = 0 };
#define MAP_FAILED ((void *)-1)
#define _SC_PAGESIZE 1

static inline long sysconf(int name)
{
    (void)name;
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return (long)system.dwPageSize;
}

static inline void *mmap(void *at, size_t size, int access, int flags, int file, long from)
{
    (void)at, (void)access, (void)flags, (void)file, (void)from;
    void *memory = VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_NOACCESS);
    return memory ? memory : MAP_FAILED;
}

static inline int mprotect(void *at, size_t size, int access)
{
    DWORD before;
    return VirtualProtect(at, size, access ? PAGE_READWRITE : PAGE_NOACCESS, &before) ? 0 : -1;
}

static inline int munmap(void *at, size_t size)
{
    (void)size;
    return VirtualFree(at, 0, MEM_RELEASE) ? 0 : -1;
}
#endif
