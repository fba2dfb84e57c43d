/* Scores the heads of a model by the weight that they give to tokens of one kind; see find.h. The
 * weights are those that the attention call of the forward pass returns. */
#include "find.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_MOST = 8 }; /* different tokens of a template */

/* A token of a text. Texts follow each other in one array. */
typedef struct place {
    int64_t id, type;
    bool separator;
} place;

struct finding {
    const model *m;
    find_kind kind;
    place *place;
    size_t room;
    int64_t *end; /* [texts]: where each text ends in `place` */
    size_t end_room;
    int64_t longest; /* tokens of a text */
    model_run *run;
    int64_t *ids;          /* [2 * longest]: ids, then types of the text that is read */
    unsigned char *target; /* [longest * longest]: whether key j is a target of query i */
    int64_t T;             /* tokens of the text that is read */
    double *sum;           /* [layers * heads]: weight that targets got */
    double *even;          /* [layers]: weight that targets would get from equal attention */
};

const find_words *find_words_of(find_kind kind)
{
    static const find_words words[FIND_KINDS] = {
        [FIND_PREVIOUS] = {"the token before it", "have a token before them"},
        [FIND_NEXT] = {"the token after it", "see a token after them"},
        [FIND_SAME] = {"the other copies of it", "see another copy of themselves"},
        [FIND_INDUCTION] = {"the tokens that follow other copies of it",
                            "see a token behind another copy of themselves"},
        [FIND_SEPARATOR] = {"separator and end tokens", "see a separator or end token"},
        [FIND_FIRST] = {"the first token", "follow the first"},
        [FIND_SELF] = {"itself", "are there"},
    };
    return &words[kind];
}

int find_begin(find *f, const model *m, find_kind kind, kit_error *err)
{
    const model_sizes *s = model_sizes_of(m);
    const size_t heads = (size_t)(s->layers * s->heads);
    *f = (find){.layers = s->layers, .heads = s->heads};
    f->equal = calloc((size_t)s->layers, sizeof *f->equal);
    f->head = calloc(heads, sizeof *f->head);
    struct finding *in = f->inner = calloc(1, sizeof *in);
    if (in) {
        in->m = m;
        in->kind = kind;
        in->sum = calloc(heads, sizeof *in->sum);
        in->even = calloc((size_t)s->layers, sizeof *in->even);
    }
    if (!f->equal || !f->head || !in || !in->sum || !in->even)
        return kit_fail(err, KIT_LIMIT, "no memory for the scores of %zu heads", heads);
    return KIT_OK;
}

void find_end(find *f)
{
    struct finding *in = f->inner;
    if (in) {
        model_run_end(in->run);
        free(in->place);
        free(in->end);
        free(in->ids);
        free(in->target);
        free(in->sum);
        free(in->even);
    }
    free(in);
    free(f->equal);
    free(f->head);
    *f = (find){0};
}

/* ------------------------------------------------------------------------------------ Texts */

/* Makes room for `count` elements in all. */
static bool grow(void **array, size_t *room, size_t count, size_t element)
{
    if (count <= *room)
        return true;
    const size_t wanted = 2 * count + 64;
    void *grown = realloc(*array, wanted * element);
    if (grown) {
        *array = grown;
        *room = wanted;
    }
    return grown != NULL;
}

/* Collects the ids of the tokens that the template puts behind the beginning of the text. */
static int list_separators(int64_t *id, const kit_tokens *t)
{
    int count = 0;
    for (size_t i = 1; i < t->count && count < TEMPLATE_MOST; i++)
        if (t->token[i].which < 0)
            id[count++] = t->token[i].id;
    return count;
}

static bool is_separator(const model *m, const int64_t *separator, int count, int64_t id)
{
    for (int i = 0; i < count; i++)
        if (separator[i] == id)
            return true;
    return model_sizes_of(m)->causal && model_ends_with(m, id);
}

