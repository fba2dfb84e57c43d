/* Writes a trace as a JSON object, for a JSON file or for a page. */
#ifndef KIT_EXPLAIN_RENDER_JSON_H
#define KIT_EXPLAIN_RENDER_JSON_H

#include "../../io/json_write.h"
#include "draw.h"

/* How a step's numbers are written. */
typedef enum json_form {
    JSON_NUMBERS, /* "data": [..], enough digits to read back exactly */
    JSON_F32,     /* "f32": base64 of the little-endian elements, row-major */
    JSON_F16,     /* "f16": the same, rounded to 11 bits */
    JSON_DERIVED  /* left out: the reader computes the numbers as "made" says */
} json_form;

/* form gives the form of each step's numbers. With NULL the object is for a JSON file, and all
 * steps are written as numbers. With a function it is for a page: it has the scores behind weights
 * even if they are check_only, the steps that are html_only, and no list of rows. */
typedef struct json_style {
    json_form (*form)(const trace_step *step, void *self);
    void *self;
} json_style;

/* Returns false if there is not enough memory. */
bool json_put_trace(json_writer *j, const char *key, const trace *t, const json_style *style);

/* Writes the member "script"; the trace must have one. Returns false if there is not enough
 * memory. */
bool json_put_script(json_writer *j, const trace *t);

/* Writes into a sink, with spaces between items. */
json_writer json_writer_sink(sink *s);

/* The trace as render_html() puts it into a page. json_put_page returns as json_put_trace. */
bool json_put_page(json_writer *j, const char *key, const trace *t);
int json_of_page(char **bytes, size_t *size, const trace *t, kit_error *err);

#endif
