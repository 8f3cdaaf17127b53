/* passes.c: the passes in vectors of 16 bytes, which every machine has or its compiler makes, and the
 * choice among the widths. */
#include <stdint.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define PASSES       passes_plain
#define PASSES_NAME  "plain"
#define VECTOR_BYTES 16
#if defined(__x86_64__)
#define VECTOR_MAX(a, b)            ((vf)_mm_max_ps((__m128)(a), (__m128)(b)))
#define VECTOR_ANY(m)               (_mm_movemask_ps((__m128)(m)) != 0)
#define VECTOR_MUL_EVEN(a, b)       ((vul)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#define UNPACK_LO(bits, a, b)       ((vu)_mm_unpacklo_epi##bits((__m128i)(a), (__m128i)(b)))
#define UNPACK_HI(bits, a, b)       ((vu)_mm_unpackhi_epi##bits((__m128i)(a), (__m128i)(b)))
#define VECTOR_UNPACK32(half, a, b) UNPACK_##half(32, a, b)
#define VECTOR_UNPACK64(half, a, b) UNPACK_##half(64, a, b)
#else
#define VECTOR_MAX(a, b)            select_f((a) > (b), a, b)
#define VECTOR_ANY(m)               (((vul)(m))[0] | ((vul)(m))[1])
#define VECTOR_MUL_EVEN(a, b)       (((vul)(a)&0xffffffffu) * ((vul)(b)&0xffffffffu))
#define VECTOR_UNPACK32(half, a, b) UNPACK32_##half(a, b)
#define VECTOR_UNPACK64(half, a, b) UNPACK64_##half(a, b)
#define UNPACK32_LO(a, b)           ((vu){(a)[0], (b)[0], (a)[1], (b)[1]})
#define UNPACK32_HI(a, b)           ((vu){(a)[2], (b)[2], (a)[3], (b)[3]})
#define UNPACK64_LO(a, b)           ((vu){(a)[0], (a)[1], (b)[0], (b)[1]})
#define UNPACK64_HI(a, b)           ((vu){(a)[2], (a)[3], (b)[2], (b)[3]})
#endif
#include "kernels/cpu/passes_body.h"

double score_weight(float score) {
    return weights(splat_d((double)score))[0];
}

const struct passes *passes_find(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &passes_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &passes_avx2;
#endif
    return &passes_plain;
}
