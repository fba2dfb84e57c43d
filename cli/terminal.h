/* What the other end of stdout and stderr can show. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>

typedef enum terminal_color { TERMINAL_PLAIN, TERMINAL_256, TERMINAL_TRUECOLOR } terminal_color;

/* when: 0 auto, 1 always, 2 never, as --color's choices stand in options.def. */
terminal_color terminal_find_color(int when);
int terminal_find_width(void); /* columns: the terminal's, else COLUMNS, else 80 */
bool terminal_is_utf8(void);   /* by the locale, which main has set */

/* Prints text on stdout from column `at` on, broken between words, later lines from `indent` on. */
void terminal_wrap(int width, const char *text, int at, int indent);

/* One line on stderr that replaces the last one; nothing unless stderr is a terminal and the
 * program has run for a second. NULL wipes it away. */
void terminal_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

double seconds_now(void); /* of a clock that never steps back */

#endif
