/* attn explain --find: scores every head of a model. */
#ifndef CLI_EXPLAIN_FIND_H
#define CLI_EXPLAIN_FIND_H

#include "options.h"

/* Refuses options that --find and --sentences exclude or need. */
int explain_find_check(const options *o, kit_error *err);
/* Prints the scores. text: NULL if the sentences are in a file. */
int explain_find(const options *o, const char *text, kit_error *err);

#endif
