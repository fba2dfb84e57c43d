/* Layer norm, GELU, cross-entropy and AdamW agree with their definitions in long double.
 *
 * labels: threads
 *
 * Gradients are compared with central differences of the definitions. */
#include "nn_tensors.h"

typedef long double wide;

#define STEP 1e-6L /* of central differences: their error is of the order of its square */

/* The most that a result may be off: rounding of the type and the error of the difference, both of
 * the largest element. */
static double allowed(attn_dtype dtype, double largest)
{
    return (dtype == ATTN_F64 ? 1e-10 : 3e-7) * (largest + 1e-3);
}

static void expect_near(const attn_tensor *got,
                        double (*want)(void *arg, int64_t b, int64_t h, int64_t i, int64_t j),
                        void *arg, const char *what)
{
    double largest = 0, worst = 0, expected = 0;
    int64_t at[4] = {0};
    FOR_ALL(got, b, h, i, j)
    {
        const double w = want(arg, b, h, i, j), off = fabs(get(got, b, h, i, j) - w);
        largest = fmax(largest, fabs(w));
        if (isnan(off) || off > worst) {
            worst = isnan(off) ? INFINITY : off;
            expected = w;
            at[0] = b, at[1] = h, at[2] = i, at[3] = j;
        }
    }
    if (!(worst <= allowed(got->dtype, largest)))
        fail_msg("%s [%d,%d,%d,%d] is %.17g, want %.17g (tolerance %g)", what, (int)at[0],
                 (int)at[1], (int)at[2], (int)at[3], get(got, at[0], at[1], at[2], at[3]), expected,
                 allowed(got->dtype, largest));
}

/* ------------------------------------------------------------------- A function to differentiate
 *
 * Inputs are tensors in long double, kept as flat copies; value() is the sum of dout * out. */
typedef struct subject {
    const attn_tensor *x, *weight, *bias, *dout;
    double eps;
    bool gelu;
    attn_tensor *moved; /* whose element is moved by `by` */
    int64_t at[4];
    wide by;
} subject;

static wide element(const subject *s, const attn_tensor *t, int64_t b, int64_t h, int64_t i,
                    int64_t j)
{
    const bool here =
        s->moved == t && s->at[0] == b && s->at[1] == h && s->at[2] == i && s->at[3] == j;
    return (wide)get(t, b, h, i, j) + (here ? s->by : 0);
}

typedef struct row_spread {
    wide mean, deviation;
} row_spread;

static row_spread spread_of(const subject *s, int64_t b, int64_t h, int64_t i)
{
    const int64_t E = s->x->shape[3];
    wide mean = 0, variance = 0;
    for (int64_t c = 0; c < E && !s->gelu; c++)
        mean += element(s, s->x, b, h, i, c) / (wide)E;
    for (int64_t c = 0; c < E && !s->gelu; c++)
        variance += powl(element(s, s->x, b, h, i, c) - mean, 2) / (wide)E;
    return (row_spread){mean, sqrtl(variance + (wide)s->eps)};
}

/* With the spread of its row, which a row of 300 needs once and not 300 times. */
static wide output_in(const subject *s, row_spread row, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const wide x = element(s, s->x, b, h, i, j);
    if (s->gelu)
        return x * (1 + erfl(x / sqrtl(2.0L))) / 2;
    return (x - row.mean) / row.deviation * (s->weight ? element(s, s->weight, 0, 0, 0, j) : 1) +
           (s->bias ? element(s, s->bias, 0, 0, 0, j) : 0);
}

static wide output(const subject *s, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return output_in(s, spread_of(s, b, h, i), b, h, i, j);
}

static double want_output(void *arg, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return (double)output(arg, b, h, i, j);
}

/* Of the rows that an element can change. */
static wide value(const subject *s)
{
    const bool row = s->moved == s->x;
    row_spread now = {0};
    wide sum = 0;
    FOR_ALL(s->x, b, h, i, j)
    if (!row || (b == s->at[0] && h == s->at[1] && i == s->at[2])) {
        if (j == 0)
            now = spread_of(s, b, h, i);
        sum += (wide)get(s->dout, b, h, i, j) * output_in(s, now, b, h, i, j);
    }
    return sum;
}

