/* The lessons: five notebooks on attention that the program runs and checks. One row each; a recipe
 * makes the steps. Also the choice of the row that a trace writes out. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lessons.h"

const explain_lesson explain_lessons[] = {
    {"dessert", "Scaled Dot Product Attention",
     "\"Life is short, eat dessert last\": one query by hand, then three heads", lesson_dessert,
     NULL},
    {"sky", "Self Attention - Basics",
     "\"sky is blue\": three words of two numbers; every matrix can be read", lesson_sky,
     lesson_sky_gradients},
    {"module", "Multi-head attention as a module",
     "lookups you can foresee; then the module that the notebook never ran", lesson_module, NULL},
    {"numpy", "Self-attention in NumPy", "why scores are divided by sqrt(d_k), and the causal mask",
     lesson_numpy, NULL},
    {"journey", "Chapter 3: Attention Mechanisms",
     "\"Your journey starts with one step\": from dot products to a module", lesson_journey, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

const explain_lesson *lesson_find(const char *name)
{
    for (const explain_lesson *l = explain_lessons; l->name != NULL; l++) {
        if (strcmp(l->name, name) == 0) {
            return l;
        }
    }
    return NULL;
}

/* How many rows a query can be chosen from: the words, or the tallest matrix of weights. */
static int64_t query_rows(const trace *t)
{
    int64_t rows = (int64_t)t->words.count;
    for (size_t i = 0; t->words.count == 0 && i < t->count; i++) {
        const kit_array *a = &t->step[i].tensor;
        if (t->step[i].kind == TRACE_WEIGHTS && a->rank >= 2 && a->shape[a->rank - 2] > rows) {
            rows = a->shape[a->rank - 2];
        }
    }
    return rows;
}

static int refuse_query(const trace *t, const char *query, int64_t rows, kit_error *err)
{
    if (t->words.count == 0) {
        return kit_fail(err, KIT_USAGE, "--query %s: must be a row from 1 to %lld", query,
                        (long long)rows);
    }
    char words[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < t->words.count; i++) {
        size_t length = strlen(t->words.word[i]);
        if (used + length + 6 > sizeof words) {
            strcpy(words + used, " ...");
            break;
        }
        used += (size_t)snprintf(words + used, sizeof words - used, " %s", t->words.word[i]);
    }
    return kit_fail(err, KIT_USAGE, "--query %s: not a word of the sentence; words:%s", query,
                    words);
}

int trace_set_query(trace *t, const char *query, kit_error *err)
{
    int64_t rows = query_rows(t);
    if (query == NULL) {
        t->query = rows > 1 ? 1 : rows - 1;
        return KIT_OK;
    }
    for (size_t i = 0; i < t->words.count; i++) {
        if (strcmp(t->words.word[i], query) == 0) {
            t->query = (int64_t)i;
            return KIT_OK;
        }
    }
    char *end = NULL;
    long position = strtol(query, &end, 10);
    if (*query == '\0' || *end != '\0' || position < 1 || position > rows) {
        return refuse_query(t, query, rows, err);
    }
    t->query = position - 1;
    return KIT_OK;
}
