/* Writes JSON: everything that the program writes as JSON goes through these functions, item by
 * item and without a tree, so large arrays need no memory. (json.h reads, with jansson.)
 *
 *     json_writer j = json_writer_to(put, to);      {"text":"a","sizes":[1,2]}
 *     json_put_object(&j, NULL);
 *     json_put_text(&j, "text", "a");
 *     json_put_sizes(&j, "sizes", (int64_t[]){1, 2}, 2);
 *     json_end_object(&j);
 */
#ifndef KIT_IO_JSON_WRITE_H
#define KIT_IO_JSON_WRITE_H

#include "../kit.h"

typedef struct json_writer {
    kit_text_sink *put; /* receives the bytes */
    void *to;
    bool spaced; /* ", " and ": " instead of "," and ":"; numbers below 1e15 without exponent */
    bool comma;  /* an item precedes the next one in its object or array */
    int indent;  /* >= 0: the next item begins a line, after so many spaces */
} json_writer;

/* No spaces between items. */
json_writer json_writer_to(kit_text_sink *put, void *to);
/* Begin and end what a command prints: an object {"schema":"...", ...} and a line end. */
json_writer json_begin_stdout(const char *schema);
void json_end_stdout(json_writer *j);

/* The next item begins a new line, after `indent` spaces. */
void json_new_line(json_writer *j, int indent);

/* key: the name of a member; NULL in an array and for the outermost value. */
void json_put_object(json_writer *j, const char *key);
void json_end_object(json_writer *j);
void json_put_array(json_writer *j, const char *key);
void json_end_array(json_writer *j);
/* Bytes that are not UTF-8 become U+FFFD; see kit_text_json. */
void json_put_text(json_writer *j, const char *key, const char *text);
/* The same for `size` bytes, which may contain NUL; a NUL follows them. */
void json_put_text_of(json_writer *j, const char *key, const char *text, size_t size);
void json_put_integer(json_writer *j, const char *key, int64_t x);
/* The fewest digits that read back as the same double or, json_put_float, the same float. What
 * JSON numbers cannot express is the string "inf", "-inf" or "nan". */
void json_put_real(json_writer *j, const char *key, double x);
void json_put_float(json_writer *j, const char *key, double x);
void json_put_flag(json_writer *j, const char *key, bool x);
void json_put_null(json_writer *j, const char *key);
void json_put_sizes(json_writer *j, const char *key, const int64_t *size, int count); /* [2,64] */
void json_put_base64(json_writer *j, const char *key, const void *bytes, size_t size);

#endif