static double want_gradient(void *arg, int64_t b, int64_t h, int64_t i, int64_t j)
{
    subject s = *(subject *)arg;
    memcpy(s.at, (int64_t[]){b, h, i, j}, sizeof s.at);
    s.by = STEP;
    const wide above = value(&s);
    s.by = -STEP;
    return (double)((above - value(&s)) / (2 * STEP));
}

static void expect_gradient(subject *s, const attn_tensor *of, const attn_tensor *got,
                            const char *what)
{
    s->moved = (attn_tensor *)of;
    expect_near(got, want_gradient, s, what);
    s->moved = NULL;
}

/* ----------------------------------------------------------------------------------- Layer norm */

static void layer_norm_case(attn_context *ctx)
{
    static const int64_t sizes[] = {1, 2, 5, 16, 127, 128, 129, 300};
    const attn_dtype dtype = pick(2) ? ATTN_F32 : ATTN_F64;
    const layout form = pick(2) ? ODD : DENSE;
    const int64_t k = pick(COUNT(sizes)), B = 1 + pick(2), H = 1 + pick(2), E = sizes[k];
    const int64_t T = E > 20 ? 1 : 1 + pick(6);
    describe_case("%s, B=%d H=%d T=%d E=%d", attn_dtype_name(dtype), (int)B, (int)H, (int)T,
                  (int)E);
    test_tensor x = random_tensor(dtype, form, B, H, T, E);
    test_tensor dout = random_tensor(dtype, form, B, H, T, E);
    test_tensor w = random_tensor(dtype, form, 1, 1, 1, E);
    test_tensor bias = random_tensor(dtype, form, 1, 1, 1, E);
    test_tensor out = make_tensor(dtype, form, B, H, T, E),
                dx = make_tensor(dtype, form, B, H, T, E);
    test_tensor dw = make_tensor(dtype, form, 1, 1, 1, E),
                db = make_tensor(dtype, form, 1, 1, 1, E);
    subject s = {.x = &x.t, .dout = &dout.t, .eps = pick(2) ? 1e-5 : 0.5};
    s.weight = pick(3) ? &w.t : NULL;
    s.bias = pick(3) ? &bias.t : NULL;
    if (E <= 2)
        s.eps = 0.5; /* two elements that are nearly equal are past central differences */
    assert_int_equal(attn_layer_norm_forward(ctx, &x.t, s.weight, s.bias, s.eps, &out.t, NULL),
                     ATTN_OK);
    expect_near(&out.t, want_output, &s, "layer norm");
    const bool only_vectors = pick(3) == 0;
    assert_int_equal(attn_layer_norm_backward(ctx, &dout.t, &x.t, s.weight, s.eps,
                                              only_vectors ? NULL : &dx.t, s.weight ? &dw.t : NULL,
                                              s.bias ? &db.t : NULL, NULL),
                     ATTN_OK);
    if (!only_vectors)
        expect_gradient(&s, &x.t, &dx.t, "layer norm, dx");
    if (s.weight)
        expect_gradient(&s, &w.t, &dw.t, "layer norm, dweight");
    if (s.bias)
        expect_gradient(&s, &bias.t, &db.t, "layer norm, dbias");
    expect_gaps(&out);
    expect_gaps(&dx);
    test_tensor *all[] = {&x, &dout, &w, &bias, &out, &dx, &dw, &db};
    for (size_t i = 0; i < COUNT(all); i++)
        release(all[i]);
}

static void test_layer_norm(void **state)
{
    (void)state;
    test_state = 0x1a;
    attn_context *ctx = make_context(2, NULL, NULL);
    for (int n = 0; n < 40; n++)
        layer_norm_case(n % 2 ? ctx : NULL);
    attn_context_destroy(ctx);
}

/* A mean a million times the spread: one pass over the squares would leave nothing of it. */
static void test_layer_norm_far_from_zero(void **state)
{
    (void)state;
    double x[4] = {1e6 + 1, 1e6 - 1, 1e6 + 1, 1e6 - 1}, out[4];
    const attn_tensor vx = attn_matrix(x, ATTN_F64, 1, 4), vout = attn_matrix(out, ATTN_F64, 1, 4);
    assert_int_equal(attn_layer_norm_forward(NULL, &vx, NULL, NULL, 0, &vout, NULL), ATTN_OK);
    for (int i = 0; i < 4; i++)
        assert_number(out[i], ==, i % 2 ? -1 : 1);
}

