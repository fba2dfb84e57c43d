/* Numbers of 16 bits, rounded without the code under test. */
#ifndef CHECK_HALVES_H
#define CHECK_HALVES_H

#include <stdint.h>

/* The bits of the binary16 or bfloat16 number nearest to x. */
uint16_t check_to_f16(double x);
uint16_t check_to_bf16(double x);

#endif
