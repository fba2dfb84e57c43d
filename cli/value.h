/* Words and numbers as people type them: strict parsing, ranges, and the nearest word of a list. */
#ifndef CLI_VALUE_H
#define CLI_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parse the whole string as a decimal number; false if it is none or does not fit. Unsigned numbers
 * may be hexadecimal with 0x, as seeds are printed. Reals are finite. */
bool value_integer(const char *text, int64_t *out);
bool value_unsigned(const char *text, uint64_t *out);
bool value_real(const char *text, double *out);

/* Whether x is in a range such as "1..64" or "[0,1)". */
bool value_in_integers(int64_t x, const char *range);
bool value_in_reals(double x, const char *range);
/* Puts such a range in words into buffer: "1 to 64", "0 <= X < 1" or "X > 0", with `name` for X. A
 * range of reals must have a finite lower end. */
void value_range(char *buffer, size_t size, const char *range, const char *name);

/* Parses comma-separated integers into out. Returns their number, or -1 if one is invalid or there
 * are more than max. */
int value_list(const char *text, int64_t *out, int max);

/* Finds word n of "a|b|c": returns its length, 0 after the last; *word points into the text. */
size_t value_word(const char *words, int n, const char **word);
/* Returns the index of text among the words, or -1. */
int value_find(const char *words, const char *text);
/* Puts "a, b or c" into buffer. */
void value_join(char *buffer, size_t size, const char *words);

/* Returns the word nearest to text by letters inserted, left out, replaced or swapped; NULL if none
 * is near enough to be meant. */
const char *value_nearest(const char *text, const char *const *words, size_t count);
/* Puts "; did you mean 'x'?" or an empty text into buffer. Returns buffer. */
const char *value_hint(char *buffer, size_t size, const char *text, const char *const *words,
                       size_t count);

#endif
