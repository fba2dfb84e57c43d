/* First half of attn run: reads arrays, converts them, and checks that they fit together, so that
 * messages can name the files. attn.h defines what the numbers mean. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "run.h"
#include "value.h"

/* -------------------------------------------------------------------------------------- reading */

static bool is_float(attn_dtype t)
{
    return t == ATTN_F64 || t == ATTN_F32 || t == ATTN_F16 || t == ATTN_BF16;
}

bool run_is_finite(const kit_array *a, bool minus_infinity)
{
    int64_t count = kit_array_count(a);
    for (int64_t i = 0; i < count; i++) {
        double x = kit_array_get(a, i);
        if (!isfinite(x) && !(minus_infinity && x == -INFINITY))
            return false;
    }
    return true;
}

int run_not_finite(int64_t bad, kit_error *err)
{
    return kit_fail(err, KIT_NOT_FINITE,
                    "%lld value%s of the result %s NaN or infinite, though every input is finite",
                    (long long)bad, bad == 1 ? "" : "s", bad == 1 ? "is" : "are");
}

int run_name_inputs(files *f, const options *o, kit_error *err)
{
    static const option_id ids[] = {OPT_run_q,     OPT_run_k,           OPT_run_v,
                                    OPT_run_mask,  OPT_run_key_lengths, OPT_run_alibi,
                                    OPT_run_sinks, OPT_run_grad_out};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const char *spec = option_text(o, ids[i]);
        if (!spec && i < 3)
            return kit_fail(err, KIT_USAGE, "--%s is missing; attention needs --q, --k and --v",
                            option_of(ids[i])->name);
        if (!spec)
            continue;
        int code = files_add_input(f, spec, err);
        if (code)
            return code;
    }
    return KIT_OK;
}

/* The dtype in which q, k and v are computed: that of --dtype, or else their own. */
static attn_dtype dtype_for(attn_dtype own, const options *o)
{
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    const int wanted = option_choice(o, OPT_run_dtype);
    return wanted < 0 ? own : dtypes[wanted];
}

static int check_operand(const kit_array *a, const char *spec, kit_error *err)
{
    if (!is_float(a->dtype))
        return kit_fail(err, KIT_BAD_FILE, "%s: is an array of %s; attention needs floating point",
                        spec, a->dtype == ATTN_BOOL ? "bool" : "integers");
    if (a->rank < 2 || a->rank > 4)
        return kit_fail(err, KIT_BAD_FILE, "%s: has rank %d; must be [T,D], [H,T,D] or [B,H,T,D]",
                        spec, a->rank);
    return KIT_OK;
}

/* Reads q, k or v: floats, rank 2 to 4, converted to the requested dtype. */
static int read_operand(run_input *in, kit_array *a, const char *spec, const options *o,
                        kit_error *err)
{
    int code = kit_read_array(a, spec, err);
    if (code || (code = check_operand(a, spec, err)))
        return code;
    const attn_dtype wanted = dtype_for(a->dtype, o);
    in->finite = in->finite && run_is_finite(a, false);
    if (wanted == a->dtype)
        return KIT_OK;
    kit_array converted = {0};
    code = kit_array_convert(&converted, a, wanted, err);
    if (!code) {
        kit_array_free(a);
        *a = converted;
    }
    return code;
}

/* Opens q, k or v; `a` gets its shape, and the dtype in which it is computed. */
static int open_operand(kit_rows **rows, kit_array *a, const char *spec, const options *o,
                        kit_error *err)
{
    int code = kit_rows_open(rows, spec, err);
    if (code)
        return code;
    *a = *kit_rows_array(*rows);
    if ((code = check_operand(a, spec, err)))
        return code;
    a->dtype = dtype_for(a->dtype, o);
    return KIT_OK;
}

static int read_keys(run_input *in, const options *o, kit_error *err)
{
    const char *k = option_text(o, OPT_run_k), *v = option_text(o, OPT_run_v);
    int code;
    if (option_given(o, OPT_run_pieces) || option_given(o, OPT_run_mpi))
        return (code = open_operand(&in->k_rows, &in->k, k, o, err))
                   ? code
                   : open_operand(&in->v_rows, &in->v, v, o, err);
    return (code = read_operand(in, &in->k, k, o, err)) ? code
                                                        : read_operand(in, &in->v, v, o, err);
}

attn_tensor run_view(const kit_array *a)
{
    int64_t shape[4] = {1, 1, 1, 1};
    for (int i = 0; i < a->rank; i++)
        shape[4 - a->rank + i] = a->shape[i];
    return attn_bhtd(a->data, a->dtype, shape[0], shape[1], shape[2], shape[3]);
}

