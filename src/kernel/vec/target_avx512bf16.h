/* The same with AVX512-BF16, or, where that is emulated, without. */
#ifdef ATTNI_AMX_EMULATED
#include "target_avx512.h"
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target(                                                \
                                 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16"))),      \
                             apply_to = function)
#else
#pragma GCC optimize("fp-contract=off") /* a plain cc must not fuse separate operations */
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16")
#endif
