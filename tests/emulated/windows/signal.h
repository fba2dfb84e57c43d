/* Windows has signal() alone. The harness only asks that a crash ends a case; here it ends the
 * program, which is a failure too. */
#ifndef ATTN_TEST_SIGNAL_H
#define ATTN_TEST_SIGNAL_H
#include_next <signal.h>

#define SIGBUS 7
#define SIGSYS 31
#define SIGTRAP 5
#define SA_NODEFER 0x40000000
#define SA_RESETHAND 0x80000000u

struct sigaction {
    void (*sa_handler)(int);
    unsigned sa_flags;
};

static inline int sigaction(int number, const struct sigaction *new_one, struct sigaction *before)
{
    (void)number, (void)new_one;
    if (before)
        before->sa_handler = SIG_DFL;
    return 0;
}

#define sigjmp_buf jmp_buf
#define sigsetjmp(where, mask) setjmp(where)
#define siglongjmp longjmp
#endif
