/* From here on a file is compiled for AVX-512: F, BW, DQ and VL. With clang it must end with
 * #pragma clang attribute pop. No guard: it is a pragma. */
#ifdef ATTNI_AVX512_EMULATED /* in C: tests/amx/avx512 */
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")
#elif defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC optimize("fp-contract=off") /* a plain cc must not fuse separate operations */
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif
