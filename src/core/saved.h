/* Saved bytes of caches (cache/cache_file.c) and of states (sdpa/saved_state.c): numbers and
 * elements, little-endian, with a checksum. */
#ifndef ATTNI_SAVED_H
#define ATTNI_SAVED_H

#include "internal.h"

#define ATTNI_CHECKSUM 8 /* bytes at the end: FNV-1a of all bytes before (Fowler, Noll and Vo) */
#define ATTNI_FNV_START UINT64_C(0xCBF29CE484222325)
uint64_t attni_fnv(uint64_t hash, const void *bytes, size_t n);

typedef struct attni_writer {
    int (*write)(void *user, const void *bytes, size_t n); /* NULL: the bytes are only hashed */
    void *user;
    uint64_t hash; /* ATTNI_FNV_START at the beginning */
} attni_writer;

/* Each returns false if `write` failed. `element`: bytes of each element of `memory`. */
bool attni_emit(attni_writer *w, const void *bytes, size_t n);
bool attni_emit_number(attni_writer *w, uint64_t x, int bytes);
bool attni_emit_elements(attni_writer *w, const void *memory, size_t bytes, size_t element);

typedef struct attni_reader {
    const unsigned char *at;
    size_t left; /* bytes that may be read; for the caller to check */
} attni_reader;

uint64_t attni_get_number(const unsigned char *from, int bytes);
uint64_t attni_next_number(attni_reader *r, int bytes);
void attni_next_elements(attni_reader *r, void *memory, size_t bytes, size_t element);

#endif
