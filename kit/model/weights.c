/* Tensors by name, from model.safetensors or, if there is none, from the files that
 * model.safetensors.index.json lists. Each tensor is read on request, must have the shape that the
 * config implies, and is converted to f32. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../io/json.h"
#include "inner.h"

enum { MOST_FILES = 1000, PATH_ROOM = 4096 };
#define INDEX_LIMIT ((size_t)64 << 20)

struct weights {
    json_t *index; /* NULL: one file */
    const json_t *map;
    struct {
        char *name; /* its key in the index */
        kit_safetensors *file;
    } shard[MOST_FILES];
    int shards;
    char path[PATH_ROOM]; /* of the folder or the file, for messages */
};

void weights_close(weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->shards; i++) {
        kit_safetensors_close(w->shard[i].file);
        free(w->shard[i].name);
    }
    json_decref(w->index);
    free(w);
}

static int add_shard(weights *w, const char *name, const char *path, kit_error *err)
{
    if (w->shards == MOST_FILES)
        return kit_fail(err, KIT_BAD_FILE, "%s: the model has more than %d files", w->path,
                        (int)MOST_FILES);
    char *copy = strdup(name);
    if (!copy)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", w->path);
    const int code = kit_safetensors_open(&w->shard[w->shards].file, path, err);
    if (code)
        free(copy);
    else
        w->shard[w->shards++].name = copy;
    return code;
}

static kit_safetensors *find_shard(const weights *w, const char *name)
{
    for (int i = 0; i < w->shards; i++)
        if (strcmp(w->shard[i].name, name) == 0)
            return w->shard[i].file;
    return NULL;
}

/* Refuses a file that has a tensor which the index assigns to another file. */
static int check_shards(const weights *w, kit_error *err)
{
    const char *tensor;
    for (int i = 0; i < w->shards; i++)
        for (size_t k = 0; (tensor = kit_safetensors_name(w->shard[i].file, k)); k++) {
            const char *file = json_string_value(json_object_get(w->map, tensor));
            if (file && strcmp(file, w->shard[i].name) != 0)
                return kit_fail(err, KIT_BAD_FILE,
                                "%s: tensor '%.80s' is in %.80s, but the index has it in %.80s",
                                w->path, tensor, w->shard[i].name, file);
        }
    return KIT_OK;
}

static int open_shards(weights *w, const char *folder, kit_error *err)
{
    const char *tensor;
    json_t *value;
    w->map = json_object_get(w->index, "weight_map");
    if (!json_is_object(w->map))
        return kit_fail(err, KIT_BAD_FILE, "%s: the index has no weight_map", folder);
    json_object_foreach((json_t *)w->map, tensor, value)
    {
        const char *name = json_string_value(value);
        char path[PATH_ROOM];
        /* Only a file in this folder is accepted. */
        if (!name || !*name || strchr(name, '/') || name[0] == '.')
            return kit_fail(err, KIT_BAD_FILE, "%s: the index names no file for tensor '%.80s'",
                            folder, tensor);
        if (find_shard(w, name))
            continue;
        const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
        if (n < 0 || n >= (int)sizeof path)
            return kit_fail(err, KIT_BAD_FILE, "%s: the index has a file name that is too long",
                            folder);
        const int code = add_shard(w, name, path, err);
        if (code)
            return code;
    }
    return check_shards(w, err);
}

static int begin(weights **out, const char *path, kit_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    snprintf((*out)->path, sizeof(*out)->path, "%s", path);
    return KIT_OK;
}

static int finish(weights **out, int code)
{
    if (code) {
        weights_close(*out);
        *out = NULL;
    }
    return code;
}

int weights_open_file(weights **out, const char *path, kit_error *err)
{
    int code = begin(out, path, err);
    if (!code)
        code = add_shard(*out, "", path, err);
    return finish(out, code);
}

int weights_open_folder(weights **out, const char *folder, kit_error *err)
{
    char path[PATH_ROOM];
    int code = begin(out, folder, err);
    if (code)
        return code;
    /* If model.safetensors is there, an index beside it may be out of date and is ignored. */
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    const bool one = access(path, F_OK) == 0;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    if (!one && access(path, F_OK) == 0) {
        code = io_json_read(&(*out)->index, path, INDEX_LIMIT, err);
        if (!code)
            code = open_shards(*out, folder, err);
    } else {
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        code = add_shard(*out, "", path, err);
    }
    return finish(out, code);
}

static const kit_safetensors *file_of(const weights *w, const char *name)
{
    if (!w->index)
        return w->shard[0].file;
    const char *file = json_string_value(json_object_get(w->map, name));
    return file ? find_shard(w, file) : NULL;
}

