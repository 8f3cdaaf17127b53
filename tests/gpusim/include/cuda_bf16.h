/* cuda_bf16.h of the simulator: bf16 as storage only. No arithmetic and no implicit conversion, so
 * that a kernel which computes in bf16 does not compile here. */
#ifndef GERYON_GPUSIM_CUDA_BF16_H
#define GERYON_GPUSIM_CUDA_BF16_H

#include <stdint.h>
#include <string.h>

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) {
    return v.bits;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return {bits};
}
static inline float __bfloat162float(__nv_bfloat16 v) {
    uint32_t bits = (uint32_t)v.bits << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
/* To nearest, ties to even; every NaN becomes 0x7FFF, as on the device. */
static inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return {0x7FFF};
    return {(uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

#endif
