/* Signals that end the case which runs. See check_signals.h. */
#include "check_signals.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

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
 * the case's own cannot abandon it. This function neither allocates nor locks, because the thread
 * may have crashed inside malloc. */
static void end_process(int number, const check_case *c)
{
    char line[700], digit[2] = "";
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
    bool own_thread;
    check_case *c = check_running(&own_thread);
    if (!own_thread)
        end_process(number, c);
    check_abandon(c, name_of(number));
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
