/* Lesson `sky`: "sky is blue", three words of two numbers each. All numbers are given, none is
 * random. The notebook asks PyTorch to track the gradients of its three matrices but never uses
 * them. With --gradients the lesson also computes what loss.backward() would give, and compares it
 * with PyTorch's numbers. */
#include "../recipe.h"
#include "lessons.h"

enum { WORDS = 3, SIZE = 2 };

/* x @ W, with W [in, out] as the notebook keeps it. */
static kit_array project(recipe *r, kit_array x, kit_array w, const char *name, const char *weight,
                         const char *title, const char *formula, const char *sentence,
                         const char *printed)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(WORDS, SIZE));
    recipe_linear(r, recipe_view(x), recipe_swapped(recipe_view(w)), NULL, recipe_view(out));
    recipe_describe(r, title, formula, "%s", sentence);
    recipe_set_provenance(r, TRACE_PROJECT, "embeddings", weight, 0);
    recipe_word_rows(r);
    recipe_printed(r, printed);
    return out;
}

static kit_array scores(recipe *r, const recipe_attention *a, attn_stage stage, const char *name,
                        const char *printed)
{
    trace_kind kind = stage == ATTN_STAGE_WEIGHTS ? TRACE_WEIGHTS : TRACE_SCORES;
    kit_array out = recipe_step(r, name, kind, ATTN_F32, SHAPE(WORDS, WORDS));
    recipe_scores(r, a, stage, recipe_view(out));
    recipe_word_rows(r);
    recipe_word_columns(r);
    recipe_printed(r, printed);
    return out;
}

static kit_array embed(recipe *r)
{
    r->section = "Tokens and embeddings";
    recipe_add_copy(r, "token_ids", TRACE_IDS, ATTN_I64, SHAPE(1, WORDS), (int64_t[]){1, 2, 3});
    recipe_describe(r, "Words to numbers", "", "The notebook calls its three words 1, 2 and 3.");
    recipe_word_columns(r);
    recipe_printed(r, "tensor([[1, 2, 3]])");

    const float vectors[] = {-1.0720f, -0.5001f, -0.0120f, -0.4311f, -0.0050f, -0.5321f};
    kit_array x =
        recipe_add_copy(r, "embeddings", TRACE_VALUES, ATTN_F32, SHAPE(WORDS, SIZE), vectors);
    recipe_describe(r, "A vector for each word", "X", "Typed in by the notebook.");
    recipe_word_rows(r);
    recipe_printed(r, "{1: [-1.072, -0.5001], 2: [-0.012, -0.4311], 3: [-0.005, -0.5321]}\n"
                      "tensor([[-1.0720, -0.5001],\n"
                      "[-0.0120, -0.4311],\n"
                      "[-0.0050, -0.5321]])");
    return x;
}

static kit_array weight(recipe *r, const char *name, const char *title, const float *numbers)
{
    kit_array w = recipe_add_copy(r, name, TRACE_VALUES, ATTN_F32, SHAPE(SIZE, SIZE), numbers);
    recipe_describe(r, title, "", "Typed in by the notebook.");
    return w;
}

static void row_sums(recipe *r, kit_array weights)
{
    kit_array sums = recipe_step(r, "row_sums", TRACE_VALUES, ATTN_F32, SHAPE(WORDS));
    for (int i = 0; r->status == KIT_OK && i < WORDS; i++) {
        const float *w = (const float *)weights.data + i * WORDS;
        ((float *)sums.data)[i] = w[0] + w[1] + w[2];
    }
    recipe_describe(r, "The rows sum to 1", "Σ_j A_ij", "Up to the rounding of float.");
    recipe_set_provenance(r, TRACE_COMPUTED, "weights", NULL, 0);
    recipe_word_columns(r);
    recipe_printed(r, "tensor(1.) tensor(1.) tensor(1.0000)");
}

