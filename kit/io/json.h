/* JSON files that come with a model: read whole, strictly, and asked for typed fields. */
#ifndef KIT_IO_JSON_H
#define KIT_IO_JSON_H

#include <jansson.h>

#include "../kit.h"

/* All bytes of a file (regular, at most `limit`), with a NUL behind them; free() them. */
int io_read_bytes(char **bytes, size_t *size, const char *path, size_t limit, kit_error *err);

/* jansson: every call that allocates stands between io_json_begin and the question whether memory
 * lacked; what it made is worth nothing if so. io_json_load does both: KIT_BAD_FILE leaves the
 * reason in e, KIT_LIMIT nothing. */
void io_json_begin(void);
bool io_json_lacked(void);
int io_json_load(json_t **out, const void *bytes, size_t size, json_error_t *e);

/* A document whose top is an object. Keys that come twice are refused. `name` starts messages. */
int io_json_parse(json_t **out, const char *name, const void *bytes, size_t size, kit_error *err);
int io_json_read(json_t **out, const char *path, size_t limit, kit_error *err);
/* With integers as reals, for files where 10^30 stands for none: no integer is too big. */
int io_json_read_reals(json_t **out, const char *path, size_t limit, kit_error *err);

/* A member of an object that has one of these types; absent or null: *to stays as it is. What is
 * there and is something else is KIT_BAD_FILE: "name: key is ...; it must be ...". */
int io_json_integer(int64_t *to, const json_t *object, const char *name, const char *key,
                    int64_t low, int64_t high, kit_error *err);
int io_json_real(double *to, const json_t *object, const char *name, const char *key, double low,
                 double high, kit_error *err);
int io_json_flag(bool *to, const json_t *object, const char *name, const char *key, kit_error *err);
int io_json_text(const char **to, const json_t *object, const char *name, const char *key,
                 kit_error *err);

#endif
