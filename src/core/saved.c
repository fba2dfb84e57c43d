/* Saved bytes: numbers and elements, little-endian, with a checksum. */
#include "saved.h"

#include <string.h>

uint64_t attni_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *x = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ x[i]) * UINT64_C(0x100000001B3);
    return hash;
}

/* Copies elements, converting between this machine's byte order and little-endian; works in both
 * directions. */
static void copy_elements(void *to, const void *from, size_t bytes, size_t element)
{
#if ATTNI_BIG_ENDIAN
    for (size_t i = 0; i < bytes; i++)
        ((char *)to)[i] = ((const char *)from)[i / element * element + element - 1 - i % element];
#else
    (void)element;
    if (bytes > 0)
        memcpy(to, from, bytes);
#endif
}

bool attni_emit(attni_writer *w, const void *bytes, size_t n)
{
    w->hash = attni_fnv(w->hash, bytes, n);
    return n == 0 || !w->write || w->write(w->user, bytes, n) == 0;
}

bool attni_emit_number(attni_writer *w, uint64_t x, int bytes)
{
    unsigned char text[8];
    for (int i = 0; i < bytes; i++)
        text[i] = (unsigned char)(x >> 8 * i);
    return attni_emit(w, text, (size_t)bytes);
}

bool attni_emit_elements(attni_writer *w, const void *memory, size_t bytes, size_t element)
{
#if ATTNI_BIG_ENDIAN
    char piece[1024];
    for (size_t done = 0; done < bytes; done += sizeof piece) {
        const size_t n = bytes - done < sizeof piece ? bytes - done : sizeof piece;
        copy_elements(piece, (const char *)memory + done, n, element);
        if (!attni_emit(w, piece, n))
            return false;
    }
    return true;
#else
    (void)element;
    return attni_emit(w, memory, bytes);
#endif
}

uint64_t attni_get_number(const unsigned char *from, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes; i-- > 0;)
        x = x << 8 | from[i];
    return x;
}

uint64_t attni_next_number(attni_reader *r, int bytes)
{
    const uint64_t x = attni_get_number(r->at, bytes);
    r->at += bytes;
    r->left -= (size_t)bytes;
    return x;
}

void attni_next_elements(attni_reader *r, void *memory, size_t bytes, size_t element)
{
    copy_elements(memory, r->at, bytes, element);
    r->at += bytes;
    r->left -= bytes;
}
