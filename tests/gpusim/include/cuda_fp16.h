/* cuda_fp16.h of the simulator: half as storage only (see cuda_bf16.h). */
#ifndef GERYON_GPUSIM_CUDA_FP16_H
#define GERYON_GPUSIM_CUDA_FP16_H

#include <stdint.h>
#include <string.h>

struct __half {
    uint16_t bits;
};

static inline unsigned short __half_as_ushort(__half v) {
    return v.bits;
}
static inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}
static inline float __half2float(__half v) {
    uint32_t sign = (uint32_t)(v.bits & 0x8000) << 16;
    uint32_t exponent = v.bits >> 10 & 31, fraction = v.bits & 0x3FF, bits;
    if (exponent == 0) {
        float f = (float)fraction * 0x1p-24f; /* exact: zero or a subnormal */
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 0xFFu : exponent + 112) << 23 | fraction << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
/* To nearest, ties to even; from 65520 on infinity; every NaN becomes 0x7FFF. */
static inline __half __float2half_rn(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return {0x7FFF};
    if (magnitude >= 0x477FF000) return {(uint16_t)(sign | 0x7C00)};
    if (magnitude < 0x38800000) { /* below 2^-14: the sum's rounding is the conversion's */
        float positive, shifted;
        memcpy(&positive, &magnitude, sizeof positive);
        shifted = positive + 0.5f; /* one unit of 0.5f is 2^-24 */
        memcpy(&bits, &shifted, sizeof bits);
        return {(uint16_t)(sign | (bits - 0x3F000000))};
    }
    magnitude += 0xFFF + (magnitude >> 13 & 1) - (112u << 23);
    return {(uint16_t)(sign | magnitude >> 13)};
}

#endif