/* ----------------------------------------------------------------------------------------- GELU */

static void test_gelu(void **state)
{
    (void)state;
    test_state = 0x6e;
    attn_context *ctx = make_context(2, NULL, NULL);
    for (int n = 0; n < 30; n++) {
        const attn_dtype dtype = pick(2) ? ATTN_F32 : ATTN_F64;
        const layout form = pick(2) ? ODD : DENSE;
        const int64_t B = 1 + pick(2), H = 1 + pick(2), T = 1 + pick(4), E = 1 + pick(300);
        describe_case("round %d: %s, B=%d H=%d T=%d E=%d", n, attn_dtype_name(dtype), (int)B,
                      (int)H, (int)T, (int)E);
        test_tensor x = random_tensor(dtype, form, B, H, T, E);
        test_tensor dout = random_tensor(dtype, DENSE, B, H, T, E);
        test_tensor out = make_tensor(dtype, form, B, H, T, E);
        test_tensor dx = make_tensor(dtype, form, B, H, T, E);
        FOR_ALL(&x.t, b, h, i, j)
        put(&x.t, b, h, i, j, 8 * get(&x.t, b, h, i, j));
        subject s = {.x = &x.t, .dout = &dout.t, .gelu = true};
        assert_int_equal(attn_gelu_forward(ctx, &x.t, &out.t, NULL), ATTN_OK);
        assert_int_equal(attn_gelu_backward(ctx, &dout.t, &x.t, &dx.t, NULL), ATTN_OK);
        expect_near(&out.t, want_output, &s, "gelu");
        s.moved = &x.t;
        FOR_ALL(&dx.t, b, h, i, j) /* alone: an element depends on one alone */
        {
            subject one = s;
            memcpy(one.at, (int64_t[]){b, h, i, j}, sizeof one.at);
            one.by = STEP;
            const wide above = output(&one, b, h, i, j);
            one.by = -STEP;
            const double slope = (double)((above - output(&one, b, h, i, j)) / (2 * STEP));
            const double want = get(&dout.t, b, h, i, j) * slope;
            assert_near(get(&dx.t, b, h, i, j), want, <=, allowed(dtype, fabs(want)));
        }
        expect_gaps(&out);
        expect_gaps(&dx);
        test_tensor *all[] = {&x, &dout, &out, &dx};
        for (size_t i = 0; i < COUNT(all); i++)
            release(all[i]);
    }
    attn_context_destroy(ctx);
}

/* Digits of a small result, and the limits at infinity. */
static void test_gelu_far_out(void **state)
{
    (void)state;
    const double ones[5] = {1, 1, 1, 1, 1};
    double x[5] = {-10, 40, -60, -INFINITY, INFINITY}, out[5], dx[5];
    const attn_tensor vx = attn_matrix(x, ATTN_F64, 1, 5), vout = attn_matrix(out, ATTN_F64, 1, 5);
    const attn_tensor dout = attn_matrix(ones, ATTN_F64, 1, 5),
                      vdx = attn_matrix(dx, ATTN_F64, 1, 5);
    assert_int_equal(attn_gelu_forward(NULL, &vx, &vout, NULL), ATTN_OK);
    assert_int_equal(attn_gelu_backward(NULL, &dout, &vx, &vdx, NULL), ATTN_OK);
    const double want = (double)(-5.0L * erfcl(10 / sqrtl(2.0L)));
    assert_near(out[0], want, <=, 1e-12 * fabs(want));
    assert_number(out[1], ==, 40);
    assert_number(out[2], ==, 0);
    assert_number(out[3], ==, 0);
    assert_number(out[4], ==, INFINITY);
    assert_number(dx[1], ==, 1);
    assert_number(dx[2], ==, 0);
    assert_number(dx[3], ==, 0);
    assert_number(dx[4], ==, 1);
}

/* -------------------------------------------------------------------------------- Cross-entropy */