bool weights_has(const weights *w, const char *name)
{
    const kit_safetensors *f = file_of(w, name);
    return f && kit_safetensors_has(f, name);
}

/* ------------------------------------------------------------------------------- Conversion */

static float from_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x >> 15) << 31, exponent = x >> 10 & 31, rest = x & 1023;
    uint32_t bits = exponent == 31 ? 0x7F800000u | rest << 13 : (exponent + 112) << 23 | rest << 13;
    float y;
    if (!exponent) { /* 0 or subnormal: rest * 2^-24, exactly */
        y = (float)rest * 0x1p-24f;
        return sign ? -y : y;
    }
    bits |= sign;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static int convert(kit_array *out, const kit_array *a, kit_error *err)
{
    const int code = kit_array_new(out, ATTN_F32, a->rank, a->shape, err);
    const uint16_t *small = a->data;
    const double *large = a->data;
    const int64_t n = code ? 0 : kit_array_count(a);
    float *to = out->data;
    for (int64_t i = 0; i < n && a->dtype == ATTN_F64; i++)
        to[i] = (float)large[i];
    for (int64_t i = 0; i < n && a->dtype != ATTN_F64; i++) {
        const uint32_t high = (uint32_t)small[i] << 16;
        if (a->dtype == ATTN_F16)
            to[i] = from_f16(small[i]);
        else
            memcpy(&to[i], &high, sizeof high);
    }
    return code;
}

/* Transposes [rows, columns] to [columns, rows] by tiles. */
static int turn(kit_array *a, kit_error *err)
{
    enum { TILE = 32 };
    const int64_t R = a->shape[0], C = a->shape[1];
    kit_array out;
    const int code = kit_array_new(&out, ATTN_F32, 2, (const int64_t[]){C, R}, err);
    if (code)
        return code;
    const float *from = a->data;
    float *to = out.data;
    for (int64_t r0 = 0; r0 < R; r0 += TILE)
        for (int64_t c0 = 0; c0 < C; c0 += TILE)
            for (int64_t r = r0; r < R && r < r0 + TILE; r++)
                for (int64_t c = c0; c < C && c < c0 + TILE; c++)
                    to[c * R + r] = from[r * C + c];
    kit_array_free(a);
    *a = out;
    return KIT_OK;
}

static int check_shape(const kit_array *a, const char *path, const char *name, int64_t rows,
                       int64_t columns, kit_error *err)
{
    const int rank = rows ? 2 : 1;
    const int64_t wanted[2] = {rows ? rows : columns, columns};
    if (a->dtype != ATTN_F64 && a->dtype != ATTN_F32 && a->dtype != ATTN_F16 &&
        a->dtype != ATTN_BF16)
        return kit_fail(err, KIT_BAD_FILE,
                        "%s: tensor '%s' is %s; it must be f64, f32, f16 or bf16", path, name,
                        attn_dtype_name(a->dtype));
    if (a->rank == rank && memcmp(a->shape, wanted, (size_t)rank * sizeof *wanted) == 0)
        return KIT_OK;
    char text[64];
    snprintf(text, sizeof text, rows ? "[%" PRId64 ", %" PRId64 "]" : "[%" PRId64 "]", wanted[0],
             wanted[1]);
    return kit_fail(err, KIT_BAD_FILE,
                    "%s: tensor '%s' has %d dimension%s, the first of %" PRId64
                    "; by the config it must be %s",
                    path, name, a->rank, a->rank == 1 ? "" : "s", a->rank ? a->shape[0] : 1, text);
}

int weights_load(kit_array *a, const weights *w, const char *name, int64_t rows, int64_t columns,
                 bool turned, kit_error *err)
{
    const kit_safetensors *f = file_of(w, name);
    *a = (kit_array){0};
    if (!f || !kit_safetensors_has(f, name))
        return kit_fail(err, KIT_BAD_FILE, "%s: tensor '%s' is missing", w->path, name);
    kit_array stored;
    int code = kit_safetensors_load(&stored, f, name, err);
    if (code)
        return code;
    code =
        check_shape(&stored, w->path, name, turned ? columns : rows, turned ? rows : columns, err);
    if (!code && stored.dtype == ATTN_F32) {
        *a = stored;
        stored = (kit_array){0};
    } else if (!code) {
        code = convert(a, &stored, err);
    }
    kit_array_free(&stored);
    if (!code && turned)
        code = turn(a, err);
    if (code)
        kit_array_free(a);
    return code;
}
