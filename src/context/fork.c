/* Which process is this? A context and its threads must know whether they are in the child of a
 * fork(). getpid() would tell, but it is a system call, which took a quarter of a call of attention
 * over six words. So a handler of pthread_atfork counts instead.
 *
 * A child that the bare system call makes is not counted. POSIX allows such a child only
 * functions that are safe in a signal handler, and the library has none.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "../core/internal.h"

#ifdef _WIN32 /* which has no fork() */
bool attni_process_watch(void) { return true; }
int attni_process(void) { return 1; }
#else
static atomic_int process = 1;
static bool watched;

static void in_child(void) { atomic_fetch_add_explicit(&process, 1, memory_order_relaxed); }
static void watch(void) { watched = pthread_atfork(NULL, NULL, in_child) == 0; }

bool attni_process_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
    return watched;
}

int attni_process(void) { return atomic_load_explicit(&process, memory_order_relaxed); }
#endif