static kit_array attend(recipe *r, kit_array q, kit_array k, kit_array v)
{
    recipe_attention a = {recipe_view(q), recipe_view(k), recipe_view(v), 1, false, NULL};
    r->section = "Attention logits";
    scores(r, &a, ATTN_STAGE_RAW, "scores",
           "tensor([[-0.2853,  0.0604,  0.0779],\n"
           "[-0.0704,  0.0281,  0.0356],\n"
           "[-0.0850,  0.0344,  0.0436]], grad_fn=)");
    recipe_describe(
        r, "Every word asks, every word answers", "S = Q·Kᵀ",
        "Row i holds how well query i fits each key. (The Kᵀ that the notebook writes out has the "
        "wrong shape: it is 2×3, one column for each key.)");
    recipe_set_provenance(r, TRACE_DOT, "queries", "keys", 0);

    a.scale = 0;
    scores(r, &a, ATTN_STAGE_RAW, "scaled_scores",
           "tensor([[-0.2017,  0.0427,  0.0551],\n"
           "[-0.0498,  0.0199,  0.0252],\n"
           "[-0.0601,  0.0243,  0.0309]], grad_fn=)");
    recipe_describe(r, "Scale", "S / √2", "d_k is 2.");
    recipe_set_provenance(r, TRACE_SCALE, "scores", NULL, 0.70710678118654752);

    r->section = "Softmax";
    kit_array weights = scores(r, &a, ATTN_STAGE_WEIGHTS, "weights",
                               "tensor([[0.2801, 0.3577, 0.3622],\n"
                               "[0.3175, 0.3404, 0.3422],\n"
                               "[0.3141, 0.3418, 0.3441]], grad_fn=)");
    recipe_describe(r, "Softmax: each row becomes shares of 1", "A = softmax(S)",
                    "Row asks, column answers.");
    recipe_set_provenance(r, TRACE_SOFTMAX, "scaled_scores", NULL, 0);
    row_sums(r, weights);

    r->section = "Output";
    kit_array out = recipe_step(r, "context", TRACE_VALUES, ATTN_F32, SHAPE(WORDS, SIZE));
    recipe_context(r, &a, recipe_view(out));
    recipe_describe(
        r, "Mix the values by the weights", "O = A·V",
        "The values decide what comes out; a large Q·K only decides whose value counts.");
    recipe_set_provenance(r, TRACE_MIX, "weights", "values", 0);
    recipe_word_rows(r);
    recipe_printed(r, "tensor([[0.1460, 0.1802],\n"
                      "[0.1543, 0.1757],\n"
                      "[0.1535, 0.1761]], grad_fn=)");
    return out;
}

/* ------------------------------------------------------------------------------------ Gradients */

static void loss(recipe *r, kit_array context)
{
    r->section = "Gradients of the sum of the outputs";
    kit_array sum = recipe_step(r, "loss", TRACE_SCALAR, ATTN_F32, 0, NULL);
    for (int i = 0; r->status == KIT_OK && i < WORDS * SIZE; i++) {
        *(float *)sum.data += ((const float *)context.data)[i];
    }
    recipe_describe(r, "A simple loss", "L = Σ O",
                    "One number, so that there is a slope to ask for.");
    recipe_set_provenance(r, TRACE_COMPUTED, "context", NULL, 0);
}

static kit_array gradient_step(recipe *r, const char *name, const char *title, const char *formula,
                               const char *sentence)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(WORDS, SIZE));
    recipe_describe(r, title, formula, "%s", sentence);
    recipe_set_provenance(r, TRACE_COMPUTED, NULL, NULL, 0);
    recipe_word_rows(r);
    return out;
}

/* Repeats the forward call to get its log-sum-exp, then calls the backward. */
static void attention_back(recipe *r, kit_array q, kit_array k, kit_array v, kit_array dout,
                           attn_sdpa_grads *grads)
{
    float out[WORDS * SIZE], lse[WORDS] = {0}; /* else gcc -Og warns */
    attn_error e;
    if (r->status != KIT_OK) {
        return;
    }
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_tensor lse_view = attn_matrix(lse, ATTN_F32, WORDS, 1);
    a.q = recipe_view(q);
    a.k = recipe_view(k);
    a.v = recipe_view(v);
    a.out = attn_matrix(out, ATTN_F32, WORDS, SIZE);
    a.lse = &lse_view;
    grads->dout = recipe_view(dout);
    recipe_engine(r, attn_sdpa_forward(r->ctx, &a, &e), &e);
    if (r->status == KIT_OK) {
        recipe_engine(r, attn_sdpa_backward(r->ctx, &a, grads, &e), &e);
    }
}

static void weight_gradient(recipe *r, kit_array x, kit_array dout, const char *name,
                            const char *title, const char *formula, const char *pytorch)
{
    kit_array out = recipe_step(r, name, TRACE_VALUES, ATTN_F32, SHAPE(SIZE, SIZE));
    attn_error e;
    if (r->status == KIT_OK) {
        attn_tensor d = recipe_view(dout), in = recipe_view(x);
        attn_tensor to = recipe_swapped(recipe_view(out)); /* the notebook keeps W as [in, out] */
        recipe_engine(r, attn_linear_backward(r->ctx, &d, &in, NULL, NULL, &to, NULL, &e), &e);
    }
    recipe_describe(r, title, formula, "A step against it makes the loss smaller.");
    recipe_set_provenance(r, TRACE_COMPUTED, NULL, NULL, 0);
    recipe_printed(r, pytorch);
}