/* -------------------------------------------------------------------------------- q, k, v agree */

static int must_share(const options *o, option_id a, option_id b, const char *dimension, int64_t x,
                      int64_t y, kit_error *err)
{
    const char *of_a = option_of(a)->name, *of_b = option_of(b)->name;
    if (x == y)
        return KIT_OK;
    return kit_fail(err, KIT_BAD_FILE,
                    "%s: %c has %s=%lld but %s has %s=%lld; %s and %s must share %s",
                    option_text(o, a), of_a[0] - 'a' + 'A', dimension, (long long)x,
                    option_text(o, b), dimension, (long long)y, of_b, of_a, dimension);
}

static int check_operands(const run_input *in, const options *o, kit_error *err)
{
    const attn_tensor *q = &in->args.q, *k = &in->args.k, *v = &in->args.v;
    int64_t H = q->shape[1], Hk = k->shape[1];
    int code = KIT_OK;
    if ((code = must_share(o, OPT_run_k, OPT_run_q, "B", k->shape[0], q->shape[0], err)) ||
        (code = must_share(o, OPT_run_k, OPT_run_q, "D", k->shape[3], q->shape[3], err)))
        return code;
    if (Hk == 0 ? H != 0 : H % Hk != 0)
        return kit_fail(err, KIT_BAD_FILE, "%s: K has Hk=%lld but %s has H=%lld; Hk must divide H",
                        option_text(o, OPT_run_k), (long long)Hk, option_text(o, OPT_run_q),
                        (long long)H);
    if ((code = must_share(o, OPT_run_v, OPT_run_k, "B", v->shape[0], k->shape[0], err)) ||
        (code = must_share(o, OPT_run_v, OPT_run_k, "Hk", v->shape[1], k->shape[1], err)) ||
        (code = must_share(o, OPT_run_v, OPT_run_k, "S", v->shape[2], k->shape[2], err)))
        return code;
    if (k->dtype != q->dtype || v->dtype != q->dtype) {
        bool by_k = k->dtype != q->dtype;
        return kit_fail(err, KIT_BAD_FILE, "%s: is %s but %s is %s; give --dtype to convert both",
                        option_text(o, by_k ? OPT_run_k : OPT_run_v),
                        attn_dtype_name(by_k ? k->dtype : v->dtype), option_text(o, OPT_run_q),
                        attn_dtype_name(q->dtype));
    }
    return KIT_OK;
}

/* ------------------------------------------------------------------------- masks and vectors */

/* Writes "[7, 9]". */
static const char *shape_text(char *text, size_t size, const kit_array *a)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < a->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)a->shape[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}

/* Reads the mask, or opens it if each rank reads other rows of it. */
static int load_mask(run_input *in, const char *spec, bool ranks, kit_error *err)
{
    kit_entry *entries;
    size_t count;
    if (!ranks)
        return kit_read_array(&in->mask, spec, err);
    int code = kit_read_list(&entries, &count, spec, err);
    if (code)
        return code;
    const bool rows = count == 1 && entries->rank >= 2 && entries->shape[entries->rank - 2] != 1;
    free(entries);
    if (!rows)
        return kit_read_array(&in->mask, spec, err);
    if (!(code = kit_rows_open(&in->mask_rows, spec, err)))
        in->mask = *kit_rows_array(in->mask_rows);
    return code;
}

static int read_mask(run_input *in, const char *spec, bool ranks, kit_error *err)
{
    static const char letters[] = "BHTS";
    int64_t want[4] = {in->args.q.shape[0], in->args.q.shape[1], in->args.q.shape[2],
                       in->args.k.shape[2]};
    kit_array *m = &in->mask;
    char shape[256];
    int code = load_mask(in, spec, ranks, err);
    if (code)
        return code;
    if (!is_float(m->dtype) && m->dtype != ATTN_BOOL)
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: is an array of integers; a mask is bool (true = attend) or float (added)", spec);
    if (m->rank > 4)
        return kit_fail(err, KIT_BAD_FILE, "%s: has rank %d; a mask has at most 4 dimensions", spec,
                        m->rank);
    for (int i = 3; i >= 4 - m->rank; i--) {
        int64_t n = m->shape[i - 4 + m->rank];
        if (n == want[i] || n == 1)
            continue;
        char which[32];
        snprintf(which, sizeof which, i == 3 ? "the last dimension" : "dimension %c", letters[i]);
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: shape %s does not broadcast to [B=%lld, H=%lld, T=%lld, S=%lld]; %s must "
            "be %lld or 1",
            spec, shape_text(shape, sizeof shape, m), (long long)want[0], (long long)want[1],
            (long long)want[2], (long long)want[3], which, (long long)want[i]);
    }
    if (m->data && m->dtype != ATTN_BOOL)
        in->finite = in->finite && run_is_finite(m, true);
    in->mask_view = run_view(m);
    in->args.mask = &in->mask_view;
    return KIT_OK;
}

