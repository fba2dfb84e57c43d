/* The tile registers of AMX-BF16, as six operations: configure, release, zero, load, store, and the
 * product of two tiles. All code that uses tiles (unit_amx.c) uses only these.
 *
 * There are eight tiles of up to 16 rows of 64 bytes. tile_dp_bf16(c, a, b) adds a product to a
 * tile c of float:
 *
 *   c[m][n] += sum_k a[m][k] * b[k][n]
 *
 * A row of `a` holds 32 bf16. Row k of `b` holds, for each n, the pair of elements 2k and 2k + 1
 * (this layout is called VNNI). Tile numbers are constants of the instruction, so c, a and b must
 * be literals.
 *
 * With ATTNI_AMX_EMULATED the tiles are arrays in memory (amx_emulated.c), with the arithmetic, the
 * shape checks and the faults of the processor. So everything above them can be tested on any
 * machine with AVX-512 and, with ATTNI_AVX512_EMULATED too, on any with AVX2 (tests/amx/avx512).
 *
 * The instructions are written as assembly instead of compiler intrinsics: gcc 12's intrinsics do
 * not declare the memory that a load reads, so the compiler may move stores from before the load to
 * after it.
 */
#ifndef ATTNI_TILE_OPS_H
#define ATTNI_TILE_OPS_H

#include <stddef.h>
#include <stdint.h>

/* The operand of ldtilecfg. */
typedef struct attni_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16]; /* at most 64 */
    uint8_t rows[16];       /* at most 16 */
} attni_tile_config;

#ifdef ATTNI_AMX_EMULATED

void attni_emulate_config(const attni_tile_config *config);
void attni_emulate_release(void);
void attni_emulate_zero(int tile);
void attni_emulate_load(int tile, const void *from, ptrdiff_t stride);
void attni_emulate_store(int tile, void *to, ptrdiff_t stride);
void attni_emulate_dp_bf16(int c, int a, int b);
int attni_emulated_configured(void); /* is this thread's tile state configured? */

#define tile_config(config) attni_emulate_config(config)
#define tile_release() attni_emulate_release()
#define tile_zero(tile) attni_emulate_zero(tile)
#define tile_load(tile, from, stride) attni_emulate_load(tile, from, stride)
#define tile_store(tile, to, stride) attni_emulate_store(tile, to, stride)
#define tile_dp_bf16(c, a, b) attni_emulate_dp_bf16(c, a, b)

#else

/* Strides are in bytes. */
#define tile_config(config)                                                                        \
    __asm__ volatile("ldtilecfg %0" : : "m"(*(const attni_tile_config *)(config)) : "memory")
#define tile_release() __asm__ volatile("tilerelease" : : : "memory")
#define tile_zero(tile) __asm__ volatile("tilezero %%tmm" #tile : : :)
#define tile_load(tile, from, stride)                                                              \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                            \
                     :                                                                             \
                     : "r"((const void *)(from)), "r"((ptrdiff_t)(stride))                         \
                     : "memory")
#define tile_store(tile, to, stride)                                                               \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                        \
                     :                                                                             \
                     : "r"((void *)(to)), "r"((ptrdiff_t)(stride))                                 \
                     : "memory")
#define tile_dp_bf16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : :)

#endif
#endif
