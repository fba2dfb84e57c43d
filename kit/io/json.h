/* Reads the JSON files that come with a model: the whole file, strictly, with typed access to its
 * fields. */
#ifndef KIT_IO_JSON_H
#define KIT_IO_JSON_H

#include <jansson.h>

#include "../kit.h"

/* Reads all bytes of a regular file of at most `limit` bytes, and adds a NUL. The caller frees
 * them. */
int io_read_bytes(char **bytes, size_t *size, const char *path, size_t limit, kit_error *err);

/* Parses bytes. On KIT_BAD_FILE e holds the reason; on KIT_LIMIT (no memory) e is not
 * meaningful. */
int io_json_load(json_t **out, const void *bytes, size_t size, json_error_t *e);

/* Parses a document whose top is an object. Repeated keys are refused. `name` starts messages. */
int io_json_parse(json_t **out, const char *name, const void *bytes, size_t size, kit_error *err);
int io_json_read(json_t **out, const char *path, size_t limit, kit_error *err);
/* Reads integers as reals, so that no integer is too big. For files where 10^30 means "none". */
int io_json_read_reals(json_t **out, const char *path, size_t limit, kit_error *err);

/* Read a member of an object as one of these types. If the member is absent or null, *to keeps its
 * value. If it has another type or is out of range, the result is KIT_BAD_FILE: "name: key is ...;
 * it must be ...". */
int io_json_integer(int64_t *to, const json_t *object, const char *name, const char *key,
                    int64_t low, int64_t high, kit_error *err);
int io_json_real(double *to, const json_t *object, const char *name, const char *key, double low,
                 double high, kit_error *err);
int io_json_flag(bool *to, const json_t *object, const char *name, const char *key, kit_error *err);
int io_json_text(const char **to, const json_t *object, const char *name, const char *key,
                 kit_error *err);

#endif
