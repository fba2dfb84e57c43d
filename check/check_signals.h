/* Cases that end after a signal instead of ending the program. */
#ifndef CHECK_SIGNALS_H
#define CHECK_SIGNALS_H

#include "check_case.h"

/* Between check_signals_catch and check_signals_restore, a signal for a memory access or an illegal
 * instruction fails only the case that is running. Returns NULL if it is out of memory; the signal
 * handlers are then unchanged. */
struct check_signals *check_signals_catch(void);
void check_signals_restore(struct check_signals *signals);

#endif
