/* Strings and ids, pairs and merges: hash tables with open addressing, at most half full. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer_inner.h"

static uint64_t hash_bytes(const char *bytes, size_t length)
{
    const uint64_t h = kit_hash(KIT_HASH_START, bytes, length);
    return h ^ h >> 29;
}

/* ------------------------------------------------------------------------------- Vocabulary */

/* Returns the slot that holds the bytes, or the free slot for them. */
static size_t place_of(const text_vocabulary *v, const text_slots *in, const char *bytes,
                       size_t length)
{
    size_t at = hash_bytes(bytes, length) & (in->slots - 1);
    for (; in->slot[at]; at = (at + 1) & (in->slots - 1)) {
        const text_entry *e = &v->entry[in->slot[at] - 1];
        if (e->length == length && memcmp(e->bytes, bytes, length) == 0)
            break;
    }
    return at;
}

static int64_t find_in(const text_vocabulary *v, const text_slots *in, const char *bytes,
                       size_t length)
{
    return in->slots ? (int64_t)in->slot[place_of(v, in, bytes, length)] - 1 : -1;
}

int64_t text_vocabulary_find(const text_vocabulary *v, const char *bytes, size_t length)
{
    return find_in(v, &v->pieces, bytes, length);
}

int64_t text_vocabulary_find_name(const text_vocabulary *v, const char *bytes, size_t length)
{
    return find_in(v, &v->names, bytes, length);
}

static bool grow_slots(const text_vocabulary *v, text_slots *in)
{
    if (in->used * 2 < in->slots)
        return true;
    text_slots larger = {.slots = in->slots ? 2 * in->slots : 1024, .used = in->used};
    larger.slot = calloc(larger.slots, sizeof *larger.slot);
    if (!larger.slot)
        return false;
    for (size_t i = 0; i < in->slots; i++)
        if (in->slot[i]) {
            const text_entry *e = &v->entry[in->slot[i] - 1];
            larger.slot[place_of(v, &larger, e->bytes, e->length)] = in->slot[i];
        }
    free(in->slot);
    *in = larger;
    return true;
}

static bool grow_entries(text_vocabulary *v, int64_t id)
{
    if (id >= v->capacity) {
        int64_t capacity = v->capacity ? v->capacity : 1024;
        while (capacity <= id)
            capacity *= 2;
        /* calloc, so that the unused entries below one large id take no memory. */
        text_entry *grown = calloc((size_t)capacity, sizeof *grown);
        if (!grown)
            return false;
        if (v->size)
            memcpy(grown, v->entry, (size_t)v->size * sizeof *grown);
        free(v->entry);
        v->entry = grown;
        v->capacity = capacity;
    }
    v->size = id >= v->size ? id + 1 : v->size;
    return true;
}

/* How many bytes of a token a message shows. */
static int shown(size_t length) { return length < 80 ? (int)length : 80; }

int text_vocabulary_add(text_vocabulary *v, const char *bytes, size_t length, int64_t id,
                        text_sought by, const char *name, kit_error *err)
{
    text_slots *in = by == TEXT_BY_BYTES ? &v->pieces : by == TEXT_BY_NAME ? &v->names : NULL;
    if (id < 0 || id >= TEXT_IDS)
        return kit_fail(err, KIT_BAD_FILE, "%s: token '%.*s' has the id %lld; it must be 0 to %lld",
                        name, shown(length), bytes, (long long)id, (long long)TEXT_IDS - 1);
    if (!grow_entries(v, id) || (in && !grow_slots(v, in)))
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    if (v->entry[id].bytes)
        return kit_fail(err, KIT_BAD_FILE, "%s: two tokens have the id %lld", name, (long long)id);
    const size_t at = in ? place_of(v, in, bytes, length) : 0;
    if (in && in->slot[at])
        return kit_fail(err, KIT_BAD_FILE, "%s: token '%.*s' appears twice", name, shown(length),
                        bytes);
    char *copy = malloc(length + 1);
    if (!copy)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", name);
    memcpy(copy, bytes, length);
    copy[length] = 0;
    v->entry[id] = (text_entry){copy, length};
    v->count++;
    if (in) {
        in->slot[at] = (uint32_t)id + 1;
        in->used++;
    }
    return KIT_OK;
}

void text_vocabulary_free(text_vocabulary *v)
{
    for (int64_t i = 0; i < v->size; i++)
        free(v->entry[i].bytes);
    free(v->entry);
    free(v->pieces.slot);
    free(v->names.slot);
    *v = (text_vocabulary){0};
}

/* ----------------------------------------------------------------------------------- Merges */

static size_t merge_place(const text_merges *m, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    size_t at = (h ^ h >> 32) & (m->slots - 1);
    while (m->slot[at].rank != UINT32_MAX &&
           (m->slot[at].left != left || m->slot[at].right != right))
        at = (at + 1) & (m->slots - 1);
    return at;
}

int text_merges_reserve(text_merges *m, size_t count, const char *name, kit_error *err)
{
    size_t slots = 16;
    while (slots < 2 * count && slots < SIZE_MAX / 4)
        slots *= 2;
    m->slot = slots < UINT32_MAX ? malloc(slots * sizeof *m->slot) : NULL;
    if (!m->slot)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory for %zu merges", name, count);
    memset(m->slot, 0xFF, slots * sizeof *m->slot);
    m->slots = slots;
    return KIT_OK;
}

int text_merges_add(text_merges *m, int64_t left, int64_t right, int64_t made, const char *name,
                    kit_error *err)
{
    const size_t at = merge_place(m, (uint32_t)left, (uint32_t)right);
    if (m->slot[at].rank != UINT32_MAX)
        return kit_fail(err, KIT_BAD_FILE, "%s: merge %u repeats merge %u", name, m->count + 1,
                        m->slot[at].rank + 1);
    m->slot[at] = (text_merge){(uint32_t)left, (uint32_t)right, m->count++, (uint32_t)made};
    return KIT_OK;
}

const text_merge *text_merges_find(const text_merges *m, uint32_t left, uint32_t right)
{
    if (!m->slots)
        return NULL;
    const text_merge *found = &m->slot[merge_place(m, left, right)];
    return found->rank != UINT32_MAX ? found : NULL;
}
