/* What stdout and stderr can show. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>

typedef enum terminal_color { TERMINAL_PLAIN, TERMINAL_256, TERMINAL_TRUECOLOR } terminal_color;

/* when: 0 auto, 1 always, 2 never, in the order of --color's choices in options.def. */
terminal_color terminal_find_color(int when);
int terminal_find_width(void);  /* columns of the terminal, else COLUMNS, else 80 */
int terminal_find_height(void); /* lines of the terminal; 0: stdout is none */
bool terminal_is_utf8(void);    /* by the locale that main has set */

/* Prints text on stdout, wrapped between words: the first line from column `at` on, later lines
 * from `indent` on. */
void terminal_wrap(int width, const char *text, int at, int indent);

/* Prints one line on stderr that replaces the previous one, only if stderr is a terminal and the
 * program has run for a second. NULL erases the line. */
void terminal_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

double seconds_now(void); /* monotonic clock */

#endif