static int check_text(const struct finding *in, const kit_tokens *t, kit_error *err)
{
    const int64_t T = (int64_t)t->count, H = model_sizes_of(in->m)->heads;
    int64_t *ids = calloc(2 * t->count + 1, sizeof *ids), *types = ids ? ids + T : NULL;
    if (!ids)
        return kit_fail(err, KIT_LIMIT, "no memory for %" PRId64 " tokens", T);
    for (int64_t i = 0; i < T; i++) {
        ids[i] = t->token[i].id;
        types[i] = t->token[i].type;
    }
    int code = model_check_tokens(in->m, ids, types, T, err);
    free(ids);
    if (!code && T > FIND_MOST / H / T)
        code = kit_fail(err, KIT_LIMIT,
                        "the text has %" PRId64 " tokens; with %" PRId64
                        " heads, at most %.0f can be read at once",
                        T, H, floor(sqrt((double)(FIND_MOST / H))));
    return code;
}

static int keep_text(find *f, const kit_tokens *t, kit_error *err)
{
    struct finding *in = f->inner;
    int64_t separator[TEMPLATE_MOST];
    const int separators = list_separators(separator, t);
    if (!grow((void **)&in->place, &in->room, (size_t)f->tokens + t->count, sizeof *in->place) ||
        !grow((void **)&in->end, &in->end_room, (size_t)f->texts + 1, sizeof *in->end))
        return kit_fail(err, KIT_LIMIT, "no memory for the tokens of the texts");
    for (size_t i = 0; i < t->count; i++) {
        const int64_t id = t->token[i].id;
        in->place[f->tokens++] =
            (place){id, t->token[i].type, is_separator(in->m, separator, separators, id)};
    }
    in->end[f->texts++] = f->tokens;
    if ((int64_t)t->count > in->longest)
        in->longest = (int64_t)t->count;
    return KIT_OK;
}

int find_add(find *f, const char *text, const char *pair, kit_error *err)
{
    kit_tokens t = {0};
    int code = kit_tokenizer_encode(&t, model_tokenizer(f->inner->m), text, pair, err);
    if (!code && !(code = check_text(f->inner, &t, err)))
        code = keep_text(f, &t, err);
    kit_tokens_free(&t);
    return code;
}

/* --------------------------------------------------------------------------------- Counting */

/* Whether key j, which query i sees, is one of its targets. */
static bool is_target(find_kind kind, const place *at, int64_t i, int64_t j)
{
    switch (kind) {
    case FIND_PREVIOUS: return j == i - 1;
    case FIND_NEXT: return j == i + 1;
    case FIND_SAME: return j != i && at[j].id == at[i].id;
    case FIND_INDUCTION: return j != i && j > 0 && j - 1 != i && at[j - 1].id == at[i].id;
    case FIND_SEPARATOR: return at[j].separator;
    case FIND_FIRST: return j == 0 && i > 0;
    default: return j == i;
    }
}

/* Returns how many tokens of a text of T, from the first one on, query i sees without a window. */
static int64_t seen_by(const struct finding *in, int64_t i, int64_t T)
{
    return model_sizes_of(in->m)->causal ? i + 1 : T;
}

/* Adds the share of query i that equal attention would give to `targets`, in each layer. A window
 * hides the targets before `i - window + 1`. */
static void add_even(const find *f, const unsigned char *target, int64_t i)
{
    const struct finding *in = f->inner;
    const int64_t seen = seen_by(in, i, in->T);
    for (int64_t l = 0; l < f->layers; l++) {
        const int64_t window = model_sizes_of(in->m)->causal ? model_window(in->m, l) : 0;
        const int64_t first = window && window < seen ? seen - window : 0;
        int64_t hits = 0;
        for (int64_t j = first; j < seen; j++)
            hits += target[j];
        in->even[l] += (double)hits / (double)(seen - first);
    }
}

/* Marks the targets of each query of the text that is read, and adds what equal attention would
 * give to them. */
static void mark(const find *f, const place *at)
{
    const struct finding *in = f->inner;
    for (int64_t i = 0; i < in->T; i++) {
        unsigned char *row = in->target + i * in->T;
        const int64_t seen = seen_by(in, i, in->T);
        for (int64_t j = 0; j < in->T; j++)
            row[j] = j < seen && is_target(in->kind, at, i, j);
        add_even(f, row, i);
    }
}

