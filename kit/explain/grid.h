/* A step's tensor as heads x rows x columns, whatever its rank: missing dimensions are 1. In scores
 * and weights, rows are queries and columns are keys. */
#ifndef KIT_EXPLAIN_GRID_H
#define KIT_EXPLAIN_GRID_H

#include "trace.h"

typedef struct grid {
    const trace_step *step;
    int64_t heads, rows, columns;
    const trace_step *scores; /* for weights: their scores, if of the same shape; or NULL */
} grid;
grid grid_of(const trace *t, const trace_step *s);
double grid_at(const grid *g, int64_t head, int64_t row, int64_t column);

/* Returns the row of the trace's query in this step: its own row, or the only one; -1 if there is
 * none. */
int64_t grid_query(const grid *g, const trace *t);

/* Whether the key is hidden from the row: its score is -inf. */
bool grid_masked(const grid *weights, int64_t head, int64_t row, int64_t column);

typedef struct row_health {
    int64_t visible;       /* number of keys */
    double bits, possible; /* entropy, and its maximum for the visible keys */
    double largest;        /* largest weight */
} row_health;
row_health grid_health(const grid *weights, int64_t head, int64_t row);

#endif
