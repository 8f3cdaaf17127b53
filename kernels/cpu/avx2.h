/* avx2.h: what the *_avx2.c files share. */
#ifndef GERYON_KERNELS_CPU_AVX2_H
#define GERYON_KERNELS_CPU_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"

/* Macro of one row (or column vector) repeated for the first n. */
#define AVX2_REPEAT_1(M) M(0)
#define AVX2_REPEAT_2(M) AVX2_REPEAT_1(M) M(1)
#define AVX2_REPEAT_3(M) AVX2_REPEAT_2(M) M(2)
#define AVX2_REPEAT_4(M) AVX2_REPEAT_3(M) M(3)
#define AVX2_REPEAT_5(M) AVX2_REPEAT_4(M) M(4)
#define AVX2_REPEAT_6(M) AVX2_REPEAT_5(M) M(5)

enum { AVX2_TILE = 6 }; /* rows x 16 columns of accumulators fill 12 of the 16 registers */

/* Sum of the lanes by halves: ((0+4)+(2+6)) + ((1+5)+(3+7)). */
static inline float avx2_sum(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Of all four. */
static inline uint64_t avx2_xor(__m256i v) {
    return (uint64_t)_mm256_extract_epi64(v, 0) ^ (uint64_t)_mm256_extract_epi64(v, 1) ^
           (uint64_t)_mm256_extract_epi64(v, 2) ^ (uint64_t)_mm256_extract_epi64(v, 3);
}

/* e^x within 2 ulp for -87.3 <= x <= 88; below and above as at these ends; NaN stays NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its series to r^7, 2^n by the exponent's bits. */
static inline __m256 avx2_exp(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-87.3f), x); /* the second operand wins when one is NaN */
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x); /* ln 2, high: 10 bits */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);     /* ln 2, the rest */
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

/* The low (even) and high (odd) bf16 of each dword, widened. */
static inline __m256 avx2_bf16_low(__m256i z) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(z, 16));
}
static inline __m256 avx2_bf16_high(__m256i z) {
    return _mm256_castsi256_ps(_mm256_and_si256(z, _mm256_set1_epi32((int)0xffff0000)));
}

static inline __m256i avx2_load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Eight int8, widened. */
static inline __m256 avx2_int8(const int8_t *p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* pack_avx2.c */
size_t avx2_matrix_bytes(struct matrix *m);
void avx2_pack_group(const struct matrix *m, uint32_t group, const void *rows);
void avx2_matrix_row(const struct matrix *m, uint32_t row, float *out);

/* gemm_avx2.c */
void avx2_step_sums(const float *x, uint32_t n_steps, float *sums);
void avx2_gemm_group(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                     float (*acc)[GROUP]);
/* A step of a type that is only read, for another table's panel: w[k] of 32 columns, d and, where the
 * type has minima, m, as the sum takes them. */
void avx2_expand_rows(enum dtype dtype, const uint8_t *head, const uint8_t *step, float (*w)[GROUP],
                      float *d, float *m);

/* int8_avx2.c */
void avx2_quantise(const float *x, uint32_t first, uint32_t n, uint32_t n_steps,
                   struct int8_step *rows, uint32_t row);
void avx2_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                    float (*acc)[GROUP]);

/* attend_avx2.c */
void avx2_kv_store(const struct device *dev, void *page, uint32_t at, const float *k,
                   const float *v);
bool avx2_attend_tile(struct device *dev, uint32_t layer, const struct attend_task *task,
                      void *scratch);
void avx2_merge(float *out, float *most, float *total, const float *part, float part_most,
                float part_total, size_t ep);

#endif
