/* Layers of a model for the page. A layer is stored as vectors, because its weights would take 150
 * MB for 512 tokens and 144 heads. Each layer also has what each head adds to its output. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "recipe_layers.h"

enum { NAME = 64, CHUNK = 64 /* tokens handled at a time */ };

/* --------------------------------------------------------------------------------- Vectors */

/* Adds the shown heads of [Hk,T,D] as a step. If all are shown, takes the array over. */
static void tell_vectors(recipe *r, const layer_heads *h, kit_array *from, const char *name,
                         const char *title, const char *formula)
{
    const model_sizes *s = model_sizes_of(h->m);
    const int64_t group = s->heads / from->shape[0], T = from->shape[1], D = from->shape[2];
    if (h->count < s->heads) {
        const size_t bytes = (size_t)(T * D) * sizeof(float);
        kit_array own = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(h->count, T, D));
        for (int64_t i = 0; i < h->count && r->status == KIT_OK; i++)
            memcpy((char *)own.data + (size_t)i * bytes,
                   (const char *)from->data + (size_t)((h->first + i) / group) * bytes, bytes);
    } else {
        recipe_add_owned(r, name, TRACE_VALUES, from);
    }
    recipe_describe(r, title, formula, "Of this layer's heads.%s",
                    group > 1 ? " Several heads share these." : "");
    recipe_word_rows(r);
}

/* A step that the page computes. */
static void tell_absent(recipe *r, const char *name, trace_kind kind, int64_t H, int64_t rows,
                        int64_t columns)
{
    kit_array none = {.dtype = ATTN_F32, .rank = 3, .shape = {H, rows, columns}};
    recipe_add_owned(r, name, kind, &none);
}

void layer_html_only(recipe *r, const layer_heads *h, model_layer *look)
{
    const model_sizes *s = model_sizes_of(h->m);
    const int64_t layer = look->layer + 1, T = look->q.shape[1], D = look->q.shape[2];
    char section[NAME], prefix[NAME], q[NAME], k[NAME], v[NAME], w[NAME], z[NAME];
    snprintf(section, sizeof section, "Layer %" PRId64, layer);
    snprintf(prefix, sizeof prefix, "layer_%" PRId64 "_", layer);
    snprintf(q, sizeof q, "layer_%" PRId64 "_queries", layer);
    snprintf(k, sizeof k, "layer_%" PRId64 "_keys", layer);
    snprintf(v, sizeof v, "layer_%" PRId64 "_values", layer);
    snprintf(w, sizeof w, "layer_%" PRId64 "_weights", layer);
    snprintf(z, sizeof z, "layer_%" PRId64 "_context", layer);
    r->html_only = true;
    r->section = section;
    r->layer = layer;
    layer_effects(r, h, look, v, z, prefix); /* before look's values are taken */
    tell_vectors(r, h, &look->q, q, "Queries", "Q");
    tell_vectors(r, h, &look->k, k, "Keys", "K");
    tell_vectors(r, h, &look->v, v, "Values", "V");
    tell_absent(r, w, TRACE_WEIGHTS, h->count, T, T);
    recipe_describe(r, "Each head's weights", "softmax(Q·Kᵀ × scale)", "Row asks, column answers.");
    recipe_set_provenance(r, TRACE_ATTEND, q, k, model_scale(h->m, look->layer));
    if (s->causal)
        recipe_causal(r, model_window(h->m, look->layer));
    recipe_word_rows(r);
    recipe_word_columns(r);
    tell_absent(r, z, TRACE_VALUES, h->count, T, D);
    recipe_describe(r, "Mix the values by the weights", "Z = A·V",
                    "The values of all tokens that each sees, by weight.");
    recipe_set_provenance(r, TRACE_MIX, w, v, 0);
    recipe_word_rows(r);
    r->section = NULL;
}

/* --------------------------------------------------------------------------------- Effects */

/* Returns the columns of W_O that belong to `count` heads from `first` on, [1,count,E,D]. */
static attn_tensor part_of(const attn_tensor *w, int64_t first, int64_t count, int64_t D)
{
    attn_tensor part = *w;
    part.data = (float *)w->data + first * D * w->stride[3];
    part.shape[1] = count;
    part.stride[1] = D * w->stride[3];
    part.shape[3] = D;
    return part;
}