/* Counts the tokens of all texts that have a target. */
static int64_t count_queries(const find *f)
{
    const struct finding *in = f->inner;
    int64_t count = 0;
    for (int64_t n = 0, begin = 0; n < f->texts; begin = in->end[n++])
        for (int64_t i = 0, T = in->end[n] - begin; i < T; i++) {
            const int64_t seen = seen_by(in, i, T);
            int64_t j = 0;
            while (j < seen && !is_target(in->kind, in->place + begin, i, j))
                j++;
            count += j < seen;
        }
    return count;
}

/* Adds the weights that targets got in a layer: [H,T,T]. */
static void add_layer(void *watcher, int64_t layer, const float *weights)
{
    const find *f = watcher;
    const struct finding *in = f->inner;
    const int64_t count = in->T * in->T;
    for (int64_t h = 0; h < f->heads; h++, weights += count) {
        double sum = 0;
        for (int64_t i = 0; i < count; i++)
            if (in->target[i])
                sum += (double)weights[i];
        in->sum[layer * f->heads + h] += sum;
    }
}

static int no_query(const find *f, kit_error *err)
{
    const struct finding *in = f->inner;
    if (in->kind == FIND_NEXT && model_sizes_of(in->m)->causal)
        return kit_fail(err, KIT_USAGE,
                        "no token of a decoder (%s) sees a token after it, so no head can attend "
                        "to one",
                        model_sizes_of(in->m)->kind);
    return kit_fail(err, KIT_USAGE, "no tokens of the text %s", find_words_of(in->kind)->have);
}

static int begin_run(find *f, kit_error *err)
{
    struct finding *in = f->inner;
    f->queries = count_queries(f);
    if (!f->queries)
        return no_query(f, err);
    in->ids = calloc(2 * (size_t)in->longest, sizeof *in->ids);
    in->target = malloc((size_t)(in->longest * in->longest));
    if (!in->ids || !in->target)
        return kit_fail(err, KIT_LIMIT, "no memory for %" PRId64 " tokens", in->longest);
    const int code = model_run_begin(&in->run, in->m, in->longest, 0, err);
    return code ? code : model_run_watch(in->run, add_layer, f, err);
}

int find_run(find *f, kit_error *err)
{
    struct finding *in = f->inner;
    int code = in->run ? KIT_OK : begin_run(f, err);
    if (code)
        return code;
    const int64_t begin = f->done ? in->end[f->done - 1] : 0;
    const place *at = in->place + begin;
    in->T = in->end[f->done] - begin;
    for (int64_t i = 0; i < in->T; i++) {
        in->ids[i] = at[i].id;
        in->ids[in->T + i] = at[i].type;
    }
    mark(f, at);
    code = model_run_tokens(in->run, in->ids, in->ids + in->T, in->T, NULL, 0, err);
    f->done += !code;
    return code;
}

/* ---------------------------------------------------------------------------------- Ranking */

static int compare(const void *a, const void *b)
{
    const find_head *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->head < y->head ? -1 : x->head > y->head;
}

int find_rank(find *f, kit_error *err)
{
    const struct finding *in = f->inner;
    const int64_t count = f->layers * f->heads;
    for (int64_t l = 0; l < f->layers; l++)
        f->equal[l] = in->even[l] / (double)f->queries;
    for (int64_t i = 0; i < count; i++) {
        find_head *h = &f->head[i];
        *h = (find_head){i / f->heads + 1, i % f->heads + 1, in->sum[i] / (double)f->queries};
        if (!isfinite(h->score))
            return kit_fail(err, KIT_NOT_FINITE,
                            "layer %" PRId64 ", head %" PRId64
                            ": the weights are not finite; the model overflows on this text",
                            h->layer, h->head);
    }
    qsort(f->head, (size_t)count, sizeof *f->head, compare);
    return KIT_OK;
}
