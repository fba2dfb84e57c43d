/* A trace as JSON for a page.
 *
 * Large steps that the page can compute from other steps are left out. Floats are stored as base64,
 * because writing and reading their digits takes longer than computing them, and a page computes
 * them while someone types. Large steps are stored as f16 if floats would take too much space.
 */
#include <math.h>

#include "render_json.h"

#define MOST_SMALL ((int64_t)4096)  /* elements of a step that is not large */
#define MOST_F32 ((int64_t)1 << 20) /* elements of all larger steps; f16 if there are more */
#define F16_MOST 65504.0

static bool is_large(const trace_step *s) { return kit_array_count(&s->tensor) > MOST_SMALL; }

/* Whether the page computes this step, in double precision, from the steps that its `made`
 * names. */
static bool is_derived(const trace *t, const trace_step *s)
{
    if (s->tensor.data == NULL) {
        return true;
    }
    if (!is_large(s) || trace_find(t, s->a) == NULL) {
        return false;
    }
    switch (s->op) {
    case TRACE_SCALE:
    case TRACE_SOFTMAX: return true;
    case TRACE_MASK: return s->causal;
    case TRACE_DOT:
    case TRACE_MIX:
    case TRACE_ATTEND: return trace_find(t, s->b) != NULL;
    default: return false;
    }
}

static bool fits_f16(const kit_array *a)
{
    int64_t count = kit_array_count(a);
    for (int64_t i = 0; i < count; i++) {
        double x = fabs(kit_array_get(a, i));
        if (x > F16_MOST && isfinite(x)) {
            return false;
        }
    }
    return true;
}

typedef struct layout {
    const trace *trace;
    bool rounded; /* too many elements for f32 */
} layout;

static json_form form_of(const trace_step *s, void *self)
{
    const layout *l = self;
    bool is_float = s->tensor.dtype == ATTN_F32 || s->tensor.dtype == ATTN_F64 ||
                    s->tensor.dtype == ATTN_F16 || s->tensor.dtype == ATTN_BF16;
    if (is_derived(l->trace, s)) {
        return JSON_DERIVED;
    }
    if (!is_float || (s->tensor.dtype == ATTN_F64 && !is_large(s))) {
        return JSON_NUMBERS;
    }
    /* Sums of products may cancel, so f16 would not be exact enough. */
    return l->rounded && is_large(s) && s->op != TRACE_PRODUCTS && fits_f16(&s->tensor) ? JSON_F16
                                                                                        : JSON_F32;
}

bool json_put_page(json_writer *j, const char *key, const trace *t)
{
    layout l = {t, false};
    int64_t elements = 0;
    for (size_t i = 0; i < t->count + t->html_only_count; i++) {
        bool kept = is_large(&t->step[i]) && !is_derived(t, &t->step[i]);
        elements += kept ? kit_array_count(&t->step[i].tensor) : 0;
    }
    l.rounded = elements > MOST_F32;
    return json_put_trace(j, key, t, &(json_style){form_of, &l});
}

int json_of_page(char **bytes, size_t *size, const trace *t, kit_error *err)
{
    sink s = {0};
    json_writer j = json_writer_sink(&s);
    s.failed = !json_put_page(&j, NULL, t) || s.failed;
    return sink_finish(&s, bytes, size, err);
}