static double length_of(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

static void tell_norms(recipe *r, const layer_heads *h, const model_layer *look,
                       const attn_tensor *projection, const char *name, const char *values)
{
    const model_sizes *s = model_sizes_of(h->m);
    const int64_t T = look->v.shape[1], D = s->head_size, E = s->embed;
    const int64_t group = s->heads / s->kv_heads;
    kit_array moved = {0};
    kit_array norms = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(h->count, T));
    if (r->status == KIT_OK)
        r->status = kit_array_new(&moved, ATTN_F32, 2, (const int64_t[]){T, E}, r->err);
    for (int64_t i = 0; i < h->count && r->status == KIT_OK; i++) {
        const int64_t head = h->first + i;
        recipe_linear(r, attn_matrix((float *)look->v.data + head / group * T * D, ATTN_F32, T, D),
                      part_of(projection, head, 1, D), NULL, recipe_view(moved));
        for (int64_t j = 0; j < T && r->status == KIT_OK; j++)
            ((float *)norms.data)[i * T + j] =
                (float)length_of((const float *)moved.data + j * E, E);
    }
    kit_array_free(&moved);
    recipe_describe(
        r, "How long each value is behind W_O", "‖v·W_O‖",
        "A row is a head, a column the token whose value it is: what a full weight would "
        "add to the layer's output.");
    recipe_set_provenance(r, TRACE_NORM, values, NULL, 0);
    recipe_word_columns(r);
    recipe_small(r);
}

/* Computes what is added to the outputs of n tokens from `first` on, in parts [n,heads + 1,E]: by
 * each shown head, then by the other heads and the bias together. rest: context, zero in the shown
 * heads. */
static void add_up(recipe *r, const layer_heads *h, kit_array *context, kit_array *rest,
                   kit_array *parts, int64_t first, int64_t n, const attn_tensor *weight,
                   const attn_tensor *bias)
{
    const model_sizes *s = model_sizes_of(h->m);
    const int64_t D = s->head_size, W = s->heads * D, E = s->embed, M = h->count + 1;
    attn_tensor x =
        attn_bthd((float *)context->data + first * W + h->first * D, ATTN_F32, 1, n, h->count, D);
    x.stride[2] = W;
    x.stride[0] = W * n;
    attn_tensor to = attn_bthd(parts->data, ATTN_F32, 1, n, h->count, E);
    to.stride[2] = M * E;
    to.stride[0] = M * E * n;
    recipe_linear(r, x, part_of(weight, h->first, h->count, D), NULL, to);
    to = attn_bthd((float *)parts->data + h->count * E, ATTN_F32, 1, n, 1, E);
    to.stride[2] = M * E;
    to.stride[0] = M * E * n;
    recipe_linear(r, attn_matrix((float *)rest->data + first * W, ATTN_F32, n, W), *weight,
                  bias->data ? bias : NULL, to);
}

/* Packs the lower triangles of n squares [M,M]. */
static void pack(float *to, const float *square, int64_t n, int64_t M)
{
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j <= i; j++)
                *to++ = square[(t * M + i) * M + j];
}

static void multiply(recipe *r, const layer_heads *h, const model_layer *look, kit_array *products,
                     const attn_tensor *weight, const attn_tensor *bias)
{
    const model_sizes *s = model_sizes_of(h->m);
    const int64_t T = look->context.shape[0], W = look->context.shape[1], M = h->count + 1;
    const int64_t D = s->head_size, P = M * (M + 1) / 2;
    kit_array rest = {0}, parts = {0}, square = {0}, context = look->context;
    const int64_t shape[3] = {CHUNK, M, s->embed}, squares[3] = {CHUNK, M, M};
    if (r->status == KIT_OK &&
        !(r->status = kit_array_new(&rest, ATTN_F32, 2, (const int64_t[]){T, W}, r->err)) &&
        !(r->status = kit_array_new(&parts, ATTN_F32, 3, shape, r->err)))
        r->status = kit_array_new(&square, ATTN_F32, 3, squares, r->err);
    for (int64_t t = 0; t < T && r->status == KIT_OK; t++) {
        float *row = (float *)rest.data + t * W;
        memcpy(row, (const float *)context.data + t * W, (size_t)W * sizeof(float));
        memset(row + h->first * D, 0, (size_t)(h->count * D) * sizeof(float));
    }
    for (int64_t t = 0; t < T && r->status == KIT_OK; t += CHUNK) {
        const int64_t n = T - t < CHUNK ? T - t : CHUNK;
        add_up(r, h, &context, &rest, &parts, t, n, weight, bias);
        const attn_tensor c = attn_bhtd(parts.data, ATTN_F32, n, 1, M, s->embed);
        attn_tensor any = c;
        any.shape[3] = 1;
        const recipe_attention a = {c, c, any, 1, false, NULL};
        recipe_scores(r, &a, ATTN_STAGE_RAW, attn_bhtd(square.data, ATTN_F32, n, 1, M, M));
        if (r->status == KIT_OK)
            pack((float *)products->data + t * P, square.data, n, M);
    }
    kit_array_free(&rest);
    kit_array_free(&parts);
    kit_array_free(&square);
}

