/* Reads the trained heads, for kit/train/heads.c, without a JSON library: the file is the project's
 * own (kit/explain/trained/), so its header has no escapes, and no key appears twice. Replaces
 * kit/io/safetensors.c. */
#include <stdlib.h>
#include <string.h>

#include "../../../io/io.h"

/* Where the value of "key" begins in the header; NULL: there is none. */
static const char *find_value(const io_safetensors *f, const char *key)
{
    const size_t length = strlen(key);
    for (const char *at = f->header; (at = strstr(at, key)) != NULL; at += length)
        if (at[-1] == '"' && at[length] == '"' && at[length + 1] == ':')
            return at + length + 3; /* after a space */
    return NULL;
}

io_source io_source_memory(const char *name, const void *bytes, size_t size)
{
    return (io_source){.name = name, .size = (int64_t)size, .memory = bytes};
}

int io_safetensors_open(io_safetensors *f, io_source *file, kit_error *err)
{
    uint64_t bytes;
    memcpy(&bytes, file->memory, sizeof bytes);
    *f = (io_safetensors){.file = file, .data = (int64_t)(sizeof bytes + bytes)};
    f->header = strndup((const char *)file->memory + sizeof bytes, (size_t)bytes);
    return f->header ? KIT_OK : kit_fail(err, KIT_LIMIT, "no memory for the trained heads");
}

void io_safetensors_close(io_safetensors *f)
{
    for (size_t i = 0; i < f->count; i++)
        free((char *)f->tensor[i].name);
    free(f->tensor);
    free(f->header);
    memset(f, 0, sizeof *f);
}

/* The text of a key; a copy, which f owns as the name of a tensor. */
const char *io_safetensors_metadata(const io_safetensors *f, const char *key)
{
    io_safetensors *owner = (io_safetensors *)f;
    const char *value = find_value(f, key);
    io_tensor *grown = realloc(f->tensor, (f->count + 1) * sizeof *grown);
    if (!value || !grown)
        return NULL;
    owner->tensor = grown;
    char *copy = strndup(value + 1, strcspn(value + 1, "\""));
    grown[owner->count++].name = copy;
    return copy;
}

int io_safetensors_load(kit_array *a, const io_safetensors *f, const char *name, kit_error *err)
{
    const char *value = find_value(f, name);
    const char *shape = value ? strstr(value, "\"shape\": [") : NULL;
    const char *at = value ? strstr(value, "\"data_offsets\": [") : NULL;
    int64_t size[KIT_MAX_RANK] = {0};
    int rank = 0;
    if (!shape || !at)
        return kit_fail(err, KIT_BAD_FILE, "the trained heads have no %s", name);
    for (char *next = (char *)shape + strlen("\"shape\": [");
         *next != ']' && rank < KIT_MAX_RANK;) {
        size[rank++] = strtoll(next, &next, 10);
        next += *next == ',' ? 2 : 0;
    }
    const int code = kit_array_new(a, ATTN_F16, rank, size, err);
    if (!code)
        memcpy(a->data,
               (const char *)f->file->memory + f->data + strtoll(strchr(at, '[') + 1, NULL, 10),
               a->bytes);
    return code;
}
