/* Words and numbers as people type them: strict parsing, ranges, the nearest of a list. */
#ifndef CLI_VALUE_H
#define CLI_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The whole string is the number, in decimal; false otherwise or where it does not fit. Unsigned
 * ones may be hexadecimal with 0x, as seeds are printed. Reals are finite. */
bool value_integer(const char *text, int64_t *out);
bool value_unsigned(const char *text, uint64_t *out);
bool value_real(const char *text, double *out);

/* "1..64" and "[0,1)". */
bool value_in_integers(int64_t x, const char *range);
bool value_in_reals(double x, const char *range);

/* Comma-separated integers into out; the number of them, or -1 if one is not, or more than max. */
int value_list(const char *text, int64_t *out, int max);

/* Word n of "a|b|c": its length, 0 past the end; *word points into the text. */
size_t value_word(const char *words, int n, const char **word);
/* Index of text among the words, -1 if none. */
int value_find(const char *words, const char *text);
/* Puts "a, b or c" into buffer. */
void value_join(char *buffer, size_t size, const char *words);

/* The word nearest to text in letters inserted, left out, replaced or swapped; NULL if none is near
 * enough to have been meant. */
const char *value_nearest(const char *text, const char *const *words, size_t count);
/* Puts "; did you mean 'x'?" or nothing into buffer. Returns buffer. */
const char *value_hint(char *buffer, size_t size, const char *text, const char *const *words,
                       size_t count);

#endif
