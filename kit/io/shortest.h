/* A float as the shortest text that reads back as the same float. */
#ifndef KIT_IO_SHORTEST_H
#define KIT_IO_SHORTEST_H

#include <stdbool.h>

enum { SHORTEST_BYTES = 24, SHORTEST_LEAST = 6 /* digits */ };

/* Writes what "%.*g" gives with the fewest digits, from 6 to 9, that strtof() reads as x again.
 * Returns false, and writes nothing, for the few floats that need exact arithmetic to decide. */
bool shortest_float(char out[SHORTEST_BYTES], float x);

#endif