/* Reads the gradient of the output, which must have its shape. libattn does not take f16 with wider
 * queries, so it is converted to f32 then. */
static int read_grad_out(run_input *in, const char *spec, const options *o, kit_error *err)
{
    const attn_tensor *q = &in->args.q;
    const int64_t want[4] = {q->shape[0], q->shape[1], q->shape[2], in->args.v.shape[3]};
    kit_array *a = &in->grad_out;
    int code = read_operand(in, a, spec, o, err);
    if (code)
        return code;
    bool fits = a->rank == in->rank;
    for (int i = 4 - in->rank; i < 4 && fits; i++)
        fits = a->shape[i - 4 + in->rank] == want[i];
    char shape[256];
    if (!fits)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: has shape %s; it must be that of the output, of rank %d with "
                        "[B=%lld, H=%lld, T=%lld, Dv=%lld]",
                        spec, shape_text(shape, sizeof shape, a), in->rank, (long long)want[0],
                        (long long)want[1], (long long)want[2], (long long)want[3]);
    if (a->dtype != q->dtype && a->dtype != ATTN_F32 && a->dtype != ATTN_F64) {
        kit_array converted = {0};
        if ((code = kit_array_convert(&converted, a, ATTN_F32, err)))
            return code;
        kit_array_free(a);
        *a = converted;
    }
    in->dout = run_view(a);
    return KIT_OK;
}

static int read_lengths(run_input *in, const char *spec, kit_error *err)
{
    int64_t B = in->args.q.shape[0], S = in->args.k.shape[2];
    kit_array given = {0};
    int code = kit_read_array(&given, spec, err);
    if (!code && given.dtype != ATTN_I64)
        code = kit_fail(err, KIT_BAD_FILE, "%s: is an array of %s; key lengths must be integers",
                        spec, attn_dtype_name(given.dtype));
    bool one = !code && given.rank == 0;
    if (!code && !one && (given.rank != 1 || given.shape[0] != B)) {
        char shape[256];
        code = kit_fail(err, KIT_BAD_FILE,
                        "%s: has shape %s; key lengths must be [B=%lld] or one number", spec,
                        shape_text(shape, sizeof shape, &given), (long long)B);
    }
    if (!code)
        code = kit_array_new(&in->lengths, ATTN_I64, 1, &B, err);
    for (int64_t b = 0; b < B && !code; b++) {
        int64_t n = ((const int64_t *)given.data)[one ? 0 : b];
        ((int64_t *)in->lengths.data)[b] = n;
        if (n < 0 || n > S)
            code = kit_fail(err, KIT_BAD_FILE, "%s: element %lld is %lld; must be 0 to S=%lld",
                            spec, (long long)b, (long long)n, (long long)S);
    }
    kit_array_free(&given);
    in->args.key_lengths = in->lengths.data;
    return code;
}

/* Reads --alibi or --sinks: one float for each query head. */
static int read_per_head(run_input *in, kit_array *out, const float **pointer, const char *spec,
                         bool minus_infinity, kit_error *err)
{
    int64_t H = in->args.q.shape[1];
    kit_array given = {0};
    char shape[256];
    int code = kit_read_array(&given, spec, err);
    if (!code && (!is_float(given.dtype) || given.rank != 1 || given.shape[0] != H))
        code = kit_fail(err, KIT_BAD_FILE,
                        "%s: has dtype %s and shape %s; must be floating point of shape [H=%lld]",
                        spec, attn_dtype_name(given.dtype), shape_text(shape, sizeof shape, &given),
                        (long long)H);
    if (!code) {
        in->finite = in->finite && run_is_finite(&given, minus_infinity);
        code = kit_array_convert(out, &given, ATTN_F32, err);
    }
    kit_array_free(&given);
    *pointer = out->data;
    return code;
}

/* -------------------------------------------------------------------------------------- numbers */