typedef struct classes {
    const attn_tensor *logits;
    const int64_t *targets;
    int64_t ignore, count;
    double factor;
} classes;

static wide row_sum(const attn_tensor *t, int64_t i)
{
    wide top = -INFINITY, sum = 0;
    for (int64_t v = 0; v < t->shape[3]; v++)
        top = fmaxl(top, get(t, 0, 0, i, v));
    for (int64_t v = 0; v < t->shape[3]; v++)
        sum += expl((wide)get(t, 0, 0, i, v) - top);
    return top + logl(sum);
}

/* The gradient by its formula; central differences below hold the formula. */
static double want_share(void *arg, int64_t b, int64_t h, int64_t i, int64_t v)
{
    const classes *c = arg;
    if (c->targets[i] == c->ignore)
        return 0;
    const wide p = expl((wide)get(c->logits, b, h, i, v) - row_sum(c->logits, i));
    return c->factor * (double)(p - (v == c->targets[i])) / (double)c->count;
}

static double naive_loss(const classes *c)
{
    wide sum = 0;
    for (int64_t i = 0; i < c->logits->shape[2]; i++)
        if (c->targets[i] != c->ignore)
            sum += row_sum(c->logits, i) - (wide)get(c->logits, 0, 0, i, c->targets[i]);
    return (double)(sum / (wide)(c->count ? c->count : 1));
}

static void test_cross_entropy(void **state)
{
    (void)state;
    test_state = 0xce;
    attn_context *ctx = make_context(2, NULL, NULL);
    for (int n = 0; n < 40; n++) {
        const attn_dtype dtype = pick(2) ? ATTN_F32 : ATTN_F64;
        const int64_t N = 1 + pick(9), V = 1 + pick(200);
        const double spread = pick(2) ? 3 : 3000;
        describe_case("round %d: %s, N=%d V=%d, logits to %g", n, attn_dtype_name(dtype), (int)N,
                      (int)V, spread);
        int64_t targets[9];
        test_tensor logits = random_tensor(dtype, pick(2) ? ODD : DENSE, 1, 1, N, V);
        test_tensor d = make_tensor(dtype, pick(2) ? ODD : DENSE, 1, 1, N, V);
        classes c = {&logits.t, targets, pick(2) ? -100 : 0, 0, 1 + uniform()};
        FOR_ALL(&logits.t, b, h, i, v)
        put(&logits.t, b, h, i, v, spread * get(&logits.t, b, h, i, v));
        for (int64_t i = 0; i < N; i++) {
            targets[i] = pick(3) ? pick(V) : c.ignore;
            c.count += targets[i] != c.ignore;
        }
        double loss = NAN;
        assert_int_equal(attn_cross_entropy_forward(ctx, &logits.t, targets, c.ignore, &loss, NULL),
                         ATTN_OK);
        assert_near(loss, naive_loss(&c), <=, 1e-12 * (1 + fabs(loss)));
        assert_int_equal(attn_cross_entropy_backward(ctx, c.factor, &logits.t, targets, c.ignore,
                                                     &d.t, NULL),
                         ATTN_OK);
        expect_near(&d.t, want_share, &c, "cross-entropy");
        expect_gaps(&d);
        release(&logits);
        release(&d);
    }
    attn_context_destroy(ctx);
}

/* The formula itself, by central differences of the forward pass. */
static void test_cross_entropy_differences(void **state)
{
    (void)state;
    test_state = 0xdce;
    int64_t targets[4] = {2, -100, 0, 4};
    test_tensor logits = random_tensor(ATTN_F64, DENSE, 1, 1, 4, 5);
    test_tensor d = make_tensor(ATTN_F64, DENSE, 1, 1, 4, 5);
    assert_int_equal(attn_cross_entropy_backward(NULL, 1, &logits.t, targets, -100, &d.t, NULL),
                     ATTN_OK);
    FOR_ALL(&d.t, b, h, i, v)
    {
        const double was = get(&logits.t, b, h, i, v), step = 1e-5;
        double above, below;
        put(&logits.t, b, h, i, v, was + step);
        attn_cross_entropy_forward(NULL, &logits.t, targets, -100, &above, NULL);
        put(&logits.t, b, h, i, v, was - step);
        attn_cross_entropy_forward(NULL, &logits.t, targets, -100, &below, NULL);
        put(&logits.t, b, h, i, v, was);
        assert_near(get(&d.t, b, h, i, v), (above - below) / (2 * step), <, 1e-9);
    }
    release(&logits);
    release(&d);
}

