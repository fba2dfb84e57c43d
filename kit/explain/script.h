/* The script of a lesson: the words around its numbers, read from kit/explain/lessons/NAME.lesson.
 * docs/LESSONS.md describes the format. */
#ifndef KIT_EXPLAIN_SCRIPT_H
#define KIT_EXPLAIN_SCRIPT_H

#include "trace.h"

/* The texts of a part. A text may be NULL. Prose is one line for each paragraph or list item, code
 * has its own lines. */
typedef enum script_text {
    SCRIPT_TITLE,
    SCRIPT_FORMULA,
    SCRIPT_IDEA,
    SCRIPT_PREDICT,
    SCRIPT_CHOICES, /* answers to choose from, one on each line; the first is right */
    SCRIPT_ANSWER,
    SCRIPT_MEANING,
    SCRIPT_SLIP,
    SCRIPT_EXERCISE,
    SCRIPT_SOLUTION,
    SCRIPT_NOTEBOOK, /* from here on: code */
    SCRIPT_NUMPY,
    SCRIPT_TORCH,
    SCRIPT_C, /* cut from the program in examples/lessons/ */
    SCRIPT_TEXTS
} script_text;

typedef struct script_part {
    char *name;    /* of a step of the trace, or "@..." for a part without numbers; behind the
                      text of "@trained" come the trained heads, trace.more */
    char *section; /* heading above the part, or NULL */
    int64_t step;  /* index into trace.step; -1: no numbers */
    bool also;     /* shown on the screen of the part before */
    bool optional; /* left out if the trace does not have the step */
    bool left_out; /* to be removed: for script_apply */
    char *when;    /* left out unless the trace has this fact, or "not " and a fact; or NULL */
    int line;      /* of the script, for messages */
    char *text[SCRIPT_TEXTS];
    char *label[SCRIPT_TEXTS]; /* of code: the notebook's cell, or the variable with the result */
} script_part;

typedef struct script_list { /* lines, owned */
    char **line;
    size_t count;
} script_list;

typedef struct script {
    const char *name; /* "sky", for messages */
    char *title, *summary, *time, *need;
    script_list learn, question, answer;
    /* For each question its SCRIPT_CHOICES, and the name of the part that answers it; or NULL. */
    script_list choices, see;
    script_list term; /* of the glossary: "score: the dot product of ..." */
    script_part *part;
    size_t count;
} script;

void script_free(script *s);
void script_free_part(script_part *part);

/* The screens that a reader sees one at a time: a part and those with `also` behind it. Returns the
 * index of the part behind the screen that begins with part `from`. */
size_t script_screen_end(const script *s, size_t from);

#endif