static void label_products(recipe *r, const layer_heads *h)
{
    enum { MOST = 48 }; /* heads; more pairs are unreadable */
    char text[(MOST + 1) * (MOST + 2) / 2][12];
    const char *label[(MOST + 1) * (MOST + 2) / 2];
    const int64_t M = h->count + 1;
    size_t at = 0;
    if (h->count > MOST)
        return;
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j <= i; j++, at++) {
            char one[2][5];
            snprintf(one[0], sizeof one[0], i < h->count ? "%d" : "rest", (int)(h->first + i + 1));
            snprintf(one[1], sizeof one[1], j < h->count ? "%d" : "rest", (int)(h->first + j + 1));
            snprintf(text[at], sizeof text[at], "%s·%s", one[0], one[1]);
            label[at] = text[at];
        }
    recipe_columns(r, label, at);
}

void layer_effects(recipe *r, const layer_heads *h, const model_layer *look, const char *values,
                   const char *context, const char *prefix)
{
    char name[NAME];
    attn_tensor weight, bias;
    const int64_t T = look->context.shape[0], M = h->count + 1;
    model_output_projection(h->m, look->layer, &weight, &bias);
    snprintf(name, sizeof name, "%svalue_norms", prefix);
    tell_norms(r, h, look, &weight, name, values);
    snprintf(name, sizeof name, "%shead_products", prefix);
    kit_array products = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(T, M * (M + 1) / 2));
    multiply(r, h, look, &products, &weight, &bias);
    recipe_describe(r, "What each head adds, times what each other adds", "(Z_i·W_O)·(Z_j·W_O)",
                    "Of each token; “rest” is the bias%s. From these follows how long the layer's "
                    "attention output is with any heads off.",
                    h->count < model_sizes_of(h->m)->heads ? " and all heads that are not shown"
                                                           : "");
    recipe_set_provenance(r, TRACE_PRODUCTS, context, NULL, 0);
    recipe_word_rows(r);
    label_products(r, h);
    recipe_small(r);
}

/* ----------------------------------------------------------------------------------- Makers */

void layer_makers(recipe *r, const layer_heads *h, int64_t layer, const char *input)
{
    const model_sizes *s = model_sizes_of(h->m);
    const int64_t D = s->head_size, E = s->embed, own = h->first / (s->heads / s->kv_heads);
    const struct {
        const char *name, *title, *of;
        int64_t head; /* counted in each array separately */
    } makers[] = {{"w_q", "This head's part of W_q", "queries", h->first},
                  {"w_k", "This head's part of W_k", "keys", s->heads + own},
                  {"w_v", "This head's part of W_v", "values", s->heads + s->kv_heads + own}};
    attn_tensor weight, bias;
    model_input_projection(h->m, layer, &weight, &bias);
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        kit_array w = recipe_step(r, makers[i].name, TRACE_VALUES, ATTN_F32, SHAPE(D, E + 1));
        for (int64_t c = 0; c < D && r->status == KIT_OK; c++) {
            const int64_t row = makers[i].head * D + c;
            float *to = (float *)w.data + c * (E + 1);
            memcpy(to, (const float *)weight.data + row * E, (size_t)E * sizeof(float));
            to[E] = bias.data ? ((const float *)bias.data)[row] : 0;
        }
        recipe_describe(r, makers[i].title, "",
                        "Row c makes number c of the %s; its last number is the bias.",
                        makers[i].of);
        recipe_set_provenance(r, TRACE_MAKER, input, makers[i].of, 0);
        recipe_small(r);
    }
}
