/* The names that src/kernel/ calls, for the functions of immintrin.h in this folder. */
#ifndef ATTN_TESTS_AVX512_NAMES_H
#define ATTN_TESTS_AVX512_NAMES_H

#undef _mm512_set1_ps
#undef _mm512_set1_pd
#undef _mm512_loadu_ps
#undef _mm512_loadu_pd
#undef _mm512_storeu_ps
#undef _mm512_storeu_pd
#undef _mm512_load_ps
#undef _mm512_load_pd
#undef _mm512_store_ps
#undef _mm512_store_pd
#undef _mm512_add_ps
#undef _mm512_add_pd
#undef _mm512_sub_ps
#undef _mm512_sub_pd
#undef _mm512_mul_ps
#undef _mm512_mul_pd
#undef _mm512_div_ps
#undef _mm512_div_pd
#undef _mm512_sqrt_ps
#undef _mm512_cvtps_pd
#undef _mm512_cvtpd_ps
#undef _mm512_sqrt_pd
#undef _mm512_fmadd_ps
#undef _mm512_fmadd_pd
#undef _mm512_max_ps
#undef _mm512_max_pd
#undef _mm512_min_ps
#undef _mm512_roundscale_ps
#undef _mm512_roundscale_pd
#undef _mm512_scalef_ps
#undef _mm512_scalef_pd
#undef _mm512_cmp_ps_mask
#undef _mm512_cmp_pd_mask
#undef _mm512_mask_blend_ps
#undef _mm512_mask_blend_pd
#undef _mm512_setzero_ps
#undef _mm512_cvtss_f32
#undef _mm512_abs_ps
#undef _mm512_mask_mov_ps
#undef _mm512_maskz_mov_ps
#undef _mm512_maskz_mul_ps
#undef _mm512_maskz_div_ps
#undef _mm512_mask_cmp_ps_mask
#undef _mm512_mask_storeu_ps
#undef _mm512_mask_store_ps
#undef _mm512_fpclass_ps_mask
#undef _mm512_reduce_add_ps
#undef _mm512_reduce_max_ps
#undef _mm512_permutex2var_ps
#undef _mm512_permutexvar_ps
#undef _mm512_permutex2var_epi16
#undef _mm512_shuffle_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_shuffle_f64x2
#undef _mm512_insertf32x4
#undef _mm512_castps128_ps512
#undef _mm512_inserti64x4
#undef _mm512_set1_epi32
#undef _mm512_set1_epi16
#undef _mm512_setzero_si512
#undef _mm512_castsi256_si512
#undef _mm512_loadu_si512
#undef _mm512_load_si512
#undef _mm512_store_si512
#undef _mm512_and_si512
#undef _mm512_or_si512
#undef _mm512_add_epi32
#undef _mm512_add_epi16
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_mul_epu32
#undef _mm512_max_epu16
#undef _mm512_max_epi32
#undef _mm512_reduce_max_epi32
#undef _mm512_ternarylogic_epi32
#undef _mm512_test_epi8_mask
#undef _mm512_mask_mov_epi32
#undef _mm512_maskz_mov_epi32
#undef _mm512_cmpneq_epi32_mask
#undef _mm512_cmpeq_epi16_mask
#undef _mm512_maskz_mov_epi16
#undef _mm512_maskz_loadu_ps
#undef _mm512_maskz_loadu_pd
#undef _mm512_maskz_loadu_epi16
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtps_epi32
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtpd_epi32
#undef _mm256_cvtepi32_epi8
#undef _mm512_cvtph_ps
#undef _mm512_unpacklo_ps
#undef _mm512_unpackhi_ps
#undef _mm512_unpacklo_epi16
#undef _mm512_unpackhi_epi16
#undef _mm512_cvtps_ph
#undef _mm256_maskz_loadu_epi16
#undef _mm256_mask_storeu_epi16
#undef _mm512_unpacklo_pd
#undef _mm512_unpackhi_pd
#undef _mm512_setr_ps
#undef _mm512_setr_pd
#undef _mm512_setr_epi32
#undef _mm512_castps_si512
#undef _mm512_castsi512_ps
#define _mm512_set1_ps c_set1_ps
#define _mm512_set1_pd c_set1_pd
#define _mm512_loadu_ps c_loadu_ps
#define _mm512_loadu_pd c_loadu_pd
#define _mm512_storeu_ps c_storeu_ps
#define _mm512_storeu_pd c_storeu_pd
#define _mm512_load_ps c_load_ps
#define _mm512_load_pd c_load_pd
#define _mm512_store_ps c_store_ps
#define _mm512_store_pd c_store_pd
#define _mm512_add_ps c_add_ps
#define _mm512_add_pd c_add_pd
#define _mm512_sub_ps c_sub_ps
#define _mm512_sub_pd c_sub_pd
#define _mm512_mul_ps c_mul_ps
#define _mm512_mul_pd c_mul_pd
#define _mm512_div_ps c_div_ps
#define _mm512_div_pd c_div_pd
#define _mm512_sqrt_ps c_sqrt_ps
#define _mm512_cvtps_pd c_cvtps_pd
#define _mm512_cvtpd_ps c_cvtpd_ps
#define _mm512_sqrt_pd c_sqrt_pd
#define _mm512_fmadd_ps c_fmadd_ps
#define _mm512_fmadd_pd c_fmadd_pd
#define _mm512_max_ps c_max_ps
#define _mm512_max_pd c_max_pd
#define _mm512_min_ps c_min_ps
#define _mm512_roundscale_ps c_roundscale_ps
#define _mm512_roundscale_pd c_roundscale_pd
#define _mm512_scalef_ps c_scalef_ps
#define _mm512_scalef_pd c_scalef_pd
#define _mm512_cmp_ps_mask c_cmp_ps_mask
#define _mm512_cmp_pd_mask c_cmp_pd_mask
#define _mm512_mask_blend_ps c_mask_blend_ps
#define _mm512_mask_blend_pd c_mask_blend_pd
#define _mm512_setzero_ps c_setzero_ps
#define _mm512_cvtss_f32 c_cvtss_f32
#define _mm512_abs_ps c_abs_ps
#define _mm512_mask_mov_ps c_mask_mov_ps
#define _mm512_maskz_mov_ps c_maskz_mov_ps
#define _mm512_maskz_mul_ps c_maskz_mul_ps
#define _mm512_maskz_div_ps c_maskz_div_ps
#define _mm512_mask_cmp_ps_mask c_mask_cmp_ps_mask
#define _mm512_mask_storeu_ps c_mask_storeu_ps
#define _mm512_mask_store_ps c_mask_store_ps
#define _mm512_fpclass_ps_mask c_fpclass_ps_mask
#define _mm512_reduce_add_ps c_reduce_add_ps
#define _mm512_reduce_max_ps c_reduce_max_ps
#define _mm512_permutex2var_ps c_permutex2var_ps
#define _mm512_permutexvar_ps c_permutexvar_ps
#define _mm512_permutex2var_epi16 c_permutex2var_epi16
#define _mm512_shuffle_ps c_shuffle_ps
#define _mm512_shuffle_f32x4 c_shuffle_f32x4
#define _mm512_shuffle_f64x2 c_shuffle_f64x2
#define _mm512_insertf32x4 c_insertf32x4
#define _mm512_castps128_ps512 c_castps128_ps512
#define _mm512_inserti64x4 c_inserti64x4
#define _mm512_set1_epi32 c_set1_epi32
#define _mm512_set1_epi16 c_set1_epi16
#define _mm512_setzero_si512 c_setzero_si512
#define _mm512_castsi256_si512 c_castsi256_si512
#define _mm512_loadu_si512 c_loadu_si512
#define _mm512_load_si512 c_load_si512
#define _mm512_store_si512 c_store_si512
#define _mm512_and_si512 c_and_si512
#define _mm512_or_si512 c_or_si512
#define _mm512_add_epi32 c_add_epi32
#define _mm512_add_epi16 c_add_epi16
#define _mm512_slli_epi32 c_slli_epi32
#define _mm512_srli_epi32 c_srli_epi32
#define _mm512_mul_epu32 c_mul_epu32
#define _mm512_max_epu16 c_max_epu16
#define _mm512_max_epi32 c_max_epi32
#define _mm512_reduce_max_epi32 c_reduce_max_epi32
#define _mm512_ternarylogic_epi32 c_ternarylogic_epi32
#define _mm512_test_epi8_mask c_test_epi8_mask
#define _mm512_mask_mov_epi32 c_mask_mov_epi32
#define _mm512_maskz_mov_epi32 c_maskz_mov_epi32
#define _mm512_cmpneq_epi32_mask c_cmpneq_epi32_mask
#define _mm512_cmpeq_epi16_mask c_cmpeq_epi16_mask
#define _mm512_maskz_mov_epi16 c_maskz_mov_epi16
#define _mm512_maskz_loadu_ps c_maskz_loadu_ps
#define _mm512_maskz_loadu_pd c_maskz_loadu_pd
#define _mm512_maskz_loadu_epi16 c_maskz_loadu_epi16
#define _mm512_cvtepi32_ps c_cvtepi32_ps
#define _mm512_cvtepi8_epi32 c_cvtepi8_epi32
#define _mm512_cvtepu16_epi32 c_cvtepu16_epi32
#define _mm512_cvtepi32_epi16 c_cvtepi32_epi16
#define _mm512_cvtps_epi32 c_cvtps_epi32
#define _mm512_cvtepi32_epi8 c_cvtepi32_epi8
#define _mm512_cvtpd_epi32 c_cvtpd_epi32
#define _mm256_cvtepi32_epi8 c_half_cvtepi32_epi8
#define _mm512_cvtph_ps c_cvtph_ps
#define _mm512_unpacklo_ps c_unpacklo_ps
#define _mm512_unpackhi_ps c_unpackhi_ps
#define _mm512_unpacklo_epi16 c_unpacklo_epi16
#define _mm512_unpackhi_epi16 c_unpackhi_epi16
#define _mm512_cvtps_ph(a, how) c_cvtps_ph(a)
#define _mm256_maskz_loadu_epi16 c_half_maskz_loadu_epi16
#define _mm256_mask_storeu_epi16 c_half_mask_storeu_epi16
#define _mm512_unpacklo_pd c_unpacklo_pd
#define _mm512_unpackhi_pd c_unpackhi_pd
#define _mm512_setr_ps(...) ((__m512){__VA_ARGS__})
#define _mm512_setr_pd(...) ((__m512d){__VA_ARGS__})
#define _mm512_setr_epi32(...) ((__m512i)(c_32){__VA_ARGS__})
#define _mm512_castps_si512(a) ((__m512i)(a))
#define _mm512_castsi512_ps(a) ((__m512)(a))
#endif
