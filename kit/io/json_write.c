/* Writes JSON: see json_write.h. */
#include "json_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shortest.h"

static void put_stdout(void *to, const char *bytes, size_t size)
{
    (void)to;
    fwrite(bytes, 1, size, stdout);
}

json_writer json_writer_to(kit_text_sink *put, void *to)
{
    return (json_writer){.put = put, .to = to, .indent = -1};
}

json_writer json_begin_stdout(const char *schema)
{
    json_writer j = json_writer_to(put_stdout, NULL);
    json_put_object(&j, NULL);
    json_put_text(&j, "schema", schema);
    return j;
}

void json_end_stdout(json_writer *j)
{
    json_end_object(j);
    putchar('\n');
}

void json_new_line(json_writer *j, int indent) { j->indent = indent; }

static void put(json_writer *j, const char *text) { j->put(j->to, text, strlen(text)); }

/* Writes all that precedes the value of an item. */
static void begin_item(json_writer *j, const char *key)
{
    if (j->comma)
        put(j, ",");
    if (j->indent >= 0) {
        put(j, "\n");
        for (int i = 0; i < j->indent; i++)
            put(j, " ");
    } else if (j->comma && j->spaced) {
        put(j, " ");
    }
    if (key) {
        kit_text_json(key, strlen(key), j->put, j->to);
        put(j, j->spaced ? ": " : ":");
    }
    j->comma = true;
    j->indent = -1;
}

static void open(json_writer *j, const char *key, const char *bracket)
{
    begin_item(j, key);
    put(j, bracket);
    j->comma = false;
}

static void end(json_writer *j, const char *bracket)
{
    put(j, bracket);
    j->comma = true;
}

void json_put_object(json_writer *j, const char *key) { open(j, key, "{"); }
void json_end_object(json_writer *j) { end(j, "}"); }
void json_put_array(json_writer *j, const char *key) { open(j, key, "["); }
void json_end_array(json_writer *j) { end(j, "]"); }

void json_put_text(json_writer *j, const char *key, const char *text)
{
    json_put_text_of(j, key, text, strlen(text));
}

void json_put_text_of(json_writer *j, const char *key, const char *text, size_t size)
{
    begin_item(j, key);
    kit_text_json(text, size, j->put, j->to);
}

void json_put_integer(json_writer *j, const char *key, int64_t x)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, x);
    begin_item(j, key);
    put(j, text);
}

/* Tries `least` digits, then more; `most` are always enough. */
static void put_number(json_writer *j, double x, bool is_float, int least, int most)
{
    char text[40];
    if (!isfinite(x)) {
        put(j, isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"");
        return;
    }
    if (is_float && least == SHORTEST_LEAST && shortest_float(text, (float)x)) {
        put(j, text);
        return;
    }
    for (int digits = least; digits <= most; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        const double back = strtod(text, NULL);
        if (is_float ? (float)back == (float)x : back == x)
            break;
    }
    put(j, text);
}

void json_put_real(json_writer *j, const char *key, double x)
{
    begin_item(j, key);
    put_number(j, x, false, j->spaced ? 15 : 1, 17);
}

void json_put_float(json_writer *j, const char *key, double x)
{
    begin_item(j, key);
    put_number(j, x, true, j->spaced ? 6 : 1, 9);
}

void json_put_flag(json_writer *j, const char *key, bool x)
{
    begin_item(j, key);
    put(j, x ? "true" : "false");
}

void json_put_null(json_writer *j, const char *key)
{
    begin_item(j, key);
    put(j, "null");
}

void json_put_sizes(json_writer *j, const char *key, const int64_t *size, int count)
{
    json_put_array(j, key);
    for (int i = 0; i < count; i++)
        json_put_integer(j, NULL, size[i]);
    json_end_array(j);
}

void json_put_base64(json_writer *j, const char *key, const void *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *byte = bytes;
    char part[4 * 1024];
    size_t used = 0;
    begin_item(j, key);
    put(j, "\"");
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const uint32_t x = (uint32_t)byte[i] << 16 | (left > 1 ? (uint32_t)byte[i + 1] << 8 : 0) |
                           (left > 2 ? byte[i + 2] : 0);
        part[used++] = digits[x >> 18];
        part[used++] = digits[x >> 12 & 63];
        part[used++] = left > 1 ? digits[x >> 6 & 63] : '=';
        part[used++] = left > 2 ? digits[x & 63] : '=';
        if (used == sizeof part) {
            j->put(j->to, part, used);
            used = 0;
        }
    }
    j->put(j->to, part, used);
    put(j, "\"");
}
