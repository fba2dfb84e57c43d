/* Judges the health of the weights in a step. If the softmax of a row gives almost all weight to
 * one key, the row cannot learn, because its gradient a(1-a) vanishes. If it gives the same weight
 * to all keys, the row is an average. The size of the scores causes both, so the advice is to
 * change it. */
#include <math.h>

#include "grid.h"
#include "recipe.h"

#define SATURATED 0.99 /* largest weight of a row */
#define FLAT 0.985     /* entropy divided by its maximum for the visible keys */

typedef struct health {
    int64_t rows, judged, saturated, flat;  /* rows with one visible key cannot be judged */
    double least_bits, most_bits, possible; /* over the judged rows */
    double slope;                           /* largest a(1-a) of a saturated row */
} health;

/* The slope a(1-a) of a row's largest weight, which is the largest of the row if a > 1/2. 1-a is
 * computed as the sum of the other weights: a float near 1 cannot store how far it is from 1. */
static double slope_of(const grid *g, int64_t head, int64_t row, double largest)
{
    double others = 0;
    for (int64_t j = 0; j < g->columns; j++) {
        double w = grid_at(g, head, row, j);
        others += w < largest ? w : 0;
    }
    return largest * others;
}

static health judge(const trace *t, const trace_step *weights)
{
    health h = {0};
    grid g = grid_of(t, weights);
    for (int64_t i = 0; i < g.heads * g.rows; i++) {
        int64_t head = i / g.rows, row = i % g.rows;
        row_health one = grid_health(&g, head, row);
        h.rows++;
        if (one.visible < 2) {
            continue;
        }
        h.saturated += one.largest > SATURATED;
        h.flat += one.bits > FLAT * one.possible;
        h.least_bits = h.judged == 0 ? one.bits : fmin(h.least_bits, one.bits);
        h.most_bits = fmax(h.most_bits, one.bits);
        h.possible = fmax(h.possible, one.possible);
        h.judged++;
        if (one.largest > SATURATED) {
            h.slope = fmax(h.slope, slope_of(&g, head, row, one.largest));
        }
    }
    return h;
}

/* Rows that are saturated or flat, but too few for advice. */
static void say_fine(recipe *r, const char *name, const health *h)
{
    char saturated[128] = "", flat[128] = "";
    if (h->saturated > 0) {
        snprintf(saturated, sizeof saturated,
                 " In %lld of %lld rows one key takes more than %g of the weight (saturated).",
                 (long long)h->saturated, (long long)h->rows, SATURATED);
    }
    if (h->flat > 0) {
        snprintf(flat, sizeof flat,
                 " In %lld of %lld rows the weight is spread almost evenly (flat).",
                 (long long)h->flat, (long long)h->rows);
    }
    recipe_note(r, "health", "%s: %s.%s%s Entropy from %.2f to %.2f of at most %.2f bits.", name,
                h->saturated + h->flat > 0 ? "mostly fine" : "fine", saturated, flat, h->least_bits,
                h->most_bits, h->possible);
}

void recipe_health(recipe *r, const char *name, const recipe_advice *advice)
{
    const trace_step *weights = r->status == KIT_OK ? trace_find(r->trace, name) : NULL;
    health h = weights != NULL ? judge(r->trace, weights) : (health){0};
    if (h.judged == 0) {
        return;
    }
    char rows[64];
    bool saturated = 3 * h.saturated >= h.judged, flat = !saturated && 3 * h.flat >= h.judged;
    int64_t off = saturated ? h.saturated : h.flat;
    snprintf(rows, sizeof rows, h.rows == 1 ? "its one row" : "%lld of %lld rows", (long long)off,
             (long long)h.rows);
    if (saturated) {
        recipe_note(r, "health",
                    "%s: saturated. In %s one key takes more than %g of the weight. If a score "
                    "there changes a little, its weight changes by at most %.2g times as much (the "
                    "slope of softmax, a(1−a)): such rows hardly learn.",
                    name, rows, SATURATED, h.slope);
    } else if (flat) {
        recipe_note(
            r, "health",
            "%s: flat. The weight is spread almost evenly in %s (entropy up to %.3f of %.3f "
            "bits): the context is close to an average of the values.",
            name, rows, h.most_bits, h.possible);
    } else {
        say_fine(r, name, &h);
        return;
    }
    const char *cause = saturated ? advice->saturated_cause : advice->flat_cause;
    const char *repair = saturated ? advice->saturated_repair : advice->flat_repair;
    if (cause != NULL) {
        recipe_note(r, "cause", "%s", cause);
    }
    if (repair != NULL) {
        recipe_note(r, "try", "%s", repair);
    }
}
