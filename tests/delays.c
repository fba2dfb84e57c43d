/* The waits of a build with ATTNI_DELAYS: wherever the work of one thread becomes another's, three
 * times in four nothing, else a yield or a sleep of up to 200 microseconds. Rare orders of steps
 * become common so. Each thread draws its own waits. */
#include "core/hand_over.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

void attni_hand_over(void)
{
    static atomic_uint threads;
    static _Thread_local uint32_t state;
    if (state == 0)
        state = 2654435769u * (1 + atomic_fetch_add(&threads, 1));
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    if (state % 8 == 0)
        sched_yield();
    else if (state % 8 == 1)
        nanosleep(&(struct timespec){.tv_nsec = (long)(state >> 8) % 200000}, NULL);
}
