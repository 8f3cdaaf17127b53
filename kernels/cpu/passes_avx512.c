/* passes_avx512.c: the passes in vectors of 64 bytes. */
#include <immintrin.h>
#include <stdint.h>

#define PASSES                      passes_avx512
#define PASSES_NAME                 "avx512"
#define VECTOR_BYTES                64
#define VECTOR_MAX(a, b)            ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define VECTOR_ANY(m)               (_mm512_movepi32_mask((__m512i)(m)) != 0)
#define VECTOR_MUL_EVEN(a, b)       ((vul)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define UNPACK_LO(bits, a, b)       ((vu)_mm512_unpacklo_epi##bits((__m512i)(a), (__m512i)(b)))
#define UNPACK_HI(bits, a, b)       ((vu)_mm512_unpackhi_epi##bits((__m512i)(a), (__m512i)(b)))
#define VECTOR_UNPACK32(half, a, b) UNPACK_##half(32, a, b)
#define VECTOR_UNPACK64(half, a, b) UNPACK_##half(64, a, b)
#include "kernels/cpu/passes_body.h"
