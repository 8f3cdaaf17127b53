/* peaks_avx512.c: the loops of peaks.h in the instructions of the avx512 table. */
#include "kernels/cpu/peaks.h"

#include "kernels/cpu/avx2.h"

enum { CHAINS = 12 }; /* as in peaks_avx2.c */

uint64_t peaks_read_avx512(const char *p, size_t n) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 256) {
        a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return avx2_xor(_mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1)));
}

static float multiply_add(uint32_t rounds) {
    const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
    __m512 acc[CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (uint32_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], factor, term);
    }
    __m512 sum = acc[0];
#pragma GCC unroll 12
    for (int i = 1; i < CHAINS; i++)
        sum = _mm512_add_ps(sum, acc[i]);
    return _mm512_reduce_add_ps(sum);
}

const struct peaks_ops peaks_ops_avx512 = {.multiply_add = multiply_add,
                                           .round_flops = CHAINS * 16 * 2};
