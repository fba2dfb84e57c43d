/* Structs of the API that begin with their size, so that later versions can add members. This file
 * alone defines the smallest size accepted from a caller, the defaults of members that the caller's
 * struct lacks, and the rule for members that a newer caller may have set. The rules are in
 * docs/ABI.md. */
#include "internal.h"

#include <string.h>

#define LARGEST 4096 /* bytes; a larger struct_size was certainly never set */

/* The defaults that are not all zero. */
static const attn_sdpa_args sdpa_args = ATTN_SDPA_ARGS_INIT;
static const attn_cache_options cache_options = ATTN_CACHE_OPTIONS_INIT;
static const attn_adamw_options adamw_options = ATTN_ADAMW_OPTIONS_INIT;

/* `least`: offset of the first member that a caller's struct may lack. It never grows. */
static const struct {
    const char *name;
    const void *defaults; /* NULL: all zero */
    uint16_t size, least;
} structs[] = {
#define STRUCT(which, type, defaults, member)                                                      \
    [which] = {#type, defaults, sizeof(type), offsetof(type, member)}
    STRUCT(ATTNI_CONTEXT_OPTIONS, attn_context_options, NULL, threads),
    STRUCT(ATTNI_SDPA_ARGS, attn_sdpa_args, &sdpa_args, scale),
    STRUCT(ATTNI_PLAN_INFO, attn_plan_info, NULL, threads),
    STRUCT(ATTNI_SDPA_GRADS, attn_sdpa_grads, NULL, dmask),
    STRUCT(ATTNI_SDPA_TANGENTS, attn_sdpa_tangents, NULL, tlse),
    STRUCT(ATTNI_CACHE_OPTIONS, attn_cache_options, &cache_options, page_keys),
    STRUCT(ATTNI_MHA_ARGS, attn_mha_args, NULL, attention),
    STRUCT(ATTNI_MHA_GRADS, attn_mha_grads, NULL, dmask),
    STRUCT(ATTNI_PIECES_OPTIONS, attn_pieces_options, NULL, q_positions),
    STRUCT(ATTNI_ADAMW_OPTIONS, attn_adamw_options, &adamw_options, lr),
#undef STRUCT
};

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

void attni_struct_init(attni_struct which, void *to, size_t size)
{
    if (size < sizeof size)
        return;
    memset(to, 0, size);
    if (structs[which].defaults)
        memcpy(to, structs[which].defaults, smaller(size, structs[which].size));
    memcpy(to, &size, sizeof size);
}

/* Reads and checks the struct_size of a caller's struct. */
static attn_status take_size(size_t *size, attni_struct which, const void *from,
                             const char *argument, attn_error *err)
{
    const char *name = structs[which].name;
    if (!from)
        return attni_fail(err, ATTN_ERR_ARGUMENT, argument, "%s is NULL; it must point to an %s",
                          argument, name);
    memcpy(size, from, sizeof *size);
    if (*size < structs[which].least || *size > LARGEST || *size % sizeof *size != 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "struct_size",
                          "struct_size of %s is %zu, which no %s has; start from %s_init", argument,
                          *size, name, name);
    return ATTN_OK;
}

attn_status attni_struct_read(attni_struct which, void *to, const void *from, const char *argument,
                              attn_error *err)
{
    const size_t known = structs[which].size;
    size_t size = 0;
    const attn_status status = take_size(&size, which, from, argument, err);
    if (status)
        return status;
    for (size_t i = known; i < size; i++)
        if (((const char *)from)[i])
            return attni_fail(err, ATTN_ERR_ARGUMENT, "struct_size",
                              "struct_size of %s is %zu and its members beyond %zu are not 0, but "
                              "version " ATTN_VERSION_STRING " does not know them; leave them 0",
                              argument, size, known);
    if (size < known)
        attni_struct_init(which, to, known);
    memcpy(to, from, smaller(size, known));
    memcpy(to, &known, sizeof known);
    return ATTN_OK;
}

attn_status attni_struct_write(attni_struct which, void *to, const void *from, const char *argument,
                               attn_error *err)
{
    const size_t known = structs[which].size, first = sizeof(size_t);
    size_t size = 0;
    const attn_status status = take_size(&size, which, to, argument, err);
    if (status)
        return status;
    memcpy((char *)to + first, (const char *)from + first, smaller(size, known) - first);
    if (size > known)
        memset((char *)to + known, 0, size - known);
    return ATTN_OK;
}

/* The functions <type>_init_sized: the caller passes sizeof of the struct as the caller was
 * compiled. */
#define INIT(which, type)                                                                          \
    void type##_init_sized(type *to, size_t struct_size)                                           \
    {                                                                                              \
        attni_struct_init(which, to, struct_size);                                                 \
    }
INIT(ATTNI_CONTEXT_OPTIONS, attn_context_options)
INIT(ATTNI_SDPA_ARGS, attn_sdpa_args)
INIT(ATTNI_PLAN_INFO, attn_plan_info)
INIT(ATTNI_SDPA_GRADS, attn_sdpa_grads)
INIT(ATTNI_SDPA_TANGENTS, attn_sdpa_tangents)
INIT(ATTNI_CACHE_OPTIONS, attn_cache_options)
INIT(ATTNI_PIECES_OPTIONS, attn_pieces_options)
INIT(ATTNI_MHA_ARGS, attn_mha_args)
INIT(ATTNI_MHA_GRADS, attn_mha_grads)
INIT(ATTNI_ADAMW_OPTIONS, attn_adamw_options)
