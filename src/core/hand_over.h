#ifndef ATTNI_HAND_OVER_H
#define ATTNI_HAND_OVER_H

/* Called wherever one thread's work is passed to another. Does nothing, except in a test build of
 * the library: there tests/delays.c waits for random times, so that rare interleavings become
 * common. In a header of its own, so that both builds compile all other files alike: a compiler
 * cache then has the objects of the second build. */
#ifdef ATTNI_DELAYS
void attni_hand_over(void);
#else
static inline void attni_hand_over(void) {}
#endif

#endif
