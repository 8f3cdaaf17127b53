/* avx512.h: what the *_avx512.c files share. The table stores weights, K and V as avx2 does. */
#ifndef GERYON_KERNELS_CPU_AVX512_H
#define GERYON_KERNELS_CPU_AVX512_H

#include "kernels/cpu/avx2.h"

#define AVX512_REPEAT_7(M) AVX2_REPEAT_6(M) M(6)
#define AVX512_REPEAT_8(M) AVX512_REPEAT_7(M) M(7)

/* avx2_exp in sixteen lanes, with the same bits. */
static inline __m512 avx512_exp(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.3f), x); /* the second operand wins when one is NaN */
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), x);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x); /* ln 2, high: 10 bits */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);     /* ln 2, the rest */
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i e = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), e));
}

/* The low (even) and high (odd) bf16 of each dword, widened. */
static inline __m512 avx512_bf16_low(__m512i z) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(z, 16));
}
static inline __m512 avx512_bf16_high(__m512i z) {
    return _mm512_castsi512_ps(_mm512_and_si512(z, _mm512_set1_epi32((int)0xffff0000)));
}

/* Sixteen int8, widened. */
static inline __m512 avx512_int8(const int8_t *p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* gemm_avx512.c */
void avx512_gemm_group(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                       float (*acc)[GROUP]);

/* int8_avx512_vnni.c */
void avx512_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                      float (*acc)[GROUP]);

/* attend_avx512.c */
bool avx512_attend_tile(struct device *dev, uint32_t layer, const struct attend_task *task,
                        void *scratch);

#endif