/* -inf is probability 0; nothing counted is loss 0. */
static void test_cross_entropy_edges(void **state)
{
    (void)state;
    double x[3] = {-INFINITY, 0, 0}, d[3], loss = -1;
    const int64_t target = 1, none = -100;
    const attn_tensor vx = attn_matrix(x, ATTN_F64, 1, 3), vd = attn_matrix(d, ATTN_F64, 1, 3);
    assert_int_equal(attn_cross_entropy_forward(NULL, &vx, &target, -100, &loss, NULL), ATTN_OK);
    assert_near(loss, log(2), <, 1e-15);
    assert_int_equal(attn_cross_entropy_backward(NULL, 1, &vx, &target, -100, &vd, NULL), ATTN_OK);
    assert_number(d[0], ==, 0);
    assert_near(d[1], -0.5, <, 1e-15);
    assert_near(d[2], 0.5, <, 1e-15);
    assert_int_equal(attn_cross_entropy_forward(NULL, &vx, &none, -100, &loss, NULL), ATTN_OK);
    assert_number(loss, ==, 0);
    assert_int_equal(attn_cross_entropy_backward(NULL, 1, &vx, &none, -100, &vd, NULL), ATTN_OK);
    assert_number(d[0], ==, 0);
    assert_number(d[1], ==, 0);
    assert_number(d[2], ==, 0);
}

/* ---------------------------------------------------------------------------------------- AdamW */

/* The moments in closed form: m after n steps is (1 - beta1) * sum of beta1^(n-i) * grad_i. */
static void test_adamw(void **state)
{
    (void)state;
    enum { STEPS = 12, N = 200 };
    static double grads[STEPS][N];
    test_state = 0xad;
    for (int k = 0; k < 2; k++) {
        const attn_dtype dtype = k ? ATTN_F32 : ATTN_F64;
        describe_case("%s", attn_dtype_name(dtype));
        attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
        assert_number(o.lr, ==, 1e-3);
        assert_number(o.beta1, ==, 0.9);
        assert_number(o.beta2, ==, 0.999);
        assert_number(o.eps, ==, 1e-8);
        assert_number(o.weight_decay, ==, 0.01);
        o.lr = 0.05;
        test_tensor p = random_tensor(dtype, ODD, 1, 1, 4, N / 4);
        test_tensor g = make_tensor(dtype, ODD, 1, 1, 4, N / 4);
        test_tensor m = make_tensor(dtype, ODD, 1, 1, 4, N / 4);
        test_tensor v = make_tensor(dtype, ODD, 1, 1, 4, N / 4);
        wide want[N];
        FOR_ALL(&p.t, b, h, i, j)
        {
            want[i * N / 4 + j] = get(&p.t, b, h, i, j);
            put(&m.t, b, h, i, j, 0);
            put(&v.t, b, h, i, j, 0);
        }
        for (int n = 0; n < STEPS; n++) {
            FOR_ALL(&g.t, b, h, i, j)
            {
                put(&g.t, b, h, i, j, uniform());
                grads[n][i * N / 4 + j] = get(&g.t, b, h, i, j);
            }
            assert_int_equal(attn_adamw_step(NULL, &o, n + 1, &p.t, &g.t, &m.t, &v.t, NULL),
                             ATTN_OK);
            for (int e = 0; e < N; e++) {
                wide first = 0, second = 0;
                for (int i = 0; i <= n; i++) {
                    first += 0.1L * powl(0.9L, n - i) * grads[i][e];
                    second += 0.001L * powl(0.999L, n - i) * (wide)grads[i][e] * grads[i][e];
                }
                first /= 1 - powl(0.9L, n + 1);
                second /= 1 - powl(0.999L, n + 1);
                want[e] = want[e] * (1 - 0.05L * 0.01L) - 0.05L * first / (sqrtl(second) + 1e-8L);
            }
        }
        FOR_ALL(&p.t, b, h, i, j)
        assert_near(get(&p.t, b, h, i, j), want[i * N / 4 + j], <, k ? 2e-5L : 1e-13L);
        expect_gaps(&p);
        expect_gaps(&m);
        test_tensor *all[] = {&p, &g, &m, &v};
        for (size_t i = 0; i < COUNT(all); i++)
            release(all[i]);
    }
}

