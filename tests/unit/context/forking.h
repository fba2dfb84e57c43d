/* What the tests that fork share. */
#ifndef FORKING_H
#define FORKING_H

#include <sys/types.h>
#include <sys/wait.h>

#include "support/test.h"

enum { WATCHDOG = 10 /* seconds that a child may take */ };

/* Two limits of the sanitizers, not of ours. The thread sanitizer cannot follow new threads in the
 * child of a threaded process, and takes them for those of the parent: there, children get none.
 * The address sanitizer's allocator is not fork-safe: there, nobody allocates at the instant of a
 * fork. */
#if defined(__SANITIZE_THREAD__)
enum { THREADS_OF_CHILDREN = 0 };
#else
enum { THREADS_OF_CHILDREN = 1 << 30 };
#endif
#if defined(__SANITIZE_ADDRESS__)
enum { RUNS_BEFORE_FORK = 1 };
#else
enum { RUNS_BEFORE_FORK = 0 };
#endif

static inline void expect_child(pid_t child)
{
    int status;
    assert_number(child, >, 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        fail_msg("the child died of signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#endif
