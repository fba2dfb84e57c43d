/* Writes a page as large as a model's, for the tests of the page, in the way of a model's recipe:
 * linked steps of every layer, with weights computed in one step (TRACE_ATTEND) from queries and
 * keys.
 *
 *   large_page WORDS LAYERS HEADS SIZE KV_HEADS CAUSAL
 *
 * writes page.html and, of the last layer, q.npy, k.npy, v.npy and weights.npy into the working
 * folder, and prints the seconds that the page took to stdout. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "explain/recipe.h"
#include "explain/render/render.h"

typedef struct sizes {
    int64_t T, L, H, D, Hk;
    bool causal;
} sizes;

/* Queries, keys, values, their lengths; weights, context. */
static void add_layer(recipe *r, const sizes *s, int64_t layer, attn_rng *rng)
{
    static const char *const vectors[] = {"queries", "keys", "values"};
    char name[3][64], weights[64], title[64], other[64];
    kit_array a[3];
    snprintf(title, sizeof title, "Layer %" PRId64, layer);
    r->section = title;
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "layer_%" PRId64 "_%s", layer, vectors[i]);
        a[i] = recipe_step(r, name[i], TRACE_VALUES, ATTN_F32, SHAPE(i ? s->Hk : s->H, s->T, s->D));
        attn_rng_randn(rng, a[i].data, (size_t)kit_array_count(&a[i]));
        recipe_describe(r, vectors[i], "", "%s", "");
        recipe_word_rows(r);
        recipe_set_layer_step(r, layer, -1);
    }
    /* A head that attends to the previous word, and one that attends to the first word. */
    const double scale = 1 / sqrt((double)s->D);
    recipe_attention at = {recipe_view(a[0]), recipe_view(a[1]),
                           recipe_view(a[2]), scale,
                           s->causal,         NULL};
    snprintf(weights, sizeof weights, "layer_%" PRId64 "_weights", layer);
    kit_array w = recipe_step(r, weights, TRACE_WEIGHTS, ATTN_F32, SHAPE(s->H, s->T, s->T));
    recipe_scores(r, &at, ATTN_STAGE_WEIGHTS, recipe_view(w));
    recipe_describe(r, "Each head's weights", "softmax(Q·Kᵀ/√d)", "Row asks, column answers.");
    recipe_set_provenance(r, TRACE_ATTEND, name[0], name[1], scale);
    if (s->causal)
        recipe_causal(r, 0);
    recipe_word_rows(r);
    recipe_word_columns(r);
    recipe_set_layer_step(r, layer, -1);

    snprintf(other, sizeof other, "layer_%" PRId64 "_context", layer);
    kit_array z = recipe_step(r, other, TRACE_VALUES, ATTN_F32, SHAPE(s->H, s->T, s->D));
    recipe_context(r, &at, recipe_view(z));
    recipe_describe(r, "Mix the values by the weights", "Z = A·V", "%s", "");
    recipe_set_provenance(r, TRACE_MIX, weights, name[2], 0);
    recipe_word_rows(r);
    recipe_set_layer_step(r, layer, -1);

    snprintf(other, sizeof other, "layer_%" PRId64 "_value_norms", layer);
    kit_array n = recipe_step(r, other, TRACE_VALUES, ATTN_F32, SHAPE(s->H, s->T));
    for (int64_t i = 0; i < s->H * s->T; i++) /* any lengths are possible */
        ((float *)n.data)[i] = 1 + (float)(i % 7);
    recipe_describe(r, "How long each value is behind W_O", "‖v·W_O‖", "%s", "");
    recipe_set_provenance(r, TRACE_NORM, name[2], NULL, 0);
    recipe_word_columns(r);
    recipe_small(r);
    recipe_set_layer_step(r, layer, -1);
}

static void save(const trace *t, int64_t layer, const char *step, const char *path)
{
    char name[96];
    kit_error err = {0};
    kit_output *out = NULL;
    snprintf(name, sizeof name, "layer_%" PRId64 "_%s", layer, step);
    if (kit_output_open(&out, path, &err) ||
        kit_npy_write(out, &trace_find(t, name)->tensor, &err) || kit_output_commit(out, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static char *make_text(int64_t words)
{
    char *text = malloc((size_t)words * 16 + 1), *end = text;
    for (int64_t i = 0; i < words; i++)
        end += sprintf(end, "%sword%" PRId64, i ? " " : "", i % 97);
    return text;
}

int main(int argc, char **argv)
{
    int64_t n[6];
    for (int i = 0; i < 6; i++)
        n[i] = argc == 7 ? strtoll(argv[i + 1], NULL, 10) : 0;
    const sizes s = {n[0], n[1], n[2], n[3], n[4], n[5] != 0};
    if (s.T < 1 || s.L < 1 || s.H < 1 || s.D < 1 || s.Hk < 1)
        return 2;
    trace t;
    kit_error err = {0};
    char *text = make_text(s.T);
    static attn_rng rng;
    attn_rng_seed(&rng, 1);
    recipe r = recipe_begin(&t, NULL, &err, NULL, "synthetic model", text);
    t.heads = s.H;
    t.query = 1;
    for (int64_t l = 1; l <= s.L; l++)
        add_layer(&r, &s, l, &rng);
    char *bytes = NULL;
    size_t size = 0;
    const double start = seconds();
    if (recipe_end(&r) || render_html(&bytes, &size, &t, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("%.3f\n", seconds() - start);
    FILE *f = fopen("page.html", "wb");
    if (!f || fwrite(bytes, 1, size, f) != size || fclose(f))
        return 1;
    save(&t, s.L, "queries", "q.npy");
    save(&t, s.L, "keys", "k.npy");
    save(&t, s.L, "values", "v.npy");
    save(&t, s.L, "weights", "weights.npy");
    free(bytes);
    free(text);
    trace_free(&t);
    return 0;
}
