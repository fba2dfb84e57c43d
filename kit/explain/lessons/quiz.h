/* A quiz on the weights of a trace. */
#ifndef KIT_EXPLAIN_QUIZ_H
#define KIT_EXPLAIN_QUIZ_H

#include "../trace.h"

/* Question number `index` (from 0) hides one visible cell of the weights. The same seed asks the
 * same questions, and none twice before all have been asked. KIT_USAGE if the trace has no cell
 * that can be asked for. */
#define QUIZ_TOLERANCE 0.01
typedef struct quiz_question {
    size_t step;               /* index of the weights in the trace */
    int64_t head, row, column; /* the hidden cell */
    double answer;
    char question[512];  /* each is one line; the caller wraps it */
    char row_text[1024]; /* the title of the weights, and the row's scores */
    char hint[1024];     /* the equation with its operands */
} quiz_question;
int quiz_ask(quiz_question *q, const trace *t, uint64_t seed, int index, kit_error *err);
bool quiz_is_right(const quiz_question *q, double answer);

uint64_t quiz_mix(uint64_t x); /* bits that look random, the same on every machine */

#endif
