/* quads_avx2.h: numbers of 4, 5 and 6 bits of a packed step (pack_avx2.c) as bytes: of eight columns
 * 8 v .. 8 v + 7 the four numbers k = 4 r .. 4 r + 3 each, a dword a column. r is a constant. */
#ifndef GERYON_KERNELS_CPU_QUADS_AVX2_H
#define GERYON_KERNELS_CPU_QUADS_AVX2_H

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/pack_avx2.h"

/* M(r) for all quads of a step; the first four have half 0 of q6_k's scales. */
#define QUADS_FIRST(M) M(0) M(1) M(2) M(3)
#define QUADS_LAST(M)  M(4) M(5) M(6) M(7)
#define QUADS_ALL(M)   QUADS_FIRST(M) QUADS_LAST(M)

static inline __m256i quad_4(const uint8_t *step, uint32_t v, int r) {
    __m256i z = avx2_load(step + r / 2 * 128 + 32 * v);
    return _mm256_and_si256(r % 2 ? _mm256_srli_epi32(z, 4) : z, _mm256_set1_epi8(15));
}

/* Shifted left by n, or right by -n. */
static inline __m256i quad_shift(__m256i z, int n) {
    return n > 0 ? _mm256_slli_epi32(z, n) : n < 0 ? _mm256_srli_epi32(z, -n) : z;
}

static inline __m256i quad_5(const uint8_t *step, uint32_t v, int r) {
    __m256i high = quad_shift(avx2_load(step + PACK_NIBBLES_BYTES + 32 * v), 4 - r);
    return _mm256_or_si256(quad_4(step, v, r), _mm256_and_si256(high, _mm256_set1_epi8(16)));
}

static inline __m256i quad_6(const uint8_t *step, uint32_t v, int r) {
    __m256i high = avx2_load(step + PACK_NIBBLES_BYTES + r / 4 * 128 + 32 * v);
    high = quad_shift(high, 4 - r % 4 * 2);
    return _mm256_or_si256(quad_4(step, v, r), _mm256_and_si256(high, _mm256_set1_epi8(48)));
}

/* Byte j of every dword as a float. */
static inline __m256 quad_float(__m256i bytes, int j) {
    const __m256i first = _mm256_set_epi32(12, 8, 4, 0, 12, 8, 4, 0),
                  none = _mm256_set1_epi32(~255);
    __m256i one =
        j == 0   ? _mm256_and_si256(bytes, _mm256_set1_epi32(255))
        : j == 3 ? _mm256_srli_epi32(bytes, 24)
                 : _mm256_shuffle_epi8(
                       bytes, _mm256_or_si256(none, _mm256_add_epi32(first, _mm256_set1_epi32(j))));
    return _mm256_cvtepi32_ps(one);
}

/* Eight bytes as floats: unsigned, or int8. */
static inline __m256 quad_scales(const uint8_t *p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
static inline __m256 quad_signed_scales(const uint8_t *p) {
    return avx2_int8((const int8_t *)p);
}

#endif
