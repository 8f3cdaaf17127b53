/* passes_avx2.c: the passes in vectors of 32 bytes. */
#include <immintrin.h>
#include <stdint.h>

#define PASSES                      passes_avx2
#define PASSES_NAME                 "avx2"
#define VECTOR_BYTES                32
#define VECTOR_MAX(a, b)            ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define VECTOR_ANY(m)               (_mm256_movemask_ps((__m256)(m)) != 0)
#define VECTOR_MUL_EVEN(a, b)       ((vul)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define UNPACK_LO(bits, a, b)       ((vu)_mm256_unpacklo_epi##bits((__m256i)(a), (__m256i)(b)))
#define UNPACK_HI(bits, a, b)       ((vu)_mm256_unpackhi_epi##bits((__m256i)(a), (__m256i)(b)))
#define VECTOR_UNPACK32(half, a, b) UNPACK_##half(32, a, b)
#define VECTOR_UNPACK64(half, a, b) UNPACK_##half(64, a, b)
#include "kernels/cpu/passes_body.h"
