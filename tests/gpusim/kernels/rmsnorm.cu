/* rmsnorm.cu: y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * w[:]
 *
 * One block a row; thread i takes the 8 elements 8i .. 8i + 7 (16 bytes) of each stride of 8 blockDim.
 * The sum's order depends on d alone. */
#include "kernels/cuda/gpu.h"
#include "tests/gpusim/kernels/kernels.h"

#define THREADS 64

GPU_INLINE float square_sum(uint4 v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    float sum = 0.0f;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        float lo = bf16_lo(words[i]), hi = bf16_hi(words[i]);
        sum += lo * lo;
        sum += hi * hi;
    }
    return sum;
}
GPU_INLINE uint32_t scaled(uint32_t x, uint32_t w, float scale) {
    return bf16_pair(bf16_lo(x) * scale * bf16_lo(w), bf16_hi(x) * scale * bf16_hi(w));
}

static __global__ void rmsnorm(bf16 *y, const bf16 *x, const bf16 *w, int d, float eps) {
    __shared__ float warp[WARP];
    const size_t row = (size_t)blockIdx.x * (size_t)d;
    float sum = 0.0f;
    for (int i = (int)threadIdx.x * 8; i < d; i += THREADS * 8)
        sum += square_sum(load16(x + row + i));
    const float scale = rsqrtf(block_sum(sum, warp) / (float)d + eps);
    for (int i = (int)threadIdx.x * 8; i < d; i += THREADS * 8) {
        uint4 v = load16(x + row + i), g = load16(w + i);
        v = make_uint4(scaled(v.x, g.x, scale), scaled(v.y, g.y, scale), scaled(v.z, g.z, scale),
                       scaled(v.w, g.w, scale));
        store16(y + row + i, v);
    }
}

extern "C" int launch_rmsnorm(uint16_t *y, const uint16_t *x, const uint16_t *w, int rows, int d,
                              float eps, void *stream) {
    if (d % 8 || d > 2048) return cudaErrorInvalidValue;
    return GPU_LAUNCH(rmsnorm, dim3((unsigned)rows), dim3(THREADS), 0, (cudaStream_t)stream,
                      (bf16 *)y, (const bf16 *)x, (const bf16 *)w, d, eps);
}