static int parse_window(attn_sdpa_args *args, const char *text, kit_error *err)
{
    static const char range[] = "-1..1000000000000"; /* sums of these cannot overflow */
    int64_t sides[2] = {-1, -1};
    if (!text)
        return KIT_OK;
    if (value_list(text, sides, 2) != 2 || !value_in_integers(sides[0], range) ||
        !value_in_integers(sides[1], range))
        return kit_fail(
            err, KIT_USAGE,
            "--window %s: must be L,R, two integers: the number of keys seen to the left and to "
            "the right, or -1 for all",
            text);
    args->window_left = sides[0];
    args->window_right = sides[1];
    return KIT_OK;
}

/* Parses --diagonal and --alibi-symmetric, which are refused if they would change nothing. */
static int parse_places(attn_sdpa_args *args, const options *o, kit_error *err)
{
    const bool alibi = option_given(o, OPT_run_alibi);
    if (option_given(o, OPT_run_alibi_symmetric) && !alibi)
        return kit_fail(err, KIT_USAGE, "--alibi-symmetric has no effect without --alibi FILE");
    if (option_given(o, OPT_run_diagonal) && option_given(o, OPT_run_causal))
        return kit_fail(err, KIT_USAGE,
                        "--diagonal does not go with --causal, which sets the diagonal itself");
    if (option_given(o, OPT_run_diagonal) && !option_given(o, OPT_run_window) && !alibi)
        return kit_fail(err, KIT_USAGE, "--diagonal has no effect without --window or --alibi");
    if (option_given(o, OPT_run_alibi_symmetric))
        args->alibi_form = ATTN_ALIBI_SYMMETRIC;
    return engine_parse_diagonal(args, option_text(o, OPT_run_diagonal), err);
}

static int parse_numbers(attn_sdpa_args *args, const options *o, kit_error *err)
{
    args->scale = option_real(o, OPT_run_scale);
    args->softcap = option_real(o, OPT_run_softcap);
    args->dropout = option_real(o, OPT_run_dropout);
    args->dropout_seed = option_seed(o, OPT_run_seed);
    args->precision =
        option_choice(o, OPT_run_precision) == 1 ? ATTN_PRECISION_ACCURATE : ATTN_PRECISION_DEFAULT;
    if (option_given(o, OPT_run_scale) && args->scale == 0)
        return kit_fail(err, KIT_USAGE, "--scale %s: must not be 0; leave it out for 1/sqrt(D)",
                        option_text(o, OPT_run_scale));
    if (option_given(o, OPT_run_seed) && !option_given(o, OPT_run_dropout))
        return kit_fail(err, KIT_USAGE, "--seed has no effect without --dropout P");
    int code = engine_parse_causal(args, option_text(o, OPT_run_causal), false, err);
    if (code || (code = parse_window(args, option_text(o, OPT_run_window), err)))
        return code;
    return parse_places(args, o, err);
}

int run_read(run_input *in, const options *o, kit_error *err)
{
    const char *mask = option_text(o, OPT_run_mask), *alibi = option_text(o, OPT_run_alibi);
    const char *lengths = option_text(o, OPT_run_key_lengths),
               *sinks = option_text(o, OPT_run_sinks), *grad_out = option_text(o, OPT_run_grad_out);
    const bool ranks = option_given(o, OPT_run_mpi);
    attn_sdpa_args *args = &in->args;
    int code = KIT_OK;
    in->finite = true;
    attn_sdpa_args_init(args);
    if ((code = parse_numbers(args, o, err)) ||
        (code = ranks ? open_operand(&in->q_rows, &in->q, option_text(o, OPT_run_q), o, err)
                      : read_operand(in, &in->q, option_text(o, OPT_run_q), o, err)) ||
        (code = read_keys(in, o, err)))
        return code;
    in->rank = in->q.rank;
    args->q = run_view(&in->q);
    args->k = run_view(&in->k);
    args->v = run_view(&in->v);
    if ((code = check_operands(in, o, err)) ||
        (grad_out && (code = read_grad_out(in, grad_out, o, err))) ||
        (mask && (code = read_mask(in, mask, ranks, err))) ||
        (lengths && (code = read_lengths(in, lengths, err))) ||
        (alibi && (code = read_per_head(in, &in->alibi, &args->alibi_slopes, alibi, false, err))) ||
        (sinks && (code = read_per_head(in, &in->sinks, &args->sink_logits, sinks, true, err))))
        return code;
    return KIT_OK;
}

void run_input_free(run_input *in)
{
    kit_array *all[] = {&in->q,       &in->k,     &in->v,     &in->mask,
                        &in->lengths, &in->alibi, &in->sinks, &in->grad_out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kit_array_free(all[i]);
    kit_rows *const open[] = {in->q_rows, in->k_rows, in->v_rows, in->mask_rows};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        kit_rows_close(open[i]);
}
