/* Signals; see signals.h. */
#include "signals.h"

#include <unistd.h>

void signals_interrupted(int number)
{
    if (isatty(STDERR_FILENO))
        (void)!write(STDERR_FILENO, "\n", 1);
    _exit(128 + number);
}

volatile sig_atomic_t signals_caught;

static void stop(int number) { signals_caught = number; }

void signals_catch(struct sigaction before[2])
{
    const struct sigaction action = {.sa_handler = stop, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, &before[0]);
    sigaction(SIGTERM, &action, &before[1]);
}

void signals_release(const struct sigaction before[2])
{
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
}
