/* Emulates the tile registers of AMX in memory, for tests (tile_ops.h). Empty without
 * ATTNI_AMX_EMULATED.
 *
 * Where a processor would raise a fault, the program ends here with a line that says why. The
 * arithmetic is that of Intel's manual (volume 2, TDPBF16PS). In each element of c:
 *
 *   s0 = chain of fused multiply-adds from 0 over the products of even elements
 *   s1 = the same over the products of odd elements
 *   c += s0 + s1
 *
 * Denormal operands count as 0, denormal results become 0, rounding is to nearest even whatever
 * MXCSR says, and no exception flag is raised.
 */
#ifdef ATTNI_AMX_EMULATED
#include "tile_ops.h"
#include "unit.h"

#include "../kernel/vec/target_avx512.h"
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILES 8

typedef struct tile {
    unsigned char row[16][64];
} tile;

static _Thread_local attni_tile_config now; /* palette 0: not configured */
static _Thread_local tile tiles[TILES];

static void fault(const char *why)
{
    fprintf(stderr, "emulated AMX: %s\n", why);
    abort();
}

static void need_tile(int t)
{
    if (now.palette == 0)
        fault("a tile is used before ldtilecfg or after tilerelease");
    if (t < 0 || t >= TILES)
        fault("there are 8 tiles");
    if (now.rows[t] == 0 || now.row_bytes[t] == 0)
        fault("a tile is used that is not configured");
}

void attni_emulate_config(const attni_tile_config *config)
{
    if (config->palette != 1)
        fault("ldtilecfg: palette must be 1");
    for (size_t i = 0; i < sizeof config->reserved; i++)
        if (config->reserved[i])
            fault("ldtilecfg: reserved bytes must be 0");
    for (int t = 0; t < 16; t++) {
        const int rows = config->rows[t], bytes = config->row_bytes[t];
        if (rows > 16 || bytes > 64 || (rows == 0) != (bytes == 0) || (t >= TILES && rows))
            fault("ldtilecfg: a tile has up to 16 rows of up to 64 bytes");
    }
    now = *config;
    memset(tiles, 0, sizeof tiles);
}

void attni_emulate_release(void) { memset(&now, 0, sizeof now); }

int attni_emulated_configured(void) { return now.palette != 0; }

void attni_emulate_zero(int t)
{
    need_tile(t);
    memset(&tiles[t], 0, sizeof tiles[t]);
}

void attni_emulate_load(int t, const void *from, ptrdiff_t stride)
{
    need_tile(t);
    memset(&tiles[t], 0, sizeof tiles[t]);
    for (int r = 0; r < now.rows[t]; r++)
        memcpy(tiles[t].row[r], (const char *)from + r * stride, now.row_bytes[t]);
}

void attni_emulate_store(int t, void *to, ptrdiff_t stride)
{
    need_tile(t);
    for (int r = 0; r < now.rows[t]; r++)
        memcpy((char *)to + r * stride, tiles[t].row[r], now.row_bytes[t]);
}

void attni_emulate_dp_bf16(int c, int a, int b)
{
    need_tile(a), need_tile(b), need_tile(c);
    if (a == b || b == c || a == c)
        fault("tdpbf16ps: the three tiles must differ");
    if (now.rows[a] != now.rows[c] || now.row_bytes[b] != now.row_bytes[c] ||
        now.row_bytes[a] % 4 || now.row_bytes[c] % 4 || now.row_bytes[a] / 4 != now.rows[b])
        fault("tdpbf16ps: the shapes of the three tiles do not fit");
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(ATTNI_BF16_MXCSR);
    const int pairs = now.row_bytes[a] / 4;
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    for (int m = 0; m < now.rows[c]; m++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int k = 0; k < pairs; k++) {
            int pair;
            memcpy(&pair, tiles[a].row[m] + 4 * k, 4);
            const __m512i va = _mm512_set1_epi32(pair), vb = _mm512_loadu_si512(tiles[b].row[k]);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(va, 16)),
                                   _mm512_castsi512_ps(_mm512_slli_epi32(vb, 16)), even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(va, high)),
                                  _mm512_castsi512_ps(_mm512_and_si512(vb, high)), odd);
        }
        void *row = tiles[c].row[m];
        const __mmask16 columns = (__mmask16)((1u << (now.row_bytes[c] / 4)) - 1);
        const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(row), _mm512_add_ps(even, odd));
        _mm512_storeu_ps(row, _mm512_maskz_mov_ps(columns, sum));
    }
    /* The compiler must not move the arithmetic above past this change of mode. */
    __asm__ volatile("" : : : "memory");
    _mm_setcsr(mode);
}

#ifdef __clang__
#pragma clang attribute pop
#endif
#else
typedef int attni_nothing_here; /* C requires a declaration in every file */
#endif
