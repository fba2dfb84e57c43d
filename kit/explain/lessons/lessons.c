/* The lessons: five notebooks on attention that the program runs and checks. Each has one row; a
 * recipe computes its steps. */
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
