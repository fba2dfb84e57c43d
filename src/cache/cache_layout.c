/* Conversions between rows and interleaved keys; the layout is described in cache.h. */
#include "cache.h"

#include <string.h>

#define LINE ATTNI_LINE
#define UNIT ATTNI_UNIT

typedef uint32_t units4 __attribute__((vector_size(16)));
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (units4){__VA_ARGS__})
#endif

/* Transposes 4 x 4 units: unit c of row r becomes unit r of row c. */
static void transpose_square(char *to, size_t to_bytes, const char *from, size_t from_bytes)
{
    units4 a[4];
    for (size_t r = 0; r < 4; r++)
        memcpy(&a[r], from + r * from_bytes, sizeof a[r]);
    const units4 b[4] = {PICK(a[0], a[1], 0, 4, 1, 5), PICK(a[2], a[3], 0, 4, 1, 5),
                         PICK(a[0], a[1], 2, 6, 3, 7), PICK(a[2], a[3], 2, 6, 3, 7)};
    for (size_t c = 0; c < 4; c += 2) {
        const units4 even = PICK(b[c], b[c + 1], 0, 1, 4, 5),
                     odd = PICK(b[c], b[c + 1], 2, 3, 6, 7);
        memcpy(to + c * to_bytes, &even, sizeof even);
        memcpy(to + (c + 1) * to_bytes, &odd, sizeof odd);
    }
}

void attni_transpose_units(char *to, size_t to_bytes, const char *from, size_t from_bytes,
                           int64_t rows, int64_t columns)
{
    for (int64_t r = 0, high; r < rows; r += high) {
        high = rows - r < 4 ? 1 : 4;
        const char *row = from + (size_t)r * from_bytes;
        int64_t c = 0;
        for (; high == 4 && c + 4 <= columns; c += 4)
            transpose_square(to + (size_t)c * to_bytes + r * UNIT, to_bytes, row + c * UNIT,
                             from_bytes);
        for (; c < columns; c++)
            for (int64_t i = 0; i < high; i++)
                memcpy(to + (size_t)c * to_bytes + (r + i) * UNIT,
                       row + (size_t)i * from_bytes + c * UNIT, UNIT);
    }
}

void attni_cache_get(void *to, const char *key, size_t at, size_t n)
{
    for (size_t e = 0; e < n; e += UNIT)
        memcpy((char *)to + e, key + (at + e) * LINE / UNIT, n - e < UNIT ? n - e : UNIT);
}

void attni_cache_put(char *key, const void *from, size_t at, size_t n)
{
    for (size_t e = 0; e < n; e += UNIT) {
        uint32_t unit = 0;
        memcpy(&unit, (const char *)from + e, n - e < UNIT ? n - e : UNIT);
        memcpy(key + (at + e) * LINE / UNIT, &unit, UNIT);
    }
}
