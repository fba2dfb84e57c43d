/* The checksum of saved caches and saved states: the last 8 bytes are FNV-1a of the others. */
#ifndef FUZZ_SEAL_H
#define FUZZ_SEAL_H

#include <stddef.h>
#include <stdint.h>

/* Writes the checksum; size >= 8. */
static inline void seal_bytes(uint8_t *data, size_t size)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < size - 8; i++)
        hash = (hash ^ data[i]) * UINT64_C(0x100000001B3);
    for (size_t i = 0; i < 8; i++)
        data[size - 8 + i] = (uint8_t)(hash >> 8 * i);
}

#endif