static void gradients(recipe *r, kit_array x, kit_array q, kit_array k, kit_array v,
                      kit_array context)
{
    const char *const why = "float rounding of dA, near 0.4, before it cancels";
    const float ones[WORDS * SIZE] = {1, 1, 1, 1, 1, 1};
    attn_sdpa_grads grads = ATTN_SDPA_GRADS_INIT;
    r->after_notebook = true;
    loss(r, context);
    kit_array dout =
        recipe_add_copy(r, "grad_context", TRACE_VALUES, ATTN_F32, SHAPE(WORDS, SIZE), ones);
    recipe_describe(r, "Its slope by each output", "dO = 1", "Each output adds itself to the sum.");
    recipe_word_rows(r);
    kit_array dv = gradient_step(r, "grad_values", "By the values", "dV = Aᵀ·dO",
                                 "How much weight all queries together give to each word.");
    kit_array dk = gradient_step(r, "grad_keys", "By the keys", "dK = dSᵀ·Q / √2",
                                 "dS = A · (dA − Σ A·dA): softmax, backwards.");
    kit_array dq = gradient_step(r, "grad_queries", "By the queries", "dQ = dS·K / √2",
                                 "Small, because the three values hardly differ.");
    grads.dq = recipe_view(dq);
    grads.dk = recipe_view(dk);
    grads.dv = recipe_view(dv);
    attention_back(r, q, k, v, dout, &grads);
    weight_gradient(r, x, dq, "grad_w_q_of_sum", "By W_q", "dWQ = Xᵀ·dQ",
                    "tensor([[-0.00690474734, 0.00932981540],\n"
                    "[-0.00969982427, 0.01313520409]])");
    recipe_slack(r, 0x1p-25, 0, why);
    weight_gradient(r, x, dk, "grad_w_k_of_sum", "By W_k", "dWK = Xᵀ·dK",
                    "tensor([[-0.00957765803, -0.02164704539],\n"
                    "[-0.00063158100, -0.00144781056]])");
    recipe_slack(r, 0x1p-25, 0, why);
    weight_gradient(r, x, dv, "grad_w_v_of_sum", "By W_v", "dWV = Xᵀ·dV",
                    "tensor([[-0.99509001, -0.99509001],\n"
                    "[-1.46209610, -1.46209610]])");
    recipe_note(r, "gradient",
                "The notebook sets requires_grad on W_q, W_k and W_v; after context.sum() and "
                "backward(), these are their .grad.");
}

static int build(trace *t, attn_context *ctx, bool with_gradients, kit_error *err)
{
    recipe r = recipe_begin(t, ctx, err, "sky", "Self Attention - Basics", "sky is blue");
    recipe_setting(&r, "n = 3, d = d_k = d_v = 2, scores ÷ √2, no mask, numbers from the notebook");
    t->query = 1;
    kit_array x = embed(&r);
    r.section = "Q, K and V";
    kit_array w_q = weight(&r, "w_q", "What a word asks for: its matrix",
                           (const float[]){-0.0271f, -0.3840f, -0.3940f, -0.6610f});
    kit_array w_k = weight(&r, "w_k", "What a word offers: its matrix",
                           (const float[]){-0.4109f, 0.5777f, -0.1162f, -0.1661f});
    kit_array w_v = weight(&r, "w_v", "What a word hands over: its matrix",
                           (const float[]){-0.2045f, 0.1210f, -0.1712f, -0.4462f});
    kit_array q =
        project(&r, x, w_q, "queries", "w_q", "Queries", "Q = X·WQ", "What each word looks for.",
                "tensor([[0.2261, 0.7422],\n"
                "[0.1702, 0.2896],\n"
                "[0.2098, 0.3536]], grad_fn=)");
    kit_array k =
        project(&r, x, w_k, "keys", "w_k", "Keys", "K = X·WK", "What each word can be found by.",
                "tensor([[ 0.4986, -0.5362],\n"
                "[ 0.0550,  0.0647],\n"
                "[ 0.0639,  0.0855]], grad_fn=)");
    kit_array v = project(&r, x, w_v, "values", "w_v", "Values", "V = X·WV",
                          "What each word hands over when it is attended to.",
                          "tensor([[0.3048, 0.0934],\n"
                          "[0.0763, 0.1909],\n"
                          "[0.0921, 0.2368]], grad_fn=)");
    kit_array context = attend(&r, q, k, v);
    if (with_gradients) {
        gradients(&r, x, q, k, v, context);
    }
    recipe_health(
        &r, "weights",
        &(recipe_advice){NULL, NULL, "The typed-in matrices are small, so all scores are near 0.",
                         "the opposite, random vectors of 16 numbers whose rows give nearly "
                         "all to one word: attn explain \"sky is blue\""});
    recipe_note(&r, "next", "--check  %s--full  --quiz  --query blue  -o map.svg  --json",
                with_gradients ? "" : "--gradients  ");
    return recipe_end(&r);
}

int lesson_sky(trace *t, attn_context *ctx, kit_error *err) { return build(t, ctx, false, err); }

int lesson_sky_gradients(trace *t, attn_context *ctx, kit_error *err)
{
    return build(t, ctx, true, err);
}
