/* peaks_avx512_vnni.c: int8 products as int8_avx512_vnni.c makes them, as a loop of peaks.h. */
#include <immintrin.h>

#include "kernels/cpu/peaks.h"

enum { CHAINS = 12 }; /* vpdpbusd takes as long as a multiply-add: peaks_avx2.c */

static float multiply_add(uint32_t rounds) {
    const __m512i w = _mm512_set1_epi8(1);
    __m512i x = w, acc[CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_setzero_si512();
    for (uint32_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            __asm__(
                ""
                : "+v"(x)); /* for all the compiler knows another one each time: no chains merge */
            acc[i] = _mm512_dpbusd_epi32(acc[i], w, x);
        }
    }
    __m512i sum = acc[0];
#pragma GCC unroll 12
    for (int i = 1; i < CHAINS; i++)
        sum = _mm512_add_epi32(sum, acc[i]);
    return (float)_mm512_reduce_add_epi32(sum);
}

const struct peaks_ops peaks_ops_avx512_vnni_int8 = {.multiply_add = multiply_add,
                                                     .round_flops = CHAINS * 64 * 2};
