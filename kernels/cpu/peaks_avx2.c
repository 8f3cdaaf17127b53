/* peaks_avx2.c: the loops of peaks.h in the instructions of the avx2 table. */
#include "kernels/cpu/peaks.h"

#include "kernels/cpu/avx2.h"

enum {
    CHAINS = 12,     /* a multiply-add takes 4 to 5 cycles and two begin in each: 10 fill them */
    CHAINS_INT8 = 4, /* of additions alone, which take one */
    NARROW = 8,      /* products of nibbles that fit 16 bits: int8_avx2.c */
};

uint64_t peaks_read_avx2(const char *p, size_t n) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 128) {
        a = _mm256_xor_si256(a, avx2_load(p + i));
        b = _mm256_xor_si256(b, avx2_load(p + i + 32));
        c = _mm256_xor_si256(c, avx2_load(p + i + 64));
        d = _mm256_xor_si256(d, avx2_load(p + i + 96));
    }
    return avx2_xor(_mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
}

static float multiply_add(uint32_t rounds) {
    const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
    __m256 acc[CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (uint32_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm256_fmadd_ps(acc[i], factor, term);
    }
    __m256 sum = acc[0];
#pragma GCC unroll 12
    for (int i = 1; i < CHAINS; i++)
        sum = _mm256_add_ps(sum, acc[i]);
    return avx2_sum(sum);
}

const struct peaks_ops peaks_ops_avx2 = {.multiply_add = multiply_add,
                                         .round_flops = CHAINS * 8 * 2};

/* Products of nibbles, of which 16 bits hold most: no type costs int8_avx2.c fewer instructions. All
 * numbers are 1. */
static float multiply_add_int8(uint32_t rounds) {
    const __m256i w = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    __m256i x = w, acc[CHAINS_INT8], u[CHAINS_INT8];
#pragma GCC unroll 4
    for (int i = 0; i < CHAINS_INT8; i++)
        acc[i] = _mm256_setzero_si256();
    for (uint32_t r = 0; r < rounds; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < CHAINS_INT8; i++)
            u[i] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int k = 0; k < NARROW; k++) {
#pragma GCC unroll 4
            for (int i = 0; i < CHAINS_INT8; i++) {
                u[i] = _mm256_add_epi16(u[i], _mm256_maddubs_epi16(w, x));
                /* For all the compiler knows both are others now: nothing is left out or moved. */
                __asm__("" : "+x"(x), "+x"(u[i]));
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < CHAINS_INT8; i++)
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(u[i], ones));
    }
    __m256i sum =
        _mm256_add_epi32(_mm256_add_epi32(acc[0], acc[1]), _mm256_add_epi32(acc[2], acc[3]));
    return avx2_sum(_mm256_cvtepi32_ps(sum));
}

const struct peaks_ops peaks_ops_avx2_int8 = {.multiply_add = multiply_add_int8,
                                              .round_flops = CHAINS_INT8 * NARROW * 32 * 2};
