/* For the sentence in the page: attn explain, from the text to the trace as JSON. */
#include <stdlib.h>
#include <string.h>

#include "../../lessons/lessons.h"
#include "../../render/render_json.h"
#include "module.h"

/* The result of the last explain(): JSON, or the message of its error. */
static char *said;
static size_t said_size;
static kit_error error;

const char *EXPORT(said_at)(void) { return said ? said : error.message; }
size_t EXPORT(said_bytes)(void) { return said ? said_size : strlen(error.message); }

/* Returns the address of `bytes` bytes for the text; 0 if there is no memory. */
void *EXPORT(text_room)(size_t bytes)
{
    static void *text;
    free(text);
    return text = malloc(bytes);
}

/* Explains the text, with the options of attn explain; query: NULL, or a word or its position.
 * as_page: the JSON of a page's trace, else what --json prints. Returns 0 or an exit code of
 * attn. */
int EXPORT(explain)(const char *text, const char *query, uint64_t seed, int embed, int qk, int v,
                    int heads, int causal, int no_scale, double scale, int as_page)
{
    const explain_options o = {.text = text,
                               .seed = seed,
                               .embed = embed,
                               .qk = qk,
                               .v = v,
                               .heads = heads,
                               .causal = causal,
                               .no_scale = no_scale,
                               .scale = scale,
                               .query = query};
    trace t;
    free(said);
    said = NULL;
    int code = lesson_explain(&t, &o, NULL, &error);
    if (code)
        return code;
    code = (as_page ? json_of_page : render_json)(&said, &said_size, &t, &error);
    trace_free(&t);
    return code;
}
