/* Cases that end early: after a signal, or because they cannot continue. See check_case.h. */
#include "check_case.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* A case ends early with a jump to this point: after a signal, or if it cannot continue. */
static sigjmp_buf way_out;
static const char *volatile why;

static pthread_t owner;              /* the thread on whose stack way_out is */
static check_case *volatile running; /* NULL: way_out is not set */

static const char *name_of(int number)
{
    return number == SIGSEGV  ? "segmentation fault: touched memory that is not its own"
           : number == SIGBUS ? "bus error"
           : number == SIGILL ? "illegal instruction"
                              : "arithmetic exception";
}

static size_t put_text(char *line, size_t used, size_t room, const char *text)
{
    while (*text && used < room)
        line[used++] = *text++;
    return used;
}

/* Ends the process by the signal, with a line that says how to repeat the case: a thread other than
 * `owner` has no point to jump to. This function neither allocates nor locks, because the thread
 * may have crashed inside malloc. */
static void end_process(int number)
{
    char line[700], digit[2] = "";
    const check_case *c = running;
    const char *const parts[] = {"FAIL ",   c ? c->op : "between cases",
                                 " ",       c ? c->isa_name : "",
                                 " ",       c ? c->what : "",
                                 " seed=0x"};
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        used = put_text(line, used, sizeof line - 120, parts[i]);
    int bits = 60;
    while (bits > 0 && c && c->seed >> bits == 0)
        bits -= 4;
    for (; bits >= 0; bits -= 4) {
        digit[0] = "0123456789abcdef"[c ? c->seed >> bits & 15 : 0];
        used = put_text(line, used, sizeof line, digit);
    }
    used = put_text(line, used, sizeof line, ": ");
    used = put_text(line, used, sizeof line, name_of(number));
    used = put_text(line, used, sizeof line, "; not on the case's own thread, so the run ends\n");
    if (write(STDERR_FILENO, line, used) < 0)
        _exit(1);
    signal(number, SIG_DFL);
    raise(number);
}

static void on_signal(int number)
{
    if (!running || !pthread_equal(owner, pthread_self()))
        end_process(number);
    why = name_of(number);
    siglongjmp(way_out, 1);
}

void check_abandon(check_case *c, const char *reason)
{
    (void)c;
    why = reason;
    siglongjmp(way_out, 1);
}

static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
#define SIGNALS (sizeof signals / sizeof *signals)

struct check_signals {
    struct sigaction before[SIGNALS];
};

struct check_signals *check_signals_catch(void)
{
    struct check_signals *s = calloc(1, sizeof *s);
    struct sigaction catch = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
    for (size_t i = 0; s && i < SIGNALS; i++)
        sigaction(signals[i], &catch, &s->before[i]);
    return s;
}

void check_signals_restore(struct check_signals *s)
{
    for (size_t i = 0; s && i < SIGNALS; i++)
        sigaction(signals[i], &s->before[i], NULL);
    free(s);
}

const char *check_guarded(check_case *c, void (*check)(check_case *))
{
    owner = pthread_self();
    running = c;
    const char *reason = NULL;
    if (sigsetjmp(way_out, 1) == 0)
        check(c);
    else
        reason = why;
    running = NULL;
    return reason;
}