/* -------------------------------------------------------------------------- Bits of all threads */

enum { BITS = 7 };

/* Every result of the modules here, from one set of inputs. */
static void compute_all(attn_context *ctx, const attn_tensor *x, const attn_tensor *dout,
                        test_tensor *got)
{
    const int64_t T = x->shape[2], E = x->shape[3];
    const attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
    static int64_t targets[4096];
    double loss;
    for (int i = 0; i < BITS; i++)
        got[i] = make_tensor(x->dtype, DENSE, 1, 1, i < 5 ? T : 1, E);
    for (int64_t i = 0; i < T; i++)
        targets[i] = i * 7 % E;
    attn_layer_norm_forward(ctx, x, NULL, NULL, 1e-5, &got[0].t, NULL);
    attn_layer_norm_backward(ctx, dout, x, NULL, 1e-5, &got[1].t, &got[5].t, &got[6].t, NULL);
    attn_gelu_forward(ctx, x, &got[2].t, NULL);
    attn_gelu_backward(ctx, dout, x, &got[3].t, NULL);
    attn_cross_entropy_forward(ctx, x, targets, -100, &loss, NULL);
    attn_cross_entropy_backward(ctx, loss, x, targets, -100, &got[4].t, NULL);
    /* param, m and v: what the others left */
    attn_adamw_step(ctx, &o, 3, &got[0].t, dout, &got[1].t, &got[2].t, NULL);
}

static void test_bits_of_threads(void **state)
{
    (void)state;
    test_state = 0xb175;
    static const int threads[] = {2, 3, 7, 1};
    test_tensor x = random_tensor(ATTN_F32, DENSE, 1, 1, 700, 300), want[BITS], got[BITS];
    test_tensor dout = random_tensor(ATTN_F32, DENSE, 1, 1, 700, 300);
    int runs = 0;
    compute_all(NULL, &x.t, &dout.t, want);
    for (size_t k = 0; k <= COUNT(threads); k++) {
        describe_case("%d threads", k < COUNT(threads) ? threads[k] : 5);
        const bool backwards = k == COUNT(threads);
        attn_context *ctx =
            make_context(backwards ? 5 : threads[k], NULL, backwards ? &runs : NULL);
        compute_all(ctx, &x.t, &dout.t, got);
        for (int i = 0; i < BITS; i++) {
            expect_same_bits(&got[i].t, &want[i].t, "threads");
            release(&got[i]);
        }
        attn_context_destroy(ctx);
    }
    assert_number(runs, >=, 7); /* else nothing was cut */
    for (int i = 0; i < BITS; i++)
        release(&want[i]);
    release(&x);
    release(&dout);
}

/* --------------------------------------------------------------------------------------- Errors */

