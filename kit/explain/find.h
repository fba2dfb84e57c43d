/* attn explain --find: how much weight each head of a model gives to tokens of one kind, such as
 * the token before, over one or more texts. */
#ifndef KIT_FIND_H
#define KIT_FIND_H

#include "../model/model.h"

/* The targets of a token, among the tokens that it sees. */
typedef enum find_kind {
    FIND_PREVIOUS,  /* the token before it */
    FIND_NEXT,      /* the token after it */
    FIND_SAME,      /* other tokens with its id */
    FIND_INDUCTION, /* tokens that follow another token with its id */
    FIND_SEPARATOR, /* tokens that the template puts behind or between texts, and a decoder's end
                     * tokens */
    FIND_FIRST,     /* the first token; for every token but the first */
    FIND_SELF,      /* itself */
    FIND_KINDS
} find_kind;

/* Words for a kind: "a token gives to `targets`", "the tokens that `have`". */
typedef struct find_words {
    const char *targets, *have;
} find_words;
const find_words *find_words_of(find_kind kind);

typedef struct find_head {
    int64_t layer, head; /* from 1 */
    double score;        /* mean over the queries: sum of the weights that a query gives to its
                          * targets */
} find_head;

/* Use: find_begin, find_add for each text, find_run until all texts are done, find_rank. */
typedef struct find {
    int64_t texts, tokens; /* added */
    int64_t queries;       /* tokens that have a target; known after the first find_run */
    int64_t done;          /* texts that the model has read */
    int64_t layers, heads;
    double *equal;   /* [layers]: score of equal attention, 1/n to each of the n tokens that a query
                      * sees, where windows may differ */
    find_head *head; /* [layers * heads]: highest score first */
    struct finding *inner;
} find;

int find_begin(find *f, const model *m, find_kind kind, kit_error *err);
/* Adds a text, and a second one that is read with it (NULL: none). KIT_USAGE: the model cannot take
 * it. KIT_LIMIT: the weights of one layer would have more than FIND_MOST numbers. */
#define FIND_MOST ((int64_t)1 << 28)
int find_add(find *f, const char *text, const char *pair, kit_error *err);
/* Lets the model read the next text. KIT_USAGE: no token of all the texts has a target. */
int find_run(find *f, kit_error *err);
/* Computes scores and sorts the heads. KIT_NOT_FINITE: a score is NaN or infinite. */
int find_rank(find *f, kit_error *err);
void find_end(find *f);

#endif
