/* attn_mha: multi-head attention with weights that were packed once.
 *
 * A module is one block of memory: the struct, the biases, the packed weights. It does not change
 * between create and destroy, so any number of threads may run it at once. attn_mha_run calls
 * attni_mha_forward with tensors that have the shapes of the weights; their data is packed and is
 * read only through the module.
 */
#include <string.h>

#include "module.h"

/* ------------------------------------------------------------------------------------- Checking */

static attn_status check_weights(attni_mha_sizes *n, const attn_mha_args *a, attn_error *err)
{
    const struct {
        const attn_tensor *t;
        const char *name;
        bool optional;
    } inputs[] = {
        {&a->w_q, "w_q", false}, {&a->w_k, "w_k", false}, {&a->w_v, "w_v", false},
        {&a->b_q, "b_q", true},  {&a->b_k, "b_k", true},  {&a->b_v, "b_v", true},
        {&a->w_o, "w_o", true},  {&a->b_o, "b_o", true},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (inputs[i].optional && !inputs[i].t->data)
            continue;
        const attn_status s = attni_module_check(inputs[i].t, inputs[i].name, &a->w_q, "w_q", err);
        if (s != ATTN_OK)
            return s;
    }
    *n = (attni_mha_sizes){.E = a->w_q.shape[3], .Es = a->w_k.shape[3]};
    return attni_mha_check_weights(n, a, err);
}

/* ------------------------------------------------------------------------------------- Creating */

/* The state of attn_mha_create. take_all sizes the module's block with base NULL, then fills it. */
typedef struct making {
    attn_mha *module;
    attni_layout layout;
    const attni_kernels *kernels;
    bool fits;
} making;

static void take_weight(making *m, attni_packed *packed, attn_tensor *to, const attn_tensor *weight)
{
    const int64_t *n = weight->shape;
    if (!attni_packed_size(packed, weight, m->kernels))
        m->fits = false;
    packed->data = attni_layout_take(&m->layout, packed->bytes, 1);
    if (!m->layout.base)
        return;
    attni_packed_fill(packed, weight);
    *to = attn_bhtd(packed->data, weight->dtype, n[0], n[1], n[2], n[3]);
}

static void take_bias(making *m, attn_tensor *to, const attn_tensor *bias)
{
    if (!bias->data)
        return;
    const int64_t *n = bias->shape;
    const size_t R = attn_dtype_size(bias->dtype);
    char *data = attni_module_take(&m->layout, R, 1, 1, n[1], n[3]);
    if (!m->layout.base)
        return;
    for (int64_t h = 0; n[3] > 0 && h < n[1]; h++) /* without D, H may be huge */
        for (int64_t j = 0; j < n[3]; j++)
            memcpy(data + (size_t)(h * n[3] + j) * R, attni_at(bias, 0, h, 0, j), R);
    *to = attn_bhtd(data, bias->dtype, 1, n[1], 1, n[3]);
}

static bool take_all(making *m, const attn_mha_args *a)
{
    attn_mha sized, *module = m->layout.base ? m->module : &sized;
    attn_mha_args *to = &module->args;
    take_weight(m, &module->q, &to->w_q, &a->w_q);
    take_weight(m, &module->k, &to->w_k, &a->w_k);
    take_weight(m, &module->v, &to->w_v, &a->w_v);
    if (a->w_o.data)
        take_weight(m, &module->o, &to->w_o, &a->w_o);
    take_bias(m, &to->b_q, &a->b_q);
    take_bias(m, &to->b_k, &a->b_k);
    take_bias(m, &to->b_v, &a->b_v);
    take_bias(m, &to->b_o, &a->b_o);
    return m->fits && !m->layout.overflow && m->layout.used <= PTRDIFF_MAX;
}

attn_status attn_mha_create(attn_context *ctx, const attn_mha_args *args, attn_mha **out,
                            attn_error *err)
{
    ATTNI_CALL_MODE;
    attni_mha_sizes sizes;
    attn_mha_args given;
    attni_call call;
    attn_status s;
    if (!out)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "out",
                          "out is NULL; it must point to where the module's address is stored");
    *out = NULL;
    if ((s = attni_struct_read(ATTNI_MHA_ARGS, &given, args, "args", err)) ||
        (s = check_weights(&sizes, &given, err)))
        return s;
    const int isa = attni_context_isa_index(ctx);
    making m = {.kernels = attni_kernels_of(isa, given.w_q.dtype == ATTN_F64 ? 64 : 32),
                .fits = true};
    attni_layout_take(&m.layout, 1, sizeof(attn_mha));
    if (!take_all(&m, &given))
        return attni_fail(err, ATTN_ERR_LIMIT, "w_q",
                          "w_q and the other weights are more than can be addressed when packed");
    const size_t bytes = m.layout.used;
    if ((s = attni_call_begin(&call, ctx, 0, NULL, 0, err)))
        return s;
    m.module = attni_call_allocate(&call, bytes);
    if (m.module) {
        memset(m.module, 0, sizeof *m.module);
        m.layout = (attni_layout){.base = (char *)m.module};
        attni_layout_take(&m.layout, 1, sizeof(attn_mha));
        take_all(&m, &given);
        m.module->ctx = ctx;
        m.module->bytes = bytes;
        m.module->isa = isa;
        *out = m.module;
    }
    attni_call_end(&call);
    return m.module ? ATTN_OK
                    : attni_fail(err, ATTN_ERR_MEMORY, "",
                                 "no memory for %zu bytes of packed "
                                 "weights",
                                 bytes);
}

void attn_mha_destroy(attn_mha *module)
{
    ATTNI_CALL_MODE;
    attni_call call;
    if (!module || attni_call_begin(&call, module->ctx, 0, NULL, 0, NULL) != ATTN_OK)
        return;
    attni_call_release(&call, module, module->bytes);
    attni_call_end(&call);
}

/* -------------------------------------------------------------------------------------- Running */

attn_status attn_mha_run(attn_context *ctx, const attn_mha *module, const attn_mha_args *args,
                         attn_error *err)
{
    if (!module)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "module",
                          "module is NULL; attn_mha_create makes one");
    attni_mha_call c;
    const attn_status s = attni_mha_read(&c, args, err);
    if (s != ATTN_OK)
        return s;
    if (attni_context_isa_index(ctx) != module->isa)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "ctx",
                          "ctx uses %s and the module was packed for %s; they must be the same",
                          attn_context_isa(ctx), attn_isa(module->isa).name);
    const attn_mha_args *own = &module->args;
    attn_mha_args *a = &c.args;
    a->w_q = own->w_q;
    a->w_k = own->w_k;
    a->w_v = own->w_v;
    a->w_o = own->w_o;
    a->b_q = own->b_q;
    a->b_k = own->b_k;
    a->b_v = own->b_v;
    a->b_o = own->b_o;
    return attni_mha_forward(ctx, a, module, err);
}