static void test_errors(void **state)
{
    (void)state;
    attn_error e = {0};
    test_tensor x = random_tensor(ATTN_F32, DENSE, 1, 1, 3, 4);
    test_tensor out = make_tensor(ATTN_F32, DENSE, 1, 1, 3, 4);
    test_tensor short_row = make_tensor(ATTN_F32, DENSE, 1, 1, 3, 3);
    test_tensor wide_row = random_tensor(ATTN_F64, DENSE, 1, 1, 3, 4);
    attn_tensor half = x.t;
    half.dtype = ATTN_F16;
    const attn_tensor *X = &x.t, *O = &out.t;
#define WANT(call, status, argument, part) expect_error(call, &e, status, argument, part)
    WANT(attn_layer_norm_forward(NULL, X, NULL, NULL, -1, O, &e), ATTN_ERR_ARGUMENT, "eps", "-1");
    WANT(attn_layer_norm_forward(NULL, X, NULL, NULL, NAN, O, &e), ATTN_ERR_ARGUMENT, "eps", "");
    WANT(attn_layer_norm_forward(NULL, X, X, NULL, 0, O, &e), ATTN_ERR_SHAPE, "weight", "1, 4]");
    WANT(attn_layer_norm_forward(NULL, X, NULL, NULL, 0, &short_row.t, &e), ATTN_ERR_SHAPE, "out",
         "[1, 1, 3, 4]");
    WANT(attn_layer_norm_forward(NULL, NULL, NULL, NULL, 0, O, &e), ATTN_ERR_ARGUMENT, "x", "NULL");
    WANT(attn_layer_norm_backward(NULL, &wide_row.t, X, NULL, 0, O, NULL, NULL, &e), ATTN_ERR_DTYPE,
         "dout", "f64");
    WANT(attn_gelu_forward(NULL, &half, O, &e), ATTN_ERR_DTYPE, "x", "f32 and f64");
    WANT(attn_gelu_backward(NULL, &short_row.t, X, O, &e), ATTN_ERR_SHAPE, "dout", "[1, 1, 3, 4]");
    const int64_t targets[3] = {0, 4, 1}, good[3] = {0, 1, 2};
    double loss = 7;
    WANT(attn_cross_entropy_forward(NULL, X, targets, -100, &loss, &e), ATTN_ERR_ARGUMENT,
         "targets", "targets[1] is 4");
    WANT(attn_cross_entropy_forward(NULL, X, NULL, -100, &loss, &e), ATTN_ERR_ARGUMENT, "targets",
         "NULL");
    WANT(attn_cross_entropy_forward(NULL, X, good, -100, NULL, &e), ATTN_ERR_ARGUMENT, "loss",
         "NULL");
    WANT(attn_cross_entropy_backward(NULL, 1, X, good, -100, &short_row.t, &e), ATTN_ERR_SHAPE,
         "dlogits", "[1, 1, 3, 4]");
    assert_number(loss, ==, 7);
    attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
    WANT(attn_adamw_step(NULL, &o, 0, O, X, O, O, &e), ATTN_ERR_ARGUMENT, "step", "0");
    WANT(attn_adamw_step(NULL, NULL, 1, O, X, O, O, &e), ATTN_ERR_ARGUMENT, "options", "NULL");
    WANT(attn_adamw_step(NULL, &o, 1, O, &short_row.t, O, O, &e), ATTN_ERR_SHAPE, "grad", "");
    o.beta2 = 1;
    WANT(attn_adamw_step(NULL, &o, 1, O, X, O, O, &e), ATTN_ERR_ARGUMENT, "beta2", "less than 1");
    o = (attn_adamw_options)ATTN_ADAMW_OPTIONS_INIT;
    o.lr = INFINITY;
    WANT(attn_adamw_step(NULL, &o, 1, O, X, O, O, &e), ATTN_ERR_ARGUMENT, "lr", "finite");
    expect_untouched(&out);
    test_tensor *all[] = {&x, &out, &short_row, &wide_row};
    for (size_t i = 0; i < COUNT(all); i++)
        release(all[i]);
}

static void test_no_memory(void **state)
{
    (void)state;
    failing_memory memory;
    attn_context *ctx = make_failing_context(&memory);
    test_tensor x = random_tensor(ATTN_F32, DENSE, 1, 1, 3, 4);
    test_tensor out = make_tensor(ATTN_F32, DENSE, 1, 1, 3, 4);
    test_tensor row = make_tensor(ATTN_F32, DENSE, 1, 1, 1, 4);
    const int64_t targets[3] = {0, 1, 2};
    double loss = 7;
    assert_int_equal(attn_layer_norm_backward(ctx, &x.t, &x.t, NULL, 0, &out.t, &row.t, NULL, NULL),
                     ATTN_ERR_MEMORY);
    assert_int_equal(attn_cross_entropy_forward(ctx, &x.t, targets, -100, &loss, NULL),
                     ATTN_ERR_MEMORY);
    assert_number(loss, ==, 7);
    expect_untouched(&out);
    expect_untouched(&row);
    attn_context_destroy(ctx);
    assert_int_equal(memory.live, 0);
    release(&x);
    release(&out);
    release(&row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_layer_norm_far_from_zero),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_gelu_far_out),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_differences),
        cmocka_unit_test(test_cross_entropy_edges),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_bits_of_threads),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
