/* Signals that end the program at once, or that a long command catches to end at a good place. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <signal.h>

/* main's handler of SIGINT: ends the line on stderr, and the program. */
void signals_interrupted(int number);

/* The number of the signal that was caught; 0: none. */
extern volatile sig_atomic_t signals_caught;

/* From here on, the first SIGINT or SIGTERM sets signals_caught, and a second one ends the program.
 * signals_release() restores what was before. */
void signals_catch(struct sigaction before[2]);
void signals_release(const struct sigaction before[2]);

#endif
