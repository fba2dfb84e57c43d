/* The subject attn_pieces_options of test_struct_size.c. Included in the middle of
 * struct_subjects.h, whose tensors and functions it uses. */
static const size_t pieces_members[] = {
#define M(name) offsetof(attn_pieces_options, name)
    M(q_positions), M(whole_T), M(head_offset), M(whole_H)
#undef M
};

static void pieces_defaults(void *s) { zeros(s, sizeof(attn_pieces_options)); }

static void pieces_set(void *s, int variant)
{
    static const int64_t positions[T] = {5, 1, 2, 4};
    attn_pieces_options *o = s;
    (void)variant;
    pieces_defaults(s);
    o->q_positions = positions;
    o->whole_T = 7;
    o->head_offset = 1;
    o->whole_H = 5;
}

/* For the backward: positions rise, and sums are only there. */
static const size_t pieces_backward_members[] = {
#define M(name) offsetof(attn_pieces_options, name)
    M(q_positions), M(whole_T), M(head_offset), M(whole_H),
    M(sums_in) /* and sums_out, which came with it */
#undef M
};

static void pieces_backward_defaults(void *s) { pieces_defaults(s); }

static void pieces_backward_set(void *s, int variant)
{
    static const int64_t positions[T] = {1, 2, 4, 5};
    attn_pieces_options *o = s;
    pieces_set(s, variant);
    o->q_positions = positions;
    o->sums_in = o->sums_out = 1;
}

static attn_status call_pieces(const void *s, attn_error *err)
{
    attn_sdpa_args a;
    attn_sdpa_state *state;
    sdpa_set(&a, 0);
    const attn_tensor k = a.k, v = a.v;
    a.k.data = a.v.data = NULL;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    a.scores = NULL;
    const attn_status status = attn_sdpa_begin(NULL, &a, s, &state, err);
    if (status != ATTN_OK)
        return status;
    assert_int_equal(attn_sdpa_feed(state, 0, &k, &v, err), ATTN_OK);
    assert_int_equal(attn_sdpa_finish(state, err), ATTN_OK);
    attn_sdpa_end(state);
    return status;
}

static attn_status call_pieces_backward(const void *s, attn_error *err)
{
    attn_sdpa_args a;
    attn_sdpa_grads g;
    attn_sdpa_backward_state *state;
    derivative_set(&a, 0);
    grads_set(&g, 0);
    const attn_tensor k = a.k, v = a.v, dk = g.dk, dv = g.dv;
    a.k.data = a.v.data = g.dk.data = g.dv.data = NULL;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    a.precision = ATTN_PRECISION_DEFAULT; /* so that sums are f32 */
    const attn_status status = attn_sdpa_backward_begin(NULL, &a, &g, s, &state, err);
    if (status != ATTN_OK)
        return status;
    assert_int_equal(attn_sdpa_backward_feed(state, 0, &k, &v, &dk, &dv, err), ATTN_OK);
    assert_int_equal(attn_sdpa_backward_finish(state, err), ATTN_OK);
    attn_sdpa_backward_end(state);
    return status;
}
