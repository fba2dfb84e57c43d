/* Finds out what stdout and stderr can show, from the usual environment variables: no-color.org,
 * bixense.com/clicolors, and COLORTERM as terminals set it. */
#include "terminal.h"

#include <langinfo.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "../kit/kit.h"
#include "value.h"

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static bool is_forced(const char *name) { return is_set(name) && strcmp(getenv(name), "0") != 0; }

static bool wants_color(int when)
{
    const char *term = getenv("TERM");
    if (when != 0)
        return when == 1;
    if (is_set("NO_COLOR"))
        return false;
    if (is_forced("FORCE_COLOR") || is_forced("CLICOLOR_FORCE"))
        return true;
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

terminal_color terminal_find_color(int when)
{
    const char *depth = getenv("COLORTERM");
    if (!wants_color(when))
        return TERMINAL_PLAIN;
    if (depth && (strcmp(depth, "truecolor") == 0 || strcmp(depth, "24bit") == 0))
        return TERMINAL_TRUECOLOR;
    return TERMINAL_256;
}

int terminal_find_width(void)
{
    enum { NARROWEST = 20, WIDEST = 1000 }; /* outside these it is not a screen */
    struct winsize size;
    int64_t columns = 0;
    const char *given = getenv("COLUMNS");
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        columns = size.ws_col;
    else if (!given || !value_integer(given, &columns) || columns <= 0)
        columns = 80;
    return columns < NARROWEST ? NARROWEST : columns > WIDEST ? WIDEST : (int)columns;
}

int terminal_find_height(void)
{
    struct winsize size;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;
}

bool terminal_is_utf8(void) { return strcmp(nl_langinfo(CODESET), "UTF-8") == 0; }

void terminal_wrap(int width, const char *text, int at, int indent)
{
    for (bool first = true; *text; first = false) {
        char word[256];
        size_t length = strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        int columns = length < sizeof word ? kit_text_width(word) : (int)length;
        if (!first && at + 1 + columns > width) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (!first) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)length, text);
        at += columns;
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void terminal_progress(const char *format, ...)
{
    static double start;
    static bool shown;
    va_list list;
    if (start == 0)
        start = seconds_now();
    if (format ? !isatty(STDERR_FILENO) || seconds_now() - start < 1 : !shown)
        return;
    fputs("\r\033[K", stderr);
    shown = format != NULL;
    if (format) {
        va_start(list, format);
        vfprintf(stderr, format, list);
        va_end(list);
    }
    fflush(stderr);
}
