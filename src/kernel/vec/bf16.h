/* bf16 as the high half of a float, in integers of 32 bits: the same on every instruction set.
 * Included by the instruction sets that have V_HALVES, after v_eq and v_select. */
typedef uint32_t v_u32 __attribute__((vector_size(sizeof(vec))));

/* The low and the high half of each element, widened. */
V_INLINE vec v_low_bf16(vec a) { return (vec)((v_u32)a << 16); }
V_INLINE vec v_high_bf16(vec a) { return (vec)((v_u32)a & 0xffff0000u); }

/* Each element rounded, its bits in 32. As dtype.c rounds: half of what is cut, less one where the
 * kept part is even, carries or not. */
V_INLINE v_u32 v_bits_bf16(vec a)
{
    const v_u32 u = (v_u32)a, high = u >> 16;
    const v_u32 rounded = (u + ((high & 1) + 0x7fff)) >> 16, quiet = high | 0x40;
    return (v_u32)v_select(v_eq(a, a), (vec)rounded, (vec)quiet);
}
