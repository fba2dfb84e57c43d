/* Small pieces of JSON that the program writes itself, on stdout; traces have their own renderer.
 * (No name here clashes with one of jansson, which the kit uses.) */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdint.h>

void json_text(const char *text); /* quoted and escaped; bytes that are not UTF-8 become U+FFFD */
void json_number(double x);       /* shortest exact form; "inf", "-inf", "nan" as strings */
void json_shape(const int64_t *shape, int rank); /* [2,4,7,64] */

#endif
